"""Summaries of streams in the format of tcpkali 1.1, so that figures can be put beside others' and read by what reads those.

A server that discards sends nothing back. tcpkali counts both directions in the bandwidth of a channel (⇅). Its estimate of packets
takes the bytes of each call that sent or received something, in segments of MSS_BYTES.
"""

import math
from collections.abc import Iterator

from ringlab.results import Cell, Sample

MSS_BYTES = 1460
MIB = 1 << 20


def summaries(cell: Cell) -> Iterator[tuple[str, str]]:
    """Yield each arm of a cell of streams with the summary of its median round, by the bytes that came back, or that were taken."""
    for arm in cell.arms:
        samples = sorted(cell.measured(arm), key=lambda sample: sample.figures["megabytes_per_s"])
        if samples:
            yield arm, summary(cell, samples[(len(samples) - 1) // 2])


def summary(cell: Cell, sample: Sample) -> str:
    """Return a sample as tcpkali prints it at its end."""
    found = sample.figures
    sent, received, duration_s = found["bytes_sent"], found["bytes_received"], found["window_s"]
    connections = int(cell.parameters["connections"])
    each = (sent + received) / duration_s / connections
    down, up = packets(received, found.get("stream_reads", 0)), packets(sent, found.get("stream_writes", 0))
    rates = [calls * segments / duration_s for calls, segments in (down, up)]
    return (
        f"; as tcpkali -m 'hello world' -c {connections} -T {duration_s:.3g} HOST:PORT prints it\n"
        f"Ramped up to {connections} connections.\n"
        f"Total data sent:     {size(sent)} ({sent:.0f} bytes)\n"
        f"Total data received: {size(received)} ({received:.0f} bytes)\n"
        f"Bandwidth per channel: {each * 8e-6:.3f}⇅ Mbps ({each / 1e3:.1f} kBps)\n"
        f"Aggregate bandwidth: {received / duration_s * 8e-6:.3f}↓, {sent / duration_s * 8e-6:.3f}↑ Mbps\n"
        f"Packet rate estimate: {rates[0]:.1f}↓, {rates[1]:.1f}↑ ({down[1]}↓, {up[1]}↑ TCP MSS/op)\n"
        f"Test duration: {duration_s:.4f} s.\n"
    )


def size(transferred: float) -> str:
    """Return an amount of data; tcpkali has no decimals for less than 2 KiB."""
    return f"{transferred / MIB:.1f} MiB" if transferred >= 2048 else f"{transferred:.0f} bytes"


def packets(transferred: float, calls: float) -> tuple[float, int]:
    """Return the calls, and into how many segments each one's bytes go on average."""
    return calls, math.ceil(transferred / calls / MSS_BYTES) if calls else 0

"""Random operations on connections, on ringloop and on asyncio side by side: see state_machines.py."""

import importlib
import sys
from asyncio.selector_events import _SelectorDatagramTransport

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import state_machines
from support import examples


@pytest.mark.examples
@pytest.mark.ringloop_only
@pytest.mark.parametrize(
    "machine",
    [
        "PlainMachine",
        "TlsMachine",
        "PipeMachine",
        pytest.param(
            "DatagramMachine",
            marks=pytest.mark.skipif(
                sys.version_info[:2] == (3, 13) and not hasattr(_SelectorDatagramTransport, "_header_size"),
                reason="asyncio, the model, adds 8 bytes to its buffer's size for each datagram and never subtracts them",
            ),
        ),
    ],
)
def test_connections_behave_as_asyncio_s_whatever_is_done_to_them(arm, machine):
    """The same examples each time; `make soak` runs others, and finds the shortest that fails, which may take minutes."""
    run_examples(lambda: getattr(state_machines, machine)(arm), 30)


@pytest.mark.examples
@pytest.mark.ringloop_only
@pytest.mark.parametrize(
    ("module", "machine"),
    [
        ("stream_machines", "UnixStreamsMachine"),
        ("stream_machines", "TcpStreamsMachine"),
        ("file_machines", "FileMachine"),
        ("child_machines", "ChildMachine"),
        ("scarcity_machines", "ScarcityMachine"),
    ],
)
def test_so_do_streams_files_and_children_even_without_descriptors(arm, module, machine):
    make = getattr(importlib.import_module(module), machine)
    run_examples(lambda: make(arm), 10)


def run_examples(make, count):
    run_state_machine_as_test(
        make,
        settings=settings(
            max_examples=examples(count),
            stateful_step_count=20,
            derandomize=True,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

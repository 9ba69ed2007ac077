"""Fuzz the message layer of HTTP and TLS records (crates/ringloop-http), and the driver's operations (crates/ringloop-driver),
with cargo-fuzz, each target for a bounded time.

usage: tools/fuzz.py [--seconds N] [--collect] [TARGET...]

The fuzzer starts from the corpus, which is a file of hexadecimal lines for each target in the crate's tests/corpus, and for
HTTP/1 from the table of requests next to it. What it finds is kept in the cargo folder for the next run. `--collect` writes a
minimal set of it to the corpus.

Exits with 0 if no input failed, with 1 if one did, and with 77 if something is missing; a message says what.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
HTTP = ROOT / "crates/ringloop-http"
CRATES = (HTTP, ROOT / "crates/ringloop-driver")
TARGET_FOLDER = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "fuzz"
# The crate of each target.
TARGETS = {path.stem: crate for crate in CRATES for path in sorted((crate / "fuzz/fuzz_targets").glob("*.rs"))}
# Longer inputs reach no more code, but take longer.
INPUT_BYTES_MAX = 4096
# The targets whose inputs are HTTP/1 requests, and the number of bytes before the request.
TAKES_REQUESTS = {"h1_head": 0, "h1_connection": 8}


def lacks(what: str) -> None:
    print(f"fuzz: left out: {what}", file=sys.stderr)
    sys.exit(77)


def fuzz_command() -> list[str]:
    """Return the command of cargo-fuzz, with a toolchain that accepts the flags of sanitizers."""
    if shutil.which("cargo-fuzz") is None:
        lacks("cargo-fuzz is not installed (cargo install cargo-fuzz)")
    nightly = subprocess.run(["rustc", "+nightly", "--version"], capture_output=True, check=False)
    if nightly.returncode == 0:
        return ["cargo", "+nightly", "fuzz"]
    # A stable compiler supports the flags, too, but hides them.
    os.environ["RUSTC_BOOTSTRAP"] = "1"
    return ["cargo", "fuzz"]


def folders_for(target: str) -> list[str]:
    """Return the options that name a target's folders."""
    return ["--fuzz-dir", str(TARGETS[target] / "fuzz"), "--target-dir", str(TARGET_FOLDER)]


def corpus_path(target: str) -> pathlib.Path:
    """Return the file that has the corpus of `target`."""
    return TARGETS[target] / "tests/corpus" / f"{target}.txt"


def corpus_of(target: str) -> list[bytes]:
    """Return the corpus of `target`."""
    path = corpus_path(target)
    return [bytes.fromhex(line) for line in path.read_text().splitlines()] if path.exists() else []


def requests_for(target: str) -> list[bytes]:
    """Return the requests of the table, as inputs of `target`, if it takes requests."""
    if target not in TAKES_REQUESTS:
        return []
    rows = json.loads((HTTP / "tests/data/requests.json").read_text())
    before = bytes(TAKES_REQUESTS[target])
    return [before + row["input"].encode("latin-1") for row in rows]


def write_inputs(folder: pathlib.Path, inputs: list[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for data in inputs:
        (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def run(fuzz: list[str], target: str, seconds: int) -> bool:
    """Run a target. Return True if no input failed."""
    found = TARGET_FOLDER / "found" / target
    write_inputs(found, corpus_of(target) + requests_for(target))
    options = [f"-max_total_time={seconds}", f"-max_len={INPUT_BYTES_MAX}", "-print_final_stats=1", "-timeout=20"]
    command = [*fuzz, "run", *folders_for(target), target, str(found), "--", *options]
    return subprocess.run(command, check=False).returncode == 0


def collect(fuzz: list[str], target: str) -> None:
    """Write to the corpus a minimal set of inputs that together reach all code that was reached."""
    collected = TARGET_FOLDER / "collected" / target
    shutil.rmtree(collected, ignore_errors=True)
    collected.mkdir(parents=True)
    folders = [str(collected), str(TARGET_FOLDER / "found" / target)]
    # Without counters, it does not matter how often code is reached.
    options = ["-set_cover_merge=1", "-use_counters=0", f"-max_len={INPUT_BYTES_MAX}"]
    subprocess.run([*fuzz, "run", *folders_for(target), target, *folders, "--", *options], check=True)
    needless = set(requests_for(target))
    inputs = sorted({path.read_bytes() for path in collected.iterdir()} - needless, key=lambda data: (len(data), data))
    corpus_path(target).write_text("".join(f"{data.hex()}\n" for data in inputs))
    print(f"{target}: {len(inputs)} inputs of {sum(map(len, inputs))} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="how long each target runs (60)")
    parser.add_argument("--collect", action="store_true", help="write a minimal set of inputs to the corpus")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}; default: all")
    arguments = parser.parse_args()
    for target in arguments.targets:
        if target not in TARGETS:
            parser.error(f"no target {target}")
    fuzz = fuzz_command()
    failed = []
    for target in arguments.targets or TARGETS:
        print(f"== {target}", flush=True)
        if not run(fuzz, target, arguments.seconds):
            failed.append(target)
        elif arguments.collect:
            collect(fuzz, target)
    if failed:
        print(f"failed: {', '.join(failed)}; the inputs are in fuzz/artifacts of their crates")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

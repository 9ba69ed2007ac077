"""Run pytest, and run what failed again, alone; the arguments are pytest's.

Takes pytest's arguments, and one of its own, `--record NAME` before them: the record of each test is kept in target/records/NAME.jsonl.
tools/test_records.py has the rules. Exits with 0 if all tests passed or the failed ones are flaky, or else as pytest does.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import test_records

REPOSITORY = Path(__file__).resolve().parent.parent
TESTS_FAILED = 1
"""pytest's exit status if tests failed. The others say that it could not run them."""


def interpreter() -> list[str]:
    """Return the command of the running interpreter, with its options, such as -X dev."""
    return [sys.executable, *sys.orig_argv[1 : sys.orig_argv.index(sys.argv[0])]]


def main() -> int:
    """Run pytest, and judge what failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, usage="run_pytest.py --record NAME [PYTEST'S ARGUMENTS]", allow_abbrev=False
    )
    parser.add_argument("--record", required=True, metavar="NAME")
    options, arguments = parser.parse_known_args()
    path = test_records.FOLDER / f"{options.record}.jsonl"
    path.unlink(missing_ok=True)
    # conftest.py of the repository, which writes records, also for tests of a project in a folder of it.
    pytest = [*interpreter(), "-m", "pytest", "--confcutdir", str(REPOSITORY)]
    status = subprocess.run([*pytest, "--record", str(path), *arguments], check=False).returncode
    # An interactive debugger has shown the failure already.
    if status != TESTS_FAILED or {"--pdb", "--trace"} & set(arguments):
        return status

    def run_alone(name: str) -> bool:
        return subprocess.run([*pytest, "-p", "no:xdist", "-p", "no:randomly", name], check=False).returncode == 0

    records = test_records.read(path)
    passes = test_records.judge(records, run_alone)
    test_records.write(path, records)
    return 0 if passes and records else status


if __name__ == "__main__":
    sys.exit(main())

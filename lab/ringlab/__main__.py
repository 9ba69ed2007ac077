"""The program: `ringlab`, or `python -m ringlab`."""

import io
import os
import signal
import sys
import traceback


def main() -> None:
    """Run a command. Until all modules are loaded, Ctrl-C ends the process at once, without a message."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if isinstance(sys.stdout, io.TextIOWrapper):  # It may be closed.
        # Names of files may be any bytes, and the locale's encoding may lack characters. stderr is like this by itself.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from ringlab.cli import main as commands
    except Exception:
        # Python's own status is 1, which has another meaning (cli.errors_told).
        try:
            traceback.print_exc()
        except OSError:
            os._exit(2)  # What is left to be written would fail again when Python ends, with another status.
        sys.exit(2)
    commands(prog_name="ringlab")


if __name__ == "__main__":
    main()

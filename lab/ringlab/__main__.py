"""The program: `ringlab`, or `python -m ringlab`."""

import signal


def main() -> None:
    """Run a command. Until all modules are loaded, Ctrl-C ends the process at once, without a message."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ringlab.cli import main as commands

    commands(prog_name="ringlab")


if __name__ == "__main__":
    main()

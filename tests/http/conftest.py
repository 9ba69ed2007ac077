"""The HTTP server is ringloop's alone: the tests that run its processes have no control."""

import stand_in

stand_in.install()

"""Say whether the kernel grants io_uring to this process: exit with 0, or with the reason on stderr."""

import ctypes
import os
import sys

IO_URING_SETUP = 425
"""The number of the system call, the same on every architecture that Linux has got since 5.1."""

system = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(120)
"""A zeroed struct io_uring_params."""
descriptor = system.syscall(IO_URING_SETUP, 4, parameters)
if descriptor < 0:
    sys.exit(f"io_uring_setup was refused: {os.strerror(ctypes.get_errno())}")
os.close(descriptor)

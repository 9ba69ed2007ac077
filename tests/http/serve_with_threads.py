"""`ringloop serve` that accepts `--threads` with the GIL, too: threads then take turns, and do all the same."""

import sys

from ringloop.__main__ import main
from ringloop.http import _config

_config.has_gil = lambda: False
sys.exit(main())

"""One lab on several machines, by Dask distributed: a server on one machine, and load generators on others.

Every machine runs `ringlab worker`, which connects to a Dask scheduler and offers the resource `server` or `load` (`worker`). A trial is
a task on the machine of the server and one on each machine of a load generator (`seat`), which the machine that runs the lab places,
starts on one clock, and watches (`coordinator`). What the generators have measured becomes one result (`merging`). `namespaces` makes
a cluster of network namespaces on one machine. Only `coordinator` and `worker` import Dask, which is an extra of the package.
"""

from dataclasses import dataclass

SERVER, LOAD = "server", "load"
ROLES = (SERVER, LOAD)
LOCAL = "local"
PORT = 8786
"""Dask's own choice for its scheduler."""
INSTALL = "pip install 'ringlab[cluster]'"


@dataclass(frozen=True)
class Encryption:
    """Files for TLS between all parts of a cluster; empty where it isn't used."""

    ca_file: str = ""
    certificate: str = ""
    key: str = ""

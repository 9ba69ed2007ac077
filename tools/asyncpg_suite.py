"""Let asyncpg's tests start a PostgreSQL, in a process that `tools/suites.py` runs.

pytest imports this module as a plugin. PostgreSQL is looked for where Debian installs it. It refuses to run as root: if the
tests do, its programs run under the account `postgres`, which owns the server's folders.
"""

from __future__ import annotations

import functools
import os
import pathlib
import pwd
import shutil
import subprocess
import types
from typing import Any

from asyncpg import cluster

os.environ.pop("PGHOST", None)  # the tests would take the server that it names
if "PGINSTALLATION" not in os.environ:
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        raise SystemExit("PostgreSQL is not installed here: apt-get install postgresql")
    os.environ["PGINSTALLATION"] = str(found[-1].parent)


def run_as(account: pwd.struct_passwd) -> None:
    """Run what asyncpg's tests start for a server under this account."""
    make_folder = cluster._mkdtemp
    identity: dict[str, Any] = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/"}

    def make_own_folder(*arguments: Any, **options: Any) -> str:
        folder: str = make_folder(*arguments, **options)
        shutil.chown(folder, account.pw_uid, account.pw_gid)
        return folder

    def restrict(path: str, mode: int) -> None:
        """Restrict access to the server's private key."""
        os.chmod(path, mode)
        os.chown(path, account.pw_uid, account.pw_gid)

    processes = types.SimpleNamespace(**vars(subprocess))
    processes.run = functools.partial(subprocess.run, **identity)
    processes.Popen = functools.partial(subprocess.Popen, **identity)
    cluster._mkdtemp = make_own_folder
    cluster.subprocess = processes
    cluster.os = types.SimpleNamespace(**vars(os) | {"chmod": restrict})


if os.geteuid() == 0:
    run_as(pwd.getpwnam("postgres"))

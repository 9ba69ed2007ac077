"""Puts into ringlab's packages what the lab needs outside of a clone: the sources of its targets, and its load generator.

The archive has the layout of the repository, so that paths between the crates and the targets remain right. RINGLAB_LOAD_PROGRAM is
the path of a load generator to include, RINGLAB_LOAD_PLATFORM its platform tag, such as manylinux_2_28_x86_64, and RINGLAB_LOAD_SBOM
the path of its bill of materials; without them the package is for any platform, and cargo builds the generator on first use.
"""

import gzip
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = [
    "Cargo.toml",
    "Cargo.lock",
    "LICENSE-MIT",
    "LICENSE-APACHE",
    "README.md",
    "docs/rust.md",
    "crates",
    "lab/Cargo.toml",
    "lab/Cargo.lock",
    "lab/goals",
    "lab/presets.toml",
    "lab/ringlab-load",
    "lab/targets",
]


def archive(repository: Path) -> bytes:
    """Return the archive of the files that git knows. It is the same for each build of a commit.

    ringloop's own sources are in it where the lab is in ringloop's repository, for the targets that are built from them.
    """
    command = ["git", "-C", str(repository), "ls-files", "-z", "--", *SOURCES]
    names = sorted(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0"))
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as tar,
    ):
        for name in filter(None, names):
            path = repository / name
            entry = tarfile.TarInfo(name)
            if path.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(entry)
                continue
            data = path.read_bytes()
            entry.size, entry.mode = len(data), 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add files to the package; to an editable installation, which finds them in the clone, none."""
        if version == "editable":
            return
        lab = Path(self.root)
        # A source distribution has the archive beside the package already.
        path = lab / "ringlab" / "sources.tar.gz"
        if (lab / "ringlab-load" / "Cargo.toml").exists():
            path = lab / "build" / "sources.tar.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(archive(lab.parent))
        build_data["force_include"][str(path)] = "ringlab/sources.tar.gz"
        program = os.environ.get("RINGLAB_LOAD_PROGRAM")
        if program and self.target_name == "wheel":
            build_data["force_include"][program] = "ringlab/bin/ringlab-load"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{os.environ['RINGLAB_LOAD_PLATFORM']}"
            build_data["sbom_files"].append(os.environ["RINGLAB_LOAD_SBOM"])

"""Makes the environment of servers of Python applications, and a file for them to send.

    environment.py FOLDER REQUIREMENTS [--certificate]

With --certificate, it first makes one, and its key.

All that stands in the file of requirements before the comment "The other servers" must be installed. Below it, each line is left out
where it can't be. The environment is FOLDER/environment, and the file FOLDER/file.bin.
"""

import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

FILE_BYTES = 1 << 20


def main() -> None:
    """Make all of this in the folder that is named."""
    folder, requirements = map(Path, sys.argv[1:3])
    if "--certificate" in sys.argv:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                "-keyout", folder / "key.pem", "-out", folder / "certificate.pem", "-days", "3650", "-subj", "/CN=localhost",
            ],
            check=True,
        )  # fmt: skip
    environment = folder / "environment"
    venv.create(environment, clear=True, with_pip=True)
    python = environment / "bin" / "python"
    needed: list[str] = []
    others: list[list[str]] = []
    wanted = needed
    for line in requirements.read_text().splitlines():
        if line.startswith("# The other servers"):
            wanted = []
        elif not line.startswith("#"):
            wanted.extend(line.split())
            if wanted is not needed:
                others.append(wanted)
                wanted = []
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*install, *needed], check=False).returncode != 0:
        sys.exit(f"these can't be installed from PyPI: {' '.join(needed)}")
    for packages in others:
        if subprocess.run([*install, *packages], check=False).returncode != 0:
            print(f"left out, because it can't be installed: {' '.join(packages)}")
    # ringloop itself is that of the Python that runs this.
    ringloop = find_spec("ringloop")
    if ringloop is not None and ringloop.origin is not None:
        site = next(environment.glob("lib/python*/site-packages"))
        (site / "ringloop.pth").write_text(f"{Path(ringloop.origin).parent.parent}\n")
    (folder / "file.bin").write_bytes(b"0123456789abcdef" * (FILE_BYTES // 16))
    (environment / "built.txt").write_text(f"{sys.version}\n")


if __name__ == "__main__":
    main()

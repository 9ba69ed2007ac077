"""Makes a certificate, and then the environment of the ASGI servers: build.py FOLDER."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Make both in the folder that is named."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", folder / "key.pem", "-out", folder / "certificate.pem", "-days", "3650", "-subj", "/CN=localhost",
        ],
        check=True,
    )  # fmt: skip
    program = HERE.parent / "support" / "environment.py"
    sys.exit(subprocess.run([sys.executable, program, folder, HERE / "requirements.txt"], check=False).returncode)


if __name__ == "__main__":
    main()

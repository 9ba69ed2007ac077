"""Make what the harness needs besides Python: the floor in C, the same with TLS, and a certificate for 127.0.0.1.

    build.py FOLDER

What only the TLS cells need may be missing: then the reason is in FOLDER/tls-missing.txt.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
CERTIFICATE_DAYS = 3650


class Unable(Exception):
    """Something can't be made; the message says why."""


def make(command: Sequence[str]) -> None:
    """Run a command; raise Unable."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unable(f"{command[0]} can't be run: {error.strerror}") from None
    if done.returncode != 0:
        raise Unable(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def compile_floor(folder: Path, *, tls: bool) -> None:
    """Compile the floor; a program that is cut short is never there."""
    compiler = os.environ.get("CC", "cc")
    source = HERE / "floor.c"
    target = folder / ("floor-tls" if tls else "floor")
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return
    unfinished = target.with_suffix(f".{os.getpid()}")
    options = ["-DWITH_TLS"] if tls else []
    libraries = ["-lssl", "-lcrypto"] if tls else []
    make([compiler, "-O2", "-Wall", "-Wextra", *options, "-o", str(unfinished), str(source), *libraries])
    unfinished.replace(target)


def make_certificate(folder: Path) -> None:
    """Make a certificate for 127.0.0.1, and its key."""
    path, key = folder / "certificate.pem", folder / "key.pem"
    if path.exists() and key.exists():
        return
    new_path, new_key = (each.with_suffix(f".{os.getpid()}") for each in (path, key))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", str(CERTIFICATE_DAYS), "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    # Not every TLS library accepts a server certificate that may sign others.
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    make([*command, "-keyout", str(new_key), "-out", str(new_path)])
    new_key.replace(key)
    new_path.replace(path)


def make_tls(folder: Path) -> str:
    """Make what the TLS cells need; return what is missing, and what installs it."""
    if shutil.which("openssl") is None:
        return "no certificate without the openssl command: apt-get install openssl"
    make_certificate(folder)
    try:
        compile_floor(folder, tls=True)
    except Unable as failure:
        if "openssl/" not in str(failure) and "cannot find -lssl" not in str(failure):
            raise
        return "no floor under TLS without OpenSSL's headers: apt-get install libssl-dev"
    return ""


def main(folder: Path) -> None:
    """Make what is missing or older than its source; the floor, which the manifest names as the artefact, last."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        # Of two that make a certificate at once, one would have the other's key.
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = make_tls(folder)
        note = folder / "tls-missing.txt"
        if missing:
            note.write_text(missing + "\n")
        else:
            note.unlink(missing_ok=True)
        compile_floor(folder, tls=False)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Unable as failure:
        sys.exit(str(failure))

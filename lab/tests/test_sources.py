"""The lab outside of a clone: a package with the sources inside."""

import errno
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NoReturn

import pytest

from ringlab import Refused, generator, manifest, sources, storage

LAB = Path(__file__).resolve().parent.parent
INSTALLED = """
import sys
from pathlib import Path
from ringlab import manifest, sources
lab = sources.folder()
assert sources.clone() is None, sources.clone()
assert lab == sources.folder()
print(lab.parent)
print(len(manifest.discover()))
print((lab.parent / "crates/ringloop/GUIDE.md").read_text()[:18])
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of ringlab, with a load generator that only says who it is."""
    if not (LAB.parent / "crates").exists():
        pytest.skip("packages are made in ringloop's repository, with its sources")
    folder = tmp_path_factory.mktemp("package")
    program = folder / "ringlab-load"
    program.write_text("#!/bin/sh\necho ringlab-load 0.0\n")
    program.chmod(0o755)
    sbom = folder / "ringlab.cdx.json"
    sbom.write_text("{}")
    variables = {"PROGRAM": str(program), "PLATFORM": "manylinux_2_28_x86_64", "SBOM": str(sbom)}
    environment = {f"RINGLAB_LOAD_{name}": value for name, value in variables.items()}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=LAB, env=os.environ | environment, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_an_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another process has unpacked it in the meantime."""
    (tmp_path / "file").write_text("content")
    with tarfile.open(tmp_path / "archive", "w") as archive:
        archive.add(tmp_path / "file", "folder/file")
    rename, late = Path.rename, []

    def renamed(path: Path, target: Path) -> Path:
        late.append(shutil.copytree(path, target))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    for _ in range(2):
        target = sources.unpacked(tmp_path / "archive", tmp_path / "cache")
        assert (target / "folder" / "file").read_text() == "content"
        assert list((tmp_path / "cache").iterdir()) == [target]
    assert late == [target]

    def forbidden(path: Path, target: Path) -> Path:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "rename", forbidden)
    with pytest.raises(PermissionError):
        sources.unpacked(tmp_path / "archive", tmp_path / "other")


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(number: int) -> NoReturn:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Refused, match="has no home folder: set HOME, or XDG_CACHE_HOME"):
        sources.cache()
    storage.write_overheads({"one echo 100": 1.0})
    assert storage.read_overheads() == {}
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(generator.GeneratorMissing, match="there is no cargo"):
        generator.build(tmp_path)


def test_a_package_works_outside_of_a_clone(package: Path, tmp_path: Path) -> None:
    assert package.name.endswith("-py3-none-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(package) as archive:
        archive.extractall(tmp_path / "site")
    program = tmp_path / "site/ringlab/bin/ringlab-load"
    program.chmod(0o755)  # as pip does
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for name in ("RINGLAB_TARGETS", "RINGLAB_LOAD", "RINGLAB_BUILD"):
        environment.pop(name, None)
    asking = INSTALLED + "from ringlab import generator\nprint(generator.find())\n"
    done = subprocess.run(
        [sys.executable, "-c", asking], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    root, count, guide, found = done.stdout.splitlines()
    assert Path(root).parent == tmp_path / "cache/ringlab"
    assert int(count) == len(manifest.discover())
    assert guide == "# The Rust runtime"
    assert found == str(program)
    assert list((tmp_path / "cache/ringlab").iterdir()) == [Path(root)]


def test_a_package_is_the_same_when_it_is_built_again(package: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=LAB, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as second, zipfile.ZipFile(package) as first:
        assert "ringlab/bin/ringlab-load" not in second.namelist()
        assert second.read("ringlab/sources.tar.gz") == first.read("ringlab/sources.tar.gz")


def test_in_a_clone_the_sources_are_the_clones() -> None:
    assert sources.folder() == LAB
    assert manifest.default_folder() == LAB / "targets"


def test_without_a_program_sources_and_path_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sources, "clone", lambda: None)
    monkeypatch.setattr(sources, "ARCHIVE", tmp_path / "none")
    monkeypatch.delenv("RINGLAB_LOAD", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(generator.GeneratorMissing, match="RINGLAB_LOAD"):
        generator.find()

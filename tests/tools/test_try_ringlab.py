"""In which environment `make try-ringlab` tries a wheel."""

import os
import shutil
import subprocess

from support import load_tool

try_ringlab = load_tool("try_ringlab")


def test_a_wheel_is_tried_without_cargo_but_with_what_is_beside_it(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("cargo", "cc"):
        (programs / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(programs))
    for may_build in (True, False):
        folder = tmp_path / str(may_build)
        folder.mkdir()
        path = try_ringlab.environment_of(folder, may_build=may_build)["PATH"]
        assert shutil.which("cc", path=path) == str(programs / "cc")
        done = subprocess.run([shutil.which("cargo", path=path), "build"], check=False)
        assert (done.returncode == 0) == may_build


def test_no_variable_points_into_the_clone(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGLAB_TARGETS", os.getcwd())
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    environment = try_ringlab.environment_of(tmp_path, may_build=True)
    assert not {"RINGLAB_TARGETS", "PYTHONPATH"} & set(environment)
    assert environment["HOME"] == str(tmp_path)

"""The decisions of `make wheels` before it builds, and of `make try-wheels` before it tries."""

import re
import subprocess
import sys

import pytest

from support import REPOSITORY, load_tool

wheels = load_tool("wheels")
licences = load_tool("licences")
try_wheels = load_tool("try_wheels")

MUSL = "aarch64-unknown-linux-musl"


@pytest.fixture
def sysroot(tmp_path):
    return tmp_path / "rust"


def toolchain(sysroot):
    return wheels.Toolchain(sysroot, sysroot / "cargo")


def test_an_installed_standard_library_is_used(sysroot):
    folder = sysroot / "lib/rustlib" / MUSL / "lib"
    folder.mkdir(parents=True)
    assert toolchain(sysroot).plan(MUSL) == ""  # what is left of a target that was removed
    (folder / "libstd-0123.rlib").touch()
    assert toolchain(sysroot).plan(MUSL) == "installed"
    assert "RUSTC_BOOTSTRAP" not in wheels.build_environment(toolchain(sysroot), "installed", False)


def test_otherwise_it_is_built_from_its_source(sysroot):
    folder = sysroot / "lib/rustlib/src/rust/library"
    folder.mkdir(parents=True)
    (folder / "Cargo.lock").touch()
    assert toolchain(sysroot).plan(MUSL) == "built"
    assert wheels.build_environment(toolchain(sysroot), "built", False)["RUSTC_BOOTSTRAP"] == "1"


def test_what_is_missing_is_said_with_its_remedy(sysroot):
    assert toolchain(sysroot).plan(MUSL) == ""
    assert f"rustup target add {MUSL}" in wheels.remedy(MUSL)


def test_no_path_of_this_machine_and_no_time_goes_into_a_wheel(sysroot, monkeypatch):
    monkeypatch.setenv("RUSTFLAGS", "-Ctarget-cpu=x86-64-v2")
    monkeypatch.setenv("PYO3_PYTHON", "/another/python")
    environment = wheels.build_environment(toolchain(sysroot), "installed", False)
    flags = environment["RUSTFLAGS"].split()
    assert flags[0] == "-Ctarget-cpu=x86-64-v2"
    assert f"--remap-path-prefix={REPOSITORY}=/ringloop" in flags
    assert f"--remap-path-prefix={sysroot}/cargo=/cargo" in flags
    assert "PYO3_PYTHON" not in environment
    assert environment["SOURCE_DATE_EPOCH"] == "315532800"


def test_a_fast_build_is_another_one(sysroot):
    fast, whole = (wheels.build_environment(toolchain(sysroot), "installed", fast) for fast in (True, False))
    assert fast["CARGO_PROFILE_RELEASE_LTO"] == "off"
    assert {name: value for name, value in fast.items() if name not in wheels.FAST} == {
        name: value for name, value in whole.items() if name not in wheels.FAST
    }


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [("MIT", "MIT"), ("Unlicense OR MIT", "MIT"), ("Apache-2.0 OR BSL-1.0", "Apache-2.0"), ("Zlib", "Zlib")],
)
def test_a_licence_that_is_allowed_is_chosen(tmp_path, expression, chosen):
    crate = licences.Crate("a", "1.0.0", expression, tmp_path, "", "")
    assert licences.chosen_licence(crate) == chosen


@pytest.mark.parametrize("expression", ["GPL-3.0", "MIT AND GPL-3.0", "", "BSL-1.0"])
def test_a_licence_that_is_not_allowed_is_refused(tmp_path, expression):
    with pytest.raises(licences.Refused, match=r"a 1\.0\.0 is under"):
        licences.chosen_licence(licences.Crate("a", "1.0.0", expression, tmp_path, "", ""))


def test_a_crate_without_the_text_of_its_licence_is_refused(tmp_path):
    crate = licences.Crate("a", "1.0.0", "MIT OR Apache-2.0", tmp_path, "", "")
    (tmp_path / "LICENSE-APACHE").write_text("Apache")
    with pytest.raises(licences.Refused, match="comes without the text of its licence, MIT"):
        licences.licence_text(crate, "MIT")
    (tmp_path / "LICENSE-MIT").write_text("mine  \n")
    assert licences.licence_text(crate, "MIT") == "mine"


def test_texts_that_are_equal_occur_once(tmp_path):
    (tmp_path / "LICENSE").write_text("the text")
    crates = [licences.Crate(name, "1.0.0", "MIT", tmp_path, "", "") for name in "ab"]
    text = licences.document(licences.PACKAGES["ringloop"], crates)
    assert text.count("the text") == 1
    assert "a 1.0.0, b 1.0.0\nused under MIT:\n" in text


def test_wheels_that_nothing_here_can_run_are_named(tmp_path):
    wheel = tmp_path / "ringloop-0.1.0-cp399-cp399-musllinux_1_2_riscv64.whl"
    wheel.touch()
    command = [sys.executable, REPOSITORY / "tools/try_wheels.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == f"not tried  {wheel.name}: its name is not understood\n"
    assert done.returncode == 1
    trial = try_wheels.trial_of(tmp_path / "ringloop-0.1.0-cp399-cp399-musllinux_1_2_aarch64.whl")
    assert trial.interpreter == ()
    assert "make foreign-pythons" in trial.reason


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--required"], 1), (["--python", "3.12"], 1)])
def test_what_could_not_be_tried_fails_if_it_is_required(tmp_path, monkeypatch, capsys, options, status):
    for version in (11, 12):
        (tmp_path / f"ringloop-0.1.0-cp3{version}-cp3{version}-manylinux_2_28_x86_64.whl").touch()
    monkeypatch.setattr(try_wheels.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(try_wheels, "native", lambda version: "/usr/bin/python3.11" if version == "3.11" else "")
    monkeypatch.setattr(try_wheels.Trial, "run", lambda trial, tests: True)
    monkeypatch.setattr(try_wheels, "TRIED", tmp_path / "tried")
    monkeypatch.setattr(sys, "argv", ["try_wheels.py", str(tmp_path), *options])
    assert try_wheels.main() == status
    assert "there is no Python 3.12 on this machine" in capsys.readouterr().out


class Release:
    """A `dist` with all wheels and the source distribution, and the Pythons that are there."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.capsys = folder / "dist", capsys
        self.tried, self.broken, self.lacking = [], set(), set()
        self.folder.mkdir()
        for platform in wheels.PLATFORMS:
            machine = platform.target.partition("-")[0]
            for version in wheels.PYTHONS:
                abi = f"cp{version.replace('.', '')}"
                (self.folder / f"ringloop-0.1.0-{abi.rstrip('t')}-{abi}-{platform.tag}_{machine}.whl").write_text(abi)
        (self.folder / "ringloop-0.1.0.tar.gz").touch()
        monkeypatch.setattr(try_wheels.platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(try_wheels, "TRIED", folder / "target" / "tried")
        monkeypatch.setattr(try_wheels, "on_this_machine", lambda package, version: self.trial(package, version))
        monkeypatch.setattr(try_wheels, "trial_of", self.wheel)
        monkeypatch.setattr(try_wheels.Trial, "run", lambda trial, tests: self.run(trial))
        self.set_arguments = lambda *options: monkeypatch.setattr(sys, "argv", ["try_wheels.py", *options])

    def trial(self, package, version):
        trial = try_wheels.Trial(package, version, ("--python", "python"))
        return try_wheels.Trial(package, version, (), "no Python") if trial.subject in self.lacking else trial

    def wheel(self, package):
        match = try_wheels.wheel_name(package)
        return self.trial(package, f"3.{match[1]}{match[2]}")

    def run(self, trial):
        self.tried.append(trial.subject)
        return trial.subject not in self.broken

    def main(self, *options):
        self.tried.clear()
        self.set_arguments(str(self.folder), *options)
        status = try_wheels.main()
        self.said = self.capsys.readouterr().out
        return status


@pytest.fixture
def release(tmp_path, monkeypatch, capsys):
    return Release(tmp_path, monkeypatch, capsys)


def test_a_release_can_do_without_the_wheels_that_are_listed_but_not_without_others(release):
    assert release.main("--release") == 0
    assert len(release.tried) == len(set(release.tried)) == 28 + 7
    assert set(release.tried) >= try_wheels.MAY_STAY_UNTRIED
    others = sorted(set(release.tried) - try_wheels.MAY_STAY_UNTRIED)
    platforms = ("glibc x86_64", "glibc aarch64", "musl x86_64", "musl aarch64")
    needed = {f"{version} {platform}" for version in ("3.11", "3.13", "3.14", "3.15") for platform in platforms}
    needed |= {"3.12 glibc x86_64", "3.14t glibc x86_64"}
    needed |= {f"{version} source" for version in ("3.11", "3.12", "3.13", "3.14", "3.15", "3.14t")}
    assert others == sorted(needed)
    for lacking in others:
        try_wheels.TRIED.unlink()
        release.lacking = try_wheels.MAY_STAY_UNTRIED | {lacking}
        assert release.main("--release") == 1
        assert re.findall(r"^not tried  .*", release.said, re.MULTILINE) != []
    try_wheels.TRIED.unlink()
    release.lacking = try_wheels.MAY_STAY_UNTRIED
    assert release.main("--release") == 0
    assert sorted(release.tried) == others
    assert release.said.count("left out  ") == len(try_wheels.MAY_STAY_UNTRIED)
    assert "not tried" not in release.said


def test_a_wheel_that_is_listed_must_work_if_it_can_be_tried(release):
    release.broken = {"3.12 musl x86_64"}
    assert release.main("--release") == 1
    assert release.said.count("FAILED  ") == 1


def test_a_release_is_tried_in_two_places(release):
    """On one machine, 3.14 and 3.15 are in the Debian tree, and the others outside."""
    newest = {f"{version} {where}" for version in ("3.14", "3.15") for where in ("glibc x86_64", "source")}
    release.broken = {"3.15 source"}
    release.lacking = {trial.subject for trial in try_wheels.trials(release.folder)} - newest
    assert release.main() == 1
    release.broken = set()
    release.lacking = newest - {"3.15 source"}
    assert release.main("--release") == 0
    assert set(release.tried) & newest == {"3.15 source"}
    assert release.said.count("tried before") == 3
    # What has worked before may be something else now.
    wheel = release.folder / "ringloop-0.1.0-cp314-cp314-manylinux_2_28_x86_64.whl"
    wheel.write_text("built again")
    assert release.main("--release") == 1
    assert f"not tried  {wheel.name} on CPython 3.14: no Python" in release.said


@pytest.mark.parametrize("options", [["--python", "3.14"], ["--tests", "tests/loop"], ["--required"]])
def test_a_release_is_not_tried_in_part(release, options):
    with pytest.raises(SystemExit):
        release.main("--release", *options)
    assert release.tried == []


def test_a_foreign_python_is_used_only_if_it_runs_here(tmp_path, monkeypatch):
    monkeypatch.setattr(try_wheels, "FOREIGN", tmp_path)
    wheel = tmp_path / "ringloop-0.1.0-cp399-cp399-musllinux_1_2_aarch64.whl"
    script = tmp_path / "musl-aarch64" / "python3.99"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\nexec /nonexistent/qemu-aarch64\n")
    script.chmod(0o755)
    assert try_wheels.trial_of(wheel).reason == f"{script} does not run here"
    script.write_text("#!/bin/sh\n")
    monkeypatch.setattr(try_wheels.platform, "machine", lambda: "x86_64")
    assert try_wheels.trial_of(wheel).interpreter == ("--foreign", str(script))
    # On the machine itself, pip runs on it.
    monkeypatch.setattr(try_wheels.platform, "machine", lambda: "aarch64")
    assert try_wheels.trial_of(wheel).interpreter == ("--python", str(script))


@pytest.mark.parametrize(("abi", "version"), [("cp314", "3.14"), ("cp314t", "3.14t")])
def test_a_free_threaded_wheel_is_tried_on_a_python_without_the_gil(tmp_path, monkeypatch, abi, version):
    monkeypatch.setattr(try_wheels.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(try_wheels, "native", lambda version: f"/usr/bin/python{version}")
    trial = try_wheels.trial_of(tmp_path / f"ringloop-0.1.0-cp314-{abi}-manylinux_2_28_x86_64.whl")
    assert (trial.version, trial.interpreter) == (version, ("--python", f"/usr/bin/python{version}"))


def test_a_source_distribution_is_tried_on_every_python_that_is_here(tmp_path, monkeypatch):
    source = tmp_path / "ringloop-0.1.0.tar.gz"
    source.touch()
    monkeypatch.setattr(try_wheels, "native", lambda version: "/usr/bin/python3.14" if version == "3.14" else "")
    tried = {trial.version: trial.interpreter for trial in try_wheels.trials(tmp_path)}
    assert tried == dict.fromkeys(wheels.PYTHONS, ()) | {"3.14": ("--python", "/usr/bin/python3.14")}


def test_a_load_generator_that_cannot_be_built_is_named(sysroot, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(REPOSITORY / "tools")
    ringlab_packages = load_tool("ringlab_packages")
    monkeypatch.setattr(ringlab_packages.wheels.Toolchain, "find", lambda: toolchain(sysroot))
    packaged = []
    monkeypatch.setattr(ringlab_packages, "package", lambda output, kind, variables: packaged.append((kind, variables)))
    monkeypatch.setattr("sys.argv", ["ringlab_packages.py", "--output", str(tmp_path)])
    assert ringlab_packages.main() == wheels.LACKING
    assert "rustup target add aarch64-unknown-linux-gnu" in capsys.readouterr().out
    assert packaged == [("sdist", {})]  # it contains no compiled code


@pytest.mark.parametrize(
    ("tags", "first", "last"),
    [
        ("manylinux_2_28_aarch64", "manylinux_2_28_aarch64", "manylinux2014_aarch64"),
        ("musllinux_1_2_x86_64", "musllinux_1_2_x86_64", "musllinux_1_1_x86_64"),
    ],
)
def test_what_a_foreign_python_needs_may_be_for_an_older_c_library(tags, first, last):
    platforms = load_tool("try_wheel").foreign_platforms(tags)
    assert (platforms[0], platforms[-1]) == (first, last)
    assert ("manylinux_2_17_aarch64" in platforms) == (last == "manylinux2014_aarch64")

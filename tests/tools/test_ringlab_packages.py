"""tools/ringlab_packages.py accepts a good wheel and refuses bad ones; tools/licences.py knows what the load generator contains."""

import shutil
import sys
import zipfile

import pytest

from support import REPOSITORY, load_tool

pytest.importorskip("auditwheel", reason="auditwheel is not installed")
pytestmark = pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")

for name in ("audit_wheel", "wheels"):
    sys.modules[name] = load_tool(name)  # they are imported by their names
packages = load_tool("ringlab_packages")
licences = load_tool("licences")
INFO = "ringlab-1.0.dist-info"


def wheel_of(folder, without=(), program=sys.executable, mode=0o755, tag="py3-none-manylinux_2_99_x86_64"):
    path = folder / f"ringlab-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in (*packages.CONTENTS, "RECORD", "WHEEL", "METADATA"):
            if name in without:
                continue
            entry = zipfile.ZipInfo(name if name.startswith("ringlab/") else f"{INFO}/{name}")
            content = b""
            if name == packages.PROGRAM:
                entry.external_attr = mode << 16
                with open(program, "rb") as file:
                    content = file.read()
            elif name == "WHEEL":
                content = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
            archive.writestr(entry, content)
    return path


def test_what_is_missing_is_found(tmp_path):
    missing = ("licenses/THIRD-PARTY-LICENSES", "sboms/ringlab.cdx.json")
    problems = packages.audit(wheel_of(tmp_path, missing, mode=0o644))
    assert problems[:3] == [*(f"it has no {name}" for name in missing), f"{packages.PROGRAM} cannot be executed"]


def test_auditwheel_decides_on_the_tag(tmp_path):
    """Python itself needs another glibc than what the name says."""
    [problem] = packages.audit(wheel_of(tmp_path))
    assert problem.startswith("auditwheel does not agree with its tag: ")


def test_licences_of_both_packages_are_current():
    for package in licences.PACKAGES.values():
        crates = licences.linked_crates(package)
        assert package.file.read_text() == licences.document(package, crates)
    assert "ring 0." in (REPOSITORY / "lab" / "THIRD-PARTY-LICENSES").read_text()


@pytest.mark.parametrize(
    ("expression", "licence"),
    [
        ("MIT OR Apache-2.0", "MIT"),
        ("Unlicense OR MIT", "MIT"),
        ("Apache-2.0 AND ISC", "Apache-2.0 AND ISC"),
        ("ISC", "ISC"),
    ],
)
def test_a_licence_is_chosen(tmp_path, expression, licence):
    assert licences.chosen_licence(licences.Crate("a", "1.0", expression, tmp_path, "", "")) == licence


@pytest.mark.parametrize("expression", ["GPL-3.0", "Apache-2.0 AND GPL-3.0", ""])
def test_other_licences_are_refused(tmp_path, expression):
    with pytest.raises(licences.Refused, match="^a 1.0 is under "):
        licences.chosen_licence(licences.Crate("a", "1.0", expression, tmp_path, "", ""))

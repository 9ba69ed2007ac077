"""tools/audit_wheel.py accepts a good wheel and refuses bad ones: each test spoils a good one in one way."""

import base64
import hashlib
import io
import json
import subprocess
import sys
import zipfile

import pytest

from support import REPOSITORY, load_tool

pytest.importorskip("elftools", reason="pyelftools is not installed")

audit = load_tool("audit_wheel")

VERSION = audit.expected_version()
INFO = f"ringloop-{VERSION}.dist-info"
MODULE = "ringloop/_core.cpython-312-x86_64-linux-gnu.so"
NAME = f"ringloop-{VERSION}-cp312-cp312-manylinux_2_28_x86_64.whl"
SOURCE = 'void *PyInit__core(void) { return 0; } const char *version = "something to relocate";'
CRATES = [f"crate-{letter}" for letter in "abcdefghijkl"]

pytestmark = pytest.mark.skipif(
    subprocess.run(["cc", "-dumpmachine"], capture_output=True, text=True, check=False).stdout[:6] != "x86_64",
    reason="the module of these wheels is built by a C compiler for x86-64",
)


def compiled(folder, source=SOURCE, *flags):
    """Return a shared library, built with what the audit wants, and then with the flags."""
    path = folder / "module.so"
    (folder / "module.c").write_text(source)
    wanted = ["-shared", "-fPIC", "-nostdlib", "-s", "-fvisibility=hidden", "-Wl,-z,now,-z,relro,-z,noexecstack"]
    command = ["cc", *wanted, *flags, "-o", path, folder / "module.c", "-lc"]
    subprocess.run(command, check=True, capture_output=True)
    return path.read_bytes()


EXPORTED = '__attribute__((visibility("default"))) '


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("module"), EXPORTED + SOURCE)


@pytest.fixture
def files(module):
    """Return the contents of a good wheel, without RECORD."""
    package = REPOSITORY / "python" / "ringloop"
    found = {
        f"ringloop/{path.relative_to(package)}": path.read_bytes()
        for path in package.rglob("*")
        if path.suffix in (".py", ".pyi") or path.name == "py.typed"
    }
    metadata = (
        f"Metadata-Version: 2.4\nName: ringloop\nVersion: {VERSION}\nLicense-Expression: MIT OR Apache-2.0\n"
        "Requires-Python: >=3.11\nRequires-Dist: click>=8.1 ; extra == 'serve'\n"
        + "".join(f"License-File: {name}\n" for name in audit.LICENCE_FILES)
    )
    tag = "cp312-cp312-manylinux_2_28_x86_64"
    components = [{"name": name, "version": "1.0.0", "licenses": [{"expression": "MIT"}]} for name in CRATES]
    found |= {
        MODULE: module,
        f"{INFO}/METADATA": metadata.encode(),
        f"{INFO}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
        f"{INFO}/entry_points.txt": b"[console_scripts]\n",
        f"{INFO}/sboms/ringloop.cdx.json": json.dumps({"bomFormat": "CycloneDX", "components": components}).encode(),
        f"{INFO}/licenses/LICENSE-MIT": b"MIT",
        f"{INFO}/licenses/LICENSE-APACHE": b"Apache",
        f"{INFO}/licenses/THIRD-PARTY-LICENSES": ", ".join(f"{name} 1.0.0" for name in CRATES).encode(),
    }
    return found


def record(files):
    rows = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*rows, f"{INFO}/RECORD,,\n"]).encode()


def write(path, files, mode=0o644, **later):
    """Write a wheel; RECORD describes `files`, then those in `later` replace them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {f"{INFO}/RECORD": record(files), **files, **later}.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, data)
    return path


def found(tmp_path, files, name=NAME, **options):
    """Return what the audit finds, without auditwheel, which wants a real module."""
    path = write(tmp_path / name, files, **options)
    try:
        wheel = audit.open_wheel(path)
    except audit.Unreadable as error:
        return [str(error)]
    with wheel.archive:
        return [each for check in audit.CHECKS if check is not audit.check_auditwheel for each in check(wheel)]


def test_a_good_wheel_passes(tmp_path, files):
    assert found(tmp_path, files) == []


def test_a_good_wheel_for_a_free_threaded_python_passes(tmp_path, files):
    name = NAME.replace("cp312-cp312", "cp314-cp314t")
    files[MODULE.replace("312", "314t")] = files.pop(MODULE)
    files[f"{INFO}/WHEEL"] = files[f"{INFO}/WHEEL"].replace(b"cp312-cp312", b"cp314-cp314t")
    assert found(tmp_path, files, name) == []
    # 3.13 without the GIL is not supported.
    assert "CPython 313t is not supported" in found(tmp_path, files, name.replace("314", "313"))


@pytest.mark.parametrize(
    "name",
    [
        f"ringloop-{VERSION}-cp312-cp312-linux_x86_64.whl",
        f"ringloop-{VERSION}-cp312-cp312-manylinux_2_28_x86_64.musllinux_1_2_x86_64.whl",
        f"ringloop-{VERSION}-py3-none-any.whl",
        f"other-{VERSION}-cp312-cp312-manylinux_2_28_x86_64.whl",
    ],
)
def test_a_name_that_nobody_can_install_is_refused(tmp_path, files, name):
    (problem,) = found(tmp_path, files, name)
    assert "tag" in problem or "name" in problem


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (NAME.replace("cp312-cp312", "cp312-abi3"), "the ABI tag is abi3 instead of cp312"),
        (NAME.replace("cp312-cp312", "cp310-cp310"), "CPython 310 is not supported"),
        (NAME.replace("_2_28_", "_2_34_"), "the tag needs manylinux 2.34; at most 2.28 is allowed"),
        (NAME.replace("x86_64", "i686"), "the machine i686 is not supported"),
        (NAME.replace(VERSION, "9.9.9"), f"the version is 9.9.9, but Cargo.toml has {VERSION}"),
        (NAME.replace("x86_64", "aarch64"), "is missing"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused(tmp_path, files, name, problem):
    assert any(problem in each for each in found(tmp_path, files, name))


@pytest.mark.parametrize("name", ["ringloop/py.typed", "ringloop/_core.pyi", f"{INFO}/entry_points.txt", MODULE])
def test_a_missing_file_is_found(tmp_path, files, name):
    del files[name]
    assert f"{name} is missing" in found(tmp_path, files)


def test_a_stray_file_is_found(tmp_path, files):
    files["ringloop/notes.txt"] = b"mine"
    assert found(tmp_path, files) == ["ringloop/notes.txt does not belong in a wheel"]


def test_a_source_that_is_not_the_repositorys_is_found(tmp_path, files):
    files["ringloop/_loop.py"] += b"\n"
    assert found(tmp_path, files) == ["ringloop/_loop.py differs from the repository's"]


def test_a_file_that_record_does_not_describe_is_found(tmp_path, files):
    assert found(tmp_path, files, **{f"{INFO}/licenses/LICENSE-MIT": b"another"}) == [
        f"RECORD does not match {INFO}/licenses/LICENSE-MIT"
    ]


def test_a_file_that_others_may_write_is_found(tmp_path, files):
    assert "ringloop/py.typed has the mode 666" in found(tmp_path, files, mode=0o666)


def test_a_crate_without_its_licence_is_found(tmp_path, files):
    name = f"{INFO}/licenses/THIRD-PARTY-LICENSES"
    files[name] = files[name].replace(b"crate-c 1.0.0", b"crate-c 1.0.01")
    assert found(tmp_path, files) == ["crate-c 1.0.0 is in the SBOM, but THIRD-PARTY-LICENSES has no licence for it"]


def test_a_sbom_that_is_none_is_found(tmp_path, files):
    files[f"{INFO}/sboms/ringloop.cdx.json"] = b"{}"
    (problem,) = found(tmp_path, files)
    assert problem.startswith("the SBOM cannot be read")


def test_a_required_dependency_is_found(tmp_path, files):
    files[f"{INFO}/METADATA"] += b"Requires-Dist: click>=8.1\n"
    assert found(tmp_path, files) == ["the wheel requires click>=8.1; ringloop has no required dependencies"]


@pytest.mark.parametrize(
    ("source", "flags", "problem"),
    [
        (EXPORTED + SOURCE + EXPORTED + "int other;", [], "the module exports PyInit__core, other"),
        (SOURCE, [], "the module exports nothing"),
        (EXPORTED + SOURCE, ["-Wl,-rpath,/somewhere"], "the module has a search path"),
        (EXPORTED + SOURCE, ["-Wl,--no-as-needed", "-lresolv"], "the module needs the library libresolv.so.2"),
        (EXPORTED + SOURCE, ["-Wl,-z,lazy"], "the module is not bound at once"),
        (EXPORTED + SOURCE, ["-Wl,-z,norelro"], "the module has no read-only relocations"),
        (EXPORTED + SOURCE, ["-Wl,-z,execstack"], "the module asks for an executable stack"),
        (EXPORTED + SOURCE + 'const char *where = "/home/someone/main.rs";', [], "paths of the machine that built it"),
        # In glibc since 2.30, so its symbol has a version that no 2.28 has.
        (EXPORTED + SOURCE + "int gettid(void); int call(void) { return gettid(); }", ["-Wl,-u,call"], "the module needs GLIBC_2.30"),
    ],
)  # fmt: skip
def test_a_module_that_is_not_fit_is_refused(tmp_path, files, source, flags, problem):
    files[MODULE] = compiled(tmp_path, source, *flags)
    assert any(problem in each for each in found(tmp_path, files))


@pytest.mark.parametrize(
    ("attribute", "problems"),
    [("", ["the module needs statx, which musl has since 1.2.5"]), ("__attribute__((weak)) ", [])],
)
def test_a_function_that_only_a_newer_musl_has_is_found(tmp_path, attribute, problems):
    source = f"{EXPORTED}int call(void) {{ int statx(void); return statx(); }} {attribute}int statx(void);"
    elf = audit.ELFFile(io.BytesIO(compiled(tmp_path, source)))
    assert list(audit.check_musl(elf)) == problems


def test_a_module_that_is_not_stripped_is_refused(tmp_path, files):
    (tmp_path / "module.c").write_text(EXPORTED + SOURCE)
    command = ["cc", "-g", "-shared", "-fPIC", "-nostdlib", "-o", tmp_path / "module.so", tmp_path / "module.c"]
    subprocess.run(command, check=True)
    files[MODULE] = (tmp_path / "module.so").read_bytes()
    assert any("not stripped: it has the section .symtab" in each for each in found(tmp_path, files))


@pytest.mark.parametrize(
    ("contents", "problem"), [(b"not a library", "is not an ELF file"), (b"\x7fELF" + bytes(4), "is not an ELF file")]
)
def test_a_module_that_is_none_is_refused(tmp_path, files, contents, problem):
    files[MODULE] = contents
    assert any(problem in each for each in found(tmp_path, files))


def test_a_file_that_is_no_wheel_is_refused(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(b"PK")
    assert audit.problems(path) == ["not a zip file: File is not a zip file"]


def test_an_incomplete_set_is_refused(tmp_path, files):
    path = write(tmp_path / NAME, files)
    command = [sys.executable, REPOSITORY / "tools/audit_wheel.py", "--complete", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.count("there is no wheel for CPython") == 27

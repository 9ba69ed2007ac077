"""tools/wording.py on small trees: it finds each kind of offence, and accepts what only looks like one."""

import subprocess
import sys

import pytest

from support import REPOSITORY, load_tool

wording = load_tool("wording")

# Put together here, because this file is checked, too.
SO = "so"
WHAT = "What"
MOST = "MOST"


def run(root, files):
    """Write a repository and return the lines that the check prints."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "--quiet", root], check=True)
    subprocess.run(["git", "-C", root, "add", "--all"], check=True)
    return [str(offence) for offence in wording.find_offences(root)]


CLEAN = {
    "crate/src/lib.rs": (
        "//! A crate.\n//!\n//! # What it does\n//!\n//! Nothing.\n\n"
        "/// Returns the bytes to send.\n/// What is left stays.\npub const SIZE_BYTES_MAX: usize = 1;\n"
        "// What is asked for comes so often that it is kept.\nconst PATH_MAX: usize = libc::PATH_MAX;\n"
    ),
    "package/module.py": (
        '"""A module."""\n\nBUDGET_S_MIN = 1.0\n"""The least that is spent."""\nAT_LEAST = ("better_by",)\n\n\n'
        'def size():\n    """Return what is left, which is so much smaller that it fits."""\n'
    ),
    "README.md": "# A page\n\n## What works\n\nNot `so many`: say the number. Also many things.\n",
}


def test_command_line(tmp_path):
    lines = run(tmp_path, {**CLEAN, "page.md": f"It waits for {SO} long.\n"})
    command = [sys.executable, REPOSITORY / "tools" / "wording.py", "--root", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.splitlines(), result.stderr) == (len(lines), lines, "")
    assert lines == ["page.md:1: `so long`: name the time, such as for `window_s`"]


def test_a_clean_tree(tmp_path):
    assert run(tmp_path, CLEAN) == []


@pytest.mark.parametrize(
    ("file", "text", "line", "found"),
    [
        ("a.py", f"# {SO} many bytes that were sent\n", 1, "many"),
        ("a.py", f'x = 1\n"""{SO.title()} often it is repeated."""\n', 2, "often"),
        ("a.pyi", f"# it comes {SO} much later than the other\n", 1, "much"),
        ("a.rs", f"/// Waits for {SO}\n    /// long.\nfn f() {{}}\n", 1, "long"),
        ("a.rs", f'fn f() {{ panic!("{SO} many"); }}\n', 1, "many"),
        ("docs/a.md", f"Text.\n\n- one `thing` of {SO}\n  many\n", 3, "many"),
    ],
)
def test_numbers_that_are_not_named(tmp_path, file, text, line, found):
    (offence,) = run(tmp_path, {file: text})
    assert offence.startswith(f"{file}:{line}: `{SO} {found}`: name the ")


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("a.rs", f"//! {WHAT} a crate is.\n", 1),
        ("a.rs", f"use x;\n\n/// {WHAT} to send.\n/// More.\nfn f() {{}}\n", 3),
        ("a.rs", f"//! A crate.\n\n/// {WHAT} it is.\nfn f() {{}}\n", 3),
        ("a.rs", f"    /// The first.\n    a: u8,\n    /// {WHAT} is left.\n    b: u8,\n", 3),
        ("a.rs", f'    doc: c"{WHAT} a call returns.",\n', 1),
        ("a.rs", f'#[doc = "{WHAT} it is."]\n', 1),
        ("a.py", f'"""{WHAT} a module is for.\n\nMore.\n"""\n', 1),
        ("a.py", f'def f():\n    r"""{WHAT} there is."""\n', 2),
        ("a.py", f'x = 1\n"""{WHAT} it is."""\n', 2),
        ("a.pyi", f'class A:\n    """\n    {WHAT} it is."""\n', 3),
    ],
)
def test_docs_that_begin_with_a_clause(tmp_path, file, text, line):
    (offence,) = run(tmp_path, {file: text})
    assert offence.startswith(f"{file}:{line}: a doc begins with `{WHAT}`: begin with the noun or the verb")


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("a.py", f"SIZE_{MOST} = 1\n", f"SIZE_{MOST}"),
        ("a.py", f"x = other.BUDGET_{MOST}_S\n", f"BUDGET_{MOST}_S"),
        ("a.rs", "const ROUNDS_" + "LEAST: u32 = 1;\n", "ROUNDS_" + "LEAST"),
        ("a.py", "MAX" + "_SIZE = 1\n", "MAX" + "_SIZE"),
        ("a.py", "_MIN" + "_SIZE: int = 1\n", "_MIN" + "_SIZE"),
        ("a.rs", "    pub(crate) const " + "MAX" + "_SIZE: usize = 1;\n", "MAX" + "_SIZE"),
    ],
)
def test_names_of_bounds(tmp_path, file, text, name):
    (offence,) = run(tmp_path, {file: text})
    assert offence == f"{file}:1: `{name}`: bounds end in `_MAX` and `_MIN`, after the unit"


def test_what_is_not_ours_is_left_alone(tmp_path):
    text = f"It waits for {SO} long.\n"
    assert run(tmp_path, {"lab/tests/data/report.md": text, "notes.txt": text}) == []
    (tmp_path / "untracked.md").write_text(text)
    assert wording.find_offences(tmp_path) == []

"""tools/layers.py on small trees: it finds each kind of offence, and accepts what only looks like one."""

import subprocess
import sys

import pytest

from support import REPOSITORY, load_tool

layers = load_tool("layers")

DOCUMENT = """\
# A tree

| layer | modules |
| --- | --- |
| not a layer | `elsewhere` |

## The rule

Highest first.

## `some/crate`

| layer | modules |
| --- | --- |
| the top | `top`, `twin` |
| the middle | `middle` |
| the bottom | `bottom` |

## Further

| layer | modules |
| --- | --- |
| not a layer | `elsewhere` |
"""

CRATE = {
    "some/crate/Cargo.toml": '[package]\nname = "some"\n',
    "some/crate/src/lib.rs": "mod top;\nmod twin;\nmod middle;\nmod bottom;\n",
    "some/crate/src/top.rs": "use crate::middle;\n",
    "some/crate/src/twin.rs": "",
    "some/crate/src/middle.rs": "use crate::bottom::Thing;\n",
    "some/crate/src/bottom.rs": "pub struct Thing;\n",
}

PACKAGE = {
    "some/package/__init__.py": "from .top import run\n",
    "some/package/top.py": "from . import middle\n",
    "some/package/twin.py": "",
    "some/package/middle.py": "from package.bottom import thing\n",
    "some/package/bottom.py": "thing = 1\n",
}
PACKAGE_DOCUMENT = DOCUMENT.replace("crate", "package").replace("`top`", "`__init__` |\n| next | `top`")


def run(root, files, document=DOCUMENT):
    """Write a tree and return the lines that the check prints, in the order of files and lines."""
    for name, text in {"docs/layers.md": document, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return [str(offence) for offence in layers.find_offences(root)]


def up(file, line, importer, imported):
    return f"some/{file}:{line}: `{importer}` imports `{imported}`, which is in a layer above it"


@pytest.mark.parametrize("code", ["use crate::bottom;", "use crate::top;"])
def test_command_line(tmp_path, code):
    lines = run(tmp_path, {**CRATE, "some/crate/src/middle.rs": code})
    command = [sys.executable, REPOSITORY / "tools" / "layers.py", "--root", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.splitlines(), result.stderr) == (len(lines), lines, "")


def test_order_is_kept(tmp_path):
    assert run(tmp_path, CRATE) == []


@pytest.mark.parametrize(
    "code",
    [
        "use crate::top::f;",
        "use crate::top;",
        "use crate::top as other;",
        "pub use crate::top::{f, g};",
        "pub(crate) use crate::top::*;",
        "use crate::{bottom, top};",
        "use crate::{\nbottom::{Thing, other},\ntop::{self, f as g},\n};",
        "use super::top::f;",
        "use super::{bottom::Thing, top};",
        "use super::*;\nuse super::top::g;",
        "fn f() { crate::top::f::<u8>(); }",
        "fn f(a: &crate::top::A) {}",
        "impl<'a> From<crate::top::A<'a>> for B {}",
        'fn f() { println!("{}", crate::top::f()); }',
        "macro_rules! m { ($a:expr) => { $crate::top::f($a) } }",
        "macro_rules! m { () => { use $crate::{bottom, top as other}; } }",
        "fn f() { use crate::top::f; }",
        "mod inner { use super::super::top::f; }",
        "mod inner { mod tests {} }\nuse super::top;",
        "const A: char = '\"'; use crate::top; const B: char = '\"';",
        "#[cfg(not(test))]\nuse crate::top;",
        "#[cfg(any(test, unix))]\nuse crate::top;",
        '#[cfg(feature = "tests")]\nuse crate::top;',
        "#[cfg(test)]\nmod tests { fn f() {} }\nuse crate::top;",
        "#[cfg(test)]\nuse a::{b, c};\nuse crate::top;",
        "struct A { #[cfg(test)] a: u8, b: crate::top::A }",
        "use crate::exported;",
        "use crate::{Renamed as A};",
        "fn f() { helper!(1); }",
        "use crate::helper;",
    ],
)
def test_rust_path_upwards(tmp_path, code):
    files = {
        **CRATE,
        "some/crate/src/lib.rs": "mod top;\nmod bottom;\npub use top::{exported, f as Renamed};\n",
        "some/crate/src/top.rs": "macro_rules! helper { ($a:expr) => {} }\n",
        "some/crate/src/middle.rs": f"{code}\n",
    }
    lines = [line for line in run(tmp_path, files) if "imports `top`" in line]
    assert len(lines) == 1
    assert lines[0].startswith("some/crate/src/middle.rs:")


@pytest.mark.parametrize(
    "code",
    [
        "// use crate::top;",
        "/* use crate::top; /* use crate::top; */ use crate::top; */",
        "/// [`crate::top::f`]\nfn f() {}",
        'const A: &str = "use crate::top; \\" use crate::top;";',
        'const A: &str = r#"use crate::top; " use crate::top;"#;',
        "#[cfg(test)]\nmod tests { use crate::top; }",
        "#[cfg(all(test, not(loom)))]\nmod tests { use super::super::top; }",
        "#[cfg(all(test, loom))]\n#[allow(dead_code)]\nmod model { use crate::top; }",
        "#[cfg(test)]\nuse crate::{top, twin};",
        "#[cfg(test)]\nfn f() { crate::top::f() }",
        "#[cfg(test)]\nconst A: [u8; 2] = crate::top::A;",
        "struct A { #[cfg(test)] a: crate::top::A, b: u8 }",
        "#![cfg(test)]\nuse crate::top;",
        "use other::top::f;",
        "use ::top::f;",
        "fn f() { top::f(); other::top::f(); }",
        "pub(in crate::top) fn f() {}",
        "mod top { pub fn f() {} }\nuse self::top::f;",
        "use crate::bottom::top;",
        "use crate::outside;",
        "fn f<'a>() -> impl Sized + use<'a> { 'top: loop { break 'top; } }",
    ],
)
def test_what_is_no_rust_path_upwards(tmp_path, code):
    files = {
        **CRATE,
        "some/crate/src/lib.rs": "mod top;\npub use other_crate as outside;\n",
        "some/crate/src/middle.rs": f"{code}\n",
    }
    assert run(tmp_path, files) == []


def test_file_and_line_of_each_offence(tmp_path):
    files = {
        **CRATE,
        "some/crate/src/middle.rs": '/* two\nlines */\nconst A: &str = "two\nlines";\nuse crate::{\n    bottom,\n    top,\n};\n',
        "some/crate/src/bottom.rs": "fn f() {\n    crate::top::f();\n    crate::middle::f();\n}\n",
    }
    assert run(tmp_path, files) == [
        up("crate/src/bottom.rs", 2, "bottom", "top"),
        up("crate/src/bottom.rs", 3, "bottom", "middle"),
        up("crate/src/middle.rs", 7, "middle", "top"),
    ]


def test_rust_path_to_the_same_layer(tmp_path):
    files = {**CRATE, "some/crate/src/top.rs": "use crate::{middle, twin};\n"}
    assert run(tmp_path, files) == ["some/crate/src/top.rs:1: `top` imports `twin`, which is in its own layer"]


def test_submodules_belong_to_their_top_level_module(tmp_path):
    files = {
        **CRATE,
        "some/crate/src/middle/part.rs": "use super::f;\nuse super::super::top;\nuse crate::middle::other;\n",
        "some/crate/src/bottom/mod.rs": "mod part;",
        "some/crate/src/bottom/part.rs": "use crate::top::f;\n",
    }
    del files["some/crate/src/bottom.rs"]
    assert run(tmp_path, files) == [
        up("crate/src/bottom/part.rs", 1, "bottom", "top"),
        up("crate/src/middle/part.rs", 2, "middle", "top"),
    ]


def test_modules_for_tests_in_files_of_their_own(tmp_path):
    files = {
        **CRATE,
        "some/crate/src/lib.rs": "mod top;\n#[cfg(test)]\nmod helpers;\n",
        "some/crate/src/helpers.rs": "use crate::top;\n",
        "some/crate/src/helpers/more.rs": "use crate::top;\n",
        "some/crate/src/middle.rs": "#[cfg(all(test, unix))]\nmod tests;\n",
        "some/crate/src/middle/tests.rs": "use crate::top;\n",
    }
    assert run(tmp_path, files) == []


def test_root_is_above_all_layers(tmp_path):
    files = {**CRATE, "some/crate/src/lib.rs": "use bottom::Thing;\nfn f() { top::f(); }\npub struct Own;\n"}
    assert run(tmp_path, files) == []
    files["some/crate/src/top.rs"] = "use crate::{Own, Thing};\n"
    assert run(tmp_path, files) == [up("crate/src/top.rs", 1, "top", "lib")]


def test_root_in_the_table(tmp_path):
    files = {
        **CRATE,
        "some/crate/src/lib.rs": "pub use top::f;\nfn g() { bottom::f(); }\npub struct Own;\n",
        "some/crate/src/top.rs": "use crate::Own;\n",
    }
    document = DOCUMENT.replace("`middle`", "`middle`, `lib`")
    assert run(tmp_path, files, document) == []
    files["some/crate/src/lib.rs"] = "pub use top::f;\nfn g() { middle::f(); }\nfn h() { f(); crate::top::f(); }\n"
    assert run(tmp_path, files, document) == [
        "some/crate/src/lib.rs:2: `lib` imports `middle`, which is in its own layer",
        up("crate/src/lib.rs", 3, "lib", "top"),
    ]


def test_program_instead_of_library(tmp_path):
    files = {**CRATE, "some/crate/src/main.rs": "mod top;\nfn main() { top::f() }\n"}
    del files["some/crate/src/lib.rs"]
    assert run(tmp_path, files) == []
    files["some/crate/src/bottom.rs"] = "use crate::main;\n"
    assert run(tmp_path, files) == [up("crate/src/bottom.rs", 1, "bottom", "main")]


def test_modules_and_table_differ(tmp_path):
    files = {**CRATE, "some/crate/src/fourth.rs": "use crate::top;\n"}
    document = DOCUMENT.replace("`bottom`", "`bottom`, `fifth`")
    assert run(tmp_path, files, document) == [
        "docs/layers.md:17: `some/crate` has no module `fifth`",
        "some/crate/src/fourth.rs:1: `fourth` is missing from the layers of `some/crate` in docs/layers.md",
    ]


def test_module_in_two_rows(tmp_path):
    document = DOCUMENT.replace("`bottom`", "`bottom`, `top`")
    assert "docs/layers.md:17: `top` is in the table twice" in run(tmp_path, CRATE, document)


def test_folder_without_modules(tmp_path):
    assert run(tmp_path, CRATE, DOCUMENT.replace("some/crate", "no/crate")) == [
        "docs/layers.md:11: `no/crate` is neither a crate, a crate's module nor a Python package"
    ]


def test_second_table(tmp_path):
    lines = run(tmp_path, CRATE, DOCUMENT.replace("## Further", "## `some/crate`"))
    assert lines[0] == "docs/layers.md:19: `some/crate` has a second table"


MODULE_DOCUMENT = """\
# Layers

## `some/crate`

| layer | modules |
| --- | --- |
| the top | `top`, `twin` |
| the middle | `middle` |
| the bottom | `bottom` |

## `some/crate/src/middle`

| layer | modules |
| --- | --- |
| above | `above` |
| below | `below`, `beside` |
"""
MODULE = {
    **CRATE,
    "some/crate/src/middle.rs": "mod above;\nmod below;\nmod beside;\npub(crate) use below::Thing;\nuse above::run;\n",
    "some/crate/src/middle/above.rs": "use super::below;\nuse crate::bottom;\n",
    "some/crate/src/middle/below.rs": "",
    "some/crate/src/middle/beside.rs": "use crate::bottom;\n",
}


class TestModule:
    """A table for the submodules of a module of a crate."""

    def test_order_is_kept(self, tmp_path):
        assert run(tmp_path, MODULE, MODULE_DOCUMENT) == []

    def test_module_in_a_file_of_its_folder(self, tmp_path):
        files = {**MODULE, "some/crate/src/middle/mod.rs": MODULE["some/crate/src/middle.rs"]}
        del files["some/crate/src/middle.rs"]
        assert run(tmp_path, files, MODULE_DOCUMENT) == []

    @pytest.mark.parametrize(
        "code",
        [
            "use super::above::f;",
            "use crate::middle::above;",
            "use crate::{bottom, middle::{above::f, below}};",
            "fn f() { super::above::f(); }",
            "fn f() { crate::middle::above::f(); }",
            "mod inner { use super::super::above; }",
            "fn f() { helper!(1); }",
        ],
    )
    def test_import_upwards(self, tmp_path, code):
        files = {
            **MODULE,
            "some/crate/src/middle/above.rs": "macro_rules! helper { ($a:expr) => {} }\n",
            "some/crate/src/middle/below.rs": f"{code}\n",
        }
        assert run(tmp_path, files, MODULE_DOCUMENT) == [up("crate/src/middle/below.rs", 1, "below", "above")]

    def test_import_in_a_submodule(self, tmp_path):
        files = {**MODULE, "some/crate/src/middle/below/part.rs": "use super::f;\nuse super::super::above;\n"}
        assert run(tmp_path, files, MODULE_DOCUMENT) == [up("crate/src/middle/below/part.rs", 2, "below", "above")]

    def test_import_of_the_same_layer_through_the_module_s_own_names(self, tmp_path):
        files = {**MODULE, "some/crate/src/middle/beside.rs": "use super::Thing;\n"}
        assert run(tmp_path, files, MODULE_DOCUMENT) == [
            "some/crate/src/middle/beside.rs:1: `beside` imports `below`, which is in its own layer"
        ]

    def test_import_of_the_module_itself(self, tmp_path):
        files = {**MODULE, "some/crate/src/middle/below.rs": "use super::own;\n"}
        assert run(tmp_path, files, MODULE_DOCUMENT) == [up("crate/src/middle/below.rs", 1, "below", "middle")]

    def test_imports_that_leave_the_module_are_the_crate_s(self, tmp_path):
        files = {**MODULE, "some/crate/src/middle/below.rs": "use crate::top::above;\nuse super::super::twin;\n"}
        assert run(tmp_path, files, MODULE_DOCUMENT) == [
            up("crate/src/middle/below.rs", 1, "middle", "top"),
            up("crate/src/middle/below.rs", 2, "middle", "twin"),
        ]

    def test_modules_and_table_differ(self, tmp_path):
        document = MODULE_DOCUMENT.replace("`beside`", "`behind`")
        assert run(tmp_path, MODULE, document) == [
            "docs/layers.md:16: `some/crate/src/middle` has no module `behind`",
            "some/crate/src/middle/beside.rs:1: `beside` is missing from the layers of `some/crate/src/middle` in docs/layers.md",
        ]

    def test_table_that_is_missing(self, tmp_path):
        lines = run(tmp_path, {**CRATE, "crates/ringloop-python/src/http/scope.rs": ""})
        assert lines == ["docs/layers.md:1: there is no table for `crates/ringloop-python/src/http`"]


CRATE_WITH_A_CIRCLE = {**CRATE, "some/crate/src/middle.rs": "use crate::top;\n"}


class TestExceptions:
    def document(self, line):
        return DOCUMENT.replace("## Further", f"{line}\n\n## Further")

    def test_needed(self, tmp_path):
        assert run(tmp_path, CRATE_WITH_A_CIRCLE, self.document("- `middle` -> `top`: one calls the other")) == []

    def test_in_the_other_direction(self, tmp_path):
        assert run(tmp_path, CRATE_WITH_A_CIRCLE, self.document("- `top` -> `middle`: a reason")) == [
            "docs/layers.md:19: the exception `top` -> `middle` is not needed; delete it",
            up("crate/src/middle.rs", 1, "middle", "top"),
        ]

    @pytest.mark.parametrize("line", ["- `middle` -> `top`", "- `middle` -> `top`: ", "- `middle` -> `top` why not"])
    def test_without_a_reason(self, tmp_path, line):
        assert run(tmp_path, CRATE_WITH_A_CIRCLE, self.document(line)) == [
            "docs/layers.md:19: `middle` -> `top` needs a reason: `: why it must stay`"
        ]

    @pytest.mark.parametrize("line", ["- `middle` -> `bottom`: a reason", "- `middle` -> `nothing`: a reason"])
    def test_needless(self, tmp_path, line):
        lines = run(tmp_path, CRATE, self.document(line))
        assert lines == [f"docs/layers.md:19: the exception {line[2:].partition(':')[0]} is not needed; delete it"]


class TestPython:
    def test_order_is_kept(self, tmp_path):
        assert run(tmp_path, PACKAGE, PACKAGE_DOCUMENT) == []

    @pytest.mark.parametrize(
        "code",
        [
            "from .top import run",
            "from . import top",
            "from . import bottom, top as other",
            "import package.top",
            "import package.top as top",
            "from package import bottom, top",
            "from package.top import run",
            "def f():\n    from .top import run",
            "class A:\n    def f(self):\n        if self:\n            import package.top",
            "try:\n    from .top import run\nexcept ImportError:\n    run = None",
            "if not TYPE_CHECKING:\n    from .top import run",
            "if TYPE_CHECKING:\n    pass\nelse:\n    from .top import run",
        ],
    )
    def test_import_upwards(self, tmp_path, code):
        files = {**PACKAGE, "some/package/middle.py": f"from typing import TYPE_CHECKING\n{code}\n"}
        (line,) = run(tmp_path, files, PACKAGE_DOCUMENT)
        assert line.startswith("some/package/middle.py:")
        assert line.endswith(": `middle` imports `top`, which is in a layer above it")

    @pytest.mark.parametrize(
        "code",
        [
            "if TYPE_CHECKING:\n    from .top import run",
            "import typing\nif typing.TYPE_CHECKING:\n    from . import top",
            "if not TYPE_CHECKING:\n    pass\nelse:\n    from .top import run",
            "import top",
            "from other import top",
            "'''from .top import run'''",
        ],
    )
    def test_what_is_no_import_upwards(self, tmp_path, code):
        files = {**PACKAGE, "some/package/middle.py": f"from typing import TYPE_CHECKING\n{code}\n"}
        assert run(tmp_path, files, PACKAGE_DOCUMENT) == []

    def test_the_package_itself(self, tmp_path):
        files = {**PACKAGE, "some/package/bottom.py": "from . import run\nimport package\n"}
        assert run(tmp_path, files, PACKAGE_DOCUMENT) == [
            up("package/bottom.py", 1, "bottom", "__init__"),
            up("package/bottom.py", 2, "bottom", "__init__"),
        ]

    def test_package_in_a_package(self, tmp_path):
        """An absolute import of its last name alone means another package."""
        code = "import package.top\nfrom some.package import bottom\nfrom some.package.top import run\n"
        files = {**PACKAGE, "some/__init__.py": "", "some/package/middle.py": code}
        assert run(tmp_path, files, PACKAGE_DOCUMENT) == [up("package/middle.py", 3, "middle", "top")]

    def test_packages_inside_and_native_modules(self, tmp_path):
        files = {
            **PACKAGE,
            "some/package/bottom/__init__.py": "",
            "some/package/bottom/part.py": "from ..top import run\nfrom . import other\n",
            "some/package/bottom/other.py": "from .. import _native\n",
            "some/package/_native.pyi": "from .top import run\n",
        }
        del files["some/package/bottom.py"]
        document = PACKAGE_DOCUMENT.replace("`twin`", "`twin`, `_native`")
        assert run(tmp_path, files, document) == [
            up("package/bottom/other.py", 1, "bottom", "_native"),
            up("package/bottom/part.py", 1, "bottom", "top"),
        ]


WORKSPACE_DOCUMENT = """\
# Layers

## `crates`

| layer | crates |
| --- | --- |
| what calls | `extension` |
| what is called | `core`, `messages` |

## `a`

## `b`

## `c`
"""
WORKSPACE = {
    "Cargo.toml": '[workspace]\nmembers = ["a", "b", "c"]\n',
    "a/Cargo.toml": '[package]\nname = "extension"\n[dependencies]\ncore.workspace = true\nlibc = "1"\n',
    "b/Cargo.toml": '[package]\nname = "core"\n[dependencies]\nlibc = "1"\n',
    "c/Cargo.toml": '[package]\nname = "messages"\n',
    **{f"{folder}/src/lib.rs": "" for folder in "abc"},
}


class TestWorkspace:
    def test_order_is_kept(self, tmp_path):
        assert run(tmp_path, WORKSPACE, WORKSPACE_DOCUMENT) == []

    @pytest.mark.parametrize(
        "dependency",
        [
            "[dependencies]\ncore.workspace = true",
            '[dependencies]\ncore = { path = "../b" }',
            '[dev-dependencies]\nother = { package = "core", path = "../b" }',
            '[build-dependencies]\ncore = "1"',
            "[target.'cfg(unix)'.dependencies]\ncore.workspace = true",
            "[dependencies.core]\nworkspace = true",
        ],
    )
    def test_dependency_on_the_same_layer(self, tmp_path, dependency):
        files = {**WORKSPACE, "c/Cargo.toml": f'[package]\nname = "messages"\n{dependency}\n'}
        line = 3 if dependency.startswith("[dependencies.core]") else 4
        assert run(tmp_path, files, WORKSPACE_DOCUMENT) == [
            f"c/Cargo.toml:{line}: `messages` imports `core`, which is in its own layer"
        ]

    @pytest.mark.parametrize("folder", ["a", "b", "crates", "python/ringloop", "ringlab"])
    def test_table_that_is_missing(self, tmp_path, folder):
        packages = ("python/ringloop", "ringlab")
        files = WORKSPACE | {f"{package}/__init__.py": "" for package in packages}
        document = WORKSPACE_DOCUMENT + "".join(f"\n## `{name}`\n\n| all | `__init__` |\n" for name in packages)
        assert run(tmp_path, files, document) == []
        assert run(tmp_path, files, document.replace(f"## `{folder}`", "## Something else")) == [
            f"docs/layers.md:1: there is no table for `{folder}`"
        ]

    def test_crate_that_is_missing(self, tmp_path):
        lines = run(tmp_path, WORKSPACE, WORKSPACE_DOCUMENT.replace(", `messages`", ""))
        assert lines == ["c/Cargo.toml:1: `messages` is missing from the layers of `crates` in docs/layers.md"]

#!/usr/bin/env python3
"""Check that imports follow the layers in docs/layers.md of this repository, or of the project in the folder that --root names.

Each section there is named after a folder in backticks and has a table `| layer | modules |`, highest layer first. A module
may import only modules in lower rows: none from a row above it, and no other from its own. Lines "- `a` -> `b`: reason" below
a table name the imports that break this rule and must stay.

- In Rust, the modules are the top-level ones of `src`; a submodule belongs to its top-level module. Every path counts:
  `use` declarations, paths in expressions and in macros, `super::`, and macros called by their name. Comments, strings,
  and items under `#[cfg(test)]` do not count. The crate's root (`lib` or `main`) is above all rows unless the table names it;
  its `pub use` declarations say where a name comes from, and are no imports.
- A section may also name a folder in a crate's `src`. Its table orders the submodules of that module in the same way, and
  the module's own file takes the place of the crate's root. Imports that leave the module are the crate's to check.
- In Python, the modules are those of the package, including `__init__`. Imports inside functions count; those under
  `if TYPE_CHECKING:` do not.
- In the section `crates`, the rows name crates of the workspace, and the imports are the dependencies in each Cargo.toml,
  for tests and builds, too.

Every crate of the workspace and each package of PACKAGES need a table, and so do `crates` and what MODULES names.

Prints each offence as `file:line: message`. Exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from offences import Offence, Place, main

DOCUMENT = "docs/layers.md"
WORKSPACE = "crates"
# These need a table, as do the crates of the workspace and the workspace itself.
PACKAGES = ("python/ringloop", "ringlab")
MODULES = ("crates/ringloop-python/src/http",)


@dataclass
class Table:
    """A section of the document: the row of each module, 0 for the highest, and the imports that are excused."""

    place: Place
    rows: dict[str, int] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    excused: dict[tuple[str, str], Place] = field(default_factory=dict)


@dataclass
class Unit:
    """The modules of a crate or package, the file of each, and where one imports another."""

    modules: dict[str, Place]
    imports: dict[tuple[str, str], list[Place]] = field(default_factory=dict)
    # A crate's root, which is above all rows where the table doesn't name it.
    root: str | None = None

    def add(self, importer: str, imported: str, place: Place) -> None:
        """Note one import; within a module there are none."""
        if importer != imported and place not in (places := self.imports.setdefault((importer, imported), [])):
            places.append(place)


def read_tables(root: Path) -> tuple[dict[str, Table], list[Offence]]:
    """Return the tables by folder, and the errors in them."""
    tables: dict[str, Table] = {}
    offences: list[Offence] = []
    table: Table | None = None
    row = 0
    for number, line in enumerate((root / DOCUMENT).read_text().splitlines(), 1):
        place = Place(DOCUMENT, number)
        if line.startswith("## "):
            table, row = None, 0
            if name := re.search(r"`([^`]+)`", line):
                if name[1] in tables:
                    offences.append(Offence(place, f"`{name[1]}` has a second table"))
                table = tables.setdefault(name[1], Table(place))
        elif table is not None and line.startswith("|"):
            modules = re.findall(r"`([^`]+)`", line.rstrip().removesuffix("|").rpartition("|")[2])
            for module in modules:
                if module in table.rows:
                    offences.append(Offence(place, f"`{module}` is in the table twice"))
                table.rows[module] = row
                table.lines[module] = number
            row += bool(modules)
        elif table is not None and (excuse := re.match(r"- `([^`]+)` (?:->|→) `([^`]+)`(.*)", line)):
            if not re.match(r": *\S", excuse[3]):
                offences.append(Offence(place, f"`{excuse[1]}` -> `{excuse[2]}` needs a reason: `: why it must stay`"))
            table.excused[excuse[1], excuse[2]] = place
    return tables, offences


def check(folder: str, table: Table, unit: Unit) -> Iterator[Offence]:
    """Compare a unit with its table."""
    for module in table.rows:
        if module not in unit.modules:
            yield Offence(Place(DOCUMENT, table.lines[module]), f"`{folder}` has no module `{module}`")
    rows = dict(table.rows)
    if unit.root is not None:
        rows.setdefault(unit.root, -1)
    for module, place in unit.modules.items():
        if module not in rows:
            yield Offence(place, f"`{module}` is missing from the layers of `{folder}` in {DOCUMENT}")
    needless = dict(table.excused)
    for (importer, imported), places in unit.imports.items():
        if importer not in rows or imported not in rows or rows[importer] < rows[imported]:
            continue
        if needless.pop((importer, imported), None) is None and (importer, imported) not in table.excused:
            where = "in its own layer" if rows[importer] == rows[imported] else "in a layer above it"
            for place in places:
                yield Offence(place, f"`{importer}` imports `{imported}`, which is {where}")
    for (importer, imported), place in needless.items():
        yield Offence(place, f"the exception `{importer}` -> `{imported}` is not needed; delete it")


# Rust

# Comments and literals come first, so that nothing is read inside of them. Lifetimes come after characters.
_TOKENS = re.compile(
    r"""
    (?P<skip> \s+ | //[^\n]* )
    | (?P<comment> /\* )
    | (?P<literal>
        (?:b|c)?r(?P<hashes>\#*)"(?:.*?)"(?P=hashes)
        | (?:b|c)?"(?:[^"\\]|\\.)*"
        | b?'(?:[^'\\\n]|\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.))'
        | \d\w*
      )
    | '(?P<lifetime>\w+)
    | (?P<token> (?:r\#)?[^\W\d]\w* | :: | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENING = {"(": ")", "[": "]", "{": "}"}
_CLOSING = frozenset(_OPENING.values())
_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(frozen=True)
class Token:
    """A word, `::`, or one other character."""

    text: str
    line: int


def tokens_of(source: str) -> list[Token]:
    """Return the tokens of a Rust file, without comments and literals."""
    tokens: list[Token] = []
    position, line = 0, 1
    while position < len(source):
        match = _TOKENS.match(source, position)
        if match is None:
            raise ValueError(f"line {line}: cannot be read as Rust")
        end = match.end()
        if match["comment"]:
            end = _end_of_comment(source, position)
        elif match["token"]:
            tokens.append(Token(match["token"].removeprefix("r#"), line))
        elif match["literal"]:
            # A placeholder for the value: `'a', crate::x` is two arguments.
            tokens.append(Token('""', line))
        line += source.count("\n", position, end)
        position = end
    return tokens


def _end_of_comment(source: str, position: int) -> int:
    """Return the end of the block comment at `position`; they nest."""
    depth = 0
    for match in re.finditer(r"/\*|\*/", source[position:]):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return position + match.end()
    return len(source)


@dataclass(frozen=True)
class RustPath:
    """A path in the module `inside`: from a `use` declaration, with the name that it declares, or from other code."""

    inside: tuple[str, ...]
    segments: tuple[str, ...]
    line: int
    declares: str | None = None
    public: bool = False


@dataclass
class RustFile:
    """The contents of a file of a crate, outside of tests."""

    paths: list[RustPath] = field(default_factory=list)
    macros: set[str] = field(default_factory=set)
    macro_calls: list[tuple[str, int]] = field(default_factory=list)
    test_modules: set[tuple[str, ...]] = field(default_factory=set)


class RustReader:
    """Reads one file of a crate; `module` is its path in the crate, empty for the root."""

    def __init__(self, source: str, module: tuple[str, ...]) -> None:
        self._tokens = tokens_of(source)
        self._module = module
        self.file = RustFile()
        self._read()

    def _text(self, index: int) -> str:
        return self._tokens[index].text if 0 <= index < len(self._tokens) else ""

    def _read(self) -> None:
        # Of each open bracket: the inline module that it opens, if it does.
        open_brackets: list[str | None] = []
        module = self._module
        index = 0
        while index < len(self._tokens):
            text, line = self._text(index), self._tokens[index].line
            if text == "#" and self._text(index + 1) in ("[", "!"):
                inner = self._text(index + 1) == "!"
                end = self._end_of_group(index + 1 + inner)
                if _is_for_tests([token.text for token in self._tokens[index:end]]):
                    if inner:
                        return
                    end = self._end_of_item(end, module)
                index = end
            elif text == "mod" and self._text(index + 2) == "{":
                module = (*module, self._text(index + 1))
                open_brackets.append(module[-1])
                index += 3
            elif text == "macro_rules" and self._text(index + 1) == "!":
                self.file.macros.add(self._text(index + 2))
                index += 3
            elif text == "pub":
                index += 1
                if self._text(index) == "(" and self._text(index + 1) in ("crate", "in", "super", "self"):
                    index = self._end_of_group(index)
                if self._text(index) == "use":
                    index = self._read_tree(index + 1, (), module, public=True)
            elif text == "use":
                # In a type, `use<'a>` is not a declaration.
                index = index + 1 if self._text(index + 1) == "<" else self._read_tree(index + 1, (), module)
            elif _NAME.fullmatch(text) and self._text(index - 1) != "::":
                if self._text(index + 1) == "!" and self._text(index + 2) in _OPENING:
                    self.file.macro_calls.append((text, line))
                index = self._read_path(index, module)
            else:
                if text in _OPENING:
                    open_brackets.append(None)
                elif text in _CLOSING and open_brackets and open_brackets.pop() is not None:
                    module = module[:-1]
                index += 1

    def _read_path(self, index: int, module: tuple[str, ...]) -> int:
        """Read a path outside of `use`; return where it ends. One that starts at a name in scope counts in the root only."""
        start, segments = index, [self._text(index)]
        while self._text(index + 1) == "::" and _NAME.fullmatch(self._text(index + 2)):
            segments.append(self._text(index + 2))
            index += 2
        if len(segments) > 1 and (segments[0] in ("crate", "self", "super") or not module):
            self.file.paths.append(RustPath(module, tuple(segments), self._tokens[start].line))
        return index + 1

    def _read_tree(self, index: int, prefix: tuple[str, ...], module: tuple[str, ...], public: bool = False) -> int:
        """Read a use tree, such as `crate::{a, b::{self, c as d}}`; return where it ends."""
        segments = prefix
        if self._text(index) == "$":  # `$crate` in a macro
            index += 1
        elif self._text(index) == "::":  # the name of another crate follows
            segments, index = ("::",), index + 1
        while (text := self._text(index)) == "*" or _NAME.fullmatch(text):
            line = self._tokens[index].line
            segments, index = (*segments, text), index + 1
            if self._text(index) != "::":
                if text == "self" and len(segments) > 1:
                    segments = segments[:-1]
                declares = self._text(index + 1) if self._text(index) == "as" else segments[-1]
                self.file.paths.append(RustPath(module, segments, line, declares, public))
                return index
            index += 1
        if self._text(index) != "{":
            return index
        index += 1
        while self._text(index) not in ("}", ""):
            index = self._read_tree(index, segments, module, public)
            while self._text(index) not in (",", "}", ""):
                index += 1
            index += self._text(index) == ","
        return index + 1

    def _end_of_group(self, index: int) -> int:
        """Return the index behind the bracket that closes the one at `index`."""
        depth = 0
        while index < len(self._tokens):
            depth += (self._text(index) in _OPENING) - (self._text(index) in _CLOSING)
            index += 1
            if depth == 0:
                break
        return index

    def _end_of_item(self, index: int, module: tuple[str, ...]) -> int:
        """Return the index behind the item at `index`: behind its `;`, its block, or its comma in a list of fields or arms."""
        while self._text(index) == "#" and self._text(index + 1) == "[":
            index = self._end_of_group(index + 1)
        words: set[str] = set()
        while (text := self._text(index)) and text not in _CLOSING:
            if text == ";":
                return index + 1
            if text == "," and not words & {"fn", "impl", "struct", "enum", "trait", "type", "union"}:
                return index + 1
            if text == "mod" and self._text(index + 2) == ";":
                self.file.test_modules.add((*module, self._text(index + 1)))
            if text in _OPENING:
                index = self._end_of_group(index)
                if text == "{" and "use" not in words:
                    return index
                continue
            words.add(text)
            index += 1
        return index


def _is_for_tests(attribute: list[str]) -> bool:
    """Return whether an attribute is a `cfg` that only tests fulfil: `#[cfg(test)]`, `#[cfg(all(test, ...))]`."""
    words = [text for text in attribute if text not in ("#", "!", "[", "]")]
    if words[:2] != ["cfg", "("]:
        return False
    depth, negative = 0, None
    for before, text in zip(["", *words], words, strict=False):
        if text == "(":
            depth += 1
            if before in ("not", "any") and negative is None:
                negative = depth
        elif text == ")":
            if negative == depth:
                negative = None
            depth -= 1
        elif text in ("test", "doctest") and negative is None:
            return True
    return False


def read_crate(root: Path, folder: str, prefix: tuple[str, ...] = ()) -> Unit:
    """Return the top-level modules of a crate, or the submodules of the module `prefix` of it, and their imports."""
    files = {
        module[len(prefix) :]: contents
        for module, contents in _read_files(root, folder).items()
        if module[: len(prefix)] == prefix
    }
    own_name = "lib" if (root / folder / "src" / "lib.rs").exists() else "main"
    if prefix:
        own_name = prefix[-1]
    unit = Unit({module[0] if module else own_name: Place(name, 1) for module, (name, _) in reversed(files.items())})
    unit.root = own_name
    macros: dict[str, set[str]] = {}
    for module, (_, file) in files.items():
        for macro in file.macros:
            macros.setdefault(macro, set()).add(module[0] if module else own_name)
    # Of two macros with one name, a module's own is the one that it calls.
    definers = {macro: next(iter(modules)) for macro, modules in macros.items() if len(modules) == 1}
    names = definers | _names_in_root(files[()][1], unit.modules, prefix)
    for module, (name, file) in files.items():
        importer = module[0] if module else own_name
        for path in file.paths:
            if path.public and path.inside == prefix:
                continue
            if (imported := _target(path, names, own_name, prefix)) is not None:
                unit.add(importer, imported, Place(name, path.line))
        for macro, line in file.macro_calls:
            if macro in definers:
                unit.add(importer, definers[macro], Place(name, line))
    return unit


def _read_files(root: Path, folder: str) -> dict[tuple[str, ...], tuple[str, RustFile]]:
    """Return the files of a crate, by module, without those that are for tests: name and contents. Parents come first."""
    source = root / folder / "src"
    files: dict[tuple[str, ...], tuple[str, RustFile]] = {}
    for path in source.rglob("*.rs"):
        module = path.relative_to(source).with_suffix("").parts
        if module[-1] == "mod" or module in (("lib",), ("main",)):
            module = module[:-1]
        name = path.relative_to(root).as_posix()
        try:
            files[module] = name, RustReader(path.read_text(), module).file
        except ValueError as error:
            raise SystemExit(f"{name}: {error}") from None
    for_tests = {module for _, file in files.values() for module in file.test_modules}
    return {
        module: files[module]
        for module in sorted(files)
        if not any(module[: len(tests)] == tests for tests in for_tests)
    }


def _names_in_root(file: RustFile, modules: Iterable[str], prefix: tuple[str, ...]) -> dict[str, str | None]:
    """Return the module that `use` in the root takes each name from, None for another crate's: `crate::name` leads there."""
    names: dict[str, str | None] = {}
    for path in file.paths:
        if path.declares and path.inside == prefix:
            segments = path.segments
            for start in (("self",), ("crate", *prefix)):
                if segments[: len(start)] == start:
                    segments = segments[len(start) :]
            names[path.declares] = segments[0] if segments and segments[0] in modules else None
    return names | {module: module for module in modules}


def _target(path: RustPath, names: dict[str, str | None], own_name: str, prefix: tuple[str, ...]) -> str | None:
    """Return the module below `prefix` that a path leads to; None if it leaves `prefix` or starts at a name in scope."""
    inside, rest = path.inside, path.segments
    if rest[0] == "crate":
        inside, rest = (), rest[1:]
    elif rest[0] == "self":
        rest = rest[1:]
    elif rest[0] == "super":
        while rest and rest[0] == "super":
            inside, rest = inside[:-1], rest[1:]
    elif inside != prefix or rest[0] not in names:
        # The import that brought the name into scope has been counted.
        return None
    absolute = (*inside, *rest)
    if absolute[: len(prefix)] != prefix:
        return None
    below = absolute[len(prefix) :]
    return names.get(below[0], own_name) if below else own_name


def members_of(root: Path) -> list[str]:
    """Return the folders of the crates of the workspace, if there is one."""
    manifest = root / "Cargo.toml"
    return list(tomllib.loads(manifest.read_text())["workspace"]["members"]) if manifest.exists() else []


def read_workspace(root: Path) -> Unit:
    """Return the crates of the workspace, and which of them name which others in their Cargo.toml."""
    manifests = {}
    for member in members_of(root):
        text = (root / member / "Cargo.toml").read_text()
        contents = tomllib.loads(text)
        manifests[contents["package"]["name"]] = f"{member}/Cargo.toml", text, contents
    unit = Unit({name: Place(path, 1) for name, (path, _, _) in manifests.items()})
    for name, (path, text, contents) in manifests.items():
        for section in (contents, *contents.get("target", {}).values()):
            for kind in ("dependencies", "build-dependencies", "dev-dependencies"):
                for key, value in section.get(kind, {}).items():
                    package = value.get("package", key) if isinstance(value, dict) else key
                    if package in manifests:
                        before = re.search(rf"^(?:\[.*dependencies\.)?{re.escape(key)}\b", text, re.MULTILINE)
                        line = text.count("\n", 0, before.start()) + 1 if before else 1
                        unit.add(name, package, Place(path, line))
    return unit


# Python


def read_package(root: Path, folder: str) -> Unit:
    """Return the modules of a Python package and their imports; a native one is known by its stub."""
    package = root / folder
    files: dict[tuple[str, ...], Path] = {}
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        files.setdefault(path.relative_to(package).with_suffix("").parts, path)
    names = {parts[0] for parts in files}
    # A package in a package, which an `import` of another one of that name doesn't mean.
    above = [folder.name for folder in package.parents if (folder / "__init__.py").exists()]
    package_name = (*reversed(above), package.name)
    depth = len(package_name)
    unit = Unit({name: Place("", 0) for name in names})
    for parts, path in files.items():
        place = path.relative_to(root).as_posix()
        if len(parts) == 1 or parts[1:] == ("__init__",):
            unit.modules[parts[0]] = Place(place, 1)
        if path.suffix == ".pyi":
            continue
        for imported, line in _imports_of(ast.parse(path.read_text(), str(path)), (*package_name, *parts[:-1])):
            if imported[:depth] == package_name:
                target = imported[depth] if len(imported) > depth and imported[depth] in names else "__init__"
                unit.add(parts[0], target, Place(place, line))
    return unit


def _imports_of(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the absolute names that are imported in a module of `package`, except for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split(".")), node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            for alias in node.names:
                yield (*module, alias.name), alias.lineno
        elif isinstance(node, ast.If) and (only := _is_type_checking(node.test)) is not None:
            for statement in node.orelse if only else node.body:
                yield from _imports_of(ast.Module([statement], []), package)
        else:
            yield from _imports_of(node, package)


def _is_type_checking(test: ast.expr) -> bool | None:
    """Return True for `TYPE_CHECKING`, False for `not TYPE_CHECKING`, None for all else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return False if _is_type_checking(test.operand) else None
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return True if name == "TYPE_CHECKING" else None


def reader_of(root: Path, folder: str) -> Callable[[], Unit] | None:
    """Return the reader for the crate, module or package in a folder; None if it is none of them."""
    if folder == WORKSPACE:
        return lambda: read_workspace(root)
    if (root / folder / "Cargo.toml").exists():
        return lambda: read_crate(root, folder)
    crate, _, module = folder.partition("/src/")
    is_module = (root / f"{folder}.rs").exists() or (root / folder / "mod.rs").exists()
    if is_module and (root / crate / "Cargo.toml").exists():
        return lambda: read_crate(root, crate, tuple(module.split("/")))
    if (root / folder / "__init__.py").exists():
        return lambda: read_package(root, folder)
    return None


def find_offences(root: Path) -> list[Offence]:
    """Return all violations in the repository at `root`."""
    tables, offences = read_tables(root)
    for folder, table in tables.items():
        if (reader := reader_of(root, folder)) is None:
            offences.append(
                Offence(table.place, f"`{folder}` is neither a crate, a crate's module nor a Python package")
            )
        else:
            offences += check(folder, table, reader())
    demanded = [folder for folder in (*PACKAGES, *MODULES) if (root / folder).exists()]
    if members := members_of(root):
        demanded += [WORKSPACE, *members]
    for folder in demanded:
        if folder not in tables:
            offences.append(Offence(Place(DOCUMENT, 1), f"there is no table for `{folder}`"))
    return sorted(offences)


if __name__ == "__main__":
    sys.exit(main("Check that imports follow the layers in docs/layers.md.", find_offences))

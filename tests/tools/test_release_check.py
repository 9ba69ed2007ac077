"""tools/release_check.py says what a release lacks."""

import pytest

from support import load_tool

check = load_tool("release_check")

CHANGELOG = """\
## [Unreleased]

## [1.2.3] - 2026-01-31

- A change.

[1.2.3]: https://example.org
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "DIST", tmp_path / "dist")
    (tmp_path / "dist").mkdir()
    (tmp_path / "lab").mkdir()
    return tmp_path


def test_a_changelog_with_a_section_is_ready(repository):
    (repository / "CHANGELOG.md").write_text(CHANGELOG)
    assert list(check.wrong_changelog("1.2.3")) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("## [1.2.3] - 2026-01-31", "## [1.2.2] - 2026-01-31", "has no section"),
        ("2026-01-31", "soon", "soon is not a date"),
        ("[1.2.3]: https", "[1.2.2]: https", "has no link"),
        ("## [Unreleased]\n", "## [Unreleased]\n\n- Another.\n", "still has entries"),
    ],
)
def test_a_changelog_that_is_not_ready_is_refused(repository, old, new, problem):
    (repository / "CHANGELOG.md").write_text(CHANGELOG.replace(old, new))
    assert any(problem in each for each in check.wrong_changelog("1.2.3"))


def test_versions_must_agree(repository):
    workspace = '[workspace.package]\nversion = "1.2.3"\n[workspace.dependencies]\nringloop = { version = "1.2.2" }\n'
    (repository / "Cargo.toml").write_text(workspace)
    (repository / "lab/pyproject.toml").write_text('[project]\nversion = "1.2.1"\n')
    (repository / "lab/Cargo.toml").write_text('[workspace.package]\nversion = "1.2.0"\n')
    assert check.version() == "1.2.3"
    crate, lab, load = check.wrong_versions("1.2.3")
    assert "ringloop is 1.2.2" in crate
    assert "the version is 1.2.1" in lab
    assert "lab/Cargo.toml: the version is 1.2.0" in load


def test_relative_links_are_found_outside_of_code():
    text = "[a](https://a) [b](docs/b.md)\n```\nx[0](y)\n```\n[c](#c) [d](mailto:d@e)\n"
    assert check.relative_links(text) == ["docs/b.md"]


def test_no_link_of_this_tree_s_descriptions_is_relative():
    assert list(check.wrong_descriptions()) == []


def test_files_that_are_missing_or_do_not_belong_are_named(repository):
    for name in ("ringloop-1.2.3.tar.gz", "ringloop-1.2.2.tar.gz", "ringlab-1.2.3-py3-none-manylinux_2_28_x86_64.whl"):
        (repository / "dist" / name).touch()
    assert list(check.wrong_files("1.2.3")) == [
        "dist has 0 wheels of ringloop 1.2.3 instead of 28",
        "dist has no ringlab-1.2.3-py3-none-manylinux_2_28_aarch64.whl",
        "dist has no ringlab-1.2.3.tar.gz",
        "dist has no ringloop-1.2.3.crate",
        "dist has no ringloop-driver-1.2.3.crate",
        "dist has no ringloop-reactor-1.2.3.crate",
        "dist has ringloop-1.2.2.tar.gz, which is no part of 1.2.3",
    ]


@pytest.mark.parametrize(("option", "verdict"), [([], "ready: 1.2.3."), (["--fast"], "rehearsed: 1.2.3.")])
def test_a_rehearsal_is_not_called_ready(repository, monkeypatch, capsys, option, verdict):
    monkeypatch.setattr(check, "version", lambda: "1.2.3")
    for name in ("versions", "changelog", "files"):
        monkeypatch.setattr(check, f"wrong_{name}", lambda _: [])
    for name in ("wrong_descriptions", "uncommitted", "old_licences"):
        monkeypatch.setattr(check, name, list)
    monkeypatch.setattr("sys.argv", ["release_check.py", *option])
    assert check.main() == 0
    assert capsys.readouterr().out.startswith(verdict)

"""tools/release_check.py says what a release lacks."""

import re
import subprocess

import pytest

from support import REPOSITORY, load_tool

set_version = load_tool("set_version")
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


@pytest.fixture
def versions(tmp_path, monkeypatch):
    """Return a folder with copies of all files that name the version."""
    monkeypatch.setattr(set_version, "ROOT", tmp_path)
    for name in set_version.PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((REPOSITORY / name).read_text())
    return tmp_path


def test_this_tree_names_one_version():
    assert list(set_version.wrong_versions(check.version())) == []


def test_a_version_is_written_everywhere_and_nothing_else_changes(versions):
    old, new = check.version(), "12.34.56"
    before = len(list(set_version.wrong_versions(new)))
    assert before > len(set_version.PLACES)  # the manifest and some locks have several
    set_version.set_version(new)
    assert list(set_version.wrong_versions(new)) == []
    assert len(list(set_version.wrong_versions(old))) == before
    lock = (versions / "crates/ringloop-driver/fuzz/Cargo.lock").read_text()
    assert 'name = "ringloop-driver"\nversion = "12.34.56"' in lock
    assert 'name = "ringloop-driver-fuzz"\nversion = "0.0.0"' in lock
    set_version.set_version(old)
    for name in set_version.PLACES:
        assert (versions / name).read_text() == (REPOSITORY / name).read_text()


@pytest.mark.parametrize("name", set_version.PLACES)
def test_each_file_with_another_version_is_named(versions, name):
    wanted = check.version()
    text = (versions / name).read_text()
    place = next(set_version.places(text, set_version.PLACES[name]))
    (versions / name).write_text(text[: place.begin] + "9.9.9" + text[place.end :])
    (problem,) = set_version.wrong_versions(wanted)
    assert problem.startswith(f"{name}:")
    assert problem.endswith(f"the version is 9.9.9 instead of {wanted}")
    (versions / name).write_text("")
    assert list(set_version.wrong_versions(wanted)) == [f"{name}: names no version"]


def test_each_lock_with_a_crate_of_ours_is_known():
    command = ["git", "-C", str(REPOSITORY), "grep", "-lE", '^name = "(ringloop|ringlab)', "--", "*Cargo.lock"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        pytest.skip(f"git does not know this tree: {done.stderr}")
    assert done.stdout.split() == sorted(set_version.LOCKS)


@pytest.mark.parametrize("version", ["1.2", "v1.2.3", "1.2.3rc1"])
def test_what_is_no_version_is_not_written(versions, monkeypatch, version):
    monkeypatch.setattr("sys.argv", ["set_version.py", version])
    with pytest.raises(SystemExit):
        set_version.main()
    assert list(set_version.wrong_versions(check.version())) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("There is no published package yet.", "no published package"),
        ("# A\n\nThe crate is not published\nyet. From a clone:", "published yet"),
        ("There is no\nrelease yet.", "no release yet"),
        ("Nothing is published  yet", "published yet"),
        ("The key: to be filled in", "to be filled in"),
    ],
)
def test_a_page_that_says_that_nothing_is_published_is_refused(repository, monkeypatch, text, said):
    (repository / "page.md").write_text(f"A title.\n\n{text}\n")
    (repository / "other.md").write_text("We publish each result. Releases have dates; a yard is no unit yet.\n")
    (repository / "link.md").symlink_to("page.md")
    subprocess.run(["git", "-C", repository, "init", "--quiet"], check=True)
    subprocess.run(["git", "-C", repository, "add", "."], check=True)
    (problem,) = check.unpublished()
    assert problem.startswith("page.md:")
    assert problem.endswith(f": `{said}`")


def test_the_new_text_of_the_pages_must_be_applied(repository, monkeypatch):
    monkeypatch.setattr(check, "tracked_pages", list)
    assert list(check.unpublished()) == []
    (repository / check.FIRST_RELEASE).parent.mkdir()
    (repository / check.FIRST_RELEASE).touch()
    (problem,) = check.unpublished()
    assert "apply it and delete it" in problem


@pytest.mark.parametrize(
    ("said", "refused"),
    [("cargo 1.89.0 (c24e10642 2025-06-23)", True), ("cargo 1.90.0", False), ("cargo 2.0.0", False), ("cargo", True)],
)
def test_a_cargo_that_uploads_one_crate_at_a_time_is_refused(tmp_path, monkeypatch, said, refused):
    (tmp_path / "cargo").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "cargo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert any("1.90 or later" in problem for problem in check.old_cargo()) == refused


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


@pytest.fixture
def built(repository, monkeypatch):
    """Return a repository that is ready, with a file in `dist` and the attachments of an earlier build."""
    monkeypatch.setattr(check, "version", lambda: "1.2.3")
    monkeypatch.setattr(check.set_version, "wrong_versions", lambda _: [])
    for name in ("changelog", "files"):
        monkeypatch.setattr(check, f"wrong_{name}", lambda _: [])
    for name in ("wrong_descriptions", "uncommitted", "old_licences", "old_cargo", "unpublished"):
        monkeypatch.setattr(check, name, list)
    monkeypatch.setattr(check, "output_of", lambda *command: f"({command[0]})")
    monkeypatch.setattr(check.importlib.metadata, "version", lambda name: f"({name})")
    monkeypatch.setattr(check, "ATTACHMENTS", repository / "target/attachments")
    (repository / "dist/a.whl").write_text("a\n")
    check.ATTACHMENTS.mkdir(parents=True)
    (check.ATTACHMENTS / "dist.sha256").write_text("of another build")
    return repository


def run(monkeypatch, *options):
    monkeypatch.setattr("sys.argv", ["release_check.py", *options])
    return check.main()


def test_what_is_ready_gets_checksums_and_its_toolchain(built, monkeypatch, capsys):
    assert run(monkeypatch) == 0
    assert "\nready: 1.2.3." in capsys.readouterr().out
    command = ["sha256sum", "--check", check.ATTACHMENTS / "dist.sha256"]
    done = subprocess.run(command, cwd=built / "dist", capture_output=True, text=True, check=True)
    assert done.stdout == "a.whl: OK\n"
    text = (check.ATTACHMENTS / "toolchain.txt").read_text()
    assert {"commit: (git)", "rustc: (rustc)", "cargo: (cargo)", "ziglang: (ziglang)"} <= set(text.splitlines())


def test_a_rehearsal_is_not_called_ready_and_leaves_no_checksums(built, monkeypatch, capsys):
    assert run(monkeypatch, "--fast") == 0
    said = capsys.readouterr().out
    assert "rehearsed: 1.2.3." in said
    assert "ready: " not in said
    assert not check.ATTACHMENTS.exists()


@pytest.mark.parametrize(("options", "status"), [([], 1), (["--fast"], 0)])
def test_a_rehearsal_only_reports_what_the_commit_of_a_release_changes(built, monkeypatch, capsys, options, status):
    monkeypatch.setattr(check, "unpublished", lambda: ["page.md:1: `published yet`"])
    assert run(monkeypatch, *options) == run(monkeypatch, "--sources", *options) == status
    said = capsys.readouterr().out
    assert said.count(f"{'before the release' if options else 'not ready'}: page.md:1: ") == 2
    assert not check.ATTACHMENTS.exists()


def test_a_rehearsal_refuses_what_is_wrong_with_the_files(built, monkeypatch, capsys):
    monkeypatch.setattr(check, "wrong_files", lambda _: ["dist has no a"])
    assert run(monkeypatch, "--fast") == 1
    assert capsys.readouterr().out == "not ready: dist has no a\n"


def test_looking_at_the_sources_keeps_the_checksums(built, monkeypatch):
    assert run(monkeypatch, "--sources") == 0
    assert (check.ATTACHMENTS / "dist.sha256").exists()


@pytest.mark.skipif(not (REPOSITORY / check.FIRST_RELEASE).exists(), reason="the first release is out")
def test_the_pages_of_the_first_release_say_that_it_is_published(repository, monkeypatch):
    """If this fails, a page has changed: write tools/first_release.patch again, as docs/releasing.md says."""
    patch = (REPOSITORY / check.FIRST_RELEASE).read_text()
    patched = {line.removeprefix("+++ b/") for line in patch.splitlines() if line.startswith("+++ b/")}
    monkeypatch.setattr(check, "ROOT", REPOSITORY)
    pages = set(check.tracked_pages())
    monkeypatch.setattr(check, "ROOT", repository)
    for name in pages | patched:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text((REPOSITORY / name).read_text())
    subprocess.run(["git", "-C", repository, "init", "--quiet"], check=True)
    subprocess.run(["git", "-C", repository, "add", "."], check=True)
    before = list(check.unpublished())
    subprocess.run(["git", "-C", repository, "apply", REPOSITORY / check.FIRST_RELEASE], check=True)
    left = list(check.unpublished())
    assert len(left) < len(before)
    # A person fills in the fingerprint of the key.
    assert [problem for problem in left if "to be filled in" not in problem] == []
    of_a_clone = re.compile(r"PATH_OF_THE_CLONE|--find-links /dist|pip install '\.\[serve\]'")
    # This page goes on to say how to build ringloop.
    assert {name for name in patched if of_a_clone.search((repository / name).read_text())} <= {"docs/quickstart.md"}

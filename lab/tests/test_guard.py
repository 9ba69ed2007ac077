"""guard on a small repository of its own, whose targets are the fakes."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from conftest import FAKES, TARGET
from ringlab import cli, guard, manifest, results

# Each starts dozens of processes, which takes its time where a machine has much to do.
pytestmark = [pytest.mark.usefixtures("fake_load"), pytest.mark.timeout(300)]
CELLS = ("loops/schedule/call_soon", "echo/framed/1KB/1")


class Repository:
    """A repository with commits of given costs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")
        (root / ".gitignore").write_text("/target/\n")

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *identity, *words], cwd=self.root, capture_output=True, text=True, check=True
        ).stdout

    def commit(self, cost: float, name: str = "ringloop-fake") -> str:
        folder = self.root / "lab" / "targets" / name
        folder.mkdir(parents=True, exist_ok=True)
        text = TARGET.format(name=name, server=FAKES / "server.py", cost=cost, fault="", stop_s=60, connect="false")
        (folder / manifest.FILE_NAME).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", f"cost {cost}")
        return self.git("rev-parse", "HEAD").strip()

    def guard(self, *words: object, rounds: int = 4) -> Result:
        shutil.rmtree(self.root.parent / "out", ignore_errors=True)  # One that holds a result is refused.
        fixed = (
            "--repository",
            self.root,
            "--seconds",
            0.05,
            "--rounds",
            rounds,
            "--build",
            "true",
            "--output",
            self.root.parent / "out",
        )
        return CliRunner().invoke(cli.main, ["guard", *CELLS, *map(str, fixed), *map(str, words)])


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_a_slower_revision_is_found(repository: Repository) -> None:
    base = repository.commit(1.0)
    repository.commit(1.2)
    found = repository.guard("--base", base)
    assert found.exit_code == 1, found.output
    assert "slower: 2 of 2; the worst: " in found.output
    assert re.search(
        r"fake@head is worse than ringloop-fake@base in server CPU per operation: (19|20)\.\d% more", found.output
    )
    result = results.Result.read(repository.root.parent / "out" / "result.json")
    assert {arm.name for arm in result.arms} == {
        "ringloop-fake@base",
        "ringloop-fake@head",
        "ringloop-fake@base (again)",
    }
    assert result.run.command[:2] == ["ringlab", "guard"]


def test_a_faster_and_an_equal_revision_are_fine(repository: Repository) -> None:
    base = repository.commit(1.0)
    repository.commit(0.8)
    found = repository.guard("--base", base)
    assert found.exit_code == 0, found.output
    assert "fine: none of 2 is slower" in found.output
    same = repository.guard("--base", "HEAD")
    assert same.exit_code == 0, same.output
    assert "base and head are the same commit: this measures the noise" in same.output


def test_too_few_rounds_cannot_tell(repository: Repository) -> None:
    base = repository.commit(1.0)
    repository.commit(1.2)
    found = repository.guard("--base", base, rounds=2)
    assert found.exit_code == 3, found.output
    assert "cannot tell: 2 of 2" in found.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--base", "nowhere"), "has no revision 'nowhere': name a branch, tag or commit"),
        (("--base", "HEAD", "--build", "echo no linker; exit 3"), "failed with code 3: no linker; all of its output: "),
        # What can be known before the builds, which may take minutes, is said before them.
        (("--base", "HEAD", "--build", "exit 3", "--targets", "other"), "there is no target 'other'"),
        (("--base", "HEAD", "--build", "exit 3", "nothing"), "there is no workload or cell 'nothing'"),
    ],
)
def test_what_cannot_be_guarded_is_refused(words: tuple[str, ...], message: str, repository: Repository) -> None:
    repository.commit(1.0)
    found = repository.guard(*words)
    assert found.exit_code == 2
    assert message in found.output


def test_a_folder_without_repository_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli.main, ["guard", "--base", "main", "--repository", str(tmp_path)])
    assert found.exit_code == 2
    assert "not a git repository" in found.output


def test_an_arm_that_only_one_revision_has_is_left_out(repository: Repository) -> None:
    base = repository.commit(1.0)
    repository.commit(1.0, "ringloop-new")
    found = repository.guard("--base", base)
    assert found.exit_code == 0, found.output
    assert "ringloop-new" not in found.output.partition("head against base")[2]


def test_arms_are_chosen_by_their_language_too(repository: Repository) -> None:
    repository.commit(1.0)
    found = repository.guard("--base", "HEAD", "--targets", "Python")
    assert "ringloop-fake" in found.output.partition("head against base")[2], found.output


def test_nothing_measured_is_not_fine() -> None:
    assert guard.exit_code([]) == 3
    assert guard.conclusion([]).startswith("cannot tell: 0 of 0")


def test_a_worktree_that_is_not_whole_is_mended(repository: Repository) -> None:
    base = repository.commit(1.0)
    worktree = guard.check_out(repository.root, "base", base).worktree
    (worktree / ".gitignore").unlink()
    manifests = list(worktree.glob("lab/targets/*/target.toml"))
    manifests[0].write_text("changed by a build")
    assert guard.check_out(repository.root, "base", base).worktree == worktree
    assert (worktree / ".gitignore").exists()
    assert "a fake" in manifests[0].read_text()


def test_both_revisions_run_their_own_code(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.commit(1.0)
    monkeypatch.setenv("PYTHONPATH", "/where/only/one/of/them/is")
    found = repository.guard("--base", "HEAD", "--build", 'test -z "$PYTHONPATH"')
    assert found.exit_code == 0, found.output
    for arm in guard.choose(guard.check_out(repository.root, "base", "HEAD"), ()):
        assert arm.child_environment()["PYTHONPATH"] == ""


def test_revisions_are_not_compiled_into_one_folder(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """cargo would take crates of one revision for those of the other: it compares when files were changed, not what is in them."""
    base, head = repository.commit(1.0), repository.commit(1.1)
    monkeypatch.setenv("CARGO_TARGET_DIR", str(repository.root / "target" / "one-for-all"))
    build = 'mkdir -p "${CARGO_TARGET_DIR:-target}" && git rev-parse HEAD >> "${CARGO_TARGET_DIR:-target}/compiled"'
    for name in (base, head):
        revision = guard.check_out(repository.root, "base", name)
        guard.build(revision, build, str)
        assert (revision.worktree / "target" / "compiled").read_text() == f"{name}\n"


START = f"sh -c 'exec {sys.executable} -IS {FAKES / 'server.py'} http --host {{host}} --port {{port}} $(cat options)'"


class Somebodys(Repository):
    """A repository that knows nothing of this lab: a server, and what it is started with."""

    def change(self, options: str) -> str:
        (self.root / "options").write_text(options)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", options)
        return self.git("rev-parse", "HEAD").strip()

    def guard(self, *words: object, rounds: int = 4) -> Result:
        shutil.rmtree(self.root.parent / "out", ignore_errors=True)
        fixed = ("--repository", self.root, "--output", self.root.parent / "out", "--seconds", 0.05, "--rounds", rounds)
        return CliRunner().invoke(cli.main, ["guard", *map(str, fixed), *map(str, words)])


@pytest.fixture
def somebodys(tmp_path: Path) -> Somebodys:
    return Somebodys(tmp_path / "items")


def test_any_repository_is_guarded(somebodys: Somebodys) -> None:
    base = somebodys.change("--cost 1")
    head = somebodys.change("--cost 1.2")
    words = ("--base", base, "--start", START, "--path", "/items/7", "--expect-status", 201)
    found = somebodys.guard(*words, "--build", "test -f options && touch built")
    assert found.exit_code == 1, found.output
    assert re.search(
        r"server@head is worse than server@base in server CPU per operation: (19|20)[.\d]*% more", found.output
    )
    result = results.Result.read(somebodys.root.parent / "out" / "result.json")
    (cell,) = result.cells
    assert cell.name == "http/50/closed"
    assert cell.parameters["request"] == "GET /items/7, to be answered with 201"
    assert not cell.probes
    command = result.run.command
    assert command[command.index("--start") + 1] == START
    assert command[command.index("--head") + 1] == head
    assert {"--build", "--path", "--expect-status"} <= set(command) and "--targets" not in command
    # Its own folder is left alone.
    assert somebodys.git("status", "--porcelain") == ""
    equal = somebodys.guard("--base", head, "--start", START)
    assert equal.exit_code == 0, equal.output


def test_a_server_that_does_not_start_any_more_is_told(somebodys: Somebodys) -> None:
    base = somebodys.change("--cost 1")
    somebodys.change("--fault no-start")
    found = somebodys.guard("--base", base, "--start", START)
    assert found.exit_code == 3, found.output
    assert (
        "server@head: the server ended with code 1 before it listened; its last line: cannot load its" in found.output
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--start", "./server"), "--start must say where the port goes that the server shall listen on"),
        (("--start", "./server {port} {prot}"), "--start uses {prot}, which is not a placeholder here; known: {host}"),
        (("--start", "./server {port} '"), "--start can't be split into words: No closing quotation"),
        (("--start", "./server {port} {"), "--start has an unbalanced brace"),
        (("--start", "./server {port}", "bind/listen/1"), "--start starts a server, and bind/listen/1 loads none"),
        (("--start", "./server {port}", "loops/schedule/chain"), "--start starts a server, and loops/sch"),
        (("--start", "./server {port}", "echo/framed/1KB/1", "--path", "/x"), "sends no requests of HTTP"),
        (("--start", "./server {port}", "--targets", "go"), "--start is what is measured: leave out --targets"),
        (("--start", "./server {port}", "--expect-body", "a", "--expect-text", "b"), "use one of the two"),
        (("--path", "/x"), "--path describes a service: add --start"),
    ],
)
def test_what_cannot_be_started_is_refused_before_the_builds(
    words: tuple[str, ...], message: str, somebodys: Somebodys
) -> None:
    somebodys.change("--cost 1")
    found = somebodys.guard("--base", "HEAD", "--build", "exit 3", *words)
    assert found.exit_code == 2
    assert message in found.output


def test_a_worktree_of_a_repository_that_was_made_again_is_made_again(somebodys: Somebodys) -> None:
    somebodys.change("--cost 1")
    (before,) = {guard.check_out(somebodys.root, side, "HEAD").worktree for side in guard.SIDES}
    shutil.rmtree(somebodys.root / ".git" / "worktrees")
    again = guard.check_out(somebodys.root, "base", "HEAD")
    assert again.worktree == before
    assert guard.git(again.worktree, "rev-parse", "HEAD") == again.commit


def test_trouble_of_the_machine_is_not_taken_for_slowness(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit(1.0)

    def build(*words: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(guard, "build", build)
    found = repository.guard("--base", "HEAD")
    assert found.exit_code == 2
    assert "No space left on device" in found.output

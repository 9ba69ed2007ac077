"""Two labs on one machine know of each other, and never share CPUs or a folder for results."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from ringlab import Refused, neighbours, results, storage

HOLD = """
import sys
from ringlab import neighbours, results
place = results.Placement(server=[0], client=[1])
with neighbours.announced(lambda taken: place, "refuse", print):
    print("here", flush=True)
    sys.stdin.read()
"""


def placer(*usable: int) -> Callable[[set[int]], results.Placement]:
    def choose(taken: set[int]) -> results.Placement:
        left = [cpu for cpu in usable if cpu not in taken]
        return results.Placement(server=left[:1], client=left[1:2]) if len(left) > 1 else results.Placement()

    return choose


@pytest.fixture
def other() -> Iterator["subprocess.Popen[str]"]:
    """Yield another lab, on CPUs 0 and 1."""
    command = [sys.executable, "-c", HOLD, "measures"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield process
        process.kill()


def fail(text: str) -> None:
    pytest.fail(text)


def files() -> list[Path]:
    """Return the files by which labs find each other."""
    return list(neighbours.folder().glob("ringlab-*.lock"))


def test_a_lab_that_is_alone_measures_where_it_likes() -> None:
    for _ in range(2):
        with neighbours.announced(placer(0, 1), "refuse", fail) as placement:
            assert (placement.server, placement.client) == ([0], [1])
    assert not list(neighbours.folder().iterdir())


def test_a_second_lab_says_who_measures_and_refuses(other: "subprocess.Popen[str]") -> None:
    with (
        pytest.raises(
            Refused, match=f"process {other.pid}, since .*, on CPUs 0, 1: ringlab measures; wait for it with"
        ),
        neighbours.announced(placer(0, 1, 2, 3), "refuse", fail),
    ):
        pass


def test_a_second_lab_measures_beside_on_other_cpus(other: "subprocess.Popen[str]") -> None:
    with neighbours.announced(placer(0, 1, 2, 3), "beside", fail) as placement:
        assert (placement.server, placement.client) == ([2], [3])
        assert placement.text == "; beside another lab on CPU 0, 1"
        with (
            pytest.raises(Refused, match="too few CPUs are left"),
            neighbours.announced(placer(0, 1, 2, 3), "beside", fail),
        ):
            pass


def test_a_second_lab_waits(other: "subprocess.Popen[str]") -> None:
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        assert other.stdin is not None
        other.stdin.close()

    with neighbours.announced(placer(0, 1), "wait", tell) as placement:
        assert other.wait() == 0
        assert placement.server == [0]
    assert told[0].startswith(f"waiting at most 60 minutes for another lab: process {other.pid}, ")


def test_a_second_lab_does_not_wait_for_ever(other: "subprocess.Popen[str]") -> None:
    told: list[str] = []
    with (
        pytest.raises(Refused, match=f"still after 0.006 minutes: process {other.pid}, .*--if-busy wait or wait:MIN"),
        neighbours.announced(placer(0, 1), "wait:0.006", told.append),
    ):
        pass
    assert [text.partition(":")[0] for text in told] == ["waiting at most 0.006 minutes for another lab"]


@pytest.mark.parametrize("value", ["refuse", "beside", "wait", "wait:90", "wait:0.5"])
def test_what_to_do_if_busy_is_read(value: str) -> None:
    assert neighbours.check_if_busy(value) == value


@pytest.mark.parametrize("value", ["", "wait:", "wait:0", "wait:-1", "wait:nan", "wait:long", "refuse:5", "beside:1"])
def test_what_to_do_if_busy_must_be_known(value: str) -> None:
    with pytest.raises(click.BadParameter, match="is none of refuse, wait, wait:MINUTES and beside"):
        neighbours.check_if_busy(value)


def test_a_lab_that_was_killed_is_no_neighbour(other: "subprocess.Popen[str]") -> None:
    other.kill()
    other.wait()
    assert files()
    with neighbours.announced(placer(0, 1), "refuse", fail):
        assert len(files()) == 1


def test_files_that_no_lab_has_made_are_kept() -> None:
    place = neighbours.folder()
    place.mkdir()
    others = {"package.json", "settings.json", "poetry.lock"}
    for name in others:
        (place / name).write_text("{}")
    with neighbours.announced(placer(0, 1), "refuse", fail):
        pass
    assert {path.name for path in place.iterdir()} == others


def test_what_a_neighbour_wrote_is_not_trusted(other: "subprocess.Popen[str]") -> None:
    (path,) = files()
    path.write_text("0:\x1b[2J")
    with pytest.raises(Refused) as refused, neighbours.announced(placer(0, 1), "refuse", fail):
        pass
    assert "\x1b" not in str(refused.value)
    for text in ("nonsense", "1e999:somebody", "1" * 100_000):
        path.write_text(text)
        with pytest.raises(Refused, match="whoever holds"), neighbours.announced(placer(0, 1), "refuse", fail):
            pass


def test_labs_that_cannot_be_seen_are_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(neighbours.FOLDER_VARIABLE, str(tmp_path / "file" / "locks"))
    told: list[str] = []
    with neighbours.announced(placer(0, 1), "refuse", told.append) as placement:
        assert placement.server == [0]
    assert told[0].startswith("other labs on this machine can't be seen: ")


def test_folders_of_one_second_are_different(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Path] = []

    def make() -> None:
        made.append(storage.make_unique(tmp_path, "20261123-120000"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8
    assert {path.name for path in made} == {"20261123-120000", *(f"20261123-120000-{number}" for number in range(2, 9))}


def test_a_folder_that_another_lab_writes_to_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with storage.claim(output) as folder:
        with pytest.raises(Refused, match="another lab writes its results to"), storage.claim(output):
            pass
        assert os.listdir(folder) == []
    assert not output.exists(), "nothing came into it"

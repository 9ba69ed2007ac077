"""How far the lab is, and how long it will still take, as the console shows it."""

import io

import pytest
from rich.console import Console

from ringlab import progress


class Clock:
    """Stands for the module `time`; the test says what time it is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(progress, "time", found)
    return found


def shown(each: progress.ConsoleProgress) -> tuple[int, str]:
    task = each.bar.tasks[each.task]
    return round(task.percentage), task.fields["left"]


def test_the_bar_and_the_time_left_say_the_same(clock: Clock) -> None:
    each = progress.ConsoleProgress(Console(file=io.StringIO()), expected_s=100.0)
    each.step("one")
    assert shown(each) == (0, "2 min left")
    clock.now += 80
    each.advance(50.0)  # What has been expected to take 50 s took 80.
    assert shown(each) == (50, "80 s left")
    clock.now += 60
    each.advance(50.0)
    assert shown(each) == (99, "1 s left")


def test_a_race_that_passes_its_limit_has_time_left(clock: Clock) -> None:
    """Each cell has its fewest rounds, whatever the limit is: 58% and 0 s left can't both be true."""
    each = progress.ConsoleProgress(Console(file=io.StringIO()), expected_s=300.0, limit_s=100.0, least=1 / 3)
    clock.now += 100
    each.advance(150.0)
    percent, left = shown(each)
    assert (percent, left) == (75, "33 s left")
    clock.now += 33
    each.advance(149.0)
    assert shown(each) == (99, "1 s left")


def test_the_bar_never_goes_back(clock: Clock) -> None:
    each = progress.ConsoleProgress(Console(file=io.StringIO()), expected_s=100.0)
    clock.now += 10
    each.advance(50.0)
    assert shown(each) == (50, "10 s left")
    clock.now += 100  # The rest takes longer.
    each.advance(1.0)
    assert shown(each) == (51, "2 min left")
    clock.now += 200
    each.step("more")
    assert shown(each) == (51, "5 min left")


def test_work_is_told_now_and_then_where_there_is_no_terminal(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO())
    with progress.working(console, "checking") as tell:
        tell("building one")
        clock.now += 9
        tell("building one: 1/3")
        clock.now += 1
        tell("building one: 2/3")
    assert capsys.readouterr().err.splitlines() == ["building one", "building one: 2/3"]


def test_work_is_shown_on_a_terminal_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress.working(console, "checking [which] targets") as tell:
        tell("building one: Building [===>   ] 1/3: [/b]two")
        console.print("")  # Draws the line below it.
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "building one: Building [===>   ] 1/3: [/b]two" in text
    assert capsys.readouterr().err == ""

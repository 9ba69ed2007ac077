"""How far the race is and how long it will still take, on the console."""

import contextlib
import math
import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from ringlab import report, results
from ringlab.report import terminal


class ConsoleProgress:
    """Tells how far the race is and how long it will still take, and prints each cell when it is done."""

    def __init__(self, console: Console, expected_s: float, limit_s: float = math.inf) -> None:
        """Take what the whole race is expected to take, and at most, if there is a limit."""
        self.console = console
        self.limit_s = limit_s
        self.expected_s = max(expected_s, 0.001)
        self.done_s = 0.0
        self.begun = time.monotonic()
        self.bar = Progress(
            BarColumn(30),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("", total=self.expected_s, left="")

    def left(self) -> str:
        """Return how long it will still take, from how long what is done took."""
        left_s = self.expected_s - self.done_s
        if self.done_s > 0:
            left_s *= (time.monotonic() - self.begun) / self.done_s
        left_s = min(left_s, self.limit_s - (time.monotonic() - self.begun))
        return f"{report.minutes(max(0.0, left_s))} left"

    def step(self, text: str) -> None:
        """Show what is being done now."""
        self.bar.update(self.task, description=text, left=self.left())

    def advance(self, expected_s: float) -> None:
        """Note that a part is over."""
        self.done_s += expected_s
        self.bar.update(self.task, completed=min(self.done_s, self.expected_s), left=self.left())

    def warn(self, text: str) -> None:
        """Print a problem that can be fixed meanwhile."""
        with contextlib.suppress(OSError):  # The race continues, even if the output goes to a file on a full disk.
            self.console.print(f"[red]{escape(text)}[/red]", highlight=False)

    def cell_done(self, cell: results.Cell) -> None:
        """Print a cell."""
        with contextlib.suppress(OSError):
            terminal.print_cell(self.console, cell)
            if not self.console.is_terminal:
                self.console.print(f"[dim]{self.left()}[/dim]", highlight=False)

"""Results of several runs, made without measuring: the arms of each and what they cost are given."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from ringlab import analysis, results
from ringlab.results import Metric

CPU = Metric(key="server_cpu_us", title="server CPU per operation", unit="us", better="lower", primary=True)
RATE = Metric(key="operations_per_s", title="rate", unit="/s", better="higher")
CONTROL = "c-epoll"
COPY = f"{CONTROL} (again)"


def make_run(
    costs: Mapping[str, float], *, number: int = 1, noise: float = 0.01, machine: float = 1.0, rounds: int = 9,
    cells: Sequence[str] = ("echo/framed/1KB/100",), parsing: Sequence[str] = (),
) -> results.Result:  # fmt: skip
    """Return a result in which each arm costs per operation what `costs` says, times `machine`.

    With arms that parse, the cells are of HTTP, and the other arms have a fixed answer.
    """
    dice = random.Random(number)
    costs = {CONTROL: 4.0, **costs, COPY: 4.0}
    arms = [
        results.Arm(
            name=name, target=name, language="C", title=name, repeats=CONTROL if name == COPY else "",
            declares={"parser": "real" if name in parsing else "canned"},
        )
        for name in costs
    ]  # fmt: skip
    made = []
    for name in cells:
        samples = []
        for round_number in range(1, rounds + 1):
            drift = machine * dice.lognormvariate(0, 0.05)
            for position, (arm, cost) in enumerate(costs.items(), 1):
                cpu = cost * drift * dice.lognormvariate(0, noise)
                samples.append(
                    results.Sample(
                        arm=arm, round=round_number, position=position, begun_s=0.0, duration_s=1.0, status="measured",
                        figures={"server_cpu_us": cpu, "operations_per_s": 1e6 / cpu},
                    )
                )  # fmt: skip
        cell = results.Cell(
            name=name, workload="http" if parsing else "echo", title=name, operation="message", parameters={"connections": 100},
            metrics=[CPU, RATE], arms=list(costs), orders=[list(costs)] * rounds, samples=samples,
        )  # fmt: skip
        cell.analysis = analysis.analyse(cell, arms)
        made.append(cell)
    scale = results.Scale(name="quick", rounds=rounds, window_s=0.5, warm_up_s=0.1, ramp_s=0.1)
    begun = f"2026-11-{number:02}T15:00:00+00:00"
    run = results.Run(command=["ringlab", "run"], begun=begun, seed=number, complete=True, scale=scale)
    environment = results.Environment(
        kernel="Linux 6.18", cpu_model="A Processor", cpus=2, cpus_usable=2, revision=f"{number:040x}"
    )
    return results.Result(run=run, environment=environment, arms=arms, cells=made)


def write_run(folder: Path, result: results.Result, name: str = "") -> Path:
    """Write a result into a folder of its own; return the file."""
    path = folder / (name or result.run.begun[:10]) / "result.json"
    result.write(path)
    return path

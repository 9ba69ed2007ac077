"""The goals that ringloop has set itself, against what was measured."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from bench.arms import CONTROL, FLOOR, OWN, PEERS
from bench.cells import ROUND_TRIP_CELL, SERVER_CPU
from bench.ratios import Ratio, paired_difference, spread
from bench.results import CellResult

CPU = SERVER_CPU.key
NOISE = 0.02
"""A smaller difference is a tie, in however many rounds it shows: the layout of a process in memory alone can make it."""

Cells = dict[str, CellResult]
Finding = tuple[str, Ratio]
"""A cell (with whom, if that isn't clear), and the ratio there."""


@dataclass(frozen=True)
class Verdict:
    """One goal on one arm."""

    goal: str
    arm: str
    measured: str
    reached: bool | None
    """None: the cells that it needs weren't measured."""
    within_noise: bool = False
    """Some rounds say the opposite."""

    def word(self) -> str:
        """For people."""
        if self.reached is None:
            return "not measured"
        return ("yes" if self.reached else "no") + (", within noise" if self.within_noise else "")

    def record(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def primary(result: CellResult) -> str:
    """The key of a cell's first metric."""
    return result.cell.metrics[0].key


def best_peer(result: CellResult, metric: str) -> str | None:
    """The fastest peer in a cell."""
    by_median = {peer: median for peer in PEERS if (median := result.median(peer, metric)) is not None}
    # Where more is better, no goal asks for the best peer.
    return min(by_median, key=lambda peer: by_median[peer]) if by_median else None


def over(arm: str, peer: str | None, results: Iterable[CellResult]) -> list[Finding]:
    """How many times better `arm` is than `peer` (None: the best one) in the first figure of each of these cells."""
    found = []
    for result in results:
        metric = primary(result)
        rival = peer or best_peer(result, metric)
        ratio = result.advantage(arm, rival, metric) if rival else None
        if ratio:
            found.append((result.cell.name if peer else f"{result.cell.name} against {rival}", ratio))
    return found


def at_least(goal: str, arm: str, limit: float, findings: list[Finding]) -> Verdict:
    """The worst of these cells must reach `limit`."""
    if not findings:
        return Verdict(goal, arm, "", None)
    name, ratio = min(findings, key=lambda finding: finding[1].median)
    short = sum(1 for _, each in findings if each.median < limit)
    among = f"; {short} of {len(findings)} cells fall short" if len(findings) > 1 and short else ""
    reached = ratio.median >= limit
    noise = ratio.low < limit if reached else ratio.high >= limit
    return Verdict(goal, arm, f"{ratio} in {name}{among}", reached, noise)


def at_most(goal: str, arm: str, limit: float, findings: list[Finding], unit: str = "") -> Verdict:
    """The worst of these cells must not be above `limit`."""
    if not findings:
        return Verdict(goal, arm, "", None)
    name, ratio = max(findings, key=lambda finding: finding[1].median)
    above = sum(1 for _, each in findings if each.median > limit)
    among = f"; {above} of {len(findings)} cells are above" if len(findings) > 1 and above else ""
    reached = ratio.median <= limit
    noise = ratio.high > limit if reached else ratio.low <= limit
    return Verdict(goal, arm, f"{ratio}{unit} in {name}{among}", reached, noise)


def none_slower(goal: str, arm: str, rival: str, cells: Cells) -> Verdict:
    """No judged figure may be worse than the rival's by more than noise in the median, and worse in every round."""
    compared, slower, undecided = 0, [], 0
    for result in cells.values():
        for metric in result.cell.metrics:
            ratio = result.advantage(arm, rival, metric.key) if metric.judged else None
            if ratio is None:
                continue
            compared += 1
            if ratio.median < 1 - NOISE and ratio.certainly_below(1):
                slower.append((ratio.median, f"{result.cell.name} {metric.unit} {ratio}"))
            elif ratio.median < 1 - NOISE:
                undecided += 1
    if not compared:
        return Verdict(goal, arm, "", None)
    parts = [f"{len(slower)} of {compared} slower" + "".join(f"; {text}" for _, text in sorted(slower))]
    if undecided:
        parts.append(f"{undecided} slower in the median, but not in every round")
    return Verdict(goal, arm, ", ".join(parts), not slower, bool(undecided) and not slower)


def judge(cells: Cells) -> list[Verdict]:
    """Every goal on every arm of ringloop that took part."""
    took_part = [arm for arm in OWN if any(any(result.samples.get(arm, [])) for result in cells.values())]
    return [verdict for arm in took_part for verdict in judge_arm(arm, cells)]


def judge_arm(arm: str, cells: Cells) -> list[Verdict]:
    """Every goal on one arm."""

    def under(prefix: str) -> list[CellResult]:
        return [result for name, result in cells.items() if name.startswith(prefix)]

    def ratios_to(rival: str, metric: str, results: Iterable[CellResult]) -> list[Finding]:
        return [(result.cell.name, ratio) for result in results if (ratio := result.ratio(arm, rival, metric))]

    scheduling = [result for result in under("schedule/") if result.cell.metrics[0].judged]

    def points_above(rival: str, results: Iterable[CellResult]) -> list[Finding]:
        series = (
            (each.cell.name, each.series(arm, primary(each)), each.series(rival, primary(each))) for each in results
        )
        return [(name, found) for name, ours, theirs in series if (found := paired_difference(ours, theirs))]

    def absolute(results: Iterable[CellResult]) -> list[Finding]:
        series = ((each.cell.name, spread(each.series(arm, primary(each)))) for each in results)
        return [(name, found) for name, found in series if found]

    def level_with(rival: str | None, prefix: str) -> list[Finding]:
        return over(arm, rival, under(prefix))

    protocol, streams, sock = under("echo/protocol/"), under("echo/streams/"), under("echo/sock/")
    alone = under(ROUND_TRIP_CELL)
    latency = "latency_us_p50"
    return [
        at_least("a chained callback 10x faster than asyncio's", arm, 10, over(arm, CONTROL, under("schedule/chain"))),
        at_least("timers 5x faster than asyncio's", arm, 5, over(arm, CONTROL, under("schedule/timers"))),
        at_least("scheduling at least level with the best peer", arm, 1 - NOISE, over(arm, None, scheduling)),
        at_most("Protocol echo: at most 1.15x the floor's CPU", arm, 1.15, ratios_to(FLOOR, CPU, protocol)),
        at_least("streams echo: 1.1x better than the best peer", arm, 1.1, over(arm, None, streams)),
        at_least("sock_* echo: 1.15x better than rloop", arm, 1.15, over(arm, "rloop", sock)),
        at_most("round trip of one connection: half of uvloop's", arm, 0.5, ratios_to("uvloop", latency, alone)),
        at_most("... at no more CPU per message", arm, 1 + NOISE, ratios_to("uvloop", CPU, alone)),
        at_least("fairness: level with asyncio", arm, 1 - NOISE, level_with(CONTROL, "fairness/")),
        at_most(
            "waiting: CPU within 2% of a core of uvloop's", arm, 2, points_above("uvloop", under("wait/")), " points"
        ),
        at_least("TLS echo: 1.2x better than the best peer", arm, 1.2, level_with(None, "tls/")),
        at_least("UDP echo: level with the best peer", arm, 1 - NOISE, level_with(None, "udp/")),
        at_least("Unix-socket echo: level with the best peer", arm, 1 - NOISE, level_with(None, "unix/")),
        at_least("starting a child: level with asyncio", arm, 1 - NOISE, level_with(CONTROL, "subprocess/spawn")),
        at_most("getaddrinfo of a literal: under 2 us", arm, 2, absolute(under("setup/getaddrinfo")), " us"),
        at_least("uvicorn: level with uvloop", arm, 1 - NOISE, level_with("uvloop", "http/uvicorn/")),
        at_least("aiohttp: level with uvloop", arm, 1 - NOISE, level_with("uvloop", "http/aiohttp/")),
        none_slower("no cell slower than uvloop", arm, "uvloop", cells),
    ]

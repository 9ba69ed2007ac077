"""The arms of a run: those that are asked for, and of these the ones that can run here, built."""

import fnmatch
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

from ringlab import Refused, manifest, nearest, preflight, results


def split(selectors: Sequence[str]) -> list[str]:
    """Return what commas separate; raise Refused where there is nothing between them."""
    found = [each.strip() for selector in selectors for each in selector.split(",") if each.strip()]
    if selectors and not found:
        raise Refused(f"--targets {selectors[0]!r} matches nothing; `ringlab targets` lists the targets")
    return found


def find(
    folder: Path | None, selectors: Sequence[str], warn: Callable[[str], None], wanted: Container[str] = ()
) -> list[manifest.Arm]:
    """Return the arms of a folder that are asked for; `warn` is told of manifests that are broken, which nobody asked for."""
    broken: dict[str, str] = {}
    arms = manifest.discover(folder, broken=broken)
    chosen = choose(arms, selectors, broken, wanted)
    for target, error in broken.items():
        warn(f"the target {target} is left out: {error}")
    return chosen


def choose(
    arms: list[manifest.Arm],
    selectors: Sequence[str],
    broken: Mapping[str, str] | None = None,
    wanted: Container[str] = (),
) -> list[manifest.Arm]:
    """Return the arms that are asked for, by their name, target, language or a glob; all where nothing is.

    The name of an arm is that arm alone, also where its target or language is called the same; but an arm that serves one of the
    `wanted` workloads goes before one that serves none. `broken` has the errors of targets whose manifests can't be read: to ask for
    one of them by its name is refused.
    """
    patterns = split(selectors)
    if not patterns:
        return arms
    broken = broken or {}
    chosen: dict[str, manifest.Arm] = {}
    for pattern in patterns:
        if pattern in broken:
            raise Refused(broken[pattern])
        serving = [arm for arm in arms if any(workload in wanted for workload in arm.workloads)]
        found = matching(serving, pattern) or matching(arms, pattern)
        if not found:
            raise Refused(no_such(pattern, arms, broken))
        chosen |= {arm.name: arm for arm in found}
    return list(chosen.values())


def matching(arms: Sequence[manifest.Arm], pattern: str) -> list[manifest.Arm]:
    """Return the arm of that name, or else the arms of that target or language, or that a glob matches."""
    return [arm for arm in arms if arm.name == pattern] or [
        arm
        for arm in arms
        if fnmatch.fnmatchcase(arm.name, pattern) or pattern == arm.target or pattern.lower() == arm.language.lower()
    ]


def no_such(name: str, arms: Sequence[manifest.Arm], broken: Mapping[str, str] | None = None) -> str:
    """Say that there is no such target, and what may have been meant."""
    names = dict.fromkeys(each for arm in arms for each in (arm.name, arm.target, arm.language))
    near = nearest.suggest(name, names)
    unread = "".join(f"; it may be in a target that can't be read: {error}" for error in (broken or {}).values())
    every = (
        f"{near} `ringlab targets` lists all"
        if near
        else f"`ringlab targets` lists them: {', '.join(arm.name for arm in arms)}"
    )
    return f"there is no target {name!r}; {every}{unread}"


def look_up(arm: manifest.Arm, asked: dict[tuple[str, str], manifest.Presence]) -> results.Arm:
    """Return the record of an arm, with the reason where it can't run here; `asked` spares asking the same twice."""
    record = arm.record()
    presence = manifest.detect_all(arm, asked)
    record.version, record.skipped, record.install = presence.version, presence.skipped, presence.install
    return record


def make_ready(
    arms: Sequence[manifest.Arm], tell: manifest.Tell, deadline: float | None = None
) -> tuple[dict[str, manifest.Arm], list[results.Arm]]:
    """Detect and build arms; return those that can run, and a record of each, with the reason where it can't.

    Nothing more is built after the deadline (of time.monotonic).
    """
    present: dict[str, manifest.Arm] = {}
    records = []
    asked: dict[tuple[str, str], manifest.Presence] = {}
    built: set[Path] = set()
    broken: dict[Path, str] = {}
    for arm in arms:
        record = look_up(arm, asked)
        records.append(record)
        if record.skipped:
            continue
        record.skipped = preflight.debug_build(arm) or broken.get(arm.build_folder, "")
        if record.skipped:
            continue
        limit_s = manifest.BUILD_TIMEOUT_S if deadline is None else max(0.0, deadline - time.monotonic())
        if not limit_s and not_built(arm, built):
            record.skipped = "not built: a quick run has no time for more builds"
            record.install = "ringlab targets --build"
            continue
        try:
            manifest.build(arm, built, limit_s, tell)
            present[arm.name] = arm
        except manifest.BuildFailed as error:
            record.skipped = broken[arm.build_folder] = f"it can't be built: {error}"
    return present, records


def not_built(arm: manifest.Arm, built: set[Path]) -> bool:
    """Return whether a build command would run for an arm."""
    return bool(arm.build.command) and arm.build_folder not in built and not manifest.is_built(arm)


def outside(addresses: Sequence[str]) -> list[manifest.Arm]:
    """Return the arms that stand for servers at HOST:PORT that run already; raise Refused."""
    arms = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise Refused(f"{address!r} is no address of a server: write it as HOST:PORT, for example 10.0.0.5:8080")
        if addresses.count(address) > 1:
            raise Refused(f"{address} is named twice; a second copy of the baseline is measured anyway (--again)")
        arms.append(
            manifest.Arm(
                name=address,
                target=address,
                language="unknown",
                title=f"the server that runs at {address}",
                folder=Path(),
                build_folder=Path(),
                commands={},
                workloads=tuple(
                    name for name in manifest.SERVED if manifest.KIND_OF_WORKLOAD[name] in manifest.SERVERS
                ),
                address=address,
            )
        )
    return arms

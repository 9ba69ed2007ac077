"""Any manifest is read, or refused with a message that names the file: never another exception."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ringlab import manifest
from ringlab.tables import WrongFile
from test_manifest import GOOD, read

KEYS = st.sampled_from(
    [
        "name",
        "title",
        "run",
        "detect",
        "build",
        "declares",
        "variants",
        "ready",
        "stop",
        "echo",
        "workers",
        "commands",
        "other",
        "",
    ]
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(
        ["{port}", "{", "}", "{nothing}", "{port!r}", "{0}", "{port.real}", "'", "good", "listen", "rtt", "\0"]
    ),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to everything within a document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for key, child in children for place in places(child, (*path, key))]


def written(value: Any) -> str:
    """Return a value in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, float):
        return str(value) if math.isfinite(value) else str(value).replace("Infinity", "inf")
    # JSON's strings are TOML's, except that TOML has no surrogates and escapes DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def changed(document: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return a copy of a document, with another value in a place. None removes what is there."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    folder: Any = copy
    for key in place[:-1]:
        folder = folder[key]
    if value is None:
        del folder[place[-1]]
    else:
        folder[place[-1]] = value
    return copy


DOCUMENT = tomllib.loads(GOOD)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(places(DOCUMENT)[1:]), value=st.none() | VALUES)
@example(place=("run", "echo"), value="{port.real}")
@example(place=("run", "warm_up_s"), value=math.nan)
@example(place=("declares", "workers"), value=1 << 70)
def test_a_manifest_with_any_value_is_read_or_refused(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    document = changed(DOCUMENT, place, value)
    text = "".join(f"{json.dumps(key)} = {written(each)}\n" for key, each in document.items())
    assert tomllib.loads(text).keys() == document.keys()
    try:
        arms = read(tmp_path, text)
    except WrongFile as error:
        assert manifest.FILE_NAME in str(error)
        return
    for arm in arms:
        for kind in arm.commands:
            values = dict.fromkeys(manifest.PLACEHOLDERS[kind], 1)
            assert arm.command(kind, **values)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, len(GOOD)), length=st.integers(0, 40), inserted=TEXTS)
def test_a_manifest_that_is_damaged_is_read_or_refused(tmp_path: Path, start: int, length: int, inserted: str) -> None:
    try:
        read(tmp_path, GOOD[:start] + inserted + GOOD[start + length :])
    except WrongFile as error:
        assert manifest.FILE_NAME in str(error)

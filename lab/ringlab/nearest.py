"""The nearest of some names to one that there isn't, as error messages offer it."""

import difflib
from collections.abc import Collection

NAMES_MAX = 3


def suggest(name: str, known: Collection[str]) -> str:
    """Return a question with the nearest names, or an empty text where none is near."""
    lower = {each.lower(): each for each in known}
    near = [lower[each] for each in difflib.get_close_matches(name.lower(), lower, n=NAMES_MAX)]
    # A part of a name says what was meant, however long the rest is.
    near += [each for each in known if len(name) >= 3 and name.lower() in each.lower() and each not in near]
    return f"did you mean {' or '.join(near[:NAMES_MAX])}?" if near else ""

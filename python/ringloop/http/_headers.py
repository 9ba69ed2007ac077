"""Header fields that are added to each response."""

from __future__ import annotations

import re

# Of RFC 9110, section 5; what is outside of ASCII is sent as Latin-1.
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile("[\t\x20-\x7e\x80-\xff]*")
_FRAMING = frozenset(("content-length", "transfer-encoding"))


def mistake(name: str, value: str) -> str | None:
    """Return the end of a sentence about a field that can't be added to each response; None if it can."""
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        return "has characters that are not allowed in a header"
    if name.lower() in _FRAMING:
        return "would give each response the same length"
    return None

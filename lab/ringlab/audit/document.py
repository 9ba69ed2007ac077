"""A report as lines, each with the headings above it, and as tables.

What a file is follows from its lines, not from its name: Markdown, HTML, a terminal's copy and mixtures of them are read alike.
Tables are rows of `|` or of box-drawing characters, `<table>`, columns of text two spaces or a tab apart, and lists of
"name: figure". Sentences aren't read.
"""

import html
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ringlab.audit import quantities

FENCE = re.compile(r"^\s*(```|~~~)")
HEADING = re.compile(r"^\s{0,3}(#{1,6})\s+(.+?)\s*#*$")
BANNER = re.compile(r"^\s*={2,}\s*([^=].*?)\s*={2,}\s*$")
BOLD = re.compile(r"^\*\*([^*]+)\*\*\s*(\([^)]*\))?:?$|^__([^_]+)__:?$")
NAME = re.compile(r"^(\s*)([A-Z][\w.+#/ -]*(?:\([^)]*\))?):\s*$")
"""A line that names what follows: "PyLoop:"."""
RULE = re.compile(r"^[\s|:+=─━═┄┼╪╋├┤┝┥┠┨╞╡╟╢╠╣└┘┌┐┏┓┗┛┴┬╒╕╘╛╭╮╰╯┯┷┳┻┰┸╔╗╚╝╩╦╬-]{3,}$")
PAIR = re.compile(r"^(\s*)(?:[-*+•]\s+|\d+[.)]\s+)?\**([A-Za-z][^:=|*`]{0,47}?)\**\s*:\**\s+(\S.*)$")
GAP = re.compile(r"\t+|\s{2,}|,\s+(?=\d)|(?<=[A-Za-z]),\s+(?=[a-z]{2})")
ENCODINGS = ("cp1252", "cp1254", "mac_roman", "latin-1")
"""In which UTF-8 is mistakenly read, most often first."""


@dataclass(frozen=True)
class Line:
    """A line of a report."""

    number: int
    """From 1."""
    text: str
    path: tuple[str, ...]
    """The headings above it, from the document's title on; the last may be a name such as "PyLoop:"."""
    section: tuple[str, ...]
    """The same without such a name."""
    block: int
    """Which code block it is in, or 0."""


@dataclass(frozen=True)
class Table:
    """A table: the texts of its cells, without Markdown's marks."""

    headings: list[str]
    rows: list[tuple[Line, list[str]]]
    line: Line
    """Of the headings."""


Pairs = list[tuple[Line, str, str]]
"""A list of "name: figure"."""


@dataclass
class Document:
    """A report, taken apart."""

    name: str
    lines: list[Line] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    """The numbers of lines that the output of tools has, and no table."""

    said: dict[tuple[re.Pattern[str], tuple[str, ...]], bool] = field(default_factory=dict)
    """The answers of `says`."""

    def says(self, words: re.Pattern[str], path: tuple[str, ...]) -> bool:
        """Return whether words stand in a section, or in one around it before that one's own parts."""
        if (words, path) not in self.said:
            there = (line.text for line in self.lines if line.path == path[: len(line.path)])
            self.said[words, path] = any(map(words.search, there))
        return self.said[words, path]


def from_html(text: str) -> str:
    """Return a page with its tables and headings as Markdown, each row in the line where it begins."""

    def row(match: re.Match[str]) -> str:
        cells = re.findall(r"<t[dh]\b[^>]*>(.*?)(?=<t[dh]\b|</tr)", match[0], re.S | re.I)
        return f"| {' | '.join(' '.join(strip(cell).split()) for cell in cells)} |" + "\n" * match[0].count("\n")

    def table(match: re.Match[str]) -> str:
        rows = strip(re.sub(r"<tr\b.*?</tr>", row, match[0], flags=re.S | re.I))
        return re.sub(r"^\s*$", "|---|", rows, flags=re.M)  # Its rows follow each other.

    def strip(part: str) -> str:
        return html.unescape(re.sub(r"<[^>]*>?", "", part))

    text = re.sub(r"<table\b.*?</table>", table, text, flags=re.S | re.I)
    return strip(re.sub(r"<h([1-6])\b[^>]*>", lambda match: "#" * int(match[1]) + " ", text, flags=re.I))


def mend(run: re.Match[str]) -> str:
    """Undo the reading of UTF-8 in another encoding: "Âµs" is µs."""
    for encoding in ENCODINGS:
        try:
            return run[0].encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
    return run[0]


def bare(text: str) -> str:
    """Return a text without Markdown's marks, links, images and line breaks."""
    text = re.sub(r"\[([^\[\]]*)\]\([^()]*\)", r"\1", re.sub(r"!\[[^\[\]]*\]\([^()]*\)", "", text))
    return re.sub(r"<[^<>]*>|\*\*|`|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)", " ", text).strip()


def parse(text: str, name: str) -> Document:
    """Take a report apart into lines."""
    text = re.sub(r"[^\x00-\x7f]+", mend, re.sub(r"\r\n?", "\n", text))
    texts = (from_html(text) if re.search(r"<table\b", text, re.I) else text).split("\n")
    document = Document(name)
    path: list[tuple[int, str]] = []
    block, inside, indent, indented = 0, False, 0, None
    for number, line in enumerate(texts, 1):
        line = re.sub(r"^\s*>\s?", "", line).rstrip()
        found: tuple[int, str] | None = None
        group = NAME.match(line)
        if FENCE.match(line):
            inside = not inside
            block += inside
            found = (9, "")
        elif not inside and (match := HEADING.match(line)):
            found = (len(match[1]), bare(match[2]))
        elif not inside and (match := BOLD.match(line)) and not PAIR.match(bare_marks(line)):
            found = (7, bare(match[1] or match[3]).rstrip(":") + (f" {match[2]}" if match[2] else ""))
        elif match := BANNER.match(line):
            found = (2, match[1])
        elif (
            not inside
            and re.match(r"^(=+|-{3,})$", line)
            and number > 1
            and re.match(r"^\w[^|]{0,79}$", texts[number - 2])
        ):
            found = (1 if line[0] == "=" else 2, bare(texts[number - 2]))
        elif group:
            found, indent, indented = (9, group[2]), len(group[1]), None
        elif line.strip() and path and path[-1][0] == 9:
            deeper = len(line) - len(line.lstrip()) > indent
            indented = deeper if indented is None else indented
            if indented and not deeper:  # What is no longer indented isn't of that name.
                path.pop()
        if found:
            path = [each for each in path if each[0] < found[0]] + ([found] if found[1] else [])
        titles, section = (tuple(title for level, title in path if level < most) for most in (10, 9))
        document.lines.append(Line(number, line, titles, section, block if inside else 0))
    return document


def runs(document: Document) -> Iterator[list[Line]]:
    """Yield lines that follow each other, in one block, without those of tools."""
    run: list[Line] = []
    for line in document.lines:
        if not line.text.strip() or line.number in document.used or (run and run[-1].block != line.block):
            if run:
                yield run
            run = []
        if line.text.strip() and line.number not in document.used:
            run.append(line)
    if run:
        yield run


def cells_of(text: str) -> list[str]:
    """Return the cells of a row with `|`."""
    text = re.sub(r"[│┃║]", "|", text).strip()
    return [bare(cell) for cell in re.split(r"(?<!\\)\|", text.removeprefix("|").removesuffix("|"))]


def tables(document: Document, is_heading: Callable[[list[str]], bool]) -> Iterator[Table | Pairs]:
    """Yield all tables and lists of figures, from the top; `is_heading` knows the headings of columns of text."""
    headings: dict[int, list[str]] = {}
    pairs: Pairs = []
    for run in runs(document):
        rows = [line for line in run if re.search(r"[|│┃║]", line.text) and not RULE.match(line.text)]
        marked = [line for line in rows if re.match(r"\s*[|│┃║].*[|│┃║]", line.text)]
        if len(rows) > 1 and (marked or any(RULE.match(line.text) for line in run)):
            rows = marked if len(marked) > 1 else rows
            yield Table(cells_of(rows[0].text), [(line, cells_of(line.text)) for line in rows[1:]], rows[0])
            continue
        matched = [(line, PAIR.match(bare_marks(line.text))) for line in run]
        if found := [(line, match[2].strip(), bare(match[3])) for line, match in matched if match]:
            pairs += found
            continue
        spaced = [(line, [bare(cell) for cell in GAP.split(line.text.strip())]) for line in run]
        yield from aligned(spaced, headings, is_heading)
    for _, rows_of_list in itertools.groupby(pairs, key=lambda row: row[0].path):
        yield list(rows_of_list)


def bare_marks(text: str) -> str:
    """Return a line without bold marks and code marks, but with its bullet."""
    return re.sub(r"\*\*|`", "", text)


def aligned(
    spaced: Sequence[tuple[Line, list[str]]], headings: dict[int, list[str]], is_heading: Callable[[list[str]], bool]
) -> Iterator[Table]:
    """Yield the table that columns of text make; its headings may stand above another one with as many columns."""
    rows: list[tuple[Line, list[str]]] = []
    for line, cells in spaced:
        if len(cells) > 1 and is_heading(cells):
            headings[len(cells)] = cells
        elif len(cells) > 1 and any(map(quantities.read, cells[1:])) and not re.match(r"\s*[\[{(]|.*:$", line.text):
            rows.append((line, cells))
        elif len(cells) == 1 and re.fullmatch(r"[\w.+-]+( [\w.+-]+)?", cells[0]):
            rows.append((line, cells))  # It names the rows below it.
    width = max((len(cells) for _, cells in rows), default=0)
    if width > 1 and sum(len(cells) > 1 for _, cells in rows) > max(1, len(spaced) // 2):
        corner = headings.get(width - 1, [])  # It may be empty above the names of figures, beside conditions.
        shifted = ["", *corner] if corner and all(re.search(r"\d", cell) for cell in corner) else [""] * width
        yield Table(headings.get(width, shifted), rows, rows[0][0])

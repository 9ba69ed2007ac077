"""A report as a document: its tables, code blocks and sentences, each with the line where it begins.

Markdown is parsed by markdown-it-py (CommonMark with GitHub's tables). Text that isn't Markdown, such as the output of a tool
in a file of its own, is one code block.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringlab.deferred import markdown_it

if TYPE_CHECKING:
    from markdown_it.token import Token

MARKDOWN_SUFFIXES = (".md", ".markdown", ".mkd", ".mdown")
RULE_LINE = re.compile(r"^\s*-{3,}\s*$")


@dataclass(frozen=True)
class Table:
    """A table: the texts of its cells, without Markdown's marks."""

    headings: list[str]
    rows: list[list[str]]
    line: int
    """Of the headings, from 1."""
    lines: list[int]
    """Of each row."""
    section: str
    """The headings above it, from the document's title on."""
    caption: str
    """The text before it in its section."""


@dataclass(frozen=True)
class Block:
    """A code block, or a paragraph or a list item as plain text."""

    text: str
    line: int
    section: str
    caption: str = ""


@dataclass
class Document:
    """The parts of a report."""

    name: str
    title: str = ""
    tables: list[Table] = field(default_factory=list)
    code: list[Block] = field(default_factory=list)
    prose: list[Block] = field(default_factory=list)
    text: str = ""


def mend_tables(text: str) -> str:
    """Give tables whose second line is a mere rule the one that Markdown asks for; the number of lines stays the same."""
    lines = text.split("\n")
    for index in range(1, len(lines) - 1):
        before, after = lines[index - 1].lstrip(), lines[index + 1].lstrip()
        if RULE_LINE.match(lines[index]) and before.startswith("|") and after.startswith("|"):
            lines[index] = "|" + " --- |" * (before.rstrip().strip("|").count("|") + 1)
    return "\n".join(lines)


def plain_text(token: "Token") -> str:
    """Return the text of an inline token, without marks."""
    parts = []
    for child in token.children or []:
        if child.type in ("text", "code_inline"):
            parts.append(child.content)
        elif child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
    return "".join(parts)


def read(text: str, name: str) -> Document:
    """Parse a report; `name` is that of its file."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    document = Document(name=name, text=text)
    if not name.lower().endswith(MARKDOWN_SUFFIXES):
        document.code.append(Block(text, 1, ""))
        return document
    tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(mend_tables(text))
    sections: list[tuple[int, str]] = []
    caption = ""
    index = 0
    while index < len(tokens):
        token = tokens[index]
        line = (token.map or [0])[0] + 1
        section = " / ".join(title for _, title in sections)
        if token.type == "heading_open":
            level, title = int(token.tag[1]), plain_text(tokens[index + 1])
            document.title = document.title or title
            sections = [(depth, name) for depth, name in sections if depth < level] + [(level, title)]
            caption = ""
            document.prose.append(Block(title, line, " / ".join(name for _, name in sections)))
            index += 2
        elif token.type == "table_open":
            index, table = read_table(tokens, index, section, caption)
            document.tables.append(table)
        elif token.type in ("fence", "code_block"):
            opening = 1 if token.type == "fence" else 0
            document.code.append(Block(token.content, line + opening, section, caption))
        elif token.type == "inline":
            caption = plain_text(token)
            document.prose.append(Block(caption, line, section))
        index += 1
    return document


def read_table(tokens: "list[Token]", index: int, section: str, caption: str) -> tuple[int, Table]:
    """Read the table that begins at a token; return the index of its last token, too."""
    headings: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    line = (tokens[index].map or [0])[0] + 1
    in_head = False
    while tokens[index].type != "table_close":
        token = tokens[index]
        if token.type in ("thead_open", "thead_close"):
            in_head = token.type == "thead_open"
        elif token.type == "tr_open" and not in_head:
            rows.append([])
            lines.append((token.map or [line])[0] + 1)
        elif token.type == "inline":
            (headings if in_head else rows[-1]).append(plain_text(token).strip())
        index += 1
    return index, Table(headings, rows, line, lines, section, caption)

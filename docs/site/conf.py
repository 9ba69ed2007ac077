"""The configuration of Sphinx for `make docs`; tools/docs.py runs it."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import sys
from typing import TYPE_CHECKING

from docutils import nodes
from pygments.lexers.rust import RustLexer
from sphinx import addnodes
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(REPOSITORY / "tools"), str(HERE)]

import docs  # noqa: E402

project = "ringloop"
author = "the authors of ringloop"
project_copyright = "the authors of ringloop"
version = release = importlib.metadata.version("ringloop")

extensions = ["myst_parser", "sphinx.ext.autodoc", "run_charts"]
# GitHub's rules for the anchors of headings.
myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = f"ringloop {version}"
html_static_path = [str(HERE / "static")]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
# The contents of one page; the search finds the same.
html_use_index = False
html_domain_indices = False
html_show_sphinx = False
# Most blocks without a language are shell commands, or output.
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

# It was recorded for ringlab's tests. `make docs ARGS="--result FILE"` takes another one.
run_result = str(REPOSITORY / "lab" / "tests" / "data" / "recorded.json")

smartquotes = False
# Docstrings write code in single backticks.
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "groupwise"
autodoc_preserve_defaults = True
add_module_names = False
# Types in signatures need no page.
nitpick_ignore_regex = [("py:.*", ".*")]

SOURCES = "https://github.com/ringloop/ringloop"
PAGES = docs.pages()
NAMES = {file: name for name, file in PAGES.items()}
log = logging.getLogger(__name__)


def resolve_links(app: Sphinx, doctree: nodes.document) -> None:
    """Resolve links as GitHub does, from the file's own folder: to a page, or to a file of the repository on GitHub.

    A link that leads nowhere is left as it is; then MyST warns about it.
    """
    name = app.env.docname
    folder = PAGES[name].parent
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link["reftype"] != "myst":
            continue
        if link.astext().endswith(".md"):
            # The page's title says more than the name of a file.
            link["refexplicit"] = False
        if link["refdomain"] == "doc":
            # On the site all pages are in one folder.
            if PAGES[link["reftarget"]].parent != folder:
                log.warning("on GitHub, this link leads nowhere: %s", link["reftarget"], location=link)
            continue
        path, _, anchor = link["reftarget"].partition("#")
        target = pathlib.Path(os.path.normpath(folder / path))
        if target in NAMES:
            link["refdomain"], link["reftarget"], link["reftargetid"] = "doc", NAMES[target], anchor or None
        elif path and target.exists() and target.is_relative_to(REPOSITORY):
            kind = "tree" if target.is_dir() else "blob"
            url = f"{SOURCES}/{kind}/main/{target.relative_to(REPOSITORY)}"
            link.replace_self(nodes.reference("", "", *link.children, refuri=url))


def setup(app: Sphinx) -> None:
    app.connect("doctree-read", resolve_links)
    # rustdoc's word for code that is compiled but not run.
    app.add_lexer("rust,no_run", RustLexer)

"""The site: `make docs` builds it of the pages beside this file and of the docstrings of the public API."""

from __future__ import annotations

import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx

project = "Headrace"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "Headrace"
html_theme_options = {"source_edit_link": "", "top_of_page_buttons": []}
html_show_copyright = False
html_show_sphinx = False
exclude_patterns = ["*.py"]
highlight_language = "none"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}


def as_written(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings are written as Markdown, which Sphinx does not read: `code` stays code, a list stays a list of lines."""
    paragraphs = "\n".join(lines).strip().split("\n\n")
    lines[:] = "\n\n".join(map(_paragraph, paragraphs)).split("\n")


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if all(line.startswith("    ") for line in lines):
        return ".. code-block:: default\n\n" + text
    text = "``".join(
        part if code % 2 else re.sub(r"([*|_\\])", r"\\\1", part) for code, part in enumerate(re.split("`+", text))
    )
    return "\n".join("| " + line for line in text.split("\n")) if any(line.startswith(" ") for line in lines) else text


def without_links(app: Sphinx, document: nodes.document) -> None:
    """A link to a file or folder of the repository becomes its text: the site stands alone. Other broken links are errors."""
    for link in list(document.findall(download_reference)):
        link.replace_self(nodes.inline("", "", *link.children))
    for link in list(document.findall(pending_xref)):
        if (Path(app.srcdir) / link["reftarget"]).is_dir():
            link.replace_self(nodes.inline("", "", *link.children))


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", as_written)
    app.connect("doctree-read", without_links)

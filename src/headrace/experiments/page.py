"""A report as one HTML file that needs no network, and its charts as PNGs.

The charts are drawn by Vega-Lite. Its JavaScript (0.90 MB), and a renderer without a browser, come with `vl-convert-python`.
Plotly's JavaScript has 4.82 MB; Bokeh draws on a canvas, which screen readers see nothing of; the PNGs of both need a browser.
"""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.config.errors import package
from headrace.experiments.charts import Spec
from headrace.runs.files import write_whole

PNG_WIDTH = 720  # pixels of a chart in a PNG, at scale 1


@dataclass(frozen=True)
class Chart:
    """A chart and its caption."""

    spec: Spec
    caption: str = ""

    @property
    def name(self) -> str:
        """For its file."""
        return re.sub(r"[^a-z0-9]+", "-", str(self.spec["title"]["text"]).lower()).strip("-")[:80]


@dataclass(frozen=True)
class Table:
    """A table. Cells are text; a name of a file or a command is in backquotes."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Video:
    """A short film, as the bytes of an mp4 file."""

    content: bytes
    caption: str


@dataclass
class Section:
    """A part of the page. An item that is text is a paragraph."""

    title: str
    items: list[Chart | Table | str | Video] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """For links."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1100px; padding: 0 16px 64px; }
body { color: #1c1c1c; background: #fff; }
h1 { line-height: 1.2; margin: 24px 0 4px; } h2 { margin-top: 48px; border-bottom: 1px solid #ddd; }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; padding: 0; }
a { color: #1f5f99; }
a:focus-visible, .wide:focus-visible, summary:focus-visible { outline: 3px solid #f58518; outline-offset: 2px; }
figure { margin: 16px 0; min-width: 0; } figcaption, caption, .quiet { color: #555; font-size: 14px; text-align: left; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 0 24px; }
.chart { width: 100%; } .wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 16px 0; font-size: 14px; }
th, td { padding: 4px 12px 4px 0; text-align: left; vertical-align: top; border-bottom: 1px solid #eee; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font-size: 13px; overflow-wrap: anywhere; } video { max-width: 100%; }
"""
DRAW = """
for (const [id, spec] of Object.entries(JSON.parse(document.getElementById("charts").textContent)))
  vegaEmbed("#" + id, spec, {renderer: "svg", actions: {export: true, source: false, compiled: false, editor: false}});
"""


def renderer() -> Any:
    """The renderer of Vega-Lite. Raises `MissingExtra`."""
    return package("vl_convert", "lab", "a report needs a package that is not installed")


def write(path: Path, title: str, introduction: Sequence[str], sections: Sequence[Section]) -> None:
    """Write the page. Raises `OSError`, `ConfigError`."""
    specs: dict[str, Spec] = {}
    body = [f"<h1>{html.escape(title)}</h1>", *(f"<p>{_inline(text)}</p>" for text in introduction)]
    links = "".join(f'<li><a href="#{section.anchor}">{html.escape(section.title)}</a></li>' for section in sections)
    body.append(f'<nav aria-label="Sections"><ul>{links}</ul></nav><main>')
    for section in sections:
        body.append(f'<section aria-labelledby="{section.anchor}"><h2 id="{section.anchor}">{html.escape(section.title)}</h2>')
        body += _items(section, specs)
        body.append("</section>")
    data = json.dumps(specs, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    library = renderer().javascript_bundle().replace("</script", "<\\/script")
    write_whole(path, "\n".join([
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>", *body, "</main>",
        f'<script type="application/json" id="charts">{data}</script>',
        f'<script type="module">{library}\n{DRAW}</script></body></html>\n',
    ]))  # fmt: skip


def _items(section: Section, specs: dict[str, Spec]) -> Iterator[str]:
    """Charts that follow each other stand side by side where there is room."""
    open_grid = False
    for item in section.items:
        if isinstance(item, Chart) != open_grid:
            open_grid = not open_grid
            yield '<div class="charts">' if open_grid else "</div>"
        if isinstance(item, Chart):
            specs[name := f"chart-{len(specs)}"] = item.spec
            caption = f"<figcaption>{_inline(item.caption)}</figcaption>" if item.caption else ""
            label = html.escape(str(item.spec["description"]), quote=True)
            yield f'<figure aria-label="{label}"><div id="{name}" class="chart"></div>{caption}</figure>'
        elif isinstance(item, Table):
            yield _table(item)
        elif isinstance(item, str):
            yield f"<p>{_inline(item)}</p>"
        else:
            yield f'<figure><video controls src="data:video/mp4;base64,{b64encode(item.content).decode()}"></video>'
            yield f"<figcaption>{_inline(item.caption)}</figcaption></figure>"
    if open_grid:
        yield "</div>"


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{_inline(head)}</th>' for head in table.heads)
    rows = "".join(f"<tr>{''.join(f'<td{_kind(cell)}>{_inline(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    label = html.escape(table.caption or ", ".join(table.heads), quote=True)
    caption = f"<caption>{_inline(table.caption)}</caption>" if table.caption else ""
    inner = f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="wide" tabindex="0" role="region" aria-label="{label}">{inner}</div>'


def _kind(cell: str) -> str:
    return ' class="number"' if re.fullmatch(r"[-+]?[\d,.]+(e[-+]?\d+)?( ?%)?( \(.*\))?", cell) else ""


def _inline(text: str) -> str:
    """Escaped, with what is in backquotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def write_pictures(folder: Path, sections: Sequence[Section]) -> list[Path]:
    """Write each chart as a PNG into a folder, which is made; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = [item for section in sections for item in section.items if isinstance(item, Chart)]
    files: dict[Path, Chart] = {}
    for chart in charts:
        same = sum(other.name == chart.name for other in files.values())  # ids of several tasks are longer than a name
        files[folder / f"{chart.name}{f'-{same + 1}' if same else ''}.png"] = chart
    for path, chart in files.items():
        path.write_bytes(renderer().vegalite_to_png(chart.spec | {"width": PNG_WIDTH, "background": "white"}, scale=1.2))
    return list(files)

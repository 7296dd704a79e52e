"""Charts as Vega-Lite specifications: plain dictionaries, of which both the page and the PNGs are drawn.

A configuration has the same colour in every chart. Numbers have four digits, so that two hundred runs make a small page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, SupportsFloat

Spec = dict[str, Any]
Rows = list[dict[str, Any]]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
COLOURS = (
    "#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#eeca3b", "#ff9da6", "#79706e", "#1f4e79",
    "#a8551a", "#2d6a30", "#8c2d2f", "#3b7f7a",
)  # fmt: skip
HEIGHT = 300
ROW = 26  # pixels of a row of a chart with one row per configuration


def rounded(value: float) -> float | int:
    """Four significant digits."""
    short = float(f"{value:.4g}")
    return int(short) if short == int(short) else short


def ends(low: SupportsFloat, high: SupportsFloat) -> Spec:
    """The ends of an interval as fields of a row; None where the interval is not known."""
    known = math.isfinite(float(low))
    return {"low": rounded(float(low)) if known else None, "high": rounded(float(high)) if known else None}


def chart(
    title: str, layers: Sequence[Spec], names: Sequence[str], legend: bool = True, height: int = HEIGHT, **more: Any
) -> Spec:
    """A chart of several layers whose colours stand for the configurations `names`; the legend is left out if there is only one.
    `more`: of the whole chart, and its `encoding`, which is added to that of colours."""
    scale = {"domain": list(names), "range": [COLOURS[i % len(COLOURS)] for i in range(len(names))]}
    colour = {"field": "g", "type": "nominal", "scale": scale, "title": None}
    below = {"orient": "bottom", "columns": 1, "labelLimit": 600, "symbolLimit": 30, "symbolOpacity": 1}
    encoding = {"color": colour | {"legend": below if legend and len(names) > 1 else None}}
    drawn = [layer for layer in layers if layer["data"]["values"]]  # an empty one has no extent, which the browser warns of
    datasets = {str(id(layer["data"]["values"])): layer["data"]["values"] for layer in drawn}  # several layers may share rows
    names_of = {known: f"rows-{number}" for number, known in enumerate(datasets)}
    drawn = [layer | {"data": {"name": names_of[str(id(layer["data"]["values"]))]}} for layer in drawn]
    data = {names_of[known]: rows for known, rows in datasets.items()}
    return {
        "$schema": SCHEMA, "title": {"text": title, "anchor": "start"}, "description": title, "width": "container",
        "height": height, "autosize": {"type": "fit-x", "contains": "padding"}, "layer": drawn,
        "datasets": data,
        "encoding": encoding | more.pop("encoding", {}),
        "config": {"font": "system-ui, sans-serif", "view": {"stroke": None}, "axis": {"gridColor": "#e4e4e4"}}, **more,
    }  # fmt: skip


def _layer(rows: Rows, mark: Spec | str, **encoding: Any) -> Spec:
    """A mark for each of these rows, or for all together."""
    return {"data": {"values": rows}, "mark": mark, "encoding": encoding}


def axis(field: str, title: str, kind: str = "quantitative", **more: Any) -> Spec:
    """An encoding of a position."""
    return {"field": field, "type": kind, "title": title} | more


def tooltip(**titles: str) -> list[Spec]:
    """What is shown beside the pointer: fields and their titles."""
    numbers = {"format": ",.4~g"}
    return [{"field": name, "title": title} | (numbers if title else {}) for name, title in titles.items()]


HIGHLIGHT = {"name": "chosen", "select": {"type": "point", "fields": ["g"]}, "bind": "legend"}
"""A click on a configuration in the legend makes the others pale."""
ZOOM = {
    "name": "shown",
    "select": {
        "type": "interval",
        "zoom": "wheel![event.shiftKey]",
        "translate": "[mousedown[event.shiftKey], window:mouseup] > window:mousemove!",
    },
    "bind": "scales",
}
"""With Shift, so that the wheel and a finger go on scrolling the page."""
PALE = {"condition": {"param": "chosen", "value": 1}, "value": 0.1}


def curves(title: str, x: str, y: str, names: Sequence[str], means: Rows, runs: Rows) -> Spec:
    """Curves with bands. `means`: rows g, x, y, low, high (None for one seed). `runs`: rows g, r (the run), x, y."""
    thin = {"condition": {"param": "chosen", "value": 0.35}, "value": 0.04}
    shade = {"condition": {"param": "chosen", "value": 0.2}, "value": 0.03}
    at = {"x": axis("x", x), "y": axis("y", y, scale={"zero": False})}
    shown = tooltip(g="", x=x, y=y, low="band from", high="to")
    banded = means if any(row["low"] is not None for row in means) else []
    layers = [
        _layer(runs, {"type": "line", "strokeWidth": 0.8}, **at, detail={"field": "r"}, opacity=thin),
        _layer(banded, {"type": "area"}, x=at["x"], y=axis("low", y), y2={"field": "high"}, opacity=shade),
        _layer(means, {"type": "line", "strokeWidth": 2.2}, **at, opacity=PALE),
        _layer(means, {"type": "circle", "size": 60, "opacity": 0}, **at, tooltip=shown),
    ]
    spec = chart(title, layers, names)
    spec["layer"][0]["params"] = [HIGHLIGHT, ZOOM]
    return spec


def points(title: str, x: str, names: Sequence[str], means: Rows, runs: Rows | None = None, zero: float | None = None) -> Spec:
    """One row per configuration: single runs, their statistic and its interval. `means`: rows g, x, low, high; `runs`: g, x.
    `zero`: where a line is drawn."""
    y = axis("g", "", "nominal", sort=list(dict.fromkeys(row["g"] for row in means)), axis={"labelLimit": 260, "title": None})
    bars = [row for row in means if row["low"] is not None]
    numbers = {row["x"] for row in [*means, *(runs or [])]}
    scale = {"zero": len(numbers) == 1 and not bars}  # an axis from one number to itself would have no ticks
    at = {"y": y, "x": axis("x", x, scale=scale)}
    shown = tooltip(g="", x=x, low="95 % from", high="to")
    line = {"type": "rule", "color": "#888", "strokeDash": [4, 4]}
    layers = [
        _layer([] if zero is None else [{"x": zero}], line, x=axis("x", x), color={"value": "#888"}),
        _layer(runs or [], {"type": "point", "size": 36}, **at, opacity={"value": 0.5}),
        _layer(bars, {"type": "rule", "strokeWidth": 3}, y=y, x=axis("low", x, scale=scale), x2={"field": "high"}),
        _layer(means, {"type": "circle", "size": 110, "opacity": 1}, **at, tooltip=shown),
    ]
    return chart(title, layers, names, legend=False, height=ROW * len(means))


def dose_response(title: str, x: str, y: str, names: Sequence[str], rows: Rows, others: Rows) -> Spec:
    """Scores against lag: rows g, x, y, low, high. `rows` are joined by lines; `others` stand alone."""
    at: Spec = {"x": axis("x", x, scale={"type": "symlog"}), "y": axis("y", y, scale={"zero": False})}
    at["tooltip"] = tooltip(g="", x=x, y=y, low="95 % from", high="to")
    bars = [row for row in [*rows, *others] if row["low"] is not None]
    diamond = {"type": "point", "shape": "diamond", "filled": True, "size": 130, "opacity": 1}
    layers = [
        _layer(rows, {"type": "line", "point": True}, **at),
        _layer(others, diamond, **at),
        _layer(bars, {"type": "rule"}, x=at["x"], y=axis("low", y, scale={"zero": False}), y2={"field": "high"}),
    ]
    return chart(title, layers, names)


def scatter(title: str, x: str, y: str, rows: Rows) -> Spec:
    """Points: rows g, t (the trial), x (a number, or text for choices), y."""
    numbers = all(isinstance(row["x"], int | float) for row in rows)
    wide = numbers and min(row["x"] for row in rows) > 0 and max(row["x"] for row in rows) > 30 * min(row["x"] for row in rows)
    along = {"scale": {"type": "log"} if wide else {"zero": False}} if numbers else {}
    at = {"x": axis("x", x, "quantitative" if numbers else "nominal", **along), "y": axis("y", y, scale={"zero": False})}
    shown = [{"field": "t", "title": "trial"}, {"field": "x", "title": x}, *tooltip(y=y)]
    dots = _layer(rows, {"type": "point", "filled": True}, **at, tooltip=shown)
    return chart(title, [dots], sorted({row["g"] for row in rows}))


def shares(title: str, rows: Rows, phases: Sequence[str]) -> Spec:
    """Where a part's time went: rows g (configuration), p (phase), x (share of the time)."""
    colour = {"field": "p", "type": "nominal", "sort": list(phases), "title": None, "scale": {"range": COLOURS[: len(phases)]},
              "legend": {"orient": "bottom", "columns": 2, "labelLimit": 300}}  # fmt: skip
    y = axis("g", "", "nominal", sort=None, axis={"labelLimit": 260, "title": None})
    x = axis("x", "share of the time", stack="zero", scale={"domain": [0, 1]}, axis={"format": "%"})
    shown = tooltip(g="", p="", x="share of the time")
    bars = _layer(rows, "bar", y=y, color=colour, x=x, order={"field": "o"}, tooltip=shown)
    return chart(title, [bars], [], height=ROW * len({row["g"] for row in rows}))

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
ROW = 26
"""Pixels of a row of a chart with one row per configuration."""


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
    layers: list[Spec] = [
        {
            "data": {"values": runs}, "mark": {"type": "line", "strokeWidth": 0.8},
            "encoding": at | {"detail": {"field": "r"}, "opacity": thin},
        },
        {
            "data": {"values": means if any(row["low"] is not None for row in means) else []}, "mark": {"type": "area"},
            "encoding": {"x": at["x"], "y": axis("low", y), "y2": {"field": "high"}, "opacity": shade},
        },
        {
            "data": {"values": means}, "mark": {"type": "line", "strokeWidth": 2.2},
            "encoding": at | {"opacity": PALE},
        },
        {
            "data": {"values": means}, "mark": {"type": "circle", "size": 60, "opacity": 0},
            "encoding": at | {"tooltip": tooltip(g="", x=x, y=y, low="band from", high="to")},
        },
    ]  # fmt: skip
    spec = chart(title, layers, names)
    spec["layer"][0]["params"] = [HIGHLIGHT, ZOOM]
    return spec


def points(title: str, x: str, names: Sequence[str], means: Rows, runs: Rows | None = None, zero: float | None = None) -> Spec:
    """One row per configuration: single runs, their statistic and its interval. `means`: rows g, x, low, high; `runs`: g, x.
    `zero`: where a line is drawn."""
    y = axis("g", "", "nominal", sort=list(dict.fromkeys(row["g"] for row in means)), axis={"labelLimit": 260, "title": None})
    at = {"y": y, "x": axis("x", x, scale={"zero": False})}
    shown = tooltip(g="", x=x, low="95 % from", high="to")
    layers: list[Spec] = []
    if zero is not None:
        layers.append({"data": {"values": [{"x": zero}]}, "mark": {"type": "rule", "color": "#888", "strokeDash": [4, 4]},
                       "encoding": {"x": axis("x", x), "color": {"value": "#888"}}})  # fmt: skip
    layers += [
        {"data": {"values": runs or []}, "mark": {"type": "point", "size": 36}, "encoding": at | {"opacity": {"value": 0.5}}},
        {
            "data": {"values": [row for row in means if row["low"] is not None]}, "mark": {"type": "rule", "strokeWidth": 3},
            "encoding": {"y": y, "x": axis("low", x, scale={"zero": False}), "x2": {"field": "high"}},
        },
        {"data": {"values": means}, "mark": {"type": "circle", "size": 110, "opacity": 1}, "encoding": at | {"tooltip": shown}},
    ]  # fmt: skip
    return chart(title, layers, names, legend=False, height=ROW * len(means))


def dose_response(title: str, x: str, y: str, names: Sequence[str], rows: Rows, others: Rows) -> Spec:
    """Scores against lag: rows g, x, y, low, high. `rows` are joined by lines; `others` stand alone."""
    at = {"x": axis("x", x, scale={"type": "symlog"}), "y": axis("y", y, scale={"zero": False})}
    shown = {"tooltip": tooltip(g="", x=x, y=y, low="95 % from", high="to")}
    bars = [row for row in [*rows, *others] if row["low"] is not None]
    layers: list[Spec] = [
        {"data": {"values": rows}, "mark": {"type": "line", "point": True}, "encoding": at | shown},
        {"data": {"values": others}, "mark": {"type": "point", "shape": "diamond", "filled": True, "size": 130, "opacity": 1},
         "encoding": at | shown},
        {"data": {"values": bars}, "mark": {"type": "rule"},
         "encoding": {"x": at["x"], "y": axis("low", y, scale={"zero": False}), "y2": {"field": "high"}}},
    ]  # fmt: skip
    return chart(title, layers, names)


def scatter(title: str, x: str, y: str, rows: Rows) -> Spec:
    """Points: rows g, t (the trial), x (a number, or text for choices), y."""
    numbers = all(isinstance(row["x"], int | float) for row in rows)
    wide = numbers and min(row["x"] for row in rows) > 0 and max(row["x"] for row in rows) > 30 * min(row["x"] for row in rows)
    along = {"scale": {"type": "log"} if wide else {"zero": False}} if numbers else {}
    at = {"x": axis("x", x, "quantitative" if numbers else "nominal", **along), "y": axis("y", y, scale={"zero": False})}
    shown: Spec = {"tooltip": [{"field": "t", "title": "trial"}, {"field": "x", "title": x}, *tooltip(y=y)]}
    layer = {"data": {"values": rows}, "mark": {"type": "point", "filled": True}, "encoding": at | shown}
    return chart(title, [layer], sorted({row["g"] for row in rows}))


def shares(title: str, rows: Rows, phases: Sequence[str]) -> Spec:
    """Where a part's time went: rows g (configuration), p (phase), x (share of the time)."""
    colour = {"field": "p", "type": "nominal", "sort": list(phases), "title": None, "scale": {"range": COLOURS[: len(phases)]},
              "legend": {"orient": "bottom", "columns": 2, "labelLimit": 300}}  # fmt: skip
    mark = {
        "data": {"values": rows}, "mark": "bar",
        "encoding": {
            "y": axis("g", "", "nominal", sort=None, axis={"labelLimit": 260, "title": None}), "color": colour,
            "x": axis("x", "share of the time", stack="zero", scale={"domain": [0, 1]}, axis={"format": "%"}),
            "order": {"field": "o"}, "tooltip": tooltip(g="", p="", x="share of the time"),
        },
    }  # fmt: skip
    return chart(title, [mark], [], height=ROW * len({row["g"] for row in rows}))

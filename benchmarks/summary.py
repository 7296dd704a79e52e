"""Results of the benchmarks as JSON for people: a row is a line, an array of numbers is a line, and curves are short."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH = 300
"""What fits into this many characters is one line. An array of plain values is one line however long it is."""


def machine() -> dict[str, Any]:
    """Facts of the machine, the packages and the command; of paths in the command only the last part."""
    from headrace.runs.system_facts import system_facts  # only here: some scripts outlive the package's names

    facts = system_facts()
    return facts | {"command": [os.path.basename(part) if os.path.isabs(part) else part for part in facts["command"]]}


def thin(values: Sequence[Any], most: int = 60) -> list[Any]:
    """At most `most` of the values, as evenly spaced as can be, with the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def text(data: Any, indent: int = 0) -> str:
    """`data` as JSON, indented by one space where it is broken into lines."""
    line = json.dumps(data)
    if not isinstance(data, dict | list | tuple) or (indent and len(line) <= WIDTH - indent):
        return line
    if isinstance(data, dict):
        parts = [f"{json.dumps(str(key))}: {text(value, indent + 1)}" for key, value in data.items()]
        begin, end = "{}"
    elif any(isinstance(value, dict | list | tuple) for value in data):
        parts = [text(value, indent + 1) for value in data]
        begin, end = "[]"
    else:
        return line
    space = "\n" + " " * indent
    return begin + ",".join(f"{space} {part}" for part in parts) + space + end


def write(path: Path, data: Any) -> None:
    """Write `data` as `path`, whose folder is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(data) + "\n")

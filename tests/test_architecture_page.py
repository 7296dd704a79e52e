"""docs/architecture.md names places that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
HOPS = re.findall(r"^\| (\d+) \| `([\w/.]+)` `([\w.]+)` \|", PAGE, re.MULTILINE)


def names(path: Path) -> set[str]:
    """Functions, and methods as Class.method, including those that a class inherits from others of the file."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef)}
    return found


def test_the_tour_goes_through_places_that_exist() -> None:
    assert [int(number) for number, _, _ in HOPS] == list(range(1, len(HOPS) + 1))
    assert 20 <= len(HOPS) <= 30
    for _, file, name in HOPS:
        path = ROOT / "src" / "headrace" / file
        assert path.is_file(), file
        assert name in names(path), f"{file}: {name}"


def test_every_file_and_folder_that_is_named_is_there() -> None:
    for name in set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", PAGE)):
        places = (ROOT / name, ROOT / "src" / "headrace" / name, ROOT / "src" / "headrace" / "sampling" / name)
        assert any(place.exists() for place in places), name

"""Imports point downwards, and files stay short: the order of docs/architecture.md, read from the code."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
import headrace_atari

PACKAGE = Path(__file__).parents[1] / "src" / "headrace"
LEVELS = (
    {"__init__", "cli"},
    {"tune", "export", "experiments"},
    {"train"},
    {"make_config", "checkpointing"},
    {"population", "cluster"},
    {"evaluation", "learning", "sampling", "experience"},
    {"policies", "envs"},
    {"processes", "accelerator", "shm", "runs", "transport"},
    {"config", "arrays"},
)
"""From the top down. A part may import its own level and those below."""
LEVEL = {part: level for level, parts in enumerate(LEVELS) for part in parts}
MATHEMATICS = ("gae", "vtrace", "losses", "q_learning")
FILES = sorted(PACKAGE.rglob("*.py"))
ATARI = sorted((PACKAGE.parents[1] / "packages" / "headrace-atari" / "src").rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, only_at_run_time: bool = False) -> Iterator[str]:
    """Modules of ours that a file imports, anywhere in it, as dotted names below the package."""
    tree = ast.parse(path.read_text())
    skipped: set[ast.AST] = set()
    if only_at_run_time:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped |= {inner for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "headrace":
            module = node.module.removeprefix("headrace").lstrip(".")
            yield from [module] if module else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from [a.name.removeprefix("headrace.") for a in node.names if a.name.startswith("headrace.")]


def edges() -> set[tuple[str, str]]:
    found = set()
    for path in FILES:
        for module in imports(path, only_at_run_time=True):
            if (to := module.split(".")[0]) in LEVEL and to != part_of(path):
                found.add((part_of(path), to))
    return found


def test_every_part_has_its_place() -> None:
    parts = {part_of(path) for path in FILES} - {"_native"}
    assert parts <= set(LEVEL), parts - set(LEVEL)


def test_imports_point_downwards() -> None:
    upwards = {(a, b) for a, b in edges() if LEVEL[b] < LEVEL[a]}
    assert not upwards


@pytest.mark.parametrize(("one", "other"), [("learning", "sampling"), ("sampling", "learning")])
def test_learning_and_sampling_do_not_know_each_other(one: str, other: str) -> None:
    for path in (PACKAGE / one).rglob("*.py"):
        assert not [m for m in imports(path, only_at_run_time=True) if m.split(".")[0] == other], path


def test_parts_of_a_level_form_no_circle() -> None:
    found = edges()
    circles = {(a, b) for a, b in found if (b, a) in found and LEVEL[a] == LEVEL[b]}
    assert not circles


def test_files_form_no_circle() -> None:
    """Imports of a file, followed through others, never lead back to it."""
    names = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in FILES if path.name != "__init__.py"}
    left = {}
    for name, path in names.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace"):
                module = (node.module or "").removeprefix("headrace").lstrip(".")
                found |= {module, *(f"{module}.{alias.name}".lstrip(".") for alias in node.names)}
        left[name] = (found & set(names)) - {name}
    while leaves := {name for name, imported in left.items() if not imported & set(left)}:
        left = {name: imported for name, imported in left.items() if name not in leaves}
    assert not left, f"these import each other, or those that do: {sorted(left)}"


@pytest.mark.parametrize("name", MATHEMATICS)
def test_the_mathematics_imports_nothing_else_of_ours(name: str) -> None:
    allowed = {f"learning.{other}" for other in (*MATHEMATICS, "shape_checks")}
    assert set(imports(PACKAGE / "learning" / f"{name}.py")) <= allowed


def test_of_the_consoles_only_what_is_public_is_imported() -> None:
    """The package `headrace_atari` is a library like others; `envs/atari` joins it to the engine."""
    public, users = set(headrace_atari.__all__), set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "headrace_atari":
                users.add(part_of(path))
                assert node.module == "headrace_atari", path
                assert {alias.name for alias in node.names} <= public, path
            elif isinstance(node, ast.Import):
                assert not [alias.name for alias in node.names if alias.name.startswith("headrace_atari")], path
    assert users == {"__init__", "_native", "envs", "export"}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Every function and method of a file, with its number of lines without the docstring."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            docstring = 0 if ast.get_docstring(node) is None else (first.end_lineno or 0) - first.lineno + 1
            yield f"{path}: {node.name}", (node.end_lineno or 0) - node.lineno + 1 - docstring


def test_functions_are_short() -> None:
    lines = {name: count for path in FILES + ATARI for name, count in functions(path)}
    assert len(lines) > 1000
    assert not {name: count for name, count in lines.items() if count >= 60}


def test_files_are_short() -> None:
    lines = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in FILES}
    assert not {path: n for path in ATARI if (n := len(path.read_text().splitlines())) > 500}
    assert not {path: n for path, n in lines.items() if n > 500}
    assert not {path: n for path, n in lines.items() if path.startswith("config/") and n > 400}
    assert lines["train.py"] <= 200


def test_type_checkers_are_told_what_the_package_offers() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imported = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    told = {alias.asname: (node.module, alias.name) for node in imported for alias in node.names}
    assert told == {name: (module, name) if of else ("headrace", name) for name, (module, of) in headrace._API.items()}


USE = """
import headrace
from headrace import make_config, train

result = train(make_config("gym/CartPole-v1", **{"run.goal": 475.0}))
print(headrace.evaluate(result.folder, episodes=100).mean + result.mean_return)
headrace.train(headrace.make_config("gym/CartPole-v1", "ppo", ["my_env.py"], seed=1), on_update=print)
result.not_there
headrace.evalaute("runs")
"""


@pytest.mark.process
def test_a_program_passes_a_strict_type_checker(tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USE)
    # Reading torch takes a minute, and nothing here is of its types.
    (tmp_path / "mypy.ini").write_text("[mypy-torch.*]\nfollow_imports = skip\n")
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", "use.py"], cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert [line.partition(":")[2].partition(":")[0] for line in errors] == ["8", "9"], checked.stdout + checked.stderr

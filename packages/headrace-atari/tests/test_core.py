"""The Atari console's core: against ale-py on one game of every kind, and under fuzzing."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT.parents[1] / "benchmarks"))

from atari_exactness import Run, play  # noqa: E402

import headrace_atari._native.atari as native  # noqa: E402
from headrace_atari import games  # noqa: E402

# Every mapper (2K 4K F8 F6 E0 F6SC F8SC FE DPC), both TV formats, all screen heights, paddles in either port, swapped
# ports, HMOVE blanks off, the RESET switch, and games that read collisions, the timer after expiry and undocumented
# opcodes.
KINDS = [
    "pong", "breakout", "freeway", "adventure", "berzerk", "carnival", "pooyan", "journey_escape", "qbert", "surround",
    "asteroids", "centipede", "haunted_house", "solaris", "montezuma_revenge", "klax", "elevator_action", "robotank",
    "pitfall2", "enduro",
]  # fmt: skip
requires_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("game", KINDS)
def test_plays_as_ale(game: str, drawn: bool) -> None:
    run = play(Run(game, games()[game]["default_mode"], 0, seed=7, drawn=drawn), frames=150, reset_every=100)
    assert run.difference is None
    assert (run.frames, run.resets) == (150, 1)


@pytest.mark.parametrize("game", ["pong", "freeway", "montezuma_revenge", "robotank", "pitfall2"])
def test_plays_as_ale_without_translation(game: str) -> None:
    run = play(Run(game, games()[game]["default_mode"], 0, seed=3, drawn=True), frames=120, translate=False)
    assert run.difference is None


def test_a_missile_that_is_being_drawn_is_reset() -> None:
    run = play(Run("phoenix", games()["phoenix"]["default_mode"], 0, seed=1, drawn=True), frames=1640)
    assert run.difference is None


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another mode of the same game on our side is not taken for the same."""
    emulator = native.Emulator
    monkeypatch.setattr(native, "Emulator", lambda game, mode, difficulty: emulator(game, 4, difficulty))
    run = play(Run("breakout", 0, 0, seed=0, drawn=True), frames=50)
    assert run.difference is not None
    assert "RAM" in run.difference


def build(tmp_path: Path, name: str, *options: str) -> Path:
    program, source = tmp_path / name, ROOT / "tests" / f"{name}.cpp"
    command = ["g++", "-std=c++20", "-O1", *options, f"-I{ROOT / 'native'}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=280)
    return program


@requires_compiler
def test_images_made_from_the_image_before_are_those_made_anew(tmp_path: Path) -> None:
    """In every form that the code has for a processor."""
    forms = [["-DHR_PORTABLE"], ["-march=native", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]]
    if platform.machine() == "x86_64":
        forms += [["-march=x86-64-v3"]] if " avx2 " in Path("/proc/cpuinfo").read_text() else []
    found = set()
    for form in forms:
        result = subprocess.run([build(tmp_path, "observe", *form)], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stdout + result.stderr[-4000:]
        found.add(result.stdout)
    assert len(found) == 1


@requires_compiler
@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address", "undefined"])
def test_random_programs_under_a_sanitizer(tmp_path: Path, sanitizer: str) -> None:
    program = build(tmp_path, "fuzz", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    result = subprocess.run([program, "180", "3"], capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr[-4000:]


@requires_compiler
def test_random_programs(tmp_path: Path) -> None:
    """Drawn or not, translated, decoded or instruction by instruction: random programs run alike, and every frame ends."""
    result = subprocess.run([build(tmp_path, "fuzz"), "90", "1"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout

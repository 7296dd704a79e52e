"""What the benchmarks share: how a contender is run, how results are written, and that a benchmark runs at all."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "benchmarks").rglob("results/*.json"))
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports a file of benchmarks/."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_what_scripts_import_is_there() -> None:
    """A script may import names of another one, which nothing else checks."""
    scripts = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "benchmarks" / "learning").glob("*.py")]
    code = """if True:
        import importlib, sys
        from pathlib import Path
        for script in map(Path, sys.argv[1:]):
            sys.path.insert(0, str(script.parent))
            print(importlib.import_module(script.stem).__file__)
            sys.path.pop(0)
        """
    done = subprocess.run([sys.executable, "-c", code, *map(str, scripts)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(script) for script in scripts]


def test_a_contender_leaves_nothing_in_the_working_directory(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contest = load("training_contest")
    monkeypatch.chdir(tmp_path)
    code = "import time; open('left behind', 'w')\nfor n in range(1, 999): print(10 * n, flush=True); time.sleep(0.02)"

    def trains(env: str, folder: Path) -> tuple[list[str], Callable[[str], list[int]]]:
        return [sys.executable, "-c", code], lambda printed: [int(number) for number in printed.split()]

    assert contest.measure(trains, "any", 10, 0.2) > 0
    assert not list(tmp_path.iterdir())


def test_the_contenders_interpreter_is_found_from_anywhere(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contest = load("training_contest")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    parser = contest.arguments("", [], "any.json")
    assert parser.parse_args(["venv/bin/python"]).python == str(python)
    with pytest.raises(argparse.ArgumentTypeError, match="no/such is no program"):
        contest.interpreter("no/such")


def test_results_are_summaries(load: Load) -> None:
    """Few kilobytes each, in the form that `summary.write` gives, and of this machine's file system they say nothing."""
    summary = load("summary")
    assert len(RESULTS) > 20
    for path in RESULTS:
        text = path.read_text()
        assert len(text) < 16_000, path
        assert text.count("\n") <= 200, path
        assert text == summary.text(json.loads(text)) + "\n", f"{path}: write it with summary.write"
        assert not any(f'"{folder}/' in text for folder in ("/tmp", "/home", "/root", "/work")), path


def test_a_summary_has_a_row_on_a_line_and_loses_nothing(load: Load, tmp_path: Path) -> None:
    summary = load("summary")
    rows = [{"batch": n, "rate": n / 3, "of": [1.5, None, "a"]} for n in range(8)]
    data = {"rows": rows, "curve": [n / 7 for n in range(500)], "none": [], "facts": {}, "nested": {"deep": {"x": rows * 10}}}
    summary.write(tmp_path / "new" / "result.json", data)
    text = (tmp_path / "new" / "result.json").read_text()
    assert json.loads(text) == data
    lines = text.splitlines()
    assert ' {"batch": 2, "rate": 0.6666666666666666, "of": [1.5, null, "a"]},' in [line[1:] for line in lines]
    assert sum(line.startswith(' "curve": [0.0, ') for line in lines) == 1
    assert len(lines) == 2 + (2 + 8) + 3 + 4 + (2 + 80)


def test_a_thinned_curve_keeps_its_ends(load: Load) -> None:
    summary = load("summary")
    assert summary.thin(range(60)) == list(range(60))
    thinned = summary.thin(range(1000), 7)
    assert thinned[0] == 0
    assert thinned[-1] == 999
    assert len(thinned) == 7
    assert {b - a for a, b in itertools.pairwise(thinned)} <= {166, 167}


def test_paths_of_a_command_are_shortened(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = load("summary")
    monkeypatch.setattr(sys, "argv", ["/somewhere/benchmarks/x.py", "--python", "/a/venv/bin/python", "--n", "3", "a/b"])
    assert summary.machine()["command"] == ["x.py", "--python", "python", "--n", "3", "a/b"]


def test_exactness_has_a_line_for_each_game_that_differs_and_one_for_the_others(load: Load) -> None:
    pytest.importorskip("ale_py")
    exactness = load("atari_exactness")

    def run(game: str, difficulty: int, difference: str | None = None, mode: int = 0) -> object:
        return exactness.Run(game, mode, difficulty, 1, True, 100, 2, 7, difference)

    results = {
        "pong": [run("pong", 0), run("pong", 1)],
        "klax": [run("klax", 0), run("klax", 1, "frame 3"), run("klax", 2, "frame 3"), run("klax", 0, "frame 4", mode=5)],
        "hero": [run("hero", 0)],
    }
    facts = exactness.report(results)
    assert facts["all"] == {"games": 3, "frames": 700, "resets": 14, "rewards": 49, "variants": 7}
    assert facts["exact"]["games"] == ["pong", "hero"]
    first, _, _, _, klax, others = exactness.table(facts).splitlines()
    assert first.startswith("2 of 3 games without a difference in 700 frames")
    assert klax == "| klax | 400 | 8 | 28 | 4 | mode 0, difficulty 1, 2, seed 1: frame 3; mode 5, difficulty 0, seed 1: frame 4 |"
    assert others == "| the other 2 | 300 | 6 | 21 | 3 | none |"


def test_the_cost_of_remote_environments(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    script, out = ROOT / "benchmarks" / "remote_envs.py", tmp_path / "remote.json"
    flags = ["--part", "stream", "--seconds", "0.1", "--json", str(out)]
    done = subprocess.run([sys.executable, script, *flags], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["stream"]
    assert [(row["environments"], row["streams"]) for row in rows] == [(n, k) for n in (16, 32) for k in (1, 2, 4)]
    assert min(row["steps_per_s"] for row in rows) > 10


def test_emulator_throughput(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    out = tmp_path / "throughput.json"
    flags = ["--games", "pong", "--rounds", "1", "--seconds", "0.05", "--num-envs", "2", "--json", str(out)]
    script = ROOT / "benchmarks" / "atari_throughput.py"
    done = subprocess.run([sys.executable, script, *flags], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "envpool is left out" in done.stdout
    (row,) = json.loads(out.read_text())["rows"]
    assert row["game"] == "pong"
    assert min(row[name] for name in ("headrace", "ale", "headrace-raw", "ale-raw", "ratio_ale", "ratio_raw")) > 0


def test_four_in_a_line_and_the_player_who_looks_one_move_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "learning"))
    games, generator = importlib.import_module("games"), np.random.default_rng(0)

    def slow(pieces: np.ndarray) -> bool:
        lines = [
            [(r + k * dr, c + k * dc) for k in range(4)]
            for r in range(6) for c in range(7) for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1))
        ]  # fmt: skip
        inside = [line for line in lines if all(0 <= r < 6 and 0 <= c < 7 for r, c in line)]
        assert len(inside) == 69
        return any(all(pieces[at] for at in line) for line in inside)

    boards = [generator.random((6, 7)) < generator.random() for _ in range(300)]
    assert [games.has_four(board) for board in boards] == [slow(board) for board in boards]

    act = games.one_move(None)
    board, mask = np.zeros((6, 7, 2), np.int8), np.ones(7, np.uint8)
    board[5, 1:4, 1] = board[5, 0, 0] = 1  # the other has three in a row, and one end is free
    assert act({"observation": board, "action_mask": mask}, generator) == 4
    board[3:6, 6, 0] = 1  # but here one wins at once
    assert act({"observation": board, "action_mask": mask}, generator) == 6


def test_the_fast_connect_four_is_pettingzoos(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pettingzoo")
    from headrace.config import EnvConfig
    from headrace.envs.families import pettingzoo

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "learning"))
    fast = importlib.import_module("games").ConnectFour()
    slow = pettingzoo.parallel(pettingzoo.make_parallel("connect_four_v3", EnvConfig()))
    generator, outcomes = np.random.default_rng(0), set()
    for agent in fast.possible_agents:
        assert fast.observation_space(agent) == slow.observation_space(agent)
        assert fast.action_space(agent) == slow.action_space(agent)
    for _ in range(150):
        (seen, _), (expected, _) = fast.reset(), slow.reset()
        while slow.agents:
            (agent,) = expected
            assert list(seen) == [agent]
            for key, array in expected[agent].items():
                assert np.array_equal(seen[agent][key], array)
            action = {agent: generator.choice(np.flatnonzero(expected[agent]["action_mask"]))}
            seen, rewards, terminations, truncations, _ = fast.step(action)
            expected, *others, _ = slow.step(action)
            assert [rewards, terminations, truncations] == others
            assert fast.agents == slow.agents
        outcomes.add(rewards["player_0"])
    assert outcomes >= {1, -1}  # both have won
    slow.close()


def test_random_openings_of_connect_four_end_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "learning"))
    games = importlib.import_module("games")
    env, lengths = games.ConnectFour(opening=12), set()
    for seed in range(300):
        ((agent, seen),) = env.reset(seed=seed)[0].items()
        pieces = seen["observation"].sum((0, 1)).tolist()  # own, and the other's
        assert pieces[0] == pieces[1] - (agent == "player_1"), "player_0 moved first"
        assert not any(games.has_four(seen["observation"][..., side] > 0) for side in (0, 1))
        assert np.array_equal(seen["observation"], next(iter(env.reset(seed=seed)[0].values()))["observation"])
        lengths.add(sum(pieces))
    assert lengths == set(range(13))
    assert not next(iter(games.ConnectFour().reset(seed=1)[0].values()))["observation"].any()


def test_the_network_of_connect_four_finds_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from headrace.config import PolicyConfig

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "learning"))
    games = importlib.import_module("games")
    net = games.lines({}, PolicyConfig(mlp=(32,)))
    seen = [next(iter(games.ConnectFour(opening=35).reset(seed=seed)[0].values())) for seed in range(300)]
    boards = np.stack([one["observation"] for one in seen])
    x = torch.from_numpy(boards).float()
    worth = np.zeros((4, 4, 4, 4, 4, 4, 16), np.float32)  # direction, the squares of the line from the last to the first, place
    for place in range(4):
        for side in (1, 2):
            content = [3 if 3 - k == place else side for k in range(4)]
            worth[(slice(None), *content, place, side)] = 1  # three of a side, and a piece lands in the fourth square
    net.column = torch.nn.Identity()
    found = net.columns(net.contents(x, x.sum(-1)), x.sum((1, 3)).long(), torch.from_numpy(worth).view(1024, 64)).view(300, 7, -1)
    expected = np.array([
        [[bool(mask[c]) and games.has_four(games.drop(board > 0, c, s)[..., s]) for s in (0, 1)] for c in range(7)]
        for board, mask in ((one["observation"], one["action_mask"]) for one in seen)
    ])  # fmt: skip
    assert np.array_equal(found[..., 1:3].numpy() > 0, expected)
    assert expected.any((0, 1)).all()
    assert not expected.all(1).any()


def test_the_ratio_of_two_rates_has_an_interval(load: Load) -> None:
    ratio = load("populations").ratio
    assert ratio([90.0], [100.0]) == (pytest.approx(0.9), None)
    mean, (low, high) = ratio([90.0, 50.0, 220.0], [100.0, 50.0, 200.0])
    assert mean == pytest.approx(0.99 ** (1 / 3))
    spread = 4.303 * np.std(np.log([0.9, 1.0, 1.1]), ddof=1) / np.sqrt(3)
    assert (low, high) == (pytest.approx(mean * np.exp(-spread)), pytest.approx(mean * np.exp(spread)))


def test_the_pages_print_what_the_result_files_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "learning"))
    table = importlib.import_module("table")
    for page, name, make in table.BLOCKS:
        assert table.in_page(page, name) == make(), "python benchmarks/learning/table.py --write"


def test_time_to_pong_counts_to_the_first_line_at_the_goal_and_shows_who_did_not_get_there(load: Load) -> None:
    pong = load("learning.time_to_pong")
    key = "charts/episodic_return_100"
    rows = [{"time": 1000.0 + 60 * i, "global_step": 1e5 * i, **({key: 2.0 * i} if i else {})} for i in range(12)]
    curve = pong.curve_of(rows, began=940.0)
    assert curve[0] == (2.0, 1e5, 2.0)
    assert pong.reached(curve) == (10.0, 9e5)
    assert pong.reached(curve[:8]) is None
    seed = {"seed": 0, "minutes": 10.0, "steps": 900_000, "limit_minutes": 40.0, "best": 22.0, "steps_per_second": 1666.7,
            "load_before": 0.1, "processor": 0.97, "evaluation": {"mean": 18.04, "ci95": [17.0, 19.26]}}  # fmt: skip
    late = {**seed, "seed": 1, "minutes": None, "steps": None, "best": -6.04, "curve": [[1.0, 2e5, -20.0], [39.9, 7.99e6, -6.1]]}
    entry = pong.entry_of([seed, late], {"learning.batch_size": "2048"}, {"git": {"commit": "0123456789"}}, "2026-11-22")
    row = pong.table([entry]).splitlines()[-1]
    assert row == (
        "| 2026-11-22 | 0123456 | learning.batch_size 2048 | 0: 10.0, 0.90; 1: not in 39.9, 7.99; -6.0 at best "
        "| 18.0 (17.0 to 19.3); 18.0 (17.0 to 19.3) | 1,667, 1,667 | 0.1, 97%; 0.1, 97% |"
    )


def test_the_readme_names_every_script_and_every_result_file_once() -> None:
    folder = ROOT / "benchmarks"
    rows = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("| `")]
    scripts = [line.split("`")[1] for line in rows]
    assert sorted(scripts) == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py"))
    results = [name for line in rows for name in line.split("|")[-2].split("`")[1::2] if name.endswith(".json")]
    kept = {str(path.relative_to(folder)) for path in RESULTS} | {"results/gpu_suite.json"}
    assert sorted(results) == sorted(kept)
    for script, line in zip(scripts, rows, strict=True):
        commands = [part for part in line.split("`") if part.startswith("python ")]
        assert all(command.startswith(f"python benchmarks/{script}") for command in commands)

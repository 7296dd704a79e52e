"""Populations in matches, with past versions, stopped in the middle: in the serial placement they go on bit for bit."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from test_serial import assert_same

import headrace
from headrace.config import Config
from headrace.envs.core.imports import import_files
from headrace.make_config import make_config
from headrace.population import records
from headrace.runs import checkpoint

pytestmark = pytest.mark.process

WORLD = str(Path(__file__).parents[1] / "evaluation" / "higher_wins.py")
EVERYTHING = (
    "model", "optimizer", "progress", "generator", "learner", "returns", "random", "experience", "member", "ended", "past",
)  # fmt: skip
"""What a checkpoint says, but for the number of the moment and the sampler, which only one policy's has."""


def matches(folder: Path, **settings: Any) -> Config:
    """Policies that play each other, their past versions and a random player."""
    import_files([WORLD])
    fixed = {
        "run.folder": str(folder), "run.dashboard": False, "run.video": False, "run.log_interval": 1000.0,
        "learning.device": "cpu", "sampling.placement": "serial", "sampling.num_workers": 2, "sampling.envs_per_worker": 4,
        "sampling.num_groups": 2, "sampling.rollout": 4, "policy.mlp": [8], "learning.batch_size": 32,
        "learning.total_steps": 400, "learning.algorithm": "ppo", "learning.learning_rate": 0.01, "learning.num_minibatches": 1,
        "learning.num_epochs": 1, "learning.num_threads": 1, "population.size": 2, "matches.matchmaker": "league",
        "matches.opponents": ["random"], "matches.save_steps": 60, "matches.window": 3, "matches.swap_steps": 40,
        "matches.team_change": 90,
    }  # fmt: skip
    return make_config("higher-wins", imports=[WORLD], **{**fixed, **settings})


class Killed(Exception):
    pass


def train_until_killed(config: Config, saves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train; the run is killed instead of writing its checkpoint number `saves` + 1."""
    save, saved = checkpoint.save, []

    def save_until_killed(folder: Path, step: int, *arguments: Any, **more: Any) -> Path:
        if len(saved) == saves:
            raise Killed
        saved.append(step)
        return save(folder, step, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save_until_killed)
        with pytest.raises(Killed):
            headrace.train(config)


def states(folder: Path, P: int) -> list[dict[str, Any]]:
    """Everything that the newest checkpoint of each policy says."""
    found = [checkpoint.load_newest(folder / f"policy-{p}" / "checkpoints") for p in range(P)]
    unpacked = [one.unpack() for one in found if one is not None]
    assert len(unpacked) == P
    return [{name: state[name] for name in EVERYTHING} for state in unpacked]


PBT = {"pbt.rule": "paper", "pbt.objective": "win_rate", "pbt.period": 60, "pbt.mutation_rate": 0.5, "pbt.gap": 0.0}
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "league": ({}, 9),
    "self-play": ({"matches.matchmaker": "self-play", "matches.opponent_share": 0.2}, 9),
    "league-and-pbt": (PBT, 9),
    "one-has-ended": ({"population.overrides": {"1": {"learning.total_steps": 100}}}, 14),
    "the-first-has-ended": ({"population.overrides": {"0": {"learning.total_steps": 100}}}, 14),
}
SLOW = ("league", "self-play", "one-has-ended")
"""Settings, and the number of checkpoints before the kill, by which not all policies have been saved equally often."""


@pytest.mark.parametrize("case", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
def test_a_population_in_matches_goes_on_bit_for_bit(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, saves = CASES[case]
    headrace.train(matches(tmp_path / "whole", **settings))
    P = settings.get("population.size", 2)
    train_until_killed(matches(tmp_path / "parts", **settings, **{"run.milestone_steps": 40}), saves, monkeypatch)
    newest = [max(checkpoint.moments(tmp_path / "parts" / f"policy-{p}" / "checkpoints").values()) for p in range(P)]
    assert len({moment for moment, _ in newest}) > 1, "killed between two moments: the test shows nothing"
    assert [p for p, (_, ended) in enumerate(newest) if ended] == [int(p) for p in settings.get("population.overrides", ())]
    headrace.train(matches(tmp_path / "parts", **settings))
    log = (tmp_path / "parts" / "log.txt").read_text()
    assert "begin anew" not in log
    assert log.count("Going on from") == P
    whole = states(tmp_path / "whole", P)
    assert_same(whole, states(tmp_path / "parts", P))
    standings = [json.loads((tmp_path / name / "standings.json").read_text()) for name in ("whole", "parts")]
    assert standings[0] == standings[1]
    assert any(state["past"]["copies"] for state in whole), "no past versions: the test shows nothing"
    assert all(sum(games) > 20 for games in standings[0]["games"][:P])
    if "pbt.rule" in settings:
        lines = [sorted(json.dumps(line) for line in records.read_decisions(tmp_path / name)) for name in ("whole", "parts")]
        assert lines[0] == lines[1]
        assert any(line["donor"] is not None for line in records.read_decisions(tmp_path / "whole")), "nobody was replaced"


def test_decisions_that_were_not_written_down_in_time_are_written_later(tmp_path: Path) -> None:
    """The learner had reported them, and saved a checkpoint; the process that writes them was killed before it read them."""
    config = {**PBT, "matches.matchmaker": "uniform", "matches.opponents": [], "pbt.mutation_rate": 1.0}
    headrace.train(matches(tmp_path, **config, **{"learning.total_steps": 260}))
    lines = records.read_decisions(tmp_path)
    for p in (0, 1):
        assert len([line for line in lines if line["policy"] == p]) >= 2
    whole = "".join(json.dumps(line) + "\n" for line in lines[:-3])
    (tmp_path / records.DECISIONS).write_text(whole + json.dumps(lines[-3])[:40])
    headrace.train(matches(tmp_path, **config, **{"learning.total_steps": 400}))
    after = records.read_decisions(tmp_path)
    assert sorted(map(json.dumps, lines)) == sorted(map(json.dumps, after[: len(lines)]))
    for p in (0, 1):
        own = [line for line in after if line["policy"] == p]
        assert [line["decision"] for line in own] == sorted({line["decision"] for line in own})
        assert all(one["values"] == other["before"] for one, other in pairwise(own))
    log = (tmp_path / "log.txt").read_text()
    for number, line in enumerate(lines):
        if text := records.sentence(line):
            assert log.count(f"{text}\n") == (1 if number < len(lines) - 3 else 2)

"""Agents of one match that observe and do different things, through the real engine: each policy has the spaces of its agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from test_serial import assert_same

import headrace
from headrace.cli import main
from headrace.config import Config, ConfigError
from headrace.envs.core.contract import MASK_KEY
from headrace.envs.core.description import spec_from_json, spec_to_json
from headrace.envs.core.registry import register_parallel
from headrace.envs.make import describe
from headrace.make_config import make_config
from headrace.runs import checkpoint
from headrace.runs.metrics import read_jsonl

pytestmark = pytest.mark.process

THIS = str(Path(__file__).resolve())
OBSERVATIONS = {
    "chooser": spaces.Dict({"numbers": spaces.Box(0, 1, (3,), np.float32), "action_mask": spaces.MultiBinary(4)}),
    "mover": spaces.Box(-1, 1, (5,), np.float32),
}
ACTIONS = {"chooser": spaces.Discrete(4), "mover": spaces.Box(-1, 1, (2,), np.float32)}


class Different:
    """The chooser must never take choice 3; the mover moves every other step. Matches of 6 steps."""

    metadata = {"render_fps": 5}  # noqa: RUF012

    def __init__(self) -> None:
        self.possible_agents, self.agents = ["chooser", "mover"], []

    def observation_space(self, agent: str) -> Any:
        return OBSERVATIONS[agent]

    def action_space(self, agent: str) -> Any:
        return ACTIONS[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self._random = np.random.default_rng(seed)
        self.agents, self._t = list(self.possible_agents), 0
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        for agent, action in actions.items():
            assert ACTIONS[agent].contains(action), f"{agent}: {action!r}"
        assert ("mover" in actions) == (self._t % 2 == 0)
        assert actions["chooser"] != 3
        self._t += 1
        over = self._t == 6
        rewards = {"chooser": float(actions["chooser"] == 2), "mover": float(actions.get("mover", [0.0])[0])}
        seen = self._seen(over)
        ends = dict.fromkeys(self.possible_agents, over)
        if over:
            self.agents = []
        return seen, rewards, ends, dict.fromkeys(self.possible_agents, False), {}

    def _seen(self, over: bool = False) -> dict[str, Any]:
        numbers = self._random.random(5).astype(np.float32)
        seen: dict[str, Any] = {"chooser": {"numbers": numbers[:3], "action_mask": np.array([1, 1, 1, 0], np.int8)}}
        return seen | ({"mover": numbers} if self._t % 2 == 0 or over else {})

    def render(self) -> np.ndarray:
        return np.full((32, 32, 3), 30 * self._t, np.uint8)

    def close(self) -> None:
        pass


register_parallel("different", agents=2)(lambda options, render_mode=None: Different())


def config_of(folder: Path, **settings: Any) -> Config:
    fixed = {
        "run.folder": str(folder), "run.dashboard": False, "run.video": False, "run.log_interval": 0.0, "policy.mlp": [8],
        "policy.core": "gru", "policy.core_size": 4, "learning.device": "cpu", "sampling.num_workers": 1,
        "sampling.envs_per_worker": 4, "sampling.rollout": 5, "learning.batch_size": 40, "learning.total_steps": 600,
        "learning.algorithm": "ppo", "learning.num_minibatches": 1, "population.size": 2, "sampling.placement": "serial",
        "learning.num_threads": 1,
    }  # fmt: skip
    return make_config("different", imports=[THIS], **{**fixed, **settings})


def test_the_specification_has_every_agents_spaces() -> None:
    spec = describe("different", config_of(Path()).envs)
    assert spec_from_json(spec_to_json(spec)) == spec
    chooser, mover = spec.of_agents
    assert set(chooser.observation) == {"numbers", MASK_KEY}
    assert (chooser.action.width, mover.action.width) == (1, 2)
    assert mover.observation["obs"].shape == (5,)
    assert [spec.fits(p, a) for p in range(3) for a in range(2)] == [True, False, False, True, True, False]


@pytest.mark.parametrize(
    ("placement", "settings"),
    [
        ("serial", {}), ("served", {}), pytest.param("inline", {}, marks=pytest.mark.slow),
        ("serial", {"population.size": 4, "matches.matchmaker": "uniform", "sampling.envs_per_worker": 8}),
    ],
    ids=["serial", "served", "inline", "uniform"],
)  # fmt: skip
def test_each_agent_is_acted_for_by_a_policy_of_its_spaces(tmp_path: Path, placement: str, settings: dict[str, Any]) -> None:
    config = config_of(tmp_path, **{"sampling.placement": placement, **settings})
    headrace.train(config)
    for p in range(config.population.size):
        policy = headrace.load_policy(tmp_path, policy=p)
        assert policy.spec.action.width == 1 + p % 2
        rows = read_jsonl(tmp_path / f"policy-{p}" / "metrics.jsonl")
        assert rows[-1]["global_step"] >= 600
        lengths = {row["charts/episodic_length"] for row in rows if "charts/episodic_length" in row}
        assert lengths == {6.0 if p % 2 == 0 else 3.0}, "episodes of the other agent"


class Killed(Exception):
    """The run ends here."""


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches are played again by their actions, some of which are whole numbers."""

    def run(name: str) -> None:
        headrace.train(config_of(tmp_path / name, **{"run.milestone_steps": 60, "learning.total_steps": 300}))

    def states(name: str) -> list[dict[str, Any]]:
        found = [checkpoint.load_newest(tmp_path / name / f"policy-{p}" / "checkpoints") for p in (0, 1)]
        parts = ("model", "optimizer", "progress", "returns", "past")
        return [{part: one.unpack()[part] for part in parts} for one in found if one is not None]

    run("straight")
    save, saved = checkpoint.save, []

    def save_until_killed(*args: Any, **kwargs: Any) -> Path:
        if len(saved) == 2 * 2 + 1:
            raise Killed
        saved.append(args)
        return save(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save", save_until_killed)
    with pytest.raises(Killed):
        run("killed")
    monkeypatch.setattr(checkpoint, "save", save)
    run("killed")
    log = (tmp_path / "killed" / "log.txt").read_text()
    assert log.count("Going on from") == 2
    assert "Episodes begin anew" not in log
    assert_same({"policies": states("straight")}, {"policies": states("killed")})


def test_eval_and_watch_have_the_whole_team(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    headrace.train(config_of(tmp_path / "run"))
    for policy, length in ((0, 6), (1, 3)):
        result = headrace.evaluate(run, 7, number=policy, imports=[THIS])
        assert result.lengths == [length] * 7
    policy = headrace.load_policy(run, imports=[THIS])
    mover = policy.team[1].generator.get_state()
    headrace.evaluate(policy, 7, seed=3)
    assert mover.equal(policy.team[1].generator.get_state()), "the same games would not be played again"
    policy.team += [headrace.load_policy(run, policy=1, imports=[THIS])]
    with policy.seeded(3):
        assert len({player.generator.initial_seed() for player in policy.team}) == 3, "they would draw the same numbers"
    assert main(["play", run, "--import", THIS]) == 2
    assert "have different spaces, so no player can take every place" in capsys.readouterr().err
    pytest.importorskip("imageio_ffmpeg")
    assert main(["watch", run, "--policy", "1", "--video", str(tmp_path / "v.mp4"), "--import", THIS]) == 0
    assert "outcomes chooser" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"population.size": 1}, r"policy 0 cannot act for mover, too; use --population\.size 2"),
        ({"population.size": 1, "matches.matchmaker": "uniform"}, "there is no policy for mover"),
        ({"matches.matchmaker": "self-play"}, "no policy can play against itself"),
        ({"matches.matchmaker": "league"}, "no policy can play against itself"),
        ({"matches.opponents": ("random",)}, r"matches\.opponents"),
        ({"pbt.rule": "paper"}, r"pbt\.rule paper"),
        ({"run.eval_interval_steps": 100}, r"run\.eval_interval_steps"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"agents of different have different spaces.*{reason}|{reason}.*different spaces"):
        headrace.train(config_of(tmp_path, **settings))

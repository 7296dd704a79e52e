"""`envs.info_metrics`: numbers of an environment's last info, from there to the metrics, the callbacks and an evaluation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import headrace
from headrace.cli import main
from headrace.cli.flags import parse_config
from headrace.envs.core import registry


class Walk(gymnasium.Env[Any, Any]):
    """Ten steps; the reward is the action. The last info has the sum of the rewards, and whether it is above 5."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.right, self.steps = 0, 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.right, self.steps = self.right + int(action), self.steps + 1
        info = {"right": self.right, "won": self.right > 5} if self.steps == 10 else {}
        return np.zeros(2, np.float32), float(action), self.steps == 10, False, info


class Both:
    """Two agents in a `Walk` each (PettingZoo's ParallelEnv interface)."""

    possible_agents = ("left", "right")

    def __init__(self) -> None:
        self.agents, self.worlds = list(self.possible_agents), {name: Walk() for name in self.possible_agents}

    def observation_space(self, agent: str) -> Any:
        return Walk.observation_space

    def action_space(self, agent: str) -> Any:
        return Walk.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        firsts = {name: world.reset(seed=seed) for name, world in self.worlds.items()}
        return {name: first[0] for name, first in firsts.items()}, {name: {} for name in firsts}

    def step(self, actions: dict[str, Any]) -> Any:
        stepped = {name: self.worlds[name].step(action) for name, action in actions.items()}
        parts: list[dict[str, Any]] = [{name: one[k] for name, one in stepped.items()} for k in range(5)]
        if all(parts[2].values()):
            self.agents = []
        return tuple(parts)

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    register = headrace.envs.register
    register("test/walk")(lambda: Walk())
    for mode in AutoresetMode:
        registry.register_vector(f"test/walks-{mode.name.lower()}")(
            lambda options, num_envs, mode=mode: SyncVectorEnv([Walk] * num_envs, autoreset_mode=mode)
        )
    registry.register_parallel("test/both", agents=2)(lambda: Both())


def settings(folder: Path, placement: str) -> dict[str, Any]:
    return {
        "run.folder": str(folder), "run.dashboard": False, "run.video": False, "learning.device": "cpu",
        "learning.num_threads": 1, "sampling.placement": placement, "sampling.num_workers": 1, "sampling.num_groups": 1,
        "sampling.envs_per_worker": 4,
        "sampling.rollout": 16, "learning.batch_size": 64, "run.log_interval": 0.0, "learning.total_steps": 640,
        "envs.info_metrics": ("right", "won"),
    }  # fmt: skip


def check(folder: Path, episodes: list[dict[str, Any]]) -> None:
    """Every number is what the environment said, which the episode's return says too."""
    assert episodes
    for episode in episodes:
        assert episode["right"] == episode["return"]
        assert episode["won"] == (episode["return"] > 5)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    ended = [line for line in lines if "charts/episodic_return" in line]
    assert ended
    for line in ended:
        assert line["episode/right"] == pytest.approx(line["charts/episodic_return"])
        assert 0 <= line["episode/won"] <= 1


@pytest.mark.parametrize("placement", ["serial", "device"])
@pytest.mark.parametrize("env", ["walk", "walks-next_step", "walks-same_step", "walks-disabled"])
def test_they_are_metrics_and_callbacks_and_the_evaluation_have_them(tmp_path: Path, env: str, placement: str) -> None:
    episodes: list[dict[str, Any]] = []
    config = headrace.make_config(f"test/{env}", "appo", **settings(tmp_path / "run", placement))
    headrace.train(config, on_episode=episodes.append)
    check(tmp_path / "run", episodes)
    result = headrace.evaluate(tmp_path / "run", episodes=5)
    assert result.infos == pytest.approx({"right": result.mean, "won": np.mean(np.array(result.returns) > 5)})
    assert result.metrics["eval/episode/right"] == result.infos["right"]
    assert f"right {result.mean:.4g}" in str(result)


def test_every_agent_of_a_match_has_its_own(tmp_path: Path) -> None:
    episodes: list[dict[str, Any]] = []
    headrace.train(headrace.make_config("test/both", "appo", **settings(tmp_path / "run", "serial")), on_episode=episodes.append)
    check(tmp_path / "run", episodes)
    result = headrace.evaluate(tmp_path / "run", episodes=4)
    assert result.infos["right"] == pytest.approx(result.mean)


NOT_THERE = r"envs.info_metrics rigth: the info of an episode's last step has no such key, only \['.*right', 'won'\]"


@pytest.mark.parametrize("env", ["walk", "walks-next_step", "walks-same_step"])
def test_a_key_that_is_not_there_is_named(tmp_path: Path, env: str) -> None:
    own = settings(tmp_path / "run", "serial") | {"envs.info_metrics": ("rigth",)}
    with pytest.raises(headrace.envs.EnvironmentFault, match=NOT_THERE):
        headrace.train(headrace.make_config(f"test/{env}", "appo", **own))


class Wordy(Walk):
    def step(self, action: Any) -> Any:
        *stepped, info = super().step(action)
        return *stepped, info and info | {"right": "many"}


def test_a_key_of_something_else_than_a_number_is_named(tmp_path: Path) -> None:
    headrace.envs.register("test/wordy")(lambda: Wordy())
    registry.register_vector("test/wordies")(lambda options, num_envs: SyncVectorEnv([Wordy] * num_envs))
    for env, shown in (("wordy", "'many'"), ("wordies", "array")):
        with pytest.raises(headrace.envs.EnvironmentFault, match=f"envs.info_metrics right: .* has {shown}.* is no number"):
            headrace.train(headrace.make_config(f"test/{env}", "appo", **settings(tmp_path / env, "serial")))


class Sometimes(Walk):
    """What it says of every other episode is not known."""

    episodes = 0

    def step(self, action: Any) -> Any:
        *stepped, info = super().step(action)
        if info:
            self.episodes += 1
            info = {"right": info["right"] if self.episodes % 2 else np.nan, "won": np.nan}
        return *stepped, info


def test_numbers_that_are_not_known_are_not_counted(tmp_path: Path) -> None:
    headrace.envs.register("test/sometimes")(lambda: Sometimes())
    own = settings(tmp_path / "run", "serial") | {"run.log_interval": 1e9}  # one report
    episodes: list[dict[str, Any]] = []
    headrace.train(headrace.make_config("test/sometimes", "appo", **own), on_episode=episodes.append)
    known = [episode["return"] for episode in episodes if not np.isnan(episode["right"])]
    assert 0 < len(known) < len(episodes)
    (line,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert line["episode/right"] == pytest.approx(np.mean(known))
    assert "episode/won" not in line
    result = headrace.evaluate(tmp_path / "run", episodes=4, num_envs=1)
    assert result.infos["right"] == pytest.approx(np.mean(result.returns[::2]))
    assert np.isnan(result.infos["won"])
    assert result.to_dict()["infos"]["won"] is None


WORLD = """
import sys
sys.path.insert(0, {folder!r})
import headrace
from test_info_metrics import Walk
headrace.envs.register("file/walk")(lambda: Walk())
"""


@pytest.mark.process
@pytest.mark.parametrize("algorithm", ["impala", "dqn"])
def test_they_are_there_where_processes_sample(tmp_path: Path, algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "world.py").write_text(WORLD.format(folder=str(Path(__file__).parent)))
    folder = tmp_path / "run"
    flags = ["--info-metrics", "right", "won", "--algorithm", algorithm, "--total-steps", "3000", "--placement", "inline"]
    flags += ["--import", str(tmp_path / "world.py"), "--no-dashboard", "--run.folder", str(folder)]
    flags += ["--replay.minimum", "500"] if algorithm == "dqn" else []
    assert main(["train", "--env", "file/walk", *flags]) == 0
    ended = [line for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if "episode/right" in line]
    assert ended
    assert all(line["episode/right"] == pytest.approx(line["charts/episodic_return"]) for line in ended)
    capsys.readouterr()
    assert main(["eval", str(folder), "--episodes", "4", "--json", "--import", str(tmp_path / "world.py")]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["infos"]["right"] == pytest.approx(evaluated["mean"])


@pytest.mark.process
def test_a_key_that_is_not_there_ends_the_run_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "world.py").write_text(WORLD.format(folder=str(Path(__file__).parent)))
    flags = ["--info-metrics", "rigth", "--import", str(tmp_path / "world.py"), "--run.folder", str(tmp_path / "run")]
    assert main(["train", "--env", "file/walk", "--placement", "inline", "--no-dashboard", *flags]) == 1
    told = "".join(capsys.readouterr())
    assert re.search(NOT_THERE, told)
    assert "a new one starts" not in told
    assert "Traceback" not in told


def test_none_is_no_key() -> None:
    for flags in (["--info-metrics", "None"], ["--envs.info-metrics=None"], ["--info-metrics"]):
        assert parse_config(["gym/CartPole-v1", *flags]).envs.info_metrics == ()

"""Episodes and matches that have no end: they are cut off where the user says so, and nobody waits for them without a word."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import supervised
from tiny_runs import trained

import headrace
from headrace import cli
from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.imports import import_files
from headrace.envs.core.registry import register_parallel
from headrace.evaluation import background, hang_warnings
from headrace.evaluation.background import BackgroundEvaluation
from headrace.evaluation.evaluate import evaluate
from headrace.evaluation.hang_warnings import EndlessEpisodes
from headrace.evaluation.matches import play
from headrace.make_config import make_config

WORLD = str(Path(__file__).with_name("higher_wins.py"))
NAMED = r"environment \d is at step \d+.*: --max-episode-steps of headrace eval and play"


class Endless(gymnasium.Env[np.ndarray, int]):
    """Every step pays 1, and there is always another one."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 1.0, False, False, {}


class EndlessMatch:
    """Two agents; every step pays the first one 1."""

    possible_agents = ("one", "other")

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(0, 2, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents = list(self.possible_agents)
        return self._seen(), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        return self._seen(), {"one": 1.0, "other": 0.0}, dict.fromkeys(actions, False), dict.fromkeys(actions, False), {}

    def _seen(self) -> dict[str, np.ndarray]:
        return {agent: np.zeros(2, np.float32) for agent in self.agents}

    def close(self) -> None:
        pass


headrace.envs.register("test/endless")(lambda options, render_mode=None: Endless())
for name, limit in (("test/9", 9), ("test/none", None)):
    samples = {"envs.max_episode_steps": limit, "envs.task_share": "samples"}
    headrace.envs.register(name, defaults=samples)(lambda options, render_mode=None: Endless())
register_parallel("endless-match", agents=2)(lambda options, render_mode=None: EndlessMatch())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return trained("test/endless", tmp_path_factory.mktemp("run") / "r")


def test_warnings_come_ever_more_rarely_until_an_episode_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(hang_warnings, "perf_counter", lambda: now)
    look, warned = EndlessEpisodes("match", 10).look, []
    for second in range(1, 1000):
        now = float(second)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            look(int(second >= 300), lambda: {0: 5, 1: 20, 2: 9000, 3: 7, 4: 6})
        warned += [(second, str(warning.message)) for warning in caught]
    assert [second for second, _ in warned] == [60, 120, 240, 360, 420, 540, 780]
    assert "no match has ended for 120 s, 0 of 10 so far: environment 2 is at step 9,000, environment 1 is" in warned[1][1]
    assert "environment 3 is at step 7, 2 more play. What has no end" in warned[1][1]
    assert "no match has ended for 60 s, 1 of 10 so far" in warned[3][1]


def test_games_are_cut_off_at_the_limit(run: str) -> None:
    result = evaluate(run, 5, num_envs=2, max_episode_steps=7)
    assert result.lengths == [7] * 5
    assert result.returns == [7.0] * 5
    assert result.at_limit == 5
    assert ", 5 at the limit of 7 steps, step 16" in str(result)
    with pytest.raises(ConfigError, match=r"max_episode_steps"):
        evaluate(run, 5, max_episode_steps=0)


def test_the_limit_is_that_of_every_task(tmp_path: Path) -> None:
    run = trained("test/9,test/none", tmp_path / "run")
    assert evaluate(run, 4, max_episode_steps=7).lengths == [7] * 4
    assert evaluate(run, 4, max_episode_steps=11).lengths == [11] * 4


@pytest.mark.process
def test_the_commands_take_the_limit(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", run, "--episodes", "3", "--max-episode-steps", "6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lengths"] == [6] * 3
    assert cli.main(["eval", run, "--max-episode-steps", "0"]) == 2
    assert "max_episode_steps is 0; it must be at least 1" in capsys.readouterr().err
    matches = trained("endless-match", tmp_path / "m")
    capsys.readouterr()
    assert cli.main(["play", matches, "--matches", "4", "--num-envs", "1", "--max-episode-steps", "5", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert results["lengths"] == [5] * 4
    assert (results["wins"], results["losses"], results["at_limit"]) == (2, 2, 4), "the first agent is ahead"
    assert evaluate(matches, 4, num_envs=2, max_episode_steps=5).lengths == [5] * 4


def test_what_is_waited_for_is_named(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_warnings, "QUIET", 0.0)
    with pytest.warns(UserWarning, match=rf"no episode has ended for 0 s, 0 of 3 so far: {NAMED}"):
        evaluate(run, 3, max_episode_steps=9)
    import_files([WORLD])
    for env in ("endless-match", "higher-wins"):
        with pytest.warns(UserWarning, match=rf"no match has ended for 0 s, 0 of 3 so far: {NAMED}"):
            result = play(lambda o, g: 0, lambda o, g: 0, env, EnvConfig(max_episode_steps=9), 3)
    assert result.at_limit == 0
    assert "at the limit" not in str(result)


def test_an_evaluation_beside_training_is_heard_of(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the child sends while it plays."""
    sent: list[Any] = []
    monkeypatch.setattr(hang_warnings, "QUIET", 0.0)
    for name in ("os.nice", "torch.set_num_threads"):  # what a process of its own does to itself
        monkeypatch.setattr(name, lambda number: None)
    real = background.evaluate
    monkeypatch.setattr(background, "evaluate", lambda *a, **k: real(*a, **k, max_episode_steps=9))
    pipe = type("Pipe", (), {"send": lambda self, report: sent.append(report)})()
    background._evaluate(pipe, run, "newest", 2, 0, (), 0)
    *notices, report = sent
    assert report.kind == "eval"
    assert {(notice.kind, notice.policy) for notice in notices} == {("message", 0)}
    assert notices[0].content.startswith("Evaluation of newest: no episode has ended for 0 s, 0 of 2 so far: environment ")


def test_a_notice_is_not_the_end_of_an_evaluation(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_evaluate", supervised.say_and_report)
    settings = {"run.folder": run, "run.eval_interval_steps": 1, "learning.device": "cpu"}
    evaluations = BackgroundEvaluation(make_config("test/endless", **settings))
    try:
        evaluations.started(0)
        evaluations.saved(16)
        assert [(report.kind, report.content) for report in evaluations.messages(60)] == [("message", "no episode has ended")]
        assert evaluations._child is not None
        assert [report.kind for report in evaluations.messages(60)] == ["eval"]
        assert evaluations._child is None
    finally:
        evaluations.close()

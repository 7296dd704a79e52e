"""Matches between two players, and what `headrace play`, `eval` and `watch` make of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import higher_wins
import numpy as np
import pytest
from tiny_runs import trained

import headrace
from headrace import cli
from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.core.imports import import_files
from headrace.envs.core.registry import register_parallel
from headrace.envs.make import describe, make_parallel
from headrace.evaluation.evaluate import evaluate
from headrace.evaluation.matches import play
from headrace.evaluation.policy import load_policy
from headrace.make_config import make_config
from headrace.population.matchmaking import load_player

pytestmark = pytest.mark.process

WORLD = str(Path(__file__).with_name("higher_wins.py"))


@pytest.fixture(autouse=True)
def _world() -> None:
    import_files([WORLD])


@pytest.mark.parametrize("num_envs", [1, 3, 16])
def test_the_first_player_takes_every_place(num_envs: int) -> None:
    spec = describe("higher-wins", EnvConfig())
    one, other = load_player("two", spec), load_player("one-or-two", spec)
    results = play(one, other, "higher-wins", EnvConfig(), 9, num_envs=num_envs)
    # As the first agent it meets the highest, a tie; as the second the lowest, and wins.
    assert results.losses == 0
    assert abs(results.wins - results.ties) <= 3
    assert results.lengths == [2] * 9


def test_results_are_those_of_the_first_player() -> None:
    spec = describe("higher-wins", EnvConfig())
    two, low = load_player("two", spec), lambda observation, generator: 0
    won, lost = (play(a, b, "higher-wins", EnvConfig(), 10) for a, b in ((two, low), (low, two)))
    assert (won.wins, won.losses, won.ties, won.score) == (10, 0, 0, 1.0)
    assert (lost.wins, lost.losses, lost.ties, lost.score) == (0, 10, 0, 0.0)
    assert "10 wins, 0 losses, 0 ties: win rate 1.000 (95 % CI 0.722 to 1.000)" in str(won)
    assert won.distinct == 2, "nobody is random: one match for each place of the first player"
    assert str(won).endswith("2 distinct matches")
    assert play(load_player("random", spec), low, "higher-wins", EnvConfig(), 40).distinct > 2


def test_an_environment_of_one_agent_is_refused() -> None:
    with pytest.raises(ConfigError, match="one agent"):
        play(lambda o, g: 0, lambda o, g: 0, "gym/CartPole-v1", EnvConfig(), 1)
    with pytest.raises(ConfigError, match="alone has one agent, which plays against nobody"):
        play(lambda o, g: 0, lambda o, g: 0, "alone", EnvConfig(), 1)


def test_a_match_that_was_lost_with_its_game_process_is_no_tie() -> None:
    results = play(lambda o, g: 2, lambda o, g: 0, "higher-wins-at-times", EnvConfig(), 10, num_envs=2)
    assert (results.wins, results.losses, results.ties) == (10, 0, 0)


def test_matches_that_are_always_lost_end_with_a_message() -> None:
    words = r"higher-wins-lost, environment 1 .*, match 10, .*: 10 matches in a row were lost with a game process"
    with pytest.raises(EnvironmentFault, match=words):
        play(lambda o, g: 2, lambda o, g: 0, "higher-wins-lost", EnvConfig(), 10, num_envs=2)


def test_an_evaluation_counts_no_episodes_of_lost_matches(tmp_path: Path) -> None:
    run = {"run.folder": str(tmp_path), "run.dashboard": False, "run.video": False, "sampling.placement": "serial"}
    config = make_config("higher-wins", imports=[WORLD], **run, **{"learning.total_steps": 128, "learning.device": "cpu"})
    headrace.train(config)
    policy = load_policy(tmp_path, imports=[WORLD])
    policy.config.env = "higher-wins-at-times"
    returns = evaluate(policy, 12, num_envs=1).returns
    assert len(returns) == 12
    assert max(returns) < 100
    policy.config.env = "higher-wins-lost"
    with pytest.raises(EnvironmentFault, match="10 matches in a row were lost"):
        evaluate(policy, 40, num_envs=2)


def test_an_evaluation_does_not_favour_short_matches(tmp_path: Path) -> None:
    """It played twice as many as needed and took the episodes that ended first."""
    policy = load_policy(trained("higher-wins", tmp_path / "run"), imports=[WORLD])
    policy.config.env = "shorter-and-shorter"
    higher_wins.Shorter.made = 0
    assert evaluate(policy, 5, num_envs=5).lengths == [9, 9, 8, 8, 7]
    higher_wins.Shorter.made = 0
    assert evaluate(policy, 5, num_envs=2).lengths == [9, 9, 8, 8, 9]


class Numbered(higher_wins.HigherWins):
    """Its agents have numbers for names."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = [0, 1]  # type: ignore[list-item]

    def observation_space(self, agent: Any) -> Any:
        assert agent in (0, 1)
        return super().observation_space(agent)

    def step(self, actions: dict[Any, int]) -> tuple[Any, ...]:
        *results, _ = super().step(actions)
        return *results[:1], dict.fromkeys(actions, 0.0), *results[2:], {}


register_parallel("numbered", agents=2)(lambda options, render_mode=None: Numbered())


@pytest.mark.parametrize("env", ["higher-wins", "numbered"])
def test_a_policy_acts_in_a_match_that_somebody_else_steps(tmp_path: Path, env: str) -> None:
    policy = load_policy(trained(env, tmp_path / "run"), imports=[WORLD])
    match: Any = make_parallel(env, EnvConfig())
    seen, _ = match.reset(seed=1)
    while match.agents:
        seen, *_ = match.step({agent: policy.act(seen[agent]) for agent in match.agents})
    actions, _ = policy.predict(np.stack([*seen.values()]))
    assert actions.shape == (2,)
    assert policy.module() is not None
    with pytest.raises(ConfigError, match="no single environment to make"):
        policy.make_env()


def test_commands_on_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    train = ["train", "--import", WORLD, "--env", "higher-wins", "--run.folder", run, "--total-steps", "600", "--no-dashboard"]
    train += ["--placement", "serial", "--no-video", "--matches.matchmaker", "self-play", "--matches.save-steps", "150"]
    train += ["--matches.opponents", "two", "--matches.opponent-share", "0.3", "--learning.device", "cpu"]
    train += ["--matches.initial-elo", "1700"]
    assert cli.main(train) == 0
    standings = json.loads((tmp_path / "run" / "standings.json").read_text())
    assert {"policy 0", "two"} < set(standings["members"])
    assert all(1600 < rating < 1800 for rating in standings["elo"])
    capsys.readouterr()
    for against in ("random", "two", run):
        assert cli.main(["play", run, "--against", against, "--matches", "12", "--import", WORLD, "--json"]) == 0
        results = json.loads(capsys.readouterr().out)
        assert results["wins"] + results["losses"] + results["ties"] == 12
    assert cli.main(["play", run, "--against", "nobody", "--import", WORLD]) == 2
    assert "neither a run folder nor a scripted opponent" in capsys.readouterr().err
    assert cli.main(["eval", run, "--episodes", "10"]) == 0
    assert "10 episodes" in capsys.readouterr().out
    # an opponent of a later run is the policy of this one
    train[train.index(run)] = str(tmp_path / "second")
    train[train.index("two")] = run
    assert cli.main(train) == 0
    pytest.importorskip("imageio_ffmpeg")
    video = tmp_path / "match.mp4"
    assert cli.main(["play", run, "--against", "random", "--matches", "3", "--video", str(tmp_path / "play.mp4")]) == 0
    assert (tmp_path / "play.mp4").stat().st_size > 100
    assert re.search(r"\d wins, \d losses, \d ties: win rate .*\(95 % CI .*\n.*play\.mp4", capsys.readouterr().out)
    assert cli.main(["watch", run, "--video", str(video), "--episodes", "2"]) == 0
    assert video.stat().st_size > 100
    line = capsys.readouterr().out
    assert re.search(r"outcomes one -?[01]\.00, other -?[01]\.00; one -?[01]\.00, other -?[01]\.00", line)
    assert cli.main(["watch", run, "--video", str(video), "--episodes", "9", "--max-steps", "1"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("outcomes one 0.00, other 0.00")

"""Matches of several Doom players: lock-step, ends, new matches, and game processes that are killed, stopped or in the way."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vizdoom

from headrace.config import ConfigError, EnvConfig
from headrace.envs.vizdoom import family, game
from headrace.envs.vizdoom.match import Match, MatchFailed
from headrace.envs.vizdoom.shaping import PRESETS

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")


@contextmanager
def match(name: str = "multi_duel", frameskip: int = 4, max_episode_steps: int | None = None, **kwargs: Any) -> Iterator[Match]:
    kwargs = {"episode_timeout": 40, **kwargs}
    made = Match(name, EnvConfig(frameskip=frameskip, max_episode_steps=max_episode_steps, kwargs=kwargs))
    try:
        yield made
    finally:
        made.close()


def engine_pids(env: Match) -> list[int]:
    """Process ids of the engines; empty before the first reset and after a failure."""
    return [seat.engine.pid for seat in env._seats if seat.engine is not None]


def actions(env: Match, rng: np.random.Generator) -> dict[str, Any]:
    counts = [len(head.presses) for head in env.players[0].heads]
    chosen = [tuple(int(rng.integers(n)) for n in counts) for _ in env.agents]
    return {agent: choice[0] if len(choice) == 1 else choice for agent, choice in zip(env.agents, chosen, strict=True)}


def play(env: Match, rng: np.random.Generator) -> tuple[int, dict[str, dict[str, Any]]]:
    """A match to its end: the number of its steps, the last infos."""
    steps, infos = 0, {}
    while env.agents:
        _, _, _, _, infos = env.step(actions(env, rng))
        steps += 1
    return steps, infos


def test_players_are_in_step_and_see_the_same_game() -> None:
    rng = np.random.default_rng(0)
    with match() as env:
        assert env.possible_agents == ["player_0", "player_1"]
        for number in range(3):
            observations, _ = env.reset(seed=number)
            assert env.agents == env.possible_agents
            assert not np.array_equal(observations["player_0"]["obs"], observations["player_1"]["obs"])
            begun = [player.game.get_episode_time() for player in env.players]
            assert len(set(begun)) == 1
            for step in range(1, 11):
                agents = env.agents
                observations, rewards, terminations, truncations, infos = env.step(actions(env, rng))
                assert list(observations) == list(rewards) == list(terminations) == list(infos) == agents
                assert not any(terminations.values())
                assert set(truncations.values()) == {step == 10}
                assert [player.game.get_episode_time() for player in env.players] == [begun[0] + 4 * step] * 2
                for agent in agents:
                    assert env.observation_space(agent).contains(observations[agent])
                    assert np.isfinite(rewards[agent])
            assert env.agents == []
            assert set(infos["player_0"]) == {"frags", "deaths", "outcome", "true_objective"}
            assert all(info["true_objective"] == info["outcome"] == info["frags"] for info in infos.values())
            scores = [[player.value(f"PLAYER{i}_FRAGCOUNT") for i in (1, 2)] for player in env.players]
            assert scores[0] == scores[1] == [infos[agent]["frags"] for agent in env.possible_agents]
        with pytest.raises(RuntimeError, match="over"):
            env.step({})
        assert env.starts == 1
    assert engine_pids(env) == []


@pytest.mark.parametrize("name", ["multi_duel", "multi_deathmatch"])
def test_a_match_begins_with_everybody_alive(name: str) -> None:
    """In its first frame a player may appear in the place of another one, who dies, and a level's script sets the health."""
    with match(name, players=2, episode_timeout=4000) as env:
        heads = len(env.players[0].heads)
        still = 0 if heads == 1 else (0,) * heads
        for number in range(8):
            env.reset(seed=5 if number == 0 else None)
            deaths, healths = ([player.value(variable) for player in env.players] for variable in ("DEATHCOUNT", "HEALTH"))
            assert [player.value("DEAD") for player in env.players] == [0, 0]
            rewards = env.step(dict.fromkeys(env.agents, still))[1]
            assert all(reward > -0.01 for reward in rewards.values())
            assert healths == [player.value("HEALTH") for player in env.players]
            assert deaths == [player.value("DEATHCOUNT") for player in env.players]


def test_a_match_that_the_group_cuts_off_has_its_score() -> None:
    with match(max_episode_steps=2, episode_timeout=4000) as env:
        for _ in range(2):
            env.reset(seed=0)
            infos = [env.step({agent: env.action_space(agent).sample() for agent in env.agents})[-1] for _ in range(2)]
            assert infos[0] == {"player_0": {}, "player_1": {}}
            assert all(info["outcome"] == info["true_objective"] == info["frags"] for info in infos[1].values())


def test_more_players_with_bots() -> None:
    with match("multi_cig", players=3, bots=2) as env:
        env.reset(seed=0)
        play(env, np.random.default_rng(0))
        assert {player.value("PLAYER_COUNT") for player in env.players} == {5}


def test_a_killed_or_stopped_player_ends_its_match_only() -> None:
    rng = np.random.default_rng(0)
    with match() as other, match() as env:
        other.reset(seed=0)
        for how in (signal.SIGKILL, signal.SIGSTOP):
            env.reset(seed=0)
            env.step(actions(env, rng))
            engines = engine_pids(env)
            os.kill(engines[1], how)
            begun = time.monotonic()
            observations, rewards, _, truncations, infos = env.step(actions(env, rng))
            while env.agents and time.monotonic() < begun + 60:  # a step may be over before the signal arrives
                observations, rewards, _, truncations, infos = env.step(actions(env, rng))
            assert set(truncations.values()) == {True}
            assert set(rewards.values()) == {0.0}
            assert env.observation_space("player_0").contains(observations["player_0"])
            assert infos["player_1"]["restarted"]
            assert np.isnan(infos["player_1"]["outcome"]), "it would count as a draw"
            assert np.isnan(infos["player_1"]["true_objective"]), "it would count as a match without frags"
            assert engine_pids(env) == []
            assert not any(_exists(pid) for pid in engines)
            if not other.agents:
                other.reset()
            other.step(actions(other, rng))
            assert other.starts == 1
        env.reset()
        assert play(env, rng)[0] == 10
        assert env.starts == 3


def test_a_player_lost_between_matches() -> None:
    rng = np.random.default_rng(0)
    with match() as env:
        env.reset(seed=0)
        play(env, rng)
        os.kill(engine_pids(env)[0], signal.SIGKILL)
        env.reset()
        assert play(env, rng)[0] == 10
        assert env.starts == 2


def test_a_start_that_fails_is_repeated_on_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    together, ports = Match._together, []

    def fails_twice(self: Match, work: Any, timeout: float) -> None:
        if not self._running:
            ports.append(self.players[0].game.get_game_args())
            if len(ports) <= 2:
                raise MatchFailed("as if a port had been taken")
        together(self, work, timeout)

    monkeypatch.setattr(Match, "_together", fails_twice)
    with match() as env:
        env.reset(seed=0)
        assert len(set(ports)) == 3
        assert env.starts == 1
        assert play(env, np.random.default_rng(0))[0] == 10


def test_a_match_that_does_not_start_in_time_is_an_error_and_can_start_later() -> None:
    """The library reads unmapped memory when an engine ends before its first state, and its process would end with it."""
    with match(start_timeout=0.3) as env:
        begun = time.monotonic()
        with pytest.raises(MatchFailed):
            env.reset(seed=0)
        assert time.monotonic() - begun < 60
        assert env.starts == 0
        env.settings.start_timeout = 60.0
        env.reset(seed=0)
        assert play(env, np.random.default_rng(0))[0] == 10


def test_engines_that_end_while_they_start_are_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with match(start_timeout=1000.0) as env:
        with monkeypatch.context() as patch:
            patch.setattr(game, "ENGINE", "/bin/false")
            with pytest.raises(MatchFailed, match="player_0"):
                env.reset(seed=0)
        env.reset(seed=0)


def test_the_engines_folder_is_there_before_they_start() -> None:
    """Two engines that both find no folder `_vizdoom` both make it, one fails, and the library takes this process with it."""
    with match() as env:
        assert (game.guard(env.players[0].game).parent / "_vizdoom").is_dir()


def test_engines_have_the_library_that_yields() -> None:
    """Without it, engines that share a core keep each other from running (docs/vizdoom-results.md, what a match costs)."""
    with match() as env:
        env.reset(seed=0)
        for pid in engine_pids(env):
            assert str(game.preloaded_library()) in Path(f"/proc/{pid}/maps").read_text()


def test_they_have_it_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of libraries to preload is divided at spaces and colons."""
    library = tmp_path / "a folder: mine" / "doom_preload.so"
    library.parent.mkdir()
    shutil.copy(game.preloaded_library(), library)
    monkeypatch.setattr(game, "preloaded_library", lambda: library)
    monkeypatch.setattr(game, "_process_folder", cache(game._process_folder.__wrapped__))
    with match() as env:
        env.reset(seed=0)
        for pid in engine_pids(env):
            assert str(library) in Path(f"/proc/{pid}/maps").read_text()


def test_engines_write_to_the_terminal_only_where_they_are_asked_to(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with match() as env:
        env.reset(seed=0)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setenv("HEADRACE_VIZDOOM_LOG", str(tmp_path / "log"))
    with match() as env:
        env.reset(seed=0)
    assert "player_1" in (tmp_path / "log").read_text()
    assert capfd.readouterr() == ("", "")


def test_frames_of_a_step_and_a_level_by_its_path(tmp_path: Path) -> None:
    """The paper's Duel has 2 frames per step; its levels are not in the package."""
    shutil.copy(Path(vizdoom.scenarios_path) / "multi_duel.wad", tmp_path / "own.wad")
    (tmp_path / "own.cfg").write_text(
        "doom_scenario_path = own.wad\ndoom_map = map01\nepisode_timeout = 90\n"
        "available_buttons = { MOVE_FORWARD ATTACK TURN_LEFT_RIGHT_DELTA }\navailable_game_variables = { HEALTH FRAGCOUNT }\n"
    )
    rng = np.random.default_rng(0)
    with match(f"{tmp_path}/own.cfg", frameskip=2, players=2, buttons="full", variables="full") as env:
        assert [len(head.presses) for head in env.players[0].heads] == [3, 3, 2, 2, 2, 8, 21]
        observations, _ = env.reset(seed=0)
        assert observations["player_1"]["measurements"].shape == (24,)
        begun = env.players[0].game.get_episode_time()
        for step in range(1, 6):
            env.step(actions(env, rng))
            assert [player.game.get_episode_time() for player in env.players] == [begun + 2 * step] * 2
        assert play(env, rng)[0] == 15, "40 frames"


def test_every_player_has_its_own_weights_also_after_a_restart() -> None:
    """As population-based training gives them, policy by policy."""
    with match(shaping="self_play") as env:
        env.set_reward_weights({"player_1": {"frag": 3.0}})
        for starts in (1, 2):
            env.reset(seed=0)
            assert env.starts == starts
            weights = [player.shaping.weights for player in env.players if player.shaping is not None]
            assert weights == [PRESETS["self_play"], PRESETS["self_play"] | {"frag": 3.0}]
            os.kill(engine_pids(env)[0], signal.SIGKILL)
            env.step(actions(env, np.random.default_rng(0)))


def test_a_player_that_hangs_ends_its_match_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process runs, and gives no answer."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr("headrace.envs.vizdoom.match.CLOSE_TIMEOUT", 0.5)
    with match(step_timeout=1.0) as env:
        env.reset(seed=0)
        env.step(actions(env, rng))
        hung, answered = env.players[1].game, threading.Event()
        monkeypatch.setattr(env.players[1], "observe", lambda: answered.wait(60) and hung.get_state())
        begun = time.monotonic()
        _, rewards, _, truncations, infos = env.step(actions(env, rng))
        assert time.monotonic() - begun < 30
        assert set(truncations.values()) == {True}
        assert set(rewards.values()) == {0.0}
        assert infos["player_0"]["restarted"]
        answered.set()
        env.reset()
        assert play(env, rng)[0] == 10
        assert env.starts == 2


def test_a_picture_shows_all_players() -> None:
    made = Match("multi_cig", EnvConfig(kwargs={"episode_timeout": 40, "players": 3}), "rgb_array")
    try:
        made.reset(seed=0)
        picture = made.render()
        assert picture is not None
        assert picture.shape == (360, 3 * 480, 3)
        views = np.split(picture, 3, axis=1)
        assert len({view.tobytes() for view in views}) == 3
    finally:
        made.close()


def test_the_family_knows_matches() -> None:
    assert {"multi_duel", "multi_deathmatch", "multi_cig"} <= set(family.ids())
    assert family.make_parallel("cig", EnvConfig()) is None
    env = family.make_parallel("deathmatch_bots", EnvConfig(kwargs={"players": 2}))
    assert env is not None
    assert env.action_space("player_0") == env.action_space("player_1")
    env.close()
    with pytest.raises(ConfigError, match="several players"):
        family.make("multi_duel", EnvConfig())
    for name, kwargs in (("multi_duel", {"bots": 1}), ("multi_duel", {"players": 3}), ("duel_bots", {"bots": 2})):
        with pytest.raises(ConfigError, match="room for two"):
            family.make_parallel(name, EnvConfig(kwargs=kwargs))
    with pytest.raises(ConfigError, match="16 players"):
        family.make_parallel("multi_cig", EnvConfig(kwargs={"players": 12, "bots": 7}))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "players"), [("multi_duel", 2), ("multi_cig", 3)])
def test_a_hundred_matches_without_a_restart(name: str, players: int) -> None:
    rng = np.random.default_rng(0)
    with match(name, players=players, episode_timeout=350) as env:
        for number in range(100):
            env.reset(seed=number)
            steps, infos = play(env, rng)
            assert steps == 88, infos  # the last step has 2 frames
        assert env.starts == 1


def _exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False

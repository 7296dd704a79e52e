"""Atari through ale-py: both protocols, life-loss episodes, and the single game against the vector environment."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import ale_py
import cv2
import gymnasium
import numpy as np
import pytest
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from worlds import random_actions, reset_group, rows_for, step_group

from headrace.config import ConfigError, EnvConfig
from headrace.envs.atari.family import ids, make_group, make_vector, vector_options
from headrace.envs.core.settings import defaults
from headrace.envs.core.spaces import leaves
from headrace.envs.make import make_env

gymnasium.register_envs(ale_py)
ALE_NO_OPS = {"noop_max": 30}
"""ale-py's own no-ops at the start, which its vector environment and ours both know."""


def options(**settings: object) -> EnvConfig:
    return EnvConfig(atari_backend="ale", **settings)  # type: ignore[arg-type]


def test_the_104_games() -> None:
    assert len(ids()) == 104
    assert "pong" in ids()
    assert "joust" not in ids()


def test_protocols() -> None:
    dqn, v5 = vector_options(options(protocol="dqn")), vector_options(options(protocol="ale-v5"))
    assert (dqn["repeat_action_probability"], dqn["noop_min"], dqn["noop_max"]) == (0.0, 1, 30)
    assert (dqn["use_fire_reset"], dqn["maxpool"]) == (True, True)
    registered = gymnasium.spec("ALE/Pong-v5").kwargs
    assert v5["repeat_action_probability"] == registered["repeat_action_probability"] == 0.25
    assert v5["frameskip"] == registered["frameskip"] == 4
    assert v5["max_num_frames_per_episode"] == registered["max_num_frames_per_episode"] == 108_000
    assert v5["full_action_space"] is registered["full_action_space"] is False
    assert (v5["noop_max"], v5["use_fire_reset"], v5["maxpool"]) == (0, False, False)
    for both in (dqn, v5):
        assert both["max_num_frames_per_episode"] == 108_000
        assert (both["frameskip"], both["img_height"], both["img_width"], both["stack_num"]) == (4, 84, 84, 4)
        assert not both["reward_clipping"]
    assert defaults("atari/pong")["envs.reward_clip"] == 1.0


@pytest.mark.parametrize(("game", "backend"), [("Pong", "native"), ("Breakout", "native"), ("MsPacman", "ale")])
def test_ale_v5_is_what_gymnasium_makes(game: str, backend: Literal["native", "ale"]) -> None:
    """Step by step, until an episode ends: rewards, ends, and the pictures made small and grey."""
    name = {"MsPacman": "ms_pacman"}.get(game, game.lower())
    env = gymnasium.make(f"ALE/{game}-v5", obs_type="grayscale")
    # the seed that ale-py makes of a seed for its emulator has to be one that a vector takes
    seed = next(s for s in range(100) if np.random.SeedSequence(s).generate_state(2)[1] < 2**31)
    console = int(np.random.SeedSequence(seed).generate_state(2)[1])
    group = make_group(name, EnvConfig(atari_backend=backend, protocol="ale-v5"), 1)
    now, after = rows_for(group.spec, 1)
    reset_group(group, console, after)

    def small(picture: np.ndarray) -> np.ndarray:
        return cv2.resize(picture, (84, 84), interpolation=cv2.INTER_AREA)

    picture, info = env.reset(seed=seed)
    assert np.array_equal(after.obs["obs"][0, -1], small(picture))
    assert group.spec.action.parts[0].n == env.action_space.n  # type: ignore[union-attr]
    rng = np.random.default_rng(0)
    lost = 0
    for _ in range(2000):
        action = int(rng.integers(env.action_space.n))
        lives = info["lives"]
        picture, reward, terminated, truncated, info = env.step(action)
        step_group(group, np.array([[action]], np.int32), now, after)
        assert (now.reward[0], now.terminated[0], now.truncated[0]) == (reward, terminated, truncated)
        lost += info["lives"] < lives
        if terminated or truncated:
            break  # the picture of the last step is the one before in ale-py's vector environment
        assert np.array_equal(after.obs["obs"][0, -1], small(picture))
    assert terminated
    assert lost > 1 or game == "Pong"


def test_dqn_begins_with_1_to_30_no_ops_and_then_fire() -> None:
    """FIRE is no no-op: emulators that do as much by hand show the same."""
    num_envs = 200
    group = make_group("breakout", EnvConfig(protocol="dqn"), num_envs)
    _, after = rows_for(group.spec, num_envs)
    reset_group(group, 7, after)
    frames = group.envs.reset(seed=7)[1]["episode_frame_number"]  # type: ignore[attr-defined]
    assert np.array_equal(np.unique(frames - 1), np.arange(1, 31))
    counts = np.bincount(frames - 1, minlength=31)[1:]
    assert counts.max() <= 20  # 6.7 on average
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    for i in range(10):
        ale.setInt("random_seed", 7 + i)
        ale.loadROM(roms.get_rom_path("breakout"))
        ale.reset_game()
        for _ in range(frames[i] - 1):
            ale.act(ale_py.Action.NOOP)
        ale.act(ale_py.Action.FIRE)
        picture = cv2.resize(ale.getScreenGrayscale(), (84, 84), interpolation=cv2.INTER_AREA)
        assert np.array_equal(after.obs["obs"][i, -1], picture)
    group.close()


def test_one_frame_of_fire_starts_the_ball() -> None:
    group = make_group("breakout", EnvConfig(protocol="dqn"), 30)
    now, after = rows_for(group.spec, 30)
    reset_group(group, 0, after)
    lost = np.zeros(30, bool)
    for _ in range(60):
        step_group(group, np.zeros((30, 1), np.int32), now, after)
        lost |= now.terminated
    assert lost.all()


def test_ale_py_cannot_do_the_no_ops_of_dqn() -> None:
    with pytest.raises(ConfigError, match=r"ale-py's vector environment .*noop_max"):
        make_group("pong", options(protocol="dqn"), 1)
    for backend in ("ale", "native"):
        own = EnvConfig(atari_backend=backend, protocol="dqn", kwargs={"noop_max": 30})  # type: ignore[arg-type]
        assert "noop_min" not in vector_options(own)
        make_group("pong", own, 1).close()


@pytest.mark.parametrize("backend", ["ale", "native"])
def test_a_whole_game_with_life_loss_episodes(backend: Literal["ale", "native"]) -> None:
    """Breakout by random play: five lives make five training episodes and one reported game of the raw, whole return."""
    num_envs = 3
    group = make_group("breakout", EnvConfig(atari_backend=backend, reward_clip=1.0, kwargs=ALE_NO_OPS), num_envs)
    reference = AtariVectorEnv("breakout", num_envs, num_threads=1, reward_clipping=False)
    now, after = rows_for(group.spec, num_envs)
    reset_group(group, 5, after)
    pictures, infos = reference.reset(seed=5)
    assert np.array_equal(after.obs["obs"], pictures)
    rng = np.random.default_rng(0)
    episodes, returns, lengths = np.zeros(num_envs, int), np.zeros(num_envs), np.zeros(num_envs, int)
    games, was_over = 0, np.zeros(num_envs, bool)
    for _ in range(1500):
        actions, was_valid, lives = random_actions(group.spec, num_envs, rng), after.valid.copy(), infos["lives"].copy()
        step_group(group, actions, now, after)
        # the same emulators driven directly: NOOP in rows that are no transition
        pictures, rewards, over, _, infos = reference.step(np.where(was_valid, actions[:, 0], 0))
        assert np.array_equal(after.obs["obs"], pictures)
        lost = (infos["lives"] < lives) & ~over & ~was_over & was_valid
        assert np.array_equal(now.terminated, over | lost)
        assert np.array_equal(after.first, ~was_valid)
        assert np.array_equal(after.valid, ~now.terminated)
        assert np.array_equal(now.reward, np.where(was_valid, np.clip(rewards, -1, 1), 0))
        returns += rewards
        lengths += ~was_over
        episodes += now.terminated
        for i in np.flatnonzero(over):
            games += 1
            assert episodes[i] == 5
            assert (now.episode_return[i], now.episode_length[i]) == (returns[i], lengths[i])
            episodes[i] = returns[i] = lengths[i] = 0
        assert np.isnan(now.episode_return[~over]).all()
        was_over = over
        if games >= 4:
            break
    assert games >= 4
    group.close()


def test_evaluation_and_ale_v5_know_no_life_loss_episodes() -> None:
    for settings, training in (({"protocol": "dqn", "kwargs": ALE_NO_OPS}, False), ({"protocol": "ale-v5"}, True)):
        group = make_group("breakout", options(**settings), 2, training=training)
        now, after = rows_for(group.spec, 2)
        reset_group(group, 0, after)
        rng = np.random.default_rng(0)
        games = 0
        while games < 2:
            step_group(group, random_actions(group.spec, 2, rng), now, after)
            games += int(now.terminated.sum())
            assert np.array_equal(now.terminated, ~np.isnan(now.episode_return))
        group.close()


def test_a_saved_group_goes_on_where_it_was() -> None:
    """Across lost lives and ends of games, in a group of its own."""
    num_envs = 3
    config = EnvConfig(atari_backend="native", protocol="dqn", reward_clip=1.0)
    first, second = make_group("breakout", config, num_envs), make_group("breakout", config, num_envs)
    now, after = rows_for(first.spec, num_envs)
    reset_group(first, 5, after)
    reset_group(second, 77, after)
    rng = np.random.default_rng(0)
    played = [random_actions(first.spec, num_envs, rng) for _ in range(600)]
    for actions in played[:123]:
        step_group(first, actions, now, after)
    state = first.get_state()
    assert state is not None
    second.set_state(state)
    ends = 0
    for actions in played[123:]:
        step_group(first, actions, now, after)
        other_now, other_after = rows_for(first.spec, num_envs)
        step_group(second, actions, other_now, other_after)
        assert np.array_equal(after.obs["obs"], other_after.obs["obs"])
        for name in ("reward", "terminated", "truncated", "episode_return", "episode_length"):
            assert np.array_equal(getattr(now, name), getattr(other_now, name), equal_nan=name == "episode_return"), name
        assert np.array_equal(after.first, other_after.first)
        assert np.array_equal(after.valid, other_after.valid)
        ends += np.isfinite(now.episode_return).sum()
    assert ends >= 3
    ale = make_group("breakout", options(protocol="ale-v5"), 1)
    reset_group(ale, 0, rows_for(ale.spec, 1)[1])
    assert ale.get_state() is None


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("pong", {}),
        ("seaquest", {"resize": (96, 80)}),
        ("qbert", {"grayscale": False}),
        ("breakout", {"protocol": "ale-v5"}),
    ],
)
def test_a_single_game_shows_what_a_group_shows(game: str, settings: dict) -> None:
    config = EnvConfig(**settings)
    single, group = make_env(f"atari/{game}", config), make_vector(game, config, 1)
    pictures, infos = group.reset(seed=3)
    picture, info = single.reset(seed=3)
    assert np.array_equal(picture, pictures[0])
    assert info["lives"] == infos["lives"][0]
    rng = np.random.default_rng(1)
    for _ in range(150):
        action = int(rng.integers(single.action_space.n))  # type: ignore[attr-defined]
        picture, reward, terminated, truncated, info = single.step(action)
        pictures, rewards, terminations, truncations, infos = group.step(np.array([action], np.int32))
        assert (reward, terminated, truncated) == (rewards[0], terminations[0], truncations[0])
        assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
        assert info["lives"] == infos["lives"][0]
        assert np.array_equal(picture, pictures[0])
        if terminated or truncated:
            break
    single.close()


def test_step_limit_counts_steps() -> None:
    group = make_group("pong", options(protocol="ale-v5", max_episode_steps=50), 1)
    now, after = rows_for(group.spec, 1)
    reset_group(group, 0, after)
    for step in range(1, 51):
        step_group(group, np.zeros((1, 1), np.int32), now, after)
        assert now.truncated[0] == (step == 50)
    assert now.episode_length[0] == 50


def test_the_frame_skip_of_kwargs_is_what_is_counted() -> None:
    config = EnvConfig(kwargs={"frameskip": 2}, max_episode_steps=30)
    assert vector_options(config)["max_num_frames_per_episode"] == 60
    assert make_group("pong", config, 1).spec.frameskip == 2


@pytest.mark.parametrize("envs", [2, 3])
def test_continuous_actions_rest_after_a_lost_life(envs: int) -> None:
    group = make_group("breakout", EnvConfig(kwargs={"continuous": True}), envs)
    now, after = rows_for(group.spec, envs)
    reset_group(group, 0, after)
    lost = 0
    for _ in range(400):
        step_group(group, np.full((envs, 3), 0.9, np.float32), now, after)
        lost += int(now.terminated.sum())
    assert lost > 0


def test_colours_of_kwargs_are_copied_as_those_of_the_setting_are() -> None:
    rows = []
    for config in (EnvConfig(grayscale=False), EnvConfig(kwargs={"grayscale": False}), EnvConfig(kwargs={"obs_type": "rgb"})):
        group = make_group("breakout", config, 1)
        rows.append(rows_for(group.spec, 1)[1])
        reset_group(group, 0, rows[-1])
    for row in rows[1:]:
        np.testing.assert_array_equal(row.obs["obs"], rows[0].obs["obs"])


def test_settings_that_a_console_does_not_have_are_refused() -> None:
    asked = EnvConfig(reward_weights={"score": 1.0}, info_action_mask=True)
    for make, name, *number in ((make_env, "atari/pong"), (make_group, "pong", 1), (make_vector, "pong", 1)):
        with pytest.raises(ConfigError, match=r"envs\.info_action_mask, envs\.reward_weights: not applied"):
            make(name, asked, *number)  # type: ignore[operator]


def test_ram_is_not_learned_from() -> None:
    with pytest.raises(ConfigError, match="obs_type 'ram', but training is on pictures"):
        make_group("pong", EnvConfig(kwargs={"obs_type": "ram"}), 1)


@pytest.mark.parametrize("settings", [{"resize": (10, 84)}, {"resize": (20, 16), "frame_stack": 17}], ids=str)
def test_what_the_engine_sees_in_another_form_is_copied(settings: dict[str, Any]) -> None:
    """Pictures too small for convolutions are vectors, and in a stack deeper than they are wide the channels come last."""
    group, env = make_group("pong", EnvConfig(**settings), 1), make_env("atari/pong", EnvConfig(**settings))
    now, after = rows_for(group.spec, 1)
    reset_group(group, 3, after)
    step_group(group, np.zeros((1, 1), np.int32), now, after)
    env.reset(seed=3)
    (leaf,) = leaves(env.observation_space)
    expected = np.zeros_like(after.obs["obs"][0])
    leaf.put_value(expected, env.step(0)[0])
    assert expected.any()
    np.testing.assert_array_equal(after.obs["obs"][0], expected)


def test_rgb_and_render() -> None:
    group = make_group("pong", options(protocol="ale-v5", grayscale=False, frame_stack=2, resize=(40, 44)), 1)
    assert group.spec.observation["obs"].shape == (6, 40, 44)
    assert group.spec.frame_stack == 2
    assert make_group("pong", options(protocol="ale-v5"), 1).spec.frame_stack == 4
    assert make_group("pong", options(protocol="ale-v5", kwargs={"stack_num": 3}), 1).spec.frame_stack == 3
    env = make_env("atari/pong", options(), render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (210, 160, 3)


@pytest.mark.parametrize(("first", "env_id"), [("headrace", "headrace/Pong-v5"), ("gymnasium", "headrace:headrace/Pong-v5")])
def test_whoever_imports_headrace_has_the_games_and_no_torch(first: str, env_id: str) -> None:
    program = (
        f"import {first}, gymnasium, sys; env = gymnasium.make_vec({env_id!r}, num_envs=2)\n"
        "import headrace; print(isinstance(env.unwrapped, headrace.AtariVector), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "True False"

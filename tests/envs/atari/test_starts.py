"""Episodes that begin after random play, or in states that were saved before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

pytest.importorskip("ale_py")

from group_rows import contents, rows_of
from host_kernels import HostKernels

from headrace.config import ConfigError, EnvConfig
from headrace.envs.atari import kernels as atari_kernels
from headrace.envs.atari.kernels import KernelOptions
from headrace.envs.atari.starts import read_states, save_states
from headrace.envs.atari.vector import AtariVector
from headrace.envs.make import make_group

DEVICES = [{"num_threads": 1}, {"device": "cuda", "kernels": KernelOptions("interpreter", 32)}]
SMALL: dict[str, Any] = {"img_height": 24, "img_width": 20, "reward_clipping": False}


@pytest.fixture(autouse=True)
def kernels_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari_kernels, "CudaKernels", lambda device: HostKernels())


def host(x: Any) -> np.ndarray:
    return np.asarray(x)


@pytest.mark.parametrize("where", DEVICES, ids=["cpu", "kernels"])
def test_random_play_spreads_the_environments_over_the_game(where: dict[str, Any]) -> None:
    where, n, most = where | {"noop_max": 0}, 6, 40
    envs = AtariVector("pong", n, **SMALL, **where)
    observations, infos = envs.reset(seed=3, options={"random_steps": most})
    frames = host(infos["episode_frame_number"]) // 4
    played = host(infos["played_steps"])
    np.testing.assert_array_equal(played, frames)
    assert len(set(played.tolist())) >= 4
    assert (played <= most).all()
    assert not (host(observations) == host(observations)[0]).all()
    again, other = (AtariVector("pong", n, **SMALL, **where) for _ in range(2))
    np.testing.assert_array_equal(host(again.reset(seed=3, options={"random_steps": most})[0]), host(observations))
    assert not np.array_equal(host(other.reset(seed=4, options={"random_steps": most})[0]), host(observations))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_what_was_played_is_of_the_game_that_goes_on(mode: AutoresetMode) -> None:
    """With episodes that end within the random play: never at a last observation, and counted from their own beginning."""
    envs = AtariVector("boxing", 16, **SMALL, num_threads=1, max_num_frames_per_episode=44, noop_max=0, autoreset_mode=mode)
    out = np.zeros((16, *envs.single_observation_space.shape), np.uint8)
    observations, infos = envs.reset(seed=0, options={"random_steps": 60}, out=out)
    assert observations is out
    np.testing.assert_array_equal(infos["played_steps"], infos["episode_frame_number"] // 4)
    assert (infos["played_steps"] < 11).all()
    seen = out.copy()
    after, _, terminated, truncated, _ = envs.step(np.zeros(16, np.int64))
    begun = ~(terminated | truncated)
    np.testing.assert_array_equal(after[begun][:, :-1], seen[begun][:, 1:])  # no reset in between


@pytest.mark.parametrize("where", DEVICES, ids=["cpu", "kernels"])
def test_states_of_a_running_batch_are_where_others_begin(where: dict[str, Any], tmp_path: Path) -> None:
    running = AtariVector("breakout", 2, **SMALL, num_threads=1)
    running.reset(seed=0)
    for step in range(30):
        running.step(np.array([step % 4, (step + 1) % 4]))
    states = [running.save_state(i) for i in range(2)]
    save_states(tmp_path / "states", states)
    assert read_states(tmp_path / "states") == states
    envs = AtariVector("breakout", 5, **SMALL, **where)
    observations, infos = envs.reset(seed=9, options={"states": read_states(tmp_path / "states")})
    expected, *_, facts = running.step(np.zeros(2, np.int64))
    np.testing.assert_array_equal(host(observations), expected[[0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(host(infos["episode_frame_number"]), facts["episode_frame_number"][[0, 1, 0, 1, 0]])


def test_what_cannot_be_together_is_refused(tmp_path: Path) -> None:
    envs = AtariVector("pong", 2, **SMALL, num_threads=1)
    envs.reset(seed=0)
    mask = np.array([True, False])
    for options in ({"random_steps": 3, "reset_mask": mask}, {"random_steps": 3, "states": [envs.save_state(0)]}):
        with pytest.raises(ValueError, match="cannot be with each other, reset_mask, rows or smaller batches"):
            envs.reset(options=options)
    with pytest.raises(ValueError, match="there are no states"):
        envs.reset(options={"states": []})
    (tmp_path / "cut").write_bytes(b"\x09\0\0\0\0\0\0\0abc")
    (tmp_path / "empty").write_bytes(b"")
    for name, message in (("cut", "is cut off"), ("empty", "holds no states"), ("none", "cannot be read")):
        with pytest.raises(ConfigError, match=message):
            make_group("atari/pong", EnvConfig(start_states=str(tmp_path / name)), 1)
    with pytest.raises(ConfigError, match="cannot be together"):
        make_group("atari/pong", EnvConfig(start_states=str(tmp_path / "cut"), random_start=3), 1)
    with pytest.raises(ConfigError, match="need native consoles"):
        make_group("atari/pong", EnvConfig(random_start=3, atari_backend="ale"), 1)


def play(group: Any, steps: int) -> list[dict[str, np.ndarray]]:
    first, row = rows_of(group.spec, group.num_envs, False)
    group.reset(0, [first])
    seen, rng = list[dict[str, np.ndarray]](), np.random.default_rng(0)
    for _ in range(steps):
        row.actions[:] = rng.integers(group.spec.action.parts[0].n, size=row.actions.shape)
        group.send([row])
        seen.append(contents(first, row))
    return seen


def test_games_begun_before_the_run_are_reported_whole() -> None:
    """The length of the first game that ends is that of the game, not what was left of it."""
    options = EnvConfig(protocol="ale-v5", max_episode_steps=30, resize=(24, 20), random_start=50)
    group = make_group("atari/pong", options, 8)
    lengths = np.array([step["episode_length"] for step in play(group, 30)])
    assert set(lengths[lengths > 0].tolist()) == {30}
    assert len({int(t) for t in np.argmax(lengths > 0, axis=0)}) >= 4, "they end at different times"
    group.close()


def test_training_episodes_begin_in_saved_states_and_evaluations_do_not(tmp_path: Path) -> None:
    plain = EnvConfig(protocol="ale-v5", max_episode_steps=30, resize=(24, 20))
    source = make_group("atari/pong", plain, 1)
    play(source, 20)
    save_states(tmp_path / "states", [source.envs.env.save_state(0)])
    options = EnvConfig(protocol="ale-v5", max_episode_steps=30, resize=(24, 20), start_states=str(tmp_path / "states"))
    group = make_group("atari/pong", options, 2)
    lengths = np.array([step["episode_length"] for step in play(group, 40)])
    assert (lengths > 0).sum() >= 4
    assert set(lengths[lengths > 0].tolist()) == {9}, "30 steps, of which 20 and a NOOP were before"
    evaluated = make_group("atari/pong", options, 2, training=False)
    lengths = np.array([step["episode_length"] for step in play(evaluated, 40)])
    assert set(lengths[lengths > 0].tolist()) == {30}

"""Episodes that begin after random play, or in states that were saved before."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from headrace_atari import AtariVector, KernelOptions, read_states, save_states

# Wheels do not have them.
KERNELS = all(importlib.util.find_spec(name) for name in ("torch", "headrace_atari._native.atari_kernels"))
DEVICES = [
    pytest.param({"num_threads": 1}, id="cpu"),
    pytest.param(
        {"device": "cuda", "kernels": KernelOptions("interpreter", 32)},
        id="kernels",
        marks=pytest.mark.skipif(not KERNELS, reason="no torch, or no kernels for tests"),
    ),
]
SMALL: dict[str, Any] = {"img_height": 24, "img_width": 20, "reward_clipping": False}


@pytest.fixture(autouse=True)
def kernels_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    if KERNELS:
        from host_kernels import HostKernels

        from headrace_atari import kernels

        monkeypatch.setattr(kernels, "CudaKernels", lambda device: HostKernels())


def host(x: Any) -> np.ndarray:
    return np.asarray(x)


@pytest.mark.parametrize("where", DEVICES)
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


@pytest.mark.parametrize("where", DEVICES)
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


def test_what_cannot_be_together_is_refused() -> None:
    envs = AtariVector("pong", 2, **SMALL, num_threads=1)
    envs.reset(seed=0)
    mask = np.array([True, False])
    for options in ({"random_steps": 3, "reset_mask": mask}, {"random_steps": 3, "states": [envs.save_state(0)]}):
        with pytest.raises(ValueError, match="cannot be with each other, reset_mask, rows or smaller batches"):
            envs.reset(options=options)
    with pytest.raises(ValueError, match="there are no states"):
        envs.reset(options={"states": []})


def test_files_without_whole_states_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(b"\x09\0\0\0\0\0\0\0abc")
    (tmp_path / "empty").write_bytes(b"")
    for name, message in (("cut", "is cut off"), ("empty", "holds no states")):
        with pytest.raises(ValueError, match=message):
            read_states(tmp_path / name)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"random_steps": -1}, ValueError, "random_steps is -1, must not be negative"),
        ({"random_steps": 2.5}, TypeError, "random_steps is 2.5, must be an integer"),
        ({"random_steps": True}, TypeError, "random_steps is True, must be an integer"),
        ({"states": b"one state"}, TypeError, "states is a bytes, must be a list of states"),
        ({"states": iter([])}, TypeError, "states is a list_iterator, must be a list of states"),
        ({"states": []}, ValueError, "there are no states"),
        (3, TypeError, "options is 3, must be a dictionary"),
    ],
)
def test_wrong_options_are_named_before_anything_is_reset(options: Any, error: type[Exception], message: str) -> None:
    envs = AtariVector("pong", 2, **SMALL, num_threads=None)
    envs.reset(seed=0)
    envs.step(np.zeros(2, np.int64))
    before = envs.save_state(0)
    with pytest.raises(error, match=message):
        envs.reset(options=options)
    assert envs.save_state(0) == before

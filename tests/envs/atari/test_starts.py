"""Training episodes that begin after random play, or in states that were saved before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py")

from group_rows import contents, rows_of

from headrace.config import ConfigError, EnvConfig
from headrace.envs import EnvironmentFault
from headrace.envs.make import make_group
from headrace_atari import save_states


def test_what_cannot_be_together_is_refused(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("before", "after"), [(0, 50), (50, 0)])
def test_a_run_resumed_with_other_starts_begins_new_episodes(before: int, after: int) -> None:
    groups = [make_group("atari/pong", EnvConfig(resize=(24, 20), random_start=frames), 1) for frames in (before, after)]
    play(groups[0], 3)
    with pytest.raises(EnvironmentFault, match=r"made with other envs\.random_start"):
        groups[1].set_state(groups[0].get_state())
    for group in groups:
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

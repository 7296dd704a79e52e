"""n-step returns, h(x) and the eta mixture are defined once, in `headrace.learning.q_learning`: what the replay computes of them
before anything is learned from must be the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from trajectories import arrays_of, plain_rows

from headrace.experience.replay.buffer import Replay, ReplayConfig, ReplayField
from headrace.experience.replay.layout import Sequences
from headrace.experience.replay.writer import TrajectoryWriter
from headrace.learning import q_learning

GAMMA = 0.9
VALUE = {"obs/obs": ReplayField((1,), "float32", stack=1)}
"""The observation is the value, so that the bootstrap value of a sampled transition can be looked up in it."""


def written(replay: Replay, count: int, T: int, seed: int, sequences: Sequences | None = None) -> dict[str, np.ndarray]:
    """`count` rows of episodes by name, [count], after they were written to the replay in slots of T."""
    rows = plain_rows(count + 1, seed)
    rows = [row | {"obs/obs": np.float32([row["value"]]), "number": np.int32(t)} for t, row in enumerate(rows)]
    writer = TrajectoryWriter(replay, arrays_of([rows], T), GAMMA, 1, sequences)
    for slot in range(count // T):
        writer.write(slot)
    columns = {name: np.array([row[name] for row in rows[:count]]) for name in rows[0]}
    return columns | {name: columns[name].astype(np.float32) for name in ("reward", "q", "value")}


def priorities_in(replay: Replay, count: int) -> np.ndarray:
    """Of the first `count` rows, -1 where nothing starts."""
    held = np.empty(count, np.float32)
    replay.native.read_priorities(0, 0, np.empty(count, np.uint64), held)
    return held


def targets(rows: dict[str, np.ndarray], n: int, rescaled: bool = False) -> np.ndarray:
    """The definition: n-step targets of all rows but the last n, float64."""
    reward, value = (torch.tensor(rows[name], dtype=torch.float64)[:, None] for name in ("reward", "value"))
    last = torch.tensor((rows["terminated"] | rows["truncated"]) & rows["valid"])[:, None]
    discount = torch.where(torch.tensor(rows["terminated"])[:, None], 0.0, torch.tensor(GAMMA, dtype=torch.float64))
    found = q_learning.sequence_targets(reward, discount, last, q_learning.unscale(value) if rescaled else value, n)
    return (q_learning.rescale(found) if rescaled else found)[:, 0].numpy()


@pytest.mark.parametrize("n", [1, 3, 5])
def test_first_priorities_are_the_errors_that_learning_defines(n: int) -> None:
    replay = Replay(ReplayConfig(histories=1, capacity=600, n_step=n, minimum=1), VALUE)
    rows = written(replay, 400, 8, n)
    found, real = priorities_in(replay, 400 - n), rows["valid"][: 400 - n]
    expected = np.abs(targets(rows, n) - rows["q"][: 400 - n])
    np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-5)
    assert (found[~real] == -1).all()


@pytest.mark.parametrize("n", [1, 3, 5])
def test_first_priorities_of_rescaled_values_are_the_errors_that_learning_defines(n: int) -> None:
    """Sequences of one row each, whose priority is the row's error."""
    replay = Replay(ReplayConfig(histories=1, capacity=600, period=1, n_step=n, minimum=1), VALUE)
    rows = written(replay, 400, 1, n, Sequences(1, 0, 1, n, rescaled=True))
    found, real = priorities_in(replay, 400 - n), rows["valid"][: 400 - n]
    expected = np.abs(targets(rows, n, rescaled=True) - rows["q"][: 400 - n])
    np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 5])
def test_returns_of_sampled_transitions_are_those_that_learning_defines(n: int) -> None:
    replay = Replay(ReplayConfig(histories=1, capacity=600, n_step=n, minimum=1), {**VALUE, "number": ReplayField((), "int32")})
    rows = written(replay, 400, 8, n)
    batch = replay.sample(1000)
    assert batch is not None
    at = batch.first["number"].numpy()
    known = at < 400 - n
    assert len(set(at[known])) > 200
    found = (batch.reward + batch.discount * batch.next["obs/obs"][:, 0]).numpy()
    np.testing.assert_allclose(found[known], targets(rows, n)[at[known]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rescaled", [False, True])
@pytest.mark.parametrize(("period", "burn_in", "length"), [(5, 3, 4), (8, 0, 30)])
def test_first_priorities_of_sequences_are_the_mixture_that_learning_defines(
    rescaled: bool, period: int, burn_in: int, length: int
) -> None:
    n = 2
    replay = Replay(ReplayConfig(histories=1, capacity=100, period=period, n_step=n, minimum=1), VALUE)
    rows = written(replay, 400, period, 0, Sequences(period, burn_in, length, n, rescaled))
    errors = torch.tensor(targets(rows, n, rescaled) - rows["q"][: 400 - n])
    starts = np.arange(0, 400 - burn_in - length - n - period, period)
    columns = [slice(t + burn_in, t + burn_in + length) for t in starts]
    mask = torch.stack([torch.tensor(rows["valid"][c]) for c in columns], 1)
    expected = q_learning.mixed_priorities(torch.stack([errors[c] for c in columns], 1), mask)
    held = priorities_in(replay, starts[-1] + 1)
    known = rows["valid"][starts]  # no sequence starts at an episode's last observation
    assert known.sum() > 25
    np.testing.assert_allclose(held[starts][known], expected.numpy()[known], rtol=1e-4, atol=1e-5)
    assert (held[starts][~known] == -1).all()

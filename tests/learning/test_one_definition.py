"""n-step returns, h(x) and the eta mixture are defined once, in `headrace.learning.q_learning`: what the replay computes of them
before anything is learned from must be the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headrace.experience.replay.buffer import Field, Replay, ReplayConfig
from headrace.experience.replay.priorities import NStepPriorities
from headrace.experience.replay.writer import HistoryFeed, Sequences
from headrace.learning import q_learning

GAMMA = 0.9
VALUE = [Field("obs/obs", (1,), "float32", stack=1)]
"""The observation is the value, so that the bootstrap value of a sampled transition can be looked up in it."""


def rows_of_episodes(count: int, seed: int) -> dict[str, np.ndarray]:
    """`count` rows of one environment as the trajectory store has them: episodes of 1 to 8 steps that terminate or are truncated,
    each followed by its last observation, on which no action is taken."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        length, terminates = int(rng.integers(1, 9)), bool(rng.random() < 0.5)
        for t in range(length + 1):
            rows.append({"first": t == 0, "valid": t < length, "reward": rng.normal(0, 3) if t < length else 0.0,
                         "terminated": t == length - 1 and terminates, "truncated": t == length - 1 and not terminates,
                         "q": rng.normal(0, 2), "value": rng.normal(0, 2)})  # fmt: skip
    numbers = {name: np.array([row[name] for row in rows[:count]]) for name in rows[0]}
    numbers |= {name: numbers[name].astype(np.float32) for name in ("reward", "q", "value")}
    return numbers | {"obs/obs": numbers["value"][:, None]}


def targets(rows: dict[str, np.ndarray], n: int, rescaled: bool = False) -> np.ndarray:
    """The definition: n-step targets of all rows but the last n, float64."""
    reward, value = (torch.tensor(rows[name], dtype=torch.float64)[:, None] for name in ("reward", "value"))
    last = torch.tensor((rows["terminated"] | rows["truncated"]) & rows["valid"])[:, None]
    discount = torch.where(torch.tensor(rows["terminated"])[:, None], 0.0, torch.tensor(GAMMA, dtype=torch.float64))
    found = q_learning.sequence_targets(reward, discount, last, q_learning.unscale(value) if rescaled else value, n)
    return (q_learning.rescale(found) if rescaled else found)[:, 0].numpy()


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("rescaled", [False, True])
def test_first_priorities_are_the_errors_that_learning_defines(n: int, rescaled: bool) -> None:
    rows, priorities = rows_of_episodes(400, n), NStepPriorities(n, rescaled)
    found = priorities.push(
        rows["reward"], np.where(rows["terminated"], 0.0, GAMMA), rows["terminated"] | rows["truncated"], ~rows["valid"],
        rows["q"], rows["value"],
    )  # fmt: skip
    assert len(found) >= 400 - n
    real = rows["valid"][: 400 - n]
    expected = np.abs(targets(rows, n, rescaled) - rows["q"][: 400 - n])
    np.testing.assert_allclose(found[: 400 - n][real], expected[real], rtol=1e-5, atol=1e-5)
    assert (found[: 400 - n][~real] == -1).all()


@pytest.mark.parametrize("n", [1, 3, 5])
def test_returns_of_sampled_transitions_are_those_that_learning_defines(n: int) -> None:
    replay = Replay(ReplayConfig(histories=1, capacity=600, n_step=n, minimum=1), [*VALUE, Field("number", (), "int32")])
    rows, history = rows_of_episodes(400, n), HistoryFeed(replay, 0)
    rows["number"] = np.arange(400, dtype=np.int32)
    for start in range(0, 400, 8):
        history.add({name: x[start : start + 8] for name, x in rows.items()}, GAMMA)
    batch = replay.sample(1000)
    assert batch is not None
    at = batch.first["number"].numpy()
    known = at < 400 - n
    assert len(set(at[known])) > 200
    found = (batch.reward + batch.discount * batch.next["obs/obs"][:, 0]).numpy()
    np.testing.assert_allclose(found[known], targets(rows, n)[at[known]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rescaled", [False, True])
def test_first_priorities_of_sequences_are_the_mixture_that_learning_defines(rescaled: bool) -> None:
    period, burn_in, length, n = 5, 3, 4, 2
    replay = Replay(ReplayConfig(histories=1, capacity=100, period=period, n_step=n, minimum=1), VALUE)
    history, rows = HistoryFeed(replay, 0, Sequences(period, burn_in, length, n, rescaled)), rows_of_episodes(200, 0)
    for start in range(0, 200, period):
        history.add({name: x[start : start + period] for name, x in rows.items()}, GAMMA)
    errors = torch.tensor(targets(rows, n, rescaled) - rows["q"][: 200 - n])
    starts = np.arange(0, 200 - burn_in - length - n - period, period)
    columns = [slice(t + burn_in, t + burn_in + length) for t in starts]
    mask = torch.stack([torch.tensor(rows["valid"][c]) for c in columns], 1)
    expected = q_learning.mixed_priorities(torch.stack([errors[c] for c in columns], 1), mask)
    held = np.empty(starts[-1] + 1, np.float32)
    replay.native.read_priorities(0, 0, np.empty(len(held), np.uint64), held)
    known = rows["valid"][starts]  # no sequence starts at an episode's last observation
    assert known.sum() > 25
    np.testing.assert_allclose(held[starts][known], expected.numpy()[known], rtol=1e-4, atol=1e-5)
    assert (held[starts][~known] == -1).all()

"""The ring of transitions on a device, against lists of rows in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from headrace.envs.core.errors import EnvironmentFault
from headrace.experience.replay.buffer import ReplayField
from headrace.experience.transition_ring import TransitionRing

GAMMA, DEPTH = 0.9, 3
FRAME = (1, 2, 2)


@dataclass
class Row:
    """One step of one environment, as the oracle keeps it."""

    stack: np.ndarray
    first: bool
    valid: bool = True
    action: int = 0
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: np.ndarray = field(default_factory=lambda: np.zeros((DEPTH, 2, 2), np.uint8))

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


def play(seed: int, count: int, same_step: bool, first_stacks: str) -> list[Row]:
    """`count` rows of one environment with short episodes."""
    rng, rows, frames = np.random.default_rng(seed), list[Row](), list[np.ndarray]()

    def frame() -> np.ndarray:
        return rng.integers(1, 256, FRAME[1:]).astype(np.uint8)

    def begin() -> np.ndarray:
        newest = frame()
        if first_stacks == "before" and len(frames) >= DEPTH:
            frames.append(newest)
        else:
            frames[:] = [newest if first_stacks == "copies" else np.zeros_like(newest)] * (DEPTH - 1) + [newest]
        return np.stack(frames[-DEPTH:])

    stack, first = begin(), True
    while len(rows) < count:
        end = rng.random() < 0.25
        row = Row(stack, first, True, int(rng.integers(5)), float(rng.normal()))
        if end:
            row.terminated = bool(rng.random() < 0.5)
            row.truncated = not row.terminated
        rows.append(row)
        frames.append(frame())
        after = np.stack(frames[-DEPTH:])
        if not end:
            stack, first = after, False
            continue
        if same_step:
            row.final = after
        else:
            rows.append(Row(after, False, valid=False))
        stack, first = begin(), True
    return rows[:count]


def fields_of(envs: list[list[Row]], start: int, T: int, same_step: bool) -> dict[str, torch.Tensor]:
    """Trajectories of T rows and one more."""

    def column(name: str, rows: int, dtype: Any) -> torch.Tensor:
        return torch.from_numpy(np.array([[getattr(e[start + t], name) for e in envs] for t in range(rows)], dtype))

    fields = {"obs/pixels": column("stack", T + 1, np.uint8)}
    fields["obs/vector"] = torch.from_numpy(
        np.array([[[start + t, i] for i in range(len(envs))] for t in range(T + 1)], np.float32)
    )
    fields |= {"first": column("first", T + 1, bool), "valid": column("valid", T + 1, bool)}
    fields |= {"action": column("action", T, np.int32)[..., None], "reward": column("reward", T, np.float32)}
    fields |= {"terminated": column("terminated", T, bool), "truncated": column("truncated", T, bool)}
    fields["version"] = torch.arange(start, start + T, dtype=torch.int32)[:, None].expand(T, len(envs))
    if same_step:
        fields["final_obs/pixels"] = column("final", T, np.uint8)
        fields["final_obs/vector"] = -fields["obs/vector"][1:]
    return fields


OBSERVATIONS = {"obs/pixels": ReplayField(FRAME, "uint8", stack=DEPTH), "obs/vector": ReplayField((2,), "float32", stack=1)}


def filled(
    adds: int, T: int, rows: int, n: int, *, same_step: bool = False, first_stacks: str = "zeros", alpha: float = 1.0
) -> tuple[TransitionRing, list[list[Row]]]:
    world = [play(100 + e, adds * T + 1, same_step, first_stacks) for e in range(5)]
    ring = None
    for k in range(adds):
        fields = fields_of(world, k * T, T, same_step)
        ring = ring or TransitionRing(fields, OBSERVATIONS, rows, n, GAMMA, alpha, "cpu", "test")
        ring.add(fields)
    assert ring is not None
    return ring, world


def expected(world: list[list[Row]], env: int, t: int, n: int, same_step: bool) -> dict[str, Any]:
    """The transition that starts in row t, step by step."""
    rows, total, discount = world[env], 0.0, 1.0
    for k in range(n):
        row = rows[t + k]
        total += discount * row.reward
        discount *= 0.0 if row.terminated else GAMMA
        if row.ended:
            after = row.final if same_step else rows[t + k + 1].stack
            vector = [-(t + k + 1), -env] if same_step else [t + k + 1, env]
            return {"reward": total, "discount": discount, "next": after, "vector": vector}
    return {"reward": total, "discount": discount, "next": rows[t + n].stack, "vector": [t + n, env]}


@pytest.mark.parametrize(
    ("same_step", "first_stacks"),
    [(False, "zeros"), (False, "copies"), (False, "before"), (True, "zeros"), (True, "copies")],
)
@pytest.mark.parametrize(("n", "adds", "T"), [(1, 3, 4), (3, 3, 4), (3, 40, 4), (5, 25, 6), (2, 60, 1)])
def test_every_transition_is_rebuilt_and_the_right_ones_are_there(
    n: int, adds: int, T: int, same_step: bool, first_stacks: str
) -> None:
    size = T * -(-(2 * T + n + DEPTH + 20) // T)
    ring, world = filled(adds, T, size, n, same_step=same_step, first_stacks=first_stacks)
    head = adds * T
    oldest = max(0, head - size)
    keys = ring.table.numbers.nonzero()[:, 0]
    row, env = (keys // ring.envs).numpy(), (keys % ring.envs).numpy()
    there = {(int(r + (head - 1 - r) // size * size), int(e)) for r, e in zip(row, env, strict=True)}
    wanted = {(t, e) for e in range(5) for t in range(oldest + DEPTH - 1, head - n) if world[e][t].valid}
    assert there == wanted
    assert wanted
    batch = ring.transitions(keys, beta=0.4)
    for i, (r, e) in enumerate(zip(row, env, strict=True)):
        t = int(r + (head - 1 - r) // size * size)
        found, right = {name: x[i].numpy() for name, x in batch.items()}, expected(world, int(e), t, n, same_step)
        np.testing.assert_array_equal(found["obs/pixels"], world[e][t].stack)
        np.testing.assert_array_equal(found["obs/vector"], [t, e])
        assert (found["action"][0], found["version"]) == (world[e][t].action, t)
        for name in ("reward", "discount"):
            np.testing.assert_allclose(found[name], right[name], rtol=1e-5, atol=1e-6)
        if right["discount"]:
            np.testing.assert_array_equal(found["next/pixels"], right["next"])
            np.testing.assert_array_equal(found["next/vector"], right["vector"])


def test_new_transitions_have_the_largest_priority_and_weights_undo_the_draw() -> None:
    ring, world = filled(4, 4, 64, 2, alpha=0.5)
    keys = ring.table.numbers.nonzero()[:, 0]
    assert (ring.table.numbers[keys] == 1).all()
    ring.set_priorities(keys[:3], torch.tensor([4.0, 0.25, 0.0]))
    numbers = ring.table.numbers[keys]
    torch.testing.assert_close(numbers[:4], torch.tensor([2.0, 0.5, 1e-3, 1.0]))
    weights = ring.transitions(keys, beta=0.4)["weights"]
    probability = numbers / numbers.sum()
    torch.testing.assert_close(weights, (len(keys) * probability) ** -0.4 / ((len(keys) * probability) ** -0.4).max())
    ring.add(fields_of([play(7, 5, False, "zeros") for _ in world], 0, 4, False))
    new = ring.table.numbers[16 * 5 :].nonzero()
    assert len(new)
    assert (ring.table.numbers[16 * 5 :][new] == 2).all()


def test_episodes_that_break_off_make_no_return() -> None:
    """Rows after a stop that could not be gone on from: the episodes begin anew without having ended."""
    ring, _ = filled(5, 4, 64, 3)
    before = {int(k) for k in ring.table.numbers.nonzero()[:, 0]}
    world = [play(900 + e, 5, False, "zeros") for e in range(5)]
    ring.add(fields_of(world, 0, 4, False))
    new = {int(k) for k in ring.table.numbers.nonzero()[:, 0]} - before
    ended = ring.columns["terminated"] | ring.columns["truncated"]
    for key in new:
        row, env = divmod(key, 5)
        if row < 20:  # its rows before the break must hold the end of its episode, and what was observed after that
            assert ended[row:19, env].any()


def test_images_that_are_no_stacks_are_refused() -> None:
    world = [play(e, 9, False, "zeros") for e in range(3)]
    fields = fields_of(world, 0, 8, False)
    fields["obs/pixels"] = torch.randint(1, 256, fields["obs/pixels"].shape, dtype=torch.uint8)
    with pytest.raises(EnvironmentFault, match="the first stack of images of an episode holds frames that are neither zeros"):
        TransitionRing(fields, OBSERVATIONS, 32, 1, GAMMA, 0.5, "cpu", "test").add(fields)
    fields["first"][:] = False
    with pytest.raises(EnvironmentFault, match="images are no stacks of 3 successive frames"):
        TransitionRing(fields, OBSERVATIONS, 32, 1, GAMMA, 0.5, "cpu", "test").add(fields)

"""Atari action spaces, and the conversion of continuous actions as in the Arcade Learning Environment."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete

# [left, centre, right][down, centre, up][no fire, fire]
ACTION_OF_DIRECTION = np.array([[[9, 17], [4, 12], [7, 15]], [[5, 13], [0, 1], [2, 10]], [[8, 16], [3, 11], [6, 14]]], np.int32)


def action_space(continuous: bool, count: int) -> Box | Discrete:
    """The action space: `count` actions, or (radius 0..1, angle in radians, fire 0..1)."""
    if not continuous:
        return Discrete(count)
    return Box(np.array([0, -np.pi, 0], np.float32), np.array([1, np.pi, 1], np.float32), dtype=np.float32)


def discrete_actions(actions: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Convert actions float32 `[batch, 3]` (radius, angle, fire) to ids 0..17 int32 `[batch]` and paddle strengths
    float32 `[batch]`.

    A component beyond the threshold is a direction, or FIRE. Raises `ValueError` for numbers that are not finite.
    """
    if not np.isfinite(actions).all():
        raise ValueError(f"actions must be finite; row {int(np.argwhere(~np.isfinite(actions))[0, 0])} is not")
    x, y = actions[:, 0] * np.cos(actions[:, 1]), actions[:, 0] * np.sin(actions[:, 1])
    horizontal = (x > threshold).astype(np.int32) - (x < -threshold)
    vertical = (y > threshold).astype(np.int32) - (y < -threshold)
    ids = ACTION_OF_DIRECTION[horizontal + 1, vertical + 1, (actions[:, 2] > threshold).astype(np.int32)]
    return np.ascontiguousarray(ids), np.ascontiguousarray(actions[:, 0])

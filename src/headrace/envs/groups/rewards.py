"""The rewards that the learner sees: raw rewards scaled, squashed and clipped."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from headrace.config import EnvConfig
from headrace.envs.core.contract import Array

RewardTransform: TypeAlias = Callable[[Array], Array]

NEGATIVE = 0.3  # factor of negative rewards when rewards are squashed


def reward_transform(options: EnvConfig) -> RewardTransform:
    """A function from raw rewards, a NumPy array or a tensor, to the learner's: scaled; with `reward_soft_clip` x squashed to
    x tanh(r / x), negative ones times 0.3 (x is 5 in the code of Espeholt et al. 2018, IMPALA, for DMLab-30); then clipped to
    [-clip, clip]."""
    scale, clip, soft = options.reward_scale, options.reward_clip, options.reward_soft_clip

    def to_learn(raw: Array) -> Array:
        learned = raw * scale
        if soft is not None:
            library: Any = np if isinstance(learned, np.ndarray | np.generic) else importlib.import_module("torch")
            learned = soft * library.tanh(learned / soft) * library.where(learned < 0, NEGATIVE, 1.0)
        return learned if clip is None else learned.clip(-clip, clip)

    return to_learn

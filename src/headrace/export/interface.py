"""What an environment gives a policy and takes from it, array by array, as the environment itself has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.config import ConfigError
from headrace.envs.core.actions import action_spec
from headrace.envs.core.contract import MASK_KEY
from headrace.envs.core.last_step import last_step_names
from headrace.envs.core.spaces import Leaf, is_channels_last, leaves, specs_of
from headrace.evaluation.trained_policy import TrainedPolicy
from headrace.evaluation.video import make_match


@dataclass(frozen=True)
class ActionLeaf:
    """One array of an action: its place in a compound action, and in the engine's action row."""

    path: tuple[str | int, ...]
    space: spaces.Space[Any]
    columns: slice

    @property
    def name(self) -> str:
        """Of the output."""
        return "/".join(("action", *map(str, self.path)))


def interface(policy: TrainedPolicy) -> tuple[list[Leaf], list[ActionLeaf], Any]:
    """The arrays of the observations and of the actions of the environment that the policy plays in, and an environment of that
    kind, which the caller closes. Raises `ConfigError` where the engine changes more than the arrays' form."""
    spec = policy.spec
    if last_step_names(policy.config):
        raise ConfigError("a policy that observes its last action or reward (policy.previous_action, ...) cannot be exported")
    if spec.agents:
        env: Any = make_match(policy.config.env, policy.config.envs)
        agent = spec.agents[policy.number % len(spec.agents)]
        observation, action = env.observation_space(agent), env.action_space(agent)
    else:
        env = policy.make_env()
        observation, action = env.observation_space, env.action_space
    if specs_of(observation, action, spec.name) != (spec.observation, spec.action):
        env.close()
        raise ConfigError(f"{spec.name}: one environment has other spaces than the policy was trained with")
    return leaves(observation), _action_leaves(action), env


def _action_leaves(space: spaces.Space[Any]) -> list[ActionLeaf]:
    found: list[ActionLeaf] = []

    def visit(space: spaces.Space[Any], path: tuple[str | int, ...]) -> None:
        if isinstance(space, spaces.Dict | spaces.Tuple):
            children = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
            for key, child in children:
                visit(child, (*path, key))
            return
        start = found[-1].columns.stop if found else 0
        found.append(ActionLeaf(path, space, slice(start, start + action_spec(space).width)))

    visit(space, ())
    return found


def raw_dtype(leaf: Leaf) -> np.dtype:
    """Of what the environment gives; int64 for choices, whose spaces may be of any integer type."""
    return np.dtype(np.int64) if isinstance(leaf.source, spaces.Discrete | spaces.MultiDiscrete) else np.dtype(leaf.source.dtype)


def encoding_of(leaf: Leaf) -> dict[str, Any]:
    """How an observation becomes the engine's array: `rows` and `dtype` are those of the array, `kind` says what is done.

    one-hot: `n` choices, counted from `start`, of each number; image: values 0..`high` are spread to 0..255 and `channels_last`
    ones moved to the front; numbers: only the shape and the dtype change.
    """
    array: dict[str, Any] = {"rows": list(leaf.spec.shape), "dtype": leaf.spec.dtype.name}
    space = leaf.source
    if leaf.name != MASK_KEY and isinstance(space, spaces.Discrete):
        return {"kind": "one-hot", "n": [int(space.n)], "start": [int(space.start)], **array}
    if leaf.name != MASK_KEY and isinstance(space, spaces.MultiDiscrete):
        return {"kind": "one-hot", "n": space.nvec.ravel().tolist(), "start": space.start.ravel().tolist(), **array}
    if leaf.spec.is_image and isinstance(space, spaces.Box):
        high = float(np.max(space.high))
        return {"kind": "image", "channels_last": is_channels_last(space.shape), "high": high, **array}
    return {"kind": "numbers", **array}

"""What an environment gives a policy and takes from it, array by array, as the environment itself has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.arrays import ArraySpec
from headrace.config import Config, ConfigError
from headrace.envs.core.actions import action_spec, choices_of, flattened
from headrace.envs.core.contract import MASK_KEY, EnvSpec
from headrace.envs.core.last_step import last_step_names, without_last_step
from headrace.envs.core.settings import options_of
from headrace.envs.core.spaces import Leaf, is_channels_last, leaves, specs_of, write_reshaped
from headrace.envs.make import make_env, make_parallel


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


def interface(config: Config, spec: EnvSpec, number: int = 0) -> tuple[list[Leaf], list[ActionLeaf], Any]:
    """The arrays that policy `number` observes, the arrays of its actions, and one environment, which the caller closes.
    Raises `ConfigError` if this environment has other spaces than the policy was trained with."""
    own = without_last_step(spec, names := last_step_names(config))
    observation, action, env = one_environment(config, spec, number)
    if specs_of(observation, action, spec.name) != (own.observation, own.action):
        env.close()
        raise ConfigError(f"{spec.name}: one environment has other spaces than the policy was trained with")
    return leaves(observation) + [_last_step(name, spec.observation[name]) for name in names], _action_leaves(action), env


def one_environment(config: Config, spec: EnvSpec, number: int) -> tuple[spaces.Space[Any], spaces.Space[Any], Any]:
    """What policy `number` observes and does, and one environment that says so, which the caller closes."""
    env: Any
    if spec.agents:
        env = make_parallel(config.env, config.envs)
        agent = env.possible_agents[number % len(spec.agents)]
        return env.observation_space(agent), env.action_space(agent), env
    env = make_env(config.tasks[0], options_of(config.tasks[0], config.tasks, config.envs))
    return env.observation_space, env.action_space, env


def _last_step(name: str, array: ArraySpec) -> Leaf:
    """The last action, in the engine's form, or the last reward."""
    return Leaf(name, (), spaces.Box(-np.inf, np.inf, array.shape, array.dtype.type), array, write_reshaped)


def _action_leaves(space: spaces.Space[Any]) -> list[ActionLeaf]:
    found, start = list[ActionLeaf](), 0
    for path, part in flattened(space):
        end = start + action_spec(part).width
        found.append(ActionLeaf(path, part, slice(start, end)))
        start = end
    return found


def raw_dtype(leaf: Leaf) -> np.dtype:
    """Dtype of the observation as the environment gives it; int64 for choices, whose spaces may have any integer type."""
    return np.dtype(np.int64) if isinstance(leaf.source, spaces.Discrete | spaces.MultiDiscrete) else np.dtype(leaf.source.dtype)


def encoding_of(leaf: Leaf) -> dict[str, Any]:
    """How an observation becomes the engine's array: `rows` and `dtype` are those of the array, `kind` says what is done.

    one-hot: `n` choices, counted from `start`, of each number; image: values 0..`high` are spread to 0..255 and `channels_last`
    ones moved to the front; numbers: only the shape and the dtype change.
    """
    array: dict[str, Any] = {"rows": list(leaf.spec.shape), "dtype": leaf.spec.dtype.name}
    space = leaf.source
    if leaf.name != MASK_KEY and isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        n, start = (numbers.tolist() for numbers in choices_of(space))
        return {"kind": "one-hot", "n": n, "start": start, **array}
    if leaf.spec.is_image and isinstance(space, spaces.Box):
        high = float(np.max(space.high))
        return {"kind": "image", "channels_last": is_channels_last(space.shape), "high": high, **array}
    return {"kind": "numbers", **array}

"""Tensor environments, which take and return torch tensors: simulators on the accelerator, and vectorised ones on the CPU.

A tensor environment is an object with the methods of `TensorEnv`. The user registers a function that makes it:

    @headrace.envs.register_tensor("my/world")
    def world(options, num_envs, device):
        return World(num_envs, device, **options.kwargs)

In the `device` placement its tensors are copied straight into the trajectories' memory on the device. The host waits for the
device only to read one number every `CHECK_PERIOD` steps. In other placements, and in evaluations, its tensors are on the CPU,
and rows of NumPy arrays in shared memory are read and written through tensors of the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.actions import tensor_decoder
from headrace.envs.core.contract import MASK_KEY, OBJECTIVE, Categorical, EnvGroup, LaneRow, ObsRow
from headrace.envs.core.errors import EnvironmentFault, UnsupportedSpace, cause, faults
from headrace.envs.core.spaces import Leaf, leaves, spec_of
from headrace.envs.groups.base import close_all
from headrace.envs.groups.checks import LARGEST, check_shapes, too_large
from headrace.envs.groups.episode_statistics import EpisodeStatistics
from headrace.envs.groups.rewards import reward_transform

CHECK_PERIOD = 64
"""Steps between two checks for NaN, infinite and too large numbers on a GPU, since each check waits for the device. On the CPU
every step is checked."""

NO_CHOICE = "the action mask allows no choice in discrete part"

Observation = Tensor | dict[str, Any]
"""[N, ...], or a dictionary of these for Dict spaces."""


class TensorStep(NamedTuple):
    """The results of a step of N environments: tensors on the environments' device, or arrays with `__dlpack__` (JAX, Warp,
    CuPy). The next step may overwrite them."""

    obs: Observation
    """[N, ...]: the observations to act on next; where an episode ended, the first observation of the next one."""
    reward: Tensor
    """Float [N]."""
    terminated: Tensor
    """Bool [N]: the episode ended in a state that has no future."""
    truncated: Tensor
    """Bool [N]: it ended for another reason, such as a time limit."""
    final_obs: Observation
    """[N, ...]: where an episode ended, its true last observation; elsewhere anything."""


class TensorEnv(Protocol):
    """N environments on one device, which reset ended episodes in the same step.

    May have `get_state() -> dict` and `set_state(state)`, for exact resumes (a tree of tensors, numbers and strings, with
    everything that later steps depend on), and `close()`.
    """

    num_envs: int
    single_observation_space: gymnasium.Space
    """Of one environment: Box, MultiBinary, or a Dict or Tuple of those. Images are [C, H, W]."""
    single_action_space: gymnasium.Space
    """Of one environment: Discrete, MultiDiscrete, MultiBinary or Box."""

    def reset(self, seed: int) -> Observation:
        """Begin N new episodes and return their first observations. `seed` determines all random numbers from now on."""
        ...

    def step(self, actions: Tensor) -> TensorStep:
        """Step all environments.

        Args:
            actions: as the action space says, with the first axis N: int64 [N] for Discrete, int64 [N, ...] for MultiDiscrete and
                MultiBinary, float32 [N, ...] within the bounds for Box.
        """
        ...


class TensorGroup(EnvGroup):
    """The `EnvGroup` of a `TensorEnv`. `tensors`: rows are tensors on the environments' device; else NumPy arrays, and the
    environments are on the CPU. Raises `UnsupportedSpace` for spaces other than those that `TensorEnv` names."""

    def __init__(self, envs: TensorEnv, options: EnvConfig, env_id: str, *, device: str, tensors: bool):
        observed, acted = envs.single_observation_space, envs.single_action_space
        self.spec = spec_of(observed, acted, env_id, options, autoreset="same-step")
        if options.info_metrics:
            asked = f"pbt.objective {OBJECTIVE}" if options.info_metrics == (OBJECTIVE,) else "envs.info_metrics"
            raise ConfigError(f"{asked}: {env_id} gives no infos, since it steps tensors")
        self.envs, self.device, self.tensors = envs, device, tensors
        self.num_envs = self.lane_size = N = envs.num_envs
        self._leaves = [_checked(leaf, env_id) for leaf in leaves(observed)]
        self._highest = {x.name: float(cast(spaces.Box, x.source).high.max()) for x in self._leaves if x.spec.is_image}
        """Of each image: the number that becomes 255."""
        self._floats = [name for name, array in self.spec.observation.items() if array.dtype.kind == "f"]
        self._choices = [part.n for part in self.spec.action.parts if isinstance(part, Categorical)]
        """Choices of each discrete part of an action, which a mask has one after another."""
        self._decode = tensor_decoder(acted, device, env_id)
        self._to_learn = reward_transform(options)
        self._statistics = EpisodeStatistics(N, torch, device=device)
        self._seed = self._steps = 0
        self._unusable = torch.zeros((), dtype=torch.bool, device=device)
        """Whether a number since the last check was not finite, or larger than `LARGEST`."""
        self._check_period = CHECK_PERIOD if torch.device(device).type != "cpu" else 1

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """See `EnvGroup.reset`. One seed for all environments."""
        row = out[0] if self.tensors else out[0].map(torch.from_numpy)  # tensors of the same memory
        self._seed, self._steps = seed, 0
        self._statistics.begin()
        self._call("reset", self._reset, row)

    @torch.no_grad()
    def _reset(self, row: ObsRow) -> None:
        self._put(row.obs, self.envs.reset(self._seed))
        row.first.fill_(True)
        row.valid.fill_(True)
        self._look({f"observation {name!r}": row.obs[name] for name in self._floats} | self._masks(row.obs), always=True)

    def send(self, rows: Sequence[LaneRow]) -> None:
        """See `EnvGroup.send`; on return the step is finished, or queued on the device."""
        self._call("step", self._step, rows[0] if self.tensors else rows[0].map(torch.from_numpy))

    @torch.no_grad()
    def _step(self, row: LaneRow) -> None:
        now, after = row.step, row.after
        self._steps += 1
        stepped = self.envs.step(self._decode(row.actions))
        if not isinstance(stepped, TensorStep):
            raise TypeError(f"step returned a {type(stepped).__name__}; return a headrace.TensorStep")
        obs, *results, final_obs = stepped
        reward, terminated, truncated = (_tensor(x) for x in results)
        check_shapes(self.num_envs, reward=reward, terminated=terminated, truncated=truncated)
        ended = terminated.bool() | truncated.bool()  # other libraries may have flags of bytes, or of floats as Brax
        self._put(after.obs, obs)
        self._put(now.final_obs, final_obs)
        now.terminated.copy_(terminated)
        now.truncated.copy_(truncated)
        after.first.copy_(ended)
        after.valid.fill_(True)
        now.reward.copy_(self._to_learn(reward))
        self._statistics.step(now, reward, 1, ended)
        numbers = {f"observation {name!r}": after.obs[name] for name in self._floats}
        # where no episode ended, `final_obs` may hold anything
        last = {f"last observation {name!r}": _only(now.final_obs[name], ended) for name in self._floats}
        self._look({"the reward": reward, **numbers, **last, **self._masks(after.obs)})
        self._masks(now.final_obs)  # which may allow nothing: no action is taken there

    def get_state(self) -> dict[str, Any] | None:
        """Includes the environments' own `get_state()`; None if they have no such method."""
        if not hasattr(self.envs, "get_state"):
            return None
        own = {"seed": self._seed, "steps": self._steps, "envs": cast(Any, self.envs).get_state()}
        return self._statistics.get_state() | own

    def set_state(self, state: dict[str, Any]) -> None:
        self._seed, self._steps = state["seed"], state["steps"]
        self._statistics.set_state(state)
        cast(Any, self.envs).set_state(state["envs"])

    def close(self) -> None:
        if hasattr(self.envs, "close"):
            close_all([self.envs])

    def _call(self, doing: str, function: Callable[[Any], None], row: Any) -> None:
        try:
            function(row)
        except EnvironmentFault:
            raise
        except faults() as error:
            raise EnvironmentFault(f"{self._where()}: {doing} failed: {cause(error)}") from error

    def _where(self) -> str:
        return f"{self.spec.name}, {self.num_envs} environments (seed {self._seed}), step {self._steps} of each"

    def _put(self, rows: dict[str, Tensor], observation: Observation) -> None:
        for leaf in self._leaves:
            row = rows[leaf.name]
            value = _tensor(leaf.find(observation))  # a plain observation has an empty path
            shape = leaf.source.shape or ()
            if value.shape[1:] != shape or len(value) != self.num_envs:
                raise ValueError(
                    f"observation {leaf.name!r} has shape {list(value.shape)}; {[self.num_envs, *shape]} is declared"
                )
            value = value.view_as(row)
            if (high := self._highest.get(leaf.name)) and (value.is_floating_point() or high < 255):
                value = (value * (255 / high)).round_()
            row.copy_(value)

    def _masks(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """For `_look`, by discrete part: infinite [N] where the action mask allows no choice. There all choices are allowed."""
        found = {}
        if MASK_KEY in obs:
            for number, allowed in enumerate(obs[MASK_KEY].split(self._choices, -1)):
                nothing = ~allowed.bool().any(-1)
                allowed |= nothing.unsqueeze(-1).to(allowed.dtype)
                found[f"{NO_CHOICE} {number}"] = torch.where(nothing, torch.inf, 0.0)
        return found

    def _look(self, numbers: dict[str, Tensor], always: bool = False) -> None:
        """Raise `EnvironmentFault` if one of these numbers [N, ...] is not finite, or too large to learn from."""
        if not numbers:
            return
        largest = torch.stack([x.float().abs().amax() for x in numbers.values()]).amax()  # NaN if there is any
        self._unusable |= ~(largest <= LARGEST)
        if (always or self._steps % self._check_period == 0) and bool(self._unusable):
            self._unusable.fill_(False)
            raise EnvironmentFault(f"{self._where()}: {self._description(numbers)}")

    def _description(self, numbers: dict[str, Tensor]) -> str:
        """Names the first such number, if the last step produced it."""
        for name, x in numbers.items():
            if len(places := (~(x.abs() <= LARGEST)).nonzero()):
                index, *inner = places[0].tolist()
                if name.startswith(NO_CHOICE):
                    return f"{name} of environment {index}"
                value = float(x[tuple(places[0])])
                at = f" at index {inner}" if inner else ""
                return f"{name} of environment {index} is {value:g}{at}{too_large(value)}"
        last = f"one of the last {self._check_period} steps"
        return (
            f"in {last} an action mask allowed no choice, or an observation or a reward was not finite, or larger than "
            f"{LARGEST:g} and so too large to learn from"
        )


def _tensor(x: Any) -> Tensor:
    """Converts another library's array to a tensor of the same memory. By the DLPack protocol, PyTorch's current stream waits for
    the work that the other library has queued."""
    return x if isinstance(x, Tensor) or not hasattr(x, "__dlpack__") else torch.from_dlpack(x)


def _only(x: Tensor, where: Tensor) -> Tensor:
    """`x` [N, ...] with zeros where `where` [N] is false."""
    return x.masked_fill(~where.view(-1, *[1] * (x.dim() - 1)), 0)


def _checked(leaf: Leaf, env_id: str) -> Leaf:
    as_it_is = leaf.name == MASK_KEY or leaf.spec.shape == leaf.source.shape
    if as_it_is and isinstance(leaf.source, spaces.Box | spaces.MultiBinary):
        return leaf
    raise UnsupportedSpace(
        f"{env_id}: observation {leaf.name!r} is {leaf.source!r}; environments of tensors observe Box (images [C, H, W]), "
        "MultiBinary, and Dict or Tuple of these. Give a discrete observation one-hot"
    )

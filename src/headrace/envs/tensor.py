"""Environments that take and give torch tensors: simulators that are on the accelerator already, and vectorised ones on the CPU.

Such an environment is an object with the methods of `TensorEnv`, registered by a function that makes it:

    @headrace.envs.register_tensor("my/world")
    def world(options, num_envs, device):
        return World(num_envs, device, **options.kwargs)

In the `device` placement its tensors are written straight into the trajectories' memory; nothing becomes a NumPy array, and
nothing waits for the device but one number every `CHECK_PERIOD` steps. In other placements, and in evaluations, its tensors are
on the CPU, and rows of NumPy arrays in shared memory are read and written through tensors of the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor

from headrace.config import EnvConfig
from headrace.envs.contract import FAULTS, MASK_KEY, EnvironmentFault, EnvSpec, LaneRow, ObsRow, StepsAtOnce
from headrace.envs.group import LARGEST, reward_transform, too_large
from headrace.envs.spaces import Leaf, UnsupportedSpace, leaves, specs_of

CHECK_PERIOD = 64
"""On a GPU, steps between two looks for NaN, infinite and absurdly large numbers, since each waits for the device. On the CPU
every step is looked at."""

Observation = Tensor | dict[str, Any]
"""[N, ...], or a dictionary of such for Dict spaces."""


class TensorStep(NamedTuple):
    """What a step of N environments led to; tensors on the environments' device, or arrays that can become them without a copy
    (`__dlpack__`: those of JAX, Warp, CuPy). They may be overwritten by the next step."""

    obs: Observation
    """[N, ...]: to act on next; where an episode ended, the first observation of the next one."""
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
        """Begin N new episodes and return their first observations. `seed` determines these and everything random later."""
        ...

    def step(self, actions: Tensor) -> TensorStep:
        """Step all environments.

        Args:
            actions: as the action space says, with the first axis N: int64 [N] for Discrete, int64 [N, ...] for MultiDiscrete and
                MultiBinary, float32 [N, ...] within the bounds for Box.
        """
        ...


class TensorGroup(StepsAtOnce):
    """The `EnvGroup` of a `TensorEnv`.

    Args:
        envs: the environments.
        tensors: rows are tensors on the environments' device; else NumPy arrays, and the environments are on the CPU.

    Raises `UnsupportedSpace` for spaces that have no plain tensors.
    """

    lanes = 1

    def __init__(self, envs: TensorEnv, options: EnvConfig, env_id: str, *, device: str, tensors: bool):
        observation, action = specs_of(envs.single_observation_space, envs.single_action_space, env_id)
        stack = options.frame_stack or 1
        self.spec = EnvSpec(observation, action, options.frameskip or 1, "same-step", env_id, frame_stack=stack)
        self.envs, self.device, self.tensors = envs, device, tensors
        self.num_envs = self.lane_size = N = envs.num_envs
        self._leaves = [_checked(leaf, env_id) for leaf in leaves(envs.single_observation_space)]
        self._floats = [name for name, array in observation.items() if array.dtype.kind == "f"]
        self._decode = _decoder(envs.single_action_space, device, env_id)
        self._to_learn = reward_transform(options, torch)
        self._returns = torch.zeros(N, dtype=torch.float64, device=device)
        self._lengths = torch.zeros(N, dtype=torch.int32, device=device)
        self._seed = self._steps = 0
        self._nan = torch.full((N,), torch.nan, device=device)
        self._absurd = torch.zeros((), dtype=torch.bool, device=device)
        """A number since the last look was not finite, or larger than `LARGEST`."""
        self._check_period = CHECK_PERIOD if torch.device(device).type != "cpu" else 1

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """See `EnvGroup.reset`. The environments are seeded together, by one number."""
        row = out[0] if self.tensors else out[0].map(torch.from_numpy)  # tensors of the same memory
        self._seed, self._steps = seed, 0
        self._returns.zero_()
        self._lengths.zero_()
        self._call("reset", self._reset, row)

    @torch.no_grad()
    def _reset(self, row: ObsRow) -> None:
        self._put(row.obs, self.envs.reset(self._seed))
        row.first.fill_(True)
        row.valid.fill_(True)
        self._look({f"observation {name!r}": row.obs[name] for name in self._floats}, always=True)

    def send(self, rows: Sequence[LaneRow]) -> None:
        """See `EnvGroup.send`; on return the step is finished, or given to the device."""
        self._call("step", self._step, rows[0] if self.tensors else rows[0].map(torch.from_numpy))

    @torch.no_grad()
    def _step(self, row: LaneRow) -> None:
        now, after = row.step, row.after
        obs, *results, final_obs = self.envs.step(self._decode(row.actions))
        reward, terminated, truncated = (_tensor(x) for x in results)
        ended = (terminated | truncated).bool()  # other libraries may export their flags as bytes
        self._put(after.obs, obs)
        self._put(now.final_obs, final_obs)
        now.terminated.copy_(terminated)
        now.truncated.copy_(truncated)
        after.first.copy_(ended)
        after.valid.fill_(True)
        self._returns += reward
        self._lengths += 1
        now.reward.copy_(self._to_learn(reward))
        now.episode_return.copy_(torch.where(ended, self._returns, self._nan))
        now.episode_length.copy_(self._lengths * ended)
        self._returns.masked_fill_(ended, 0.0)
        self._lengths.masked_fill_(ended, 0)
        self._steps += 1
        numbers = {f"observation {name!r}": after.obs[name] for name in self._floats}
        # Where no episode ended, what is there may be anything.
        last = {f"last observation {name!r}": _only(now.final_obs[name], ended) for name in self._floats}
        self._look({"the reward": reward, **numbers, **last})

    def get_state(self) -> dict[str, Any] | None:
        """Asks the environments' own `get_state()`; None if there is no such method."""
        if not hasattr(self.envs, "get_state"):
            return None
        counts = {"returns": self._returns.to("cpu", copy=True), "lengths": self._lengths.to("cpu", copy=True)}
        return counts | {"seed": self._seed, "steps": self._steps, "envs": cast(Any, self.envs).get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `EnvGroup.set_state`."""
        self._seed, self._steps = state["seed"], state["steps"]
        self._returns.copy_(state["returns"])
        self._lengths.copy_(state["lengths"])
        cast(Any, self.envs).set_state(state["envs"])

    def close(self) -> None:
        """Close the environments, if they can be."""
        if hasattr(self.envs, "close"):
            self.envs.close()

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _call(self, doing: str, function: Callable[[Any], None], row: Any) -> None:
        try:
            function(row)
        except EnvironmentFault:
            raise
        except FAULTS as error:
            raise EnvironmentFault(f"{self._where()}: {doing} failed: {type(error).__name__}: {error}") from error

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
            row.copy_(value.view_as(row))

    def _look(self, numbers: dict[str, Tensor], always: bool = False) -> None:
        """Raise `EnvironmentFault` where one of these numbers [N, ...] is not finite, or too large to learn from."""
        if not numbers:
            return
        largest = torch.stack([x.float().abs().amax() for x in numbers.values()]).amax()  # NaN if there is one
        self._absurd |= ~(largest <= LARGEST)
        if (always or self._steps % self._check_period == 0) and bool(self._absurd):
            self._absurd.fill_(False)
            raise EnvironmentFault(f"{self._where()}: {self._description(numbers)}")

    def _description(self, numbers: dict[str, Tensor]) -> str:
        """Says which number it is, if that was in the last step."""
        for name, x in numbers.items():
            if len(places := (~(x.abs() <= LARGEST)).nonzero()):
                index, *inner = places[0].tolist()
                value = float(x[tuple(places[0])])
                at = f" at index {inner}" if inner else ""
                return f"{name} of environment {index} is {value:g}{at}{too_large(value)}"
        last = f"one of the last {self._check_period} steps"
        return f"in {last} an observation or a reward was not finite, or larger than {LARGEST:g} and so too large to learn from"


def _tensor(x: Any) -> Tensor:
    """A tensor as it is, and another library's array as a tensor of the same memory. The protocol of DLPack puts PyTorch's
    current stream behind what the other library has given to the device."""
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


def _decoder(space: spaces.Space[Any], device: str, env_id: str) -> Callable[[Tensor], Tensor]:
    """A function from action rows [N, A] to the actions of `TensorEnv.step`."""
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        return lambda rows: rows[:, 0].long() + start
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        shape = tuple(cast(Any, space.shape))
        starts = torch.as_tensor(space.start if isinstance(space, spaces.MultiDiscrete) else 0, device=device)
        return lambda rows: rows.view(-1, *shape).long() + starts
    if isinstance(space, spaces.Box):
        low, high = (torch.as_tensor(x, dtype=torch.float32, device=device) for x in (space.low, space.high))
        return lambda rows: rows.view(-1, *low.shape).clamp(low, high)
    raise UnsupportedSpace(f"{env_id}: the action space is {space!r}; environments of tensors take one tensor of actions")

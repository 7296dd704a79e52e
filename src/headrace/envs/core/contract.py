"""The contract between the engine and environments: the specification of an environment, the rows of a step, and `EnvGroup`.

**Group.** The engine steps *groups*: environments that are stepped together (`EnvGroup`). A rollout worker does not know how a
group steps its environments: in its own process, as a batch of emulators, or at an environment server.

**Lane.** The agents of a group form L lanes of C agents each. The agents of a lane act at the same time, by the same policy. A
group of single-agent environments has one lane, and C is the number of environments. In a multi-agent environment every agent of
every match is a lane of its own, C = 1: agents come and go, take turns, and may have another policy in the next match.
Lane = match x agents + agent, see `EnvSpec.agents`.

**Memory** belongs to the caller. The caller gives a group rows (`LaneRow`, `ObsRow`). The group reads actions from their arrays
and writes observations, rewards and flags to them, from `reset` or `send` until `recv` has returned True; the caller does not
touch the arrays meanwhile. Rows are views of trajectories in shared memory. Row objects are made once and used for many steps, so
that a step allocates nothing.

**Arrays** are NumPy arrays, or torch tensors on the device where the group's environments run. `make_group` decides which; the
caller gives rows of that kind, since groups convert nothing. Shapes and dtypes are the same.

**Steps** are asynchronous: `send` begins one, `recv` says whether it is finished. A group whose environments run in the calling
process steps them in `send`, and its `recv` always returns True. Any other group calls the function given to `notify` when it is
time to call `recv` again.

**Lanes advance independently.** `advanced` lists the lanes to which the last `reset` or `send` has written a new observation and
the consequences of the action before it. All other lanes keep their rows, because their agent waits for its turn or is not in the
match. A lane whose first episode has not begun gets a row whose `after` is row 0; nothing reads this row's `actions` and `step`.

**Autoreset** follows Gymnasium's NEXT_STEP convention row by row:

    row t    observation o_t, the action taken on it, and the resulting reward and terminated / truncated flags
    row t+1  if the episode ended at t: its true last observation, `valid` False. The action taken on it is ignored
    row t+2  the first observation of the next episode, `first` True

So the learner bootstraps a truncated episode from row t+1 like any other row, and masks the one row that is no transition.
A vectorised environment that only supports SAME_STEP writes the next episode's first observation to row t+1 (`first`, `valid`)
and the true last observation to `final_obs` of row t. Only trajectories of such environments have that field.

**Errors.** `reset`, `send` and `recv` raise `EnvironmentFault`: for an exception in an environment, an observation outside the
declared shape or dtype, a NaN or infinite observation or reward, or an action mask that allows nothing. Afterwards a group can
only be closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, Self, TypeAlias

import numpy as np

from headrace.arrays import ArraySpec

Array: TypeAlias = Any
"""np.ndarray or torch.Tensor."""


def on_host(array: Array) -> Array:
    """A copy in host memory, for a saved state."""
    return array.copy() if isinstance(array, np.ndarray) else array.to("cpu", copy=True)


MASK_KEY = "action_mask"
"""Key of a Dict observation that holds the action mask: uint8, one entry for each choice of each discrete part in order."""


# -- the specification of an environment --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Categorical:
    """One discrete choice out of n: one column of the action array, holding 0..n-1."""

    n: int
    width = 1
    """Columns in the action array."""


@dataclass(frozen=True)
class Continuous:
    """Independent bounded numbers: one column each."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    integer: bool = False
    """Whether the environment gets them rounded. Action rows hold them as they were drawn."""

    @property
    def width(self) -> int:
        """Columns in the action array."""
        return len(self.low)


@dataclass(frozen=True)
class ActionSpec:
    """An action as one flat row of A columns: the parts in order. int32 if every part is discrete, else float32."""

    parts: tuple[Categorical | Continuous, ...]

    @property
    def width(self) -> int:
        """A: columns of the action array."""
        return sum(part.width for part in self.parts)

    @property
    def dtype(self) -> np.dtype:
        """int32 for purely discrete actions, float32 otherwise (exact for choices below 2**24)."""
        return np.dtype(np.int32 if all(isinstance(p, Categorical) for p in self.parts) else np.float32)

    @property
    def mask_width(self) -> int:
        """Entries of an action mask: the choices of all discrete parts."""
        return sum(part.n for part in self.parts if isinstance(part, Categorical))


@dataclass(frozen=True)
class EnvSpec:
    """What the engine must know about an environment before making one. All agents of a lane have the same."""

    observation: dict[str, ArraySpec]
    """By name; a plain observation space has the single name "obs". The action mask, if any, has the name `MASK_KEY`."""
    action: ActionSpec
    frameskip: int = 1
    """Simulator frames per step."""
    autoreset: Literal["next-step", "same-step"] = "next-step"
    name: str = ""
    """The environment's id, for messages."""
    agents: tuple[str, ...] = ()
    """Names of the agents of one match; empty for single-agent environments."""
    tasks: tuple[str, ...] = ()
    """Ids of the tasks, if there are several; else empty."""
    of_agents: tuple[EnvSpec, ...] = ()
    """One for each agent, if their spaces differ; `observation` and `action` are then the first agent's. Else empty."""
    frame_stack: int = 1
    """Successive frames in one image observation, along its channels, the oldest first. A replay stores each of them once."""

    info_metrics: tuple[str, ...] = ()
    """Keys of the numbers in the info of a game's last step that are recorded (`envs.info_metrics`), n of them."""

    def of_agent(self, agent: int) -> EnvSpec:
        """The specification of one agent, by its index."""
        return self.of_agents[agent] if self.of_agents else self

    def of_policy(self, policy: int) -> EnvSpec:
        """The specification that a policy of the run is made for: that of agent `policy` modulo the number of agents."""
        return self.of_agents[policy % len(self.agents)] if self.of_agents else self

    def fits(self, policy: int, agent: int) -> bool:
        """Whether a policy can act for an agent."""
        mine, its = self.of_policy(policy), self.of_agent(agent)
        return not self.of_agents or (mine.observation, mine.action) == (its.observation, its.action)


OBJECTIVE = "true_objective"
"""Info key at the end of a game: the number by which population-based training compares policies (`pbt.objective`)."""


# -- rows: where a step reads and writes ------------------------------------------------------------------------------

Place: TypeAlias = int | tuple[int, int]
"""Index of a row in arrays: t, or (slot, t) in a trajectory store."""


class Row:
    """Base class of rows. Their fields are arrays, dictionaries of arrays, other rows, or None."""

    def map(self, function: Callable[[Array], Array]) -> Self:
        """A row with `function` applied to each array."""
        return type(self)(**{name: _mapped(value, function) for name, value in vars(self).items()})

    def copy_from(self, other: Self) -> None:
        """Copy the other row's arrays into those of this row. What one of them lacks stays as it is."""
        for name, value in vars(self).items():
            _copy(value, getattr(other, name))


def _mapped(value: Any, function: Callable[[Array], Array]) -> Any:
    if isinstance(value, Row):
        return value.map(function)
    if isinstance(value, dict):
        return {name: function(array) for name, array in value.items()}
    return None if value is None else function(value)


def _copy(to: Any, source: Any) -> None:
    if isinstance(to, Row):
        to.copy_from(source)
    elif isinstance(to, dict):
        for name in to.keys() & source.keys():
            to[name][:] = source[name]
    elif to is not None and source is not None:
        to[:] = source


def _views(arrays: Mapping[str, Array], prefix: str, at: Place) -> dict[str, Array]:
    """Views at `at` of the arrays whose names begin with `prefix`, which is removed from the names."""
    return {name.removeprefix(prefix): array[at] for name, array in arrays.items() if name.startswith(prefix)}


STEP_ARRAYS: dict[str, type[np.generic]] = {
    "reward": np.float32, "terminated": np.bool_, "truncated": np.bool_, "episode_return": np.float32, "episode_length": np.int32,
}  # fmt: skip
"""The arrays that every `StepRow` has, and their types."""


@dataclass
class StepRow(Row):
    """The results of the actions of row t. Arrays of shape [C]."""

    reward: Array
    """float32, after scaling and clipping."""
    terminated: Array
    """bool: the episode ended in a state that has no future."""
    truncated: Array
    """bool: the episode ended for another reason, such as a time limit."""
    episode_return: Array
    """float32: the raw (unscaled, unclipped) return of the whole game if one ended with this step, else NaN."""
    episode_length: Array
    """int32: its length in steps, else 0."""
    final_obs: dict[str, Array] = field(default_factory=dict)
    """[C, ...] by name; only for `same-step` environments, written where truncated or terminated."""
    episode_info: Array | None = None
    """float32 [C, n]: `EnvSpec.info_metrics` in the info, where `episode_return` is not NaN. None: n is 0, or not recorded."""
    task: Array | None = None
    """int32: the environment's task, by its number in `EnvSpec.tasks`. None: there is one task, or it is not recorded."""

    @classmethod
    def zeros(cls, C: int) -> Self:
        """NumPy arrays for C agents."""
        arrays: dict[str, Any] = {name: np.zeros(C, kind) for name, kind in STEP_ARRAYS.items()}
        return cls(**arrays)

    @classmethod
    def view(cls, arrays: Mapping[str, Array], at: Place) -> Self:
        """Views of a row of named arrays, such as those of a trajectory."""
        there = {field.name: arrays[field.name][at] for field in fields(cls) if field.name in arrays}
        return cls(**there, final_obs=_views(arrays, "final_obs/", at))

    def write_nothing(self) -> None:
        """Write a step without reward and without an end of an episode."""
        self.reward[:] = 0
        self.terminated[:] = False
        self.truncated[:] = False
        self.episode_return[:] = np.nan
        self.episode_length[:] = 0


@dataclass
class ObsRow(Row):
    """Observations to act on. Arrays of shape [C]."""

    obs: dict[str, Array]
    """[C, ...] by name, as `EnvSpec.observation` says."""
    first: Array
    """bool: the observation is the first of an episode."""
    valid: Array
    """bool: False for the last observation of an episode, from which no transition starts."""

    @classmethod
    def zeros(cls, spec: EnvSpec, C: int) -> Self:
        """NumPy arrays for C agents."""
        obs = {name: np.zeros((C, *array.shape), array.dtype) for name, array in spec.observation.items()}
        return cls(obs, np.zeros(C, bool), np.zeros(C, bool))

    @classmethod
    def view(cls, arrays: Mapping[str, Array], at: Place) -> Self:
        """Views of a row of named arrays, such as those of a trajectory."""
        return cls(_views(arrays, "obs/", at), arrays["first"][at], arrays["valid"][at])


@dataclass
class LaneRow(Row):
    """One step of one lane."""

    actions: Array
    """[C, A], as `EnvSpec.action` says: read. Actions on an observation that is not `valid` are ignored."""
    step: StepRow
    """Row t: written."""
    after: ObsRow
    """Row t+1: written."""

    @classmethod
    def view(cls, arrays: Mapping[str, Array], at: Place, after: Place) -> Self:
        """Views of the actions and the results at `at`, and of the observation at `after`."""
        return cls(arrays["action"][at], StepRow.view(arrays, at), ObsRow.view(arrays, after))


# -- the group --------------------------------------------------------------------------------------------------------


class EnvGroup(Protocol):
    """Environments stepped together. All methods are called by one thread; from `reset` or `send` until `recv` has returned True,
    only `recv` and `close`. What is implemented here suits a group of one lane whose step is finished, or queued on its device,
    when `send` returns, and that cannot be saved."""

    spec: EnvSpec
    num_envs: int
    lanes: int = 1
    """L."""
    lane_size: int
    """C: agents of one lane. With one agent for each environment, lanes = 1 and lane_size = num_envs."""
    advanced: Sequence[int] | None = None
    """Lanes to which the last `reset` or `send` wrote a new observation to act on. None: all. Policies also compute actions for
    observations that are not `valid`; these are ignored."""
    ended: Sequence[int] = ()
    """Matches that ended with the last step; the next `send` begins new ones. Empty for single-agent environments."""
    called: int | None = None
    """The environment (0 to num_envs - 1) that was called last, if the group calls them one after the other; else None. Any
    thread may read it."""
    tensors: bool = False
    """Whether rows are tensors on the environments' device; else NumPy arrays."""

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """Begin the first episodes; `out`: row 0 of each lane, finished when `recv` returns True.

        Environment i is seeded with `seed + i`. Later resets do not seed.
        """

    def send(self, rows: Sequence[LaneRow]) -> None:
        """Begin one step of all lanes, with one row for each; finished when `recv` returns True."""

    def recv(self) -> bool:
        """Whether everything of the last `reset` or `send` has been written. Never blocks."""
        return True

    def notify(self, wake: Callable[[], None]) -> None:
        """Call `wake`, instead of the function given before, whenever `recv` has returned False and may now return True or raise.

        The group may call it from any thread, also when nothing has changed. `wake` returns at once and never raises.
        """
        return

    def remember(self) -> None:
        """Record what `get_state` needs from now on. Called before the first `reset`."""
        return

    def get_state(self) -> dict[str, Any] | None:
        """Everything the group needs to go on exactly where it is, as a tree of arrays, strings and numbers; None if its
        environments cannot be saved."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned, instead of a `reset`; finished on return. Raises `EnvironmentFault` if the restored
        observations differ from the saved ones."""

    def close(self) -> None:
        """Release what the environments hold."""


Script = Callable[[dict[str, np.ndarray], np.random.Generator], Any]
"""A scripted opponent: the action (a number, or a row of numbers as `ActionSpec` says) for one agent's observation, arrays by
name as `EnvSpec.observation` says; `action_mask` is among them where there is one."""

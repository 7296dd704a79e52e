"""The contract between the engine and environments.

**Group.** The engine steps *groups*: environments that are stepped together (`EnvGroup`). Rollout workers hold groups and know
nothing of what stands behind them: environments of their own process, a batch of emulators, an environment server.

**Lane.** The agents of a group form L lanes of C agents each. The agents of a lane act at the same time and are acted for by the
same policy. Where every environment has one agent there is one lane, and C is the number of environments.
In a multi-agent environment every agent of every match is a lane of its own, C = 1: agents come and go, take turns, and may be
acted for by another policy in the next match. Lane = match x agents + agent, see `EnvSpec.agents`.

**Memory** belongs to the caller. A group reads actions from the arrays of the rows that it is given (`LaneRow`, `ObsRow`) and
writes observations, rewards and flags to them. It may do so from `reset` or `send` until `recv` has returned True; the caller
leaves the arrays alone meanwhile. Rows are views of trajectories in shared memory. Their objects are made once and used for many
steps, so that a step allocates nothing.

**Arrays** are NumPy arrays, or torch tensors on the device where the group's environments run. This is decided where the group is
made, and whoever makes a group gives it rows of that kind; nothing is converted here. Shapes and dtypes are the same.

**Steps** are asynchronous: `send` begins one, `recv` says whether it is finished. A group whose environments run in the calling
process steps them in `send`, and its `recv` always returns True. Any other group calls the function given to `notify` when it is
time to call `recv` again.

**Lanes go on by themselves.** `advanced` says which lanes the last `reset` or `send` has given a new observation, and with it
the consequences of the action before it. The others keep their rows: an agent whose turn it is not, or that is not in the match,
costs nothing. A lane that has no episode yet is given, for the row to write to, one without a meaning of its own (`actions` and
`step` are nobody's), whose `after` is row 0.

**Autoreset** follows Gymnasium's NEXT_STEP convention row by row:

    row t    observation o_t and the action taken on it; the reward and the terminated / truncated flags which that led to
    row t+1  if the episode ended at t: its true last observation, `valid` False. The action taken on it is ignored.
    row t+2  the first observation of the next episode, `first` True

So the learner bootstraps a truncated episode from row t+1 like any other row, and masks the one row that is no transition.
A vectorised environment that can only do SAME_STEP writes the next episode's first observation to row t+1 (`first`, `valid`)
and the true last observation to `final_obs` of row t. Trajectories have that field only for such environments.

**Errors.** `reset`, `send` and `recv` raise `EnvironmentFault`: for an exception in an environment, an observation outside the
declared shape or dtype, a NaN or infinite observation or reward, or an action mask that allows nothing. Afterwards a group can
only be closed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias

import numpy as np

from headrace.config.errors import UserError

Array: TypeAlias = Any
"""np.ndarray or torch.Tensor."""

MASK_KEY = "action_mask"
"""Key of a Dict observation that holds the action mask: uint8, one entry for each choice of each discrete part in order."""


# -- what an environment is like --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArraySpec:
    """Shape (without batch dimensions), dtype and bounds of one array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    low: float = -np.inf
    high: float = np.inf

    @property
    def is_image(self) -> bool:
        """Channels-first uint8 image [C, H, W]."""
        return len(self.shape) == 3 and self.dtype == np.uint8


@dataclass(frozen=True)
class Categorical:
    """One discrete choice out of n: one column of the action array, holding 0..n-1."""

    n: int

    @property
    def width(self) -> int:
        """Columns in the action array."""
        return 1


@dataclass(frozen=True)
class Continuous:
    """Independent bounded numbers: one column each."""

    low: tuple[float, ...]
    high: tuple[float, ...]

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
    """What the engine has to know of an environment before it makes one. The same for all agents of a lane."""

    observation: dict[str, ArraySpec]
    """By name; a plain observation space has the one name "obs". The action mask, if any, is in here under `MASK_KEY`."""
    action: ActionSpec
    frameskip: int = 1
    """Simulator frames per step."""
    autoreset: Literal["next-step", "same-step"] = "next-step"
    name: str = ""
    """The environment's id, for messages."""
    agents: tuple[str, ...] = ()
    """Names of the agents of one match; empty where every environment has one agent."""
    tasks: tuple[str, ...] = ()
    """Ids of the tasks, where environments are of several; else empty."""
    of_agents: tuple[EnvSpec, ...] = ()
    """By agent, where their spaces differ; `observation` and `action` are then the first agent's. Empty: all have the same."""
    frame_stack: int = 1
    """Successive frames in one image observation, along its channels, the oldest first. A replay stores each of them once."""

    def of_agent(self, agent: int) -> EnvSpec:
        """What one agent observes and does."""
        return self.of_agents[agent] if self.of_agents else self

    def of_policy(self, policy: int) -> EnvSpec:
        """What a policy of a run observes and does: the same as the agent of its number, modulo the number of agents."""
        return self.of_agents[policy % len(self.agents)] if self.of_agents else self

    def fits(self, policy: int, agent: int) -> bool:
        """Whether a policy can act for an agent."""
        mine, its = self.of_policy(policy), self.of_agent(agent)
        return not self.of_agents or (mine.observation, mine.action) == (its.observation, its.action)


# -- rows: where a step reads and writes ------------------------------------------------------------------------------


class Row:
    """What rows have in common. Their fields are arrays, dictionaries of arrays, other rows, or None."""

    def map(self, function: Callable[[Array], Array]) -> Self:
        """The row of `function` of each array: of views of them, say, or of copies."""
        return type(self)(**{name: _mapped(value, function) for name, value in vars(self).items()})


def _mapped(value: Any, function: Callable[[Array], Array]) -> Any:
    if isinstance(value, Row):
        return value.map(function)
    if isinstance(value, dict):
        return {name: function(array) for name, array in value.items()}
    return None if value is None else function(value)


@dataclass
class StepRow(Row):
    """What the actions of row t led to. Arrays of shape [C]."""

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
    episode_objective: Array | None = None
    """float32: `info["true_objective"]` where `episode_return` is not NaN. None: nobody asks."""
    task: Array | None = None
    """int32: the environment's task, by its number in `EnvSpec.tasks`. None where there is one, or nobody asks."""

    @classmethod
    def zeros(cls, C: int) -> Self:
        """NumPy arrays for C agents."""
        return cls(np.zeros(C, np.float32), np.zeros(C, bool), np.zeros(C, bool), np.zeros(C, np.float32), np.zeros(C, np.int32))

    def write_nothing(self) -> None:
        """Nothing happened: no reward, no end."""
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
    """bool: False where the observation is the last of an episode, so that no transition starts here."""

    @classmethod
    def zeros(cls, spec: EnvSpec, C: int) -> Self:
        """NumPy arrays for C agents."""
        obs = {name: np.zeros((C, *array.shape), array.dtype) for name, array in spec.observation.items()}
        return cls(obs, np.zeros(C, bool), np.zeros(C, bool))


@dataclass
class LaneRow(Row):
    """One step of one lane."""

    actions: Array
    """[C, A], as `EnvSpec.action` says: read. Actions on an observation that is not `valid` are ignored."""
    step: StepRow
    """Row t: written."""
    after: ObsRow
    """Row t+1: written."""


# -- the group --------------------------------------------------------------------------------------------------------


class EnvGroup(Protocol):
    """Environments stepped together. All methods are called by one thread; from `reset` or `send` until `recv` has returned True,
    only `recv` and `close`."""

    spec: EnvSpec
    num_envs: int
    lanes: int
    """L."""
    lane_size: int
    """C: agents of one lane. With one agent for each environment, lanes = 1 and lane_size = num_envs."""
    advanced: Sequence[int] | None
    """Lanes that have a new observation to act on since the last `reset` or `send`. None: all. On observations that are not
    `valid` an action is computed, too, and ignored."""
    ended: Sequence[int]
    """Matches that ended with the last step: the next `send` begins others. Empty where `EnvSpec.agents` is."""

    @property
    def called(self) -> int | None:
        """The environment (0 to num_envs - 1) that was called last, where they are called one after the other; None where they
        are not. Any thread may read it."""

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """Begin the first episodes; `out`: row 0 of each lane, finished when `recv` returns True.

        Environment i is seeded with `seed + i`. Later resets go on with the environment's own generator.
        """

    def send(self, rows: Sequence[LaneRow]) -> None:
        """Begin one step of all lanes, finished when `recv` returns True; `rows`: one for each lane."""

    def recv(self) -> bool:
        """Whether everything of the last `reset` or `send` has been written. Never blocks."""

    def notify(self, wake: Callable[[], None]) -> None:
        """Call `wake`, instead of the function given before, whenever `recv` has returned False and may now return True or raise.

        The group may call it from any thread, also when nothing has changed. `wake` returns at once and never raises.
        """

    def remember(self) -> None:
        """`get_state` will be called: keep what it takes. Called before the first `reset`."""

    def get_state(self) -> dict[str, Any] | None:
        """Everything the group needs to go on exactly where it is, as a tree of arrays, strings and numbers; None where its
        environments cannot give it."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` gave, instead of `reset`; finished on return. Raises `EnvironmentFault` where that does not
        lead to the same observations."""

    def close(self) -> None:
        """Release what the environments hold."""


class StepsAtOnce:
    """The part of an `EnvGroup` that is the same wherever a step is finished, or given to the device, when `send` returns."""

    advanced: Sequence[int] | None = None
    ended: Sequence[int] = ()
    called: int | None = None

    def recv(self) -> bool:
        """See `EnvGroup.recv`."""
        return True

    def notify(self, wake: Callable[[], None]) -> None:
        """See `EnvGroup.notify`; never called, since `recv` is always True."""

    def remember(self) -> None:
        """See `EnvGroup.remember`; nothing has to be kept."""


# -- errors -----------------------------------------------------------------------------------------------------------

_MODULES = (
    *("description", "group", "gym", "multi_agent", "pettingzoo", "registered", "registry", "spaces", "tasks", "tensor"),
    *("vector_group", "wrappers"),
)
_INTERNAL = {str(Path(__file__).with_name(f"{name}.py")) for name in _MODULES}
"""Files of this package between the engine and an environment's own code."""
_WRAPPERS = ("/gymnasium/", "/torch/utils/")
"""In the names of files of others that are there, too."""

FAULTS = (Exception, SystemExit)
"""What a call of an environment may raise that is its own fault. `sys.exit` in one would end the run without a word."""


class EnvironmentFault(UserError, RuntimeError):
    """An environment misbehaved; the message names the environment, its index, seed and step.

    `frames`: where it did, as text, if that happened in another process; else the traceback of the cause is used.
    """

    def __init__(self, message: str, frames: str = "") -> None:
        super().__init__(message)
        self._frames = frames

    @property
    def frames(self) -> str:
        """Where the environment raised, as in a traceback but without the frames that led there; empty if it did not raise."""
        if self.__cause__ is None:
            return self._frames
        frames = traceback.extract_tb(self.__cause__.__traceback__)
        own = [*dropwhile(lambda frame: frame.filename in _INTERNAL or any(part in frame.filename for part in _WRAPPERS), frames)]
        return "".join(["Traceback (most recent call last):\n", *traceback.format_list(own)]) if own else ""


class OutOfBounds(UserWarning):
    """Observations lie outside their space. No error, since well-known environments do so a little."""

"""Groups whose environments run in the calling process and have one agent each.

`LocalGroup` steps a list of Gymnasium environments one after the other; `headrace.envs.vector_group` drives vector environments.
Both take NumPy arrays, have one lane, and finish a step in `send`.

An *episode* is what the learner sees end, where `terminated` or `truncated` is true. A *game* is what the statistics report. It
ends with the same step, unless the step's info says ``"life_lost": True``: then the environment's next reset goes on with the
same game, whose return and length are still added up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any, cast

import gymnasium
import numpy as np

from headrace.config import EnvConfig
from headrace.envs.action_log import ActionLog
from headrace.envs.contract import (
    FAULTS,
    MASK_KEY,
    Array,
    Categorical,
    EnvGroup,
    EnvironmentFault,
    EnvSpec,
    LaneRow,
    ObsRow,
    OutOfBounds,
    StepRow,
    StepsAtOnce,
)
from headrace.envs.spaces import Leaf, decoder, leaves

RewardTransform = Callable[[Array], Array]
_STATISTICS = ("_ended", "_returns", "_lengths", "_games")
"""Attributes that a group keeps from one step to the next."""
BOUNDS_PERIOD = 1000
"""Observations are compared with the bounds of their space at a reset and every so many steps of the group."""
BOUNDS_SLACK = 1e-3
"""How far outside their bounds they may be, as a share of the distance between the bounds: for rounding, and for simulators that
clip one step late."""
LARGEST = 1e18
"""Observations and rewards with larger numbers are refused: their squares would be infinite in float32, and so would the loss."""
OBJECTIVE = "true_objective"
"""Info key at the end of a game: what population-based training compares policies by (`pbt.objective`)."""
PLAYED_STEPS, PLAYED_RETURN = "played_steps", "played_return"
"""Info keys of a reset of vector environments that begin in the middle of games: what was played and gained of these before."""
LIFE_LOST = "life_lost"
"""Info key: this step ended a training episode but not the game."""


NEGATIVE = 0.3
"""What negative rewards are multiplied by where rewards are squashed."""


def reward_transform(options: EnvConfig, library: Any = np) -> RewardTransform:
    """A function from raw rewards to those that are learned from: scaled, squashed to x tanh(r / x) with negative ones times 0.3
    (`reward_soft_clip` x; 5 in the code of Espeholt et al. 2018, IMPALA, for DMLab-30), then clipped to [-clip, clip].
    `library`: numpy or torch, whose arrays the rewards are."""
    scale, clip, soft = options.reward_scale, options.reward_clip, options.reward_soft_clip

    def to_learn(raw: Array) -> Array:
        learned = raw * scale
        if soft is not None:
            learned = soft * library.tanh(learned / soft) * library.where(learned < 0, NEGATIVE, 1.0)
        return learned if clip is None else library.clip(learned, -clip, clip)

    return to_learn


class Completion:
    """Waits for a group, for callers that have nothing else to do until its step is finished."""

    def __init__(self, group: EnvGroup) -> None:
        self._group, self._changed = group, Event()
        group.notify(self._changed.set)

    def wait(self) -> None:
        """Return when the group's last `reset` or `send` is finished. Raises what `recv` raises."""
        while not self._group.recv():
            self._changed.wait()
            self._changed.clear()  # before `recv` is called, so that no call of `wake` after it is lost


def absurd(values: np.ndarray) -> tuple[int, ...] | None:
    """The place of the first number that is not finite or larger than `LARGEST`; None if there is none."""
    flat = values.reshape(-1)
    if flat.dtype == np.float16:  # its squares overflow at once
        flat = flat.astype(np.float32)
    with np.errstate(all="ignore"):
        if flat.dot(flat) < LARGEST**2:  # one pass, and cheaper than to look at every number
            return None
        places = np.argwhere(~(np.abs(values) <= LARGEST))
    return tuple(places[0].tolist()) if len(places) else None


def too_large(value: float) -> str:
    """The end of a sentence that says what a refused number is: the reason, if it is finite."""
    return ", too large to learn from" if np.isfinite(value) else ""


class OneAgentGroup(StepsAtOnce):
    """The common part of both groups: one lane, steps that are finished at once, statistics of games, checks of observations and
    rewards, errors that name the environment. E: `num_envs`."""

    lanes = 1

    def __init__(self, spec: EnvSpec, num_envs: int, observation_leaves: Sequence[Leaf], to_learn: RewardTransform) -> None:
        self.spec = spec
        self.num_envs = self.lane_size = num_envs
        self._leaves = list(observation_leaves)
        self._floats = [name for name, array in spec.observation.items() if np.issubdtype(array.dtype, np.floating)]
        bounds = {name: (spec.observation[name].low, spec.observation[name].high) for name in self._floats}
        self._bounded = [name for name, low_high in bounds.items() if np.isfinite(low_high).all()]
        """Observations that are still compared with their bounds: those found outside are warned of once."""
        self._steps = 0
        self._to_learn = to_learn
        self._seed = 0
        self._ended = np.zeros(num_envs, bool)
        """Bool [E]: the last step ended an episode, and the next one resets."""
        self._raw = np.zeros(num_envs, np.float64)
        """[E]: the raw rewards of the last step."""
        self._returns = np.zeros(num_envs, np.float64)
        """[E]: the raw returns of the games so far, and their lengths in steps, and how many games there were before."""
        self._lengths = np.zeros(num_envs, np.int32)
        self._games = np.zeros(num_envs, np.int64)

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """See `EnvGroup.reset`."""
        (row,) = out
        self._clear(seed)
        row.first[:] = True
        row.valid[:] = True
        self._reset(seed, row)
        self._check(row.obs, row.valid)
        self._check_bounds(row.obs)

    def send(self, rows: Sequence[LaneRow]) -> None:
        """See `EnvGroup.send`; the step is finished on return."""
        (row,) = rows
        self._step(row.actions, row.step, row.after)

    def _reset(self, seed: int, out: ObsRow) -> None:
        """Write the first observations."""
        raise NotImplementedError

    def _step(self, actions: np.ndarray, now: StepRow, after: ObsRow) -> None:
        """Take `actions` [E, A]; write their consequences and the next observations."""
        raise NotImplementedError

    def _clear(self, seed: int) -> None:
        self._seed = seed
        self._ended[:] = False
        self._returns[:] = 0
        self._lengths[:] = 0
        self._games[:] = 0

    def _finish(self, now: StepRow, after: ObsRow, counted: np.ndarray, life_lost: np.ndarray | None) -> None:
        """Check observations and rewards and write the rest of `now`; `counted` is False where the step only reset."""
        ended = now.terminated | now.truncated
        if (place := absurd(self._raw)) is not None:
            raise self.fault(place[0], f"the reward is {self._raw[place]:g}{too_large(self._raw[place])}")
        self._check(after.obs, after.valid)
        self._steps += 1
        if self._bounded and self._steps % BOUNDS_PERIOD == 0:
            self._check_bounds(after.obs)
        now.reward[:] = self._to_learn(self._raw)
        self._returns += self._raw
        self._lengths += counted
        now.episode_return[:] = np.nan
        now.episode_length[:] = 0
        if ended.any():
            game_over = ended if life_lost is None else ended & ~life_lost
            np.copyto(now.episode_return, self._returns, where=game_over, casting="same_kind")
            np.copyto(now.episode_length, self._lengths, where=game_over)
            self._returns[game_over] = 0
            self._lengths[game_over] = 0
            self._games += game_over
        self._ended = ended

    def get_state(self) -> dict[str, Any] | None:
        """See `EnvGroup.get_state`."""
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """See `EnvGroup.set_state`."""
        self._seed = state["seed"]
        for name in _STATISTICS:
            getattr(self, name)[:] = state[name]

    def _statistics(self) -> dict[str, Any]:
        return {"seed": self._seed} | {name: getattr(self, name).copy() for name in _STATISTICS}

    def _check(self, rows: dict[str, np.ndarray], valid: np.ndarray) -> None:
        """Raise `EnvironmentFault` for NaN, infinite and absurdly large observations and for action masks that allow nothing."""
        for name in self._floats:
            if (place := absurd(rows[name])) is not None:
                index, *where = place
                value = rows[name][place]
                raise self.fault(index, f"observation {name!r} is {value:g} at index {where}{too_large(value)}")
        if MASK_KEY in rows:
            self._check_masks(rows[MASK_KEY], valid)

    def _check_bounds(self, rows: dict[str, np.ndarray]) -> None:
        """Warn of observations outside their space's bounds, once for each."""
        for name in list(self._bounded):
            low, high = self.spec.observation[name].low, self.spec.observation[name].high
            least, most = float(rows[name].min()), float(rows[name].max())
            slack = BOUNDS_SLACK * (high - low)
            if least < low - slack or most > high + slack:
                self._bounded.remove(name)
                warnings.warn(
                    f"{self.spec.name}: observation {name!r} has values from {least:g} to {most:g}, but its space says "
                    f"{low:g} to {high:g}. Training goes on; correct the space or the observation",
                    OutOfBounds,
                    stacklevel=2,
                )

    def _check_masks(self, masks: np.ndarray, valid: np.ndarray) -> None:
        at = 0
        for number, part in enumerate(p for p in self.spec.action.parts if isinstance(p, Categorical)):
            allowed = masks[:, at : at + part.n]
            nothing = ~allowed.any(axis=1)
            if (nothing & valid).any():
                index = int(np.flatnonzero(nothing & valid)[0])
                raise self.fault(index, f"the action mask allows no choice in discrete part {number}")
            allowed[nothing] = 1  # an action is computed for the last observation of an episode too, though it is ignored
            at += part.n

    def fault(self, index: int, what: str) -> EnvironmentFault:
        """The error for environment `index`; `what` went wrong."""
        return EnvironmentFault(
            f"{self.spec.name}, environment {index} (seed {self._seed + index}), game {self._games[index] + 1}, "
            f"step {self._lengths[index] + 1}: {what}"
        )


class LocalGroup(OneAgentGroup):
    """Gymnasium environments with equal spaces, stepped one after the other in this process."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]], spec: EnvSpec, to_learn: RewardTransform) -> None:
        super().__init__(spec, len(envs), leaves(envs[0].observation_space), to_learn)
        self.envs = list(envs)
        self._decode = decoder(envs[0].action_space)
        self._logs: list[ActionLog] = []
        """One for each environment, if `remember` was called and the environments have no `get_state`; else empty."""
        self._last_obs: dict[str, np.ndarray] = {}
        """With logs: a copy of the last observations, by name, to compare with after `set_state`."""

    def remember(self) -> None:
        """See `EnvGroup.remember`."""
        if not all(hasattr(env, "get_state") and hasattr(env, "set_state") for env in self.envs):
            self._logs = [ActionLog(env) for env in self.envs]

    def _reset(self, seed: int, out: ObsRow) -> None:
        for i, log in enumerate(self._logs):
            log.start_episode(seed + i)
        for i, env in enumerate(self.envs):
            self.called = i
            try:
                observation = first_of(env.reset(seed=seed + i), dict)
                for leaf in self._leaves:
                    leaf.put_one(out.obs[leaf.name], i, observation)
            except FAULTS as error:
                raise self.fault(i, f"reset failed: {type(error).__name__}: {error}") from error
        self._copy_obs(out.obs)

    def _step(self, actions: np.ndarray, now: StepRow, after: ObsRow) -> None:
        for log, starts, action in zip(self._logs, self._ended, actions, strict=False):
            log.start_episode() if starts else log.append(action)
        raw, terminated, truncated = self._raw, now.terminated, now.truncated
        starting = self._ended.tolist()
        life_lost: np.ndarray | None = None
        if now.episode_objective is not None:
            now.episode_objective[:] = np.nan
        puts = [(leaf.put_one, after.obs[leaf.name]) for leaf in self._leaves]
        i = 0
        try:
            for i, (env, action) in enumerate(zip(self.envs, self._decode(actions), strict=True)):
                self.called = i
                if starting[i]:
                    observation = first_of(env.reset(), dict)
                    raw[i], terminated[i], truncated[i] = 0.0, False, False
                else:
                    observation, reward, over, cut, info = parts_of(env.step(action), STEP)
                    plain = type(over) is bool and type(cut) is bool
                    terminated[i], truncated[i] = (over, cut) if plain else (flag(over), flag(cut))
                    try:
                        raw[i] = reward
                    except (TypeError, ValueError):
                        raise TypeError(f"the reward is {reward!r:.60}, but must be a number") from None
                    if not isinstance(info, dict):
                        raise TypeError(f"the info is a {type(info).__name__}, but must be a dictionary")
                    if info.get(LIFE_LOST):
                        if life_lost is None:
                            life_lost = np.zeros(self.num_envs, bool)
                        life_lost[i] = True
                    elif now.episode_objective is not None and (terminated[i] or truncated[i]):
                        now.episode_objective[i] = objective_of(info)
                for put_one, row in puts:
                    put_one(row, i, observation)
        except FAULTS as error:
            raise self.fault(i, f"{'reset' if starting[i] else 'step'} failed: {type(error).__name__}: {error}") from error
        after.first[:] = self._ended
        np.logical_not(terminated | truncated, out=after.valid)
        self._finish(now, after, ~self._ended, life_lost)
        self._copy_obs(after.obs)

    def set_reward_weights(self, weights: dict[str, float]) -> None:
        """Weigh the parts of the reward like this from now on. Raises `EnvironmentFault` where an environment cannot."""
        for i, env in enumerate(self.envs):
            try:
                env.get_wrapper_attr("set_reward_weights")(dict(weights))
            except Exception as error:
                raise self.fault(i, f"set_reward_weights({weights}) failed: {type(error).__name__}: {error}") from error

    def _copy_obs(self, rows: dict[str, np.ndarray]) -> None:
        if self._logs:
            self._last_obs = {name: row.copy() for name, row in rows.items()}

    def get_state(self) -> dict[str, Any]:
        """The state of every environment: what its own `get_state()` returns (wrappers have a state too, so the outermost one is
        asked), or else the actions of its episode, if `remember` was called before."""
        sources = self._logs or self.envs
        return self._statistics() | {"envs": [cast(Any, source).get_state() for source in sources], "last_obs": self._last_obs}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `EnvGroup.set_state`."""
        super().set_state(state)
        if not self._logs:
            for env, env_state in zip(self.envs, state["envs"], strict=True):
                cast(Any, env).set_state(env_state)
            return
        self._last_obs = {name: np.zeros_like(row) for name, row in state["last_obs"].items()}
        for i, (log, env_state) in enumerate(zip(self._logs, state["envs"], strict=True)):
            observation = log.set_state(env_state, self._decode)
            for leaf in self._leaves:
                leaf.put_one(self._last_obs[leaf.name], i, observation)
        for name, row in state["last_obs"].items():
            if not np.array_equal(row, self._last_obs[name]):
                raise EnvironmentFault(
                    f"{self.spec.name}: the same actions from the same `np_random` did not lead back to the same observations; "
                    "it has other sources of randomness"
                )

    def close(self) -> None:
        """Close every environment, also when one of them fails to."""
        close_all(self.envs)


RESET, STEP = 2, 5
"""Parts of what `reset` and `step` return."""
_NAMES = {RESET: "observation, info", STEP: "observation, reward, terminated, truncated, info"}


def parts_of(result: Any, count: int) -> Any:
    """What `reset` or `step` of an environment returned, if it has as many parts as Gymnasium says."""
    if type(result) is tuple and len(result) == count:
        return result
    what = f"{len(result)} results" if isinstance(result, tuple) else f"a {type(result).__name__}"
    raise TypeError(f"it returned {what} (the interface of old Gym?); Gymnasium's returns ({_NAMES[count]})")


def flag(value: Any) -> bool:
    """A `terminated` or `truncated` of any type that stands for True or False. An info in its place, say, does not."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
        raise TypeError(f"terminated and truncated must be True or False, and one is {value!r:.60}")
    return bool(array.item())


def first_of(result: Any, infos: Any) -> Any:
    """The observation that `reset` returned, if its info is of the type `infos`."""
    observation, info = parts_of(result, RESET)
    if not isinstance(info, infos):
        raise TypeError(f"the info is a {type(info).__name__}, but must be a dictionary (the interface of old Gym?)")
    return observation


def objective_of(info: Mapping[str, Any]) -> float:
    """What the info of an episode's last step says that policies are compared by."""
    if OBJECTIVE not in info:
        raise KeyError(f"pbt.objective {OBJECTIVE}: the info of the last step has none, only {sorted(info)}")
    return float(info[OBJECTIVE])


def close_all(envs: Sequence[Any]) -> None:
    """Close every environment, also when one of them fails to. Raises what failed, as an `ExceptionGroup`."""
    errors = []
    for env in envs:
        try:
            env.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup("closing environments failed", errors)

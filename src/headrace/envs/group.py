"""Groups whose environments run in the calling process and have one agent each.

`LocalGroup` steps a list of Gymnasium environments one after the other. `VectorGroup` drives a `gymnasium.vector.VectorEnv`
in any of its autoreset modes, the native Atari batch among them. Both take NumPy arrays, have one lane, and finish a step in
`send`.

An *episode* is what the learner sees end, where `terminated` or `truncated` is true. A *game* is what the statistics report. It
ends with the same step, unless the step's info says ``"life_lost": True``: then the environment's next reset goes on with the
same game, whose return and length are still added up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any, Literal, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from headrace.config import EnvConfig
from headrace.envs.action_log import ActionLog
from headrace.envs.contract import (
    MASK_KEY,
    Categorical,
    EnvGroup,
    EnvironmentFault,
    EnvSpec,
    LaneRow,
    ObsRow,
    OutOfBounds,
    StepRow,
)
from headrace.envs.spaces import PLAIN_KEY, Leaf, batch_decoder, decoder, leaves, specs_of

RewardTransform = Callable[[np.ndarray], np.ndarray]
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
LIFE_LOST = "life_lost"
"""Info key: this step ended a training episode but not the game."""


def reward_transform(scale: float, clip: float | None) -> RewardTransform:
    """A function from raw rewards to those that are learned from: scaled, then clipped to [-clip, clip]."""
    if clip is None:
        return lambda raw: raw * scale
    return lambda raw: np.clip(raw * scale, -clip, clip)


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


def _absurd(values: np.ndarray) -> tuple[int, ...] | None:
    """The place of the first number that is not finite or larger than `LARGEST`; None if there is none."""
    flat = values.reshape(-1)
    if flat.dtype == np.float16:  # its squares overflow at once
        flat = flat.astype(np.float32)
    with np.errstate(all="ignore"):
        if flat.dot(flat) < LARGEST**2:  # one pass, and cheaper than to look at every number
            return None
        places = np.argwhere(~(np.abs(values) <= LARGEST))
    return tuple(places[0].tolist()) if len(places) else None


def _too_large(value: float) -> str:
    return ", too large to learn from" if np.isfinite(value) else ""


class _Group:
    """The common part of both groups: one lane, steps that are finished at once, statistics of games, checks of observations and
    rewards, errors that name the environment. E: `num_envs`."""

    lanes = 1
    advanced: Sequence[int] | None = None
    ended: Sequence[int] = ()

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

    def recv(self) -> bool:
        """See `EnvGroup.recv`."""
        return True

    def notify(self, wake: Callable[[], None]) -> None:
        """See `EnvGroup.notify`; never called, since `recv` is always True."""

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
        if (place := _absurd(self._raw)) is not None:
            raise self.fault(place[0], f"the reward is {self._raw[place]:g}{_too_large(self._raw[place])}")
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

    def remember(self) -> None:
        """See `EnvGroup.remember`."""

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
            if (place := _absurd(rows[name])) is not None:
                index, *where = place
                value = rows[name][place]
                raise self.fault(index, f"observation {name!r} is {value:g} at index {where}{_too_large(value)}")
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


class LocalGroup(_Group):
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
            try:
                observation = _first(env.reset(seed=seed + i), dict)
                for leaf in self._leaves:
                    leaf.put_one(out.obs[leaf.name], i, observation)
            except Exception as error:
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
                if starting[i]:
                    observation = _first(env.reset(), dict)
                    raw[i], terminated[i], truncated[i] = 0.0, False, False
                else:
                    observation, reward, terminated[i], truncated[i], info = _parts(env.step(action), _STEP)
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
                        now.episode_objective[i] = info[OBJECTIVE]
                for put_one, row in puts:
                    put_one(row, i, observation)
        except Exception as error:
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


class VectorGroup(_Group):
    """A `gymnasium.vector.VectorEnv`; its ``metadata["autoreset_mode"]`` says how it resets.

    NEXT_STEP gives the contract's rows as they are. SAME_STEP, and DISABLED (where ended environments are reset at once),
    give same-step rows: `spec.autoreset` is "same-step" and the true last observation goes to `StepRow.final_obs`.

    `send` also waits for vector environments with processes of their own (AsyncVectorEnv): Gymnasium has no public way to ask
    whether their step is finished. More rollout workers step environments in parallel, too.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], spec: EnvSpec, to_learn: RewardTransform, in_place: bool = False) -> None:
        """`in_place`: the environment's `step` takes ``out``, memory for its (plain) observations."""
        super().__init__(spec, envs.num_envs, leaves(envs.single_observation_space), to_learn)
        self.envs = envs
        self.mode = autoreset_mode(envs)
        self._in_place = in_place
        self._decode = batch_decoder(envs.single_action_space)
        self._in_game = np.ones(self.num_envs, bool)
        """Bool [E]: False where the next step only resets."""

    def _reset(self, seed: int, out: ObsRow) -> None:
        self._in_game[:] = True
        try:
            observations = _first(self.envs.reset(seed=seed), dict | list)
            self._put(out.obs, observations)
        except Exception as error:
            raise self._group_fault("reset", error) from error

    def _step(self, actions: np.ndarray, now: StepRow, after: ObsRow) -> None:
        try:
            out = {"out": after.obs[PLAIN_KEY]} if self._in_place else {}
            stepped = self.envs.step(self._decode(actions), **out)
            observations, self._raw[:], now.terminated[:], now.truncated[:], infos = _parts(stepped, _STEP)
            infos = self._by_key(infos)
            next_step = self.mode is AutoresetMode.NEXT_STEP
            if not next_step:
                observations = self._write_final(now, observations, infos)
            self._put(after.obs, observations)
        except Exception as error:
            raise self._group_fault("step", error) from error
        life_lost, ended = infos.get(LIFE_LOST), now.terminated | now.truncated
        after.first[:] = self._ended if next_step else ended
        after.valid[:] = ~ended if next_step else True
        started = self._ended
        self._finish(now, after, self._in_game, life_lost)
        if next_step:
            now.reward[started] = 0  # a reward of the step after a lost life counts for the game, but followed no chosen action
            self._in_game = ~ended if life_lost is None else ~ended | life_lost

    def _by_key(self, infos: Any) -> dict[str, Any]:
        """The infos that are read here, by key; Gymnasium's wrapper DictInfoToList makes a list of dictionaries of them."""
        if isinstance(infos, dict):
            return infos
        if not isinstance(infos, list):
            raise TypeError(f"the infos are a {type(infos).__name__}, but must be a dictionary or a list of dictionaries")
        by_key: dict[str, Any] = {}
        if any(LIFE_LOST in info for info in infos):
            by_key[LIFE_LOST] = np.array([bool(info.get(LIFE_LOST)) for info in infos])
        if any("final_obs" in info for info in infos):
            by_key["final_obs"] = np.empty(self.num_envs, object)
            for i, info in enumerate(infos):  # one by one: NumPy would make one array of observations that all have ended
                by_key["final_obs"][i] = info.get("final_obs")
        return by_key

    def _write_final(self, now: StepRow, observations: Any, infos: dict[str, Any]) -> Any:
        """Write true last observations where episodes ended; return the observations to act on next."""
        ended = now.terminated | now.truncated
        if not ended.any():
            return observations
        if self.mode is AutoresetMode.DISABLED:
            self._put(now.final_obs, observations, ended)
            observations, _ = self.envs.reset(options={"reset_mask": ended})
        elif infos.get("final_obs") is None:
            raise TypeError("episodes ended, but the infos have no 'final_obs', the last observations of SAME_STEP environments")
        else:
            self._put(now.final_obs, infos["final_obs"], ended)
        self._check(now.final_obs, np.zeros_like(ended))
        return observations

    def _put(self, rows: dict[str, np.ndarray], observations: Any, where: np.ndarray | None = None) -> None:
        """Write batched observations, or only those of some environments, which may also come as an array of objects."""
        for leaf in self._leaves:
            row = rows[leaf.name]
            if observations is row:
                continue  # written in place
            if where is None:
                leaf.put_batch(row, observations)
            elif isinstance(observations, np.ndarray) and observations.dtype == object:
                for i in np.flatnonzero(where):
                    leaf.put_one(row, int(i), observations[i])
            else:
                value = leaf.find(observations)
                for i in np.flatnonzero(where):
                    leaf.put_value(row[i], value[i])

    def _group_fault(self, doing: str, error: Exception) -> EnvironmentFault:
        """The error of the whole group: a vector environment does not say which of its environments failed."""
        return EnvironmentFault(
            f"{self.spec.name}, group of {self.num_envs} environments (seeds {self._seed} to {self._seed + self.num_envs - 1}), "
            f"steps {(self._lengths + 1).tolist()}: {doing} failed: {type(error).__name__}: {error}"
        )

    def get_state(self) -> dict[str, Any] | None:
        """Asks the vector environment's own `get_state()`; None if there is no such method or it returns None."""
        state = self.envs.get_state() if hasattr(self.envs, "get_state") else None
        return None if state is None else self._statistics() | {"in_game": self._in_game.copy(), "envs": state}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `EnvGroup.set_state`."""
        super().set_state(state)
        self._in_game[:] = state["in_game"]
        cast(Any, self.envs).set_state(state["envs"])

    def close(self) -> None:
        """Close the vector environment."""
        self.envs.close()


_RESET, _STEP = 2, 5
_NAMES = {_RESET: "observation, info", _STEP: "observation, reward, terminated, truncated, info"}


def _parts(result: Any, count: int) -> Any:
    """What `reset` or `step` of an environment returned, if it has as many parts as Gymnasium says."""
    if type(result) is tuple and len(result) == count:
        return result
    what = f"{len(result)} results" if isinstance(result, tuple) else f"a {type(result).__name__}"
    raise TypeError(f"it returned {what} (the interface of old Gym?); Gymnasium's returns ({_NAMES[count]})")


def _first(result: Any, infos: Any) -> Any:
    """The observation that `reset` returned, if its info is of the type `infos`."""
    observation, info = _parts(result, _RESET)
    if not isinstance(info, infos):
        raise TypeError(f"the info is a {type(info).__name__}, but must be a dictionary (the interface of old Gym?)")
    return observation


def vector_group(
    envs: VectorEnv[Any, Any, Any], options: EnvConfig, env_id: str, frameskip: int = 1, in_place: bool = False
) -> VectorGroup:
    """The group of a vector environment, with the specification that its spaces and metadata give. Raises `UnsupportedSpace`."""
    observation, action = specs_of(envs.single_observation_space, envs.single_action_space, env_id)
    next_step = autoreset_mode(envs) is AutoresetMode.NEXT_STEP
    autoreset: Literal["next-step", "same-step"] = "next-step" if next_step else "same-step"
    spec = EnvSpec(observation, action, options.frameskip or frameskip, autoreset, env_id)
    return VectorGroup(envs, spec, reward_transform(options.reward_scale, options.reward_clip), in_place)


def autoreset_mode(envs: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """How a vector environment resets ended episodes; raises `ValueError` where its metadata does not say."""
    mode = (envs.metadata or {}).get("autoreset_mode")
    if mode is None:
        raise ValueError(
            f"{type(envs).__name__} does not say how it resets ended episodes: set metadata['autoreset_mode'] to one of "
            f"{', '.join(str(m) for m in AutoresetMode)}"
        )
    return AutoresetMode(mode)


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

"""Small environments in which every number is known in advance."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from headrace.config import EnvConfig
from headrace.envs.core.contract import EnvGroup, EnvSpec, LaneRow, ObsRow, StepRow
from headrace.envs.core.spaces import specs_of
from headrace.envs.groups.base import Completion
from headrace.envs.groups.episode_statistics import LIFE_LOST
from headrace.envs.groups.local import LocalGroup
from headrace.envs.groups.rewards import reward_transform


def episode_length(seed: int, episode: int) -> int:
    """Steps of an episode: 1 to 7."""
    return 1 + (3 * seed + 5 * episode) % 7


def reward_of(episode: int, step: int, action: int) -> float:
    """The reward of the action on observation `step`; exact in float32."""
    return 64.0 * episode + 8.0 * step + action


class CountingEnv(gymnasium.Env):
    """Observation [seed, episode, step, last action (-1 at first)]; even seed + episode terminate, odd ones are truncated."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, actions: int = 5) -> None:
        self.observation_space = spaces.Box(-1, 1e6, (4,), np.float32)
        self.action_space = spaces.Discrete(actions)
        self.seed, self.episode, self.count, self.last = 0, -1, 0, -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self.seed, self.episode = seed, -1
        self.episode += 1
        self.count, self.last = 0, -1
        return self.observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = reward_of(self.episode, self.count, int(action))
        self.count += 1
        self.last = int(action)
        over = self.count == episode_length(self.seed, self.episode)
        terminates = (self.seed + self.episode) % 2 == 0
        return self.observation(), reward, over and terminates, over and not terminates, {}

    def observation(self) -> np.ndarray:
        return np.array([self.seed, self.episode, self.count, self.last], np.float32)


class LosingLives(CountingEnv):
    """A life is lost at the end of every episode; the game is over with the third."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        over = terminated or truncated
        return observation, reward, over, False, {LIFE_LOST: over and self.episode % 3 != 2}


class BadEnv(CountingEnv):
    """A counting world that breaks in one way, at step 3 of a game that never ends otherwise."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.count += 1
        observation, reward = self.observation(), 1.0
        if self.count == 3:
            match self.way:
                case "nan observation":
                    observation[2] = np.nan
                case "infinite observation":
                    observation[1] = np.inf
                case "huge observation":
                    observation[3] = 1e30
                case "huge reward":
                    reward = -1e30
                case "shape":
                    observation = observation[:3]
                case "broadcastable shape":
                    observation = observation[:1]
                case "dtype":
                    observation = observation.astype(np.complex64)
                case "nan reward":
                    reward = np.nan
                case "no reward":
                    reward = None  # type: ignore[assignment]
                case "list as info":
                    return observation, reward, False, False, []  # type: ignore[return-value]
                case "four results":
                    return observation, reward, False, {}  # type: ignore[return-value]
                case "raises":
                    raise ZeroDivisionError("from inside the environment")
                case "info too early":
                    return observation, reward, False, {"seen": 1}, {}  # type: ignore[return-value]
                case "exits":
                    raise SystemExit(3)
        return observation, reward, False, False, {}


def rows_for(spec: EnvSpec, num_envs: int) -> tuple[StepRow, ObsRow]:
    """Memory for one step, filled with rubbish that a group has to overwrite."""
    step = StepRow(
        reward=np.full(num_envs, 1e9, np.float32),
        terminated=np.ones(num_envs, bool),
        truncated=np.ones(num_envs, bool),
        episode_return=np.full(num_envs, 1e9, np.float32),
        episode_length=np.full(num_envs, 99, np.int32),
        final_obs=_arrays(spec, num_envs) if spec.autoreset == "same-step" else {},
    )
    return step, ObsRow(_arrays(spec, num_envs), np.ones(num_envs, bool), np.ones(num_envs, bool))


def _arrays(spec: EnvSpec, num_envs: int) -> dict[str, np.ndarray]:
    return {name: np.full((num_envs, *a.shape), 77, a.dtype) for name, a in spec.observation.items()}


def local_group(envs: list[gymnasium.Env], options: EnvConfig | None = None, name: str = "test") -> LocalGroup:
    """A group of these environments."""
    options = options or EnvConfig()
    observation, action = specs_of(envs[0].observation_space, envs[0].action_space, name)
    return LocalGroup(envs, EnvSpec(observation, action, name=name), reward_transform(options))


def reset_group(group: EnvGroup, seed: int, after: ObsRow) -> None:
    """`reset` of a group with one lane, until it is finished."""
    completion = Completion(group)
    group.reset(seed, [after])
    completion.wait()


def step_group(group: EnvGroup, actions: np.ndarray, now: StepRow, after: ObsRow) -> None:
    """One step of a group with one lane, until it is finished."""
    completion = Completion(group)
    group.send([LaneRow(actions, now, after)])
    completion.wait()


class DelayedGroup:
    """Another group behind a thread that takes its time, as an environment server's would be: it calls `pause` twice a step."""

    advanced, ended, called = None, (), None  # groups of one lane

    def __init__(self, group: EnvGroup, pause: Callable[[], object] = lambda: time.sleep(0.002)) -> None:
        self.spec, self.num_envs, self.lanes, self.lane_size = group.spec, group.num_envs, group.lanes, group.lane_size
        self._group, self._pause = group, pause
        self._wake: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.asked = 0
        """Calls of `recv` so far."""

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        self._begin(self._group.reset, seed, out)

    def send(self, rows: Sequence[LaneRow]) -> None:
        self._begin(self._group.send, rows)

    def _begin(self, call: Callable[..., None], *arguments: Any) -> None:
        assert self._thread is None, "the step before is not finished"

        def run() -> None:
            self._pause()
            self._wake()  # for nothing
            self._pause()
            try:
                call(*arguments)
                self._thread = None
            except Exception as error:
                self._error = error
            self._wake()

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def recv(self) -> bool:
        self.asked += 1
        if self._error is not None:
            raise self._error
        return self._thread is None

    def notify(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def remember(self) -> None:
        self._group.remember()

    def get_state(self) -> dict[str, Any] | None:
        return self._group.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._group.set_state(state)

    def close(self) -> None:
        self._group.close()


def random_actions(spec: EnvSpec, num_envs: int, rng: np.random.Generator) -> np.ndarray:
    """Rows [E, A] of actions within the specification."""
    columns = []
    for part in spec.action.parts:
        if hasattr(part, "n"):
            columns.append(rng.integers(0, part.n, (num_envs, 1)))
        else:
            columns.append(rng.uniform(np.maximum(part.low, -10), np.minimum(part.high, 10), (num_envs, part.width)))
    return np.concatenate(columns, axis=1).astype(spec.action.dtype)

"""Environments of the learning benchmarks, to be given with --import.

    headrace train --import benchmarks/learning/worlds.py --env memory/corridor --policy.core gru
    headrace train --import benchmarks/learning/worlds.py --env minatar/breakout --learning.algorithm apex-dqn

slow/cartpole      CartPole whose steps take time
cliff/walk         a walk where reward is rare
memory/corridor    a task that only a policy with memory can solve
plain/grid         a grid to cross, and plain/levers, three levers to set: as somebody writes them who declares no settings
minatar/<game>     MinAtar's five games; they need the package `minatar`
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from headrace.config import EnvConfig, PolicyConfig
from headrace.envs.core.contract import ArraySpec
from headrace.envs.core.registry import register, register_vector
from headrace.policies.registry import register_network

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]

# -- for the experiments with Ape-X ------------------------------------------------------------------------------------


class Slow(VectorWrapper):
    """Every step of all environments together takes at least `seconds`: as if each had a processor of its own."""

    def __init__(self, env: VectorEnv, seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step and wait."""
        time.sleep(self._seconds)
        return self.env.step(actions)


@register_vector("slow/cartpole")
def slow(options: EnvConfig, num_envs: int) -> VectorEnv:
    """`envs.kwargs`: {"seconds": 0.02}."""
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    return Slow(envs, float(options.kwargs.get("seconds", 0.02)))


class Cliff(gymnasium.Env[np.ndarray, int]):
    """The blind cliff walk of Schaul et al. 2016 (figure 1): in each of `length` places one of two actions leads on and the other
    ends the episode without reward; past the last place there is a reward of 1. Acting at random gets there once in 2^length
    episodes, so that almost all transitions tell nothing.

    Observation: the place, one-hot, float32 [length].
    """

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 10) -> None:
        self._length = length
        self._right = np.random.default_rng(0).integers(0, 2, length)  # which action leads on
        self.observation_space = gymnasium.spaces.Box(0, 1, (length,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Back to the first place."""
        super().reset(seed=seed)
        self._at = 0
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        """One place on, or over the cliff."""
        on = int(action) == self._right[self._at]
        there = bool(on) and self._at == self._length - 1
        self._at += bool(on) and not there
        return self._observation(), float(there), not on or there, False, {}

    def _observation(self) -> np.ndarray:
        return np.eye(self._length, dtype=np.float32)[self._at]


@register("cliff/walk")
def cliff(options: EnvConfig, *, render_mode: str | None = None) -> Cliff:
    """The cliff walk."""
    return Cliff(**options.kwargs)


# -- memory ------------------------------------------------------------------------------------------------------------

CUES = 4


class Corridor(gymnasium.Env[np.ndarray, int]):
    """A cue must be remembered through a corridor. At the first step the observation shows one of four cues. Then come `corridor`
    steps of noise. At the last step, marked, the action must name the cue: +1 if it does, else -1. Without memory the best mean
    return is -0.5 (one guess in four is right).

    Observation float32 [CUES + 2]: the cue one-hot (only at the first step), "decide now", noise."""

    observation_space = gymnasium.spaces.Box(-1, 1, (CUES + 2,), np.float32)
    action_space = gymnasium.spaces.Discrete(CUES)

    def __init__(self, corridor: int = 12) -> None:
        self._corridor = corridor

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A new cue."""
        super().reset(seed=seed)
        self._cue, self._at = int(self.np_random.integers(CUES)), 0
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        """One step along the corridor; the last one decides."""
        deciding = self._at == self._corridor
        reward = (1.0 if int(action) == self._cue else -1.0) if deciding else 0.0
        self._at += 1
        return self._observation(), reward, deciding, False, {}

    def _observation(self) -> np.ndarray:
        row = np.zeros(CUES + 2, np.float32)
        if self._at == 0:
            row[self._cue] = 1
        row[CUES] = self._at == self._corridor
        row[CUES + 1] = self.np_random.uniform(-1, 1)
        return row


CORRIDOR = {
    "policy.core": "gru",
    "policy.core_size": 64,
    "policy.mlp": (64,),
    "sampling.num_workers": 1,
    "sampling.envs_per_worker": 32,
    "sampling.rollout": 32,
    "learning.batch_size": 1024,
    "learning.num_epochs": 2,
    "learning.num_minibatches": 2,
    "learning.learning_rate": 1e-3,
    "learning.entropy_coef": 0.01,
    "learning.max_grad_norm": 0.5,
    "learning.num_threads": 1,
}


@register("memory/corridor", defaults=CORRIDOR)
def corridor(options: EnvConfig, *, render_mode: str | None = None) -> Corridor:
    """The corridor."""
    return Corridor(**options.kwargs)


# -- somebody's own ------------------------------------------------------------------------------------------------------


class Grid(gymnasium.Env[np.ndarray, int]):
    """From anywhere on a grid to a goal that is anywhere on it: +1 there, -0.01 for every step, at most 100 steps. Acting at
    random gets about -0.25, the shortest ways 0.95.

    Observation float32 [4]: row and column of the agent and of the goal, in [0, 1]. Actions: up, down, left, right."""

    observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, size: int = 8) -> None:
        self._size = size

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Other places."""
        super().reset(seed=seed)
        agent, goal = self.np_random.choice(self._size**2, 2, replace=False)
        self._agent = np.array(divmod(int(agent), self._size))
        self._goal = np.array(divmod(int(goal), self._size))
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        """One field on; the border stops it."""
        way = ((-1, 0), (1, 0), (0, -1), (0, 1))[int(action)]
        self._agent = np.clip(self._agent + way, 0, self._size - 1)
        self._steps += 1
        there = bool((self._agent == self._goal).all())
        return self._observation(), float(there) - 0.01, there, self._steps >= 100 and not there, {}

    def _observation(self) -> np.ndarray:
        return np.concatenate([self._agent, self._goal]).astype(np.float32) / (self._size - 1)


class Levers(gymnasium.Env[dict[str, Any], np.ndarray]):
    """Sixteen times: set three levers as the lamps say, the third as the lamps before this step said. 1/48 for each that is
    right, so that all right are a return of 1; random play 0.36, without the second rule 0.83.

    Observation: a Dict of lamps (MultiDiscrete), the lamps before (MultiDiscrete) and noise (Box). Action: MultiDiscrete."""

    LEVERS = np.array([3, 4, 2])
    observation_space = gymnasium.spaces.Dict(
        lamps=gymnasium.spaces.MultiDiscrete(LEVERS),
        before=gymnasium.spaces.MultiDiscrete(LEVERS),
        noise=gymnasium.spaces.Box(-1, 1, (2,), np.float32),
    )
    action_space = gymnasium.spaces.MultiDiscrete(LEVERS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """New lamps."""
        super().reset(seed=seed)
        self._lamps = self.np_random.integers(self.LEVERS)
        self._left = 16
        return self._next(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Set the levers."""
        wanted = np.array([self._lamps[0], self._lamps[1], self._before[2]])
        self._left -= 1
        return self._next(), float((np.asarray(action) == wanted).sum()) / 48, self._left == 0, False, {}

    def _next(self) -> dict[str, Any]:
        self._before, self._lamps = self._lamps, self.np_random.integers(self.LEVERS)
        return {"lamps": self._lamps, "before": self._before, "noise": self.np_random.uniform(-1, 1, 2).astype(np.float32)}


@register("plain/grid")
def grid(options: EnvConfig, *, render_mode: str | None = None) -> Grid:
    """The grid."""
    return Grid(**options.kwargs)


@register("plain/levers")
def levers(options: EnvConfig, *, render_mode: str | None = None) -> Levers:
    """The levers."""
    return Levers()


# -- MinAtar -----------------------------------------------------------------------------------------------------------

MINATAR = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
MINATAR_STEPS = 5_000


class MinAtar(gymnasium.Env[np.ndarray, int]):
    """One of the games of MinAtar (Young and Tian 2019, arXiv 1903.03176), with its own defaults: sticky actions 0.1, difficulty
    ramping. Episodes are cut off after 5,000 steps, where a good player would go on for ever.

    Observation uint8 [C, 10, 10], 255 where the channel's kind of object is; the game's minimal actions."""

    def __init__(self, game: str) -> None:
        logging.disable(logging.WARNING)  # it misses its drawing library, which is not needed
        from minatar import Environment

        logging.disable(logging.NOTSET)
        self._game = Environment(game)
        self._actions = self._game.minimal_action_set()
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        height, width, channels = self._game.state_shape()
        self.observation_space = gymnasium.spaces.Box(0, 255, (channels, height, width), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A new game."""
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.reset()
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        """One step of the game."""
        reward, over = self._game.act(self._actions[int(action)])
        self._steps += 1
        return self._observation(), float(reward), bool(over), self._steps >= MINATAR_STEPS and not over, {}

    def _observation(self) -> np.ndarray:
        return np.ascontiguousarray(self._game.state().transpose(2, 0, 1), dtype=np.uint8) * np.uint8(255)


def minatar_network(observation: dict[str, ArraySpec], config: PolicyConfig, *, linear: bool) -> Any:
    """The paper's: a convolution, 16@3s1, and a linear layer of 128."""
    from headrace.policies.encoders import ConvEncoder, MultiEncoder, convolutions

    def encoder(spec: ArraySpec) -> ConvEncoder:
        layers = convolutions(spec.shape[0], ((16, 3, 1),), "relu")
        return ConvEncoder(spec.shape, layers, "relu", config.hidden if linear else None)

    return MultiEncoder({name: encoder(spec) for name, spec in observation.items()})


# Without the linear layer only for heads of Q-learning that have one of their own: a policy whose heads are linear in 3x3 patches
# cannot relate the ball to the paddle.
register_network("minatar")(partial(minatar_network, linear=True))
register_network("minatar-conv")(partial(minatar_network, linear=False))


def minatar(options: EnvConfig, *, render_mode: str | None = None, game: str) -> MinAtar:
    """One game."""
    return MinAtar(game)


for name in MINATAR:
    register(f"minatar/{name}", defaults={
        "policy.encoder": "minatar", "policy.hidden": 128, "sampling.num_workers": 1, "learning.num_threads": 1,
    }, observes="images")(partial(minatar, game=name))  # fmt: skip

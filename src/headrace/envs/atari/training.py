"""Training episodes of Atari games, which may end with a life and may begin in the middle of games."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.contract import Array, on_host
from headrace.envs.groups.episode_statistics import LIFE_LOST
from headrace_atari import AtariVector, read_states


class TrainingStarts:
    """Where the training episodes of a group begin: see `EnvConfig.random_start` and `EnvConfig.start_states`.

    Raises `ConfigError` for both at once, and for a file without states.
    """

    def __init__(self, options: EnvConfig) -> None:
        if options.random_start and options.start_states is not None:
            raise ConfigError("envs.random_start and envs.start_states cannot be together: play at random before saving states")
        self._random_steps = options.random_start
        self._states: list[bytes] = []
        self._generator = np.random.default_rng()
        if options.start_states is not None:
            try:
                self._states = read_states(options.start_states)
            except OSError as error:
                raise ConfigError(f"envs.start_states: {options.start_states} cannot be read: {error.strerror}") from error
            except ValueError as error:
                raise ConfigError(f"envs.start_states: {error}") from error
        self.in_states = bool(self._states)
        """Whether every episode begins in a saved state, so that `begin` must be called for each."""

    def reset_options(self, seed: Any, count: int) -> dict[str, Any] | None:
        """Options of `AtariVector.reset` for `count` environments."""
        self._generator = np.random.default_rng(seed)
        if self._states:
            return {"states": [self._draw() for _ in range(count)]}
        return {"random_steps": self._random_steps} if self._random_steps else None

    def begin(self, envs: AtariVector, ended: Iterable[int]) -> None:
        """Load a state into each of these environments, whose next step must be NOOP."""
        for i in ended:
            envs.load_state(int(i), self._draw())

    def _draw(self) -> bytes:
        return self._states[int(self._generator.integers(len(self._states)))]

    def get_state(self) -> dict[str, Any]:
        return dict(self._generator.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        self._generator.bit_generator.state = state


def _noop_where(here: Array, actions: Array) -> Array:
    """The actions, NOOP where `here` [E] is true: the first of every game, and of continuous ones [E, 3] the stick at rest."""
    return actions * ~(here if actions.ndim == 1 else here[:, None])


class TrainingEpisodes(VectorWrapper):
    """With `life_loss`, a lost life ends the episode (`terminated`, info "life_lost") if others are left.

    The game goes on: the next step stands for the reset of NEXT_STEP autoreset. It ignores its action and plays NOOP.

    Arrays are those of the consoles: NumPy arrays, or tensors on a GPU, for which the host never waits. Only with saved states
    it checks in every step which episodes have ended. `out`: see `AtariVector.step`; native consoles only.
    """

    def __init__(self, env: VectorEnv, life_loss: bool, starts: TrainingStarts | None = None) -> None:
        """`starts`: where episodes begin (native consoles only); None: as the protocol says."""
        super().__init__(env)
        self._consoles: Any = env
        self._life_loss, self._starts = life_loss, starts

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None, **out: Any) -> tuple[Any, dict[str, Any]]:
        if self._starts is not None:
            options = self._starts.reset_options(seed, self.num_envs)
        observations, infos = self._consoles.reset(seed=seed, options=options, **out)
        self._begin(infos["lives"])
        return observations, infos

    def _begin(self, lives: Array) -> None:
        self._lives: Array = lives + 0
        self._over, self._lost = lives < 0, lives < 0
        """Bool [E], False at first: the last step ended the game; it cost a life and so ended the episode."""

    def step(self, actions: Array, **out: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._life_loss:
            actions = _noop_where(self._lost, actions)
        if self._starts is not None and self._starts.in_states:
            self._starts.begin(self._consoles, [i for i, over in enumerate(self._over.tolist()) if over])
            actions = _noop_where(self._over, actions)
        stepped = self._consoles.step(actions, **out)
        observations, rewards, terminated, truncated, infos = stepped
        self._over = terminated | truncated
        if not self._life_loss:
            return cast(Any, stepped)
        lives = infos["lives"]
        # a life that is lost in the NOOP between two episodes ends no episode
        self._lost = (lives < self._lives) & (lives > 0) & ~self._over & ~self._lost
        self._lives[:] = lives
        return observations, rewards, terminated | self._lost, truncated, infos | {LIFE_LOST: self._lost}

    def get_state(self) -> dict[str, Any] | None:
        """Lives, and every console as bytes; None for ale-py's vector environment, which cannot be saved."""
        if not isinstance(self.env, AtariVector):
            return None
        consoles = [np.frombuffer(self.env.save_state(i), np.uint8) for i in range(self.num_envs)]
        state = {"lives": on_host(self._lives), "lost": on_host(self._lost), "consoles": consoles}
        return state if self._starts is None else state | {"over": on_host(self._over), "starts": self._starts.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned. Raises `ValueError` for states of another game or other options."""
        if ("starts" in state) != (self._starts is not None):
            raise ValueError("the saved state was made with other envs.random_start or envs.start_states")
        _, infos = self._consoles.reset()  # a vector environment is stepped only after a reset
        self._begin(infos["lives"])
        for i, console in enumerate(state["consoles"]):
            self._consoles.load_state(i, console.tobytes())
        self._lives[:], self._lost[:] = state["lives"], state["lost"]
        if self._starts is not None:
            self._over[:] = state["over"]
            self._starts.set_state(state["starts"])

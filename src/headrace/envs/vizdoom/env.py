"""The single-player environment: one Doom engine, with or without scripted bots."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import vizdoom

from headrace.config import EnvConfig
from headrace.envs.vizdoom.game import DEATHMATCH_ARGS, PORT_RETRIES, EngineFailed, free_port, start
from headrace.envs.vizdoom.player import BASE, ENTRY_FRAMES, Player, Settings


class VizdoomEnv(gymnasium.Env):
    """One Doom engine, a process of its own, started at the first reset.

    Observation: uint8 [H, W, C], or a Dict of it as "obs" and "measurements" float32 [V]. Reward: raw, summed over the frames.
    With bots, players respawn, and the episode lasts until its time limit. Its last info has the score (`Player.score`).
    """

    def __init__(self, name: str, options: EnvConfig, render_mode: str | None = None) -> None:
        settings = Settings.of(name, options)
        self._new_player = partial(Player, name, options, settings)
        self.player = self._new_player()
        self.action_space, self.observation_space = self.player.action_space, self.player.observation_space
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 35 / self.player.frameskip}
        self._hosts = bool(settings.bots) or name in BASE
        """Whether the engine hosts a network game. Deathmatch levels have no start for a single player, so they need it even
        without bots."""
        self._started = self._steps = 0
        self._cut_after = options.max_episode_steps  # steps after which a wrapper truncates the episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        game_seed = int(self.np_random.integers(2**31))
        if self.game.is_running():
            self.game.set_seed(game_seed)
            self.game.new_episode()
        else:
            self._start(game_seed)
        self.player.add_bots()
        if self._hosts:
            self.game.advance_action(ENTRY_FRAMES)
        self._started, self._steps = self.game.get_episode_time(), 0
        self.player.begin()
        return self.player.observe(), {}

    def _start(self, seed: int) -> None:
        """Start the engine, on another port if one is taken just before its use. Raises `EngineFailed`."""
        for attempt in range(PORT_RETRIES):
            self.game.set_seed(seed)
            if self._hosts:
                self.game.set_game_args(f"-host 1 -port {free_port()} {DEATHMATCH_ARGS} {self.player.settings.bot_args}")
            try:
                return start(self.game)
            except EngineFailed:
                failed, self.player = self.player, self._new_player()
                self.player.shaping = failed.shaping
                if attempt == PORT_RETRIES - 1:
                    raise

    @property
    def game(self) -> vizdoom.DoomGame:
        return self.player.game

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        player, limit = self.player, self.player.limit
        frames = player.step_frames(self.game.get_episode_time() - self._started)
        reward = player.reward(self.game.make_action(player.presses(action), frames), frames)
        terminated = self.game.is_episode_finished()
        truncated = not terminated and 0 < limit <= self.game.get_episode_time() - self._started
        self._steps += 1
        info = player.score() if terminated or truncated or self._steps == self._cut_after else {}
        # after a termination there is no image, so the last one is repeated; a terminated episode is never bootstrapped
        return player.observation if terminated else player.observe(), reward, terminated, truncated, info

    def set_shaping(self, weights: Mapping[str, float] | str) -> None:
        self.player.set_shaping(weights)

    def set_reward_weights(self, weights: Mapping[str, float]) -> None:
        """Replace single weights of reward shaping (`EnvConfig.reward_weights`), from the next step on."""
        self.player.set_reward_weights(weights)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """The screen before resizing, three times as large: uint8 [360, 480, 3]."""
        return self.player.render() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.game.close()

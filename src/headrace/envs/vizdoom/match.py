"""Matches of several Doom players: one game process per player, connected over UDP on this machine, in lock-step.

`Match` has PettingZoo's ParallelEnv interface. Every player has a thread here: a Doom engine blocks its caller until the frame is
over, which is when the engines of all players have exchanged their commands. All players compute the same frame at the same time:
engines that are more than one frame apart deadlock.

**Faults.** A match ends if one of its engines was killed, stopped or hangs: all agents are truncated, with their last
observations, the info ``"restarted": True`` and the outcome NaN (no winner, no loser). The next `reset` starts new engines on
another port. A dead or stopped engine is noticed within a second, any other hang after `Settings.step_timeout`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import gymnasium
import numpy as np

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.contract import OBJECTIVE
from headrace.envs.vizdoom.game import DEATHMATCH_ARGS, PORT_RETRIES, Engine, error_of, free_port
from headrace.envs.vizdoom.player import ENTRY_FRAMES, FRAMESKIP, Player, Settings

CHECK_INTERVAL = 0.5  # seconds between two checks of the engines while their answers are missing
CLOSE_TIMEOUT = 5.0  # seconds that a player's thread may take to close its engine, before both are abandoned


class MatchFailed(RuntimeError):
    """A game process of a match ended, stopped or gave no answer in time."""


class Seat:
    """A player, its engine and the thread that waits for it."""

    def __init__(self, agent: str, player: Player) -> None:
        self.agent, self.player = agent, player
        self.engine: Engine | None = None
        self.presses: list[float] = []
        self.reward = 0.0
        self._work: SimpleQueue[tuple[Callable[[Seat], None], SimpleQueue[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="vizdoom player", daemon=True).start()

    def do(self, work: Callable[[Seat], None], done: SimpleQueue[Any]) -> None:
        """Call `work` with this seat in the seat's thread, which then puts (seat, error or None) to `done`."""
        self._work.put((work, done))

    def start(self) -> None:
        assert self.engine is not None
        self.engine.start()

    def leave(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            done.put((self, error_of(partial(work, self))))


class Match:
    """A match of `Settings.players` players; see the module. All have the spaces of the single-player environment.

    Players respawn, and a match lasts until its time limit, unless the level ends it. The last infos have the score
    (`Player.score`) and "outcome" (the frags). Rewards are shaped by default (`shaping`), else the scenario's.
    """

    def __init__(self, name: str, options: EnvConfig, render_mode: str | None = None) -> None:
        if options.frame_stack not in (None, 1):
            raise ConfigError(f"vizdoom/{name}: frame_stack is for environments of one player")
        self._name, self._options = name, options
        self.settings = Settings.of(name, options)
        self.possible_agents = [f"player_{i}" for i in range(self.settings.players)]
        self.agents: list[str] = []
        self.render_mode = render_mode
        fps = 35 / (options.frameskip or FRAMESKIP)
        self.metadata = {"name": "vizdoom_match", "render_modes": ["rgb_array"], "render_fps": fps}
        self.starts = 0  # number of starts of the engines
        self._own_weights: dict[str, dict[str, float]] = {}
        """By agent: its own weights of reward shaping, for players of later engines."""
        self._seats = self._new_seats()
        self._barrier = threading.Barrier(len(self._seats))
        self._running = False
        self._frames = self._steps = 0
        self._rng = np.random.default_rng()

    def _new_seats(self) -> list[Seat]:
        seats = [Seat(agent, Player(self._name, self._options, self.settings)) for agent in self.possible_agents]
        for seat in seats:
            if seat.agent in self._own_weights:
                seat.player.set_reward_weights(self._own_weights[seat.agent])
        return seats

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """uint8 [H, W, C], or a Dict of it as "obs" and "measurements" float32 [V]."""
        return self._seats[0].player.observation_space

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return self._seats[0].player.action_space

    @property
    def players(self) -> list[Player]:
        return [seat.player for seat in self._seats]

    # -- ParallelEnv ------------------------------------------------------------------------------------------------------

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin a match: observations, infos. Raises `MatchFailed` where the engines cannot be started."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        game_seed = int(self._rng.integers(2**31))
        for seat in self._seats:
            seat.player.game.set_seed(game_seed)
        if self._running:
            try:
                self._together(lambda seat: seat.player.game.new_episode(), self.settings.step_timeout)
                self._enter()
            except MatchFailed:
                self._give_up()
        if not self._running:
            self._start(game_seed)
        self._frames = self._steps = 0
        self.agents = list(self.possible_agents)
        for player in self.players:
            player.begin()
        return {seat.agent: seat.player.observe() for seat in self._seats}, {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """All players make a step: observations, rewards, terminations, truncations, infos."""
        if not self.agents:
            raise RuntimeError("the match is over: reset it")
        seats, limit = self._seats, self.players[0].limit
        frames = seats[0].player.step_frames(self._frames)
        for seat in seats:
            seat.presses, seat.reward = seat.player.presses(actions[seat.agent]), 0.0

        def play(seat: Seat) -> None:
            game = seat.player.game
            game.set_action(seat.presses)
            for frame in range(frames):
                if frame:
                    self._barrier.wait()
                game.advance_action(1, frame == frames - 1)
            seat.player.observe()
            seat.reward = seat.player.reward(game.get_last_reward(), frames)

        failed = False
        try:
            self._together(play, self.settings.step_timeout)
        except MatchFailed:
            failed = True
            self._give_up()
        self._frames += frames
        self._steps += 1
        over = not failed and any(seat.player.game.is_episode_finished() for seat in seats)  # the level's script ended it
        ended = failed or over or 0 < limit <= self._frames
        infos: dict[str, dict[str, Any]] = {seat.agent: {} for seat in seats}
        for seat in seats:
            if failed:
                infos[seat.agent] = {"restarted": True, "outcome": np.nan, OBJECTIVE: np.nan}
            elif ended or self._steps == self._options.max_episode_steps:  # at this limit the group truncates the match
                score = seat.player.score()
                infos[seat.agent] = {**score, "outcome": score["frags"]}
        self.agents = [] if ended else self.agents
        return (
            {seat.agent: seat.player.observation for seat in seats},
            {seat.agent: 0.0 if failed else seat.reward for seat in seats},
            dict.fromkeys(infos, over),
            dict.fromkeys(infos, ended and not over),
            infos,
        )

    def set_shaping(self, weights: Mapping[str, float] | str) -> None:
        """Replace the weights of reward shaping of all players, from the next step on."""
        self.settings.shaping = weights if isinstance(weights, str) else dict(weights)  # for players of later engines
        for player in self.players:
            player.set_shaping(weights)

    def set_reward_weights(self, weights: Mapping[str, Mapping[str, float]]) -> None:
        """Replace single weights of reward shaping, by agent (`EnvConfig.reward_weights`), from the next step on."""
        for seat in self._seats:
            if seat.agent in weights:
                self._own_weights[seat.agent] = dict(weights[seat.agent])
                seat.player.set_reward_weights(weights[seat.agent])

    def render(self) -> np.ndarray | None:
        """The screens of all players side by side: uint8 [360, 480 x players, 3]."""
        if self.render_mode != "rgb_array":
            return None
        return np.concatenate([player.render() for player in self.players], axis=1)

    def close(self) -> None:
        self.agents = []
        self._close(kill=False)

    # -- engines ----------------------------------------------------------------------------------------------------------

    def _start(self, seed: int) -> None:
        """Start all engines on a free port; try other ports if that fails."""
        for attempt in range(PORT_RETRIES):
            port, settings = free_port(), self.settings
            timeout = int(settings.start_timeout)
            for index, seat in enumerate(self._seats):
                game = seat.player.game
                seat.engine = Engine(game)
                role = f"-host {settings.players} -netmode 0 {DEATHMATCH_ARGS}" if index == 0 else "-join 127.0.0.1"
                bots = settings.bot_args if index == 0 else ""
                game.set_game_args(f"{role} -port {port} +viz_connect_timeout {timeout} +name player_{index} {bots}")
                game.set_seed(seed)
            try:
                self._together(Seat.start, settings.start_timeout)
                self._enter()
            except MatchFailed:
                self._give_up()
                if attempt == PORT_RETRIES - 1:
                    raise
                continue
            self.starts += 1
            self._running = True
            return

    def _enter(self) -> None:
        """Let bots and players get into the game. Raises `MatchFailed`."""
        self._seats[0].player.add_bots()
        for _ in range(ENTRY_FRAMES):
            self._together(lambda seat: seat.player.game.advance_action(), self.settings.step_timeout)

    def _together(self, work: Callable[[Seat], None], timeout: float) -> None:
        """Run `work` in the threads of all seats. Raises `MatchFailed` if one fails or takes longer than `timeout` seconds."""
        done: SimpleQueue[tuple[Seat, Exception | None]] = SimpleQueue()
        for seat in self._seats:
            seat.do(work, done)
        waiting = dict.fromkeys(self._seats)
        deadline = time.monotonic() + timeout
        while waiting:
            try:
                seat, error = done.get(timeout=CHECK_INTERVAL)
            except Empty:
                if dead := [s for s in waiting if s.engine is not None and not s.engine.runs()]:
                    raise MatchFailed(f"the game process of {_names(dead)} was stopped or ended") from None
                if time.monotonic() > deadline:
                    raise MatchFailed(f"{_names(waiting)} gave no answer within {timeout} s") from None
                continue
            if error is not None:
                raise MatchFailed(f"{seat.agent}: {type(error).__name__}: {error}") from error
            del waiting[seat]

    def _give_up(self) -> None:
        """Kill the engines, and make new seats for the next start."""
        self._barrier.abort()
        self._close(kill=True)
        self._seats = self._new_seats()
        self._barrier = threading.Barrier(len(self._seats))

    def _close(self, kill: bool) -> None:
        self._running = False
        done: SimpleQueue[Any] = SimpleQueue()
        for seat in self._seats:
            if kill and seat.engine is not None:
                seat.engine.kill()
            seat.do(lambda seat: seat.player.game.close(), done)
            seat.leave()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        # the thread of a seat whose start has failed never returns (`Engine.start`)
        closing = {seat for seat in self._seats if seat.engine is None or not seat.engine.starting}
        with suppress(Empty):
            while closing:
                closing.discard(done.get(timeout=max(0.0, deadline - time.monotonic()))[0])
        for seat in self._seats:
            if seat.engine is not None:
                if seat in closing or kill:
                    seat.engine.kill()
                seat.engine.remove_shared_memory()
                seat.engine = None


def _names(seats: Iterable[Seat]) -> str:
    return ", ".join(seat.agent for seat in seats)

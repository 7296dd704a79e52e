"""The group of consoles in the memory of a device, whose rows are tensors: nothing is read back.

Its rows are those of `VectorGroup` around `TrainingEpisodes` (headrace.envs.atari), which the CPU's consoles have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.config import EnvConfig
from headrace.envs.atari_starts import TrainingStarts
from headrace.envs.atari_vector import AtariVector
from headrace.envs.contract import EnvironmentFault, EnvSpec, LaneRow, ObsRow, StepsAtOnce
from headrace.envs.group import PLAYED_RETURN, PLAYED_STEPS, reward_transform
from headrace.envs.spaces import PLAIN_KEY, specs_of


class AtariTensorGroup(StepsAtOnce):
    """The `EnvGroup` of an `AtariVector` on a device, with NEXT_STEP autoreset and raw rewards.

    Args:
        envs: the consoles; observations have no colours, and are written to the rows as they are.
        life_loss: a lost life ends an episode, while the game goes on with one NOOP step.
        starts: where episodes begin. If in states, it is looked in every step, on the host, which of them have ended.
        frameskip: frames per step.
        frame_stack: frames in an observation.
    """

    lanes = 1
    tensors = True
    _KEPT = ("lives", "lost", "ended", "in_game", "returns", "lengths")

    def __init__(
        self,
        envs: AtariVector,
        options: EnvConfig,
        env_id: str,
        *,
        life_loss: bool,
        frameskip: int,
        frame_stack: int,
        starts: TrainingStarts | None = None,
    ):
        observation, action = specs_of(envs.single_observation_space, envs.single_action_space, env_id)
        self.spec = EnvSpec(observation, action, frameskip, name=env_id, frame_stack=frame_stack)
        self.envs: Any = envs  # takes and gives tensors where its signatures say arrays
        self._life_loss, self._starts = life_loss, starts
        self.num_envs = self.lane_size = N = envs.num_envs
        self._to_learn = reward_transform(options, torch)

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(N, dtype=dtype, device=envs.tensor_device)

        self._lives, self._lengths, self._returns = zeros(torch.int32), zeros(torch.int32), zeros(torch.float64)
        self._lost, self._ended, self._in_game = (zeros(torch.bool) for _ in range(3))
        """Of the last step: it cost a life; it ended an episode. `_in_game`: the next step does not only reset."""
        self._nan = torch.full((N,), torch.nan, dtype=torch.float64, device=envs.tensor_device)

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        """See `EnvGroup.reset`."""
        (row,) = out
        options = None if self._starts is None else self._starts.reset_options(seed, self.num_envs)
        _, infos = self.envs.reset(seed=seed, options=options, out=row.obs[PLAIN_KEY])
        for name in self._KEPT:
            getattr(self, f"_{name}").zero_()
        self._lives.copy_(infos["lives"])
        self._in_game.fill_(True)
        if PLAYED_STEPS in infos:  # in the middle of games
            self._lengths.copy_(infos[PLAYED_STEPS])
            self._returns.copy_(infos[PLAYED_RETURN])
        row.first.fill_(True)
        row.valid.fill_(True)

    @torch.no_grad()
    def send(self, rows: Sequence[LaneRow]) -> None:
        """See `EnvGroup.send`; on return the step is given to the device."""
        (row,) = rows
        now, after = row.step, row.after
        actions = torch.as_tensor(row.actions)[:, 0].masked_fill(self._lost, 0)  # NOOP is the first action of every game
        if self._starts is not None and self._starts.in_states:
            actions = actions.masked_fill(~self._in_game, 0)
            self._starts.begin(self.envs, (~self._in_game).nonzero()[:, 0].tolist())
        self.envs.send(actions, out=after.obs[PLAIN_KEY])
        _, reward, terminated, truncated, infos = self.envs.recv()
        raw, lives = reward.double(), infos["lives"]
        over = torch.logical_or(terminated, truncated)
        if self._life_loss:  # a life lost during the NOOP step ends no episode, since the new one has not begun
            self._lost = (lives < self._lives) & (lives > 0) & ~over & ~self._lost
        self._lives.copy_(lives)
        ended = over | self._lost
        now.terminated.copy_(terminated | self._lost)
        now.truncated.copy_(truncated)
        after.first.copy_(self._ended)
        after.valid.copy_(~ended)
        now.reward.copy_(self._to_learn(raw).masked_fill(self._ended, 0.0))
        self._returns += raw
        self._lengths += self._in_game
        now.episode_return.copy_(torch.where(over, self._returns, self._nan))
        now.episode_length.copy_(self._lengths * over)
        self._returns.masked_fill_(over, 0.0)
        self._lengths.masked_fill_(over, 0)
        self._ended, self._in_game = ended, ~over

    def get_state(self) -> dict[str, Any]:
        """Every console as bytes, and what is counted of its game."""
        consoles = [np.frombuffer(self.envs.save_state(i), np.uint8) for i in range(self.num_envs)]
        kept: dict[str, Any] = {name: getattr(self, f"_{name}").to("cpu", copy=True) for name in self._KEPT}
        return kept | {"consoles": consoles, "starts": None if self._starts is None else self._starts.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `EnvGroup.set_state`. Raises `EnvironmentFault` for states of another game or other options."""
        self.envs.reset()  # a vector environment is stepped only after a reset
        try:
            for i, console in enumerate(state["consoles"]):
                self.envs.load_state(i, console.tobytes())
        except ValueError as error:
            raise EnvironmentFault(f"{self.spec.name}: {error}") from error
        for name in self._KEPT:
            getattr(self, f"_{name}").copy_(state[name])
        if self._starts is not None and state["starts"] is not None:
            self._starts.set_state(state["starts"])

    def close(self) -> None:
        """Free the consoles."""
        self.envs.close()

"""The group of Atari consoles in a device's memory. Its rows are tensors, and the host reads nothing back.

Its rows equal those of `VectorGroup` around `TrainingEpisodes` (headrace.envs.atari.training), the group of consoles on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.config import EnvConfig
from headrace.envs.atari.training import TrainingStarts, load_consoles, lost_lives, saved_consoles
from headrace.envs.atari.vector import AtariVector
from headrace.envs.core.contract import EnvGroup, LaneRow, ObsRow
from headrace.envs.core.errors import EnvironmentFault
from headrace.envs.core.spaces import PLAIN_KEY, spec_of
from headrace.envs.groups.episode_statistics import EpisodeStatistics
from headrace.envs.groups.rewards import reward_transform


class AtariTensorGroup(EnvGroup):
    """The `EnvGroup` of an `AtariVector` on a device, with NEXT_STEP autoreset and raw rewards.

    Args:
        envs: the consoles; observations have no colours, and are written to the rows as they are.
        life_loss: a lost life ends an episode, while the game goes on with one NOOP step.
        starts: where episodes begin. With saved states the host checks in every step which episodes have ended.
        frameskip: frames per step.
        frame_stack: frames in an observation.
    """

    tensors = True
    _KEPT = ("lives", "lost", "ended", "in_game")

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
        observed, acted = envs.single_observation_space, envs.single_action_space
        self.spec = spec_of(observed, acted, env_id, options, frameskip=frameskip, frame_stack=frame_stack)
        self.envs: Any = envs  # takes and gives tensors where its signatures say arrays
        self._life_loss, self._starts = life_loss, starts
        self.num_envs = self.lane_size = N = envs.num_envs
        self._to_learn = reward_transform(options, torch)

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(N, dtype=dtype, device=envs.tensor_device)

        self._statistics = EpisodeStatistics(N, torch, device=envs.tensor_device)
        self._lives = zeros(torch.int32)
        self._lost, self._ended, self._in_game = (zeros(torch.bool) for _ in range(3))
        """Bool [N]: the last step cost a life; it ended an episode. `_in_game`: False where the next step is only a reset."""

    def reset(self, seed: int, out: Sequence[ObsRow]) -> None:
        (row,) = out
        options = None if self._starts is None else self._starts.reset_options(seed, self.num_envs)
        _, infos = self.envs.reset(seed=seed, options=options, out=row.obs[PLAIN_KEY])
        for name in self._KEPT:
            getattr(self, f"_{name}").zero_()
        self._lives.copy_(infos["lives"])
        self._in_game.fill_(True)
        self._statistics.begin(infos)
        row.first.fill_(True)
        row.valid.fill_(True)

    @torch.no_grad()
    def send(self, rows: Sequence[LaneRow]) -> None:
        """See `EnvGroup.send`; on return the step is queued on the device."""
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
        if self._life_loss:
            self._lost = lost_lives(lives, self._lives, over, self._lost)
        self._lives.copy_(lives)
        ended = over | self._lost
        now.terminated.copy_(terminated | self._lost)
        now.truncated.copy_(truncated)
        after.first.copy_(self._ended)
        after.valid.copy_(~ended)
        now.reward.copy_(self._to_learn(raw).masked_fill(self._ended, 0.0))
        self._statistics.step(now, raw, self._in_game, over)
        self._ended, self._in_game = ended, ~over

    def get_state(self) -> dict[str, Any]:
        """Every console as bytes, and the statistics of its game."""
        kept: dict[str, Any] = {name: getattr(self, f"_{name}").to("cpu", copy=True) for name in self._KEPT}
        starts = None if self._starts is None else self._starts.get_state()
        return kept | self._statistics.get_state() | {"consoles": saved_consoles(self.envs), "starts": starts}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `EnvGroup.set_state`. Raises `EnvironmentFault` for states of another game or other options."""
        try:
            load_consoles(self.envs, state["consoles"])
        except ValueError as error:
            raise EnvironmentFault(f"{self.spec.name}: {error}") from error
        for name in self._KEPT:
            getattr(self, f"_{name}").copy_(state[name])
        self._statistics.set_state(state)
        if self._starts is not None and state["starts"] is not None:
            self._starts.set_state(state["starts"])

    def close(self) -> None:
        """Free the consoles."""
        self.envs.close()

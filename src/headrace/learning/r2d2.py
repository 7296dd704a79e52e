"""Recurrent replay: Ape-X DQN on sequences with stored core states and burn-in (R2D2, Kapturowski et al. 2019)."""

from __future__ import annotations

from typing import cast

from torch import Tensor
from torch.nn import Module

from headrace.accelerator.graphs import Tensors
from headrace.config import LearningConfig
from headrace.learning import q_learning
from headrace.learning.apex_dqn import ApexDQN
from headrace.learning.state_values import named
from headrace.policies.q_network import QNetwork


class R2D2(ApexDQN):
    """An `Algorithm` on sequences: a batch holds `obs/*`, `action`, `reward`, `discount`, `first`, `last`, `final` of
    burn-in + L + n rows [T, B, ...], `core` [B, S] before row 0 and `weights` [B]. The first rows only warm up the core state; L
    rows are learned from; the last n are for their targets."""

    def prepare(self, model: Module, batch: Tensors, config: LearningConfig) -> None:
        """Update the observations' normalisers, warm up both networks' core states, and compute the target network's values."""
        burn, width = self._config.q.burn_in, cast(QNetwork, model).core_width
        obs, first, core = named(batch, "obs/"), batch["first"].bool(), batch["core"][:, :width]
        cast(QNetwork, model).update_normalizers(obs)
        target = cast(QNetwork, self.target_of(model))
        batch["target_q"] = target.unroll(obs, core, first).q[burn:]
        batch["warm"] = core
        if burn:
            batch["warm"] = cast(QNetwork, model).unroll({n: x[:burn] for n, x in obs.items()}, core, first[:burn]).core

    def loss(self, model: Module, batch: Tensors, config: LearningConfig) -> tuple[Tensor, Tensors]:
        """Weighted mean over the sequences' transitions of 0.5 (target - q)^2; priorities mix largest and mean error."""
        burn, n = self._config.q.burn_in, self._config.replay.n_step
        rows = {name: x[burn:] for name, x in named(batch, "obs/").items()}
        out = cast(QNetwork, model).unroll(rows, batch["warm"], batch["first"][burn:].bool())
        length = len(out.q) - n
        chooser = out.q.detach() if self._config.q.double else batch["target_q"]
        values = q_learning.bootstrap_values(chooser, batch["target_q"], out.allowed)
        values = q_learning.unscale(values) if self._config.q.rescale else values
        later = {name: batch[name][burn:] for name in ("reward", "discount", "last")}
        target = q_learning.sequence_targets(later["reward"], later["discount"], later["last"], values, n)
        target = q_learning.rescale(target) if self._config.q.rescale else target
        taken = out.q[:length].gather(-1, batch["action"][burn : burn + length].long()).squeeze(-1)
        error, mask = target - taken, ~batch["final"][burn : burn + length]
        each = (0.5 * error**2 * mask).sum(0) / mask.sum(0).clamp(min=1)
        loss = (batch["weights"] * each).mean()
        batch["priority"] = q_learning.mixed_priorities(error.detach(), mask)
        return loss, {
            "losses/loss": loss,
            "losses/td_error": (error.abs() * mask).sum() / mask.sum().clamp(min=1),
            "losses/q_mean": taken.mean(),
            "losses/q_max": out.q.max(),
            "losses/target_mean": target.mean(),
        }

"""Ape-X DQN: double Q-learning with dueling networks on n-step transitions from prioritized replay (Horgan et al. 2018).

With atoms it is distributional. `headrace.learning.dqn` explores in another way.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from headrace.accelerator.graphs import Tensors
from headrace.config import Config, LearningConfig
from headrace.envs.core.contract import ArraySpec, EnvSpec
from headrace.learning import q_learning
from headrace.learning.exploration import Configured, EpsilonGreedy
from headrace.learning.state_values import named
from headrace.policies.acting import prepare_for_acting
from headrace.policies.q_network import QNetwork


class TargetNetwork(Configured):
    """An algorithm that learns from a replay, and bootstraps values from a slow copy of its model."""

    _target: Module | None = None

    def extra_fields(self, spec: EnvSpec) -> dict[str, ArraySpec]:
        """The values that initial priorities are computed from, and the environment's index."""
        return {"q": ArraySpec((), np.dtype(np.float32)), "env_index": ArraySpec((), np.dtype(np.int32))}

    def target_of(self, model: Module) -> Module:
        """The target network; a copy of `model` at first. Its weights change rarely, so they are kept as a model that acts has
        them."""
        if self._target is None:
            self._target = copy.deepcopy(model).requires_grad_(False)
            prepare_for_acting(self._target)
        return self._target

    def after_update(self, model: Module, updates: int) -> None:
        """Copy the model into the target network every `target_period` updates."""
        if updates % self._config.q.target_period == 0:
            self.target_of(model).load_state_dict(model.state_dict())

    def state_dict(self, model: Module) -> dict[str, Any]:
        return {"target": self.target_of(model).state_dict()}

    def load_state_dict(self, model: Module, state: dict[str, Any]) -> None:
        self.target_of(model).load_state_dict(state["target"])


class ApexDQN(TargetNetwork, EpsilonGreedy):
    """An `Algorithm` on transitions: a batch holds `obs/*`, `next/*` [B, ...], `action` [B, 1], `reward` (n-step), `discount`
    and `weights` [B]. `loss` adds `priority` [B]. Each environment explores with an epsilon of its own, for life."""

    def make_model(self, spec: EnvSpec, config: Config) -> QNetwork:
        return QNetwork(spec, config.policy, config.q, config.precision)

    def _replayed(self, taken: Tensor, envs: Tensor) -> Tensors:
        return {"q": taken, "env_index": envs.int()}

    def _epsilon(self, net: QNetwork, envs: Tensor) -> Tensor:
        q = self._config.q
        return q_learning.epsilon_ladder(envs, self._config.num_envs, q.epsilon, q.epsilon_alpha, q.epsilon_levels)

    def reported_envs(self, num_envs: int) -> range:
        """The quarter of the environments that explores least, in a population at least one of each policy."""
        return range(num_envs - max(self._config.population.size, num_envs // 4), num_envs)

    def prepare(self, model: Module, batch: Tensors, config: LearningConfig) -> None:
        """Update the observation normalisers, then compute double Q-learning targets; distributional targets are projected onto
        the atoms. The target network gets the normalisers' statistics with its weights."""
        online, target = cast(QNetwork, model), cast(QNetwork, self.target_of(model))
        if online.trunk.normalized:  # images are not rearranged for nothing
            online.update_normalizers(named(batch, "obs/"))
        after = named(batch, "next/")
        bootstrap = target(after)
        chooser = online(after) if self._config.q.double else bootstrap
        if bootstrap.logits is None:
            values = q_learning.bootstrap_values(chooser.q, bootstrap.q, chooser.allowed)
            batch["target"] = batch["reward"] + batch["discount"] * values
            return
        best = q_learning.greedy(chooser.q, chooser.allowed)
        probabilities = bootstrap.logits.softmax(-1)[torch.arange(len(best), device=best.device), best]
        batch["target"] = q_learning.project(online.support, probabilities, batch["reward"], batch["discount"])

    def loss(self, model: Module, batch: Tensors, config: LearningConfig) -> tuple[Tensor, Tensors]:
        """0.5 (target - q)^2, weighted; cross-entropy where distributional. Priorities are |target - q|; where distributional see
        `_distributional_priority`."""
        net, target, index = cast(QNetwork, model), batch["target"], batch["action"].long()
        out = net(named(batch, "obs/"))
        taken = out.q.gather(-1, index).squeeze(-1)
        if out.logits is None:
            expected, error = target, target - taken
            each, batch["priority"] = 0.5 * error**2, error.detach().abs()
        else:
            log_p = out.logits.log_softmax(-1)[torch.arange(len(index), device=index.device), index.squeeze(-1)]
            expected, each = (target * net.support).sum(-1), -(target * log_p).sum(-1)
            batch["priority"] = self._distributional_priority(target, log_p.detach(), expected - taken.detach())
        loss = (batch["weights"] * each).mean()
        return loss, {
            "losses/loss": loss,
            "losses/td_error": batch["priority"].mean(),
            "losses/q_mean": taken.mean(),
            "losses/q_max": out.q.max(),
            "losses/target_mean": expected.mean(),
        }

    def _distributional_priority(self, target: Tensor, log_p: Tensor, error: Tensor) -> Tensor:
        """Float32 [B]: of target distributions [B, M], learned ones as logarithms, and the errors of expected values [B].

        The errors, since the priorities of new transitions, which acting computed, are errors of expected values, too. (Rainbow's
        are the cross-entropy, which is in another unit.)
        """
        return error.abs()

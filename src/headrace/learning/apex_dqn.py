"""Ape-X DQN: double Q-learning with dueling networks on n-step transitions from prioritized replay (Horgan et al. 2018).

With atoms it is distributional. `headrace.learning.dqn` explores in another way.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from headrace.config import Config, LearningConfig, QConfig
from headrace.envs.core.contract import ArraySpec, EnvSpec
from headrace.learning import q_learning
from headrace.learning.algorithm import Algorithm, Mode
from headrace.learning.state_values import named
from headrace.policies.q_network import QNetwork

EVALUATION_EPSILON = 0.00164
"""Share of random actions of a trained network (the evaluation actor of Horgan et al. 2018)."""


class TargetNetwork(Algorithm):
    """An algorithm that learns from a replay, and bootstraps values from a slow copy of its model."""

    def __init__(self, config: QConfig):
        self._config = config
        self._target: nn.Module | None = None

    def extra_fields(self, spec: EnvSpec) -> dict[str, ArraySpec]:
        """The values that initial priorities are computed from, and the environment's index."""
        return {"q": ArraySpec((), np.dtype(np.float32)), "env_index": ArraySpec((), np.dtype(np.int32))}

    def target_of(self, model: nn.Module) -> nn.Module:
        """The target network; a copy of `model` at first."""
        if self._target is None:
            self._target = copy.deepcopy(model).requires_grad_(False)
        return self._target

    def after_update(self, model: nn.Module, updates: int) -> None:
        """Copy the model into the target network every `target_period` updates."""
        if updates % self._config.target_period == 0:
            self.target_of(model).load_state_dict(model.state_dict())

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        """The target network."""
        return {"target": self.target_of(model).state_dict()}

    def load_state_dict(self, model: nn.Module, state: dict[str, Any]) -> None:
        """Go on from `state_dict`."""
        self.target_of(model).load_state_dict(state["target"])


class ApexDQN(TargetNetwork):
    """An `Algorithm` on transitions: a batch holds `obs/*`, `next/*` [B, ...], `action` [B, 1], `reward` (n-step), `discount`
    and `weights` [B]. `loss` adds `priority` [B]."""

    def __init__(self, config: Config):
        super().__init__(config.q)
        self._num_envs, self._policies = config.num_envs, config.population.size

    def make_model(self, spec: EnvSpec, config: Config) -> QNetwork:
        """A fresh network."""
        return QNetwork(spec, config.policy, config.q, config.precision)

    def act(
        self,
        model: nn.Module,
        obs: dict[str, Tensor],
        core: Tensor,
        first: Tensor,
        envs: Tensor,
        generator: torch.Generator,
        mode: Mode = "train",
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Epsilon-greedy: in training with each environment's own epsilon, in evaluation with `EVALUATION_EPSILON`;
        deterministic: greedy, and noisy layers without noise. `q` is the taken action's value and `value` the best one's."""
        net = cast(QNetwork, model)
        with net.noise(generator, quiet=mode == "deterministic"):
            out = net.act(obs, core, first)
        best = q_learning.greedy(out.q, out.allowed).unsqueeze(-1)
        if mode == "deterministic":
            action = best.int()
        else:
            epsilon = self._epsilon(model, envs, mode)
            action = q_learning.epsilon_greedy(out.q, out.allowed, epsilon, generator).int().unsqueeze(-1)
        taken = out.q.gather(-1, action.long()).squeeze(-1)
        value = out.q.gather(-1, best).squeeze(-1)
        return {"action": action, "q": taken, "value": value, "env_index": envs.int()}, out.core

    def _epsilon(self, model: nn.Module, envs: Tensor, mode: Mode) -> Tensor:
        """Share of random actions of each environment, float32 [N]."""
        q = self._config
        if mode == "evaluate":
            return torch.full(envs.shape, EVALUATION_EPSILON, device=envs.device)
        return q_learning.epsilon_ladder(envs, self._num_envs, q.epsilon, q.epsilon_alpha, q.epsilon_levels)

    def reported_envs(self, num_envs: int) -> range:
        """The quarter of the environments that explores least, in a population at least one of each policy."""
        return range(num_envs - max(self._policies, num_envs // 4), num_envs)

    def prepare(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> None:
        """Update the observation normalisers, then compute double Q-learning targets; distributional targets are projected onto
        the atoms. The target network gets the normalisers' statistics with its weights."""
        online, target = cast(QNetwork, model), cast(QNetwork, self.target_of(model))
        if online.trunk.normalized:
            online.trunk.update_normalizers(observations(batch, "obs/"))
        after = observations(batch, "next/")
        bootstrap = target(after)
        chooser = online(after) if self._config.double else bootstrap
        if bootstrap.logits is None:
            values = q_learning.bootstrap_values(chooser.q, bootstrap.q, chooser.allowed)
            batch["target"] = batch["reward"] + batch["discount"] * values
            return
        best = q_learning.greedy(chooser.q, chooser.allowed)
        probabilities = bootstrap.logits.softmax(-1)[torch.arange(len(best), device=best.device), best]
        batch["target"] = q_learning.project(online.support, probabilities, batch["reward"], batch["discount"])

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        """0.5 (target - q)^2, weighted; cross-entropy where distributional. Priorities are |target - q|; where distributional see
        `_distributional_priority`."""
        out, target, weights = cast(QNetwork, model)(observations(batch, "obs/")), batch["target"], batch["weights"]
        index = batch["action"].long()
        taken = out.q.gather(-1, index).squeeze(-1)
        if out.logits is None:
            error = target - taken
            each, batch["priority"] = 0.5 * error**2, error.detach().abs()
        else:
            log_p = out.logits.log_softmax(-1)[torch.arange(len(index), device=index.device), index.squeeze(-1)]
            each = -(target * log_p).sum(-1)
            error = (target * cast(QNetwork, model).support).sum(-1) - taken.detach()
            batch["priority"] = self._distributional_priority(target, log_p.detach(), error)
        loss = (weights * each).mean()
        return loss, {
            "losses/loss": loss,
            "losses/td_error": batch["priority"].mean(),
            "losses/q_mean": taken.mean(),
            "losses/q_max": out.q.max(),
            "losses/target_mean": (target if out.logits is None else (target * cast(QNetwork, model).support).sum(-1)).mean(),
        }

    def _distributional_priority(self, target: Tensor, log_p: Tensor, error: Tensor) -> Tensor:
        """Float32 [B]: of target distributions [B, M], learned ones as logarithms, and the errors of expected values [B].

        The errors, since the priorities of new transitions, which acting computed, are errors of expected values, too. (Rainbow's
        are the cross-entropy, which is in another unit.)
        """
        return error.abs()


def observations(batch: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries of a batch whose names begin with `prefix`, under their names without it.

    Images [B, C, H, W] are returned with channels last in memory, the layout in which convolutions compute: they are converted
    here as bytes, once, and not as float32 in each network.
    """
    entries = named(batch, prefix).items()
    return {n: x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for n, x in entries}

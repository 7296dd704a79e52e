"""DQN with the parts of Rainbow, each a switch (Mnih et al. 2015, Nature 518; Hessel et al. 2018, arXiv 1710.02298).

Every environment explores in the same way: with an epsilon that falls linearly with the updates, or by noisy layers. The parts
are settings: `q.double`, `q.dueling`, `q.noisy`, `q.atoms` (distributional), `replay.n_step`, `replay.alpha` (prioritized).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from headrace.config import Config, LearningConfig
from headrace.envs.core.contract import EnvSpec
from headrace.learning.algorithm import Mode
from headrace.learning.apex_dqn import ApexDQN
from headrace.policies.q_network import QNetwork


class DQNetwork(QNetwork):
    """Q(s, .). Epsilon is a buffer, so that actors receive it with the weights."""

    epsilon: Tensor

    def __init__(self, spec: EnvSpec, config: Config):
        super().__init__(spec, config.policy, config.q, config.precision)
        self.register_buffer("epsilon", torch.tensor(config.q.epsilon_first))


class DQN(ApexDQN):
    """The `Algorithm`; batches are those of `ApexDQN`."""

    def __init__(self, config: Config):
        super().__init__(config)
        r, steps = config.replay, config.learning.total_steps
        inserts = config.sampling.rollout * config.lane_size  # without a limit one batch for each trajectory
        ratio = r.samples_per_insert or config.learning.batch_size / inserts
        self._decay_updates = max(1.0, config.q.epsilon_decay * steps * ratio / config.learning.batch_size)

    def make_model(self, spec: EnvSpec, config: Config) -> DQNetwork:
        """A fresh network."""
        return DQNetwork(spec, config)

    def _epsilon(self, model: nn.Module, envs: Tensor, mode: Mode) -> Tensor:
        if mode == "train":
            return cast(DQNetwork, model).epsilon.expand(len(envs))
        return super()._epsilon(model, envs, mode)

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        """That of `ApexDQN`; the share of random actions is one of the statistics."""
        loss, statistics = super().loss(model, batch, config)
        return loss, statistics | {"losses/epsilon": cast(DQNetwork, model).epsilon}

    def after_update(self, model: nn.Module, updates: int) -> None:
        """Let epsilon fall; then the target network."""
        q, share = self._config, min(1.0, updates / self._decay_updates)
        cast(DQNetwork, model).epsilon.fill_(q.epsilon_first + (q.epsilon_last - q.epsilon_first) * share)
        super().after_update(model, updates)

    def reported_envs(self, num_envs: int) -> range:
        """All: they explore alike."""
        return range(num_envs)

    def _distributional_priority(self, target: Tensor, log_p: Tensor, error: Tensor) -> Tensor:
        """The divergence that is minimised, KL(target, p) (Hessel et al., section 4)."""
        return (target * (target.clamp(min=1e-12).log() - log_p)).sum(-1).clamp(min=0)

"""DQN with the parts of Rainbow, each a switch (Mnih et al. 2015, Nature 518; Hessel et al. 2018, arXiv 1710.02298).

Every environment explores in the same way: with an epsilon that falls linearly with the steps, or by noisy layers. The parts
are settings: `q.double`, `q.dueling`, `q.noisy`, `q.atoms` (distributional), `replay.n_step`, `replay.alpha` (prioritized).
"""

from __future__ import annotations

from typing import cast

import numpy as np
from torch import Tensor
from torch.nn import Module

from headrace.accelerator.graphs import Tensors
from headrace.config import Config, LearningConfig
from headrace.envs.core.contract import ArraySpec, EnvSpec
from headrace.learning.apex_dqn import ApexDQN
from headrace.learning.exploration import FallingEpsilon, QNetworkWithEpsilon


class DQN(FallingEpsilon, ApexDQN):
    """The `Algorithm`; batches are those of `ApexDQN`."""

    def extra_fields(self, spec: EnvSpec) -> dict[str, ArraySpec]:
        """The environment's index. Without the action's value: new transitions enter with the largest priority so far (Schaul et
        al. 2016), since an actor cannot compute a divergence from the target network, and one sum tree must not mix two units."""
        return {"env_index": ArraySpec((), np.dtype(np.int32))}

    def _replayed(self, taken: Tensor, envs: Tensor) -> Tensors:
        return {"env_index": envs.int()}

    def make_model(self, spec: EnvSpec, config: Config) -> QNetworkWithEpsilon:
        return QNetworkWithEpsilon(spec, config)

    def loss(self, model: Module, batch: Tensors, config: LearningConfig) -> tuple[Tensor, Tensors]:
        """The loss of `ApexDQN`; its statistics also have the share of random actions."""
        loss, statistics = super().loss(model, batch, config)
        return loss, statistics | {"losses/epsilon": cast(QNetworkWithEpsilon, model).epsilon}

    def reported_envs(self, num_envs: int) -> range:
        """All: they explore alike."""
        return range(num_envs)

    def _distributional_priority(self, target: Tensor, log_p: Tensor, error: Tensor) -> Tensor:
        """The divergence that is minimised, KL(target, p) (Hessel et al., section 4)."""
        return (target * (target.clamp(min=1e-12).log() - log_p)).sum(-1).clamp(min=0)

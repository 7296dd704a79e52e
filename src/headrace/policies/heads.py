"""Heads: from features to what an algorithm needs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headrace.envs.core.contract import ActionSpec
from headrace.policies.distributions import param_width
from headrace.policies.encoders import orthogonal_


class ActionHead(nn.Module):
    """Parameters of the action distribution: [..., F] -> float32 [..., P].

    Logits and means are linear in the features, with small weights so that the first policy is close to uniform. Log standard
    deviations are parameters of their own and do not depend on the observation.
    """

    def __init__(self, in_features: int, spec: ActionSpec, initial_std: float):
        super().__init__()
        means = (param_width(spec) - spec.mask_width) // 2
        self.linear = orthogonal_(nn.Linear(in_features, spec.mask_width + means), gain=0.01)
        self.log_std = nn.Parameter(torch.full((means,), math.log(initial_std))) if means else None

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        params = self.linear(features).float()
        if self.log_std is None:
            return params
        return torch.cat((params, self.log_std.expand(*params.shape[:-1], -1)), dim=-1)


class ValueHead(nn.Module):
    """One number: [..., F] -> float32 [...]."""

    def __init__(self, in_features: int):
        super().__init__()
        self.linear = orthogonal_(nn.Linear(in_features, 1), gain=1.0)

    def forward(self, features: Tensor) -> Tensor:
        """See the class."""
        return self.linear(features).float().squeeze(-1)

"""Deterministic actor and action-value critic, for continuous control (Ape-X DPG, appendix D of Horgan et al. 2018)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from headrace.config import ConfigError, QConfig
from headrace.envs.core.contract import Continuous, EnvSpec


class ActorCritic(nn.Module):
    """The paper's networks: actor 300-200 and critic 400-300 with tanh, the actions squashed into their bounds.

    The paper leaves open where the action joins the critic; here it is after the first layer, as in DDPG (Lillicrap et al. 2016).

    Raises `ConfigError` unless all observations are vectors and all actions are bounded numbers.
    """

    low: Tensor
    high: Tensor
    extent: Tensor
    core_width = 0

    def __init__(self, spec: EnvSpec, config: QConfig):
        super().__init__()
        parts = [p for p in spec.action.parts if isinstance(p, Continuous)]
        bounds = np.array([sum((p.low for p in parts), ()), sum((p.high for p in parts), ())])
        if len(parts) < len(spec.action.parts) or not parts or not np.isfinite(bounds).all():
            raise ConfigError(
                f"{spec.name}: Ape-X DPG needs bounded continuous actions; these are {spec.action.parts}. "
                "Algorithms for them: ppo, appo, impala, a2c"
            )
        if any(array.is_image for array in spec.observation.values()):
            raise ConfigError(f"{spec.name}: Ape-X DPG's networks are for vector observations; this environment observes images")
        self.spec, self.names = spec, tuple(spec.observation)
        width = sum(int(np.prod(a.shape)) for a in spec.observation.values())
        self.register_buffer("low", torch.tensor(bounds[0], dtype=torch.float32), persistent=False)
        self.register_buffer("high", torch.tensor(bounds[1], dtype=torch.float32), persistent=False)
        extent = torch.where(self.high > self.low, self.high - self.low, 1.0)  # 1 for a number that can have one value only
        self.register_buffer("extent", extent, persistent=False)
        actions, first, *rest = spec.action.width, *config.critic_layers
        self.actor = _tanh_layers(width, *config.actor_layers, actions)
        self.critic_observation = _tanh_layers(width, first)
        self.critic = nn.Sequential(*list(_tanh_layers(first + actions, *rest)), nn.Linear((rest or [first + actions])[-1], 1))

    def observation(self, obs: dict[str, Tensor]) -> Tensor:
        """All observations side by side, float32 [N, F]."""
        return torch.cat([obs[name].flatten(1).float() for name in self.names], -1)

    def policy(self, x: Tensor) -> Tensor:
        """Actions within their bounds, float32 [N, A], for observations [N, F]."""
        return self.low + (self.actor(x) + 1) / 2 * (self.high - self.low)

    def q(self, x: Tensor, action: Tensor) -> Tensor:
        """Action values, float32 [N]. The critic sees actions in units of half their range."""
        unit = (action - self.low) / self.extent * 2 - 1
        return self.critic(torch.cat((self.critic_observation(x), unit), -1)).squeeze(-1)


def _tanh_layers(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.Tanh())))

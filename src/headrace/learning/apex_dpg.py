"""Ape-X DPG: deterministic policy gradients on n-step transitions from prioritized replay (Horgan et al. 2018, appendix D)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Generator, Tensor
from torch.nn import Module

from headrace.accelerator.graphs import Tensors
from headrace.config import Config, LearningConfig
from headrace.envs.core.contract import EnvSpec
from headrace.learning.algorithm import Mode
from headrace.learning.apex_dqn import TargetNetwork
from headrace.learning.state_values import named
from headrace.policies.actor_critic import ActorCritic


class ApexDPG(TargetNetwork):
    """An `Algorithm` on transitions, see `ApexDQN`; `action` is float32 [B, A]."""

    def make_model(self, spec: EnvSpec, config: Config) -> ActorCritic:
        return ActorCritic(spec, config.q)

    def act(
        self, model: Module, obs: Tensors, core: Tensor, first: Tensor, envs: Tensor, generator: Generator, mode: Mode = "train"
    ) -> tuple[Tensors, Tensor]:
        """The actor's action, in training with Gaussian noise; `q` is its value and `value` that of the action without noise."""
        net = cast(ActorCritic, model)
        x = net.observation(obs)
        action = best = net.policy(x)
        if mode == "train":
            scale = self._config.q.noise * (net.high - net.low) / 2
            noise = torch.randn(best.shape, generator=generator, device=best.device)
            action = torch.clamp(best + scale * noise, net.low, net.high)
        return {"action": action, "q": net.q(x, action), "value": net.q(x, best), "env_index": envs.int()}, core

    def prepare(self, model: Module, batch: Tensors, config: LearningConfig) -> None:
        """The critic's targets, from the target networks."""
        target = cast(ActorCritic, self.target_of(model))
        after = target.observation(named(batch, "next/"))
        batch["target"] = batch["reward"] + batch["discount"] * target.q(after, target.policy(after))

    def loss(self, model: Module, batch: Tensors, config: LearningConfig) -> tuple[Tensor, Tensors]:
        """The critic's loss, 0.5 (target - q)^2, weighted; and the actor's ascent along dq/da, which is clipped elementwise to
        [-1, 1]. The paper clips "the actor's gradient" so; that this is dq/da follows Acme's D4PG."""
        net = cast(ActorCritic, model)
        x = net.observation(named(batch, "obs/"))
        error = batch["target"] - net.q(x, batch["action"])
        critic = (batch["weights"] * 0.5 * error**2).mean()
        action = net.policy(x)
        probe = action.detach().requires_grad_()
        (slope,) = torch.autograd.grad(net.q(x, probe).sum(), probe)
        actor = -(slope.clamp(-1, 1) * action).sum(-1).mean()
        batch["priority"] = error.detach().abs()
        return critic + actor, {
            "losses/loss": critic + actor,
            "losses/critic_loss": critic,
            "losses/td_error": batch["priority"].mean(),
            "losses/action_gradient": slope.abs().mean(),
            "losses/target_mean": batch["target"].mean(),
        }

"""APPO, PPO, IMPALA and A2C: one loss with different settings.

            policy loss                  value targets and advantages
    appo    clipped ratio (PPO)          V-trace
    ppo     clipped ratio                GAE
    impala  plain policy gradient        V-trace
    a2c     plain policy gradient        GAE with lambda 1 (n-step returns)

Sources: PPO, Schulman et al. 2017; V-trace, Espeholt et al. 2018; APPO, Petrenko et al. 2020.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import Module

from headrace.accelerator.graphs import Tensors
from headrace.config import Config, ConfigError, LearningConfig
from headrace.envs.core.contract import Continuous, EnvSpec
from headrace.learning import losses
from headrace.learning.algorithm import Algorithm, Mode
from headrace.learning.gae import Targets, gae
from headrace.learning.off_policy import off_policyness
from headrace.learning.state_values import all_values, following_values, named
from headrace.learning.vtrace import vtrace
from headrace.policies.policy import Policy, PolicyOutput


class PolicyGradient(Algorithm):
    """An `Algorithm` on the actor-critic `Policy`."""

    def make_model(self, spec: EnvSpec, config: Config) -> Policy:
        """A fresh policy. Raises `ConfigError` where the exploration term does not exist for the actions."""
        numbers = [part for part in spec.action.parts if isinstance(part, Continuous)]
        if config.learning.exploration == "symmetric-kl" and not all(np.isfinite((p.low, p.high)).all() for p in numbers):
            raise ConfigError(
                f"{spec.name}: learning.exploration symmetric-kl needs discrete or bounded actions: there is no uniform "
                "distribution over all numbers. Choose entropy"
            )
        return Policy(spec, config.policy, config.precision)

    def act(
        self, model: Module, obs: Tensors, core: Tensor, first: Tensor, envs: Tensor, generator: Generator, mode: Mode = "train"
    ) -> tuple[Tensors, Tensor]:
        """Sample from the policy; deterministic: its most probable action."""
        out = cast(Policy, model).act(obs, core, first)
        action = out.distribution.mode() if mode == "deterministic" else out.distribution.sample(generator)
        return {"action": action, "log_prob": out.distribution.log_prob(action), "value": out.value}, out.core

    def whole_trajectories(self, config: LearningConfig) -> bool:
        """With V-trace, whose targets are computed under the weights of every step. GAE's are known beforehand."""
        return config.returns != "gae"

    def prepare(self, model: Module, batch: Tensors, config: LearningConfig) -> None:
        """Update the normalisers. With GAE and several optimizer steps, compute targets and advantages once for all of them.

        The return normaliser sees the batch's targets here, once, before any gradient: with V-trace under the present weights,
        which costs a forward pass of its own.
        """
        policy, T, several = cast(Policy, model), len(batch["reward"]), config.num_epochs * config.num_minibatches > 1
        policy.update_normalizers(named(batch, "obs/", T), batch["mask"])
        if config.returns == "gae" and (several or policy.returns is not None):
            targets = _gae(policy, batch, config, all_values(policy, batch))
            if several:
                batch["target"], batch["advantage"] = targets
            policy.update_returns(targets.values, batch["mask"])
        elif policy.returns is not None:
            out = policy.unroll(named(batch, "obs/", T), batch["core"], batch["first"][:T])
            targets = _vtrace(policy, batch, config, out.distribution.log_prob(batch["action"]), _with_row_T(policy, batch, out))
            policy.update_returns(targets.values, batch["mask"])

    def diagnostics(self, model: Module, batch: Tensors, config: LearningConfig) -> Tensors:
        """How far the batch is from the present policy; costs a forward pass."""
        T = len(batch["reward"])
        out = cast(Policy, model).unroll(named(batch, "obs/", T), batch["core"], batch["first"][:T])
        return off_policyness(out.distribution.log_prob(batch["action"]), batch["log_prob"], batch["mask"], config)

    def loss(self, model: Module, batch: Tensors, config: LearningConfig) -> tuple[Tensor, Tensors]:
        """Policy, value and exploration loss of a minibatch [T, B]."""
        policy, c, mask, T = cast(Policy, model), config, batch["mask"], len(batch["reward"])
        out = policy.unroll(named(batch, "obs/", T), batch["core"], batch["first"][:T])
        distribution, values = out.distribution, out.value
        log_prob = distribution.log_prob(batch["action"])
        if "advantage" in batch:
            targets = Targets(batch["target"], batch["advantage"])
        elif c.returns == "gae":
            targets = _gae(policy, batch, c, _with_row_T(policy, batch, out))
        else:
            targets = _vtrace(policy, batch, c, log_prob.detach(), _with_row_T(policy, batch, out))
        count, advantages = losses.valid_count(mask), targets.advantages
        kept: Tensor | None = mask
        if mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool(mask.all()):
            kept = None  # replacing nothing costs as many operations
        if c.normalize_advantages:
            advantages = losses.normalize_advantages(advantages, kept, count=count)

        surrogate = losses.policy_loss(log_prob, batch["log_prob"], advantages, kept, c.ppo_clip, count)
        normalize = policy.normalize_value
        old = normalize(batch["value"]) if c.value_clip is not None else None
        value = losses.value_loss(normalize(values), normalize(targets.values), kept, old, c.value_clip, count)
        entropy = surrogate.entropy  # an estimate will do where it is only reported
        if c.exploration == "entropy":
            if c.entropy_coef > 0:
                entropy = losses.masked_mean(distribution.entropy(), kept, count)
            exploration = -entropy
        else:
            exploration = losses.symmetric_kl_loss(distribution.symmetric_kl_to_uniform(), kept, count)
        loss = surrogate.loss + c.value_coef * value + c.entropy_coef * exploration
        if c.reduction == "sum":  # of means over the same samples
            loss = loss * mask.sum()
        return loss, {
            "losses/loss": loss,
            "losses/policy_loss": surrogate.loss,
            "losses/value_loss": value,
            "losses/entropy": entropy,
            "losses/exploration_loss": exploration,
            "losses/approx_kl": surrogate.approx_kl,
            "losses/clipfrac": surrogate.clip_fraction,
            "losses/ratio_mean": surrogate.mean_ratio,
            "losses/ratio_max": surrogate.max_ratio,
            "losses/explained_variance": losses.explained_variance(values, targets.values, kept, count),
            "losses/value_mean": losses.masked_mean(values.detach(), kept, count),
        } | _truncated(log_prob, batch, c)


def _gae(policy: Policy, batch: Tensors, c: LearningConfig, values: Tensor) -> Targets:
    return gae(
        batch["reward"], values, batch["terminated"], batch["truncated"], batch["mask"], c.gamma, c.gae_lambda,
        following_values(policy, batch, values),
    )  # fmt: skip


def _vtrace(policy: Policy, batch: Tensors, c: LearningConfig, log_prob: Tensor, values: Tensor) -> Targets:
    """Targets under the present weights. With the clipped surrogate the advantages are left unweighted: the surrogate has the
    probability ratio already, and weighting by it twice would bias the policy towards the behaviour policy's actions."""
    return vtrace(
        log_prob - batch["log_prob"], batch["reward"], values, batch["terminated"], batch["truncated"], batch["mask"],
        c.gamma, c.gae_lambda, c.vtrace_rho, c.vtrace_c, pg_rho=None if c.ppo_clip is not None else c.vtrace_rho,
        next_values=following_values(policy, batch, values),
    )  # fmt: skip


@torch.no_grad()
def _with_row_T(policy: Policy, batch: Tensors, out: PolicyOutput) -> Tensor:
    """[T+1, B], without a gradient: values under the present weights. `out`: of rows 0 to T-1."""
    T = len(batch["reward"])
    last = policy.act({n: x[T] for n, x in named(batch, "obs/").items()}, out.core, batch["first"][T]).value
    return torch.cat([out.value.detach(), last.unsqueeze(0)])


def _truncated(log_prob: Tensor, batch: Tensors, c: LearningConfig) -> Tensors:
    """Shares of the samples whose importance ratio V-trace truncates; nothing where it computes no targets."""
    if c.returns != "vtrace":
        return {}
    log_ratio = log_prob.detach() - batch["log_prob"]
    limits = {"losses/rho_clipped": c.vtrace_rho, "losses/c_clipped": c.vtrace_c}
    above = {name: log_ratio > (math.log(limit) if limit > 0 else -math.inf) for name, limit in limits.items()}
    return {name: losses.masked_mean(x.float(), batch["mask"]) for name, x in above.items()}

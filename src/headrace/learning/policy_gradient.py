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
from headrace.learning.small_network import SmallNetwork
from headrace.learning.state_values import all_values, following_values, named
from headrace.learning.vtrace import vtrace
from headrace.policies.distributions import Unsquashed, unsquashed
from headrace.policies.policy import NORMALIZED, Policy, PolicyOutput


class PolicyGradient(Algorithm):
    """An `Algorithm` on the actor-critic `Policy`."""

    _small: SmallNetwork | None = None

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
        if mode != "deterministic" and (small := self._small_network(model)) is not None and small.acts(obs):
            return small.act(obs, core, first, generator)
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
            policy.update_returns(targets.values, batch["mask"])
            if several:
                batch["target"], batch["advantage"] = _normalized(policy, targets)
        if several and self._is_own():  # what is the same for all optimizer steps
            batch |= {f"obs/{NORMALIZED}{name}": x for name, x in policy.normalized(named(batch, "obs/")).items()}
            if any(isinstance(part, Continuous) for part in policy.spec.action.parts):
                batch["raw_action"], batch["log_slope"] = unsquashed(policy.spec.action, batch["action"])
        if config.returns != "gae" and policy.returns is not None:
            out = policy.unroll(named(batch, "obs/", T), batch["core"], batch["first"][:T])
            targets = _vtrace(policy, batch, config, out.distribution.log_prob(batch["action"]), _with_row_T(policy, batch, out))
            policy.update_returns(targets.values, batch["mask"])

    def diagnostics(self, samples: Tensors, config: LearningConfig) -> Tensors:
        """How far the first minibatch is from the policy before the update; nothing if a loss of one's own left no samples."""
        if "mask" not in samples:
            return {}
        return off_policyness(samples["log_prob"], samples["behaviour_log_prob"], samples["mask"], config)

    def loss(self, model: Module, batch: Tensors, config: LearningConfig) -> tuple[Tensor, Tensors]:
        """Policy, value and exploration loss of a minibatch [T, B]."""
        policy, c, mask, T = cast(Policy, model), config, batch["mask"], len(batch["reward"])
        out = policy.unroll(named(batch, "obs/", T), batch["core"], batch["first"][:T])
        distribution, values = out.distribution, out.head_value
        known = (Unsquashed(batch["raw_action"], batch["log_slope"]),) if "raw_action" in batch else ()
        log_prob = distribution.log_prob(batch["action"], *known)
        if "advantage" in batch:
            targets = Targets(batch["target"], batch["advantage"])
        else:
            targets = _normalized(policy, _targets(policy, batch, c, log_prob.detach(), _with_row_T(policy, batch, out)))
        advantages, kept, count = targets.advantages, None, None
        # On the CPU, where it is known: replacing nothing costs as many operations.
        if mask.device.type != "cpu" or torch.compiler.is_compiling() or not bool(mask.all()):
            kept, count = mask, losses.valid_count(mask)
        if c.normalize_advantages:
            advantages = losses.normalize_advantages(advantages, kept, count=count)

        surrogate = losses.policy_loss(log_prob, batch["log_prob"], advantages, kept, c.ppo_clip, count)
        old = policy.normalize_value(batch["value"]) if c.value_clip is not None else None
        value = losses.value_loss(values, targets.values, kept, old, c.value_clip, count)
        loss = surrogate + c.value_coef * value
        terms = {"losses/policy_loss": surrogate, "losses/value_loss": value}
        if c.exploration == "symmetric-kl":
            exploration = losses.symmetric_kl_loss(distribution.symmetric_kl_to_uniform(), kept, count)
        elif c.entropy_coef > 0:
            entropy = losses.masked_mean(distribution.entropy(), kept, count)
            exploration = -entropy
            terms["losses/entropy"] = entropy
        else:
            exploration = None
        if exploration is not None:
            loss = loss + c.entropy_coef * exploration
            terms["losses/exploration_loss"] = exploration
        if c.reduction == "sum":  # of means over the same samples
            loss = loss * mask.sum()
        batch |= {
            "sample/log_prob": log_prob.detach(), "sample/behaviour_log_prob": batch["log_prob"], "sample/mask": mask,
            "sample/value": values.detach(), "sample/target": targets.values,
        }  # fmt: skip
        return loss, {"losses/loss": loss} | terms

    def backward(self, model: Module, batch: Tensors, config: LearningConfig) -> Tensors:
        """See `Algorithm.backward`. Small networks have a function of their own, which costs a fraction of PyTorch's."""
        policy, small = cast(Policy, model), self._small_network(model) if self._is_own() else None
        if small is None or not small.takes(batch, config):
            return super().backward(model, batch, config)
        if "advantage" not in batch:
            log_prob, values = small.evaluate(batch)
            targets = _targets(policy, batch, config, log_prob, policy.denormalize_value(values))
            batch["target"], batch["advantage"] = _normalized(policy, targets)
        return small.backward(batch, config)

    def _is_own(self) -> bool:
        """Whether nobody has replaced what the loss is, or what it is computed from."""
        mine = (("loss", PolicyGradient.loss), ("prepare", PolicyGradient.prepare))
        return all(getattr(getattr(self, name), "__func__", None) is function for name, function in mine)

    def _small_network(self, model: Module) -> SmallNetwork | None:
        if type(model) is not Policy:
            return None
        if self._small is None or self._small.policy is not model:
            self._small = SmallNetwork(model)
        return self._small

    def statistics(self, model: Module, samples: Tensors, config: LearningConfig) -> Tensors:
        """Of the probability ratios and the value function, with the weights of each sample's optimizer step; nothing if a loss
        of one's own has left no samples."""
        if "mask" not in samples:
            return {}
        policy, c, mask = cast(Policy, model), config, samples["mask"]
        behaviour = samples["log_prob"], samples["behaviour_log_prob"]
        ratios = losses.ratio_statistics(*behaviour, mask, c.ppo_clip)
        return {
            # Estimates: where the loss has the entropy, or another exploration term, that is reported.
            "losses/entropy": ratios.entropy,
            "losses/exploration_loss": -ratios.entropy,
            "losses/approx_kl": ratios.approx_kl,
            "losses/clipfrac": ratios.clip_fraction,
            "losses/ratio_mean": ratios.mean_ratio,
            "losses/ratio_max": ratios.max_ratio,
            "losses/explained_variance": losses.explained_variance(samples["value"], samples["target"], mask),
            "losses/value_mean": policy.denormalize_value(losses.masked_mean(samples["value"], mask)),
        } | _truncated(*behaviour, mask, c)


def _normalized(policy: Policy, targets: Targets) -> Targets:
    """In the value head's units, in which the value loss is taken."""
    return targets._replace(values=policy.normalize_value(targets.values))


@torch.no_grad()
def _targets(policy: Policy, batch: Tensors, c: LearningConfig, log_prob: Tensor, values: Tensor) -> Targets:
    """Under the present weights."""
    return _gae(policy, batch, c, values) if c.returns == "gae" else _vtrace(policy, batch, c, log_prob, values)


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


def _truncated(log_prob: Tensor, behaviour_log_prob: Tensor, mask: Tensor, c: LearningConfig) -> Tensors:
    """Shares of the samples whose importance ratio V-trace truncates; nothing where it computes no targets."""
    if c.returns != "vtrace":
        return {}
    limits = {"losses/rho_clipped": c.vtrace_rho, "losses/c_clipped": c.vtrace_c}
    above = {name: log_prob - behaviour_log_prob > (math.log(x) if x > 0 else -math.inf) for name, x in limits.items()}
    return {name: losses.masked_mean(x.float(), mask) for name, x in above.items()}

"""An algorithm of one's own: REINFORCE with a baseline (Williams 1992), in which every part of the interface has its place.

    headrace train --import examples/my_algorithm.py --env gym/CartPole-v1 --learning.algorithm reinforce

The policy gradient is log pi(a | s) (G - V(s)), where G is the discounted sum of the rewards to the end of the episode, or to the
end of the trajectory and from there the value V. What a batch holds: docs/extending.md. torch is imported inside, since rollout
workers import this file too and do without torch.
"""

from __future__ import annotations

from typing import Any

from headrace.config import Config
from headrace.learning import Algorithm, register_algorithm

DEFAULTS = {
    "sampling.rollout": 32, "learning.batch_size": 1024, "learning.num_minibatches": 4, "learning.num_epochs": 1,
    "learning.learning_rate": 3e-3, "learning.entropy_coef": 0.01, "learning.normalize_advantages": False,
}  # fmt: skip


@register_algorithm("reinforce", defaults=DEFAULTS)
def reinforce(config: Config) -> Algorithm:
    """Called once in every process that acts or learns."""
    import torch

    from headrace.learning.gae import gae
    from headrace.learning.losses import masked_mean
    from headrace.learning.state_values import following_values, named
    from headrace.policies import Policy

    class Reinforce(Algorithm):
        def make_model(self, spec: Any, config: Config) -> Policy:
            return Policy(spec, config.policy, config.precision)

        def act(
            self, model: Any, obs: Any, core: Any, first: Any, envs: Any, generator: Any, mode: str = "train"
        ) -> tuple[dict[str, Any], Any]:
            out = model.act(obs, core, first)
            action = out.distribution.mode() if mode == "deterministic" else out.distribution.sample(generator)
            return {"action": action}, out.core

        def loss(self, model: Any, batch: dict[str, Any], config: Any) -> tuple[Any, dict[str, Any]]:
            T, mask = len(batch["reward"]), batch["mask"]
            obs, first = named(batch, "obs/"), batch["first"]
            out = model.unroll({name: x[:T] for name, x in obs.items()}, batch["core"], first[:T])
            last = model.unroll({name: x[T:] for name, x in obs.items()}, out.core, first[T:])  # to go on from at the end
            values = torch.cat([out.value, last.value]).detach()
            # GAE with lambda 1 is G - V. It knows where episodes end and which rows are no transitions.
            returns, advantages = gae(
                batch["reward"], values, batch["terminated"], batch["truncated"], mask, config.gamma, 1.0,
                following_values(model, batch, values),
            )  # fmt: skip
            policy = -masked_mean(out.distribution.log_prob(batch["action"]) * advantages, mask)
            baseline = 0.5 * masked_mean((out.value - returns).square(), mask)
            entropy = masked_mean(out.distribution.entropy(), mask)
            loss = policy + config.value_coef * baseline - config.entropy_coef * entropy
            return loss, {"losses/policy": policy, "losses/baseline": baseline, "losses/entropy": entropy}

    return Reinforce()

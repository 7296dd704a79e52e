"""PQN: Q-learning on trajectories, without replay and without a target network (Gallici et al. 2024, arXiv 2407.04811).

Layer norm in every hidden layer replaces the target network, and many environments replace the replay. Targets are lambda returns
over each trajectory, computed once for all epochs of its batch. Actions are epsilon-greedy; epsilon falls linearly with the steps
learned from.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from headrace.config import Config, LearningConfig
from headrace.envs.core.contract import EnvSpec
from headrace.learning import losses, q_learning
from headrace.learning.algorithm import Algorithm, Mode
from headrace.learning.apex_dqn import EVALUATION_EPSILON
from headrace.learning.dqn import DQNetwork
from headrace.learning.lambda_returns import lambda_returns
from headrace.learning.state_values import all_values, following_values, named
from headrace.policies.activations import ACTIVATIONS
from headrace.policies.q_network import QOutput


class PQNetwork(DQNetwork):
    """Q(s, .) with layer norm before every activation."""

    def __init__(self, spec: EnvSpec, config: Config):
        super().__init__(spec, config)
        for part in (self.trunk.network, self.head):
            insert_layer_norm(part)


def insert_layer_norm(module: nn.Module) -> None:
    """Put a layer norm with learned scale and shift before every activation that follows a linear layer or a convolution, in
    place. That of a convolution is over all channels and positions of an image, with a scale and a shift for each channel."""
    kinds = tuple(ACTIVATIONS.values())
    last: nn.Module | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear | nn.Conv2d):
            last = child
        elif isinstance(child, kinds):
            if last is not None:
                module._modules[name] = nn.Sequential(_norm(last), child)
        else:
            insert_layer_norm(child)
            if isinstance(child, nn.Sequential) and isinstance(end := child[-1] if len(child) else None, nn.Linear | nn.Conv2d):
                last = end


def _norm(layer: nn.Module) -> nn.Module:
    if isinstance(layer, nn.Linear):
        return nn.LayerNorm(layer.out_features)
    return nn.GroupNorm(1, cast(nn.Conv2d, layer).out_channels)


class PQN(Algorithm):
    """The `Algorithm`."""

    def __init__(self, config: Config):
        self._first, self._last = config.q.epsilon_first, config.q.epsilon_last
        self._decay_updates = max(1.0, config.q.epsilon_decay * config.learning.total_steps / config.learning.batch_size)

    def make_model(self, spec: EnvSpec, config: Config) -> PQNetwork:
        """A fresh network."""
        return PQNetwork(spec, config)

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
        """Epsilon-greedy; deterministic: greedy. `value` is the value of the best action."""
        network = cast(PQNetwork, model)
        out = network.act(obs, core, first)
        action = q_learning.greedy(out.q, out.allowed)
        value = out.q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        if mode != "deterministic":
            epsilon = network.epsilon if mode == "train" else torch.full_like(network.epsilon, EVALUATION_EPSILON)
            action = q_learning.epsilon_greedy(out.q, out.allowed, epsilon.expand(len(envs)), generator)
        return {"action": action.int().unsqueeze(-1), "value": value, "log_prob": torch.zeros_like(value)}, out.core

    def after_update(self, model: nn.Module, updates: int) -> None:
        """Let epsilon fall."""
        share = min(1.0, updates / self._decay_updates)
        cast(PQNetwork, model).epsilon.fill_(self._first + (self._last - self._first) * share)

    def prepare(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> None:
        """The targets."""
        network, T = cast(PQNetwork, model), len(batch["reward"])
        network.trunk.update_normalizers({n: x[:T] for n, x in named(batch, "obs/").items()}, batch["mask"])
        values = all_values(network, _best, batch)
        target = lambda_returns(
            batch["reward"], values, batch["terminated"], batch["truncated"], batch["mask"], config.gamma, config.gae_lambda,
            following_values(network, _best, batch, values),
        )  # fmt: skip
        batch["target"] = target
        # Known targets and no core: a trajectory's rows are independent samples now, which the learner knows by this name.
        batch["advantage"] = target - values[:-1]

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        """(target - Q(s, a))^2 / 2, the mean over valid rows."""
        network, T, mask = cast(PQNetwork, model), len(batch["reward"]), batch["mask"]
        out = network.unroll({n: x[:T] for n, x in named(batch, "obs/").items()}, batch["core"], batch["first"][:T])
        taken = out.q.gather(-1, batch["action"].long()).squeeze(-1)
        error = batch["target"] - taken
        loss = losses.masked_mean(0.5 * error.square(), mask)
        return loss, {
            "losses/loss": loss,
            "losses/td_error": losses.masked_mean(error.detach().abs(), mask),
            "losses/q_mean": losses.masked_mean(taken, mask),
            "losses/q_max": out.q.max(),
            "losses/target_mean": losses.masked_mean(batch["target"], mask),
            "losses/epsilon": network.epsilon,
        }


def _best(out: QOutput) -> Tensor:
    q = out.q if out.allowed is None else out.q.masked_fill(~out.allowed, -torch.inf)
    return q.max(-1).values

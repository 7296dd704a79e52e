"""PQN: Q-learning on trajectories, without replay and without a target network (Gallici et al. 2024, arXiv 2407.04811).

Layer norm in every hidden layer replaces the target network, and many environments replace the replay. Targets are lambda returns
over each trajectory, computed once for all epochs of its batch. Actions are epsilon-greedy; epsilon falls linearly with the steps
learned from.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import Module

from headrace.accelerator.graphs import Tensors
from headrace.config import Config, LearningConfig
from headrace.envs.core.contract import EnvSpec
from headrace.learning import losses
from headrace.learning.exploration import FallingEpsilon, QNetworkWithEpsilon
from headrace.learning.gae import lambda_returns
from headrace.learning.state_values import all_values, following_values, named
from headrace.policies.activations import ACTIVATIONS


class PQNetwork(QNetworkWithEpsilon):
    """Q(s, .) with layer norm before every activation."""

    def __init__(self, spec: EnvSpec, config: Config):
        super().__init__(spec, config)
        for part in (self.trunk.network, self.head):
            insert_layer_norm(part)


def insert_layer_norm(module: nn.Module) -> None:
    """Put a layer norm with learned scale and shift before every activation that follows a linear layer or a convolution, in
    place. That of a convolution is over all channels and positions of an image, with a scale and a shift for each channel."""
    kinds = tuple(ACTIVATIONS.values())
    last: nn.Linear | nn.Conv2d | None = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear | nn.Conv2d):
            last = child
        elif isinstance(child, kinds):
            if last is not None:
                norm = nn.LayerNorm(last.out_features) if isinstance(last, nn.Linear) else nn.GroupNorm(1, last.out_channels)
                module._modules[name] = nn.Sequential(norm, child)
        else:
            insert_layer_norm(child)
            if isinstance(child, nn.Sequential) and isinstance(end := child[-1] if len(child) else None, nn.Linear | nn.Conv2d):
                last = end


class PQN(FallingEpsilon):
    """The `Algorithm`."""

    def make_model(self, spec: EnvSpec, config: Config) -> PQNetwork:
        return PQNetwork(spec, config)

    def whole_trajectories(self, config: LearningConfig) -> bool:
        """No: targets are computed beforehand."""
        return False

    def prepare(self, model: Module, batch: Tensors, config: LearningConfig) -> None:
        network, T = cast(PQNetwork, model), len(batch["reward"])
        network.update_normalizers(named(batch, "obs/", T), batch["mask"])
        values = all_values(network, batch)
        batch["target"] = lambda_returns(
            batch["reward"], values, batch["terminated"], batch["truncated"], batch["mask"], config.gamma, config.gae_lambda,
            following_values(network, batch, values),
        )  # fmt: skip

    def loss(self, model: Module, batch: Tensors, config: LearningConfig) -> tuple[Tensor, Tensors]:
        """(target - Q(s, a))^2 / 2, the mean over valid rows, or their sum."""
        network, T, mask = cast(PQNetwork, model), len(batch["reward"]), batch["mask"]
        out = network.unroll(named(batch, "obs/", T), batch["core"], batch["first"][:T])
        taken = out.q.gather(-1, batch["action"].long()).squeeze(-1)
        error = batch["target"] - taken
        loss = losses.masked_mean(0.5 * error.square(), mask)
        if config.reduction == "sum":  # and the gradients of ranks are added
            loss = loss * mask.sum()
        return loss, {
            "losses/loss": loss,
            "losses/td_error": losses.masked_mean(error.detach().abs(), mask),
            "losses/q_mean": losses.masked_mean(taken, mask),
            "losses/q_max": out.q.max(),
            "losses/target_mean": losses.masked_mean(batch["target"], mask),
            "losses/epsilon": network.epsilon,
        }

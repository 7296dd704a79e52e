"""How algorithms on action values act: with epsilon-greedy exploration."""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

import torch
from torch import Generator, Tensor
from torch.nn import Module

from headrace.accelerator.graphs import Tensors
from headrace.config import Config
from headrace.envs.core.contract import EnvSpec
from headrace.learning import q_learning
from headrace.learning.algorithm import Algorithm, Mode
from headrace.policies.q_network import QNetwork

EVALUATION_EPSILON = 0.00164  # share of random actions of a trained network (the evaluation actor of Horgan et al. 2018).


class Configured(Algorithm):
    def __init__(self, config: Config):
        self._config = config


class EpsilonGreedy(Configured):
    """Acts on a `QNetwork`."""

    def act(
        self, model: Module, obs: Tensors, core: Tensor, first: Tensor, envs: Tensor, generator: Generator, mode: Mode = "train"
    ) -> tuple[Tensors, Tensor]:
        """Epsilon-greedy, in evaluation with `EVALUATION_EPSILON`; deterministic: greedy, and noisy layers without noise. `value`
        is the best action's value."""
        net = cast(QNetwork, model)
        with net.noise(generator, quiet=mode == "deterministic"):
            out = net.act(obs, core, first)
        if mode == "deterministic":
            action = q_learning.greedy(out.q, out.allowed)
        else:
            epsilon = (
                self._epsilon(net, envs) if mode == "train" else torch.full(envs.shape, EVALUATION_EPSILON, device=envs.device)
            )
            action = q_learning.epsilon_greedy(out.q, out.allowed, epsilon, generator)
        taken = out.q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return {"action": action.int().unsqueeze(-1), "value": out.value} | self._replayed(taken, envs), out.core

    def _replayed(self, taken: Tensor, envs: Tensor) -> Tensors:
        """The fields that `extra_fields` names, from the values of the actions taken and the environments' indices, [N] each."""
        return {}

    @abstractmethod
    def _epsilon(self, net: QNetwork, envs: Tensor) -> Tensor:
        """Share of random actions of each environment in training, float32 [N]."""


class QNetworkWithEpsilon(QNetwork):
    """Q(s, .). Epsilon is a buffer, so that actors receive it with the weights."""

    epsilon: Tensor

    def __init__(self, spec: EnvSpec, config: Config):
        super().__init__(spec, config.policy, config.q, config.precision)
        self.register_buffer("epsilon", torch.tensor(config.q.epsilon_first))


class FallingEpsilon(EpsilonGreedy):
    """Acts on a `QNetworkWithEpsilon`: all environments explore alike, with an epsilon that falls linearly with the steps."""

    def _epsilon(self, net: QNetwork, envs: Tensor) -> Tensor:
        return cast(QNetworkWithEpsilon, net).epsilon.expand(len(envs))

    def schedule(self, model: Module, global_step: int) -> None:
        """Let epsilon fall: a function of `global_step` alone, so it is the same with any number of ranks and environments."""
        q = self._config.q
        share = min(1.0, global_step / (q.epsilon_decay * self._config.learning.total_steps))
        cast(QNetworkWithEpsilon, model).epsilon.fill_(q.epsilon_first + (q.epsilon_last - q.epsilon_first) * share)

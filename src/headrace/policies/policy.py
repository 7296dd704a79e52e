"""The actor-critic policy: trunk (normalisers, network, core) and heads.

`act` is for one step of N environments, `unroll` for T rows of B environments; both run the same modules in the same order, so
what the learner computes is what the actor computed, given equal weights.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from headrace.config import PolicyConfig
from headrace.envs.core.contract import MASK_KEY, ActionSpec, EnvSpec
from headrace.envs.core.last_step import PREVIOUS_ACTION, PREVIOUS_REWARD
from headrace.policies.cores import LastStep, RecurrentCore
from headrace.policies.distributions import ActionDistribution, param_width
from headrace.policies.encoders import PixelConv2d, TwoNetworks, VectorEncoder, make_network, orthogonal_, out_features
from headrace.policies.normalizer import RunningMeanStd
from headrace.policies.pieces import in_pieces

Precision = Literal["float32", "bf16"]
NORMALIZED = "normalized/"
"""Prefix of observations that the trunk need not normalise: a learner does it once for several passes over a batch."""


@dataclass
class PolicyOutput:
    """Output of a policy, with the batch dimensions [N] (`act`) or [T, B] (`unroll`)."""

    distribution: ActionDistribution
    """Over action rows."""
    head_value: Tensor
    """float32: expected return in units of the value head, which are normalised returns with `policy.normalize_returns`."""
    core: Tensor
    """float32 [N, S] or [B, S]: core state after the (last) row."""
    returns: RunningMeanStd | None = None
    """What normalises returns, if anything does."""

    @property
    def value(self) -> Tensor:
        """float32: expected return."""
        return self.head_value if self.returns is None else self.returns.denormalize(self.head_value)


class Trunk(nn.Module):
    """Observations to features: the part of the network that policies and Q-functions have in common."""

    def __init__(self, spec: EnvSpec, config: PolicyConfig, precision: Precision = "float32"):
        super().__init__()
        self.precision = precision
        self.layers_convert = False
        """Whether layers convert what they compute with, as in a model that acts (`policies.acting`): autocast need not."""
        beside = (MASK_KEY, PREVIOUS_ACTION, PREVIOUS_REWARD)
        observation = {name: array for name, array in spec.observation.items() if name not in beside}
        self.observed = tuple(observation)
        vectors = tuple(name for name, array in observation.items() if not array.is_image)
        self.normalized = vectors if config.normalize_observations else ()
        self.normalizers = nn.ModuleList(RunningMeanStd(observation[name].shape) for name in self.normalized)
        self.network = make_network(observation, config)
        if config.separate_critic:
            self.network = TwoNetworks(self.network, make_network(observation, config))
        self.out_features = out_features(self.network)
        self.core = self.last_step = None
        if config.core != "none":
            self.last_step = LastStep(spec.action, config)
            self.core = RecurrentCore(config.core, self.out_features + self.last_step.out_features, config.core_size)
            self.out_features = config.core_size

    @property
    def core_width(self) -> int:
        """S: width of the core state; 0 without a core."""
        return 0 if self.core is None else self.core.width

    def forward(self, obs: dict[str, Tensor], core: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Features [T, B, F] and the core state, float32 [B, S], after row T-1; arguments as for `OnTrunk.unroll`. Time is folded
        into the batch for the network."""
        flat = self.normalize(obs)
        flat = {name: flat[name].flatten(0, 1) for name in self.observed}
        with self._arithmetic(first):
            features = in_pieces(self.network, flat).unflatten(0, first.shape)
            if self.core is not None and self.last_step is not None:
                features, core = self.core(self.last_step(features, obs, first), core, first)
        return features.float(), core.float()

    def step(self, obs: dict[str, Tensor], core: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """The same for one row, without T. Where batches are small, the operations that fold time take time, too."""
        seen = self.normalize(obs)
        with self._arithmetic(first):
            features = in_pieces(self.network, {name: seen[name] for name in self.observed})
            if self.core is not None and self.last_step is not None:
                features = self.last_step(features, obs, first)
                if type(self.core).forward is RecurrentCore.forward:
                    features, core = self.core.step(features, core, first)
                else:  # a user's own
                    rows, core = self.core(features.unsqueeze(0), core, first.unsqueeze(0))
                    features = rows.squeeze(0)
        return features.float(), core.float()

    def _arithmetic(self, on: Tensor) -> contextlib.AbstractContextManager[Any]:
        converted = self.precision == "bf16" and not self.layers_convert
        return torch.autocast(on.device.type, torch.bfloat16) if converted else contextlib.nullcontext()

    def normalize(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """All observations, vectors normalised where `policy.normalize_observations`: those under NORMALIZED already are."""
        names = zip(self.normalized, self.normalizers, strict=True)
        return obs | {n: obs[NORMALIZED + n] if NORMALIZED + n in obs else normalizer(obs[n]) for n, normalizer in names}

    def layers_under_autocast(self) -> Iterator[nn.Module]:
        """Those whose weights autocast converts (`policies.acting`); not a `PixelConv2d`, which scales its weight before, nor
        what a `VectorEncoder` computes in float32."""
        narrow = [part for part in self.network.modules() if isinstance(part, VectorEncoder) and part.in_float32]
        others = {layer for encoder in narrow for layer in encoder.modules()}
        for module in (*self.network.modules(), self.core):
            converted = isinstance(module, nn.Linear | nn.Conv2d | RecurrentCore) and not isinstance(module, PixelConv2d)
            if module is not None and converted and module not in others:
                yield module


Output = TypeVar("Output")


class OnTrunk(nn.Module, Generic[Output]):
    """A trunk with heads, for one step or for many rows."""

    trunk: Trunk

    @property
    def core_width(self) -> int:
        """S: width of the core state; 0 without a core."""
        return self.trunk.core_width

    def act(self, obs: dict[str, Tensor], core: Tensor, first: Tensor) -> Output:
        """One step. Call it under `torch.inference_mode()`.

        Args:
            obs: by name, [N, ...]; may hold the action mask, uint8 [N, M], under `MASK_KEY`.
            core: float32 [N, S] before this observation.
            first: bool [N]: the core state is zeroed before these observations.
        """
        features, core = self.features(obs, core, first)
        return self._output(features, obs, core)

    def features(self, obs: dict[str, Tensor], core: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """What the heads get in `act`, float32 [N, F], and the core state after it; arguments as there."""
        return self.trunk.step(obs, core, first)

    def unroll(self, obs: dict[str, Tensor], core: Tensor, first: Tensor) -> Output:
        """T rows of B environments: the same with `obs` [T, B, ...], `core` [B, S] before row 0 and `first` [T, B]."""
        features, core = self.trunk(obs, core, first)
        return self._output(features, obs, core)

    def update_normalizers(self, obs: dict[str, Tensor], mask: Tensor | None = None) -> None:
        """Let the observation normalisers see `obs` [T, B, ...] or [B, ...] where `mask` (bool; None: everywhere) is True."""
        for name, normalizer in zip(self.trunk.normalized, self.trunk.normalizers, strict=True):
            cast(RunningMeanStd, normalizer).update(obs[name], mask)

    def normalized(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The observations that have a normaliser, normalised."""
        return {name: x for name, x in self.trunk.normalize(obs).items() if name in self.trunk.normalized}

    def _output(self, features: Tensor, obs: dict[str, Tensor], core: Tensor) -> Output:
        """From features [..., F], and the core state after the last row."""
        raise NotImplementedError


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
        return self.linear(features).float().squeeze(-1)


class Policy(OnTrunk[PolicyOutput]):
    """Actor and critic on one trunk, which holds a network for each of them if `config.separate_critic`.

    Args:
        spec: observations and actions.
        config: the network.
        precision: with "bf16" network and core run under autocast, the core's state in every row included; heads, distributions
            and values stay float32.

    Its weights come from torch's default generator.

    Attributes:
        trunk: network and core.
        returns: running statistics of value targets; None unless `config.normalize_returns`. See `update_returns`.

    Raises `ConfigError` for an unknown network or images too small for it.
    """

    def __init__(self, spec: EnvSpec, config: PolicyConfig, precision: Precision = "float32"):
        super().__init__()
        self.spec = spec
        self.trunk = Trunk(spec, config, precision)
        self.parts = 2 if config.separate_critic else 1
        width = self.trunk.out_features // self.parts
        self.action_head = ActionHead(width, spec.action, config.initial_std)
        self.value_head = ValueHead(width)
        self.returns = RunningMeanStd(clip=None) if config.normalize_returns else None

    def _output(self, features: Tensor, obs: dict[str, Tensor], core: Tensor) -> PolicyOutput:
        actors, critics = features.chunk(2, -1) if self.parts == 2 else (features, features)
        distribution = ActionDistribution(self.spec.action, self.action_head(actors), obs.get(MASK_KEY))
        return PolicyOutput(distribution, self.value_head(critics), core, self.returns)

    def normalize_value(self, value: Tensor) -> Tensor:
        """From returns to the value head's units, in which the value loss is taken."""
        return value if self.returns is None else self.returns.normalize(value)

    def denormalize_value(self, value: Tensor) -> Tensor:
        """The inverse of `normalize_value`."""
        return value if self.returns is None else self.returns.denormalize(value)

    def update_returns(self, returns: Tensor, mask: Tensor) -> None:
        """Let the return normaliser see value targets [T, B] where `mask` (bool [T, B]) is True.

        The value head is rescaled so that its predictions stay what they were (PopArt: van Hasselt et al. 2016, arXiv 1602.07714,
        proposition 1). With old and new statistics m, s and m', s', its weights become w s / s' and its bias
        (s b + m - m') / s'. The statistics are those of all targets seen, each counted once (step size 1/t). It changes weights
        in place, so it must not be called between a forward and its backward pass.
        """
        if self.returns is None:
            return
        mean, std = self.returns.mean.clone(), self.returns.std
        self.returns.update(returns, mask)
        head, new = self.value_head.linear, self.returns.std
        with torch.no_grad():
            head.weight.mul_((std / new).float())
            cast(Tensor, head.bias).copy_((std * cast(Tensor, head.bias) + mean - self.returns.mean) / new)

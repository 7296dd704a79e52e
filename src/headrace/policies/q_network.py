"""Action values: a trunk and a dueling head, optionally distributional and with noisy layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headrace.config import ConfigError, PolicyConfig, QConfig
from headrace.envs.core.contract import MASK_KEY, Categorical, Continuous, EnvSpec
from headrace.policies.activations import ACTIVATIONS
from headrace.policies.encoders import orthogonal_
from headrace.policies.policy import OnTrunk, Precision, Trunk


class NoisyLinear(nn.Module):
    """A linear layer whose weights are disturbed by factorised Gaussian noise of learned size (Fortunato et al. 2018).

    The noise is drawn anew in every forward pass, when learning and when acting alike, from `generator` (None: torch's default
    one); `quiet` leaves it out. See `QNetwork.noise`.
    """

    def __init__(self, in_features: int, out_features: int, sigma: float = 0.5):
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((out_features, in_features), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((out_features,), sigma * bound))
        self.quiet = False
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[N, in] -> [N, out]."""
        if self.quiet:
            return F.linear(x, self.weight, self.bias)
        normal = (torch.randn(n, device=x.device, generator=self.generator) for n in self.weight.shape)
        rows, columns = (noise.sign() * noise.abs().sqrt() for noise in normal)
        weight = self.weight + self.weight_sigma * rows[:, None] * columns
        return F.linear(x, weight, self.bias + self.bias_sigma * rows)


@dataclass
class QOutput:
    """Values of all actions, batch dimensions [N] (`act`) or [T, B] (`unroll`)."""

    q: Tensor  # float32 [..., A]
    logits: Tensor | None  # float32 [..., A, M] of the return's distribution; None unless distributional
    core: Tensor  # float32 [N, S] or [B, S]: core state after the (last) row
    allowed: Tensor | None
    """bool [..., A]; None if every action is. A row whose mask allows nothing counts as unmasked, as in `ActionDistribution`."""

    @property
    def value(self) -> Tensor:
        """float32 [...]: of the best allowed action."""
        return (self.q if self.allowed is None else self.q.masked_fill(~self.allowed, -torch.inf)).max(-1).values


class DuelingHead(nn.Module):
    """V and advantages from two streams, Q = V + A - mean A (Wang et al. 2016); one stream without dueling.

    With `atoms` above 1 all of them are logits over the support.
    """

    def __init__(self, in_features: int, hidden: int, actions: int, config: QConfig, activation: str, precision: Precision):
        super().__init__()
        linear = NoisyLinear if config.noisy else nn.Linear
        self.actions, self.atoms, self.dueling = actions, config.atoms, config.dueling
        self.precision = precision

        def stream(out: int) -> nn.Sequential:
            layers = nn.Sequential(linear(in_features, hidden), ACTIVATIONS[activation](), linear(hidden, out))
            for layer, gain in ((layers[0], math.sqrt(2)), (layers[2], 0.01)):
                if isinstance(layer, nn.Linear):
                    orthogonal_(layer, gain)
            return layers

        self.advantage = stream(actions * config.atoms)
        self.value = stream(config.atoms) if config.dueling else None

    def forward(self, features: Tensor) -> Tensor:
        """[..., F] -> float32 [..., A, M]."""
        a = self._stream(self.advantage, features).unflatten(-1, (self.actions, self.atoms))
        if self.value is None:
            return a
        return self._stream(self.value, features).unsqueeze(-2) + a - a.mean(-2, keepdim=True)

    def layers_under_autocast(self) -> Iterator[nn.Module]:
        """Those whose weights autocast converts (`policies.acting`). Noisy layers make their weights in float32."""
        wide = [stream[0] for stream in (self.advantage, self.value) if stream is not None]
        return (layer for layer in wide if isinstance(layer, nn.Linear))

    def _stream(self, layers: nn.Sequential, features: Tensor) -> Tensor:
        """The wide layer in `precision`, the last one in float32: values differ by less than bf16 can tell."""
        with torch.autocast(features.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            hidden = layers[1](layers[0](features))
        return layers[2](hidden.float())


class QNetwork(OnTrunk[QOutput]):
    """Q(s, .) for one discrete action.

    Raises `ConfigError` for other action spaces and for what the trunk refuses.
    """

    support: Tensor

    def __init__(self, spec: EnvSpec, config: PolicyConfig, q: QConfig, precision: Precision = "float32"):
        super().__init__()
        parts = spec.action.parts
        if len(parts) != 1 or not isinstance(parts[0], Categorical):
            raise ConfigError(
                f"{spec.name}: Q-learning needs one discrete action; this action space is {parts}. Algorithms for it: "
                "ppo, appo, impala, a2c" + (", apex-dpg" if all(isinstance(part, Continuous) for part in parts) else "")
            )
        self.spec, self.actions = spec, parts[0].n
        self.trunk = Trunk(spec, config, precision)
        self.head = DuelingHead(self.trunk.out_features, config.hidden, self.actions, q, config.activation, precision)
        self.register_buffer("support", torch.linspace(*q.support, q.atoms) if q.atoms > 1 else torch.zeros(1), persistent=False)

    @contextmanager
    def noise(self, generator: torch.Generator | None, quiet: bool = False) -> Iterator[None]:
        """Context in which noisy layers draw from `generator`, or with `quiet` add no noise."""
        layers = [layer for layer in self.head.modules() if isinstance(layer, NoisyLinear)]
        for layer in layers:
            layer.generator, layer.quiet = generator, quiet
        try:
            yield
        finally:
            for layer in layers:
                layer.generator, layer.quiet = None, False

    def forward(self, obs: dict[str, Tensor]) -> QOutput:
        """B unrelated observations {name: [B, ...]}, without a core."""
        B = len(next(iter(obs.values())))
        device = self.support.device
        return self.act(obs, torch.zeros(B, self.core_width, device=device), torch.zeros(B, dtype=torch.bool, device=device))

    def _output(self, features: Tensor, obs: dict[str, Tensor], core: Tensor) -> QOutput:
        out = self.head(features)
        allowed = obs[MASK_KEY].bool() if MASK_KEY in obs else None
        if allowed is not None:
            allowed = allowed | ~allowed.any(-1, keepdim=True)
        if self.head.atoms == 1:
            return QOutput(out.squeeze(-1), None, core, allowed)
        return QOutput((out.softmax(-1) * self.support).sum(-1), out, core, allowed)

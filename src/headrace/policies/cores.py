"""Recurrent cores between encoder and heads, with resets at the first row of an episode.

A core's state is one flat row of S numbers per environment, so that the engine can store and move it without knowing what it
is: GRU h, LSTM h | c. The state is zeroed before a row with `first`, when acting and when learning alike.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.config import PolicyConfig
from headrace.envs.core.contract import ActionSpec, Categorical
from headrace.envs.core.last_step import PREVIOUS_ACTION, PREVIOUS_REWARD
from headrace.policies.packing import Product, linear
from headrace.policies.recurrence import CELLS, Unroll, unroll


class RecurrentCore(nn.Module):
    """A GRU or LSTM unrolled over [T, B, F].

    Args:
        kind: "gru" or "lstm".
        in_features: F.
        size: H, its width. The state width S is H for a GRU, 2H for an LSTM (h | c).
    """

    def __init__(self, kind: str, in_features: int, size: int):
        super().__init__()
        self.cell = CELLS[kind]
        gates = self.cell.gates
        self.out_features = size
        self.width = size if kind == "gru" else 2 * size
        self.weight_ih = nn.Parameter(torch.empty(gates * size, in_features))
        self.weight_hh = nn.Parameter(torch.empty(gates * size, size))
        self.bias_ih = nn.Parameter(torch.zeros(gates * size))
        self.bias_hh = nn.Parameter(torch.zeros(gates * size))
        for weight in (self.weight_ih, self.weight_hh):
            for gate in weight.chunk(gates):
                nn.init.orthogonal_(gate.data)

    def forward(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Unroll.

        Args:
            x: [T, B, F].
            state: [B, S] before row 0.
            first: bool [T, B]: the state is zeroed before these rows.

        Returns:
            outputs [T, B, H] and the state [B, S] after row T-1.
        """
        # The inputs' share of the gates needs no recurrence: one product for all rows.
        inputs, first = self._from_inputs(x), first.unsqueeze(-1)
        parts = state.to(inputs.dtype).split(self.out_features, dim=-1)
        product = self._from_state(inputs)
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            out = Unroll.apply(self.cell, product, inputs, self.weight_hh, self.bias_hh, first, *parts)
        else:
            out = unroll(self.cell, inputs, parts, first, product)
        return out[0], torch.cat(out[1:], dim=-1)

    def step(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """One row: the outputs [B, H] for `x` [B, F], and the state after it; `state` and `first` (bool [B]) as for `forward`."""
        inputs = self._from_inputs(x)
        state = state.to(inputs.dtype).masked_fill(first.unsqueeze(-1), 0.0)
        parts = state.split(self.out_features, dim=-1)
        after, _ = self.cell.step(inputs, self._from_one_state(parts[0]), parts)
        return after[0], after[0] if len(after) == 1 else torch.cat(after, dim=-1)

    def _from_inputs(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight_ih, self.bias_ih)

    def _from_one_state(self, h: Tensor) -> Tensor:
        return functional.linear(h, self.weight_hh, self.bias_hh)

    def _from_state(self, inputs: Tensor) -> Product:
        """From a state h to its share of the gates, in the type of `inputs` [T, B, G H]."""
        if len(inputs) == 1 or torch.compiler.is_compiling():
            return self._from_one_state
        weight, bias = (parameter.detach().to(inputs.dtype) for parameter in (self.weight_hh, self.bias_hh))
        return linear(weight, bias, inputs.shape[1])


def _scale(low: float, high: float) -> tuple[float, float]:
    """The middle and half the range of a number's bounds; 0 and 1 where there are none, or where they leave it no range."""
    return ((low + high) / 2, (high - low) / 2) if -math.inf < low < high < math.inf else (0.0, 1.0)


class LastStep(nn.Module):
    """The action and the reward before as further inputs of a core, as far as `policy.previous_action` and
    `policy.previous_reward` ask for them: one-hot choices, continuous parts scaled from their bounds to [-1, 1], or without
    bounds as they are (integers rounded), the reward clipped to [-1, 1] (Espeholt et al. 2018; Kapturowski et al. 2019)."""

    middle: Tensor
    half_range: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, action: ActionSpec, config: PolicyConfig):
        super().__init__()
        self._parts = action.parts if config.previous_action else ()
        self._reward = config.previous_reward
        numbers = [part for part in self._parts if not isinstance(part, Categorical)]
        scales = [_scale(low, high) for part in numbers for low, high in zip(part.low, part.high, strict=True)]
        self.register_buffer("middle", torch.tensor([middle for middle, _ in scales]), persistent=False)
        self.register_buffer("half_range", torch.tensor([half for _, half in scales]), persistent=False)
        # A number with one bound is stored as it was drawn; what was done is what the environment got, the bound.
        low, high = ([bound for part in numbers for bound in getattr(part, side)] for side in ("low", "high"))
        self._clamped = any(math.isfinite(a) != math.isfinite(b) for a, b in zip(low, high, strict=True))
        self.register_buffer("low", torch.tensor(low), persistent=False)
        self.register_buffer("high", torch.tensor(high), persistent=False)
        self.out_features = sum(p.n if isinstance(p, Categorical) else p.width for p in self._parts) + self._reward

    def forward(self, features: Tensor, obs: dict[str, Tensor], first: Tensor) -> Tensor:
        """The inputs behind `features` [T, B, F], zeros where an episode begins (`first`, bool [T, B]): [T, B, F + out_features].
        `obs` has `PREVIOUS_ACTION` [T, B, A] and `PREVIOUS_REWARD` [T, B]."""
        inputs, column, bound = list[Tensor](), 0, 0
        for part in self._parts:
            value = obs[PREVIOUS_ACTION][..., column : column + part.width].float()
            column += part.width
            if isinstance(part, Categorical):
                inputs.append((value == torch.arange(part.n, device=value.device)).to(features.dtype))
                continue
            here = slice(bound, bound := bound + part.width)
            value = value.clamp(self.low[here], self.high[here]) if self._clamped else value
            value = value.round() if part.integer else value
            inputs.append(((value - self.middle[here]) / self.half_range[here]).to(features.dtype))
        if self._reward:
            inputs.append(obs[PREVIOUS_REWARD].unsqueeze(-1).clamp(-1, 1).to(features.dtype))
        return torch.cat([features, *(x.masked_fill(first.unsqueeze(-1), 0) for x in inputs)], -1) if inputs else features

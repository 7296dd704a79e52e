"""The rows of a GRU or an LSTM one after the other, and their gradient.

Autograd adds up the gradient of the recurrent weights row by row: for T rows, T products with few rows each and T sums of
matrices as large as the weights. Here the gates' gradients of all rows are kept, and the end is one product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headrace.policies.packing import Product, linear

State = tuple[Tensor, ...]  # the parts of a state, [B, H] each: h of a GRU, h and c of an LSTM


class GRU:
    """h' = n + z (h - n), with n = tanh(n_i + r n_h), r = sigmoid(r_i + r_h) and z = sigmoid(z_i + z_h) (Cho et al. 2014; r
    behind the product, as in PyTorch). The gates lie in the order r, z, n."""

    gates = 3

    @staticmethod
    def step(inputs: Tensor, recurrent: Tensor, state: State) -> tuple[State, tuple[Tensor, ...]]:
        """One row: the state after it, and what the gradient needs, the h before it at last. `inputs`, `recurrent`: the shares of
        the input and of the state in the gates, [B, 3H]."""
        (h,) = state
        H = h.shape[-1]
        r, z = torch.sigmoid(inputs[:, : 2 * H] + recurrent[:, : 2 * H]).chunk(2, -1)
        n_h = recurrent[:, 2 * H :]
        n = torch.tanh(torch.addcmul(inputs[:, 2 * H :], r, n_h))
        return (torch.lerp(n, h, z),), (r, z, n, n_h, h)

    @staticmethod
    def slopes(r: Tensor, z: Tensor, n: Tensor, n_h: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """What `back` multiplies with, for all rows at once, [T, B, H] each."""
        return (1 - z) * (1 - n * n), (h - n) * z * (1 - z), n_h * r * (1 - r), r, z

    @staticmethod
    def back(d: State, n_of_h: Tensor, z_of_h: Tensor, r_of_n: Tensor, r: Tensor, z: Tensor) -> tuple[Tensor, Tensor, State]:
        """The gradients of a row's `inputs`, of its `recurrent`, and of the state before it but for the share of `recurrent`.
        `d`: of the state after it."""
        (d_h,) = d
        d_n = d_h * n_of_h
        both = [d_n * r_of_n, d_h * z_of_h]
        return torch.cat([*both, d_n], -1), torch.cat([*both, d_n * r], -1), (d_h * z,)


class LSTM:
    """c' = f c + i g and h' = o tanh(c'), with i, f, o sigmoids and g a tanh of the sums of both shares (Gers et al. 2000). The
    gates lie in the order i, f, g, o."""

    gates = 4

    @staticmethod
    def step(inputs: Tensor, recurrent: Tensor, state: State) -> tuple[State, tuple[Tensor, ...]]:
        """As `GRU.step`, with gates [B, 4H]."""
        h, c = state
        sums = (inputs + recurrent).chunk(4, -1)
        i, f, g, o = torch.sigmoid(sums[0]), torch.sigmoid(sums[1]), torch.tanh(sums[2]), torch.sigmoid(sums[3])
        after = f * c + i * g
        t = torch.tanh(after)
        return (o * t, after), (i, f, g, o, t, c, h)

    @staticmethod
    def slopes(i: Tensor, f: Tensor, g: Tensor, o: Tensor, t: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """As `GRU.slopes`."""
        return o * (1 - t * t), g * i * (1 - i), c * f * (1 - f), i * (1 - g * g), t * o * (1 - o), f

    @staticmethod
    def back(
        d: State, c_of_h: Tensor, i_of_c: Tensor, f_of_c: Tensor, g_of_c: Tensor, o_of_h: Tensor, f: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        """As `GRU.back`. All of an LSTM's h reaches the next row by `recurrent`."""
        d_h, d_c = d
        d_c = torch.addcmul(d_c, d_h, c_of_h)
        gates = torch.cat([d_c * i_of_c, d_c * f_of_c, d_c * g_of_c, d_h * o_of_h], -1)
        return gates, gates, (torch.zeros_like(d_h), d_c * f)


Cell = type[GRU] | type[LSTM]
CELLS: dict[str, Cell] = {"gru": GRU, "lstm": LSTM}


def unroll(
    cell: Cell, inputs: Tensor, state: State, first: Tensor, product: Product, keep: Callable[..., object] | None = None
) -> tuple[Tensor, ...]:
    """The outputs h [T, B, H] of all rows, and the parts of the state after the last one.

    Args:
        inputs: the inputs' share of the gates, [T, B, G H].
        state: before row 0.
        first: bool [T, B, 1]: the state is zeroed before these rows.
        product: from h to its share of the gates.
        keep: receives what the gradient needs of each row.
    """
    outputs = []
    for row, reset in zip(inputs.unbind(), first.unbind(), strict=True):
        before = tuple(part.masked_fill(reset, 0.0) for part in state)
        state, needed = cell.step(row, product(before[0]), before)
        outputs.append(state[0])
        if keep is not None:
            keep(needed)
    return torch.stack(outputs), *state


class Unroll(torch.autograd.Function):
    """`unroll` with a gradient: apply(cell, product, inputs, weight, bias, first, *state). `weight` [G H, H] and `bias` are those
    of `product`, perhaps of another type."""

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, product: Product, inputs: Tensor, weight: Tensor, bias: Tensor, first: Tensor, *state: Tensor
    ) -> tuple[Tensor, ...]:  # fmt: skip
        rows: list[tuple[Tensor, ...]] = []
        found = unroll(cell, inputs, state, first, product, rows.append)
        ctx.cell = cell
        ctx.save_for_backward(weight, bias, first, *map(torch.stack, zip(*rows, strict=True)))
        return found

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d_outputs: Tensor, *d: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias, first, *needed = ctx.saved_tensors
        h = needed[-1]
        product, slopes = linear(weight.T.to(h.dtype), None, h.shape[1]), ctx.cell.slopes(*needed)
        d_inputs, d_recurrent = [], []
        for t in reversed(range(len(h))):
            of_inputs, of_recurrent, before = ctx.cell.back((d[0] + d_outputs[t], *d[1:]), *(slope[t] for slope in slopes))
            d_inputs.append(of_inputs)
            d_recurrent.append(of_recurrent)
            d = tuple(part.masked_fill(first[t], 0.0) for part in (before[0] + product(of_recurrent), *before[1:]))
        gates = torch.stack(d_recurrent[::-1]).flatten(0, 1)
        of_weight, of_bias = (gates.T @ h.flatten(0, 1)).to(weight.dtype), gates.sum(0).to(bias.dtype)
        return None, None, torch.stack(d_inputs[::-1]), of_weight, of_bias, None, *d

"""A network computed in pieces: each of torch's threads takes a part of the samples through all layers.

PyTorch divides every operation among its threads, which wait for each other a hundred times in an optimizer step. A thread that
has lost its core to a rollout worker for a moment holds up all others each time. Here they wait for each other twice, at the end
of the forward and of the backward pass. Where nobody else wants the cores, PyTorch's way is as fast, and for small batches
faster.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headrace.policies.activations import ELU
from headrace.policies.encoders import ConvEncoder, MultiEncoder, PixelConv2d, ResidualBlock, TwoNetworks, VectorEncoder

LEAST = 32  # samples of a piece
SEPARATE: set[type[nn.Module]] = {
    MultiEncoder, TwoNetworks, ConvEncoder, VectorEncoder, ResidualBlock, nn.Sequential, nn.ModuleList, nn.Identity, PixelConv2d,
    nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.GroupNorm, nn.ReLU, nn.Tanh, ELU,
}  # fmt: skip
"""Layers that compute every sample by itself, without random numbers, and keep nothing."""
_wanted = False


def divide() -> None:
    """From now on, let `in_pieces` divide what this process computes: others want the cores, too."""
    global _wanted
    _wanted = True


def in_pieces(network: nn.Module, obs: dict[str, Tensor]) -> Tensor:
    """`network(obs)`: features [N, F] of observations [N, ...] by name.

    In pieces after `divide`, on the CPU, where torch has several threads, all layers of a convolutional network are `SEPARATE`,
    and there are `LEAST` samples for each thread. The gradient of a weight is then the sum of the pieces', and has no derivative
    itself.
    """
    threads = torch.get_num_threads() if _wanted else 1
    if threads == 1 or torch.compiler.is_compiling() or torch.jit.is_tracing() or not _divisible(network, obs, threads):
        return network(obs)  # type: ignore[no-any-return]
    parts = [dict(zip(obs, part, strict=True)) for part in zip(*(x.tensor_split(threads) for x in obs.values()), strict=True)]
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not parameters or not torch.is_grad_enabled():
        return torch.cat(_together(network, parts))
    return _Pieces.apply(network, parts, *parameters)  # type: ignore[no-any-return]


def _divisible(network: nn.Module, obs: dict[str, Tensor], threads: int) -> bool:
    if not all(x.is_cpu and len(x) >= LEAST * threads and not x.requires_grad for x in obs.values()):
        return False
    kinds = {type(layer) for layer in network.modules()}
    return ConvEncoder in kinds and kinds <= SEPARATE


class _Pieces(torch.autograd.Function):
    """Has the graphs of all pieces, one for each thread: autograd would go through them one after the other."""

    @staticmethod
    def forward(ctx: Any, network: nn.Module, parts: list[dict[str, Tensor]], *parameters: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.features, ctx.parameters = _together(network, parts), parameters
        return torch.cat([features.detach() for features in ctx.features])

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        def differentiate(piece: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
            # The sum of the products has `piece[1]` as the gradient of the features. Given as `grad_outputs`, it would make torch
            # import SymPy, in the first update: 0.3 s, where byte code is not kept more than 1 s, and 35 MB.
            with torch.enable_grad():
                total = (piece[0] * piece[1]).sum()
            return torch.autograd.grad(total, ctx.parameters)

        of_features = gradient.split([len(features) for features in ctx.features])
        first, *others = _together(differentiate, list(zip(ctx.features, of_features, strict=True)))
        for other in others:
            torch._foreach_add_(first, other)
        return None, None, *first


Piece = TypeVar("Piece")
Result = TypeVar("Result")


def _together(function: Callable[[Piece], Result], pieces: list[Piece]) -> list[Result]:
    """The function of all pieces at once, of the first in this thread; each with one thread of torch's, and with autograd,
    autocast and inference mode as they are here."""
    threads, dtype = torch.get_num_threads(), torch.get_autocast_dtype("cpu")
    grad, inference, autocast = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")

    def compute(piece: Piece) -> Result:
        # What autocast has converted is kept for all threads, until one of them leaves it: so nothing is kept.
        converting = torch.autocast("cpu", dtype, enabled=autocast, cache_enabled=False)
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), converting:
            return function(piece)

    others = [_pool(threads).submit(compute, piece) for piece in pieces[1:]]
    torch.set_num_threads(1)
    try:
        first = compute(pieces[0])
    finally:
        torch.set_num_threads(threads)
        wait(others)
    return [first, *(other.result() for other in others)]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    def begin() -> None:
        torch.get_num_threads()  # else the first operation would set what the main thread has set last
        torch.set_num_threads(1)

    return ThreadPoolExecutor(threads - 1, "pieces", begin)

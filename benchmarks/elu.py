"""Ways to compute ELU on the CPU, forwards and backwards, on the shapes of the network for VizDoom.

    python benchmarks/elu.py [--batches 16 256] [--dtype bfloat16] [--threads 1] [--rounds 15]

Sides: the native functions (`headrace.policies.activations.ELU`), PyTorch's own, two formulas over PyTorch's operations (one
of them in place, with a backward pass of its own), and two of these through `torch.compile`. A batch of 16 is what a
policy worker acts on (forward alone, no gradients), one of 256 what the learner takes (both passes). The sides take turns and
the least processor time of the rounds is kept, so that what else the machine does is left out. Then the same for whole
updates of the encoder, where the activation is one part of many. Prints microseconds and ratios to the native side.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headrace.accelerator.memory import keep_freed_memory
from headrace.policies.activations import ACTIVATIONS, ELU
from headrace.policies.encoders import ConvEncoder, convolutions

IMAGE = (3, 72, 128)
LAYERS = ((32, 8, 4), (64, 4, 2), (128, 3, 2))
SHAPES = [(32, 17, 31), (64, 7, 14), (128, 3, 6), (512,)]  # what the activations of the encoder get
Function = Callable[[Tensor], Tensor]


def formula(x: Tensor) -> Tensor:
    """relu(x) + e^min(x, 0) - 1. Not exp(...) - 1, which has no correct digit left in bf16 where x is small."""
    return F.relu(x) + torch.expm1(torch.clamp(x, max=0.0))


class InPlace(torch.autograd.Function):
    """max(x, e^min(x, 0) - 1), as few new tensors as there can be; the slope is min(y, 0) + 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.clamp(x, max=0.0).expm1_()
        y = torch.maximum(x, y, out=y)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return torch.clamp(y, max=0.0).add_(1.0).mul_(dy)


def sides() -> dict[str, Function]:
    return {
        "native": ELU(),
        "torch": F.elu,
        "formula": formula,
        "formula in place": InPlace.apply,
        "formula compiled": torch.compile(formula, dynamic=False),
        "torch compiled": torch.compile(F.elu, dynamic=False),
    }


def least(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Microseconds of processor time of one call of each, the least of the rounds."""
    times = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run(), run()
    for _ in range(rounds):
        for name, run in runs.items():
            calls, begin = 0, time.process_time()
            while calls < 3 or time.process_time() - begin < 0.01:
                run()
                calls += 1
            times[name] = min(times[name], (time.process_time() - begin) / calls * 1e6)
    return times


def passes(function: Function, x: Tensor, learns: bool) -> Callable[[], object]:
    """Forward under inference mode, or forward and backward."""
    if not learns:

        def act() -> None:
            with torch.inference_mode():
                function(x)

        return act
    leaf, dy = x.detach().requires_grad_(), torch.randn_like(x)
    return lambda: torch.autograd.grad(function(leaf), leaf, dy)


class Activation(nn.Module):
    """A function as a module."""

    function: Function

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return type(self).function(x)


def encoder(function: Function, batch: int, dtype: torch.dtype, learns: bool) -> Callable[[], object]:
    """The whole encoder in the given precision with `function` as its activation."""
    name = f"benchmarked {id(function)}"
    ACTIVATIONS[name] = type("Benchmarked", (Activation,), {"function": staticmethod(function)})
    network = ConvEncoder(IMAGE, convolutions(IMAGE[0], LAYERS, name), 512, name).to(memory_format=torch.channels_last)
    images = torch.randint(256, (batch, *IMAGE), dtype=torch.uint8)

    def run() -> None:
        with torch.inference_mode(not learns), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            features = network(images)
        if learns:
            torch.autograd.grad(features.sum(), list(network.parameters()))

    return run


def rows(batch: int, dtype: torch.dtype, learns: bool, rounds: int) -> Iterable[tuple[str, dict[str, float]]]:
    """What was measured and the microseconds of each side."""
    for shape in SHAPES:
        x = torch.randn(batch, *shape).to(dtype)
        x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
        yield "x".join(map(str, shape)), least({name: passes(f, x, learns) for name, f in sides().items()}, rounds)
    yield "encoder", least({name: encoder(f, batch, dtype, learns) for name, f in sides().items()}, rounds)


def main() -> None:
    """Measures and prints one table per batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    torch._dynamo.config.recompile_limit = 256  # every shape is compiled on its own
    for batch in arguments.batches:
        learns = batch > 64
        what = "forward and backward" if learns else "forward"
        print(f"\nbatch {batch}, {arguments.dtype}, {what}: microseconds (ratio to native)")
        for what, times in rows(batch, getattr(torch, arguments.dtype), learns, arguments.rounds):
            cells = "".join(f"  {name} {us:.1f} ({us / times['native']:.2f})" for name, us in times.items())
            print(f"{what:10}{cells}", flush=True)


if __name__ == "__main__":
    main()

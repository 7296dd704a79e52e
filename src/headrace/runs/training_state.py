"""States of networks, optimizers and torch's random generators: how a program takes what a checkpoint holds of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from headrace.config.file_reading import shortened
from headrace.runs.checkpoint import CheckpointError
from headrace.runs.state_tree import check_like

_KERNELS = ("foreach", "fused", "capturable")  # settings of an optimizer that only choose its kernels; they may be None


def load_weights(model: torch.nn.Module, state: Any, path: Path) -> None:
    """`model.load_state_dict(state)`, with a state that was read from `path`.

    Raises `CheckpointError` where it is that of another network or not finite; the model is then as it was.
    """
    try:
        check_like(state, model.state_dict(), "the model")
        if not all(torch.isfinite(tensor).all() for tensor in state.values()):
            raise ValueError("its weights are not finite")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not fit this network: {shortened(str(error))}") from error
    model.load_state_dict(state)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`optimizer.load_state_dict(state)`, with every moment in the memory format and on the device of its parameter.

    Checkpoints hold contiguous tensors. Without this, the moments of a channels-last parameter would give the same numbers by a
    slower kernel. All settings but the learning rate (decay rates, epsilon, the choice of kernel) stay the optimizer's own: they
    may have been changed since, and the device may be another one. So does whether the learning rate is a tensor.

    Raises `ValueError` for the state of another optimizer or of other parameters.
    """
    groups = []
    for saved, own in zip(state["param_groups"], optimizer.param_groups, strict=True):
        for name, value in own.items():
            if name not in ("params", "lr", *_KERNELS) and name in saved:
                check_like(saved[name], value, f"the optimizer's {name}")
        here: dict[str, Any] = {name: value for name, value in own.items() if name not in ("params", "lr")}
        if isinstance(own["lr"], torch.Tensor):
            here["lr"] = torch.as_tensor(saved["lr"]).to(own["lr"])
        elif isinstance(saved["lr"], torch.Tensor):
            here["lr"] = saved["lr"].item()
        groups.append({**saved, **here})
    optimizer.load_state_dict({**state, "param_groups": groups})
    _check_moments(optimizer)
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                moments[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _check_moments(optimizer: torch.optim.Optimizer) -> None:
    """Each moment has the shape of its parameter, or is one number; every parameter has the same ones, or none yet."""
    if len({frozenset(moments) for moments in optimizer.state.values() if moments}) > 1:
        raise ValueError("the optimizer's state differs from parameter to parameter")
    for parameter, moments in optimizer.state.items():
        for name, value in moments.items():
            fits = isinstance(value, torch.Tensor) and value.shape in (parameter.shape, ()) and value.is_floating_point()
            if not fits or not torch.isfinite(value).all():
                raise ValueError(f"the optimizer's {name} of a parameter of shape {list(parameter.shape)} does not fit it")


def random_state() -> dict[str, Any]:
    """The states of torch's generators, of the CPU and of all CUDA devices, for `pack`."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore what `random_state` gave; states of CUDA devices for as many of them as there are now."""
    torch.set_rng_state(state["torch"])
    for device, saved in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
        torch.cuda.set_rng_state(saved, device)

"""Minibatches: the parts of a batch that the optimizer steps of an update learn from."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headrace.accelerator.graphs import Tensors
from headrace.accelerator.staging import to_device
from headrace.config import ConfigError, LearningConfig

SMALL = 1 << 20  # bytes of a field of a batch up to which copying it whole costs less than the operations on its parts


def minibatches(data: Tensors, c: LearningConfig, whole: bool, device: str, generator: torch.Generator) -> Iterator[Tensors]:
    """What each optimizer step of an update learns from: `num_epochs` times the `num_minibatches` parts of a batch, in an order
    that `generator` draws. `whole`: trajectories stay whole, see `Algorithm.whole_trajectories`. Raises `ConfigError` where there
    are fewer than parts."""
    if c.num_minibatches == 1:
        yield from [data] * c.num_epochs
        return
    separable = not whole and data["core"].shape[-1] == 0  # a recurrence ties the rows of a trajectory together
    samples = _as_single_rows(data, len(data["reward"])) if separable else data
    if (there := samples["reward"].shape[1]) < c.num_minibatches:  # of an algorithm of the user's own, which nobody knew before
        raise ConfigError(
            f"learning.algorithm {c.algorithm} learns from whole trajectories, of which a batch has {there}: "
            f"learning.num_minibatches ({c.num_minibatches}) must not be above that"
        )
    for _ in range(c.num_epochs):
        order = to_device(torch.randperm(samples["reward"].shape[1], generator=generator), device)
        parts = [order[i :: c.num_minibatches] for i in range(c.num_minibatches)]
        if separable:
            yield from _divided(samples, parts)
        else:
            for part in parts:
                yield _columns(samples, part)


def _as_single_rows(batch: Tensors, T: int) -> Tensors:
    """[T, B, ...] to [1, T B, ...]; row T is needed no more."""
    return {
        name: t.new_empty(T * t.shape[0], 0) if name == "core" else t[:T].flatten(0, 1).unsqueeze(0) for name, t in batch.items()
    }


def _columns(batch: Tensors, index: Tensor) -> Tensors:
    """Some of a batch's trajectories (whole, so that recurrences and traces stay together)."""
    return {name: t[index] if name == "core" else t[:, index] for name, t in batch.items()}


def _divided(samples: Tensors, parts: list[Tensor]) -> Iterator[Tensors]:
    """`_columns` of every part, for single rows [1, N, ...]. What is small is put into the order of all parts at once."""
    order = torch.cat(parts)
    at_once = {
        name: t.index_select(0 if name == "core" else 1, order).split([len(part) for part in parts], 0 if name == "core" else 1)
        for name, t in samples.items()
        if t.nbytes <= SMALL
    }
    for i, part in enumerate(parts):
        # Along the first dimension: along the second it takes seven times as long.
        rest = {name: t[0].index_select(0, part).unsqueeze(0) for name, t in samples.items() if name not in at_once}
        yield {name: pieces[i] for name, pieces in at_once.items()} | rest

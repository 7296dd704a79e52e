"""What algorithms read from a batch of trajectories or transitions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.accelerator.graphs import Tensors


def named(batch: Tensors, prefix: str, rows: int | None = None) -> Tensors:
    """The entries of a batch whose names begin with `prefix`, under their names without it: all rows, or the first `rows`."""
    return {name.removeprefix(prefix): x[:rows] for name, x in batch.items() if name.startswith(prefix)}


@torch.no_grad()
def all_values(net: Any, batch: Tensors) -> Tensor:
    """[T+1, B]: V of every row. The values of rows 0 to T-1 were computed when acting; only that of row T is computed here. The
    stored values come from the weights that acted, so they are as old as the actions stored with them. A recurrent network is
    unrolled over all rows, because the core state of row T depends on them. `net`, `batch`: see `following_values`.
    """
    obs, first = named(batch, "obs/"), batch["first"]
    if batch["core"].shape[-1]:
        return net.unroll(obs, batch["core"], first).value
    last = net.unroll({n: x[-1:] for n, x in obs.items()}, batch["core"], first[-1:])
    return torch.cat([batch["value"], last.value])


@torch.no_grad()
def following_values(net: Any, batch: Tensors, values: Tensor) -> Tensor | None:
    """[T, B]: V of the observation after row t. None if row t+1 holds that observation (`next-step` environments).

    Environments that reset in the same step put the last observation of an episode into `final_obs`. A recurrent network needs
    the core state after row t for it, so the trajectory is unrolled row by row.

    Args:
        net: a network with `act` (one row) and `unroll` (all rows), whose outputs have V in `value`.
        batch: trajectories.
        values: [T+1, B]: V of every row.
    """
    final = named(batch, "final_obs/")
    if not final:
        return None
    obs, core, first = named(batch, "obs/"), batch["core"], batch["first"]
    ended = batch["terminated"] | batch["truncated"]
    if not core.shape[-1]:
        after = net.unroll(final, core, torch.zeros_like(ended)).value
    else:
        rows = []
        for t in range(len(ended)):
            core = net.act({n: x[t] for n, x in obs.items()}, core, first[t]).core
            rows.append(net.act({n: x[t] for n, x in final.items()}, core, torch.zeros_like(first[t])).value)
        after = torch.stack(rows)
    return torch.where(ended, after, values[1:])

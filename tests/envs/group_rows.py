"""Rows of a group as arrays or tensors, and what is in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from headrace.envs.core.contract import LaneRow, ObsRow, StepRow
from headrace.envs.core.spaces import PLAIN_KEY


def rows_of(spec: Any, n: int, tensors: bool) -> tuple[ObsRow, LaneRow]:
    """Memory for a first observation, and for a step."""
    first, row = ObsRow.zeros(spec, n), LaneRow(np.zeros((n, 1), np.int32), StepRow.zeros(n), ObsRow.zeros(spec, n))
    return (first.map(torch.from_numpy), row.map(torch.from_numpy)) if tensors else (first, row)


def contents(first: ObsRow, row: LaneRow) -> dict[str, np.ndarray]:
    found: dict[str, Any] = {}
    for which, observed in (("first", first), ("after", row.after)):
        found |= {f"{which}/obs": observed.obs[PLAIN_KEY], f"{which}/first": observed.first, f"{which}/valid": observed.valid}
    found |= {name: x for name, x in vars(row.step).items() if x is not None and not isinstance(x, dict)}
    return {name: np.asarray(x).copy() for name, x in found.items()}

"""What one rank does in test_ranks.py: learns from its share of the data and prints what came of it as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "learning"))
from test_learner import Line, make_learner

from headrace.accelerator.ranks import RankLost, Ranks
from headrace.experience.batch import Arrivals, Batch
from headrace.policies.normalizer import RunningMeanStd

T, B = 4, 8


def share(array: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """This rank's columns of [T, B]."""
    each = array.shape[1] // ranks.size
    return array[:, ranks.index * each : (ranks.index + 1) * each].contiguous()


def batch(ranks: Ranks, update: int) -> Batch:
    random = torch.Generator().manual_seed(update)
    x = share(torch.randn(T, B, generator=random), ranks)
    y = share(torch.randn(T, B, generator=random), ranks)
    stale = share(torch.arange(T * B).reshape(T, B) % 5 == 0, ranks)
    data = {"x": x, "y": y, "reward": torch.zeros_like(x), "core": torch.zeros(x.shape[1], 0), "number": torch.zeros_like(x)}
    version = torch.where(stale, -1000, update).int()
    arrivals = Arrivals(ranks.count(x.numel())[0], np.zeros(0, np.float32), np.zeros(0, np.int32))
    return Batch(data, version, torch.ones(T, x.shape[1], dtype=torch.bool), None, arrivals)


def main() -> None:
    ranks = Ranks("cpu")
    learner = make_learner(Line(), **{"learning.max_policy_lag": 100, "learning.max_grad_norm": 0.5})
    with torch.no_grad():
        learner.model.weight += ranks.index  # rank 0's weights count
    learner.join(ranks)
    normalizer = RunningMeanStd((2,))
    normalizer.sum_over_ranks = ranks.sum
    for update in range(5):
        learner.learn(batch(ranks, update))
        random = torch.Generator().manual_seed(update)
        sample = 3 + 10 * torch.randn(1, 8, 2, generator=random)
        mask = torch.rand(1, 8, generator=random) < 0.6
        normalizer.update(share(sample, ranks)[0], share(mask, ranks)[0])
    print(
        json.dumps(
            {
                "weights": [p.flatten().tolist() for p in learner.model.parameters()],
                "global_step": learner.progress.global_step,
                "stale": learner.progress.stale_steps,
                "normalizer": [normalizer.mean.tolist(), normalizer.var.tolist(), float(normalizer.count)],
                "joined": ranks.join(np.arange(ranks.index, dtype=np.float32)).tolist(),
                "largest": ranks.largest(ranks.index % 3),
                "first": (ranks.from_first(b"from 0" if ranks.index == 0 else None) or b"").decode(),
                "nothing": ranks.from_first(None),
            }
        ),
        flush=True,
    )
    if ranks.index < ranks.size - 1:
        try:
            ranks.count(1)
        except RankLost as error:
            print(f"lost: {error}")
    sys.stdout.flush()
    os._exit(0)  # as the command line does


if __name__ == "__main__":
    main()

"""What one rank does in test_ranks.py: makes three updates by each algorithm with its share of the data, and prints the weights
as JSON. The shares have different numbers of valid rows."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.accelerator.ranks import Ranks
from headrace.envs.core.contract import ActionSpec, ArraySpec, Categorical, Continuous, EnvSpec
from headrace.experience.batch import Arrivals, Batch
from headrace.learning.algorithm import make_agent
from headrace.learning.learner import Learner
from headrace.make_config import make_config

T, B = 12, 8
TRAJECTORIES, TRANSITIONS, SEQUENCES = (
    ("appo", "ppo", "impala", "a2c", "pqn"),
    ("apex-dqn", "apex-dpg", "dqn", "rainbow"),
    ("r2d2",),
)
OBSERVATION = {"obs": ArraySpec((3,), np.dtype(np.float32))}
DISCRETE = EnvSpec(OBSERVATION, ActionSpec((Categorical(4),)), 1, name="made up")
CONTINUOUS = EnvSpec(OBSERVATION, ActionSpec((Continuous((-1.0, -1.0), (1.0, 1.0)),)), 1, name="made up")
SETTINGS: dict[str, Any] = {
    "learning.device": "cpu", "learning.num_threads": 1, "learning.num_epochs": 1, "learning.num_minibatches": 1,
    "learning.normalize_advantages": False,  # each rank normalises its own
    "learning.total_steps": 1000, "policy.mlp": (16,), "policy.hidden": 16, "policy.core_size": 8,
    "q.epsilon_decay": 0.5, "q.burn_in": 2, "q.sequence": 7, "q.target_period": 2, "replay.n_step": 3, "q.actor_layers": (8,),
    "q.critic_layers": (8, 8), "learning.optimizer_eps": 1e-2, "learning.max_grad_norm": 0.5,
}  # fmt: skip


def make_batch(name: str, update: int, width: int) -> tuple[dict[str, Tensor], Tensor | None]:
    """The whole batch, and with trajectories the valid rows: few in the first half of the columns, many in the second."""
    g = torch.Generator().manual_seed(update)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    def chance(p: float, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=g) < p

    if name in TRANSITIONS:
        action = normal(B, 2).clamp(-1, 1) if name == "apex-dpg" else torch.randint(4, (B, 1), generator=g).int()
        return {
            "obs/obs": normal(B, 3), "next/obs": normal(B, 3), "action": action, "reward": normal(B),
            "discount": torch.full((B,), 0.9), "weights": torch.rand(B, generator=g),
        }, None  # fmt: skip
    data = {
        "obs/obs": normal(T + 1, B, 3), "first": chance(0.1, T + 1, B), "core": 0.1 * normal(B, width), "reward": normal(T, B),
        "action": torch.randint(4, (T, B, 1), generator=g).int(),
    }  # fmt: skip
    if name in SEQUENCES:
        ends = {"last": chance(0.1, T, B), "final": chance(0.1, T, B), "discount": torch.full((T, B), 0.9)}
        rows = {n: x[:T] if n in ("obs/obs", "first") else x for n, x in data.items()}
        return rows | ends | {"weights": torch.rand(B, generator=g)}, None
    data |= {"terminated": chance(0.1, T, B), "truncated": chance(0.1, T, B), "value": normal(T, B)}
    data["log_prob"] = -1.4 + 0.1 * normal(T, B)
    return data, torch.cat([chance(0.2, T + 1, B // 2), chance(0.9, T + 1, B // 2)], 1)


def learned(name: str, ranks: Ranks) -> list[list[float]]:
    config = make_config("gym/CartPole-v1", name, **SETTINGS)
    algorithm, model = make_agent(config, CONTINUOUS if name == "apex-dpg" else DISCRETE)
    learner = Learner(model, algorithm, config)
    learner.join(ranks)
    each = B // ranks.size
    mine = slice(ranks.index * each, (ranks.index + 1) * each)
    for update in range(3):
        data, valid = make_batch(name, update, model.core_width)  # type: ignore[arg-type]
        one_axis = name in TRANSITIONS
        share = {n: (x[mine] if one_axis or n in ("core", "weights") else x[:, mine]).contiguous() for n, x in data.items()}
        torch.manual_seed(update)  # noisy layers
        if valid is None:
            batch = Batch(share, torch.zeros(each).int(), None, np.zeros(each, np.uint64), Arrivals(T * B))
        else:
            version = torch.full((T, each), learner.progress.version, dtype=torch.int32)
            batch = Batch(share, version, valid[:, mine].contiguous(), None, Arrivals(int(valid[:T].sum())))
        learner.learn(batch)
    return [x.double().flatten().tolist() for x in model.state_dict().values()]


def main() -> None:
    ranks = Ranks("cpu")
    results = {name: learned(name, ranks) for name in (*TRAJECTORIES, *TRANSITIONS, *SEQUENCES)}
    ranks.count(0)  # nobody leaves before the others are done; printing waits for whoever reads one rank after the other
    print(json.dumps(results), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

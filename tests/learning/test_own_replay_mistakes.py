"""Mistakes in an algorithm of one's own that learns from a replay: the message says whose it is and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.arrays import ArraySpec
from headrace.learning import algorithm as algorithms
from headrace.learning import register_algorithm
from headrace.learning.apex_dqn import ApexDQN
from headrace.learning.r2d2 import R2D2
from headrace.make_config import make_config
from headrace.policies.errors import AgentFault
from headrace.train import train

SMALL: dict[str, Any] = {
    "learning.num_epochs": 1, "learning.num_minibatches": 1, "replay.minimum": 64, "replay.capacity": 1000,
    "learning.batch_size": 4, "sampling.rollout": 8, "q.burn_in": 0, "q.sequence": 8, "policy.core_size": 4,
}  # fmt: skip


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    known = dict(algorithms._declarations)
    yield
    algorithms._declarations.clear()
    algorithms._declarations.update(known)


def refused(folder: Path, base: Any, placement: str = "serial", core: str = "none", **methods: Any) -> str:
    own = type("Mine", (base,), methods)
    register_algorithm("own", experience="replay", defaults=SMALL)(lambda config: own(config))
    given = {"sampling.placement": placement, "sampling.num_workers": 1, "learning.total_steps": 600, "learning.device": "cpu",
             "policy.core": core, "run.video": False, "run.dashboard": False, "run.folder": str(folder / "run")}  # fmt: skip
    with pytest.raises(AgentFault) as error:
        train(make_config("gym/CartPole-v1", "own", **given))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("placement", ["serial", "device"])
@pytest.mark.parametrize(
    ("change", "came"),
    [
        (lambda x: x[:, None], "the 'priority' float32 [4, 1]"),
        (lambda x: x[:3], "the 'priority' float32 [3]"),
        (lambda x: x.mean(), "the 'priority' float32 []"),
        (lambda x: x.numpy(), "{'priority': ndarray}"),
        (lambda x: x * torch.nan, "a 'priority' that is negative or not finite"),
        (lambda x: -1 - x, "a 'priority' that is negative or not finite"),
    ],
)
def test_priorities_that_are_none(tmp_path: Path, placement: str, change: Callable[[Any], Any], came: str) -> None:
    def loss(self: Any, model: Any, batch: Any, config: Any) -> Any:
        result = ApexDQN.loss(self, model, batch, config)
        batch["priority"] = change(batch["priority"])
        return result

    message = refused(tmp_path, ApexDQN, placement, loss=loss)
    assert message.startswith(f"Mine.loss (learning.algorithm own) added {came} to the batch; expected: ")


def test_a_loss_without_priorities(tmp_path: Path) -> None:
    def loss(self: Any, model: Any, batch: Any, config: Any) -> Any:
        return ApexDQN.loss(self, model, dict(batch), config)

    message = refused(tmp_path, ApexDQN, loss=loss)
    assert message.startswith("Mine.loss (learning.algorithm own) added no 'priority' to the batch; expected")


@pytest.mark.parametrize(
    ("name", "kind", "core"),
    [("env_index", None, "none"), ("env_index", np.int64, "none"), ("q", np.float64, "none"), ("q", None, "gru")],
)
def test_fields_that_a_replay_needs(tmp_path: Path, name: str, kind: Any, core: str) -> None:
    base = ApexDQN if core == "none" else R2D2

    def extra_fields(self: Any, spec: Any) -> Any:
        fields = base.extra_fields(self, spec)
        del fields[name]
        return fields if kind is None else fields | {name: ArraySpec((), np.dtype(kind))}

    def act(self: Any, *arguments: Any, **more: Any) -> Any:
        fields, state = base.act(self, *arguments, **more)
        there = extra_fields(self, None)
        return {n: x for n, x in fields.items() if n in there or n in ("action", "value")}, state

    message = refused(tmp_path, base, core=core, extra_fields=extra_fields, act=act)
    dtype = "int32" if name == "env_index" else "float32"
    assert message.startswith("Mine.extra_fields (learning.algorithm own) returned ")
    assert message.endswith(f"; a replay needs {name!r}, {dtype} []")
    assert not (tmp_path / "run").exists()

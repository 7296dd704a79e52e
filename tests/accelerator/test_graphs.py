"""Recorded work, on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from replayer import Replayer

from headrace.accelerator.graphs import WARM_UPS, Function, Recorded, Tensors


class Refuser(Replayer):
    """A device that cannot record."""

    def record(self, function: Function, inputs: Tensors) -> tuple[Callable[[], object], Tensors]:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


def test_one_recording_for_each_set_of_shapes() -> None:
    calls, recorder = [], Replayer()
    memory = torch.zeros(1)

    def work(x: Tensors) -> Tensors:
        calls.append(x["a"].shape)
        memory.add_(1)
        return {"sum": x["a"].sum() + x["b"]}

    recorded = Recorded("work", work, recorder)
    for n in (3, 5, 3, 5, 3, 5, 3, 5, 3, 5):
        a, b = torch.rand(n), torch.rand(())
        torch.testing.assert_close(recorded({"a": a, "b": b})["sum"], a.sum() + b)
    assert memory == 10  # nothing done twice, nothing left out, while warming up and recording too
    assert recorder.replays == 10 - 2 * WARM_UPS


def test_what_cannot_be_recorded_runs_as_it_is_and_says_so() -> None:
    recorded = Recorded("acting", lambda x: {"y": x["x"] + 1}, Refuser())
    with warnings.catch_warnings(record=True) as warned:
        for i in range(WARM_UPS + 3):
            assert recorded({"x": torch.tensor(i)})["y"] == i + 1
    assert [str(w.message) for w in warned] == [
        "acting runs without a CUDA graph, recording one failed: operation not permitted when stream is capturing"
    ]

"""A recorder of work for tests without a GPU."""

from __future__ import annotations

from collections.abc import Callable

from headrace.accelerator.graphs import Function, Tensors


class Replayer:
    """Records like a GPU does: nothing is done while recording, a replay works on the same memory every time."""

    def __init__(self) -> None:
        self.replays = 0

    def warm_up(self, function: Function, inputs: Tensors) -> Tensors:
        return function(inputs)

    def record(self, function: Function, inputs: Tensors) -> tuple[Callable[[], object], Tensors]:
        outputs: Tensors = {}

        def replay() -> None:
            self.replays += 1
            for name, x in function(inputs).items():
                if name in outputs:
                    outputs[name].copy_(x)
                else:
                    outputs[name] = x.clone()

        return replay, outputs

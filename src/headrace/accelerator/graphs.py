"""Computing on a GPU: number formats, waiting for the device, and CUDA graphs.

The same code runs on the CPU, where work is done when the call returns: markers are passed at once, nothing is recorded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Function = Callable[[Tensors], Tensors]

WARM_UPS = 3
"""Calls that run as they are before one is recorded: libraries choose kernels, optimizers make their state, caches fill."""


def set_up(device: str) -> None:
    """Once per process: select `device`, TF32 for float32 products and convolutions, kernels chosen by trial per shape."""
    if device == "cpu":
        return
    if (index := torch.device(device).index) is not None:  # "cuda" is the device that is selected anyway
        torch.cuda.set_device(index)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    # Where an algorithm has nothing to prepare, its graph is rightly empty.
    warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
    torch.backends.cudnn.benchmark = True  # batch sizes are few: acting pads them, minibatches are all alike


class Marker:
    """A point in the work given to the device. The host can wait for it, asleep, whatever else the device has to do."""

    def __init__(self, device: str):
        self._device = device
        # A waiting process that spins would take its core from a rollout worker.
        self._event = None if device == "cpu" else torch.cuda.Event(blocking=True)

    def set(self) -> None:
        """Put the point behind all work given so far to this thread's current stream."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Return when the device is past the point set last (at once if none was)."""
        if self._event is not None:
            self._event.synchronize()

    def catch_up(self) -> None:
        """Return when the device has done all work given so far to this thread's current stream."""
        self.set()
        self.wait()


class Recorder(Protocol):
    """Records work without doing it. `CudaRecorder`, or in tests one that only remembers the function."""

    def warm_up(self, function: Function, inputs: Tensors) -> Tensors:
        """Run the function unrecorded, on the stream of the recordings."""
        ...

    def record(self, function: Function, inputs: Tensors) -> tuple[Callable[[], object], Tensors]:
        """Record `function(inputs)`. Returns a call without arguments that repeats its work, and the tensors of its results."""
        ...


class CudaRecorder:
    """Records CUDA graphs on one stream. All of them share memory for what they compute, since only one runs at a time: each may
    overwrite the results of the others. `device`: "cuda", "cuda:1", ... `generators`: random generators, besides torch's default
    one, that recorded functions draw from."""

    def __init__(self, device: str, generators: tuple[torch.Generator, ...] = ()):
        self._device, self._generators = device, generators
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, function: Function, inputs: Tensors) -> Tensors:
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            outputs = function(inputs)
        here.wait_stream(self._stream)
        return outputs

    def record(self, function: Function, inputs: Tensors) -> tuple[Callable[[], object], Tensors]:
        """See `Recorder`. Raises RuntimeError for work that cannot be recorded, such as waiting for the device."""
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        here = torch.cuda.current_stream(self._device)
        try:
            # Only this thread is watched: others go on copying batches meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                outputs = function(inputs)
        finally:
            torch.cuda.set_stream(here)  # a recording that fails leaves its own stream behind
        return graph.replay, outputs


class Recorded:
    """`function`, recorded once for each set of shapes and from then on replayed by a single launch.

    A replay does what the recording did to the same memory; the function's Python does not run again. Nothing in it may wait
    for the device. Results are overwritten by the next call with the same shapes or others. If recording fails, a warning says so
    and the function is called as it is from then on; so it is, too, without a `recorder`.

    Args:
        name: for messages.
        fixed: inputs of equal shapes are the same memory in every call, so that they need not be copied to a place of their own.
    """

    def __init__(self, name: str, function: Function, recorder: Recorder | None, fixed: bool = False):
        self._name, self._function, self._recorder, self._fixed = name, function, recorder, fixed
        self._calls: dict[tuple[torch.Size, ...], int] = {}
        self._recordings: dict[tuple[torch.Size, ...], tuple[Callable[[], object], Tensors, Tensors]] = {}

    def __call__(self, inputs: Tensors) -> Tensors:
        """The function's results; only valid until the next call."""
        if self._recorder is None:
            return self._function(inputs)
        shapes = tuple(x.shape for x in inputs.values())
        recording = self._recordings.get(shapes)
        if recording is None:
            calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
            if calls <= WARM_UPS:
                return self._recorder.warm_up(self._function, inputs)
            mine = inputs if self._fixed else {name: x.clone() for name, x in inputs.items()}
            try:
                recording = (*self._recorder.record(self._function, mine), mine)
            except RuntimeError as error:
                # Ending a broken recording raises, too; `__context__` is then the first error.
                why = str(error.__context__ or error).partition("\n")[0]
                warnings.warn(f"{self._name} runs without a CUDA graph, recording one failed: {why}", stacklevel=2)
                self._recorder = None
                return self._function(inputs)
            self._recordings[shapes] = recording
        replay, outputs, mine = recording
        if not self._fixed:
            for name, x in inputs.items():
                mine[name].copy_(x)
        replay()
        return outputs

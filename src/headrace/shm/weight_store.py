"""One policy's newest weights, with their version."""

from __future__ import annotations

import headrace._native.ipc as native
from headrace.shm.primitives import reduced
from headrace.shm.segment import Segment


class WeightStore(native.VersionedBuffer):
    """The newest weights of one policy as `nbytes` bytes: one writer (its learner), any number of readers (those who act).

    Two buffers take turns, so no reader ever sees half an update, and no reader waits for the writer. `version` is the parameter
    version published last; `updates` counts how often something was published, and is what a reader compares to see news.
    """

    def __init__(self, nbytes: int) -> None:
        super().__init__(Segment(self.bytes(nbytes), purpose="the weight store"), 0, nbytes)

    __reduce__ = reduced

"""What `serial` and `device` have in common: sampling and the learners take turns in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic

from headrace.sampling.placements.base import Learn, Message, Placement
from headrace.sampling.worker_process import warnings_reported


class InProcess(Placement):
    """The learners run within `messages`, one round of their loops each; asking for a batch steps the environments."""

    def start(self, learn: Learn) -> None:
        """See `Placement.start`."""
        from headrace.accelerator.threads import using_threads

        self._notices: deque[str] = deque()
        self._turn: int | None = None
        self._context = ExitStack()
        self._context.enter_context(using_threads(self.config.learner_threads))
        self._context.enter_context(warnings_reported(self._notices.append))
        self._learners: deque[tuple[int, Iterator[Message | None]]] = deque()
        self.make_sampler()
        self._learners.extend((p, learn(self, p)) for p in range(self.config.population.size))

    @property
    def turn(self) -> int:
        """Whose turn it is next, when the learner that is running has ended its round."""
        return self._learners[1 % len(self._learners)][0]

    def _begin_with_turn(self) -> None:
        """A run that goes on where it was: the turn is that of the same policy. The first round of each only made it ready."""
        if self._turn is not None and self.memory.control.ready:
            if self._turn in (policies := [p for p, _ in self._learners]):
                self._learners.rotate(-policies.index(self._turn))
            self._turn = None

    @abstractmethod
    def make_sampler(self) -> None:
        """Make what steps the environments; `close_sampler` will be called."""

    @abstractmethod
    def close_sampler(self) -> None:
        """Release what the environments hold; called once or more, also when `make_sampler` has failed."""

    def between_rounds(self) -> str | None:
        """Called before every round of a learner's loop; returns a line for the log, if there is one."""
        return None

    def serve_copies(self, p: int, last: bool = False) -> None:
        """See `Placement.serve_copies`; nobody is in another process."""

    def finished(self, p: int) -> None:
        """The learner of policy p has learned enough; nobody takes its batches any more."""

    def messages(self, timeout: float) -> Iterator[Message]:
        """See `Placement.messages`."""
        deadline = monotonic() + timeout
        while self._learners and monotonic() < deadline:
            if notice := self.between_rounds():
                self._notices.append(notice)
            p, learner = self._learners[0]
            try:
                message = next(learner)
            except StopIteration:
                self._learners.popleft()
                self.finished(p)
                self._begin_with_turn()
                continue
            if message is None:  # only a whole round is a turn: what is reported, and when, changes nothing
                self._learners.rotate(-1)
                self._begin_with_turn()
            while self._notices:
                yield Message("message", self._notices.popleft())
            if message is not None:
                yield message

    def stop(self) -> Iterator[Message]:
        """See `Placement.stop`."""
        self.memory.control.stop()
        try:
            while self._learners:
                yield from self.messages(timeout=3600)
        finally:
            self.kill()

    def kill(self) -> None:
        """See `Placement.kill`."""
        self._learners.clear()
        self.close_sampler()
        self._context.close()

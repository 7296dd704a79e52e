"""What `serial` and `device` have in common: sampling and the learners take turns in this process."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic
from typing import Any

from headrace.processes.started_here import StartedHere
from headrace.runs.messages import Message
from headrace.sampling.placements.base import Learn, Placement
from headrace.sampling.worker_process import warnings_reported


class InProcess(Placement):
    """The learners run within `messages`, one round of their loops each; asking for a batch steps the environments."""

    deterministic = True
    sampler: Any = None
    """What steps the environments; has `get_state`, `set_state` and `close`. None before the start and after the end."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._context = ExitStack()
        self._learners: deque[tuple[int, Iterator[Message | None]]] = deque()

    def start(self, learn: Learn) -> None:
        from headrace.accelerator.threads import using_threads

        self._notices: deque[str] = deque()
        self._turn: int | None = None
        self._context.enter_context(using_threads(self.config.learner_threads))
        self._context.enter_context(warnings_reported(self._notices.append))
        self._started_here = StartedHere()
        self._context.callback(self._started_here.end)
        with self._started_here.noted():
            self.sampler = self.make_sampler()
        self._learners.extend((p, learn(self, p)) for p in range(self.config.population.size))

    @property
    def turn(self) -> int:
        """The policy whose learner runs next, when the running one has ended its round."""
        return self._learners[1 % len(self._learners)][0]

    def _begin_with_turn(self) -> None:
        """In a resumed run, give the next turn to the policy that had it, once every learner's first round has made it ready."""
        if self._turn is not None and self.memory.control.ready:
            if self._turn in (policies := [p for p, _ in self._learners]):
                self._learners.rotate(-policies.index(self._turn))
            self._turn = None

    @abstractmethod
    def make_sampler(self) -> Any:
        """Make `sampler`."""

    def between_rounds(self) -> str | None:
        """Called before every round of a learner's loop. Returns a line for the log, or None."""
        return None

    def finished(self, p: int) -> None:
        """Called when policy p has learned enough: its learner takes no more batches."""

    def messages(self, timeout: float) -> Iterator[Message]:
        deadline = monotonic() + timeout
        while self._learners and monotonic() < deadline:
            if notice := self.between_rounds():
                self._notices.append(notice)
            p, learner = self._learners[0]
            try:
                with self._started_here.noted():
                    message = next(learner)
            except StopIteration:
                self._learners.popleft()
                self.finished(p)
                self._begin_with_turn()
                continue
            if message is None:  # a turn is a whole round; reports do not change whose turn it is
                self._learners.rotate(-1)
                self._begin_with_turn()
            while self._notices:
                yield Message("message", self._notices.popleft())
            if message is not None:
                yield message

    def stop(self) -> Iterator[Message]:
        self.memory.control.stop()
        try:
            while self._learners:
                yield from self.messages(timeout=3600)
        finally:
            self.kill()

    def kill(self) -> None:
        self._learners.clear()
        if self.sampler is not None:
            with self._started_here.noted():
                self.sampler.close()
            self.sampler = None
        self._context.close()

    @property
    def shape(self) -> dict[str, Any]:
        """The settings without which a saved state of the sampler does not fit this one."""
        s = self.config.sampling
        sizes = {"workers": s.num_workers, "envs": s.envs_per_worker, "groups": s.num_groups, "rollout": s.rollout}
        return {"placement": s.placement} | sizes

    def get_state(self) -> dict[str, Any]:
        return self.sampler.get_state() | {"shape": self.shape}

    def set_state(self, state: dict[str, Any]) -> str | None:
        if state.get("shape", self.shape) != self.shape:  # older checkpoints have none
            return "Episodes begin anew: other sampling settings"
        return self.sampler.set_state(state)

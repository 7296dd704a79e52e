"""What the policies of a population tell each other: how well they do, weights of rewards, and copies of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from headrace.shm.segment import Mapped, Segment
from headrace.shm.weight_store import WeightStore


class PopulationMemory(Mapped):
    """Made by the parent, passed to every child.

    Args:
        sizes: bytes that a copy of each policy may take; the number of policies is P.
        reward_weights: the K weights of a shaped reward by name, with which every policy starts.
    """

    def __init__(self, sizes: Sequence[int], reward_weights: Mapping[str, float] | None = None) -> None:
        self.reward_names = list(reward_weights or ())
        self._P, self._K = len(sizes), len(self.reward_names)
        self.sizes = list(sizes)
        self._segment = Segment(8 * self._P * (3 + self._K + 2 * self._P), purpose="the population")
        self.copies = [WeightStore(8 + size) for size in sizes]
        """The newest copy of each policy that was asked for: its length, then its bytes."""
        self._map()
        self.objectives[:] = np.nan
        self.reward_weights[:] = list((reward_weights or {}).values())

    def _map(self) -> None:
        P, K = self._P, self._K
        self.objectives = self._segment.ndarray(np.float64, P)
        """[P]: how well each policy does; NaN while that is not known, -inf where the policy has ended without an objective. Each
        is written by its policy's learner."""
        self.reward_weights = self._segment.ndarray(np.float64, (P, K), 8 * P)
        """[P, K]: weights of the shaped reward that each policy learns with; written by its learner, read by rollout workers."""
        self.reward_updates, self._finished = self._segment.ndarray(np.int64, (2, P), 8 * P * (1 + K))
        self._wanted, self._served = self._segment.ndarray(np.int64, (2, P, P), 8 * P * (3 + K))
        """[P, P]: how often the second has asked for a copy of the first, and up to which of these questions there is one. A
        number that several added to could lose a question."""

    def set_reward_weights(self, policy: int, weights: Sequence[float]) -> None:
        """New weights of a policy's reward; rollout workers see that `reward_updates` has changed."""
        self.reward_weights[policy] = weights
        self.reward_updates[policy] += 1

    def weights_of(self, policy: int) -> dict[str, float]:
        """The weights of a policy's reward by name."""
        return dict(zip(self.reward_names, self.reward_weights[policy].tolist(), strict=True))

    # -- copies ------------------------------------------------------------------------------------------------------------

    def want(self, policy: int, asker: int) -> int:
        """Ask for a copy of a policy; returns the number that `read` wants. `asker`: the policy whose learner asks."""
        seen = int(self.copies[policy].updates)  # before asking: whoever asks at the same moment gets the same copy
        self._wanted[policy, asker] += 1
        return seen

    def serve(self, policy: int, make: Callable[[], bytes], last: bool = False) -> None:
        """Give a copy of a policy, made by `make`, to those who have asked for one since the last. `last`: it learns no more, so
        that this is what it stays. A request is only done when the copy is there: a learner may die while it makes one."""
        asked = self._wanted[policy].copy()
        if last or (asked != self._served[policy]).any():
            self.write(policy, make(), last)
            self._served[policy] = asked

    def write(self, policy: int, content: bytes, last: bool = False) -> None:
        """See `serve`. Raises `ValueError` for more than there is memory for."""
        if len(content) > self.sizes[policy]:
            raise ValueError(f"a copy of policy {policy} takes {len(content)} bytes; there is memory for {self.sizes[policy]}")
        memory = np.zeros(8 + self.sizes[policy], np.uint8)
        memory[:8].view(np.int64)[0] = len(content)
        memory[8 : 8 + len(content)] = np.frombuffer(content, np.uint8)
        self.copies[policy].publish(memory, 0)
        self._finished[policy] = last

    def read(self, policy: int, seen: int) -> bytes | None:
        """The copy of a policy that was made after `want` gave `seen`, or its last; None while there is none."""
        store = self.copies[policy]
        if store.updates <= seen and not (self._finished[policy] and store.updates):
            return None
        memory = np.zeros(8 + self.sizes[policy], np.uint8)
        store.read(memory)
        return memory[8 : 8 + int(memory[:8].view(np.int64)[0])].tobytes()

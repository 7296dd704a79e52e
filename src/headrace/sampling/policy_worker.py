"""The policy worker: batches the requests of many rollout workers and answers them with one forward pass."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from headrace.config import Config
from headrace.sampling.actor import Actor
from headrace.sampling.exchange import READY, TAKEN, WAITING, Exchange
from headrace.shm.primitives import Closed


class PolicyWorker:
    """Worker `index` of the policy workers. Stateless between batches: all it knows is in the exchange."""

    def __init__(self, index: int, exchange: Exchange, actor: Actor, config: Config):
        self.index, self.exchange, self.actor = index, exchange, actor
        groups = exchange.G
        self._patience = config.sampling.batch_timeout
        self._inbox = np.zeros(min(config.sampling.max_request_groups or groups, groups), np.int32)
        self._minimum = min(config.min_request_groups, len(self._inbox))

    def serve(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for requests and answer them. False at the end of the run."""
        try:
            n = self.exchange.inbox.get_many(self._inbox, self._minimum, timeout, self._patience)
        except Closed:
            return False
        self.actor.clock.spent("wait", perf_counter())
        if n:
            self.answer(self._inbox[:n])
        return True

    def answer(self, groups: np.ndarray) -> None:
        """Answer those of `groups` (int32 [n]) that wait; a hint may be old or doubled after a worker's death."""
        x, mine = self.exchange, TAKEN + self.index
        taken = np.array([g for g in groups.tolist() if x.requests.compare_exchange(g, WAITING, mine)], np.int64)
        if not len(taken):
            return
        # Once per batch, not per request: all of it is chosen by one version of the weights.
        self.actor.refresh()
        self.actor.act(taken)
        for g in taken.tolist():
            if x.requests.compare_exchange(g, mine, READY):  # not so if the group's worker died meanwhile
                x.wake.fetch_or(g // x.num_groups, 1 << (g % x.num_groups))

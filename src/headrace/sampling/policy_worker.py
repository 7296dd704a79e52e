"""The policy worker: batches the requests of many rollout workers and answers them with one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np

from headrace.config import Config
from headrace.sampling.actor import Actor
from headrace.shm.inference_requests import InferenceRequests
from headrace.shm.primitives import Closed


class PolicyWorker:
    """Worker `index` among all policy workers, for the policy of its actor. Between batches its whole state is in shared
    memory."""

    def __init__(
        self,
        index: int,
        requests: InferenceRequests,
        actor: Actor,
        config: Config,
        make: Callable[[int], Actor] | None = None,
        queue_of: Sequence[int] | None = None,
    ):
        """`make` makes an actor for a past version or an opponent when it is first needed; `queue_of`: the number of every
        member's request queue, None in environments of one agent."""
        s = config.sampling
        self.index, self.requests, self.actor, self._queue_of = index, requests, actor, queue_of
        self._static_actor: Any = None if make is None else cache(make)
        self._batch_timeout, self._period = s.batch_timeout, s.weights_period
        self._lanes = np.zeros(min(s.max_request_groups or requests.L, requests.L), np.int32)
        self._minimum = min(config.min_request_groups, len(self._lanes))
        self._share = max(1, requests.L // (config.population.size * s.num_policy_workers))
        """Lanes that this worker answers, on average."""
        self.answered: int | None = None  # requests answered since the last refresh of the weights; None: never refreshed

    def serve(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for requests and answer them. False at the end of the run."""
        try:
            n = self.requests.get_many(self.actor.policy, self._lanes, self._minimum, timeout, self._batch_timeout)
        except Closed:
            return False
        self.actor.clock.spent("wait", perf_counter())
        if n:
            self.answer(self._lanes[:n])
        return True

    def answer(self, lanes: np.ndarray) -> None:
        """Compute the actions of those of `lanes` (int32 [n]) that wait for one."""
        mine = self.requests.claim(lanes.tolist(), self.index)
        if not mine:
            return
        # Only between batches, so that one version of the weights chooses a whole batch. With a period of 1, before every batch.
        if self.answered is None or self._period == 1 or self.answered >= self._period * self._share:
            self.actor.refresh()
            self.answered = 0
        self.answered += len(mine)
        if self._queue_of is None:
            self.actor.act(np.array(mine, np.int64))
        else:
            mine = self._act_by_policy(mine, self._queue_of)
        self.requests.answer(mine, self.index)

    def _act_by_policy(self, lanes: list[int], queue_of: Sequence[int]) -> list[int]:
        """Act for the lanes of members that share this worker's queue; returns these lanes. A number that stayed in the queue
        after a policy worker's death may belong to another queue by now; it is given up."""
        numbers = np.array(lanes, np.int64)
        policies = self.requests.policy[numbers]
        done: list[int] = []
        for policy in np.unique(policies).tolist():
            part = numbers[policies == policy]
            if queue_of[policy] != self.actor.policy:
                self.requests.give_up(part.tolist(), self.index)
                continue
            actor = self.actor if policy == self.actor.policy else self._static_actor(policy)
            if actor is not self.actor:
                actor.refresh()
            actor.act(part)
            done += part.tolist()
        return done

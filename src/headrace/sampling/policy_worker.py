"""The policy worker: batches the requests of many rollout workers and answers them with one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from headrace.config import Config
from headrace.sampling.actor import Actor
from headrace.shm.inference_requests import InferenceRequests
from headrace.shm.primitives import Closed


class PolicyWorker:
    """Worker `index` among all policy workers, for the policy of its actor. Stateless between batches: all it knows is in shared
    memory."""

    def __init__(
        self,
        index: int,
        requests: InferenceRequests,
        actor: Actor,
        config: Config,
        make: Callable[[int], Actor] | None = None,
        families: Sequence[int] | None = None,
    ):
        """`make` makes an actor for a member of the population that does not learn; `families`: whose queue every member shares.
        None: in environments of one agent."""
        self.index, self.requests, self.actor = index, requests, actor
        self._families, self._make = families, make
        self._frozen: dict[int, Actor] = {}
        """Actors of past versions and of opponents, made when they are first needed."""
        self._batch_timeout = config.sampling.batch_timeout
        self._lanes = np.zeros(min(config.sampling.max_request_groups or requests.L, requests.L), np.int32)
        self._minimum = min(config.min_request_groups, len(self._lanes))
        s = config.sampling
        self._period = s.weights_period
        self._share = max(1, requests.L // (config.population.size * s.num_policy_workers))
        """Lanes that this worker answers, on average."""
        self.answered: int | None = None
        """Requests answered since the weights were looked at; None: never."""

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
        """Answer those of `lanes` (int32 [n]) that wait."""
        mine = self.requests.claim(lanes.tolist(), self.index)
        if not mine:
            return
        # Between batches only: all of one is chosen by one version of the weights. With a period of 1, before every batch.
        if self.answered is None or self._period == 1 or self.answered >= self._period * self._share:
            self.actor.refresh()
            self.answered = 0
        self.answered += len(mine)
        if self._families is not None:
            mine = self._act_by_policy(mine)
        else:
            self.actor.act(np.array(mine, np.int64))
        self.requests.answer(mine, self.index)

    def _act_by_policy(self, lanes: list[int]) -> list[int]:
        """Act for lanes of this worker's policy and of those that share its queue; returns which they were. A number that was
        left in the queue after a policy worker's death may by now be another policy's."""
        assert self._families is not None
        numbers = np.array(lanes, np.int64)
        policies = self.requests.policy[numbers]
        done: list[int] = []
        for policy in np.unique(policies).tolist():
            part = numbers[policies == policy]
            if self._families[policy] != self.actor.policy:
                self.requests.give_up(part.tolist(), self.index)
                continue
            actor = self.actor if policy == self.actor.policy else self._frozen_actor(policy)
            if actor is not self.actor:
                actor.refresh()
            actor.act(part)
            done += part.tolist()
        return done

    def _frozen_actor(self, policy: int) -> Actor:
        if policy not in self._frozen:
            assert self._make is not None
            self._frozen[policy] = self._make(policy)
        return self._frozen[policy]

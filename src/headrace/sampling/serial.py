"""The serial placement: the same workers, called in turn by one process. Deterministic, so for debugging and exact repeats."""

from __future__ import annotations

from collections import deque

from headrace.config import Config
from headrace.envs.contract import EnvSpec
from headrace.sampling.exchange import Exchange
from headrace.sampling.policy_worker import PolicyWorker
from headrace.sampling.processes import actor_seed, environment_seed, make_actor
from headrace.sampling.rollout_worker import RolloutWorker


class SerialSampler:
    """All rollout workers and one policy worker in this process."""

    def __init__(self, config: Config, spec: EnvSpec, exchange: Exchange):
        from headrace.envs.registry import make_group

        self._exchange, self._config = exchange, config
        self.workers = [
            RolloutWorker(w, exchange, lambda: make_group(config.env, config.envs, exchange.E))
            for w in range(config.sampling.num_workers)
        ]
        self.actor = make_actor(config, spec, exchange, actor_seed(config, 0), config.device, exchange.clocks["policy"][0])
        self._policy_worker = PolicyWorker(0, exchange, self.actor, config.sampling)
        self._ready: deque[tuple[RolloutWorker, int]] = deque()
        self._started = False

    def collect(self, slots: int) -> None:
        """Step the environments until `slots` finished slots wait for the learner."""
        x = self._exchange
        if not self._started:
            for worker in self.workers:
                worker.start(environment_seed(self._config, worker.index))
            self._started = True
        # Looked at before every step: each step finishes at most one slot, so free slots never run out here.
        while x.full.qsize() < slots:
            if not self._ready:
                self._policy_worker.serve(timeout=0)
                self._ready.extend((worker, g) for worker in self.workers for g in worker.ready())
            worker, g = self._ready.popleft()
            worker.step(g)

    def close(self) -> None:
        """Close the environments."""
        for worker in self.workers:
            worker.close()

"""The serial placement: the same workers, called in turn by one process. Deterministic, so for debugging and exact repeats."""

from __future__ import annotations

from collections import deque
from typing import Any

from headrace.config import Config
from headrace.envs.contract import EnvironmentFault, EnvSpec
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
        for worker in self.workers:
            for group in worker.groups:
                group.envs.remember()
        self.actor = make_actor(config, spec, exchange, config.device, exchange.clocks["policy"][0])
        self.actor.generator.manual_seed(actor_seed(config, 0))
        self._policy_worker = PolicyWorker(0, exchange, self.actor, config)
        self._ready: deque[tuple[RolloutWorker, int]] = deque()
        self._started = False

    def collect(self, slots: int) -> None:
        """Step the environments until `slots` finished slots wait for the learner."""
        x = self._exchange
        if not self._started:
            for worker in self.workers:
                worker.start(environment_seed(self._config, worker.index, version=x.board.version))
            self._started = True
        # Looked at before every step: each step finishes at most one slot, so free slots never run out here.
        while x.full.qsize() < slots:
            if not self._ready:
                self._policy_worker.serve(timeout=0)
                self._ready.extend((worker, g) for worker in self.workers for g in worker.ready())
            worker, g = self._ready.popleft()
            worker.step(g)

    def get_state(self) -> dict[str, Any]:
        """Everything between two updates: environments, half-filled slots, core states, who waits for what."""
        return {"generator": self.actor.generator.get_state(), "world": self._world()}

    def _world(self) -> dict[str, Any] | None:
        """None where the environments cannot give their state."""
        x = self._exchange
        envs = [[group.envs.get_state() for group in worker.groups] for worker in self.workers]
        if not self._started or any(state is None for states in envs for state in states):
            return None
        waiting = [x.inbox.get(timeout=0) for _ in range(x.inbox.qsize())]
        for number in waiting:
            x.inbox.put(number)
        return {
            "envs": envs,
            "slots": [{name: a[slot].copy() for name, a in x.slab.arrays.items()} for slot in x.cursor[:, 0].tolist()],
            "rows": x.cursor[:, 1].tolist(),
            "cores": x.cores.copy(),
            "waiting": waiting,
            "ready": [[worker.index, g] for worker, g in self._ready],
        }

    def set_state(self, state: dict[str, Any]) -> str | None:
        """Go on from what `get_state` gave. Where the environments cannot, their episodes begin anew; returns why."""
        x = self._exchange
        self.actor.generator.set_state(state["generator"])
        world = state["world"]
        if world is None:
            return "Episodes begin anew: these environments cannot give their state"
        try:
            for worker, envs in zip(self.workers, world["envs"], strict=True):
                for group, env_state in zip(worker.groups, envs, strict=True):
                    group.envs.set_state(env_state)
        except EnvironmentFault as error:
            return f"Episodes begin anew: {error}"
        for worker in self.workers:
            for group in worker.groups:
                worker.resume(group, world["slots"][group.number], world["rows"][group.number])
        x.cores[:] = world["cores"]
        for number in world["waiting"]:
            x.request(number)
        self._ready.extend((self.workers[w], g) for w, g in world["ready"])
        self._started = True
        return None

    def close(self) -> None:
        """Close the environments."""
        for worker in self.workers:
            worker.close()

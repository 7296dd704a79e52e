"""The serial placement: the same workers and learners, called in turn by one process. Deterministic, so for debugging and exact
repeats."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any

from headrace.envs.core.errors import EnvironmentFault
from headrace.sampling.lanes import Group
from headrace.sampling.match_worker import make_rollout_worker
from headrace.sampling.placements.base import Placement
from headrace.sampling.placements.in_process import InProcess
from headrace.sampling.policy_worker import PolicyWorker
from headrace.sampling.rollout_worker import RolloutWorker
from headrace.sampling.worker_process import actor_seed, environment_seed, make_actor
from headrace.shm.run_control import POLL_INTERVAL

if TYPE_CHECKING:
    from torch import nn

REMOTE_POLL = 0.001  # seconds between two polls of remote environments while none has finished its step


class Serial(InProcess):
    """Everything in this process, one after the other: the same seed gives the same weights."""

    sampler: SerialSampler

    def make_sampler(self) -> SerialSampler:
        return SerialSampler(self)

    def finished(self, p: int) -> None:
        self.sampler.policies.remove(p)

    def collector(self, p: int) -> Callable[[int], None]:
        """See `Placement.collector`: asking for a batch steps the environments until there is one."""
        return lambda n: self.sampler.collect(p, n)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._recent: list[deque[dict[str, Any]]] = [deque() for _ in range(self.config.population.size)]
        """With `sampling.policy_lag`, by policy the weights that actors have and will have, the oldest first."""

    def publish(self, p: int, model: nn.Module, version: int) -> None:
        """See `Placement.publish`; on return the weights are in the weight store. With `sampling.policy_lag` actors get older
        ones."""
        super().publish(p, model, version)
        self._publishers[p].wait()
        if lag := self.config.sampling.policy_lag:
            recent = self._recent[p]
            if recent and recent[-1]["version"] == version:  # the run goes on
                recent.pop()
            recent.append({"version": version, "weights": self._publishers[p].held()})
            while len(recent) > lag + 1:
                recent.popleft()
            self.sampler.actors[p].lagging = True
            self.sampler.actors[p].set_weights(recent[0])

    @property
    def shape(self) -> dict[str, Any]:
        # Several policies or agents may have finished trajectories at that moment, which need a slot each.
        several = len(self.configs) > 1 or self.config.envs.num_agents is not None
        return super().shape | {"slots": [own.num_slots for own in self.configs] if several else None}

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"turn": self.turn, "recent": [list(recent) for recent in self._recent]}

    def set_state(self, state: dict[str, Any]) -> str | None:
        self._turn = state.get("turn")  # other placements have none
        self._recent = [deque(recent) for recent in state.get("recent", [[] for _ in self._recent])]
        return super().set_state(state)


class SerialSampler:
    """All rollout workers and one policy worker per policy in this process."""

    def __init__(self, placement: Placement):
        config, memory = placement.config, placement.memory
        self._config, self._memory = config, memory
        self._started = False
        self._slots_per_batch = [own.slots_per_batch for own in placement.configs]
        self.policies = set(range(memory.learners))
        """Policies whose learners have not finished. Lanes of other policies stop as soon as they have no slots left."""
        self.workers = [make_rollout_worker(placement, w) for w in range(config.sampling.num_workers)]
        self._groups = [(worker, group) for worker in self.workers for group in worker.groups]
        for _, group in self._groups:
            group.envs.remember()
        self._members = [config.matches.matchmaker, len(memory.policies), *config.matches.opponents]
        """The members of matches. If they have changed, a saved state's member numbers mean other members."""
        clocks = [memory.control.clock("policy", p * config.sampling.num_policy_workers) for p in range(memory.learners)]
        devices = [own.device for own in placement.configs]
        self.actors = [make_actor(placement, p, devices[p], actor_seed(config, p), clock) for p, clock in enumerate(clocks)]
        self.static_actors = {
            m: make_actor(placement, m, devices[policy.queue], actor_seed(config, 1000 * m), clocks[0])
            for m, policy in enumerate(memory.policies)
            if policy.acts and not policy.learns
        }
        self._policy_workers = [
            PolicyWorker(p, memory.requests, actor, config, self.static_actors.__getitem__, memory.queue_of)
            for p, actor in enumerate(self.actors)
        ]
        self._ready: deque[tuple[RolloutWorker, Group]] = deque()

    def collect(self, policy: int, slots: int) -> None:
        """Step the environments until `slots` finished slots of this policy wait for its learner. With several policies, return
        also when another policy has a whole batch, which its learner must take before sampling can go on.

        Gives up, so that Ctrl-C is answered, when remote environments finish no step for `POLL_INTERVAL` seconds or the user
        waits for the end of the run. Gives up after `POLL_INTERVAL` seconds if only this policy of a multi-agent run still
        learns, since it may never act; no other learner has a turn then, so sampling stays deterministic."""
        stores = [p.trajectories for p in self._memory.policies]
        if not self._started:
            for worker in self.workers:
                worker.start(environment_seed(self._config, worker.index, version=self._memory.policies[0].weights.version))
            self._started = True
        enough = {p: self._slots_per_batch[p] for p in self.policies} | {policy: slots}
        batches = [(stores[p].qsize, n) for p, n in enough.items()]
        deadline: float | None = None
        last_one = self._memory.standings is not None and len(self.policies) == 1
        until = monotonic() + POLL_INTERVAL if last_one else math.inf
        while True:
            for finished_slots, wanted in batches:
                if finished_slots() >= wanted:
                    return
            if not self._ready:
                if self._memory.control.hurried or monotonic() > until:
                    return
                for policy_worker in self._policy_workers:
                    policy_worker.serve(timeout=0)
                self._ready.extend((worker, group) for worker in self.workers for group in worker.ready())
            if self._ready:
                worker, group = self._ready.popleft()
                worker.step(group)
                deadline = None
            elif deadline is None:
                deadline = monotonic() + POLL_INTERVAL
            elif monotonic() > deadline:
                return
            else:  # all environments are remote, and stepping
                for worker in self.workers:
                    self._memory.requests.wait(worker.index, REMOTE_POLL / len(self.workers))

    def get_state(self) -> dict[str, Any]:
        """The state between two updates: environments, half-filled slots, core states, requests."""
        actors = [*self.actors, *self.static_actors.values()]
        state: dict[str, Any] = {"generators": [actor.generator.get_state() for actor in actors], "world": self._world()}
        state["members"] = self._members
        state["seats"] = [worker.matches_state() for worker in self.workers]
        # With a longer period actors have older weights than the checkpoint.
        older = self._policy_workers if self._config.sampling.weights_period > 1 else ()
        state["acting"] = [{"answered": worker.answered, **worker.actor.get_weights()} for worker in older]
        return state

    def _world(self) -> dict[str, Any] | None:
        """The state of environments, lanes and requests. None if environments cannot give theirs, or an agent of a match waits
        for a slot. (Where every policy has its environments, those of one that has learned enough wait for ever.)"""
        if not self._started:  # environments that were never reset have none
            return None
        requests = self._memory.requests
        envs = [[group.envs.get_state() for group in worker.groups] for worker in self.workers]
        groups, of_agents = self._groups, self._memory.standings is not None
        without = any(group.busy and (of_agents or group.busy != "slots" or group.seed is not None) for _, group in groups)
        without |= of_agents and any(lane.slot < 0 and lane.last is not None for _, group in groups for lane in group.lanes)
        if without or any(state is None for state in chain(*envs)):
            return None
        stores = [p.trajectories for p in self._memory.policies]
        return {
            "envs": envs,
            "lanes": [[worker.lane_state(lane) for lane in group.lanes] for worker, group in groups],
            "acting": [[group.lanes.index(lane) for lane in group.acting] for _, group in groups],
            "new_matches": [list(group.new_matches) for _, group in groups],
            # With several policies, one may have finished trajectories, but fewer than a batch.
            "finished": [[{name: a[slot].copy() for name, a in s.arrays.items()} for slot in s.queued()] for s in stores],
            "reward_weights": [[group.reward_weights for group in worker.groups] for worker in self.workers],
            "cores": [cores.copy() for cores in requests.cores],
            "next_cores": [cores.copy() for cores in requests.next_cores],
            "answered": requests.answered_lanes(),
            "waiting": [requests.queued(p) for p in range(self._memory.learners)],
            "ready": [[worker.index, group.number] for worker, group in self._ready],
        }

    def set_state(self, state: dict[str, Any]) -> str | None:
        """Go on from `get_state`. If the environments cannot, their episodes begin anew and the reason is returned."""
        requests = self._memory.requests
        for actor, generator in zip([*self.actors, *self.static_actors.values()], state["generators"], strict=False):
            actor.generator.set_state(generator)
        for policy_worker, acting in zip(self._policy_workers, state["acting"], strict=False):
            policy_worker.answered = acting["answered"]
            policy_worker.actor.set_weights(acting)
        world = state["world"]
        if state["members"] != self._members:
            return "Episodes begin anew: other members take part in the matches"
        if world is None:
            return "Episodes begin anew: these environments cannot give their state"
        try:
            states = zip(self._groups, chain(*world["envs"]), chain(*world["reward_weights"]), strict=True)
            for (worker, group), envs, weights in states:
                group.envs.set_state(envs)
                if weights is not None:
                    worker.set_reward_weights(group, weights)
        except EnvironmentFault as error:
            return f"Episodes begin anew: {error}"
        for worker, matches in zip(self.workers, state["seats"], strict=True):
            worker.resume_matches(matches)
        saved = zip(self._groups, world["lanes"], world["acting"], world["new_matches"], strict=True)
        for (worker, group), lanes, acting, new in saved:
            worker.resume(group, lanes, acting, new)
        for policy, trajectories in zip(self._memory.policies, world["finished"], strict=True):
            for arrays in trajectories:
                slot = policy.trajectories.acquire(0, timeout=0)
                if slot is None:
                    raise RuntimeError("no free slot for a finished trajectory")
                for name, array in arrays.items():
                    policy.trajectories.arrays[name][slot] = array
                policy.trajectories.finish(slot)
        own = chain(requests.cores, requests.next_cores)
        for cores, former in zip(own, chain(world["cores"], world["next_cores"]), strict=True):
            cores[:] = former
        for lane in chain(*world["waiting"]):
            requests.request(lane)
        for lane in world["answered"]:
            requests.answered(lane)
        for worker, group in self._groups:
            if not group.acting:  # the group waits for no action
                requests.wake(worker.index, group.number)
        self._ready.extend((self.workers[w], self.workers[w].groups[g]) for w, g in world["ready"])
        self._started = True
        return None

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

"""The served placement: policy workers batch the requests of many rollout workers (Sample Factory, SEED, PolyBeast)."""

from __future__ import annotations

from headrace.sampling.placements.processes import Main, ProcessPlacement, rollout_main
from headrace.sampling.worker_process import Role, Start, actor_seed, make_actor
from headrace.shm.run_control import POLL_INTERVAL


class Served(ProcessPlacement):
    """Rollout workers, and `num_policy_workers` policy workers for each policy."""

    def workers(self) -> dict[Role, tuple[range, Main]]:
        policy_workers = range(self.memory.learners * self.config.sampling.num_policy_workers)
        return {"rollout": (self.rollout_workers, rollout_main), "policy": (policy_workers, policy_main)}


def policy_main(start: Start) -> None:
    """The main function of a policy worker's process."""
    import torch

    from headrace.sampling.actor import Actor
    from headrace.sampling.policy_worker import PolicyWorker

    config, memory = start.placement.config, start.placement.memory
    torch.set_num_threads(1)
    policy = start.index // config.sampling.num_policy_workers
    device = start.placement.configs[policy].device
    actor = make_actor(start.placement, policy, device, clock=memory.control.clock("policy", start.index))

    own = start.index + (start.placement.rollout_workers.start << 20)

    def make(member: int) -> Actor:
        number, version = own + 1000 * member, start.placement.version(policy)
        return make_actor(start.placement, member, device, actor_seed(config, number, start.restarts, version), actor.clock)

    worker = PolicyWorker(start.index, memory.requests, actor, config, make, memory.queue_of)
    memory.control.wait_until_ready()
    actor.generator.manual_seed(actor_seed(config, own, start.restarts, start.placement.version(policy)))
    with torch.inference_mode():
        while worker.serve(POLL_INTERVAL):
            pass

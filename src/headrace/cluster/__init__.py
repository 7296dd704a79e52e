"""A run on many machines: sampling nodes elsewhere, one learner or several ranks. docs/cluster.md is the manual.

On the learner's side `placement.Receivers` is a placement whose rollout workers are receivers of nodes' trajectories. On a node
(`node`) the ordinary placement samples, with an `uplink` in the place of its learner. Nothing else knows of the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.errors import package
from headrace.sampling import placements

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.envs.core.contract import EnvSpec
    from headrace.sampling.match_protocols import Members
    from headrace.sampling.placements.base import Placement
    from headrace.sampling.run_memory import MakeAgent


def make_placement(config: Config, spec: EnvSpec, make_agent: MakeAgent, members: Members | None = None) -> Placement:
    """The placement that `cluster` and `sampling.placement` name. Raises as `headrace.sampling.placements.make_placement`, and
    `ConfigError` for a cluster that cannot be used."""
    if config.cluster.nodes is None:
        return placements.make_placement(config, spec, make_agent, members)
    check_transport()
    from headrace.cluster.placement import Cluster, LaterRank
    from headrace.cluster.rank import this_process

    joined = this_process()
    if joined is None:
        return Cluster(config, spec, make_agent, members)
    return LaterRank(config, spec, make_agent, joined)


def check_transport() -> None:
    """Raise `MissingExtra` if grpcio is not installed; to be called before anything here imports it."""
    import headrace.transport  # noqa: F401  sets an environment variable that gRPC reads on import

    package("grpc", "remote", "a cluster needs packages that are not installed")

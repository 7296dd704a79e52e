"""Which machine this is, with engine `static`: from the variables of torchrun, Slurm or SkyPilot."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.cluster.protocol import Link
from headrace.config import Config, ConfigError
from headrace.config.hardware import place
from headrace.transport.credentials import TOKEN_VARIABLE, credentials

PORT = 7780  # where the learner's machine listens, unless `cluster.listen` says otherwise
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Variables that place learner ranks in a run without a cluster."""


@dataclass(frozen=True)
class Machine:
    """This machine among those that run the same command."""

    index: int = 0  # 0: the learner's machine
    count: int = 1
    learner: str = ""  # host of the learner's machine; "" where there is only one
    source: str = ""  # who says so


def machine_of(variables: Mapping[str, str]) -> Machine:
    """Raises `ConfigError` for several processes on one machine, for numbers that cannot be, and for variables that do not say
    where the first machine is."""
    if "SKYPILOT_NODE_RANK" in variables:
        hosts = variables.get("SKYPILOT_NODE_IPS", "").split()
        given = {"SKYPILOT_NUM_NODES": str(len(hosts) or 1), **variables}
        made = Machine(*place(given, "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"), hosts[0] if hosts else "", "SkyPilot")
    elif "RANK" in variables and "WORLD_SIZE" in variables:
        if int(variables.get("LOCAL_WORLD_SIZE", 1)) > 1:
            raise ConfigError("engine static wants one process on each machine: torchrun --nproc-per-node 1")
        made = Machine(*place(variables, "RANK", "WORLD_SIZE"), variables.get("MASTER_ADDR", ""), "torchrun")
    elif "SLURM_PROCID" in variables and "SLURM_NTASKS" in variables:
        if int(variables.get("SLURM_LOCALID", 0)) > 0:
            raise ConfigError("engine static wants one process on each machine: srun --ntasks-per-node 1")
        listed = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
        made = Machine(*place(variables, "SLURM_PROCID", "SLURM_NTASKS"), first_host(listed), "Slurm")
    else:
        return Machine()
    if made.count > 1 and not made.learner:
        raise ConfigError(f"the variables of {made.source} do not say where the first machine is")
    return made


def first_host(nodelist: str) -> str:
    """The first host of a list as Slurm writes it: node7,node9 or node[001-004,9],other."""
    found = re.match(r"([^\[,]*)(?:\[(\w+)[^\]]*\]([^,]*))?", nodelist.strip())
    return "" if found is None else "".join(part or "" for part in found.groups())


@functools.cache
def machine() -> Machine:
    """This machine. From then on torchrun's variables place no learner ranks in this process."""
    found = machine_of(os.environ)
    if found.source == "torchrun":
        for name in TORCHRUN:
            os.environ.pop(name, None)
    return found


def link_of_member(config: Config) -> Link | None:
    """How this machine reaches the first one if it is to be a learner rank or a sampling node; None for the first. Raises
    `ConfigError` without a token."""
    cluster = config.cluster
    if cluster.nodes is None or cluster.engine != "static" or (here := machine()).index == 0:
        return None
    own = credentials(cluster.token_file, cluster.ca, cluster.tls_cert, cluster.tls_key)
    if not own.token:
        raise ConfigError(
            "this machine needs the token of the learner's machine: a file (cluster.token_file), or the environment variable "
            f"{TOKEN_VARIABLE}"
        )
    port = int((cluster.listen or "").rpartition(":")[2] or PORT)
    return Link(f"{here.learner}:{port}", own, cluster.wait)

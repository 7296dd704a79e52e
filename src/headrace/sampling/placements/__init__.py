"""Placements: where the policy acts. `make_placement` makes the one that `sampling.placement` names."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.envs.core.contract import EnvSpec
    from headrace.sampling.match_protocols import Members
    from headrace.sampling.placements.base import Placement
    from headrace.sampling.run_memory import MakeAgent


def make_placement(config: Config, spec: EnvSpec, make_agent: MakeAgent, members: Members | None = None) -> Placement:
    """Raises `MemoryError` where there is too little memory, `ConfigError` for a replay that cannot hold these observations."""
    name = config.sampling.placement
    made: Placement = getattr(importlib.import_module(f"{__name__}.{name}"), name.capitalize())(config, spec, make_agent, members)
    return made

"""Settings of a population: several policies in one run, each with its own learner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from headrace.config.groups import JsonObject
from headrace.config.ranges import Range


@dataclass
class PopulationConfig:
    """Several policies in one run: how many, and how they differ."""

    size: Annotated[int, Range(1, 256)] = 1
    """Number of policies trained in one run, each by its own learner. Group g is acted for by policy g modulo this number; in a
    multi-agent environment `matches.matchmaker` decides."""
    overrides: JsonObject = field(default_factory=dict)
    """Settings of single policies, as one JSON object: {"1": {"learning.learning_rate": 0.001, "policy.mlp": [32, 32]}} gives
    policy 1 its own learning rate and network. The settings of the groups `policy`, `learning`, `replay` and `q` may differ
    between policies; all others are those of the whole run."""

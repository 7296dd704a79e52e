"""Settings: the tree (`settings`), ranges and impossible combinations (`validation`), JSON (`io`)."""

from headrace.config.io import from_dict, load, override, save, to_dict
from headrace.config.settings import (
    REPLAY_ALGORITHMS,
    Config,
    ConfigError,
    EnvConfig,
    LearningConfig,
    Placement,
    PolicyConfig,
    QConfig,
    ReplaySettings,
    RunConfig,
    SamplingConfig,
)

__all__ = [
    "REPLAY_ALGORITHMS",
    "Config",
    "ConfigError",
    "EnvConfig",
    "LearningConfig",
    "Placement",
    "PolicyConfig",
    "QConfig",
    "ReplaySettings",
    "RunConfig",
    "SamplingConfig",
    "from_dict",
    "load",
    "override",
    "save",
    "to_dict",
]

"""Settings: the tree (`settings`), its groups (`groups`, `learning`), types and ranges (`ranges`), impossible combinations
(`validation`), JSON (`io`)."""

from headrace.config.errors import ConfigError
from headrace.config.groups import EnvConfig, Placement, PolicyConfig, RunConfig, SamplingConfig
from headrace.config.io import flattened, from_dict, load, override, to_dict, to_json
from headrace.config.learning import LearningConfig, QConfig, ReplaySettings
from headrace.config.matches import MatchesConfig
from headrace.config.pbt import PbtConfig
from headrace.config.policies import policy_config, policy_configs
from headrace.config.population import PopulationConfig
from headrace.config.settings import Config

__all__ = [
    "Config",
    "ConfigError",
    "EnvConfig",
    "LearningConfig",
    "MatchesConfig",
    "PbtConfig",
    "Placement",
    "PolicyConfig",
    "PopulationConfig",
    "QConfig",
    "ReplaySettings",
    "RunConfig",
    "SamplingConfig",
    "flattened",
    "from_dict",
    "load",
    "override",
    "policy_config",
    "policy_configs",
    "to_dict",
    "to_json",
]

"""Settings: the tree (`settings`) and its groups, one file each (`q` and `replay` are in `learning`, `pbt` and `matches` in
`population`); types and ranges (`ranges`); impossible combinations (`validation`); JSON (`io`)."""

from headrace.config.cluster import ClusterConfig
from headrace.config.envs import EnvConfig
from headrace.config.errors import ConfigError
from headrace.config.io import NAMES, flattened, from_dict, given, load, override, to_dict, to_json
from headrace.config.learning import LearningConfig, QConfig, ReplaySettings
from headrace.config.policy import PolicyConfig
from headrace.config.policy_overrides import policy_config, policy_configs
from headrace.config.population import MatchesConfig, PbtConfig, PopulationConfig
from headrace.config.run import RunConfig
from headrace.config.sampling import Placement, SamplingConfig
from headrace.config.settings import Config

__all__ = [
    "NAMES", "ClusterConfig", "Config", "ConfigError", "EnvConfig", "LearningConfig", "MatchesConfig", "PbtConfig", "Placement",
    "PolicyConfig", "PopulationConfig", "QConfig", "ReplaySettings", "RunConfig", "SamplingConfig",
    "flattened", "from_dict", "given", "load", "override", "policy_config", "policy_configs", "to_dict", "to_json",
]  # fmt: skip

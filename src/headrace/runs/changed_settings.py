"""Which settings may change when a run is resumed."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.config import Config, ConfigError, flattened, to_dict

_NETWORK = "it describes the network whose weights are in the checkpoint"
_OBSERVATIONS = "it sets the shape of the observations the network was made for"
STRUCTURAL = {
    "env": "the network was made for this environment",
    **dict.fromkeys(("policy", "q.dueling", "q.noisy", "q.actor_layers", "q.critic_layers"), _NETWORK),
    **dict.fromkeys(("envs.resize", "envs.grayscale", "envs.frame_stack"), _OBSERVATIONS),
    "envs.frameskip": "it sets what one step means, and the run counts steps",
    "envs.protocol": "it sets the task that the run's metrics are about",
    "q.atoms": "it sets the shape of the network's last layer",
    **dict.fromkeys(("q.support", "q.rescale"), "it sets what the network's outputs mean"),
    "population.size": "each policy has its own folder and its own share of the environments",
    "learning.algorithm": "the checkpoint holds the state of this algorithm",
    **dict.fromkeys(("learning.optimizer", "learning.rmsprop_centered"), "the checkpoint holds the state of this optimizer"),
    "learning.preset": "it says with which settings a run begins, and changes none of them later",
}
"""Settings, or whole groups, that cannot change when a run is resumed, and why."""
_OVERRIDE = re.compile(r"population\.overrides\.\d+\.")


def structural(name: str) -> str | None:
    """Why the setting of this dotted name cannot change when a run is resumed; None if it can."""
    own = _OVERRIDE.sub("", name)  # a setting that is fixed for the run is fixed for each of its policies
    return STRUCTURAL.get(own) or STRUCTURAL.get(own.split(".")[0])


def compare(before: Config, now: Config, folder: Path, begun: bool = True) -> list[str]:
    """One line per setting that differs between the earlier and the current configuration of a run. Where the run lies is none
    of its settings.

    Raises `ConfigError` if one of them cannot change when the run is resumed; of a run that has not `begun` (it has no
    checkpoint) all can.
    """
    old, new = (flattened(to_dict(config), within=True) for config in (before, now))
    changes, refused = [], []
    for name in sorted((old.keys() | new.keys()) - {"run.folder"}):
        if old.get(name) == new.get(name):
            continue
        change = f"{name}: {old.get(name)} -> {new.get(name)}"
        if begun and (reason := structural(name)):
            refused.append(f"  {change} ({reason})")
        else:
            changes.append(change)
    if refused:
        raise ConfigError(
            f"the run in {folder} cannot be resumed with other values of these settings:\n"
            + "\n".join(refused)
            + "\nUse the old values, or start a new run with another run.folder or run.name"
        )
    return changes

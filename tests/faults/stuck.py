"""An algorithm whose loss once waits for ever, as in a deadlock; it notes that it has in the folder `envs.kwargs["once"]`."""

from __future__ import annotations

import threading
from pathlib import Path

from torch import Tensor, nn

from headrace.config import Config, LearningConfig
from headrace.learning.algorithm import register_algorithm
from headrace.learning.policy_gradient import PolicyGradient


class Stuck(PolicyGradient):
    """APPO until the tenth update."""

    def __init__(self, claimed: Path) -> None:
        super().__init__()
        self._claimed, self._updates = claimed, 0

    def loss(self, model: nn.Module, batch: dict[str, Tensor], config: LearningConfig) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, or nothing any more."""
        self._updates += 1
        if self._updates == 10 and not self._claimed.exists():
            self._claimed.touch()
            threading.Event().wait()
        return super().loss(model, batch, config)


@register_algorithm("stuck")
def make(config: Config) -> Stuck:
    """The algorithm."""
    return Stuck(Path(config.envs.kwargs["once"]) / "stuck")

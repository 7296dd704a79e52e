"""Engines: they start, watch and end the sampling nodes of a run and all of its learner ranks except the first."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headrace.transport.credentials import Credentials

if TYPE_CHECKING:
    from headrace.cluster.protocol import Link
    from headrace.config import Config


class Engine(ABC):
    """The engine of a run, in the main process of the learner's machine."""

    listen: str  # address at which the learner's machine is to listen
    host = ""  # host by which other machines reach this one; "" if there are none
    own: Credentials  # the learner's credentials, with the token that nodes are given
    alone = False  # whether all learner ranks are on this machine

    sends_code = False  # whether the nodes that it starts need the user's code from this machine

    @abstractmethod
    def start(self, link: Link) -> None:
        """Start members, which find the learner by `link`. Raises `RunFailed` if that is not possible."""

    @abstractmethod
    def look(self) -> list[str]:
        """Start members that have ended again; returns messages for the user. Raises `RunFailed` if it ended too often."""

    @abstractmethod
    def missing(self, here: int) -> str:
        """Why members are missing where only `here` nodes are there, and what to do."""

    @abstractmethod
    def stop(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the members, which have been told to end, and kill those that have not ended by
        then."""

    @abstractmethod
    def kill(self) -> None:
        """End every member that this engine has started."""


def make_engine(config: Config) -> Engine:
    """The engine that `cluster.engine` names. Raises `ConfigError` if it cannot be used."""
    name = config.cluster.engine
    made: Engine = getattr(importlib.import_module(f"{__name__}.{name}_engine"), f"{name.capitalize()}Engine")(config)
    return made

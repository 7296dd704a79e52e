"""A population whose shared memory is more than a process can be handed."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.config import ConfigError

pytestmark = pytest.mark.process


def test_a_league_with_too_many_past_versions_says_what_takes_fewer(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo")
    league = {"population.size": 4, "matches.matchmaker": "league", "matches.window": 60}
    settings = {**league, "run.folder": str(tmp_path), "run.dashboard": False}
    with pytest.raises(ConfigError, match=r"population\.size.*matches\.window"):
        headrace.train(headrace.make_config("pettingzoo/connect_four_v3", **settings))

"""The files that a population leaves in the run folder, and their pictures."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import config as configs
from headrace.config import Config, ConfigError
from headrace.population import records
from headrace.population.records import Records
from headrace.runs.metrics import MetricsWriter


def settings(folder: Path) -> Config:
    return configs.override(Config(), **{"run.folder": str(folder)})


def report(written: Records, decision: dict[str, Any]) -> None:
    list(written.receive("population", decision))


def test_decisions_are_drawn_and_go_back_with_a_resumed_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    base = {"frames": 0, "objectives": [1.0, 2.0], "rank": 1, "before": {"a": 1.0}, "values": {"a": 1.2}}
    written = Records(settings(tmp_path))
    for policy, step, decision, donor in [(0, 10, 1, None), (1, 10, 1, None), (0, 20, 2, 1)]:
        report(written, {**base, "policy": policy, "global_step": step, "decision": decision, "donor": donor})
    assert records.draw_decisions(tmp_path, 2).stat().st_size > 1000
    later = {**base, "policy": 0, "global_step": 12, "decision": 3, "donor": 1, "taken_at": 18}
    report(written, later)  # will be taken over once more
    written.rewind(0, 15)
    report(written, {**base, "policy": 1, "global_step": 20, "decision": 2, "donor": None})
    assert [(line["policy"], line["global_step"]) for line in records.read_decisions(tmp_path)] == [(0, 10), (1, 10), (1, 20)]
    written.close()


def test_what_a_learner_decides_once_more_is_recorded_once(tmp_path: Path) -> None:
    """The step of its checkpoint is that of the decision: the first mutation before the first checkpoint, or a copy taken over
    behind the checkpoint, before anything else was learned from."""
    base = {"frames": 0, "objectives": [1.0, 2.0], "rank": 1, "before": {"a": 1.0}, "donor": None}
    written = Records(settings(tmp_path))
    for value, step, decision in [(1.1, 0, 0), (1.2, 10, 1)]:
        report(written, {**base, "policy": 1, "global_step": step, "decision": decision, "values": {"a": value}})
    report(written, {**base, "policy": 0, "global_step": 0, "decision": 0, "values": {"a": 1.3}})
    written.close()
    for again in (written, Records(settings(tmp_path))):  # of the same run, and of one that was started again
        again.rewind(1, 10)
        report(again, {**base, "frames": 7, "policy": 1, "global_step": 10, "decision": 1, "values": {"a": 1.2}})
        assert [(line["policy"], line["decision"]) for line in records.read_decisions(tmp_path)] == [(1, 0), (0, 0), (1, 1)]
        again.close()
    written.rewind(1, 0)
    report(written, {**base, "frames": 7, "policy": 1, "global_step": 0, "decision": 0, "values": {"a": 1.1}})
    assert [(line["policy"], line["decision"]) for line in records.read_decisions(tmp_path)] == [(0, 0), (1, 0)]
    written.close()


def test_standings_are_drawn_with_the_colours_of_their_win_rates(tmp_path: Path) -> None:
    image, colors = pytest.importorskip("matplotlib.image"), pytest.importorskip("matplotlib").colormaps["RdBu"]
    config = settings(tmp_path)
    with closing(MetricsWriter(tmp_path, config)) as writer:
        for step in range(100, 600, 100):
            writer.write({"global_step": step, "matches/elo": 1200.0 + step})
    table = {
        "members": ["policy 0", "policy 1", "policy 0 at step 30"], "elo": [1700.0, 1200.0, 1100.0], "step": [None, None, 30],
        "score": [[0, 9.5, 0], [0.5, 0, 5], [0, 5, 0]], "games": [[0, 10, 0], [10, 0, 10], [0, 10, 0]],
    }  # fmt: skip
    assert list(Records(config).receive("standings", table)) == []
    assert json.loads((tmp_path / "standings.json").read_text()) == table
    rates = records.win_rates(table)
    assert rates[0, 1] == 0.95
    assert rates[1, 0] == 0.05
    assert rates[1, 2] == 0.5
    assert np.isnan(rates[[0, 1, 2, 0, 2], [0, 1, 2, 2, 0]]).all()
    picture = image.imread(records.draw_standings(config))[..., :3]
    left = picture[:, : picture.shape[1] // 2 - 150]
    blue, red = (np.abs(left - np.array(colors(rate)[:3])).max(-1) < 0.02 for rate in (0.95, 0.05))
    assert blue.sum() > 5000, "the field of policy 0 against policy 1"
    assert red.sum() > 5000, "the field of policy 1 against policy 0"
    assert np.nonzero(blue)[1].mean() > np.nonzero(red)[1].mean()
    with pytest.raises(ConfigError, match=r"has no standings\.json"):
        records.draw_standings(settings(tmp_path / "other"))


def test_standings_on_a_full_disk_are_a_message(tmp_path: Path) -> None:
    (text,) = Records(settings(tmp_path / "missing")).receive("standings", {})
    assert "cannot be written now" in text


def test_a_run_that_ended_before_its_first_decision_has_none(tmp_path: Path) -> None:
    assert records.read_decisions(tmp_path) == []

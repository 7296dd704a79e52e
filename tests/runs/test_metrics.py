"""Metrics: nothing lost, nothing doubled."""

import json
import math
import re
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import headrace
from headrace.config import Config, ConfigError, override
from headrace.config.population import KINDS
from headrace.runs import lag_bins
from headrace.runs.metrics import KEYS, OF_NODE, OF_SHARD, MetricsWriter, read_jsonl
from headrace.shm.phases import PARTS, PHASES


def write(folder, steps, resume_step=None, value=1.0):
    with closing(MetricsWriter(folder, Config())) as writer:
        if resume_step is not None:
            writer.rewind(resume_step)
        for step in steps:
            writer.write({"global_step": step, "charts/SPS": value * step, "charts/episodic_return": math.nan})


def test_every_sink_gets_every_step(tmp_path):
    write(tmp_path, range(100, 600, 100))
    lines = read_jsonl(tmp_path / "metrics.jsonl")
    assert [line["global_step"] for line in lines] == [100, 200, 300, 400, 500]
    assert lines[1]["charts/SPS"] == 200.0
    assert "charts/episodic_return" not in lines[0]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("charts/SPS")] == [100, 200, 300, 400, 500]
    table = events.Tensors("hyperparameters")[0].tensor_proto.string_val[0].decode()
    assert "|learning.gamma|0.99|" in table


def test_a_line_has_the_time_of_its_measurement(tmp_path):
    with closing(MetricsWriter(tmp_path, Config())) as writer:
        writer.write({"global_step": 1, "time": 1790000000.1234})
    assert read_jsonl(tmp_path / "metrics.jsonl") == [{"global_step": 1, "time": 1790000000.123}]


def test_the_curve_of_a_resumed_run_goes_on(tmp_path):
    for rewound, means in ((0, []), (20, [10.0, 20.0])):
        with closing(MetricsWriter(tmp_path, Config())) as writer:
            writer.rewind(rewound)
            assert writer.curve() == means
            writer.write_curve([(step, float(step), 0.0, 0.0) for step in (10, 20, 30)])


def test_weights_and_biases_goes_on_with_the_same_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    ids = set()
    for _ in range(2):
        with closing(MetricsWriter(tmp_path, override(Config(), **{"run.track": True}))) as writer:
            writer.write({"global_step": 100, "charts/SPS": 1.0})
            assert writer._wandb.summary["global_step"] == 100
            ids.add(writer._wandb.id)
    assert len(ids) == 1
    assert list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))


def test_weights_and_biases_has_a_run_for_each_policy(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    config = override(Config(), **{"run.track": True, "run.folder": str(tmp_path), "population.size": 2})
    with ExitStack() as closing_all:
        folders = [config.policy_folder(p) for p in range(2)]
        first, second = (closing_all.enter_context(closing(MetricsWriter(folder, config))) for folder in folders)
        for step, writer in ((100, first), (200, second)):
            writer.write({"global_step": step})
        assert [writer._wandb.summary["global_step"] for writer in (first, second)] == [100, 200]
        assert [writer._wandb.name for writer in (first, second)] == [f"{tmp_path.name}/policy-{p}" for p in range(2)]
    assert all(list(folder.glob("wandb/offline-run-*/run-*.wandb")) for folder in folders)


def test_the_run_goes_on_where_weights_and_biases_fails(tmp_path):
    """Its process may be killed, or the disk may be full."""

    class Killed:
        calls = 0

        def log(self, metrics):
            Killed.calls += 1
            raise ConnectionResetError("Connection lost")

        finish = log

    with closing(MetricsWriter(tmp_path / "a", Config())) as writer:
        writer._wandb = Killed()
        assert "ConnectionResetError: Connection lost" in writer.write({"global_step": 100})
        assert writer.write({"global_step": 200}) is None
    assert [line["global_step"] for line in read_jsonl(tmp_path / "a" / "metrics.jsonl")] == [100, 200]
    assert Killed.calls == 1
    writer = MetricsWriter(tmp_path / "b", Config())
    writer._wandb = Killed()
    Killed.finish = lambda self: self.log({})
    with pytest.warns(UserWarning, match="Weights & Biases fails"):
        writer.close()


def test_why_weights_and_biases_refuses_is_a_short_error(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")

    def refuse(**settings):
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ConfigError, match=r"Weights & Biases cannot be used .*No API key configured.*WANDB_MODE=offline"):
        MetricsWriter(tmp_path / "run", override(Config(), **{"run.track": True}))


def test_resume_repeats_steps_without_doubling_them(tmp_path):
    write(tmp_path, [100, 200, 300, 400])
    write(tmp_path, [300, 400, 500], resume_step=200, value=2.0)
    lines = read_jsonl(tmp_path / "metrics.jsonl")
    assert [(line["global_step"], line["charts/SPS"]) for line in lines] == [
        (100, 100.0), (200, 200.0), (300, 600.0), (400, 800.0), (500, 1000.0),
    ]  # fmt: skip
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    points = [(event.step, event.value) for event in events.Scalars("charts/SPS")]
    assert points == [(100, 100), (200, 200), (300, 600), (400, 800), (500, 1000)]


@pytest.mark.parametrize("tail", [b'{"global_step": 300, "char', b"\0" * 4096, b'3\n\xff\xfe\n{"global'])
def test_what_a_crash_left_at_the_end_is_dropped(tmp_path, tail):
    write(tmp_path, [100, 200])
    path = tmp_path / "metrics.jsonl"
    with open(path, "ab") as file:
        file.write(tail)
    write(tmp_path, [300], resume_step=200)
    assert [line["global_step"] for line in read_jsonl(path)] == [100, 200, 300]
    json.loads(path.read_text().splitlines()[-1])


def test_a_step_is_needed(tmp_path):
    with closing(MetricsWriter(tmp_path, Config())) as writer, pytest.raises(KeyError, match="global_step"):
        writer.write({"charts/SPS": 1.0})


def test_the_code_logs_what_is_described_and_nothing_else():
    source = Path(headrace.__file__).parent
    text = "".join(p.read_text() for p in source.rglob("*.py") if p.parent.name != "runs" or p.name == "report.py")
    groups = "charts|losses|lag|off_policy|sampling|replay|eval|system|population|matches|cluster"
    logged = set(re.findall(rf'"((?:{groups})/\w+)"', text)) | {"global_step"}
    logged |= {f"time/{part}/{phase}" for part, phases in PHASES.items() for phase in phases}
    logged |= {f"lag/share/{name}" for name in lag_bins.NAMES}
    logged |= {f"population/{name}" for name in KINDS} | {"matches/win_rate/NAME", "episode/KEY", "eval/episode/KEY"}
    logged |= {f"cluster/node-K/{name}" for name in OF_NODE} | {f"replay/shard-K/{name}" for name in OF_SHARD}
    assert logged - KEYS.keys() == set(), "not described in KEYS"
    assert KEYS.keys() - logged == set(), "described, but never logged"


def test_every_part_that_measures_its_time_has_a_name():
    assert PARTS.keys() == PHASES.keys()


def test_descriptions_are_sentences():
    assert all(text.endswith(".") for text in KEYS.values())

"""Damage to the files of a run folder: the older checkpoint is used, or one paragraph says what is wrong; see `damage`.

Whole commands on damaged folders are in test_damaged_folders.py.
"""

from __future__ import annotations

import json
import time
from contextlib import closing, suppress
from types import SimpleNamespace

import damage as damages
import pytest
import torch

import headrace
from headrace import checkpointing
from headrace.make_config import make_config
from headrace.runs import checkpoint
from headrace.runs.checkpoint import CheckpointError
from headrace.runs.files import AppendFile
from headrace.runs.folder import RunFolder
from headrace.runs.metrics import is_metrics, read_jsonl
from headrace.runs.state_tree import pack

pytestmark = pytest.mark.process


def test_every_damage_to_a_checkpoint_is_passed_over(tmp_path):
    """Whatever happened to the newest, the one before is found, at once; and with both damaged there is one clear error."""
    for step in (1, 2):
        tree = {"model": {"weight": torch.full((50, 3), float(step))}, "numbers": [1, {"a": (2.5, None)}]}
        checkpoint.save(tmp_path / "original", step, *pack(tree), score=float(step))
    files = ("tensors.safetensors", "state.json", "manifest")
    ways = [(name, how, file) for name, how in damages.FILES.items() for file in files]
    sealed = damages.JSON | {name: damages.FILES[name] for name in ("empty", "cut in half", "zeros", "random bytes", "grown")}
    ways += [(name, damages.sealed(how), "state.json") for name, how in sealed.items()]
    ways += [(name, damages.sealed(how), "tensors.safetensors") for name, how in damages.FILES.items() if name in sealed]
    ways += [(name, damages.sealed_manifest(how), "manifest") for name, how in damages.JSON.items()]

    def unpacked(found: checkpoint.Checkpoint) -> None:
        state = found.unpack()
        if not isinstance(state, dict) or state.get("numbers") != tree["numbers"]:
            raise CheckpointError(f"{found.path} holds other numbers")

    copy = tmp_path / "copy"
    for name, how, file in ways:
        for load in (checkpoint.load_newest, checkpoint.load_best):
            damages.restore(copy, tmp_path / "original")
            how(copy / "000002-step-2" / file)
            began = time.monotonic()
            found = load(copy, unpacked)
            assert time.monotonic() - began < 60, "it has read what has no end, or a terabyte"
            assert found is not None
            assert found.step == 1, (name, file)
            assert "000002-step-2" in found.damaged[0]
            assert len(found.damaged[0]) < 600
            how(copy / "000001-step-1" / file)
            with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged"):
                load(copy, unpacked)


def test_a_checkpoint_that_lacks_a_part_is_passed_over(tmp_path):
    """Also where its checksums are right: what a missing part would be replaced by is not what the run had."""
    settings = {
        "run.folder": str(tmp_path / "run"), "run.dashboard": False, "run.video": False, "run.checkpoint_interval": 0.0,
        "sampling.placement": "serial", "sampling.num_workers": 1, "sampling.envs_per_worker": 4, "sampling.rollout": 4,
        "learning.batch_size": 16, "learning.num_minibatches": 1, "learning.algorithm": "ppo", "learning.device": "cpu",
        "policy.mlp": [4], "learning.total_steps": 48,
    }  # fmt: skip
    headrace.train(make_config("gym/CartPole-v1", **settings))
    *_, older, newest = sorted((tmp_path / "run" / "checkpoints").iterdir())
    whole = json.loads((newest / "state.json").read_text())
    assert set(checkpoint.load(newest).unpack()) == checkpointing.PARTS

    def lacking(part):
        def damage(path):
            path.write_text(json.dumps({name: value for name, value in whole.items() if name != part}))

        return damages.sealed(damage)

    learner = SimpleNamespace(progress=None)
    taking = SimpleNamespace(_learner=learner)
    for part in checkpointing.PARTS:
        lacking(part)(newest / "state.json")
        with pytest.raises(CheckpointError, match=rf"{newest.name} does not fit: ValueError: it lacks {part}\."):
            checkpointing.Checkpointing._take(taking, checkpoint.load(newest))
    assert learner.progress is None, "nothing was taken"
    lacking("past")(newest / "state.json")
    assert headrace.train(make_config("gym/CartPole-v1", **settings)).reason == "total_steps"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert f"{newest.name} does not fit: ValueError: it lacks past." in log
    assert f"Going on from {older.name}" in log


def test_checkpoints_that_cannot_be_listed_are_no_reason_to_start_anew(tmp_path):
    for name in ("empty", "a link to itself", "a link to nowhere", "a fifo"):
        path = tmp_path / name
        path.touch()
        damages.FILES[name](path)
        with pytest.raises(CheckpointError, match="cannot be read"):
            checkpoint.load_newest(path)


def test_saving_goes_on_beside_whatever_lies_there(tmp_path):
    for step in range(3):
        checkpoint.save(tmp_path, step, *pack({"a": step}))
    for name in ("000001-step-0", "000002-step-1", ".tmp-x"):
        path = tmp_path / name
        if path.exists():
            damages.shutil.rmtree(path)
        path.touch()
    checkpoint.save(tmp_path, 3, *pack({"a": 3}), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["000004-step-3"]


@pytest.mark.parametrize("how", [*damages.FILES, *damages.JSON])
def test_system_json_is_for_reading_only(tmp_path, how):
    """Whatever became of it, the run starts, keeps it aside and says so."""
    from headrace import config as configs

    config = configs.override(configs.Config(), **{"run.folder": str(tmp_path / "run")})
    RunFolder.open(config)[0].close()
    system = tmp_path / "run" / "system.json"
    (damages.FILES | damages.JSON)[how](system)
    harmless = how in ("removed", "a list", "a list of lists") or how.startswith("numbers")
    if how == "bits flipped":  # within a string they only change what is said
        with suppress(ValueError):
            harmless = isinstance(json.loads(system.read_bytes()), list)
    folder, messages = RunFolder.open(config)
    folder.close()
    assert isinstance(json.loads(system.read_text())[-1]["cores"], int)
    told = [text for text in messages if "It is kept as system.json.damaged" in text]
    assert len(told) == (0 if harmless and how != "numbers of 6,000 digits" else 1)


@pytest.mark.parametrize("how", [*damages.FILES, *damages.JSON])
def test_lines_of_metrics_that_are_none_are_left_out(tmp_path, how):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"global_step": step, "charts/SPS": 0.5}) + "\n" for step in range(40)))
    (damages.FILES | damages.JSON)[how](path)
    try:
        lines = read_jsonl(path)
        with closing(AppendFile(path)) as file:
            file.keep_lines(lambda line: is_metrics(line) and line["global_step"] <= 20)
    except OSError:
        assert how in ("removed", "a terabyte", "a folder", "a link to itself", "a link to nowhere", "a fifo", "a socket",
                       "an endless device", "a disk that fails")  # fmt: skip
        return
    assert all(type(line["global_step"]) in (int, float) for line in lines)
    assert all(line["global_step"] <= 20 for line in read_jsonl(path))

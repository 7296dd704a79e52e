"""Checkpoints: exact, whole or absent, and never lost to damage, a full disk or a kill."""

import errno
import json
import math
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch

from headrace.runs import checkpoint
from headrace.runs.checkpoint import CheckpointError, load, load_best, load_newest, moments, save
from headrace.runs.state_tree import pack, unpack
from headrace.runs.training_state import load_optimizer, random_state, set_random_state


def a_tree(seed=0):
    torch.manual_seed(seed)
    return {
        "policy": torch.nn.Linear(5, 3).state_dict(),
        "counters": {"global_step": 2**40 + 1, "nan": math.nan, "inf": math.inf, "third": 1 / 3},
        "keyed": {0: torch.arange(3), (1, "a"): None},
        "mixed": [True, (1, [2.5]), np.arange(4, dtype=np.uint8).reshape(2, 2), "text"],
        "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
        "empty": {},
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def test_a_tree_comes_back_exactly(tmp_path):
    tree = a_tree()
    save(tmp_path, 7, *pack(tree))
    back = load_newest(tmp_path)
    assert back.step == 7
    assert back.damaged == ()
    assert same(tree, back.unpack())


def test_pack_names_tensors_by_path_and_refuses_the_unknown():
    tensors, state = pack({"a": {"b.weight": torch.zeros(1)}, "c": [torch.ones(1)]})
    assert set(tensors) == {"a/b.weight", "c/0"}
    json.dumps(state)
    with pytest.raises(TypeError, match=r"object in a checkpoint \(at a/0\)"):
        pack({"a": [object()]})


def test_colliding_paths_stay_apart():
    tree = {"x": {1: torch.tensor(1), "1": torch.tensor(2)}}
    assert same(tree, unpack(*pack(tree)))


def test_tied_and_channels_last_tensors_are_stored(tmp_path):
    weight = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    save(tmp_path, 0, {"a": weight, "tied": weight, "view": weight[:, 1]}, {})
    back = load_newest(tmp_path).tensors
    assert torch.equal(back["a"], weight)
    assert torch.equal(back["tied"], weight)
    assert torch.equal(back["view"], weight[:, 1])


def optimizers():
    yield "adam", lambda p: torch.optim.Adam(p, lr=1e-2, eps=1e-6)
    yield "adam-amsgrad", lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True)
    yield "rmsprop", lambda p: torch.optim.RMSprop(p, lr=1e-3)
    yield "rmsprop-centered", lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5)


@pytest.mark.parametrize(("name", "make"), list(optimizers()), ids=lambda v: v if isinstance(v, str) else "")
def test_training_goes_on_as_if_it_had_not_stopped(tmp_path, name, make):
    def build(seed):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 2))
        net = net.to(memory_format=torch.channels_last)
        return net, make(net.parameters()), np.random.default_rng(seed)

    def learn(net, opt, rng, updates):
        for _ in range(updates):
            x = torch.from_numpy(rng.standard_normal((4, 3, 8, 8), dtype=np.float32)) + torch.randn(4, 3, 8, 8)
            opt.zero_grad()
            net(x).square().mean().backward()
            opt.step()

    net, opt, rng = build(0)
    learn(net, opt, rng, 5)
    tree = {"net": net.state_dict(), "opt": opt.state_dict(), "rng": [random_state(), rng.bit_generator.state]}
    save(tmp_path, 5, *pack(tree))
    learn(net, opt, rng, 5)
    straight = net, opt

    net, opt, rng = build(1)
    back = load_newest(tmp_path).unpack()
    net.load_state_dict(back["net"])
    load_optimizer(opt, back["opt"])
    set_random_state(back["rng"][0])
    rng.bit_generator.state = back["rng"][1]
    for parameter, kept in opt.state.items():
        assert all(m.stride() == parameter.stride() for m in kept.values() if m.shape == parameter.shape and m.dim())
    learn(net, opt, rng, 5)
    assert all(torch.equal(a, b) for a, b in zip(straight[0].parameters(), net.parameters(), strict=True))
    assert same(straight[1].state_dict(), opt.state_dict())


def test_an_optimizer_keeps_the_settings_with_which_it_was_made():
    """A run may be resumed with another epsilon. Only the moments and the learning rate are those of the checkpoint."""
    saved, here = (torch.nn.Linear(2, 1) for _ in range(2))
    before = torch.optim.Adam(saved.parameters(), lr=0.5, betas=(0.9, 0.99), eps=1e-3)
    saved(torch.ones(1, 2)).sum().backward()
    before.step()
    now = torch.optim.Adam(here.parameters(), lr=0.1, betas=(0.5, 0.6), eps=1e-8)
    load_optimizer(now, before.state_dict())
    (group,) = now.param_groups
    assert (group["betas"], group["eps"], group["lr"]) == ((0.5, 0.6), 1e-8, 0.5)
    assert torch.equal(now.state[here.weight]["exp_avg"], before.state[saved.weight]["exp_avg"])


def test_keeps_newest_best_and_milestones(tmp_path):
    scores = [1.0, 9.0, 2.0, None, 9.0, 3.0, 4.0, 5.0]
    for step, score in enumerate(scores):
        save(tmp_path, step, {}, {}, keep=2, score=score, milestone=step == 2)
    kept = sorted(load(path).step for path in tmp_path.iterdir())
    assert kept == [2, 4, 6, 7]
    assert load_best(tmp_path).step == 4
    assert load_newest(tmp_path).step == 7


def test_the_same_step_twice_overwrites_nothing(tmp_path):
    first = save(tmp_path, 5, {}, {"n": 1})
    second = save(tmp_path, 5, {}, {"n": 2})
    assert load(first).state == {"n": 1}
    assert load(second).state == {"n": 2}
    assert load_newest(tmp_path).state == {"n": 2}


def test_nothing_there_is_none_not_an_error(tmp_path):
    assert load_newest(tmp_path / "absent") is None
    assert load_best(tmp_path / "absent") is None


FILES = ["tensors.safetensors", "state.json", "manifest"]


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_anywhere_falls_back_and_says_so(tmp_path, file):
    save(tmp_path, 1, *pack(a_tree(1)))
    path = save(tmp_path, 2, *pack(a_tree(2))) / file
    good = path.read_bytes()
    rng = random.Random(0)
    for position in sorted({0, 1, 7, 8, 9, 64, len(good) - 1, *rng.sample(range(len(good)), 100)}):
        bad = bytearray(good)
        bad[position] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        found = load_newest(tmp_path)
        assert found.step == 1, position
        assert file in found.damaged[0]
        assert same(found.unpack(), a_tree(1))
    path.write_bytes(good)
    assert load_newest(tmp_path).step == 2


@pytest.mark.parametrize("file", FILES)
def test_truncated_grown_or_missing_files_fall_back(tmp_path, file):
    save(tmp_path, 1, *pack(a_tree(1)))
    path = save(tmp_path, 2, *pack(a_tree(2))) / file
    good = path.read_bytes()
    for length in sorted({0, 1, 8, 65, len(good) // 2, len(good) - 1}):
        path.write_bytes(good[:length])
        assert load_newest(tmp_path).step == 1, length
    path.write_bytes(good + b"\0")
    assert load_newest(tmp_path).step == 1
    path.unlink()
    assert load_newest(tmp_path).step == 1


def test_damage_is_told_where_a_population_goes_back_together(tmp_path):
    """Its newest common moment is looked for among the undamaged checkpoints, which says nothing about the others."""
    paths = [save(tmp_path, step, *pack({"moment": step, "ended": False}), keep=4) for step in (1, 2, 3, 4)]
    for path in (paths[0], paths[3]):
        (path / "state.json").write_bytes(b"{}")
    found = moments(tmp_path)
    assert found == {paths[1]: (2, False), paths[2]: (3, False)}
    for among, told in (({paths[2]}, 1), ({paths[1]}, 1)):
        back = load_newest(tmp_path, among=among)
        assert back.path in among
        assert len(back.damaged) == told, "only what is newer"
        assert f"{paths[3].name}" in back.damaged[0]


def test_a_damaged_checkpoint_is_never_the_reason_to_start_from_nothing(tmp_path):
    for step in (1, 2):
        path = save(tmp_path, step, *pack(a_tree(step)))
        (path / "state.json").write_bytes(b"{}")
    with pytest.raises(CheckpointError, match="every checkpoint"):
        load_newest(tmp_path)


@pytest.mark.parametrize("load_one", [load_newest, load_best])
def test_a_checkpoint_that_a_run_deletes_meanwhile_is_not_damaged(tmp_path, monkeypatch, load_one):
    """`headrace eval` beside a run: the newer checkpoint is there before the older goes."""
    save(tmp_path, 1, {}, {}, score=1.0)
    listed, times = checkpoint._entries, 0

    def entries(folder):
        nonlocal times
        found, times = listed(folder), times + 1
        if times < 4:  # behind the back of who lists
            with monkeypatch.context() as patch:
                patch.setattr(checkpoint, "_entries", listed)
                save(tmp_path, times + 1, {}, {}, keep=1, score=1.0)
        return found

    monkeypatch.setattr(checkpoint, "_entries", entries)
    found = load_one(tmp_path)
    assert (found.step, found.damaged) == (4, ())


def test_saving_goes_on_after_damage(tmp_path):
    (save(tmp_path, 10, {}, {}) / "manifest").write_bytes(b"")
    save(tmp_path, 4, {}, {"after": "fallback"}, keep=1)
    assert load_newest(tmp_path).state == {"after": "fallback"}


LIMITED = """
    import resource, sys, torch
    from pathlib import Path
    from headrace.runs.checkpoint import CheckpointError, save
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    try:
        save(Path(sys.argv[1]), 2, {"big": torch.zeros(100_000)}, {})
    except CheckpointError as error:
        print(error)
"""


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path):
    """A process that may write no file over 64 kB: the kernel refuses in the middle of a write, as on a full device."""
    before = save(tmp_path, 1, *pack(a_tree()))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "cannot write a checkpoint of 0.4 MB" in done.stdout
    assert "Earlier checkpoints are untouched" in done.stdout
    assert list(tmp_path.iterdir()) == [before]
    assert same(load_newest(tmp_path).unpack(), a_tree())


def test_a_left_over_that_cannot_be_deleted_stops_nothing(tmp_path, monkeypatch):
    """Such as a file of another user, or one that is open on NFS. It lies where the next checkpoint would be written."""
    stuck, rmtree = tmp_path / ".tmp-000002-step-2", shutil.rmtree
    stuck.mkdir()
    (stuck / "tensors.safetensors").write_bytes(b"")

    def remove(path, **options):
        if path == stuck:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", remove)
    for step in (1, 2, 3):
        with pytest.warns(UserWarning, match=r"cannot be deleted.*\.tmp-000002-step-2"):
            save(tmp_path, step, {}, {}, keep=1)
    assert load_newest(tmp_path).step == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-000002-step-2", "000003-step-3"]


SAVER = """
    import sys, torch
    from pathlib import Path
    from headrace.runs.checkpoint import load_newest, save
    folder = Path(sys.argv[1])
    found = load_newest(folder)
    step = found.step if found else 0
    if found:
        assert int(found.tensors["x"][0]) == step == found.state["step"] and bool((found.tensors["x"] == step).all())
    print("ready", flush=True)
    while True:
        step += 1
        save(folder, step, {"x": torch.full((200_000,), step)}, {"step": step}, keep=2)
        print(step, flush=True)
"""


@pytest.mark.slow
def test_killed_at_random_instants_50_times(tmp_path):
    kill_at_random(tmp_path, 50)


def test_killed_at_random_instants(tmp_path):
    kill_at_random(tmp_path, 2)


def kill_at_random(folder, times):
    """Kill a process that does nothing but save; whatever it had reported as saved must be there afterwards."""
    rng = random.Random(1)
    reported = 0
    for number in range(times):
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SAVER), str(folder)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        if number % 2:  # kill in the first save of the process, or in a later one
            reported = int(process.stdout.readline())
        time.sleep(rng.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        lines = process.communicate()[0].split("\n")[:-1]  # what follows the last newline is a torn line
        reported = int(lines[-1]) if lines else reported
        found = load_newest(folder)
        assert (found.step if found else 0) >= reported
        assert found is None or found.damaged == ()
    assert reported > 0
    save(folder, 10**6, {}, {}, keep=1)
    assert len(list(folder.iterdir())) == 1, "left-overs of killed saves"

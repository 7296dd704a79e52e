"""The bottleneck is named rightly when one is planted."""

import dataclasses
import itertools
import re
import subprocess
import sys
import textwrap

import pytest

from headrace.config import Config, hardware, override
from headrace.runs import bottleneck
from headrace.runs.bottleneck import ADVICE, ADVICE_OF_PLACEMENT, advise, find
from headrace.runs.metrics import read_jsonl


def shares(rollout, policy, learner):
    return {
        "time/rollout/step": rollout[0], "time/rollout/wait_actions": rollout[1], "time/rollout/wait_slots": rollout[2],
        "time/policy/forward": policy[0], "time/policy/wait": policy[1],
        "time/learner/train": learner[0], "time/learner/wait": learner[1],
    }  # fmt: skip


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(hardware, "cores", lambda: 2)


@pytest.mark.parametrize(
    ("metrics", "part", "words"),
    [
        (shares((0.97, 0.02, 0.01), (0.2, 0.8), (0.3, 0.7)), "environments", "num-workers"),
        (
            shares((0.3, 0.69, 0.01), (0.95, 0.05), (0.4, 0.6)),
            "policy",
            "(time spent waiting: policy 5%, learner 60%, rollout workers 70%)",
        ),
        (shares((0.3, 0.1, 0.6), (0.2, 0.8), (0.98, 0.02)), "learner", "learner 2%, rollout workers 70%, policy 80%"),
        (shares((0.2, 0.8, 0.0), (0.3, 0.7), (0.1, 0.9)), "handover", "envs-per-worker"),
        (shares((0.95, 0.05, 0.0), (0.95, 0.05), (0.99, 0.01)), "processor", "every part is busy"),
        ({"time/rollout/step": 0.2, "time/rollout/forward": 0.75, "time/learner/wait": 0.5}, "policy", "compute actions 75%"),
        (
            {"time/rollout/step": 0.8, "time/rollout/forward": 0.15, "time/learner/wait": 0.5},
            "environments",
            "rollout workers 0%, learner 50%",
        ),
        ({**shares((0.2, 0.8, 0.0), (0.3, 0.7), (0.1, 0.9)), "system/cpu": 0.97}, "processor", "97% in use"),
        ({**shares((0.97, 0.02, 0.01), (0.2, 0.8), (0.3, 0.7)), "system/cpu": 0.97}, "environments", "num-workers"),
        ({"charts/SPS": 1.0}, "unknown", "No timings"),
    ],
)
def test_planted(metrics, part, words, two_cores):
    found = find(metrics, override(Config(), **{"sampling.num_workers": 1}))
    assert found.part == part
    assert words in str(found)


ENVIRONMENTS, LEARNER = shares((0.97, 0.02, 0.01), (0.2, 0.8), (0.3, 0.7)), shares((0.3, 0.1, 0.6), (0.2, 0.8), (0.98, 0.02))
BETWEEN = shares((0.3, 0.05, 0.65), (0.1, 0.9), (0.2, 0.8))


def nodes(speeds, cores):
    each = enumerate(zip(speeds, cores, strict=True))
    return {f"cluster/node-{k}/{name}": v for k, of in each for name, v in zip(("SPS", "receiver_cores"), of, strict=True)}


@pytest.mark.parametrize(
    ("metrics", "part", "words"),
    [
        (ENVIRONMENTS | nodes((900, 100, 1000), (0.1, 0.1, 0.1)), "node", "Node 1 is slow (100 steps/s; the median of"),
        (ENVIRONMENTS | nodes((900, 100), (0.1, 0.1)), "node", "makes 900"),
        (ENVIRONMENTS | nodes((900, 800), (0.1, 0.1)), "environments", "num-workers"),
        (LEARNER | nodes((900, 100), (0.1, 0.1)), "learner", "batch-size"),
        (BETWEEN | nodes((900, 100), (0.1, 0.3)), "network", "nodes wait 65% of their time to send trajectories, the learner"),
        (BETWEEN | nodes((900, 800), (0.1, 0.1)), "network", "cluster.compression lz4"),
        (BETWEEN | nodes((900, 800), (0.2, 0.96)), "receiver", "receiver of node 1 is the bottleneck (96% of a core"),
        (BETWEEN | nodes((900, 800), (0.1, 0.1)) | {"system/cpu": 0.97}, "processor", "97% in use"),
        (BETWEEN, "handover", "Every part waits"),
    ],
)
def test_planted_in_a_cluster(metrics, part, words, two_cores):
    found = find(metrics, override(Config(), **{"sampling.num_workers": 1}))
    assert found.part == part
    assert words in str(found)


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("placement", ["served", "inline", "device"])
@pytest.mark.parametrize("busiest", ["environments", "policy", "learner"])
def test_what_it_says_to_change_has_an_effect(busiest, placement, replay):
    """Settings of other placements, and passes over a batch that a replay makes only one of, are not named."""
    environments, policy, learner = (0.92 if part == busiest else 0.2 for part in ("environments", "policy", "learner"))
    metrics = shares((environments, 1 - environments, 0.0), (policy, 1 - policy), (learner, 1 - learner))
    settings = {"sampling.placement": placement, "learning.experience": "replay" if replay else "trajectories"}
    found = find(metrics, override(Config(), **settings))
    assert found.part == busiest
    assert found.advice
    if placement != "served":
        assert "num-policy-workers" not in found.advice
    if placement == "device":
        assert "num-workers" not in found.advice
        assert "num-groups" not in found.advice
    if replay:
        assert "num-epochs" not in found.advice
        assert "batch-size" not in found.advice


def test_in_one_process_the_parts_take_turns():
    """Each waits while another has the device: that is no lack of work, nor of cores, and the one that takes longest is named."""
    turns = {**shares((0.25, 0.75, 0.0), (0.3, 0.7), (0.45, 0.55)), "system/cpu": 0.97}
    assert find(turns, override(Config(), **{"sampling.placement": "device"})).part == "learner"
    assert find(turns, Config()).part == "processor"


CASES = [
    *itertools.product(
        ("served", "inline", "device"), ADVICE, ("cpu", "cuda"), ("float32", "bf16", "auto"), ("native", "emulated"), (1, 4),
        (1, 2),
    )
]  # fmt: skip
"""Placement, part, device, precision, bf16 of the machine, epochs, rollout workers (there are two cores)."""


def test_only_what_is_not_already_so_is_advised(monkeypatch, two_cores):
    """Every line of the table, with every setting that it names as it is and as it could be."""
    said = set()
    for placement, part, device, precision, bf16, epochs, workers in CASES:
        monkeypatch.setattr(hardware, "native_bf16", lambda device, bf16=bf16: bf16 == "native")
        config = Config()
        config.sampling.placement, config.sampling.num_workers = placement, workers
        config.learning.device, config.learning.precision, config.learning.num_epochs = device, precision, epochs
        advice = advise(part, config)
        names = [change.text for change in ADVICE_OF_PLACEMENT.get(placement, {}).get(part) or ADVICE[part]]

        def agrees(words, possible, advice=advice, names=names):
            """The words are advised where that is possible, if they are in the table."""
            return (words in advice) == (possible and any(words in name for name in names))

        case = f"{placement}, {part}, {device}, {precision}, bf16 {bf16}, {epochs} epochs, {workers} workers: {advice}"
        assert agrees("precision bf16", config.precision == "float32" and bf16 == "native"), case
        assert agrees("accelerator", device == "cpu"), case
        assert agrees("num-epochs", epochs > 1), case
        assert agrees("up to one per core", workers < 2), case
        assert re.fullmatch(r"Use [^.].*[^. ]\.", advice), case
        said |= {name for name in names if name in advice}
    table = [*ADVICE.values(), *(changes for parts in ADVICE_OF_PLACEMENT.values() for changes in parts.values())]
    assert said == {change.text for changes in table for change in changes}, "some advice is never given"


def test_advice_at_a_limit(monkeypatch, two_cores):
    assert "batch-timeout" in advise("handover", Config())
    assert "batch-timeout" not in advise("handover", override(Config(), **{"sampling.batch_timeout": 0.0}))
    in_process = override(Config(), **{"sampling.placement": "device"})
    assert "several cores" in advise("environments", in_process)
    monkeypatch.setattr(hardware, "cores", lambda: 1)
    assert advise("environments", in_process) == "Use more environments at a time (sampling.envs-per-worker)."
    monkeypatch.setitem(bottleneck.ADVICE, "learner", ())
    assert advise("learner", Config()) == ""


def test_advice_names_settings_that_there_are():
    table = [*ADVICE.values(), *(changes for parts in ADVICE_OF_PLACEMENT.values() for changes in parts.values())]
    for change in itertools.chain(*table):
        for group, name in re.findall(r"\b(learning|sampling)\.([\w-]+)", change.text):
            fields = [field.name for field in dataclasses.fields(getattr(Config(), group))]
            assert name.replace("-", "_") in fields, change.text


WORLD = """
    import os, time
    import gymnasium
    import numpy as np
    from headrace.envs import register
    from headrace.policies import register_network

    class World(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(4, np.float32), {}

        def step(self, action):
            time.sleep(float(os.environ.get("ENVIRONMENTS", 0)))
            return np.zeros(4, np.float32), 1.0, False, False, {}

    @register("planted/world")
    def world(options, *, render_mode=None):
        return World()

    @register_network("planted")
    def network(observation, config):
        import torch

        class Net(torch.nn.Linear):
            def forward(self, obs):
                time.sleep(float(os.environ.get("LEARNER" if torch.is_grad_enabled() else "POLICY", 0)))
                return super().forward(obs["obs"])

        return Net(4, 8)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("part", "seconds"), [("ENVIRONMENTS", 0.005), ("POLICY", 0.05), ("LEARNER", 0.5)])
def test_planted_in_a_real_run(part, seconds, tmp_path, monkeypatch):
    """Pauses that use no processor, so that the machine's own load does not decide."""
    (tmp_path / "world.py").write_text(textwrap.dedent(WORLD))
    monkeypatch.setenv(part, str(seconds))
    command = [sys.executable, "-m", "headrace.cli", "train", "--import", tmp_path / "world.py", "--env", "planted/world",
               "--policy.encoder", "planted", "--run.folder", tmp_path / "run", "--no-video", "--batch-size", "512",
               "--num-workers", "1", "--log-interval", "2", "--max-minutes", "0.15"]  # fmt: skip
    subprocess.run(list(map(str, command)), check=True, timeout=120, capture_output=True)
    last = [line for line in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "time/learner/wait" in line][-1]
    assert find(last, Config()).part == part.lower(), last

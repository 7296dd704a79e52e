"""A run that goes on keeps its own settings: the defaults of today do not reset them, in Python as on the command line."""

import copy
import os
import shutil
import textwrap
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import headrace
from headrace import cli
from headrace.cli.flags import parse_config
from headrace.config import ConfigError, override
from headrace.envs import EnvironmentFault
from headrace.make_config import continued, make_config, to_train
from headrace.runs.checkpoint import load_newest
from headrace.runs.folder import RunFolder
from headrace.sampling.placements.base import Placement

ENV = "gym/CartPole-v1"
TINY = {
    "run.dashboard": False, "run.video": False, "sampling.placement": "serial", "learning.device": "cpu", "sampling.rollout": 8,
    "sampling.num_workers": 1, "sampling.envs_per_worker": 2, "learning.batch_size": 16, "learning.num_minibatches": 1,
    "learning.num_epochs": 1, "policy.mlp": (4,), "learning.total_steps": 64,
}  # fmt: skip


def begun(folder, checkpoint=True, **settings):
    """A run folder with these settings, and what looks like a checkpoint."""
    RunFolder.open(make_config(ENV, **{"run.folder": str(folder), **settings}))[0].close()
    if checkpoint:
        (folder / "checkpoints" / "000001-step-64").mkdir(parents=True)


def test_what_the_command_line_had_set_stays_in_python(tmp_path):
    begun(tmp_path, **{"learning.entropy_coef": 0.02, "learning.gamma": 0.9})
    config = continued(make_config(ENV, **{"run.folder": str(tmp_path), "learning.gamma": 0.8}))
    assert (config.learning.entropy_coef, config.learning.gamma) == (0.02, 0.8)
    assert continued(config) == config


def test_what_is_changed_later_counts_as_given(tmp_path):
    begun(tmp_path, **{"learning.entropy_coef": 0.02, "learning.gamma": 0.9})
    config = make_config(ENV)
    config.run.folder = str(tmp_path)
    config = override(config, **{"learning.gamma": config.learning.gamma})  # the default, and yet given
    config.learning.value_coef = 0.25
    config = continued(copy.deepcopy(config))
    assert (config.learning.entropy_coef, config.learning.value_coef) == (0.02, 0.25)
    assert config.learning.gamma == make_config(ENV).learning.gamma != 0.9


def test_the_algorithm_counts_as_given_and_cannot_change(tmp_path):
    begun(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be resumed(.|\n)*learning.algorithm: ppo -> appo"):
        continued(make_config(ENV, "appo", **{"run.folder": str(tmp_path)}))


@pytest.mark.parametrize(
    ("algorithm", "name", "value"),
    [("ppo", "learning.preset", "paper"), ("r2d2", "q.rescale", False), ("dqn", "learning.rmsprop_centered", True)],
)
def test_what_would_change_nothing_or_what_the_checkpoint_means_is_refused(tmp_path, algorithm, name, value):
    begun(tmp_path, **{"learning.algorithm": algorithm})
    with pytest.raises(ConfigError, match=rf"cannot be resumed(.|\n)*{name}: \w+ -> {value}"):
        continued(make_config(ENV, algorithm, **{"run.folder": str(tmp_path), name: value}))


def test_a_run_without_a_checkpoint_may_become_another(tmp_path):
    """What a killed process had not finished is no checkpoint."""
    begun(tmp_path, checkpoint=False, **{"learning.entropy_coef": 0.02})
    (tmp_path / "checkpoints" / ".tmp-000001-step-64").mkdir(parents=True)
    again = continued(make_config(ENV, **{"run.folder": str(tmp_path)}))
    assert again.learning.entropy_coef == 0.02
    other = continued(make_config(ENV, "dqn", **{"run.folder": str(tmp_path)}))
    assert (other.learning.algorithm, other.learning.experience) == ("dqn", "replay")
    folder, messages = RunFolder.open(other)
    folder.close()
    assert "learning.algorithm: ppo -> dqn" in messages
    assert f"{tmp_path} holds a run without a checkpoint: training starts from the beginning" in messages


def test_the_folder_of_a_run_that_was_moved_is_where_it_is(tmp_path):
    begun(tmp_path / "before")
    os.rename(tmp_path / "before", tmp_path / "after")
    config = continued(make_config(ENV, **{"run.folder": str(tmp_path / "after")}))
    assert config.run_folder == tmp_path / "after"
    folder, messages = RunFolder.open(config)
    folder.close()
    assert messages == []


def test_files_that_only_the_run_names_are_not_imported(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')")
    config = override(make_config(ENV, **{"run.folder": str(tmp_path / "run")}), imports=(str(tmp_path / "mine.py"),))
    RunFolder.open(config)[0].close()
    with pytest.raises(ConfigError, match=r"needs Python code(.|\n)*mine\.py"):
        continued(make_config(ENV, **{"run.folder": str(tmp_path / "run")}))


def test_help_shows_defaults_as_such_and_the_values_of_the_run_as_its_own(tmp_path, capsys):
    begun(tmp_path, **{"learning.entropy_coef": 0.02, "learning.gamma": 0.9})

    def shown(*more):
        with pytest.raises(SystemExit):
            cli.main(["train", "--env", ENV, "--run.folder", str(tmp_path), "--gamma", "0.8", *more])
        return " ".join(capsys.readouterr().out.split())

    every, default, of = shown("--help", "learning"), make_config(ENV).learning, f"of the run in {tmp_path}"
    assert f"--learning.entropy-coef (float (at least 0); default {default.entropy_coef}; now 0.02, {of})" in every
    assert f"--learning.gamma (float (0 to 1); default {default.gamma}; now 0.8, given)" in every
    common = shown("--help")
    assert f"--learning.entropy-coef {default.entropy_coef} Weight of the exploration term in the total loss. (now" in common


def test_a_start_that_is_refused_leaves_no_folder(tmp_path, monkeypatch):
    """The algorithm looks at the actions of the environment, which no setting tells."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        headrace.train(make_config("gym/Pendulum-v1", "dqn", **{**TINY, "replay.minimum": 16, "replay.capacity": 1000}))
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_environment_failed_before_anything_was_learned_may_become_another(tmp_path):
    """Its author corrects it, and a checkpoint without a step would fix the network until then."""

    class World(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(self.observation_space.shape, np.float32), {}

        def step(self, action):
            raise NotImplementedError("to do")

    settings = {**TINY, "run.folder": str(tmp_path / "run")}
    with pytest.raises(EnvironmentFault, match="to do"):
        headrace.train(make_config(World, **settings))
    World.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    World.step = lambda self, action: (np.zeros(3, np.float32), 0.0, False, False, {})
    assert headrace.train(make_config(World, **settings)).reason == "total_steps"


WANDERER = """
    import os
    import gymnasium
    from headrace.envs import register

    class Wanderer(gymnasium.Wrapper):
        def reset(self, **options):
            os.chdir(os.environ["ELSEWHERE"])
            return super().reset(**options)

    @register("wandering/pole")
    def wanderer(options, *, render_mode=None):
        return Wanderer(gymnasium.make("CartPole-v1", render_mode=render_mode))
"""


def test_an_environment_that_changes_the_working_directory_takes_nothing_with_it(tmp_path, monkeypatch):
    (tmp_path / "wanderer.py").write_text(textwrap.dedent(WANDERER))
    for name in ("home", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("ELSEWHERE", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path / "home")
    config = make_config("wandering/pole", imports=[str(tmp_path / "wanderer.py")], **{**TINY, "run.folder": "run"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = headrace.train(config)
    assert os.getcwd() == str(tmp_path / "elsewhere"), "the test shows nothing"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "home" / "run" / "checkpoints").is_dir()
    assert result.folder == str(tmp_path / "home" / "run")
    assert config.run.folder == "run", "the caller's configuration stays what it was"


def test_the_parser_gives_what_train_goes_on_with(tmp_path):
    begun(tmp_path, **{"learning.entropy_coef": 0.02})
    config = parse_config(["--env", ENV, "--run.folder", str(tmp_path)])
    assert config.learning.entropy_coef == 0.02
    assert continued(config) == config


def test_placements_are_made_before_the_folder(tmp_path, monkeypatch):
    def refuse(placement, agents):
        raise MemoryError("no room")

    monkeypatch.setattr(Placement, "allocate", refuse)
    with pytest.raises(MemoryError, match="no room"):
        headrace.train(make_config(ENV, **{**TINY, "run.folder": str(tmp_path / "run")}))
    assert not (tmp_path / "run").exists()


def test_a_run_of_an_older_version_goes_on(tmp_path):
    """`older_run` was written by commit 1f7cdc7, before classes were renamed: APPO with a GRU on CartPole, 10,295 steps."""
    folder = tmp_path / "run"
    shutil.copytree(Path(__file__).parent / "older_run", folder)
    before = load_newest(folder / "checkpoints")
    assert before is not None
    assert before.step == 10_295
    quiet = {"run.dashboard": False, "run.video": False, "sampling.placement": "serial", "learning.device": "cpu"}
    settings = {"run.folder": str(folder), "learning.total_steps": 12_000, "learning.learning_rate": 1e-9, **quiet}
    result = headrace.train(make_config(ENV, "appo", **settings))
    assert 12_000 <= result.global_step < 14_000
    after = load_newest(folder / "checkpoints")
    assert after is not None
    assert after.step == result.global_step
    weights = [name for name, x in before.tensors.items() if name.startswith("model/") and x.is_floating_point()]
    assert weights
    assert all(torch.allclose(before.tensors[name], after.tensors[name], atol=1e-4) for name in weights)


def test_a_misspelt_attribute_is_refused_before_training(tmp_path):
    config = make_config("gym/CartPole-v1", **{"run.folder": str(tmp_path)})
    config.learning.totl_steps = 5
    with pytest.raises(ConfigError, match=r"there is no setting learning\.totl_steps; did you mean learning\.total_steps\?"):
        to_train(config)

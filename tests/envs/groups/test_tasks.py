"""Several tasks for one policy: settings, the group of their environments, and what is said where they do not agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from worlds import CountingEnv, local_group, reset_group, rows_for, step_group

from headrace.cli.flags import parse_config
from headrace.cluster.shapes import whole
from headrace.config import ConfigError, EnvConfig, to_json
from headrace.config.envs import tasks_of
from headrace.config.validation import validate
from headrace.envs.core import registry
from headrace.envs.core.description import spec_from_json, spec_to_json
from headrace.envs.core.errors import EnvironmentFault, UnknownEnvironment
from headrace.envs.core.reference_scores import normalized, reference
from headrace.envs.core.settings import agreement, options_of
from headrace.envs.groups.tasks import TaskGroup
from headrace.envs.make import describe_here, make_env, make_group
from headrace.make_config import make_config

GAMES = ("atari/pong", "atari/breakout", "atari/boxing")
WORLDS = str(Path(__file__).parents[1] / "task_worlds.py")
CUES = ("cue/left", "cue/right")


def cues(**settings: object):
    return make_config(CUES, imports=[WORLDS], **settings)


# -- settings ---------------------------------------------------------------------------------------------------------


def test_commas_separate_tasks() -> None:
    assert tasks_of("atari/pong") == ("atari/pong",)
    assert tasks_of(",".join(GAMES)) == GAMES
    with pytest.raises(ConfigError, match="empty id"):
        tasks_of("atari/pong,")
    with pytest.raises(ConfigError, match="atari/pong is there twice"):
        tasks_of("atari/pong,atari/boxing,atari/pong")
    with pytest.raises(ValueError, match="a comma separates tasks"):
        registry.register("my/one,two")
    with pytest.raises(UnknownEnvironment, match="there is no environment 'atari/pongg'; nearest: atari/pong"):
        make_config("atari/boxing,atari/pongg")


def test_defaults_are_what_more_than_half_of_the_tasks_agree_on() -> None:
    config = cues()
    assert config.learning.gamma == 0.5
    assert config.learning.learning_rate == 5e-4, "theirs differ: it is that of environments that name none"
    assert config.envs.task_options == {"cue/left": {"reward_scale": 2.0}}
    assert make_config(GAMES).run.goal is None, "Pong's own is 18"
    three = make_config(GAMES)
    assert (three.policy.encoder, three.learning.lr_schedule) == ("shallow-conv", "linear"), "PQN's"
    ppo = make_config(GAMES, "ppo")
    assert (ppo.learning.lr_schedule, ppo.sampling.rollout) == ("constant", 32), "of two of three"
    assert cues(**{"envs.reward_scale": 3.0}).envs.task_options == {}, "the user's own setting is for all tasks"
    asked = cues(**{"envs.task_options": {"cue/right": {"reward_clip": 1.0}}})
    assert asked.envs.task_options == {"cue/left": {"reward_scale": 2.0}, "cue/right": {"reward_clip": 1.0}}


def test_flags_say_the_same_as_the_library(tmp_path: Path) -> None:
    flags = ["--env", ",".join(CUES), "--import", WORLDS]
    assert parse_config(flags, tuned=False).envs.task_options == {"cue/left": {"reward_scale": 2.0}}
    assert parse_config([*flags, "--reward-scale", "3"], tuned=False).envs.task_options == {}
    asked = parse_config(
        [*flags, "--task-options", '{"cue/right": {"reward_clip": 1.0}}', "--envs.task-share=samples"], tuned=False
    )
    assert asked.envs.task_options == {"cue/left": {"reward_scale": 2.0}, "cue/right": {"reward_clip": 1.0}}
    assert (asked.envs.task_share, asked.sampling.num_workers) == ("samples", 2)
    (tmp_path / "config.json").write_text(to_json(asked))
    resumed = parse_config([*flags, "--run.folder", str(tmp_path)], tuned=False)
    assert resumed.envs.task_options == asked.envs.task_options, "what no flag names stays as it was"
    assert parse_config(["--env", ",".join(GAMES), "--num-workers", "6"], tuned=False).sampling.envs_per_worker == 32
    with pytest.raises(ConfigError, match=r"envs.task_options is \[1\]; it must be a JSON object"):
        parse_config([*flags, "--envs.task-options", "[1]"], tuned=False)


@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize(
    "settings", [{}, {"envs.task_share": "samples"}, {"sampling.placement": "device"}, {"algorithm": "apex-dqn"}]
)
def test_default_sizes_give_the_tasks_equal_shares(count: int, settings: dict[str, str]) -> None:
    games = [f"atari/{name}" for name in ("pong", "breakout", "boxing", "qbert", "seaquest", "asterix", "freeway")]
    config = make_config(games[:count], **settings)
    validate(config)
    numbers = [config.task_of_group(group) for group in range(config.total_groups)]
    if config.envs.task_share == "samples":
        assert set(numbers) == {None}
        assert config.envs_per_group % count == 0
    else:
        assert not settings
        assert [numbers.count(k) for k in range(count)] == [len(numbers) // count] * count
        assert config.learning.batch_size == make_config("atari/boxing").learning.batch_size
        of_workers = {(group // config.sampling.num_groups, task) for group, task in enumerate(numbers)}
        assert len(of_workers) == config.sampling.num_workers, "a worker's groups wait for each other"


@pytest.mark.parametrize("nodes", [None, 1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("policies", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_policy_has_every_task_equally_often(nodes: int | None, groups: int, policies: int, count: int) -> None:
    """On every sampling node."""
    games = [f"atari/{name}" for name in ("pong", "breakout", "boxing", "qbert")][:count]
    sizes = {"sampling.num_groups": groups, "population.size": policies, "cluster.nodes": nodes}
    config = make_config(games, **sizes, **{"sampling.placement": "served"})
    validate(config)
    if nodes:
        config = whole(config)
    of_all = [(config.policy_of_group(group), config.task_of_group(group)) for group in range(config.total_groups)]
    if not nodes or nodes == 1:
        assert [policy for policy, _ in of_all] == [group % policies for group in range(len(of_all))]
    for node in range(nodes or 1):
        pairs = [pair for group, pair in enumerate(of_all) if group // groups % (nodes or 1) == node]
        shares = [pairs.count((p, k)) for p in range(policies) for k in range(count)]
        assert shares == [len(pairs) // (policies * count)] * (policies * count)
    by_worker = {(group // groups, task) for group, (_, task) in enumerate(of_all)}
    assert len(by_worker) == config.sampling.num_workers, "a worker's groups wait for each other"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"population.size": 4, "sampling.num_workers": 6}, r"6\) must be a multiple of the 2 tasks x 2, so that all of the 4"),
        ({"sampling.num_workers": 3}, r"num_workers \(3\) must be a multiple of the 2 tasks"),
        ({"envs.task_share": "samples", "sampling.envs_per_worker": 6}, r"a group \(3: .* must be a multiple of the 2 tasks"),
        ({"envs.task_share": "compute", "sampling.placement": "device"}, "steps all environments together"),
        ({"envs.task_share": "compute", "algorithm": "apex-dqn"}, "explores by the number of the environment"),
        ({"envs.remote": "here:1"}, "envs.remote is for one task"),
        ({"envs.task_options": {"cue/middle": {"frameskip": 2}}}, "names cue/middle; the tasks are cue/left, cue/right"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_the_numbers(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate(cues(**settings))
    if "task_options" in settings:
        with pytest.raises(ConfigError, match="is for several tasks"):
            validate(make_config("atari/pong", **settings))


def test_a_multi_agent_environment_is_no_task() -> None:
    pytest.importorskip("pettingzoo")
    with pytest.raises(ConfigError, match="pettingzoo/connect_four_v3 is a multi-agent environment"):
        make_config("cue/left,pettingzoo/connect_four_v3", imports=[WORLDS])


def test_a_task_has_its_own_settings_before_those_of_all() -> None:
    options = EnvConfig(
        reward_scale=2.0, kwargs={"a": 1, "b": 2}, task_options={"cue/left": {"resize": [4, 5], "kwargs": {"b": 3}}}
    )
    own = options_of("cue/left", CUES, options)
    assert (own.resize, own.reward_scale, own.kwargs, own.task_options) == ((4, 5), 2.0, {"a": 1, "b": 3}, {})
    assert options_of("cue/right", CUES, options).kwargs == {"a": 1, "b": 2}
    for wrong, message in (
        ({"resise": 1}, "resise"),
        ({"remote": "x:1"}, "remote cannot be different"),
        (3, "must be a JSON object"),
    ):
        with pytest.raises(ConfigError, match=message):
            options_of("cue/left", CUES, EnvConfig(task_options={"cue/left": wrong}))


def test_many_tasks_have_a_short_folder() -> None:
    assert make_config(GAMES).run_folder.name == "atari-pong+atari-breakout+atari-boxing__default__0"
    many = make_config(registry.list_ids("atari"))
    assert len(many.run_folder.name) < 60
    assert many.run_folder != make_config(registry.list_ids("atari")[1:]).run_folder


# -- agreement --------------------------------------------------------------------------------------------------------


def test_games_have_all_actions_also_where_fewer_are_legal() -> None:
    spec = describe_here("atari/pong,atari/skiing,atari/boxing", make_config("atari/pong").envs)
    assert [part.n for part in spec.action.parts] == [18]
    assert spec.tasks == ("atari/pong", "atari/skiing", "atari/boxing")
    assert spec_from_json(spec_to_json(spec)) == spec
    options = options_of("atari/skiing", spec.tasks, make_config("atari/pong").envs)
    env = make_env("atari/skiing", options)
    assert env.action_space.n == 18
    env.reset(seed=0)
    env.step(17)
    env.close()


def test_scenarios_have_the_buttons_and_variables_of_all() -> None:
    pytest.importorskip("vizdoom")
    scenarios = ("vizdoom/basic", "vizdoom/my_way_home", "vizdoom/health_gathering")
    chosen = agreement(scenarios, EnvConfig())
    assert chosen["buttons"] == ["MOVE_LEFT", "MOVE_RIGHT", "ATTACK", "TURN_LEFT", "TURN_RIGHT", "MOVE_FORWARD"]
    assert [name for name in chosen["variables"] if name != "AMMO0"] == ["AMMO2", "HEALTH"]  # VizDoom 1.2 has it in my_way_home
    config = make_config(scenarios)
    assert describe_here(config.env, config.envs).observation["measurements"].shape == (len(chosen["variables"]),)
    config.envs.kwargs = {"buttons": ["ATTACK"]}
    assert [part.n for part in describe_here(config.env, config.envs).action.parts] == [2], "the user's go before"


def test_the_task_that_differs_is_named() -> None:
    cues()
    message = "cue/three has other actions than cue/left: 3 choices instead of 2 choices. The tasks of one policy must"
    with pytest.raises(ConfigError, match=message):
        describe_here("cue/left,cue/right,cue/three", EnvConfig())
    with pytest.raises(
        ConfigError, match=r"cue/right has other observations than cue/left: obs float32 \[6\] instead of .* \[2\]"
    ):
        describe_here("cue/left,cue/right", EnvConfig(task_options={"cue/right": {"frame_stack": 3}}))
    with pytest.raises(ConfigError, match="cue/left,cue/right' names several tasks"):
        make_env("cue/left,cue/right", EnvConfig())


# -- the group --------------------------------------------------------------------------------------------------------


def test_every_environment_does_what_it_does_alone() -> None:
    """Three tasks, of which one counts rewards double, side by side; compared step by step with groups of their own."""
    tasks = ("one", "two", "three")
    options = [EnvConfig(), EnvConfig(reward_scale=2.0), EnvConfig()]
    together = TaskGroup(
        tasks, [local_group([CountingEnv() for _ in range(4)], o, t) for t, o in zip(tasks, options, strict=True)]
    )
    alone = [local_group([CountingEnv() for _ in range(4)], o, t) for t, o in zip(tasks, options, strict=True)]
    spec = together.spec
    assert (spec.tasks, spec.name, together.num_envs, together.tasks.tolist()) == (tasks, "one,two,three", 12, [0, 1, 2] * 4)
    now, after = rows_for(spec, 12)
    now.task = np.full(12, -1, np.int32)
    mine = [rows_for(spec, 4) for _ in tasks]
    reset_group(together, 100, after)
    for k, group in enumerate(alone):
        reset_group(group, 100 + 4 * k, mine[k][1])
    rng = np.random.default_rng(0)
    for _ in range(40):
        actions = rng.integers(5, size=(12, 1)).astype(np.int32)
        step_group(together, actions, now, after)
        assert now.task.tolist() == [0, 1, 2] * 4
        for k, group in enumerate(alone):
            step_group(group, actions[k::3], *mine[k])
            for name in ("reward", "terminated", "truncated", "episode_return", "episode_length"):
                np.testing.assert_array_equal(getattr(now, name)[k::3], getattr(mine[k][0], name), err_msg=name)
            for name in ("first", "valid"):
                np.testing.assert_array_equal(getattr(after, name)[k::3], getattr(mine[k][1], name), err_msg=name)
            np.testing.assert_array_equal(after.obs["obs"][k::3], mine[k][1].obs["obs"])


def test_a_group_goes_on_from_its_state() -> None:
    def make() -> TaskGroup:
        group = TaskGroup(CUES, [make_group(task, EnvConfig(), 2) for task in CUES])
        group.remember()
        return group

    cues()
    first, second = make(), make()
    now, after = rows_for(first.spec, 4)
    actions = np.array([[0], [1], [1], [0]], np.int32)
    reset_group(first, 7, after)
    for _ in range(5):
        step_group(first, actions, now, after)
    second.set_state(first.get_state())
    for _ in range(10):
        step_group(first, actions, now, after)
        expected = [now.reward.copy(), now.truncated.copy(), now.episode_return.copy()]
        step_group(second, actions, now, after)
        for ours, theirs in zip((now.reward, now.truncated, now.episode_return), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(EnvironmentFault, match="of 1 tasks, not 2"):
        second.set_state({"parts": [{}]})
    first.close()


def test_games_are_one_batch_where_they_are_mixed() -> None:
    config = make_config(GAMES)
    group = make_group(config.env, config.envs, 6)
    assert len(group.parts) == 1
    assert group.parts[0].envs.env.game_names == ["pong", "breakout", "boxing"] * 2
    now, after = rows_for(group.spec, 6)
    now.task = np.zeros(6, np.int32)
    reset_group(group, 3, after)
    step_group(group, np.full((6, 1), 17, np.int32), now, after)
    assert now.task.tolist() == [0, 1, 2, 0, 1, 2]
    group.close()
    of_one = make_group(config.env, config.envs, 6, task=1)
    assert of_one.parts[0].envs.env.game_names == ["breakout"] * 6
    assert of_one.tasks.tolist() == [1] * 6
    assert of_one.spec == group.spec
    of_one.close()
    with pytest.raises(ConfigError, match="4 environments cannot be shared equally by 3 tasks"):
        make_group(config.env, config.envs, 4)
    config.envs.task_options = {"atari/boxing": {"reward_clip": 5.0}}
    apart = make_group(config.env, config.envs, 6)
    assert [part.envs.env.game_names for part in apart.parts] == [[name.removeprefix("atari/")] * 2 for name in GAMES]
    now, after = rows_for(apart.spec, 6)
    reset_group(apart, 3, after)
    step_group(apart, np.zeros((6, 1), np.int32), now, after)
    assert after.obs["obs"].max(axis=(1, 2, 3)).min() > 0, "every environment's own rows were written"
    apart.close()


# -- scores -----------------------------------------------------------------------------------------------------------


def test_scores_are_relative_to_random_and_human() -> None:
    assert reference("atari/pong") == (-20.7, 14.6)
    assert normalized("atari/pong", -20.7) == 0.0
    assert normalized("atari/pong", 14.6) == 1.0
    assert normalized("dmlab/rooms_collect_good_objects_train", 0.073) == 0.0
    assert normalized("dmlab/contributed/dmlab30/rooms_watermaze", 54.0) == 1.0
    assert normalized("atari/tetris", 1.0) is None
    assert normalized("gym/CartPole-v1", 1.0) is None
    games = {f"atari/{name}" for name in ("pong", "montezuma_revenge", "kung_fu_master", "jamesbond", "up_n_down")}
    assert games <= {*registry.list_ids("atari")}
    known = [name for name in registry.list_ids("atari") if reference(name)]
    assert len(known) == 57

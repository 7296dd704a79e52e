"""`gymnasium.make("headrace/<Game>-v5")` against `gymnasium.make("ALE/<Game>-v5")`, and what is registered."""

import copy
import pickle

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import headrace_atari  # noqa: F401 - registers the ids
from headrace_atari import AtariEnv, AtariVector

gymnasium.register_envs(ale_py)


def assert_same_step(mine, other):
    for a, b in zip(mine[:-1], other[:-1], strict=True):
        np.testing.assert_array_equal(a, b)
        if isinstance(b, np.ndarray):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
        else:
            assert type(a) is type(b)
    assert mine[-1] == other[-1]


CASES = [
    ("Pong", {}, 200),
    ("Breakout", {"obs_type": "grayscale"}, 400),  # several games
    ("MsPacman", {"obs_type": "ram", "full_action_space": True}, 100),
    ("Skiing", {"full_action_space": True}, 60),
    ("AirRaid", {"frameskip": (2, 5)}, 60),  # PAL, 250 rows
    ("Seaquest", {"mode": 0, "difficulty": 1, "frameskip": 1}, 200),
    ("Kaboom", {"continuous": True}, 60),
    ("DoubleDunk", {"max_num_frames_per_episode": 90}, 120),  # ends within a step, several times
    ("TicTacToe3D", {"repeat_action_probability": 0.5}, 40),
]


@pytest.mark.parametrize(("name", "options", "steps"), CASES, ids=[case[0] for case in CASES])
def test_equals_ale(name, options, steps):
    ours, theirs = (gymnasium.make(f"{family}/{name}-v5", **options) for family in ("headrace", "ALE"))
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    ours.action_space.seed(0)
    ends = 0
    assert_same_step(ours.reset(seed=5), theirs.reset(seed=5))
    for step in range(steps):
        action = ours.action_space.sample()
        mine, other = ours.step(action), theirs.step(action)
        assert_same_step(mine, other)
        if other[2] or other[3]:
            ends += 1
            assert_same_step(ours.step(action), theirs.step(action))  # after the end nothing moves
            assert_same_step(ours.reset(seed=step if ends % 2 else None), theirs.reset(seed=step if ends % 2 else None))
    assert ends >= 2 or name not in ("Breakout", "DoubleDunk")


def test_every_game_of_ale_has_an_id_of_ours():
    def games(prefix):
        return {key.removeprefix(prefix) for key in gymnasium.registry if key.startswith(prefix)}

    assert games("headrace/") == games("ALE/")
    for name in games("ALE/"):
        ours, theirs = gymnasium.spec(f"headrace/{name}"), gymnasium.spec(f"ALE/{name}")
        assert ours.kwargs == theirs.kwargs


def test_gymnasiums_own_checks():
    check_env(gymnasium.make("headrace/Pong-v5", render_mode="rgb_array").unwrapped)


def test_render():
    for make in (gymnasium.make, gymnasium.make_vec):
        assert make("headrace/Pong-v5").render_mode is None
    ours, theirs = (gymnasium.make(f"{family}/Pong-v5", render_mode="rgb_array") for family in ("headrace", "ALE"))
    ours.reset(seed=1), theirs.reset(seed=1)
    for _ in range(20):
        ours.step(2), theirs.step(2)
    np.testing.assert_array_equal(ours.render(), theirs.render())
    assert ours.metadata["render_fps"] == 15
    with pytest.raises(ValueError, match="render_mode"):
        AtariVector("pong", 1, render_mode="human")


def test_a_vector_shows_the_screens_of_its_games():
    envs = gymnasium.make_vec("headrace/Pong-v5", num_envs=2, render_mode="rgb_array", grayscale=False, img_height=None,
                              img_width=None, stack_num=1, maxpool=False)  # fmt: skip
    assert envs.render_mode == "rgb_array"
    envs.reset(seed=1)
    for _ in range(20):
        observations, *_ = envs.step(np.array([2, 3]))
        first, second = envs.render()
        np.testing.assert_array_equal(first, observations[0, 0])
        np.testing.assert_array_equal(second, observations[1, 0])
    envs.send(np.array([2, 3]))
    with pytest.raises(RuntimeError, match="under way"):
        envs.render()


def test_bad_options_are_refused():
    for options, what in (
        ({"obs_type": "depth"}, "obs_type"),
        ({"frameskip": 0}, "frameskip"),
        ({"frameskip": (4, 4)}, "frameskip"),
        ({"frameskip": (2, 3, 4)}, "frameskip"),
        ({"frameskip": (2.5, 5)}, "frameskip"),
        ({"max_num_frames_per_episode": -1}, "max_num_frames_per_episode"),
        ({"max_num_frames_per_episode": 2**31}, "max_num_frames_per_episode"),
        ({"mode": 99}, "mode"),
        ({"difficulty": 9}, "difficulty"),
        ({"repeat_action_probability": 1.5}, "repeat_action_probability"),
        ({"render_mode": "ansi"}, "render_mode"),
    ):
        with pytest.raises(ValueError, match=what):
            gymnasium.make("headrace/Pong-v5", **options).unwrapped  # noqa: B018
    for name, value in (
        ("frameskip", 2.5), ("frameskip", "4"), ("difficulty", 1.0), ("max_num_frames_per_episode", 2.5), ("mode", "a"),
        ("full_action_space", "all"), ("continuous_action_threshold", "x"), ("repeat_action_probability", "x"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=f"^{name} is {value!r}, must be "):
            AtariEnv("pong", **{name: value})
    for frameskip in (np.int64(4), [2, 5]):  # a list as in JSON
        AtariEnv("pong", frameskip=frameskip)
    env = gymnasium.make("headrace/Pong-v5").unwrapped
    env.reset(seed=0)
    for action in (6, -1, 2**32 + 1):
        with pytest.raises(ValueError, match=r"is not in 0\.\.5"):
            env.step(action)
    for action in (1.0, np.float32(1), "1", None, [1]):
        with pytest.raises(TypeError, match="must be an integer"):
            env.step(action)
    mine, other = env.step(np.array(2)), env.step(np.uint8(2))
    assert mine[-1]["frame_number"] + 4 == other[-1]["frame_number"]
    with pytest.raises(ValueError, match=r"shape \(\), expected \(3,\)"):
        gymnasium.make("headrace/Pong-v5", continuous=True).unwrapped.step(2)


def test_out_of_turn():
    env = gymnasium.make("headrace/Pong-v5", render_mode="rgb_array").unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset"):
        env.step(0)
    env.reset(seed=0)
    env.close()
    env.close()
    for use in (env.reset, env.render, lambda: env.step(0), lambda: copy.deepcopy(env)):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="closed"):
            use()


@pytest.mark.parametrize("name", ["Pong", "Skiing"])
def test_action_meanings(name):
    for options in ({}, {"full_action_space": True}, {"continuous": True}):
        ours, theirs = (gymnasium.make(f"{family}/{name}-v5", **options).unwrapped for family in ("headrace", "ALE"))
        assert ours.get_action_meanings() == theirs.get_action_meanings()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("options", [{"frameskip": (2, 5)}, {"obs_type": "ram", "max_num_frames_per_episode": 300}])
def test_a_copy_goes_on_as_the_original_does(copied, options):
    env = gymnasium.make("headrace/Breakout-v5", repeat_action_probability=0.5, **options)
    env.reset(seed=3)
    env.action_space.seed(3)
    for _ in range(30):
        env.step(env.action_space.sample())
    other = copied(env)
    ends = 0
    for _ in range(400):
        action = env.action_space.sample()
        assert action == other.action_space.sample()
        mine = env.step(action)
        assert_same_step(mine, other.step(action))
        if mine[2] or mine[3]:
            ends += 1
            assert_same_step(env.reset(), other.reset())
    assert ends
    frames = other.step(0)[-1]["frame_number"]
    env.reset(seed=4)
    assert other.step(0)[-1]["frame_number"] > frames, "the copy has a console of its own"


def test_a_state_of_another_console_is_refused():
    env = gymnasium.make("headrace/Pong-v5").unwrapped
    with pytest.raises(ValueError, match="another version"):
        env.__setstate__(env.__getstate__() | {"_native": b"123"})

"""VizDoom: scenarios, actions, observations, limits, seeds, and that no engine outlives its process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import vizdoom
from gymnasium import spaces
from worlds import random_actions, reset_group, rows_for, step_group

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.contract import Categorical
from headrace.envs.core.errors import UnknownEnvironment
from headrace.envs.make import describe, make_env, make_group
from headrace.envs.vizdoom import game
from headrace.envs.vizdoom.actions import FULL_BUTTONS, combine, heads_for
from headrace.envs.vizdoom.env import VizdoomEnv
from headrace.envs.vizdoom.family import defaults, ids
from headrace.envs.vizdoom.game import EngineFailed, free_port
from headrace.envs.vizdoom.match import Match
from headrace.envs.vizdoom.player import SCALES, Player, Settings
from headrace.envs.vizdoom.shaping import PRESETS
from headrace.processes import orphaned_programs
from headrace.processes.leftovers import sweep

pytestmark = pytest.mark.process


def test_scenarios() -> None:
    assert {"basic", "health_gathering", "deadly_corridor", "deathmatch", "my_way_home", "freedoom2", "cig", "duel_bots"} <= set(
        ids()
    )
    assert not {"multi", "doom2"} & set(ids())


def test_seven_heads_of_table_a4() -> None:
    heads = heads_for(FULL_BUTTONS)
    names = ["moving", "strafing", "attack", "sprint", "interact", "weapon", "aim"]
    assert [(head.name, len(head.presses)) for head in heads] == list(zip(names, [3, 3, 2, 2, 2, 8, 21], strict=True))
    assert combine(heads) == heads
    aim = heads[-1].presses[:, FULL_BUTTONS.index("TURN_LEFT_RIGHT_DELTA")]
    assert (aim[0], aim[10], aim[-1]) == (-12.5, 0, 12.5)
    assert np.allclose(np.diff(aim), 1.25)
    spec = describe("vizdoom/basic", EnvConfig(kwargs={"buttons": "full"}))
    assert spec.action.parts == tuple(Categorical(n) for n in (3, 3, 2, 2, 2, 8, 21))


def test_fewer_angles_to_aim() -> None:
    (aim,) = heads_for(["TURN_LEFT_RIGHT_DELTA"], aim_degrees=10, aim_choices=11)
    assert aim.presses[:, 0].tolist() == [-10, -8, -6, -4, -2, 0, 2, 4, 6, 8, 10]
    with pytest.raises(ConfigError, match="aim_choices"):
        describe("vizdoom/basic", EnvConfig(kwargs={"aim_choices": 4}))


def test_few_buttons_make_one_choice() -> None:
    (head,) = combine(heads_for(["MOVE_LEFT", "MOVE_RIGHT", "ATTACK"]))
    assert sorted(head.presses.tolist()) == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1], [1, 0, 0], [1, 0, 1]]
    heads = heads_for(["MOVE_LEFT", "STRAFE", "TURN_LEFT", "TURN_RIGHT", "TURN_LEFT_RIGHT_DELTA", "JUMP", "LOOK_UP_DOWN_DELTA"])
    assert [head.name for head in heads] == ["strafing", "aim", "jump"]
    with pytest.raises(ValueError, match="no action can be formed"):
        heads_for(["STRAFE"])


@pytest.mark.parametrize("scenario", ["basic", "deathmatch"])
def test_a_short_run(scenario: str) -> None:
    group = make_group(f"vizdoom/{scenario}", EnvConfig(), 2)
    assert group.spec.frameskip == 4
    assert group.spec.observation["obs"].shape == (3, 72, 128)
    now, after = rows_for(group.spec, 2)
    reset_group(group, 0, after)
    assert after.obs["obs"].std() > 10
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(40):
        step_group(group, random_actions(group.spec, 2, rng), now, after)
        pictures.append(after.obs["obs"].copy())
        assert (after.obs["measurements"] >= 0).all()
    assert np.std(pictures, axis=0).max() > 10
    group.close()


def test_truncation_keeps_the_true_last_picture_and_the_engine_limit() -> None:
    """my_way_home ends after 2100 frames or at the goal; standing still never ends it earlier."""
    env = VizdoomEnv("my_way_home", EnvConfig(frameskip=160))
    env.reset(seed=1)
    for step in range(1, 15):
        _, reward, terminated, truncated, _ = env.step(0)
        assert not terminated
        assert truncated == (step == 14)  # 13 x 160 = 2080, then the 20 that are left
        assert env.game.get_state() is not None
    assert env.game.get_episode_time() - env._started == 2100
    assert reward == pytest.approx(-0.0001 * 20)
    env.close()


def test_killing_the_monster_terminates() -> None:
    env = VizdoomEnv("basic", EnvConfig())
    ends = set()
    for seed in range(6):
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)
        for _ in range(80):
            _, _, terminated, truncated, _ = env.step(int(rng.integers(6)))
            if terminated or truncated:
                ends.add("terminated" if terminated else "truncated")
                break
    env.close()
    assert "terminated" in ends


def test_seeds_decide_everything() -> None:
    def play(seed: int) -> np.ndarray:
        env = VizdoomEnv("health_gathering_supreme", EnvConfig())
        frames = [env.reset(seed=seed)[0]["obs"]]
        frames += [env.step(i % 6)[0]["obs"] for i in range(20)]
        frames.append(env.reset()[0]["obs"])
        env.close()
        return np.stack(frames)

    first = play(3)
    assert np.array_equal(first, play(3))
    assert not np.array_equal(first, play(4))


def test_measurements_are_scaled_variables() -> None:
    env = VizdoomEnv("deathmatch", EnvConfig())
    observation, _ = env.reset(seed=0)
    names = [variable.name for variable in env.game.get_available_game_variables()]
    raw = dict(zip(names, env.game.get_state().game_variables, strict=True))
    scaled = dict(zip(names, observation["measurements"], strict=True))
    assert raw["HEALTH"] == 100
    assert scaled["HEALTH"] == pytest.approx(100 / SCALES["HEALTH"][0])
    assert scaled["SELECTED_WEAPON"] == raw["SELECTED_WEAPON"]
    assert scaled["SELECTED_WEAPON_AMMO"] == pytest.approx(min(raw["SELECTED_WEAPON_AMMO"] / 15, 5))
    env.close()
    plain = VizdoomEnv("deathmatch", EnvConfig(kwargs={"measurements": False}, grayscale=True, resize=(60, 80)))
    assert plain.observation_space == spaces.Box(0, 255, (60, 80, 1), np.uint8)
    assert plain.reset(seed=0)[0].shape == (60, 80, 1)
    plain.close()


@pytest.mark.parametrize(("frameskip", "fps"), [(1, 35), (None, 35 / 4)])
def test_pictures_per_second_follow_the_frames_of_a_step(frameskip: int | None, fps: float) -> None:
    assert VizdoomEnv("basic", EnvConfig(frameskip=frameskip)).metadata["render_fps"] == fps
    assert Match("multi_duel", EnvConfig(frameskip=frameskip)).metadata["render_fps"] == fps


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")
def test_an_engine_has_its_core_once_for_each_frame() -> None:
    """Where its environment has the same core. Without the library that is preloaded it was twice: it signalled while it held the
    mutex that the environment takes next; and SDL had a socket for news of joysticks."""
    cores = os.sched_getaffinity(0)
    env = VizdoomEnv("basic", EnvConfig())
    try:
        os.sched_setaffinity(0, {min(cores)})
        env.reset(seed=0)
        (engine,) = (child.pid for child in psutil.Process().children(recursive=True) if child.name() == "vizdoom")

        def changes() -> int:
            lines = Path(f"/proc/{engine}/status").read_text().splitlines()
            return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

        before = changes()
        for _ in range(60):
            env.step(0)
        assert changes() - before < 1.6 * 4 * 60
        assert not [fd for fd in Path(f"/proc/{engine}/fd").iterdir() if os.readlink(fd).startswith("socket:")]
    finally:
        os.sched_setaffinity(0, cores)
        env.close()


def test_no_health_is_below_0() -> None:
    """The engine takes a million from the health of a player in whose place another one appears."""
    player = Player("deadly_corridor", EnvConfig(), Settings(variables=["HEALTH", "FRAGCOUNT"]))
    state = SimpleNamespace(screen_buffer=np.zeros((3, 120, 160), np.uint8), game_variables=np.array([-999900.0, -1.0]))
    player.game = SimpleNamespace(get_state=lambda: state)  # type: ignore[assignment]
    assert player.observe()["measurements"] == pytest.approx([0, -0.1])


@pytest.mark.parametrize(("name", "bots"), [("duel_bots", 1), ("deathmatch_bots", 7), ("deathmatch_bots", 0)])
def test_a_game_with_bots_begins_when_all_have_entered(name: str, bots: int) -> None:
    """In the first frame a bot may appear in the place of the player, who dies, and a level's script sets the health."""
    env = VizdoomEnv(name, EnvConfig(kwargs={"bots": bots}))
    for episode in range(5):
        env.reset(seed=1 if episode == 0 else None)
        before = [env.player.value(variable) for variable in ("DEATHCOUNT", "DEAD", "HEALTH")]
        assert env.player.value("PLAYER_COUNT") == bots + 1
        assert env.step(env.action_space.sample())[1] > -0.1
        assert [env.player.value(variable) for variable in ("DEATHCOUNT", "DEAD", "HEALTH")] == before
    env.close()


@pytest.mark.parametrize("name", [pytest.param("cig", marks=pytest.mark.slow), "deathmatch_bots", "duel_bots"])
def test_a_level_of_bots_without_bots(name: str) -> None:
    env = VizdoomEnv(name, EnvConfig(kwargs={"bots": 0, "episode_timeout": 80}))
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    for step in range(20):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        assert not terminated
        assert truncated == (step == 19)
    assert env.player.value("PLAYER_COUNT") == 1
    env.reset()
    env.close()


@pytest.mark.parametrize(
    ("name", "bots"), [pytest.param("cig", 7, marks=pytest.mark.slow), ("deathmatch_bots", 7), ("duel_bots", 1)]
)
def test_bots_play_and_the_dead_come_back(name: str, bots: int) -> None:
    env = VizdoomEnv(name, EnvConfig(frameskip=8, kwargs={"episode_timeout": 800}))
    observation, _ = env.reset(seed=2)
    assert env.observation_space.contains(observation)
    for _ in range(2):
        deaths, players = env.player.value("DEATHCOUNT"), []
        for step in range(100):
            observation, _, terminated, truncated, info = env.step(env.action_space.sample())
            players.append(env.player.value("PLAYER_COUNT"))
            assert not terminated
            assert truncated == (step == 99)
        assert set(players[5:]) == {bots + 1}
        assert env.observation_space.contains(observation)
        # the engine goes on counting deaths when an episode begins, but not frags
        frags = env.player.value("FRAGCOUNT")
        assert info == {"frags": frags, "deaths": env.player.value("DEATHCOUNT") - deaths, "true_objective": frags}
        env.reset()
        assert env.player.value("FRAGCOUNT") == 0
    env.close()


def test_full_measurements_and_shaped_rewards() -> None:
    env = VizdoomEnv(
        "basic", EnvConfig(kwargs={"variables": "full", "buttons": "full", "shaping": {"scenario": 0, "ammo_lost": 2}})
    )
    observation, _ = env.reset(seed=0)
    assert observation["measurements"].shape == (24,)
    attack = (0, 0, 1, 0, 0, 0, 10)
    rewards = [env.step(attack)[1] for _ in range(4)]
    assert sum(rewards) == 2 * (1 + 5)  # one shot of the pistol; the weapon of slot 4 has the same ammunition
    env.set_shaping({"scenario": 0.5})
    reward = env.step((0, 0, 0, 0, 0, 0, 10))[1]
    assert reward == pytest.approx(0.5 * env.game.get_last_reward())
    assert reward < 0
    env.close()


def test_the_true_objective_is_the_reward_of_the_scenario() -> None:
    plain = VizdoomEnv("basic", EnvConfig())
    shaped = VizdoomEnv("basic", EnvConfig(kwargs={"shaping": {"scenario": 0, "ammo_lost": 2}}))
    for seed in range(2):
        gained, infos = 0.0, []
        for env in (plain, shaped):
            env.reset(seed=seed)
            ended = False
            while not ended:
                _, reward, terminated, truncated, info = env.step(1)
                ended = terminated or truncated
                gained += reward if env is plain else 0
                assert not info or ended
            infos.append(info)
        assert infos == [{"true_objective": gained}] * 2
    plain.close()
    shaped.close()


def test_a_limit_of_steps_ends_with_the_score_too() -> None:
    env = make_env("vizdoom/duel_bots", EnvConfig(max_episode_steps=3))
    for _ in range(2):
        env.reset(seed=0)
        infos = [env.step(env.action_space.sample())[-1] for _ in range(3)]
        assert [set(info) & {"frags", "true_objective"} for info in infos] == [set(), set(), {"frags", "true_objective"}]
    env.close()


def test_ports_in_use_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    taken.bind(("", 0))
    ports = [taken.getsockname()[1], free_port()]
    monkeypatch.setattr("headrace.envs.vizdoom.game.secrets.choice", lambda _: ports.pop(0))
    free = ports[1]
    assert free_port() == free
    taken.close()


@pytest.mark.parametrize("scenario", ["basic", "duel_bots"])
def test_an_engine_that_ends_while_it_starts_is_an_error(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the end of this process, as the library would have it."""
    env = VizdoomEnv(scenario, EnvConfig())
    env.set_reward_weights({"death": -3.0})
    with monkeypatch.context() as patch:
        patch.setattr(game, "ENGINE", "/bin/false")
        with pytest.raises(EngineFailed, match="ended while it was starting"):
            env.reset(seed=0)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert env.player.shaping is not None
    assert env.player.shaping.weights["death"] == -3.0
    env.close()


def test_a_users_own_scenario(tmp_path: Path) -> None:
    shutil.copy(Path(vizdoom.scenarios_path) / "basic.wad", tmp_path)
    (tmp_path / "mine.cfg").write_text(
        "doom_scenario_path = basic.wad\n"
        "available_buttons = { ATTACK TURN_LEFT_RIGHT_DELTA }\navailable_game_variables = { HEALTH AMMO2 }\n"
        "episode_timeout = 40\nepisode_start_time = 14\nliving_reward = 2\n"
    )
    name = f"vizdoom/{tmp_path}/mine.cfg"
    group = make_group(name, EnvConfig(kwargs={"living_reward": 3}), 1)
    assert group.spec.action.parts == (Categorical(2), Categorical(21))
    assert group.spec.observation["measurements"].shape == (2,)
    now, after = rows_for(group.spec, 1)
    reset_group(group, 0, after)
    for step in range(1, 11):
        step_group(group, np.array([[0, 10]], np.int32), now, after)
        assert now.truncated[0] == (step == 10)
    assert now.episode_return[0] == 3 * 40
    group.close()
    with pytest.raises(UnknownEnvironment, match="there is no file"):
        describe(f"vizdoom/{tmp_path}/other.cfg", EnvConfig())
    with pytest.raises(ConfigError, match="JUMPP"):
        describe(name, EnvConfig(kwargs={"buttons": ["JUMPP"]}))


def test_mistakes_in_a_users_own_scenario(tmp_path: Path) -> None:
    """They are told before a run starts, in one sentence."""
    mine = tmp_path / "mine.cfg"
    mine.write_text("doom_scenario_path = lost.wad\navailable_buttons = { ATTACK }\n")
    with pytest.raises(ConfigError, match="there is no such file"):
        describe(f"vizdoom/{mine}", EnvConfig())
    shutil.copy(Path(vizdoom.scenarios_path) / "basic.wad", tmp_path / "lost.wad")
    describe(f"vizdoom/{mine}", EnvConfig())
    mine.write_text("doom_scenario_path = lost.wad\navailable_buttons = { ATTACC }\n")
    with pytest.raises(ConfigError, match="available_buttons"):
        describe(f"vizdoom/{mine}", EnvConfig())


@pytest.mark.parametrize(("kwargs", "frames"), [({}, 0), ({"bots": 1}, 8400), ({"players": 2}, 8400)])
def test_games_of_several_end_although_the_file_has_no_limit(kwargs: dict[str, int], frames: int, tmp_path: Path) -> None:
    """In these nothing but a limit ends a match."""
    shutil.copy(Path(vizdoom.scenarios_path) / "multi_duel.wad", tmp_path)
    mine = tmp_path / "mine.cfg"
    mine.write_text("doom_scenario_path = multi_duel.wad\navailable_buttons = { ATTACK }\n")
    options = EnvConfig(kwargs=kwargs)
    assert Player(str(mine), options, Settings.of(str(mine), options)).limit == frames


@pytest.mark.parametrize(("name", "weights"), [("duel_bots", "bots"), ("multi_duel", "self_play"), ("multi_cig", "self_play")])
def test_default_rewards_of_bots_and_of_matches(name: str, weights: str) -> None:
    assert defaults(name)["envs.kwargs"] == {"shaping": PRESETS[weights]}


def test_the_working_directory_stays_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doom writes its settings (_vizdoom.ini) and a folder _vizdoom wherever it is started, unless it is told where else."""
    monkeypatch.chdir(tmp_path)
    VizdoomEnv("basic", EnvConfig()).close()
    env = VizdoomEnv("basic", EnvConfig())
    env.reset(seed=0)
    env.step(0)
    env.close()
    assert not list(tmp_path.iterdir())


def _engines(folder: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if any(str(folder) in part for part in p.info["cmdline"] or [])]


def _shared_memory(instances: list[str]) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.endswith(tuple(instances))]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")
@pytest.mark.parametrize("end", ["killed", "killed with its programs", "killed with everything", "by itself"])
def test_nothing_outlives_the_process(end: str, tmp_path: Path) -> None:
    """The supervisor of a run looks for programs of its processes that have ended, and kills them. What is left where everything
    was killed at once is removed by the next run."""
    code = (
        "import sys; from headrace.config import EnvConfig; from headrace.envs.vizdoom.env import VizdoomEnv\n"
        "envs = [VizdoomEnv('basic', EnvConfig()) for _ in range(2)]\n"
        "[env.reset(seed=0) for env in envs]; print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path), orphaned_programs.STARTED_BY: f"test-{tmp_path}:1"},
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"ready\n"
    (folder,) = tmp_path.glob("headrace-vizdoom-*")
    engines = [p for p in _engines(folder) if p.cmdline()[0] == game.ENGINE]
    assert len(engines) == 2
    instances = [p.cmdline()[p.cmdline().index("+viz_instance_id") + 1] for p in engines]
    assert len(_shared_memory(instances)) == 6
    if end == "killed with everything":
        (watcher,) = (p for p in psutil.Process(child.pid).children() if p.cmdline()[:2] == ["sh", "-c"])
        watcher.kill()
    child.stdin.close() if end == "by itself" else child.kill()
    if end.startswith("killed with"):
        orphaned_programs.end_programs(f"test-{tmp_path}")
    child.wait(60)
    if end == "killed with everything":
        assert folder.exists()
        sweep(str(tmp_path))
    deadline = time.monotonic() + 60  # the watcher shares the processor with whatever else runs
    while time.monotonic() < deadline and (_engines(folder) or folder.exists()):
        time.sleep(0.05)
    assert not _engines(folder)
    assert not [e for e in engines if e.is_running() and e.status() != psutil.STATUS_ZOMBIE]
    assert not list(tmp_path.iterdir())
    assert not _shared_memory(instances)


def test_ctrl_c_leaves_the_engine_to_its_owner(tmp_path: Path) -> None:
    """Ctrl-C goes to the whole process group; the engine must be there for the worker's clean stop."""
    code = (
        "from headrace.config import EnvConfig; from headrace.envs.vizdoom.env import VizdoomEnv\n"
        "import signal\n"
        "env = VizdoomEnv('basic', EnvConfig()); env.reset(seed=0)\n"
        "stop = []; signal.signal(signal.SIGINT, lambda *_: stop.append(1)); print('ready', flush=True)\n"
        "steps = 0\n"
        "while len(stop) == 0 or steps < 5:\n"
        "    _, _, a, b, _ = env.step(0)\n"
        "    steps += bool(stop)\n"
        "    if a or b: env.reset()\n"
        "env.close(); print('clean', flush=True)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tmp_path, start_new_session=True)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    time.sleep(0.3)
    os.killpg(child.pid, signal.SIGINT)
    assert child.stdout.read() == b"clean\n"
    assert child.wait(60) == 0

"""Multi-agent environments at a server: the rows of every lane, matches whose server is lost, and whole runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting_match import AGENTS, CountingMatch, action_of, check_ledger, read_ledger
from remote_servers import NAME, ServerProcess, finish, free_port, offer, serving, wait_until

from headrace import config as configs
from headrace.config import Config, ConfigError, EnvConfig
from headrace.envs import make
from headrace.envs.core.contract import EnvGroup, LaneRow, ObsRow, StepRow
from headrace.envs.groups.multi_agent import multi_agent_group
from headrace.envs.remote.group import RemoteGroup
from headrace.evaluation.evaluate import evaluate
from headrace.runs.metrics import read_jsonl
from headrace.train import train

WORLD = str(Path(__file__).parents[2] / "sampling" / "counting_match.py")
pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]
M, A = 3, len(AGENTS)


def matches(num_envs: int, training: bool = True, make: Any = CountingMatch) -> EnvGroup:
    """Matches in this process."""
    return multi_agent_group(make, EnvConfig(), num_envs, NAME)


class Player:
    """Plays a group's matches as a rollout worker does: a row of its own for every step of every lane."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.before = [LaneRow(None, StepRow.zeros(1), self._obs()) for _ in range(M * A)]
        self.rows: list[list[LaneRow]] = [[] for _ in range(M * A)]
        self.ended: list[list[Any]] = []
        group.reset(40, [row.after for row in self.before])
        self.finish()

    def _obs(self) -> ObsRow:
        return ObsRow({"obs": np.full((1, 8), 77, np.float32)}, np.ones(1, bool), np.ones(1, bool))

    def row(self, lane: int) -> LaneRow:
        """The one that the lane's next step writes to."""
        return self.rows[lane][-1] if self.rows[lane] else self.before[lane]

    def begin(self) -> None:
        """Begin a step."""
        self.group.send([self.row(lane) for lane in range(M * A)])

    def finish(self) -> None:
        """Wait for it, and act on the new observations."""
        finish(self.group)
        for lane in self.group.advanced:
            world, match, agent, _, _, tick, _, _ = self.row(lane).after.obs["obs"][0].astype(int)
            actions = np.full((1, 1), action_of(world, match, agent, tick), np.int32)
            self.rows[lane].append(LaneRow(actions, StepRow.zeros(1), self._obs()))
        self.ended += [[m, self.group.outcomes(m).tolist()] for m in self.group.ended]

    def step(self) -> None:
        """One step."""
        self.begin()
        self.finish()

    def story(self) -> list[Any]:
        """Everything that was written."""
        told: list[Any] = [list(self.ended)]
        for lane in range(M * A):
            for row in [self.before[lane], *self.rows[lane]][:-1]:
                now, after = row.step, row.after
                told.append([lane, *(x[0].item() for x in (now.reward, now.terminated, now.truncated, now.episode_length))])
                told.append([after.obs["obs"][0].tolist(), after.first[0].item(), after.valid[0].item()])
                told.append(repr(now.episode_return[0].item()))
        return told


def remote(address: str) -> RemoteGroup:
    return RemoteGroup(address, NAME, EnvConfig(), M)


def test_rows_are_those_of_a_local_group() -> None:
    with serving(offer(matches)) as address:
        group = remote(address)
        here, there = Player(matches(M)), Player(group)
        for _ in range(60):
            here.step()
            there.step()
            assert there.group.advanced == sorted(here.group.advanced)
        assert there.story() == here.story()
        assert len(here.ended) > 5
        assert group.spec == here.group.spec
        assert (group.lanes, group.lane_size) == (M * A, 1)
        group.close()


def test_an_agent_that_waits_for_its_turn_keeps_its_row() -> None:
    """Also where a step's reply has something for every lane."""
    with serving(offer(matches)) as address:
        player = Player(remote(address))
        waiting = [lane for lane in range(M * A) if lane not in player.group.advanced]
        assert waiting
        assert all((player.before[lane].after.obs["obs"] == 77).all() for lane in waiting)
        player.group.close()


@pytest.mark.parametrize("when", ["between steps", "in a step"])
def test_a_lost_server_ends_all_matches_without_an_outcome(when: str) -> None:
    gate = threading.Event()
    gate.set()

    class Gated(CountingMatch):
        def step(self, actions: Any) -> Any:
            gate.wait(10)
            return super().step(actions)

    port = free_port()
    with serving(offer(lambda n, training=True: matches(n, make=Gated)), port=port) as address:
        group = remote(address)
        player = Player(group)
        for _ in range(3):
            player.step()
        playing = [lane for lane in range(M * A) if player.rows[lane] and _newest(player, lane).valid[0]]
        waiting = [lane for lane in playing if lane not in group.advanced]
        assert waiting, "some have acted and wait for their turn"
        last = {lane: _newest(player, lane).obs["obs"].copy() for lane in playing}
        counts = [len(rows) for rows in player.rows]
        if when == "in a step":
            gate.clear()
            player.begin()
    gate.set()
    if when == "between steps":
        wait_until(lambda: any(event[0] == "down" for event in group._events))
        player.begin()
    ended = len(player.ended)
    player.finish()
    assert group.advanced == playing
    for lane in playing:
        row = player.rows[lane][counts[lane] - 1]
        assert (row.step.reward[0], row.step.terminated[0], row.step.truncated[0]) == (0, False, True)
        assert np.isnan(row.step.episode_return[0])
        assert (row.after.first[0], row.after.valid[0]) == (False, False)
        np.testing.assert_array_equal(row.after.obs["obs"], last[lane])
    assert [m for m, _ in player.ended[ended:]] == list(range(M))
    assert np.isnan([outcome for _, outcome in player.ended[ended:]]).all()
    with serving(offer(matches), port=port):
        for _ in range(20):
            player.step()
        assert len(player.ended) > ended + M
        assert np.isfinite([outcome for _, outcome in player.ended[ended + M :]]).all()
    group.close()


def _newest(player: Player, lane: int) -> ObsRow:
    rows = player.rows[lane]
    return rows[-2].after if len(rows) > 1 else player.before[lane].after


def config(folder: Path, remote: str, **settings: Any) -> Config:
    """A run of three policies by `counting_match.py` that learn from matches at a server."""
    (folder / "ledger").mkdir()
    values = {
        "envs.num_agents": A, "envs.kwargs": {"ledger": str(folder / "ledger")}, "envs.remote": remote,
        "matches.matchmaker": "by-formula", "population.size": 3, "run.folder": str(folder / "run"), "run.dashboard": False,
        "run.video": False, "run.log_interval": 0.2, "sampling.num_workers": 2, "sampling.envs_per_worker": 4,
        "sampling.num_groups": 2, "sampling.rollout": 5, "learning.batch_size": 40, "learning.total_steps": 400,
        "learning.algorithm": "counting-matches", "learning.device": "cpu", "learning.num_threads": 1,
    }  # fmt: skip
    return configs.override(Config(env="counting-match", imports=(WORLD,)), **{**values, **settings})


def server(folder: Path, step_seconds: float = 0.0) -> ServerProcess:
    kwargs = {"ledger": str(folder / "ledger")} | ({"step_seconds": step_seconds} if step_seconds else {})
    flags = ["--import", WORLD, "--num-envs", "16", "--envs.num-agents", str(A), "--envs.kwargs", json.dumps(kwargs)]
    return ServerProcess(*flags, env="counting-match")


@pytest.mark.parametrize(
    "placement", ["serial", pytest.param("inline", marks=pytest.mark.slow), pytest.param("served", marks=pytest.mark.slow)]
)
def test_every_sample_is_learned_from_once_by_the_policy_that_acted(
    tmp_path: Path, placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the groups are at the server, half in the workers."""
    made = server(tmp_path)
    try:
        made.start(tmp_path / "server.log")
        result = train(config(tmp_path, f"{made.address},local", **{"sampling.placement": placement}))
        assert result.reason == "total_steps"
        assert check_ledger(tmp_path / "ledger", 3) == result.global_step
        for p in range(3):
            assert read_jsonl(tmp_path / "run" / f"policy-{p}" / "metrics.jsonl")[-1].get("sampling/faults", 0) == 0
        if placement == "serial":
            monkeypatch.setattr(make, "is_known", lambda env_id: False)
            with pytest.raises(ConfigError, match="install the packages of counting-match"):
                evaluate(tmp_path / "run", 2, imports=[WORLD])
    finally:
        made.kill()


@pytest.mark.slow
def test_a_killed_server_of_matches_comes_back(tmp_path: Path) -> None:
    """Nothing is learned from twice, and what is lost is only what was under way."""
    made = server(tmp_path, 0.002)
    settings = {"envs.kwargs": {"ledger": str(tmp_path / "ledger"), "step_seconds": 0.002}, "learning.total_steps": 15_000}
    settings["matches.matchmaker"] = "fixed"  # the matches of a new server are counted from 0
    log = tmp_path / "server.log"

    restarts: list[int] = []

    def restart() -> None:
        for number in range(2):
            wait_until(lambda: any(tmp_path.glob("ledger/*")), 200)  # a start takes a minute on a busy machine
            threading.Event().wait(3)
            made.kill()
            made.start(log)
            restarts.append(number)

    try:
        made.start(log)
        thread = threading.Thread(target=restart, daemon=True)
        thread.start()
        result = train(config(tmp_path, made.address, **settings))
        thread.join(60)
        assert result.reason == "total_steps"
        assert len(restarts) == 2
        samples = read_ledger(tmp_path / "ledger")
        assert all(len(set(rows)) == len(rows) for rows in samples.values())
        lives = {(life, world) for _, life, world, _ in samples}
        assert len(lives) > 8, "worlds were begun anew after the restart"
    finally:
        made.kill()

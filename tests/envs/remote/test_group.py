"""Groups at a server: the same rows as a local group, and what happens to them when the server is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from remote_servers import (
    NAME,
    Stepper,
    counting,
    finish,
    free_port,
    messages_of,
    offer,
    remote_group,
    serving,
    wait_until,
)
from worlds import BadEnv, CountingEnv, local_group

from headrace.config import ConfigError, EnvConfig
from headrace.envs.core.contract import EnvGroup, LaneRow
from headrace.envs.core.errors import EnvironmentFault, TooFewFree
from headrace.envs.groups.vector import VectorGroup
from headrace.envs.remote import protocol, session
from headrace.envs.remote.group import RemoteGroup
from headrace.envs.remote.server import EnvServer
from headrace.envs.remote.session import Session
from headrace.transport import streams
from headrace.transport.credentials import Credentials
from headrace.transport.messages import Refused

pytestmark = pytest.mark.timeout(240)


def same_step(num_envs: int, training: bool = True) -> EnvGroup:
    return VectorGroup(
        SyncVectorEnv([CountingEnv] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP), EnvConfig(), "test/counting"
    )


def arrays(row: LaneRow) -> list[np.ndarray]:
    step, after = row.step, row.after
    made = [step.reward, step.terminated, step.truncated, step.episode_return, step.episode_length, after.first, after.valid]
    ended = step.terminated | step.truncated
    return [*made, *after.obs.values(), *(array[ended] for array in step.final_obs.values())]


@pytest.mark.parametrize("make", [counting, same_step])
def test_rows_are_those_of_a_local_group(make) -> None:  # type: ignore[no-untyped-def]
    here = make(5)
    with serving(offer(make)) as address:
        there = remote_group(address)
        local, remote = Stepper(here, here, 20), Stepper(there, here, 20)
        first, other = local.reset(), remote.reset()
        np.testing.assert_array_equal(first.obs["obs"], other.obs["obs"])
        assert other.first.all()
        assert other.valid.all()
        for _ in range(60):
            for expected, found in zip(arrays(local.step()), arrays(remote.step()), strict=True):
                np.testing.assert_array_equal(expected, found)
        assert there.spec == here.spec
        there.close()


def test_rewards_come_raw_and_are_scaled_and_clipped_as_the_trainer_says() -> None:
    """So that a server needs no other flags for an algorithm that learns from other rewards."""
    here = counting(3)
    with serving() as address:
        there = remote_group(address, 3, reward_scale=-0.0078125, reward_clip=1.5)
        local, remote = Stepper(here, here, 20), Stepper(there, here, 20)
        local.reset(), remote.reset()
        learned = []
        for _ in range(40):
            raw, row = local.step().step, remote.step().step
            np.testing.assert_array_equal(row.reward, np.clip(-0.0078125 * raw.reward, -1.5, 1.5).astype(np.float32))
            np.testing.assert_array_equal(row.episode_return, raw.episode_return)  # of the game, as it is
            learned.append(row.reward.copy())
        assert len(np.unique(learned)) > 2, "there are clipped rewards and others"
        there.close()


def test_recv_never_waits_and_wake_is_called() -> None:
    gate = threading.Event()

    class Slow(CountingEnv):
        def step(self, action):  # type: ignore[no-untyped-def]
            gate.wait(60)
            return super().step(action)

    def make(num_envs: int, training: bool) -> EnvGroup:
        return local_group([Slow() for _ in range(num_envs)], name="test/counting")

    with serving(offer(make)) as address:
        group = remote_group(address)
        stepper = Stepper(group, counting(1))
        stepper.reset()
        woken = threading.Event()
        group.notify(woken.set)
        woken.clear()
        stepper.begin_step()
        assert not group.recv()  # or this would be after a minute, and true
        gate.set()
        assert woken.wait(60)
        finish(group)
        group.close()


@pytest.mark.parametrize("way", ["raises", "nan observation"])
def test_a_fault_of_the_environment_is_told_with_its_frames(way: str) -> None:
    def make(num_envs: int, training: bool) -> EnvGroup:
        return local_group([BadEnv(way) for _ in range(num_envs)], name="test/counting")

    with serving(offer(make)) as address:
        group = remote_group(address, 2)
        stepper = Stepper(group, counting(1), 7)
        stepper.reset()
        stepper.step()
        stepper.step()
        with pytest.raises(EnvironmentFault, match=rf"environment 0 \(seed 7\), game 1, step 3.*server {address}") as raised:
            stepper.step()
        assert ("from inside the environment" in str(raised.value)) == (way == "raises")
        assert ("worlds.py" in raised.value.frames) == (way == "raises")
        group.close()


# -- when the server is lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [counting, same_step])
@pytest.mark.parametrize("when", ["between steps", "in a step"])
def test_a_lost_server_ends_the_episode_as_truncated(make, when: str) -> None:  # type: ignore[no-untyped-def]
    gate = threading.Event()
    gate.set()

    class Gated(CountingEnv):
        def step(self, action):  # type: ignore[no-untyped-def]
            gate.wait(10)
            return super().step(action)

    def gated(num_envs: int, training: bool = True) -> EnvGroup:
        if make is counting:
            return local_group([Gated() for _ in range(num_envs)], name="test/counting")
        envs = SyncVectorEnv([Gated] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        return VectorGroup(envs, EnvConfig(), "test/counting")

    port = free_port()
    with serving(offer(gated), port=port) as address:
        group = remote_group(address)
        stepper = Stepper(group, make(1), 20)
        stepper.reset()
        for _ in range(4):
            stepper.step()
        last, last_valid = stepper.after.obs["obs"].copy(), stepper.after.valid.copy()
        if when == "in a step":
            gate.clear()
            row = stepper.begin_step()
    gate.set()
    if when == "between steps":
        wait_until(lambda: any(event[0] == "down" for event in group._events))
        row = stepper.begin_step()
    if make is counting:
        finish(group)
        assert not row.after.valid.any()
        assert not row.after.first.any()
        np.testing.assert_array_equal(row.after.obs["obs"], last)
        following = stepper.begin_step()
        time.sleep(0.3)
        assert not group.recv(), "it waits for the server"
    else:
        time.sleep(0.3)
        assert not group.recv(), "it waits for the server"
    with serving(offer(make), port=port):
        finish(group)
        assert not row.step.reward.any()
        assert not row.step.terminated.any()
        np.testing.assert_array_equal(row.step.truncated, last_valid)
        assert np.isnan(row.step.episode_return).all()
        assert not row.step.episode_length.any()
        if make is same_step:
            np.testing.assert_array_equal(row.step.final_obs["obs"], last)
            following = row
        else:
            assert not following.step.truncated.any()
            assert not following.step.reward.any()
        assert following.after.first.all()
        assert following.after.valid.all()
        assert (following.after.obs["obs"][:, 2] == 0).all(), "the first observation of an episode"
        assert (following.after.obs["obs"][:, 0] != np.arange(20, 25)).all(), "not the same episode once more"
        for _ in range(10):
            stepper.step()
        group.close()


def test_a_group_without_a_server_waits_and_says_why() -> None:
    port = free_port()
    group = remote_group(f"127.0.0.1:{port}")
    stepper = Stepper(group, counting(1))
    stepper.begin_reset()
    (text,) = messages_of(group, "Connection refused")
    assert f"127.0.0.1:{port}" in text
    assert not group.recv()
    with serving(port=port) as address:
        assert f"{address} is back" in " ".join(messages_of(group, "is back"))
        finish(group)
        stepper.step()
    group.close()


def test_refusals_are_told_and_asked_again() -> None:
    with serving(offer(num_envs=8)) as address:
        big = remote_group(address, 6)
        Stepper(big, counting(1)).reset()
        late = remote_group(address, 5)
        Stepper(late, counting(1)).begin_reset()
        (text,) = messages_of(late, "are free")
        assert "5 environments are asked for, and 2 of 8 are free" in text
        big.close()
        finish(late)
        late.close()
        other = remote_group(address, 2, frameskip=3, max_episode_steps=9, reward_weights={"part": 2.0})
        (text,) = messages_of(other, "differ")
        assert "envs.frameskip is 3 for the trainer and null at the server; envs.max_episode_steps is 9" in text
        assert 'envs.reward_weights is {"part": 2.0} for the trainer and {} at the server' in text
        other.close()


def test_an_evaluation_that_is_refused_does_not_wait_for_ever() -> None:
    def evaluating(num_envs: int, **settings: Any) -> RemoteGroup:
        return RemoteGroup(address, NAME, EnvConfig(**settings), num_envs, training=False)

    with serving(offer(num_envs=8)) as address:
        with closing(evaluating(2, max_episode_steps=9)) as other, pytest.raises(ConfigError, match="max_episode_steps is 9 for"):
            _ = other.spec
        with closing(evaluating(6)) as first:
            assert first.spec == counting(1).spec
            with closing(evaluating(5)) as late, pytest.raises(TooFewFree, match="are asked for, and 2 of 8 are free") as refused:
                _ = late.spec
            assert refused.value.free == 2
        with closing(evaluating(8)) as next:
            assert next.spec, "environments of a group that was just closed are waited for"


def test_an_evaluation_tells_why_it_waits() -> None:
    port = free_port()
    group = RemoteGroup(f"127.0.0.1:{port}", NAME, EnvConfig(), 2, training=False)
    server: list[EnvServer] = []

    def listen() -> None:
        server.append(EnvServer(offer(), f"127.0.0.1:{port}", Credentials()))

    starts = threading.Timer(1.5, listen)
    starts.start()
    with closing(group), pytest.warns(UserWarning, match="Connection refused"):
        assert group.spec
    server[0].stop(0)


@pytest.mark.parametrize("known", ["of the run", "of the server before"])
def test_a_server_with_other_actions_is_refused(known: str) -> None:
    """As one with another version of the environment's package may be. Actions of both look the same on the wire."""

    def fewer(num_envs: int, training: bool = True) -> EnvGroup:
        return local_group([CountingEnv(2) for _ in range(num_envs)], name=NAME)

    port = free_port()
    spec = counting(1).spec if known == "of the run" else None
    group = RemoteGroup(f"127.0.0.1:{port}", NAME, EnvConfig(), 5, spec=spec)
    stepper = Stepper(group, counting(1))
    if spec is None:
        with serving(port=port):
            stepper.reset()
    else:
        stepper.begin_reset()
    with serving(offer(fewer), port=port):
        if spec is None:
            stepper.begin_step()  # cut, and the next one waits for a server
            finish(group)
            stepper.begin_step()
        texts = messages_of(group, "other actions")
        assert "has other actions than the run: (Categorical(n=2),) instead of (Categorical(n=5),)" in texts[-1]
        assert not group.recv()
    with serving(port=port):
        finish(group)
        assert stepper.after.first.all()
    group.close()


def test_a_wrong_token_gets_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "not-the-same")
    with serving(own=Credentials("the-token-of-the-server")) as address:
        wrong = remote_group(address)
        Stepper(wrong, counting(1)).begin_reset()
        (text,) = messages_of(wrong, "token")
        assert "the-token" not in text
        assert not wrong.recv()
        wrong.close()
        monkeypatch.setenv("HEADRACE_TOKEN", "the-token-of-the-server")
        right = remote_group(address)
        Stepper(right, counting(1)).reset()
        right.close()


def test_another_version_is_refused_by_name() -> None:
    answers = Session(offer()).answers(iter([protocol.Hello(NAME, 5, protocol=99).to_bytes()]))
    with pytest.raises(Refused, match=f"version {protocol.PROTOCOL} of the protocol, the trainer version 99"):
        protocol.Welcome.from_bytes(next(answers))


def test_a_server_that_does_not_answer_is_given_up_and_dialled_again() -> None:
    hang = threading.Event()
    once = [True]

    class Hangs(CountingEnv):
        def step(self, action):  # type: ignore[no-untyped-def]
            if once.pop() if once else False:
                hang.wait(10)
            return super().step(action)

    def make(num_envs: int, training: bool) -> EnvGroup:
        return local_group([Hangs() for _ in range(num_envs)], name="test/counting")

    with serving(offer(make)) as address:
        group = remote_group(address, remote_timeout=1.0)
        stepper = Stepper(group, counting(1))
        stepper.reset()
        row = stepper.begin_step()
        assert any("no answer for 1 s" in text for text in messages_of(group, "no answer"))
        finish(group)
        assert row.step.truncated.all()
        stepper.step()
        hang.set()
        group.close()


@pytest.mark.parametrize("how", ["waits", "loops"])
def test_environments_that_hang_are_replaced_when_their_run_has_gone(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LONGEST_STEP_ALONE", 0.2)
    hung, go_on, ended, told = threading.Event(), threading.Event(), threading.Event(), []

    class Hangs(CountingEnv):
        def step(self, action):  # type: ignore[no-untyped-def]
            if not hung.is_set():
                hung.set()
                try:
                    while how == "loops" or not go_on.wait(20):
                        pass
                finally:
                    ended.set()
            return super().step(action)

    def make(num_envs: int, training: bool) -> EnvGroup:
        return local_group([Hangs() for _ in range(num_envs)], name=NAME)

    made = offer(make, num_envs=2)
    server = EnvServer(made, "127.0.0.1:0", Credentials(), report=told.append)
    first = remote_group(f"127.0.0.1:{server.port}", 2)
    stepper = Stepper(first, counting(1))
    stepper.reset()
    stepper.begin_step()
    assert hung.wait(60)
    assert made.used == 2
    first.close()
    wait_until(lambda: told)
    assert made.used == 0
    assert "in step" in told[0]
    assert f"{NAME} still does this 0.2 s after its run has gone: 2 environments are given up" in told[0]
    second = remote_group(f"127.0.0.1:{server.port}", 2)
    stepper = Stepper(second, counting(1))
    stepper.reset()
    stepper.step()
    if how == "waits":
        go_on.set()
    assert ended.wait(60), "a loop in Python is ended"
    assert made.used == 2
    second.close()
    server.stop(0)


@pytest.mark.parametrize("kind", ["interrupt", "unprintable", "exit"])
def test_whatever_an_environment_raises_is_shown(kind: str) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    class OfItsOwn(BaseException):
        """What nobody expects."""

    class Raises(CountingEnv):
        def step(self, action):  # type: ignore[no-untyped-def]
            raise {"interrupt": KeyboardInterrupt, "unprintable": Unprintable, "exit": OfItsOwn}[kind]()

    with serving(offer(lambda n, _: local_group([Raises() for _ in range(n)], name=NAME))) as address:
        group = remote_group(address, 2)
        stepper = Stepper(group, counting(1), seed=7)
        stepper.reset()
        stepper.begin_step()
        with pytest.raises(EnvironmentFault, match=rf"{NAME}.*seed.*step 1.*at the environment server {address}") as raised:
            finish(group)
        assert "test_group.py" in raised.value.frames
        group.close()


def test_a_stream_on_which_nothing_happens_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sides ask each other whether they are there, which a server must not take for an attack: learners pause for minutes."""
    monkeypatch.setattr(streams, "KEEPALIVE", 1.0)
    with serving() as address:
        group = remote_group(address)
        stepper = Stepper(group, counting(1))
        stepper.reset()
        time.sleep(6)
        assert not stepper.step().step.truncated.any()
        group.close()


def test_closing_frees_the_environments() -> None:
    made = offer(num_envs=5)
    with serving(made) as address:
        for _ in range(3):
            group = remote_group(address)
            Stepper(group, counting(1)).reset()
            assert made.used == 5
            group.close()
            wait_until(lambda: made.used == 0)


def test_no_torch() -> None:
    code = "import sys, headrace.envs.remote, headrace.envs.remote.group; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

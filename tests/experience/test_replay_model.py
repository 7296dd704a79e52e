"""The replay against the naive one: any sequence of operations, Hypothesis chooses them."""

import numpy as np
from history_writer import HistoryWriter
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from naive_replay import Episodes, NaiveReplay, check_batch, fields, known, write

from headrace.experience.replay.buffer import Replay, ReplayConfig

HISTORIES = 3


class ReplayMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 10_000), stack=st.sampled_from([1, 3]), n_step=st.integers(1, 4),
                alpha=st.sampled_from([0.0, 0.6, 1.0]), codec=st.sampled_from(["none", "none", "lz4"]))
    def create(self, seed: int, stack: int, n_step: int, alpha: float, codec: str) -> None:
        self.rng = np.random.default_rng(seed)
        # Histories so short that they wrap within a few operations.
        config = ReplayConfig(histories=HISTORIES, capacity=60, slack=1.0, n_step=n_step, alpha=alpha, minimum=1, codec=codec,
                              seed=seed)
        self.replay = Replay(config, fields((5, 3), stack, codec != "none"))
        self.naive = NaiveReplay(config, stack)
        self.writers = [HistoryWriter(self.replay, history) for history in range(HISTORIES)]
        self.episodes = [Episodes(self.rng, (5, 3)) for _ in range(HISTORIES)]
        self.keys: list[int] = []

    @rule(history=st.integers(0, HISTORIES - 1), count=st.integers(1, 14))
    def append(self, history: int, count: int) -> None:
        rows = self.episodes[history].rows(count)
        write(self.writers[history], rows)
        self.naive.append(history, rows)

    @rule(history=st.integers(0, HISTORIES - 1), share=st.floats(0, 1))
    def ready(self, history: int, share: float) -> None:
        this = self.naive.histories[history]
        count = round(known(this.rows, this.ready, self.naive.config.n_step) * share)
        priorities = np.where(self.rng.random(count) < 0.1, -1, self.rng.exponential(1.0, count)).astype(np.float32)
        priorities[self.rng.random(count) < 0.1] = 0.0
        self.writers[history].ready(priorities)
        self.naive.ready(history, priorities.tolist())

    @rule(history=st.integers(0, HISTORIES - 1))
    def another_writer(self, history: int) -> None:
        this = self.naive.histories[history]
        self.writers[history] = HistoryWriter(self.replay, history)
        self.naive.ready(history, [-1.0] * (len(this.rows) - this.ready))
        self.episodes[history] = Episodes(self.rng, (5, 3))

    @rule()
    def evict(self) -> None:
        self.naive.retire()
        before = len(self.naive.alive())
        self.naive.evict_oldest()
        assert self.replay.evict() == before - len(self.naive.alive())

    @rule(size=st.integers(1, 40))
    def sample(self, size: int) -> None:
        self.naive.retire()
        alive = {history << 40 | t for history, t in self.naive.alive()}
        readable = {key for key in alive if self.naive.readable(key >> 40, key & (1 << 40) - 1)}
        if not readable:
            return
        drawn = self.replay.sample_keys(size)
        assert drawn is not None
        assert set(drawn[0].tolist()) <= readable
        self.forget_dropped()
        check_batch(self.replay, self.naive, size)
        self.forget_dropped()
        self.keys = (self.keys + drawn[0].tolist())[-200:]

    @rule(count=st.integers(1, 30))
    def update(self, count: int) -> None:
        if not self.keys:
            return
        keys = self.rng.choice(np.array(self.keys, np.uint64), count)
        priorities = self.rng.exponential(1.0, count).astype(np.float32)
        self.naive.retire()
        late = self.naive.late
        self.naive.update(keys.tolist(), priorities.tolist())
        assert self.replay.update(keys, priorities) == self.naive.late - late

    def forget_dropped(self) -> None:
        """Follow the replay where it dropped transitions whose stack is cut, which it does when it meets them."""
        for history, this in enumerate(self.naive.histories):
            if not this.rows:
                continue
            first = max(0, len(this.rows) - self.naive.config.rows)
            count = max(0, this.ready - first)
            stamps, priorities = np.empty(count, np.uint64), np.empty(count, np.float32)
            self.replay.native.read_priorities(history, first, stamps, priorities)
            for t in [t for t in this.priorities if t >= first and priorities[t - first] < 0]:
                assert not self.naive.readable(history, t), "a transition that could still be read is gone"
                del this.priorities[t]
                self.naive.overwritten += 1

    @invariant()
    def same_contents(self) -> None:
        if not hasattr(self, "replay"):
            return
        self.naive.retire()
        stats = self.replay.stats()
        alive = self.naive.alive()
        assert stats.size == len(alive)
        assert stats.late == self.naive.late
        assert stats.inserts == self.naive.inserts
        assert (stats.evicted, stats.overwritten) == (self.naive.evicted, self.naive.overwritten)
        mass = sum(self.naive.mass(history, t) for history, t in alive)
        np.testing.assert_allclose(self.replay.native.total(), mass, rtol=1e-12)


ReplayMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None,
                                           suppress_health_check=list(HealthCheck))
TestReplayModel = ReplayMachine.TestCase

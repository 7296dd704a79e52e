"""The whole story: environment -> sampler -> experience -> learner.

    train()     describes the environment, makes the shared memory, and either runs everything in this process (`serial`)
                or lets the supervisor start the processes and shows what they report
    learn()     the training loop: batch in, update, weights out, metrics and checkpoints now and then

Where weights are older than the newest: an actor takes the newest weights before each batch of actions; while a trajectory is
being filled, queues for the learner and is prefetched, the learner moves on. That is the policy lag, measured for every sample.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any

import torch

from headrace.accelerator.graphs import set_up
from headrace.accelerator.memory import keep_freed_memory
from headrace.accelerator.threads import using_threads
from headrace.config import Config, ConfigError
from headrace.envs.contract import EnvironmentFault, EnvSpec
from headrace.envs.registry import describe
from headrace.evaluation.background import Evaluator
from headrace.evaluation.video import record
from headrace.experience.on_policy import TrajectoryBatches
from headrace.experience.replay.batches import ReplayBatches
from headrace.experience.replay.writer import make_replay
from headrace.learning.learner import Learner, Progress
from headrace.learning.replay_learner import ReplayLearner
from headrace.make_config import check_config
from headrace.runs.folder import RunFolder
from headrace.runs.plots import learning_curve
from headrace.runs.report import Reporter
from headrace.sampling.exchange import LEARNER_PHASES, LOOK_AROUND, PHASES, Clock, Exchange
from headrace.sampling.placements.serial import SerialSampler
from headrace.sampling.processes import Start, bounds_said, make_algorithm_and_model
from headrace.sampling.supervisor import RunFailed, Supervisor
from headrace.sampling.weights import Publisher, weights_nbytes
from headrace.state import EPISODE_WINDOW, Experience, TrainingLog, TrainingState

VIDEO = "video.mp4"
"""In the run folder: the video made when training ends."""
VIDEO_STEPS = 3000
"""Longest video made when training ends, in steps."""


@dataclass
class TrainResult:
    """How a run ended."""

    folder: str
    reason: str
    """"total_steps", "goal", "max_minutes" or "interrupted"."""
    global_step: int
    mean_return: float
    """Mean return of the last 100 episodes; NaN if none has ended."""


def train(config: Config) -> TrainResult:
    """Train until `total_steps`, the goal, the time limit or Ctrl-C. Goes on with the run in the folder, if there is one.

    Raises `ConfigError` for impossible settings, `FolderInUse`, `CheckpointError`, `RunFailed` with the error of the part that
    failed.
    """
    check_config(config)
    spec = describe(config.env, config.envs)
    folder, changes = RunFolder.open(config)
    # The caller's own random numbers stay what they were.
    with folder, Reporter(config, spec, folder, PHASES) as reporter, torch.random.fork_rng(devices=[]):
        for change in changes:
            reporter.message(change)
        exchange = make_exchange(config, spec)
        with Listener(config, exchange, reporter) as listener:
            run = _train_serial if config.sampling.placement == "serial" else _train_processes
            run(config, spec, exchange, listener)
        if listener.learned or not (config.run_folder / VIDEO).exists():
            _keepsakes(config, reporter, listener.mean_return)
    return TrainResult(str(folder.path), listener.reason, reporter.global_step, listener.mean_return)


def make_exchange(config: Config, spec: EnvSpec) -> Exchange:
    """The memory that the processes of a run share. Raises `MemoryError` where there is too little, `ConfigError` for a replay
    that cannot hold these observations."""
    algorithm, model = make_algorithm_and_model(config, spec)
    exchange = Exchange(config, spec, model.core_width, weights_nbytes(model), algorithm.extra_fields(spec))
    if config.uses_replay:
        exchange.replay = make_replay(config, spec, model.core_width)
    return exchange


class Listener:
    """Hears what the learner reports, wherever that runs, and passes it to those whom it concerns."""

    def __init__(self, config: Config, exchange: Exchange, reporter: Reporter):
        self.exchange, self.reporter = exchange, reporter
        self.restarts = 0
        self.done = False
        self.reason = "interrupted"
        self.mean_return = math.nan
        self._began: int | None = None
        self._evaluator = Evaluator(config)

    def hear(self, kind: str, content: Any) -> None:
        """One report of the learner."""
        if kind == "done":
            self.done, self.reason, self.mean_return = True, content["reason"], content["mean_return"]
            self.reporter.global_step = content["global_step"]
        elif kind == "saved":
            if problem := self._evaluator.saved(content):
                self.reporter.message(problem)
        else:
            if kind == "start":
                self._began = content if self._began is None else self._began
                self._evaluator.started(content)
            clocks = {role: clock.copy() for role, clock in self.exchange.clocks.items()}
            self.reporter.receive(kind, content, clocks, self.restarts)
        self.tick()

    @property
    def learned(self) -> bool:
        """Whether there was anything left to learn for this run."""
        return self._began is not None and self.reporter.global_step > self._began

    def tick(self) -> None:
        """Pass on the result of an evaluation that has ended."""
        if (report := self._evaluator.poll()) is not None:
            self.reporter.receive(*report, {}, self.restarts)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None and self.reason != "interrupted":
                for report in self._evaluator.drain():
                    self.reporter.receive(*report, {}, self.restarts)
        finally:
            self._evaluator.close()


def _train_processes(config: Config, spec: EnvSpec, exchange: Exchange, listener: Listener) -> None:
    """Supervise the processes until the learner is done; Ctrl-C (or SIGTERM) ends the run with a checkpoint."""
    supervisor = Supervisor(config, spec, exchange, learner_main, listener.reporter.message)
    with _signals(signal.default_int_handler):
        try:
            supervisor.start()
            while not listener.done:
                for kind, content in supervisor.messages(timeout=0.5):
                    listener.restarts = supervisor.restarts
                    listener.hear(kind, content)
                listener.tick()
        except KeyboardInterrupt:
            listener.reporter.message("Stopping: one more checkpoint (Ctrl-C again: without)")
        except RunFailed:  # what was learned until then is kept, if the learner is still there
            _stop(supervisor, listener)
            raise
        except BaseException:
            supervisor.kill()
            raise
        _stop(supervisor, listener)


def _stop(supervisor: Supervisor, listener: Listener) -> None:
    """The learner writes its last checkpoint; nothing of the run is alive afterwards."""
    try:
        for kind, content in supervisor.stop():
            listener.hear(kind, content)
    finally:
        supervisor.kill()


def _train_serial(config: Config, spec: EnvSpec, exchange: Exchange, listener: Listener) -> None:
    """Everything in this process, one after the other: the same seed gives the same weights."""
    sampler = SerialSampler(config, spec, exchange)
    # Ctrl-C takes effect between two updates, where everything stands still and can be saved.
    stopping = _signals(lambda number, frame: exchange.control.store(0, 1))
    with using_threads(config.learner_threads), stopping, bounds_said(listener.reporter.message):
        try:
            learn(config, spec, exchange, listener.hear, sampler)
        finally:
            sampler.close()


@contextmanager
def _signals(handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """Ctrl-C and SIGTERM go to `handler`; only Python's main thread may ask for that, in others they stay as they are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.signal(number, handler)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


def _keepsakes(config: Config, reporter: Reporter, mean_return: float) -> None:
    """The learning curve and a video of the agent, where the extras for them are installed."""
    if not config.run.video:
        return
    try:
        if not math.isnan(mean_return):  # else no episode has ended, and there is nothing to draw
            learning_curve([config.run_folder], config.run_folder / "curve.png", title=config.env, goal=config.run.goal)
            reporter.message(f"Learning curve: {config.run_folder / 'curve.png'}")
        returns = record(config.run_folder, config.run_folder / VIDEO, max_steps=VIDEO_STEPS)
        reporter.message(f"Video: {config.run_folder / VIDEO} (return {', '.join(f'{r:.1f}' for r in returns)})")
    except Exception as error:  # training is over and saved; whatever happens here, only a picture is missing
        kind = "" if isinstance(error, ConfigError | EnvironmentFault) else f"{type(error).__name__}: "
        reporter.message(f"No curve or video: {kind}{error}")


def learner_main(start: Start) -> None:
    """What the learner process runs."""
    torch.set_num_threads(start.config.learner_threads)
    keep_freed_memory()
    learn(start.config, start.spec, start.exchange, lambda kind, content: start.report.send((kind, content)), None)


def learn(
    config: Config,
    spec: EnvSpec,
    exchange: Exchange,
    report: Callable[[str, Any], None],
    sampler: SerialSampler | None,
) -> None:
    """The training loop. `sampler` steps the environments until a batch is there; None: other processes do."""
    algorithm, model = make_algorithm_and_model(config, spec)
    set_up(config.device)
    learner = (ReplayLearner if config.uses_replay else Learner)(model, algorithm, config, lambda text: report("message", text))
    log = TrainingLog()
    batches = _experience(config, exchange, sampler, algorithm.reported_envs(config.num_envs))
    state = TrainingState(config, learner, log, sampler, batches)
    for message in state.load():
        report("message", message)
    learner.progress.continue_after(exchange.board.version)
    report("start", learner.progress.global_step)

    if exchange.device_slab is not None:
        try:
            exchange.device_slab.allocate()
        except RuntimeError as error:
            report("message", f"Observations cross the bus twice: no memory for them on {config.device} ({error})")
    publisher = Publisher(learner.model, exchange.board, config.device)
    publisher.publish(learner.progress.version)
    publisher.wait()
    exchange.control.store(1, 1)  # samplers may start
    if exchange.replay is not None:
        report("message", f"Learning begins when the replay holds {config.replay.minimum:,} steps")
    clock = Clock(exchange.clocks["learner"][0], LEARNER_PHASES, perf_counter())
    started = last_log = perf_counter()
    reason = "total_steps" if learner.progress.global_step >= config.learning.total_steps else None
    with _saved_if_it_fails(state, report):
        while reason is None:
            batch = batches.get(timeout=LOOK_AROUND)
            clock.spent("wait", now := perf_counter())
            if batch is not None:
                statistics = learner.learn(batch.fields, batch.host)
                log.add(statistics, batch.host)
                batches.done()
                clock.spent("train", now := perf_counter())
                if statistics:  # else the replay is still filling
                    publisher.publish(learner.progress.version)
                    clock.spent("publish", now := perf_counter())

            reason = "interrupted" if exchange.stopped else _reason_to_stop(config, learner.progress, log, now - started)
            if reason or now - last_log >= config.run.log_interval:
                report("metrics", log.metrics(learner) | batches.metrics())
                last_log = now
            if state.due(now):
                report("message", state.save(must=False))
                report("saved", learner.progress.global_step)
                clock.spent("checkpoint", perf_counter())
    report("message", state.save(must=True))
    report("done", {"reason": reason, "global_step": learner.progress.global_step, "mean_return": log.mean_return})


@contextmanager
def _saved_if_it_fails(state: TrainingState, report: Callable[[str, Any], None]) -> Iterator[None]:
    """Where an environment or the loss ends the run, what was learned until then is kept."""
    try:
        yield
    except (EnvironmentFault, FloatingPointError):
        if state.finite:
            report("message", state.save(must=False, at_rest=False))
        raise


def _experience(config: Config, exchange: Exchange, sampler: SerialSampler | None, reported_envs: range) -> Experience:
    """Where batches come from; with a serial sampler, from stepping the environments when a batch is asked for."""
    collect = None if sampler is None else sampler.collect
    if exchange.replay is None:
        return TrajectoryBatches(exchange, config.slots_per_batch, config.device, collect)
    return ReplayBatches(config, exchange, exchange.replay, collect, reported_envs)


def _reason_to_stop(config: Config, progress: Progress, log: TrainingLog, seconds: float) -> str | None:
    if progress.global_step >= config.learning.total_steps:
        return "total_steps"
    if config.run.goal is not None and len(log.returns) == EPISODE_WINDOW and log.mean_return >= config.run.goal:
        return "goal"
    if config.run.max_minutes is not None and seconds >= 60 * config.run.max_minutes:
        return "max_minutes"
    return None

"""The whole story: environment -> sampler -> experience -> learner.

    train()     describes the environment, makes the shared memory, and either runs everything in this process (`serial`)
                or lets the supervisor start the processes and shows what they report
    learn()     the training loop: batch in, update, weights out, metrics and checkpoints now and then

Where weights are older than the newest: an actor takes the newest weights before each batch of actions; while a trajectory is
being filled, queues for the learner and is prefetched, the learner moves on. That is the policy lag, measured for every sample.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from headrace import config as configs
from headrace.config import Config
from headrace.envs.contract import EnvSpec
from headrace.envs.registry import describe, import_files
from headrace.experience.trajectories import TrajectoryBatches
from headrace.learning.learner import Learner, Progress
from headrace.runs import checkpoint
from headrace.runs.folder import RunFolder
from headrace.runs.report import Reporter
from headrace.sampling.exchange import LEARNER_PHASES, PHASES, Clock, Exchange
from headrace.sampling.processes import Start, make_algorithm_and_model
from headrace.sampling.serial import SerialSampler
from headrace.sampling.supervisor import Supervisor
from headrace.sampling.weights import FlatWeights, weights_nbytes

EPISODE_WINDOW = 100
"""Episodes in `charts/episodic_return_100`, which `run.goal` is compared with."""


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
    configs.validate(config)
    import_files(config.imports)
    spec = describe(config.env, config.envs)
    folder, changes = RunFolder.open(config)
    with folder, Reporter(config, spec, folder, PHASES) as reporter:
        for change in changes:
            reporter.say(change)
        algorithm, model = make_algorithm_and_model(config, spec)
        exchange = Exchange(config, spec, model.core_width, weights_nbytes(model), algorithm.extra_fields(spec))
        if config.sampling.placement == "serial":
            return _train_serial(config, spec, exchange, folder, reporter)
        return _train_processes(config, spec, exchange, folder, reporter)


def _train_processes(config: Config, spec: EnvSpec, exchange: Exchange, folder: RunFolder, reporter: Reporter) -> TrainResult:
    """Supervise the processes until the learner is done; Ctrl-C ends the run with a checkpoint."""
    supervisor = Supervisor(config, spec, exchange, learner_main, reporter.say)
    result = {"reason": "interrupted"}

    def handle(kind: str, content: Any) -> bool:
        if kind == "done":
            result.update(content)
        else:
            reporter.receive(kind, content, supervisor.phase_times(), supervisor.restarts)
        return kind == "done"

    try:
        supervisor.start()
        done = False
        while not done:
            for kind, content in supervisor.messages(timeout=0.5):
                done |= handle(kind, content)
            reporter.tick()
    except KeyboardInterrupt:
        reporter.say("Stopping: one more checkpoint (Ctrl-C again: without)")
    except BaseException:
        supervisor.kill()
        raise
    try:
        for kind, content in supervisor.stop():
            handle(kind, content)
    finally:
        supervisor.kill()
    return _result(folder, reporter, result)


def _train_serial(config: Config, spec: EnvSpec, exchange: Exchange, folder: RunFolder, reporter: Reporter) -> TrainResult:
    """Everything in this process, one after the other: the same seed gives the same weights."""
    torch.set_num_threads(config.learning.num_threads or torch.get_num_threads())
    sampler = SerialSampler(config, spec, exchange)
    result = {"reason": "interrupted"}

    def report(kind: str, content: Any) -> None:
        if kind == "done":
            result.update(content)
        else:
            reporter.receive(kind, content, {role: clock.copy() for role, clock in exchange.clocks.items()}, 0)
        reporter.tick()

    try:
        learn(config, spec, exchange, report, sampler)
    finally:
        sampler.close()
    return _result(folder, reporter, result)


def _result(folder: RunFolder, reporter: Reporter, result: dict[str, Any]) -> TrainResult:
    return TrainResult(
        str(folder.path), result["reason"], result.get("global_step", reporter.global_step),
        result.get("mean_return", math.nan),
    )  # fmt: skip


def learner_main(start: Start) -> None:
    """What the learner process runs."""
    torch.set_num_threads(start.config.learning.num_threads or torch.get_num_threads())
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
    learner = Learner(model, algorithm, config)
    log = TrainingLog()
    state = TrainingState(config, learner, log, sampler)
    for message in state.load():
        report("message", message)
    report("start", learner.progress.global_step)

    weights = FlatWeights(learner.model)
    weights.publish(exchange.board, learner.progress.updates)
    exchange.control.store(1, 1)  # samplers may start
    batches = TrajectoryBatches(exchange, config.slots_per_batch, config.device, prefetch=sampler is None)
    clock = Clock(exchange.clocks["learner"][0], LEARNER_PHASES, perf_counter())
    started = last_log = last_save = perf_counter()
    reason = "total_steps" if learner.progress.global_step >= config.learning.total_steps else None
    while reason is None:
        if sampler is not None:
            sampler.collect(config.slots_per_batch)
        batch = batches.get()
        clock.spent("wait", perf_counter())
        if batch is None:
            reason = "interrupted"
            break
        statistics = learner.learn(batch.fields)
        log.add(statistics, batch.fields)
        batches.done()
        clock.spent("train", perf_counter())
        weights.publish(exchange.board, learner.progress.updates)
        clock.spent("publish", now := perf_counter())

        reason = _reason_to_stop(config, learner.progress, log, now - started)
        if reason or now - last_log >= config.run.log_interval:
            report("metrics", log.metrics(learner))
            last_log = now
        if now - last_save >= config.run.checkpoint_interval:
            report("message", state.save(must=False))
            last_save = perf_counter()
            clock.spent("checkpoint", last_save)
    report("message", state.save(must=True))
    report("done", {"reason": reason, "global_step": learner.progress.global_step, "mean_return": log.mean_return})


def _reason_to_stop(config: Config, progress: Progress, log: TrainingLog, seconds: float) -> str | None:
    if progress.global_step >= config.learning.total_steps:
        return "total_steps"
    if config.run.goal is not None and len(log.returns) == EPISODE_WINDOW and log.mean_return >= config.run.goal:
        return "goal"
    if config.run.max_minutes is not None and seconds >= 60 * config.run.max_minutes:
        return "max_minutes"
    return None


class TrainingLog:
    """Statistics of the learner between two reports, and the last episodes."""

    def __init__(self) -> None:
        self.returns: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self._sums: list[dict[str, torch.Tensor]] = []
        self._ended: list[tuple[float, int]] = []

    @property
    def mean_return(self) -> float:
        """Mean return of the last `EPISODE_WINDOW` episodes, NaN before the first."""
        return float(np.mean(self.returns)) if self.returns else math.nan

    def add(self, statistics: dict[str, torch.Tensor], batch: dict[str, torch.Tensor]) -> None:
        """One update: its statistics and the episodes that ended in its batch."""
        self._sums.append(statistics)
        returns, lengths = batch["episode_return"], batch["episode_length"]
        ended = ~returns.isnan()
        for r, n in zip(returns[ended].tolist(), lengths[ended].tolist(), strict=True):
            self.returns.append(r)
            self._ended.append((r, n))

    def metrics(self, learner: Learner) -> dict[str, float]:
        """Everything since the last call, by metric name; starts a new interval."""
        p = learner.progress
        result = {
            "global_step": float(p.global_step),
            "charts/updates": float(p.updates),
            "charts/episodes": float(p.episodes),
            "charts/learning_rate": learner.learning_rate,
            "lag/masked": float(p.stale_steps),
        }
        for key in self._sums[0] if self._sums else ():
            values = torch.stack([s[key] for s in self._sums])
            result[key] = float(values.min() if key == "lag/min" else values.max() if key == "lag/max" else values.mean())
        if self._ended:
            result["charts/episodic_return"] = float(np.mean([r for r, _ in self._ended]))
            result["charts/episodic_length"] = float(np.mean([n for _, n in self._ended]))
        if self.returns:
            result["charts/episodic_return_100"] = self.mean_return
        self._sums, self._ended = [], []
        return result


class TrainingState:
    """Everything a run needs to go on as if it had never stopped, to and from its newest checkpoint."""

    def __init__(self, config: Config, learner: Learner, log: TrainingLog, sampler: SerialSampler | None):
        self._config, self._learner, self._log, self._sampler = config, learner, log, sampler
        self._folder = config.run_folder / "checkpoints"
        self._milestone = 0

    def load(self) -> list[str]:
        """Take the newest good checkpoint, if there is one; returns what the user should know."""
        found = checkpoint.load_newest(self._folder)
        if found is None:
            return []
        state, learner = found.unpack(), self._learner
        learner.model.load_state_dict(state["model"])
        checkpoint.load_optimizer(learner.optimizer, state["optimizer"])
        learner.progress = Progress(**state["progress"])
        learner.generator.set_state(state["generator"])
        self._log.returns.extend(state["returns"])
        if self._sampler is not None and state.get("sampler") is not None:
            self._sampler.set_state(state["sampler"])
        return [*found.damaged, f"Going on from {found.path.name}: step {learner.progress.global_step:,}"]

    def save(self, must: bool) -> str:
        """Write a checkpoint; returns a line for the log. A failure (a full disk) is an error only if it `must` be written."""
        learner, run = self._learner, self._config.run
        step = learner.progress.global_step
        milestone = run.milestone_steps is not None and step // run.milestone_steps > self._milestone
        tensors, state = checkpoint.pack(
            {
                "model": learner.model.state_dict(),
                "optimizer": learner.optimizer.state_dict(),
                "progress": dataclasses.asdict(learner.progress),
                "generator": learner.generator.get_state(),
                "returns": list(self._log.returns),
                # Only where everything stands still between two updates can the half-filled trajectories be saved too.
                "sampler": None if self._sampler is None else self._sampler.get_state(),
            }
        )
        full = len(self._log.returns) == EPISODE_WINDOW
        score = self._log.mean_return if full else None
        try:
            path = checkpoint.save(
                self._folder, step, tensors, state, keep=run.keep_checkpoints, score=score, milestone=milestone
            )
        except checkpoint.CheckpointError as error:
            if must:
                raise
            return f"{error} Training goes on; the next try is in {run.checkpoint_interval:.0f} s."
        if milestone and run.milestone_steps:
            self._milestone = step // run.milestone_steps
        return f"Checkpoint {path.name}"

"""Training: a configuration becomes a placement, batches become updates, updates become weights.

train()   opens the run folder, starts the placement and passes on its reports, until every policy has learned enough
learn()   the training loop of one policy: batch in, update, weights out, metrics and checkpoints now and then
          (why an actor's weights are older than the newest: docs/policy-lag.md)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from time import perf_counter
from typing import Any

import torch

from headrace.accelerator.graphs import set_up
from headrace.accelerator.ranks import RankLost, Ranks
from headrace.accelerator.torch_defaults import torch_defaults
from headrace.checkpointing import Checkpointing
from headrace.cluster import make_placement
from headrace.config import Config
from headrace.envs import EnvironmentFault, describe_run
from headrace.envs.core.settings import summary
from headrace.evaluation.background import BackgroundEvaluation
from headrace.evaluation.video import draw_curve_and_video
from headrace.experience.across_ranks import across_ranks
from headrace.experience.batch import Batch, Experience, Filling
from headrace.learning.algorithm import make_agent
from headrace.learning.learner import Learner
from headrace.learning.training_log import REASONS, TrainingLog, reason_to_stop, when_learning_begins
from headrace.make_config import check_config, for_agents, to_train
from headrace.population.members import make_members
from headrace.population.past_versions import PastVersions
from headrace.population.pbt import notes
from headrace.population.pbt_policy import PbtPolicy
from headrace.population.records import Records
from headrace.processes.interrupt import interrupts
from headrace.processes.ranks import settings_of_rank
from headrace.runs.callbacks import Callback, Callbacks, TrainResult
from headrace.runs.folder import FolderUnusable, RunFolder
from headrace.runs.messages import Message
from headrace.runs.report import Reporter
from headrace.sampling.placements.base import Placement, RunFailed
from headrace.shm.run_control import POLL_INTERVAL


@torch_defaults()
def train(
    config: Config | Any,
    *,
    on_update: Callback | None = None,
    on_episode: Callback | None = None,
    on_checkpoint: Callback | None = None,
) -> TrainResult:
    """Train until `total_steps`, the goal, the time limit, Ctrl-C, or a callback (`runs.callbacks.Callbacks`) that returns True.
    A run in the folder is resumed. `config` may also be an environment, as `make_config` takes it; its defaults are then used.

    Raises `ConfigError` for impossible settings, `FolderInUse`, `CheckpointError`, `RunFailed` with the error of what failed.
    """
    callbacks = Callbacks(on_update, on_episode, on_checkpoint)
    check_config(config := to_train(config))
    with settings_of_rank(config) as own:
        own = for_agents(own, spec := describe_run(own, elsewhere=own.in_processes))
        # The caller's own random numbers stay what they were. What a placement refuses leaves no folder.
        with torch.random.fork_rng(devices=[]), make_placement(own, spec, make_agent, make_members(own, spec)) as placement:
            folder, changes = RunFolder.open(own)
            with folder, Reporter(own, spec.frameskip, folder, records := Records(own)) as reporter:
                for text in (*changes, *summary(own, spec), *notes(own)):
                    reporter.message(text)
                ends = _run(placement, reporter, callbacks)
                returns = [ends.get(p, {"mean_return": math.nan})["mean_return"] for p in range(own.population.size)]
                draw_curve_and_video(own, reporter.message, returns, again=reporter.has_learned, draw_more=records.draw)
    return TrainResult(str(folder.path), ends.get(0, {}).get("reason", "interrupted"), reporter.global_step, returns[0], spec)


def _run(placement: Placement, reporter: Reporter, callbacks: Callbacks) -> dict[int, dict[str, Any]]:
    """Let the placement run until every policy is done; how each ended, by policy."""
    ends: dict[int, dict[str, Any]] = {}

    def receive(messages: Iterator[Message]) -> None:
        for message in chain(messages, evaluation.messages()):
            if message.kind == "done":
                ends[message.policy] = message.content
            reporter.receive(message, placement.memory.control.snapshot(), placement.restarts)
            evaluation.receive(message)
            if callbacks.receive(message):
                interrupt.request()

    with BackgroundEvaluation(placement.config) as evaluation, interrupts(placement.memory.control.ask_to_stop) as interrupt:
        try:
            placement.reports_episodes = callbacks.on_episode is not None
            placement.start(learn)
            while len(ends) < placement.config.population.size and not interrupt.requested:
                receive(placement.messages(timeout=0.5))
                reporter.folder.check()
            if interrupt.requested:
                reporter.message("Stopping: one more checkpoint (Ctrl-C again: without)")
            receive(placement.stop())
            if not interrupt.requested:
                receive(evaluation.drain())
        except (RunFailed, FolderUnusable):  # what was learned until then is kept, if the learner is still there
            with suppress(RunFailed):  # the first error is the one to show
                receive(placement.stop())
            raise
        except KeyboardInterrupt:
            pass
        finally:
            placement.kill()
            callbacks.raise_error()  # before any later error, which may follow from it
    return ends


def learn(placement: Placement, p: int) -> Iterator[Message | None]:
    """The training loop of policy p: yields its reports, and None after every round without one."""
    config, control = placement.configs[p], placement.memory.control
    algorithm, model = make_agent(config, spec := placement.spec.of_policy(p))
    set_up(config.device)
    learner = Learner(model, algorithm, config)
    learner.cut_short = lambda: control.hurried
    log = TrainingLog(spec.tasks, spec.agents, spec.info_metrics)
    ranks = Ranks(config.device)  # other ranks may learn the same policy, each with its own environments
    experience = across_ranks(placement.batches(p, algorithm.reported_envs(config.num_envs)), ranks, spec)
    pbt = PbtPolicy(placement, p, learner, log) if config.pbt.on else None
    past = PastVersions(placement, p, learner)
    checkpoints = Checkpointing(placement, p, learner, log, experience, ranks, past, pbt)
    yield from checkpoints.load()
    learner.join(ranks)
    learner.progress.continue_after(placement.version(p))
    yield Message("start", learner.progress.global_step, p)
    placement.publish(p, learner.model, learner.progress.version)
    if pbt is not None:
        yield from pbt.begin()
    if config.uses_replay:
        yield Message("message", when_learning_begins(config), p)
    clock, several = control.clock("learner", p), config.population.size > 1
    started, last_log = control.learning_began(), perf_counter()
    reason = reason_to_stop(config, learner.progress, log, last_log - started)
    if reason is None:
        yield None  # ready
    while reason is None:
        try:
            batch = None if several and control.stopped else experience.next(timeout=POLL_INTERVAL)
            clock.spent("wait", now := perf_counter())
            if batch is not None and _learn_from(batch, learner, log, experience):
                clock.spent("train", now := perf_counter())
                placement.publish(p, learner.model, learner.progress.version)
                past.after_update()
                clock.spent("publish", now := perf_counter())
            reason = "interrupted" if control.stopped else reason_to_stop(config, learner.progress, log, now - started)
            reason = REASONS[ranks.largest(REASONS.index(reason or past.reason_to_stop(now)))]
        except (EnvironmentFault, FloatingPointError, RankLost):
            if checkpoints.finite and learner.progress.global_step:  # what was learned until then is kept
                yield from checkpoints.save(must=False, at_rest=False)
            raise
        if pbt is not None:
            yield from pbt.step(None if batch is None else batch.arrivals)
        if reason or now - last_log >= config.run.log_interval:
            if placement.reports_episodes:
                yield Message("episodes", log.episodes, p)
            yield from _reports(p, learner, log, experience, past, pbt)
            last_log = now
        if checkpoints.due(now):
            yield from checkpoints.save(must=False)
            clock.spent("checkpoint", perf_counter())
        yield None
    if pbt is not None:
        pbt.finish()
    if reason != "interrupted" or learner.progress.global_step:  # a checkpoint without a step would only hold later starts to it
        yield from checkpoints.save(must=True, ended=reason != "interrupted")
    yield from past.finish(reason)
    del placement.savers[p]
    yield Message("done", {"reason": reason, "global_step": learner.progress.global_step, "mean_return": log.mean_return}, p)


def _learn_from(batch: Batch | Filling, learner: Learner, log: TrainingLog, experience: Experience) -> bool:
    """Make an update with a batch. False while the replay is still filling."""
    if isinstance(batch, Filling):
        learner.note(batch.arrivals)
        log.add(batch.arrivals, step=learner.progress.global_step)
        return False
    update = learner.learn(batch)
    log.add(batch.arrivals, update, learner.progress.global_step)
    if batch.keys is not None and update.priorities is not None:
        experience.update_priorities(batch.keys, update.priorities)
    experience.release()
    return True


def _reports(
    p: int, learner: Learner, log: TrainingLog, experience: Experience, past: PastVersions, pbt: PbtPolicy | None
) -> Iterator[Message]:
    """The learning curve and the metrics since the last reports."""
    yield Message("curve", log.curve(), p)
    metrics = log.metrics(learner) | experience.metrics() | past.metrics()
    yield Message("metrics", metrics if pbt is None else metrics | pbt.metrics(), p)
    if (table := past.table()) is not None:
        yield Message("standings", table, p)

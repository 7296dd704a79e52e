"""Evaluation beside training: a child process plays whole games with the newest checkpoint, every so many steps."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from headrace.config import Config
from headrace.evaluation import evaluate
from headrace.sampling.supervisor import without_main_module


class Evaluator:
    """At most one evaluation runs at a time; one that is due meanwhile is made right after it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._interval = config.run.eval_interval_steps
        self._due = self._interval or 0
        self._child: tuple[BaseProcess, Connection] | None = None
        self._context = multiprocessing.get_context("forkserver")

    def saved(self, step: int) -> None:
        """A checkpoint of this global_step was written: start an evaluation if one is due and none is running."""
        if self._interval is None or step < self._due or self._child is not None:
            return
        self._due = (step // self._interval + 1) * self._interval
        here, there = self._context.Pipe(duplex=False)
        run = self._config.run
        child = self._context.Process(
            target=_evaluate,
            args=(str(self._config.run_folder), run.eval_episodes, there),
            name="headrace evaluation",
            daemon=True,
        )
        with without_main_module():
            child.start()
        there.close()
        self._child = (child, here)

    def poll(self, wait: bool = False) -> tuple[str, Any] | None:
        """("eval", metrics) of an evaluation that has ended, ("message", text) of one that failed, else None."""
        if self._child is None:
            return None
        child, report = self._child
        if wait:
            child.join()
        if not report.poll() and child.is_alive():
            return None
        try:
            result = report.recv()
        except EOFError:  # it died before it could report
            child.join()
            result = ("message", f"the evaluation ended with exit code {child.exitcode}")
        child.join()
        report.close()
        self._child = None
        return result

    def close(self) -> None:
        """End an evaluation that is still running."""
        if self._child is not None:
            self._child[0].kill()
            self._child[0].join()
            self._child = None


def _evaluate(folder: str, episodes: int, report: Connection) -> None:
    """What the child runs; it gives way to the processes that train."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)
    torch.set_num_threads(1)
    try:
        result = evaluate(folder, episodes)
    except Exception as error:  # the run goes on without this evaluation, and says why
        report.send(("message", f"evaluation failed: {type(error).__name__}: {error}"))
        return
    metrics = {
        "global_step": float(result.step),
        "eval/episodic_return": result.mean,
        "eval/episodic_length": sum(result.lengths) / len(result.lengths),
    }
    report.send(("eval", metrics))

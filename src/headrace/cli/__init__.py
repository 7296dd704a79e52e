"""The command line: headrace train | tune | compare | search | report | status | stop | eval | watch | play | export | share |
envs | serve-envs. Each command has a file.

An error that the user can correct is one message and exit code 2. A run that failed ends with exit code 1.
"""

from __future__ import annotations

import atexit
import difflib
import importlib.metadata
import io
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from headrace import end_at_once
from headrace.cli import compare, envs, eval, export, play, report, search, serve_envs, share, status, stop, train, tune, watch
from headrace.config import Config, ConfigError, hardware
from headrace.processes import ranks
from headrace.processes.interrupt import as_ctrl_c
from headrace.processes.output import show, show_without_source, tolerantly
from headrace.runs.error_texts import explain
from headrace.runs.files import occupy_standard_streams

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train.run, "tune": tune.run, "compare": compare.run, "search": search.run, "report": report.run,
    "status": status.run, "stop": stop.run, "eval": eval.run, "export": export.run, "share": share.run, "watch": watch.run,
    "play": play.run, "envs": envs.run, "serve-envs": serve_envs.run,
}  # fmt: skip
USAGE = """usage: headrace COMMAND [OPTIONS]

  train        train a policy; the same command resumes a run that was stopped
  tune         find the workers, environments and placement that train fastest on this machine
  compare      train combinations of settings with several seeds, and keep them in one folder
  search       search settings that learn better, with several seeds per trial
  report       make one HTML file of any runs: curves, scores with intervals, speed, settings
  status       show the dashboard and the last log lines of a running training
  stop         end a running training with a checkpoint, as Ctrl-C does
  eval         play whole games with a trained policy and report their returns
  watch        record a video of a trained policy
  play         play matches of one policy against another
  export       write a trained policy as an ONNX file, compared with the checkpoint
  share        write a trained policy as a model repository of the Hugging Face hub
  envs         list the environments
  serve-envs   step environments for training runs on other machines

headrace COMMAND --help shows the options of a command, headrace train --help-all every setting, headrace --version which
version this is."""


THREADS_END = 3.0  # seconds that threads may go on for when the command is done


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Does not return in a rank of several. Without `arguments` it ends the process
    if threads that an environment has left would keep it alive."""
    if signal.getsignal(signal.SIGINT) is end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    occupy_standard_streams()
    try:
        several = hardware.rank().size > 1
    except ConfigError as error:  # what a launcher, or somebody by hand, has set
        print(f"headrace: {error}", file=sys.stderr)
        return error.exit_code
    if several:
        ranks.end_rank(lambda: _run(arguments))
    code = _run(arguments)
    if arguments is None:
        _end_without_threads(code)
    return code


def _end_without_threads(code: int) -> None:
    """End this process if a thread that Python would wait for at exit does not end by itself."""
    others = [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    deadline = monotonic() + THREADS_END
    with suppress(KeyboardInterrupt):
        for thread in others:
            thread.join(max(0.0, deadline - monotonic()))
    if left := [thread.name for thread in others if thread.is_alive()]:
        text = f"headrace: threads that an environment has left running are not waited for: {', '.join(left)}"
        tolerantly(lambda: print(text, file=sys.stderr, flush=True), sys.stderr)
        atexit._run_exitfuncs()
        tolerantly(sys.stdout.flush, sys.stdout)
        os._exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be no text
    if not arguments or arguments[0] in ("-h", "--help"):
        show(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        show(f"headrace {importlib.metadata.version('headrace')}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        perhaps = f"; did you mean {near[0]}?" if near else ""
        print(f"headrace: unknown command {command!r}{perhaps}\n{USAGE}", file=sys.stderr)
        return 2
    try:
        with as_ctrl_c(), warnings.catch_warnings():
            warnings.showwarning = show_without_source(warnings.showwarning)
            return COMMANDS[command](rest)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        given = [part for argument in arguments for part in argument.split("=", 1)]
        explained = explain(error, [*given, Path(Config().run_folder).parent])
        if explained is None:
            raise
        text, code = explained
        if needed := getattr(error, "needed", None):
            text += f". The command is then:\n  {shlex.join(['headrace', *arguments, '--import', *needed])}"
        frames = getattr(error, "frames", "")  # an environment's fault: where in the user's code
        tolerantly(lambda: print(f"{frames}headrace: {text}", file=sys.stderr, flush=True), sys.stderr)
        return code

"""Reinforcement learning for tasks in which stepping the environments takes most of the time.

    import headrace

    result = headrace.train(headrace.make_config("gym/CartPole-v1"))
    print(headrace.evaluate(result.folder, episodes=100))
    policy = headrace.load_policy(result.folder)

Everything is imported when first asked for: a process that only steps environments never imports torch. Only the ids of the
built-in Atari games (`gymnasium.make_vec("headrace/Pong-v5", ...)`) are registered with Gymnasium at once.
"""

import importlib
import os
import signal
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` gives, for type checkers and editors
    from headrace import config as config
    from headrace import envs as envs
    from headrace import learning as learning
    from headrace import policies as policies
    from headrace import population as population
    from headrace.config import Config as Config
    from headrace.config import ConfigError as ConfigError
    from headrace.envs import EnvironmentFault as EnvironmentFault
    from headrace.envs import make_vec as make_vec
    from headrace.envs.groups.tensor import TensorStep as TensorStep
    from headrace.evaluation.evaluate import EvalResult as EvalResult
    from headrace.evaluation.evaluate import evaluate as evaluate
    from headrace.evaluation.policy import TrainedPolicy as TrainedPolicy
    from headrace.evaluation.policy import load_policy as load_policy
    from headrace.evaluation.video import record as record
    from headrace.export.onnx_file import export_policy as export_policy
    from headrace.make_config import make_config as make_config
    from headrace.runs.callbacks import TrainResult as TrainResult
    from headrace.train import train as train
    from headrace_atari import AtariVector as AtariVector

_API = {
    "AtariVector": ("headrace_atari", "AtariVector"),
    "Config": ("headrace.config", "Config"),
    "ConfigError": ("headrace.config", "ConfigError"),
    "EnvironmentFault": ("headrace.envs", "EnvironmentFault"),
    "EvalResult": ("headrace.evaluation.evaluate", "EvalResult"),
    "TensorStep": ("headrace.envs.groups.tensor", "TensorStep"),
    "TrainResult": ("headrace.runs.callbacks", "TrainResult"),
    "TrainedPolicy": ("headrace.evaluation.policy", "TrainedPolicy"),
    "config": ("headrace.config", None),
    "envs": ("headrace.envs", None),
    "evaluate": ("headrace.evaluation.evaluate", "evaluate"),
    "export_policy": ("headrace.export.onnx_file", "export_policy"),
    "load_policy": ("headrace.evaluation.policy", "load_policy"),
    "learning": ("headrace.learning", None),
    "make_config": ("headrace.make_config", "make_config"),
    "make_vec": ("headrace.envs", "make_vec"),
    "policies": ("headrace.policies", None),
    "population": ("headrace.population", None),
    "record": ("headrace.evaluation.video", "record"),
    "train": ("headrace.train", "train"),
}
__all__ = [*_API]


def _end_quietly(kind: type[BaseException], *error: Any) -> None:
    """The `sys.excepthook` of the command line, whose imports take a second."""
    if issubclass(kind, KeyboardInterrupt):
        os._exit(130)
    sys.__excepthook__(kind, *error)


def end_at_once(number: int, frame: Any) -> None:
    """The handler of SIGINT while the command line is imported, until `headrace.cli.main` begins: an exception could be lost
    there, or abort the process in the C++ of a package, and there is nothing to clean up."""
    os._exit(130)


if os.path.basename("".join(sys.argv[:1])) in ("headrace", "-m"):  # as `headrace` and `python -m headrace.cli` begin
    sys.excepthook = _end_quietly
    named = os.path.basename("".join(sys.orig_argv[1:2])) == "headrace" or sys.orig_argv[1:3] == ["-m", "headrace.cli"]
    if named and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in its children
        signal.signal(signal.SIGINT, end_at_once)


class _Package(types.ModuleType):
    """`headrace.train` and `headrace.make_config` are the functions, also after something imported the modules of these names."""

    def __setattr__(self, name: str, value: Any) -> None:
        """The import system binds every module that it has imported here. `sys.modules` has these two; the names stay free for
        `__getattr__`."""
        if name not in ("train", "make_config"):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


if not TYPE_CHECKING:  # a misspelt name is an error for them

    def __getattr__(name: str) -> Any:
        if name not in _API:
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        module_name, attribute = _API[name]
        module = importlib.import_module(module_name)
        return getattr(module, attribute) if attribute else module


def __dir__() -> list[str]:
    return sorted(__all__)


importlib.import_module("headrace_atari")

"""Mistakes in a user's own network, core or algorithm: whose code it is, what was expected, what came."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from itertools import dropwhile
from pathlib import Path
from typing import Any, TypeVar

from headrace.config.errors import ConfigError
from headrace.envs.core.errors import cause
from headrace.runs.error_texts import explain

Made = TypeVar("Made")
_BETWEEN = str(Path(__file__).parents[1])  # frames of this package, before those of the user's code


class AgentFault(ConfigError):
    """A network, a core or an algorithm of the user's own is not as expected; the message names it and what was expected."""

    @property
    def frames(self) -> str:
        """The traceback of an error that the user's code raised, from the first frame of this code on; else empty."""
        raised = [] if self.__cause__ is None else traceback.extract_tb(self.__cause__.__traceback__)
        own = [*dropwhile(lambda frame: frame.filename.startswith(_BETWEEN) or "/torch/" in frame.filename, raised)]
        return "".join(["Traceback (most recent call last):\n", *traceback.format_list(own)]) if own else ""


def is_own(code: Any) -> bool:
    """Whether a function or a class is the user's."""
    return not f"{code.__module__}.".startswith("headrace.")


def named(code: Any, method: str, setting: str, name: str) -> str:
    """What messages call a method of a class, or with `method` "" a function: with the name that it is registered under."""
    return f"{getattr(code, '__name__', type(code).__name__)}{method and '.'}{method} ({setting} {name})"


def shown(value: Any) -> str:
    """A value in a few words, tensors by dtype and shape."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(shown, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {shown(x)}' for name, x in value.items())}}}"
    if hasattr(value, "requires_grad") and hasattr(value, "shape"):
        where = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{where}"
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__.removesuffix("Type")  # None


def failed(who: str, given: str, error: Exception) -> Exception:
    """What to raise for an error of the user's code that was called with `given`: the same error if its message is enough."""
    return error if explain(error) else AgentFault(f"{who} failed when it was called with {given}: {cause(error)}")


def made(code: Any, who: str, given: str, make: Callable[[], Made], fits: Callable[[Made], bool], wanted: str) -> Made:
    """What `make` makes by calling `code`. Raises `AgentFault` if it is the user's code and fails, or makes what does not fit."""
    if not is_own(code):
        return make()
    try:
        result = make()
    except Exception as error:
        raise failed(who, given, error) from error
    if not fits(result):
        raise AgentFault(f"{who} returned {shown(result)}; expected {wanted}")
    module: Any = result
    tensors = (*module.named_parameters(), *module.named_buffers()) if hasattr(module, "named_parameters") else ()
    if lazy := next((name for name, tensor in tensors if hasattr(tensor, "materialize")), None):
        raise AgentFault(
            f"{who} returned {shown(result)}, whose {lazy!r} has no size yet: call it once with zeros before you return it, or "
            "take a layer that is given its size, such as Linear instead of LazyLinear"
        )
    return result

"""A device where there is none: tensors that say they are on `standin`, compute on the CPU, and refuse what CUDA refuses.

    with stand_in_device():
        model.to("standin")(torch.zeros(2, 4))     # RuntimeError: aten.addmm: tensors on two devices

A tensor of the device is a wrapper (`torch.Tensor._make_wrapper_subclass`) around one on the CPU. Every operation comes through
`__torch_dispatch__`, which checks where its tensors are, computes with those on the CPU, and wraps the results. So values,
gradients and control flow are real: whole trainings run, by the code that a GPU would run. What it cannot show: graphs, the order
of streams, memory, speed. `FakeTensorMode` has no values, and refuses to draw random numbers on a device PyTorch was not built
for.

As on a GPU, host numbers (tensors of no dimensions) may be mixed in, indices may be on the CPU, and `copy_` and `to` go anywhere.

What would make the host wait for a GPU is noted: numbers that are read, copies that are not asynchronous (CUDA Runtime API, "API
synchronization behavior": to or from memory that is not page-locked, or without `non_blocking`), events that are waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils.backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "standin"
"""Of the device: PyTorch's `PrivateUse1`, since the autograd engine of a CPU build refuses tensors that say `cuda`."""


class _Backend(torch.utils.backend_registration._DummyBackendModule):
    """What PyTorch asks the module of a device."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Of `torch.autocast`."""
        return [torch.bfloat16]


torch.utils.backend_registration._setup_privateuseone_for_python_backend(NAME, _Backend())
aten = torch.ops.aten
GOES_ANYWHERE = {aten.copy_, aten._to_copy}
INDICES_ON_THE_HOST = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index}


READS_NUMBERS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.is_nonzero, aten.repeat_interleave}


class Call(NamedTuple):
    """Something that concerns the host, the device and time."""

    thread: str
    stream: Any
    """The thread's current one; None: the default."""
    what: str
    """"event": waited for one. "copy": an asynchronous copy. Anything else makes the host wait for all work of the stream."""


calls: list[Call] = []
_current = threading.local()
_page_locked: dict[int, torch.UntypedStorage] = {}
"""By address."""


def note(what: str) -> None:
    """Append to `calls`."""
    calls.append(Call(threading.current_thread().name, getattr(_current, "stream", None), what))


def _note(name: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Note an operation that makes the host wait, or a copy that does not."""
    if name in READS_NUMBERS:
        note(str(name))
    elif name in INDICES_ON_THE_HOST and any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in args[1]):
        note(f"{name} of a mask")
    elif name in GOES_ANYWHERE:
        source, target = (args[1], args[0]) if name is aten.copy_ else (args[0], result)
        if isinstance(source, OnDevice) == isinstance(target, OnDevice):
            return
        on_host = target if isinstance(source, OnDevice) else source
        asynchronous = kwargs.get("non_blocking") or (name is aten.copy_ and len(args) > 2 and args[2])
        note("copy" if asynchronous and is_page_locked(on_host) else f"{name} of {list(source.shape)}")


def is_page_locked(x: torch.Tensor) -> bool:
    """Whether memory of the host is."""
    return x.untyped_storage().data_ptr() in _page_locked


def page_locked(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """A copy in page-locked memory, or `x` where it is there."""
    if not is_page_locked(x):
        x = x.clone()
        _page_locked[x.untyped_storage().data_ptr()] = x.untyped_storage()
    return x


class OnDevice(torch.Tensor):
    """A tensor that says it is on the device."""

    content: torch.Tensor

    @staticmethod
    def __new__(cls, content: torch.Tensor) -> OnDevice:
        return torch.Tensor._make_wrapper_subclass(
            cls, content.size(), strides=content.stride(), storage_offset=content.storage_offset(),
            dtype=content.dtype, layout=content.layout, requires_grad=False, device=torch.device(NAME, 0),
        )  # fmt: skip

    def __init__(self, content: torch.Tensor):
        self.content = content

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.content!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a tensor of the device is not pickled")


class Device(TorchDispatchMode):
    """Sees the operations that make tensors: without a tensor among their arguments they reach no `OnDevice`."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})


class Generator(torch.Generator):
    """A random generator that may be one of the device."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = super().__new__(cls, "cpu")  # type: ignore[call-arg]
        if torch.device(device).type == NAME:
            _generators[made._cdata] = made
        return made


_generators: dict[int, Generator] = {}
"""Those of the device: an operation is given its generator as another object of Python."""


def compute(function: Any, args: Any, kwargs: Any) -> Any:
    """`function` on the CPU; RuntimeError where its tensors are on different devices."""
    values = tree_flatten((args, kwargs))[0]
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    wanted = kwargs.get("device")
    name = function.overloadpacket
    here = any(isinstance(x, OnDevice) for x in tensors)
    if name not in GOES_ANYWHERE:
        checked = tensors
        if name in INDICES_ON_THE_HOST and here:
            indices = {id(x) for x in args[1] if x is not None}
            checked = [x for x in tensors if id(x) not in indices or isinstance(x, OnDevice)]
        if here and any(not isinstance(x, OnDevice) and x.dim() for x in checked):
            places = ", ".join(f"{x.device.type} {list(x.shape)}" for x in tensors)
            raise RuntimeError(f"{name}: tensors on two devices: {places}")
        generator = kwargs.get("generator")
        on_device = here if wanted is None else torch.device(wanted).type == NAME
        if generator is not None and on_device != (generator._cdata in _generators):
            raise RuntimeError(f"{name}: the generator is of another device")
        if name is aten.is_pinned:
            return is_page_locked(args[0])
    elsewhere = torch.device(NAME) if here else torch.device("cpu")
    target = torch.device(wanted) if wanted is not None else elsewhere
    if name is aten.copy_:
        target = torch.device(NAME) if isinstance(args[0], OnDevice) else torch.device("cpu")
    if wanted is not None and target.type == NAME:
        kwargs = kwargs | {"device": torch.device("cpu")}
    pinned = kwargs.get("pin_memory")
    kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    given = args, kwargs
    wrapped = {id(x.content): x for x in tensors if isinstance(x, OnDevice)}
    args, kwargs = tree_map(lambda x: x.content if isinstance(x, OnDevice) else x, (args, kwargs))
    result = function(*args, **kwargs)
    if name is aten._to_copy and target.type == NAME and any(result is x for x in tree_flatten(args)[0]):
        result = result.clone()
    if pinned:
        _page_locked[result.untyped_storage().data_ptr()] = result.untyped_storage()
    if target.type == NAME:
        # An operation in place gives the very tensor that it was given.
        result = tree_map(
            lambda x: wrapped[id(x)] if id(x) in wrapped else OnDevice(x) if isinstance(x, torch.Tensor) else x, result
        )
    if here or target.type == NAME:
        _note(name, *given, result)
    return result


def _made_on_the_host(maker: Any, data: Any, *, device: Any = None, **kwargs: Any) -> torch.Tensor:
    made: torch.Tensor = maker(data, **kwargs)
    return made if device is None else made.to(device)


class _Nothing:
    """Stands for streams and events: work is done when the call returns."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Event(_Nothing):
    def synchronize(self) -> None:
        note("event")


@contextmanager
def _on_stream(stream: Any) -> Iterator[None]:
    before, _current.stream = getattr(_current, "stream", None), stream
    yield
    _current.stream = before


def _enter_without_inference(self: torch.inference_mode) -> None:
    self.prev = torch.is_grad_enabled()  # type: ignore[attr-defined]  # where `no_grad` looks for it
    torch.set_grad_enabled(not self.mode)


@contextmanager
def stand_in_device() -> Iterator[None]:
    """The device can be named in the block, in every thread that starts in it. `calls` is empty at its beginning."""
    calls.clear()
    run = threading.Thread.run

    def run_with_device(thread: threading.Thread) -> None:
        with Device():
            run(thread)

    answers: dict[str, Any] = {
        "_lazy_init": lambda: None, "is_available": lambda: True, "device_count": lambda: 1, "set_device": lambda device: None,
        "current_device": lambda: 0, "is_bf16_supported": lambda **_: True, "get_device_name": lambda *_: "stand-in",
        "get_rng_state_all": list, "synchronize": lambda *_: note("synchronize"),
        "Stream": _Nothing, "Event": _Event, "current_stream": _Nothing, "stream": _on_stream,
        "get_device_capability": lambda *_: (9, 0),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, answer)
        patch.setattr(torch, "Generator", Generator)
        # An inference tensor cannot be wrapped; it differs from one without a gradient in speed only.
        patch.setattr(torch.inference_mode, "__enter__", _enter_without_inference)
        patch.setattr(torch.inference_mode, "__exit__", torch.no_grad.__exit__)
        # These make their result without asking the mode.
        for maker in (torch.tensor, torch.as_tensor):
            patch.setattr(torch, maker.__name__, partial(_made_on_the_host, maker))
        patch.setattr(torch.Tensor, "pin_memory", page_locked)
        patch.setattr(torch.Tensor, "record_stream", lambda x, stream: None)
        patch.setattr(threading.Thread, "run", run_with_device)
        with Device():
            yield
    _generators.clear()
    _page_locked.clear()

"""Ways to damage a file, and what a command may then do: use the older checkpoint, go on as if nothing were, or refuse in one
clear paragraph. Never a traceback, a hang, or a run that starts from nothing without a word."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands import Ended

Damage = Callable[[Path], None]
DEEP = 100_000
"""Brackets in a deeply nested text: far more than Python's parser goes down."""


def _replaced(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    _replaced(path, b"")


def cut_in_half(path: Path) -> None:
    data = path.read_bytes()
    _replaced(path, data[: len(data) // 2])


def flip_bits(path: Path) -> None:
    data = bytearray(path.read_bytes())
    rng = random.Random(path.name)
    for _ in range(3):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    _replaced(path, bytes(data))


def zeros(path: Path) -> None:
    _replaced(path, bytes(path.stat().st_size))


def random_bytes(path: Path) -> None:
    _replaced(path, random.Random(path.name).randbytes(path.stat().st_size))


def grow(path: Path) -> None:
    _replaced(path, path.read_bytes() + b"\0garbage\xff")


def enormous(path: Path) -> None:
    """A terabyte that takes no room: no memory can hold it."""
    os.truncate(path, 1 << 40)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").touch()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere/at-all")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def failing_disk(path: Path) -> None:
    """Opening succeeds, reading fails (EIO), as on a bad disk."""
    path.unlink()
    path.symlink_to("/proc/self/mem")


FILES: dict[str, Damage] = {
    "removed": remove, "empty": empty, "cut in half": cut_in_half, "bits flipped": flip_bits, "zeros": zeros,
    "random bytes": random_bytes, "grown": grow, "a terabyte": enormous, "a folder": folder, "a link to itself": loop,
    "a link to nowhere": dangling_link, "a fifo": fifo, "a socket": a_socket, "an endless device": endless,
    "a disk that fails": failing_disk,
}  # fmt: skip
"""Damage to any file."""


def _text(text: str) -> Damage:
    return lambda path: _replaced(path, text.encode())


def _numbers(change: Callable[[Any], Any]) -> Damage:
    """Change every number of a JSON file or of a file of JSON lines."""

    def damage(path: Path) -> None:
        lines = path.read_text()
        whole = path.suffix != ".jsonl"
        parts = [lines] if whole else lines.splitlines()
        changed = [json.dumps(_mapped(json.loads(part), change)).replace(_HUGE_STAND_IN, "9" * 6000) for part in parts]
        _replaced(path, "\n".join(changed).encode() + b"\n")

    return damage


def _mapped(node: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(node, dict):
        return {key: _mapped(value, change) for key, value in node.items()}
    if isinstance(node, list):
        return [_mapped(value, change) for value in node]
    return change(node) if isinstance(node, int | float) and not isinstance(node, bool) else node


_HUGE_STAND_IN = "123456789123456789"

JSON: dict[str, Damage] = {
    "a list": _text("[]"), "a list of lists": _text("[[1, 2], [3]]"), "null": _text("null"), "a number": _text("7"),
    "a text": _text('"text"'), "an empty object": _text("{}"), "brackets 100,000 deep": _text("[" * DEEP + "]" * DEEP),
    "braces 100,000 deep": _text('{"a":' * DEEP + "1" + "}" * DEEP),
    "numbers as texts": _numbers(str), "numbers negative": _numbers(lambda n: -abs(n) - 1),
    "numbers NaN": _numbers(lambda n: float("nan")), "numbers infinite": _numbers(lambda n: float("inf")),
    "numbers as lists": _numbers(lambda n: [n]), "not UTF-8": lambda path: _replaced(path, b'{"a": "\xff\xfe"}'),
    "numbers of 6,000 digits": _numbers(lambda n: int(_HUGE_STAND_IN)), "numbers null": _numbers(lambda n: None),
}  # fmt: skip
"""Damage to a file of JSON."""


def sealed(damage: Damage) -> Damage:
    """The same damage to a checkpoint's file, with a manifest that agrees with it: length and checksum are right."""

    def damage_and_seal(path: Path) -> None:
        damage(path)
        manifest = path.parent / "manifest"
        facts = json.loads(manifest.read_bytes().partition(b"\n")[2])
        data = path.read_bytes()
        facts["files"][path.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        seal(manifest, json.dumps(facts).encode())

    return damage_and_seal


def sealed_manifest(damage: Damage) -> Damage:
    """Damage to the JSON of a manifest, whose own checksum is then right again."""

    def damage_and_seal(manifest: Path) -> None:
        body = manifest.with_name("body.json")
        body.write_bytes(manifest.read_bytes().partition(b"\n")[2])
        damage(body)
        seal(manifest, body.read_bytes())
        body.unlink()

    return damage_and_seal


def seal(manifest: Path, body: bytes) -> None:
    """Write a manifest with the right checksum."""
    _replaced(manifest, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def tensors(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
    """Change the tensors of a safetensors file."""

    def damage(path: Path) -> None:
        import safetensors.torch

        _replaced(path, safetensors.torch.save(change(safetensors.torch.load(path.read_bytes()))))

    return damage


def tensor_damages() -> dict[str, Damage]:
    """Damage to a file of tensors that stays a file of tensors."""
    import torch

    def all_of(change: Callable[[Any], Any]) -> Damage:
        return tensors(lambda old: {name: change(tensor) for name, tensor in old.items()})

    return {
        "no tensors": tensors(lambda old: {}),
        "other names": tensors(lambda old: {f"x{name}": tensor for name, tensor in old.items()}),
        "half of the tensors": tensors(lambda old: dict(list(old.items())[::2])),
        "other shapes": all_of(lambda tensor: tensor.new_zeros(3, 2)),
        "other types": all_of(lambda tensor: tensor.to(torch.bool)),
        "NaN": all_of(lambda tensor: tensor * float("nan") if tensor.is_floating_point() else tensor),
        "scalars": all_of(lambda tensor: tensor.new_zeros(())),
    }


def restore(copy: Path, original: Path) -> None:
    """Make `copy` equal to `original` again."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy, symlinks=True)


LONGEST = 1500
"""Characters of a message that is still one paragraph."""


def verdict(ended: Ended, resumes: bool) -> str:
    """What came of a command after damage: "goes on" (from the newest checkpoint), "older checkpoint", "refused" with exit code 2
    and one paragraph, or what must not happen. `resumes`: it is `headrace train` with checkpoints."""
    if ended.problem:
        return ended.problem
    if ended.code == 2:
        said = ended.message
        return "refused" if said and len(said) < LONGEST else "refused without a clear paragraph"
    if ended.code != 0:
        return f"exit code {ended.code}"
    if resumes and "Going on from" not in ended.output:
        return "started from nothing"
    return "older checkpoint" if "damaged" in ended.output else "goes on"

"""`demo`: one HTML file in which a policy plays in the visitor's browser. The file holds everything, so nothing is fetched.

The network runs by onnxruntime-web. Two files of that npm package are needed, 14 MB, too much for this package: they are taken
from a folder, or fetched once by npm into the user's cache.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from headrace.config import Config, ConfigError
from headrace.runs.files import sha256, write_together

VERSION = "1.30.0"  # of onnxruntime-web
FILES = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
"""Its files that are used, with the SHA-256 of this version."""
WORLDS = (
    "gym/CartPole-v0", "gym/CartPole-v1", "gym/Pendulum-v1", "gym/MountainCar-v0", "gym/MountainCarContinuous-v0",
    "gym/Acrobot-v1",
)  # fmt: skip
"""Environments that demo/worlds.js has."""
TEMPLATES = Path(__file__).with_name("demo")
COMMAND = f"npm install onnxruntime-web@{VERSION}"


def check_world(config: Config) -> None:
    """Raise `ConfigError` where a policy's environment is none of the page's, or changes it by settings."""
    if config.env not in WORLDS:
        raise ConfigError(f"--demo: a page can play {', '.join(WORLDS)}; not {config.env}. --video shows a game")
    envs = config.envs
    changed = [
        name for name, usual in (("frameskip", 1), ("frame_stack", 1), ("kwargs", {}), ("reward_soft_clip", None))
        if getattr(envs, name) not in (None, usual)
    ]  # fmt: skip
    if changed:
        raise ConfigError(f"--demo: the page's {config.env} is the plain one; this policy has envs.{', envs.'.join(changed)}")


def runtime(package: Path | None = None) -> dict[str, bytes]:
    """The files of onnxruntime-web by name. `package`: its folder, of any version; None: from the cache, or by npm into it.

    Raises `ConfigError` where they are not there, with the command that helps, and where npm gives other files than `FILES`.
    """
    if package is not None:
        found = {name: package / "dist" / name for name in FILES}
        if missing := [path for path in found.values() if not path.is_file()]:
            raise ConfigError(f"{package} is not the npm package onnxruntime-web: there is no {missing[0]}. {COMMAND} gives one")
        return {name: path.read_bytes() for name, path in found.items()}
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / f"onnxruntime-web-{VERSION}"
    files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    if {name: sha256(data) for name, data in files.items()} == FILES:
        return files
    files = _by_npm()
    if other := [name for name in FILES if sha256(files[name]) != FILES[name]]:
        raise ConfigError(f"npm gave another {other[0]} than that of onnxruntime-web {VERSION}; it is not used")
    folder.mkdir(parents=True, exist_ok=True)
    write_together({folder / name: data for name, data in files.items()})
    return files


def _by_npm() -> dict[str, bytes]:
    by_hand = f"Where npm works, run: {COMMAND}; then give --onnxruntime-web node_modules/onnxruntime-web"
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError(f"--demo needs the npm package onnxruntime-web, and npm is not installed here. {by_hand}")
    with tempfile.TemporaryDirectory(prefix="headrace-npm-") as folder:
        command = [npm, "pack", f"onnxruntime-web@{VERSION}", "--ignore-scripts", "--pack-destination", folder]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"npm has not given onnxruntime-web within {error.timeout:.0f} s. {by_hand}") from error
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            raise ConfigError(f"npm cannot give onnxruntime-web {VERSION}: {done.stderr.strip()[-300:]}\n{by_hand}")
        with tarfile.open(archives[0]) as archive:
            members = {name: archive.extractfile(f"package/dist/{name}") for name in FILES}
            return {name: member.read() for name, member in members.items() if member is not None}


def page(name: str, model: bytes, contract: dict[str, Any], files: dict[str, bytes]) -> str:
    """The HTML text. `name`: its title; `files`: see `runtime`."""
    result, training = contract["evaluation"], contract["training"]
    played = f", mean return {result['mean']:.1f} over {result['episodes']} games" if result else ""
    facts = f"{training['algorithm']} on {contract['environment']['id']}, trained for {training['step']:,} steps{played}."
    script, wasm = files.values()
    found = {
        "title": html.escape(name),
        "facts": html.escape(facts),
        "version": VERSION,
        "contract": json.dumps(contract).replace("<", "\\u003c"),
        "model": _packed(model),
        "runtime": _packed(script),
        "wasm": _packed(wasm),
        "worlds": (TEMPLATES / "worlds.js").read_text(),
    }
    text = (TEMPLATES / "page.html").read_text()
    return re.sub(rf"@({'|'.join(found)})@", lambda match: found[match[1]], text)


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()

"""Doom engines: their configuration, their start, and a watcher process that kills them when this process has ended."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import vizdoom

from headrace import _native
from headrace.processes.leftovers import make_folder
from headrace.processes.orphaned_programs import STARTED_BY

FILES = {"duel_bots": "multi_duel", "deathmatch_bots": "multi", "multi_deathmatch": "multi", "multi_cig": "cig"}
"""Name -> name of the package's configuration file, if they differ."""

ENGINE = str(Path(vizdoom.__file__).parent / "vizdoom")  # the engine's program
DEATHMATCH_ARGS = (
    "-deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +sv_nocrouch 1 +sv_noexit 1"
    " +viz_respawn_delay 0"
)
"""Rules of the Visual Doom AI Competition, as in Petrenko et al. 2020: players respawn automatically and at once. In addition, a
player that opens the level's exit dies, and the game goes on."""
PORTS = range(10_000, 32_000)  # UDP ports of games
PORT_RETRIES = 5  # attempts to start a game, each on another port


def config_path(name: str) -> Path:
    """The package's configuration file of a scenario, or `name` itself if it is a .cfg file."""
    return Path(name) if name.endswith(".cfg") else Path(vizdoom.scenarios_path) / f"{FILES.get(name, name)}.cfg"


def configured(name: str, settings: Mapping[str, Any], *, gray: bool) -> vizdoom.DoomGame:
    """A game that is not started. This package's settings override the user's, which override the scenario's."""
    game = vizdoom.DoomGame()
    game.load_config(str(config_path(name).resolve()))
    if settings:
        game.set_config(dict(settings))
    level = game.get_doom_scenario_path()
    if level and not Path(level).exists():  # the library says so only when it starts the engine, in a run's workers
        raise vizdoom.FileDoesNotExistException(f"doom_scenario_path names {level}, and there is no such file")
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.GRAY8 if gray else vizdoom.ScreenFormat.CRCGCB)
    for part in ("depth_buffer", "labels_buffer", "automap_buffer", "audio_buffer", "objects_info", "sectors_info"):
        getattr(game, f"set_{part}_enabled")(False)
    return game


def free_port() -> int:
    """A UDP port that is free now, below the system's ephemeral ports. Rarely another process takes it before its use, so callers
    try several times."""
    for _ in range(1000):
        port = secrets.choice(PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError(f"there is no free UDP port among {PORTS.start} to {PORTS.stop - 1}")


class EngineFailed(RuntimeError):
    """An engine ended before its first state. Its game cannot be used any more, nor closed."""


def start(game: vizdoom.DoomGame) -> None:
    """Start the engine under this process's watcher, and wait for its first state. Raises `EngineFailed`, and the library's own
    errors for settings that Doom refuses."""
    engine, done = Engine(game), SimpleQueue[Exception | None]()
    # in a thread, because it never returns if the engine ends
    threading.Thread(target=lambda: done.put(error_of(engine.start)), name="vizdoom start", daemon=True).start()
    while not engine.failed:
        with suppress(Empty):
            if (error := done.get(timeout=0.2)) is not None:
                raise error
            return
    raise EngineFailed("the Doom engine ended while it was starting")


def error_of(work: Callable[[], None]) -> Exception | None:
    """Call `work`, and return the error that it raises, if any."""
    try:
        work()
    except Exception as error:
        return error
    return None


class Engine:
    """The engine of a game and its process, which is found by its settings file (see `guard`). Linux only."""

    def __init__(self, game: vizdoom.DoomGame) -> None:
        self._game, self._settings = game, str(guard(game))
        self._starting, self._ended = Path(f"{self._settings}.starting"), Path(f"{self._settings}.ended")
        self._pid, self._instance = 0, ""

    def start(self) -> None:
        """Start the engine and wait for its first state. Never returns if the engine ends before: see engine.sh."""
        self._starting.touch()
        self._game.init()
        self._starting.unlink()

    @property
    def starting(self) -> bool:
        """Whether `start` was called and has not returned."""
        return self._starting.exists()

    @property
    def failed(self) -> bool:
        """Whether the engine has ended before its first state."""
        return self._ended.exists()

    @property
    def pid(self) -> int:
        """The process id; 0 while there is no such process."""
        if not self._pid:
            self._find()
        return self._pid

    def _find(self) -> None:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                args = entry.read_bytes().split(b"\0")
                if args[0] == ENGINE.encode() and self._settings.encode() in args:
                    self._pid = int(entry.parent.name)
                    self._instance = args[args.index(b"+viz_instance_id") + 1].decode()

    def runs(self) -> bool:
        """Whether the process exists and is not stopped. True if it was never found, unless its start has failed."""
        if self.failed or not self.pid:
            return not self.failed
        try:
            state = Path(f"/proc/{self._pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            return False
        return state not in (b"T", b"t", b"Z", b"X")

    def kill(self) -> None:
        """Send SIGKILL, which also ends a stopped process."""
        self._pid = 0
        self._find()  # again: the id may belong to another process by now
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def remove_shared_memory(self) -> None:
        """Remove the shared memory of a killed engine."""
        if self._instance:
            for kind in ("SM", "MQCtr", "MQDoom"):
                Path(f"/dev/shm/ViZDoom{kind}{self._instance}").unlink(missing_ok=True)


# -- the watcher --------------------------------------------------------------------------------------------------------

_REAPER = """
read -r _
for file in $(grep -laF "$0/" /proc/[0-9]*/cmdline); do
    tr '\\0' '\\n' <"$file" | grep -q '^+viz_instance_id$' || continue
    pid=${file#/proc/}
    kill -9 "${pid%/cmdline}"
done
if [ -f "$0/shared-memory" ]; then
    while read -r file; do rm -f "$file"; done <"$0/shared-memory"
fi
rm -rf "$0"
"""
"""The watcher's script. It waits until its input is closed, which is when this process has ended in any way. Then it kills the
Doom engines of this process's folder and removes the folder and the shared memory of all its engines, also of those that were
killed before. The environment variable `STARTED_BY` is removed from it so that a run's supervisor does not kill it. If it is
killed anyway, a later run removes the folder and the shared memory (`processes.leftovers`)."""


@cache
def preloaded_library() -> Path | None:
    """The library that is preloaded into engines (native/doom/preload.cpp); None if it was not built."""
    paths = (Path(folder) / "doom_preload.so" for folder in _native.__path__)
    return next((path for path in paths if path.is_file()), None)


@cache
def _process_folder(pid: int) -> Path:
    """Make a folder for the Doom engines of this process, and start the watcher that removes both when this process has ended."""
    folder = make_folder("vizdoom")
    # Without this folder, engines that start at the same time all try to make it. All but one fail, and the vizdoom library then
    # ends the calling process.
    (folder / "_vizdoom").mkdir()
    if (library := preloaded_library()) is not None:
        (folder / "preload.so").symlink_to(library.resolve())
    environ = {name: value for name, value in os.environ.items() if name != STARTED_BY}
    command = ["sh", "-c", _REAPER, str(folder)]
    # A file descriptor, and no file: the interpreter would close that while it ends, before the library's threads have ended.
    script_input, _ = os.pipe()
    _watchers.append(
        subprocess.Popen(command, stdin=script_input, stderr=subprocess.DEVNULL, start_new_session=True, env=environ)
    )
    os.close(script_input)
    return folder


_watchers: list[subprocess.Popen[bytes]] = []  # kept, since Python warns of a program that runs when its object is deleted


def guard(game: vizdoom.DoomGame) -> Path:
    """Let the engine start in this process's folder, under its watcher. (Forked processes have folders of their own.)

    Returns the engine's settings file in the folder, whose path is unique to this engine's command line.
    """
    folder = _process_folder(os.getpid())
    os.environ["HEADRACE_VIZDOOM_FOLDER"] = str(folder)
    os.environ["HEADRACE_VIZDOOM_ENGINE"] = ENGINE
    game.set_vizdoom_path(str(Path(__file__).with_name("engine.sh")))
    settings = folder / f"settings-{id(game)}.ini"
    game.set_doom_config_path(str(settings))
    return settings

"""Doom engines: their configuration, their start, and a watcher process that kills them when this process has ended."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import vizdoom

from headrace import _native
from headrace.processes.leftovers import make_folder
from headrace.processes.orphaned_programs import STARTED_BY

FILES = {
    "duel_bots": "multi_duel",
    "deathmatch_bots": "multi",
    "multi_deathmatch": "multi",
    "multi_cig": "cig",
}
"""Name -> name of the package's configuration file, if they differ."""

DEATHMATCH_ARGS = (
    "-deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +sv_nocrouch 1 +sv_noexit 1"
    " +viz_respawn_delay 0"
)
"""Rules of the Visual Doom AI Competition, as in Petrenko et al. 2020: players respawn automatically and at once. In addition, a
player that opens the level's exit dies, and the game goes on."""
PORTS = range(10_000, 32_000)
"""UDP ports of games."""
PORT_RETRIES = 5
"""Attempts to start a game, each on another port."""


def config_path(name: str) -> Path:
    """The package's configuration file of a scenario, or `name` itself if it is a .cfg file."""
    return Path(name) if name.endswith(".cfg") else Path(vizdoom.scenarios_path) / f"{FILES.get(name, name)}.cfg"


def configured(name: str, settings: Mapping[str, Any], *, gray: bool) -> vizdoom.DoomGame:
    """A game that is not started. This package's settings override the user's, which override the scenario's."""
    game = vizdoom.DoomGame()
    game.load_config(str(config_path(name).resolve()))
    if settings:
        game.set_config(dict(settings))
    game.set_mode(vizdoom.Mode.PLAYER)
    game.set_window_visible(False)
    game.set_sound_enabled(False)
    game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
    game.set_screen_format(vizdoom.ScreenFormat.GRAY8 if gray else vizdoom.ScreenFormat.RGB24)
    for switch_off in (
        game.set_depth_buffer_enabled,
        game.set_labels_buffer_enabled,
        game.set_automap_buffer_enabled,
        game.set_audio_buffer_enabled,
        game.set_objects_info_enabled,
        game.set_sectors_info_enabled,
    ):
        switch_off(False)
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


def start(game: vizdoom.DoomGame) -> None:
    """Start the engine under this process's watcher, and wait for its first state."""
    guard(game)
    game.init()


def start_alone(game: vizdoom.DoomGame, args: str) -> None:
    """Start an engine that hosts a network game without other players, which bots need. `args`: more of its command line.

    Raises `vizdoom.ViZDoomErrorException` or `vizdoom.ViZDoomUnexpectedExitException` of the last of `PORT_RETRIES` attempts.
    """
    for attempt in range(PORT_RETRIES):
        game.set_game_args(f"-host 1 -port {free_port()} {DEATHMATCH_ARGS} {args}")
        try:
            return start(game)
        except (vizdoom.ViZDoomErrorException, vizdoom.ViZDoomUnexpectedExitException):
            game.close()
            if attempt == PORT_RETRIES - 1:
                raise


class Engine:
    """The process of an engine, found by its settings file (see `guard`). Linux only."""

    def __init__(self, settings: Path) -> None:
        self._settings = str(settings).encode()
        self._pid, self._instance = 0, ""

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
                if self._settings in args and b"+viz_instance_id" in args:
                    self._pid = int(entry.parent.name)
                    self._instance = args[args.index(b"+viz_instance_id") + 1].decode()

    def runs(self) -> bool:
        """Whether the process exists and is not stopped. True if it was never found."""
        if not self.pid:
            return True
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
def yield_library() -> Path | None:
    """The library that lets engines yield their cores (native/doom/yield.cpp); None if it was not built."""
    paths = (Path(folder) / "doom_yield.so" for folder in _native.__path__)
    return next((path for path in paths if path.is_file()), None)


@cache
def _process_folder(pid: int) -> Path:
    """Make a folder for the Doom engines of this process, and start the watcher that removes both when this process has ended."""
    folder = make_folder("vizdoom")
    # Without this folder, engines that start at the same time all try to make it. All but one fail, and the vizdoom library then
    # ends the calling process.
    (folder / "_vizdoom").mkdir()
    if (library := yield_library()) is not None:
        (folder / "yield.so").symlink_to(library.resolve())
    environ = {name: value for name, value in os.environ.items() if name != STARTED_BY}
    command = ["sh", "-c", _REAPER, str(folder)]
    _watchers.append(
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, env=environ)
    )
    return folder


_watchers: list[subprocess.Popen[bytes]] = []
"""Keeps the watchers' input open as long as this process runs."""


def guard(game: vizdoom.DoomGame) -> Path:
    """Let the engine start in this process's folder, under its watcher. (Forked processes have folders of their own.)

    Returns the engine's settings file in the folder, whose path is unique to this engine's command line.
    """
    folder = _process_folder(os.getpid())
    os.environ["HEADRACE_VIZDOOM_FOLDER"] = str(folder)
    os.environ["HEADRACE_VIZDOOM_ENGINE"] = str(Path(vizdoom.__file__).parent / "vizdoom")
    game.set_vizdoom_path(str(Path(__file__).with_name("engine.sh")))
    settings = folder / f"settings-{id(game)}.ini"
    game.set_doom_config_path(str(settings))
    return settings

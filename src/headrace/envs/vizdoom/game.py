"""Doom engines: configured for learning, started under a watcher, gone when their owner is gone."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import vizdoom

from headrace import _native
from headrace.runs.programs import STARTED_BY

FILES = {
    "duel_bots": "multi_duel",
    "deathmatch_bots": "multi",
    "multi_deathmatch": "multi",
    "multi_cig": "cig",
}
"""Names whose configuration file of the package has another name."""

DEATHMATCH_ARGS = (
    "-deathmatch +sv_forcerespawn 1 +sv_noautoaim 1 +sv_respawnprotect 1 +sv_spawnfarthest 1 +sv_nocrouch 1 +sv_noexit 1"
    " +viz_respawn_delay 0"
)
"""Rules of the Visual Doom AI Competition, as in Petrenko et al. 2020: the dead come back by themselves and at once. Besides, who
opens the level's exit dies, and the game goes on."""
PORTS = range(10_000, 32_000)
"""UDP ports of games."""
PORT_RETRIES = 5
"""Attempts to start a game on a port; each takes another port."""


def config_path(name: str) -> Path:
    """The configuration file of a scenario of the package, or the file that the name is."""
    return Path(name) if name.endswith(".cfg") else Path(vizdoom.scenarios_path) / f"{FILES.get(name, name)}.cfg"


def configured(name: str, settings: Mapping[str, Any], *, gray: bool) -> vizdoom.DoomGame:
    """A game with the scenario's settings, then the user's, then what this package relies on. Not started."""
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
    """A UDP port that nobody holds now, below those that the system gives to sockets without a port of their own. Somebody else
    may take it before it is used, if very rarely: starting is tried several times."""
    for _ in range(1000):
        port = secrets.choice(PORTS)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError(f"there is no free UDP port among {PORTS.start} to {PORTS.stop - 1}")


def start(game: vizdoom.DoomGame) -> None:
    """Start the engine under this process's watcher: wait until it has made its first state."""
    guard(game)
    game.init()


def start_alone(game: vizdoom.DoomGame, args: str) -> None:
    """Start an engine that hosts a network game without other players, as bots need; `args` as the engine's command line.

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
    """The process of an engine that was started with a settings file of its own, see `guard`. Linux only."""

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
        """Whether the process is there and not stopped. True where that cannot be known."""
        if not self.pid:
            return True
        try:
            state = Path(f"/proc/{self._pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            return False
        return state not in (b"T", b"t", b"Z", b"X")

    def kill(self) -> None:
        """SIGKILL, whether it hangs or is stopped."""
        self._pid = 0
        self._find()  # anew: the number may be another process's by now
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def remove_shared_memory(self) -> None:
        """Remove what a killed engine leaves behind."""
        if self._instance:
            for kind in ("SM", "MQCtr", "MQDoom"):
                Path(f"/dev/shm/ViZDoom{kind}{self._instance}").unlink(missing_ok=True)


# -- nothing is left behind ---------------------------------------------------------------------------------------------

_REAPER = """
read -r _
for file in $(grep -laF "$0/" /proc/[0-9]*/cmdline); do
    tr '\\0' '\\n' <"$file" | grep -q '^+viz_instance_id$' || continue
    pid=${file#/proc/}
    kill -9 "${pid%/cmdline}"
done
if [ -f "$0/instances" ]; then
    while read -r instance; do
        rm -f "/dev/shm/ViZDoomSM$instance" "/dev/shm/ViZDoomMQCtr$instance" "/dev/shm/ViZDoomMQDoom$instance"
    done <"$0/instances"
fi
rm -rf "$0"
"""
"""Waits until its input is closed, which is when this process has ended in whatever way; then kills the Doom engines that were
started with our folder, and removes the folder and the shared memory of all engines that were, also of those that somebody else
has killed. It is no program of this process that a run's supervisor would kill before that is done (`headrace.runs.programs`)."""


@cache
def yield_library() -> Path | None:
    """The library that lets engines yield their cores (native/doom/yield.cpp); None where it was not built."""
    paths = (Path(folder) / "doom_yield.so" for folder in _native.__path__)
    return next((path for path in paths if path.is_file()), None)


@cache
def _process_folder(pid: int) -> Path:
    """A folder for the Doom engines of this process, and a watcher that removes both when this process has ended."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-vizdoom-"))
    # Engines that start at the same time and do not find this folder all make it; all but one fail, and the library takes the
    # process that waits for them with it.
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
"""Referenced, so that their input stays open as long as this process runs."""


def guard(game: vizdoom.DoomGame) -> Path:
    """Have the engine started in this process's folder, under its watcher. (Forked processes have folders of their own.)

    Returns the engine's settings file there, a name that no other engine has on its command line.
    """
    folder = _process_folder(os.getpid())
    os.environ["HEADRACE_VIZDOOM_FOLDER"] = str(folder)
    os.environ["HEADRACE_VIZDOOM_ENGINE"] = str(Path(vizdoom.__file__).parent / "vizdoom")
    game.set_vizdoom_path(str(Path(__file__).with_name("engine.sh")))
    settings = folder / f"settings-{id(game)}.ini"
    game.set_doom_config_path(str(settings))
    return settings

"""The kernels that a GPU gets, run on the CPU lane by lane: bit for bit what the CPU's vector gives."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from gymnasium.vector import AutoresetMode
from host_kernels import HostKernels

import headrace_atari._native.atari as native
from headrace_atari import AtariVector, KernelOptions, games
from headrace_atari import kernels as atari_kernels
from headrace_atari.kernels import assemble, compiled, nvrtc_compile
from headrace_atari.roms import load_game

SAME_STEP = AutoresetMode.SAME_STEP
INTERPRETER = KernelOptions("interpreter", 32)


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari_kernels, "CudaKernels", lambda device: HostKernels())


def pair(game: Any, n: int, kernels: KernelOptions = INTERPRETER, **options: Any) -> tuple[AtariVector, AtariVector]:
    """The same environments on the kernels and on the CPU."""
    return AtariVector(game, n, device="cuda", kernels=kernels, **options), AtariVector(game, n, num_threads=1, **options)


def assert_same(ours: tuple, theirs: tuple, finals: bool = True) -> None:
    for mine, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert isinstance(mine, torch.Tensor)
        assert mine.numpy().dtype == other.dtype
        np.testing.assert_array_equal(mine.numpy(), other)
    mine, other = ours[-1], theirs[-1]
    for key in ("env_id", "lives", "frame_number", "episode_frame_number"):
        np.testing.assert_array_equal(mine[key].numpy(), other[key])
    if "final_obs" in other and finals:
        ended = theirs[2] | theirs[3]
        np.testing.assert_array_equal(mine["final_obs"].numpy()[ended], other["final_obs"][ended])


def play(ours: AtariVector, theirs: AtariVector, steps: int, seed: int = 0) -> int:
    """The same random play on both. Returns how many episodes ended."""
    rng = np.random.default_rng(seed)
    ends = 0
    for step in range(steps):
        actions = rng.integers(theirs.single_action_space.n, size=theirs.num_envs)
        expected = theirs.step(actions)
        assert_same(ours.step(torch.from_numpy(actions) if step % 2 else actions), expected)
        ends += int((expected[2] | expected[3]).sum())
    return ends


# Every mapper, both TV formats, joysticks and paddles, unusual heights, and every option at least once.
CASES: list[tuple[Any, int, dict[str, Any]]] = [
    ("breakout", 30, {"autoreset_mode": SAME_STEP, "max_num_frames_per_episode": 60}),
    ("pong", 12, {"repeat_action_probability": 0.25}),
    ("seaquest", 24, {"max_num_frames_per_episode": 44, "autoreset_mode": SAME_STEP}),
    ("ms_pacman", 10, {"grayscale": False, "img_height": 64, "img_width": 100}),
    ("road_runner", 10, {"frameskip": 3, "full_action_space": True, "repeat_action_probability": 0.5}),
    ("elevator_action", 8, {"maxpool": False, "noop_max": 0, "frameskip": 5}),
    ("klax", 30, {"max_num_frames_per_episode": 101, "sticky_stream": "counter", "repeat_action_probability": 0.25}),
    ("montezuma_revenge", 14, {"life_loss_info": True, "autoreset_mode": SAME_STEP}),
    ("robotank", 8, {"use_fire_reset": False, "reward_clipping": False}),
    ("pitfall2", 8, {"stack_num": 1, "img_height": 210, "img_width": 160}),
    ("air_raid", 16, {"episodic_life": True, "frameskip": 2, "img_height": 125, "img_width": 80}),
    ("carnival", 8, {"stack_num": 2, "img_height": 107, "img_width": 80}),
    ("pooyan", 15, {"frameskip": 1, "max_num_frames_per_episode": 13}),
    ("journey_escape", 8, {"img_height": 42, "img_width": 42}),
    ("surround", 10, {"autoreset_mode": SAME_STEP, "max_num_frames_per_episode": 20}),
    ("space_invaders", 8, {"obs_type": "ram"}),
    ("freeway", 8, {"noop_min": 1, "noop_max": 3, "mode": 1, "difficulty": 1}),
    (["pong", "breakout", "ms_pacman"], 10, {}),
]


@pytest.mark.parametrize(("game", "steps", "options"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)])
def test_kernels_equal_the_cpu(game: Any, steps: int, options: dict[str, Any]) -> None:
    ours, theirs = pair(game, 3, **options)
    assert_same(ours.reset(seed=5), theirs.reset(seed=5))
    ends = play(ours, theirs, steps)
    if "max_num_frames_per_episode" in options:
        assert ends > 0
    assert_same(ours.reset(), theirs.reset())  # goes on with the generators and the consoles as they are
    play(ours, theirs, 2, seed=1)


@pytest.mark.parametrize(
    "options", [{}, {"noop_min": 3, "noop_max": 25}, {"repeat_action_probability": 0.25}, {"use_fire_reset": False}]
)
def test_episodes_that_begin_from_kept_states_are_those_of_the_cpu(options: dict[str, Any]) -> None:
    """The no-ops that are skipped change nothing: with FIRE and without, in a game that leaves rows out (Journey Escape) and one
    whose resets keep memory (Seaquest), over a dozen episodes of each console."""
    ours, theirs = pair(["pong", "freeway", "journey_escape", "seaquest", "qbert"], 20, max_num_frames_per_episode=12, **options)
    assert_same(ours.reset(seed=3), theirs.reset(seed=3))
    assert play(ours, theirs, 50) >= 20 * 12


def test_all_frames_but_the_last_four_of_the_longest_beginning_are_kept() -> None:
    def size(**options: Any) -> int:
        return len(ours._native._tables) if (ours := pair("pong", 1, **options)[0]) else 0

    kept = 75 * (30 - 4) * native.DEVICE_SIZES["HR_STATE_BYTES"]
    assert size() - size(noop_max=4) > 0.8 * kept
    assert size(repeat_action_probability=0.25) == size(repeat_action_probability=0.25, noop_max=4)  # it changes them


@pytest.mark.parametrize("spread", [KernelOptions("interpreter", 1), KernelOptions("interpreter", 8, 96)])
def test_consoles_per_warp_change_nothing(spread: KernelOptions) -> None:
    ours, theirs = pair(["pong", "freeway"], 40, spread)
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))
    play(ours, theirs, 2)


def test_few_consoles_have_a_warp_each() -> None:
    assert [KernelOptions().per_warp(n) for n in (1, 511, 1023, 1024, 4096, 16384, 65536)] == [1, 1, 1, 2, 8, 32, 32]
    assert KernelOptions(consoles_per_warp=5).per_warp(1) == 5
    ours, theirs = pair(["pong", "freeway"], 3, KernelOptions("interpreter"))
    assert [len(slots) for _, slots in ours._native._parts] == [3]  # no lane is left empty
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))
    play(ours, theirs, 2)


def test_programs_of_many_games_are_not_compiled_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes NVRTC more than a minute."""
    loaded: list[str | None] = []

    class Recording(HostKernels):
        def load(self, program: str | None) -> Any:
            loaded.append(program)
            return super().load(None)

    monkeypatch.setattr(atari_kernels, "CudaKernels", lambda device: Recording())
    few, many = ["pong", "breakout", "freeway", "boxing"], ["pong", "breakout", "freeway", "boxing", "tennis"]
    for game, emulator, compiled_programs in [
        ("pong", None, 1), (few, None, 4), (many, None, 0), (many, "blocks", 5), ("pong", "interpreter", 0),
    ]:  # fmt: skip
        loaded.clear()
        AtariVector(game, 5, device="cuda", kernels=KernelOptions(emulator) if emulator else None)  # type: ignore[arg-type]
        assert sum(program is not None for program in loaded) == compiled_programs
        assert len(loaded) == max(1, compiled_programs)


def test_lanes_of_a_phase_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the opposite order they give the same, so on a GPU they may run at the same time."""
    monkeypatch.setattr(atari_kernels, "CudaKernels", lambda device: HostKernels(backwards=True))
    ours, theirs = pair("breakout", 3, autoreset_mode=SAME_STEP, max_num_frames_per_episode=20)
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))
    assert play(ours, theirs, 12) > 0


def test_some_environments_are_reset() -> None:
    ours, theirs = pair("pong", 4)
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))
    play(ours, theirs, 3)
    mask = {"reset_mask": np.array([True, False, False, True])}
    assert_same(ours.reset(seed=9, options=mask), theirs.reset(seed=9, options=mask))
    play(ours, theirs, 3)


def test_observations_go_to_memory_of_the_caller() -> None:
    ours, theirs = pair("pong", 3)
    out = torch.zeros((5, 4, 84, 84), dtype=torch.uint8)
    rows = np.array([4, 0, 2])
    observations, _ = ours.reset(seed=1, out=out, rows=rows)
    expected, _ = theirs.reset(seed=1)
    assert observations is out
    np.testing.assert_array_equal(out[rows].numpy(), expected)
    assert not out[[1, 3]].any()
    actions = np.array([1, 2, 3])
    ours.send(actions, out=out, rows=rows)
    ours.recv()
    np.testing.assert_array_equal(out[rows].numpy(), theirs.step(actions)[0])
    for wrong, message in [
        (out.float(), "uint8 tensor"),
        (np.zeros((3, 4, 84, 84), np.uint8), "uint8 tensor"),
        (out[:2], "outside out"),
        (out[:, :2], "an observation has 28224"),
        (out.transpose(2, 3), "contiguous"),
    ]:
        with pytest.raises(ValueError, match=message):
            ours.send(actions, out=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"repeat_action_probability": 0.25}])
def test_saved_states_go_from_one_to_the_other(options: dict[str, Any]) -> None:
    ours, theirs = pair("seaquest", 2, **options)
    ours.reset(seed=1)
    theirs.reset(seed=1)
    play(ours, theirs, 5)
    for saved in (theirs.save_state(0), ours.save_state(0)):
        play(ours, theirs, 4, seed=3)
        ours.load_state(0, saved)
        theirs.load_state(0, saved)
        play(ours, theirs, 4, seed=4)


def test_screens_are_rendered() -> None:
    ours, theirs = pair("pong", 2, render_mode="rgb_array")
    ours.reset(seed=1)
    theirs.reset(seed=1)
    play(ours, theirs, 3)
    for mine, other in zip(ours.render() or (), theirs.render() or (), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_misuse_is_refused() -> None:
    env = AtariVector("pong", 2, device="cuda", kernels=INTERPRETER)
    with pytest.raises(RuntimeError, match="follows a reset"):
        env.step(np.zeros(2, int))
    with pytest.raises(RuntimeError, match="first reset"):
        env.reset(options={"reset_mask": np.array([True, False])})
    env.reset()
    with pytest.raises(ValueError, match="action 6 of environment 1"):
        env.step(np.array([0, 6]))
    with pytest.raises(ValueError, match="integers of shape"):
        env.step(torch.zeros(2))
    env.send(np.zeros(2, int))
    with pytest.raises(RuntimeError, match="recv comes first"):
        env.send(np.zeros(2, int))
    env.recv()
    with pytest.raises(RuntimeError, match="recv follows"):
        env.recv()
    # A tensor is not read back: an action outside is the nearest one inside.
    other = AtariVector("pong", 2, device="cuda", kernels=INTERPRETER)
    env.reset(seed=1)
    other.reset(seed=1)
    np.testing.assert_array_equal(env.step(torch.tensor([99, -1]))[0], other.step(np.array([5, 0]))[0])
    with pytest.raises(ValueError, match="batches are whole"):
        AtariVector("pong", 4, batch_size=2, device="cuda")
    for wrong in ({"emulator": "other"}, {"consoles_per_warp": 33}, {"threads": 48}):
        with pytest.raises(ValueError, match="must be"):
            KernelOptions(**wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="needs an NVIDIA GPU"):
        AtariVector("pong", 1, device="cuda")


# --- compiled blocks ---

requires_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
requires_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@requires_compiler
@pytest.mark.parametrize("reconverge", [True, False])
def test_blocks_equal_the_cpu(reconverge: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = HostKernels()
    monkeypatch.setattr(atari_kernels, "CudaKernels", lambda device: kernels)
    options: dict[str, Any] = {"repeat_action_probability": 0.25, "autoreset_mode": SAME_STEP, "max_num_frames_per_episode": 40}
    ours, theirs = pair("pong", 8, KernelOptions(consoles_per_warp=32, reconverge=reconverge), **options)
    assert_same(ours.reset(seed=3), theirs.reset(seed=3))
    assert play(ours, theirs, 15) > 0
    steps, lanes, instructions, active = kernels.counts
    assert 0 < steps <= lanes <= 8 * steps
    assert lanes <= active <= 8 * instructions


# Every mapper, and what is rare: pushes to the TIA, decimal arithmetic, jumps through pointers, frames of too many instructions.
BLOCK_GAMES = ["breakout", "pitfall2", "elevator_action", "klax", "montezuma_revenge", "robotank", "ms_pacman", "road_runner"]


@requires_compiler
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("game", [*BLOCK_GAMES, "seaquest", "qbert", "riverraid", "surround", "beam_rider", "solaris"])
def test_blocks_of_more_games_equal_the_cpu(game: str) -> None:
    ours, theirs = pair(game, 8, KernelOptions(consoles_per_warp=32), repeat_action_probability=0.25)
    assert_same(ours.reset(seed=3), theirs.reset(seed=3))
    play(ours, theirs, 60)


@requires_compiler
@pytest.mark.slow
def test_a_mixed_batch_of_blocks() -> None:
    ours, theirs = pair(["pong", "breakout", "ms_pacman"], 20, KernelOptions(consoles_per_warp=4), autoreset_mode=SAME_STEP)
    assert_same(ours.reset(seed=3), theirs.reset(seed=3))
    play(ours, theirs, 40)


def test_the_blocks_of_a_program_are_found() -> None:
    """And what they name are blocks."""
    text = native.block_source(load_game("pong"))
    cases = {int(line.split()[1].rstrip(":")) for line in text.splitlines() if line.strip().startswith("case ")}
    named = {int(end) for end in re.findall(r"HR_TO\(0x[0-9A-F]+, (\d+)\)", text)}
    assert len(cases) > 150
    assert named <= cases
    assert native.block_source(load_game("pong")) == text  # the cache depends on it


# --- source, cache, compilers ---


def test_the_source_is_one_text() -> None:
    text = assemble()
    included = [line for line in text.splitlines() if line.lstrip().startswith("#include")]
    assert all("<" in line for line in included), included
    assert text.count("struct alignas(32) LineMask") == 1
    assert "#define HR_STATE_BYTES" in text
    with_program = assemble("// the program")
    assert "// the program" in with_program
    assert "#define HR_PROGRAM" in with_program
    assert "#define HR_PROGRAM" not in text


def test_what_was_compiled_is_kept(tmp_path: Path) -> None:
    calls: list[int] = []

    def make() -> bytes:
        calls.append(1)
        return b"code"

    assert compiled("source", ["sm_90"], make, tmp_path) == b"code"
    assert compiled("source", ["sm_90"], make, tmp_path) == b"code"
    assert len(calls) == 1
    compiled("source", ["sm_80"], make, tmp_path)
    compiled("other source", ["sm_90"], make, tmp_path)
    assert len(calls) == 3
    for file in (tmp_path / "kernels").iterdir():  # damaged
        file.write_bytes(file.read_bytes()[:-1])
    assert compiled("source", ["sm_90"], make, tmp_path) == b"code"
    assert len(calls) == 4
    blocked = tmp_path / "blocked"
    blocked.write_text("")  # no folder can be made here
    assert compiled("source", ["sm_90"], make, blocked) == b"code"


def test_another_compiler_compiles_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And who waits for it is told."""
    made: list[str] = []

    class Program:
        def __init__(self, source: str, language: str, options: dict[str, Any]) -> None:
            made.append(options["arch"])

        def compile(self, kind: str) -> Any:
            return SimpleNamespace(code=b"code")

    core = SimpleNamespace(__version__="1.0", Program=Program, ProgramOptions=dict)
    monkeypatch.setattr(atari_kernels, "_cuda_core", lambda: core)
    for version, compiled_so_far in [("13.0", 1), ("13.0", 1), ("13.5", 2)]:
        monkeypatch.setattr(atari_kernels, "_nvrtc_version", lambda version=version: version)
        assert nvrtc_compile("a source", "sm_90") == b"code"
        assert len(made) == compiled_so_far
    assert capsys.readouterr().err.count("Compiling Atari kernels for sm_90") == 2


def test_what_cannot_be_kept_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", refuse)
    assert compiled("source", ["sm_90"], lambda: b"code", tmp_path) == b"code"
    assert list((tmp_path / "kernels").iterdir()) == []


FRONT_END = ("-ptx", "-Xcicc", "-O0")
"""Everything that checks the code, and none of the optimisation that takes minutes."""


@requires_nvcc
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("blocks", [False, True])
def test_kernels_are_device_code(architecture: str, blocks: bool, tmp_path: Path) -> None:
    source = tmp_path / "kernels.cu"
    source.write_text(assemble(native.block_source(load_game("pong")) if blocks else None))
    command = ["nvcc", "-std=c++20", "-fmad=false", f"-arch={architecture}", *FRONT_END, str(source), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    code = (tmp_path / "out").read_text()
    assert ".entry step(" in code
    assert ".entry observe(" in code


@requires_nvcc
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_blocks_become_machine_code(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all optimisation, as docs/atari-core.md shows it: two minutes each."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import atari_kernel_resources

    printed, cubin, _ = atari_kernel_resources.compile_for(
        assemble(native.block_source(load_game("pong"))), architecture, tmp_path
    )
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    assert "error" not in printed
    registers = {name: int(count) for name, _, _, _, _, count, _ in atari_kernel_resources.ENTRY.findall(printed)}
    assert registers.keys() == {"step", "observe"}
    assert max(registers.values()) <= 65536 // 128  # blocks have up to 128 threads


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="no cuda-core")
def test_kernels_compile_at_run_time() -> None:
    """NVRTC makes machine code of the text alone; the second time it comes from the cache."""
    pytest.importorskip("cuda.core")
    code = nvrtc_compile(assemble(native.block_source(load_game("pong"))), "sm_90")
    assert code[:4] == b"\x7fELF"
    assert nvrtc_compile(assemble(native.block_source(load_game("pong"))), "sm_90") == code


@pytest.mark.slow
@pytest.mark.parametrize("game", games())
def test_every_game(game: str) -> None:
    ours, theirs = pair(game, 3, repeat_action_probability=0.25)
    assert_same(ours.reset(seed=7), theirs.reset(seed=7))
    play(ours, theirs, 60)

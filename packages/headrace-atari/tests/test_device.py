"""The Atari core as device code: what a kernel compiles, and that it computes what the CPU's vector does."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from headrace_atari import AtariVector, games, rom_path

pytestmark = pytest.mark.process

NATIVE = Path(__file__).parents[1] / "native"
CORE = NATIVE / "atari" / "core"
KERNEL = Path(__file__).parent / "kernel.cu"
ARCHITECTURES = ["sm_75", "sm_80", "sm_90"]

requires_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
requires_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to include from, with the headers that generate_games.py makes."""
    folder = tmp_path_factory.mktemp("include")
    source = NATIVE / "atari"
    command = [sys.executable, str(source / "generate_games.py"), str(source / "games.json"), str(folder / "generated")]
    subprocess.run(command, check=True, timeout=60)
    return folder


def nvcc(generated: Path, source: Path, *options: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    includes = [f"-I{NATIVE}", f"-I{generated}"]
    command = ["nvcc", "-std=c++20", "-Werror", "all-warnings", *includes, *options, str(source), "-o", str(generated / "out")]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


FRONT_END = ("-ptx", "-Xcicc", "-O0")
"""Everything that checks the code, and none of the optimisation that takes a minute and a half."""


@requires_nvcc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_core_is_device_code(generated: Path, architecture: str) -> None:
    result = nvcc(generated, KERNEL, f"-arch={architecture}", *FRONT_END)
    assert result.returncode == 0, result.stdout + result.stderr


@requires_nvcc
@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        ("", ""),
        ("std::vector<int> list(3);", "__host__ function"),
        ("std::mutex mutex; mutex.lock();", "__host__ function"),
        ("throw 1;", "exception handling"),
    ],
)
def test_host_code_is_no_device_code(generated: Path, tmp_path: Path, code: str, refusal: str) -> None:
    """The check above would refuse what the core must not have."""
    source = tmp_path / "host.cu"
    source.write_text(
        '#include <mutex>\n#include <vector>\n#include "atari/core/platform.hpp"\n'
        f"HR_HD inline void function() {{ {code} }}\n__global__ void kernel() {{ function(); }}\n"
    )
    result = nvcc(generated, source, f"-arch={ARCHITECTURES[0]}", *FRONT_END)
    assert (result.returncode == 0) == (refusal == ""), result.stdout + result.stderr
    assert refusal in result.stdout + result.stderr


@requires_nvcc
@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_core_becomes_machine_code(generated: Path, architecture: str) -> None:
    """The optimised kernel; prints what it takes of registers, stack and spills (pytest -s)."""
    result = nvcc(generated, KERNEL, f"-arch={architecture}", "-cubin", "-Xptxas", "-v", timeout=650)
    assert result.returncode == 0, result.stdout + result.stderr
    used = re.findall(r"Compiling entry function '\w*step_environments.*?(Used [^\n]*)", result.stderr, re.DOTALL)
    assert len(used) == 1
    print(f"{architecture}: {used[0]}")


def find_nvrtc() -> str | None:
    """The library of NVRTC: of the system, or of the package nvidia-cuda-nvrtc."""
    packaged = (found for folder in sys.path for found in Path(folder or ".").glob("nvidia/*/lib/libnvrtc.so.*"))
    return ctypes.util.find_library("nvrtc") or next((str(path) for path in packaged if "builtins" not in path.name), None)


@pytest.mark.skipif(find_nvrtc() is None, reason="no NVRTC")
def test_core_compiles_at_run_time(generated: Path) -> None:
    """NVRTC compiles the kernel from the sources alone: it has no standard headers."""
    nvrtc = ctypes.CDLL(str(find_nvrtc()))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = KERNEL.read_bytes()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None) == 0
    options = ["-std=c++20", "-arch=compute_80", "-G", f"-I{NATIVE}", f"-I{generated}"]  # -G: not optimised
    array = (ctypes.c_char_p * len(options))(*map(str.encode, options))
    result = nvrtc.nvrtcCompileProgram(program, len(options), array)
    assert nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)) == 0
    log = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetProgramLog(program, log) == 0
    assert (result, log.value) == (0, b""), log.value.decode()


def test_core_includes_nothing_but_itself() -> None:
    """Run-time compilation is given the files of core/ and the generated score keepers alone."""
    for header in sorted(CORE.glob("*.hpp")):
        included = re.findall(r"^\s*#include\s+(.*)$", header.read_text(), re.MULTILINE)
        if header.name == "platform.hpp":
            assert included == ["<cstddef>", "<cstdint>", "<immintrin.h>"]
            continue
        for name in included:
            assert name == '"generated/score_keepers.hpp"' or (CORE / name.strip('"')).is_file(), f"{header.name} includes {name}"


@pytest.fixture(scope="module")
def kernel_on_cpu(generated: Path) -> Path:
    program = generated / "kernel_on_cpu"
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-DHR_PORTABLE", f"-I{NATIVE}", f"-I{generated}"]
    command = ["g++", *options, str(Path(__file__).parent / "kernel_on_cpu.cpp"), "-o", str(program)]
    subprocess.run(command, check=True, timeout=280)
    return program


def run_kernel(program: Path, game: str, actions: np.ndarray, copies_starts: bool, **options: Any) -> tuple[np.ndarray, bytes]:
    """The kernel from seed 5 on under actions [steps, n]: counters int32 [steps + 1, n, 6], and the observations."""
    facts = games()[game]
    kind = {"gray": 0, "rgb": 1, "ram": 2}[options.get("obs_type", "gray")]
    steps, n = actions.shape
    numbers = [
        *(facts["index"], rom_path(game), n, steps),
        *(options.get("repeat_action_probability", 0.0), int(options.get("sticky_stream", "ale") == "ale")),
        *(int("autoreset_mode" in options), kind, options.get("img_height", 84), options.get("img_width", 84)),
        *(options.get("frameskip", 4), options.get("max_num_frames_per_episode", 108000), int(copies_starts)),
    ]
    text = " ".join(map(str, [*numbers, *range(5, 5 + n), *actions.ravel()]))
    written = subprocess.run([program], input=text.encode(), capture_output=True, check=True, timeout=120).stdout
    records = np.frombuffer(written, np.uint8).reshape(steps + 1, -1)
    counters = np.ascontiguousarray(records[:, : n * 24]).view(np.int32).reshape(steps + 1, n, 6)
    return counters, records[:, n * 24 :].tobytes()


def run_vector(game: str, actions: np.ndarray, **options: Any) -> tuple[np.ndarray, bytes]:
    """The same of an AtariVector."""
    n = actions.shape[1]
    env = AtariVector(game, n, **options)
    observations, infos = env.reset(seed=5)
    results = [(observations, np.zeros(n), np.zeros(n), np.zeros(n), infos)] + [env.step(action) for action in actions]
    counters = [
        np.stack([*numbers, infos["lives"], infos["frame_number"], infos["episode_frame_number"]], axis=1)
        for _, *numbers, infos in results
    ]
    return np.array(counters, np.int32), b"".join(result[0].tobytes() for result in results)


# Every mapper, paddles, PAL, and each part of a step that an option switches.
CASES = [
    ("pong", {}),
    ("breakout", {"repeat_action_probability": 0.25, "autoreset_mode": AutoresetMode.SAME_STEP}),
    ("ms_pacman", {"obs_type": "rgb", "img_height": 64, "img_width": 100}),
    ("seaquest", {"repeat_action_probability": 0.5, "sticky_stream": "counter", "max_num_frames_per_episode": 44}),
    ("road_runner", {"frameskip": 3}),
    ("klax", {"max_num_frames_per_episode": 61}),
    ("elevator_action", {"obs_type": "ram"}),
    ("montezuma_revenge", {"img_height": 105, "img_width": 80}),
    ("robotank", {}),
    ("pitfall2", {}),
    ("berzerk", {"repeat_action_probability": 0.25}),
    ("video_cube", {}),
]


@requires_compiler
@pytest.mark.parametrize(("game", "options"), CASES, ids=[game for game, _ in CASES])
def test_kernel_equals_vector(kernel_on_cpu: Path, game: str, options: dict[str, Any]) -> None:
    actions = np.random.default_rng(0).integers(len(games()[game]["minimal_actions"]), size=(40, 2))
    counters, observations = run_kernel(kernel_on_cpu, game, actions, False, **options)
    expected, expected_observations = run_vector(game, actions, **options)
    np.testing.assert_array_equal(counters, expected)
    assert observations == expected_observations


@requires_compiler
@pytest.mark.parametrize("game", ["pong", "ms_pacman", "klax"])
def test_resets_are_copied_from_start_states(kernel_on_cpu: Path, game: str) -> None:
    """A copied reset leads to the same play; its start states count 1000 and 100 frames more (kernel_on_cpu.cpp)."""
    actions = np.random.default_rng(0).integers(len(games()[game]["minimal_actions"]), size=(40, 2))
    emulated, emulated_observations = run_kernel(kernel_on_cpu, game, actions, False)
    copied, copied_observations = run_kernel(kernel_on_cpu, game, actions, True)
    np.testing.assert_array_equal(copied, emulated + np.array([0, 0, 0, 0, 1100, 100]))
    assert copied_observations == emulated_observations

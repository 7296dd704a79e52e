// Python module headrace_atari._native.atari_kernels: the kernels of a GPU, run on the CPU.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "atari/cuda/host_launcher.hpp"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(atari_kernels, m) {
  using namespace headrace::atari;
  m.doc() = "The kernels of the Atari core for GPUs, run on the CPU for tests.";
  m.def(
      "launch",
      [](const std::string& kernel, int grid, int block, const std::vector<int64_t>& words, bool backwards) {
        const LaneCounts counts = launch(kernel, grid, block, words, backwards);
        return std::vector<uint64_t>{counts.steps, counts.lanes, counts.instruction_steps, counts.instruction_lanes};
      },
      "kernel"_a, "grid"_a, "block"_a, "words"_a, "backwards"_a = false, nb::call_guard<nb::gil_scoped_release>(),
      "Runs `grid` blocks of `block` threads. Returns LaneCounts of native/atari/cuda/warp.hpp.");
}

// Runs the kernels on the CPU, one warp of the grid after the other: what tests use where there is no GPU.
#pragma once

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "atari/cuda/kernels.hpp"

namespace headrace::atari {

// `words`: see kernels.hpp; the addresses are of this process. `backwards`: see Warp. Returns how many lanes were active.
// Throws std::invalid_argument for a kernel that does not exist, or words or a block that do not fit.
inline LaneCounts launch(const std::string& kernel, int grid, int block, const std::vector<int64_t>& words, bool backwards) {
  const bool steps = kernel == "step";
  if (!steps && kernel != "observe") throw std::invalid_argument("there is no kernel " + kernel);
  if (words.size() != static_cast<size_t>(steps ? kStepWords : kObserveWords))
    throw std::invalid_argument("the kernel " + kernel + " does not have " + std::to_string(words.size()) + " arguments");
  if (block < kLanes || block % kLanes != 0) throw std::invalid_argument("a block has whole warps");
  LaneCounts counts = {};
  std::vector<uint8_t> shared(kSharedBytes);
  for (int index = 0; index < grid * (block / kLanes); ++index) {
    std::memset(shared.data(), 0xAA, shared.size());  // shared memory is not initialised
    const Warp warp(index, shared.data(), backwards, &counts);
    if (steps) step_kernel(warp, words.data());
    else observe_kernel(warp, words.data());
  }
  return counts;
}

}  // namespace headrace::atari

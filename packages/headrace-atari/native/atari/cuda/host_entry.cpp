// The launcher as a library of its own, for kernels with the compiled blocks of a game.
#include <exception>

#include "atari/cuda/host_launcher.hpp"

// Returns 0, or 1 for arguments that do not fit. `counts`: LaneCounts are added to it.
extern "C" __attribute__((visibility("default"))) int launch_kernel(const char* kernel, int grid, int block,
                                                                    const long long* words, int count, int backwards,
                                                                    unsigned long long* counts) {
  using namespace headrace::atari;
  try {
    const LaneCounts now = launch(kernel, grid, block, std::vector<int64_t>(words, words + count), backwards != 0);
    counts[0] += now.steps;
    counts[1] += now.lanes;
    counts[2] += now.instruction_steps;
    counts[3] += now.instruction_lanes;
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

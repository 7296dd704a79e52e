// One Atari environment per thread, on a device: compiles every function of native/atari/core for it.
#include "atari/core/environment.hpp"

using namespace headrace::atari;

// `seeds[i]` >= 0: loads the ROM and begins an episode, else a step under the action `actions[i]`.
__global__ void step_environments(const EnvironmentSetup* setup, TableServices services, EnvironmentState* states,
                                  const EnvironmentMemory* memories, const StepScratch* scratches, const int* actions,
                                  const long long* seeds, StepResult* results, uint8_t* observations, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  Environment<TableServices> environment(*setup, states[i], memories[i], scratches[i], services);
  if (seeds[i] >= 0) environment.load(static_cast<uint32_t>(seeds[i]));
  results[i] = seeds[i] >= 0 ? environment.reset() : environment.step(actions[i], 1.0f);
  const size_t bytes = static_cast<size_t>(setup->options.stack) * setup->observer->image_bytes();
  write_observation(*setup, states[i], memories[i], observations + i * bytes);
}

// What is made once per game, and could be made on a device as well.
__global__ void make_tables(Observer* observer, bool pal, int rows, ObservationType type, int height, int width, bool* made) {
  *made = make_observer(*observer, pal, rows, type, height, width);
}

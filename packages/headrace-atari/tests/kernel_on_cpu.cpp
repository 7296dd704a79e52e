// Runs the kernel of kernel.cu on the CPU, one thread of the grid after the other.
//
// Reads from the standard input, as text: game index, ROM file, environments n, steps, repeat probability, exact noise,
// same-step autoreset, observation type (0 gray, 1 RGB, 2 RAM), height, width, frameskip, most frames of an episode, whether
// the first reset is copied from start states; then n seeds; then steps x n actions. Writes, for the reset and for each step,
// reward, terminated, truncated, lives, frame number, episode frame number (int32 [n, 6]), then the observations.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

struct Index {
  unsigned x;
};
static Index blockIdx, blockDim, threadIdx;
#define __global__ static

#include "kernel.cu"

#include "atari/host/rom.hpp"
#include "generated/game_table.hpp"

namespace {

// The memory of one environment and of its thread.
struct Memory {
  explicit Memory(const EnvironmentSetup& setup)
      : screens(2 * setup.game->screen_bytes()), interrupted(setup.game->screen_bytes()),
        images(setup.options.stack * setup.observer->image_bytes()), final(images.size()),
        pixels(setup.observer->pooled_pixels()), source(setup.observer->pooled_lines()), twister(0), noops(0),
        sums(kMaxScreenRows * setup.observer->resize.stride), row(kMaxScreenRows),
        lines(kMaxScreenRows * kScreenWidth + AreaResize::kPadding), plane(kMaxScreenRows * kScreenWidth) {
    noise = {setup.options.repeat_action_probability, setup.options.exact_noise ? &twister : nullptr, 0, 0};
  }

  EnvironmentMemory environment() {
    return {screens.data(), images.data(), final.data(), {pixels.data(), source.data()}, &noops,
            noise.repeat_probability > 0 ? &noise : nullptr};
  }
  StepScratch scratch() { return {{{sums.data(), row.data()}, lines.data(), plane.data()}, interrupted.data()}; }

  std::vector<uint8_t> screens, interrupted, images, final, pixels;
  std::vector<uint16_t> source;
  Mt19937 twister, noops;
  ActionNoise noise;
  std::vector<float> sums;
  std::vector<const float*> row;
  std::vector<uint8_t> lines, plane;
};

int presses(const GameListing& listing, int mode) {
  for (int i = 0; i < listing.num_modes; ++i)
    if (kModes[listing.mode_begin + i].mode == mode) return kModes[listing.mode_begin + i].presses;
  return -1;
}

// The start state that follows when the ROM is loaded, and the one of the reset after that. So that one can see that they were
// copied, they count 1000 frames and 100 frames more than were played.
struct Starts {
  StartState loaded, reset;
  std::vector<uint8_t> loaded_screens, reset_screens;
  std::vector<const StartState*> table = std::vector<const StartState*>(kStartIndices);

  Starts(const EnvironmentSetup& setup, TableServices services) {
    std::vector<uint8_t> screens(2 * setup.game->screen_bytes());
    EmulatorState state{};
    Emulator<TableServices> emulator{*setup.game, setup.settings, services, state, screens.data(), nullptr};
    emulator.load(setup.default_settings, 0);
    loaded_screens = screens;
    loaded = {state, loaded_screens.data(), 0};
    loaded.state.frame_number += 1000;
    uint32_t used = state.system_draws;
    const uint8_t timer = services.draws.reset(used, has_superchip(setup.game->cartridge.mapper)).timer;
    emulator.reset();
    reset_screens = screens;
    reset = {state, reset_screens.data(), 0};
    reset.state.episode_frame_number += 100;
    table[start_index(Stage::kLoading, 0)] = &loaded;
    table[start_index(Stage::kLoaded, timer)] = &reset;
  }
};

template <class T>
T read() {
  T value;
  if (!(std::cin >> value)) std::exit(2);
  return value;
}

}  // namespace

int main() {
  const int index = read<int>();
  std::ifstream file(read<std::string>(), std::ios::binary);
  const std::vector<char> rom{std::istreambuf_iterator<char>(file), {}};
  const int n = read<int>(), steps = read<int>();

  const GameListing& listing = kGames[index];
  auto game = std::make_unique<GameData>();
  game->index = index;
  game->facts = listing.facts;
  load_cartridge(game->cartridge, reinterpret_cast<const uint8_t*>(rom.data()), static_cast<uint32_t>(rom.size()));
  game->cartridge.tv = listing.facts.pal ? TvFormat::kPal : TvFormat::kNtsc;
  game->cartridge.hmove_blanks = listing.facts.hmove_blanks;
  game->cartridge.first_row = listing.facts.first_row;
  game->cartridge.rows = listing.facts.height;

  StepOptions options;
  options.repeat_action_probability = read<float>();
  options.exact_noise = read<int>();
  options.same_step_autoreset = read<int>();
  options.observation = static_cast<ObservationType>(read<int>());
  options.height = read<int>();
  options.width = read<int>();
  options.frameskip = read<int>();
  options.max_frames = read<int>();
  const bool copies_starts = read<int>();

  Observer observer;
  bool made = false;
  make_tables(&observer, listing.facts.pal, listing.facts.height, options.observation, options.height, options.width, &made);
  if (!made) return 2;
  const int mode = listing.default_mode;
  const EmulatorSettings settings = {mode, presses(listing, mode), presses(listing, mode % 100), 0};
  const ActionSet actions_of_game = make_action_set(listing.facts.minimal_actions);
  const EnvironmentSetup setup = {game.get(), &observer, options, actions_of_game, settings, settings};

  std::vector<uint32_t> draws(16384);
  Mt19937 system(kSystemSeed);
  for (uint32_t& draw : draws) draw = system();
  TableServices services = {{draws.data(), static_cast<uint32_t>(draws.size())}, settings, nullptr};
  const Starts starts(setup, services);
  if (copies_starts) services.starts = starts.table.data();

  std::vector<std::unique_ptr<Memory>> owners;
  std::vector<EnvironmentMemory> memories;
  std::vector<StepScratch> scratches;
  for (int i = 0; i < n; ++i) {
    owners.push_back(std::make_unique<Memory>(setup));
    memories.push_back(owners[i]->environment());
    scratches.push_back(owners[i]->scratch());
  }
  std::vector<EnvironmentState> states(n);
  std::vector<StepResult> results(n);
  std::vector<int> actions(n);
  std::vector<long long> seeds(n);
  std::vector<uint8_t> observations(n * options.stack * observer.image_bytes());
  for (long long& seed : seeds) seed = read<long long>();
  blockDim = {32};
  for (int step = 0; step <= steps; ++step) {
    for (unsigned thread = 0; thread < 64; ++thread) {
      blockIdx = {thread / 32};
      threadIdx = {thread % 32};
      step_environments(&setup, services, states.data(), memories.data(), scratches.data(), actions.data(), seeds.data(),
                        results.data(), observations.data(), n);
    }
    for (int i = 0; i < n; ++i) {
      const StepResult& r = results[i];
      const int32_t numbers[] = {r.reward, r.terminated, r.truncated, r.lives, r.frame_number, r.episode_frame_number};
      std::fwrite(numbers, sizeof numbers, 1, stdout);
    }
    std::fwrite(observations.data(), 1, observations.size(), stdout);
    for (long long& seed : seeds) seed = -1;
    if (step < steps)
      for (int& action : actions) action = read<int>();
  }
  return 0;
}

// One environment of a vector, with memory of its own around the functions of core/environment.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "atari/core/environment.hpp"
#include "atari/host/emulator.hpp"
#include "atari/host/game.hpp"

namespace headrace::atari {

// What the environments of one game in a vector share.
class EnvironmentKind {
 public:
  // Throws std::invalid_argument if the observations would be larger than the screen.
  EnvironmentKind(std::shared_ptr<Game> played, const StepOptions& options) : game(std::move(played)) {
    const GameData& data = game->data;
    if (!make_observer(observer_, data.facts.pal, data.cartridge.rows, options.observation, options.height, options.width))
      throw std::invalid_argument("observations can be shrunk, not enlarged");
    setup_ = {&data, &observer_, options, make_action_set(bits_of(options.actions, data.facts)), game->settings(options.mode, options.difficulty),
              game->default_settings()};
  }
  EnvironmentKind(const EnvironmentKind&) = delete;
  EnvironmentKind& operator=(const EnvironmentKind&) = delete;

  static uint32_t bits_of(ActionChoice choice, const GameFacts& facts) {
    switch (choice) {
      case ActionChoice::kMinimal: return facts.minimal_actions;
      case ActionChoice::kLegal: return facts.legal_actions;
      case ActionChoice::kAll: break;
    }
    return (1u << kNumActions) - 1;
  }

  const std::shared_ptr<Game> game;
  const EnvironmentSetup& setup() const { return setup_; }
  const Observer& observer() const { return observer_; }
  // Bytes of the stacked images.
  size_t observation_bytes() const { return static_cast<size_t>(setup_.options.stack) * observer_.image_bytes(); }

 private:
  Observer observer_;
  EnvironmentSetup setup_;
};

// Working memory of one thread, for observers of any game that make images of the same size.
class ScratchMemory {
 public:
  explicit ScratchMemory(const Observer& observer)
      : sums_(static_cast<size_t>(kMaxScreenRows) * observer.resize.stride), row_(kMaxScreenRows),
        lines_(static_cast<size_t>(kMaxScreenRows) * kScreenWidth + AreaResize::kPadding),
        plane_(static_cast<size_t>(observer.height) * observer.width),
        interrupted_screen_(static_cast<size_t>(kMaxScreenRows) * kScreenWidth),
        screens_(2 * interrupted_screen_.size()) {}

  StepScratch get() {
    return {{{sums_.data(), row_.data()}, lines_.data(), plane_.data()}, interrupted_screen_.data(), screens_.data()};
  }

 private:
  std::vector<float> sums_;
  std::vector<const float*> row_;
  std::vector<uint8_t> lines_, plane_, interrupted_screen_, screens_;
};

class HostEnvironment {
 public:
  HostEnvironment(std::shared_ptr<const EnvironmentKind> kind, uint32_t seed, ScratchMemory& scratch)
      : kind_(std::move(kind)), noop_generator_(seed),
        noise_(setup().options.repeat_action_probability, setup().options.exact_noise),
        screens_(2 * screen_bytes()), images_(kind_->observation_bytes()),
        pooled_pixels_(static_cast<size_t>(kind_->observer().pooled_pixels())),
        pooled_source_(static_cast<size_t>(kind_->observer().pooled_lines())) {
    if (setup().options.same_step_autoreset) final_.resize(kind_->observation_bytes());
    memory_ = {screens_.data(), images_.data(), final_.data(), {pooled_pixels_.data(), pooled_source_.data()},
               &noop_generator_, noise_.get(), &log_};
    const StepScratch working = scratch.get();
    core(working).load(seed);
  }
  HostEnvironment(const HostEnvironment&) = delete;
  HostEnvironment& operator=(const HostEnvironment&) = delete;

  int num_actions() const { return setup().actions.count; }

  // Starts an episode. A seed that is not negative first loads the ROM anew and seeds both generators.
  StepResult reset(int64_t seed, ScratchMemory& scratch) {
    const StepScratch working = scratch.get();
    if (seed >= 0) core(working).load(static_cast<uint32_t>(seed));
    return core(working).reset();
  }

  // See Environment::step.
  StepResult step(int action, float strength, ScratchMemory& scratch) {
    const StepScratch working = scratch.get();
    return core(working).step(action, strength);
  }

  // The counters as they are, with no reward.
  StepResult counters() const { return counters_of(setup(), state_); }

  // rows x 160 TIA colours of the newest frame.
  const uint8_t* screen() {
    core({}).draw_again();
    log_.looked_at = true;
    return front_buffer(state_.emulator.console, kind_->game->data.cartridge, screens_.data());
  }

  const Game& game() const { return *kind_->game; }

  // Writes the stacked images, oldest first.
  void write_observation(uint8_t* target) const { atari::write_observation(setup(), state_, memory_, target); }

  // The last observation of the episode that ended in the last step, if its result said has_final.
  const std::vector<uint8_t>& final_observation() const { return final_; }

  template <class Archive>
  void archive(Archive& archive) {
    core({}).draw_again();
    archive(state_);
    archive.bytes(screens_.data(), screens_.size());
    noise_.archive(archive);
    archive.bytes(images_.data(), images_.size());
    spread(kind_->observer(), memory_.pooled);  // so that equal states are equal bytes
    archive.bytes(pooled_pixels_.data(), pooled_pixels_.size());
    archive.bytes(pooled_source_.data(), pooled_source_.size() * sizeof(uint16_t));
    spread(kind_->observer(), memory_.pooled);  // what was read may be a GPU's
    archive(noop_generator_);
  }

 private:
  const EnvironmentSetup& setup() const { return kind_->setup(); }
  size_t screen_bytes() const { return static_cast<size_t>(kind_->game->data.screen_bytes()); }

  Environment<Game> core(const StepScratch& scratch) {
    return {setup(), state_, memory_, scratch, *kind_->game};
  }

  std::shared_ptr<const EnvironmentKind> kind_;
  EnvironmentState state_{};
  StepLog log_{};
  Mt19937 noop_generator_;
  NoiseMemory noise_;
  std::vector<uint8_t> screens_, images_, final_, pooled_pixels_;
  std::vector<uint16_t> pooled_source_;
  EnvironmentMemory memory_;
};

}  // namespace headrace::atari

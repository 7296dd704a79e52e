// One console that owns its memory, frame by frame: what ALEInterface is to the Arcade Learning Environment.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "atari/core/emulator.hpp"
#include "atari/host/game.hpp"

namespace headrace::atari {

// The action noise of one console and its memory; none if actions are never repeated.
class NoiseMemory {
 public:
  // `exact`: the generator of the Arcade Learning Environment (2.5 KB), else a counter-based one.
  NoiseMemory(float repeat_probability, bool exact) {
    if (repeat_probability <= 0) return;
    if (exact) twister_ = std::make_unique<Mt19937>(0);
    noise_ = std::make_unique<ActionNoise>(ActionNoise{repeat_probability, twister_.get(), 0, 0});
  }

  ActionNoise* get() const { return noise_.get(); }

  template <class Archive>
  void archive(Archive& archive) {
    if (!noise_) return;
    archive(noise_->key);
    archive(noise_->counter);
    if (twister_) archive(*twister_);
  }

 private:
  std::unique_ptr<ActionNoise> noise_;
  std::unique_ptr<Mt19937> twister_;
};

class HostEmulator {
 public:
  HostEmulator(std::shared_ptr<Game> game, int mode, int difficulty, float repeat_action_probability, bool exact_noise,
               int max_frames)
      : game_(std::move(game)), settings_(game_->settings(mode, difficulty)), max_frames_(max_frames),
        screens_(2 * static_cast<size_t>(game_->data.screen_bytes())), noise_(repeat_action_probability, exact_noise) {
    load(0);
  }

  // Loads the ROM; a reset follows. `seed`: of the action noise.
  void load(uint32_t seed) { core().load(game_->default_settings(), seed); }
  void reset() { core().reset(); }

  // One frame under `action` (0..17), or the action before it where action noise says so. Returns the reward. After the end of
  // an episode only the generator of the noise goes on, as in ALE.
  int32_t act(int action, float strength, bool draw) {
    Emulator<Game> emulator = core();
    action = emulator.repeated_or(action, strength);
    return truncated() ? 0 : emulator.play(action, strength, draw);
  }
  bool truncated() const { return max_frames_ > 0 && state_.episode_frame_number >= max_frames_; }

  const Game& game() const { return *game_; }
  const EmulatorState& state() const { return state_; }
  bool game_over() { return core().game_over(); }
  int32_t lives() { return core().lives(); }
  uint8_t* ram() { return state_.console.ram; }  // 128 bytes
  const uint8_t* screen() { return core().screen(); }

  template <class Archive>
  void archive(Archive& archive) {
    archive(state_);
    archive.bytes(screens_.data(), screens_.size());
    noise_.archive(archive);
  }

 private:
  Emulator<Game> core() { return {game_->data, settings_, *game_, state_, screens_.data(), noise_.get()}; }

  std::shared_ptr<Game> game_;
  EmulatorSettings settings_;
  int max_frames_;  // of an episode, those of the reset counted; 0: no limit
  EmulatorState state_{};
  std::vector<uint8_t> screens_;
  NoiseMemory noise_;
};

}  // namespace headrace::atari

// A game as all consoles that play it share it: ROM, facts, translated program, and the states that its resets lead to.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "atari/core/emulator.hpp"
#include "atari/host/system_stream.hpp"
#include "atari/jit/translation.hpp"
#include "generated/game_table.hpp"

namespace headrace::atari {

// The Services of consoles on the host (core/emulator.hpp), for any number of threads.
class Game {
 public:
  // `translate`: to machine code, where that is possible.
  Game(int index, const Cartridge& rom, bool translate = true)
      : listing(kGames[index]), data(make_data(index, rom)),
        translation_(translate ? Translation::make(data.cartridge) : nullptr) {}
  Game(const Game&) = delete;
  Game& operator=(const Game&) = delete;

  const GameListing& listing;
  const GameData data;

  bool has_mode(int mode) const { return find_mode(mode) != nullptr; }

  // `mode`: -1 for the game's default mode.
  EmulatorSettings settings(int mode, int difficulty) const {
    if (mode < 0) mode = listing.default_mode;
    return {mode, presses(mode), presses(mode % 100), difficulty};
  }
  EmulatorSettings default_settings() const { return settings(-1, 0); }

  // --- services ---

  void run_program(Console& console, const Frame& frame) const {
    if (translation_) translation_->run(console, frame);
    else run_decoded(console, frame);
  }

  SystemDraws system_draws(uint32_t count) const { return SystemStream::shared().first(count); }

  const StartState* find_start(const EmulatorSettings& settings, int32_t start_index) const {
    const std::lock_guard lock(mutex_);
    const auto it = starts_.find(key(settings, start_index));
    return it == starts_.end() ? nullptr : &it->second->start;
  }

  void keep_start(const EmulatorSettings& settings, int32_t start_index, const EmulatorState& state, const uint8_t* screens,
                  int32_t noise_draws) {
    auto kept = std::make_unique<KeptStart>();
    kept->screens.assign(screens, screens + 2 * data.screen_bytes());
    kept->start = {state, kept->screens.data(), noise_draws, 0, nullptr};
    const std::lock_guard lock(mutex_);
    starts_.emplace(key(settings, start_index), std::move(kept));
  }

  void copy_screens(uint8_t* to, const uint8_t* from, size_t bytes) const { copy_bytes(to, from, bytes); }

 private:
  struct KeptStart {
    StartState start;
    std::vector<uint8_t> screens;
  };

  static GameData make_data(int index, const Cartridge& rom) {
    GameData data{index, kGames[index].facts, rom};
    if (data.facts.pal) data.cartridge.tv = TvFormat::kPal;
    data.cartridge.hmove_blanks = data.facts.hmove_blanks;
    data.cartridge.first_row = data.facts.first_row;
    data.cartridge.rows = data.facts.height;
    return data;
  }

  const ModeSetting* find_mode(int mode) const {
    for (int i = 0; i < listing.num_modes; ++i)
      if (kModes[listing.mode_begin + i].mode == mode) return &kModes[listing.mode_begin + i];
    return nullptr;
  }

  int presses(int mode) const {
    const ModeSetting* const setting = find_mode(mode);
    return setting ? setting->presses : -1;
  }

  static uint64_t key(const EmulatorSettings& settings, int32_t start_index) {
    return static_cast<uint64_t>(settings.mode) << 32 | static_cast<uint64_t>(settings.difficulty & 3) << 16 |
           static_cast<uint64_t>(start_index);
  }

  const std::unique_ptr<Translation> translation_;
  mutable std::mutex mutex_;
  // Never erased from: consoles copy from an entry without holding the mutex. Guarded by mutex_.
  std::unordered_map<uint64_t, std::unique_ptr<const KeptStart>> starts_;
};

}  // namespace headrace::atari

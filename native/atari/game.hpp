// A game as all consoles that play it share it: ROM, facts, and the states that its resets lead to. Host side.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "console.hpp"
#include "controls.hpp"
#include "games_generated.hpp"

namespace headrace::atari {

// Everything of a running game but its screens and its action noise. Plain data.
struct GameState {
  Console console;
  Keeper keeper;
  Paddles paddles;
  int32_t frame_number;          // counted frames since the ROM was loaded
  int32_t episode_frame_number;  // counted frames since the reset
  uint32_t system_draws;         // of the system stream, since power-on
  uint8_t last_action;           // what a repeated action repeats
};

// A state right after a reset. `noise_draws`: how often that reset asked for action noise.
struct Snapshot {
  GameState state;
  std::vector<uint8_t> screens;
  int32_t noise_draws;
};

class Game {
 public:
  // `translate`: to machine code, where that is possible.
  Game(int index, const Cartridge& rom, bool translate = true)
      : index(index), facts(kGames[index]), cartridge(rom), translation_(translate ? Translation::make(cartridge) : nullptr) {
    cartridge.translation = translation_.get();
    if (facts.pal) cartridge.tv = TvFormat::kPal;
    cartridge.hmove_blanks = facts.hmove_blanks;
    cartridge.first_row = facts.first_row;
    cartridge.rows = facts.height;
  }

  const int index;
  const GameFacts& facts;
  Cartridge cartridge;

  // Bytes of one screen: rows x 160 TIA colours.
  size_t screen_bytes() const { return static_cast<size_t>(cartridge.rows) * kScreenWidth; }

  // SELECT presses that reach `mode`, or -1 if its procedure finds out. Throws nothing; unknown modes have none.
  int presses(int mode) const {
    for (int i = 0; i < facts.num_modes; ++i)
      if (kModes[facts.mode_begin + i].mode == mode) return kModes[facts.mode_begin + i].presses;
    return -1;
  }

  bool has_mode(int mode) const {
    for (int i = 0; i < facts.num_modes; ++i)
      if (kModes[facts.mode_begin + i].mode == mode) return true;
    return false;
  }

  std::shared_ptr<const Snapshot> find(uint32_t key) const {
    const std::lock_guard lock(mutex_);
    const auto it = snapshots_.find(key);
    return it == snapshots_.end() ? nullptr : it->second;
  }

  void keep(uint32_t key, Snapshot snapshot) {
    const std::lock_guard lock(mutex_);
    snapshots_.emplace(key, std::make_shared<const Snapshot>(std::move(snapshot)));
  }

 private:
  const std::unique_ptr<Translation> translation_;
  mutable std::mutex mutex_;
  std::unordered_map<uint32_t, std::shared_ptr<const Snapshot>> snapshots_;
};

}  // namespace headrace::atari

// The two streams of random numbers of the Arcade Learning Environment, kept apart: what the hardware finds at power-on
// and at resets, and what repeats actions. Host side.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "system_random.hpp"

namespace headrace::atari {

// Every console starts the system stream from the same seed, so its draws are made once and shared by all consoles; a
// console only remembers how many of them it has used.
class SystemStream {
 public:
  static SystemStream& shared() {
    static SystemStream stream;
    return stream;
  }

  // What one system reset draws when `used` draws came before it; moves `used` past them.
  ResetDraws reset(uint32_t& used, bool superchip) {
    const std::lock_guard lock(mutex_);
    ResetDraws draws;
    draws.timer = static_cast<uint8_t>(25 + next(used) % 75);
    if (superchip)
      for (uint8_t& byte : draws.superchip) byte = static_cast<uint8_t>(next(used));
    return draws;
  }

  // RIOT RAM at power-on.
  void fill(uint32_t& used, uint8_t (&ram)[128]) {
    const std::lock_guard lock(mutex_);
    for (uint8_t& byte : ram) byte = static_cast<uint8_t>(next(used));
  }

 private:
  uint32_t next(uint32_t& used) {
    while (draws_.size() <= used) draws_.push_back(generator_());
    return draws_[used++];
  }

  std::mutex mutex_;
  Mt19937 generator_{kSystemSeed};
  std::vector<uint32_t> draws_;
};

// Uniform numbers in [0, 1) that decide whether an action is repeated, two per frame.
class ActionNoise {
 public:
  // `exact`: the MT19937 stream of the Arcade Learning Environment (2.5 KB); else a counter-based one (24 bytes).
  ActionNoise(uint32_t seed, bool exact) : key_(seed * kStep) {
    if (exact) twister_ = std::make_unique<Mt19937>(seed);
  }

  double operator()() { return (twister_ ? (*twister_)() : mix(key_ + ++counter_ * kStep)) * 0x1p-32; }

  template <class Archive>
  void archive(Archive& archive) {
    archive(key_);
    archive(counter_);
    if (twister_) archive(*twister_);
  }

 private:
  static constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;

  // SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
  static uint32_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
  }

  std::unique_ptr<Mt19937> twister_;
  uint64_t key_, counter_ = 0;
};

}  // namespace headrace::atari

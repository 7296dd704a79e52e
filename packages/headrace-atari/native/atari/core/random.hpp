// The random numbers of the Arcade Learning Environment: the system stream, which decides what memory holds at power-on and
// where the timer stands after a reset, and the action noise, which decides whether an action is repeated.
#pragma once

#include "platform.hpp"

namespace headrace::atari {

// MT19937 (Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998). 2.5 KB.
class Mt19937 {
 public:
  HR_HD explicit Mt19937(uint32_t seed) {
    state_[0] = seed;
    for (uint32_t i = 1; i < kSize; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
    index_ = kSize;
  }

  HR_HD uint32_t operator()() {
    if (index_ == kSize) refill();
    uint32_t y = state_[index_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680u;
    y ^= (y << 15) & 0xEFC60000u;
    return y ^ (y >> 18);
  }

 private:
  static constexpr uint32_t kSize = 624;

  HR_HD void refill() {
    for (uint32_t i = 0; i < kSize; ++i) {
      const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kSize] & 0x7FFFFFFFu);
      state_[i] = state_[(i + 397) % kSize] ^ (y >> 1) ^ ((y & 1) ? 0x9908B0DFu : 0u);
    }
    index_ = 0;
  }

  uint32_t state_[kSize];
  uint32_t index_;
};

// Every console starts its system stream from the same seed, so power-on is the same for all.
inline constexpr uint32_t kSystemSeed = 4753849;

// What one system reset draws.
struct ResetDraws {
  uint8_t timer = 25;           // RIOT timer value, 25..99
  uint8_t superchip[128] = {};  // initial cartridge RAM; only cartridges with a Superchip draw it
};

// The beginning of the system stream, Mt19937(kSystemSeed), in memory of the caller. All consoles read the same table; each
// remembers how many numbers it has used. Past its end the table is read from its beginning again.
struct SystemDraws {
  const uint32_t* draws;
  uint32_t count;

  // What one system reset draws when `used` numbers were drawn before it; moves `used` past them.
  HR_HD ResetDraws reset(uint32_t& used, bool superchip) const {
    ResetDraws result;
    result.timer = static_cast<uint8_t>(25 + next(used) % 75);
    if (superchip)
      for (uint8_t& byte : result.superchip) byte = static_cast<uint8_t>(next(used));
    return result;
  }

  // RIOT RAM at power-on, 128 bytes.
  HR_HD void fill_ram(uint32_t& used, uint8_t* ram) const {
    for (int i = 0; i < 128; ++i) ram[i] = static_cast<uint8_t>(next(used));
  }

 private:
  HR_HD uint32_t next(uint32_t& used) const { return draws[used++ % count]; }
};

// More than a power-on and the reset that follows it draw.
inline constexpr uint32_t kMostDrawsPerReset = 1024;

// Sticky actions (Machado et al. 2018, JAIR 61): with the given probability the console gets the action of the frame before.
struct ActionNoise {
  float repeat_probability;
  Mt19937* twister;  // memory of the caller: the stream of the Arcade Learning Environment. Null: a counter-based generator
  uint64_t key, counter;

  HR_HD void seed(uint32_t seed) {
    key = seed * kStep;
    counter = 0;
    if (twister) *twister = Mt19937(seed);
  }

  // Uniform in [0, 1), in steps of 2^-32.
  HR_HD double draw() { return (twister ? (*twister)() : mix(key + ++counter * kStep)) * (1.0 / 4294967296.0); }

  HR_HD bool repeats() { return draw() < static_cast<double>(repeat_probability); }

 private:
  static constexpr uint64_t kStep = 0x9E3779B97F4A7C15u;

  // SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
  HR_HD static uint32_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
  }
};

}  // namespace headrace::atari

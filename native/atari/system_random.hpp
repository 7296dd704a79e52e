// The console's own source of randomness: what RAM holds at power-on and where the timer stands after a reset.
#pragma once

#include <cstdint>

namespace headrace::atari {

// MT19937 (Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998). Host side; 2.5 KB.
class Mt19937 {
 public:
  explicit Mt19937(uint32_t seed) {
    state_[0] = seed;
    for (uint32_t i = 1; i < kSize; ++i) state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }

  uint32_t operator()() {
    if (index_ == kSize) refill();
    uint32_t y = state_[index_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9D2C5680u;
    y ^= (y << 15) & 0xEFC60000u;
    return y ^ (y >> 18);
  }

 private:
  static constexpr uint32_t kSize = 624;

  void refill() {
    for (uint32_t i = 0; i < kSize; ++i) {
      const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kSize] & 0x7FFFFFFFu);
      state_[i] = state_[(i + 397) % kSize] ^ (y >> 1) ^ ((y & 1) ? 0x9908B0DFu : 0u);
    }
    index_ = 0;
  }

  uint32_t state_[kSize];
  uint32_t index_ = kSize;
};

// Every console starts its system stream from the same seed, so power-on is the same for all.
inline constexpr uint32_t kSystemSeed = 4753849;

// What one system reset draws.
struct ResetDraws {
  uint8_t timer = 25;       // RIOT timer value, 25..99
  uint8_t superchip[128] = {};  // initial cartridge RAM; only carts with a Superchip draw it
};

inline ResetDraws draw_reset(Mt19937& system, bool superchip) {
  ResetDraws draws;
  draws.timer = static_cast<uint8_t>(25 + system() % 75);
  if (superchip)
    for (uint8_t& byte : draws.superchip) byte = static_cast<uint8_t>(system());
  return draws;
}

}  // namespace headrace::atari

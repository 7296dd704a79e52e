// xoshiro256++ (Blackman and Vigna). Its state, four words, may lie in shared memory.
#pragma once

#include <cstdint>

namespace headrace::replay {

inline void seed_random(std::uint64_t* state, std::uint64_t seed) {
  for (int word = 0; word < 4; ++word) {  // splitmix64, as the authors of xoshiro advise
    std::uint64_t z = (seed += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    state[word] = z ^ (z >> 31);
  }
}

// A number in [0, 1), of 53 bits.
inline double random_uniform(std::uint64_t* s) {
  auto rotate = [](std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); };
  std::uint64_t result = rotate(s[0] + s[3], 23) + s[0], t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = rotate(s[3], 45);
  return static_cast<double>(result >> 11) * 0x1.0p-53;
}

}  // namespace headrace::replay

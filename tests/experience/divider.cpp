// `Divider` beside division, where its rounded reciprocal is most wrong: test_replay_processes.py.
#include <cstdio>
#include <random>

#include "replay/memory.hpp"

using namespace headrace::replay;

int main() {
  constexpr std::uint64_t kMost = (1ull << 63) - 1;
  std::mt19937_64 random(0);
  unsigned long wrong = 0, one_too_large = 0, checked = 0;
  for (int i = 0; i < 2000; ++i) {
    std::uint64_t by = i < 100 ? i + 2 : std::max<std::uint64_t>(random() >> random() % 62, 2) & kMost;
    if (by < 2) continue;
    Divider divider(by);
    auto check = [&](std::uint64_t x) {
      ++checked;
      wrong += divider.quotient(x) != x / by || divider.remainder(x) != x % by;
      one_too_large += static_cast<std::uint64_t>(static_cast<unsigned __int128>(x) * (UINT64_MAX / by + 1) >> 64) != x / by;
    };
    for (int j = 0; j < 200; ++j) {
      std::uint64_t multiple = (random() & kMost) / by * by;
      for (std::uint64_t x : {multiple, multiple + 1, multiple + by - 1, multiple ? multiple - 1 : 0})
        if (x <= kMost) check(x);
    }
    for (std::uint64_t x : {std::uint64_t{0}, std::uint64_t{1}, by - 1, by, kMost - 1, kMost}) check(x);
  }
  std::printf("%lu wrong%s\n", wrong, one_too_large ? "" : ", but no reciprocal was");
  return checked < 1000000;
}

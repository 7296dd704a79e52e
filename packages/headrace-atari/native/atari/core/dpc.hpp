// The Display Processor Chip of Pitfall II (Crane, US patent 4,644,495): eight data fetchers over 2 KiB of display data,
// the last three of which can be music oscillators, and a random number.
#pragma once

#include "platform.hpp"
#include "state.hpp"

namespace headrace::atari {

inline constexpr int kFirstMusicFetcher = 5;

// An 8-bit shift register fed by the inverted parity of bits 3, 4, 5 and 7.
HR_HD inline void clock_dpc_random(DpcState& dpc) {
  const uint8_t taps = dpc.random & 0xB8;
  const uint8_t parity = (taps >> 3 ^ taps >> 4 ^ taps >> 5 ^ taps >> 7) & 1;
  dpc.random = static_cast<uint8_t>(dpc.random << 1 | (parity ^ 1));
}

HR_HD inline bool plays_music(const DpcState& dpc, int fetcher) {
  return fetcher >= kFirstMusicFetcher && dpc.music[fetcher - kFirstMusicFetcher];
}

// Runs the oscillators up to `cycle`. Oscillator and 6507 clock in Hz.
HR_HD inline void run_dpc_music(DpcState& dpc, int32_t cycle) {
  const double clocks = 15750.0 * (cycle - dpc.clocked_at) / 1193191.66666667 + dpc.fraction;
  dpc.clocked_at = cycle;
  const int32_t whole = static_cast<int32_t>(clocks);
  dpc.fraction = clocks - whole;
  if (whole <= 0) return;
  for (int i = kFirstMusicFetcher; i < 8; ++i) {
    if (!plays_music(dpc, i)) continue;
    const int32_t period = dpc.top[i] + 1;
    int32_t low = (dpc.counter[i] & 0xFF) - whole % period;
    if (low < 0) low += period;
    if (low <= dpc.bottom[i]) dpc.flag[i] = 0;
    else if (low <= dpc.top[i]) dpc.flag[i] = 0xFF;
    dpc.counter[i] = static_cast<uint16_t>((dpc.counter[i] & 0x700) | (low & 0xFF));
  }
}

HR_HD inline uint8_t read_dpc(DpcState& dpc, const uint8_t* display_data, uint16_t offset, int32_t cycle) {
  const int fetcher = offset & 7;
  const uint8_t low = static_cast<uint8_t>(dpc.counter[fetcher]);
  if (low == dpc.top[fetcher]) dpc.flag[fetcher] = 0xFF;
  else if (low == dpc.bottom[fetcher]) dpc.flag[fetcher] = 0;

  uint8_t value = 0;
  switch (offset >> 3 & 7) {
    case 0:
      if (fetcher < 4) {
        value = dpc.random;
      } else {
        run_dpc_music(dpc, cycle);
        int playing = 0;
        for (int i = 0; i < 3; ++i)
          if (dpc.music[i] && dpc.flag[kFirstMusicFetcher + i]) playing |= 1 << i;
        constexpr uint64_t amplitudes = 0x0F0B0A0609050400;  // of each set of playing oscillators
        value = static_cast<uint8_t>(amplitudes >> (8 * playing));
      }
      break;
    case 1: value = display_data[2047 - dpc.counter[fetcher]]; break;
    case 2: value = display_data[2047 - dpc.counter[fetcher]] & dpc.flag[fetcher]; break;
    case 7: value = dpc.flag[fetcher]; break;
    default: break;
  }
  if (!plays_music(dpc, fetcher)) dpc.counter[fetcher] = (dpc.counter[fetcher] - 1) & 0x7FF;
  return value;
}

HR_HD inline void write_dpc(DpcState& dpc, uint16_t offset, uint8_t value) {
  const int fetcher = offset & 7;
  switch (offset >> 3 & 7) {
    case 0:
      dpc.top[fetcher] = value;
      dpc.flag[fetcher] = 0;
      break;
    case 1: dpc.bottom[fetcher] = value; break;
    case 2:
      // An oscillator is always loaded with its period.
      dpc.counter[fetcher] = static_cast<uint16_t>((dpc.counter[fetcher] & 0x700) |
                                                   (plays_music(dpc, fetcher) ? dpc.top[fetcher] : value));
      break;
    case 3:
      dpc.counter[fetcher] = static_cast<uint16_t>((value & 7) << 8 | (dpc.counter[fetcher] & 0xFF));
      if (fetcher >= kFirstMusicFetcher) dpc.music[fetcher - kFirstMusicFetcher] = (value & 0x10) != 0;
      break;
    case 6: dpc.random = 1; break;
    default: break;
  }
}

}  // namespace headrace::atari

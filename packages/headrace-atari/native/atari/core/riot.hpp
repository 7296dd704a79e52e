// The 6532 (RIOT): timer and ports. Its 128 bytes of RAM are accessed by cpu.hpp directly.
#pragma once

#include "state.hpp"
#include "platform.hpp"

namespace headrace::atari {

// The timer counts down from its value, one per 2^timer_shift cycles, and one per cycle once it has expired; the first read after
// that fixes from where it counts then. Unsigned arithmetic, because a timer that is not set again may count for hours.
struct TimerValue {
  int32_t remaining;  // >= 0: what INTIM shows
  uint32_t elapsed;   // cycles since the cycle after it was set
};

HR_INLINE TimerValue timer_value(const Console& s, int32_t cycle) {
  const uint32_t elapsed = static_cast<uint32_t>(cycle) - 1 - s.timer_set_at;
  return {static_cast<int32_t>(s.timer) - static_cast<int32_t>(elapsed >> s.timer_shift) - 1, elapsed};
}

HR_HD inline uint8_t read_timer(Console& s, int32_t cycle) {
  const TimerValue now = timer_value(s, cycle);
  if (HR_LIKELY(now.remaining >= 0)) return static_cast<uint8_t>(now.remaining);
  const uint32_t duration = static_cast<uint32_t>(s.timer) << s.timer_shift;
  const int32_t after_expiry = static_cast<int32_t>(duration - now.elapsed - 1);
  if (after_expiry <= -2 && !s.timer_read_after_expiry) {
    s.timer_read_after_expiry = true;
    s.timer_first_read_at = static_cast<uint32_t>(cycle);
  }
  if (!s.timer_read_after_expiry) return static_cast<uint8_t>(after_expiry);
  const uint32_t since_expiry = s.timer_first_read_at - (s.timer_set_at + duration);
  return static_cast<uint8_t>(s.timer - (now.elapsed >> s.timer_shift) - since_expiry);
}

HR_HD inline uint8_t read_riot(Console& s, const Input& input, uint16_t address, int32_t cycle) {
  switch (address & 7) {
    case 0: return input.swcha;
    case 1: return s.swacnt;
    case 2: return input.swchb;
    case 3: return 0;
    case 4:
    case 6: return read_timer(s, cycle);
    default: return timer_value(s, cycle).remaining < 0 && !s.timer_read_after_expiry ? 0x80 : 0;
  }
}

HR_HD inline void write_riot(Console& s, uint16_t address, uint8_t value, int32_t cycle) {
  if ((address & 0x14) == 0x14) {
    constexpr uint32_t shifts = 10 << 24 | 6 << 16 | 3 << 8 | 0;
    s.timer = value;
    s.timer_shift = static_cast<uint8_t>(shifts >> (8 * (address & 3)));
    s.timer_set_at = static_cast<uint32_t>(cycle);
    s.timer_read_after_expiry = false;
  } else if ((address & 7) == 1) {
    s.swacnt = value;
  }
}

HR_HD inline void reset_riot(Console& s, uint8_t timer) {
  s.timer = timer;
  s.timer_shift = 6;
  s.timer_set_at = 0;
  s.timer_first_read_at = 0;
  s.timer_read_after_expiry = false;
  s.swacnt = 0;
}

}  // namespace headrace::atari

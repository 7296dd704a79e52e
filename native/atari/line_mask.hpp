// The pixels that each TIA object covers in a scanline, as 160-bit masks built by shifting small patterns.
#pragma once

#include "platform.hpp"
#include "state.hpp"

#if defined(__AVX__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace headrace::atari {

HR_INLINE uint32_t reverse_byte(uint32_t byte) {
  return static_cast<uint32_t>(((byte * 0x80200802ull) & 0x0884422110ull) * 0x0101010101ull >> 32) & 0xFF;
}

// Repeats each of 8 bits 2 or 4 times.
HR_INLINE uint32_t widen_2(uint32_t bits) {
  bits = (bits | bits << 4) & 0x0F0F;
  bits = (bits | bits << 2) & 0x3333;
  return ((bits | bits << 1) & 0x5555) * 3;
}
HR_INLINE uint32_t widen_4(uint32_t bits) {
  bits = (bits | bits << 12) & 0x000F000F;
  bits = (bits | bits << 6) & 0x03030303;
  return ((bits | bits << 3) & 0x11111111) * 15;
}
// Repeats each of 16 bits 4 times.
HR_INLINE uint64_t widen_16_by_4(uint64_t bits) {
  return static_cast<uint64_t>(widen_4(static_cast<uint32_t>(bits & 0xFF))) |
         static_cast<uint64_t>(widen_4(static_cast<uint32_t>(bits >> 8 & 0xFF))) << 32;
}

// Adds `pattern` (at most 34 pixels) from pixel x (0..159) on; what passes the right edge enters at the left.
HR_INLINE void add_pattern(LineMask& mask, uint64_t pattern, uint32_t x) {
  const uint32_t shift = x & 63;
  const uint64_t low = pattern << shift;
  const uint64_t high = shift ? pattern >> (64 - shift) : 0;
  if (x < 64) {
    mask.word[0] |= low;
    mask.word[1] |= high;
  } else if (x < 128) {
    mask.word[1] |= low;
    mask.word[2] |= high;
  } else {
    mask.word[2] |= low & 0xFFFFFFFF;
    mask.word[0] |= low >> 32 | high << 32;
  }
}

HR_INLINE uint32_t wrap_pixel(uint32_t x) { return x >= 160 ? x - 160 : x; }

// The offsets 16, 32, 64 of the copies after the first, by NUSIZ & 7: bits 0, 1, 2.
HR_INLINE uint32_t later_copies(uint8_t nusiz) { return 0x06043210u >> (4 * (nusiz & 7)) & 7; }

HR_INLINE LineMask copies_mask(uint64_t pattern, uint32_t position, uint32_t later, bool first_hidden) {
  LineMask mask = {{0, 0, 0, 0}};
  if (!first_hidden) add_pattern(mask, pattern, position);
  for (uint32_t i = 0; later >> i; ++i)
    if (later >> i & 1) add_pattern(mask, pattern, wrap_pixel(position + (16u << i)));
  return mask;
}

HR_INLINE LineMask player_mask(const Console& s, int player) {
  const uint32_t grp = s.shown_grp[player];
  const uint32_t bits = s.refp[player] ? grp : reverse_byte(grp);
  const uint8_t size = s.nusiz[player] & 7;
  // Stretched players start one pixel late.
  const uint64_t pattern = size == 5   ? static_cast<uint64_t>(widen_2(bits)) << 1
                           : size == 7 ? static_cast<uint64_t>(widen_4(bits)) << 1
                                       : bits;
  return copies_mask(pattern, s.position[player ? kP1 : kP0], later_copies(s.nusiz[player]),
                     s.first_copy_hidden[player]);
}

HR_INLINE LineMask missile_mask(const Console& s, int player) {
  uint32_t width_index = s.nusiz[player] >> 4 & 3;
  if (player == 0) width_index |= s.star_width;
  const uint64_t pattern = (1u << (1u << width_index)) - 1;
  return copies_mask(pattern, s.position[player ? kM1 : kM0], later_copies(s.nusiz[player]), false);
}

HR_INLINE LineMask ball_mask(const Console& s) {
  const uint64_t pattern = (1u << (1u << (s.ctrlpf >> 4 & 3))) - 1;
  return copies_mask(pattern, s.position[kBall], 0, false);
}

HR_INLINE LineMask playfield_mask(const Console& s) {
  const uint64_t left = s.playfield;
  uint64_t right = left;
  if (s.playfield_reflected) {
    right = (reverse_byte(left & 0xFF) << 12) | (reverse_byte(left >> 8 & 0xFF) << 4) | (reverse_byte(left >> 16) >> 4);
  }
  const uint64_t line = left | right << 20;  // 40 blocks of 4 pixels
  return {{widen_16_by_4(line & 0xFFFF), widen_16_by_4(line >> 16 & 0xFFFF), widen_16_by_4(line >> 32), 0}};
}

// Brings the masks of the objects of `set` up to date.
HR_INLINE void refresh_masks(Console& s, uint8_t set) {
  const uint8_t todo = s.stale & set;
  if (!todo) return;
  s.stale &= ~todo;
  if (todo & 1 << kP0) s.mask[kP0] = player_mask(s, 0);
  if (todo & 1 << kP1) s.mask[kP1] = player_mask(s, 1);
  if (todo & 1 << kM0) s.mask[kM0] = missile_mask(s, 0);
  if (todo & 1 << kM1) s.mask[kM1] = missile_mask(s, 1);
  if (todo & 1 << kBall) s.mask[kBall] = ball_mask(s);
  if (todo & 1 << kPlayfield) s.mask[kPlayfield] = playfield_mask(s);
}

HR_INLINE bool intersect(const LineMask& a, const LineMask& b) {
#if defined(__AVX__) && !defined(__CUDACC__)
  return !_mm256_testz_si256(_mm256_load_si256(reinterpret_cast<const __m256i*>(&a)),
                             _mm256_load_si256(reinterpret_cast<const __m256i*>(&b)));
#else
  return ((a.word[0] & b.word[0]) | (a.word[1] & b.word[1]) | (a.word[2] & b.word[2])) != 0;
#endif
}

HR_INLINE LineMask intersection(const LineMask& a, const LineMask& b) {
  LineMask both;
  for (int i = 0; i < 4; ++i) both.word[i] = a.word[i] & b.word[i];
  return both;
}

struct RangeTable {
  LineMask below[161];  // of all pixels x < i
};
HR_HD constexpr RangeTable make_range_table() {
  RangeTable table = {};
  for (int i = 1; i <= 160; ++i) {
    for (int word = 0; word < 4; ++word) table.below[i].word[word] = table.below[i - 1].word[word];
    table.below[i].word[(i - 1) >> 6] |= 1ull << ((i - 1) & 63);
  }
  return table;
}

// Pixels from <= x < to.
HR_INLINE LineMask range_mask(int32_t from, int32_t to) {
  static constexpr RangeTable table = make_range_table();
  LineMask range;
  for (int i = 0; i < 4; ++i) range.word[i] = table.below[to].word[i] & ~table.below[from].word[i];
  return range;
}

}  // namespace headrace::atari

// The pixels that each TIA object covers in a scanline, as 160-bit masks built by shifting small patterns.
#pragma once

#include "platform.hpp"
#include "state.hpp"

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

#ifdef HR_AVX2

// A mask in a vector register.
using LineBits = uint64_t __attribute__((vector_size(32)));
HR_INLINE LineBits load_mask(const LineMask& mask) {
  return (LineBits)_mm256_load_si256(reinterpret_cast<const __m256i*>(&mask));
}
HR_INLINE LineMask mask_of(LineBits bits) {
  LineMask mask;
  _mm256_store_si256(reinterpret_cast<__m256i*>(&mask), (__m256i)bits);
  return mask;
}

// Repeats each of 16 bits 4 times, in each of 4 words.
HR_INLINE LineBits widen_16_by_4(LineBits bits) {
  bits = (bits | bits << 24) & 0x000000FF000000FF;
  bits = (bits | bits << 12) & 0x000F000F000F000F;
  bits = (bits | bits << 6) & 0x0303030303030303;
  bits = (bits | bits << 3) & 0x1111111111111111;
  return (bits << 4) - bits;
}

#endif

// Adds `pattern` (at most 64 pixels) from pixel x (0..159) on; what passes the right edge enters at the left.
HR_INLINE void add_pattern(LineMask& mask, uint64_t pattern, uint32_t x) {
#ifdef HR_AVX2
  // Shifts by 64 and more, which negative counts are too, leave nothing.
  const __m256i bits = _mm256_set1_epi64x(static_cast<int64_t>(pattern)), begin = _mm256_setr_epi64x(0, 64, 128, 192);
  const __m256i at = _mm256_set1_epi64x(x);
  __m256i placed = _mm256_or_si256(_mm256_sllv_epi64(bits, _mm256_sub_epi64(at, begin)),
                                   _mm256_srlv_epi64(bits, _mm256_sub_epi64(begin, at)));
  const __m256i rest = _mm256_sub_epi64(_mm256_setr_epi64x(160, 224, 288, 352), at);
  placed = _mm256_or_si256(placed, _mm256_srlv_epi64(bits, rest));
  placed = _mm256_and_si256(placed, _mm256_setr_epi64x(-1, -1, 0xFFFFFFFF, 0));
  __m256i* const target = reinterpret_cast<__m256i*>(&mask);
  _mm256_store_si256(target, _mm256_or_si256(_mm256_load_si256(target), placed));
#else
  const uint32_t shift = x & 63;
  const uint64_t low = pattern << shift;
  const uint64_t high = shift ? pattern >> (64 - shift) : 0;
  if (x < 64) {
    mask.word[0] |= low;
    mask.word[1] |= high;
  } else if (x < 128) {
    mask.word[1] |= low;
    mask.word[2] |= high & 0xFFFFFFFF;
    mask.word[0] |= high >> 32;
  } else {
    mask.word[2] |= low & 0xFFFFFFFF;
    mask.word[0] |= low >> 32 | high << 32;
  }
#endif
}

HR_INLINE uint32_t wrap_pixel(uint32_t x) { return x >= 160 ? x - 160 : x; }

// The offsets 16, 32, 64 of the copies after the first, by NUSIZ & 7: bits 0, 1, 2.
HR_INLINE uint32_t later_copies(uint8_t nusiz) { return 0x06043210u >> (4 * (nusiz & 7)) & 7; }

// The mask of an object with copies. A pattern with copies is at most 8 pixels wide, so the first copy and those 16 and 32 pixels
// further are added as one pattern. `later`: see later_copies.
HR_INLINE LineMask copies_mask(uint64_t pattern, uint32_t position, uint32_t later, bool first_hidden) {
  LineMask mask = {{0, 0, 0, 0}};
  const uint64_t copies = static_cast<uint64_t>(!first_hidden) | static_cast<uint64_t>(later & 1) << 16 |
                          static_cast<uint64_t>(later & 2) << 31;
  add_pattern(mask, pattern * copies, position);
  if (HR_UNLIKELY(later & 4)) add_pattern(mask, pattern, wrap_pixel(position + 64));
  return mask;
}

HR_INLINE LineMask player_mask(const Console& s, int player) {
  const uint32_t grp = s.shown_grp[player];
  const uint32_t bits = s.refp[player] ? grp : reverse_byte(grp);
  const uint8_t size = s.nusiz[player] & 7;
  // Stretched players start one pixel late.
  const uint64_t pattern = HR_UNLIKELY(size == 5)   ? static_cast<uint64_t>(widen_2(bits)) << 1
                           : HR_UNLIKELY(size == 7) ? static_cast<uint64_t>(widen_4(bits)) << 1
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
#ifdef HR_AVX2
  // Stored as a whole: loading a vector that was stored word by word takes many times as long.
  const __m256i words = _mm256_srlv_epi64(_mm256_set1_epi64x(static_cast<int64_t>(line)), _mm256_setr_epi64x(0, 16, 32, 64));
  return mask_of(widen_16_by_4((LineBits)words & 0xFFFF));
#else
  return {{widen_16_by_4(line & 0xFFFF), widen_16_by_4(line >> 16 & 0xFFFF), widen_16_by_4(line >> 32), 0}};
#endif
}

// Brings the masks of the objects up to date. The masks of objects without pixels are always empty.
HR_INLINE void refresh_masks(Console& s) {
  const uint8_t todo = s.stale & s.solid;
  if (HR_LIKELY(!todo)) return;
  s.stale &= ~todo;
  if (todo & 1 << kP0) s.mask[kP0] = player_mask(s, 0);
  if (todo & 1 << kP1) s.mask[kP1] = player_mask(s, 1);
  if (HR_UNLIKELY(todo & 1 << kM0)) s.mask[kM0] = missile_mask(s, 0);
  if (HR_UNLIKELY(todo & 1 << kM1)) s.mask[kM1] = missile_mask(s, 1);
  if (HR_UNLIKELY(todo & 1 << kBall)) s.mask[kBall] = ball_mask(s);
  if (todo & 1 << kPlayfield) s.mask[kPlayfield] = playfield_mask(s);
}

#ifdef HR_AVX2

// The bits of a mask whose pixels lie in from <= x < to.
HR_INLINE LineBits range_of_line(int32_t from, int32_t to) {
  // Shifts by 64 and more leave nothing. Differences below 0 become 0.
  const __m256i begin = _mm256_setr_epi64x(0, 64, 128, 192), end = _mm256_setr_epi64x(64, 128, 192, 256);
  const __m256i all = _mm256_set1_epi64x(-1);
  return (LineBits)_mm256_sllv_epi64(all, _mm256_subs_epu16(_mm256_set1_epi64x(from), begin)) &
         (LineBits)_mm256_srlv_epi64(all, _mm256_subs_epu16(end, _mm256_set1_epi64x(to)));
}

// Whether two masks share a pixel of the range.
HR_INLINE bool meet(const LineMask& a, const LineMask& b, LineBits range) {
  return !_mm256_testz_si256((__m256i)(load_mask(a) & load_mask(b)), (__m256i)range);
}

// Whether any two of the objects' masks share a pixel of the range.
HR_INLINE bool any_meet(const LineMask* mask, LineBits range) {
  LineBits one = {}, two = {};  // the pixels of at least one object, of at least two
  for (int object = 0; object < kObjects; ++object) {
    const LineBits bits = load_mask(mask[object]);
    two |= one & bits;
    one |= bits;
  }
  return !_mm256_testz_si256((__m256i)two, (__m256i)range);
}

#else

// The bits of a mask's word whose pixels lie in from <= x < to. The word must have at least one of these pixels.
HR_INLINE uint64_t range_of_word(int32_t word, int32_t from, int32_t to) {
  const int32_t begin = from - 64 * word, end = to - 64 * word;
  return (begin > 0 ? ~0ull << begin : ~0ull) & (end < 64 ? ~(~0ull << end) : ~0ull);
}

struct PixelRange {
  int32_t from, to;
};
HR_INLINE PixelRange range_of_line(int32_t from, int32_t to) { return {from, to}; }

// Whether two masks share a pixel of the range.
HR_INLINE bool meet(const LineMask& a, const LineMask& b, PixelRange range) {
  for (int32_t word = range.from >> 6; 64 * word < range.to; ++word)
    if (a.word[word] & b.word[word] & range_of_word(word, range.from, range.to)) return true;
  return false;
}

// Whether any two of the objects' masks share a pixel of the range.
HR_INLINE bool any_meet(const LineMask* mask, PixelRange range) {
  for (int32_t word = range.from >> 6; 64 * word < range.to; ++word) {
    uint64_t one = 0, two = 0;  // the pixels of at least one object, of at least two
    for (int object = 0; object < kObjects; ++object) {
      two |= one & mask[object].word[word];
      one |= mask[object].word[word];
    }
    if (two & range_of_word(word, range.from, range.to)) return true;
  }
  return false;
}

#endif

}  // namespace headrace::atari

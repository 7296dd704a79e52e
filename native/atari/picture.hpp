// The picture: advancing the beam, collisions, pixels.
//
// Like the emulator it must agree with, the core draws lazily: nothing happens between accesses to the TIA, and each
// access first advances the picture to its own clock. Advancing can be put off further as long as no register that
// matters has changed: two steps over unchanged registers equal one.
#pragma once

#include "line_mask.hpp"
#include "platform.hpp"
#include "rom.hpp"
#include "state.hpp"

namespace headrace::atari {

inline constexpr int32_t kLineClocks = 228;
inline constexpr int32_t kBlankClocks = 68;
inline constexpr int32_t kLineCycles = 76;
inline constexpr int32_t kNtscLineLimit = 290;
inline constexpr int32_t kPalLineLimit = 342;

// What stays the same during a frame.
struct Frame {
  const Cartridge& cart;
  const Input& input;
  uint8_t* pixels;  // rows x 160 bytes, or null: nothing is drawn
  int32_t display_start, display_stop;  // clocks
  int32_t limit_cycle;                  // a TIA write from here on ends the frame
};

// Pairs of objects whose collision is latched, by bit of Console::collisions (bit 12 has none).
struct Pair {
  uint8_t first, second;
};
HR_INLINE Pair collision_pair(int bit) {
  static constexpr Pair pairs[16] = {
      {kM0, kP0}, {kM0, kP1},        {kM1, kP1}, {kM1, kP0},        {kP0, kBall}, {kP0, kPlayfield},
      {kP1, kBall}, {kP1, kPlayfield}, {kM0, kBall}, {kM0, kPlayfield}, {kM1, kBall}, {kM1, kPlayfield},
      {kBall, kBall}, {kBall, kPlayfield}, {kM0, kM1}, {kP0, kP1}};
  return pairs[bit];
}

struct PairTable {
  uint16_t of[64];
};
constexpr PairTable make_pair_table() {
  constexpr uint8_t sets[16] = {0x03, 0x06, 0x0C, 0x09, 0x11, 0x21, 0x14, 0x24,
                                0x12, 0x22, 0x18, 0x28, 0xFF, 0x30, 0x0A, 0x05};
  PairTable table = {};
  for (int set = 0; set < 64; ++set)
    for (int bit = 0; bit < 16; ++bit)
      if ((set & sets[bit]) == sets[bit]) table.of[set] |= static_cast<uint16_t>(1 << bit);
  return table;
}
// The collisions that are possible between the objects of a set.
HR_INLINE uint16_t possible_pairs(uint8_t set) {
  static constexpr PairTable table = make_pair_table();
  return table.of[set];
}

HR_INLINE bool intersects(const LineMask& a, const LineMask& b, const LineMask& range) {
  return ((a.word[0] & b.word[0] & range.word[0]) | (a.word[1] & b.word[1] & range.word[1]) |
          (a.word[2] & b.word[2] & range.word[2])) != 0;
}

HR_INLINE int lowest_bit(uint32_t x) {
#ifdef __CUDA_ARCH__
  return __ffs(x) - 1;
#else
  return __builtin_ctz(x);
#endif
}

// Latches the collisions of pixels from <= x < to.
HR_INLINE void collide(Console& s, int32_t from, int32_t to) {
  uint32_t pairs = possible_pairs(s.solid) & ~s.collisions;
  if (!pairs || (from >= s.tested_from && to <= s.tested_to)) return;
  refresh_masks(s, s.solid);
  const LineMask range = range_mask(from, to);
  for (; pairs; pairs &= pairs - 1) {
    const int bit = lowest_bit(pairs);
    const Pair pair = collision_pair(bit);
    if (intersects(s.mask[pair.first], s.mask[pair.second], range)) s.collisions |= static_cast<uint16_t>(1 << bit);
  }
  if (from <= s.tested_to && to >= s.tested_from && s.tested_to != 0) {
    if (from < s.tested_from) s.tested_from = static_cast<uint8_t>(from);
    if (to > s.tested_to) s.tested_to = static_cast<uint8_t>(to);
  } else {
    s.tested_from = static_cast<uint8_t>(from);
    s.tested_to = static_cast<uint8_t>(to);
  }
}

// The colours of the four layers of a line; the masks are disjoint, what is in none is background.
struct Layers {
  LineMask p0, p1, playfield;
};

HR_INLINE Layers layers_of(Console& s) {
  refresh_masks(s, s.solid);
  Layers layers;
  for (int i = 0; i < 3; ++i) {
    const auto word = [&](Object object) { return s.solid >> object & 1 ? s.mask[object].word[i] : 0; };
    const uint64_t p0 = word(kP0) | word(kM0), p1 = word(kP1) | word(kM1);
    const uint64_t playfield = word(kPlayfield), ball = word(kBall);
    if (s.ctrlpf & 4) {  // the playfield comes first
      layers.playfield.word[i] = playfield | ball;
      layers.p0.word[i] = p0 & ~(playfield | ball);
      layers.p1.word[i] = p1 & ~(playfield | ball | p0);
    } else {
      // Score mode: the left half of the playfield belongs to player 0, the right half to player 1.
      const uint64_t left = i == 0 ? ~0ull : i == 1 ? 0xFFFF : 0;
      const uint64_t of_p0 = s.ctrlpf & 2 ? playfield & left : 0;
      const uint64_t of_p1 = s.ctrlpf & 2 ? playfield & ~left : 0;
      layers.p0.word[i] = p0 | of_p0;
      layers.p1.word[i] = (p1 | of_p1) & ~layers.p0.word[i];
      layers.playfield.word[i] = (playfield | ball) & ~(layers.p0.word[i] | layers.p1.word[i]);
    }
  }
  return layers;
}

// 8 bits to 8 bytes of 0x00 or 0xFF, lowest bit first in memory (little endian).
HR_INLINE uint64_t bits_to_bytes(uint32_t bits) {
  const uint64_t spread = (bits & 0xFF) * 0x0101010101010101ull & 0x8040201008040201ull;
  return (((spread + 0x7F7F7F7F7F7F7F7Full) | spread) >> 7 & 0x0101010101010101ull) * 0xFF;
}

HR_HD inline void paint(Console& s, uint8_t* row, int32_t from, int32_t to) {
  if (s.vblank & 2) {
    for (int32_t x = from; x < to; ++x) row[x] = 0;
    return;
  }
  const Layers layers = layers_of(s);
  const uint64_t each = 0x0101010101010101ull;
  const uint64_t p0 = s.color[0] * each, p1 = s.color[1] * each, playfield = s.color[2] * each,
                 background = s.color[3] * each;
  for (int32_t x = from & ~7; x < to; x += 8) {
    const int32_t word = x >> 6, shift = x & 63;
    const uint64_t in_p0 = bits_to_bytes(static_cast<uint32_t>(layers.p0.word[word] >> shift));
    const uint64_t in_p1 = bits_to_bytes(static_cast<uint32_t>(layers.p1.word[word] >> shift));
    const uint64_t in_playfield = bits_to_bytes(static_cast<uint32_t>(layers.playfield.word[word] >> shift));
    const uint64_t pixels = (in_p0 & p0) | (in_p1 & p1) | (in_playfield & playfield) |
                            (~(in_p0 | in_p1 | in_playfield) & background);
    if (x >= from && x + 8 <= to) {
      __builtin_memcpy(row + x, &pixels, 8);
    } else {
      for (int32_t i = x < from ? from - x : 0; i < 8 && x + i < to; ++i)
        row[x + i] = static_cast<uint8_t>(pixels >> (8 * i));
    }
  }
}

// Clocks from <= h < to of the current line, which is on display.
HR_INLINE void pass_clocks(Console& s, const Frame& frame, int32_t from, int32_t to) {
  if (to <= kBlankClocks) return;
  const int32_t first = from < kBlankClocks ? 0 : from - kBlankClocks, last = to - kBlankClocks;
  if (first >= last) return;
  if (!(s.vblank & 2)) collide(s, first, last);
  if (frame.pixels) {
    uint8_t* row = frame.pixels + (s.line_start_clock - frame.display_start) / kLineClocks * kScreenWidth;
    paint(s, row, first, last);
    if (s.hmove_blank)
      for (int32_t x = first; x < 8; ++x) row[x] = 0;
  }
  if (s.hmove_blank && first < 8 && last >= 8) s.hmove_blank = false;
}

HR_INLINE void shape_changed(Console& s, uint8_t objects) {
  s.stale |= objects;
  s.tested_from = s.tested_to = 0;
}

HR_INLINE void update_solid(Console& s) {
  s.solid = static_cast<uint8_t>((shown_grp(s, 0) != 0) << kP0 | (shown_grp(s, 1) != 0) << kP1 |
                                 (s.enam[0] && !s.resmp[0] && !s.star_hidden) << kM0 |
                                 (s.enam[1] && !s.resmp[1]) << kM1 | (shown_enabl(s) != 0) << kBall |
                                 (s.playfield != 0) << kPlayfield);
}

HR_INLINE bool changes_at_line_end(const Console& s) {
  return s.first_copy_hidden[0] || s.first_copy_hidden[1] || s.stars || s.playfield_reflected != (s.ctrlpf & 1);
}

// The fault of the missile 0 counter that draws the star field of Cosmic Ark.
HR_INLINE void move_star(Console& s) {
  constexpr uint32_t steps = 17u << 24 | 0u << 16 | 33u << 8 | 18u;
  s.star_counter = (s.star_counter + 1) & 3;
  const int32_t x = s.position[kM0] - static_cast<int32_t>(steps >> (8 * s.star_counter) & 0xFF);
  s.position[kM0] = static_cast<uint8_t>(x < 0 ? x + 160 : x);
  s.star_width = s.star_counter == 1;
  s.star_hidden = s.star_counter == 2;
  update_solid(s);
}

HR_INLINE void end_line(Console& s) {
  if (!changes_at_line_end(s)) return;
  s.playfield_reflected = s.ctrlpf & 1;
  s.first_copy_hidden[0] = s.first_copy_hidden[1] = false;
  if (s.stars) move_star(s);
  shape_changed(s, 1 << kP0 | 1 << kP1 | 1 << kM0 | 1 << kPlayfield);
}

// Advances the picture to the last access of the TIA. A line ends only when the beam goes beyond its last clock.
HR_NOINLINE void advance_picture(Console& s, const Frame& frame) {
  const int32_t clock = s.last_access_clock < frame.display_stop ? s.last_access_clock : frame.display_stop;
  while (s.drawn_to_clock < clock) {
    const int32_t line_end = s.line_start_clock + kLineClocks;
    const int32_t to = clock < line_end ? clock : line_end;
    pass_clocks(s, frame, s.drawn_to_clock - s.line_start_clock, to - s.line_start_clock);
    s.drawn_to_clock = to;
    if (clock > line_end) {
      end_line(s);
      s.line_start_clock = line_end;
    }
  }
  if (clock == frame.display_stop) s.drawn_to_clock = kNever;
}

HR_INLINE void catch_up(Console& s, const Frame& frame) {
  if (s.last_access_clock > s.drawn_to_clock) advance_picture(s, frame);
}

}  // namespace headrace::atari

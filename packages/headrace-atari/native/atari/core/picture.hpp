// The picture: advancing the beam, collisions, pixels.
//
// ALE draws lazily, and programs can tell: nothing happens between accesses to the TIA, and each access first advances the
// picture to its own clock. Here advancing is put off further, until a register changes that matters, because advancing twice
// over unchanged registers is the same as advancing once.
#pragma once

#include "line_mask.hpp"
#include "paint.hpp"
#include "platform.hpp"
#include "cartridge.hpp"
#include "state.hpp"

namespace headrace::atari {

inline constexpr int32_t kLineClocks = 228;
inline constexpr int32_t kBlankClocks = 68;
inline constexpr int32_t kLineCycles = 76;
inline constexpr int32_t kHmoveBlankPixels = 8;
inline constexpr int32_t kNtscLineLimit = 290;
inline constexpr int32_t kPalLineLimit = 342;

// How far the beam is in its line. Unsigned, a division by a constant becomes a multiplication.
HR_INLINE int32_t clock_in_line(int32_t clock) {
  return static_cast<int32_t>(static_cast<uint32_t>(clock) % static_cast<uint32_t>(kLineClocks));
}

// What stays the same during a frame.
struct Frame {
  const Cartridge* cartridge;
  TvFormat tv;
  const Input* input;
  uint8_t* pixels;  // rows x 160 bytes, or null: nothing is drawn
  int32_t display_start, display_stop;  // clocks
  int32_t limit_cycle;                  // a TIA write from here on ends the frame
  uint32_t charging[4];                 // cycles until the capacitor at INPT0..3 is charged
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
HR_HD constexpr PairTable make_pair_table() {
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

// Latches the collisions of pixels from <= x < to.
HR_INLINE void collide(Console& s, int32_t from, int32_t to) {
  if (HR_UNLIKELY(from >= s.tested_from && to <= s.tested_to)) return;
  refresh_masks(s);
  const auto range = range_of_line(from, to);
  uint32_t latched = 0;
  if (HR_UNLIKELY(any_meet(s.mask, range)))
    for (uint32_t pairs = s.pending; pairs; pairs &= pairs - 1) {
      const Pair pair = collision_pair(lowest_bit(pairs));
      if (meet(s.mask[pair.first], s.mask[pair.second], range)) latched |= pairs & -pairs;
    }
  s.collisions |= static_cast<uint16_t>(latched);
  s.pending &= static_cast<uint16_t>(~latched);
  if (HR_UNLIKELY(from <= s.tested_to && to >= s.tested_from && s.tested_to != 0)) {
    if (from < s.tested_from) s.tested_from = static_cast<uint8_t>(from);
    if (to > s.tested_to) s.tested_to = static_cast<uint8_t>(to);
  } else {
    s.tested_from = static_cast<uint8_t>(from);
    s.tested_to = static_cast<uint8_t>(to);
  }
}

// --- changes of shape. The picture must have caught up before. ---

HR_INLINE void set_solid(Console& s, uint8_t solid) {
  s.solid = solid;
  s.pending = possible_pairs(solid) & static_cast<uint16_t>(~s.collisions);
}

HR_INLINE void shape_changed(Console& s, uint8_t objects) {
  s.stale |= objects;
  s.tested_from = s.tested_to = 0;
}

HR_INLINE void object_changed(Console& s, Object object, bool solid) {
  const uint8_t bit = static_cast<uint8_t>(1 << object);
  shape_changed(s, bit);
  if (HR_LIKELY(((s.solid & bit) != 0) == solid)) return;
  set_solid(s, s.solid ^ bit);
  if (!solid) s.mask[object] = LineMask{};
}

HR_INLINE void player_changed(Console& s, int player) {
  object_changed(s, player ? kP1 : kP0, s.shown_grp[player] != 0);
}
HR_INLINE void missile_changed(Console& s, int player) {
  object_changed(s, player ? kM1 : kM0, s.enam[player] && !s.resmp[player] && !(player == 0 && s.star_hidden));
}
HR_INLINE void ball_changed(Console& s) { object_changed(s, kBall, s.shown_enabl != 0); }

HR_INLINE void note_changes_at_line_end(Console& s) {
  s.changes_at_line_end =
      s.first_copy_hidden[0] || s.first_copy_hidden[1] || s.stars || s.playfield_reflected != (s.ctrlpf & 1);
}

// --- the beam ---

// A write to HMM0 at a certain time after HMOVE (write_motion in tia.hpp) keeps missile 0 moving in every line. The game Cosmic
// Ark draws its star field so.
HR_HD inline void move_star(Console& s) {
  constexpr uint32_t steps = 17u << 24 | 0u << 16 | 33u << 8 | 18u;
  s.star_counter = (s.star_counter + 1) & 3;
  const int32_t x = s.position[kM0] - static_cast<int32_t>(steps >> (8 * s.star_counter) & 0xFF);
  s.position[kM0] = static_cast<uint8_t>(x < 0 ? x + 160 : x);
  s.star_width = s.star_counter == 1;
  s.star_hidden = s.star_counter == 2;
  missile_changed(s, 0);
}

HR_INLINE void end_line(Console& s) {
  if (HR_LIKELY(!s.changes_at_line_end)) return;
  if (s.playfield_reflected != (s.ctrlpf & 1)) {
    s.playfield_reflected = s.ctrlpf & 1;
    shape_changed(s, 1 << kPlayfield);
  }
  if (s.first_copy_hidden[0] || s.first_copy_hidden[1]) {
    s.first_copy_hidden[0] = s.first_copy_hidden[1] = false;
    shape_changed(s, 1 << kP0 | 1 << kP1);
  }
  if (s.stars) move_star(s);
  note_changes_at_line_end(s);
}

// Whether advancing the picture would have no effect but on pixels.
HR_INLINE bool is_quiet(const Console& s) {
  return !s.changes_at_line_end && (!s.pending || (s.vblank & 2) || (s.tested_from == 0 && s.tested_to == kScreenWidth));
}

// Blanks the first pixels of the lines that HMOVE's blanking covers. What is beyond the beam is painted later.
HR_INLINE void blank_after_hmove(const Console& s, uint8_t* row, int32_t from, int32_t line, int32_t lines) {
  for (; lines > 0 && s.hmove_blank_clock > line; --lines, line += kLineClocks, row += kScreenWidth) {
    if (from == 0) clear_bytes(row, kHmoveBlankPixels);
    else for (int32_t x = from; x < kHmoveBlankPixels; ++x) row[x] = 0;
  }
}

// Advances the picture to the last access of the TIA, with or without pixels. A line ends only when the beam goes beyond its last
// clock.
template <bool painted>
HR_NOINLINE void advance_picture(Console& s, const Frame& frame) {
  const int32_t clock = min_of(s.last_access_clock, frame.display_stop);
  int32_t drawn = s.drawn_to_clock, line = s.line_start_clock;
  if (HR_UNLIKELY(drawn > line + kLineClocks)) line += (drawn - line - 1) / kLineClocks * kLineClocks;
  while (drawn < clock) {
    if (!painted && is_quiet(s)) break;
    int32_t lines = 1;  // painted at once, because nothing changes between them
    const int32_t from = max_of(drawn - line - kBlankClocks, 0), to = min_of(clock - line, kLineClocks) - kBlankClocks;
    if (HR_LIKELY(from < to)) {
      if (HR_LIKELY(s.pending && !(s.vblank & 2))) collide(s, from, to);
      if (painted) {
        if (HR_UNLIKELY(from == 0 && clock - line >= 2 * kLineClocks && !s.changes_at_line_end))
          lines = (clock - line) / kLineClocks;
        uint8_t* const row = frame.pixels + static_cast<uint32_t>(line - frame.display_start) / kLineClocks * kScreenWidth;
        paint(s, row, from, to, lines);
        if (from < kHmoveBlankPixels) blank_after_hmove(s, row, from, line, lines);
      }
    }
    line += (lines - 1) * kLineClocks;
    drawn = min_of(clock, line + kLineClocks);
    if (clock <= drawn) break;
    end_line(s);
    line += kLineClocks;
  }
  s.line_start_clock = line;
  s.drawn_to_clock = s.last_access_clock;
  s.idle_until_clock = max_of(s.last_access_clock, line + kBlankClocks);
}

// Advances the picture to the last access.
HR_INLINE void catch_up(Console& s, const Frame& frame) {
  if (s.last_access_clock <= s.idle_until_clock) return;
  if (frame.pixels) return advance_picture<true>(s, frame);
  if (!is_quiet(s)) return advance_picture<false>(s, frame);
  s.drawn_to_clock = s.idle_until_clock = s.last_access_clock;
}

}  // namespace headrace::atari

// The registers of the Television Interface Adaptor.
#pragma once

#include "picture.hpp"
#include "platform.hpp"
#include "state.hpp"

namespace headrace::atari {

// Notes an access whose effect shows at `clock`; the picture need not be advanced before something depends on it.
HR_INLINE void note_access(Console& s, int32_t clock) {
  if (HR_LIKELY(clock > s.last_access_clock)) s.last_access_clock = clock;
}

// INPT0..3: a capacitor that is charged through a paddle's resistance, from the cycle on at which VBLANK releases it. ALE
// computes in unsigned numbers relative to the frame's start, so a capacitor released in an earlier frame may never read as charged.
HR_HD inline uint8_t read_paddle(const Console& s, const Frame& frame, int paddle, int32_t cycle) {
  const int32_t resistance = frame.input->paddle[paddle];
  if (resistance == 0) return 0x80;
  if (resistance == Input::kNoPaddle || (s.vblank & 0x80)) return 0;
  const uint32_t needed = frame.charging[paddle];
  const uint32_t released = static_cast<uint32_t>(s.dump_released_at - s.frame_began_at);
  return static_cast<uint32_t>(cycle - s.frame_began_at) > released + needed ? 0x80 : 0;
}

// `bus`: the byte that was on the data bus before; it shows through the bits that the TIA does not drive.
HR_INLINE uint8_t read_register(Console& s, const Frame& frame, int reg, uint8_t bus, int32_t cycle) {
  note_access(s, 3 * cycle);
  uint8_t value = 0;
  if (reg < 8) {
    catch_up(s, frame);
    value = static_cast<uint8_t>((s.collisions >> (2 * reg) & 3) << 6);
  } else if (reg < 12) {
    value = read_paddle(s, frame, reg - 8, cycle);
  } else if (reg < 14) {
    value = frame.input->fire[reg - 12] ? 0 : 0x80;
  }
  return value | (bus & 0x3F);
}
HR_NOINLINE uint8_t read_tia(Console& s, const Frame& frame, uint16_t address, uint8_t bus, int32_t cycle) {
  return read_register(s, frame, address & 15, bus, cycle);
}

// --- Registers by kind. Each function notes the access, with the delay of its effect; if the register's value changes, it first
// --- advances the picture with the old one. `clock`: of the write.

// The playfield's delay depends on the phase of the beam within four cycles.
HR_INLINE int32_t playfield_delay(int32_t cycle) {
  constexpr uint32_t delays = 3u << 24 | 2u << 16 | 5u << 8 | 4u;
  return static_cast<int32_t>(delays >> (8 * (cycle & 3)) & 0xFF);
}

// The 20 bits of playfield after a write to PF0, PF1 or PF2.
HR_INLINE uint32_t playfield_with(uint32_t playfield, uint32_t reg, uint32_t value) {
  if (reg == 0x0D) return (playfield & ~0xFu) | value >> 4;
  if (reg == 0x0E) return (playfield & ~0xFF0u) | reverse_byte(value) << 4;
  return (playfield & ~0xFF000u) | value << 12;
}

HR_INLINE void write_playfield(Console& s, const Frame& frame, int reg, uint8_t value, int32_t clock) {
  note_access(s, clock + playfield_delay(clock / 3));
  const uint32_t playfield = playfield_with(s.playfield, static_cast<uint32_t>(reg), value);
  if (playfield == s.playfield) return;
  catch_up(s, frame);
  s.playfield = playfield;
  object_changed(s, kPlayfield, playfield != 0);
}

HR_INLINE void write_color(Console& s, const Frame& frame, int index, uint8_t value, int32_t clock) {
  note_access(s, clock);
  value = static_cast<uint8_t>((value & 0xFE) | s.color_loss);
  if (value == s.color[index]) return;
  if (frame.pixels) catch_up(s, frame);
  s.color[index] = value;
}

// Selects the old or the new register, as VDELP or VDELBL says. The picture must have caught up.
HR_INLINE void select_grp(Console& s, int player) {
  const uint8_t shown = s.vdelp[player] ? s.grp_old[player] : s.grp[player];
  if (HR_LIKELY(shown == s.shown_grp[player])) return;
  s.shown_grp[player] = shown;
  player_changed(s, player);
}
HR_INLINE void select_enabl(Console& s) {
  const uint8_t shown = s.vdelbl ? s.enabl_old : s.enabl;
  if (shown == s.shown_enabl) return;
  s.shown_enabl = shown;
  ball_changed(s);
}

// A write to GRP0 copies GRP1 into player 1's old register; a write to GRP1 copies GRP0 and ENABL into theirs.
HR_INLINE void set_grp(Console& s, int player, uint8_t value) {
  const int other = player ^ 1;
  s.grp[player] = value;
  s.grp_old[other] = s.grp[other];
  select_grp(s, player);
  if (s.vdelp[other]) select_grp(s, other);
  if (player == 1) {
    s.enabl_old = s.enabl;
    if (HR_UNLIKELY(s.vdelbl)) select_enabl(s);
  }
}

// Whether set_grp would change what is shown.
HR_INLINE bool grp_shows(const Console& s, int player, uint8_t value) {
  const int other = player ^ 1;
  return (!s.vdelp[player] && value != s.grp[player]) || (s.vdelp[other] && s.grp_old[other] != s.grp[other]) ||
         (player == 1 && s.vdelbl && s.enabl_old != s.enabl);
}

HR_INLINE void write_grp(Console& s, const Frame& frame, int player, uint8_t value, int32_t clock) {
  note_access(s, clock + 1);
  if (grp_shows(s, player, value)) catch_up(s, frame);
  set_grp(s, player, value);
}

HR_NOINLINE void write_vdel(Console& s, const Frame& frame, Object object, uint8_t value, int32_t clock) {
  note_access(s, clock);
  uint8_t& reg = object == kBall ? s.vdelbl : s.vdelp[object == kP1];
  if (reg == value) return;
  catch_up(s, frame);
  reg = value;
  if (object == kBall) select_enabl(s);
  else select_grp(s, object == kP1);
}

HR_NOINLINE void write_refp(Console& s, const Frame& frame, int player, uint8_t value, int32_t clock) {
  note_access(s, clock + 1);
  if (s.refp[player] == value) return;
  catch_up(s, frame);
  s.refp[player] = value;
  player_changed(s, player);
}

HR_NOINLINE void write_enam(Console& s, const Frame& frame, int player, uint8_t value, int32_t clock) {
  note_access(s, clock);
  if (s.enam[player] == value) return;
  catch_up(s, frame);
  s.enam[player] = value;
  missile_changed(s, player);
}

HR_NOINLINE void write_enabl(Console& s, const Frame& frame, uint8_t value, int32_t clock) {
  note_access(s, clock);
  if (s.enabl == value) return;
  if (!s.vdelbl) catch_up(s, frame);
  s.enabl = value;
  select_enabl(s);
}

HR_NOINLINE void write_vsync(Console& s, uint8_t value, int32_t clock) {
  note_access(s, clock);
  s.vsync = value;
  if (value & 2) {
    s.vsync_end_clock = clock + kLineClocks;
  } else if (clock >= s.vsync_end_clock) {
    s.vsync_end_clock = kNever;
    s.frame_complete = true;
  }
}

HR_NOINLINE void write_vblank(Console& s, const Frame& frame, uint8_t value, int32_t clock) {
  note_access(s, clock + 1);
  if ((s.vblank ^ value) & 2) catch_up(s, frame);
  if ((s.vblank & 0x80) && !(value & 0x80)) s.dump_released_at = clock / 3;
  s.vblank = value;
}

// Ends the changes of missile 0 that move_star (picture.hpp) made in this line.
HR_INLINE void end_star(Console& s) { s.star_width = s.star_hidden = 0; }

HR_NOINLINE void write_nusiz(Console& s, const Frame& frame, int player, uint8_t value, int32_t clock) {
  note_access(s, clock + 8);
  value &= 0x37;
  if (s.nusiz[player] == value && !s.changes_at_line_end && !s.star_width && !s.star_hidden) return;
  catch_up(s, frame);
  s.nusiz[player] = value;
  s.first_copy_hidden[player] = false;
  note_changes_at_line_end(s);
  if (player == 0) end_star(s);
  player_changed(s, player);
  missile_changed(s, player);
}

HR_NOINLINE void write_ctrlpf(Console& s, const Frame& frame, uint8_t value, int32_t clock) {
  note_access(s, clock);
  if (s.ctrlpf == value && !s.changes_at_line_end) return;
  catch_up(s, frame);
  s.ctrlpf = value;
  if (clock_in_line(clock) < kBlankClocks + 79) s.playfield_reflected = value & 1;
  note_changes_at_line_end(s);
  shape_changed(s, 1 << kPlayfield | 1 << kBall);
}

// RESP0, RESP1: the player's position becomes that of the beam. The copy at the new position is drawn from the next line on,
// unless one is being drawn there already.
HR_NOINLINE void write_resp(Console& s, const Frame& frame, int player, int32_t clock) {
  note_access(s, clock);
  catch_up(s, frame);
  const Object object = player ? kP1 : kP0;
  const int32_t h = clock_in_line(clock);
  const int32_t position = h < kBlankClocks ? 3 : static_cast<int32_t>(wrap_pixel(h - kBlankClocks + 5));
  const int32_t size = s.nusiz[player] & 7;
  const int32_t width = size == 5 ? 16 : size == 7 ? 32 : 8;
  const uint32_t copies = 1 | later_copies(s.nusiz[player]) << 1;
  bool hidden = true;
  for (int i = 0; copies >> i; ++i) {
    if (!(copies >> i & 1)) continue;
    const int32_t offset = i ? 8 << i : 0;
    int32_t beyond = position - s.position[object] - offset;  // -223..159
    beyond += beyond < -160 ? 320 : beyond < 0 ? 160 : 0;
    if (beyond < 4) {
      hidden = false;
    } else if (beyond < 4 + width) {  // the copy that is being drawn is finished first
      note_access(s, clock + 11);
      catch_up(s, frame);
    }
  }
  s.position[object] = static_cast<uint8_t>(position);
  s.first_copy_hidden[player] = hidden;
  note_changes_at_line_end(s);
  player_changed(s, player);
}

// The position of a missile or ball that is reset `since_hmove` clocks after HMOVE, in clock `h` of the line: for some of these
// times it is not the `position` where it would be otherwise.
HR_HD inline int32_t reset_after_hmove(Object object, int32_t since_hmove, int32_t h, int32_t position) {
  switch (object) {
    case kM0: return since_hmove == 60 && h == 69 ? 8 : position;
    case kM1: return since_hmove == 9 && h == 18 ? 3 : position;
    default:
      if (since_hmove == 54 && (h == 60 || h == 69)) return 10;
      if (since_hmove == 9 && h == 18) return 3;
      if (since_hmove == 21 && h == 30) return 6;
      if (since_hmove == 18 && h == 27) return 5;
      return position;
  }
}

// RESM0, RESM1, RESBL: the position becomes that of the beam, for a missile only eight clocks later.
HR_NOINLINE void write_resm(Console& s, const Frame& frame, Object object, int32_t clock) {
  note_access(s, clock + (object == kBall ? 0 : 8));
  catch_up(s, frame);
  const int32_t h = clock_in_line(clock);
  const int32_t position = h < kBlankClocks ? 2 : static_cast<int32_t>(wrap_pixel(h - kBlankClocks + 4));
  s.position[object] = static_cast<uint8_t>(reset_after_hmove(object, clock - s.hmove_clock, h, position));
  if (object == kM0) end_star(s);
  if (object == kBall) ball_changed(s);
  else missile_changed(s, object == kM1);
}

// RESMP0, RESMP1: a missile is not shown while it is locked to its player. When released it is at the player's middle.
HR_NOINLINE void write_resmp(Console& s, const Frame& frame, int player, uint8_t value, int32_t clock) {
  note_access(s, clock);
  if (s.resmp[player] == value) return;
  catch_up(s, frame);
  if (!value) {
    const int size = s.nusiz[player] & 7;
    const uint32_t middle = size == 5 ? 8 : size == 7 ? 16 : 4;
    s.position[player ? kM1 : kM0] = static_cast<uint8_t>(wrap_pixel(s.position[player ? kP1 : kP0] + middle));
    if (player == 0) end_star(s);
  }
  s.resmp[player] = value;
  missile_changed(s, player);
}

// What is added to a position, mod 256, when HMOVE is written in cycle c of a line; `motion` as in Console.
HR_INLINE uint8_t hmove_motion(uint8_t motion, int32_t c) {
  const int32_t full = motion - 8, pulses = (3 * c + 1) / 4;
  int32_t moved = full;
  if (c < kLineCycles - 1) {
    if (c <= 20) moved = full > pulses - 9 ? full : pulses - 9;
    else if (c < 55) moved = 0;
    else moved = full < pulses - 47 ? full - (pulses - 47) : 0;
  }
  return static_cast<uint8_t>(moved);
}

// Where the blanking by a HMOVE ends: after the first pixels of this line if they are still to come, else of the next one;
// before the display begins, of the first line on display.
HR_INLINE int32_t end_of_hmove_blank(const Frame& frame, int32_t clock) {
  constexpr int32_t end = kBlankClocks + kHmoveBlankPixels;
  if (HR_UNLIKELY(clock < frame.display_start)) return frame.display_start + end;
  const int32_t h = clock_in_line(clock);
  return clock - h + end + (h < end ? 0 : kLineClocks);
}

// Moves 8 positions of 0..159, one per byte, by motion - 8 pixels round the 160 of the line; motion is 1..16.
HR_INLINE uint64_t moved_round_line(uint64_t positions, uint64_t motions) {
  constexpr uint64_t each = 0x0101010101010101, high = 0x80 * each;
  const uint64_t sum = positions + motions;  // 1..175 in each byte: the position moved, plus 8
  const uint64_t past_right = sum & ((sum | high) - 0x28 * each) & high;  // 168 or more
  const uint64_t past_left = ~(sum | ((sum | high) - 8 * each)) & high;   // less than 8
  return sum - (past_right >> 7) * 160 + (past_left >> 7) * 160 - 8 * each;
}

HR_INLINE void move_objects(uint8_t* position, const uint8_t* motion) {
  uint64_t positions, motions;
  copy_bytes(&positions, position, 8);
  copy_bytes(&motions, motion, 8);
  positions = moved_round_line(positions, motions);
  copy_bytes(position, &positions, 8);
}

HR_NOINLINE void write_hmove(Console& s, const Frame& frame, int32_t cycle) {
  const int32_t clock = 3 * cycle;
  note_access(s, clock);
  const int32_t c = static_cast<int32_t>(static_cast<uint32_t>(cycle) % kLineCycles);
  const bool in_time = c <= 3 || c == kLineCycles - 1;  // the full motion
  const uint8_t moving = HR_LIKELY(in_time) ? s.moving : 0x1F;
  if (frame.pixels || s.changes_at_line_end || (moving & s.solid)) catch_up(s, frame);
  if (frame.cartridge->hmove_blanks && (c <= 20 || c == kLineCycles - 1)) s.hmove_blank_clock = end_of_hmove_blank(frame, clock);
  s.hmove_clock = clock;
  if (HR_LIKELY(in_time)) {
    if (moving) move_objects(s.position, s.motion);
  } else {
    uint8_t motion[8];
    for (int object = 0; object < 8; ++object) motion[object] = hmove_motion(s.motion[object], c) + 8;
    move_objects(s.position, motion);
  }
  s.stale |= moving;
  if (HR_UNLIKELY(moving & s.solid)) s.tested_from = s.tested_to = 0;
  if (HR_LIKELY(!s.changes_at_line_end)) return;
  s.first_copy_hidden[0] = s.first_copy_hidden[1] = false;
  s.stars = false;
  end_star(s);
  note_changes_at_line_end(s);
  missile_changed(s, 0);
  shape_changed(s, 1 << kP0 | 1 << kP1);
}

HR_INLINE void set_motion(Console& s, Object object, uint8_t nibble) {
  s.motion[object] = static_cast<uint8_t>(nibble < 8 ? 8 - nibble : 24 - nibble);
  const uint8_t bit = static_cast<uint8_t>(1 << object);
  s.moving = static_cast<uint8_t>(nibble ? s.moving | bit : s.moving & ~bit);
}

HR_NOINLINE void write_motion(Console& s, const Frame& frame, Object object, uint8_t value, int32_t clock) {
  note_access(s, clock);
  constexpr uint8_t seven = 8 - 7;
  if (HR_UNLIKELY(object == kM0 && value >> 4 == 6 && s.motion[kM0] == seven && clock - s.hmove_clock == 63)) {
    catch_up(s, frame);
    s.stars = true;
    s.star_counter = 0;
    note_changes_at_line_end(s);
  }
  set_motion(s, object, value >> 4);
}

HR_INLINE void clear_motion(Console& s) {
  for (uint8_t& motion : s.motion) motion = 8;
  s.moving = 0;
}

HR_NOINLINE void clear_collisions(Console& s, const Frame& frame, int32_t clock) {
  note_access(s, clock);
  catch_up(s, frame);
  s.collisions = 0;
  s.tested_from = s.tested_to = 0;
  set_solid(s, s.solid);
}

// VSYNC, which can end the frame, and WSYNC, which can halt the processor.
HR_INLINE bool is_special_register(uint32_t reg) { return reg == 0 || reg == 2; }

// A write in time. What `reg` is may be known when compiling: then nothing of the switch is left.
HR_INLINE void write_in_time(Console& s, const Frame& frame, int reg, uint8_t value, int32_t cycle) {
  const int32_t clock = 3 * cycle;
  switch (reg) {
    case 0x00: return write_vsync(s, value, clock);
    case 0x01: return write_vblank(s, frame, value, clock);
    case 0x04: return write_nusiz(s, frame, 0, value, clock);
    case 0x05: return write_nusiz(s, frame, 1, value, clock);
    case 0x06: case 0x07: case 0x08: case 0x09: return write_color(s, frame, reg - 6, value, clock);
    case 0x0A: return write_ctrlpf(s, frame, value, clock);
    case 0x0B: return write_refp(s, frame, 0, value & 8, clock);
    case 0x0C: return write_refp(s, frame, 1, value & 8, clock);
    case 0x0D: case 0x0E: case 0x0F: return write_playfield(s, frame, reg, value, clock);
    case 0x10: return write_resp(s, frame, 0, clock);
    case 0x11: return write_resp(s, frame, 1, clock);
    case 0x12: return write_resm(s, frame, kM0, clock);
    case 0x13: return write_resm(s, frame, kM1, clock);
    case 0x14: return write_resm(s, frame, kBall, clock);
    case 0x1B: return write_grp(s, frame, 0, value, clock);
    case 0x1C: return write_grp(s, frame, 1, value, clock);
    case 0x1D: return write_enam(s, frame, 0, value & 2, clock);
    case 0x1E: return write_enam(s, frame, 1, value & 2, clock);
    case 0x1F: return write_enabl(s, frame, value & 2, clock);
    case 0x20: return write_motion(s, frame, kP0, value, clock);
    case 0x21: return write_motion(s, frame, kP1, value, clock);
    case 0x22: return write_motion(s, frame, kM0, value, clock);
    case 0x23: return write_motion(s, frame, kM1, value, clock);
    case 0x24: return write_motion(s, frame, kBall, value, clock);
    case 0x25: return write_vdel(s, frame, kP0, value & 1, clock);
    case 0x26: return write_vdel(s, frame, kP1, value & 1, clock);
    case 0x27: return write_vdel(s, frame, kBall, value & 1, clock);
    case 0x28: return write_resmp(s, frame, 0, value & 2, clock);
    case 0x29: return write_resmp(s, frame, 1, value & 2, clock);
    case 0x2A: return write_hmove(s, frame, cycle);
    case 0x2B:
      note_access(s, clock);
      return clear_motion(s);
    case 0x2C: return clear_collisions(s, frame, clock);
    default: return note_access(s, clock);  // cpu.hpp does what WSYNC does; RSYNC and sound are not emulated
  }
}

// An overlong frame ends with this write, which still takes effect.
HR_NOINLINE void write_tia(Console& s, const Frame& frame, int reg, uint8_t value, int32_t cycle) {
  if (HR_UNLIKELY(cycle >= frame.limit_cycle)) s.frame_complete = true;
  write_in_time(s, frame, reg, value, cycle);
}

// Does what write_tia does, for a register other than VSYNC and WSYNC that is known when compiling.
HR_INLINE void store_register(Console& s, const Frame& frame, uint32_t reg, uint8_t value, int32_t cycle) {
  if (HR_UNLIKELY(cycle >= frame.limit_cycle)) return write_tia(s, frame, static_cast<int>(reg), value, cycle);
  write_in_time(s, frame, static_cast<int>(reg), value, cycle);
}

}  // namespace headrace::atari

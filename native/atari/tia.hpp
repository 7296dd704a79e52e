// The registers of the Television Interface Adaptor.
#pragma once

#include "picture.hpp"
#include "platform.hpp"
#include "state.hpp"

namespace headrace::atari {

// Notes an access whose effect shows at `clock`; the picture need not be advanced before something depends on it.
HR_INLINE void note_access(Console& s, int32_t clock) {
  if (clock > s.last_access_clock) s.last_access_clock = clock;
}

// INPT0..3: a capacitor that a paddle's resistance charges. The time stamp of the release is relative to the frame in
// the oracle's unsigned arithmetic, so a capacitor released in an earlier frame may never read as charged.
HR_HD inline uint8_t read_paddle(const Console& s, int32_t resistance, int32_t cycle) {
  if (resistance == 0) return 0x80;
  if (resistance == Input::kNoPaddle || (s.vblank & 0x80)) return 0;
  const uint32_t needed = static_cast<uint32_t>(1.6 * resistance * 0.01e-6 * 1.19e6);
  const uint32_t released = static_cast<uint32_t>(s.dump_released_at - s.frame_began_at);
  return static_cast<uint32_t>(cycle - s.frame_began_at) > released + needed ? 0x80 : 0;
}

// `bus`: the byte that was on the data bus before; it shows through the bits that the TIA does not drive.
HR_NOINLINE uint8_t read_tia(Console& s, const Frame& frame, uint16_t address, uint8_t bus, int32_t cycle) {
  const int reg = address & 15;
  note_access(s, 3 * cycle);
  uint8_t value = 0;
  if (reg < 8) {
    catch_up(s, frame);
    value = static_cast<uint8_t>((s.collisions >> (2 * reg) & 3) << 6);
  } else if (reg < 12) {
    value = read_paddle(s, frame.input.paddle[reg - 8], cycle);
  } else if (reg < 14) {
    value = frame.input.fire[reg - 12] ? 0 : 0x80;
  }
  return value | (bus & 0x3F);
}

// Clocks between a write and its effect. The playfield's depends on the phase of the beam within four cycles.
HR_INLINE int32_t write_delay(int reg, int32_t cycle) {
  switch (reg) {
    case 0x01: case 0x0B: case 0x0C: case 0x1B: case 0x1C: return 1;
    case 0x04: case 0x05: case 0x12: case 0x13: return 8;
    case 0x0D: case 0x0E: case 0x0F: return 0x3254 >> (4 * (cycle & 3)) & 15;
    default: return 0;
  }
}

HR_INLINE void set_playfield(Console& s, const Frame& frame, uint32_t playfield) {
  if (playfield == s.playfield) return;
  catch_up(s, frame);
  s.playfield = playfield;
  update_solid(s);
  shape_changed(s, 1 << kPlayfield);
}

HR_INLINE void set_color(Console& s, const Frame& frame, int index, uint8_t value) {
  value = static_cast<uint8_t>((value & 0xFE) | s.color_loss);
  if (value == s.color[index]) return;
  if (frame.pixels) catch_up(s, frame);
  s.color[index] = value;
}

// Stores a register that decides about what an object shows, catching up first if that changes anything.
HR_INLINE void set_shape(Console& s, const Frame& frame, uint8_t& reg, uint8_t value, uint8_t objects) {
  if (reg == value) return;
  catch_up(s, frame);
  reg = value;
  update_solid(s);
  shape_changed(s, objects);
}

HR_INLINE void write_grp(Console& s, const Frame& frame, int player, uint8_t value) {
  const int other = player ^ 1;
  const bool player_same = s.vdelp[player] || s.grp[player] == value;
  const bool other_same = !s.vdelp[other] || s.grp_old[other] == s.grp[other];
  const bool ball_same = player == 0 || !s.vdelbl || s.enabl_old == s.enabl;
  const bool same = player_same && other_same && ball_same;
  if (!same) catch_up(s, frame);
  s.grp[player] = value;
  s.grp_old[other] = s.grp[other];
  if (player == 1) s.enabl_old = s.enabl;
  if (same) return;
  update_solid(s);
  shape_changed(s, static_cast<uint8_t>((player_same ? 0 : 1 << (player ? kP1 : kP0)) |
                                        (other_same ? 0 : 1 << (other ? kP1 : kP0)) | (ball_same ? 0 : 1 << kBall)));
}

// Whether writing GRPx leaves all registers as they are.
HR_INLINE bool grp_write_changes_nothing(Console& s, uint32_t player, uint32_t value) {
  const uint32_t other = player ^ 1;
  return s.grp[player] == value && s.grp_old[other] == s.grp[other] && (player == 0 || s.enabl_old == s.enabl);
}

// VSYNC can end the frame and WSYNC can wait.
HR_INLINE bool is_special_register(uint32_t reg) { return reg == 0 || reg == 2; }

HR_INLINE void write_vsync(Console& s, uint8_t value, int32_t clock) {
  s.vsync = value;
  if (value & 2) {
    s.vsync_end_clock = clock + kLineClocks;
  } else if (clock >= s.vsync_end_clock) {
    s.vsync_end_clock = kNever;
    s.frame_complete = true;
  }
}

HR_INLINE void write_vblank(Console& s, const Frame& frame, uint8_t value, int32_t cycle) {
  if ((s.vblank ^ value) & 2) catch_up(s, frame);
  if ((s.vblank & 0x80) && !(value & 0x80)) s.dump_released_at = cycle;
  s.vblank = value;
}

HR_INLINE void write_nusiz(Console& s, const Frame& frame, int player, uint8_t value) {
  catch_up(s, frame);
  s.nusiz[player] = value & 0x37;
  s.first_copy_hidden[player] = false;
  if (player == 0) s.star_width = s.star_hidden = 0;
  update_solid(s);
  shape_changed(s, player ? 1 << kP1 | 1 << kM1 : 1 << kP0 | 1 << kM0);
}

HR_INLINE void write_ctrlpf(Console& s, const Frame& frame, uint8_t value, int32_t clock) {
  catch_up(s, frame);
  s.ctrlpf = value;
  if (clock % kLineClocks < kBlankClocks + 79) s.playfield_reflected = value & 1;
  shape_changed(s, 1 << kPlayfield | 1 << kBall);
}

HR_HD inline void write_resp(Console& s, const Frame& frame, int player, int32_t clock) {
  catch_up(s, frame);
  const Object object = player ? kP1 : kP0;
  const int32_t h = clock % kLineClocks;
  const int32_t position = h < kBlankClocks ? 3 : (h - kBlankClocks + 5) % 160;
  const int32_t size = s.nusiz[player] & 7;
  const int32_t width = size == 5 ? 16 : size == 7 ? 32 : 8;
  const uint32_t copies = 1 | later_copies(s.nusiz[player]) << 1;
  bool hidden = true;
  for (int i = 0; i < 4; ++i) {
    if (!(copies >> i & 1)) continue;
    const int32_t offset = i ? 8 << i : 0;
    const int32_t beyond = (position - s.position[object] - offset + 320) % 160;
    if (beyond < 4) {
      hidden = false;
    } else if (beyond < 4 + width) {  // the copy that is being drawn is finished first
      note_access(s, clock + 11);
      catch_up(s, frame);
    }
  }
  s.position[object] = static_cast<uint8_t>(position);
  s.first_copy_hidden[player] = hidden;
  shape_changed(s, 1 << object);
}

// A missile or ball that is reset shortly after HMOVE lands elsewhere: clocks since HMOVE, clock in the line, position.
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

HR_INLINE void write_resm(Console& s, const Frame& frame, Object object, int32_t clock) {
  catch_up(s, frame);
  const int32_t h = clock % kLineClocks;
  const int32_t position = h < kBlankClocks ? 2 : (h - kBlankClocks + 4) % 160;
  s.position[object] = static_cast<uint8_t>(reset_after_hmove(object, clock - s.hmove_clock, h, position));
  if (object == kM0) {
    s.star_width = s.star_hidden = 0;
    update_solid(s);
  }
  shape_changed(s, 1 << object);
}

HR_INLINE void write_resmp(Console& s, const Frame& frame, int player, uint8_t value) {
  value &= 2;
  if (s.resmp[player] == value) return;
  catch_up(s, frame);
  if (!value) {
    const int size = s.nusiz[player] & 7;
    const uint32_t middle = size == 5 ? 8 : size == 7 ? 16 : 4;
    s.position[player ? kM1 : kM0] = static_cast<uint8_t>(wrap_pixel(s.position[player ? kP1 : kP0] + middle));
    if (player == 0) s.star_width = s.star_hidden = 0;
  }
  s.resmp[player] = value;
  update_solid(s);
  shape_changed(s, 1 << (player ? kM1 : kM0));
}

// Motion of an object with motion nibble n when HMOVE is written in cycle c of a line.
HR_INLINE int32_t hmove_motion(int32_t n, int32_t c) {
  const int32_t full = n < 8 ? -n : 16 - n;
  const int32_t pulses = (3 * c + 1) / 4;
  if (c >= kLineCycles - 1) return full;
  if (c <= 20) return full > pulses - 9 ? full : pulses - 9;
  if (c < 55) return 0;
  return full - (pulses - 47) < 0 ? full - (pulses - 47) : 0;
}

HR_HD inline void write_hmove(Console& s, const Frame& frame, int32_t clock) {
  catch_up(s, frame);
  const int32_t c = clock % kLineClocks / 3;
  for (int object = 0; object < 5; ++object) {
    const int32_t x = s.position[object] + hmove_motion(s.motion[object], c);
    s.position[object] = static_cast<uint8_t>(x < 0 ? x + 160 : x >= 160 ? x - 160 : x);
  }
  if (frame.cart.hmove_blanks && (c <= 20 || c == 75)) s.hmove_blank = true;
  s.first_copy_hidden[0] = s.first_copy_hidden[1] = false;
  s.stars = false;
  s.star_width = s.star_hidden = 0;
  s.hmove_clock = clock;
  update_solid(s);
  shape_changed(s, 0x1F);
}

HR_INLINE void write_motion(Console& s, const Frame& frame, Object object, uint8_t value, int32_t clock) {
  const uint8_t motion = value >> 4;
  if (object == kM0 && motion == 6 && s.motion[kM0] == 7 && clock - s.hmove_clock == 63) {
    catch_up(s, frame);
    s.stars = true;
    s.star_counter = 0;
  }
  s.motion[object] = motion;
}

// Writes take effect, in this order: the picture is advanced, an overlong frame ends, the register changes.
HR_NOINLINE void write_tia(Console& s, const Frame& frame, int reg, uint8_t value, int32_t cycle) {
  const int32_t clock = 3 * cycle;
  note_access(s, clock + write_delay(reg, cycle));
  if (HR_UNLIKELY(cycle >= frame.limit_cycle)) s.frame_complete = true;
  switch (reg) {
    case 0x00: return write_vsync(s, value, clock);
    case 0x01: return write_vblank(s, frame, value, cycle);
    case 0x04: return write_nusiz(s, frame, 0, value);
    case 0x05: return write_nusiz(s, frame, 1, value);
    case 0x06: case 0x07: case 0x08: case 0x09: return set_color(s, frame, reg - 6, value);
    case 0x0A: return write_ctrlpf(s, frame, value, clock);
    case 0x0B: return set_shape(s, frame, s.refp[0], value & 8, 1 << kP0);
    case 0x0C: return set_shape(s, frame, s.refp[1], value & 8, 1 << kP1);
    case 0x0D: return set_playfield(s, frame, (s.playfield & ~0xFu) | value >> 4);
    case 0x0E: return set_playfield(s, frame, (s.playfield & ~0xFF0u) | reverse_byte(value) << 4);
    case 0x0F: return set_playfield(s, frame, (s.playfield & ~0xFF000u) | static_cast<uint32_t>(value) << 12);
    case 0x10: return write_resp(s, frame, 0, clock);
    case 0x11: return write_resp(s, frame, 1, clock);
    case 0x12: return write_resm(s, frame, kM0, clock);
    case 0x13: return write_resm(s, frame, kM1, clock);
    case 0x14: return write_resm(s, frame, kBall, clock);
    case 0x1B: return write_grp(s, frame, 0, value);
    case 0x1C: return write_grp(s, frame, 1, value);
    case 0x1D: return set_shape(s, frame, s.enam[0], value & 2, 1 << kM0);
    case 0x1E: return set_shape(s, frame, s.enam[1], value & 2, 1 << kM1);
    case 0x1F: return set_shape(s, frame, s.enabl, value & 2, 1 << kBall);
    case 0x20: return write_motion(s, frame, kP0, value, clock);
    case 0x21: return write_motion(s, frame, kP1, value, clock);
    case 0x22: return write_motion(s, frame, kM0, value, clock);
    case 0x23: return write_motion(s, frame, kM1, value, clock);
    case 0x24: return write_motion(s, frame, kBall, value, clock);
    case 0x25: return set_shape(s, frame, s.vdelp[0], value & 1, 1 << kP0);
    case 0x26: return set_shape(s, frame, s.vdelp[1], value & 1, 1 << kP1);
    case 0x27: return set_shape(s, frame, s.vdelbl, value & 1, 1 << kBall);
    case 0x28: return write_resmp(s, frame, 0, value);
    case 0x29: return write_resmp(s, frame, 1, value);
    case 0x2A: return write_hmove(s, frame, clock);
    case 0x2B:
      for (uint8_t& motion : s.motion) motion = 0;
      return;
    case 0x2C:
      catch_up(s, frame);
      s.collisions = 0;
      s.tested_from = s.tested_to = 0;
      return;
    default: return;  // WSYNC is the bus's, RSYNC and sound are not emulated
  }
}

}  // namespace headrace::atari

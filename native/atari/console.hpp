// One Atari 2600: the state of all its chips as plain data, and the four things that can happen to it.
//
// The core allocates nothing, throws nothing and calls nothing outside itself; it compiles unchanged under nvcc.
// Facts about the hardware follow the Stella Programmer's Guide (Wright, 1979) and Andrew Towers' TIA hardware notes.
// Where the Arcade Learning Environment 0.12 differs from the hardware, its observable behaviour is reproduced.
#pragma once

#include <cstdint>

#include "platform.hpp"
#include "rom.hpp"
#include "run_loop.hpp"
#include "state.hpp"
#include "system_random.hpp"
#include "translation.hpp"

namespace headrace::atari {

namespace detail {

HR_HD inline Frame make_frame(const Cartridge& cart, const Input& input) {
  const int32_t limit = cart.tv == TvFormat::kPal ? kPalLineLimit : kNtscLineLimit;
  const int32_t start = kLineClocks * cart.first_row;
  Frame frame = {cart, input, nullptr, start, start + kLineClocks * cart.rows, (limit + 1) * kLineCycles, {}};
  for (int i = 0; i < 4; ++i)
    if (input.paddle[i] != Input::kNoPaddle)
      frame.charging[i] = static_cast<uint32_t>(1.6 * input.paddle[i] * 0.01e-6 * 1.19e6);
  return frame;
}

// Counts all times from a moment `shift` cycles later.
HR_HD inline void shift_times(Console& s, const Cartridge& cart, int32_t shift) {
  s.cycle -= shift;
  s.timer_set_at -= static_cast<uint32_t>(shift);
  s.timer_first_read_at -= static_cast<uint32_t>(shift);
  s.dump_released_at = static_cast<int32_t>(static_cast<uint32_t>(s.dump_released_at) - static_cast<uint32_t>(shift));
  s.hmove_clock = static_cast<int32_t>(static_cast<uint32_t>(s.hmove_clock) - 3 * static_cast<uint32_t>(shift));
  if (s.vsync_end_clock != kNever) s.vsync_end_clock = s.vsync_end_clock < 3 * shift ? 0 : s.vsync_end_clock - 3 * shift;
  if (cart.mapper == Mapper::kDPC) s.dpc.clocked_at -= shift;
}

HR_HD inline int32_t drawn_to(const Console& s, const Frame& frame) {
  return s.drawn_to_clock < frame.display_stop ? s.drawn_to_clock : frame.display_stop;
}

// The line in which the new frame begins starts at 0.
HR_HD inline void start_frame(Console& s, const Frame& frame) {
  s.last_frame_lines = s.cycle / kLineCycles;
  shift_times(s, frame.cart, s.last_frame_lines * kLineCycles);
  s.frame_began_at = s.cycle;
  // A blanking that no line has used up is left for the first line of this frame.
  const bool blank_is_left = drawn_to(s, frame) < s.hmove_blank_clock;
  s.hmove_blank_clock = blank_is_left ? frame.display_start + kBlankClocks + kHmoveBlankPixels : 0;
  s.parity ^= 1;
  s.grayed = false;
  s.drawn_to_clock = s.line_start_clock = frame.display_start;
  s.idle_until_clock = frame.display_start + kBlankClocks;
  s.last_access_clock = 0;
  s.color_loss = frame.cart.tv == TvFormat::kPal && (s.last_frame_lines & 1);
  for (uint8_t& color : s.color) color = (color & 0xFE) | s.color_loss;
}

// A frame that is interrupted shows what is not drawn yet in gray.
HR_HD inline void gray_out(Console& s, const Frame& frame) {
  if (s.grayed) return;
  s.grayed = true;
  if (!frame.pixels) return;
  const int32_t row = s.cycle / kLineCycles - frame.cart.first_row;
  for (int32_t i = row < 0 ? 0 : row * kScreenWidth; i < frame.cart.rows * kScreenWidth; ++i)
    frame.pixels[i] = (frame.pixels[i] & 15) >> 1;
}

// A program may take many calls to end a frame, all the while counting cycles: they are kept from overflowing.
HR_HD inline void continue_frame(Console& s, const Frame& frame) {
  constexpr int32_t far_past_the_display = 1 << 20, even_lines = 2 * kLineCycles;
  if (s.cycle < 1 << 28) return;
  const int32_t shift = (s.cycle - far_past_the_display) / even_lines * even_lines;
  catch_up(s, frame);
  shift_times(s, frame.cart, shift);
  s.frame_began_at -= shift;
  s.last_access_clock = 0;
}

HR_HD inline void run_decoded(Console& console, const Frame& frame) {
  switch (frame.cart.mapper) {
    case Mapper::k2K:
    case Mapper::k4K: return run_loop<Mapper::k4K>(console, frame);
    case Mapper::kF8: return run_loop<Mapper::kF8>(console, frame);
    case Mapper::kF6: return run_loop<Mapper::kF6>(console, frame);
    case Mapper::kF8SC: return run_loop<Mapper::kF8SC>(console, frame);
    case Mapper::kF6SC: return run_loop<Mapper::kF6SC>(console, frame);
    case Mapper::kE0: return run_loop<Mapper::kE0>(console, frame);
    case Mapper::kFE: return run_loop<Mapper::kFE>(console, frame);
    case Mapper::kDPC: return run_loop<Mapper::kDPC>(console, frame);
  }
}

HR_HD inline void run_program(Console& console, const Frame& frame) {
#ifdef HR_TRANSLATES
  if (frame.cart.translation) return frame.cart.translation->run(console, frame, run_decoded);
#endif
  run_decoded(console, frame);
}

}  // namespace detail

// The buffer that the last run_frame drew into: rows x 160 bytes.
HR_HD inline uint8_t* front_buffer(const Console& console, const Cartridge& cart, uint8_t* screens) {
  return screens + (console.parity ? cart.rows * kScreenWidth : 0);
}

// A console that was just switched on: `ram` is the 128 bytes that RIOT RAM happens to contain.
HR_HD inline void power_on(Console& console, const Cartridge&, const uint8_t* ram) {
  console = Console{};
  for (int i = 0; i < 128; ++i) console.ram[i] = ram[i];
  console.dpc.random = 1;
}

// Clears the chips as the console's reset line does. RIOT RAM and DPC registers keep their values.
// `screens` as in run_frame: both frame buffers are cleared.
HR_HD inline void system_reset(Console& console, const Cartridge& cart, const ResetDraws& draws,
                               uint8_t* screens = nullptr) {
  const Console before = console;
  console = Console{};
  for (int i = 0; i < 128; ++i) console.ram[i] = before.ram[i];
  if (cart.mapper == Mapper::kDPC) console.dpc = before.dpc;
  reset_riot(console, draws.timer);
  reset_cartridge(console, cart, draws.superchip);
  console.frame_complete = true;
  console.vsync_end_clock = kNever;
  console.stale = 0x3F;
  clear_motion(console);
  console.sp = 0xFF;
  console.nz = 1;
  const uint8_t low = read_cartridge(console, cart, 0xFFFC, 0);
  console.pc = static_cast<uint16_t>(low | read_cartridge(console, cart, 0xFFFD, 0) << 8);
  if (screens)
    for (int32_t i = 0; i < 2 * cart.rows * kScreenWidth; ++i) screens[i] = 0;
}

// Runs until the program ends its frame, or until the frame's limit of lines or of 25,000 instructions.
//
// `screens`: 2 frame buffers of cart.rows x 160 bytes (TIA colour values) one behind the other, or null: then nothing is
// drawn, which is several times cheaper; all other state, collisions included, is the same either way.
// The frame is drawn into front_buffer(). Frames alternate between the buffers, and rows that a program leaves undrawn
// show the frame before last. A drawn frame that follows undrawn ones is therefore exact only if !rows_missing after it;
// otherwise the frames must be repeated with screens from a copy of the console.
HR_HD inline void run_frame(Console& console, const Cartridge& cart, const Input& input, uint8_t* screens) {
  Frame frame = detail::make_frame(cart, input);
  if (console.frame_complete) detail::start_frame(console, frame);
  else detail::continue_frame(console, frame);
  console.frame_complete = false;
  if (screens) frame.pixels = front_buffer(console, cart, screens);
  if (!console.jammed) detail::run_program(console, frame);
  catch_up(console, frame);
  console.rows_missing = console.drawn_to_clock < frame.display_stop;
  if (!console.frame_complete) detail::gray_out(console, frame);
}

// Lines of the frame that ended last.
HR_HD inline int32_t frame_lines(const Console& console) { return console.cycle / kLineCycles; }

// PAL programs make frames of more than 285 lines: counted over frames 30 to 59 of 60 after a reset. The console is left
// where these frames bring it, as its RAM survives into the resets that follow.
HR_HD inline TvFormat detect_tv_format(Console& console, const Cartridge& cart) {
  const Input no_input;
  int long_frames = 0;
  for (int i = 0; i < 60; ++i) {
    run_frame(console, cart, no_input, nullptr);
    if (i >= 30 && frame_lines(console) > 285) ++long_frames;
  }
  return long_frames >= 15 ? TvFormat::kPal : TvFormat::kNtsc;
}

}  // namespace headrace::atari

// One Atari 2600: the state of all its chips as plain data (Console), and what can happen to it: power_on, system_reset,
// run_frame. Facts about the hardware follow the Stella Programmer's Guide (Wright, 1979) and Andrew Towers' TIA hardware notes.
// Where the Arcade Learning Environment 0.12 differs from the hardware, its observable behaviour is reproduced.
#pragma once

#include "platform.hpp"
#include "cartridge.hpp"
#include "run_loop.hpp"
#include "state.hpp"
#include "random.hpp"

namespace headrace::atari {

namespace detail {

HR_HD inline Frame make_frame(const Cartridge& cart, TvFormat tv, const Input& input) {
  const int32_t limit = tv == TvFormat::kPal ? kPalLineLimit : kNtscLineLimit;
  const int32_t start = kLineClocks * cart.first_row;
  Frame frame = {&cart, tv, &input, nullptr, start, start + kLineClocks * cart.rows, (limit + 1) * kLineCycles, {}};
  for (int i = 0; i < 4; ++i)
    if (input.paddle[i] != Input::kNoPaddle)
      frame.charging[i] = static_cast<uint32_t>(1.6 * input.paddle[i] * 0.01e-6 * 1.19e6);
  return frame;
}

// Moves the origin from which all times are counted `shift` cycles on.
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

// Begins a frame: from now on times are counted from the start of the present line.
HR_HD inline void start_frame(Console& s, const Frame& frame) {
  s.last_frame_lines = s.cycle / kLineCycles;
  shift_times(s, *frame.cartridge, s.last_frame_lines * kLineCycles);
  s.frame_began_at = s.cycle;
  // A HMOVE blank that no line has shown yet blanks the first line of this frame.
  const bool blank_is_left = drawn_to(s, frame) < s.hmove_blank_clock;
  s.hmove_blank_clock = blank_is_left ? frame.display_start + kBlankClocks + kHmoveBlankPixels : 0;
  s.parity ^= 1;
  s.grayed = false;
  s.drawn_to_clock = s.line_start_clock = frame.display_start;
  s.idle_until_clock = frame.display_start + kBlankClocks;
  s.last_access_clock = 0;
  s.color_loss = frame.tv == TvFormat::kPal && (s.last_frame_lines & 1);
  for (uint8_t& color : s.color) color = (color & 0xFE) | s.color_loss;
}

// ALE shows the rows of an interrupted frame that are not drawn yet in gray.
HR_HD inline void gray_out(Console& s, const Frame& frame) {
  if (s.grayed) return;
  s.grayed = true;
  if (!frame.pixels) return;
  const int32_t row = s.cycle / kLineCycles - frame.cartridge->first_row;
  for (int32_t i = row < 0 ? 0 : row * kScreenWidth; i < frame.cartridge->rows * kScreenWidth; ++i)
    frame.pixels[i] = (frame.pixels[i] & 15) >> 1;
}

// Continues a frame that was interrupted. A program may take any number of calls to end a frame, so times are kept from
// overflowing.
HR_HD inline void continue_frame(Console& s, const Frame& frame) {
  constexpr int32_t far_past_the_display = 1 << 20, even_lines = 2 * kLineCycles;
  if (s.cycle < 1 << 28) return;
  const int32_t shift = (s.cycle - far_past_the_display) / even_lines * even_lines;
  catch_up(s, frame);
  shift_times(s, *frame.cartridge, shift);
  s.frame_began_at -= shift;
  s.last_access_clock = 0;
}

}  // namespace detail

// Executes at most a frame with the decoded interpreter. The console's registers are in memory before and after.
HR_HD inline void run_decoded(Console& console, const Frame& frame) {
  switch (frame.cartridge->mapper) {
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

// The default for run_frame's parameter `run_program`.
struct RunDecoded {
  HR_HD void operator()(Console& console, const Frame& frame) const { run_decoded(console, frame); }
};

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

// The two halves of run_frame_on around the program. `input` must last until the second.
HR_INLINE Frame begin_frame(TvFormat tv, Console& console, const Cartridge& cart, const Input& input, uint8_t* screens) {
  Frame frame = detail::make_frame(cart, tv, input);
  if (console.frame_complete) detail::start_frame(console, frame);
  else detail::continue_frame(console, frame);
  console.frame_complete = false;
  if (screens) frame.pixels = front_buffer(console, cart, screens);
  return frame;
}
HR_INLINE void end_frame(Console& console, const Frame& frame) {
  catch_up(console, frame);
  console.rows_missing = console.drawn_to_clock < frame.display_stop;
  if (!console.frame_complete) detail::gray_out(console, frame);
}

// Runs until the program ends its frame, or until the frame's limit of lines or of 25,000 instructions.
//
// `screens`: 2 frame buffers of cart.rows x 160 bytes (TIA colour values) one behind the other, or null: then nothing is
// drawn, which is several times cheaper; all other state, collisions included, is the same either way.
// The frame is drawn into front_buffer(). Frames alternate between the buffers, and rows that a program leaves undrawn
// show the frame before last. A drawn frame that follows undrawn ones is therefore exact only if !rows_missing after it;
// otherwise the frames must be repeated with screens from a copy of the console.
//
// `run_program(Console&, const Frame&)` executes the program until frame_complete or jammed is set, or 25,000 instructions
// have run; every way of doing so must lead to the same state.
//
// `tv`: the TV format that decides the frame's limit of lines, whatever the cartridge's is.
template <class RunProgram>
HR_HD void run_frame_on(TvFormat tv, Console& console, const Cartridge& cart, const Input& input, uint8_t* screens,
                        const RunProgram& run_program) {
  const Frame frame = begin_frame(tv, console, cart, input, screens);
  if (!console.jammed) run_program(console, frame);
  end_frame(console, frame);
}

// The same in the cartridge's own TV format.
template <class RunProgram = RunDecoded>
HR_HD void run_frame(Console& console, const Cartridge& cart, const Input& input, uint8_t* screens,
                     const RunProgram& run_program = {}) {
  run_frame_on(cart.tv, console, cart, input, screens, run_program);
}

}  // namespace headrace::atari

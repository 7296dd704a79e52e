// One Atari 2600: the state of all its chips as plain data, and the four things that can happen to it.
//
// The core allocates nothing, throws nothing and calls nothing outside itself; it compiles unchanged under nvcc.
// Facts about the hardware follow the Stella Programmer's Guide (Wright, 1979) and Andrew Towers' TIA hardware notes.
// Where the Arcade Learning Environment 0.12 differs from the hardware, its observable behaviour is reproduced.
#pragma once

#include <cstdint>

#include "platform.hpp"
#include "rom.hpp"
#include "state.hpp"
#include "system_random.hpp"

namespace headrace::atari {

// Everything a console has when it was just switched on: `ram` is what RIOT RAM happens to contain.
HR_HD inline void power_on(Console& console, const Cartridge& cartridge, const uint8_t* ram);

// Clears the chips as the console's reset line does. RIOT RAM, DPC registers and the console's switches keep their values.
// `screens` as in run_frame: both frame buffers are cleared.
HR_HD inline void system_reset(Console& console, const Cartridge& cartridge, const ResetDraws& draws,
                               uint8_t* screens = nullptr);

// Runs until the program ends its frame (or the frame's limit of lines or of 25,000 instructions is met).
//
// `screens`: 2 frame buffers of cartridge.rows x 160 bytes (TIA colour values) one behind the other, or null: then
// nothing is drawn, which is several times cheaper; all other state, collisions included, is the same either way.
// A frame draws into buffer `console.parity` (see front_buffer). Frames alternate between the buffers and a program may
// leave rows undrawn, which then show the frame before last. After a run of frames without screens, a drawn frame is
// exact if frame_covers_screen held for it; otherwise repeat the run from a copy of the console with screens.
HR_HD inline void run_frame(Console& console, const Cartridge& cartridge, const Input& input, uint8_t* screens);

// Whether the last run_frame drew (or would have drawn) every row of the screen.
HR_HD inline bool frame_covers_screen(const Console& console, const Cartridge& cartridge);

// The buffer that the last run_frame drew into: rows x 160 bytes.
HR_HD inline uint8_t* front_buffer(const Console& console, const Cartridge& cartridge, uint8_t* screens) {
  return screens + (console.parity ? cartridge.rows * kScreenWidth : 0);
}

// The 128 bytes at addresses $80..$FF.
HR_HD inline uint8_t* ram(Console& console) { return console.ram; }
HR_HD inline const uint8_t* ram(const Console& console) { return console.ram; }

}  // namespace headrace::atari

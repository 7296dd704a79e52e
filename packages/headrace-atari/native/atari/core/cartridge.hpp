// A cartridge: its bytes, its bank-switching hardware and the properties of the display it expects.
#pragma once

#include "decoded.hpp"
#include "mapper.hpp"
#include "platform.hpp"

namespace headrace::atari {

enum class TvFormat : uint8_t { kNtsc, kPal };

inline constexpr int kScreenWidth = 160;
inline constexpr int kMaxScreenRows = 256;
inline constexpr int kMaxRomBytes = 16384;

// Constant while consoles run, and shared by all consoles that run the same ROM.
// The display properties are per game; load_cartridge sets the defaults and the caller overrides them.
struct Cartridge {
  Mapper mapper = Mapper::k4K;
  TvFormat tv = TvFormat::kNtsc;  // decides the line limit of a frame and the colour loss
  bool hmove_blanks = true;       // whether a HMOVE may black out the first 8 pixels of a line
  int32_t first_row = 34;         // scanline of the first visible row
  int32_t rows = 210;             // visible rows, at most kMaxScreenRows
  uint32_t size = 0;              // bytes of rom in use
  // One image of up to 16 KiB; DPC keeps its 2 KiB of display data behind the 8 KiB of program.
  uint8_t rom[kMaxRomBytes] = {};
  Decoded decoded[kMaxRomBytes] = {};  // of the instruction at each byte
};

}  // namespace headrace::atari

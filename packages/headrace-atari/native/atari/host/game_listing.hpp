// What only the host has to know about each game: the types of the generated table of games.
#pragma once

#include "atari/core/games.hpp"
#include "atari/core/mapper.hpp"

namespace headrace::atari {

// `presses`: SELECT presses, each followed by one counted frame, that reach the mode from a system reset; -1 where the
// game's procedure finds out while it selects the mode.
struct ModeSetting {
  int16_t mode;
  int16_t presses;
};

struct GameListing {
  const char* name;
  const char* md5;  // of the ROM image
  int32_t rom_size;
  Mapper mapper;
  uint16_t mode_begin, num_modes;  // range in kModes
  int16_t default_mode;
  uint8_t difficulties;  // bit d: difficulty d is listed
  GameFacts facts;
};

}  // namespace headrace::atari

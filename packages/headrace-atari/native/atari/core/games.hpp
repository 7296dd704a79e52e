// What the console and the score keepers have to know about each of the 104 single-player games: the types. generate_games.py
// makes the data from games.json.
#pragma once

#include "platform.hpp"

namespace headrace::atari {

enum class Controller : uint8_t { kJoystick, kPaddles, kNone };
enum class LivesReport : uint8_t { kRaw, kZeroWhenTerminal, kOneUntilTerminal, kAlwaysOne, kAlwaysZero };

// A starting action is held for some frames after the console reset; 40 stands for the RESET switch.
struct StartingAction {
  uint8_t action;
  uint16_t frames;
};

// How a mode is chosen during a reset; see Emulator::select_mode in emulator.hpp.
enum class ModeProcedure : uint8_t { kFixed, kSelect, kUntilByte, kBerzerk, kDoubleDunk, kVideoCube };

struct GameFacts {
  Controller left, right;
  bool swap_ports;    // player A sits at the right port
  bool swap_paddles;  // player A turns the second paddle of the port
  bool pal;
  bool hmove_blanks;
  bool keeps_memory;  // what a reset leads to depends on the memory before it
  int16_t height, first_row;    // visible rows, number of the first one
  int32_t paddle_max;           // largest resistance of a paddle, ohm
  uint32_t minimal_actions, legal_actions;  // bit a: action a
  StartingAction starting_actions[3];
  uint8_t num_starting_actions;
  ModeProcedure mode_procedure;
  uint8_t select_hold;  // frames that SELECT is held per press
  uint8_t mode_resets;  // presses of RESET after the mode was selected
  uint8_t mode_byte;    // kUntilByte: the byte of RAM that shows the mode
  LivesReport lives_report;
};

// A score keeper: what it reports after a frame, and what it remembers until the next one.
struct Keeper {
  int32_t prev_score = 0;
  int32_t reward = 0;
  int32_t lives = 0;
  int32_t terminal = 0;
  int32_t state[5] = {};
};

// Packed binary-coded decimal; nibbles above 9 count as they are.
HR_HD inline int32_t bcd(int32_t byte) { return 10 * (byte >> 4) + (byte & 15); }

// One decimal digit in the low nibble; the value `blank` shows as an empty place and counts 0.
HR_HD inline int32_t digit(int32_t byte, int32_t blank) { return (byte & 15) == blank ? 0 : (byte & 15); }

// Lives as the Arcade Learning Environment reports them.
HR_HD inline int32_t reported_lives(LivesReport report, const Keeper& k) {
  switch (report) {
    case LivesReport::kRaw: return k.lives;
    case LivesReport::kZeroWhenTerminal: return k.terminal ? 0 : k.lives;
    case LivesReport::kOneUntilTerminal: return k.terminal ? 0 : 1;
    case LivesReport::kAlwaysOne: return 1;
    case LivesReport::kAlwaysZero: return 0;
  }
  return 0;
}

}  // namespace headrace::atari

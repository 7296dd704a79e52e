// Score keepers of the six games whose rule is not an expression over single RAM bytes.
// `ram` is RIOT RAM $80..$FF, `cart_ram` the 128 bytes of Superchip RAM; all RAM addresses below are minus $80.
#pragma once

#include "games.hpp"

namespace headrace::atari::special {

// Both sides count their men as off plus in play; the RAM makes sense only when both counts are 15.
HR_HD inline void backgammon(const uint8_t* ram, const uint8_t*, int, Keeper& k) {
  const int player_off = -static_cast<int8_t>(ram[0x00]);
  const int computer_off = ram[0x0E];
  int player = player_off;
  int computer = computer_off;
  for (int cell = 0x01; cell <= 0x1B; ++cell) {
    if (cell == 0x0E) continue;
    const int men = static_cast<int8_t>(ram[cell]);
    if (men < 0) player -= men;
    if (men > 0) computer += men;
  }
  k.reward = 0;
  if (player != 15 || computer != 15) return;
  if (player_off == 15) {
    k.reward = 1;
    k.terminal = 1;
  } else if (computer_off == 15) {
    k.reward = -1;
    k.terminal = 1;
  }
}
HR_HD inline void reset_backgammon(Keeper&) {}

// The score, the misses and the wave live in cartridge RAM, read at $F080..$F0FF.
HR_HD inline void klax(const uint8_t* ram, const uint8_t* cart_ram, int, Keeper& k) {
  const int score = bcd(cart_ram[0x34]) + 100 * bcd(cart_ram[0x35]) + 10000 * bcd(cart_ram[0x36]);
  k.reward = score - k.prev_score;
  k.prev_score = score;
  const int misses = cart_ram[0x6E];
  const int miss_limit = cart_ram[0x69];
  bool board_full = ram[0x28] == 4;
  for (int cell = 0x33; cell <= 0x4B && board_full; ++cell) {
    const int block = ram[cell];
    board_full = !(block == 0 || block == 2 || block == 6 || block == 10 || block == 14);
  }
  k.terminal = (miss_limit > 0 && misses == miss_limit) || board_full || cart_ram[0x1D] == 0x99;
}
HR_HD inline void reset_klax(Keeper&) {}

// Golf pays par minus strokes when the next hole is announced.
HR_HD inline void miniature_golf(const uint8_t* ram, const uint8_t*, int, Keeper& k) {
  int32_t &hole = k.state[0], &par = k.state[1], &banked = k.state[2], &last = k.state[3], &base = k.state[4];
  const int left = bcd(ram[0x07]);
  const int right = bcd(ram[0x08]);
  const int current = bcd(ram[0x2F]);
  k.reward = 0;
  if (current != hole) {
    hole = current;
    const int total = banked + last;
    if (total > base) {
      k.reward = par - (total - base);
      base = total;
    }
    if (hole == 0) k.terminal = 1;
  }
  if (right != 0) {
    par = right;
  } else {
    if (left < last) banked += last;
    last = left;
  }
}
HR_HD inline void reset_miniature_golf(Keeper&) {}

// The game is won or lost when its display vector points at $F310, and drawn when the grid is full.
HR_HD inline void tic_tac_toe_3d(const uint8_t* ram, const uint8_t*, int, Keeper& k) {
  k.reward = 0;
  if (ram[0x7F] == 0xF3 && ram[0x7E] == 0x10) {
    k.reward = ram[0x61] == 8 ? 1 : -1;
    k.terminal = 1;
  }
  bool full = true;
  for (int cell = 0x1A; cell <= 0x59 && full; ++cell) full = ram[cell] != 0;
  if (full) k.terminal = 1;
}
HR_HD inline void reset_tic_tac_toe_3d(Keeper&) {}

// A side without men has lost, or has won in modes 11 to 19 (losing checkers).
HR_HD inline void video_checkers(const uint8_t* ram, const uint8_t*, int mode, Keeper& k) {
  int black = 0;
  int white = 0;
  for (int row = 0x00; row <= 0x1B; row += 0x09) {
    for (int cell = row; cell < row + 8; ++cell) {
      black += ram[cell] == 16 || ram[cell] == 32;
      white += ram[cell] == 144 || ram[cell] == 160;
    }
  }
  k.reward = 0;
  if (black > 0 && white > 0) return;
  k.reward = black == 0 ? -1 : 1;
  if (mode >= 11) k.reward = -k.reward;
  k.terminal = 1;
}
HR_HD inline void reset_video_checkers(Keeper&) {}

// A face of the cube is complete when its nine bytes are equal.
HR_HD inline void video_cube(const uint8_t* ram, const uint8_t*, int, Keeper& k) {
  int32_t &last_complete = k.state[0], &last_timer = k.state[1];
  int complete = 0;
  for (int face = 0x20; face < 0x20 + 6 * 9; face += 9) {
    bool equal = true;
    for (int i = 1; i < 9; ++i) equal = equal && ram[face + i] == ram[face];
    complete += equal;
  }
  const int timer = ram[0x5B];
  const bool time_out = timer == 0 && last_timer == 255;
  k.reward = time_out ? -1 : complete - last_complete;
  if (time_out || complete == 6) k.terminal = 1;
  last_complete = complete;
  last_timer = timer;
}
HR_HD inline void reset_video_cube(Keeper& k) { k.state[1] = -1; }

}  // namespace headrace::atari::special

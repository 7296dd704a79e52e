// Translates an action of the Arcade Learning Environment to the pins of the console.
#pragma once

#include "games.hpp"
#include "state.hpp"

namespace headrace::atari {

inline constexpr int kNumActions = 18;
inline constexpr int kNoop = 0;
inline constexpr int kFire = 1;
inline constexpr int kRightAction = 3;
inline constexpr int kDownAction = 5;
inline constexpr int kUpFireAction = 10;
inline constexpr int kResetSwitch = 40;  // as a starting action only

// The directions and the button of a joystick, one bit each. The directions have the bits of the right port's pins.
enum StickBit : uint8_t { kUp = 1, kDown = 2, kLeft = 4, kRight = 8, kButton = 16 };

// NOOP FIRE UP RIGHT LEFT DOWN UPRIGHT UPLEFT DOWNRIGHT DOWNLEFT, then UP .. DOWNLEFT again with FIRE.
HR_HD inline uint8_t stick_of(int action) {
  constexpr uint8_t directions[8] = {kUp,           kRight,        kLeft,           kDown,
                                     kUp | kRight,  kUp | kLeft,   kDown | kRight,  kDown | kLeft};
  if (action < 2) return action == kFire ? kButton : 0;
  return action < 10 ? directions[action - 2] : directions[action - 10] | kButton;
}

// The resistances of the two paddles that can be turned, in ohm.
struct Paddles {
  int32_t first, second;
};

inline constexpr int32_t kPaddleMin = 27450;
inline constexpr int32_t kPaddleTurn = 23000;  // change in one frame at full strength

HR_HD inline bool uses_paddles(const GameFacts& game) {
  return game.left == Controller::kPaddles || game.right == Controller::kPaddles;
}

// The paddles when an episode begins.
HR_HD inline Paddles centred(const GameFacts& game) {
  const int32_t middle = (kPaddleMin + game.paddle_max) / 2;
  return {middle, middle};
}

// One frame of turning. `strength` is the share of the full turn, 1 for a plain action.
HR_HD inline void turn_paddle(const GameFacts& game, int action, float strength, Paddles& paddles) {
  const uint8_t stick = stick_of(action);
  const int32_t turn = static_cast<int32_t>(kPaddleTurn * (strength < 0 ? -strength : strength));
  if (stick & kRight) paddles.first -= turn;
  if (stick & kLeft) paddles.first += turn;
  if (paddles.first < kPaddleMin) paddles.first = kPaddleMin;
  if (paddles.first > game.paddle_max) paddles.first = game.paddle_max;
}

// The console's switches: `difficulty` bit 0 is the left switch, bit 1 the right one.
HR_HD inline uint8_t switches(int difficulty) { return static_cast<uint8_t>(0x3F | (difficulty & 3) << 6); }

// The pins during one frame in which player A does `action` and player B nothing.
HR_HD inline Input make_input(const GameFacts& game, int action, const Paddles& paddles, int difficulty) {
  Input input;
  input.swchb = switches(difficulty);
  const uint8_t stick = stick_of(action);
  if (uses_paddles(game)) {
    const bool left = game.left == Controller::kPaddles;
    const int port = left ? 0 : 2;
    input.paddle[port + game.swap_paddles] = paddles.first;
    input.paddle[port + !game.swap_paddles] = paddles.second;
    // Paddles in the second port are never turned and stand at zero.
    if (left && game.right == Controller::kPaddles) input.paddle[2] = input.paddle[3] = 0;
    if (stick & kButton) {
      const uint8_t button = game.swap_paddles ? 0x40 : 0x80;
      input.swcha &= static_cast<uint8_t>(~(left ? button : button >> 4));
    }
    return input;
  }
  const uint8_t pins = stick & (kUp | kDown | kLeft | kRight);
  input.swcha = static_cast<uint8_t>(~(game.swap_ports ? pins : pins << 4));
  input.fire[game.swap_ports] = stick & kButton;
  return input;
}

}  // namespace headrace::atari

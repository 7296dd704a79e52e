// One game on one console, with the start-up, resets, randomness and score keeping of the Arcade Learning Environment.
// Host side: it owns the screens. What it calls for a frame is the core.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "game.hpp"
#include "random_streams.hpp"

namespace headrace::atari {

struct EmulatorOptions {
  int mode = -1;       // -1: the game's default mode
  int difficulty = 0;  // bit 0 left switch, bit 1 right switch
  float repeat_action_probability = 0.0f;
  bool exact_noise = true;  // see ActionNoise
};

class Environment {
 public:
  Environment(std::shared_ptr<Game> game, const EmulatorOptions& options)
      : game_(std::move(game)), options_(options), screens_(2 * game_->screen_bytes()) {
    if (options_.mode < 0) options_.mode = game_->facts.default_mode;
  }

  // Loads the ROM: the console is switched on, its TV format is looked for, and the default mode is reset once.
  // `seed` is that of the action noise.
  void load(uint32_t seed) {
    if (options_.repeat_action_probability > 0) noise_.emplace(seed, options_.exact_noise);
    const EmulatorOptions chosen = options_;
    options_.mode = game_->facts.default_mode;
    options_.difficulty = 0;
    start(Stage::kLoading);
    options_ = chosen;
    stage_ = Stage::kLoaded;
  }

  // Starts an episode.
  void reset() {
    start(stage_);
    stage_ = Stage::kPlayed;
  }

  // What the console will be told instead of `action` (0..17): now and then the action of the frame before.
  int repeated_or(int action) {
    if (!noise_) return action;
    noise_draws_ += 2;
    if ((*noise_)() < static_cast<double>(options_.repeat_action_probability)) action = state_.last_action;
    (*noise_)();  // player B
    state_.last_action = static_cast<uint8_t>(action);
    return action;
  }

  // One frame under `action`, or nothing if the game is over. Returns the reward.
  // `strength`: share of a paddle's full turn. `draw`: whether the screen will be looked at.
  int32_t play(int action, float strength, bool draw) {
    if (state_.keeper.terminal) return 0;
    if (!(game_->facts.legal_actions >> action & 1)) action = kNoop;
    counted_frame(action, strength, draw);
    return state_.keeper.reward;
  }

  const Game& game() const { return *game_; }
  const EmulatorOptions& options() const { return options_; }
  const GameState& state() const { return state_; }
  bool game_over() const { return state_.keeper.terminal; }
  int32_t lives() const { return reported_lives(game_->facts.lives_report, state_.keeper); }
  uint8_t* ram() { return state_.console.ram; }
  // The screen that the last drawn frame went to: rows x 160 TIA colours.
  const uint8_t* screen() { return front_buffer(state_.console, game_->cartridge, screens_.data()); }
  // The screen of the frame before, if that frame was complete.
  const uint8_t* previous_screen() {
    return screens_.data() + (state_.console.parity ? 0 : game_->screen_bytes());
  }
  // Goes back to a state of this game; only the last action, which action noise is to repeat, stays.
  void rewind(const GameState& state) {
    const uint8_t last_action = state_.last_action;
    state_ = state;
    state_.last_action = last_action;
  }

  template <class Archive>
  void archive(Archive& archive) {
    archive(state_);
    archive(stage_);
    archive.bytes(screens_.data(), screens_.size());
    if (noise_) noise_->archive(archive);
  }

 private:
  // The state after a reset depends on the system's random draws, the mode and, in some games, on the RAM before.
  enum class Stage : uint8_t { kLoading, kLoaded, kPlayed };

  void emulate(const Input& input, bool draw) {
    run_frame(state_.console, game_->cartridge, input, draw ? screens_.data() : nullptr);
  }

  void keep_score() {
    atari::keep_score(game_->index, state_.console.ram, state_.console.superchip, options_.mode, state_.keeper);
  }

  void counted_frame(int action, float strength, bool draw) {
    turn_paddle(game_->facts, action, strength, state_.paddles);
    emulate(make_input(game_->facts, action, state_.paddles, options_.difficulty), draw);
    keep_score();
    ++state_.frame_number;
    ++state_.episode_frame_number;
  }

  // `count` frames with some console switches held (bits of SWCHB).
  void hold_switches(uint8_t held, int count, bool scored) {
    Input input = make_input(game_->facts, kNoop, state_.paddles, options_.difficulty);
    input.swchb &= static_cast<uint8_t>(~held);
    for (int i = 0; i < count; ++i) {
      emulate(input, true);
      if (scored) keep_score();
    }
  }

  void press_reset() {
    hold_switches(0x01, kResetFrames, true);
    state_.last_action = kNoop;
  }

  void press_select(int hold) {
    hold_switches(0x02, hold, false);
    counted_frame(kNoop, 1.0f, true);
  }

  // A frame as a player would make it, action noise included.
  void plain_frame(int action) { counted_frame(repeated_or(action), 1.0f, true); }

  void start(Stage stage) {
    const GameFacts& facts = game_->facts;
    const bool superchip = has_superchip(game_->cartridge.mapper);
    // What noise changes, or RAM left from before, cannot be looked up.
    const bool noisy = noise_ && facts.mode_procedure != ModeProcedure::kFixed &&
                       facts.mode_procedure != ModeProcedure::kSelect;
    const bool known = !noisy && (stage != Stage::kPlayed || !(facts.keeps_memory || superchip));
    uint32_t key = static_cast<uint32_t>(stage) << 22 | static_cast<uint32_t>(options_.mode) << 9 |
                   static_cast<uint32_t>(options_.difficulty & 3) << 7;
    if (stage == Stage::kLoading) {
      if (known && restore(key, false)) return;
      switch_on();
    }
    const ResetDraws draws = SystemStream::shared().reset(state_.system_draws, superchip);
    if (stage != Stage::kLoading) key |= draws.timer;
    if (known && stage != Stage::kLoading && restore(key, true)) return;
    run_reset(draws);
    if (known) game_->keep(key, {state_, screens_, noise_draws_});
  }

  // Takes the state after a reset from the snapshots, if it is there. `going_on`: the counts since the load go on.
  bool restore(uint32_t key, bool going_on) {
    const auto snapshot = game_->find(key);
    if (!snapshot) return false;
    const GameState before = state_;
    state_ = snapshot->state;
    screens_ = snapshot->screens;
    if (going_on) {
      state_.frame_number = before.frame_number + state_.episode_frame_number;
      state_.system_draws = before.system_draws;
    }
    for (int i = 0; i < snapshot->noise_draws && noise_; ++i) (*noise_)();
    return true;
  }

  // Power-on and the search for the TV format, as they leave RIOT RAM behind.
  void switch_on() {
    SystemStream& system = SystemStream::shared();
    const bool superchip = has_superchip(game_->cartridge.mapper);
    state_ = {};
    uint8_t ram[128];
    system.fill(state_.system_draws, ram);
    system.reset(state_.system_draws, false);  // the chips' own, when they are made
    power_on(state_.console, game_->cartridge, ram);
    // Until the TV format is known the frames have the limit of NTSC.
    Cartridge ntsc = game_->cartridge;
    ntsc.tv = TvFormat::kNtsc;
    system_reset(state_.console, ntsc, system.reset(state_.system_draws, superchip));
    const Input nothing = make_input(game_->facts, kNoop, centred(game_->facts), 0);
    for (int i = 0; i < kBootFrames; ++i) run_frame(state_.console, ntsc, nothing, nullptr);
    system_reset(state_.console, game_->cartridge, system.reset(state_.system_draws, superchip), screens_.data());
  }

  void run_reset(const ResetDraws& draws) {
    noise_draws_ = 0;
    state_.episode_frame_number = 0;
    state_.paddles = centred(game_->facts);
    system_reset(state_.console, game_->cartridge, draws, screens_.data());
    hold_switches(0, kBootFrames, false);
    hold_switches(0x01, kResetFrames, false);
    state_.last_action = kNoop;
    reset_keeper(game_->index, state_.keeper);
    select_mode();
    press_reset();
    for (int i = 0; i < game_->facts.num_starting_actions; ++i) {
      const StartingAction starting = game_->facts.starting_actions[i];
      for (int k = 0; k < starting.frames; ++k) starting_frame(starting.action);
    }
  }

  void starting_frame(int action) {
    if (action == kResetSwitch) return hold_switches(0x01, 1, true);
    turn_paddle(game_->facts, action, 1.0f, state_.paddles);
    emulate(make_input(game_->facts, action, state_.paddles, options_.difficulty), true);
    keep_score();
  }

  // Leads the game to the chosen mode as ALE does, which decides how many frames and random draws a reset takes.
  void select_mode() {
    const GameFacts& facts = game_->facts;
    const int presses = game_->presses(options_.mode);
    switch (facts.mode_procedure) {
      case ModeProcedure::kFixed: return;
      case ModeProcedure::kSelect:
        for (int i = 0; i < presses; ++i) press_select(facts.select_hold);
        break;
      case ModeProcedure::kUntilByte:
        for (int i = 0; i < kMostPresses && state_.console.ram[facts.mode_byte] != options_.mode; ++i)
          press_select(facts.select_hold);
        break;
      case ModeProcedure::kBerzerk:
        for (int i = 0; i < kBerzerkWait; ++i) plain_frame(kNoop);
        for (int i = kBerzerkWait; i < presses; ++i) press_select(facts.select_hold);
        break;
      case ModeProcedure::kDoubleDunk: return walk_double_dunk_menu();
      case ModeProcedure::kVideoCube:
        // Modes 0..2 are chosen with SELECT, the hundreds by turning the cube in hand.
        for (int i = 0; i < game_->presses(options_.mode % 100); ++i) press_select(facts.select_hold);
        press_reset();
        for (int i = 0; i < kMostTurns && bcd(state_.console.ram[0x1F]) < options_.mode / 100; ++i)
          plain_frame(kRightAction);
        return;
    }
    for (int i = 0; i < facts.mode_resets; ++i) press_reset();
  }

  // The lines below the first one are options, one per bit of the mode; a jump begins the game.
  void walk_double_dunk_menu() {
    constexpr uint8_t bits[] = {0x08, 0x10, 0x04, 0x20};
    const uint8_t* ram = state_.console.ram;
    const uint8_t& options = ram[0x00];
    const uint8_t& line = ram[0x30];
    press_select(game_->facts.select_hold);
    for (int option = -1; option < 4; ++option) {
      const uint8_t before = line;
      tap_until(kDownAction, [&] { return line != before; });
      if (option >= 0 && options_.mode >> option & 1)
        tap_until(kRightAction, [&] { return (options & bits[option]) != 0; });
    }
    press_reset();
    tap_until(kUpFireAction, [] { return true; });
  }

  // Action noise may swallow a tap, so it is repeated until it shows.
  template <class Done>
  void tap_until(int action, Done&& done) {
    for (int i = 0; i < kMostPresses; ++i) {
      plain_frame(action);
      plain_frame(kNoop);
      if (done()) return;
    }
  }

  static constexpr int kBootFrames = 60;
  static constexpr int kResetFrames = 4;
  static constexpr int kBerzerkWait = 20;
  static constexpr int kMostPresses = 255;
  static constexpr int kMostTurns = 1000;

  std::shared_ptr<Game> game_;
  EmulatorOptions options_;
  GameState state_{};
  std::vector<uint8_t> screens_;
  std::optional<ActionNoise> noise_;
  int32_t noise_draws_ = 0;  // since the reset began
  Stage stage_ = Stage::kLoading;
};

}  // namespace headrace::atari

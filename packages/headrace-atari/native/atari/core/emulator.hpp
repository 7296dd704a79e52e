// One game on one console, with the start-up, resets, randomness and score keeping of the Arcade Learning Environment (ALE).
#pragma once

#include "console.hpp"
#include "controls.hpp"
#include "generated/score_keepers.hpp"
#include "random.hpp"

namespace headrace::atari {

// What all consoles that play a game share. Constant while they run.
struct GameData {
  int32_t index;  // of keep_score and reset_keeper
  GameFacts facts;
  Cartridge cartridge;

  HR_HD int32_t screen_bytes() const { return cartridge.rows * kScreenWidth; }
};

// The position of the console's switches, and how the game is led to it.
struct EmulatorSettings {
  int32_t mode;
  int32_t presses;       // SELECT presses that reach the mode, or -1: the game's procedure finds out
  int32_t menu_presses;  // kVideoCube: SELECT presses that reach mode % 100
  int32_t difficulty;    // bit 0 left switch, bit 1 right switch
};

// How a console comes to its next reset. The state after a reset depends on it.
enum class Stage : uint8_t { kLoading, kLoaded, kPlayed };

// Everything that changes while a game runs, but its screens and its action noise. Plain data.
struct EmulatorState {
  Console console;
  Keeper keeper;
  Paddles paddles;
  int32_t frame_number;          // counted frames since the ROM was loaded
  int32_t episode_frame_number;  // counted frames since the reset
  uint32_t system_draws;         // numbers of the system stream used since power-on
  float last_strength;           // the strength and the action that a repeated action repeats
  uint8_t last_action;
  Stage stage;
};

// A state right after a reset, kept so that the next reset of the kind is a copy.
struct StartState {
  EmulatorState state;
  const uint8_t* screens;      // [2, rows, 160]
  int32_t noise_draws;         // numbers of the action noise that the emulated reset used
  int32_t later_count;         // length of `later`
  const EmulatorState* later;  // after 1, 2, ... of the frames that begin an episode, not drawn and without action noise
};

// Start states of one game, mode and difficulty are told apart by their stage and the value that the RIOT timer got.
inline constexpr int32_t kStartIndices = 3 * 128;
HR_HD inline int32_t start_index(Stage stage, uint8_t timer) { return static_cast<int32_t>(stage) * 128 + timer; }

// What a console does not do by itself is done by its `Services`, a template parameter from here on:
//
//   void run_program(Console&, const Frame&)
//     See run_frame.
//   SystemDraws system_draws(uint32_t count)
//     The system stream, at least its first `count` numbers.
//   const StartState* find_start(const EmulatorSettings&, int32_t start_index)
//     A start state that was kept, or null: then the reset is emulated.
//   void keep_start(const EmulatorSettings&, int32_t start_index, const EmulatorState&, const uint8_t* screens,
//                   int32_t noise_draws)
//     Keeps a copy of a start state, or does nothing.
//   void copy_screens(uint8_t* to, const uint8_t* from, size_t bytes)
//     Copies the screens of a start state, now or before the next frame is run.
//
// TableServices reads them from tables. The host has services of its own (host/game.hpp).
struct TableServices {
  SystemDraws draws;
  EmulatorSettings settings;          // of the start states
  const StartState* const* starts;    // [kStartIndices]; an entry may be null

  HR_HD void run_program(Console& console, const Frame& frame) const { run_decoded(console, frame); }
  HR_HD SystemDraws system_draws(uint32_t) const { return draws; }
  HR_HD const StartState* find_start(const EmulatorSettings& wanted, int32_t index) const {
    const bool same = wanted.mode == settings.mode && wanted.difficulty == settings.difficulty;
    return starts && same ? starts[index] : nullptr;
  }
  HR_HD void keep_start(const EmulatorSettings&, int32_t, const EmulatorState&, const uint8_t*, int32_t) const {}
  HR_HD void copy_screens(uint8_t* to, const uint8_t* from, size_t bytes) const { copy_bytes(to, from, bytes); }
};

// A console and its surroundings while something is done with it; made for every call, it owns nothing.
template <class Services>
struct Emulator {
  const GameData& game;
  const EmulatorSettings& settings;
  Services& services;
  EmulatorState& state;
  uint8_t* screens;          // [2, rows, 160] TIA colours
  ActionNoise* noise;        // null: no action is ever repeated
  int32_t noise_draws = 0;   // numbers of the action noise used since the reset began

  // Loads the ROM: the console is switched on, its TV format is looked for, and the default mode is reset once.
  // `default_settings`: of that mode, both difficulty switches at B. `seed` is that of the action noise.
  HR_HD void load(const EmulatorSettings& default_settings, uint32_t seed) {
    if (noise) noise->seed(seed);
    Emulator{game, default_settings, services, state, screens, noise}.start(Stage::kLoading);
    state.stage = Stage::kLoaded;
  }

  // Starts an episode. Returns the start state that was taken, or null.
  HR_HD const StartState* reset() {
    const StartState* taken = start(state.stage);
    state.stage = Stage::kPlayed;
    return taken;
  }

  // Goes on from a later state of the episode that `taken` began; the counts since the ROM was loaded go on.
  HR_HD void skip_to(const EmulatorState& later, const StartState& taken) {
    const int32_t frame_number = state.frame_number + later.frame_number - taken.state.frame_number;
    const uint32_t system_draws = state.system_draws;
    state = later;
    state.frame_number = frame_number;
    state.system_draws = system_draws;
    state.stage = Stage::kPlayed;
  }

  // The action that the console gets in a frame for which `action` (0..17) was chosen. `strength` becomes that action's.
  HR_HD int repeated_or(int action, float& strength) {
    if (!noise) return action;
    noise_draws += 2;
    if (noise->repeats()) action = state.last_action, strength = state.last_strength;
    noise->draw();  // player B
    state.last_action = static_cast<uint8_t>(action);
    state.last_strength = strength;
    return action;
  }

  // One frame under `action`, or nothing if the game is over. Returns the reward.
  // `strength`: share of a paddle's full turn. `draw`: whether the screen is needed.
  HR_HD int32_t play(int action, float strength, bool draw) {
    if (state.keeper.terminal) return 0;
    const Input input = input_of_played(action, strength);
    emulate(input, draw);
    return end_played();
  }

  // The parts of `play` before and after the frame, for those who run frames themselves. Nothing is played once the game is over.
  HR_HD Input input_of_played(int action, float strength) {
    return input_of_counted(game.facts.legal_actions >> action & 1 ? action : kNoop, strength);
  }
  HR_HD int32_t end_played() {
    end_counted();
    return state.keeper.reward;
  }

  HR_HD bool game_over() const { return state.keeper.terminal; }
  HR_HD int32_t lives() const { return reported_lives(game.facts.lives_report, state.keeper); }
  // The screen that the last drawn frame was drawn into: rows x 160 TIA colours.
  HR_HD const uint8_t* screen() const { return front_buffer(state.console, game.cartridge, screens); }
  // The screen of the frame before, if that frame was complete.
  HR_HD const uint8_t* previous_screen() const { return screens + (state.console.parity ? 0 : game.screen_bytes()); }

  // Goes back to an earlier state of this game; only the last action, which action noise repeats, stays.
  HR_HD void rewind(const EmulatorState& earlier) {
    const uint8_t last_action = state.last_action;
    const float last_strength = state.last_strength;
    state = earlier;
    state.last_action = last_action;
    state.last_strength = last_strength;
  }

 private:
  struct RunWith {
    Services& services;
    HR_HD void operator()(Console& console, const Frame& frame) const { services.run_program(console, frame); }
  };

  HR_HD void emulate(const Input& input, bool draw) {
    run_frame(state.console, game.cartridge, input, draw ? screens : nullptr, RunWith{services});
  }

  HR_HD void keep_score() {
    atari::keep_score(game.index, state.console.ram, state.console.superchip, settings.mode, state.keeper);
  }

  HR_HD Input input_of_counted(int action, float strength) {
    turn_paddle(game.facts, action, strength, state.paddles);
    return make_input(game.facts, action, state.paddles, settings.difficulty);
  }
  HR_HD void end_counted() {
    keep_score();
    ++state.frame_number;
    ++state.episode_frame_number;
  }
  HR_HD void counted_frame(int action, float strength, bool draw) {
    const Input input = input_of_counted(action, strength);
    emulate(input, draw);
    end_counted();
  }

  // `count` frames with some console switches held (bits of SWCHB).
  HR_HD void hold_switches(uint8_t held, int count, bool scored) {
    Input input = make_input(game.facts, kNoop, state.paddles, settings.difficulty);
    input.swchb &= static_cast<uint8_t>(~held);
    for (int i = 0; i < count; ++i) {
      emulate(input, true);
      if (scored) keep_score();
    }
  }

  HR_HD void press_reset() {
    hold_switches(0x01, kResetFrames, true);
    state.last_action = kNoop;
    state.last_strength = 1.0f;
  }

  HR_HD void press_select(int hold) {
    hold_switches(0x02, hold, false);
    counted_frame(kNoop, 1.0f, true);
  }

  // A frame as a player would make it, action noise included.
  HR_HD void plain_frame(int action) {
    float strength = 1.0f;
    action = repeated_or(action, strength);
    counted_frame(action, strength, true);
  }

  HR_HD const StartState* start(Stage stage) {
    const bool superchip = has_superchip(game.cartridge.mapper);
    // A start state cannot be kept if action noise, or RAM left from before, changes it.
    const ModeProcedure procedure = game.facts.mode_procedure;
    const bool noisy = noise && procedure != ModeProcedure::kFixed && procedure != ModeProcedure::kSelect;
    const bool known = !noisy && (stage != Stage::kPlayed || !(game.facts.keeps_memory || superchip));
    int32_t index = start_index(stage, 0);
    if (stage == Stage::kLoading) {
      if (const StartState* kept = known ? restore(index, false) : nullptr) return kept;
      switch_on();
    }
    const ResetDraws draws = system_draws().reset(state.system_draws, superchip);
    if (stage != Stage::kLoading) {
      index = start_index(stage, draws.timer);
      if (const StartState* kept = known ? restore(index, true) : nullptr) return kept;
    }
    run_reset(draws);
    if (known) services.keep_start(settings, index, state, screens, noise_draws);
    return nullptr;
  }

  // Takes a kept start state and returns it, or null if there is none. `counting`: the counts since the ROM was loaded go on.
  HR_HD const StartState* restore(int32_t index, bool counting) {
    const StartState* start = services.find_start(settings, index);
    if (!start) return nullptr;
    const int32_t frame_number = state.frame_number;
    const uint32_t system_draws = state.system_draws;
    state = start->state;
    services.copy_screens(screens, start->screens, static_cast<size_t>(2 * game.screen_bytes()));
    if (counting) {
      state.frame_number = frame_number + state.episode_frame_number;
      state.system_draws = system_draws;
    }
    for (int i = 0; i < start->noise_draws && noise; ++i) noise->draw();
    return start;
  }

  HR_HD SystemDraws system_draws() { return services.system_draws(state.system_draws + kMostDrawsPerReset); }

  // Power-on and the search for the TV format, as they leave RIOT RAM behind.
  HR_HD void switch_on() {
    state = EmulatorState{};
    const SystemDraws system = system_draws();
    const bool superchip = has_superchip(game.cartridge.mapper);
    uint8_t ram[128];
    system.fill_ram(state.system_draws, ram);
    system.reset(state.system_draws, false);  // the chips draw when they are made
    power_on(state.console, game.cartridge, ram);
    // Until the TV format is known the frames have the limit of NTSC.
    const Input nothing = make_input(game.facts, kNoop, centred(game.facts), 0);
    system_reset(state.console, game.cartridge, system.reset(state.system_draws, superchip));
    for (int i = 0; i < kBootFrames; ++i)
      run_frame_on(TvFormat::kNtsc, state.console, game.cartridge, nothing, nullptr, RunWith{services});
    system_reset(state.console, game.cartridge, system.reset(state.system_draws, superchip), screens);
  }

  HR_HD void run_reset(const ResetDraws& draws) {
    noise_draws = 0;
    state.episode_frame_number = 0;
    state.paddles = centred(game.facts);
    system_reset(state.console, game.cartridge, draws, screens);
    hold_switches(0, kBootFrames, false);
    hold_switches(0x01, kResetFrames, false);
    state.last_action = kNoop;
    state.last_strength = 1.0f;
    reset_keeper(game.index, state.keeper);
    select_mode();
    press_reset();
    for (int i = 0; i < game.facts.num_starting_actions; ++i) {
      const StartingAction starting = game.facts.starting_actions[i];
      for (int k = 0; k < starting.frames; ++k) starting_frame(starting.action);
    }
  }

  HR_HD void starting_frame(int action) {
    if (action == kResetSwitch) return hold_switches(0x01, 1, true);
    turn_paddle(game.facts, action, 1.0f, state.paddles);
    emulate(make_input(game.facts, action, state.paddles, settings.difficulty), true);
    keep_score();
  }

  // Leads the game to the chosen mode as ALE does, which decides how many frames and random draws a reset takes.
  HR_HD void select_mode() {
    const GameFacts& facts = game.facts;
    switch (facts.mode_procedure) {
      case ModeProcedure::kFixed: return;
      case ModeProcedure::kSelect:
        for (int i = 0; i < settings.presses; ++i) press_select(facts.select_hold);
        break;
      case ModeProcedure::kUntilByte:
        for (int i = 0; i < kMostPresses && state.console.ram[facts.mode_byte] != settings.mode; ++i)
          press_select(facts.select_hold);
        break;
      case ModeProcedure::kBerzerk:
        for (int i = 0; i < kBerzerkWait; ++i) plain_frame(kNoop);
        for (int i = kBerzerkWait; i < settings.presses; ++i) press_select(facts.select_hold);
        break;
      case ModeProcedure::kDoubleDunk: return walk_double_dunk_menu();
      case ModeProcedure::kVideoCube:
        // Modes 0..2 are chosen with SELECT, the hundreds by turning the cube in hand.
        for (int i = 0; i < settings.menu_presses; ++i) press_select(facts.select_hold);
        press_reset();
        for (int i = 0; i < kMostTurns && bcd(state.console.ram[0x1F]) < settings.mode / 100; ++i)
          plain_frame(kRightAction);
        return;
    }
    for (int i = 0; i < facts.mode_resets; ++i) press_reset();
  }

  // The lines below the first one are options, one per bit of the mode; a jump begins the game.
  HR_HD void walk_double_dunk_menu() {
    constexpr uint8_t bits[] = {0x08, 0x10, 0x04, 0x20};
    const uint8_t* ram = state.console.ram;
    const uint8_t& options = ram[0x00];
    const uint8_t& line = ram[0x30];
    press_select(game.facts.select_hold);
    for (int option = -1; option < 4; ++option) {
      const uint8_t before = line;
      tap_until(kDownAction, [&] { return line != before; });
      if (option >= 0 && settings.mode >> option & 1)
        tap_until(kRightAction, [&] { return (options & bits[option]) != 0; });
    }
    press_reset();
    tap_until(kUpFireAction, [] { return true; });
  }

  // Action noise may swallow a tap, so it is repeated until it shows.
  template <class Done>
  HR_HD void tap_until(int action, Done&& done) {
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
};

}  // namespace headrace::atari

// An agent's steps and observations made of a game's frames, as ale_py.AtariVectorEnv makes them: one environment of a vector.
#pragma once

#include "emulator.hpp"
#include "observation.hpp"
#include "platform.hpp"
#include "random.hpp"

namespace headrace::atari {

// Which actions an agent chooses among: those the game uses, those ALE has for it, or all 18.
enum class ActionChoice : uint8_t { kMinimal, kLegal, kAll };

// How steps and observations are made of frames.
struct StepOptions {
  int mode = -1;       // -1: the game's default mode
  int difficulty = 0;  // bit 0 left switch, bit 1 right switch
  float repeat_action_probability = 0.0f;
  bool exact_noise = true;  // action noise from ALE's generator, else from a counter-based one
  ObservationType observation = ObservationType::kGray;
  int height = 84, width = 84;  // of an image; 0: as the game shows it
  int stack = 4;                // images in an observation
  int frameskip = 4;            // frames in a step
  bool maxpool = true;          // an image shows the brighter pixels of a step's last two frames, else the last frame
  int noop_max = 30;            // an episode begins with 0 to noop_max - 1 NOOPs, of which FIRE replaces the first
  int noop_min = -1;            // not negative: with noop_min to noop_max NOOPs instead, and FIRE after them
  bool fire_reset = true;       // an episode begins with FIRE, if the action set has it
  bool episodic_life = false;   // an episode ends with a life
  bool life_loss_info = false;  // a lost life is reported as an end, but the game goes on
  bool clip_rewards = true;     // to -1..1
  bool same_step_autoreset = false;  // an episode begins within the last step of the one before, else with the next step
  ActionChoice actions = ActionChoice::kMinimal;
  int max_frames = 108000;  // of an episode, resets not counted
};

// Actions (0..17) that an agent chooses among by their index.
struct ActionSet {
  int32_t count;
  uint8_t actions[kNumActions];

  HR_HD bool contains(int action) const {
    for (int i = 0; i < count; ++i)
      if (actions[i] == action) return true;
    return false;
  }
};

// Bit a of `bits`: action a is in the set.
HR_HD inline ActionSet make_action_set(uint32_t bits) {
  ActionSet set = {};
  for (int action = 0; action < kNumActions; ++action)
    if (bits >> action & 1) set.actions[set.count++] = static_cast<uint8_t>(action);
  return set;
}

// What environments of one game with the same options share. Constant while they run.
struct EnvironmentSetup {
  const GameData* game;
  const Observer* observer;
  StepOptions options;
  ActionSet actions;
  EmulatorSettings settings, default_settings;  // of the chosen mode; of the one that the ROM is loaded with
};

// Everything of one environment that changes, but what lies in its EnvironmentMemory. Plain data.
struct EnvironmentState {
  EmulatorState emulator;
  int32_t newest;    // index of the newest image in the ring
  int32_t elapsed;   // frames of the episode, resets not counted
  int32_t draw_all;  // steps that still have all of their frames drawn
  bool done;         // the episode has ended: the next step begins another one
};

// The memory of one environment, of the caller.
struct EnvironmentMemory {
  uint8_t* screens;            // [2, rows, 160] TIA colours
  uint8_t* images;             // [stack, image_bytes]: ring
  uint8_t* final_observation;  // [stack, image_bytes], or null unless StepOptions::same_step_autoreset
  PooledImage pooled;
  Mt19937* noop_generator;
  ActionNoise* noise;  // null: no action is ever repeated
};

// Working memory of one step, of the caller: its contents need not last.
struct StepScratch {
  ObserverScratch observer;
  uint8_t* interrupted_screen;  // [rows, 160]
};

struct StepResult {
  int32_t reward = 0;
  bool terminated = false, truncated = false;
  bool has_final = false;  // final_observation was written: the step ended an episode and began the next one
  int32_t lives = 0;
  int32_t frame_number = 0, episode_frame_number = 0;
};

// The counters as they are, with no reward.
HR_HD inline StepResult counters_of(const EnvironmentSetup& setup, const EnvironmentState& state) {
  StepResult now;
  now.lives = reported_lives(setup.game->facts.lives_report, state.emulator.keeper);
  now.frame_number = state.emulator.frame_number;
  now.episode_frame_number = state.emulator.episode_frame_number;
  return now;
}

// Writes the images as they are, oldest first: stack x height x width (x 3) bytes, or stack x 128.
HR_HD inline void write_observation(const EnvironmentSetup& setup, const EnvironmentState& state,
                                    const EnvironmentMemory& memory, uint8_t* target) {
  const int stack = setup.options.stack;
  const size_t image_bytes = static_cast<size_t>(setup.observer->image_bytes());
  for (int i = 1; i <= stack; ++i, target += image_bytes)
    copy_bytes(target, memory.images + (state.newest + i) % stack * image_bytes, image_bytes);
}

// An environment and its surroundings while something is done with it; made for every call, it owns nothing.
// `Services`: see emulator.hpp.
template <class Services>
class Environment {
 public:
  HR_HD Environment(const EnvironmentSetup& setup, EnvironmentState& state, const EnvironmentMemory& memory,
                    const StepScratch& scratch, Services& services)
      : options_(setup.options), setup_(setup), state_(state), memory_(memory), scratch_(scratch),
        emulator_{*setup.game, setup.settings, services, state.emulator, memory.screens, memory.noise} {}

  // Loads the ROM; a reset must follow. `seed` is that of the no-ops and of the action noise.
  HR_HD void load(uint32_t seed) {
    *memory_.noop_generator = Mt19937(seed);
    emulator_.load(setup_.default_settings, seed);
  }

  // Starts an episode: the console's reset, then FIRE and no-ops.
  HR_HD StepResult reset() {
    emulator_.reset();
    const bool fires = options_.fire_reset && setup_.actions.contains(kFire);
    const auto never = [] { return false; };
    if (options_.noop_min < 0) {
      const int noops = random_below(options_.noop_max);
      run(max_of(fires ? 1 : 0, noops), fires ? kFire : kNoop, kNoop, 1.0f, never);
    } else {
      const int noops = options_.noop_min + random_below(options_.noop_max - options_.noop_min + 1);
      run(noops, kNoop, kNoop, 1.0f, never);
      if (fires) run(1, kFire, kFire, 1.0f, never);
    }
    state_.elapsed = 0;
    state_.done = false;
    clear_bytes(memory_.images, static_cast<size_t>(options_.stack) * image_bytes());
    observe(emulator_.screen(), emulator_.screen());
    return counters_of(setup_, state_);
  }

  // One step: `action` is an index into the action set, `strength` the share of a paddle's full turn.
  // If the episode had ended, starts the next one instead, unless that happened within its last step.
  HR_HD StepResult step(int action, float strength) {
    if (state_.done) return reset();
    const int32_t lives = emulator_.lives();
    const int32_t reward = play(setup_.actions.actions[action], strength);
    const bool life_lost = lost_life(lives);
    const bool over = emulator_.game_over();
    const bool truncated = !over && state_.elapsed >= options_.max_frames;
    const bool signalled = life_lost && (options_.episodic_life || options_.life_loss_info);
    state_.done = over || truncated || (options_.episodic_life && life_lost);
    StepResult now = counters_of(setup_, state_);
    if (options_.same_step_autoreset && (state_.done || signalled)) {
      write_observation(setup_, state_, memory_, memory_.final_observation);
      if (state_.done) now = reset();
      now.has_final = true;
    }
    now.reward = options_.clip_rewards ? max_of(-1, min_of(reward, 1)) : reward;
    now.terminated = over || signalled;
    now.truncated = truncated;
    return now;
  }

 private:
  // 0 to n - 1, or 0 if n is 0.
  HR_HD int random_below(int n) {
    return static_cast<int>(static_cast<uint64_t>((*memory_.noop_generator)()) * static_cast<uint32_t>(n) >> 32);
  }

  HR_HD size_t image_bytes() const { return static_cast<size_t>(setup_.observer->image_bytes()); }
  HR_HD uint8_t* image(int index) const { return memory_.images + index * image_bytes(); }

  HR_HD bool lost_life(int32_t lives_before) const {
    const int32_t lives = emulator_.lives();
    return lives < lives_before && lives > 0;
  }

  // Pushes the image of one screen, or of the brighter pixels of two.
  HR_HD void observe(const uint8_t* a, const uint8_t* b) {
    state_.newest = (state_.newest + 1) % options_.stack;
    uint8_t* target = image(state_.newest);
    if (options_.observation == ObservationType::kRam) copy_bytes(target, state_.emulator.console.ram, 128);
    else setup_.observer->observe(a, b, memory_.pooled, target, scratch_.observer);
  }

  // The frames of one step, and the image they leave. Returns the sum of the rewards.
  HR_HD int32_t play(int action, float strength) {
    const int32_t lives = emulator_.lives();
    bool ended = false;
    int played = 0;
    const int32_t reward = run(options_.frameskip, action, action, strength, [&] {
      ++played;
      ++state_.elapsed;
      ended = emulator_.game_over() || state_.elapsed >= options_.max_frames ||
              (options_.episodic_life && lost_life(lives));
      return ended;
    });
    push(played, ended);
    return reward;
  }

  // Up to `count` frames, for the first of which the action `first` is chosen and for the others the action `rest`, until
  // `ended` returns true after one. Returns the sum of the rewards.
  //
  // Observations show only the last two frames, so the others are not drawn, as long as programs draw every row of every
  // frame: a row left out shows what the frame before last had there. When one is missing, the frames are repeated with
  // everything drawn, and the next steps are drawn in full. Some of the last two frames may have been drawn by then; that is
  // harmless, because the two frames before them miss no row, and when they are repeated they replace both screens.
  template <class Ended>
  HR_HD int32_t run(int count, int first, int rest, float strength, Ended&& ended) {
    const EmulatorState before = state_.emulator;
    bool draw_all = count < 4 || state_.draw_all > 0;
    bool incomplete = false;
    int32_t reward = 0;
    // The actions that the frames got, to repeat them: action noise may hold the one of frame 0 for a while.
    int held = kNoop, frames_held = 0;
    float held_strength = strength;
    for (int i = 0; i < count; ++i) {
      float turn = strength;
      const int action = emulator_.repeated_or(i == 0 ? first : rest, turn);
      if (i == 0) held = action, held_strength = turn;
      if (action == held && turn == held_strength && frames_held == i) ++frames_held;
      reward += show(i, count, action, turn, draw_all || i >= count - 2);
      const bool over = ended();
      const bool missing = i >= count - 4 && state_.emulator.console.rows_missing;
      incomplete = incomplete || missing;
      if (missing && !draw_all) {
        emulator_.rewind(before);
        for (int k = 0; k <= i; ++k) {
          const bool holds = k < frames_held;
          show(k, count, holds ? held : rest, holds ? held_strength : strength, true);
        }
        draw_all = true;
      }
      if (over) break;
    }
    state_.draw_all = incomplete ? kStepsDrawnInFull : max_of(0, state_.draw_all - 1);
    return reward;
  }

  // Frame `i` of `count`, once more or for the first time.
  HR_HD int32_t show(int i, int count, int action, float strength, bool draw) {
    const int32_t reward = emulator_.play(action, strength, draw);
    if (i == count - 2) {
      // A frame that was interrupted goes on in the same screen, so a copy is kept of what it shows now.
      interrupted_ = !state_.emulator.console.frame_complete;
      if (interrupted_)
        copy_bytes(scratch_.interrupted_screen, emulator_.screen(), static_cast<size_t>(setup_.game->screen_bytes()));
    }
    return reward;
  }

  // Pushes the image that a step leaves. ale_py does not look at the frame with which an episode ends: where that frame, or
  // the one before it, is missing, the image shows what the image of the step before had shown.
  HR_HD void push(int played, bool ended) {
    const bool pools = options_.maxpool && options_.frameskip > 1;
    const uint8_t* last_but_one = interrupted_ ? scratch_.interrupted_screen : emulator_.previous_screen();
    if (options_.observation == ObservationType::kRam || !ended)
      return observe(emulator_.screen(), pools ? last_but_one : emulator_.screen());
    const uint8_t* previous = image(state_.newest);
    state_.newest = (state_.newest + 1) % options_.stack;
    uint8_t* target = image(state_.newest);
    if (pools && played == options_.frameskip) {
      setup_.observer->observe_again(last_but_one, memory_.pooled, target, scratch_.observer);
    } else if (target != previous) {
      copy_bytes(target, previous, image_bytes());
    }
  }

  static constexpr int kStepsDrawnInFull = 64;

  const StepOptions& options_;
  const EnvironmentSetup& setup_;
  EnvironmentState& state_;
  const EnvironmentMemory& memory_;
  const StepScratch& scratch_;
  Emulator<Services> emulator_;
  bool interrupted_ = false;  // frame `count` - 2 of the last run
};

}  // namespace headrace::atari

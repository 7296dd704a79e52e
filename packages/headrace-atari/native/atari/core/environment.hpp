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

// Whether episodes begin with FIRE.
HR_HD inline bool fires(const EnvironmentSetup& setup) { return setup.options.fire_reset && setup.actions.contains(kFire); }
// The action of the first frame of an episode; NOOP follows (StepOptions::noop_max).
HR_HD inline int32_t first_action(const EnvironmentSetup& setup) {
  return setup.options.noop_min < 0 && fires(setup) ? kFire : kNoop;
}

// Everything of one environment that changes, but what lies in its EnvironmentMemory. Plain data.
struct EnvironmentState {
  EmulatorState emulator;
  int32_t newest;    // index of the newest image in the ring
  int32_t elapsed;   // frames of the episode, resets not counted
  int32_t draw_all;  // steps that still have all of their frames drawn
  bool done;         // the episode has ended: the next step begins another one
};

struct StepLog;

// The memory of one environment, of the caller.
struct EnvironmentMemory {
  uint8_t* screens;            // [2, rows, 160] TIA colours
  uint8_t* images;             // [stack, image_bytes]: ring
  uint8_t* final_observation;  // [stack, image_bytes], or null unless StepOptions::same_step_autoreset
  PooledImage pooled;
  Mt19937* noop_generator;
  ActionNoise* noise;  // null: no action is ever repeated
  StepLog* log;        // null: steps draw into `screens`
};

// Working memory of one step, of the caller: its contents need not last.
struct StepScratch {
  ObserverScratch observer;
  uint8_t* interrupted_screen;  // [rows, 160]
  uint8_t* screens;             // [2, rows, 160], for environments with a StepLog
};

struct StepResult {
  int32_t reward = 0;
  bool terminated = false, truncated = false;
  bool has_final = false;  // final_observation was written: the step ended an episode and began the next one
  int32_t lives = 0;
  int32_t frame_number = 0, episode_frame_number = 0;

  HR_HD void take_counters(const StepResult& other) {
    lives = other.lives;
    frame_number = other.frame_number;
    episode_frame_number = other.episode_frame_number;
  }
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

// The image that frames leave in the ring, to be made with `make_picture`, or by a kernel of its own (cuda/kernels.hpp).
enum class PictureSource : uint8_t {
  kNone,
  kScreens,  // the brighter pixels of screens a and b
  kAgain,    // the brighter pixels of screen a and of what the image before showed
  kCopy,     // the image before
  kRam,      // the 128 bytes of RAM
};
struct Picture {
  PictureSource source;
  bool clears;             // first of an episode: the other images are cleared
  int32_t target, before;  // index in the ring of the image and of the one before
  const uint8_t *a, *b;    // rows x 160 TIA colours
};

// The frames of one step, or of the no-ops that begin an episode, while they are played. Plain data.
//
// Observations show only the last two frames, so the others are not drawn, as long as programs draw every row of every
// frame: a row left out shows what the frame before last had there. When one is missing, the frames are repeated with
// everything drawn, and the next steps are drawn in full. Some of the last two frames may have been drawn by then; that is
// harmless, because the two frames before them miss no row, and when they are repeated they replace both screens.
struct Frames {
  EmulatorState before;    // the first frame
  int32_t count;           // of frames
  int32_t first, rest;     // the actions (0..17) that are chosen for frame 0 and for the others
  float strength;
  bool is_step;            // else no-ops of a reset
  bool fire_follows;       // after these frames another one with FIRE
  int32_t lives;           // before the step
  int32_t played;          // frames
  bool over;               // the episode ended with the last of them
  bool finished;           // no more frames follow
  int32_t reward;          // sum
  bool draw_all, incomplete;
  bool interrupted;        // frame `count` - 2: it goes on in the same screen, so a copy shows what it showed then
  // The actions that the frames got, to repeat them: action noise may hold the one of frame 0 for a while.
  int32_t held, frames_held;
  float held_strength;
  int32_t repeated, repeats;  // frames repeated, of those to repeat
};

// The last two steps of an environment, to draw the last one again. A step rarely needs what the step before drew, so the
// environments of a thread draw into the same two screens, which stay in its cache. Plain data.
struct StepLog {
  Frames steps[2];
  int32_t last;    // index of the last step
  bool drawn;      // EnvironmentMemory::screens are those of the last step
  bool looked_at;  // somebody reads them: every step draws into them
};

// What the console gets in the next frame.
struct PlannedFrame {
  int32_t index;   // within Frames::count
  int32_t action;  // 0..17
  float strength;
  bool draw;
};

// An environment and its surroundings while something is done with it; made for every call, it owns nothing.
// `Services`: see emulator.hpp.
//
// `step` and `reset` do everything. Who runs frames and makes images elsewhere calls begin_step, next_frame and frame_played
// for each frame, and end_step; or begin_reset and so on.
template <class Services>
class Environment {
 public:
  HR_HD Environment(const EnvironmentSetup& setup, EnvironmentState& state, const EnvironmentMemory& memory,
                    const StepScratch& scratch, Services& services)
      : options_(setup.options), setup_(setup), state_(state), memory_(memory), scratch_(scratch),
        emulator_{*setup.game, setup.settings, services, state.emulator, memory.screens, memory.noise} {}

  HR_HD Emulator<Services>& emulator() { return emulator_; }

  // Loads the ROM; a reset must follow. `seed` is that of the no-ops and of the action noise.
  HR_HD void load(uint32_t seed) {
    *memory_.noop_generator = Mt19937(seed);
    emulator_.load(setup_.default_settings, seed);
  }

  // Starts an episode: the console's reset, then FIRE and no-ops.
  HR_HD StepResult reset() {
    Frames frames;
    emulator_.screens = memory_.screens;
    if (memory_.log) memory_.log->drawn = true;  // a reset replaces both screens
    begin_reset(frames);
    play(frames);
    make_picture(end_reset());
    return counters_of(setup_, state_);
  }

  // One step: `action` is an index into the action set, `strength` the share of a paddle's full turn.
  // If the episode had ended, starts the next one instead, unless that happened within its last step.
  HR_HD StepResult step(int action, float strength) {
    if (state_.done) return reset();
    StepLog* const log = memory_.log;
    Frames unlogged;
    Frames& frames = log ? log->steps[1 - log->last] : unlogged;
    begin_step(frames, action, strength);
    if (log) {
      const bool goes_on = !state_.emulator.console.frame_complete;  // in the screen of the step before
      if (frames.draw_all || goes_on || log->looked_at) draw_again();
      else emulator_.screens = scratch_.screens;
    }
    play(frames);
    make_picture(picture_of(frames));
    if (log) {
      log->last = 1 - log->last;
      log->drawn = emulator_.screens == memory_.screens;
    }
    StepResult result = end_step(frames);
    if (result.has_final) {
      write_observation(setup_, state_, memory_, memory_.final_observation);
      if (state_.done) result.take_counters(reset());
    }
    return result;
  }

  // Brings EnvironmentMemory::screens to what the last step drew, and has frames drawn there from now on. A step that drew elsewhere
  // missed no row in its last four frames, so it can be drawn over any screens.
  HR_HD void draw_again() {
    emulator_.screens = memory_.screens;
    StepLog& log = *memory_.log;
    if (log.drawn) return;
    const EmulatorState now = state_.emulator;
    Frames& step = log.steps[log.last];
    state_.emulator = step.before;
    step.repeats = step.played;
    for (PlannedFrame next; step.repeated < step.repeats && next_frame(step, next); ++step.repeated)
      emulator_.play(next.action, next.strength, next.draw);
    state_.emulator = now;
    log.drawn = true;
  }

  // --- the parts of a step, in order ---

  HR_HD void begin_step(Frames& frames, int action, float strength) {
    const int chosen = setup_.actions.actions[action];
    begin(frames, options_.frameskip, chosen, chosen, strength);
    frames.is_step = true;
    frames.lives = emulator_.lives();
  }

  // The console's reset. Takes a kept start state, or runs its frames one after the other.
  HR_HD void begin_reset(Frames& frames) {
    const StartState* taken = emulator_.reset();
    int noops;
    if (options_.noop_min < 0) noops = max_of(fires(setup_) ? 1 : 0, random_below(options_.noop_max));
    else noops = options_.noop_min + random_below(options_.noop_max - options_.noop_min + 1);
    begin(frames, noops, first_action(setup_), kNoop, 1.0f);
    frames.fire_follows = options_.noop_min >= 0 && fires(setup_);
    if (taken) skip(frames, *taken);
  }

  // Goes on before the last four frames, if the state there is kept: those before are not drawn, and whether they miss a row is
  // not asked. So a reset takes no longer than a step, which on a GPU all consoles would wait for.
  HR_HD void skip(Frames& f, const StartState& taken) {
    const int32_t skipped = min_of(f.count - 4, taken.later_count);
    if (skipped <= 0 || f.draw_all || memory_.noise) return;
    emulator_.skip_to(taken.later[skipped - 1], taken);
    f.played = skipped;
    f.held = f.first;
    f.frames_held = f.first == f.rest ? skipped : 1;
  }

  // Plans the next frame, or returns false if there is none.
  HR_HD bool next_frame(Frames& f, PlannedFrame& next) {
    if (f.repeated < f.repeats) {
      const bool holds = f.repeated < f.frames_held;
      next = {f.repeated, holds ? f.held : f.rest, holds ? f.held_strength : f.strength, true};
      return true;
    }
    if (f.finished) return false;
    if (f.over || f.played == f.count) {
      state_.draw_all = f.incomplete ? kStepsDrawnInFull : max_of(0, state_.draw_all - 1);
      f.finished = !f.fire_follows;
      if (f.finished) return false;
      begin(f, 1, kFire, kFire, 1.0f);
    }
    float turn = f.strength;
    const int i = f.played, action = emulator_.repeated_or(i == 0 ? f.first : f.rest, turn);
    if (i == 0) f.held = action, f.held_strength = turn;
    if (action == f.held && turn == f.held_strength && f.frames_held == i) ++f.frames_held;
    next = {i, action, turn, f.draw_all || i >= f.count - 2};
    return true;
  }

  // To be called after the frame was played with `reward`.
  HR_HD void frame_played(Frames& f, const PlannedFrame& frame, int32_t reward) {
    if (frame.index == f.count - 2) {
      f.interrupted = !state_.emulator.console.frame_complete;
      if (f.interrupted)
        copy_bytes(scratch_.interrupted_screen, emulator_.screen(), static_cast<size_t>(setup_.game->screen_bytes()));
    }
    if (f.repeated < f.repeats) {
      ++f.repeated;
      return;
    }
    f.reward += reward;
    if (f.is_step) {
      ++state_.elapsed;
      f.over = emulator_.game_over() || state_.elapsed >= options_.max_frames || (options_.episodic_life && lost_life(f.lives));
    }
    const bool missing = f.played >= f.count - 4 && state_.emulator.console.rows_missing;
    f.incomplete = f.incomplete || missing;
    ++f.played;
    if (!missing || f.draw_all) return;
    emulator_.rewind(f.before);
    f.repeats = f.played;
    f.draw_all = true;
  }

  // The image that the frames of a step leave. ale_py does not look at the frame with which an episode ends: where that frame, or
  // the one before it, is missing, the image shows what the image of the step before had shown.
  HR_HD Picture picture_of(const Frames& f) {
    const bool pools = options_.maxpool && options_.frameskip > 1;
    const uint8_t* last_but_one = f.interrupted ? scratch_.interrupted_screen : emulator_.previous_screen();
    if (options_.observation == ObservationType::kRam || !f.over)
      return push(PictureSource::kScreens, emulator_.screen(), pools ? last_but_one : emulator_.screen());
    if (pools && f.played == options_.frameskip) return push(PictureSource::kAgain, last_but_one, last_but_one);
    return push(PictureSource::kCopy, nullptr, nullptr);
  }

  // The result of a step. If it has_final, the observation is to be written to final_observation; if in addition the state is
  // done, a reset follows.
  HR_HD StepResult end_step(const Frames& f) {
    const bool life_lost = lost_life(f.lives);
    const bool over = emulator_.game_over();
    const bool truncated = !over && state_.elapsed >= options_.max_frames;
    const bool signalled = life_lost && (options_.episodic_life || options_.life_loss_info);
    state_.done = over || truncated || (options_.episodic_life && life_lost);
    StepResult now = counters_of(setup_, state_);
    now.has_final = options_.same_step_autoreset && (state_.done || signalled);
    now.reward = options_.clip_rewards ? max_of(-1, min_of(f.reward, 1)) : f.reward;
    now.terminated = over || signalled;
    now.truncated = truncated;
    return now;
  }

  // The first image of an episode.
  HR_HD Picture end_reset() {
    state_.elapsed = 0;
    state_.done = false;
    Picture picture = push(PictureSource::kScreens, emulator_.screen(), emulator_.screen());
    picture.clears = true;
    return picture;
  }

  HR_HD void make_picture(const Picture& picture) {
    if (picture.clears) clear_bytes(memory_.images, static_cast<size_t>(options_.stack) * image_bytes());
    uint8_t* target = image(picture.target);
    switch (picture.source) {
      case PictureSource::kNone: return;
      case PictureSource::kScreens:
        // After the other sources an episode begins, whose first picture clears the images.
        return setup_.observer->observe(picture.a, picture.b, memory_.pooled, picture.clears ? nullptr : image(picture.before),
                                        target, scratch_.observer);
      case PictureSource::kAgain: return setup_.observer->observe_again(picture.a, memory_.pooled, target, scratch_.observer);
      case PictureSource::kCopy:
        if (picture.target != picture.before) copy_bytes(target, image(picture.before), image_bytes());
        return;
      case PictureSource::kRam: return copy_bytes(target, state_.emulator.console.ram, 128);
    }
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

  HR_HD void begin(Frames& f, int count, int first, int rest, float strength) {
    f = Frames{};
    f.before = state_.emulator;
    f.count = count;
    f.first = first;
    f.rest = rest;
    f.strength = strength;
    f.draw_all = count < 4 || state_.draw_all > 0;
    f.held = kNoop;
    f.held_strength = strength;
  }

  HR_HD void play(Frames& frames) {
    PlannedFrame next;
    while (next_frame(frames, next)) {
      frame_played(frames, next, emulator_.play(next.action, next.strength, next.draw));
      // The frames are about to be repeated, over what the step before drew.
      if (frames.repeats > 0 && emulator_.screens != memory_.screens) draw_again();
    }
  }

  HR_HD Picture push(PictureSource source, const uint8_t* a, const uint8_t* b) {
    const int32_t before = state_.newest;
    state_.newest = (before + 1) % options_.stack;
    if (options_.observation == ObservationType::kRam) source = PictureSource::kRam;
    return {source, false, state_.newest, before, a, b};
  }

  static constexpr int kStepsDrawnInFull = 64;

  const StepOptions& options_;
  const EnvironmentSetup& setup_;
  EnvironmentState& state_;
  const EnvironmentMemory& memory_;
  const StepScratch& scratch_;
  Emulator<Services> emulator_;
};

}  // namespace headrace::atari

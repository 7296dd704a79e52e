// One environment of a vector: an agent's steps and observations made of a game's frames, as ale_py.AtariVectorEnv
// makes them. Host side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "environment.hpp"
#include "observation.hpp"

namespace headrace::atari {

struct StepOptions {
  EmulatorOptions emulator;
  ObservationType observation = ObservationType::kGray;
  int height = 84, width = 84;  // of an image; 0: as the game shows it
  int stack = 4;
  int frameskip = 4;
  bool maxpool = true;
  int noop_max = 30;
  bool fire_reset = true;
  bool episodic_life = false;
  bool life_loss_info = false;
  bool clip_rewards = true;
  bool same_step_autoreset = false;  // else the step after the last one resets
  bool full_action_space = false;
  int max_frames = 108000;  // of an episode, resets not counted
};

struct StepResult {
  int32_t reward = 0;
  bool terminated = false, truncated = false;
  bool has_final = false;  // the step ended an episode and began the next one
  int32_t lives = 0;
  int32_t frame_number = 0, episode_frame_number = 0;
};

class PreprocessedEnvironment {
 public:
  PreprocessedEnvironment(std::shared_ptr<Game> game, std::shared_ptr<const Observer> observer,
                          const StepOptions& options, uint32_t seed)
      : environment_(std::move(game), options.emulator), observer_(std::move(observer)), options_(options),
        frame_bytes_(observer_->bytes()), frames_(options.stack * frame_bytes_),
        pooled_(observer_->pooled()), noop_generator_(seed) {
    const GameFacts& facts = environment_.game().facts;
    const uint32_t actions = options.full_action_space ? (1u << kNumActions) - 1 : facts.minimal_actions;
    for (int action = 0; action < kNumActions; ++action)
      if (actions >> action & 1) actions_.push_back(static_cast<uint8_t>(action));
    environment_.load(seed);
  }

  int num_actions() const { return static_cast<int>(actions_.size()); }

  // Starts an episode. A seed that is not negative first loads the ROM anew and seeds both generators.
  StepResult reset(int64_t seed, Observer::Scratch& scratch) {
    if (seed >= 0) {
      noop_generator_ = Mt19937(static_cast<uint32_t>(seed));
      environment_.load(static_cast<uint32_t>(seed));
    }
    environment_.reset();
    const int noops = static_cast<int>(static_cast<uint64_t>(noop_generator_()) * options_.noop_max >> 32);
    const bool fires = options_.fire_reset && std::find(actions_.begin(), actions_.end(), kFire) != actions_.end();
    const auto opening = [&](int i) { return fires && i == 0 ? kFire : kNoop; };
    run(std::max<int>(fires, noops), 1.0f, opening, [] { return false; });
    elapsed_ = 0;
    done_ = false;
    std::fill(frames_.begin(), frames_.end(), 0);
    observe(environment_.screen(), environment_.screen(), scratch);
    return result();
  }

  // One step: `action` is an index into the game's action set, `strength` the share of a paddle's full turn.
  // If the episode had ended, starts the next one instead, unless that happened within its last step.
  StepResult step(int action, float strength, Observer::Scratch& scratch) {
    if (done_) return reset(-1, scratch);
    const int32_t lives = environment_.lives();
    const int32_t reward = play(actions_[action], strength, scratch);
    const bool life_lost = lost_life(lives);
    const bool over = environment_.game_over();
    const bool truncated = !over && elapsed_ >= options_.max_frames;
    const bool signalled = life_lost && (options_.episodic_life || options_.life_loss_info);
    done_ = over || truncated || (options_.episodic_life && life_lost);
    StepResult now = result();
    if (options_.same_step_autoreset && (done_ || signalled)) {
      final_.resize(frames_.size());
      write_observation(final_.data());
      if (done_) now = reset(-1, scratch);
      now.has_final = true;
    }
    now.reward = options_.clip_rewards ? std::clamp(reward, -1, 1) : reward;
    now.terminated = over || signalled;
    now.truncated = truncated;
    return now;
  }

  // The counters as they are, with no reward.
  StepResult result() const {
    StepResult now;
    now.lives = environment_.lives();
    now.frame_number = environment_.state().frame_number;
    now.episode_frame_number = environment_.state().episode_frame_number;
    return now;
  }

  // The stacked images as they are, oldest first: stack x height x width (x 3) bytes, or stack x 128.
  void write_observation(uint8_t* target) const {
    for (int i = 1; i <= options_.stack; ++i, target += frame_bytes_)
      std::memcpy(target, image((newest_ + i) % options_.stack), frame_bytes_);
  }

  // The last observation of the episode that ended in the last step, if its result said has_final.
  void write_final(uint8_t* target) const { std::memcpy(target, final_.data(), final_.size()); }

  const Game& game() const { return environment_.game(); }
  const Observer& observer() const { return *observer_; }

  template <class Archive>
  void archive(Archive& archive) {
    environment_.archive(archive);
    archive.bytes(frames_.data(), frames_.size());
    archive.bytes(pooled_.pixels.data(), pooled_.pixels.size());
    archive.bytes(pooled_.source.data(), pooled_.source.size() * sizeof(uint16_t));
    archive(noop_generator_);
    archive(newest_);
    archive(elapsed_);
    archive(draw_all_);
    archive(done_);
  }

 private:
  bool lost_life(int32_t lives_before) const {
    const int32_t lives = environment_.lives();
    return lives < lives_before && lives > 0;
  }

  const uint8_t* image(int index) const { return frames_.data() + index * frame_bytes_; }

  // Pushes the image of one screen, or of the brighter pixels of two.
  void observe(const uint8_t* a, const uint8_t* b, Observer::Scratch& scratch) {
    newest_ = (newest_ + 1) % options_.stack;
    uint8_t* target = frames_.data() + newest_ * frame_bytes_;
    if (options_.observation == ObservationType::kRam) {
      std::memcpy(target, environment_.ram(), frame_bytes_);
    } else {
      (*observer_)(a, b, pooled_, target, scratch);
    }
  }

  // The frames of one step, and the image they leave. Returns the sum of the rewards.
  int32_t play(int action, float strength, Observer::Scratch& scratch) {
    const int32_t lives = environment_.lives();
    bool ended = false;
    int played = 0;
    const int32_t reward = run(options_.frameskip, strength, [&](int) { return action; }, [&] {
      ++played;
      ++elapsed_;
      ended = environment_.game_over() || elapsed_ >= options_.max_frames ||
              (options_.episodic_life && lost_life(lives));
      return ended;
    });
    push(played, ended, scratch);
    return reward;
  }

  // Up to `count` frames, frame i under choose(i), until `ended` says so after one. Returns the sum of the rewards.
  //
  // Only the last two frames are looked at, so the others are not drawn, as long as programs draw every row of every
  // frame: a row left out shows what the frame before last had there. When one is missing, the frames are repeated with
  // everything drawn, and so are those of the steps that follow for a while. Screens are intact when that becomes
  // known, since two undrawn frames that miss nothing replace both of them.
  template <class Choose, class Ended>
  int32_t run(int count, float strength, Choose&& choose, Ended&& ended) {
    const GameState before = environment_.state();
    bool draw_all = count < 4 || draw_all_ > 0;
    bool incomplete = false;
    int32_t reward = 0;
    actions_played_.clear();
    for (int i = 0; i < count; ++i) {
      actions_played_.push_back(static_cast<uint8_t>(environment_.repeated_or(choose(i))));
      reward += show(i, count, strength, draw_all || i >= count - 2);
      const bool over = ended();
      const bool missing = i >= count - 4 && environment_.state().console.rows_missing;
      incomplete = incomplete || missing;
      if (missing && !draw_all) {
        environment_.rewind(before);
        for (int k = 0; k <= i; ++k) show(k, count, strength, true);
        draw_all = true;
      }
      if (over) break;
    }
    draw_all_ = incomplete ? kStepsDrawnInFull : std::max(0, draw_all_ - 1);
    return reward;
  }

  // Frame `i` of `count`, once more or for the first time.
  int32_t show(int i, int count, float strength, bool draw) {
    const int32_t reward = environment_.play(actions_played_[i], strength, draw);
    if (i == count - 2) {
      // A frame that was interrupted goes on in the same screen, so what it shows now is kept aside.
      interrupted_ = !environment_.state().console.frame_complete;
      const uint8_t* screen = environment_.screen();
      if (interrupted_) interrupted_screen_.assign(screen, screen + environment_.game().screen_bytes());
    }
    return reward;
  }

  // Pushes the image that a step leaves. One that ended its episode never looked at its last frame; instead of the
  // frames that it did not look at it shows what the step before had shown.
  void push(int played, bool ended, Observer::Scratch& scratch) {
    const bool pools = options_.maxpool && options_.frameskip > 1;
    const uint8_t* last_but_one = interrupted_ ? interrupted_screen_.data() : environment_.previous_screen();
    if (options_.observation == ObservationType::kRam || !ended)
      return observe(environment_.screen(), pools ? last_but_one : environment_.screen(), scratch);
    const uint8_t* previous = image(newest_);
    newest_ = (newest_ + 1) % options_.stack;
    uint8_t* target = frames_.data() + newest_ * frame_bytes_;
    if (pools && played == options_.frameskip) {
      (*observer_)(last_but_one, pooled_, target, scratch);
    } else {
      std::memmove(target, previous, frame_bytes_);
    }
  }

  static constexpr int kStepsDrawnInFull = 64;

  Environment environment_;
  std::shared_ptr<const Observer> observer_;
  StepOptions options_;
  size_t frame_bytes_;
  std::vector<uint8_t> frames_;  // ring of images
  Observer::Pooled pooled_;
  Mt19937 noop_generator_;
  std::vector<uint8_t> actions_;         // the action set
  std::vector<uint8_t> actions_played_;  // in the frames of this step, after action noise
  std::vector<uint8_t> interrupted_screen_, final_;
  int32_t newest_ = 0, elapsed_ = 0, draw_all_ = 0;
  bool done_ = false, interrupted_ = false;
};

}  // namespace headrace::atari

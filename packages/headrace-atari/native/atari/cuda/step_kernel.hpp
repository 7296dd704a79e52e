// Emulation: a console per lane. Whoever is done waits for the others of its warp at the end of each frame.
#pragma once

#include "atari/core/environment.hpp"
#include "atari/cuda/batch.hpp"
#include "atari/cuda/warp.hpp"

namespace headrace::atari {

// The services of one console (core/emulator.hpp). A start state's screens are copied by the whole warp, after the reset.
struct LaneServices : TableServices {
  const uint8_t* screens_to_copy;

  HR_HD void run_program(Console& console, const Frame& frame) {
    screens_to_copy = nullptr;  // the reset is emulated after all, and has cleared the screens
    run_decoded(console, frame);
  }
  HR_HD void copy_screens(uint8_t*, const uint8_t* from, size_t) { screens_to_copy = from; }
};

// Programs executed by the decoded interpreter, each lane for itself.
struct Interpreted {
  HR_DEVICE static void run(const Warp& warp, PerLane<EnvironmentState>& states, const PerLane<Frame>& frames,
                            const PerLane<bool>& runs, bool) {
    warp.each([&](int lane) {
      if (runs[lane]) run_decoded(states[lane].emulator.console, frames[lane]);
    });
  }
};

namespace detail {

// What a lane does: nothing, a step, or the frames after a reset.
enum class Doing : uint8_t { kNothing, kStep, kReset };

HR_DEVICE_INLINE void write_counters(const Results& results, int32_t console, const StepResult& now) {
  results.lives[console] = now.lives;
  results.frame_numbers[console] = now.frame_number;
  results.episode_frame_numbers[console] = now.episode_frame_number;
}
HR_DEVICE_INLINE void write_result(const Results& results, int32_t console, const StepResult& now) {
  write_counters(results, console, now);
  results.rewards[console] = now.reward;
  results.terminated[console] = now.terminated;
  results.truncated[console] = now.truncated;
  results.has_final[console] = now.has_final;
}

}  // namespace detail

// One warp's share of a StepCall. `Program` executes the programs of frames, as Interpreted does.
template <class Program>
HR_DEVICE void step_consoles(const Warp& warp, const StepCall& call, const Results& results) {
  using detail::Doing;
  const ConsoleBatch& batch = *call.batch;
  PerLane<int32_t> consoles;
  PerLane<Doing> doing;
  PerLane<LaneServices> services;
  PerLane<EnvironmentState> states;
  PerLane<Frames> sequences;
  PerLane<PlannedFrame> planned;
  PerLane<Input> inputs;
  PerLane<Frame> frames;
  PerLane<bool> wants, runs;
  PerLane<uint64_t> to_copy;  // address of screens

  const auto with = [&](int lane, auto&& use) {
    const int32_t console = consoles[lane];
    const EnvironmentSetup& setup = batch.setups[batch.game_of[console]];
    const EnvironmentMemory memory = memory_of(batch, console);
    const StepScratch scratch = scratch_of(batch, console);
    Environment<LaneServices> environment(setup, states[lane], memory, scratch, services[lane]);
    use(environment, setup);
  };

  warp.each([&](int lane) {
    const int32_t slot = warp.index * call.consoles_per_warp + lane;
    const int32_t console = lane < call.consoles_per_warp && slot < call.slots_count ? call.slots[slot] : -1;
    consoles[lane] = console;
    doing[lane] = Doing::kNothing;
    to_copy[lane] = 0;
    runs[lane] = false;
    if (console < 0) return;
    if (call.task == Task::kRestart && !batch.restarts[console]) return;
    states[lane] = batch.states[console];
    static_cast<TableServices&>(services[lane]) = batch.services[batch.game_of[console]];
    services[lane].screens_to_copy = nullptr;
    with(lane, [&](auto& environment, const EnvironmentSetup& setup) {
      if (call.task == Task::kReset && call.seeds[console] == kLeave) {
        batch.pictures[console].source = PictureSource::kNone;
        detail::write_result(results, console, counters_of(setup, states[lane]));
        return;
      }
      if (call.task == Task::kReset && call.seeds[console] >= 0) environment.load(static_cast<uint32_t>(call.seeds[console]));
      if (call.task == Task::kStep && !states[lane].done) {
        const int32_t action = max_of(0, min_of(call.actions[console], setup.actions.count - 1));
        environment.begin_step(sequences[lane], action, call.strengths ? call.strengths[console] : 1.0f);
        doing[lane] = Doing::kStep;
      } else {
        environment.begin_reset(sequences[lane]);
        doing[lane] = Doing::kReset;
      }
    });
    to_copy[lane] = reinterpret_cast<uint64_t>(services[lane].screens_to_copy);
  });

  for (int lane = 0; lane < kLanes; ++lane) {
    const auto* const from = reinterpret_cast<const uint8_t*>(warp.from(to_copy, lane));
    const int32_t console = warp.from(consoles, lane);
    if (from == nullptr) continue;
    const GameData& game = *batch.setups[batch.game_of[console]].game;
    copy_together(warp, batch.screens + console * batch.screens_stride, from, static_cast<size_t>(2 * game.screen_bytes()));
  }

  while (true) {
    warp.each([&](int lane) {
      wants[lane] = runs[lane] = false;
      if (doing[lane] == Doing::kNothing) return;
      with(lane, [&](auto& environment, const EnvironmentSetup& setup) {
        wants[lane] = environment.next_frame(sequences[lane], planned[lane]);
        if (!wants[lane] || environment.emulator().game_over()) return;
        const PlannedFrame& plan = planned[lane];
        Console& console = states[lane].emulator.console;
        const Cartridge& cartridge = setup.game->cartridge;
        inputs[lane] = environment.emulator().input_of_played(plan.action, plan.strength);
        uint8_t* const screens = plan.draw ? batch.screens + consoles[lane] * batch.screens_stride : nullptr;
        frames[lane] = begin_frame(cartridge.tv, console, cartridge, inputs[lane], screens);
        runs[lane] = true;
      });
    });
    if (!warp.any(wants)) break;
    Program::run(warp, states, frames, runs, call.reconverge);
    warp.each([&](int lane) {
      if (!wants[lane]) return;
      with(lane, [&](auto& environment, const EnvironmentSetup&) {
        int32_t reward = 0;
        if (runs[lane]) {
          end_frame(states[lane].emulator.console, frames[lane]);
          reward = environment.emulator().end_played();
        }
        environment.frame_played(sequences[lane], planned[lane], reward);
      });
    });
  }

  warp.each([&](int lane) {
    if (doing[lane] == Doing::kNothing) return;
    const int32_t console = consoles[lane];
    with(lane, [&](auto& environment, const EnvironmentSetup& setup) {
      if (doing[lane] == Doing::kReset) {
        batch.pictures[console] = environment.end_reset();
        const StepResult now = counters_of(setup, states[lane]);
        if (call.task == Task::kRestart) detail::write_counters(results, console, now);
        else detail::write_result(results, console, now);
      } else {
        batch.pictures[console] = environment.picture_of(sequences[lane]);
        const StepResult now = environment.end_step(sequences[lane]);
        batch.restarts[console] = now.has_final && states[lane].done;
        detail::write_result(results, console, now);
      }
    });
    batch.states[console] = states[lane];
  });
}

}  // namespace headrace::atari

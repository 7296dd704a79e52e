// What kernels know of a batch of consoles: tables that are constant, and the memory of the consoles.
#pragma once

#include "atari/core/environment.hpp"

namespace headrace::atari {

// In device memory, with all that it points to. host/device_batch.hpp makes it.
struct ConsoleBatch {
  int32_t consoles;
  int32_t padding;
  // Constant.
  const EnvironmentSetup* setups;  // [games]
  const TableServices* services;   // [games]
  const int32_t* game_of;          // [consoles] index of the two tables above
  // Of each console. The strides are in bytes and multiples of 16.
  EnvironmentState* states;  // [consoles]
  Picture* pictures;         // [consoles] the image that the last frames left, to be made
  uint8_t* restarts;         // [consoles] 1: the step has ended an episode, and begins another one
  Mt19937* noops;            // [consoles]
  ActionNoise* noises;       // [consoles], or null
  uint8_t *screens, *interrupted, *images, *pooled_pixels, *pooled_source;
  int64_t screens_stride, interrupted_stride, images_stride, pooled_pixels_stride, pooled_source_stride;
};

// Where results go: one row per console. observation_stride is in bytes.
struct Results {
  uint8_t* observations;
  const int64_t* rows;  // [consoles] row of the observations, or null: row i for console i
  int64_t observation_stride;
  uint8_t* finals;  // or null unless StepOptions::same_step_autoreset
  int32_t* rewards;
  uint8_t *terminated, *truncated, *has_final;
  int32_t *lives, *frame_numbers, *episode_frame_numbers;
};

// What is to be done with the consoles of a launch.
enum class Task : int32_t {
  kStep,     // one step under `actions`
  kReset,    // by seeds: kLeave leaves the console as it is, another negative number resets it, others load the ROM first
  kRestart,  // begins the next episode where a step has ended one (ConsoleBatch::restarts)
};
inline constexpr int64_t kLeave = -9223372036854775807ll;

struct StepCall {
  const ConsoleBatch* batch;
  Task task;
  int32_t slots_count, consoles_per_warp;
  const int32_t* slots;      // [slots_count] consoles in the order of the grid; -1 for none
  const int32_t* actions;    // [consoles] indices into the action set
  const float* strengths;    // [consoles], or null: 1
  const int64_t* seeds;      // [consoles]
  bool reconverge;           // see Blocks in blocks.hpp
};

HR_INLINE EnvironmentMemory memory_of(const ConsoleBatch& batch, int32_t console) {
  return {batch.screens + console * batch.screens_stride,
          batch.images + console * batch.images_stride,
          nullptr,
          {batch.pooled_pixels + console * batch.pooled_pixels_stride,
           reinterpret_cast<uint16_t*>(batch.pooled_source + console * batch.pooled_source_stride)},
          batch.noops + console,
          batch.noises ? batch.noises + console : nullptr};
}

HR_INLINE StepScratch scratch_of(const ConsoleBatch& batch, int32_t console) {
  return {{}, batch.interrupted + console * batch.interrupted_stride};
}

}  // namespace headrace::atari

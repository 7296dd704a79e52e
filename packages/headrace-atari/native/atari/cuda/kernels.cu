// What is compiled for a GPU: the entry points of the kernels. Blocks are of whole warps.
#include "atari/cuda/kernels.hpp"

#ifndef HR_MOST_THREADS
#define HR_MOST_THREADS 128
#endif

using headrace::atari::kSharedBytes;
using headrace::atari::Warp;
using Word = long long;

// What the host takes for the same structs (host/device_batch.hpp).
#ifdef HR_STATE_BYTES
static_assert(sizeof(headrace::atari::EnvironmentState) == HR_STATE_BYTES, "the host lays out states in another way");
static_assert(sizeof(headrace::atari::EnvironmentSetup) == HR_SETUP_BYTES, "the host lays out setups in another way");
static_assert(sizeof(headrace::atari::GameData) == HR_GAME_BYTES, "the host lays out games in another way");
static_assert(sizeof(headrace::atari::ConsoleBatch) == HR_BATCH_BYTES, "the host lays out batches in another way");
#endif

extern "C" __global__ void __launch_bounds__(HR_MOST_THREADS)
    step(Word batch, Word task, Word slots_count, Word consoles_per_warp, Word slots, Word actions, Word strengths, Word seeds,
         Word reconverge, Word observations, Word rows, Word stride, Word finals, Word rewards, Word terminated, Word truncated,
         Word has_final, Word lives, Word frame_numbers, Word episode_frame_numbers) {
  __shared__ uint8_t shared[HR_MOST_THREADS / 32 * kSharedBytes];
  const int64_t words[] = {batch,   task,       slots_count, consoles_per_warp, slots,         actions, strengths,
                           seeds,   reconverge, observations, rows,             stride,        finals,  rewards,
                           terminated, truncated, has_final,  lives,            frame_numbers, episode_frame_numbers};
  headrace::atari::step_kernel(Warp(shared), words);
}

extern "C" __global__ void __launch_bounds__(HR_MOST_THREADS)
    observe(Word batch, Word restarted, Word observations, Word rows, Word stride, Word finals, Word rewards, Word terminated,
            Word truncated, Word has_final, Word lives, Word frame_numbers, Word episode_frame_numbers) {
  __shared__ uint8_t shared[HR_MOST_THREADS / 32 * kSharedBytes];
  const int64_t words[] = {batch,      restarted, observations, rows,  stride,        finals,               rewards,
                           terminated, truncated, has_final,    lives, frame_numbers, episode_frame_numbers};
  headrace::atari::observe_kernel(Warp(shared), words);
}

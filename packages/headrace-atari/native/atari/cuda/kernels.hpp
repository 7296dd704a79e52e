// The kernels, as functions of a warp and of their arguments: 64-bit words, numbers and addresses in device memory.
//
// The emulation kernel of one game runs its compiled blocks (blocks.hpp): then HR_PROGRAM is the name of the file with them.
#pragma once

#include "atari/cuda/observe_kernel.hpp"
#include "atari/cuda/step_kernel.hpp"

#ifdef HR_PROGRAM
#include "atari/cuda/blocks.hpp"
#include HR_PROGRAM
#endif

namespace headrace::atari {

#ifdef HR_PROGRAM
using Execution = Blocks<GameProgram>;
#else
using Execution = Interpreted;
#endif

inline constexpr int kResultWords = 11, kStepWords = 9 + kResultWords, kObserveWords = 2 + kResultWords;

template <class T>
HR_DEVICE_INLINE T* address(int64_t word) {
  return reinterpret_cast<T*>(static_cast<size_t>(word));
}

HR_DEVICE_INLINE Results results_of(const int64_t* words) {
  return {address<uint8_t>(words[0]), address<const int64_t>(words[1]), words[2], address<uint8_t>(words[3]),
          address<int32_t>(words[4]), address<uint8_t>(words[5]), address<uint8_t>(words[6]), address<uint8_t>(words[7]),
          address<int32_t>(words[8]), address<int32_t>(words[9]), address<int32_t>(words[10])};
}

// Words: batch, task, number of slots, consoles per warp, slots, actions, strengths, seeds, whether consoles are brought
// together, then Results.
HR_DEVICE_INLINE void step_kernel(const Warp& warp, const int64_t* words) {
  const StepCall call = {address<const ConsoleBatch>(words[0]), static_cast<Task>(words[1]), static_cast<int32_t>(words[2]),
                         static_cast<int32_t>(words[3]), address<const int32_t>(words[4]), address<const int32_t>(words[5]),
                         address<const float>(words[6]), address<const int64_t>(words[7]), words[8] != 0};
  step_consoles<Execution>(warp, call, results_of(words + 9));
}

// Words: batch, whether only the consoles that have begun another episode in the step are meant, then Results.
HR_DEVICE_INLINE void observe_kernel(const Warp& warp, const int64_t* words) {
  observe_console(warp, *address<const ConsoleBatch>(words[0]), words[1] != 0, results_of(words + 2));
}

}  // namespace headrace::atari

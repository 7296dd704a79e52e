// Warps: 32 lanes that work together. The kernels of this folder are written for them once, and run on a GPU or, in tests, on the
// CPU.
//
// A kernel is a sequence of phases. Within a phase (Warp::each) a lane sees only what it writes itself and what was written in
// earlier phases; between phases lanes exchange values (ballot, minimum, from). On a GPU a phase is the code itself and a
// barrier of the warp; on the CPU it is a loop over the lanes. What a lane keeps from one phase to the next is a PerLane.
#pragma once

#include "atari/core/platform.hpp"

#ifdef __CUDACC__
#define HR_DEVICE __device__
#define HR_DEVICE_INLINE __device__ __forceinline__
#else
#define HR_DEVICE
#define HR_DEVICE_INLINE inline __attribute__((always_inline))
#endif

namespace headrace::atari {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

// Bytes of shared memory per warp: one line of pixels, and what is read past its end.
inline constexpr int kSharedBytes = 192;

#ifdef __CUDACC__

// A value of each lane. `value[lane]` is to be asked for the own lane only.
template <class T>
struct PerLane {
  T own;
  HR_DEVICE_INLINE T& operator[](int) { return own; }
  HR_DEVICE_INLINE const T& operator[](int) const { return own; }
};

class Warp {
 public:
  HR_DEVICE_INLINE Warp(uint8_t* shared_of_block)
      : index(blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes),
        shared(shared_of_block + threadIdx.x / kLanes * kSharedBytes), lane_(threadIdx.x % kLanes) {}

  const int index;        // within the grid
  uint8_t* const shared;  // [kSharedBytes]

  template <class Phase>
  HR_DEVICE_INLINE void each(Phase&& phase) const {
    phase(lane_);
    __syncwarp();
  }
  HR_DEVICE_INLINE uint32_t ballot(const PerLane<bool>& votes) const { return __ballot_sync(kAllLanes, votes.own); }
  HR_DEVICE_INLINE bool any(const PerLane<bool>& votes) const { return __any_sync(kAllLanes, votes.own); }
  HR_DEVICE_INLINE uint32_t minimum(const PerLane<uint32_t>& values) const {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(kAllLanes, values.own);
#else
    uint32_t least = values.own;
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      least = min_of(least, __shfl_xor_sync(kAllLanes, least, distance));
    return least;
#endif
  }
  // The value of one lane.
  template <class T>
  HR_DEVICE_INLINE T from(const PerLane<T>& values, int lane) const {
    return __shfl_sync(kAllLanes, values.own, lane);
  }
  // `lanes`: those that executed a block of some instructions in one step of the warp. Counted on the CPU only.
  HR_DEVICE_INLINE void count(uint32_t, uint32_t) const {}

 private:
  const int lane_;
};

#else

template <class T>
struct PerLane {
  T values[kLanes];
  T& operator[](int lane) { return values[lane]; }
  const T& operator[](int lane) const { return values[lane]; }
};

// How many lanes were active while blocks ran: `steps` of a warp and the lanes in them, then both weighted with the
// instructions of the block.
struct LaneCounts {
  uint64_t steps, lanes, instruction_steps, instruction_lanes;
};

class Warp {
 public:
  // `backwards`: phases run over the lanes in the opposite order, which must not change anything.
  Warp(int warp_of_grid, uint8_t* shared_of_warp, bool backwards, LaneCounts* counts)
      : index(warp_of_grid), shared(shared_of_warp), backwards_(backwards), counts_(counts) {}

  const int index;
  uint8_t* const shared;

  template <class Phase>
  void each(Phase&& phase) const {
    for (int i = 0; i < kLanes; ++i) phase(backwards_ ? kLanes - 1 - i : i);
  }
  uint32_t ballot(const PerLane<bool>& votes) const {
    uint32_t bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) bits |= static_cast<uint32_t>(votes[lane]) << lane;
    return bits;
  }
  bool any(const PerLane<bool>& votes) const { return ballot(votes) != 0; }
  uint32_t minimum(const PerLane<uint32_t>& values) const {
    uint32_t least = values[0];
    for (int lane = 1; lane < kLanes; ++lane) least = min_of(least, values[lane]);
    return least;
  }
  template <class T>
  T from(const PerLane<T>& values, int lane) const {
    return values[lane];
  }
  void count(uint32_t lanes, uint32_t instructions) const {
    const uint32_t active = static_cast<uint32_t>(__builtin_popcount(lanes));
    counts_->steps += 1;
    counts_->lanes += active;
    counts_->instruction_steps += instructions;
    counts_->instruction_lanes += active * instructions;
  }

 private:
  const bool backwards_;
  LaneCounts* const counts_;
};

#endif

// Copies memory that all lanes can reach.
HR_DEVICE inline void copy_together(const Warp& warp, uint8_t* to, const uint8_t* from, size_t bytes) {
  struct alignas(16) Chunk {
    uint32_t word[4];
  };
  const bool aligned = ((reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from) | bytes) & 15) == 0;
  warp.each([&](int lane) {
    if (aligned) {
      for (size_t i = lane; i < bytes / 16; i += kLanes)
        reinterpret_cast<Chunk*>(to)[i] = reinterpret_cast<const Chunk*>(from)[i];
    } else {
      for (size_t i = lane; i < bytes; i += kLanes) to[i] = from[i];
    }
  });
}

HR_DEVICE inline void clear_together(const Warp& warp, uint8_t* to, size_t bytes) {
  warp.each([&](int lane) {
    for (size_t i = lane; i < bytes; i += kLanes) to[i] = 0;
  });
}

}  // namespace headrace::atari

// Products of bfloat16 with sums in float, in AVX512-BF16, whose sums stay in registers: up to `kRows` rows times `kPanel` columns.
//
// The instruction multiplies pairs of numbers, so whatever is summed up over lies in pairs, side by side for all columns.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "elu/elu.hpp"

#if defined(__clang__) && __clang_major__ >= 18 && __clang_major__ <= 21  // where vectors of 512 bits are a feature of their own
#define HEADRACE_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,evex512")))
#else
#define HEADRACE_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#endif

// Without it clang keeps the sums of many rows in memory.
#ifdef __clang__
#define HEADRACE_UNROLLED _Pragma("unroll")
#else
#define HEADRACE_UNROLLED _Pragma("GCC unroll 16")
#endif

namespace headrace::layers {

using elu::Bfloat16;

inline constexpr std::size_t kPanel = 32, kRows = 12;
inline constexpr std::size_t kLanes = 16, kVectors = kPanel / kLanes;

enum class Activation { kNone, kRelu, kElu };

/// Where the inputs of a row are: runs of `length` numbers (the last has `last`), at these offsets. If `separate`, each run's sum
/// begins at zero.
struct Inputs {
  const std::ptrdiff_t* offsets;
  std::size_t runs, length, last;
  bool separate;
};

/// Rows of a tile: where the offsets of their inputs begin, and their results.
struct Rows {
  const Bfloat16* x[kRows];
  Bfloat16* y[kRows];
};

HEADRACE_BF16 inline __m512 add_products(__m512 sums, __m512i pairs, __m512i other) {
  return _mm512_dpbf16_ps(sums, (__m512bh)pairs, (__m512bh)other);
}

HEADRACE_BF16 inline __m512i pair(const void* from) {
  std::int32_t both;
  std::memcpy(&both, from, sizeof both);
  return _mm512_set1_epi32(both);
}

template <Activation A>
HEADRACE_BF16 inline __m256i finished(__m512 x) {
  // NaN comes out of max only as its second operand.
  if constexpr (A == Activation::kRelu) x = _mm512_max_ps(_mm512_setzero_ps(), x);
  __m256i rounded = (__m256i)_mm512_cvtneps_pbh(x);
  if constexpr (A == Activation::kElu) {
    Bfloat16 numbers[kLanes];  // a fixed number, of which the compiler makes vectors
    std::memcpy(numbers, &rounded, sizeof numbers);
    for (std::size_t i = 0; i < kLanes; ++i) numbers[i] = elu::narrowed<Bfloat16>(elu::elu<Bfloat16>(elu::widened(numbers[i])));
    std::memcpy(&rounded, numbers, sizeof numbers);
  }
  return rounded;
}

/// R rows times a panel of weights [inputs / 2][kPanel][2], plus `bias` [kPanel]: the first `columns` results of each, from `column`
/// on.
template <std::size_t R, Activation A>
HEADRACE_BF16 __attribute__((noinline)) void tile(const Rows& rows, Inputs inputs, const Bfloat16* panel, const float* bias,
                                                  std::size_t column, std::size_t columns) {
  __m512 sums[R][kVectors], before[R][kVectors];
  HEADRACE_UNROLLED
  for (std::size_t r = 0; r < R; ++r)
    HEADRACE_UNROLLED
    for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = before[r][v] = _mm512_setzero_ps();
  for (std::size_t run = 0; run < inputs.runs; ++run) {
    if (run && inputs.separate) {
      HEADRACE_UNROLLED
      for (std::size_t r = 0; r < R; ++r)
        HEADRACE_UNROLLED
        for (std::size_t v = 0; v < kVectors; ++v) {
          before[r][v] = _mm512_add_ps(before[r][v], sums[r][v]);
          sums[r][v] = _mm512_setzero_ps();
        }
    }
    const auto from = inputs.offsets[run], to = from + static_cast<std::ptrdiff_t>(run + 1 < inputs.runs ? inputs.length : inputs.last);
    for (std::ptrdiff_t i = from; i < to; i += 2, panel += 2 * kPanel) {
      __m512i weights[kVectors];
      HEADRACE_UNROLLED
      for (std::size_t v = 0; v < kVectors; ++v) weights[v] = _mm512_loadu_si512(panel + v * 2 * kLanes);
      HEADRACE_UNROLLED
      for (std::size_t r = 0; r < R; ++r) {
        const __m512i both = pair(rows.x[r] + i);
        HEADRACE_UNROLLED
        for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = add_products(sums[r][v], both, weights[v]);
      }
    }
  }
  HEADRACE_UNROLLED
  for (std::size_t v = 0; v < kVectors; ++v) {
    const std::size_t done = v * kLanes, left = columns > done ? std::min(kLanes, columns - done) : 0;
    const auto mask = static_cast<__mmask16>((1u << left) - 1);
    const __m512 biases = _mm512_loadu_ps(bias + done);
    HEADRACE_UNROLLED
    for (std::size_t r = 0; r < R; ++r) {
      const __m512 sum = inputs.separate ? _mm512_add_ps(before[r][v], sums[r][v]) : sums[r][v];
      _mm256_mask_storeu_epi16(rows.y[r] + column + done, mask, finished<A>(_mm512_add_ps(sum, biases)));
    }
  }
}

/// The same for a number of rows known only when it runs, 1 to `kRows`.
template <Activation A, std::size_t R = kRows>
void tile_of(std::size_t number, const Rows& rows, Inputs inputs, const Bfloat16* panel, const float* bias, std::size_t column,
             std::size_t columns) {
  if (number == R) {
    tile<R, A>(rows, inputs, panel, bias, column, columns);
  } else if constexpr (R > 1) {
    tile_of<A, R - 1>(number, rows, inputs, panel, bias, column, columns);
  }
}

}  // namespace headrace::layers

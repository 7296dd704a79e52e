// Products of a few rows with the weights of a layer, bfloat16 with sums in float, in AVX512-BF16.
//
// Weights lie in panels of `kPanel` outputs. In a panel, every two inputs lie side by side for all outputs, as the instruction takes
// them: [inputs / 2][kPanel][2]. Up to `kRows` rows at a time keep all their sums of a panel in registers.

#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "elu/elu.hpp"

#define HEADRACE_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

namespace headrace::layers {

using elu::Bfloat16;

inline constexpr std::size_t kPanel = 32, kRows = 12;
inline constexpr std::size_t kLanes = 16, kVectors = kPanel / kLanes;

enum class Activation { kNone, kRelu, kElu };

/// Where the inputs of a row are: `runs` runs of `length` numbers (the last has `last`), `stride` apart. If `separate`, each run's
/// sum begins at zero.
struct Inputs {
  std::size_t runs, stride, length, last;
  bool separate;
};

/// Where results go: rows of `row` numbers, of which this panel has `columns`.
struct Outputs {
  Bfloat16* at;
  std::size_t row, columns;
};

template <Activation A>
HEADRACE_BF16 inline __m256bh finished(__m512 x) {
  // NaN comes out of max only as its second operand.
  if constexpr (A == Activation::kRelu) x = _mm512_max_ps(_mm512_setzero_ps(), x);
  const __m256bh rounded = _mm512_cvtneps_pbh(x);
  if constexpr (A != Activation::kElu) return rounded;
  Bfloat16 numbers[kLanes];  // of a fixed number, of which the compiler makes vectors
  std::memcpy(numbers, &rounded, sizeof numbers);
  for (std::size_t i = 0; i < kLanes; ++i) numbers[i] = elu::narrowed<Bfloat16>(elu::elu<Bfloat16>(elu::widened(numbers[i])));
  __m256bh result;
  std::memcpy(&result, numbers, sizeof result);
  return result;
}

/// R rows, whose inputs begin at `x`, times a panel, plus `bias` [kPanel].
template <std::size_t R, Activation A>
HEADRACE_BF16 __attribute__((noinline)) void tile(const Bfloat16* const* x, Inputs inputs, const Bfloat16* panel, const float* bias,
                                                  Outputs y) {
  __m512 sums[R][kVectors], before[R][kVectors];
  for (std::size_t r = 0; r < R; ++r)
    for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = before[r][v] = _mm512_setzero_ps();
  for (std::size_t run = 0; run < inputs.runs; ++run) {
    if (run && inputs.separate) {
      for (std::size_t r = 0; r < R; ++r)
        for (std::size_t v = 0; v < kVectors; ++v) {
          before[r][v] = _mm512_add_ps(before[r][v], sums[r][v]);
          sums[r][v] = _mm512_setzero_ps();
        }
    }
    const std::size_t from = run * inputs.stride, to = from + (run + 1 < inputs.runs ? inputs.length : inputs.last);
    for (std::size_t i = from; i < to; i += 2, panel += 2 * kPanel) {
      __m512i weights[kVectors];
      for (std::size_t v = 0; v < kVectors; ++v) weights[v] = _mm512_loadu_si512(panel + v * 2 * kLanes);
      for (std::size_t r = 0; r < R; ++r) {
        std::int32_t two;
        std::memcpy(&two, x[r] + i, sizeof two);
        const __m512i both = _mm512_set1_epi32(two);
        for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)both, (__m512bh)weights[v]);
      }
    }
  }
  for (std::size_t v = 0; v < kVectors; ++v) {
    const std::size_t done = v * kLanes, left = y.columns > done ? std::min(kLanes, y.columns - done) : 0;
    const auto mask = static_cast<__mmask16>((1u << left) - 1);
    for (std::size_t r = 0; r < R; ++r) {
      const __m512 sum = inputs.separate ? _mm512_add_ps(before[r][v], sums[r][v]) : sums[r][v];
      const __m256bh result = finished<A>(_mm512_add_ps(sum, _mm512_loadu_ps(bias + done)));
      _mm256_mask_storeu_epi16(y.at + r * y.row + done, mask, (__m256i)result);
    }
  }
}

/// The same for a number of rows known only when it runs, 1 to `kRows`.
template <Activation A, std::size_t R = kRows>
void tile_of(std::size_t rows, const Bfloat16* const* x, Inputs inputs, const Bfloat16* panel, const float* bias, Outputs y) {
  if (rows == R) {
    tile<R, A>(x, inputs, panel, bias, y);
  } else if constexpr (R > 1) {
    tile_of<A, R - 1>(rows, x, inputs, panel, bias, y);
  }
}

}  // namespace headrace::layers

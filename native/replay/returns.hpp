// n-step returns, value rescaling and the priority of a sequence.
//
// headrace/learning/q_learning.py defines the same for learning; tests/learning/test_one_definition.py compares the two.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "replay/memory.hpp"

namespace headrace::replay {

struct NStepReturn {
  double reward = 0.0;      // sum of the rewards, each times the discounts before it
  double discount = 1.0;    // product of the discounts: what the value after the last step is multiplied with
  std::uint64_t steps = 0;  // rows that were summed
  bool ended = false;       // the episode ended with the last of them
};

// The return of the row row_at(0): of n steps, or of fewer if the episode ends before.
template <typename RowAt>
NStepReturn n_step_return(std::uint64_t n, const RowAt& row_at) {
  NStepReturn result;
  while (result.steps < n && !result.ended) {
    const Row row = row_at(result.steps++);
    result.reward += result.discount * row.reward;
    result.discount *= row.discount;
    result.ended = row.age_flags & kLast;
  }
  return result;
}

constexpr double kRescaleEpsilon = 1e-3;

inline double sign(double x) { return static_cast<double>((x > 0.0) - (x < 0.0)); }

// h(x) = sign(x)(sqrt(|x| + 1) - 1) + epsilon x (Pohlen et al. 2018).
inline double rescale(double x) { return sign(x) * (std::sqrt(std::abs(x) + 1.0) - 1.0) + kRescaleEpsilon * x; }

// The inverse of rescale().
inline double unscale(double x) {
  double root = std::sqrt(1.0 + 4.0 * kRescaleEpsilon * (std::abs(x) + 1.0 + kRescaleEpsilon));
  double y = (root - 1.0) / (2.0 * kRescaleEpsilon);
  return sign(x) * (y * y - 1.0);
}

// Sum in eight partial sums, then in halves: long sequences lose less precision than in one running sum.
inline float pairwise_sum(const float* x, std::size_t count) {
  if (count > 128) {
    std::size_t half = count / 2 / 8 * 8;
    return pairwise_sum(x, half) + pairwise_sum(x + half, count - half);
  }
  std::size_t i = 0;
  float total = 0.0f;
  if (count >= 8) {
    float part[8];
    std::copy(x, x + 8, part);
    for (i = 8; i + 8 <= count; i += 8)
      for (std::size_t k = 0; k < 8; ++k) part[k] += x[i + k];
    total = ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  }
  for (; i < count; ++i) total += x[i];
  return total;
}

// Priority of a sequence: eta max + (1 - eta) mean of its errors with eta = 0.9, 0 without errors (R2D2, Kapturowski et al.
// 2019). Errors are not negative.
inline float mixed_priority(const float* errors, std::size_t count) {
  constexpr double kEta = 0.9;
  if (count == 0) return 0.0f;
  float mean = pairwise_sum(errors, count) / static_cast<float>(count);
  return static_cast<float>(kEta) * *std::max_element(errors, errors + count) + static_cast<float>(1.0 - kEta) * mean;
}

}  // namespace headrace::replay

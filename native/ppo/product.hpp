// Products of small matrices of floats, whose rows the caller has padded with zeros to a multiple of `kPadding`.

#pragma once

#include <cstddef>

namespace headrace::ppo {

inline constexpr std::size_t kPadding = 16;

inline std::size_t padded(std::size_t width) { return (width + kPadding - 1) / kPadding * kPadding; }

typedef float Vector __attribute__((vector_size(kPadding * sizeof(float))));
/// The same anywhere in memory.
typedef float Stored __attribute__((vector_size(kPadding * sizeof(float)), aligned(alignof(float)), may_alias));

// Sums that are kept in registers at a time: rows times vectors.
#ifdef __AVX512F__
inline constexpr std::size_t kRows = 6, kVectors = 4;
#else
inline constexpr std::size_t kRows = 4, kVectors = 1;
#endif

/// A of m rows and k columns, any strides.
struct Left {
  const float* at;
  std::size_t row, column;
};

template <std::size_t R, std::size_t V>
void tile(std::size_t k, Left a, const float* b, std::size_t b_row, const float* bias, float* c, std::size_t c_row) {
  Vector sums[R][V];
  for (std::size_t v = 0; v < V; ++v) {
    const Vector first = bias ? *reinterpret_cast<const Stored*>(bias + v * kPadding) : Vector{};
    for (std::size_t r = 0; r < R; ++r) sums[r][v] = first;
  }
  for (std::size_t i = 0; i < k; ++i) {
    Vector right[V];
    for (std::size_t v = 0; v < V; ++v) right[v] = *reinterpret_cast<const Stored*>(b + i * b_row + v * kPadding);
    for (std::size_t r = 0; r < R; ++r) {
      const float left = a.at[r * a.row + i * a.column];
      for (std::size_t v = 0; v < V; ++v) sums[r][v] += left * right[v];
    }
  }
  for (std::size_t r = 0; r < R; ++r)
    for (std::size_t v = 0; v < V; ++v) *reinterpret_cast<Stored*>(c + r * c_row + v * kPadding) = sums[r][v];
}

template <std::size_t V>
void strip(std::size_t m, std::size_t k, Left a, const float* b, std::size_t b_row, const float* bias, float* c, std::size_t c_row) {
  for (; m >= kRows; m -= kRows, a.at += kRows * a.row, c += kRows * c_row) tile<kRows, V>(k, a, b, b_row, bias, c, c_row);
  for (; m; --m, a.at += a.row, c += c_row) tile<1, V>(k, a, b, b_row, bias, c, c_row);
}

/// C = A B + bias, [m, n]: n a multiple of `kPadding`; B [k, n] and C have rows without gaps. `bias` [n], or null for 0.
inline void product(std::size_t m, std::size_t n, std::size_t k, Left a, const float* b, const float* bias, float* c) {
  std::size_t at = 0;
  for (; at + kVectors * kPadding <= n; at += kVectors * kPadding)
    strip<kVectors>(m, k, a, b + at, n, bias ? bias + at : nullptr, c + at, n);
  for (; at < n; at += kPadding) strip<1>(m, k, a, b + at, n, bias ? bias + at : nullptr, c + at, n);
}

}  // namespace headrace::ppo

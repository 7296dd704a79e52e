// ELU and its derivative over plain arrays of float or bfloat16.
//
// x <= 0 needs e^x - 1 without loss of the small values. With x = n ln 2 + r, |r| <= ln 2 / 2,
//
//     e^x - 1 = 2^n (e^r - 1) + (2^n - 1),
//
// where e^r - 1 is a polynomial without constant term: exact to a few units in the last place, and no branch, so that the
// compiler makes vectors of it.

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace headrace::elu {

struct Bfloat16 {
  std::uint16_t bits;
};

inline float widened(float x) { return x; }
inline float widened(Bfloat16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

template <typename T>
T narrowed(float x);
template <>
inline float narrowed<float>(float x) {
  return x;
}
template <>
inline Bfloat16 narrowed<Bfloat16>(float x) {  // to the nearest, ties to even
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

constexpr float kLeast = -87.0f;  // whose e^x is still a normal number

/// 2^n and 2^n (e^r - 1) for x from `kLeast` to 0: e^x is their sum. NaN stays NaN. For bfloat16, whose numbers have 8 bits, fewer
/// terms are enough: what is left out is below 2^-12 of e^r - 1.
struct Exponential {
  float power, rest;
};

template <typename T = float>
Exponential exponential(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  float r, p;
  if constexpr (std::is_same_v<T, Bfloat16>) {
    r = x - n * 0.693147181f;
    p = r * (1.0f / 24) + 1.0f / 6;
  } else {
    r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts: the first times n is exact
    p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
  }
  p = p * r + 0.5f;
  p = p * r * r + r;
  const float power = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
  return {power, power * p};
}

/// What of x lies between `kLeast` and 0, else the nearer of the two. On the bits, of which compilers make vectors; of two
/// comparisons with numbers they make masks for every operation behind them.
inline float below_zero(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>(std::min(bits & -(bits >> 31), std::bit_cast<std::uint32_t>(kLeast)));
}

/// x where x > 0, else e^x - 1. NaN stays NaN.
template <typename T = float>
float elu(float x) {
  const auto [power, rest] = exponential<T>(below_zero(x));
  return x <= 0.0f ? rest + (power - 1.0f) : x;
}

/// y = ELU(x).
template <typename T>
void forward(const T* __restrict x, T* __restrict y, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) y[i] = narrowed<T>(elu<T>(widened(x[i])));
}

/// dx = dy where x > 0, else dy e^x.
template <typename T>
void backward(const T* __restrict dy, const T* __restrict x, T* __restrict dx, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    const auto [power, rest] = exponential<T>(below_zero(widened(x[i])));
    dx[i] = narrowed<T>(widened(dy[i]) * (power + rest));
  }
}

}  // namespace headrace::elu

// ELU and its derivative over plain arrays of float or bfloat16.
//
// x <= 0 needs e^x - 1 without loss of the small values. With x = n ln 2 + r, |r| <= ln 2 / 2,
//
//     e^x - 1 = 2^n (e^r - 1) + (2^n - 1),
//
// where e^r - 1 is a polynomial without constant term: exact to a few units in the last place, and no branch, so that the
// compiler makes vectors of it.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

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

/// 2^n and 2^n (e^r - 1) for x <= 0: e^x is their sum. NaN stays NaN.
struct Exponential {
  float power, rest;
};

inline Exponential exponential(float x) {
  x = x < -87.0f ? -87.0f : x;  // 2^n stays a normal number
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // ln 2 in two parts: the first times n is exact
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r;
  const float power = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
  return {power, power * p};
}

/// y = x where x > 0, else e^x - 1.
template <typename T>
void forward(const T* __restrict x, T* __restrict y, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    const float value = widened(x[i]);
    const auto [power, rest] = exponential(value > 0.0f ? 0.0f : value);
    y[i] = narrowed<T>(value > 0.0f ? value : rest + (power - 1.0f));
  }
}

/// dx = dy where x > 0, else dy e^x.
template <typename T>
void backward(const T* __restrict dy, const T* __restrict x, T* __restrict dx, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    const float value = widened(x[i]);
    const auto [power, rest] = exponential(value > 0.0f ? 0.0f : value);
    dx[i] = narrowed<T>(widened(dy[i]) * (power + rest));
  }
}

}  // namespace headrace::elu

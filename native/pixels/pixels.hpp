// Images of bytes, plane by plane, to float or bfloat16 with the channels of a pixel side by side.
//
// PyTorch does this in two passes, the second of which jumps from plane to plane.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace headrace::pixels {

enum class Bfloat16 : std::uint16_t {};

template <typename T>
T number(std::uint8_t x);
template <>
inline float number<float>(std::uint8_t x) {
  return x;
}
template <>
inline Bfloat16 number<Bfloat16>(std::uint8_t x) {  // exact: 8 bits are as many as it has
  return Bfloat16(std::bit_cast<std::uint32_t>(float{x}) >> 16);
}

/// x[images][C][size] to y[images][size][C]. The number of channels is known to the compiler, which makes vectors of the loop.
template <int C, typename T>
void interleave(const std::uint8_t* __restrict x, T* __restrict y, std::size_t images, std::size_t size) {
  for (std::size_t n = 0; n < images; ++n, x += C * size, y += C * size) {
    for (std::size_t i = 0; i < size; ++i) {
      for (int c = 0; c < C; ++c) y[i * C + c] = number<T>(x[c * size + i]);
    }
  }
}

/// Of a frame or a stack of `channels` of them. False: there is no loop for that number.
template <typename T>
bool channels_last(const std::uint8_t* x, T* y, std::size_t images, std::size_t channels, std::size_t size) {
  switch (channels) {
    case 1: interleave<1>(x, y, images, size); return true;
    case 2: interleave<2>(x, y, images, size); return true;
    case 3: interleave<3>(x, y, images, size); return true;
    case 4: interleave<4>(x, y, images, size); return true;
    default: return false;
  }
}

}  // namespace headrace::pixels

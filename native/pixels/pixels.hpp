// Images of bytes, plane by plane, to float or bfloat16 with the channels of a pixel side by side.
//
// PyTorch does this in two passes, the second of which jumps from plane to plane.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

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
  return Bfloat16(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16);
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

/// The same with the F x F pixels of a square, plane after plane, as the channels of one: PyTorch's pixel_unshuffle.
template <int C, int F, typename T>
void unshuffle(const std::uint8_t* __restrict x, T* __restrict y, std::size_t images, std::size_t height, std::size_t width) {
  for (std::size_t n = 0; n < images; ++n, x += C * height * width) {
    for (std::size_t top = 0; top < height; top += F) {
      for (std::size_t left = 0; left < width; left += F, y += C * F * F) {
        std::uint8_t square[C * F * F];  // first put together as bytes, so that the conversion is done in vectors
        for (int c = 0; c < C; ++c) {
          for (int i = 0; i < F; ++i) std::memcpy(square + (c * F + i) * F, x + (c * height + top + i) * width + left, F);
        }
        for (int i = 0; i < C * F * F; ++i) y[i] = number<T>(square[i]);
      }
    }
  }
}

template <int C, typename T>
bool channels_last(const std::uint8_t* x, T* y, std::size_t images, std::size_t height, std::size_t width, std::size_t factor) {
  switch (factor) {
    case 1: interleave<C>(x, y, images, height * width); return true;
    case 4: unshuffle<C, 4>(x, y, images, height, width); return true;
    default: return false;
  }
}

/// Of a frame or a stack of `channels` of them. False: there is no loop for these numbers.
template <typename T>
bool channels_last(const std::uint8_t* x, T* y, std::size_t images, std::size_t channels, std::size_t height, std::size_t width,
                   std::size_t factor) {
  switch (channels) {
    case 1: return channels_last<1>(x, y, images, height, width, factor);
    case 2: return channels_last<2>(x, y, images, height, width, factor);
    case 3: return channels_last<3>(x, y, images, height, width, factor);
    case 4: return channels_last<4>(x, y, images, height, width, factor);
    default: return false;
  }
}

}  // namespace headrace::pixels

#include <nanobind/nanobind.h>

#include <cstdint>

#include "pixels/pixels.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace pixels = headrace::pixels;

// Addresses, as in elu/bindings.cpp. The caller vouches for them (headrace/policies/pixels.py).
NB_MODULE(pixels, m) {
  m.def(
      "channels_last",
      [](std::uintptr_t x, std::uintptr_t y, std::size_t images, std::size_t channels, std::size_t height, std::size_t width,
         std::size_t factor, bool bf16) {
        const auto* from = reinterpret_cast<const std::uint8_t*>(x);
        return bf16 ? pixels::channels_last(from, reinterpret_cast<pixels::Bfloat16*>(y), images, channels, height, width, factor)
                    : pixels::channels_last(from, reinterpret_cast<float*>(y), images, channels, height, width, factor);
      },
      "x"_a, "y"_a, "images"_a, "channels"_a, "height"_a, "width"_a, "factor"_a, "bf16"_a,
      nb::call_guard<nb::gil_scoped_release>(),
      "Addresses of bytes [images, channels, height, width], whose sides are multiples of factor, and of numbers [images, "
      "height / factor, width / factor, channels * factor^2]. False: not for so many channels, or this factor.");
}

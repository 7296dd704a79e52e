#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "pixels/bilinear.hpp"
#include "pixels/pixels.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace pixels = headrace::pixels;

NB_MODULE(pixels, m) {
  using Image = nb::ndarray<const std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
  using Shrunk = nb::ndarray<std::uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
  nb::class_<pixels::Bilinear>(m, "Bilinear",
                               "Shrinks images [height, width, channels], of up to 4 channels and by less than 2, as OpenCV's "
                               "INTER_LINEAR does. Its own memory is for one thread at a time.")
      .def(nb::init<std::size_t, std::size_t, std::size_t, std::size_t, std::size_t>(), "in_height"_a, "in_width"_a, "channels"_a,
           "out_height"_a, "out_width"_a)
      .def(
          "shrink",
          [](pixels::Bilinear& self, const Image& image, const Shrunk& to, std::size_t images) {
            self.shrink(image.data(), to.data(), images);
          },
          "image"_a, "to"_a, "images"_a = 1, "`images` that lie one behind the other. The caller vouches for the sizes of both.");
  m.attr("BILINEAR_IS_FAST") = pixels::Bilinear::kFast;
  // Addresses, as in elu/bindings.cpp. The caller vouches for them (headrace/policies/pixels.py).
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

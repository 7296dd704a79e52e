#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#ifdef __x86_64__
#include <cpuid.h>

#include "layers/layers.hpp"
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace {

/// Whether the processor has AVX512-BF16 and the system keeps its registers, without AMX: with that oneDNN's kernels are several
/// times as fast. By hand, since not every compiler's library has `__builtin_cpu_supports` for shared libraries.
bool is_fast() {
#ifdef __x86_64__
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsXsave = 1u << 27, kRegisters = 0xe6;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsXsave)) return false;
  unsigned kept = 0, high = 0;
  __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  if ((kept & kRegisters) != kRegisters || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, kAmxBf16 = 1u << 22;  // F, DQ, BW and VL
  if ((b & kAvx512) != kAvx512 || d & kAmxBf16) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1u;
#else
  return false;
#endif
}

}  // namespace

// Addresses, as in elu/bindings.cpp. The caller vouches for them (headrace/policies/acting.py).
NB_MODULE(layers, m) {
  m.attr("IS_FAST") = is_fast();
#ifdef __x86_64__
  namespace layers = headrace::layers;
  using layers::Activation, layers::Bfloat16, layers::Network;
  using Address = std::uintptr_t;
  using Panels = nb::ndarray<const std::int32_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
  using Biases = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  static constexpr auto panels = [](const Panels& weight) { return reinterpret_cast<const Bfloat16*>(weight.data()); };

  nb::enum_<Activation>(m, "Activation")
      .value("none", Activation::kNone)
      .value("relu", Activation::kRelu)
      .value("elu", Activation::kElu);
  nb::class_<Network>(m, "Network",
                      "Layers in bfloat16, one after the other, for the few observations that a policy acts on. Only "
                      "where `IS_FAST`.")
      .def(nb::init<std::size_t>(), "width"_a, "Of rows of `width` numbers.")
      .def(nb::init<std::size_t, std::size_t, std::size_t, std::size_t>(), "channels"_a, "height"_a, "width"_a, "factor"_a,
           "Of images of bytes [channels, height, width], up to 4 channels, unshuffled by `factor`: 1 or 4.")
      .def(
          "convolution",
          [](Network& self, const Panels& weight, const Biases& bias, std::size_t outputs, std::size_t kernel_height,
             std::size_t kernel_width, std::size_t stride, Activation activation) {
            self.convolution(panels(weight), bias.data(), outputs, kernel_height, kernel_width, stride, activation);
          },
          "weight"_a.noconvert(), "bias"_a.noconvert(), "outputs"_a, "kernel_height"_a, "kernel_width"_a, "stride"_a,
          "activation"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          "Add a convolution without padding. `weight`: panels of tile.hpp, [outputs / 32, inputs / 2, 32], each of two inputs; "
          "inputs in the order [kernel_height, kernel_width, channels], of which a row has an even number. `bias`: [outputs]. "
          "Both with zeros up to a multiple of 32 outputs.")
      .def(
          "linear",
          [](Network& self, const Panels& weight, const Biases& bias, std::size_t outputs, Activation activation) {
            self.linear(panels(weight), bias.data(), outputs, activation);
          },
          "weight"_a.noconvert(), "bias"_a.noconvert(), "outputs"_a, "activation"_a, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
          "Add a linear layer over all numbers of an image, plane by plane; arguments as there.")
      .def(
          "forward",
          [](const Network& self, Address x, Address y, std::size_t count) {
            self.forward(reinterpret_cast<const void*>(x), reinterpret_cast<Bfloat16*>(y), count);
          },
          "x"_a, "y"_a, "count"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Addresses of `count` images or rows, and of what comes out, [count, out_features].")
      .def_prop_ro("out_features", &Network::out_features, "Numbers that come out of an image or row.");
#endif
}

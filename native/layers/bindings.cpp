#include <nanobind/nanobind.h>

#include <cstdint>

#ifdef __x86_64__
#include <cpuid.h>

#include "layers/layers.hpp"
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace {

/// Whether the processor has AVX512-BF16, and no AMX: with that oneDNN's kernels are several times as fast.
bool is_fast() {
#ifdef __x86_64__
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool amx = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1u);
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") && !amx;
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
  static constexpr auto numbers = [](Address address) { return reinterpret_cast<const Bfloat16*>(address); };

  nb::enum_<Activation>(m, "Activation")
      .value("none", Activation::kNone)
      .value("relu", Activation::kRelu)
      .value("elu", Activation::kElu);
  nb::class_<Network>(m, "Network",
                      "Layers in bfloat16, one after the other, for the few observations that a policy acts on. They keep copies of "
                      "the weights. Only where `IS_FAST`.")
      .def(nb::init<std::size_t>(), "width"_a, "Of rows of `width` numbers.")
      .def(nb::init<std::size_t, std::size_t, std::size_t, std::size_t>(), "channels"_a, "height"_a, "width"_a, "factor"_a,
           "Of images of bytes [channels, height, width], up to 4 channels, unshuffled by `factor`: 1 or 4.")
      .def(
          "convolution",
          [](Network& self, Address weight, Address bias, std::size_t outputs, std::size_t kernel_height, std::size_t kernel_width,
             std::size_t stride, Activation activation) {
            self.convolution(numbers(weight), numbers(bias), outputs, kernel_height, kernel_width, stride, activation);
          },
          "weight"_a, "bias"_a, "outputs"_a, "kernel_height"_a, "kernel_width"_a, "stride"_a, "activation"_a,
          "Add a convolution without padding. Addresses of `weight` [outputs, kernel_height, kernel_width, channels], of which a row of "
          "the kernel has an even number, and of `bias` [outputs], or 0.")
      .def(
          "linear",
          [](Network& self, Address weight, Address bias, std::size_t outputs, Activation activation) {
            self.linear(numbers(weight), numbers(bias), outputs, activation);
          },
          "weight"_a, "bias"_a, "outputs"_a, "activation"_a,
          "Add a linear layer over all numbers of an image, plane by plane. `weight`: [outputs, numbers], an even number.")
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

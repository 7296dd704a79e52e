#include <nanobind/nanobind.h>

#include <cstdint>

#include "elu/elu.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace elu = headrace::elu;

// Addresses instead of arrays: handing a tensor over as one takes as long as the work on a small batch. The caller vouches for
// them (headrace/policies/activations.py).
NB_MODULE(elu, m) {
  m.def(
      "forward",
      [](std::uintptr_t x, std::uintptr_t y, std::size_t size, bool bf16) {
        if (bf16) {
          elu::forward(reinterpret_cast<const elu::Bfloat16*>(x), reinterpret_cast<elu::Bfloat16*>(y), size);
        } else {
          elu::forward(reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), size);
        }
      },
      "x"_a, "y"_a, "size"_a, "bf16"_a, nb::call_guard<nb::gil_scoped_release>(), "y = ELU(x), addresses of `size` numbers each.");
  m.def(
      "backward",
      [](std::uintptr_t dy, std::uintptr_t x, std::uintptr_t dx, std::size_t size, bool bf16) {
        if (bf16) {
          elu::backward(reinterpret_cast<const elu::Bfloat16*>(dy), reinterpret_cast<const elu::Bfloat16*>(x),
                        reinterpret_cast<elu::Bfloat16*>(dx), size);
        } else {
          elu::backward(reinterpret_cast<const float*>(dy), reinterpret_cast<const float*>(x), reinterpret_cast<float*>(dx), size);
        }
      },
      "dy"_a, "x"_a, "dx"_a, "size"_a, "bf16"_a, nb::call_guard<nb::gil_scoped_release>(),
      "dx = dy ELU'(x), addresses of `size` numbers each.");
}

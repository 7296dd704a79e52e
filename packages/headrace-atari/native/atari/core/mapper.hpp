// The bank-switching hardware of cartridges.
#pragma once

#include "platform.hpp"

namespace headrace::atari {

enum class Mapper : uint8_t { k2K, k4K, kF8, kF6, kF8SC, kF6SC, kE0, kFE, kDPC };

HR_HD constexpr bool has_superchip(Mapper mapper) { return mapper == Mapper::kF8SC || mapper == Mapper::kF6SC; }

// Banks of 4K that a console can select between.
HR_HD constexpr uint32_t bank_count(Mapper mapper) {
  switch (mapper) {
    case Mapper::kF8: case Mapper::kF8SC: case Mapper::kFE: case Mapper::kDPC: return 2;
    case Mapper::kF6: case Mapper::kF6SC: return 4;
    default: return 1;
  }
}

}  // namespace headrace::atari

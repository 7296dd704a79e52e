// Loads a ROM: finds its mapper by size and content, and decodes its instructions.
#pragma once

#include <cstdint>

#include "atari/core/cartridge.hpp"
#include "atari/host/decode.hpp"

namespace headrace::atari {

enum class LoadError : uint8_t { kNone, kEmpty, kUnknownSize };

namespace detail {

template <int N>
bool contains(const uint8_t* bytes, uint32_t size, const uint8_t (&pattern)[N]) {
  for (uint32_t i = 0; i + N <= size; ++i) {
    int k = 0;
    while (k < N && bytes[i + k] == pattern[k]) ++k;
    if (k == N) return true;
  }
  return false;
}

// Superchip RAM hides the first 256 bytes of every bank, so an image has nothing but filler there.
inline bool first_page_is_filler(const uint8_t* bytes, uint32_t size) {
  for (uint32_t bank = 0; bank < size; bank += 4096)
    for (uint32_t i = 0; i < 256; ++i)
      if (bytes[bank + i] != bytes[bank]) return false;
  return true;
}

inline bool looks_like_e0(const uint8_t* rom, uint32_t size) {
  constexpr uint8_t patterns[][3] = {{0x8D, 0xE0, 0x1F}, {0x8D, 0xE0, 0x5F}, {0x8D, 0xE9, 0xFF},
                                     {0xAD, 0xE9, 0xFF}, {0xAD, 0xED, 0xFF}, {0xAD, 0xF3, 0xBF}};
  for (const auto& pattern : patterns)
    if (contains(rom, size, pattern)) return true;
  return false;
}

inline bool looks_like_fe(const uint8_t* rom, uint32_t size) {
  constexpr uint8_t patterns[][5] = {{0x20, 0x00, 0xD0, 0xC6, 0xC5}, {0x20, 0xC3, 0xF8, 0xA5, 0x82},
                                     {0xD0, 0xFB, 0x20, 0x73, 0xFE}, {0x20, 0x00, 0xF0, 0x84, 0xD6}};
  for (const auto& pattern : patterns)
    if (contains(rom, size, pattern)) return true;
  return false;
}

}  // namespace detail

// Fills `cartridge` from the bytes of a ROM file and finds its mapper by size and content.
// The TV format is left at NTSC: a ROM does not say which it is for.
// Returns kEmpty for no bytes and kUnknownSize for a size that no supported mapper has.
inline LoadError load_cartridge(Cartridge& cartridge, const uint8_t* bytes, uint32_t size) {
  cartridge = Cartridge{};
  if (bytes == nullptr || size == 0) return LoadError::kEmpty;
  const bool dpc = size >= 10240 && size <= 10496;  // 8K program, 2K display data, up to 256 bytes of random numbers
  if (size == 2048) {
    cartridge.mapper = Mapper::k2K;
  } else if (size == 4096) {
    bool halves_equal = true;
    for (uint32_t i = 0; i < 2048; ++i) halves_equal &= bytes[i] == bytes[i + 2048];
    cartridge.mapper = halves_equal ? Mapper::k2K : Mapper::k4K;
  } else if (size == 8192) {
    cartridge.mapper = detail::first_page_is_filler(bytes, size) ? Mapper::kF8SC
                       : detail::looks_like_e0(bytes, size)      ? Mapper::kE0
                       : detail::looks_like_fe(bytes, size)      ? Mapper::kFE
                                                                 : Mapper::kF8;
  } else if (dpc) {
    cartridge.mapper = Mapper::kDPC;
  } else if (size == 16384) {
    cartridge.mapper = detail::first_page_is_filler(bytes, size) ? Mapper::kF6SC : Mapper::kF6;
  } else {
    return LoadError::kUnknownSize;
  }
  cartridge.size = dpc ? 10240 : cartridge.mapper == Mapper::k2K ? 4096 : size;
  for (uint32_t i = 0; i < cartridge.size; ++i) cartridge.rom[i] = bytes[size == 2048 ? i & 2047 : i];
  decode_image(cartridge.decoded, cartridge.rom, static_cast<int32_t>(dpc ? 8192 : cartridge.size), cartridge.mapper);
  return LoadError::kNone;
}

}  // namespace headrace::atari

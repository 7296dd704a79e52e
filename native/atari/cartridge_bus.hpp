// Cartridge accesses: what each mapper returns, and how it switches banks.
#pragma once

#include "dpc.hpp"
#include "platform.hpp"
#include "rom.hpp"
#include "state.hpp"

namespace headrace::atari {

// First address (within 4K) where an access has an effect: instructions below it can be fetched in one piece.
template <Mapper M>
constexpr uint16_t first_hotspot() {
  switch (M) {
    case Mapper::k2K: case Mapper::k4K: case Mapper::kFE: return 0x1000;
    case Mapper::kE0: return 0xFE0;
    case Mapper::kDPC: return 0xFC0;
    case Mapper::kF6: case Mapper::kF6SC: return 0xFF6;
    default: return 0xFF8;
  }
}

// First address (within 4K) that is plain ROM.
template <Mapper M>
constexpr uint16_t first_rom_address() {
  return M == Mapper::kDPC ? 0x80 : has_superchip(M) ? 0x100 : 0;
}

template <Mapper M>
HR_INLINE const uint8_t* rom_at(const Console& s, const Cartridge& cart, uint16_t address) {
  if constexpr (M == Mapper::k2K || M == Mapper::k4K) return cart.rom + (address & 0xFFF);
  if constexpr (M == Mapper::kE0) return cart.rom + (s.slice[(address >> 10) & 3] << 10) + (address & 0x3FF);
  if constexpr (M == Mapper::kFE) return cart.rom + ((address & 0x2000) ? 0 : 4096) + (address & 0xFFF);
  return cart.rom + s.bank + (address & 0xFFF);
}

// The number of bytes from `address` on that one load may take: 4 if no boundary is near, else 0.
template <Mapper M>
HR_INLINE bool fetches_in_one_piece(uint16_t address) {
  if (!(address & 0x1000)) return false;
  if constexpr (M == Mapper::kE0)
    if ((address & 0x3FF) > 0x3FD) return false;
  const uint16_t offset = address & 0xFFF;
  if (first_rom_address<M>() && offset < first_rom_address<M>()) return false;
  return offset <= first_hotspot<M>() - 3;
}

template <Mapper M>
HR_INLINE void switch_bank(Console& s, uint16_t address) {
  const uint16_t offset = address & 0xFFF;
  if constexpr (M == Mapper::kF8 || M == Mapper::kF8SC || M == Mapper::kDPC) {
    if (HR_UNLIKELY(offset == 0xFF8 || offset == 0xFF9)) s.bank = static_cast<uint16_t>((offset - 0xFF8) << 12);
  } else if constexpr (M == Mapper::kF6 || M == Mapper::kF6SC) {
    if (HR_UNLIKELY(offset >= 0xFF6 && offset <= 0xFF9)) s.bank = static_cast<uint16_t>((offset - 0xFF6) << 12);
  } else if constexpr (M == Mapper::kE0) {
    if (HR_UNLIKELY(offset >= 0xFE0 && offset <= 0xFF7)) s.slice[(offset - 0xFE0) >> 3] = offset & 7;
  }
}

template <Mapper M>
HR_INLINE uint8_t read_cartridge(Console& s, const Cartridge& cart, uint16_t address, int32_t cycle) {
  const uint16_t offset = address & 0xFFF;
  switch_bank<M>(s, address);
  if constexpr (has_superchip(M))
    if (offset >= 0x80 && offset < 0x100) return s.superchip[offset & 0x7F];
  if constexpr (M == Mapper::kDPC) {
    if (offset < 0x80 || offset >= 0xFC0) clock_dpc_random(s.dpc);
    if (offset < 0x40) return read_dpc(s.dpc, cart.rom + 8192, offset, cycle);
  }
  return *rom_at<M>(s, cart, address);
}

template <Mapper M>
HR_INLINE void write_cartridge(Console& s, uint16_t address, uint8_t value, int32_t cycle) {
  const uint16_t offset = address & 0xFFF;
  switch_bank<M>(s, address);
  if constexpr (has_superchip(M))
    if (offset < 0x80) s.superchip[offset] = value;
  if constexpr (M == Mapper::kDPC) {
    if (offset < 0x80 || offset >= 0xFC0) clock_dpc_random(s.dpc);
    if (offset >= 0x40 && offset < 0x80) write_dpc(s.dpc, offset, value, cycle);
  }
}

HR_HD inline void reset_cartridge(Console& s, const Cartridge& cart, const uint8_t* superchip) {
  constexpr uint8_t start_slices[4] = {4, 5, 6, 7};
  s.bank = bank_count(cart.mapper) == 2 ? 4096 : 0;
  for (int i = 0; i < 4; ++i) s.slice[i] = start_slices[i];
  if (has_superchip(cart.mapper))
    for (int i = 0; i < 128; ++i) s.superchip[i] = superchip[i];
  if (cart.mapper == Mapper::kDPC) {
    s.dpc.clocked_at = 0;
    s.dpc.fraction = 0;
  }
}

}  // namespace headrace::atari

// Cartridge accesses: what each mapper returns, and how it switches banks.
#pragma once

#include "dpc.hpp"
#include "platform.hpp"
#include "cartridge.hpp"
#include "state.hpp"

namespace headrace::atari {

HR_INLINE const uint8_t* rom_at(const Console& s, const Cartridge& cart, uint16_t address) {
  switch (cart.mapper) {
    case Mapper::kE0: return cart.rom + (s.slice[(address >> 10) & 3] << 10) + (address & 0x3FF);
    case Mapper::kFE: return cart.rom + ((address & 0x2000) ? 0 : 4096) + (address & 0xFFF);
    default: return cart.rom + s.bank + (address & 0xFFF);
  }
}

// Selects a bank if an access to `offset` does that. To be called first: the byte of the same access is of the new bank.
HR_INLINE void switch_bank(Console& s, const Cartridge& cart, uint16_t offset) {
  switch (cart.mapper) {
    case Mapper::kF8: case Mapper::kF8SC: case Mapper::kDPC:
      if (offset == 0xFF8 || offset == 0xFF9) s.bank = static_cast<uint16_t>((offset - 0xFF8) << 12);
      break;
    case Mapper::kF6: case Mapper::kF6SC:
      if (offset >= 0xFF6 && offset <= 0xFF9) s.bank = static_cast<uint16_t>((offset - 0xFF6) << 12);
      break;
    case Mapper::kE0:
      if (offset >= 0xFE0 && offset <= 0xFF7) s.slice[(offset - 0xFE0) >> 3] = offset & 7;
      break;
    default: break;
  }
}

HR_HD inline uint8_t read_cartridge(Console& s, const Cartridge& cart, uint16_t address, int32_t cycle) {
  const uint16_t offset = address & 0xFFF;
  switch_bank(s, cart, offset);
  if (has_superchip(cart.mapper)) {
    if (offset >= 0x80 && offset < 0x100) return s.superchip[offset & 0x7F];
  } else if (cart.mapper == Mapper::kDPC) {
    if (offset < 0x80 || offset >= 0xFC0) clock_dpc_random(s.dpc);
    if (offset < 0x40) return read_dpc(s.dpc, cart.rom + 8192, offset, cycle);
  }
  return *rom_at(s, cart, address);
}

HR_HD inline void write_cartridge(Console& s, const Cartridge& cart, uint16_t address, uint8_t value) {
  const uint16_t offset = address & 0xFFF;
  switch_bank(s, cart, offset);
  if (has_superchip(cart.mapper)) {
    if (offset < 0x80) s.superchip[offset] = value;
  } else if (cart.mapper == Mapper::kDPC) {
    if (offset < 0x80 || offset >= 0xFC0) clock_dpc_random(s.dpc);
    if (offset >= 0x40 && offset < 0x80) write_dpc(s.dpc, offset, value);
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

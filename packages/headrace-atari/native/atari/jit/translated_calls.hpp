// The functions that translated code calls. Values of eight bits are zero-extended. `cycle`: of the access.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "atari/core/run_loop.hpp"

namespace headrace::atari::translated {

template <int reg>
void write_register(Console& s, const Frame& frame, uint32_t value, int32_t cycle) {
  store_register(s, frame, reg, static_cast<uint8_t>(value), cycle);
}
using WriteRegister = void (*)(Console&, const Frame&, uint32_t, int32_t);
template <size_t... reg>
constexpr std::array<WriteRegister, sizeof...(reg)> make_write_table(std::index_sequence<reg...>) {
  return {write_register<reg>...};
}
inline constexpr std::array<WriteRegister, 64> write_table = make_write_table(std::make_index_sequence<64>());

template <int reg>
uint32_t read_tia_register(Console& s, const Frame& frame, uint32_t bus, int32_t cycle) {
  return read_register(s, frame, reg, static_cast<uint8_t>(bus), cycle);
}
using ReadRegister = uint32_t (*)(Console&, const Frame&, uint32_t, int32_t);
template <size_t... reg>
constexpr std::array<ReadRegister, sizeof...(reg)> make_read_table(std::index_sequence<reg...>) {
  return {read_tia_register<reg>...};
}
inline constexpr std::array<ReadRegister, 16> read_table = make_read_table(std::make_index_sequence<16>());

// A load of the timer; if `branch` is not 0, it is the opcode of a branch back to the load, and repetitions of the loop are
// skipped. Returns the cycles skipped in the upper 32 bits and the timer in the lower.
inline uint64_t poll_timer(Console& s, const Frame&, uint32_t branch, int32_t cycle) {
  const uint32_t skipped = kPollingCycles * polls_to_skip(s, static_cast<uint8_t>(branch), cycle);
  return static_cast<uint64_t>(skipped) << 32 | read_timer(s, cycle + static_cast<int32_t>(skipped));
}

// Both pushes return true if the stack pointer pointed to RAM or to an ordinary register; else they have done nothing.
inline bool push_flags(Console& s, const Frame& frame, uint32_t nz, int32_t cycle) {
  const uint32_t reg = s.sp & 63;
  if (!(s.sp & 0x80) && is_special_register(reg)) return false;
  const uint8_t p = static_cast<uint8_t>(processor_flags(nz, s.carry, s.overflow, s.decimal, s.interrupt_disable));
  if (s.sp & 0x80) s.ram[s.sp & 0x7F] = p;
  else write_table[reg](s, frame, p, cycle);
  --s.sp;
  return true;
}
inline bool push_a(Console& s, const Frame& frame, uint32_t a, int32_t cycle) {
  const uint32_t reg = s.sp & 63;
  if (!(s.sp & 0x80) && is_special_register(reg)) return false;
  if (s.sp & 0x80) s.ram[s.sp & 0x7F] = static_cast<uint8_t>(a);
  else write_table[reg](s, frame, a, cycle);
  --s.sp;
  return true;
}

// `address_and_bus`: the address and, from bit 16 on, the byte that was on the bus before.
inline uint32_t read_io(Console& s, const Frame& frame, uint32_t address_and_bus, int32_t cycle) {
  return read_port(s, frame, address_and_bus & 0xFFFF, address_and_bus >> 16, cycle);
}

// `address_and_value`: the value from bit 8 on. Returns true if it was an ordinary register; else nothing was done.
inline bool write_zero_page_register(Console& s, const Frame& frame, uint32_t address_and_value, int32_t cycle) {
  const uint32_t reg = address_and_value & 63;
  if (is_special_register(reg)) return false;
  write_table[reg](s, frame, address_and_value >> 8, cycle);
  return true;
}

// Pulls a byte from the stack, in RAM or in the TIA.
inline uint32_t pull(Console& s, const Frame& frame, uint32_t, int32_t cycle) {
  const uint8_t before = s.sp++;
  if (s.sp & 0x80) return s.ram[s.sp & 0x7F];
  return read_tia(s, frame, s.sp, before & 0x80 ? s.ram[before & 0x7F] : 0, cycle);
}

inline void write_timer(Console& s, const Frame&, uint32_t address_and_value, int32_t cycle) {
  write_riot(s, static_cast<uint16_t>(address_and_value), static_cast<uint8_t>(address_and_value >> 16), cycle);
}

}  // namespace headrace::atari::translated

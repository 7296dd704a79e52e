// The 6507: all 256 opcodes, documented (MCS6500 Programming Manual) or not (Vardy, "Extra Instructions of the 65xx
// Series CPU"). As in ALE, all cycles of an instruction pass before its first data access, so each access happens at the
// instruction's final cycle. Reads without an effect are left out.
#pragma once

#include "cartridge_bus.hpp"
#include "platform.hpp"
#include "riot.hpp"
#include "tia.hpp"

namespace headrace::atari {

HR_INLINE uint32_t processor_flags(uint32_t nz, uint32_t carry, uint32_t overflow, uint32_t decimal,
                                   uint32_t interrupt_disable) {
  return ((nz & 0x8080) != 0) << 7 | overflow << 6 | 0x30 | decimal << 3 | interrupt_disable << 2 |
         ((nz & 0xFF) == 0) << 1 | carry;
}

// The complete interpreter, one instruction at a time: the registers in locals, and the bus.
struct Cpu {
  Console& s;
  const Frame& frame;
  uint32_t pc, a, x, y, sp, nz, carry, overflow, decimal, interrupt_disable;
  int32_t cycle;

  HR_INLINE Cpu(Console& console, const Frame& f)
      : s(console), frame(f), pc(s.pc), a(s.a), x(s.x), y(s.y), sp(s.sp), nz(s.nz), carry(s.carry),
        overflow(s.overflow), decimal(s.decimal), interrupt_disable(s.interrupt_disable), cycle(s.cycle) {}

  HR_INLINE void store() {
    s.pc = static_cast<uint16_t>(pc);
    s.a = static_cast<uint8_t>(a);
    s.x = static_cast<uint8_t>(x);
    s.y = static_cast<uint8_t>(y);
    s.sp = static_cast<uint8_t>(sp);
    s.nz = static_cast<uint16_t>(nz);
    s.carry = static_cast<uint8_t>(carry);
    s.overflow = static_cast<uint8_t>(overflow);
    s.decimal = static_cast<uint8_t>(decimal);
    s.interrupt_disable = static_cast<uint8_t>(interrupt_disable);
    s.cycle = cycle;
  }

  // --- bus ---

  // `bus`: the last byte that was on the data bus.
  HR_INLINE uint32_t read(uint32_t address, uint32_t bus) {
    const uint16_t at = static_cast<uint16_t>(address);
    if (at & 0x1000) return read_cartridge(s, *frame.cartridge, at, cycle);
    if (!(at & 0x80)) return read_tia(s, frame, at, static_cast<uint8_t>(bus), cycle);
    if (at & 0x200) return read_riot(s, *frame.input, at, cycle);
    return s.ram[at & 0x7F];
  }

  HR_INLINE void write(uint32_t address, uint32_t value, bool after_write = false) {
    const uint16_t at = static_cast<uint16_t>(address);
    const uint8_t byte = static_cast<uint8_t>(value);
    if (at & 0x1000) return write_cartridge(s, *frame.cartridge, at, byte);
    if (!(at & 0x80)) return write_tia_register(at & 63, byte, after_write);
    if (at & 0x200) return write_riot(s, at, byte, cycle);
    s.ram[at & 0x7F] = byte;
  }

  HR_INLINE void write_tia_register(int reg, uint8_t value, bool after_write) {
    write_tia(s, frame, reg, value, cycle);
    // WSYNC halts the processor until the line ends. It has no effect where the access before it was a write.
    if (reg == 2 && !after_write) cycle += (kLineCycles - cycle % kLineCycles) % kLineCycles;
  }

  // Zero page: RAM or TIA. The byte on the bus before is the operand, which is the address itself.
  HR_INLINE uint32_t read_zero_page(uint32_t address) {
    return address & 0x80 ? s.ram[address & 0x7F] : read_tia(s, frame, static_cast<uint16_t>(address),
                                                             static_cast<uint8_t>(address), cycle);
  }
  HR_INLINE void write_zero_page(uint32_t address, uint32_t value) {
    if (address & 0x80) s.ram[address & 0x7F] = static_cast<uint8_t>(value);
    else write_tia_register(address & 63, static_cast<uint8_t>(value), false);
  }

  HR_INLINE void push(uint32_t value, bool after_write = false) {
    const uint32_t address = 0x100 | sp;
    sp = (sp - 1) & 0xFF;
    if (address & 0x80) s.ram[address & 0x7F] = static_cast<uint8_t>(value);
    else write_tia_register(address & 63, static_cast<uint8_t>(value), after_write);
  }
  HR_INLINE uint32_t pull() {
    const uint32_t before = 0x100 | sp;
    sp = (sp + 1) & 0xFF;
    const uint32_t address = 0x100 | sp;
    if (address & 0x80) return s.ram[address & 0x7F];
    // The byte at the old stack pointer was read before, and is on the bus.
    const uint32_t bus = before & 0x80 ? s.ram[before & 0x7F] : 0;
    return read_tia(s, frame, static_cast<uint16_t>(address), static_cast<uint8_t>(bus), cycle);
  }

  // An instruction's bytes, opcode lowest. Only its own bytes are read, because a read can switch banks.
  HR_INLINE uint32_t fetch() {
    uint32_t bus = read(pc, 0);
    uint32_t word = bus;
    const int length = instruction_length(word);
    for (int i = 1; i < length; ++i) {
      bus = read(pc + i, bus);
      word |= bus << (8 * i);
    }
    return word;
  }

  // --- arithmetic. In decimal mode also bytes that are no decimal digits do what they do in ALE. ---

  HR_INLINE void load(uint32_t& reg, uint32_t value) { reg = nz = value & 0xFF; }

  HR_INLINE static uint32_t from_bcd(uint32_t byte) { return 10 * (byte >> 4) + (byte & 15); }
  HR_INLINE static uint32_t to_bcd(uint32_t number) { return number % 100 / 10 << 4 | number % 10; }

  HR_INLINE void adc(uint32_t m) {
    if (HR_LIKELY(!decimal)) {
      const uint32_t sum = a + m + carry;
      overflow = (~(a ^ m) & (a ^ sum)) >> 7 & 1;
      carry = sum >> 8;
      load(a, sum);
    } else {
      const uint32_t sum = from_bcd(a) + from_bcd(m) + carry, before = a;
      carry = sum > 99;
      load(a, to_bcd(sum & 0xFF));
      overflow = ((before ^ a) & (a ^ m)) >> 7 & 1;
    }
  }
  HR_INLINE void sbc(uint32_t m) {
    if (HR_LIKELY(!decimal)) {
      const uint32_t difference = a + (m ^ 0xFF) + carry;
      overflow = ((a ^ m) & (a ^ difference)) >> 7 & 1;
      carry = difference >> 8;
      load(a, difference);
    } else {
      const uint32_t before = a, borrow = 1 - carry;
      carry = before >= m + borrow;
      const int32_t difference = static_cast<int32_t>(from_bcd(before)) - static_cast<int32_t>(from_bcd(m) + borrow);
      const int32_t wrapped = difference < 0 ? difference + 100 : difference;
      // ALE looks the result up in a table of 256 bytes; before it in memory is the one of `from_bcd`.
      load(a, wrapped < 0 ? from_bcd(static_cast<uint32_t>(wrapped + 256)) : to_bcd(static_cast<uint32_t>(wrapped)));
      overflow = ((before ^ a) & (a ^ m)) >> 7 & 1;
    }
  }
  HR_INLINE void compare(uint32_t reg, uint32_t m) {
    carry = reg >= m;
    nz = (reg - m) & 0xFF;
  }
  HR_INLINE void bit(uint32_t m) {
    nz = ((a & m) != 0) | (m & 0x80) << 8;
    overflow = m >> 6 & 1;
  }
  HR_INLINE uint32_t asl(uint32_t m) {
    carry = m >> 7;
    return nz = (m << 1) & 0xFF;
  }
  HR_INLINE uint32_t lsr(uint32_t m) {
    carry = m & 1;
    return nz = m >> 1;
  }
  HR_INLINE uint32_t rol(uint32_t m) {
    const uint32_t result = (m << 1 | carry) & 0xFF;
    carry = m >> 7;
    return nz = result;
  }
  HR_INLINE uint32_t ror(uint32_t m) {
    const uint32_t result = m >> 1 | carry << 7;
    carry = m & 1;
    return nz = result;
  }
  HR_INLINE uint32_t inc(uint32_t m) { return nz = (m + 1) & 0xFF; }
  HR_INLINE uint32_t dec(uint32_t m) { return nz = (m - 1) & 0xFF; }

  HR_HD void arr(uint32_t m) {
    const uint32_t both = a & m;
    load(a, both >> 1 | carry << 7);
    if (!decimal) {
      carry = a >> 6 & 1;
      overflow = (a >> 6 ^ a >> 5) & 1;
      return;
    }
    overflow = ((both ^ a) & 0x40) != 0;
    if ((both & 0x0F) + (both & 0x01) > 5) a = (a & 0xF0) | ((a + 6) & 0x0F);
    carry = (both & 0xF0) + (both & 0x10) > 0x50;
    if (carry) a = (a + 0x60) & 0xFF;
  }

  HR_INLINE uint32_t flags() const { return processor_flags(nz, carry, overflow, decimal, interrupt_disable); }
  HR_INLINE void set_flags(uint32_t p) {
    nz = (p & 0x80) << 8 | !(p & 2);
    overflow = p >> 6 & 1;
    decimal = p >> 3 & 1;
    interrupt_disable = p >> 2 & 1;
    carry = p & 1;
  }

  HR_INLINE void branch(bool taken, uint32_t operand) {
    if (!taken) return;
    const uint32_t target = (pc + static_cast<uint32_t>(static_cast<int8_t>(operand))) & 0xFFFF;
    cycle += (pc ^ target) & 0xFF00 ? 2 : 1;
    pc = target;
  }

  // --- addressing; every function gives an effective address ---

  HR_INLINE uint32_t pointer(uint32_t zero_page, uint32_t& high) {
    const uint32_t low = read_zero_page(zero_page & 0xFF);
    high = read_zero_page((zero_page + 1) & 0xFF);
    return low | high << 8;
  }
  // Reads past a page take one cycle more.
  HR_INLINE void cross(uint32_t base, uint32_t address) { cycle += ((base ^ address) & 0xFF00) != 0; }

  HR_INLINE uint32_t read_indexed(uint32_t base, uint32_t index) {
    const uint32_t address = (base + index) & 0xFFFF;
    cross(base, address);
    return read(address, base >> 8);
  }
  HR_INLINE uint32_t read_indirect_x(uint32_t operand) {
    uint32_t high;
    const uint32_t address = pointer(operand + x, high);
    return read(address, high);
  }
  HR_INLINE uint32_t read_indirect_y(uint32_t operand) {
    uint32_t high;
    const uint32_t base = pointer(operand, high), address = (base + y) & 0xFFFF;
    cross(base, address);
    return read(address, high);
  }

  HR_INLINE void step();
};

}  // namespace headrace::atari

#include "cpu_opcodes.hpp"

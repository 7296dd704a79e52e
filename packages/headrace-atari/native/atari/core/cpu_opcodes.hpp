// The opcode table of the 6507: one case per opcode with its cycles.
#pragma once

#include "cpu.hpp"

namespace headrace::atari {

// An instruction that reads its operand, in the modes of the regular groups.
#define HR_READ(opcode, base_cycles, length, value_expression, use) \
  case opcode: {                                                    \
    pc += length - 1;                                               \
    cycle += base_cycles;                                           \
    const uint32_t m = value_expression;                            \
    use;                                                            \
    break;                                                          \
  }
#define HR_IMMEDIATE(opcode, use) HR_READ(opcode, 2, 2, low, use)
#define HR_READ_ZP(opcode, use) HR_READ(opcode, 3, 2, read_zero_page(low), use)
#define HR_READ_ZPX(opcode, use) HR_READ(opcode, 4, 2, read((low + x) & 0xFF, low), use)
#define HR_READ_ZPY(opcode, use) HR_READ(opcode, 4, 2, read((low + y) & 0xFF, low), use)
#define HR_READ_ABS(opcode, use) HR_READ(opcode, 4, 3, read(operand, operand >> 8), use)
#define HR_READ_ABX(opcode, use) HR_READ(opcode, 4, 3, read_indexed(operand, x), use)
#define HR_READ_ABY(opcode, use) HR_READ(opcode, 4, 3, read_indexed(operand, y), use)
#define HR_READ_INX(opcode, use) HR_READ(opcode, 6, 2, read_indirect_x(low), use)
#define HR_READ_INY(opcode, use) HR_READ(opcode, 5, 2, read_indirect_y(low), use)
// ORA AND EOR ADC LDA CMP SBC
#define HR_ACCUMULATOR_GROUP(base, use)                                                                \
  HR_READ_INX(base + 0x01, use) HR_READ_ZP(base + 0x05, use) HR_IMMEDIATE(base + 0x09, use)            \
  HR_READ_ABS(base + 0x0D, use) HR_READ_INY(base + 0x11, use) HR_READ_ZPX(base + 0x15, use)            \
  HR_READ_ABY(base + 0x19, use) HR_READ_ABX(base + 0x1D, use)

#define HR_STORE(opcode, base_cycles, length, address, value) \
  case opcode: {                                              \
    pc += length - 1;                                         \
    cycle += base_cycles;                                     \
    write(address, value);                                    \
    break;                                                    \
  }
#define HR_STORE_ZP(opcode, value) \
  case opcode:                     \
    pc += 1;                       \
    cycle += 3;                    \
    write_zero_page(low, value);   \
    break;
#define HR_STORE_INDEXED(opcode, base_cycles, length, base, index, value) \
  case opcode: {                                                          \
    pc += length - 1;                                                     \
    cycle += base_cycles;                                                 \
    const uint32_t address = ((base) + index) & 0xFFFF;                   \
    const uint32_t high = ((address >> 8) + 1) & 0xFF;                    \
    (void)high;                                                           \
    write(address, value);                                                \
    break;                                                                \
  }

// Read, modify and write: `modify` computes the new value from m.
#define HR_MODIFY(opcode, base_cycles, length, address_expression, modify) \
  case opcode: {                                                           \
    pc += length - 1;                                                      \
    cycle += base_cycles;                                                  \
    uint32_t high = operand >> 8;                                          \
    const uint32_t address = (address_expression) & 0xFFFF;                \
    uint32_t m = read(address, high);                                      \
    modify;                                                                \
    write(address, m);                                                     \
    break;                                                                 \
  }
#define HR_MODIFY_ZP(opcode, modify)             \
  case opcode: {                                 \
    pc += 1;                                     \
    cycle += 5;                                  \
    uint32_t m = read_zero_page(low);            \
    modify;                                      \
    write_zero_page(low, m);                     \
    break;                                       \
  }
#define HR_SHIFT_GROUP(base, modify)                                                                \
  HR_MODIFY_ZP(base + 0x06, modify)                                                                 \
  HR_MODIFY(base + 0x0E, 6, 3, operand, modify)                                                     \
  HR_MODIFY(base + 0x16, 6, 2, (high = low, (low + x) & 0xFF), modify)                              \
  HR_MODIFY(base + 0x1E, 7, 3, operand + x, modify)
// The undocumented combinations of a modification and an operation on A.
#define HR_COMBINED_GROUP(base, modify)                                                             \
  HR_MODIFY(base + 0x03, 8, 2, pointer(low + x, high), modify)                                      \
  HR_MODIFY_ZP(base + 0x07, modify)                                                                 \
  HR_MODIFY(base + 0x0F, 6, 3, operand, modify)                                                     \
  HR_MODIFY(base + 0x13, 8, 2, pointer(low, high) + y, modify)                                      \
  HR_MODIFY(base + 0x17, 6, 2, (high = low, (low + x) & 0xFF), modify)                              \
  HR_MODIFY(base + 0x1B, 7, 3, operand + y, modify)                                                 \
  HR_MODIFY(base + 0x1F, 7, 3, operand + x, modify)

#define HR_IMPLIED(opcode, base_cycles, body) \
  case opcode:                                \
    cycle += base_cycles;                     \
    body;                                     \
    break;
#define HR_BRANCH(opcode, condition) \
  case opcode:                       \
    pc += 1;                         \
    cycle += 2;                      \
    branch(condition, low);          \
    break;
#define HR_JAM(opcode) case opcode:

HR_INLINE void Cpu::step() {
  const uint32_t word = fetch();
  const uint32_t operand = word >> 8, low = operand & 0xFF;
  pc = (pc + 1) & 0xFFFF;
  switch (word & 0xFF) {
    HR_ACCUMULATOR_GROUP(0x00, load(a, a | m))
    HR_ACCUMULATOR_GROUP(0x20, load(a, a & m))
    HR_ACCUMULATOR_GROUP(0x40, load(a, a ^ m))
    HR_ACCUMULATOR_GROUP(0x60, adc(m))
    HR_ACCUMULATOR_GROUP(0xA0, load(a, m))
    HR_ACCUMULATOR_GROUP(0xC0, compare(a, m))
    HR_ACCUMULATOR_GROUP(0xE0, sbc(m))
    HR_IMMEDIATE(0xEB, sbc(m))

    HR_IMMEDIATE(0xA2, load(x, m))
    HR_READ_ZP(0xA6, load(x, m))
    HR_READ_ABS(0xAE, load(x, m))
    HR_READ_ZPY(0xB6, load(x, m))
    HR_READ_ABY(0xBE, load(x, m))
    HR_IMMEDIATE(0xA0, load(y, m))
    HR_READ_ZP(0xA4, load(y, m))
    HR_READ_ABS(0xAC, load(y, m))
    HR_READ_ZPX(0xB4, load(y, m))
    HR_READ_ABX(0xBC, load(y, m))
    HR_IMMEDIATE(0xE0, compare(x, m))
    HR_READ_ZP(0xE4, compare(x, m))
    HR_READ_ABS(0xEC, compare(x, m))
    HR_IMMEDIATE(0xC0, compare(y, m))
    HR_READ_ZP(0xC4, compare(y, m))
    HR_READ_ABS(0xCC, compare(y, m))
    HR_READ_ZP(0x24, bit(m))
    HR_READ_ABS(0x2C, bit(m))

    HR_STORE_ZP(0x85, a)
    HR_STORE(0x8D, 4, 3, operand, a)
    HR_STORE(0x95, 4, 2, (low + x) & 0xFF, a)
    HR_STORE(0x9D, 5, 3, (operand + x) & 0xFFFF, a)
    HR_STORE(0x99, 5, 3, (operand + y) & 0xFFFF, a)
    case 0x81: {
      pc += 1;
      cycle += 6;
      uint32_t high;
      write(pointer(low + x, high), a);
      break;
    }
    case 0x91: {
      pc += 1;
      cycle += 6;
      uint32_t high;
      write((pointer(low, high) + y) & 0xFFFF, a);
      break;
    }
    HR_STORE_ZP(0x86, x)
    HR_STORE(0x8E, 4, 3, operand, x)
    HR_STORE(0x96, 4, 2, (low + y) & 0xFF, x)
    HR_STORE_ZP(0x84, y)
    HR_STORE(0x8C, 4, 3, operand, y)
    HR_STORE(0x94, 4, 2, (low + x) & 0xFF, y)

    HR_SHIFT_GROUP(0x00, m = asl(m))
    HR_SHIFT_GROUP(0x20, m = rol(m))
    HR_SHIFT_GROUP(0x40, m = lsr(m))
    HR_SHIFT_GROUP(0x60, m = ror(m))
    HR_SHIFT_GROUP(0xC0, m = dec(m))
    HR_SHIFT_GROUP(0xE0, m = inc(m))
    HR_IMPLIED(0x0A, 2, a = asl(a))
    HR_IMPLIED(0x2A, 2, a = rol(a))
    HR_IMPLIED(0x4A, 2, a = lsr(a))
    HR_IMPLIED(0x6A, 2, a = ror(a))

    HR_BRANCH(0x10, !(nz & 0x8080))
    HR_BRANCH(0x30, nz & 0x8080)
    HR_BRANCH(0x50, !overflow)
    HR_BRANCH(0x70, overflow)
    HR_BRANCH(0x90, !carry)
    HR_BRANCH(0xB0, carry)
    HR_BRANCH(0xD0, nz & 0xFF)
    HR_BRANCH(0xF0, !(nz & 0xFF))

    HR_IMPLIED(0x18, 2, carry = 0)
    HR_IMPLIED(0x38, 2, carry = 1)
    HR_IMPLIED(0x58, 2, interrupt_disable = 0)
    HR_IMPLIED(0x78, 2, interrupt_disable = 1)
    HR_IMPLIED(0xB8, 2, overflow = 0)
    HR_IMPLIED(0xD8, 2, decimal = 0)
    HR_IMPLIED(0xF8, 2, decimal = 1)
    HR_IMPLIED(0xAA, 2, load(x, a))
    HR_IMPLIED(0xA8, 2, load(y, a))
    HR_IMPLIED(0x8A, 2, load(a, x))
    HR_IMPLIED(0x98, 2, load(a, y))
    HR_IMPLIED(0xBA, 2, load(x, sp))
    HR_IMPLIED(0x9A, 2, sp = x)
    HR_IMPLIED(0xCA, 2, x = dec(x))
    HR_IMPLIED(0x88, 2, y = dec(y))
    HR_IMPLIED(0xE8, 2, x = inc(x))
    HR_IMPLIED(0xC8, 2, y = inc(y))
    HR_IMPLIED(0x48, 3, push(a))
    HR_IMPLIED(0x08, 3, push(flags()))
    HR_IMPLIED(0x68, 4, load(a, pull()))
    HR_IMPLIED(0x28, 4, set_flags(pull()))

    case 0x4C:
      cycle += 3;
      pc = operand;
      break;
    case 0x6C: {
      // The pointer's high byte is taken from the same page.
      pc += 2;
      cycle += 5;
      const uint32_t target_low = read(operand, operand >> 8);
      pc = target_low | read((operand & 0xFF00) | ((operand + 1) & 0xFF), target_low) << 8;
      break;
    }
    case 0x20:
      cycle += 6;
      pc += 1;
      push(pc >> 8);
      push(pc, true);
      pc = operand;
      break;
    case 0x60: {
      cycle += 6;
      const uint32_t return_low = pull();
      pc = ((return_low | pull() << 8) + 1) & 0xFFFF;
      break;
    }
    case 0x40: {
      cycle += 6;
      set_flags(pull());
      const uint32_t return_low = pull();
      pc = return_low | pull() << 8;
      break;
    }
    case 0x00:
      cycle += 7;
      read(pc & 0xFFFF, 0);
      pc += 1;
      push(pc >> 8);
      push(pc, true);
      push(flags(), true);
      interrupt_disable = 1;
      pc = read(0xFFFE, flags());
      pc |= read(0xFFFF, pc) << 8;
      break;

    // Undocumented.
    HR_COMBINED_GROUP(0x00, (m = asl(m), load(a, a | m)))
    HR_COMBINED_GROUP(0x20, (m = rol(m), load(a, a & m)))
    HR_COMBINED_GROUP(0x40, (m = lsr(m), load(a, a ^ m)))
    HR_COMBINED_GROUP(0x60, (m = ror(m), adc(m)))
    HR_COMBINED_GROUP(0xC0, (m = dec(m), compare(a, m)))
    HR_COMBINED_GROUP(0xE0, (m = inc(m), sbc(m)))
    HR_READ_INX(0xA3, (load(a, m), x = a))
    HR_READ_ZP(0xA7, (load(a, m), x = a))
    HR_READ_ABS(0xAF, (load(a, m), x = a))
    HR_READ_INY(0xB3, (load(a, m), x = a))
    HR_READ_ZPY(0xB7, (load(a, m), x = a))
    HR_READ_ABY(0xBF, (load(a, m), x = a))
    HR_READ_ABY(0xBB, (load(a, m & sp), x = sp = a))
    HR_STORE_ZP(0x87, a & x)
    HR_STORE(0x8F, 4, 3, operand, a & x)
    HR_STORE(0x97, 4, 2, (low + y) & 0xFF, a & x)
    case 0x83: {
      pc += 1;
      cycle += 6;
      uint32_t high;
      write(pointer(low + x, high), a & x);
      break;
    }
    case 0x93: {
      pc += 1;
      cycle += 6;
      uint32_t high;
      const uint32_t address = (pointer(low, high) + y) & 0xFFFF;
      write(address, a & x & ((address >> 8) + 1));
      break;
    }
    HR_STORE_INDEXED(0x9F, 5, 3, operand, y, a & x & high)
    HR_STORE_INDEXED(0x9E, 5, 3, operand, y, x & high)
    HR_STORE_INDEXED(0x9C, 5, 3, operand, x, y & high)
    HR_STORE_INDEXED(0x9B, 5, 3, operand, y, (sp = a & x) & high)
    HR_IMMEDIATE(0x0B, (load(a, a & m), carry = a >> 7))
    HR_IMMEDIATE(0x2B, (load(a, a & m), carry = a >> 7))
    HR_IMMEDIATE(0x4B, a = lsr(a & m))
    HR_IMMEDIATE(0x6B, arr(m))
    HR_IMMEDIATE(0x8B, load(a, (a | 0xEE) & x & m))
    HR_IMMEDIATE(0xAB, (load(a, (a | 0xEE) & m), x = a))
    HR_IMMEDIATE(0xCB, (carry = (a & x) >= m, load(x, (a & x) - m)))

    HR_IMPLIED(0xEA, 2, )
    HR_IMPLIED(0x1A, 2, )
    HR_IMPLIED(0x3A, 2, )
    HR_IMPLIED(0x5A, 2, )
    HR_IMPLIED(0x7A, 2, )
    HR_IMPLIED(0xDA, 2, )
    HR_IMPLIED(0xFA, 2, )
    HR_IMMEDIATE(0x80, (void)m)
    HR_IMMEDIATE(0x82, (void)m)
    HR_IMMEDIATE(0x89, (void)m)
    HR_IMMEDIATE(0xC2, (void)m)
    HR_IMMEDIATE(0xE2, (void)m)
    HR_READ_ZP(0x04, (void)m)
    HR_READ_ZP(0x44, (void)m)
    HR_READ_ZP(0x64, (void)m)
    HR_READ_ZPX(0x14, (void)m)
    HR_READ_ZPX(0x34, (void)m)
    HR_READ_ZPX(0x54, (void)m)
    HR_READ_ZPX(0x74, (void)m)
    HR_READ_ZPX(0xD4, (void)m)
    HR_READ_ZPX(0xF4, (void)m)
    HR_READ_ABS(0x0C, (void)m)
    HR_READ_ABX(0x1C, (void)m)
    HR_READ_ABX(0x3C, (void)m)
    HR_READ_ABX(0x5C, (void)m)
    HR_READ_ABX(0x7C, (void)m)
    HR_READ_ABX(0xDC, (void)m)
    HR_READ_ABX(0xFC, (void)m)

    HR_JAM(0x02) HR_JAM(0x12) HR_JAM(0x22) HR_JAM(0x32) HR_JAM(0x42) HR_JAM(0x52)
    HR_JAM(0x62) HR_JAM(0x72) HR_JAM(0x92) HR_JAM(0xB2) HR_JAM(0xD2) HR_JAM(0xF2)
      s.jammed = true;
      break;
  }
  pc &= 0xFFFF;
  }

#undef HR_READ
#undef HR_IMMEDIATE
#undef HR_READ_ZP
#undef HR_READ_ZPX
#undef HR_READ_ZPY
#undef HR_READ_ABS
#undef HR_READ_ABX
#undef HR_READ_ABY
#undef HR_READ_INX
#undef HR_READ_INY
#undef HR_ACCUMULATOR_GROUP
#undef HR_STORE
#undef HR_STORE_ZP
#undef HR_STORE_INDEXED
#undef HR_MODIFY
#undef HR_MODIFY_ZP
#undef HR_SHIFT_GROUP
#undef HR_COMBINED_GROUP
#undef HR_IMPLIED
#undef HR_BRANCH
#undef HR_JAM

// Executes one instruction; the console's registers are in memory before and after.
HR_NOINLINE void step_instruction(Console& s, const Frame& frame) {
  Cpu cpu(s, frame);
  cpu.step();
  cpu.store();
}

}  // namespace headrace::atari

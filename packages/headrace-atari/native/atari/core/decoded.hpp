// Decoded instructions, as the decoded interpreter (run_loop.hpp) executes them: a handler and its operand for every address
// of a ROM. An instruction that has no handler of its own, because it is rare or can switch a bank, decodes to kStep: the
// complete interpreter (cpu.hpp) executes it. host/decode.hpp decodes a ROM when it is loaded.
#pragma once

#include "mapper.hpp"
#include "platform.hpp"

namespace headrace::atari {

// clang-format off
// Handlers by operation and kind of operand: Imm; Ram, Tia (zero page); ZpX, ZpY (zero page indexed);
// Abs, AbsX, AbsY (absolute); IndX, IndY (through a zero page pointer in RAM).
#define HR_ALU_HANDLERS(X, kind) X(Ora##kind) X(And##kind) X(Eor##kind) X(Adc##kind) X(Lda##kind) X(Cmp##kind) X(Sbc##kind)
#define HR_HANDLERS(X)                                                                                             \
  X(Step)                                                                                                          \
  HR_ALU_HANDLERS(X, Imm) HR_ALU_HANDLERS(X, Ram) HR_ALU_HANDLERS(X, ZpX) HR_ALU_HANDLERS(X, Abs)                  \
  HR_ALU_HANDLERS(X, AbsX) HR_ALU_HANDLERS(X, AbsY) HR_ALU_HANDLERS(X, IndY) HR_ALU_HANDLERS(X, IndX)             \
  HR_ALU_HANDLERS(X, Tia)                                                                                          \
  X(LdxImm) X(LdxRam) X(LdxAbs) X(LdxAbsY) X(LdxZpY) X(LdyImm) X(LdyRam) X(LdyZpX) X(LdyAbs) X(LdyAbsX)                      \
  X(CpxImm) X(CpxRam) X(CpyImm) X(CpyRam) X(BitRam) X(BitAbs)                                                      \
  X(LdxTia) X(LdyTia) X(BitTia) X(LdaTimer) X(LdxTimer) X(LdyTimer)                                                \
  X(StaRam) X(StxRam) X(StyRam) X(StaTia) X(StxTia) X(StyTia) X(StaTiaAbs) X(StxTiaAbs) X(StyTiaAbs)               \
  X(StaColor) X(StxColor) X(StyColor) X(StaGrp) X(StxGrp) X(StyGrp) X(StaPf) X(StxPf) X(StyPf)                     \
  X(StaZpX) X(StyZpX) X(StxZpY) X(StaAbsX) X(StaAbsY) X(StaIndY) X(Wsync)                                          \
  X(IncRam) X(DecRam) X(AslRam) X(LsrRam) X(RolRam) X(RorRam) X(IncZpX) X(DecZpX)                                  \
  X(AslA) X(LsrA) X(RolA) X(RorA)                                                                                  \
  X(Bpl) X(Bmi) X(Bvc) X(Bvs) X(Bcc) X(Bcs) X(Bne) X(Beq)                                                          \
  X(Clc) X(Sec) X(Clv) X(Cld) X(Sed) X(Tax) X(Tay) X(Txa) X(Tya) X(Tsx) X(Txs) X(Inx) X(Dex) X(Iny) X(Dey) X(Nop)  \
  X(Pha) X(Php) X(Pla) X(Plp) X(Jmp) X(JmpInd) X(Jsr) X(Rts)
// clang-format on

enum Handler : uint8_t {
#define HR_ENUMERATOR(name) k##name,
  HR_HANDLERS(HR_ENUMERATOR)
#undef HR_ENUMERATOR
      kHandlers
};

// Bits 0..7: the handler. Bits 16..31: its operand, which is a byte, an absolute address, the index of a byte in RAM, a TIA
// register, or a signed displacement. Bits 8..15: for a branch, the additional cycles when it is taken; for a load of the
// timer, the opcode of the branch that follows and leads back to the load, or 0 if there is none.
using Decoded = uint32_t;

HR_HD constexpr Decoded make_decoded(uint8_t handler, uint8_t extra, uint16_t operand) {
  return handler | static_cast<uint32_t>(extra) << 8 | static_cast<uint32_t>(operand) << 16;
}

HR_INLINE int instruction_length(uint32_t opcode) {
  if (opcode == 0x20) return 3;
  switch (opcode & 0x1F) {
    case 0x00: return opcode & 0x80 ? 2 : 1;
    case 0x08: case 0x0A: case 0x12: case 0x18: case 0x1A: return 1;
    case 0x02: return opcode & 0x80 ? 2 : 1;
    case 0x0C: case 0x0D: case 0x0E: case 0x0F: case 0x19: case 0x1B: case 0x1C: case 0x1D: case 0x1E: case 0x1F:
      return 3;
    default: return 2;
  }
}

// Offsets within 4K at which an access reads ROM and has no side effect: plain_from(mapper) <= offset < plain_to(mapper).
HR_HD constexpr uint32_t plain_from(Mapper mapper) {
  return mapper == Mapper::kDPC ? 0x80 : has_superchip(mapper) ? 0x100 : 0;
}
HR_HD constexpr uint32_t plain_to(Mapper mapper) {
  switch (mapper) {
    case Mapper::kE0: return 0xFE0;
    case Mapper::kDPC: return 0xFC0;
    case Mapper::kF6: case Mapper::kF6SC: return 0xFF6;
    case Mapper::kF8: case Mapper::kF8SC: return 0xFF8;
    default: return 0x1000;
  }
}

}  // namespace headrace::atari

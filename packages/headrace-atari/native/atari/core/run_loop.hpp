// The decoded interpreter: executes decoded instructions until the frame ends.
//
// Instructions and cycles are counted in one 64-bit number. The limit of instructions is checked only where control is
// transferred, and some thousand instructions early; the last ones are left to the complete interpreter.
#pragma once

#include "cpu.hpp"
#include "decoded.hpp"
#include "loop_macros.hpp"
#include "platform.hpp"

namespace headrace::atari {

inline constexpr int32_t kFrameInstructions = 25000;
// Between two transfers of control no more than a window of ROM can run, 4096 instructions.
inline constexpr int32_t kWatchedInstructions = kFrameInstructions - 5000;

// The count of instructions stands above the cycles, which run_frame keeps well below 2^30.
inline constexpr int kCountShift = 30;
inline constexpr uint64_t kCount = 1ull << kCountShift;  // one instruction

// How the ROM is seen through a mapper.
template <Mapper M>
struct RomView {
  static constexpr uint32_t kPlainFrom = plain_from(M), kPlainTo = plain_to(M);
  static HR_INLINE bool plain(uint32_t address) {
    return (address & 0x1000) && (address & 0xFFF) - kPlainFrom < kPlainTo - kPlainFrom;
  }
  // Offset in the image.
  static HR_INLINE uint32_t offset(const Console& s, uint32_t address) {
    if constexpr (M == Mapper::kE0) return static_cast<uint32_t>(s.slice[address >> 10 & 3]) << 10 | (address & 0x3FF);
    else if constexpr (M == Mapper::kFE) return (address & 0x2000 ? 0 : 4096) + (address & 0xFFF);
    else if constexpr (M == Mapper::k4K) return address & 0xFFF;
    else return s.bank + (address & 0xFFF);
  }
  // Within a window of this size, successive addresses are successive bytes of the image.
  static constexpr uint32_t kWindow = M == Mapper::kE0 ? 1024 : 4096;
};

// A load from TIA or RIOT, or from RAM.
HR_NOINLINE uint32_t read_port(Console& s, const Frame& frame, uint32_t address, uint32_t bus, int32_t cycle) {
  const uint16_t at = static_cast<uint16_t>(address);
  if (!(at & 0x80)) return read_tia(s, frame, at, static_cast<uint8_t>(bus), cycle);
  return at & 0x200 ? read_riot(s, *frame.input, at, cycle) : s.ram[at & 0x7F];
}

HR_INLINE bool is_ram(uint32_t address) { return (address & 0x1280) == 0x80; }

// Waiting for the timer: a load of INTIM and a branch back to the load. Returns how many repetitions can be skipped: all but the
// last of those whose load certainly gives a value for which the branch is taken. `branch`: its opcode, or 0 for none.
inline constexpr uint32_t kPollingCycles = 4 + 3;
HR_INLINE uint32_t polls_to_skip(const Console& s, uint8_t branch, int32_t cycle) {
  if (!branch) return 0;
  const TimerValue now = timer_value(s, cycle);
  // The lowest value of the timer for which the branch is taken.
  const int32_t lowest = branch == 0xD0 ? 1 : branch == 0x30 ? 128 : 0;
  if (now.remaining < lowest || (branch == 0x10 && now.remaining > 127)) return 0;
  const uint32_t last = ((static_cast<uint32_t>(s.timer) - lowest) << s.timer_shift) - 1;
  return (last - now.elapsed) / kPollingCycles;
}

// Executes at most a frame. The console's registers are in memory before and after.
template <Mapper M>
HR_NOINLINE void run_loop(Console& s, const Frame& frame) {
#ifdef HR_COMPUTED_GOTO
  static const void* const labels[] = {
#define HR_LABEL(name) &&name##_,
      HR_HANDLERS(HR_LABEL)
#undef HR_LABEL
  };
#endif
  constexpr uint64_t watched = static_cast<uint64_t>(kWatchedInstructions) << kCountShift;
  const Decoded* const decoded = frame.cartridge->decoded;
  const uint8_t* const rom = frame.cartridge->rom;
  const Decoded *ip, *window;  // the next instruction; the one at address `high`
  Decoded code;
  uint32_t high, reg, a, x, y, sp, nz, carry, overflow, decimal, value;
  uint64_t clock = static_cast<uint64_t>(s.cycle);

  goto load_registers;

step: HR_COLD_LABEL
  // The complete interpreter executes one instruction, and more while code runs outside the ROM or near the limit.
  HR_STORE_REGISTERS
step_stored:
  do {
    step_instruction(s, frame);
    clock = (clock & ~(kCount - 1)) + kCount + static_cast<uint32_t>(s.cycle);
    if (s.frame_complete || s.jammed || clock >= static_cast<uint64_t>(kFrameInstructions) << kCountShift) return;
  } while (!(s.pc & 0x1000) || clock >= watched);
load_registers:
  if (HR_UNLIKELY(!(s.pc & 0x1000))) goto step_stored;
  HR_GO_TO(s.pc)
  a = s.a;
  x = s.x;
  y = s.y;
  sp = s.sp;
  nz = s.nz;
  carry = s.carry;
  overflow = s.overflow;
  decimal = s.decimal;
  goto dispatch;

push:
  if (HR_LIKELY(sp & 0x80)) {
    HR_RAM(sp & 0x7F) = static_cast<uint8_t>(value);
    sp = (sp - 1) & 0xFF;
    HR_NEXT(1, 3)
  }
  reg = sp & 63;
  if (is_special_register(reg)) goto step;
  sp = (sp - 1) & 0xFF;
  ++ip;
  clock += kCount + 3;
  goto store_tia;

store_color:
  if (HR_UNLIKELY(HR_CYCLE >= frame.limit_cycle)) goto store_tia;
  write_color(s, frame, static_cast<int>(reg - 6), static_cast<uint8_t>(value), 3 * HR_CYCLE);
  goto dispatch;

store_grp:
  if (HR_UNLIKELY(HR_CYCLE >= frame.limit_cycle)) goto store_tia;
  if (reg == 0x1B) write_grp(s, frame, 0, static_cast<uint8_t>(value), 3 * HR_CYCLE);
  else write_grp(s, frame, 1, static_cast<uint8_t>(value), 3 * HR_CYCLE);
  goto dispatch;

store_playfield:
  if (HR_UNLIKELY(HR_CYCLE >= frame.limit_cycle)) goto store_tia;
  write_playfield(s, frame, static_cast<int>(reg), static_cast<uint8_t>(value), 3 * HR_CYCLE);
  goto dispatch;

store_tia:
  write_tia(s, frame, static_cast<int>(reg), static_cast<uint8_t>(value), HR_CYCLE);
  if (HR_UNLIKELY(s.frame_complete)) {
    HR_STORE_REGISTERS
    return;
  }
  goto dispatch;

transferred:
  if (HR_UNLIKELY(clock >= watched)) goto step;

dispatch:
#ifdef HR_COMPUTED_GOTO
  HR_DISPATCH
#else
  code = *ip;
  switch (code & 0xFF) {
#endif
  HR_CASE(Step) { goto step; }

  HR_ALU_FORMS(Ora, HR_ORA)
  HR_ALU_FORMS(And, HR_AND)
  HR_ALU_FORMS(Eor, HR_EOR)
  HR_ALU_FORMS(Adc, HR_ADC)
  HR_ALU_FORMS(Lda, HR_LDA)
  HR_ALU_FORMS(Cmp, HR_CMP)
  HR_ALU_FORMS(Sbc, HR_SBC)
  HR_IMM(LdxImm, HR_LDX)
  HR_FROM_RAM(LdxRam, HR_LDX)
  HR_FROM_MEMORY(LdxAbs, HR_LDX)
  HR_INDEXED_MEMORY(LdxAbsY, y, HR_LDX)
  HR_INDEXED_RAM(LdxZpY, y, HR_LDX)
  HR_IMM(LdyImm, HR_LDY)
  HR_FROM_RAM(LdyRam, HR_LDY)
  HR_INDEXED_RAM(LdyZpX, x, HR_LDY)
  HR_FROM_MEMORY(LdyAbs, HR_LDY)
  HR_INDEXED_MEMORY(LdyAbsX, x, HR_LDY)
  HR_IMM(CpxImm, HR_CPX)
  HR_FROM_RAM(CpxRam, HR_CPX)
  HR_IMM(CpyImm, HR_CPY)
  HR_FROM_RAM(CpyRam, HR_CPY)
  HR_FROM_RAM(BitRam, HR_BIT)
  HR_FROM_MEMORY(BitAbs, HR_BIT)
  HR_FROM_TIA(LdxTia, HR_LDX)
  HR_FROM_TIA(LdyTia, HR_LDY)
  HR_FROM_TIA(BitTia, HR_BIT)
  HR_FROM_TIMER(LdaTimer, a)
  HR_FROM_TIMER(LdxTimer, x)
  HR_FROM_TIMER(LdyTimer, y)

  HR_STORE_FORMS(Sta, a)
  HR_STORE_FORMS(Stx, x)
  HR_STORE_FORMS(Sty, y)
  HR_TO_INDEXED(StaZpX, a, x)
  HR_TO_INDEXED(StyZpX, y, x)
  HR_TO_INDEXED(StxZpY, x, y)
  HR_TO_MEMORY(StaAbsX, a, HR_OPERAND + x, 3, 5)
  HR_TO_MEMORY(StaAbsY, a, HR_OPERAND + y, 3, 5)
  HR_TO_MEMORY(StaIndY, a, HR_RAM(HR_OPERAND) + (HR_RAM(HR_OPERAND + 1) << 8) + y, 2, 6)
  HR_CASE(Wsync) {
    const int32_t cycle = HR_CYCLE + 3;
    if (HR_UNLIKELY(cycle >= frame.limit_cycle)) goto step;
    note_access(s, 3 * cycle);
    HR_NEXT(2, 3 + (kLineCycles - cycle % kLineCycles) % kLineCycles)
  }

  HR_MODIFY_RAM(IncRam, m = (m + 1) & 0xFF)
  HR_MODIFY_RAM(DecRam, m = (m - 1) & 0xFF)
  HR_MODIFY_RAM(AslRam, HR_ASL(m))
  HR_MODIFY_RAM(LsrRam, HR_LSR(m))
  HR_MODIFY_RAM(RolRam, HR_ROL(m))
  HR_MODIFY_RAM(RorRam, HR_ROR(m))
  HR_MODIFY_INDEXED(IncZpX, m = (m + 1) & 0xFF)
  HR_MODIFY_INDEXED(DecZpX, m = (m - 1) & 0xFF)
  HR_IMPLIED(AslA, 2, HR_ASL(a) nz = a)
  HR_IMPLIED(LsrA, 2, HR_LSR(a) nz = a)
  HR_IMPLIED(RolA, 2, HR_ROL(a) nz = a)
  HR_IMPLIED(RorA, 2, HR_ROR(a) nz = a)

  HR_BRANCH(Bpl, !(nz & 0x8080))
  HR_BRANCH(Bmi, nz & 0x8080)
  HR_BRANCH(Bvc, !overflow)
  HR_BRANCH(Bvs, overflow)
  HR_BRANCH(Bcc, !carry)
  HR_BRANCH(Bcs, carry)
  HR_BRANCH(Bne, nz & 0xFF)
  HR_BRANCH(Beq, !(nz & 0xFF))

  HR_IMPLIED(Clc, 2, carry = 0)
  HR_IMPLIED(Sec, 2, carry = 1)
  HR_IMPLIED(Clv, 2, overflow = 0)
  HR_IMPLIED(Cld, 2, decimal = 0)
  HR_IMPLIED(Sed, 2, decimal = 1)
  HR_IMPLIED(Tax, 2, x = nz = a)
  HR_IMPLIED(Tay, 2, y = nz = a)
  HR_IMPLIED(Txa, 2, a = nz = x)
  HR_IMPLIED(Tya, 2, a = nz = y)
  HR_IMPLIED(Tsx, 2, x = nz = sp)
  HR_IMPLIED(Txs, 2, sp = x)
  HR_IMPLIED(Inx, 2, x = nz = (x + 1) & 0xFF)
  HR_IMPLIED(Dex, 2, x = nz = (x - 1) & 0xFF)
  HR_IMPLIED(Iny, 2, y = nz = (y + 1) & 0xFF)
  HR_IMPLIED(Dey, 2, y = nz = (y - 1) & 0xFF)
  HR_IMPLIED(Nop, 2, )

  // The stack pointer may point into the TIA: some programs push to write its registers.
  HR_CASE(Php) {
    value = processor_flags(nz, carry, overflow, decimal, s.interrupt_disable);
    goto push;
  }
  HR_CASE(Pha) {
    value = a;
    goto push;
  }
  HR_CASE(Pla) {
    const uint32_t before = sp;
    sp = (sp + 1) & 0xFF;
    if (HR_LIKELY(sp & 0x80)) a = HR_RAM(sp & 0x7F);
    else a = read_tia(s, frame, static_cast<uint16_t>(sp), before & 0x80 ? HR_RAM(before & 0x7F) : 0, HR_CYCLE + 4);
    nz = a;
    HR_NEXT(1, 4)
  }
  HR_CASE(Plp) {
    if (HR_UNLIKELY(sp < 0x7F || sp == 0xFF)) goto step;
    ++sp;
    const uint32_t p = HR_RAM(sp & 0x7F);
    nz = (p & 0x80) << 8 | !(p & 2);
    overflow = p >> 6 & 1;
    decimal = p >> 3 & 1;
    s.interrupt_disable = p >> 2 & 1;
    carry = p & 1;
    HR_NEXT(1, 4)
  }
  HR_CASE(Jmp) {
    HR_GO_TO(HR_OPERAND)
    clock += kCount + 3;
    goto transferred;
  }
  HR_CASE(JmpInd) {
    // The pointer's high byte is taken from the same page.
    const uint32_t pointer = HR_OPERAND, pointer_high = (pointer & 0xFF00) | ((pointer + 1) & 0xFF);
    uint32_t target;
    if (is_ram(pointer) && is_ram(pointer_high)) target = HR_RAM(pointer & 0x7F) | HR_RAM(pointer_high & 0x7F) << 8;
    else if (RomView<M>::plain(pointer) && RomView<M>::plain(pointer_high)) target = HR_ROM(pointer) | HR_ROM(pointer_high) << 8;
    else goto step;
    if (HR_UNLIKELY(!(target & 0x1000))) goto step;
    HR_GO_TO(target)
    clock += kCount + 5;
    goto transferred;
  }
  HR_CASE(Jsr) {
    if (HR_UNLIKELY(sp < 0x81)) goto step;
    const uint32_t return_address = HR_PC + 2;
    HR_RAM(sp & 0x7F) = static_cast<uint8_t>(return_address >> 8);
    HR_RAM((sp - 1) & 0x7F) = static_cast<uint8_t>(return_address);
    sp -= 2;
    HR_GO_TO(HR_OPERAND)
    clock += kCount + 6;
    goto transferred;
  }
  HR_CASE(Rts) {
    if (HR_UNLIKELY(sp < 0x7F || sp > 0xFD)) goto step;
    const uint32_t target = (HR_RAM((sp + 1) & 0x7F) | HR_RAM((sp + 2) & 0x7F) << 8) + 1;
    if (HR_UNLIKELY(!(target & 0x1000) || target > 0xFFFF)) goto step;
    sp += 2;
    HR_GO_TO(target)
    clock += kCount + 6;
    goto transferred;
  }
#ifndef HR_COMPUTED_GOTO
  }
#endif
}

#include "loop_macros_end.hpp"

}  // namespace headrace::atari

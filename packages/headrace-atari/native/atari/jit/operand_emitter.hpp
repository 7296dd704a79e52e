// The middle layer of the translator from 6507 to x86-64: fetching operands, and what instructions do with them.
#pragma once

#include <cstdint>

#include "atari/jit/code_emitter.hpp"

namespace headrace::atari {

class OperandEmitter : protected CodeEmitter {
 protected:
  using CodeEmitter::CodeEmitter;

  // Where the operand of an instruction is: known while translating, in RIOT RAM, or in the host's register al.
  enum class From : uint8_t { kValue, kRam, kRax };
  struct Operand {
    From from;
    uint8_t value;  // or the index in RAM
  };

  // --- operands ---

  bool plain(uint32_t address) const {
    return (address & 0x1000) && (address & 0xFFF) >= plain_from(mapper_) && (address & 0xFFF) < plain_to(mapper_);
  }

  // Computes an indexed address in the zero page into rax, and sets the host's sign flag if it is in RAM, else it is the
  // TIA's. Both chips decode the page above alike, so the carry of the addition is of no interest.
  void zero_page_address(uint32_t base, Reg index) {
    out_.lea(rax, {index, static_cast<int32_t>(base & 0xFF)});
    out_.movzx8(rax, rax);
    out_.test8(rax, rax);
    known_.flags = false;
  }
  Operand fetch_zero_page(uint32_t base, Reg index, uint32_t bus) {
    zero_page_address(base, index);
    const Label back = slow_path(If::kNoSign, [this, bus] {
      out_.mov(rdx, rax);
      out_.alu(Alu::kOr, rdx, bus << 16);
      call_at(&translated::read_io, 4);
    });
    out_.movzx8(rax, ram_at(rax));
    out_.bind(back);
    known_.cycles += 4;
    return {From::kRax, 0};
  }
  void store_zero_page(Reg source, uint32_t base, Reg index, uint32_t length, int32_t cycles) {
    zero_page_address(base, index);
    const Label back = slow_path(If::kNoSign, [this, source, length, cycles] {
      out_.mov(rdx, source);
      out_.shift(Shift::kShl, rdx, 8);
      out_.alu(Alu::kOr, rdx, rax);
      call_at(&translated::write_zero_page_register, cycles);
      out_.test8(rax, rax);
      out_.jump(If::kEqual, step_instead());
      known_.cycles += cycles;
      leave_if_complete(pc_ + length);
    });
    out_.mov8(ram_at(rax), source);
    out_.bind(back);
    known_.cycles += cycles;
  }
  // Adds the cycle that indexing takes when it crosses a page.
  void cross_page(uint32_t base, Reg index) {
    if (!(base & 0xFF)) return;
    out_.lea(rcx, {index, static_cast<int32_t>(base & 0xFF)});
    out_.shift(Shift::kShr, rcx, 8);
    out_.alu(Alu::kAdd, kCycle, rcx);
    known_.flags = false;
  }

  Operand fetch_port(uint32_t address, uint32_t bus, int32_t cycles) {
    if (address & 0x80) {
      out_.mov(rdx, address | bus << 16);
      call_at(&translated::read_io, cycles);
    } else {
      out_.mov(rdx, bus);
      call_at(translated::read_table[address & 15], cycles);
    }
    known_.cycles += cycles;
    return {From::kRax, 0};
  }

  // Computes into rdx where in the host's memory the bank begins that is selected at `address`.
  void rom_base(uint32_t address) {
    const uint32_t segment = address >> 10 & 3;
    if (mapper_ == Mapper::kE0 && segment != 3 && !is_mapped(address)) {
      out_.movzx8(rdx, field(offsetof(Console, slice) + segment));
      out_.shift(Shift::kShl, rdx, 10);
      out_.mov64(rcx, cart_.rom);
      out_.alu64(Alu::kAdd, rdx, rcx);
    } else if (mapper_ == Mapper::kE0) {
      out_.mov64(rdx, cart_.rom + ((segment == 3 ? 7 : root_.slice) << 10));
    } else {
      out_.mov64(rdx, cart_.rom + image_offset(mapper_, root_, address & ~0xFFFu));
    }
  }
  uint32_t window_mask() const { return mapper_ == Mapper::kE0 ? 0x3FF : 0xFFF; }

  // Sets `fetched` and returns true, or returns false if the complete interpreter has to execute the instruction.
  bool fetch_absolute(uint32_t address, Operand& fetched) {
    if (plain(address)) {
      if (mapper_ != Mapper::kE0 || is_mapped(address)) {
        fetched = {From::kValue, cart_.rom[image_offset(mapper_, root_, address)]};
      } else {
        rom_base(address);
        out_.movzx8(rax, {rdx, static_cast<int32_t>(address & 0x3FF)});
        fetched = {From::kRax, 0};
        known_.flags = false;
      }
    } else if (is_ram(address)) {
      fetched = {From::kRam, static_cast<uint8_t>(address & 0x7F)};
    } else if (!(address & 0x1000)) {
      fetched = fetch_port(address, address >> 8, 4);
      return true;
    } else {
      return false;
    }
    known_.cycles += 4;
    return true;
  }

  bool fetch_indexed(uint32_t base, Reg index, Operand& fetched) {
    if (base < 0x100) {
      cross_page(base, index);
      fetched = fetch_zero_page(base, index, base >> 8);
      return true;
    }
    const uint32_t low = base & window_mask(), size = window_mask() + 1;
    if (!plain(base)) return false;
    const uint32_t start = base & 0xFFF & ~window_mask();
    const uint32_t to = plain_to(mapper_) - start < size ? plain_to(mapper_) - start : size;
    if (low + 255 >= to) {
      out_.lea(rax, {index, static_cast<int32_t>(low)});
      out_.alu(Alu::kCmp, rax, to);
      out_.jump(If::kAboveEqual, step_instead());
    }
    rom_base(base);
    cross_page(base, index);
    out_.movzx8(rax, {rdx, static_cast<int32_t>(low), index});
    known_.cycles += 4;
    known_.flags = false;
    fetched = {From::kRax, 0};
    return true;
  }

  // Addresses (zp),Y and (zp,X): computes the address into rcx, the cycle for crossing a page into rsi, and the pointer's high
  // byte into bits 8 to 15 of rdx.
  void indirect_y_address(uint32_t pointer) {
    out_.movzx8(rcx, ram(pointer));
    out_.movzx8(rdx, ram(pointer + 1));
    out_.alu(Alu::kAdd, rcx, kY);
    out_.mov(rsi, rcx);
    out_.shift(Shift::kShr, rsi, 8);
    out_.shift(Shift::kShl, rdx, 8);
    out_.alu(Alu::kAdd, rcx, rdx);
    known_.flags = false;
  }
  void indirect_x_address(uint32_t operand) {
    zero_page_address(operand, kX);
    out_.jump(If::kNoSign, step_instead());
    out_.alu8(Alu::kCmp, rax, 0xFF);
    out_.jump(If::kEqual, step_instead());
    out_.movzx8(rcx, ram_at(rax));
    out_.movzx8(rdx, ram_at(rax, 1));
    out_.shift(Shift::kShl, rdx, 8);
    out_.alu(Alu::kAdd, rcx, rdx);
    out_.alu(Alu::kXor, rsi, rsi);
  }
  Operand fetch_indirect(int32_t cycles) {
    out_.test(rcx, 0x1000);
    const Label back = slow_path(If::kEqual, [this, cycles] {
      const Label port = out_.label(), done = out_.label();
      out_.alu(Alu::kAdd, kCycle, rsi);
      out_.mov(rax, rcx);
      out_.alu(Alu::kAnd, rax, 0x280);
      out_.alu(Alu::kCmp, rax, 0x80);
      out_.jump(If::kNotEqual, port);
      out_.alu(Alu::kAnd, rcx, 0xFF);
      out_.movzx8(rax, ram_at(rcx));
      out_.jump(done);
      out_.bind(port);
      out_.shift(Shift::kShl, rdx, 8);
      out_.alu(Alu::kAnd, rcx, 0xFFFF);
      out_.alu(Alu::kOr, rdx, rcx);
      call_at(&translated::read_io, cycles);
      out_.bind(done);
    });
    if (mapper_ == Mapper::kFE) {
      out_.mov(rax, rcx);
      out_.shift(Shift::kShr, rax, 1);
      out_.alu(Alu::kAnd, rax, 0x1000);
      out_.alu(Alu::kXor, rax, 0x1000);
    }
    out_.alu(Alu::kAnd, rcx, 0xFFF);
    if (plain_from(mapper_)) {
      out_.alu(Alu::kCmp, rcx, plain_from(mapper_));
      out_.jump(If::kBelow, step_instead());
    }
    if (plain_to(mapper_) < 0x1000) {
      out_.alu(Alu::kCmp, rcx, plain_to(mapper_));
      out_.jump(If::kAboveEqual, step_instead());
    }
    if (mapper_ == Mapper::kE0) {
      out_.mov(rax, rcx);
      out_.shift(Shift::kShr, rax, 10);
      out_.movzx8(rax, {kS, static_cast<int32_t>(offsetof(Console, slice)), rax});
      out_.shift(Shift::kShl, rax, 10);
      out_.alu(Alu::kAnd, rcx, 0x3FF);
    }
    if (mapper_ == Mapper::kE0 || mapper_ == Mapper::kFE) {
      out_.alu(Alu::kAdd, rcx, rax);
      out_.mov64(rdx, cart_.rom);
    } else {
      out_.mov64(rdx, cart_.rom + image_offset(mapper_, root_, 0x1000));
    }
    out_.movzx8(rax, {rdx, 0, rcx});
    out_.alu(Alu::kAdd, kCycle, rsi);
    out_.bind(back);
    known_.cycles += cycles;
    return {From::kRax, 0};
  }

  // --- operations ---

  void load(Nz to, Operand operand) {
    const Reg reg = reg_of(to);
    if (operand.from == From::kValue) out_.mov(reg, uint32_t{operand.value});
    else if (operand.from == From::kRam) out_.movzx8(reg, ram(operand.value));
    else out_.mov(reg, rax);
    result_in(to, false);
  }

  void alu8(Alu what, Reg to, Operand operand) {
    if (operand.from == From::kValue) out_.alu8(what, to, operand.value);
    else if (operand.from == From::kRam) out_.alu8(what, to, ram(operand.value));
    else out_.alu8(what, to, rax);
  }

  void compare(Reg reg, Operand operand) {
    out_.mov(kNz, reg);
    alu8(Alu::kSub, kNz, operand);
    carry_from_host(If::kAboveEqual);
    result_in(Nz::kByte, true);
  }

  // In decimal mode the complete interpreter executes additions and subtractions. To be called before the operand is fetched.
  void require_binary() {
    if (known_.binary) return;
    out_.alu8(Alu::kCmp, HR_FIELD(decimal), 0);
    out_.jump(If::kNotEqual, step_instead());
    known_.binary = true;
    known_.flags = false;
  }
  void add(Operand operand) {
    if (known_.carry == Carry::kClear) {
      alu8(Alu::kAdd, kA, operand);
    } else {
      carry_to_host();
      alu8(Alu::kAdc, kA, operand);
    }
    carry_from_host();
    out_.set(If::kOverflow, HR_FIELD(overflow));
    result_in(Nz::kA, true);
  }
  void subtract(Operand operand) {
    if (known_.carry == Carry::kSet) {
      alu8(Alu::kSub, kA, operand);
    } else {
      if (known_.carry == Carry::kClear) out_.set_carry();
      else out_.alu8(Alu::kCmp, HR_FIELD(carry), 1);  // the host's borrow is the opposite of the 6507's carry
      alu8(Alu::kSbb, kA, operand);
    }
    carry_from_host(If::kAboveEqual);
    out_.set(If::kOverflow, HR_FIELD(overflow));
    result_in(Nz::kA, true);
  }
  void bit(Operand operand) {
    load_byte(rax, operand);
    out_.mov(rcx, rax);
    out_.shift(Shift::kShr, rcx, 6);
    out_.alu(Alu::kAnd, rcx, 1);
    out_.mov8(HR_FIELD(overflow), rcx);
    out_.mov(kNz, rax);
    out_.alu(Alu::kAnd, kNz, 0x80);
    out_.shift(Shift::kShl, kNz, 8);
    out_.alu(Alu::kXor, rcx, rcx);
    out_.test8(kA, rax);
    out_.set(If::kNotEqual, rcx);
    out_.alu(Alu::kOr, kNz, rcx);
    result_in(Nz::kWide, false);
  }
  void load_byte(Reg to, Operand operand) {
    if (operand.from == From::kValue) out_.mov(to, uint32_t{operand.value});
    else if (operand.from == From::kRam) out_.movzx8(to, ram(operand.value));
    else if (to != rax) out_.mov(to, rax);
  }

  enum class Modify : uint8_t { kInc, kDec, kAsl, kLsr, kRol, kRor };
  // Modifies the byte in `reg`. Reading the carry changes the host's flags, so that comes first.
  void modify(Modify what, Reg reg, Nz nz) {
    bool flags = true;
    switch (what) {
      case Modify::kInc: out_.inc8(reg); break;
      case Modify::kDec: out_.dec8(reg); break;
      case Modify::kAsl: out_.alu8(Alu::kAdd, reg, reg); break;
      case Modify::kLsr: out_.shift8(Shift::kShr, reg); break;
      case Modify::kRol:
        carry_to_host();
        out_.alu8(Alu::kAdc, reg, reg);
        break;
      case Modify::kRor:
        carry_to_host();
        out_.shift8(Shift::kRcr, reg);
        flags = false;
        break;
    }
    if (what >= Modify::kAsl) carry_from_host();
    result_in(nz, flags);
  }
};

}  // namespace headrace::atari

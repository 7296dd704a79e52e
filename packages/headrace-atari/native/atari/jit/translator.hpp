// The top layer of the translator from 6507 to x86-64: makes the machine code of one fragment of a program.
//
// The registers of the 6507 live in registers of the host, cycles are added up while translating, and flags stay in the host's
// flags if the next instruction is a branch on them. For rare cases the translated code is left, and the complete interpreter
// (core/cpu.hpp) executes one instruction. Time is checked only at jumps backwards; see translation.hpp.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "atari/jit/operand_emitter.hpp"

namespace headrace::atari {

class Translator : private OperandEmitter {
 public:
  struct Entry {
    uint32_t index, offset;  // index_of its pc; where its code is, from the beginning of this fragment
  };

  Translator(const CodeCache& cache, const Place& root, uint32_t at) : OperandEmitter(cache, root, at) {}

  // Translates everything that can be reached from the root without a bank switch and is not translated yet.
  void run() {
    find_leaders();
    for (const uint32_t leader : leaders_) labels_.push_back({leader, out_.label()});
    for (const uint32_t leader : leaders_) translate_block(leader);
    emit_slow_paths_and_exits();
    out_.link();
  }

  const std::vector<uint8_t>& code() const { return out_.code(); }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  // --- finding blocks: a leader is the address of a block's first instruction ---

  static uint32_t branch_target(uint32_t pc, Decoded code) {
    return (pc + 2 + static_cast<uint32_t>(static_cast<int32_t>(code) >> 16)) & 0xFFFF;
  }

  void find_leaders() {
    std::vector<uint32_t> open{root_.pc};
    while (!open.empty()) {
      uint32_t pc = open.back();
      open.pop_back();
      if (!is_mapped(pc) || is_translated(pc) || !leaders_.insert(pc).second) continue;
      for (bool first = true;; first = false) {
        if (!first && (leaders_.count(pc) || is_translated(pc))) break;
        const Decoded code = decoded(pc);
        const uint32_t next = pc + instruction_length(opcode(pc));
        const uint8_t what = handler(code);
        if (what >= kBpl && what <= kBeq) {
          open.push_back(branch_target(pc, code));
        } else if (what == kJmp || what == kJsr) {
          open.push_back(code >> 16);
          if (what == kJsr) open.push_back(next);
          break;
        } else if (what == kStep) {
          if (!transfers_control(opcode(pc)) && next <= 0xFFFF) open.push_back(next);
          break;
        } else if (what == kRts || what == kJmpInd) {
          break;
        }
        pc = next;
      }
    }
  }

  static bool transfers_control(uint8_t opcode) {
    switch (opcode) {
      case 0x00: case 0x20: case 0x40: case 0x4C: case 0x60: case 0x6C: return true;
      default: return (opcode & 0x1F) == 0x12 || (opcode & 0x9F) == 0x02;  // JAM
    }
  }

  void translate_block(uint32_t leader) {
    out_.bind(label_of(leader));
    if (handler(decoded(leader)) != kStep) entries_.push_back({index_of(mapper_, root_, leader), out_.here()});
    known_ = {};
    pc_ = leader;
    while (translate(decoded(pc_))) {
      pc_ += instruction_length(opcode(pc_));
      if (!leaders_.count(pc_) && !is_translated(pc_)) continue;
      write_back();
      const auto following = leaders_.upper_bound(leader);
      if (following == leaders_.end() || *following != pc_) go_to(pc_);
      return;
    }
  }

  // --- instructions. Each function returns whether the program can go on at the next address ---

  static constexpr int kAlus = 7;
  enum AluOp { kOra, kAnd, kEor, kAdc, kLda, kCmp, kSbc };
  enum Form { kFormImm, kFormRam, kFormZpX, kFormAbs, kFormAbsX, kFormAbsY, kFormIndY, kFormIndX, kFormTia, kFormZpY };

  bool translate(Decoded code) {
    const uint8_t what = handler(code);
    const uint32_t operand = code >> 16;
    if (what >= kOraImm && what <= kSbcTia) return alu_instruction(what, operand);
    if (what >= kBpl && what <= kBeq) return branch(what, code);
    switch (what) {
      case kLdxImm: return load_from(Nz::kX, kFormImm, operand);
      case kLdxRam: return load_from(Nz::kX, kFormRam, operand);
      case kLdxAbs: return load_from(Nz::kX, kFormAbs, operand);
      case kLdxAbsY: return load_from(Nz::kX, kFormAbsY, operand);
      case kLdxZpY: return load_from(Nz::kX, kFormZpY, operand);
      case kLdxTia: return load_from(Nz::kX, kFormTia, operand);
      case kLdyImm: return load_from(Nz::kY, kFormImm, operand);
      case kLdyRam: return load_from(Nz::kY, kFormRam, operand);
      case kLdyZpX: return load_from(Nz::kY, kFormZpX, operand);
      case kLdyAbs: return load_from(Nz::kY, kFormAbs, operand);
      case kLdyAbsX: return load_from(Nz::kY, kFormAbsX, operand);
      case kLdyTia: return load_from(Nz::kY, kFormTia, operand);
      case kCpxImm: return compare_with(kX, kFormImm, operand);
      case kCpxRam: return compare_with(kX, kFormRam, operand);
      case kCpyImm: return compare_with(kY, kFormImm, operand);
      case kCpyRam: return compare_with(kY, kFormRam, operand);
      case kBitRam: return test_bits(kFormRam, operand);
      case kBitAbs: return test_bits(kFormAbs, operand);
      case kBitTia: return test_bits(kFormTia, operand);
      case kLdaTimer: return load_timer(Nz::kA, code);
      case kLdxTimer: return load_timer(Nz::kX, code);
      case kLdyTimer: return load_timer(Nz::kY, code);
      case kStaRam: return store_ram(kA, operand);
      case kStxRam: return store_ram(kX, operand);
      case kStyRam: return store_ram(kY, operand);
      case kStaTia: case kStaColor: case kStaGrp: case kStaPf: return store_tia(kA, operand, 2, 3);
      case kStxTia: case kStxColor: case kStxGrp: case kStxPf: return store_tia(kX, operand, 2, 3);
      case kStyTia: case kStyColor: case kStyGrp: case kStyPf: return store_tia(kY, operand, 2, 3);
      case kStaTiaAbs: return store_tia(kA, operand, 3, 4);
      case kStxTiaAbs: return store_tia(kX, operand, 3, 4);
      case kStyTiaAbs: return store_tia(kY, operand, 3, 4);
      case kStaZpX: return store_indexed(kA, kX, operand);
      case kStyZpX: return store_indexed(kY, kX, operand);
      case kStxZpY: return store_indexed(kX, kY, operand);
      case kStaAbsX: return store_absolute(kX, operand);
      case kStaAbsY: return store_absolute(kY, operand);
      case kStaIndY: return store_indirect(operand);
      case kWsync: return wait_for_line_end();
      case kIncRam: return modify_ram(Modify::kInc, operand);
      case kDecRam: return modify_ram(Modify::kDec, operand);
      case kAslRam: return modify_ram(Modify::kAsl, operand);
      case kLsrRam: return modify_ram(Modify::kLsr, operand);
      case kRolRam: return modify_ram(Modify::kRol, operand);
      case kRorRam: return modify_ram(Modify::kRor, operand);
      case kIncZpX: return modify_indexed(Modify::kInc, operand);
      case kDecZpX: return modify_indexed(Modify::kDec, operand);
      case kAslA: return modify_register(Modify::kAsl, kA, Nz::kA);
      case kLsrA: return modify_register(Modify::kLsr, kA, Nz::kA);
      case kRolA: return modify_register(Modify::kRol, kA, Nz::kA);
      case kRorA: return modify_register(Modify::kRor, kA, Nz::kA);
      case kInx: return modify_register(Modify::kInc, kX, Nz::kX);
      case kDex: return modify_register(Modify::kDec, kX, Nz::kX);
      case kIny: return modify_register(Modify::kInc, kY, Nz::kY);
      case kDey: return modify_register(Modify::kDec, kY, Nz::kY);
      case kTax: return transfer(Nz::kX, kA);
      case kTay: return transfer(Nz::kY, kA);
      case kTxa: return transfer(Nz::kA, kX);
      case kTya: return transfer(Nz::kA, kY);
      case kTsx:
        out_.movzx8(kX, HR_FIELD(sp));
        result_in(Nz::kX, false);
        return implied(2);
      case kTxs: out_.mov8(HR_FIELD(sp), kX); return implied(2);
      case kClc: known_.carry = Carry::kClear; return implied(2);
      case kSec: known_.carry = Carry::kSet; return implied(2);
      case kClv: out_.mov8(HR_FIELD(overflow), 0); return implied(2);
      case kCld:
        out_.mov8(HR_FIELD(decimal), 0);
        known_.binary = true;
        return implied(2);
      case kSed:
        out_.mov8(HR_FIELD(decimal), 1);
        known_.binary = false;
        return implied(2);
      case kNop: return implied(2);
      case kPha: return push_a();
      case kPhp: return push_flags();
      case kPla: return pull_a();
      case kJmp: return jump(operand);
      case kJmpInd: return jump_indirect(operand);
      case kJsr: return call_subroutine(operand);
      case kRts: return return_from_subroutine();
      default: return store_riot() || step_here();
    }
  }

  bool implied(int32_t cycles) {
    known_.cycles += cycles;
    return true;
  }

  // Fetches the operand of an instruction that reads. Returns false if the complete interpreter has to execute it.
  bool fetch(Form form, uint32_t operand, Operand& fetched) {
    switch (form) {
      case kFormImm:
        fetched = {From::kValue, static_cast<uint8_t>(operand)};
        return implied(2);
      case kFormRam:
        fetched = {From::kRam, static_cast<uint8_t>(operand & 0x7F)};
        return implied(3);
      case kFormZpX:
        fetched = fetch_zero_page(operand, kX, operand);
        return true;
      case kFormZpY:
        fetched = fetch_zero_page(operand, kY, operand);
        return true;
      case kFormAbs: return fetch_absolute(operand, fetched);
      case kFormAbsX: return fetch_indexed(operand, kX, fetched);
      case kFormAbsY: return fetch_indexed(operand, kY, fetched);
      case kFormIndY:
        indirect_y_address(operand);
        fetched = fetch_indirect(5);
        return true;
      case kFormIndX:
        indirect_x_address(operand);
        fetched = fetch_indirect(6);
        return true;
      case kFormTia: fetched = fetch_port(operand, operand, 3); return true;
    }
    return false;
  }

  bool step_here() {
    leave(pc_, true);
    return false;
  }

  bool alu_instruction(uint8_t what, uint32_t operand) {
    const int op = (what - kOraImm) % kAlus;
    if (op == kAdc || op == kSbc) require_binary();
    Operand m;
    if (!fetch(static_cast<Form>((what - kOraImm) / kAlus), operand, m)) return step_here();
    switch (op) {
      case kOra: alu8(Alu::kOr, kA, m); result_in(Nz::kA, true); break;
      case kAnd: alu8(Alu::kAnd, kA, m); result_in(Nz::kA, true); break;
      case kEor: alu8(Alu::kXor, kA, m); result_in(Nz::kA, true); break;
      case kAdc: add(m); break;
      case kLda: load(Nz::kA, m); break;
      case kCmp: compare(kA, m); break;
      case kSbc: subtract(m); break;
    }
    return true;
  }
  bool load_from(Nz to, Form form, uint32_t operand) {
    Operand m;
    if (!fetch(form, operand, m)) return step_here();
    load(to, m);
    return true;
  }
  bool compare_with(Reg reg, Form form, uint32_t operand) {
    Operand m;
    if (!fetch(form, operand, m)) return step_here();
    compare(reg, m);
    return true;
  }
  bool test_bits(Form form, uint32_t operand) {
    Operand m;
    if (!fetch(form, operand, m)) return step_here();
    bit(m);
    return true;
  }
  bool load_timer(Nz to, Decoded code) {
    out_.mov(rdx, code >> 8 & 0xFF);
    call_at(&translated::poll_timer, 4);
    out_.mov64(rcx, rax);
    out_.shift64(Shift::kShr, rcx, 32);
    out_.alu(Alu::kAdd, kCycle, rcx);
    out_.mov(reg_of(to), rax);
    result_in(to, false);
    return implied(4);
  }

  bool store_ram(Reg source, uint32_t index) {
    out_.mov8(ram(index), source);
    return implied(3);
  }
  bool store_tia(Reg source, uint32_t reg, uint32_t length, int32_t cycles) {
    out_.mov(rdx, source);
    call_at(translated::write_table[reg], cycles);
    known_.cycles += cycles;
    leave_if_complete(pc_ + length);
    return true;
  }
  // STA, STX and STY of the timer, which decode to kStep.
  bool store_riot() {
    if (!plain(pc_) || !plain(pc_ + 2)) return false;
    const uint32_t address = opcode(pc_ + 1) | opcode(pc_ + 2) << 8;
    const uint8_t code = opcode(pc_);
    if ((code != 0x8C && code != 0x8D && code != 0x8E) || (address & 0x1280) != 0x280) return false;
    out_.mov(rdx, code == 0x8D ? kA : code == 0x8E ? kX : kY);
    out_.shift(Shift::kShl, rdx, 16);
    out_.alu(Alu::kOr, rdx, address);
    call_at(&translated::write_timer, 4);
    return implied(4);
  }
  bool store_indexed(Reg source, Reg index, uint32_t operand) {
    store_zero_page(source, operand, index, 2, 4);
    return true;
  }
  bool store_absolute(Reg index, uint32_t operand) {
    if (operand < 0x100) {
      store_zero_page(kA, operand, index, 3, 5);
      return true;
    }
    out_.lea(rax, {index, static_cast<int32_t>(operand)});
    store_at_rax();
    return implied(5);
  }
  bool store_indirect(uint32_t pointer) {
    indirect_y_address(pointer);
    out_.mov(rax, rcx);
    store_at_rax();
    return implied(6);
  }
  void store_at_rax() {
    out_.mov(rcx, rax);
    out_.alu(Alu::kAnd, rcx, 0x1280);
    out_.alu(Alu::kCmp, rcx, 0x80);
    out_.jump(If::kNotEqual, step_instead());
    out_.movzx8(rax, rax);
    out_.mov8(ram_at(rax), kA);
    known_.flags = false;
  }
  bool wait_for_line_end() {
    out_.lea(rax, {kCycle, known_.cycles + 3});
    out_.alu(Alu::kCmp, rax, kLimit);
    out_.jump(If::kGreaterEqual, step_instead());
    out_.lea(rcx, {rax, 0, rax, 2});
    out_.mov(rdx, HR_FIELD(last_access_clock));
    out_.alu(Alu::kCmp, rcx, rdx);
    out_.cmov(If::kLess, rcx, rdx);
    out_.mov(HR_FIELD(last_access_clock), rcx);
    // Round up to a multiple of 76. n / 76 is (n / 4) / 19, and 904203642 is 2^34 / 19 rounded up.
    static_assert(kLineCycles == 76);
    out_.lea(rcx, {rax, 75});
    out_.shift(Shift::kShr, rcx, 2);
    out_.imul64(rcx, rcx, 904203642);
    out_.shift64(Shift::kShr, rcx, 34);
    out_.imul(kCycle, rcx, 76);
    known_.cycles = 0;
    known_.flags = false;
    return true;
  }

  bool modify_ram(Modify what, uint32_t index) {
    out_.movzx8(kNz, ram(index));
    modify(what, kNz, Nz::kByte);
    out_.mov8(ram(index), kNz);
    return implied(5);
  }
  bool modify_indexed(Modify what, uint32_t operand) {
    zero_page_address(operand, kX);
    out_.jump(If::kNoSign, step_instead());
    out_.movzx8(kNz, ram_at(rax));
    modify(what, kNz, Nz::kByte);
    out_.mov8(ram_at(rax), kNz);
    return implied(6);
  }
  bool modify_register(Modify what, Reg reg, Nz nz) {
    modify(what, reg, nz);
    return implied(2);
  }
  bool transfer(Nz to, Reg from) {
    out_.mov(reg_of(to), from);
    result_in(to, false);
    return implied(2);
  }

  // The stack pointer may point into the TIA: some programs push to write its registers.
  bool push_with(bool (*push)(Console&, const Frame&, uint32_t, int32_t)) {
    call_at(push, 3);
    out_.test8(rax, rax);
    out_.jump(If::kEqual, step_instead());
    known_.cycles += 3;
    leave_if_complete(pc_ + 1);
    return true;
  }
  bool push_a() {
    out_.mov(rdx, kA);
    return push_with(&translated::push_a);
  }
  bool push_flags() {
    const int32_t cycles = known_.cycles;
    known_.cycles = 0;
    write_back();
    known_.cycles = cycles;
    out_.mov(rdx, kNz);
    return push_with(&translated::push_flags);
  }
  bool pull_a() {
    out_.movzx8(rax, HR_FIELD(sp));
    out_.alu(Alu::kAdd, rax, 1);
    out_.test8(rax, rax);
    const Label back = slow_path(If::kNoSign, [this] {
      call_at(&translated::pull, 4);
      out_.mov(kA, rax);
    });
    out_.mov8(HR_FIELD(sp), rax);
    out_.movzx8(kA, ram_at(rax));
    out_.bind(back);
    result_in(Nz::kA, false);
    return implied(4);
  }

  // --- transfers of control ---

  bool branch(uint8_t what, Decoded code) {
    const If condition = test(what);
    known_.cycles += 2;
    write_back();
    const Known here = known_;
    const Label not_taken = out_.label();
    out_.jump(opposite(condition), not_taken);
    out_.lea(kCycle, {kCycle, static_cast<int32_t>(code >> 8 & 0xFF)});
    transfer_to(branch_target(pc_, code));
    out_.bind(not_taken);
    known_ = here;
    return true;
  }

  bool jump(uint32_t target) {
    known_.cycles += 3;
    write_back();
    transfer_to(target);
    return false;
  }
  bool jump_indirect(uint32_t pointer) {
    const uint32_t pointer_high = (pointer & 0xFF00) | ((pointer + 1) & 0xFF);
    if (!is_ram(pointer) || !is_ram(pointer_high)) return step_here();
    out_.movzx8(rcx, ram(pointer & 0x7F));
    out_.movzx8(rdx, ram(pointer_high & 0x7F));
    out_.shift(Shift::kShl, rdx, 8);
    out_.alu(Alu::kAdd, rcx, rdx);
    out_.test(rcx, 0x1000);
    out_.jump(If::kEqual, step_instead());
    known_.cycles += 5;
    write_back();
    transfer_to_rcx();
    return false;
  }
  bool call_subroutine(uint32_t target) {
    out_.movzx8(rax, HR_FIELD(sp));
    out_.alu8(Alu::kCmp, rax, 0x81);
    out_.jump(If::kBelow, step_instead());
    out_.mov16(ram_at(rax, -1), static_cast<uint16_t>(pc_ + 2));
    out_.alu(Alu::kSub, rax, 2);
    out_.mov8(HR_FIELD(sp), rax);
    known_.cycles += 6;
    write_back();
    transfer_to(target);
    return false;
  }
  bool return_from_subroutine() {
    out_.movzx8(rax, HR_FIELD(sp));
    out_.lea(rcx, {rax, -0x7F});
    out_.alu(Alu::kCmp, rcx, 0xFD - 0x7F);
    out_.jump(If::kAbove, step_instead());
    out_.movzx8(rcx, ram_at(rax, 1));
    out_.movzx8(rdx, ram_at(rax, 2));
    out_.shift(Shift::kShl, rdx, 8);
    out_.lea(rcx, {rcx, 1, rdx});
    out_.test(rcx, 0x1000);
    out_.jump(If::kEqual, step_instead());
    out_.alu(Alu::kAdd, rax, 2);
    out_.mov8(HR_FIELD(sp), rax);
    known_.cycles += 6;
    write_back();
    transfer_to_rcx();
    return false;
  }

  std::set<uint32_t> leaders_;
  std::vector<Entry> entries_;
};

#undef HR_FIELD

}  // namespace headrace::atari

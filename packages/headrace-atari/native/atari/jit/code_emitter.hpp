// The lowest layer of the translator from 6507 to x86-64: where the 6507's registers are held, what is known of its flags,
// and how translated code is entered and left. A *fragment* is what is translated at once; a *block* is a piece of it that is
// entered only at its beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "atari/jit/assembler.hpp"
#include "atari/core/decoded.hpp"
#include "atari/core/cartridge.hpp"
#include "atari/core/run_loop.hpp"
#include "atari/jit/translated_calls.hpp"

namespace headrace::atari {

// The place of code: its address, and the banks that are selected while it runs.
struct Place {
  uint32_t pc;     // 16 bits, bit 12 set
  uint32_t bank;   // Console::bank, where the mapper has it
  uint32_t slice;  // E0: the slice in the segment of pc
};

// What all fragments of a cartridge share.
struct CodeCache {
  const Cartridge& cart;
  const uint32_t* entries;     // by index_of: the distance from `base` of the code of an address, 0 if there is none
  const uint8_t* base;
  uint32_t leave_to_step;      // distances from `base` of the ways out (Translation::add_frame_code); pc in eax
  uint32_t leave_to_dispatch;
};

inline constexpr uint32_t kEntriesPerMirror = 1 << 14, kEntries = 8 << 15;

// Offset of the byte at `pc` in the image.
inline uint32_t image_offset(Mapper mapper, const Place& place, uint32_t pc) {
  switch (mapper) {
    case Mapper::kE0: return place.slice << 10 | (pc & 0x3FF);
    case Mapper::kFE: return (pc & 0x2000 ? 0 : 4096) + (pc & 0xFFF);
    case Mapper::k2K: case Mapper::k4K: return pc & 0xFFF;
    default: return place.bank + (pc & 0xFFF);
  }
}

// Index in CodeCache::entries of the code at `pc`. Every mirror of the ROM has its own, because return addresses differ.
inline uint32_t index_of(Mapper mapper, const Place& place, uint32_t pc) {
  const uint32_t offset = image_offset(mapper, place, pc);
  if (mapper == Mapper::kE0) return (pc >> 13) << 15 | (pc >> 10 & 3) << 13 | offset;
  return (pc >> 13) * kEntriesPerMirror | offset;
}

class CodeEmitter {
 protected:
  using Label = Assembler::Label;

  // What is known, at the current point of translation, of the 6507's state. Nz says where the result is from which the N and
  // Z flags follow: in rbp as in Console::nz, in rbp as a byte, or in a register of the 6507.
  enum class Nz : uint8_t { kWide, kByte, kA, kX, kY };
  enum class Carry : uint8_t { kMemory, kClear, kSet };
  struct Known {
    Nz nz = Nz::kWide;
    Carry carry = Carry::kMemory;
    bool binary = false;  // the decimal flag is clear
    bool flags = false;   // the host's zero and sign flags are those of the 6507
    int32_t cycles = 0;   // of the instructions so far, not yet added to r15
  };
  // A way out of the fragment. Its code lies behind that of all blocks.
  struct Exit {
    Label label;
    Known known;
    uint32_t pc;
    bool step;  // the complete interpreter executes the instruction at pc
  };
  // The rarer case of an instruction. Its code lies behind that of all blocks, and jumps back.
  struct SlowPath {
    Label label, back;
    Known known;
    uint32_t pc;
    std::function<void()> emit;
  };

  // rbx points to the console; r12 to r14 hold A, X and Y, rbp Console::nz, r15 Console::cycle.
  static constexpr Reg kS = rbx, kA = r12, kX = r13, kY = r14, kNz = rbp, kCycle = r15;
  // On the stack: the cycle at which a loop leaves the translated code, the cycle from which on a TIA write ends the frame
  // (Frame::limit_cycle), and a pointer to the frame.
  static constexpr Mem kWatched{rsp, 0}, kLimit{rsp, 4}, kFrame{rsp, 8};

  static Mem field(size_t offset) { return {kS, static_cast<int32_t>(offset)}; }
  static Mem ram(uint32_t index) { return field(offsetof(Console, ram) + index); }
  // The byte of RAM at the zero page address in `index`, `more` bytes on.
  static Mem ram_at(Reg index, int32_t more = 0) {
    return {kS, static_cast<int32_t>(offsetof(Console, ram)) - 0x80 + more, index};
  }
#define HR_FIELD(name) field(offsetof(Console, name))

  Decoded decoded(uint32_t pc) const { return cart_.decoded[image_offset(mapper_, root_, pc)]; }
  uint8_t opcode(uint32_t pc) const { return cart_.rom[image_offset(mapper_, root_, pc)]; }
  static uint8_t handler(Decoded code) { return code & 0xFF; }
  // Whether the code at `pc` is known without knowing which banks will be selected then.
  bool is_mapped(uint32_t pc) const {
    return (pc & 0x1000) && (mapper_ != Mapper::kE0 || (pc >> 10 & 3) == (root_.pc >> 10 & 3));
  }
  bool is_translated(uint32_t pc) const { return cache_.entries[index_of(mapper_, root_, pc)] != 0; }

  // `at`: where the code will lie, as distance from CodeCache::base.
  CodeEmitter(const CodeCache& cache, const Place& root, uint32_t at)
      : cache_(cache), cart_(cache.cart), mapper_(cart_.mapper), root_(root), at_(at) {}

  Label label_of(uint32_t pc) const {
    for (const auto& [leader, label] : labels_)
      if (leader == pc) return label;
    return -1;
  }

  // --- state ---

  static Reg host_of(Nz nz) { return nz == Nz::kA ? kA : nz == Nz::kX ? kX : nz == Nz::kY ? kY : kNz; }

  // Writes back what Known holds elsewhere, as blocks and the code outside expect it. Keeps the host's flags.
  void write_back() {
    if (known_.nz >= Nz::kA) {
      out_.mov(kNz, host_of(known_.nz));
      known_.nz = Nz::kByte;
    }
    if (known_.carry != Carry::kMemory) {
      out_.mov8(HR_FIELD(carry), static_cast<uint8_t>(known_.carry == Carry::kSet));
      known_.carry = Carry::kMemory;
    }
    if (known_.cycles) {
      out_.lea(kCycle, {kCycle, known_.cycles});
      known_.cycles = 0;
    }
  }

  void leave(uint32_t pc, bool step) {
    write_back();
    out_.mov(rax, pc & 0xFFFF);
    jump_outside(step ? cache_.leave_to_step : cache_.leave_to_dispatch);
  }
  void jump_outside(uint32_t target) { out_.jump_far(static_cast<int32_t>(target) - static_cast<int32_t>(at_)); }

  // A way out that is taken rarely, with the state as it is known now.
  Label exit_to(uint32_t pc, bool step) {
    exits_.push_back({out_.label(), known_, pc, step});
    return exits_.back().label;
  }
  // A way out to the complete interpreter, which executes this instruction; it must not have had any effect yet.
  Label step_instead() { return exit_to(pc_, true); }

  // Jumps on a condition to code that `emit` will emit later, and that jumps back to the label returned: the caller binds it.
  Label slow_path(If condition, std::function<void()> emit) {
    const SlowPath slow{out_.label(), out_.label(), known_, pc_, std::move(emit)};
    out_.jump(condition, slow.label);
    slow_paths_.push_back(slow);
    return slow.back;
  }
  void emit_slow_paths_and_exits() {
    for (const SlowPath& slow : slow_paths_) {
      out_.bind(slow.label);
      known_ = slow.known;
      pc_ = slow.pc;
      slow.emit();
      out_.jump(slow.back);
    }
    for (const Exit& exit : exits_) {
      out_.bind(exit.label);
      known_ = exit.known;
      leave(exit.pc, exit.step);
    }
  }

  void result_in(Nz nz, bool flags) {
    known_.nz = nz;
    known_.flags = flags;
  }
  Reg reg_of(Nz nz) const { return host_of(nz); }

  // Jumps to the code at `pc`. The state has been written back.
  void go_to(uint32_t pc) {
    if (const Label label = label_of(pc); label >= 0) return out_.jump(label);
    if (is_mapped(pc))
      if (const uint32_t entry = cache_.entries[index_of(mapper_, root_, pc)]) return jump_outside(entry);
    leave(pc, false);
  }
  // Leaves the translated code if the frame lasts too long. Every loop contains a jump backwards, so only those check it.
  void check_time(uint32_t target) {
    if (target > pc_) return;
    out_.alu(Alu::kCmp, kCycle, kWatched);
    out_.jump(If::kGreaterEqual, exit_to(target, false));
  }

  void call(const void* function) {
    out_.mov64(rdi, kS);
    out_.mov64(rsi, kFrame);
    out_.mov64(rax, function);
    out_.call(rax);
    known_.flags = false;
  }
  template <class Function>
  void call_at(Function* function, int32_t cycles) {
    out_.lea(rcx, {kCycle, known_.cycles + cycles});
    call(reinterpret_cast<const void*>(function));
  }
  // Leaves the translated code if the instruction, which wrote to the TIA, has ended the frame.
  void leave_if_complete(uint32_t next) {
    out_.alu8(Alu::kCmp, HR_FIELD(frame_complete), 0);
    out_.jump(If::kNotEqual, exit_to(next, false));
    known_.flags = false;
  }

  void carry_to_host() {
    switch (known_.carry) {
      case Carry::kClear: return out_.clear_carry();
      case Carry::kSet: return out_.set_carry();
      case Carry::kMemory:
        out_.movzx8(rcx, HR_FIELD(carry));
        out_.alu8(Alu::kAdd, rcx, 0xFF);
    }
  }
  void carry_from_host(If condition = If::kBelow) {
    out_.set(condition, HR_FIELD(carry));
    known_.carry = Carry::kMemory;
  }

  // --- transfers of control ---

  // Sets the host's flags to what a branch tests; returns the host's condition.
  If test(uint8_t what) {
    switch (what) {
      case kBpl: case kBmi:
        if (!known_.flags && known_.nz == Nz::kWide) {
          out_.test(kNz, 0x8080);
          return what == kBmi ? If::kNotEqual : If::kEqual;
        }
        test_result();
        return what == kBmi ? If::kSign : If::kNoSign;
      case kBne: case kBeq:
        if (!known_.flags && known_.nz == Nz::kWide) out_.test8(kNz, kNz);
        else test_result();
        return what == kBeq ? If::kEqual : If::kNotEqual;
      case kBvc: case kBvs:
        out_.alu8(Alu::kCmp, HR_FIELD(overflow), 0);
        known_.flags = false;
        return what == kBvs ? If::kNotEqual : If::kEqual;
      default:
        write_back();
        out_.alu8(Alu::kCmp, HR_FIELD(carry), 0);
        known_.flags = false;
        return what == kBcs ? If::kNotEqual : If::kEqual;
    }
  }
  void test_result() {
    if (known_.flags) return;
    out_.test8(host_of(known_.nz), host_of(known_.nz));
    known_.flags = true;
  }

  void transfer_to(uint32_t target) {
    check_time(target);
    go_to(target);
  }

  // Jumps to the code at an address in the ROM that is computed at run time. The state has been written back.
  void transfer_to_rcx() {
    out_.mov(rax, rcx);
    if (mapper_ == Mapper::kE0 || mapper_ == Mapper::kFE) return jump_outside(cache_.leave_to_dispatch);
    const auto dispatch_if = [&](If condition) {
      out_.jump_far(condition, static_cast<int32_t>(cache_.leave_to_dispatch) - static_cast<int32_t>(at_));
    };
    out_.alu(Alu::kCmp, kCycle, kWatched);
    dispatch_if(If::kGreaterEqual);
    out_.mov(rdx, rcx);
    out_.alu(Alu::kAnd, rdx, 0xFFF);
    out_.shift(Shift::kShr, rcx, 13);
    out_.shift(Shift::kShl, rcx, 14);
    static_assert(kEntriesPerMirror == 1 << 14);
    out_.lea(rdx, {rdx, static_cast<int32_t>(image_offset(mapper_, root_, 0x1000)), rcx});
    out_.mov64(rcx, cache_.entries);
    out_.mov(rdx, {rcx, 0, rdx, 4});
    out_.test(rdx, rdx);
    dispatch_if(If::kEqual);
    out_.mov64(rcx, cache_.base);
    out_.alu64(Alu::kAdd, rdx, rcx);
    out_.jump_to(rdx);
  }

  const CodeCache cache_;
  const Cartridge& cart_;
  const Mapper mapper_;
  const Place root_;
  const uint32_t at_;
  Assembler out_;
  std::vector<std::pair<uint32_t, Label>> labels_;  // by pc, of the blocks of this fragment
  std::vector<Exit> exits_;
  std::vector<SlowPath> slow_paths_;
  Known known_;
  uint32_t pc_ = 0;  // of the instruction that is being translated
};

}  // namespace headrace::atari

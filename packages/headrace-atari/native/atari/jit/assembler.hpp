// A small assembler for x86-64: only the instructions that translated programs are made of (Intel 64 and IA-32
// Architectures Software Developer's Manual, volume 2). docs/atari-core.md says why it is not a library.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace headrace::atari {

enum Reg : uint8_t { rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15 };

// The two-operand instructions that share one encoding, and the conditions, by their numbers in it.
enum class Alu : uint8_t { kAdd, kOr, kAdc, kSbb, kAnd, kSub, kXor, kCmp };
enum class Shift : uint8_t { kRcr = 3, kShl = 4, kShr = 5 };
enum class If : uint8_t { kOverflow, kNoOverflow, kBelow, kAboveEqual, kEqual, kNotEqual, kBelowEqual, kAbove, kSign,
                          kNoSign, kLess = 12, kGreaterEqual };
inline If opposite(If condition) { return static_cast<If>(static_cast<uint8_t>(condition) ^ 1); }

// The memory at base + index * scale + displacement.
struct Mem {
  Reg base;
  int32_t displacement = 0;
  Reg index = rsp;  // rsp: none
  uint8_t scale = 1;
};

class Assembler {
 public:
  using Label = int;

  const std::vector<uint8_t>& code() const { return code_; }
  uint32_t here() const { return static_cast<uint32_t>(code_.size()); }

  Label label() {
    bound_.push_back(kUnbound);
    return static_cast<Label>(bound_.size()) - 1;
  }
  void bind(Label label) { bound_[label] = here(); }
  // Fills in the distances of all jumps to labels. All labels must be bound.
  void link() {
    for (const Fixup& fixup : fixups_) {
      const uint32_t distance = bound_[fixup.label] - (fixup.at + 4);
      std::memcpy(&code_[fixup.at], &distance, 4);
    }
    fixups_.clear();
  }

  // --- moves; none of them changes the flags ---
  void mov(Reg to, Reg from) { op({0x8B}, to, from); }
  void mov64(Reg to, Reg from) { op({0x8B}, to, from, kWide); }
  void mov(Reg to, const Mem& from) { op({0x8B}, to, from); }
  void mov64(Reg to, const Mem& from) { op({0x8B}, to, from, kWide); }
  void mov(const Mem& to, Reg from) { op({0x89}, from, to); }
  void mov64(const Mem& to, Reg from) { op({0x89}, from, to, kWide); }
  void mov16(const Mem& to, Reg from) { op({0x89}, from, to, kHalf); }
  void mov16(const Mem& to, uint16_t value) {
    op({0xC7}, 0, to, kHalf);
    put(value);
  }
  void mov8(const Mem& to, Reg from) { op({0x88}, from, to, kByte); }
  void mov8(const Mem& to, uint8_t value) {
    op({0xC6}, 0, to);
    put(value);
  }
  void mov(Reg to, uint32_t value) {
    if (to >= r8) put<uint8_t>(0x41);
    put<uint8_t>(0xB8 | (to & 7));
    put(value);
  }
  void mov64(Reg to, const void* value) {
    put<uint8_t>(to >= r8 ? 0x49 : 0x48);
    put<uint8_t>(0xB8 | (to & 7));
    put(reinterpret_cast<uint64_t>(value));
  }
  void movzx8(Reg to, Reg from) { op({0x0F, 0xB6}, to, from, kByte); }
  void movzx8(Reg to, const Mem& from) { op({0x0F, 0xB6}, to, from); }
  void movzx16(Reg to, const Mem& from) { op({0x0F, 0xB7}, to, from); }
  void lea(Reg to, const Mem& from) { op({0x8D}, to, from); }
  void set(If condition, const Mem& to) { op({0x0F, static_cast<uint8_t>(0x90 | code_of(condition))}, 0, to); }
  void set(If condition, Reg to) { op({0x0F, static_cast<uint8_t>(0x90 | code_of(condition))}, 0, to, kByte); }
  void cmov(If condition, Reg to, Reg from) { op({0x0F, static_cast<uint8_t>(0x40 | code_of(condition))}, to, from); }

  // --- arithmetic ---
  void alu8(Alu what, Reg to, Reg from) { op({static_cast<uint8_t>(8 * number(what) + 2)}, to, from, kByte); }
  void alu8(Alu what, Reg to, const Mem& from) { op({static_cast<uint8_t>(8 * number(what) + 2)}, to, from, kByte); }
  void alu8(Alu what, Reg to, uint8_t value) {
    op({0x80}, number(what), to, kByte);
    put(value);
  }
  void alu8(Alu what, const Mem& to, uint8_t value) {
    op({0x80}, number(what), to);
    put(value);
  }
  void alu(Alu what, Reg to, Reg from) { op({static_cast<uint8_t>(8 * number(what) + 3)}, to, from); }
  void alu64(Alu what, Reg to, Reg from) { op({static_cast<uint8_t>(8 * number(what) + 3)}, to, from, kWide); }
  void alu(Alu what, Reg to, const Mem& from) { op({static_cast<uint8_t>(8 * number(what) + 3)}, to, from); }
  void alu(Alu what, Reg to, uint32_t value) {
    op({0x81}, number(what), to);
    put(value);
  }
  void alu64(Alu what, Reg to, uint8_t value) {
    op({0x83}, number(what), to, kWide);
    put(value);
  }
  void test8(Reg a, Reg b) { op({0x84}, a, b, kByte); }
  void test8(Reg a, uint8_t value) {
    op({0xF6}, 0, a, kByte);
    put(value);
  }
  void test(Reg a, Reg b) { op({0x85}, a, b); }
  void test(Reg a, uint32_t value) {
    op({0xF7}, 0, a);
    put(value);
  }
  void shift8(Shift what, Reg to) { op({0xD0}, static_cast<uint8_t>(what), to, kByte); }
  void shift(Shift what, Reg to, uint8_t count) {
    op({0xC1}, static_cast<uint8_t>(what), to);
    put(count);
  }
  void shift64(Shift what, Reg to, uint8_t count) {
    op({0xC1}, static_cast<uint8_t>(what), to, kWide);
    put(count);
  }
  void inc8(Reg to) { op({0xFE}, 0, to, kByte); }
  void dec8(Reg to) { op({0xFE}, 1, to, kByte); }
  void imul(Reg to, Reg from, int32_t value) {
    op({0x69}, to, from);
    put(value);
  }
  void imul64(Reg to, Reg from, int32_t value) {
    op({0x69}, to, from, kWide);
    put(value);
  }
  void clear_carry() { put<uint8_t>(0xF8); }
  void set_carry() { put<uint8_t>(0xF9); }

  // --- control ---
  void jump(Label to) {
    put<uint8_t>(0xE9);
    distance_to(to);
  }
  void jump(If condition, Label to) {
    put<uint8_t>(0x0F);
    put<uint8_t>(0x80 | code_of(condition));
    distance_to(to);
  }
  // Jumps to the byte `distance` bytes after the beginning of this code (before it, if negative).
  void jump_far(int32_t distance) {
    put<uint8_t>(0xE9);
    put<int32_t>(distance - static_cast<int32_t>(here()) - 4);
  }
  void jump_far(If condition, int32_t distance) {
    put<uint8_t>(0x0F);
    put<uint8_t>(0x80 | code_of(condition));
    put<int32_t>(distance - static_cast<int32_t>(here()) - 4);
  }
  void jump_to(Reg target) { op({0xFF}, 4, target); }
  void call(Reg target) { op({0xFF}, 2, target); }
  void push(Reg reg) {
    if (reg >= r8) put<uint8_t>(0x41);
    put<uint8_t>(0x50 | (reg & 7));
  }
  void pop(Reg reg) {
    if (reg >= r8) put<uint8_t>(0x41);
    put<uint8_t>(0x58 | (reg & 7));
  }
  void ret() { put<uint8_t>(0xC3); }

 private:
  enum Size : uint8_t { kFull, kByte, kHalf, kWide };
  struct Fixup {
    uint32_t at;
    Label label;
  };
  static constexpr uint32_t kUnbound = 0xFFFFFFFF;

  static uint8_t number(Alu what) { return static_cast<uint8_t>(what); }
  static uint8_t code_of(If condition) { return static_cast<uint8_t>(condition); }

  template <class T>
  void put(T value) {
    const size_t at = code_.size();
    code_.resize(at + sizeof value);
    std::memcpy(&code_[at], &value, sizeof value);
  }

  void distance_to(Label to) {
    fixups_.push_back({here(), to});
    put<uint32_t>(0);
  }

  // Prefixes and opcode; the low bytes of rbp, rsi and rdi need a REX prefix, which does the other registers no harm.
  void begin(std::initializer_list<uint8_t> opcode, uint8_t reg, uint8_t index, uint8_t base, Size size) {
    if (size == kHalf) put<uint8_t>(0x66);
    const uint8_t rex = static_cast<uint8_t>(0x40 | (size == kWide) << 3 | reg >> 3 << 2 | index >> 3 << 1 | base >> 3);
    if (rex != 0x40 || size == kByte) put(rex);
    for (const uint8_t byte : opcode) put(byte);
  }

  void op(std::initializer_list<uint8_t> opcode, uint8_t reg, Reg other, Size size = kFull) {
    begin(opcode, reg, 0, other, size);
    put<uint8_t>(static_cast<uint8_t>(0xC0 | (reg & 7) << 3 | (other & 7)));
  }

  void op(std::initializer_list<uint8_t> opcode, uint8_t reg, const Mem& mem, Size size = kFull) {
    const bool indexed = mem.index != rsp;
    begin(opcode, reg, indexed ? mem.index : 0, mem.base, size);
    const bool near = mem.displacement >= -128 && mem.displacement < 128;
    const bool with_sib = indexed || (mem.base & 7) == rsp;
    put<uint8_t>(static_cast<uint8_t>((near ? 0x40 : 0x80) | (reg & 7) << 3 | (with_sib ? 4 : mem.base & 7)));
    if (with_sib) {
      const uint8_t scale = mem.scale == 8 ? 3 : mem.scale == 4 ? 2 : mem.scale == 2 ? 1 : 0;
      put<uint8_t>(static_cast<uint8_t>(scale << 6 | (mem.index & 7) << 3 | (mem.base & 7)));
    }
    if (near) put<int8_t>(static_cast<int8_t>(mem.displacement));
    else put<int32_t>(mem.displacement);
  }

  std::vector<uint8_t> code_;
  std::vector<uint32_t> bound_;
  std::vector<Fixup> fixups_;
};

}  // namespace headrace::atari

// Writes instructions with the assembler of native/atari/jit and, for each, what it should be.
//
//   assembler code.bin expected.txt
//
// A line of expected.txt is "= " and the text of the disassembler, or "? " and a line for GNU as in Intel syntax.
#include <cstdio>
#include <fstream>
#include <random>
#include <string>

#include "atari/jit/assembler.hpp"

using namespace headrace::atari;

namespace {

const char* const kNames64[] = {"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
                                "r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};
const char* const kNames32[] = {"eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"};
const char* const kNames16[] = {"ax", "cx", "dx", "bx", "sp", "bp", "si", "di"};
const char* const kNames8[] = {"al", "cl", "dl", "bl", "spl", "bpl", "sil", "dil"};
std::string r64(Reg reg) { return kNames64[reg]; }
std::string r32(Reg reg) { return reg < r8 ? kNames32[reg] : r64(reg) + "d"; }
std::string r16(Reg reg) { return reg < r8 ? kNames16[reg] : r64(reg) + "w"; }
std::string r8bit(Reg reg) { return reg < r8 ? kNames8[reg] : r64(reg) + "b"; }

std::string at(const Mem& mem, const char* size) {
  std::string text = std::string(size) + "[" + r64(mem.base);
  if (mem.index != rsp) text += "+" + r64(mem.index) + "*" + std::to_string(mem.scale);
  return text + (mem.displacement < 0 ? "" : "+") + std::to_string(mem.displacement) + "]";
}
std::string byte_at(const Mem& mem) { return at(mem, "BYTE PTR "); }
std::string word_at(const Mem& mem) { return at(mem, "WORD PTR "); }
std::string dword_at(const Mem& mem) { return at(mem, "DWORD PTR "); }
std::string qword_at(const Mem& mem) { return at(mem, "QWORD PTR "); }

const char* const kAlu[] = {"add", "or", "adc", "sbb", "and", "sub", "xor", "cmp"};
const char* const kConditions[] = {"o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "", "", "l", "ge"};

struct Test {
  Assembler out;
  std::ofstream expected;
  std::mt19937 generator{1};

  void like(const std::string& line) { expected << "? " << line << "\n"; }
  void exactly(const std::string& line) { expected << "= " << line << "\n"; }
  uint32_t below(uint32_t n) { return generator() % n; }

  Mem random_memory() {
    static constexpr int32_t displacements[] = {0, 1, 127, 128, -1, -128, -129, 70000};
    const Reg base = static_cast<Reg>(below(16)), index = static_cast<Reg>(below(16));
    return {base, displacements[below(8)], index, static_cast<uint8_t>(index == rsp ? 1 : 1 << below(4))};
  }

  void two_registers(Reg a, Reg b) {
    out.mov(a, b), like("mov " + r32(a) + "," + r32(b));
    out.mov64(a, b), like("mov " + r64(a) + "," + r64(b));
    out.movzx8(a, b), like("movzx " + r32(a) + "," + r8bit(b));
    out.test8(a, b), like("test " + r8bit(b) + "," + r8bit(a));
    out.test(a, b), like("test " + r32(b) + "," + r32(a));
    out.imul(a, b, 76), like("imul " + r32(a) + "," + r32(b) + ",76");
    out.imul64(a, b, 904203642), like("imul " + r64(a) + "," + r64(b) + ",904203642");
    for (int i = 0; i < 8; ++i) {
      const std::string name = std::string(kAlu[i]) + " ";
      out.alu8(static_cast<Alu>(i), a, b), like(name + r8bit(a) + "," + r8bit(b));
      out.alu(static_cast<Alu>(i), a, b), like(name + r32(a) + "," + r32(b));
      out.alu64(static_cast<Alu>(i), a, b), like(name + r64(a) + "," + r64(b));
    }
    for (int i = 0; i < 14; ++i) {
      if (!*kConditions[i]) continue;
      out.cmov(static_cast<If>(i), a, b), like(std::string("cmov") + kConditions[i] + " " + r32(a) + "," + r32(b));
    }
  }

  void one_register(Reg a) {
    const uint32_t value = generator() | 1u << 31;
    const uint8_t byte = static_cast<uint8_t>(2 + below(30));
    const std::string number = std::to_string(value), small = std::to_string(byte);
    out.mov(a, value), like("mov " + r32(a) + "," + number);
    out.mov64(a, reinterpret_cast<const void*>(0x123456789ABCDEF0)), like("movabs " + r64(a) + ",0x123456789abcdef0");
    out.test8(a, byte), like("test " + r8bit(a) + "," + small);
    out.test(a, value), like("test " + r32(a) + "," + number);
    out.inc8(a), like("inc " + r8bit(a));
    out.dec8(a), like("dec " + r8bit(a));
    out.push(a), like("push " + r64(a));
    out.pop(a), like("pop " + r64(a));
    out.jump_to(a), like("jmp " + r64(a));
    out.call(a), like("call " + r64(a));
    for (int i = 0; i < 8; ++i) {
      const std::string name = std::string(kAlu[i]) + " ";
      out.alu8(static_cast<Alu>(i), a, byte), like(name + r8bit(a) + "," + small);
      out.alu(static_cast<Alu>(i), a, value), like(name + r32(a) + "," + number);
      out.alu64(static_cast<Alu>(i), a, byte), like(name + r64(a) + "," + small);
    }
    for (const auto& [what, name] : {std::pair{Shift::kRcr, "rcr "}, {Shift::kShl, "shl "}, {Shift::kShr, "shr "}}) {
      out.shift8(what, a), like(name + r8bit(a) + ",1");
      out.shift(what, a, byte), like(name + r32(a) + "," + small);
      out.shift64(what, a, byte), like(name + r64(a) + "," + small);
    }
    for (int i = 0; i < 14; ++i)
      if (*kConditions[i]) out.set(static_cast<If>(i), a), like(std::string("set") + kConditions[i] + " " + r8bit(a));
  }

  void register_and_memory(Reg a, const Mem& m) {
    const uint8_t byte = static_cast<uint8_t>(below(128));
    const std::string small = std::to_string(byte);
    out.mov(a, m), like("mov " + r32(a) + "," + dword_at(m));
    out.mov64(a, m), like("mov " + r64(a) + "," + qword_at(m));
    out.mov(m, a), like("mov " + dword_at(m) + "," + r32(a));
    out.mov64(m, a), like("mov " + qword_at(m) + "," + r64(a));
    out.mov16(m, a), like("mov " + word_at(m) + "," + r16(a));
    out.mov16(m, uint16_t{0x1234}), like("mov " + word_at(m) + ",0x1234");
    out.mov8(m, a), like("mov " + byte_at(m) + "," + r8bit(a));
    out.mov8(m, byte), like("mov " + byte_at(m) + "," + small);
    out.movzx8(a, m), like("movzx " + r32(a) + "," + byte_at(m));
    out.movzx16(a, m), like("movzx " + r32(a) + "," + word_at(m));
    out.lea(a, m), like("lea " + r32(a) + "," + at(m, ""));
    for (int i = 0; i < 8; ++i) {
      const std::string name = std::string(kAlu[i]) + " ";
      out.alu8(static_cast<Alu>(i), a, m), like(name + r8bit(a) + "," + byte_at(m));
      out.alu8(static_cast<Alu>(i), m, byte), like(name + byte_at(m) + "," + small);
      out.alu(static_cast<Alu>(i), a, m), like(name + r32(a) + "," + dword_at(m));
    }
    for (int i = 0; i < 14; ++i)
      if (*kConditions[i]) out.set(static_cast<If>(i), m), like(std::string("set") + kConditions[i] + " " + byte_at(m));
  }

  void jump_is_to(const char* name, uint32_t target) {
    char line[40];
    std::snprintf(line, sizeof line, "%s 0x%x", name, target);
    exactly(line);
  }

  void jumps() {
    const Assembler::Label back = out.label(), forward = out.label();
    const uint32_t begin = out.here();
    out.bind(back);
    constexpr uint32_t lengths = 5 + 12 * 6;  // of the jumps forward
    out.jump(forward), jump_is_to("jmp", begin + lengths);
    for (int i = 0; i < 14; ++i) {
      if (!*kConditions[i]) continue;
      out.jump(static_cast<If>(i), forward), jump_is_to((std::string("j") + kConditions[i]).c_str(), begin + lengths);
    }
    out.bind(forward);
    out.jump(back), jump_is_to("jmp", begin);
    out.jump(If::kEqual, back), jump_is_to("je", begin);
    out.jump_far(16), jump_is_to("jmp", 16);
    out.jump_far(If::kLess, 1 << 20), jump_is_to("jl", 1 << 20);
    out.jump_far(opposite(If::kLess), 32), jump_is_to("jge", 32);
    out.link();
  }

  void run() {
    for (int a = 0; a < 16; ++a)
      for (int b = 0; b < 16; ++b) two_registers(static_cast<Reg>(a), static_cast<Reg>(b));
    for (int a = 0; a < 16; ++a) one_register(static_cast<Reg>(a));
    for (int i = 0; i < 400; ++i) register_and_memory(static_cast<Reg>(i % 16), random_memory());
    out.clear_carry(), like("clc");
    out.set_carry(), like("stc");
    out.ret(), like("ret");
    jumps();
  }
};

}  // namespace

int main(int, char** argv) {
  Test test;
  test.expected.open(argv[2]);
  test.run();
  std::ofstream code(argv[1], std::ios::binary);
  code.write(reinterpret_cast<const char*>(test.out.code().data()), static_cast<std::streamsize>(test.out.code().size()));
  return 0;
}

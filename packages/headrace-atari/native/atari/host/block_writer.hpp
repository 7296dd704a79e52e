// Writes the program of a game as CUDA C: a case per basic block, in the words of cuda/blocks.hpp.
//
// As in the translator to machine code (jit/), a leader is the address of a block's first instruction, and the code of a bank is
// followed from every address that is known to be reached. On a device nothing is translated while it runs, so the addresses that
// no instruction names (returns, jumps through pointers, other banks) are looked for by playing for a while; what they miss is
// interpreted.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "atari/core/emulator.hpp"
#include "atari/host/game.hpp"
#include "atari/jit/code_emitter.hpp"

namespace headrace::atari {

class BlockWriter {
 public:
  explicit BlockWriter(const Cartridge& cart) : cart_(cart), mapper_(cart.mapper) {}

  // A place that a program has reached. Follows the program from there.
  void add_root(const Place& root) {
    std::vector<uint32_t> open{root.pc};
    while (!open.empty()) {
      uint32_t pc = open.back();
      open.pop_back();
      const Place leader{pc, root.bank, root.slice};
      if (!is_mapped(root, pc) || !leaders_.emplace(index_of(mapper_, leader, pc), leader).second) continue;
      for (bool first = true;; first = false) {
        if (!is_mapped(root, pc) || (!first && leaders_.count(index_of(mapper_, root, pc)))) break;
        const Decoded code = decoded(root, pc);
        const uint32_t next = pc + instruction_length(opcode(root, pc));
        const uint8_t what = code & 0xFF;
        if (what >= kBpl && what <= kBeq) {
          open.push_back(branch_target(pc, code));
          open.push_back(next);
          break;
        } else if (what == kJmp || what == kJsr) {
          open.push_back(code >> 16);
          if (what == kJsr) open.push_back(next);
          break;
        } else if (what == kStep || what == kWsync) {
          if (next <= 0xFFFF && (what == kWsync || !transfers_control(opcode(root, pc)))) open.push_back(next);
          break;
        } else if (what == kRts || what == kJmpInd) {
          break;
        }
        pc = next;
      }
    }
  }

  // The struct GameProgram. Throws std::length_error if the program is too large for the table of blocks.
  std::string text() {
    number_blocks();
    std::string cases, lengths;
    for (const auto& [index, leader] : leaders_) {
      const auto number = numbers_.find(index);
      if (number == numbers_.end()) continue;
      cases += "      case " + std::to_string(number->second) + ":  // $" + hex(leader.pc) + "\n";
      cases += body_of(leader);
      lengths += std::to_string(length_) + ",";
    }
    std::string out;
    out += "// Written by host/block_writer.hpp.\nnamespace headrace::atari {\nstruct GameProgram {\n";
    out += "  static constexpr Mapper M = static_cast<Mapper>(" + std::to_string(static_cast<int>(view())) + ");\n";
    out += find_function();
    out += "  static HR_HD uint32_t instructions(uint32_t block) {\n";
    out += "    static constexpr uint8_t lengths[] = {0,1," + lengths + "};\n    return lengths[block];\n  }\n";
    out += "  static HR_DEVICE_INLINE void run(Console& s, const Frame& frame, BlockRegisters& r, uint32_t block) {\n";
    out += "    HR_BLOCK_LOCALS\n    switch (block) {\n" + cases + "      default: goto step;\n    }\n";
    out += "    HR_BLOCK_EXITS\n  }\n};\n";
    out += "}  // namespace headrace::atari\n#include \"atari/core/loop_macros_end.hpp\"\n";
    return out;
  }

  size_t blocks() const { return numbers_.size(); }

 private:
  static std::string hex(uint32_t value) {
    char text[16];
    std::snprintf(text, sizeof text, "%X", value);
    return text;
  }

  Mapper view() const { return mapper_ == Mapper::k2K ? Mapper::k4K : mapper_; }
  bool is_mapped(const Place& root, uint32_t pc) const {
    return (pc & 0x1000) && pc <= 0xFFFF && (mapper_ != Mapper::kE0 || (pc >> 10 & 3) == (root.pc >> 10 & 3));
  }
  Decoded decoded(const Place& place, uint32_t pc) const { return cart_.decoded[image_offset(mapper_, place, pc)]; }
  uint8_t opcode(const Place& place, uint32_t pc) const { return cart_.rom[image_offset(mapper_, place, pc)]; }
  static uint32_t branch_target(uint32_t pc, Decoded code) {
    return (pc + 2 + static_cast<uint32_t>(static_cast<int32_t>(code) >> 16)) & 0xFFFF;
  }
  static bool transfers_control(uint8_t opcode) {
    switch (opcode) {
      case 0x00: case 0x20: case 0x40: case 0x4C: case 0x60: case 0x6C: return true;
      default: return (opcode & 0x1F) == 0x12 || (opcode & 0x9F) == 0x02;  // JAM
    }
  }

  // Leaders whose first instruction has no handler of its own get no block: the interpreter executes them.
  void number_blocks() {
    numbers_.clear();
    uint32_t number = 2;
    for (const auto& [index, leader] : leaders_)
      if ((decoded(leader, leader.pc) & 0xFF) != kStep) numbers_.emplace(index, number++);
    if (number > 0xFFFF) throw std::length_error("a program of more than 65,533 blocks");
  }

  std::string go_to(const Place& from, uint32_t pc) const {
    pc &= 0xFFFF;
    if (!is_mapped(from, pc)) return "HR_TO_FOUND(0x" + hex(pc) + ")";
    const auto found = numbers_.find(index_of(mapper_, from, pc));
    const std::string block = found == numbers_.end() ? "kInterpretedBlock" : std::to_string(found->second);
    return "HR_TO(0x" + hex(pc) + ", " + block + ")";
  }

  std::string body_of(const Place& leader) {
    std::string out;
    uint32_t pc = leader.pc;
    for (length_ = 0;;) {
      const Decoded code = decoded(leader, pc);
      const uint8_t what = code & 0xFF;
      const uint32_t next = pc + instruction_length(opcode(leader, pc));
      const std::string at = "        HR_AT(0x" + hex(pc) + ", 0x" + hex(code) + "u) ";
      if (what == kStep) return out + "        HR_TO(0x" + hex(pc) + ", kInterpretedBlock)\n";
      ++length_;
      if (what >= kBpl && what <= kBeq) {
        static constexpr const char* conditions[] = {"!(nz & 0x8080)", "nz & 0x8080", "!overflow",  "overflow",
                                                     "!carry",         "carry",       "nz & 0xFF", "!(nz & 0xFF)"};
        return out + at + "HR_BLOCK_BRANCH(" + conditions[what - kBpl] + ", " + go_to(leader, branch_target(pc, code)) + ") " +
               go_to(leader, next) + "\n";
      }
      switch (what) {
        case kJmp: return out + at + "clock += kCount + 3; " + go_to(leader, code >> 16) + "\n";
        case kJsr: return out + at + "HR_BLOCK_CALL " + go_to(leader, code >> 16) + "\n";
        case kRts: return out + at + "HR_BLOCK_RETURN\n";
        case kJmpInd: return out + at + "HR_BLOCK_JUMP_INDIRECT\n";
        case kWsync: return out + at + "HR_BLOCK_WAIT " + go_to(leader, next) + "\n";
        default: out += at + handler_text(what) + "\n";
      }
      pc = next;
      if (!is_mapped(leader, pc) || leaders_.count(index_of(mapper_, leader, pc)) || length_ == 200)
        return out + "        " + go_to(leader, pc) + "\n";
    }
  }

  std::string find_function() const {
    const bool slices = mapper_ == Mapper::kE0;
    const uint32_t program = mapper_ == Mapper::kDPC ? 8192 : cart_.size, per_mirror = slices ? 1 << 15 : program;
    uint32_t mirrors = 0xFFFFFFFF, count = 0;
    for (const auto& [index, number] : numbers_) {
      const uint32_t mirror = leaders_.at(index).pc >> 13;
      if ((mirrors >> (4 * mirror) & 15) == 15) mirrors = (mirrors & ~(15u << (4 * mirror))) | count++ << (4 * mirror);
    }
    std::vector<uint32_t> table(static_cast<size_t>(count) * per_mirror + 1, 1);
    for (const auto& [index, number] : numbers_) {
      const Place& leader = leaders_.at(index);
      const uint32_t offset = image_offset(mapper_, leader, leader.pc) | (slices ? (leader.pc >> 10 & 3) << 13 : 0);
      table[(mirrors >> (4 * (leader.pc >> 13)) & 15) * per_mirror + offset] = number;
    }
    std::string out = "  static HR_HD uint32_t find(const Console& s, uint32_t pc) {\n";
    out += "    static constexpr uint16_t blocks[] = {";
    for (const uint32_t number : table) out += std::to_string(number) + ",";
    out += "};\n    const uint32_t mirror = 0x" + hex(mirrors) + "u >> (4 * (pc >> 13)) & 15;\n";
    out += "    if (!(pc & 0x1000) || mirror == 15) return kInterpretedBlock;\n    static_cast<void>(s);\n";
    out += "    return blocks[mirror * " + std::to_string(per_mirror) + " + (RomView<M>::offset(s, pc)" +
           (slices ? " | (pc >> 10 & 3) << 13" : "") + ")];\n  }\n";
    return out;
  }

  // The macro of run_loop.hpp that makes the handler.
  static std::string handler_text(uint8_t what) {
    static const std::map<uint8_t, std::string> texts = make_handler_texts();
    return texts.at(what);
  }

  static std::map<uint8_t, std::string> make_handler_texts() {
    std::map<uint8_t, std::string> texts;
    static constexpr const char* forms[] = {"HR_IMM(,",      "HR_FROM_RAM(,", "HR_INDEXED_RAM(, x,", "HR_FROM_MEMORY(,",
                                            "HR_INDEXED_MEMORY(, x,", "HR_INDEXED_MEMORY(, y,", "HR_INDIRECT_Y(,",
                                            "HR_INDIRECT_X(,", "HR_FROM_TIA(,"};
    static constexpr const char* alus[] = {"HR_ORA", "HR_AND", "HR_EOR", "HR_ADC", "HR_LDA", "HR_CMP", "HR_SBC"};
    for (int form = 0; form < 9; ++form)
      for (int alu = 0; alu < 7; ++alu)
        texts[static_cast<uint8_t>(kOraImm + 7 * form + alu)] = std::string(forms[form]) + " " + alus[alu] + ")";
    const auto set = [&](uint8_t what, const char* text) { texts[what] = text; };
    set(kLdxImm, "HR_IMM(, HR_LDX)");
    set(kLdxRam, "HR_FROM_RAM(, HR_LDX)");
    set(kLdxAbs, "HR_FROM_MEMORY(, HR_LDX)");
    set(kLdxAbsY, "HR_INDEXED_MEMORY(, y, HR_LDX)");
    set(kLdxZpY, "HR_INDEXED_RAM(, y, HR_LDX)");
    set(kLdxTia, "HR_FROM_TIA(, HR_LDX)");
    set(kLdyImm, "HR_IMM(, HR_LDY)");
    set(kLdyRam, "HR_FROM_RAM(, HR_LDY)");
    set(kLdyZpX, "HR_INDEXED_RAM(, x, HR_LDY)");
    set(kLdyAbs, "HR_FROM_MEMORY(, HR_LDY)");
    set(kLdyAbsX, "HR_INDEXED_MEMORY(, x, HR_LDY)");
    set(kLdyTia, "HR_FROM_TIA(, HR_LDY)");
    set(kCpxImm, "HR_IMM(, HR_CPX)");
    set(kCpxRam, "HR_FROM_RAM(, HR_CPX)");
    set(kCpyImm, "HR_IMM(, HR_CPY)");
    set(kCpyRam, "HR_FROM_RAM(, HR_CPY)");
    set(kBitRam, "HR_FROM_RAM(, HR_BIT)");
    set(kBitAbs, "HR_FROM_MEMORY(, HR_BIT)");
    set(kBitTia, "HR_FROM_TIA(, HR_BIT)");
    set(kLdaTimer, "HR_FROM_TIMER(, a)");
    set(kLdxTimer, "HR_FROM_TIMER(, x)");
    set(kLdyTimer, "HR_FROM_TIMER(, y)");
    const auto stores = [&](const char* reg, uint8_t ram, uint8_t tia, uint8_t tia_abs, uint8_t color, uint8_t grp, uint8_t pf) {
      const std::string source = reg;
      texts[ram] = "HR_TO_RAM(, " + source + ")";
      texts[tia] = "HR_TO_TIA(, " + source + ", 2, 3)";
      texts[tia_abs] = "HR_TO_TIA(, " + source + ", 3, 4)";
      texts[color] = texts[grp] = texts[pf] = "HR_TO_REGISTER(, " + source + ", )";
    };
    stores("a", kStaRam, kStaTia, kStaTiaAbs, kStaColor, kStaGrp, kStaPf);
    stores("x", kStxRam, kStxTia, kStxTiaAbs, kStxColor, kStxGrp, kStxPf);
    stores("y", kStyRam, kStyTia, kStyTiaAbs, kStyColor, kStyGrp, kStyPf);
    set(kStaZpX, "HR_TO_INDEXED(, a, x)");
    set(kStyZpX, "HR_TO_INDEXED(, y, x)");
    set(kStxZpY, "HR_TO_INDEXED(, x, y)");
    set(kStaAbsX, "HR_TO_MEMORY(, a, HR_OPERAND + x, 3, 5)");
    set(kStaAbsY, "HR_TO_MEMORY(, a, HR_OPERAND + y, 3, 5)");
    set(kStaIndY, "HR_TO_MEMORY(, a, HR_RAM(HR_OPERAND) + (HR_RAM(HR_OPERAND + 1) << 8) + y, 2, 6)");
    set(kIncRam, "HR_MODIFY_RAM(, m = (m + 1) & 0xFF)");
    set(kDecRam, "HR_MODIFY_RAM(, m = (m - 1) & 0xFF)");
    set(kAslRam, "HR_MODIFY_RAM(, HR_ASL(m))");
    set(kLsrRam, "HR_MODIFY_RAM(, HR_LSR(m))");
    set(kRolRam, "HR_MODIFY_RAM(, HR_ROL(m))");
    set(kRorRam, "HR_MODIFY_RAM(, HR_ROR(m))");
    set(kIncZpX, "HR_MODIFY_INDEXED(, m = (m + 1) & 0xFF)");
    set(kDecZpX, "HR_MODIFY_INDEXED(, m = (m - 1) & 0xFF)");
    set(kAslA, "HR_IMPLIED(, 2, HR_ASL(a) nz = a)");
    set(kLsrA, "HR_IMPLIED(, 2, HR_LSR(a) nz = a)");
    set(kRolA, "HR_IMPLIED(, 2, HR_ROL(a) nz = a)");
    set(kRorA, "HR_IMPLIED(, 2, HR_ROR(a) nz = a)");
    set(kClc, "HR_IMPLIED(, 2, carry = 0)");
    set(kSec, "HR_IMPLIED(, 2, carry = 1)");
    set(kClv, "HR_IMPLIED(, 2, overflow = 0)");
    set(kCld, "HR_IMPLIED(, 2, decimal = 0)");
    set(kSed, "HR_IMPLIED(, 2, decimal = 1)");
    set(kTax, "HR_IMPLIED(, 2, x = nz = a)");
    set(kTay, "HR_IMPLIED(, 2, y = nz = a)");
    set(kTxa, "HR_IMPLIED(, 2, a = nz = x)");
    set(kTya, "HR_IMPLIED(, 2, a = nz = y)");
    set(kTsx, "HR_IMPLIED(, 2, x = nz = sp)");
    set(kTxs, "HR_IMPLIED(, 2, sp = x)");
    set(kInx, "HR_IMPLIED(, 2, x = nz = (x + 1) & 0xFF)");
    set(kDex, "HR_IMPLIED(, 2, x = nz = (x - 1) & 0xFF)");
    set(kIny, "HR_IMPLIED(, 2, y = nz = (y + 1) & 0xFF)");
    set(kDey, "HR_IMPLIED(, 2, y = nz = (y - 1) & 0xFF)");
    set(kNop, "HR_IMPLIED(, 2, )");
    set(kPha, "HR_BLOCK_PUSH(a)");
    set(kPhp, "HR_BLOCK_PUSH(processor_flags(nz, carry, overflow, decimal, s.interrupt_disable))");
    set(kPla, "HR_BLOCK_PULL_A");
    set(kPlp, "HR_BLOCK_PULL_FLAGS");
    return texts;
  }

  const Cartridge& cart_;
  const Mapper mapper_;
  std::map<uint32_t, Place> leaders_;    // by index_of
  std::map<uint32_t, uint32_t> numbers_;  // of the blocks, by index_of
  uint32_t length_ = 0;                  // instructions of the block that was written last
};

// The blocks of a game, found by playing `frames` frames with random actions.
inline std::string block_source(Game& game, int frames) {
  // Runs programs with the complete interpreter, and notes where control is transferred to.
  struct Tracer {
    Game& game;
    std::set<std::tuple<uint32_t, uint32_t, uint32_t>>& reached;

    void note(const Console& s) const {
      if (s.pc & 0x1000) reached.insert({s.pc, s.bank, s.slice[s.pc >> 10 & 3]});
    }
    void run_program(Console& s, const Frame& frame) const {
      note(s);
      for (int i = 0; i < kFrameInstructions && !s.frame_complete && !s.jammed; ++i) {
        const uint32_t pc = s.pc, bank = s.bank, slices = s.slice[0] | s.slice[1] << 8 | s.slice[2] << 16;
        step_instruction(s, frame);
        const bool switched = s.bank != bank || static_cast<uint32_t>(s.slice[0] | s.slice[1] << 8 | s.slice[2] << 16) != slices;
        if (switched || s.pc <= pc || s.pc > pc + 3) note(s);
      }
    }
    SystemDraws system_draws(uint32_t count) const { return game.system_draws(count); }
    const StartState* find_start(const EmulatorSettings&, int32_t) const { return nullptr; }
    void keep_start(const EmulatorSettings&, int32_t, const EmulatorState&, const uint8_t*, int32_t) const {}
    void copy_screens(uint8_t*, const uint8_t*, size_t) const {}
  };
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> reached;
  Tracer tracer{game, reached};
  std::vector<uint8_t> screens(2 * static_cast<size_t>(game.data.screen_bytes()));
  const auto state = std::make_unique<EmulatorState>();
  const EmulatorSettings settings = game.default_settings();
  Emulator<Tracer> emulator{game.data, settings, tracer, *state, screens.data(), nullptr};
  emulator.load(settings, 0);
  emulator.reset();
  Mt19937 random(0);
  int action = kNoop;
  for (int frame = 0; frame < frames; ++frame) {
    if (frame % 4 == 0) action = static_cast<int>(random() % kNumActions);
    if (emulator.game_over()) emulator.reset();
    emulator.play(action, 1.0f, false);
  }
  BlockWriter writer(game.data.cartridge);
  for (const auto& [pc, bank, slice] : reached) writer.add_root({pc, bank, slice});
  return writer.text();
}

}  // namespace headrace::atari

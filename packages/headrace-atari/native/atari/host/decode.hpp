// Decodes a ROM once, when it is loaded, for the decoded interpreter (core/run_loop.hpp) and the translator (jit/).
#pragma once

#include <cstdint>

#include "atari/core/decoded.hpp"

namespace headrace::atari {

namespace detail {

// A load from an absolute address: the timer (INTIM and its mirrors) or anything else.
inline uint8_t absolute_load(uint16_t address, int any, uint8_t timer) {
  return (address & 0x1285) == 0x284 ? timer : static_cast<uint8_t>(any);
}

inline uint8_t zero_page(uint16_t operand, uint8_t ram, uint8_t tia) { return operand & 0x80 ? ram : tia; }

// The handler of an instruction; `operand` is its one or two bytes.
inline uint8_t handler_of(uint8_t opcode, uint16_t operand) {
  if ((opcode & 3) == 1 && opcode >> 5 != 4) {  // ORA AND EOR ADC LDA CMP SBC
    const int group = opcode >> 5, alu = group > 4 ? group - 1 : group;
    switch (opcode >> 2 & 7) {
      case 0: return static_cast<uint8_t>(kOraIndX + alu);
      case 1: return zero_page(operand, kOraRam + alu, kOraTia + alu);
      case 2: return kOraImm + alu;
      case 3: return group == 5 ? absolute_load(operand, kLdaAbs, kLdaTimer) : static_cast<uint8_t>(kOraAbs + alu);
      case 4: return static_cast<uint8_t>(operand >= 0x80 && operand != 0xFF ? kOraIndY + alu : int{kStep});
      case 5: return kOraZpX + alu;
      case 6: return static_cast<uint8_t>(kOraAbsY + alu);
      default: return static_cast<uint8_t>(kOraAbsX + alu);
    }
  }
  // VSYNC can end a frame and WSYNC can wait: they are no ordinary registers.
  const int reg = operand & 63;
  const auto to_tia = [&](uint8_t handler) -> uint8_t { return reg == 0 || reg == 2 ? uint8_t{kStep} : handler; };
  const auto to_zero_page = [&](uint8_t ram, uint8_t tia, uint8_t color, uint8_t grp, uint8_t pf) {
    if (operand & 0x80) return ram;
    if (operand == 2) return uint8_t{kWsync};
    return reg >= 0x06 && reg <= 0x09 ? color : reg == 0x1B || reg == 0x1C ? grp : reg >= 0x0D && reg <= 0x0F ? pf : to_tia(tia);
  };
  const auto to_absolute = [&](uint8_t tia) { return operand & 0x1080 ? uint8_t{kStep} : to_tia(tia); };
  switch (opcode) {
    case 0xA2: return kLdxImm;
    case 0xA6: return zero_page(operand, kLdxRam, kLdxTia);
    case 0xAE: return absolute_load(operand, kLdxAbs, kLdxTimer);
    case 0xB6: return kLdxZpY;
    case 0xBE: return kLdxAbsY;
    case 0xA0: return kLdyImm;
    case 0xA4: return zero_page(operand, kLdyRam, kLdyTia);
    case 0xAC: return absolute_load(operand, kLdyAbs, kLdyTimer);
    case 0xB4: return kLdyZpX;
    case 0xBC: return kLdyAbsX;
    case 0xE0: return kCpxImm;
    case 0xE4: return zero_page(operand, kCpxRam, kStep);
    case 0xC0: return kCpyImm;
    case 0xC4: return zero_page(operand, kCpyRam, kStep);
    case 0x24: return zero_page(operand, kBitRam, kBitTia);
    case 0x2C: return kBitAbs;
    case 0x85: return to_zero_page(kStaRam, kStaTia, kStaColor, kStaGrp, kStaPf);
    case 0x86: return to_zero_page(kStxRam, kStxTia, kStxColor, kStxGrp, kStxPf);
    case 0x84: return to_zero_page(kStyRam, kStyTia, kStyColor, kStyGrp, kStyPf);
    case 0x8D: return to_absolute(kStaTiaAbs);
    case 0x8E: return to_absolute(kStxTiaAbs);
    case 0x8C: return to_absolute(kStyTiaAbs);
    case 0x6C: return kJmpInd;
    case 0x9D: return kStaAbsX;
    case 0x99: return kStaAbsY;
    case 0x91: return static_cast<uint8_t>(operand >= 0x80 && operand != 0xFF ? kStaIndY : kStep);
    case 0x95: return kStaZpX;
    case 0x94: return kStyZpX;
    case 0x96: return kStxZpY;
    case 0xE6: return zero_page(operand, kIncRam, kStep);
    case 0xC6: return zero_page(operand, kDecRam, kStep);
    case 0x06: return zero_page(operand, kAslRam, kStep);
    case 0x46: return zero_page(operand, kLsrRam, kStep);
    case 0x26: return zero_page(operand, kRolRam, kStep);
    case 0x66: return zero_page(operand, kRorRam, kStep);
    case 0xF6: return kIncZpX;
    case 0xD6: return kDecZpX;
    case 0x0A: return kAslA;
    case 0x4A: return kLsrA;
    case 0x2A: return kRolA;
    case 0x6A: return kRorA;
    case 0x10: return kBpl;
    case 0x30: return kBmi;
    case 0x50: return kBvc;
    case 0x70: return kBvs;
    case 0x90: return kBcc;
    case 0xB0: return kBcs;
    case 0xD0: return kBne;
    case 0xF0: return kBeq;
    case 0x18: return kClc;
    case 0x38: return kSec;
    case 0xB8: return kClv;
    case 0xD8: return kCld;
    case 0xF8: return kSed;
    case 0xAA: return kTax;
    case 0xA8: return kTay;
    case 0x8A: return kTxa;
    case 0x98: return kTya;
    case 0xBA: return kTsx;
    case 0x9A: return kTxs;
    case 0xE8: return kInx;
    case 0xCA: return kDex;
    case 0xC8: return kIny;
    case 0x88: return kDey;
    case 0xEA: return kNop;
    case 0x48: return kPha;
    case 0x08: return kPhp;
    case 0x68: return kPla;
    case 0x28: return kPlp;
    case 0x4C: return operand & 0x1000 ? kJmp : kStep;
    case 0x20: return operand & 0x1000 ? kJsr : kStep;
    case 0x60: return kRts;
    default: return kStep;
  }
}

inline bool is_branch(uint8_t opcode) { return (opcode & 0x1F) == 0x10; }

}  // namespace detail

// The operand as the handler expects it, see Decoded.
inline uint16_t operand_of(uint8_t handler, uint16_t operand) {
  switch (handler) {
    case kOraRam: case kAndRam: case kEorRam: case kAdcRam: case kLdaRam: case kCmpRam: case kSbcRam:
    case kOraIndY: case kAndIndY: case kEorIndY: case kAdcIndY: case kLdaIndY: case kCmpIndY: case kSbcIndY:
    case kStaIndY: case kLdxRam: case kLdyRam: case kCpxRam: case kCpyRam: case kBitRam: case kStaRam: case kStxRam:
    case kStyRam: case kIncRam: case kDecRam: case kAslRam: case kLsrRam: case kRolRam: case kRorRam:
      return operand & 0x7F;
    case kStaTia: case kStxTia: case kStyTia: case kStaTiaAbs: case kStxTiaAbs: case kStyTiaAbs:
    case kStaColor: case kStxColor: case kStyColor: case kStaGrp: case kStxGrp: case kStyGrp:
    case kStaPf: case kStxPf: case kStyPf:
      return operand & 0x3F;
    default: return operand;
  }
}

// Decodes the instruction at `offset` of a window: the `window` bytes from `bytes` on, the unit of bank switching.
// Decodes to kStep where the instruction, the one after it or the target of its branch lies outside from <= offset < to.
inline Decoded decode(const uint8_t* bytes, int32_t window, int32_t offset, int32_t from, int32_t to) {
  const uint8_t opcode = bytes[offset];
  const int32_t next = offset + instruction_length(opcode);
  if (offset < from || next >= to || next >= window) return make_decoded(kStep, 0, 0);
  uint16_t operand = 0;
  for (int32_t i = next - 1; i > offset; --i) operand = static_cast<uint16_t>(operand << 8 | bytes[i]);
  const uint8_t handler = detail::handler_of(opcode, operand);
  if (detail::is_branch(opcode)) {
    const int32_t displacement = static_cast<int8_t>(operand), target = next + displacement;
    if (target < from || target >= to || target >= window) return make_decoded(kStep, 0, 0);
    return make_decoded(handler, (next ^ target) & ~0xFF ? 2 : 1, static_cast<uint16_t>(displacement));
  }
  uint8_t extra = 0;
  const bool timer = handler == kLdaTimer || handler == kLdxTimer || handler == kLdyTimer;
  // A branch back to the load waits for the timer. For BPL, BMI and BNE repetitions are skipped (polls_to_skip in run_loop.hpp).
  if (timer && next + 2 < to && next + 2 < window && bytes[next + 1] == 0xFB) {
    const bool same_page = ((next + 2) & ~0xFF) == (offset & ~0xFF);
    const uint8_t branch = bytes[next];
    if (same_page && (branch == 0x10 || branch == 0x30 || branch == 0xD0)) extra = branch;
  }
  return make_decoded(handler, extra, operand_of(handler, operand));
}

// Decodes an image of `size` bytes of program.
inline void decode_image(Decoded* decoded, const uint8_t* image, int32_t size, Mapper mapper) {
  const bool slices = mapper == Mapper::kE0;
  const int32_t window = slices ? 1024 : 4096;
  for (int32_t begin = 0; begin < size; begin += window) {
    // The addresses that switch E0's slices lie at the end of the 4K, where the last slice always is.
    const int32_t from = slices ? 0 : plain_from(mapper);
    const int32_t to = !slices ? plain_to(mapper) : begin + window == size ? plain_to(mapper) - 3 * window : window;
    for (int32_t offset = 0; offset < window; ++offset)
      decoded[begin + offset] = decode(image + begin, window, offset, from, to);
  }
}

}  // namespace headrace::atari

// Programs compiled to blocks, one kernel per game: what the generated text (host/block_writer.hpp) is made of, and the loop that
// runs blocks.
//
// A warp executes one block at a time, for those of its consoles that are there. It is always the block of the console that is
// furthest behind in cycles, so that consoles that went different ways meet again where their programs wait for the picture.
#pragma once

#include "atari/core/environment.hpp"
#include "atari/core/run_loop.hpp"
#include "atari/cuda/warp.hpp"

namespace headrace::atari {

// Numbers of blocks that are none. From kFirstBlock on: the blocks of the program.
enum : uint32_t { kNoBlock, kInterpretedBlock, kFirstBlock };

// A console's registers while its blocks run, and where it is. clock: see run_loop.hpp.
struct BlockRegisters {
  uint32_t block, pc, a, x, y, sp, nz, carry, overflow, decimal;
  uint64_t clock;
};

HR_INLINE void load_registers(const Console& s, BlockRegisters& r) {
  r.pc = s.pc;
  r.a = s.a;
  r.x = s.x;
  r.y = s.y;
  r.sp = s.sp;
  r.nz = s.nz;
  r.carry = s.carry;
  r.overflow = s.overflow;
  r.decimal = s.decimal;
}
HR_INLINE void store_registers(Console& s, const BlockRegisters& r) {
  s.pc = static_cast<uint16_t>(r.pc);
  s.a = static_cast<uint8_t>(r.a);
  s.x = static_cast<uint8_t>(r.x);
  s.y = static_cast<uint8_t>(r.y);
  s.sp = static_cast<uint8_t>(r.sp);
  s.nz = static_cast<uint16_t>(r.nz);
  s.carry = static_cast<uint8_t>(r.carry);
  s.overflow = static_cast<uint8_t>(r.overflow);
  s.decimal = static_cast<uint8_t>(r.decimal);
  s.cycle = static_cast<int32_t>(r.clock & (kCount - 1));
}

inline constexpr uint64_t kWatchedClock = static_cast<uint64_t>(kWatchedInstructions) << kCountShift;

// One instruction by the complete interpreter: for what has no block, and near the limit of instructions.
template <class Program>
HR_NOINLINE void interpret_instruction(Console& s, const Frame& frame, BlockRegisters& r) {
  store_registers(s, r);
  step_instruction(s, frame);
  r.clock = (r.clock & ~(kCount - 1)) + kCount + static_cast<uint32_t>(s.cycle);
  if (s.frame_complete || s.jammed || r.clock >= static_cast<uint64_t>(kFrameInstructions) << kCountShift) {
    r.block = kNoBlock;
    return;
  }
  load_registers(s, r);
  r.block = r.clock >= kWatchedClock ? uint32_t{kInterpretedBlock} : Program::find(s, r.pc);
}

// The compiled blocks of `Program`; without `reconverge` each lane runs its own block. Program has
//   static uint32_t find(const Console&, uint32_t pc)                    the block at pc, or kInterpretedBlock
//   static uint32_t instructions(uint32_t block)                         how many it has
//   static void run(Console&, const Frame&, BlockRegisters&, uint32_t block)   executes it
template <class Program>
struct Blocks {
  HR_DEVICE static void run(const Warp& warp, PerLane<EnvironmentState>& states, const PerLane<Frame>& frames,
                            const PerLane<bool>& runs, bool reconverge) {
    PerLane<BlockRegisters> registers;
    PerLane<uint32_t> blocks, cycles;
    PerLane<bool> votes;
    warp.each([&](int lane) {
      BlockRegisters& r = registers[lane];
      r.block = kNoBlock;
      r.clock = 0;
      if (runs[lane] && !states[lane].emulator.console.jammed) {
        const Console& s = states[lane].emulator.console;
        load_registers(s, r);
        r.clock = static_cast<uint64_t>(s.cycle);
        r.block = Program::find(s, r.pc);
      }
    });
    const auto run_one = [&](int lane, uint32_t block) {
      Console& s = states[lane].emulator.console;
      if (block == kInterpretedBlock) interpret_instruction<Program>(s, frames[lane], registers[lane]);
      else Program::run(s, frames[lane], registers[lane], block);
    };
    while (true) {
      warp.each([&](int lane) {
        const BlockRegisters& r = registers[lane];
        blocks[lane] = r.block;
        cycles[lane] = r.block == kNoBlock ? ~0u : static_cast<uint32_t>(r.clock & (kCount - 1));
      });
      const uint32_t behind = warp.minimum(cycles);
      if (behind == ~0u) break;
      if (reconverge) {
        warp.each([&](int lane) { votes[lane] = cycles[lane] == behind; });
        const uint32_t chosen = warp.from(blocks, lowest_bit(warp.ballot(votes)));
        warp.each([&](int lane) { votes[lane] = blocks[lane] == chosen; });
        warp.count(warp.ballot(votes), Program::instructions(chosen));
      } else {
        warp.each([&](int lane) { votes[lane] = blocks[lane] != kNoBlock; });
        count_plain(warp, blocks);
      }
      warp.each([&](int lane) {
        if (votes[lane]) run_one(lane, blocks[lane]);
      });
    }
  }

 private:
  // A warp executes the blocks that its lanes are at one after the other.
  HR_DEVICE static void count_plain(const Warp& warp, const PerLane<uint32_t>& blocks) {
#ifndef __CUDACC__
    uint32_t left = 0;
    for (int lane = 0; lane < kLanes; ++lane) left |= static_cast<uint32_t>(blocks[lane] != kNoBlock) << lane;
    while (left) {
      const uint32_t block = blocks[lowest_bit(left)];
      uint32_t there = 0;
      for (int lane = 0; lane < kLanes; ++lane) there |= static_cast<uint32_t>(blocks[lane] == block) << lane;
      warp.count(there, Program::instructions(block));
      left &= ~there;
    }
#else
    static_cast<void>(warp), static_cast<void>(blocks);
#endif
  }
};

}  // namespace headrace::atari

// --- what blocks are written in: the handlers of the decoded interpreter, with their operands known when compiling ---

#include "atari/core/loop_macros.hpp"
#undef HR_COMPUTED_GOTO
#undef HR_CASE
#undef HR_DISPATCH
#undef HR_NEXT
#undef HR_TO_TIA
#undef HR_TO_REGISTER
#undef HR_TO_INDEXED
#undef HR_PC
#define HR_CASE(name)
#define HR_DISPATCH
#define HR_NEXT(length, cycles) clock += kCount + (cycles);
#define HR_PC at

// The registers by the names that the handlers use. `M`: the mapper.
#define HR_BLOCK_LOCALS                                                                       \
  uint32_t &a = r.a, &x = r.x, &y = r.y, &sp = r.sp, &nz = r.nz, &carry = r.carry;            \
  uint32_t &overflow = r.overflow, &decimal = r.decimal;                                      \
  uint64_t& clock = r.clock;                                                                  \
  constexpr uint64_t watched = kWatchedClock;                                                 \
  const uint8_t* const rom = frame.cartridge->rom;                                            \
  uint32_t at = 0, next = kInterpretedBlock, value = 0, reg = 0;                              \
  Decoded code = 0;                                                                           \
  static_cast<void>(rom), static_cast<void>(value), static_cast<void>(reg), static_cast<void>(watched);

// An instruction begins.
#define HR_AT(address, decoded) at = address, code = decoded;
// The block ends.
#define HR_TO(address, block) { at = address; next = block; goto done; }
#define HR_TO_FOUND(address) { at = address; next = find(s, at); goto done; }

// A write to a register of the TIA after the clock was advanced. From a certain cycle on it ends the frame.
#define HR_WRITTEN(write, reg, value, length)                                \
  {                                                                          \
    const int32_t cycle_of_write = HR_CYCLE;                                 \
    write(s, frame, reg, static_cast<uint8_t>(value), cycle_of_write);       \
    if (HR_UNLIKELY(cycle_of_write >= frame.limit_cycle)) {                  \
      at += length;                                                          \
      goto complete;                                                         \
    }                                                                        \
  }
#define HR_TO_TIA(name, source, length, cycles) \
  {                                             \
    clock += kCount + (cycles);                 \
    HR_WRITTEN(write_tia, static_cast<int>(HR_OPERAND), source, length) \
  }
#define HR_TO_REGISTER(name, source, target)                 \
  {                                                          \
    clock += kCount + 3;                                     \
    HR_WRITTEN(write_tia, static_cast<int>(HR_OPERAND), source, 2) \
  }
#define HR_TO_INDEXED(name, source, index)                                    \
  {                                                                           \
    const uint32_t address = (HR_OPERAND + index) & 0xFF;                     \
    if (HR_LIKELY(address & 0x80)) {                                          \
      HR_RAM(address & 0x7F) = static_cast<uint8_t>(source);                  \
      clock += kCount + 4;                                                    \
    } else {                                                                  \
      if (is_special_register(address & 63)) goto step;                       \
      clock += kCount + 4;                                                    \
      HR_WRITTEN(write_tia, static_cast<int>(address & 63), source, 2)        \
    }                                                                         \
  }
#define HR_BLOCK_PUSH(what)                                                   \
  {                                                                           \
    value = what;                                                             \
    if (HR_LIKELY(sp & 0x80)) {                                               \
      HR_RAM(sp & 0x7F) = static_cast<uint8_t>(value);                        \
      sp = (sp - 1) & 0xFF;                                                   \
      clock += kCount + 3;                                                    \
    } else {                                                                  \
      reg = sp & 63;                                                          \
      if (is_special_register(reg)) goto step;                                \
      sp = (sp - 1) & 0xFF;                                                   \
      clock += kCount + 3;                                                    \
      HR_WRITTEN(write_tia, static_cast<int>(reg), value, 1)                  \
    }                                                                         \
  }
#define HR_BLOCK_PULL_A                                                       \
  {                                                                           \
    const uint32_t before = sp;                                               \
    sp = (sp + 1) & 0xFF;                                                     \
    if (HR_LIKELY(sp & 0x80)) a = HR_RAM(sp & 0x7F);                          \
    else a = read_tia(s, frame, static_cast<uint16_t>(sp), before & 0x80 ? HR_RAM(before & 0x7F) : 0, HR_CYCLE + 4); \
    nz = a;                                                                   \
    clock += kCount + 4;                                                      \
  }
#define HR_BLOCK_PULL_FLAGS                                                   \
  {                                                                           \
    if (HR_UNLIKELY(sp < 0x7F || sp == 0xFF)) goto step;                      \
    ++sp;                                                                     \
    const uint32_t p = HR_RAM(sp & 0x7F);                                     \
    nz = (p & 0x80) << 8 | !(p & 2);                                          \
    overflow = p >> 6 & 1;                                                    \
    decimal = p >> 3 & 1;                                                     \
    s.interrupt_disable = p >> 2 & 1;                                         \
    carry = p & 1;                                                            \
    clock += kCount + 4;                                                      \
  }
// Followed by the ways on.
#define HR_BLOCK_BRANCH(condition, go_there) \
  clock += kCount + 2;                       \
  if (condition) {                           \
    clock += HR_EXTRA;                       \
    go_there                                 \
  }
#define HR_BLOCK_JUMP_INDIRECT                                                                                      \
  {                                                                                                                 \
    const uint32_t pointer = HR_OPERAND, pointer_high = (pointer & 0xFF00) | ((pointer + 1) & 0xFF);                \
    uint32_t target;                                                                                                \
    if (is_ram(pointer) && is_ram(pointer_high)) target = HR_RAM(pointer & 0x7F) | HR_RAM(pointer_high & 0x7F) << 8;  \
    else if (RomView<M>::plain(pointer) && RomView<M>::plain(pointer_high))                                         \
      target = HR_ROM(pointer) | HR_ROM(pointer_high) << 8;                                                         \
    else goto step;                                                                                                 \
    if (HR_UNLIKELY(!(target & 0x1000))) goto step;                                                                 \
    clock += kCount + 5;                                                                                            \
    HR_TO_FOUND(target)                                                                                             \
  }
#define HR_BLOCK_CALL                                                         \
  {                                                                           \
    if (HR_UNLIKELY(sp < 0x81)) goto step;                                    \
    HR_RAM(sp & 0x7F) = static_cast<uint8_t>((at + 2) >> 8);                  \
    HR_RAM((sp - 1) & 0x7F) = static_cast<uint8_t>(at + 2);                   \
    sp -= 2;                                                                  \
    clock += kCount + 6;                                                      \
  }
#define HR_BLOCK_RETURN                                                       \
  {                                                                           \
    if (HR_UNLIKELY(sp < 0x7F || sp > 0xFD)) goto step;                       \
    const uint32_t target = (HR_RAM((sp + 1) & 0x7F) | HR_RAM((sp + 2) & 0x7F) << 8) + 1; \
    if (HR_UNLIKELY(!(target & 0x1000) || target > 0xFFFF)) goto step;        \
    sp += 2;                                                                  \
    clock += kCount + 6;                                                      \
    HR_TO_FOUND(target)                                                       \
  }
#define HR_BLOCK_WAIT                                                         \
  {                                                                           \
    const int32_t cycle = HR_CYCLE + 3;                                       \
    if (HR_UNLIKELY(cycle >= frame.limit_cycle)) goto step;                   \
    note_access(s, 3 * cycle);                                                \
    clock += kCount + static_cast<uint32_t>(3 + (kLineCycles - cycle % kLineCycles) % kLineCycles); \
  }
// The ways out of all blocks. `step`: the complete interpreter has to execute the instruction at `at`. `complete`: the write
// before it has ended the frame.
#define HR_BLOCK_EXITS                                            \
step:                                                             \
  next = kInterpretedBlock;                                       \
done:                                                             \
  r.pc = at;                                                      \
  r.block = clock >= watched ? uint32_t{kInterpretedBlock} : next; \
  return;                                                         \
complete:                                                         \
  r.pc = at;                                                      \
  r.block = kNoBlock;                                             \
  store_registers(s, r);

// Programs translated to machine code while they run, one translation per game. Only for x86-64 under Linux; elsewhere, and
// where the system does not let memory be made executable, the decoded interpreter (core/run_loop.hpp) runs everything.
#pragma once

#include <memory>

#include "atari/core/console.hpp"

#if defined(__x86_64__) && defined(__linux__)
#define HR_TRANSLATES 1
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

#include "atari/jit/translator.hpp"
#endif

namespace headrace::atari {

#ifdef HR_TRANSLATES

// Shared by all consoles of a game, in any number of threads. The addresses for the code are reserved once; each fragment gets
// pages of its own, which are made executable and read-only before an entry leads other threads to them.
class Translation {
 public:
  // Returns null where memory cannot be made executable. The cartridge has to stay at its address.
  static std::unique_ptr<Translation> make(const Cartridge& cart) {
    std::unique_ptr<Translation> translation(new Translation(cart));
    if (!translation->memory_ || !translation->entries_ || !translation->add_frame_code()) return nullptr;
    return translation;
  }

  ~Translation() {
    if (memory_) munmap(memory_, kMemoryBytes);
    if (entries_) munmap(entries_, kEntryBytes);
  }
  Translation(const Translation&) = delete;
  Translation& operator=(const Translation&) = delete;

  // Executes at most a frame. The console's registers are in memory before and after.
  //
  // Translated code does not count instructions. None takes less than two cycles, so only a frame of more than 2 *
  // kWatchedInstructions cycles can meet the limit of 25,000 instructions: it is repeated from its beginning by the decoded
  // interpreter, which counts. The screen needs no repair, because the repetition draws the same pixels.
  void run(Console& s, const Frame& frame) {
    constexpr int32_t watched_cycles = 2 * kWatchedInstructions;
    const Console before = s;
    const int32_t watched = s.cycle + watched_cycles;
    while (true) {
      const uint8_t* code = find(s);
      const bool step = code == nullptr || enter_(code, s, frame, watched, frame.limit_cycle);
      if (step) step_instruction(s, frame);
      if (s.frame_complete || s.jammed) return;
      if (s.cycle >= watched) {
        s = before;
        return run_decoded(s, frame);
      }
    }
  }

 private:
  using Enter = uint32_t (*)(const uint8_t* code, Console&, const Frame&, int32_t watched, int32_t limit_cycle);

  explicit Translation(const Cartridge& cart) : cart_(cart) {
    const auto map = [](size_t bytes, int protection) -> void* {
      void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      return memory == MAP_FAILED ? nullptr : memory;
    };
    memory_ = static_cast<uint8_t*>(map(kMemoryBytes, PROT_NONE));
    entries_ = static_cast<std::atomic<uint32_t>*>(map(kEntryBytes, PROT_READ | PROT_WRITE));
  }

  // The code at the console's pc, which is translated first if it is not yet. Null: the complete interpreter has to execute the
  // instruction there.
  const uint8_t* find(const Console& s) {
    if (!(s.pc & 0x1000)) return nullptr;
    const Place place{s.pc, s.bank, s.slice[s.pc >> 10 & 3]};
    const uint32_t index = index_of(cart_.mapper, place, place.pc);
    const uint32_t entry = entries_[index].load(std::memory_order_acquire);
    if (HR_LIKELY(entry)) return memory_ + entry;
    if ((cart_.decoded[image_offset(cart_.mapper, place, place.pc)] & 0xFF) == kStep) return nullptr;
    return translate(place, index);
  }

  const uint8_t* translate(const Place& place, uint32_t index) {
    const std::lock_guard lock(mutex_);
    if (const uint32_t entry = entries_[index].load(std::memory_order_relaxed)) return memory_ + entry;
    if (full_) return nullptr;
    static_assert(sizeof *entries_ == sizeof(uint32_t));
    Translator translator({cart_, reinterpret_cast<const uint32_t*>(entries_), memory_, leave_to_step_, leave_to_dispatch_},
                          place, used_);
    translator.run();
    const uint32_t at = used_;
    if (!add_code(translator.code())) {
      full_ = true;
      return nullptr;
    }
    for (const Translator::Entry& entry : translator.entries())
      entries_[entry.index].store(at + entry.offset, std::memory_order_release);
    const uint32_t entry = entries_[index].load(std::memory_order_relaxed);
    return entry ? memory_ + entry : nullptr;
  }

  bool add_code(const std::vector<uint8_t>& code) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = (code.size() + page - 1) / page * page;
    if (used_ + bytes > kMemoryBytes) return false;
    uint8_t* target = memory_ + used_;
    if (mprotect(target, bytes, PROT_READ | PROT_WRITE)) return false;
    std::memcpy(target, code.data(), code.size());
    if (mprotect(target, bytes, PROT_READ | PROT_EXEC)) return false;
    used_ += static_cast<uint32_t>(bytes);
    return true;
  }

  // The way into translated code, and the ways out of it. `enter_` returns 1 if the complete interpreter has to execute the next
  // instruction, otherwise 0.
  bool add_frame_code() {
    Assembler out;
    static constexpr Reg saved[] = {rbx, rbp, r12, r13, r14, r15};
    constexpr uint8_t locals = 24;  // also aligns the stack
    for (const Reg reg : saved) out.push(reg);
    out.alu64(Alu::kSub, rsp, locals);
    out.mov64(rbx, rsi);
    out.mov64({rsp, 8}, rdx);
    out.mov({rsp, 0}, rcx);
    out.mov({rsp, 4}, r8);
    const auto field = [](size_t offset) { return Mem{rbx, static_cast<int32_t>(offset)}; };
    out.movzx8(r12, field(offsetof(Console, a)));
    out.movzx8(r13, field(offsetof(Console, x)));
    out.movzx8(r14, field(offsetof(Console, y)));
    out.movzx16(rbp, field(offsetof(Console, nz)));
    out.mov(r15, field(offsetof(Console, cycle)));
    out.jump_to(rdi);
    leave_to_step_ = out.here();
    out.mov(rcx, 1u);
    const Assembler::Label store = out.label();
    out.jump(store);
    leave_to_dispatch_ = out.here();
    out.mov(rcx, 0u);
    out.bind(store);
    out.mov16(field(offsetof(Console, pc)), rax);
    out.mov8(field(offsetof(Console, a)), r12);
    out.mov8(field(offsetof(Console, x)), r13);
    out.mov8(field(offsetof(Console, y)), r14);
    out.mov16(field(offsetof(Console, nz)), rbp);
    out.mov(field(offsetof(Console, cycle)), r15);
    out.mov(rax, rcx);
    out.alu64(Alu::kAdd, rsp, locals);
    for (int i = 5; i >= 0; --i) out.pop(saved[i]);
    out.ret();
    out.link();
    enter_ = reinterpret_cast<Enter>(memory_);
    return add_code(out.code());
  }

  static constexpr size_t kMemoryBytes = 1 << 21, kEntryBytes = kEntries * sizeof(uint32_t);

  const Cartridge& cart_;
  uint8_t* memory_;
  std::atomic<uint32_t>* entries_;  // by index_of: distance of the code from memory_, 0 if there is none
  Enter enter_ = nullptr;
  uint32_t leave_to_step_ = 0, leave_to_dispatch_ = 0;
  std::mutex mutex_;  // guards the rest
  uint32_t used_ = 0;
  bool full_ = false;
};

#else

class Translation {
 public:
  static std::unique_ptr<Translation> make(const Cartridge&) { return nullptr; }
  void run(Console& s, const Frame& frame) { run_decoded(s, frame); }
};

#endif

}  // namespace headrace::atari

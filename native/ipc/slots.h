// Who owns which slot of a trajectory store: a table of credits that survives the death of every owner.
#pragma once

#include <cstddef>

#include "ipc/futex.h"

namespace headrace::ipc {

// One 32-bit word per slot: life (16 bits) | owner (16 bits). Owner 0 is nobody: the slot is free. Every transfer is one
// compare-and-swap of that word, and every time a slot becomes free its life goes up by one:
//
//   acquire   free               -> owner                     by a rollout worker that needs a slot
//   transfer  (life, owner)      -> (life, new owner)         by the learner, for the ticket it got from a queue
//   release   (life, owner)      -> (life + 1, free)          by the owner that is done
//   reclaim   every word of owner -> (life + 1, free)         by the parent that has reaped the owner's process
//
// A ticket is the word's life and the slot's number, small enough for a Queue (slots < 2^15, so that it is not
// negative). A slot is never lost and never owned twice: an owner killed before a swap did not get the slot, after it the
// table says that it has it. A ticket left in a queue by a worker that died since is refused by transfer(), because the
// slot's life has moved on. The ticket would have to stay in a queue for 2^16 lives of its slot to be taken for another.
//
// Contract. An owner's number is not given to a new process before reclaim() for the old one returned.
class Slots {
 public:
  static constexpr uint64_t kMagic = 0x31746f6c5368ull;
  static constexpr uint32_t kMost = 1u << 15;

  static constexpr size_t bytes(uint32_t n) { return sizeof(Slots) + sizeof(std::atomic<uint32_t>) * n; }

  // Memory must be zeroed, aligned to 64 and bytes(n) long; 0 < n <= kMost.
  void init(uint32_t n) {
    n_ = n;
    magic_.store(kMagic);
  }
  bool initialised() const { return magic_.load() == kMagic; }
  uint32_t size() const { return n_; }

  uint32_t word(uint32_t slot) const { return words()[slot].load(); }
  static uint32_t owner_of(uint32_t word) { return word & 0xffff; }
  static uint32_t life_of(uint32_t word) { return word >> 16; }

  // The number of slots taken for `owner` into `out`: at most n.
  size_t try_acquire(uint32_t owner, int32_t* out, size_t n) {
    size_t done = 0;
    const uint32_t start = next_.load(std::memory_order_relaxed) % n_;
    for (uint32_t i = 0; i < n_ && done < n; ++i) {
      const uint32_t slot = start + i < n_ ? start + i : start + i - n_;
      uint32_t seen = words()[slot].load();
      if (owner_of(seen) == 0 && words()[slot].compare_exchange_strong(seen, seen | owner)) {
        out[done++] = static_cast<int32_t>(slot);
        next_.store(slot + 1, std::memory_order_relaxed);  // a hint: where to look first
      }
    }
    return done;
  }

  template <class Interrupted>
  size_t acquire(uint32_t owner, int32_t* out, size_t n, Deadline deadline, Interrupted interrupted) {
    size_t done = 0;
    wait_until(freed_, [&] { return (done = try_acquire(owner, out, n)) > 0; }, deadline, interrupted);
    return done;
  }

  // 15 bits of slot, 16 of life: never negative.
  int32_t ticket(uint32_t slot) const { return static_cast<int32_t>(life_of(word(slot)) << 15 | slot); }
  static uint32_t slot_of(int32_t ticket) { return static_cast<uint32_t>(ticket) & (kMost - 1); }

  // True where the slot still lives the life of the ticket and somebody else owned it; `owner` owns it now.
  bool transfer(int32_t ticket, uint32_t owner) {
    std::atomic<uint32_t>& word = words()[slot_of(ticket)];
    uint32_t seen = word.load();
    return life_of(seen) == static_cast<uint32_t>(ticket) >> 15 && owner_of(seen) != 0 && owner_of(seen) != owner &&
           word.compare_exchange_strong(seen, (seen & 0xffff0000) | owner);
  }

  // True where `owner` owned the slot, which is free now.
  bool release(uint32_t slot, uint32_t owner) {
    if (!set_free(slot, owner)) return false;
    freed_.notify(1);
    return true;
  }

  // Frees everything the owner had; returns how many slots.
  size_t reclaim(uint32_t owner) {
    size_t freed = 0;
    for (uint32_t slot = 0; slot < n_; ++slot) freed += set_free(slot, owner);
    freed_.notify();
    return freed;
  }

  size_t owned(uint32_t owner) const {
    size_t n = 0;
    for (uint32_t slot = 0; slot < n_; ++slot) n += owner_of(word(slot)) == owner;
    return n;
  }

 private:
  bool set_free(uint32_t slot, uint32_t owner) {
    uint32_t seen = words()[slot].load();
    return owner_of(seen) == owner &&
           words()[slot].compare_exchange_strong(seen, (seen & 0xffff0000) + 0x10000);
  }

  std::atomic<uint32_t>* words() { return reinterpret_cast<std::atomic<uint32_t>*>(this + 1); }
  const std::atomic<uint32_t>* words() const { return reinterpret_cast<const std::atomic<uint32_t>*>(this + 1); }

  alignas(64) std::atomic<uint64_t> magic_;
  uint32_t n_;
  std::atomic<uint32_t> next_;
  alignas(64) Signal freed_;
};

}  // namespace headrace::ipc

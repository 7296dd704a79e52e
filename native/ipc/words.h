// Counters and bit masks in shared memory that a process can sleep on.
#pragma once

#include "ipc/futex.h"

namespace headrace::ipc {

// A 32-bit word on a cache line of its own. Every change wakes the waiters; without waiters that costs one load.
// Nothing is left behind by a killed participant (see Signal).
class alignas(64) Word {
 public:
  uint32_t load() const { return value_.load(); }
  void store(uint32_t value) { value_.store(value), changed_.notify(); }
  uint32_t add(uint32_t k) { return changed(value_.fetch_add(k)) + k; }
  uint32_t fetch_or(uint32_t bits) { return changed(value_.fetch_or(bits)); }
  uint32_t fetch_and(uint32_t mask) { return changed(value_.fetch_and(mask)); }
  uint32_t exchange(uint32_t value) { return changed(value_.exchange(value)); }
  bool compare_exchange(uint32_t expected, uint32_t desired) {
    if (!value_.compare_exchange_strong(expected, desired)) return false;
    changed_.notify();
    return true;
  }

  // Waits until ready(value); returns the value last seen.
  template <class Ready, class Interrupted>
  uint32_t wait(Ready ready, Deadline deadline, Interrupted interrupted) {
    uint32_t seen = 0;
    wait_until(changed_, [&] { return ready(seen = load()); }, deadline, interrupted);
    return seen;
  }

 private:
  uint32_t changed(uint32_t before) {
    changed_.notify();
    return before;
  }

  std::atomic<uint32_t> value_;
  Signal changed_;
};

}  // namespace headrace::ipc

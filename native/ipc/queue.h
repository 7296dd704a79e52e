// A bounded queue of 32-bit integers in shared memory, for any number of producers and consumers in any processes.
#pragma once

#include <cstddef>
#include <optional>

#include "ipc/futex.h"

namespace headrace::ipc {

// A ring of 64-bit cells {turn, value}. Position p (0, 1, 2, ...) lives in cell p % capacity on lap p / capacity; its
// cell is empty on turn 2 * lap and full on turn 2 * lap + 1, so reserving and publishing are ONE compare-and-swap:
//
//   put:  {2 lap, -}      -> {2 lap + 1, value}      at the first position not filled
//   get:  {2 lap + 1, v}  -> {2 (lap + 1), 0}        at the first position not emptied
//
// `tail` and `head` are hints: every position below tail was filled, every position below head was emptied. Whoever
// meets a hint that lags walks past the cells that are done and moves it on. A participant killed at any instruction
// therefore leaves nothing half done: its put or get happened or did not, and nobody waits for it.
//
// Contract. Values come out in the order in which their swaps took place; a value put is got by exactly one consumer.
// What a consumer was killed with in its hands is gone: who may lose work keeps a record of who holds what (Slots).
// A put happens before the get of its value (release / acquire), so memory written before put() is seen after get().
// close() ends the stream: puts are refused at once, gets when nothing is left.
// Turns wrap after 2^31 laps: a participant would have to sleep through exactly that many to take one for another.
class Queue {
 public:
  static constexpr uint64_t kMagic = 0x31657565755168ull;

  static constexpr size_t bytes(uint32_t capacity) { return sizeof(Queue) + sizeof(std::atomic<uint64_t>) * capacity; }

  // Memory must be zeroed, aligned to 64 and bytes(capacity) long; capacity a power of two.
  void init(uint32_t capacity) {
    capacity_ = capacity;
    magic_.store(kMagic);
  }
  bool initialised() const { return magic_.load() == kMagic; }
  uint32_t capacity() const { return capacity_; }

  // The number of the values that were put: all, or fewer because the queue was full.
  size_t try_put(const int32_t* values, size_t n) {
    uint64_t position = tail_.load(std::memory_order_acquire);
    size_t done = 0;
    while (done < n) {
      std::atomic<uint64_t>& cell = cells()[position & (capacity_ - 1)];
      const uint32_t empty = turn_of(position);
      uint64_t seen = cell.load(std::memory_order_acquire);
      const int32_t ahead = static_cast<int32_t>(turn(seen) - empty);
      if (ahead < 0) break;  // the value of the lap before is still there: full
      if (ahead == 0) {
        if (!cell.compare_exchange_strong(seen, pack(empty + 1, values[done]))) continue;
        ++done;
      }
      position = ahead > 1 ? std::max(position + 1, tail_.load(std::memory_order_acquire)) : position + 1;
    }
    advance(tail_, position);
    if (done) {
      arrived_.notify(static_cast<int>(std::min<size_t>(done, INT_MAX)));
      if (gathered_.watched() && size() >= wanted_.load()) gathered_.notify();
    }
    return done;
  }

  // The number of values taken into `out`: at most n, fewer where the queue ran empty.
  size_t try_get(int32_t* out, size_t n) {
    uint64_t position = head_.load(std::memory_order_acquire);
    size_t done = 0;
    while (done < n) {
      std::atomic<uint64_t>& cell = cells()[position & (capacity_ - 1)];
      const uint32_t full = turn_of(position) + 1;
      uint64_t seen = cell.load(std::memory_order_acquire);
      const int32_t ahead = static_cast<int32_t>(turn(seen) - full);
      if (ahead < 0) break;  // not filled on this lap: empty
      if (ahead == 0) {
        if (!cell.compare_exchange_strong(seen, pack(full + 1, 0))) continue;
        out[done++] = value(seen);
      }
      position = ahead > 1 ? std::max(position + 1, head_.load(std::memory_order_acquire)) : position + 1;
    }
    advance(head_, position);
    if (done) freed_.notify(static_cast<int>(std::min<size_t>(done, INT_MAX)));
    return done;
  }

  // Exact while nobody else is at work, an estimate otherwise. Moves lagging hints on: a value is counted even if its
  // producer was killed before it could.
  size_t size() {
    const uint64_t head = settle(head_, 1), tail = settle(tail_, 0);
    return tail > head ? std::min<uint64_t>(tail - head, capacity_) : 0;
  }

  void close() {
    closed_.store(1);
    arrived_.notify();
    gathered_.notify();
    freed_.notify();
  }
  bool closed() const { return closed_.load() != 0; }

  // Puts all n values, waiting for room; returns the number put by the deadline or until close().
  template <class Interrupted>
  size_t put(const int32_t* values, size_t n, Deadline deadline, Interrupted interrupted) {
    size_t done = 0;
    wait_until(freed_, [&] { return closed() || (done += try_put(values + done, n - done)) == n; }, deadline,
               interrupted);
    return done;
  }

  // Waits for the first value until the deadline; then for at_least values in all, but no longer than `patience`
  // seconds; then takes what is there, at most n. Values stay in the queue meanwhile, where others may take them.
  template <class Interrupted>
  size_t get(int32_t* out, size_t n, size_t at_least, Deadline deadline, double patience, Interrupted interrupted) {
    at_least = std::min<size_t>({at_least, n, capacity_});
    size_t done = 0;
    while (done == 0) {
      if (at_least > 1 && patience > 0) {
        const bool any = wait_until(arrived_, [&] { return closed() || size() > 0; }, deadline, interrupted);
        if (any && !closed() && size() < at_least) {
          wanted_.store(static_cast<uint32_t>(at_least));
          wait_until(gathered_, [&] { return closed() || size() >= at_least; }, Deadline::after(patience), interrupted);
        }
        done = try_get(out, n);
        if (done == 0 && (closed() || deadline.passed())) return try_get(out, n);
      } else {
        wait_until(arrived_, [&] { return (done = try_get(out, n)) > 0 || closed(); }, deadline, interrupted);
        // A value may have come between the last look and close().
        return done ? done : try_get(out, n);
      }
    }
    return done;
  }

 private:
  static uint64_t pack(uint32_t turn, int32_t value) { return uint64_t{turn} << 32 | static_cast<uint32_t>(value); }
  static uint32_t turn(uint64_t cell) { return static_cast<uint32_t>(cell >> 32); }
  static int32_t value(uint64_t cell) { return static_cast<int32_t>(static_cast<uint32_t>(cell)); }
  uint32_t turn_of(uint64_t position) const { return static_cast<uint32_t>(position / capacity_ * 2); }

  static void advance(std::atomic<uint64_t>& hint, uint64_t position) {
    uint64_t seen = hint.load();
    while (seen < position && !hint.compare_exchange_weak(seen, position)) {
    }
  }

  // Moves the hint past cells that are done already, which are those further on than `turn` of their position's lap.
  uint64_t settle(std::atomic<uint64_t>& hint, uint32_t turn_in_lap) {
    const uint64_t start = hint.load();
    uint64_t position = start;
    while (static_cast<int32_t>(turn(cells()[position & (capacity_ - 1)].load()) - turn_of(position) - turn_in_lap) > 0)
      ++position;
    if (position != start) advance(hint, position);
    return position;
  }

  std::atomic<uint64_t>* cells() { return reinterpret_cast<std::atomic<uint64_t>*>(this + 1); }

  alignas(64) std::atomic<uint64_t> magic_;
  uint32_t capacity_;
  std::atomic<uint32_t> closed_;
  alignas(64) std::atomic<uint64_t> tail_;
  alignas(64) std::atomic<uint64_t> head_;
  alignas(64) Signal arrived_;             // waited for by consumers that want any value
  Signal gathered_;                        // waited for by consumers that want `wanted_` values
  std::atomic<uint32_t> wanted_;           // of the consumer that asked last; its patience bounds what others lose
  alignas(64) Signal freed_;               // waited for by producers
};

}  // namespace headrace::ipc

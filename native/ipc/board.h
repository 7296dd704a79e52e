// A versioned blob in shared memory: one writer publishes, any number of readers copy the newest.
#pragma once

#include <cstddef>
#include <cstring>

#include "ipc/futex.h"

namespace headrace::ipc {

// Two buffers; the writer fills the one that is not current, then makes it current. Each buffer has a sequence number,
// odd while it is being written (a seqlock), so that a reader which was overtaken by two updates notices and copies again.
//
// Contract. One writer at a time. read() never returns a mixture of two updates, and never waits for the writer: one
// that is killed in the middle of an update leaves the current buffer untouched, and the next writer reuses the other.
// read() returns the version that belongs to the bytes it copied. Versions need not grow: a learner that went back to a
// checkpoint publishes an older one; readers compare for inequality.
class Board {
 public:
  static constexpr uint64_t kMagic = 0x316472616f4268ull;

  static constexpr size_t stride(size_t nbytes) { return (nbytes + 63) / 64 * 64; }
  static constexpr size_t bytes(size_t nbytes) { return sizeof(Board) + 2 * stride(nbytes); }

  // Memory must be zeroed, aligned to 64 and bytes(nbytes) long.
  void init(uint64_t nbytes) {
    nbytes_ = nbytes;
    magic_.store(kMagic);
  }
  bool initialised() const { return magic_.load() == kMagic; }
  uint64_t nbytes() const { return nbytes_; }

  // Number of updates published, and the version of the newest (0 before the first).
  uint64_t updates() const { return current_.load() / 2; }
  uint64_t version() const {
    for (;;) {
      const uint64_t current = current_.load();
      const uint64_t version = buffers_[current & 1].version.load();
      if (current_.load() == current) return version;
    }
  }

  void publish(const std::byte* from, uint64_t version) {
    const uint64_t current = current_.load();
    const unsigned spare = ~current & 1;
    Buffer& buffer = buffers_[spare];
    // A writer that was killed here left the number odd; it changes in any case, and is odd.
    buffer.sequence.store((buffer.sequence.load() + 1) | 1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    buffer.version.store(version, std::memory_order_relaxed);
    copy_words(data(spare), from);
    std::atomic_thread_fence(std::memory_order_release);
    buffer.sequence.store(buffer.sequence.load() + 1);
    current_.store((current / 2 + 1) * 2 + spare);
    published_.notify();
  }

  uint64_t read(std::byte* to) {
    for (;;) {
      const unsigned newest = current_.load() & 1;
      const Buffer& buffer = buffers_[newest];
      const uint64_t sequence = buffer.sequence.load(std::memory_order_acquire);
      if (sequence & 1) continue;  // two updates began since `current` was read
      const uint64_t version = buffer.version.load(std::memory_order_relaxed);
      copy_words(to, data(newest));
      std::atomic_thread_fence(std::memory_order_acquire);
      if (buffer.sequence.load(std::memory_order_relaxed) == sequence) return version;
    }
  }

  template <class Interrupted>
  bool wait(uint64_t updates_seen, Deadline deadline, Interrupted interrupted) {
    return wait_until(published_, [&] { return updates() != updates_seen; }, deadline, interrupted);
  }

 private:
  struct alignas(64) Buffer {
    std::atomic<uint64_t> sequence;
    std::atomic<uint64_t> version;
  };

  std::byte* data(unsigned buffer) { return reinterpret_cast<std::byte*>(this + 1) + buffer * stride(nbytes_); }

  // What a reader copies while the writer overtakes it is thrown away, but the race is real: the thread sanitizer is
  // shown atomic bytes.
  void copy_words(std::byte* to, const std::byte* from) const {
#ifdef __SANITIZE_THREAD__
    for (size_t i = 0; i < nbytes_; ++i) {
      std::byte byte;
      __atomic_load(from + i, &byte, __ATOMIC_RELAXED);
      __atomic_store(to + i, &byte, __ATOMIC_RELAXED);
    }
#else
    std::memcpy(to, from, nbytes_);
#endif
  }

  alignas(64) std::atomic<uint64_t> magic_;
  uint64_t nbytes_;
  alignas(64) std::atomic<uint64_t> current_;  // updates << 1 | buffer of the newest
  Signal published_;
  Buffer buffers_[2];
};

}  // namespace headrace::ipc

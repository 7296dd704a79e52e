// A versioned blob in shared memory: one writer publishes, any number of readers copy the newest.
#pragma once

#include <cstddef>
#include <cstring>

#include "ipc/futex.h"

namespace headrace::ipc {

// Update u (1, 2, ...) goes into buffer u % 2. The writer stores begun = u, fills the buffer, stores finished = u. A reader
// copies the buffer of update u = finished; the copy is whole unless the writer has begun update u + 2 meanwhile, then it
// copies again. An update that was begun and not finished, because the writer was killed, has touched only the buffer that
// nobody reads; the next writer begins it anew.
//
// Contract. One writer at a time. read() never returns a mixture of two updates, nor one that was not finished, and never
// waits for the writer. It returns the version that belongs to the bytes it copied. What a version means is the
// writer's business; readers look at updates() for news.
class VersionedBuffer {
 public:
  static constexpr uint64_t kMagic = 0x316472616f4268ull;

  static constexpr size_t stride(size_t nbytes) { return (nbytes + 63) / 64 * 64; }
  static constexpr size_t bytes(size_t nbytes) { return sizeof(VersionedBuffer) + 2 * stride(nbytes); }

  // Memory must be zeroed, aligned to 64 and bytes(nbytes) long.
  void init(uint64_t nbytes) {
    nbytes_ = nbytes;
    magic_.store(kMagic);
  }
  bool initialised() const { return magic_.load() == kMagic; }
  uint64_t nbytes() const { return nbytes_; }

  // Number of updates finished.
  uint64_t updates() const { return finished_.load(std::memory_order_acquire); }

  // Version of the newest update; 0 before the first.
  uint64_t version() const {
    for (;;) {
      const uint64_t update = updates();
      const uint64_t version = version_[update % 2].load(std::memory_order_relaxed);
      if (whole(update)) return version;
    }
  }

  void publish(const std::byte* from, uint64_t version) {
    const uint64_t update = updates() + 1;
    begun_.store(update, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // who sees any of the stores below sees begun
    version_[update % 2].store(version, std::memory_order_relaxed);
    copy_bytes(data(update), from);
    finished_.store(update);
    published_.notify();
  }

  uint64_t read(std::byte* to) {
    for (;;) {
      const uint64_t update = updates();
      const uint64_t version = version_[update % 2].load(std::memory_order_relaxed);
      copy_bytes(to, data(update));
      if (whole(update)) return version;
    }
  }

  template <class Interrupted>
  bool wait(uint64_t updates_seen, Deadline deadline, Interrupted interrupted) {
    return wait_until(published_, [&] { return updates() != updates_seen; }, deadline, interrupted);
  }

 private:
  // Whether what was loaded from the buffer of `update` belongs to it.
  bool whole(uint64_t update) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return begun_.load(std::memory_order_relaxed) < update + 2;
  }

  std::byte* data(uint64_t update) { return reinterpret_cast<std::byte*>(this + 1) + update % 2 * stride(nbytes_); }

  // What a reader copies while the writer overtakes it is thrown away, but the race is real: the thread sanitizer is
  // shown atomic bytes.
  void copy_bytes(std::byte* to, const std::byte* from) const {
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
  alignas(64) std::atomic<uint64_t> begun_;
  std::atomic<uint64_t> finished_;
  Signal published_;
  std::atomic<uint64_t> version_[2];
};

}  // namespace headrace::ipc

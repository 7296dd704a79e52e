// Results of a vector of environments, in memory that is used again.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace::atari {

// One row per result.
struct Batch {
  Batch(int size, size_t observation_bytes, bool with_finals)
      : size(static_cast<size_t>(size)), observations(size * observation_bytes), finals(with_finals ? size * observation_bytes : 0),
        numbers(5 * this->size), ends(2 * this->size) {}

  const size_t size;
  std::vector<uint8_t> observations, finals;
  std::vector<int32_t> numbers;  // [5, size]: rewards, environments, lives, frame numbers, episode frame numbers
  std::vector<uint8_t> ends;     // [2, size]: terminated, truncated; 0 or 1
  std::atomic<bool> any_final{false};
  // Guarded by the mutex of the vector that fills the batch:
  int missing = 0;           // rows still to be written
  std::exception_ptr error;  // of one of the rows
};

// Batches that are no longer referenced are used again, because new memory costs a page fault per 4 KB.
class BatchPool : public std::enable_shared_from_this<BatchPool> {
 public:
  BatchPool(int size, size_t observation_bytes, bool with_finals)
      : size_(size), observation_bytes_(observation_bytes), with_finals_(with_finals) {}

  std::shared_ptr<Batch> take() {
    std::unique_ptr<Batch> batch;
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        batch = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!batch) batch = std::make_unique<Batch>(size_, observation_bytes_, with_finals_);
    batch->any_final = false;
    batch->missing = size_;
    batch->error = nullptr;
    return {batch.release(), [pool = shared_from_this()](Batch* used) { pool->give_back(used); }};
  }

 private:
  void give_back(Batch* used) {
    std::unique_ptr<Batch> batch(used);
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdle) idle_.push_back(std::move(batch));
  }

  static constexpr size_t kMaxIdle = 4;
  const int size_;
  const size_t observation_bytes_;
  const bool with_finals_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Batch>> idle_;
};

}  // namespace headrace::atari

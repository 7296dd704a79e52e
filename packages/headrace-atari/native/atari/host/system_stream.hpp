// The table of the system stream's first numbers that all consoles of a process share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "atari/core/random.hpp"

namespace headrace::atari {

class SystemStream {
 public:
  static SystemStream& shared() {
    static SystemStream stream;
    return stream;
  }

  // At least the first `count` numbers. The table stays where it is.
  SystemDraws first(uint32_t count) {
    const std::lock_guard lock(mutex_);
    if (count > count_) grow(std::max(count, 2 * count_));
    return {tables_.back().get(), count_};
  }

 private:
  void grow(uint32_t count) {
    std::unique_ptr<uint32_t[]> table(new uint32_t[count]);
    if (count_ > 0) std::copy_n(tables_.back().get(), count_, table.get());
    for (uint32_t i = count_; i < count; ++i) table[i] = generator_();
    tables_.push_back(std::move(table));
    count_ = count;
  }

  std::mutex mutex_;
  Mt19937 generator_{kSystemSeed};
  std::vector<std::unique_ptr<uint32_t[]>> tables_;  // the last one holds all; consoles may still read the others
  uint32_t count_ = 0;
};

}  // namespace headrace::atari

// Adding rows to the histories. A history has one writer at a time; no lock, no wait.
#pragma once

#include <cmath>

#include "replay/memory.hpp"

namespace headrace::replay {

class HistoryWriter {
 public:
  HistoryWriter(Memory& memory, const Codec& codec) : memory_(memory), codec_(codec) {}

  // Begin to write a history, or go on with that of a dead writer: an unfinished episode there ends, and steps whose
  // n-step return the dead writer did not see start no transition. Returns the time of the next row.
  std::uint64_t open(std::uint64_t index) {
    History& history = memory_.histories[index];
    std::uint64_t head = history.head.load(std::memory_order_relaxed);
    std::uint64_t first = std::max(history.ready.load(std::memory_order_relaxed), history.low.load(std::memory_order_relaxed));
    for (std::uint64_t t = first; t < head; ++t) memory_.row(index, t).priority = -1.0f;
    history.ready.store(head, std::memory_order_release);
    history.next_age = 0;
    return head;
  }

  // Append rows (of which age and priority are not used). field_at(f, i): field f of row i, fields[f].bytes bytes. Returns
  // the time of the first.
  template <typename FieldAt>
  std::uint64_t append(std::uint64_t index, const std::vector<Row>& rows, const FieldAt& field_at) {
    const Config& config = memory_.config();
    History& history = memory_.histories[index];
    std::uint64_t first = history.head.load(std::memory_order_relaxed);
    for (std::uint64_t done = 0; done < rows.size();) {
      // Block by block, because a block is packed before its rows' places are used again.
      std::uint64_t t = first + done;
      std::uint64_t part = std::min(rows.size() - done, config.block - t % config.block);
      reserve(history, t + part);
      for (std::size_t f = 0; f < config.field_count; ++f) {
        std::uint64_t bytes = config.fields[f].bytes;
        std::byte* target = memory_.raw(f, index, t);
        for (std::uint64_t i = 0; i < part; ++i, target += bytes) std::memcpy(target, field_at(f, done + i), bytes);
      }
      for (std::uint64_t i = 0; i < part; ++i) put(history, memory_.row(index, t + i), rows[done + i]);
      if (config.codec != CodecKind::none && (t + part) % config.block == 0) pack(index, history, t / config.block);
      history.head.store(t + part, std::memory_order_release);
      done += part;
    }
    return first;
  }

  // First priorities of the oldest `count` rows that have none yet; they can be sampled from now on. Negative: no
  // transition starts there. Throws std::invalid_argument for a priority that is not finite and std::out_of_range for
  // rows not yet written.
  void ready(std::uint64_t index, std::uint64_t count, const float* priorities) {
    History& history = memory_.histories[index];
    std::uint64_t first = history.ready.load(std::memory_order_relaxed);
    if (first + count > history.head.load(std::memory_order_relaxed))
      throw std::out_of_range("priorities for rows that history " + std::to_string(index) + " does not have yet");
    for (std::uint64_t i = 0; i < count; ++i)
      if (!std::isfinite(priorities[i]))
        throw std::invalid_argument("priority of history " + std::to_string(index) + ", row " + std::to_string(first + i) +
                                    " is not finite");
    std::uint64_t low = history.low.load(std::memory_order_relaxed);
    for (std::uint64_t i = low > first ? low - first : 0; i < count; ++i) {  // rows before are overwritten already
      Row& row = memory_.row(index, first + i);
      row.priority = row.age_flags & kFinal ? -1.0f : priorities[i];
    }
    history.ready.store(first + count, std::memory_order_release);
  }

 private:
  // Called before rows up to `end` are written: forbids reading what they overwrite.
  void reserve(History& history, std::uint64_t end) {
    std::uint64_t rows = memory_.config().rows;
    raise_low(history, end > rows ? end - rows : 0);
  }

  // exchange() keeps later writes behind it; readers check `low` again after they copied (a seqlock).
  static void raise_low(History& history, std::uint64_t low) {
    if (low > history.low.load(std::memory_order_relaxed)) history.low.exchange(low, std::memory_order_acq_rel);
  }

  static void put(History& history, Row& target, const Row& row) {
    std::uint32_t flags = row.age_flags & ((1u << kFlagBits) - 1);
    if (flags & kFirst) history.next_age = 0;
    target = {row.reward, row.discount, -1.0f, history.next_age << kFlagBits | flags};
    ++history.next_age;
  }

  void pack(std::uint64_t index, History& history, std::uint64_t block) {
    const Config& config = memory_.config();
    for (std::size_t f = 0; f < config.field_count; ++f) {
      if (!config.fields[f].codec) continue;
      std::uint64_t full = config.block * config.fields[f].bytes;
      static thread_local std::vector<std::byte> packed;
      packed.resize(codec_.bound(full));
      std::uint64_t size =
          codec_.compress(memory_.raw(f, index, block * config.block), full, packed.data(), packed.size());
      std::uint64_t start = history.ring_end[f];
      if (start % config.ring_bytes + size > config.ring_bytes)  // a block does not wrap round the ring's end
        start += config.ring_bytes - start % config.ring_bytes;
      std::uint64_t oldest = history.low.load(std::memory_order_relaxed) / config.block;
      while (oldest < block && memory_.block(f, index, oldest).position + config.ring_bytes < start + size) ++oldest;
      raise_low(history, oldest * config.block);
      std::memcpy(memory_.ring(f, index) + start % config.ring_bytes, packed.data(), size);
      memory_.block(f, index, block) = {start, size};
      history.ring_end[f] = start + size;
    }
    history.blocks.store(block + 1, std::memory_order_release);
  }

  Memory& memory_;
  const Codec& codec_;
};

}  // namespace headrace::replay

// Rebuilding samples: n-step returns, frame stacks before and after, copied into memory that the caller gives.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <thread>
#include <unordered_map>

#include "replay/returns.hpp"
#include "replay/sampler.hpp"

namespace headrace::replay {

// Frames of samples, each once however many stacks it is part of. Stacks are then arrays of int32, the numbers of their frames.
struct FramePool {
  // frames: per field, room for them. Number 0 is a frame of zeros.
  FramePool(const Config& config, std::vector<std::byte*> frames) : frames(std::move(frames)), numbers(config.field_count) {
    for (std::size_t f = 0; f < config.field_count; ++f) {
      counts.push_back(config.fields[f].stack ? 1 : 0);
      if (config.fields[f].stack) std::memset(this->frames[f], 0, config.fields[f].bytes);
    }
    kept = counts;
  }

  // To be called behind every sample. Frames that only a sample has which was overwritten make room: it is drawn again, and
  // there is room for the frames of whole samples only.
  void sampled(bool intact) {
    if (intact) {
      kept = counts;
      return;
    }
    for (std::size_t f = 0; f < counts.size(); ++f)
      std::erase_if(numbers[f], [&](const auto& entry) { return static_cast<std::uint64_t>(entry.second) >= kept[f]; });
    counts = kept;
  }

  std::vector<std::byte*> frames;
  std::vector<std::uint64_t> counts;  // per field, frames that are there
  std::vector<std::uint64_t> kept;    // per field, those of whole samples
  std::vector<std::unordered_map<std::uint64_t, std::int32_t>> numbers;  // per field, by history and time as in a key
};

// Where the samples go, each array [count, ...]; null pointers are left out.
struct Batch {
  std::vector<std::byte*> first;  // per field: stacks that end at the transition's start; or, for stack 0, its value
  std::vector<std::byte*> next;   // per field: stacks n steps later; null for stack 0
  float* reward = nullptr;        // n-step return, discounted
  float* discount = nullptr;      // what the value of `next` is multiplied with
  FramePool* pool = nullptr;      // stacks are numbers of its frames; for one thread
};

// Rows in their order of time, [count, length, ...]: for recurrent learners and for checkpoints.
struct Windows {
  std::uint64_t length = 0;
  bool stacked = true;             // false: every row once, as it was added
  std::vector<std::byte*> fields;  // null pointers are left out
  float* reward = nullptr;
  float* discount = nullptr;
  std::uint32_t* age_flags = nullptr;
  FramePool* pool = nullptr;
};

// Bytes of one sample of a field.
inline std::uint64_t sample_bytes(const FieldSpec& spec, bool pooled, bool stacked = true) {
  std::uint64_t stack = stacked ? std::max(spec.stack, 1u) : 1;
  return stack * (pooled && spec.stack ? sizeof(std::int32_t) : spec.bytes);
}

class Assembler {
 public:
  Assembler(Memory& memory, const Codec& codec) : m_(memory), codec_(codec) {}

  // intact[i] = 0 if sample i was overwritten before or while it was read; its copy must not be used then.
  void transitions(std::size_t count, const std::uint64_t* keys, const Batch& batch, std::uint8_t* intact,
                   int threads) const {
    parallel(count, keys, threads, [&](std::size_t i) {
      intact[i] = transition(i, keys[i], batch);
      if (batch.pool) batch.pool->sampled(intact[i]);
    });
  }

  void windows(std::size_t count, const std::uint64_t* keys, const Windows& windows, std::uint8_t* intact,
               int threads) const {
    parallel(count, keys, threads, [&](std::size_t i) {
      intact[i] = window(i, keys[i], windows);
      if (windows.pool) windows.pool->sampled(intact[i]);
    });
  }

 private:
  template <typename Function>
  void parallel(std::size_t count, const std::uint64_t* keys, int threads, const Function& one) const {
    auto part = [&](std::size_t first, std::size_t last) {
      for (std::size_t i = first; i < last; ++i) {
        if (i + kAhead < last) prefetch(keys[i + kAhead]);
        one(i);
      }
#if defined(__SSE2__)
      _mm_sfence();  // streaming stores are ordered with nothing else
#endif
    };
    std::vector<std::jthread> helpers;
    std::size_t share = (count + threads - 1) / threads;
    for (std::size_t first = share; first < count; first += share)
      helpers.emplace_back(part, first, std::min(first + share, count));
    part(0, std::min(share, count));
  }

  // Samples lie all over the memory: small rows would wait for one cache miss after the other. Always inline: GCC takes a
  // function that only prefetches for one without an effect, and leaves calls of it out.
  static constexpr std::size_t kAhead = 16;
  __attribute__((always_inline)) void prefetch(std::uint64_t key) const {
    std::uint64_t history = Sampler::history_of(key), time = Sampler::time_of(key);
    std::size_t first = m_.leaf(history, time), after = m_.leaf(history, time + m_.config().n_step);
    __builtin_prefetch(m_.rows + first);
    __builtin_prefetch(m_.rows + after);
    for (std::size_t f = 0; f < m_.config().field_count; ++f) {
      const FieldSpec& spec = m_.config().fields[f];
      if (spec.codec) continue;
      __builtin_prefetch(m_.raw(f, first));
      if (spec.stack) __builtin_prefetch(m_.raw(f, after));
    }
  }

  bool intact(std::uint64_t history, std::uint64_t oldest) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return m_.histories[history].low.load(std::memory_order_relaxed) <= oldest;
  }

  bool transition(std::size_t i, std::uint64_t key, const Batch& batch) const {
    const Config& config = m_.config();
    std::uint64_t history = Sampler::history_of(key), time = Sampler::time_of(key);
    std::size_t first = m_.leaf(history, time), end = (history + 1) * config.rows;
    auto leaf_at = [&](std::uint64_t steps) { return first + steps - (first + steps < end ? 0 : config.rows); };
    auto row_at = [&](std::uint64_t steps) { return racy_row(m_.rows[leaf_at(steps)]); };
    Row start = row_at(0);
    NStepReturn r = n_step_return(config.n_step, row_at);
    // The row of the observation to bootstrap from. After an episode's end it is the true last observation, if that was
    // stored: it need not be when the episode terminated, for then the discount is zero and any observation serves.
    std::uint64_t after = time + r.steps;
    bool stored = after < m_.histories[history].head.load(std::memory_order_acquire) && (row_at(r.steps).age_flags & kFinal);
    if (r.ended && !stored) --after;
    Row row = row_at(after - time);
    if (batch.reward) batch.reward[i] = static_cast<float>(r.reward);
    if (batch.discount) batch.discount[i] = static_cast<float>(r.discount);
    for (std::size_t f = 0; f < config.field_count; ++f) {
      const FieldSpec& spec = config.fields[f];
      if (spec.stack <= 1 && !spec.codec && !batch.pool) {  // a row as it is: numbers, not images
        if (batch.first[f]) copy<true>(batch.first[f] + i * spec.bytes, m_.raw(f, first), spec.bytes);
        if (spec.stack && batch.next[f]) copy<true>(batch.next[f] + i * spec.bytes, m_.raw(f, leaf_at(after - time)), spec.bytes);
        continue;
      }
      std::uint64_t stack = std::max(spec.stack, 1u), size = sample_bytes(spec, batch.pool != nullptr);
      std::uint64_t oldest = time - std::min<std::uint64_t>(stack - 1, start.age());
      if (oldest > time) return false;  // a torn age
      std::uint64_t last = spec.stack ? after : time;
      Frames frames;
      if (!fetch(frames, f, history, oldest, last)) return false;
      auto put = [&](std::byte* target, std::uint64_t at, std::uint64_t age) {
        put_stack(target, spec, stack, frames, history, at, age, batch.pool);
      };
      if (batch.first[f]) put(batch.first[f] + i * size, time, start.age());
      if (spec.stack && batch.next[f]) put(batch.next[f] + i * size, after, row.age());
    }
    return intact(history, time - std::min<std::uint64_t>(reach(), start.age()));
  }

  bool window(std::size_t i, std::uint64_t key, const Windows& windows) const {
    const Config& config = m_.config();
    std::uint64_t history = Sampler::history_of(key), time = Sampler::time_of(key), length = windows.length;
    std::uint64_t end = time + length;
    if (end > m_.histories[history].head.load(std::memory_order_acquire)) return false;
    std::uint64_t needed = time;
    for (std::uint64_t t = time; t < end; ++t) {
      Row row = racy_row(m_.row(history, t));
      std::uint64_t at = i * length + (t - time);
      if (windows.reward) windows.reward[at] = row.reward;
      if (windows.discount) windows.discount[at] = row.discount;
      if (windows.age_flags) windows.age_flags[at] = row.age_flags;
    }
    for (std::size_t f = 0; f < config.field_count; ++f) {
      const FieldSpec& spec = config.fields[f];
      if (!windows.fields[f]) continue;
      std::uint64_t stack = windows.stacked ? std::max(spec.stack, 1u) : 1;
      std::uint64_t age = racy_row(m_.row(history, time)).age();
      std::uint64_t oldest = time - std::min({stack - 1, age, time});
      needed = std::min(needed, oldest);
      Frames frames;
      if (!fetch(frames, f, history, oldest, end - 1)) return false;
      for (std::uint64_t t = time; t < end; ++t)
        put_stack(windows.fields[f] + (i * length + (t - time)) * sample_bytes(spec, windows.pool != nullptr, windows.stacked),
                  spec, stack, frames, history, t, racy_row(m_.row(history, t)).age(), windows.pool);
    }
    return intact(history, needed);
  }

  std::uint64_t reach() const {
    std::uint64_t stack = 1;
    for (std::size_t f = 0; f < m_.config().field_count; ++f)
      stack = std::max<std::uint64_t>(stack, m_.config().fields[f].stack);
    return stack - 1;
  }

  // Rows [first, last] of a field: in place if they are stored raw, else decoded into the thread's own memory.
  struct Frames {
    std::uint64_t first = 0;
    const Memory* raw = nullptr;
    std::size_t field = 0;
    std::uint64_t history = 0;
    const std::byte* decoded = nullptr;  // rows from the start of the block that holds `first`
    std::uint64_t decoded_from = 0;
    std::uint64_t bytes = 0;

    const std::byte* at(std::uint64_t time) const {
      return decoded ? decoded + (time - decoded_from) * bytes : raw->raw(field, history, time);
    }
  };

  bool fetch(Frames& frames, std::size_t field, std::uint64_t history, std::uint64_t first, std::uint64_t last) const {
    const Config& config = m_.config();
    const FieldSpec& spec = config.fields[field];
    frames = {first, &m_, field, history, nullptr, 0, spec.bytes};
    if (!spec.codec) return true;
    static thread_local std::vector<std::vector<std::byte>> pool;  // one buffer per field
    if (pool.size() <= field) pool.resize(field + 1);
    std::vector<std::byte>& target = pool[field];
    std::uint64_t block_bytes = config.block * spec.bytes;
    std::uint64_t from = first / config.block, to = last / config.block;
    target.resize((to - from + 1) * block_bytes);
    for (std::uint64_t block = from; block <= to; ++block) {
      std::uint64_t rows = block == to ? last - block * config.block + 1 : config.block;
      if (!decode(field, history, block, rows, target.data() + (block - from) * block_bytes)) return false;
    }
    frames.decoded = target.data();
    frames.decoded_from = from * config.block;
    return true;
  }

  bool decode(std::size_t field, std::uint64_t history, std::uint64_t block, std::uint64_t rows, std::byte* target) const {
    const Config& config = m_.config();
    std::uint64_t bytes = config.fields[field].bytes;
    const Counter& published = m_.histories[history].blocks;
    if (block >= published.load(std::memory_order_acquire)) {
      copy<false>(target, m_.raw(field, history, block * config.block), rows * bytes);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (published.load(std::memory_order_relaxed) <= block + 1) return true;  // else its place was used again
    }
    BlockEntry entry = racy_entry(m_.block(field, history, block));
    std::uint64_t start = entry.position % config.ring_bytes;
    if (start + entry.size > config.ring_bytes) return false;
    // Packed bytes are copied before they are decoded, because a decoder may crash on input that changes meanwhile.
    static thread_local std::vector<std::byte> packed;
    packed.resize(entry.size);
    copy<false>(packed.data(), m_.ring(field, history) + start, entry.size);
    if (!intact(history, block * config.block + rows - 1)) return false;
    return codec_.decompress(packed.data(), entry.size, target, config.block * bytes, rows * bytes);
  }

  __attribute__((no_sanitize("thread"))) static BlockEntry racy_entry(const BlockEntry& entry) {
    return {entry.position, entry.size};
  }

  void put_stack(std::byte* target, const FieldSpec& spec, std::uint64_t stack, const Frames& frames, std::uint64_t history,
                 std::uint64_t time, std::uint64_t age, FramePool* pool = nullptr) const {
    std::uint64_t oldest = time - std::min({stack - 1, age, time - frames.first});
    bool zeros = age + 1 < stack && racy_row(m_.row(history, time - age)).age_flags & kZeros;
    if (pool && spec.stack) {
      auto* numbers = reinterpret_cast<std::int32_t*>(target);
      for (std::uint64_t back = stack; back-- > 0;)
        *numbers++ = time - oldest >= back ? pooled(*pool, frames, time - back) : zeros ? 0 : pooled(*pool, frames, oldest);
      return;
    }
    for (std::uint64_t j = 0; j < stack; ++j, target += spec.bytes) {
      std::uint64_t back = stack - 1 - j;
      if (time - oldest >= back) {
        copy<true>(target, frames.at(time - back), spec.bytes);
      } else if (zeros) {
        std::memset(target, 0, spec.bytes);
      } else {
        copy<true>(target, frames.at(oldest), spec.bytes);
      }
    }
  }

  // The number of a frame, which is copied where it is new. A copy that a writer tore is of no sample that is intact.
  static std::int32_t pooled(FramePool& pool, const Frames& frames, std::uint64_t time) {
    auto number = static_cast<std::int32_t>(pool.counts[frames.field]);
    auto [place, is_new] = pool.numbers[frames.field].try_emplace(frames.history << kTimeBits | time, number);
    if (is_new) {
      copy<false>(pool.frames[frames.field] + static_cast<std::uint64_t>(number) * frames.bytes, frames.at(time), frames.bytes);
      ++pool.counts[frames.field];
    }
    return place->second;
  }

  // Writers may be overwriting the source. Streamed copies go past the cache: a batch of images is far larger than it,
  // and storing into a line without loading it first saves a third of the memory traffic.
  template <bool stream>
  __attribute__((no_sanitize("thread"))) static void copy(std::byte* target, const std::byte* source,
                                                          std::uint64_t bytes) {
#if defined(__SANITIZE_THREAD__)
    for (std::uint64_t i = 0; i < bytes; ++i) target[i] = source[i];
#else
#if defined(__SSE2__)
    if (stream && bytes >= 1024 && reinterpret_cast<std::uintptr_t>(target) % 16 == 0) {
      std::uint64_t whole = bytes / 16 * 16;
      for (std::uint64_t i = 0; i < whole; i += 16)
        _mm_stream_si128(reinterpret_cast<__m128i*>(target + i),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
      std::memcpy(target + whole, source + whole, bytes - whole);
      return;
    }
#endif
    std::memcpy(target, source, bytes);
#endif
  }

  Memory& m_;
  const Codec& codec_;
};

}  // namespace headrace::replay

// The shared memory of a replay: what is where, and who may write it.
//
// A history is one environment's ring of rows in time order; a row is one step. Every history has one writer at a time and
// never a lock: the writer fills rows and then publishes them by a counter. Everything that concerns sampling (sum
// tree, arrival stamps, statistics) belongs to the readers, who share it under one robust mutex that no writer ever
// touches. So adding never waits for sampling, and a process killed at any instruction leaves the memory usable: rows
// that a dead writer has not published do not exist, and after a reader's death the next reader rebuilds the sums.
#pragma once

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "replay/codec.hpp"
#include "replay/random.hpp"
#include "replay/sum_tree.hpp"

namespace headrace::replay {

using Counter = std::atomic<std::uint64_t>;
static_assert(Counter::is_always_lock_free, "counters in shared memory must be lock-free");

constexpr std::uint32_t kMaxFields = 32;
constexpr int kTimeBits = 40;  // key = history << 40 | time: a history would wrap after 2^40 steps, years at 10^4 steps/s

struct FieldSpec {
  std::uint64_t bytes = 0;          // of one row
  std::uint32_t stack = 0;          // observation: frames per sample, from 1; 0: stored with the action, never stacked
  std::uint32_t codec = 0;          // 1: compressed in blocks of rows
};

struct Config {
  std::uint64_t histories = 0;
  std::uint64_t rows = 0;            // per history, a multiple of 8
  std::uint64_t n_step = 1;
  std::uint64_t seed = 0;
  double alpha = 0.6;
  double evict_alpha = 0.0;          // 0: eviction is first in, first out
  double floor = 1e-6;               // priorities below are raised to it
  CodecKind codec = CodecKind::none;
  std::int32_t codec_level = 1;
  std::uint32_t block = 8;           // rows per compressed block, a divisor of rows
  std::uint64_t ring_bytes = 0;      // compressed bytes kept per history and field
  std::uint32_t field_count = 0;
  FieldSpec fields[kMaxFields];
};

enum RowFlag : std::uint32_t {
  kLast = 1,   // the episode ended with this row's action
  kFinal = 2,  // an observation on which no action was taken, such as the one after the last action of an episode
  kFirst = 4,  // stacks do not reach before this row; what is missing in them are copies of its observation
  kZeros = 8,  // with kFirst: what is missing are zeros
  kFlagBits = 4,
};

struct Row {  // one step, without its fields
  float reward = 0;
  float discount = 0;   // what the next value is multiplied with: gamma, 0 after termination
  float priority = -1;  // initial priority; negative: no transition starts here
  std::uint32_t age_flags = 0;  // rows since the last kFirst << kFlagBits | RowFlag

  std::uint32_t age() const { return age_flags >> kFlagBits; }
};

struct alignas(128) History {  // written by the history's writer only
  Counter head{0};      // rows written
  Counter ready{0};     // rows of which it is known whether a transition starts there; <= head
  Counter low{0};       // rows before this may be overwritten at any moment
  Counter blocks{0};    // compressed blocks published
  std::uint32_t next_age = 0;
  std::uint64_t ring_end[kMaxFields] = {};  // position after the newest block in each field's byte ring, ever growing
};

struct alignas(64) ReaderView {  // the readers' view of a history; under the mutex
  std::uint64_t seen = 0;     // transitions before this have been added to the tree; some were removed since
  std::uint64_t retired = 0;  // transitions before this have been removed
};

struct BlockEntry {
  std::uint64_t position = 0;  // in the ever growing count of bytes; modulo ring_bytes in the ring
  std::uint64_t size = 0;
};

struct Statistics {  // readers' counters; in transitions
  std::uint64_t size = 0, inserts = 0, samples = 0, updates = 0, late = 0, overwritten = 0, evicted = 0;
};

struct Header {
  std::uint64_t magic = 0;
  Config config;
  pthread_mutex_t mutex;
  Statistics statistics;
  std::uint64_t random[4] = {};  // state of xoshiro256++
};

// Division by a number of at least 2 that does not change: two multiplications, where a division takes as long as six. The
// reciprocal is rounded up, so the quotient of any number below 2^63 is right or one too large.
class Divider {
 public:
  explicit Divider(std::uint64_t by = 2) : by_(by), reciprocal_(UINT64_MAX / by + 1) {}
  std::uint64_t quotient(std::uint64_t x) const {
    auto guess = static_cast<std::uint64_t>(static_cast<unsigned __int128>(x) * reciprocal_ >> 64);
    return guess - (guess * by_ > x);
  }
  std::uint64_t remainder(std::uint64_t x) const { return x - quotient(x) * by_; }

 private:
  std::uint64_t by_, reciprocal_;
};

constexpr std::uint64_t kMagic = 0x3130594c50455248;  // "HREPLY01"

// A view of the whole memory. Move-only; unmaps on destruction. The file descriptor stays the caller's.
class Memory {
 public:
  static std::uint64_t bytes_needed(const Config& config) { return layout(config).total; }

  Memory(int descriptor, const Config* create) {
    Config config;
    if (create) {
      config = *create;
    } else {
      Header header;
      if (pread(descriptor, static_cast<void*>(&header), sizeof header, 0) != static_cast<ssize_t>(sizeof header) ||
          header.magic != kMagic)
        throw std::runtime_error("the file descriptor does not hold a replay of this version");
      config = header.config;
    }
    if (config.rows < 2 || config.n_step >= config.rows) throw std::invalid_argument("a history needs more rows");
    per_history = Divider(config.rows);
    Layout at = layout(config);
    bytes_ = at.total;
    struct stat status;
    if (fstat(descriptor, &status) != 0 || static_cast<std::uint64_t>(status.st_size) < bytes_)
      throw std::runtime_error("the shared memory is too small for a replay of " + std::to_string(bytes_) + " bytes");
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
    if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mapping the replay");
    base_ = static_cast<std::byte*>(mapped);
    header = reinterpret_cast<Header*>(base_);
    histories = reinterpret_cast<History*>(base_ + at.histories);
    views = reinterpret_cast<ReaderView*>(base_ + at.views);
    rows = reinterpret_cast<Row*>(base_ + at.rows);
    stamps = reinterpret_cast<std::uint64_t*>(base_ + at.stamps);
    priorities = reinterpret_cast<float*>(base_ + at.priorities);
    tree = SumTree(reinterpret_cast<double*>(base_ + at.tree), config.histories * config.rows);
    if (config.evict_alpha != 0.0)
      evict_tree = SumTree(reinterpret_cast<double*>(base_ + at.evict_tree), config.histories * config.rows);
    for (std::size_t f = 0; f < config.field_count; ++f) {
      data_.push_back(base_ + at.data[f]);
      blocks_.push_back(reinterpret_cast<BlockEntry*>(base_ + at.blocks[f]));
      rings_.push_back(base_ + at.rings[f]);
    }
    if (create) initialise(config);
  }

  Memory(Memory&& other) = delete;
  ~Memory() { munmap(base_, bytes_); }

  const Config& config() const { return header->config; }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t leaf(std::uint64_t history, std::uint64_t time) const {
    return history * config().rows + per_history.remainder(time);
  }
  Row& row(std::uint64_t history, std::uint64_t time) const { return rows[leaf(history, time)]; }

  // Uncompressed fields are a ring of all rows; compressed ones keep the rows of the two newest blocks here.
  std::byte* raw(std::size_t field, std::uint64_t history, std::uint64_t time) const {
    std::uint64_t newest = 2 * config().block;
    return raw(field, config().fields[field].codec ? history * newest + time % newest : leaf(history, time));
  }
  std::byte* raw(std::size_t field, std::size_t place) const { return data_[field] + place * config().fields[field].bytes; }
  BlockEntry& block(std::size_t field, std::uint64_t history, std::uint64_t index) const {
    std::uint64_t ring = config().rows / config().block;
    return blocks_[field][history * ring + index % ring];
  }
  std::byte* ring(std::size_t field, std::uint64_t history) const {
    return rings_[field] + history * config().ring_bytes;
  }

  Divider per_history;  // divides by config().rows
  Header* header = nullptr;
  History* histories = nullptr;
  ReaderView* views = nullptr;
  Row* rows = nullptr;
  std::uint64_t* stamps = nullptr;  // arrival number of each transition: the order of eviction, the age of samples
  float* priorities = nullptr;      // current priority of each transition, negative if there is none
  SumTree tree, evict_tree;

 private:
  struct Layout {
    std::uint64_t histories, views, rows, stamps, priorities, tree, evict_tree, total;
    std::vector<std::uint64_t> data, blocks, rings;
  };

  static Layout layout(const Config& c) {
    Layout at{};
    std::uint64_t end = 0;
    auto place = [&end](std::uint64_t bytes) {
      std::uint64_t start = end;
      end = (end + bytes + 4095) / 4096 * 4096;
      return start;
    };
    std::uint64_t all = c.histories * c.rows;
    std::uint64_t tree_bytes = SumTree::doubles_needed(all) * sizeof(double);
    place(sizeof(Header));
    at.histories = place(c.histories * sizeof(History));
    at.views = place(c.histories * sizeof(ReaderView));
    at.rows = place(all * sizeof(Row));
    at.stamps = place(all * sizeof(std::uint64_t));
    at.priorities = place(all * sizeof(float));
    at.tree = place(tree_bytes);
    at.evict_tree = place(c.evict_alpha != 0.0 ? tree_bytes : 0);
    for (std::size_t f = 0; f < c.field_count; ++f) {
      bool packed = c.fields[f].codec;
      at.data.push_back(place(c.histories * (packed ? 2 * c.block : c.rows) * c.fields[f].bytes));
      at.blocks.push_back(place(packed ? c.histories * (c.rows / c.block) * sizeof(BlockEntry) : 0));
      at.rings.push_back(place(packed ? c.histories * c.ring_bytes : 0));
    }
    at.total = end;
    return at;
  }

  void initialise(const Config& config) {
    new (header) Header;
    header->config = config;
    for (std::uint64_t history = 0; history < config.histories; ++history) {
      new (&histories[history]) History;
      new (&views[history]) ReaderView;
    }
    seed_random(header->random, config.seed);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&header->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    header->magic = kMagic;
  }

  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::vector<std::byte*> data_, rings_;
  std::vector<BlockEntry*> blocks_;
};

}  // namespace headrace::replay

// Prioritized sampling, updating and eviction over all histories: P(k) = p_k^alpha / sum of p^alpha (Schaul et al. 2016).
//
// Writers never touch the sums. A reader first takes in what the histories have published since it last looked, so that
// the tree is exact over everything that had arrived, and then draws.
#pragma once

#include <cmath>
#include <queue>

#include "replay/memory.hpp"

namespace headrace::replay {

// Writers may be overwriting what this reads; the caller checks the history's `low` afterwards.
__attribute__((no_sanitize("thread"))) inline Row racy_row(const Row& row) {
  return {row.reward, row.discount, row.priority, row.age_flags};
}

// Where to draw, instead of drawing that too: sample i at `at[i]` of `parts` equal parts of the sum of all weights.
struct Positions {
  const double* at = nullptr;
  double parts = 1;
  double total = 0;  // that sum, when they were drawn
};

class Sampler {
 public:
  explicit Sampler(Memory& memory) : m_(memory) {
    for (std::size_t f = 0; f < m_.config().field_count; ++f)
      reach_ = std::max(reach_, std::max(m_.config().fields[f].stack, 1u) - 1);
  }

  std::uint64_t key(std::uint64_t history, std::uint64_t time) const { return history << kTimeBits | time; }
  static std::uint64_t history_of(std::uint64_t key) { return key >> kTimeBits; }
  static std::uint64_t time_of(std::uint64_t key) { return key & ((1ull << kTimeBits) - 1); }

  // Draw `count` keys with replacement and their probabilities. Stratified: one draw from each of `count` equal parts
  // of the total mass (in the order of the keys); the expected number of times a key is drawn is the same. `exclude`:
  // drop these keys first, they turned out to be overwritten. Returns how many transitions there were to draw from, 0
  // (and draws none) if they are fewer than `minimum`.
  std::uint64_t draw(std::size_t count, bool stratified, std::uint64_t minimum, std::uint64_t* keys,
                     double* probabilities, const std::vector<std::uint64_t>& exclude = {}, Positions* positions = nullptr) {
    Lock lock(*this);
    absorb();
    for (std::uint64_t key : exclude)
      if (time_of(key) >= m_.views[history_of(key)].retired) drop_overwritten(m_.leaf(history_of(key), time_of(key)));
    Statistics& statistics = m_.header->statistics;
    if (statistics.size < std::max<std::uint64_t>(minimum, 1)) return 0;
    mass_.resize(count);
    leaves_.resize(count);
    double total = m_.tree.total();
    double part = total / (positions ? positions->parts : stratified ? static_cast<double>(count) : 1.0);
    for (std::size_t i = 0; i < count; ++i)
      mass_[i] = (positions ? positions->at[i] : (stratified ? static_cast<double>(i) : 0.0) + uniform()) * part;
    if (positions) positions->total = total;
    m_.tree.find(mass_.data(), leaves_.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
      Place at = place(leaves_[i]);
      while (!readable(at)) {
        drop_overwritten(leaves_[i]);
        if (statistics.size == 0) return 0;
        double mass = uniform() * m_.tree.total();
        m_.tree.find(&mass, &leaves_[i], 1);
        at = place(leaves_[i]);
      }
      keys[i] = key(at.history, at.time);
      probabilities[i] = m_.tree[leaves_[i]] / total;
    }
    statistics.samples += count;
    return statistics.size;
  }

  // New priorities for these keys; of equal keys the last wins. Returns how many came too late: their transitions had
  // been evicted or overwritten. Throws std::invalid_argument for a priority that is negative or not finite.
  std::uint64_t update(std::size_t count, const std::uint64_t* keys, const float* priorities) {
    for (std::size_t i = 0; i < count; ++i)
      if (!(priorities[i] >= 0.0f) || !std::isfinite(priorities[i]))
        throw std::invalid_argument("priority " + std::to_string(priorities[i]) + " at position " + std::to_string(i) +
                                    " of an update: it must be finite and not negative");
    Lock lock(*this);
    absorb();
    leaves_.clear();
    std::uint64_t late = 0;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t history = history_of(keys[i]), time = time_of(keys[i]);
      if (history >= m_.config().histories || time < m_.views[history].retired || time >= m_.views[history].seen) {
        ++late;
        continue;
      }
      std::size_t leaf = m_.leaf(history, time);
      if (m_.tree[leaf] <= 0.0) {
        ++late;
        continue;
      }
      weigh(leaf, priorities[i]);
      leaves_.push_back(static_cast<std::uint32_t>(leaf));
    }
    repair(leaves_);
    m_.header->statistics.updates += count - late;
    m_.header->statistics.late += late;
    return late;
  }

  // Remove what exceeds `capacity`, all at once: the oldest arrivals, or draws with probability proportional to
  // p^evict_alpha without replacement. Returns how many were removed.
  std::uint64_t evict(std::uint64_t capacity) {
    Lock lock(*this);
    absorb();
    Statistics& statistics = m_.header->statistics;
    if (statistics.size <= capacity) return 0;
    std::uint64_t excess = statistics.size - capacity;
    m_.config().evict_alpha != 0.0 ? evict_drawn(excess) : evict_oldest(excess);
    statistics.size -= excess;
    statistics.evicted += excess;
    return excess;
  }

  Statistics statistics() {
    Lock lock(*this);
    absorb();
    return m_.header->statistics;
  }

  double total() {
    Lock lock(*this);
    absorb();
    return m_.tree.total();
  }

  // Restoring a checkpoint: arrival numbers and priorities of rows already in the history, then the counters.
  void restore(std::uint64_t history, std::uint64_t first, std::size_t count, const std::uint64_t* stamps) {
    Lock lock(*this);
    absorb();
    for (std::size_t i = 0; i < count; ++i) m_.stamps[m_.leaf(history, first + i)] = stamps[i];
  }
  void restore(const Statistics& statistics, const std::uint64_t* random) {
    Lock lock(*this);
    absorb();
    std::uint64_t size = m_.header->statistics.size;
    m_.header->statistics = statistics;
    m_.header->statistics.size = size;
    std::copy(random, random + 4, m_.header->random);
  }

 private:
  class Lock {
   public:
    explicit Lock(Sampler& sampler) : mutex_(&sampler.m_.header->mutex) {
      int error = pthread_mutex_lock(mutex_);
      if (error == EOWNERDEAD) {  // a reader died in the middle of something
        pthread_mutex_consistent(mutex_);
        sampler.recover();
      } else if (error != 0) {
        throw std::system_error(error, std::generic_category(), "locking the replay");
      }
    }
    Lock(const Lock&) = delete;
    ~Lock() { pthread_mutex_unlock(mutex_); }

   private:
    pthread_mutex_t* mutex_;
  };

  void recover() {
    forget_half_taken();
    Statistics& statistics = m_.header->statistics;
    statistics.size = 0;
    std::size_t leaves = m_.config().histories * m_.config().rows;
    for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
      bool alive = m_.tree[leaf] > 0.0 && m_.priorities[leaf] >= 0.0f;
      alive ? weigh(leaf, m_.priorities[leaf]) : clear(leaf);
      statistics.size += alive;
    }
    m_.tree.rebuild();
    if (m_.config().evict_alpha != 0.0) m_.evict_tree.rebuild();
  }

  // Rows that the dead reader had begun to take in, but not marked as seen: they are taken in again, and counted then.
  void forget_half_taken() {
    for (std::uint64_t history = 0; history < m_.config().histories; ++history) {
      std::uint64_t ready = m_.histories[history].ready.load(std::memory_order_acquire), seen = m_.views[history].seen;
      for (std::uint64_t t = seen; t < ready; ++t) clear(m_.leaf(history, t));
    }
  }

  void weigh(std::size_t leaf, float priority) {
    double p = std::max(static_cast<double>(priority), m_.config().floor);
    m_.priorities[leaf] = priority;
    m_.tree.set(leaf, std::pow(p, m_.config().alpha));
    if (m_.config().evict_alpha != 0.0) m_.evict_tree.set(leaf, std::pow(p, m_.config().evict_alpha));
  }

  void clear(std::size_t leaf) {
    m_.priorities[leaf] = -1.0f;
    m_.tree.set(leaf, 0.0);
    if (m_.config().evict_alpha != 0.0) m_.evict_tree.set(leaf, 0.0);
  }

  void repair(const std::vector<std::uint32_t>& leaves) {
    scratch_ = leaves;
    m_.tree.repair(scratch_);
    if (m_.config().evict_alpha != 0.0) {
      scratch_ = leaves;
      m_.evict_tree.repair(scratch_);
    }
  }

  // The rows [first, last) of a history, which may wrap round the ring's end.
  void repair_span(std::uint64_t history, std::uint64_t first, std::uint64_t last) {
    std::uint64_t rows = m_.config().rows, base = history * rows, start = first % rows, length = std::min(last - first, rows);
    std::uint64_t tail = std::min(length, rows - start);
    for (SumTree* tree : {&m_.tree, &m_.evict_tree}) {
      if (tree == &m_.evict_tree && m_.config().evict_alpha == 0.0) continue;
      tree->repair_range(base + start, base + start + tail);
      tree->repair_range(base, base + length - tail);
    }
  }

  // Take in what the writers published: retire what they overwrote, add what is new.
  void absorb() {
    Statistics& statistics = m_.header->statistics;
    for (std::uint64_t history = 0; history < m_.config().histories; ++history) {
      ReaderView& view = m_.views[history];
      std::uint64_t ready = m_.histories[history].ready.load(std::memory_order_acquire);
      std::uint64_t low = std::min(m_.histories[history].low.load(std::memory_order_acquire), ready);
      if (ready == view.seen && low <= view.retired) continue;
      std::uint64_t gone = std::min(low, view.seen), changed = view.seen;
      for (std::uint64_t t = view.retired; t < gone; ++t) {
        std::size_t leaf = m_.leaf(history, t);
        if (m_.tree[leaf] <= 0.0) continue;
        clear(leaf);
        --statistics.size;
        ++statistics.overwritten;
        changed = std::min(changed, t);
      }
      // Rows that were overwritten before a reader looked; which of them started a transition is no longer known.
      std::uint64_t missed = low > view.seen ? low - view.seen : 0, inserts = statistics.inserts + missed;
      for (std::uint64_t t = view.seen + missed; t < ready; ++t) {
        float priority = racy_row(m_.row(history, t)).priority;
        if (priority < 0.0f) continue;
        std::size_t leaf = m_.leaf(history, t);
        weigh(leaf, priority);
        m_.stamps[leaf] = inserts++;
        ++statistics.size;
      }
      repair_span(history, changed, ready);
      // Counted last, with `seen`: what a reader that is killed before had taken in is taken in again.
      statistics.inserts = inserts;
      statistics.overwritten += missed;
      view.retired = std::max(view.retired, low);
      view.seen = ready;
    }
  }

  struct Place {
    std::uint64_t history, time;
  };

  // The newest row that a leaf has been used for.
  Place place(std::uint32_t leaf) const {
    std::uint64_t rows = m_.config().rows, history = m_.per_history.quotient(leaf), slot = leaf - history * rows;
    std::uint64_t newest = m_.views[history].seen - 1, newest_slot = m_.per_history.remainder(newest);
    return {history, newest - (newest_slot >= slot ? newest_slot - slot : newest_slot + rows - slot)};
  }

  // Is the whole stack that ends here still there?
  bool readable(Place at) const {
    std::uint64_t low = m_.histories[at.history].low.load(std::memory_order_acquire);
    if (at.time >= low + reach_) return true;
    return at.time >= low + std::min(reach_, racy_row(m_.row(at.history, at.time)).age());
  }

  void drop_overwritten(std::size_t leaf) {
    if (m_.tree[leaf] <= 0.0) return;
    clear(leaf);
    repair({static_cast<std::uint32_t>(leaf)});
    --m_.header->statistics.size;
    ++m_.header->statistics.overwritten;
  }

  void evict_oldest(std::uint64_t excess) {
    using Entry = std::pair<std::uint64_t, std::uint64_t>;  // arrival of the oldest transition of a history, history
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> oldest;
    auto advance = [this](std::uint64_t history) {
      ReaderView& view = m_.views[history];
      while (view.retired < view.seen && m_.tree[m_.leaf(history, view.retired)] <= 0.0) ++view.retired;
      return view.retired < view.seen;
    };
    auto stamp = [this](std::uint64_t history) { return m_.stamps[m_.leaf(history, m_.views[history].retired)]; };
    for (std::uint64_t history = 0; history < m_.config().histories; ++history)
      if (advance(history)) oldest.emplace(stamp(history), history);
    leaves_.clear();
    while (excess > 0) {
      std::uint64_t history = oldest.top().second;
      oldest.pop();
      std::uint64_t next = oldest.empty() ? UINT64_MAX : oldest.top().first;
      bool more = true;
      while (excess > 0 && more && stamp(history) <= next) {  // of equal ones any: every round removes at least one
        std::size_t leaf = m_.leaf(history, m_.views[history].retired);
        clear(leaf);
        leaves_.push_back(static_cast<std::uint32_t>(leaf));
        --excess;
        more = advance(history);
      }
      if (more) oldest.emplace(stamp(history), history);
    }
    repair(leaves_);
  }

  void evict_drawn(std::uint64_t excess) {
    for (; excess > 0; --excess) {
      double mass = uniform() * m_.evict_tree.total();
      std::uint32_t leaf = 0;
      m_.evict_tree.find(&mass, &leaf, 1);
      clear(leaf);
      repair({leaf});
    }
  }

  double uniform() { return random_uniform(m_.header->random); }

  Memory& m_;
  std::uint32_t reach_ = 0;  // frames before a transition's own that its stack may need
  std::vector<double> mass_;
  std::vector<std::uint32_t> leaves_, scratch_;
};

}  // namespace headrace::replay

// An 8-ary sum tree over float64 weights, laid out in memory that the caller owns (it may be shared between processes).
//
// Eight children are one cache line, so a visit to a node costs one line. Parents are never updated by differences:
// they are recomputed from their children, so no rounding error accumulates however many updates are made.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::replay {

class SumTree {
 public:
  static constexpr std::size_t kArity = 8;

  SumTree() = default;
  // `memory` holds doubles_needed(leaves) doubles, zero to begin with.
  SumTree(double* memory, std::size_t leaves) : leaves_(leaves) {
    for (std::size_t size : level_sizes(leaves)) {
      levels_.push_back(memory);
      memory += size;
    }
  }

  static std::size_t doubles_needed(std::size_t leaves) {
    std::size_t total = 0;
    for (std::size_t size : level_sizes(leaves)) total += size;
    return total;
  }

  double operator[](std::size_t leaf) const { return levels_[0][leaf]; }
  // The sums above the leaf are stale until a repair function is called for it.
  void set(std::size_t leaf, double weight) { levels_[0][leaf] = weight; }
  double total() const { return sum8(levels_.back()); }

  // Recompute the sums above these leaves (any order, repeats allowed; destroys the list). Level by level, so that
  // the cache misses of different leaves overlap.
  void repair(std::vector<std::uint32_t>& leaves) {
    for (std::size_t level = 0; level + 1 < levels_.size(); ++level) {
      std::size_t kept = 0;
      std::uint32_t previous = UINT32_MAX;
      for (std::uint32_t index : leaves) {
        std::uint32_t parent = index / kArity;
        if (parent == previous) continue;
        previous = parent;
        levels_[level + 1][parent] = sum8(levels_[level] + parent * kArity);
        leaves[kept++] = parent;
      }
      leaves.resize(kept);
    }
  }

  // Recompute the sums above the leaves [first, last).
  void repair_range(std::size_t first, std::size_t last) {
    if (first >= last) return;
    for (std::size_t level = 0; level + 1 < levels_.size(); ++level) {
      first /= kArity;
      last = (last + kArity - 1) / kArity;
      for (std::size_t parent = first; parent < last; ++parent)
        levels_[level + 1][parent] = sum8(levels_[level] + parent * kArity);
    }
  }

  void rebuild() { repair_range(0, leaves_); }

  // For each mass r in [0, total()): the leaf whose interval of the cumulative sum holds it, never one of weight zero
  // while total() > 0. Destroys `mass`.
  void find(double* mass, std::uint32_t* leaf, std::size_t count) const {
    std::fill(leaf, leaf + count, 0);
    for (std::size_t level = levels_.size(); level-- > 0;) {
      const double* weights = levels_[level];
      for (std::size_t i = 0; i < count; ++i) {
        const double* child = weights + std::size_t{leaf[i]} * kArity;
        // Without branches: one that is mispredicted costs more than the whole loop.
        double r = mass[i], sum = 0.0, below[kArity] = {0.0};
        std::uint32_t chosen = 0;
        for (std::size_t k = 0; k + 1 < kArity; ++k) {
          below[k + 1] = sum += child[k];
          chosen += r >= sum;
        }
        r -= below[chosen];
        if (child[chosen] <= 0.0) [[unlikely]] {  // r was rounded past the last child that has weight
          while (chosen > 0 && child[chosen] <= 0.0) --chosen;
          r = std::nextafter(child[chosen], 0.0);
        }
        mass[i] = r;
        leaf[i] = leaf[i] * kArity + chosen;
        if (level > 0) __builtin_prefetch(levels_[level - 1] + std::size_t{leaf[i]} * kArity);
      }
    }
  }

 private:
  // In the order in which find() accumulates, so that a node and its children agree to the last bit.
  static double sum8(const double* v) {
    double sum = v[0];
    for (std::size_t k = 1; k < kArity; ++k) sum += v[k];
    return sum;
  }

  static std::vector<std::size_t> level_sizes(std::size_t leaves) {
    std::vector<std::size_t> sizes;
    for (std::size_t size = leaves;; size = (size + kArity - 1) / kArity) {
      sizes.push_back((size + kArity - 1) / kArity * kArity);
      if (size <= kArity) return sizes;
    }
  }

  std::size_t leaves_ = 0;
  std::vector<double*> levels_;  // leaves first, at most kArity nodes last
};

}  // namespace headrace::replay

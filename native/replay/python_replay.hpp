// The replay as Python sees it: arrays are checked, and the interpreter is free while samples are copied.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "replay/assemble.hpp"
#include "replay/writer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace::replay {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ConstArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
template <typename T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Arrays = std::vector<std::optional<Array>>;

inline void expect(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

// (N P)^-beta, divided by the largest, of samples with these probabilities P out of N transitions.
inline void importance_weights(std::size_t count, std::uint64_t size, const double* probabilities, double beta, float* weights) {
  float largest = 0.0f, power = static_cast<float>(-beta);
  for (std::size_t i = 0; i < count; ++i) {
    weights[i] = std::pow(static_cast<float>(static_cast<double>(size) * probabilities[i]), power);
    largest = std::max(largest, weights[i]);
  }
  for (std::size_t i = 0; i < count; ++i) weights[i] /= largest;
}

template <typename T>
T* data_of(const std::optional<Vector<T>>& array, std::size_t length, const char* name) {
  if (!array) return nullptr;
  expect(array->shape(0) == length, std::string(name) + " must have " + std::to_string(length) + " elements");
  return array->data();
}

class Replay {
 public:
  Replay(int descriptor, const Config* create, const std::vector<std::string>& codec_libraries)
      : memory_(descriptor, create),
        codec_(memory_.config().codec, memory_.config().codec_level, codec_libraries),
        writer_(memory_, codec_),
        sampler_(memory_),
        assembler_(memory_, codec_) {}

  const Config& config() const { return memory_.config(); }
  std::uint64_t bytes() const { return memory_.bytes(); }
  Memory& memory() { return memory_; }
  HistoryWriter& writer() { return writer_; }

  std::uint64_t open(std::uint64_t history) {
    check_history(history);
    return writer_.open(history);
  }

  std::uint64_t append(std::uint64_t history, const std::vector<ConstArray>& fields, const Vector<const float>& reward,
                       const Vector<const float>& discount, const Vector<const std::uint8_t>& flags) {
    check_history(history);
    std::size_t count = reward.shape(0);
    expect(count <= config().rows, "more rows at once than a history holds");
    expect(discount.shape(0) == count && flags.shape(0) == count, "reward, discount and flags differ in length");
    expect(fields.size() == config().field_count, "wrong number of fields");
    std::vector<const std::byte*> columns;
    for (std::size_t f = 0; f < fields.size(); ++f) {
      expect(fields[f].nbytes() == count * config().fields[f].bytes,
             "field " + std::to_string(f) + " has " + std::to_string(fields[f].nbytes()) + " bytes, expected " +
                 std::to_string(count * config().fields[f].bytes));
      columns.push_back(static_cast<const std::byte*>(fields[f].data()));
    }
    std::vector<Row> rows;
    for (std::size_t i = 0; i < count; ++i) rows.push_back({reward.data()[i], discount.data()[i], -1.0f, flags.data()[i]});
    nb::gil_scoped_release release;
    return writer_.append(history, rows, [&](std::size_t f, std::size_t i) { return columns[f] + i * config().fields[f].bytes; });
  }

  void ready(std::uint64_t history, const Vector<const float>& priorities) {
    check_history(history);
    writer_.ready(history, priorities.shape(0), priorities.data());
  }

  std::uint64_t sample(const Vector<std::uint64_t>& keys, const Vector<float>& weights, double beta, bool stratified,
                       std::uint64_t minimum, const std::optional<Arrays>& first, const std::optional<Arrays>& next,
                       const std::optional<Vector<float>>& reward, const std::optional<Vector<float>>& discount,
                       const std::optional<Vector<double>>& probabilities, int threads) {
    std::size_t count = keys.shape(0);
    expect(weights.shape(0) == count, "keys and weights differ in length");
    Batch batch{pointers(first, count, 1, true, true), pointers(next, count, 1, true, false),
                data_of(reward, count, "reward"), data_of(discount, count, "discount")};
    std::vector<double> own(probabilities ? 0 : count);
    double* chosen = probabilities ? data_of(probabilities, count, "probabilities") : own.data();
    bool assemble = first.has_value();
    nb::gil_scoped_release release;
    Draw draw{count, keys.data(), chosen, stratified, minimum};
    std::uint64_t size = draw_whole(draw, [&](std::size_t from, std::size_t n, std::uint8_t* intact) {
      if (assemble)
        assembler_.transitions(n, keys.data() + from, shifted(batch, from), intact, n == 1 ? 1 : threads);
      else
        std::fill_n(intact, n, std::uint8_t{1});
    });
    if (size) importance_weights(count, size, chosen, beta, weights.data());
    return size;
  }

  std::uint64_t sample_windows(const Vector<std::uint64_t>& keys, const Vector<float>& weights, double beta, bool stratified,
                               std::uint64_t minimum, std::uint64_t length, const Arrays& fields, const Vector<float>& reward,
                               const Vector<float>& discount, const Vector<std::uint32_t>& age_flags, int threads) {
    std::size_t count = keys.shape(0);
    expect(weights.shape(0) == count, "keys and weights differ in length");
    Windows windows = windows_of(count, length, true, fields, reward, discount, age_flags);
    std::vector<double> chosen(count);
    nb::gil_scoped_release release;
    Draw draw{count, keys.data(), chosen.data(), stratified, minimum};
    std::uint64_t size = draw_whole(draw, [&](std::size_t from, std::size_t n, std::uint8_t* intact) {
      assembler_.windows(n, keys.data() + from, shifted(windows, from), intact, n == 1 ? 1 : threads);
    });
    if (size) importance_weights(count, size, chosen.data(), beta, weights.data());
    return size;
  }

  // Samples for a reader on another machine: `positions` says where to draw, and frames are copied once. `length`: rows of a
  // sequence; 0: transitions. Observations in `fields` and `next` are numbers of frames, int32. Returns how many transitions
  // there were, the sum of their weights, and the number of frames of each field; None where there were none.
  nb::object sample_pooled(const Vector<std::uint64_t>& keys, const Vector<double>& probabilities,
                           const Vector<const double>& positions, double parts, std::uint64_t length, const Arrays& fields,
                           const Arrays& next, const Arrays& frames, const Vector<float>& reward, const Vector<float>& discount,
                           const std::optional<Vector<std::uint32_t>>& age_flags) {
    std::size_t count = keys.shape(0);
    expect(positions.shape(0) == count && probabilities.shape(0) == count, "keys, positions and probabilities differ in length");
    std::vector<std::byte*> room(config().field_count, nullptr);
    expect(frames.size() == config().field_count, "wrong number of fields");
    for (std::size_t f = 0; f < frames.size(); ++f) {
      const FieldSpec& spec = config().fields[f];
      if (!spec.stack) continue;
      std::uint64_t most = 1 + count * (length ? length + spec.stack - 1 : 2 * spec.stack);
      expect(frames[f] && frames[f]->nbytes() >= most * spec.bytes, "too little room for frames of field " + std::to_string(f));
      room[f] = static_cast<std::byte*>(frames[f]->data());
    }
    FramePool pool(config(), room);
    std::size_t rows = count * std::max<std::uint64_t>(length, 1);
    Windows windows = windows_of(count, std::max<std::uint64_t>(length, 1), true, fields, reward, discount, age_flags, true);
    windows.pool = &pool;
    Batch batch{pointers(fields, rows, 1, true, true, true), pointers(next, rows, 1, true, false, true),
                data_of<float>(reward, rows, "reward"), data_of<float>(discount, rows, "discount"), &pool};
    Positions at{positions.data(), parts};
    Draw draw{count, keys.data(), probabilities.data(), true, 1, &at};
    std::uint64_t size = 0;
    {
      nb::gil_scoped_release release;
      size = draw_whole(draw, [&](std::size_t from, std::size_t n, std::uint8_t* intact) {
        if (length)
          assembler_.windows(n, keys.data() + from, shifted(windows, from), intact, 1);
        else
          assembler_.transitions(n, keys.data() + from, shifted(batch, from), intact, 1);
      });
    }
    return size ? nb::object(nb::make_tuple(size, at.total, pool.counts)) : nb::none();
  }

  void windows(const Vector<const std::uint64_t>& keys, std::uint64_t length, bool stacked,
               const std::optional<Arrays>& fields, const std::optional<Vector<float>>& reward,
               const std::optional<Vector<float>>& discount, const std::optional<Vector<std::uint32_t>>& age_flags,
               const Vector<std::uint8_t>& intact, int threads) {
    std::size_t count = keys.shape(0);
    expect(intact.shape(0) == count, "keys and intact differ in length");
    for (std::size_t i = 0; i < count; ++i) check_history(Sampler::history_of(keys.data()[i]));
    Windows windows = windows_of(count, length, stacked, fields, reward, discount, age_flags);
    nb::gil_scoped_release release;
    assembler_.windows(count, keys.data(), windows, intact.data(), threads);
  }

  std::uint64_t update(const Vector<const std::uint64_t>& keys, const Vector<const float>& priorities) {
    expect(keys.shape(0) == priorities.shape(0), "keys and priorities differ in length");
    nb::gil_scoped_release release;
    return sampler_.update(keys.shape(0), keys.data(), priorities.data());
  }

  std::uint64_t evict(std::uint64_t capacity) {
    nb::gil_scoped_release release;
    return sampler_.evict(capacity);
  }

  nb::dict statistics() {
    Statistics s = sampler_.statistics();
    nb::dict result;
    result["size"] = s.size;
    result["inserts"] = s.inserts;
    result["samples"] = s.samples;
    result["updates"] = s.updates;
    result["late"] = s.late;
    result["overwritten"] = s.overwritten;
    result["evicted"] = s.evicted;
    return result;
  }

  double total() { return sampler_.total(); }

  // Bytes that a row of each field takes, on average over the newest packed blocks of all histories; 0 for fields that are not
  // packed and while there are none.
  std::vector<double> packed_row_bytes() const {
    constexpr std::uint64_t kNewest = 64;  // blocks of each history
    std::vector<double> result(config().field_count, 0.0);
    for (std::size_t f = 0; f < config().field_count; ++f) {
      if (!config().fields[f].codec) continue;
      std::uint64_t bytes = 0, blocks = 0;
      for (std::uint64_t h = 0; h < config().histories; ++h) {
        std::uint64_t end = memory_.histories[h].blocks.load(std::memory_order_acquire);
        std::uint64_t first = (memory_.histories[h].low.load() + config().block - 1) / config().block;
        for (std::uint64_t b = std::max(first, end - std::min(end, kNewest)); b < end; ++b, ++blocks)
          bytes += memory_.block(f, h, b).size;
      }
      if (blocks) result[f] = static_cast<double>(bytes) / static_cast<double>(blocks * config().block);
    }
    return result;
  }

  // (first readable row, rows written, rows whose priority is known)
  nb::tuple span(std::uint64_t history) const {
    check_history(history);
    const History& h = memory_.histories[history];
    std::uint64_t ready = h.ready.load(), head = h.head.load();
    return nb::make_tuple(h.low.load(), head, ready);
  }

  // Arrival numbers and current priorities (negative: none) of rows of a history.
  void read_priorities(std::uint64_t history, std::uint64_t first, const Vector<std::uint64_t>& stamps,
             const Vector<float>& priorities) {
    check_history(history);
    sampler_.statistics();  // takes in what was published
    expect(stamps.shape(0) == priorities.shape(0), "stamps and priorities differ in length");
    for (std::size_t i = 0; i < stamps.shape(0); ++i) {
      std::size_t leaf = memory_.leaf(history, first + i);
      stamps.data()[i] = memory_.stamps[leaf];
      priorities.data()[i] = memory_.tree[leaf] > 0.0 ? memory_.priorities[leaf] : -1.0f;
    }
  }

  // An empty history goes on from row `first`, `age` steps into an episode.
  void restore_history(std::uint64_t history, std::uint64_t first, std::uint32_t age) {
    check_history(history);
    History& h = memory_.histories[history];
    expect(h.head.load() == 0, "only an empty history can be restored");
    h.low = first;
    h.blocks = first / config().block;
    h.ready = first;
    h.head = first;
    h.next_age = age;
  }
  void restore_stamps(std::uint64_t history, std::uint64_t first, const Vector<const std::uint64_t>& stamps) {
    check_history(history);
    sampler_.restore(history, first, stamps.shape(0), stamps.data());
  }
  nb::tuple random_state() const {
    const std::uint64_t* s = memory_.header->random;
    return nb::make_tuple(s[0], s[1], s[2], s[3]);
  }
  void restore_statistics(const nb::dict& values, const std::vector<std::uint64_t>& random) {
    expect(random.size() == 4, "the random state has four words");
    auto value = [&](const char* name) { return nb::cast<std::uint64_t>(values[name]); };
    sampler_.restore({0, value("inserts"), value("samples"), value("updates"), value("late"), value("overwritten"),
                      value("evicted")},
                     random.data());
  }

 private:
  void check_history(std::uint64_t history) const {
    if (history >= config().histories)
      throw std::out_of_range("history " + std::to_string(history) + " of a replay with " + std::to_string(config().histories));
  }

  std::vector<std::byte*> pointers(const std::optional<Arrays>& arrays, std::size_t count, std::size_t length,
                                   bool stacked, bool values, bool pooled = false) const {
    std::vector<std::byte*> result(config().field_count, nullptr);
    if (!arrays) return result;
    expect(arrays->size() == config().field_count, "wrong number of fields");
    for (std::size_t f = 0; f < arrays->size(); ++f) {
      const FieldSpec& spec = config().fields[f];
      const std::optional<Array>& array = (*arrays)[f];
      if (!array || (!values && !spec.stack)) continue;
      std::size_t bytes = count * length * sample_bytes(spec, pooled, stacked);
      expect(array->nbytes() == bytes, "field " + std::to_string(f) + " has room for " +
                                           std::to_string(array->nbytes()) + " bytes, expected " +
                                           std::to_string(bytes));
      result[f] = static_cast<std::byte*>(array->data());
    }
    return result;
  }

  Windows windows_of(std::size_t count, std::uint64_t length, bool stacked, const std::optional<Arrays>& fields,
                     const std::optional<Vector<float>>& reward, const std::optional<Vector<float>>& discount,
                     const std::optional<Vector<std::uint32_t>>& age_flags, bool pooled = false) const {
    return {length,
            stacked,
            pointers(fields, count, length, stacked, true, pooled),
            data_of(reward, count * length, "reward"),
            data_of(discount, count * length, "discount"),
            data_of(age_flags, count * length, "age_flags")};
  }

  struct Draw {
    std::size_t count;
    std::uint64_t* keys;
    double* probabilities;
    bool stratified;
    std::uint64_t minimum;
    Positions* positions = nullptr;
  };

  // Draw keys and copy their samples, drawing others for those that writers overwrote meanwhile, so that everything that is
  // given out is whole. assemble(from, n, intact): copies the samples of n keys from the one with index `from` on. Returns 0
  // where there are too few transitions, else their number.
  template <typename Assemble>
  std::uint64_t draw_whole(const Draw& d, const Assemble& assemble) {
    std::uint64_t size = sampler_.draw(d.count, d.stratified, d.minimum, d.keys, d.probabilities, {}, d.positions);
    if (size == 0) return 0;
    std::vector<std::uint8_t> intact(d.count);
    assemble(0, d.count, intact.data());
    for (std::size_t i = 0; i < d.count; ++i) {
      while (!intact[i]) {
        if (sampler_.draw(1, false, 1, &d.keys[i], &d.probabilities[i], {d.keys[i]}) == 0) return 0;
        assemble(i, 1, &intact[i]);
      }
    }
    return size;
  }

  Windows shifted(Windows windows, std::size_t i) const {
    std::size_t rows = i * windows.length;
    for (std::size_t f = 0; f < config().field_count; ++f)
      if (windows.fields[f])
        windows.fields[f] += rows * sample_bytes(config().fields[f], windows.pool != nullptr, windows.stacked);
    if (windows.reward) windows.reward += rows;
    if (windows.discount) windows.discount += rows;
    if (windows.age_flags) windows.age_flags += rows;
    return windows;
  }

  Batch shifted(Batch batch, std::size_t i) const {
    for (std::size_t f = 0; f < config().field_count; ++f) {
      std::size_t bytes = i * sample_bytes(config().fields[f], batch.pool != nullptr);
      if (batch.first[f]) batch.first[f] += bytes;
      if (batch.next[f]) batch.next[f] += bytes;
    }
    if (batch.reward) batch.reward += i;
    if (batch.discount) batch.discount += i;
    return batch;
  }

  Memory memory_;
  Codec codec_;
  HistoryWriter writer_;
  Sampler sampler_;
  Assembler assembler_;
};

}  // namespace headrace::replay

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "replay/assemble.hpp"
#include "replay/trajectories.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace::replay {
namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using ConstArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
template <typename T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Arrays = std::vector<std::optional<Array>>;

void expect(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
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
                       const std::optional<Vector<double>>& probabilities, int threads,
                       const std::optional<std::vector<bool>>& interleaved) {
    std::size_t count = keys.shape(0);
    expect(weights.shape(0) == count, "keys and weights differ in length");
    Batch batch{pointers(first, count, 1, true, true), pointers(next, count, 1, true, false),
                data_of(reward, count, "reward"), data_of(discount, count, "discount"),
                interleaved.value_or(std::vector<bool>(config().field_count))};
    expect(batch.interleaved.size() == config().field_count, "wrong number of fields");
    for (std::size_t f = 0; f < batch.interleaved.size(); ++f)
      expect(!batch.interleaved[f] || config().fields[f].stack == 4, "only stacks of 4 frames can be interleaved");
    Draw draw{count, keys.data(), weights.data(), data_of(probabilities, count, "probabilities"), beta, stratified, minimum};
    bool assemble = first.has_value();
    nb::gil_scoped_release release;
    return sample_with(draw, [&](std::size_t from, std::size_t n, std::uint8_t* intact) {
      if (assemble)
        assembler_.transitions(n, keys.data() + from, shifted(batch, from), intact, n == 1 ? 1 : threads);
      else
        std::fill_n(intact, n, std::uint8_t{1});
    });
  }

  std::uint64_t sample_windows(const Vector<std::uint64_t>& keys, const Vector<float>& weights, double beta, bool stratified,
                               std::uint64_t minimum, std::uint64_t length, const Arrays& fields, const Vector<float>& reward,
                               const Vector<float>& discount, const Vector<std::uint32_t>& age_flags, int threads) {
    std::size_t count = keys.shape(0);
    expect(weights.shape(0) == count, "keys and weights differ in length");
    Windows windows = windows_of(count, length, true, fields, reward, discount, age_flags);
    Draw draw{count, keys.data(), weights.data(), nullptr, beta, stratified, minimum};
    nb::gil_scoped_release release;
    return sample_with(draw, [&](std::size_t from, std::size_t n, std::uint8_t* intact) {
      assembler_.windows(n, keys.data() + from, shifted(windows, from), intact, n == 1 ? 1 : threads);
    });
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
                                   bool stacked, bool values) const {
    std::vector<std::byte*> result(config().field_count, nullptr);
    if (!arrays) return result;
    expect(arrays->size() == config().field_count, "wrong number of fields");
    for (std::size_t f = 0; f < arrays->size(); ++f) {
      const FieldSpec& spec = config().fields[f];
      const std::optional<Array>& array = (*arrays)[f];
      if (!array || (!values && !spec.stack)) continue;
      std::size_t bytes = count * length * (stacked ? std::max(spec.stack, 1u) : 1) * spec.bytes;
      expect(array->nbytes() == bytes, "field " + std::to_string(f) + " has room for " +
                                           std::to_string(array->nbytes()) + " bytes, expected " +
                                           std::to_string(bytes));
      result[f] = static_cast<std::byte*>(array->data());
    }
    return result;
  }

  Windows windows_of(std::size_t count, std::uint64_t length, bool stacked, const std::optional<Arrays>& fields,
                     const std::optional<Vector<float>>& reward, const std::optional<Vector<float>>& discount,
                     const std::optional<Vector<std::uint32_t>>& age_flags) const {
    return {length,
            stacked,
            pointers(fields, count, length, stacked, true),
            data_of(reward, count * length, "reward"),
            data_of(discount, count * length, "discount"),
            data_of(age_flags, count * length, "age_flags")};
  }

  struct Draw {
    std::size_t count;
    std::uint64_t* keys;
    float* weights;
    double* probabilities;  // or null
    double beta;
    bool stratified;
    std::uint64_t minimum;
  };

  // Draw keys and copy their samples, drawing others for those that writers overwrote meanwhile, so that everything that is
  // given out is whole. assemble(from, n, intact): copies the samples of n keys from the one with index `from` on. Returns 0
  // where there are too few transitions, else their number.
  template <typename Assemble>
  std::uint64_t sample_with(const Draw& d, const Assemble& assemble) {
    std::vector<double> own(d.probabilities ? 0 : d.count);
    double* chosen = d.probabilities ? d.probabilities : own.data();
    std::uint64_t size = sampler_.draw(d.count, d.stratified, d.minimum, d.keys, chosen);
    if (size == 0) return 0;
    std::vector<std::uint8_t> intact(d.count);
    assemble(0, d.count, intact.data());
    for (std::size_t i = 0; i < d.count; ++i) {
      while (!intact[i]) {
        if (sampler_.draw(1, false, 1, &d.keys[i], &chosen[i], {d.keys[i]}) == 0) return 0;
        assemble(i, 1, &intact[i]);
      }
    }
    double largest = 0.0;
    for (std::size_t i = 0; i < d.count; ++i) {
      double weight = std::pow(static_cast<double>(size) * chosen[i], -d.beta);
      d.weights[i] = static_cast<float>(weight);
      largest = std::max(largest, weight);
    }
    for (std::size_t i = 0; i < d.count; ++i) d.weights[i] /= static_cast<float>(largest);
    return size;
  }

  Windows shifted(Windows windows, std::size_t i) const {
    std::size_t rows = i * windows.length;
    for (std::size_t f = 0; f < config().field_count; ++f)
      if (windows.fields[f])
        windows.fields[f] += rows * (windows.stacked ? std::max(config().fields[f].stack, 1u) : 1) * config().fields[f].bytes;
    if (windows.reward) windows.reward += rows;
    if (windows.discount) windows.discount += rows;
    if (windows.age_flags) windows.age_flags += rows;
    return windows;
  }

  Batch shifted(Batch batch, std::size_t i) const {
    for (std::size_t f = 0; f < config().field_count; ++f) {
      std::size_t bytes = i * std::max(config().fields[f].stack, 1u) * config().fields[f].bytes;
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

// A TrajectoryWriter on the arrays of a trajectory store, which it keeps alive.
class StoreReader {
 public:
  // `arrays`: of the store, by name. `fields`: names of the replay's fields; `core` is laid out over the rows, see Trajectories.
  StoreReader(Replay& replay, const nb::dict& arrays, const std::vector<std::string>& fields, float gamma,
              std::uint64_t copies, const std::optional<std::pair<std::uint64_t, std::uint64_t>>& sequences, bool rescaled)
      : arrays_(arrays) {
    const Config& config = replay.config();
    expect(fields.size() == config.field_count && copies >= 1, "wrong number of fields or copies");
    ConstArray reward = array("reward");
    expect(reward.ndim() == 3, "rewards are [slots, T, C]");
    in_.slots = reward.shape(0);
    in_.T = reward.shape(1);
    in_.agents = reward.shape(2);
    expect(in_.T >= 1 && in_.T <= config.rows, "a trajectory has more rows than a history holds");
    in_.env_index = column("env_index", in_.T, 4);
    in_.reward = column("reward", in_.T, 4);
    in_.value = column("value", in_.T, 4);
    expect(arrays.contains("q") || !sequences, "sequences need the field 'q' of the trajectories");
    errors_known_ = arrays.contains("q");
    in_.q = errors_known_ ? column("q", in_.T, 4) : in_.value;
    in_.terminated = column("terminated", in_.T, 1);
    in_.truncated = column("truncated", in_.T, 1);
    in_.first = column("first", in_.T + 1, 1);
    in_.valid = column("valid", in_.T + 1, 1);
    in_.fields.resize(fields.size());
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const FieldSpec& spec = config.fields[f];
      std::uint64_t bytes = spec.bytes * std::max(spec.stack, 1u);
      if (fields[f] == "core") {
        ConstArray core = array("core");
        expect(core.ndim() == 3, "core states are [slots, C, S]");
        in_.core_field = f;
        in_.core = {static_cast<const std::byte*>(core.data()), 1, in_.agents, core.shape(2) * 4};
        expect(core.nbytes() == in_.slots * in_.agents * in_.core.bytes && in_.core.bytes <= in_.T * bytes,
               "core states do not fit into the replay's rows");
        continue;
      }
      bool observed = fields[f] == "first" || spec.stack;
      in_.fields[f] = column(fields[f], in_.T + observed, bytes);
      if (spec.stack && arrays.contains(("final_" + fields[f]).c_str())) {
        in_.final_obs.resize(fields.size());
        in_.final_obs[f] = column("final_" + fields[f], in_.T, bytes);
      }
    }
    std::optional<Sequences> replayed;
    if (sequences) replayed = Sequences{sequences->first, sequences->second};
    writer_.emplace(replay.memory(), replay.writer(), in_, gamma, copies, replayed, rescaled);
  }

  // `otherwise`: the first priority of transitions whose trajectories have no `q` to compute it from.
  void write(std::uint64_t slot, float otherwise) {
    expect(slot < in_.slots, "no such slot");
    nb::gil_scoped_release release;
    writer_->write(slot, errors_known_ ? std::nullopt : std::optional<float>(otherwise));
  }
  nb::bytes state() const {
    std::vector<std::byte> bytes = writer_->state();
    return nb::bytes(bytes.data(), bytes.size());
  }
  void set_state(const nb::bytes& state) {
    writer_->set_state({static_cast<const std::byte*>(state.data()), state.size()});
  }

 private:
  ConstArray array(const std::string& name) const {
    expect(arrays_.contains(name.c_str()), "trajectories have no field '" + name + "', which a replay needs");
    return nb::cast<ConstArray>(arrays_[name.c_str()], false);  // never a copy: rows are written after this
  }
  Column column(const std::string& name, std::uint64_t rows, std::uint64_t bytes) const {
    ConstArray found = array(name);
    expect(found.nbytes() == in_.slots * rows * in_.agents * bytes,
           "field '" + name + "' has " + std::to_string(found.nbytes()) + " bytes, not " + std::to_string(in_.slots) + " x " +
               std::to_string(rows) + " x " + std::to_string(in_.agents) + " x " + std::to_string(bytes));
    return {static_cast<const std::byte*>(found.data()), rows, in_.agents, bytes};
  }

  nb::dict arrays_;
  Trajectories in_;
  std::optional<TrajectoryWriter> writer_;
  bool errors_known_ = true;
};

}  // namespace
}  // namespace headrace::replay

NB_MODULE(replay, m) {
  using namespace headrace::replay;
  m.doc() = "Prioritized replay in shared memory. headrace.experience.replay is its public face.";
  m.attr("TIME_BITS") = kTimeBits;
  m.attr("LAST") = static_cast<int>(kLast);
  m.attr("FIRST") = static_cast<int>(kFirst);
  m.attr("ZEROS") = static_cast<int>(kZeros);
  m.attr("FINAL") = static_cast<int>(kFinal);
  m.attr("FLAG_BITS") = static_cast<int>(kFlagBits);
  m.attr("MAX_FIELDS") = kMaxFields;

  nb::enum_<CodecKind>(m, "Codec")
      .value("none", CodecKind::none)
      .value("lz4", CodecKind::lz4)
      .value("zstd", CodecKind::zstd);

  nb::class_<Config>(m, "Config")
      .def(nb::init<>())
      .def_rw("histories", &Config::histories)
      .def_rw("rows", &Config::rows)
      .def_rw("n_step", &Config::n_step)
      .def_rw("seed", &Config::seed)
      .def_rw("alpha", &Config::alpha)
      .def_rw("evict_alpha", &Config::evict_alpha)
      .def_rw("floor", &Config::floor)
      .def_rw("codec", &Config::codec)
      .def_rw("codec_level", &Config::codec_level)
      .def_rw("block", &Config::block)
      .def_rw("ring_bytes", &Config::ring_bytes)
      .def_prop_ro("bytes_needed", [](const Config& config) { return Memory::bytes_needed(config); })
      .def("add_field", [](Config& config, std::uint64_t bytes, std::uint32_t stack, bool compressed) {
        expect(config.field_count < kMaxFields, "too many fields");
        config.fields[config.field_count++] = {bytes, stack, compressed};
      }, "bytes"_a, "stack"_a, "compressed"_a);

  nb::class_<Replay>(m, "Replay")
      .def(nb::init<int, const Config*, const std::vector<std::string>&>(), "descriptor"_a, "create"_a.none(),
           "codec_libraries"_a)
      .def_prop_ro("bytes", &Replay::bytes)
      .def("open", &Replay::open, "history"_a)
      .def("append", &Replay::append, "history"_a, "fields"_a, "reward"_a, "discount"_a, "flags"_a)
      .def("ready", &Replay::ready, "history"_a, "priorities"_a)
      .def("sample", &Replay::sample, "keys"_a, "weights"_a, "beta"_a, "stratified"_a, "minimum"_a,
           "first"_a.none() = nb::none(), "next"_a.none() = nb::none(), "reward"_a.none() = nb::none(),
           "discount"_a.none() = nb::none(), "probabilities"_a.none() = nb::none(), "threads"_a = 1,
           "interleaved"_a.none() = nb::none())
      .def("sample_windows", &Replay::sample_windows, "keys"_a, "weights"_a, "beta"_a, "stratified"_a, "minimum"_a, "length"_a,
           "fields"_a, "reward"_a, "discount"_a, "age_flags"_a, "threads"_a = 1)
      .def("packed_row_bytes", &Replay::packed_row_bytes)
      .def("windows", &Replay::windows, "keys"_a, "length"_a, "stacked"_a, "fields"_a.none(), "reward"_a.none(),
           "discount"_a.none(), "age_flags"_a.none(), "intact"_a, "threads"_a = 1)
      .def("update", &Replay::update, "keys"_a, "priorities"_a)
      .def("evict", &Replay::evict, "capacity"_a)
      .def("statistics", &Replay::statistics)
      .def("total", &Replay::total)
      .def("span", &Replay::span, "history"_a)
      .def("read_priorities", &Replay::read_priorities, "history"_a, "first"_a, "stamps"_a, "priorities"_a)
      .def("restore_history", &Replay::restore_history, "history"_a, "first"_a, "age"_a)
      .def("restore_stamps", &Replay::restore_stamps, "history"_a, "first"_a, "stamps"_a)
      .def("random_state", &Replay::random_state)
      .def("restore_statistics", &Replay::restore_statistics, "values"_a, "random"_a);

  nb::class_<StoreReader>(m, "TrajectoryWriter")
      .def(nb::init<Replay&, const nb::dict&, const std::vector<std::string>&, float, std::uint64_t,
                    const std::optional<std::pair<std::uint64_t, std::uint64_t>>&, bool>(),
           "replay"_a, "arrays"_a, "fields"_a, "gamma"_a, "copies"_a, "sequences"_a.none(), "rescaled"_a,
           nb::keep_alive<1, 2>())
      .def("write", &StoreReader::write, "slot"_a, "otherwise"_a = 1.0f)
      .def("get_state", &StoreReader::state)
      .def("set_state", &StoreReader::set_state, "state"_a);
}

#include "replay/python_replay.hpp"
#include "replay/trajectories.hpp"

namespace headrace::replay {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) { seed_random(state_, seed); }
  void uniform(const Vector<double>& numbers) {
    for (std::size_t i = 0; i < numbers.shape(0); ++i) numbers.data()[i] = random_uniform(state_);
  }

 private:
  std::uint64_t state_[4];
};

// A TrajectoryWriter on the arrays of a trajectory store, which it keeps alive.
class StoreReader {
 public:
  // `arrays`: of the store, by name. `fields`: names of the replay's fields; `core` is laid out over the rows, see Trajectories.
  StoreReader(Replay& replay, const nb::dict& arrays, const std::vector<std::string>& fields, float gamma,
              std::uint64_t copies, const std::optional<std::pair<std::uint64_t, std::uint64_t>>& sequences, bool rescaled,
              const std::vector<std::uint64_t>& envs)
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
    writer_.emplace(replay.memory(), replay.writer(), in_, gamma, copies, replayed, rescaled, envs);
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
           "discount"_a.none() = nb::none(), "probabilities"_a.none() = nb::none(), "threads"_a = 1)
      .def("sample_pooled", &Replay::sample_pooled, "keys"_a, "probabilities"_a, "positions"_a, "parts"_a, "length"_a, "fields"_a,
           "next"_a, "frames"_a, "reward"_a, "discount"_a, "age_flags"_a.none())
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

  nb::class_<Random>(m, "Random")
      .def(nb::init<std::uint64_t>(), "seed"_a)
      .def("uniform", &Random::uniform, "numbers"_a, "Fills float64 numbers, in [0, 1), as a replay of that seed draws them.");

  m.def("importance_weights", [](std::uint64_t size, const Vector<const double>& probabilities, double beta,
                                 const Vector<float>& weights) {
    expect(probabilities.shape(0) == weights.shape(0), "probabilities and weights differ in length");
    importance_weights(weights.shape(0), size, probabilities.data(), beta, weights.data());
  }, "size"_a, "probabilities"_a, "beta"_a, "weights"_a);

  nb::class_<StoreReader>(m, "TrajectoryWriter")
      .def(nb::init<Replay&, const nb::dict&, const std::vector<std::string>&, float, std::uint64_t,
                    const std::optional<std::pair<std::uint64_t, std::uint64_t>>&, bool, const std::vector<std::uint64_t>&>(),
           "replay"_a, "arrays"_a, "fields"_a, "gamma"_a, "copies"_a, "sequences"_a.none(), "rescaled"_a, "envs"_a,
           nb::keep_alive<1, 2>())
      .def("write", &StoreReader::write, "slot"_a, "otherwise"_a = 1.0f)
      .def("get_state", &StoreReader::state)
      .def("set_state", &StoreReader::set_state, "state"_a);
}

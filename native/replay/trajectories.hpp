// From finished trajectories to the replay: the steps of a slot become rows of its environments' histories, with first
// priorities. One call per slot; what a history needs of the trajectory before is remembered here.
//
// An environment's rows in a slot are its observations in order. Rows are added where the replay could not rebuild a stack or
// bootstrap otherwise; all of them are rows without an action:
// - before the first row of an episode whose stack holds other frames than copies of its newest one, zeros, or those of the
//   rows before: one row for each of the older frames;
// - behind the last row of an episode of an environment that resets in the same step: its true last observation.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "replay/priorities.hpp"
#include "replay/writer.hpp"

namespace headrace::replay {

// An array [slots, rows, C, ...] of a trajectory store; `bytes` of one agent's row.
struct Column {
  const std::byte* data = nullptr;
  std::uint64_t rows = 0, agents = 0, bytes = 0;

  const std::byte* at(std::uint64_t slot, std::uint64_t t, std::uint64_t agent) const {
    return data + ((slot * rows + t) * agents + agent) * bytes;
  }
  template <typename T>
  T get(std::uint64_t slot, std::uint64_t t, std::uint64_t agent) const {
    T value;
    std::memcpy(&value, at(slot, t, agent), sizeof value);
    return value;
  }
};

struct Trajectories {
  std::uint64_t slots = 0, T = 0, agents = 0;
  std::vector<Column> fields;     // by the replay's fields; none for the field `core_field`
  std::vector<Column> final_obs;  // the same for observations, where environments reset in the same step; else empty
  Column core;                    // [slots, 1, C, S]: state before row 0, laid out over the T rows of a field of its own
  std::size_t core_field = SIZE_MAX;
  Column env_index, reward, terminated, truncated, first, valid, q, value;
};

struct Sequences {  // what is replayed of recurrent networks; a sequence starts at row 0 of every slot
  std::uint64_t burn_in = 0, length = 0;
};

class TrajectoryWriter {
 public:
  // `copies` histories for each environment: those of the one with number envs[i] are i copies, ..., i copies + copies - 1.
  TrajectoryWriter(Memory& memory, HistoryWriter& writer, Trajectories trajectories, float gamma, std::uint64_t copies,
                   std::optional<Sequences> sequences, bool rescaled, const std::vector<std::uint64_t>& envs)
      : m_(memory), writer_(writer), in_(std::move(trajectories)), gamma_(gamma), copies_(copies), sequences_(sequences) {
    for (std::size_t f = 0; f < m_.config().field_count; ++f)
      if (m_.config().fields[f].stack > 1) stacked_.push_back(f);
    progress_.assign(m_.config().histories, Progress(m_.config().n_step, rescaled));
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(envs.size(), m_.config().histories / copies_); ++i) place_[envs[i]] = i;
    core_.resize(in_.core_field == SIZE_MAX ? 0 : in_.T * m_.config().fields[in_.core_field].bytes);
  }

  // `priority`: the first one of every transition, instead of the error of what acting computed.
  // Throws std::invalid_argument for numbers that are not finite, std::out_of_range for an environment without a history.
  void write(std::uint64_t slot, std::optional<float> priority = std::nullopt) {
    priority_ = priority;
    for (std::uint64_t agent = 0; agent < in_.agents; ++agent) {
      auto env = static_cast<std::uint64_t>(in_.env_index.get<std::int32_t>(slot, 0, agent));
      auto place = place_.find(env);
      if (place == place_.end())
        throw std::out_of_range("a trajectory of environment " + std::to_string(static_cast<std::int64_t>(env)) +
                                ", for which the replay has no history");
      for (std::uint64_t copy = 0; copy < copies_; ++copy) write(slot, agent, place->second * copies_ + copy);
    }
  }

  // What is remembered of the histories, to go on from with the same replay.
  std::vector<std::byte> state() const {
    std::vector<std::byte> out;
    for (const Progress& p : progress_) {
      save(out, std::array<std::uint64_t, 3>{p.open, p.ended, p.errors_from});
      save(out, p.unknown.waiting);
      save(out, p.errors);
      save(out, p.starts);
      save(out, p.before);
    }
    return out;
  }

  // Throws std::invalid_argument if these are not the bytes that state() gave.
  void set_state(std::span<const std::byte> in) {
    std::vector<Progress> restored = progress_;
    for (Progress& p : restored) {
      std::vector<std::uint64_t> numbers;
      load(in, numbers);
      check_state(numbers.size() == 3);
      p.open = numbers[0];
      p.ended = numbers[1];
      p.errors_from = numbers[2];
      load(in, p.unknown.waiting);
      load(in, p.errors);
      load(in, p.starts);
      load(in, p.before);
      check_state(p.before.empty() || p.before.size() == stacks_bytes());
    }
    check_state(in.empty());
    progress_ = std::move(restored);
  }

 private:
  struct Progress {  // of one history
    Progress(std::uint64_t n_step, bool rescaled) : unknown(n_step, rescaled) {}

    bool open = false;
    bool ended = true;            // the newest row was the last of its episode
    NStepErrors unknown;
    std::vector<std::byte> before;  // stacks of the newest row, if an episode starts after it
    // Sequences:
    std::vector<float> errors;           // of the rows from `errors_from` on that are known; negative: no action
    std::uint64_t errors_from = 0;
    std::vector<std::uint64_t> starts;   // times of those sequences that are not whole yet
  };

  enum class Kind { step, older_frame, final_observation };
  struct Source {  // where a row's fields come from
    std::uint64_t t;
    Kind kind;
    std::uint64_t age;  // older_frame: 0 for the oldest
  };

  void write(std::uint64_t slot, std::uint64_t agent, std::uint64_t index) {
    Progress& p = progress_[index];
    // Nobody wrote before us, or a rollout worker died: the next one begins with a new episode.
    bool fresh = !p.open || (in_.first.get<bool>(slot, 0, agent) && !p.ended);
    if (fresh) {
      p.unknown.waiting.clear();
      p.before.clear();
      p.errors.clear();
      p.starts.clear();
      p.errors_from = writer_.open(index);
      p.open = true;
    }
    plan(slot, agent, p.before, fresh);
    bool same_step = !in_.final_obs.empty();
    p.ended = same_step ? is_last(slot, in_.T - 1, agent)
                        : !in_.valid.get<bool>(slot, in_.T - 1, agent) || in_.terminated.get<bool>(slot, in_.T - 1, agent);
    remember_stacks(slot, agent, p.before);
    remember_core(slot, agent);

    rows_.clear();
    for (const Step& step : steps_) rows_.push_back(step.row);
    std::uint64_t time = writer_.append(index, rows_, [&](std::size_t f, std::size_t i) { return source(f, i, slot, agent); });
    if (sequences_) {
      p.starts.push_back(time + added_);
      p.unknown.push(steps_, p.errors);
      finish_sequences(index, p);
    } else {
      errors_.clear();
      p.unknown.push(steps_, errors_);
      if (priority_) std::replace_if(errors_.begin(), errors_.end(), [](float error) { return error >= 0.0f; }, *priority_);
      writer_.ready(index, errors_.size(), errors_.data());
    }
  }

  bool is_last(std::uint64_t slot, std::uint64_t t, std::uint64_t agent) const {
    return in_.valid.get<bool>(slot, t, agent) &&
           (in_.terminated.get<bool>(slot, t, agent) || in_.truncated.get<bool>(slot, t, agent));
  }

  // The rows that an environment's T steps become: `sources_` and `steps_`. `before`: stacks of the row before, if row 0
  // starts an episode; else empty. `fresh`: there is no row before.
  void plan(std::uint64_t slot, std::uint64_t agent, const std::vector<std::byte>& before, bool fresh) {
    sources_.clear();
    steps_.clear();
    std::vector<const std::byte*> previous;  // by `stacked_`: the stack before; empty if it is not known
    std::uint64_t offset = 0;
    for (std::size_t i = 0; i < stacked_.size() && !before.empty(); offset += stack_bytes(stacked_[i++]))
      previous.push_back(before.data() + offset);
    for (std::uint64_t t = 0; t < in_.T; ++t) {
      std::uint32_t flags = in_.valid.get<bool>(slot, t, agent) ? 0 : kFinal;
      if (is_last(slot, t, agent)) flags |= kLast;
      if (in_.first.get<bool>(slot, t, agent) || (t == 0 && fresh && !stacked_.empty()))
        flags |= begin_stacks(slot, t, agent, previous);
      float value = in_.value.get<float>(slot, t, agent), reward = in_.reward.get<float>(slot, t, agent);
      if (!std::isfinite(reward))
        throw std::invalid_argument("environment " + std::to_string(in_.env_index.get<std::int32_t>(slot, t, agent)) +
                                    ": the reward of row " + std::to_string(t) + " is not finite");
      float discount = in_.terminated.get<bool>(slot, t, agent) ? 0.0f : gamma_;
      add({t, Kind::step, 0}, {{reward, discount, -1.0f, flags}, in_.q.get<float>(slot, t, agent), value});
      // Acting never saw it, so for the first priority its value is taken to be that of the observation before.
      if ((flags & kLast) && !in_.final_obs.empty()) add({t, Kind::final_observation, 0}, {{0, 0, -1.0f, kFinal}, 0, value});
      previous.clear();
      for (std::size_t f : stacked_) previous.push_back(newest_stack(f, slot, t, agent));
    }
    added_ = sources_.size() - in_.T;
    // Rows without an action must not be in the middle of a sequence. Before the first one of a history they are not.
    if (sequences_ && added_ && !(fresh && sources_[added_].t == 0 && sources_[added_].kind == Kind::step))
      throw std::invalid_argument("replay of sequences needs stacks that begin with zeros or copies of the first frame");
  }

  void add(const Source& source, const Step& step) {
    sources_.push_back(source);
    steps_.push_back(step);
  }

  // Flags of row t, which starts an episode or has no known row before it, so that its stacks come out as acting saw them.
  // Adds rows before it where that takes any.
  std::uint32_t begin_stacks(std::uint64_t slot, std::uint64_t t, std::uint64_t agent,
                             const std::vector<const std::byte*>& previous) {
    bool goes_on = !previous.empty(), zeros = !stacked_.empty(), copies = true;
    std::uint64_t depth = 1;
    for (std::size_t i = 0; i < stacked_.size(); ++i) {
      const FieldSpec& spec = m_.config().fields[stacked_[i]];
      const std::byte* stack = in_.fields[stacked_[i]].at(slot, t, agent);
      std::uint64_t older = stack_bytes(stacked_[i]) - spec.bytes;
      // As after a lost life: an episode began, but the emulator just went on.
      goes_on = goes_on && std::memcmp(stack, previous[i] + spec.bytes, older) == 0;
      zeros = zeros && std::all_of(stack, stack + older, [](std::byte b) { return b == std::byte{0}; });
      for (std::uint64_t frame = 0; frame + 1 < spec.stack; ++frame)
        copies = copies && std::memcmp(stack + frame * spec.bytes, stack + older, spec.bytes) == 0;
      depth = std::max<std::uint64_t>(depth, spec.stack);
    }
    if (goes_on) return 0;
    if (zeros) return kFirst | kZeros;
    if (copies) return kFirst;
    for (std::uint64_t age = 0; age + 1 < depth; ++age)
      add({t, Kind::older_frame, age}, {{0, 0, -1.0f, kFinal | (age == 0 ? kFirst : 0u)}, 0, 0});
    return 0;
  }

  // Field f of row i: of a stack one frame.
  const std::byte* source(std::size_t f, std::size_t i, std::uint64_t slot, std::uint64_t agent) const {
    const Source& s = sources_[i];
    const FieldSpec& spec = m_.config().fields[f];
    if (f == in_.core_field) return core_.data() + s.t * spec.bytes;
    std::uint64_t frame = std::max(spec.stack, 1u) - 1;
    if (s.kind == Kind::older_frame) frame = std::min(s.age, frame);
    bool final = s.kind == Kind::final_observation && spec.stack;
    return (final ? in_.final_obs : in_.fields)[f].at(slot, s.t, agent) + frame * spec.bytes;
  }

  std::uint64_t stack_bytes(std::size_t f) const { return m_.config().fields[f].stack * m_.config().fields[f].bytes; }
  std::uint64_t stacks_bytes() const {
    std::uint64_t total = 0;
    for (std::size_t f : stacked_) total += stack_bytes(f);
    return total;
  }

  // The stack that ends with the newest frame that is stored of row t.
  const std::byte* newest_stack(std::size_t f, std::uint64_t slot, std::uint64_t t, std::uint64_t agent) const {
    bool final = !in_.final_obs.empty() && is_last(slot, t, agent);
    return (final ? in_.final_obs : in_.fields)[f].at(slot, t, agent);
  }

  // Row T is row 0 of the environment's next slot. If an episode starts there, its stacks are compared with those before.
  void remember_stacks(std::uint64_t slot, std::uint64_t agent, std::vector<std::byte>& before) const {
    before.clear();
    if (!in_.first.get<bool>(slot, in_.T, agent)) return;
    for (std::size_t f : stacked_) {
      const std::byte* stack = newest_stack(f, slot, in_.T - 1, agent);
      before.insert(before.end(), stack, stack + stack_bytes(f));
    }
  }

  // Behind the core state the last row's share is filled up with zeros.
  void remember_core(std::uint64_t slot, std::uint64_t agent) {
    if (!core_.empty()) std::memcpy(core_.data(), in_.core.at(slot, 0, agent), in_.core.bytes);
  }

  // Give those sequences a priority of which all rows are there. Rows between their starts start nothing.
  void finish_sequences(std::uint64_t index, Progress& p) {
    std::uint64_t head = m_.histories[index].head.load(std::memory_order_relaxed);
    std::uint64_t rows = sequences_->burn_in + sequences_->length + m_.config().n_step;
    while (!p.starts.empty() && head >= p.starts.front() + rows) {
      std::uint64_t at = p.starts.front() - p.errors_from, first = at + sequences_->burn_in;
      if (p.errors.size() < first + sequences_->length) return;  // the value after a time limit is still to come
      errors_.clear();
      std::copy_if(p.errors.begin() + first, p.errors.begin() + first + sequences_->length, std::back_inserter(errors_),
                   [](float error) { return error >= 0.0f; });
      std::vector<float> priorities(at + 1, -1.0f);
      priorities[at] = mixed_priority(errors_.data(), errors_.size());
      writer_.ready(index, priorities.size(), priorities.data());
      p.errors.erase(p.errors.begin(), p.errors.begin() + at + 1);
      p.errors_from += at + 1;
      p.starts.erase(p.starts.begin());
    }
  }

  // -- the state as bytes: of every array its length and its elements --------------------------------------------------

  static void check_state(bool condition) {
    if (!condition) throw std::invalid_argument("the saved state is not that of a writer to this replay");
  }

  template <typename Items>
  static void save(std::vector<std::byte>& out, const Items& items) {
    std::uint64_t count = items.size();
    auto bytes = std::as_bytes(std::span(&count, 1));
    auto content = std::as_bytes(std::span(items));
    out.insert(out.end(), bytes.begin(), bytes.end());
    out.insert(out.end(), content.begin(), content.end());
  }

  template <typename T>
  static void load(std::span<const std::byte>& in, std::vector<T>& items) {
    std::uint64_t count;
    check_state(in.size() >= sizeof count);
    std::memcpy(&count, in.data(), sizeof count);
    in = in.subspan(sizeof count);
    check_state(count <= in.size() / sizeof(T));
    items.resize(count);
    if (count) std::memcpy(items.data(), in.data(), count * sizeof(T));
    in = in.subspan(count * sizeof(T));
  }

  Memory& m_;
  HistoryWriter& writer_;
  Trajectories in_;
  float gamma_;
  std::uint64_t copies_;
  std::optional<Sequences> sequences_;
  std::unordered_map<std::uint64_t, std::uint64_t> place_;  // of environments, by their numbers
  std::vector<std::size_t> stacked_;  // fields whose observations are stacks of several frames
  std::vector<Progress> progress_;    // by history
  // Of the rows being written:
  std::vector<Source> sources_;
  std::size_t added_ = 0;  // how many of them are no steps
  std::vector<Step> steps_;
  std::vector<Row> rows_;
  std::vector<float> errors_;
  std::optional<float> priority_;
  std::vector<std::byte> core_;  // the core state before row 0, over T rows
};

}  // namespace headrace::replay

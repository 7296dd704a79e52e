// The tables of a batch of consoles for a device: a block of bytes that is copied there as it is (cuda/batch.hpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "atari/cuda/batch.hpp"
#include "atari/host/archive.hpp"
#include "atari/host/environment.hpp"
#include "atari/host/game.hpp"

namespace headrace::atari {

// The states of one game and mode after resets, of all kinds that do not depend on what was before them, and after the frames that
// begin an episode.
class StartTable {
 public:
  StartTable(Game& game, const EnvironmentSetup& setup) : screen_bytes_(2 * static_cast<size_t>(game.data.screen_bytes())) {
    const EmulatorSettings& settings = setup.settings;
    Services services{game, game.system_draws(kMostDrawsPerReset)};
    std::vector<uint8_t> screens(screen_bytes_);
    EmulatorState state{};
    const EmulatorSettings normal = game.default_settings();
    Emulator<Services> emulator{game.data, settings, services, state, screens.data(), nullptr};
    emulator.load(normal, 0);
    const bool same = settings.mode == normal.mode && settings.difficulty == normal.difficulty;
    if (same) keep(start_index(Stage::kLoading, 0), state, screens);
    const EmulatorState loaded = state;
    const bool superchip = has_superchip(game.data.cartridge.mapper);
    uint32_t used = state.system_draws;
    const uint8_t timer = services.draws.reset(used, superchip).timer;
    emulator.reset();
    keep(start_index(Stage::kLoaded, timer), state, screens);
    if (game.data.facts.keeps_memory || superchip) return;
    for (uint32_t draw = 0; draw < 75; ++draw) {
      services.draws = {&draw, 1};
      state = loaded;
      state.stage = Stage::kPlayed;
      emulator.reset();
      keep(start_index(Stage::kPlayed, static_cast<uint8_t>(25 + draw)), state, screens);
      if (setup.options.repeat_action_probability > 0) continue;
      for (int i = 0; i < setup.options.noop_max - 4; ++i) {
        emulator.play(i == 0 ? first_action(setup) : kNoop, 1.0f, false);
        starts_.back().later.push_back(state);
      }
    }
  }

  struct Start {
    int32_t index;
    EmulatorState state;
    std::vector<uint8_t> screens;
    std::vector<EmulatorState> later;  // see StartState
  };
  const std::vector<Start>& starts() const { return starts_; }

 private:
  // Emulates every reset, and keeps nothing.
  struct Services {
    Game& game;
    SystemDraws draws;

    void run_program(Console& console, const Frame& frame) const { game.run_program(console, frame); }
    SystemDraws system_draws(uint32_t) const { return draws; }
    const StartState* find_start(const EmulatorSettings&, int32_t) const { return nullptr; }
    void keep_start(const EmulatorSettings&, int32_t, const EmulatorState&, const uint8_t*, int32_t) const {}
    void copy_screens(uint8_t*, const uint8_t*, size_t) const {}
  };

  void keep(int32_t index, const EmulatorState& state, const std::vector<uint8_t>& screens) {
    starts_.push_back({index, state, screens, {}});
  }

  size_t screen_bytes_;
  std::vector<Start> starts_;
};

class DeviceBatch {
 public:
  // One console per entry of `games`. Throws std::invalid_argument as Vector does.
  DeviceBatch(const std::vector<std::shared_ptr<Game>>& games, const StepOptions& options) : options_(options) {
    std::unordered_map<const Game*, int32_t> numbers;
    for (const auto& game : games) {
      const auto [it, is_new] = numbers.try_emplace(game.get(), static_cast<int32_t>(kinds_.size()));
      if (is_new) {
        kinds_.push_back(std::make_unique<EnvironmentKind>(game, options));
        starts_.emplace_back(*game, kinds_.back()->setup());
      }
      game_of_.push_back(it->second);
    }
    for (const auto& kind : kinds_) {
      if (kind->observation_bytes() != kinds_[0]->observation_bytes())
        throw std::invalid_argument("the screens of these games differ in height, so they have to be resized");
      const size_t screen = static_cast<size_t>(kind->game->data.screen_bytes());
      grow(strides_["screens"], 2 * screen);
      grow(strides_["interrupted"], screen);
      grow(strides_["images"], kind->observation_bytes());
      grow(strides_["pooled_pixels"], static_cast<size_t>(kind->observer().pooled_pixels()));
      grow(strides_["pooled_source"], static_cast<size_t>(kind->observer().pooled_lines()) * sizeof(uint16_t));
    }
    strides_["states"] = sizeof(EnvironmentState);
    strides_["pictures"] = sizeof(Picture);
    strides_["restarts"] = 1;
    strides_["noops"] = sizeof(Mt19937);
    strides_["noises"] = options.repeat_action_probability > 0 ? sizeof(ActionNoise) : 0;
    strides_["twisters"] = options.repeat_action_probability > 0 && options.exact_noise ? sizeof(Mt19937) : 0;
  }

  DeviceBatch(const DeviceBatch&) = delete;
  DeviceBatch& operator=(const DeviceBatch&) = delete;

  // Bytes per console of each kind of memory. Zeroed memory of these sizes is needed, aligned to 16 bytes.
  const std::map<std::string, size_t>& strides() const { return strides_; }
  const std::vector<int32_t>& game_of() const { return game_of_; }
  int games() const { return static_cast<int>(kinds_.size()); }
  const Game& game(int env) const { return *kind(env).game; }
  size_t observation_bytes() const { return kinds_[0]->observation_bytes(); }
  const StepOptions& options() const { return options_; }
  int num_actions(int env) const { return kind(env).setup().actions.count; }

  // The tables, for the address that they will be copied to. A ConsoleBatch comes first. `memory`: address of each kind of
  // memory.
  std::vector<uint8_t> tables(uint64_t at, const std::map<std::string, uint64_t>& memory) const {
    Blob blob{at, {}};
    blob.reserve(sizeof(ConsoleBatch));
    const size_t consoles = game_of_.size();
    std::vector<uint32_t> draws(kSystemDraws);
    const SystemDraws stream = SystemStream::shared().first(kSystemDraws);
    std::memcpy(draws.data(), stream.draws, draws.size() * sizeof(uint32_t));
    const uint64_t draws_at = blob.add(draws.data(), draws.size() * sizeof(uint32_t));

    std::vector<EnvironmentSetup> setups;
    std::vector<TableServices> services;
    for (size_t i = 0; i < kinds_.size(); ++i) {
      EnvironmentSetup setup = kinds_[i]->setup();
      setup.game = blob.put<GameData>(*setup.game);
      setup.observer = blob.put<Observer>(*setup.observer);
      std::vector<const StartState*> table(kStartIndices);
      for (const StartTable::Start& start : starts_[i].starts()) {
        const uint64_t screens = blob.add(start.screens.data(), start.screens.size());
        const uint64_t later = blob.add(start.later.data(), start.later.size() * sizeof(EmulatorState));
        const StartState kept = {start.state, reinterpret_cast<const uint8_t*>(screens), 0,
                                 static_cast<int32_t>(start.later.size()), reinterpret_cast<const EmulatorState*>(later)};
        table[static_cast<size_t>(start.index)] = blob.put<StartState>(kept);
      }
      const uint64_t table_at = blob.add(table.data(), table.size() * sizeof(table[0]));
      services.push_back({{reinterpret_cast<const uint32_t*>(draws_at), kSystemDraws}, setup.settings,
                          reinterpret_cast<const StartState* const*>(table_at)});
      setups.push_back(setup);
    }
    ConsoleBatch batch = {};
    batch.consoles = static_cast<int32_t>(consoles);
    batch.setups = reinterpret_cast<const EnvironmentSetup*>(blob.add(setups.data(), setups.size() * sizeof(setups[0])));
    batch.services = reinterpret_cast<const TableServices*>(blob.add(services.data(), services.size() * sizeof(services[0])));
    batch.game_of = reinterpret_cast<const int32_t*>(blob.add(game_of_.data(), consoles * sizeof(int32_t)));
    const auto at_memory = [&](const char* name) { return reinterpret_cast<uint8_t*>(memory.at(name)); };
    batch.states = reinterpret_cast<EnvironmentState*>(at_memory("states"));
    batch.pictures = reinterpret_cast<Picture*>(at_memory("pictures"));
    batch.restarts = at_memory("restarts");
    batch.noops = reinterpret_cast<Mt19937*>(at_memory("noops"));
    if (options_.repeat_action_probability > 0) batch.noises = reinterpret_cast<ActionNoise*>(at_memory("noises"));
    batch.screens = at_memory("screens");
    batch.interrupted = at_memory("interrupted");
    batch.images = at_memory("images");
    batch.pooled_pixels = at_memory("pooled_pixels");
    batch.pooled_source = at_memory("pooled_source");
    batch.screens_stride = stride("screens");
    batch.interrupted_stride = stride("interrupted");
    batch.images_stride = stride("images");
    batch.pooled_pixels_stride = stride("pooled_pixels");
    batch.pooled_source_stride = stride("pooled_source");
    std::memcpy(blob.bytes.data(), &batch, sizeof batch);
    return std::move(blob.bytes);
  }

  // What the memory "noises" begins with. `twisters`: address of that kind of memory.
  std::vector<uint8_t> noises(uint64_t twisters) const {
    if (options_.repeat_action_probability <= 0) return {};
    std::vector<ActionNoise> noises(game_of_.size(), {options_.repeat_action_probability, nullptr, 0, 0});
    for (size_t i = 0; i < noises.size() && options_.exact_noise; ++i)
      noises[i].twister = reinterpret_cast<Mt19937*>(twisters) + i;
    const auto* bytes = reinterpret_cast<const uint8_t*>(noises.data());
    return {bytes, bytes + noises.size() * sizeof(ActionNoise)};
  }

  // The newest screen of a console, of its memory "states" and "screens".
  const uint8_t* screen(int env, const uint8_t* state, const uint8_t* screens) const {
    EnvironmentState copy;
    std::memcpy(&copy, state, sizeof copy);
    return screens + (copy.emulator.console.parity ? game(env).data.screen_bytes() : 0);
  }

  // The saved state of a console, as Vector::save makes it, of its memory of each kind; and the other way round: what the
  // memory holds then. Throws std::invalid_argument if the state has another size.
  using Parts = std::map<std::string, std::vector<uint8_t>>;
  std::vector<uint8_t> pack(int env, const Parts& parts) const {
    Writer writer;
    Parts copy = parts;
    archive(env, copy, writer);
    return std::move(writer.out);
  }
  Parts unpack(int env, Parts parts, const std::vector<uint8_t>& state) const {
    if (pack(env, parts).size() != state.size())
      throw std::invalid_argument("the state was saved with other options or by another version");
    Reader reader(state);
    archive(env, parts, reader);
    return parts;
  }

  // Consoles in the order in which lanes take them: no warp has consoles of two games. -1: none.
  std::vector<int32_t> slots(int consoles_per_warp, int only_game) const {
    std::vector<int32_t> result;
    for (int32_t game = 0; game < games(); ++game) {
      if (only_game >= 0 && game != only_game) continue;
      for (size_t i = 0; i < game_of_.size(); ++i)
        if (game_of_[i] == game) result.push_back(static_cast<int32_t>(i));
      while (result.size() % static_cast<size_t>(consoles_per_warp) != 0) result.push_back(-1);
    }
    return result;
  }

  const EnvironmentKind& kind(int env) const { return *kinds_[static_cast<size_t>(game_of_[static_cast<size_t>(env)])]; }

 private:
  // In the order of HostEnvironment::archive.
  template <class Archive>
  void archive(int env, Parts& parts, Archive& archive) const {
    const EnvironmentKind& of = kind(env);
    archive.bytes(parts.at("states").data(), sizeof(EnvironmentState));
    archive.bytes(parts.at("screens").data(), 2 * static_cast<size_t>(of.game->data.screen_bytes()));
    if (options_.repeat_action_probability > 0) {
      ActionNoise noise;
      std::memcpy(&noise, parts.at("noises").data(), sizeof noise);
      archive(noise.key);
      archive(noise.counter);
      std::memcpy(parts.at("noises").data(), &noise, sizeof noise);
      if (options_.exact_noise) archive.bytes(parts.at("twisters").data(), sizeof(Mt19937));
    }
    archive.bytes(parts.at("images").data(), of.observation_bytes());
    archive.bytes(parts.at("pooled_pixels").data(), static_cast<size_t>(of.observer().pooled_pixels()));
    archive.bytes(parts.at("pooled_source").data(), static_cast<size_t>(of.observer().pooled_lines()) * sizeof(uint16_t));
    archive.bytes(parts.at("noops").data(), sizeof(Mt19937));
  }

  // Bytes that know at which address they will lie.
  struct Blob {
    uint64_t at;
    std::vector<uint8_t> bytes;

    uint64_t reserve(size_t size) {
      bytes.resize((bytes.size() + 63) / 64 * 64);
      const size_t offset = bytes.size();
      bytes.resize(offset + size);
      return at + offset;
    }
    uint64_t add(const void* data, size_t size) {
      const uint64_t address = reserve(size);
      std::memcpy(bytes.data() + (address - at), data, size);
      return address;
    }
    template <class T>
    const T* put(const T& value) {
      return reinterpret_cast<const T*>(add(&value, sizeof value));
    }
  };

  static void grow(size_t& stride, size_t bytes) { stride = std::max(stride, (bytes + 15) / 16 * 16); }
  int64_t stride(const char* name) const { return static_cast<int64_t>(strides_.at(name)); }

  static constexpr uint32_t kSystemDraws = 1 << 18;

  const StepOptions options_;
  std::vector<std::unique_ptr<EnvironmentKind>> kinds_;
  std::vector<StartTable> starts_;
  std::vector<int32_t> game_of_;
  std::map<std::string, size_t> strides_;
};

}  // namespace headrace::atari

// Python module headrace_atari._native.atari.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "atari/host/block_writer.hpp"
#include "atari/host/device_batch.hpp"
#include "atari/host/emulator.hpp"
#include "atari/host/rom.hpp"
#include "atari/host/vector.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace::atari {
namespace {

std::vector<int> set_bits(uint32_t bits) {
  std::vector<int> result;
  for (int i = 0; i < 32; ++i)
    if (bits >> i & 1) result.push_back(i);
  return result;
}

nb::dict describe(const GameListing& game) {
  nb::dict d;
  std::vector<int> modes;
  for (int i = 0; i < game.num_modes; ++i) modes.push_back(kModes[game.mode_begin + i].mode);
  d["name"] = game.name;
  d["md5"] = game.md5;
  d["rom_size"] = game.rom_size;
  d["pal"] = game.facts.pal;
  d["height"] = game.facts.height;
  d["minimal_actions"] = set_bits(game.facts.minimal_actions);
  d["legal_actions"] = set_bits(game.facts.legal_actions);
  d["modes"] = modes;
  d["default_mode"] = game.default_mode;
  d["difficulties"] = set_bits(game.difficulties);
  return d;
}

nb::list games() {
  nb::list result;
  for (const GameListing& game : kGames) result.append(describe(game));
  return result;
}

std::shared_ptr<Game> make_game(int index, nb::bytes rom, bool translate) {
  if (index < 0 || index >= kNumGames) throw nb::value_error("no game has this index");
  const GameListing& game = kGames[index];
  Cartridge cartridge;
  const LoadError error =
      load_cartridge(cartridge, static_cast<const uint8_t*>(rom.data()), static_cast<uint32_t>(rom.size()));
  const bool fits = rom.size() == static_cast<size_t>(game.rom_size) && cartridge.mapper == game.mapper;
  if (error != LoadError::kNone || !fits)
    throw nb::value_error((std::string("these ") + std::to_string(rom.size()) + " bytes are not the ROM of " +
                           game.name + " (" + std::to_string(game.rom_size) + " bytes)").c_str());
  return std::make_shared<Game>(index, cartridge, translate);
}

nb::ndarray<nb::numpy, uint8_t> copy(const uint8_t* data, std::initializer_list<size_t> shape) {
  size_t size = 1;
  for (const size_t n : shape) size *= n;
  uint8_t* memory = new uint8_t[size];
  std::memcpy(memory, data, size);
  nb::capsule owner(memory, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  return nb::ndarray<nb::numpy, uint8_t>(memory, shape.size(), shape.begin(), owner);
}

// The colours of one screen as red, green and blue: uint8 [rows, 160, 3]; or as gray: uint8 [rows, 160].
nb::ndarray<nb::numpy, uint8_t> colored(const Game& game, const uint8_t* screen, ObservationType type) {
  ColorTables tables;
  detail::make_color_tables(tables, game.data.facts.pal, type);
  const size_t pixels = static_cast<size_t>(game.data.screen_bytes()), channels = static_cast<size_t>(tables.channels);
  std::vector<uint8_t> image(pixels * channels);
  for (size_t i = 0; i < pixels; ++i)
    for (size_t k = 0; k < channels; ++k) image[channels * i + k] = tables.level[k][screen[i]];
  const size_t rows = static_cast<size_t>(game.data.cartridge.rows);
  if (channels == 1) return copy(image.data(), {rows, kScreenWidth});
  return copy(image.data(), {rows, kScreenWidth, channels});
}

int act(HostEmulator& emulator, int action, float strength, bool draw) {
  if (action < 0 || action >= kNumActions) throw nb::value_error("an action is 0..17");
  return emulator.act(action, strength, draw);
}

void set_ram(HostEmulator& emulator, int address, int value) {
  if (address < 0 || address >= 128 || value < 0 || value > 255) throw nb::value_error("RAM is 128 bytes of 0..255");
  emulator.ram()[address] = static_cast<uint8_t>(value);
}

// The observations of a vector written into an array of the caller: row rows[env] of it, or row env. Never converted: that
// would make an array that is freed before the results are written.
using Out = std::optional<nb::ndarray<uint8_t, nb::device::cpu>>;
using Rows = std::optional<nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>>;

std::vector<uint8_t*> targets_of(const Vector& vector, const Out& out, const Rows& rows) {
  std::vector<uint8_t*> targets;
  if (!out) return targets;
  if (out->ndim() < 2) throw nb::value_error("out has one row per environment");
  size_t bytes = 1;
  for (size_t axis = out->ndim(); axis-- > 1; bytes *= out->shape(axis))
    if (out->shape(axis) > 1 && out->stride(axis) != static_cast<int64_t>(bytes))
      throw nb::value_error("each row of out must be contiguous");
  if (bytes != vector.observation_bytes())
    throw nb::value_error(("a row of out has " + std::to_string(bytes) + " bytes, an observation has " +
                           std::to_string(vector.observation_bytes())).c_str());
  if (rows && rows->shape(0) != static_cast<size_t>(vector.num_envs()))
    throw nb::value_error("rows has one entry per environment");
  for (int env = 0; env < vector.num_envs(); ++env) {
    const int64_t row = rows ? rows->data()[env] : env;
    if (row < 0 || row >= static_cast<int64_t>(out->shape(0))) throw nb::value_error("a row lies outside out");
    targets.push_back(out->data() + row * out->stride(0));
  }
  return targets;
}

template <class T, class Stored>
nb::object array(const std::shared_ptr<Batch>& batch, std::vector<Stored>& data, const std::vector<size_t>& shape) {
  nb::capsule owner(new std::shared_ptr<Batch>(batch),
                    [](void* p) noexcept { delete static_cast<std::shared_ptr<Batch>*>(p); });
  return nb::ndarray<nb::numpy, T>(data.data(), shape.size(), shape.data(), owner).cast();
}

// (observations, rewards, terminated, truncated, env_id, lives, frame_number, episode_frame_number, final_obs or None)
nb::tuple recv(Vector& vector) {
  std::shared_ptr<Batch> batch;
  while (true) {
    {
      nb::gil_scoped_release release;
      batch = vector.recv(std::chrono::milliseconds(100));
    }
    if (batch) break;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C; the batch can be received later
  }
  const std::vector<size_t> observations{batch->size, vector.observation_bytes()};
  const nb::object numbers = array<int32_t>(batch, batch->numbers, {5, batch->size});  // rows of it are made in less time
  const nb::object ends = array<bool>(batch, batch->ends, {2, batch->size});
  return nb::make_tuple(array<uint8_t>(batch, batch->observations, observations), numbers[0], ends[0], ends[1], numbers[1],
                        numbers[2], numbers[3], numbers[4],
                        batch->any_final ? array<uint8_t>(batch, batch->finals, observations) : nb::none());
}

DeviceBatch::Parts parts_of(const nb::dict& parts) {
  DeviceBatch::Parts result;
  for (const auto& [name, value] : parts) {
    const nb::bytes bytes = nb::cast<nb::bytes>(value);
    const auto* data = static_cast<const uint8_t*>(bytes.data());
    result[nb::cast<std::string>(name)] = {data, data + bytes.size()};
  }
  return result;
}
nb::bytes bytes_of(const std::vector<uint8_t>& data) { return nb::bytes(data.data(), data.size()); }

nb::bytes save(HostEmulator& emulator) {
  Writer writer;
  emulator.archive(writer);
  return bytes_of(writer.out);
}

void restore(HostEmulator& emulator, nb::bytes state) {
  if (save(emulator).size() != state.size()) throw nb::value_error("the state was saved by another version");
  Reader reader({static_cast<const uint8_t*>(state.data()), state.size()});
  emulator.archive(reader);
}

using Ints = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void send(Vector& vector, const Ints& actions, const Floats& strengths, const Out& out, const Rows& rows, bool waits) {
  if (actions.shape(0) != static_cast<size_t>(vector.batch_size()) || strengths.shape(0) != actions.shape(0))
    throw nb::value_error("send needs one action for each environment that was received");
  vector.send(actions.data(), strengths.data(), targets_of(vector, out, rows), waits);
}

}  // namespace
}  // namespace headrace::atari

NB_MODULE(atari, m) {
  using namespace headrace::atari;
  m.doc() = "Batched Atari 2600.";
  m.def("games", &games, "Facts of all games, in the order of their indices.");

  nb::class_<Game>(m, "Game", "A ROM and its facts, shared by the consoles that play it.")
      .def_prop_ro("name", [](const Game& game) { return game.listing.name; });
  m.def("make_game", &make_game, "index"_a, "rom"_a, "translate"_a = true,
        "`translate`: run the program as machine code where that is possible.\n\n"
        "Raises ValueError if `rom` is no cartridge image of the kind that the game comes on.");

  m.def("block_source", &block_source, "game"_a, "frames"_a = 400, nb::call_guard<nb::gil_scoped_release>(),
        "The program of a game as CUDA C, a case per basic block. Addresses that no instruction names are found by playing `frames` "
        "frames.");

  nb::class_<HostEmulator>(m, "Emulator", "One console, frame by frame, for tests and tools.")
      .def(nb::init<std::shared_ptr<Game>, int, int, float, bool, int>(), "game"_a, "mode"_a = -1, "difficulty"_a = 0,
           "repeat_action_probability"_a = 0.0f, "exact_noise"_a = true, "max_frames"_a = 0)
      .def("load", &HostEmulator::load, "seed"_a)
      .def("reset", &HostEmulator::reset)
      .def("act", &act, "action"_a, "strength"_a = 1.0f, "draw"_a = true, nb::call_guard<nb::gil_scoped_release>(),
           "One frame; returns the reward.")
      .def("rgb", [](HostEmulator& e) { return colored(e.game(), e.screen(), ObservationType::kRgb); },
           "uint8 [rows, 160, 3].")
      .def("gray", [](HostEmulator& e) { return colored(e.game(), e.screen(), ObservationType::kGray); },
           "uint8 [rows, 160].")
      .def("ram", [](HostEmulator& e) { return copy(e.ram(), {128}); }, "uint8 [128]: addresses $80..$FF.")
      .def("set_ram", &set_ram, "address"_a, "value"_a)
      .def("save", &save)
      .def("restore", &restore, "state"_a, "What `save` returned, of a console that was made with the same arguments.")
      .def("screen",
           [](HostEmulator& e) {
             return copy(e.screen(), {static_cast<size_t>(e.game().data.cartridge.rows), kScreenWidth});
           },
           "uint8 [rows, 160]: TIA colours.")
      .def_prop_ro("game_over", &HostEmulator::game_over)
      .def_prop_ro("truncated", &HostEmulator::truncated)
      .def_prop_ro("lives", &HostEmulator::lives)
      .def_prop_ro("frame_number", [](const HostEmulator& e) { return e.state().frame_number; })
      .def_prop_ro("episode_frame_number", [](const HostEmulator& e) { return e.state().episode_frame_number; });

  nb::enum_<ObservationType>(m, "ObservationType")
      .value("GRAY", ObservationType::kGray)
      .value("RGB", ObservationType::kRgb)
      .value("RAM", ObservationType::kRam);

  nb::enum_<ActionChoice>(m, "ActionChoice")
      .value("MINIMAL", ActionChoice::kMinimal)
      .value("LEGAL", ActionChoice::kLegal)
      .value("ALL", ActionChoice::kAll);

  nb::class_<StepOptions>(m, "StepOptions", "How steps and observations are made of frames.")
      .def(nb::init<>())
      .def_rw("mode", &StepOptions::mode)
      .def_rw("difficulty", &StepOptions::difficulty)
      .def_rw("repeat_action_probability", &StepOptions::repeat_action_probability)
      .def_rw("exact_noise", &StepOptions::exact_noise)
      .def_rw("observation", &StepOptions::observation)
      .def_rw("height", &StepOptions::height)
      .def_rw("width", &StepOptions::width)
      .def_rw("stack", &StepOptions::stack)
      .def_rw("frameskip", &StepOptions::frameskip)
      .def_rw("maxpool", &StepOptions::maxpool)
      .def_rw("noop_max", &StepOptions::noop_max)
      .def_rw("noop_min", &StepOptions::noop_min)
      .def_rw("fire_reset", &StepOptions::fire_reset)
      .def_rw("episodic_life", &StepOptions::episodic_life)
      .def_rw("life_loss_info", &StepOptions::life_loss_info)
      .def_rw("clip_rewards", &StepOptions::clip_rewards)
      .def_rw("same_step_autoreset", &StepOptions::same_step_autoreset)
      .def_rw("actions", &StepOptions::actions)
      .def_rw("max_frames", &StepOptions::max_frames);

  nb::class_<Vector>(m, "Vector", "Environments stepped by a pool of threads.")
      .def(nb::init<const std::vector<std::shared_ptr<Game>>&, const StepOptions&, const std::vector<uint32_t>&, int,
                    int, int>(),
           "games"_a, "options"_a, "seeds"_a, "batch_size"_a, "num_threads"_a, "first_cpu"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("send", &send, "actions"_a, "strengths"_a, "out"_a.noconvert().none() = nb::none(),
           "rows"_a.none() = nb::none(), "waits"_a = false,
           "`out` must stay alive until the results that are written to it were received. `waits`: `recv` follows at once.")
      .def("send_reset",
           [](Vector& vector, const std::vector<int>& envs, const std::vector<int64_t>& seeds, const Out& out,
              const Rows& rows) {
             const std::vector<uint8_t*> targets = targets_of(vector, out, rows);
             nb::gil_scoped_release release;  // what is under way is waited for
             vector.send_reset(envs, seeds, targets);
           },
           "envs"_a, "seeds"_a, "out"_a.noconvert().none() = nb::none(), "rows"_a.none() = nb::none(), "`out`: see send.")
      .def("recv", &recv)
      .def("rgb",
           [](Vector& vector, int env) {
             return colored(vector.game(env), vector.screen(env), ObservationType::kRgb);
           },
           "env"_a, "uint8 [rows, 160, 3]: the newest screen of one environment.")
      .def("save",
           [](Vector& vector, int env) {
             const std::vector<uint8_t> state = vector.save(env);
             return nb::bytes(state.data(), state.size());
           },
           "env"_a)
      .def("load",
           [](Vector& vector, int env, nb::bytes state) {
             vector.load(env, {static_cast<const uint8_t*>(state.data()), state.size()});
           },
           "env"_a, "state"_a);

  nb::class_<DeviceBatch>(m, "DeviceBatch", "The tables of consoles on a device.")
      .def(nb::init<const std::vector<std::shared_ptr<Game>>&, const StepOptions&>(), "games"_a, "options"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("strides", &DeviceBatch::strides, "Bytes per console of each kind of memory; it begins as zeros.")
      .def_prop_ro("games", &DeviceBatch::games, "Number of different games.")
      .def_prop_ro("game_of", &DeviceBatch::game_of, "The number of the game of each console.")
      .def_prop_ro("observation_bytes", &DeviceBatch::observation_bytes)
      .def("num_actions", &DeviceBatch::num_actions, "env"_a)
      .def("tables",
           [](const DeviceBatch& batch, uint64_t at, const std::map<std::string, uint64_t>& memory) {
             return bytes_of(batch.tables(at, memory));
           },
           "at"_a, "memory"_a, "The tables, to be copied to the address `at`; `memory`: address of each kind of memory.")
      .def("noises", [](const DeviceBatch& batch, uint64_t twisters) { return bytes_of(batch.noises(twisters)); },
           "twisters"_a, "What the memory \"noises\" begins with.")
      .def("pack",
           [](const DeviceBatch& batch, int env, const nb::dict& parts) {
             return bytes_of(batch.pack(env, parts_of(parts)));
           },
           "env"_a, "parts"_a, "The saved state of a console from its memory, bytes by kind.")
      .def("unpack",
           [](const DeviceBatch& batch, int env, const nb::dict& parts, nb::bytes state) {
             const auto* data = static_cast<const uint8_t*>(state.data());
             nb::dict result;
             for (const auto& [name, bytes] : batch.unpack(env, parts_of(parts), {data, data + state.size()}))
               result[name.c_str()] = bytes_of(bytes);
             return result;
           },
           "env"_a, "parts"_a, "state"_a, "The memory of a console, changed to what a state holds.")
      .def("slots", &DeviceBatch::slots, "consoles_per_warp"_a, "only_game"_a = -1,
           "Consoles in the order of the lanes, -1 for none; no warp has consoles of two games.")
      .def("rgb",
           [](const DeviceBatch& batch, int env, nb::bytes state, nb::bytes screens) {
             const uint8_t* screen = batch.screen(env, static_cast<const uint8_t*>(state.data()),
                                                  static_cast<const uint8_t*>(screens.data()));
             return colored(batch.game(env), screen, ObservationType::kRgb);
           },
           "env"_a, "state"_a, "screens"_a, "uint8 [rows, 160, 3]: the newest screen.");
  nb::dict sizes;
  sizes["HR_STATE_BYTES"] = sizeof(EnvironmentState);
  sizes["HR_SETUP_BYTES"] = sizeof(EnvironmentSetup);
  sizes["HR_GAME_BYTES"] = sizeof(GameData);
  sizes["HR_BATCH_BYTES"] = sizeof(ConsoleBatch);
  m.attr("DEVICE_SIZES") = sizes;
}

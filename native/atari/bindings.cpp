// Python module headrace._native.atari.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nanobind/stl/shared_ptr.h>

#include <stdexcept>
#include <string>

#include "environment.hpp"
#include "observation.hpp"

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

nb::dict describe(const GameFacts& facts) {
  nb::dict d;
  std::vector<int> modes;
  for (int i = 0; i < facts.num_modes; ++i) modes.push_back(kModes[facts.mode_begin + i].mode);
  d["name"] = facts.name;
  d["md5"] = facts.md5;
  d["rom_size"] = facts.rom_size;
  d["pal"] = facts.pal;
  d["height"] = facts.height;
  d["minimal_actions"] = set_bits(facts.minimal_actions);
  d["modes"] = modes;
  d["default_mode"] = facts.default_mode;
  d["difficulties"] = set_bits(facts.difficulties);
  return d;
}

nb::list games() {
  nb::list result;
  for (const GameFacts& facts : kGames) result.append(describe(facts));
  return result;
}

std::shared_ptr<Game> make_game(int index, nb::bytes rom) {
  if (index < 0 || index >= kNumGames) throw nb::value_error("no game has this index");
  const GameFacts& facts = kGames[index];
  Cartridge cartridge;
  const LoadError error =
      load_cartridge(cartridge, static_cast<const uint8_t*>(rom.data()), static_cast<uint32_t>(rom.size()));
  if (error != LoadError::kNone || cartridge.mapper != facts.mapper)
    throw nb::value_error((std::string("these ") + std::to_string(rom.size()) + " bytes are not the ROM of " +
                           facts.name + " (" + std::to_string(facts.rom_size) + " bytes)").c_str());
  return std::make_shared<Game>(index, cartridge);
}

// The console of one game behind the calls that ALEInterface has.
class Emulator {
 public:
  Emulator(std::shared_ptr<Game> game, int mode, int difficulty, float repeat_action_probability, bool exact_noise)
      : environment_(std::move(game), {mode, difficulty, repeat_action_probability, exact_noise}) {
    environment_.load(0);
  }

  void load(uint32_t seed) { environment_.load(seed); }
  void reset() { environment_.reset(); }

  int act(int action, float strength, bool draw) {
    if (action < 0 || action >= kNumActions) throw nb::value_error("an action is 0..17");
    return environment_.act(action, strength, draw);
  }

  nb::ndarray<nb::numpy, uint8_t> ram() { return copy(environment_.ram(), {128}); }

  void set_ram(int address, int value) {
    if (address < 0 || address >= 128 || value < 0 || value > 255) throw nb::value_error("RAM is 128 bytes of 0..255");
    environment_.ram()[address] = static_cast<uint8_t>(value);
  }

  nb::ndarray<nb::numpy, uint8_t> screen() {
    return copy(environment_.screen(), {static_cast<size_t>(environment_.game().cartridge.rows), kScreenWidth});
  }

  const Environment& environment() const { return environment_; }

 private:
  static nb::ndarray<nb::numpy, uint8_t> copy(const uint8_t* data, std::vector<size_t> shape) {
    size_t size = 1;
    for (const size_t n : shape) size *= n;
    uint8_t* memory = new uint8_t[size];
    std::memcpy(memory, data, size);
    nb::capsule owner(memory, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
    return nb::ndarray<nb::numpy, uint8_t>(memory, shape.size(), shape.data(), owner);
  }

  Environment environment_;
};

}  // namespace
}  // namespace headrace::atari

NB_MODULE(atari, m) {
  using namespace headrace::atari;
  m.doc() = "Batched Atari 2600.";
  m.def("games", &games, "Facts of all games, in the order of their indices.");

  nb::class_<Game>(m, "Game", "A ROM and its facts, shared by the consoles that play it.")
      .def_prop_ro("name", [](const Game& game) { return game.facts.name; });
  m.def("make_game", &make_game, "index"_a, "rom"_a,
        "Raises ValueError if `rom` is no cartridge image of the kind that the game comes on.");

  nb::class_<Emulator>(m, "Emulator", "One console, frame by frame, for tests and tools.")
      .def(nb::init<std::shared_ptr<Game>, int, int, float, bool>(), "game"_a, "mode"_a = -1, "difficulty"_a = 0,
           "repeat_action_probability"_a = 0.0f, "exact_noise"_a = true)
      .def("load", &Emulator::load, "seed"_a)
      .def("reset", &Emulator::reset)
      .def("act", &Emulator::act, "action"_a, "strength"_a = 1.0f, "draw"_a = true, nb::call_guard<nb::gil_scoped_release>(),
           "One frame; returns the reward.")
      .def("ram", &Emulator::ram, "uint8 [128]: addresses $80..$FF.")
      .def("set_ram", &Emulator::set_ram, "address"_a, "value"_a)
      .def("screen", &Emulator::screen, "uint8 [rows, 160]: TIA colours.")
      .def_prop_ro("game_over", [](const Emulator& e) { return e.environment().game_over(); })
      .def_prop_ro("lives", [](const Emulator& e) { return e.environment().lives(); })
      .def_prop_ro("frame_number", [](const Emulator& e) { return e.environment().state().frame_number; })
      .def_prop_ro("episode_frame_number",
                   [](const Emulator& e) { return e.environment().state().episode_frame_number; });
}

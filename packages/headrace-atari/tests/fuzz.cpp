// Random ROM images and random controls on consoles of every mapper. Build with -fsanitize=address,undefined.
//
//   fuzz [rounds] [seed]
//
// Four consoles run each image: one draws, one does not, one runs translated code, and one executes every instruction with
// the complete interpreter instead of the decoded loop. All must agree after every frame, and every frame must end.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "atari/core/console.hpp"
#include "atari/host/rom.hpp"
#include "atari/jit/translation.hpp"

using namespace headrace::atari;

namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : generator_(seed) {}
  uint32_t below(uint32_t n) { return generator_() % n; }
  uint8_t byte() { return static_cast<uint8_t>(generator_()); }

 private:
  Mt19937 generator_;
};

// Instructions that lead programs to the TIA, to timers and round in loops, more often than random bytes do.
void plant_instructions(std::vector<uint8_t>& image, Random& random) {
  static constexpr uint8_t snippets[][6] = {
      {2, 0x85, 0x00}, {2, 0x85, 0x02}, {2, 0x85, 0x1B}, {2, 0x84, 0x1C}, {2, 0x86, 0x0E}, {2, 0x85, 0x10},
      {2, 0x85, 0x2A}, {2, 0x85, 0x04}, {2, 0x85, 0x0A}, {2, 0x85, 0x01}, {2, 0xA5, 0x07}, {2, 0xA9, 0x02},
      {3, 0x8D, 0x96, 0x02}, {5, 0xAD, 0x84, 0x02, 0xD0, 0xFB}, {5, 0xAD, 0x84, 0x02, 0x10, 0xFB}, {2, 0xB1, 0x80},
      {3, 0xB9, 0x00, 0xF0}, {3, 0xAD, 0xF8, 0xFF}, {3, 0x8D, 0xF9, 0xFF}, {3, 0x20, 0x10, 0xF2}, {1, 0x60},
      {2, 0xA2, 0xFF}, {1, 0x9A}, {2, 0x95, 0x10}, {1, 0x08}, {1, 0x48}, {3, 0x4C, 0x80, 0x00}, {3, 0x4C, 0x00, 0xF1}};
  for (size_t i = 0; i + 8 < image.size(); i += 1 + random.below(12)) {
    const auto& snippet = snippets[random.below(sizeof snippets / sizeof snippets[0])];
    std::memcpy(&image[i], snippet + 1, snippet[0]);
    i += snippet[0];
  }
}

void plant_reset_vectors(std::vector<uint8_t>& image, Random& random) {
  for (size_t end = image.size() == 2048 ? 2048 : 4096; end <= image.size(); end += 4096)
    for (size_t i = end - 6; i < end; i += 2) {
      image[i] = random.byte();
      image[i + 1] = static_cast<uint8_t>(0xF0 | random.byte());
    }
}

// An image that load_cartridge takes for `mapper`.
std::vector<uint8_t> random_image(Mapper mapper, Random& random) {
  static constexpr size_t sizes[] = {2048, 4096, 8192, 16384, 8192, 16384, 8192, 8192, 10495};
  std::vector<uint8_t> image(sizes[static_cast<int>(mapper)]);
  for (uint8_t& byte : image) byte = random.byte();
  if (random.below(4) != 0) plant_instructions(image, random);
  plant_reset_vectors(image, random);
  if (has_superchip(mapper))
    for (size_t bank = 0; bank < image.size(); bank += 4096) std::memset(&image[bank], 0xFF, 256);
  static constexpr uint8_t e0[] = {0x8D, 0xE0, 0x1F}, fe[] = {0x20, 0x00, 0xD0, 0xC6, 0xC5};
  if (mapper == Mapper::kE0) std::memcpy(&image[0x400], e0, sizeof e0);
  if (mapper == Mapper::kFE) std::memcpy(&image[0x400], fe, sizeof fe);
  return image;
}

Input random_input(Random& random) {
  Input input;
  input.swcha = random.byte();
  input.swchb = random.byte();
  for (bool& fire : input.fire) fire = random.below(2);
  for (int32_t& paddle : input.paddle)
    paddle = random.below(2) ? Input::kNoPaddle : static_cast<int32_t>(random.below(1000000));
  return input;
}

bool same(const Console& a, const Console& b) {
  return a.pc == b.pc && a.a == b.a && a.x == b.x && a.y == b.y && a.sp == b.sp && a.nz == b.nz && a.carry == b.carry &&
         a.overflow == b.overflow && a.decimal == b.decimal && a.jammed == b.jammed && a.cycle == b.cycle &&
         a.collisions == b.collisions && a.bank == b.bank && a.parity == b.parity &&
         a.frame_complete == b.frame_complete && a.rows_missing == b.rows_missing &&
         std::memcmp(a.ram, b.ram, sizeof a.ram) == 0 && std::memcmp(a.superchip, b.superchip, sizeof a.superchip) == 0 &&
         std::memcmp(a.position, b.position, 5) == 0;
}

bool sound(const Console& s) {
  for (int object = 0; object < 5; ++object)
    if (s.position[object] >= 160) return false;
  return s.cycle >= 0 && s.cycle < 1 << 30;
}

// Returns the number of the first frame after which the consoles disagree, or -1.
int first_bad_frame(Mapper mapper, uint32_t seed) {
  Random random(seed);
  auto decoded = std::make_unique<Cartridge>(), stepped = std::make_unique<Cartridge>();
  // Now and then an image looks like one of another mapper.
  do {
    const std::vector<uint8_t> image = random_image(mapper, random);
    load_cartridge(*decoded, image.data(), static_cast<uint32_t>(image.size()));
  } while (decoded->mapper != mapper);
  decoded->tv = random.below(2) ? TvFormat::kPal : TvFormat::kNtsc;
  decoded->first_row = static_cast<int32_t>(random.below(60));
  decoded->rows = 200 + static_cast<int32_t>(random.below(kMaxScreenRows - 200 + 1));
  *stepped = *decoded;
  for (Decoded& code : stepped->decoded) code = kStep;
  const std::unique_ptr<Translation> translation = Translation::make(*decoded);
  const auto run_translated = [&](Console& console, const Frame& frame) {
    translation ? translation->run(console, frame) : run_decoded(console, frame);
  };

  uint8_t ram[128];
  for (uint8_t& byte : ram) byte = random.byte();
  std::vector<uint8_t> screens(2 * decoded->rows * kScreenWidth);
  std::vector<uint8_t> other_screens(screens.size());
  ResetDraws draws;
  draws.timer = static_cast<uint8_t>(25 + random.below(75));
  Console drawn, blind, reference, translated;
  power_on(drawn, *decoded, ram);
  system_reset(drawn, *decoded, draws, screens.data());
  blind = reference = translated = drawn;
  const int frames = 1 + static_cast<int>(random.below(30));
  for (int frame = 0; frame < frames; ++frame) {
    const Input input = random_input(random);
    run_frame(drawn, *decoded, input, screens.data());
    run_frame(blind, *decoded, input, nullptr);
    run_frame(reference, *stepped, input, nullptr);
    run_frame(translated, *decoded, input, random.below(2) ? other_screens.data() : nullptr, run_translated);
    if (!same(drawn, blind) || !same(drawn, reference) || !same(drawn, translated) || !sound(drawn)) return frame;
  }
  return -1;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 100;
  const uint32_t seed = argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 0;
  for (int round = 0; round < rounds; ++round) {
    const Mapper mapper = static_cast<Mapper>(round % 9);
    const uint32_t round_seed = seed * 1000003u + static_cast<uint32_t>(round);
    const int frame = first_bad_frame(mapper, round_seed);
    if (frame >= 0) {
      std::printf("round %d (mapper %d, seed %u): the consoles disagree after frame %d\n", round, static_cast<int>(mapper),
                  round_seed, frame);
      return 1;
    }
  }
  std::printf("%d rounds\n", rounds);
  return 0;
}

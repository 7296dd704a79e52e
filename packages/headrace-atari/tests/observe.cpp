// Images of screens of which some rows change, made from the image before and made anew. Prints a checksum of all images, or what
// is wrong.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "atari/core/observation.hpp"

using namespace headrace::atari;

namespace {

constexpr int kRows = 210;

// An observer's memory, and the images that it makes.
struct Images {
  explicit Images(const Observer& of)
      : observer(of), pixels(of.pooled_pixels()), source(of.pooled_lines()), sums(kRows * of.resize.stride), row(kRows),
        lines(kRows * kScreenWidth + AreaResize::kPadding), plane(of.height * of.width), newest(of.image_bytes()) {}

  PooledImage pooled() { return {pixels.data(), source.data()}; }
  ObserverScratch scratch() { return {{sums.data(), row.data()}, lines.data(), plane.data()}; }

  void observe(const uint8_t* a, const uint8_t* b, bool anew, bool in_place) {
    std::vector<uint8_t> image = in_place ? newest : std::vector<uint8_t>(newest.size(), 0xAB);
    observer.observe(a, b, pooled(), anew ? nullptr : in_place ? image.data() : newest.data(), image.data(), scratch());
    newest = image;
  }

  std::vector<uint8_t> again(const uint8_t* a) {
    std::vector<uint8_t> image(newest.size());
    observer.observe_again(a, pooled(), image.data(), scratch());
    return image;
  }

  const Observer& observer;
  std::vector<uint8_t> pixels;
  std::vector<uint16_t> source;
  std::vector<float> sums;
  std::vector<const float*> row;
  std::vector<uint8_t> lines, plane, newest;
};

}  // namespace

int main() {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  uint64_t checksum = 0;
  static Observer observer;
  for (const auto& [height, width] : {std::pair{84, 84}, {210, 160}, {105, 80}, {72, 128}, {1, 1}})
    for (const ObservationType type : {ObservationType::kGray, ObservationType::kRgb}) {
      if (!make_observer(observer, false, kRows, type, height, width)) return 1;
      Images images(observer), made_anew(observer);
      std::vector<uint8_t> screens[2] = {std::vector<uint8_t>(kRows * kScreenWidth), std::vector<uint8_t>(kRows * kScreenWidth)};
      for (int step = 0; step < 100; ++step) {
        for (int changes = below(8); changes > 0; --changes) {  // some rows with one line or several, on one screen or on both
          uint8_t line[kScreenWidth];
          const int begin = below(kRows), end = std::min(kRows, begin + 1 + below(40)), colors = below(2) ? 256 : 2;
          const bool differ = below(2), both = below(2);
          for (int y = begin; y < end; ++y) {
            if (y == begin || differ)
              for (uint8_t& pixel : line) pixel = static_cast<uint8_t>(30 + below(colors));
            const int first = below(2);
            for (int k = 0; k <= both; ++k) std::memcpy(&screens[(first + k) % 2][y * kScreenWidth], line, kScreenWidth);
          }
        }
        const uint8_t* const a = screens[0].data();
        const uint8_t* const b = screens[below(2)].data();
        if (below(10) == 0) spread(observer, images.pooled());
        images.observe(a, b, step == 0, below(2));
        made_anew.observe(a, b, true, false);
        if (images.newest != made_anew.newest || images.again(a) != made_anew.again(a)) {
          std::printf("%d x %d, type %d: another image in step %d", height, width, static_cast<int>(type), step);
          return 1;
        }
        for (const uint8_t pixel : images.newest) checksum = 31 * checksum + pixel;
      }
    }
  std::printf("%lx", static_cast<unsigned long>(checksum));
}

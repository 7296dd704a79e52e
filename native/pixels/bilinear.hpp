// Images of bytes [height, width, channels] shrunk by bilinear interpolation, bit for bit as OpenCV's INTER_LINEAR does it, for sides
// that shrink by less than 2. Weights have 11 bits; the sums along a row lose 4 of them, those down a column 16 and 2.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace headrace::pixels {

class Bilinear {
 public:
#ifdef __AVX2__
  static constexpr bool kFast = true;  // faster than OpenCV
#else
  static constexpr bool kFast = false;
#endif

  /// Of images of this size. `in` to `out`: height and width.
  Bilinear(std::size_t in_height, std::size_t in_width, std::size_t channels, std::size_t out_height, std::size_t out_width)
      : row_bytes_(in_width * channels), in_height_(in_height), numbers_(out_width * channels),
        across_((numbers_ + kGroup - 1) / kGroup * kGroup), down_(out_height), lines_{}, last_(row_bytes_ + kPadding) {
    for (std::size_t i = 0; i < numbers_; ++i) {  // of the numbers of an output row, one after the other
      const Tap tap = tap_of(in_width, out_width, i / channels);
      const auto first = static_cast<std::uint32_t>(tap.first * channels + i % channels);
      // At the right edge the second pixel has no weight.
      across_[i] = {first, static_cast<std::uint32_t>(tap.weights[1] ? first + channels : first), tap.weights[0], tap.weights[1]};
    }
    for (std::size_t y = 0; y < out_height; ++y) down_[y] = tap_of(in_height, out_height, y);
    for (auto& line : lines_) line.resize(across_.size());
#ifdef __AVX2__
    for (std::size_t i = 0; i < across_.size(); i += kGroup) groups_.push_back(group_of(i));
#endif
  }

  void shrink(const std::uint8_t* from, std::uint8_t* to, std::size_t images) {
    for (std::size_t i = 0; i < images; ++i) shrink_one(from + i * in_height_ * row_bytes_, to + i * down_.size() * numbers_);
  }

 private:
  void shrink_one(const std::uint8_t* from, std::uint8_t* to) {
    std::ptrdiff_t made[2] = {-1, -1};  // which source rows are in `lines_`: row y in line y % 2
    for (const Tap& tap : down_) {
      const std::size_t rows[2] = {tap.first, std::min(tap.first + 1, in_height_ - 1)};
      for (const std::size_t row : rows) {
        if (made[row % 2] == static_cast<std::ptrdiff_t>(row)) continue;
        made[row % 2] = static_cast<std::ptrdiff_t>(row);
        const std::uint8_t* pixels = from + row * row_bytes_;
        if (row + 1 == in_height_) {  // nothing may be read behind it
          std::memcpy(last_.data(), pixels, row_bytes_);
          pixels = last_.data();
        }
        along(pixels, lines_[row % 2].data());
      }
      down(lines_[rows[0] % 2].data(), lines_[rows[1] % 2].data(), tap.weights[0], tap.weights[1], numbers_, to);
      to += numbers_;
    }
  }

  static constexpr std::size_t kGroup = 8;     // numbers that are made at a time
  static constexpr std::size_t kPadding = 16;  // bytes that may be read behind a row

  struct Tap {
    std::size_t first;  // of the two source cells; at the lower edge there is only one
    std::int16_t weights[2];
  };
  struct Source {
    std::uint32_t first, second;  // bytes of the row
    std::int16_t weights[2];
  };

  static Tap tap_of(std::size_t in, std::size_t out, std::size_t cell) {
    float part = static_cast<float>((static_cast<double>(cell) + 0.5) * (static_cast<double>(in) / static_cast<double>(out)) - 0.5);
    float first = std::floor(part);
    part -= first;
    if (first < 0.0f) first = part = 0.0f;
    if (first >= static_cast<float>(in - 1)) first = static_cast<float>(in - 1), part = 0.0f;
    const auto weight = [](float x) { return static_cast<std::int16_t>(std::lrint(x * 2048.0f)); };
    return {static_cast<std::size_t>(first), {weight(1.0f - part), weight(part)}};
  }

  static void down(const std::int16_t* __restrict above, const std::int16_t* __restrict below, std::int16_t first,
                   std::int16_t second, std::size_t size, std::uint8_t* __restrict to) {
    for (std::size_t i = 0; i < size; ++i) {
      const int sum = (above[i] * first >> 16) + (below[i] * second >> 16);
      to[i] = static_cast<std::uint8_t>((sum + 2) >> 2);
    }
  }

#ifdef __AVX2__
  /// Eight numbers: four of each half come from 16 bytes.
  struct Group {
    std::uint32_t window[2];
    std::uint8_t shuffle[2][16];
    std::int16_t weights[2 * kGroup];
  };

  Group group_of(std::size_t at) const {
    Group group{};
    std::memset(group.shuffle, 0x80, sizeof group.shuffle);  // gives 0
    for (std::size_t i = 0; i < kGroup; ++i) {
      const std::size_t half = i / 4;
      const Source& source = across_[at + i];
      if (i % 4 == 0) group.window[half] = source.first;
      if (at + i >= numbers_) continue;
      group.shuffle[half][2 * i] = static_cast<std::uint8_t>(source.first - group.window[half]);
      group.shuffle[half][2 * i + 1] = static_cast<std::uint8_t>(source.second - group.window[half]);
      std::copy_n(source.weights, 2, group.weights + 2 * i);
    }
    return group;
  }

  void along(const std::uint8_t* pixels, std::int16_t* sums) const {
    for (const Group& group : groups_) {
      const auto half = [&](int k) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixels + group.window[k]));
        return _mm_shuffle_epi8(bytes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(group.shuffle[k])));
      };
      const __m256i pairs = _mm256_cvtepu8_epi16(_mm_or_si128(half(0), half(1)));
      const __m256i weights = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group.weights));
      const __m256i found = _mm256_srli_epi32(_mm256_madd_epi16(pairs, weights), 4);
      const __m128i both = _mm_packs_epi32(_mm256_castsi256_si128(found), _mm256_extracti128_si256(found, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(sums), both);
      sums += kGroup;
    }
  }

  std::vector<Group> groups_;
#else
  void along(const std::uint8_t* pixels, std::int16_t* sums) const {
    for (std::size_t i = 0; i < numbers_; ++i) {
      const Source& s = across_[i];
      sums[i] = static_cast<std::int16_t>((pixels[s.first] * s.weights[0] + pixels[s.second] * s.weights[1]) >> 4);
    }
  }
#endif

  const std::size_t row_bytes_, in_height_, numbers_;
  std::vector<Source> across_;
  std::vector<Tap> down_;
  std::vector<std::int16_t> lines_[2];
  std::vector<std::uint8_t> last_;
};

}  // namespace headrace::pixels

// What an agent sees: gray or coloured pixels of one screen or of the brighter of two, shrunk by area interpolation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "game.hpp"
#include "palette.hpp"
#include "resize.hpp"

#if defined(__AVX512VBMI__)
#include <immintrin.h>
#endif

namespace headrace::atari {

enum class ObservationType : uint8_t { kGray, kRgb, kRam };

// Brightness of each colour byte for each channel that is observed: one table for gray, three for RGB.
// Odd colour bytes are the gray of the colour below; asked for its gray, ale-py gives the blue of the colour above.
class ColorTables {
 public:
  ColorTables(bool pal, ObservationType type) : count_(type == ObservationType::kRgb ? 3 : 1) {
    const uint32_t* palette = pal ? kPalettePAL : kPaletteNTSC;
    const auto gray = [&](int color) {
      const uint32_t c = palette[color >> 1];
      return static_cast<uint8_t>(std::nearbyint(0.2989 * (c >> 16) + 0.5870 * (c >> 8 & 255) + 0.1140 * (c & 255)));
    };
    for (int color = 0; color < 256; ++color) {
      const uint32_t rgb = palette[color >> 1];
      if (type == ObservationType::kRgb) {
        for (int k = 0; k < 3; ++k)
          level_[k][color] = color & 1 ? gray(color) : static_cast<uint8_t>(rgb >> (16 - 8 * k));
      } else if (color & 1) {
        level_[0][color] = color == 255 ? 0 : static_cast<uint8_t>(palette[(color + 1) >> 1]);
      } else {
        level_[0][color] = gray(color);
      }
    }
  }

  int count() const { return count_; }
  const uint8_t* operator[](int channel) const { return level_[channel]; }

 private:
  int count_;
  alignas(64) uint8_t level_[3][256];
};

namespace detail {

// out[i] = the larger of table[a[i]] and table[b[i]], for one line of 160 pixels.
inline void look_up(const uint8_t* table, const uint8_t* a, const uint8_t* b, uint8_t* out) {
#if defined(__AVX512VBMI__)
  const __m512i t0 = _mm512_load_si512(table), t1 = _mm512_load_si512(table + 64);
  const __m512i t2 = _mm512_load_si512(table + 128), t3 = _mm512_load_si512(table + 192);
  const auto look = [&](__m512i index) {
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), _mm512_permutex2var_epi8(t0, index, t1),
                                  _mm512_permutex2var_epi8(t2, index, t3));
  };
  for (int x = 0; x < kScreenWidth; x += 64) {
    const __mmask64 pixels = x + 64 <= kScreenWidth ? ~0ull : ~0ull >> (x + 64 - kScreenWidth);
    const __m512i first = look(_mm512_maskz_loadu_epi8(pixels, a + x));
    const __m512i second = a == b ? first : look(_mm512_maskz_loadu_epi8(pixels, b + x));
    _mm512_mask_storeu_epi8(out + x, pixels, _mm512_max_epu8(first, second));
  }
#else
  for (int x = 0; x < kScreenWidth; ++x) out[x] = std::max(table[a[x]], table[b[x]]);
#endif
}

}  // namespace detail

// Makes the newest image of an observation from screens of one game. Const after construction; threads bring Scratch.
class Observer {
 public:
  struct Scratch {
    AreaResize::Scratch resize;
    std::vector<uint8_t> line;   // one line of pixels
    std::vector<uint8_t> plane;  // one shrunk channel
  };

  // The full-size image behind the last observation of one environment: lines that differ from the one above, and which
  // of them each row shows.
  struct Pooled {
    std::vector<uint8_t> pixels;   // [channels, rows, 160] and padding
    std::vector<uint16_t> source;  // [channels, rows]
  };

  // Throws std::invalid_argument if the image would be larger than the screen.
  Observer(const Game& game, ObservationType type, int height, int width)
      : type_(type), rows_(game.cartridge.rows), height_(height), width_(width), colors_(game.facts.pal, type),
        resize_(game.cartridge.rows, kScreenWidth, height, width) {}

  size_t bytes() const {
    return type_ == ObservationType::kRam ? 128 : static_cast<size_t>(height_) * width_ * colors_.count();
  }

  // For observers of any game that make images of the same size.
  Scratch scratch() const {
    return {resize_.scratch(kMaxScreenRows), std::vector<uint8_t>(kScreenWidth + AreaResize::kPadding),
            std::vector<uint8_t>(static_cast<size_t>(height_) * width_)};
  }

  Pooled pooled() const {
    const size_t lines = static_cast<size_t>(colors_.count()) * rows_;
    return {std::vector<uint8_t>(lines * kScreenWidth + AreaResize::kPadding), std::vector<uint16_t>(lines)};
  }

  // Observes the brighter pixels of two screens of rows x 160 colours; they may be the same one.
  // Writes height x width (x 3) pixels.
  void operator()(const uint8_t* a, const uint8_t* b, Pooled& pooled, uint8_t* out, Scratch& scratch) const {
    for (int channel = 0; channel < colors_.count(); ++channel) {
      uint8_t* const pixels = pooled.pixels.data() + static_cast<size_t>(channel) * rows_ * kScreenWidth;
      uint16_t* const source = pooled.source.data() + static_cast<size_t>(channel) * rows_;
      int lines = 0;
      shrink(channel, out, scratch, [&](int y) -> const uint8_t* {
        const uint8_t* row_a = a + y * kScreenWidth;
        const uint8_t* row_b = b + y * kScreenWidth;
        const bool again = y > 0 && same_as_above(row_a) && (a == b || same_as_above(row_b));
        uint8_t* line = pixels + lines * kScreenWidth;
        if (!again) detail::look_up(colors_[channel], row_a, row_b, line);
        lines += !again;
        source[y] = static_cast<uint16_t>(lines - 1);
        return again ? nullptr : line;
      });
    }
  }

  // Observes the brighter pixels of a screen and of what was observed before.
  void operator()(const uint8_t* a, const Pooled& pooled, uint8_t* out, Scratch& scratch) const {
    for (int channel = 0; channel < colors_.count(); ++channel) {
      const uint8_t* const pixels = pooled.pixels.data() + static_cast<size_t>(channel) * rows_ * kScreenWidth;
      const uint16_t* const source = pooled.source.data() + static_cast<size_t>(channel) * rows_;
      shrink(channel, out, scratch, [&](int y) -> const uint8_t* {
        const uint8_t* row = a + y * kScreenWidth;
        const uint8_t* before = pixels + source[y] * kScreenWidth;
        uint8_t* line = scratch.line.data();
        detail::look_up(colors_[channel], row, row, line);
        for (int x = 0; x < kScreenWidth; ++x) line[x] = std::max(line[x], before[x]);
        return line;
      });
    }
  }

 private:
  static bool same_as_above(const uint8_t* row) { return std::memcmp(row, row - kScreenWidth, kScreenWidth) == 0; }

  template <class Line>
  void shrink(int channel, uint8_t* out, Scratch& scratch, Line&& line) const {
    const int channels = colors_.count();
    if (channels == 1) return resize_(line, out, scratch.resize);
    resize_(line, scratch.plane.data(), scratch.resize);
    for (size_t i = 0; i < scratch.plane.size(); ++i) out[channels * i + channel] = scratch.plane[i];
  }

  ObservationType type_;
  int rows_, height_, width_;
  ColorTables colors_;
  AreaResize resize_;
};

}  // namespace headrace::atari

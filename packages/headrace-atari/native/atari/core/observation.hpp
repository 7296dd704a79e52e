// What an agent sees: gray or coloured pixels of one screen or of the brighter of two, shrunk by area interpolation.
#pragma once

#include "cartridge.hpp"
#include "palette.hpp"
#include "platform.hpp"
#include "resize.hpp"

namespace headrace::atari {

enum class ObservationType : uint8_t { kGray, kRgb, kRam };

// Brightness of each colour byte for each channel that is observed: one table for gray, three for RGB.
struct ColorTables {
  int32_t channels;
  alignas(64) uint8_t level[3][256];
};

// The full-size image behind the last observation of one environment: lines that differ from the one above, and which
// of them each row shows. Memory of the caller.
struct PooledImage {
  uint8_t* pixels;   // [channels, rows, 160] and AreaResize::kPadding bytes
  uint16_t* source;  // [channels, rows]
};

// Working memory of one observation, of the caller.
struct ObserverScratch {
  AreaResize::Scratch resize;
  uint8_t* line;   // [160] and AreaResize::kPadding bytes: one line of pixels
  uint8_t* plane;  // [height, width]: one shrunk channel
};

namespace detail {

HR_HD inline uint8_t gray_of(uint32_t rgb) {
  return static_cast<uint8_t>(round_half_even(
      sum(sum(product(0.2989, rgb >> 16), product(0.5870, rgb >> 8 & 255)), product(0.1140, rgb & 255))));
}

// Odd colour bytes are the gray of the colour below; asked for its gray, ale-py gives the blue of the colour above.
HR_HD inline void make_color_tables(ColorTables& tables, bool pal, ObservationType type) {
  tables.channels = type == ObservationType::kRgb ? 3 : 1;
  for (int color = 0; color < 256; ++color) {
    const uint32_t rgb = palette_color(pal, color >> 1);
    const uint8_t gray = gray_of(rgb);
    if (type == ObservationType::kRgb) {
      for (int k = 0; k < 3; ++k) tables.level[k][color] = color & 1 ? gray : static_cast<uint8_t>(rgb >> (16 - 8 * k));
    } else if (color & 1) {
      tables.level[0][color] = color == 255 ? 0 : static_cast<uint8_t>(palette_color(pal, (color + 1) >> 1));
    } else {
      tables.level[0][color] = gray;
    }
  }
}

// out[i] = the larger of table[a[i]] and table[b[i]], for one line of 160 pixels.
HR_HD inline void look_up(const uint8_t* table, const uint8_t* a, const uint8_t* b, uint8_t* out) {
#ifdef HR_AVX512VBMI
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
  for (int x = 0; x < kScreenWidth; ++x) out[x] = max_of(table[a[x]], table[b[x]]);
#endif
}

HR_HD inline bool same_as_above(const uint8_t* row) {
#ifdef HR_AVX512BW
  static_assert(kScreenWidth == 160);
  const uint8_t* const above = row - kScreenWidth;
  const __m256i last = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 128)),
                                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(above + 128)));
  __m512i differs = _mm512_xor_si512(_mm512_loadu_si512(row), _mm512_loadu_si512(above));
  constexpr int or_xor = 0xF6;  // differs | (row ^ above)
  differs = _mm512_ternarylogic_epi64(differs, _mm512_loadu_si512(row + 64), _mm512_loadu_si512(above + 64), or_xor);
  differs = _mm512_or_si512(differs, _mm512_zextsi256_si512(last));
  return _mm512_test_epi64_mask(differs, differs) == 0;
#else
  return equal_bytes(row, row - kScreenWidth, kScreenWidth);
#endif
}

}  // namespace detail

// Makes the newest image of an observation from screens of one game. Plain data, constant after make_observer.
struct Observer {
  ObservationType type;
  int32_t rows, height, width;  // of the screen; of the image
  ColorTables colors;
  AreaResize resize;

  HR_HD int32_t image_bytes() const { return type == ObservationType::kRam ? 128 : height * width * colors.channels; }
  // The sizes of PooledImage's members, in elements.
  HR_HD int32_t pooled_pixels() const { return pooled_lines() * kScreenWidth + AreaResize::kPadding; }
  HR_HD int32_t pooled_lines() const { return colors.channels * rows; }

  // Observes the brighter pixels of two screens of rows x 160 colours; they may be the same one.
  // Writes height x width (x 3) pixels.
  HR_HD void observe(const uint8_t* a, const uint8_t* b, const PooledImage& pooled, uint8_t* out,
                     const ObserverScratch& scratch) const {
    for (int channel = 0; channel < colors.channels; ++channel) {
      uint8_t* const pixels = pooled.pixels + channel * rows * kScreenWidth;
      uint16_t* const source = pooled.source + channel * rows;
      int lines = 0;
      shrink(channel, out, scratch, [&](int y) -> const uint8_t* {
        const uint8_t* row_a = a + y * kScreenWidth;
        const uint8_t* row_b = b + y * kScreenWidth;
        const bool again = y > 0 && detail::same_as_above(row_a) && (a == b || detail::same_as_above(row_b));
        uint8_t* line = pixels + lines * kScreenWidth;
        if (!again) detail::look_up(colors.level[channel], row_a, row_b, line);
        lines += !again;
        source[y] = static_cast<uint16_t>(lines - 1);
        return again ? nullptr : line;
      });
    }
  }

  // Observes the brighter pixels of a screen and of what was observed before.
  HR_HD void observe_again(const uint8_t* a, const PooledImage& pooled, uint8_t* out,
                           const ObserverScratch& scratch) const {
    for (int channel = 0; channel < colors.channels; ++channel) {
      const uint8_t* const pixels = pooled.pixels + channel * rows * kScreenWidth;
      const uint16_t* const source = pooled.source + channel * rows;
      shrink(channel, out, scratch, [&](int y) -> const uint8_t* {
        const uint8_t* row = a + y * kScreenWidth;
        const uint8_t* before = pixels + source[y] * kScreenWidth;
        detail::look_up(colors.level[channel], row, row, scratch.line);
        for (int x = 0; x < kScreenWidth; ++x) scratch.line[x] = max_of(scratch.line[x], before[x]);
        return scratch.line;
      });
    }
  }

 private:
  template <class Line>
  HR_HD void shrink(int channel, uint8_t* out, const ObserverScratch& scratch, Line&& line) const {
    const int channels = colors.channels;
    if (channels == 1) return resize(line, out, scratch.resize);
    resize(line, scratch.plane, scratch.resize);
    for (int i = 0; i < height * width; ++i) out[channels * i + channel] = scratch.plane[i];
  }
};

// Returns false, and makes nothing of use, if the image would be larger than the screen.
// `rows`: of the game's screen. `height`, `width`: of the image; 0 for that of the screen.
HR_HD inline bool make_observer(Observer& observer, bool pal, int rows, ObservationType type, int height, int width) {
  observer.type = type;
  observer.rows = rows;
  observer.height = height > 0 ? height : rows;
  observer.width = width > 0 ? width : kScreenWidth;
  detail::make_color_tables(observer.colors, pal, type);
  return make_area_resize(observer.resize, rows, kScreenWidth, observer.height, observer.width);
}

}  // namespace headrace::atari

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

// The full-size image behind the last observation of one environment: lines of pixels, and which of them each row shows.
// Memory of the caller. `Observer` keeps row y in line y, or in that of the row above if both show the same; a GPU keeps the
// lines that differ side by side.
struct PooledImage {
  uint8_t* pixels;   // [channels, rows, 160] and AreaResize::kPadding bytes
  uint16_t* source;  // [channels, rows]
};

// Working memory of one observation, of the caller.
struct ObserverScratch {
  AreaResize::Scratch resize;
  uint8_t* lines;  // [rows, 160] and AreaResize::kPadding bytes: lines of pixels
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
  static_assert(kScreenWidth == 160);
  // No masked stores: who reads the line next would wait for them.
  for (int x = 0; x < 128; x += 64) {
    const __m512i first = look(_mm512_loadu_si512(a + x));
    const __m512i second = a == b ? first : look(_mm512_loadu_si512(b + x));
    _mm512_storeu_si512(out + x, _mm512_max_epu8(first, second));
  }
  const auto last = [&](const uint8_t* line) {
    return look(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + 128))));
  };
  const __m512i first = last(a), both = a == b ? first : _mm512_max_epu8(first, last(b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 128), _mm512_castsi512_si256(both));
#elif defined(HR_AVX2)
  static_assert(kScreenWidth == 5 * 32);
  // The table in 16 parts: a shuffle gives 0 for an index whose highest bit is set, as that of all outside a part is.
  const auto look = [&](const uint8_t* line, __m256i (&found)[5]) {
    __m256i index[5];
    for (int i = 0; i < 5; ++i) {
      index[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + 32 * i));
      found[i] = _mm256_setzero_si256();
    }
    for (int part = 0; part < 256; part += 16) {
      const __m256i entries = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table + part)));
      for (int i = 0; i < 5; ++i) {
        const __m256i at = _mm256_adds_epu8(index[i], _mm256_set1_epi8(0x70));
        found[i] = _mm256_or_si256(found[i], _mm256_shuffle_epi8(entries, at));
        index[i] = _mm256_sub_epi8(index[i], _mm256_set1_epi8(16));
      }
    }
  };
  __m256i first[5], second[5];
  look(a, first);
  if (a != b) look(b, second);
  for (int i = 0; i < 5; ++i)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * i), a == b ? first[i] : _mm256_max_epu8(first[i], second[i]));
#else
  for (int x = 0; x < kScreenWidth; ++x) out[x] = max_of(table[a[x]], table[b[x]]);
#endif
}

// Whether two lines of 160 bytes are equal.
HR_HD inline bool same_line(const uint8_t* one, const uint8_t* other) {
#ifdef HR_AVX512BW
  static_assert(kScreenWidth == 160);
  const __m256i last = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(one + 128)),
                                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(other + 128)));
  __m512i differs = _mm512_xor_si512(_mm512_loadu_si512(one), _mm512_loadu_si512(other));
  constexpr int or_xor = 0xF6;  // differs | (one ^ other)
  differs = _mm512_ternarylogic_epi64(differs, _mm512_loadu_si512(one + 64), _mm512_loadu_si512(other + 64), or_xor);
  differs = _mm512_or_si512(differs, _mm512_zextsi256_si512(last));
  return _mm512_test_epi64_mask(differs, differs) == 0;
#else
  return equal_bytes(one, other, kScreenWidth);
#endif
}

HR_HD inline bool same_as_above(const uint8_t* row) { return same_line(row, row - kScreenWidth); }

// The lines of one channel of a pooled image while a new image replaces the one before.
class PooledLines {
 public:
  HR_HD PooledLines(const PooledImage& pooled, int rows, int channel)
      : pixels_(pooled.pixels + channel * rows * kScreenWidth), source_(pooled.source + channel * rows), rows_(rows) {}

  HR_HD const uint8_t* operator[](int y) const { return pixels_ + source_[y] * kScreenWidth; }

  // Row y shows what the row above shows. Returns whether it did not show that before.
  HR_HD bool repeat(int y) {
    const int before = source_[y];
    source_[y] = source_[y - 1];
    return before != source_[y] && !same_line(pixels_ + before * kScreenWidth, (*this)[y]);
  }

  // Row y shows this line. Returns whether it did not show it before.
  HR_HD bool replace(int y, const uint8_t* line) {
    const bool changed = !same_line(line, (*this)[y]);
    uint8_t* const own = pixels_ + y * kScreenWidth;
    if (changed && source_[y] == y && y + 1 < rows_ && source_[y + 1] == y) {  // rows below still show what is there
      copy_bytes(own + kScreenWidth, own, kScreenWidth);
      for (int below = y + 1; below < rows_ && source_[below] == y; ++below) source_[below] = static_cast<uint16_t>(y + 1);
    }
    if (changed || source_[y] != y) copy_bytes(own, line, kScreenWidth);
    source_[y] = static_cast<uint16_t>(y);
    return changed;
  }

 private:
  uint8_t* const pixels_;
  uint16_t* const source_;
  const int rows_;
};

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

  // Observes the brighter pixels of two screens of rows x 160 colours; they may be the same one. Writes height x width (x 3)
  // pixels. `before`: the image that was made when `pooled` was written, or null. Most rows show what they showed then, and so
  // do those of the image that are made of them.
  HR_HD void observe(const uint8_t* a, const uint8_t* b, const PooledImage& pooled, const uint8_t* before, uint8_t* out,
                     const ObserverScratch& scratch) const {
    if (colors.channels > 1) before = nullptr;  // its channels are not apart
    for (int channel = 0; channel < colors.channels; ++channel) {
      detail::PooledLines lines(pooled, rows, channel);
      const auto changes = [&](int y) {
        const uint8_t* row_a = a + y * kScreenWidth;
        const uint8_t* row_b = b + y * kScreenWidth;
        if (y > 0 && detail::same_as_above(row_a) && (a == b || detail::same_as_above(row_b))) return lines.repeat(y);
        if (a != b && detail::same_line(row_a, row_b)) row_b = row_a;  // one look instead of two
        detail::look_up(colors.level[channel], row_a, row_b, scratch.lines);
        return lines.replace(y, scratch.lines);
      };
      shrink(channel, changes, lines, before, out, scratch);
    }
  }

  // Observes the brighter pixels of a screen and of what was observed before.
  HR_HD void observe_again(const uint8_t* a, const PooledImage& pooled, uint8_t* out,
                           const ObserverScratch& scratch) const {
    struct Lines {
      const uint8_t* first;
      HR_HD const uint8_t* operator[](int y) const { return first + y * kScreenWidth; }
    };
    for (int channel = 0; channel < colors.channels; ++channel) {
      const detail::PooledLines pooled_lines(pooled, rows, channel);
      const auto changes = [&](int y) {
        const uint8_t* row = a + y * kScreenWidth;
        uint8_t* line = scratch.lines + y * kScreenWidth;
        detail::look_up(colors.level[channel], row, row, line);
        for (int x = 0; x < kScreenWidth; ++x) line[x] = max_of(line[x], pooled_lines[y][x]);
        return true;
      };
      shrink(channel, changes, Lines{scratch.lines}, nullptr, out, scratch);
    }
  }

 private:
  template <class Changes, class Lines>
  HR_HD void shrink(int channel, const Changes& changes, const Lines& lines, const uint8_t* before, uint8_t* out,
                    const ObserverScratch& scratch) const {
    const int channels = colors.channels;
    if (channels == 1) return resize(changes, lines, before, out, scratch.resize);
    resize(changes, lines, before, scratch.plane, scratch.resize);
    for (int i = 0; i < height * width; ++i) out[channels * i + channel] = scratch.plane[i];
  }
};

// Brings a pooled image into the form in which `Observer` keeps it.
HR_HD inline void spread(const Observer& observer, const PooledImage& pooled) {
  for (int channel = 0; channel < observer.colors.channels; ++channel) {
    uint8_t* const pixels = pooled.pixels + channel * observer.rows * kScreenWidth;
    uint16_t* const source = pooled.source + channel * observer.rows;
    for (int y = observer.rows - 1; y >= 0; --y) {
      const int shown = min_of<int>(source[y], y);  // no line lies below its row, unless the memory is damaged
      if (shown != y) copy_bytes(pixels + y * kScreenWidth, pixels + shown * kScreenWidth, kScreenWidth);
      source[y] = static_cast<uint16_t>(y);
    }
  }
}

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

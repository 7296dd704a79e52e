// Area interpolation of 8-bit images, bit for bit as OpenCV's INTER_AREA computes it when it shrinks an image.
//
// Both passes are float32 without fused multiply-add: first along each row, pixels in order; then down the columns.
// Lines that look the same have the same horizontal sums, so those are computed once per distinct line; and output rows whose
// source rows did not change since the image before are copied from there.
#pragma once

#include "cartridge.hpp"
#include "platform.hpp"

namespace headrace::atari {

inline constexpr int kMaxImageWidth = kScreenWidth;
inline constexpr int kMaxImageSide = kMaxScreenRows;  // the larger of height and width

// The source cells of every output cell along one axis. Missing taps have weight 0.
struct AreaAxis {
  int32_t in, out, taps;
  int32_t first[kMaxImageSide];  // [out] first contributing source cell
  int32_t count[kMaxImageSide];  // [out] of them
  // [taps, out]. No output cell has more than in / out + 2 source cells, and none has two if in == out.
  float weights[3 * kMaxImageSide];
};

namespace detail {

// The source cells of output cell d: one in part, `whole` ones, one in part. A part of less than a thousandth of a pixel
// does not count; then its weight is 0.
struct AreaCell {
  int first, whole;
  double first_weight, whole_weight, last_weight;

  HR_HD int taps() const { return (first_weight > 0) + whole + (last_weight > 0); }
  HR_HD double weight(int tap) const {
    tap -= first_weight > 0;
    return tap < 0 ? first_weight : tap < whole ? whole_weight : last_weight;
  }
};

HR_HD inline AreaCell make_area_cell(int in, int out, int d) {
  const double scale = static_cast<double>(in) / out;
  const double begin = product(d, scale), end = sum(begin, scale);
  const double width = min_of(scale, in - begin);
  const int floor_of_end = static_cast<int>(end), floor_of_begin = static_cast<int>(begin);
  const int whole_end = min_of(floor_of_end, in - 1);
  const int whole_begin = min_of(floor_of_begin + (begin > floor_of_begin), whole_end);
  AreaCell cell = {whole_begin, whole_end - whole_begin, 0, 1.0 / width, 0};
  if (whole_begin - begin > 1e-3) {
    --cell.first;
    cell.first_weight = (whole_begin - begin) / width;
  }
  const double rest = sum(end, -static_cast<double>(whole_end));
  if (rest > 1e-3) cell.last_weight = min_of(min_of(rest, 1.0), width) / width;
  return cell;
}

HR_HD inline void make_area_axis(AreaAxis& axis, int in, int out) {
  axis.in = in;
  axis.out = out;
  axis.taps = 0;
  for (int d = 0; d < out; ++d) {
    const AreaCell cell = make_area_cell(in, out, d);
    axis.first[d] = cell.first;
    axis.count[d] = cell.taps();
    axis.taps = max_of(axis.taps, cell.taps());
  }
  for (int d = 0; d < out; ++d) {
    const AreaCell cell = make_area_cell(in, out, d);
    for (int k = 0; k < axis.taps; ++k)
      axis.weights[k * out + d] = k < cell.taps() ? static_cast<float>(cell.weight(k)) : 0.0f;
  }
}

}  // namespace detail

// How images of one size become images of another size. Plain data, constant after make_area_resize.
struct AreaResize {
  // Readable bytes needed behind the last pixel of a line.
  static constexpr int kPadding = 32;

  // Working memory of one call, of the caller.
  struct Scratch {
    float* sums;        // [in_height, stride]: horizontal sums of the distinct lines, of which the newest are kept
    const float** row;  // [in_height]: the sums of each source row
  };

  AreaAxis x, y;
  bool whole;      // both scales are whole numbers
  bool shuffled;   // the members below are in use
  int32_t stride;  // floats per line of sums
  // Eight (or 16) neighbouring outputs read at most 16 (or 32) neighbouring bytes per tap when the scale is at most 2.
  uint8_t shuffles[kMaxImageWidth + 16];     // [stride] source byte of an output, relative to its group of eight
  int32_t group_first[kMaxImageWidth / 8];   // [stride / 8] first source byte of each group
  alignas(64) float group_weights[4 * kMaxImageWidth];   // [taps, stride]

  // Writes out_height x out_width pixels. `changes(y)` makes source row y, whose pixels are then lines[y], and returns whether it
  // differs from that of the image `before`, which may be null and may be `out`. Rows are asked for in order, once; rows that
  // show the same may lie in the same memory.
  template <class Changes, class Lines>
  HR_HD void operator()(const Changes& changes, const Lines& lines, const uint8_t* before, uint8_t* out,
                        const Scratch& scratch) const {
    if (whole) return average_blocks(changes, lines, out);
    // No output row has more source rows than taps, so a ring of as many sums and one more fits into the cache.
    float *sums = scratch.sums, *const end = sums + min_of(y.taps + 1, y.in) * stride;
    for (int row = 0, d = 0, last_change = -1; row < y.in; ++row) {
      if (changes(row) || before == nullptr) last_change = row;
      scratch.row[row] = nullptr;
      for (; d < y.out && y.first[d] + y.count[d] == row + 1; ++d) {
        const size_t at = static_cast<size_t>(d) * x.out;
        if (last_change < y.first[d]) {
          if (before != out) copy_bytes(out + at, before + at, static_cast<size_t>(x.out));
          continue;
        }
        for (int source = y.first[d]; source <= row; ++source) {
          if (scratch.row[source] != nullptr) continue;
          if (source > 0 && lines[source] == lines[source - 1] && scratch.row[source - 1] != nullptr) {
            scratch.row[source] = scratch.row[source - 1];
            continue;
          }
          horizontal(lines[source], sums);
          scratch.row[source] = sums;
          sums = sums + stride == end ? scratch.sums : sums + stride;
        }
        vertical(d, scratch, out + at);
      }
    }
  }

 private:
#ifdef HR_AVX512VBMI
  // `horizontal` where `shuffled`. `Known`: the number of taps, if the compiler is to know it, else 0.
  template <int Known>
  void horizontal_taps(const uint8_t* pixels, float* sums, int taps) const {
    if (Known) taps = Known;
    // Each source byte of 16 outputs goes to the lowest of an output's four bytes. What lies behind the last output has
    // weight 0.
    for (int d = 0; d < x.out; d += 16) {
      const uint8_t* const window = pixels + x.first[d];
      const __m512i sources = _mm512_sub_epi32(_mm512_loadu_si512(x.first + d), _mm512_set1_epi32(x.first[d]));
      __m512 total = _mm512_setzero_ps();
      for (int k = 0; k < taps; ++k) {
        const __m512i bytes = _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(window + k)));
        const __m512i values = _mm512_maskz_permutexvar_epi8(0x1111111111111111, sources, bytes);
        const __m512 weights = _mm512_loadu_ps(group_weights + k * stride + d);
        total = _mm512_add_ps(total, _mm512_mul_ps(_mm512_cvtepi32_ps(values), weights));
      }
      _mm512_storeu_ps(sums + d, total);
    }
  }
#endif

  HR_HD void horizontal(const uint8_t* pixels, float* sums) const {
#ifdef HR_AVX512VBMI
    if (shuffled) return x.taps == 3 ? horizontal_taps<3>(pixels, sums, 3) : horizontal_taps<0>(pixels, sums, x.taps);
#elif defined(HR_AVX2)
    if (shuffled) {
      for (int d = 0, g = 0; d < x.out; d += 8, ++g) {
        const __m128i shuffle = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(shuffles + d));
        __m256 total = _mm256_setzero_ps();
        for (int k = 0; k < x.taps; ++k) {
          const __m128i window = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixels + group_first[g] + k));
          const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_shuffle_epi8(window, shuffle)));
          total = _mm256_add_ps(total, _mm256_mul_ps(values, _mm256_loadu_ps(group_weights + k * stride + d)));
        }
        _mm256_storeu_ps(sums + d, total);
      }
      return;
    }
#endif
    for (int d = 0; d < x.out; ++d) {
      float total = 0.0f;
      for (int k = 0; k < x.taps && x.first[d] + k < x.in; ++k)
        total = sum(total, product(static_cast<float>(pixels[x.first[d] + k]), x.weights[k * x.out + d]));
      sums[d] = total;
    }
  }

  HR_HD void vertical(int d, const Scratch& scratch, uint8_t* out) const {
    const int taps = y.count[d], width = x.out;
    const float* const* const rows = scratch.row + y.first[d];
#ifdef HR_AVX512BW
    for (int i = 0; i < width; i += 16) {
      __m512 total = _mm512_mul_ps(_mm512_set1_ps(y.weights[d]), _mm512_loadu_ps(rows[0] + i));
      for (int k = 1; k < taps; ++k)
        total = _mm512_add_ps(total, _mm512_mul_ps(_mm512_set1_ps(y.weights[k * y.out + d]), _mm512_loadu_ps(rows[k] + i)));
      const __m128i bytes = _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(total));  // halves to even; at most 255
      if (i + 16 <= width) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bytes);
      else _mm_mask_storeu_epi8(out + i, static_cast<__mmask16>((1 << (width - i)) - 1), bytes);
    }
#else
    float column[kMaxImageWidth];
    for (int k = 0; k < taps; ++k) {
      const float weight = y.weights[k * y.out + d];
      if (k == 0) {
        for (int i = 0; i < width; ++i) column[i] = product(weight, rows[k][i]);
      } else {
        for (int i = 0; i < width; ++i) column[i] = sum(column[i], product(weight, rows[k][i]));
      }
    }
    for (int i = 0; i < width; ++i) out[i] = static_cast<uint8_t>(min_of(round_half_even(column[i]), 255));
#endif
  }

  // With whole-numbered scales OpenCV sums integers; 2 x 2 blocks are rounded half up, others half to even.
  template <class Changes, class Lines>
  HR_HD void average_blocks(const Changes& changes, const Lines& lines, uint8_t* out) const {
    const int across = x.in / x.out;
    const int down = y.in / y.out;
    const float scale = 1.0f / static_cast<float>(across * down);
    for (int d = 0; d < y.out; ++d) {
      if (across == 1 && down == 1) {
        changes(d);
        copy_bytes(out, lines[d], static_cast<size_t>(x.out));
        out += x.out;
        continue;
      }
      int32_t sums[kMaxImageWidth] = {};
      for (int row = d * down; row < (d + 1) * down; ++row) {
        changes(row);
        for (int i = 0; i < x.in; ++i) sums[i / across] += lines[row][i];
      }
      for (int i = 0; i < x.out; ++i, ++out)
        *out = static_cast<uint8_t>(across == 2 && down == 2
                                        ? (sums[i] + 2) >> 2
                                        : min_of(round_half_even(product(static_cast<float>(sums[i]), scale)), 255));
    }
  }
};

// Returns false, and makes nothing, if an axis would grow or is larger than a screen.
HR_HD inline bool make_area_resize(AreaResize& resize, int in_height, int in_width, int out_height, int out_width) {
  if (out_height < 1 || out_width < 1 || out_height > in_height || out_width > in_width) return false;
  if (in_height > kMaxImageSide || in_width > kMaxImageWidth) return false;
  AreaAxis& x = resize.x;
  detail::make_area_axis(x, in_width, out_width);
  detail::make_area_axis(resize.y, in_height, out_height);
  resize.whole = in_height % out_height == 0 && in_width % out_width == 0;
  resize.stride = (out_width + 15) / 16 * 16;
  resize.shuffled = !resize.whole && in_width <= 2 * out_width;
  clear_bytes(resize.shuffles, sizeof resize.shuffles);
  clear_bytes(resize.group_first, sizeof resize.group_first);
  clear_bytes(resize.group_weights, sizeof resize.group_weights);
  if (!resize.shuffled) return true;
  for (int d = 0; d < out_width; d += 8) {
    resize.group_first[d / 8] = x.first[d];
    for (int i = d; i < min_of(d + 8, out_width); ++i) {
      resize.shuffles[i] = static_cast<uint8_t>(x.first[i] - x.first[d]);
      for (int k = 0; k < x.taps; ++k) resize.group_weights[k * resize.stride + i] = x.weights[k * out_width + i];
    }
  }
  return true;
}

}  // namespace headrace::atari

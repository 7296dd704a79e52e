// Area interpolation of 8-bit images, bit for bit as OpenCV's INTER_AREA computes it when it shrinks an image.
//
// Both passes are float32 without fused multiply-add: first along each row, pixels in order; then down the columns.
// Lines that look the same have the same horizontal sums, so those are computed once per distinct line.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace headrace::atari {

// The source cells of every output cell along one axis. Missing taps have weight 0.
struct AreaAxis {
  int in, out, taps;
  std::vector<int> first;      // [out] first contributing source cell
  std::vector<float> weights;  // [taps, out]

  AreaAxis(int in_size, int out_size) : in(in_size), out(out_size), taps(0), first(out_size) {
    const double scale = static_cast<double>(in) / out;
    std::vector<std::vector<double>> cells(out);
    for (int d = 0; d < out; ++d) {
      const double begin = d * scale;
      const double width = std::min(scale, in - begin);
      const int whole_end = std::min(static_cast<int>(std::floor(begin + scale)), in - 1);
      const int whole_begin = std::min(static_cast<int>(std::ceil(begin)), whole_end);
      first[d] = whole_begin;
      // A sliver of less than a thousandth of a pixel does not count.
      if (whole_begin - begin > 1e-3) {
        first[d] = whole_begin - 1;
        cells[d].push_back((whole_begin - begin) / width);
      }
      for (int s = whole_begin; s < whole_end; ++s) cells[d].push_back(1.0 / width);
      const double rest = begin + scale - whole_end;
      if (rest > 1e-3) cells[d].push_back(std::min(std::min(rest, 1.0), width) / width);
      taps = std::max(taps, static_cast<int>(cells[d].size()));
    }
    weights.assign(static_cast<size_t>(taps) * out, 0.0f);
    for (int d = 0; d < out; ++d)
      for (size_t k = 0; k < cells[d].size(); ++k) weights[k * out + d] = static_cast<float>(cells[d][k]);
  }
};

class AreaResize {
 public:
  // Working memory of one thread.
  struct Scratch {
    std::vector<float> sums;        // horizontal sums of the distinct lines, [rows, stride]
    std::vector<const float*> row;  // [rows] the sums of each source row
  };

  // Throws std::invalid_argument if an axis would grow.
  AreaResize(int in_height, int in_width, int out_height, int out_width)
      : x_(in_width, out_width), y_(in_height, out_height) {
    if (out_height < 1 || out_width < 1 || out_height > in_height || out_width > in_width)
      throw std::invalid_argument("observations can be shrunk, not enlarged");
    whole_ = in_height % out_height == 0 && in_width % out_width == 0;
    stride_ = (out_width + 7) / 8 * 8;
    prepare_shuffles();
  }

  // Enough for images of any height up to `rows`.
  Scratch scratch(int rows) const {
    return {std::vector<float>(static_cast<size_t>(rows) * stride_), std::vector<const float*>(rows)};
  }

  // Readable bytes needed behind the last pixel of a line given to `line`.
  static constexpr int kPadding = 32;

  // `line(y, reuse)` returns the pixels of source row y, or nullptr if that row equals row y - 1.
  template <class Line>
  void operator()(Line&& line, uint8_t* out, Scratch& scratch) const {
    if (whole_) return average_blocks(line, out);
    float* sums = scratch.sums.data();
    for (int y = 0; y < y_.in; ++y) {
      const uint8_t* pixels = line(y);
      if (pixels == nullptr) {
        scratch.row[y] = scratch.row[y - 1];
      } else {
        horizontal(pixels, sums);
        scratch.row[y] = sums;
        sums += stride_;
      }
    }
    for (int d = 0; d < y_.out; ++d) vertical(d, scratch, out + static_cast<size_t>(d) * x_.out);
  }

 private:
  void horizontal(const uint8_t* pixels, float* sums) const {
#if defined(__AVX2__)
    if (!shuffles_.empty()) {
      for (int d = 0, g = 0; d < stride_; d += 8, ++g) {
        const __m128i shuffle = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(shuffles_.data() + d));
        __m256 sum = _mm256_setzero_ps();
        for (int k = 0; k < x_.taps; ++k) {
          const __m128i window = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixels + group_first_[g] + k));
          const __m256 values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_shuffle_epi8(window, shuffle)));
          sum = _mm256_add_ps(sum, _mm256_mul_ps(values, _mm256_loadu_ps(group_weights_.data() + k * stride_ + d)));
        }
        _mm256_storeu_ps(sums + d, sum);
      }
      return;
    }
#endif
    for (int d = 0; d < x_.out; ++d) {
      float sum = 0.0f;
      for (int k = 0; k < x_.taps && x_.first[d] + k < x_.in; ++k)
        sum += static_cast<float>(pixels[x_.first[d] + k]) * x_.weights[k * x_.out + d];
      sums[d] = sum;
    }
  }

  void vertical(int d, const Scratch& scratch, uint8_t* out) const {
    float column[kMaxWidth];
    const int width = x_.out;
    for (int k = 0; k < y_.taps; ++k) {
      const float weight = y_.weights[k * y_.out + d];
      if (weight == 0.0f) break;
      const float* sums = scratch.row[y_.first[d] + k];
      if (k == 0) {
        for (int i = 0; i < width; ++i) column[i] = weight * sums[i];
      } else {
        for (int i = 0; i < width; ++i) column[i] += weight * sums[i];
      }
    }
    // Adding 1.5 * 2^23 leaves the value rounded half to even in the low bits, and unlike lrintf it vectorises.
    for (int i = 0; i < width; ++i)
      out[i] = static_cast<uint8_t>(std::min(std::bit_cast<int32_t>(column[i] + 12582912.0f) - 0x4B400000, 255));
  }

  // With whole-numbered scales OpenCV sums integers; 2 x 2 blocks are rounded half up, others half to even.
  template <class Line>
  void average_blocks(Line&& line, uint8_t* out) const {
    const int across = x_.in / x_.out;
    const int down = y_.in / y_.out;
    if (across == 1 && down == 1) {
      for (int y = 0; y < y_.out; ++y, out += x_.out) {
        const uint8_t* pixels = line(y);
        std::memcpy(out, pixels != nullptr ? pixels : out - x_.out, x_.out);
      }
      return;
    }
    const float scale = 1.0f / static_cast<float>(across * down);
    const uint8_t* pixels = nullptr;
    for (int d = 0; d < y_.out; ++d) {
      int32_t sums[kMaxWidth] = {};
      for (int k = 0; k < down; ++k) {
        const uint8_t* next = line(d * down + k);
        if (next != nullptr) pixels = next;
        for (int i = 0; i < x_.in; ++i) sums[i / across] += pixels[i];
      }
      for (int i = 0; i < x_.out; ++i, ++out)
        *out = across == 2 && down == 2
                   ? static_cast<uint8_t>((sums[i] + 2) >> 2)
                   : static_cast<uint8_t>(std::min(255.0f, std::nearbyintf(static_cast<float>(sums[i]) * scale)));
    }
  }

  // Eight neighbouring outputs read at most 16 neighbouring bytes per tap when the scale is at most 2.
  void prepare_shuffles() {
    if (whole_ || x_.in > 2 * x_.out) return;
    shuffles_.assign(stride_ + 8, 0);
    group_weights_.assign(static_cast<size_t>(x_.taps) * stride_, 0.0f);
    for (int d = 0; d < stride_; d += 8) {
      group_first_.push_back(x_.first[d]);
      for (int i = d; i < std::min(d + 8, x_.out); ++i) {
        shuffles_[i] = static_cast<uint8_t>(x_.first[i] - x_.first[d]);
        for (int k = 0; k < x_.taps; ++k) group_weights_[k * stride_ + i] = x_.weights[k * x_.out + i];
      }
    }
  }

  static constexpr int kMaxWidth = 160;
  AreaAxis x_, y_;
  bool whole_;
  int stride_;                        // floats per line of sums
  std::vector<uint8_t> shuffles_;     // [stride] source byte of an output, relative to its group of eight
  std::vector<int> group_first_;      // [stride / 8] first source byte of each group
  std::vector<float> group_weights_;  // [taps, stride]
};

}  // namespace headrace::atari

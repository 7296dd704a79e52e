// Observation: a warp per console makes the newest image and writes the stack. The arithmetic of core/observation.hpp and
// core/resize.hpp in the same order, spread over lanes: lane i has columns i, i + 32, ...
#pragma once

#include "atari/core/observation.hpp"
#include "atari/cuda/batch.hpp"
#include "atari/cuda/warp.hpp"

namespace headrace::atari {

namespace detail {

inline constexpr int kLaneColumns = kMaxImageWidth / kLanes;

// The lines of one channel of an image, in order, each in the warp's shared memory.
class LineReader {
 public:
  HR_DEVICE LineReader(const Observer& observer, const Picture& picture, const PooledImage& pooled, int channel)
      : table_(observer.colors.level[channel]), picture_(picture),
        pixels_(pooled.pixels + channel * observer.rows * kScreenWidth), source_(pooled.source + channel * observer.rows) {}

  // Makes line y. Returns false if it is the one before.
  HR_DEVICE bool next(const Warp& warp, int y) {
    const uint8_t* const a = picture_.a + y * kScreenWidth;
    const uint8_t* const b = picture_.b + y * kScreenWidth;
    const bool mixes = picture_.source == PictureSource::kAgain;
    if (!mixes && y > 0) {
      PerLane<bool> differs;
      warp.each([&](int lane) {
        differs[lane] = false;
        for (int x = lane; x < kScreenWidth; x += kLanes)
          differs[lane] = differs[lane] || a[x] != a[x - kScreenWidth] || b[x] != b[x - kScreenWidth];
        if (lane == 0) source_[y] = static_cast<uint16_t>(lines_ - 1);
      });
      if (!warp.any(differs)) return false;
    }
    const uint8_t* const before = mixes ? pixels_ + source_[y] * kScreenWidth : nullptr;
    uint8_t* const kept = pixels_ + lines_ * kScreenWidth;
    warp.each([&](int lane) {
      for (int x = lane; x < kScreenWidth; x += kLanes) {
        const uint8_t level = mixes ? max_of(table_[a[x]], before[x]) : max_of(table_[a[x]], table_[b[x]]);
        warp.shared[x] = level;
        if (!mixes) kept[x] = level;
      }
      if (!mixes && lane == 0) source_[y] = static_cast<uint16_t>(lines_);
    });
    lines_ += !mixes;
    return true;
  }

 private:
  const uint8_t* const table_;
  const Picture& picture_;
  uint8_t* const pixels_;
  uint16_t* const source_;
  int lines_ = 0;
};

struct Columns {
  float value[kLaneColumns];
};

HR_DEVICE inline void shrink_by_area(const Warp& warp, const AreaResize& resize, LineReader& lines, uint8_t* out, int step) {
  const AreaAxis &x = resize.x, &y = resize.y;
  PerLane<Columns> sums, totals;
  int made = -1;  // the line whose sums there are
  for (int d = 0; d < y.out; ++d) {
    for (int k = 0; k < y.taps; ++k) {
      const float weight = y.weights[k * y.out + d];
      if (weight == 0.0f) break;
      for (; made < y.first[d] + k; ++made) {
        if (!lines.next(warp, made + 1)) continue;
        warp.each([&](int lane) {
          for (int c = 0; c < kLaneColumns; ++c) {
            const int column = lane + c * kLanes;
            if (column >= x.out) break;
            float total = 0.0f;
            for (int tap = 0; tap < x.taps && x.first[column] + tap < x.in; ++tap)
              total = sum(total, product(static_cast<float>(warp.shared[x.first[column] + tap]),
                                         x.weights[tap * x.out + column]));
            sums[lane].value[c] = total;
          }
        });
      }
      warp.each([&](int lane) {
        for (int c = 0; c < kLaneColumns && lane + c * kLanes < x.out; ++c) {
          const float weighted = product(weight, sums[lane].value[c]);
          totals[lane].value[c] = k == 0 ? weighted : sum(totals[lane].value[c], weighted);
        }
      });
    }
    warp.each([&](int lane) {
      for (int c = 0; c < kLaneColumns && lane + c * kLanes < x.out; ++c)
        out[static_cast<size_t>(d * x.out + lane + c * kLanes) * step] =
            static_cast<uint8_t>(min_of(round_half_even(totals[lane].value[c]), 255));
    });
  }
  for (; made < y.in - 1; ++made) lines.next(warp, made + 1);
}

// With whole-numbered scales, see AreaResize::average_blocks.
HR_DEVICE inline void shrink_by_blocks(const Warp& warp, const AreaResize& resize, LineReader& lines, uint8_t* out, int step) {
  const int across = resize.x.in / resize.x.out, down = resize.y.in / resize.y.out, width = resize.x.out;
  const float scale = 1.0f / static_cast<float>(across * down);
  struct Sums {
    int32_t value[kLaneColumns];
  };
  PerLane<Sums> sums;
  for (int d = 0; d < resize.y.out; ++d) {
    for (int k = 0; k < down; ++k) {
      lines.next(warp, d * down + k);
      warp.each([&](int lane) {
        for (int c = 0; c < kLaneColumns && lane + c * kLanes < width; ++c) {
          int32_t total = k == 0 ? 0 : sums[lane].value[c];
          for (int i = 0; i < across; ++i) total += warp.shared[(lane + c * kLanes) * across + i];
          sums[lane].value[c] = total;
        }
      });
    }
    warp.each([&](int lane) {
      for (int c = 0; c < kLaneColumns && lane + c * kLanes < width; ++c) {
        const int32_t total = sums[lane].value[c];
        const auto rounded = [&] { return min_of(round_half_even(product(static_cast<float>(total), scale)), 255); };
        const int32_t level = across == 1 && down == 1   ? total
                              : across == 2 && down == 2 ? (total + 2) >> 2
                                                         : rounded();
        out[static_cast<size_t>(d * width + lane + c * kLanes) * step] = static_cast<uint8_t>(level);
      }
    });
  }
}

HR_DEVICE inline void make_image(const Warp& warp, const Observer& observer, const Picture& picture, const PooledImage& pooled,
                                 uint8_t* out) {
  const int channels = observer.colors.channels;
  for (int channel = 0; channel < channels; ++channel) {
    LineReader lines(observer, picture, pooled, channel);
    if (observer.resize.whole) shrink_by_blocks(warp, observer.resize, lines, out + channel, channels);
    else shrink_by_area(warp, observer.resize, lines, out + channel, channels);
  }
}

}  // namespace detail

// The observation of the console with the warp's number. `restarted`: only of those that have begun another episode in a step.
HR_DEVICE inline void observe_console(const Warp& warp, const ConsoleBatch& batch, bool restarted, const Results& results) {
  const int32_t console = warp.index;
  if (console >= batch.consoles || (restarted && !batch.restarts[console])) return;
  const EnvironmentSetup& setup = batch.setups[batch.game_of[console]];
  const EnvironmentMemory memory = memory_of(batch, console);
  const Picture picture = batch.pictures[console];
  const size_t bytes = static_cast<size_t>(setup.observer->image_bytes());
  const int stack = setup.options.stack;
  if (picture.source != PictureSource::kNone) {
    uint8_t* const target = memory.images + picture.target * bytes;
    if (picture.clears) clear_together(warp, memory.images, stack * bytes);
    if (picture.source == PictureSource::kRam) copy_together(warp, target, batch.states[console].emulator.console.ram, 128);
    else if (picture.source != PictureSource::kCopy) detail::make_image(warp, *setup.observer, picture, memory.pooled, target);
    else if (picture.target != picture.before) copy_together(warp, target, memory.images + picture.before * bytes, bytes);
  }
  const int32_t newest = batch.states[console].newest;
  const int64_t row = results.rows ? results.rows[console] : console;
  const auto write = [&](uint8_t* to) {
    for (int i = 1; i <= stack; ++i, to += bytes)
      copy_together(warp, to, memory.images + (newest + i) % stack * bytes, bytes);
  };
  write(results.observations + row * results.observation_stride);
  if (!restarted && results.has_final[console]) write(results.finals + console * (stack * bytes));
}

}  // namespace headrace::atari

// Layers of a policy's network for the few observations that it acts on, in bfloat16: convolutions and linear layers.
//
// PyTorch takes as long to find and to call oneDNN's kernels as they compute for eight images. Sums are added up in the order of
// oneDNN's (those of PyTorch 2.13 without AMX), so that what comes out is the same, bit for bit.

#pragma once

#include <vector>

#include "layers/tile.hpp"
#include "pixels/pixels.hpp"

namespace headrace::layers {

/// Inputs of a linear layer that oneDNN sums up before it adds them to the others.
inline std::size_t linear_run(std::size_t inputs) { return inputs > 1024 ? 1024 : 512; }

/// Goes through the pixels of images. (To divide the number of a pixel takes a tenth of the time of its products.)
struct Pixel {
  std::size_t height, width, image = 0, y = 0, x = 0;

  void next() {
    if (++x < width) return;
    x = 0;
    if (++y < height) return;
    y = 0, ++image;
  }
};

inline constexpr std::size_t kCached = 96 * 1024;  // numbers of images that are worked on at a time, so that they stay in the cache

/// A convolution without padding over images [height][width][channels]. A linear layer is one over a single pixel.
struct Layer {
  const Bfloat16* panels;  // of tile.hpp; inputs in the order [kernel_height][kernel_width][channels]
  const float* bias;       // [outputs], zeros behind them up to a multiple of `kPanel`
  std::size_t outputs, channels, kernel_height, kernel_width, stride;
  Activation activation;

  std::size_t out_height(std::size_t height) const { return (height - kernel_height) / stride + 1; }
  std::size_t out_width(std::size_t width) const { return (width - kernel_width) / stride + 1; }

  /// x [images][height][width][channels] to y [images][out_height][out_width][outputs].
  void forward(const Bfloat16* x, Bfloat16* y, std::size_t images, std::size_t height, std::size_t width) const {
    switch (activation) {
      case Activation::kNone: return forward<Activation::kNone>(x, y, images, height, width);
      case Activation::kRelu: return forward<Activation::kRelu>(x, y, images, height, width);
      case Activation::kElu: return forward<Activation::kElu>(x, y, images, height, width);
    }
  }

 private:
  template <Activation A>
  void forward(const Bfloat16* x, Bfloat16* y, std::size_t images, std::size_t height, std::size_t width) const {
    const std::size_t line = width * channels, line_pixels = out_width(width);
    const std::size_t image_pixels = line_pixels * out_height(height);
    const std::size_t inputs = kernel_height * kernel_width * channels;
    const bool linear = height == 1 && width == 1;
    const std::size_t length = linear ? linear_run(inputs) : kernel_width * channels, runs = (inputs + length - 1) / length;
    std::vector<std::ptrdiff_t> offsets;
    for (std::size_t i = 0; i < runs; ++i) offsets.push_back(i * (linear ? length : line));
    const Inputs of_row{offsets.data(), runs, length, inputs - (runs - 1) * length, linear};
    const std::size_t group = std::max<std::size_t>(1, kCached / (height * line));
    for (std::size_t first = 0; first < images; first += group) {
      for (std::size_t j = 0; j < outputs; j += kPanel) {
        Pixel at{out_height(height), line_pixels, first};
        Bfloat16* to = y + first * image_pixels * outputs;
        const std::size_t rows = std::min(group, images - first) * image_pixels, tiles = (rows + kRows - 1) / kRows;
        for (std::size_t tile = 0, done = 0; tile < tiles; ++tile) {
          const std::size_t here = (rows - done) / (tiles - tile);  // nearly as many in each
          Rows of_tile;
          for (std::size_t r = 0; r < here; ++r, to += outputs, at.next()) {
            of_tile.x[r] = x + (at.image * height + at.y * stride) * line + at.x * stride * channels;
            of_tile.y[r] = to;
          }
          tile_of<A>(here, of_tile, of_row, panels + j * inputs, bias + j, j, std::min(kPanel, outputs - j));
          done += here;
        }
      }
    }
  }
};

/// Layers one after the other, over images of bytes or rows of numbers.
class Network {
 public:
  /// Images [channels][height][width], unshuffled by `factor` as pixels.hpp does.
  Network(std::size_t channels, std::size_t height, std::size_t width, std::size_t factor)
      : bytes_(channels * height * width), channels_(channels), height_(height), width_(width), factor_(factor),
        shape_{height / factor, width / factor, channels * factor * factor} {}

  explicit Network(std::size_t width) : shape_{1, 1, width} {}

  /// The members of `Layer`, of which the network knows the channels.
  void convolution(const Bfloat16* panels, const float* bias, std::size_t outputs, std::size_t kernel_height,
                   std::size_t kernel_width, std::size_t stride, Activation activation) {
    layers_.push_back({panels, bias, outputs, shape_.channels, kernel_height, kernel_width, stride, activation});
    const Layer& layer = layers_.back();
    shape_ = {layer.out_height(shape_.height), layer.out_width(shape_.width), outputs};
  }

  /// A linear layer over all numbers of an image, in PyTorch's order: plane by plane.
  void linear(const Bfloat16* panels, const float* bias, std::size_t outputs, Activation activation) {
    layers_.push_back({panels, bias, outputs, size(shape_), 1, 1, 1, activation});
    shape_ = {1, 1, outputs};
  }

  /// Numbers that come out for each image or row.
  std::size_t out_features() const { return size(shape_); }

  /// x: [count] images of bytes, or rows of numbers. y: [count][out_features], of an image plane by plane.
  void forward(const void* x, Bfloat16* y, std::size_t count) const {
    const std::size_t bytes = bytes_ ? bytes_ : layers_[0].channels * sizeof(Bfloat16);
    for (std::size_t first = 0; first < count; first += kTogether) {  // so that large batches need no more memory than small ones
      const std::size_t here = std::min(kTogether, count - first);
      forward_some(static_cast<const std::uint8_t*>(x) + first * bytes, y + first * out_features(), here);
    }
  }

 private:
  struct Shape {
    std::size_t height, width, channels;
  };

  static constexpr std::size_t kTogether = 64;

  void forward_some(const void* x, Bfloat16* y, std::size_t count) const {
    static thread_local std::vector<Bfloat16> buffers[2];
    Shape shape{1, 1, layers_[0].channels};
    const auto* from = static_cast<const Bfloat16*>(x);
    if (bytes_) {
      shape = {height_ / factor_, width_ / factor_, channels_ * factor_ * factor_};
      auto* pixels = reinterpret_cast<pixels::Bfloat16*>(room(buffers[0], count * size(shape)));
      pixels::channels_last(static_cast<const std::uint8_t*>(x), pixels, count, channels_, height_, width_, factor_);
      from = buffers[0].data();
    }
    std::size_t next = 1;
    for (std::size_t i = 0; i < layers_.size(); ++i, next ^= 1) {
      const Layer& layer = layers_[i];
      if (layer.channels != shape.channels) {  // the first linear layer: plane by plane
        Bfloat16* planes = room(buffers[next], count * size(shape));
        by_planes(from, planes, count, shape);
        from = planes, shape = {1, 1, size(shape)}, next ^= 1;
      }
      const Shape after{layer.out_height(shape.height), layer.out_width(shape.width), layer.outputs};
      const bool last = i + 1 == layers_.size();
      Bfloat16* to = last && after.height * after.width == 1 ? y : room(buffers[next], count * size(after));
      layer.forward(from, to, count, shape.height, shape.width);
      from = to, shape = after;
    }
    if (from != y) by_planes(from, y, count, shape);
  }

  static std::size_t size(const Shape& shape) { return shape.height * shape.width * shape.channels; }

  static Bfloat16* room(std::vector<Bfloat16>& buffer, std::size_t size) {
    if (buffer.size() < size) buffer.resize(size);
    return buffer.data();
  }

  static void by_planes(const Bfloat16* from, Bfloat16* to, std::size_t count, const Shape& shape) {
    const std::size_t pixels = shape.height * shape.width;
    for (std::size_t n = 0; n < count; ++n, from += size(shape), to += size(shape)) {
      for (std::size_t c = 0; c < shape.channels; ++c) {
        for (std::size_t i = 0; i < pixels; ++i) to[c * pixels + i] = from[i * shape.channels + c];
      }
    }
  }

  std::size_t bytes_ = 0, channels_ = 0, height_ = 0, width_ = 0, factor_ = 0;
  Shape shape_;
  std::vector<Layer> layers_;
};

}  // namespace headrace::layers

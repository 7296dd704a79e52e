// A small policy of fully connected layers, or the heads of another one: how it acts, and the loss of PPO with its gradient. One
// thread, whose memory is kept from call to call. What it computes is `PolicyGradient.act` and `.loss` of
// headrace/learning/policy_gradient.py; tests hold them together.
//
// With small networks most of an optimizer step of PyTorch is not arithmetic, but some 250 operations of a few microseconds each.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "elu/elu.hpp"
#include "ppo/product.hpp"

namespace headrace::ppo {

enum class Kind { kRelu, kElu, kTanh };

/// A linear layer: weights [out, in] and biases [out], and where their gradients are written.
struct Layer {
  const float *weight, *bias;
  float *weight_gradient, *bias_gradient;
  std::size_t in, out;
};

struct Policy {
  Kind kind;                        // of the activation after each hidden layer
  std::vector<Layer> actor, critic;  // hidden layers, perhaps none; without a critic the actor's features are for both heads
  Layer action, value;              // heads: logits or means, and one value
  const float* log_std;             // [C], null for discrete actions
  float* log_std_gradient;
  std::vector<std::int32_t> choices;  // of each discrete part; empty for continuous actions
};

/// Running mean and variance, [inputs] or [1], as headrace/policies/normalizer.py has them; null `mean`: nothing is normalised.
struct Statistics {
  const double *mean, *variance;
  double eps;
  float clip;

  float shift(std::size_t i) const { return static_cast<float>(mean[i]); }
  float scale(std::size_t i) const { return static_cast<float>(std::sqrt(variance[i] + eps)); }
};

/// Of continuous actions, [C] each: a number u becomes middle + half_range tanh(u) where it is bounded, and is clamped.
struct Bounds {
  const bool* bounded;
  const float *low, *high, *middle, *half_range;
};

/// What lies before and behind the layers when the policy acts.
struct Surroundings {
  Statistics observations, returns;
  Bounds bounds;
};

/// `noise`: uniform in [0, 1) for every choice, or standard normal [N, C].
struct Request {
  std::size_t samples;
  const float *observation, *noise;
};

struct Answer {
  std::int32_t* choice;  // [N, parts]
  float* number;         // [N, C]
  float *log_prob, *value;  // [N]
};

/// `samples` rows. Discrete actions are in `choice` [samples, parts]; of continuous ones there are the numbers before squashing,
/// `raw` [samples, C], and the logarithms of the slopes there, `log_slope` [samples].
struct Minibatch {
  std::size_t samples;
  const float* observation;  // [samples, inputs of the first layer]
  const std::int32_t* choice;
  const float *raw, *log_slope;
  const float *behaviour_log_prob, *advantage, *target;  // [samples]
  const float* behaviour_value;                          // [samples], null without value clipping
  const bool* mask;                                      // [samples]
};

struct Settings {
  float clip;        // of the probability ratio; negative: plain policy gradient
  float value_clip;  // negative: none
  float value_coef, entropy_coef;
  bool normalize_advantages, sum;
};

struct Losses {
  double policy, value, entropy;  // means over the valid samples; entropy of discrete actions only
};

inline constexpr float kMaxLogRatio = 2.99573227f;                         // log 20
inline constexpr float kLeastLogStd = -5.0f, kLargestLogStd = 2.0f;
inline constexpr float kHalfLog2Pi = 0.918938533f;
inline constexpr float kLog2 = 0.693147181f;
inline constexpr float kLeastDeviation = 1e-7f;  // of advantages
inline constexpr float kTanhLimit = 1.0f - 1e-6f;

/// Memory that lasts to the next `begin`, and is kept for what is taken then.
class Scratch {
 public:
  void begin() { used_ = 0; }

  /// Zeros.
  float* take(std::size_t size) {
    if (used_ == blocks_.size()) blocks_.emplace_back();
    auto& block = blocks_[used_++];
    block.assign(size, 0.0f);
    return block.data();
  }

 private:
  std::vector<std::vector<float>> blocks_;
  std::size_t used_ = 0;
};

inline void activate(Kind kind, float* y, std::size_t size) {
  switch (kind) {
    case Kind::kRelu:
      for (std::size_t i = 0; i < size; ++i) y[i] = y[i] < 0.0f ? 0.0f : y[i];  // NaN stays NaN
      break;
    case Kind::kElu:
      for (std::size_t i = 0; i < size; ++i) y[i] = elu::elu(y[i]);
      break;
    case Kind::kTanh:  // tanh |x| = (1 - e^-2|x|) / (1 + e^-2|x|)
      for (std::size_t i = 0; i < size; ++i) {
        const float x = -2.0f * std::fabs(y[i]);
        const auto [power, rest] = elu::exponential(x < elu::kLeast ? elu::kLeast : x);
        const float less = rest + (power - 1.0f);
        y[i] = std::copysign(less / (less + 2.0f), y[i]);
      }
  }
}

/// d *= f'(x), by y = f(x).
inline void multiply_by_slope(Kind kind, const float* __restrict y, float* __restrict d, std::size_t size) {
  switch (kind) {
    case Kind::kRelu:
      for (std::size_t i = 0; i < size; ++i) d[i] = y[i] <= 0.0f ? 0.0f : d[i];
      break;
    case Kind::kElu:
      for (std::size_t i = 0; i < size; ++i) d[i] *= y[i] > 0.0f ? 1.0f : y[i] + 1.0f;
      break;
    case Kind::kTanh:
      for (std::size_t i = 0; i < size; ++i) d[i] *= 1.0f - y[i] * y[i];
  }
}

/// [rows, width] in memory whose rows are padded with zeros.
struct Rows {
  float* at;
  std::size_t width;
  std::size_t row() const { return padded(width); }
};

class SmallPolicy {
 public:
  explicit SmallPolicy(Scratch& scratch) : scratch_(scratch) { scratch.begin(); }

  /// Draws actions.
  void act(const Policy& p, const Surroundings& around, const Request& request, const Answer& answer) {
    const std::size_t n = request.samples, width = inputs(p);
    const Rows x = copied(request.observation, n, width);
    if (const Statistics& s = around.observations; s.mean)
      for (std::size_t c = 0; c < width; ++c)
        for (std::size_t i = 0; i < n; ++i) {
          float& y = x.at[i * x.row() + c];
          y = std::clamp((y - s.shift(c)) / s.scale(c), -s.clip, s.clip);
        }
    const Rows features = forward(p.kind, p.actor, x, n).back();
    const Rows parameters = linear(p.action, features, n);
    const Rows values = linear(p.value, p.critic.empty() ? features : forward(p.kind, p.critic, x, n).back(), n);
    const std::size_t numbers = p.choices.empty() ? parameters.width : 0, parts = p.choices.size();
    const Deviations deviations = made_of(p, numbers);
    float *const all = scratch_.take(parameters.row()), *const raw = scratch_.take(numbers);
    for (std::size_t i = 0; i < n; ++i) {
      const float* const row = parameters.at + i * parameters.row();
      const float* const noise = request.noise + i * parameters.width;
      if (numbers) {
        answer.log_prob[i] = drawn(row, noise, deviations, around.bounds, numbers, answer.number + i * numbers, raw);
      } else {
        draw(p, row, noise, answer.choice + i * parts);
        answer.log_prob[i] = categorical(p, answer.choice + i * parts, row, all);
      }
      const float value = values.at[i * values.row()];
      answer.value[i] = around.returns.mean ? value * around.returns.scale(0) + around.returns.shift(0) : value;
    }
  }

  /// Writes the values of all samples, and the log-probabilities of the actions of the first `acted` (0 where the mask is false).
  /// Throws `std::out_of_range` for an action that does not exist.
  void evaluate(const Policy& p, const Minibatch& b, std::size_t acted, float* log_prob, float* value) {
    const std::size_t n = b.samples;
    const Rows x = copied(b.observation, n, inputs(p));
    const Rows features = forward(p.kind, p.actor, x, n).back();
    const Rows parameters = linear(p.action, features, n);
    const Rows values = linear(p.value, p.critic.empty() ? features : forward(p.kind, p.critic, x, n).back(), n);
    const std::size_t numbers = p.choices.empty() ? parameters.width : 0;
    const Deviations deviations = made_of(p, numbers);
    float* const all = scratch_.take(parameters.row());
    for (std::size_t i = 0; i < n; ++i) {
      value[i] = values.at[i * values.row()];
      if (i < acted) log_prob[i] = b.mask[i] ? log_probability(p, b, i, parameters.at + i * parameters.row(), deviations, all) : 0.0f;
    }
  }

  /// Writes the gradient into the policy's layers, and the log-probabilities of the actions (0 where the mask is false) and the
  /// values [samples] each. Throws `std::out_of_range` for an action that does not exist.
  Losses gradient(const Policy& p, const Minibatch& b, const Settings& s, float* log_prob, float* value) {
    const std::size_t n = b.samples;
    const Rows x = copied(b.observation, n, inputs(p));
    for (std::size_t i = 0; i < n; ++i)  // which may be anything, NaN included
      if (!b.mask[i]) std::fill_n(x.at + i * x.row(), x.width, 0.0f);
    std::vector<Rows> actor = forward(p.kind, p.actor, x, n), critic;
    if (!p.critic.empty()) critic = forward(p.kind, p.critic, x, n);
    const std::vector<Rows>& below = p.critic.empty() ? actor : critic;  // the value head
    const Rows parameters = linear(p.action, actor.back(), n), values = linear(p.value, below.back(), n);

    const Rows d_parameters{scratch_.take(n * parameters.row()), parameters.width};
    const Rows d_values{scratch_.take(n * values.row()), 1};
    const Losses losses = heads(p, b, s, parameters, values, d_parameters, d_values, log_prob, value);

    Rows d_actor = backward(p.action, actor.back(), d_parameters, n, true);
    Rows d_critic = backward(p.value, below.back(), d_values, n, true);
    if (p.critic.empty()) {
      for (std::size_t i = 0; i < n * d_actor.row(); ++i) d_actor.at[i] += d_critic.at[i];
    } else {
      backward(p.kind, p.critic, critic, d_critic, n);
    }
    backward(p.kind, p.actor, actor, d_actor, n);
    return losses;
  }

 private:
  static std::size_t inputs(const Policy& p) { return p.actor.empty() ? p.action.in : p.actor.front().in; }

  Rows copied(const float* from, std::size_t rows, std::size_t width) {
    const Rows to{scratch_.take(rows * padded(width)), width};
    for (std::size_t i = 0; i < rows; ++i) std::copy_n(from + i * width, width, to.at + i * to.row());
    return to;
  }

  /// x W^T + b. The padding of the result stays 0.
  Rows linear(const Layer& layer, const Rows& x, std::size_t rows) {
    const Rows y{scratch_.take(rows * padded(layer.out)), layer.out};
    float *const transposed = scratch_.take(layer.in * y.row()), *const bias = scratch_.take(y.row());
    for (std::size_t o = 0; o < layer.out; ++o) {
      bias[o] = layer.bias[o];
      for (std::size_t i = 0; i < layer.in; ++i) transposed[i * y.row() + o] = layer.weight[o * layer.in + i];
    }
    product(rows, y.row(), layer.in, {x.at, x.row(), 1}, transposed, bias, y.at);
    return y;
  }

  /// The input and the output of every hidden layer.
  std::vector<Rows> forward(Kind kind, const std::vector<Layer>& layers, const Rows& x, std::size_t rows) {
    std::vector<Rows> outputs{x};
    for (const Layer& layer : layers) {
      outputs.push_back(linear(layer, outputs.back(), rows));
      activate(kind, outputs.back().at, rows * outputs.back().row());  // 0 stays 0
    }
    return outputs;
  }

  /// Writes the layer's gradient, dW = dz^T x. Returns dx = dz W where it is wanted.
  Rows backward(const Layer& layer, const Rows& x, const Rows& dz, std::size_t rows, bool wanted) {
    float* const dw = scratch_.take(layer.out * x.row());
    product(layer.out, x.row(), rows, {dz.at, 1, dz.row()}, x.at, nullptr, dw);
    for (std::size_t o = 0; o < layer.out; ++o) std::copy_n(dw + o * x.row(), layer.in, layer.weight_gradient + o * layer.in);
    float* const sums = scratch_.take(dz.row());
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t o = 0; o < dz.row(); ++o) sums[o] += dz.at[i * dz.row() + o];
    std::copy_n(sums, layer.out, layer.bias_gradient);
    if (!wanted) return {nullptr, 0};
    const Rows weight = copied(layer.weight, layer.out, layer.in), dx{scratch_.take(rows * x.row()), layer.in};
    product(rows, dx.row(), layer.out, {dz.at, dz.row(), 1}, weight.at, nullptr, dx.at);
    return dx;
  }

  void backward(Kind kind, const std::vector<Layer>& layers, const std::vector<Rows>& outputs, Rows d, std::size_t rows) {
    for (std::size_t i = layers.size(); i-- > 0;) {
      multiply_by_slope(kind, outputs[i + 1].at, d.at, rows * d.row());
      d = backward(layers[i], outputs[i], d, rows, i > 0);
    }
  }

  Losses heads(const Policy& p, const Minibatch& b, const Settings& s, const Rows& parameters, const Rows& values,
               const Rows& d_parameters, const Rows& d_values, float* log_prob, float* value) {
    double valid = 0, sum = 0, squares = 0;
    for (std::size_t i = 0; i < b.samples; ++i)
      if (b.mask[i]) valid += 1, sum += b.advantage[i];
    valid = std::max(valid, 1.0);
    const double mean = s.normalize_advantages ? sum / valid : 0.0;
    for (std::size_t i = 0; i < b.samples; ++i)
      if (b.mask[i]) squares += (b.advantage[i] - mean) * (b.advantage[i] - mean);
    const float deviation = s.normalize_advantages ? std::max(static_cast<float>(std::sqrt(squares / valid)), kLeastDeviation) : 1.0f;
    const float weight = static_cast<float>(s.sum ? 1.0 : 1.0 / valid);  // of a sample in the loss

    const std::size_t numbers = p.choices.empty() ? parameters.width : 0;
    const Deviations deviations = made_of(p, numbers);
    float* const d_log_std = scratch_.take(numbers);
    Losses total{};
    for (std::size_t i = 0; i < b.samples; ++i) {
      const float* const row = parameters.at + i * parameters.row();
      float* const d_row = d_parameters.at + i * d_parameters.row();
      value[i] = values.at[i * values.row()];
      log_prob[i] = 0.0f;
      if (!b.mask[i]) continue;
      log_prob[i] = log_probability(p, b, i, row, deviations, d_row);
      const float advantage = (b.advantage[i] - static_cast<float>(mean)) / deviation;
      const float slope = weight * surrogate(s.clip, log_prob[i], b.behaviour_log_prob[i], advantage, total.policy);
      if (numbers) {
        for (std::size_t c = 0; c < numbers; ++c) {
          const float scaled = (b.raw[i * numbers + c] - row[c]) * deviations.inverse[c];
          d_row[c] = slope * scaled * deviations.inverse[c];
          d_log_std[c] += slope * (scaled * scaled - 1.0f);
        }
      } else {
        total.entropy += d_categorical(p, b, i, slope, weight * s.entropy_coef, d_row);
      }
      const float* const old = b.behaviour_value ? b.behaviour_value + i : nullptr;
      d_values.at[i * d_values.row()] = weight * s.value_coef * squared_error(s.value_clip, value[i], b.target[i], old, total.value);
    }
    for (std::size_t c = 0; c < numbers; ++c) {
      const bool free = p.log_std[c] >= kLeastLogStd && p.log_std[c] <= kLargestLogStd;
      p.log_std_gradient[c] = free ? d_log_std[c] : 0.0f;
    }
    total.policy /= valid, total.value /= valid, total.entropy /= valid;
    return total;
  }

  struct Deviations {
    float *logarithm, *inverse;  // [C], within their range
  };

  Deviations made_of(const Policy& p, std::size_t numbers) {
    const Deviations made{scratch_.take(numbers), scratch_.take(numbers)};
    for (std::size_t c = 0; c < numbers; ++c) {
      made.logarithm[c] = std::clamp(p.log_std[c], kLeastLogStd, kLargestLogStd);
      made.inverse[c] = std::exp(-made.logarithm[c]);
    }
    return made;
  }

  /// The log-density of the numbers before they are squashed.
  static float gaussian(const float* mean, const float* raw, const Deviations& deviations, std::size_t numbers) {
    float sum = 0.0f;
    for (std::size_t c = 0; c < numbers; ++c) {
      const float scaled = (raw[c] - mean[c]) * deviations.inverse[c];
      sum -= 0.5f * scaled * scaled + deviations.logarithm[c] + kHalfLog2Pi;
    }
    return sum;
  }

  /// Draws the numbers of an action and returns its log-density, which is computed of the action as it is stored, as the learner
  /// does: of a squashed number close to its bound the digits are lost.
  static float drawn(const float* mean, const float* noise, const Deviations& deviations, const Bounds& at, std::size_t numbers,
                     float* action, float* raw) {
    float log_slope = 0.0f;
    for (std::size_t c = 0; c < numbers; ++c) {
      const float u = mean[c] + std::exp(deviations.logarithm[c]) * noise[c];
      action[c] = std::clamp(at.bounded[c] ? at.middle[c] + at.half_range[c] * std::tanh(u) : u, at.low[c], at.high[c]);
      raw[c] = action[c];
      if (at.bounded[c]) {
        raw[c] = std::atanh(std::clamp((action[c] - at.middle[c]) / at.half_range[c], -kTanhLimit, kTanhLimit));
        log_slope += 2.0f * (kLog2 - raw[c] - std::log1p(std::exp(-2.0f * raw[c]))) + std::log(at.half_range[c]);
      }
    }
    return gaussian(mean, raw, deviations, numbers) - log_slope;
  }

  /// A race of exponential arrival times with rates exp(logit) is won with probability softmax(logit).
  static void draw(const Policy& p, const float* logits, const float* noise, std::int32_t* choice) {
    for (std::size_t part = 0, at = 0; part < p.choices.size(); at += p.choices[part++]) {
      float best = 0.0f;
      for (std::int32_t c = 0; c < p.choices[part]; ++c) {
        const float uniform = std::max(noise[at + c], std::numeric_limits<float>::min());
        const float score = logits[at + c] - std::log(-std::log(uniform));
        if (c == 0 || score > best) best = score, choice[part] = c;
      }
    }
  }

  /// Of the action of sample i; of discrete actions it leaves the log-probabilities of all choices in `all`.
  static float log_probability(const Policy& p, const Minibatch& b, std::size_t i, const float* parameters, const Deviations& deviations,
                               float* all) {
    if (!p.choices.empty()) return categorical(p, b.choice + i * p.choices.size(), parameters, all);
    return gaussian(parameters, b.raw + i * p.action.out, deviations, p.action.out) - b.log_slope[i];
  }

  /// The log-probability of the choices of all parts. Leaves the log-probabilities of all choices in `all`.
  static float categorical(const Policy& p, const std::int32_t* chosen, const float* logits, float* all) {
    float sum = 0.0f;
    for (std::size_t part = 0, at = 0; part < p.choices.size(); at += p.choices[part++]) {
      const std::size_t end = at + p.choices[part];
      const float largest = *std::max_element(logits + at, logits + end);
      float scale = 0.0f;
      for (std::size_t c = at; c < end; ++c) scale += std::exp(logits[c] - largest);
      const float log_scale = largest + std::log(scale);
      for (std::size_t c = at; c < end; ++c) all[c] = logits[c] - log_scale;
      if (chosen[part] < 0 || chosen[part] >= p.choices[part]) throw std::out_of_range("an action that does not exist");
      sum += all[at + chosen[part]];
    }
    return sum;
  }

  /// From log-probabilities to the derivatives by the logits, in place: of log pi times `slope`, and of the entropy times `-bonus`.
  /// Returns the entropy.
  static float d_categorical(const Policy& p, const Minibatch& b, std::size_t i, float slope, float bonus, float* row) {
    const std::size_t parts = p.choices.size();
    float sum = 0.0f;
    for (std::size_t part = 0, at = 0; part < parts; at += p.choices[part++]) {
      const std::size_t end = at + p.choices[part], chosen = at + b.choice[i * parts + part];
      float entropy = 0.0f;
      for (std::size_t c = at; c < end; ++c) entropy -= std::exp(row[c]) * row[c];
      for (std::size_t c = at; c < end; ++c) {
        const float chance = std::exp(row[c]);
        row[c] = slope * ((c == chosen) - chance) + bonus * chance * (row[c] + entropy);
      }
      sum += entropy;
    }
    return sum;
  }

  /// Adds the sample's policy loss, and returns its derivative by the log-probability.
  static float surrogate(float clip, float log_prob, float behaviour, float advantage, double& loss) {
    if (clip < 0.0f) {
      loss -= log_prob * advantage;
      return -advantage;
    }
    const float difference = log_prob - behaviour, bounded = std::clamp(difference, -kMaxLogRatio, kMaxLogRatio);
    const float ratio = std::exp(bounded), low = 1.0f / (1.0f + clip), high = 1.0f + clip;
    const float plain = ratio * advantage, clipped = std::clamp(ratio, low, high) * advantage;
    loss -= std::min(plain, clipped);
    const bool inside = ratio >= low && ratio <= high;
    return difference == bounded && (inside || plain < clipped) ? -plain : 0.0f;
  }

  /// Adds half of the sample's squared error, and returns its derivative by the value.
  static float squared_error(float clip, float value, float target, const float* old, double& loss) {
    const float error = value - target;
    if (clip >= 0.0f) {
      const float near = *old + std::clamp(value - *old, -clip, clip) - target;
      if (near * near > error * error) {
        loss += 0.5 * near * near;
        return std::fabs(value - *old) <= clip ? near : 0.0f;
      }
    }
    loss += 0.5 * error * error;
    return error;
  }

  Scratch& scratch_;
};

}  // namespace headrace::ppo

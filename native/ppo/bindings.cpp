#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <tuple>

#include "ppo/small_policy.hpp"

namespace nb = nanobind;
using namespace nb::literals;
namespace ppo = headrace::ppo;

namespace {

using Address = std::uintptr_t;
using LayerOf = std::tuple<Address, Address, Address, Address, std::size_t, std::size_t>;

thread_local ppo::Scratch scratch;  // a sampler and a learner may be threads of one process

using StatisticsOf = std::tuple<Address, Address, double, float>;

template <typename T = const float>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

ppo::Layer layer(const LayerOf& of) {
  const auto& [weight, bias, weight_gradient, bias_gradient, in, out] = of;
  return {at(weight), at(bias), at<float>(weight_gradient), at<float>(bias_gradient), in, out};
}

std::vector<ppo::Layer> layers(const std::vector<LayerOf>& all) {
  std::vector<ppo::Layer> found;
  for (const LayerOf& of : all) found.push_back(layer(of));
  return found;
}

ppo::Statistics statistics(const StatisticsOf& of) {
  const auto& [mean, variance, eps, clip] = of;
  return {at<const double>(mean), at<const double>(variance), eps, clip};
}

}  // namespace

// Addresses instead of arrays: handing a tensor over as one takes as long as the work on a small batch. The caller vouches for
// them (headrace/learning/small_network.py).
NB_MODULE(ppo, m) {
  nb::enum_<ppo::Kind>(m, "Kind").value("relu", ppo::Kind::kRelu).value("elu", ppo::Kind::kElu).value("tanh", ppo::Kind::kTanh);

  nb::class_<ppo::Policy>(m, "Policy",
                          "Addresses of a policy's parameters and of their gradients. A layer: weight, bias, the gradients of both, "
                          "inputs, outputs. `choices`: of each discrete part; empty for continuous actions.")
      .def(
          "__init__",
          [](ppo::Policy* self, ppo::Kind kind, const std::vector<LayerOf>& actor, const std::vector<LayerOf>& critic,
             const LayerOf& action, const LayerOf& value, Address log_std, Address log_std_gradient, std::vector<std::int32_t> choices) {
            new (self) ppo::Policy{kind, layers(actor), layers(critic), layer(action), layer(value), at(log_std),
                                   at<float>(log_std_gradient), std::move(choices)};
          },
          "kind"_a, "actor"_a, "critic"_a, "action"_a, "value"_a, "log_std"_a, "log_std_gradient"_a, "choices"_a);

  nb::class_<ppo::Settings>(m, "Settings", "Numbers of the loss; a negative `clip` or `value_clip` means none.")
      .def(
          "__init__",
          [](ppo::Settings* self, float clip, float value_clip, float value_coef, float entropy_coef, bool normalize_advantages,
             bool sum) { new (self) ppo::Settings{clip, value_clip, value_coef, entropy_coef, normalize_advantages, sum}; },
          "clip"_a, "value_clip"_a, "value_coef"_a, "entropy_coef"_a, "normalize_advantages"_a, "sum"_a);

  nb::class_<ppo::Surroundings>(m, "Surroundings",
                                "What lies before and behind the layers when a policy acts: addresses of running means and variances "
                                "(float64; 0: nothing is normalised), and of the bounds of continuous actions [C].")
      .def(
          "__init__",
          [](ppo::Surroundings* self, const StatisticsOf& observations, const StatisticsOf& returns, Address bounded, Address low,
             Address high, Address middle, Address half_range) {
            new (self) ppo::Surroundings{statistics(observations), statistics(returns),
                                         {at<const bool>(bounded), at(low), at(high), at(middle), at(half_range)}};
          },
          "observations"_a, "returns"_a, "bounded"_a, "low"_a, "high"_a, "middle"_a, "half_range"_a);

  m.def(
      "act",
      [](const ppo::Policy& policy, const ppo::Surroundings& around, std::size_t samples, Address observation, Address noise,
         Address choice, Address number, Address log_prob, Address value) {
        nb::gil_scoped_release released;
        ppo::SmallPolicy(scratch).act(policy, around, {samples, at(observation), at(noise)},
                                      {at<std::int32_t>(choice), at<float>(number), at<float>(log_prob), at<float>(value)});
      },
      "policy"_a, "around"_a, "samples"_a, "observation"_a, "noise"_a, "choice"_a, "number"_a, "log_prob"_a, "value"_a,
      "Draws actions from `noise`, uniform numbers for every choice or normal ones for every number, and writes them, their "
      "log-probabilities and the values, [samples, ...] each.");
  m.def(
      "evaluate",
      [](const ppo::Policy& policy, std::size_t samples, std::size_t acted, Address observation, Address choice, Address raw,
         Address log_slope, Address mask, Address log_prob, Address value) {
        const ppo::Minibatch batch{.samples = samples, .observation = at(observation), .choice = at<const std::int32_t>(choice),
                                   .raw = at(raw), .log_slope = at(log_slope), .mask = at<const bool>(mask)};
        nb::gil_scoped_release released;
        ppo::SmallPolicy(scratch).evaluate(policy, batch, acted, at<float>(log_prob), at<float>(value));
      },
      "policy"_a, "samples"_a, "acted"_a, "observation"_a, "choice"_a, "raw"_a, "log_slope"_a, "mask"_a, "log_prob"_a, "value"_a,
      "Writes the values of `samples` rows, and the log-probabilities of the actions of the first `acted` of them.");
  m.def(
      "gradient",
      [](const ppo::Policy& policy, const ppo::Settings& settings, std::size_t samples, Address observation, Address choice,
         Address raw, Address log_slope, Address behaviour_log_prob, Address advantage, Address target, Address behaviour_value,
         Address mask, Address log_prob, Address value) {
        const ppo::Minibatch batch{samples, at(observation), at<const std::int32_t>(choice), at(raw), at(log_slope),
                                   at(behaviour_log_prob), at(advantage), at(target), at(behaviour_value), at<const bool>(mask)};
        nb::gil_scoped_release released;
        const ppo::Losses losses = ppo::SmallPolicy(scratch).gradient(policy, batch, settings, at<float>(log_prob), at<float>(value));
        return std::tuple(losses.policy, losses.value, losses.entropy);
      },
      "policy"_a, "settings"_a, "samples"_a, "observation"_a, "choice"_a, "raw"_a, "log_slope"_a, "behaviour_log_prob"_a,
      "advantage"_a, "target"_a, "behaviour_value"_a, "mask"_a, "log_prob"_a, "value"_a,
      "Writes the gradient of a minibatch of `samples` rows without gaps, and log_prob and value [samples]. Returns the policy loss, "
      "the value loss and the entropy.");
}

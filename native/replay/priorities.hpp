// First priorities: |n-step TD error| of new rows, from the action values that acting computed (Ape-X, Horgan et al. 2018,
// appendix D). No network runs here.
#pragma once

#include <optional>
#include <vector>

#include "replay/returns.hpp"

namespace headrace::replay {

struct Step {
  Row row;           // reward, discount and flags; age and priority are not used
  float q = 0.0f;    // value of the action taken
  float value = 0.0f;  // value of the best action; of a row without an action: what is bootstrapped from
};

// The rows of one history whose error is not known yet.
//
// The error of row t is |R + g v(S_{t+n}) - q(S_t, A_t)|, with R the discounted sum of the next n rewards and g the product
// of their discounts, both cut short at an episode's end. Rescaled: q and v are h(x), and so is the error.
class NStepErrors {
 public:
  NStepErrors(std::uint64_t n_step, bool rescaled) : n_step_(n_step), rescaled_(rescaled) {}

  // Take further rows; append the errors that are now known to `errors`, oldest row first; -1 for rows without an action.
  void push(const std::vector<Step>& steps, std::vector<float>& errors) {
    waiting.insert(waiting.end(), steps.begin(), steps.end());
    std::size_t known = 0;
    for (; known < waiting.size(); ++known) {
      std::optional<double> found = error(known);
      if (!found) break;
      errors.push_back(static_cast<float>(*found));
    }
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(known));
  }

  std::vector<Step> waiting;  // oldest first

 private:
  std::optional<double> error(std::size_t at) const {
    if (waiting[at].row.age_flags & kFinal) return -1.0;
    NStepReturn r = n_step_return(std::min<std::uint64_t>(n_step_, waiting.size() - at),
                                  [&](std::uint64_t k) { return waiting[at + k].row; });
    if (!r.ended && r.steps < n_step_) return std::nullopt;
    std::size_t after = at + r.steps;
    double bootstrap = 0.0;
    // After termination there is nothing to bootstrap from; after a time limit there is the true last observation.
    if (!r.ended || waiting[after - 1].row.discount != 0.0f) {
      if (after == waiting.size() || (r.ended && !(waiting[after].row.age_flags & kFinal))) return std::nullopt;
      bootstrap = waiting[after].value;
    }
    double target = r.reward + r.discount * (rescaled_ ? unscale(bootstrap) : bootstrap);
    return std::abs((rescaled_ ? rescale(target) : target) - static_cast<double>(waiting[at].q));
  }

  std::uint64_t n_step_;
  bool rescaled_;
};

}  // namespace headrace::replay

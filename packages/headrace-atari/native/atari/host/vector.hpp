// Many environments stepped by a pool of threads.
//
// One thread at a time sends and receives; the pool steps, or, where there is none or the caller waits anyway, the thread that
// receives. If a batch holds
// the results of all environments, environment i has row i; smaller batches are filled in the order in which environments
// finish.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "atari/host/archive.hpp"
#include "atari/host/batch.hpp"
#include "atari/host/environment.hpp"

namespace headrace::atari {

class Vector {
 public:
  // One environment per entry of `games`; as many `seeds`. Thread i of the pool is bound to the processor first_cpu + i of those
  // that this process may use, counted in a circle, or to none if first_cpu is negative. Without threads `recv` steps. Throws
  // std::invalid_argument if the observations would differ in size or be larger than the screen.
  Vector(const std::vector<std::shared_ptr<Game>>& games, const StepOptions& options,
         const std::vector<uint32_t>& seeds, int batch_size, int num_threads, int first_cpu)
      : options_(options), batch_size_(batch_size), bound_(first_cpu >= 0), jobs_(games.size()) {
    std::unordered_map<const Game*, std::shared_ptr<const EnvironmentKind>> kinds;
    for (size_t i = 0; i < games.size(); ++i) {
      auto& kind = kinds[games[i].get()];
      if (!kind) kind = std::make_shared<const EnvironmentKind>(games[i], options);
      if (i == 0) {
        observation_bytes_ = kind->observation_bytes();
        scratch_.emplace(kind->observer());
      }
      if (kind->observation_bytes() != observation_bytes_)
        throw std::invalid_argument("the screens of these games differ in height, so they have to be resized");
      environments_.push_back(std::make_unique<HostEnvironment>(kind, seeds[i], *scratch_));
    }
    pool_ = std::make_shared<BatchPool>(batch_size, observation_bytes_, options.same_step_autoreset);
    for (int i = 0; i < num_threads; ++i) {
      threads_.emplace_back([this, scratch = *scratch_]() mutable { work(scratch); });
      if (first_cpu >= 0) bind(threads_.back(), static_cast<size_t>(first_cpu) + i);
    }
  }

  Vector(const Vector&) = delete;
  Vector& operator=(const Vector&) = delete;

  ~Vector() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int num_envs() const { return static_cast<int>(environments_.size()); }
  int batch_size() const { return batch_size_; }
  size_t observation_bytes() const { return observation_bytes_; }
  int num_actions(int env) const { return environments_[env]->num_actions(); }
  const StepOptions& options() const { return options_; }

  // Starts a step of the environments whose results were received last. `targets`: where the observation of each
  // environment goes, which must stay valid until the result was received; empty for none. Whole batches have no observations
  // then, smaller ones have them too. Throws std::invalid_argument for an action outside its
  // environment's set, and std::logic_error if nothing was received; then nothing was started. `waits`: `recv` follows at once, and
  // its thread steps in the place of one of the pool's, which then need not be woken.
  void send(const int64_t* actions, const float* strengths, const std::vector<uint8_t*>& targets, bool waits) {
    if (received_.empty())
      throw std::logic_error("call reset before the first step; with send and recv, each send follows a reset or a recv");
    std::vector<Job> jobs;
    for (size_t i = 0; i < received_.size(); ++i) {
      const int env = received_[i];
      if (actions[i] < 0 || actions[i] >= num_actions(env))
        throw std::invalid_argument("action " + std::to_string(actions[i]) + " of environment " + std::to_string(env) +
                                    " is not in 0.." + std::to_string(num_actions(env) - 1));
      jobs.push_back({env, static_cast<int>(actions[i]), strengths[i], kStep, targets.empty() ? nullptr : targets[env]});
    }
    start(jobs, targets, waits && whole() && !bound_);
  }

  // Starts a reset of some environments, after steps that were started have ended; their results are dropped. With a negative
  // seed the generators go on as they are. In a batch of all environments the others have their present observations and counts.
  // `targets`: see send.
  void send_reset(const std::vector<int>& envs, const std::vector<int64_t>& seeds,
                  const std::vector<uint8_t*>& targets) {
    drain();
    std::vector<Job> jobs;
    for (size_t i = 0; i < envs.size(); ++i)
      jobs.push_back({envs[i], 0, 0.0f, seeds[i], targets.empty() ? nullptr : targets[envs[i]]});
    start(jobs, targets, false);
  }

  // The next batch of results, or null if it is not complete after `patience`. Throws what a step threw, and std::logic_error
  // if fewer steps than a batch were started.
  std::shared_ptr<Batch> recv(std::chrono::milliseconds patience) {
    if (outstanding_ < batch_size_) throw std::logic_error("recv follows a send: less than a batch is under way");
    const auto deadline = std::chrono::steady_clock::now() + patience;
    std::unique_lock lock(mutex_);
    const bool steps = threads_.empty() || stepping_;
    while (steps && complete_.empty() && head_ != tail_ && std::chrono::steady_clock::now() < deadline) step_next(lock, *scratch_);
    if (!batch_ready_.wait_until(lock, deadline, [this] { return !complete_.empty(); })) return nullptr;
    std::shared_ptr<Batch> batch = std::move(complete_.front());
    complete_.pop_front();
    outstanding_ -= batch_size_;
    const int32_t* const envs = batch->numbers.data() + batch->size;
    received_.assign(envs, envs + batch->size);
    if (batch->error) std::rethrow_exception(batch->error);
    return batch;
  }

  // The newest screen of one environment, rows x 160 TIA colours, and its game.
  const uint8_t* screen(int env) {
    idle_or_throw();
    return environments_[env]->screen();
  }
  const Game& game(int env) const { return environments_[env]->game(); }

  // The state of one environment, for a load into one of the same game with the same options.
  std::vector<uint8_t> save(int env) {
    idle_or_throw();
    Writer writer;
    environments_[env]->archive(writer);
    return std::move(writer.out);
  }

  // Throws std::invalid_argument if the state has another size than this environment's.
  void load(int env, std::span<const uint8_t> state) {
    if (save(env).size() != state.size())
      throw std::invalid_argument("the state was saved with other options or by another version");
    Reader reader(state);
    environments_[env]->archive(reader);
  }

 private:
  static constexpr int64_t kStep = INT64_MIN;  // in place of a seed

  struct Job {
    int env, action;
    float strength;
    int64_t seed;
    uint8_t* target;
  };

  static void bind(std::thread& thread, size_t position) {
#if defined(__linux__)
    cpu_set_t allowed, chosen;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    size_t skip = position % static_cast<size_t>(CPU_COUNT(&allowed));
    CPU_ZERO(&chosen);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed) && skip-- == 0) CPU_SET(cpu, &chosen);
    pthread_setaffinity_np(thread.native_handle(), sizeof chosen, &chosen);
#else
    static_cast<void>(thread), static_cast<void>(position);
#endif
  }

  // Whether a batch holds the results of all environments.
  bool whole() const { return batch_size_ == num_envs(); }

  void idle_or_throw() const {
    if (outstanding_ > 0) throw std::logic_error("results are under way: recv comes first");
  }

  void drain() {
    std::unique_lock lock(mutex_);
    // Of a step that Ctrl-C ended, nobody else may do what is left.
    while ((threads_.empty() || stepping_) && head_ != tail_) step_next(lock, *scratch_);
    batch_ready_.wait(lock, [this] { return unfinished_ == 0; });
    complete_.clear();
    filling_.reset();
    outstanding_ = 0;
  }

  void start(const std::vector<Job>& jobs, const std::vector<uint8_t*>& targets, bool stepping) {
    if (whole()) {
      idle_or_throw();
      filling_ = pool_->take();
      outstanding_ = num_envs();
      if (jobs.size() < environments_.size()) show_others(jobs, targets);
      if (jobs.empty()) complete_.push_back(std::move(filling_));
    } else {
      outstanding_ += static_cast<int>(jobs.size());
    }
    received_.clear();
    {
      const std::lock_guard lock(mutex_);
      for (const Job& job : jobs) jobs_[tail_++ % jobs_.size()] = job;
      unfinished_ += jobs.size();
    }
    stepping_ = stepping;
    if (!stepping) return work_ready_.notify_all();
    for (size_t i = 1; i < std::min(threads_.size(), jobs.size()); ++i) work_ready_.notify_one();
  }

  // Writes the rows of the environments that have no job.
  void show_others(const std::vector<Job>& jobs, const std::vector<uint8_t*>& targets) {
    std::vector<bool> busy(environments_.size());
    for (const Job& job : jobs) busy[job.env] = true;
    for (int env = 0; env < num_envs(); ++env)
      if (!busy[env]) write_row(*filling_, env, env, environments_[env]->counters(), targets.empty() ? nullptr : targets[env]);
    filling_->missing = static_cast<int>(jobs.size());
  }

  void work(ScratchMemory& scratch) {
    std::unique_lock lock(mutex_);
    while (true) {
      work_ready_.wait(lock, [this] { return stopping_ || head_ != tail_; });
      if (stopping_) return;
      step_next(lock, scratch);
    }
  }

  // Takes the next job and does it; the mutex is free meanwhile.
  void step_next(std::unique_lock<std::mutex>& lock, ScratchMemory& scratch) {
    const Job job = jobs_[head_++ % jobs_.size()];
    lock.unlock();
    StepResult result;
    std::exception_ptr error;
    try {
      HostEnvironment& environment = *environments_[job.env];
      result = job.seed == kStep ? environment.step(job.action, job.strength, scratch)
                                 : environment.reset(job.seed, scratch);
    } catch (...) {  // handed to the thread that receives
      error = std::current_exception();
    }
    finish(job, result, error);
    lock.lock();
  }

  void finish(const Job& job, const StepResult& result, const std::exception_ptr& error) {
    int row = job.env;
    std::shared_ptr<Batch> batch;
    {
      const std::lock_guard lock(mutex_);
      if (!whole()) {
        if (!filling_) {
          filling_ = pool_->take();
          next_row_ = 0;
        }
        row = next_row_++;
      }
      batch = filling_;
      if (error) batch->error = error;
      if (!whole() && next_row_ == batch_size_) filling_.reset();
    }
    write_row(*batch, row, job.env, result, job.target);
    const std::lock_guard lock(mutex_);
    if (--batch->missing == 0) complete_.push_back(std::move(batch));
    --unfinished_;
    if (!complete_.empty() || unfinished_ == 0) batch_ready_.notify_one();
  }

  void write_row(Batch& batch, int row, int env, const StepResult& result, uint8_t* target) const {
    const HostEnvironment& environment = *environments_[env];
    if (target != nullptr) environment.write_observation(target);
    if (target == nullptr || !whole()) environment.write_observation(batch.observations.data() + row * observation_bytes_);
    if (result.has_final) {
      std::copy_n(environment.final_observation().data(), observation_bytes_,
                  batch.finals.data() + row * observation_bytes_);
      batch.any_final = true;
    }
    const int32_t numbers[] = {result.reward, env, result.lives, result.frame_number, result.episode_frame_number};
    for (size_t i = 0; i < std::size(numbers); ++i) batch.numbers[i * batch.size + row] = numbers[i];
    batch.ends[row] = result.terminated;
    batch.ends[batch.size + row] = result.truncated;
  }

  const StepOptions options_;
  const int batch_size_;
  const bool bound_;  // the pool's threads, to processors
  size_t observation_bytes_ = 0;
  std::vector<std::unique_ptr<HostEnvironment>> environments_;
  std::shared_ptr<BatchPool> pool_;

  // Of the thread that sends and receives.
  std::vector<int32_t> received_;  // environments that wait for an action
  int outstanding_ = 0;            // results not received yet
  std::optional<ScratchMemory> scratch_;  // to step with
  bool stepping_ = false;                 // in the place of one of the pool's threads

  std::mutex mutex_;  // guards the rest
  std::condition_variable work_ready_, batch_ready_;
  std::vector<Job> jobs_;  // ring of [head_, tail_)
  size_t head_ = 0, tail_ = 0;
  size_t unfinished_ = 0;
  std::shared_ptr<Batch> filling_;  // gets the next results
  int next_row_ = 0;
  std::deque<std::shared_ptr<Batch>> complete_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace headrace::atari

// Sleeping on a 32-bit word in shared memory (futex(2)), made safe against waiters and wakers that are killed.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <system_error>

namespace headrace::ipc {

static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

using Clock = std::chrono::steady_clock;

// A point in time to give up at; `never()` waits for ever, `after(0)` does not wait.
class Deadline {
 public:
  static Deadline never() { return Deadline(Clock::time_point::max()); }
  static Deadline after(double seconds) {
    if (seconds > 1e9) return never();
    return Deadline(Clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(std::max(seconds, 0.0) * 1e9)));
  }
  static Deadline earlier(Deadline a, Deadline b) { return Deadline(std::min(a.at_, b.at_)); }

  bool passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }
  std::chrono::nanoseconds remaining() const {
    if (at_ == Clock::time_point::max()) return std::chrono::nanoseconds::max();
    return std::max(std::chrono::nanoseconds(at_ - Clock::now()), std::chrono::nanoseconds(0));
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

// The longest sleep between two looks at the condition. It bounds what a waker loses that is killed after it made the
// condition true and before it woke anybody, and how late a signal that another thread received is noticed.
constexpr std::chrono::nanoseconds kLongestSleep = std::chrono::milliseconds(100);

// A word that says "something changed": generation << 1 | (somebody may sleep).
//
// Waiter:   ticket = prepare();  look at the condition again;  sleep(ticket).
// Notifier: make the condition true (seq_cst);  notify(n).
//
// Either the waiter's second look sees the condition, or the notifier sees the flag that prepare() set and changes the
// word, which ends sleep(ticket) or keeps it from starting. Without sleepers notify() is one load. prepare() changes the
// word, so that a notifier which found nobody asleep cannot clear the flag of a waiter that came since. No state is left
// behind by a killed waiter but a flag, which the next notify() clears; a killed notifier costs kLongestSleep.
class Signal {
 public:
  uint32_t prepare() {
    uint32_t word = word_.load();
    uint32_t next;
    do next = (word + 2) | 1;
    while (!word_.compare_exchange_weak(word, next));
    return next;
  }

  // Returns true where a signal handler ran in this thread meanwhile.
  bool sleep(uint32_t ticket, std::chrono::nanoseconds longest) {
    const timespec timeout{static_cast<time_t>(longest.count() / 1'000'000'000),
                           static_cast<long>(longest.count() % 1'000'000'000)};
    if (syscall(SYS_futex, &word_, FUTEX_WAIT, ticket, &timeout, nullptr, 0) == 0) return false;
    if (errno == EINTR) return true;
    if (errno == EAGAIN || errno == ETIMEDOUT) return false;
    throw std::system_error(errno, std::generic_category(), "futex wait");
  }

  bool watched() const { return word_.load() & 1; }

  // Wakes at most `sleepers` waiters.
  void notify(int sleepers = INT_MAX) {
    uint32_t word = word_.load();
    while (word & 1) {
      const uint32_t next = word + 2;
      if (!word_.compare_exchange_weak(word, next)) continue;
      const long woken = syscall(SYS_futex, &word_, FUTEX_WAKE, sleepers, nullptr, nullptr, 0);
      uint32_t seen = next;
      if (woken < sleepers) word_.compare_exchange_strong(seen, next & ~1u);
      return;
    }
  }

 private:
  std::atomic<uint32_t> word_;
};

// Sleeps until ready() or the deadline; returns the last ready(). `interrupted` is called after every sleep that a
// signal or kLongestSleep ended, and may throw.
template <class Ready, class Interrupted>
bool wait_until(Signal& signal, Ready ready, Deadline deadline, Interrupted interrupted) {
  for (;;) {
    if (ready()) return true;
    if (deadline.passed()) return false;
    const uint32_t ticket = signal.prepare();
    if (ready()) return true;
    const auto remaining = deadline.remaining();
    const bool by_signal = signal.sleep(ticket, std::min(remaining, kLongestSleep));
    if (by_signal || remaining > kLongestSleep) interrupted();
  }
}

}  // namespace headrace::ipc

// Queue, VersionedBuffer and Slots under many threads, to be run with the thread sanitizer. Prints "ok" or aborts.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "ipc/versioned_buffer.h"
#include "ipc/queue.h"
#include "ipc/slots.h"

using namespace headrace::ipc;

namespace {

constexpr int kProducers = 3, kConsumers = 3, kEach = 20'000;
const auto nothing = [] {};

void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

template <class T>
std::shared_ptr<T> make(uint32_t size) {
  const size_t bytes = (T::bytes(size) + 63) / 64 * 64;
  void* memory = std::aligned_alloc(64, bytes);
  std::memset(memory, 0, bytes);
  T* object = static_cast<T*>(memory);
  object->init(size);
  return std::shared_ptr<T>(object, [](T* p) { std::free(p); });
}

void stress_queue(uint32_t capacity) {
  auto queue = make<Queue>(capacity);
  // Plain memory handed over with the value: the sanitizer sees whether put() happens before get().
  std::vector<int> payload(kProducers * kEach), got(kProducers * kEach);
  std::vector<std::thread> producers, consumers;
  for (int p = 0; p < kProducers; ++p)
    producers.emplace_back([&, p] {
      for (int k = 0; k < kEach; k += 2) {
        const int32_t values[2] = {p * kEach + k, p * kEach + k + 1};
        for (int32_t value : values) payload[value] = value;
        check(queue->put(values, 2, Deadline::never(), nothing) == 2, "put");
      }
    });
  for (int c = 0; c < kConsumers; ++c)
    consumers.emplace_back([&, c] {
      std::array<int32_t, 4> out;
      std::array<int, kProducers> last;
      last.fill(-1);
      while (const size_t n = queue->get(out.data(), 1 + c, c, Deadline::never(), c == 2 ? 1e-4 : 0, nothing))
        for (size_t i = 0; i < n; ++i) {
          check(payload[out[i]] == out[i], "payload");
          check(out[i] > last[out[i] / kEach], "order");
          last[out[i] / kEach] = out[i];
          ++got[out[i]];
        }
    });
  for (auto& thread : producers) thread.join();
  queue->close();
  for (auto& thread : consumers) thread.join();
  for (int count : got) check(count == 1, "lost or doubled");
}

void stress_versioned_buffer() {
  auto buffer = make<VersionedBuffer>(999);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    std::vector<std::byte> bytes(999);
    for (uint64_t version = 1; version <= 3000; ++version) {
      std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(version % 251));
      buffer->publish(bytes.data(), version);
    }
    stop = true;
  });
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r)
    readers.emplace_back([&] {
      std::vector<std::byte> bytes(999);
      uint64_t before = 0;
      while (!stop) {
        const uint64_t version = buffer->read(bytes.data());
        check(version >= before, "versions go back");
        before = version;
        for (std::byte byte : bytes) check(byte == static_cast<std::byte>(version % 251), "half an update");
      }
    });
  writer.join();
  for (auto& thread : readers) thread.join();
}

void stress_slots() {
  constexpr uint32_t n = 4, learner = 99;
  constexpr int trajectories = 5000;
  auto slots = make<Slots>(n);
  auto queue = make<Queue>(16);
  std::vector<int> data(n);
  std::vector<std::thread> workers;
  for (uint32_t me = 1; me <= 3; ++me)
    workers.emplace_back([&, me] {
      for (int k = 0; k < trajectories; ++k) {
        int32_t slot;
        slots->acquire(me, &slot, 1, Deadline::never(), nothing);
        data[slot] = static_cast<int>(me) * trajectories + k;
        const int32_t ticket = slots->ticket(slot);
        queue->put(&ticket, 1, Deadline::never(), nothing);
      }
    });
  long long sum = 0;
  for (int k = 0; k < 3 * trajectories; ++k) {
    int32_t ticket;
    check(queue->get(&ticket, 1, 1, Deadline::never(), 0, nothing) == 1, "get");
    check(slots->transfer(ticket, learner), "transfer");
    sum += data[Slots::slot_of(ticket)];
    check(slots->release(Slots::slot_of(ticket), learner), "release");
  }
  for (auto& thread : workers) thread.join();
  long long expected = 0;
  for (int i = trajectories; i < 4 * trajectories; ++i) expected += i;
  check(sum == expected, "a trajectory was overwritten");
  check(slots->owned(0) == n, "a slot was lost");
}

}  // namespace

int main() {
  for (uint32_t capacity : {1u, 4u, 64u}) stress_queue(capacity);
  stress_versioned_buffer();
  stress_slots();
  std::puts("ok");
}

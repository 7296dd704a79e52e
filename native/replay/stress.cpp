// A program of its own, for the thread sanitizer: writers, readers and evictions at once, every sample checked.
// Built and run by tests/experience/test_replay_processes.py.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "replay/assemble.hpp"
#include "replay/writer.hpp"

using namespace headrace::replay;

namespace {

constexpr std::uint64_t kHistories = 4, kRows = 256, kFrame = 64, kAppends = 40'000;

std::uint8_t stamp(std::uint64_t history, std::uint64_t time) { return static_cast<std::uint8_t>(history * 101 + time * 7); }

void write(Memory& memory, const Codec& codec, std::uint64_t history) {
  HistoryWriter writer(memory, codec);
  std::uint64_t time = writer.open(history);
  std::vector<std::byte> frames(16 * kFrame);
  std::vector<float> priorities(16, 1.0f);
  for (std::uint64_t i = 0; i < kAppends; ++i) {
    std::uint64_t count = 1 + i % 16;
    for (std::uint64_t row = 0; row < count; ++row)
      std::fill_n(frames.data() + row * kFrame, kFrame, std::byte{stamp(history, time + row)});
    writer.append(history, std::vector<Row>(count), [&](std::size_t, std::size_t i) { return frames.data() + i * kFrame; });
    time += count;
    std::uint64_t ready = memory.histories[history].ready.load();
    while (ready + 3 < time) {
      std::uint64_t part = std::min<std::uint64_t>(16, time - 3 - ready);
      writer.ready(history, part, priorities.data());
      ready += part;
    }
  }
}

void read(Memory& memory, const Codec& codec, const std::atomic<bool>& stop, std::uint64_t& checked) {
  Sampler sampler(memory);
  Assembler assembler(memory, codec);
  constexpr std::size_t kBatch = 32;
  std::vector<std::uint64_t> keys(kBatch);
  std::vector<double> probabilities(kBatch);
  std::vector<std::uint8_t> intact(kBatch);
  std::vector<std::byte> first(kBatch * 4 * kFrame), next(kBatch * 4 * kFrame);
  std::vector<float> priorities(kBatch, 2.0f);
  while (!stop) {
    if (!sampler.draw(kBatch, true, 1, keys.data(), probabilities.data())) continue;
    Batch batch{{first.data()}, {next.data()}};
    assembler.transitions(kBatch, keys.data(), batch, intact.data(), 2);
    auto newest = [&](const std::vector<std::byte>& stacks, std::size_t i, std::uint64_t b) {
      return stacks[(i * 4 + 3) * kFrame + b];
    };
    for (std::size_t i = 0; i < kBatch; ++i) {
      if (!intact[i]) continue;
      ++checked;
      std::uint64_t history = Sampler::history_of(keys[i]), time = Sampler::time_of(keys[i]);
      for (std::uint64_t b = 0; b < kFrame; ++b) {
        std::byte expected{stamp(history, time)}, expected_next{stamp(history, time + 3)};
        if (newest(first, i, b) == expected && newest(next, i, b) == expected_next) continue;
        std::fprintf(stderr, "history %lu, time %lu: not the frame that was written\n", history, time);
        std::abort();
      }
    }
    sampler.update(kBatch, keys.data(), priorities.data());
    sampler.evict(kHistories * kRows / 2);
  }
}

}  // namespace

int main() {
  Config config;
  config.histories = kHistories;
  config.rows = kRows;
  config.n_step = 3;
  config.field_count = 1;
  config.fields[0] = {kFrame, 4, 0};
  int descriptor = memfd_create("stress", 0);
  if (ftruncate(descriptor, static_cast<off_t>(Memory::bytes_needed(config))) != 0) return 1;
  Memory memory(descriptor, &config);
  Codec codec;
  std::atomic<bool> stop{false};
  std::uint64_t checked[2] = {};
  {
    std::vector<std::jthread> readers, writers;
    for (std::uint64_t& count : checked)
      readers.emplace_back([&] { read(memory, codec, stop, count); });
    for (std::uint64_t history = 0; history < kHistories; ++history)
      writers.emplace_back([&, history] { write(memory, codec, history); });
    for (std::jthread& writer : writers) writer.join();
    stop = true;
  }
  close(descriptor);
  std::printf("%lu samples checked\n", checked[0] + checked[1]);
  return checked[0] + checked[1] > 1000 ? 0 : 1;
}

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

constexpr std::uint64_t kLanes = 4, kRows = 256, kFrame = 64, kAppends = 4000;

std::uint8_t stamp(std::uint64_t lane, std::uint64_t time) { return static_cast<std::uint8_t>(lane * 101 + time * 7); }

void write(Memory& memory, const Codec& codec, std::uint64_t lane) {
  Writer writer(memory, codec);
  std::uint64_t time = writer.open(lane);
  std::vector<std::byte> frames(16 * kFrame);
  std::vector<float> zeros(16, 0.0f), priorities(16, 1.0f);
  std::vector<std::uint8_t> flags(16, 0);
  for (std::uint64_t i = 0; i < kAppends; ++i) {
    std::uint64_t count = 1 + i % 16;
    for (std::uint64_t row = 0; row < count; ++row)
      std::fill_n(frames.data() + row * kFrame, kFrame, std::byte{stamp(lane, time + row)});
    writer.append(lane, count, {frames.data()}, zeros.data(), zeros.data(), flags.data());
    time += count;
    std::uint64_t ready = memory.lanes[lane].ready.load();
    while (ready + 3 < time) {
      std::uint64_t part = std::min<std::uint64_t>(16, time - 3 - ready);
      writer.ready(lane, part, priorities.data());
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
  bool interleaved = false;
  while (!stop) {
    if (!sampler.draw(kBatch, true, 1, keys.data(), probabilities.data())) continue;
    interleaved = !interleaved;
    assembler.transitions(kBatch, keys.data(), {{first.data()}, {next.data()}, nullptr, nullptr, {interleaved}}, intact.data(), 2);
    auto newest = [&](const std::vector<std::byte>& stacks, std::size_t i, std::uint64_t b) {
      return stacks[i * 4 * kFrame + (interleaved ? 4 * b + 3 : 3 * kFrame + b)];
    };
    for (std::size_t i = 0; i < kBatch; ++i) {
      if (!intact[i]) continue;
      ++checked;
      std::uint64_t lane = Sampler::lane_of(keys[i]), time = Sampler::time_of(keys[i]);
      for (std::uint64_t b = 0; b < kFrame; ++b) {
        if (newest(first, i, b) == std::byte{stamp(lane, time)} && newest(next, i, b) == std::byte{stamp(lane, time + 3)}) continue;
        std::fprintf(stderr, "lane %lu, time %lu: not the frame that was written\n", lane, time);
        std::abort();
      }
    }
    sampler.update(kBatch, keys.data(), priorities.data());
    sampler.evict(kLanes * kRows / 2);
  }
}

}  // namespace

int main() {
  Config config;
  config.lanes = kLanes;
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
    for (std::uint64_t lane = 0; lane < kLanes; ++lane) writers.emplace_back([&, lane] { write(memory, codec, lane); });
    for (std::jthread& writer : writers) writer.join();
    stop = true;
  }
  close(descriptor);
  std::printf("%lu samples checked\n", checked[0] + checked[1]);
  return checked[0] + checked[1] > 1000 ? 0 : 1;
}

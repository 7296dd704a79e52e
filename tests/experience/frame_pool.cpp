// Sequences of which some are overwritten, copied into a pool with room for the frames of whole ones: test_replay_processes.py.
#include <sys/mman.h>

#include <cstdio>
#include <unistd.h>

#include "replay/assemble.hpp"
#include "replay/writer.hpp"

using namespace headrace::replay;

int main() {
  constexpr std::uint64_t kRows = 64, kFrame = 16, kLength = 8, kWritten = 200;
  Config config;
  config.histories = 1;
  config.rows = kRows;
  config.n_step = 1;
  config.field_count = 1;
  config.fields[0] = {kFrame, 1, 0};
  int descriptor = memfd_create("frame_pool", 0);
  if (ftruncate(descriptor, static_cast<off_t>(Memory::bytes_needed(config))) != 0) return 1;
  Memory memory(descriptor, &config);
  Codec codec;
  HistoryWriter writer(memory, codec);
  std::vector<std::byte> frames(kLength * kFrame);
  for (std::uint64_t time = writer.open(0); time < kWritten; time += kLength) {
    for (std::uint64_t row = 0; row < kLength; ++row)
      std::fill_n(frames.data() + row * kFrame, kFrame, static_cast<std::byte>(time + row));
    writer.append(0, std::vector<Row>(kLength), [&](std::size_t, std::size_t i) { return frames.data() + i * kFrame; });
  }
  std::uint64_t low = memory.histories[0].low.load();
  // Two whole sequences with three that were overwritten before and between them.
  std::vector<std::uint64_t> keys{low - 40, low, low - 24, low - 8, low + 16};
  std::vector<std::uint8_t> intact(keys.size());
  std::vector<std::int32_t> numbers(keys.size() * kLength);
  std::vector<std::byte> room((1 + 2 * kLength + 3 * kLength) * kFrame);
  FramePool pool(config, {room.data()});
  Windows windows{kLength, true, {reinterpret_cast<std::byte*>(numbers.data())}, nullptr, nullptr, nullptr, &pool};
  Assembler(memory, codec).windows(keys.size(), keys.data(), windows, intact.data(), 1);
  bool right = intact == std::vector<std::uint8_t>{0, 1, 0, 0, 1};
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (std::uint64_t j = 0; intact[i] && j < kLength; ++j)
      right &= room[static_cast<std::size_t>(numbers[i * kLength + j]) * kFrame] == static_cast<std::byte>(keys[i] + j);
  std::printf("%lu frames, %s\n", static_cast<unsigned long>(pool.counts[0]), right ? "right" : "wrong");
  close(descriptor);
}

// Saved states: a plain sequence of bytes. headrace_atari/vector.py adds a header and a checksum.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace headrace::atari {

// Writer and Reader have the same calls, so an object has one function `archive(Archive&)` for both, which calls the archive with
// each of its parts in turn.
class Writer {
 public:
  template <class T>
  void operator()(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(&value, sizeof value);
  }

  void bytes(const void* data, size_t size) {
    const auto* begin = static_cast<const uint8_t*>(data);
    out.insert(out.end(), begin, begin + size);
  }

  std::vector<uint8_t> out;
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> in) : in_(in) {}

  template <class T>
  void operator()(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(&value, sizeof value);
  }

  // Throws std::runtime_error if the state is too short.
  void bytes(void* data, size_t size) {
    if (size > in_.size()) throw std::runtime_error("the saved state ends too early");
    std::memcpy(data, in_.data(), size);
    in_ = in_.subspan(size);
  }

  bool at_end() const { return in_.empty(); }

 private:
  std::span<const uint8_t> in_;
};

}  // namespace headrace::atari

// LZ4 and Zstandard block compression from the libraries that the machine already has.
//
// The libraries are opened at run time: a build then needs no development package, and a file that the Python wheel
// `lz4` ships serves as well as the system's library (the wheel exports LZ4's functions).
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace headrace::replay {

enum class CodecKind : std::uint32_t { none = 0, lz4 = 1, zstd = 2 };

// A Zstandard context is costly to make and not to be shared between threads: each thread keeps one.
struct ContextHolder {
  void* context = nullptr;
  std::size_t (*free)(void*) = nullptr;
  ~ContextHolder() {
    if (context) free(context);
  }
};

class Codec {
 public:
  Codec() = default;
  // `paths`: libraries to try, in order. `level`: LZ4's acceleration (1 is the default, more is faster), Zstandard's
  // level (negative is faster). Throws std::runtime_error if none of the libraries can be opened.
  Codec(CodecKind kind, int level, const std::vector<std::string>& paths) : kind_(kind), level_(level) {
    if (kind == CodecKind::none) return;
    void* library = nullptr;
    std::string tried;
    for (const std::string& path : paths) {
      library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library) break;
      tried += " " + path;
    }
    if (!library) throw std::runtime_error("no library for the replay codec; tried:" + tried);
    if (kind == CodecKind::lz4) {
      load(library, "LZ4_compressBound", lz4_bound_);
      load(library, "LZ4_compress_fast", lz4_compress_);
      load(library, "LZ4_decompress_safe_partial", lz4_decompress_);
    } else {
      load(library, "ZSTD_compressBound", zstd_bound_);
      load(library, "ZSTD_createCCtx", zstd_create_c_);
      load(library, "ZSTD_createDCtx", zstd_create_d_);
      load(library, "ZSTD_freeCCtx", zstd_free_c_);
      load(library, "ZSTD_freeDCtx", zstd_free_d_);
      load(library, "ZSTD_compressCCtx", zstd_compress_);
      load(library, "ZSTD_decompressDCtx", zstd_decompress_);
      load(library, "ZSTD_isError", zstd_is_error_);
    }
  }

  std::size_t bound(std::size_t bytes) const {
    if (kind_ == CodecKind::lz4) return static_cast<std::size_t>(lz4_bound_(static_cast<int>(bytes)));
    if (kind_ == CodecKind::zstd) return zstd_bound_(bytes);
    return bytes;
  }

  std::size_t compress(const void* source, std::size_t bytes, void* target, std::size_t room) const {
    std::size_t size = 0;
    if (kind_ == CodecKind::lz4) {
      size = static_cast<std::size_t>(lz4_compress_(static_cast<const char*>(source), static_cast<char*>(target),
                                                    static_cast<int>(bytes), static_cast<int>(room), level_));
    } else {
      Context context(zstd_create_c_, zstd_free_c_, compressor_);
      size = zstd_compress_(context.get(), target, room, source, bytes, level_);
      if (zstd_is_error_(size)) size = 0;
    }
    if (size == 0) throw std::runtime_error("the replay codec failed to compress a block");
    return size;
  }

  // Decode the first `wanted` of the block's `full` bytes. `target` has room for `full`. False if the data are not a
  // whole block, which happens when they were overwritten while they were read.
  bool decompress(const void* source, std::size_t bytes, void* target, std::size_t full, std::size_t wanted) const {
    if (kind_ == CodecKind::lz4) {
      int size = lz4_decompress_(static_cast<const char*>(source), static_cast<char*>(target), static_cast<int>(bytes),
                                 static_cast<int>(wanted), static_cast<int>(full));
      return size >= 0 && static_cast<std::size_t>(size) >= wanted;
    }
    Context context(zstd_create_d_, zstd_free_d_, decompressor_);
    return zstd_decompress_(context.get(), target, full, source, bytes) == full;
  }

 private:
  class Context {
   public:
    Context(void* (*create)(), std::size_t (*free)(void*), ContextHolder& holder) : holder_(holder) {
      if (holder.context) return;
      holder.context = create();
      holder.free = free;
    }
    void* get() const { return holder_.context; }

   private:
    ContextHolder& holder_;
  };

  template <typename Function>
  static void load(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) throw std::runtime_error(std::string("the replay codec's library lacks ") + name);
  }

  static inline thread_local ContextHolder compressor_, decompressor_;

  CodecKind kind_ = CodecKind::none;
  int level_ = 0;
  int (*lz4_bound_)(int) = nullptr;
  int (*lz4_compress_)(const char*, char*, int, int, int) = nullptr;
  int (*lz4_decompress_)(const char*, char*, int, int, int) = nullptr;
  std::size_t (*zstd_bound_)(std::size_t) = nullptr;
  void* (*zstd_create_c_)() = nullptr;
  void* (*zstd_create_d_)() = nullptr;
  std::size_t (*zstd_free_c_)(void*) = nullptr;
  std::size_t (*zstd_free_d_)(void*) = nullptr;
  std::size_t (*zstd_compress_)(void*, void*, std::size_t, const void*, std::size_t, int) = nullptr;
  std::size_t (*zstd_decompress_)(void*, void*, std::size_t, const void*, std::size_t) = nullptr;
  unsigned (*zstd_is_error_)(std::size_t) = nullptr;
};

}  // namespace headrace::replay

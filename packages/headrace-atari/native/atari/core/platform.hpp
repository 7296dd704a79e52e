// What the emulator core needs from a compiler: a C++ compiler for the CPU, nvcc, or NVRTC.
//
// Everything in core/ compiles for the CPU and for a GPU: plain structs, functions marked HR_HD, memory of the caller, no
// exceptions, no threads. This is the only header of core/ that includes one from outside core/.
#pragma once

#ifdef __CUDACC_RTC__  // NVRTC brings no standard headers
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
#else
#include <cstddef>
#include <cstdint>
#endif

// Some functions have a faster form for the CPU. Defined, this leaves only the form that a GPU compiles.
#if defined(__CUDACC__) && !defined(HR_PORTABLE)
#define HR_PORTABLE 1
#endif

#ifdef __CUDACC__
#define HR_HD __host__ __device__
#define HR_INLINE HR_HD __forceinline__
#define HR_NOINLINE HR_HD inline __noinline__
#elif defined(__GNUC__)
#define HR_HD
#define HR_INLINE inline __attribute__((always_inline))
// Called all the time, though often from branches that are marked as unlikely, for which GCC would choose the smallest code.
#define HR_NOINLINE inline __attribute__((noinline, hot))
#else
#define HR_HD
#define HR_INLINE inline
#define HR_NOINLINE inline
#endif

// What most games do most of the time: the compiler makes it the path without jumps (measured: 15 games).
#if defined(__GNUC__) || defined(__CUDACC__)
#define HR_LIKELY(x) __builtin_expect(!!(x), 1)
#define HR_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define HR_LIKELY(x) (x)
#define HR_UNLIKELY(x) (x)
#endif

#if defined(__GNUC__) && !defined(__clang__) && !defined(HR_PORTABLE)
#define HR_COLD_LABEL __attribute__((cold));
#else
#define HR_COLD_LABEL
#endif

#if !defined(HR_PORTABLE) && defined(__AVX2__)
#include <immintrin.h>
#define HR_AVX2 1
#if defined(__AVX512BW__)
#define HR_AVX512BW 1
#endif
#if defined(__AVX512VBMI__)
#define HR_AVX512VBMI 1
#endif
#endif

namespace headrace::atari {

template <class T>
HR_HD constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
HR_HD constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}

HR_INLINE int lowest_bit(uint32_t x) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(x)) - 1;
#else
  return __builtin_ctz(x);
#endif
}

// --- memory ---

HR_INLINE void copy_bytes(void* to, const void* from, size_t size) {
#ifdef __CUDACC__
  memcpy(to, from, size);
#else
  __builtin_memcpy(to, from, size);
#endif
}

HR_INLINE void clear_bytes(void* to, size_t size) {
#ifdef __CUDACC__
  memset(to, 0, size);
#else
  __builtin_memset(to, 0, size);
#endif
}

HR_INLINE bool equal_bytes(const uint8_t* a, const uint8_t* b, size_t size) {
#ifdef __CUDA_ARCH__
  for (size_t i = 0; i < size; ++i)
    if (a[i] != b[i]) return false;
  return true;
#else
  return __builtin_memcmp(a, b, size) == 0;
#endif
}

// --- arithmetic that rounds after every operation: a compiler may otherwise fuse a product and a sum. On the CPU the flag
// -ffp-contract=off sees to that. ---

HR_INLINE float product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
HR_INLINE float sum(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
HR_INLINE double product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
HR_INLINE double sum(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

// The nearest whole number of 0 <= x < 2^21, halves to even. Adding 1.5 * 2^23 (2^52) leaves it in the low bits of the sum;
// unlike a call of rint, that becomes vector code.
HR_INLINE int32_t round_half_even(float x) {
  const float shifted = sum(x, 12582912.0f);
#ifdef __CUDA_ARCH__
  return __float_as_int(shifted) - 0x4B400000;
#else
  return __builtin_bit_cast(int32_t, shifted) - 0x4B400000;
#endif
}
HR_INLINE int32_t round_half_even(double x) {
  return static_cast<int32_t>(sum(sum(x, 6755399441055744.0), -6755399441055744.0));
}

}  // namespace headrace::atari

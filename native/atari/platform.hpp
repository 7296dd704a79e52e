// What the emulator core needs from a compiler, on the CPU and under nvcc.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define HR_HD __host__ __device__
#else
#define HR_HD
#endif

#if defined(__CUDACC__)
#define HR_INLINE HR_HD __forceinline__
#define HR_NOINLINE HR_HD __noinline__
#elif defined(__GNUC__)
#define HR_INLINE inline __attribute__((always_inline))
#define HR_NOINLINE inline __attribute__((noinline))
#else
#define HR_INLINE inline
#define HR_NOINLINE inline
#endif

#if defined(__GNUC__) || defined(__CUDACC__)
#define HR_LIKELY(x) __builtin_expect(!!(x), 1)
#define HR_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define HR_LIKELY(x) (x)
#define HR_UNLIKELY(x) (x)
#endif

#if defined(__GNUC__) && !defined(__CUDACC__)
#define HR_COLD_LABEL __attribute__((cold));
#else
#define HR_COLD_LABEL
#endif

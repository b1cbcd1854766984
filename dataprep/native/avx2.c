/* The kernel for x86 processors with AVX2 (2013 and later). */

#include "kernel.h"

#if defined(MILLRACE_X86)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
#endif
#define KERNEL_AVX2
#define KERNEL kernel_avx2
#define KERNEL_NAME "avx2"
#include "compilation.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif

/* The kernel for x86 processors with the AVX-512 of servers (F, BW, DQ, VL). */

#include "kernel.h"

#if defined(MILLRACE_X86)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt"), \
                                            min_vector_width(512))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt,prefer-vector-width=512")
#endif
#define KERNEL_AVX512
#define KERNEL kernel_avx512
#define KERNEL_NAME "avx512"
#include "compilation.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif

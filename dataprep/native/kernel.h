/* What the kernel computes, and for which instruction sets it is compiled.

   Every function takes many UTF-8 texts at a time and gives bit for bit the results of the NumPy code in
   dataprep/text/folding.py, dataprep/dedup/shingles.py and dataprep/dedup/signatures.py. Offsets are
   checked against the buffers before use, and no byte outside the buffers is read, so wrong offsets or
   bytes that are not UTF-8 give an error or a useless result, never an invalid access. */

#ifndef MILLRACE_KERNEL_H
#define MILLRACE_KERNEL_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__GNUC__)
#error "needs the bit operations of gcc and clang"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "hashes are defined on little-endian words"
#endif

#define NUM_CODE_POINTS 0x110000
#define MAX_SIZE 99 /* units of a shingle */

/* Flags of a character, as in dataprep/text/characters.py. */
enum { INSIDE = 1, JOINS = 2, BREAKS = 4, TAIL = 8, SPACE = 16, UNSTABLE = 32 };

enum { WORD_UNITS = 0, CHARACTER_UNITS = 1 };

/* Errors, as negative results. */
enum { BAD_OFFSETS = -1, NO_ROOM = -2, NO_MEMORY = -3 };

/* Text i is data[starts[i]:ends[i]]; flags has one byte for every code point. */
typedef struct {
    const uint8_t *data;
    int64_t size;
    const int64_t *starts, *ends;
    int64_t count;
    const uint8_t *flags;
} Texts;

/* Room after a folded text, because blocks are stored whole. */
#define SLACK 64

/* The functions below, compiled for one instruction set. */
typedef struct {
    const char *name;
    /* Sets marks[i] to whether text i has an UNSTABLE character; returns how many have one. */
    int64_t (*unstable)(const Texts *, uint8_t *marks);
    /* Sets marks[i] to whether text i may have a place that LAYOUT of dataprep/text/spelling.py reads otherwise. */
    int64_t (*layout)(const Texts *, uint8_t *marks);
    /* Writes how many characters each text has; returns 0. */
    int64_t (*characters)(const Texts *, int64_t *counts);
    /* Writes the texts to `out` with ASCII letters in lower case and white space collapsed to single spaces, none at
       the ends; returns the bytes used. */
    int64_t (*fold)(const Texts *, uint8_t *out, int64_t room, int64_t *starts, int64_t *ends);
    /* Writes the hashes of all shingles of text i to out[first[i]:first[i + 1]], sorted, each once, if `distinct`;
       returns how many there are. */
    int64_t (*shingles)(const Texts *, int unit, int size, int distinct, uint64_t *out, int64_t room, int64_t *first);
    /* Writes the MinHash signature of each text, num_perm values each, for the permutations a*h + b. */
    int64_t (*sign)(const Texts *, int unit, int size, const uint32_t *a, const uint32_t *b, int64_t num_perm,
                    uint32_t *out);
} Kernel;

/* A bijection of 64 bits; see dataprep/dedup/shingles.py. */
static inline uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 29;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 32;
}

extern const Kernel kernel_portable;
#if defined(__x86_64__)
#define MILLRACE_X86 1
extern const Kernel kernel_avx2;
#endif

/* Sorts hashes[0:count] and drops repetitions; returns how many are left, or NO_MEMORY. */
int64_t sort_distinct(uint64_t *hashes, int64_t count);
/* Writes the places of the keys in ascending order, those of equal keys as they come; returns 0 or NO_MEMORY. */
int64_t find_order(const uint64_t *keys, int64_t count, int64_t *order);
/* Writes the hash of band b of signature i, of num_perm values, to out[b * count + i]; a band has `rows` values. */
void hash_bands(const uint32_t *signatures, int64_t count, int64_t num_perm, int64_t bands, int64_t rows, uint64_t *out);
/* Writes the start and the size of each run of two or more equal values in sorted keys; returns how many there are. */
int64_t find_runs(const uint64_t *keys, int64_t count, int64_t *starts, int64_t *sizes);
/* Returns how many values two sorted sets share. */
int64_t count_shared(const uint64_t *a, int64_t num_a, const uint64_t *b, int64_t num_b);

#endif

/* Blocks of 64 bytes: which bytes belong to a class, as the bits of one word, and conversion to lower case.

   The only code written for each instruction set; the including file defines KERNEL_AVX2 or nothing. */

#define BLOCK 64

#if defined(KERNEL_AVX2)

typedef __m256i Part;
#define PARTS 2
static inline Part load_part(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline void store_part(uint8_t *p, Part v) { _mm256_storeu_si256((__m256i *)p, v); }
static inline Part range_part(Part v, uint8_t first, uint8_t count) {
    Part x = _mm256_sub_epi8(v, _mm256_set1_epi8((char)first));
    return _mm256_cmpeq_epi8(_mm256_min_epu8(x, _mm256_set1_epi8((char)(count - 1))), x);
}
static inline uint64_t range_bits(Part v, uint8_t first, uint8_t count) {
    return (uint32_t)_mm256_movemask_epi8(range_part(v, first, count));
}
static inline uint64_t wide_bits(Part v) { return (uint32_t)_mm256_movemask_epi8(v); }
static inline Part lower_part(Part v) {
    return _mm256_add_epi8(v, _mm256_and_si256(range_part(v, 'A', 26), _mm256_set1_epi8(32)));
}

#else

typedef uint64_t Part;
#define PARTS 8
#define HIGH_BITS 0x8080808080808080u
#define EVERY_BYTE 0x0101010101010101u
static inline Part load_part(const uint8_t *p) {
    Part v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void store_part(uint8_t *p, Part v) { memcpy(p, &v, sizeof v); }
/* Sets the high bit of each ASCII byte in the range first <= byte < first + count <= 128; no carry leaves its byte. */
static inline Part range_part(Part v, uint8_t first, uint8_t count) {
    Part low = v & ~HIGH_BITS;
    Part from_first = low + EVERY_BYTE * (0x80u - first), from_end = low + EVERY_BYTE * (0x80u - first - count);
    return from_first & ~from_end & ~v & HIGH_BITS;
}
static inline uint64_t gather_bits(Part high) { return (high >> 7) * 0x0102040810204080u >> 56; }
static inline uint64_t range_bits(Part v, uint8_t first, uint8_t count) {
    return gather_bits(range_part(v, first, count));
}
static inline uint64_t wide_bits(Part v) { return gather_bits(v & HIGH_BITS); }
static inline Part lower_part(Part v) { return v + (range_part(v, 'A', 26) >> 2); }

#endif

#define PART_BYTES (BLOCK / PARTS)

typedef struct {
    Part part[PARTS];
} Block;

/* Loads the block at p; bytes from `end` on read as zeros, which are in no class. */
static inline Block load_block(const uint8_t *p, const uint8_t *end) {
    uint8_t padded[BLOCK];
    Block block;
    if (end - p < BLOCK) {
        memset(padded, 0, BLOCK);
        memcpy(padded, p, (size_t)(end - p));
        p = padded;
    }
    for (int i = 0; i < PARTS; i++) block.part[i] = load_part(p + i * PART_BYTES);
    return block;
}

/* Non-ASCII bytes. */
static inline uint64_t block_wide(const Block *block) {
    uint64_t bits = 0;
    for (int i = 0; i < PARTS; i++) bits |= wide_bits(block->part[i]) << (i * PART_BYTES & 63);
    return bits;
}

/* ASCII letters, digits and the underscore. */
static inline uint64_t block_word(const Block *block) {
    uint64_t bits = 0;
    for (int i = 0; i < PARTS; i++) {
        Part small = lower_part(block->part[i]);
        uint64_t word = range_bits(small, 'a', 26) | range_bits(small, '0', 10) | range_bits(small, '_', 1);
        bits |= word << (i * PART_BYTES & 63);
    }
    return bits;
}

/* ASCII white space other than the space itself: tab to carriage return, and the four separators. */
static inline uint64_t block_controls(const Block *block) {
    uint64_t bits = 0;
    for (int i = 0; i < PARTS; i++) {
        uint64_t space = range_bits(block->part[i], 9, 5) | range_bits(block->part[i], 28, 4);
        bits |= space << (i * PART_BYTES & 63);
    }
    return bits;
}

static inline uint64_t block_spaces(const Block *block) {
    uint64_t bits = 0;
    for (int i = 0; i < PARTS; i++) bits |= range_bits(block->part[i], ' ', 1) << (i * PART_BYTES & 63);
    return bits;
}

static inline uint64_t block_newlines(const Block *block) {
    uint64_t bits = 0;
    for (int i = 0; i < PARTS; i++) bits |= range_bits(block->part[i], '\n', 1) << (i * PART_BYTES & 63);
    return bits;
}

/* Stores the block with ASCII letters in lower case. */
static inline void store_lower(uint8_t *out, const Block *block) {
    for (int i = 0; i < PARTS; i++) store_part(out + i * PART_BYTES, lower_part(block->part[i]));
}

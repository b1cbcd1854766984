/* Sets of 64-bit hashes as sorted arrays, the order of such hashes, and those of bands. */

#include "kernel.h"

#define FEW 24
#define MAX_BITS 11 /* of a digit: its counts and the places that it is sorted to stay in the first caches */
#define FAR 32 /* if one set is this many times as large, search instead of merging */

/* Items of `width` words are sorted by their first word, the key: 1 for hashes alone, 2 for a key and its place. */

/* One stable counting pass over `bits` bits of the keys, from `from` to `to`. */
static inline void sort_by_digit(const uint64_t *from, uint64_t *to, int64_t count, int width, int shift, int bits) {
    int64_t next[1 << MAX_BITS], sum = 0;
    uint64_t mask = (1u << bits) - 1;
    memset(next, 0, (mask + 1) * sizeof *next);
    for (int64_t i = 0; i < count; i++) next[from[width * i] >> shift & mask]++;
    for (uint64_t digit = 0; digit <= mask; digit++) {
        int64_t of_digit = next[digit];
        next[digit] = sum;
        sum += of_digit;
    }
    for (int64_t i = 0; i < count; i++) {
        uint64_t *item = to + width * next[from[width * i] >> shift & mask]++;
        for (int word = 0; word < width; word++) item[word] = from[width * i + word];
    }
}

/* Stable insertion sort that gives up after `budget` moves; returns whether it finished. */
static inline int insert_all(uint64_t *items, int64_t count, int width, int64_t budget) {
    for (int64_t i = 1; i < count; i++) {
        uint64_t key = items[width * i], value = items[width * i + width - 1];
        int64_t at = i;
        for (; at > 0 && items[width * (at - 1)] > key; at--)
            for (int word = 0; word < width; word++) items[width * at + word] = items[width * (at - 1) + word];
        items[width * at + width - 1] = value;
        items[width * at] = key;
        budget -= i - at;
        if (budget < 0) return 0;
    }
    return 1;
}

/* Sorts items in place, those of equal keys as they come; `other` has room for as many.

   A few more high bits than it takes to count the items leave hashes almost sorted: few are not in their places.
   Keys chosen to prevent that are sorted by all eight bytes. */
static inline void sort_items(uint64_t *items, uint64_t *other, int64_t count, int width) {
    int bits = (64 - __builtin_clzll((uint64_t)count | 1) + 4) / 2;
    if (bits > MAX_BITS) bits = MAX_BITS;
    sort_by_digit(items, other, count, width, 64 - 2 * bits, bits);
    sort_by_digit(other, items, count, width, 64 - bits, bits);
    if (insert_all(items, count, width, 4 * count)) return;
    for (int shift = 0; shift < 64; shift += 16) {
        sort_by_digit(items, other, count, width, shift, 8);
        sort_by_digit(other, items, count, width, shift + 8, 8);
    }
}

int64_t sort_distinct(uint64_t *hashes, int64_t count) {
    if (count > FEW) {
        uint64_t *other = malloc((size_t)count * sizeof *other);
        if (!other) return NO_MEMORY;
        sort_items(hashes, other, count, 1);
        free(other);
    } else {
        insert_all(hashes, count, 1, INT64_MAX);
    }
    int64_t left = 0;
    for (int64_t i = 0; i < count; i++)
        if (!i || hashes[i] != hashes[i - 1]) hashes[left++] = hashes[i];
    return left;
}

/* Few values in many: a binary search for each in the remaining values. */
static int64_t count_found(const uint64_t *few, int64_t num_few, const uint64_t *many, int64_t num_many) {
    int64_t shared = 0, low = 0;
    for (int64_t i = 0; i < num_few; i++) {
        int64_t high = num_many;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (many[middle] < few[i])
                low = middle + 1;
            else
                high = middle;
        }
        shared += low < num_many && many[low] == few[i];
    }
    return shared;
}

int64_t count_shared(const uint64_t *a, int64_t num_a, const uint64_t *b, int64_t num_b) {
    if (num_a / FAR > num_b) return count_found(b, num_b, a, num_a);
    if (num_b / FAR > num_a) return count_found(a, num_a, b, num_b);
    int64_t shared = 0;
    for (int64_t i = 0, j = 0; i < num_a && j < num_b;) {
        uint64_t x = a[i], y = b[j];
        shared += x == y;
        i += x <= y;
        j += y <= x;
    }
    return shared;
}

int64_t find_order(const uint64_t *keys, int64_t count, int64_t *order) {
    if (count > INT64_MAX / 64) return NO_MEMORY;
    uint64_t *items = malloc((size_t)(4 * count + 1) * sizeof *items);
    if (!items) return NO_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        items[2 * i] = keys[i];
        items[2 * i + 1] = (uint64_t)i;
    }
    sort_items(items, items + 2 * count, count, 2);
    for (int64_t i = 0; i < count; i++) order[i] = (int64_t)items[2 * i + 1];
    free(items);
    return 0;
}

int64_t find_runs(const uint64_t *keys, int64_t count, int64_t *starts, int64_t *sizes) {
    int64_t runs = 0;
    for (int64_t start = 0, stop; start < count; start = stop) {
        for (stop = start + 1; stop < count && keys[stop] == keys[start];) stop++;
        if (stop - start < 2) continue;
        starts[runs] = start;
        sizes[runs++] = stop - start;
    }
    return runs;
}

void hash_bands(const uint32_t *signatures, int64_t count, int64_t num_perm, int64_t bands, int64_t rows, uint64_t *out) {
    for (int64_t i = 0; i < count; i++) {
        const uint32_t *value = signatures + i * num_perm;
        for (int64_t band = 0; band < bands; band++) {
            uint64_t state = 0;
            for (int64_t row = 0; row < rows; row++) state = mix(state ^ *value++);
            out[band * count + i] = state;
        }
    }
}

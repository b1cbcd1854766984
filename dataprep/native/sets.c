/* Sets of 64-bit hashes as sorted arrays, and the order of such hashes. */

#include "kernel.h"

#define FEW 24
#define FAR 32 /* if one set is this many times as large, search instead of merging */

/* One stable counting pass over one byte, from `from` to `to`. */
static void sort_by_byte(const uint64_t *from, uint64_t *to, int64_t count, int shift) {
    int64_t next[256] = {0}, sum = 0;
    for (int64_t i = 0; i < count; i++) next[from[i] >> shift & 0xff]++;
    for (int digit = 0; digit < 256; digit++) {
        int64_t of_digit = next[digit];
        next[digit] = sum;
        sum += of_digit;
    }
    for (int64_t i = 0; i < count; i++) to[next[from[i] >> shift & 0xff]++] = from[i];
}

/* Sorts by the highest `num_bytes` bytes, an even number. */
static void sort_by_high_bytes(uint64_t *hashes, uint64_t *other, int64_t count, int num_bytes) {
    for (int byte = 8 - num_bytes; byte < 8; byte += 2) {
        sort_by_byte(hashes, other, count, 8 * byte);
        sort_by_byte(other, hashes, count, 8 * byte + 8);
    }
}

/* Insertion sort that gives up after `budget` moves; returns whether it finished. */
static int insert_all(uint64_t *hashes, int64_t count, int64_t budget) {
    for (int64_t i = 1; i < count; i++) {
        uint64_t hash = hashes[i];
        int64_t at = i;
        for (; at > 0 && hashes[at - 1] > hash; at--) hashes[at] = hashes[at - 1];
        hashes[at] = hash;
        budget -= i - at;
        if (budget < 0) return 0;
    }
    return 1;
}

int64_t sort_distinct(uint64_t *hashes, int64_t count) {
    if (count > FEW) {
        uint64_t *other = malloc((size_t)count * sizeof *other);
        if (!other) return NO_MEMORY;
        /* Two or four bytes leave hashes almost sorted; values chosen to prevent that are sorted by all eight. */
        sort_by_high_bytes(hashes, other, count, count <= 4096 ? 2 : 4);
        if (!insert_all(hashes, count, 4 * count)) sort_by_high_bytes(hashes, other, count, 8);
        free(other);
    } else {
        insert_all(hashes, count, INT64_MAX);
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

typedef struct {
    uint64_t key;
    int64_t place;
} Record;

/* One stable counting pass over one byte of the keys, from `from` to `to`. */
static void sort_records_by_byte(const Record *from, Record *to, int64_t count, int shift) {
    int64_t next[256] = {0}, sum = 0;
    for (int64_t i = 0; i < count; i++) next[from[i].key >> shift & 0xff]++;
    for (int digit = 0; digit < 256; digit++) {
        int64_t of_digit = next[digit];
        next[digit] = sum;
        sum += of_digit;
    }
    for (int64_t i = 0; i < count; i++) to[next[from[i].key >> shift & 0xff]++] = from[i];
}

/* Sorts by the highest `num_bytes` bytes, an even number. */
static void sort_records_by_high_bytes(Record *records, Record *other, int64_t count, int num_bytes) {
    for (int byte = 8 - num_bytes; byte < 8; byte += 2) {
        sort_records_by_byte(records, other, count, 8 * byte);
        sort_records_by_byte(other, records, count, 8 * byte + 8);
    }
}

/* Stable insertion sort that gives up after `budget` moves; returns whether it finished. */
static int insert_all_records(Record *records, int64_t count, int64_t budget) {
    for (int64_t i = 1; i < count; i++) {
        Record record = records[i];
        int64_t at = i;
        for (; at > 0 && records[at - 1].key > record.key && budget >= 0; at--, budget--) records[at] = records[at - 1];
        records[at] = record;
        if (budget < 0) return 0;
    }
    return 1;
}

static void load_records(const uint64_t *keys, int64_t count, Record *records) {
    for (int64_t i = 0; i < count; i++) records[i] = (Record){keys[i], i};
}

int64_t find_order(const uint64_t *keys, int64_t count, int64_t *order) {
    if (count > INT64_MAX / (int64_t)(2 * sizeof(Record)) - 1) return NO_MEMORY;
    Record *records = malloc((size_t)(2 * count + 1) * sizeof *records);
    if (!records) return NO_MEMORY;
    load_records(keys, count, records);
    sort_records_by_high_bytes(records, records + count, count, count <= 4096 ? 2 : 4);
    if (!insert_all_records(records, count, 4 * count)) {
        load_records(keys, count, records);
        sort_records_by_high_bytes(records, records + count, count, 8);
    }
    for (int64_t i = 0; i < count; i++) order[i] = records[i].place;
    free(records);
    return 0;
}

/* The Python module pipelines.native._hashes: XXH3 of many values at a time.

   The algorithm, with seed 0 and the default secret, is that of xxhash 0.8 (github.com/Cyan4973/xxHash,
   doc/xxhash_spec.md); the tests compare it with the package xxhash. Arrays are passed as buffers. Every access is checked
   against their sizes. */

#include <stdlib.h>
#include <string.h>

#include "buffers.h"

#if !defined(__SIZEOF_INT128__)
#error "needs products of 128 bits"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "hashes are defined on little-endian words"
#endif

#define P32_1 0x9e3779b1u
#define P32_2 0x85ebca77u
#define P32_3 0xc2b2ae3du
#define P64_1 0x9e3779b185ebca87u
#define P64_2 0xc2b2ae3d27d4eb4fu
#define P64_3 0x165667b19e3779f9u
#define P64_4 0x85ebca77c2b2ae63u
#define P64_5 0x27d4eb2f165667c5u

#define SECRET_BYTES 192
#define STRIPE 64
#define STRIPES 16 /* of a block: each uses 8 bytes more of the secret */

static const uint8_t SECRET[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

typedef struct {
    uint64_t low, high;
} Hash;

static inline uint32_t read32(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static inline uint64_t read64(const uint8_t *p) {
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

/* The exclusive or of the 8 (4) bytes of the secret at `at` and those after them. */
static inline uint64_t flip64(int at) { return read64(SECRET + at) ^ read64(SECRET + at + 8); }
static inline uint32_t flip32(int at) { return read32(SECRET + at) ^ read32(SECRET + at + 4); }

static inline Hash multiply(uint64_t a, uint64_t b) {
    __uint128_t product = (__uint128_t)a * b;
    return (Hash){(uint64_t)product, (uint64_t)(product >> 64)};
}

static inline uint64_t fold(uint64_t a, uint64_t b) {
    Hash product = multiply(a, b);
    return product.low ^ product.high;
}

static inline uint64_t avalanche(uint64_t x) {
    x ^= x >> 37;
    x *= 0x165667919e3779f9u;
    return x ^ x >> 32;
}

/* The finalizer of XXH64, for the shortest values. */
static inline uint64_t avalanche64(uint64_t x) {
    x ^= x >> 33;
    x *= P64_2;
    x ^= x >> 29;
    x *= P64_3;
    return x ^ x >> 32;
}

static Hash hash_to_3(const uint8_t *p, size_t size) {
    if (!size) return (Hash){avalanche64(flip64(64)), avalanche64(flip64(80))};
    uint32_t low = (uint32_t)p[0] << 16 | (uint32_t)p[size >> 1] << 24 | p[size - 1] | (uint32_t)size << 8;
    uint32_t swapped = __builtin_bswap32(low), high = swapped << 13 | swapped >> 19;
    return (Hash){avalanche64(low ^ flip32(0)), avalanche64(high ^ flip32(8))};
}

static Hash hash_4_to_8(const uint8_t *p, size_t size) {
    uint64_t value = (read32(p) | (uint64_t)read32(p + size - 4) << 32) ^ flip64(16);
    Hash hash = multiply(value, P64_1 + (size << 2));
    hash.high += hash.low << 1;
    hash.low ^= hash.high >> 3;
    hash.low ^= hash.low >> 35;
    hash.low *= 0x9fb21c651e98df25u;
    hash.low ^= hash.low >> 28;
    hash.high = avalanche(hash.high);
    return hash;
}

static Hash hash_9_to_16(const uint8_t *p, size_t size) {
    uint64_t low = read64(p), high = read64(p + size - 8);
    Hash hash = multiply(low ^ high ^ flip64(32), P64_1);
    hash.low += (uint64_t)(size - 1) << 54;
    high ^= flip64(48);
    hash.high += high + (high & 0xffffffffu) * (P32_2 - 1);
    hash.low ^= __builtin_bswap64(hash.high);
    Hash last = multiply(hash.low, P64_2);
    last.high += hash.high * P64_2;
    return (Hash){avalanche(last.low), avalanche(last.high)};
}

static inline uint64_t mix16(const uint8_t *p, int at) {
    return fold(read64(p) ^ read64(SECRET + at), read64(p + 8) ^ read64(SECRET + at + 8));
}

/* Adds 16 bytes from each of two places. */
static inline void mix32(Hash *sum, const uint8_t *p, const uint8_t *q, int at) {
    sum->low += mix16(p, at);
    sum->low ^= read64(q) + read64(q + 8);
    sum->high += mix16(q, at + 16);
    sum->high ^= read64(p) + read64(p + 8);
}

static inline Hash finish(Hash sum, size_t size) {
    uint64_t high = sum.low * P64_1 + sum.high * P64_4 + size * P64_2;
    return (Hash){avalanche(sum.low + sum.high), 0 - avalanche(high)};
}

static Hash hash_17_to_128(const uint8_t *p, size_t size) {
    Hash sum = {size * P64_1, 0};
    for (int pair = (int)(size - 1) / 32; pair >= 0; pair--)
        mix32(&sum, p + 16 * pair, p + size - 16 * (pair + 1), 32 * pair);
    return finish(sum, size);
}

static Hash hash_129_to_240(const uint8_t *p, size_t size) {
    Hash sum = {size * P64_1, 0};
    for (int at = 0; at < 128; at += 32) mix32(&sum, p + at, p + at + 16, at);
    sum = (Hash){avalanche(sum.low), avalanche(sum.high)};
    for (int at = 128; at + 32 <= (int)size; at += 32) mix32(&sum, p + at, p + at + 16, 3 + at - 128);
    mix32(&sum, p + size - 16, p + size - 32, 136 - 17 - 16);
    return finish(sum, size);
}

static inline void add_stripe(uint64_t *sums, const uint8_t *p, const uint8_t *secret) {
    for (int i = 0; i < 8; i++) {
        uint64_t data = read64(p + 8 * i), keyed = data ^ read64(secret + 8 * i);
        sums[i ^ 1] += data;
        sums[i] += (keyed & 0xffffffffu) * (keyed >> 32);
    }
}

static inline void scramble(uint64_t *sums) {
    for (int i = 0; i < 8; i++)
        sums[i] = (sums[i] ^ sums[i] >> 47 ^ read64(SECRET + SECRET_BYTES - STRIPE + 8 * i)) * P32_1;
}

static inline uint64_t merge(const uint64_t *sums, const uint8_t *secret, uint64_t start) {
    for (int i = 0; i < 4; i++)
        start += fold(sums[2 * i] ^ read64(secret + 16 * i), sums[2 * i + 1] ^ read64(secret + 16 * i + 8));
    return avalanche(start);
}

static Hash hash_long(const uint8_t *p, size_t size) {
    uint64_t sums[8] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    const uint8_t *last = p + size - STRIPE;
    for (int stripe = 0; p < last; p += STRIPE) { /* the last stripe, whole or not, is added below */
        add_stripe(sums, p, SECRET + 8 * stripe);
        if (++stripe == STRIPES) {
            scramble(sums);
            stripe = 0;
        }
    }
    add_stripe(sums, last, SECRET + SECRET_BYTES - STRIPE - 7);
    return (Hash){merge(sums, SECRET + 11, size * P64_1),
                  merge(sums, SECRET + SECRET_BYTES - STRIPE - 11, ~(size * P64_2))};
}

static inline Hash hash128(const uint8_t *p, size_t size) {
    if (size > 240) return hash_long(p, size);
    if (size > 128) return hash_129_to_240(p, size);
    if (size > 16) return hash_17_to_128(p, size);
    if (size > 8) return hash_9_to_16(p, size);
    return size > 3 ? hash_4_to_8(p, size) : hash_to_3(p, size);
}

/* XXH3_64bits of 16 bytes. */
static inline uint64_t hash64_of_16(const uint8_t *p) {
    uint64_t low = read64(p) ^ flip64(24), high = read64(p + 8) ^ flip64(40);
    return avalanche(16 + __builtin_bswap64(low) + high + fold(low, high));
}

/* As xxhash writes it: the high half first, both big-endian. */
static inline void write_digest(uint8_t *out, Hash hash) {
    uint64_t words[2] = {__builtin_bswap64(hash.high), __builtin_bswap64(hash.low)};
    memcpy(out, words, sizeof words);
}

/* ---- The module ---- */

#define DIGEST 16

enum { BAD_OFFSETS = -1, NO_MEMORY = -2 };

/* Digests of data[starts[i]:ends[i]]. */
static int hash_spans(const uint8_t *data, int64_t size, const int64_t *starts, const int64_t *ends, int64_t count,
                      uint8_t *out) {
    for (int64_t i = 0; i < count; i++) {
        int64_t start = starts[i], end = ends[i];
        if (start < 0 || end < start || end > size) return BAD_OFFSETS;
        write_digest(out + i * DIGEST, hash128(data + start, (size_t)(end - start)));
    }
    return 0;
}

/* A column of strings in Arrow's layout: value i is data[offsets[i]:offsets[i + 1]]. */
typedef struct {
    const uint8_t *data;
    const int32_t *offsets;
    int64_t size;
} Strings;

static int get_strings(Buffers *buffers, PyObject *offsets, PyObject *data, int64_t count, Strings *strings) {
    if (!(strings->offsets = items(buffers, offsets, "offsets", 4, count + 1, 0))) return 0;
    if (!(strings->data = items(buffers, data, "data", 1, 0, 0))) return 0;
    strings->size = last_bytes(buffers);
    return 1;
}

static const uint8_t *get_string(const Strings *strings, int64_t i, size_t *size) {
    int64_t start = strings->offsets[i], end = strings->offsets[i + 1];
    if (start < 0 || end < start || end > strings->size) return NULL;
    *size = (size_t)(end - start);
    return strings->data + start;
}

/* Digests of both values of each row with NUL between them. */
static int hash_pairs(const Strings *firsts, const Strings *seconds, int64_t count, uint8_t *out) {
    uint8_t *joined = NULL;
    size_t room = 0, size_a, size_b;
    int result = 0;
    for (int64_t i = 0; i < count && !result; i++) {
        const uint8_t *a = get_string(firsts, i, &size_a), *b = get_string(seconds, i, &size_b);
        if (!a || !b) {
            result = BAD_OFFSETS;
            break;
        }
        if (size_a + size_b + 1 > room) {
            free(joined);
            room = 2 * (size_a + size_b + 1);
            if (!(joined = malloc(room))) {
                result = NO_MEMORY;
                break;
            }
        }
        memcpy(joined, a, size_a);
        joined[size_a] = 0;
        memcpy(joined + size_a + 1, b, size_b);
        write_digest(out + i * DIGEST, hash128(joined, size_a + size_b + 1));
    }
    free(joined);
    return result;
}

/* Releases the buffers and returns None, or raises the exception for an error. */
static PyObject *answer(Buffers *buffers, int result) {
    release(buffers);
    if (PyErr_Occurred()) return NULL;
    if (result == NO_MEMORY) return PyErr_NoMemory();
    if (result == BAD_OFFSETS) {
        PyErr_SetString(PyExc_ValueError, "offsets: beyond the data, or an end before its start");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *py_spans(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *o[4];
    if (!PyArg_ParseTuple(args, "OOOO", &o[0], &o[1], &o[2], &o[3])) return NULL;
    Buffers buffers = {.count = 0};
    const uint8_t *data;
    const int64_t *starts, *ends;
    int64_t size, count;
    uint8_t *out;
    int result = 0;
    if (!(data = items(&buffers, o[0], "data", 1, 0, 0))) goto done;
    size = last_bytes(&buffers);
    if (!(starts = items(&buffers, o[1], "starts", 8, 0, 0))) goto done;
    count = last_bytes(&buffers) / 8;
    if (!(ends = items(&buffers, o[2], "ends", 8, count, 0))) goto done;
    if (!(out = items(&buffers, o[3], "out", 1, DIGEST * count, 1))) goto done;
    Py_BEGIN_ALLOW_THREADS
    result = hash_spans(data, size, starts, ends, count, out);
    Py_END_ALLOW_THREADS
done:
    return answer(&buffers, result);
}

static PyObject *py_pairs(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *o[5];
    if (!PyArg_ParseTuple(args, "OOOOO", &o[0], &o[1], &o[2], &o[3], &o[4])) return NULL;
    Buffers buffers = {.count = 0};
    Strings firsts, seconds;
    int64_t count;
    uint8_t *out;
    int result = 0;
    if (!(out = items(&buffers, o[4], "out", 1, 0, 1))) goto done;
    count = last_bytes(&buffers) / DIGEST;
    if (!get_strings(&buffers, o[0], o[1], count, &firsts) || !get_strings(&buffers, o[2], o[3], count, &seconds)) goto done;
    Py_BEGIN_ALLOW_THREADS
    result = hash_pairs(&firsts, &seconds, count, out);
    Py_END_ALLOW_THREADS
done:
    return answer(&buffers, result);
}

static PyObject *py_ids(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *o[2];
    if (!PyArg_ParseTuple(args, "OO", &o[0], &o[1])) return NULL;
    Buffers buffers = {.count = 0};
    const uint8_t *ids;
    uint64_t *out;
    if ((ids = items(&buffers, o[0], "ids", 1, 0, 0))) {
        int64_t count = last_bytes(&buffers) / DIGEST;
        if ((out = items(&buffers, o[1], "out", 8, count, 1)))
            for (int64_t i = 0; i < count; i++) out[i] = hash64_of_16(ids + i * DIGEST);
    }
    return answer(&buffers, 0);
}

static PyMethodDef methods[] = {
    {"spans", py_spans, METH_VARARGS, "spans(data, starts, ends, out)"},
    {"pairs", py_pairs, METH_VARARGS, "pairs(offsets, data, offsets, data, out)"},
    {"ids", py_ids, METH_VARARGS, "ids(ids, out)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_hashes", "See pipelines/native/hashes.py.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__hashes(void) { return new_module(&definition, 1); }

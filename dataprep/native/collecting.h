/* The two uses of shingles: collected into one array of hashes, or reduced to signatures. */

typedef struct {
    uint64_t *out;
    int64_t used, room;
    int overflow;
} Collector;

static void collect(Shingler *s, const uint64_t *windows, int count) {
    Collector *to = s->target;
    if (count > to->room - to->used) {
        to->overflow = 1;
        return;
    }
    memcpy(to->out + to->used, windows, (size_t)count * sizeof *windows);
    to->used += count;
}

static int64_t shingles(const Texts *texts, int unit, int size, int distinct, uint64_t *out, int64_t room,
                        int64_t *first) {
    Collector to = {out, 0, room, 0};
    Shingler *s = new_shingler(size, collect, &to);
    if (!s) return NO_MEMORY;
    int64_t error = 0;
    first[0] = 0;
    for (int64_t i = 0; i < texts->count && !error; i++) {
        const uint8_t *p, *end;
        int64_t start = to.used;
        if (!text_span(texts, i, &p, &end)) {
            error = BAD_OFFSETS;
            break;
        }
        shingle_text(p, end, texts, unit, s);
        if (to.overflow) error = NO_ROOM;
        if (distinct && !error) {
            int64_t left = sort_distinct(out + start, to.used - start);
            if (left < 0) error = left;
            to.used = start + left;
        }
        first[i + 1] = to.used;
    }
    free(s);
    return error ? error : to.used;
}

/* Permutations per tile: their minima and factors stay in registers while the loop runs over all shingles. */
#if defined(KERNEL_AVX2)
#define TILE 32
#else
#define TILE 16
#endif

typedef struct {
    const uint32_t *a, *b; /* padded to whole tiles */
    uint32_t *minima;
    int64_t num_tiles;
} Signing;

/* MurmurHash3's 32-bit finalizer. */
static inline uint32_t finalize(uint32_t x) {
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ x >> 16;
}

static inline void lower_minima(const uint32_t *restrict hashes, int count, const uint32_t *restrict a,
                                const uint32_t *restrict b, uint32_t *restrict minima) {
    uint32_t least[TILE];
    for (int p = 0; p < TILE; p++) least[p] = minima[p];
    for (int i = 0; i < count; i++) {
        uint32_t hash = hashes[i];
        for (int p = 0; p < TILE; p++) {
            uint32_t value = hash * a[p] + b[p];
            least[p] = value < least[p] ? value : least[p];
        }
    }
    for (int p = 0; p < TILE; p++) minima[p] = least[p];
}

static void take_minima(Shingler *s, const uint64_t *windows, int count) {
    Signing *to = s->target;
    uint32_t hashes[UNITS];
    for (int i = 0; i < count; i++) hashes[i] = finalize((uint32_t)windows[i]);
    for (int64_t tile = 0; tile < to->num_tiles; tile++) {
        int64_t at = tile * TILE;
        lower_minima(hashes, count, to->a + at, to->b + at, to->minima + at);
    }
}

static int64_t sign_all(const Texts *texts, int unit, const Signing *to, Shingler *s, int64_t num_perm, uint32_t *out) {
    for (int64_t i = 0; i < texts->count; i++) {
        const uint8_t *p, *end;
        if (!text_span(texts, i, &p, &end)) return BAD_OFFSETS;
        memset(to->minima, 0xff, (size_t)(to->num_tiles * TILE) * sizeof *to->minima);
        shingle_text(p, end, texts, unit, s);
        memcpy(out + i * num_perm, to->minima, (size_t)num_perm * sizeof *out);
    }
    return 0;
}

static int64_t sign(const Texts *texts, int unit, int size, const uint32_t *a, const uint32_t *b, int64_t num_perm,
                    uint32_t *out) {
    int64_t num_tiles = (num_perm + TILE - 1) / TILE, padded = num_tiles * TILE;
    uint32_t *memory = calloc((size_t)padded * 3 + 1, sizeof *memory);
    Signing to = {memory, memory + padded, memory + 2 * padded, num_tiles};
    Shingler *s = memory ? new_shingler(size, take_minima, &to) : NULL;
    int64_t result = NO_MEMORY;
    if (s) {
        memcpy(memory, a, (size_t)num_perm * sizeof *a);
        memcpy(memory + padded, b, (size_t)num_perm * sizeof *b);
        result = sign_all(texts, unit, &to, s, num_perm, out);
    }
    free(s);
    free(memory);
    return result;
}

/* The shingles of a text, window by window: units go in, hashes of runs of `size` units come out.

   See dataprep/dedup/shingles.py for the definition of words, units and hashes. */

#define BASE 0xd6e8feb86659fd93u
#define CHUNK 0x9e3779b97f4a7c15u

#define WINDOW 2048
#define UNITS (WINDOW + MAX_SIZE + BLOCK)

typedef struct Shingler Shingler;
struct Shingler {
    int size;
    int num_units;   /* in `units`; those before `num_mixed` are hashes, the others unmixed first chunks */
    int num_mixed;
    int64_t num_windows; /* of this text so far */
    void (*take)(Shingler *, const uint64_t *windows, int count);
    void *target;
    uint64_t units[UNITS];
    uint64_t more[UNITS]; /* added to the hash of a unit for its further chunks */
    uint64_t windows[UNITS];
};

/* Hashes of all runs of `size` of the units, by Horner's rule. */
static inline void hash_windows(const uint64_t *restrict units, int size, uint64_t *restrict out, int count) {
    /* From each run to the next: subtract the first unit, add a new one. */
    uint64_t state = 0, power = 1;
    for (int i = 0; i < size - 1; i++) {
        state = state * BASE + units[i];
        power *= BASE;
    }
    for (int i = 0; i < count; i++) {
        state = state * BASE + units[i + size - 1];
        out[i] = state;
        state -= units[i] * power;
    }
    for (int i = 0; i < count; i++) out[i] = mix(out[i]);
}

/* Passes on the windows of the units present, and keeps the units that later windows start with. */
static inline void flush(Shingler *s) {
    for (int i = s->num_mixed; i < s->num_units; i++) s->units[i] = mix(s->units[i]) + s->more[i];
    s->num_mixed = s->num_units;
    int count = s->num_units - s->size + 1;
    if (count <= 0) return;
    hash_windows(s->units, s->size, s->windows, count);
    s->take(s, s->windows, count);
    s->num_windows += count;
    memmove(s->units, s->units + count, (size_t)(s->size - 1) * sizeof s->units[0]);
    s->num_units = s->num_mixed = s->size - 1;
}

/* Makes room for the units of one more block. */
static inline void make_room(Shingler *s) {
    if (s->num_units > UNITS - BLOCK - 1) flush(s);
}

/* Ends a text; one with fewer units than a shingle has a single shingle of all its units. */
static inline void finish(Shingler *s) {
    flush(s);
    if (!s->num_windows && s->num_units) {
        hash_windows(s->units, s->num_units, s->windows, 1);
        s->take(s, s->windows, 1);
    }
    s->num_units = s->num_mixed = 0;
    s->num_windows = 0;
}

static inline uint64_t load_chunk(const uint8_t *p, const uint8_t *limit) {
    uint64_t chunk = 0;
    if (limit - p >= 8)
        memcpy(&chunk, p, 8);
    else
        memcpy(&chunk, p, (size_t)(limit - p));
    return chunk;
}

static inline uint64_t keep_bytes(int64_t count) { return count >= 8 ? ~0ull : (1ull << 8 * count) - 1; }

static inline void add_word(Shingler *s, const uint8_t *p, const uint8_t *end, const uint8_t *limit) {
    uint64_t more = 0, number = 0;
    s->units[s->num_units] = load_chunk(p, limit) & keep_bytes(end - p);
    for (const uint8_t *q = p + 8; q < end; q += 8)
        more += mix((load_chunk(q, limit) & keep_bytes(end - q)) ^ ++number * CHUNK);
    s->more[s->num_units++] = more;
}

/* The role of each byte of a block in words; bit i is byte i. */
typedef struct {
    uint64_t inside, joins, breaks, tail;
} WordBits;

/* Adds the non-ASCII characters of the block at p, `wide`; `next` gets the bits that reach into the next block. */
static inline void add_wide(WordBits *bits, WordBits *next, uint64_t wide, const uint8_t *p, const uint8_t *end,
                            const uint8_t *flags) {
    while (wide) {
        int at = __builtin_ctzll(wide), bytes;
        uint8_t flag = flags_of(decode(p + at, end, &bytes), flags);
        uint64_t all = (1ull << bytes) - 1, first = 1ull << at, low = all << at;
        uint64_t high = at + bytes > BLOCK ? all >> (BLOCK - at) : 0;
        wide &= ~(low | first);
        if (!(flag & INSIDE)) continue;
        bits->inside |= low;
        next->inside |= high;
        bits->tail |= flag & TAIL ? low : low & ~first;
        next->tail |= high;
        if (flag & BREAKS) bits->breaks |= first;
        if (flag & JOINS) {
            bits->joins |= low;
            next->joins |= high;
        }
    }
}

static inline void find_words(const uint8_t *p, const uint8_t *end, const Texts *texts, Shingler *s) {
    const uint8_t *limit = texts->data + texts->size, *word = NULL;
    WordBits next = {0, 0, 0, 0};
    uint64_t before_inside = 0, before_joins = 0;
    for (; p < end; p += BLOCK) {
        Block block = load_block(p, end);
        WordBits bits = next;
        uint64_t ascii = block_word(&block), wide = block_wide(&block);
        bits.inside |= ascii;
        bits.joins |= ascii;
        next = (WordBits){0, 0, 0, 0};
        if (wide) add_wide(&bits, &next, wide, p, end, texts->flags);
        uint64_t after_inside = bits.inside << 1 | before_inside, after_joins = bits.joins << 1 | before_joins;
        uint64_t starts = bits.inside & (bits.breaks | ~after_inside | (~bits.tail & ~after_joins));
        uint64_t ends = after_inside & (~bits.inside | starts);
        before_inside = bits.inside >> 63;
        before_joins = bits.joins >> 63;
        make_room(s);
        if (word && ends) {
            add_word(s, word, p + __builtin_ctzll(ends), limit);
            ends &= ends - 1;
            word = NULL;
        }
        while (starts) {
            word = p + __builtin_ctzll(starts);
            starts &= starts - 1;
            if (!ends) break;
            add_word(s, word, p + __builtin_ctzll(ends), limit);
            ends &= ends - 1;
            word = NULL;
        }
    }
    if (word) add_word(s, word, end, limit);
}

static inline void find_characters(const uint8_t *p, const uint8_t *end, Shingler *s) {
    while (p < end) {
        Block block = load_block(p, end);
        uint64_t wide = block_wide(&block);
        int ascii = wide ? __builtin_ctzll(wide) : BLOCK;
        if (ascii > end - p) ascii = (int)(end - p);
        make_room(s);
        for (int i = 0; i < ascii; i++) s->units[s->num_units + i] = p[i];
        s->num_units += ascii;
        for (p += ascii; p < end && *p >= 0x80;) {
            int bytes;
            make_room(s);
            s->units[s->num_units++] = decode(p, end, &bytes);
            p += bytes;
        }
    }
}

/* Returns a new shingler; `more` is zero until set, because characters have no further chunks. */
static Shingler *new_shingler(int size, void (*take)(Shingler *, const uint64_t *, int), void *target) {
    Shingler *s = malloc(sizeof *s);
    if (!s) return NULL;
    s->size = size;
    s->num_units = s->num_mixed = 0;
    s->num_windows = 0;
    s->take = take;
    s->target = target;
    memset(s->more, 0, sizeof s->more);
    return s;
}

static inline void shingle_text(const uint8_t *p, const uint8_t *end, const Texts *texts, int unit, Shingler *s) {
    if (unit == WORD_UNITS)
        find_words(p, end, texts, s);
    else
        find_characters(p, end, s);
    finish(s);
}

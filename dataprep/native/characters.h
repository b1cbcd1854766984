/* Non-ASCII characters in UTF-8. */

#define INVALID 0xffffffffu

/* Number of bytes of the character with this lead byte (>= 0xc0); 1 for any other byte. */
static inline int character_bytes(uint8_t lead) { return 1 + (lead >= 0xc0) + (lead >= 0xe0) + (lead >= 0xf0); }

/* Returns the code point at p and sets *bytes; INVALID if `end` cuts it off or p is inside a character. */
static inline uint32_t decode(const uint8_t *p, const uint8_t *end, int *bytes) {
    static const uint8_t lead_bits[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    int count = character_bytes(*p);
    if (end - p < count) {
        *bytes = (int)(end - p);
        return INVALID;
    }
    *bytes = count;
    if ((*p & 0xc0) == 0x80) return INVALID;
    uint32_t point = *p & lead_bits[count];
    for (int i = 1; i < count; i++) point = point << 6 | (p[i] & 0x3f);
    return point;
}

static inline uint8_t flags_of(uint32_t point, const uint8_t *flags) {
    return point < NUM_CODE_POINTS ? flags[point] : 0;
}

/* Returns whether text i is within the data. The offsets are read once, because others may write to the buffers. */
static inline int text_span(const Texts *texts, int64_t i, const uint8_t **start, const uint8_t **end) {
    int64_t first = texts->starts[i], last = texts->ends[i];
    if (first < 0 || last < first || last > texts->size) return 0;
    *start = texts->data + first;
    *end = texts->data + last;
    return 1;
}

/* The Python module pipelines.native._lines: JSON lines to the columns of documents, and columns to JSON lines.

   Only what is simple is done here, and bit for bit as orjson does it; any other line or value is left to Python, which
   also says what is wrong with it. Arrays are passed as buffers. Every access is checked against their sizes. */

#include <string.h>

#include "buffers.h"

#if !defined(__GNUC__)
#error "needs the bit operations of gcc and clang"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "masks of bytes are little-endian words"
#endif

#if defined(__SSE2__)
#include <emmintrin.h>
#define STEP 16
#else
#define STEP 8
#endif

/* Room after what is written, because it is copied a step at a time. */
#define SLACK 64

/* Copies STEP bytes, and returns which of them are no plain ASCII character of a string, STEP_BITS bits each. */
#if defined(__SSE2__)
#define STEP_BITS 1
static inline uint64_t copy_step(uint8_t *out, const uint8_t *p) {
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    _mm_storeu_si128((__m128i *)out, v);
    __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(v, _mm_set1_epi8(0x1f)), v);
    __m128i special = _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));
    return (uint32_t)_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(control, special), v));
}
#else
#define STEP_BITS 8
#define HIGH_BITS 0x8080808080808080u
#define EVERY_BYTE 0x0101010101010101u
/* Sets the high bit of each zero byte; above the lowest one also of others, which nobody looks at. */
static inline uint64_t zero_bytes(uint64_t v) { return (v - EVERY_BYTE) & ~v & HIGH_BITS; }
static inline uint64_t copy_step(uint8_t *out, const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    memcpy(out, &v, sizeof v);
    uint64_t control = (v - EVERY_BYTE * 0x20) & ~v & HIGH_BITS;
    return control | zero_bytes(v ^ EVERY_BYTE * '"') | zero_bytes(v ^ EVERY_BYTE * '\\') | (v & HIGH_BITS);
}
#endif

/* Copies what needs no look at each byte, up to `end`; both pointers move. `out` has SLACK bytes more than are left. */
static inline void copy_plain(const uint8_t **from, const uint8_t *end, uint8_t **to) {
    const uint8_t *p = *from;
    uint8_t *out = *to;
    while (end - p >= STEP) {
        uint64_t special = copy_step(out, p);
        int count = special ? __builtin_ctzll(special) / STEP_BITS : STEP;
        p += count;
        out += count;
        if (special) break;
    }
    while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\') *out++ = *p++;
    *from = p;
    *to = out;
}

/* Returns the number of bytes of the well-formed non-ASCII character at p (Unicode, table 3-7), or 0. */
static inline int wide_bytes(const uint8_t *p, const uint8_t *end) {
    uint8_t lead = *p;
    int count = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (!count || end - p < count) return 0;
    uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80, high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < low || p[1] > high) return 0;
    for (int i = 2; i < count; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    return count;
}

/* ---- Reading ---- */

static inline int hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Returns the code unit of the four digits at p, or -1. */
static int code_unit(const uint8_t *p, const uint8_t *end) {
    int unit = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0) return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

static uint8_t *put_character(uint8_t *out, uint32_t point) {
    if (point < 0x80) {
        *out++ = (uint8_t)point;
    } else if (point < 0x800) {
        *out++ = (uint8_t)(0xc0 | point >> 6);
        *out++ = (uint8_t)(0x80 | (point & 0x3f));
    } else if (point < 0x10000) {
        *out++ = (uint8_t)(0xe0 | point >> 12);
        *out++ = (uint8_t)(0x80 | (point >> 6 & 0x3f));
        *out++ = (uint8_t)(0x80 | (point & 0x3f));
    } else {
        *out++ = (uint8_t)(0xf0 | point >> 18);
        *out++ = (uint8_t)(0x80 | (point >> 12 & 0x3f));
        *out++ = (uint8_t)(0x80 | (point >> 6 & 0x3f));
        *out++ = (uint8_t)(0x80 | (point & 0x3f));
    }
    return out;
}

/* Reads the escape after the backslash at p; returns what follows it, or NULL. */
static const uint8_t *read_escape(const uint8_t *p, const uint8_t *end, uint8_t **out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (++p >= end) return NULL;
    if (*p != 'u') {
        const char *name = *p ? strchr(names, *p) : NULL;
        if (!name) return NULL;
        *(*out)++ = (uint8_t)values[name - names];
        return p + 1;
    }
    int unit = code_unit(p + 1, end);
    if (unit < 0) return NULL;
    p += 5;
    uint32_t point = (uint32_t)unit;
    if (unit >= 0xd800 && unit < 0xe000) {
        if (unit >= 0xdc00 || end - p < 6 || p[0] != '\\' || p[1] != 'u') return NULL; /* half of a pair */
        int low = code_unit(p + 2, end);
        if (low < 0xdc00 || low >= 0xe000) return NULL;
        point = 0x10000 + (((uint32_t)unit & 0x3ff) << 10 | ((uint32_t)low & 0x3ff));
        p += 6;
    }
    *out = put_character(*out, point);
    return p;
}

/* Writes the string that begins after a quote at p to `out`, never more bytes than it has here; returns what follows
   its closing quote, or NULL for what is no string. */
static const uint8_t *read_string(const uint8_t *p, const uint8_t *end, uint8_t **out) {
    for (;;) {
        copy_plain(&p, end, out);
        if (p >= end || *p < 0x20) return NULL;
        if (*p == '"') return p + 1;
        if (*p == '\\') {
            if (!(p = read_escape(p, end, out))) return NULL;
            continue;
        }
        while (p < end && *p >= 0x80) {
            int bytes = wide_bytes(p, end);
            if (!bytes) return NULL;
            for (int i = 0; i < bytes; i++) *(*out)++ = *p++;
        }
    }
}

static inline const uint8_t *skip_spaces(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r')) p++;
    return p;
}

/* Returns what follows the string whose opening quote is at p, or NULL. */
static const uint8_t *skip_string(const uint8_t *p, const uint8_t *end) {
    for (p++; p < end; p++) {
        if (*p == '"') return p + 1;
        if (*p == '\\') p++;
    }
    return NULL;
}

/* Returns what follows the value at p, or NULL; it is well-formed only if a parser says so, too. */
static const uint8_t *skip_value(const uint8_t *p, const uint8_t *end) {
    int64_t depth = 0;
    if (p >= end) return NULL;
    if (*p == '"') return skip_string(p, end);
    if (*p == '{' || *p == '[') {
        while (p < end) {
            if (*p == '"') {
                if (!(p = skip_string(p, end))) return NULL;
                continue;
            }
            depth += (*p == '{' || *p == '[') - (*p == '}' || *p == ']');
            p++;
            if (!depth) return p;
        }
        return NULL;
    }
    const uint8_t *start = p;
    while (p < end && *p != ',' && *p != '}' && *p != ']' && *p != ' ' && *p != '\t' && *p != '\r') p++;
    return p > start ? p : NULL;
}

/* A column of strings; string i is data[ends[i - 1]:ends[i]], and `used` bytes are taken. */
typedef struct {
    uint8_t *data;
    int64_t room, used;
    int32_t *ends;
} Column;

enum { TEXT, URL, SOURCE, REST, NUM_COLUMNS, DOC_ID = NUM_COLUMNS, NUM_KEYS };

static int find_key(const uint8_t *key, int64_t length) {
    static const char *const names[NUM_KEYS] = {[TEXT] = "text", [URL] = "url", [SOURCE] = "source", [DOC_ID] = "doc_id"};
    for (int i = 0; i < NUM_KEYS; i++)
        if (names[i] && (int64_t)strlen(names[i]) == length && !memcmp(names[i], key, (size_t)length)) return i;
    return REST;
}

static int has_room(const Column *column, int64_t bytes) { return bytes <= column->room - column->used - SLACK; }

/* Adds a member as it stands to an object of those that are not ours. */
static void add_rest(Column *rest, int64_t *size, const uint8_t *member, const uint8_t *end) {
    uint8_t *out = rest->data + rest->used;
    out[*size] = *size ? ',' : '{';
    memcpy(out + *size + 1, member, (size_t)(end - member));
    *size += 1 + (end - member);
}

/* Reads the line p..end as row `row`. Returns 0, with nothing added, if it is left to Python. */
static int read_line(const uint8_t *p, const uint8_t *end, Column *columns, int64_t row, const uint8_t *source,
                     int64_t source_bytes) {
    int64_t sizes[NUM_COLUMNS] = {0};
    int seen[NUM_KEYS] = {0};
    for (int i = 0; i < NUM_COLUMNS; i++)
        if (!has_room(&columns[i], end - p + 2 + source_bytes)) return 0;
    p = skip_spaces(p, end);
    if (p >= end || *p != '{') return 0;
    do {
        p = skip_spaces(p + 1, end);
        const uint8_t *member = p;
        if (p >= end || *p != '"') return 0;
        for (p++; p < end && *p != '"'; p++)
            if (*p == '\\' || *p < 0x20) return 0;
        if (p >= end) return 0;
        int key = find_key(member + 1, p - member - 1);
        p = skip_spaces(p + 1, end);
        if (p >= end || *p != ':') return 0;
        p = skip_spaces(p + 1, end);
        if (key == REST) {
            if (!(p = skip_value(p, end))) return 0;
            add_rest(&columns[REST], &sizes[REST], member, p);
        } else {
            if (p >= end || *p != '"' || seen[key]++) return 0;
            /* An id is read only to see that it is a string. */
            Column *column = &columns[key == DOC_ID ? TEXT : key];
            uint8_t *start = column->data + column->used + (key == DOC_ID ? sizes[TEXT] : 0), *out = start;
            if (!(p = read_string(p + 1, end, &out))) return 0;
            if (key != DOC_ID) sizes[key] = out - start;
        }
        p = skip_spaces(p, end);
    } while (p < end && *p == ',');
    if (p >= end || *p != '}' || skip_spaces(p + 1, end) != end || !seen[TEXT]) return 0;
    if (!seen[SOURCE]) memcpy(columns[SOURCE].data + columns[SOURCE].used, source, (size_t)(sizes[SOURCE] = source_bytes));
    if (sizes[REST]) columns[REST].data[columns[REST].used + sizes[REST]++] = '}';
    for (int i = 0; i < NUM_COLUMNS; i++) {
        columns[i].used += sizes[i];
        columns[i].ends[row] = (int32_t)columns[i].used;
    }
    return 1;
}

static int is_blank(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || (*p >= 9 && *p <= 13))) p++;
    return p == end;
}

/* Where reading stands: kept by the caller between calls. */
typedef struct {
    int64_t position, lines, rows, line_start, line_end, used[NUM_COLUMNS];
} State;

enum { AT_END, FULL, WITH_REST, FOR_PYTHON };

/* Reads lines as rows up to one that Python has to look at, or at whose members that are not ours. */
static int read_lines(const uint8_t *data, int64_t size, State *state, int64_t most_rows, int64_t most_bytes,
                      Column *columns, const uint8_t *source, int64_t source_bytes) {
    while (state->position < size) {
        if (state->rows == most_rows) return FULL;
        const uint8_t *line = data + state->position, *newline = memchr(line, '\n', (size_t)(size - state->position));
        const uint8_t *end = newline ? newline : data + size;
        state->position = (newline ? newline + 1 : end) - data;
        state->lines++;
        while (end > line && end[-1] == '\r') end--;
        state->line_start = line - data;
        state->line_end = end - data;
        if (end - line > most_bytes) return FOR_PYTHON;
        if (is_blank(line, end)) continue;
        if (!read_line(line, end, columns, state->rows, source, source_bytes)) return FOR_PYTHON;
        state->rows++;
        if (columns[REST].used) return WITH_REST;
    }
    return AT_END;
}

/* ---- Writing ---- */

enum { STRING, BINARY, FIXED };

/* A column of a batch; the values of STRING and BINARY are data[offsets[i]:offsets[i + 1]], those of FIXED `width`
   bytes each. `key` is all that stands before a value in its line. */
typedef struct {
    const uint8_t *key, *valid, *data;
    const int32_t *offsets;
    int64_t key_bytes, valid_bytes, data_bytes, width, first;
    int kind;
} Values;

static int64_t value_bytes(const Values *values, int64_t row) {
    return values->kind == FIXED ? values->width : (int64_t)values->offsets[row + 1] - values->offsets[row];
}

static uint8_t *write_hex(const uint8_t *p, const uint8_t *end, uint8_t *out) {
    static const char digits[] = "0123456789abcdef";
    for (; p < end; p++) {
        *out++ = (uint8_t)digits[*p >> 4];
        *out++ = (uint8_t)digits[*p & 15];
    }
    return out;
}

/* Returns the end of what is written, or NULL if the bytes are not UTF-8. */
static uint8_t *write_string(const uint8_t *p, const uint8_t *end, uint8_t *out) {
    static const char escapes[0x20] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    while (p < end) {
        copy_plain(&p, end, &out);
        if (p < end && *p < 0x80) {
            *out++ = '\\';
            if (*p >= 0x20) {
                *out++ = *p;
            } else if (escapes[*p]) {
                *out++ = (uint8_t)escapes[*p];
            } else {
                memcpy(out, "u00", 3);
                out = write_hex(p, p + 1, out + 3);
            }
            p++;
        }
        while (p < end && *p >= 0x80) {
            int bytes = wide_bytes(p, end);
            if (!bytes) return NULL;
            for (int i = 0; i < bytes; i++) *out++ = *p++;
        }
    }
    return out;
}

/* Returns the end of the line of a row, or NULL; there is room for it. */
static uint8_t *write_line(const Values *columns, int num_columns, int64_t row, uint8_t *out) {
    for (int i = 0; i < num_columns; i++) {
        const Values *values = &columns[i];
        int64_t at = values->first + row, bytes = value_bytes(values, at);
        memcpy(out, values->key, (size_t)values->key_bytes);
        out += values->key_bytes;
        if (values->valid && !(values->valid[at >> 3] >> (at & 7) & 1)) {
            memcpy(out, "null", 4);
            out += 4;
            continue;
        }
        const uint8_t *start = values->data + (values->kind == FIXED ? at * values->width : values->offsets[at]);
        *out++ = '"';
        out = values->kind == STRING ? write_string(start, start + bytes, out) : write_hex(start, start + bytes, out);
        if (!out) return NULL;
        *out++ = '"';
    }
    memcpy(out, "}\n", 2);
    return out + 2;
}

/* Whether a row's values are within the data. */
static int row_is_sound(const Values *columns, int num_columns, int64_t row) {
    for (int i = 0; i < num_columns; i++) {
        const Values *values = &columns[i];
        int64_t at = values->first + row;
        if (values->kind == FIXED) continue; /* checked for all rows at once */
        if (values->offsets[at] < 0 || values->offsets[at + 1] < values->offsets[at]) return 0;
        if (values->offsets[at + 1] > values->data_bytes) return 0;
    }
    return 1;
}

/* Returns the most bytes that the line of a row may take. */
static int64_t most_line_bytes(const Values *columns, int num_columns, int64_t row) {
    int64_t most = 2 + SLACK;
    for (int i = 0; i < num_columns; i++) most += columns[i].key_bytes + 6 + 6 * value_bytes(&columns[i], columns[i].first + row);
    return most;
}

enum { GOAL = 1, NO_ROOM, NOT_TEXT }; /* why writing stopped before the last row; 0: it did not */

/* Writes the rows numbered `chosen`, or all if it is NULL. `state`: how many are done, and the bytes written. */
static int write_lines(const Values *columns, int num_columns, const int64_t *chosen, int64_t num_rows, uint8_t *out,
                       int64_t room, int64_t goal, int64_t *ends, int64_t *state) {
    for (; state[0] < num_rows; state[0]++) {
        int64_t row = chosen ? chosen[state[0]] : state[0];
        if (state[1] >= goal) return GOAL;
        if (!row_is_sound(columns, num_columns, row)) return NOT_TEXT;
        if (most_line_bytes(columns, num_columns, row) > room - state[1]) return NO_ROOM;
        uint8_t *end = write_line(columns, num_columns, row, out + state[1]);
        if (!end) return NOT_TEXT;
        state[1] = end - out;
        if (ends) ends[state[0]] = state[1];
    }
    return state[1] >= goal ? GOAL : 0;
}

/* ---- The module ---- */

/* Checks numbers that came from Python. */
static int is_sound(const State *state, int64_t size, int64_t most_rows, const Column *columns) {
    if (state->position < 0 || state->position > size || state->rows < 0 || state->rows > most_rows) return 0;
    for (int i = 0; i < NUM_COLUMNS; i++)
        if (state->used[i] < 0 || state->used[i] > columns[i].room || columns[i].room > INT32_MAX) return 0;
    return 1;
}

static PyObject *py_read(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *o[3], *tuple;
    long long most_rows, most_bytes;
    if (!PyArg_ParseTuple(args, "OOOO!LL", &o[0], &o[1], &o[2], &PyTuple_Type, &tuple, &most_rows, &most_bytes)) return NULL;
    if (PyTuple_Size(tuple) != 2 * NUM_COLUMNS || most_rows < 0) {
        PyErr_SetString(PyExc_ValueError, "columns: expected data and ends of each");
        return NULL;
    }
    Buffers buffers = {.count = 0};
    Column columns[NUM_COLUMNS];
    const uint8_t *data, *source;
    State *state;
    int result = -1;
    int64_t size, source_bytes;
    if (!(data = items(&buffers, o[0], "data", 1, 0, 0))) goto done;
    size = last_bytes(&buffers);
    if (!(source = items(&buffers, o[1], "source", 1, 0, 0))) goto done;
    source_bytes = last_bytes(&buffers);
    if (!(state = items(&buffers, o[2], "state", 8, sizeof *state / 8, 1))) goto done;
    for (int i = 0; i < NUM_COLUMNS; i++) {
        if (!(columns[i].data = items(&buffers, PyTuple_GetItem(tuple, 2 * i), "data of a column", 1, 0, 1))) goto done;
        columns[i].room = last_bytes(&buffers);
        if (!(columns[i].ends = items(&buffers, PyTuple_GetItem(tuple, 2 * i + 1), "ends", 4, most_rows, 1))) goto done;
        columns[i].used = state->used[i];
    }
    if (!is_sound(state, size, most_rows, columns)) {
        PyErr_SetString(PyExc_ValueError, "state: beyond the buffers");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    result = read_lines(data, size, state, most_rows, most_bytes, columns, source, source_bytes);
    for (int i = 0; i < NUM_COLUMNS; i++) state->used[i] = columns[i].used;
    Py_END_ALLOW_THREADS
done:
    release(&buffers);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(result);
}

/* Reads (kind, width, first, key, validity or None, offsets or None, data) of a column with `rows` rows. */
static int get_values(Buffers *buffers, PyObject *tuple, int64_t rows, Values *values) {
    PyObject *key, *valid, *offsets, *data;
    long long width, first;
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_ValueError, "columns: expected tuples");
        return 0;
    }
    if (!PyArg_ParseTuple(tuple, "iLLOOOO", &values->kind, &width, &first, &key, &valid, &offsets, &data)) return 0;
    values->width = width;
    values->first = first;
    if (values->kind < STRING || values->kind > FIXED || width < 0 || first < 0 || rows > INT32_MAX || first > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "columns: no such kind, width or first row");
        return 0;
    }
    if (!(values->key = items(buffers, key, "key", 1, 0, 0))) return 0;
    values->key_bytes = last_bytes(buffers);
    values->valid = NULL;
    if (valid != Py_None && !(values->valid = items(buffers, valid, "validity", 1, (first + rows + 7) / 8, 0))) return 0;
    values->offsets = NULL;
    if (values->kind != FIXED && !(values->offsets = items(buffers, offsets, "offsets", 4, first + rows + 1, 0))) return 0;
    if (!(values->data = items(buffers, data, "data", 1, values->kind == FIXED ? width * (first + rows) : 0, 0))) return 0;
    values->data_bytes = last_bytes(buffers);
    return 1;
}

static PyObject *py_write(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *tuple, *o[4];
    long long rows, goal;
    if (!PyArg_ParseTuple(args, "O!LOOLOO", &PyTuple_Type, &tuple, &rows, &o[3], &o[0], &goal, &o[1], &o[2])) return NULL;
    Py_ssize_t num_columns = PyTuple_Size(tuple);
    if (num_columns < 1 || num_columns > MAX_COLUMNS || rows < 0) {
        PyErr_SetString(PyExc_ValueError, "columns: too many, or none");
        return NULL;
    }
    Buffers buffers = {.count = 0};
    Values columns[MAX_COLUMNS];
    uint8_t *out;
    int64_t room, num_rows = rows, *ends = NULL, *state;
    const int64_t *chosen = NULL;
    int result = -1;
    for (Py_ssize_t i = 0; i < num_columns; i++)
        if (!get_values(&buffers, PyTuple_GetItem(tuple, i), rows, &columns[i])) goto done;
    if (o[3] != Py_None) {
        if (!(chosen = items(&buffers, o[3], "chosen", 8, 0, 0))) goto done;
        num_rows = last_bytes(&buffers) / 8;
        for (int64_t i = 0; i < num_rows; i++) {
            if (chosen[i] >= 0 && chosen[i] < rows) continue;
            PyErr_SetString(PyExc_ValueError, "chosen: no such row");
            goto done;
        }
    }
    if (!(out = items(&buffers, o[0], "out", 1, 0, 1))) goto done;
    room = last_bytes(&buffers);
    if (o[1] != Py_None && !(ends = items(&buffers, o[1], "ends", 8, num_rows, 1))) goto done;
    if (!(state = items(&buffers, o[2], "state", 8, 2, 1))) goto done;
    if (state[0] < 0 || state[1] < 0 || state[1] > room) {
        PyErr_SetString(PyExc_ValueError, "state: beyond the buffers");
        goto done;
    }
    Py_BEGIN_ALLOW_THREADS
    result = write_lines(columns, (int)num_columns, chosen, num_rows, out, room, goal, ends, state);
    Py_END_ALLOW_THREADS
done:
    release(&buffers);
    return PyErr_Occurred() ? NULL : PyLong_FromLong(result);
}

static PyMethodDef methods[] = {
    {"read", py_read, METH_VARARGS, "read(data, source, state, columns, most_rows, most_bytes)"},
    {"write", py_write, METH_VARARGS, "write(columns, rows, chosen, out, goal, ends, state)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_lines", "See pipelines/native/lines.py.", 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__lines(void) { return new_module(&definition, 2); }

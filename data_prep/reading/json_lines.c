/* The hot loops of data_prep.reading.blocks: lines of JSON to texts and back, byte for byte as Python's `json` has them.
 *
 * Built with the system's compiler at first use (common/native.py).  A line that is in any way out of the ordinary is called odd and
 * left to Python, which alone knows the errors; what is read here is written as json.dumps(record, ensure_ascii=False) would write it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MEMBERS 128 /* of an object */
#define MAX_DEPTH 32
#define MAX_ID 4096
#define STRIDE 32 /* bytes that are looked at together: loops over so many become one instruction or two */
enum { PLAIN = 0, EMPTY = 1, ODD = 2 };

typedef struct {
    const uint8_t *p, *end;
    uint8_t *out; /* NULL after something odd */
} Cursor;

typedef struct {
    const uint8_t *start;
    int64_t size;
} Span;

static inline void skip_space(Cursor *c) {
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\r' || *c->p == '\t')) c->p++;
}

/* Whether bytes are UTF-8 as Python takes it: no surrogates, no overlong forms. */
static int is_utf8(const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        uint64_t eight;
        while (end - p >= STRIDE) {
            uint8_t highs = 0;
            for (int i = 0; i < STRIDE; i++) highs |= p[i];
            if (highs & 0x80) break;
            p += STRIDE;
        }
        while (end - p >= 8 && (memcpy(&eight, p, 8), !(eight & 0x8080808080808080ull))) p += 8;
        if (p >= end) break;
        uint8_t c = *p;
        if (c < 0x80) {
            p++;
            continue;
        }
        int more = c >= 0xC2 && c < 0xE0 ? 1 : c >= 0xE0 && c < 0xF0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : 0;
        if (!more || end - p <= more) return 0;
        for (int i = 1; i <= more; i++)
            if ((p[i] & 0xC0) != 0x80) return 0;
        if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F) || (c == 0xF0 && p[1] < 0x90) || (c == 0xF4 && p[1] > 0x8F)) return 0;
        p += more + 1;
    }
    return 1;
}

static inline int hex4(const uint8_t *p) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int c = p[i], digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

static inline uint8_t *put_point(uint8_t *o, uint32_t c) {
    if (c < 0x80) {
        *o++ = c;
    } else if (c < 0x800) {
        *o++ = 0xC0 | c >> 6;
        *o++ = 0x80 | (c & 0x3F);
    } else if (c < 0x10000) {
        *o++ = 0xE0 | c >> 12;
        *o++ = 0x80 | (c >> 6 & 0x3F);
        *o++ = 0x80 | (c & 0x3F);
    } else {
        *o++ = 0xF0 | c >> 18;
        *o++ = 0x80 | (c >> 12 & 0x3F);
        *o++ = 0x80 | (c >> 6 & 0x3F);
        *o++ = 0x80 | (c & 0x3F);
    }
    return o;
}

/* A character below 0x80 as it stands between the quotes of a JSON string. */
static inline uint8_t *put_escaped(uint8_t *o, uint8_t c) {
    static const char hex[] = "0123456789abcdef";
    const char *known = c == '\n' ? "n" : c == '\r' ? "r" : c == '\t' ? "t" : c == '\f' ? "f" : c == '\b' ? "b" : c == '"' ? "\"" : c == '\\' ? "\\" : NULL;
    if (known) {
        *o++ = '\\';
        *o++ = *known;
    } else if (c < 0x20) {
        memcpy(o, "\\u00", 4);
        o[4] = hex[c >> 4];
        o[5] = hex[c & 15];
        o += 6;
    } else {
        *o++ = c;
    }
    return o;
}

/* Whether eight bytes hold a quote, a backslash or a control character. */
static inline uint64_t has_special(uint64_t v) {
    const uint64_t ones = 0x0101010101010101ull, highs = 0x8080808080808080ull;
    uint64_t quote = v ^ ones * '"', slash = v ^ ones * '\\';
    return (((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((v - ones * 0x20) & ~v)) & highs;
}

/* Copies bytes without a quote, a backslash or a control character from *p to *o as far as whole strides go. */
static inline void copy_plain(const uint8_t **p, const uint8_t *end, uint8_t **o) {
    while (end - *p >= STRIDE) {
        const uint8_t *from = *p;
        uint8_t found = 0;
        for (int i = 0; i < STRIDE; i++) found |= (from[i] == '"') | (from[i] == '\\') | (from[i] < 0x20);
        if (found) return;
        memcpy(*o, from, STRIDE);
        *p += STRIDE;
        *o += STRIDE;
    }
}

/* A string from behind its first quote, to `out`: its characters, or (escaped) as json.dumps writes them without the quotes. */
static int read_string(Cursor *c, int escaped) {
    const uint8_t *p = c->p, *end = c->end;
    uint8_t *o = c->out;
    for (;;) {
        uint64_t eight;
        copy_plain(&p, end, &o);
        while (end - p >= 8 && (memcpy(&eight, p, 8), !has_special(eight))) {
            memcpy(o, &eight, 8);
            p += 8;
            o += 8;
        }
        if (p >= end || *p < 0x20) return 0;
        if (*p == '"') break;
        if (*p != '\\') {
            *o++ = *p++;
            continue;
        }
        if (end - p < 2) return 0;
        uint32_t point;
        switch (p[1]) {
            case '"': case '\\': case '/': point = p[1]; break;
            case 'b': point = '\b'; break;
            case 'f': point = '\f'; break;
            case 'n': point = '\n'; break;
            case 'r': point = '\r'; break;
            case 't': point = '\t'; break;
            case 'u': {
                int first = end - p >= 6 ? hex4(p + 2) : -1;
                if (first < 0 || (first >= 0xDC00 && first < 0xE000)) return 0;
                point = first;
                p += 4;
                if (first >= 0xD800 && first < 0xDC00) {
                    int second = end - p >= 8 && p[2] == '\\' && p[3] == 'u' ? hex4(p + 4) : -1;
                    if (second < 0xDC00 || second > 0xDFFF) return 0;
                    point = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                    p += 6;
                }
                break;
            }
            default: return 0;
        }
        p += 2;
        o = escaped && point < 0x80 ? put_escaped(o, point) : put_point(o, point);
    }
    c->p = p + 1;
    c->out = o;
    return 1;
}

/* Whether a number with a point is spelled as Python's repr spells it. */
static int is_repr(const uint8_t *start, int64_t size) {
    char number[40], shortest[40];
    if (size >= (int64_t)sizeof(number)) return 0;
    memcpy(number, start, size);
    number[size] = 0;
    const char *digits = number + (number[0] == '-'), *point = strchr(digits, '.');
    if (!point || point - digits > 16) return 0;
    if (point[1] && point[2] && number[size - 1] == '0') return 0; /* 0.10 */
    if (digits[0] == '0' && !strncmp(point, ".0000", 5)) return 0; /* in powers of ten */
    int significant = 0;
    for (const char *at = digits; *at; at++)
        if (*at != '.' && (significant || *at != '0')) significant++;
    if (significant <= 15) return 1; /* so many always survive */
    double value = strtod(number, NULL);
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(shortest, sizeof(shortest), "%.*g", precision, value);
        if (strtod(shortest, NULL) == value) return !strcmp(shortest, number);
    }
    return 0;
}

static int read_number(Cursor *c) {
    const uint8_t *start = c->p, *p = start, *end = c->end;
    int negative = p < end && *p == '-';
    p += negative;
    const uint8_t *digits = p;
    while (p < end && *p >= '0' && *p <= '9') p++;
    if (p == digits || (*digits == '0' && p - digits > 1) || p - digits > 4000) return 0;
    if (p < end && *p == '.') {
        const uint8_t *fraction = ++p;
        while (p < end && *p >= '0' && *p <= '9') p++;
        if (p == fraction || !is_repr(start, p - start)) return 0;
    } else if (negative && *digits == '0') {
        return 0;
    }
    if (p < end && (*p == 'e' || *p == 'E')) return 0;
    memcpy(c->out, start, p - start);
    c->out += p - start;
    c->p = p;
    return 1;
}

/* A key to `out` with its quotes and the colon; its characters (which have no escapes) to `key`. */
static int read_key(Cursor *c, Span *key) {
    skip_space(c);
    if (c->p >= c->end || *c->p != '"') return 0;
    key->start = ++c->p;
    while (c->p < c->end && *c->p != '"') {
        if (*c->p < 0x20 || *c->p == '\\') return 0;
        c->p++;
    }
    key->size = c->p - key->start;
    if (c->p >= c->end) return 0;
    c->p++;
    skip_space(c);
    if (c->p >= c->end || *c->p != ':') return 0;
    c->p++;
    *c->out++ = '"';
    memcpy(c->out, key->start, key->size);
    c->out += key->size;
    memcpy(c->out, "\": ", 3);
    c->out += 3;
    skip_space(c);
    return c->p < c->end;
}

static inline int same(const Span *a, const void *bytes, int64_t size) { return a->size == size && !memcmp(a->start, bytes, size); }

static int is_new(const Span *keys, int count) {
    for (int i = 0; i < count; i++)
        if (same(&keys[i], keys[count].start, keys[count].size)) return 0;
    return 1;
}

static int read_value(Cursor *c, int depth) {
    static const struct { const char *word; int size; } words[] = {{"true", 4}, {"false", 5}, {"null", 4}};
    if (c->p >= c->end || depth > MAX_DEPTH) return 0;
    uint8_t first = *c->p;
    if (first == '"') {
        *c->out++ = '"';
        c->p++;
        if (!read_string(c, 1)) return 0;
        *c->out++ = '"';
        return 1;
    }
    if (first == '-' || (first >= '0' && first <= '9')) return read_number(c);
    for (int i = 0; i < 3; i++)
        if (c->end - c->p >= words[i].size && !memcmp(c->p, words[i].word, words[i].size)) {
            memcpy(c->out, words[i].word, words[i].size);
            c->out += words[i].size;
            c->p += words[i].size;
            return 1;
        }
    if (first != '[' && first != '{') return 0;
    uint8_t last = first == '[' ? ']' : '}';
    Span keys[MAX_MEMBERS];
    int members = 0;
    *c->out++ = first;
    c->p++;
    skip_space(c);
    if (c->p < c->end && *c->p == last) {
        c->p++;
        *c->out++ = last;
        return 1;
    }
    for (;;) {
        if (first == '{') {
            if (members == MAX_MEMBERS || !read_key(c, &keys[members]) || !is_new(keys, members)) return 0;
            members++;
        } else {
            skip_space(c);
        }
        if (!read_value(c, depth + 1)) return 0;
        skip_space(c);
        if (c->p >= c->end) return 0;
        if (*c->p == last) break;
        if (*c->p++ != ',') return 0;
        *c->out++ = ',';
        *c->out++ = ' ';
    }
    c->p++;
    *c->out++ = last;
    return 1;
}

/* One line: its text to `text`, its other members to `rest`, with the id before them.  Returns what it is. */
static int read_line(const uint8_t *start, const uint8_t *end, const uint8_t *key, int64_t key_size, uint8_t **text, uint8_t **rest, int64_t *id_size) {
    Cursor c = {start, end, *rest};
    skip_space(&c);
    if (c.p == end) return EMPTY;
    if (*c.p != '{' || !is_utf8(start, end)) return ODD;
    c.p++;
    Span keys[MAX_MEMBERS];
    int has_text = 0;
    uint8_t *text_end = *text;
    *id_size = 0;
    for (int members = 0;; members++) {
        uint8_t *before = c.out;
        if (c.out > *rest) {
            *c.out++ = ',';
            *c.out++ = ' ';
        }
        uint8_t *member = c.out;
        if (members == MAX_MEMBERS || !read_key(&c, &keys[members]) || !is_new(keys, members)) return ODD;
        if (same(&keys[members], key, key_size)) {
            if (*c.p++ != '"') return ODD;
            Cursor inner = {c.p, end, *text};
            if (!read_string(&inner, 0)) return ODD;
            c.p = inner.p;
            c.out = before;
            text_end = inner.out;
            has_text = 1;
        } else {
            if (!read_value(&c, 0)) return ODD;
            if (same(&keys[members], "id", 2)) {
                uint8_t kept[MAX_ID];
                *id_size = c.out - member;
                if (*id_size > MAX_ID) return ODD;
                if (before > *rest) {
                    memcpy(kept, member, *id_size);
                    memmove(*rest + *id_size + 2, *rest, before - *rest);
                    memcpy(*rest, kept, *id_size);
                    memcpy(*rest + *id_size, ", ", 2);
                }
            }
        }
        skip_space(&c);
        if (c.p >= end) return ODD;
        if (*c.p == '}') break;
        if (*c.p++ != ',') return ODD;
    }
    c.p++;
    skip_space(&c);
    if (c.p != end || !has_text) return ODD;
    *text = text_end;
    *rest = c.out;
    return PLAIN;
}

static int64_t num_points(const uint8_t *p, const uint8_t *end) {
    int64_t points = 0;
    for (; end - p >= STRIDE; p += STRIDE) {
        uint8_t here = 0;
        for (int i = 0; i < STRIDE; i++) here += (p[i] & 0xC0) != 0x80;
        points += here;
    }
    for (; p < end; p++) points += (*p & 0xC0) != 0x80;
    return points;
}

/* Lines as texts.
 *
 * starts: (num_lines + 1,) of the lines in `data`.  key: of the text.
 * kinds: of each line.  text, text_ends: the texts one behind the other; characters: of each.  rest, rest_ends: the other members as JSON,
 * with the id before them, which takes id_sizes bytes (`"id": 7`), 0 where there is none.  Lines that are not plain have no bytes.
 */
void json_lines_read(const uint8_t *data, const int64_t *starts, int64_t num_lines, const uint8_t *key, int64_t key_size, uint8_t *kinds,
                     uint8_t *text, int64_t *text_ends, int64_t *characters, uint8_t *rest, int64_t *rest_ends, int64_t *id_sizes) {
    uint8_t *text_at = text, *rest_at = rest;
    for (int64_t i = 0; i < num_lines; i++) {
        const uint8_t *from = text_at;
        kinds[i] = read_line(data + starts[i], data + starts[i + 1], key, key_size, &text_at, &rest_at, &id_sizes[i]);
        characters[i] = num_points(from, text_at);
        text_ends[i] = text_at - text;
        rest_ends[i] = rest_at - rest;
    }
}

static uint8_t *put(uint8_t *o, const void *bytes, int64_t size) {
    memcpy(o, bytes, size);
    return o + size;
}

/* Some documents, by their numbers, as lines of JSON: the id, the other members, the text under its key.  Returns the number of bytes.
 *
 * name: of the file as a JSON string without its last quote; with the line it is the id of a document without one.
 * key: `, "KEY": "`.  out has room for six times the texts, the rests and names.
 */
int64_t json_lines_write(const uint8_t *text, const int64_t *text_offsets, const uint8_t *rest, const int64_t *rest_offsets, const int64_t *id_sizes,
                         const int64_t *lines, const int64_t *documents, int64_t num_documents, const uint8_t *name, int64_t name_size, const uint8_t *key,
                         int64_t key_size, uint8_t *out) {
    uint8_t *o = out;
    for (int64_t i = 0; i < num_documents; i++) {
        int64_t d = documents[i];
        int64_t rest_size = rest_offsets[d + 1] - rest_offsets[d];
        *o++ = '{';
        if (!id_sizes[d]) {
            o = put(o, "\"id\": ", 6);
            o = put(o, name, name_size);
            o += sprintf((char *)o, ":%lld\"", (long long)lines[d]);
            if (rest_size) o = put(o, ", ", 2);
        }
        o = put(o, rest + rest_offsets[d], rest_size);
        o = put(o, key, key_size);
        const uint8_t *p = text + text_offsets[d], *end = text + text_offsets[d + 1];
        while (p < end) {
            uint64_t eight;
            copy_plain(&p, end, &o);
            while (end - p >= 8 && (memcpy(&eight, p, 8), !has_special(eight))) {
                memcpy(o, &eight, 8);
                p += 8;
                o += 8;
            }
            for (int i = 0; i < 8 && p < end; i++, p++) {
                if (*p >= 0x80)
                    *o++ = *p;
                else
                    o = put_escaped(o, *p);
            }
        }
        o = put(o, "\"}\n", 3);
    }
    return o - out;
}

/* Words in UTF-8 for the compiled loops: where one ends, and a hash of it, eight bytes at a time.
 *
 * White space is that of str.split() in Python.  Included by C files that common/native.py builds; bytes lie as on x86 and ARM, the
 * lowest first.
 */
#ifndef UTF8_WORDS_H
#define UTF8_WORDS_H

#include <stdint.h>
#include <string.h>

/* All bits of a number mixed, never 0. */
static inline uint64_t finish(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    x ^= x >> 31;
    return x ? x : 1;
}

/* Of ASCII. */
static inline int is_small(uint8_t c) { return c >= 'a' && c <= 'z'; }
static inline int is_letter(uint8_t c) { return is_small(c | 32); }
static inline int is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

/* The character at a place, which moves behind it. */
static inline uint32_t next_point(const uint8_t **at) {
    const uint8_t *p = *at;
    uint32_t c = p[0];
    if (c < 0x80) {
        *at = p + 1;
        return c;
    }
    if (c < 0xE0) {
        *at = p + 2;
        return (c & 0x1F) << 6 | (p[1] & 0x3F);
    }
    if (c < 0xF0) {
        *at = p + 3;
        return (c & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    }
    *at = p + 4;
    return (c & 0x07) << 18 | (p[1] & 0x3F) << 12 | (p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

/* Bytes of the white space at p, 0 where there is none. */
static inline int space_at(const uint8_t *p, const uint8_t *end) {
    uint8_t c = p[0];
    if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
    if (c == 0xC2 && p + 1 < end) return (p[1] == 0x85 || p[1] == 0xA0) ? 2 : 0;
    if (c < 0xE1 || c > 0xE3 || p + 2 >= end) return 0;
    if (c == 0xE1) return (p[1] == 0x9A && p[2] == 0x80) ? 3 : 0;
    if (c == 0xE3) return (p[1] == 0x80 && p[2] == 0x80) ? 3 : 0;
    if (p[1] == 0x80) return ((p[2] >= 0x80 && p[2] <= 0x8A) || p[2] == 0xA8 || p[2] == 0xA9 || p[2] == 0xAF) ? 3 : 0;
    return (p[1] == 0x81 && p[2] == 0x9F) ? 3 : 0;
}

/* Up to eight bytes as a number, the first one lowest; zeros behind the end. */
static inline uint64_t eight_at(const uint8_t *p, const uint8_t *end) {
    uint64_t eight = 0;
    if (end - p >= 8)
        memcpy(&eight, p, 8);
    else
        for (int i = 0; i < end - p; i++) eight |= (uint64_t)p[i] << (8 * i);
    return eight;
}

static const uint64_t BYTES_MASK[] = {0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF, 0xFFFFFFFFFF, 0xFFFFFFFFFFFF, 0xFFFFFFFFFFFFFF, ~0ull}; /* the first bytes of eight */

static inline uint64_t hash_step(uint64_t value, uint64_t eight) {
    value = (value ^ eight) * 0x9E3779B97F4A7C15ull;
    return value ^ value >> 32;
}

#define MANY_WORDS 64
#define MOST_WORDS (MANY_WORDS + 32) /* as many as may end in 64 bytes more */

typedef struct { /* words one after the other */
    const uint8_t *starts[MOST_WORDS], *ends[MOST_WORDS];
    uint64_t keys[MOST_WORDS]; /* hashes of their bytes (`word_hash`) */
} Words;

typedef uint8_t Stretch __attribute__((vector_size(64)));

/* A bit for each byte, whether its lowest is set. */
static inline uint64_t lowest_bits(Stretch bytes) {
    uint64_t eights[8], bits = 0;
    bytes &= 1;
    memcpy(eights, &bytes, 64);
    for (int i = 0; i < 8; i++) bits |= (eights[i] * 0x0102040810204080ull >> 56) << 8 * i;
    return bits;
}

/* Which of the 64 bytes at p are of white space, a bit each, those behind the end too.  begun: the bytes of a character that began before them; it gets
 * those that go on behind them. */
static inline uint64_t spaces_at(const uint8_t *p, const uint8_t *end, uint64_t *begun) {
    Stretch bytes;
    if (end - p >= 64) {
        memcpy(&bytes, p, 64);
    } else {
        memset(&bytes, ' ', 64);
        memcpy(&bytes, p, end - p);
    }
    uint64_t is_space = *begun | lowest_bits((Stretch)((bytes == ' ') | ((bytes - 0x09) < 5) | ((bytes - 0x1C) < 4)));
    uint64_t may_be = lowest_bits((Stretch)((bytes == 0xC2) | ((bytes - 0xE1) < 3)));
    *begun = 0;
    for (; may_be; may_be &= may_be - 1) {
        int at = __builtin_ctzll(may_be), width = space_at(p + at, end);
        uint64_t bits = (1ull << width) - 1;
        is_space |= bits << at;
        if (at + width > 64) *begun |= bits >> (64 - at);
    }
    return is_space;
}

/* A hash of the bytes of a word (data_prep/deduplication/onion_plain.py has the same); end: of its text, up to which may be read. */
static inline uint64_t word_hash(const uint8_t *p, int64_t size, const uint8_t *end) {
    uint64_t value = 0, eight, next;
    if (size <= 16 && end - p >= 16) { /* without a branch on the length, which nothing foretells */
        memcpy(&eight, p, 8);
        memcpy(&next, p + 8, 8);
        int first = size < 8 ? size : 8, more = size - first;
        uint64_t one = hash_step(0, eight & BYTES_MASK[first]), two = hash_step(one, next & BYTES_MASK[more]);
        value = more ? two : one;
    } else {
        for (int64_t at = 0; at < size; at += 8) value = hash_step(value, eight_at(p + at, p + size));
    }
    return finish(value ^ (uint64_t)size << 56);
}

/* The next words from a place on, some more than MANY_WORDS where there are as many; their number. */
static inline int cut_words(const uint8_t *p, const uint8_t *end, Words *words) {
    int number = 0, begun = 0;
    uint64_t before = 1, going_on = 0; /* before: whether white space is before p */
    for (; p < end && number < MANY_WORDS; p += 64) {
        uint64_t is_space = spaces_at(p, end, &going_on), was_space = is_space << 1 | before;
        for (uint64_t starts = ~is_space & was_space; starts; starts &= starts - 1) words->starts[begun++] = p + __builtin_ctzll(starts);
        for (uint64_t ends = is_space & ~was_space; ends; ends &= ends - 1) words->ends[number++] = p + __builtin_ctzll(ends);
        before = is_space >> 63;
    }
    if (number < begun && p >= end) words->ends[number++] = end;
    for (int i = 0; i < number; i++) words->keys[i] = word_hash(words->starts[i], words->ends[i] - words->starts[i], end);
    return number;
}

#endif

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

/* The first of eight bytes that may be or begin white space, 8 where none does: below 0x21, 0xC2, 0xE0 to 0xE3. */
static inline int first_candidate(uint64_t v) {
    const uint64_t ones = 0x0101010101010101ull, highs = 0x8080808080808080ull;
    uint64_t two = v ^ ones * 0xC2, three = (v & ones * 0xFC) ^ ones * 0xE0;
    /* A borrow may mark a byte behind one that is marked rightly, never one before it. */
    uint64_t marked = (((v - ones * 0x21) & ~v) | ((two - ones) & ~two) | ((three - ones) & ~three)) & highs;
    return marked ? __builtin_ctzll(marked) >> 3 : 8;
}

/* The end of the word that begins at p, and a hash of its bytes (data_prep/deduplication/onion_plain.py has the same). */
static inline const uint8_t *word_end(const uint8_t *p, const uint8_t *end, uint64_t *hash) {
    const uint8_t *start = p;
    uint64_t value = 0;
    for (;;) {
        uint64_t chunk = eight_at(p, end);
        int size = first_candidate(chunk);
        while (size < 8 && p + size < end && !space_at(p + size, end)) size++;
        if (size < 8) chunk &= (1ull << (8 * size)) - 1;
        if (size) {
            value = (value ^ chunk) * 0x9E3779B97F4A7C15ull;
            value ^= value >> 32;
        }
        p += size;
        if (size < 8) break;
    }
    *hash = finish(value ^ (uint64_t)(p - start) << 56);
    return p;
}

#endif

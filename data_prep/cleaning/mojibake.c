/* The hot loop of data_prep.cleaning.mojibake: whether a text may be repaired.
 *
 * Built with the system's compiler at first use (common/native.py).  What is found is what may be: mojibake.py decides.  Texts are valid UTF-8.
 */
#include <stdint.h>

#include "utf8_words.h"

#define NUM_POINTS 0x2200 /* code points in the tables; those behind are in none of the code pages */
#define MAX_STRETCH 1024  /* characters beyond ASCII that follow each other; more may be anything */
#define LATIN_END 0x250   /* letters of two bytes from here on are of other alphabets (`_LATIN` in mojibake.py) */
enum { SMALL = 1, TYPOGRAPHY = 2 }; /* of `kinds` */

typedef struct {
    const uint8_t *bytes; /* (num_pages, NUM_POINTS): of each character in a code page, 0 where it has none */
    const uint8_t *kinds; /* (NUM_POINTS,) */
    int64_t num_pages, cyrillic; /* cyrillic: the page that text with words of that alphabet was not read in */
} Pages;

/* The bytes of a sequence that stands for one character of UTF-8, 0 where there is none. */
static int sequence_at(const uint8_t *p, const uint8_t *end) {
    int size = *p >= 0xC2 && *p < 0xE0 ? 2 : *p >= 0xE0 && *p < 0xF0 ? 3 : *p >= 0xF0 && *p < 0xF5 ? 4 : 0;
    if (!size || end - p < size) return 0;
    for (int i = 1; i < size; i++)
        if ((p[i] & 0xC0) != 0x80) return 0;
    return size;
}

/* Whether a sequence that has none beside it may be wrong, as `_is_certain` in mojibake.py says. */
static int is_wrong_alone(const Pages *t, const uint8_t *p, int size, uint32_t before, uint32_t second) {
    if (size == 3) return (p[0] & 0x0Fu) << 12 < 0x3000; /* marks are Latin too */
    if (size == 4 || ((p[0] & 0x1Fu) << 6 | (p[1] & 0x3F)) >= LATIN_END) return 0;
    return before >= NUM_POINTS || (t->kinds[before] & SMALL) || second >= NUM_POINTS || !(t->kinds[second] & TYPOGRAPHY);
}

/* Whether some characters of a stretch, `points` from 1 on with what stands before at 0, may be wrong in a code page. */
static int may_be_wrong(const Pages *t, int64_t page, const uint32_t *points, int64_t number) {
    uint8_t bytes[MAX_STRETCH], *end = bytes + number;
    for (int64_t i = 0; i < number; i++) bytes[i] = points[i + 1] < NUM_POINTS ? t->bytes[page * NUM_POINTS + points[i + 1]] : 0;
    const uint8_t *p = bytes;
    while (p < end) {
        int size = sequence_at(p, end);
        if (size && p + size < end && sequence_at(p + size, end)) return 1;
        if (size && is_wrong_alone(t, p, size, points[p - bytes], points[p - bytes + 2])) return 1;
        p += size ? size : 1;
    }
    return 0;
}

/* Whether a text may be repaired. */
int may_repair(const Pages *t, const uint8_t *p, int64_t size) {
    const uint8_t *end = p + size;
    uint32_t points[MAX_STRETCH + 1] = {0};
    int in_cyrillic = 0, has_cyrillic = 0;
    while (p < end) {
        if (*p < 0x80) {
            points[0] = *p++;
            continue;
        }
        int64_t number = 0, small = 0;
        while (p < end && *p >= 0x80) {
            if (number == MAX_STRETCH) return 1;
            uint32_t c = next_point(&p);
            small = c >= 0x430 && c < 0x450 ? small + 1 : 0; /* `_CYRILLIC` */
            has_cyrillic |= small == 4;
            points[++number] = c;
        }
        for (int64_t page = 0; number > 1 && page < t->num_pages; page++) {
            if ((page == t->cyrillic && (has_cyrillic || in_cyrillic)) || !may_be_wrong(t, page, points, number)) continue;
            if (page != t->cyrillic) return 1;
            in_cyrillic = 1;
        }
        points[0] = points[number];
    }
    return in_cyrillic && !has_cyrillic;
}

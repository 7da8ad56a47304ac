/* The hot loops of data_prep.cleaning.line_search: whether a text has lines or phrases that rules look for, and hashes of its short lines.
 *
 * Built with the system's compiler at first use (common/native.py).  Lines are compared as line_rules.py compares them: in small letters, any
 * number as 0, one space between words.  What Python alone knows (the small letters of I with a dot and of sigma at the end of a word,
 * digits of other scripts) is called odd and left to it.  Texts are valid UTF-8.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "utf8_words.h"

#define TABLE_SIZE 0x30000 /* code points in the tables; those behind have no small letters */
#define LETTER 1           /* of `kinds` in code_points.py, as the next */
#define DIGIT 2
#define MAX_LINE 4096      /* bytes of a short line; a longer one is odd */
#define NUM_HEADS 4096
#define MARKUP (1u << 8)   /* of what a text may need, as in code_points.py */
enum { TOO_LONG = -1, ODD = -2 };

typedef struct {
    const uint8_t *kinds;
    const uint32_t *lower;
    const uint64_t *lines; /* open addressing: hashes of lines that are looked for, 0 is empty */
    const uint32_t *line_bits;
    const uint8_t *phrases; /* one behind the other, with their ends */
    const int64_t *phrase_ends;
    const uint32_t *phrase_bits;   /* whose each is */
    const uint32_t *phrase_groups; /* and in which group of theirs */
    const uint32_t *heads, *nexts; /* phrases by their first bytes: number + 1, 0 is none */
    const uint32_t *groups;        /* of each of 32 bits: all its groups */
    uint64_t lines_mask;
    int64_t max_words; /* lines of more are not looked for */
    uint64_t key_mask; /* of the first bytes */
    uint32_t whole, contains, everything; /* bits of lines as wholes, of phrases, and of both and what every text is asked for */
    uint32_t in_rows;    /* of lines that go where they begin or end a text, or three follow each other */
    uint32_t in_threes;  /* of lines of which three must follow each other */
    uint32_t with_marks; /* of lines that have marks themselves, by which they might be parted */
} Search;

static inline uint64_t head_of(uint64_t bytes) { return (bytes * 0x9E3779B97F4A7C15ull) >> 52; }

static inline uint64_t hash_of(const uint8_t *p, int64_t size) {
    const uint8_t *end = p + size;
    uint64_t value = 0;
    for (const uint8_t *at = p; at < end; at += 8) {
        value = (value ^ eight_at(at, end)) * 0x9E3779B97F4A7C15ull;
        value ^= value >> 32;
    }
    return finish(value ^ (uint64_t)size << 56);
}

/* Hashes of lines that are as they are to be compared. */
void hash_lines(const uint8_t *text, int64_t size, uint64_t *hashes) {
    const uint8_t *p = text, *end = text + size;
    for (;;) {
        const uint8_t *stop = memchr(p, '\n', end - p);
        *hashes++ = hash_of(p, (stop ? stop : end) - p);
        if (!stop) return;
        p = stop + 1;
    }
}

/* The small letter of the character at p, which is no ASCII, to *o; its bytes, or ODD. */
static inline int put_lower(const Search *s, const uint8_t *p, uint8_t **o) {
    int size = *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : 4;
    uint32_t c = size == 2 ? (p[0] & 0x1Fu) << 6 | (p[1] & 0x3F) : size == 3 ? (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3F) : TABLE_SIZE;
    if (size == 4) c = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3F);
    if (c == 0x130 || c == 0x3A3) return ODD;
    uint32_t low = c < TABLE_SIZE ? s->lower[c] : c;
    if (low == c) {
        memcpy(*o, p, size);
        *o += size;
    } else if (low < 0x80) {
        *(*o)++ = low;
    } else if (low < 0x800) {
        *(*o)++ = 0xC0 | low >> 6;
        *(*o)++ = 0x80 | (low & 0x3F);
    } else if (low < 0x10000) {
        *(*o)++ = 0xE0 | low >> 12;
        *(*o)++ = 0x80 | (low >> 6 & 0x3F);
        *(*o)++ = 0x80 | (low & 0x3F);
    } else {
        *(*o)++ = 0xF0 | low >> 18;
        *(*o)++ = 0x80 | (low >> 12 & 0x3F);
        *(*o)++ = 0x80 | (low >> 6 & 0x3F);
        *(*o)++ = 0x80 | (low & 0x3F);
    }
    if (c < TABLE_SIZE && (s->kinds[c] & DIGIT)) return ODD;
    return size;
}

#define WINDOW 96 /* bytes of a line in which words are counted before they are read */

/* Whether a line surely has more than max_words words, by the single spaces between letters near its beginning. */
static int has_more_words(const uint8_t *p, const uint8_t *end, int64_t max_words) {
    uint8_t gaps = 0;
    if (end - p < WINDOW) return 0;
    for (int i = 1; i < WINDOW - 1; i++) gaps += (p[i] == ' ') & (p[i - 1] > ' ') & (p[i - 1] < 0x7F) & (p[i + 1] > ' ') & (p[i + 1] < 0x7F);
    return gaps >= max_words;
}

/* Up to eight bytes of a line from within a word on, to `o` (eight bytes), in small letters: as many as are ASCII, no digits, with single spaces, the last no
 * space.  Their number, and that of their spaces added to *words. */
static inline int put_plain(const uint8_t *p, const uint8_t *end, uint8_t *o, int64_t *words) {
    const uint64_t ones = 0x0101010101010101ull, highs = ones << 7;
    uint64_t bytes = eight_at(p, end), low = bytes & ~highs;
    /* Sums do not leave their byte, so that the highest bit of each says whether it is at least so much. */
    uint64_t digits = (low + ones * (0x80 - '0')) & ~(low + ones * (0x80 - ('9' + 1))), spaces = ~((low ^ ones * ' ') + ones * 0x7F) & ~bytes & highs;
    uint64_t others = (bytes | digits | ~(low + ones * (0x80 - ' ')) | (spaces & spaces << 8)) & highs;
    int number = others ? __builtin_ctzll(others) >> 3 : 8;
    if (!number) return 0;
    number -= spaces >> (8 * number - 1) & 1;
    uint64_t capitals = (low + ones * (0x80 - 'A')) & ~(low + ones * (0x80 - ('Z' + 1))) & highs;
    bytes |= capitals >> 2;
    memcpy(o, &bytes, 8);
    *words += __builtin_popcountll(spaces & BYTES_MASK[number]);
    return number;
}

/* A line as it is compared, to `out` (MAX_LINE bytes); its size, TOO_LONG where it has more than max_words words, or ODD. */
static int64_t normal(const Search *s, const uint8_t *p, const uint8_t *end, int64_t max_words, uint8_t *out) {
    uint8_t *o = out, *limit = out + MAX_LINE - 8;
    int64_t words = 0;
    if (has_more_words(p, end, max_words)) return TOO_LONG;
    while (p < end) {
        int width = space_at(p, end);
        if (width) {
            p += width;
            continue;
        }
        if (++words > max_words) return TOO_LONG;
        if (words > 1) *o++ = ' ';
        int digits = 0;
        while (p < end && !space_at(p, end)) {
            if (o >= limit) return ODD;
            int plain = put_plain(p, end, o, &words);
            if (plain) {
                if (words > max_words) return TOO_LONG;
                p += plain;
                o += plain;
                digits = 0;
            } else if (*p >= 0x80) {
                int size = put_lower(s, p, &o);
                if (size == ODD) return ODD;
                p += size;
                digits = 0;
            } else if (*p >= '0' && *p <= '9') {
                if (!digits) *o++ = '0';
                digits = 1;
                p++;
            } else {
                *o++ = *p + (*p >= 'A' && *p <= 'Z' ? 32 : 0);
                p++;
                digits = 0;
            }
        }
    }
    return o - out;
}

static inline int is_blank(uint8_t c) { return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F); }

/* Whether an element may begin behind a < that tells a page from a text about one (markup.py): one that ends, has an attribute or is a break,
 * a comment, a doctype.  What is no ASCII may be anything: letters that small ones stand for, white space. */
static int may_be_element(const uint8_t *p, const uint8_t *end) {
    if (p < end && *p == '!') return 1;
    int ends = p < end && *p == '/';
    p += ends;
    const uint8_t *name = p;
    while (p < end && (is_letter(*p) || is_digit(*p))) p++;
    int is_break = p - name == 2 && (name[0] | 32) == 'b' && (name[1] | 32) == 'r', is_named = p > name, is_apart = p < end && is_blank(*p);
    while (p < end && is_blank(*p)) p++;
    if (p < end && *p >= 0x80) return 1;
    if (!is_named) return 0;
    if (p < end && *p == '>') return ends || is_break;
    if (is_break && end - p > 1 && p[0] == '/' && p[1] == '>') return 1;
    if (ends || !is_apart) return 0;
    const uint8_t *attribute = p;
    while (p < end && (is_letter(*p) || *p == '-')) p++;
    int has_attribute = p > attribute;
    while (p < end && is_blank(*p)) p++;
    return p < end && ((has_attribute && *p == '=') || *p >= 0x80);
}

/* Whether a text may hold elements of a page or character references. */
static int may_have_markup(const uint8_t *p, const uint8_t *end) {
    for (; p < end; p++) {
        if (*p == '<' && may_be_element(p + 1, end)) return 1;
        if (*p != '&') continue;
        const uint8_t *name = p + 1;
        name += name < end && *name == '#';
        const uint8_t *stop = name;
        while (stop < end && (is_letter(*stop) || is_digit(*stop))) stop++;
        if (stop > name && stop < end && *stop == ';') return 1;
    }
    return 0;
}

/* Whether bytes are a number of one to four digits or a Roman one, with no more than a full stop or a bracket behind it. */
static int is_number(const uint8_t *p, const uint8_t *end) {
    if (p < end && (end[-1] == '.' || end[-1] == ')')) end--;
    int digits = 1, roman = 1;
    for (const uint8_t *at = p; at < end; at++) {
        digits &= is_digit(*at);
        roman &= is_letter(*at) && strchr("ivxlcdm", *at | 32) != NULL;
    }
    return p < end && (roman || (digits && end - p <= 4));
}

/* Whether bytes are letters alone. */
static int is_word(const Search *s, const uint8_t *p, const uint8_t *end) {
    if (p == end) return 0;
    while (p < end) {
        uint32_t c = next_point(&p);
        if (c == 0x130 || c > 0xFFFF || !(s->kinds[c] & LETTER)) return 0; /* in small letters I with a dot is two characters */
    }
    return 1;
}

/* Whether a line is surely a heading that stays (`_HEADING` in line_rules.py): a number, or a word and a number. */
static int is_heading(const Search *s, const uint8_t *p, const uint8_t *end) {
    while (p < end && *p == ' ') p++;
    while (p < end && end[-1] == ' ') end--;
    const uint8_t *space = memchr(p, ' ', end - p);
    if (!space) return is_number(p, end);
    const uint8_t *without_dot = space - (space > p && space[-1] == '.');
    return (is_word(s, p, without_dot) && is_number(space + 1, end)) || (is_number(p, space) && is_word(s, space + 1, end));
}

static inline uint32_t bits_of_line(const Search *s, const uint8_t *line, int64_t size) {
    uint64_t key = hash_of(line, size);
    for (uint64_t at = key & s->lines_mask; s->lines[at]; at = (at + 1) & s->lines_mask)
        if (s->lines[at] == key) return s->line_bits[at];
    return 0;
}

/* Bytes of a mark that may part menus: | or a tab, or one of four that stand between spaces. */
static inline int mark_at(const uint8_t *p, const uint8_t *end) {
    if (*p == '|' || *p == '\t') return 1;
    if (*p == 0xC2 && end - p > 1) return p[1] == 0xBB || p[1] == 0xB7 ? 2 : 0;
    return *p == 0xE2 && end - p > 2 && p[1] == 0x80 && (p[2] == 0xBA || p[2] == 0xA2) ? 3 : 0;
}

/* Which bits have a line of theirs among the parts of a line, all of `whole` where that is not certain. */
static uint32_t bits_of_parts(const Search *s, const uint8_t *p, const uint8_t *end) {
    uint8_t line[MAX_LINE];
    uint32_t found = 0;
    while (p <= end) {
        const uint8_t *stop = p;
        while (stop < end && !mark_at(stop, end)) stop++;
        int64_t size = normal(s, p, stop, s->max_words, line), first = 0;
        if (size == ODD) return s->whole;
        while (first < size && strchr(" .:!", line[first])) first++;
        while (first < size && strchr(" .:!", line[size - 1])) size--;
        if (first < size) found |= bits_of_line(s, line + first, size - first);
        p = stop + (stop < end ? mark_at(stop, end) : 1);
    }
    return found;
}

/* Whether a text may have one of the marks that part menus: a byte that ends one, of another character too. */
static int may_have_marks(const uint8_t *p, const uint8_t *end) {
    Stretch any = {0}, bytes;
    for (; p < end; p += sizeof(bytes)) {
        if (end - p < (int64_t)sizeof(bytes)) memset(&bytes, 0, sizeof(bytes));
        memcpy(&bytes, p, end - p < (int64_t)sizeof(bytes) ? end - p : (int64_t)sizeof(bytes));
        any |= (Stretch)((bytes == '|') | (bytes == '\t') | (bytes == 0xBB) | (bytes == 0xB7) | (bytes == 0xBA) | (bytes == 0xA2));
    }
    uint64_t eights[sizeof(any) / 8], found = 0;
    memcpy(eights, &any, sizeof(any));
    for (size_t i = 0; i < sizeof(any) / 8; i++) found |= eights[i];
    return found != 0;
}

/* Which bits have a line of theirs among the parts of a line with two marks or more, so that it may have three parts. */
static uint32_t bits_of_parted_lines(const Search *s, const uint8_t *p, const uint8_t *end) {
    if (!may_have_marks(p, end)) return 0;
    uint32_t found = 0;
    while (p < end) {
        const uint8_t *stop = memchr(p, '\n', end - p);
        if (!stop) stop = end;
        int marks = 0, size;
        for (const uint8_t *at = p; at < stop && marks < 2; at += size ? size : 1) {
            size = mark_at(at, stop);
            marks += size != 0;
        }
        if (marks == 2) found |= s->with_marks | bits_of_parts(s, p, stop);
        p = stop + 1;
    }
    return found;
}

/* Which of the wanted bits have a line of theirs in a text: three in a row where the bit is one of `in_threes`, or `in_rows`; of these also one that
 * begins the text, unless it is a heading, or ends it. */
static uint32_t bits_of_lines(const Search *s, const uint8_t *p, const uint8_t *end, uint32_t wanted) {
    uint8_t line[MAX_LINE];
    uint32_t found = 0, before = 0, row = 0; /* before: of the line before; row: of that and the one before it */
    uint32_t last = 0;
    int begins = 1, only_headings = 1; /* of the lines from the first one on, while they are in one row */
    while (p < end && (found & wanted) != wanted) {
        const uint8_t *start = p, *stop = memchr(p, '\n', end - p);
        if (!stop) stop = end;
        int64_t size = normal(s, p, stop, s->max_words, line);
        p = stop + 1;
        if (size == ODD) return wanted;
        if (!size) continue;
        last = size > 0 ? bits_of_line(s, line, size) : 0;
        only_headings &= (last & s->in_rows) != 0;
        if (only_headings && !is_heading(s, start, stop)) return wanted; /* few texts: the others need not be told apart */
        if (only_headings && begins) last &= ~s->in_rows;
        begins = 0;
        found |= last & (~(s->in_rows | s->in_threes) | row);
        row = last & before;
        before = last;
    }
    return (found | (p >= end ? last & s->in_rows : 0)) & wanted;
}

typedef struct { /* kept between texts */
    uint8_t *bytes;
    int64_t size;
} Room;

static Room room;

/* Which of the wanted bits have a phrase of each of their groups in a text. */
static uint32_t bits_of_phrases(const Search *s, const uint8_t *p, const uint8_t *end, uint32_t wanted) {
    int64_t most = 2 * (end - p) + 16; /* no small letter takes more than twice the bytes */
    if (room.size < most) {
        free(room.bytes);
        room.bytes = malloc(most);
        room.size = room.bytes ? most : 0;
        if (!room.bytes) return wanted;
    }
    uint8_t *o = room.bytes;
    while (p < end) {
        uint64_t eight;
        while (end - p >= 8 && (memcpy(&eight, p, 8), !(eight & 0x8080808080808080ull))) {
            for (int i = 0; i < 8; i++) o[i] = p[i] + (p[i] >= 'A' && p[i] <= 'Z' ? 32 : 0);
            p += 8;
            o += 8;
        }
        if (p >= end) break;
        if (*p < 0x80) {
            *o++ = *p + (*p >= 'A' && *p <= 'Z' ? 32 : 0);
            p++;
            continue;
        }
        uint8_t *before = o;
        int size = put_lower(s, p, &o);
        if (size == ODD) { /* digits are none here */
            if (o == before) return wanted;
            size = *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : 4;
        }
        p += size;
    }
    memset(o, 0, 8);
    uint32_t groups[32] = {0};
    for (const uint8_t *at = room.bytes; at < o; at++) {
        uint64_t bytes;
        memcpy(&bytes, at, 8);
        for (uint32_t number = s->heads[head_of(bytes & s->key_mask)]; number; number = s->nexts[number - 1]) {
            int64_t from = number > 1 ? s->phrase_ends[number - 2] : 0, size = s->phrase_ends[number - 1] - from;
            if (size <= o - at && !memcmp(at, s->phrases + from, size)) groups[s->phrase_bits[number - 1]] |= s->phrase_groups[number - 1];
        }
    }
    uint32_t found = 0;
    for (int bit = 0; bit < 32; bit++)
        if (groups[bit] == s->groups[bit] && s->groups[bit]) found |= 1u << bit;
    return found & wanted;
}

/* Of the bits that are asked for, those that may find something in a text. */
uint32_t search_text(const Search *s, const uint8_t *text, int64_t size, uint32_t wanted) {
    uint32_t found = 0;
    const uint8_t *end = text + size;
    if (wanted & s->whole) found |= wanted & s->whole & bits_of_parted_lines(s, text, end);
    uint32_t lines = wanted & s->everything & ~s->contains & ~found;
    if (lines) found |= bits_of_lines(s, text, end, lines);
    if (wanted & s->contains) found |= bits_of_phrases(s, text, end, wanted & s->contains);
    return found;
}

/* The same for texts one behind the other, but for those that have one of the bits `hard`: bits that find nothing are taken out of what is known
 * of each, MARKUP too.  always: is asked of every text. */
void search_texts(const Search *s, const uint8_t *text, const int64_t *offsets, int64_t num_texts, uint32_t hard, uint32_t always, uint32_t *bits) {
    for (int64_t d = 0; d < num_texts; d++) {
        if ((bits[d] & MARKUP) && !may_have_markup(text + offsets[d], text + offsets[d + 1])) bits[d] &= ~MARKUP;
        uint32_t wanted = (bits[d] & s->everything) | always;
        if (bits[d] & hard)
            bits[d] |= always;
        else if (wanted)
            bits[d] = (bits[d] & ~s->everything) | search_text(s, text + offsets[d], offsets[d + 1] - offsets[d], wanted);
    }
}

/* Whether a text has line ends other than line feeds. */
static int has_line_ends(const uint8_t *p, int64_t size) {
    int found = 0;
    for (int64_t i = 0; i + 2 < size; i++)
        found |= ((p[i] >= 0x0B) & (p[i] <= 0x0D)) | ((p[i] == 0xC2) & (p[i + 1] == 0x85)) |
                 ((p[i] == 0xE2) & (p[i + 1] == 0x80) & ((p[i + 2] | 1) == 0xA9));
    for (int64_t i = size > 2 ? size - 2 : 0; i < size; i++)
        found |= ((p[i] >= 0x0B) & (p[i] <= 0x0D)) | ((p[i] == 0xC2) & (i + 1 < size && p[i + 1] == 0x85));
    return found;
}

/* The distinct hashes of lines of at most max_words words of each text, in the order of their first places.
 *
 * ends: of the hashes of each text.  odd: of each text, whether Python has to look; it has no hashes then.  There is room for as many hashes as
 * lines.  Returns 0 where memory is out.
 */
int short_lines(const Search *s, const uint8_t *text, const int64_t *offsets, int64_t num_texts, int64_t max_words, uint64_t *hashes, int64_t *ends,
                uint8_t *odd) {
    uint8_t line[MAX_LINE];
    uint64_t *seen = NULL, capacity = 0;
    int64_t used = 0;
    for (int64_t d = 0; d < num_texts; d++) {
        const uint8_t *p = text + offsets[d], *end = text + offsets[d + 1];
        int64_t first = used;
        odd[d] = has_line_ends(p, end - p);
        while (p < end && !odd[d]) {
            const uint8_t *stop = memchr(p, '\n', end - p);
            if (!stop) stop = end;
            int64_t size = normal(s, p, stop, max_words, line);
            p = stop + 1;
            odd[d] = size == ODD;
            if (size > 0) hashes[used++] = hash_of(line, size);
        }
        if (odd[d]) used = first;
        uint64_t mask = 15;
        while (mask < 2 * (uint64_t)(used - first)) mask = 2 * mask + 1;
        if (mask >= capacity) {
            free(seen);
            seen = malloc((mask + 1) * sizeof(uint64_t));
            capacity = seen ? mask + 1 : 0;
            if (!seen) return 0;
        }
        memset(seen, 0, (mask + 1) * sizeof(uint64_t));
        int64_t last = used;
        used = first;
        for (int64_t i = first; i < last; i++) {
            uint64_t at = hashes[i] & mask;
            while (seen[at] && seen[at] != hashes[i]) at = (at + 1) & mask;
            if (!seen[at]) hashes[used++] = seen[at] = hashes[i];
        }
        ends[d] = used;
    }
    free(seen);
    return 1;
}

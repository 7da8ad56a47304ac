/* The hot loops of data_prep.cleaning.text_measures: which repairs a text may need, and the numbers that rules about documents look at.
 *
 * Built with the system's compiler at first use (data_prep/native.py).  data_prep/cleaning/text_measures_plain.py says the same in
 * Python; tests hold both to the same numbers, so every change is made twice.  Texts are valid UTF-8.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PRIME 0x9E3779B97F4A7C15ull
#define TABLE_SIZE 0x30000 /* code points in the tables; those behind are ideographs, or nothing */
#define SHARE(part, whole) ((whole) ? (double)(part) / (whole) : 0)
#define PREFIX 5           /* characters of a word that triggers are known by */

/* What a code point is: bits of `kinds`, as in text_measures.py. */
enum { LETTER = 1, DIGIT = 2, SPACE = 4, TERMINAL = 8, CLOSING = 16, UNSPACED = 32, BULLET = 64, UPPER = 128 };
/* What asks for a repair: bits of `dirt`, and of the result of `text_dirt`. */
enum { LINE_END = 1, CONTROL = 2, INVISIBLE = 4, FORM = 8, SPACING = 16, LEAD = 32, FOLLOWER = 64, HOLE = 128, LONG_LEAD = 256 };
enum { MARKUP = 1 << 8, ADDRESS = 1 << 9, NUMBER = 1 << 10, CAPITAL = 1 << 11, TRIGGER = 16 };

typedef struct { /* of one language */
    const uint8_t *kinds;
    const uint16_t *dirt;
    const uint32_t *lower;
    const uint64_t *stop_words, *triggers; /* open addressing, 0 is empty */
    const uint32_t *trigger_groups;
    uint64_t stop_mask, trigger_mask;
} Tables;

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

static inline uint8_t kind_of(const Tables *t, uint32_t c) {
    return c < TABLE_SIZE ? t->kinds[c] : c < 0x40000 ? LETTER | UNSPACED : 0;
}

static inline uint32_t lower_of(const Tables *t, uint32_t c) { return c < TABLE_SIZE ? t->lower[c] : c; }

static inline uint64_t join(uint64_t hash, uint64_t value) { return (hash ^ value) * PRIME; }

static inline uint64_t finish(uint64_t hash) {
    hash ^= hash >> 32;
    hash *= PRIME;
    hash ^= hash >> 29;
    return hash ? hash : 1;
}

static inline uint32_t group_of(const Tables *t, uint64_t hash) {
    uint64_t key = finish(hash);
    for (uint64_t at = key & t->trigger_mask; t->triggers[at]; at = (at + 1) & t->trigger_mask)
        if (t->triggers[at] == key) return t->trigger_groups[at];
    return 0;
}

static inline int is_stop_word(const Tables *t, uint64_t hash) {
    uint64_t key = finish(hash);
    for (uint64_t at = key & t->stop_mask; t->stop_words[at]; at = (at + 1) & t->stop_mask)
        if (t->stop_words[at] == key) return 1;
    return 0;
}

/* Which repairs a text may need: bits as above, and from bit TRIGGER on the groups of the trigger words in it. */
uint32_t text_dirt(const Tables *t, const uint8_t *text, int64_t size) {
    const uint8_t *p = text, *end = text + size;
    uint32_t found = 0, before = '\n', before_that = '\n';
    uint16_t last = 0, last_but_one = 0;
    int digits = 0, gap = 0, prefix = 0;
    uint64_t word = 0;
    if (size && (*p == ' ' || *p == '\n')) found |= SPACING;
    while (p < end) {
        uint32_t c = next_point(&p);
        uint8_t kind = kind_of(t, c);
        uint16_t dirt = c < TABLE_SIZE ? t->dirt[c] : 0;
        if (kind & (LETTER | DIGIT)) {
            word = join(word, lower_of(t, c));
            if (++prefix == PREFIX) found |= group_of(t, word) << TRIGGER;
        } else {
            if (prefix && prefix != PREFIX) found |= group_of(t, word) << TRIGGER;
            prefix = 0;
            word = 0;
        }
        found |= dirt & (LINE_END | CONTROL | INVISIBLE | FORM | SPACING | HOLE | CAPITAL);
        if ((dirt & FOLLOWER) && ((last & LEAD) || ((last & FOLLOWER) && (last_but_one & LONG_LEAD)))) found |= LEAD;
        last_but_one = last;
        last = dirt;
        if (c < 0x80) {
            if (c >= '0' && c <= '9') {
                if (++digits >= 7) found |= NUMBER;
                gap = 0;
            } else if (digits && (c == ' ' || c == '-' || c == '/' || c == '.' || c == '(' || c == ')') && ++gap <= 2) {
            } else if (digits && c >= 'A' && c <= 'Z') { /* in IBANs and tax numbers */
                gap = 0;
            } else {
                digits = 0;
            }
            if (c == '@') found |= ADDRESS;
            if (before == '<' && ((c | 32) >= 'a' && (c | 32) <= 'z')) found |= MARKUP;
            if (before == '<' && (c == '/' || c == '!')) found |= MARKUP;
            if (before == '&' && (((c | 32) >= 'a' && (c | 32) <= 'z') || c == '#')) found |= MARKUP;
            if (c == ' ' && (before == ' ' || before == '\n')) found |= SPACING;
            if (c == '\n') {
                if (before == ' ') found |= SPACING;
                if (before == '\n' && before_that == '\n') found |= SPACING;
            }
        } else {
            digits = 0;
        }
        before_that = before;
        before = c;
    }
    if (prefix && prefix != PREFIX) found |= group_of(t, word) << TRIGGER;
    if (size && (before == ' ' || before == '\n')) found |= SPACING;
    return found;
}

typedef struct {
    uint64_t key;
    uint32_t count;
    uint32_t unused;
} Slot;

typedef struct { /* room that is kept between texts */
    Slot *slots;
    uint64_t num_slots;
    uint64_t *tokens; /* hashes */
    int64_t *ends;    /* characters of all tokens before, and with, each */
    int64_t num_tokens; /* that there is room for */
    int64_t used;       /* tokens of the text at hand */
} Room;

static Room room;

static Slot *cleared(uint64_t entries, uint64_t *mask) {
    uint64_t size = 64;
    while (size < 2 * entries) size *= 2;
    if (size > room.num_slots) {
        free(room.slots);
        room.slots = malloc(size * sizeof(Slot));
        room.num_slots = room.slots ? size : 0;
    }
    if (room.slots) memset(room.slots, 0, size * sizeof(Slot));
    *mask = size - 1;
    return room.slots;
}

/* How often a key was there with this time. */
static inline uint32_t counted(Slot *slots, uint64_t mask, uint64_t key) {
    uint64_t at = key & mask;
    while (slots[at].key && slots[at].key != key) at = (at + 1) & mask;
    slots[at].key = key;
    return ++slots[at].count;
}

static inline uint32_t times_of(const Slot *slots, uint64_t mask, uint64_t key) {
    uint64_t at = key & mask;
    while (slots[at].key != key) at = (at + 1) & mask;
    return slots[at].count;
}

/* A key of the n tokens up to one. */
static inline uint64_t ngram_ending(int64_t last, int n) {
    uint64_t hash = 0;
    for (int back = n - 1; back >= 0; back--) hash = join(hash, room.tokens[last - back]);
    return finish(hash);
}

/* Of the places where an n-gram may be one that is there twice: the share of the characters of the text in the most frequent of these (the longest of
 * equals), or (covered) in all that were there before; -1 when out of memory.  The places become those where an (n + 1)-gram may be:
 * one that is there twice begins and ends with an n-gram that is. */
static double repeated_ngrams(int n, int covered, int64_t *places, int64_t *num_places) {
    uint64_t mask;
    int64_t count = *num_places;
    if (!count) return 0;
    Slot *slots = cleared(count, &mask);
    if (!slots) return -1;
    int64_t best = 1, characters = 0, in_them = 0, next = 0, all = room.ends[room.used];
    for (int64_t i = 0; i < count; i++) {
        int64_t last = places[i], times = counted(slots, mask, ngram_ending(last, n));
        if (times < 2) continue;
        int64_t from = last - n + 1, length = room.ends[last + 1] - room.ends[from];
        if (times > best || (times == best && length > characters)) {
            best = times;
            characters = length;
        }
        if (from < next) from = next;
        in_them += room.ends[last + 1] - room.ends[from];
        next = last + 1;
    }
    int64_t left = 0, before = -1;
    for (int64_t i = 0; i < count && best > 1; i++) {
        if (times_of(slots, mask, ngram_ending(places[i], n)) < 2) continue;
        int64_t last = places[i];
        if (before == last - 1) places[left++] = last;
        before = last;
    }
    *num_places = left;
    double share = covered ? (double)in_them / all : best > 1 ? (double)best * characters / all : 0;
    return share < 1 ? share : 1;
}

/* Shares of the members of a list that were in it before: of their number, and of their characters. */
static int repeated(const uint64_t *hashes, const int64_t *characters, int64_t number, double *share, double *character_share) {
    uint64_t mask;
    Slot *slots = cleared(number, &mask);
    if (!slots) return 0;
    int64_t times = 0, in_them = 0, all = 0;
    for (int64_t i = 0; i < number; i++) {
        all += characters[i];
        if (counted(slots, mask, hashes[i]) > 1) {
            times++;
            in_them += characters[i];
        }
    }
    *share = SHARE(times, number);
    *character_share = SHARE(in_them, all);
    return 1;
}

static int starts_link(const uint8_t *p, const uint8_t *end) {
    return (end - p >= 7 && !memcmp(p, "http://", 7)) || (end - p >= 8 && !memcmp(p, "https://", 8)) ||
           (end - p >= 4 && !memcmp(p, "www.", 4));
}

/* The numbers of a text in the order of `Measures` in text_measures.py; 0 where memory is out. */
int text_measure(const Tables *t, const uint8_t *text, int64_t size, double *out) {
    int64_t most = size + 2; /* tokens and lines */
    if (most > room.num_tokens) {
        most *= 2; /* so that texts of growing length do not ask each time */
        free(room.tokens);
        free(room.ends);
        room.tokens = malloc(3 * most * sizeof(uint64_t));
        room.ends = malloc(3 * most * sizeof(int64_t));
        room.num_tokens = room.tokens && room.ends ? most : 0;
        if (!room.num_tokens) return 0;
    }
    most = room.num_tokens;
    uint64_t *lines = room.tokens + most, *paragraphs = room.tokens + 2 * most;
    int64_t *line_characters = room.ends + most, *paragraph_characters = room.ends + 2 * most;
    int64_t characters = 0, visible = 0, tokens = 0, words = 0, word_characters = 0, alphabetic = 0, stop_words = 0, longest = 0;
    int64_t hash_signs = 0, ellipses = 0, num_lines = 0, num_paragraphs = 0, bullets = 0, ellipsis_lines = 0, terminal_lines = 0;
    int64_t short_lines = 0, sentences = 0, link_characters = 0, letters = 0, digits = 0, uppers = 0, holes = 0, braces = 0;
    const uint8_t *p = text, *end = text + size;
    int64_t paragraph_length = 0;
    uint64_t paragraph = 0;
    room.ends[0] = 0;
    while (p < end) { /* a line */
        uint64_t line = 0, line_at_last = 0;
        int64_t length = 0, length_at_last = 0; /* characters to the last visible one */
        int first_is_bullet = 0, ends_terminal = 0, ends_ellipsis = 0;
        uint64_t token = 0, core = 0, core_at_last = 0;
        int64_t token_length = 0, core_length = 0, core_at_last_length = 0;
        int has_letter = 0, is_link = 0, dots = 0, terminal = 0, unspaced = 0;
        for (;;) {
            uint32_t c = '\n';
            uint8_t kind = SPACE;
            const uint8_t *here = p;
            if (p < end) {
                c = next_point(&p);
                kind = kind_of(t, c);
                characters++;
            }
            int ends_line = c == '\n';
            if (token_length && ((kind & (SPACE | UNSPACED)) || (unspaced && (kind & (LETTER | DIGIT))))) { /* the token is whole */
                room.tokens[tokens] = finish(token);
                room.ends[tokens + 1] = room.ends[tokens] + token_length;
                tokens++;
                if (core_at_last_length) {
                    words++;
                    word_characters += core_at_last_length;
                    if (core_at_last_length > longest) longest = core_at_last_length;
                    stop_words += is_stop_word(t, core_at_last);
                }
                alphabetic += has_letter;
                sentences += terminal;
                if (is_link) link_characters += token_length;
                token = core = core_at_last = 0;
                token_length = core_length = core_at_last_length = 0;
                has_letter = is_link = terminal = unspaced = 0;
            }
            if (kind & SPACE) {
                dots = 0;
                if (ends_line) break;
                if (length) line = join(line, ' '), length++;
                continue;
            }
            visible++;
            if (!token_length) is_link = starts_link(here, end);
            token = join(token, c);
            token_length++;
            if (kind & (LETTER | DIGIT) || core_length) {
                core = join(core, lower_of(t, c));
                core_length++;
            }
            if (kind & (LETTER | DIGIT)) {
                core_at_last = core;
                core_at_last_length = core_length;
            }
            unspaced |= kind & UNSPACED;
            has_letter |= kind & LETTER;
            letters += (kind & LETTER) != 0;
            digits += (kind & DIGIT) != 0;
            uppers += (kind & UPPER) != 0;
            holes += c == 0xFFFD;
            braces += c == '{';
            hash_signs += c == '#';
            dots = c == '.' ? dots + 1 : 0;
            if (c == 0x2026 || dots == 3) ellipses++;
            if (!length) first_is_bullet = (kind & BULLET) != 0;
            if (kind & TERMINAL)
                terminal = 1;
            else if (!(kind & CLOSING))
                terminal = 0;
            ends_terminal = terminal;
            ends_ellipsis = c == 0x2026 || dots >= 3;
            line = join(line, c);
            length++;
            line_at_last = line;
            length_at_last = length;
        }
        if (length_at_last) {
            lines[num_lines] = finish(line_at_last);
            line_characters[num_lines++] = length_at_last;
            paragraph = join(paragraph, lines[num_lines - 1]);
            paragraph_length += length_at_last;
            bullets += first_is_bullet;
            terminal_lines += ends_terminal;
            ellipsis_lines += ends_ellipsis;
            short_lines += length_at_last <= 30;
        }
        if ((!length_at_last || p >= end) && paragraph_length) {
            paragraphs[num_paragraphs] = finish(paragraph);
            paragraph_characters[num_paragraphs++] = paragraph_length;
            paragraph = 0;
            paragraph_length = 0;
        }
    }
    double *o = out;
    *o++ = characters;
    *o++ = words;
    *o++ = num_lines;
    *o++ = sentences;
    *o++ = SHARE(word_characters, words);
    *o++ = longest;
    *o++ = SHARE(alphabetic, tokens);
    *o++ = stop_words;
    *o++ = SHARE(stop_words, words);
    *o++ = SHARE(hash_signs, words);
    *o++ = SHARE(ellipses, words);
    *o++ = SHARE(bullets, num_lines);
    *o++ = SHARE(ellipsis_lines, num_lines);
    *o++ = SHARE(terminal_lines, num_lines);
    *o++ = SHARE(short_lines, num_lines);
    *o++ = SHARE(num_lines, words);
    *o++ = SHARE(link_characters, visible);
    *o++ = SHARE(letters, visible);
    *o++ = SHARE(digits, visible);
    *o++ = SHARE(uppers, letters);
    *o++ = holes;
    *o++ = SHARE(holes, visible);
    *o++ = braces;
    if (!repeated(lines, line_characters, num_lines, o, o + 1)) return 0;
    o += 2;
    if (!repeated(paragraphs, paragraph_characters, num_paragraphs, o, o + 1)) return 0;
    o += 2;
    int64_t *places = line_characters, num_places = 0; /* the lines are counted */
    room.used = tokens;
    for (int64_t last = 1; last < tokens; last++) places[num_places++] = last;
    for (int n = 2; n <= 10; n++, o++) {
        *o = repeated_ngrams(n, n >= 5, places, &num_places);
        if (*o < 0) return 0;
    }
    return 1;
}

/* The hot loops of data_prep.cleaning.text_measures: which repairs a text may need, and the numbers that filters look at.
 *
 * Built with the system's compiler at first use (common/native.py).  The tests have the same in Python (text_measures_plain.py), so every change is made
 * twice.  Texts are valid UTF-8.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "utf8_words.h"

#define PRIME 0x9E3779B97F4A7C15ull
#define TABLE_SIZE 0x30000 /* code points in the tables; those behind are ideographs, or nothing */
#define SHARE(part, whole) ((whole) ? (double)(part) / (whole) : 0)

/* What a code point is: bits of `kinds`, as in text_measures.py. */
enum { LETTER = 1, DIGIT = 2, SPACE = 4, TERMINAL = 8, CLOSING = 16, UNSPACED = 32, BULLET = 64, UPPER = 128 };
/* What asks for a repair: bits of `noise`, and of the result of `text_noise`. */
enum { LINE_END = 1, CONTROL = 2, INVISIBLE = 4, FORM = 8, SPACING = 16, LEAD = 32, FOLLOWER = 64, HOLE = 128, LONG_LEAD = 256 };
enum { MARKUP = 1 << 8, ADDRESS = 1 << 9, NUMBER = 1 << 10 };

/* How a stretch between white space begins and ends. */
enum { FIRST_BULLET = 1, ENDS_TERMINAL = 2, ENDS_ELLIPSIS = 4 };

typedef struct { /* of one language */
    const uint8_t *kinds;
    const uint16_t *noise;
    const uint32_t *lower;
    const uint64_t *stop_words; /* open addressing, 0 is empty */
    uint64_t stop_mask;
} Tables;

static inline uint8_t kind_of(const Tables *t, uint32_t c) {
    return c < TABLE_SIZE ? t->kinds[c] : c < 0x40000 ? LETTER | UNSPACED : 0;
}

static inline uint32_t lower_of(const Tables *t, uint32_t c) { return c < TABLE_SIZE ? t->lower[c] : c; }

static inline uint64_t join(uint64_t hash, uint64_t value) { return (hash ^ value) * PRIME; }

/* As `_word_hash` in text_measures.py. */
static inline uint64_t known_by(uint64_t hash) {
    hash ^= hash >> 32;
    hash *= PRIME;
    hash ^= hash >> 29;
    return hash ? hash : 1;
}

static inline int is_stop_word(const Tables *t, uint64_t hash) {
    uint64_t key = known_by(hash);
    for (uint64_t at = key & t->stop_mask; t->stop_words[at]; at = (at + 1) & t->stop_mask)
        if (t->stop_words[at] == key) return 1;
    return 0;
}

static inline int is_hex(uint32_t c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

#define MAX_GAP 4 /* as in +386 (0) 41 */

/* Whether ASCII letters and digits that follow each other may be a codice fiscale, whose digits may be letters as well, or begin an IBAN. */
static int may_be_number(const uint8_t *p, int64_t size) {
    static const char places[] = "llllllddmddlddd"; /* letters, digits, a month; and a letter */
    if (size > 3 && p[0] <= 'Z' && is_letter(p[0]) && p[1] <= 'Z' && is_letter(p[1]) && is_digit(p[2]) && is_digit(p[3])) return 1;
    if (size != 16 || !is_letter(p[15])) return 0;
    for (int i = 0; i < 15; i++) {
        uint8_t c = is_letter(p[i]) ? p[i] & ~32 : p[i];
        if (places[i] == 'l' ? !is_letter(c) : places[i] == 'm' ? !strchr("ABCDEHLMPRST", c) : !is_digit(c) && !strchr("LMNPQRSTUV", c)) return 0;
    }
    return 1;
}

/* Which repairs a text may need: bits as above. */
static uint32_t text_noise(const Tables *t, const uint8_t *p, const uint8_t *end) {
    uint32_t found = 0, before = '\n', before_that = '\n'; /* characters */
    uint16_t last = 0, last_but_one = 0;                   /* what these are, as far as it matters: LEAD, FOLLOWER, LONG_LEAD */
    int digits = 0, gap = 0;                               /* of a number, at most 7; characters since the last of them that may stand in one */
    int dots = 0;                                          /* each between digits */
    const uint8_t *plain = p;                              /* where the ASCII letters and digits before p begin */
    if (p == end) return 0;
    while (p < end) {
        const uint8_t *at = p;
        uint32_t c = next_point(&p);
        uint16_t noise = c < TABLE_SIZE ? t->noise[c] : 0;
        if (c >= 0x80 || !(is_letter(c) || is_digit(c))) {
            if (at > plain && may_be_number(plain, at - plain)) found |= NUMBER;
            plain = p;
        }
        found |= noise & (LINE_END | CONTROL | INVISIBLE | FORM | SPACING | HOLE);
        if ((noise & FOLLOWER) && ((last & LEAD) || ((last & FOLLOWER) && (last_but_one & LONG_LEAD)))) found |= LEAD;
        last_but_one = last;
        last = noise & (LEAD | FOLLOWER | LONG_LEAD);
        if (c < 0x80) {
            if (is_digit(c)) {
                if (++digits >= 7) {
                    digits = 7;
                    found |= NUMBER;
                }
                gap = 0;
                dots = before == '.' && before_that < 0x80 && is_digit(before_that) ? dots + 1 : before == '.' ? 0 : dots;
                if (dots == 3) found |= NUMBER; /* an address of a machine */
            } else if (digits && (c == ' ' || c == '-' || c == '/' || c == '.' || c == '(' || c == ')') && ++gap <= MAX_GAP) {
            } else if (digits && c >= 'A' && c <= 'Z') { /* in IBANs and tax numbers */
                gap = 0;
            } else {
                digits = 0;
            }
            if (!is_digit(c) && c != '.') dots = 0;
            if (c == '@') found |= ADDRESS;
            if (c == ':' && is_hex(before) && (before_that == ':' || is_hex(before_that))) found |= NUMBER; /* an IPv6 address, or a time */
            if (before == '<' && (is_letter(c) || c == '/' || c == '!')) found |= MARKUP;
            if (before == '&' && (is_letter(c) || c == '#')) found |= MARKUP;
            if (c == ' ' && (before == ' ' || before == '\n')) found |= SPACING;
            if (c == '\n') {
                if (before == ' ') found |= SPACING;
                if (before == '\n' && before_that == '\n') found |= SPACING;
            }
        } else if (c != 0xA0 || !digits || ++gap > MAX_GAP) { /* a space that does not break may stand in an IBAN */
            digits = dots = 0;
        }
        before_that = before;
        before = c;
    }
    if (end > plain && may_be_number(plain, end - plain)) found |= NUMBER;
    if (before == ' ' || before == '\n') found |= SPACING;
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
    uint64_t *bits;
    int64_t num_bits; /* twice that many */
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

/* A key of the n tokens up to one: a polynomial of their hashes, of which all bits are mixed already. */
static inline uint64_t ngram_ending(int64_t last, int n) {
    uint64_t hash = 0;
    for (int back = n - 1; back >= 0; back--) hash = hash * PRIME + room.tokens[last - back];
    return hash ? hash : 1;
}

/* Keys of the n-grams that end at some places, without most of those that are there once: two n-grams with the same key have the same bit.
 * Returns how many are left, -1 when out of memory; keys and places lie together. */
static int64_t maybe_repeated(int n, int64_t *places, int64_t num_places, uint64_t *keys) {
    int64_t num_bits = 512;
    while (num_bits < 8 * num_places) num_bits *= 2;
    if (num_bits > room.num_bits) {
        free(room.bits);
        room.bits = malloc(num_bits / 4);
        room.num_bits = room.bits ? num_bits : 0;
        if (!room.bits) return -1;
    }
    uint64_t *once = room.bits, *twice = room.bits + num_bits / 64, mask = num_bits - 1;
    memset(room.bits, 0, num_bits / 4);
    for (int64_t i = 0; i < num_places; i++) {
        uint64_t key = keys[i] = ngram_ending(places[i], n), at = key & mask, bit = 1ull << at % 64;
        twice[at / 64] |= once[at / 64] & bit;
        once[at / 64] |= bit;
    }
    int64_t left = 0;
    for (int64_t i = 0; i < num_places; i++) {
        uint64_t at = keys[i] & mask;
        keys[left] = keys[i];
        places[left] = places[i];
        left += twice[at / 64] >> at % 64 & 1;
    }
    return left;
}

/* Of the places where an n-gram may be one that is there twice: the share of the characters of the text in the most frequent of these (the longest of
 * equals), or (covered) in all that were there before; -1 when out of memory.  The places become those where an (n + 1)-gram may be:
 * one that is there twice begins and ends with an n-gram that is.  There is room for as many keys. */
static double repeated_ngrams(int n, int covered, int64_t *places, int64_t *num_places, uint64_t *keys) {
    uint64_t mask;
    if (!*num_places) return 0;
    int64_t count = maybe_repeated(n, places, *num_places, keys);
    if (count < 0) return -1;
    Slot *slots = cleared(count, &mask);
    if (!slots) return -1;
    int64_t best = 1, characters = 0, in_them = 0, next = 0, all = room.ends[room.used];
    for (int64_t i = 0; i < count; i++) {
        int64_t last = places[i], times = counted(slots, mask, keys[i]);
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
        if (times_of(slots, mask, keys[i]) < 2) continue;
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

typedef struct { /* sums over the words of a text */
    int64_t characters, visible, tokens, words, word_characters, alphabetic, stop_words, longest, hash_signs, ellipses, sentences;
    int64_t link_characters, letters, digits, uppers, holes, braces;
} Sums;

/* Add what stands between white space, letter by letter: one token, or several where a script puts no spaces between words.  Returns its edges. */
static int add_letters(const Tables *t, const uint8_t *p, const uint8_t *end, Sums *s) {
    const uint8_t *start = p, *token = p;
    int first_is_bullet = 0, ends_terminal = 0, ends_ellipsis = 0;
    uint64_t core = 0, core_at_last = 0;
    int64_t token_length = 0, core_length = 0, core_at_last_length = 0;
    int has_letter = 0, is_link = 0, dots = 0, terminal = 0, unspaced = 0;
    for (;;) {
        uint32_t c = ' ';
        uint8_t kind = SPACE;
        const uint8_t *here = p;
        if (p < end) {
            c = next_point(&p);
            kind = kind_of(t, c);
        }
        if (token_length && ((kind & (SPACE | UNSPACED)) || (unspaced && (kind & (LETTER | DIGIT))))) { /* the token is whole */
            room.tokens[s->tokens] = word_hash(token, here - token, end); /* the key that it has where it stands alone */
            room.ends[s->tokens + 1] = room.ends[s->tokens] + token_length;
            s->tokens++;
            if (core_at_last_length) {
                s->words++;
                s->word_characters += core_at_last_length;
                if (core_at_last_length > s->longest) s->longest = core_at_last_length;
                s->stop_words += is_stop_word(t, core_at_last);
            }
            s->alphabetic += has_letter;
            s->sentences += terminal;
            if (is_link) s->link_characters += token_length;
            core = core_at_last = 0;
            token_length = core_length = core_at_last_length = 0;
            has_letter = is_link = terminal = unspaced = 0;
        }
        if (here == end)
            return (first_is_bullet ? FIRST_BULLET : 0) | (ends_terminal ? ENDS_TERMINAL : 0) | (ends_ellipsis ? ENDS_ELLIPSIS : 0);
        s->characters++;
        s->visible++;
        if (!token_length) {
            token = here;
            is_link = starts_link(here, end);
        }
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
        has_letter |= (kind & LETTER) != 0;
        s->letters += (kind & LETTER) != 0;
        s->digits += (kind & DIGIT) != 0;
        s->uppers += (kind & UPPER) != 0;
        s->holes += c == 0xFFFD;
        s->braces += c == '{';
        s->hash_signs += c == '#';
        dots = c == '.' ? dots + 1 : 0;
        if (c == 0x2026 || dots == 3) s->ellipses++;
        if (here == start) first_is_bullet = kind & BULLET;
        if (kind & TERMINAL)
            terminal = 1;
        else if (!(kind & CLOSING))
            terminal = 0;
        ends_terminal = terminal;
        ends_ellipsis = c == 0x2026 || dots >= 3;
    }
}

typedef struct { /* lines and paragraphs of a text */
    uint64_t *lines, *paragraphs; /* hashes */
    int64_t *line_characters, *paragraph_characters;
    int64_t num_lines, num_paragraphs, bullets, ellipsis_lines, terminal_lines, short_lines;
    uint64_t line, paragraph;                         /* of those at hand; of a line to its last visible character */
    int64_t length, length_at_last, paragraph_length; /* characters, also to the last visible one */
    uint64_t spaces;                                  /* since then */
    int first_is_bullet;
    int edges; /* of its last word */
} Lines;

static void end_paragraph(Lines *l) {
    if (!l->paragraph_length) return;
    l->paragraphs[l->num_paragraphs] = known_by(l->paragraph);
    l->paragraph_characters[l->num_paragraphs++] = l->paragraph_length;
    l->paragraph = 0;
    l->paragraph_length = 0;
}

static void end_line(Lines *l) {
    if (l->length_at_last) {
        l->lines[l->num_lines] = known_by(l->line);
        l->line_characters[l->num_lines] = l->length_at_last;
        l->paragraph = join(l->paragraph, l->lines[l->num_lines++]);
        l->paragraph_length += l->length_at_last;
        l->bullets += l->first_is_bullet != 0;
        l->terminal_lines += (l->edges & ENDS_TERMINAL) != 0;
        l->ellipsis_lines += (l->edges & ENDS_ELLIPSIS) != 0;
        l->short_lines += l->length_at_last <= 30;
    } else {
        end_paragraph(l);
    }
    l->line = l->spaces = 0;
    l->length = l->length_at_last = 0;
}

/* Add white space. */
static inline void add_space(Lines *l, const uint8_t *p, const uint8_t *end, Sums *s) {
    while (p < end) {
        int ends_line = *p == '\n';
        p += space_at(p, end);
        s->characters++;
        if (ends_line)
            end_line(l);
        else if (l->length)
            l->spaces++, l->length++;
    }
}

enum { TOP_2_GRAM = 27, NUM_MEASURES = 36 }; /* places in `Measures` of text_measures.py */

/* Room for what is known of a text; 0 where memory is out. */
static int begin_text(int64_t size, Lines *l) {
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
    *l = (Lines){.lines = room.tokens + most, .paragraphs = room.tokens + 2 * most, .line_characters = room.ends + most, .paragraph_characters = room.ends + 2 * most};
    room.ends[0] = 0;
    return 1;
}

/* Add a word, whose hash is `key`. */
static inline void add_word(const Tables *t, const uint8_t *word, const uint8_t *end, uint64_t key, Lines *l, Sums *s) {
    int64_t before = s->characters;
    int edges = add_letters(t, word, end, s);
    if (!l->length) l->first_is_bullet = edges & FIRST_BULLET;
    l->edges = edges;
    l->line = join(l->line, key + l->spaces * PRIME);
    l->spaces = 0;
    l->length_at_last = l->length += s->characters - before;
}

/* All numbers of a whole text but those of n-grams; 0 where memory is out. */
static int end_text(Lines *l, Sums *s, double *o) {
    end_line(l);
    end_paragraph(l);
    *o++ = s->characters;
    *o++ = s->words;
    *o++ = l->num_lines;
    *o++ = s->sentences;
    *o++ = SHARE(s->word_characters, s->words);
    *o++ = s->longest;
    *o++ = SHARE(s->alphabetic, s->words);
    *o++ = s->stop_words;
    *o++ = SHARE(s->stop_words, s->words);
    *o++ = SHARE(s->hash_signs, s->words);
    *o++ = SHARE(s->ellipses, s->words);
    *o++ = SHARE(l->bullets, l->num_lines);
    *o++ = SHARE(l->ellipsis_lines, l->num_lines);
    *o++ = SHARE(l->terminal_lines, l->num_lines);
    *o++ = SHARE(l->short_lines, l->num_lines);
    *o++ = SHARE(l->num_lines, s->words);
    *o++ = SHARE(s->link_characters, s->visible);
    *o++ = SHARE(s->letters, s->visible);
    *o++ = SHARE(s->digits, s->visible);
    *o++ = SHARE(s->uppers, s->letters);
    *o++ = s->holes;
    *o++ = SHARE(s->holes, s->visible);
    *o++ = SHARE(s->braces, s->words);
    if (!repeated(l->lines, l->line_characters, l->num_lines, o, o + 1)) return 0;
    return repeated(l->paragraphs, l->paragraph_characters, l->num_paragraphs, o + 2, o + 3);
}

/* The numbers of n-grams of `first` to `last` tokens of a text that has ended, 0 for the others; 0 where memory is out. */
static int count_ngrams(const Lines *l, const Sums *s, int first, int last, double *out) {
    int64_t *places = l->line_characters, num_places = 0; /* the lines are counted, and leave their room */
    room.used = s->tokens;
    for (int n = 2; n <= 10; n++) out[TOP_2_GRAM + n - 2] = 0;
    for (int64_t end = first - 1; end < s->tokens; end++) places[num_places++] = end;
    for (int n = first; n <= last; n++)
        if ((out[TOP_2_GRAM + n - 2] = repeated_ngrams(n, n >= 5, places, &num_places, l->lines)) < 0) return 0;
    return 1;
}

/* The numbers of texts one behind the other: text d is text[offsets[d]:offsets[d + 1]], out is (num_texts, NUM_MEASURES) in the order of `Measures` in
 * text_measures.py, with n-grams of `first` to `last` tokens.  Returns 0 where memory is out. */
int texts_measure(const Tables *t, const uint8_t *text, const int64_t *offsets, int64_t num_texts, int first, int last, double *out) {
    Words words;
    for (int64_t d = 0; d < num_texts; d++, out += NUM_MEASURES) {
        const uint8_t *p = text + offsets[d], *end = text + offsets[d + 1];
        Lines l;
        Sums s = {0};
        int number;
        if (!begin_text(end - p, &l)) return 0;
        while ((number = cut_words(p, end, &words)))
            for (int i = 0; i < number; p = words.ends[i++]) {
                add_space(&l, p, words.starts[i], &s);
                add_word(t, words.starts[i], words.ends[i], words.keys[i], &l, &s);
            }
        add_space(&l, p, end, &s);
        if (!end_text(&l, &s, out) || !count_ngrams(&l, &s, first, last, out)) return 0;
    }
    return 1;
}

/* Which repairs each of some texts may need, likewise: `noise` is (num_texts,). */
void texts_noise(const Tables *t, const uint8_t *text, const int64_t *offsets, int64_t num_texts, uint32_t *noise) {
    for (int64_t d = 0; d < num_texts; d++) noise[d] = text_noise(t, text + offsets[d], text + offsets[d + 1]);
}

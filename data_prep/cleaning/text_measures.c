/* The hot loops of data_prep.cleaning.text_measures: which repairs a text may need, and the numbers that rules about documents look at.
 *
 * Built with the system's compiler at first use (common/native.py).  data_prep/cleaning/text_measures_plain.py says the same in
 * Python; tests hold both to the same numbers, so every change is made twice.  Texts are valid UTF-8.
 *
 * Most words were there before: what one is like, letter by letter, is remembered under a hash of its bytes.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "utf8_words.h"

#define NUM_REMEMBERED (1 << 16) /* words; a new one takes the place of an old one */
#define PRIME 0x9E3779B97F4A7C15ull
#define TABLE_SIZE 0x30000 /* code points in the tables; those behind are ideographs, or nothing */
#define SHARE(part, whole) ((whole) ? (double)(part) / (whole) : 0)
#define PREFIX 5           /* characters of a word that triggers are known by */

/* What a code point is: bits of `kinds`, as in text_measures.py. */
enum { LETTER = 1, DIGIT = 2, SPACE = 4, TERMINAL = 8, CLOSING = 16, UNSPACED = 32, BULLET = 64, UPPER = 128 };
/* What asks for a repair: bits of `dirt`, and of the result of `text_dirt`. */
enum { LINE_END = 1, CONTROL = 2, INVISIBLE = 4, FORM = 8, SPACING = 16, LEAD = 32, FOLLOWER = 64, HOLE = 128, LONG_LEAD = 256 };
enum { MARKUP = 1 << 8, ADDRESS = 1 << 9, NUMBER = 1 << 10, CAPITAL = 1 << 11, TRIGGER = 16 };

/* How a stretch between white space begins and ends. */
enum { FIRST_BULLET = 1, ENDS_TERMINAL = 2, ENDS_ELLIPSIS = 4, HAS_UNSPACED = 8 };
/* What is added up over the words of a text; EDGES is none of it, but has its place in the record. */
enum { CHARACTERS, CORE, LETTERS, DIGITS, UPPERS, IS_WORD, IS_STOP_WORD, HAS_LETTER, IS_SENTENCE, LINK, HASH_SIGNS, ELLIPSES, HOLES, BRACES, EDGES, NUM_COUNTS = 16 };

enum { DIRT = 1, COUNTS = 2 };

/* What is known of a word by its bytes alone: half a line of the processor's cache, as to have it from the memory is most of what a word costs. */
typedef struct {
    uint64_t key; /* 0 is empty */
    uint8_t counts[NUM_COUNTS];
    uint32_t found;
    uint16_t state; /* of Sought behind it, if there were no digits before it */
    uint16_t known; /* DIRT: found and state; COUNTS: counts */
} Word;

typedef uint8_t Counts __attribute__((vector_size(NUM_COUNTS)));
typedef uint16_t WideCounts __attribute__((vector_size(2 * NUM_COUNTS))); /* sums of at most 257 words */

typedef struct { /* of one language */
    const uint8_t *kinds;
    const uint16_t *dirt;
    const uint32_t *lower;
    const uint64_t *stop_words, *triggers; /* open addressing, 0 is empty */
    const uint32_t *trigger_groups;
    Word *words; /* NUM_REMEMBERED of them */
    uint64_t stop_mask, trigger_mask;
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

static inline uint32_t group_of(const Tables *t, uint64_t hash) {
    uint64_t key = known_by(hash);
    for (uint64_t at = key & t->trigger_mask; t->triggers[at]; at = (at + 1) & t->trigger_mask)
        if (t->triggers[at] == key) return t->trigger_groups[at];
    return 0;
}

static inline int is_stop_word(const Tables *t, uint64_t hash) {
    uint64_t key = known_by(hash);
    for (uint64_t at = key & t->stop_mask; t->stop_words[at]; at = (at + 1) & t->stop_mask)
        if (t->stop_words[at] == key) return 1;
    return 0;
}

typedef struct { /* where the search for what needs a repair stands */
    uint32_t before, before_that; /* characters */
    uint16_t last, last_but_one;  /* what these are, as far as it matters: LEAD, FOLLOWER, LONG_LEAD */
    int digits, gap;              /* of a number, at most 7; characters since the last of them that may stand in one, at most MAX_GAP */
} Sought;

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

/* What a stretch of a text may need that begins and ends with a word or white space. */
static uint32_t dirt_of(const Tables *t, const uint8_t *p, const uint8_t *end, Sought *s) {
    uint32_t found = 0;
    int prefix = 0, dots = 0; /* dots: each between digits */
    uint64_t word = 0;
    const uint8_t *plain = p; /* where the ASCII letters and digits before p begin */
    while (p < end) {
        const uint8_t *at = p;
        uint32_t c = next_point(&p);
        uint8_t kind = kind_of(t, c);
        uint16_t dirt = c < TABLE_SIZE ? t->dirt[c] : 0;
        if (c >= 0x80 || !(is_letter(c) || is_digit(c))) {
            if (at > plain && may_be_number(plain, at - plain)) found |= NUMBER;
            plain = p;
        }
        if (kind & (LETTER | DIGIT)) {
            word = join(word, lower_of(t, c));
            if (++prefix == PREFIX) found |= group_of(t, word) << TRIGGER;
        } else {
            if (prefix && prefix != PREFIX) found |= group_of(t, word) << TRIGGER;
            prefix = 0;
            word = 0;
        }
        found |= dirt & (LINE_END | CONTROL | INVISIBLE | FORM | SPACING | HOLE | CAPITAL);
        if ((dirt & FOLLOWER) && ((s->last & LEAD) || ((s->last & FOLLOWER) && (s->last_but_one & LONG_LEAD)))) found |= LEAD;
        s->last_but_one = s->last;
        s->last = dirt & (LEAD | FOLLOWER | LONG_LEAD);
        if (c < 0x80) {
            if (is_digit(c)) {
                if (++s->digits >= 7) {
                    s->digits = 7;
                    found |= NUMBER;
                }
                s->gap = 0;
                dots = s->before == '.' && s->before_that < 0x80 && is_digit(s->before_that) ? dots + 1 : s->before == '.' ? 0 : dots;
                if (dots == 3) found |= NUMBER; /* an address of a machine */
            } else if (s->digits && (c == ' ' || c == '-' || c == '/' || c == '.' || c == '(' || c == ')') && ++s->gap <= MAX_GAP) {
            } else if (s->digits && c >= 'A' && c <= 'Z') { /* in IBANs and tax numbers */
                s->gap = 0;
            } else {
                s->digits = 0;
            }
            if (!is_digit(c) && c != '.') dots = 0;
            if (c == '@') found |= ADDRESS;
            if (c == ':' && is_hex(s->before) && (s->before_that == ':' || is_hex(s->before_that))) found |= NUMBER; /* an IPv6 address, or a time */
            if (s->before == '<' && (is_letter(c) || c == '/' || c == '!')) found |= MARKUP;
            if (s->before == '&' && (is_letter(c) || c == '#')) found |= MARKUP;
            if (c == ' ' && (s->before == ' ' || s->before == '\n')) found |= SPACING;
            if (c == '\n') {
                if (s->before == ' ') found |= SPACING;
                if (s->before == '\n' && s->before_that == '\n') found |= SPACING;
            }
        } else if (c != 0xA0 || !s->digits || ++s->gap > MAX_GAP) { /* a space that does not break may stand in an IBAN */
            s->digits = dots = 0;
        }
        s->before_that = s->before;
        s->before = c;
    }
    if (end > plain && may_be_number(plain, end - plain)) found |= NUMBER;
    if (prefix && prefix != PREFIX) found |= group_of(t, word) << TRIGGER;
    return found;
}

/* The same state in 12 bits: characters of a word are none that matter behind it. */
static inline uint16_t packed(const Sought *s) {
    uint16_t gap = s->digits ? s->gap > MAX_GAP ? MAX_GAP + 1 : s->gap : 0;
#define THREE(bits) (((bits) & LEAD ? 1 : 0) | ((bits) & FOLLOWER ? 2 : 0) | ((bits) & LONG_LEAD ? 4 : 0))
    return s->digits | gap << 3 | THREE(s->last) << 6 | THREE(s->last_but_one) << 9;
}

static inline void unpack(uint16_t state, Sought *s) {
#define BITS(three) (((three) & 1 ? LEAD : 0) | ((three) & 2 ? FOLLOWER : 0) | ((three) & 4 ? LONG_LEAD : 0))
    s->digits = state & 7;
    s->gap = state >> 3 & 7;
    s->last = BITS(state >> 6 & 7);
    s->last_but_one = BITS(state >> 9 & 7);
    s->before = s->before_that = 'x';
}

/* The next words from a place on; what is known of them is asked of the memory meanwhile. */
static int next_words(const Tables *t, const uint8_t *p, const uint8_t *end, Words *words) {
    int number = cut_words(p, end, words);
    for (int i = 0; i < number; i++) __builtin_prefetch(&t->words[words->keys[i] % NUM_REMEMBERED], 1);
    return number;
}

/* Where something is remembered of a word, for what is now known of it. */
static inline Word *remember(const Tables *t, uint64_t key, uint16_t known) {
    Word *word = &t->words[key % NUM_REMEMBERED];
    word->known = (word->key == key ? word->known : 0) | known;
    word->key = key;
    return word;
}

/* What is remembered of a word; NULL where that is not known. */
static inline const Word *remembered(const Tables *t, uint64_t key, uint16_t known) {
    const Word *word = &t->words[key % NUM_REMEMBERED];
    return word->key == key && (word->known & known) ? word : NULL;
}

static inline int is_mark(uint8_t c) { return c == ',' || c == '.' || c == ';' || c == ':' || c == '!' || c == '?'; }

/* Learn all of a word that is some letters, with no more than one mark behind them, as most are; NULL where it is another, or one that may need a repair:
 * then `dirt_of` and `add_letters` say what it is like, at several times the cost. */
static const Word *learn(const Tables *t, const uint8_t *p, const uint8_t *end, uint64_t key) {
    const uint8_t *last = end - is_mark(end[-1]);
    if (end - p > 255 || p == last || (end - p == 4 && !memcmp(p, "www.", 4))) return NULL;
    uint64_t core = 0;
    uint32_t group = 0;
    uint16_t follower = 0, follower_before = 0;
    int letters = 0, uppers = 0, in_row = 0; /* of ASCII, of which sixteen may be a number (`may_be_number`) */
    while (p < last) {
        uint32_t c = *p;
        follower_before = follower;
        if (c < 0x80) {
            if (!is_letter(c)) return NULL;
            uppers += !is_small(c);
            c |= 32;
            follower = 0;
            in_row++;
            p++;
        } else {
            if (c >= 0xE0) return NULL;
            c = next_point(&p);
            if ((t->kinds[c] & ~UPPER) != LETTER || (t->dirt[c] & ~FOLLOWER) || in_row == 16) return NULL;
            in_row = 0;
            uppers += (t->kinds[c] & UPPER) != 0;
            follower = t->dirt[c];
            c = t->lower[c];
        }
        core = join(core, c);
        if (++letters == PREFIX) group = group_of(t, core);
    }
    if (in_row == 16) return NULL;
    if (letters != PREFIX) group |= group_of(t, core);
    const Sought behind = {.last = last < end ? 0 : follower, .last_but_one = last < end ? follower : follower_before};
    int ends_terminal = last < end && (kind_of(t, *last) & TERMINAL);
    const uint8_t counts[NUM_COUNTS] = {
        [CHARACTERS] = letters + (last < end), [CORE] = letters, [LETTERS] = letters, [UPPERS] = uppers, [IS_WORD] = 1, [IS_STOP_WORD] = is_stop_word(t, core),
        [HAS_LETTER] = 1, [IS_SENTENCE] = ends_terminal, [EDGES] = ends_terminal ? ENDS_TERMINAL : 0,
    };
    Word *word = remember(t, key, DIRT | COUNTS);
    word->found = group << TRIGGER;
    word->state = packed(&behind);
    memcpy(word->counts, counts, sizeof(counts));
    return word;
}

/* What a word may need, and where the search stands behind it. */
static inline uint32_t word_dirt(const Tables *t, const uint8_t *word, const uint8_t *end, uint64_t key, Sought *s) {
    /* What stands before matters to few words: white space is no LEAD or LONG_LEAD, but may be a FOLLOWER. */
    if (s->digits || (s->last & ~FOLLOWER) || (s->last && (s->last_but_one & LONG_LEAD))) return dirt_of(t, word, end, s);
    const Word *known = remembered(t, key, DIRT);
    if (!known && !(known = learn(t, word, end, key))) {
        Sought own = {.before = 'x', .before_that = 'x'};
        Word *new = remember(t, key, DIRT);
        new->found = dirt_of(t, word, end, &own);
        new->state = packed(&own);
        known = new;
    }
    unpack(known->state, s);
    return known->found;
}

static inline uint32_t space_dirt(const Tables *t, const uint8_t *p, const uint8_t *end, Sought *s) {
    uint32_t found = 0;
    while (p < end) {
        if (*p == ' ' && !s->digits) { /* as nearly always */
            if (s->before == ' ' || s->before == '\n') found |= SPACING;
            s->last_but_one = s->last;
            s->last = 0;
            s->before_that = s->before;
            s->before = ' ';
            p++;
        } else {
            int width = space_at(p, end);
            found |= dirt_of(t, p, p + width, s);
            p += width;
        }
    }
    return found;
}

/* What a word and the white space before it, which begins at p, may need.  settled: whether a word is before that, of which nothing matters any more; so it
 * is with nearly all, and what is known of a word is all that there is to say. */
static inline uint32_t next_dirt(const Tables *t, const uint8_t *p, const Words *words, int i, Sought *s, int *settled) {
    const Word *known = remembered(t, words->keys[i], DIRT);
    if (*settled && words->starts[i] - p == 1 && *p == ' ' && known && !known->state) return known->found;
    uint32_t found = space_dirt(t, p, words->starts[i], s);
    found |= word_dirt(t, words->starts[i], words->ends[i], words->keys[i], s);
    *settled = !(s->digits | s->last | s->last_but_one);
    return found;
}

/* Which repairs a text may need: bits as above, and from bit TRIGGER on the groups of the trigger words in it. */
uint32_t text_dirt(const Tables *t, const uint8_t *text, int64_t size) {
    const uint8_t *p = text, *end = text + size;
    uint32_t found = 0;
    Sought s = {.before = '\n', .before_that = '\n'};
    Words words;
    int number, settled = 0;
    if (size && (*p == ' ' || *p == '\n')) found |= SPACING;
    while ((number = next_words(t, p, end, &words)))
        for (int i = 0; i < number; i++) {
            found |= next_dirt(t, p, &words, i, &s, &settled);
            p = words.ends[i];
        }
    found |= space_dirt(t, p, end, &s);
    if (size && (s.before == ' ' || s.before == '\n')) found |= SPACING;
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
 * one that is there twice begins and ends with an n-gram that is.  There is room for as many keys.
 * most: the share in all n-grams that are there twice, first times too; no longer ones can cover more. */
static double repeated_ngrams(int n, int covered, int64_t *places, int64_t *num_places, uint64_t *keys, double *most) {
    uint64_t mask;
    *most = 0;
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
    int64_t left = 0, before = -1, in_all = 0;
    for (int64_t i = 0; i < count && best > 1; i++) {
        if (times_of(slots, mask, keys[i]) < 2) continue;
        int64_t last = places[i], from = last - n < before ? before : last - n;
        in_all += room.ends[last + 1] - room.ends[from + 1];
        if (before == last - 1) places[left++] = last;
        before = last;
    }
    *num_places = left;
    *most = (double)in_all / all;
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

/* Add what was counted of words of scripts with spaces, of which all was known. */
static inline void add_counts(Sums *s, const WideCounts *sums) {
    WideCounts counts = *sums;
    s->characters += counts[CHARACTERS];
    s->visible += counts[CHARACTERS];
    s->words += counts[IS_WORD];
    s->word_characters += counts[CORE];
    s->stop_words += counts[IS_STOP_WORD];
    s->alphabetic += counts[HAS_LETTER];
    s->sentences += counts[IS_SENTENCE];
    s->letters += counts[LETTERS];
    s->digits += counts[DIGITS];
    s->uppers += counts[UPPERS];
    s->link_characters += counts[LINK];
    s->hash_signs += counts[HASH_SIGNS];
    s->ellipses += counts[ELLIPSES];
    s->holes += counts[HOLES];
    s->braces += counts[BRACES];
}

/* Add what stands between white space, letter by letter: one token, or several where a script puts no spaces between words.  Returns its edges. */
static int add_letters(const Tables *t, const uint8_t *p, const uint8_t *end, Sums *s) {
    const uint8_t *start = p, *token = p;
    int first_is_bullet = 0, has_unspaced = 0, ends_terminal = 0, ends_ellipsis = 0;
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
            return (first_is_bullet ? FIRST_BULLET : 0) | (ends_terminal ? ENDS_TERMINAL : 0) | (ends_ellipsis ? ENDS_ELLIPSIS : 0) | (has_unspaced ? HAS_UNSPACED : 0);
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
        has_unspaced |= kind & UNSPACED;
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

/* Add what stands between white space and is not remembered; its edges.  It is remembered then, if it is short and its script has spaces. */
static int add_new(const Tables *t, const uint8_t *p, const uint8_t *end, uint64_t key, Sums *s) {
    Sums before = *s;
    s->longest = 0;
    int edges = add_letters(t, p, end, s);
    int64_t core = s->longest, characters = s->characters - before.characters;
    if (before.longest > s->longest) s->longest = before.longest;
    if ((edges & HAS_UNSPACED) || characters > 255) return edges;
    const uint8_t counts[NUM_COUNTS] = {
        [CHARACTERS] = characters, [CORE] = core, [LETTERS] = s->letters - before.letters, [DIGITS] = s->digits - before.digits,
        [UPPERS] = s->uppers - before.uppers, [IS_WORD] = core != 0, [IS_STOP_WORD] = s->stop_words - before.stop_words,
        [HAS_LETTER] = s->alphabetic - before.alphabetic, [IS_SENTENCE] = s->sentences - before.sentences,
        [LINK] = s->link_characters - before.link_characters, [HASH_SIGNS] = s->hash_signs - before.hash_signs,
        [ELLIPSES] = s->ellipses - before.ellipses, [HOLES] = s->holes - before.holes, [BRACES] = s->braces - before.braces, [EDGES] = edges,
    };
    memcpy(remember(t, key, COUNTS)->counts, counts, sizeof(counts));
    return edges;
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

/* The measures in the order of `Measures` in text_measures_plain.py, of which these are named here. */
enum { WORDS = 1, LINES = 2, ELLIPSIS_LINES = 12, TERMINAL_LINES = 13, TOP_2_GRAM = 27, DUPLICATE_5_GRAM = 30, NUM_MEASURES = 36 };
enum { ENDED_LINES = NUM_MEASURES, NOTHING = -1 }; /* of rules: a difference of two, and one that is 0 here */

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

/* Add some words, at most MOST_WORDS, and the white space before each, which begins at p; the end of the last one. */
static inline const uint8_t *add_words(const Tables *t, const uint8_t *p, const Words *words, int number, Lines *l, Sums *s) {
    WideCounts counts = {0};
    for (int i = 0; i < number; i++) {
        const uint8_t *word = words->starts[i], *end = words->ends[i];
        uint64_t key = words->keys[i];
        if (word - p == 1 && *p == ' ' && l->length) { /* as nearly always */
            s->characters++;
            l->spaces++;
            l->length++;
        } else {
            add_space(l, p, word, s);
        }
        const Word *known = remembered(t, key, COUNTS);
        if (!known) known = learn(t, word, end, key);
        int edges;
        int64_t length;
        if (known) {
            Counts here;
            memcpy(&here, known->counts, sizeof(here));
            counts += __builtin_convertvector(here, WideCounts);
            length = known->counts[CHARACTERS];
            edges = known->counts[EDGES];
            if (known->counts[CORE] > s->longest) s->longest = known->counts[CORE];
            room.tokens[s->tokens] = key;
            room.ends[s->tokens + 1] = room.ends[s->tokens] + length;
            s->tokens++;
        } else {
            int64_t before = s->characters;
            edges = add_new(t, word, end, key, s);
            length = s->characters - before;
        }
        if (!l->length) l->first_is_bullet = edges & FIRST_BULLET;
        l->edges = edges;
        l->line = join(l->line, key + l->spaces * PRIME);
        l->spaces = 0;
        l->length_at_last = l->length += length;
        p = end;
    }
    add_counts(s, &counts);
    return p;
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

/* The numbers of n-grams of `first` to `last` tokens of a text that has ended; 0 where memory is out.  Behind those of `tops` tokens none is looked for
 * of which no more than `enough` of the text can be: it is 0. */
static int count_ngrams(const Lines *l, const Sums *s, int first, int tops, int last, double enough, double *out) {
    int64_t *places = l->line_characters, num_places = 0; /* the lines are counted, and leave their room */
    room.used = s->tokens;
    for (int n = 2; n <= 10; n++) out[TOP_2_GRAM + n - 2] = 0;
    for (int64_t end = first - 1; end < s->tokens; end++) places[num_places++] = end;
    for (int n = first; n <= last; n++) {
        double most, found = repeated_ngrams(n, n >= 5, places, &num_places, l->lines, &most);
        if (found < 0) return 0;
        out[TOP_2_GRAM + n - 2] = found;
        if (n >= tops && most <= enough) break; /* the most frequent ones may lie over each other, and be more than they cover */
    }
    return 1;
}

/* The numbers of a text in the order of `Measures` in text_measures_plain.py; 0 where memory is out. */
int text_measure(const Tables *t, const uint8_t *text, int64_t size, double *out) {
    Lines l;
    Sums s = {0};
    Words words;
    const uint8_t *p = text, *end = text + size;
    int number;
    if (!begin_text(size, &l)) return 0;
    while ((number = next_words(t, p, end, &words))) p = add_words(t, p, &words, number, &l, &s);
    add_space(&l, p, end, &s);
    return end_text(&l, &s, out) && count_ngrams(&l, &s, 2, 4, 10, -1, out);
}

typedef struct { /* `Rule` of filter_settings.py; infinite where there is no limit */
    int32_t measure, unless; /* NOTHING: it is always 0, or there is none */
    double max, min, unless_max, unless_min, from_words, from_lines;
} Rule;

static inline double measured(const double *out, int32_t measure) {
    return measure == NOTHING ? 0 : measure == ENDED_LINES ? out[TERMINAL_LINES] - out[ELLIPSIS_LINES] : out[measure];
}

static inline int asks(const Rule *rule, const double *out) {
    if (out[WORDS] < rule->from_words || out[LINES] < rule->from_lines) return 0;
    double value = measured(out, rule->unless);
    return rule->unless == NOTHING || value > rule->unless_max || value < rule->unless_min;
}

enum { NO_RULE = -1, UNKNOWN = -2 };

/* The first rule that refuses a text that has ended, and its value; UNKNOWN where memory is out.  N-grams are counted as far as a rule asks for them. */
static int refusing(const Lines *l, const Sums *s, const Rule *rules, int64_t num_rules, double *out, double *value) {
    int first = 11, tops = 0, last = 0;
    double enough = 1; /* rules of duplicate n-grams let this pass */
    for (int64_t i = 0; i < num_rules; i++) {
        const Rule *rule = &rules[i];
        int of_ngrams = rule->measure >= TOP_2_GRAM && rule->measure < NUM_MEASURES, n = rule->measure - TOP_2_GRAM + 2;
        if (rule->unless >= TOP_2_GRAM && rule->unless < NUM_MEASURES) first = 2, last = 10, enough = -1; /* few settings do so */
        if (!of_ngrams || (rule->unless < TOP_2_GRAM || rule->unless == ENDED_LINES ? !asks(rule, out) : 0)) continue;
        if (n < first) first = n;
        if (n > last) last = n;
        if (n < 5 && n > tops) tops = n;
        if (n >= 5) enough = rule->min > 0 ? -1 : rule->max < enough ? rule->max : enough;
    }
    if (last && !count_ngrams(l, s, first, tops, last, enough, out)) return UNKNOWN;
    for (int64_t i = 0; i < num_rules; i++) {
        *value = measured(out, rules[i].measure);
        if ((*value > rules[i].max || *value < rules[i].min) && asks(&rules[i], out)) return i;
    }
    return NO_RULE;
}

/* What texts one behind the other may need, and which of them pass the rules as they are.
 *
 * offsets: text d is text[offsets[d]:offsets[d + 1]].  hard: a text that may need one of these
 * repairs is not measured on to its end.
 * dirt: of each text, as `text_dirt`.  refused: the number of the first rule that refuses it, NO_RULE where it passes, UNKNOWN where it was not asked.
 * values: of that rule, or the words of a text that passes.
 * measures: whether words are to be counted where there are no rules.
 */
void texts_judge(const Tables *t, const uint8_t *text, const int64_t *offsets, int64_t num_texts, uint32_t hard, const Rule *rules,
                 int64_t num_rules, int measures, uint32_t *dirt, int32_t *refused, double *values) {
    double out[NUM_MEASURES] = {0};
    Words words;
    for (int64_t d = 0; d < num_texts; d++) {
        const uint8_t *start = text + offsets[d], *end = text + offsets[d + 1], *p = start;
        refused[d] = UNKNOWN;
        values[d] = 0;
        Lines l;
        Sums s = {0};
        if (!measures || !begin_text(end - start, &l)) {
            dirt[d] = text_dirt(t, start, end - start);
            if (!measures) refused[d] = NO_RULE;
            continue;
        }
        uint32_t found = 0;
        Sought sought = {.before = '\n', .before_that = '\n'};
        int number, settled = 0;
        if (p < end && (*p == ' ' || *p == '\n')) found |= SPACING;
        while ((number = next_words(t, p, end, &words))) {
            const uint8_t *before = p;
            for (int i = 0; i < number; i++) {
                found |= next_dirt(t, p, &words, i, &sought, &settled);
                p = words.ends[i];
            }
            if (!(found & hard)) add_words(t, before, &words, number, &l, &s);
        }
        found |= space_dirt(t, p, end, &sought);
        if (start < end && (sought.before == ' ' || sought.before == '\n')) found |= SPACING;
        dirt[d] = found;
        if (found & hard) continue;
        add_space(&l, p, end, &s);
        if (!end_text(&l, &s, out)) continue;
        refused[d] = refusing(&l, &s, rules, num_rules, out, &values[d]);
        if (refused[d] == NO_RULE) values[d] = out[WORDS];
    }
}

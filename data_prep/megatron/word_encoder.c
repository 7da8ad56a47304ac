/* The hot loops of data_prep.megatron.word_encoder: text cut into words, and the token ids of each word from a cache or by its merges.
 *
 * Built with the system's compiler at first use (common/native.py); without one the tokenizer library does the same.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NUM_CODE_POINTS 0x110000
#define EMPTY (~0ull)
#define NO_RANK (~0u)
#define MAX_CACHED 1024 /* bytes of a word in the cache */
#define SHORT 64 /* symbols of a word that a scan merges faster than a heap */

/* How text is cut into words: by pairs of neighbouring characters, or as a regular expression does. */
enum { BY_PAIRS, GPT2, LLAMA3, DIGITS };
/* Categories of code points, as the tokenizer library's regular expressions see them. */
enum { OTHER, LETTER, NUMBER, SPACE, IS_DIGIT = 4 }; /* IS_DIGIT: a bit of its own, for DIGITS */

typedef struct {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank;
    int32_t id; /* of both together */
} merge_t;

typedef struct {
    uint64_t hash;
    uint32_t place; /* in the arena */
    uint16_t length; /* bytes of the word */
    uint16_t num_ids;
} slot_t;

/* Words and their ids: slots by hash, and an arena with the bytes of each word, padded to 4, and its ids behind them. */
typedef struct {
    slot_t *slots;
    uint64_t mask, used;
    uint32_t *arena;
    uint64_t arena_size, arena_used;
} words_t;

typedef struct {
    int cutting, max_digits, has_merges, fuse_unknown;
    int32_t unknown; /* id of a character without one; where byte_ids is NULL */
    const uint8_t *categories; /* (NUM_CODE_POINTS,) */
    const uint8_t *cuts; /* (129, 256): whether words part between two characters; ASCII by itself, all others as 128 */
    const int32_t *symbols; /* ids of characters by code point, -1 for none; of bytes in the other two cuttings */
    const int32_t *byte_ids; /* (256,), of <0x00> ... <0xFF>, or NULL */
    merge_t *merges;
    uint64_t merge_mask;
    words_t whole; /* words that are tokens whatever the merges say */
} rules_t;

typedef struct {
    uint64_t pair;
    uint32_t rank, place;
    int32_t id;
} candidate_t;

typedef struct {
    const rules_t *rules;
    words_t young, old;
    int32_t *symbols, *previous, *next; /* of a long word */
    candidate_t *heap;
    int64_t room;
    uint64_t hits, misses;
} encoder_t;

static inline uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93ull;
    x ^= x >> 32;
    return x;
}

static inline uint64_t hash_of(const uint8_t *word, int64_t length) {
    uint64_t hash = (uint64_t)length * 0x9E3779B97F4A7C15ull, chunk;
    for (; length >= 8; length -= 8, word += 8) {
        memcpy(&chunk, word, 8);
        hash = mix(hash ^ chunk) * 0x9E3779B97F4A7C15ull;
    }
    chunk = 0;
    for (int64_t i = 0; i < length; i++) chunk |= (uint64_t)word[i] << (8 * i);
    return mix(hash ^ chunk);
}

/* ---- words and their ids ---- */

static int words_new(words_t *words, uint64_t num_slots, uint64_t arena_size) {
    *words = (words_t){.mask = num_slots - 1, .arena_size = arena_size};
    words->slots = calloc(num_slots, sizeof(slot_t));
    words->arena = malloc(arena_size * sizeof(uint32_t));
    return words->slots && words->arena;
}

static void words_free(words_t *words) {
    free(words->slots);
    free(words->arena);
}

static inline uint64_t padded(uint64_t length) {
    return (length + 3) / 4;
}

/* The slot of a word, or NULL. */
static inline const slot_t *words_find(const words_t *words, const uint8_t *word, int64_t length, uint64_t hash) {
    for (uint64_t at = hash & words->mask; words->slots[at].length; at = (at + 1) & words->mask) {
        const slot_t *slot = &words->slots[at];
        if (slot->hash == hash && slot->length == length && !memcmp(words->arena + slot->place, word, length)) return slot;
    }
    return NULL;
}

static inline const int32_t *ids_of(const words_t *words, const slot_t *slot) {
    return (const int32_t *)words->arena + slot->place + padded(slot->length);
}

/* Add a word that is not there; 0 where it has no room. */
static int words_add(words_t *words, const uint8_t *word, int64_t length, uint64_t hash, const int32_t *ids, int64_t num_ids) {
    uint64_t needed = padded(length) + num_ids;
    if (4 * (words->used + 1) > 3 * (words->mask + 1) || words->arena_used + needed > words->arena_size) return 0;
    uint64_t at = hash & words->mask;
    while (words->slots[at].length) at = (at + 1) & words->mask;
    words->slots[at] = (slot_t){hash, (uint32_t)words->arena_used, (uint16_t)length, (uint16_t)num_ids};
    memcpy(words->arena + words->arena_used, word, length);
    memcpy(words->arena + words->arena_used + padded(length), ids, num_ids * sizeof(int32_t));
    words->arena_used += needed;
    words->used++;
    return 1;
}

/* Remember a word.  Two generations bound the memory: when the young one is full it becomes the old one, and what was in the
 * old one and was not asked for since is forgotten. */
static void remember(encoder_t *encoder, const uint8_t *word, int64_t length, uint64_t hash, const int32_t *ids, int64_t num_ids) {
    if (length > MAX_CACHED || words_add(&encoder->young, word, length, hash, ids, num_ids)) return;
    words_t oldest = encoder->old;
    encoder->old = encoder->young;
    memset(oldest.slots, 0, (oldest.mask + 1) * sizeof(slot_t));
    oldest.used = oldest.arena_used = 0;
    encoder->young = oldest;
    words_add(&encoder->young, word, length, hash, ids, num_ids);
}

/* ---- where words end ---- */

/* The code point at p; its number of bytes goes to `width`.  The text is valid UTF-8. */
static inline uint32_t code_point(const uint8_t *p, int *width) {
    uint8_t c = p[0];
    if (c < 0x80) return *width = 1, c;
    if (c < 0xE0) return *width = 2, (uint32_t)(c & 0x1F) << 6 | (p[1] & 0x3F);
    if (c < 0xF0) return *width = 3, (uint32_t)(c & 0x0F) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    return *width = 4, (uint32_t)(c & 0x07) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 | (p[3] & 0x3F);
}

static inline int category(const rules_t *rules, const uint8_t *p, const uint8_t *end, int *width) {
    return p < end ? rules->categories[code_point(p, width)] & 3 : -1;
}

/* Behind the characters of a category from p on, at most `most` of them. */
static inline const uint8_t *skip(const rules_t *rules, const uint8_t *p, const uint8_t *end, int wanted, int64_t most) {
    int width;
    while (most-- > 0 && category(rules, p, end, &width) == wanted) p += width;
    return p;
}

static const uint8_t *end_by_pairs(const rules_t *rules, const uint8_t *p, const uint8_t *end) {
    unsigned before = *p < 0x80 ? *p : 128;
    for (p++; p < end; p++) {
        if ((*p & 0xC0) == 0x80) continue;
        unsigned here = *p < 0x80 ? *p : 128;
        if (rules->cuts[before << 8 | here]) break;
        before = here;
    }
    return p;
}

/* Bytes of 's 't 're 've 'm 'll 'd at p, 0 for none of them; without case also the long s, which folds to s. */
static int contraction(const uint8_t *p, const uint8_t *end, int any_case) {
    if (*p != '\'' || end - p < 2) return 0;
    if (any_case && end - p >= 3 && p[1] == 0xC5 && p[2] == 0xBF) return 3;
    uint8_t fold = any_case ? 0x20 : 0, a = p[1] | fold, b = end - p >= 3 ? p[2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+ at white space: a run gives its last character to the word behind it. */
static const uint8_t *end_of_space(const rules_t *rules, const uint8_t *p, const uint8_t *end) {
    const uint8_t *last = p, *q = p;
    int width;
    while (category(rules, q, end, &width) == SPACE) {
        last = q;
        q += width;
    }
    return q == end || last == p ? q : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static const uint8_t *end_gpt2(const rules_t *rules, const uint8_t *p, const uint8_t *end) {
    int width, found = contraction(p, end, 0);
    if (found) return p + found;
    const uint8_t *q = p + (*p == ' ');
    int kind = category(rules, q, end, &width);
    if (kind < 0 || kind == SPACE) return end_of_space(rules, p, end);
    return skip(rules, q, end, kind, INT64_MAX);
}

/* Behind the stretch at p that the expression of GPT-2 sees for itself: digits are cut out of a text before (at most max_digits at a time). */
static const uint8_t *end_of_stretch(const rules_t *rules, const uint8_t *p, const uint8_t *end) {
    int width, is_digit = rules->categories[code_point(p, &width)] & IS_DIGIT, most = is_digit ? rules->max_digits : 0;
    for (int count = 1; (p += width) < end; count++)
        if ((rules->categories[code_point(p, &width)] & IS_DIGIT) != is_digit || (most && count == most)) break;
    return p;
}

static inline int breaks_line(const uint8_t *p) {
    return *p == '\n' || *p == '\r';
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * with another number of digits for other models. */
static const uint8_t *end_llama3(const rules_t *rules, const uint8_t *p, const uint8_t *end) {
    int width, next_width, found = contraction(p, end, 1);
    if (found) return p + found;
    int kind = category(rules, p, end, &width);
    if (kind == LETTER) return skip(rules, p, end, LETTER, INT64_MAX);
    if (kind == NUMBER) return skip(rules, p, end, NUMBER, rules->max_digits);
    int next_kind = category(rules, p + width, end, &next_width);
    if (next_kind == LETTER && !breaks_line(p)) return skip(rules, p + width, end, LETTER, INT64_MAX);
    if (kind == OTHER || (*p == ' ' && next_kind == OTHER)) {
        const uint8_t *q = skip(rules, p + (kind == SPACE), end, OTHER, INT64_MAX);
        while (q < end && breaks_line(q)) q++;
        return q;
    }
    const uint8_t *behind_line = NULL;
    for (const uint8_t *q = p; category(rules, q, end, &width) == SPACE; q += width)
        if (breaks_line(q)) behind_line = q + 1;
    return behind_line ? behind_line : end_of_space(rules, p, end);
}

/* ---- byte-pair merges ---- */

static inline const merge_t *find_merge(const rules_t *rules, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint64_t at = mix(pair) & rules->merge_mask; rules->merges[at].pair != EMPTY; at = (at + 1) & rules->merge_mask)
        if (rules->merges[at].pair == pair) return &rules->merges[at];
    return NULL;
}

/* The symbols that a word is made of before any merge; returns their number. */
static int64_t first_symbols(const rules_t *rules, const uint8_t *word, int64_t length, int32_t *symbols) {
    int64_t count = 0;
    if (rules->cutting != BY_PAIRS) {
        for (int64_t i = 0; i < length; i++) {
            symbols[count] = rules->symbols[word[i]];
            count += symbols[count] >= 0; /* a byte without a token is left out */
        }
        return count;
    }
    int after_unknown = 0, width;
    for (const uint8_t *p = word; p < word + length; p += width) {
        int32_t id = rules->symbols[code_point(p, &width)];
        if (id >= 0) {
            symbols[count++] = id;
        } else if (rules->byte_ids) {
            for (int i = 0; i < width; i++) symbols[count++] = rules->byte_ids[p[i]];
        } else if (!after_unknown || !rules->fuse_unknown) {
            symbols[count++] = rules->unknown;
        }
        after_unknown = id < 0;
    }
    return count;
}

/* Merge the pair of the lowest rank, the leftmost of equals, until none is left. */
static int64_t merge_short(const rules_t *rules, int32_t *symbols, int64_t count) {
    const merge_t *merges[SHORT];
    uint32_t ranks[SHORT];
#define LOOK_UP(i)                                                        \
    do {                                                                  \
        merges[i] = find_merge(rules, symbols[i], symbols[(i) + 1]);      \
        ranks[i] = merges[i] ? merges[i]->rank : NO_RANK;                 \
    } while (0)
    for (int64_t i = 0; i + 1 < count; i++) LOOK_UP(i);
    for (;;) {
        int64_t best = -1;
        uint32_t rank = NO_RANK;
        for (int64_t i = 0; i + 1 < count; i++)
            if (ranks[i] < rank) {
                rank = ranks[i];
                best = i;
            }
        if (best < 0) return count;
        symbols[best] = merges[best]->id;
        count--;
        for (int64_t i = best + 1; i < count; i++) {
            symbols[i] = symbols[i + 1];
            merges[i] = merges[i + 1];
            ranks[i] = ranks[i + 1];
        }
        if (best > 0) LOOK_UP(best - 1);
        if (best + 1 < count) LOOK_UP(best);
    }
#undef LOOK_UP
}

static inline int before(const candidate_t *a, const candidate_t *b) {
    return a->rank < b->rank || (a->rank == b->rank && a->place < b->place);
}

static void push(encoder_t *encoder, int64_t *size, int32_t place) {
    int32_t next = encoder->next[place];
    if (next < 0) return;
    const merge_t *merge = find_merge(encoder->rules, encoder->symbols[place], encoder->symbols[next]);
    if (!merge) return;
    candidate_t *heap = encoder->heap, added = {merge->pair, merge->rank, (uint32_t)place, merge->id};
    int64_t at = (*size)++;
    for (; at && before(&added, &heap[(at - 1) / 2]); at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = added;
}

static candidate_t pop(candidate_t *heap, int64_t *size) {
    candidate_t top = heap[0], last = heap[--*size];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < *size; at = child) {
        if (child + 1 < *size && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

/* The same for many symbols, which are in encoder->symbols; the result goes to ids. */
static int64_t merge_long(encoder_t *encoder, int64_t count, int32_t *ids) {
    int32_t *symbols = encoder->symbols, *previous = encoder->previous, *next = encoder->next;
    int64_t size = 0, kept = 0;
    if (!count) return 0;
    for (int64_t i = 0; i < count; i++) {
        previous[i] = (int32_t)i - 1;
        next[i] = i + 1 < count ? (int32_t)i + 1 : -1;
    }
    for (int64_t i = 0; i < count; i++) push(encoder, &size, (int32_t)i);
    while (size) {
        candidate_t best = pop(encoder->heap, &size);
        int32_t left = (int32_t)best.place, right = next[left];
        if (symbols[left] < 0 || right < 0 || ((uint64_t)(uint32_t)symbols[left] << 32 | (uint32_t)symbols[right]) != best.pair) continue;
        symbols[left] = best.id;
        symbols[right] = -1;
        next[left] = next[right];
        if (next[left] >= 0) previous[next[left]] = left;
        if (previous[left] >= 0) push(encoder, &size, previous[left]);
        push(encoder, &size, left);
    }
    for (int32_t i = 0; i >= 0; i = next[i]) ids[kept++] = symbols[i];
    return kept;
}

static int make_room(encoder_t *encoder, int64_t length) {
    if (encoder->room >= length) return 1;
    free(encoder->symbols);
    free(encoder->previous);
    free(encoder->next);
    free(encoder->heap);
    encoder->symbols = malloc(length * sizeof(int32_t));
    encoder->previous = malloc(length * sizeof(int32_t));
    encoder->next = malloc(length * sizeof(int32_t));
    encoder->heap = malloc(3 * length * sizeof(candidate_t)); /* one for each pair at first, two for each merge */
    encoder->room = encoder->symbols && encoder->previous && encoder->next && encoder->heap ? length : 0;
    return encoder->room > 0;
}

/* Token ids of a word; -1 when out of memory. */
static int64_t merged(encoder_t *encoder, const uint8_t *word, int64_t length, uint64_t hash, int32_t *ids) {
    const rules_t *rules = encoder->rules;
    if (rules->whole.used) {
        const slot_t *slot = words_find(&rules->whole, word, length, hash);
        if (slot) {
            ids[0] = ids_of(&rules->whole, slot)[0];
            return 1;
        }
    }
    if (length <= SHORT) return merge_short(rules, ids, first_symbols(rules, word, length, ids));
    if (!make_room(encoder, length)) return -1;
    int64_t count = first_symbols(rules, word, length, encoder->symbols);
    return merge_long(encoder, count, ids);
}

/* ---- for Python ---- */

void word_rules_free(rules_t *rules) {
    if (!rules) return;
    free(rules->merges);
    words_free(&rules->whole);
    free(rules);
}

/* See data_prep.megatron.word_encoder.  The arrays stay the caller's and must stay where they are; byte_ids may be NULL.
 * merges: (num_merges, 3): ids of left, right and both, in order of rank; of equal pairs the last counts.
 * whole, whole_offsets, whole_ids: words that are tokens whatever the merges say. */
rules_t *word_rules_new(int cutting, int max_digits, const uint8_t *categories, const uint8_t *cuts, const int32_t *symbols,
                        const int32_t *byte_ids, int32_t unknown, int fuse_unknown, int has_merges, const int32_t *merges,
                        int64_t num_merges, const uint8_t *whole, const int64_t *whole_offsets, const int32_t *whole_ids,
                        int64_t num_whole) {
    rules_t *rules = calloc(1, sizeof(rules_t));
    if (!rules) return NULL;
    *rules = (rules_t){.cutting = cutting, .max_digits = max_digits, .has_merges = has_merges, .fuse_unknown = fuse_unknown,
                       .unknown = unknown, .categories = categories, .cuts = cuts, .symbols = symbols, .byte_ids = byte_ids};
    uint64_t capacity = 1024, num_slots = 1024, arena_size = 1024;
    while (capacity < 2 * (uint64_t)num_merges) capacity *= 2;
    while (num_slots < 2 * (uint64_t)num_whole) num_slots *= 2;
    for (int64_t i = 0; i < num_whole; i++) arena_size += padded(whole_offsets[i + 1] - whole_offsets[i]) + 1;
    rules->merge_mask = capacity - 1;
    rules->merges = malloc(capacity * sizeof(merge_t));
    if (!rules->merges || !words_new(&rules->whole, num_slots, arena_size)) {
        word_rules_free(rules);
        return NULL;
    }
    memset(rules->merges, 0xFF, capacity * sizeof(merge_t));
    for (int64_t i = 0; i < num_merges; i++) {
        uint64_t pair = (uint64_t)(uint32_t)merges[3 * i] << 32 | (uint32_t)merges[3 * i + 1], at = mix(pair) & rules->merge_mask;
        while (rules->merges[at].pair != EMPTY && rules->merges[at].pair != pair) at = (at + 1) & rules->merge_mask;
        rules->merges[at] = (merge_t){pair, (uint32_t)i, merges[3 * i + 2]};
    }
    for (int64_t i = 0; i < num_whole; i++) {
        const uint8_t *word = whole + whole_offsets[i];
        int64_t length = whole_offsets[i + 1] - whole_offsets[i];
        if (length && length <= UINT16_MAX) words_add(&rules->whole, word, length, hash_of(word, length), &whole_ids[i], 1);
    }
    return rules;
}

void word_encoder_free(encoder_t *encoder) {
    if (!encoder) return;
    words_free(&encoder->young);
    words_free(&encoder->old);
    free(encoder->symbols);
    free(encoder->previous);
    free(encoder->next);
    free(encoder->heap);
    free(encoder);
}

/* num_slots: a power of two; 3/4 of them are used.  arena_size: in 4 bytes.  Both twice, once for each generation. */
encoder_t *word_encoder_new(const rules_t *rules, int64_t num_slots, int64_t arena_size) {
    encoder_t *encoder = calloc(1, sizeof(encoder_t));
    if (!encoder) return NULL;
    encoder->rules = rules;
    int young = words_new(&encoder->young, num_slots, arena_size), old = words_new(&encoder->old, num_slots, arena_size);
    if (young && old) return encoder;
    word_encoder_free(encoder);
    return NULL;
}

void word_remember(encoder_t *encoder, const uint8_t *word, int64_t length, const int32_t *ids, int64_t num_ids) {
    remember(encoder, word, length, hash_of(word, length), ids, num_ids);
}

/* hits, misses: (2,) */
void word_counts(const encoder_t *encoder, int64_t *counts) {
    counts[0] = (int64_t)encoder->hits;
    counts[1] = (int64_t)encoder->misses;
}

/* Encode documents, with one token behind each.
 *
 * text, offsets: the documents one behind the other; document d is text[offsets[d]:offsets[d + 1]].
 * state: (4,) document, place in the text, tokens written, tokens written before this document; zeros to begin.
 * word: (2,) where the word begins and ends that the caller must encode.
 * ids: room for a token a byte and one a document.  lengths: tokens of each document, the one behind it included.
 * Returns 0 when all is done; 1 to have `word` encoded by the caller, who appends its ids, counts them in state and calls again; -1 when
 * out of memory. */
int word_encode(encoder_t *encoder, const uint8_t *text, const int64_t *offsets, int64_t num_documents, int32_t behind, int64_t *state,
                int64_t *word, int32_t *ids, int64_t *lengths) {
    const rules_t *rules = encoder->rules;
    int64_t document = state[0], written = state[2], before_document = state[3];
    const uint8_t *p = text + state[1], *stretch = p;
    for (; document < num_documents; document++) {
        const uint8_t *end = text + offsets[document + 1];
        while (p < end) {
            if (rules->cutting == DIGITS && p >= stretch) stretch = end_of_stretch(rules, p, end);
            const uint8_t *q = rules->cutting == BY_PAIRS ? end_by_pairs(rules, p, end)
                               : rules->cutting == GPT2   ? end_gpt2(rules, p, end)
                               : rules->cutting == DIGITS ? end_gpt2(rules, p, stretch)
                                                          : end_llama3(rules, p, end);
            int64_t length = q - p, count;
            uint64_t hash = hash_of(p, length);
            const words_t *words = &encoder->young;
            const slot_t *slot = words_find(words, p, length, hash);
            int is_young = slot != NULL;
            if (!slot) {
                words = &encoder->old;
                slot = words_find(words, p, length, hash);
            }
            if (slot) {
                encoder->hits++;
                count = slot->num_ids;
                memcpy(ids + written, ids_of(words, slot), count * sizeof(int32_t));
                if (!is_young) remember(encoder, p, length, hash, ids + written, count);
            } else {
                encoder->misses++;
                if (!rules->has_merges) {
                    word[0] = p - text;
                    word[1] = q - text;
                    state[0] = document;
                    state[1] = q - text;
                    state[2] = written;
                    state[3] = before_document;
                    return 1;
                }
                count = merged(encoder, p, length, hash, ids + written);
                if (count < 0) return -1;
                if (count) remember(encoder, p, length, hash, ids + written, count);
            }
            written += count;
            p = q;
        }
        ids[written++] = behind;
        lengths[document] = written - before_document;
        before_document = written;
    }
    state[0] = document;
    state[1] = p - text;
    state[2] = written;
    state[3] = before_document;
    return 0;
}

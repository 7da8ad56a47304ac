/* The hot loops of data_prep.deduplication.onion: tokens to n-gram hashes, and the decisions over them.
 *
 * Built with the system's compiler at first use (common/native.py).  data_prep/deduplication/onion_plain.py says the same in Python;
 * tests hold both to the same output, so every change is made twice.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "utf8_words.h"

#define BASE 0xD6E8FEB86659FD93ull
#define NUM_TABLES 16 /* of an onion_table */
#define SMALLEST_TABLE 341 /* a page */
#define AHEAD 20

/* Hash the n-grams of some documents.
 *
 * text, offsets: the documents one behind the other; document d is text[offsets[d]:offsets[d + 1]].
 * newlines: so many line feeds between two tokens end a paragraph.
 * hashes: per token, the hash of the n-gram that ends there, 0 for the first n - 1 of a document.
 * paragraph_token, paragraph_byte, paragraph_hash: per paragraph its first token, the first byte of that token's line, the
 * hash of its tokens.  document_paragraph: per document its first paragraph, and the number of all behind the last.
 * Returns the number of tokens, -1 when out of memory.
 */
int64_t onion_scan(const uint8_t *text, const int64_t *offsets, int64_t num_documents, int n, int64_t newlines, uint64_t *hashes,
                   int64_t *paragraph_token, int64_t *paragraph_byte, uint64_t *paragraph_hash, int64_t *document_paragraph) {
    uint64_t *ring = malloc(n * sizeof(uint64_t)); /* of the last n tokens */
    if (!ring) return -1;
    uint64_t leaving = 1; /* BASE ** n */
    for (int i = 0; i < n; i++) leaving *= BASE;
    int64_t token = 0, paragraph = 0;
    for (int64_t d = 0; d < num_documents; d++) {
        const uint8_t *start = text + offsets[d], *end = text + offsets[d + 1], *p = start, *line = start;
        int64_t in_document = 0, seen_newlines = 0, first_paragraph = paragraph;
        int slot = 0;
        uint64_t window = 0, whole = 0;
        document_paragraph[d] = paragraph;
        Words words;
        int number;
        while ((number = cut_words(p, end, &words))) {
            for (int i = 0; i < number; i++) {
                for (; p < words.starts[i]; p++)
                    if (*p == '\n') { /* no byte of any other white space */
                        seen_newlines++;
                        line = p + 1;
                    }
                p = words.ends[i];
                if (paragraph == first_paragraph || seen_newlines >= newlines) {
                    if (paragraph > first_paragraph) paragraph_hash[paragraph - 1] = finish(whole);
                    paragraph_token[paragraph] = token;
                    paragraph_byte[paragraph] = (paragraph == first_paragraph ? start : line) - text;
                    paragraph++;
                    whole = 0;
                }
                seen_newlines = 0;
                uint64_t hash = words.keys[i];
                whole = whole * BASE + hash;
                window = window * BASE + hash;
                if (in_document >= n) window -= ring[slot] * leaving;
                ring[slot] = hash;
                if (++slot == n) slot = 0;
                in_document++;
                hashes[token++] = in_document >= n ? finish(window) : 0;
            }
        }
        if (paragraph > first_paragraph) paragraph_hash[paragraph - 1] = finish(whole);
    }
    document_paragraph[num_documents] = paragraph;
    free(ring);
    return token;
}

/* Hash -> the paragraph that brought it, in parts that grow one at a time, so that growing never needs twice the memory.
 * 12 bytes an entry at a load of 0.5 to 0.75: 16 to 24 bytes.  Key and value lie together: one miss of the cache, not two. */
typedef struct __attribute__((packed)) {
    uint64_t key;
    uint32_t value;
} entry_t;

#define NOBODY 0xFFFFFFFFu /* value of a hash that is no longer there: its place is taken until its part grows */

typedef struct {
    entry_t *entries;
    uint64_t capacity, used, gone; /* gone: of those used, with the value NOBODY */
} part_t;

typedef struct {
    part_t parts[NUM_TABLES];
    entry_t *moving; /* of the part that is growing */
    uint64_t moving_capacity;
    uint32_t *sources; /* per n-gram of a paragraph */
    uint64_t sources_capacity;
} table_t;

static inline uint64_t slot_of(const part_t *part, uint64_t key) {
    return (uint64_t)(((unsigned __int128)(key << 4) * part->capacity) >> 64);
}

/* Grow a part where it is, without what is gone: its pages are kept, since getting new ones from the kernel costs more than moving entries. */
static int part_grow(table_t *table, part_t *part, uint64_t capacity) {
    uint64_t old_capacity = part->capacity;
    if (table->moving_capacity < old_capacity) {
        free(table->moving);
        table->moving_capacity = old_capacity + old_capacity / 4;
        table->moving = malloc(table->moving_capacity * sizeof(entry_t));
        if (!table->moving) return table->moving_capacity = 0;
    }
    uint64_t used = 0;
    for (uint64_t i = 0; i < old_capacity; i++)
        if (part->entries[i].key && part->entries[i].value != NOBODY) table->moving[used++] = part->entries[i];
    void *memory = old_capacity ? mremap(part->entries, old_capacity * sizeof(entry_t), capacity * sizeof(entry_t), MREMAP_MAYMOVE)
                                : mmap(NULL, capacity * sizeof(entry_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 0;
    part->entries = memory;
    part->capacity = capacity;
    part->used = used;
    part->gone = 0;
    madvise(memory, capacity * sizeof(entry_t), MADV_HUGEPAGE); /* every probe is another page: fewer are worth 30 % */
    memset(part->entries, 0, old_capacity * sizeof(entry_t));
    for (uint64_t i = 0; i < used; i++) {
        uint64_t slot = slot_of(part, table->moving[i].key);
        while (part->entries[slot].key)
            if (++slot == capacity) slot = 0;
        part->entries[slot] = table->moving[i];
    }
    return 1;
}

void onion_table_free(table_t *table) {
    if (!table) return;
    for (int i = 0; i < NUM_TABLES; i++)
        if (table->parts[i].entries) munmap(table->parts[i].entries, table->parts[i].capacity * sizeof(entry_t));
    free(table->moving);
    free(table->sources);
    free(table);
}

table_t *onion_table_new(void) {
    table_t *table = calloc(1, sizeof(table_t));
    if (!table) return NULL;
    for (int i = 0; i < NUM_TABLES; i++)
        if (!part_grow(table, &table->parts[i], SMALLEST_TABLE)) {
            onion_table_free(table);
            return NULL;
        }
    return table;
}

int64_t onion_table_size(const table_t *table) {
    int64_t size = 0;
    for (int i = 0; i < NUM_TABLES; i++) size += table->parts[i].used - table->parts[i].gone;
    return size;
}

static inline void prefetch(const table_t *table, uint64_t key) {
    const part_t *part = &table->parts[key >> 60];
    __builtin_prefetch(&part->entries[slot_of(part, key)], 1);
}

/* Where a hash is or, with an empty entry, belongs. */
static inline uint64_t probe(const part_t *part, uint64_t key, uint64_t slot) {
    while (part->entries[slot].key && part->entries[slot].key != key)
        if (++slot == part->capacity) slot = 0;
    return slot;
}

/* Store a hash that is not there; 0 when out of memory. */
static inline int store(table_t *table, part_t *part, uint64_t key, uint32_t value, uint64_t slot) {
    if (4 * (part->used + 1) > 3 * part->capacity) {
        uint64_t more = 4 * part->gone > part->used ? 0 : part->capacity / 2;
        if (!part_grow(table, part, part->capacity + more)) return 0;
        slot = probe(part, key, slot_of(part, key));
    }
    part->entries[slot] = (entry_t){key, value};
    part->used++;
    return 1;
}

/* Make room for so many entries in all; 0 when out of memory. */
int onion_table_reserve(table_t *table, int64_t entries) {
    uint64_t capacity = (uint64_t)entries / NUM_TABLES * 4 / 3 + SMALLEST_TABLE;
    for (int i = 0; i < NUM_TABLES; i++)
        if (table->parts[i].capacity < capacity && !part_grow(table, &table->parts[i], capacity)) return 0;
    return 1;
}

/* For each hash in order: the value it was first stored with, or `none` where it is new; it is stored then.  0 hashes are new. */
int onion_first(table_t *table, const uint64_t *hashes, const uint32_t *values, int64_t count, uint32_t none, uint32_t *first) {
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count && hashes[i + AHEAD]) prefetch(table, hashes[i + AHEAD]);
        first[i] = none;
        if (!hashes[i]) continue;
        part_t *part = &table->parts[hashes[i] >> 60];
        uint64_t slot = probe(part, hashes[i], slot_of(part, hashes[i]));
        if (part->entries[slot].key)
            first[i] = part->entries[slot].value;
        else if (!store(table, part, hashes[i], values[i], slot))
            return 0;
    }
    return 1;
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The commonest of some paragraphs, the earliest of equals, and how often it is there. */
static uint32_t commonest(uint32_t *sources, int64_t count, uint32_t *times) {
    qsort(sources, count, sizeof(uint32_t), by_value);
    uint32_t best = sources[0];
    int64_t best_length = 0;
    for (int64_t i = 0; i < count;) {
        int64_t j = i;
        while (j < count && sources[j] == sources[i]) j++;
        if (j - i > best_length) {
            best_length = j - i;
            best = sources[i];
        }
        i = j;
    }
    *times = (uint32_t)best_length;
    return best;
}

/* OnionSettings, and where the decisions go; see data_prep.deduplication.onion_types. */
typedef struct {
    int n;
    double threshold;
    int inclusive, by_ngrams, smoothing;
    int64_t max_stub_tokens, min_kept_tokens;
    uint8_t *verdict;
    uint32_t *covered, *repeated, *possible, *source, *source_ngrams;
} judgement_t;

/* Write down what is known of paragraph p, tokens a to b of a document that begins at token `begin`, and decide on it.
 * sources: the paragraph that brought each of its `bad_ngrams` seen n-grams, which cover `bad_tokens` tokens.  They are sorted. */
static void judge(const judgement_t *to, int64_t p, int64_t begin, int64_t a, int64_t b, uint32_t *sources, int64_t bad_ngrams, int64_t bad_tokens) {
    int64_t ngrams_before = a - begin < to->n - 1 ? to->n - 1 - (a - begin) : 0; /* tokens of the paragraph that end no n-gram */
    int64_t ngrams = b - a > ngrams_before ? b - a - ngrams_before : 0;
    to->covered[p] = (uint32_t)bad_tokens;
    to->repeated[p] = (uint32_t)bad_ngrams;
    to->possible[p] = (uint32_t)ngrams;
    to->source[p] = to->source_ngrams[p] = 0;
    if (!bad_ngrams) return;
    to->source[p] = commonest(sources, bad_ngrams, &to->source_ngrams[p]);
    if (to->verdict[p]) return;
    double score = to->by_ngrams ? (double)bad_ngrams / (double)ngrams : (double)bad_tokens / (double)(b - a);
    if (score > to->threshold || (to->inclusive && score == to->threshold)) to->verdict[p] = 1;
}

#define TOKEN(p) ((p) < num_paragraphs ? paragraph_token[p] : num_tokens)

/* Remove what is left of a document, its paragraphs `first` to `last`, where that is too little. */
static void remove_stubs(const judgement_t *to, int64_t first, int64_t last, const int64_t *paragraph_token, int64_t num_paragraphs, int64_t num_tokens) {
    uint8_t *verdict = to->verdict;
    int any_removed = 0;
    for (int64_t p = first; p < last; p++) any_removed |= verdict[p];
    if (to->smoothing && (any_removed || to->smoothing == 2)) {
        int64_t stub_start = first, stub_tokens = 0;
        int open = to->smoothing == 2; /* whether the document's edges count as removed paragraphs */
        for (int64_t p = first; p <= last; p++) {
            if (p < last && !verdict[p]) {
                stub_tokens += TOKEN(p + 1) - TOKEN(p);
                continue;
            }
            if (open && (p < last || to->smoothing == 2) && stub_tokens <= to->max_stub_tokens)
                for (int64_t q = stub_start; q < p; q++) verdict[q] = 2;
            open = 1;
            stub_start = p + 1;
            stub_tokens = 0;
        }
    }
    if (to->min_kept_tokens) {
        int64_t kept_tokens = 0, num_removed = 0;
        for (int64_t p = first; p < last; p++)
            if (verdict[p])
                num_removed++;
            else
                kept_tokens += TOKEN(p + 1) - TOKEN(p);
        if (num_removed && kept_tokens < to->min_kept_tokens)
            for (int64_t p = first; p < last; p++)
                if (!verdict[p]) verdict[p] = 2;
    }
}

/* Leave of a document's n-grams those of its kept paragraphs, each to the first that has it; all were stored as if everything stayed. */
static void forget_removed(table_t *table, const uint64_t *hashes, const int64_t *paragraph_token, int64_t first, int64_t last, int64_t num_paragraphs,
                           int64_t num_tokens, uint32_t first_ordinal, const uint8_t *verdict) {
    for (int kept = 0; kept < 2; kept++) /* the removed first */
        for (int64_t p = first; p < last; p++) {
            if ((verdict[p] == 0) != kept) continue;
            for (int64_t i = TOKEN(p); i < TOKEN(p + 1); i++) {
                if (i + AHEAD < num_tokens && hashes[i + AHEAD]) prefetch(table, hashes[i + AHEAD]);
                if (!hashes[i]) continue;
                part_t *part = &table->parts[hashes[i] >> 60];
                entry_t *entry = &part->entries[probe(part, hashes[i], slot_of(part, hashes[i]))];
                if (!kept && entry->value == first_ordinal + (uint32_t)p) {
                    entry->value = NOBODY;
                    part->gone++;
                } else if (kept && entry->value == NOBODY) {
                    entry->value = first_ordinal + (uint32_t)p;
                    part->gone--;
                }
            }
        }
}

/* Decide over the paragraphs of scanned documents, in order; see data_prep.deduplication.onion.Table.decide for the arguments.
 * Returns 1, or 0 when out of memory.
 *
 * An n-gram is stored when it is met, so that one look tells whether it was there before, in kept text or earlier in the document; what
 * the paragraphs that go have brought is taken back when the document is decided. */
int onion_decide(table_t *table, const uint64_t *hashes, const int64_t *paragraph_token, const int64_t *document_paragraph,
                 int64_t num_documents, int64_t num_tokens, uint32_t first_ordinal, int within_document, int n,
                 double threshold, int inclusive, int by_ngrams, int smoothing, int64_t max_stub_tokens, int64_t min_kept_tokens,
                 uint8_t *verdict, uint32_t *covered, uint32_t *repeated, uint32_t *possible, uint32_t *source, uint32_t *source_ngrams) {
    const judgement_t to = {n, threshold, inclusive, by_ngrams, smoothing, max_stub_tokens, min_kept_tokens,
                            verdict, covered, repeated, possible, source, source_ngrams};
    int64_t num_paragraphs = document_paragraph[num_documents];
    for (int64_t d = 0; d < num_documents; d++) {
        int64_t first = document_paragraph[d], last = document_paragraph[d + 1];
        int64_t begin = TOKEN(first);
        int any_removed = 0;
        for (int64_t p = first; p < last; p++) {
            int64_t a = TOKEN(p), b = TOKEN(p + 1);
            if (table->sources_capacity < (uint64_t)(b - a)) {
                free(table->sources);
                table->sources_capacity = 2 * (b - a);
                table->sources = malloc(table->sources_capacity * 4);
                if (!table->sources) return 0;
            }
            int64_t fresh = 0, bad_tokens = 0, bad_ngrams = 0; /* fresh: tokens of the paragraph that no repeated n-gram covers yet */
            for (int64_t i = a; i < b; i++) {
                if (i + AHEAD < num_tokens && hashes[i + AHEAD]) prefetch(table, hashes[i + AHEAD]);
                if (fresh < n) fresh++;
                uint64_t hash = hashes[i];
                if (!hash) continue;
                part_t *part = &table->parts[hash >> 60];
                uint64_t slot = probe(part, hash, slot_of(part, hash));
                entry_t *entry = &part->entries[slot];
                if (!entry->key) {
                    if (!store(table, part, hash, first_ordinal + (uint32_t)p, slot)) return 0;
                } else if (entry->value == NOBODY) {
                    entry->value = first_ordinal + (uint32_t)p;
                    part->gone--;
                } else if (within_document || entry->value < first_ordinal + (uint32_t)first) {
                    bad_tokens += fresh;
                    fresh = 0;
                    table->sources[bad_ngrams++] = entry->value;
                }
            }
            judge(&to, p, begin, a, b, table->sources, bad_ngrams, bad_tokens);
        }
        remove_stubs(&to, first, last, paragraph_token, num_paragraphs, num_tokens);
        for (int64_t p = first; p < last; p++) any_removed |= verdict[p];
        if (any_removed) forget_removed(table, hashes, paragraph_token, first, last, num_paragraphs, num_tokens, first_ordinal, verdict);
    }
    return 1;
}

/* Decide over scanned documents whose seen n-grams were found elsewhere; see data_prep.deduplication.onion.Engine.apply for the arguments.
 * Returns 1, or 0 when out of memory. */
int onion_apply(const uint32_t *from, uint32_t none, const int64_t *paragraph_token, const int64_t *document_paragraph,
                int64_t num_documents, int64_t num_tokens, int n, double threshold, int inclusive, int by_ngrams, int smoothing,
                int64_t max_stub_tokens, int64_t min_kept_tokens, uint8_t *verdict, uint32_t *covered, uint32_t *repeated, uint32_t *possible,
                uint32_t *source, uint32_t *source_ngrams) {
    const judgement_t to = {n, threshold, inclusive, by_ngrams, smoothing, max_stub_tokens, min_kept_tokens,
                            verdict, covered, repeated, possible, source, source_ngrams};
    int64_t num_paragraphs = document_paragraph[num_documents], longest = 1;
    for (int64_t p = 0; p < num_paragraphs; p++)
        if (TOKEN(p + 1) - TOKEN(p) > longest) longest = TOKEN(p + 1) - TOKEN(p);
    uint32_t *sources = malloc(longest * sizeof(uint32_t));
    if (!sources) return 0;
    for (int64_t d = 0; d < num_documents; d++) {
        int64_t first = document_paragraph[d], last = document_paragraph[d + 1];
        for (int64_t p = first; p < last; p++) {
            int64_t a = TOKEN(p), b = TOKEN(p + 1), fresh = 0, bad_tokens = 0, bad_ngrams = 0;
            for (int64_t i = a; i < b; i++) {
                if (fresh < n) fresh++;
                if (from[i] == none) continue;
                bad_tokens += fresh;
                fresh = 0;
                sources[bad_ngrams++] = from[i];
            }
            judge(&to, p, TOKEN(first), a, b, sources, bad_ngrams, bad_tokens);
        }
        remove_stubs(&to, first, last, paragraph_token, num_paragraphs, num_tokens);
    }
    free(sources);
    return 1;
}

/* The hot loops of data_prep.deduplication.similar_documents: folded words, their n-grams, MinHash, and the choice of who stays.
 *
 * Built with the system's compiler at first use (common/native.py).  data_prep/deduplication/similar_plain.py says the same in
 * Python; tests hold both to the same output, so every change is made twice.  Texts are valid UTF-8.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "utf8_words.h"

#define MULTIPLIER 0x9E3779B97F4A7C15ull
#define BASE 0xD6E8FEB86659FD93ull
#define PAGE 256
#define NUM_PAGES 4352
#define MAX_N 64
#define MAX_HASHES 1024
enum { DROPPED = 0, SPACE = 1 };
#define ALONE 0x80000000u /* a character that is a word by itself */

/* The first page of code points that a text needs and that is not known yet, -1 if all are.  places: (NUM_PAGES,), -1 for an unknown one. */
int32_t similar_missing_page(const uint8_t *text, int64_t size, const int32_t *places) {
    const uint8_t *p = text, *end = text + size;
    while (p < end) {
        if (*p < 0x80) {
            p++;
            continue;
        }
        uint32_t page = next_point(&p) / PAGE;
        if (places[page] < 0) return (int32_t)page;
    }
    return -1;
}

static uint32_t *set_keys; /* open addressing, with the stamp of the document that put a key there */
static uint32_t *set_stamps;
static uint64_t set_size;
static uint32_t stamp;

static int cleared_set(uint64_t entries) {
    uint64_t size = 64;
    while (size < 2 * entries) size *= 2;
    if (size > set_size) {
        free(set_keys);
        free(set_stamps);
        set_keys = malloc(size * 4);
        set_stamps = calloc(size, 4);
        set_size = set_keys && set_stamps ? size : 0;
        stamp = 0;
        if (!set_size) return 0;
    }
    if (stamp == UINT32_MAX) {
        memset(set_stamps, 0, set_size * 4);
        stamp = 0;
    }
    stamp++;
    return 1;
}

/* Where a key of the present set is or belongs. */
static inline uint64_t set_slot(uint32_t key) {
    uint64_t at = key & (set_size - 1);
    while (set_stamps[at] == stamp && set_keys[at] != key) at = (at + 1) & (set_size - 1);
    return at;
}

/* Documents as sets of n-grams of folded words.
 *
 * places, folds: per page its place in `folds`, and what becomes of each of its code points: dropped, space, or a letter (ALONE: a word).
 * shingles: the different n-grams of each document one behind the other, in the order of the text; ends: where those of each end.
 * words: of each document.  Returns how many n-grams there are, -1 when out of memory.
 */
int64_t similar_scan(const uint8_t *text, const int64_t *offsets, int64_t num_documents, const int32_t *places, const uint32_t *folds, int n,
                     uint32_t *shingles, int64_t *ends, int64_t *words) {
    uint64_t leaving = 1; /* BASE ** n */
    for (int i = 0; i < n; i++) leaving *= BASE;
    int64_t found = 0;
    for (int64_t d = 0; d < num_documents; d++) {
        const uint8_t *p = text + offsets[d], *end = text + offsets[d + 1];
        uint64_t ring[MAX_N], window = 0, hash = 0;
        int64_t num_words = 0;
        int slot = 0, in_word = 0, alone = 0;
        if (!cleared_set((uint64_t)(end - p))) return -1;
        while (p < end || in_word) {
            uint32_t folded = SPACE;
            if (p < end) {
                uint32_t c = next_point(&p);
                folded = folds[places[c / PAGE] * PAGE + c % PAGE];
                if (folded == DROPPED) continue;
            }
            if (in_word && (folded == SPACE || alone || folded & ALONE)) {
                hash = finish(hash);
                window = window * BASE + hash;
                if (num_words >= n) window -= ring[slot] * leaving;
                ring[slot] = hash;
                if (++slot == n) slot = 0;
                num_words++;
                in_word = alone = 0;
                hash = 0;
                if (num_words >= n) {
                    uint32_t key = (uint32_t)(finish(window) >> 32);
                    uint64_t at = set_slot(key);
                    if (set_stamps[at] != stamp) {
                        set_stamps[at] = stamp;
                        set_keys[at] = key;
                        shingles[found++] = key;
                    }
                }
            }
            if (folded != SPACE) {
                hash = (hash ^ (folded & ~ALONE)) * MULTIPLIER;
                hash ^= hash >> 32;
                in_word = 1;
                alone = (folded & ALONE) != 0;
            }
        }
        ends[d] = found;
        words[d] = num_words;
    }
    return found;
}

/* For each document the least of a[i] * n-gram + b[i] over its n-grams, modulo 2^32, (num_documents, num_hashes); all bits set where it has none. */
void similar_minima(const uint32_t *shingles, const int64_t *ends, int64_t num_documents, const uint32_t *a, const uint32_t *b,
                    int num_hashes, uint32_t *minima) {
    int64_t start = 0;
    for (int64_t d = 0; d < num_documents; d++) {
        uint32_t least[MAX_HASHES];
        memset(least, 0xFF, sizeof(least));
        for (int64_t s = start; s < ends[d]; s++) {
            uint32_t key = shingles[s];
            for (int i = 0; i < num_hashes; i++) {
                uint32_t value = a[i] * key + b[i];
                least[i] = value < least[i] ? value : least[i];
            }
        }
        memcpy(minima + d * num_hashes, least, num_hashes * 4);
        start = ends[d];
    }
}

/* Who stays, in the order of `ranked` documents: a document goes if it is similar to one that stayed before it and shares a group with it.
 *
 * shingles, starts: of document i at shingles[starts[i]:starts[i] + sizes[i]], different ones.
 * doc_groups, group_starts: the groups of each document; room_starts: (num_groups + 1,) where the members of each group have their room.
 * checked: 0 takes every member of a group for similar.  containment: share of the n-grams of the smaller, else of both (Jaccard).
 * most: so many kept members of a group are looked at, the latest.
 * of, share: per document whom it is most like (the first of equals), -1 where it stays.  Returns how many pairs were compared, -1 when out of memory.
 */
int64_t similar_decide(const uint32_t *shingles, const int64_t *starts, const int64_t *sizes, int64_t num_documents, const int64_t *doc_groups,
                       const int64_t *group_starts, const int64_t *room_starts, int64_t num_groups, double least, int checked, int containment,
                       int64_t most, int64_t *of, double *share) {
    int64_t *members = malloc((room_starts[num_groups] + 1) * sizeof(int64_t));
    int64_t *filled = calloc(num_groups + 1, sizeof(int64_t));
    int64_t *met = malloc((num_documents + 1) * sizeof(int64_t)); /* the last document that each was compared with */
    int64_t compared = members && filled && met ? 0 : -1;
    for (int64_t d = 0; d < num_documents && compared >= 0; d++) met[d] = -1;
    for (int64_t d = 0; d < num_documents && compared >= 0; d++) {
        int is_set = 0;
        of[d] = -1;
        share[d] = 0;
        for (int64_t g = group_starts[d]; g < group_starts[d + 1] && compared >= 0; g++) {
            int64_t group = doc_groups[g], first = filled[group] > most ? filled[group] - most : 0;
            for (int64_t m = first; m < filled[group]; m++) {
                int64_t other = members[room_starts[group] + m];
                if (met[other] == d) continue;
                met[other] = d;
                double value = 1;
                if (checked) {
                    int64_t small = sizes[d] < sizes[other] ? sizes[d] : sizes[other], large = sizes[d] + sizes[other] - small;
                    if (!containment && small < least * large) continue;
                    if (!is_set) {
                        if (!cleared_set((uint64_t)sizes[d])) {
                            compared = -1;
                            break;
                        }
                        for (int64_t s = 0; s < sizes[d]; s++) {
                            uint64_t at = set_slot(shingles[starts[d] + s]);
                            set_stamps[at] = stamp;
                            set_keys[at] = shingles[starts[d] + s];
                        }
                        is_set = 1;
                    }
                    compared++;
                    int64_t both = 0;
                    for (int64_t s = 0; s < sizes[other]; s++) both += set_stamps[set_slot(shingles[starts[other] + s])] == stamp;
                    value = (double)both / (containment ? small : small + large - both);
                    if (value < least) continue;
                }
                if (of[d] < 0 || value > share[d] || (value == share[d] && other < of[d])) {
                    of[d] = other;
                    share[d] = value;
                }
            }
        }
        if (of[d] < 0)
            for (int64_t g = group_starts[d]; g < group_starts[d + 1] && compared >= 0; g++)
                members[room_starts[doc_groups[g]] + filled[doc_groups[g]]++] = d;
    }
    free(members);
    free(filled);
    free(met);
    return compared;
}

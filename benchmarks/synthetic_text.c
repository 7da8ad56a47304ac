/* Documents of benchmarks.synthetic_text as lines of JSON, drawn word by word. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static inline uint64_t next(uint64_t *state) { /* splitmix64 */
    uint64_t x = *state += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

static inline uint64_t below(uint64_t *state, uint64_t number) { return (uint64_t)(((unsigned __int128)next(state) * number) >> 64); }

/* Write one document of `least` to `most` words, a line feed (as JSON says it) after each `line_words`.
 * followers: for each word those that follow it, from starts[word] to starts[word + 1].  words, offsets: their bytes, as in JSON.
 * Returns the bytes written, or 0 where `room` could be too little. */
int64_t synthetic_document(const int32_t *followers, const int64_t *starts, int64_t num_followers, const char *words, const int64_t *offsets,
                           uint64_t *state, int64_t seed, int64_t number, int64_t least, int64_t most, int64_t line_words, char *out,
                           int64_t room, int64_t longest) {
    int64_t count = least + (int64_t)below(state, most - least + 1);
    if (room < 80 + count * (longest + 2)) return 0;
    char *p = out + sprintf(out, "{\"id\": \"%lld-%lld\", \"text\": \"", (long long)seed, (long long)number);
    int32_t word = followers[below(state, num_followers)];
    for (int64_t i = 0; i < count; i++) {
        if (i) {
            if (i % line_words == 0) {
                *p++ = '\\';
                *p++ = 'n';
            } else
                *p++ = ' ';
        }
        int64_t length = offsets[word + 1] - offsets[word];
        memcpy(p, words + offsets[word], length);
        p += length;
        word = followers[starts[word] + below(state, starts[word + 1] - starts[word])];
    }
    memcpy(p, "\"}\n", 3);
    return p + 3 - out;
}

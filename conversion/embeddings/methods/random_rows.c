/* Rows drawn from a normal distribution, and the sums that its mean and deviation are made of; random_rows.py says what comes in and out.

   The draws are numpy's, bit for bit: `Generator(Philox(key)).standard_normal(dtype=float32)`, a counter-based generator (Salmon et al. 2011) whose
   words go through a ziggurat of 256 strips (Marsaglia and Tsang 2000).  Compiled without fused products, which numpy does not have. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define STRIPS 256
#define WORDS 512  /* made at once: 2 KiB */
#define TOGETHER 16 /* draws of which most groups need one word each */

typedef struct {
  uint64_t key[2], counter;
  uint32_t words[WORDS];
  int next;
} Source;

/* The strips of the ziggurat: the bit pattern below which a draw is inside, the width of one step, and the height. */
typedef struct {
  uint32_t inside[STRIPS];
  float step[STRIPS], height[STRIPS];
  float tail, inverse_tail;
} Ziggurat;

static void fill(Source *source) {
  for (int block = 0; block < WORDS / 8; block++) {
    uint64_t a = ++source->counter, b = 0, c = 0, d = 0, key0 = source->key[0], key1 = source->key[1];
    for (int round = 0; round < 10; round++) {
      unsigned __int128 first = (unsigned __int128)0xD2E7470EE14C6C93u * a, second = (unsigned __int128)0xCA5A826395121157u * c;
      a = (uint64_t)(second >> 64) ^ b ^ key0;
      b = (uint64_t)second;
      c = (uint64_t)(first >> 64) ^ d ^ key1;
      d = (uint64_t)first;
      key0 += 0x9E3779B97F4A7C15u;
      key1 += 0xBB67AE8584CAA73Bu;
    }
    uint64_t made[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) {
      source->words[8 * block + 2 * i] = (uint32_t)made[i];
      source->words[8 * block + 2 * i + 1] = (uint32_t)(made[i] >> 32);
    }
  }
  source->next = 0;
}

static inline uint32_t word(Source *source) {
  if (source->next == WORDS) fill(source);
  return source->words[source->next++];
}

static inline float share(Source *source) { return (word(source) >> 8) * (1.0f / 16777216.0f); }

/* Beyond the last strip. */
static float of_the_tail(Source *source, const Ziggurat *of, uint32_t value) {
  for (;;) {
    float x = -of->inverse_tail * log1pf(-share(source)), y = -log1pf(-share(source));
    if (y + y > x * x) return (value >> 8) & 1 ? -(of->tail + x) : of->tail + x;
  }
}

static float draw(Source *source, const Ziggurat *of) {
  for (;;) {
    uint32_t bits = word(source), value = bits >> 9, strip = bits & 0xff;
    float x = value * of->step[strip];
    x = bits & 0x100 ? -x : x;
    if (value < of->inside[strip]) return x;
    if (strip == 0) return of_the_tail(source, of, value);
    if ((of->height[strip - 1] - of->height[strip]) * share(source) + of->height[strip] < exp(-0.5 * x * x)) return x;
  }
}

/* Draws of one word each, `TOGETHER` of them; returns how many, from the first on, are inside their strips. */
static inline int draw_together(const uint32_t *words, const Ziggurat *of, float *out) {
  uint32_t is_outside[TOGETHER], any = 0;
  for (int i = 0; i < TOGETHER; i++) {
    uint32_t value = words[i] >> 9, strip = words[i] & 0xff;
    float x = (int32_t)value * of->step[strip];
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits ^= (words[i] & 0x100) << 23;
    memcpy(out + i, &bits, sizeof bits);
    any |= is_outside[i] = value >= of->inside[strip];
  }
  int inside = 0;
  if (!any) return TOGETHER;
  while (!is_outside[inside]) inside++;
  return inside;
}

/* A row for each key of two words: out (num_rows, size) = draws * deviation + mean. */
void draw_rows(const uint64_t *keys, long num_rows, long size, const Ziggurat *of, const float *deviation, const float *mean, float *out) {
  for (long row = 0; row < num_rows; row++, keys += 2, out += size) {
    Source source = {{keys[0], keys[1]}, 0, {0}, WORDS};
    for (long i = 0; i < size;) {
      if (size - i >= TOGETHER && WORDS - source.next >= TOGETHER) {
        int num = draw_together(source.words + source.next, of, out + i);
        source.next += num;
        i += num;
        if (num == TOGETHER) continue;
      }
      out[i++] = draw(&source, of);
    }
    for (long i = 0; i < size; i++) out[i] = out[i] * deviation[i] + mean[i];
  }
}

#define COLUMNS 64 /* whose sums are in the nearest cache */

/* Sums and sums of squares of each column over the rows that are taken, in float64 from float32 (or, if `halves`, bfloat16), in the order of rows. */
void sum_columns(const void *matrix, int halves, const uint8_t *taken, long num_rows, long size, double *totals, double *squares) {
  for (long first = 0; first < size; first += COLUMNS) {
    long num = size - first < COLUMNS ? size - first : COLUMNS;
    double total[COLUMNS] = {0}, square[COLUMNS] = {0};
    for (long row = 0; row < num_rows; row++) {
      if (!taken[row]) continue;
      float values[COLUMNS];
      if (halves) {
        const uint16_t *from = (const uint16_t *)matrix + row * size + first;
        for (long i = 0; i < num; i++) {
          uint32_t bits = (uint32_t)from[i] << 16;
          memcpy(values + i, &bits, sizeof bits);
        }
      } else
        memcpy(values, (const float *)matrix + row * size + first, num * sizeof(float));
      for (long i = 0; i < num; i++) {
        double value = values[i];
        total[i] += value;
        square[i] += value * value;
      }
    }
    memcpy(totals + first, total, num * sizeof(double));
    memcpy(squares + first, square, num * sizeof(double));
  }
}

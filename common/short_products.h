/* Products of vectors with all rows of a table, from numbers of 8 bits: no true product is larger than what comes out.
 *
 * A processor multiplies numbers of 8 bits two to four times as fast as bfloat16, and reads a quarter of the bytes of float32.  What rounding takes has a
 * bound: with rows a and vectors r that are a' and r' in 8 bits, |a r| <= |a' r'| + |r| |a - a'| + |r - r'| |a'|.  So the few rows that may matter by this bound are
 * multiplied again as they should be, by whoever asked.
 *
 * Included by C files that common/native.py builds.
 */
#ifndef SHORT_PRODUCTS_H
#define SHORT_PRODUCTS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define SHORT_LANES 16                /* rows that are treated as one */
#define SHORT_PANEL (2 * SHORT_LANES) /* rows that are multiplied at once: their number is a multiple of it */
#define SHORT_VECTORS 12              /* vectors that are multiplied at once: their number is a multiple of it */
#define SHORT_QUAD 4                  /* numbers of a row that lie together: sizes are multiples of it */

typedef float short_floats __attribute__((vector_size(SHORT_LANES * sizeof(float))));
typedef int32_t short_ints __attribute__((vector_size(SHORT_LANES * sizeof(int32_t))));

/* Rows of length one (or of zeros).
 *
 * numbers: of each 16 rows four numbers each, then the next four, and so on, 128 more than they are, as the instruction takes one side without a sign;
 * unit: (num_rows) what 1 of them is; lost: (num_rows) length of what rounding took; weight: (num_rows) what products are multiplied by in the end, not below 0. */
typedef struct {
    const uint8_t *numbers;
    const float *unit, *lost, *weight;
    long num_rows, size;
} ShortTable;

/* Vectors: (num_vectors, size) in 8 bits; what 1 is, the sum of the numbers times 128, length of the vector, and length of what rounding took, for each. */
typedef struct {
    int8_t *numbers;
    float *unit;
    int32_t *shift;
    float *length, *lost;
} ShortVectors;

static float short_round(const float *values, long size, int8_t *numbers, float *unit, int32_t *sum) {
    float largest = 0, lost = 0;
    for (long i = 0; i < size; i++) largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest;
    float one = largest / 127, many = largest > 0 ? 127 / largest : 0;
    int32_t total = 0;
    for (long i = 0; i < size; i++) {
        float number = rintf(values[i] * many), off = values[i] - number * one;
        numbers[i] = (int8_t)number;
        total += (int32_t)number;
        lost += off * off;
    }
    *unit = one;
    *sum = total;
    return sqrtf(lost) * 1.0001f;
}

/* Rounds rows (num_rows, size) into the numbers of a table, (num_rows, size) bytes, its units and what was lost, both (num_rows); 0, or -1 where there is no memory. */
int short_table(const float *rows, long num_rows, long size, uint8_t *numbers, float *unit, float *lost) {
    int8_t *row = malloc(size);
    if (!row) return -1;
    for (long n = 0; n < num_rows; n++) {
        int32_t sum;
        lost[n] = short_round(rows + n * size, size, row, unit + n, &sum);
        uint8_t *group = numbers + n / SHORT_LANES * SHORT_LANES * size + n % SHORT_LANES * SHORT_QUAD;
        for (long i = 0; i < size; i++) group[i / SHORT_QUAD * SHORT_LANES * SHORT_QUAD + i % SHORT_QUAD] = (uint8_t)(row[i] + 128);
    }
    free(row);
    return 0;
}

/* Rounds vector number `n`. */
static void short_vector(const float *values, long size, ShortVectors v, long n) {
    int32_t sum;
    double square = 0;
    for (long i = 0; i < size; i++) square += (double)values[i] * values[i];
    v.lost[n] = short_round(values, size, v.numbers + n * size, v.unit + n, &sum);
    v.shift[n] = 128 * sum;
    v.length[n] = (float)sqrt(square) * 1.0001f;
}

/* From sums of products to 16 bits: bfloat16 without its sign, never less than the size of the true product times the weight. */
static inline void short_bounds(const ShortTable *t, ShortVectors v, long n, long row, short_ints sums, int is_signed, uint16_t *bounds) {
    short_floats unit, lost, weight;
    memcpy(&unit, t->unit + row, sizeof unit);
    memcpy(&lost, t->lost + row, sizeof lost);
    memcpy(&weight, t->weight + row, sizeof weight);
    short_floats product = __builtin_convertvector(sums - v.shift[n], short_floats) * unit * v.unit[n];
    if (!is_signed) product = (short_floats)((short_ints)product & 0x7fffffff);
    product += lost * (v.length[n] + v.lost[n]) + (v.lost[n] + 2e-6f * v.length[n]);
    product *= weight;
    short_ints bits = (short_ints)product;
    bits = (bits & ~(bits >> 31)) + 0xffff; /* what is below 0 is 0 */
    bits >>= 16;
    typedef uint16_t brief __attribute__((vector_size(SHORT_LANES * sizeof(uint16_t))));
    brief out = __builtin_convertvector(bits, brief);
    memcpy(bounds, &out, sizeof out);
}

#ifdef __AVX512VNNI__
static inline __attribute__((always_inline)) void short_panel(const ShortTable *t, ShortVectors v, long first, long row, int is_signed, uint16_t *bounds, long stride) {
    __m512i low[SHORT_VECTORS], high[SHORT_VECTORS];
    const uint8_t *one = t->numbers + row * t->size, *two = one + SHORT_LANES * t->size;
    const int8_t *vectors = v.numbers + first * t->size;
#pragma GCC unroll 12
    for (int n = 0; n < SHORT_VECTORS; n++) low[n] = high[n] = _mm512_setzero_si512();
    for (long i = 0; i < t->size; i += SHORT_QUAD) {
        __m512i a = _mm512_loadu_si512(one + i * SHORT_LANES), b = _mm512_loadu_si512(two + i * SHORT_LANES);
#pragma GCC unroll 12
        for (int n = 0; n < SHORT_VECTORS; n++) {
            int32_t quad;
            memcpy(&quad, vectors + n * t->size + i, sizeof quad);
            __m512i r = _mm512_set1_epi32(quad);
            /* Said to the letter: gcc 12 copies all sums to memory and back around the intrinsic. */
            __asm__("vpdpbusd %2, %1, %0" : "+v"(low[n]) : "v"(a), "v"(r));
            __asm__("vpdpbusd %2, %1, %0" : "+v"(high[n]) : "v"(b), "v"(r));
        }
    }
#pragma GCC unroll 12
    for (int n = 0; n < SHORT_VECTORS; n++) {
        short_bounds(t, v, first + n, row, (short_ints)low[n], is_signed, bounds + (first + n) * stride + row);
        short_bounds(t, v, first + n, row + SHORT_LANES, (short_ints)high[n], is_signed, bounds + (first + n) * stride + row + SHORT_LANES);
    }
}
#elif defined(__AVX2__)
static void short_panel(const ShortTable *t, ShortVectors v, long first, long row, int is_signed, uint16_t *bounds, long stride) {
    for (long group = row; group < row + SHORT_PANEL; group += SHORT_LANES)
        for (long n = first; n < first + SHORT_VECTORS; n += 2) {
            const uint8_t *a = t->numbers + group * t->size;
            __m256i sums[2][4];
            memset(sums, 0, sizeof sums);
            for (long i = 0; i < t->size; i += SHORT_QUAD, a += SHORT_LANES * SHORT_QUAD) {
                for (int k = 0; k < 2; k++) {
                    int32_t quad;
                    memcpy(&quad, v.numbers + (n + k) * t->size + i, sizeof quad);
                    __m256i r = _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(quad)));
                    for (int j = 0; j < 4; j++) { /* of four rows; each has two sums */
                        __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(a + 16 * j)));
                        sums[k][j] = _mm256_add_epi32(sums[k][j], _mm256_madd_epi16(wide, r));
                    }
                }
            }
            for (int k = 0; k < 2; k++) {
                int32_t halves[2 * SHORT_LANES];
                short_ints whole = {0};
                for (int j = 0; j < 4; j++) _mm256_storeu_si256((__m256i *)(halves + 8 * j), sums[k][j]);
                for (int l = 0; l < SHORT_LANES; l++) whole[l] = halves[2 * l] + halves[2 * l + 1];
                short_bounds(t, v, n + k, group, whole, is_signed, bounds + (n + k) * stride + group);
            }
        }
}
#else
static void short_panel(const ShortTable *t, ShortVectors v, long first, long row, int is_signed, uint16_t *bounds, long stride) {
    for (long group = row; group < row + SHORT_PANEL; group += SHORT_LANES)
        for (long n = first; n < first + SHORT_VECTORS; n++) {
            const uint8_t *a = t->numbers + group * t->size;
            const int8_t *r = v.numbers + n * t->size;
            short_ints sums = {0};
            for (long i = 0; i < t->size; i += SHORT_QUAD, a += SHORT_LANES * SHORT_QUAD) {
                int16_t r0 = r[i], r1 = r[i + 1], r2 = r[i + 2], r3 = r[i + 3];
                for (int l = 0; l < SHORT_LANES; l++)
                    sums[l] += (int32_t)(a[4 * l] * r0 + a[4 * l + 1] * r1) + (int32_t)(a[4 * l + 2] * r2 + a[4 * l + 3] * r3);
            }
            short_bounds(t, v, n, group, sums, is_signed, bounds + n * stride + group);
        }
}
#endif

/* Bounds of the products of all rows with vectors: (num_vectors, num_rows).  Of their sizes, or, `is_signed`, of the products, of which those below 0 are 0. */
static void short_products(const ShortTable *t, ShortVectors v, long num_vectors, int is_signed, uint16_t *bounds) {
    for (long row = 0; row < t->num_rows; row += SHORT_PANEL)
        for (long first = 0; first < num_vectors; first += SHORT_VECTORS) short_panel(t, v, first, row, is_signed, bounds, t->num_rows);
}

static inline float short_float(uint16_t bound) {
    uint32_t bits = (uint32_t)bound << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The smallest bound that may belong to a product of at least `value`, which is not below 0. */
static inline uint16_t short_least(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

#endif

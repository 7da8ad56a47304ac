/* Rows of a matrix copied, or summed by weights, where they are wanted; row_sums.py says what comes in and out.

   A piece of the row is kept in the nearest cache, while that piece of each of its parts passes: in float32, in the order of the parts, rounded once. */
#include <stdint.h>
#include <string.h>

#include "lanes.h"

#define PIECE 256 /* lanes of a row that are summed at once: 16 KiB, half of the nearest cache, so that memory is read in long runs */

enum { FLOAT32, BFLOAT16, FLOAT16 };

typedef uint32_t long_lanes __attribute__((vector_size(LANES * sizeof(uint32_t))));
typedef uint16_t short_lanes __attribute__((vector_size(LANES * sizeof(uint16_t))));

#if defined(__F16C__)
#include <immintrin.h>
#define HAS_FLOAT16 1
#else
#define HAS_FLOAT16 0
#endif

int has_float16(void) { return HAS_FLOAT16; }

/* The bytes of so many numbers. */
static inline long bytes_of(int kind, long numbers) { return numbers * (kind == FLOAT32 ? 4 : 2); }

static inline lanes read_lanes(const char *at, int kind) {
  lanes values;
  if (kind == FLOAT32) {
    memcpy(&values, at, sizeof values);
    return values;
  }
  short_lanes halves;
  memcpy(&halves, at, sizeof halves);
#if HAS_FLOAT16
  if (kind == FLOAT16) {
    __m256 parts[2];
    for (int i = 0; i < 2; i++) parts[i] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at + i));
    memcpy(&values, parts, sizeof values);
    return values;
  }
#endif
  long_lanes bits = __builtin_convertvector(halves, long_lanes) << 16;
  memcpy(&values, &bits, sizeof values);
  return values;
}

/* To the nearest, of two as near the even one. */
static inline void write_lanes(char *at, lanes values, int kind) {
  if (kind == FLOAT32) {
    memcpy(at, &values, sizeof values);
    return;
  }
#if HAS_FLOAT16
  if (kind == FLOAT16) {
    __m256 parts[2];
    memcpy(parts, &values, sizeof values);
    for (int i = 0; i < 2; i++) _mm_storeu_si128((__m128i *)at + i, _mm256_cvtps_ph(parts[i], _MM_FROUND_TO_NEAREST_INT));
    return;
  }
#endif
  long_lanes bits, is_number = (long_lanes)(values == values);
  memcpy(&bits, &values, sizeof values);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  bits = (bits & is_number) | (0x7fc0 & ~is_number);
  short_lanes halves = __builtin_convertvector(bits, short_lanes);
  memcpy(at, &halves, sizeof halves);
}

/* `num` lanes of a row, from byte `at` on. */
static inline __attribute__((always_inline)) void sum_lanes(
    const char *matrix, int kind, long row_bytes, long at, const int32_t *parts, const double *weights, long num_parts, char *out, int num) {
  lanes sums[PIECE];
  for (int i = 0; i < num; i++) sums[i] = (lanes){0};
  for (long part = 0; part < num_parts; part++) {
    const char *row = matrix + parts[part] * row_bytes + at;
    float weight = (float)weights[part];
    for (int i = 0; i < num; i++) sums[i] += weight * read_lanes(row + bytes_of(kind, i * LANES), kind);
  }
  for (int i = 0; i < num; i++) write_lanes(out + at + bytes_of(kind, i * LANES), sums[i], kind);
}

/* The last numbers of a row, fewer than a lane. */
static inline __attribute__((always_inline)) void sum_rest(
    const char *matrix, int kind, long row_bytes, long at, const int32_t *parts, const double *weights, long num_parts, char *out) {
  char buffer[LANES * sizeof(float)] = {0};
  lanes sum = {0};
  for (long part = 0; part < num_parts; part++) {
    memcpy(buffer, matrix + parts[part] * row_bytes + at, row_bytes - at);
    sum += (float)weights[part] * read_lanes(buffer, kind);
  }
  write_lanes(buffer, sum, kind);
  memcpy(out + at, buffer, row_bytes - at);
}

static inline __attribute__((always_inline)) void sum_row(
    const char *matrix, int kind, long size, const int32_t *parts, const double *weights, long num_parts, char *out) {
  long row_bytes = bytes_of(kind, size), at = 0;
  for (; at + bytes_of(kind, PIECE * LANES) <= row_bytes; at += bytes_of(kind, PIECE * LANES))
    sum_lanes(matrix, kind, row_bytes, at, parts, weights, num_parts, out, PIECE);
  for (; at + bytes_of(kind, LANES) <= row_bytes; at += bytes_of(kind, LANES))
    sum_lanes(matrix, kind, row_bytes, at, parts, weights, num_parts, out, 1);
  if (at < row_bytes) sum_rest(matrix, kind, row_bytes, at, parts, weights, num_parts, out);
}

static inline __attribute__((always_inline)) void make_rows_of(
    const char *matrix, int kind, long size, const int64_t *copied, const int64_t *starts, const int32_t *parts, const double *weights,
    long first, long last, char *out) {
  long row_bytes = bytes_of(kind, size);
  for (long row = first; row < last; row++, out += row_bytes) {
    long start = starts[row], num_parts = starts[row + 1] - start;
    if (copied[row] >= 0)
      memcpy(out, matrix + copied[row] * row_bytes, row_bytes);
    else if (num_parts)
      sum_row(matrix, kind, size, parts + start, weights + start, num_parts, out);
  }
}

void make_rows(const void *matrix, int kind, long size, const int64_t *copied, const int64_t *starts, const int32_t *parts,
               const double *weights, long first, long last, void *out) {
  if (kind == FLOAT32)
    make_rows_of(matrix, FLOAT32, size, copied, starts, parts, weights, first, last, out);
  else if (kind == BFLOAT16)
    make_rows_of(matrix, BFLOAT16, size, copied, starts, parts, weights, first, last, out);
  else
    make_rows_of(matrix, FLOAT16, size, copied, starts, parts, weights, first, last, out);
}

/* Dot products of rows of float32, sixteen numbers at a time: rows begin at multiples of 64 bytes and are padded to sixteen.
 *
 * Included by C files that common/native.py builds.
 */
#ifndef LANES_H
#define LANES_H

#include <string.h>

#define LANES 16 /* numbers that are treated as one */

typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef float half_lanes __attribute__((vector_size(LANES / 2 * sizeof(float))));
typedef float quarter_lanes __attribute__((vector_size(LANES / 4 * sizeof(float))));

static inline float dot(const float *a, const float *b, long size) {
  lanes sum0 = {0}, sum1 = {0}, sum2 = {0};
  long i = 0;
  for (; i + 3 * LANES <= size; i += 3 * LANES) {
    sum0 += *(const lanes *)(a + i) * *(const lanes *)(b + i);
    sum1 += *(const lanes *)(a + i + LANES) * *(const lanes *)(b + i + LANES);
    sum2 += *(const lanes *)(a + i + 2 * LANES) * *(const lanes *)(b + i + 2 * LANES);
  }
  for (; i < size; i += LANES) sum0 += *(const lanes *)(a + i) * *(const lanes *)(b + i);
  sum0 += sum1 + sum2;
  half_lanes halves[2];
  memcpy(halves, &sum0, sizeof sum0);
  halves[0] += halves[1];
  quarter_lanes quarters[2];
  memcpy(quarters, halves, sizeof quarters);
  quarters[0] += quarters[1];
  return (quarters[0][0] + quarters[0][1]) + (quarters[0][2] + quarters[0][3]);
}

/* Asks for a row from memory before it is multiplied. */
static inline void prefetch_row(const float *row, long size) {
  for (long i = 0; i < size; i += LANES) __builtin_prefetch(row + i);
}

#endif

/* The largest cosines of many vectors with the rows of a table; nearest.py says what comes in and out.

   Products of numbers of 8 bits (common/short_products.h) give each pair a bound, and only rows whose bound is as high as the last of the largest that were found are multiplied in float32.
   So the largest are those of all pairs. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"
#include "short_products.h"

#define BLOCK 96           /* vectors for which the table is read once, a multiple of SHORT_VECTORS */
#define GROUP SHORT_PANEL  /* bounds that are looked at as one */
#define ROUNDING 2e-6f     /* of a cosine in float32 */

/* A heap of the largest cosines with the smallest, of equals the one of the last row, at its root. */
typedef struct {
  float *values;
  int32_t *rows;
  long num, width;
} Largest;

static inline int is_less(const Largest *l, long a, long b) {
  return l->values[a] < l->values[b] || (l->values[a] == l->values[b] && l->rows[a] > l->rows[b]);
}

static inline void swap(Largest *l, long a, long b) {
  float value = l->values[a];
  int32_t row = l->rows[a];
  l->values[a] = l->values[b], l->rows[a] = l->rows[b];
  l->values[b] = value, l->rows[b] = row;
}

static void sink(Largest *l, long at, long num) {
  for (long child; (child = 2 * at + 1) < num; at = child) {
    if (child + 1 < num && is_less(l, child + 1, child)) child++;
    if (!is_less(l, child, at)) return;
    swap(l, at, child);
  }
}

static void offer(Largest *l, float value, int32_t row) {
  if (l->num < l->width) {
    long at = l->num++;
    l->values[at] = value, l->rows[at] = row;
    for (; at && is_less(l, at, (at - 1) / 2); at = (at - 1) / 2) swap(l, at, (at - 1) / 2);
  } else if (value > l->values[0] || (value == l->values[0] && row < l->rows[0])) {
    l->values[0] = value, l->rows[0] = row;
    sink(l, 0, l->num);
  }
}

/* From the largest down. */
static void sort(Largest *l) {
  for (long end = l->num - 1; end > 0; end--) {
    swap(l, 0, end);
    sink(l, 0, end);
  }
}

/* The number of that rank, from 1, from the largest down; the numbers change places. */
static uint16_t ranked(uint16_t *numbers, long num, long rank) {
  long first = 0, last = num - 1;
  while (first < last) {
    uint16_t pivot = numbers[(first + last) / 2];
    long i = first, j = last;
    while (i <= j) {
      while (numbers[i] > pivot) i++;
      while (numbers[j] < pivot) j--;
      if (i <= j) {
        uint16_t number = numbers[i];
        numbers[i++] = numbers[j];
        numbers[j--] = number;
      }
    }
    if (rank - 1 <= j)
      last = j;
    else if (rank - 1 >= i)
      first = i;
    else
      break;
  }
  return numbers[rank - 1];
}

typedef struct {
  const float *table, *query;
  const uint16_t *bounds, *highest; /* of each row; of each group of rows */
  long num_rows, size;
} Search;

/* The next row from `first` on with a bound from `least` to below `end`, or the number of rows; it is asked from memory. */
static long next_row(const Search *s, int least, int end, long first) {
  while (first < s->num_rows) {
    long stop = (first / GROUP + 1) * GROUP < s->num_rows ? (first / GROUP + 1) * GROUP : s->num_rows;
    if (s->highest[first / GROUP] >= least)
      for (; first < stop; first++)
        if (s->bounds[first] >= least && s->bounds[first] < end) {
          prefetch_row(s->table + first * s->size, s->size);
          return first;
        }
    first = stop;
  }
  return s->num_rows;
}

static void find(const Search *s, int least, Largest *found) {
  int end = 1 << 16;
  for (int pass = 0; pass < 2; pass++) { /* the highest bounds first, as they rule most of the others out */
    for (long row = next_row(s, least, end, 0), next; row < s->num_rows; row = next) {
      next = next_row(s, least, end, row + 1);
      offer(found, dot(s->query, s->table + row * s->size, s->size), (int32_t)row);
      if (pass == 1 && found->num == found->width && found->values[0] > ROUNDING) {
        int bound = short_least(found->values[0] - ROUNDING);
        least = bound > least ? bound : least;
      }
    }
    end = least;
    least = found->num == found->width && found->values[0] > ROUNDING ? short_least(found->values[0] - ROUNDING) : 0;
  }
  sort(found);
}

/* The `width` largest cosines of each query, from the largest down, and their rows, both (num_queries, width); of equals the first rows.

   table: (num_padded, size) of length one, at multiples of 64 bytes, of which num_rows are no padding; numbers, unit, lost: the same by `short_table`; weight: (num_padded), 1 or, where there is padding, 0;
   queries: (num_queries, size) of length one, at multiples of 64 bytes.  num_padded is a multiple of 32, size of 16; width is at most num_rows.  Returns -1 where there is no memory. */
int nearest_rows(const float *table, const uint8_t *numbers, const float *unit, const float *lost, const float *weight, const float *queries, long num_padded, long num_rows,
                 long size, long num_queries, long width, float *cosines, int32_t *rows) {
  ShortTable brief = {numbers, unit, lost, weight, num_padded, size};
  long num_groups = num_padded / GROUP;
  uint16_t *bounds = malloc(sizeof(uint16_t) * BLOCK * num_padded), *highest = malloc(sizeof(uint16_t) * (num_groups + num_padded));
  int8_t *bytes = malloc((size_t)BLOCK * size);
  int has_memory = bounds && highest && bytes;
  for (long first = 0; has_memory && first < num_queries; first += BLOCK) {
    long num = num_queries - first < BLOCK ? num_queries - first : BLOCK, padded = (num + SHORT_VECTORS - 1) / SHORT_VECTORS * SHORT_VECTORS;
    float units[BLOCK] = {0}, lengths[BLOCK] = {0}, losses[BLOCK] = {0};
    int32_t shift[BLOCK] = {0};
    memset(bytes, 0, (size_t)padded * size);
    ShortVectors rounded = {bytes, units, shift, lengths, losses};
    for (long n = 0; n < num; n++) short_vector(queries + (first + n) * size, size, rounded, n);
    short_products(&brief, rounded, padded, 1, bounds);
    for (long n = 0; n < num; n++) {
      Search search = {table, queries + (first + n) * size, bounds + n * num_padded, highest, num_rows, size};
      for (long g = 0; g < num_groups; g++) {
        uint16_t most = 0;
        for (long i = g * GROUP; i < (g + 1) * GROUP; i++) most = search.bounds[i] > most ? search.bounds[i] : most;
        highest[g] = most;
      }
      /* As many rows have a bound as high as this: those of some of the groups, or else of all. */
      int by_groups = width <= num_groups;
      uint16_t *moved = highest + num_groups;
      memcpy(moved, by_groups ? highest : search.bounds, sizeof(uint16_t) * (by_groups ? num_groups : num_rows));
      Largest found = {cosines + (first + n) * width, rows + (first + n) * width, 0, width};
      find(&search, ranked(moved, by_groups ? num_groups : num_rows, width), &found);
    }
  }
  free(bounds);
  free(highest);
  free(bytes);
  return has_memory ? 0 : -1;
}

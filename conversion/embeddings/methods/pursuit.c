/* Orthogonal matching pursuit of many vectors; matching_pursuit.py says what comes in and out.

   Nearly all of the time of the textbook's way goes into the products of what is left of each vector with every atom, at every step.  Here these are made from
   numbers of 8 bits (short_products.h), which say of nearly all atoms that they cannot be the best; those that may be, some tens, are multiplied again in float32.
   So every choice is the textbook's. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"
#include "short_products.h"

#define BLOCK 48       /* vectors that go step by step together: an atom in 8 bits is read once for all of them */
#define PANEL 512      /* bounds that are looked at as one */
#define DEPENDENT 1e-3 /* an atom of which less is left beside the chosen ones adds nothing but rounding */
#define EXACT 1e-5     /* a vector of which less is left is done */
#define ORTHOGONAL 0.5 /* where more of an atom is left, float32 has lost nothing by taking the others out once */

typedef struct {
  const float *atoms, *preference;
  long stride, size;
  long steps;
  float *residual;     /* (size): what is left of the vector */
  float *basis;        /* (steps, size): what each chosen atom adds to those before, of length one */
  double *triangle;    /* (steps, steps): atom j is sum_i triangle[j][i] basis[i] */
  double *projections; /* (steps): of the vector on the basis */
  float *overlaps;     /* (steps) */
  int *chosen;
  int num;
} Vector;

static void subtract(float *from, float factor, const float *what, long size) {
  for (long i = 0; i < size; i += LANES) *(lanes *)(from + i) -= factor * *(const lanes *)(what + i);
}

/* Coefficients of the first `num` chosen atoms: the transposed triangle times them is the projections. */
static void solve(const Vector *v, double *solution) {
  for (int i = v->num - 1; i >= 0; i--) {
    double sum = v->projections[i];
    for (int l = i + 1; l < v->num; l++) sum -= v->triangle[(long)l * v->steps + i] * solution[l];
    solution[i] = sum / v->triangle[(long)i * v->steps + i];
  }
}

/* Takes an atom as the next and its share from what is left; 0 where nothing of it is left beside those before. */
static int add_atom(Vector *v, int atom) {
  int j = v->num;
  float *rest = v->basis + (long)j * v->size, before = 1, left = 0;
  double *row = v->triangle + (long)j * v->steps;
  memcpy(rest, v->atoms + (long)atom * v->size, sizeof(float) * v->size);
  memset(row, 0, sizeof(double) * j);
  for (int again = 0; again < 2; again++) { /* once more for what rounding left, where much was taken */
    for (int i = 0; i < j; i++) v->overlaps[i] = dot(v->basis + (long)i * v->size, rest, v->size);
    for (int i = 0; i < j; i++) {
      subtract(rest, v->overlaps[i], v->basis + (long)i * v->size, v->size);
      row[i] += v->overlaps[i];
    }
    left = sqrtf(dot(rest, rest, v->size));
    if (left > ORTHOGONAL * before) break;
    before = left;
  }
  if (left <= DEPENDENT) return 0;
  for (long i = 0; i < v->size; i++) rest[i] /= left;
  row[j] = left;
  v->projections[j] = dot(v->residual, rest, v->size);
  subtract(v->residual, (float)v->projections[j], rest, v->size);
  v->chosen[v->num++] = atom;
  return 1;
}

static float score(const Vector *v, long atom) {
  if (v->preference[atom] == 0) return 0;
  for (int i = 0; i < v->num; i++)
    if (v->chosen[i] == atom) return 0;
  return fabsf(dot(v->residual, v->atoms + atom * v->size, v->size)) * v->preference[atom];
}

/* The next atom from `first` on whose bound is as high, or the number of atoms; it is asked from memory. */
static long next_atom(const Vector *v, const uint16_t *bounds, uint16_t least, long first) {
  while (first < v->stride) {
    long end = (first / PANEL + 1) * PANEL, any = first % PANEL != 0;
    end = end < v->stride ? end : v->stride;
    if (!any) {
      int found = 0;
      for (long a = first; a < end; a++) found |= bounds[a] >= least;
      any = found;
    }
    for (; any && first < end; first++)
      if (bounds[first] >= least) {
        prefetch_row(v->atoms + first * v->size, v->size);
        return first;
      }
    first = end;
  }
  return v->stride;
}

/* The atom with the highest score, the first of such, or -1 where all scores are 0: the product is made again for each whose bound is as high as a score found. */
static int best_atom(const Vector *v, const uint16_t *bounds) {
  uint16_t least = 0;
  for (long a = 0; a < v->stride; a++) least = bounds[a] > least ? bounds[a] : least;
  float highest = 0;
  long best = -1;
  for (int pass = 0; pass < 2; pass++) { /* the highest bounds first, as a high score rules most of the others out */
    for (long atom = next_atom(v, bounds, least, 0), next; atom < v->stride; atom = next) {
      next = next_atom(v, bounds, least, atom + 1);
      float found = score(v, atom);
      if (found > highest || (found == highest && found > 0 && atom < best)) highest = found, best = atom;
      if (pass == 1 && short_least(highest) > least) least = short_least(highest);
    }
    least = short_least(highest);
  }
  return (int)best;
}

/* Atoms and coefficients of vectors of length one, as many for each as there are good ones.

   atoms: (num_atoms, size) of length one, at multiples of 64 bytes; numbers, unit, lost: the same by `short_table`; preference: (num_atoms), 0 where there is no atom;
   vectors: (num_vectors, size).  num_atoms is a multiple of 32 and size one of 16.
   chosen, coefficients: (num_vectors, steps) of zeros, to be filled.  Returns -1 where there is no memory. */
int pursue_all(const float *atoms, const uint8_t *numbers, const float *unit, const float *lost, const float *preference, const float *vectors, long num_atoms,
               long size, long num_vectors, long steps, int *chosen, double *coefficients) {
  ShortTable table = {numbers, unit, lost, preference, num_atoms, size};
  size_t floats = (size_t)BLOCK * ((size_t)steps * size + size + 3) + steps;
  float *memory = aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
  double *doubles = malloc(sizeof(double) * BLOCK * steps * (steps + 1));
  uint16_t *bounds = malloc(sizeof(uint16_t) * BLOCK * num_atoms);
  int8_t *bytes = malloc((size_t)BLOCK * size);
  int32_t shift[BLOCK] = {0};
  int has_memory = memory && doubles && bounds && bytes;
  for (long first = 0; has_memory && first < num_vectors; first += BLOCK) {
    long num = num_vectors - first < BLOCK ? num_vectors - first : BLOCK;
    float *residuals = memory + (size_t)BLOCK * steps * size, *scales = residuals + (size_t)BLOCK * size;
    Vector open[BLOCK];
    for (long n = 0; n < num; n++) {
      open[n] = (Vector){.atoms = atoms, .preference = preference, .stride = num_atoms, .size = size, .steps = steps, .residual = residuals + n * size,
                         .basis = memory + (size_t)n * steps * size, .triangle = doubles + (size_t)n * steps * (steps + 1),
                         .overlaps = scales + 3 * BLOCK, .chosen = chosen + (first + n) * steps};
      open[n].projections = open[n].triangle + (size_t)steps * steps;
      memcpy(open[n].residual, vectors + (first + n) * size, sizeof(float) * size);
    }
    for (int step = 0; step < steps; step++) {
      long left = 0, places[BLOCK]; /* vectors that are done make room for the others */
      for (long n = 0; n < num; n++)
        if (open[n].num == step && dot(open[n].residual, open[n].residual, size) > EXACT * EXACT) places[left++] = n;
      if (!left) break;
      long padded = (left + SHORT_VECTORS - 1) / SHORT_VECTORS * SHORT_VECTORS;
      memset(bytes, 0, (size_t)padded * size);
      memset(scales, 0, sizeof(float) * 3 * BLOCK);
      memset(shift, 0, sizeof shift);
      ShortVectors rounded = {bytes, scales, shift, scales + BLOCK, scales + 2 * BLOCK};
      for (long i = 0; i < left; i++) short_vector(open[places[i]].residual, size, rounded, i);
      short_products(&table, rounded, padded, 0, bounds);
      for (long i = 0; i < left; i++) {
        int atom = best_atom(&open[places[i]], bounds + i * num_atoms);
        if (atom >= 0) add_atom(&open[places[i]], atom);
      }
    }
    for (long n = 0; n < num; n++) solve(&open[n], coefficients + (first + n) * steps);
  }
  free(memory);
  free(doubles);
  free(bounds);
  free(bytes);
  return has_memory ? 0 : -1;
}

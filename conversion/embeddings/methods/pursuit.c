/* Orthogonal matching pursuit, one vector after the other; matching_pursuit.py says what comes in and out.

   Most of the time of the textbook's way goes into the products of what is left of a vector with every atom, at every step.  Here a round guesses the next atoms
   among few candidates, whose products are made as they should be, and then makes sure that no other atom would have been better: after the atoms I with
   coefficients g, what is left has the products start - sum_i g_i G[I_i] with all atoms, where G is the Gram matrix of the atoms.  That is a row of G for each chosen
   atom, one reading serves all states of the round, and G may be rounded to 16 bits, since the error has a bound: half a unit times the sum of all |g_i|.
   Where the bound does not suffice the guess is dropped and made again with other candidates.  So every choice is the textbook's.

   For few vectors G costs more than it saves.  `take_atoms` is the textbook's step from products in bfloat16, which some processors make five times as fast: these too
   have a bound, and the few atoms that may be the best by it are looked at again. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16        /* numbers that are treated as one; rows are padded to it */
#define PANEL 512       /* atoms ahead that are asked from memory */
#define MAX_AHEAD 8     /* atoms of one round */
#define MAX_CANDIDATES 256
#define MIN_CANDIDATES 64
#define UNIT (1.0f / 32767) /* of the Gram matrix */
#define DEPENDENT 1e-3  /* an atom of which less is left beside the chosen ones adds nothing but rounding */
#define EXACT 1e-5      /* a vector of which less is left is done */
#define BRIEF 0.00392f  /* of a number, at most, is lost by rounding it to bfloat16: 2^-8 and a bit */

typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));
typedef float half_lanes __attribute__((vector_size(LANES / 2 * sizeof(float))));
typedef float quarter_lanes __attribute__((vector_size(LANES / 4 * sizeof(float))));
typedef int32_t int_lanes __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef int16_t short_lanes __attribute__((vector_size(LANES * sizeof(int16_t))));
typedef uint16_t brief_lanes __attribute__((vector_size(LANES * sizeof(uint16_t)))); /* numbers in bfloat16 */
typedef uint32_t uint_lanes __attribute__((vector_size(LANES * sizeof(uint32_t))));

typedef struct {
  const int16_t *gram;
  const float *atoms;
  long num_atoms, stride, size;
  int steps;
  float *preference;   /* (stride): what products are multiplied by; 0 while an atom is a candidate or chosen */
  float *states;       /* (MAX_AHEAD, stride): products with all atoms after each atom of the round, within the bound */
  float *gammas;       /* (steps, MAX_AHEAD): coefficients after each atom of the round, in units of the Gram matrix */
  float *basis;        /* (steps, size): what each chosen atom adds to those before, of length one */
  float *residuals;    /* (MAX_AHEAD + 1, size): what is left of the vector before the round and after each of its atoms */
  double *triangle;    /* (steps, steps): atom j is sum_i triangle[j][i] basis[i] */
  double *projections; /* (steps): of the vector on the basis */
  double *solution;    /* (steps): coefficients of the chosen */
  float *overlaps;     /* (steps) */
  int *candidates;
  float candidate_preference[MAX_CANDIDATES];
} Work;

static float dot(const float *a, const float *b, long size) {
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

static void subtract(float *from, float factor, const float *what, long size) {
  for (long i = 0; i < size; i += LANES) *(lanes *)(from + i) -= factor * *(const lanes *)(what + i);
}

static float highest_score(const Work *w, const float *products) {
  float highest = 0;
  for (long a = 0; a < w->num_atoms; a++) {
    float score = fabsf(products[a]) * w->preference[a];
    highest = score > highest ? score : highest;
  }
  return highest;
}

/* Candidates: atoms whose score is at least `share` of the highest; `share` is changed until they are neither few nor many.  Returns the least score. */
static float select_candidates(Work *w, const float *products, float *share, int *num_candidates) {
  float highest = highest_score(w, products), least = 0;
  int num = 0;
  for (int attempt = 0; attempt < 40; attempt++) {
    least = *share * highest;
    num = 0;
    for (long first = 0; first < w->num_atoms && num <= MAX_CANDIDATES; first += PANEL) {
      long end = first + PANEL < w->num_atoms ? first + PANEL : w->num_atoms;
      int any = 0;
      for (long a = first; a < end; a++) any |= fabsf(products[a]) * w->preference[a] >= least;
      for (long a = first; any && a < end && num <= MAX_CANDIDATES; a++) {
        if (w->preference[a] == 0 || fabsf(products[a]) * w->preference[a] < least) continue;
        if (num < MAX_CANDIDATES) w->candidates[num] = (int)a;
        num++;
      }
    }
    if (num > MAX_CANDIDATES)
      *share += 0.1f * (1 - *share);
    else if (num < MIN_CANDIDATES && num < w->num_atoms && attempt < 8)
      *share *= 0.92f;
    else
      break;
  }
  *num_candidates = num <= MAX_CANDIDATES ? num : 0; /* too many are as good as none: all alike */
  return least;
}

/* Products of 16 atoms in `num` states (a constant, so that all stay in registers), and the highest scores so far. */
static inline __attribute__((always_inline)) void few_atoms(const int num, Work *w, const float *start, const int16_t **rows, int num_rows, long a, float *best) {
  lanes state[MAX_AHEAD];
  for (int t = 0; t < num; t++) state[t] = *(const lanes *)(start + a);
  for (int i = 0; i < num_rows; i++) {
    lanes row = __builtin_convertvector(__builtin_convertvector(*(const short_lanes *)(rows[i] + a), int_lanes), lanes);
    const float *gamma = w->gammas + (long)i * MAX_AHEAD;
    for (int t = 0; t < num; t++) state[t] -= row * gamma[t];
  }
  for (int t = 0; t < num; t++) {
    float *product = w->states + (long)t * w->stride + a;
    *(lanes *)product = state[t];
    lanes score = state[t] * *(const lanes *)(w->preference + a), *most = (lanes *)(best + t * LANES);
    score = (lanes)((int_lanes)score & 0x7fffffff);
    int_lanes is_higher = score > *most;
    *most = (lanes)(((int_lanes)score & is_higher) | ((int_lanes)*most & ~is_higher));
  }
}

/* Products with all atoms in the first `num` states of the round, and the highest score of each. */
static void all_states(Work *w, const float *start, const int *chosen, int num_rows, int num, float *highest) {
  const int16_t *rows[num_rows];
  float best[MAX_AHEAD * LANES] __attribute__((aligned(64))) = {0};
  for (int i = 0; i < num_rows; i++) rows[i] = w->gram + (long)chosen[i] * w->stride;
  for (long a = 0; a < w->stride; a += LANES) {
    if (a % (2 * LANES) == 0 && a + PANEL < w->stride)
      for (int i = 0; i < num_rows; i++) __builtin_prefetch(rows[i] + a + PANEL);
    if (num == 1)
      few_atoms(1, w, start, rows, num_rows, a, best);
    else if (num == 2)
      few_atoms(2, w, start, rows, num_rows, a, best);
    else if (num <= 4)
      few_atoms(4, w, start, rows, num_rows, a, best);
    else
      few_atoms(MAX_AHEAD, w, start, rows, num_rows, a, best);
  }
  for (int t = 0; t < num; t++) {
    highest[t] = 0;
    for (int l = 0; l < LANES; l++) highest[t] = best[t * LANES + l] > highest[t] ? best[t * LANES + l] : highest[t];
  }
}

/* The candidate with the highest score, or -1 where none is left. */
static int best_candidate(const Work *w, const float *residual, int num_candidates, float *highest) {
  int best = -1;
  *highest = 0;
  for (int c = 0; c < num_candidates; c++) {
    if (w->candidate_preference[c] == 0) continue;
    float score = fabsf(dot(residual, w->atoms + (long)w->candidates[c] * w->size, w->size)) * w->candidate_preference[c];
    if (score > *highest) *highest = score, best = c;
  }
  return best;
}

/* Coefficients of the first `num` chosen atoms: the transposed triangle times them is the projections. */
static void solve(const Work *w, int num, double *solution) {
  for (int i = num - 1; i >= 0; i--) {
    double sum = w->projections[i];
    for (int l = i + 1; l < num; l++) sum -= w->triangle[(long)l * w->steps + i] * solution[l];
    solution[i] = sum / w->triangle[(long)i * w->steps + i];
  }
}

/* Takes an atom as the j-th and its share from the vector; 0 where nothing of it is left beside those before. */
static int add_atom(Work *w, int atom, int j, const float *residual, float *next) {
  float *rest = w->basis + (long)j * w->size;
  double *row = w->triangle + (long)j * w->steps;
  memcpy(rest, w->atoms + (long)atom * w->size, sizeof(float) * w->size);
  memset(row, 0, sizeof(double) * j);
  for (int again = 0; again < 2; again++) { /* once more for what rounding left */
    for (int i = 0; i < j; i++) w->overlaps[i] = dot(w->basis + (long)i * w->size, rest, w->size);
    for (int i = 0; i < j; i++) {
      subtract(rest, w->overlaps[i], w->basis + (long)i * w->size, w->size);
      row[i] += w->overlaps[i];
    }
  }
  float left = sqrtf(dot(rest, rest, w->size));
  if (left <= DEPENDENT) return 0;
  for (long i = 0; i < w->size; i++) rest[i] /= left;
  row[j] = left;
  w->projections[j] = dot(residual, rest, w->size);
  if (next != residual) memcpy(next, residual, sizeof(float) * w->size);
  subtract(next, (float)w->projections[j], rest, w->size);
  return 1;
}

/* Coefficients after the atom at `place` of the round.  Returns how far products from the Gram matrix may be off. */
static float keep_coefficients(Work *w, int num, int place) {
  double sum = 0;
  solve(w, num, w->solution);
  for (int i = 0; i < num; i++) {
    w->gammas[(long)i * MAX_AHEAD + place] = (float)(w->solution[i] * UNIT);
    sum += fabs(w->solution[i]);
  }
  return (float)(sum * UNIT * 0.55 + 2e-6 * (1 + sum)); /* half a unit, and float32 in sums of at most a few hundred */
}

/* Guesses up to `most` next atoms among the candidates.  Sets the number of guesses, which is one more than the atoms added where the last guess is an atom
   that those before already contain.  Returns the number of atoms added. */
static int guess(Work *w, int num_candidates, int num, int most, int *chosen, float *values, float *errors, int *num_guesses) {
  int added = 0;
  memset(w->gammas, 0, sizeof(float) * (size_t)w->steps * MAX_AHEAD);
  for (; added < most; added++) {
    const float *residual = w->residuals + (long)added * w->size;
    if (dot(residual, residual, w->size) <= EXACT * EXACT) break;
    int best = best_candidate(w, residual, num_candidates, values + added);
    if (best < 0) break;
    if (!add_atom(w, w->candidates[best], num + added, residual, w->residuals + (long)(added + 1) * w->size)) {
      *num_guesses = added + 1;
      return added;
    }
    chosen[num + added] = w->candidates[best];
    w->candidate_preference[best] = 0;
    errors[added] = keep_coefficients(w, num + added + 1, added);
  }
  *num_guesses = added;
  return added;
}

/* The atoms of one vector of length one, as many as there are good ones.  Returns their number, or -1 where too many atoms are too alike. */
static int pursue(Work *w, const float *vector, const float *start, const float *preference, float longest, int *chosen, double *coefficients) {
  const float *products = start;
  float share = 0.6f, error = 0, values[MAX_AHEAD], highest[MAX_AHEAD], errors[MAX_AHEAD];
  int num = 0, ahead = 1;
  memcpy(w->residuals, vector, sizeof(float) * w->size);
  memcpy(w->preference, preference, sizeof(float) * w->stride);
  while (num < w->steps && dot(w->residuals, w->residuals, w->size) > EXACT * EXACT) {
    int num_candidates, num_guesses, most = w->steps - num < ahead ? w->steps - num : ahead;
    float least = select_candidates(w, products, &share, &num_candidates);
    for (int c = 0; c < num_candidates; c++) {
      w->candidate_preference[c] = preference[w->candidates[c]];
      w->preference[w->candidates[c]] = 0;
    }
    int added = guess(w, num_candidates, num, most, chosen, values, errors, &num_guesses);
    if (num_guesses == 0) return -1;
    if (num_candidates < w->num_atoms - num && values[0] < least + error * longest) return -1;
    int states = num + added < w->steps ? added : added - 1, right = 1;
    if (states > 0) all_states(w, start, chosen, num + states, states, highest);
    while (right < num_guesses && highest[right - 1] + errors[right - 1] * longest <= values[right]) right++;
    for (int c = 0; c < num_candidates; c++) w->preference[w->candidates[c]] = preference[w->candidates[c]];
    int is_done = right == num_guesses && num_guesses > added;
    if (is_done) right = added;
    for (int i = 0; i < right; i++) w->preference[chosen[num + i]] = 0;
    num += right;
    if (is_done) break;
    ahead = right == most ? 2 * ahead : right;
    ahead = ahead < MAX_AHEAD ? ahead : MAX_AHEAD;
    memmove(w->residuals, w->residuals + (long)right * w->size, sizeof(float) * w->size);
    products = w->states + (long)(right - 1) * w->stride;
    error = errors[right - 1];
  }
  solve(w, num, coefficients);
  return num;
}

/* Atoms and coefficients of vectors of length one.

   gram: (num_atoms, stride) in units of 1 / 32767; atoms: (num_atoms, size) of length one; preference: (stride), 0 behind num_atoms; vectors: (num_vectors, size);
   start: (num_vectors, stride), products of vectors and atoms.  Rows begin at multiples of 64 bytes (gram: 32) and end in zeros.
   chosen, coefficients: (num_vectors, steps), nums: (num_vectors), to be filled; the number is -1 for a vector that is not done.
   Returns -1 where there is no memory. */
int pursue_all(const int16_t *gram, const float *atoms, const float *preference, const float *vectors, const float *start, long num_atoms, long stride, long size,
               long num_vectors, int steps, int *chosen, double *coefficients, int *nums) {
  Work w = {.gram = gram, .atoms = atoms, .num_atoms = num_atoms, .stride = stride, .size = size, .steps = steps};
  size_t floats = (size_t)(MAX_AHEAD + 1) * (stride + size) + (size_t)steps * (size + MAX_AHEAD + 1);
  float *memory = aligned_alloc(64, (floats * sizeof(float) + 63) / 64 * 64);
  double *doubles = malloc(sizeof(double) * steps * (steps + 2));
  int *candidates = malloc(sizeof(int) * MAX_CANDIDATES);
  int has_memory = memory && doubles && candidates;
  if (has_memory) {
    float longest = 0;
    for (long a = 0; a < num_atoms; a++) longest = preference[a] > longest ? preference[a] : longest;
    w.states = memory;
    w.preference = w.states + (size_t)MAX_AHEAD * stride;
    w.residuals = w.preference + stride;
    w.basis = w.residuals + (size_t)(MAX_AHEAD + 1) * size;
    w.gammas = w.basis + (size_t)steps * size;
    w.overlaps = w.gammas + (size_t)steps * MAX_AHEAD;
    w.triangle = doubles;
    w.projections = doubles + (size_t)steps * steps;
    w.solution = w.projections + steps;
    w.candidates = candidates;
    for (long v = 0; v < num_vectors; v++)
      nums[v] = pursue(&w, vectors + v * size, start + v * stride, preference, longest, chosen + v * steps, coefficients + v * steps);
  }
  free(memory);
  free(doubles);
  free(candidates);
  return has_memory ? 0 : -1;
}

static lanes sizes_of(const uint16_t *products) {
  uint_lanes bits = __builtin_convertvector(*(const brief_lanes *)products, uint_lanes);
  return (lanes)((bits << 16) & 0x7fffffff);
}

/* A score that the best atom has at least, from products that are off by at most a share BRIEF and `error`. */
static float sure_score(const Work *w, const uint16_t *products, float error) {
  lanes most = {0};
  for (long a = 0; a < w->stride; a += LANES) {
    lanes score = (sizes_of(products + a) * (1 - BRIEF) - error) * *(const lanes *)(w->preference + a);
    int_lanes is_higher = score > most;
    most = (lanes)(((int_lanes)score & is_higher) | ((int_lanes)most & ~is_higher));
  }
  float sure = 0;
  for (int l = 0; l < LANES; l++) sure = most[l] > sure ? most[l] : sure;
  return sure;
}

static int is_among(int atom, const int *chosen, int num) {
  for (int i = 0; i < num; i++)
    if (chosen[i] == atom) return 1;
  return 0;
}

/* The atom with the highest score, or -1 where all scores are 0: the product is made again for each that may be it. */
static int best_atom(const Work *w, const uint16_t *products, const float *residual, float error, const int *chosen, int num) {
  float sure = sure_score(w, products, error), highest = 0;
  int best = -1;
  for (long first = 0; first < w->stride; first += PANEL) {
    long end = first + PANEL < w->stride ? first + PANEL : w->stride;
    int_lanes any = {0};
    for (long a = first; a < end; a += LANES) any |= (sizes_of(products + a) * (1 + BRIEF) + error) * *(const lanes *)(w->preference + a) >= sure;
    int is_any = 0;
    for (int l = 0; l < LANES; l++) is_any |= any[l];
    for (long group = first; is_any && group < end; group += LANES) {
      lanes most = (sizes_of(products + group) * (1 + BRIEF) + error) * *(const lanes *)(w->preference + group);
      for (int l = 0; l < LANES; l++) {
        long a = group + l;
        if (most[l] < sure || w->preference[a] == 0 || is_among((int)a, chosen, num)) continue;
        float score = fabsf(dot(residual, w->atoms + a * w->size, w->size)) * w->preference[a];
        if (score > highest) highest = score, best = (int)a;
        if (score > sure) sure = score;
      }
    }
  }
  return best;
}

/* Gives each vector that is not done its atom number `step`, from the products of what is left of it with all atoms.

   atoms: (stride, size) of length one, of which rounding to bfloat16 takes at most `atoms_error`; preference: (stride), 0 where there is no atom;
   products: (num_vectors, stride) in bfloat16, of `rounded` (num_vectors, size), which is what was left in bfloat16; residuals: (num_vectors, size), what was left;
   basis: (num_vectors, steps, size), triangle: (num_vectors, steps, steps), projections, chosen: (num_vectors, steps), nums: (num_vectors), `step` where not done.
   Returns how many vectors got an atom, -1 where there is no memory. */
long take_atoms(const float *atoms, const float *preference, const uint16_t *products, const uint16_t *rounded, float *residuals, float *basis, double *triangle,
                double *projections, int *chosen, int *nums, long stride, long size, long num_vectors, int steps, int step, float atoms_error) {
  Work w = {.atoms = atoms, .num_atoms = stride, .stride = stride, .size = size, .steps = steps, .preference = (float *)preference};
  long taken = 0;
  w.overlaps = malloc(sizeof(float) * steps);
  if (!w.overlaps) return -1;
  for (long v = 0; v < num_vectors; v++) {
    float *residual = residuals + v * size, lost = 0;
    double left = dot(residual, residual, size);
    if (nums[v] < step || left <= EXACT * EXACT) continue;
    for (long i = 0; i < size; i += LANES) {
      uint_lanes bits = __builtin_convertvector(*(const brief_lanes *)(rounded + v * size + i), uint_lanes) << 16;
      lanes off = *(const lanes *)(residual + i) - (lanes)bits;
      off *= off;
      for (int l = 0; l < LANES; l++) lost += off[l];
    }
    /* Of both factors what rounding took, and float32 in a sum of `size` products. */
    float length = sqrtf((float)left), error = length * (atoms_error + 2.4e-7f * size) + sqrtf(lost) * (1 + atoms_error);
    w.basis = basis + v * steps * size;
    w.triangle = triangle + v * steps * steps;
    w.projections = projections + v * steps;
    int atom = best_atom(&w, products + v * stride, residual, error, chosen + v * steps, step);
    if (atom < 0 || !add_atom(&w, atom, step, residual, residual)) continue;
    chosen[v * steps + step] = atom;
    nums[v] = step + 1;
    taken++;
  }
  free(w.overlaps);
  return taken;
}

/* Coefficients of the chosen atoms of each vector: (num_vectors, steps), in which only the first `nums` are set. */
void all_coefficients(const double *triangle, const double *projections, const int *nums, long num_vectors, int steps, double *coefficients) {
  for (long v = 0; v < num_vectors; v++) {
    Work w = {.steps = steps, .triangle = (double *)triangle + v * steps * steps, .projections = (double *)projections + v * steps};
    solve(&w, nums[v], coefficients + v * steps);
  }
}

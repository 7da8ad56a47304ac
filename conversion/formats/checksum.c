/* The checksum of zip archives (CRC-32, polynomial 0x04C11DB7, bits reflected), by the processor's own instructions.
 *
 * With carry-less products (x86): a message is a polynomial over two elements, and 16 bytes of it may be moved ahead by n bits if they are
 * multiplied with the remainder of x^n. Four lanes are moved over each other until 16 bytes are left, whose remainder is that of all.
 * Gopal et al. 2009, Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction.  ARM has the checksum itself.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define POLYNOMIAL 0xEDB88320u /* reflected */

static uint32_t by_bits(uint32_t state, const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        state ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (state & 1 ? POLYNOMIAL : 0);
    }
    return state;
}

#if defined(__PCLMUL__) && defined(__SSE2__)

#include <emmintrin.h>
#include <wmmintrin.h>

int is_fast(void) { return 1; }

/* x^n modulo the polynomial, reflected, as a factor of a carry-less product of reflected numbers: one bit further. */
static uint64_t power(int n) {
    uint32_t found = 1u << 31;
    for (int i = 0; i < n; i++) found = found >> 1 ^ (found & 1 ? POLYNOMIAL : 0);
    return (uint64_t)found << 1;
}

static __m128i moved(__m128i lane, __m128i factors) {
    return _mm_xor_si128(_mm_clmulepi64_si128(lane, factors, 0x00), _mm_clmulepi64_si128(lane, factors, 0x11));
}

static __m128i at(const uint8_t *bytes) { return _mm_loadu_si128((const __m128i *)bytes); }

static uint32_t update(uint32_t state, const uint8_t *bytes, size_t count) {
    if (count >= 64) {
        /* The two halves of a lane are 64 bits apart; 32 bits because a product of reflected numbers is that much ahead. */
        const __m128i over_four = _mm_set_epi64x((long long)power(512 - 32), (long long)power(512 + 32));
        const __m128i over_one = _mm_set_epi64x((long long)power(128 - 32), (long long)power(128 + 32));
        __m128i lanes[4];
        for (int i = 0; i < 4; i++) lanes[i] = at(bytes + 16 * i);
        lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)state));
        for (bytes += 64, count -= 64; count >= 64; bytes += 64, count -= 64)
            for (int i = 0; i < 4; i++) lanes[i] = _mm_xor_si128(moved(lanes[i], over_four), at(bytes + 16 * i));
        for (int i = 1; i < 4; i++) lanes[i] = _mm_xor_si128(moved(lanes[i - 1], over_one), lanes[i]);
        __m128i lane = lanes[3];
        for (; count >= 16; bytes += 16, count -= 16) lane = _mm_xor_si128(moved(lane, over_one), at(bytes));
        uint8_t left[16];
        _mm_storeu_si128((__m128i *)left, lane);
        state = by_bits(0, left, 16);
    }
    return by_bits(state, bytes, count);
}

#elif defined(__ARM_FEATURE_CRC32)

#include <arm_acle.h>

int is_fast(void) { return 1; }

static uint32_t update(uint32_t state, const uint8_t *bytes, size_t count) {
    for (; count >= 8; bytes += 8, count -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        state = __crc32d(state, word);
    }
    return by_bits(state, bytes, count);
}

#else

int is_fast(void) { return 0; }

static uint32_t update(uint32_t state, const uint8_t *bytes, size_t count) { return by_bits(state, bytes, count); }

#endif

/* The checksum of what came before and these bytes, as zlib's function of that name. */
uint32_t crc32(uint32_t before, const uint8_t *bytes, size_t count) { return ~update(~before, bytes, count); }

/* The digest of docs/digest.md, version 1, for host memory. In: addresses. Out: three words per tensor.
 *
 * One body, compiled for several vector widths and chosen at run time, so that the library built on one machine of
 * a shared file system runs on another. All arithmetic is unsigned modulo 2^64: every width gives the same bits.
 * S2 needs no product: with s_t the running sum of a lane, adding s_t up after each row weights rows by age.
 */
#include <stdint.h>
#include <string.h>

#define BLOCK 4096u /* words of one NH block */
#define PAIRS (BLOCK / 2)
#define AHEAD 6144 /* bytes: beyond what the hardware fetches by itself; nearer, the loop waits for memory */
#define LENGTH 0x9FB21C651E98DF25ull
#define GOLDEN 0x9E3779B97F4A7C15ull

typedef struct { uint64_t s1, s2, h; } row;

static inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/* One complete block from any address: sums within the block, position 0 first, and NH. `BYTES` is the vector's width.
 * Vectors hold pairs of words; MUL32 multiplies the low halves of its lanes. */
#define BLOCK_KERNEL(NAME, TARGET, BYTES, MUL32)                                                                    \
  typedef uint64_t NAME##_v __attribute__((vector_size(BYTES), aligned(1), may_alias));                             \
  typedef uint32_t NAME##_w __attribute__((vector_size(BYTES), may_alias));                                         \
  TARGET static row NAME(const unsigned char *p, const uint32_t *keys) {                                            \
    enum { LANES = BYTES / 8, ROWS = PAIRS / LANES };                                                               \
    typedef uint64_t v __attribute__((vector_size(BYTES)));                                                         \
    v all = {0}, high = {0}, all_age = {0}, high_age = {0}, nh = {0};                                               \
    for (unsigned t = 0; t < ROWS; t++) {                                                                           \
      __builtin_prefetch(p + t * BYTES + AHEAD);                                                                    \
      v x = *(const NAME##_v *)(p + t * BYTES), k = *(const NAME##_v *)((const unsigned char *)keys + t * BYTES);   \
      v y = (v)((NAME##_w)x + (NAME##_w)k);                                                                         \
      all += x;                                                                                                     \
      high += x >> 32;                                                                                              \
      all_age += all;                                                                                               \
      high_age += high;                                                                                             \
      nh += MUL32(y, y >> 32);                                                                                      \
    }                                                                                                               \
    row out = {0, 0, 0};                                                                                            \
    for (unsigned l = 0; l < LANES; l++) {                                                                          \
      /* x = low + 2^32 high; row t was added ROWS - t times; its words stand at 2 (t LANES + l) + 1 and one more */\
      uint64_t sum = all[l] - (high[l] << 32) + high[l];                                                            \
      uint64_t age = all_age[l] - (high_age[l] << 32) + high_age[l];                                                \
      out.s1 += sum;                                                                                                \
      out.s2 += (ROWS * sum - age) * (2 * LANES) + sum * (2 * l + 1) + high[l];                                     \
      out.h += nh[l];                                                                                               \
    }                                                                                                               \
    return out;                                                                                                     \
  }

typedef row (*block_kernel)(const unsigned char *, const uint32_t *);

#define MUL_PLAIN(a, b) (((a) & 0xFFFFFFFFull) * ((b) & 0xFFFFFFFFull))
BLOCK_KERNEL(block_plain, , 16, MUL_PLAIN)

#if defined(__x86_64__)
#include <immintrin.h>
#define MUL_AVX2(a, b) (v) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define MUL_AVX512(a, b) (v) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
BLOCK_KERNEL(block_avx2, __attribute__((target("avx2"))), 32, MUL_AVX2)
BLOCK_KERNEL(block_avx512, __attribute__((target("avx512f"))), 64, MUL_AVX512)
#endif

/* 0: plain, 1: AVX2, 2: AVX-512. */
static int widest(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return 2;
  if (__builtin_cpu_supports("avx2")) return 1;
#endif
  return 0;
}

static block_kernel kernel_of(int width) {
#if defined(__x86_64__)
  if (width == 2) return block_avx512;
  if (width == 1) return block_avx2;
#endif
  (void)width;
  return block_plain;
}

static inline uint32_t word_at(const unsigned char *p, uint64_t left) {
  uint32_t w = 0;
  if (left >= 4)
    memcpy(&w, p, 4); /* of known size: one load */
  else
    memcpy(&w, p, left);
  return w;
}

/* The incomplete block at the end of a piece; a missing second word of a pair is 0. */
static row tail(const unsigned char *p, uint64_t bytes, const uint32_t *keys) {
  row out = {0, 0, 0};
  for (uint64_t i = 0; 4 * i < bytes; i += 2) {
    uint64_t left = bytes - 4 * i;
    uint32_t a = word_at(p + 4 * i, left), b = left > 4 ? word_at(p + 4 * (i + 1), left - 4) : 0;
    out.s1 += (uint64_t)a + b;
    out.s2 += (i + 1) * a + (i + 2) * b;
    out.h += (uint64_t)(uint32_t)(a + keys[i]) * (uint32_t)(b + keys[i + 1]);
  }
  return out;
}

static row piece(const unsigned char *p, uint64_t bytes, const uint32_t *keys, block_kernel kernel) {
  row out = {0, 0, mix(bytes ^ LENGTH)};
  const uint64_t step = 4 * BLOCK;
  for (uint64_t b = 0; b * step < bytes; b++) {
    uint64_t left = bytes - b * step;
    row r = left >= step ? kernel(p + b * step, keys) : tail(p + b * step, left, keys);
    out.s1 += r.s1;
    out.s2 += r.s2 + r.s1 * (b * BLOCK);
    out.h += mix(r.h ^ ((b + 1) * GOLDEN));
  }
  return out;
}

/* Widest kernel of this machine. */
int training_agent_digest_width(void) { return widest(); }

/* Digest `count` tensors: `bytes[i]` bytes at `at[i]`, cut into pieces of `limit` bytes; 3 words each into `out`. */
void training_agent_digest(const uint64_t *at, const uint64_t *bytes, uint64_t count, uint64_t limit,
                           const uint32_t *keys, int width, uint64_t *out) {
  block_kernel kernel = kernel_of(width);
  for (uint64_t i = 0; i < count; i++, out += 3) {
    const unsigned char *p = (const unsigned char *)(uintptr_t)at[i];
    if (bytes[i] <= limit) {
      row r = piece(p, bytes[i], keys, kernel);
      out[0] = r.s1, out[1] = r.s2, out[2] = r.h;
      continue;
    }
    out[0] = out[1] = out[2] = 0;
    for (uint64_t n = 0; n * limit < bytes[i]; n++) {
      uint64_t left = bytes[i] - n * limit, salt = (n + 1) * GOLDEN;
      row r = piece(p + n * limit, left < limit ? left : limit, keys, kernel);
      out[0] += mix(r.s1 ^ salt), out[1] += mix(r.s2 ^ salt), out[2] += mix(r.h ^ salt);
    }
  }
}

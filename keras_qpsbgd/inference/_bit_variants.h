/* Counts of differing bits, for each instruction set that a processor may
   have. `_bit_product.h` describes what each of them defines. */

typedef struct {
    ptrdiff_t words;          /* of a patch, without those outside the image */
    const ptrdiff_t *offsets; /* of these words from the start of the patch */
    const ptrdiff_t *places;  /* of their weights in a block of the kernel */
    ptrdiff_t block;          /* words of a block, which has 8 outputs */
    int64_t inputs;           /* number of bits of the words */
    const int64_t *most;      /* bits that may differ for +1, or NULL */
} Taps;

/* x[count] to out[count]: words if `most` is given, otherwise int32. */
typedef void Tile(const uint64_t *const *x, int count, const Taps *taps,
                  const uint64_t *kernel, ptrdiff_t outputs, void *const *out);

#ifdef X86
#include <immintrin.h>

/* 512 bits with an instruction that counts the bits of words. */
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vpopcntdq")))
typedef struct {
    __m512i words;
} counts_popcnt;

static INLINE TARGET void clear_popcnt(counts_popcnt *c)
{
    c->words = _mm512_setzero_si512();
}

static INLINE TARGET void add_popcnt(counts_popcnt *c, __m512i d)
{
    c->words = _mm512_add_epi64(c->words, _mm512_popcnt_epi64(d));
}

static INLINE TARGET void add4_popcnt(counts_popcnt *c, __m512i d0, __m512i d1,
                                      __m512i d2, __m512i d3)
{
    add_popcnt(c, d0);
    add_popcnt(c, d1);
    add_popcnt(c, d2);
    add_popcnt(c, d3);
}

static INLINE TARGET void widen_popcnt(counts_popcnt *c) { (void)c; }

static INLINE TARGET __m512i sum_popcnt(counts_popcnt *c) { return c->words; }

#define NAME(x) x##_popcnt
#define TILE 8
#define WORDS __m512i
#define LANES 8
#define LOAD(p) _mm512_loadu_si512(p)
#define DIFFERENT(a, w) _mm512_xor_si512(_mm512_set1_epi64((int64_t)(a)), w)
#define COUNTS counts_popcnt
#define CHUNK (1 << 20)
#define AT_MOST(n, p) (unsigned)_mm512_cmple_epi64_mask(n, LOAD(p))
#define STORE(p, n) _mm512_storeu_si512(p, n)
#include "_bit_product.h"

/* 512 bits without this instruction: tables of 16 numbers count the bits of
   each byte. Carry-save adders reduce four vectors to one, which is counted. */
#define TARGET __attribute__((target("avx512f,avx512bw")))
typedef struct {
    __m512i words;
    __m512i ones, twos;   /* bits that are not counted yet */
    __m512i bytes, fours; /* counts of each byte, `fours` in units of four */
} counts_wide;

static INLINE TARGET void clear_wide(counts_wide *c)
{
    c->words = c->ones = c->twos = _mm512_setzero_si512();
    c->bytes = c->fours = _mm512_setzero_si512();
}

static INLINE TARGET __m512i in_bytes_512(__m512i d)
{
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const __m512i low = _mm512_set1_epi8(15);
    __m512i high = _mm512_and_si512(_mm512_srli_epi16(d, 4), low);
    return _mm512_add_epi8(
        _mm512_shuffle_epi8(table, _mm512_and_si512(d, low)),
        _mm512_shuffle_epi8(table, high));
}

static INLINE TARGET void add_wide(counts_wide *c, __m512i d)
{
    c->bytes = _mm512_add_epi8(c->bytes, in_bytes_512(d));
}

static INLINE TARGET __m512i carry(__m512i *sum, __m512i a, __m512i b)
{
    __m512i found = _mm512_ternarylogic_epi64(*sum, a, b, 0xe8);
    *sum = _mm512_ternarylogic_epi64(*sum, a, b, 0x96);
    return found;
}

static INLINE TARGET void add4_wide(counts_wide *c, __m512i d0, __m512i d1,
                                    __m512i d2, __m512i d3)
{
    __m512i first = carry(&c->ones, d0, d1), second = carry(&c->ones, d2, d3);
    __m512i fours = carry(&c->twos, first, second);
    c->fours = _mm512_add_epi8(c->fours, in_bytes_512(fours));
}

static INLINE TARGET void widen_wide(counts_wide *c)
{
    const __m512i zero = _mm512_setzero_si512();
    __m512i twos = in_bytes_512(c->twos);
    c->bytes = _mm512_add_epi8(c->bytes, in_bytes_512(c->ones));
    c->bytes = _mm512_add_epi8(c->bytes, _mm512_add_epi8(twos, twos));
    __m512i fours = _mm512_slli_epi64(_mm512_sad_epu8(c->fours, zero), 2);
    c->words = _mm512_add_epi64(c->words, fours);
    c->words = _mm512_add_epi64(c->words, _mm512_sad_epu8(c->bytes, zero));
    c->ones = c->twos = c->bytes = c->fours = zero;
}

static INLINE TARGET __m512i sum_wide(counts_wide *c) { return c->words; }

#define NAME(x) x##_wide
#define TILE 4
#define WORDS __m512i
#define LANES 8
#define LOAD(p) _mm512_loadu_si512(p)
#define DIFFERENT(a, w) _mm512_xor_si512(_mm512_set1_epi64((int64_t)(a)), w)
#define COUNTS counts_wide
#define CHUNK 124 /* `fours` holds 31 times 8 */
#define AT_MOST(n, p) (unsigned)_mm512_cmple_epi64_mask(n, LOAD(p))
#define STORE(p, n) _mm512_storeu_si512(p, n)
#include "_bit_product.h"

/* 256 bits, with the same tables. */
#define TARGET __attribute__((target("avx2")))
typedef struct {
    __m256i words, bytes;
} counts_avx2;

static INLINE TARGET void clear_avx2(counts_avx2 *c)
{
    c->words = c->bytes = _mm256_setzero_si256();
}

static INLINE TARGET void add_avx2(counts_avx2 *c, __m256i d)
{
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    const __m256i low = _mm256_set1_epi8(15);
    __m256i high = _mm256_and_si256(_mm256_srli_epi16(d, 4), low);
    c->bytes = _mm256_add_epi8(
        c->bytes,
        _mm256_add_epi8(_mm256_shuffle_epi8(table, _mm256_and_si256(d, low)),
                        _mm256_shuffle_epi8(table, high)));
}

static INLINE TARGET void add4_avx2(counts_avx2 *c, __m256i d0, __m256i d1,
                                    __m256i d2, __m256i d3)
{
    add_avx2(c, d0);
    add_avx2(c, d1);
    add_avx2(c, d2);
    add_avx2(c, d3);
}

static INLINE TARGET void widen_avx2(counts_avx2 *c)
{
    const __m256i zero = _mm256_setzero_si256();
    c->words = _mm256_add_epi64(c->words, _mm256_sad_epu8(c->bytes, zero));
    c->bytes = zero;
}

static INLINE TARGET __m256i sum_avx2(counts_avx2 *c) { return c->words; }

#define NAME(x) x##_avx2
#define TILE 4
#define WORDS __m256i
#define LANES 4
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define DIFFERENT(a, w) _mm256_xor_si256(_mm256_set1_epi64x((int64_t)(a)), w)
#define COUNTS counts_avx2
#define CHUNK 28 /* a byte holds 31 times 8 */
#define AT_MOST(n, p)                                                          \
    (15u & ~(unsigned)_mm256_movemask_pd(                                      \
         _mm256_castsi256_pd(_mm256_cmpgt_epi64(n, LOAD(p)))))
#define STORE(p, n) _mm256_storeu_si256((__m256i *)(p), n)
#include "_bit_product.h"
#endif

/* Plain C. */
#define TARGET
static INLINE void clear_plain(uint64_t *c) { *c = 0; }

static INLINE void add_plain(uint64_t *c, uint64_t d) { *c += COUNT_BITS(d); }

static INLINE void add4_plain(uint64_t *c, uint64_t d0, uint64_t d1,
                              uint64_t d2, uint64_t d3)
{
    *c += COUNT_BITS(d0) + COUNT_BITS(d1) + COUNT_BITS(d2) + COUNT_BITS(d3);
}

static INLINE void widen_plain(uint64_t *c) { (void)c; }

static INLINE uint64_t sum_plain(uint64_t *c) { return *c; }

#define NAME(x) x##_plain
#define TILE 2
#define WORDS uint64_t
#define LANES 1
#define LOAD(p) *(p)
#define DIFFERENT(a, w) ((a) ^ (w))
#define COUNTS uint64_t
#define CHUNK (1 << 20)
#define AT_MOST(n, p) (unsigned)((int64_t)(n) <= *(p))
#define STORE(p, n) *(p) = (int64_t)(n)
#include "_bit_product.h"

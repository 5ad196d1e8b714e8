/* Sums of signed inputs, for each vector type that a processor may support.
   `_sign_product.h` describes what each of them defines. */

#define GROUPS 8 /* groups of 8 inputs in a word of the kernel */

/* How the sums become outputs. */
typedef struct {
    ptrdiff_t inputs;           /* of a patch */
    int planes;                 /* bits of a weight */
    const float *limits;        /* of +1, or NULL for real outputs */
    const float *scale, *shift; /* NULL if there are none */
    float low, high;            /* limits of the outputs */
} Output;

/* The products of `patches[count]`. */
typedef void Positions(const Geometry *g, const float *images,
                       const Patch *patches, int count, const uint64_t *kernel,
                       const Output *to, void *space, void *const *out);

#ifdef X86
typedef float float16 __attribute__((vector_size(64)));
typedef int32_t mask16 __attribute__((vector_size(64)));
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,bmi2")))

/* Transposes the 4 x 4 numbers in each quarter. */
static INLINE TARGET void turn_16(__m512 v[4])
{
    __m512 a = _mm512_unpacklo_ps(v[0], v[1]);
    __m512 b = _mm512_unpackhi_ps(v[0], v[1]);
    __m512 c = _mm512_unpacklo_ps(v[2], v[3]);
    __m512 d = _mm512_unpackhi_ps(v[2], v[3]);
    v[0] = _mm512_shuffle_ps(a, c, 0x44);
    v[1] = _mm512_shuffle_ps(a, c, 0xee);
    v[2] = _mm512_shuffle_ps(b, d, 0x44);
    v[3] = _mm512_shuffle_ps(b, d, 0xee);
}

static INLINE TARGET float16 limited_16(float16 v, float low, float high)
{
    /* If one of the arguments is NaN, the second one is returned. */
    __m512 found = _mm512_max_ps(_mm512_set1_ps(low), (__m512)v);
    return (float16)_mm512_min_ps(_mm512_set1_ps(high), found);
}

static INLINE TARGET void columns_16(float16 *x, float rows[16][64])
{
    for (int i = 0; i < 64; i += 4) {
        __m512 v[4];
        UNROLL for (int r = 0; r < 4; r++) {
            v[r] = _mm512_castps128_ps512(_mm_loadu_ps(rows[r] + i));
            v[r] = _mm512_insertf32x4(v[r], _mm_loadu_ps(rows[4 + r] + i), 1);
            v[r] = _mm512_insertf32x4(v[r], _mm_loadu_ps(rows[8 + r] + i), 2);
            v[r] = _mm512_insertf32x4(v[r], _mm_loadu_ps(rows[12 + r] + i), 3);
        }
        turn_16(v);
        UNROLL for (int r = 0; r < 4; r++)
            _mm512_storeu_ps((float *)(x + i + r), v[r]);
    }
}

static INLINE TARGET void write4_16(const float16 *sums, float *const *out,
                                    ptrdiff_t o)
{
    __m512 v[4];
    UNROLL for (int r = 0; r < 4; r++)
        v[r] = _mm512_loadu_ps((const float *)(sums + r));
    turn_16(v);
    UNROLL for (int r = 0; r < 4; r++) {
        _mm_storeu_ps(out[r] + o, _mm512_castps512_ps128(v[r]));
        _mm_storeu_ps(out[4 + r] + o, _mm512_extractf32x4_ps(v[r], 1));
        _mm_storeu_ps(out[8 + r] + o, _mm512_extractf32x4_ps(v[r], 2));
        _mm_storeu_ps(out[12 + r] + o, _mm512_extractf32x4_ps(v[r], 3));
    }
}

#define NAME(x) x##_16
#define VECTOR float16
#define MASKS mask16
#define SAMPLES 16
#define AT_LEAST(a, b) ((a) >= (b))
#define WIDE PTRDIFF_MAX
#include "_sign_product.h"

typedef float float8 __attribute__((vector_size(32)));
typedef int32_t mask8 __attribute__((vector_size(32)));
#define TARGET __attribute__((target("avx2,bmi2")))

static INLINE TARGET void turn_8(__m256 v[4])
{
    __m256 a = _mm256_unpacklo_ps(v[0], v[1]);
    __m256 b = _mm256_unpackhi_ps(v[0], v[1]);
    __m256 c = _mm256_unpacklo_ps(v[2], v[3]);
    __m256 d = _mm256_unpackhi_ps(v[2], v[3]);
    v[0] = _mm256_shuffle_ps(a, c, 0x44);
    v[1] = _mm256_shuffle_ps(a, c, 0xee);
    v[2] = _mm256_shuffle_ps(b, d, 0x44);
    v[3] = _mm256_shuffle_ps(b, d, 0xee);
}

static INLINE TARGET float8 limited_8(float8 v, float low, float high)
{
    /* If one of the arguments is NaN, the second one is returned. */
    __m256 found = _mm256_max_ps(_mm256_set1_ps(low), (__m256)v);
    return (float8)_mm256_min_ps(_mm256_set1_ps(high), found);
}

static INLINE TARGET void columns_8(float8 *x, float rows[8][64])
{
    for (int i = 0; i < 64; i += 4) {
        __m256 v[4];
        UNROLL for (int r = 0; r < 4; r++) {
            v[r] = _mm256_castps128_ps256(_mm_loadu_ps(rows[r] + i));
            v[r] = _mm256_insertf128_ps(v[r], _mm_loadu_ps(rows[4 + r] + i), 1);
        }
        turn_8(v);
        UNROLL for (int r = 0; r < 4; r++)
            _mm256_storeu_ps((float *)(x + i + r), v[r]);
    }
}

static INLINE TARGET void write4_8(const float8 *sums, float *const *out,
                                   ptrdiff_t o)
{
    __m256 v[4];
    UNROLL for (int r = 0; r < 4; r++)
        v[r] = _mm256_loadu_ps((const float *)(sums + r));
    turn_8(v);
    UNROLL for (int r = 0; r < 4; r++) {
        _mm_storeu_ps(out[r] + o, _mm256_castps256_ps128(v[r]));
        _mm_storeu_ps(out[4 + r] + o, _mm256_extractf128_ps(v[r], 1));
    }
}

#define NAME(x) x##_8
#define VECTOR float8
#define MASKS mask8
#define SAMPLES 8
#define AT_LEAST(a, b) ((a) >= (b))
#define WIDE PTRDIFF_MAX
#include "_sign_product.h"
#endif

static INLINE float limited_1(float v, float low, float high)
{
    return v < low ? low : v > high ? high : v;
}

#ifdef VECTORS
typedef float float4 __attribute__((vector_size(16)));
typedef int32_t mask4 __attribute__((vector_size(16)));

static INLINE float4 limited_4(float4 v, float low, float high)
{
    for (int s = 0; s < 4; s++)
        v[s] = limited_1(v[s], low, high);
    return v;
}

static INLINE void columns_4(float4 *x, float rows[4][64])
{
    for (int i = 0; i < 64; i++)
        for (int s = 0; s < 4; s++)
            x[i][s] = rows[s][i];
}

static INLINE void write4_4(const float4 *sums, float *const *out, ptrdiff_t o)
{
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < 4; i++)
            out[s][o + i] = sums[i][s];
}

#define NAME(x) x##_4
#define TARGET
#define VECTOR float4
#define MASKS mask4
#define SAMPLES 4
#define AT_LEAST(a, b) ((a) >= (b))
#define WIDE 224
#include "_sign_product.h"
#endif

static INLINE void columns_1(float *x, float rows[1][64])
{
    memcpy(x, rows[0], 64 * sizeof *x);
}

static INLINE void write4_1(const float *sums, float *const *out, ptrdiff_t o)
{
    memcpy(out[0] + o, sums, 4 * sizeof *sums);
}

#define NAME(x) x##_1
#define TARGET
#define VECTOR float
#define MASKS int32_t
#define SAMPLES 1
#define AT_LEAST(a, b) -(int32_t)((a) >= (b))
#define WIDE 224
#include "_sign_product.h"

/* Products with binary weights, for keras_qpsbgd.inference.

   A bit 1 stands for +1 and a bit 0 for -1. The functions receive contiguous
   buffers and check their sizes. They release the GIL. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __ARM_NEON
#include <arm_neon.h>
#endif

/* GCC compiles functions with CLONES for newer x86 processors as well and
   selects one when the module is loaded. On ARM, NEON is always there. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) \
    && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx2", "popcnt", "default")))
#else
#define CLONES
#endif

#define GROUPS 8 /* groups of 8 inputs in a word of the kernel */
#define WIDE 224 /* number of outputs from which tables of 256 are faster */

/* Other compilers, such as Microsoft's, have no vector types. There, each sample
   is computed alone, with the same results. PORTABLE is for tests of this. */
#if defined(__GNUC__) && !defined(_WIN32) && !defined(PORTABLE)
#define BATCH 4 /* samples that are computed together */
#define ALLOCATE(size) aligned_alloc(64, ((size) + 63) / 64 * 64)
#define COUNT_BITS(x) __builtin_popcountll(x)
#define HIDE(x) __asm__("" : "+r"(x))

typedef float float4 __attribute__((vector_size(16)));

#define VECTOR float4
#define SAMPLES 4
#define SHIFT 4
#define NAME(x) x##_4
#define PUT(v, s, x) (v)[s] = (x)
#define GET(v, s) (v)[s]
#include "_sign_product.h"
#undef VECTOR
#undef SAMPLES
#undef SHIFT
#undef NAME
#undef PUT
#undef GET
#else
#define BATCH 1
#define ALLOCATE(size) malloc(size)
#define COUNT_BITS(x) count_bits(x)
#define HIDE(x) ((void)0)

static int count_bits(uint64_t x)
{
    x -= (x >> 1) & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + ((x >> 2) & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return (int)((x * 0x0101010101010101u) >> 56);
}
#endif

#define VECTOR float
#define SAMPLES 1
#define SHIFT 2
#define NAME(x) x##_1
#define PUT(v, s, x) (v) = (x)
#define GET(v, s) (v)
#include "_sign_product.h"

static int sign_product(const float *x, const uint64_t *kernel, float *out,
                        ptrdiff_t rows, ptrdiff_t n, ptrdiff_t outputs)
{
    float *sums = ALLOCATE(outputs * BATCH * sizeof *sums);
    if (!sums)
        return -1;
    for (ptrdiff_t r = 0; r < rows; r += BATCH) {
        const float *in[BATCH];
        float *to[BATCH];
        for (int s = 0; s < BATCH; s++) {
            in[s] = r + s < rows ? x + (r + s) * n : NULL;
            to[s] = r + s < rows ? out + (r + s) * outputs : NULL;
        }
#if BATCH > 1
        if (rows - r > 1)
            rows_4(in, kernel, to, (float4 *)sums, n, outputs);
        else
#endif
            rows_1(in, kernel, to, sums, n, outputs);
    }
    free(sums);
    return 0;
}

#ifdef __ARM_NEON
/* Numbers of different bits of `count` rows (1 or 2) and 4 outputs. */
static inline __attribute__((always_inline)) void
tile(const uint8_t *a, const uint8_t *w, ptrdiff_t bytes, int count,
     int32_t *out, ptrdiff_t outputs, int32_t n)
{
    uint16x8_t wide[2][4];
    for (int i = 0; i < count; i++)
        for (int j = 0; j < 4; j++)
            wide[i][j] = vdupq_n_u16(0);
    for (ptrdiff_t first = 0; first < bytes; first += 31 * 16) {
        /* A byte can hold the sum of 31 counts. */
        ptrdiff_t end = first + 31 * 16 < bytes ? first + 31 * 16 : bytes;
        uint8x16_t sum[2][4];
        for (int i = 0; i < count; i++)
            for (int j = 0; j < 4; j++)
                sum[i][j] = vdupq_n_u8(0);
        for (ptrdiff_t c = first; c < end; c += 16)
            for (int j = 0; j < 4; j++) {
                uint8x16_t weights = vld1q_u8(w + j * bytes + c);
                for (int i = 0; i < count; i++) {
                    uint8x16_t x = vld1q_u8(a + i * bytes + c);
                    x = vcntq_u8(veorq_u8(x, weights));
                    sum[i][j] = vaddq_u8(sum[i][j], x);
                }
            }
        for (int i = 0; i < count; i++)
            for (int j = 0; j < 4; j++)
                wide[i][j] = vpadalq_u8(wide[i][j], sum[i][j]);
    }
    for (int i = 0; i < count; i++) {
        uint32x4_t p[4];
        for (int j = 0; j < 4; j++)
            p[j] = vpaddlq_u16(wide[i][j]);
        p[0] = vpaddq_u32(vpaddq_u32(p[0], p[1]), vpaddq_u32(p[2], p[3]));
        int32x4_t doubled = vshlq_n_s32(vreinterpretq_s32_u32(p[0]), 1);
        vst1q_s32(out + i * outputs, vsubq_s32(vdupq_n_s32(n), doubled));
    }
}
/* The 16-bit sums in `wide` hold 2 x 248 per 31 x 16 bytes. */
#define MAX_TILE_BYTES (128 * 31 * 16)
#else
#define MAX_TILE_BYTES 0
#define tile(a, w, bytes, count, out, outputs, n) ((void)0)
#endif

CLONES static void
xnor_product(const uint64_t *a, const uint64_t *w, int32_t *out,
             ptrdiff_t rows, ptrdiff_t words, ptrdiff_t outputs, int32_t n)
{
    ptrdiff_t bytes = words * 8;
    int tiles = bytes % 16 == 0 && bytes <= MAX_TILE_BYTES;
    /* The weights of a block of outputs stay in the first cache. */
    for (ptrdiff_t first = 0; first < outputs; first += 64) {
        ptrdiff_t end = first + 64 < outputs ? first + 64 : outputs;
        for (ptrdiff_t r = 0; r < rows;) {
            int count = rows - r > 1 ? 2 : 1;
            const uint64_t *x = a + r * words;
            int32_t *to = out + r * outputs;
            ptrdiff_t o = first;
            for (; tiles && o + 4 <= end; o += 4) {
                const uint8_t *weights = (const uint8_t *)(w + o * words);
                (void)weights;
                if (count == 2)
                    tile((const uint8_t *)x, weights, bytes, 2, to + o,
                         outputs, n);
                else
                    tile((const uint8_t *)x, weights, bytes, 1, to + o,
                         outputs, n);
            }
            for (; o < end; o++)
                for (int i = 0; i < count; i++) {
                    int64_t different = 0;
                    for (ptrdiff_t k = 0; k < words; k++)
                        different += COUNT_BITS(x[i * words + k]
                                                ^ w[o * words + k]);
                    to[i * outputs + o] = (int32_t)(n - 2 * different);
                }
            r += count;
        }
    }
}

typedef struct {
    Py_buffer x, kernel, out;
    Py_ssize_t rows, n, outputs;
} Arguments;

static void release(Arguments *a)
{
    PyBuffer_Release(&a->x);
    PyBuffer_Release(&a->kernel);
    PyBuffer_Release(&a->out);
}

/* Reads (x, kernel, out, rows, n, outputs) and checks the sizes in bytes. A
   row of bits may have spare words at its end. */
static int parse(PyObject *args, Arguments *a, int is_binary)
{
    if (!PyArg_ParseTuple(args, "y*y*w*nnn", &a->x, &a->kernel, &a->out,
                          &a->rows, &a->n, &a->outputs))
        return -1;
    Py_ssize_t limit = (Py_ssize_t)1 << 30;
    int valid = a->rows >= 0 && a->n > 0 && a->outputs > 0 && a->rows < limit
                && a->n < limit && a->outputs < limit;
    if (valid) {
        Py_ssize_t words = (a->n + 63) / 64;
        Py_ssize_t row = is_binary ? a->x.len / (a->rows ? a->rows : 1)
                                   : a->n * 4;
        if (is_binary) {
            valid = row % 8 == 0 && row >= words * 8;
            words = row / 8;
        }
        valid = valid && a->x.len == a->rows * row
                && a->kernel.len == words * 8 * a->outputs
                && a->out.len == a->rows * a->outputs * 4;
    }
    if (!valid && a->rows != 0) {
        release(a);
        PyErr_SetString(PyExc_ValueError, "the sizes do not match");
        return -1;
    }
    return 0;
}

static PyObject *py_sign_product(PyObject *self, PyObject *args)
{
    (void)self;
    Arguments a;
    int failed;
    if (parse(args, &a, 0))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    failed = sign_product(a.x.buf, a.kernel.buf, a.out.buf, a.rows, a.n,
                          a.outputs);
    Py_END_ALLOW_THREADS
    release(&a);
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *py_xnor_product(PyObject *self, PyObject *args)
{
    (void)self;
    Arguments a;
    if (parse(args, &a, 1))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    if (a.rows)
        xnor_product(a.x.buf, a.kernel.buf, a.out.buf, a.rows,
                     a.x.len / a.rows / 8, a.outputs, (int32_t)a.n);
    Py_END_ALLOW_THREADS
    release(&a);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"sign_product", py_sign_product, METH_VARARGS,
     "Writes x @ kernel to out. x: float32 (rows, n). kernel: uint64 "
     "(ceil(n / 64), outputs). out: float32 (rows, outputs)."},
    {"xnor_product", py_xnor_product, METH_VARARGS,
     "Writes x @ kernel to out. x: uint64 (rows, words). kernel: uint64 "
     "(outputs, words). out: int32 (rows, outputs)."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    return PyModule_Create(&module);
}

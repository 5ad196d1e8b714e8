/* Products with binary weights, for keras_qpsbgd.inference.

   A bit 1 stands for +1 and a bit 0 for -1. The functions receive contiguous
   buffers and check their sizes. They release the GIL. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Other compilers, such as Microsoft's, have no vector types. There, each sample
   is computed alone, with the same results. PORTABLE is for tests of this. */
#if defined(__GNUC__) && !defined(_WIN32) && !defined(PORTABLE)
#define VECTORS
#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define ALLOCATE(size) aligned_alloc(64, ((size) + 63) / 64 * 64)
#define COUNT_BITS(x) (uint64_t)__builtin_popcountll(x)
#define HIDE(x) __asm__("" : "+r"(x))
#if defined(__x86_64__)
#define X86
#endif
#else
#define INLINE inline
#define UNROLL
#define ALLOCATE(size) malloc(size)
#define COUNT_BITS(x) count_bits(x)
#define HIDE(x) ((void)0)

static uint64_t count_bits(uint64_t x)
{
    x -= (x >> 1) & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + ((x >> 2) & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return (x * 0x0101010101010101u) >> 56;
}
#endif

#include "_patches.h"

#include "_bit_variants.h"

#include "_sign_variants.h"

typedef struct {
    const char *name;
    Tile *tile;
    int tile_size;
    Positions *positions;
    int samples;
} Variant;

#define MAX_TILE 16
#define MAX_VARIANTS 4
static Variant variants[MAX_VARIANTS]; /* the fastest one first */
static int variant_count;

static void add_variant(const char *name, Tile *tile, int tile_size,
                        Positions *positions, int samples)
{
    Variant new = {name, tile, tile_size, positions, samples};
    variants[variant_count++] = new;
}

/* Finds out what the processor can do. */
static void find_variants(void)
{
    variant_count = 0;
#ifdef X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("avx512bw")) {
        if (__builtin_cpu_supports("avx512vpopcntdq"))
            add_variant("AVX-512 VPOPCNTDQ", tile_popcnt, 8, positions_16, 16);
        add_variant("AVX-512 BW", tile_wide, 4, positions_16, 16);
    }
    if (__builtin_cpu_supports("avx2"))
        add_variant("AVX2", tile_avx2, 4, positions_8, 8);
#endif
#ifdef VECTORS
    add_variant("plain", tile_plain, 2, positions_4, 4);
#else
    add_variant("plain", tile_plain, 2, positions_1, 1);
#endif
}

/* Computes the rows of positions from `start` to `stop`. */

static int sign_product(const Geometry *g, const Variant *variant,
                        const float *x, const uint64_t *kernel,
                        const Output *to, void *out, int64_t start,
                        int64_t stop)
{
    int64_t size = to->limits ? (g->outputs + 63) / 64 * 8 : g->outputs * 4;
    float *space = ALLOCATE((size_t)(g->outputs * to->planes
                                     * variant->samples) * sizeof *space);
    if (!space)
        return -1;
    int64_t end = stop * g->counts[1];
    for (int64_t p = start * g->counts[1]; p < end; p += variant->samples) {
        Patch patches[MAX_TILE];
        void *places[MAX_TILE];
        int count = end - p < variant->samples ? (int)(end - p)
                                               : variant->samples;
        for (int s = 0; s < count; s++) {
            patches[s] = patch_at(g, x, p + s);
            places[s] = (char *)out + (p + s) * size;
        }
        if (count == 1)
            positions_1(g, patches, 1, kernel, to, space, places);
        else
            variant->positions(g, patches, count, kernel, to, space, places);
    }
    free(space);
    return 0;
}

/* Lists the words of the places inside of the image, for some positions. */
static void find_taps(const Geometry *g, Run rows, Run columns,
                      ptrdiff_t words, ptrdiff_t *offsets, ptrdiff_t *places,
                      Taps *taps)
{
    ptrdiff_t n = 0;
    for (int64_t i = rows.low; i < rows.high; i++)
        for (int64_t j = columns.low; j < columns.high; j++)
            for (ptrdiff_t k = 0; k < words; k++) {
                int64_t pixel = (i - rows.low) * g->dilations[0] * g->width
                              + (j - columns.low) * g->dilations[1];
                offsets[n] = (ptrdiff_t)pixel * words + k;
                places[n++] = (ptrdiff_t)((i * g->size[1] + j) * words + k) * 8;
            }
    taps->words = n;
    taps->inputs = n / words * g->channels;
}

static int bit_product(const Geometry *g, const Variant *variant,
                       const uint64_t *x, const uint64_t *kernel,
                       const int32_t *limits, void *out, int64_t start,
                       int64_t stop)
{
    ptrdiff_t words = (ptrdiff_t)((g->channels + 63) / 64);
    ptrdiff_t total = (ptrdiff_t)(g->size[0] * g->size[1]) * words;
    ptrdiff_t outputs = (ptrdiff_t)g->outputs;
    ptrdiff_t padded = (outputs + 7) / 8 * 8;
    ptrdiff_t size = limits ? (outputs + 63) / 64 * 8 : outputs * 4;
    ptrdiff_t *offsets = malloc((size_t)(2 * total) * sizeof *offsets);
    int64_t *most = malloc((size_t)padded * sizeof *most);
    if (!offsets || !most) {
        free(offsets);
        free(most);
        return -1;
    }
    Taps taps = {0, offsets, offsets + total, total * 8, 0,
                 limits ? most : NULL};
    Run rows, columns;
    for (int64_t y = 0; y < g->counts[0]; y = rows.stop) {
        rows = next_run(g, 0, y);
        for (int64_t column = 0; column < g->counts[1]; column = columns.stop) {
            columns = next_run(g, 1, column);
            find_taps(g, rows, columns, words, offsets, offsets + total, &taps);
            for (ptrdiff_t o = 0; limits && o < padded; o++)
                /* Rounded down. Spare bits are 0. */
                most[o] = o < outputs ? (taps.inputs - limits[o]) >> 1 : -1;
            const uint64_t *from[MAX_TILE];
            void *to[MAX_TILE];
            int count = 0;
            for (int64_t r = start; r < stop; r++) {
                int64_t image = r / g->counts[0], row = r % g->counts[0];
                if (row < rows.start || row >= rows.stop)
                    continue;
                row = row * g->strides[0] - g->margins[0]
                    + rows.low * g->dilations[0];
                for (int64_t c = columns.start; c < columns.stop; c++) {
                    int64_t pixel = (image * g->height + row) * g->width
                                  + c * g->strides[1] - g->margins[1]
                                  + columns.low * g->dilations[1];
                    from[count] = taps.words ? x + pixel * words : x;
                    to[count++] = (char *)out + (r * g->counts[1] + c) * size;
                    if (count == variant->tile_size) {
                        variant->tile(from, count, &taps, kernel, outputs, to);
                        count = 0;
                    }
                }
            }
            if (count)
                variant->tile(from, count, &taps, kernel, outputs, to);
        }
    }
    free(offsets);
    free(most);
    return 0;
}

/* The functions of the module */

typedef struct {
    Py_buffer geometry, x, kernel, out, limits, scale, shift;
    Geometry sizes;
    const Variant *variant;
    Py_ssize_t start, stop;
} Arguments;

static void release(Arguments *a)
{
    PyBuffer_Release(&a->geometry);
    PyBuffer_Release(&a->x);
    PyBuffer_Release(&a->kernel);
    PyBuffer_Release(&a->out);
    PyBuffer_Release(&a->limits);
    PyBuffer_Release(&a->scale);
    PyBuffer_Release(&a->shift);
}

/* Returns whether a buffer has `a * b * c * d` bytes. */
static int has_size(const Py_buffer *buffer, int64_t a, int64_t b, int64_t c,
                    int64_t d)
{
    const int64_t limit = (int64_t)1 << 30; /* of each number */
    int64_t size = buffer->len;
    if (a < 0 || a > limit || b > limit || c > limit || d > limit)
        return 0;
    if (a == 0)
        return size == 0;
    if (a * b > size || a * b > INT64_MAX / c || a * b * c > size
        || a * b * c > INT64_MAX / d)
        return 0;
    return a * b * c * d == size;
}

/* Checks the sizes of the arguments of both functions. */
static int is_valid(Arguments *a, int number, int is_binary, int planes)
{
    if (a->geometry.len != sizeof a->sizes || number < 0
        || number >= variant_count || planes < 1 || planes > 4)
        return 0;
    memcpy(&a->sizes, a->geometry.buf, sizeof a->sizes);
    a->variant = variants + number;
    const Geometry *g = &a->sizes;
    const int64_t limit = (int64_t)1 << 30, small = (int64_t)1 << 20;
    if (g->images < 0 || g->height < 1 || g->width < 1 || g->channels < 1
        || g->outputs < 1 || g->outputs > limit || g->channels > limit)
        return 0;
    for (int axis = 0; axis < 2; axis++)
        if (g->size[axis] < 1 || g->size[axis] > small || g->strides[axis] < 1
            || g->strides[axis] > small || g->dilations[axis] < 1
            || g->dilations[axis] > small || g->margins[axis] < 0
            || g->margins[axis] > limit || g->counts[axis] < 0
            || g->counts[axis] > limit)
            return 0;
    int64_t places = g->size[0] * g->size[1];
    int64_t positions = g->counts[0] * g->counts[1];
    if (places > limit || g->channels * places > limit || positions > limit
        || g->height > limit || g->width > limit)
        return 0;
    int64_t inputs = places * g->channels, words = (g->channels + 63) / 64;
    int64_t out = a->limits.buf ? (g->outputs + 63) / 64 * 8 : g->outputs * 4;
    int valid = a->start >= 0 && a->start <= a->stop
             && a->stop <= g->images * g->counts[0] && g->images <= limit
             && (!a->limits.buf || has_size(&a->limits, g->outputs, 4, 1, 1));
    if (positions == 0)
        valid = valid && a->out.len == 0;
    else
        valid = valid && has_size(&a->out, g->images, positions, out, 1);
    if (is_binary)
        return valid
            && has_size(&a->x, g->images, g->height * g->width, words, 8)
            && has_size(&a->kernel, (g->outputs + 7) / 8, 64, places, words);
    return valid
        && has_size(&a->x, g->images, g->height * g->width, g->channels, 4)
        && has_size(&a->kernel, (inputs + 63) / 64, 8, planes, g->outputs)
        && (!a->scale.buf
            || (has_size(&a->scale, g->outputs, 4, 1, 1)
                && has_size(&a->shift, g->outputs, 4, 1, 1)));
}

static PyObject *finished(Arguments *a, int valid, int failed)
{
    release(a);
    if (!valid) {
        PyErr_SetString(PyExc_ValueError, "the sizes do not match");
        return NULL;
    }
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *py_bit_product(PyObject *self, PyObject *args)
{
    (void)self;
    Arguments a;
    int number, failed = 0;
    memset(&a, 0, sizeof a);
    if (!PyArg_ParseTuple(args, "iy*y*y*z*w*nn", &number, &a.geometry, &a.x,
                          &a.kernel, &a.limits, &a.out, &a.start, &a.stop))
        return NULL;
    int valid = is_valid(&a, number, 1, 1);
    if (valid) {
        Py_BEGIN_ALLOW_THREADS
        failed = bit_product(&a.sizes, a.variant, a.x.buf, a.kernel.buf,
                             a.limits.buf, a.out.buf, a.start, a.stop);
        Py_END_ALLOW_THREADS
    }
    return finished(&a, valid, failed);
}

static PyObject *py_sign_product(PyObject *self, PyObject *args)
{
    (void)self;
    Arguments a;
    Output to;
    int number, failed = 0;
    memset(&a, 0, sizeof a);
    if (!PyArg_ParseTuple(args, "iy*y*y*iz*z*z*ffw*nn", &number, &a.geometry,
                          &a.x, &a.kernel, &to.planes, &a.limits, &a.scale,
                          &a.shift, &to.low, &to.high, &a.out, &a.start,
                          &a.stop))
        return NULL;
    int valid = is_valid(&a, number, 0, to.planes);
    if (valid) {
        const Geometry *g = &a.sizes;
        to.inputs = (ptrdiff_t)(g->size[0] * g->size[1] * g->channels);
        to.limits = a.limits.buf;
        to.scale = a.scale.buf;
        to.shift = a.shift.buf;
        Py_BEGIN_ALLOW_THREADS
        failed = sign_product(g, a.variant, a.x.buf, a.kernel.buf, &to,
                              a.out.buf, a.start, a.stop);
        Py_END_ALLOW_THREADS
    }
    return finished(&a, valid, failed);
}

static PyObject *py_variants(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    PyObject *names = PyTuple_New(variant_count);
    for (int i = 0; names && i < variant_count; i++) {
        PyObject *name = PyUnicode_FromString(variants[i].name);
        if (!name) {
            Py_DECREF(names);
            return NULL;
        }
        PyTuple_SET_ITEM(names, i, name);
    }
    return names;
}

static PyMethodDef methods[] = {
    {"bit_product", py_bit_product, METH_VARARGS,
     "bit_product(variant, geometry, x, kernel, limits, out, start, stop): "
     "products of bits. kernel: uint64 (ceil(outputs / 8), places, words, 8). "
     "Without limits, out is int32, otherwise words."},
    {"sign_product", py_sign_product, METH_VARARGS,
     "sign_product(variant, geometry, x, kernel, planes, limits, scale, shift, "
     "low, high, out, start, stop): products of float32 inputs. kernel: uint64 "
     "(ceil(inputs / 64), planes, outputs)."},
    {"variants", py_variants, METH_NOARGS,
     "Returns the names of the sets of instructions that can be used."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    find_variants();
    return PyModule_Create(&module);
}

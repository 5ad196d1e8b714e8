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
   is computed alone, with the same results. Tests define PORTABLE. */
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
#include "_products.h"

/* The arguments of a function. Buffers that are not given are NULL. */
typedef struct {
    Py_buffer geometry, x, kernel, out, limits, scale, shift;
    Geometry sizes;
    Py_ssize_t start, stop;
    int variant;
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

/* Returns whether a buffer is missing or has `a * b * c * d` bytes. */
static int has_size(const Py_buffer *buffer, int64_t a, int64_t b, int64_t c,
                    int64_t d)
{
    const int64_t numbers[] = {a, b, c, d};
    int64_t size = 1;
    if (!buffer->buf)
        return 1;
    for (int i = 0; i < 4; i++) {
        if (numbers[i] == 0)
            return buffer->len == 0;
        if (numbers[i] > INT64_MAX / size)
            return 0;
        size *= numbers[i];
    }
    return buffer->len == size;
}

/* Reads the sizes and returns whether they match. Wrong positions and margins
   do no harm, because places outside an image are not read. */
static int read_sizes(Arguments *a, int is_binary)
{
    Geometry *g = &a->sizes;
    int64_t numbers[sizeof *g / sizeof(int64_t)];
    if (a->geometry.len != sizeof *g || a->variant < 0
        || a->variant >= variant_count)
        return 0;
    memcpy(numbers, a->geometry.buf, sizeof numbers);
    memcpy(g, a->geometry.buf, sizeof *g);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i] < 0 || numbers[i] > (int64_t)1 << 30)
            return 0;
    for (int axis = 0; axis < 2; axis++)
        if (g->size[axis] < 1 || g->strides[axis] < 1 || g->dilations[axis] < 1
            || g->size[axis] > 1 << 15 || g->dilations[axis] > 1 << 15)
            return 0;
    if (g->height < 1 || g->width < 1 || g->channels < 1 || g->outputs < 1
        || g->size[0] * g->size[1] * g->channels > (int64_t)1 << 30)
        return 0;
    int64_t pixel = is_binary ? (g->channels + 63) / 64 * 8 : g->channels * 4;
    return has_size(&a->x, g->images, g->height, g->width, pixel)
        && a->start >= 0 && a->start <= a->stop
        && a->stop <= g->images * g->counts[0];
}

/* Returns whether `out` and the arrays of the outputs have the right size. */
static int has_outputs(const Arguments *a, int is_binary)
{
    const Geometry *g = &a->sizes;
    int64_t pixel = is_binary ? (g->outputs + 63) / 64 * 8 : g->outputs * 4;
    return has_size(&a->out, g->images, g->counts[0], g->counts[1], pixel)
        && has_size(&a->limits, g->outputs, 4, 1, 1)
        && has_size(&a->scale, g->outputs, 4, 1, 1)
        && has_size(&a->shift, g->outputs, 4, 1, 1)
        && !a->scale.buf == !a->shift.buf;
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
    int failed = 0;
    memset(&a, 0, sizeof a);
    if (!PyArg_ParseTuple(args, "iy*y*y*z*w*nn", &a.variant, &a.geometry, &a.x,
                          &a.kernel, &a.limits, &a.out, &a.start, &a.stop)) {
        release(&a);
        return NULL;
    }
    const Geometry *g = &a.sizes;
    int valid = read_sizes(&a, 1) && has_outputs(&a, a.limits.buf != NULL)
             && has_size(&a.kernel, (g->outputs + 7) / 8,
                         g->size[0] * g->size[1], (g->channels + 63) / 64, 64);
    if (valid) {
        Py_BEGIN_ALLOW_THREADS
        failed = bit_product(g, variants + a.variant, a.x.buf, a.kernel.buf,
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
    int failed = 0;
    memset(&a, 0, sizeof a);
    if (!PyArg_ParseTuple(args, "iy*y*y*iz*z*z*ffw*nn", &a.variant,
                          &a.geometry, &a.x, &a.kernel, &to.planes, &a.limits,
                          &a.scale, &a.shift, &to.low, &to.high, &a.out,
                          &a.start, &a.stop)) {
        release(&a);
        return NULL;
    }
    const Geometry *g = &a.sizes;
    int valid = read_sizes(&a, 0) && has_outputs(&a, a.limits.buf != NULL)
             && to.planes >= 1 && to.planes <= 4;
    if (valid) {
        to.inputs = (ptrdiff_t)(g->size[0] * g->size[1] * g->channels);
        to.limits = a.limits.buf;
        to.scale = a.scale.buf;
        to.shift = a.shift.buf;
        valid = has_size(&a.kernel, (to.inputs + 63) / 64, to.planes,
                         g->outputs, 8);
    }
    if (valid) {
        Py_BEGIN_ALLOW_THREADS
        failed = sign_product(g, variants + a.variant, a.x.buf, a.kernel.buf,
                              &to, a.out.buf, a.start, a.stop);
        Py_END_ALLOW_THREADS
    }
    return finished(&a, valid, failed);
}

static PyObject *py_bit_pool(PyObject *self, PyObject *args)
{
    (void)self;
    Arguments a;
    Py_buffer keep = {0}, flip = {0};
    memset(&a, 0, sizeof a);
    int valid = PyArg_ParseTuple(args, "y*y*z*z*w*", &a.geometry, &a.x, &keep,
                                 &flip, &a.out);
    if (!valid) {
        release(&a);
        PyBuffer_Release(&keep);
        PyBuffer_Release(&flip);
        return NULL;
    }
    const Geometry *g = &a.sizes;
    valid = read_sizes(&a, 1) && has_outputs(&a, 1)
         && g->outputs == g->channels && !keep.buf == !flip.buf
         && has_size(&keep, (g->channels + 63) / 64, 8, 1, 1)
         && has_size(&flip, (g->channels + 63) / 64, 8, 1, 1);
    if (valid) {
        Py_BEGIN_ALLOW_THREADS
        if (g->counts[0] && g->counts[1])
            bit_pool(g, a.x.buf, keep.buf, flip.buf, a.out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&keep);
    PyBuffer_Release(&flip);
    return finished(&a, valid, 0);
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

/* `geometry` has the numbers of `Geometry`, and rows of positions from `start`
   to `stop` are computed. */
static PyMethodDef methods[] = {
    {"bit_product", py_bit_product, METH_VARARGS,
     "bit_product(variant, geometry, x, kernel, limits, out, start, stop): "
     "products of bits. kernel: uint64 (ceil(outputs / 8), places, words, 8). "
     "out: int32, or words if there are limits."},
    {"sign_product", py_sign_product, METH_VARARGS,
     "sign_product(variant, geometry, x, kernel, planes, limits, scale, shift, "
     "low, high, out, start, stop): products of float32 inputs. kernel: uint64 "
     "(ceil(inputs / 64), planes, outputs). out: float32, or words."},
    {"bit_pool", py_bit_pool, METH_VARARGS,
     "bit_pool(geometry, x, keep, flip, out): the largest signs of windows, "
     "then `& keep ^ flip`. All arrays are words."},
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

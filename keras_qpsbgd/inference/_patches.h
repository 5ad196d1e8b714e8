/* The patches of images, or the rows of a matrix as images of one pixel. */

typedef struct {
    int64_t images, height, width, channels, outputs;
    int64_t size[2], strides[2], dilations[2]; /* of the window */
    int64_t margins[2];                        /* above and to the left */
    int64_t counts[2];                         /* positions of the window */
} Geometry;

/* The places of the window that are inside the image, at some positions. */
typedef struct {
    int64_t start, stop; /* positions */
    int64_t low, high;   /* places of the window */
} Run;

/* Returns the run of positions from `start` on with the same places inside. */
static Run next_run(const Geometry *g, int axis, int64_t start)
{
    int64_t length = axis ? g->width : g->height;
    Run run = {start, start, 0, 0};
    for (; run.stop < g->counts[axis]; run.stop++) {
        int64_t first = run.stop * g->strides[axis] - g->margins[axis];
        int64_t step = g->dilations[axis], low = 0;
        if (first < 0)
            low = (-first + step - 1) / step;
        int64_t high = first < length ? (length - first + step - 1) / step : 0;
        if (high > g->size[axis])
            high = g->size[axis];
        if (low > high)
            low = high;
        if (run.stop > start && (low != run.low || high != run.high))
            break;
        run.low = low;
        run.high = high;
    }
    return run;
}

/* The patch at one position. Its first place may be outside the image. */
typedef struct {
    ptrdiff_t start;  /* number of its first input in all images */
    ptrdiff_t row;    /* of the image */
    ptrdiff_t column; /* number of its first input in the row */
} Patch;

/* A position, which moves through all images. */
typedef struct {
    int64_t image, row, column;
} Position;

static Position position_at(const Geometry *g, int64_t row)
{
    Position at = {row / g->counts[0], row % g->counts[0], 0};
    return at;
}

static INLINE void move(const Geometry *g, Position *at)
{
    if (++at->column < g->counts[1])
        return;
    at->column = 0;
    if (++at->row < g->counts[0])
        return;
    at->row = 0;
    at->image++;
}

static INLINE Patch patch_at(const Geometry *g, const Position *at)
{
    Patch patch;
    patch.row = (ptrdiff_t)(at->row * g->strides[0] - g->margins[0]);
    patch.column = (ptrdiff_t)((at->column * g->strides[1] - g->margins[1])
                               * g->channels);
    patch.start = (ptrdiff_t)((at->image * g->height + patch.row) * g->width
                              * g->channels)
                + patch.column;
    return patch;
}

/* Copies a few numbers without a function call. */
static INLINE void copy(float *to, const float *from, ptrdiff_t n)
{
    ptrdiff_t i = 0;
    for (; i + 4 <= n; i += 4) {
        memcpy(to + i, from + i, 4 * sizeof *to);
        HIDE(i); /* otherwise the compiler calls a function */
    }
    if (n & 2) {
        memcpy(to + i, from + i, 2 * sizeof *to);
        i += 2;
    }
    if (n & 1)
        to[i] = from[i];
}

/* Writes the inputs of patches from `first` to `end`, at most 64, to `rows`.
   Those outside of an image are 0. */
static INLINE void gather(const Geometry *g, const float *images,
                          const Patch *patches, int count, ptrdiff_t first,
                          ptrdiff_t end, float (*rows)[64])
{
    /* Without dilation, a row of a patch is contiguous in the image. */
    int is_dense = g->dilations[1] == 1;
    ptrdiff_t channels = (ptrdiff_t)g->channels;
    ptrdiff_t unit = is_dense ? (ptrdiff_t)g->size[1] * channels : channels;
    ptrdiff_t units = is_dense ? 1 : (ptrdiff_t)g->size[1];
    ptrdiff_t width = (ptrdiff_t)g->width * channels;
    for (ptrdiff_t k = first; k < end;) {
        ptrdiff_t place = k / unit, start = k % unit;
        ptrdiff_t size = unit - start < end - k ? unit - start : end - k;
        ptrdiff_t down = place / units * (ptrdiff_t)g->dilations[0];
        start += place % units * (ptrdiff_t)g->dilations[1] * channels;
        ptrdiff_t shift = down * width + start;
        float *to = *rows + (k - first);
        for (int s = 0; s < count; s++, to += 64) {
            ptrdiff_t row = patches[s].row + down;
            ptrdiff_t from = patches[s].column + start;
            ptrdiff_t low = from < 0 ? -from : 0;
            ptrdiff_t high = width - from < size ? width - from : size;
            if (row < 0 || row >= g->height || low >= high)
                low = high = 0;
            if (high - low < size)
                memset(to, 0, (size_t)size * sizeof *to);
            copy(to + low, images + (patches[s].start + shift + low),
                 high - low);
        }
        k += size;
    }
}

/* The products of all positions, with the instruction sets that the processor
   supports. */

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

/* Detects the instruction sets that the processor supports. */
static void find_variants(void)
{
    variant_count = 0;
#ifdef X86
    __builtin_cpu_init();
    int has_bmi2 = __builtin_cpu_supports("bmi2");
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && has_bmi2) {
        if (__builtin_cpu_supports("avx512vpopcntdq"))
            add_variant("AVX-512 VPOPCNTDQ", tile_popcnt, 8, positions_16, 16);
        add_variant("AVX-512 BW", tile_wide, 4, positions_16, 16);
    }
    if (__builtin_cpu_supports("avx2") && has_bmi2)
        add_variant("AVX2", tile_avx2, 4, positions_8, 8);
#endif
#ifdef VECTORS
    add_variant("plain", tile_plain, 2, positions_4, 4);
#else
    add_variant("plain", tile_plain, 2, positions_1, 1);
#endif
}

/* These functions compute the rows of positions from `start` to `stop`. */

static int sign_product(const Geometry *g, const Variant *variant,
                        const float *x, const uint64_t *kernel,
                        const Output *to, void *out, int64_t start,
                        int64_t stop)
{
    if (start == stop)
        return 0;
    int64_t size = to->limits ? (g->outputs + 63) / 64 * 8 : g->outputs * 4;
    float *space = ALLOCATE((size_t)(g->outputs * to->planes
                                     * variant->samples) * sizeof *space);
    if (!space)
        return -1;
    int64_t end = stop * g->counts[1];
    Position at = position_at(g, start);
    for (int64_t p = start * g->counts[1]; p < end; p += variant->samples) {
        Patch patches[MAX_TILE];
        void *places[MAX_TILE];
        int count = end - p < variant->samples ? (int)(end - p)
                                               : variant->samples;
        for (int s = 0; s < count; s++) {
            patches[s] = patch_at(g, &at);
            move(g, &at);
            places[s] = (char *)out + (p + s) * size;
        }
        if (count == 1)
            positions_1(g, x, patches, 1, kernel, to, space, places);
        else
            variant->positions(g, x, patches, count, kernel, to, space,
                               places);
    }
    free(space);
    return 0;
}

/* Lists the words of the places inside the image, for some positions. */
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
    if (start == stop)
        return 0;
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
            Position at = position_at(g, start);
            for (int64_t r = start; r < stop; r++, at.row++) {
                if (at.row == g->counts[0]) {
                    at.row = 0;
                    at.image++;
                }
                if (at.row < rows.start || at.row >= rows.stop)
                    continue;
                int64_t row = at.row * g->strides[0] - g->margins[0]
                            + rows.low * g->dilations[0];
                for (int64_t c = columns.start; c < columns.stop; c++) {
                    int64_t pixel = (at.image * g->height + row) * g->width
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

/* Returns the places inside the image, for a window that starts at `first`, as
   a `Run` of one position. */
static Run inside(const Geometry *g, int axis, int64_t first)
{
    int64_t length = axis ? g->width : g->height;
    Run run = {first, first, 0, g->size[axis]};
    while (run.low < run.high && first + run.low * g->dilations[axis] < 0)
        run.low++;
    while (run.low < run.high
           && first + (run.high - 1) * g->dilations[axis] >= length)
        run.high--;
    return run;
}

/* Writes +1 for each window in which any input is +1. If `keep` and `flip` are
   given, the result is `found & keep ^ flip`. */
static void bit_pool(const Geometry *g, const uint64_t *x, const uint64_t *keep,
                     const uint64_t *flip, uint64_t *out)
{
    ptrdiff_t words = (ptrdiff_t)((g->channels + 63) / 64);
    Position at = {0, 0, 0};
    for (; at.image < g->images; move(g, &at)) {
        Run rows = inside(g, 0, at.row * g->strides[0] - g->margins[0]);
        Run columns = inside(g, 1, at.column * g->strides[1] - g->margins[1]);
        for (ptrdiff_t k = 0; k < words; k++) {
            uint64_t found = 0;
            for (int64_t i = rows.low; i < rows.high; i++) {
                int64_t row = at.image * g->height + rows.start
                            + i * g->dilations[0];
                for (int64_t j = columns.low; j < columns.high; j++) {
                    int64_t column = columns.start + j * g->dilations[1];
                    found |= x[(row * g->width + column) * words + k];
                }
            }
            *out++ = keep ? (found & keep[k]) ^ flip[k] : found;
        }
    }
}

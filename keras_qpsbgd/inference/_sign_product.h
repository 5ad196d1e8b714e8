/* Products of real inputs with binary weights, for one vector type.

   This file is included once per type, with
     NAME(x)     the name of a function for this type
     TARGET      the attribute of functions that use it
     VECTOR      the type: a vector with one entry per position, or float
     MASKS       the same with 32-bit integers
     SAMPLES     its number of entries
     AT_LEAST(a, b)  -1 where `a` is at least the number `b`, and 0 elsewhere
     WIDE        number of outputs from which tables of 256 are faster
     NAME(limited)(v, low, high)  returns numbers from `low` to `high`, or NaN
     NAME(columns)(x, rows)   turns SAMPLES rows of 64 inputs into 64 vectors
     NAME(write4)(v, out, o)  writes the vectors of 4 outputs

   The weights of 8 inputs are a byte, so the products of these inputs with all
   outputs take only 256 values. They are computed once, in a table, and each
   output adds one of them. If the table is too large for the cache, two tables
   of 16 values are faster. Both give the same floats, because the 256 values
   are sums of them, and the order of the additions does not depend on SAMPLES. */

#define ENTRY_AT(table, shift)                                                 \
    (*(const VECTOR *)((const char *)(table) + (mask & ROTATED((shift) & 63))))
/* Processors have an instruction for this rotation. */
#define ROTATED(n) (bits >> (n) | bits << (64 - (n)) % 64)
#define LOG_SIZE (SAMPLES == 16 ? 6 : SAMPLES == 8 ? 5 : SAMPLES == 4 ? 4 : 2)

/* Computes the tables of a block of inputs. */
static TARGET void NAME(tables)(const VECTOR *x, VECTOR low[GROUPS][16],
                                VECTOR high[GROUPS][16], int groups)
{
    for (int g = 0; g < groups; g++)
        for (int half = 0; half < 2; half++) {
            VECTOR *t = half ? high[g] : low[g];
            const VECTOR *v = x + 8 * g + 4 * half;
            t[0] = -((v[0] + v[1]) + (v[2] + v[3]));
            UNROLL for (int k = 0; k < 4; k++)
                UNROLL for (int j = 0; j < 1 << k; j++)
                    t[(1 << k) + j] = t[j] + (v[k] + v[k]);
        }
}

/* Adds the products of one block of inputs, with tables of 256 values. */
static TARGET void NAME(add_wide)(VECTOR low[GROUPS][16],
                                  VECTOR high[GROUPS][16],
                                  const uint64_t *kernel, VECTOR *sums,
                                  ptrdiff_t outputs, int groups)
{
    VECTOR table[GROUPS][256];
    for (int g = 0; g < groups; g++)
        for (int h = 0; h < 16; h++)
            for (int l = 0; l < 16; l++)
                table[g][16 * h + l] = high[g][h] + low[g][l];
    /* Hide these from the compiler, which would otherwise compute the address
       of an entry with more instructions than a rotation and a mask. */
    const VECTOR *tables[GROUPS];
    uint64_t mask = 255 * sizeof(VECTOR);
    HIDE(mask);
    for (int g = 0; g < GROUPS; g++) {
        tables[g] = table[g];
        HIDE(tables[g]);
    }
#define ENTRY(g) ENTRY_AT(tables[g], 8 * (g) - LOG_SIZE)
    /* The last block may have few inputs. Other groups would add zeros. */
    if (groups == 2)
        for (ptrdiff_t o = 0; o < outputs; o++) {
            uint64_t bits = kernel[o];
            sums[o] += ENTRY(0) + ENTRY(1);
        }
    else
        for (ptrdiff_t o = 0; o < outputs; o++) {
            uint64_t bits = kernel[o];
            sums[o] += ((ENTRY(0) + ENTRY(1)) + (ENTRY(2) + ENTRY(3)))
                     + ((ENTRY(4) + ENTRY(5)) + (ENTRY(6) + ENTRY(7)));
        }
#undef ENTRY
}

/* The same with tables of 16 values. */
static TARGET void NAME(add_narrow)(VECTOR low[GROUPS][16],
                                    VECTOR high[GROUPS][16],
                                    const uint64_t *kernel, VECTOR *sums,
                                    ptrdiff_t outputs, int groups)
{
    uint64_t mask = 15 * sizeof(VECTOR);
    HIDE(mask);
#define ENTRY(g)                                                               \
    (ENTRY_AT(high[g], 8 * (g) + 4 - LOG_SIZE)                                 \
     + ENTRY_AT(low[g], 8 * (g) - LOG_SIZE))
    if (groups == 2)
        for (ptrdiff_t o = 0; o < outputs; o++) {
            uint64_t bits = kernel[o];
            sums[o] += ENTRY(0) + ENTRY(1);
        }
    else if (groups == 4)
        for (ptrdiff_t o = 0; o < outputs; o++) {
            uint64_t bits = kernel[o];
            sums[o] += (ENTRY(0) + ENTRY(1)) + (ENTRY(2) + ENTRY(3));
        }
    else
        for (ptrdiff_t o = 0; o < outputs; o++) {
            uint64_t bits = kernel[o];
            sums[o] += ((ENTRY(0) + ENTRY(1)) + (ENTRY(2) + ENTRY(3)))
                     + ((ENTRY(4) + ENTRY(5)) + (ENTRY(6) + ENTRY(7)));
        }
#undef ENTRY
}

/* Writes words with the bits of the sums that are at least `limits`. */
static TARGET void NAME(compare)(const VECTOR *sums, const float *limits,
                                 ptrdiff_t outputs, int count,
                                 void *const *out)
{
    for (ptrdiff_t first = 0; first < outputs; first += 64) {
        uint32_t words[2][SAMPLES] = {{0}};
        for (int half = 0; half < 2; half++) {
            ptrdiff_t o = first + 32 * half;
            ptrdiff_t end = o + 32 < outputs ? o + 32 : outputs;
            MASKS word;
            memset(&word, 0, sizeof word);
            for (uint32_t bit = 1; o < end; o++, bit <<= 1)
                word |= AT_LEAST(sums[o], limits[o]) & (int32_t)bit;
            memcpy(words[half], &word, sizeof word);
        }
        for (int s = 0; s < count; s++)
            ((uint64_t *)out[s])[first / 64] = words[0][s]
                                             | (uint64_t)words[1][s] << 32;
    }
}

/* Writes the sums, scaled and limited. */
static TARGET void NAME(scale)(VECTOR *sums, const Output *to,
                               ptrdiff_t outputs, int count,
                               void *const *out)
{
    for (ptrdiff_t o = 0; o < outputs; o++) {
        VECTOR v = sums[o];
        if (to->scale)
            v = v * to->scale[o] + to->shift[o];
        sums[o] = NAME(limited)(v, to->low, to->high);
    }
    ptrdiff_t done = 0;
    if (count == SAMPLES && SAMPLES > 1)
        for (; done + 4 <= outputs; done += 4)
            NAME(write4)(sums + done, (float *const *)out, done);
    for (int s = 0; s < count; s++)
        for (ptrdiff_t o = done; o < outputs; o++)
            ((float *)out[s])[o] = ((const float *)(sums + o))[s];
}

/* The products of `count` positions, at most SAMPLES. */
static TARGET void NAME(positions)(const Geometry *g, const float *images,
                                   const Patch *patches, int count,
                                   const uint64_t *kernel, const Output *to,
                                   void *space, void *const *out)
{
    VECTOR low[GROUPS][16], high[GROUPS][16], x[GROUPS * 8];
    float rows[SAMPLES][GROUPS * 8];
    VECTOR *sums = space;
    ptrdiff_t columns = (ptrdiff_t)g->outputs * to->planes;
    memset(sums, 0, columns * sizeof(VECTOR));
    for (ptrdiff_t first = 0; first < to->inputs; first += GROUPS * 8) {
        ptrdiff_t used = to->inputs - first;
        int groups = used <= 16 ? 2 : used <= 32 ? 4 : GROUPS;
        used = used < GROUPS * 8 ? used : GROUPS * 8;
        if (first == 0 || used < GROUPS * 8)
            memset(rows, 0, sizeof rows);
        gather(g, images, patches, count, first, first + used, rows);
        NAME(columns)(x, rows);
        if (columns < WIDE) {
            NAME(tables)(x, low, high, groups);
            NAME(add_narrow)(low, high, kernel, sums, columns, groups);
        } else {
            groups = groups == 4 ? GROUPS : groups;
            NAME(tables)(x, low, high, groups);
            NAME(add_wide)(low, high, kernel, sums, columns, groups);
        }
        kernel += columns;
    }
    ptrdiff_t outputs = (ptrdiff_t)g->outputs;
    for (int plane = 1; plane < to->planes; plane++)
        for (ptrdiff_t o = 0; o < outputs; o++)
            sums[o] += sums[plane * outputs + o] * (float)(1 << plane);
    if (to->limits)
        NAME(compare)(sums, to->limits, outputs, count, out);
    else
        NAME(scale)(sums, to, outputs, count, out);
}

#undef NAME
#undef TARGET
#undef VECTOR
#undef MASKS
#undef SAMPLES
#undef AT_LEAST
#undef WIDE
#undef ENTRY_AT
#undef ROTATED
#undef LOG_SIZE

/* Products of real inputs with binary weights, for one vector type.

   Included once per type, with
     NAME(x)     a name of a function for this type
     TARGET      the attribute of functions that use it
     VECTOR      the type: a vector with one entry per position, or float
     MASKS       the same with 32-bit integers
     SAMPLES     its number of entries
     AT_LEAST(a, b)  -1 where `a` is at least the number `b`, and 0 elsewhere
     WIDE        number of outputs from which tables of 256 are faster

   The weights of 8 inputs are a byte, so the products of these inputs with all
   outputs take only 256 values. They are computed once, in a table, and each
   output adds one of them. If the table is too large for the cache, two tables
   of 16 values are faster. Both give the same floats, because the 256 values
   are sums of them, and the order of the additions does not depend on SAMPLES. */

#define ENTRY_AT(table, shift)                                                 \
    (*(const VECTOR *)((const char *)(table)                                   \
                       + (mask & ((shift) < 0 ? bits << -(shift)               \
                                              : bits >> ((shift) & 63)))))
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
            for (int k = 0; k < 4; k++)
                for (int j = 0; j < 1 << k; j++)
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
    /* Hidden from the compiler, which would compute the address of an entry
       with more instructions: one for the mask with a shift is enough. */
    const VECTOR *tables[GROUPS];
    uint64_t mask = 255 * sizeof(VECTOR);
    HIDE(mask);
    for (int g = 0; g < GROUPS; g++) {
        tables[g] = table[g];
        HIDE(tables[g]);
    }
#define ENTRY(g) ENTRY_AT(tables[g], 8 * (g) - LOG_SIZE)
    /* The last block may have few inputs. The others would add zeros. */
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

/* Writes the sums of the bits of the weights, scaled and limited, or words with
   the bits of those that are at least `limits`. */
static TARGET void NAME(finish)(const VECTOR *sums, const Output *to,
                                ptrdiff_t outputs, int count,
                                void *const *out)
{
    MASKS word;
    memset(&word, 0, sizeof word);
    for (ptrdiff_t o = 0; o < outputs; o++) {
        VECTOR v = sums[o];
        for (int plane = 1; plane < to->planes; plane++)
            v += sums[plane * outputs + o] * (float)(1 << plane);
        if (to->limits) {
            word |= AT_LEAST(v, to->limits[o]) & (int)(1u << (o & 31));
            if ((o & 31) != 31 && o + 1 < outputs)
                continue;
            uint32_t words[SAMPLES];
            memcpy(words, &word, sizeof words);
            memset(&word, 0, sizeof word);
            for (int s = 0; s < count; s++) {
                uint64_t *place = (uint64_t *)out[s] + o / 64;
                *place = (o & 32 ? *place : 0)
                       | (uint64_t)words[s] << (o & 32);
            }
            continue;
        }
        if (to->scale)
            v = v * to->scale[o] + to->shift[o];
        float found[SAMPLES];
        memcpy(found, &v, sizeof found);
        for (int s = 0; s < count; s++) {
            float f = found[s];
            f = f < to->low ? to->low : f;
            f = f > to->high ? to->high : f;
            ((float *)out[s])[o] = f;
        }
    }
}

/* The products of `count` positions, at most SAMPLES. */
static TARGET void NAME(positions)(const Geometry *g, const Patch *patches,
                                   int count, const uint64_t *kernel,
                                   const Output *to, void *space,
                                   void *const *out)
{
    VECTOR low[GROUPS][16], high[GROUPS][16], x[GROUPS * 8];
    VECTOR *sums = space;
    ptrdiff_t columns = (ptrdiff_t)g->outputs * to->planes;
    memset(sums, 0, columns * sizeof(VECTOR));
    for (ptrdiff_t first = 0; first < to->inputs; first += GROUPS * 8) {
        ptrdiff_t used = to->inputs - first;
        int groups = used <= 16 ? 2 : used <= 32 ? 4 : GROUPS;
        used = used < GROUPS * 8 ? used : GROUPS * 8;
        memset(x, 0, sizeof x);
        gather(g, patches, count, first, first + used, (float *)x, SAMPLES);
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
    NAME(finish)(sums, to, (ptrdiff_t)g->outputs, count, out);
}

#undef NAME
#undef TARGET
#undef VECTOR
#undef MASKS
#undef SAMPLES
#undef AT_LEAST
#undef WIDE
#undef ENTRY_AT
#undef LOG_SIZE

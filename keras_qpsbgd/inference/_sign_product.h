/* Products of real rows with binary weights, for one vector type.

   Included once per type, with
     VECTOR      the type: a vector with one entry per sample, or float
     SAMPLES     its number of entries
     SHIFT       the binary logarithm of its size in bytes
     NAME(x)     a name of a function for this type
     PUT(v,s,x)  sets entry s of v
     GET(v,s)    returns entry s of v

   The weights of 8 inputs are a byte, so the products of these inputs with all
   outputs take only 256 values. They are computed once, in a table, and each
   output adds one of them. With few outputs, two tables of 16 values are
   faster. Both give the same floats, because the 256 values are sums of them,
   and the order of the additions does not depend on SAMPLES. */

static void NAME(block)(const float *const *rows, ptrdiff_t first, ptrdiff_t n,
                        VECTOR low[GROUPS][16], VECTOR high[GROUPS][16])
{
    VECTOR x[GROUPS * 8];
    ptrdiff_t used = n - first < GROUPS * 8 ? n - first : GROUPS * 8;
    memset(x, 0, sizeof x);
    for (int s = 0; s < SAMPLES; s++)
        if (rows[s])
            for (ptrdiff_t i = 0; i < used; i++)
                PUT(x[i], s, rows[s][first + i]);
    for (int g = 0; g < GROUPS; g++)
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
static void NAME(add_wide)(VECTOR low[GROUPS][16], VECTOR high[GROUPS][16],
                           const uint64_t *kernel, VECTOR *sums,
                           ptrdiff_t outputs, ptrdiff_t inputs)
{
    VECTOR table[GROUPS][256];
    for (int g = 0; g < GROUPS && (g < 2 || inputs > 16); g++)
        for (int h = 0; h < 16; h++)
            for (int l = 0; l < 16; l++)
                table[g][16 * h + l] = high[g][h] + low[g][l];
    /* Hidden from the compiler, which would compute the address of an entry
       with more instructions: one for the mask with a shift is enough. */
    const char *tables[GROUPS];
    uint64_t mask = 255 * sizeof(VECTOR);
    HIDE(mask);
    for (int g = 0; g < GROUPS; g++) {
        tables[g] = (const char *)table[g];
        HIDE(tables[g]);
    }
#define OFFSET(g) (mask & (bits >> (8 * (g) - SHIFT)))
#define ENTRY(g) (*(const VECTOR *)(tables[g] + OFFSET(g)))
#define FIRST (*(const VECTOR *)(tables[0] + (mask & (bits << SHIFT))))
    /* The last block may have few inputs. The others would add zeros. */
    if (inputs <= 16)
        for (ptrdiff_t o = 0; o < outputs; o++) {
            uint64_t bits = kernel[o];
            sums[o] += FIRST + ENTRY(1);
        }
    else
        for (ptrdiff_t o = 0; o < outputs; o++) {
            uint64_t bits = kernel[o];
            sums[o] += ((FIRST + ENTRY(1)) + (ENTRY(2) + ENTRY(3)))
                     + ((ENTRY(4) + ENTRY(5)) + (ENTRY(6) + ENTRY(7)));
        }
#undef FIRST
#undef OFFSET
#undef ENTRY
}

/* The same with tables of 16 values. */
static void NAME(add_narrow)(VECTOR low[GROUPS][16], VECTOR high[GROUPS][16],
                             const uint64_t *kernel, VECTOR *sums,
                             ptrdiff_t outputs)
{
#define ENTRY(g)                                                               \
    (high[g][(bits >> (8 * (g) + 4)) & 15] + low[g][(bits >> (8 * (g))) & 15])
    for (ptrdiff_t o = 0; o < outputs; o++) {
        uint64_t bits = kernel[o];
        sums[o] += ((ENTRY(0) + ENTRY(1)) + (ENTRY(2) + ENTRY(3)))
                 + ((ENTRY(4) + ENTRY(5)) + (ENTRY(6) + ENTRY(7)));
    }
#undef ENTRY
}

/* The products of SAMPLES rows. Rows that are NULL are left out. */
static void NAME(rows)(const float *const *rows, const uint64_t *kernel,
                       float *const *out, VECTOR *sums, ptrdiff_t n,
                       ptrdiff_t outputs)
{
    VECTOR low[GROUPS][16], high[GROUPS][16];
    memset(sums, 0, outputs * sizeof(VECTOR));
    for (ptrdiff_t first = 0; first < n; first += GROUPS * 8) {
        NAME(block)(rows, first, n, low, high);
        if (outputs < WIDE)
            NAME(add_narrow)(low, high, kernel, sums, outputs);
        else
            NAME(add_wide)(low, high, kernel, sums, outputs, n - first);
        kernel += outputs;
    }
    for (int s = 0; s < SAMPLES; s++)
        if (out[s])
            for (ptrdiff_t o = 0; o < outputs; o++)
                out[s][o] = GET(sums[o], s);
}

/* Products of bits for TILE positions and 8 outputs at a time, for one
   instruction set.

   This file is included once per instruction set, with
     NAME(x)   the name of a function for this instruction set
     TARGET    the attribute of functions that use it
     TILE      number of positions whose counts fit into the registers
     WORDS     vector of words, one per output
     LANES     its number of words
     LOAD(p)   loads it
     DIFFERENT(a, w)  the bits in which the word `a` differs from those of `w`
     COUNTS    numbers of bits so far, with the functions
       NAME(clear)(counts)                sets them to 0
       NAME(add)(counts, d)               counts the bits of `d`
       NAME(add4)(counts, d0, d1, d2, d3) counts those of four
       NAME(widen)(counts)                called after at most CHUNK words
       NAME(sum)(counts)                  returns the numbers as WORDS
     CHUNK     multiple of 4
     AT_MOST(n, p)   a mask of the lanes in which `n` is at most `p[lane]`
     STORE(p, n)     stores `n` as 64-bit integers */

static INLINE TARGET void
NAME(block)(const uint64_t *const *x, const int count, const Taps *taps,
            const uint64_t *kernel, const int64_t *most, unsigned *masks,
            int64_t (*found)[8])
{
    for (int lane = 0; lane < 8; lane += LANES) {
        COUNTS counts[TILE];
        UNROLL for (int i = 0; i < count; i++)
            NAME(clear)(counts + i);
        ptrdiff_t k = 0;
        while (k < taps->words) {
            ptrdiff_t end = taps->words - k < CHUNK ? taps->words : k + CHUNK;
#define WEIGHTS(k) LOAD(kernel + taps->places[k] + lane)
#define BITS(i, k) x[i][taps->offsets[k]]
            for (; k + 4 <= end; k += 4) {
                WORDS w0 = WEIGHTS(k), w1 = WEIGHTS(k + 1);
                WORDS w2 = WEIGHTS(k + 2), w3 = WEIGHTS(k + 3);
                UNROLL for (int i = 0; i < count; i++)
                    NAME(add4)(counts + i, DIFFERENT(BITS(i, k), w0),
                               DIFFERENT(BITS(i, k + 1), w1),
                               DIFFERENT(BITS(i, k + 2), w2),
                               DIFFERENT(BITS(i, k + 3), w3));
            }
            for (; k < end; k++) {
                WORDS w = WEIGHTS(k);
                UNROLL for (int i = 0; i < count; i++)
                    NAME(add)(counts + i, DIFFERENT(BITS(i, k), w));
            }
#undef WEIGHTS
#undef BITS
            UNROLL for (int i = 0; i < count; i++)
                NAME(widen)(counts + i);
        }
        UNROLL for (int i = 0; i < count; i++) {
            WORDS n = NAME(sum)(counts + i);
            if (most)
                masks[i] |= AT_MOST(n, most + lane) << lane;
            else
                STORE(found[i] + lane, n);
        }
    }
}

static TARGET void NAME(tile)(const uint64_t *const *x, int count,
                              const Taps *taps, const uint64_t *kernel,
                              ptrdiff_t outputs, void *const *out)
{
    uint64_t packed[TILE] = {0};
    for (ptrdiff_t o = 0; o < outputs; o += 8) {
        unsigned masks[TILE] = {0};
        int64_t found[TILE][8];
        const int64_t *most = taps->most ? taps->most + o : NULL;
        if (count == TILE)
            NAME(block)(x, TILE, taps, kernel, most, masks, found);
        else
            for (int i = 0; i < count; i++)
                NAME(block)(x + i, 1, taps, kernel, most, masks + i, found + i);
        kernel += taps->block;
        for (int i = 0; i < count; i++) {
            if (most) {
                packed[i] |= (uint64_t)masks[i] << (o & 63);
                if ((o & 63) == 56 || o + 8 >= outputs) {
                    ((uint64_t *)out[i])[o / 64] = packed[i];
                    packed[i] = 0;
                }
            } else {
                ptrdiff_t used = outputs - o < 8 ? outputs - o : 8;
                int32_t *to = (int32_t *)out[i] + o;
                for (ptrdiff_t j = 0; j < used; j++)
                    to[j] = (int32_t)(taps->inputs - 2 * found[i][j]);
            }
        }
    }
}

#undef NAME
#undef TARGET
#undef TILE
#undef WORDS
#undef LANES
#undef LOAD
#undef DIFFERENT
#undef COUNTS
#undef CHUNK
#undef AT_MOST
#undef STORE

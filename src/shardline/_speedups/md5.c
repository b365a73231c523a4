/* MD5 of many messages at once (RFC 1321).
 *
 * One message keeps a single core busy with a chain of dependent additions. Sixteen messages fill the vector registers
 * instead: with AVX-512, sixteen digests take as long as one. The kernel is written once, for a vector of sixteen words
 * and for a single word. Which instructions the vector becomes is left to the compiler. */
#include "speedups.h"

#if defined(__GNUC__) || defined(__clang__)
#define LANES 16
typedef uint32_t Word16 __attribute__((vector_size(4 * LANES)));
#else
#define LANES 1 /* no vector extensions: one message at a time */
#endif

/* The linker chooses the best version for the processor. That needs ifuncs, which only glibc has; a sanitizer is not
 * ready yet when ifuncs are resolved. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

static const uint32_t initial_state[4] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};

static const uint32_t sines[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};

#define ROTATE(x, by) (((x) << (by)) | ((x) >> (32 - (by))))
#define F(x, y, z) ((z) ^ ((x) & ((y) ^ (z))))
#define G(x, y, z) ((y) ^ ((z) & ((x) ^ (y))))
#define H(x, y, z) ((x) ^ (y) ^ (z))
#define I(x, y, z) ((y) ^ ((x) | ~(z)))
#define STEP(f, a, b, c, d, k, by, i) \
    a += f(b, c, d) + words[k] + sines[i]; \
    a = ROTATE(a, by) + b;
#define FOUR(f, k, step, r, s, t, u, i) \
    STEP(f, a, b, c, d, (k) & 15, r, i) \
    STEP(f, d, a, b, c, ((k) + (step)) & 15, s, (i) + 1) \
    STEP(f, c, d, a, b, ((k) + 2 * (step)) & 15, t, (i) + 2) \
    STEP(f, b, c, d, a, ((k) + 3 * (step)) & 15, u, (i) + 3)
#define ROUND(f, k, step, r, s, t, u, i) \
    FOUR(f, k, step, r, s, t, u, i) \
    FOUR(f, (k) + 4 * (step), step, r, s, t, u, (i) + 4) \
    FOUR(f, (k) + 8 * (step), step, r, s, t, u, (i) + 8) \
    FOUR(f, (k) + 12 * (step), step, r, s, t, u, (i) + 12)
#define ALL_ROUNDS \
    ROUND(F, 0, 1, 7, 12, 17, 22, 0) \
    ROUND(G, 1, 5, 5, 9, 14, 20, 16) \
    ROUND(H, 5, 3, 4, 11, 16, 23, 32) \
    ROUND(I, 0, 7, 6, 10, 15, 21, 48)

static inline uint32_t little_endian(uint32_t word)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap32(word);
#else
    return word;
#endif
}

/* Add one block of 64 bytes to the state of one message. */
static void add_block(uint32_t state[4], const uint8_t *block)
{
    uint32_t words[16], a = state[0], b = state[1], c = state[2], d = state[3];
    memcpy(words, block, 64);
    for (int i = 0; i < 16; i++) {
        words[i] = little_endian(words[i]);
    }
    ALL_ROUNDS
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
}

/* Write the last one or two blocks of a message, with its padding and length. Returns how many blocks there are. */
static size_t last_blocks(uint8_t out[128], const uint8_t *bytes, size_t size)
{
    size_t rest = size & 63;
    size_t blocks = rest < 56 ? 1 : 2;
    uint64_t bits = (uint64_t)size * 8;
    memset(out, 0, 64 * blocks);
    if (rest > 0) { /* an empty message may have no address */
        memcpy(out, bytes + (size - rest), rest);
    }
    out[rest] = 0x80;
    for (int i = 0; i < 8; i++) {
        out[64 * blocks - 8 + i] = (uint8_t)(bits >> (8 * i));
    }
    return blocks;
}

static void write_digest(uint8_t *digest, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    uint32_t words[4] = {little_endian(a), little_endian(b), little_endian(c), little_endian(d)};
    memcpy(digest, words, 16);
}

static void digest_alone(const Md5Job *job)
{
    uint32_t state[4];
    uint8_t last[128];
    size_t whole = job->size / 64, blocks = last_blocks(last, job->bytes, job->size);
    memcpy(state, initial_state, 16);
    for (size_t i = 0; i < whole; i++) {
        add_block(state, job->bytes + 64 * i);
    }
    for (size_t i = 0; i < blocks; i++) {
        add_block(state, last + 64 * i);
    }
    write_digest(job->digest, state[0], state[1], state[2], state[3]);
}

#if LANES > 1
/* Add one block to the state of each of sixteen messages. state[i] holds word i of all messages. */
FOR_EACH_PROCESSOR
static void add_blocks(Word16 state[4], const uint8_t *const blocks[LANES])
{
    Word16 words[16], a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t columns[16][LANES];
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t row[16];
        memcpy(row, blocks[lane], 64);
        for (int i = 0; i < 16; i++) {
            columns[i][lane] = little_endian(row[i]);
        }
    }
    memcpy(words, columns, sizeof words);
    ALL_ROUNDS
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
}

/* One of the sixteen places at which a message is being digested. */
typedef struct {
    const Md5Job *job;    /* NULL if the place is free */
    const uint8_t *block; /* the next block */
    size_t blocks;        /* how many blocks are left of the whole blocks, or of the last ones */
    int in_last;          /* whether the last blocks have been reached */
    uint8_t last[128];
} Place;

static void begin_last(Place *place)
{
    place->blocks = last_blocks(place->last, place->job->bytes, place->job->size);
    place->block = place->last;
    place->in_last = 1;
}

/* Digest messages of any lengths: a place whose message has ended takes the next one. */
static void digest_many(const Md5Job *jobs, size_t count)
{
    static const uint8_t nothing[64];
    Word16 state[4];
    uint32_t words[4][LANES];
    Place places[LANES];
    size_t next = 0, busy = 0;
    memset(words, 0, sizeof words);
    for (int lane = 0; lane < LANES; lane++) {
        places[lane].job = NULL;
    }
    for (;;) {
        size_t steps = SIZE_MAX;
        const uint8_t *blocks[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            Place *place = &places[lane];
            if (place->job != NULL && place->blocks == 0 && place->in_last) {
                write_digest(place->job->digest, words[0][lane], words[1][lane], words[2][lane], words[3][lane]);
                place->job = NULL;
                busy--;
            }
            if (place->job == NULL && next < count) {
                place->job = &jobs[next++];
                place->block = place->job->bytes;
                place->blocks = place->job->size / 64;
                place->in_last = 0;
                busy++;
                for (int i = 0; i < 4; i++) {
                    words[i][lane] = initial_state[i];
                }
            }
            if (place->job != NULL && place->blocks == 0) {
                begin_last(place);
            }
            if (place->job != NULL && place->blocks < steps) {
                steps = place->blocks;
            }
            blocks[lane] = place->job != NULL ? place->block : nothing;
        }
        if (busy == 0) {
            return;
        }
        memcpy(state, words, sizeof state);
        for (size_t step = 0; step < steps; step++) {
            add_blocks(state, blocks);
            for (int lane = 0; lane < LANES; lane++) {
                blocks[lane] += places[lane].job != NULL ? 64 : 0;
            }
        }
        memcpy(words, state, sizeof words);
        for (int lane = 0; lane < LANES; lane++) {
            places[lane].block = blocks[lane];
            places[lane].blocks -= places[lane].job != NULL ? steps : 0;
        }
    }
}
#endif

void md5_side_by_side(const Md5Job *jobs, size_t count)
{
#if LANES > 1
    if (count > 2) { /* two messages are digested faster one by one */
        digest_many(jobs, count);
        return;
    }
#endif
    for (size_t i = 0; i < count; i++) {
        digest_alone(&jobs[i]);
    }
}

Md5Job *new_jobs(Py_ssize_t count)
{
    Md5Job *jobs = PyMem_Malloc(((size_t)count + 1) * (sizeof *jobs + MD5_SIZE));
    if (jobs == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        jobs[i].digest = (uint8_t *)(jobs + count) + MD5_SIZE * i;
    }
    return jobs;
}

/* Return the MD5 of each message, as 16 bytes. Raises TypeError unless the argument is a list of bytes. */
PyObject *md5_many(PyObject *module, PyObject *messages)
{
    if (!PyList_CheckExact(messages)) {
        PyErr_SetString(PyExc_TypeError, "md5_many needs a list of bytes");
        return NULL;
    }
    PyObject *digests = new_list_like(messages);
    Md5Job *jobs = digests == NULL ? NULL : new_jobs(PyList_GET_SIZE(messages));
    if (jobs == NULL) {
        goto fail;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(messages); i++) {
        PyObject *message = PyList_GET_ITEM(messages, i);
        if (!PyBytes_Check(message)) {
            PyErr_SetString(PyExc_TypeError, "md5_many needs a list of bytes");
            goto fail;
        }
        PyObject *digest = PyBytes_FromStringAndSize(NULL, MD5_SIZE);
        if (digest == NULL) {
            goto fail;
        }
        PyList_SET_ITEM(digests, i, digest);
        jobs[i].bytes = (const uint8_t *)PyBytes_AS_STRING(message);
        jobs[i].size = (size_t)PyBytes_GET_SIZE(message);
        jobs[i].digest = (uint8_t *)PyBytes_AS_STRING(digest);
    }
    md5_side_by_side(jobs, (size_t)PyList_GET_SIZE(messages));
    PyMem_Free(jobs);
    return digests;
fail:
    PyMem_Free(jobs);
    Py_XDECREF(digests);
    return NULL;
}

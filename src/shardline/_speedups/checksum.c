/* The CRC-32 of a long message, with carry-less multiplication.
 *
 * An event of a subscription ends with the CRC-32 of its up to 1 MiB. zlib takes about five instructions for each byte.
 * Carry-less multiplication folds 128 bytes at a time: Gopal et al., "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ Instruction" (Intel, 2009). Short messages, and processors without the instruction, get zlib's function. */
#include "speedups.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAS_KERNEL 1
#include <immintrin.h>
#endif

#define SHORT 256 /* bytes below which zlib is as fast */

#ifdef HAS_KERNEL

/* Powers of x modulo the polynomial, bit-reflected: for folding by 128 bytes, by 16 bytes, and the last 8 bytes; and
 * the polynomial itself with its reciprocal, for Barrett's reduction. */
static const uint64_t by_128[2] = {0x1e88ef372, 0x14a7fe880};
static const uint64_t by_16[2] = {0x1751997d0, 0x0ccaa009e};
static const uint64_t last[2] = {0x163cd6124, 0};
static const uint64_t polynomial[2] = {0x1db710641, 0x1f7011641};

/* AVX for its instructions with three operands: without them, each product needs a copy of its first factor. */
#define FOR_CLMUL __attribute__((target("pclmul,avx")))
#define PARTS 8 /* of 16 bytes; independent, so that the processor multiplies one while it waits for another */

FOR_CLMUL static inline __m128i load(const void *from)
{
    return _mm_loadu_si128((const __m128i *)from);
}

/* Move the remainder `folded` by the distance of `powers`, and add the data there. */
FOR_CLMUL static inline __m128i fold(__m128i folded, __m128i powers, __m128i data)
{
    __m128i low = _mm_clmulepi64_si128(folded, powers, 0x00), high = _mm_clmulepi64_si128(folded, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

/* Update a CRC, without its inversions, by at least 128 bytes whose number is a multiple of 16. */
FOR_CLMUL static uint32_t fold_all(uint32_t crc, const uint8_t *bytes, size_t size)
{
    __m128i parts[PARTS], powers = load(by_128);
    for (int part = 0; part < PARTS; part++) {
        parts[part] = load(bytes + 16 * part);
    }
    parts[0] = _mm_xor_si128(parts[0], _mm_cvtsi32_si128((int)crc));
    for (bytes += 128, size -= 128; size >= 128; bytes += 128, size -= 128) {
        for (int part = 0; part < PARTS; part++) {
            parts[part] = fold(parts[part], powers, load(bytes + 16 * part));
        }
    }
    powers = load(by_16);
    __m128i folded = parts[0];
    for (int part = 1; part < PARTS; part++) {
        folded = fold(folded, powers, parts[part]);
    }
    for (; size >= 16; bytes += 16, size -= 16) {
        folded = fold(folded, powers, load(bytes));
    }
    /* From 128 bits to 64, and to 32. */
    const __m128i low_halves = _mm_setr_epi32(-1, 0, -1, 0);
    folded = _mm_xor_si128(_mm_srli_si128(folded, 8), _mm_clmulepi64_si128(folded, powers, 0x10));
    __m128i rest = _mm_srli_si128(folded, 4);
    folded = _mm_clmulepi64_si128(_mm_and_si128(folded, low_halves), load(last), 0x00);
    folded = _mm_xor_si128(folded, rest);
    __m128i quotient = _mm_clmulepi64_si128(_mm_and_si128(folded, low_halves), load(polynomial), 0x10);
    quotient = _mm_clmulepi64_si128(_mm_and_si128(quotient, low_halves), load(polynomial), 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(folded, quotient), 1);
}

/* The CRCs of the sixteen values of four bits. */
static const uint32_t of_four_bits[16] = {
    0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
    0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
};

static uint32_t crc_of_long(const uint8_t *bytes, size_t size)
{
    size_t folded = size & ~(size_t)15;
    uint32_t crc = fold_all(0xffffffff, bytes, folded);
    for (size_t place = folded; place < size; place++) { /* at most 15 bytes */
        crc ^= bytes[place];
        crc = (crc >> 4) ^ of_four_bits[crc & 15];
        crc = (crc >> 4) ^ of_four_bits[crc & 15];
    }
    return ~crc;
}

static int has_kernel(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("avx");
}

#else

static uint32_t crc_of_long(const uint8_t *bytes, size_t size)
{
    return 0; /* never called */
}

static int has_kernel(void)
{
    return 0;
}

#endif

PyObject *checksum(PyObject *module, PyObject *data)
{
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (view.len < SHORT || !has_kernel()) {
        PyBuffer_Release(&view);
        return PyObject_CallOneArg(state_of_module(module)->zlib_crc32, data);
    }
    uint32_t crc = crc_of_long(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

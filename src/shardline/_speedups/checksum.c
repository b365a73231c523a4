/* Joins the pieces of a frame and computes its CRC-32, in one pass, with carry-less multiplication.
 *
 * An event of a subscription has up to 1 MiB, and ends with the CRC-32 of all preceding bytes. zlib takes about five
 * instructions for each byte. Carry-less multiplication folds 128 bytes at a time: Gopal et al., "Fast CRC Computation
 * for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009). For short messages, and on processors without the
 * instruction, zlib's function is used. */
#include "speedups.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HAS_KERNEL 1
#include <immintrin.h>
#endif

#define SHORT 256 /* below this many bytes, zlib is as fast */
#define STRIDE 1024 /* how many bytes are copied and then folded at a time: they fit in the first cache */

#ifdef HAS_KERNEL

/* Powers of x modulo the polynomial, bit-reflected: for folding by 128 bytes, by 16 bytes, and the last 8 bytes; and
 * the polynomial itself with its reciprocal, for Barrett's reduction. */
static const uint64_t by_128[2] = {0x1e88ef372, 0x14a7fe880};
static const uint64_t by_16[2] = {0x1751997d0, 0x0ccaa009e};
static const uint64_t last[2] = {0x163cd6124, 0};
static const uint64_t polynomial[2] = {0x1db710641, 0x1f7011641};

/* AVX is enabled for its instructions with three operands: without them, a product needs a copy of its first factor. */
#define FOR_CLMUL __attribute__((target("pclmul,avx")))
#define BLOCK 128
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

/* Fold all blocks of 128 bytes into the remainders. Return the number of bytes that were folded. */
FOR_CLMUL static size_t fold_blocks(__m128i *parts, const uint8_t *bytes, size_t size)
{
    __m128i powers = load(by_128), now[PARTS];
    memcpy(now, parts, sizeof now);
    size_t place = 0;
    for (; size - place >= BLOCK; place += BLOCK) {
        for (int part = 0; part < PARTS; part++) {
            now[part] = fold(now[part], powers, load(bytes + place + 16 * part));
        }
    }
    memcpy(parts, now, sizeof now);
    return place;
}

/* Return the CRC, without its last inversion, of the remainders and the last bytes, whose number is a multiple of 16. */
FOR_CLMUL static uint32_t finish(const __m128i *parts, const uint8_t *bytes, size_t size)
{
    __m128i folded = parts[0], powers = load(by_16);
    for (int part = 1; part < PARTS; part++) {
        folded = fold(folded, powers, parts[part]);
    }
    for (; size >= 16; bytes += 16, size -= 16) {
        folded = fold(folded, powers, load(bytes));
    }
    /* Reduce the remainder from 128 bits to 64, and then to 32. */
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

/* Copy the pieces to `frame`, and return the CRC-32 of its first `checked` bytes, which are at least BLOCK. Each part is
 * copied and then folded while the processor's cache still holds it. */
FOR_CLMUL static uint32_t copy_and_check(uint8_t *frame, size_t checked, const Py_buffer *pieces, Py_ssize_t count)
{
    __m128i parts[PARTS];
    size_t copied = 0, folded = 0;
    for (Py_ssize_t number = 0; number < count; number++) {
        const uint8_t *piece = pieces[number].buf;
        for (size_t left = (size_t)pieces[number].len; left > 0;) {
            size_t size = left < STRIDE ? left : STRIDE;
            memcpy(frame + copied, piece, size);
            piece += size, left -= size, copied += size;
            if (folded == 0 && copied >= BLOCK) {
                memcpy(parts, frame, sizeof parts);
                parts[0] = _mm_xor_si128(parts[0], _mm_cvtsi32_si128(-1));
                folded = BLOCK;
            }
            size_t ready = copied < checked ? copied : checked;
            if (folded > 0 && ready > folded) {
                folded += fold_blocks(parts, frame + folded, ready - folded);
            }
        }
    }
    size_t rest = (checked - folded) & ~(size_t)15;
    uint32_t crc = finish(parts, frame + folded, rest);
    for (size_t place = folded + rest; place < checked; place++) { /* at most 15 bytes */
        crc ^= frame[place];
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

static uint32_t copy_and_check(uint8_t *frame, size_t checked, const Py_buffer *pieces, Py_ssize_t count)
{
    return 0; /* never called */
}

static int has_kernel(void)
{
    return 0;
}

#endif

/* Copy the pieces to `frame`, and return the CRC-32 of its first `checked` bytes as an int. */
static PyObject *copy_by_zlib(PyObject *module, char *frame, Py_ssize_t checked, const Py_buffer *pieces, Py_ssize_t count)
{
    char *to = frame;
    for (Py_ssize_t number = 0; number < count; number++) {
        memcpy(to, pieces[number].buf, (size_t)pieces[number].len);
        to += pieces[number].len;
    }
    PyObject *view = PyMemoryView_FromMemory(frame, checked, PyBUF_READ);
    if (view == NULL) {
        return NULL;
    }
    PyObject *crc = PyObject_CallOneArg(state_of_module(module)->zlib_crc32, view);
    Py_DECREF(view);
    return crc;
}

static PyObject *join_buffers(PyObject *module, const Py_buffer *pieces, Py_ssize_t count)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t number = 0; number < count; number++) {
        size += pieces[number].len;
    }
    PyObject *frame = PyBytes_FromStringAndSize(NULL, size);
    if (frame == NULL) {
        return NULL;
    }
    Py_ssize_t checked = size < 4 ? 0 : size - 4;
    PyObject *crc;
    if (checked < SHORT || !has_kernel()) {
        crc = copy_by_zlib(module, PyBytes_AS_STRING(frame), checked, pieces, count);
    } else {
        uint8_t *bytes = (uint8_t *)PyBytes_AS_STRING(frame);
        crc = PyLong_FromUnsignedLong(copy_and_check(bytes, (size_t)checked, pieces, count));
    }
    PyObject *result = crc == NULL ? NULL : PyTuple_Pack(2, frame, crc);
    Py_DECREF(frame);
    Py_XDECREF(crc);
    return result;
}

PyObject *join_frame(PyObject *module, PyObject *pieces)
{
    if (!PyList_Check(pieces)) {
        return PyErr_Format(PyExc_TypeError, "expected a list, not %.100s", Py_TYPE(pieces)->tp_name);
    }
    /* Taking a buffer can run Python code, which may change the caller's list. It cannot change a tuple. */
    PyObject *fixed = PyList_AsTuple(pieces);
    if (fixed == NULL) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(fixed), taken = 0;
    PyObject *result = NULL;
    Py_buffer *buffers = PyMem_New(Py_buffer, count);
    if (buffers == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; taken < count; taken++) {
        if (PyObject_GetBuffer(PyTuple_GET_ITEM(fixed, taken), &buffers[taken], PyBUF_SIMPLE) < 0) {
            goto done;
        }
    }
    result = join_buffers(module, buffers, count);
done:
    while (taken > 0) {
        PyBuffer_Release(&buffers[--taken]);
    }
    PyMem_Free(buffers);
    Py_DECREF(fixed);
    return result;
}

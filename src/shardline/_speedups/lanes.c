/* Finds the lane that each record goes to. The hash ranges of the lanes are in a LaneTable. */
#include "speedups.h"

#define PREFIX_BITS 12
#define PREFIXES (1 << PREFIX_BITS)
#define AMBIGUOUS UINT32_MAX /* several lanes share the prefix */
#define KEYLESS UINT32_MAX   /* the number of a record without a key */

typedef struct {
    PyObject_HEAD
    uint32_t lanes;
    uint8_t *endings;             /* the last hash key of each lane, in order, 16 bytes each */
    uint32_t by_prefix[PREFIXES]; /* the lane of each value of the first twelve bits of a hash key, or AMBIGUOUS */
} LaneTable;

/* Return the first lane whose range ends at or after this hash key. Return the number of lanes if there is no such
 * lane. */
static uint32_t lane_at(const LaneTable *table, const uint8_t *digest)
{
    uint32_t low = 0, high = table->lanes;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (memcmp(table->endings + (size_t)middle * MD5_SIZE, digest, MD5_SIZE) < 0) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    return low;
}

static void fill_prefixes(LaneTable *table)
{
    for (uint32_t prefix = 0; prefix < PREFIXES; prefix++) {
        uint8_t first[MD5_SIZE] = {(uint8_t)(prefix >> 4), (uint8_t)(prefix << 4)}, last[MD5_SIZE];
        memset(last, 0xff, sizeof last);
        last[0] = first[0];
        last[1] = first[1] | 0x0f;
        uint32_t lane = lane_at(table, first);
        table->by_prefix[prefix] = lane == lane_at(table, last) ? lane : AMBIGUOUS;
    }
}

/* make_lane_table(endings: tuple[bytes, ...]) -> LaneTable
 *
 * The endings are the last hash keys of the lanes, 16 bytes each, in ascending order. */
PyObject *make_lane_table(PyObject *module, PyObject *endings)
{
    PyTypeObject *type = state_of_module(module)->lane_table_type;
    if (!PyTuple_Check(endings)) {
        PyErr_SetString(PyExc_TypeError, "make_lane_table needs a tuple of bytes");
        return NULL;
    }
    Py_ssize_t lanes = PyTuple_GET_SIZE(endings);
    if (lanes >= UINT32_MAX / MD5_SIZE) {
        PyErr_SetString(PyExc_ValueError, "too many lanes");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < lanes; i++) {
        PyObject *ending = PyTuple_GET_ITEM(endings, i);
        if (!PyBytes_Check(ending) || PyBytes_GET_SIZE(ending) != MD5_SIZE) {
            PyErr_SetString(PyExc_ValueError, "the endings of lanes are bytes of length 16");
            return NULL;
        }
    }
    LaneTable *table = (LaneTable *)type->tp_alloc(type, 0);
    if (table == NULL) {
        return NULL;
    }
    table->lanes = (uint32_t)lanes;
    table->endings = PyMem_Malloc((size_t)lanes * MD5_SIZE + 1);
    if (table->endings == NULL) {
        Py_DECREF(table);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < lanes; i++) {
        memcpy(table->endings + i * MD5_SIZE, PyBytes_AS_STRING(PyTuple_GET_ITEM(endings, i)), MD5_SIZE);
    }
    fill_prefixes(table);
    return (PyObject *)table;
}

static void free_table(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((LaneTable *)self)->endings);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Write an explicit hash key, a canonical decimal below 2^128, as 16 bytes. */
static int parse_hash_key(PyObject *text, uint8_t digest[MD5_SIZE])
{
    uint32_t words[4] = {0, 0, 0, 0}; /* the least significant first */
    if (!PyUnicode_Check(text) || !PyUnicode_IS_ASCII(text)) {
        PyErr_SetString(PyExc_ValueError, "an explicit hash key is a decimal number");
        return -1;
    }
    const uint8_t *digits = PyUnicode_1BYTE_DATA(text);
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(text); i++) {
        uint64_t carry = (uint64_t)digits[i] - '0';
        if (carry > 9) {
            PyErr_SetString(PyExc_ValueError, "an explicit hash key is a decimal number");
            return -1;
        }
        for (int word = 0; word < 4; word++) {
            carry += (uint64_t)words[word] * 10;
            words[word] = (uint32_t)carry;
            carry >>= 32;
        }
        if (carry != 0) {
            PyErr_SetString(PyExc_OverflowError, "an explicit hash key is below 2**128");
            return -1;
        }
    }
    for (int i = 0; i < MD5_SIZE; i++) {
        digest[i] = (uint8_t)(words[3 - i / 4] >> (24 - 8 * (i % 4)));
    }
    return 0;
}

/* The arrays that one call of sort needs. Each array has one element for each record. */
typedef struct {
    uint32_t *numbers;                /* the lane of each record, or KEYLESS */
    uint32_t *order;                  /* the places of the records, grouped by lane */
    uint8_t (*digests)[MD5_SIZE]; /* the hash key of each record */
    Md5Job *jobs;
    size_t job_count;
} Work;

/* Write the hash key of each record, or mark it as keyless. Runs no Python code. */
static int hash_records(State *state, PyObject *records, Work *work)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(records); i++) {
        PyObject *record = PyTuple_GET_ITEM(records, i);
        if (check_record(state, record) < 0) {
            return -1;
        }
        PyObject *key = slot_of(record, state->slots.key);
        PyObject *hash_key = slot_of(record, state->slots.explicit_hash_key);
        work->numbers[i] = key == Py_None ? KEYLESS : 0;
        if (key == Py_None) {
            continue;
        }
        if (hash_key != Py_None) {
            if (parse_hash_key(hash_key, work->digests[i]) < 0) {
                return -1;
            }
            continue;
        }
        if (!PyUnicode_Check(key)) {
            PyErr_SetString(PyExc_TypeError, "the key of a record is a str");
            return -1;
        }
        if (PyUnicode_IS_ASCII(key)) {
            const uint8_t *bytes = PyUnicode_1BYTE_DATA(key);
            work->jobs[work->job_count++] = (Md5Job){bytes, (size_t)PyUnicode_GET_LENGTH(key), work->digests[i]};
            continue;
        }
        PyObject *encoded = PyUnicode_AsUTF8String(key);
        if (encoded == NULL) {
            return -1;
        }
        Md5Job job = {(uint8_t *)PyBytes_AS_STRING(encoded), (size_t)PyBytes_GET_SIZE(encoded), work->digests[i]};
        md5_side_by_side(&job, 1);
        Py_DECREF(encoded);
    }
    md5_side_by_side(work->jobs, work->job_count);
    return 0;
}

/* Find the lane of each record, and group the places of the records by lane. starts has two more elements than there
 * are lanes, all 0. Afterwards, starts[lane] is where the group of the lane begins, and starts[lane + 1] where it ends. */
static int group_by_lane(const LaneTable *table, Work *work, Py_ssize_t count, uint32_t *starts)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (work->numbers[i] == KEYLESS) {
            continue;
        }
        const uint8_t *digest = work->digests[i];
        uint32_t lane = table->by_prefix[digest[0] << 4 | digest[1] >> 4];
        if (lane == AMBIGUOUS) {
            lane = lane_at(table, digest);
        }
        if (lane >= table->lanes) {
            PyErr_SetString(PyExc_IndexError, "no lane has this hash key");
            return -1;
        }
        work->numbers[i] = lane;
        starts[lane + 2]++;
    }
    for (uint32_t lane = 0; lane < table->lanes; lane++) {
        starts[lane + 2] += starts[lane + 1];
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (work->numbers[i] != KEYLESS) {
            work->order[starts[work->numbers[i] + 1]++] = (uint32_t)i;
        }
    }
    return 0;
}

/* Append (lane, records of the lane) to by_lane. */
static int append_group(PyObject *by_lane, uint32_t lane, PyObject *records, const uint32_t *order, uint32_t count)
{
    PyObject *group = PyList_New(count), *pair = NULL;
    if (group == NULL) {
        return -1;
    }
    for (uint32_t i = 0; i < count; i++) {
        PyList_SET_ITEM(group, i, Py_NewRef(PyTuple_GET_ITEM(records, order[i])));
    }
    pair = Py_BuildValue("IN", lane, group);
    int failed = pair == NULL || PyList_Append(by_lane, pair) < 0;
    Py_XDECREF(pair);
    return failed ? -1 : 0;
}

/* Return ([(lane, records), ...], keyless records) from the groups. */
static PyObject *lists_of_groups(const LaneTable *table, PyObject *records, const Work *work, const uint32_t *starts)
{
    PyObject *by_lane = PyList_New(0), *others = PyList_New(0);
    if (by_lane == NULL || others == NULL) {
        goto fail;
    }
    for (uint32_t lane = 0; lane < table->lanes; lane++) {
        uint32_t size = starts[lane + 1] - starts[lane];
        if (size > 0 && append_group(by_lane, lane, records, work->order + starts[lane], size) < 0) {
            goto fail;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(records); i++) {
        if (work->numbers[i] == KEYLESS && PyList_Append(others, PyTuple_GET_ITEM(records, i)) < 0) {
            goto fail;
        }
    }
    return Py_BuildValue("NN", by_lane, others);
fail:
    Py_XDECREF(by_lane);
    Py_XDECREF(others);
    return NULL;
}

/* LaneTable.sort(records: list) -> tuple[list[tuple[int, list]], list]
 *
 * Group the records by the numbers of their lanes. The records of a lane keep their order, and so do the keyless records,
 * which come second. */
static PyObject *sort_records(PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    LaneTable *table = (LaneTable *)self;
    State *state = PyType_GetModuleState(type);
    if (state == NULL) {
        return NULL;
    }
    if (nargs != 1 || names != NULL || !PyList_CheckExact(args[0]) || PyList_GET_SIZE(args[0]) >= UINT32_MAX) {
        PyErr_SetString(PyExc_TypeError, "sort needs a list of records");
        return NULL;
    }
    PyObject *records = tuple_of_list(args[0]); /* keeps the records alive, whatever happens to the list */
    if (records == NULL) {
        return NULL;
    }
    size_t count = (size_t)PyTuple_GET_SIZE(records);
    PyObject *sorted = NULL;
    Work work = {
        PyMem_New(uint32_t, count + 1),
        PyMem_New(uint32_t, count + 1),
        PyMem_Malloc((count + 1) * MD5_SIZE),
        PyMem_New(Md5Job, count + 1),
        0,
    };
    uint32_t *starts = PyMem_Calloc((size_t)table->lanes + 2, sizeof *starts);
    if (!work.numbers || !work.order || !work.digests || !work.jobs || !starts) {
        PyErr_NoMemory();
    }
    else if (hash_records(state, records, &work) == 0 &&
             group_by_lane(table, &work, (Py_ssize_t)count, starts) == 0) {
        sorted = lists_of_groups(table, records, &work, starts);
    }
    PyMem_Free(work.numbers);
    PyMem_Free(work.order);
    PyMem_Free(work.digests);
    PyMem_Free(work.jobs);
    PyMem_Free(starts);
    Py_DECREF(records);
    return sorted;
}

static PyMethodDef table_methods[] = {
    {"sort", (PyCFunction)(void (*)(void))sort_records, METH_METHOD | METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("sort($self, records, /)\n--\n\nGroup records by the numbers of their lanes, and return those without a "
               "key apart.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_dealloc, free_table},
    {Py_tp_methods, table_methods},
    {Py_tp_doc, (void *)PyDoc_STR("The hash ranges of the lanes. make_lane_table creates it.")},
    {0, NULL},
};

PyType_Spec lane_table_spec = {
    .name = "shardline._speedups._native.LaneTable",
    .basicsize = sizeof(LaneTable),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = table_slots,
};

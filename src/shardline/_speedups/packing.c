/* Sizes and encodes aggregates of ordinary records: records without explicit hash keys and headers.
 *
 * codec/aggregation.py describes the format, and passes the magic bytes and the field tags to bind_format. */
#include "speedups.h"

/* bind_format(magic: bytes, tags_of_message: bytes, tags_of_record: bytes, known_fields: int) -> None
 *
 * Remember the magic bytes of an aggregate and the field tags of its messages: of the partition keys, explicit hash keys
 * and records, and, in a record, of the two indices, the data and the tags. */
PyObject *bind_format(PyObject *module, PyObject *args)
{
    State *state = state_of_module(module);
    PyObject *magic, *message, *record;
    unsigned char known_fields;
    if (!PyArg_ParseTuple(args, "SSSb:bind_format", &magic, &message, &record, &known_fields)) {
        return NULL;
    }
    if (PyBytes_GET_SIZE(magic) != sizeof state->format.magic || PyBytes_GET_SIZE(message) != 3 ||
        PyBytes_GET_SIZE(record) != 4) {
        PyErr_SetString(PyExc_ValueError, "an aggregate has four magic bytes, and the tags of three and of four fields");
        return NULL;
    }
    const char *of_message = PyBytes_AS_STRING(message), *of_record = PyBytes_AS_STRING(record);
    state->format = (Format){
        .key = (uint8_t)of_message[0], .hash_key = (uint8_t)of_message[1], .record = (uint8_t)of_message[2],
        .key_index = (uint8_t)of_record[0], .hash_key_index = (uint8_t)of_record[1], .data = (uint8_t)of_record[2],
        .tag = (uint8_t)of_record[3], .known_fields = known_fields,
    };
    memcpy(state->format.magic, PyBytes_AS_STRING(magic), sizeof state->format.magic);
    Py_RETURN_NONE;
}

static inline Py_ssize_t varint_size(size_t number)
{
    Py_ssize_t size = 1;
    while (number >= 0x80) {
        number >>= 7;
        size++;
    }
    return size;
}

static inline uint8_t *write_varint(uint8_t *at, size_t number)
{
    while (number >= 0x80) {
        *at++ = (uint8_t)(number | 0x80);
        number >>= 7;
    }
    *at++ = (uint8_t)number;
    return at;
}

/* The size of a field that has a length: a tag of one byte, the length, and the contents. */
static inline Py_ssize_t field_size(Py_ssize_t length)
{
    return 1 + varint_size((size_t)length) + length;
}

/* The size of the contents of a record: the field of its key index, and its data. */
static inline Py_ssize_t content_size(Py_ssize_t index, Py_ssize_t length)
{
    return 1 + varint_size((size_t)index) + field_size(length);
}

/* Set *text to the UTF-8 form of a key, and *length to its length. The text lives as long as the key. */
static int text_of_key(PyObject *key, const char **text, Py_ssize_t *length)
{
    if (!PyUnicode_Check(key)) {
        PyErr_SetString(PyExc_TypeError, "the key of a record is a str");
        return -1;
    }
    if (PyUnicode_IS_COMPACT_ASCII(key)) {
        *text = (const char *)PyUnicode_1BYTE_DATA(key);
        *length = PyUnicode_GET_LENGTH(key);
        return 0;
    }
    *text = PyUnicode_AsUTF8AndSize(key, length);
    return *text == NULL ? -1 : 0;
}

/* Whether a record has a key and data, and neither an explicit hash key nor headers. */
static int is_ordinary(State *state, PyObject *record)
{
    PyObject *tags = slot_of(record, state->slots.tags);
    return PyUnicode_CheckExact(slot_of(record, state->slots.key)) && PyBytes_Check(slot_of(record, state->slots.data)) &&
           slot_of(record, state->slots.explicit_hash_key) == Py_None && PyBytes_Check(tags) && PyBytes_GET_SIZE(tags) == 0;
}

/* Add one ordinary record to an open aggregate, unless it does not fit. *size and *payload grow by the record. Returns 1
 * if the record was added, and 0 if it does not fit. */
static int add_record(State *state, KeyTable *keys, PyObject *ours, PyObject *record, Py_ssize_t max_bytes,
                      Py_ssize_t *size, Py_ssize_t *payload)
{
    PyObject *key = slot_of(record, state->slots.key);
    Py_ssize_t length = PyBytes_GET_SIZE(slot_of(record, state->slots.data)), width, after = *size;
    const char *text;
    KeySlot *slot = find_key(keys, key);
    if (slot == NULL) {
        return -1;
    }
    uint32_t index = slot->number != 0 ? slot->number - 1 : keys->count;
    if (slot->number == 0) {
        if (text_of_key(key, &text, &width) < 0) {
            return -1;
        }
        after += field_size(width);
    }
    after += field_size(content_size(index, length));
    if (after > max_bytes && PyList_GET_SIZE(ours) > 0) {
        return 0;
    }
    if (PyList_Append(ours, record) < 0) {
        return -1;
    }
    if (slot->number == 0) {
        add_key(keys, slot, key);
    }
    *size = after;
    *payload += length + PyUnicode_GET_LENGTH(key);
    return 1;
}

/* add_ordinary(keys: KeyTable, ours: list, records: list, at: int, size: int, max_bytes: int) -> tuple[int, int, int]
 *
 * Add records[at:] to an open aggregate, up to the first one that does not fit or is not ordinary. keys is the key table
 * of the aggregate and ours its records; size is its exact size. The first record of an aggregate always fits. Returns the
 * place of the first record that was not added, the new size, and the size of the data and keys that were added. */
PyObject *add_ordinary(PyObject *module, PyObject *args)
{
    State *state = state_of_module(module);
    PyObject *keys, *ours, *records;
    Py_ssize_t at, size, max_bytes, payload = 0;
    if (!PyArg_ParseTuple(args, "O!O!O!nnn:add_ordinary", state->key_table_type, &keys, &PyList_Type, &ours, &PyList_Type, &records,
                          &at, &size, &max_bytes)) {
        return NULL;
    }
    if (at < 0) {
        PyErr_SetString(PyExc_ValueError, "a place is not negative");
        return NULL;
    }
    for (; at < PyList_GET_SIZE(records); at++) {
        PyObject *record = PyList_GET_ITEM(records, at);
        if (check_record(state, record) < 0) {
            return NULL;
        }
        prefetch_records(state, ((PyListObject *)records)->ob_item, at, PyList_GET_SIZE(records));
        if (!is_ordinary(state, record)) {
            break;
        }
        Py_INCREF(record);
        int added = add_record(state, &((KeyTableObject *)keys)->table, ours, record, max_bytes, &size, &payload);
        Py_DECREF(record);
        if (added < 0) {
            return NULL;
        }
        if (!added) {
            break;
        }
    }
    return Py_BuildValue("nnn", at, size, payload);
}

/* Number the keys of the records, and return the size of the message; -1 with an exception. indices has a place for the
 * number of each record's key. */
static Py_ssize_t size_message(State *state, PyObject *records, PyObject *keyless_key, KeyTable *keys, uint32_t *indices)
{
    Py_ssize_t size = 0, width, count = PyTuple_GET_SIZE(records);
    const char *text;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *record = PyTuple_GET_ITEM(records, i);
        if (check_record(state, record) < 0) {
            return -1;
        }
        prefetch_records(state, ((PyTupleObject *)records)->ob_item, i, count);
        PyObject *key = slot_of(record, state->slots.key), *data = slot_of(record, state->slots.data);
        key = key == Py_None ? keyless_key : key;
        if (!PyUnicode_CheckExact(key) || !PyBytes_Check(data)) {
            PyErr_SetString(PyExc_TypeError, "a record that is encoded has a str as its key and bytes as its data");
            return -1;
        }
        KeySlot *slot = find_key(keys, key);
        if (slot == NULL) {
            return -1;
        }
        if (slot->number == 0) {
            if (text_of_key(key, &text, &width) < 0) {
                return -1;
            }
            size += field_size(width);
            add_key(keys, slot, key);
        }
        indices[i] = slot->number - 1;
        size += field_size(content_size(indices[i], PyBytes_GET_SIZE(data)));
        PREFETCH(PyBytes_AS_STRING(data) + 64); /* write_message reads it soon */
    }
    return size;
}

static uint8_t *write_field(uint8_t *at, uint8_t tag, const char *bytes, Py_ssize_t length)
{
    *at++ = tag;
    at = write_varint(at, (size_t)length);
    memcpy(at, bytes, (size_t)length);
    return at + length;
}

/* Write the message, whose size is known. Returns the end of the message; NULL with an exception. */
static uint8_t *write_message(State *state, uint8_t *at, PyObject *records, const KeyTable *keys, const uint32_t *indices)
{
    const Format *format = &state->format;
    Py_ssize_t width;
    const char *text;
    for (uint32_t i = 0; i < keys->count; i++) {
        if (text_of_key(keys->keys[i], &text, &width) < 0) {
            return NULL;
        }
        at = write_field(at, format->key, text, width);
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(records); i++) {
        PyObject *data = slot_of(PyTuple_GET_ITEM(records, i), state->slots.data);
        Py_ssize_t length = PyBytes_GET_SIZE(data);
        *at++ = format->record;
        at = write_varint(at, (size_t)content_size(indices[i], length));
        *at++ = format->key_index;
        at = write_varint(at, indices[i]);
        at = write_field(at, format->data, PyBytes_AS_STRING(data), length);
    }
    return at;
}

/* Return the aggregate of these records, a new reference. Its last 16 bytes are not written yet: they are written when
 * the caller computes `job`, which is filled in here. */
static PyObject *encode_group(State *state, PyObject *records, PyObject *keyless_key, Md5Job *job)
{
    KeyTable keys = {NULL, NULL, 0, 0};
    PyObject *blob = NULL;
    Py_ssize_t size = -1;
    size_t magic = sizeof state->format.magic;
    uint32_t *indices = PyMem_New(uint32_t, (size_t)PyTuple_GET_SIZE(records));
    if (indices == NULL) {
        PyErr_NoMemory();
    }
    else {
        size = size_message(state, records, keyless_key, &keys, indices);
    }
    if (size >= 0) {
        blob = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)magic + size + MD5_SIZE);
    }
    if (blob != NULL) {
        uint8_t *start = (uint8_t *)PyBytes_AS_STRING(blob), *end;
        memcpy(start, state->format.magic, magic);
        end = write_message(state, start + magic, records, &keys, indices);
        assert(end == NULL || end == start + magic + size);
        *job = (Md5Job){start + magic, (size_t)size, end};
        if (end == NULL) {
            Py_CLEAR(blob);
        }
    }
    PyMem_Free(indices);
    clear_keys(&keys);
    return blob;
}

/* encode_records(groups: list[tuple[list, str]]) -> list[bytes]
 *
 * Return the aggregate of each group: records, and the key that its keyless records take. No record has an explicit hash
 * key or headers. The MD5s of all aggregates are computed side by side. */
PyObject *encode_records(PyObject *module, PyObject *groups)
{
    State *state = state_of_module(module);
    if (!PyList_CheckExact(groups)) {
        PyErr_SetString(PyExc_TypeError, "encode_records needs a list of groups");
        return NULL;
    }
    PyObject *all = tuple_of_list(groups), *blobs = PyList_New(0), *records = NULL;
    Md5Job *jobs = NULL;
    Py_ssize_t count = 0;
    if (all == NULL || blobs == NULL) {
        goto fail;
    }
    jobs = PyMem_New(Md5Job, (size_t)PyTuple_GET_SIZE(all) + 1);
    if (jobs == NULL) {
        PyErr_NoMemory();
        goto fail;
    }
    for (; count < PyTuple_GET_SIZE(all); count++) {
        PyObject *group = PyTuple_GET_ITEM(all, count), *listed, *keyless_key;
        if (!PyTuple_Check(group)) {
            PyErr_SetString(PyExc_TypeError, "a group is a tuple of records and a key");
            goto fail;
        }
        if (!PyArg_ParseTuple(group, "O!U:encode_records", &PyList_Type, &listed, &keyless_key)) {
            goto fail;
        }
        if (PyList_GET_SIZE(listed) == 0 || PyList_GET_SIZE(listed) >= UINT32_MAX / 2) {
            PyErr_SetString(PyExc_ValueError, "an aggregate has at least one record");
            goto fail;
        }
        records = tuple_of_list(listed); /* keeps the records and their keys alive, whatever happens to the list */
        PyObject *blob = records == NULL ? NULL : encode_group(state, records, keyless_key, &jobs[count]);
        Py_CLEAR(records);
        int failed = blob == NULL || PyList_Append(blobs, blob) < 0;
        Py_XDECREF(blob);
        if (failed) {
            goto fail;
        }
    }
    md5_side_by_side(jobs, (size_t)count);
    PyMem_Free(jobs);
    Py_DECREF(all);
    return blobs;
fail:
    PyMem_Free(jobs);
    Py_XDECREF(all);
    Py_XDECREF(blobs);
    return NULL;
}

/* Opens aggregates: finds frames, splits messages into columns, and checks the hash keys of the partition keys. */
#include "speedups.h"

#define FRAME_SIZE (sizeof ((Format *)NULL)->magic + MD5_SIZE)

/* Append an item to a list, and release the caller's reference to the item. Returns -1 with an exception if `item` is
 * NULL or memory is short. */
static int append_new(PyObject *list, PyObject *item)
{
    if (item == NULL) {
        return -1;
    }
    int result = PyList_Append(list, item);
    Py_DECREF(item);
    return result;
}

/* find_frames(blobs: list[bytes]) -> list[bool]: whether each blob begins with the magic bytes and ends with the MD5 of
 * the bytes in between. The digests are computed side by side. */
PyObject *find_frames(PyObject *module, PyObject *blobs)
{
    const Format *format = &state_of_module(module)->format;
    if (!PyList_CheckExact(blobs)) {
        PyErr_SetString(PyExc_TypeError, "find_frames needs a list of bytes");
        return NULL;
    }
    Py_ssize_t count = PyList_GET_SIZE(blobs), framed = 0;
    PyObject *found = new_list_like(blobs);
    Md5Job *jobs = found == NULL ? NULL : new_jobs(count);
    if (jobs == NULL) {
        Py_XDECREF(found);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *blob = PyList_GET_ITEM(blobs, i);
        if (!PyBytes_Check(blob)) {
            PyErr_SetString(PyExc_TypeError, "find_frames needs a list of bytes");
            Py_CLEAR(found);
            break;
        }
        const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(blob);
        size_t size = (size_t)PyBytes_GET_SIZE(blob);
        int may_be = size > FRAME_SIZE && memcmp(bytes, format->magic, sizeof format->magic) == 0;
        PyList_SET_ITEM(found, i, PyBool_FromLong(may_be));
        if (may_be) {
            jobs[framed].bytes = bytes + sizeof format->magic;
            jobs[framed++].size = size - FRAME_SIZE;
        }
    }
    md5_side_by_side(jobs, (size_t)framed);
    for (Py_ssize_t i = 0, job = 0; found != NULL && i < count; i++) {
        if (PyList_GET_ITEM(found, i) == Py_True) {
            const uint8_t *written = jobs[job].bytes + jobs[job].size;
            if (memcmp(written, jobs[job++].digest, MD5_SIZE) != 0) {
                PyList_SetItem(found, i, Py_NewRef(Py_False));
            }
        }
    }
    PyMem_Free(jobs);
    return found;
}

/* The columns of an aggregate while they are filled. The two lists of numbers become columns when all tables are known,
 * because a table may follow the records that refer to it. */
typedef struct {
    PyObject *keys, *hash_keys;                 /* the tables, as lists of str */
    PyObject *payloads;                         /* list of bytes */
    PyObject *tags;                             /* dict: index of the record -> bytes */
    uint64_t *key_indices, *hash_key_indices;   /* one of each per record, or NO_INDEX */
    size_t room;                                /* how many indices fit in each */
} Columns;

#define NO_INDEX UINT64_MAX

static void free_columns(Columns *columns)
{
    Py_CLEAR(columns->keys);
    Py_CLEAR(columns->hash_keys);
    Py_CLEAR(columns->payloads);
    Py_CLEAR(columns->tags);
    PyMem_Free(columns->key_indices);
    PyMem_Free(columns->hash_key_indices);
    columns->key_indices = columns->hash_key_indices = NULL;
}

static int make_room(Columns *columns, size_t count)
{
    if (count < columns->room) {
        return 0;
    }
    size_t room = columns->room == 0 ? 64 : 2 * columns->room;
    uint64_t *grown = columns->key_indices;
    if (PyMem_Resize(grown, uint64_t, room) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    columns->key_indices = grown;
    grown = columns->hash_key_indices;
    if (PyMem_Resize(grown, uint64_t, room) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    columns->hash_key_indices = grown;
    columns->room = room;
    return 0;
}

/* Add one record. Returns 1 on success, 0 if the record is broken, or -1 with an exception. */
static int add_record(const Format *format, Columns *columns, Span record)
{
    RecordFields fields;
    Py_ssize_t place = PyList_GET_SIZE(columns->payloads);
    if (!read_record(format, record, &fields, NULL)) {
        return 0;
    }
    if (make_room(columns, (size_t)place) < 0) {
        return -1;
    }
    columns->key_indices[place] = fields.key_index;
    columns->hash_key_indices[place] = fields.has_hash_key_index ? fields.hash_key_index : NO_INDEX;
    if (fields.key_index == NO_INDEX || (fields.has_hash_key_index && fields.hash_key_index == NO_INDEX)) {
        return 0; /* no table is that long */
    }
    if (fields.tags_size > 0) {
        PyObject *index = PyLong_FromSsize_t(place);
        PyObject *tags = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)fields.tags_size);
        int kept = -1;
        if (index != NULL && tags != NULL) {
            read_record(format, record, &fields, (uint8_t *)PyBytes_AS_STRING(tags));
            kept = PyDict_SetItem(columns->tags, index, tags);
        }
        Py_XDECREF(index);
        Py_XDECREF(tags);
        if (kept < 0) {
            return -1;
        }
    }
    PyObject *payload =
        PyBytes_FromStringAndSize((const char *)fields.payload.bytes, (Py_ssize_t)fields.payload.size);
    return append_new(columns->payloads, payload) < 0 ? -1 : 1;
}

/* Add an entry to a table. Returns 1 on success, 0 if the entry is not UTF-8, or -1 with an exception. */
static int add_text(PyObject *table, Span text)
{
    PyObject *decoded = PyUnicode_DecodeUTF8((const char *)text.bytes, (Py_ssize_t)text.size, NULL);
    if (decoded == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        return 0;
    }
    return append_new(table, decoded) < 0 ? -1 : 1;
}

/* Read a whole message. Returns 1 on success, 0 if the message is broken, or -1 with an exception. */
static int read_message(const Format *format, Columns *columns, Cursor cursor)
{
    for (;;) {
        Span span;
        int result = 0;
        switch (next_field(format, &cursor, &span)) {
        case KEY:
            result = add_text(columns->keys, span);
            break;
        case HASH_KEY:
            result = add_text(columns->hash_keys, span);
            break;
        case RECORD:
            result = add_record(format, columns, span);
            break;
        case END:
            return PyList_GET_SIZE(columns->payloads) > 0;
        case BROKEN:
            return 0;
        }
        if (result <= 0) {
            return result;
        }
    }
}

/* Return a list of the texts at these indices, or NULL. If an index is out of range, no exception is set. */
static PyObject *look_up(const uint64_t *indices, Py_ssize_t count, PyObject *table)
{
    uint64_t size = (uint64_t)PyList_GET_SIZE(table);
    PyObject *column = PyList_New(count);
    for (Py_ssize_t i = 0; column != NULL && i < count; i++) {
        if (indices[i] < size) {
            PyList_SET_ITEM(column, i, Py_NewRef(PyList_GET_ITEM(table, (Py_ssize_t)indices[i])));
        }
        else if (indices[i] == NO_INDEX) {
            PyList_SET_ITEM(column, i, Py_NewRef(Py_None));
        }
        else {
            Py_CLEAR(column);
        }
    }
    return column;
}

/* split_message(blob: bytes) -> (keys, payloads, explicit hash keys, tags by index) | None
 *
 * The blob must be framed, as find_frames checks. The result is None if the message in the blob is broken. The blob is
 * then a plain record. */
PyObject *split_message(PyObject *module, PyObject *blob)
{
    if (!PyBytes_Check(blob) || (size_t)PyBytes_GET_SIZE(blob) < FRAME_SIZE) {
        PyErr_SetString(PyExc_TypeError, "split_message needs the bytes of a frame");
        return NULL;
    }
    const Format *format = &state_of_module(module)->format;
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(blob);
    Cursor cursor = {bytes + sizeof format->magic, bytes + PyBytes_GET_SIZE(blob) - MD5_SIZE};
    Columns columns = {PyList_New(0), PyList_New(0), PyList_New(0), PyDict_New(), NULL, NULL, 0};
    PyObject *keys = NULL, *hash_keys = NULL, *result = NULL;
    int is_read = -1;
    if (columns.keys != NULL && columns.hash_keys != NULL && columns.payloads != NULL && columns.tags != NULL) {
        is_read = read_message(format, &columns, cursor);
    }
    if (is_read > 0) {
        Py_ssize_t count = PyList_GET_SIZE(columns.payloads);
        keys = look_up(columns.key_indices, count, columns.keys);
        hash_keys = keys == NULL ? NULL : look_up(columns.hash_key_indices, count, columns.hash_keys);
        if (hash_keys != NULL) {
            result = PyTuple_Pack(4, keys, columns.payloads, hash_keys, columns.tags);
        }
    }
    if (result == NULL && !PyErr_Occurred()) {
        result = Py_NewRef(Py_None);
    }
    Py_XDECREF(keys);
    Py_XDECREF(hash_keys);
    free_columns(&columns);
    return result;
}

/* keys_in_range(keys: list[str], start: bytes, end: bytes, known: dict) -> list[bool]: whether the MD5 of each key, as a
 * number of 16 bytes, is at least start and at most end. `known` is the cache of the pure form, and is not used. Raises
 * UnicodeEncodeError if a key cannot be encoded. */
PyObject *keys_in_range(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    if (argument_count != 4 || !PyList_CheckExact(arguments[0]) || !PyBytes_Check(arguments[1]) ||
        !PyBytes_Check(arguments[2]) || PyBytes_GET_SIZE(arguments[1]) != MD5_SIZE ||
        PyBytes_GET_SIZE(arguments[2]) != MD5_SIZE) {
        PyErr_SetString(PyExc_TypeError, "keys_in_range needs a list of str, two numbers of 16 bytes, and a dict");
        return NULL;
    }
    PyObject *keys = arguments[0];
    Py_ssize_t count = PyList_GET_SIZE(keys);
    PyObject *inside = new_list_like(keys);
    Md5Job *jobs = inside == NULL ? NULL : new_jobs(count);
    if (jobs == NULL) {
        goto fail;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *key = PyList_GET_ITEM(keys, i);
        Py_ssize_t size = 0;
        if (!PyUnicode_Check(key)) {
            PyErr_SetString(PyExc_TypeError, "a partition key is a str");
            goto fail;
        }
        jobs[i].bytes = (const uint8_t *)PyUnicode_AsUTF8AndSize(key, &size); /* the key owns these bytes */
        jobs[i].size = (size_t)size;
        if (jobs[i].bytes == NULL) {
            goto fail;
        }
    }
    md5_side_by_side(jobs, (size_t)count);
    for (Py_ssize_t i = 0; i < count; i++) {
        int is_inside = memcmp(jobs[i].digest, PyBytes_AS_STRING(arguments[1]), MD5_SIZE) >= 0 &&
                        memcmp(jobs[i].digest, PyBytes_AS_STRING(arguments[2]), MD5_SIZE) <= 0;
        PyList_SET_ITEM(inside, i, PyBool_FromLong(is_inside));
    }
    PyMem_Free(jobs);
    return inside;
fail:
    PyMem_Free(jobs);
    Py_XDECREF(inside);
    return NULL;
}

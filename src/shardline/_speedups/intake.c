/* The loops over all records of a put_many, and over all records that the host takes from the intake. */
#include "speedups.h"

/* Whether an item of put_many is surely valid: an exact tuple of a key and data, where the data is bytes of at most
 * max_bytes together with the key, and the key is None or an ASCII str of 1 to key_max_length characters. */
static int is_plain(PyObject *item, Py_ssize_t max_bytes, Py_ssize_t key_max_length)
{
    if (!PyTuple_CheckExact(item) || PyTuple_GET_SIZE(item) != 2) {
        return 0;
    }
    PyObject *key = PyTuple_GET_ITEM(item, 0), *data = PyTuple_GET_ITEM(item, 1);
    Py_ssize_t length = 0;
    if (key != Py_None) {
        if (!PyUnicode_CheckExact(key) || !PyUnicode_IS_ASCII(key)) {
            return 0;
        }
        length = PyUnicode_GET_LENGTH(key);
        if (length == 0 || length > key_max_length) {
            return 0;
        }
    }
    return PyBytes_CheckExact(data) && PyBytes_GET_SIZE(data) <= max_bytes - length;
}

/* make_plain(delivery_type: type, items: list, max_bytes: int, key_max_length: int) -> list
 *
 * Return the deliveries of the first items of put_many, up to the first that is not surely valid. */
PyObject *make_plain(PyObject *module, PyObject *args)
{
    State *state = state_of_module(module);
    PyObject *type, *items;
    Py_ssize_t max_bytes, key_max_length, count = 0;
    if (!PyArg_ParseTuple(args, "OO!nn:make_plain", &type, &PyList_Type, &items, &max_bytes, &key_max_length)) {
        return NULL;
    }
    PyObject *deliveries = PyList_New(PyList_GET_SIZE(items)); /* may run a finalizer, which may change the items */
    for (; deliveries != NULL && count < PyList_GET_SIZE(items) && count < PyList_GET_SIZE(deliveries); count++) {
        PyObject *item = PyList_GET_ITEM(items, count);
        if (!is_plain(item, max_bytes, key_max_length)) {
            break;
        }
        PyObject *key = PyTuple_GET_ITEM(item, 0), *data = PyTuple_GET_ITEM(item, 1);
        PyObject *delivery = make_delivery(state, type, data, key, state->zero_seconds);
        if (delivery == NULL) {
            Py_CLEAR(deliveries);
            break;
        }
        PyList_SET_ITEM(deliveries, count, delivery);
    }
    if (deliveries != NULL && PyList_SetSlice(deliveries, count, PyList_GET_SIZE(deliveries), NULL) < 0) {
        Py_CLEAR(deliveries);
    }
    return deliveries;
}

/* The room that a record takes in the buffer: the length of its data, key and headers; -1 with an exception. */
static Py_ssize_t room_of(State *state, PyObject *record)
{
    PyObject *data = slot_of(record, state->slots.data), *key = slot_of(record, state->slots.key);
    PyObject *tags = slot_of(record, state->slots.tags);
    if (!PyBytes_Check(data) || !PyBytes_Check(tags) || (key != Py_None && !PyUnicode_Check(key))) {
        PyErr_SetString(PyExc_TypeError, "a record that is put has bytes as its data, and a str or None as its key");
        return -1;
    }
    return PyBytes_GET_SIZE(data) + PyBytes_GET_SIZE(tags) + (key == Py_None ? 0 : PyUnicode_GET_LENGTH(key));
}

/* Whether a value is a time: a float, or an int as some callers pass it. Comparing two times runs no Python code. */
static int is_time(PyObject *value)
{
    return PyFloat_CheckExact(value) || PyLong_CheckExact(value);
}

/* date_records(records: list, expires_at: float) -> int
 *
 * Set the expiry of each record, and return their total size in the buffer. */
PyObject *date_records(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = state_of_module(module);
    if (count != 2 || !PyList_CheckExact(args[0]) || !is_time(args[1])) {
        PyErr_SetString(PyExc_TypeError, "date_records needs a list of records and a number");
        return NULL;
    }
    PyObject *records = args[0], *expires_at = args[1];
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(records); i++) {
        PyObject *record = PyList_GET_ITEM(records, i);
        Py_ssize_t room = check_record(state, record) < 0 ? -1 : room_of(state, record);
        if (room < 0) {
            return NULL;
        }
        total += room;
        Py_XDECREF(replace_slot(record, state->slots.expires_at, Py_NewRef(expires_at))); /* a number: runs no code */
    }
    return PyLong_FromSsize_t(total);
}

/* keep_order(records: list, newest: float) -> float
 *
 * If a record would expire before the record before it, set its expiry to the expiry of that earlier record. newest is
 * the expiry of the record before the first one. Returns the expiry of the last record. */
PyObject *keep_order(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = state_of_module(module);
    if (count != 2 || !PyList_CheckExact(args[0]) || !is_time(args[1])) {
        PyErr_SetString(PyExc_TypeError, "keep_order needs a list of records and a number");
        return NULL;
    }
    PyObject *records = args[0], *newest = Py_NewRef(args[1]);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(records); i++) {
        PyObject *record = PyList_GET_ITEM(records, i);
        PyObject *expires_at = check_record(state, record) < 0 ? NULL : slot_of(record, state->slots.expires_at);
        if (expires_at == NULL || !is_time(expires_at)) {
            if (expires_at != NULL) {
                PyErr_SetString(PyExc_TypeError, "the expiry of a record is a number");
            }
            Py_DECREF(newest);
            return NULL;
        }
        int is_earlier = PyFloat_CheckExact(expires_at) && PyFloat_CheckExact(newest)
                             ? PyFloat_AS_DOUBLE(expires_at) < PyFloat_AS_DOUBLE(newest)
                             : PyObject_RichCompareBool(expires_at, newest, Py_LT);
        if (is_earlier < 0) {
            Py_DECREF(newest);
            return NULL;
        }
        if (is_earlier) {
            Py_XDECREF(replace_slot(record, state->slots.expires_at, Py_NewRef(newest)));
        }
        else {
            Py_SETREF(newest, Py_NewRef(expires_at));
        }
    }
    return newest;
}

/* without_ended(records: list) -> list
 *
 * Return the records that have neither been delivered nor failed. Runs no Python code. */
PyObject *without_ended(PyObject *module, PyObject *records)
{
    State *state = state_of_module(module);
    if (!PyList_CheckExact(records)) {
        PyErr_SetString(PyExc_TypeError, "without_ended needs a list of records");
        return NULL;
    }
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(records); i++) {
        PyObject *record = PyList_GET_ITEM(records, i);
        if (check_record(state, record) < 0 ||
            (slot_of(record, state->slots.ending) == Py_None && PyList_Append(found, record) < 0)) {
            Py_CLEAR(found);
        }
    }
    return found;
}

/* Settles the records of an aggregate that was stored. */
#include "speedups.h"

/* Settle one record as delivered at this place. If this fails before the ending is set, nothing is changed.
 *
 * Another thread may wait for the ending: it is set after the other fields, and before the waiters are read. The data is
 * released last, because the destructor of a subclass of bytes may run any code. */
static int settle_record(State *state, PyObject *record, Py_ssize_t place, PyObject *landing, PyObject *finished)
{
    if (slot_of(record, state->slots.ending) != Py_None) {
        PyErr_SetString(PyExc_AssertionError, "P1: a record ends once");
        return -1;
    }
    PyObject *number = PyLong_FromSsize_t(place);
    if (number == NULL) {
        return -1;
    }
    PyObject *old_place = replace_slot(record, state->slots.place, number);
    PyObject *data = replace_slot(record, state->slots.data, Py_NewRef(Py_None));
    PyObject *no_ending = replace_slot(record, state->slots.ending, Py_NewRef(landing));
    int failed = 0;
    if (slot_of(record, state->slots.waiters) != Py_None) {
        PyObject *result = PyObject_CallMethodOneArg(finished, state->str_append, record);
        failed = result == NULL;
        Py_XDECREF(result);
    }
    Py_XDECREF(no_ending);
    Py_XDECREF(old_place);
    Py_XDECREF(data);
    return failed ? -1 : 0;
}

/* settle_delivered(records: list, landing: Landing, finished: deque) -> int
 *
 * Set the ending of each record of an aggregate, and append the records with waiters to finished. Returns how many
 * records there are. Raises AssertionError when it reaches a record that has already ended. */
PyObject *settle_delivered(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    State *state = state_of_module(module);
    if (count != 3 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "settle_delivered needs a list of records, a landing and a deque");
        return NULL;
    }
    PyObject *records = args[0], *landing = args[1], *finished = args[2];
    Py_ssize_t place = 0;
    for (; place < PyList_GET_SIZE(records); place++) { /* the size is read again: a destructor may run any code */
        prefetch_records(state, ((PyListObject *)records)->ob_item, place, PyList_GET_SIZE(records));
        PyObject *record = Py_NewRef(PyList_GET_ITEM(records, place));
        int failed = check_record(state, record) < 0 || settle_record(state, record, place, landing, finished) < 0;
        Py_DECREF(record);
        if (failed) {
            return NULL;
        }
    }
    return PyLong_FromSsize_t(place);
}

/* Finds the fields of a buffered record.
 *
 * A record is a msgspec struct. Python code passes the class to bind_record once. The other files read and write its
 * fields without the cost of attribute access. */
#include "speedups.h"

/* bind_record(record_type: type) -> None
 *
 * Remember the class of the records. Raises TypeError, and changes nothing, if its fields differ from RECORD_SLOTS. */
PyObject *bind_record(PyObject *module, PyObject *record_type)
{
    State *state = state_of_module(module);
    RecordSlots slots;
    Py_ssize_t offsets[FIELDS_MAX], count;
    if (!PyType_Check(record_type)) {
        PyErr_SetString(PyExc_TypeError, "bind_record needs a class");
        return NULL;
    }
    if ((count = find_offsets((PyTypeObject *)record_type, offsets)) < 0) {
        return NULL;
    }
    PyObject *names = PyObject_GetAttrString(record_type, "__struct_fields__");
    if (names == NULL) {
        return NULL;
    }
    Py_ssize_t place = 0;
    int are_same = PyTuple_CheckExact(names) && PyTuple_GET_SIZE(names) == count;
#define FIND(name) \
    are_same = are_same && place < count && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, place), #name) == 0; \
    slots.name = are_same ? offsets[place++] : 0;
    RECORD_SLOTS(FIND)
#undef FIND
    Py_DECREF(names);
    if (!are_same || place != count) {
        PyErr_Format(PyExc_TypeError, "the fields of %s are not those of a record", ((PyTypeObject *)record_type)->tp_name);
        return NULL;
    }
    state->slots = slots;
    Py_CLEAR(state->last_type);
    Py_XSETREF(state->record_type, (PyTypeObject *)Py_NewRef(record_type));
    Py_RETURN_NONE;
}

int is_other_record_type(State *state, PyTypeObject *type)
{
    if (state->record_type == NULL || !PyType_IsSubtype(type, state->record_type) ||
        type->tp_basicsize != state->record_type->tp_basicsize || PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC)) {
        return 0;
    }
    Py_XSETREF(state->last_type, (PyTypeObject *)Py_NewRef(type));
    return 1;
}

int refuse_record(PyObject *record)
{
    PyErr_Format(PyExc_TypeError, "a buffered record is needed, not %.100s", Py_TYPE(record)->tp_name);
    return -1;
}

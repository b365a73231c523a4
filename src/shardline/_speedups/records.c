/* Where are the fields of a buffered record?
 *
 * A record is an instance of a Python class with slots. The class passes itself to bind_record once, and the other files
 * read and write its slots without the cost of attribute access. */
#include "speedups.h"
#include <structmember.h>

/* Return the offset of a slot of the class, or -1 with an exception. */
static Py_ssize_t offset_of(PyObject *record_type, const char *name)
{
    PyObject *slot = PyObject_GetAttrString(record_type, name);
    if (slot == NULL) {
        return -1;
    }
    Py_ssize_t offset = -1;
    if (Py_IS_TYPE(slot, &PyMemberDescr_Type)) {
        const PyMemberDef *member = ((PyMemberDescrObject *)slot)->d_member;
        if (member->type == T_OBJECT_EX && !(member->flags & READONLY)) {
            offset = member->offset;
        }
    }
    Py_DECREF(slot);
    if (offset <= 0) {
        PyErr_Format(PyExc_TypeError, "%s is not a slot of the record class", name);
        return -1;
    }
    return offset;
}

/* bind_record(record_type: type) -> None
 *
 * Remember the class of the records. Raises TypeError, and changes nothing, if the class lacks a slot. */
PyObject *bind_record(PyObject *module, PyObject *record_type)
{
    State *state = state_of_module(module);
    RecordSlots slots;
    if (!PyType_Check(record_type)) {
        PyErr_SetString(PyExc_TypeError, "bind_record needs a class");
        return NULL;
    }
#define FIND(name) \
    if ((slots.name = offset_of(record_type, #name)) < 0) { \
        return NULL; \
    }
    RECORD_SLOTS(FIND)
#undef FIND
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

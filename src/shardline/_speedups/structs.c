/* Makes lists, and many msgspec structs at once, field by field, without a call for each struct.
 *
 * The places of the fields come from the member descriptors of the type, which are public API of Python. The places are
 * checked, so that structs of a future msgspec with another layout are refused and not corrupted. */
#include "speedups.h"

#include <structmember.h>

#ifndef Py_T_OBJECT_EX
#define Py_T_OBJECT_EX T_OBJECT_EX
#endif

/* Return the new object. If the list no longer has the same length, release the object and raise RuntimeError. */
static PyObject *if_as_long_as(PyObject *list, PyObject *made)
{
    if (made != NULL && Py_SIZE(made) != PyList_GET_SIZE(list)) {
        PyErr_SetString(PyExc_RuntimeError, "a list has changed its length while it is read");
        Py_CLEAR(made);
    }
    return made;
}

PyObject *new_list_like(PyObject *list)
{
    return if_as_long_as(list, PyList_New(PyList_GET_SIZE(list)));
}

PyObject *tuple_of_list(PyObject *list)
{
    PyObject *made = if_as_long_as(list, PyTuple_New(PyList_GET_SIZE(list)));
    for (Py_ssize_t i = 0; made != NULL && i < PyList_GET_SIZE(list); i++) {
        PyTuple_SET_ITEM(made, i, Py_NewRef(PyList_GET_ITEM(list, i)));
    }
    return made;
}

Py_ssize_t find_offsets(PyTypeObject *type, Py_ssize_t offsets[FIELDS_MAX])
{
    Py_ssize_t count = -1;
    PyObject *names = PyObject_GetAttrString((PyObject *)type, "__struct_fields__");
    if (names == NULL || !PyTuple_CheckExact(names)) {
        goto refuse;
    }
    Py_ssize_t fields = PyTuple_GET_SIZE(names);
    Py_ssize_t whole = (Py_ssize_t)(sizeof(PyObject) + sizeof(PyObject *) * (size_t)fields);
    if (fields > FIELDS_MAX || type->tp_basicsize != whole || type->tp_itemsize != 0 ||
        PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC)) {
        goto refuse;
    }
    uint64_t taken = 0;
    for (Py_ssize_t i = 0; i < fields; i++) {
        PyObject *descriptor = PyObject_GetAttr((PyObject *)type, PyTuple_GET_ITEM(names, i));
        if (descriptor == NULL) {
            goto refuse;
        }
        int is_member = Py_TYPE(descriptor) == &PyMemberDescr_Type &&
                        ((PyMemberDescrObject *)descriptor)->d_member->type == Py_T_OBJECT_EX;
        Py_ssize_t offset = is_member ? ((PyMemberDescrObject *)descriptor)->d_member->offset : -1;
        Py_DECREF(descriptor); /* the type keeps it alive */
        Py_ssize_t slot = (offset - (Py_ssize_t)sizeof(PyObject)) / (Py_ssize_t)sizeof(PyObject *);
        if (offset < (Py_ssize_t)sizeof(PyObject) || slot >= fields || offset % (Py_ssize_t)sizeof(PyObject *) != 0 ||
            taken >> slot & 1) {
            goto refuse;
        }
        taken |= (uint64_t)1 << slot;
        offsets[i] = offset;
    }
    count = fields;
refuse:
    Py_XDECREF(names);
    if (count < 0 && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_AttributeError))) {
        PyErr_Format(PyExc_TypeError, "%s is not a struct of the expected layout", type->tp_name);
    }
    return count;
}

/* make_structs(cls, count: int, columns: tuple) -> list
 *
 * Each of the columns is a list of `count` values, one for each struct, or a tuple of one value for all structs. There
 * is a column for each field of cls, which is a msgspec struct with gc=False and without __post_init__. */
PyObject *make_structs(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count)
{
    Py_ssize_t offsets[FIELDS_MAX], fields;
    if (argument_count != 3 || !PyType_Check(arguments[0]) || !PyLong_CheckExact(arguments[1]) ||
        !PyTuple_CheckExact(arguments[2])) {
        PyErr_SetString(PyExc_TypeError, "make_structs needs a type, a number and a tuple of columns");
        return NULL;
    }
    PyTypeObject *type = (PyTypeObject *)arguments[0];
    Py_ssize_t count = PyLong_AsSsize_t(arguments[1]);
    PyObject *columns = arguments[2];
    if ((count == -1 && PyErr_Occurred()) || (fields = find_offsets(type, offsets)) < 0) {
        return NULL;
    }
    int fit = count >= 0 && PyTuple_GET_SIZE(columns) == fields;
    PyObject *structs = fit ? PyList_New(count) : NULL; /* first, because it may run Python code */
    if (fit && structs == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; fit && i < fields; i++) {
        PyObject *column = PyTuple_GET_ITEM(columns, i);
        fit = PyList_CheckExact(column) ? PyList_GET_SIZE(column) == count
                                        : PyTuple_CheckExact(column) && PyTuple_GET_SIZE(column) == 1;
    }
    if (!fit) {
        PyErr_SetString(PyExc_TypeError, "a column for each field needs a value for each struct, or one for all");
        Py_CLEAR(structs);
    }
    for (Py_ssize_t i = 0; structs != NULL && i < count; i++) {
        PyObject *made = PyObject_New(PyObject, type);
        if (made == NULL) {
            Py_CLEAR(structs);
            break;
        }
        for (Py_ssize_t field = 0; field < fields; field++) {
            PyObject *column = PyTuple_GET_ITEM(columns, field);
            PyObject *value = PyList_CheckExact(column) ? PyList_GET_ITEM(column, i) : PyTuple_GET_ITEM(column, 0);
            *(PyObject **)((char *)made + offsets[field]) = Py_NewRef(value);
        }
        PyList_SET_ITEM(structs, i, made);
    }
    return structs;
}

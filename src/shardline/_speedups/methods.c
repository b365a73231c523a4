/* Method: a method of a Python class whose common case is compiled. The pure method handles all other cases.
 *
 * A Method looks like the pure method that it wraps: inspect, help() and the tests for coroutine functions see the
 * attributes of the pure method. */
#include "speedups.h"
#include <structmember.h>

static const struct {
    const char *name;
    vectorcallfunc call;
} kinds[] = {
    {"put_async", put_async},
    {"put_blocking", put_blocking},
    {"await_delivery", await_delivery},
    {"wait_for_delivery", wait_for_delivery},
};

/* make_method(name: str, pure: function) -> Method */
PyObject *make_method(PyObject *module, PyObject *args)
{
    State *state = state_of_module(module);
    const char *name;
    PyObject *pure;
    if (!PyArg_ParseTuple(args, "sO!:make_method", &name, &PyFunction_Type, &pure)) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            Method *method = PyObject_GC_New(Method, state->method_type);
            if (method == NULL) {
                return NULL;
            }
            method->vectorcall = kinds[i].call;
            method->state = state;
            method->module = Py_NewRef(module);
            method->wrapped = Py_NewRef(pure);
            method->weak_references = NULL;
            PyObject_GC_Track(method);
            return (PyObject *)method;
        }
    }
    return PyErr_Format(PyExc_AttributeError, "no method %s is compiled", name);
}

static PyObject *bind_method(PyObject *self, PyObject *instance, PyObject *owner)
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

/* The attributes of the pure method. */
static PyObject *attribute_of_method(PyObject *self, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        value = PyObject_GetAttr(((Method *)self)->wrapped, name);
    }
    return value;
}

static PyObject *name_of_method(PyObject *self, void *name)
{
    return PyObject_GetAttrString(((Method *)self)->wrapped, name);
}

static PyObject *repr_of_method(PyObject *self)
{
    return PyObject_Repr(((Method *)self)->wrapped);
}

static int visit_method(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Method *)self)->wrapped);
    Py_VISIT(((Method *)self)->module);
    return 0;
}

static int clear_method(PyObject *self)
{
    return 0; /* the pure method is cleared by its own type; a Method in a cycle can still be called */
}

static void free_method(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    Py_DECREF(((Method *)self)->wrapped);
    Py_DECREF(((Method *)self)->module);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* A Method is pickled and copied by its name, like a function of a module. */
static PyObject *reduce_method(PyObject *self, PyObject *unused)
{
    return PyObject_GetAttrString(((Method *)self)->wrapped, "__qualname__");
}

static PyMethodDef method_methods[] = {
    {"__reduce__", reduce_method, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Method, vectorcall), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Method, weak_references), READONLY, NULL},
    {"__wrapped__", T_OBJECT_EX, offsetof(Method, wrapped), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define NAME(name) {name, name_of_method, NULL, NULL, name}
static PyGetSetDef method_names[] = {
    NAME("__doc__"), NAME("__name__"), NAME("__qualname__"), NAME("__module__"),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot method_slots[] = {
    {Py_tp_dealloc, free_method},
    {Py_tp_traverse, visit_method},
    {Py_tp_clear, clear_method},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, bind_method},
    {Py_tp_getattro, attribute_of_method},
    {Py_tp_repr, repr_of_method},
    {Py_tp_members, method_members},
    {Py_tp_methods, method_methods},
    {Py_tp_getset, method_names},
    {0, NULL},
};

PyType_Spec method_spec = {
    .name = "shardline._speedups._native.Method",
    .basicsize = sizeof(Method),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
             Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = method_slots,
};

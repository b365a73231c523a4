/* put without a coroutine: Putter has the fields of a producer that a put reads, and PutCall is what put returns.
 *
 * Only the common case is handled here: data that is bytes, an ASCII key, and no trace. A call with any other arguments
 * returns the coroutine of the pure method. So does a PutCall, in its first step, if the gate of the intake is closed, if it is time
 * to yield, or if the caller runs in another event loop: it then passes everything on to that coroutine. */
#include "speedups.h"
#include <structmember.h>

/* ---- TraceGate */

TRACKED_CLASS(TraceGate, gate, GATE_OBJECTS)

#define VALUE(name) {#name, T_OBJECT, offsetof(TraceGate, name), 0, NULL},
static PyMemberDef gate_members[] = {
    GATE_OBJECTS(VALUE)
    {NULL, 0, 0, 0, NULL},
};
#undef VALUE

static PyType_Slot gate_slots[] = {
    {Py_tp_dealloc, free_gate},
    {Py_tp_traverse, visit_gate},
    {Py_tp_clear, clear_gate},
    {Py_tp_members, gate_members},
    {Py_tp_doc, (void *)PyDoc_STR("The fields that say whether a put is in a trace.")},
    {0, NULL},
};

PyType_Spec trace_gate_spec = {
    .name = "shardline._speedups._native.TraceGate",
    .basicsize = sizeof(TraceGate),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = gate_slots,
};

/* Whether a put in the current context surely needs no headers of a trace; -1 with an exception. */
static int is_untraced(State *state, PyObject *trace)
{
    if (trace == NULL || trace == Py_None) {
        return 1;
    }
    if (!PyObject_TypeCheck(trace, state->trace_gate_type)) {
        return 0;
    }
    TraceGate *gate = (TraceGate *)trace;
    if (gate->variable == NULL || !PyContextVar_CheckExact(gate->variable)) {
        return 0;
    }
    PyObject *current;
    if (PyContextVar_Get(gate->variable, Py_None, &current) < 0) {
        return -1;
    }
    int is_same = current == (gate->untraced == NULL ? Py_None : gate->untraced);
    Py_DECREF(current);
    return is_same;
}

/* ---- Putter */

TRACKED_CLASS(Putter, putter, PUTTER_OBJECTS)

#define VALUE(name) {#name, T_OBJECT, offsetof(Putter, name), 0, NULL},
static PyMemberDef putter_members[] = {
    PUTTER_OBJECTS(VALUE)
    {"_ttl", T_DOUBLE, offsetof(Putter, ttl), 0, NULL},
    {"_until_yield", T_PYSSIZET, offsetof(Putter, until_yield), 0, NULL},
    {"_key_max_length", T_PYSSIZET, offsetof(Putter, key_max_length), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot putter_slots[] = {
    {Py_tp_dealloc, free_putter},
    {Py_tp_traverse, visit_putter},
    {Py_tp_clear, clear_putter},
    {Py_tp_members, putter_members},
    {Py_tp_doc, (void *)PyDoc_STR("The fields of a producer that a put reads.")},
    {0, NULL},
};

PyType_Spec putter_spec = {
    .name = "shardline._speedups._native.Putter",
    .basicsize = sizeof(Putter),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = putter_slots,
};

/* Whether the caller runs in the event loop of the producer; -1 with an exception.
 *
 * An event loop runs each of its callbacks in a context, and Python gives the context of a thread another version
 * whenever a context is entered or left. So the caller is in the same loop as before as long as the version is the
 * same. Asking the loop's library each time would cost a system call on Python 3.11, and a call of a Python function on
 * trio. */
static int is_in_loop(Putter *putter)
{
    PyThreadState *thread = PyThreadState_Get();
    uint64_t id = PyThreadState_GetID(thread);
    if (putter->thread == id && putter->context == thread->context_ver) {
        return 1;
    }
    if (putter->_running_loop == NULL || putter->_loop == NULL) {
        return 0;
    }
    PyObject *running = PyObject_CallNoArgs(putter->_running_loop);
    if (running == NULL) { /* the caller is in an event loop of the other library */
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    int is_here = running == putter->_loop;
    Py_DECREF(running);
    if (is_here) {
        putter->thread = id;
        putter->context = thread->context_ver;
    }
    return is_here;
}

/* Accept a record whose data is bytes and whose key is an ASCII str. Returns its delivery, a new reference. NULL without an
 * exception means that the record was not accepted: the pure method has to decide. */
static PyObject *accept_plain(State *state, const Putter *putter, PyObject *data, PyObject *key)
{
    Py_ssize_t length = PyUnicode_GET_LENGTH(key);
    if (length == 0 || length > putter->key_max_length || is_untraced(state, putter->_trace) != 1 ||
        putter->_intake == NULL || !PyObject_TypeCheck(putter->_intake, state->room_type)) {
        return NULL;
    }
    PyObject *expires_at = PyFloat_FromDouble(monotonic_time() + putter->ttl);
    PyObject *delivery = NULL;
    if (expires_at != NULL) {
        delivery = make_delivery(state, putter->_delivery_type, data, key, expires_at);
        Py_DECREF(expires_at);
    }
    if (delivery == NULL) {
        return NULL;
    }
    if (accept_quietly((Room *)putter->_intake, delivery, PyBytes_GET_SIZE(data) + length) != 1) {
        Py_CLEAR(delivery);
    }
    return delivery;
}

/* Set the data and the key of a call put(self, data, key=key) of the common kind. Returns whether it is of that kind. */
static int is_plain_call(State *state, PyObject *const *args, size_t nargsf, PyObject *names, PyObject **data, PyObject **key)
{
    if (PyVectorcall_NARGS(nargsf) != 2 || names == NULL || PyTuple_GET_SIZE(names) != 1 ||
        PyTuple_GET_ITEM(names, 0) != state->str_key || !PyObject_TypeCheck(args[0], state->putter_type)) {
        return 0;
    }
    *data = args[1];
    *key = args[2];
    return PyBytes_CheckExact(*data) && PyUnicode_CheckExact(*key) && PyUnicode_IS_ASCII(*key);
}

PyObject *put_blocking(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Method *method = (Method *)callable;
    PyObject *data, *key;
    if (is_plain_call(method->state, args, nargsf, names, &data, &key)) {
        PyObject *delivery = accept_plain(method->state, (Putter *)args[0], data, key);
        if (delivery != NULL || PyErr_Occurred()) {
            return delivery;
        }
    }
    return PyObject_Vectorcall(method->wrapped, args, nargsf, names);
}

/* ---- PutCall */

typedef enum { CREATED, RUNNING, PASSED_ON, FINISHED } Step;

typedef struct {
    PyObject_HEAD
    Method *method;
    PyObject *producer, *data, *key; /* NULL once the call has finished */
    PyObject *inner;                 /* the coroutine of the pure method, after the step PASSED_ON */
    Step step;
} PutCall;

PyObject *put_async(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Method *method = (Method *)callable;
    PyObject *data, *key;
    if (!is_plain_call(method->state, args, nargsf, names, &data, &key)) {
        return PyObject_Vectorcall(method->wrapped, args, nargsf, names);
    }
    PutCall *call = PyObject_GC_New(PutCall, method->state->put_call_type);
    if (call == NULL) {
        return NULL;
    }
    call->method = (Method *)Py_NewRef(callable);
    call->producer = Py_NewRef(args[0]);
    call->data = Py_NewRef(data);
    call->key = Py_NewRef(key);
    call->inner = NULL;
    call->step = CREATED;
    PyObject_GC_Track(call);
    return (PyObject *)call;
}

/* Drop everything that only a call in progress needs. */
static void finish(PutCall *call)
{
    call->step = FINISHED;
    Py_CLEAR(call->producer);
    Py_CLEAR(call->data);
    Py_CLEAR(call->key);
    Py_CLEAR(call->inner);
}

/* Start the coroutine of the pure method. */
static int pass_on(PutCall *call)
{
    if (call->step == FINISHED || call->step == RUNNING) {
        PyErr_SetString(call->step == RUNNING ? PyExc_ValueError : PyExc_RuntimeError,
                        call->step == RUNNING ? "coroutine already executing" : "cannot reuse already awaited coroutine");
        return -1;
    }
    if (call->step == CREATED) {
        PyObject *args[] = {call->producer, call->data, call->key};
        call->inner = PyObject_Vectorcall(call->method->wrapped, args, 2, call->method->state->names_of_key);
        if (call->inner == NULL) {
            return -1;
        }
        call->step = PASSED_ON;
    }
    return 0;
}

/* Accept the record if this needs neither waiting nor further checks. Returns the delivery, or NULL, with or without an
 * exception. */
static PyObject *try_put(PutCall *call)
{
    Putter *putter = (Putter *)call->producer;
    if (putter->until_yield <= 1) {
        return NULL;
    }
    call->step = RUNNING;
    int is_here = is_in_loop(putter); /* on trio, this runs Python code */
    call->step = CREATED;
    if (is_here != 1) {
        return NULL;
    }
    PyObject *delivery = accept_plain(call->method->state, putter, call->data, call->key);
    if (delivery != NULL) {
        putter->until_yield--;
    }
    return delivery;
}

static PySendResult send_to_call(PyObject *self, PyObject *value, PyObject **result)
{
    PutCall *call = (PutCall *)self;
    *result = NULL;
    if (call->step == CREATED) {
        if (value != Py_None) {
            PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started coroutine");
            return PYGEN_ERROR;
        }
        *result = try_put(call);
        if (*result != NULL || PyErr_Occurred()) {
            finish(call);
            return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
        }
    }
    if (pass_on(call) < 0) {
        return PYGEN_ERROR;
    }
    PyObject *inner = Py_NewRef(call->inner);
    PySendResult sent = PyIter_Send(inner, value, result);
    Py_DECREF(inner);
    if (sent != PYGEN_NEXT) {
        finish(call);
    }
    return sent;
}

static PyObject *next_of_call(PyObject *self)
{
    PyObject *result = NULL;
    return value_of_send(send_to_call(self, Py_None, &result), &result);
}

static PyObject *send_method(PyObject *self, PyObject *value)
{
    PyObject *result = NULL;
    return value_of_send(send_to_call(self, value, &result), &result);
}

static PyObject *throw_method(PyObject *self, PyObject *args)
{
    PutCall *call = (PutCall *)self;
    if (pass_on(call) < 0) {
        return NULL;
    }
    PyObject *inner = Py_NewRef(call->inner), *throw = PyObject_GetAttrString(inner, "throw"), *result = NULL;
    if (throw != NULL) {
        result = PyObject_Call(throw, args, NULL);
        if (result == NULL) {
            finish(call);
        }
    }
    Py_XDECREF(throw);
    Py_DECREF(inner);
    return result;
}

static PyObject *close_method(PyObject *self, PyObject *unused)
{
    PutCall *call = (PutCall *)self;
    PyObject *inner = Py_XNewRef(call->inner), *closed = Py_NewRef(Py_None);
    if (inner != NULL) {
        Py_SETREF(closed, PyObject_CallMethod(inner, "close", NULL));
        Py_DECREF(inner);
    }
    if (closed != NULL && call->step != RUNNING) {
        finish(call);
    }
    return closed;
}

static PyObject *name_of_call(PyObject *self, void *name)
{
    return PyObject_GetAttrString(((PutCall *)self)->method->wrapped, name);
}

/* The attributes by which inspect.getcoroutinestate, anyio and asyncio examine a coroutine. They are those of the
 * coroutine of the pure method, which is created for this purpose if the call has not started. */
static PyObject *state_of_call(PyObject *self, void *name)
{
    PutCall *call = (PutCall *)self;
    if (call->step == CREATED && pass_on(call) < 0) {
        return NULL;
    }
    if (call->step == PASSED_ON) {
        return PyObject_GetAttrString(call->inner, name);
    }
    if (strcmp(name, "cr_code") == 0) {
        return PyObject_GetAttrString(call->method->wrapped, "__code__");
    }
    if (strcmp(name, "cr_running") == 0 || strcmp(name, "cr_suspended") == 0) {
        return PyBool_FromLong(call->step == RUNNING && strcmp(name, "cr_running") == 0);
    }
    Py_RETURN_NONE;
}

static PyObject *repr_of_call(PyObject *self)
{
    PyObject *name = name_of_call(self, "__qualname__");
    PyObject *text = name == NULL ? NULL : PyUnicode_FromFormat("<coroutine object %U at %p>", name, self);
    Py_XDECREF(name);
    return text;
}

/* Warn if the call was never awaited, as Python does for a coroutine. */
static void finalize_call(PyObject *self)
{
    if (((PutCall *)self)->step != CREATED) {
        return;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *name = name_of_call(self, "__qualname__");
    if (name == NULL || PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "coroutine '%U' was never awaited", name) < 0) {
        PyErr_WriteUnraisable(self);
    }
    Py_XDECREF(name);
    PyErr_Restore(type, value, traceback);
}

static int visit_call(PyObject *self, visitproc visit, void *arg)
{
    PutCall *call = (PutCall *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(call->method);
    Py_VISIT(call->producer);
    Py_VISIT(call->data);
    Py_VISIT(call->key);
    Py_VISIT(call->inner);
    return 0;
}

static int clear_call(PyObject *self)
{
    finish((PutCall *)self);
    return 0;
}

static void free_call(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (((PutCall *)self)->step == CREATED && PyObject_CallFinalizerFromDealloc(self) < 0) {
        return; /* code that handled the warning has kept the call */
    }
    PyObject_GC_UnTrack(self);
    finish((PutCall *)self);
    Py_DECREF(((PutCall *)self)->method);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef call_methods[] = {
    {"send", send_method, METH_O, PyDoc_STR("send($self, value, /)\n--\n\nResume the put.")},
    {"throw", throw_method, METH_VARARGS, PyDoc_STR("Raise an exception inside the put.")},
    {"close", close_method, METH_NOARGS, PyDoc_STR("close($self, /)\n--\n\nEnd the put.")},
    {NULL, NULL, 0, NULL},
};

#define STATE(name) {name, state_of_call, NULL, NULL, name}
static PyGetSetDef call_names[] = {
    {"__name__", name_of_call, NULL, NULL, "__name__"},
    {"__qualname__", name_of_call, NULL, NULL, "__qualname__"},
    STATE("cr_await"), STATE("cr_code"), STATE("cr_frame"), STATE("cr_origin"), STATE("cr_running"), STATE("cr_suspended"),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_dealloc, free_call},
    {Py_tp_finalize, finalize_call},
    {Py_tp_traverse, visit_call},
    {Py_tp_clear, clear_call},
    {Py_tp_repr, repr_of_call},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, next_of_call},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, send_to_call},
    {Py_tp_methods, call_methods},
    {Py_tp_getset, call_names},
    {Py_tp_doc, (void *)PyDoc_STR("A put that can be awaited. The record is accepted in the first step.")},
    {0, NULL},
};

PyType_Spec put_call_spec = {
    .name = "shardline._speedups._native.PutCall",
    .basicsize = sizeof(PutCall),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = call_slots,
};

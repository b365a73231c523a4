/* Makes deliveries and receipts, and returns the receipt of a delivery that has succeeded in one attempt.
 *
 * Deliveries and receipts are msgspec structs without garbage collection. Their layout is checked once, by bind_record
 * and bind_receipt. */
#include "speedups.h"

PyObject *make_delivery(State *state, PyObject *type, PyObject *data, PyObject *key, PyObject *expires_at)
{
    if (type == NULL || !PyType_Check(type) || !is_record_type(state, (PyTypeObject *)type)) {
        PyErr_SetString(PyExc_TypeError, "the class of deliveries must be a class of records without further fields");
        return NULL;
    }
    PyObject *record = PyObject_New(PyObject, (PyTypeObject *)type);
    if (record == NULL) {
        return NULL;
    }
    const RecordSlots *slots = &state->slots;
    fill_slot(record, slots->data, Py_NewRef(data));
    fill_slot(record, slots->key, Py_NewRef(key));
    fill_slot(record, slots->explicit_hash_key, Py_NewRef(Py_None));
    fill_slot(record, slots->expires_at, Py_NewRef(expires_at));
    fill_slot(record, slots->ending, Py_NewRef(Py_None));
    fill_slot(record, slots->place, Py_NewRef(state->zero));
    fill_slot(record, slots->history, Py_NewRef(Py_None));
    fill_slot(record, slots->waiters, Py_NewRef(Py_None));
    fill_slot(record, slots->extra_ttl, Py_NewRef(state->zero_seconds));
    fill_slot(record, slots->tags, Py_NewRef(state->no_bytes));
    return record;
}

/* bind_receipt(receipt_type: type, landing_type: type) -> None
 *
 * Remember the classes of receipts and landings, and where their fields are. */
PyObject *bind_receipt(PyObject *module, PyObject *args)
{
    State *state = state_of_module(module);
    PyTypeObject *receipt, *landing;
    Py_ssize_t receipt_offsets[FIELDS_MAX], landing_offsets[FIELDS_MAX];
    if (!PyArg_ParseTuple(args, "O!O!:bind_receipt", &PyType_Type, &receipt, &PyType_Type, &landing)) {
        return NULL;
    }
    Py_ssize_t receipts = find_offsets(receipt, receipt_offsets);
    Py_ssize_t landings = receipts < 0 ? -1 : find_offsets(landing, landing_offsets);
    if (landings < 0) {
        return NULL;
    }
    if (receipts != 5 || landings != 3) {
        PyErr_SetString(PyExc_TypeError, "a receipt has five fields, and a landing three");
        return NULL;
    }
    memcpy(state->receipt_offsets, receipt_offsets, sizeof state->receipt_offsets);
    memcpy(state->landing_offsets, landing_offsets, sizeof state->landing_offsets);
    Py_XSETREF(state->receipt_type, (PyTypeObject *)Py_NewRef(receipt));
    Py_XSETREF(state->landing_type, (PyTypeObject *)Py_NewRef(landing));
    Py_RETURN_NONE;
}

/* Whether this is a record that was delivered in one attempt. */
static int is_delivered(State *state, PyObject *record)
{
    return state->landing_type != NULL && is_record_type(state, Py_TYPE(record)) &&
           Py_IS_TYPE(slot_of(record, state->slots.ending), state->landing_type) &&
           slot_of(record, state->slots.history) == Py_None;
}

/* Return the receipt of a record that was delivered in one attempt. */
static PyObject *make_receipt(State *state, PyObject *record)
{
    PyObject *landing = slot_of(record, state->slots.ending), *place = slot_of(record, state->slots.place);
    int is_alone = !PyLong_Check(place); /* if so, the place is the sequence number */
    PyObject *values[5] = {
        slot_of(landing, state->landing_offsets[0]),
        is_alone ? place : slot_of(landing, state->landing_offsets[1]),
        is_alone ? state->zero : place,
        slot_of(landing, state->landing_offsets[2]),
        state->one,
    };
    PyObject *receipt = PyObject_New(PyObject, state->receipt_type);
    for (int i = 0; receipt != NULL && i < 5; i++) {
        fill_slot(receipt, state->receipt_offsets[i], Py_NewRef(values[i]));
    }
    return receipt;
}

/* ---- Ready: an awaitable that already has its result */

typedef struct {
    PyObject_HEAD
    PyObject *value; /* a receipt; NULL once it was taken */
} Ready;

PyObject *value_of_send(PySendResult sent, PyObject **result)
{
    if (sent == PYGEN_RETURN) { /* the result is neither a tuple nor an exception, so it becomes the value as it is */
        PyErr_SetObject(PyExc_StopIteration, *result);
        Py_CLEAR(*result);
    }
    return *result;
}

static PySendResult send_to_ready(PyObject *self, PyObject *value, PyObject **result)
{
    *result = ((Ready *)self)->value;
    ((Ready *)self)->value = NULL;
    if (*result == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited delivery");
        return PYGEN_ERROR;
    }
    return PYGEN_RETURN;
}

static PyObject *next_of_ready(PyObject *self)
{
    PyObject *result = NULL;
    return value_of_send(send_to_ready(self, Py_None, &result), &result);
}

static void free_ready(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((Ready *)self)->value);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot ready_slots[] = {
    {Py_tp_dealloc, free_ready},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, next_of_ready},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, send_to_ready},
    {Py_tp_doc, (void *)PyDoc_STR("The iterator of a delivery that has its receipt.")},
    {0, NULL},
};

PyType_Spec ready_spec = {
    .name = "shardline._speedups._native.Ready",
    .basicsize = sizeof(Ready),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = ready_slots,
};

PyObject *await_delivery(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Method *method = (Method *)callable;
    State *state = method->state;
    if (PyVectorcall_NARGS(nargsf) != 1 || names != NULL || !is_delivered(state, args[0])) {
        return PyObject_Vectorcall(method->wrapped, args, nargsf, names);
    }
    PyObject *receipt = make_receipt(state, args[0]);
    Ready *ready = receipt == NULL ? NULL : PyObject_New(Ready, state->ready_type);
    if (ready == NULL) {
        Py_XDECREF(receipt);
        return NULL;
    }
    ready->value = receipt;
    return (PyObject *)ready;
}

PyObject *wait_for_delivery(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Method *method = (Method *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf), named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    int is_plain = given >= 1 && given + named <= 2;
    if (is_plain && given + named == 2) {
        PyObject *timeout = args[1];
        is_plain = (named == 0 || PyTuple_GET_ITEM(names, 0) == method->state->str_timeout) &&
                   (timeout == Py_None || (PyFloat_CheckExact(timeout) && PyFloat_AS_DOUBLE(timeout) >= 0));
    }
    if (is_plain && is_delivered(method->state, args[0])) {
        return make_receipt(method->state, args[0]);
    }
    return PyObject_Vectorcall(method->wrapped, args, nargsf, names);
}

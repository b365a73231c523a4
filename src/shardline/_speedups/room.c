/* The room in the intake: which records have been accepted, and whether a further record fits without a wake-up.
 *
 * core/producer/intake.py describes the rules, and holds the pure twin. Nothing here runs Python code between the check
 * and the append, and the GIL is held, so a signal handler, a finalizer or another thread sees both or neither (P1). */
#include "speedups.h"
#include <structmember.h>

/* The results of accept. They are the values of the enumeration Put. */
enum { REFUSED, FULL, QUIET, WAKE };

/* Return how many callers wait for room; -1 with an exception. */
static Py_ssize_t count_waiters(const Room *room)
{
    return room->waiters == NULL ? 0 : PyObject_Size(room->waiters);
}

int accept_quietly(Room *room, PyObject *record, Py_ssize_t size)
{
    if (room->reserved_records >= room->quiet_records || size > room->quiet_bytes - room->reserved_bytes ||
        room->serializes || (room->refusal != NULL && room->refusal != Py_None)) {
        return 0;
    }
    Py_ssize_t waiting = count_waiters(room);
    if (waiting != 0) {
        return waiting < 0 ? -1 : 0;
    }
    if (room->records == NULL || !PyList_CheckExact(room->records)) {
        PyErr_SetString(PyExc_TypeError, "the records of an intake are a list");
        return -1;
    }
    if (PyList_Append(room->records, record) < 0) {
        return -1;
    }
    room->reserved_records++;
    room->reserved_bytes += size;
    return 1;
}

/* Decide whether records fit, and append them if they do. Returns a value of Put; -1 with an exception. */
static int accept_records(Room *room, PyObject *records, Py_ssize_t size, int in_turn)
{
    Py_ssize_t waiting = count_waiters(room), count = PyList_GET_SIZE(records);
    if (waiting < 0) {
        return -1;
    }
    if (room->records == NULL || !PyList_CheckExact(room->records) || size < 0) {
        PyErr_SetString(PyExc_TypeError, "accept needs a list of records, and a size that is not negative");
        return -1;
    }
    if (room->refusal != NULL && room->refusal != Py_None) {
        return REFUSED;
    }
    Py_ssize_t reserved = room->reserved_records + count, reserved_bytes = room->reserved_bytes + size;
    if (reserved > room->limit_records || (waiting > 0 && !in_turn)) {
        return FULL;
    }
    int is_empty = room->reserved_records <= room->limit_records - room->max_records;
    if (reserved_bytes > room->limit_bytes && (count > 1 || !is_empty)) {
        return FULL;
    }
    Py_ssize_t end = PyList_GET_SIZE(room->records);
    if (PyList_SetSlice(room->records, end, end, records) < 0) {
        return -1;
    }
    room->reserved_records = reserved;
    room->reserved_bytes = reserved_bytes;
    return reserved <= room->quiet_records && reserved_bytes <= room->quiet_bytes ? QUIET : WAKE;
}

/* Room.accept(records: list, size: int, in_turn: bool) -> int */
static PyObject *accept(PyObject *self, PyObject *args)
{
    PyObject *records;
    Py_ssize_t size;
    int in_turn, result;
    if (!PyArg_ParseTuple(args, "O!np:accept", &PyList_Type, &records, &size, &in_turn)) {
        return NULL;
    }
    result = accept_records((Room *)self, records, size, in_turn);
    return result < 0 ? NULL : PyLong_FromLong(result);
}

TRACKED_CLASS(Room, room, ROOM_OBJECTS)

#define NUMBER(name) {#name, T_PYSSIZET, offsetof(Room, name), 0, NULL}
#define VALUE(name) {#name, T_OBJECT, offsetof(Room, name), 0, NULL},
static PyMemberDef room_members[] = {
    ROOM_OBJECTS(VALUE)
    NUMBER(reserved_records), NUMBER(reserved_bytes), NUMBER(limit_records), NUMBER(limit_bytes),
    NUMBER(quiet_records), NUMBER(quiet_bytes), NUMBER(max_records),
    {"serializes", T_BOOL, offsetof(Room, serializes), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef room_methods[] = {
    {"accept", accept, METH_VARARGS,
     PyDoc_STR("accept($self, records, size, in_turn, /)\n--\n\nAppend all records or none, and return a value of Put.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot room_slots[] = {
    {Py_tp_dealloc, free_room},
    {Py_tp_traverse, visit_room},
    {Py_tp_clear, clear_room},
    {Py_tp_methods, room_methods},
    {Py_tp_members, room_members},
    {Py_tp_doc, (void *)PyDoc_STR("The records of an intake, and the room that they take.")},
    {0, NULL},
};

PyType_Spec room_spec = {
    .name = "shardline._speedups._native.Room",
    .basicsize = sizeof(Room),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = room_slots,
};

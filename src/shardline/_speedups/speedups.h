/* What the files of the extension share: the state of the module, and the functions of each file.
 *
 * Rules of every file:
 *  - A function that returns a PyObject * or an int follows the convention of CPython: NULL or -1 means that an
 *    exception is set. If a function does otherwise, its comment says so.
 *  - There is no global state. Everything that lives longer than a call is in State, which belongs to one module object.
 *  - Every allocation is checked.
 *  - Code that can run Python (a destructor, a comparison, a hash of a subclass) is called only when the structures
 *    of the extension are consistent, and no borrowed reference is used after it.
 */
#ifndef SHARDLINE_SPEEDUPS_H
#define SHARDLINE_SPEEDUPS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "aggregate_format.h"

#ifdef Py_GIL_DISABLED
#error "the extension is not proved for free-threaded builds of Python"
#endif

/* The Python objects that the module keeps, with one line for each. They are visited and cleared by module.c. */
#define STATE_OBJECTS(X) \
    X(PyObject *, version) \
    X(PyObject *, str_append) \
    X(PyObject *, zlib_crc32) \
    X(PyObject *, str_key) \
    X(PyObject *, str_timeout) \
    X(PyObject *, names_of_key) /* the names of the keyword arguments of put(data, key=key) */ \
    X(PyObject *, zero) \
    X(PyObject *, one) \
    X(PyObject *, zero_seconds) \
    X(PyObject *, no_bytes) \
    X(PyTypeObject *, record_type) /* set by bind_record */ \
    X(PyTypeObject *, last_type) /* the class of records that was seen last */ \
    X(PyTypeObject *, receipt_type) /* set by bind_receipt, and so is landing_type */ \
    X(PyTypeObject *, landing_type)

/* The classes of the module. The specification of each class, NAME_spec, is in the file that implements the class. */
#define CLASSES(X) X(room) X(trace_gate) X(putter) X(put_call) X(method) X(ready) X(lane_table) X(key_table)

#define SPEC(name) extern PyType_Spec name##_spec;
CLASSES(SPEC)
#undef SPEC

/* The slots of a record that the extension reads or writes. */
#define RECORD_SLOTS(X) \
    X(data) X(key) X(explicit_hash_key) X(expires_at) X(ending) X(place) X(history) X(waiters) \
    X(extra_ttl) X(tags)

typedef struct {
#define OFFSET(name) Py_ssize_t name;
    RECORD_SLOTS(OFFSET)
#undef OFFSET
} RecordSlots;

typedef struct {
#define FIELD(type, name) type name;
    STATE_OBJECTS(FIELD)
#undef FIELD
#define FIELD(name) PyTypeObject *name##_type;
    CLASSES(FIELD)
#undef FIELD
    RecordSlots slots; /* the offsets of the slots; valid if record_type is set */
    Py_ssize_t receipt_offsets[5], landing_offsets[3]; /* valid if receipt_type is set */
    Format format;
} State;

extern struct PyModuleDef speedups_module;

static inline State *state_of_module(PyObject *module)
{
    return (State *)PyModule_GetState(module);
}

/* Define visit_NAME, clear_NAME and free_NAME for a class whose Python objects OBJECTS(X) lists. The collector tracks its
 * objects, and a Python class may inherit from it. */
#define VISIT_OBJECT(name) Py_VISIT(own->name);
#define CLEAR_OBJECT(name) Py_CLEAR(own->name);
#define TRACKED_CLASS(Type, NAME, OBJECTS) \
    static int visit_##NAME(PyObject *self, visitproc visit, void *arg) \
    { \
        Type *own = (Type *)self; \
        Py_VISIT(Py_TYPE(self)); \
        OBJECTS(VISIT_OBJECT) \
        return 0; \
    } \
    static int clear_##NAME(PyObject *self) \
    { \
        Type *own = (Type *)self; \
        OBJECTS(CLEAR_OBJECT) \
        return 0; \
    } \
    static void free_##NAME(PyObject *self) \
    { \
        PyTypeObject *type = Py_TYPE(self); \
        PyObject_GC_UnTrack(self); \
        clear_##NAME(self); \
        type->tp_free(self); \
        Py_DECREF(type); \
    }

/* ---- structs.c: making lists and structs */

/* Return a new list with as many empty places as a list has items. Creating a list may run Python code, because it may
 * collect garbage: if that changed the length of the list, RuntimeError is raised. */
PyObject *new_list_like(PyObject *list);
/* Return a tuple of the items of a list: PyList_AsTuple of Python 3.11 may crash if the list changes like this. */
PyObject *tuple_of_list(PyObject *list);

#define FIELDS_MAX 32

/* Find the offset of each field of a msgspec struct. Returns the number of fields, or -1 with a TypeError. */
Py_ssize_t find_offsets(PyTypeObject *type, Py_ssize_t offsets[FIELDS_MAX]);
/* make_structs(cls, count: int, columns: tuple) -> list */
PyObject *make_structs(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count);

/* ---- md5.c: MD5 of many messages, side by side */

#define MD5_SIZE 16

typedef struct {
    const uint8_t *bytes;
    size_t size;
    uint8_t *digest; /* where the 16 bytes of the digest are written */
} Md5Job;

/* Return jobs with room for their digests, to be filled and then freed with PyMem_Free. */
Md5Job *new_jobs(Py_ssize_t count);

/* Compute the digest of every job. This neither allocates memory nor fails, and needs no GIL. */
void md5_side_by_side(const Md5Job *jobs, size_t count);

PyObject *md5_many(PyObject *module, PyObject *messages);

/* ---- checksum.c: the pieces of an event, and its CRC-32 */

PyObject *join_frame(PyObject *module, PyObject *pieces);

/* ---- records.c: the fields of a buffered record */

/* Whether this is the class that was bound, or a subclass without further fields. is_other_record_type is its slow path. */
int is_other_record_type(State *state, PyTypeObject *type);
static inline int is_record_type(State *state, PyTypeObject *type)
{
    return type == state->last_type || is_other_record_type(state, type);
}

/* Raise TypeError unless this is a record of such a class. refuse_record is the slow path, which raises the error. */
int refuse_record(PyObject *record);
static inline int check_record(State *state, PyObject *record)
{
    return is_record_type(state, Py_TYPE(record)) ? 0 : refuse_record(record);
}

/* Read a slot of a record: a borrowed reference, None if the slot is empty. */
static inline PyObject *slot_of(PyObject *record, Py_ssize_t offset)
{
    PyObject *value = *(PyObject **)((char *)record + offset);
    return value != NULL ? value : Py_None;
}

/* Write a slot of a record. Steals the new value, and returns the old one, which may be NULL, to be released later. */
static inline PyObject *replace_slot(PyObject *record, Py_ssize_t offset, PyObject *value)
{
    PyObject **slot = (PyObject **)((char *)record + offset), *old = *slot;
    *slot = value;
    return old;
}

/* Fill a slot of a new object. Steals the value. */
static inline void fill_slot(PyObject *made, Py_ssize_t offset, PyObject *value)
{
    *(PyObject **)((char *)made + offset) = value;
}

PyObject *bind_record(PyObject *module, PyObject *record_type);

/* Load records that a loop will reach soon into the cache, because the records are spread over the memory. The key and
 * the data of a record are loaded if the record itself is certain to be one. */
#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define PREFETCH(address) ((void)(address))
#endif
#define AHEAD 4
static inline void prefetch_records(const State *state, PyObject *const *records, Py_ssize_t at, Py_ssize_t count)
{
    if (count - at > 2 * AHEAD) {
        PREFETCH(records[at + 2 * AHEAD]);
        PREFETCH((char *)records[at + 2 * AHEAD] + 64);
    }
    if (count - at > AHEAD && Py_IS_TYPE(records[at + AHEAD], state->last_type)) {
        PREFETCH(slot_of(records[at + AHEAD], state->slots.key));
        PREFETCH(slot_of(records[at + AHEAD], state->slots.data));
    }
}

/* ---- room.c: the records and counters of the intake, in the class Room */

#define ROOM_OBJECTS(X) X(records) X(waiters) X(refusal)

typedef struct {
    PyObject_HEAD
    PyObject *records, *waiters, *refusal;
    Py_ssize_t reserved_records, reserved_bytes, limit_records, limit_bytes, quiet_records, quiet_bytes, max_records;
    char serializes;
} Room;

/* Append a record if the gate is open: it is accepted, and the host need not be woken. Returns whether it was accepted;
 * -1 with an exception. Runs no Python code. */
int accept_quietly(Room *room, PyObject *record, Py_ssize_t size);

/* ---- methods.c: methods whose common case is compiled, of the class Method */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *wrapped; /* the pure method */
    PyObject *module;  /* keeps the state */
    PyObject *weak_references;
    State *state;
} Method;

PyObject *make_method(PyObject *module, PyObject *args);

/* ---- putting.c: put, and the classes TraceGate, Putter and PutCall */

/* A put needs no headers of a trace while `variable`, a context variable, has the value `untraced`. */
#define GATE_OBJECTS(X) X(variable) X(untraced)

typedef struct {
    PyObject_HEAD
    PyObject *variable, *untraced;
} TraceGate;

/* The Python objects of a Putter. The shell sets them. */
#define PUTTER_OBJECTS(X) X(_intake) X(_delivery_type) X(_loop) X(_running_loop) X(_trace)

typedef struct {
    PyObject_HEAD
#define FIELD(name) PyObject *name;
    PUTTER_OBJECTS(FIELD)
#undef FIELD
    double ttl;
    Py_ssize_t until_yield, key_max_length;
    uint64_t thread, context; /* at the last put in the event loop: the thread, and the version of its context; or 0 */
} Putter;

PyObject *put_async(PyObject *method, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *put_blocking(PyObject *method, PyObject *const *args, size_t nargsf, PyObject *names);

/* ---- deliveries.c: deliveries and their receipts, and the class Ready */

/* Return a new delivery of the class, with default values for all other fields. Runs no Python code. */
PyObject *make_delivery(State *state, PyObject *type, PyObject *data, PyObject *key, PyObject *expires_at);
/* Return what tp_iternext returns for the result of am_send. Steals the result. */
PyObject *value_of_send(PySendResult sent, PyObject **result);
PyObject *bind_receipt(PyObject *module, PyObject *args);
PyObject *await_delivery(PyObject *method, PyObject *const *args, size_t nargsf, PyObject *names);
PyObject *wait_for_delivery(PyObject *method, PyObject *const *args, size_t nargsf, PyObject *names);

/* Read the clock of time.monotonic(). */
static inline double monotonic_time(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyTime_t now;
    (void)PyTime_MonotonicRaw(&now);
    return PyTime_AsSecondsDouble(now);
#else
    return _PyTime_AsSecondsDouble(_PyTime_GetMonotonicClock());
#endif
}

/* ---- intake.c: the loops over all records of a put_many, and over all records that the host takes */

PyObject *make_plain(PyObject *module, PyObject *args);
PyObject *date_records(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *keep_order(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *without_ended(PyObject *module, PyObject *records);

/* ---- lanes.c: which lane each record goes to, in the class LaneTable */

PyObject *make_lane_table(PyObject *module, PyObject *endings);

/* ---- keys.c: the numbers of the distinct keys of an aggregate, in the class KeyTable */

typedef struct {
    uint32_t hash, number; /* the number of the key plus 1; 0 if the slot is free */
} KeySlot;

typedef struct {
    KeySlot *slots;
    PyObject **keys; /* the keys by their numbers; half as many places as there are slots */
    uint32_t size;   /* the number of slots: 0 or a power of two */
    uint32_t count;  /* the number of keys */
} KeyTable;

typedef struct {
    PyObject_HEAD
    KeyTable table;
} KeyTableObject;

/* Return the slot of a key, which must be an exact str, or the free slot where add_key may add it before anything else is
 * done with the table. NULL with an exception. */
KeySlot *find_key(KeyTable *table, PyObject *key);
/* Give a key the next number. Cannot fail. */
void add_key(KeyTable *table, KeySlot *slot, PyObject *key);
void clear_keys(KeyTable *table);

/* ---- packing.c: sizes and encodes aggregates */

PyObject *bind_format(PyObject *module, PyObject *args);
PyObject *add_ordinary(PyObject *module, PyObject *args);
PyObject *encode_records(PyObject *module, PyObject *groups);

/* ---- settling.c: settles delivered records */

PyObject *settle_delivered(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* ---- aggregates.c: opening aggregates */

/* find_frames(blobs: list[bytes]) -> list[bool] */
PyObject *find_frames(PyObject *module, PyObject *blobs);
/* split_message(blob: bytes) -> tuple of columns, or None */
PyObject *split_message(PyObject *module, PyObject *blob);
/* keys_in_range(keys: list[str], start: bytes, end: bytes, known: dict) -> list[bool] */
PyObject *keys_in_range(PyObject *module, PyObject *const *arguments, Py_ssize_t argument_count);

#endif

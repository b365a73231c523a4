/* The module object: its state, its functions, and its set-up in several phases (PEP 489). */
#include "speedups.h"

#define TEXT_OF(tokens) #tokens
#define TEXT_OF_MACRO(macro) TEXT_OF(macro)

static PyMethodDef functions[] = {
    {"md5_many", md5_many, METH_O,
     PyDoc_STR("md5_many($module, messages, /)\n--\n\nReturn the MD5 of each message, as 16 bytes.")},
    {"join_frame", join_frame, METH_O,
     PyDoc_STR("join_frame($module, pieces, /)\n--\n\n"
               "Return the joined pieces, and the CRC-32 of all but their last four bytes.")},
    {"bind_record", bind_record, METH_O,
     PyDoc_STR("bind_record($module, record_type, /)\n--\n\nRemember where the slots of a buffered record are.")},
    {"bind_receipt", bind_receipt, METH_VARARGS,
     PyDoc_STR("bind_receipt($module, receipt_type, landing_type, /)\n--\n\n"
               "Remember where the fields of receipts and landings are.")},
    {"make_method", make_method, METH_VARARGS,
     PyDoc_STR("make_method($module, name, pure, /)\n--\n\nReturn the compiled form of a method.")},
    {"make_plain", make_plain, METH_VARARGS,
     PyDoc_STR("make_plain($module, delivery_type, items, max_bytes, key_max_length, /)\n--\n\n"
               "Return the deliveries of the first items of put_many, up to the first that is not surely valid.")},
    {"date_records", (PyCFunction)(void (*)(void))date_records, METH_FASTCALL,
     PyDoc_STR("date_records($module, records, expires_at, /)\n--\n\n"
               "Set the expiry of each record, and return their total size in the buffer.")},
    {"keep_order", (PyCFunction)(void (*)(void))keep_order, METH_FASTCALL,
     PyDoc_STR("keep_order($module, records, newest, /)\n--\n\n"
               "Let no record expire before an earlier one, and return the expiry of the last.")},
    {"without_ended", without_ended, METH_O,
     PyDoc_STR("without_ended($module, records, /)\n--\n\nReturn the records that are still outstanding.")},
    {"make_lane_table", make_lane_table, METH_O,
     PyDoc_STR("make_lane_table($module, endings, /)\n--\n\nReturn the table of the lanes that end at these hash keys.")},
    {"bind_format", bind_format, METH_VARARGS,
     PyDoc_STR("bind_format($module, magic, tags_of_message, tags_of_record, known_fields, /)\n--\n\n"
               "Remember the magic bytes and the field tags of an aggregate.")},
    {"add_ordinary", add_ordinary, METH_VARARGS,
     PyDoc_STR("add_ordinary($module, keys, ours, records, at, size, max_bytes, /)\n--\n\n"
               "Add ordinary records to an open aggregate, and return the next place, the size and the payload.")},
    {"encode_records", encode_records, METH_O,
     PyDoc_STR("encode_records($module, groups, /)\n--\n\nReturn the aggregate of each group of ordinary records.")},
    {"settle_delivered", (PyCFunction)(void (*)(void))settle_delivered, METH_FASTCALL,
     PyDoc_STR("settle_delivered($module, records, landing, finished, /)\n--\n\n"
               "Settle the records of an aggregate as delivered, and return how many there are.")},
    {"find_frames", find_frames, METH_O,
     PyDoc_STR("find_frames($module, blobs, /)\n--\n\nReturn whether each blob is framed like an aggregate.")},
    {"split_message", split_message, METH_O,
     PyDoc_STR("split_message($module, blob, /)\n--\n\nReturn the columns of a framed aggregate, or None.")},
    {"keys_in_range", (PyCFunction)(void (*)(void))keys_in_range, METH_FASTCALL,
     PyDoc_STR("keys_in_range($module, keys, start, end, known, /)\n--\n\nReturn whether each key hashes into the range.")},
    {"make_structs", (PyCFunction)(void (*)(void))make_structs, METH_FASTCALL,
     PyDoc_STR("make_structs($module, cls, count, columns, /)\n--\n\nReturn structs, made field by field.")},
    {NULL, NULL, 0, NULL},
};

/* Create the values that the state keeps. */
static int make_values(State *state)
{
    state->str_append = PyUnicode_InternFromString("append");
    state->str_key = PyUnicode_InternFromString("key");
    state->str_timeout = PyUnicode_InternFromString("timeout");
    state->zero = PyLong_FromLong(0);
    state->one = PyLong_FromLong(1);
    state->zero_seconds = PyFloat_FromDouble(0.0);
    state->no_bytes = PyBytes_FromStringAndSize(NULL, 0);
    if (!state->str_append || !state->str_key || !state->str_timeout || !state->zero || !state->one ||
        !state->zero_seconds || !state->no_bytes) {
        return -1;
    }
    state->names_of_key = PyTuple_Pack(1, state->str_key);
    PyObject *zlib = PyImport_ImportModule("zlib");
    if (zlib != NULL) {
        state->zlib_crc32 = PyObject_GetAttrString(zlib, "crc32");
        Py_DECREF(zlib);
    }
    return state->names_of_key == NULL || state->zlib_crc32 == NULL ? -1 : 0;
}

/* Fill the state and the namespace of a new module object. */
static int set_up(PyObject *module)
{
    State *state = state_of_module(module);
    state->version = PyUnicode_FromString(TEXT_OF_MACRO(SHARDLINE_VERSION));
    if (state->version == NULL || PyModule_AddObjectRef(module, "version", state->version) < 0 ||
        make_values(state) < 0) {
        return -1;
    }
#define ADD(name) \
    state->name##_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &name##_spec, NULL); \
    if (state->name##_type == NULL || PyModule_AddType(module, state->name##_type) < 0) { \
        return -1; \
    }
    CLASSES(ADD)
#undef ADD
    return 0;
}

static int visit_state(PyObject *module, visitproc visit, void *arg)
{
    State *state = state_of_module(module);
#define VISIT(type, name) Py_VISIT(state->name);
    STATE_OBJECTS(VISIT)
#undef VISIT
#define VISIT(name) Py_VISIT(state->name##_type);
    CLASSES(VISIT)
#undef VISIT
    return 0;
}

static int clear_state(PyObject *module)
{
    State *state = state_of_module(module);
#define CLEAR(type, name) Py_CLEAR(state->name);
    STATE_OBJECTS(CLEAR)
#undef CLEAR
#define CLEAR(name) Py_CLEAR(state->name##_type);
    CLASSES(CLEAR)
#undef CLEAR
    return 0;
}

static void free_state(void *module)
{
    clear_state((PyObject *)module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, set_up},
    {0, NULL},
};

struct PyModuleDef speedups_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shardline._speedups._native",
    .m_doc = PyDoc_STR("The compiled form of Shardline's hot functions. Each has a pure twin of the same name."),
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = visit_state,
    .m_clear = clear_state,
    .m_free = free_state,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&speedups_module);
}

/* KeyTable: numbers the distinct keys of an aggregate, in the order of their first use.
 *
 * A hash table with open addressing. Each slot holds the low half of a hash, so that the key itself is read only if it is
 * probably the same one. The table is at most half full. */
#include "speedups.h"

#define SLOTS_MIN 64

void clear_keys(KeyTable *table)
{
    PyObject **keys = table->keys;
    uint32_t count = table->count;
    PyMem_Free(table->slots);
    table->slots = NULL;
    table->keys = NULL;
    table->size = table->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        Py_DECREF(keys[i]);
    }
    PyMem_Free(keys);
}

/* Make the room four times as large, or create it. If this fails, nothing is changed. */
static int grow_keys(KeyTable *table)
{
    uint32_t size = table->size == 0 ? SLOTS_MIN : table->size * 4;
    KeySlot *slots = size < table->size ? NULL : PyMem_Calloc(size, sizeof *slots);
    PyObject **keys = slots == NULL ? NULL : PyMem_Realloc(table->keys, size / 2 * sizeof *keys);
    if (keys == NULL) {
        PyMem_Free(slots);
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < table->size; i++) {
        KeySlot moved = table->slots[i];
        uint32_t at = moved.hash & (size - 1);
        while (moved.number != 0 && slots[at].number != 0) {
            at = (at + 1) & (size - 1);
        }
        if (moved.number != 0) {
            slots[at] = moved;
        }
    }
    PyMem_Free(table->slots);
    table->slots = slots;
    table->keys = keys;
    table->size = size;
    return 0;
}

KeySlot *find_key(KeyTable *table, PyObject *key)
{
    Py_hash_t whole = PyObject_Hash(key); /* a str caches its hash */
    if (whole == -1 || (table->count >= table->size / 2 && grow_keys(table) < 0)) {
        return NULL;
    }
    uint32_t hash = (uint32_t)whole, mask = table->size - 1;
    for (uint32_t at = hash & mask;; at = (at + 1) & mask) {
        KeySlot *slot = &table->slots[at];
        if (slot->number == 0) {
            slot->hash = hash;
            return slot;
        }
        if (slot->hash == hash) {
            PyObject *other = table->keys[slot->number - 1];
            if (other == key || PyUnicode_Compare(other, key) == 0) {
                return slot;
            }
        }
    }
}

void add_key(KeyTable *table, KeySlot *slot, PyObject *key)
{
    table->keys[table->count++] = Py_NewRef(key);
    slot->number = table->count;
}

/* ---- the class */

/* Find a key for a method. Returns NULL with an exception. */
static KeySlot *find_argument(PyObject *self, PyObject *key)
{
    if (!PyUnicode_CheckExact(key)) {
        PyErr_SetString(PyExc_TypeError, "a key is a str");
        return NULL;
    }
    return find_key(&((KeyTableObject *)self)->table, key);
}

static PyObject *number_of(PyObject *self, PyObject *key)
{
    KeySlot *slot = find_argument(self, key);
    if (slot == NULL) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(slot->number != 0 ? slot->number - 1 : ((KeyTableObject *)self)->table.count);
}

static PyObject *add_method(PyObject *self, PyObject *key)
{
    KeySlot *slot = find_argument(self, key);
    if (slot == NULL) {
        return NULL;
    }
    if (slot->number == 0) {
        add_key(&((KeyTableObject *)self)->table, slot, key);
    }
    Py_RETURN_NONE;
}

static Py_ssize_t length_of_table(PyObject *self)
{
    return ((KeyTableObject *)self)->table.count;
}

static void free_table(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    clear_keys(&((KeyTableObject *)self)->table);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef table_methods[] = {
    {"number_of", number_of, METH_O,
     PyDoc_STR("number_of($self, key, /)\n--\n\nReturn the number of a key, or the number that it would get.")},
    {"add", add_method, METH_O, PyDoc_STR("add($self, key, /)\n--\n\nGive a key the next number, if it has none.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot table_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, free_table},
    {Py_sq_length, length_of_table},
    {Py_tp_methods, table_methods},
    {Py_tp_doc, (void *)PyDoc_STR("The numbers of the distinct keys of an aggregate.")},
    {0, NULL},
};

PyType_Spec key_table_spec = {
    .name = "shardline._speedups._native.KeyTable",
    .basicsize = sizeof(KeyTableObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = table_slots,
};

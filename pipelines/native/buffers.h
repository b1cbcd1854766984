/* What the modules share: arrays that Python passes as buffers, held for one call, with their sizes checked. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#define MAX_COLUMNS 32

/* The buffers of one call: four for each column, and a few more. */
typedef struct {
    Py_buffer views[4 * MAX_COLUMNS + 16];
    int count;
} Buffers;

static void release(Buffers *buffers) {
    while (buffers->count) PyBuffer_Release(&buffers->views[--buffers->count]);
}

/* Returns the items of `object`, of `width` bytes each, or NULL; at least `least` of them. */
static void *items(Buffers *buffers, PyObject *object, const char *name, int64_t width, int64_t least, int writable) {
    static int64_t nothing; /* replaces the memory of an empty array, which may have none */
    Py_buffer *view = &buffers->views[buffers->count];
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE)) return NULL;
    buffers->count++;
    if ((uintptr_t)view->buf % (uintptr_t)width) {
        PyErr_Format(PyExc_ValueError, "%s: expected aligned items", name);
        return NULL;
    }
    if (view->len / width < least) {
        PyErr_Format(PyExc_ValueError, "%s: expected %lld items, got %lld", name, (long long)least,
                     (long long)(view->len / width));
        return NULL;
    }
    return view->buf ? view->buf : &nothing;
}

static int64_t last_bytes(const Buffers *buffers) { return buffers->views[buffers->count - 1].len; }

/* Returns a module, or NULL; `interface` is raised when its functions change, as pipelines/native/built.py checks. */
static PyObject *new_module(struct PyModuleDef *definition, long interface) {
    PyObject *module = PyModule_Create(definition);
    if (module && PyModule_AddIntConstant(module, "interface", interface)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}

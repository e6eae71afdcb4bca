// SPDX-License-Identifier: Apache-2.0
//
// _xdb: the calls of xdb.py that programs make most often, in C. xdb.py does without this module where it is missing.
//
// xdb.py loads the library and passes the addresses of its functions to setup(); the module is not linked with the
// library. Each call here does what the Python code of the same name in xdb.py does: it checks the handle, takes the
// handle's lock, calls the library without the interpreter's lock, and raises the library's error. No Python code, so
// no signal handler, runs between the taking of the handle's lock and its release.
//
// The interpreter's lock guards all fields of all objects here. The handle's lock guards the library's objects, and is
// held while the interpreter's lock is not.
#define PY_SSIZE_T_CLEAN
#include "remixdb.h"

#include <Python.h>
#include <string.h>
#include <structmember.h>

#define INTERFACE 3  // xdb.py uses the module if this number is the one that it knows

#define REF_CALLS(X) X(put) X(del) X(probe) X(getn) X(write) X(batch_put) X(batch_del)
#define ITER_CALLS(X) X(iter_opts_init) X(iter_page) X(iter_unread) X(iter_prev) X(iter_skip1)
#define SEEK_CALLS(X) X(iter_seek) X(iter_seek_last) X(iter_seek_for_prev)
#define CALLS(X) X(errcode) X(errmsg) X(strerror) REF_CALLS(X) ITER_CALLS(X) SEEK_CALLS(X)

static struct {
#define MEMBER(name) __typeof__(remixdb_##name) *name;
  CALLS(MEMBER)
} lib;
static PyObject *error_type;            // xdb.XdbError
static long forks;                      // forks between the import of xdb.py and this process
static _Thread_local unsigned merging;  // whether this thread runs a merge's function
static _Thread_local size_t nr_late;    // handles that this thread closes when its present call has ended

// Names of methods and attributes. Python keeps some strings that were looked up, so each is made once.
#define NAMES(X) \
  X(_after) X(_later) X(_fail) X(_closing_error) X(_put_until) X(close) X(items) X(lines) X(seek) X(seek_last)
static struct {
#define NAME(name) PyObject *name;
  NAMES(NAME)
} words;

// Calls a method without arguments. Returns false with an exception.
static bool call(void *self, PyObject *name) {
  PyObject *done = PyObject_CallMethodNoArgs(self, name);
  Py_XDECREF(done);
  return done != NULL;
}

// ---- errors

static PyObject *raise_status(int status, PyObject *message) {
  PyObject *error = message == NULL ? NULL : PyObject_CallFunction(error_type, "iO", status, message);
  if (error != NULL) PyErr_SetObject(error_type, error);
  Py_XDECREF(error);
  Py_XDECREF(message);
  return NULL;
}

// The message of this thread's last call, which had this status. NULL with an exception.
static PyObject *message_of(enum remixdb_status s) {
  const char *text = lib.errmsg();
  if (*text == 0) text = lib.strerror(s);
  return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

// ---- keys and values

struct data {
  const char *ptr;
  uint32_t len;
  PyObject *copy;  // owned; NULL when the bytes are the argument's own
};

// Makes the bytes of x readable without the interpreter's lock: objects that other threads can change are copied.
// Returns false with an exception.
static bool data_take(struct data *d, PyObject *x, const char *what) {
  Py_ssize_t len = 0;
  d->copy = NULL;
  if (PyBytes_Check(x)) {
    d->ptr = PyBytes_AS_STRING(x);
    len = PyBytes_GET_SIZE(x);
  } else if (PyUnicode_Check(x)) {
    d->ptr = PyUnicode_AsUTF8AndSize(x, &len);
    if (d->ptr == NULL) return false;
  } else if (PyByteArray_Check(x) || PyMemoryView_Check(x)) {
    d->copy = PyBytes_FromObject(x);
    if (d->copy == NULL) return false;
    d->ptr = PyBytes_AS_STRING(d->copy);
    len = PyBytes_GET_SIZE(d->copy);
  } else {
    PyErr_Format(PyExc_TypeError, "a %s is bytes, bytearray, memoryview or str, not %s", what, Py_TYPE(x)->tp_name);
    return false;
  }
  if ((uint64_t)len > UINT32_MAX) {
    Py_CLEAR(d->copy);
    raise_status(REMIXDB_TOOBIG, PyUnicode_FromFormat("a %s of %zd bytes", what, len));
    return false;
  }
  d->len = (uint32_t)len;
  return true;
}

static void data_drop(struct data *d) { Py_XDECREF(d->copy); }

// Takes key, and value if value is not NULL, from a call's arguments. Returns false with an exception.
static bool data_args(const char *name, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, struct data *key,
                      struct data *value) {
  static const char *const names[] = {"key", "value"};
  PyObject *given[2] = {NULL, NULL};
  Py_ssize_t max = value == NULL ? 1 : 2, nr_named = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
  if (nargs + nr_named != max) {
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", name, max, nargs + nr_named);
    return false;
  }
  for (Py_ssize_t i = 0; i < nargs; i++) given[i] = args[i];
  for (Py_ssize_t i = 0; i < nr_named; i++) {
    PyObject *word = PyTuple_GET_ITEM(kwnames, i);
    Py_ssize_t at = 0;
    while (at < max && PyUnicode_CompareWithASCIIString(word, names[at]) != 0) at++;
    if (at == max || given[at] != NULL) {
      PyErr_Format(PyExc_TypeError, "%s() got an unexpected argument %R", name, word);
      return false;
    }
    given[at] = args[nargs + i];
  }
  if (!data_take(key, given[0], "key")) return false;
  if (value == NULL || data_take(value, given[1], "value")) return true;
  data_drop(key);
  return false;
}

// Whether a put has more arguments than a key and a value.
static bool put_has_more(Py_ssize_t nargs, PyObject *kwnames) {
  return nargs + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames)) > 2;
}

// Calls the Python code for such a put.
static PyObject *put_until(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  PyObject *method = PyObject_GetAttr(self, words._put_until);
  if (method == NULL) return NULL;
  PyObject *result = PyObject_Vectorcall(method, args, (size_t)nargs, kwnames);
  Py_DECREF(method);
  return result;
}

// ---- Lock: a threading.RLock, and the C code's way to take it

struct lock {
  PyObject_HEAD PyThread_type_lock lock;
  unsigned long owner;  // thread, while count is not 0
  unsigned long count;  // how often the owner has it
};

static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
  (void)args;
  (void)kw;
  struct lock *k = (struct lock *)type->tp_alloc(type, 0);
  if (k == NULL) return NULL;
  k->lock = PyThread_allocate_lock();
  if (k->lock != NULL) return (PyObject *)k;
  Py_DECREF(k);
  return PyErr_NoMemory();
}

static void lock_dealloc(PyObject *self) {
  struct lock *k = (struct lock *)self;
  if (k->lock != NULL) {
    if (k->count) PyThread_release_lock(k->lock);
    PyThread_free_lock(k->lock);
  }
  Py_TYPE(self)->tp_free(self);
}

// Returns 1 when the lock was taken, 0 when it was not free and wait is false, -1 with the exception of a signal's
// handler.
static int lock_take(struct lock *k, bool wait) {
  const unsigned long me = PyThread_get_thread_ident();
  if (k->count && k->owner == me) {
    k->count++;
    return 1;
  }
  PyLockStatus got = PyThread_acquire_lock_timed(k->lock, 0, 0);
  while (got != PY_LOCK_ACQUIRED) {
    if (!wait) return 0;
    Py_BEGIN_ALLOW_THREADS got = PyThread_acquire_lock_timed(k->lock, -1, 1);
    Py_END_ALLOW_THREADS if (got == PY_LOCK_INTR && Py_MakePendingCalls() < 0) return -1;
  }
  k->owner = me;
  k->count = 1;
  return 1;
}

static void lock_drop(struct lock *k) {
  if (--k->count == 0) PyThread_release_lock(k->lock);
}

static PyObject *lock_acquire(PyObject *self, PyObject *args, PyObject *kw) {
  static char *names[] = {"blocking", NULL};
  int wait = 1;
  if (!PyArg_ParseTupleAndKeywords(args, kw, "|p:acquire", names, &wait)) return NULL;
  int got = lock_take((struct lock *)self, wait);
  return got < 0 ? NULL : PyBool_FromLong(got);
}

static PyObject *lock_enter(PyObject *self, PyObject *nothing) {
  (void)nothing;
  return lock_take((struct lock *)self, true) < 0 ? NULL : PyBool_FromLong(1);
}

static bool lock_mine(const struct lock *k) { return k->count && k->owner == PyThread_get_thread_ident(); }

static PyObject *lock_release(PyObject *self, PyObject *nothing) {
  (void)nothing;
  struct lock *k = (struct lock *)self;
  if (!lock_mine(k)) {
    PyErr_SetString(PyExc_RuntimeError, "cannot release un-acquired lock");
    return NULL;
  }
  lock_drop(k);
  Py_RETURN_NONE;
}

static PyObject *lock_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)args;
  (void)nargs;
  return lock_release(self, NULL);
}

static PyObject *lock_is_owned(PyObject *self, PyObject *nothing) {
  (void)nothing;
  return PyBool_FromLong(lock_mine((struct lock *)self));
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))
static PyMethodDef lock_methods[] = {
    {"acquire", FAST(lock_acquire), METH_VARARGS | METH_KEYWORDS, NULL},
    {"release", lock_release, METH_NOARGS, NULL},
    {"__enter__", lock_enter, METH_NOARGS, NULL},
    {"__exit__", FAST(lock_exit), METH_FASTCALL, NULL},
    {"_is_owned", lock_is_owned, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyTypeObject lock_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "_xdb.Lock",
    .tp_doc = "What xdb.py uses of a threading.RLock.",
    .tp_basicsize = sizeof(struct lock),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = lock_new,
    .tp_dealloc = lock_dealloc,
    .tp_methods = lock_methods,
};

// ---- Merging: whether this thread runs a merge's function

static PyObject *merging_enter(PyObject *self, PyObject *nothing) {
  (void)self;
  (void)nothing;
  merging++;
  Py_RETURN_NONE;
}

static PyObject *merging_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)self;
  (void)args;
  (void)nargs;
  merging--;
  Py_RETURN_NONE;
}

static PyObject *merging_locked(PyObject *self, PyObject *nothing) {
  (void)self;
  (void)nothing;
  return PyBool_FromLong(merging != 0);
}

static PyMethodDef merging_methods[] = {
    {"__enter__", merging_enter, METH_NOARGS, NULL},
    {"__exit__", FAST(merging_exit), METH_FASTCALL, NULL},
    {"locked", merging_locked, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyTypeObject merging_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "_xdb.Merging",
    .tp_doc = "The mark of a thread that runs the function of a merge.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_methods = merging_methods,
};

// ---- Handle: the base of xdb._Handle
//
// xdb._PyHandle is the same in Python, and says what each call promises. The functions that make and destroy the
// library's objects are callables of ctypes, which let other threads run.

struct handle {
  PyObject_HEAD void *pointer;  // the library's object; NULL: closed
  long forks;                   // `forks` of the process that made it
  struct lock *lock;            // owned; NULL until __init__ has set it
  PyObject *lines;              // owned; the list of a logger's lines, or NULL
  PyObject *log;                // owned; the store's xdb._Log, or None
  PyObject *what;               // owned; its name in messages
  PyObject *made;               // owned; the pointer as an int until it is destroyed, or NULL
  PyObject *destroy;            // owned; the callable that destroys the library's object
  struct handle *parent;        // owned; NULL: none
  PyObject *children;           // owned; a dict with the children as keys; NULL: there was none yet
  bool is_store;
};

static PyTypeObject handle_type;

static int handle_init(PyObject *self, PyObject *args, PyObject *kw) {
  static char *names[] = {"what", "destroy", "parent", "lock", "log", NULL};
  struct handle *h = (struct handle *)self;
  PyObject *what, *destroy, *parent = Py_None, *lock = Py_None, *log = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kw, "UO|OOO:Handle", names, &what, &destroy, &parent, &lock, &log)) return -1;
  if (h->lock != NULL || (parent != Py_None && !PyObject_TypeCheck(parent, &handle_type)) ||
      (lock != Py_None && !Py_IS_TYPE(lock, &lock_type))) {
    PyErr_SetString(PyExc_TypeError, "a handle is initialised once, with a Handle and a Lock");
    return -1;
  }
  if (parent != Py_None) log = ((struct handle *)parent)->log == NULL ? Py_None : ((struct handle *)parent)->log;
  PyObject *lines = log == Py_None ? NULL : PyObject_GetAttr(log, words.lines);
  if (PyErr_Occurred()) return -1;
  Py_XSETREF(h->lines, lines);
  Py_XSETREF(h->log, Py_NewRef(log));
  Py_XSETREF(h->what, Py_NewRef(what));
  Py_XSETREF(h->destroy, Py_NewRef(destroy));
  if (parent != Py_None) Py_XSETREF(h->parent, (struct handle *)Py_NewRef(parent));
  h->is_store = PyUnicode_CompareWithASCIIString(what, "store") == 0;
  h->forks = forks;
  h->lock = (struct lock *)(lock == Py_None ? lock_new(&lock_type, NULL, NULL) : Py_NewRef(lock));
  return h->lock == NULL ? -1 : 0;
}

static int handle_traverse(PyObject *self, visitproc visit, void *arg) {
  struct handle *h = (struct handle *)self;
  Py_VISIT(h->lines);
  Py_VISIT(h->log);
  Py_VISIT(h->destroy);
  Py_VISIT(h->parent);
  Py_VISIT(h->children);
  return 0;
}

static int handle_clear(PyObject *self) {
  struct handle *h = (struct handle *)self;
  Py_CLEAR(h->lines);
  Py_CLEAR(h->log);
  Py_CLEAR(h->destroy);
  Py_CLEAR(h->parent);
  Py_CLEAR(h->children);
  return 0;
}

static void handle_dealloc(PyObject *self) {
  struct handle *h = (struct handle *)self;
  PyObject_GC_UnTrack(self);
  handle_clear(self);
  Py_CLEAR(h->lock);
  Py_CLEAR(h->what);
  Py_CLEAR(h->made);
  Py_TYPE(self)->tp_free(self);
}

static PyObject *handle_get_raw(PyObject *self, void *closure) {
  (void)closure;
  void *p = ((struct handle *)self)->pointer;
  if (p == NULL) Py_RETURN_NONE;
  return PyLong_FromVoidPtr(p);
}

static int handle_set_raw(PyObject *self, PyObject *value, void *closure) {
  (void)closure;
  void *p = NULL;
  if (value != NULL && value != Py_None) {
    p = PyLong_AsVoidPtr(value);
    if (PyErr_Occurred()) return -1;
  }
  ((struct handle *)self)->pointer = p;
  return 0;
}

static PyObject *handle_get_lock(PyObject *self, void *closure) {
  (void)closure;
  struct lock *k = ((struct handle *)self)->lock;
  if (k == NULL) return PyErr_Format(PyExc_AttributeError, "lock");
  return Py_NewRef((PyObject *)k);
}

static PyObject *handle_get_lines(PyObject *self, void *closure) {
  (void)closure;
  PyObject *lines = ((struct handle *)self)->lines;
  return Py_NewRef(lines == NULL ? Py_None : lines);
}

static int handle_set_lines(PyObject *self, PyObject *value, void *closure) {
  (void)closure;
  struct handle *h = (struct handle *)self;
  if (value != NULL && value != Py_None && !PyList_Check(value)) {
    PyErr_SetString(PyExc_TypeError, "lines are a list, or None");
    return -1;
  }
  Py_XSETREF(h->lines, value == NULL || value == Py_None ? NULL : Py_NewRef(value));
  return 0;
}

static PyObject *handle_get_children(PyObject *self, void *closure) {
  (void)closure;
  PyObject *children = ((struct handle *)self)->children;
  return children == NULL ? PyList_New(0) : PyDict_Keys(children);
}

// Whether calls may use the handle's pointer now. If not, handle_refuse tells why.
static bool handle_usable(const struct handle *h) { return h->pointer != NULL && h->forks == forks && merging == 0; }

static void handle_refuse(const struct handle *h) {
  const char *why = h->forks != forks ? "the %U belongs to the process that opened it"
                    : merging         ? "the %U is not to be used by the function of a merge"
                                      : "the %U is closed";
  raise_status(REMIXDB_INVALID, PyUnicode_FromFormat(why, h->what));
}

// Returns false with an exception if __init__ was not called.
static bool handle_whole(const struct handle *h) {
  if (h != NULL && h->lock != NULL) return true;
  PyErr_SetString(PyExc_AttributeError, "_handle");
  return false;
}

static PyObject *handle_get_pointer(PyObject *self, void *closure) {
  struct handle *h = (struct handle *)self;
  if (!handle_whole(h)) return NULL;
  if (h->pointer != NULL) return handle_get_raw(self, closure);
  return raise_status(REMIXDB_INVALID, PyUnicode_FromFormat("the %U is closed", h->what));
}

static PyObject *handle_get_closed(PyObject *self, void *closure) {
  (void)closure;
  const struct handle *h = (struct handle *)self;
  return PyBool_FromLong(h->pointer == NULL || h->forks != forks);
}

static PyObject *handle_py_enter(PyObject *self, PyObject *nothing) {
  (void)nothing;
  struct handle *h = (struct handle *)self;
  if (!handle_whole(h)) return NULL;
  if (h->forks == forks && merging == 0) return Py_NewRef((PyObject *)h->lock);
  handle_refuse(h);
  return NULL;
}

// Does the work that had to wait for the end of a call. Returns false with an exception.
static bool handle_after(struct handle *h) {
  if (nr_late == 0 && (h->lines == NULL || PyList_GET_SIZE(h->lines) == 0)) return true;
  return call(h, words._after);
}

static PyObject *handle_py_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)args;
  (void)nargs;
  return handle_after((struct handle *)self) ? Py_NewRef(Py_None) : NULL;
}

// make(lib, create, *args): see xdb._PyHandle.
static PyObject *handle_make(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  struct handle *h = (struct handle *)self;
  if (!handle_whole(h)) return NULL;
  if (nargs < 2 || h->made != NULL) return PyErr_Format(PyExc_TypeError, "make(lib, create, *args), once");
  if (h->parent != NULL) {
    if (h->parent->children == NULL) h->parent->children = PyDict_New();
    if (h->parent->children == NULL || PyDict_SetItem(h->parent->children, self, Py_None) < 0) return NULL;
  }
  PyObject *made = PyObject_Vectorcall(args[1], args + 2, (size_t)nargs - 2, NULL);
  if (made == NULL) return NULL;
  if (made == Py_None) {
    Py_DECREF(made);
    return PyObject_CallMethodOneArg(self, words._fail, args[0]);
  }
  void *pointer = PyLong_AsVoidPtr(made);
  if (pointer == NULL) {
    Py_DECREF(made);
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "a null pointer");
  }
  h->made = made;
  h->pointer = pointer;
  Py_RETURN_NONE;
}

static bool handle_in_call(const struct handle *h) {
  if (h->lock != NULL && lock_mine(h->lock)) return true;
  PyObject *child;
  for (Py_ssize_t at = 0; h->children != NULL && PyDict_Next(h->children, &at, &child, NULL);)
    if (handle_in_call((struct handle *)child)) return true;
  return false;
}

static PyObject *handle_py_in_call(PyObject *self, PyObject *nothing) {
  (void)nothing;
  return PyBool_FromLong(handle_in_call((struct handle *)self));
}

static void handle_shut(struct handle *h) {
  PyObject *child;
  h->pointer = NULL;
  for (Py_ssize_t at = 0; h->children != NULL && PyDict_Next(h->children, &at, &child, NULL);)
    handle_shut((struct handle *)child);
}

// Calls `function` with the library's pointer, which is no longer the handle's from then on. Returns its result, NULL
// with an exception; `otherwise` if the pointer was taken before.
static PyObject *handle_take(struct handle *h, PyObject *function, PyObject *otherwise) {
  PyObject *made = h->made;
  if (made == NULL) return Py_NewRef(otherwise);
  h->made = NULL;
  PyObject *result = PyObject_CallOneArg(function, made);
  Py_DECREF(made);
  return result;
}

static PyObject *handle_py_take(PyObject *self, PyObject *function) {
  return handle_take((struct handle *)self, function, Py_True);
}

static PyObject *handle_end(struct handle *h);

static bool handle_end_children(struct handle *h) {
  if (h->children == NULL || PyDict_GET_SIZE(h->children) == 0) return true;
  PyObject *children = PyDict_Keys(h->children);
  if (children == NULL) return false;
  bool good = true;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(children) && good; i++) {
    PyObject *error = handle_end((struct handle *)PyList_GET_ITEM(children, i));
    good = error != NULL;
    Py_XDECREF(error);
  }
  Py_DECREF(children);
  return good;
}

static PyObject *handle_py_end_children(PyObject *self, PyObject *nothing) {
  (void)nothing;
  return handle_end_children((struct handle *)self) ? Py_NewRef(Py_None) : NULL;
}

// Ends the library's object, when its children have ended. The caller holds the lock. Returns the error of a store that
// could not be closed well, else None; NULL with an exception.
static PyObject *handle_end_locked(struct handle *h) {
  h->pointer = NULL;
  if (!handle_end_children(h)) return NULL;
  if (h->made == NULL || h->destroy == NULL) return Py_NewRef(Py_None);
  PyObject *result = handle_take(h, h->destroy, Py_None);
  if (result == NULL || !h->is_store) return result == NULL ? NULL : (Py_DECREF(result), Py_NewRef(Py_None));
  Py_DECREF(result);
  return PyObject_CallMethodNoArgs((PyObject *)h, words._closing_error);
}

static PyObject *handle_end(struct handle *h) {
  if (!handle_whole(h) || lock_take(h->lock, true) < 0) return NULL;
  Py_INCREF(h);
  PyObject *error = handle_end_locked(h);
  lock_drop(h->lock);
  struct handle *parent = h->parent;
  if (error != NULL && parent != NULL && parent->children != NULL) {
    const int there = PyDict_Contains(parent->children, (PyObject *)h);
    if (there < 0 || (there > 0 && PyDict_DelItem(parent->children, (PyObject *)h) < 0)) Py_CLEAR(error);
  }
  Py_DECREF(h);
  return error;
}

static PyObject *handle_py_end(PyObject *self, PyObject *nothing) {
  (void)nothing;
  return handle_end((struct handle *)self);
}

// Has this thread close it later.
static bool handle_late(struct handle *h) { return call(h, words._later); }

static PyObject *handle_close(PyObject *self, PyObject *nothing) {
  (void)nothing;
  struct handle *h = (struct handle *)self;
  if (!handle_whole(h)) return NULL;
  if (h->forks != forks) Py_RETURN_NONE;
  if (merging)
    return raise_status(REMIXDB_INVALID,
                        PyUnicode_FromFormat("the %U is not to be closed by the function of a merge", h->what));
  if (handle_in_call(h)) {
    if (!handle_late(h)) return NULL;
    handle_shut(h);
    Py_RETURN_NONE;
  }
  PyObject *error = handle_end(h);
  if (error != NULL && !handle_after(h)) Py_CLEAR(error);
  return error;
}

static PyObject *handle_collect(PyObject *self, PyObject *nothing) {
  struct handle *h = (struct handle *)self;
  if (merging) return handle_late(h) ? Py_NewRef(Py_None) : NULL;
  PyObject *error = handle_close(self, nothing);
  if (error == NULL || error == Py_None) return error;
  PyErr_SetObject((PyObject *)Py_TYPE(error), error);  // Python prints it
  Py_DECREF(error);
  return NULL;
}

static PyMethodDef handle_methods[] = {
    {"__enter__", handle_py_enter, METH_NOARGS, NULL},  {"__exit__", FAST(handle_py_exit), METH_FASTCALL, NULL},
    {"make", FAST(handle_make), METH_FASTCALL, NULL},   {"collect", handle_collect, METH_NOARGS, NULL},
    {"close", handle_close, METH_NOARGS, NULL},         {"end_children", handle_py_end_children, METH_NOARGS, NULL},
    {"_in_call", handle_py_in_call, METH_NOARGS, NULL}, {"_take", handle_py_take, METH_O, NULL},
    {"_end", handle_py_end, METH_NOARGS, NULL},         {NULL, NULL, 0, NULL},
};
static PyGetSetDef handle_fields[] = {
    {"pointer", handle_get_pointer, NULL, NULL, NULL},
    {"closed", handle_get_closed, NULL, NULL, NULL},
    {"lock", handle_get_lock, NULL, NULL, NULL},
    {"_pointer", handle_get_raw, handle_set_raw, NULL, NULL},
    {"_lines", handle_get_lines, handle_set_lines, NULL, NULL},
    {"_children", handle_get_children, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef handle_members[] = {
    {"_forks", T_LONG, offsetof(struct handle, forks), READONLY, NULL},
    {"_log", T_OBJECT, offsetof(struct handle, log), READONLY, NULL},
    {"_what", T_OBJECT, offsetof(struct handle, what), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyTypeObject handle_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "_xdb.Handle",
    .tp_doc = "The base of xdb._Handle.",
    .tp_basicsize = sizeof(struct handle),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = handle_init,
    .tp_dealloc = handle_dealloc,
    .tp_traverse = handle_traverse,
    .tp_clear = handle_clear,
    .tp_methods = handle_methods,
    .tp_getset = handle_fields,
    .tp_members = handle_members,
};

// Begins a call: takes the lock. Returns false with an exception. A true result is followed by handle_leave.
static bool handle_enter(struct handle *h) {
  if (!handle_whole(h)) return false;
  if (!handle_usable(h)) return handle_refuse(h), false;
  if (lock_take(h->lock, true) < 0) return false;
  if (handle_usable(h)) return true;
  lock_drop(h->lock);  // it was closed while this thread waited
  handle_refuse(h);
  return false;
}

// Ends a call. `result` is the call's result. NULL: the call raised an exception, or the library's last call failed
// with status s, which is raised here. Returns the result, or NULL with an exception; the logger may raise one, too.
// The lock goes first: the making of an exception may start the garbage collector, and an object that is collected must
// not find its lock taken by this very thread.
static PyObject *handle_leave(struct handle *h, PyObject *result, enum remixdb_status s) {
  PyObject *message = result != NULL || PyErr_Occurred() ? NULL : message_of(s);
  lock_drop(h->lock);
  if (message != NULL) raise_status((int)s, message);
  if (h->lines == NULL || PyList_GET_SIZE(h->lines) == 0) return result;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  if (!call(h, words._after)) {
    Py_CLEAR(result);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return NULL;
  }
  PyErr_Restore(type, value, trace);
  return result;
}

// ---- Held: the base of the public objects, with a handle

struct held {
  PyObject_HEAD struct handle *handle;  // owned; NULL until xdb.py sets it
  struct handle *collected;             // owned; the handle that is closed when this is collected, or NULL
};

static PyObject *held_get_handle(PyObject *self, void *closure) {
  (void)closure;
  struct handle *h = ((struct held *)self)->handle;
  if (h == NULL) return PyErr_Format(PyExc_AttributeError, "_handle");
  return Py_NewRef((PyObject *)h);
}

static bool is_handle(PyObject *value) {
  if (value != NULL && PyObject_TypeCheck(value, &handle_type)) return true;
  PyErr_SetString(PyExc_TypeError, "a _xdb.Handle is needed");
  return false;
}

static int held_set_handle(PyObject *self, PyObject *value, void *closure) {
  (void)closure;
  if (!is_handle(value)) return -1;
  Py_XSETREF(((struct held *)self)->handle, (struct handle *)Py_NewRef(value));
  return 0;
}

static PyObject *held_collects(PyObject *self, PyObject *value) {
  if (!is_handle(value)) return NULL;
  Py_XSETREF(((struct held *)self)->collected, (struct handle *)Py_NewRef(value));
  Py_RETURN_NONE;
}

static PyObject *held_get_closed(PyObject *self, void *closure) {
  struct handle *h = ((struct held *)self)->handle;
  return handle_whole(h) ? handle_get_closed((PyObject *)h, closure) : NULL;
}

static PyObject *held_close(PyObject *self, PyObject *nothing) {
  struct handle *h = ((struct held *)self)->handle;
  if (!handle_whole(h)) return NULL;
  Py_INCREF(h);
  PyObject *error = handle_close((PyObject *)h, nothing);
  Py_DECREF(h);
  if (error == NULL || error == Py_None) return error;
  PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_DECREF(error);
  return NULL;
}

static PyObject *held_enter(PyObject *self, PyObject *nothing) {
  (void)nothing;
  return Py_NewRef(self);
}

static PyObject *held_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
  (void)args;
  (void)nargs;
  return call(self, words.close) ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef held_methods[] = {
    {"_collects", held_collects, METH_O, "Has the handle closed when this object is collected."},
    {"close", held_close, METH_NOARGS, "Closes it, and everything that depends on it. Closing twice does nothing."},
    {"__enter__", held_enter, METH_NOARGS, NULL},
    {"__exit__", FAST(held_exit), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef held_fields[] = {
    {"_handle", held_get_handle, held_set_handle, NULL, NULL},
    {"closed", held_get_closed, NULL, "Whether it has been closed, by itself or together with its owner.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static int held_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((struct held *)self)->handle);
  Py_VISIT(((struct held *)self)->collected);
  return 0;
}

// Closes what the object owns. A closed object costs nothing here.
static void held_finalize(PyObject *self) {
  struct handle *h = ((struct held *)self)->collected;
  if (h == NULL || h->made == NULL) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  Py_INCREF(h);
  PyObject *done = handle_collect((PyObject *)h, NULL);
  if (done == NULL) PyErr_WriteUnraisable((PyObject *)h);
  Py_XDECREF(done);
  Py_DECREF(h);
  PyErr_Restore(type, value, trace);
}

static void held_dealloc(PyObject *self) {
  PyObject_GC_UnTrack(self);
  held_finalize(self);  // a subclass with a __del__ of its own has this one not called
  Py_CLEAR(((struct held *)self)->handle);
  Py_CLEAR(((struct held *)self)->collected);
  Py_TYPE(self)->tp_free(self);
}

static PyTypeObject held_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "_xdb.Held",
    .tp_doc = "The base of the public classes of xdb.",
    .tp_basicsize = sizeof(struct held),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = held_dealloc,
    .tp_finalize = held_finalize,
    .tp_traverse = held_traverse,
    .tp_methods = held_methods,
    .tp_getset = held_fields,
};

// ---- Ref

#define ROOM 4096u           // values up to this size pass through the stack
#define LAST_MAX (1u << 20)  // values up to this size give the next value its first room

struct ref {
  struct held held;
  size_t last;  // length of the last value
};

// Calls the library without the interpreter's lock; s is the status of the call.
#define CALL(s, call)                                               \
  do {                                                              \
    Py_BEGIN_ALLOW_THREADS s = (call) ? REMIXDB_OK : lib.errcode(); \
    Py_END_ALLOW_THREADS                                            \
  } while (0)

static PyObject *ref_put(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  struct handle *h = ((struct held *)self)->handle;
  struct data key, value;
  PyObject *result = NULL;
  if (put_has_more(nargs, kwnames)) return put_until(self, args, nargs, kwnames);
  if (!data_args("put", args, nargs, kwnames, &key, &value)) return NULL;
  if (handle_enter(h)) {
    struct xdb_ref *pointer = h->pointer;
    enum remixdb_status s;
    CALL(s, lib.put(pointer, key.ptr, key.len, value.ptr, value.len));
    result = handle_leave(h, s == REMIXDB_OK ? Py_NewRef(Py_None) : NULL, s);
  }
  data_drop(&key);
  data_drop(&value);
  return result;
}

static PyObject *ref_delete(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  struct handle *h = ((struct held *)self)->handle;
  struct data key;
  PyObject *result = NULL;
  if (!data_args("delete", args, nargs, kwnames, &key, NULL)) return NULL;
  if (handle_enter(h)) {
    struct xdb_ref *pointer = h->pointer;
    enum remixdb_status s;
    CALL(s, lib.del(pointer, key.ptr, key.len));
    result = handle_leave(h, s == REMIXDB_OK ? Py_NewRef(Py_None) : NULL, s);
  }
  data_drop(&key);
  return result;
}

static PyObject *ref_probe(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  struct handle *h = ((struct held *)self)->handle;
  struct data key;
  PyObject *result = NULL;
  if (!data_args("probe", args, nargs, kwnames, &key, NULL)) return NULL;
  if (handle_enter(h)) {
    struct xdb_ref *pointer = h->pointer;
    enum remixdb_status s;
    CALL(s, lib.probe(pointer, key.ptr, key.len));
    const bool known = s == REMIXDB_OK || s == REMIXDB_NOTFOUND;
    result = handle_leave(h, known ? PyBool_FromLong(s == REMIXDB_OK) : NULL, s);
  }
  data_drop(&key);
  return result;
}

// A large value goes straight to its bytes object, which has the size of the last value at first. NULL: an exception,
// or the library's call failed with *status.
static PyObject *get_value(struct ref *r, const struct data *key, enum remixdb_status *status) {
  struct xdb_ref *x = r->held.handle->pointer;
  char room[ROOM];
  PyObject *made = NULL;
  size_t size = r->last <= ROOM || r->last > LAST_MAX ? 0 : r->last;
  while (true) {
    uint32_t len = 0;
    enum remixdb_status s;
    if (size) made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (size && made == NULL) return NULL;
    char *to = made == NULL ? room : PyBytes_AS_STRING(made);
    const uint32_t cap = made == NULL ? ROOM : (uint32_t)size;
    CALL(s, lib.getn(x, key->ptr, key->len, to, cap, &len));
    if (s == REMIXDB_OK) {
      r->last = len;
      if (made == NULL) return PyBytes_FromStringAndSize(room, len);
      if (len < cap) _PyBytes_Resize(&made, len);
      return made;
    }
    Py_CLEAR(made);
    if (s == REMIXDB_NOTFOUND) Py_RETURN_NONE;
    *status = s;
    if (s != REMIXDB_TOOBIG || len <= cap) return NULL;
    size = len;
  }
}

static PyObject *ref_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  struct ref *r = (struct ref *)self;
  struct handle *h = r->held.handle;
  struct data key;
  PyObject *result = NULL;
  if (!data_args("get", args, nargs, kwnames, &key, NULL)) return NULL;
  if (handle_enter(h)) {
    enum remixdb_status s = REMIXDB_OK;
    PyObject *value = get_value(r, &key, &s);
    result = handle_leave(h, value, s);
  }
  data_drop(&key);
  return result;
}

static PyTypeObject batch_type;

// Order of locks: a batch's before a ref's.
static PyObject *ref_write(PyObject *self, PyObject *batch) {
  struct handle *h = ((struct held *)self)->handle;
  if (!PyObject_TypeCheck(batch, &batch_type))
    return PyErr_Format(PyExc_TypeError, "an XdbBatch is written, not %s", Py_TYPE(batch)->tp_name);
  struct handle *b = ((struct held *)batch)->handle;
  if (!handle_enter(b)) return NULL;
  PyObject *result = NULL;
  if (handle_enter(h)) {
    struct xdb_ref *pointer = h->pointer;
    struct xdb_batch *given = b->pointer;
    enum remixdb_status s;
    CALL(s, lib.write(pointer, given));
    result = handle_leave(h, s == REMIXDB_OK ? Py_NewRef(Py_None) : NULL, s);
  }
  return handle_leave(b, result, REMIXDB_OK);
}

static PyMethodDef ref_methods[] = {
    {"put", FAST(ref_put), METH_FASTCALL | METH_KEYWORDS,
     "put(key, value, *, expires=None): sets the key's value, which is on disk after sync."},
    {"get", FAST(ref_get), METH_FASTCALL | METH_KEYWORDS, "The key's value as bytes, None when there is no such key."},
    {"probe", FAST(ref_probe), METH_FASTCALL | METH_KEYWORDS, "Whether the key exists."},
    {"delete", FAST(ref_delete), METH_FASTCALL | METH_KEYWORDS, "Deletes the key; it need not exist."},
    {"write", ref_write, METH_O,
     "Writes all of the batch or none of it. The batch is not changed and can be written again."},
    {NULL, NULL, 0, NULL},
};
static PyTypeObject ref_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "_xdb.Ref",
    .tp_doc = "The base of xdb.XdbRef.",
    .tp_basicsize = sizeof(struct ref),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = held_dealloc,
    .tp_traverse = held_traverse,
    .tp_base = &held_type,
    .tp_methods = ref_methods,
};

// ---- Batch

// The library only copies into memory, so the interpreter's lock stays.
static PyObject *batch_put_data(struct handle *h, const struct data *key, const struct data *value) {
  if (!handle_enter(h)) return NULL;
  const bool good = lib.batch_put(h->pointer, key->ptr, key->len, value->ptr, value->len);
  return handle_leave(h, good ? Py_NewRef(Py_None) : NULL, good ? REMIXDB_OK : lib.errcode());
}

static PyObject *batch_put(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  struct data key, value;
  if (put_has_more(nargs, kwnames)) return put_until(self, args, nargs, kwnames);
  if (!data_args("put", args, nargs, kwnames, &key, &value)) return NULL;
  PyObject *result = batch_put_data(((struct held *)self)->handle, &key, &value);
  data_drop(&key);
  data_drop(&value);
  return result;
}

static PyObject *batch_delete(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  struct handle *h = ((struct held *)self)->handle;
  struct data key;
  PyObject *result = NULL;
  if (!data_args("delete", args, nargs, kwnames, &key, NULL)) return NULL;
  if (handle_enter(h)) {
    const bool good = lib.batch_del(h->pointer, key.ptr, key.len);
    result = handle_leave(h, good ? Py_NewRef(Py_None) : NULL, good ? REMIXDB_OK : lib.errcode());
  }
  data_drop(&key);
  return result;
}

static bool batch_put_pair(struct handle *h, PyObject *k, PyObject *v) {
  struct data key, value;
  if (!data_take(&key, k, "key")) return false;
  if (!data_take(&value, v, "value")) return data_drop(&key), false;
  PyObject *done = batch_put_data(h, &key, &value);
  data_drop(&key);
  data_drop(&value);
  Py_XDECREF(done);
  return done != NULL;
}

static bool batch_put_dict(struct handle *h, PyObject *items) {
  PyObject *k, *v;
  const Py_ssize_t size = PyDict_GET_SIZE(items);
  for (Py_ssize_t at = 0; PyDict_Next(items, &at, &k, &v);) {
    Py_INCREF(k);  // a logger, or another thread, may change the dict
    Py_INCREF(v);
    const bool good = batch_put_pair(h, k, v);
    Py_DECREF(k);
    Py_DECREF(v);
    if (!good) return false;
    if (PyDict_GET_SIZE(items) == size) continue;
    PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
    return false;
  }
  return true;
}

static bool batch_put_pairs(struct handle *h, PyObject *pairs) {
  PyObject *next = PyObject_GetIter(pairs), *item;
  if (next == NULL) return false;
  while ((item = PyIter_Next(next)) != NULL) {
    PyObject *two = PySequence_Fast(item, "an item is a (key, value) pair");
    Py_DECREF(item);
    if (two == NULL) break;
    if (PySequence_Fast_GET_SIZE(two) != 2) {
      PyErr_Format(PyExc_ValueError, "an item is a (key, value) pair, not %zd things", PySequence_Fast_GET_SIZE(two));
      Py_DECREF(two);
      break;
    }
    PyObject *k = Py_NewRef(PySequence_Fast_GET_ITEM(two, 0)), *v = Py_NewRef(PySequence_Fast_GET_ITEM(two, 1));
    Py_DECREF(two);
    const bool good = batch_put_pair(h, k, v);
    Py_DECREF(k);
    Py_DECREF(v);
    if (!good) break;
  }
  Py_DECREF(next);
  return !PyErr_Occurred();
}

static PyObject *batch_update(PyObject *self, PyObject *items) {
  struct handle *h = ((struct held *)self)->handle;
  if (PyDict_CheckExact(items)) return batch_put_dict(h, items) ? Py_NewRef(Py_None) : NULL;
  if (!PyObject_HasAttrString(items, "keys")) return batch_put_pairs(h, items) ? Py_NewRef(Py_None) : NULL;
  PyObject *pairs = PyObject_CallMethodNoArgs(items, words.items);
  if (pairs == NULL) return NULL;
  const bool good = batch_put_pairs(h, pairs);
  Py_DECREF(pairs);
  return good ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef batch_methods[] = {
    {"put", FAST(batch_put), METH_FASTCALL | METH_KEYWORDS, "Adds a put."},
    {"delete", FAST(batch_delete), METH_FASTCALL | METH_KEYWORDS, "Adds a delete."},
    {"update", batch_update, METH_O,
     "Puts all items of a dict, or of (key, value) pairs; faster than single puts. When an item cannot be put, the "
     "items before it have been put."},
    {NULL, NULL, 0, NULL},
};
static PyTypeObject batch_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "_xdb.Batch",
    .tp_doc = "The base of xdb.XdbBatch.",
    .tp_basicsize = sizeof(struct held),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = held_dealloc,
    .tp_traverse = held_traverse,
    .tp_base = &held_type,
    .tp_methods = batch_methods,
};

// ---- Iter
//
// Records are copied from the library by pages, and taken one by one. The library's iterator stands behind the page.

#define PAGE_FIRST 1u                                    // records of the first page after a seek
#define PAGE_GROWS 8u                                    // factor from page to page
#define PAGE_KEPT ((size_t)1 << 20)                      // bytes of room that stay for later pages after a large record
#define PAGE_MAX 1024u                                   // the most records of a page
static const size_t page_room[] = {1u << 12, 1u << 16};  // bytes of the first page, of later pages

enum give { GIVE_PAIRS, GIVE_KEYS, GIVE_VALUES };

struct iter {
  struct held held;
  struct remixdb_page page;  // its memory is this object's own, and stays between two pages
  uint32_t *lens;            // owned: klens, then vlens, PAGE_MAX each; NULL until the first page
  uint32_t nr;               // records of the page that calls may take: 0 while the library fills it
  uint32_t at;               // how many of them were taken
  size_t off;                // their bytes
  uint32_t grown;            // records of the next page
  bool back;                 // direction of the records ahead
  bool reverse;              // direction of __next__
  bool placed;               // a seek was made, and no park after it
  bool fresh;                // neither a seek nor a park yet
  int give;                  // enum give
  PyObject *pair;            // owned: the last pair, used again when nobody else has it; NULL since Python 3.14
};

static PyObject *iter_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
  (void)args;
  (void)kw;
  struct iter *it = (struct iter *)type->tp_alloc(type, 0);
  if (it == NULL) return NULL;
  it->grown = PAGE_FIRST;
  it->fresh = true;
  return (PyObject *)it;
}

static void iter_free_room(struct iter *it) {
  PyMem_RawFree(it->page.ptr);
  it->page.ptr = NULL;
  it->page.cap = 0;
}

static int iter_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((struct iter *)self)->pair);
  return held_traverse(self, visit, arg);
}

static int iter_clear(PyObject *self) {
  Py_CLEAR(((struct iter *)self)->pair);
  return 0;
}

static void iter_dealloc(PyObject *self) {
  struct iter *it = (struct iter *)self;
  PyObject_GC_UnTrack(self);
  iter_clear(self);
  iter_free_room(it);
  PyMem_RawFree(it->lens);
  held_dealloc(self);
}

// Moves the library's iterator to this one's position. The library keeps an error for the next call. The caller holds
// the handle's lock.
static void iter_settle_locked(struct iter *it) {
  const uint32_t left = it->nr - it->at;
  const bool moved = it->page.after || left;
  it->nr = it->at = 0;
  it->off = 0;
  it->grown = PAGE_FIRST;
  if (!moved) return;
  struct xdb_iter *pointer = it->held.handle->pointer;
  enum remixdb_status s;
  CALL(s, lib.iter_unread(pointer, &it->page, left));
  (void)s;
}

static bool iter_room(struct iter *it, size_t size) {
  if (it->lens == NULL) it->lens = PyMem_RawMalloc(2 * PAGE_MAX * sizeof(*it->lens));
  if (it->lens != NULL && (it->page.cap < size || it->page.cap > (size > PAGE_KEPT ? size : PAGE_KEPT))) {
    iter_free_room(it);
    it->page.ptr = PyMem_RawMalloc(size);
    if (it->page.ptr != NULL) it->page.cap = size;
  }
  if (it->lens == NULL || it->page.ptr == NULL) return PyErr_NoMemory(), false;
  it->page.klens = it->lens;
  it->page.vlens = it->give == GIVE_KEYS ? NULL : it->lens + PAGE_MAX;
  return true;
}

// Has the library fill a page. Returns 1; 0 at the end; -1 with an exception, or if the library's call failed with
// *status. The caller holds the handle's lock.
static int iter_fill_locked(struct iter *it, bool back, enum remixdb_status *status) {
  if (it->at < it->nr && it->back == back) return 1;  // another thread has filled it
  if (it->at < it->nr || it->back != back) iter_settle_locked(it);
  struct xdb_iter *pointer = it->held.handle->pointer;
  size_t size = page_room[it->grown > PAGE_FIRST];
  while (true) {
    enum remixdb_status s;
    if (!iter_room(it, size)) return -1;
    it->nr = it->at = 0;
    it->off = 0;
    it->back = it->page.back = back;
    it->page.max = it->grown;
    // the call sets them for a record that does not fit, and leaves them alone after other failures
    it->page.klens[0] = 0;
    if (it->page.vlens != NULL) it->page.vlens[0] = 0;
    CALL(s, lib.iter_page(pointer, &it->page));
    if (s == REMIXDB_OK) break;
    const size_t need = (size_t)it->page.klens[0] + (it->page.vlens == NULL ? 0 : it->page.vlens[0]);
    if (s == REMIXDB_TOOBIG && need > it->page.cap) {
      size = need;
    } else if (s == REMIXDB_NOTFOUND) {
      iter_free_room(it);
      return 0;
    } else {
      *status = s;
      return -1;
    }
  }
  it->nr = it->page.nr;
  it->grown = it->grown * PAGE_GROWS < PAGE_MAX ? it->grown * PAGE_GROWS : PAGE_MAX;
  return 1;
}

static int iter_fill(struct iter *it, bool back) {
  struct handle *h = it->held.handle;
  if (!handle_enter(h)) return -1;
  enum remixdb_status s = REMIXDB_OK;
  const int got = iter_fill_locked(it, back, &s);
  PyObject *result = handle_leave(h, got < 0 ? NULL : Py_NewRef(Py_None), s);
  Py_XDECREF(result);
  return result == NULL ? -1 : got;
}

// Returns a new reference to a pair that nobody else has; NULL with an exception. Makes the pair for all records that
// are taken until somebody keeps it, or for one record since Python 3.14: a tuple keeps its hash from there on. The
// making may start the garbage collector, and so run any Python code.
static PyObject *iter_pair(struct iter *it) {
#if PY_VERSION_HEX >= 0x030E0000
  (void)it;
  return PyTuple_Pack(2, Py_None, Py_None);
#else
  if (it->pair != NULL && Py_REFCNT(it->pair) == 1) return Py_NewRef(it->pair);
  PyObject *pair = PyTuple_Pack(2, Py_None, Py_None);
  if (pair == NULL) return NULL;
  Py_XSETREF(it->pair, Py_NewRef(pair));
  return pair;
#endif
}

// Puts x in the place of the pair's item. Takes over the reference to x.
static void pair_set(PyObject *pair, Py_ssize_t i, PyObject *x) {
  PyObject *old = PyTuple_GET_ITEM(pair, i);
  PyTuple_SET_ITEM(pair, i, x);
  Py_DECREF(old);
}

// Takes the next record of the page. After a MemoryError the record is still there. No other code runs in this
// function: making and freeing bytes starts no garbage collector. `pair` is where a pair goes; its reference is taken
// over.
static PyObject *iter_take(struct iter *it, PyObject *pair) {
  const char *at = (const char *)it->page.ptr + it->off;
  const uint32_t klen = it->page.klens[it->at], vlen = it->page.vlens == NULL ? 0 : it->page.vlens[it->at];
  PyObject *k = it->give == GIVE_VALUES ? NULL : PyBytes_FromStringAndSize(at, klen);
  PyObject *v = it->give == GIVE_KEYS ? NULL : PyBytes_FromStringAndSize(at + klen, vlen);
  if (PyErr_Occurred()) {
    Py_XDECREF(k);
    Py_XDECREF(v);
    Py_XDECREF(pair);
    return NULL;
  }
  it->at++;
  it->off += (size_t)klen + vlen;
  if (pair == NULL) return k == NULL ? v : k;
  pair_set(pair, 0, k);
  pair_set(pair, 1, v);
  return pair;
}

// Gives the next record in a direction; NULL without an exception at the end.
static PyObject *iter_step(struct iter *it, bool back) {
  while (true) {
    PyObject *pair = NULL;
    if (it->give == GIVE_PAIRS && (pair = iter_pair(it)) == NULL) return NULL;
    struct handle *h = it->held.handle;
    if (it->at < it->nr && it->back == back && h != NULL && handle_usable(h)) return iter_take(it, pair);
    Py_XDECREF(pair);
    if (iter_fill(it, back) <= 0) return NULL;
  }
}

static PyObject *iter_next(PyObject *self) {
  struct iter *it = (struct iter *)self;
  if (it->fresh && !it->placed && !call(self, it->reverse ? words.seek_last : words.seek)) return NULL;
  return iter_step(it, it->reverse);
}

static PyObject *iter_step_back(PyObject *self, PyObject *nothing) {
  (void)nothing;
  struct iter *it = (struct iter *)self;
  PyObject *got = iter_step(it, !it->reverse);
  if (got == NULL && !PyErr_Occurred()) PyErr_SetNone(PyExc_StopIteration);
  return got;
}

static PyObject *iter_settle(PyObject *self, PyObject *nothing) {
  (void)nothing;
  struct iter *it = (struct iter *)self;
  struct handle *h = it->held.handle;
  if (!handle_enter(h)) return NULL;
  iter_settle_locked(it);
  return handle_leave(h, Py_NewRef(Py_None), REMIXDB_OK);
}

static PyObject *iter_left(PyObject *self, PyObject *nothing) {
  (void)nothing;
  struct iter *it = (struct iter *)self;
  return PyLong_FromUnsignedLong(it->nr - it->at);
}

enum move { MOVE_SEEK, MOVE_SEEK_LAST, MOVE_SEEK_FOR_PREV, MOVE_PREV, MOVE_SKIP1 };

static void move(enum move how, struct xdb_iter *pointer, const char *key, uint32_t len) {
  switch (how) {
    case MOVE_SEEK: lib.iter_seek(pointer, key, len); break;
    case MOVE_SEEK_LAST: lib.iter_seek_last(pointer); break;
    case MOVE_SEEK_FOR_PREV: lib.iter_seek_for_prev(pointer, key, len); break;
    case MOVE_PREV: lib.iter_prev(pointer); break;
    case MOVE_SKIP1: lib.iter_skip1(pointer); break;
  }
}

// Moves the iterator from where it stands. `key` is NULL for a move without one.
static PyObject *iter_move(PyObject *self, enum move how, const struct data *key) {
  struct iter *it = (struct iter *)self;
  struct handle *h = it->held.handle;
  if (!handle_enter(h)) return NULL;
  iter_settle_locked(it);
  struct xdb_iter *pointer = h->pointer;
  enum remixdb_status s;
  CALL(s, (move(how, pointer, key == NULL ? NULL : key->ptr, key == NULL ? 0 : key->len), false));
  if (s == REMIXDB_OK && how <= MOVE_SEEK_FOR_PREV) it->placed = true;
  return handle_leave(h, s == REMIXDB_OK ? Py_NewRef(Py_None) : NULL, s);
}

static PyObject *iter_seek(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  const Py_ssize_t nr = nargs + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
  struct data key;
  if (nr == 0 || (nargs == 1 && nr == 1 && args[0] == Py_None)) return iter_move(self, MOVE_SEEK, NULL);
  if (nr == 1 && args[0] == Py_None && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "key") == 0)
    return iter_move(self, MOVE_SEEK, NULL);
  if (!data_args("seek", args, nargs, kwnames, &key, NULL)) return NULL;
  PyObject *result = iter_move(self, MOVE_SEEK, &key);
  data_drop(&key);
  return result;
}

static PyObject *iter_seek_for_prev(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) {
  struct data key;
  if (!data_args("seek_for_prev", args, nargs, kwnames, &key, NULL)) return NULL;
  PyObject *result = iter_move(self, MOVE_SEEK_FOR_PREV, &key);
  data_drop(&key);
  return result;
}

static PyObject *iter_seek_last(PyObject *self, PyObject *nothing) {
  (void)nothing;
  return iter_move(self, MOVE_SEEK_LAST, NULL);
}

static PyObject *iter_prev(PyObject *self, PyObject *nothing) {
  (void)nothing;
  return iter_move(self, MOVE_PREV, NULL);
}

static PyObject *iter_skip1(PyObject *self, PyObject *nothing) {
  (void)nothing;
  return iter_move(self, MOVE_SKIP1, NULL);
}

static PyMethodDef iter_methods[] = {
    {"seek", FAST(iter_seek), METH_FASTCALL | METH_KEYWORDS,
     "seek(key=None): moves to the first key that is not smaller; without a key, to the first one."},
    {"seek_last", iter_seek_last, METH_NOARGS, "Moves to the last key."},
    {"seek_for_prev", FAST(iter_seek_for_prev), METH_FASTCALL | METH_KEYWORDS,
     "Moves to the last key that is not greater."},
    {"prev", iter_prev, METH_NOARGS, "Moves to the previous key; before the first key it has no position."},
    {"skip1", iter_skip1, METH_NOARGS, "Moves to the next key. At the end, and without a position, it does nothing."},
    {"_settle", iter_settle, METH_NOARGS, "Moves the library's iterator to this one's position."},
    {"_left", iter_left, METH_NOARGS, "The number of records ahead."},
    {"_step_back", iter_step_back, METH_NOARGS, "The next pair against the direction of __next__."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef iter_members[] = {
    {"_reverse", T_BOOL, offsetof(struct iter, reverse), 0, NULL},
    {"_placed", T_BOOL, offsetof(struct iter, placed), 0, NULL},
    {"_fresh", T_BOOL, offsetof(struct iter, fresh), 0, NULL},
    {"_give", T_INT, offsetof(struct iter, give), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyTypeObject iter_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "_xdb.Iter",
    .tp_doc = "The base of xdb.XdbIter.",
    .tp_basicsize = sizeof(struct iter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = iter_new,
    .tp_dealloc = iter_dealloc,
    .tp_traverse = iter_traverse,
    .tp_clear = iter_clear,
    .tp_iternext = iter_next,
    .tp_base = &held_type,
    .tp_methods = iter_methods,
    .tp_members = iter_members,
};

// ---- the module

static PyObject *setup(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *addresses, *error;
  if (!PyArg_ParseTuple(args, "O!O:setup", &PyDict_Type, &addresses, &error)) return NULL;
  void *found;
  PyObject *address;
#define FIND(name)                                                                                      \
  address = PyDict_GetItemString(addresses, "remixdb_" #name);                                          \
  if (address == NULL) return PyErr_Format(PyExc_KeyError, "remixdb_" #name);                           \
  found = PyLong_AsVoidPtr(address);                                                                    \
  if (found == NULL) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "remixdb_" #name); \
  memcpy(&lib.name, &found, sizeof(found));
  CALLS(FIND)
  Py_XSETREF(error_type, Py_NewRef(error));
  Py_RETURN_NONE;
}

static PyObject *forked(PyObject *module, PyObject *nr) {
  (void)module;
  const long n = PyLong_AsLong(nr);
  if (n == -1 && PyErr_Occurred()) return NULL;
  forks = n;
  merging = 0;
  Py_RETURN_NONE;
}

// Sets the slice to x, which is bytes or None. Returns false with an exception.
static bool slice_of(struct remixdb_slice *slice, PyObject *x) {
  if (x == Py_None) return true;
  if (!PyBytes_Check(x) || (uint64_t)PyBytes_GET_SIZE(x) > UINT32_MAX) {
    PyErr_SetString(PyExc_TypeError, "a bound is bytes, or None");
    return false;
  }
  *slice = (struct remixdb_slice){.ptr = PyBytes_AS_STRING(x), .len = (uint32_t)PyBytes_GET_SIZE(x)};
  return true;
}

static PyObject *iter_opts(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
  (void)module;
  struct remixdb_iter_opts o;
  if (nargs != 6) return PyErr_Format(PyExc_TypeError, "iter_opts() takes 6 arguments, not %zd", nargs);
  if (lib.iter_opts_init == NULL) return PyErr_Format(PyExc_RuntimeError, "setup() comes first");
  lib.iter_opts_init(&o, sizeof(o));
  const unsigned long expect = PyLong_AsUnsignedLong(args[0]);
  if (PyErr_Occurred() || !slice_of(&o.bounds.from, args[1]) || !slice_of(&o.bounds.to, args[2]) ||
      !slice_of(&o.prefix, args[3]))
    return NULL;
  o.expect = (uint32_t)expect;
  o.keys_only = args[4] == Py_True;
  o.hold = args[5] == Py_True;
  return PyBytes_FromStringAndSize((const char *)&o, sizeof(o));
}

static PyObject *late_add(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *late, *handle;
  if (!PyArg_ParseTuple(args, "O!O!:late_add", &PyList_Type, &late, &handle_type, &handle)) return NULL;
  if (PyList_Append(late, handle) < 0) return NULL;
  nr_late++;
  Py_RETURN_NONE;
}

static PyObject *late_remove(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *late, *handle;
  if (!PyArg_ParseTuple(args, "O!O!:late_remove", &PyList_Type, &late, &handle_type, &handle)) return NULL;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(late); i++) {
    if (PyList_GET_ITEM(late, i) != handle) continue;
    nr_late--;
    return PyList_SetSlice(late, i, i + 1, NULL) < 0 ? NULL : Py_NewRef(Py_None);
  }
  return PyErr_Format(PyExc_ValueError, "the handle is not in the list");
}

static PyMethodDef methods[] = {
    {"iter_opts", FAST(iter_opts), METH_FASTCALL,
     "iter_opts(expect, start, stop, prefix, keys_only, hold): a struct remixdb_iter_opts as bytes, which points into "
     "start, stop and prefix."},
    {"late_add", late_add, METH_VARARGS, "late_add(late, handle): appends to this thread's list of late handles."},
    {"late_remove", late_remove, METH_VARARGS, "late_remove(late, handle): the contrary."},
    {"setup", setup, METH_VARARGS, "setup(addresses, error): the library's functions by name, and xdb.XdbError."},
    {"forked", forked, METH_O, "forked(n): this process is the n-th child made by fork, one after the other."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, .m_name = "_xdb",     .m_doc = "The calls of xdb.py that programs make most often, in C.",
    .m_size = -1,          .m_methods = methods,
};

PyMODINIT_FUNC PyInit__xdb(void) {
  static const struct {
    const char *name;
    PyTypeObject *type;
  } types[] = {{"Lock", &lock_type}, {"Merging", &merging_type}, {"Handle", &handle_type}, {"Held", &held_type},
               {"Ref", &ref_type},   {"Batch", &batch_type},     {"Iter", &iter_type}};
#define INTERN(name) \
  if ((words.name = PyUnicode_InternFromString(#name)) == NULL) return NULL;
  NAMES(INTERN)
  PyObject *module = PyModule_Create(&module_def);
  if (module == NULL) return NULL;
  for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
    if (PyType_Ready(types[i].type) == 0 &&
        PyModule_AddObjectRef(module, types[i].name, (PyObject *)types[i].type) == 0)
      continue;
    Py_DECREF(module);
    return NULL;
  }
  if (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) == 0) return module;
  Py_DECREF(module);
  return NULL;
}

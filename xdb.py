# SPDX-License-Identifier: Apache-2.0
"""RemixDB from Python.

    from xdb import Xdb

    with Xdb("/tmp/example") as db, db.ref() as ref:
        ref.put("apple", "green")
        ref.get("apple")                      # b"green"; None when there is no such key
        ref.sync()                            # what was put before is on disk now
        with ref.iter() as it:
            for key, value in it:             # in order, as bytes
                print(key, value)
            for key, value in reversed(ref.iter()):
                print(key, value)
        with ref.batch() as batch:            # written when the block ends: all of it or nothing
            batch.put("pear", "green")
            batch.delete("apple")
        ref.merge("n", lambda value: str(int(value or 0) + 1))  # no update is lost
        with ref.snapshot() as then, then.ref() as old:
            ref.put("pear", "eaten")
            old.get("pear")                   # b"green", as long as the snapshot lives

Keys and values are bytes, bytearray, memoryview, or str, which is encoded as UTF-8; what comes back is bytes. A call that
fails raises XdbError, which carries the status. A ref may be handed from thread to thread; threads that use the same one
take turns, so a thread that is to run beside others has a ref of its own.

Things may be closed in any order, or left to the garbage collector: closing a store closes its refs and iterators first,
and what is used after that raises XdbError. A store belongs to the process that opened it; a child made by fork cannot use
it, and does no harm by trying. A signal's handler should leave stores alone: what it does with one may be told, as its status, to the
call that it has interrupted.

The library is looked for when the first store is opened: where the environment variable REMIXDB_LIBRARY says, else beside
this file, else where the system's loader looks.
"""

import ctypes
import ctypes.util
import enum
import json
import os
import sys
import threading
import weakref

__all__ = ["Xdb", "XdbRef", "XdbIter", "XdbBatch", "XdbSnapshot", "XdbError", "Status", "COMPRESSION_NONE", "COMPRESSION_ZSTD", "SYNC_NONE",
           "SYNC_EACH", "KEEP", "KV_MAX", "version", "repair", "destroy"]

KV_MAX = 65500  # the largest len(key) + len(value)
COMPRESSION_NONE, COMPRESSION_ZSTD = 0, 1  # for the option compression
SYNC_NONE, SYNC_EACH = 0, -1  # for the option sync; N > 0 is "every N ms"
_U32_MAX = 0xFFFFFFFF


class Status(enum.IntEnum):
    """The statuses of remixdb.h."""

    OK = 0
    NOTFOUND = 1
    INVALID = 2
    TOOBIG = 3
    NOMEM = 4
    IO = 5
    NOSPACE = 6
    CORRUPT = 7
    LOCKED = 8
    READONLY = 9
    VERSION = 10
    EXISTS = 11
    ABORTED = 12


class XdbError(Exception):
    """A call failed. `status` is a Status (a plain int when the library knows one that this file does not), `message` says
    what happened, with the file's name where there is one."""

    def __init__(self, status, message):
        try:
            status = Status(status)
        except ValueError:
            pass
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self):
        return f"{getattr(self.status, 'name', self.status)}: {self.message}"


# ---- the library

# name: (result, arguments). Inputs are c_char_p, which takes bytes with zeros in them, since the lengths go along; what is
# written to, and what must not be taken for a string, is c_void_p.
_P, _S, _U32, _BOOL = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_bool
_U32P = ctypes.POINTER(ctypes.c_uint32)
_MERGE_FN = ctypes.CFUNCTYPE(ctypes.c_int, _P, _U32, ctypes.POINTER(ctypes.c_void_p), _U32P, _P)
_LOG_FN = ctypes.CFUNCTYPE(None, _P, _S)
_MERGE_KEEP, _MERGE_PUT, _MERGE_DEL = range(3)
_SIGNATURES = {
    "remixdb_errcode": (ctypes.c_int, ()),
    "remixdb_errmsg": (_S, ()),
    "remixdb_strerror": (_S, (ctypes.c_int,)),
    "remixdb_version": (_S, ()),
    "remixdb_opts_init": (None, (_P, ctypes.c_size_t)),
    "remixdb_open_opts": (_P, (_S, _P)),
    "remixdb_close": (None, (_P,)),
    "remixdb_ref": (_P, (_P,)),
    "remixdb_unref": (None, (_P,)),
    "remixdb_put": (_BOOL, (_P, _S, _U32, _S, _U32)),
    "remixdb_del": (_BOOL, (_P, _S, _U32)),
    "remixdb_probe": (_BOOL, (_P, _S, _U32)),
    "remixdb_getn": (_BOOL, (_P, _S, _U32, _P, _U32, _U32P)),
    "remixdb_multi_get": (ctypes.c_size_t, (_P, ctypes.c_size_t, _P, _P, _P)),
    "remixdb_merge": (_BOOL, (_P, _S, _U32, _MERGE_FN, _P)),
    "remixdb_sync": (_BOOL, (_P,)),
    "remixdb_flush": (_BOOL, (_P,)),
    "remixdb_compact": (_BOOL, (_P,)),
    "remixdb_checkpoint": (_BOOL, (_P, _S)),
    "remixdb_verify": (_BOOL, (_P,)),
    "remixdb_repair": (_BOOL, (_S,)),
    "remixdb_destroy": (_BOOL, (_S,)),
    "remixdb_batch_create": (_P, ()),
    "remixdb_batch_put": (_BOOL, (_P, _S, _U32, _S, _U32)),
    "remixdb_batch_del": (_BOOL, (_P, _S, _U32)),
    "remixdb_batch_count": (ctypes.c_size_t, (_P,)),
    "remixdb_batch_clear": (None, (_P,)),
    "remixdb_batch_destroy": (None, (_P,)),
    "remixdb_write": (_BOOL, (_P, _P)),
    "remixdb_snapshot": (_P, (_P,)),
    "remixdb_snapshot_ref": (_P, (_P,)),
    "remixdb_snapshot_release": (None, (_P,)),
    "remixdb_iter_create": (_P, (_P,)),
    "remixdb_iter_seek": (None, (_P, _S, _U32)),
    "remixdb_iter_seek_last": (None, (_P,)),
    "remixdb_iter_seek_for_prev": (None, (_P, _S, _U32)),
    "remixdb_iter_prev": (None, (_P,)),
    "remixdb_iter_key": (_P, (_P, _U32P)),
    "remixdb_iter_value": (_P, (_P, _U32P)),
    "remixdb_iter_valid": (_BOOL, (_P,)),
    "remixdb_iter_peek": (_BOOL, (_P, _P, _U32P, _P, _U32P)),
    "remixdb_iter_skip1": (None, (_P,)),
    "remixdb_iter_skip": (None, (_P, _U32)),
    "remixdb_iter_park": (None, (_P,)),
    "remixdb_iter_destroy": (None, (_P,)),
    "remixdb_iter_status": (ctypes.c_int, (_P,)),
    "remixdb_stats": (_P, (_P,)),
    "remixdb_free": (None, (_P,)),
}


class _Opts(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("cache_mb", ctypes.c_size_t), ("memtable_mb", ctypes.c_size_t), ("wal_mb", ctypes.c_size_t),
                ("ckeys", _BOOL), ("tags", _BOOL), ("workers", ctypes.c_int), ("worker_cores", _S), ("io", _S), ("direct_io", _BOOL),
                ("compression", ctypes.c_int), ("compression_level", ctypes.c_int), ("sync", ctypes.c_int), ("read_only", _BOOL),
                ("create", _BOOL), ("error_if_exists", _BOOL), ("max_open_files", _U32), ("logger", _LOG_FN), ("logger_priv", _P))


class _Slice(ctypes.Structure):
    _fields_ = (("ptr", _S), ("len", _U32))


class _Buf(ctypes.Structure):
    _fields_ = (("ptr", _P), ("cap", _U32), ("len", _U32))


_VALUE_GUESS = 256  # bytes of room for each value of multi_get, until it is known that one is longer
_NAMES = ("libremixdb.so", "libremixdb.so.0", "libremixdb.dylib", "libremixdb.0.dylib")

_library = None
_library_lock = threading.Lock()


def _load():
    path = os.environ.get("REMIXDB_LIBRARY")
    if path:
        return ctypes.CDLL(path)
    here = os.path.dirname(os.path.abspath(__file__))
    for name in _NAMES:
        path = os.path.join(here, name)
        if os.path.exists(path):
            return ctypes.CDLL(path)
    installed = ctypes.util.find_library("remixdb")
    for name in _NAMES + ((installed,) if installed else ()):
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    raise OSError("libremixdb.so was not found; build it, install it, or set REMIXDB_LIBRARY to its path")


def _lib():
    global _library
    if _library is None:
        with _library_lock:
            if _library is None:
                lib = _load()
                for name, (result, arguments) in _SIGNATURES.items():
                    function = getattr(lib, name)
                    function.restype = result
                    function.argtypes = arguments
                _library = lib
    return _library


def version():
    """The version of the library, "MAJOR.MINOR.PATCH"."""
    return _lib().remixdb_version().decode()


class _Keep:
    def __repr__(self):
        return "xdb.KEEP"

    def __reduce__(self):
        return "KEEP"


KEEP = _Keep()  # what a merge's function returns to leave the key as it is


def repair(dirname):
    """Makes a store of what can still be read of the damaged one in the directory; what was there is put aside in it, with a report.
    The store must not be open."""
    lib = _lib()
    if not lib.remixdb_repair(_dirname(dirname)):
        raise _last_error(lib)


def destroy(dirname):
    """Removes the store in the directory: its own files only, and the directory when nothing else is in it."""
    lib = _lib()
    if not lib.remixdb_destroy(_dirname(dirname)):
        raise _last_error(lib)


def _last_error(lib):
    """The error of this thread's last call, as an exception to be raised."""
    status = lib.remixdb_errcode()
    message = lib.remixdb_errmsg() or lib.remixdb_strerror(status)
    return XdbError(status, message.decode("utf-8", "replace"))


def _bytes(x, what):
    if isinstance(x, bytes):
        return x
    if isinstance(x, str):
        return x.encode("utf-8")
    if isinstance(x, (bytearray, memoryview)):
        return bytes(x)
    raise TypeError(f"a {what} is bytes, bytearray, memoryview or str, not {type(x).__name__}")


def _dirname(x):
    name = os.fsencode(x)
    if b"\0" in name:
        raise ValueError("a zero byte in the directory's name")
    return name


def _int(x, what, kind=ctypes.c_size_t):
    """For a C integer of this kind; ctypes would cut off what does not fit."""
    if not isinstance(x, int) or isinstance(x, bool):
        raise TypeError(f"{what} is an int, not {type(x).__name__}")
    if kind(x).value != x:
        raise ValueError(f"{what} is {x}, which is out of range")
    return x


def _flag(x, what):
    if not isinstance(x, bool):
        raise TypeError(f"{what} is True or False, not {type(x).__name__}")
    return x


def _word(x, what):
    if not isinstance(x, str):
        raise TypeError(f"{what} is a str, not {type(x).__name__}")
    if "\0" in x:
        raise ValueError(f"a zero byte in {what}")
    return x.encode("utf-8")


def _length(x, what):
    # The library refuses what is larger than a record; a length that 32 bits cannot hold would not even reach it.
    if len(x) > _U32_MAX:
        raise XdbError(Status.TOOBIG, f"a {what} of {len(x)} bytes")
    return len(x)


# ---- the logger


class _Log:
    """The lines that the library has to tell, on their way to the user's function.

    They come from any thread, the library's own too, and in the middle of calls. No Python code may run there: the garbage collector
    could run with it, and close a store, which waits for that very thread. So the library calls a function that is written in C,
    list.insert, with an index behind every end, and a thread that has called a store hands over what has gathered when its call is over."""

    def __init__(self, function):
        if not callable(function):
            raise TypeError(f"logger is a function, not {type(function).__name__}")
        if sys.version_info < (3, 9):
            raise NotImplementedError("logger needs Python 3.9: before, ctypes makes an object that the garbage collector counts for each callback")
        self._function = function
        self._turn = threading.Lock()  # one thread hands over at a time: lines stay in order; what the function itself causes comes after it
        self.lines = []
        self.callback = _LOG_FN(self.lines.insert)
        self.priv = sys.maxsize

    def hand_over(self):
        while self.lines and self._turn.acquire(blocking=False):
            try:
                while self.lines:
                    self._function(self.lines.pop(0).decode("utf-8", "replace"))
            except Exception:  # the call that it comes after has succeeded, or raises its own
                sys.excepthook(*sys.exc_info())
            finally:
                self._turn.release()


# ---- handles

# Of the thread that runs a merge's function: that it does, and what was collected meanwhile. The function holds a lock of the store, and its ref is in the
# middle of a call, so nothing may be called and nothing closed before it has returned.
_merging = threading.local()


class _Handle:
    """A pointer of the library, and the handles that have to be closed before it.

    Handles refer to each other, never to the objects below that users hold, so that any order in which those are closed or
    collected closes the pointers in the order that the library asks for. Used in a with statement it gives the pointer and
    keeps it from being closed meanwhile. Locks are taken from the store to its refs; an iterator has its ref's, because the
    library allows one thread at a time on a ref and its iterators. `log` is the store's _Log, when it has one.
    """

    def __init__(self, what, pointer, destroy, parent=None, lock=None, log=None):
        self._what = what
        self._pointer = pointer
        self._destroy = destroy
        self._parent = parent
        self._children = set()
        self._pid = os.getpid()
        self._log = log if parent is None else parent._log
        self.lock = lock if lock is not None else threading.RLock()
        if parent is not None:
            parent._children.add(self)

    def __enter__(self):
        # Before the lock: in a child made by fork, nobody may be left to release it.
        if self._pid != os.getpid():
            raise XdbError(Status.INVALID, f"the {self._what} belongs to the process that opened it")
        if getattr(_merging, "on", False):
            raise XdbError(Status.INVALID, f"the {self._what} is not to be used by the function of a merge")
        self.lock.acquire()
        if self._pointer is None:
            self.lock.release()
            raise XdbError(Status.INVALID, f"the {self._what} is closed")
        return self._pointer

    def __exit__(self, *exc):
        self.lock.release()
        if self._log is not None and self._log.lines:
            self._log.hand_over()

    @property
    def closed(self):
        return self._pointer is None or self._pid != os.getpid()

    def collect(self):
        """What the garbage collector does in place of close: it may come at any time."""
        if getattr(_merging, "on", False):
            _merging.later.append(self)
        else:
            self.close()

    def close(self):
        """Closes the children, then this. Gives what the library's closing function gave, None when there was nothing to do."""
        if self._pid != os.getpid():
            return None  # the parent process has it, with its threads; here there is nothing that could be closed
        if getattr(_merging, "on", False):
            raise XdbError(Status.INVALID, f"the {self._what} is not to be closed by the function of a merge")
        result = None
        with self.lock:
            for child in list(self._children):
                child.close()
            pointer, self._pointer = self._pointer, None
            if pointer is not None:
                result = self._destroy(pointer)
        if self._parent is not None:
            self._parent._children.discard(self)
        if self._log is not None:
            self._log.hand_over()
        return result


def _store_close(pointer):
    lib = _library
    lib.remixdb_close(pointer)
    return _last_error(lib) if lib.remixdb_errcode() != Status.OK else None


def _of(thing, *kinds):
    if not isinstance(thing, kinds):
        raise TypeError(f"{' or '.join(kind.__name__ for kind in kinds)} is needed, not {type(thing).__name__}")


class _Closable:
    """What the classes below share: closing by hand, by a with statement, or by the garbage collector."""

    def _own(self, handle):
        self._handle = handle
        # Runs when the object is collected, or at the interpreter's exit while modules are still whole.
        self._finalizer = weakref.finalize(self, handle.collect)

    def __reduce_ex__(self, protocol):
        raise TypeError(f"{type(self).__name__} can be neither copied nor pickled")

    @property
    def closed(self):
        """Whether it has been closed, by itself or with what it belongs to."""
        return self._handle.closed

    def close(self):
        """Closes it, and what depends on it. Closing twice does nothing."""
        error = self._handle.close()
        self._finalizer.detach()
        if error is not None:
            raise error

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class Xdb(_Closable):
    """The store in directory `dirname`, made when there is none; an absolute name when the process is going to change its working
    directory. `cachesz` is the size of the block cache in MiB, 0 for none;
    `mtsz` that of a memtable in MiB, 0 for the default; `tags` keeps hash tags, which make get faster.

    The other options have the names, meanings and defaults of struct remixdb_opts:
    wal_mb             one log segment, MiB; 0 = twice the memtable
    ckeys              new tables hold a compressed-keys block, which makes compaction read less
    workers            compaction threads; 0 = compaction runs in the caller's thread; -1 = auto; at most 64
    worker_cores       "auto", "none" (not pinned), or a list such as "0,2,4-7"
    io                 "auto", "uring", "aio", "sync"; the environment variable REMIXDB_IO overrides it
    direct_io          tables bypass the system's page cache
    compression        of new tables' data: COMPRESSION_NONE, COMPRESSION_ZSTD
    compression_level  zstd's level; 0 = zstd's default
    sync               SYNC_NONE, SYNC_EACH (each write is on disk when its call returns), or N > 0: a sync begins at most N ms after it
    read_only          nothing on disk is changed; several may have the store open so, and nobody else
    create             make the store when there is none; otherwise XdbError with NOTFOUND
    error_if_exists    XdbError with EXISTS when it is there
    max_open_files     descriptors the store may hold for tables; 0 = the default; at least 16
    logger             function that is called with a line (str) for what a user may want to know. The threads that call the store call it,
                       after their calls, with all that there was to tell since. It is kept until the store is closed"""

    def __init__(self, dirname, cachesz=256, mtsz=256, tags=True, *, wal_mb=0, ckeys=True, workers=-1, worker_cores="auto", io="auto",
                 direct_io=False, compression=COMPRESSION_NONE, compression_level=0, sync=SYNC_NONE, read_only=False, create=True,
                 error_if_exists=False, max_open_files=1000, logger=None):
        name = _dirname(dirname)
        lib = _lib()
        opts = _Opts()
        lib.remixdb_opts_init(ctypes.byref(opts), ctypes.sizeof(opts))
        opts.cache_mb = _int(cachesz, "cachesz")
        opts.memtable_mb = _int(mtsz, "mtsz")
        opts.tags = bool(tags)
        opts.wal_mb = _int(wal_mb, "wal_mb")
        opts.ckeys = _flag(ckeys, "ckeys")
        opts.workers = _int(workers, "workers", ctypes.c_int)
        opts.worker_cores = _word(worker_cores, "worker_cores")
        opts.io = _word(io, "io")
        opts.direct_io = _flag(direct_io, "direct_io")
        opts.compression = _int(compression, "compression", ctypes.c_int)
        opts.compression_level = _int(compression_level, "compression_level", ctypes.c_int)
        opts.sync = _int(sync, "sync", ctypes.c_int)
        opts.read_only = _flag(read_only, "read_only")
        opts.create = _flag(create, "create")
        opts.error_if_exists = _flag(error_if_exists, "error_if_exists")
        opts.max_open_files = _int(max_open_files, "max_open_files", _U32)
        log = None if logger is None else _Log(logger)
        if log is not None:
            opts.logger, opts.logger_priv = log.callback, log.priv
        pointer = lib.remixdb_open_opts(name, ctypes.byref(opts))
        error = _last_error(lib) if pointer is None else None
        if error is None:
            self._own(_Handle("store", pointer, _store_close, log=log))
        if log is not None:
            log.hand_over()
        if error is not None:
            raise error

    def ref(self):
        """A new XdbRef, through which the store is read and written."""
        return XdbRef(self)

    def iter(self):
        """A new XdbIter with a ref of its own."""
        return XdbIter(XdbRef(self))

    def stats(self):
        """The store's figures, as a dict."""
        lib = _lib()
        with self._handle as pointer:
            text = lib.remixdb_stats(pointer)
            if text is None:
                raise _last_error(lib)
            try:
                return json.loads(ctypes.string_at(text))
            finally:
                lib.remixdb_free(text)


class XdbSnapshot(_Closable):
    """The store as it was at one moment; made by XdbRef.snapshot(). It costs no copy; while it lives it keeps the memory and the files of
    that moment."""

    def __init__(self, ref):
        _of(ref, XdbRef)
        lib = _lib()
        self._store = ref._store  # which it may outlive the ref in
        with self._store._handle, ref._handle as pointer:
            snapshot = lib.remixdb_snapshot(pointer)
            if snapshot is None:
                raise _last_error(lib)
            self._own(_Handle("snapshot", snapshot, lib.remixdb_snapshot_release, parent=self._store._handle))

    def ref(self):
        """A new XdbRef that reads the snapshot; what would write raises XdbError with READONLY."""
        return XdbRef(self)

    def iter(self):
        """A new XdbIter with a ref of its own."""
        return XdbIter(XdbRef(self))


class XdbBatch(_Closable):
    """Puts and deletes gathered to be written as one: all of them or none, to every reader and after a crash. Of operations on the same
    key the last one counts.

    XdbRef.batch() gives one that is written when its with block ends, unless it ends with an exception. XdbBatch() gives one that is
    written by XdbRef.write(), as often as one likes."""

    def __init__(self, ref=None):
        if ref is not None:
            _of(ref, XdbRef)
        lib = _lib()
        pointer = lib.remixdb_batch_create()
        if pointer is None:
            raise _last_error(lib)
        self._own(_Handle("batch", pointer, lib.remixdb_batch_destroy))
        self._ref = ref

    def put(self, key, value):
        key, value = _bytes(key, "key"), _bytes(value, "value")
        klen, vlen = _length(key, "key"), _length(value, "value")
        lib = _lib()
        with self._handle as batch:
            if not lib.remixdb_batch_put(batch, key, klen, value, vlen):
                raise _last_error(lib)

    def delete(self, key):
        key = _bytes(key, "key")
        klen = _length(key, "key")
        lib = _lib()
        with self._handle as batch:
            if not lib.remixdb_batch_del(batch, key, klen):
                raise _last_error(lib)

    def clear(self):
        """Empties it."""
        with self._handle as batch:
            _lib().remixdb_batch_clear(batch)

    def __len__(self):
        """How many operations it holds."""
        with self._handle as batch:
            return _lib().remixdb_batch_count(batch)

    def __bool__(self):
        return True  # an empty one is one

    def __exit__(self, kind, *exc):
        try:
            if kind is None and self._ref is not None:
                self._ref.write(self)
        finally:
            self.close()


class XdbRef(_Closable):
    """One thread's view of a store, or of a snapshot; made by Xdb.ref() and XdbSnapshot.ref()."""

    def __init__(self, source):
        _of(source, Xdb, XdbSnapshot)
        lib = _lib()
        of_snapshot = isinstance(source, XdbSnapshot)
        with source._handle as pointer:
            ref = lib.remixdb_snapshot_ref(pointer) if of_snapshot else lib.remixdb_ref(pointer)
            if ref is None:
                raise _last_error(lib)
            self._own(_Handle("ref", ref, lib.remixdb_unref, parent=source._handle))
        self._source = source  # neither is collected while a ref to it is in use
        self._store = source._store if of_snapshot else source
        self._rooms = []

    def _room(self):
        """Where the library copies a record to, for the iterators, too: buffers of key and value, and their lengths. Taken off the list while in use, for a signal's
        handler or a finalizer that uses the same ref may come between any two lines."""
        try:
            return self._rooms.pop()
        except IndexError:
            return ctypes.create_string_buffer(KV_MAX), ctypes.create_string_buffer(KV_MAX), ctypes.c_uint32(), ctypes.c_uint32()

    def put(self, key, value):
        """Sets the key's value. It is on disk after sync."""
        key, value = _bytes(key, "key"), _bytes(value, "value")
        klen, vlen = _length(key, "key"), _length(value, "value")
        lib = _lib()
        with self._handle as ref:
            if not lib.remixdb_put(ref, key, klen, value, vlen):
                raise _last_error(lib)

    def get(self, key):
        """The key's value as bytes, None when there is no such key."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        lib = _lib()
        with self._handle as ref:
            room = self._room()
            _, value, _, vlen = room
            found = lib.remixdb_getn(ref, key, klen, value, KV_MAX, vlen)
            answer = ctypes.string_at(value, vlen.value) if found else self._absent(lib, None)
            self._rooms.append(room)
            return answer

    def multi_get(self, keys):
        """The values of many keys at one moment, a list: bytes, or None where there is no such key. Much faster than as many get."""
        keys = [_bytes(key, "key") for key in keys]
        nr = len(keys)
        slices = (_Slice * nr)(*((key, _length(key, "key")) for key in keys))
        buffers = (_Buf * nr)()
        found = (_BOOL * nr)()
        caps = [_VALUE_GUESS] * nr
        lib = _lib()
        with self._handle as ref:
            while True:
                room = ctypes.create_string_buffer(sum(caps) or 1)
                at = ctypes.addressof(room)
                for buffer, cap in zip(buffers, caps):
                    buffer.ptr, buffer.cap = at, cap
                    at += cap
                lib.remixdb_multi_get(ref, nr, slices, buffers, found)
                status = lib.remixdb_errcode()
                if status == Status.OK:
                    return [ctypes.string_at(b.ptr, b.len) if f else None for b, f in zip(buffers, found)]
                if status != Status.TOOBIG:
                    raise _last_error(lib)
                # All of it again: values read at two moments might not belong together.
                caps = [max(b.cap, b.len) for b in buffers]

    def probe(self, key):
        """Whether the key exists."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        lib = _lib()
        with self._handle as ref:
            return True if lib.remixdb_probe(ref, key, klen) else self._absent(lib, False)

    def delete(self, key):
        """Deletes the key; it need not exist."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        lib = _lib()
        with self._handle as ref:
            if not lib.remixdb_del(ref, key, klen):
                raise _last_error(lib)

    def sync(self):
        """When it returns, everything put before it, by any thread, is on disk."""
        lib = _lib()
        with self._handle as ref:
            if not lib.remixdb_sync(ref):
                raise _last_error(lib)

    def merge(self, key, fn):
        """Reads, decides and writes as one: no other write of the key comes between. `fn` is called with the value (bytes, or None when
        there is none) and returns the new one, None to delete the key, or KEEP to leave it as it is. It should be short, must not use the
        store, and may be called more than once; the last call counts. Gives the value that the key has then, None when it has none."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        lib = _lib()
        # What a signal's handler raises before `call` is in its try is printed by ctypes, and goes no further: then this stays.
        result, unanswered = None, KeyboardInterrupt()
        error = unanswered

        def call(v0, v0len, v1, v1len, _priv):
            nonlocal result, error
            try:
                result = old = None if v0 is None else ctypes.string_at(v0, v0len)
                answer = fn(old)
                error = None
                if answer is KEEP:
                    return _MERGE_KEEP
                if answer is None:
                    result = None
                    return _MERGE_DEL
                answer = _bytes(answer, "value")
                v1len[0] = _length(answer, "value")
                result = answer  # stays until the call has ended, and with it the bytes
                v1[0] = ctypes.cast(ctypes.c_char_p(answer), ctypes.c_void_p)
                return _MERGE_PUT
            except BaseException as e:  # it cannot pass through the library
                error = e
                return _MERGE_KEEP

        with self._handle as ref:
            _merging.on, _merging.later = True, []
            try:
                good = lib.remixdb_merge(ref, key, klen, _MERGE_FN(call), None)
                failure = None if good else _last_error(lib)
            finally:
                _merging.on = False
        while _merging.later:
            _merging.later.pop().close()
        if failure is not None:
            raise failure if error is None or error is unanswered else error
        if error is not None:
            raise error
        return result

    def batch(self):
        """A new XdbBatch that is written when its with block ends."""
        return XdbBatch(self)

    def write(self, batch):
        """Writes all of the batch or none of it. The batch is not changed and can be written again."""
        if not isinstance(batch, XdbBatch):
            raise TypeError(f"an XdbBatch is written, not {type(batch).__name__}")
        lib = _lib()
        with self._handle as ref, batch._handle as pointer:
            if not lib.remixdb_write(ref, pointer):
                raise _last_error(lib)

    def snapshot(self):
        """A new XdbSnapshot: what this ref reads now."""
        return XdbSnapshot(self)

    def checkpoint(self, dirname):
        """Makes the directory a store of its own that holds what this ref reads now."""
        name = _dirname(dirname)
        lib = _lib()
        with self._handle as ref:
            if not lib.remixdb_checkpoint(ref, name):
                raise _last_error(lib)

    def verify(self):
        """Reads everything from disk and checks it; raises when something is damaged."""
        lib = _lib()
        with self._handle as ref:
            if not lib.remixdb_verify(ref):
                raise _last_error(lib)

    def flush(self):
        """Brings what is in memory into tables, and waits for it."""
        lib = _lib()
        with self._handle as ref:
            if not lib.remixdb_flush(ref):
                raise _last_error(lib)

    def compact(self):
        """Brings all that was written before into the fewest tables, without deleted keys and old values, and waits for it."""
        lib = _lib()
        with self._handle as ref:
            if not lib.remixdb_compact(ref):
                raise _last_error(lib)

    def iter(self):
        """A new XdbIter, not yet positioned."""
        return XdbIter(self)

    @staticmethod
    def _absent(lib, answer):
        # "Not there" is an answer; "could not look" is an error.
        if lib.remixdb_errcode() == Status.NOTFOUND:
            return answer
        raise _last_error(lib)


class XdbIter(_Closable):
    """An iterator; made by XdbRef.iter(). What it sees is the store at its last seek.

    As a Python iterator it gives the (key, value) pairs from where it stands; from the first key when it has not been
    positioned yet. `reversed` gives them backward; from the last key when it has not been positioned yet."""

    def __init__(self, ref):
        _of(ref, XdbRef)
        lib = _lib()
        with ref._handle as pointer:
            it = lib.remixdb_iter_create(pointer)
            if it is None:
                raise _last_error(lib)
            self._own(_Handle("iterator", it, lib.remixdb_iter_destroy, parent=ref._handle, lock=ref._handle.lock))
        self._ref = ref
        self._placed = False  # a seek has been made, and no park after it
        self._fresh = True     # neither of both yet

    def _check(self, lib, it):
        """Raises when the iterator came to stand nowhere for another reason than the end."""
        if lib.remixdb_iter_valid(it):
            return
        status = lib.remixdb_iter_status(it)
        if status != Status.OK:
            error = _last_error(lib)
            raise error if error.status == status else XdbError(status, lib.remixdb_strerror(status).decode())

    def seek(self, key=None):
        """To the first key that is not smaller; without a key, to the first one."""
        key = None if key is None else _bytes(key, "key")
        klen = 0 if key is None else _length(key, "key")
        lib = _lib()
        with self._handle as it:
            lib.remixdb_iter_seek(it, key, klen)
            self._placed = True
            self._check(lib, it)

    def seek_last(self):
        """To the last key."""
        lib = _lib()
        with self._handle as it:
            lib.remixdb_iter_seek_last(it)
            self._placed = True
            self._check(lib, it)

    def seek_for_prev(self, key):
        """To the last key that is not greater."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        lib = _lib()
        with self._handle as it:
            lib.remixdb_iter_seek_for_prev(it, key, klen)
            self._placed = True
            self._check(lib, it)

    def valid(self):
        """Whether it stands on a key."""
        lib = _lib()
        with self._handle as it:
            return self._placed and lib.remixdb_iter_valid(it)

    def peek(self):
        """(key, value), None when it does not stand on a key."""
        lib = _lib()
        with self._handle as it:
            if not self._placed or not lib.remixdb_iter_valid(it):
                return None
            r = self._ref
            room = r._room()
            key, value, klen, vlen = room
            found = lib.remixdb_iter_peek(it, key, klen, value, vlen)
            pair = (ctypes.string_at(key, klen.value), ctypes.string_at(value, vlen.value)) if found else r._absent(lib, None)
            r._rooms.append(room)
            return pair

    def key(self):
        """The key it stands on, None when it does not."""
        return self._part(_lib().remixdb_iter_key)

    def value(self):
        """The value of that key."""
        return self._part(_lib().remixdb_iter_value)

    def _part(self, function):
        lib = _lib()
        with self._handle as it:
            if not self._placed or not lib.remixdb_iter_valid(it):
                return None
            length = ctypes.c_uint32()
            pointer = function(it, length)
            return self._ref._absent(lib, None) if pointer is None else ctypes.string_at(pointer, length.value)

    def prev(self):
        """To the previous key; before the first it stands nowhere."""
        lib = _lib()
        with self._handle as it:
            if self._placed and lib.remixdb_iter_valid(it):
                lib.remixdb_iter_prev(it)
                self._check(lib, it)

    def skip1(self):
        """To the next key. At the end, and when it was not positioned, it does nothing."""
        lib = _lib()
        with self._handle as it:
            if self._placed and lib.remixdb_iter_valid(it):
                lib.remixdb_iter_skip1(it)
                self._check(lib, it)

    def skip(self, n):
        """The same n times."""
        n = _int(n, "n")
        lib = _lib()
        with self._handle as it:
            while n > 0 and self._placed and lib.remixdb_iter_valid(it):
                step = min(n, _U32_MAX)
                lib.remixdb_iter_skip(it, step)
                self._check(lib, it)
                n -= step

    def park(self):
        """Lets go of the memory it holds on to; it needs a seek before further use."""
        lib = _lib()
        with self._handle as it:
            lib.remixdb_iter_park(it)
            self._placed = self._fresh = False

    def __iter__(self):
        with self._handle:
            if not self._placed:
                self.seek()
        return self

    def __next__(self):
        with self._handle:
            if self._fresh and not self._placed:
                self.seek()
            pair = self.peek()
            if pair is None:
                raise StopIteration
            self.skip1()
            return pair

    def __reversed__(self):
        with self._handle:
            if not self._placed:
                self.seek_last()
        return self._backward()

    def _backward(self):
        while True:
            with self._handle:
                pair = self.peek()
                if pair is None:
                    return
                self.prev()
            yield pair

# SPDX-License-Identifier: Apache-2.0
"""RemixDB from Python.

    from xdb import Xdb

    with Xdb("/tmp/example") as db, db.ref() as ref:
        ref.put("apple", "green")
        ref.get("apple")                      # b"green"; None when there is no such key
        ref.sync()                            # all puts so far are on disk now
        with ref.iter() as it:
            for key, value in it:             # in order, as bytes
                print(key, value)
            for key, value in reversed(ref.iter()):
                print(key, value)
        with ref.batch() as batch:            # written when the block ends: all of it or nothing
            batch.put("pear", "green")
            batch.delete("apple")
            batch.update({"fig": "blue"})     # the fastest way to put many
        ref.put("milk", "1", expires=time.time() + 3600)  # absent in an hour
        ref.merge("n", lambda value: str(int(value or 0) + 1))  # no update is lost
        with ref.gets() as gets:              # many gets under way in one thread
            gets.begin("pear")
            gets.poll(wait=1)                 # [(b"pear", b"green")]
        with ref.snapshot() as then, then.ref() as old:
            ref.put("pear", "eaten")
            old.get("pear")                   # b"green", as long as the snapshot lives
        with db.transaction() as transaction: # one step; the commit at its end fails when others came between
            transaction.put("count", transaction.get("n") or "0")
        with db.space("numbers") as space, space.ref() as there:
            there.put("apple", "2")           # the space's own "apple"
        fruit = db.map()                      # a MutableMapping
        fruit["kiwi"] = "green"

Keys and values are bytes, bytearray, memoryview, or str, which is encoded as UTF-8; results are bytes. A call that
fails raises XdbError, which carries the status. A ref may be handed from thread to thread. Threads that use the same
ref take turns; a thread that is to run beside others needs a ref of its own.

Objects may be closed in any order, or left to the garbage collector. Closing a store closes its refs and iterators
first; using one of them later raises XdbError. A store belongs to the process that opened it. A child made by fork
cannot use it, and does no harm by trying.

Signals. A signal's handler (one raises KeyboardInterrupt) runs when the library's current call has returned, however
long that takes. An exception from a handler leaves nothing open and nothing locked, but the interrupted call may or
may not have done its work. Python only prints an exception that comes at the beginning of a merge's function; merge
then raises KeyboardInterrupt. Python also only prints one that comes while it collects an object that nobody closed;
that object may stay open. A handler may close any object: one that the interrupted call uses is closed when the call
ends. A handler should not use stores otherwise, because its call's status may reach the interrupted call.

The first opening of a store loads the library: from the path in the environment variable REMIXDB_LIBRARY, else from
this file's directory or the package remixdb beside it, else from the places where the system's loader looks. With the
extension module _xdb the most frequent calls are about five times as fast. Without it, or with REMIXDB_PYTHON=ctypes in
the environment, all calls go through ctypes, and do the same.
"""

import sys

# Up to Python 3.9 a signal's handler may raise between the end of a with block and the call that releases its lock. The
# lock would stay taken.
if sys.version_info < (3, 10):
    raise ImportError("xdb.py needs Python 3.10 or later; this is Python %d.%d" % tuple(sys.version_info[:2]))

import contextlib
import ctypes
import ctypes.util
import datetime
import enum
import importlib
import io
import itertools
import json
import math
import operator
import os
import threading
import weakref
from array import array
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, SupportsIndex, TypeAlias, TypeVar, overload

_fast: Any = None  # the extension module, where it is built and fits
if os.environ.get("REMIXDB_PYTHON", "") != "ctypes":
    try:
        _fast = importlib.import_module("_xdb")
    except ImportError:
        pass
if _fast is not None and getattr(_fast, "INTERFACE", 0) != 3:
    _fast = None

__all__ = ["Xdb", "XdbRef", "XdbIter", "XdbGets", "XdbMap", "XdbBatch", "XdbSnapshot", "XdbSpace", "XdbTransaction",
           "XdbSavepoint", "XdbIngest", "XdbError", "Status", "Data", "Expires", "COMPRESSION_NONE", "COMPRESSION_ZSTD",
           "SYNC_NONE", "SYNC_EACH", "KEEP", "KV_MAX", "version", "repair", "destroy"]

Data: TypeAlias = bytes | bytearray | memoryview | str  # a key, or a value
# A time: seconds since 1970, or a datetime; one without a time zone is in local time
Expires: TypeAlias = float | datetime.datetime
_Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")
_R = TypeVar("_R", covariant=True)  # what an iterator gives
_Self = TypeVar("_Self", bound="_PyHeld")

KV_MAX = 65500  # the longest key; values may be longer
COMPRESSION_NONE, COMPRESSION_ZSTD = 0, 1  # for the option compression
SYNC_NONE, SYNC_EACH = 0, -1  # for the option sync; N > 0 is "every N ms"


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
    GONE = 13


class XdbError(Exception):
    """A call failed. `status` is a Status (a plain int for a status that this file does not know). `message` tells what
    happened, with the file's name where there is one."""

    status: Status | int
    message: str

    def __init__(self, status: int, message: str) -> None:
        try:
            status = Status(status)
        except ValueError:
            pass
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{getattr(self.status, 'name', self.status)}: {self.message}"


def version() -> str:
    """The version of the library, "MAJOR.MINOR.PATCH"."""
    text: bytes = _lib().remixdb_version()
    return text.decode()


class _Keep:
    def __repr__(self) -> str:
        return "xdb.KEEP"

    def __reduce__(self) -> str:
        return "KEEP"


KEEP = _Keep()  # a merge's function returns this to leave the key as it is


def repair(dirname: _Path) -> str:
    """Makes a store of the readable part of the damaged one in the directory. The old files are put aside in the
    directory, with a report. The store must not be open. Returns the losses in words; "" when nothing was lost."""
    lib = _lib()
    if not lib.remixdb_repair(_dirname(dirname)):
        raise _last_error(lib)
    text: bytes = lib.remixdb_errmsg() or b""
    return text.decode("utf-8", "replace")


def destroy(dirname: _Path) -> None:
    """Removes the store in the directory: its own files only, and the directory when nothing else is in it."""
    lib = _lib()
    if not lib.remixdb_destroy(_dirname(dirname)):
        raise _last_error(lib)


class _PyHeld:
    """The calls of the public classes that _xdb.Held has in C."""

    _handle: "_Handle"
    _finalizer: Any

    def _collects(self, handle: "_Handle") -> None:
        # Runs when the object is collected, or at the interpreter's exit while modules are still whole.
        self._finalizer = weakref.finalize(self, handle.collect)

    @property
    def closed(self) -> bool:
        """Whether it has been closed, by itself or together with its owner."""
        return self._handle.closed

    def close(self) -> None:
        """Closes it, and everything that depends on it. Closing twice does nothing."""
        error = self._handle.close()
        if self._handle not in _here.late:
            self._finalizer.detach()
        if error is not None:
            raise error

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


if TYPE_CHECKING or _fast is None:
    _Held = _PyHeld
else:
    _Held = _fast.Held


class _Closable(_Held):
    """Base of the public classes: closing by hand, by a with statement, or by the garbage collector."""

    def _make(self, handle: "_Handle", lib: ctypes.CDLL, create: Callable[..., Any], *args: object) -> None:
        self._handle = handle
        try:
            handle.make(lib, create, *args)
            self._collects(handle)
        except BaseException:
            handle.close()  # now: the exception may keep the object alive
            raise

    def _call(self, function: Callable[..., Any], *args: object) -> None:
        handle = self._handle
        with handle as lock, lock:
            if not function(handle.pointer, *args):
                raise _last_error(_lib())

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        raise TypeError(f"{type(self).__name__} can be neither copied nor pickled")


class _Puts(_Closable):
    """Base of the classes that take records that may expire."""

    def put(self, key: Data, value: Data, *, expires: Expires | None = None) -> None:
        raise NotImplementedError

    def put_expire(self, key: Data, value: Data, expires_ms: int) -> None:
        raise NotImplementedError

    def _put_until(self, key: Data, value: Data, *, expires: Expires | None) -> None:
        """A put with all its arguments, which _xdb leaves to this one."""
        if expires is None:
            self.put(key, value)
        else:
            self.put_expire(key, value, _expires_ms(expires))


class _Source:
    """Base of the classes that have records to iterate over."""

    def _reader(self) -> "XdbRef":
        raise NotImplementedError

    @overload
    def iter(self, expect: int = ..., *, start: Data | None = ..., stop: Data | None = ..., prefix: Data | None = ...,
             reverse: bool = ..., hold: bool = ..., keys_only: Literal[True],
             values_only: Literal[False] = ...) -> "XdbIter[bytes]": ...

    @overload
    def iter(self, expect: int = ..., *, start: Data | None = ..., stop: Data | None = ..., prefix: Data | None = ...,
             reverse: bool = ..., hold: bool = ..., keys_only: Literal[False] = ...,
             values_only: Literal[True]) -> "XdbIter[bytes]": ...

    @overload
    def iter(self, expect: int = ..., *, start: Data | None = ..., stop: Data | None = ..., prefix: Data | None = ...,
             reverse: bool = ..., hold: bool = ..., keys_only: Literal[False] = ...,
             values_only: Literal[False] = ...) -> "XdbIter[tuple[bytes, bytes]]": ...

    def iter(self, expect: int = 0, *, start: Data | None = None, stop: Data | None = None, prefix: Data | None = None,
             reverse: bool = False, hold: bool = False, keys_only: bool = False,
             values_only: bool = False) -> "XdbIter[Any]":
        """A new XdbIter, not yet positioned. A store's and a snapshot's iterator has a ref of its own.

        It shows the keys start <= key < stop that begin with the prefix; None is an open end. With `reverse` it goes
        backward, from the last key on. With `keys_only` it gives keys, with `values_only` values, in place of pairs. It
        sees the store as it was at its last seek; with `hold`, as it was when it was made.

        `expect` is the number of records that the caller means to read after each seek: the seek then reads the blocks
        of these records from the disk together with its own. 0: the library estimates the number from earlier scans of
        this ref. The number never changes a result."""
        return XdbIter(self._reader(), expect, start=start, stop=stop, prefix=prefix, reverse=reverse,
                       hold=hold, keys_only=keys_only, values_only=values_only)


class Xdb(_Closable, _Source):
    """The store in directory `dirname`; it is made when there is none. The name must be absolute when the process is
    going to change its working directory. `cachesz` is the size of the block cache in MiB, 0 for none, None for what
    the rest of the store leaves of memory_mb; `mtsz` is the size of a memtable in MiB, 0 for its share of memory_mb;
    `tags` keeps hash tags, which make get faster.

    The other options have the names, meanings and defaults of struct remixdb_opts:
    wal_mb             size of all files of the log on disk, MiB; 0 = twice the memtable
    ckeys              new tables hold a compressed-keys block, which makes compaction read less
    workers            compaction threads; 0 = compaction runs in the caller's thread; -1 = auto; at most 64
    worker_cores       "auto", "none" (not pinned), or a list such as "0,2,4-7"
    io                 "auto", "uring", "aio", "sync"; the environment variable REMIXDB_IO overrides it
    direct_io          tables bypass the system's page cache
    compression        of new tables' data: COMPRESSION_NONE, COMPRESSION_ZSTD
    compression_level  zstd's level; 0 = zstd's default
    sync               SYNC_NONE, SYNC_EACH (each write is on disk when its call returns), or N > 0: a sync begins at
                       most N ms after a write
    read_only          nothing on disk is changed; several readers may open the store so, but no writer beside them
    create             make the store when there is none; otherwise XdbError with NOTFOUND
    error_if_exists    XdbError with EXISTS when the store exists
    memory_mb          one budget for all memory of the store, MiB; 0 = a quarter of the machine's, or of its cgroup's
    max_open_files     descriptors the store may hold for tables; 0 = the default; at least 16
    logger             function that is called with a line (str) for each event that a user may want to know. The
                       threads that call the store call it, after their calls, with all lines since the last time.
                       The store keeps it until it is closed"""

    def __init__(self, dirname: _Path, cachesz: int | None = None, mtsz: int = 0, tags: bool = True, *, wal_mb: int = 0,
                 ckeys: bool = True, workers: int = -1, worker_cores: str = "auto", io: str = "auto",
                 direct_io: bool = False, compression: int = COMPRESSION_NONE, compression_level: int = 0,
                 sync: int = SYNC_NONE, read_only: bool = False, create: bool = True, error_if_exists: bool = False,
                 max_open_files: int = 1000, logger: Callable[[str], object] | None = None,
                 memory_mb: int = 0) -> None:
        name = _dirname(dirname)
        lib = _lib()
        opts = _Opts()
        lib.remixdb_opts_init(ctypes.byref(opts), ctypes.sizeof(opts))
        if cachesz is not None:
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
        opts.memory_mb = _int(memory_mb, "memory_mb")
        log = None if logger is None else _Log(logger)
        if log is not None:
            opts.logger, opts.logger_priv = log.callback, log.priv
        handle = _Handle("store", lib.remixdb_close, log=log)
        with handle as lock, lock:
            self._make(handle, lib, lib.remixdb_open_opts, name, ctypes.byref(opts))

    _collects = _PyHeld._collects  # a store closes itself, and what was made from it, at the interpreter's exit, too

    def ref(self) -> "XdbRef":
        """A new XdbRef, for reading and writing the store."""
        return XdbRef(self)

    def space(self, name: str | bytes, create: bool = True) -> "XdbSpace":
        """The key space of this name; it is made when there is none. Without `create`: XdbError with NOTFOUND then."""
        return XdbSpace(self, name, create)

    def spaces(self) -> list[str]:
        """The names of all key spaces, the oldest first."""
        lib = _lib()
        return [os.fsdecode(name) for name in self._text(lib.remixdb_space_list).split(b"\n") if name]

    def drop_space(self, name: str | bytes) -> None:
        """Drops the key space of this name with all its keys. Calls of its refs then raise XdbError with GONE."""
        self._call(_lib().remixdb_space_drop, _dirname(name))

    def transaction(self) -> "XdbTransaction":
        """A new XdbTransaction. As a context manager it commits when its block ends, and aborts when the block ends
        with an exception."""
        return XdbTransaction(self)

    def transact(self, fn: "Callable[[XdbTransaction], _T]", tries: int = 100) -> _T:
        """Runs fn(transaction) and commits; returns fn's result. After a conflict it begins again, at most `tries`
        times in all; then it raises the XdbError with ABORTED."""
        for left in reversed(range(max(tries, 1))):
            try:
                with XdbTransaction(self) as transaction:
                    result = fn(transaction)
                return result
            except XdbError as e:
                if e.status is not Status.ABORTED or not left:
                    raise
        raise AssertionError  # the loop returns or raises

    def map(self) -> "XdbMap[bytes, bytes]":
        """The store as a mutable mapping."""
        return XdbMap(self)

    def _reader(self) -> "XdbRef":
        return XdbRef(self)

    def stats(self) -> dict[str, Any]:
        """The store's figures, as a dict."""
        figures: dict[str, Any] = json.loads(self._text(_lib().remixdb_stats))
        return figures

    def set_option(self, name: str, value: str | int) -> None:
        """Changes an option of the open store: the names are those of remixdb_set_option."""
        self._call(_lib().remixdb_set_option, _word(name, "name"), _word(str(value), "value"))

    def figure(self, name: str) -> int:
        """One of the figures of stats(), such as "cache.misses"."""
        value = ctypes.c_uint64()
        self._call(_lib().remixdb_figure, _word(name, "name"), ctypes.byref(value))
        return value.value

    def _text(self, function: Callable[..., Any]) -> bytes:
        """A text that the library has made for the store."""
        lib = _lib()
        texts: list[int | None] = []
        try:
            with self._handle as lock, lock:
                texts.extend(map(function, [self._handle.pointer]))
                if texts[0] is None:
                    raise _last_error(lib)
            return ctypes.string_at(texts[0])
        finally:
            for text in texts:
                lib.remixdb_free(text)


class XdbSnapshot(_Closable, _Source):
    """The store as it was at one moment; made by XdbRef.snapshot(). It copies nothing; while it lives it keeps the
    memory and the files of that moment."""

    def __init__(self, ref: "XdbRef") -> None:
        _of(ref, XdbRef)
        lib = _lib()
        self._store = ref._store  # the snapshot may outlive the ref
        store = self._store._handle
        with store as outer, ref._handle as inner, outer, inner:
            handle = _Handle("snapshot", lib.remixdb_snapshot_release, parent=store)
            self._make(handle, lib, lib.remixdb_snapshot, ref._handle.pointer)

    def ref(self, space: "XdbSpace | None" = None) -> "XdbRef":
        """A new XdbRef that reads the snapshot, in a key space or without one; its writes raise XdbError with
        READONLY."""
        return XdbRef(self, space)

    def _reader(self) -> "XdbRef":
        return XdbRef(self)


class XdbSpace(_Closable, _Source):
    """A named key space of a store; made by Xdb.space(). It has its own keys. Batches, snapshots and transactions are
    of all spaces together. Its refs go on when it is closed."""

    def __init__(self, store: Xdb, name: str | bytes, create: bool = True) -> None:
        _of(store, Xdb)
        lib = _lib()
        self._store = store
        self.name = os.fsdecode(name)
        parent = store._handle
        with parent as lock, lock:
            handle = _Handle("space", lib.remixdb_space_close, parent=parent)
            self._make(handle, lib, lib.remixdb_space_open, parent.pointer, _dirname(self.name),
                       _flag(create, "create"))

    def ref(self) -> "XdbRef":
        """A new XdbRef, for reading and writing the space."""
        return XdbRef(self)

    def map(self) -> "XdbMap[bytes, bytes]":
        """The space as a mutable mapping."""
        return XdbMap(self)

    def _reader(self) -> "XdbRef":
        return XdbRef(self)

    def __repr__(self) -> str:
        return f"XdbSpace({self.name!r})"


_nothing = contextlib.nullcontext(contextlib.nullcontext())


def _entered(space: XdbSpace | None) -> Any:
    """What a with statement enters for a call that takes a space, or none."""
    if space is None:
        return _nothing
    _of(space, XdbSpace)
    return space._handle


def _pointer(space: XdbSpace | None) -> int | None:
    return None if space is None else space._handle.pointer


# A batch passes its operations to the library in groups: at most so many keys and values, of at most so many bytes a
# pair. A larger pair goes alone.
_GATHER_MAX, _GATHER_BYTES = 2048, 4096


class _PyBatch(_Puts):
    """The calls of XdbBatch that _xdb.Batch has in C."""

    # Key, value, key, value, ... that the library does not have yet; None is the value of a delete. It stays the same
    # list, because other threads may add to it.
    _pending: list[bytes | None]
    _deletes: bool  # whether there ever was one

    def put(self, key: Data, value: Data, *, expires: Expires | None = None) -> None:
        if expires is not None:
            self._put_until(key, value, expires=expires)
            return
        if type(key) is not bytes:
            key = _bytes(key, "key")
        if type(value) is not bytes:
            value = _bytes(value, "value")
        if len(key) + len(value) > _GATHER_BYTES:
            self._load()
            self._call(_lib().remixdb_batch_put, key, _length(key, "key"), value, _length(value, "value"))
            return
        handle = self._handle
        if handle._pointer is None or handle._forks != _forks:
            self._refuse()
        pending = self._pending
        pending.extend((key, value))
        if len(pending) >= _GATHER_MAX:
            self._gathered()

    def put_expire(self, key: Data, value: Data, expires_ms: int) -> None:
        """Adds a put until a time, in milliseconds since 1970; 0 is never."""
        name, data = _bytes(key, "key"), _bytes(value, "value")
        expires_ms = _int(expires_ms, "expires_ms", ctypes.c_uint64)
        while self._pending:  # the order of the operations stays
            self._load()
        self._call(_lib().remixdb_batch_put_expire, name, _length(name, "key"), data, _length(data, "value"),
                   expires_ms)

    def update(self, items: Mapping[Data, Data] | Iterable[tuple[Data, Data]]) -> None:
        """Puts all items of a dict, or of (key, value) pairs; faster than single puts. When an item cannot be put, some
        items before it have been put."""
        pairs = iter(items.items() if isinstance(items, Mapping) else items)
        while chunk := list(itertools.islice(pairs, _GATHER_MAX // 2)):
            keys, values = zip(*chunk, strict=True)
            if ({bytes}.issuperset(map(type, keys)) and {bytes}.issuperset(map(type, values))
                    and max(map(len, keys)) + max(map(len, values)) <= _GATHER_BYTES):
                if self.closed:
                    self._refuse()
                flat = [None] * (2 * len(chunk))
                flat[0::2], flat[1::2] = keys, values
                self._pending.extend(flat)
                self._gathered()
            else:
                for key, value in chunk:
                    self.put(key, value)

    def delete(self, key: Data) -> None:
        key = _bytes(key, "key")
        if len(key) > _GATHER_BYTES:
            self._load()
            self._call(_lib().remixdb_batch_del, key, _length(key, "key"))
            return
        if self.closed:
            self._refuse()
        self._deletes = True
        self._pending.extend((key, None))
        if len(self._pending) >= _GATHER_MAX:
            self._gathered()

    def _refuse(self) -> None:
        with self._handle:
            self._handle.pointer  # raises the error

    def _gathered(self) -> None:
        if not _here.merging.locked():  # a merge's function must not call the library
            self._load()

    def _load(self) -> None:
        """Passes the gathered operations to the library."""
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            pending = self._pending
            items = pending[:]
            if not items:
                return
            ops = None
            if self._deletes:
                ops = bytes(value is None for value in items[1::2])  # 1 is REMIXDB_BATCH_DEL
            parts = [b"" if part is None else part for part in items]
            lens, data = array("I", map(len, parts)), b"".join(parts)
            klens, vlens = lens[0::2], lens[1::2]
            # The assignment calls the library and removes the accepted items from the list: no handler comes between.
            refused = map(operator.not_,
                          map(lib.remixdb_batch_load, [handle.pointer], [len(klens)], [ops], [_address(klens)],
                              [_address(vlens)], [data], [len(data)]))
            pending[:len(items)] = itertools.chain.from_iterable(itertools.compress([items], refused))
            if pending and pending[0] is items[0] and lib.remixdb_errcode() != Status.OK:
                raise _last_error(lib)


if TYPE_CHECKING or _fast is None:
    _Batch = _PyBatch
else:
    class _Batch(_fast.Batch, _PyBatch):
        pass


class XdbBatch(_Batch):
    """Puts and deletes that are written as one: every reader sees all of them or none, also after a crash. The last of
    several operations on a key counts.

    XdbRef.batch() gives a batch that is written when its with block ends, unless the block ends with an exception.
    XdbRef.write() writes a batch made by XdbBatch(), as often as one likes."""

    def __init__(self, ref: "XdbRef | None" = None) -> None:
        if ref is not None:
            _of(ref, XdbRef)
        lib = _lib()
        self._ref = ref
        self._pending = []
        self._deletes = False
        self._make(_Handle("batch", lib.remixdb_batch_destroy), lib, lib.remixdb_batch_create)

    def del_range(self, start: Data | None = None, stop: Data | None = None) -> None:
        """Adds the deletion of all keys start <= key < stop: of those that the store has when the batch is written, and
        of those that earlier operations put."""
        bounds = _range(start, stop)
        while self._pending:  # the order of the operations stays
            self._load()
        self._call(_lib().remixdb_batch_del_range, ctypes.byref(bounds))

    def append(self, other: "XdbBatch") -> None:
        """Adds all operations of another batch, in their order."""
        _of(other, XdbBatch)
        lib = _lib()
        first, second = sorted((self._handle, other._handle), key=id)  # threads that append crosswise take turns
        with first as outer, second as inner, outer, inner:
            for batch in (self, other):
                while batch._pending:
                    batch._load()
            if not lib.remixdb_batch_append(self._handle.pointer, other._handle.pointer):
                raise _last_error(lib)

    def size(self) -> int:
        """About how many bytes it takes in the log."""
        handle = self._handle
        with handle as lock, lock:
            while self._pending:
                self._load()
            size: int = _lib().remixdb_batch_bytes(handle.pointer)
            return size

    def space(self, space: XdbSpace | None) -> None:
        """The operations that are added next go to this key space, or to the unnamed one for None. Before the first
        such call, and after clear(), they go where the ref that writes the batch writes."""
        handle = self._handle
        lib = _lib()
        with _entered(space) as outer, handle as inner, outer, inner:
            while self._pending:
                self._load()
            lib.remixdb_batch_space(handle.pointer, _pointer(space))

    def clear(self) -> None:
        """Empties it."""
        handle = self._handle
        with handle as lock, lock:
            self._pending.clear()
            _lib().remixdb_batch_clear(handle.pointer)

    def __len__(self) -> int:
        """How many operations it holds."""
        handle = self._handle
        with handle as lock, lock:
            count: int = _lib().remixdb_batch_count(handle.pointer)
            return count + len(self._pending) // 2

    def __bool__(self) -> bool:
        return True  # also for an empty batch

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            if kind is None and self._ref is not None:
                self._ref.write(self)
        finally:
            self.close()


class _PyRef(_Puts):
    """The calls of XdbRef that _xdb.Ref has in C."""

    _rooms: list["_Room"]

    def _room(self) -> "_Room":
        """Room for one value that the library copies: a buffer, and the length. A room in use is off the list, because
        a signal's handler or a finalizer that uses the same ref may come between any two lines."""
        try:
            return self._rooms.pop()
        except IndexError:
            return ctypes.create_string_buffer(_GET_ROOM), ctypes.c_uint32()

    def put(self, key: Data, value: Data, *, expires: Expires | None = None) -> None:
        """Sets the key's value. It is on disk after sync. With `expires`, a datetime or seconds since 1970, the key is
        absent from then on; a put without clears the time that the key had."""
        if expires is not None:
            self._put_until(key, value, expires=expires)
            return
        key, value = _bytes(key, "key"), _bytes(value, "value")
        klen, vlen = _length(key, "key"), _length(value, "value")
        self._call(_lib().remixdb_put, key, klen, value, vlen)

    def put_expire(self, key: Data, value: Data, expires_ms: int) -> None:
        """Sets the key's value until a time, in milliseconds since 1970; 0 is never. Then the key is absent."""
        name, data = _bytes(key, "key"), _bytes(value, "value")
        expires_ms = _int(expires_ms, "expires_ms", ctypes.c_uint64)
        self._call(_lib().remixdb_put_expire, name, _length(name, "key"), data, _length(data, "value"), expires_ms)

    def get(self, key: Data) -> bytes | None:
        """The key's value as bytes, None when there is no such key."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            room = self._room()
            value, vlen = room
            while not lib.remixdb_getn(handle.pointer, key, klen, value, len(value), vlen):
                if lib.remixdb_errcode() != Status.TOOBIG or vlen.value <= len(value):
                    return self._absent(lib, None)
                value = ctypes.create_string_buffer(vlen.value)
            answer: bytes = value[:vlen.value]
            self._rooms.append(room)
            return answer

    def probe(self, key: Data) -> bool:
        """Whether the key exists."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            return bool(lib.remixdb_probe(handle.pointer, key, klen)) or self._absent(lib, False)

    def delete(self, key: Data) -> None:
        """Deletes the key; it need not exist."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        self._call(_lib().remixdb_del, key, klen)

    def write(self, batch: XdbBatch) -> None:
        """Writes all of the batch or none of it. The batch is not changed and can be written again."""
        if not isinstance(batch, XdbBatch):
            raise TypeError(f"an XdbBatch is written, not {type(batch).__name__}")
        handle = batch._handle
        with handle as lock, lock:  # order of locks: a batch's before a ref's
            while batch._pending:
                batch._load()
            self._call(_lib().remixdb_write, handle.pointer)

    @staticmethod
    def _absent(lib: ctypes.CDLL, answer: _T) -> _T:
        # "Not there" is an answer; "could not look" is an error.
        if lib.remixdb_errcode() == Status.NOTFOUND:
            return answer
        raise _last_error(lib)


if TYPE_CHECKING or _fast is None:
    _Ref = _PyRef
else:
    class _Ref(_fast.Ref, _PyRef):
        pass


class XdbRef(_Ref, _Source):
    """One thread's view of a store, or of a snapshot; made by Xdb.ref() and XdbSnapshot.ref()."""

    def __init__(self, source: Xdb | XdbSnapshot | XdbSpace, space: XdbSpace | None = None) -> None:
        _of(source, Xdb, XdbSnapshot, XdbSpace)
        if space is not None:
            _of(space, XdbSpace)
            if isinstance(source, XdbSpace):
                raise TypeError("a ref of a space takes no other space")
            if isinstance(source, Xdb):
                if space._store is not source:
                    raise ValueError("the space is another store's")
                source = space
        lib = _lib()
        self._source: object = source  # keeps it from being collected while the ref is in use
        self._store: Xdb = source if isinstance(source, Xdb) else source._store
        self._rooms = []
        self._value_guess = 256  # bytes of room for each value of multi_get
        # A ref of a space outlives the space's object, and one of a snapshot does not outlive the snapshot's.
        parent = self._store._handle if isinstance(source, XdbSpace) else source._handle
        of_space = source if isinstance(source, XdbSpace) else space
        with parent as outer, _entered(of_space) as inner, outer, inner:
            handle = _Handle("ref", lib.remixdb_unref, parent=parent)
            if isinstance(source, XdbSpace):
                self._make(handle, lib, lib.remixdb_space_ref, source._handle.pointer)
            elif isinstance(source, XdbSnapshot):
                self._make(handle, lib, lib.remixdb_snapshot_space_ref, parent.pointer, _pointer(space))
            else:
                self._make(handle, lib, lib.remixdb_ref, parent.pointer)

    def get_part(self, key: Data, start: int, size: int) -> bytes | None:
        """At most `size` bytes of the key's value from byte `start` on, None when there is no such key. Reads, and
        takes memory for, this piece only."""
        name, got = _bytes(key, "key"), ctypes.c_uint32()
        start, size = _int(start, "start", _U32), _int(size, "size", _U32)
        klen = _length(name, "key")
        lib = _lib()
        room: Any = ctypes.create_string_buffer(size)
        handle = self._handle
        with handle as lock, lock:
            if not lib.remixdb_get_part(handle.pointer, name, klen, start, room, size, ctypes.byref(got), None):
                return self._absent(lib, None)
        piece: bytes = room[:got.value]
        return piece

    def multi_get(self, keys: Iterable[Data]) -> list[bytes | None]:
        """A list of the values of many keys at one moment: bytes, or None where there is no such key. Much faster than
        single gets."""
        given = [key if type(key) is bytes else _bytes(key, "key") for key in keys]
        packed, nr = b"".join(given), len(given)
        if len(packed) > _U32_MAX:
            for key in given:
                _length(key, "key")
        klens, found = array("I", map(len, given)), bytearray(nr)
        offs, lens = array("I", bytes(4 * nr)), array("I", bytes(4 * nr))
        flags = (ctypes.c_char * nr).from_buffer(found)
        lib = _lib()
        handle = self._handle
        size = nr * self._value_guess
        with handle as lock, lock:
            while True:
                room = ctypes.create_string_buffer(size or 1)
                out = _Packed(ctypes.addressof(room), size, _address(offs), _address(lens), ctypes.addressof(flags))
                nr_found = lib.remixdb_multi_get_packed(handle.pointer, nr, _address(klens), packed, len(packed),
                                                        ctypes.byref(out))
                status = lib.remixdb_errcode()
                if status == Status.OK:
                    break
                if status != Status.TOOBIG:
                    raise _last_error(lib)
                size = out.len  # read all again: values of two moments might not belong together
        values = ctypes.string_at(room, out.len)
        if nr:
            self._value_guess = len(values) // nr * 5 // 4 + 16
        ends = map(operator.add, offs, lens)
        if nr_found == nr:
            return [values[at:end] for at, end in zip(offs, ends)]
        return [values[at:end] if there else None for at, end, there in zip(offs, ends, found)]

    def del_range(self, start: Data | None = None, stop: Data | None = None) -> None:
        """Deletes all keys start <= key < stop at one moment; None is an open end. With many keys much faster than
        deleting each."""
        self._call(_lib().remixdb_del_range, ctypes.byref(_range(start, stop)))

    def expiry(self, key: Data) -> int | None:
        """The time at which the key expires, in milliseconds since 1970; 0 is never. None when there is no such key."""
        name, expires = _bytes(key, "key"), ctypes.c_uint64()
        klen = _length(name, "key")
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            if lib.remixdb_expiry(handle.pointer, name, klen, ctypes.byref(expires)):
                return expires.value
            return self._absent(lib, None)

    def getv(self, key: Data) -> tuple[bytes, int] | None:
        """The key's value and its version, None when there is no such key. A version is never 0, and higher with each
        write of the key."""
        name, version = _bytes(key, "key"), ctypes.c_uint64()
        klen = _length(name, "key")
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            room = self._room()
            value, vlen = room
            while not lib.remixdb_getv(handle.pointer, name, klen, value, len(value), vlen, ctypes.byref(version)):
                if lib.remixdb_errcode() != Status.TOOBIG or vlen.value <= len(value):
                    return self._absent(lib, None)
                value = ctypes.create_string_buffer(vlen.value)
            answer = value[:vlen.value], version.value
            self._rooms.append(room)
            return answer

    def put_if(self, key: Data, value: Data, version: int) -> bool:
        """Sets the key's value when the key has this version; version 0: when there is no such key. False, and nothing
        is written, when it has another one."""
        name, data = _bytes(key, "key"), _bytes(value, "value")
        version = _int(version, "version", ctypes.c_uint64)
        return self._won(_lib().remixdb_put_if, name, _length(name, "key"), data, _length(data, "value"), version)

    def del_if(self, key: Data, version: int) -> bool:
        """Deletes the key when it has this version. False, and nothing is written, when it has not."""
        name = _bytes(key, "key")
        version = _int(version, "version", ctypes.c_uint64)
        return self._won(_lib().remixdb_del_if, name, _length(name, "key"), version)

    def _won(self, function: Callable[..., Any], *args: object) -> bool:
        try:
            self._call(function, *args)
        except XdbError as e:
            if e.status is not Status.ABORTED:
                raise
            return False
        return True

    def sync(self) -> None:
        """When it returns, all earlier writes, by any thread, are on disk."""
        self._call(_lib().remixdb_sync)

    def merge(self, key: Data, fn: Callable[[bytes | None], "Data | _Keep | None"]) -> bytes | None:
        """Reads, decides and writes as one step: no other write of the key comes between. `fn` gets the value (bytes,
        or None when there is none) and returns the new one, None to delete the key, or KEEP to leave it as it is. It
        should be short, must not use the store, and may be called more than once; the last call counts. Returns the
        key's final value, None when it has none."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        lib = _lib()
        # ctypes prints, and drops, an exception of a signal's handler that no try sees, as at the first line of
        # `decide`. Then these stay as they are, and the library finds the "keep" that it has written itself.
        result: bytes | None = None
        unanswered = KeyboardInterrupt()
        error: BaseException | None = unanswered
        decision = _Decision()

        def decide(_: object) -> None:
            nonlocal result, error
            try:
                result = old = None if decision.v0 is None else ctypes.string_at(decision.v0, decision.v0len)
                answer = fn(old)
                if answer is None:
                    result = None
                    decision.op = _MERGE_DEL
                elif not isinstance(answer, _Keep):
                    result = _bytes(answer, "value")
                    decision.v1len = _length(result, "value")
                    decision.v1 = result  # this keeps the bytes until the call has ended
                    decision.op = _MERGE_PUT
                error = None
            except BaseException as e:  # it cannot pass through the library
                error = e
                decision.op = _MERGE_KEEP

        function = _DECIDE_FN(decide)  # the decision must not keep it: `decide` refers to the decision, a cycle
        decision.decide = _P.from_buffer(function).value  # its address; ctypes.cast would make a cycle, too
        handle = self._handle
        with handle as lock, lock, _here.merging:
            good = lib.remixdb_merge_decide(handle.pointer, key, klen, ctypes.byref(decision))
            failure = None if good else _last_error(lib)
        if failure is not None:
            raise failure if error is None or error is unanswered else error
        if error is not None:
            raise error
        return result

    def batch(self) -> XdbBatch:
        """A new XdbBatch that is written when its with block ends."""
        return XdbBatch(self)

    def snapshot(self) -> XdbSnapshot:
        """A new XdbSnapshot of the present state of this ref."""
        return XdbSnapshot(self)

    def checkpoint(self, dirname: _Path) -> None:
        """Makes the directory a store of its own with the records that this ref reads now."""
        name = _dirname(dirname)
        self._call(_lib().remixdb_checkpoint, name)

    def verify(self) -> None:
        """Reads everything from disk and checks it; raises when something is damaged."""
        self._call(_lib().remixdb_verify)

    def flush(self) -> None:
        """Brings the records in memory into tables, and waits for it."""
        self._call(_lib().remixdb_flush)

    def compact(self) -> None:
        """Brings all earlier writes into the fewest tables, without deleted keys and old values, and waits for it."""
        self._call(_lib().remixdb_compact)

    def count(self, start: Data | None = None, stop: Data | None = None) -> tuple[int, int]:
        """Estimates how many keys start <= key < stop there are, and the bytes of their keys and values."""
        keys, size = ctypes.c_uint64(), ctypes.c_uint64()
        self._call(_lib().remixdb_count, ctypes.byref(_range(start, stop)), ctypes.byref(keys), ctypes.byref(size))
        return keys.value, size.value

    def compact_range(self, start: Data | None = None, stop: Data | None = None) -> None:
        """Brings the parts of the store that may hold keys start <= key < stop into the fewest tables, as compact does
        for all, and waits for it. None is an open end."""
        self._call(_lib().remixdb_compact_range, ctypes.byref(_range(start, stop)))

    def _reader(self) -> "XdbRef":
        return self

    def ingest(self) -> "XdbIngest":
        """A new XdbIngest, which takes sorted records and commits when its with block ends."""
        return XdbIngest(self)

    def gets(self, depth: int = 64) -> "XdbGets":
        """A new XdbGets, for gets that this thread does not wait for: at most `depth` of them are under way."""
        return XdbGets(self, depth)



class XdbIngest(_Closable):
    """Sorted records on their way into tables, without log and memtable; made by XdbRef.ingest(). Nobody sees them
    before the commit, which comes when the with block ends; all of them are there then. After an exception none is."""

    def __init__(self, ref: XdbRef) -> None:
        _of(ref, XdbRef)
        lib = _lib()
        self._ref = ref  # keeps it from being collected while the ingest is in use
        parent = ref._handle
        with parent as lock, lock:
            handle = _Handle("ingest", lib.remixdb_ingest_abort, parent=parent, lock=lock)
            self._make(handle, lib, lib.remixdb_ingest_begin, parent.pointer)

    def put(self, key: Data, value: Data) -> None:
        """Adds a record. Each key is greater than the one before."""
        name, data = _bytes(key, "key"), _bytes(value, "value")
        self._call(_lib().remixdb_ingest_put, name, _length(name, "key"), data, _length(data, "value"))

    def update(self, items: Mapping[Data, Data] | Iterable[tuple[Data, Data]]) -> None:
        """Adds all items of a dict, or of (key, value) pairs, in their order."""
        for key, value in items.items() if isinstance(items, Mapping) else items:
            self.put(key, value)

    def commit(self) -> None:
        """Makes the records visible, and ends the ingest in any case."""
        error = self._handle.finish(_lib().remixdb_ingest_commit)
        self.close()
        if error is not None:
            raise error

    def abort(self) -> None:
        """Gives the records up. Does nothing when the ingest has ended."""
        self.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if kind is None and not self.closed:
            self.commit()
        else:
            self.close()


class XdbTransaction(XdbRef):
    """Reads and writes that are one step; made by Xdb.transaction(). It is a ref that reads the store as it was when
    the transaction began, with the transaction's own writes. The writes go into the store at the commit: all of them or
    none.

        with db.transaction() as transaction:
            left = int(transaction.get("apples") or 0)
            transaction.put("apples", str(left - 1))

    The commit raises XdbError with ABORTED, and writes nothing, when another write has come to a key or a range that
    the transaction read. A program runs the transaction again then; Xdb.transact() does that. Iterators end with the
    transaction. One thread at a time may use it."""

    def __init__(self, store: Xdb) -> None:
        _of(store, Xdb)
        lib = _lib()
        self._source = self._store = store
        self._rooms = []
        self._value_guess = 256
        self._marks: list[int] = []  # a number for each savepoint there is
        self._mark_numbers = itertools.count()
        parent = store._handle
        self._whole = _Handle("transaction", lib.remixdb_txn_abort, parent=parent)
        try:
            with parent as lock, lock:
                self._make(self._whole, lib, lib.remixdb_txn_begin, parent.pointer)
            self._handle = self._new_ref(lib, lib.remixdb_txn_ref, None)
        except BaseException:
            self._whole.close()  # now: the exception may keep the object alive
            raise

    def _new_ref(self, lib: ctypes.CDLL, create: Callable[..., Any], space: XdbSpace | None) -> "_Handle":
        """A ref of the transaction, which ends with it."""
        whole = self._whole
        with _entered(space) as outer, whole as lock, outer, lock:
            handle = _Handle("transaction", bool, parent=whole, lock=lock)  # bool does nothing with the pointer
            handle.make(lib, create, whole.pointer, _pointer(space))
            return handle

    def ref(self, space: XdbSpace | None = None) -> XdbRef:
        """A ref of the transaction to a key space, or to the unnamed one. It ends with the transaction."""
        return self._other_ref(_lib().remixdb_txn_ref, space)

    def untracked(self, space: XdbSpace | None = None) -> XdbRef:
        """A ref of the transaction whose reads cause no conflicts. It ends with the transaction."""
        return self._other_ref(_lib().remixdb_txn_untracked, space)

    def _other_ref(self, create: Callable[..., Any], space: XdbSpace | None) -> XdbRef:
        ref = XdbRef.__new__(XdbRef)
        ref._source, ref._store, ref._rooms, ref._value_guess = self, self._store, [], 256
        handle = ref._handle = self._new_ref(_lib(), create, space)
        ref._collects(handle)
        return ref

    @property
    def closed(self) -> bool:
        """Whether it was committed, aborted, or closed together with its store."""
        return self._whole.closed

    def commit(self) -> None:
        """Writes what the transaction has written, and ends the transaction in any case."""
        error = self._whole.finish(_lib().remixdb_txn_commit)
        self.close()
        if error is not None:
            raise error

    def abort(self) -> None:
        """Ends the transaction, and forgets what it has written. Does nothing when it has ended."""
        self.close()

    def close(self) -> None:
        """Aborts the transaction when it has not ended."""
        self._whole.close()
        if _fast is None and self._whole not in _here.late:
            self._finalizer.detach()

    def savepoint(self) -> "XdbSavepoint":
        """Notes the writes as they are. As a context manager it rolls back to this state when its block ends with an
        exception."""
        return XdbSavepoint(self)

    def rollback(self) -> None:
        """Takes back the writes since the last savepoint, and that savepoint. Reads since then still count."""
        lib = _lib()
        whole, marks = self._whole, self._marks
        with whole as lock, lock:
            pointer, depth = whole.pointer, len(marks)
            if not marks:
                raise XdbError(Status.INVALID, "the transaction has no savepoint")
            # The assignment calls the library, and removes the mark when that succeeds.
            marks[-1:] = itertools.compress(marks[-1:], map(operator.not_, map(lib.remixdb_txn_rollback, [pointer])))
            if len(marks) == depth:
                raise _last_error(lib)

    def _mark(self) -> int:
        """Makes a savepoint. Returns its number, which no other one of the transaction has."""
        lib = _lib()
        whole, marks = self._whole, self._marks
        with whole as lock, lock:
            depth, number = len(marks), next(self._mark_numbers)
            marks.extend(itertools.compress([number], map(lib.remixdb_txn_savepoint, [whole.pointer])))
            if len(marks) == depth:
                raise _last_error(lib)
            return number

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if kind is None and not self.closed:
            self.commit()
        else:
            self.close()


class XdbSavepoint:
    """A state of a transaction; made by XdbTransaction.savepoint()."""

    def __init__(self, transaction: XdbTransaction) -> None:
        self._transaction = transaction
        self._number = transaction._mark()

    def rollback(self) -> None:
        """Takes back the writes since then, with later savepoints. Does nothing when it was rolled back."""
        while self._number in self._transaction._marks:
            self._transaction.rollback()

    def __enter__(self) -> "XdbSavepoint":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if kind is not None and not self._transaction.closed:
            self.rollback()


class XdbGets(_Closable):
    """Many gets under way in one thread; made by XdbRef.gets(). An event loop watches the object, which has a fileno():

        gets = ref.gets(256)
        gets.begin("apple")
        loop.add_reader(gets, lambda: [use(key, value) for key, value in gets.poll()])

    The descriptor is readable when poll has something to do, also after a begin. Closing gives up the gets under
    way."""

    def __init__(self, ref: XdbRef, depth: int = 64) -> None:
        _of(ref, XdbRef)
        depth = _int(depth, "depth", _U32)
        lib = _lib()
        self._ref = ref  # keeps it from being collected while gets are in use
        # number: key, tag and room of a get, from before its beginning until its result is taken
        self._under_way: dict[int, tuple[bytes, Any, ctypes.Array[ctypes.c_char]]] = {}
        self._numbers = itertools.count(1)
        self._rooms: list[ctypes.Array[ctypes.c_char]] = []
        parent = ref._handle
        with parent as lock, lock:
            handle = _Handle("object of gets", lib.remixdb_gets_destroy, parent=parent, lock=lock)
            self._make(handle, lib, lib.remixdb_gets_create, parent.pointer, depth)
        self._some = _Got * min(depth, _GOT_MAX)  # results of one call

    def begin(self, key: Data, tag: Any = None) -> None:
        """Begins a get of the key as the store is now, and does not wait for the disk. `tag` comes back with the
        result; without one the key does. XdbError with ABORTED: as many gets as there may be are under way."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        lib = _lib()
        handle = self._handle
        number = next(self._numbers)
        with handle as lock, lock:
            try:
                room = self._rooms.pop()
            except IndexError:
                room = ctypes.create_string_buffer(_GET_ROOM)
            self._under_way[number] = key, key if tag is None else tag, room
            if not lib.remixdb_get_begin(handle.pointer, key, klen, room, len(room), number):
                error = _last_error(lib)
                self._rooms.append(self._under_way.pop(number)[2])
                raise error

    def poll(self, wait: int = 0) -> list[tuple[Any, bytes | None | XdbError]]:
        """A list of (tag, value) of gets that have ended, in any order: the value is bytes, None when there is no such
        key, or the XdbError that the get failed with. Waits until `wait` gets have ended, or all that are under way.
        A get whose value is longer than 64 KiB begins anew when its length is known."""
        wait = _int(wait, "wait")
        lib = _lib()
        handle = self._handle
        results: list[tuple[Any, bytes | None | XdbError]] = []
        with handle as lock, lock:
            got = self._some()
            while True:
                least = max(wait - len(results), 0)
                nr = lib.remixdb_get_poll(handle.pointer, got, len(got), least)
                if not nr and lib.remixdb_errcode() not in (Status.OK, Status.NOTFOUND):
                    raise _last_error(lib)
                before = len(results)
                results.extend(filter(None, map(self._result, got[:nr])))
                anew = len(results) < before + nr and len(results) < wait
                if not anew and (nr < len(got) or len(results) >= wait):
                    return results

    def _result(self, got: "_Got") -> tuple[Any, bytes | None | XdbError] | None:
        """The result of a get that has ended; None when it has begun anew, with more room."""
        key, tag, room = self._under_way.pop(got.priv)
        value: bytes | None | XdbError
        if got.status == Status.TOOBIG and got.len > len(room):
            lib = _lib()
            large = ctypes.create_string_buffer(got.len)
            self._under_way[got.priv] = key, tag, large
            if lib.remixdb_get_begin(self._handle.pointer, key, len(key), large, len(large), got.priv):
                self._keep(room)
                return None
            del self._under_way[got.priv]
            value = _last_error(lib)
        elif got.status == Status.OK:
            value = ctypes.string_at(room, got.len)
        elif got.status == Status.NOTFOUND:
            value = None
        else:
            value = XdbError(got.status, (got.msg or b"").decode("utf-8", "replace"))
        self._keep(room)
        return tag, value

    def _keep(self, room: "ctypes.Array[ctypes.c_char]") -> None:
        if len(room) == _GET_ROOM:
            self._rooms.append(room)

    def fileno(self) -> int:
        """The descriptor that becomes readable. The object owns it: it is watched, and neither read nor closed."""
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            fd: int = lib.remixdb_gets_fd(handle.pointer)
            if fd < 0:
                raise _last_error(lib)
            return fd

    def __len__(self) -> int:
        """How many gets are under way: their results were not taken."""
        return 0 if self.closed else len(self._under_way)

    def __bool__(self) -> bool:
        return True  # also without gets


_PAIRS, _KEYS, _VALUES = range(3)  # what an iterator gives


class _PyIter(_Closable, Generic[_R]):
    """The calls of XdbIter that _xdb.Iter has in C."""

    _give = _PAIRS
    _reverse = False  # the direction of __next__
    _placed = False  # a seek has been made, and no park after it
    _fresh = True  # neither a seek nor a park yet
    _ahead: "_Ahead[_R]"
    _grown: int  # records of the next page

    def _move(self, function: Callable[..., Any], *args: object) -> None:
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            self._settle()
            function(handle.pointer, *args)
            if lib.remixdb_errcode() != Status.OK:
                raise _last_error(lib)

    def seek(self, key: Data | None = None) -> None:
        """Moves to the first key that is not smaller; without a key, to the first one."""
        start = None if key is None else _bytes(key, "key")
        klen = 0 if start is None else _length(start, "key")
        self._move(_lib().remixdb_iter_seek, start, klen)
        self._placed = True

    def seek_last(self) -> None:
        """Moves to the last key."""
        self._move(_lib().remixdb_iter_seek_last)
        self._placed = True

    def seek_for_prev(self, key: Data) -> None:
        """Moves to the last key that is not greater."""
        key = _bytes(key, "key")
        klen = _length(key, "key")
        self._move(_lib().remixdb_iter_seek_for_prev, key, klen)
        self._placed = True

    def prev(self) -> None:
        """Moves to the previous key; before the first key it has no position."""
        self._move(_lib().remixdb_iter_prev)

    def skip1(self) -> None:
        """Moves to the next key. At the end, and without a position, it does nothing."""
        self._move(_lib().remixdb_iter_skip1)

    # The library copies records by pages, and its iterator stands ahead of this one. A signal's handler may raise, or
    # use this iterator, after every call, so each step can be begun again: the library updates the page in the same
    # call that copies the records; and unpacking a page, or giving records back, takes effect at a single point.

    def _fill(self, back: bool) -> bool:
        """Has the library copy a page in this direction. False: there are no more."""
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            if self._ahead.back is not back:
                self._settle()
            size = _PAGE_ROOM[self._grown > _PAGE_FIRST]
            while True:
                ahead = self._ahead
                page = ahead.page
                if not page.nr:
                    ahead.open(back, self._grown, size)
                    # When a handler has filled the page meanwhile this calls nothing.
                    empty = itertools.filterfalse(operator.attrgetter("nr"), [page])
                    calls = map(lib.remixdb_iter_page, [handle.pointer], map(ctypes.byref, empty))
                    good, status = next(zip(calls, iter(lib.remixdb_errcode, None)), (True, Status.OK))
                    if status == Status.TOOBIG and ahead.klens[0] + ahead.vlens[0] > size:
                        size = ahead.klens[0] + ahead.vlens[0]
                    elif status == Status.NOTFOUND:
                        ahead.shut()
                        return False
                    elif not good:
                        raise _last_error(lib)
                if page.nr:
                    self._unpack(ahead)
                    self._grown = min(self._grown * _PAGE_GROWS, _PAGE_MAX)
                    return True

    def _unpack(self, ahead: "_Ahead[_R]") -> None:
        made, klens = ahead.unpack()
        self._handle.ahead = klens
        if self._ahead is ahead:
            self._ahead = made
            ahead.page.after = False
        if self._handle.closed:
            klens.clear()
        elif len(klens) > 1:
            _walkers.add(self._handle)

    def _settle(self) -> None:
        """Moves the library's iterator to this one's position. It keeps an error; the next call reports it."""
        ahead = self._ahead
        if ahead.page.nr:
            self._unpack(ahead)
            ahead = self._ahead
        if ahead.page.after or operator.length_hint(ahead.left):
            # One expression takes all records left and tells the library their number.
            left = map(len, map(_listed, [ahead.left]))
            next(map(_lib().remixdb_iter_unread, [self._handle.pointer], [ctypes.byref(ahead.page)], left))
            self._grown = _PAGE_FIRST

    def _left(self) -> int:
        """The number of records ahead."""
        return operator.length_hint(self._ahead.left)

    def _step(self, back: bool) -> _R:
        """The next record in this direction when no record is ahead."""
        while self._fill(back):
            for record in self._ahead.backward if back else self._ahead.forward:
                return record
        raise StopIteration

    def __next__(self) -> _R:
        try:
            for record in self._ahead.backward if self._reverse else self._ahead.forward:
                return record
        except MemoryError:
            self._settle()
            raise
        if self._fresh and not self._placed:
            self.seek_last() if self._reverse else self.seek()
        return self._step(self._reverse)

    def _step_back(self) -> _R:
        """The next record against the direction of __next__."""
        try:
            for record in self._ahead.forward if self._reverse else self._ahead.backward:
                return record
        except MemoryError:
            self._settle()
            raise
        return self._step(not self._reverse)


if TYPE_CHECKING or _fast is None:
    _Iter = _PyIter
else:
    class _Iter(_fast.Iter, _Closable, Generic[_R]):
        pass


class XdbIter(_Iter[_R]):
    """An iterator; made by iter() of a store, a snapshot or a ref. It copies records ahead, one at
    first and then more, up to 1,024 records and 64 KiB, or one larger record.

    As a Python iterator it gives the (key, value) pairs from its position on, or from the first key when it has none
    yet; keys alone or values alone when it was made so. `reversed` gives them backward, from the last key when it has
    no position yet. An iterator that was made with `reverse` goes the other way in both cases."""

    def __init__(self, ref: XdbRef, expect: int = 0, *, start: Data | None = None, stop: Data | None = None,
                 prefix: Data | None = None, reverse: bool = False, hold: bool = False, keys_only: bool = False,
                 values_only: bool = False) -> None:
        _of(ref, XdbRef)
        lib = _lib()
        if not type(keys_only) is type(values_only) is type(reverse) is type(hold) is bool:
            for flag, name in ((keys_only, "keys_only"), (values_only, "values_only"), (reverse, "reverse"),
                               (hold, "hold")):
                _flag(flag, name)
        if values_only and keys_only:
            raise ValueError("keys_only and values_only exclude each other")
        # The options point into these.
        first, last, begin = _bound(start), _bound(stop), _bound(prefix)
        if type(expect) is not int or expect:
            _int(expect, "expect", _U32)
        opts = _iter_opts(expect, first, last, begin, keys_only, hold)
        self._ref = ref
        self._reverse = reverse
        self._give = _KEYS if keys_only else _VALUES if values_only else _PAIRS
        if TYPE_CHECKING or _fast is None:
            self._ahead = _Ahead(self._give)
            self._grown = _PAGE_FIRST
        parent = ref._handle
        with parent as lock, lock:
            handle = _Handle("iterator", lib.remixdb_iter_destroy, parent=parent, lock=lock)
            self._make(handle, lib, lib.remixdb_iter_create_opts, parent.pointer, opts)

    def valid(self) -> bool:
        """Whether it stands on a key."""
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            if self._left():
                return True
            self._settle()
            return bool(lib.remixdb_iter_valid(handle.pointer))

    def peek(self) -> tuple[bytes, bytes] | None:
        """The (key, value) at its position, None when it does not stand on a key. Without values the value is b""."""
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            self._settle()
            key = self._copy(lib, lib.remixdb_iter_key)
            if key is None:
                return None
            return key, self._copy(lib, lib.remixdb_iter_value) or b""

    def key(self) -> bytes | None:
        """The key at its position, None when it does not stand on a key."""
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            self._settle()
            return self._copy(lib, lib.remixdb_iter_key)

    def value(self) -> bytes | None:
        """The value at its position, None when it does not stand on a key, or gives keys only."""
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            self._settle()
            return self._copy(lib, lib.remixdb_iter_value)

    def _copy(self, lib: ctypes.CDLL, function: Callable[..., Any]) -> bytes | None:
        size = ctypes.c_uint32()
        at: int | None = function(self._handle.pointer, ctypes.byref(size))
        if at is not None:
            return ctypes.string_at(at, size.value)
        return self._ref._absent(lib, None) if lib.remixdb_errcode() != Status.OK else None

    def skip(self, n: int) -> None:
        """Moves to the next key n times."""
        n = _int(n, "n")
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            self._settle()
            while n > 0 and lib.remixdb_iter_valid(handle.pointer):
                step = min(n, _U32_MAX)
                self._settle()
                lib.remixdb_iter_skip(handle.pointer, step)
                if lib.remixdb_errcode() != Status.OK:
                    raise _last_error(lib)
                n -= step

    def park(self) -> None:
        """Releases the memory that it holds; it needs a seek before further use."""
        lib = _lib()
        handle = self._handle
        with handle as lock, lock:
            self._placed = self._fresh = False
            self._settle()
            lib.remixdb_iter_park(handle.pointer)

    def __iter__(self) -> Iterator[_R]:
        if not self._placed:
            self.seek_last() if self._reverse else self.seek()
        return self

    def __reversed__(self) -> Iterator[_R]:
        if not self._placed:
            self.seek() if self._reverse else self.seek_last()
        return _Reversed(self)


class XdbMap(MutableMapping[_K, _V]):
    """A store, a snapshot, or another source of refs as a dict that is ordered by its keys; made by map(). Keys and
    values are bytes; a str is encoded as UTF-8 on its way in. Each call sees the store as it is then, and an iteration
    as it was when it began. Any number of threads may use it; each gets a ref of its own.

    len() reads all keys. update() is one batch. No other write of the key comes into the middle of del, pop, popitem
    and setdefault. A subclass that replaces encode_key, decode_key, encode_value and
    decode_value stores other objects."""

    def __init__(self, source: "_RefSource") -> None:
        self._source = source
        self._refs = _Refs()

    def encode_key(self, key: _K) -> bytes:
        """The bytes that the store has for a key."""
        return _bytes(key, "key")  # type: ignore[arg-type]

    def decode_key(self, key: bytes) -> _K:
        """The key that these bytes stand for."""
        return key  # type: ignore[return-value]

    def encode_value(self, value: _V) -> bytes:
        """The bytes that the store has for a value."""
        return _bytes(value, "value")  # type: ignore[arg-type]

    def decode_value(self, value: bytes) -> _V:
        """The value that these bytes stand for."""
        return value  # type: ignore[return-value]

    def _ref(self) -> XdbRef:
        ref = self._refs.ref
        if ref is None or ref.closed:
            ref = self._refs.ref = self._source.ref()
        return ref

    def __getitem__(self, key: _K) -> _V:
        value = self._ref().get(self.encode_key(key))
        if value is None:
            raise KeyError(key)
        return self.decode_value(value)

    def __setitem__(self, key: _K, value: _V) -> None:
        self._ref().put(self.encode_key(key), self.encode_value(value))

    def _take(self, name: bytes) -> bytes | None:
        """Deletes the key, and gives its value; None when there is no such key."""
        values: list[bytes] = []

        def take(value: bytes | None) -> _Keep | None:
            values[:] = () if value is None else (value,)
            return KEEP if value is None else None

        self._ref().merge(name, take)
        return values[0] if values else None

    def __delitem__(self, key: _K) -> None:
        if self._take(self.encode_key(key)) is None:
            raise KeyError(key)

    def pop(self, key: _K, *default: Any) -> Any:
        """Deletes the key, and gives its value. Without one: the default, or KeyError."""
        if len(default) > 1:
            raise TypeError(f"pop takes a key and one default, not {len(default)}")
        value = self._take(self.encode_key(key))
        if value is not None:
            return self.decode_value(value)
        if not default:
            raise KeyError(key)
        return default[0]

    def setdefault(self, key: _K, default: Any = None) -> Any:
        """The key's value. Without one the key gets the default."""
        value = self._ref().merge(self.encode_key(key),
                                  lambda old: self.encode_value(default) if old is None else KEEP)
        assert value is not None  # the function never deletes
        return self.decode_value(value)

    def __contains__(self, key: object) -> bool:
        try:
            name = self.encode_key(key)  # type: ignore[arg-type]
        except TypeError:  # no key is of that type
            return False
        return self._ref().probe(name)

    def __iter__(self) -> Iterator[_K]:
        return map(self.decode_key, self._ref().iter(keys_only=True))

    def __reversed__(self) -> Iterator[_K]:
        return map(self.decode_key, self._ref().iter(keys_only=True, reverse=True))

    def __len__(self) -> int:
        return sum(1 for _ in self._ref().iter(keys_only=True))

    def __bool__(self) -> bool:
        return next(iter(self._ref().iter(keys_only=True)), None) is not None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._source!r})"

    def items(self) -> ItemsView[_K, _V]:
        return _Items(self)

    def values(self) -> ValuesView[_V]:
        return _Values(self)

    def range(self, start: _K | None = None, stop: _K | None = None, *,
              reverse: bool = False) -> Iterator[tuple[_K, _V]]:
        """The (key, value) pairs of start <= key < stop, in order."""
        first = None if start is None else self.encode_key(start)
        last = None if stop is None else self.encode_key(stop)
        return self._decoded(self._ref().iter(start=first, stop=last, reverse=reverse))

    def _decoded(self, pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[_K, _V]]:
        return ((self.decode_key(key), self.decode_value(value)) for key, value in pairs)

    def popitem(self) -> tuple[_K, _V]:
        """Takes the last item, as a dict does."""
        for key in self._ref().iter(keys_only=True, reverse=True):
            value = self._take(key)
            if value is not None:  # another writer may have taken it
                return self.decode_key(key), self.decode_value(value)
        raise KeyError("the map is empty")

    def clear(self) -> None:
        """Deletes all keys, at one moment."""
        self._ref().del_range()

    def update(self, other: Any = (), /, **more: _V) -> None:
        """As a dict's update; all of it or nothing is written."""
        items: Any = other
        if isinstance(other, Mapping):
            items = other.items()
        elif hasattr(other, "keys"):
            items = ((key, other[key]) for key in other.keys())
        with self._ref().batch() as batch:
            for key, value in itertools.chain(items, more.items()):
                batch.put(self.encode_key(key), self.encode_value(value))


class _Items(ItemsView[_K, _V]):
    """An XdbMap's items, read by one iterator."""

    _mapping: XdbMap[_K, _V]

    def __iter__(self) -> Iterator[tuple[_K, _V]]:
        return self._mapping.range()

    def __reversed__(self) -> Iterator[tuple[_K, _V]]:
        return self._mapping.range(reverse=True)


class _Values(ValuesView[_V]):
    """An XdbMap's values, read by one iterator."""

    _mapping: XdbMap[Any, _V]

    def __iter__(self) -> Iterator[_V]:
        return map(self._mapping.decode_value, self._mapping._ref().iter(values_only=True))

    def __reversed__(self) -> Iterator[_V]:
        return map(self._mapping.decode_value, self._mapping._ref().iter(values_only=True, reverse=True))


class _Refs(threading.local):
    """A thread's ref, which ends with the thread."""

    ref: XdbRef | None = None


class _RefSource(Protocol):
    """What a map is made of."""

    def ref(self) -> XdbRef: ...


# ---- the library

# name: (result, arguments). Inputs are c_char_p, which takes bytes with zeros in them, since the lengths go along.
# Buffers that the library writes to, and pointers that are no strings, are c_void_p.
_P, _S, _U32, _BOOL = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_bool
_U32P = ctypes.POINTER(ctypes.c_uint32)
_DECIDE_FN = ctypes.CFUNCTYPE(None, _P)
_LOG_FN = ctypes.CFUNCTYPE(None, _P, _S)
_MERGE_KEEP, _MERGE_PUT, _MERGE_DEL = range(3)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
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
    "remixdb_get_part": (_BOOL, (_P, _S, _U32, _U32, _P, _U32, _P, _P)),
    "remixdb_probe": (_BOOL, (_P, _S, _U32)),
    "remixdb_getn": (_BOOL, (_P, _S, _U32, _P, _U32, _U32P)),
    "remixdb_multi_get_packed": (ctypes.c_size_t, (_P, ctypes.c_size_t, _P, _S, ctypes.c_size_t, _P)),
    "remixdb_merge_decide": (_BOOL, (_P, _S, _U32, _P)),
    "remixdb_del_range": (_BOOL, (_P, _P)),
    "remixdb_batch_del_range": (_BOOL, (_P, _P)),
    "remixdb_put_expire": (_BOOL, (_P, _S, _U32, _S, _U32, ctypes.c_uint64)),
    "remixdb_expiry": (_BOOL, (_P, _S, _U32, _P)),
    "remixdb_getv": (_BOOL, (_P, _S, _U32, _P, _U32, _U32P, _P)),
    "remixdb_put_if": (_BOOL, (_P, _S, _U32, _S, _U32, ctypes.c_uint64)),
    "remixdb_del_if": (_BOOL, (_P, _S, _U32, ctypes.c_uint64)),
    "remixdb_set_option": (_BOOL, (_P, _S, _S)),
    "remixdb_sync": (_BOOL, (_P,)),
    "remixdb_flush": (_BOOL, (_P,)),
    "remixdb_compact": (_BOOL, (_P,)),
    "remixdb_compact_range": (_BOOL, (_P, _P)),
    "remixdb_count": (_BOOL, (_P, _P, _P, _P)),
    "remixdb_checkpoint": (_BOOL, (_P, _S)),
    "remixdb_verify": (_BOOL, (_P,)),
    "remixdb_repair": (_BOOL, (_S,)),
    "remixdb_destroy": (_BOOL, (_S,)),
    "remixdb_batch_create": (_P, ()),
    "remixdb_batch_put": (_BOOL, (_P, _S, _U32, _S, _U32)),
    "remixdb_batch_del": (_BOOL, (_P, _S, _U32)),
    "remixdb_batch_load": (_BOOL, (_P, ctypes.c_size_t, _S, _P, _P, _S, ctypes.c_size_t)),
    "remixdb_batch_count": (ctypes.c_size_t, (_P,)),
    "remixdb_batch_put_expire": (_BOOL, (_P, _S, _U32, _S, _U32, ctypes.c_uint64)),
    "remixdb_batch_append": (_BOOL, (_P, _P)),
    "remixdb_batch_bytes": (ctypes.c_size_t, (_P,)),
    "remixdb_batch_clear": (None, (_P,)),
    "remixdb_batch_destroy": (None, (_P,)),
    "remixdb_write": (_BOOL, (_P, _P)),
    "remixdb_snapshot": (_P, (_P,)),
    "remixdb_snapshot_space_ref": (_P, (_P, _P)),
    "remixdb_space_open": (_P, (_P, _S, _BOOL)),
    "remixdb_space_close": (None, (_P,)),
    "remixdb_space_list": (_P, (_P,)),
    "remixdb_space_drop": (_BOOL, (_P, _S)),
    "remixdb_space_ref": (_P, (_P,)),
    "remixdb_batch_space": (None, (_P, _P)),
    "remixdb_snapshot_release": (None, (_P,)),
    "remixdb_ingest_begin": (_P, (_P,)),
    "remixdb_ingest_put": (_BOOL, (_P, _S, _U32, _S, _U32)),
    "remixdb_ingest_commit": (_BOOL, (_P,)),
    "remixdb_ingest_abort": (None, (_P,)),
    "remixdb_txn_begin": (_P, (_P,)),
    "remixdb_txn_ref": (_P, (_P, _P)),
    "remixdb_txn_untracked": (_P, (_P, _P)),
    "remixdb_txn_commit": (_BOOL, (_P,)),
    "remixdb_txn_abort": (None, (_P,)),
    "remixdb_txn_savepoint": (_BOOL, (_P,)),
    "remixdb_txn_rollback": (_BOOL, (_P,)),
    "remixdb_iter_opts_init": (None, (_P, ctypes.c_size_t)),
    "remixdb_iter_create_opts": (_P, (_P, _P)),
    "remixdb_iter_seek": (None, (_P, _S, _U32)),
    "remixdb_iter_seek_last": (None, (_P,)),
    "remixdb_iter_seek_for_prev": (None, (_P, _S, _U32)),
    "remixdb_iter_prev": (None, (_P,)),
    "remixdb_iter_valid": (_BOOL, (_P,)),
    "remixdb_iter_key": (_P, (_P, _U32P)),
    "remixdb_iter_value": (_P, (_P, _U32P)),
    "remixdb_iter_skip1": (None, (_P,)),
    "remixdb_iter_skip": (None, (_P, _U32)),
    "remixdb_iter_page": (_BOOL, (_P, _P)),
    "remixdb_iter_unread": (_BOOL, (_P, _P, _U32)),
    "remixdb_iter_park": (None, (_P,)),
    "remixdb_iter_destroy": (None, (_P,)),
    "remixdb_gets_create": (_P, (_P, _U32)),
    "remixdb_get_begin": (_BOOL, (_P, _S, _U32, _P, _U32, _P)),
    "remixdb_get_poll": (ctypes.c_size_t, (_P, _P, ctypes.c_size_t, ctypes.c_size_t)),
    "remixdb_gets_fd": (ctypes.c_int, (_P,)),
    "remixdb_gets_destroy": (None, (_P,)),
    "remixdb_stats": (_P, (_P,)),
    "remixdb_figure": (_BOOL, (_P, _S, _P)),
    "remixdb_free": (None, (_P,)),
}
# Calls of the extension module alone.
_FAST_ONLY: tuple[str, ...] = ()


class _Opts(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("cache_mb", ctypes.c_size_t), ("memtable_mb", ctypes.c_size_t),
                ("wal_mb", ctypes.c_size_t), ("ckeys", _BOOL), ("tags", _BOOL), ("workers", ctypes.c_int),
                ("worker_cores", _S), ("io", _S), ("direct_io", _BOOL), ("compression", ctypes.c_int),
                ("compression_level", ctypes.c_int), ("sync", ctypes.c_int), ("read_only", _BOOL), ("create", _BOOL),
                ("error_if_exists", _BOOL), ("max_open_files", _U32), ("logger", _LOG_FN), ("logger_priv", _P),
                ("memory_mb", ctypes.c_size_t))


class _Slice(ctypes.Structure):
    _fields_ = (("ptr", _S), ("len", _U32))


class _Range(ctypes.Structure):
    _fields_ = (("from_key", _Slice), ("to_key", _Slice))


def _range(start: Data | None, stop: Data | None) -> _Range:
    r = _Range()
    for name, key in (("from_key", start), ("to_key", stop)):
        if key is not None:
            key = _bytes(key, "key")
            setattr(r, name, _Slice(key, _length(key, "key")))
    return r


class _IterOpts(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("from_key", _Slice), ("to_key", _Slice), ("prefix", _Slice),
                ("keys_only", _BOOL), ("expect", _U32), ("snapshot", _P), ("hold", _BOOL))


if TYPE_CHECKING or _fast is None:
    def _iter_opts(expect: int, start: bytes | None, stop: bytes | None, prefix: bytes | None, keys_only: bool,
                   hold: bool) -> Any:
        """What remixdb_iter_create_opts takes. It points into start, stop and prefix."""
        opts = _IterOpts()
        _lib().remixdb_iter_opts_init(ctypes.byref(opts), ctypes.sizeof(opts))
        for name, key in (("from_key", start), ("to_key", stop), ("prefix", prefix)):
            if key is not None:
                setattr(opts, name, _Slice(key, len(key)))
        opts.expect, opts.keys_only, opts.hold = expect, keys_only, hold
        return ctypes.byref(opts)
else:
    _iter_opts = _fast.iter_opts


class _Decision(ctypes.Structure):
    _fields_ = (("decide", _P), ("priv", _P), ("v0", _P), ("v0len", _U32), ("v1len", _U32), ("v1", _S),
                ("op", ctypes.c_int))


class _Page(ctypes.Structure):
    _fields_ = (("ptr", _P), ("cap", ctypes.c_size_t), ("klens", _P), ("vlens", _P), ("max", _U32), ("back", _BOOL),
                ("after", _BOOL), ("nr", _U32), ("len", ctypes.c_size_t))


class _Got(ctypes.Structure):
    _fields_ = (("priv", ctypes.c_size_t), ("status", ctypes.c_int), ("len", _U32), ("msg", _S))


_GOT_MAX = 256  # results that one call takes
_GET_ROOM = 1 << 16  # bytes of room for the value of a get that begins


class _Packed(ctypes.Structure):
    _fields_ = (("ptr", _P), ("cap", ctypes.c_size_t), ("offs", _P), ("lens", _P), ("found", _P),
                ("len", ctypes.c_size_t))

_NAMES = ("libremixdb.so", "libremixdb.so.0", "libremixdb.dylib", "libremixdb.0.dylib")

_library: ctypes.CDLL | None = None
_library_lock = threading.RLock()  # a signal's handler may be the next to need it


def _load() -> ctypes.CDLL:
    path = os.environ.get("REMIXDB_LIBRARY")
    if path:
        return ctypes.CDLL(path)
    here = os.path.dirname(os.path.abspath(__file__))
    for name in _NAMES + tuple(os.path.join("remixdb", name) for name in _NAMES):  # the package of the wheel has it
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


def _lib() -> ctypes.CDLL:
    global _library
    if _library is None:
        with _library_lock:
            if _library is None:
                lib = _load()
                for name, (result, arguments) in _SIGNATURES.items():
                    function = getattr(lib, name)
                    function.restype = result
                    function.argtypes = arguments
                if _fast is not None:
                    names = [*_SIGNATURES, *_FAST_ONLY]
                    _fast.setup({name: ctypes.cast(getattr(lib, name), _P).value for name in names}, XdbError)
                _library = lib
    return _library


def _last_error(lib: ctypes.CDLL) -> XdbError:
    """The error of this thread's last call, as an exception to be raised."""
    status: int = lib.remixdb_errcode()
    message: bytes = lib.remixdb_errmsg() or lib.remixdb_strerror(status)
    return XdbError(status, message.decode("utf-8", "replace"))


_Room: TypeAlias = tuple[Any, ctypes.c_uint32]  # a buffer for a value, and the value's length

# ---- arguments

_U32_MAX = 0xFFFFFFFF


def _bytes(x: Data, what: str) -> bytes:
    if isinstance(x, bytes):
        return x
    if isinstance(x, str):
        return x.encode("utf-8")
    if isinstance(x, (bytearray, memoryview)):
        return bytes(x)
    raise TypeError(f"a {what} is bytes, bytearray, memoryview or str, not {type(x).__name__}")


def _bound(x: Data | None) -> bytes | None:
    """The bytes of a key, None for None."""
    if x is None:
        return None
    key = x if type(x) is bytes else _bytes(x, "key")
    _length(key, "key")
    return key


def _dirname(x: _Path) -> bytes:
    name = os.fsencode(x)
    if b"\0" in name:
        raise ValueError("a zero byte in the directory's name")
    return name


def _address(numbers: "array[int]") -> int:
    return numbers.buffer_info()[0]


def _int(x: int, what: str, kind: Any = ctypes.c_size_t) -> int:
    """Checks that x fits a C integer of this kind; ctypes would cut off its upper bits."""
    if not isinstance(x, int) or isinstance(x, bool):
        raise TypeError(f"{what} is an int, not {type(x).__name__}")
    if kind(x).value != x:
        raise ValueError(f"{what} is {x}, which is out of range")
    return x


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def _expires_ms(expires: Expires) -> int:
    """Milliseconds since 1970. A time before 1970 is the first millisecond, because 0 would be never."""
    if isinstance(expires, datetime.datetime):
        if expires.tzinfo is None or expires.utcoffset() is None:  # local time
            try:
                expires = expires.astimezone(datetime.timezone.utc)
            except (OverflowError, ValueError):  # within a day of the least or the greatest datetime
                expires = expires.replace(tzinfo=datetime.timezone.utc)
        ms = (expires - _EPOCH) // datetime.timedelta(milliseconds=1)
    elif not isinstance(expires, (int, float)) or isinstance(expires, bool):
        raise TypeError(f"expires is a datetime or seconds since 1970, not {type(expires).__name__}")
    elif not math.isfinite(expires):
        raise ValueError(f"expires is {expires}")
    else:
        ms = round(expires * 1000)
    return _int(max(ms, 1), "expires, in milliseconds,", ctypes.c_uint64)


def _flag(x: bool, what: str) -> bool:
    if not isinstance(x, bool):
        raise TypeError(f"{what} is True or False, not {type(x).__name__}")
    return x


def _word(x: str, what: str) -> bytes:
    if not isinstance(x, str):
        raise TypeError(f"{what} is a str, not {type(x).__name__}")
    if "\0" in x:
        raise ValueError(f"a zero byte in {what}")
    return x.encode("utf-8")


def _length(x: bytes, what: str) -> int:
    # The library refuses lengths above KV_MAX, but a length that 32 bits cannot hold would not even reach it.
    if len(x) > _U32_MAX:
        raise XdbError(Status.TOOBIG, f"a {what} of {len(x)} bytes")
    return len(x)


def _of(thing: object, *kinds: type) -> None:
    if not isinstance(thing, kinds):
        raise TypeError(f"{' or '.join(kind.__name__ for kind in kinds)} is needed, not {type(thing).__name__}")


# ---- the records that iterators read ahead

_PAGE_FIRST, _PAGE_GROWS, _PAGE_MAX = 1, 8, 1024  # records of an iterator's first page; factor from page to page; most
_PAGE_ROOM = 1 << 12, 1 << 16  # bytes of the first page and of a later one; a larger record has a page alone
_PAGE_KEPT = 1 << 20  # bytes of room that stay for later pages after a large record


_listed: Callable[[Iterator[int]], list[int]] = list


class _Ahead(Generic[_R]):
    """Records that an iterator has ahead, and the page for the records that come next. `give` says what a record is:
    a pair, a key or a value.

    One of `forward` and `backward` gives the records, the other none. `left` gives the lengths of their keys: its
    length hint is the number of records that were not taken yet, and the records end when it ends."""

    __slots__ = ("give", "page", "back", "left", "forward", "backward", "room", "klens", "vlens")

    def __init__(self, give: int, page: _Page | None = None, back: bool = False, klens: Iterable[int] = (),
                 vlens: Iterable[int] = (), data: bytes = b"") -> None:
        read = io.BytesIO(data).read
        self.give = give
        self.page: _Page = page if page is not None else _Page()
        self.shut()
        self.back = back
        self.left = iter(klens)
        records: Iterator[Any] = map(read, self.left)
        if give != _KEYS:
            records = zip(records, map(read, vlens))
        if give == _VALUES:
            records = map(operator.itemgetter(1), records)
        none: Iterator[Any] = iter(())
        self.forward: Iterator[_R]
        self.backward: Iterator[_R]
        self.forward, self.backward = (none, records) if back else (records, none)

    def shut(self) -> None:
        """Takes the page's room."""
        self.room: ctypes.Array[ctypes.c_char] = (ctypes.c_char * 0)()
        self.klens, self.vlens = array("I"), array("I")

    def open(self, back: bool, count: int, size: int) -> None:
        """Gives the page room."""
        if not size <= len(self.room) <= max(size, _PAGE_KEPT):
            self.room = ctypes.create_string_buffer(size)
        if len(self.klens) < count:
            self.klens, self.vlens = array("I", bytes(4 * count)), array("I", bytes(4 * count))
        page = self.page
        page.ptr, page.cap, page.max, page.back = ctypes.addressof(self.room), size, count, back
        page.klens, page.vlens = _address(self.klens), None if self.give == _KEYS else _address(self.vlens)

    def unpack(self) -> tuple["_Ahead[_R]", list[int]]:
        """The records of the filled page, and the list of key lengths: clearing that list ends the records."""
        page = self.page
        klens = self.klens[:page.nr].tolist()
        vlens, data = self.vlens[:page.nr].tolist(), ctypes.string_at(self.room, page.len)
        made: _Ahead[_R] = _Ahead(self.give, _Page(back=page.back, after=page.after), page.back, klens, vlens, data)
        made.room, made.klens, made.vlens = self.room, self.klens, self.vlens
        return made, klens


class _Reversed(Generic[_R]):
    """Gives an iterator's records in the other direction."""

    __slots__ = ("_it",)

    def __init__(self, it: XdbIter[_R]) -> None:
        self._it = it

    def __iter__(self) -> "_Reversed[_R]":
        return self

    def __next__(self) -> _R:
        return self._it._step_back()


# ---- the logger


class _Log:
    """The library's log lines, on their way to the user's function.

    They come from any thread, the library's own too, and in the middle of calls. No Python code may run there: it
    could start the garbage collector, which could close a store and wait for that very thread. So the library calls a
    function that is written in C, list.insert, with an index behind every end. A thread that has called a store hands
    the gathered lines over when its call has ended."""

    def __init__(self, function: Callable[[str], object]) -> None:
        if not callable(function):
            raise TypeError(f"logger is a function, not {type(function).__name__}")
        self._function = function
        # one thread hands over at a time, in order; lines that the function causes come later
        self._turn = threading.Lock()
        self.lines: list[bytes] = []
        self.callback = _LOG_FN(self.lines.insert)
        self.priv = sys.maxsize

    def hand_over(self) -> None:
        while self.lines and not self._turn.locked():
            with self._turn:
                self._tell()

    def _tell(self) -> None:
        # The loop is not in the with block itself. Python 3.12 and later do not see there an exception that a signal's
        # handler raises at the jump backward of a loop that begins with a try; the lock would stay taken.
        while self.lines:
            try:
                self._function(self.lines.pop(0).decode("utf-8", "replace"))
            except Exception:  # the call before it has succeeded, or raises its own error
                sys.excepthook(*sys.exc_info())


# ---- handles
#
# Why handles exist beside the public objects. The library asks for an order: iterators end before their ref, refs and
# snapshots before their store. Users close objects in any order, or not at all; the garbage collector comes at any
# time, in any thread; a signal's handler may raise after any call; a fork leaves pointers in a child that must not
# use them. A public object cannot answer for all that: it may be collected while its children live. So each public
# object owns a handle, which has the library's pointer. Handles refer to their parents and children and never to
# public objects, so they are no part of a cycle that keeps an object alive. The handle knows the lock that guards the
# pointer, and whether this process may use it. Each thread keeps a list (_Here.late) of handles that it closes when
# its call has ended.

_forks = 0  # forks between the process that imported this module and this process
_walkers: "weakref.WeakSet[_Handle]" = weakref.WeakSet()  # handles of iterators that may have records ahead


def _forked() -> None:
    global _forks
    _forks += 1
    if _fast is not None:
        _fast.forked(_forks)
    for handle in list(_walkers):
        handle.ahead.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Lock(Protocol):
    """What is used of a threading.RLock."""

    def acquire(self, blocking: bool = ...) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...
    def _is_owned(self) -> bool: ...


class _Here(threading.local):
    """State of a thread: the lock it holds while the library is in a merge, and the handles to close when its present
    call has ended.

    A merge's function runs while the library holds a lock of the store and while its ref is in the middle of a call.
    The function must call nothing and close nothing."""

    def __init__(self) -> None:
        self.merging = threading.Lock() if TYPE_CHECKING or _fast is None else _fast.Merging()
        self.late: list[_Handle] = []


_here = _Here()


_late_add: Callable[[list["_Handle"], "_Handle"], object] = list.append
_late_remove: Callable[[list["_Handle"], "_Handle"], object] = list.remove
if not TYPE_CHECKING and _fast is not None:
    _late_add, _late_remove = _fast.late_add, _fast.late_remove


class _PyHandle:
    """The calls of _Handle that _xdb.Handle has in C."""

    def __init__(self, what: str, destroy: Callable[[int], Any], parent: "_Handle | None" = None,
                 lock: "_Lock | None" = None, log: _Log | None = None) -> None:
        self._what = what
        self._pointer: int | None = None
        self._made: list[int | None] = []
        # The library's object ends by the function that takes the pointer from it.
        self._taken: Iterator[int | None] = iter(self._made)
        self._destroyed: Iterator[Any] = map(destroy, self._taken)  # type: ignore[arg-type]  # its next destroys, once
        self._parent = parent
        self._children: set[_PyHandle] = set()
        self.ahead: list[int] = []  # an iterator's key lengths of the records ahead; clearing it ends those records
        self._forks = _forks
        self._log: _Log | None = log if parent is None else parent._log
        self._lines: list[bytes] | None = None if self._log is None else self._log.lines
        self.lock: _Lock = threading.RLock() if lock is None else lock  # type: ignore[assignment]

    def make(self, lib: ctypes.CDLL, create: Callable[..., Any], *args: object) -> None:
        """Makes the library's pointer. The caller holds the parent's lock, if there is a parent."""
        if self._parent is not None:
            self._parent._children.add(self)
        self._made.extend(itertools.starmap(create, [args]))
        if self._made[0] is None:
            self._made.clear()
            self._fail(lib)
        self._pointer = self._made[0]

    def _fail(self, lib: ctypes.CDLL) -> None:
        raise NotImplementedError

    def _later(self) -> None:
        raise NotImplementedError

    def _closing_error(self) -> XdbError | None:
        raise NotImplementedError

    def _after(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> "_Lock":
        # Checked before the lock is taken: in a child made by fork, nobody may be left to release it.
        if self._forks != _forks:
            raise XdbError(Status.INVALID, f"the {self._what} belongs to the process that opened it")
        if _here.merging.locked():
            raise XdbError(Status.INVALID, f"the {self._what} is not to be used by the function of a merge")
        return self.lock

    def __exit__(self, *exc: object) -> None:
        if _here.late or self._lines:
            self._after()

    @property
    def pointer(self) -> int:
        if self._pointer is None:
            raise XdbError(Status.INVALID, f"the {self._what} is closed")
        return self._pointer

    @property
    def closed(self) -> bool:
        return self._pointer is None or self._forks != _forks

    def collect(self) -> None:
        """Closes for the garbage collector, which may come at any time."""
        if _here.merging.locked():
            self._later()
            return
        error = self.close()
        if error is not None:
            raise error  # Python prints it

    def close(self) -> XdbError | None:
        """Closes the children, then this. Returns the error when closing a store failed. When a signal's handler
        closes a handle that this thread's call is using, the handle is closed when that call has ended."""
        if self._forks != _forks:
            return None  # the parent process has the store and its threads; here there is nothing to close
        if _here.merging.locked():
            raise XdbError(Status.INVALID, f"the {self._what} is not to be closed by the function of a merge")
        if self._in_call():
            self._later()
            self._shut()
            return None
        error = self._end()
        self._after()
        return error

    def _in_call(self) -> bool:
        return self.lock._is_owned() or any(child._in_call() for child in list(self._children))

    def _shut(self) -> None:
        self._pointer = None
        self.ahead.clear()
        for child in list(self._children):
            child._shut()

    def end_children(self) -> None:
        """Ends what was made from it. The caller holds the lock."""
        for child in list(self._children):
            child._end()

    def _take(self, function: Callable[..., Any]) -> Any:
        """Ends the library's object by this function. True when it has ended before."""
        return next(map(function, self._taken), True)

    def _end(self) -> XdbError | None:
        error: XdbError | None = None
        with self.lock:
            self._pointer = None
            self.ahead.clear()
            self.end_children()
            if next(self._destroyed, self) is None and self._what == "store":
                error = self._closing_error()
        if self._parent is not None:
            self._parent._children.discard(self)
        return error


if TYPE_CHECKING or _fast is None:
    _HandleBase = _PyHandle
else:
    class _HandleBase(_fast.Handle):
        ahead: list[int] = []  # a _xdb.Iter has its records elsewhere


class _Handle(_HandleBase):
    """A pointer of the library, and the handles to close before it.

    Locks are taken from the store to its refs. An iterator has its ref's lock, because the library allows one thread
    at a time on a ref and its iterators. `log` is the store's _Log, when it has one.

    A call has this form, and `pointer` stays good until the call ends:

        with handle as lock, lock:
            lib.function(handle.pointer, ...)

    A signal's handler may come, and raise, after every call of a function. So a with statement of its own takes and
    releases each lock, where nothing can come between. The function that calls the library also stores the pointer, or
    takes it to be destroyed: list.extend of a starmap, and next of a map; or a function in C.
    """

    def _fail(self, lib: ctypes.CDLL) -> None:
        """Raises the error of the function that should have made the library's object."""
        raise _last_error(lib)

    def _later(self) -> None:
        """Has this thread close it when its present call has ended."""
        _late_add(_here.late, self)

    def _closing_error(self) -> XdbError | None:
        """The error of the closing of a store, which was this thread's last call."""
        lib = _lib()
        return _last_error(lib) if lib.remixdb_errcode() != Status.OK else None

    def finish(self, function: Callable[..., Any]) -> XdbError | None:
        """Ends the library's object by this function in place of the one that destroys it. Returns the function's
        error."""
        with self as lock, lock:
            self.pointer  # raises when it has ended
            self.end_children()
            # The library's call takes the pointer: nothing comes between the call and the end of the handle.
            return None if self._take(function) else _last_error(_lib())

    def _after(self) -> None:
        """Does the work that had to wait for the end of a call."""
        for handle in list(_here.late):
            if handle._forks != _forks:
                _late_remove(_here.late, handle)
            elif not handle._in_call():
                error = handle._end()
                if handle in _here.late:
                    _late_remove(_here.late, handle)
                if error is not None:
                    raise error
        if self._log is not None and not self.lock._is_owned():
            self._log.hand_over()

# SPDX-License-Identifier: Apache-2.0
"""The interface of plyvel, a Python binding of LevelDB, over RemixDB. A program that uses plyvel changes one line:

    from remixdb import plyvel

Its stores are RemixDB's; files of LevelDB are not read. What differs:

- Keys are ordered by their bytes. Another comparator is refused with NotImplementedError.
- paranoid_checks, block_size, block_restart_interval, max_file_size, bloom_filter_bits, verify_checksums and
  fill_cache are accepted and have no effect: every block that is read is checked, and filters are built in.
  "snappy" is accepted and means no compression; "zstd" compresses.
- Keys have at most 65,500 bytes. A longer one is not there for a get, is refused by a put and a delete, and is as good
  as another one for a seek and as the end of a range.
- A store may be closed while iterators, batches and snapshots of it exist. They then raise RuntimeError.
"""

from __future__ import annotations

import builtins
import json
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterator as _Iterator
from typing import Any, Generic, TypeVar, overload

import xdb

__all__ = ["DB", "PrefixedDB", "WriteBatch", "Snapshot", "Iterator", "RawIterator", "Error", "IOError",
           "CorruptionError", "IteratorInvalidError", "repair_db", "destroy_db"]

__version__ = "1.5.1"  # of the interface
__leveldb_version__ = "1.23"  # of the interface; the store is RemixDB's

Bytes = bytes | bytearray | memoryview
Name = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_R = TypeVar("_R")
_D = TypeVar("_D")
_I = TypeVar("_I", bound="Iterator[Any] | RawIterator")


class Error(Exception):
    """A call failed. `__cause__` is the xdb.XdbError, which has the status."""


class IOError(Error, builtins.IOError):  # noqa: A001
    """The operating system refused something, or there is no store."""


class CorruptionError(Error):
    """A file of the store is damaged."""


class IteratorInvalidError(Error):
    """A raw iterator stands on no key."""


_ERRORS: dict[int, type[Error]] = {xdb.Status.IO: IOError, xdb.Status.NOSPACE: IOError, xdb.Status.NOTFOUND: IOError,
                                   xdb.Status.LOCKED: IOError, xdb.Status.CORRUPT: CorruptionError}


def _error(error: xdb.XdbError) -> Exception:
    if error.status is xdb.Status.INVALID and error.message.endswith("is closed"):
        return RuntimeError(error.message)
    return _ERRORS.get(error.status, Error)(str(error))


def _data(x: Bytes, what: str) -> bytes:
    if type(x) is bytes:
        return x
    if isinstance(x, (bytes, bytearray, memoryview)):
        return bytes(x)
    raise TypeError(f"a {what} is bytes or an object with a buffer, not {type(x).__name__}")


def _bound(key: bytes) -> bytes | None:
    """The first key that there can be at or above this one, which may be too long for a key. None: there is none."""
    if len(key) <= xdb.KV_MAX:
        return key
    cut = key[:xdb.KV_MAX].rstrip(b"\xff")  # it is below `key`, and nothing that can be a key is between them
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None


def _count(x: int | None, what: str) -> int | None:
    if x is not None and (not isinstance(x, int) or isinstance(x, bool)):
        raise TypeError(f"{what} is an int, not {type(x).__name__}")
    return x


def _mib(x: int | None, default: int) -> int:
    """A number of bytes in MiB, rounded up."""
    return default if x is None else (x + (1 << 20) - 1) >> 20


def _check_comparator(comparator: Callable[[bytes, bytes], int] | None, name: bytes | None) -> None:
    if comparator is None and name is None:
        return
    if comparator is None or name is None:
        raise ValueError("comparator and comparator_name go together")
    if not callable(comparator) or not isinstance(name, bytes):
        raise TypeError("comparator is a function and comparator_name is bytes")
    raise NotImplementedError("RemixDB orders keys by their bytes; it takes no other comparator")


_COMPRESSIONS = {None: xdb.COMPRESSION_NONE, "snappy": xdb.COMPRESSION_NONE, "zstd": xdb.COMPRESSION_ZSTD}


class _Refs(threading.local):
    """A thread's ref to the store; it ends with its thread."""

    ref: xdb.XdbRef | None = None


class _Reads:
    """What a store, a part of it and a snapshot have in common: gets and iterators, of keys with a prefix."""

    _prefix: bytes

    def _reader(self) -> xdb.XdbRef:
        raise NotImplementedError

    @overload
    def get(self, key: Bytes, *, verify_checksums: bool | None = ..., fill_cache: bool = ...) -> bytes | None: ...

    @overload
    def get(self, key: Bytes, default: _D, *, verify_checksums: bool | None = ...,
            fill_cache: bool = ...) -> bytes | _D: ...

    def get(self, key: Bytes, default: Any = None, *, verify_checksums: bool | None = None,
            fill_cache: bool = True) -> Any:
        """The key's value, `default` when there is no such key."""
        key = _data(key, "key")
        if self._prefix:
            key = self._prefix + key
        try:
            reader = self._reader()
            value = reader.get(key) if len(key) <= xdb.KV_MAX else None
        except xdb.XdbError as e:
            raise _error(e) from e
        return default if value is None else value

    def _keeps(self, it: _I) -> _I:
        """Called with each new iterator."""
        return it

    def iterator(self, *, reverse: bool = False, start: Bytes | None = None, stop: Bytes | None = None,
                 include_start: bool = True, include_stop: bool = False, prefix: Bytes | None = None,
                 include_key: bool = True, include_value: bool = True, verify_checksums: bool | None = None,
                 fill_cache: bool = True) -> Iterator[Any]:
        """An iterator over the keys from start to stop, or those with the prefix, as they are now."""
        if prefix is not None and (start is not None or stop is not None):
            raise TypeError("a prefix goes without start and stop")
        first = None if start is None else self._prefix + _data(start, "key") + (b"" if include_start else b"\0")
        last = None if stop is None else self._prefix + _data(stop, "key") + (b"\0" if include_stop else b"")
        begin = self._prefix if prefix is None else self._prefix + _data(prefix, "prefix")
        above = first is not None and (first := _bound(first)) is None
        last = None if last is None else _bound(last)
        if above or len(begin) > xdb.KV_MAX:  # there are no such keys
            first, last, begin = None, b"", b""
        return self._keeps(Iterator(self._reader(), len(self._prefix), reverse, first, last, begin or None, include_key,
                                    include_value))

    def raw_iterator(self, *, verify_checksums: bool | None = None, fill_cache: bool = True) -> RawIterator:
        """An iterator with LevelDB's own calls."""
        return self._keeps(RawIterator(self._reader(), self._prefix))

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self.iterator()


class _Writes(_Reads):
    """What a store and a part of it have in common."""

    def _store(self) -> DB:
        raise NotImplementedError

    def put(self, key: Bytes, value: Bytes, *, sync: bool = False) -> None:
        """Sets the key's value; with `sync` it is on disk when the call returns."""
        key, value = _data(key, "key"), _data(value, "value")
        try:
            ref = self._reader()
            ref.put(self._prefix + key if self._prefix else key, value)
            if sync:
                ref.sync()
        except xdb.XdbError as e:
            raise _error(e) from e

    def delete(self, key: Bytes, *, sync: bool = False) -> None:
        """Deletes the key; it need not exist."""
        key = _data(key, "key")
        try:
            ref = self._reader()
            ref.delete(self._prefix + key if self._prefix else key)
            if sync:
                ref.sync()
        except xdb.XdbError as e:
            raise _error(e) from e

    def write_batch(self, *, transaction: bool = False, sync: bool = False) -> WriteBatch:
        """A batch. As a context manager it is written when the block ends; with `transaction`, only when the block ends
        without an exception."""
        return WriteBatch(self._store(), self._prefix, transaction, sync)

    def snapshot(self) -> Snapshot:
        """The store as it is now."""
        return Snapshot(self._reader(), self._prefix)

    def prefixed_db(self, prefix: Bytes) -> PrefixedDB:
        """The part of the store whose keys begin with the prefix; its calls leave the prefix out."""
        return PrefixedDB(self._store(), self._prefix + _data(prefix, "prefix"))


class DB(_Writes):
    """The store in directory `name`. write_buffer_size is the size of a memtable, lru_cache_size that of the block
    cache, in bytes. Any number of threads may use it."""

    _prefix = b""

    def __init__(self, name: Name, *, create_if_missing: bool = False, error_if_exists: bool = False,
                 paranoid_checks: bool | None = None, write_buffer_size: int | None = None,
                 max_open_files: int | None = None, lru_cache_size: int | None = None, block_size: int | None = None,
                 block_restart_interval: int | None = None, max_file_size: int | None = None,
                 compression: str | None = "snappy", bloom_filter_bits: int = 0,
                 comparator: Callable[[bytes, bytes], int] | None = None,
                 comparator_name: bytes | None = None) -> None:
        _check_comparator(comparator, comparator_name)
        if compression not in _COMPRESSIONS:
            raise ValueError("compression is 'snappy', 'zstd' or None")
        for what, number in (("block_size", block_size), ("block_restart_interval", block_restart_interval),
                             ("max_file_size", max_file_size), ("bloom_filter_bits", bloom_filter_bits)):
            _count(number, what)
        files = _count(max_open_files, "max_open_files")
        cache = _mib(_count(lru_cache_size, "lru_cache_size"), 256)
        memtable = min(_mib(_count(write_buffer_size, "write_buffer_size"), 64), 1024)  # LevelDB takes no larger ones
        self._name = name
        try:
            self._db = xdb.Xdb(name, cache, memtable, create=create_if_missing, error_if_exists=error_if_exists,
                               compression=_COMPRESSIONS[compression],
                               max_open_files=1000 if files is None else max(files, 16))
        except xdb.XdbError as e:
            raise _error(e) from e
        self._refs = _Refs()

    def _reader(self) -> xdb.XdbRef:
        ref = self._refs.ref
        if ref is None:
            try:
                ref = self._refs.ref = self._db.ref()
            except xdb.XdbError as e:
                raise _error(e) from e
        return ref

    def _store(self) -> DB:
        return self

    @property
    def name(self) -> Name:
        """The directory, as it was given."""
        return self._name

    @property
    def closed(self) -> bool:
        return self._db.closed

    def close(self) -> None:
        """Closes the store. Closing twice does nothing."""
        try:
            self._db.close()
        except xdb.XdbError as e:
            raise _error(e) from e

    def __enter__(self) -> DB:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close()

    def get_property(self, name: bytes) -> bytes | None:
        """leveldb.stats: the store's figures as JSON. leveldb.sstables: the files of tables and the packs, a line each
        with its size.
        leveldb.approximate-memory-usage: bytes. leveldb.num-files-at-level0: the number of tables; at other levels it
        is 0. None for another name."""
        if not isinstance(name, bytes):
            raise TypeError(f"a property's name is bytes, not {type(name).__name__}")
        try:
            figures = self._db.stats()
        except xdb.XdbError as e:
            raise _error(e) from e
        level = name.removeprefix(b"leveldb.num-files-at-level")
        if level != name:
            if level not in (b"0", b"1", b"2", b"3", b"4", b"5", b"6"):
                return None
            return b"%d" % (figures["tables"] if level == b"0" else 0)
        if name == b"leveldb.stats":
            return json.dumps(figures, indent=1).encode()
        if name == b"leveldb.sstables":
            return b"".join(b"%s %d\n" % (os.fsencode(table.name), table.stat().st_size) for table in self._tables())
        if name == b"leveldb.approximate-memory-usage":
            return b"%d" % sum(map(int, figures["memory"].values()))
        return None

    def _tables(self) -> list[os.DirEntry[str]]:
        with os.scandir(os.fsdecode(self._name)) as entries:
            tables = [entry for entry in entries if entry.name.endswith((".sst", ".pack"))]
        return sorted(tables, key=lambda entry: entry.name)

    def compact_range(self, *, start: Bytes | None = None, stop: Bytes | None = None) -> None:
        """Brings the keys from start to stop into the fewest tables, and waits for it."""
        first = None if start is None else _bound(_data(start, "key"))
        last = None if stop is None else _bound(_data(stop, "key"))
        try:
            reader = self._reader()
            if start is None or first is not None:
                reader.compact_range(first, last)
        except xdb.XdbError as e:
            raise _error(e) from e

    def approximate_size(self, start: Bytes, stop: Bytes) -> int:
        """About how many bytes the keys and values from start to stop have."""
        return self.approximate_sizes((start, stop))[0]

    def approximate_sizes(self, *ranges: tuple[Bytes, Bytes]) -> list[int]:
        """A list of the sizes of (start, stop) ranges."""
        checked = []
        for one in ranges:
            if not isinstance(one, tuple) or len(one) != 2:
                raise TypeError("a range is a tuple (start, stop)")
            checked.append((_bound(_data(one[0], "key")), _bound(_data(one[1], "key"))))
        try:
            ref = self._reader()
            return [0 if first is None else ref.count(first, last)[1] for first, last in checked]
        except xdb.XdbError as e:
            raise _error(e) from e


class PrefixedDB(_Writes):
    """The part of a store whose keys begin with a prefix; made by prefixed_db()."""

    def __init__(self, db: DB, prefix: bytes) -> None:
        self.db = db
        self.prefix = self._prefix = prefix

    def _reader(self) -> xdb.XdbRef:
        return self.db._reader()

    def _store(self) -> DB:
        return self.db


class Snapshot(_Reads):
    """The store at one moment; made by snapshot(). Any number of threads may use it."""

    # Made by the first call that needs them.
    _refs: _Refs | None = None
    _iterators: weakref.WeakSet[Iterator[Any] | RawIterator] | None = None

    def __init__(self, ref: xdb.XdbRef, prefix: bytes) -> None:
        self._prefix = prefix
        self._snapshot: xdb.XdbSnapshot | None
        try:
            self._snapshot = ref.snapshot()
        except xdb.XdbError as e:
            raise _error(e) from e

    def _reader(self) -> xdb.XdbRef:
        snapshot = self._snapshot
        if snapshot is None:
            raise RuntimeError("the snapshot is closed")
        refs: _Refs = self._refs or self.__dict__.setdefault("_refs", _Refs())  # one for all threads
        ref = refs.ref
        if ref is None:
            try:
                ref = refs.ref = snapshot.ref()
            except xdb.XdbError as e:
                raise _error(e) from e
        return ref

    def _keeps(self, it: _I) -> _I:
        iterators = self._iterators
        if iterators is None:
            iterators = self.__dict__.setdefault("_iterators", weakref.WeakSet())
        iterators.add(it)
        return it

    def close(self) -> None:
        """Gives up what it keeps, when its last iterator is gone. Closing twice does nothing."""
        snapshot, self._snapshot = self._snapshot, None
        self.__dict__.pop("_refs", None)
        if snapshot is not None and all(it._it.closed for it in self._iterators or ()):
            snapshot.close()  # else it goes with the last iterator, which refers to it

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close()


class WriteBatch:
    """Puts and deletes that are written together; made by write_batch()."""

    def __init__(self, db: DB, prefix: bytes, transaction: bool, sync: bool) -> None:
        self._db, self._prefix, self._transaction, self._sync = db, prefix, transaction, sync
        self._batch = xdb.XdbBatch()

    def put(self, key: Bytes, value: Bytes) -> None:
        """Sets the key's value when the batch is written."""
        key, value = _data(key, "key"), _data(value, "value")
        self._open()
        try:
            self._batch.put(self._prefix + key if self._prefix else key, value)
        except xdb.XdbError as e:
            raise _error(e) from e

    def delete(self, key: Bytes) -> None:
        """Deletes the key when the batch is written."""
        key = _data(key, "key")
        self._open()
        try:
            self._batch.delete(self._prefix + key)
        except xdb.XdbError as e:
            raise _error(e) from e

    def _open(self) -> None:
        if self._db._db.closed:
            raise RuntimeError("the store is closed")

    def clear(self) -> None:
        """Empties it."""
        self._batch.clear()

    def append(self, source: WriteBatch) -> None:
        """Adds the changes of another batch behind those of this one."""
        if not isinstance(source, WriteBatch):
            raise TypeError(f"a WriteBatch is appended, not {type(source).__name__}")
        self._batch.append(source._batch)

    def approximate_size(self) -> int:
        """About how many bytes the changes take in the log."""
        return self._batch.size()

    def write(self) -> None:
        """Writes all of it or nothing."""
        try:
            ref = self._db._reader()
            ref.write(self._batch)
            if self._sync:
                ref.sync()
        except xdb.XdbError as e:
            raise _error(e) from e

    def __enter__(self) -> WriteBatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        if kind is None or not self._transaction:
            self.write()
        self.clear()


class Iterator(_Iterator[_R], Generic[_R]):
    """An iterator; made by iterator(). It stands between two records: next() gives the one behind, prev() the one
    before, and passes it. It shows the store as it was when the iterator was made."""

    def __init__(self, ref: xdb.XdbRef, cut: int, reverse: bool, start: bytes | None, stop: bytes | None,
                 prefix: bytes | None, include_key: bool, include_value: bool) -> None:
        self._cut = cut if include_key else 0  # length of the prefix that keys are given without
        self._pairs, self._none = include_key and include_value, not include_key and not include_value
        self._all = cut
        self._prefix = prefix or b""
        try:
            self._it: xdb.XdbIter[Any] = ref.iter(
                start=start, stop=stop, prefix=prefix, hold=True, keys_only=not include_value,  # type: ignore
                values_only=include_value and not include_key)
            self._reverse = reverse
            self._ahead = True  # xdb's iterator stands on the record behind the gap, not on the one before it
            self.seek_to_stop() if reverse else self.seek_to_start()
            self._back = reversed(self._it)
        except xdb.XdbError as e:
            raise _error(e) from e

    def __iter__(self) -> Iterator[_R]:
        return self

    def __next__(self) -> _R:
        return self._before() if self._reverse else self._behind()

    def next(self) -> _R:
        return self.__next__()

    def prev(self) -> _R:
        """The record before, in the iterator's direction. StopIteration at the beginning."""
        return self._behind() if self._reverse else self._before()

    def _given(self, record: Any) -> Any:
        if self._none:
            return None
        if not self._cut:
            return record
        return (record[0][self._cut:], record[1]) if self._pairs else record[self._cut:]

    def _behind(self) -> _R:
        it = self._it
        try:
            if not self._ahead:
                it.skip1() if it.valid() else it.seek()
                self._ahead = True
            record = next(it)
        except xdb.XdbError as e:
            raise _error(e) from e
        given: _R = self._given(record) if self._cut or self._none else record
        return given

    def _before(self) -> _R:
        it = self._it
        try:
            if self._ahead:
                it.prev() if it.valid() else it.seek_last()
                self._ahead = False
            record = next(self._back)
        except xdb.XdbError as e:
            raise _error(e) from e
        given: _R = self._given(record) if self._cut or self._none else record
        return given

    def seek_to_start(self) -> None:
        """Goes before the first key of the range."""
        self._seek(lambda it: it.seek(), True)

    def seek_to_stop(self) -> None:
        """Goes behind the last key of the range."""
        self._seek(lambda it: it.seek_last(), False)

    def seek(self, target: Bytes) -> None:
        """Goes before the first key that is not smaller."""
        key = _bound(self._prefix[:self._all] + _data(target, "key"))
        if key is None:
            self.seek_to_stop()
        else:
            self._seek(lambda it: it.seek(key), True)

    def _seek(self, move: Callable[[xdb.XdbIter[Any]], None], ahead: bool) -> None:
        try:
            move(self._it)
        except xdb.XdbError as e:
            raise _error(e) from e
        self._ahead = ahead

    def close(self) -> None:
        """Gives up what it keeps. Closing twice does nothing."""
        self._it.close()

    def __enter__(self) -> Iterator[_R]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close()


class RawIterator:
    """An iterator with LevelDB's own calls; made by raw_iterator(). It stands on a record, or on none. It shows the
    store as it was when the iterator was made."""

    def __init__(self, ref: xdb.XdbRef, prefix: bytes) -> None:
        self._prefix = prefix
        try:
            self._it = ref.iter(prefix=prefix or None, hold=True)
        except xdb.XdbError as e:
            raise _error(e) from e

    def _call(self, call: Callable[[], _D]) -> _D:
        try:
            return call()
        except xdb.XdbError as e:
            raise _error(e) from e

    def valid(self) -> bool:
        """Whether it stands on a record."""
        return self._call(self._it.valid)

    def seek_to_first(self) -> None:
        """Goes to the first record."""
        self._call(self._it.seek)

    def seek_to_last(self) -> None:
        """Goes to the last record."""
        self._call(self._it.seek_last)

    def seek(self, target: Bytes) -> None:
        """Goes to the first key that is not smaller."""
        key = _bound(self._prefix + _data(target, "key"))
        if key is not None:
            self._call(lambda: self._it.seek(key))
        else:
            self.seek_to_last()
            if self.valid():
                self.next()

    def next(self) -> None:
        """Goes to the next record. IteratorInvalidError when it stands on none."""
        self._placed()
        self._call(self._it.skip1)

    def prev(self) -> None:
        """Goes to the record before. IteratorInvalidError when it stands on none."""
        self._placed()
        self._call(self._it.prev)

    def _placed(self) -> None:
        if not self.valid():
            raise IteratorInvalidError("the iterator stands on no record")

    def item(self) -> tuple[bytes, bytes]:
        """The key and the value. IteratorInvalidError when it stands on no record."""
        pair = self._call(self._it.peek)
        if pair is None:
            raise IteratorInvalidError("the iterator stands on no record")
        return pair[0][len(self._prefix):], pair[1]

    def key(self) -> bytes:
        """The key. IteratorInvalidError when it stands on no record."""
        key = self._call(self._it.key)
        if key is None:
            raise IteratorInvalidError("the iterator stands on no record")
        return key[len(self._prefix):]

    def value(self) -> bytes:
        """The value. IteratorInvalidError when it stands on no record."""
        value = self._call(self._it.value)
        if value is None:
            raise IteratorInvalidError("the iterator stands on no record")
        return value

    def close(self) -> None:
        """Gives up what it keeps. Closing twice does nothing."""
        self._it.close()

    def __enter__(self) -> RawIterator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        self.close()


def repair_db(name: Name, **options: object) -> None:
    """Rebuilds a damaged store from its readable part. The options of DB are accepted and have no effect."""
    try:
        xdb.repair(name)
    except xdb.XdbError as e:
        raise _error(e) from e


def destroy_db(name: Name) -> None:
    """Removes the store, and its directory when nothing else is in it."""
    try:
        xdb.destroy(name)
    except xdb.XdbError as e:
        raise _error(e) from e

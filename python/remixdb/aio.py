# SPDX-License-Identifier: Apache-2.0
"""RemixDB for asyncio.

    from remixdb import aio

    async with await aio.open("/tmp/example") as db:
        await db.put("apple", "green")
        await db.get("apple")                          # b"green"
        await asyncio.gather(*map(db.get, keys))       # all reads are at the disk together
        async for key, value in db.iter(prefix="a"):
            ...
        async with db.batch() as batch:                # all of it or nothing
            batch.put("pear", "green")
        users = await db.space("users")                # a key space of its own
        async with db.transaction() as t:              # one step in all spaces
            name = await t.ref(users).get("7")
            await t.put("last", name or "")
        await db.sync()

The event loop never waits for the disk. With io_uring the library has all gets under way together, and the event loop
watches one descriptor. Without it gets run in threads, and a get of a store or a space waits while a merge's function
runs in it. Writes that tasks make at the same time go into one batch, which a thread writes; the writes of a task keep
their order. All other calls run in threads. Every call raises xdb.XdbError as its namesake in xdb does.

An object belongs to the event loop that runs when it is made. A task that is cancelled in a write leaves it open
whether the write is done. A close that is cancelled goes on; another close waits for its end.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar, Union, overload

import xdb
from xdb import Data, Expires

__all__ = ["open", "Db", "Space", "Snapshot", "Batch", "Ingest", "Transaction", "TransactionRef", "Savepoint"]

_T = TypeVar("_T")
_THREADS = 4  # of a store, for calls that wait
_PAGE_FIRST, _PAGE_MAX = 16, 1024  # records that an iterator's thread brings at a time
_PAGE_BYTES = 1 << 20  # of these records, about; a larger record has a page alone
_COPY_BYTES = 1 << 16  # of the records that the library copies by one call; a larger record comes alone
_INGEST_PAGE = 1024  # records that an ingest's thread takes at a time


def _bytes(x: Data, what: str) -> bytes:
    """A copy, because the caller may change x before the call has read it."""
    if type(x) is bytes:
        return x
    if isinstance(x, str):
        return x.encode("utf-8")
    if isinstance(x, (bytes, bytearray, memoryview)):
        return bytes(x)
    raise TypeError(f"a {what} is bytes, bytearray, memoryview or str, not {type(x).__name__}")


class _Threads(ThreadPoolExecutor):
    """The threads of a store. A call after their end raises the error of a store that is closed."""

    ended = False

    def __init__(self, size: int) -> None:
        super().__init__(size, thread_name_prefix="xdb")
        self.gets: set[_Gets] = set()  # of the store and of all that was made of it; they end before it

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        if self.ended:
            raise xdb.XdbError(xdb.Status.INVALID, "the store is closed")
        return super().submit(fn, *args, **kwargs)

    def end(self) -> None:
        self.ended = True
        self.shutdown(wait=False)


class _Gets:
    """The gets of one ref. Those that tasks begin in one turn of the event loop start together."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: _Threads, ref: xdb.XdbRef, depth: int) -> None:
        self._loop, self._pool, self._ref = loop, pool, ref
        self._gets = ref.gets(depth)
        self._room = asyncio.Semaphore(depth)  # a get has its place until the library has ended it
        self._under_way: set[asyncio.Future[bytes | None]] = set()  # also of tasks that do not wait any more
        self._due = False  # whether a poll comes in this turn
        self._fd: int | None = self._gets.fileno()  # the loop watches it; None: these gets have ended
        loop.add_reader(self._fd, self._poll)
        pool.gets.add(self)

    async def get(self, key: bytes) -> bytes | None:
        await self._room.acquire()
        done: asyncio.Future[bytes | None] = self._loop.create_future()
        try:
            if self._fd is None:
                raise self._ended()
            self._gets.begin(key, done)
        except BaseException:
            self._room.release()
            raise
        self._under_way.add(done)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._poll)
        return await done

    def _poll(self) -> None:
        self._due = False
        if self._fd is None or self._gets.closed:
            return
        for done, value in self._gets.poll():
            self._under_way.discard(done)
            self._end(done, value)

    def _end(self, done: asyncio.Future[bytes | None], value: bytes | None | xdb.XdbError) -> None:
        self._room.release()
        if done.cancelled():
            return
        if isinstance(value, xdb.XdbError):
            done.set_exception(value)
        else:
            done.set_result(value)

    def end(self) -> None:
        """Ends the gets under way, and takes no others. `close` follows, in a thread: it waits for the disk."""
        if self._fd is None:
            return
        self._loop.remove_reader(self._fd)
        self._fd = None
        self._pool.gets.discard(self)
        while self._under_way:
            self._end(self._under_way.pop(), self._ended())

    def _ended(self) -> xdb.XdbError:
        return xdb.XdbError(xdb.Status.INVALID, "the object of gets is closed")

    def close(self) -> None:
        self._gets.close()
        self._ref.close()


class _Within:
    """A key space as a snapshot has it. It ends with the snapshot."""

    def __init__(self, snapshot: xdb.XdbSnapshot, space: xdb.XdbSpace) -> None:
        self._snapshot, self._space = snapshot, space
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed or self._snapshot.closed

    def ref(self) -> xdb.XdbRef:
        return self._snapshot.ref(self._space)

    def close(self) -> None:
        self._closed = True


_Source = Union[xdb.Xdb, xdb.XdbSnapshot, xdb.XdbSpace, _Within]


def _ends(start: Data | None, stop: Data | None) -> tuple[bytes | None, bytes | None]:
    return (None if start is None else _bytes(start, "key")), (None if stop is None else _bytes(stop, "key"))


def _page(it: xdb.XdbIter[Any], size: int) -> list[Any]:
    """The next records of an iterator: at most `size`, and about _PAGE_BYTES at most."""
    page: list[Any] = []
    room = _PAGE_BYTES
    while room > 0 and len(page) < size:
        if (record := next(it, None)) is None:
            break
        page.append(record)
        page += itertools.islice(it, min(it._left(), size - len(page)))  # what was copied with it
        room -= max(_COPY_BYTES, len(record) if isinstance(record, bytes) else sum(map(len, record)))
    return page


class _Records:
    """What has records to read."""

    _loop: asyncio.AbstractEventLoop
    _pool: _Threads

    async def _run(self, call: Callable[..., _T], *args: Any) -> _T:
        raise NotImplementedError

    async def _with_ref(self, call: Callable[[xdb.XdbRef], _T]) -> _T:
        """Calls it in a thread."""
        raise NotImplementedError

    def _readable(self) -> xdb.Xdb | xdb.XdbSnapshot | xdb.XdbSpace | xdb.XdbRef:
        raise NotImplementedError

    async def probe(self, key: Data) -> bool:
        """Whether the key exists."""
        name = _bytes(key, "key")
        return await self._with_ref(lambda ref: ref.probe(name))

    async def multi_get(self, keys: Iterable[Data]) -> list[bytes | None]:
        """A list of the values of many keys at one moment."""
        names = [_bytes(key, "key") for key in keys]
        return await self._with_ref(lambda ref: ref.multi_get(names))

    async def get_part(self, key: Data, start: int, size: int) -> bytes | None:
        """At most `size` bytes of the key's value from byte `start` on, None when there is no such key."""
        name = _bytes(key, "key")
        return await self._with_ref(lambda ref: ref.get_part(name, start, size))

    async def getv(self, key: Data) -> tuple[bytes, int] | None:
        """The key's value and its version, None when there is no such key."""
        name = _bytes(key, "key")
        return await self._with_ref(lambda ref: ref.getv(name))

    async def expiry(self, key: Data) -> int | None:
        """The time at which the key expires, in milliseconds since 1970; 0 is never. None when there is no such key."""
        name = _bytes(key, "key")
        return await self._with_ref(lambda ref: ref.expiry(name))

    async def count(self, start: Data | None = None, stop: Data | None = None) -> tuple[int, int]:
        """Estimates how many keys start <= key < stop there are, and the bytes of their keys and values."""
        ends = _ends(start, stop)
        return await self._with_ref(lambda ref: ref.count(*ends))

    @overload
    def iter(self, *, start: Data | None = ..., stop: Data | None = ..., prefix: Data | None = ...,
             reverse: bool = ..., keys_only: Literal[True]) -> AsyncIterator[bytes]: ...

    @overload
    def iter(self, *, start: Data | None = ..., stop: Data | None = ..., prefix: Data | None = ...,
             reverse: bool = ..., keys_only: Literal[False] = ...) -> AsyncIterator[tuple[bytes, bytes]]: ...

    def iter(self, *, start: Data | None = None, stop: Data | None = None, prefix: Data | None = None,
             reverse: bool = False, keys_only: bool = False) -> AsyncIterator[Any]:
        """The (key, value) pairs, or the keys, of a range in order, as they are when the iteration begins."""
        return self._iter(dict(start=start, stop=stop, prefix=prefix, reverse=reverse, keys_only=keys_only))

    async def _iter(self, options: dict[str, Any]) -> AsyncIterator[Any]:
        it = await self._run(lambda: self._readable().iter(**options))
        try:
            size = _PAGE_FIRST
            while page := await self._run(_page, it, size):
                for record in page:
                    yield record
                size = min(size * 4, _PAGE_MAX)
        finally:
            if not it.closed:  # a thread may be reading: the loop does not wait for it
                await asyncio.shield(self._loop.run_in_executor(self._pool, it.close))


class _Changes(_Records):
    """What can be written to, too. In a transaction the writes come at the commit."""

    async def put_expire(self, key: Data, value: Data, expires_ms: int) -> None:
        """Sets the key's value until a time, in milliseconds since 1970."""
        name, copy = _bytes(key, "key"), _bytes(value, "value")
        await self._with_ref(lambda ref: ref.put_expire(name, copy, expires_ms))

    async def del_range(self, start: Data | None = None, stop: Data | None = None) -> None:
        """Deletes all keys start <= key < stop at one moment; None is an open end."""
        ends = _ends(start, stop)
        await self._with_ref(lambda ref: ref.del_range(*ends))

    async def put_if(self, key: Data, value: Data, version: int) -> bool:
        """Sets the key's value when the key has this version. False when it has another one."""
        name, copy = _bytes(key, "key"), _bytes(value, "value")
        return await self._with_ref(lambda ref: ref.put_if(name, copy, version))

    async def del_if(self, key: Data, version: int) -> bool:
        """Deletes the key when it has this version. False when it has another one."""
        name = _bytes(key, "key")
        return await self._with_ref(lambda ref: ref.del_if(name, version))


class _Reads(_Records):
    """What a store, a space and a snapshot have in common. `source` is closed with it."""

    def __init__(self, source: _Source, pool: _Threads, depth: int, ring: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._pool, self._depth, self._ring = source, pool, depth, ring
        self._ref = source.ref()
        self._closing: asyncio.Task[None] | None = None
        # Without a ring, a poll waits for the disk: gets run in threads then.
        self._gets = _Gets(self._loop, pool, source.ref(), depth) if ring else None

    def _readable(self) -> xdb.Xdb | xdb.XdbSnapshot | xdb.XdbSpace | xdb.XdbRef:
        return self._source if not isinstance(self._source, _Within) else self._ref

    async def _run(self, call: Callable[..., _T], *args: Any) -> _T:
        return await self._loop.run_in_executor(self._pool, call, *args)

    async def _with_ref(self, call: Callable[[xdb.XdbRef], _T]) -> _T:
        return await self._run(call, self._ref)

    async def get(self, key: Data) -> bytes | None:
        """The key's value, None when there is no such key."""
        name = _bytes(key, "key")
        if self._gets is None:
            return await self._run(self._ref.get, name)
        return await self._gets.get(name)

    @property
    def closed(self) -> bool:
        return self._source.closed

    def _end_gets(self) -> None:
        """Ends the gets of this object, and of all that end with it. The loop must not watch a descriptor that the
        library has closed: the next one to be opened may get its number."""
        if self._gets is not None:
            self._gets.end()

    async def close(self) -> None:
        """Closes it. Calls under way raise XdbError, or asyncio.CancelledError. Closing twice does nothing."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        closing = self._closing
        try:
            await asyncio.shield(closing)  # it goes on when this task is cancelled
        finally:
            if closing.done():
                self._closing = None

    async def _close(self) -> None:
        self._end_gets()
        if not self._source.closed:
            await self._run(self._close_in_thread)

    def _close_in_thread(self) -> None:
        """Waits for the disk, and for calls of other threads."""
        if self._gets is not None:
            self._gets.close()
        self._source.close()  # with all that was made of it
        self._ref.close()


_ASelf = TypeVar("_ASelf", bound="_Context")


class _Context(_Reads):
    async def __aenter__(self: _ASelf) -> _ASelf:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        await self.close()


class Snapshot(_Context):
    """The store at one moment; made by Db.snapshot(). With a space it shows that space."""

    def __init__(self, source: xdb.XdbSnapshot | _Within, pool: _Threads, depth: int, ring: bool) -> None:
        super().__init__(source, pool, depth, ring)
        self._spaces: list[Snapshot] = []  # they end with the snapshot

    async def space(self, space: Space) -> Snapshot:
        """The key space at that moment. It ends with the snapshot."""
        source = self._source
        if not isinstance(source, xdb.XdbSnapshot):
            raise TypeError("a snapshot of one space has no others")
        self._spaces = [other for other in self._spaces if not other.closed]
        within = Snapshot(_Within(source, space._space), self._pool, self._depth, self._ring)
        self._spaces.append(within)
        return within

    def _end_gets(self) -> None:
        super()._end_gets()
        for within in self._spaces:
            within._end_gets()


class Batch:
    """Puts and deletes that are written as one; made by Db.batch(). It is written when its block ends, unless the block
    ends with an exception."""

    def __init__(self, db: _Writes) -> None:
        self._db, self._batch = db, xdb.XdbBatch()
        self.put, self.delete, self.update, self.clear = (self._batch.put, self._batch.delete, self._batch.update,
                                                          self._batch.clear)
        self.put_expire, self.del_range = self._batch.put_expire, self._batch.del_range

    def space(self, space: Space | None) -> None:
        """The operations that are added next go to this key space, or to the unnamed one for None. Before the first
        such call they go where the batch was made."""
        self._batch.space(None if space is None else space._space)

    def __len__(self) -> int:
        return len(self._batch)

    async def __aenter__(self) -> Batch:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        try:
            if kind is None:
                await self._db.write(self._batch)
        finally:
            self._batch.close()


class _InTransaction(_Changes):
    """Reads and writes of a transaction, in one key space."""

    def __init__(self, pool: _Threads) -> None:
        self._loop, self._pool = asyncio.get_running_loop(), pool

    async def _run(self, call: Callable[..., _T], *args: Any) -> _T:
        return await self._loop.run_in_executor(self._pool, call, *args)

    def _readable(self) -> xdb.XdbRef:
        """Runs in a thread."""
        raise NotImplementedError

    async def _with_ref(self, call: Callable[[xdb.XdbRef], _T]) -> _T:
        return await self._run(lambda: call(self._readable()))

    async def get(self, key: Data) -> bytes | None:
        """The key's value, None when there is no such key."""
        name = _bytes(key, "key")
        return await self._with_ref(lambda ref: ref.get(name))

    async def put(self, key: Data, value: Data, *, expires: Expires | None = None) -> None:
        """Sets the key's value at the commit, as XdbRef.put."""
        name, copy = _bytes(key, "key"), _bytes(value, "value")
        await self._with_ref(lambda ref: ref.put(name, copy, expires=expires))

    async def delete(self, key: Data) -> None:
        """Deletes the key at the commit."""
        name = _bytes(key, "key")
        await self._with_ref(lambda ref: ref.delete(name))


class TransactionRef(_InTransaction):
    """A transaction's reads and writes in one key space; made by Transaction.ref() and Transaction.untracked(). It
    ends with the transaction."""

    def __init__(self, pool: _Threads, make: Callable[[], xdb.XdbRef]) -> None:
        super().__init__(pool)
        self._make = make
        self._lock = threading.Lock()
        self._ref: xdb.XdbRef | None = None

    def _readable(self) -> xdb.XdbRef:
        with self._lock:
            if self._ref is None:
                self._ref = self._make()
            return self._ref


class Savepoint:
    """A state of a transaction's writes; made by Transaction.savepoint(). Its block rolls back to this state when it
    ends with an exception."""

    def __init__(self, transaction: Transaction) -> None:
        self._of = transaction
        self._point: xdb.XdbSavepoint | None = None

    async def __aenter__(self) -> Savepoint:
        self._point = await self._of._run(self._of._open().savepoint)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        if kind is not None and not self._of._open().closed:
            await self.rollback()

    async def rollback(self) -> None:
        """Takes back the writes since then."""
        if self._point is None:
            raise RuntimeError("a savepoint begins with its block: async with transaction.savepoint()")
        await self._of._run(self._point.rollback)


class Transaction(_InTransaction):
    """Reads and writes that are one step, in all key spaces; made by Db.transaction(). It begins with its block,
    commits when the block ends, and aborts when the block ends with an exception. The commit raises XdbError with
    ABORTED when others came between."""

    def __init__(self, db: Db) -> None:
        super().__init__(db._pool)
        self._begin = db._store.transaction
        self._transaction: xdb.XdbTransaction | None = None

    def _open(self) -> xdb.XdbTransaction:
        if self._transaction is None:
            raise RuntimeError("a transaction begins with its block: async with db.transaction() as t")
        return self._transaction

    def _readable(self) -> xdb.XdbRef:
        return self._open()

    async def __aenter__(self) -> Transaction:
        if self._transaction is not None:
            raise RuntimeError("a transaction has one block")
        self._transaction = await self._run(self._begin)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        if kind is None and not self._open().closed:
            await self.commit()
        else:
            await self.abort()

    def ref(self, space: Space | None = None) -> TransactionRef:
        """The transaction in a key space, or in the unnamed one. Does not wait."""
        transaction, within = self._open(), None if space is None else space._space
        return TransactionRef(self._pool, lambda: transaction.ref(within))

    def untracked(self, space: Space | None = None) -> TransactionRef:
        """The same, and its reads cause no conflicts."""
        transaction, within = self._open(), None if space is None else space._space
        return TransactionRef(self._pool, lambda: transaction.untracked(within))

    def savepoint(self) -> Savepoint:
        """A Savepoint; it begins with its block."""
        return Savepoint(self)

    async def commit(self) -> None:
        """Writes it, and ends it in any case."""
        await self._run(self._open().commit)

    async def abort(self) -> None:
        """Ends it, and forgets its writes."""
        if not self._open().closed:
            await self._run(self._open().abort)


class _Change(NamedTuple):
    """A put, or a delete."""

    key: bytes
    value: bytes | None  # None: a delete
    expires: Expires | None

    def make(self, to: xdb.XdbRef | xdb.XdbBatch) -> None:
        if self.value is None:
            to.delete(self.key)
        else:
            to.put(self.key, self.value, expires=self.expires)


class Ingest:
    """Sorted records on their way into tables; made by Db.ingest() and Space.ingest(). Nobody sees them before its
    block ends; all of them are there then. After an exception none is."""

    def __init__(self, db: _Writes) -> None:
        self._db = db
        self._ingest: xdb.XdbIngest | None = None

    def _open(self) -> xdb.XdbIngest:
        if self._ingest is None:
            raise xdb.XdbError(xdb.Status.INVALID, "the ingest has not begun: use async with")
        return self._ingest

    async def __aenter__(self) -> Ingest:
        self._ingest = await self._db._with_ref(lambda ref: ref.ingest())
        return self

    async def put(self, key: Data, value: Data) -> None:
        """Adds a record. Each key is greater than the one before."""
        await self._db._run(self._open().put, _bytes(key, "key"), _bytes(value, "value"))

    async def update(self, items: Mapping[Data, Data] | Iterable[tuple[Data, Data]]) -> None:
        """Adds all items of a dict, or of (key, value) pairs, in their order. Much faster than single puts."""
        pairs = iter(items.items() if isinstance(items, Mapping) else items)
        while page := [(_bytes(key, "key"), _bytes(value, "value"))
                       for key, value in itertools.islice(pairs, _INGEST_PAGE)]:
            await self._db._run(self._open().update, page)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        ingest = self._open()
        await self._db._run(ingest.commit if kind is None else ingest.abort)


class _Writes(_Context, _Changes):
    """What a store and a key space have in common."""

    _source: xdb.Xdb | xdb.XdbSpace

    def __init__(self, source: xdb.Xdb | xdb.XdbSpace, pool: _Threads, depth: int, ring: bool) -> None:
        super().__init__(source, pool, depth, ring)
        self._writer = source.ref()  # the thread that writes the batches has it alone
        self._pending: list[tuple[_Change, asyncio.Future[None]]] = []  # the writes that no batch has yet
        self._writing: asyncio.Task[None] | None = None

    async def put(self, key: Data, value: Data, *, expires: Expires | None = None) -> None:
        """Sets the key's value. It is on disk after sync. `expires` is that of XdbRef.put."""
        await self._change(_Change(_bytes(key, "key"), _bytes(value, "value"), expires))

    async def delete(self, key: Data) -> None:
        """Deletes the key; it need not exist."""
        await self._change(_Change(_bytes(key, "key"), None, None))

    def _change(self, change: _Change) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        self._pending.append((change, done))
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_pending())
        return done

    async def _write_pending(self) -> None:
        try:
            while self._pending:
                changes, self._pending = self._pending, []
                errors: list[BaseException | None] = [asyncio.CancelledError()] * len(changes)
                try:
                    errors = await self._run(self._write_changes, [change for change, _ in changes])
                except Exception as e:
                    errors = [e] * len(changes)
                finally:
                    for (_, done), error in zip(changes, errors):
                        if isinstance(error, asyncio.CancelledError):
                            done.cancel()
                        elif not done.done():
                            done.set_result(None) if error is None else done.set_exception(error)
        finally:
            self._writing = None
            for _, done in self._pending:  # this task was cancelled
                done.cancel()
            self._pending.clear()

    def _write_changes(self, changes: list[_Change]) -> list[BaseException | None]:
        """Writes them as one batch. When that fails, one by one, because the error may be that of one of them alone.
        Returns the error of each, None where there is none."""
        try:
            with xdb.XdbBatch() as batch:
                for change in changes:
                    change.make(batch)
                self._writer.write(batch)
            return [None] * len(changes)
        except Exception:
            return [self._write_one(change) for change in changes]

    def _write_one(self, change: _Change) -> BaseException | None:
        try:
            change.make(self._writer)
        except Exception as e:
            return e
        return None

    def batch(self) -> Batch:
        """A new Batch."""
        return Batch(self)

    async def write(self, batch: xdb.XdbBatch) -> None:
        """Writes all of the batch or none of it."""
        await self._run(self._ref.write, batch)

    async def merge(self, key: Data, fn: Callable[[bytes | None], Any]) -> bytes | None:
        """As XdbRef.merge; the function runs in a thread."""
        return await self._run(self._ref.merge, _bytes(key, "key"), fn)

    async def compact_range(self, start: Data | None = None, stop: Data | None = None) -> None:
        """Compacts the parts of the store that may hold keys start <= key < stop, and waits for it."""
        ends = _ends(start, stop)
        await self._with_ref(lambda ref: ref.compact_range(*ends))

    def ingest(self) -> Ingest:
        """A new Ingest; it begins with its block."""
        return Ingest(self)

    async def close(self) -> None:
        """Closes it when the writes under way have ended. Other calls under way raise XdbError, or
        asyncio.CancelledError. Closing twice does nothing."""
        await super().close()

    async def _close(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await super()._close()

    def _close_in_thread(self) -> None:
        try:
            super()._close_in_thread()
        finally:
            self._writer.close()


class Space(_Writes):
    """A named key space; made by Db.space()."""

    def __init__(self, space: xdb.XdbSpace, pool: _Threads, depth: int, ring: bool) -> None:
        super().__init__(space, pool, depth, ring)
        self._space = space

    @property
    def name(self) -> str:
        return self._space.name


class Db(_Writes):
    """A store for asyncio. It owns `store`, and closes it. At most `depth` gets are under way; others wait."""

    def __init__(self, store: xdb.Xdb, depth: int = 256) -> None:
        ring = store.stats()["io"] == "uring"
        super().__init__(store, _Threads(_THREADS), depth, ring)
        self._store = store

    async def space(self, name: str | bytes, create: bool = True) -> Space:
        """The key space of this name."""
        return Space(await self._run(self._store.space, name, create), self._pool, self._depth, self._ring)

    async def spaces(self) -> list[str]:
        """The names of all key spaces."""
        return await self._run(self._store.spaces)

    async def drop_space(self, name: str | bytes) -> None:
        """Drops a key space with all its keys. Calls on it raise XdbError with GONE."""
        await self._run(self._store.drop_space, name)

    def transaction(self) -> Transaction:
        """A new Transaction; it begins with its block."""
        return Transaction(self)

    async def transact(self, fn: Callable[[xdb.XdbTransaction], _T], tries: int = 100) -> _T:
        """As Xdb.transact; the function runs in a thread."""
        return await self._run(self._store.transact, fn, tries)

    async def sync(self) -> None:
        """When it returns, all writes that have ended are on disk."""
        await self._run(self._ref.sync)

    async def flush(self) -> None:
        """Brings the records in memory into tables, and waits for it."""
        await self._run(self._ref.flush)

    async def compact(self) -> None:
        """Brings all earlier writes into the fewest tables, and waits for it."""
        await self._run(self._ref.compact)

    async def snapshot(self) -> Snapshot:
        """The store as it is now."""
        return Snapshot(await self._run(self._ref.snapshot), self._pool, self._depth, self._ring)

    async def stats(self) -> dict[str, Any]:
        """The store's figures, as a dict."""
        return await self._run(self._store.stats)

    def _end_gets(self) -> None:
        for gets in list(self._pool.gets):
            gets.end()

    async def _close(self) -> None:
        try:
            await super()._close()
        finally:
            self._end_gets()  # of what was made meanwhile
            self._pool.end()


async def open(dirname: Any, *args: Any, depth: int = 256, **options: Any) -> Db:  # noqa: A001
    """Opens a store in a thread; the arguments are those of xdb.Xdb. At most `depth` gets are under way."""
    store = await asyncio.get_running_loop().run_in_executor(None, lambda: xdb.Xdb(dirname, *args, **options))
    return Db(store, depth)

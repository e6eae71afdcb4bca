# SPDX-License-Identifier: Apache-2.0
"""remixdb.aio: RemixDB for asyncio."""

import asyncio
import pathlib
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

import xdb  # noqa: E402
from remixdb import aio  # noqa: E402
from xdb import Status, XdbError  # noqa: E402


def store(place, **options):
    return aio.open(place, **{"cachesz": 8, "mtsz": 8, **options})


@pytest.mark.parametrize("io", ["uring", "sync"])
def test_calls(tmp_path, io):
    async def main():
        async with await store(tmp_path / "s", io=io) as db:
            await db.put("apple", "green")
            assert await db.get("apple") == b"green" and await db.get("none") is None
            assert await db.probe(b"apple") and not await db.probe("none")
            await db.delete("apple")
            assert await db.get("apple") is None
            async with db.batch() as batch:
                batch.update({"%03d" % i: "v%d" % i for i in range(500)})
                batch.delete("007")
            assert await db.multi_get(["001", "007"]) == [b"v1", None]
            assert await db.merge("n", lambda value: str(int(value or 0) + 1)) == b"1"
            await db.sync()
            await db.flush()
            await db.compact()
            async with await db.snapshot() as old:
                await db.put("001", "new")
                assert await old.get("001") == b"v1" and await db.get("001") == b"new"
                assert [key async for key in old.iter(keys_only=True, prefix="00", reverse=True)] == [
                    b"%03d" % i for i in (9, 8, 6, 5, 4, 3, 2, 1, 0)]
            pairs = [pair async for pair in db.iter(start="100", stop="103")]
            assert pairs == [(b"100", b"v100"), (b"101", b"v101"), (b"102", b"v102")]
            assert (await db.stats())["io"] == io or io == "uring" and db._gets is None  # no rings here
            with pytest.raises(XdbError) as info:
                await db.get(b"x" * 70000)
            assert info.value.status is Status.TOOBIG
            with pytest.raises(TypeError):
                await db.put("a", 7)
            large = bytes(600000)
            await db.put("large", large)
            assert await db.get("large") == large
            with pytest.raises(ValueError):
                async with db.batch() as batch:
                    batch.put("never", "")
                    raise ValueError
            assert await db.get("never") is None
        assert db.closed
        with pytest.raises(XdbError):
            await db.get("a")

    asyncio.run(main())


def test_many_tasks(tmp_path):
    """Writes of one turn go together, gets wait for room, and one write that fails fails alone."""
    async def main():
        async with await store(tmp_path / "s", depth=8, cachesz=0) as db:
            async def one(i):
                await db.put("k%04d" % i, "v%d" % i)
                return await db.get("k%04d" % i)

            assert await asyncio.gather(*map(one, range(2000))) == [b"v%d" % i for i in range(2000)]
            records = (await db.stats())["log"]["frames"]
            assert records < 1500
            results = await asyncio.gather(db.put("good", "1"), db.put(b"x" * 70000, ""), db.put("also", "2"),
                                           return_exceptions=True)
            assert results[0] is None and results[2] is None and results[1].status is Status.TOOBIG
            assert await db.multi_get(["good", "also"]) == [b"1", b"2"]
            await db.flush()
            keys = ["k%04d" % i for i in range(2000)]
            assert await asyncio.gather(*map(db.get, keys)) == [b"v%d" % i for i in range(2000)]

    asyncio.run(main())


def test_a_cancelled_get_takes_no_other_ones_value(tmp_path):
    async def main():
        async with await store(tmp_path / "s", depth=2) as db:
            for i in range(50):
                await db.put(str(i), "v%d" % i)
            tasks = [asyncio.create_task(db.get(str(i))) for i in range(50)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for i, result in enumerate(results):
                assert result == b"v%d" % i or (i % 3 == 0 and isinstance(result, asyncio.CancelledError))

    asyncio.run(main())


class Slow:
    """In place of an xdb.XdbGets: no get ends before `go`, as if the disk were slow."""

    def __init__(self, gets):
        self._gets, self.go = gets, False

    def poll(self):
        return self._gets.poll(1) if self.go else []

    def __getattr__(self, name):
        return getattr(self._gets, name)


def test_a_cancelled_get_keeps_its_place_until_it_ends(tmp_path):
    """Others wait for the place. Without that they would fail, as more gets would be under way than there may be."""
    async def main():
        async with await store(tmp_path / "s", depth=2) as db:
            if db._gets is None:
                pytest.skip("no io_uring here")
            await db.put("a", "1")
            slow = db._gets._gets = Slow(db._gets._gets)
            tasks = [asyncio.create_task(db.get("a")) for _ in range(2)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            tasks += [asyncio.create_task(db.get("a")) for _ in range(4)]
            await asyncio.wait(tasks[:2])
            await asyncio.sleep(0.1)  # for a get that should not begin
            assert all(task.cancelled() for task in tasks[:2]) and not any(task.done() for task in tasks[2:])
            slow.go = True
            assert await asyncio.wait_for(asyncio.gather(*tasks[2:]), 1100) == [b"1"] * 4

    asyncio.run(main())


@pytest.mark.parametrize("io", ["uring", "sync"])
def test_a_close_ends_all_calls(tmp_path, io):
    """Gets under way and those that wait for a place raise, and so does all that comes later. Ends do nothing then."""
    async def main():
        db = await store(tmp_path / "s", io=io, depth=2)
        await db.put("a", "1")
        space, old, transaction = await db.space("b"), await db.snapshot(), db.transaction()
        await transaction.__aenter__()
        if db._gets is not None:
            db._gets._gets = Slow(db._gets._gets)
            gets = [asyncio.create_task(db.get("a")) for _ in range(4)]
            await asyncio.sleep(0.01)
            await db.close()
            for got in await asyncio.wait_for(asyncio.gather(*gets, return_exceptions=True), 1100):
                assert isinstance(got, XdbError) and got.status is Status.INVALID
        await db.close()
        for late in (db.get, db.probe, db.delete, space.get, space.delete, old.get, transaction.get):
            with pytest.raises(XdbError) as info:
                await asyncio.wait_for(late("a"), 1100)
            assert info.value.status is Status.INVALID
        for end in space.close, old.close, transaction.abort, db.close:
            await end()

    asyncio.run(main())


def test_what_is_left_open_ends_with_its_owner(tmp_path):
    """Gets of spaces and snapshots raise when the store closes, those of a snapshot's space when the snapshot does. The
    loop watches none of their descriptors then, so that a store opened later may have their numbers."""
    async def main():
        for _ in range(3):
            db = await store(tmp_path / "s", io="uring", depth=2)
            if db._gets is None:
                pytest.skip("there is no io_uring here")
            space = await db.space("b")
            await asyncio.gather(db.put("a", "1"), space.put("a", "2"))
            async with await db.snapshot() as old, await db.snapshot() as other:
                within, last = await old.space(space), await other.space(space)
                assert [await of.get("a") for of in (db, space, old, within)] == [b"1", b"2", b"1", b"2"]
                for owner, left in (old, [within]), (db, [db, space, other, last]):
                    descriptors, gets = [of._gets._gets.fileno() for of in left], []
                    for of in left:
                        of._gets._gets = Slow(of._gets._gets)
                        gets += [asyncio.create_task(of.get("a")) for _ in range(4)]
                    await asyncio.sleep(0.01)
                    await owner.close()
                    for got in await asyncio.wait_for(asyncio.gather(*gets, return_exceptions=True), 1100):
                        assert isinstance(got, XdbError) and got.status is Status.INVALID
                    assert not any(map(asyncio.get_running_loop().remove_reader, descriptors))
                    assert all(of.closed for of in left)
                await last.close()

    asyncio.run(main())


def test_spaces_and_versions(tmp_path):
    async def main():
        async with await store(tmp_path / "s") as db, await db.space("fruit") as fruit:
            await asyncio.gather(fruit.put("a", "1"), db.put("a", "2"), fruit.put("b", "3"))
            assert (await fruit.get("a"), await db.get("a"), await db.get("b")) == (b"1", b"2", None)
            assert [pair async for pair in fruit.iter()] == [(b"a", b"1"), (b"b", b"3")]
            async with fruit.batch() as batch:
                batch.delete("b")
            value, version = await fruit.getv("a")
            assert await fruit.put_if("a", "4", version) and not await fruit.put_if("a", "5", version)
            assert value == b"1" and await fruit.get("a") == b"4"
            assert not await fruit.del_if("a", version)
            await fruit.put("x", "9")
            await fruit.del_range("w")
            assert await fruit.get("x") is None and await fruit.get("a") == b"4"
            await fruit.put_expire("a", "gone", 1)
            assert await fruit.get("a") is None and await fruit.multi_get(["b"]) == [None]
            before = (await db.stats())["refs"]  # how many depends on how many threads the puts met
            await fruit.close()
            assert fruit.closed and 1 <= (await db.stats())["refs"] < before
            with pytest.raises(XdbError) as info:
                await db.space("none", create=False)
            assert info.value.status is Status.NOTFOUND

    asyncio.run(main())


def test_expiry_and_pieces(tmp_path):
    late = 32503680000

    async def main():
        async with await store(tmp_path / "s") as db, await db.space("fruit") as fruit:
            for there in db, fruit:
                await there.put("gone", "?")
                await asyncio.gather(there.put("a", "1"), there.put("late", "2", expires=late),
                                     there.put("gone", "3", expires=1))
                assert [await there.expiry(k) for k in ("a", "late", "gone")] == [0, late * 1000, None]
                async with there.batch() as batch:
                    batch.put("b", "4", expires=late)
                    batch.put_expire("c", "5", late * 1000)
                    batch.del_range("late")
                assert [k async for k in there.iter(keys_only=True)] == [b"a", b"b", b"c"]
                assert (await there.count("b"))[0] == 2 and (await there.count())[0] == 3
                await there.put("long", b"0123456789" * 10000)
                assert await there.get_part("long", 5, 10) == b"5678901234" and await there.get_part("?", 0, 1) is None
                await there.flush() if there is db else await there.compact_range("b", "d")
            good, bad = await asyncio.gather(db.put("e", "6"), db.put("f", "7", expires="soon"), return_exceptions=True)
            assert good is None and isinstance(bad, TypeError) and await db.multi_get(["e", "f"]) == [b"6", None]
            then = await db.snapshot()
            async with db.transaction() as t:
                await t.put("g", "8", expires=late)
                await t.ref(fruit).put_expire("g", "9", late * 1000 + 1)
                assert (await t.expiry("g"), await t.ref(fruit).expiry("g")) == (late * 1000, late * 1000 + 1)
                assert await t.put_if("h", "10", 0) and not await t.put_if("a", "11", 0)
                assert await t.del_if("e", (await t.getv("e"))[1]) and await t.get_part("b", 0, 5) == b"4"
            assert (await db.expiry("g"), await fruit.expiry("g")) == (late * 1000, late * 1000 + 1)
            assert await db.multi_get(["h", "a", "e"]) == [b"10", b"1", None]
            assert await then.expiry("g") is None and await then.get_part("e", 0, 1) == b"6"
            assert (await then.getv("e"))[0] == b"6" and (await then.count("e", "f"))[0] == 1
            await then.close()

    asyncio.run(main())


def test_ingest(tmp_path):
    async def main():
        async with await store(tmp_path / "s") as db, await db.space("fruit") as fruit:
            for there in db, fruit:
                async with there.ingest() as ingest:
                    await ingest.put("", "first")
                    await ingest.update(("%05d" % i, memoryview(b"v%d" % i)) for i in range(5000))
                    await ingest.update({"6": "last"})
                    assert await there.get("00005") is None
                assert await there.multi_get(["", "00005", "6"]) == [b"first", b"v5", b"last"]
                assert (await there.count())[0] == 5002
                with pytest.raises(ValueError):
                    async with there.ingest() as ingest:
                        await ingest.put("7", "never")
                        raise ValueError
                with pytest.raises(XdbError) as info:
                    async with there.ingest() as ingest:
                        await ingest.put("8", "never")
                        await ingest.put("7", "not in order")
                assert info.value.status is Status.INVALID and await there.multi_get(["7", "8"]) == [None, None]
            with pytest.raises(XdbError):
                await db.ingest().put("9", "not begun")

    asyncio.run(main())


def test_transactions(tmp_path):
    async def main():
        async with await store(tmp_path / "s") as db:
            async with db.transaction() as t:
                await t.put("n", "1")
                assert await t.get("n") == b"1" and await db.get("n") is None
                await t.delete("none")
            assert await db.get("n") == b"1"
            with pytest.raises(XdbError) as info:
                async with db.transaction() as t:
                    assert await t.multi_get(["n", "m"]) == [b"1", None]
                    await t.put("m", "never")
                    await db.put("n", "2")
            assert info.value.status is Status.ABORTED and await db.get("m") is None
            with pytest.raises(ValueError):
                async with db.transaction() as t:
                    await t.put("m", "never")
                    raise ValueError
            assert await db.get("m") is None

            def add(t):
                t.put("n", str(int(t.get("n")) + 1))

            await asyncio.gather(*(db.transact(add, 1000) for _ in range(40)))
            assert await db.get("n") == b"42"

    asyncio.run(main())


@pytest.mark.parametrize("io", ["uring", "sync"])
def test_a_transaction_is_one_step_in_all_spaces(tmp_path, io):
    async def main():
        async with await store(tmp_path / "s", io=io) as db:
            users, names = await db.space("users"), await db.space("names")
            assert await db.spaces() == ["users", "names"] and users.name == "users"
            async with db.transaction() as t:
                assert await t.ref(users).get("7") is None
                await t.ref(users).put("7", "ada")
                await t.ref(names).put("ada", "7")
                await t.put("count", "1")
                # its own writes are there, each in its space, and nobody else sees them
                assert await t.ref(users).get("7") == b"ada" and await t.get("7") is None
                assert await t.ref().get("count") == b"1" and await t.ref(names).probe("ada")
                assert await asyncio.gather(users.get("7"), names.get("ada"), db.get("count")) == [None] * 3
            assert await asyncio.gather(users.get("7"), names.get("ada"), db.get("count")) == [b"ada", b"7", b"1"]
            # its reads in a space count, unless the ref is untracked
            for tracked in True, False:
                async def change():
                    async with db.transaction() as t:
                        ref = t.ref(users) if tracked else t.untracked(users)
                        assert await ref.multi_get(["7", "8"]) == [b"ada", None]
                        await users.put("8", "other")
                        await t.ref(names).put("tracked", str(tracked))
                if tracked:
                    with pytest.raises(XdbError) as info:
                        await change()
                    assert info.value.status is Status.ABORTED and await names.get("tracked") is None
                    await users.delete("8")
                else:
                    await change()
                    assert await names.get("tracked") == b"False"
            # scans show its writes, and a range that was read is one of its reads
            async with db.transaction() as t:
                ref = t.ref(users)
                for i in range(200):
                    await ref.put("k%03d" % i, "v")
                await ref.del_range("k010", "k190")
                assert [key async for key in ref.iter(prefix="k", keys_only=True)] == [
                    b"k%03d" % i for i in [*range(10), *range(190, 200)]]
                assert [pair async for pair in ref.iter(prefix="k", reverse=True)][0] == (b"k199", b"v")
            with pytest.raises(XdbError) as info:
                async with db.transaction() as t:
                    assert len([key async for key in t.ref(names).iter(keys_only=True)]) == 2
                    await names.put("phantom", "")
                    await t.put("count", "2")
            assert info.value.status is Status.ABORTED and await db.get("count") == b"1"

    asyncio.run(main())


def test_savepoints_and_ends_of_transactions(tmp_path):
    async def main():
        async with await store(tmp_path / "s") as db:
            space = await db.space("a")
            async with db.transaction() as t:
                await t.ref(space).put("first", "1")
                with pytest.raises(ValueError):
                    async with t.savepoint():
                        await t.ref(space).put("second", "2")
                        raise ValueError
                async with t.savepoint() as kept:
                    await t.put("third", "3")
                async with t.savepoint() as point:
                    await t.put("fourth", "4")
                    await point.rollback()
                assert kept is not point
            assert await space.get("first") == b"1" and await space.get("second") is None
            assert await db.multi_get(["third", "fourth"]) == [b"3", None]
            ref = t.ref(space)
            with pytest.raises(XdbError):
                await ref.get("first")
            with pytest.raises(RuntimeError):
                await t.__aenter__()
            for early in db.transaction().ref, db.transaction().untracked:
                with pytest.raises(RuntimeError):
                    early(space)
            with pytest.raises(RuntimeError):
                await db.transaction().get("first")
            async with db.transaction() as t:
                await t.put("fifth", "5")
                await t.abort()
            assert await db.get("fifth") is None

    asyncio.run(main())


@pytest.mark.parametrize("io", ["uring", "sync"])
def test_spaces_in_batches_and_snapshots(tmp_path, io):
    async def main():
        async with await store(tmp_path / "s", io=io) as db:
            a, b = await db.space("a"), await db.space("b")
            async with db.batch() as batch:
                batch.put("k", "unnamed")
                batch.space(a)
                batch.put("k", "a")
                batch.space(b)
                batch.put("k", "b")
                batch.space(None)
                batch.put("l", "unnamed")
            assert await db.multi_get(["k", "l"]) == [b"unnamed", b"unnamed"]
            async with await db.snapshot() as then:
                await asyncio.gather(a.put("k", "new"), a.put("m", "new"), b.delete("k"))
                async with await then.space(a) as old, await then.space(b) as other:
                    assert await asyncio.gather(old.get("k"), other.get("k"), then.get("k"), old.get("m")) == [
                        b"a", b"b", b"unnamed", None]
                    assert [pair async for pair in old.iter()] == [(b"k", b"a")]
                    with pytest.raises(TypeError):
                        await old.space(b)
                assert old.closed and not then.closed
            assert [pair async for pair in a.iter()] == [(b"k", b"new"), (b"m", b"new")]
            await db.drop_space("a")
            assert await db.spaces() == ["b"]
            with pytest.raises(XdbError) as info:
                await a.get("k")
            assert info.value.status is Status.GONE

    asyncio.run(main())


def test_the_event_loop_goes_on_while_a_call_waits(tmp_path):
    async def main():
        async with await store(tmp_path / "s") as db:
            turns, inside, go_on = 0, threading.Event(), threading.Event()

            def slow(value):
                inside.set()
                go_on.wait(500)
                return "done"

            task = asyncio.create_task(db.merge("k", slow))
            while not inside.is_set() or turns < 10:
                await asyncio.sleep(0)
                turns += 1
            assert not task.done()
            if db._gets is not None:  # else a get waits for the ref, which the merge has
                assert await db.get("other") is None
            go_on.set()
            assert await task == b"done"

    asyncio.run(main())


def test_closing_waits_for_the_writes(tmp_path):
    async def main():
        db = await store(tmp_path / "s")
        writes = [asyncio.create_task(db.put("k%d" % i, "v")) for i in range(100)]
        await asyncio.sleep(0)
        await db.close()
        await asyncio.gather(*writes)
        with xdb.Xdb(tmp_path / "s", 8, 8) as again:
            assert len(again.map()) == 100

    asyncio.run(main())


class Held:
    """In place of a function: its call waits for `go`."""

    def __init__(self, function):
        self._function, self.inside, self.go = function, threading.Event(), threading.Event()

    def __call__(self, *args):
        self.inside.set()
        assert self.go.wait(500)
        return self._function(*args)


def test_a_cancelled_close_goes_on(tmp_path):
    """The writes of other tasks end, and the store closes."""
    async def main():
        for slow in "_write_changes", "_source.close":
            db = await store(tmp_path / "s")
            owner, name = (db._source, "close") if "." in slow else (db, slow)
            held = Held(getattr(owner, name))
            setattr(owner, name, held)
            puts = [asyncio.create_task(db.put("a", "1"))]
            while slow == "_write_changes" and not held.inside.is_set():
                await asyncio.sleep(0.001)
            puts.append(asyncio.create_task(db.put("b", "2")))  # for the next batch
            await asyncio.sleep(0.01)
            closes = 0
            while closes < 2 or not held.inside.is_set():
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(db.close(), 0.05)
                closes += 1
            assert not db.closed
            held.go.set()
            assert await asyncio.wait_for(asyncio.gather(*puts), 1100) == [None, None]
            await asyncio.wait_for(db.close(), 1100)
            assert db.closed and db._pool.ended
            with xdb.Xdb(tmp_path / "s", 8, 8) as again:
                assert dict(again.map()) == {b"a": b"1", b"b": b"2"}

    asyncio.run(main())


def test_writes_end_when_their_task_is_cancelled(tmp_path):
    async def main():
        async with await store(tmp_path / "s") as db:
            db._write_changes = held = Held(db._write_changes)
            puts = [asyncio.create_task(db.put("a", "1"))]
            while not held.inside.is_set():
                await asyncio.sleep(0.001)
            puts.append(asyncio.create_task(db.put("b", "2")))
            await asyncio.sleep(0.001)
            db._writing.cancel()
            ends = await asyncio.wait_for(asyncio.gather(*puts, return_exceptions=True), 1100)
            assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
            held.go.set()
            await db.put("c", "3")
            assert await db.get("c") == b"3"

    asyncio.run(main())


def test_an_interrupted_iteration_leaves_nothing(tmp_path):
    async def main():
        async with await store(tmp_path / "s") as db:
            async with db.batch() as batch:
                batch.update({"%04d" % i: "v" for i in range(3000)})
            walk = db.iter()
            assert await walk.__anext__() == (b"0000", b"v")
            await walk.aclose()
            while (await db.stats())["iterators"]:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_the_event_loop_waits_for_no_end(tmp_path, monkeypatch):
    """Iterators, gets and refs end in threads, because an end waits for calls under way: that of an iterator for the
    read of a page."""
    threads = {}

    def note(cls):
        real = cls.close

        def close(self):
            threads.setdefault(cls, set()).add(threading.current_thread().name)
            real(self)
        monkeypatch.setattr(cls, "close", close)

    async def main():
        async with await store(tmp_path / "s", io="uring") as db:
            async with db.batch() as batch:
                batch.update({"%04d" % i: "v" for i in range(3000)})
            async with await db.space("b"), await db.snapshot() as old:
                for owner in db, old:
                    threads.pop(xdb.XdbIter, None)
                    walk = owner.iter()
                    await walk.__anext__()
                    await walk.aclose()
                    walking = asyncio.Event()

                    async def walk_on():
                        async for _ in owner.iter():
                            walking.set()
                            await asyncio.sleep(1100)

                    task = asyncio.create_task(walk_on())
                    await walking.wait()
                    task.cancel()
                    await asyncio.wait([task])
                    assert xdb.XdbIter in threads
            return {xdb.XdbIter, xdb.XdbRef, xdb.XdbSnapshot, *([xdb.XdbGets] if db._gets else [])}

    for cls in xdb.XdbIter, xdb.XdbGets, xdb.XdbRef, xdb.XdbSnapshot:
        note(cls)
    assert asyncio.run(main()) == threads.keys()
    assert all(name.startswith("xdb") for names in threads.values() for name in names), threads


def test_an_iteration_takes_little_memory(tmp_path, monkeypatch):
    """A thread brings about a MiB of records at a time, or one larger record."""
    sizes = {"%04d" % i: (300, 1 << 18, 3 << 20)[i % 200 // 190 + (i == 777)] for i in range(1000)}
    pages = []
    real = aio._page

    def page(it, size):
        pages.append(real(it, size))
        return pages[-1]

    monkeypatch.setattr(aio, "_page", page)

    async def main():
        async with await store(tmp_path / "s") as db:
            async with db.batch() as batch:
                batch.update({key: bytes(size) for key, size in sizes.items()})
            for reverse in False, True:
                pages.clear()
                keys = sorted(sizes, reverse=reverse)
                assert [(key.decode(), len(value)) async for key, value in db.iter(reverse=reverse)] == [
                    (key, sizes[key]) for key in keys]
                bytes_of = [sum(len(value) for _, value in page) for page in pages]
                assert max(map(len, pages)) > 150 and sorted(bytes_of)[-2] < 5 << 18 and max(bytes_of) < 17 << 18
                pages.clear()
                assert [key.decode() async for key in db.iter(reverse=reverse, keys_only=True)] == keys
                assert len(pages) < 12

    asyncio.run(main())

# SPDX-License-Identifier: Apache-2.0
"""xdb.py: what a user sees of it. The library is found as xdb.py finds it (REMIXDB_LIBRARY, beside xdb.py, the
loader)."""

import bisect
import collections
import copy
import ctypes
import datetime
import gc
import inspect
import itertools
import os
import pathlib
import pickle
import random
import re
import resource
import select
import subprocess
import sys
import threading
import time
import weakref

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import xdb  # noqa: E402
from xdb import KEEP, Status, Xdb, XdbBatch, XdbError  # noqa: E402

SMALL = {"cachesz": 8, "mtsz": 8}
in_python = pytest.mark.skipif(xdb._fast is not None, reason="it looks into what the extension module has in C")


def open_store(path, **kw):
    return Xdb(path, **{**SMALL, **kw})


@pytest.fixture
def db(tmp_path):
    with open_store(tmp_path / "store") as store:
        yield store


@pytest.fixture
def ref(db):
    with db.ref() as r:
        yield r


def script(text, *args, env=None):
    """Runs a Python program of its own, so that a crash at its exit shows."""
    full = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    return subprocess.run([sys.executable, "-c", text, *map(str, args)], env=full, capture_output=True, text=True,
                          timeout=1100)


def comes(done):
    """Waits until it is so, for as long as that takes on a slow machine. Much later it is taken never to come."""
    until = time.monotonic() + 1100
    while not done():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def raises(status, call, *args):
    with pytest.raises(XdbError) as info:
        call(*args)
    assert info.value.status is status
    assert info.value.message
    assert status.name in str(info.value)
    return info.value


# ---- reading and writing


def test_put_get_delete_probe(ref):
    assert ref.get("apple") is None
    assert ref.probe("apple") is False
    ref.put("apple", "green")
    assert ref.get("apple") == b"green"
    assert ref.probe("apple") is True
    ref.put("apple", "red")
    assert ref.get("apple") == b"red"
    ref.delete("apple")
    assert ref.get("apple") is None
    ref.delete("apple")
    ref.sync()


def test_flush_and_compact(db, ref):
    ref.flush()
    for i in range(100):
        ref.put(f"{i:03}", "old")
        ref.put(f"{i:03}", "new")
    ref.delete("050")
    ref.flush()
    assert db.stats()["memtable"]["active_keys"] == 0
    ref.delete("051")
    ref.compact()
    assert db.stats()["table_entries"] == 98
    assert ref.get("000") == b"new" and ref.get("050") is None and ref.get("051") is None
    ref.delete("052")
    assert ref.count() == (97, 97 * 6) and ref.count("050", "060") == (7, 42) and ref.count("5", b"") == (0, 0)
    ref.compact_range("9")
    ref.compact_range("3", b"")
    ref.compact_range(None, "2")
    assert ref.get("052") is None
    ref.compact_range("052", "053")
    assert db.stats()["table_entries"] == 97


def test_kinds_of_keys_and_values(ref):
    ref.put("käse", "größe")
    assert ref.get("käse".encode()) == "größe".encode()
    ref.put(bytearray(b"a\0b"), memoryview(b"\0\xff\0"))
    assert ref.get(b"a\0b") == b"\0\xff\0"
    assert ref.get(b"a") is None
    assert ref.get(memoryview(b"xa\0bx")[1:4]) == b"\0\xff\0"
    assert ref.get(memoryview(b"a-\0-b-")[::2]) == b"\0\xff\0"
    ref.put("", "")
    assert ref.get(b"") == b""
    assert ref.probe("")


def test_many_keys_together(ref):
    assert ref.multi_get([]) == []
    assert ref.multi_get(["nothing"]) == [None]
    want = {b"": b"empty", b"a\0b": b"\0\xff\0", b"none": b""}
    want.update((b"key%d" % i, bytes([i % 256]) * (i * 37 % 3000)) for i in range(500))
    want[b"large"] = b"x" * 65000
    for key, value in want.items():
        ref.put(key, value)
    ref.put("gone", "gone")
    ref.delete("gone")
    assert ref.multi_get(want) == list(want.values())
    keys = random.choices([*want, b"gone", b"never"], k=1000)
    assert ref.multi_get(iter(keys)) == [want.get(key) for key in keys]
    assert ref.multi_get(["large", bytearray(b"none"), memoryview(b"gone"),
                          "large"]) == [want[b"large"], b"", None, want[b"large"]]
    raises(Status.INVALID, ref.multi_get, ["none", b"x" * (xdb.KV_MAX + 1)])
    with pytest.raises(TypeError):
        ref.multi_get(["none", 1])


@pytest.mark.parametrize("io", ["uring", "aio", "sync"])
def test_many_gets_under_way(tmp_path, io):
    with open_store(tmp_path / "s", cachesz=0, io=io) as db, db.ref() as ref:
        want = {b"key%d" % i: bytes([i % 256]) * (i * 37 % 3000) for i in range(600)}
        for key, value in want.items():
            ref.put(key, value)
        ref.flush()
        ref.put("new", "in memory")
        with ref.gets(300) as gets:
            closed = ref.gets(8)
            closed.begin("none")
            assert len(closed) == 1
            closed.close()
            assert len(closed) == 0
            assert gets and len(gets) == 0 and gets.poll() == [] and gets.poll(wait=5) == []
            keys = [*want][:298] + [b"new", b"never"]
            for key in keys:
                gets.begin(key)
            raises(Status.ABORTED, gets.begin, "one more")
            assert len(gets) == 300
            for key in want:
                ref.put(key, "later")
            ref.compact()
            results = []
            while len(gets):
                results += gets.poll(wait=7)
            assert len(results) == 300
            assert dict(results) == {**{key: want[key] for key in keys[:298]}, b"new": b"in memory", b"never": None}
            gets.begin("new", tag=("any", "thing"))
            if sys.platform == "linux":
                assert select.select([gets], [], [])[0] == [gets]
            assert gets.poll(wait=1) == [(("any", "thing"), b"in memory")]
            raises(Status.TOOBIG, gets.begin, b"x" * (xdb.KV_MAX + 1))
            with pytest.raises(TypeError):
                gets.begin(1)
            gets.begin("new")
        assert gets.closed
        raises(Status.INVALID, gets.poll)
        raises(Status.INVALID, ref.gets, 0)
        with db.ref() as other:
            late = other.gets(2)
            late.begin("new")
        assert late.closed  # with its ref


def test_a_damaged_block_fails_its_own_gets(tmp_path):
    with open_store(tmp_path / "s", cachesz=0) as db, db.ref() as ref:
        for i in range(600):
            ref.put(b"key%03d" % i, bytes(100))
        ref.compact()
        table, = (tmp_path / "s").glob("*.sst")
        with table.open("r+b") as f:
            f.seek(4096 + 200)
            f.write(b"damaged")
        with ref.gets(600) as gets:
            for i in range(600):
                gets.begin(b"key%03d" % i)
            values = [value for _, value in gets.poll(wait=600)]
        bad = [value for value in values if isinstance(value, XdbError)]
        assert len(values) == 600 and 0 < len(bad) < 100
        assert all(error.status == Status.CORRUPT and table.name in error.message for error in bad)


@pytest.mark.parametrize("bad", [None, 5, 1.5, ["a"], ("a",), object()])
def test_other_types_are_refused(ref, bad):
    for call in (lambda: ref.put(bad, "v"), lambda: ref.put("k", bad), lambda: ref.get(bad), lambda: ref.probe(bad),
                 lambda: ref.delete(bad)):
        with pytest.raises(TypeError):
            call()
    assert ref.get("k") is None


def test_sizes(ref):
    key, large = b"\xff" + os.urandom(xdb.KV_MAX - 1), os.urandom(100000)
    ref.put(key, large)
    assert ref.get(key) == large
    raises(Status.TOOBIG, ref.put, key + b"x", "")
    raises(Status.TOOBIG, ref.delete, key + b"x")
    raises(Status.TOOBIG, ref.probe, key + b"x")
    with ref.iter() as it:
        it.seek(key)
        assert it.peek() == (key, large) and it.value() == large


def test_values_of_any_size(db, ref):
    """Large ones among small ones, by every call that gives values."""
    want = {b"%03d" % i: os.urandom((0, 10, 5000, 70000, 300000, 3000000)[i % 6]) for i in range(36)}
    for key, value in list(want.items())[:18]:
        ref.put(key, memoryview(bytearray(value)))
    with ref.batch() as batch:
        batch.update(dict(list(want.items())[18:]))
    for _ in range(2):
        assert dict(ref.iter()) == want and dict(reversed(ref.iter())) == want
        assert list(ref.iter(values_only=True)) == list(want.values())
        assert [ref.get(key) for key in want] == ref.multi_get(want) == list(want.values())
        assert ref.getv("005")[0] == want[b"005"]
        with ref.gets(40) as gets:
            for key in want:
                gets.begin(key)
            gets.begin("none")
            results = gets.poll(wait=37)
            assert dict(results) == {**want, b"none": None} and len(gets) == 0
        it = ref.iter()
        for key, value in want.items():
            it.seek(key)
            assert it.peek() == (key, value) and next(it) == (key, value)
        ref.flush()
        ref.compact()
    assert ref.merge("005", lambda value: value + b"more") == want[b"005"] + b"more"
    assert ref.get_part("004", 299990, 100) == want[b"004"][-10:] and ref.get_part("none", 0, 1) is None
    assert ref.get_part("004", 1000, 50) == want[b"004"][1000:1050]
    assert ref.get_part("004", 1 << 31, 50) == b"" == ref.get_part("004", 0, 0)
    with pytest.raises(ValueError):
        ref.get_part("004", -1, 5)


def test_content_survives_closing(tmp_path):
    with open_store(tmp_path / "s") as db, db.ref() as ref:
        for i in range(2000):
            ref.put(f"{i:05}", str(i * i))
        ref.delete("00007")
    with open_store(tmp_path / "s", tags=False) as db, db.ref() as ref:
        assert ref.get("01999") == b"3996001"
        assert ref.get("00007") is None
        assert sum(1 for _ in ref.iter()) == 1999


def random_new_call(rnd, ref, it, model, key, what):
    if what == 10:
        with ref.batch() as batch:
            for _ in range(rnd.randrange(6)):
                key = bytes(rnd.choices(b"ab\0\xff", k=rnd.randrange(6)))
                if rnd.randrange(3):
                    value = os.urandom(rnd.randrange(100))
                    batch.put(key, value)
                    model[key] = value
                else:
                    batch.delete(key)
                    model.pop(key, None)
    elif what == 11:
        answer = rnd.choice([KEEP, None, b"", os.urandom(50)])
        old = model.get(key)

        def fn(value):
            assert value == old
            return answer

        new = old if answer is KEEP else answer
        assert ref.merge(key, fn) == new
        if new is None:
            model.pop(key, None)
        else:
            model[key] = new
    else:
        it.seek_for_prev(key)
        nr = rnd.randrange(4)
        for _ in range(nr):
            it.prev()
        rest = sorted((k for k in model if k <= key), reverse=True)[nr:]
        assert it.key() == (rest[0] if rest else None) and it.value() == (model[rest[0]] if rest else None)
        if rnd.randrange(20) == 0:
            assert list(reversed(ref.iter())) == sorted(model.items(), reverse=True)


def test_random_operations_against_a_dict(db):
    seed = int(os.environ.get("SEED", time.time_ns()))
    print("SEED", seed)  # pytest shows it when the test fails
    rnd = random.Random(seed)
    model = {}
    with db.ref() as ref, ref.iter() as it:
        for _ in range(4000):
            key = bytes(rnd.choices(b"ab\0\xff", k=rnd.randrange(6)))
            what = rnd.randrange(13)
            if what >= 10:
                random_new_call(rnd, ref, it, model, key, what)
            elif what < 4:
                value = rnd.randbytes(rnd.randrange(300))
                ref.put(key, value)
                model[key] = value
            elif what < 6:
                ref.delete(key)
                model.pop(key, None)
            elif what < 8:
                assert ref.get(key) == model.get(key)
                assert ref.probe(key) == (key in model)
            elif what < 9:
                it.seek(key)
                nr = rnd.randrange(4)
                it.skip(nr)
                rest = sorted(k for k in model if k >= key)[nr:]
                assert it.valid() == bool(rest)
                assert it.peek() == ((rest[0], model[rest[0]]) if rest else None)
            elif rnd.randrange(20) == 0:
                assert list(ref.iter()) == sorted(model.items())
        assert list(ref.iter()) == sorted(model.items())


# ---- iterators


def test_iterator(ref):
    for k in "bdfhj":
        ref.put(k, k.upper())
    it = ref.iter()
    assert not it.valid() and it.peek() is None
    it.skip1()
    it.skip(3)
    assert not it.valid()
    it.seek()
    assert it.valid() and it.peek() == (b"b", b"B")
    it.seek("c")
    assert it.peek() == (b"d", b"D")
    it.skip1()
    assert it.peek() == (b"f", b"F")
    it.skip(0)
    assert it.peek() == (b"f", b"F")
    it.skip(2)
    assert it.peek() == (b"j", b"J")
    it.skip(10**12)
    assert not it.valid() and it.peek() is None
    it.skip1()
    it.seek("k")
    assert not it.valid()
    it.seek(b"")
    assert it.peek() == (b"b", b"B")
    with pytest.raises(ValueError):
        it.skip(-1)
    with pytest.raises(TypeError):
        it.seek(5)
    assert it.peek() == (b"b", b"B")


EXPECTS = (0, 1, 7, 50, 5000, 0xFFFFFFFF)


def test_expect(ref, db):
    """Neither the number nor the place of the records changes what an iterator gives."""
    pairs = [(b"%05d" % i, os.urandom(i % 300)) for i in range(3000)]
    for key, value in pairs[::2]:
        ref.put(key, value)
    ref.flush()
    with ref.snapshot() as old:
        for key, value in pairs[1::2]:
            ref.put(key, value)
        ref.flush()
        for expect in EXPECTS:
            assert list(ref.iter(expect)) == list(db.iter(expect=expect)) == pairs
            assert list(reversed(ref.iter(expect=expect))) == pairs[::-1]
            assert list(old.iter(expect=expect)) == pairs[::2]
            it = ref.iter(expect=expect)
            it.seek(b"01000x")
            assert it.peek() == pairs[1001]


@pytest.mark.parametrize("bad, error", [(-1, ValueError), (1 << 32, ValueError), ("7", TypeError), (True, TypeError),
                                        (1.0, TypeError), (None, TypeError)])
def test_expect_is_a_number_of_records(ref, db, bad, error):
    for iterate in (ref.iter, db.iter):
        with pytest.raises(error, match="expect"):
            iterate(expect=bad)


def in_range(keys, start, stop, prefix):
    return [key for key in keys if (start is None or key >= start) and (stop is None or key < stop)
            and key.startswith(prefix or b"")]


def test_bounds_and_prefixes(ref, db):
    """Every combination of options, against a list."""
    rnd = random.Random(7)
    keys = sorted({bytes(rnd.choices(b"ab\0\xff", k=rnd.randrange(5))) for _ in range(300)})
    model = {key: b"v" + key for key in keys}
    with ref.batch() as batch:
        batch.update(dict(list(model.items())[::2]))
    ref.flush()
    with ref.batch() as batch:
        batch.update(dict(list(model.items())[1::2]))
    bounds = [None, b"", b"a", b"a\xff", b"ab", b"b\0", b"\xff\xff", b"\xff\xff\xff\xff\xff"]
    for start, stop, prefix in itertools.product(bounds, bounds, bounds):
        options = {"start": start, "stop": stop, "prefix": prefix}
        want = in_range(keys, start, stop, prefix)
        for reverse in (False, True):
            order = want[::-1] if reverse else want
            assert list(ref.iter(**options, reverse=reverse)) == [(key, model[key]) for key in order]
            assert list(ref.iter(**options, reverse=reverse, keys_only=True)) == order
            assert list(db.iter(**options, reverse=reverse, values_only=True)) == [model[key] for key in order]
            assert list(reversed(ref.iter(**options, reverse=reverse))) == [(key, model[key]) for key in order[::-1]]
        it = ref.iter(**options, keys_only=True)
        for key in bounds[1:]:
            it.seek(key)
            behind = [k for k in want if k >= key]
            assert it.key() == (behind[0] if behind else None) and it.value() in (None, b"")
            it.seek_for_prev(key)
            before = [k for k in want if k <= key]
            assert it.key() == (before[-1] if before else None)
            assert list(reversed(it)) == before[::-1]


def test_an_iterator_that_holds_its_moment(ref):
    ref.put("a", "1")
    held, other = ref.iter(hold=True), ref.iter()
    ref.put("b", "2")
    assert list(held) == [(b"a", b"1")] and list(other) == [(b"a", b"1"), (b"b", b"2")]
    held.seek()
    held.park()
    held.seek("b")
    assert held.peek() is None
    with ref.snapshot() as then, then.ref() as old:
        assert list(old.iter(hold=True, reverse=True, keys_only=True)) == [b"b", b"a"]


@pytest.mark.parametrize("options, error", [
    ({"start": 7}, TypeError), ({"stop": ["a"]}, TypeError), ({"prefix": 1.0}, TypeError), ({"reverse": 1}, TypeError),
    ({"keys_only": 1}, TypeError), ({"values_only": None}, TypeError), ({"hold": "yes"}, TypeError),
    ({"keys_only": True, "values_only": True}, ValueError), ({"prefix": b"x" * 70000}, XdbError)])
def test_options_of_an_iterator_that_are_refused(ref, options, error):
    with pytest.raises(error):
        ref.iter(**options)
    ref.close()  # nothing of it is left
    assert list(ref._handle._children) == []


def test_records_ahead_grow_from_one(ref):
    with ref.batch() as batch:
        batch.update((b"%05d" % i, b"v" * 10) for i in range(5000))
    it, sizes = ref.iter(), []
    for _ in it:
        sizes.append(it._left() + 1)
    pages = [size for i, size in enumerate(sizes) if i == 0 or sizes[i - 1] == 1]
    assert pages[:5] == [1, 8, 64, 512, 1024] and max(pages) == 1024


def test_python_iteration(ref, db):
    assert list(ref.iter()) == []
    for k in "abcde":
        ref.put(k, "")
    assert [k for k, _ in ref.iter()] == [b"a", b"b", b"c", b"d", b"e"]
    it = ref.iter()
    it.seek("c")
    assert [k for k, _ in it] == [b"c", b"d", b"e"]
    assert [k for k, _ in it] == []  # it stays at the end
    it.seek()
    assert next(it) == (b"a", b"")
    assert it.peek() == (b"b", b"")
    assert [k for k, _ in db.iter()] == [b"a", b"b", b"c", b"d", b"e"]


def test_an_iterator_sees_the_store_at_its_last_seek(ref):
    ref.put("a", "1")
    ref.put("c", "1")
    it = ref.iter()
    it.seek()
    ref.put("b", "2")
    ref.put("c", "2")
    ref.delete("a")
    assert list(it) == [(b"a", b"1"), (b"c", b"1")]
    it.seek()
    assert list(it) == [(b"b", b"2"), (b"c", b"2")]


def test_park(ref):
    ref.put("a", "1")
    it = ref.iter()
    it.seek()
    it.park()
    assert not it.valid() and it.peek() is None
    it.skip1()
    it.seek()
    assert it.peek() == (b"a", b"1")


def test_backward(ref):
    it = ref.iter()
    it.seek_last()
    assert not it.valid() and it.key() is None and it.value() is None
    it.prev()
    for k in "bdf":
        ref.put(k, k.upper())
    ref.put("", "")
    it.seek_last()
    assert (it.key(), it.value()) == (b"f", b"F")
    it.prev()
    assert it.peek() == (b"d", b"D")
    it.skip1()
    assert it.key() == b"f"
    it.seek_for_prev("e")
    assert it.key() == b"d"
    it.seek_for_prev(b"d")
    assert it.key() == b"d"
    it.seek_for_prev("")
    assert (it.key(), it.value()) == (b"", b"")
    it.prev()
    assert not it.valid() and it.key() is None
    with pytest.raises(TypeError):
        it.seek_for_prev(None)
    raises(Status.TOOBIG, it.seek_for_prev, b"x" * (xdb.KV_MAX + 1))
    assert not it.valid()
    for call in (it.peek, it.key, it.value, it.prev, it.skip1, lambda: next(it), lambda: list(it),
                 lambda: next(reversed(it))):
        with pytest.raises(XdbError):  # an error is not the end
            call()
    it.seek("")
    assert it.key() == b""


def test_reversed(ref, db):
    assert list(reversed(ref.iter())) == []
    for k in "abcde":
        ref.put(k, "")
    assert [k for k, _ in reversed(ref.iter())] == [b"e", b"d", b"c", b"b", b"a"]
    it = ref.iter()
    it.seek("c")
    back = reversed(it)
    ref.put("bb", "")  # after the seek
    assert [k for k, _ in back] == [b"c", b"b", b"a"]
    assert list(back) == [] and list(it) == []  # it stays at the end
    it.park()
    assert next(reversed(it)) == (b"e", b"")
    assert [k for k, _ in reversed(db.iter())] == [b"e", b"d", b"c", b"bb", b"b", b"a"]


# ---- batches, merges, snapshots


class Reader:
    """What an iterator must show: the records of its last seek, and where it stands; -1 and the number of records are
    nowhere."""

    def __init__(self):
        self.records, self.at = [], -1

    def seek(self, store, at):
        self.records, self.at = sorted(store.items()), at

    def here(self):
        return self.records[self.at] if 0 <= self.at < len(self.records) else None

    def move(self, n):
        if self.here():
            self.at = max(-1, min(len(self.records), self.at + n))


@pytest.mark.parametrize("seed", range(4))
def test_iterators_at_random(db, seed):
    """Single records and many at once, both ways, mixed with all that depends on where the iterator stands, while the
    store changes."""
    rng = random.Random(seed)
    ref = db.ref()
    store = {}

    def put():
        key = b"%05d" % rng.randrange(4000)
        if rng.random() < 0.2:
            store.pop(key, None)
            ref.delete(key)
            return
        length = rng.choice([0, 1, 20, 20, 100, 100, 3000]) if rng.random() < 0.995 else rng.randrange(xdb.KV_MAX - 5)
        store[key] = bytes([rng.randrange(256)]) * length
        ref.put(key, store[key])

    for _ in range(3000):
        put()
    it, model = ref.iter(), Reader()
    it.seek()
    model.seek(store, 0)
    walk = None
    for _ in range(3000):
        what = rng.randrange(14)
        if what == 0 or model.here() is None and rng.random() < 0.7:
            key = b"%05d" % rng.randrange(4000)
            keys = sorted(store)
            if rng.random() < 0.6:
                it.seek(key)
                model.seek(store, bisect.bisect_left(keys, key))
            else:
                it.seek_for_prev(key)
                model.seek(store, bisect.bisect_right(keys, key) - 1)
        elif what < 4:
            n = rng.choice([1, 2, 9, 10, 80, 3000])
            got = list(itertools.islice(it, n))
            want = model.records[model.at:model.at + n] if model.here() else []
            assert got == want
            model.move(len(want))
        elif what < 7:
            n = rng.choice([1, 2, 9, 10, 80, 3000])
            walk = walk if walk and rng.random() < 0.5 else reversed(it)
            want = model.records[max(0, model.at - n + 1):model.at + 1][::-1] if model.here() else []
            assert list(itertools.islice(walk, n)) == want
            model.move(-len(want))
        elif what == 7:
            it.prev()
            model.move(-1)
        elif what == 8:
            it.skip1()
            model.move(1)
        elif what == 9:
            n = rng.choice([0, 3, 100])
            it.skip(n)
            model.move(n)
        elif what == 10:
            assert it.valid() == (model.here() is not None)
        elif what == 11:
            assert it.peek() == model.here()
        elif what == 12:
            assert (it.key(), it.value()) == (model.here() or (None, None))
        else:
            put()
        assert len(it._handle.ahead) <= 1024


def test_records_ahead_go_with_what_is_closed(tmp_path):
    for end in ("it.close()", "ref.close()", "db.close()"):
        db = open_store(tmp_path / "s")
        ref = db.ref()
        with ref.batch() as batch:
            batch.update((b"%05d" % i, b"v") for i in range(3000))
        it = ref.iter()
        back = reversed(ref.iter())
        assert len(list(itertools.islice(it, 200))) == len(list(itertools.islice(back, 200))) == 200
        exec(end)
        raises(Status.INVALID, next, it)
        if end != "it.close()":
            raises(Status.INVALID, next, back)
        db.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_records_ahead_are_not_the_childs(tmp_path):
    result = script("""
import os, sys, xdb
db = xdb.Xdb(sys.argv[1], 8, 8)
ref = db.ref()
with ref.batch() as batch:
    batch.update((str(i), "v") for i in range(3000))
it = ref.iter()
for _ in range(200):
    next(it)
pid = os.fork()
if pid == 0:
    try:
        next(it)
    except xdb.XdbError as e:
        os._exit(7 if e.status is xdb.Status.INVALID else 1)
    os._exit(2)
_, status = os.waitpid(pid, 0)
assert os.WEXITSTATUS(status) == 7, status
print(200 + sum(1 for _ in it))
""", tmp_path / "s")
    assert (result.returncode, result.stdout) == (0, "3000\n"), result.stderr


class Counted:
    """The library, with a count of the calls of each function."""

    def __init__(self, lib):
        self.lib, self.calls = lib, collections.Counter()

    def __getattr__(self, name):
        def call(*args):
            self.calls[name] += 1
            return getattr(self.lib, name)(*args)

        return call


@in_python
def test_many_records_take_few_calls(ref, monkeypatch):
    lib = Counted(xdb._lib())
    monkeypatch.setattr(xdb, "_library", lib)
    items = [(b"%08d" % i, b"v" * 20) for i in range(20000)]
    batch = XdbBatch()
    for key, value in items[:10000]:
        batch.put(key, value)
    batch.update(items[10000:])
    ref.write(batch)
    assert len(batch) == 20000
    assert lib.calls["remixdb_batch_load"] <= 22
    assert lib.calls["remixdb_batch_put"] == 0 and lib.calls["remixdb_write"] == 1
    for walk, want in ((ref.iter(), items), (reversed(ref.iter()), items[::-1])):
        lib.calls.clear()
        assert list(walk) == want
        assert lib.calls["remixdb_iter_page"] <= 20000 // 1024 + 6 and sum(lib.calls.values()) < 60
    lib.calls.clear()
    assert ref.multi_get([key for key, _ in items]) == [value for _, value in items]
    assert lib.calls["remixdb_multi_get_packed"] == 1
    # the first record comes alone
    lib.calls.clear()
    it = ref.iter()
    assert next(it) == items[0] and lib.calls["remixdb_iter_page"] == 1 and len(it._handle.ahead) == 1


@in_python
def test_a_page_is_bounded(ref):
    with ref.batch() as batch:
        batch.update((b"%05d" % i, b"v" * 1000) for i in range(1000))
        batch.update((b"%05d" % i, b"v" * 60000) for i in range(1000, 1010))
    sizes, it = set(), ref.iter()
    for _ in it:
        sizes.add(len(it._handle.ahead))
        assert len(it._ahead.room) <= 1 << 16
    assert max(sizes) == 65  # of 1005 bytes in 64 KiB


def test_batch_of_every_kind_of_operation(ref):
    """In the order of putting, however many there are, whichever way they are given to the library."""
    rng = random.Random(7)
    for size in (1, 1023, 1024, 1025, 5000):
        want = dict(ref.iter())
        with ref.batch() as batch:
            for n in range(size):
                key = str(rng.randrange(300)).encode()
                what = rng.random()
                if what < 0.3:
                    batch.delete(key if rng.random() < 0.5 else key.decode())
                    want.pop(key, None)
                    continue
                want[key] = bytes([rng.randrange(256)]) * (rng.randrange(60000) if what > 0.999 else rng.randrange(30))
                if what < 0.5:
                    batch.put(bytearray(key), memoryview(want[key]))
                elif what < 0.7:
                    batch.update({key: want[key]})
                else:
                    batch.put(key, want[key])
            assert len(batch) == size
        assert dict(ref.iter()) == want
    with XdbBatch() as batch:
        batch.put("x", "y")
        batch.clear()
        assert len(batch) == 0
        for bad in ([("a",)], [("a", "b", "c")], [5]):
            with pytest.raises((TypeError, ValueError)):
                batch.update(bad)
        with pytest.raises(TypeError):
            batch.update([("a", 5)])
        raises(Status.TOOBIG, batch.put, b"k" * (xdb.KV_MAX + 1), b"v")
        raises(Status.TOOBIG, batch.delete, b"k" * (xdb.KV_MAX + 1))
        assert len(batch) == 0
    for call in (lambda: batch.put("a", "b"), lambda: batch.delete("a"), lambda: batch.update({"a": "b"}),
                 lambda: batch.update({b"a": b"b"}), lambda: len(batch)):
        raises(Status.INVALID, call)


def test_threads_putting_into_one_batch(ref):
    batch = XdbBatch()

    def work(n):
        for i in range(3000):
            batch.put(f"{n}/{i}", "v")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(batch) == 12000
    ref.write(batch)
    assert sum(1 for _ in ref.iter()) == 12000


def test_multi_get_of_large_and_many_values(ref):
    rng = random.Random(3)
    want = {str(i).encode(): bytes([i % 256]) * rng.choice([0, 5, 300, 9000, 60000]) for i in range(500)}
    with ref.batch() as batch:
        batch.update(want)
    for _ in range(20):
        keys = [str(rng.randrange(700)).encode() for _ in range(rng.choice([0, 1, 5, 400]))]
        assert ref.multi_get(keys) == [want.get(key) for key in keys]
        assert ref.multi_get([rng.choice([bytearray, memoryview, bytes, bytes.decode])(key)
                              for key in keys]) == [want.get(key) for key in keys]
    assert ref.multi_get(iter([b"1", "none"])) == [want[b"1"], None]


def test_batch_as_a_context(ref):
    ref.put("old", "1")
    with ref.batch() as batch:
        assert len(batch) == 0 and batch
        batch.put("a", "1")
        batch.put("a", "2")
        batch.delete("old")
        assert len(batch) == 3
        assert ref.get("a") is None and ref.get("old") == b"1"
    assert batch.closed
    assert ref.get("a") == b"2" and ref.get("old") is None
    with pytest.raises(KeyError):
        with ref.batch() as batch:
            batch.put("b", "1")
            raise KeyError
    assert batch.closed and ref.get("b") is None


def test_batch_by_hand(ref, tmp_path):
    with XdbBatch() as batch:
        batch.put(bytearray(b"a"), memoryview(b"1"))
        batch.put("ä", "ö")
        ref.write(batch)
        ref.delete("a")
        ref.write(batch)  # as often as one likes, to any store
        with open_store(tmp_path / "other") as db, db.ref() as other:
            other.write(batch)
            assert other.get("a") == b"1"
        assert ref.multi_get(["a", "ä"]) == [b"1", "ö".encode()]
        batch.clear()
        assert len(batch) == 0
        ref.write(batch)
        for bad in (None, 5, ["a"]):
            with pytest.raises(TypeError):
                batch.put(bad, "v")
            with pytest.raises(TypeError):
                batch.put("k", bad)
            with pytest.raises(TypeError):
                batch.delete(bad)
            with pytest.raises(TypeError):
                ref.write(bad)
        raises(Status.TOOBIG, batch.put, b"x" * (xdb.KV_MAX + 1), "")
        raises(Status.TOOBIG, batch.delete, b"x" * (xdb.KV_MAX + 1))
        assert len(batch) == 0
        for i in range(200):  # larger than a memtable
            batch.put(str(i), b"x" * 60000)
        ref.write(batch)
        assert ref.get("0") == ref.get("199") == b"x" * 60000
    for call in (lambda: batch.put("a", "1"), lambda: batch.delete("a"), batch.clear, lambda: len(batch),
                 lambda: ref.write(batch)):
        raises(Status.INVALID, call)


def test_batches_join(ref):
    first, second = XdbBatch(), XdbBatch()
    assert first.size() == 0
    first.put("a", "1")
    first.delete("b")
    second.put("b", "2")
    second.put("a", "3")
    size = first.size()
    assert size > 3
    first.append(second)
    assert len(first) == 4 and first.size() > size and len(second) == 2
    first.append(first)
    assert len(first) == 8
    ref.write(first)
    assert dict(ref.iter()) == {b"a": b"3", b"b": b"2"}
    with pytest.raises(TypeError):
        first.append([])
    second.close()
    raises(Status.INVALID, first.append, second)
    raises(Status.INVALID, second.size)


def test_merge(ref):
    seen = []

    def see(answer):
        def fn(value):
            seen.append(value)
            return answer

        return fn

    assert ref.merge("k", see(KEEP)) is None
    assert ref.merge("k", see(None)) is None
    assert ref.merge("k", see("one")) == b"one"
    assert ref.merge("k", see(KEEP)) == b"one"
    assert ref.merge("k", see(bytearray())) == b""
    assert ref.merge("k", see(memoryview(b"two"))) == b"two"
    assert ref.merge(b"k", see(None)) is None
    assert seen == [None, None, None, b"one", b"one", b"", b"two"]
    assert ref.get("k") is None
    raises(Status.TOOBIG, ref.merge, b"k" * (xdb.KV_MAX + 1), see("never"))
    assert repr(KEEP) == "xdb.KEEP"


def test_what_a_merge_function_raises(ref):
    ref.put("k", "v")
    for error in (KeyError("mine"), KeyboardInterrupt()):
        def fn(value):
            raise error

        with pytest.raises(type(error)) as info:
            ref.merge("k", fn)
        assert info.value is error
    with pytest.raises(TypeError):
        ref.merge("k", lambda value: 5)
    with pytest.raises(TypeError):
        ref.merge(5, lambda value: value)
    with pytest.raises(TypeError):
        ref.merge("k", None)
    assert ref.get("k") == b"v"


def test_a_merge_function_cannot_use_the_store(db, ref):
    ref.put("k", "v")
    it = ref.iter()
    it.seek()
    for call in (lambda: ref.get("k"), lambda: ref.put("k", "w"), db.ref, db.stats, db.close, ref.close, it.peek,
                 it.close, it.skip1):
        def fn(value):
            call()

        raises(Status.INVALID, ref.merge, "k", fn)
        assert not ref.closed and not db.closed and not it.closed
    assert ref.get("k") == b"v" and it.peek() == (b"k", b"v")


def test_what_is_collected_in_a_merge_function_is_closed_after_it(db, ref):
    ref.put("k", "v")
    its = [ref.iter() for _ in range(5)]
    for it in its:
        it.seek()
    del it
    other = db.ref()
    assert db.stats()["iterators"] == 5

    def fn(value):
        nonlocal other
        its.clear()
        other = None
        gc.collect()
        return value + b"w"

    assert ref.merge("k", fn) == b"vw"
    assert db.stats()["iterators"] == 0 and db.stats()["refs"] == 1


def test_threads_merging_lose_nothing(db):
    def add():
        with db.ref() as ref:
            for i in range(500):
                ref.merge(f"counter {i % 3}", lambda value: str(int(value or 0) + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    with db.ref() as ref:
        assert sum(int(value) for _, value in ref.iter()) == 2000


def test_snapshot(db, ref):
    ref.put("a", "1")
    ref.put("b", "1")
    with ref.snapshot() as snapshot, snapshot.ref() as old:
        ref.put("a", "2")
        ref.delete("b")
        ref.put("c", "2")
        ref.flush()
        assert db.stats()["snapshots"]["count"] == 1
        assert old.get("a") == b"1" and old.probe("b") and not old.probe("c")
        assert old.multi_get("abc") == [b"1", b"1", None]
        assert list(old.iter()) == [(b"a", b"1"), (b"b", b"1")]
        assert list(reversed(snapshot.iter())) == [(b"b", b"1"), (b"a", b"1")]
        with XdbBatch() as batch:
            batch.put("a", "3")
            for call in (lambda: old.put("a", "3"), lambda: old.delete("a"), lambda: old.merge("a", lambda v: v),
                         lambda: old.write(batch),
                         old.flush, old.compact):
                raises(Status.READONLY, call)
        with old.snapshot() as again, again.ref() as older:
            assert older.get("a") == b"1"
    assert snapshot.closed and old.closed
    assert db.stats()["snapshots"]["count"] == 0
    raises(Status.INVALID, snapshot.ref)
    assert ref.multi_get("abc") == [b"2", None, b"2"]


def test_snapshots_close_in_any_order(tmp_path):
    db = open_store(tmp_path / "s")
    ref = db.ref()
    ref.put("k", "v")
    one, two, three = ref.snapshot(), ref.snapshot(), ref.snapshot()
    ref.close()  # a snapshot does without the ref it was taken through
    old = one.ref()
    it = old.iter()
    it.seek()
    assert two.ref().get("k") == b"v"
    one.close()
    assert old.closed and it.closed
    kept = three.ref()
    del three
    gc.collect()
    assert kept.get("k") == b"v"  # a ref keeps its snapshot
    assert db.stats()["snapshots"]["count"] == 2
    db.close()
    assert two.closed and kept.closed
    two.close()


# ---- copies, and what is damaged


# ---- transactions


def test_a_transaction_is_one_step(db, ref):
    ref.put("a", "1")
    with db.transaction() as t:
        assert t.get("a") == b"1" and t.multi_get(["a", "b"]) == [b"1", None]
        t.put("b", "2")
        t.delete("a")
        with t.batch() as batch:
            batch.update({"c": "3", "d": "4"})
        assert t.merge("d", lambda v: v + b"4") == b"44"
        assert list(t.iter()) == [(b"b", b"2"), (b"c", b"3"), (b"d", b"44")]
        assert list(t.iter(reverse=True, keys_only=True, start="c")) == [b"d", b"c"]
        assert dict(ref.iter()) == {b"a": b"1"} and t.probe("b") and not t.probe("a")
    assert t.closed and dict(ref.iter()) == {b"b": b"2", b"c": b"3", b"d": b"44"}
    with db.transaction() as t:
        t.put("c1", "5")
        t.del_range("c", "d")
        t.put("c2", "6")
        inside = xdb.XdbMap(t)
        assert dict(inside) == {b"b": b"2", b"c2": b"6", b"d": b"44"}
        inside["c3"] = "7"
    assert dict(ref.iter()) == {b"b": b"2", b"c2": b"6", b"c3": b"7", b"d": b"44"}
    raises(Status.INVALID, t.get, "b")
    raises(Status.INVALID, t.commit)
    t.abort()
    with pytest.raises(ValueError):
        with db.transaction() as t:
            t.put("b", "never")
            raise ValueError
    assert t.closed and ref.get("b") == b"2"
    with db.transaction() as t:
        t.put("b", "never")
        t.abort()
    assert ref.get("b") == b"2"


def test_conflicts(db, ref):
    ref.put("a", "1")
    for read, conflict in ((lambda t: t.get("a"), True), (lambda t: t.untracked().get("a"), False),
                           (lambda t: list(t.iter(prefix="a")), True), (lambda t: t.get("other"), False),
                           (lambda t: None, False)):
        t = db.transaction()
        read(t)
        t.put("mine", "x")
        ref.put("a", "2")
        if conflict:
            raises(Status.ABORTED, t.commit)
        else:
            t.commit()
        assert t.closed and (ref.get("mine") is None) == conflict
        ref.delete("mine")
    phantom = db.transaction()
    assert [key for key, _ in phantom.iter(start="p", stop="q")] == []
    phantom.put("mine", "x")
    ref.put("p1", "new")
    raises(Status.ABORTED, phantom.commit)


def test_savepoints(db, ref):
    with db.transaction() as t:
        t.put("a", "1")
        with pytest.raises(ValueError):
            with t.savepoint():
                t.put("a", "2")
                with t.savepoint():
                    t.put("b", "3")
                raise ValueError
        assert t.get("a") == b"1" and t.get("b") is None
        with t.savepoint():
            t.put("c", "4")
        outer = t.savepoint()
        t.put("d", "5")
        t.savepoint()
        t.put("d", "6")
        t.rollback()
        assert t.get("d") == b"5"
        outer.rollback()
        outer.rollback()
        assert t.get("d") is None
        t.rollback()  # the one before "c"
        raises(Status.INVALID, t.rollback)
    assert dict(ref.iter()) == {b"a": b"1"}


def test_a_savepoint_that_was_rolled_back_does_nothing(db, ref):
    """Others may have its place then."""
    with db.transaction() as t:
        first = t.savepoint()
        t.put("a", "1")
        first.rollback()
        second = t.savepoint()
        t.put("b", "2")
        third = t.savepoint()
        t.put("c", "3")
        first.rollback()
        assert t.get("c") == b"3"
        second.rollback()
        fourth, fifth = t.savepoint(), t.savepoint()
        t.put("d", "4")
        for old in first, second, third:
            old.rollback()
        t.rollback()
        fifth.rollback()
        t.put("e", "5")
        fifth.rollback()
        assert t.get("e") == b"5"
        fourth.rollback()
        assert t.get("e") is None
        t.put("f", "6")
    assert dict(ref.iter()) == {b"f": b"6"}


def test_transact_tries_again(db):
    """Threads that all add to the same counters lose nothing."""
    def work():
        for _ in range(50):
            db.transact(add, 10000)

    def add(t):
        for key in ("x", "y"):
            t.put(key, str(int(t.get(key) or 0) + 1))
        return "done"

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with db.ref() as ref:
        assert ref.multi_get(["x", "y"]) == [b"200", b"200"]
        assert db.transact(add) == "done"

        def lose(t):
            t.get("x")
            t.put("z", "")
            ref.put("x", "other")

        raises(Status.ABORTED, db.transact, lose, 3)
    with pytest.raises(ZeroDivisionError):
        db.transact(lambda t: 1 // 0)


def test_a_transaction_over_spaces(db, ref):
    with db.space("fruit") as fruit, fruit.ref() as there:
        there.put("apples", "7")
        with db.transaction() as t:
            inside = t.ref(fruit)
            left = int(inside.get("apples")) - 1
            inside.put("apples", str(left))
            t.put("eaten", "1")
            assert t.untracked(fruit).get("apples") == b"6" and t.ref().get("eaten") == b"1"
            assert list(inside.iter()) == [(b"apples", b"6")] and there.get("apples") == b"7"
        assert inside.closed and there.get("apples") == b"6" and ref.get("eaten") == b"1"
        t = db.transaction()
        t.ref(fruit).get("apples")
        t.put("eaten", "never")
        there.put("apples", "5")
        raises(Status.ABORTED, t.commit)
        assert ref.get("eaten") == b"1"


@pytest.mark.parametrize("end", ["commit", "abort", "close"])
def test_what_is_made_from_a_transaction_ends_with_it(tmp_path, end):
    db = open_store(tmp_path / "s")
    t = db.transaction()
    t.put("a", "1")
    it, other = t.iter(), t.untracked()
    assert next(it) == (b"a", b"1") and other.get("a") == b"1"
    db.close() if end == "close" else getattr(t, end)()
    assert it.closed and other.closed and t.closed
    raises(Status.INVALID, other.get, "a")
    db.close()


def test_a_transaction_that_nobody_ends(tmp_path):
    db = open_store(tmp_path / "s")
    db.transaction().put("a", "1")
    t = db.transaction()
    t.put("a", "2")
    cycle = [t]
    cycle.append(cycle)
    del t, cycle
    gc.collect()
    with db.ref() as ref:
        assert ref.get("a") is None
    db.close()


def test_estimates_and_ranges(db, ref):
    with ref.batch() as batch:
        batch.update((b"%05d" % i, b"v" * 95) for i in range(10000))
    ref.flush()
    keys, size = ref.count()
    assert 8000 <= keys <= 12000 and 800_000 <= size <= 1_200_000
    keys, size = ref.count("02000", "04000")
    assert 1000 <= keys <= 4000 and 100_000 <= size <= 400_000
    assert ref.count("5", "4") == (0, 0) == ref.count(stop=b"")
    for i in range(10000):
        ref.put(b"%05d" % i, b"w")
    ref.compact_range("02000", "03000")
    ref.compact_range()
    assert db.figure("table_entries") == db.stats()["table_entries"] == 10000
    raises(Status.NOTFOUND, db.figure, "nothing")
    with pytest.raises(TypeError):
        db.figure(7)
    with pytest.raises(TypeError):
        ref.count(7)


def test_deleting_ranges(db, ref):
    def fill(r):
        with r.batch() as batch:
            batch.update((b"%05d" % i, b"v") for i in range(10000))

    fill(ref)
    ref.flush()
    with ref.snapshot() as then, then.ref() as old:
        ref.del_range("01000", b"02000")
        assert [key for key in ref.iter(start="00999", stop="02001", keys_only=True)] == [b"00999", b"02000"]
        assert len(list(old.iter(keys_only=True))) == 10000
    ref.del_range("5", "4")
    ref.del_range(stop=b"")
    assert len(list(ref.iter(keys_only=True))) == 9000
    with ref.batch() as batch:
        batch.put("a", "1")
        batch.put("b", "2")
        batch.del_range(start="a")
        batch.put("b", "3")
        batch.del_range(stop="09990")
    assert dict(ref.iter()) == {**{b"%05d" % i: b"v" for i in range(9990, 10000)}, b"b": b"3"}
    with db.space("other") as space, space.ref() as there:
        fill(there)
        space.map().clear()
        assert not space.map() and ref.get("b") == b"3"
    ref.del_range()
    assert list(ref.iter()) == []
    with pytest.raises(TypeError):
        ref.del_range(7)
    raises(Status.TOOBIG, ref.del_range, b"x" * 70000)


def test_ingest(db, ref):
    ref.put("00005", "old")
    with ref.ingest() as ingest:
        ingest.update((b"%05d" % i, b"v%d" % i) for i in range(5000))
        ingest.put("05000", memoryview(b"last"))
        raises(Status.INVALID, ingest.put, "00001", "not in order")
        assert ref.get("00005") == b"old" and ref.get("00001") is None
    assert ingest.closed and len(list(ref.iter())) == 5001 and ref.get("00005") == b"v5"
    raises(Status.INVALID, ingest.put, "9", "")
    raises(Status.INVALID, ingest.commit)
    with pytest.raises(ValueError):
        with ref.ingest() as ingest:
            ingest.put("a", "never")
            raise ValueError
    ingest = ref.ingest()
    ingest.put("a", "never")
    ingest.abort()
    ingest.abort()
    assert ref.get("a") is None
    other = db.ref()
    left = other.ingest()
    other.close()
    assert left.closed
    with ref.snapshot() as then, then.ref() as old:
        raises(Status.READONLY, old.ingest)


def test_expiry(ref):
    never = 1 << 62
    ref.put_expire("gone", "1", 1)
    ref.put_expire("late", "2", never)
    ref.put_expire("plain", "3", 0)
    assert [ref.get(k) for k in ("gone", "late", "plain")] == [None, b"2", b"3"]
    assert [ref.expiry(k) for k in ("gone", "late", "plain", "none")] == [None, never, 0, None]
    ref.put("late", "now without")
    assert ref.expiry("late") == 0
    with ref.batch() as batch:
        batch.put("a", "1")
        batch.put_expire("a", "2", never)
        batch.put_expire("b", "", 1)
        batch.put("c", "3")
    assert (ref.get("a"), ref.expiry("a"), ref.get("b"), ref.get("c")) == (b"2", never, None, b"3")
    for bad, error in ((-1, ValueError), (1 << 64, ValueError), (1.5, TypeError), (None, TypeError)):
        with pytest.raises(error):
            ref.put_expire("a", "", bad)
        with pytest.raises(error):
            XdbBatch().put_expire("a", "", bad)


UTC = datetime.timezone.utc


@pytest.mark.parametrize("when, ms", [
    (32503680000, 32503680000000), (32503680000.25, 32503680000250), (1e12 + 0.001, 10**15 + 1),
    (datetime.datetime(3000, 1, 1, 0, 0, 0, 1999, UTC), 32503680000001),
    (datetime.datetime(3000, 1, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))), 32503680000000)])
def test_put_expires(ref, when, ms):
    ref.put("a", "1", expires=when)
    ref.put(key="b", value="2", expires=when)
    ref.put("plain", "3", expires=None)
    assert [ref.expiry(k) for k in ("a", "b", "plain")] == [ms, ms, 0] and ref.get("b") == b"2"
    ref.put("a", "without")
    assert ref.expiry("a") == 0
    with ref.batch() as batch:
        batch.put("a", "never seen")
        batch.put("a", "4", expires=when)
        batch.put(expires=when, value="5", key=b"c")
        batch.put("b", "6", expires=None)
    assert [(ref.get(k), ref.expiry(k)) for k in "abc"] == [(b"4", ms), (b"6", 0), (b"5", ms)]
    with ref._store.transaction() as t:
        t.put("d", "7", expires=when)
        assert t.expiry("d") == ms
    assert ref.expiry("d") == ms


def test_put_expires_in_the_past_and_now(ref):
    for past in (0, -5, 1.5, -1e300, datetime.datetime(1969, 1, 1, tzinfo=UTC), datetime.datetime(2001, 1, 1)):
        ref.put("a", "there")
        ref.put("a", "gone", expires=past)
        assert ref.get("a") is None
        ref.put("a", "there")
        with ref.batch() as batch:
            batch.put("a", "gone", expires=past)
        assert ref.get("a") is None
    ref.put("a", "there")
    ref.put("a", "gone", expires=datetime.datetime.min)
    ref.put("b", "late", expires=datetime.datetime.max)
    assert ref.get("a") is None and ref.expiry("b") > 253402200000000  # the last day of the year 9999
    west = datetime.timezone(datetime.timedelta(hours=-12))
    ref.put("b", "late", expires=datetime.datetime.max.replace(tzinfo=west))
    assert ref.expiry("b") == 253402343999999
    ref.put("a", "soon", expires=time.time() + 0.05)
    ref.put("b", "late", expires=datetime.datetime.now() + datetime.timedelta(days=1))  # local time
    assert 86000 < ref.expiry("b") / 1000 - time.time() < 87000
    assert comes(lambda: ref.get("a") is None)


def test_put_expires_refused(ref):
    for put in (ref.put, XdbBatch().put):
        for bad, error in (("1", TypeError), (True, TypeError), (datetime.timedelta(1), TypeError),
                           (float("nan"), ValueError), (float("inf"), ValueError), (1e30, ValueError)):
            with pytest.raises(error):
                put("a", "1", expires=bad)
        for args, kw in ((("a", "1", 5), {}), (("a", "1"), {"other": 5}), (("a",), {"expires": 5}),
                         (("a",), {"key": "a", "value": "1"}), (("a", "1", "2", "3"), {})):
            with pytest.raises(TypeError):
                put(*args, **kw)
    assert ref.get("a") is None


def test_versions(ref):
    assert ref.getv("a") is None
    assert ref.put_if("a", "1", 0) and not ref.put_if("a", "2", 0)
    value, version = ref.getv("a")
    assert value == b"1" and version > 0
    ref.put("a", "3")
    assert not ref.put_if("a", "4", version) and not ref.del_if("a", version)
    value, later = ref.getv("a")
    assert value == b"3" and later > version
    assert ref.put_if("a", "5", later) and ref.get("a") == b"5"
    assert ref.del_if("a", ref.getv("a")[1]) and ref.get("a") is None
    ref.put("long", b"x" * 60000)
    assert ref.getv("long")[0] == b"x" * 60000
    raises(Status.INVALID, ref.del_if, "a", 0)
    with pytest.raises(ValueError):
        ref.put_if("a", "", -1)
    with pytest.raises(TypeError):
        ref.del_if("a", "1")


def test_options_that_change_while_the_store_is_open(db):
    db.set_option("workers", 1)
    db.set_option("sync", "each")
    assert db.stats()["workers"] == 1
    raises(Status.INVALID, db.set_option, "tags", "1")
    raises(Status.INVALID, db.set_option, "workers", "many")
    with pytest.raises(TypeError):
        db.set_option(7, "1")


# ---- key spaces


def test_a_ref_of_a_space(tmp_path):
    with open_store(tmp_path / "s") as db, open_store(tmp_path / "t") as other, db.ref() as ref:
        space = db.space("fruit")
        with xdb.XdbRef(db, space) as there:
            there.put("a", "1")
            assert ref.get("a") is None
        with space.ref() as there, ref.snapshot() as then, xdb.XdbRef(then, space) as old:
            assert there.get("a") == old.get("a") == b"1"
        with pytest.raises(ValueError):
            xdb.XdbRef(other, space)
        for args in ((space, space), (db, "fruit"), (db, db)):
            with pytest.raises(TypeError):
                xdb.XdbRef(*args)


def test_spaces_have_keys_of_their_own(tmp_path):
    with open_store(tmp_path / "s") as db, db.ref() as ref:
        assert db.spaces() == []
        assert 'no space "fruit"' in str(raises(Status.NOTFOUND, db.space, "fruit", False))
        fruit, other = db.space("fruit"), db.space("m\u00f6bel")
        assert db.spaces() == ["fruit", "m\u00f6bel"] and fruit.name == "fruit" and "fruit" in repr(fruit)
        with fruit.ref() as there, other.ref() as elsewhere:
            ref.put("a", "unnamed")
            there.put("a", "in fruit")
            elsewhere.put("b", "in the other")
            assert [r.get("a") for r in (ref, there, elsewhere)] == [b"unnamed", b"in fruit", None]
            assert list(fruit.iter()) == [(b"a", b"in fruit")] and list(other.iter(keys_only=True)) == [b"b"]
            assert list(ref.iter()) == [(b"a", b"unnamed")]
            assert dict(fruit.map()) == {b"a": b"in fruit"}
            fruit.map()["c"] = "3"
            with ref.batch() as batch:
                batch.put("d", "of the ref")
                batch.space(fruit)
                batch.put("d", "of fruit")
                batch.space(None)
                batch.put("e", "of the store")
                batch.space(other)
                batch.update([("d", "of the other")])
            assert [r.get("d") for r in (ref, there, elsewhere)] == [b"of the ref", b"of fruit", b"of the other"]
            assert ref.get("e") == b"of the store"
            with ref.snapshot() as then, then.ref(fruit) as old, then.ref() as plain:
                there.put("a", "later")
                assert old.get("a") == b"in fruit" and plain.get("a") == b"unnamed"
                raises(Status.READONLY, old.put, "a", "")
            fruit.close()
            assert there.get("a") == b"later"
            raises(Status.INVALID, fruit.ref)
    assert other.closed
    with open_store(tmp_path / "s") as db, db.space("fruit", create=False) as fruit:
        assert db.spaces() == ["fruit", "m\u00f6bel"]
        assert list(fruit.iter(prefix="c")) == [(b"c", b"3")]


@pytest.mark.parametrize("name, error", [("", XdbError), ("x" * 256, XdbError), ("a\nb", XdbError),
                                         ("a\0b", ValueError), (7, TypeError), (None, TypeError)])
def test_names_of_spaces_that_are_refused(db, name, error):
    with pytest.raises(error):
        db.space(name)
    assert db.spaces() == []


def test_names_of_spaces_may_have_any_byte_but_two(db):
    names = [f"a{chr(c)}b" for c in (*range(1, 10), *range(11, 256), 0x2028, 0x2029)] + ["\r", "\udcff"]
    for name in names:
        db.space(name).close()
    assert db.spaces() == names


def test_a_space_that_is_dropped(db, ref):
    ref.put("a", "unnamed")
    with db.space("fruit") as fruit, fruit.ref() as there:
        there.put("a", "in fruit")
        it = there.iter(hold=True)
        db.drop_space("fruit")
        assert db.spaces() == [] and list(it) == [(b"a", b"in fruit")]
        raises(Status.GONE, there.get, "a")
        raises(Status.GONE, there.put, "a", "")
        raises(Status.GONE, fruit.ref)
        with db.space("fruit") as other, other.ref() as anew:
            assert anew.get("a") is None and ref.get("a") == b"unnamed"
    assert 'no space "none"' in str(raises(Status.NOTFOUND, db.drop_space, "none"))
    with pytest.raises(TypeError):
        db.drop_space(7)


def test_a_space_is_needed(db, ref):
    with pytest.raises(TypeError):
        XdbBatch().space("fruit")
    with ref.snapshot() as then:
        with pytest.raises(TypeError):
            then.ref("fruit")
    with pytest.raises(TypeError):
        db.space("fruit", create=1)


def test_checkpoint_verify_destroy_repair(tmp_path, ref):
    ref.put("k", "v")
    with ref.snapshot() as snapshot, snapshot.ref() as old:
        ref.put("k", "w")
        old.checkpoint(tmp_path / "then")
    ref.checkpoint(os.fsencode(tmp_path / "now"))
    raises(Status.EXISTS, ref.checkpoint, tmp_path / "now")
    for name, value in ("then", b"v"), ("now", b"w"):
        with open_store(tmp_path / name) as db, db.ref() as r:
            assert r.get("k") == value
            r.verify()
            r.flush()
            raises(Status.LOCKED, xdb.destroy, tmp_path / name)
    table = next((tmp_path / "now").glob("*.sst"))
    data = bytearray(table.read_bytes())
    data[10] ^= 1
    table.write_bytes(data)
    with open_store(tmp_path / "now") as db, db.ref() as r:
        assert table.name in raises(Status.CORRUPT, r.verify).message
    assert re.search(r"LOST: \d+ records, in 1 place; lost.1/REPORT", xdb.repair(tmp_path / "now"))
    assert xdb.repair(tmp_path / "now") == ""  # nothing is damaged any more
    with open_store(tmp_path / "now") as db, db.ref() as r:
        r.verify()
    xdb.destroy(tmp_path / "then")
    assert not (tmp_path / "then").exists()
    raises(Status.NOTFOUND, xdb.destroy, tmp_path / "then")
    raises(Status.NOTFOUND, xdb.repair, tmp_path / "then")
    with pytest.raises(ValueError):
        xdb.destroy("a\0b")


# ---- options


def filled(path, nr=3000, **kw):
    """The figures of a store of records of about 500 bytes, a third of them random, brought into tables."""
    rnd = random.Random(1)
    with open_store(path, **kw) as db, db.ref() as ref:
        for i in range(nr):
            ref.put(f"{i:08}-{rnd.random()}", bytes(rnd.choices(range(64), k=150)) + b"always the same " * 22)
        ref.flush()
        return db.stats()


def test_defaults_are_those_of_the_library():
    opts = xdb._Opts()
    xdb._lib().remixdb_opts_init(ctypes.byref(opts), ctypes.sizeof(opts))
    assert opts.size == ctypes.sizeof(opts)
    here = {name: p.default for name, p in inspect.signature(Xdb).parameters.items() if p.default is not p.empty}
    here["cache_mb"], here["memtable_mb"] = here.pop("cachesz"), here.pop("mtsz")
    assert here.pop("cache_mb") is None and opts.cache_mb == ctypes.c_size_t(-2).value
    assert here.pop("logger") is None and not opts.logger
    for name, value in here.items():
        there = getattr(opts, name)
        assert (there.decode() if isinstance(there, bytes) else there) == value, name


def test_names_are_those_of_the_header():
    text = (ROOT / "remixdb.h").read_text()
    body = text[text.index("struct remixdb_opts {"):]
    body = re.sub(r"//.*", "", body[:body.index("\n};")])
    members = [m for m in body[body.index("{") + 1 :].split(";") if m.strip()]
    fields = [m.split("(*")[-1].split(")")[0].split()[-1].strip("*") if "(*" in m else m.split()[-1].strip("*")
              for m in members]
    assert fields == [name for name, _ in xdb._Opts._fields_]
    assert (f"REMIXDB_COMPRESSION_NONE = {xdb.COMPRESSION_NONE}, REMIXDB_COMPRESSION_ZSTD = {xdb.COMPRESSION_ZSTD} "
            in text)
    assert f"REMIXDB_SYNC_NONE = {xdb.SYNC_NONE}, REMIXDB_SYNC_EACH = {xdb.SYNC_EACH} " in text
    own = set(inspect.signature(Xdb).parameters) - {"dirname", "cachesz", "mtsz"}
    assert own == set(fields) - {"size", "cache_mb", "memtable_mb", "logger_priv"}
    for name in own:
        assert name in Xdb.__doc__


def test_ckeys_and_tags(tmp_path):
    full = filled(tmp_path / "full")["disk"]
    assert filled(tmp_path / "ckeys", ckeys=False)["disk"]["table_bytes"] < full["table_bytes"]
    assert filled(tmp_path / "tags", tags=False)["disk"]["remix_bytes"] < full["remix_bytes"]


def test_compression(tmp_path):
    sizes = [filled(tmp_path / str(i), compression=compression, compression_level=level)["disk"]["table_bytes"]
             for i, (compression, level) in enumerate([(xdb.COMPRESSION_NONE, 0), (xdb.COMPRESSION_ZSTD, 1),
                                                       (xdb.COMPRESSION_ZSTD, 19)])]
    assert sizes[0] > 2 * sizes[1] and sizes[1] > sizes[2]


def test_wal_mb(tmp_path):
    with open_store(tmp_path / "s", mtsz=64, wal_mb=1) as db, db.ref() as ref:
        for i in range(300):
            ref.put(str(i), os.urandom(10000))
        assert db.stats()["log"]["segments"] + db.stats()["compaction"]["rounds"] > 1
    with open_store(tmp_path / "t", mtsz=64) as db, db.ref() as ref:
        for i in range(300):
            ref.put(str(i), os.urandom(10000))
        assert db.stats()["log"]["segments"] == 1 and db.stats()["compaction"]["rounds"] == 0


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers(tmp_path, workers):
    assert filled(tmp_path / "s", nr=100, workers=workers)["workers"] == workers


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="no /proc")
def test_worker_cores(tmp_path):
    allowed = os.sched_getaffinity(0)

    def runs_on(cores, want):
        before = set(os.listdir("/proc/self/task"))
        with open_store(tmp_path / "s", workers=1, worker_cores=cores, io="sync"):
            (task,) = set(os.listdir("/proc/self/task")) - before
            return comes(lambda: os.sched_getaffinity(int(task)) == want)  # it is the thread itself that goes there

    assert runs_on(str(max(allowed)), {max(allowed)})
    assert runs_on(str(min(allowed)), {min(allowed)})
    assert runs_on("none", allowed)


def test_io(tmp_path, monkeypatch):
    monkeypatch.delenv("REMIXDB_IO", raising=False)
    assert filled(tmp_path / "s", nr=100, io="sync")["io"] == "sync"
    assert filled(tmp_path / "a", nr=100, io="aio")["io"] == "aio"
    monkeypatch.setenv("REMIXDB_IO", "aio")
    assert filled(tmp_path / "e", nr=100, io="sync")["io"] == "aio"


@pytest.mark.skipif(not hasattr(os, "O_DIRECT") or not os.path.isdir("/proc/self/fdinfo"),
                    reason="no O_DIRECT, or no /proc")
def test_direct_io(tmp_path):
    (tmp_path / "probe").write_text("")
    try:
        os.close(os.open(tmp_path / "probe", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the file system has no direct I/O")
    for direct in (False, True):
        filled(tmp_path / "s", nr=100)
        with open_store(tmp_path / "s", direct_io=direct) as db, db.ref() as ref:
            assert len(list(ref.iter())) == 100
            tables = [fd for fd in os.listdir("/proc/self/fd")
                      if os.path.realpath(f"/proc/self/fd/{fd}").endswith(".sst")]
            flags = [int(pathlib.Path(f"/proc/self/fdinfo/{fd}").read_text().split("flags:")[1].split()[0], 8)
                     for fd in tables]
            assert flags and all(bool(f & os.O_DIRECT) == direct for f in flags)


def test_sync(tmp_path):
    def durable(db):
        figures = db.stats()
        return figures["log"]["durable_sequence"] == figures["sequence"]

    with open_store(tmp_path / "none") as db, db.ref() as ref:
        ref.put("k", "v")
        assert not durable(db)
        ref.sync()
        assert durable(db)
    with open_store(tmp_path / "each", sync=xdb.SYNC_EACH) as db, db.ref() as ref:
        for i in range(5):
            ref.put("k", str(i))
            assert durable(db)
        assert db.stats()["log"]["syncs"] >= 5
    with open_store(tmp_path / "timer", sync=20) as db, db.ref() as ref:
        ref.put("k", "v")
        assert comes(lambda: durable(db))


def test_read_only(tmp_path):
    raises(Status.NOTFOUND, lambda: open_store(tmp_path / "s", read_only=True))
    assert not (tmp_path / "s").exists()
    with open_store(tmp_path / "s") as db, db.ref() as ref:
        ref.put("k", "v")
        raises(Status.LOCKED, lambda: open_store(tmp_path / "s", read_only=True))
    before = {p.name: p.read_bytes() for p in (tmp_path / "s").iterdir()}
    with open_store(tmp_path / "s", read_only=True) as one, open_store(tmp_path / "s", read_only=True) as two:
        raises(Status.LOCKED, open_store, tmp_path / "s")
        for db in one, two:
            assert db.stats()["read_only"] is True
            with db.ref() as ref:
                assert ref.get("k") == b"v"
                for call in (lambda: ref.put("k", "w"), lambda: ref.delete("k"),
                             lambda: ref.merge("k", lambda v: "w"), ref.flush, ref.compact):
                    raises(Status.READONLY, call)
                ref.verify()
    assert {p.name: p.read_bytes() for p in (tmp_path / "s").iterdir()} == before


def test_create_and_error_if_exists(tmp_path):
    raises(Status.NOTFOUND, lambda: open_store(tmp_path / "s", create=False))
    assert not (tmp_path / "s").exists()
    open_store(tmp_path / "s", error_if_exists=True).close()
    raises(Status.EXISTS, lambda: open_store(tmp_path / "s", error_if_exists=True))
    open_store(tmp_path / "s", create=False).close()


def test_max_open_files(tmp_path):
    assert filled(tmp_path / "s", nr=40000, mtsz=1, workers=0)["tables"] > 16
    for most in (16, 1000):
        with open_store(tmp_path / "s", read_only=True, max_open_files=most) as db, db.ref() as ref, ref.iter() as it:
            for i in range(0, 40000, 100):
                it.seek(f"{i:08}")
                assert it.valid()
            it.park()
            figures = db.stats()
            assert figures["io_totals"]["open_files"] == (16 if most == 16 else figures["tables"])


OF_OTHER_TYPES = [
    {"wal_mb": "8"}, {"wal_mb": None}, {"workers": 1.5}, {"workers": True}, {"compression": "zstd"},
    {"compression": None},
    {"compression_level": "9"}, {"sync": True}, {"sync": "each"}, {"max_open_files": "many"}, {"ckeys": 1},
    {"direct_io": "yes"},
    {"read_only": 1}, {"create": None}, {"error_if_exists": 0}, {"io": None}, {"io": b"sync"}, {"worker_cores": 0},
    {"logger": "x"}]
DO_NOT_FIT = [
    {"wal_mb": -1}, {"wal_mb": 1 << 64}, {"workers": 1 << 31}, {"workers": -(1 << 40)}, {"compression": 1 << 32},
    {"compression_level": 1 << 31},
    {"sync": 1 << 32}, {"max_open_files": -1}, {"max_open_files": 1 << 32}, {"io": "sync\0"}, {"worker_cores": "0\0"}]


@pytest.mark.parametrize("error, bad", [(TypeError, bad) for bad in OF_OTHER_TYPES]
                         + [(ValueError, bad) for bad in DO_NOT_FIT])
def test_options_that_c_would_misread_are_refused(tmp_path, error, bad):
    with pytest.raises(error) as info:
        open_store(tmp_path / "s", **bad)
    assert next(iter(bad)) in str(info.value)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("bad, part", [
    ({"wal_mb": 1 << 60}, "MiB"), ({"wal_mb": 1 << 30}, "wal_mb is 1073741824 MiB"),
    ({"mtsz": 1 << 30}, "memtable_mb"), ({"cachesz": (1 << 24) + 1}, "cache_mb"),
    ({"workers": -2}, "workers"), ({"workers": 65}, "workers"), ({"compression": 2}, "compression"),
    ({"sync": -2}, "sync"), ({"max_open_files": 15}, "max_open_files"), ({"io": "fast"}, '"fast"'),
    ({"worker_cores": "0,x"}, "0,x")])
def test_options_that_the_library_refuses(tmp_path, monkeypatch, bad, part):
    monkeypatch.delenv("REMIXDB_IO", raising=False)
    error = raises(Status.INVALID, lambda: open_store(tmp_path / "s", **bad))
    assert part in error.message
    assert not (tmp_path / "s").exists()


def test_options_have_names():
    with pytest.raises(TypeError):
        Xdb("s", 8, 8, True, 8)
    with pytest.raises(TypeError):
        Xdb("s", wall_mb=8)


# ---- the logger


def call_until(call, done):
    """A worker may say what it did a little after the call that waited for it."""
    def calls():
        if done():
            return True
        call()
        return False
    assert comes(calls), "nothing was said"


def test_logger(tmp_path):
    said = []

    def logger(line):
        assert isinstance(line, str)
        said.append((threading.get_ident(), line))

    def heard():
        assert all(ident == threading.get_ident() for ident, _ in said)
        lines = [line for _, line in said]
        said.clear()
        return lines

    with open_store(tmp_path / "s", workers=1, max_open_files=16, logger=logger) as db, db.ref() as ref:
        (line,) = heard()
        assert str(tmp_path / "s") in line and "opened" in line
        ref.put("k", "v")
        assert heard() == []
        ref.flush()
        call_until(lambda: ref.probe("k"), lambda: any("compaction" in line for line in heard()))  # said by a worker
        ref.verify()
        assert any("0 files damaged" in line for line in heard())
        table = next((tmp_path / "s").glob("*.sst"))
        data = bytearray(table.read_bytes())
        data[10] ^= 1
        table.write_bytes(data)
        raises(Status.CORRUPT, ref.verify)
        lines = heard()
        assert any(table.name in line for line in lines) and any("1 file damaged" in line for line in lines)
    raises(Status.NOTFOUND, lambda: open_store(tmp_path / "t", create=False, logger=logger))
    assert heard() == []


def test_fewer_files_than_told_are_spoken_of(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = []
    with open_store(tmp_path / "s", max_open_files=16, logger=said.append):
        assert not any("descriptors" in line for line in said)
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        try:
            with open_store(tmp_path / "t", max_open_files=5000, logger=said.append):
                pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (line,) = [line for line in said if "descriptors" in line]
    # some descriptors are left to the rest of the store, how many depends on its engine
    allowed = int(re.search(r"(\d+) table files", line).group(1))
    assert 250 <= allowed < 290 and "5000" in line and "300" in line


def test_logger_lives_as_long_as_the_store(tmp_path):
    class Logger:
        def __init__(self):
            self.lines = []

        def __call__(self, line):
            self.lines.append(line)

    logger = Logger()
    lines, there = logger.lines, weakref.ref(logger)
    db = open_store(tmp_path / "s", workers=1, logger=logger)
    ref = db.ref()
    del logger
    for i in range(20):
        gc.collect()
        ref.put(str(i), "v")
        ref.flush()
    assert len(lines) > 10 and there()
    db.close()
    assert len(lines) > 20
    del db, ref
    gc.collect()
    assert there() is None


def test_logger_that_raises(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: seen.append(args[1]))

    def logger(line):
        raise KeyError(line)

    with open_store(tmp_path / "s", workers=1, logger=logger) as db, db.ref() as ref:
        ref.put("k", "v")
        ref.flush()
        assert ref.get("k") == b"v"
        ref.verify()
    assert len(seen) > 2 and all(isinstance(e, KeyError) for e in seen)


def test_logger_may_use_the_store(tmp_path):
    said = []

    def logger(line):
        if db is None or db.closed:
            return
        if "compaction" in line:
            said.append(ref.get("k"))
            ref.verify()
        elif "verify" in line:
            said.append(line)
            db.close()

    db = None
    db = open_store(tmp_path / "s", workers=1, logger=logger)
    ref = db.ref()
    ref.put("k", "v")
    ref.flush()
    call_until(lambda: ref.probe("k"), lambda: db.closed)
    assert said[0] == b"v" and "verify" in said[-1]
    assert db.closed and ref.closed
    open_store(tmp_path / "s").close()


def test_logger_and_the_garbage_collector(tmp_path):
    """What is collected in a thread of the library, or in the middle of a call, would be closed there, and wait for
    what waits for it."""
    result = script("""
import gc, sys, threading, xdb
said, threads = [], set()
gc.callbacks.append(lambda phase, info: threads.add(threading.get_ident()))
gc.set_threshold(1)
ref = None
for n in range(20):
    db = xdb.Xdb(f"{sys.argv[1]}{n % 3}", 8, 1, workers=1, logger=lambda line: said.append([line]))
    ref = db.ref()
    for i in range(20):
        its = [ref.iter() for _ in range(3)]
        for it in its:
            it.seek()
        its.append(its)  # a cycle
        ref.put(str(i), b"x" * 60000)
        del its, it
        if i % 5 == 4:
            ref.flush()
            ref.verify()
    cycle = [db, ref]
    cycle.append(cycle)
    del db, ref, cycle
    gc.collect()
print(sum("compaction" in line for line, in said) >= 20, sum("opened" in line for line, in said),
      threads == {threading.get_ident()})
""", tmp_path / "s")
    assert result.stdout == "True 20 True\n", result.stderr


def test_logger_at_the_end_of_the_program(tmp_path):
    result = script("""
import sys, threading, xdb
db = xdb.Xdb(sys.argv[1], 8, 1, workers=2, logger=print)
def work():
    ref = db.ref()
    while True:
        ref.put("k", b"x" * 10000)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
ref = db.ref()
for i in range(1000):
    ref.put(str(i), b"x" * 10000)
""", tmp_path / "s")
    assert result.returncode == 0 and "opened" in result.stdout, result.stderr
    open_store(tmp_path / "s").close()


# ---- errors of opening


def test_a_store_is_open_once(tmp_path):
    with open_store(tmp_path / "s"):
        error = raises(Status.LOCKED, open_store, tmp_path / "s")
        assert str(tmp_path / "s") in error.message
    open_store(tmp_path / "s").close()


def test_a_file_where_the_directory_should_be(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(XdbError) as info:
        open_store(path)
    assert info.value.status not in (Status.OK, Status.NOTFOUND)
    assert "file" in info.value.message
    assert path.read_text() == "mine"


def test_a_missing_parent_directory(tmp_path):
    with pytest.raises(XdbError) as info:
        open_store(tmp_path / "none" / "store")
    assert str(tmp_path / "none") in info.value.message
    assert not (tmp_path / "none").exists()


def test_arguments_of_opening(tmp_path):
    for bad in ({"cachesz": -1}, {"mtsz": -1}, {"mtsz": 1 << 70}):
        with pytest.raises(ValueError):
            open_store(tmp_path / "s", **bad)
    with pytest.raises(TypeError):
        open_store(tmp_path / "s", mtsz="8")
    with pytest.raises(TypeError):
        open_store(None)
    with pytest.raises(ValueError):
        open_store("a\0b")
    with pytest.raises(XdbError):
        open_store("")
    assert not (tmp_path / "s").exists()
    open_store(os.fsencode(tmp_path / "s")).close()
    open_store(str(tmp_path / "s"), cachesz=0).close()


def test_status_numbers_that_are_not_known():
    error = XdbError(99, "from a newer library")
    assert error.status == 99 and "99" in str(error)


def test_statuses_are_those_of_the_header():
    text = (ROOT / "remixdb.h").read_text()
    body = text[text.index("enum remixdb_status {"):]
    body = body[:body.index("};")]
    names = [line.split("REMIXDB_")[1].split()[0].strip(",") for line in body.splitlines()
             if line.strip().startswith("REMIXDB_")]
    assert names == [s.name for s in Status]
    assert f"#define REMIXDB_KV_MAX {xdb.KV_MAX}u" in text
    assert f'"{xdb.version()}"' in text


# ---- closing


def all_calls(ref, it):
    return [lambda: ref.put("k", "v"), lambda: ref.get("k"), lambda: ref.probe("k"), lambda: ref.delete("k"),
            ref.sync, ref.iter,
            it.seek, it.valid, it.peek, it.skip1, lambda: it.skip(2), it.park, lambda: list(it), lambda: next(it),
            it.seek_last,
            lambda: it.seek_for_prev("k"), it.prev, it.key, it.value, lambda: list(reversed(it)),
            lambda: ref.multi_get(["k"]), ref.flush,
            ref.compact, lambda: ref.merge("k", lambda v: v), lambda: ref.write(XdbBatch()), ref.snapshot, ref.verify,
            lambda: ref.checkpoint("never")]


def test_closing_the_store_closes_all(tmp_path):
    db = open_store(tmp_path / "s")
    refs = [db.ref() for _ in range(3)]
    its = [r.iter() for r in refs for _ in range(2)]
    refs[0].put("k", "v")
    for it in its:
        it.seek()
    db.close()
    assert db.closed and all(r.closed for r in refs) and all(i.closed for i in its)
    for call in all_calls(refs[0], its[0]) + [db.ref, db.iter, db.stats]:
        raises(Status.INVALID, call)
    for x in its + refs + [db]:
        x.close()
    with open_store(tmp_path / "s") as db2, db2.ref() as ref:
        assert ref.get("k") == b"v"


def test_closing_a_ref_closes_its_iterators_only(db):
    a, b = db.ref(), db.ref()
    it_a, it_b = a.iter(), b.iter()
    a.put("k", "v")
    it_b.seek()
    a.close()
    for call in all_calls(a, it_a):
        raises(Status.INVALID, call)
    assert it_b.peek() == (b"k", b"v") and not db.closed
    it_b.close()
    assert b.get("k") == b"v"


def test_context_managers_close_when_an_exception_passes(tmp_path):
    with pytest.raises(ZeroDivisionError):
        with open_store(tmp_path / "s") as db, db.ref() as ref, ref.iter() as it:
            it.seek()
            raise ZeroDivisionError
    assert db.closed and ref.closed and it.closed
    open_store(tmp_path / "s").close()


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_any_order_of_closing_and_of_letting_go(tmp_path, order):
    for let_go in (False, True):
        db = open_store(tmp_path / "s")
        ref = db.ref()
        it = ref.iter()
        ref.put("k", "v")
        it.seek()
        things = [db, ref, it]
        del db, ref, it
        for i in order:
            if let_go:
                things[i] = None
            else:
                things[i].close()
        del things
        gc.collect()
        open_store(tmp_path / "s").close()  # the lock is free, so all was closed


def test_what_is_in_use_is_not_collected(tmp_path):
    it = open_store(tmp_path / "s").ref().iter()
    gc.collect()
    it.seek()
    assert not it.valid()
    raises(Status.LOCKED, open_store, tmp_path / "s")
    del it
    gc.collect()
    open_store(tmp_path / "s").close()


def test_garbage_in_a_cycle(tmp_path):
    class Holder:
        pass

    for _ in range(5):
        h = Holder()
        h.self = h
        h.db = open_store(tmp_path / "s")
        h.it = h.db.ref().iter()
        h.ref = h.db.ref()
        h.ref.put("k", "v")
        h.it.seek()
        del h
        gc.collect()
    open_store(tmp_path / "s").close()


def test_what_goes_wrong_when_a_store_is_collected_is_told(tmp_path):
    result = script("""
import resource, sys, xdb
db = xdb.Xdb(sys.argv[1], 8, 8)
ref = db.ref()
ref.put("k", "v" * 10000)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
del ref, db
print("on")
""", tmp_path / "s")
    assert (result.returncode, result.stdout) == (0, "on\n")
    assert "XdbError" in result.stderr


# ---- threads and processes


def test_threads_with_refs_of_their_own(db):
    errors = []

    def work(n):
        try:
            with db.ref() as ref:
                for i in range(500):
                    ref.put(f"{n}-{i:03}", str(i))
                assert all(ref.get(f"{n}-{i:03}") == str(i).encode() for i in range(500))
        except BaseException as e:  # an assertion of a thread would be lost otherwise
            errors.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert sum(1 for _ in db.iter()) == 2000


def test_closing_under_the_feet_of_threads(tmp_path):
    """Threads share one ref, which is a mistake but no crash, and the store is closed while they work."""
    db = open_store(tmp_path / "s")
    ref = db.ref()
    started = threading.Barrier(4)
    ends = []

    def work(n):
        started.wait()
        try:
            it = ref.iter()
            for i in range(1 << 40):
                ref.put(f"{n}-{i % 1000}", b"x" * 100)
                it.seek(f"{n}")
                it.skip(3)
                it.peek()
        except XdbError as e:
            ends.append(e.status)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    started.wait()
    time.sleep(0.2)
    db.close()
    for t in threads:
        t.join()
    assert ends == [Status.INVALID] * 3
    open_store(tmp_path / "s").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_neither_uses_nor_closes_the_store(tmp_path):
    result = script("""
import os, sys, xdb
db = xdb.Xdb(sys.argv[1], 8, 8)
ref = db.ref()
it = ref.iter()
ref.put("k", "v")
pid = os.fork()
if pid == 0:
    for call in (db.ref, ref.sync, it.seek, lambda: ref.get("k")):
        try:
            call()
        except xdb.XdbError as e:
            assert e.status is xdb.Status.INVALID, e
        else:
            os._exit(3)
    it.close(); ref.close(); db.close()
    del it, ref, db
    sys.exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
assert ref.get("k") == b"v"
ref.put("k", "w")
ref.sync()
""", tmp_path / "s")
    assert result.returncode == 0, result.stderr
    with open_store(tmp_path / "s") as db, db.ref() as ref:
        assert ref.get("k") == b"w"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_when_the_library_is_gone(tmp_path):
    """The library has the system call it at a fork, until it is unloaded."""
    result = script("""
import ctypes, _ctypes, os, sys
lib = ctypes.CDLL(os.environ.get("REMIXDB_LIBRARY") or sys.argv[2])
lib.remixdb_open.restype = ctypes.c_void_p
lib.remixdb_open.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_bool]
lib.remixdb_close.argtypes = [ctypes.c_void_p]
for i in range(2):
    store = lib.remixdb_open(sys.argv[1].encode(), 1, 1, True)
    assert store
    lib.remixdb_close(store)
_ctypes.dlclose(lib._handle)
gone = "libremixdb" not in open("/proc/self/maps").read() if os.path.exists("/proc/self/maps") else None
pid = os.fork()
if pid == 0:
    os._exit(7)
assert os.waitpid(pid, 0)[1] >> 8 == 7
print(gone)
""", tmp_path / "s", ROOT / "libremixdb.so")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() in ("True", "None")


# ---- importing and ending


def test_nothing_runs_on_import(tmp_path):
    result = script("import xdb; print(xdb.Status.OK.name)", env={"REMIXDB_LIBRARY": str(tmp_path / "none.so")})
    assert (result.returncode, result.stdout, result.stderr) == (0, "OK\n", "")


@pytest.mark.parametrize("old", [(3, 8, 18), (3, 9, 25)])
def test_an_older_python_is_refused(old):
    result = script(f"import sys; sys.version_info = {(*old, 'final', 0)}; import xdb")
    assert result.returncode == 1
    assert result.stderr.endswith(f"ImportError: xdb.py needs Python 3.10 or later; this is Python {old[0]}.{old[1]}\n")


def test_the_oldest_python_is_named_alike():
    needed = re.search(r"xdb.py needs Python ([0-9.]+) or later", (ROOT / "xdb.py").read_text()).group(1)
    assert f"Python {needed} or later" in (ROOT / "README.md").read_text().split("## In Python")[1].split("## ")[0]


def test_a_library_that_is_not_there(tmp_path):
    result = script("""
import sys, xdb
try:
    xdb.Xdb(sys.argv[1])
except OSError as e:
    print("none.so" in str(e))
""", tmp_path / "s", env={"REMIXDB_LIBRARY": str(tmp_path / "none.so")})
    assert result.stdout == "True\n", result.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "h = []; h.append((h, db, ref, it))", "del db", "del ref",
                                 "db.close()",
                                 "import threading; threading.Thread(target=work, daemon=True).start()"])
def test_exit_without_closing(tmp_path, end):
    result = script(f"""
import sys, xdb
db = xdb.Xdb(sys.argv[1], 8, 8)
ref = db.ref()
it = ref.iter()
ref.put("k", "v")
it.seek()
def work():
    r = db.ref()
    try:
        while True:
            r.put("x", "y")
    except xdb.XdbError as e:
        # The store is closed at the program's end. Nothing is printed then: CPython ends the process with an error of
        # its own when it stops a daemon thread in the middle of a print.
        if e.status is not xdb.Status.INVALID:
            raise
{end}
""", tmp_path / "s")
    assert (result.returncode, result.stderr) == (0, "")
    with open_store(tmp_path / "s") as db, db.ref() as ref:
        assert ref.get("k") == b"v"


def test_stats(db, ref):
    ref.put("k", "v")
    assert isinstance(db.stats(), dict) and db.stats()


# ---- signals

def test_a_handler_that_reads(db, ref, tmp_path):
    """A signal's handler that uses the same ref comes between any two lines of what it interrupts."""
    result = script("""
import signal, sys, time, xdb
db = xdb.Xdb(sys.argv[1], 8, 8)
ref = db.ref()
ref.put("a", "1" * 50)
ref.put("b", "2" * 9)
it = ref.iter()
it.seek("a")
calls = 0
def handler(*_):
    global calls
    calls += 1
    assert ref.get("b") == b"2" * 9
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
until = time.monotonic() + 1
while time.monotonic() < until or calls <= 10:  # a machine may stand still for all the time
    assert ref.get("a") == b"1" * 50
    assert it.peek() == (b"a", b"1" * 50)
signal.setitimer(signal.ITIMER_REAL, 0)
""", tmp_path / "s")
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


def test_a_merge_that_is_interrupted(tmp_path):
    """An exception that a handler raises comes out of merge, wherever it was raised; but Python itself drops what is
    raised in a finalizer."""
    result = script("""
import signal, sys, xdb
db = xdb.Xdb(sys.argv[1], 8, 8)
ref = db.ref()
class Stop(Exception):
    pass
def handler(*_):
    raise Stop
signal.signal(signal.SIGALRM, handler)
stopped = 0
for i in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + i * 0.00001)
        for n in range(20000):
            ref.merge("k", lambda value: str(int(value or 0) + 1))
    except (Stop, KeyboardInterrupt):
        stopped += 1
print(stopped)
""", tmp_path / "s")
    assert result.returncode == 0 and int(result.stdout) >= 90, result.stderr


def test_a_merge_that_is_interrupted_everywhere_leaves_the_key_alone_or_changes_it_as_told(tmp_path):
    """What lies in memory by chance is never taken for the function's decision: no value but those that functions
    gave, and no delete."""
    result = script("""
import signal, sys, xdb
db = xdb.Xdb(sys.argv[1], 8, 8, workers=0)
ref = db.ref()
ref.put("k", "0")
class Stop(Exception):
    pass
def handler(*_):
    raise Stop
def merge():
    return ref.merge("k", lambda value: str(int(value) + 1))
signal.signal(signal.SIGALRM, handler)
stopped = done = 0
for i in range(400):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.00002 + i * 0.0000025)
        for _ in range(20000):
            merge()
            done += 1
    except (Stop, KeyboardInterrupt):
        stopped += 1
    now = int(ref.get("k"))
    assert now in (done, done + 1), (now, done)
    done = now
    with ref.batch() as batch:  # the thread's other calls work on
        batch.put("x", "y")
    assert ref.get("x") == b"y" and merge() == str(done + 1).encode()
    done += 1
print(stopped)
""", tmp_path / "s")
    assert result.returncode == 0 and int(result.stdout) >= 390, result.stderr.splitlines()[-3:]


def test_merges_leave_no_cycles(ref):
    ref.merge("k", lambda value: b"v")
    gc.collect()
    for _ in range(5):
        ref.merge("k", lambda value: (value or b"") + b"v")
    assert gc.collect() == 0


# ---- what is not a handle of the right kind

def test_wrong_handles(db, ref):
    snapshot = ref.snapshot()
    it, batch = ref.iter(), XdbBatch()
    for wrong in (None, 5, "x", ref, it, batch):
        with pytest.raises(TypeError):
            xdb.XdbRef(wrong)
    for wrong in (None, 5, db, it, snapshot, batch):
        for kind in (xdb.XdbIter, xdb.XdbSnapshot):
            with pytest.raises(TypeError):
                kind(wrong)
        if wrong is not None:
            with pytest.raises(TypeError):
                XdbBatch(wrong)


def test_copies(db, ref):
    for handle in (db, ref, ref.iter(), ref.snapshot(), XdbBatch()):
        for make in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="neither copied nor pickled"):
                make(handle)
    assert pickle.loads(pickle.dumps(KEEP)) is KEEP and copy.deepcopy(KEEP) is KEEP


def test_next_of_a_new_iterator(ref):
    ref.put("a", "1")
    ref.put("b", "2")
    it = ref.iter()
    assert [next(it), next(it), next(it, None), next(it, None)] == [(b"a", b"1"), (b"b", b"2"), None, None]
    it = ref.iter()
    it.park()
    assert next(it, None) is None  # it needs a seek


def test_del_range(ref):
    for i in range(200):
        ref.put(b"%04d" % i, b"v%d" % i)
    ref.del_range(b"0050", b"0100")
    assert [k for k, _ in ref.iter()] == [b"%04d" % i for i in range(200) if not 50 <= i < 100]
    ref.del_range(b"0100", b"0050")  # empty
    ref.del_range("0150")
    with ref.batch() as batch:
        batch.put(b"0001", b"gone")
        batch.del_range(None, b"0010")
        batch.put(b"0002", b"there")
    assert [k for k, _ in ref.iter()] == [b"0002"] + [b"%04d" % i for i in range(10, 150) if not 50 <= i < 100]
    ref.del_range()
    assert list(ref.iter()) == []
    with pytest.raises(TypeError):
        ref.del_range(7)

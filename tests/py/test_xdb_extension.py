# SPDX-License-Identifier: Apache-2.0
"""The extension module _xdb: what its C code could do wrong and ctypes could not. What its calls do is in
test_xdb_py.py, which runs with it and without it."""

import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import xdb  # noqa: E402
from xdb import Status, Xdb, XdbBatch, XdbError  # noqa: E402

pytestmark = pytest.mark.skipif(xdb._fast is None, reason="the extension module is not built: no headers of Python")


@pytest.fixture
def db(tmp_path):
    with Xdb(tmp_path / "store", 8, 8) as store:
        yield store


@pytest.fixture
def ref(db):
    with db.ref() as r:
        yield r


def attempt(call, *args, **kw):
    try:
        call(*args, **kw)
    except (XdbError, TypeError, ValueError, RuntimeError, AttributeError):
        pass


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, str])
def test_no_reference_is_lost(ref, kind):
    """Neither on the ways that succeed nor on those that fail."""
    raw = b"a key of its own"
    key = raw.decode() if kind is str else kind(raw)
    value = kind(b"a value of its own") if kind is not str else "a value of its own"
    long = b"x" * (xdb.KV_MAX + 1)
    batch, closed = XdbBatch(), ref._store.ref()
    closed.close()
    things = key, value, long, ref._handle, ref._handle.lock, batch._handle, closed._handle

    def work():
        ref.put(key, value)
        ref.put(key=key, value=value)
        assert ref.get(key) == b"a value of its own" and ref.probe(key)
        ref.get("missing")
        ref.delete(key=key)
        batch.put(key, value)
        batch.delete(key)
        batch.update({bytes(raw): value})
        batch.update([(key, value), [key, value]])
        batch.clear()
        ref.put("many", "records")
        for it in (ref.iter(), ref.iter(keys_only=True), ref.iter(reverse=True), ref.iter(values_only=True)):
            list(it)
            it._settle()
        for bad in (lambda: ref.put(key), lambda: ref.put(key, value, value), lambda: ref.put(key, val=value),
                    lambda: ref.put(key, 7), lambda: ref.put(7, value), lambda: ref.put(key, key=key),
                    lambda: ref.put(long, value), lambda: ref.get(long), lambda: ref.probe(long), lambda: ref.get(),
                    lambda: ref.delete(long), lambda: batch.put(key, 7), lambda: batch.put(long, long),
                    lambda: batch.delete(long), lambda: batch.update({key: 7}) if kind in (bytes, str) else None,
                    lambda: batch.update([(key, value, key)]), lambda: batch.update([key]), lambda: batch.update(7),
                    lambda: batch.update(7 for _ in [0]), lambda: closed.put(key, value), lambda: closed.get(key),
                    lambda: closed.probe(key), lambda: closed.delete(key)):
            attempt(bad)

    work()
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(50):
        work()
    after = [sys.getrefcount(thing) for thing in things]
    assert all(abs(a - b) < 40 for a, b in zip(after, before)), (before, after)


def test_memory_stays(ref):
    """Every object is freed: as many blocks after a thousand rounds as after ten."""
    for i in range(3000):
        ref.put(b"%05d" % i, b"v" * (i % 300))
    ref.put("large", bytes(50000))

    def rounds(n):
        for _ in range(n):
            with ref.batch() as batch:
                batch.put("a", bytearray(b"b"))
            ref.get("large")
            ref.get("00299")
            it = ref.iter()
            for _, _ in zip(it, range(1500)):
                pass
            next(reversed(it))
            attempt(ref.get, 7)
        return sys.getallocatedblocks()

    rounds(10)
    few = rounds(10)
    assert rounds(200) - few < 100


def test_what_is_made_and_closed_leaves_nothing(db, ref):
    """Neither a handle nor a block of memory, whether it is closed, let go, or part of a cycle."""
    ref.put("a", "b")

    class Cycle:
        def __init__(self, thing):
            self.cycle, self.thing = self, thing

    def make():
        yield ref.iter(start="a", stop=bytearray(b"c"), prefix=memoryview(b"a"))
        yield ref.iter(start=b"a", hold=True, keys_only=True)
        yield db.iter()
        yield ref.snapshot()
        yield ref.snapshot().ref()
        yield ref.batch()
        yield db.ref()
        yield db.transaction()
        yield db.transaction().untracked()

    def rounds(n):
        for _ in range(n):
            for thing in make():
                with thing:
                    pass
            for thing in make():
                thing.close()
                thing.close()
            for thing in make():
                for _ in thing.iter() if hasattr(thing, "iter") else ():
                    break
            for thing in make():
                Cycle(thing)
            del thing
            for bad in ({"start": 7}, {"prefix": b"x" * 70000}, {"expect": -1}, {"expect": 1 << 32}, {"hold": 1},
                        {"keys_only": True, "values_only": True}):
                attempt(ref.iter, **bad)
            attempt(xdb.XdbTransaction, ref)
        gc.collect()
        assert not ref._handle._children and db._handle._children == [ref._handle]
        return sys.getallocatedblocks()

    rounds(10)
    few = rounds(10)
    assert rounds(500) - few < 100


def test_a_subclass_with_a_finalizer_of_its_own_is_closed(db, ref):
    class Own(xdb.XdbIter):
        def __del__(self):
            gone.append(self)

    gone = []
    it = Own(ref)
    assert len(ref._handle._children) == 1
    del it
    assert len(gone) == 1 and not gone[0].closed  # it lives again
    gone.clear()
    assert not ref._handle._children


def test_collected_at_the_end_of_the_program(tmp_path):
    """What nobody closed ends with the program, in silence: with the store, alone, and in a cycle."""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", """
import sys, threading, xdb
class Cycle:
    pass
def open_all(name):
    thing = Cycle()
    thing.cycle = thing
    thing.db = xdb.Xdb(sys.argv[1] + name, 1, 1, workers=0)
    thing.ref = thing.db.ref()
    thing.ref.put("a", "b")
    thing.more = thing.ref.iter(), thing.ref.snapshot(), thing.ref.batch(), thing.db.transaction(), xdb.XdbBatch()
    return thing
here = open_all("1")
sys.there = open_all("2")
local = threading.local()
local.batch = xdb.XdbBatch()
open_all("3")
print("end")
""", tmp_path / "s"], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=1100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_objects_that_were_never_initialised():
    """__new__ alone gives an object that every call refuses."""
    ref, it, batch = (kind.__new__(kind) for kind in (xdb.XdbRef, xdb.XdbIter, XdbBatch))
    for call in (lambda: ref.put("a", "b"), lambda: ref.get("a"), lambda: ref.probe("a"), lambda: ref.delete("a"),
                 lambda: batch.put("a", "b"), lambda: batch.delete("a"), lambda: batch.update({"a": "b"}),
                 ref.close, it.close, it.seek, it.prev, lambda: it.seek_for_prev("a"), lambda: ref.write(batch),
                 lambda: it.closed, it._settle, it._step_back, lambda: next(it)):
        with pytest.raises(AttributeError):
            call()
    assert it._left() == 0
    handle = xdb._Handle.__new__(xdb._Handle)
    ref._handle = handle
    with pytest.raises(AttributeError):
        ref.get("a")
    for wrong in (None, 7, object()):
        with pytest.raises(TypeError):
            ref._handle = wrong
        with pytest.raises(AttributeError):
            handle.lock = wrong
        with pytest.raises(TypeError):
            xdb._Handle("thing", bool, parent=7)
        with pytest.raises(TypeError):
            xdb._Handle("thing", bool, lock=wrong or 7)
    with pytest.raises(TypeError):
        handle._lines = 7


def test_the_lock_is_one():
    lock = xdb._fast.Lock()
    got = []
    with lock, lock:
        assert lock._is_owned() and lock.acquire(blocking=False)
        thread = threading.Thread(target=lambda: got.append((lock.acquire(blocking=False), lock._is_owned())))
        thread.start()
        thread.join()
        lock.release()
    assert got == [(False, False)] and not lock._is_owned()
    with pytest.raises(RuntimeError):
        lock.release()
    lock.acquire()
    waiting = threading.Thread(target=lambda: got.append(lock.acquire()))
    waiting.start()
    lock.release()
    waiting.join()
    assert got[-1] is True
    del lock  # while a thread that has ended has it


def test_a_dict_that_changes_in_an_update(tmp_path):
    """A logger may change anything; the update notices."""
    items = {b"%d" % i: b"v" for i in range(10)}
    with Xdb(tmp_path / "s", 8, 8) as db, db.ref():
        batch = XdbBatch()
        lines = [b"a line"]
        batch._handle._lines = lines
        batch._handle._after = lambda: (lines.clear(), items.clear())
        with pytest.raises(RuntimeError, match="changed size"):
            batch.update(items)


def test_pairs_have_the_hash_of_their_record(ref):
    """Since Python 3.14 a tuple keeps its hash, so none is used for a second record there."""
    with ref.batch() as batch:
        batch.update({str(i): "v%d" % i for i in range(100)})
    records = set(ref.iter())
    hashes, found = [], 0
    for pair in ref.iter():
        hashes.append(hash(pair))
        found += pair in records
        del pair
    assert found == 100 and hashes == [hash((bytes(key), bytes(value))) for key, value in sorted(records)]


def test_pairs_are_not_changed_under_their_owner(ref):
    """The iterator uses a tuple again only when nobody else has it."""
    with ref.batch() as batch:
        batch.update((b"%04d" % i, b"%d" % i) for i in range(3000))
    kept = [pair for pair in ref.iter()]
    assert kept == [(b"%04d" % i, b"%d" % i) for i in range(3000)]
    some = []
    for n, pair in enumerate(ref.iter()):
        if n % 3 == 0:
            some.append(pair)
    assert some == kept[::3]


def test_a_collection_in_the_middle_of_a_step(ref):
    """An object whose finalizer takes records is collected at any place where the garbage collector may run."""
    with ref.batch() as batch:
        batch.update((b"%04d" % i, b"%d" % i) for i in range(3000))
    it, got = iter(ref.iter()), []

    class Taker:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            got.extend(zip(["late"], it))

    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        Taker()
        for pair in it:
            got.append(("loop", pair))
            Taker()
    finally:
        gc.set_threshold(*old)
    assert sorted(pair for _, pair in got) == [(b"%04d" % i, b"%d" % i) for i in range(3000)]
    assert {who for who, _ in got} == {"loop", "late"}


def test_a_collection_in_a_call_that_fails_closes_at_once(db):
    """The exception is made when the call has ended: what its collection closes is closed then."""
    class Closer:
        def __init__(self, ref):
            self.cycle, self.ref = self, ref

        def __del__(self):
            self.ref.close()

    old = gc.get_threshold()
    for call in (lambda ref, it: ref.get(b"x" * 70000), lambda ref, it: ref.put(b"x" * 70000, ""),
                 lambda ref, it: it.seek(b"x" * 70000)):
        ref = db.ref()
        it = ref.iter()
        gc.collect()
        gc.disable()
        Closer(ref)
        gc.set_threshold(1)
        gc.enable()
        try:
            for _ in range(100):
                with pytest.raises(XdbError):
                    call(ref, it)
        finally:
            gc.set_threshold(*old)
        assert ref.closed and it.closed and not xdb._here.late and not ref._handle._children


SCRIPT = """
import ctypes, sys, threading, time, xdb
libc = ctypes.CDLL(None)
semaphore = ctypes.create_string_buffer(64)
assert libc.sem_init(semaphore, 0, 0) == 0
db = xdb.Xdb(sys.argv[1], 1, 1, workers=0)
ref = db.ref()
lib = xdb._lib()
addresses = {name: ctypes.cast(getattr(lib, name), ctypes.c_void_p).value for name in xdb._SIGNATURES}
waits = dict.fromkeys(("remixdb_put", "remixdb_getn", "remixdb_probe", "remixdb_del", "remixdb_iter_page",
                       "remixdb_write", "remixdb_iter_seek", "remixdb_iter_seek_last", "remixdb_iter_seek_for_prev",
                       "remixdb_iter_prev", "remixdb_iter_skip1"),
                      ctypes.cast(libc.sem_wait, ctypes.c_void_p).value)
waits["remixdb_errcode"] = ctypes.cast(libc.getpid, ctypes.c_void_p).value  # sem_wait's 0 is a failure of the library
it = ref.iter()
it.seek()
batch = xdb.XdbBatch()
xdb._fast.setup({**addresses, **waits}, xdb.XdbError)
failed = []
for thing, call in ((ref, lambda: ref.put("a", "b")), (ref, lambda: ref.get("a")), (ref, lambda: ref.probe("a")),
                    (ref, lambda: ref.delete("a")), (ref, lambda: ref.write(batch)), (it, lambda: next(it, None)),
                    (it, it.seek), (it, lambda: it.seek("a")), (it, it.seek_last), (it, lambda: it.seek_for_prev("a")),
                    (it, it.prev), (it, it.skip1)):
    pointer, thing._handle._pointer = thing._handle._pointer, ctypes.addressof(semaphore)
    def work():
        try:
            call()
        except xdb.XdbError as e:
            failed.append(e.status)
    thread = threading.Thread(target=work)
    thread.start()
    while thing._handle.lock.acquire(blocking=False):  # until the call has begun
        thing._handle.lock.release()
    libc.sem_post(semaphore)
    thread.join()
    thing._handle._pointer = pointer
assert failed == [libc.getpid()] * 12
xdb._fast.setup(addresses, xdb.XdbError)
print("all")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="semaphores of Linux")
def test_other_threads_run_while_a_call_waits(tmp_path):
    """Each call of the library is one that waits for a semaphore; the thread that posts it needs the interpreter."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "s"], env=env, capture_output=True, text=True,
                          timeout=1100)
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr


def test_threads_on_one_iterator_and_one_ref(ref):
    """Each record goes to one of them."""
    with ref.batch() as batch:
        batch.update((b"%06d" % i, b"v%d" % i) for i in range(20000))
    it, got = iter(ref.iter()), [[] for _ in range(4)]

    def work(mine):
        for pair in it:
            mine.append(pair)
            if len(mine) % 100 == 0:
                ref.put("x", "y")

    old = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(old)
    assert sorted(pair for mine in got for pair in mine) == [(b"%06d" % i, b"v%d" % i) for i in range(20000)]


def test_a_module_of_another_interface_is_not_used():
    code = "import sys, types; m = sys.modules['_xdb'] = types.ModuleType('_xdb'); m.INTERFACE = 0; import xdb; " \
           "print(xdb._fast)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=1100)
    assert done.stdout == "None\n", done.stderr


def test_setup_wants_all_functions():
    with pytest.raises(KeyError, match="remixdb_"):
        xdb._fast.setup({}, XdbError)
    with pytest.raises(ValueError):
        xdb._fast.setup(dict.fromkeys(xdb._SIGNATURES, 0), XdbError)
    lib = xdb._lib()
    xdb._fast.setup({name: ctypes.cast(getattr(lib, name), ctypes.c_void_p).value for name in xdb._SIGNATURES},
                    XdbError)


def test_an_error_has_its_status_and_message(ref):
    with pytest.raises(XdbError) as info:
        ref.get(b"x" * 70000)
    assert info.value.status is Status.TOOBIG and "70000" in info.value.message
    assert info.value.args == (Status.TOOBIG, info.value.message)

# SPDX-License-Identifier: Apache-2.0
"""xdb.py: what a signal's handler does, or raises, in the middle of it.

Python runs a handler between two steps of the main thread: after a call of a function, at the beginning of one, and
at a jump backward. The tests here come to each of these places of xdb.py, one after the other, without a signal."""

import collections
import dis
import functools
import gc
import itertools
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

places = pytest.mark.skipif(sys.version_info < (3, 11) or sys.implementation.name != "cpython",
                            reason="the places of CPython 3.11 and later")

DESTROYS = {"remixdb_open_opts": "remixdb_close", "remixdb_ref": "remixdb_unref",
            "remixdb_snapshot_space_ref": "remixdb_unref", "remixdb_space_ref": "remixdb_unref",
            "remixdb_space_open": "remixdb_space_close", "remixdb_space_list": "remixdb_free",
            "remixdb_snapshot": "remixdb_snapshot_release", "remixdb_iter_create_opts": "remixdb_iter_destroy",
            "remixdb_gets_create": "remixdb_gets_destroy", "remixdb_batch_create": "remixdb_batch_destroy",
            "remixdb_ingest_begin": "remixdb_ingest_abort", "remixdb_txn_begin": "remixdb_txn_abort",
            "remixdb_stats": "remixdb_free"}
# These end with what they are made from.
ENDS_WITH_ITS_OWNER = {"remixdb_txn_ref", "remixdb_txn_untracked"}
SAME_END = {"remixdb_txn_commit": "remixdb_txn_abort", "remixdb_ingest_commit": "remixdb_ingest_abort"}
TAKE_NO_POINTER = {"remixdb_opts_init", "remixdb_open_opts", "remixdb_iter_opts_init"}


class Library:
    """The library, and what it has handed out that was not destroyed."""

    def __init__(self, lib):
        self.alive = {}  # pointer: (what destroys it, what it was made from)
        self.faults = []
        for name, (_, arguments) in xdb._SIGNATURES.items():
            if name in TAKE_NO_POINTER or not arguments or arguments[0] is not xdb._P:
                nr = 0
            else:
                nr = 2 if name == "remixdb_write" else 1
            setattr(self, name, functools.partial(self._call, name, getattr(lib, name), nr))

    def _call(self, name, function, nr, *args):
        if any(pointer not in self.alive for pointer in args[:nr]):
            self.faults.append(f"{name} of what is not there")
            return None
        end = SAME_END.get(name, name)
        if end in DESTROYS.values():
            for pointer in [p for p, (by, parent) in self.alive.items() if by is None and parent == args[0]]:
                del self.alive[pointer]
            if self.alive[args[0]][0] != end or any(parent == args[0] for _, parent in self.alive.values()):
                self.faults.append(f"{name} at the wrong time")
                return None
            del self.alive[args[0]]
        result = function(*args)
        if name in DESTROYS and result is not None:
            of = args[0] if nr and not name.endswith(("stats", "list")) else None
            # a snapshot outlives the ref it is taken through
            while name in ("remixdb_snapshot", "remixdb_space_ref") and self.alive[of][1] is not None:
                of = self.alive[of][1]
            self.alive[result] = DESTROYS[name], of
        if name in ENDS_WITH_ITS_OWNER and result is not None:
            self.alive[result] = None, args[0]
        return result


class Code:
    """Where a handler may run in a function: after these instructions, unless the next one begins to deal with an
    exception, or an exception there goes elsewhere."""

    def __init__(self, code):
        self.handlers = {}  # for each offset where the code goes on when there is an exception
        for entry in dis.Bytecode(code).exception_entries:
            self.handlers.update((offset, entry.target) for offset in range(entry.start, entry.end, 2))
        names = {i.offset: i.opname for i in dis.get_instructions(code)}
        self.after = {at for at, name in names.items() if name.startswith(("CALL", "JUMP_BACKWARD"))}
        self.begins = {at for at, name in names.items() if name == "PUSH_EXC_INFO"}


code_of = functools.lru_cache(None)(Code)


class Place:
    """Calls `what` at the n-th place where a handler may run."""

    def __init__(self, n, what):
        self.left, self.what, self.done, self.outside = n, what, None, None

    def __enter__(self):
        self.outside = sys._getframe(1)
        sys.settrace(self.trace)

    def __exit__(self, *exc):
        sys.settrace(None)
        self.outside = None

    def trace(self, frame, event, arg):
        if frame.f_code.co_filename != xdb.__file__ or self.finalizing(frame):
            return None
        self.come(frame)
        if self.done:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        code, before = code_of(frame.f_code), None

        def step(frame, event, arg):
            nonlocal before
            if event == "opcode":
                at, last = frame.f_lasti, before
                before = at
                if (last in code.after and at not in code.begins
                        and code.handlers.get(last) == code.handlers.get(at)):
                    self.come(frame)
            return step

        return step

    def come(self, frame):
        self.left -= 1
        if self.left < 0:
            sys.settrace(None)  # the rest goes its way
            self.done = f"{frame.f_code.co_name}:{frame.f_lineno}"
            self.what()

    def finalizing(self, frame):  # Python drops what is raised there
        while frame is not self.outside:
            if frame.f_code.co_filename.endswith("weakref.py") and frame.f_code.co_name == "__call__":
                return True
            frame = frame.f_back
        return False


def enough(places, least):
    """Whether a test came to more than so many places. Calls that the extension module has in C have fewer."""
    return places > least or xdb._fast is not None


class Stop(BaseException):
    pass


def stop():
    raise Stop


def free(*locks):
    """Whether another thread could take each of the locks."""
    got = []

    def work():
        for lock in locks:
            got.append(lock.acquire(blocking=False))
            if got[-1]:
                lock.release()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return len(got) == len(locks) and all(got)


@pytest.fixture
def lib(monkeypatch):
    library = Library(xdb._lib())
    monkeypatch.setattr(xdb, "_library", library)
    gc.freeze()  # the many collections here need not look at what was there before
    yield library
    gc.unfreeze()


Things = collections.namedtuple("Things", "db ref it batch snapshot")


def open_store(path, **kw):
    return Xdb(path, 1, 1, workers=0, io="sync", **kw)


def things(db):
    ref = db.ref()
    for k in "abcdef":
        ref.put(k, k.upper() * 9)
    it = ref.iter()
    it.seek("b")
    batch = XdbBatch()
    batch.put("g", "G")
    return Things(db, ref, it, batch, ref.snapshot())


def use_batch(t):
    with t.ref.batch() as batch:
        batch.put("h", "H")
        batch.delete("g")
        return len(batch)


def gather(t):
    with t.ref.batch() as batch:
        batch.put("h", "H")
        batch.update([("g", "G"), (b"i", b"I")])
        batch.put("large", "x" * 5000)
        batch.delete("g")
        return len(batch)


def use_snapshot(t):
    with t.ref.snapshot() as then, then.ref() as old:
        return old.get("a")


def use_gets(t):
    with t.ref.gets(4) as gets:
        gets.begin("a")
        gets.begin("nothing")
        return sorted(gets.poll(wait=2))


def use_transaction(t):
    with t.db.transaction() as transaction:
        transaction.put("x", transaction.get("a"))
        with transaction.savepoint() as savepoint:
            transaction.put("x", "other")
            savepoint.rollback()
        it, untracked = transaction.iter(), transaction.untracked()  # they end with it
        next(it)
        untracked.get("b")
    return t.ref.get("x")


def use_space(t):
    with t.db.space("s") as space, space.ref() as ref:
        ref.put("a", "in the space")
        with ref.batch() as batch:
            batch.put("b", "B")
            batch.space(None)
            batch.put("x", "unnamed")
        with t.ref.snapshot() as then, then.ref(space) as old:
            return old.get("a"), t.ref.get("x"), t.db.spaces()


def use_versions(t):
    t.ref.put("v", "1")
    won = t.ref.put_if("v", "2", t.ref.getv("v")[1])
    return won, t.ref.del_if("v", t.ref.getv("v")[1])


def use_ingest(t):
    with t.ref.ingest() as ingest:
        ingest.put("w", "1")
        ingest.update({"x": "2"})
    t.ref.ingest().abort()
    return t.ref.get("x")


def give_up(t):
    transaction = t.db.transaction()
    transaction.put("x", "never")
    transaction.abort()
    return transaction.closed


CALLS = {
    "transaction": use_transaction,
    "abort": give_up,
    "versions": use_versions,
    "expiry": lambda t: (t.ref.put_expire("e", "E", 1 << 60), t.ref.expiry("e")),
    "ingest": use_ingest,
    "ranges": lambda t: (t.ref.del_range("x", "y"), t.batch.del_range("y"), t.ref.compact_range(), t.ref.get("a")),
    "joined batches": lambda t: (t.batch.append(XdbBatch()), len(t.batch), t.batch.size() > 0),
    "space": use_space,
    "gets": use_gets,
    "put": lambda t: t.ref.put("x", "y"),
    "get": lambda t: t.ref.get("a"),
    "probe": lambda t: t.ref.probe("a"),
    "delete": lambda t: t.ref.delete("x"),
    "multi_get": lambda t: t.ref.multi_get(["a", "b"]),
    "merge": lambda t: t.ref.merge("m", lambda v: b"1"),
    "write": lambda t: t.ref.write(t.batch),
    "batch": use_batch,
    "stats": lambda t: bool(t.db.stats()),
    "sync": lambda t: t.ref.sync(),
    "flush": lambda t: t.ref.flush(),
    "verify": lambda t: t.ref.verify(),
    "ref": lambda t: t.db.ref().get("a"),
    "close a ref": lambda t: t.db.ref().close(),
    "snapshot": use_snapshot,
    "ref of a snapshot": lambda t: t.snapshot.ref().get("a"),
    "iterator": lambda t: next(t.db.iter()),
    "backward": lambda t: next(reversed(t.ref.iter())),
    "walk": lambda t: (t.it.seek("c"), t.it.skip1(), t.it.prev(), t.it.skip(2), t.it.key(), t.it.value(),
                       t.it.peek(), t.it.valid()),
    "seek": lambda t: (t.it.seek_last(), t.it.key(), t.it.seek_for_prev("bb"), t.it.key()),
    "scan": lambda t: (list(itertools.islice(t.ref.iter(), 4)), list(itertools.islice(reversed(t.ref.iter()), 4))),
    "gather": gather,
    "park": lambda t: t.it.park(),
    "close an iterator": lambda t: t.ref.iter().close(),
}


@places
# Python prints an exception that is raised before a merge's function is in its try
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", CALLS)
def test_an_exception_at_every_place(tmp_path, lib, name):
    """Nothing is left over, nothing stays locked, and all works on."""
    logger = None if name in ("get", "merge") else lambda line: None
    t = things(open_store(tmp_path / "s", logger=logger))
    want = CALLS[name](t)
    gc.collect()
    base = dict(lib.alive)
    for n in range(10000):
        place = Place(n, stop)
        try:
            with place:
                CALLS[name](t)
        except (Stop, KeyboardInterrupt):  # a merge cannot tell which, when it comes before its function is called
            pass
        if not place.done:
            break
        assert not lib.faults, place.done
        assert lib.alive == base, place.done
        assert not xdb._here.merging.locked() and not xdb._here.late, place.done
        assert free(*(thing._handle.lock for thing in t)), place.done
        if logger:
            assert not t.db._handle._log._turn.locked(), place.done
    assert enough(n, 5)
    assert CALLS[name](t) == want
    for thing in t:
        thing.close()
    assert not lib.alive and not lib.faults


@places
@pytest.mark.parametrize("logger", [None, lambda line: None], ids=["", "logger"])
def test_an_exception_at_every_place_of_opening_and_closing(tmp_path, lib, logger):
    def work():
        db = open_store(tmp_path / "s", logger=logger)
        ref = db.ref()
        it = ref.iter()
        snapshot = ref.snapshot()
        ref.put("a", "1")
        db.close()
        assert it.closed and snapshot.closed

    for n in range(10000):
        place = Place(n, stop)
        try:
            with place:
                work()
        except Stop:
            pass
        if not place.done:
            break
        assert not lib.alive and not lib.faults, place.done  # what is not alive is not locked either
    assert enough(n, 50)


@places
def test_opening_that_is_interrupted_leaves_nothing_open_while_the_exception_lives(tmp_path, lib):
    made = 0
    for n in range(10000):
        place, kept = Place(n, stop), None
        try:
            with place:
                open_store(tmp_path / "s")
        except Stop as e:
            kept = e  # with the frames that it passed through, and what they hold
        if not place.done:
            break
        if place.done.startswith("make:"):
            made += 1
            assert kept and not lib.alive, place.done
    assert enough(made, 1)


@places
@pytest.mark.parametrize("name", CALLS)
def test_a_handler_that_reads_at_every_place(tmp_path, lib, name):
    t = things(open_store(tmp_path / "s"))
    CALLS[name](t)
    want = CALLS[name](t)
    gc.collect()
    base = dict(lib.alive)
    seen = []

    def read():
        try:
            seen.append(t.ref.get("f"))
            with t.ref.iter() as it:
                seen.append(next(it)[1])
            seen.append(t.it.valid())
        except XdbError as e:  # in a merge
            seen.append(e.status)

    for n in range(10000):
        place = Place(n, read)
        with place:
            assert CALLS[name](t) == want, place.done
        if not place.done:
            break
        assert lib.alive == base and not lib.faults, place.done
    assert enough(n, 5) and enough(seen.count(b"F" * 9), 5)
    assert Status.INVALID not in seen or name == "merge"
    t.db.close()


@places
@pytest.mark.parametrize("name, which", [(name, which) for name in CALLS for which in ("ref", "it")] + [
    (name, "db") for name in ("get", "merge", "ref of a snapshot", "seek")] + [("write", "batch")])
def test_a_handler_that_closes_at_every_place(tmp_path, lib, name, which):
    """What the call is in the middle of is closed when it ends, and is not used before."""
    db = open_store(tmp_path / "s")
    for n in range(10000):
        if db.closed:
            db = open_store(tmp_path / "s")
        t = things(db)
        made, closed = set(lib.alive), []

        def close():
            try:
                getattr(t, which).close()
                closed.append(getattr(t, which).closed)
            except XdbError:  # in a merge
                closed.append(None)

        place = Place(n, close)
        try:
            with place:
                CALLS[name](t)
        except XdbError as e:
            assert e.status is Status.INVALID and "closed" in e.message, place.done
        assert not lib.faults and not xdb._here.late, place.done
        if closed == [True]:
            left = [destroy for pointer, (destroy, _) in lib.alive.items() if pointer in made]
            assert left.count("remixdb_close") == (which != "db"), place.done
            assert left.count("remixdb_iter_destroy") == (which == "batch"), place.done
        for thing in t[1:]:
            thing.close()
        gc.collect()
        assert len(lib.alive) == (not db.closed) and not lib.faults, place.done
        if not place.done:
            break
        assert closed == [True] or name == "merge" and closed == [None], place.done
    assert enough(n, 5)
    db.close()
    assert not lib.alive and not lib.faults


RECORDS = 30


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(xdb, "_PAGE_GROWS", 3)
    monkeypatch.setattr(xdb, "_PAGE_MAX", 9)


def store_of(path, records=RECORDS):
    db = open_store(path)
    with db.ref() as ref, ref.batch() as batch:
        batch.update((b"%03d" % i, b"v" * (i % 50)) for i in range(records))
    return db


def scan(it, got):
    for pair in it:
        got.append(pair)


def mixed(it, got):
    """All of it, and between the records what has to know where the iterator stands."""
    for n, pair in enumerate(it):
        got.append(pair)
        if n % 5 == 1 and it.valid():
            assert it.key() > pair[0]
        if n % 7 == 2:
            it.prev()
            it.skip1()


MIXED_RECORDS = 15  # some pages; there are many places, and each is another walk
WALKS = {"scan": scan, "mixed": mixed, "backward": lambda it, got: scan(reversed(it), got)}


@places
@pytest.mark.parametrize("name", WALKS)
def test_a_scan_that_is_interrupted_goes_on(tmp_path, lib, small_pages, name):
    """No record comes twice, and none is lost but the one that the interrupted call may have taken."""
    db = store_of(tmp_path / "s", MIXED_RECORDS if name == "mixed" else RECORDS)
    ref = db.ref()
    want = list(ref.iter())
    if name == "backward":
        want.reverse()
    lost = 0
    for n in range(10000):
        place, got = Place(n, stop), []
        it = ref.iter()
        if name == "backward":
            it.seek_last()
        else:
            it.seek()
        try:
            with place:
                WALKS[name](it, got)
        except Stop:
            pass
        if not place.done:
            break
        before = len(got)
        scan(reversed(it) if name == "backward" else it, got)
        it.close()
        assert not lib.faults, place.done
        if name == "mixed" and got[before:before + 1] == want[before - 1:before]:  # between prev and skip1
            del got[before]
        lost += got != want
        assert got == want or got == want[:before] + want[before + 1:], place.done
    assert got == want and enough(n, 50)
    assert lost <= n / 2
    db.close()


@places
@pytest.mark.parametrize("name", WALKS)
def test_a_handler_that_looks_at_the_iterator_of_a_scan(tmp_path, lib, small_pages, name):
    db = store_of(tmp_path / "s", MIXED_RECORDS if name == "mixed" else RECORDS)
    ref = db.ref()
    want = list(ref.iter())
    if name == "backward":
        want.reverse()
    for n in range(10000):
        it, got = ref.iter(), []

        def look():
            it.valid()
            it.peek()
            it.key()
            if name != "mixed":  # its "not found" may be told to a call that is not a scan's
                ref.get("none")

        if name == "backward":
            it.seek_last()
        else:
            it.seek()
        place = Place(n, look)
        with place:
            WALKS[name](it, got)
        assert got == want and not lib.faults, place.done
        it.close()
        if not place.done:
            break
    assert enough(n, 50)
    db.close()


@places
def test_a_batch_whose_putting_is_interrupted_is_whole(tmp_path, lib, monkeypatch):
    monkeypatch.setattr(xdb, "_GATHER_MAX", 4)
    db = open_store(tmp_path / "s")
    ref = db.ref()
    for n in range(10000):
        batch, puts, place = XdbBatch(), 0, Place(n, stop)
        try:
            with place:
                while puts < 8:
                    batch.put(b"%d" % puts, b"v")
                    puts += 1
        except Stop:
            pass
        assert len(batch) in (puts, puts + 1), place.done
        for key in range(puts, 8):
            batch.put(b"%d" % key, b"w")
        ref.write(batch)
        assert dict(ref.iter()) == {b"%d" % i: b"v" if i < puts else b"w" for i in range(8)}, place.done
        assert not lib.faults, place.done
        if not place.done:
            break
        batch.close()
    assert enough(n, 50)
    db.close()


# ---- with signals


def script(text, *args):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", text, *map(str, args)], env=env, capture_output=True, text=True,
                          timeout=1100)


def test_a_handler_that_closes_the_store_and_ends_the_program(tmp_path):
    for i in range(10):
        result = script("""
import signal, sys, xdb
db = xdb.Xdb(sys.argv[1], 1, 1, workers=0)
ref = db.ref()
it = ref.iter()
ref.put("k", sys.argv[2])
def handler(*_):
    db.close()
    assert db.closed and ref.closed
    sys.exit(7)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.01 + int(sys.argv[2]) * 0.00037)
while True:
    ref.put("x", "y")
    ref.get("x")
    ref.multi_get(["x", "k"])
    it.seek()
    it.key()
""", tmp_path / "s", i)
        assert result.returncode == 7, result.stderr
        with open_store(tmp_path / "s") as db, db.ref() as ref:
            assert ref.get("k") == str(i).encode()


def test_opening_that_is_interrupted_leaves_nothing_open(tmp_path):
    result = script("""
import signal, sys, xdb
class Stop(Exception):
    pass
armed = False
def handler(*_):
    if armed:
        raise Stop
signal.signal(signal.SIGALRM, handler)
stopped = 0
for i in range(60):
    db = ref = None
    try:
        armed = True
        # again and again: what is raised in a finalizer comes to nobody
        signal.setitimer(signal.ITIMER_REAL, 0.0001 + i * 0.00015, 0.5)
        while True:
            with xdb.Xdb(sys.argv[1], 1, 1, workers=0) as db, db.ref() as ref:
                ref.put("k", "v")
    except Stop:
        armed = False
        stopped += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    db = ref = None
    xdb.Xdb(sys.argv[1], 1, 1, workers=0).close()
print(stopped)
""".replace("        assert db.closed\n", ""), tmp_path / "s")
    assert (result.returncode, result.stdout) == (0, "60\n"), result.stderr

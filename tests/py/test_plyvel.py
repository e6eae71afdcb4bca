# SPDX-License-Identifier: Apache-2.0
"""remixdb.plyvel: plyvel's own tests, and what they do not ask. plyvel's tests come from its source distribution, which
`make deps` puts into build/pypi."""

import gc
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

from remixdb import plyvel  # noqa: E402

SOURCES = sorted((ROOT / "build" / "pypi").glob("plyvel-*.tar.gz"))
# One wants another order than that of bytes (test_another_comparator_is_refused), the other one keys of 100 kB, which
# are too long for RemixDB (test_sizes_of_ranges).
NOT_FOR_US = {"test_comparator", "test_approximate_sizes"}


@pytest.mark.skipif(not SOURCES, reason="plyvel's source distribution is not here; make deps fetches it")
def test_plyvels_own_tests(tmp_path):
    with tarfile.open(SOURCES[-1]) as tar:
        name, = [name for name in tar.getnames() if re.fullmatch(r"[^/]+/test/test_plyvel\.py", name)]
        (tmp_path / "test_of_plyvel.py").write_bytes(tar.extractfile(name).read())
    (tmp_path / "conftest.py").write_text("import sys\nfrom remixdb import plyvel\nsys.modules['plyvel'] = plyvel\n")
    deselected = [f"--deselect=test_of_plyvel.py::{name}" for name in NOT_FOR_US]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'python'}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *deselected, "."], env=env,
                          cwd=tmp_path, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1]))
    counts = {word: int(number) for number, word in counts.items()}
    assert counts["passed"] >= 50 and counts["deselected"] == len(NOT_FOR_US)
    assert not counts.keys() & {"skipped", "failed", "error", "errors"}


@pytest.fixture
def db(tmp_path):
    with plyvel.DB(tmp_path / "store", create_if_missing=True) as store:
        yield store


def test_iterators_outlive_their_snapshot(db):
    """As plyvel's do. The snapshot goes with the last of them."""
    for i in range(5):
        db.put(b"%d" % i, b"v")
    with db.snapshot() as snapshot:
        some, raw = snapshot.iterator(include_value=False), snapshot.raw_iterator()
        raw.seek_to_first()
        assert next(some) == b"0"
    snapshot.close()
    db.put(b"9", b"later")
    for call in (lambda: snapshot.get(b"0"), snapshot.iterator, snapshot.raw_iterator):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    assert list(some) == [b"1", b"2", b"3", b"4"]
    raw.next()
    assert raw.key() == b"1"
    count = db._db.stats
    assert count()["snapshots"]["count"] == 1
    some.close()
    assert raw.item() == (b"1", b"v")
    del raw, some
    gc.collect()
    assert count()["snapshots"]["count"] == 0
    snapshot = db.snapshot()
    with snapshot.iterator() as some:
        next(some)
    snapshot.close()
    assert count()["snapshots"]["count"] == 0


def test_another_comparator_is_refused(tmp_path):
    with pytest.raises(NotImplementedError, match="by their bytes"):
        plyvel.DB(tmp_path / "s", create_if_missing=True, comparator=lambda a, b: 0, comparator_name=b"other")
    assert not (tmp_path / "s").exists()


def test_errors_are_those_of_plyvel(tmp_path):
    with pytest.raises(plyvel.IOError) as info:
        plyvel.DB(tmp_path / "none")
    assert isinstance(info.value, OSError) and isinstance(info.value, plyvel.Error)
    assert "NOTFOUND" in str(info.value) and info.value.__cause__.status == 1
    with plyvel.DB(tmp_path / "s", create_if_missing=True):
        with pytest.raises(plyvel.IOError, match="LOCKED"):
            plyvel.DB(tmp_path / "s")
    (tmp_path / "s" / "CURRENT").write_bytes(b"damaged")
    with pytest.raises(plyvel.CorruptionError):
        plyvel.DB(tmp_path / "s")


@pytest.mark.parametrize("reverse", [False, True])
def test_an_iterator_walks_between_records(db, reverse):
    """Steps in both directions, against a list and a place in it."""
    keys = [b"%02d" % i for i in range(40)]
    for key in keys:
        db.put(key, b"v" + key)
    inside = keys[5:30]
    it = db.iterator(start=keys[5], stop=keys[30], reverse=reverse, include_value=False)
    db.put(b"07x", b"later")
    at = len(inside) if reverse else 0
    for step in range(400):
        forward = (step * 7919 // 13) % 5 < 3
        behind = forward != reverse
        place = at if behind else at - 1
        got = next(it, None) if forward else next((it.prev() for _ in [0]), None) if 0 <= place < len(inside) else None
        if 0 <= place < len(inside):
            assert got == inside[place], step
            at += 1 if behind else -1
        elif not forward:
            with pytest.raises(StopIteration):
                it.prev()
        else:
            assert got is None


def test_sizes_of_ranges(db):
    with db.write_batch() as batch:
        for i in range(500):
            batch.put(b"%03d" % i, b"v" * 97)
    whole, half, none = db.approximate_sizes((b"", b"\xff"), (b"250", b"\xff"), (b"5", b"4"))
    assert 20_000 < half < whole < 100_000 and none == 0 == db.approximate_size(b"x", b"y")
    for wrong in ((1, 2), None, (b"a", b"b", b"c")):
        with pytest.raises(TypeError):
            db.approximate_sizes(wrong)
    with pytest.raises(plyvel.Error, match="TOOBIG"):
        db.put(b"k" * 100_000, b"")


def test_threads_share_a_store(db):
    def work(n):
        for i in range(300):
            db.put(b"%d-%d" % (n, i), b"v")
            assert db.get(b"%d-%d" % (n, i)) == b"v"

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(db)) == 1200


def test_prefixes_nest_and_are_cut_off(db):
    inner = db.prefixed_db(b"a").prefixed_db(b"b")
    inner.put(b"c", b"1")
    db.put(b"ab\xff", b"2")
    db.put(b"ac", b"3")
    assert list(inner) == [(b"c", b"1"), (b"\xff", b"2")]
    assert list(inner.iterator(include_key=False, reverse=True)) == [b"2", b"1"]
    with inner.raw_iterator() as raw:
        raw.seek_to_last()
        assert raw.item() == (b"\xff", b"2")
        raw.prev()
        assert raw.key() == b"c"
        raw.prev()
        assert not raw.valid()
        with pytest.raises(plyvel.IteratorInvalidError):
            raw.prev()


@pytest.mark.parametrize("prefix", [b"", b"p", b"\xff"])
def test_keys_at_the_greatest_length_and_above(db, prefix):
    """Ranges and seeks do what their bounds say, also where no key can be as long as a bound."""
    most = 65500 - len(prefix)
    for part in b"", b"p", b"\xff":
        keys = [part + b"a", part + b"b" * (65500 - len(part)), part + b"c", (part + b"\xff" * 65500)[:65500]]
        with db.write_batch() as batch:
            for key in keys:
                batch.put(key, b"v")
    of = db.prefixed_db(prefix)
    keys = [key for key in of.iterator(include_value=False)]
    assert {len(key) for key in keys} >= {1, most} and keys == sorted(keys)
    long = [b"a" * 70000, b"b" * most, b"b" * (most + 1), b"b" * most + b"\xff" * 9, b"c" * 70000, b"\xff" * most,
            b"\xff" * (most + 1), b"b" * (most - 1) + b"\xff" * 3]
    bounds = [None, b"", b"c", *long]
    for start in bounds:
        for stop in bounds:
            for flags in range(4):
                with_start, with_stop = bool(flags & 1), bool(flags & 2)
                want = [key for key in keys if
                        (start is None or key > start or (with_start and key == start)) and
                        (stop is None or key < stop or (with_stop and key == stop))]
                for reverse in False, True:
                    got = list(of.iterator(start=start, stop=stop, include_start=with_start, include_stop=with_stop,
                                           include_value=False, reverse=reverse))
                    assert got == (want[::-1] if reverse else want)
    raw, it = of.raw_iterator(), of.iterator(include_value=False)
    for key in long:
        assert of.get(key) == (b"v" if key in keys else None) and of.get(key, 7) == (b"v" if key in keys else 7)
        assert list(of.iterator(prefix=key, include_value=False)) == [one for one in keys if one.startswith(key)]
        ahead = [one for one in keys if one >= key]
        raw.seek(key)
        assert raw.valid() == bool(ahead) and (not ahead or raw.key() == ahead[0])
        it.seek(key)
        assert list(it) == ahead
        it.seek(key)
        before = [one for one in keys if one < key]
        assert it.prev() == before[-1]
        db.compact_range(start=key, stop=key + b"x")
        assert db.approximate_size(b"", key) >= 0 and db.approximate_size(key, key) == 0
        if len(key) > most:
            for refused in lambda: of.put(key, b""), lambda: of.delete(key):
                with pytest.raises(plyvel.Error, match="65500|long"):
                    refused()

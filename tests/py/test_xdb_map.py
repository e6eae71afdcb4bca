# SPDX-License-Identifier: Apache-2.0
"""xdb.XdbMap: a store as a mutable mapping. CPython's own tests of mappings run on it where they are installed."""

import pathlib
import pickle
import shelve
import sys
import tempfile
import threading
from collections.abc import MutableMapping

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import xdb  # noqa: E402

try:
    from test import mapping_tests
except ImportError:  # a package of its own in Debian: libpython3.N-testsuite
    mapping_tests = None


@pytest.fixture
def db(tmp_path):
    with xdb.Xdb(tmp_path / "store", 8, 8) as store:
        yield store


@pytest.fixture
def m(db):
    return db.map()


def test_it_is_a_mapping_in_order(m):
    assert isinstance(m, MutableMapping) and not m and len(m) == 0
    m["b"] = "2"
    m[bytearray(b"a")] = memoryview(b"1")
    m.update({"d": "4"}, c=b"3")
    want = {b"a": b"1", b"b": b"2", b"c": b"3", b"d": b"4"}
    assert m and len(m) == 4 and dict(m) == want and m == want
    assert list(m) == list(want) and list(reversed(m)) == list(want)[::-1]
    assert list(m.items()) == list(want.items()) and list(reversed(m.items())) == list(want.items())[::-1]
    assert list(m.values()) == list(want.values()) and list(reversed(m.values())) == list(want.values())[::-1]
    assert "a" in m and b"x" not in m and 7 not in m and (b"a", b"1") in m.items() and b"4" in m.values()
    assert list(m.range("b", "d")) == [(b"b", b"2"), (b"c", b"3")]
    assert list(m.range(stop="b", reverse=True)) == [(b"a", b"1")]
    for missing in (lambda: m["x"], lambda: m.pop("x"), lambda: m.__delitem__("x")):
        with pytest.raises(KeyError):
            missing()
    with pytest.raises(TypeError):
        m["a"] = 7
    with pytest.raises(TypeError):
        m.pop("a", 1, 2)
    del m["a"]
    assert m.pop("b") == b"2" and m.pop("b", 5) == 5 and m.popitem() == (b"d", b"4")
    assert m.setdefault("c", "other") == b"3" and m.setdefault("e", "5") == b"5"
    assert dict(m) == {b"c": b"3", b"e": b"5"}
    m.clear()
    assert dict(m) == {} and "XdbMap" in repr(m)


def test_an_update_that_fails_writes_nothing(m):
    with pytest.raises(TypeError):
        m.update([("a", "1"), ("b", 2)])
    assert dict(m) == {}


def test_a_loop_may_change_the_map(m):
    m.update((b"%03d" % i, b"v") for i in range(500))
    for key in m:
        del m[key]
        m[key + b"x"] = b"w"
    assert len(m) == 500 and all(key.endswith(b"x") for key in m)


def test_a_snapshot_as_a_mapping(db, m):
    m["a"] = "1"
    with db.ref() as ref, ref.snapshot() as snapshot:
        old = xdb.XdbMap(snapshot)
        m["b"] = "2"
        assert dict(old) == {b"a": b"1"}
        with pytest.raises(xdb.XdbError):
            old["c"] = "3"


def test_taking_is_one_step(m):
    """Each item goes to one of the threads that take."""
    m.update((b"%04d" % i, b"v") for i in range(300))
    taken = []

    def take():
        while True:
            try:
                taken.append(m.popitem()[0])
            except KeyError:
                return

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [b"%04d" % i for i in range(300)]


class Pickled(xdb.XdbMap):
    """A map of any objects, with a store of its own."""

    def __init__(self, *args, **kw):
        self.place = tempfile.TemporaryDirectory()
        super().__init__(xdb.Xdb(self.place.name, 1, 1, workers=0))
        self.update(*args, **kw)

    def encode_key(self, key):
        return pickle.dumps(key)

    def decode_key(self, key):
        return pickle.loads(key)

    encode_value, decode_value = encode_key, decode_key

    def copy(self):
        return type(self)(self)

    @classmethod
    def fromkeys(cls, keys, value=None):
        made = cls()
        for key in keys:
            made[key] = value
        return made


def shelf():
    place = tempfile.TemporaryDirectory()
    made = shelve.Shelf(xdb.Xdb(place.name, 1, 1, workers=0).map())
    made.place = place
    return made


if mapping_tests is not None:
    class TestBytes(mapping_tests.BasicTestMappingProtocol):
        """What CPython runs on os.environ."""

        def type2test(self):
            place = tempfile.TemporaryDirectory()
            made = xdb.Xdb(place.name, 1, 1, workers=0).map()
            made.place = place
            return made

        def _reference(self):
            return {b"1": b"2", b"key1": b"value1", b"key2": b"123"}

    class TestShelf(mapping_tests.BasicTestMappingProtocol):
        """What CPython runs on shelve: str keys and objects as values."""

        type2test = staticmethod(shelf)

    class TestPickled(mapping_tests.TestMappingProtocol):
        """What CPython runs on dict and UserDict."""

        type2test = Pickled
        # That of the dict changes a value in place, which a store does not see.
        test_setdefault = mapping_tests.BasicTestMappingProtocol.test_setdefault
else:
    @pytest.mark.skip(reason="CPython's test.mapping_tests is not installed")
    def test_of_cpython():
        pass

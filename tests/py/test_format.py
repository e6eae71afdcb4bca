# SPDX-License-Identifier: Apache-2.0
"""The formats of docs/FORMAT.md, from outside: remixdb_format.py, which knows nothing but the document, decodes the
golden stores and what the library of today writes; the library of today reads the golden stores. How they are made:
tests/store/test_golden.c. FORMAT_SEED in the environment repeats what a failure printed."""

import json
import os
import pathlib
import random
import shutil
import struct
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
sys.path.insert(0, str(HERE))

import remixdb_format as fmt  # noqa: E402
import xdb  # noqa: E402

GOLDEN = HERE.parent / "golden"
NAMES = ["compact", "compact-remix1", "compact-sst2", "kinds", "large", "large-sst1", "large-sst2", "linked", "log",
         "log-wal2", "log-wal3", "moved", "packs", "paged", "plain", "plain-current1", "plain-sst1", "plain-sst2",
         "ranges",
         "spaces", "torn", "torn-wal2", "torn-wal3", "young", "young-current2", "zstd", "zstd-remix1", "zstd-sst1",
         "zstd-sst2"]
FORMAT2 = [n for n in NAMES if "sst2" in n or "wal3" in n]  # the last one without kinds of records
TODAY = [n for n in NAMES if "-" not in n]
REMIXES = [n for n in NAMES if n.split("-")[0] not in ("log", "torn")]


def expected_text(name):
    # a store that is kept in an old format holds what the one of today holds
    return json.loads((GOLDEN / name.split("-")[0] / "expected.json").read_text())


def expected_records(listed):
    keys = ((bytes.fromhex(k), *rest) for k, *rest in listed)
    return {k: fmt.golden_value(k, number, length, rule) for k, number, length, rule in keys}


def expected(name):
    text = expected_text(name)
    return expected_records(text["records"]), text["store_id"]


def expected_spaces(name):
    listed = {k[len("space "):]: v for k, v in expected_text(name).items() if k.startswith("space ")}
    return {space: expected_records(v) for space, v in listed.items()}


@pytest.fixture(scope="module")
def golden():
    return {name: fmt.Store(GOLDEN / name) for name in NAMES}


# ---- the golden stores, by the reader


def test_small():
    assert sorted(p.name for p in GOLDEN.iterdir()) == NAMES
    sizes = [p.stat().st_size for p in GOLDEN.rglob("*") if p.is_file()]
    assert max(sizes) < 64 << 10 and sum(sizes) < 1600 << 10


@pytest.mark.parametrize("name", NAMES)
def test_contents(golden, name):
    records, store_id = expected(name)
    store = golden[name]
    assert store.records() == records
    assert store.spaces() == {space.encode(): r for space, r in expected_spaces(name).items()}
    views = [x for tree in store.trees for x in tree.remixes + tree.young if x]
    ids = {t.store_id for t in store.tables.values()} | {x.store_id for x in views}
    assert store.version.store_id == store_id
    assert ids | {store_id} == {store_id, *store.version.origins}
    assert len(store.version.origins) == (1 if name == "linked" else 0)
    if name in TODAY:
        assert all(s.origins == store.version.origins for s in store.log.segments)


def test_tables_cover(golden):
    """Every part of the format is in some golden table."""
    tables = {n: list(golden[n].tables.values()) for n in NAMES}
    formats = {n: 3 if n in TODAY else 1 if "sst1" in n or "remix1" in n else 2 for n in NAMES}
    assert all(t.format == formats[n] for n in NAMES for t in tables[n])
    assert all(bool(t.blocks_sum) == (n in TODAY + FORMAT2) for n in NAMES for t in tables[n])
    assert any(t.seq_width > 0 for t in tables["plain"]) and any(t.seq_width == 0 for t in tables["plain-sst2"])
    chunks = {n: [c for t in tables[n] if t.flags & 1 for c in t.chunks] for n in NAMES}
    for n in ("large", "plain", "zstd"):
        assert any(chunks[n]) and chunks[f"{n}-sst1"] and not any(chunks[f"{n}-sst1"])
    assert not all(chunks["plain"])
    assert all(t.flags == 1 for t in tables["plain"])
    assert all(t.flags == 0 for t in tables["compact"])
    assert any(t.nr_tombs for t in tables["plain"]) and any(t.nr_tombs for t in tables["compact"])
    first, second = tables["zstd"]
    # a block that zstd does not shrink is there in one of them: its versions differ by some bytes
    assert first.flags == 3 and first.dictionary and first.stored_kinds | tables["zstd-sst1"][0].stored_kinds == {0, 1}
    assert second.flags == 3 and not second.dictionary
    assert any(pages > 1 for _, pages, _, _, _ in first.blocks)
    large = tables["large"][0]
    assert {1, 2} <= {pages for _, pages, _, _, _ in large.blocks} and len(large.max_key) == 1
    assert any(len(r.key) > 4200 for r in large.records)
    assert any(r.key == b"" for t in tables["compact"] for r in t.records)
    assert any(r.value == b"" and not r.tomb for r in large.records)


def test_remixes_cover(golden):
    remixes = {n: [x for x in golden[n].remixes if x] for n in NAMES}
    formats = {n: 1 if "remix1" in n else 3 if n in ("kinds", "ranges", "spaces") else 2 for n in REMIXES}
    formats["paged"] = 4
    # the partitions that ranges cut, not the others; young views are small
    assert all(x.format == formats[n] or (n == "ranges" and not any(x.erased))
               or (n == "paged" and x in golden[n].young) for n in REMIXES for x in remixes[n])
    assert any(any(x.erased) and not all(x.erased) for x in remixes["ranges"])
    tags = {n: {x.flags for x in remixes[n]} for n in REMIXES}
    assert tags == {n: {0 if n.startswith("compact") else 1} for n in REMIXES}
    for x in (max(remixes["plain"], key=lambda x: x.nr_runs), remixes["compact"][0], remixes["compact-remix1"][0]):
        assert x.nr_runs >= 4 and x.nr_segments >= 4
        assert any(old for _, _, old in x.entries) and any(r.tomb for _, r, _ in x.entries)
        assert len({run for run, _, old in x.entries if old}) >= 2
    for n in ("plain", "zstd-remix1"):
        assert any(s.base for x in remixes[n] for s in x.segments)
    assert any(s.far for s in remixes["large"][0].segments)
    columns = [x.packed for n in REMIXES for x in remixes[n] if 2 <= x.format <= 3]
    assert any(any(c) for c in columns) and not any(all(c) for c in columns)


def test_version_covers(golden):
    parts = golden["plain"].version.partitions
    assert len(parts) >= 2 and parts[0].anchor == b"" and parts[1].anchor != b""
    assert max(len(p.tables) for p in parts) >= 4
    assert golden["log"].version.partitions == [(b"", 0, [], 0, 0, [0, 0])]
    assert golden["log-wal2"].version.partitions == [(b"", 0, [], 0, 0, None)]
    assert all(golden[n].version.format == 3 for n in TODAY + FORMAT2)
    assert all(golden[n].version.format == (2 if n == "young-current2" else 1)
               for n in NAMES if n not in TODAY + FORMAT2)
    assert {t.store_id for t in golden["linked"].tables.values()} > set(golden["linked"].version.origins)


def test_moved_covers(golden):
    """Values in a file that was collected, and in files that are there."""
    store = golden["moved"]
    (gone, (file, index)), = store.moves.items()
    assert gone not in store.values and file in store.version.values and len(index) >= 3
    apart = [r for t in store.tables.values() for r in t.records if r.kind & fmt.APART]
    refs = [fmt.reference(r.value) for r in apart]
    assert sum(n == gone for n, *_ in refs) == len(index) and any(n in store.version.values for n, *_ in refs)
    old = [r for x in store.remixes if x for _, r, old in x.entries if old and r.kind & fmt.APART]
    assert any(fmt.reference(r.value)[0] == gone for r in old)
    assert any(r.kind & fmt.APART for _, r in store.log.records)
    records, _ = expected("moved")
    hidden = {r.key for r in old} | {r.key for _, r in store.log.records}
    assert all(store.value(r) == records[r.key] for r in apart if r.key not in hidden)
    assert sum(r.key not in hidden and fmt.reference(r.value)[0] == gone for r in apart) >= 3


def test_packs_cover(golden):
    """Several packs, with parts that are in use, and some that are not any more, whose places are holes."""
    store = golden["packs"]
    used, known = set(store.version.parts), {p for pack in store.packs.values() for p in pack.parts}
    assert len(store.packs) > 1 and {remix for _, remix in used} == {False, True}
    assert used < known
    for pack in store.packs.values():
        for part, (at, n) in pack.parts.items():
            assert (pack.data[at : at + n].count(0) == n) == (part not in used)
    assert set(store.tables) - {n for n, remix in used if not remix}  # and files beside them
    assert not any(golden[n].packs for n in NAMES if n != "packs")


def test_ranges_cover(golden):
    """Deletions that the partitions know of, and that are in the log besides."""
    store = golden["ranges"]
    logged = [seq for seq, r in store.log.records if r.kind & fmt.RANGE]
    assert len(logged) == 2 and store.version.erased == logged[-1] > store.version.log_seq
    assert len(store.version.partitions) > 2
    assert all(golden[n].version.erased == 0 for n in NAMES if n not in ("ranges", "spaces"))


def test_spaces_cover(golden):
    """Spaces, one of them dropped, whose records are in tables and in the log: kinds of all sorts, deletions of ranges,
    values apart, in several segments."""
    store = golden["spaces"]
    names = store.version.names
    assert set(names.values()) == {b"first", b"second"} == set(store.spaces()) and store.version.next_space == 4
    assert all(not golden[n].version.names for n in NAMES if n not in ("spaces", "paged"))
    there = [r for x in store.trees[1].remixes + store.trees[1].young if x for _, r, _ in x.entries]
    logged = [r for _, r in store.log.records if r.kind & fmt.SPACES]
    assert any(r.kind & fmt.RANGE for r in logged)
    assert any(any(x.erased) for x in store.trees[1].remixes + store.trees[1].young if x)
    for space in (1, 2, 3):  # the dropped one, too
        of = [[r for r in records if r.key[:4] == space.to_bytes(4, "big")] for records in (there, logged)]
        for records in of:
            assert any(r.tomb for r in records) and any(r.kind & fmt.EXPIRES for r in records)
            assert any(r.kind & fmt.APART for r in records)
        assert sum(bool(r.kind & fmt.APART) for r in of[0]) >= 2
    assert store.remixes[0] and not any(r.key[:1] == b"\0" for _, r, _ in store.remixes[0].entries)
    assert len(store.log.segments) == 3 and all(s.frames for s in store.log.segments)
    shared = [{k for k in records if k[:4] == b"key/"} for records in store.spaces().values()]
    assert shared[0] & shared[1] & set(store.records())


def test_young_covers(golden):
    """A view of two tables beside one that is much larger; versions, tombstones and keys in it that the other one
    has, and has not."""
    store = golden["young"]
    parts = store.version.partitions
    assert len(parts) == 1 and parts[0].young
    young, old = store.young[0], store.remixes[0]
    assert young.nr_runs == 2 == parts[0].nr_young and old.nr_runs == len(parts[0].tables) - 2
    assert young.nr_entries * 8 <= old.nr_entries
    there = {r.key for _, r, is_old in old.entries if not is_old and not r.tomb}
    newest = {r.key: r for _, r, is_old in young.entries if not is_old}
    assert any(r.tomb and k in there for k, r in newest.items()) and any(not r.tomb and k in there for k,
                                                                         r in newest.items())
    assert any(not r.tomb and k not in there for k, r in newest.items())
    assert any(is_old for _, _, is_old in young.entries)
    assert any(old and not r.tomb for _, r, old in young.entries)


def paged_views(store, directory):
    """(view, its bytes, a reader of its pages, which notes in its `reads` what it reads) of each view with pages."""
    for tree in store.trees:
        for x in tree.remixes:
            if not x or x.format != 4:
                continue
            data = bytearray((directory / x.name).read_bytes())
            reads = []

            def read(at, length, data=data, reads=reads):
                reads.append((at, length))
                return bytes(data[at : at + length])

            paged = fmt.PagedRemix(x.name, read, len(data), x.tables, store.version.ids(), fmt.u64(data, len(data) - 8))
            paged.reads = reads
            yield x, data, paged


def test_pages_cover(golden):
    """Views of several pages over two runs: with tombstones, old versions and records that expire, and without the
    latter."""
    store = golden["paged"]
    views = list(paged_views(store, GOLDEN / "paged"))
    assert len(views) == 2 and {x.flags for x, _, _ in views} == {1} and {bool(x.kinds) for x, _, _ in views} == {
        True, False}
    for x, _, _ in views:
        assert len(x.pages) >= 3 and x.nr_runs == 2
        for page in x.pages[1:]:
            assert page.anchor and bool(page.anchors) == (page.segments > 1) and all(page.starts)
        assert any(r.tomb for _, r, _ in x.entries) and any(old for _, _, old in x.entries)
        assert any(bool(r.kind & fmt.EXPIRES) for _, r, _ in x.entries) == bool(x.kinds)
    packed = [p for x, _, _ in views for p in x.packed]
    assert any(packed) and not all(packed)
    assert store.young[0].format == 2 and store.log.records and views[0][0].pages[-1].segments in (1, 2)


def test_page_by_page(golden):
    """Each page is that part of the view, and a search reads one page."""
    for x, data, paged in paged_views(golden["paged"], GOLDEN / "paged"):
        first = segment = 0
        for i, p in enumerate(paged.pages):
            page = paged.page(i)
            whole = x.segments[segment : segment + p.segments]
            assert [s._replace(first=s.first + first) for s in page.segments] == whole
            assert page.entries == x.entries[first : first + p.entries]
            first += p.entries
            segment += p.segments
        assert (first, segment) == (x.nr_entries, x.nr_segments)
        for key in {k for _, r, _ in x.entries for k in (r.key, r.key[:-1], r.key + b"a")} | {b"", b"\xff"}:
            paged.reads.clear()
            assert paged.get(key) == x.get(key) and paged.seek(key) == x.seek(key)
            assert len(set(paged.reads)) == 1


def test_page_damage(golden):
    """A flipped bit of a page is found in it, and the others can be read."""
    seed = int(os.environ.get("FORMAT_SEED") or random.randrange(1 << 32))
    rng = random.Random(seed)
    for x, data, paged in paged_views(golden["paged"], GOLDEN / "paged"):
        for i, p in enumerate(paged.pages):
            for _ in range(12):
                at = p.at + rng.randrange(p.size)
                print(f"seed {seed}: {x.name}, {at}")
                data[at] ^= 1 << rng.randrange(8)
                with pytest.raises(fmt.FormatError, match="checksum"):
                    paged.page(i)
                assert all(paged.page(k).entries for k in range(len(paged.pages)) if k != i)
                data[p.at : p.at + p.size] = (GOLDEN / "paged" / x.name).read_bytes()[p.at : p.at + p.size]


def reseal_pages(data):
    """Makes the checksums of pages, directory and file right, as far as the directory can be followed."""
    number, d, runs = fmt.u64(data, 24), fmt.u64(data, 72), fmt.u32(data, 40)
    at = (104 + 8 * runs + 63) // 64 * 64
    while d + 32 <= len(data) - 16:
        size = fmt.u32(data, d)
        struct.pack_into("<Q", data, d + 24, fmt.xxh3(bytes(data[at : at + size]), number))
        at, d = at + size, d + 32 + 4 * runs + fmt.u32(data, d + 20)
    end = len(data) - 16
    struct.pack_into("<Q", data, end, fmt.xxh3(bytes(data[fmt.u64(data, 72) : end]), number))
    struct.pack_into("<Q", data, end + 8, fmt.xxh3(bytes(data[: end + 8]), number))


def test_pages_forged(golden, tmp_path):
    """The reader refuses each change of the header, the directory and a page's head, with checksums that are right:
    whole, and page by page. So does the library."""
    store = golden["paged"]
    x, good, paged = next(paged_views(store, GOLDEN / "paged"))
    runs, d, p = x.nr_runs, fmt.u64(good, 72), x.pages[0]
    second = d + 32 + 4 * runs  # the second page's entry
    changes = [(12, 5), (12, 1), (44, x.nr_segments + 1), (56, x.nr_keys - 1), (72, d + 1), (d, p.size + 1),
               (d + 4, 1), (d + 4, 3), (d + 8, p.entries - 1), (d + 12, p.keys + 1), (d + 16, p.anchors + 1),
               (d + 20, 1), (d + 32, p.starts[0] + 1), (second, 27), (second + 20, 0), (second + 4, 129),
               (second + 32, x.pages[1].starts[0] + 1), (second + 32, 1 << 20), (second + 36, x.pages[1].starts[1] - 1),
               (second + 32 + 4 * runs, 0x7A7A7A7A),
               (p.at, fmt.u32(good, p.at) + 1), (p.at + 4, 7), (p.at + 24, fmt.u32(good, p.at + 24) - 1),
               (p.at + 24, 1 << 20)]
    again = bytearray(good)
    reseal_pages(again)
    assert again == good
    for at, value in changes:
        data = bytearray(good)
        struct.pack_into("<I", data, at, value)
        reseal_pages(data)
        print(f"{at}: {value}")
        with pytest.raises(fmt.FormatError):
            fmt.Remix(x.name, bytes(data), x.tables)
        with pytest.raises(fmt.FormatError):
            forged = fmt.PagedRemix(x.name, lambda a, n, data=data: bytes(data[a : a + n]), len(data), x.tables)
            for i in range(len(forged.pages)):
                forged.page(i)
        copy = tmp_path / f"{at}-{value}"
        shutil.copytree(GOLDEN / "paged", copy)
        (copy / x.name).write_bytes(data)
        current = bytearray((copy / "CURRENT").read_bytes())
        was, now = good[-8:], data[-8:]
        assert current.count(was) == 1
        current[:-8] = current[:-8].replace(was, now)
        struct.pack_into("<Q", current, len(current) - 8, fmt.xxh3(bytes(current[:-8])))
        (copy / "CURRENT").write_bytes(current)
        with pytest.raises(xdb.XdbError):
            open_store(copy)


def check_forged(tmp_path, name, good, changes):
    """The reader and the library refuse each change of CURRENT, with a checksum that is right."""
    for at, value, width in changes:
        data = bytearray(good)
        struct.pack_into("<I" if width == 4 else "<Q", data, at, value)
        struct.pack_into("<Q", data, len(data) - 8, fmt.xxh3(bytes(data[:-8])))
        copy = tmp_path / f"{at}-{value}"
        shutil.copytree(GOLDEN / name, copy)
        (copy / "CURRENT").write_bytes(data)
        with pytest.raises(fmt.FormatError):
            fmt.Store(copy)
        with pytest.raises(xdb.XdbError):
            open_store(copy)


def test_sections_forged(tmp_path):
    """Each field of the head, the sections and the fingerprints."""
    good = (GOLDEN / "linked" / "CURRENT").read_bytes()
    parts = 64 + 16 + 8
    part = parts + 16 + 8
    first = part + 48 + fmt.u32(good, part)
    check_forged(tmp_path, "linked", good,
                 [(8, 1, 4), (8, 2, 4), (8, 4, 4), (12, 0, 4), (12, 1, 4), (12, 3, 4), (56, 1, 8), (64, 0, 4),
                  (64, 3, 4), (68, 0, 4), (68, 3, 4), (72, 0, 8),
                  (72, 7, 8), (72, 16, 8), (72, 1 << 63, 8), (80, 0, 8), (80, 1, 8),
                  (80, fmt.u64(good, 16), 8), (parts, 1, 4), (parts, 3, 4), (parts + 4, 0, 4), (parts + 8, 0, 8),
                  (parts + 8, fmt.u64(good, parts + 8) - 1, 8), (parts + 16, 0, 4), (parts + 16, 2, 4),
                  (parts + 20, 1, 4), (part + 16, 1, 8), (part + 32, 1, 8), (part + 40, 1, 8), (first + 8, 1, 8)])


def test_version_forged(tmp_path):
    """Each field of a young view, in format 2."""
    good = (GOLDEN / "young-current2" / "CURRENT").read_bytes()
    anchor, tables = fmt.u32(good, 56), fmt.u32(good, 60)
    young, remix = struct.unpack_from("<Q", good, 72)[0], struct.unpack_from("<Q", good, 64)[0]
    last = 56 + 32 + anchor + 8 * (tables - 1)
    changes = ((8, 1), (8, 3), (72, 0), (72, remix), (72, 1 << 40), (80, 0), (80, 1), (80, tables),
                      (80, tables + 1), (80, 2 + (1 << 32)), (64, young), (last, 1 << 40),
                      (24, 0), (24, (1 << 62) + 1), (32, 0), (32, (1 << 46) + 1), (40, 0), (40, (1 << 62) + 1),
                      (48, (1 << 62) + 1), (last, 0))
    check_forged(tmp_path, "young-current2", good, [(at, value, 4 if at == 8 else 8) for at, value in changes])


def test_logs_cover(golden):
    log = golden["log"].log
    assert [s.generation for s in log.segments] == [3, 4, 5] and log.cut is None
    assert [len(s.frames) for s in log.segments] == [7, 1, 4]
    assert [f.durable for f in log.segments[0].frames if f.durable]
    last = log.segments[-1]
    # frames of an earlier life of the file lie behind the end, under another generation
    assert any(last.data[last.end :]) and last.watermark == (5, last.end)
    assert log.segments[-2].watermark == (5, last.end) and log.segments[0].watermark is None
    assert any(r.tomb for _, r in log.records)
    assert log.records[0][0] == golden["log"].version.log_seq + 1
    batch = golden["plain"].log.segments[-1].frames[-1]
    assert batch.count == 5
    assert golden["compact-remix1"].log.spares

    torn = golden["torn"].log
    assert torn.cut == (last.name, last.end) and torn.last_seq == log.last_seq
    assert all(s.watermark is None for s in torn.segments)


def test_broken_frame(golden):
    """A bit of the last frame that is whole: the watermark says that it was durable, or the frame behind it; without
    either nobody could tell it from a torn tail."""
    end = golden["log"].log.segments[-1].frames[-1].offset
    for name, erase in (("log", False), ("torn", False), ("log", True)):
        files = {p.name: bytearray(p.read_bytes()) for p in (GOLDEN / name).glob("wal-*")}
        files["wal-1"][end + 45] ^= 1
        if erase:
            for data in files.values():
                data[fmt.WATERMARK : fmt.WATERMARK + 24] = bytes(24)
        v = golden[name].version
        if erase:
            log = fmt.Log(files, v.store_id, v.log_generation, v.log_seq)
            assert log.cut == ("wal-1", end) and log.segments[-1].end == end
        else:
            with pytest.raises(fmt.FormatError):
                fmt.Log(files, v.store_id, v.log_generation, v.log_seq)


def test_head_bounds(golden):
    """Behind a broken frame lies a head that says that the break was durable. It counts if its fields are within their
    bounds, and else the break is a torn tail."""
    v, last = golden["log"].version, golden["log"].log.segments[-1]
    end, key = last.frames[-1].offset, last.key
    for length, first_seq, count, sound in ((8, 1, 8, True), (8, 1, 9, False), (8, 0, 1, False), (8, 1 << 62, 2, False),
                                            (8, 1 << 62, 1, True)):
        files = {p.name: bytearray(p.read_bytes()) for p in (GOLDEN / "log").glob("wal-*")}
        for data in files.values():
            data[fmt.WATERMARK : fmt.WATERMARK + 24] = bytes(24)
        data, at = files[last.name], end + 45
        head = struct.pack("<IIQQI", key >> 32 | 1, length, first_seq, at, count)
        data[at + 8 : at + 36] = head
        struct.pack_into("<I", data, at + 36, fmt.xxh3(head, ~(key + at)) & 0xFFFFFFFF)
        if sound:
            with pytest.raises(fmt.FormatError):
                fmt.Log(files, v.store_id, v.log_generation, v.log_seq)
        else:
            assert fmt.Log(files, v.store_id, v.log_generation, v.log_seq).segments[-1].end == end


def test_log_formats(golden):
    """The number 1 stands for a layout that is read, and for one that is refused as such and not as damage."""
    v = golden["log-wal2"].version
    assert {fmt.u32(p.read_bytes(), 8) for p in GOLDEN.rglob("wal-*")} == {1, 2, 3, 4}
    good = {p.name: p.read_bytes() for p in (GOLDEN / "log-wal2").glob("wal-*")}
    assert all(fmt.u32(data, 8) == 2 for data in good.values())
    for number, end, error in ((1, 448, None), (0, 448, fmt.UnknownFormat), (5, 448, fmt.UnknownFormat),
                               (1, 504, fmt.UnknownFormat)):
        files = {name: bytearray(data) for name, data in good.items()}
        for data in files.values():
            struct.pack_into("<I", data, 8, number)
            data[448:504] = bytes(56)
            struct.pack_into("<Q", data, 504, fmt.xxh3(data[:end]))
        if error is None:
            assert fmt.Log(files, v.store_id, v.log_generation, v.log_seq).records == golden["log"].log.records
        else:
            with pytest.raises(error):
                fmt.Log(files, v.store_id, v.log_generation, v.log_seq)


def test_log_of_another_history(golden):
    """Each field that ties a segment to the one before, and the frames that it speaks of."""
    v = golden["log"].version
    good = {p.name: p.read_bytes() for p in (GOLDEN / "log").glob("wal-*")}
    segments = golden["log"].log.segments
    assert len(segments) == 3 and all(s.version == 4 for s in segments)
    assert fmt.Log(good, v.store_id, v.log_generation, v.log_seq, v.log_print).records == golden["log"].log.records
    for s, at in ((segments[0], 64), (segments[1], 64), (segments[1], 72), (segments[1], 80), (segments[2], 80)):
        files = {name: bytearray(data) for name, data in good.items()}
        data = files[s.name]
        data[at] ^= 1
        struct.pack_into("<Q", data, 504, fmt.xxh3(data[:448]))
        with pytest.raises(fmt.FormatError, match="another history"):
            fmt.Log(files, v.store_id, v.log_generation, v.log_seq, v.log_print)


# ---- searching, as the document tells it


@pytest.mark.parametrize("name", REMIXES)
def test_searching(golden, name):
    rng = random.Random(1)
    for x in (x for tree in golden[name].trees for x in tree.remixes + tree.young if x):
        keys = [r.key for _, r, _ in x.entries]
        some = sorted(set(keys))
        if len(some) > 60:
            some = sorted(rng.sample(some, 60))
        targets = {b"", b"\xff" * 9}
        for k in some:
            targets |= {k, k + b"\0", k + b"\xff", k[:-1], k[: len(k) // 2],
                        bytes(b ^ (rng.random() < 0.2) << rng.randrange(8) for b in k)}
        for target in targets:
            place = next((i for i, k in enumerate(keys) if k >= target), len(keys))
            assert x.seek(target) == place, target
            if x.flags & 1:
                there = place < len(keys) and keys[place] == target
                assert x.get(target) == (x.entries[place][:2] if there else None), target


# ---- damage: the reader finds what the library must find


@pytest.mark.parametrize("name", NAMES)
def test_damage(golden, name, tmp_path):
    seed = int(os.environ.get("FORMAT_SEED") or random.randrange(1 << 32))
    rng = random.Random(seed)
    store = golden[name]
    copy = tmp_path / "copy"
    shutil.copytree(GOLDEN / name, copy)
    for path in copy.iterdir():
        if path.name.startswith("wal-") or path.name.endswith((".val", ".json")):
            continue
        good = path.read_bytes()
        for what in ["flip"] * 12 + ["cut"] * 2:
            data = bytearray(good)
            at = rng.randrange(len(data))
            if what == "flip" and path.suffix == ".pack":  # between the parts that are in use nobody reads
                number = int(path.stem)
                used = [(at, n) for pack, at, n in store.version.parts.values() if pack == number]
                dir_off = store.packs[number].dir_off
                start, n = rng.choice(used + [(dir_off, len(data) - dir_off)])
                at = start + rng.randrange(n)
            if what == "flip":
                data[at] ^= 1 << rng.randrange(8)
            else:
                del data[at:]
            path.write_bytes(data)
            with pytest.raises(fmt.FormatError):
                print(f"seed {seed}: {what} at {at} of {path.name}")
                fmt.Store(copy)
        path.write_bytes(good)
    assert fmt.Store(copy).records() == store.records()


@pytest.mark.parametrize("name", ["moved", "spaces"])
def test_value_damage(golden, name, tmp_path):
    """A flipped bit of a value file is found, or changes nothing: it is between values, or in one that is hidden."""
    seed = int(os.environ.get("FORMAT_SEED") or random.randrange(1 << 32))
    rng, found = random.Random(seed), 0
    copy = tmp_path / "copy"
    shutil.copytree(GOLDEN / name, copy)
    for path in copy.glob("*.val"):
        good = path.read_bytes()
        for _ in range(60):
            data = bytearray(good)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
            print(f"seed {seed}: {path.name}")
            try:
                store = fmt.Store(copy)
                assert store.records() == golden[name].records() and store.spaces() == golden[name].spaces()
            except fmt.FormatError:
                found += 1
        path.write_bytes(good)
    assert found > 60


# ---- the library of today


def open_store(path, **options):
    return xdb.Xdb(path, 4, 1, workers=0, **options)


def check_ref(ref, records):
    with ref.iter() as it:
        assert list(it) == sorted(records.items())
    for key, value in records.items():
        assert ref.get(key) == value
        assert ref.get(key + b"\0never") is None


def check_library(path, records, spaces, **options):
    with open_store(path, **options) as db, db.ref() as ref:
        check_ref(ref, records)
        assert sorted(db.spaces()) == sorted(spaces)
        for name, there in spaces.items():
            with db.space(name, create=False) as space, space.ref() as ref:
                check_ref(ref, there)


@pytest.mark.parametrize("name", NAMES)
def test_library_reads_golden(golden, name, tmp_path):
    records, spaces = expected(name)[0], expected_spaces(name)
    before = {p.name: p.read_bytes() for p in (GOLDEN / name).iterdir()}
    check_library(GOLDEN / name, records, spaces, read_only=True)
    assert {p.name: p.read_bytes() for p in (GOLDEN / name).iterdir()} == before
    copy = tmp_path / "copy"
    shutil.copytree(GOLDEN / name, copy)
    for _ in range(2):
        check_library(copy, records, spaces)
    with open_store(copy) as db, db.ref() as ref:
        ref.flush()
    store = fmt.Store(copy)
    assert store.records() == records
    assert store.spaces() == {space.encode(): r for space, r in spaces.items()}
    assert len(store.log.segments) == 1 and not store.log.records  # all is in tables
    if name == "torn":
        with open_store(copy) as db, db.ref() as ref:
            ref.put("more", "data")
        assert fmt.Store(copy).records() == {**records, b"more": b"data"}


SHORT_MAX = (4 << 10) - 1  # of the values that rounds leave beside their keys
WRITERS = {
    "plain": {},
    "compact": {"ckeys": False, "tags": False},
    "zstd": {"compression": 1},
    "zstd without keys": {"compression": 1, "compression_level": 9, "ckeys": False},
    "direct": {"direct_io": True, "tags": False},
    "synced": {"sync": 2},
}


@pytest.mark.parametrize("writer", WRITERS)
def test_library_writes(writer, tmp_path):
    """What the library of today writes, the reader decodes: after a compaction or several, with the log as a crash of
    the process leaves it, and closed."""
    seed = int(os.environ.get("FORMAT_SEED") or random.randrange(1 << 32))
    rng = random.Random(seed)
    print(f"seed {seed}")
    store, copy = tmp_path / "store", tmp_path / "copy"
    records, logged, count = {}, [], 0
    db = open_store(store, **WRITERS[writer])
    ref = db.ref()
    for life in range(3):
        size = 0
        while size < 1400 << 10:
            key = (rng.choice([b"", b"a/", b"a/very/long/common/path/"]) + b"%05d" % rng.randrange(6000)
                   + b"x" * rng.choice([0, 0, 0, 300]))
            if size and rng.random() < 0.12:
                ref.delete(key)
                records.pop(key, None)
                size += len(key)
            else:
                length = rng.choice([0, 10, 100, 100, 300, 300, 1000, 9000])
                if rng.random() < 0.01:
                    length = rng.choice([20000, 65536, 150000])
                # a record of 16 pages and one of 17; values of 4 KiB are apart, so both have long keys
                if size == 0:
                    key, length = b"largest".ljust(fmt.KV_MAX - SHORT_MAX, b"l"), SHORT_MAX
                elif not any(len(k) == fmt.KV_MAX for k in records):
                    key, length = b"longest".ljust(fmt.KV_MAX, b"l"), SHORT_MAX + 1
                value = (rng.randbytes(length) if rng.random() < 0.2 else b"%d " % count * (length // 2 + 1))[:length]
                ref.put(key, value)
                records[key] = value
                size += len(key) + length
            count += 1
        records[b"last"] = rng.randbytes(70000 + life)  # the log has it when the process crashes
        ref.put(b"last", records[b"last"])
        ref.sync()
        shutil.copytree(store, copy, dirs_exist_ok=False)
        crashed = fmt.Store(copy)
        assert crashed.records() == records
        logged += [r for _, r in crashed.log.records]
        shutil.rmtree(copy)
        ref.close()
        db.close()
        decoded = fmt.Store(store)
        assert decoded.records() == records
        # a closed store has one file of the log, and nothing in it
        assert (len(decoded.log.segments) == 1 and not decoded.log.records and not decoded.log.spares
                and decoded.log.cut is None)
        db = open_store(store, **WRITERS[writer])
        ref = db.ref()
    assert decoded.tables
    flags = {"plain": 1, "compact": 0, "zstd": 3, "zstd without keys": 2, "direct": 1, "synced": 1}[writer]
    assert {t.flags for t in decoded.tables.values()} == {flags}
    assert {16, 17} <= {pages for t in decoded.tables.values() for _, pages, _, _, _ in t.blocks}
    # values in value files, some of several chunks: from tables, and from the log
    apart = [r for t in decoded.tables.values() for r in t.records if r.kind & fmt.APART]
    assert any(r.key == b"last" and decoded.value(r) == records[r.key] for r in apart)
    assert any(len(records.get(r.key, b"")) == 150000 for r in apart)
    assert any(r.kind & fmt.APART for r in logged)
    assert set(decoded.version.values) == {fmt.reference(r.value)[0] for r in apart}
    ref.close()
    db.close()

# SPDX-License-Identifier: Apache-2.0
"""A reader of the files of a store, written from docs/FORMAT.md and nothing else: it shares no code with the library,
so that the document is tested too. It checks all that the document lets a reader check, also what the library leaves
to the writer: that a REMIX says of its tables exactly what is true of their keys.

    store = Store("path/to/a/store")
    store.records()          # {key: value} of all that is there

Every rule that is broken raises FormatError with the file and the offset.
"""

import functools
import os
import re
import struct
from collections import namedtuple

import xxhash
import zstandard

KV_MAX = 65500
KEY_MAX = KV_MAX + 4  # of files with kinds
REFERENCE_MAX = 40
TOMB, EXPIRES, APART, SEQ, SPACES, RANGE = 1, 2, 4, 8, 16, 32
BARE, IN_TABLE, IN_LOG = 0, TOMB | EXPIRES | APART, 63  # the kinds of records that a file may have
PAGE = 4096
COUNT_MAX = 1 << 62  # of versions, generations and sequence numbers
MASK64 = (1 << 64) - 1


class FormatError(Exception):
    """A file breaks a rule of its format."""

    def __init__(self, name, offset, what):
        super().__init__(f"{name}: offset {offset}: {what}")
        self.name, self.offset, self.what = name, offset, what


class UnknownFormat(FormatError):
    """The file says that it has a format which this reader does not know: a newer one, or one that is not read any
    more."""


# position: of a table's record, else None. expiry: in ms, or None. seq: the sequence number, None if none is stated
Record = namedtuple("Record", "key value tomb position kind expiry seq", defaults=(None, 0, None, None))


def u16(b, at):
    return struct.unpack_from("<H", b, at)[0]


def u32(b, at):
    return struct.unpack_from("<I", b, at)[0]


def u64(b, at):
    return struct.unpack_from("<Q", b, at)[0]


def xxh3(data, seed=0):
    return xxhash.xxh3_64_intdigest(data, seed & MASK64)


def varint(b, at, end):
    """The number at `at` and the offset after it; ValueError when there is none that ends before `end`."""
    value = 0
    for i in range(5):
        if at >= end:
            raise ValueError("a number is cut short")
        value |= (b[at] & 0x7F) << (7 * i)
        at += 1
        if b[at - 1] < 0x80:
            if value >> 32:
                raise ValueError("a number of more than 32 bits")
            return value, at
    raise ValueError("a number of more than 5 bytes")


def varint64(b, at, end):
    value = 0
    for i in range(10):
        if at >= end:
            raise ValueError("a number is cut short")
        value |= (b[at] & 0x7F) << (7 * i)
        at += 1
        if b[at - 1] < 0x80:
            if value >> 64:
                raise ValueError("a number of more than 64 bits")
            return value, at
    raise ValueError("a number of more than 10 bytes")


def check_kind(kind, kinds):
    if kind == 0 or kind & ~kinds:
        raise ValueError(f"kind {kind}")
    if kind & TOMB and kind & (EXPIRES | APART | RANGE) or kind & RANGE and kind & (EXPIRES | APART):
        raise ValueError(f"kind {kind}")


def check_lengths(kinds, kind, key_len, value_len):
    most = KV_MAX if kinds == BARE else KEY_MAX
    if kind & (RANGE | APART):
        fits = key_len <= most and value_len <= (most if kind & RANGE else REFERENCE_MAX)
    else:
        fits = key_len + value_len <= most
    if not fits:
        raise ValueError("a record that is too large")


def record(b, at, end, kinds):
    """The record at `at`, of one of these kinds, and the offset after it."""
    head, at = varint(b, at, end)
    key_len, value_len, kind, seq, expiry = head >> 1, 0, 0, None, None
    if head & 1:
        kind = TOMB
        if kinds != BARE:
            if at >= end:
                raise ValueError("a record is cut short")
            kind, at = b[at], at + 1
            check_kind(kind, kinds)
        if kind & SEQ:
            seq, at = varint64(b, at, end)
        if kind & EXPIRES:
            expiry, at = varint64(b, at, end)
        if 0 in (seq, expiry):
            raise ValueError("a sequence number or an expiry of 0")
    if not kind & TOMB:
        value_len, at = varint(b, at, end)
    check_lengths(kinds, kind, key_len, value_len)
    if at + key_len + value_len > end:
        raise ValueError("a record is cut short")
    key, value = bytes(b[at : at + key_len]), bytes(b[at + key_len : at + key_len + value_len])
    return Record(key, value, bool(kind & TOMB), None, kind, expiry, seq), at + key_len + value_len


def common_prefix(a, b):
    n = min(len(a), len(b))
    for i in range(n):
        if a[i] != b[i]:
            return i
    return n


# ---- tables


class Table:
    """A table: `records` in order, with their positions, and what the footer and the metadata say."""

    def __init__(self, name, data, ids=None, fingerprint=None):
        self.name, self.data = name, data
        match = re.fullmatch(r"(\d{6,})\.sst", os.path.basename(name))
        self._footer(match and int(match.group(1)), ids)
        if fingerprint is not None and fingerprint != self.fingerprint:
            self.fail(len(data) - 256, "of another history")
        self._metadata()
        self._blocks()
        if self.flags & 1:
            self._compressed_keys()

    def fail(self, offset, what):
        raise FormatError(self.name, offset, what)

    def _footer(self, number, ids):
        data = self.data
        if not data or len(data) % PAGE:
            self.fail(len(data), "a table is a multiple of 4096 bytes")
        at = len(data) - 256
        foot = data[at:]
        if foot[248:] != b"#REMXSST":
            self.fail(at + 248, "magic")
        self.fingerprint = u64(foot, 0)
        if self.fingerprint != xxh3(foot[8:]):
            self.fail(at, "checksum of the footer")
        self.format = u32(foot, 244)
        if self.format > 3:
            raise UnknownFormat(self.name, at + 244, f"table format {self.format}")
        if self.format == 0:
            self.fail(at + 244, "version")
        (self.store_id, self.number, self.nr_records, self.nr_tombs, self.key_bytes, self.value_bytes,
         self.data_size, self.ckb_off,
         # fmt: skip
         self.ckb_len, self.meta_off, self.meta_len, self.meta_sum, file_size) = struct.unpack_from("<13Q", foot, 8)
        (self.nr_pages, self.flags, self.min_len, self.max_len, self.dict_len,
         self.sizes_len) = struct.unpack_from("<6I", foot, 112)
        self.blocks_sum = u64(foot, 136)
        new = self.format >= 3
        self.kinds, self.key_max = (IN_TABLE, KEY_MAX) if new else (BARE, KV_MAX)
        self.seq_min, self.seq_max, self.seq_width = struct.unpack_from("<QQI", foot, 144) if new else (1, 1, 0)
        self.apart = u32(foot, 240) if new else 0
        if self.apart > min(65536, self.nr_records):
            self.fail(at + 240, "number of value files")
        self.nr_expiring, self.expiring_bytes, *self.expiry = struct.unpack_from("<7Q", foot, 168) if new else [0] * 7
        if any(foot[224 if new else 144 : 240 if new else 244]) or (new and any(foot[164:168])):
            self.fail(at + 144, "zeros of the footer")
        stated = {self.nr_expiring > 0, self.expiring_bytes > 0, self.expiry[0] > 0}
        if self.expiry != sorted(self.expiry) or len(stated) > 1:
            self.fail(at + 168, "times of expiry")
        if not 1 <= self.seq_min <= self.seq_max <= COUNT_MAX or self.seq_width > 8:
            self.fail(at + 144, "sequence numbers")
        if (self.seq_max - self.seq_min) >> 8 * self.seq_width:
            self.fail(at + 160, "width of the sequence numbers")
        if self.flags & ~(7 if new else 3):
            self.fail(at + 116, "unknown flags")
        if file_size != len(data):
            self.fail(at + 104, "size of the file")
        if self.number == 0 or self.number >= 1 << 47 or (number is not None and number != self.number):
            self.fail(at + 16, f"the number is {self.number}")
        if ids is not None and self.store_id not in ids:
            self.fail(at + 8, "another store's")
        if not 1 <= self.nr_pages <= 65520:
            self.fail(at + 112, "number of pages")
        ckb = self.flags & 1
        if bool(ckb) != bool(self.ckb_len) or self.ckb_off != (self.data_size if ckb else 0):
            self.fail(at + 64, "place of the compressed keys")
        if self.meta_off != self.data_size + self.ckb_len or self.meta_off + self.meta_len != at:
            self.fail(at + 80, "place of the metadata")
        if not self.flags & 2 and (self.data_size != self.nr_pages * PAGE or self.dict_len or self.sizes_len):
            self.fail(at + 56, "size of the data")
        if not 1 <= self.data_size <= self.nr_pages * (PAGE + 1):
            self.fail(at + 56, "size of the data")
        key_len = max(self.min_len, self.max_len)
        if self.dict_len > 16384 or key_len > self.key_max or self.sizes_len > self.nr_pages * 5:
            self.fail(at + 120, "lengths of the metadata's parts")
        if not 1 <= self.nr_records <= self.nr_pages * 255 or self.nr_tombs > self.nr_records:
            self.fail(at + 24, "number of records")
        if max(self.key_bytes, self.value_bytes) > self.nr_pages * PAGE:
            self.fail(at + 40, "bytes of the records")

    def _metadata(self):
        at, end = self.meta_off, self.meta_off + self.meta_len
        meta = self.data[at:end]
        if self.meta_sum != xxh3(meta, ~self.number):
            self.fail(at, "checksum of the metadata")
        parts = []
        p = 0
        for size in (self.nr_pages, self.min_len, self.max_len, self.dict_len, self.sizes_len, 16 * self.apart):
            parts.append(meta[p : p + size])
            p += size
        if p > len(meta) or len(meta) - p >= PAGE or any(meta[p:]):
            self.fail(at + p, "the rest of the metadata")
        counts, self.min_key, self.max_key, self.dictionary, sizes, apart = parts
        # bytes of values by value file
        words = struct.unpack(f"<{2 * self.apart}Q", apart)
        self.value_files = dict(zip(words[::2], words[1::2]))
        if list(words[::2]) != sorted(self.value_files) or 0 in words:
            self.fail(at + p - len(apart), "value files")
        if counts[0] == 0 or sum(counts) != self.nr_records or b"\0" * (17 if self.format >= 3 else 16) in counts:
            self.fail(at, "counts of records")
        if not (self.min_key < self.max_key or (self.min_key == self.max_key and self.nr_records == 1)):
            self.fail(at + self.nr_pages, "smallest and largest key")
        # (first page, pages, records, offset in the file, stored bytes) of each block
        self.blocks = []
        starts = [i for i, n in enumerate(counts) if n] + [self.nr_pages]
        offset, p = 0, 0
        for block, following in zip(starts, starts[1:]):
            pages = following - block
            size = pages * PAGE
            if self.flags & 2:
                try:
                    size, p = varint(sizes, p, len(sizes))
                except ValueError as e:
                    self.fail(at, f"stored sizes: {e}")
                if not 9 + counts[block] // 4 < size <= pages * PAGE + 1:
                    self.fail(at, f"stored size of block {block}")
            self.blocks.append((block, pages, counts[block], offset, size))
            offset += size
        if offset != self.data_size or p != len(sizes):
            self.fail(at, "stored sizes do not add up")

    def _blocks(self):
        self.records = []
        self.stored_kinds = set()  # of stored blocks, when compressed
        if self.blocks_sum and self.blocks_sum != sum(u64(self.data, b[3]) for b in self.blocks) & MASK64:
            self.fail(len(self.data) - 256 + 136, "sum of the blocks")
        dictionary = zstandard.ZstdCompressionDict(self.dictionary) if self.dictionary else None
        zstd = zstandard.ZstdDecompressor(dict_data=dictionary)
        for block, pages, count, offset, size in self.blocks:
            body = self.data[offset : offset + size]
            if u64(body, 0) != xxh3(body[8:], self.number << 16 | block):
                self.fail(offset, f"checksum of block {block}")
            if self.flags & 2:
                body = b"\0" * 8 + self._unpack(zstd, body, pages, offset)
            self._block(body, block, pages, count, offset)
        tombs = sum(r.tomb for r in self.records)
        if (len(self.records), tombs, sum(len(r.key) for r in self.records),
            sum(len(r.value) for r in self.records)) != (
            self.nr_records,
            self.nr_tombs,
            self.key_bytes,
            self.value_bytes,
        ):
            self.fail(len(self.data) - 256 + 24, "the footer's sums")
        times = [r.expiry for r in self.records if r.expiry]
        if len(times) != self.nr_expiring or (times and [min(times), max(times)] != self.expiry[::4]):
            self.fail(len(self.data) - 256 + 168, "the footer's times of expiry")
        if self.records[0].key != self.min_key or self.records[-1].key != self.max_key:
            self.fail(self.meta_off + self.nr_pages, "smallest and largest key")

    def _unpack(self, zstd, stored, pages, offset):
        kind, want = stored[8], pages * PAGE - 8
        self.stored_kinds.add(kind)
        if kind == 0:
            plain = stored[9:]
        elif kind == 1:
            try:
                plain = zstd.decompress(stored[9:], max_output_size=want)
            except zstandard.ZstdError as e:
                self.fail(offset, f"zstd: {e}")
        else:
            self.fail(offset + 8, f"kind {kind}")
        if len(plain) != want:
            self.fail(offset, "size of a block")
        return plain

    def _block(self, body, block, pages, count, offset):
        form = 0x80 | self.seq_width if self.format >= 3 else 0
        if body[8] != pages or body[9] != count or body[10] != form or body[11]:
            self.fail(offset + 8, "head of a block")
        at = 12 + 2 * count
        for i in range(count):
            if u16(body, 12 + 2 * i) != at:
                self.fail(offset + 12 + 2 * i, "offset of a record")
            if at == len(body) - 1:
                self.fail(offset + at, "a record begins in the last byte of a block")
            try:
                r, at = record(body, at, len(body), self.kinds)
            except ValueError as e:
                self.fail(offset + at, str(e))
            if self.records and self.records[-1].key >= r.key:
                self.fail(offset + at, "keys do not ascend")
            seq = self.seq_min + int.from_bytes(body[at : at + self.seq_width], "little")
            at += self.seq_width
            if at > len(body) or seq > self.seq_max:
                self.fail(offset + at, "sequence number of a record")
            self.records.append(r._replace(position=block << 8 | i, seq=seq))
        if any(body[at:]):
            self.fail(offset + at, "the rest of a block")

    def _compressed_keys(self):
        ckb = self.data[self.ckb_off : self.ckb_off + self.ckb_len]
        keys, at = [], 0
        self.chunks = []  # of each whether it is packed
        while at < len(ckb):
            if len(ckb) - at < 18:
                self.fail(self.ckb_off + at, "a chunk is cut short")
            word, count = u32(ckb, at + 8), u32(ckb, at + 12)
            packed, kinds, length = bool(word >> 31), bool(word >> 30 & 1), word & 0x3FFFFFFF
            if kinds != (self.format >= 3):
                self.fail(self.ckb_off + at + 8, "form of a chunk")
            if not (21 if packed else 18) <= length <= min(65536, len(ckb) - at) or count == 0:
                self.fail(self.ckb_off + at + 8, "head of a chunk")
            chunk = ckb[at : at + length]
            if u64(chunk, 0) != xxh3(chunk[8:], ~(self.number << 32) ^ at):
                self.fail(self.ckb_off + at, "checksum of a chunk")
            self._entries(self._unpack_chunk(chunk, at) if packed else chunk[16:], count, at, keys)
            at += length
            self.chunks.append(packed)
        if keys != [(r.key, r.kind) for r in self.records]:
            self.fail(self.ckb_off, "the compressed keys are not those of the records")

    def _unpack_chunk(self, chunk, at):
        size = u32(chunk, 16)
        if not 2 <= size <= 65536 - 16:
            self.fail(self.ckb_off + at + 16, "size of a packed chunk")
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            entries = frame.decompress(chunk[20:])
        except zstandard.ZstdError as e:
            self.fail(self.ckb_off + at + 20, f"zstd: {e}")
        if not frame.eof or frame.unused_data or len(entries) != size:
            self.fail(self.ckb_off + at + 20, "frame of a packed chunk")
        return entries

    def _entries(self, entries, count, at, keys):
        """Appends the keys of a chunk that is at `at` within the compressed keys."""
        p, key = 0, b""
        for i in range(count):
            try:
                shared, p = varint(entries, p, len(entries))
                head, p = varint(entries, p, len(entries))
                kind = head & 1
                if kind and self.format >= 3:
                    kind, p = varint(entries, p, len(entries))  # every kind is below 128
                    check_kind(kind, IN_TABLE)
            except ValueError as e:
                self.fail(self.ckb_off + at, str(e))
            suffix = entries[p : p + (head >> 1)]
            if len(suffix) != head >> 1 or shared > len(key) or (i == 0 and shared):
                self.fail(self.ckb_off + at, f"entry {i}")
            if i and (not suffix or (shared < len(key) and suffix[0] <= key[shared])):
                self.fail(self.ckb_off + at, f"entry {i} does not ascend")
            key = key[:shared] + suffix
            p += len(suffix)
            keys.append((key, kind))
        if p != len(entries):
            self.fail(self.ckb_off + at, "entries end before their chunk")

    def end(self):
        """The position after the last record."""
        return self.nr_pages << 8

    @functools.cached_property
    def numbers(self):
        """The number of the record at each position, and of the end."""
        return {r.position: i for i, r in enumerate(self.records)} | {self.end(): len(self.records)}


# ---- REMIX files

SAME, FAR = 0xFFFF, 0xFFFE
BYTE_MAX = 4094
EXPIRES_BIT, TOMB_BIT, ERASED = 0x20, 0x40, 0x60  # of a selector


def selector_bits(r):
    return (EXPIRES_BIT if r.kind & EXPIRES else 0) | (TOMB_BIT if r.tomb else 0)


def key_bit(key, position):
    """The bit of a key at a position byte << 4 | b."""
    byte, b = position >> 4, position & 15
    if byte >= len(key):
        return 0
    return 1 if b == 0 else key[byte] >> (8 - b) & 1


def discriminating_bit(a, b):
    """The lowest position at which two keys differ; None when they are equal."""
    byte = common_prefix(a, b)
    if byte == len(a) and byte == len(b):
        return None
    if byte == min(len(a), len(b)):
        return byte << 4
    return byte << 4 | 8 - ((a[byte] ^ b[byte]).bit_length() - 1)


# sum: the checksum; starts: of each run its cursor offset; keys: those that are live
Page = namedtuple("Page", "at size segments entries keys anchors sum starts anchor")


class RemixFile:
    """What readers of whole REMIX files and of single pages share. `packed`: of formats 2 to 4, for each column that
    was read whether it is compressed."""

    # first: index of its first entry
    Segment = namedtuple("Segment", "anchor tags selectors far base offsets bits first")

    def __init__(self, name, tables):
        self.name, self.tables = name, tables
        match = re.fullmatch(r"(\d{6,})\.remix", os.path.basename(name))
        self.number = match and int(match.group(1))
        self.packed = []

    def fail(self, offset, what):
        raise FormatError(self.name, offset, what)

    def _begin(self, head, size):
        """What is looked at before the checksum."""
        if size < 140 or head[:8] != b"RDBREMIX":
            self.fail(0, "magic")
        if u64(head, 32) != size:
            self.fail(32, "size of the file")

    def _known(self, head):
        self.format = u32(head, 8)
        if self.format > 4:
            raise UnknownFormat(self.name, 8, f"REMIX format {self.format}")
        if self.format == 0:
            self.fail(8, "format version")

    def _head(self, head, ids, number, known=1):
        """The fields of a header that all formats share. known: the flags."""
        self.flags, self.store_id = u32(head, 12), u64(head, 16)
        if self.flags & ~known:
            self.fail(12, "unknown flags")
        if (number is not None and u64(head, 24) != number) or (ids is not None and self.store_id not in ids):
            self.fail(16, "another file, or another store's")
        (self.nr_runs, self.nr_segments,
         self.nr_entries, self.nr_keys) = u32(head, 40), u32(head, 44), u64(head, 48), u64(head, 56)
        r = self.nr_runs
        if r > 32 or r != len(self.tables):
            self.fail(40, "number of runs")
        self.tag_bytes = 32 if self.flags & 1 else 0
        self.segment_size = (self.tag_bytes + 36 + 4 * r + 64 + 15) // 16 * 16
        if u32(head, 64) != self.segment_size or u32(head, 68):
            self.fail(64, "size of a segment")
        self.at_segments = (104 + 8 * r + 63) // 64 * 64
        if list(struct.unpack_from(f"<{r}Q", head, 104)) != [t.number for t in self.tables]:
            self.fail(104, "numbers of the tables")
        if any(head[104 + 8 * r : self.at_segments]):
            self.fail(104 + 8 * r, "zeros before the segments")

    def _counts(self, head):
        """The bounds of the counts of packed files."""
        segments, entries = u32(head, 44), u64(head, 48)
        if u32(head, 40) != len(self.tables) or entries != sum(t.nr_records for t in self.tables):
            self.fail(40, "number of runs or entries")
        if segments > entries // 4 + 64:
            self.fail(44, "number of segments")
        if u64(head, 96) > min(sum(t.key_bytes for t in self.tables), segments * KEY_MAX, (1 << 32) - 1):
            self.fail(96, "length of the anchors")

    def _columns(self, data, at, end, lengths):
        """Columns that fill data[at:end], from (length, length in the file) of each: tags, heads, selectors, low bits,
        high bits, anchors."""
        columns = []
        for length, stored in lengths:
            if stored > length or at + stored > end:
                self.fail(at, "lengths of a column")
            column = data[at : at + stored]
            if stored < length:
                try:
                    column = zstandard.ZstdDecompressor().decompress(column, max_output_size=length)
                except zstandard.ZstdError as e:
                    self.fail(at, f"zstd: {e}")
            if len(column) != length:
                self.fail(at, "length of a column")
            self.packed.append(stored < length)
            columns.append(column)
            at += stored
        if at != end:
            self.fail(at, "the columns do not fill their place")
        return columns

    def positions(self, upcoming):
        """Of the next record of each run, from the numbers of these records."""
        return [t.records[n].position if n < len(t.records) else t.end() for t, n in zip(self.tables, upcoming)]

    def _parts(self, columns, tagged, segments, entries, upcoming):
        """The segments and their anchors from the columns. upcoming: the next record of each run; it goes on."""
        tags, heads, selectors, low, high, packed_anchors = columns
        image, first = [], 0
        for i in range(segments):
            count = heads[4 * i]
            if count > 32 or first + count > entries:
                self.fail(0, "number of entries of a segment")
            part = slice(first, first + count)
            first += count
            offsets = self.positions(upcoming)
            for x in selectors[part]:
                if (x & 31) >= len(self.tables):
                    self.fail(0, "a selector of a run that is not there")
                upcoming[x & 31] += 1
            bits = bytes(b for pair in zip(low[part], high[part]) for b in pair)
            s = tags[part].ljust(32, b"\0") if tagged else b""
            s += (selectors[part].ljust(32, b"\0") + heads[4 * i : 4 * i + 4]
                  + struct.pack(f"<{len(self.tables)}I", *offsets) + bits.ljust(64, b"\0"))
            image.append(s + bytes(-len(s) % 16))
        if first != entries:
            self.fail(48, "number of entries")
        anchors, anchor, at = [], b"", 0
        for _ in range(segments):
            try:
                shared, at = varint(packed_anchors, at, len(packed_anchors))
                length, at = varint(packed_anchors, at, len(packed_anchors))
            except ValueError as e:
                self.fail(0, f"anchors: {e}")
            if shared > len(anchor) or at + length > len(packed_anchors) or (not anchors and length):
                self.fail(0, "an anchor")
            anchor = anchor[:shared] + packed_anchors[at : at + length]
            at += length
            anchors.append(anchor)
        if at != len(packed_anchors):
            self.fail(0, "anchors that are too long")
        return image, anchors

    def _directory(self, head, directory):
        """The pages. directory: the bytes from the directory on, but for the file's checksum."""
        at, end = (104 + 8 * u32(head, 40) + 63) // 64 * 64, u64(head, 72)
        runs, data = u32(head, 40), directory[:-8]
        if len(directory) < 8 or u64(directory, len(data)) != xxh3(data, u64(head, 24)):
            self.fail(end, "checksum of the directory")
        pages, d = [], 0
        while d < len(data):
            if d + 32 + 4 * runs > len(data):
                self.fail(end + d, "directory")
            size, segments, entries, keys, anchors, length, checksum = struct.unpack_from("<6IQ", data, d)
            starts = list(struct.unpack_from(f"<{runs}I", data, d + 32))
            anchor = data[d + 32 + 4 * runs : d + 32 + 4 * runs + length]
            if length > KEY_MAX or len(anchor) != length:
                self.fail(end + d, "anchor of a page")
            if (size < 28 or at + size > end or not 1 <= segments <= 128 or not segments <= entries <= 32 * segments
                    or keys > entries or anchors > (segments - 1) * KEY_MAX):
                self.fail(end + d, "bounds of a page")
            if anchor <= pages[-1].anchor if pages else anchor:
                self.fail(end + d, "anchors of pages do not ascend")
            wrong = (starts != self.positions([0] * runs) if not pages
                     else any(a > b for a, b in zip(pages[-1].starts, starts)))
            if wrong or any(p not in t.numbers for p, t in zip(starts, self.tables)):
                self.fail(end + d, "cursor offsets of a page")
            pages.append(Page(at, size, segments, entries, keys, anchors, checksum, starts, anchor))
            at += size
            d += 32 + 4 * runs + length
        sums = [sum(p.segments for p in pages), sum(p.entries for p in pages), sum(p.keys for p in pages),
                sum(p.anchors + len(p.anchor) for p in pages)]
        if not pages or at != end or sums != [u32(head, 44), u64(head, 48), u64(head, 56), u64(head, 96)]:
            self.fail(end, "the pages are not all of the file")
        return pages

    def _page(self, head, page, data, following):
        """The segments and anchors of a page; the first anchor is that of the directory. data: the page. following: the
        next page, or None."""
        if xxh3(data, u64(head, 24)) != page.sum:
            self.fail(page.at, "checksum of a page")
        tagged, entries = u32(head, 12) & 1, page.entries
        *stored, anchors_length = struct.unpack_from("<7I", data, 0)
        if anchors_length > 10 * page.segments + page.anchors:
            self.fail(page.at, "length of the anchors' column")
        lengths = [entries if tagged else 0, 4 * page.segments, entries, entries, entries, anchors_length]
        upcoming = [t.numbers[p] for p, t in zip(page.starts, self.tables)]
        parts, anchors = self._parts(self._columns(data, 28, len(data), zip(lengths, stored)), tagged, page.segments,
                                     entries, upcoming)
        # a run that the page counts beyond its records is not at its end either
        ends = [len(t.records) for t in self.tables]
        if following:
            ends = [t.numbers[p] for p, t in zip(following.starts, self.tables)]
        if upcoming != ends:
            self.fail(page.at, "a page does not end where the next one begins")
        if sum(len(a) for a in anchors) != page.anchors or (len(anchors) > 1 and anchors[1] <= page.anchor):
            self.fail(page.at, "anchors of a page")
        selectors = [x for s in parts for x in s[32 * tagged : 32 * tagged + s[32 * tagged + 32]]]
        if sum(not x & (0x80 | TOMB_BIT) for x in selectors) != page.keys:
            self.fail(page.at, "number of keys of a page")
        return parts, [page.anchor, *anchors[1:]]

    def _segment(self, at, s, anchor, first):
        """The fields of a segment, whose bytes are s."""
        t = self.tag_bytes
        tags, selectors, count, flags, base = s[:t], s[t : t + 32], s[t + 32], s[t + 33], u16(s, t + 34)
        offsets = list(struct.unpack_from(f"<{self.nr_runs}I", s, t + 36))
        bits = list(struct.unpack_from("<32H", s, t + 36 + 4 * self.nr_runs))
        if not 1 <= count <= 32 or flags & ~1:
            self.fail(at + t + 32, "count or flags of a segment")
        if any(tags[count:]) or any(selectors[count:]) or any(bits[count:]) or any(s[t + 100 + 4 * self.nr_runs :]):
            self.fail(at, "entries that are not there")
        zero = 0 if self.kinds else EXPIRES_BIT
        if any(x & zero for x in selectors) or any((x & 31) >= self.nr_runs for x in selectors[:count]):
            self.fail(at + t, "selectors")
        return RemixFile.Segment(anchor, tags[:count], selectors[:count], bool(flags & 1), base, offsets, bits[:count],
                                 first)


class Searching:
    """Searches in `segments` over `tables`, as the document tells it."""

    def segment_of(self, key):
        i = len(self.segments) - 1
        while i > 0 and self.segments[i].anchor > key:
            i -= 1
        return self.segments[i]

    def _key(self, s, i):
        """The key of entry i of a segment: of the record that its selector and the cursor offsets lead to."""
        run = s.selectors[i] & 31
        n = sum((x & 31) == run for x in s.selectors[:i])
        records = self.tables[run].records
        start = next(k for k, r in enumerate(records) if r.position == s.offsets[run])
        return records[start + n].key

    def get(self, key):
        """By tags: (run, record) of the newest version, or None."""
        s, tag = self.segment_of(key), xxh3(key) >> 56
        for i, x in enumerate(s.selectors):
            if not x & 0x80 and s.tags[i] == tag and self._key(s, i) == key:
                return self.entries[s.first + i][:2]
        return None

    def seek(self, key):
        """The index of the first entry whose key is not less; nr_entries when there is none. Reads one key of a
        segment, unless FAR is there."""
        s = self.segment_of(key)
        count = len(s.selectors)
        if s.far:
            place = next((i for i in range(count) if self._key(s, i) >= key), count)
            return s.first + place
        cand, i = 0, 1
        while i < count:
            bit = s.bits[i]
            if bit != SAME and key_bit(key, bit + (s.base << 4)):
                cand = i
                i += 1
            else:
                i += 1
                while i < count and s.bits[i] > bit:
                    i += 1
        found = self._key(s, cand)
        p = discriminating_bit(found, key)
        if p is None:
            return s.first + cand
        if (p >> 4) < s.base:
            return s.first + (count if key > found else 0)
        p = min(p - (s.base << 4), FAR)
        if key > found:
            place = next((k for k in range(cand + 1, count) if s.bits[k] < p), count)
        else:
            place = next((k for k in range(cand, 0, -1) if s.bits[k] < p), 0)
        return s.first + place


class Remix(RemixFile, Searching):
    """A REMIX over tables (oldest first): `entries` of (run, record, old), `segments` as they are in the image.
    `pages`: of format 4."""

    def __init__(self, name, data, tables, ids=None, fingerprint=None):
        super().__init__(name, tables)
        number = self.number
        self._begin(data, len(data))
        self.number = u64(data, 24)
        if u64(data, len(data) - 8) != xxh3(data[:-8], number if number is not None else self.number):
            self.fail(len(data) - 8, "checksum")
        self._known(data)
        self.pages = []
        self.kinds = u32(data, 12) & 2 if self.format == 4 else self.format == 3
        self.data = self._image(data) if self.format >= 2 else data
        self._header(number, ids)
        if fingerprint is not None and fingerprint != u64(data, len(data) - 8):
            self.fail(len(data) - 8, "of another history")
        self._segments()
        self._check_against_tables()

    def _whole(self, data):
        """The segments and anchors of formats 2 and 3."""
        segments, entries, start = u32(data, 44), u64(data, 48), u64(data, 72)
        if start + 96 + 8 > len(data):
            self.fail(72, "offset of the segments")
        lengths = struct.unpack_from("<12Q", data, start)
        lengths = list(zip(lengths[::2], lengths[1::2]))
        known = [entries if u32(data, 12) & 1 else 0, 4 * segments, entries, entries, entries]
        if [length for length, _ in lengths[:5]] != known:
            self.fail(start, "lengths of the columns")
        columns = self._columns(data, start + 96, len(data) - 8, lengths)
        return self._parts(columns, u32(data, 12) & 1, segments, entries, [0] * len(self.tables))

    def _all_pages(self, data):
        """Those of format 4."""
        at = u64(data, 72)
        if not (104 + 8 * u32(data, 40) + 63) // 64 * 64 <= at <= len(data) - 16:
            self.fail(72, "offset of the directory")
        self.pages = self._directory(data, data[at:-8])
        segments, anchors = [], []
        for page, following in zip(self.pages, [*self.pages[1:], None]):
            more, starts = self._page(data, page, data[page.at : page.at + page.size], following)
            segments += more
            anchors += starts
        return segments, anchors

    def _image(self, data):
        """The image that formats 2 to 4 pack."""
        self._counts(data)
        segments, anchors = self._all_pages(data) if self.format == 4 else self._whole(data)
        start = (104 + 8 * len(self.tables) + 63) // 64 * 64
        ends = [0]
        for a in anchors:
            ends.append(ends[-1] + len(a))
        image = bytearray(data[:start] + b"".join(segments) + struct.pack(f"<{len(ends)}I", *ends)
                          + b"".join(anchors) + bytes(8))
        struct.pack_into("<Q", image, 32, len(image))
        if self.format == 4:
            if u32(data, 12) & ~3:
                self.fail(12, "unknown flags")
            struct.pack_into("<II", image, 8, 3 if self.kinds else 2, u32(data, 12) & 1)
            struct.pack_into("<Q", image, 72, start)
        return bytes(image)

    def _header(self, number, ids):
        data = self.data
        if self.format >= 2 and (u64(data, 32) != len(data) or any(data[-8:])):
            self.fail(32, "size of the image")
        self._head(data, ids, number)
        segments = self.at_segments
        offsets = segments + self.nr_segments * self.segment_size
        anchors = offsets + 4 * (self.nr_segments + 1)
        if struct.unpack_from("<4Q", data, 72) != (segments, offsets, anchors, len(data) - 8 - anchors):
            self.fail(72, "places of the parts")
        ends = struct.unpack_from(f"<{self.nr_segments + 1}I", data, offsets)
        if ends[0] != 0 or ends[-1] != len(data) - 8 - anchors or any(a > b for a, b in zip(ends, ends[1:])):
            self.fail(offsets, "offsets of the anchors")
        self.anchors = [data[anchors + a : anchors + b] for a, b in zip(ends, ends[1:])]
        if self.anchors and self.anchors[0]:
            self.fail(offsets, "the first anchor is not empty")
        if any(len(a) > KEY_MAX for a in self.anchors):
            self.fail(offsets, "an anchor is too long")
        if any(a >= b for a, b in zip(self.anchors, self.anchors[1:])):
            self.fail(offsets, "anchors do not ascend")

    def _segments(self):
        self.segments = []
        first = 0
        for i, anchor in enumerate(self.anchors):
            at = self.at_segments + i * self.segment_size
            self.segments.append(self._segment(at, self.data[at : at + self.segment_size], anchor, first))
            first += len(self.segments[-1].selectors)
        if first != self.nr_entries:
            self.fail(48, "number of entries")

    def _check_against_tables(self):
        """That everything in the file is what follows from the tables' keys."""
        # all records of all tables, in the order of the view
        order = sorted(((r.key, -run, r) for run, t in enumerate(self.tables) for r in t.records), key=lambda e: e[:2])
        self.entries = []
        for i, (key, run, r) in enumerate(order):
            self.entries.append((-run, r, i > 0 and order[i - 1][0] == key))
        if len(self.entries) != self.nr_entries:
            self.fail(48, "number of entries")
        selectors = [x for s in self.segments for x in s.selectors]
        self.erased = [x & ERASED == ERASED for x in selectors]  # of each entry
        if sum(not x & (0x80 | TOMB_BIT) for x in selectors) != self.nr_keys:
            self.fail(56, "number of keys")
        upcoming = [0] * self.nr_runs  # the next record of each run
        for i, s in enumerate(self.segments):
            at = self.at_segments + i * self.segment_size
            part = self.entries[s.first : s.first + len(s.selectors)]
            positions = [t.records[n].position if n < len(t.records) else t.end() for t,
                         n in zip(self.tables, upcoming)]
            if s.offsets != positions:
                self.fail(at, "cursor offsets")
            for run, _, _ in part:
                upcoming[run] += 1
            bits = [ERASED if x & ERASED == ERASED else selector_bits(e[1]) for x, e in zip(s.selectors, part)]
            if list(s.selectors) != [run | b | 0x80 * old for b, (run, _, old) in zip(bits, part)]:
                self.fail(at, "selectors")
            if part[0][2]:
                self.fail(at, "versions of a key in two segments")
            if self.flags & 1 and list(s.tags) != [xxh3(r.key) >> 56 for _, r, _ in part]:
                self.fail(at, "tags")
            keys = [r.key for _, r, _ in part]
            true = [discriminating_bit(a, b) for a, b in zip(keys, keys[1:])]
            base = min((b >> 4 for b in true if b is not None), default=0)
            stored = [0]
            for b in true:
                stored.append(SAME if b is None else FAR if (b >> 4) - base > BYTE_MAX else b - (base << 4))
            if s.base != base or s.bits != stored or s.far != (FAR in stored):
                self.fail(at, "discriminating bits")
            anchor = b""
            if i:
                before = self.entries[s.first - 1][1].key
                anchor = keys[0][: common_prefix(before, keys[0]) + 1]
            if s.anchor != anchor:
                self.fail(at, "anchor")


class RemixPage(Searching):
    """A page, as a view of its own."""

    def __init__(self, segments, tables, starts):
        self.segments, self.tables, self.entries = segments, tables, []
        upcoming = [t.numbers[p] for p, t in zip(starts, tables)]
        for x in (x for s in segments for x in s.selectors):
            self.entries.append((x & 31, tables[x & 31].records[upcoming[x & 31]], bool(x & 0x80)))
            upcoming[x & 31] += 1


class PagedRemix(RemixFile):
    """A REMIX file of format 4, of which only the header, the directory and those pages are read that a caller asks
    for. read(offset, length) reads the file, which has `size` bytes."""

    def __init__(self, name, read, size, tables, ids=None, fingerprint=None):
        super().__init__(name, tables)
        self.read = read
        head = self.head = read(0, (104 + 8 * len(tables) + 63) // 64 * 64)
        self._begin(head, size)
        self._known(head)
        if self.format != 4:
            self.fail(8, "the file has no pages")
        self._counts(head)
        self._head(head, ids, self.number, 3)
        self.kinds = self.flags & 2
        at = u64(head, 72)
        if not self.at_segments <= at <= size - 16:
            self.fail(72, "offset of the directory")
        if fingerprint is not None and fingerprint != u64(read(size - 8, 8), 0):
            self.fail(size - 8, "of another history")
        self.pages = self._directory(head, read(at, size - 8 - at))

    def page(self, i):
        p = self.pages[i]
        parts, anchors = self._page(self.head, p, self.read(p.at, p.size), (self.pages + [None])[i + 1])
        segments, first = [], 0
        for s, anchor in zip(parts, anchors):
            segments.append(self._segment(p.at, s, anchor, first))
            first += len(segments[-1].selectors)
        if any(len(a) > KEY_MAX for a in anchors):
            self.fail(p.at, "an anchor is too long")
        if any(a >= b for a, b in zip(anchors, anchors[1:])):
            self.fail(p.at, "anchors do not ascend")
        return RemixPage(segments, self.tables, p.starts)

    def page_of(self, key):
        return max(i for i, p in enumerate(self.pages) if p.anchor <= key)

    def get(self, key):
        return self.page(self.page_of(key)).get(key)

    def seek(self, key):
        i = self.page_of(key)
        return sum(p.entries for p in self.pages[:i]) + self.page(i).seek(key)


# ---- the log

WAL_HEAD, FRAME_HEAD, WATERMARK = 512, 40, 448

Frame = namedtuple("Frame", "offset length kinds first_seq durable count checksum")


class Segment:
    """A file of the log that has a header; `frames` and `records` are those read from it."""

    def __init__(self, name, data, store_id):
        self.name, self.data = name, data
        (self.generation, self.before, self.before_len,
         self.before_durable, self.last_seq) = struct.unpack_from("<5Q", data, 24)
        self.version, self.fingerprint = u32(data, 8), u64(data, 504)
        self.before_print, self.before_frames = (u64(data, 72), u64(data, 80)) if self.version >= 3 else (None, None)
        self.origins = [u64(data, 96 + 8 * i) for i in range(min(u32(data, 88), 44))] if self.version >= 3 else []
        self.key = xxh3(struct.pack("<QQ", store_id, self.generation))
        mark = data[WATERMARK : WATERMARK + 24]
        self.watermark = None  # (generation, offset)
        if u64(mark, 0) == xxh3(mark[8:], self.key + WATERMARK):
            generation, offset = u64(mark, 8), u64(mark, 16)
            if self.generation <= generation <= COUNT_MAX and offset >= WAL_HEAD:
                self.watermark = (generation, offset)
        self.frames, self.records, self.end = [], [], WAL_HEAD

    def in_bounds(self):
        """Whether every field of the header is within its bounds; else the header counts as none."""
        before = self.before_len == 0 or (self.before_len >= WAL_HEAD and self.before < self.generation)
        return (0 < self.generation <= COUNT_MAX and self.last_seq <= COUNT_MAX and before
                and self.before_durable <= self.before_len)


class Log:
    """The log of a store: `segments` replayed, oldest first; `records` as (sequence number, Record); `cut`: (file,
    offset) of a torn tail, None when the last frame is whole and nothing of another lies behind it; `spares`: files
    that are not needed."""

    def __init__(self, files, store_id, oldest, last_seq, fingerprint=None):
        self.store_id = store_id
        self.records, self.segments, self.cut = [], [], None
        headed, headless = self._headers(files)
        chain = self._chain(headed, oldest)
        self._one_history(chain, fingerprint)
        self.spares = sorted(set(files) - {s.name for s in chain})
        newest = max(s.generation for s in headed)
        for name in headless:  # duty 4
            for generation in (newest + 1, newest + 2):
                key = xxh3(struct.pack("<QQ", store_id, generation))
                if any(f.durable for f in self._heads(files[name], key, WAL_HEAD, len(files[name]))):
                    raise FormatError(name, 0, f"the header of generation {generation} is broken")
        self._replay(chain, last_seq)

    def _headers(self, files):
        headed, headless = [], []
        for name, data in sorted(files.items()):
            if len(data) < WAL_HEAD or data[:8] != b"#REMXWAL":
                headless.append(name)
                continue
            version = u32(data, 8)
            if u64(data, 504) != xxh3(data[:448]):
                if version == 1 and u64(data, 504) == xxh3(data[:504]):
                    raise UnknownFormat(name, 8, "the older layout of log format 1")
                headless.append(name)
                continue
            if version not in (1, 2, 3, 4):
                raise UnknownFormat(name, 8, f"log format {version}")
            segment = Segment(name, data, self.store_id)
            if u64(data, 16) == self.store_id and segment.in_bounds():
                headed.append(segment)
            else:
                headless.append(name)
        return headed, headless

    def _chain(self, headed, oldest):
        by_generation = {}
        for s in headed:
            if s.generation >= oldest and s.generation in by_generation:
                raise FormatError(s.name, 24, f"generation {s.generation} is there twice")
            by_generation[s.generation] = s
        if not headed:
            raise FormatError("the log", 0, f"generation {oldest} is missing")
        generation = max(oldest, max(by_generation))
        chain = []
        while True:
            s = by_generation.get(generation)
            if s is None:
                raise FormatError("the log", 0, f"generation {generation} is missing")
            chain.insert(0, s)
            if generation == oldest:
                return chain
            if s.before_len == 0 or s.before < oldest or s.before >= generation:
                raise FormatError(s.name, 32, f"does not lead to generation {oldest}")
            generation = s.before

    @staticmethod
    def _one_history(chain, fingerprint):
        if fingerprint is not None and fingerprint != chain[0].fingerprint:
            raise FormatError(chain[0].name, 504, "of another history")
        for before, s in zip(chain, chain[1:]):
            if s.before_print is not None and s.before_print != before.fingerprint:
                raise FormatError(s.name, 72, "of another history")

    @staticmethod
    def _head(data, key, at):
        """The head of a frame (duty 8), or None."""
        if at + FRAME_HEAD > len(data) or u32(data, at + 8) != (key >> 32 | 1):
            return None
        if u32(data, at + 36) != xxh3(data[at + 8 : at + 36], ~(key + at)) & 0xFFFFFFFF:
            return None
        checksum, _, word, first_seq, durable, count = struct.unpack_from("<QIIQQI", data, at)
        length, kinds = word & 0x7FFFFFFF, IN_LOG if word >> 31 else BARE
        if not 1 <= count <= length <= 5 << 28 or not (durable == 0 or WAL_HEAD <= durable <= at):
            return None
        if not 1 <= first_seq <= COUNT_MAX - count + 1:
            return None
        return Frame(at, length, kinds, first_seq, durable, count, checksum)

    @staticmethod
    def _heads(data, key, start, limit):
        mark = struct.pack("<I", key >> 32 | 1)
        at = data.find(mark, start + 8)
        while at >= 0:
            head = Log._head(data, key, at - 8)
            if head and at - 8 + FRAME_HEAD <= limit:
                yield head
            at = data.find(mark, at + 1)

    def _frame(self, s, at, seq):
        """The whole frame at `at` and its records, or None."""
        head = self._head(s.data, s.key, at)
        if not head or head.first_seq != seq + 1:
            return None
        end = at + FRAME_HEAD + head.length
        if end > len(s.data) or head.checksum != xxh3(s.data[at + 8 : end], s.key + at):
            return None
        records, p = [], at + FRAME_HEAD
        try:
            for place in range(head.first_seq, head.first_seq + head.count):
                r, p = record(s.data, p, end, head.kinds)
                if r.seq is not None and r.seq >= place:
                    return None
                records.append(r)
        except ValueError:
            return None
        return (head, records) if p == end else None

    def _follows(self, s, following, seq):
        """Whether the next header speaks of these frames, as far as they go."""
        if following.before_print is None:
            return True
        over = s.end < following.before_len and self._frame(s, s.end, seq)
        if over and over[0].offset + FRAME_HEAD + over[0].length > following.before_len:
            return False
        frames = sum(f.checksum for f in s.frames) & MASK64
        return s.end != following.before_len or frames == following.before_frames

    def _replay(self, chain, seq):
        watermark = max((s.watermark for s in chain if s.watermark), default=(0, 0))
        if watermark[0] > chain[-1].generation:
            raise FormatError(chain[-1].name, WATERMARK, f"generation {watermark[0]} is missing")
        for i, s in enumerate(chain):
            following = chain[i + 1] if i + 1 < len(chain) else None
            limit = following.before_len if following else len(s.data)
            if s.last_seq != seq:
                raise FormatError(s.name, 56, "sequence numbers do not follow")
            self.segments.append(s)
            while True:
                frame = self._frame(s, s.end, seq)
                if frame is None or frame[0].offset + FRAME_HEAD + frame[0].length > limit:
                    break
                head, records = frame
                s.frames.append(head)
                s.records += records
                for r in records:
                    seq += 1
                    self.records.append((seq, r._replace(seq=r.seq or seq)))
                s.end = head.offset + FRAME_HEAD + head.length
            if following and not self._follows(s, following, seq):
                raise FormatError(following.name, 80, "of another history")
            if watermark[0] == s.generation and s.end < watermark[1]:
                raise FormatError(s.name, s.end, "broken before the watermark")
            if following and s.end == limit:
                continue
            self._judge(chain, i, limit, watermark)
            break
        self.last_seq = seq

    def _judge(self, chain, i, limit, watermark):
        """A break at the end of what could be read of segment i: a torn tail, or damage (duty 7)."""
        s, following = chain[i], chain[i + 1] if i + 1 < len(chain) else None
        behind = list(self._heads(s.data, s.key, s.end, min(limit, len(s.data))))
        if any(f.durable > s.end for f in behind):
            raise FormatError(s.name, s.end, "broken, and a later frame says that it was durable")
        if watermark[0] > s.generation:
            raise FormatError(s.name, s.end, "broken, and the watermark says that it was durable")
        if following:
            if following.before_durable > s.end:
                raise FormatError(s.name, s.end, "broken, and the next header says that it was durable")
            if any(f.durable for f in self._heads(following.data, following.key, WAL_HEAD, len(following.data))):
                raise FormatError(s.name, s.end, "broken, and the next segment was synced")
            if i + 2 < len(chain):
                raise FormatError(s.name, s.end, "broken, and the log goes on")
        if behind or following:
            self.cut = (s.name, s.end)


# ---- versions

# The last nr_young of the tables are the young view's. prints: of the tables, then of both views; None without any.
Partition = namedtuple("Partition", "anchor remix tables young nr_young prints")


class Version:
    """What CURRENT says."""

    def __init__(self, name, data):
        self.name, self.data = name, data
        if len(data) < 64 or data[:8] != b"RMXDBVER":
            self.fail(0, "magic")
        if u64(data, len(data) - 8) != xxh3(data[:-8]):
            self.fail(len(data) - 8, "checksum")
        self.format = u32(data, 8)
        if self.format not in (1, 2, 3):
            raise UnknownFormat(name, 8, f"format {self.format}")
        (self.store_id, self.number, self.next_file,
         self.log_generation, self.log_seq) = struct.unpack_from("<5Q", data, 16)
        if not (0 < self.number <= COUNT_MAX and 0 < self.next_file <= 1 << 46
                and 0 < self.log_generation <= COUNT_MAX and self.log_seq <= COUNT_MAX):
            self.fail(24, "a number out of its bounds")
        self.partitions, self.spaces, self.origins, self.log_print = [], [], [], None
        self.erased = 0  # sequence number of the last range deletion that the tables know of; 0: before log_seq
        self.names, self.next_space = {}, 1  # id: name
        self.values = {}  # number: fingerprint, of value files
        self.moves = {}  # number: bytes and reference to the index, of collected value files
        self.packs = {}  # number: fingerprint
        self.parts = {}  # (number, whether it is a REMIX file): (pack, offset, length)
        if self.format == 3:
            self._sections()
        else:
            self._partitions(self.partitions, u32(data, 12), 56, len(data) - 8)
        if self.format == 2 and not any(p.young for p in self.partitions):
            self.fail(8, "format 2 without a young view")
        for tree in self.trees():
            anchors = [p.anchor for p in tree]
            if anchors[0] or any(a >= b for a, b in zip(anchors, anchors[1:])):
                self.fail(56, "anchors do not ascend")

    def fail(self, offset, what):
        raise FormatError(self.name, offset, what)

    def ids(self):
        return {self.store_id, *self.origins}

    def trees(self):
        """The partitions without a space, then those of the named spaces, if there are any."""
        return [self.partitions] + ([self.spaces] if self.spaces else [])

    def _sections(self):
        data, end = self.data, len(self.data) - 8
        if len(data) < 72:
            self.fail(0, "the head is cut short")
        self.log_print, at, before = u64(data, 56), 64, 0
        for _ in range(u32(data, 12)):
            if end - at < 16:
                self.fail(at, "a section is cut short")
            kind, flags, length = struct.unpack_from("<IIQ", data, at)
            if kind <= before or length > end - at - 16:
                self.fail(at, "a section")
            known = kind <= 5 or kind in (8, 9, 10)
            if flags & ~1 or (not known and flags):
                raise UnknownFormat(self.name, at, f"section of kind {kind}")
            if known and not flags:
                self.fail(at + 4, "flags of a section")
            content = at + 16
            if kind == 1:
                self._origins(content, length)
            elif kind in (2, 3):
                if length < 8 or u32(data, content + 4):
                    self.fail(content, "head of the partitions")
                tree = self.partitions if kind == 2 else self.spaces
                self._partitions(tree, u32(data, content), content + 8, content + length)
            elif kind == 4:
                self._names(content, length)
            elif kind == 5:
                self.erased = u64(data, content) if length == 8 else 0
                if not self.log_seq < self.erased <= COUNT_MAX:
                    self.fail(content, "a range deletion")
            elif kind == 8:
                self._values(content, length)
            elif kind == 9:
                self._moves(content, length)
            elif kind == 10:
                self._packs(content, content + length)
            at, before = content + length, kind
        if at != end or not self.partitions:
            self.fail(at, "the sections do not fill the file")

    def _values(self, at, length):
        if length == 0 or length % 24:
            self.fail(at, "length of the value files")
        words = struct.unpack_from(f"<{length // 8}Q", self.data, at)
        numbers = list(words[::3])
        self.values = dict(zip(numbers, words[1::3]))
        if numbers != sorted(self.values) or numbers[0] == 0 or numbers[-1] >= self.next_file:
            self.fail(at, "numbers of value files")

    def _moves(self, at, length):
        if length == 0 or length % 40:
            self.fail(at, "length of the collected value files")
        before = 0
        for i in range(at, at + length, 40):
            number, moved = struct.unpack_from("<QQ", self.data, i)
            try:
                index = reference(self.data[i + 16 : i + 40])
            except ValueError as e:
                self.fail(i + 16, str(e))
            if not before < number < self.next_file or index[2] % 24:
                self.fail(i, "a collected value file")
            self.moves[number], before = (moved, index), number

    def _packs(self, at, end):
        if end - at < 8 or not u32(self.data, at) or u32(self.data, at + 4):
            self.fail(at, "head of the packs")
        count, at, before = u32(self.data, at), at + 8, 0
        for _ in range(count):
            if end - at < 24:
                self.fail(at, "a pack is cut short")
            number, fingerprint, nr = struct.unpack_from("<QQQ", self.data, at)
            if not before < number < self.next_file or not 1 <= nr <= 1 << 24 or nr > (end - at - 24) // 24:
                self.fail(at, "a pack")
            try:
                parts = pack_parts(self.data[at + 24 : at + 24 + 24 * nr])
            except ValueError as e:
                self.fail(at + 24, str(e))
            for part, place in parts.items():
                if part in self.parts or part[0] >= self.next_file:
                    self.fail(at + 24, "a file in two packs, or a free number")
                self.parts[part] = (number, *place)
            self.packs[number], before, at = fingerprint, number, at + 24 + 24 * nr
        if at != end:
            self.fail(at, "the packs do not fill their section")

    def _names(self, at, length):
        data, end = self.data, at + length
        if length < 8:
            self.fail(at, "names of spaces")
        self.next_space, count = struct.unpack_from("<II", data, at)
        if not 2 <= self.next_space <= (1 << 32) - 16 or count > 65536:
            self.fail(at, "names of spaces")
        at, before = at + 8, 0
        for _ in range(count):
            if end - at < 8:
                self.fail(at, "a space is cut short")
            number, size = struct.unpack_from("<II", data, at)
            name = data[at + 8 : at + 8 + size]
            bounded = before < number < self.next_space and 0 < size <= 255 and size <= end - at - 8
            if not bounded or b"\0" in name or b"\n" in name:
                self.fail(at, "a space")
            if name in self.names.values():
                self.fail(at, "two spaces of one name")
            self.names[number] = name
            at, before = at + 8 + size, number
        if at != end:
            self.fail(at, "the names do not fill their section")

    def _origins(self, at, length):
        if length == 0 or length % 8:
            self.fail(at, "origins")
        self.origins = list(struct.unpack_from(f"<{length // 8}Q", self.data, at))
        if sorted(set(self.origins)) != self.origins or {0, self.store_id} & set(self.origins):
            self.fail(at, "origins")

    def _partitions(self, tree, count, at, end):
        data = self.data
        head, name = {1: (16, 8), 2: (32, 8), 3: (48, 16)}[self.format]
        for _ in range(count):
            if end - at < head:
                self.fail(at, "a partition is cut short")
            anchor_len, tables, remix = struct.unpack_from("<IIQ", data, at)
            young = nr_young = remix_print = young_print = 0
            if self.format == 2:
                young, nr_young = struct.unpack_from("<QQ", data, at + 16)
            elif self.format == 3:
                remix_print, young, young_print, nr_young = struct.unpack_from("<4Q", data, at + 16)
            stop = at + head + anchor_len + name * tables
            if anchor_len > KEY_MAX or tables > 32 or stop > end or (tables == 0) != (remix == 0):
                self.fail(at, "a partition")
            if (young == 0) != (nr_young == 0) or (young and (nr_young >= tables or young == remix)):
                self.fail(at, "a young view")
            if (remix_print and not remix) or (young_print and not young):
                self.fail(at, "a fingerprint of no file")
            words = struct.unpack_from(f"<{name // 8 * tables}Q", data, at + head + anchor_len)
            numbers, prints = list(words), None
            if self.format == 3:
                numbers, prints = list(words[::2]), [*words[1::2], remix_print, young_print]
            if any(n >= self.next_file for n in numbers + [remix, young]) or 0 in numbers:
                self.fail(at, "a number that is free")
            anchor = data[at + head : at + head + anchor_len]
            tree.append(Partition(anchor, remix, numbers, young, nr_young, prints))
            at = stop
        if at != end or not tree:
            self.fail(at, "the partitions do not fill their place")


# ---- value files


def reference(b):
    if len(b) != 24:
        raise ValueError("a reference has 24 bytes")
    number, at, length, check = struct.unpack("<QQII", b)
    if not 1 <= number < 1 << 46 or not 64 <= at < 1 << 46 or at % 8 or length == 0:
        raise ValueError("a reference")
    return number, at, length, check


class Values:
    """A value file: `value` reads what a reference names."""

    def __init__(self, name, data, ids, fingerprint=None):
        self.name, self.data = name, data
        if len(data) < 64 or data[:8] != b"RMXDBVAL":
            self.fail(0, "magic")
        self.fingerprint = u64(data, 56)
        if self.fingerprint != xxh3(data[:56]):
            self.fail(56, "checksum of the header")
        if u32(data, 8) > 1 or u32(data, 12):
            raise UnknownFormat(name, 8, f"format {u32(data, 8)} of a value file")
        if u32(data, 8) == 0 or u64(data, 24) != int(name.split(".")[0]) or u64(data, 16) not in ids:
            self.fail(8, "format, number or id")
        if fingerprint is not None and fingerprint != self.fingerprint:
            self.fail(56, "another file of this number")
        self.key = xxh3(data[16:40], self.fingerprint)

    def fail(self, offset, what):
        raise FormatError(self.name, offset, what)

    def value(self, at, length, check, key, index=False):
        data, mask = self.data, MASK64
        if len(data) - at < 40:
            self.fail(at, "a value is cut short")
        total, mark, klen, vlen, flags, stored, seed = struct.unpack_from("<QIIIIQQ", data, at)
        if mark != self.key >> 32 | 1 or flags != index or klen > KEY_MAX or data[at + 40 : at + 40 + klen] != key:
            self.fail(at, "the head of a value")
        if total != xxh3(data[at + 8 : at + 40 + klen], self.key + at & mask) or total & 0xFFFFFFFF != check:
            self.fail(at, "checksum of the head of a value")
        chunks = (vlen + 65535) // 65536
        if vlen != length or not chunks <= stored <= vlen:
            self.fail(at, "lengths of a value")
        entries = at + 40 + klen + 7 & ~7
        first, begin, found = entries + 16 * chunks, 0, []
        for i in range(chunks):
            end, chunk_sum = struct.unpack_from("<QQ", data, entries + 16 * i)
            size = min(65536, vlen - 65536 * i)
            if not begin < end <= begin + size:
                self.fail(entries + 16 * i, "an entry")
            chunk = data[first + begin : first + end]
            if len(chunk) != end - begin or xxh3(chunk, seed + 2 * begin + 1 & mask) != chunk_sum:
                self.fail(first + begin, "checksum of a chunk")
            if len(chunk) != size:
                try:
                    chunk = zstandard.ZstdDecompressor().decompress(chunk, max_output_size=size)
                except zstandard.ZstdError as e:
                    self.fail(first + begin, f"zstd: {e}")
            if len(chunk) != size:
                self.fail(first + begin, "length of a chunk")
            found.append(chunk)
            begin = end
        if begin != stored:
            self.fail(entries, "the chunks do not end at their length")
        return b"".join(found)

    def index(self, at, length, check, number):
        """Where the values of a collected file are: {(old offset, old check): (offset, check)}."""
        data, entries, before = self.value(at, length, check, struct.pack("<Q", number), True), {}, 0
        for old, new, old_check, new_check in struct.iter_unpack("<QQII", data):
            if old <= before or any(n < 64 or n >= 1 << 46 or n % 8 for n in (old, new)):
                self.fail(at, "an entry of an index")
            entries[old, old_check], before = (new, new_check), old
        return entries


# ---- a store


# ---- packs


def pack_parts(b):
    """{(number, whether it is a REMIX file): (offset, length)} of the entries of a directory, in order."""
    parts, free = {}, 0
    for number, at, length in struct.iter_unpack("<QQQ", b):
        part, table = (number >> 1, bool(number & 1)), not number & 1
        if part[0] == 0 or part in parts:
            raise ValueError("number of a part")
        if at % PAGE or not free <= at < 1 << 46 or not 0 < length < 1 << 46 or (table and length % PAGE):
            raise ValueError("place of a part")
        parts[part], free = (at, length), at + -(-length // PAGE) * PAGE
    return parts


class Pack:
    """A pack: `parts` as its directory has them."""

    def __init__(self, name, data, ids=None, fingerprint=None):
        self.name, self.data = name, data
        foot = len(data) - 64
        if not data or len(data) % PAGE:
            self.fail(len(data), "a pack is a multiple of 4096 bytes")
        if data[-8:] != b"#RXMPACK":
            self.fail(foot + 56, "magic")
        self.fingerprint = u64(data, foot)
        if self.fingerprint != xxh3(data[foot + 8 :]):
            self.fail(foot, "checksum of the footer")
        (self.store_id, self.number, size, self.dir_off, dir_sum, nr,
         self.format) = struct.unpack_from("<5QII", data, foot + 8)
        if self.format > 1:
            raise UnknownFormat(name, foot + 52, f"pack format {self.format}")
        if self.format == 0 or size != len(data) or not 1 <= nr <= 1 << 24 or self.number == 0:
            self.fail(foot, "footer")
        if self.dir_off % PAGE or self.dir_off + -(-(24 * nr + 64) // PAGE) * PAGE != size:
            self.fail(foot + 32, "offset of the directory")
        match = re.fullmatch(r"(\d{6,})\.pack", os.path.basename(name))
        if match and int(match.group(1)) != self.number:
            self.fail(foot + 16, "another pack")
        if ids is not None and self.store_id not in ids:
            self.fail(foot + 8, "of another store")
        if fingerprint is not None and fingerprint != self.fingerprint:
            self.fail(foot, "of another history")
        if dir_sum != xxh3(data[self.dir_off : foot], ~self.number & (1 << 64) - 1):
            self.fail(self.dir_off, "checksum of the directory")
        try:
            self.parts = pack_parts(data[self.dir_off : self.dir_off + 24 * nr])
        except ValueError as e:
            self.fail(self.dir_off, str(e))
        if any(at + length > self.dir_off for at, length in self.parts.values()):
            self.fail(self.dir_off, "a part reaches the directory")

    def fail(self, offset, what):
        raise FormatError(self.name, offset, what)


class Tree:
    """The views of a tree: `remixes` and `young`, one per partition, or None."""

    def __init__(self):
        self.remixes, self.young = [], []


class Store:
    """A store in a directory, all of it decoded: `version`, `tables` by number, `trees` as the version's, `log`;
    `remixes` and `young` are those of the keys without a space."""

    def __init__(self, directory):
        self.directory = directory
        names = os.listdir(directory)
        self.version = v = Version("CURRENT", self._read("CURRENT"))
        self.packs = {}
        for n, fingerprint in v.packs.items():
            name = f"{n:06}.pack"
            self.packs[n] = Pack(name, self._read(name), v.ids(), fingerprint)
        named = {(n, False) for tree in v.trees() for p in tree for n in p.tables}
        named |= {(n, True) for tree in v.trees() for p in tree for n in (p.remix, p.young) if n}
        for part, (n, at, length) in v.parts.items():
            if part not in named or at + length > self.packs[n].dir_off:
                raise FormatError("CURRENT", 0, f"part {part} of pack {n}")
        self.tables = {}
        self.trees = [self._tree(partitions, 4 * n) for n, partitions in enumerate(v.trees())]
        self.remixes, self.young = self.trees[0].remixes, self.trees[0].young
        self.values = {}
        for n, fingerprint in v.values.items():
            self._values(n, fingerprint)
        self.moves = {n: (i[0], self._values(i[0]).index(*i[1:], n)) for n, (_, i) in v.moves.items()}
        logs = {n: self._read(n) for n in names if re.fullmatch(r"wal-(0|[1-9]\d{0,8})", n)}
        self.log = Log(logs, v.store_id, v.log_generation, v.log_seq, v.log_print)

    def _tree(self, partitions, flag):
        tree = Tree()
        for p, above in zip(partitions, [p.anchor for p in partitions[1:]] + [None]):
            prints = p.prints or [None] * (len(p.tables) + 2)
            for n, fingerprint in zip(p.tables, prints):
                name = f"{n:06}.sst"
                t = self.tables[n] = Table(name, self._read(name), self.version.ids(), fingerprint)
                if t.min_key < p.anchor or (above is not None and t.max_key >= above):
                    raise FormatError(name, 0, "keys outside of their partition")
                if t.flags & 4 != flag:
                    raise FormatError(name, 0, "of the other tree")
            tables = [self.tables[n] for n in p.tables]
            old = len(tables) - p.nr_young
            tree.remixes.append(self._remix(p.remix, tables[:old], prints[-2]))
            tree.young.append(self._remix(p.young, tables[old:], prints[-1]))
        return tree

    def _remix(self, number, tables, fingerprint):
        name = f"{number:06}.remix"
        return Remix(name, self._read(name), tables, self.version.ids(), fingerprint) if number else None

    def _read(self, name):
        match = re.fullmatch(r"(\d{6,})\.(sst|remix)", name)
        part = match and self.version.parts.get((int(match.group(1)), match.group(2) == "remix"))
        if part:
            n, at, length = part
            return self.packs[n].data[at : at + length]
        try:
            with open(os.path.join(self.directory, name), "rb") as f:
                return f.read()
        except FileNotFoundError:
            raise FormatError(name, 0, "is missing") from None

    def _values(self, number, fingerprint=None):
        if number not in self.values:
            name = f"{number:06}.val"
            self.values[number] = Values(name, self._read(name), self.version.ids(), fingerprint)
        return self.values[number]

    def value(self, r):
        """The value of a record, which may be in a value file."""
        if not r.kind & APART:
            return r.value
        number, at, length, check = reference(r.value)
        if number not in self.version.values and number in self.moves:
            number, index = self.moves[number]
            at, check = index[at, check]
        return self._values(number).value(at, length, check, r.key)

    def records(self):
        """{key: value} of all keys without a space."""
        return {key: self.value(r) for key, r in self._newest(self.trees[0], 0).items()}

    def spaces(self):
        """{name: {key: value}} of the named spaces."""
        names, found = self.version.names, {name: {} for name in self.version.names.values()}
        for key, r in self._newest(self.trees[1] if len(self.trees) > 1 else Tree(), SPACES).items():
            if len(key) < 4 or not 0 < int.from_bytes(key[:4], "big") < self.version.next_space:
                raise FormatError("", 0, f"{key!r} is in no space")
            space = names.get(int.from_bytes(key[:4], "big"))
            if space is not None:  # else it was dropped
                found[space][key[4:]] = self.value(r)
        return found

    def _newest(self, tree, spaces):
        """{key: record} of all that is there in one tree. The log's records of that tree have the bit `spaces`."""
        found = {}
        # a young view's records are newer than those of all other views, also a tombstone
        for views in (tree.remixes, tree.young):
            for (_, r, old), erased in (e for x in views if x for e in zip(x.entries, x.erased)):
                if old or erased:
                    continue
                found.pop(r.key, None)
                if not r.tomb:
                    found[r.key] = r  # a later one may hide it, and its value may be gone
        for _, r in self.log.records:
            if r.kind & SPACES != spaces:
                continue
            if r.kind & RANGE:
                for key in [k for k in found if r.key <= k and (not r.value or k < r.value)]:
                    del found[key]
                continue
            found.pop(r.key, None)
            if not r.tomb:
                found[r.key] = r
        return found


# ---- the rule that the golden stores' values follow (tests/lib/tiny.h)


def splitmix64(state):
    while True:
        state = state + 0x9E3779B97F4A7C15 & MASK64
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK64
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK64
        yield z ^ z >> 31


def golden_value(key, number, length, rule):
    if rule == "noise":
        words = splitmix64(number << 32 | length)
        return b"".join(struct.pack("<Q", next(words)) for _ in range((length + 7) // 8))[:length]
    unit = key[:16] + b"/%d;" % number
    return (unit * (length // len(unit) + 1))[:length]

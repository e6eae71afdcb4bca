// SPDX-License-Identifier: Apache-2.0
//
// Replay of the log from any files. The input names the segments and frames, good ones unless it says otherwise; their
// checksums are made here from docs/FORMAT.md, not by the log.
//
// A good log is replayed whole. Every log replays the same way twice. After an accepted log, appended records come back
// after the replayed ones, also when the log is opened once more; opening it read-only changes nothing on the disk.
// Reading an accepted log as a damaged one finds the records that an opening replays; reading any other log finds the
// records that are there, in order.
//
// Input: flags (bit 0: the generations begin near the largest number, 1: so do the sequence numbers, 2: more is
// appended than one record), how far the numbers of the version file are from the truth, then the parts (enum part).
#include "tests/fuzz/fuzz.h"
#include "log/wal.h"

#define HEAD 512u
#define FRAME_HEAD 40u
#define FILE_MAX (256u << 10)
#define SEGMENTS_MAX 6u
#define RECORD_MAX 70000u

enum part { PART_SEGMENT, PART_FRAME, PART_BYTES, PART_CHANGE, PART_MARK, PARTS };

// The replayed or expected records, in as much detail as tells them from any others.
struct replayed {
  uint64_t first, nr, hash;
};

static uint64_t record_hash(uint64_t before, const struct kv_rec *r) {
  const uint64_t head[3] = {before, (uint64_t)r->klen << 32 | r->vlen, r->kind};
  return hash64_seed(r->key, r->klen, hash64_seed(r->val, r->kind ? 0 : r->vlen, hash64(head, sizeof(head))));
}

static void replayed_add(struct replayed *p, uint64_t seq, const struct kv_rec *r) {
  if (p->nr == 0) p->first = seq;
  FUZZ_CHECK(seq == p->first + p->nr);
  p->nr++;
  p->hash = record_hash(p->hash, r);
}

static enum remixdb_status replay(void *arg, uint64_t seq, const struct kv_rec *rec) {
  FUZZ_CHECK(kv_lengths_fit(rec->kind, rec->klen, rec->vlen) && (!(rec->kind & KV_TOMB) || rec->vlen == 0));
  fuzz_touch(rec->key, rec->klen);
  fuzz_touch(rec->val, rec->vlen);
  replayed_add(arg, seq, rec);
  return REMIXDB_OK;
}

// ---- the files

struct segment {
  uint8_t *p;
  size_t len;
  uint64_t gen, key;
  uint64_t end;     // the end of its good frames
  uint64_t frames;  // the sum of their checksums
};

struct log {
  struct simdisk *disk;
  struct segment segs[SEGMENTS_MAX];
  uint32_t nr;
  uint64_t oldest_gen, last_seq;
  uint64_t seq;
  bool good;             // all of it
  struct replayed want;  // the result for a good one
};

static uint64_t key_of(uint64_t gen) {
  uint8_t id[16];
  store64le(id, FUZZ_STORE_ID);
  store64le(id + 8, gen);
  return hash64(id, sizeof(id));
}

// An offset: the right one, or one of the input.
static uint64_t some_offset(struct fuzz_in *in, uint64_t right, bool as_input) {
  return as_input ? fuzz_u16(in) : right;
}

// The header is of version 3: it names the segment before, rightly or as the input says.
static void add_links(struct log *l, struct segment *s, const struct segment *prev, struct fuzz_in *in) {
  const uint32_t how = fuzz_u8(in);
  store32le(s->p + 8, 3 + (how >> 7));
  store64le(s->p + 64, how);
  store64le(s->p + 72, (prev ? load64le(prev->p + 504) : 0) ^ (how & 1));
  store64le(s->p + 80, (prev ? prev->frames : 0) ^ (how >> 1 & 1));
  if (how & 4) store32le(s->p + 88, fuzz_u16(in));
  if (prev && how & 3) l->good = false;
}

static void add_segment(struct log *l, struct fuzz_in *in) {
  const uint32_t how = fuzz_u8(in);
  if (l->nr == SEGMENTS_MAX) return;
  struct segment *const s = &l->segs[l->nr], *const prev = l->nr ? s - 1 : NULL;
  s->gen = prev ? prev->gen + 1 : l->oldest_gen;
  uint64_t last_seq = l->seq, prev_gen = prev ? prev->gen : 0;
  if (how & 1) s->gen += (uint64_t)(int64_t)(int8_t)fuzz_u8(in);
  if (how & 2) prev_gen += (uint64_t)(int64_t)(int8_t)fuzz_u8(in);
  if (how & 4) last_seq += (uint64_t)(int64_t)(int8_t)fuzz_u8(in);
  const uint64_t prev_len = some_offset(in, prev ? prev->end : 0, how & 8);
  const uint64_t prev_durable = some_offset(in, how & 32 ? 0 : prev_len, how & 16);
  if (how & 31) l->good = false;
  s->key = key_of(s->gen);
  s->p = fuzz_alloc(FILE_MAX);
  s->len = s->end = HEAD;
  memcpy(s->p, "#REMXWAL", 8);
  store32le(s->p + 8, how & 64 ? 1 : 2);
  store64le(s->p + 16, FUZZ_STORE_ID);
  store64le(s->p + 24, s->gen);
  store64le(s->p + 32, prev_gen);
  store64le(s->p + 40, prev_len);
  store64le(s->p + 48, prev_durable);
  store64le(s->p + 56, last_seq);
  if (how & 128) add_links(l, s, prev, in);
  store64le(s->p + 504, hash64(s->p, 448));
  l->nr++;
}

// A watermark in the newest segment or the one before it.
static void add_mark(struct log *l, struct fuzz_in *in) {
  const uint32_t how = fuzz_u8(in);
  if (l->nr == 0) return;
  const struct segment *const last = &l->segs[l->nr - 1];
  struct segment *const s = &l->segs[how & 1 && l->nr > 1 ? l->nr - 2 : l->nr - 1];
  uint64_t gen = last->gen;
  if (how & 2) gen += (uint64_t)(int64_t)(int8_t)fuzz_u8(in);
  const uint64_t end = some_offset(in, last->end, how & 4);
  store64le(s->p + 456, gen);
  store64le(s->p + 464, end);
  store64le(s->p + 448, hash64_seed(s->p + 456, 16, s->key + 448) ^ (how >> 3 & 1));
  if (how & 6) l->good = false;
}

// A record in sizes that the input says, of bytes that follow from them.
static uint32_t put_record(struct fuzz_in *in, uint8_t *p, struct kv_rec *r) {
  static uint8_t filler[RECORD_MAX];
  const uint32_t kind = fuzz_u8(in);
  filler[0] = (uint8_t)kind;
  *r = (struct kv_rec){.key = filler, .val = filler + 1, .klen = kind & 7, .kind = kind >> 7};
  if (!r->kind) r->vlen = kind >> 3 & 7;
  if (kind & 64) {
    if (r->kind) r->klen = fuzz_u16(in) % REMIXDB_KV_MAX;
    else r->vlen = fuzz_u16(in) % (REMIXDB_KV_MAX - 8);
  }
  return (uint32_t)(kv_rec_put(p, r) - p);
}

static void add_frame(struct log *l, struct fuzz_in *in) {
  const uint32_t how = fuzz_u8(in);
  if (l->nr == 0) return;
  struct segment *const s = &l->segs[l->nr - 1];
  uint64_t first = l->seq + 1, durable = how & 1 ? s->len : 0;
  uint32_t count = 0, len = 0;
  uint8_t *const p = s->p + s->len, *const body = p + FRAME_HEAD;
  if (s->len + FRAME_HEAD + 5 * RECORD_MAX > FILE_MAX && s->len + FRAME_HEAD + 1000 > FILE_MAX) return;
  struct replayed want = l->want;
  const bool bytes = how & 8;
  if (bytes) {
    const uint8_t *const b = fuzz_bytes(in, fuzz_u8(in), &len);
    if (len) memcpy(body, b, len);
    count = fuzz_u8(in);
  } else {
    for (uint32_t n = 1 + (how >> 5); n > 0 && s->len + FRAME_HEAD + len + RECORD_MAX <= FILE_MAX; n--) {
      struct kv_rec r;
      len += put_record(in, body + len, &r);
      if (l->good) replayed_add(&want, l->seq + 1 + count, &r);
      count++;
    }
    if (count == 0) return;
  }
  if (how & 2) durable = fuzz_u16(in);
  if (how & 4) first += (uint64_t)(int64_t)(int8_t)fuzz_u8(in);
  store32le(p + 8, (uint32_t)(s->key >> 32) | 1);
  store32le(p + 12, len | (bytes && l->seq & 1 ? 0 : 1u << 31));  // bytes may also stand for records without kinds
  store64le(p + 16, first);
  store64le(p + 24, durable);
  store32le(p + 32, count);
  store32le(p + 36, (uint32_t)hash64_seed(p + 8, 28, ~(s->key + s->len)));
  store64le(p, hash64_seed(p + 8, FRAME_HEAD - 8 + len, s->key + s->len));
  s->len += FRAME_HEAD + len;
  if (bytes || how & 6) l->good = false;
  if (how & 16) {  // torn
    s->p[s->len - 1] ^= 1;
    l->good = false;
  }
  if (l->good) {
    s->end = s->len;
    s->frames += load64le(p);
  }
  l->seq += count;
  if (l->good) l->want = want;
}

static void add_bytes(struct log *l, struct fuzz_in *in) {
  const uint32_t how = fuzz_u8(in);
  if (l->nr == 0) return;
  struct segment *const s = &l->segs[l->nr - 1];
  uint32_t len;
  const uint8_t *p = fuzz_bytes(in, how >> 1, &len);
  if (s->len + 4096 > FILE_MAX) return;
  if (how & 1) {  // zeros, as of a file that is longer than its frames
    len = how >> 1;
  } else if (len) {
    memcpy(s->p + s->len, p, len);
  }
  s->len += len;
  if (len) l->good = false;
}

static void compose(struct log *l, struct fuzz_in *in) {
  const uint32_t flags = fuzz_u8(in);
  const int64_t gen_off = (int8_t)fuzz_u8(in), seq_off = (int8_t)fuzz_u8(in);
  l->oldest_gen = flags & 1 ? UINT64_MAX - fuzz_u8(in) : 1 + fuzz_u8(in);
  l->last_seq = l->seq = flags & 2 ? UINT64_MAX - fuzz_u8(in) : fuzz_u8(in);
  l->good = !(flags & 3);
  while (fuzz_left(in)) {
    switch (fuzz_u8(in) % PARTS) {
      case PART_SEGMENT: add_segment(l, in); break;
      case PART_FRAME: add_frame(l, in); break;
      case PART_BYTES: add_bytes(l, in); break;
      case PART_MARK: add_mark(l, in); break;
      default: {
        const uint32_t which = fuzz_u8(in), n = l->nr ? which % l->nr : 0;
        if (l->nr) l->segs[n].len = fuzz_change(in, l->segs[n].p, l->segs[n].len);
        l->good = false;
        break;
      }
    }
  }
  l->oldest_gen += (uint64_t)gen_off;
  l->last_seq += (uint64_t)seq_off;
  if (gen_off || seq_off || l->nr == 0) l->good = false;
}

// ---- opening it

static struct wal_opts opts_of(const struct log *l, bool read_only) {
  return (struct wal_opts){.dir = simdisk_dir(simdisk_env(l->disk), FUZZ_DIR),
                           .store_id = FUZZ_STORE_ID,
                           .read_only = read_only};
}

static enum remixdb_status open_log(const struct log *l, bool read_only, struct replayed *got, struct wal **out) {
  struct wal_recovery rec;
  const struct wal_opts o = opts_of(l, read_only);
  *got = (struct replayed){0};
  const enum remixdb_status s = wal_open(&o, l->oldest_gen, l->last_seq, false, replay, got, &rec, out);
  FUZZ_CHECK(s == REMIXDB_OK || fuzz_refused(s));
  FUZZ_CHECK(got->nr == 0 || got->first == l->last_seq + 1);
  if (s == REMIXDB_OK) FUZZ_CHECK(rec.nr_records == got->nr && rec.last_seq == l->last_seq + got->nr);
  return s;
}

// Takes the readable records of a log, damaged or not: they come in order.
static enum remixdb_status salvage(void *arg, uint64_t seq, const struct kv_rec *rec) {
  struct replayed *const p = arg;
  FUZZ_CHECK(kv_lengths_fit(rec->kind, rec->klen, rec->vlen) && (!(rec->kind & KV_TOMB) || rec->vlen == 0));
  fuzz_touch(rec->key, rec->klen);
  fuzz_touch(rec->val, rec->vlen);
  FUZZ_CHECK(p->nr == 0 || seq > p->first);
  p->first = seq;  // the last
  p->nr++;
  p->hash = record_hash(p->hash, rec);
  return REMIXDB_OK;
}

static void take_loss(void *arg, const struct wal_loss *l) {
  char text[WAL_LOSS_TEXT];
  (void)arg;
  FUZZ_CHECK(l->path && strlen(wal_loss_text(l, text, sizeof(text))) > 10);
}

static void salvage_log(const struct log *l, uint64_t oldest_gen, struct replayed *got) {
  struct wal_salvage out;
  const struct wal_salvage_to to = {.record = salvage, .lost = take_loss, .arg = got};
  const struct wal_opts o = opts_of(l, true);
  *got = (struct replayed){0};
  FUZZ_OK(wal_read_damaged(&o, oldest_gen, l->last_seq, &to, &out));
  FUZZ_CHECK(out.nr_records == got->nr);
}

static void append(struct wal *w, struct replayed *all, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    static uint8_t value[5000];
    const struct kv_rec r = {
        .key = value, .val = value, .klen = i % 3, .vlen = i % 4 ? 5 : i * 100 % 5000, .kind = i % 5 == 4};
    uint64_t gen;
    FUZZ_OK(wal_begin(w, kv_rec_size(&r), &gen));
    const uint64_t seq = wal_put(w, KV_REC(kref(r.key, r.klen), r.val, r.vlen, r.kind));
    wal_end(w);
    replayed_add(
        all, seq,
        &(struct kv_rec){.key = r.key, .val = r.val, .klen = r.klen, .vlen = r.kind ? 0 : r.vlen, .kind = r.kind});
  }
}

static bool same(const struct replayed *a, const struct replayed *b) {
  return a->nr == b->nr && a->hash == b->hash && (a->nr == 0 || a->first == b->first);
}

// A file that has lost its header and holds frames of a generation that is still to come is nothing that a crash or a
// single damage leaves; the log would take them for its own when it gets there.
static bool from_the_future(const struct log *l, const struct wal *w) {
  for (uint32_t i = 0; i < l->nr; i++)
    if (l->segs[i].gen >= wal_gen(w)) return true;
  return false;
}

static void go_on(struct log *l, struct wal *w, struct replayed *all, uint32_t n) {
  const uint64_t before = all->nr;
  append(w, all, n);
  if (n > 1) {
    FUZZ_OK(wal_switch(w, NULL, NULL));
    append(w, all, n);
  }
  FUZZ_OK(wal_sync(w));
  FUZZ_OK(wal_verify(w, NULL, NULL, NULL));
  const uint64_t gen = wal_gen(w);
  FUZZ_OK(wal_close(w));
  struct replayed again;
  salvage_log(l, l->oldest_gen, &again);  // without the part that an opening has cut
  FUZZ_CHECK(again.nr == all->nr && again.hash == all->hash);
  FUZZ_OK(open_log(l, false, &again, &w));
  FUZZ_CHECK(same(all, &again));
  FUZZ_OK(wal_mark(w));
  FUZZ_OK(wal_verify(w, NULL, NULL, NULL));
  // records in tables are not needed: the log begins with the newest segment
  FUZZ_OK(wal_release(w, gen));
  FUZZ_OK(wal_close(w));
  if (n > 1) return;
  l->oldest_gen = gen;
  l->last_seq += before;
  FUZZ_OK(open_log(l, false, &again, &w));
  FUZZ_CHECK(again.nr == 1);
  FUZZ_OK(wal_close(w));
}

FUZZ(wal) {
  struct fuzz_in in = {data, data + size};
  struct log l = {.disk = simdisk_create()};
  compose(&l, &in);
  struct env *const env = simdisk_env(l.disk);
  simdisk_no_allocate(l.disk, true);
  FUZZ_OK(env_mkdir(ENV_PATHS(env), FUZZ_DIR));
  for (uint32_t i = 0; i < l.nr; i++) {
    char name[32];
    (void)snprintf(name, sizeof(name), "wal-%u", (l.nr - i) * 3);
    fuzz_file_put(env, name, l.segs[i].p, l.segs[i].len);
    free(l.segs[i].p);
  }
  struct replayed first, again;
  struct wal *w;
  const uint64_t changes = simdisk_changes(l.disk);
  const enum remixdb_status s = open_log(&l, true, &first, &w);
  if (s == REMIXDB_OK) FUZZ_OK(wal_close(w));
  salvage_log(&l, 0, &again);
  salvage_log(&l, l.oldest_gen, &again);
  if (l.good) FUZZ_CHECK(again.nr == l.want.nr && again.hash == l.want.hash);
  FUZZ_CHECK(simdisk_changes(l.disk) == changes);
  if (l.good) FUZZ_CHECK(s == REMIXDB_OK && same(&first, &l.want));
  FUZZ_CHECK(open_log(&l, false, &again, &w) == s && same(&first, &again));
  if (s == REMIXDB_OK && from_the_future(&l, w)) FUZZ_OK(wal_close(w));
  else if (s == REMIXDB_OK) go_on(&l, w, &again, size && data[0] & 4 ? 40 : 1);
  else FUZZ_CHECK(simdisk_changes(l.disk) == changes);  // nothing is written before replay has succeeded
  FUZZ_CHECK(simdisk_open_files(l.disk) == 0);
  simdisk_destroy(l.disk);
  return 0;
}

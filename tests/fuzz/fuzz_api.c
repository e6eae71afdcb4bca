// SPDX-License-Identifier: Apache-2.0
//
// A store on a disk in memory, in one thread and without workers: the input says how it is opened, which calls are
// made, which of the calls below it fail, and when the power goes. Everything that is read is held against a model.
//
// Allowed answers: while something fails, a call returns that failure's status. Later, writes may still be refused:
// for good after a failed write or sync, and for want of space or memory until that is over. A read is right, or it
// returns an error. After a power cut the store holds the result of a prefix of the writes, at least of those that were
// synced, and no batch by half; after a clean close, of all writes.
#include <errno.h>

#include "store/async.h"
#include "store/batch.h"
#include "store/pin.h"
#include "admin/checkpoint.h"
#include "admin/destroy.h"
#include "store/whole.h"
#include "tests/fuzz/fuzz.h"
#include "tests/lib/expect.h"
#include "admin/verify.h"
#include "xdb.h"
#include "store/count.h"
#include "store/flush.h"
#include "store/ingest.h"
#include "store/page.h"
#include "store/txn.h"
#include "store/snapshot.h"
#include "store/space_ref.h"
#include "store/syncer.h"

#define STORE "/store"
#define COPY "/copy"
#define KEYS_MAX 64u
#define ALL_MAX (2 * KEYS_MAX)  // keys of both spaces: key nr_keys + k is key k of the named one
#define ITERS 2u
#define VALUE_MIN 16u
#define VALUE_MAX 66000u  // more than a record of the log has room for
#define COST_MAX 1000u    // the cost of an input: the cost of a call is about its time

enum { MAY_IO = 1, MAY_NOSPACE = 2, MAY_NOMEM = 4 };

struct op {
  uint64_t id;  // the write's, never used again; the value follows from it
  uint32_t key, vlen;
  bool del;
  bool end;  // the end of a batch
};

struct fuzz_iter {
  struct xdb_iter *it;
  bool known;              // its place is known: the last call went well
  uint32_t at;             // key; nr_keys: none
  uint64_t ids[KEYS_MAX];  // its content
};

#define GETS 6u

struct fuzz_get {  // an asynchronous get
  bool busy;
  uint32_t key, cap;
  uint64_t id;   // the id of the value that it must find
  unsigned may;  // the possible failures at its beginning
  uint8_t *buf;
};

struct run {
  struct fuzz_in *in;
  struct simdisk *disk;
  struct remixdb_opts opts;
  size_t memtable_limit;
  uint32_t young_from;
  uint32_t few;     // a deletion of so many keys is a new version without them; 0: as usual
  uint32_t opened;  // openings, from a number on that the input gives; the dice of expect.h
  uint32_t table_pages;
  enum fuzz_keys keys;
  uint32_t nr_keys, vlen_max;
  struct xdb *x;
  struct xdb_ref *ref;
  uint32_t nr_all;  // keys of all spaces
  struct xdb_space *space;
  struct xdb_ref *space_ref;  // NULL: there is no such space, or not yet
  // the model
  struct op *ops;
  size_t nr, cap, synced;
  size_t maybe;  // operations behind the first nr that the next opening may find: of an ingest whose commit failed
  uint64_t next_id;
  uint64_t now[ALL_MAX];
  uint32_t cost;
  uint32_t reports, give_up_at;  // reports of a long call, and at which of them it is given up; 0: at none
  // the possible failures now, and since the store was opened
  unsigned may, could;
  struct fuzz_iter iters[ITERS];
  struct xdb_gets *gets;
  struct fuzz_get slots[GETS];
  struct xdb_snapshot *snapshot;
  struct xdb_ref *snapshot_ref, *snapshot_space_ref;
  uint64_t snapshot_ids[ALL_MAX];
  uint8_t kbuf[FUZZ_KEY_MAX], kbuf2[FUZZ_KEY_MAX], value[VALUE_MAX], got[VALUE_MAX];
};

static int64_t mem_left;  // allocations until the one that fails
static bool mem_deny(size_t size) {
  (void)size;
  return --mem_left != 0;
}

static struct kref key_at(const struct run *r, uint32_t i, uint8_t *buf) {
  return fuzz_key_of(r->keys, i % r->nr_keys, buf);
}
// The ref for a key's space beside this one for the unnamed space.
static struct xdb_ref *ref_for(const struct run *r, struct xdb_ref *ref, uint32_t key) {
  if (key < r->nr_keys) return ref;
  return ref == r->snapshot_ref ? r->snapshot_space_ref : r->space_ref;
}

FUZZ_UNTRACED static void value_of(const struct op *op, uint8_t *buf) {
  store64le(buf, op->id);
  store32le(buf + 8, op->key);
  store32le(buf + 12, op->vlen);
  memset(buf + VALUE_MIN, 'x', op->vlen - VALUE_MIN);
  for (uint32_t at = 20; at < op->vlen; at += 5) buf[at] = (uint8_t)(op->id * 7 + at / 5);
}

static const struct op *op_of(const struct run *r, uint64_t id) {
  for (size_t i = r->nr + r->maybe; i-- > 0;)
    if (r->ops[i].id == id) return &r->ops[i];
  return NULL;
}

static void model_add(struct run *r, const struct op *op) {
  FUZZ_CHECK(r->maybe == 0);  // the store has stopped
  if (r->nr == r->cap) {
    r->cap = r->cap ? r->cap * 2 : 256;
    r->ops = realloc(r->ops, r->cap * sizeof(*r->ops));
    FUZZ_CHECK(r->ops != NULL);
  }
  r->ops[r->nr++] = *op;
  r->now[op->key] = op->del ? 0 : op->id;
}

// ---- the possible answers

static unsigned kind_of(enum remixdb_status s) {
  return s == REMIXDB_IO ? MAY_IO : s == REMIXDB_NOSPACE ? MAY_NOSPACE : s == REMIXDB_NOMEM ? MAY_NOMEM : 0;
}

static bool hear(void *priv, const char *what, uint64_t done, uint64_t total) {
  struct run *const r = priv;
  FUZZ_CHECK(what[0] && (!total || done <= total));
  return ++r->reports != r->give_up_at;
}

static bool gave_up(const struct run *r, enum remixdb_status s) {
  return s == REMIXDB_ABORTED && r->give_up_at && r->reports == r->give_up_at;
}

static bool read_ok(const struct run *r, enum remixdb_status s) {
  FUZZ_CHECK(s == REMIXDB_OK || gave_up(r, s) || (kind_of(s) & r->may));
  if (s != REMIXDB_OK) FUZZ_CHECK(err_msg()[0] != '\0');
  return s == REMIXDB_OK;
}

static bool write_ok(const struct run *r, enum remixdb_status s) {
  FUZZ_CHECK(s == REMIXDB_OK || gave_up(r, s) || (kind_of(s) & r->could));
  if (s != REMIXDB_OK) FUZZ_CHECK(err_msg()[0] != '\0');
  return s == REMIXDB_OK;
}

static void arm(struct run *r, unsigned what) {
  r->may |= what;
  r->could |= what;
}

// Nothing fails any more. A store that only wanted space or memory is as good as new, when it is told that a while has
// passed.
static void heal(struct run *r) {
  for (int c = 0; c < SIMDISK_CALLS; c++) simdisk_fault(r->disk, (enum simdisk_call)c, 0, 0, EIO);
  simdisk_space(r->disk, UINT64_MAX);
  atomic_store(&mem_fault, NULL);
  r->may = simdisk_is_off(r->disk) ? MAY_IO : 0;
  if (r->could & MAY_IO) return;
  r->could = 0;
  if (!r->x) return;
  pthread_mutex_lock(&r->x->lock);
  r->x->rounds.failed_ns = 0;
  pthread_mutex_unlock(&r->x->lock);
}

// ---- reading

static uint64_t check_value(struct run *r, uint32_t key, const uint8_t *val, uint32_t vlen) {
  FUZZ_CHECK(vlen >= VALUE_MIN);
  const struct op *const op = op_of(r, load64le(val));
  FUZZ_CHECK(op && !op->del && op->key == key && op->vlen == vlen);
  value_of(op, r->value);
  FUZZ_CHECK(memcmp(r->value, val, vlen) == 0);
  return op->id;
}

// The same by a pin. False: it could not be read.
static bool look_up_pinned(struct run *r, struct xdb_ref *ref, uint32_t key, uint64_t *id_out) {
  struct xdb_pin *pin;
  const void *val;
  uint32_t vlen;
  const enum remixdb_status s = pin_get(ref, key_at(r, key, r->kbuf), &pin, &val, &vlen);
  if (s == REMIXDB_NOTFOUND) return true;
  if (!read_ok(r, s)) return false;
  *id_out = check_value(r, key, val, vlen);
  pin_release(pin);
  return true;
}

// False: it could not be read.
static bool look_up(struct run *r, struct xdb_ref *ref, uint32_t key, uint64_t *id_out) {
  uint32_t vlen = 0;
  *id_out = 0;
  ref = ref_for(r, ref, key);
  if (!ref) return true;
  if (key % 3 == 1) return look_up_pinned(r, ref, key, id_out);
  const enum remixdb_status s = xdb_get(ref, key_at(r, key, r->kbuf), r->got, VALUE_MAX, &vlen);
  if (s == REMIXDB_NOTFOUND) return true;
  if (!read_ok(r, s)) return false;
  *id_out = check_value(r, key, r->got, vlen);
  return true;
}

// Looks up the keys from one on, in one buffer. Records found are right; after a failure missing ones prove nothing.
static void look_up_packed(struct run *r, uint32_t first) {
  uint32_t klens[8], offs[8], lens[8];
  bool found[8];
  uint8_t *const keys = fuzz_alloc(8 * FUZZ_KEY_MAX);
  struct remixdb_packed out = {.cap = fuzz_u16(r->in), .offs = offs, .lens = lens, .found = found};
  uint8_t *const room = out.ptr = fuzz_alloc(out.cap);
  const uint32_t nr = fuzz_u8(r->in) & 7;
  size_t keys_len = 0, len = 0;
  for (uint32_t i = 0; i < nr; i++) {
    const struct kref k = key_at(r, (first + i) % r->nr_keys, r->kbuf);
    memcpy(keys + keys_len, k.ptr, k.len);
    keys_len += klens[i] = k.len;
  }
  (void)remixdb_multi_get_packed(r->ref, nr, klens, keys, keys_len, &out);
  const enum remixdb_status s = remixdb_errcode();
  if (s != REMIXDB_TOOBIG) (void)read_ok(r, s);
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t key = (first + i) % r->nr_keys;
    len += lens[i];
    if (s == REMIXDB_OK || s == REMIXDB_TOOBIG) FUZZ_CHECK(found[i] == (r->now[key] != 0));
    if (s == REMIXDB_OK && found[i])
      FUZZ_CHECK((size_t)offs[i] + lens[i] <= out.cap && check_value(r, key, room + offs[i], lens[i]) == r->now[key]);
  }
  if (s == REMIXDB_OK || s == REMIXDB_TOOBIG) FUZZ_CHECK(out.len == len && (len > out.cap) == (s == REMIXDB_TOOBIG));
  free(room);
  free(keys);
}

// ---- asynchronous gets, which stay under way while other calls change the records

static void gets_drop(struct run *r) {
  xdb_gets_destroy(r->gets);
  r->gets = NULL;
  for (uint32_t i = 0; i < GETS; i++) free(r->slots[i].buf);
  memset(r->slots, 0, sizeof(r->slots));
}

static void gets_check(struct run *r, const struct remixdb_got *g) {
  struct fuzz_get *const w = g->priv;
  FUZZ_CHECK(w->busy);
  if (g->status == REMIXDB_OK) {
    FUZZ_CHECK(g->len <= w->cap && w->id != 0 && check_value(r, w->key, w->buf, g->len) == w->id);
  } else if (g->status == REMIXDB_TOOBIG) {
    FUZZ_CHECK(g->len > w->cap && w->id != 0);
  } else if (g->status == REMIXDB_NOTFOUND) {
    FUZZ_CHECK(w->id == 0);
  } else {
    FUZZ_CHECK((kind_of(g->status) & (w->may | r->may)) && g->msg[0]);
  }
  free(w->buf);
  *w = (struct fuzz_get){0};
}

static void gets_take(struct run *r, size_t max, size_t min) {
  struct remixdb_got got[GETS];
  size_t nr, busy = 0;
  if (!r->gets) return;
  for (uint32_t i = 0; i < GETS; i++) busy += r->slots[i].busy;
  const enum remixdb_status s = xdb_get_poll(r->gets, got, max, min, &nr);
  FUZZ_CHECK(s == (busy ? REMIXDB_OK : REMIXDB_NOTFOUND) && nr <= busy && nr <= max);
  FUZZ_CHECK(nr >= (min < max ? min < busy ? min : busy : max < busy ? max : busy));
  for (size_t i = 0; i < nr; i++) gets_check(r, &got[i]);
}

static void gets_begin(struct run *r, uint32_t key, uint32_t cap) {
  if (!r->gets && !read_ok(r, xdb_gets_create(r->ref, GETS, &r->gets))) return;
  struct fuzz_get *w = r->slots;
  while (w < r->slots + GETS && w->busy) w++;
  uint8_t *const buf = fuzz_alloc(cap);
  const enum remixdb_status s = xdb_get_begin(r->gets, key_at(r, key, r->kbuf), buf, cap, w);
  const bool full = w == r->slots + GETS;
  if (full) FUZZ_CHECK(s == REMIXDB_ABORTED);
  if (!full && read_ok(r, s)) *w = (struct fuzz_get){true, key, cap, r->now[key], r->may, buf};
  else free(buf);
}

static void gets_step(struct run *r, uint32_t what) {
  if (what & 32) gets_take(r, what % (GETS + 1), what >> 3 & 3);
  else gets_begin(r, what % r->nr_keys, what & 16 ? fuzz_u8(r->in) : VALUE_MAX);
}

// All that a ref reads, through an iterator. first: the number of the first key of its space. False: it could not be
// read.
static bool read_space(struct run *r, struct xdb_ref *ref, uint32_t first, uint64_t *ids) {
  struct xdb_iter *it;
  if (!ref) return true;
  enum remixdb_status s = expect_iter_below(ref, r->opened + r->nr, &it);
  if (!read_ok(r, s)) return false;
  uint32_t key = 0;
  for (s = xdb_iter_seek(it, kref("", 0)); s == REMIXDB_OK && xdb_iter_valid(it); s = xdb_iter_skip(it, 1), key++) {
    struct kv_rec rec;
    if ((s = xdb_iter_record(it, &rec)) != REMIXDB_OK) break;
    while (key < r->nr_keys && !kv_eq(key_at(r, key, r->kbuf), kref(rec.key, rec.klen))) key++;
    FUZZ_CHECK(key < r->nr_keys);  // else it is out of order, twice there or never written
    ids[first + key] = check_value(r, first + key, rec.val, rec.vlen);
  }
  const bool ok = read_ok(r, s);  // the iterator's, before its end can say something else
  xdb_iter_destroy(it);
  return ok;
}

// The same for both spaces.
static bool read_all(struct run *r, struct xdb_ref *ref, uint64_t *ids) {
  memset(ids, 0, ALL_MAX * sizeof(*ids));
  return read_space(r, ref, 0, ids) && read_space(r, ref_for(r, ref, r->nr_keys), r->nr_keys, ids);
}

static void check_all(struct run *r, struct xdb_ref *ref, const uint64_t *want) {
  uint64_t ids[ALL_MAX], id;
  if (read_all(r, ref, ids)) FUZZ_CHECK(memcmp(ids, want, sizeof(ids)) == 0);
  for (uint32_t k = 0; k < r->nr_all; k++)
    if (look_up(r, ref, k, &id)) FUZZ_CHECK(id == want[k]);
}

// The store has the first writes up to some number, and all synced ones. The model forgets the others.
static void check_prefix(struct run *r) {
  uint64_t ids[ALL_MAX], now[ALL_MAX] = {0};
  FUZZ_CHECK(read_all(r, r->ref, ids));
  size_t found = SIZE_MAX;
  const size_t all = r->nr + r->maybe;
  for (size_t n = 0; n <= all && found == SIZE_MAX; n++) {
    if (n >= r->synced && (n == 0 || r->ops[n - 1].end) && memcmp(ids, now, sizeof(ids)) == 0) found = n;
    if (n < all) now[r->ops[n].key] = r->ops[n].del ? 0 : r->ops[n].id;
  }
  FUZZ_CHECK(found != SIZE_MAX);
  r->nr = r->synced = found;
  r->maybe = 0;
  memcpy(r->now, ids, sizeof(r->now));
  check_all(r, r->ref, r->now);
}

// ---- opening and closing

static void snapshot_drop(struct run *r) {
  xdb_unref(r->snapshot_space_ref);
  xdb_unref(r->snapshot_ref);
  xdb_snapshot_release(r->snapshot);
  r->snapshot_ref = r->snapshot_space_ref = NULL;
  r->snapshot = NULL;
}

static void drop_readers(struct run *r) {
  gets_drop(r);
  for (uint32_t i = 0; i < ITERS; i++) {
    xdb_iter_destroy(r->iters[i].it);
    r->iters[i].it = NULL;
  }
  snapshot_drop(r);
}

static void refs_drop(struct run *r) {
  xdb_unref(r->space_ref);
  xdb_unref(r->ref);
  xdb_space_close(r->space);
  r->ref = r->space_ref = NULL;
  r->space = NULL;
}

// Makes the refs, and the named space where it is not there.
static enum remixdb_status refs_make(struct run *r, bool read_only) {
  enum remixdb_status s = xdb_ref(r->x, &r->ref);
  if (s == REMIXDB_OK) r->ref->progress = (struct progress){hear, r};
  if (s != REMIXDB_OK || r->nr_all == r->nr_keys) return s;
  s = xdb_space_open(r->x, "s", 1, !read_only, &r->space);
  if (s == REMIXDB_NOTFOUND && read_only) return REMIXDB_OK;
  return s == REMIXDB_OK ? xdb_space_ref(r->space, &r->space_ref) : s;
}

static enum remixdb_status close_store(struct run *r) {
  if (!r->x) return REMIXDB_OK;
  drop_readers(r);
  refs_drop(r);
  struct xdb *const x = r->x;
  r->x = NULL;
  const enum remixdb_status s = xdb_close(x);
  FUZZ_CHECK(simdisk_open_files(r->disk) == 0);
  return s;
}

static enum remixdb_status try_open(struct run *r, const char *dir, bool read_only) {
  struct remixdb_opts o = r->opts;
  o.read_only = read_only;
  r->could = r->may;
  expect_reads(r->opened++);
  enum remixdb_status s = xdb_open(dir, &o, simdisk_env(r->disk), &r->x);
  if (s != REMIXDB_OK) {
    FUZZ_CHECK(simdisk_open_files(r->disk) == 0);
    r->x = NULL;
    return s;
  }
  if (r->opened & 4) expect_small_memory(r->x);
  if (r->opened & 2) expect_value_merges(r->x, 1);
  r->x->memtable_limit = r->memtable_limit;
  r->x->compact.memtable_size = r->memtable_limit;
  r->x->compact.build.max_pages = r->table_pages;
  r->x->compact.young_from = r->young_from;
  if (r->few) r->x->ranges = (struct range_limits){r->few, r->few, 8 * r->few};
  s = refs_make(r, read_only);
  if (s == REMIXDB_OK) return s;
  struct err_saved why;
  err_save(&why, s);
  refs_drop(r);
  struct xdb *const x = r->x;
  r->x = NULL;
  (void)!xdb_close(x);
  return err_raise(&why);
}

// The power is on. An opening that fails tells why; then the store opens.
static void open_store(struct run *r) {
  if (read_ok(r, try_open(r, STORE, false))) return;
  heal(r);
  FUZZ_OK(try_open(r, STORE, false));
}

// Closes the store, or loses it, and opens the files that are left.
static void reopen(struct run *r, uint32_t how) {
  if (how & 1) simdisk_power_off(r->disk, how >> 4);
  if (how & 1) arm(r, MAY_IO);
  const size_t nr = r->nr;
  const enum remixdb_status s = close_store(r);
  if (write_ok(r, s)) r->synced = nr;
  if (simdisk_is_off(r->disk) && how & 2) {
    simdisk_power_on(r->disk);  // the process died, the machine did not
    heal(r);
  } else if (simdisk_is_off(r->disk)) {
    struct simdisk *const d = simdisk_crash(r->disk, fuzz_u16(r->in));
    simdisk_destroy(r->disk);
    r->disk = d;
    simdisk_no_allocate(d, true);
    heal(r);
  } else {
    simdisk_power_on(r->disk);
  }
  if (how & 4) {
    heal(r);
    const uint64_t changes = simdisk_changes(r->disk);
    const enum remixdb_status t = try_open(r, STORE, true);
    FUZZ_CHECK(t == REMIXDB_OK || t == REMIXDB_NOTFOUND);
    if (t == REMIXDB_OK) {
      uint64_t ids[ALL_MAX];
      FUZZ_CHECK(read_all(r, r->ref, ids));
      if (s == REMIXDB_OK) FUZZ_CHECK(memcmp(ids, r->now, sizeof(ids)) == 0);
      FUZZ_CHECK(xdb_put(r->ref, KV_REC(kref("k", 1), "v", 1, false)) == REMIXDB_READONLY);
      FUZZ_OK(close_store(r));
    } else {
      FUZZ_CHECK(r->synced == 0 && s != REMIXDB_OK);
    }
    FUZZ_CHECK(simdisk_changes(r->disk) == changes);
  }
  open_store(r);
  if (r->may) {  // no failure may hit the check, which has to see everything
    const unsigned could = r->could;
    heal(r);
    r->could |= could & MAY_IO;
  }
  check_prefix(r);
}

// ---- writing

static struct op make_op(struct run *r, uint32_t what) {
  struct op op = {.id = r->next_id++, .key = fuzz_u8(r->in) % r->nr_all, .del = what & 1, .end = true};
  if (op.del) return op;
  op.vlen = VALUE_MIN + (what & 2 ? fuzz_u16(r->in) % r->vlen_max : fuzz_u8(r->in) % 64);
  value_of(&op, r->value);
  return op;
}

#define FAR_MS 64060588800000u  // a time in the year 4000

// Puts or deletes by the version that the key has, or (wrong) by another, which changes nothing.
static enum remixdb_status put_by_version(struct run *r, struct xdb_ref *ref, const struct kv_rec *rec, uint32_t key,
                                          bool wrong) {
  struct kv_rec is = {0};
  const enum remixdb_status s = xdb_getv(ref, kref(rec->key, rec->klen), NULL, 0, NULL, &is);
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
  FUZZ_CHECK((s == REMIXDB_OK) == (r->now[key] != 0) && (s != REMIXDB_OK || is.seq != 0));
  if (!wrong) return xdb_put_if(ref, rec, s == REMIXDB_OK ? is.seq : 0);
  const enum remixdb_status t = xdb_put_if(ref, rec, s == REMIXDB_OK ? is.seq - 1 : 1);
  FUZZ_CHECK(t != REMIXDB_OK);
  return t;
}

static void put(struct run *r, uint32_t what) {
  const struct op op = make_op(r, what);
  struct xdb_ref *const ref = ref_for(r, r->ref, op.key);
  struct kv_rec *const rec = KV_REC(key_at(r, op.key, r->kbuf), op.del ? NULL : r->value, op.vlen, op.del);
  if (what & 4 && !op.del) {
    rec->kind = KV_EXPIRES;
    rec->expiry = FAR_MS + op.id;
  }
  const enum remixdb_status s = what & 8 ? put_by_version(r, ref, rec, op.key, what & 16) : xdb_put(ref, rec);
  if (s == REMIXDB_ABORTED) FUZZ_CHECK(what & 16);
  else if (write_ok(r, s)) model_add(r, &op);
}

// Many writes for few bytes of input.
static void put_many(struct run *r, uint32_t what) {
  const uint32_t first = fuzz_u8(r->in), step = 1 + fuzz_u8(r->in) % 7, nr = 1 + (fuzz_u8(r->in) & 127),
                 vlen = fuzz_u16(r->in) % r->vlen_max;
  r->cost += nr * (1 + vlen / 1000);
  for (uint32_t i = 0; i < nr; i++) {
    const struct op op = {.id = r->next_id++,
                          .key = (first + i * step) % r->nr_all,
                          .vlen = what & 1 && i % 3 == 0 ? 0 : VALUE_MIN + vlen,
                          .del = what & 1 && i % 3 == 0,
                          .end = true};
    if (!op.del) value_of(&op, r->value);
    struct xdb_ref *const ref = ref_for(r, r->ref, op.key);
    if (!write_ok(r, xdb_put(ref, KV_REC(key_at(r, op.key, r->kbuf), op.del ? NULL : r->value, op.vlen, op.del))))
      return;
    model_add(r, &op);
  }
}

// Writes the batch through a transaction, which reads a key and seeks another before. No other thread writes, so there
// is no conflict.
static enum remixdb_status write_txn(struct run *r, const struct xdb_batch *b, uint32_t what) {
  struct xdb_txn *t = NULL;
  struct xdb_iter *it = NULL;
  uint64_t id;
  enum remixdb_status s = xdb_txn_begin(r->x, &t);
  if (s != REMIXDB_OK) return s;
  const uint32_t key = what % r->nr_keys;
  if (look_up(r, t->tracked, key, &id)) FUZZ_CHECK(id == r->now[key]);
  if (what & 64) s = xdb_iter_create(what & 128 ? t->untracked : t->tracked, &it);
  if (it) s = xdb_iter_seek(it, key_at(r, (key + 1) % r->nr_keys, r->kbuf));
  for (uint32_t i = 0; it && i < (what & 7) && s == REMIXDB_OK && xdb_iter_valid(it); i++) s = xdb_iter_skip(it, 1);
  if (what & 256) xdb_iter_destroy(it);
  if (s == REMIXDB_OK) s = xdb_txn_savepoint(t);
  if (s == REMIXDB_OK) s = xdb_write(t->tracked, b);
  if (s == REMIXDB_OK && what & 512) s = xdb_txn_rollback(t);
  if (s == REMIXDB_OK && what & 512) s = xdb_write(t->untracked, b);
  if (s == REMIXDB_OK) s = xdb_txn_commit(t);
  else xdb_txn_abort(t);
  if (!(what & 256)) xdb_iter_destroy(it);  // after the end
  FUZZ_CHECK(s != REMIXDB_ABORTED);
  return s;
}

static void write_batch(struct run *r, uint32_t what) {
  struct xdb_batch *b;
  if (!write_ok(r, batch_create(&b))) return;
  struct op ops[16];
  const uint32_t nr = what & 15;
  bool ok = true;
  for (uint32_t i = 0; i < nr; i++) {
    ops[i] = make_op(r, fuzz_u8(r->in));
    ops[i].end = i + 1 == nr;
    const struct kref key = key_at(r, ops[i].key, r->kbuf);
    const uint32_t klen = key.len, vlen = ops[i].vlen;
    const uint8_t del = ops[i].del ? REMIXDB_BATCH_DEL : REMIXDB_BATCH_PUT;
    if (r->space) batch_space(b, ops[i].key < r->nr_keys ? NULL : r->space);
    if (what & 16) {
      uint8_t *const both = fuzz_alloc(klen + vlen);
      memcpy(both, key.ptr, klen);
      memcpy(both + klen, r->value, vlen);
      (void)remixdb_batch_load(b, 1, &del, &klen, &vlen, both, klen + vlen);
      ok = ok && write_ok(r, remixdb_errcode());
      free(both);
    } else {
      ok = ok && write_ok(r, batch_add(b, KV_REC(key, ops[i].del ? NULL : r->value, vlen, ops[i].del)));
    }
  }
  const enum remixdb_status s = !ok ? REMIXDB_ABORTED : what & 32 ? write_txn(r, b, what) : xdb_write(r->ref, b);
  FUZZ_CHECK(s != REMIXDB_TOOBIG);  // only a batch of more than 1 GiB is
  if (ok && write_ok(r, s))
    for (uint32_t i = 0; i < nr; i++) model_add(r, &ops[i]);
  batch_destroy(b);
}

struct merging {
  struct run *r;
  struct op op;
  enum remixdb_merge_op what;
};

static enum remixdb_merge_op merge_fn(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  const struct merging *const m = priv;
  const uint64_t id = v0 ? check_value(m->r, m->op.key, v0, v0len) : 0;
  FUZZ_CHECK(id == m->r->now[m->op.key]);
  if (m->what == REMIXDB_MERGE_PUT) {
    value_of(&m->op, m->r->value);
    *v1 = m->r->value;
    *v1len = m->op.vlen;
  }
  return m->what;
}

static void decide_fn(struct remixdb_decision *d) { d->op = merge_fn(d->v0, d->v0len, &d->v1, &d->v1len, d->priv); }

static enum remixdb_status merge_decide(struct run *r, struct merging *m) {
  struct remixdb_decision d = {.decide = decide_fn, .priv = m, .op = REMIXDB_MERGE_DEL};
  const struct kref key = key_at(r, m->op.key, r->kbuf);
  (void)remixdb_merge_decide(ref_for(m->r, r->ref, m->op.key), key.ptr, key.len, &d);
  return remixdb_errcode();
}

static void merge(struct run *r, uint32_t what) {
  struct merging m = {.r = r, .op = make_op(r, what & 2), .what = (enum remixdb_merge_op)(what % 3)};
  m.op.del = m.what == REMIXDB_MERGE_DEL;
  if (m.op.del) m.op.vlen = 0;
  const enum remixdb_status s = what & 4 ? merge_decide(r, &m)
                                         : xdb_merge(ref_for(r, r->ref, m.op.key), key_at(r, m.op.key, r->kbuf),
                                                     merge_fn, &m);
  if (write_ok(r, s) && m.what != REMIXDB_MERGE_KEEP) model_add(r, &m.op);
}

static void sync_store(struct run *r) {
  const size_t nr = r->nr;
  if (write_ok(r, xdb_sync(r->ref))) r->synced = nr;
}

// A long call begins: some are given up.
static void listen(struct run *r) {
  r->reports = 0;
  r->give_up_at = r->next_id % 4 == 1 ? 1 + (uint32_t)(r->next_id / 4 % 3) : 0;
}

static void flush(struct run *r, uint32_t what) {
  const size_t nr = r->nr;
  listen(r);
  const struct progress *const p = &r->ref->progress;
  const struct kref low = key_at(r, (what >> 2) % r->nr_keys, r->kbuf), open = kref(NULL, 0);
  uint64_t keys, bytes;
  (void)read_ok(r, xdb_count(r->ref, low, open, &keys, &bytes));
  const enum remixdb_status s = !(what & 1) ? xdb_flush_told(r->x, p)
                                : what & 2  ? xdb_compact_range(r->x, TREE_UNNAMED, low, open, p)
                                            : xdb_compact_told(r->x, p);
  if (write_ok(r, s)) r->synced = nr;
}

// ---- ranges, ingests, pieces

// A key as a bound, in own memory; NULL for nr_keys: there is none.
static struct kref bound_at(const struct run *r, uint32_t key, uint8_t *buf) {
  return key < r->nr_keys ? key_at(r, key, buf) : kref(NULL, 0);
}

static void del_range(struct run *r, uint32_t what) {
  struct op ops[KEYS_MAX];
  const uint32_t base = what & 1 && r->space ? r->nr_keys : 0, from = fuzz_u8(r->in) % r->nr_keys;
  const uint32_t to = 1 + fuzz_u8(r->in) % r->nr_keys;
  uint32_t nr = 0;
  for (uint32_t k = from; k < to; k++)
    if (r->now[base + k]) ops[nr++] = (struct op){.id = r->next_id++, .key = base + k, .del = true};
  if (nr) ops[nr - 1].end = true;
  const uint64_t erased = xdb_super(r->x)->version->erased;
  const enum remixdb_status s = xdb_del_range(ref_for(r, r->ref, base), key_at(r, from, r->kbuf),
                                              bound_at(r, to, r->kbuf2));
  // A version without the keys may be in place, though CURRENT could not be written.
  if (write_ok(r, s) || xdb_super(r->x)->version->erased != erased)
    for (uint32_t i = 0; i < nr; i++) model_add(r, &ops[i]);
}

#define INGEST_MAX 32u

static enum remixdb_status ingest_all(struct run *r, struct xdb_ingest *g, const struct op *ops, uint32_t nr) {
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    value_of(&ops[i], r->value);
    s = ingest_put(g, key_at(r, ops[i].key, r->kbuf), r->value, ops[i].vlen);
  }
  return s;
}

static void ingest(struct run *r, uint32_t what) {
  struct op ops[INGEST_MAX];
  struct xdb_ingest *g;
  const uint32_t first = fuzz_u8(r->in) % r->nr_all, end = first < r->nr_keys ? r->nr_keys : r->nr_all,
                 step = 1 + (fuzz_u8(r->in) & 7), most = 1 + (what & 15) * 2, vlen = fuzz_u16(r->in) % r->vlen_max;
  uint32_t nr = 0;
  for (uint32_t k = first; k < end && nr < most; k += step, nr++)
    ops[nr] = (struct op){.id = r->next_id++, .key = k, .vlen = VALUE_MIN + (nr % 4 ? vlen % 100 : vlen)};
  ops[nr - 1].end = true;
  r->cost += nr * (1 + vlen / 4000);
  listen(r);
  if (!write_ok(r, ingest_begin(ref_for(r, r->ref, first), &g))) return;
  if (!write_ok(r, ingest_all(r, g, ops, nr)) || what & 32) {
    ingest_abort(g);
    return;
  }
  const bool good = write_ok(r, ingest_commit(g));
  if (!good && xdb_failure(r->x) == REMIXDB_OK) return;
  uint64_t now[ALL_MAX];
  memcpy(now, r->now, sizeof(now));
  const size_t maybe = r->maybe;
  if (!good && maybe) return;  // the store had stopped before
  for (uint32_t i = 0; i < nr; i++) model_add(r, &ops[i]);
  if (good) {
    r->synced = r->nr;
  } else {  // the next opening decides
    memcpy(r->now, now, sizeof(now));
    r->nr -= nr;
    r->maybe = nr;
  }
}

static void get_part(struct run *r) {
  const uint32_t key = fuzz_u8(r->in) % r->nr_all, off = fuzz_u16(r->in), cap = fuzz_u16(r->in) % VALUE_MAX;
  uint32_t n = 0, len = 0;
  const enum remixdb_status s = xdb_get_part(ref_for(r, r->ref, key), key_at(r, key, r->kbuf), off, r->got, cap, &n,
                                             &len);
  if (s == REMIXDB_NOTFOUND) FUZZ_CHECK(r->now[key] == 0);
  else if (!read_ok(r, s)) return;
  else {
    const struct op *const op = op_of(r, r->now[key]);
    FUZZ_CHECK(op && len == op->vlen && n == (off >= len ? 0 : len - off < cap ? len - off : cap));
    value_of(op, r->value);
    FUZZ_CHECK(memcmp(r->got, r->value + (off < len ? off : 0), n) == 0);
  }
}

// A time that is past: the put is a delete.
static void put_expired(struct run *r, uint32_t what) {
  const struct op op = {.id = r->next_id++, .key = fuzz_u8(r->in) % r->nr_all, .del = true, .end = true};
  const struct kref key = key_at(r, op.key, r->kbuf);
  const uint32_t vlen = VALUE_MIN + (what & 8 ? fuzz_u16(r->in) % r->vlen_max : 0);
  struct xdb_ref *const ref = ref_for(r, r->ref, op.key);
  const bool good = remixdb_put_expire(ref, key.ptr, key.len, r->value, vlen, 1 + what);
  if (write_ok(r, good ? REMIXDB_OK : remixdb_errcode())) model_add(r, &op);
}

// A range is counted, or compacted.
static void range_work(struct run *r, uint32_t what) {
  const uint32_t a = fuzz_u8(r->in) % r->nr_keys, b = 1 + fuzz_u8(r->in) % r->nr_keys;
  const struct kref low = key_at(r, a, r->kbuf), high = bound_at(r, b, r->kbuf2);
  uint64_t keys = 0, bytes = 0;
  if (what & 8) {
    listen(r);
    (void)write_ok(r, xdb_compact_range(r->x, TREE_UNNAMED, low, high, &r->ref->progress));
  } else if (read_ok(r, xdb_count(r->ref, low, high, &keys, &bytes)) && b <= a) {
    FUZZ_CHECK(keys == 0 && bytes == 0);
  }
}

struct bounded {
  struct xdb_iter_opts o;
  uint32_t low, high;
  const uint64_t *ids;
  uint8_t from[FUZZ_KEY_MAX], to[FUZZ_KEY_MAX], prefix[FUZZ_KEY_MAX];
};

static bool shows(struct run *r, const struct bounded *b, uint32_t k) {
  const struct kref key = key_at(r, k, r->kbuf);
  const struct remixdb_slice p = b->o.prefix;
  return k >= b->low && k < b->high && b->ids[k] &&
         (!p.ptr || (key.len >= p.len && memcmp(key.ptr, p.ptr, p.len) == 0));
}

static void choose_bounds(struct run *r, uint32_t what, struct bounded *b) {
  const uint32_t from = fuzz_u8(r->in) % r->nr_keys, to = 1 + fuzz_u8(r->in) % r->nr_keys;
  b->o.keys_only = what & 8;
  b->o.hold = what & 16;
  b->o.expect = expect_length(what >> 3);
  b->high = r->nr_keys;
  if (what & 32) {
    const struct kref k = key_at(r, b->low = from, b->from);
    b->o.bounds.from = (struct remixdb_slice){k.ptr, k.len};
  }
  if (what & 64 && to < r->nr_keys) {
    const struct kref k = key_at(r, b->high = to, b->to);
    b->o.bounds.to = (struct remixdb_slice){k.ptr, k.len};
  }
  if (!(what & 128)) return;
  const struct kref k = key_at(r, fuzz_u8(r->in) % r->nr_keys, b->prefix);
  if (k.len) b->o.prefix = (struct remixdb_slice){k.ptr, 1 + fuzz_u8(r->in) % (k.len < 40 ? k.len : 40)};
}

// All that the iterator shows, forward or backward.
static enum remixdb_status read_shown(struct run *r, const struct bounded *b, struct xdb_iter *it, bool back) {
  const int64_t nr = r->nr_keys, step = back ? -1 : 1;
  int64_t k = back ? nr - 1 : 0;
  enum remixdb_status s = back ? xdb_iter_seek_last(it) : xdb_iter_seek(it, kref("", 0));
  for (; s == REMIXDB_OK && xdb_iter_valid(it); k += step) {
    struct kv_rec rec;
    if ((s = xdb_iter_record(it, &rec)) != REMIXDB_OK) break;
    while (k >= 0 && k < nr && !shows(r, b, (uint32_t)k)) k += step;
    FUZZ_CHECK(k >= 0 && k < nr && kv_eq(key_at(r, (uint32_t)k, r->kbuf), kref(rec.key, rec.klen)));
    if (b->o.keys_only) FUZZ_CHECK(rec.vlen == 0);
    else FUZZ_CHECK(check_value(r, (uint32_t)k, rec.val, rec.vlen) == b->ids[k]);
    s = back ? xdb_iter_prev(it) : xdb_iter_skip(it, 1);
  }
  for (; s == REMIXDB_OK && k >= 0 && k < nr; k += step) FUZZ_CHECK(!shows(r, b, (uint32_t)k));
  return s;
}

static void read_bounded(struct run *r, uint32_t what) {
  struct bounded *const b = fuzz_alloc(sizeof(*b));
  const bool snap = what & 256 && r->snapshot_ref;
  struct xdb_iter *it;
  choose_bounds(r, what, b);
  b->ids = snap ? r->snapshot_ids : r->now;
  enum remixdb_status s = xdb_iter_create_opts(snap ? r->snapshot_ref : r->ref, &b->o, &it);
  for (uint32_t way = 0; way < 2 && read_ok(r, s); way++) {
    if (!read_ok(r, read_shown(r, b, it, (what >> 9 ^ way) & 1))) break;
  }
  if (s == REMIXDB_OK) xdb_iter_destroy(it);
  free(b);
}

// The first three bits of `what` tell the call.
static void other_call(struct run *r, uint32_t what) {
  static const uint8_t costs[8] = {10, 20, 1, 1, 5, 5, 10, 10};
  r->cost += costs[what & 7];
  switch (what & 7) {
    case 0: del_range(r, what >> 3); break;
    case 1: ingest(r, what >> 3); break;
    case 2: get_part(r); break;
    case 3: put_expired(r, what); break;
    case 4:
    case 5: range_work(r, what); break;
    default: read_bounded(r, what); break;
  }
}

// ---- iterators and snapshots

static struct fuzz_iter *iter(struct run *r, uint32_t what) {
  struct fuzz_iter *const f = &r->iters[what % ITERS];
  if (!f->it) {
    f->known = false;
    const bool snap = what & 2 && r->snapshot_ref;
    if (!read_ok(r, expect_iter_below(snap ? r->snapshot_ref : r->ref, what >> 5, &f->it))) f->it = NULL;
    memcpy(f->ids, snap ? r->snapshot_ids : r->now, sizeof(f->ids));  // some keep to this moment
  }
  return f->it ? f : NULL;
}

static void iter_look(struct run *r, struct fuzz_iter *f) {
  if (!f->known) return;
  FUZZ_CHECK(xdb_iter_valid(f->it) == (f->at < r->nr_keys));
  if (f->at == r->nr_keys) return;
  struct kv_rec rec;
  f->known = read_ok(r, xdb_iter_record(f->it, &rec));
  if (!f->known) FUZZ_CHECK(!xdb_iter_valid(f->it));
  if (!f->known) return;
  FUZZ_CHECK(kv_eq(key_at(r, f->at, r->kbuf), kref(rec.key, rec.klen)));
  FUZZ_CHECK(check_value(r, f->at, rec.val, rec.vlen) == f->ids[f->at]);
}

static uint32_t at_or_after(const struct run *r, const struct fuzz_iter *f, uint32_t key) {
  while (key < r->nr_keys && f->ids[key] == 0) key++;
  return key;
}

static uint32_t at_or_before(const struct run *r, const struct fuzz_iter *f, uint32_t key) {  // key -1: none
  while (key != UINT32_MAX && f->ids[key] == 0) key--;
  return key == UINT32_MAX ? r->nr_keys : key;
}

static void seek(struct run *r, uint32_t what) {
  struct fuzz_iter *const f = iter(r, what);
  const uint32_t key = fuzz_u8(r->in) % r->nr_keys;
  if (!f) return;
  struct kref k = key_at(r, key, r->kbuf2);
  // a little after the key, or before it
  const bool behind = what & 16;
  if (behind && k.len < FUZZ_KEY_MAX) r->kbuf2[k.len++] = 0;
  const bool of_snapshot = f->it->ref == r->snapshot_ref && r->snapshot_ref;
  if (!f->it->fixed) memcpy(f->ids, of_snapshot ? r->snapshot_ids : r->now, sizeof(f->ids));
  enum remixdb_status s;
  // with a zero after it a key may be the next one (of FUZZ_KEYS_SHORT)
  const bool is_next = behind && key + 1 < r->nr_keys && kv_eq(k, key_at(r, key + 1, r->kbuf));
  switch (what >> 2 & 3) {
    case 0:
      s = xdb_iter_seek_for_prev(f->it, k);
      f->at = at_or_before(r, f, is_next ? key + 1 : key);
      break;
    case 1:
      s = xdb_iter_seek_last(f->it);
      f->at = at_or_before(r, f, r->nr_keys - 1);
      break;
    default:
      s = xdb_iter_seek(f->it, k);
      f->at = at_or_after(r, f, behind ? key + 1 : key);
      break;
  }
  f->known = read_ok(r, s);
  if (!f->known) FUZZ_CHECK(!xdb_iter_valid(f->it));
  iter_look(r, f);
}

static void step(struct run *r, uint32_t what) {
  struct fuzz_iter *const f = &r->iters[what % ITERS];
  if (!f->it || !f->known || f->at == r->nr_keys) return;
  uint32_t n = 1 + (what >> 4);
  enum remixdb_status s = REMIXDB_OK;
  if (what & 2) {
    for (; n > 0 && s == REMIXDB_OK && f->at < r->nr_keys; n--) {
      s = xdb_iter_prev(f->it);
      f->at = at_or_before(r, f, f->at - 1);
      if (s == REMIXDB_OK && n & 1) iter_look(r, f);
    }
  } else if (what & 4) {
    s = xdb_iter_skip(f->it, n);
    for (; n > 0 && f->at < r->nr_keys; n--) f->at = at_or_after(r, f, f->at + 1);
  } else {
    for (; n > 0 && s == REMIXDB_OK && f->at < r->nr_keys; n--) {
      s = xdb_iter_skip(f->it, 1);
      f->at = at_or_after(r, f, f->at + 1);
      if (s == REMIXDB_OK && n & 1) iter_look(r, f);
    }
  }
  f->known = read_ok(r, s);
  if (!f->known) FUZZ_CHECK(!xdb_iter_valid(f->it));
  iter_look(r, f);
}

// Pages of few records and little room in one direction. Some of their records are given back.
static void pages(struct run *r, uint32_t what) {
  struct fuzz_iter *const f = &r->iters[what % ITERS];
  if (!f->it || !f->known) return;
  uint32_t klens[8], vlens[8], from[8], at = f->at;
  uint8_t *const room = fuzz_alloc(VALUE_MAX + FUZZ_KEY_MAX);
  struct remixdb_page p = {.klens = klens, .vlens = what & 2 ? vlens : NULL, .back = what & 4};
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t n = 1 + (what >> 4 & 3); n > 0 && s == REMIXDB_OK; n--) {
    p.max = 1 + (fuzz_u8(r->in) & 7);
    p.cap = what & 64 ? fuzz_u16(r->in) % (VALUE_MAX + FUZZ_KEY_MAX) : VALUE_MAX + FUZZ_KEY_MAX;
    p.ptr = room + (VALUE_MAX + FUZZ_KEY_MAX - p.cap);  // so that a byte too many is seen
    s = xdb_iter_page(f->it, &p);
    const uint8_t *bytes = p.ptr;
    for (uint32_t i = 0; i < p.nr; i++) {
      FUZZ_CHECK(at < r->nr_keys && kv_eq(key_at(r, at, r->kbuf), kref(bytes, klens[i])));
      bytes += klens[i];
      if (p.vlens) FUZZ_CHECK(check_value(r, at, bytes, vlens[i]) == f->ids[at]);
      bytes += p.vlens ? vlens[i] : 0;
      from[i] = at;
      at = p.back ? at_or_before(r, f, at - 1) : at_or_after(r, f, at + 1);
    }
    FUZZ_CHECK((s == REMIXDB_OK) == (p.nr > 0) && p.len == (size_t)(bytes - (const uint8_t *)p.ptr));
    if (s == REMIXDB_NOTFOUND) FUZZ_CHECK(at == r->nr_keys);
    if (s == REMIXDB_TOOBIG) FUZZ_CHECK(at < r->nr_keys && klens[0] + (p.vlens ? vlens[0] : 0) > p.cap);
  }
  f->known = s == REMIXDB_NOTFOUND || s == REMIXDB_TOOBIG || read_ok(r, s);
  const uint32_t nr = fuzz_u8(r->in) % (p.nr + 1);
  f->at = nr ? from[p.nr - nr] : at;
  s = xdb_iter_unread(f->it, &p, nr);
  f->known = read_ok(r, s) && f->known;
  free(room);
  iter_look(r, f);
}

static void iter_drop(struct run *r, uint32_t what) {
  struct fuzz_iter *const f = &r->iters[what % ITERS];
  if (!f->it) return;
  f->known = false;
  if (what & 2) {
    xdb_iter_park(f->it);
    FUZZ_CHECK(!xdb_iter_valid(f->it));
  } else {
    xdb_iter_destroy(f->it);
    f->it = NULL;
  }
}

static void snapshot(struct run *r) {
  if (r->snapshot_ref) {
    check_all(r, r->snapshot_ref, r->snapshot_ids);
    FUZZ_CHECK(xdb_put(r->snapshot_ref, KV_REC(kref("k", 1), "v", 1, false)) == REMIXDB_READONLY);
    for (uint32_t i = 0; i < ITERS; i++) {
      if (!r->iters[i].it || r->iters[i].it->ref != r->snapshot_ref) continue;
      xdb_iter_destroy(r->iters[i].it);
      r->iters[i].it = NULL;
    }
    snapshot_drop(r);
    return;
  }
  if (!read_ok(r, xdb_snapshot(r->ref, &r->snapshot))) {
    r->snapshot = NULL;
    return;
  }
  if (!read_ok(r, xdb_snapshot_ref(r->snapshot, &r->snapshot_ref))) {
    r->snapshot_ref = NULL;
    snapshot_drop(r);
    return;
  }
  if (r->space && !read_ok(r, xdb_snapshot_space_ref(r->snapshot, r->space, &r->snapshot_space_ref))) {
    r->snapshot_space_ref = NULL;
    snapshot_drop(r);
    return;
  }
  memcpy(r->snapshot_ids, r->now, sizeof(r->now));
}

// ---- the whole

static void verify(struct run *r) {
  struct verify_report report;
  listen(r);
  (void)read_ok(r, verify_store(r->ref, &report));
}

// A copy has the content of the store, and goes away again.
static void copy(struct run *r) {
  listen(r);
  if (r->may || !read_ok(r, checkpoint_make(r->ref, COPY))) return;
  struct xdb *const x = r->x;
  struct xdb_ref *const ref = r->ref, *const space_ref = r->space_ref;
  struct xdb_space *const space = r->space;
  const unsigned could = r->could;
  FUZZ_OK(try_open(r, COPY, false));
  check_all(r, r->ref, r->now);
  refs_drop(r);
  FUZZ_OK(xdb_close(r->x));
  r->x = x;
  r->ref = ref;
  r->space = space;
  r->space_ref = space_ref;
  r->could = could;
  FUZZ_OK(destroy_store(simdisk_env(r->disk), COPY));
}

static void fail(struct run *r) {
  static const int errnums[] = {EIO, ENOSPC, ENOMEM, EINTR, EACCES, EMFILE, EDQUOT, EROFS};
  const uint32_t call = fuzz_u8(r->in) % SIMDISK_CALLS, skip = fuzz_u8(r->in), how = fuzz_u8(r->in);
  const int errnum = errnums[how & 7];
  if (errnum == EINTR) {  // is tried again, so that for ever would be for ever
    simdisk_fault(r->disk, (enum simdisk_call)call, skip, 1 + (how >> 3), errnum);
    if (call != SIMDISK_OPEN && call != SIMDISK_READ && call != SIMDISK_WRITE && call != SIMDISK_SYNC &&
        call != SIMDISK_TRUNCATE && call != SIMDISK_ALLOCATE && call != SIMDISK_LOCK && call != SIMDISK_CLOSE)
      arm(r, MAY_IO);
    return;
  }
  simdisk_fault(r->disk, (enum simdisk_call)call, skip, how & 128 ? UINT64_MAX : 1 + (how >> 3 & 15), errnum);
  arm(r, MAY_IO | MAY_NOSPACE | (errnum == ENOMEM || errnum == EMFILE ? MAY_NOMEM : 0));
}

static void call(struct run *r) {
  const uint32_t op = fuzz_u8(r->in), what = op >> 5 | fuzz_u8(r->in) << 3;
  static const uint8_t costs[32] = {[9] = 5, [13] = 2, 2, 2, 2, 2, 2, [20] = 5, 5, 30, 30, 40, 10, 40, 80};
  uint64_t id;
  r->cost += 1 + costs[op & 31];
  switch (op & 31) {
    default: put(r, what); break;
    case 6:
    case 7: other_call(r, what); break;
    case 8: put_many(r, what); break;
    case 9: write_batch(r, what); break;
    case 10: merge(r, what); break;
    case 11:
    case 12:
      if (what & 128) look_up_packed(r, what);
      else if (what & 64) gets_step(r, what);
      else if (look_up(r, r->ref, what % r->nr_all, &id)) FUZZ_CHECK(id == r->now[what % r->nr_all]);
      break;
    case 13:
    case 14:
    case 15: seek(r, what); break;
    case 16:
    case 17: step(r, what); break;
    case 18: (what & 8 ? pages : step)(r, what); break;
    case 19: iter_drop(r, what); break;
    case 20: snapshot(r); break;
    case 21: sync_store(r); break;
    case 22:
    case 23: flush(r, what); break;
    case 24: reopen(r, what); break;
    case 25: check_all(r, r->ref, r->now); break;
    case 26: verify(r); break;
    case 27: copy(r); break;
    case 28: fail(r); break;
    case 29:
      mem_left = 1 + what % 512;
      atomic_store(&mem_fault, mem_deny);
      arm(r, MAY_NOMEM);
      break;
    case 30:
      simdisk_space(r->disk, simdisk_used(r->disk) + what * 512ull);
      arm(r, MAY_NOSPACE);
      break;
    case 31: heal(r); break;
  }
}

FUZZ(api) {
  struct fuzz_in in = {data, data + size};
  struct run *const r = fuzz_alloc(sizeof(*r));
  static const uint32_t lens[] = {100, 600, 2500, VALUE_MAX - VALUE_MIN};
  static const enum fuzz_keys kinds[] = {FUZZ_KEYS_NUMBERS, FUZZ_KEYS_PATHS, FUZZ_KEYS_SHORT, FUZZ_KEYS_FAR};
  r->in = &in;
  r->next_id = 1;
  const uint32_t how = fuzz_u8(&in), more = fuzz_u8(&in), sizes = fuzz_u8(&in);
  r->keys = kinds[more & 3];
  r->nr_keys = 4 + (more >> 2);
  if (r->nr_keys > KEYS_MAX) r->nr_keys = KEYS_MAX;
  r->nr_all = r->nr_keys * (1 + ((how >> 1 ^ more ^ sizes >> 2) & 1));
  r->vlen_max = lens[sizes & 3];
  r->memtable_limit = (size_t)(64 + (sizes >> 2 & 7) * 16) << 10;
  r->table_pages = 4 + (sizes >> 5) * 4;
  remixdb_opts_init(&r->opts, sizeof(r->opts));
  r->opts.workers = 0;
  r->opts.memtable_mb = 1;
  r->opts.cache_mb = how & 1;
  r->opts.ckeys = how & 2;
  r->opts.tags = how & 4;
  r->opts.compression = how & 8 ? REMIXDB_COMPRESSION_ZSTD : REMIXDB_COMPRESSION_NONE;
  r->opts.max_open_files = how & 16 ? 16 : 0;
  r->opts.direct_io = how & 32;
  r->young_from = how >> 6;
  r->few = sizes & 4 ? 3 : 0;
  r->opened = (how ^ more ^ sizes) % 3;
  r->disk = simdisk_create();
  simdisk_no_allocate(r->disk, true);
  if (how & 64) simdisk_short_io(r->disk, how + 1);
  open_store(r);
  while (r->cost < COST_MAX && fuzz_left(&in)) call(r);
  heal(r);
  if (simdisk_is_off(r->disk)) reopen(r, 0);
  gets_take(r, GETS, GETS);
  check_all(r, r->ref, r->now);
  for (uint32_t i = 0; i < ITERS; i++)
    if (r->iters[i].it) iter_look(r, &r->iters[i]);
  reopen(r, 0);
  verify(r);
  FUZZ_OK(close_store(r));
  simdisk_destroy(r->disk);
  free(r->ops);
  free(r);
  return 0;
}

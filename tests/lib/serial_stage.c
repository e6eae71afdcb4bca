// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/serial_stage.h"

#include "base/thread.h"

#include <sched.h>
#include <sys/mman.h>

#define BETWEEN 3u    // records between two keys
#define LOOSE 300u    // other records; their values fill the memtables
#define RANGE_MAX 4u  // keys that a deletion of a range takes
#define SCAN_MAX 14u
#define KLEN_MAX 16u

static const char *const space_names[STAGE_SPACES] = {NULL, "one", "two"};

// ---- names and values

static uint32_t key_name(uint32_t key, char buf[KLEN_MAX]) {
  return (uint32_t)snprintf(buf, KLEN_MAX, "k%03u", key % STAGE_PER);
}
static uint32_t grave_name(uint32_t key, char buf[KLEN_MAX]) {
  return (uint32_t)snprintf(buf, KLEN_MAX, "k%03u!", key % STAGE_PER);
}
static uint32_t marker_name(uint32_t thread, char buf[KLEN_MAX]) {
  return (uint32_t)snprintf(buf, KLEN_MAX, "m%02u", thread);
}

// Values follow from their numbers; a few are of several blocks.
static uint32_t value_make(uint32_t id, uint32_t key, uint8_t *buf) {
  uint64_t rng = (uint64_t)id << 16 | key;
  const uint64_t r = rng_next(&rng);
  const uint32_t len = 8 + (uint32_t)(r >> 8) % (r % 64 == 0 ? STAGE_VALUE_MAX - 8 : 150);
  memset(buf, (int)(r >> 40), len);
  store32le(buf, id);
  store32le(buf + 4, key);
  return len;
}

static uint32_t value_parse(struct actor *a, uint32_t key, const void *val, uint32_t len) {
  THREAD_CHECK(len >= 8);
  const uint32_t id = load32le(val);
  THREAD_CHECK(id != 0 && value_make(id, key, a->want) == len && memcmp(a->want, val, len) == 0);
  return id;
}

static uint32_t grave_parse(const void *val, uint32_t len) {
  THREAD_CHECK(len == 4 && load32le(val) != 0);
  return load32le(val);
}

static uint32_t new_id(struct actor *a) { return 1 + a->log->next_value++ * STAGE_THREADS + a->id; }

// ---- recording

// Called in the same order by all, as in tests/store/test_history.c: the fences make it a barrier, and hide no missing
// order between the threads from the thread sanitizer.
static uint64_t tick(struct actor *a) {
  atomic_thread_fence(memory_order_seq_cst);
  const uint64_t t = atomic_fetch_add_explicit(&a->w->shared->clock, 1, memory_order_relaxed);
  atomic_thread_fence(memory_order_seq_cst);
  return t;
}

// An operation that only read takes place at the call that begins it, and is committed when it was begun.
static struct serial_op *op_begin(struct actor *a, const char *what) {
  const uint32_t nr = atomic_load_explicit(&a->log->nr, memory_order_relaxed);
  THREAD_CHECK(nr < STAGE_OPS);
  struct serial_op *const o = a->op = &a->log->ops[nr];
  *o = (struct serial_op){.what = what,
                          .items = &a->log->items[a->log->nr_items],
                          .thread = a->id,
                          .ret = UINT64_MAX,
                          .end = SERIAL_ABORTED};
  a->log->marked[nr] = false;
  o->call = tick(a);
  atomic_store_explicit(&a->log->nr, nr + 1, memory_order_release);
  return o;
}
static void op_returned(struct actor *a) { a->op->ret = tick(a); }

static void item(struct actor *a, enum serial_what what, uint32_t key, uint32_t value, bool gap, uint64_t version) {
  THREAD_CHECK(a->log->nr_items < STAGE_ITEMS);
  a->log->items[a->log->nr_items++] = (struct serial_item){(uint8_t)what, gap, (uint16_t)key, value, version};
  a->op->nr_items++;
}

static void op_done(struct actor *a) {
  a->op = NULL;
  atomic_fetch_add_explicit(&a->w->shared->done, 1, memory_order_relaxed);
}

// Before and after the call that writes what the operation has noted.
static void writes_begin(struct actor *a) {
  a->op->ret = UINT64_MAX;
  a->op->call = tick(a);
  a->op->end = SERIAL_MAYBE;
  atomic_thread_fence(memory_order_release);
}
static void writes_end(struct actor *a, bool done) {
  a->op->ret = tick(a);
  a->op->end = done ? SERIAL_COMMITTED : SERIAL_ABORTED;
  atomic_thread_fence(memory_order_release);
}

static uint64_t marker_number(const struct actor *a) {
  return (uint64_t)a->w->life << 32 | (uint32_t)(a->op - a->log->ops);
}

// The order of the operation. Nobody else writes its marker.
static void op_order(struct actor *a) {
  char name[KLEN_MAX];
  uint8_t buf[8];
  uint32_t len = 0;
  uint64_t version = 0;
  THREAD_CHECK(remixdb_getv(a->refs[0], name, marker_name(a->id, name), buf, sizeof(buf), &len, &version));
  THREAD_CHECK(len == 8 && load64le(buf) == marker_number(a));
  a->op->order = version;
}

// ---- reading

static void own_set(struct actor *a, uint32_t key, uint32_t value, bool gone) {
  if (!a->txn) return;
  a->own[key] = (struct own){value, gone};
}

// A read of a key: notes it, or compares it with the transaction's own write.
static void saw(struct actor *a, enum serial_what what, uint32_t key, uint32_t value, bool gap, uint64_t version) {
  const struct own *const own = &a->own[key];
  if (!a->txn || own->value == 0) item(a, what, key, value, gap, version);
  else THREAD_CHECK(own->value == value && own->gone == gap);
}

static uint32_t get_id(struct actor *a, struct xdb_ref *ref, uint32_t key, uint64_t *version_out) {
  char name[KLEN_MAX];
  const uint32_t klen = key_name(key, name);
  uint32_t len = 0;
  const void *v = a->got;
  struct xdb_pin *pin = NULL;
  bool found = false;
  switch (below(&a->rng, a->txn && a->own[key].value ? 2 : 4)) {  // an own write has no version
    case 0: found = remixdb_getn(ref, name, klen, a->got, sizeof(a->got), &len); break;
    case 1: found = (pin = remixdb_get_pinned(ref, name, klen, &v, &len)) != NULL; break;
    default: found = remixdb_getv(ref, name, klen, a->got, sizeof(a->got), &len, version_out);
  }
  THREAD_CHECK(found || remixdb_errcode() == REMIXDB_NOTFOUND);
  const uint32_t id = found ? value_parse(a, key, v, len) : 0;
  remixdb_pin_release(pin);
  return id;
}

// Through a ref that reads one moment.
static void read_at_moment(struct actor *a, struct xdb_ref *ref, uint32_t key) {
  char name[KLEN_MAX];
  uint8_t buf[8];
  uint32_t len = 0;
  uint64_t version = 0;
  uint32_t id = get_id(a, ref, key, &version);
  const bool gap = id == 0;
  if (gap) {
    version = 0;
    if (remixdb_getn(ref, name, grave_name(key, name), buf, sizeof(buf), &len)) id = grave_parse(buf, len);
    else THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
  }
  saw(a, SERIAL_READ, key, id, gap, version);
}

#define MANY 4u

// Several keys of a space, with their graves, by one call.
static void read_many(struct actor *a, struct xdb_ref *ref, uint32_t space, uint32_t nr) {
  static _Thread_local uint8_t room[MANY][STAGE_VALUE_MAX], grave[MANY][8];
  struct remixdb_slice keys[2 * MANY] = {{NULL, 0}};
  struct remixdb_buf values[2 * MANY];
  bool found[2 * MANY];
  char names[2 * MANY][KLEN_MAX];
  uint32_t key[MANY];
  for (uint32_t i = 0; i < nr; i++) {
    key[i] = space * STAGE_PER + (uint32_t)below(&a->rng, STAGE_PER);
    keys[2 * i] = (struct remixdb_slice){names[2 * i], key_name(key[i], names[2 * i])};
    keys[2 * i + 1] = (struct remixdb_slice){names[2 * i + 1], grave_name(key[i], names[2 * i + 1])};
    values[2 * i] = (struct remixdb_buf){room[i], STAGE_VALUE_MAX, 0};
    values[2 * i + 1] = (struct remixdb_buf){grave[i], sizeof(grave[i]), 0};
  }
  (void)remixdb_multi_get(ref, 2 * (size_t)nr, keys, values, found);
  THREAD_CHECK(remixdb_errcode() == REMIXDB_OK);
  for (uint32_t i = 0; i < nr; i++) {
    const struct remixdb_buf *const v = &values[2 * i];
    const uint32_t id = found[2 * i]       ? value_parse(a, key[i], v[0].ptr, v[0].len)
                        : found[2 * i + 1] ? grave_parse(v[1].ptr, v[1].len)
                                           : 0;
    saw(a, SERIAL_READ, key[i], id, !found[2 * i], 0);
  }
}

// The records that a scan has met, by key.
struct met {
  uint32_t there[STAGE_PER], grave[STAGE_PER];
};

// Notes the record at the iterator. Returns its key; STAGE_KEYS: it belongs to none.
static uint32_t meet(struct actor *a, struct xdb_iter *it, uint32_t space, struct met *m) {
  uint32_t klen = 0, vlen = 0, k = 0;
  const char *const key = remixdb_iter_key(it, &klen);
  THREAD_CHECK(key);
  if (klen < 4 || key[0] != 'k') return STAGE_KEYS;
  for (uint32_t i = 1; i < 4; i++) k = 10 * k + (uint32_t)(key[i] - '0');
  THREAD_CHECK(k < STAGE_PER);
  const bool grave = klen == 5 && key[4] == '!';
  if (klen > 4 && !grave) return space * STAGE_PER + k;  // one between the keys
  const void *const val = remixdb_iter_value(it, &vlen);
  THREAD_CHECK(val);
  uint32_t *const to = grave ? &m->grave[k] : &m->there[k];
  THREAD_CHECK(*to == 0);  // no key comes twice
  *to = grave ? grave_parse(val, vlen) : value_parse(a, space * STAGE_PER + k, val, vlen);
  return space * STAGE_PER + k;
}

static struct xdb_iter *scan_iter(struct actor *a, struct xdb_ref *ref, const char *low, uint32_t nr_low,
                                  const char *high, uint32_t nr_high) {
  struct remixdb_iter_opts o;
  remixdb_iter_opts_init(&o, sizeof(o));
  if (chance(&a->rng, 50)) o.bounds = (struct remixdb_range){{low, nr_low}, {high, nr_high}};
  struct xdb_iter *const it = remixdb_iter_create_opts(ref, &o);
  THREAD_CHECK(it);
  return it;
}

// Reads the keys from..to - 1 of a space; at most so many records, at its end of the beginning. at_seek: the operation
// takes place at the seek.
static void scan(struct actor *a, struct xdb_ref *ref, uint32_t from, uint32_t to, bool backward, bool at_seek,
                 uint64_t most) {
  static _Thread_local struct met m;
  char low[KLEN_MAX], high[KLEN_MAX];
  const uint32_t space = from / STAGE_PER, base = space * STAGE_PER, nr_low = key_name(from, low);
  uint32_t nr_high = key_name(to - 1, high);
  high[nr_high++] = 'z';  // behind all that belongs to the last key
  memset(&m, 0, sizeof(m));
  struct xdb_iter *const it = scan_iter(a, ref, low, nr_low, high, nr_high);
  if (at_seek) a->op->call = tick(a);
  if (backward) remixdb_iter_seek_for_prev(it, high, nr_high);
  else remixdb_iter_seek(it, low, nr_low);
  if (at_seek) op_returned(a);
  uint32_t first = from, end = to;  // the keys that were read
  for (uint64_t n = 0; remixdb_iter_valid(it); n++) {
    const uint32_t key = meet(a, it, space, &m);
    if (key == STAGE_KEYS || key < from || key >= to) break;
    if (n == most) {
      if (backward) first = key + 1;
      else end = key;
      break;
    }
    if (backward) remixdb_iter_prev(it);
    else remixdb_iter_skip1(it);
  }
  THREAD_CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
  for (uint32_t key = first; key < end; key++) {
    const uint32_t there = m.there[key - base], grave = m.grave[key - base];
    saw(a, SERIAL_SCAN, key, there ? there : grave, !there, 0);
  }
}

// ---- writing

// Adds to the batch, or with batch NULL writes to the transaction.
static void write_put(struct actor *a, struct xdb_batch *b, uint32_t key) {
  char name[KLEN_MAX];
  const uint32_t id = new_id(a), len = value_make(id, key, a->value), klen = key_name(key, name);
  struct xdb_ref *const ref = a->txn_refs[key / STAGE_PER];
  item(a, SERIAL_WRITE, key, id, false, 0);
  own_set(a, key, id, false);
  if (b) remixdb_batch_space(b, a->w->spaces[key / STAGE_PER]);
  THREAD_CHECK(b ? remixdb_batch_put(b, name, klen, a->value, len) : remixdb_put(ref, name, klen, a->value, len));
}

// The record beside a key that is deleted, in the same space.
static void write_grave(struct actor *a, struct xdb_batch *b, uint32_t key) {
  char name[KLEN_MAX];
  uint8_t val[4];
  const uint32_t id = new_id(a), klen = grave_name(key, name);
  store32le(val, id);
  item(a, SERIAL_WRITE, key, id, true, 0);
  own_set(a, key, id, true);
  THREAD_CHECK(b ? remixdb_batch_put(b, name, klen, val, 4)
                 : remixdb_put(a->txn_refs[key / STAGE_PER], name, klen, val, 4));
}

static void write_del(struct actor *a, struct xdb_batch *b, uint32_t key) {
  char name[KLEN_MAX];
  const uint32_t klen = key_name(key, name);
  if (b) remixdb_batch_space(b, a->w->spaces[key / STAGE_PER]);
  THREAD_CHECK(b ? remixdb_batch_del(b, name, klen) : remixdb_del(a->txn_refs[key / STAGE_PER], name, klen));
  write_grave(a, b, key);
}

static void write_del_range(struct actor *a, struct xdb_batch *b, uint32_t from, uint32_t to) {
  char low[KLEN_MAX], high[KLEN_MAX];
  const uint32_t nr_low = key_name(from, low);
  uint32_t nr_high = grave_name(to - 1, high);
  const struct remixdb_range range = {{low, nr_low}, {high, nr_high}};  // the last grave is put again
  if (b) remixdb_batch_space(b, a->w->spaces[from / STAGE_PER]);
  THREAD_CHECK(b ? remixdb_batch_del_range(b, &range) : remixdb_del_range(a->txn_refs[from / STAGE_PER], &range));
  for (uint32_t key = from; key < to; key++) write_grave(a, b, key);
}

static void write_marker(struct actor *a, struct xdb_batch *b) {
  char name[KLEN_MAX];
  uint8_t val[8];
  const uint32_t klen = marker_name(a->id, name);
  store64le(val, marker_number(a));
  a->log->marked[a->op - a->log->ops] = true;
  if (b) remixdb_batch_space(b, NULL);
  THREAD_CHECK(b ? remixdb_batch_put(b, name, klen, val, 8) : remixdb_put(a->txn_refs[0], name, klen, val, 8));
}

// ---- transactions

void actor_begin(struct actor *a) {
  (void)op_begin(a, "transaction");
  memset(a->own, 0, sizeof(a->own));
  THREAD_CHECK((a->txn = remixdb_txn_begin(a->w->x)) != NULL);
  op_returned(a);
  a->began = a->op->call;
  a->began_ret = a->op->ret;
  for (uint32_t s = 0; s < STAGE_SPACES; s++) {
    THREAD_CHECK((a->txn_refs[s] = remixdb_txn_ref(a->txn, a->w->spaces[s])) != NULL);
    a->read_refs[s] = a->w->untracked ? remixdb_txn_untracked(a->txn, a->w->spaces[s]) : a->txn_refs[s];
    THREAD_CHECK(a->read_refs[s]);
  }
}

void actor_read(struct actor *a, uint32_t key) { read_at_moment(a, a->read_refs[key / STAGE_PER], key); }

void actor_scan(struct actor *a, uint32_t from, uint32_t to, bool backward) {
  scan(a, a->read_refs[from / STAGE_PER], from, to, backward, false, UINT64_MAX);
}

void actor_put(struct actor *a, uint32_t key) { write_put(a, NULL, key); }
void actor_del(struct actor *a, uint32_t key) { write_del(a, NULL, key); }
void actor_del_range(struct actor *a, uint32_t from, uint32_t to) { write_del_range(a, NULL, from, to); }

// Tells whether a write of the operation was not rolled back.
static bool op_writes(const struct serial_op *o) {
  uint32_t saved[64], nr_saved = 0, nr = 0;
  for (uint32_t i = 0; i < o->nr_items; i++) {
    nr += o->items[i].what == SERIAL_WRITE;
    if (o->items[i].what == SERIAL_SAVE) saved[nr_saved++] = nr;
    if (o->items[i].what == SERIAL_BACK) nr = saved[--nr_saved];
  }
  return nr != 0;
}

bool actor_commit(struct actor *a) {
  const bool writes = op_writes(a->op);
  if (writes) {
    write_marker(a, NULL);
    writes_begin(a);
  }
  const bool done = remixdb_txn_commit(a->txn);
  THREAD_CHECK(done || (writes && remixdb_errcode() == REMIXDB_ABORTED));
  a->txn = NULL;
  if (writes && done) {
    writes_end(a, true);
    op_order(a);
  } else if (writes) {
    writes_end(a, false);
    a->op->conflict = true;
    a->op->call = a->began;  // its reads are of that moment
    a->op->ret = a->began_ret;
  }
  op_done(a);
  return done;
}

static uint32_t any_key(struct actor *a) {
  const uint32_t space = (uint32_t)below(&a->rng, STAGE_SPACES);
  return space * STAGE_PER + (uint32_t)below(&a->rng, chance(&a->rng, 30) ? 8 : STAGE_PER);
}

static uint32_t end_of(struct actor *a, uint32_t key, uint32_t most) {
  const uint32_t end = key + 1 + (uint32_t)below(&a->rng, most), last = (key / STAGE_PER + 1) * STAGE_PER;
  return end < last ? end : last;
}

// Reads a few keys from this one on, in some direction, or a part of them.
static void scan_some(struct actor *a, struct xdb_ref *ref, uint32_t key, bool at_seek) {
  const uint32_t end = end_of(a, key, SCAN_MAX);
  const bool backward = chance(&a->rng, 50);
  scan(a, ref, key, end, backward, at_seek, chance(&a->rng, 20) ? 1 + below(&a->rng, 30) : UINT64_MAX);
}

struct merging {
  struct actor *a;
  uint32_t key, id, was;  // id: that of the new value; was: the old value, 0: none
};

static enum remixdb_merge_op replace(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct merging *const m = priv;
  m->was = 0;
  if (!v0) return REMIXDB_MERGE_KEEP;
  m->was = value_parse(m->a, m->key, v0, v0len);
  *v1len = value_make(m->id, m->key, m->a->value);
  *v1 = m->a->value;
  return REMIXDB_MERGE_PUT;
}

static void txn_merge(struct actor *a, uint32_t key) {
  char name[KLEN_MAX];
  struct merging m = {a, key, new_id(a), 0};
  THREAD_CHECK(remixdb_merge(a->txn_refs[key / STAGE_PER], name, key_name(key, name), replace, &m));
  if (!m.was) return;
  saw(a, SERIAL_READ, key, m.was, false, 0);
  item(a, SERIAL_WRITE, key, m.id, false, 0);
  own_set(a, key, m.id, false);
}

static void txn_write(struct actor *a) {
  const uint32_t key = any_key(a);
  const uint64_t dice = below(&a->rng, 100);
  struct xdb_batch *b = NULL;
  if (chance(&a->rng, 15)) remixdb_batch_clear(b = a->batch);
  if (dice < 55) write_put(a, b, key);
  else if (dice < 75) write_del(a, b, key);
  else if (dice < 85) write_del_range(a, b, key, end_of(a, key, RANGE_MAX));
  else if (!b) txn_merge(a, key);
  if (b && dice < 55 && chance(&a->rng, 30)) write_put(a, b, any_key(a));
  if (b) THREAD_CHECK(remixdb_write(a->txn_refs[0], b));
}

static void txn_read(struct actor *a) {
  const uint64_t dice = below(&a->rng, 100);
  const uint32_t key = any_key(a);
  if (dice < 55) actor_read(a, key);
  else if (dice < 65) read_many(a, a->read_refs[key / STAGE_PER], key / STAGE_PER, 1 + (uint32_t)below(&a->rng, MANY));
  else scan_some(a, a->read_refs[key / STAGE_PER], key, false);
}

// Writes after a savepoint, and takes them back; reads of before and behind it stay.
static void txn_savepoint(struct actor *a) {
  struct own before[STAGE_KEYS];
  memcpy(before, a->own, sizeof(before));
  item(a, SERIAL_SAVE, 0, 0, false, 0);
  THREAD_CHECK(remixdb_txn_savepoint(a->txn));
  for (uint64_t n = 1 + below(&a->rng, 3); n; n--) {
    if (chance(&a->rng, 70)) txn_write(a);
    else txn_read(a);
  }
  if (chance(&a->rng, 20)) return;  // it stays
  item(a, SERIAL_BACK, 0, 0, false, 0);
  THREAD_CHECK(remixdb_txn_rollback(a->txn));
  memcpy(a->own, before, sizeof(before));
}

static void act_txn(struct actor *a) {
  const uint64_t kind = below(&a->rng, 100);  // reads first, then writes; some only read, some only write
  actor_begin(a);
  for (uint64_t n = kind < 12 ? 0 : 1 + below(&a->rng, 3); n; n--) txn_read(a);
  for (uint64_t n = kind >= 85 ? 0 : 1 + below(&a->rng, 4); n; n--) {
    if (chance(&a->rng, 8)) txn_savepoint(a);
    else txn_write(a);
    if (kind >= 12 && chance(&a->rng, 25)) txn_read(a);
  }
  if (chance(&a->rng, 10)) (void)sched_yield();
  if (!chance(&a->rng, 4)) {
    (void)actor_commit(a);
    return;
  }
  remixdb_txn_abort(a->txn);
  a->txn = NULL;
  op_done(a);
}

// ---- other operations

static void act_batch(struct actor *a) {
  (void)op_begin(a, "batch");
  remixdb_batch_clear(a->batch);
  for (uint64_t n = 1 + below(&a->rng, 5); n; n--) {
    const uint32_t key = any_key(a);
    const uint64_t dice = below(&a->rng, 100);
    if (dice < 60) write_put(a, a->batch, key);
    else if (dice < 92) write_del(a, a->batch, key);
    else write_del_range(a, a->batch, key, end_of(a, key, RANGE_MAX));
  }
  write_marker(a, a->batch);
  writes_begin(a);
  THREAD_CHECK(remixdb_write(a->refs[chance(&a->rng, 50)], a->batch));
  writes_end(a, true);
  op_order(a);
  op_done(a);
}

// If nobody has written the key since, its version is the order.
static void order_by_key(struct actor *a, uint32_t key, uint32_t id) {
  char name[KLEN_MAX];
  uint32_t len = 0;
  uint64_t version = 0;
  if (!remixdb_getv(a->refs[key / STAGE_PER], name, key_name(key, name), a->got, sizeof(a->got), &len, &version))
    THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
  else if (value_parse(a, key, a->got, len) == id) a->op->order = version;
}

static void act_put(struct actor *a) {
  const uint32_t key = any_key(a), id = new_id(a);
  char name[KLEN_MAX];
  (void)op_begin(a, "put");
  const uint32_t len = value_make(id, key, a->value);
  item(a, SERIAL_WRITE, key, id, false, 0);
  writes_begin(a);
  THREAD_CHECK(remixdb_put(a->refs[key / STAGE_PER], name, key_name(key, name), a->value, len));
  writes_end(a, true);
  order_by_key(a, key, id);
  op_done(a);
}

// A merge, or a compare-and-set. The read is known only after the write; if the process dies between, the operation is
// one that only wrote.
static void act_change(struct actor *a, bool merge) {
  const uint32_t key = any_key(a);
  char name[KLEN_MAX];
  uint32_t len = 0;
  uint64_t version = 0;
  struct merging m = {a, key, new_id(a), 0};
  const uint32_t klen = key_name(key, name);
  struct xdb_ref *const ref = a->refs[key / STAGE_PER];
  if (!merge) {
    if (!remixdb_getv(ref, name, klen, a->got, sizeof(a->got), &len, &version)) return;
    m.was = value_parse(a, key, a->got, len);
  }
  (void)op_begin(a, merge ? "merge" : "put_if");
  if (!merge) item(a, SERIAL_READ, key, m.was, false, version);
  item(a, SERIAL_WRITE, key, m.id, false, 0);
  writes_begin(a);
  len = value_make(m.id, key, a->value);
  const bool done = merge ? remixdb_merge(ref, name, klen, replace, &m)
                          : remixdb_put_if(ref, name, klen, a->value, len, version);
  THREAD_CHECK(done || (!merge && remixdb_errcode() == REMIXDB_ABORTED));
  writes_end(a, done && m.was);
  if (merge && m.was) item(a, SERIAL_READ, key, m.was, false, 0);
  if (!merge && !done) a->op->nr_items = 0;  // it read before it began
  if (done && m.was) order_by_key(a, key, m.id);
  op_done(a);
}

static void act_read(struct actor *a) {
  const uint32_t key = any_key(a), space = key / STAGE_PER;
  const uint64_t dice = below(&a->rng, 100);
  if (dice < 40) {
    (void)op_begin(a, "multi_get");
    read_many(a, a->refs[space], space, 1 + (uint32_t)below(&a->rng, MANY));
    op_returned(a);
  } else if (dice < 75) {
    (void)op_begin(a, "scan");
    scan_some(a, a->refs[space], key, true);
  } else {
    (void)op_begin(a, "snapshot");
    struct xdb_snapshot *const s = remixdb_snapshot(a->refs[space]);
    op_returned(a);
    struct xdb_ref *const ref = s ? remixdb_snapshot_space_ref(s, a->w->spaces[space]) : NULL;
    THREAD_CHECK(ref);
    for (uint64_t n = 1 + below(&a->rng, 4); n; n--) read_at_moment(a, ref, space * STAGE_PER + any_key(a) % STAGE_PER);
    scan_some(a, ref, key, false);
    remixdb_unref(ref);
    remixdb_snapshot_release(s);
  }
  a->op->end = SERIAL_COMMITTED;
  op_done(a);
}

// Records that are not in the history, so that memtables fill.
static void act_fill(struct actor *a) {
  char name[KLEN_MAX];
  memset(a->value, 'f', 1500);
  const uint32_t klen = (uint32_t)snprintf(name, sizeof(name), "z%04u", (uint32_t)below(&a->rng, LOOSE));
  THREAD_CHECK(remixdb_put(a->refs[below(&a->rng, STAGE_SPACES)], name, klen, a->value, 1500));
}

static void act_sync(struct actor *a) {
  const uint64_t call = tick(a);
  THREAD_CHECK(remixdb_sync(a->refs[0]));
  a->log->synced = call;
}

static void act(struct actor *a) {
  const uint64_t dice = below(&a->rng, 1000);
  if (dice < 560) act_txn(a);
  else if (dice < 680) act_batch(a);
  else if (dice < 760) act_put(a);
  else if (dice < 820) act_change(a, chance(&a->rng, 50));
  else if (dice < 930) act_read(a);
  else if (dice < 985) act_fill(a);
  else if (dice < 998) act_sync(a);
  else THREAD_CHECK(chance(&a->rng, 80) ? remixdb_flush(a->refs[0]) : remixdb_compact(a->refs[0]));
}

// ---- life

struct actor *actor_create(struct stage *w, uint32_t id) {
  struct actor *const a = calloc(1, sizeof(*a));
  THREAD_CHECK(a);
  a->w = w;
  a->id = id;
  a->log = &w->shared->logs[id];
  a->rng = w->seed * 1000 + w->life * 16 + id;
  THREAD_CHECK((a->batch = remixdb_batch_create()) != NULL);
  for (uint32_t s = 0; s < STAGE_SPACES; s++)
    THREAD_CHECK((a->refs[s] = s ? remixdb_space_ref(w->spaces[s]) : remixdb_ref(w->x)) != NULL);
  return a;
}

void actor_destroy(struct actor *a) {
  for (uint32_t s = 0; s < STAGE_SPACES; s++) remixdb_unref(a->refs[s]);
  remixdb_batch_destroy(a->batch);
  free(a);
}

static void *actor_main(void *arg) {
  struct actor *const a = arg;
  while (atomic_load_explicit(&a->w->shared->done, memory_order_relaxed) < a->w->nr_ops) act(a);
  return NULL;
}

void stage_run(struct stage *w) {
  struct actor *actors[STAGE_THREADS];
  pthread_t threads[STAGE_THREADS];
  for (uint32_t i = 0; i < STAGE_THREADS; i++) actors[i] = actor_create(w, i);
  for (uint32_t i = 0; i < STAGE_THREADS; i++)
    THREAD_CHECK(thread_start(&threads[i], actor_main, actors[i], "serial") == REMIXDB_OK);
  for (uint32_t i = 0; i < STAGE_THREADS; i++) THREAD_CHECK(pthread_join(threads[i], NULL) == 0);
  for (uint32_t i = 0; i < STAGE_THREADS; i++) actor_destroy(actors[i]);
}

struct stage_shared *stage_share(void) {
  void *const p = mmap(NULL, sizeof(struct stage_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  THREAD_CHECK(p != MAP_FAILED);
  stage_forget(p);
  return p;
}

void stage_unshare(struct stage_shared *s) { THREAD_CHECK(munmap(s, sizeof(*s)) == 0); }

void stage_forget(struct stage_shared *s) {
  atomic_store(&s->clock, 1);
  atomic_store(&s->done, 0);
  for (uint32_t i = 0; i < STAGE_THREADS; i++) {
    atomic_store(&s->logs[i].nr, 0);
    s->logs[i].nr_items = 0;
    s->logs[i].synced = 0;
  }
}

static void fill_between(struct stage *w, uint32_t space) {
  struct xdb_ref *const ref = space ? remixdb_space_ref(w->spaces[space]) : remixdb_ref(w->x);
  char name[KLEN_MAX], val[100];
  THREAD_CHECK(ref);
  memset(val, 'b', sizeof(val));
  for (uint32_t k = 0; k < STAGE_PER; k++)
    for (uint32_t i = 0; i < BETWEEN; i++)
      THREAD_CHECK(remixdb_put(ref, name, (uint32_t)snprintf(name, sizeof(name), "k%03u.%u", k, i), val, sizeof(val)));
  THREAD_CHECK(remixdb_sync(ref));
  remixdb_unref(ref);
}

void stage_open(struct stage *w, int workers, int sync) {
  struct remixdb_opts o = small_opts(workers);
  uint64_t rng = w->seed * 16 + w->life;
  o.sync = sync;
  o.tags = chance(&rng, 50);
  o.ckeys = chance(&rng, 50);
  THREAD_CHECK(xdb_open(dir, &o, quick_env(), &w->x) == REMIXDB_OK);
  shrink(w->x, (size_t)(200 + below(&rng, 400)) << 10, 4 + (uint32_t)below(&rng, 40));
  w->x->compact.young_from = (uint32_t)below(&rng, 4) * 2;
  w->x->compact.garbage_from = w->seed % 2;
  w->x->compact.cut_from = 0;
  w->x->compact.join = (uint32_t)(w->seed / 2 % 3);
  w->x->garbage_merges.rest_ns = 1000000;
  for (uint32_t s = 1; s < STAGE_SPACES; s++) {
    w->spaces[s] = remixdb_space_open(w->x, space_names[s], true);
    THREAD_CHECK(w->spaces[s]);
  }
}

void stage_fill(struct stage *w) {
  for (uint32_t s = 0; s < STAGE_SPACES; s++) fill_between(w, s);
}

void stage_close(struct stage *w) {
  for (uint32_t s = 1; s < STAGE_SPACES; s++) remixdb_space_close(w->spaces[s]);
  remixdb_close(w->x);
  THREAD_CHECK(remixdb_errcode() == REMIXDB_OK);
  w->x = NULL;
}

void stage_read(struct stage *w, uint32_t values_out[STAGE_KEYS], uint64_t versions_out[STAGE_KEYS]) {
  struct actor *const a = actor_create(w, 0);
  char name[KLEN_MAX];
  uint8_t buf[8];
  for (uint32_t key = 0; key < STAGE_KEYS; key++) {
    struct xdb_ref *const ref = a->refs[key / STAGE_PER];
    uint32_t len = 0;
    values_out[key] = 0;
    versions_out[key] = 0;
    if (remixdb_getv(ref, name, key_name(key, name), a->got, sizeof(a->got), &len, &versions_out[key]))
      values_out[key] = value_parse(a, key, a->got, len);
    else if (remixdb_getv(ref, name, grave_name(key, name), buf, sizeof(buf), &len, &versions_out[key]))
      values_out[key] = grave_parse(buf, len);
    THREAD_CHECK(values_out[key] || remixdb_errcode() == REMIXDB_NOTFOUND);
  }
  actor_destroy(a);
}

uint32_t stage_marker(struct stage *w, uint32_t thread, uint64_t *version_out) {
  struct xdb_ref *const ref = remixdb_ref(w->x);
  char name[KLEN_MAX];
  uint8_t buf[8];
  uint32_t len = 0;
  THREAD_CHECK(ref);
  *version_out = 0;
  const bool found = remixdb_getv(ref, name, marker_name(thread, name), buf, sizeof(buf), &len, version_out);
  THREAD_CHECK(found ? len == 8 : remixdb_errcode() == REMIXDB_NOTFOUND);
  remixdb_unref(ref);
  const uint64_t number = found ? load64le(buf) : UINT64_MAX;
  return number >> 32 == w->life ? (uint32_t)number : UINT32_MAX;
}

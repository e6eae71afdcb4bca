// SPDX-License-Identifier: Apache-2.0
//
// Batches: what is gathered, and that the store takes all of one or nothing, in every situation: whatever is in it,
// however large it is, when memory or the disk fails, when the power goes, to readers while it is written.
//
// TEST_SEED in the environment repeats a run.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#include "base/thread.h"
#include "tests/lib/check.h"
#include "tests/lib/fault.h"
#include "tests/lib/simdisk.h"
#include "store/batch.h"
#include "tests/lib/store.h"

// ---- gathering

#define KEY_MAX 24u

struct entry {  // the last operation on a key
  uint8_t key[KEY_MAX];
  uint32_t klen, vlen;
  uint8_t fill;
  bool tomb, there;
};

static int entry_cmp(const void *a, const void *b) {
  const struct entry *const x = a, *const y = b;
  return kv_cmp(kref(x->key, x->klen), kref(y->key, y->klen));
}

// Few different ones of every length, some the beginning of others.
static uint32_t some_key(uint64_t *rng, uint8_t *buf) {
  const uint32_t len = (uint32_t)below(rng, chance(rng, 20) ? KEY_MAX : 4);
  for (uint32_t i = 0; i < len; i++) buf[i] = "\0a\xff"[below(rng, 3)];
  return len;
}

static struct entry *entry_of(struct entry *all, size_t *nr, const uint8_t *key, uint32_t klen) {
  for (size_t i = 0; i < *nr; i++)
    if (kv_eq(kref(all[i].key, all[i].klen), kref(key, klen))) return &all[i];
  memcpy(all[*nr].key, key, klen);
  all[*nr].klen = klen;
  return &all[(*nr)++];
}

static bool op_is(const struct batch_op *op, const struct entry *e) {
  if (!kv_eq(kref(op->rec.key, op->rec.klen), kref(e->key, e->klen)) || op->hash != hash64(e->key, e->klen))
    return false;
  if ((op->rec.kind == KV_TOMB) != e->tomb || (!(op->rec.kind & KV_TOMB) && op->rec.vlen != e->vlen)) return false;
  for (uint32_t i = 0; !(op->rec.kind & KV_TOMB) && i < op->rec.vlen; i++)
    if (op->rec.val[i] != e->fill) return false;
  return true;
}

static void test_sorted(void **state) {
  (void)state;
  check_seed = check_seed_or(1);
  uint64_t rng = check_seed;
  struct xdb_batch *b;
  OK(batch_create(&b));
  struct entry *const all = calloc(2000, sizeof(*all));
  static uint8_t val[70000];
  for (uint32_t round = 0; round < 300; round++) {
    const size_t nr = below(&rng, round % 10 == 0 ? 1500 : 30);
    const bool ascending = chance(&rng, 20);  // nothing has to be sorted then
    size_t nr_keys = 0;
    batch_clear(b);
    CHECK(b->nr == 0);
    for (size_t i = 0; i < nr; i++) {
      uint8_t key[KEY_MAX];
      const uint32_t klen = ascending ? (uint32_t)snprintf((char *)key, sizeof(key), "%06zu", i) : some_key(&rng, key);
      struct entry *const e = entry_of(all, &nr_keys, key, klen);
      e->tomb = chance(&rng, 25);
      e->vlen = (uint32_t)below(&rng, chance(&rng, 2) ? REMIXDB_KV_MAX - KEY_MAX : 60);
      e->fill = (uint8_t)rng_next(&rng);
      memset(val, e->fill, e->vlen);
      OK(batch_add(b, KV_REC(kref(key, klen), val, e->vlen, e->tomb)));
      memset(key, 0x55, sizeof(key));  // it has been copied
      memset(val, 0x55, e->vlen);
      CHECK(b->nr == i + 1);
    }
    qsort(all, nr_keys, sizeof(*all), entry_cmp);
    for (int again = 0; again < 2; again++) {
      struct batch_op *ops;
      size_t nr_ops;
      OK(batch_sorted(b, 0, &ops, &nr_ops));
      CHECK(nr_ops == nr_keys && b->nr == nr);
      for (size_t i = 0; i < nr_ops; i++) CHECK(op_is(&ops[i], &all[i]));
      mem_free(ops);
    }
  }
  free(all);
  batch_destroy(b);
  batch_destroy(NULL);
}

static void test_sorted_no_memory(void **state) {
  (void)state;
  struct xdb_batch *b = NULL;
  fault_mem_set(1);
  CHECK(batch_create(&b) == REMIXDB_NOMEM && !b);
  CHECK(fault_mem_end());
  OK(batch_create(&b));
  uint32_t refused = 0;
  for (uint32_t i = 0; i < 20000; i++) {
    const size_t nr = b->nr, len = b->len;
    fault_mem_set(1);
    const enum remixdb_status s = batch_add(b, KV_REC(kref(&i, sizeof(i)), "value", 5, false));
    const bool failed = fault_mem_end();
    CHECK(s == (failed ? REMIXDB_NOMEM : REMIXDB_OK));
    if (!failed) continue;
    CHECK(b->nr == nr && b->len == len);
    refused++;
    OK(batch_add(b, KV_REC(kref(&i, sizeof(i)), "value", 5, false)));
  }
  CHECK(refused > 3 && b->nr == 20000);
  static const uint32_t lens[64] = {[0 ... 63] = 1000};
  static const uint8_t bytes[64 * 2000];
  const size_t was = b->len;
  fault_mem_set(1);
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; s == REMIXDB_OK && i < 100; i++) s = batch_load(b, 64, NULL, lens, lens, bytes);
  CHECK(fault_mem_end() && s == REMIXDB_NOMEM && (b->nr - 20000) % 64 == 0 && (b->len - was) % (64 * 2004) == 0);
  b->nr = 20000;
  b->len = was;
  struct batch_op *ops = NULL;
  size_t nr;
  fault_mem_set(1);
  CHECK(batch_sorted(b, 0, &ops, &nr) == REMIXDB_NOMEM);
  CHECK(fault_mem_end());
  OK(batch_sorted(b, 0, &ops, &nr));
  CHECK(nr == 20000);
  mem_free(ops);
  batch_destroy(b);
}

// ---- a store and its model: keys by number, each with the step that wrote it last

#define KEYS 600u
#define VALUE_MAX 40000u

struct step {  // 0: not there
  uint32_t id, vlen;
};

struct model {
  struct xdb *x;
  struct xdb_ref *ref;
  struct xdb_batch *batch;
  struct step now[KEYS], next[KEYS];  // next: with the batch
  uint32_t last_id;
  uint64_t rng;
  uint8_t value[VALUE_MAX], got[VALUE_MAX];
};

// Ascending with the number; some are long.
static uint32_t key_of(uint32_t i, char buf[64]) {
  return (uint32_t)snprintf(buf, 64, i % 5 ? "%05u" : "%05u-and-then-a-good-deal-more-than-others", i);
}

static void value_of(uint32_t key, struct step s, uint8_t *buf) {
  memset(buf, (int)(s.id * 7 + key), s.vlen);
  if (s.vlen >= 8) {
    store32le(buf, s.id);
    store32le(buf + 4, key);
  }
}

static struct model *model_create(void) {
  struct model *const m = calloc(1, sizeof(*m));
  CHECK(m);
  m->rng = check_seed;
  m->batch = remixdb_batch_create();
  CHECK(m->batch);
  return m;
}

static void model_open(struct model *m, const struct remixdb_opts *o, struct env *env) {
  OK(xdb_open(dir, o, env, &m->x));
  m->ref = remixdb_ref(m->x);
  CHECK(m->ref);
}

static void model_close(struct model *m) {
  remixdb_unref(m->ref);
  remixdb_close(m->x);
  CHECK(remixdb_errcode() == REMIXDB_OK);
  m->x = NULL;
}

static void model_free(struct model *m) {
  remixdb_batch_destroy(m->batch);
  free(m);
}

static void gather_begin(struct model *m) {
  remixdb_batch_clear(m->batch);
  CHECK(remixdb_batch_count(m->batch) == 0);
  memcpy(m->next, m->now, sizeof(m->now));
}

static void gather(struct model *m, uint32_t key, uint32_t vlen, bool del) {
  char kbuf[64];
  const uint32_t klen = key_of(key, kbuf);
  const size_t count = remixdb_batch_count(m->batch);
  m->next[key] = del ? (struct step){0} : (struct step){++m->last_id, vlen};
  if (!del) value_of(key, m->next[key], m->value);
  CHECK(del ? remixdb_batch_del(m->batch, kbuf, klen) : remixdb_batch_put(m->batch, kbuf, klen, m->value, vlen));
  CHECK(remixdb_batch_count(m->batch) == count + 1);
}

static void gather_some(struct model *m, uint32_t nr, uint32_t vlen_max, uint32_t del_percent) {
  gather_begin(m);
  for (uint32_t i = 0; i < nr; i++)
    gather(m, (uint32_t)below(&m->rng, KEYS), (uint32_t)below(&m->rng, vlen_max), chance(&m->rng, del_percent));
}

static bool value_is(struct model *m, uint32_t key, struct step want, const void *val, uint32_t vlen) {
  if (vlen != want.vlen) return false;
  value_of(key, want, m->value);
  return memcmp(m->value, val, vlen) == 0;
}

// Whether the ref sees exactly this, by gets and by a scan.
static bool sees(struct model *m, struct xdb_ref *ref, const struct step *want) {
  char kbuf[64];
  uint32_t vlen;
  for (uint32_t i = 0; i < KEYS; i++) {
    const bool found = remixdb_getn(ref, kbuf, key_of(i, kbuf), m->got, sizeof(m->got), &vlen);
    CHECK(found || remixdb_errcode() == REMIXDB_NOTFOUND);
    if (found != (want[i].id != 0) || (found && !value_is(m, i, want[i], m->got, vlen))) return false;
  }
  struct xdb_iter *const it = remixdb_iter_create(ref);
  CHECK(it);
  remixdb_iter_seek(it, NULL, 0);
  bool same = true;
  for (uint32_t i = 0; i < KEYS && same; i++) {
    if (!want[i].id) continue;
    uint32_t klen = 0;
    const void *const key = remixdb_iter_key(it, &klen), *const val = remixdb_iter_value(it, &vlen);
    same = key && klen == key_of(i, kbuf) && memcmp(key, kbuf, klen) == 0 && value_is(m, i, want[i], val, vlen);
    remixdb_iter_skip1(it);
  }
  same = same && !remixdb_iter_valid(it);
  CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  remixdb_iter_destroy(it);
  return same;
}

static void write_good(struct model *m) {
  const size_t count = remixdb_batch_count(m->batch);
  CHECK(remixdb_write(m->ref, m->batch));
  CHECK(remixdb_batch_count(m->batch) == count);
  memcpy(m->now, m->next, sizeof(m->now));
}

static void put_one(struct model *m, uint32_t key) {
  char kbuf[64];
  m->now[key] = (struct step){++m->last_id, (uint32_t)below(&m->rng, 3000)};
  value_of(key, m->now[key], m->value);
  CHECK(remixdb_put(m->ref, kbuf, key_of(key, kbuf), m->value, m->now[key].vlen));
}

static void test_content(void **state) {
  (void)state;
  check_seed = check_seed_or(2);
  for (int workers = 0; workers < 2; workers++) {
    const struct remixdb_opts o = small_opts(workers);
    struct model *const m = model_create();
    model_open(m, &o, quick_env());
    CHECK(sees(m, m->ref, m->now));
    uint64_t rounds = 0;
    for (uint32_t round = 0; round < 250; round++) {
      const uint32_t nr = (uint32_t)below(&m->rng, round % 5 ? 20 : 1500);
      gather_some(m, nr, nr > 100 ? 300 : 8000, 20);
      write_good(m);
      if (round % 10 == 0) CHECK(sees(m, m->ref, m->now));
      if (round % 20 == 0) {  // the same again, which changes nothing but numbers
        write_good(m);
        CHECK(sees(m, m->ref, m->now));
      }
      if (round % 50 == 49) {
        rounds += stat_of(m->x, "rounds");
        model_close(m);
        model_open(m, &o, quick_env());
        CHECK(sees(m, m->ref, m->now));
      }
    }
    CHECK(rounds > 2);
    // the same key many times, puts and deletes
    gather_begin(m);
    for (uint32_t i = 0; i < 100; i++) gather(m, 7, i, i % 3 == 0);
    const uint64_t seq = stat_of(m->x, "sequence");
    write_good(m);
    CHECK(stat_of(m->x, "sequence") == seq + 1);
    CHECK(sees(m, m->ref, m->now));
    model_close(m);
    model_free(m);
    setup_again();
  }
}

static void test_empty(void **state) {
  (void)state;
  check_seed = check_seed_or(3);
  struct remixdb_opts o = small_opts(0);
  struct model *const m = model_create();
  model_open(m, &o, quick_env());
  gather_some(m, 20, 100, 0);
  write_good(m);
  const uint64_t seq = stat_of(m->x, "sequence"), bytes = stat_of(m->x, "written_bytes");
  gather_begin(m);
  CHECK(remixdb_write(m->ref, m->batch));
  CHECK(stat_of(m->x, "sequence") == seq && stat_of(m->x, "written_bytes") == bytes);
  CHECK(sees(m, m->ref, m->now));
  // where nothing may be written nothing is, an empty batch included
  struct xdb_snapshot *const s = remixdb_snapshot(m->ref);
  struct xdb_ref *const old = remixdb_snapshot_ref(s);
  CHECK(old && !remixdb_write(old, m->batch) && remixdb_errcode() == REMIXDB_READONLY);
  gather(m, 1, 10, false);
  CHECK(!remixdb_write(old, m->batch) && remixdb_errcode() == REMIXDB_READONLY);
  remixdb_unref(old);
  remixdb_snapshot_release(s);
  model_close(m);
  o.read_only = true;
  model_open(m, &o, quick_env());
  CHECK(!remixdb_write(m->ref, m->batch) && remixdb_errcode() == REMIXDB_READONLY);
  CHECK(sees(m, m->ref, m->now));
  model_close(m);
  model_free(m);
}

// ---- sizes

// The memory that the batch takes of a memtable.
static size_t batch_memory(const struct model *m) {
  size_t n = 0;
  char kbuf[64];
  for (uint32_t i = 0; i < KEYS; i++)
    if (m->next[i].id != m->now[i].id) n += wh_record_memory(key_of(i, kbuf), m->next[i].vlen);
  return n;
}

static uint32_t batch_keys(const struct model *m) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < KEYS; i++) n += m->next[i].id != m->now[i].id;
  return n;
}

static void test_sizes(void **state) {
  (void)state;
  check_seed = check_seed_or(4);
  const uint32_t rounds = SLOW > 8 ? 24 : 60;
  for (uint32_t variant = 0; variant < 3; variant++) {
    struct remixdb_opts o = small_opts(variant == 1);
    o.memtable_mb = variant == 2 ? 3 : 1;
    o.wal_mb = variant == 2 ? 1 : 0;  // a batch that is larger than a log segment
    const size_t limit = o.memtable_mb << 20;
    struct model *const m = model_create();
    model_open(m, &o, quick_env());
    uint32_t largest = 0, above = 0;
    for (uint32_t round = 0; round < rounds; round++) {
      // up to the memtable's size, and up to twice that; into memtables of any fill
      const size_t want = round % 6 == 0 ? limit - 10000 : below(&m->rng, limit - 10000);
      gather_begin(m);
      for (uint32_t i = 0; i < KEYS && batch_memory(m) < want; i++) {
        const size_t left = want - batch_memory(m), head = wh_record_memory(64, 0);
        const size_t len = left > head ? left - head : 0, share = 2 * want / KEYS;
        gather(m, i, (uint32_t)(len < share ? len : share), false);
      }
      const size_t least = round % 12 == 0 ? limit + below(&m->rng, limit) : 0;
      while (least && batch_memory(m) <= least) gather(m, (uint32_t)below(&m->rng, KEYS), 15000, false);
      const size_t memory = batch_memory(m);
      const uint64_t seq = stat_of(m->x, "sequence") + batch_keys(m);
      write_good(m);
      CHECK(stat_of(m->x, "sequence") == seq);
      if (memory > limit) above++;
      else if (memory > limit - limit / 50) largest++;
      CHECK(sees(m, m->ref, m->now));
      // a memtable takes such a batch only if it is nearly empty
      CHECK(stat_of(m->x, "memtable_active") <= (memory > limit ? memory : limit) + limit / 4 + (256u << 10));
    }
    CHECK(largest >= rounds / 12 && above >= rounds / 12);
    model_close(m);
    model_open(m, &o, quick_env());
    CHECK(sees(m, m->ref, m->now));
    model_close(m);
    model_free(m);
    setup_again();
  }
}

// ---- the log

struct frame {
  uint64_t first;
  uint32_t count;
};

// The frames of all segments, by the document of the format; their sums are the business of the log's own tests.
static uint32_t read_frames(struct frame *out, uint32_t cap) {
  uint32_t nr = 0;
  for (uint32_t n = 0; n < 8; n++) {
    char path[sizeof(dir) + 16];
    (void)snprintf(path, sizeof(path), "%s/wal-%u", dir, n);
    const int fd = open(path, O_RDONLY);
    if (fd < 0) continue;
    uint8_t head[512];
    CHECK(pread(fd, head, 512, 0) == 512);
    uint8_t id[16];
    memcpy(id, head + 16, 16);  // the store's; generation
    const uint32_t mark = (uint32_t)(hash64(id, 16) >> 32) | 1;
    for (uint64_t at = 512; pread(fd, head, 40, (off_t)at) == 40 && load32le(head + 8) == mark;
         at += 40 + (load32le(head + 12) & ~(1u << 31))) {
      CHECK(nr < cap);
      out[nr++] = (struct frame){load64le(head + 16), load32le(head + 32)};
    }
    (void)close(fd);
  }
  return nr;
}

static void test_one_frame(void **state) {
  (void)state;
  enum { BATCHES = 120, FRAMES = 5000 };
  check_seed = check_seed_or(5);
  struct remixdb_opts o = small_opts(0);
  o.memtable_mb = 64;
  struct model *const m = model_create();
  model_open(m, &o, quick_env());
  uint64_t first[BATCHES], last[BATCHES];
  for (uint32_t i = 0; i < BATCHES; i++) {
    for (uint32_t n = (uint32_t)below(&m->rng, 30); n; n--) put_one(m, n);  // the frame begins anywhere
    gather_some(m, (uint32_t)below(&m->rng, i % 8 ? 40 : KEYS), i % 8 ? 8000 : 3000, 10);
    gather(m, 3, 10, false);
    first[i] = stat_of(m->x, "sequence") + 1;
    write_good(m);
    last[i] = stat_of(m->x, "sequence");
    CHECK(last[i] >= first[i]);
    if (chance(&m->rng, 20)) CHECK(remixdb_sync(m->ref));
  }
  // a batch alone is a frame alone
  CHECK(remixdb_sync(m->ref));
  const uint64_t frames = stat_of(m->x, "frames"), records = stat_of(m->x, "records");
  gather_begin(m);
  for (uint32_t i = 0; i < KEYS; i++) gather(m, i, 1500, false);
  write_good(m);
  CHECK(remixdb_sync(m->ref));
  CHECK(stat_of(m->x, "frames") == frames + 1 && stat_of(m->x, "records") == records + KEYS);
  struct frame *const all = calloc(FRAMES, sizeof(*all));
  const uint32_t nr = read_frames(all, FRAMES);
  CHECK(nr == frames + 1 && nr > 30);
  for (uint32_t i = 0; i < BATCHES; i++) {
    uint32_t f = 0;
    while (f < nr && !(all[f].first <= first[i] && last[i] < all[f].first + all[f].count)) f++;
    if (f == nr)
      fail_msg("TEST_SEED=%llu: batch %u, records %llu to %llu, is in no frame", (unsigned long long)check_seed, i,
               (unsigned long long)first[i], (unsigned long long)last[i]);
  }
  free(all);
  CHECK(sees(m, m->ref, m->now));
  model_close(m);
  model_free(m);
}

// ---- failures

static uint64_t sequence_of(struct model *m) { return atomic_load(&m->x->published); }

static void disk_open(struct model *m, struct simdisk *d, const struct remixdb_opts *o) {
  (void)snprintf(dir, sizeof(dir), "/store");
  model_open(m, o, simdisk_env(d));
  shrink(m->x, 400u << 10, 32);
}

// The n-th allocation fails, for every n. The batch makes entries, splits leaves, is larger than a buffer of the log,
// and sometimes finds its memtable full.
static void test_no_memory(void **state) {
  (void)state;
  check_seed = check_seed_or(6);
  struct remixdb_opts o = small_opts(0);
  uint32_t hits = 0, refused = 0;
  for (uint32_t round = 0; round < 4; round++) {
    struct simdisk *const d = simdisk_create();
    simdisk_no_allocate(d, true);
    struct model *const m = model_create();
    m->rng = check_seed * 10 + round;
    disk_open(m, d, &o);
    for (int64_t n = 1, end = 0; !end; n++) {
      gather_begin(m);
      for (uint32_t i = 0; i < KEYS; i++)
        if (round == 0 || chance(&m->rng, round == 1 ? 10 : 50))
          gather(m, i, (uint32_t)below(&m->rng, 900), chance(&m->rng, 10));
      const uint64_t seq = sequence_of(m);
      fault_mem_set(n);
      const bool good = remixdb_write(m->ref, m->batch);
      const bool hit = fault_mem_end();
      m->x->rounds.failed_ns = 0;  // one that failed may be tried again at once
      if (good) {
        memcpy(m->now, m->next, sizeof(m->now));
      } else {
        CHECK(hit && remixdb_errcode() == REMIXDB_NOMEM);
        CHECK(sequence_of(m) == seq);
        refused++;
      }
      if (n % 7 == 0 || !good) CHECK(sees(m, m->ref, m->now));
      char why[256];
      if (!wh_check(atomic_load(&m->x->super)->active->wh, why, sizeof(why)))
        fail_msg("TEST_SEED=%llu: %s", (unsigned long long)check_seed, why);
      hits += hit;
      end = !hit;
    }
    write_good(m);
    CHECK(sees(m, m->ref, m->now));
    model_close(m);
    disk_open(m, d, &o);
    CHECK(sees(m, m->ref, m->now));
    model_close(m);
    model_free(m);
    simdisk_destroy(d);
  }
  print_message("%u allocations failed, %u batches were refused\n", hits, refused);
  CHECK(refused > 20);
}

struct log_fault {
  enum simdisk_call call;
  int errnum;
};

// The n-th call on the log and all later ones fail. True: a batch was refused.
static bool fail_log(const struct log_fault *f, uint64_t n, bool each) {
  struct remixdb_opts o = small_opts(0);
  o.sync = each ? REMIXDB_SYNC_EACH : REMIXDB_SYNC_NONE;
  o.wal_mb = 64;
  struct simdisk *const d = simdisk_create();
  struct model *const m = model_create();
  disk_open(m, d, &o);
  m->x->memtable_limit = 40u << 20;  // only the log can fail
  gather_some(m, 100, 3000, 10);
  write_good(m);
  CHECK(remixdb_sync(m->ref));
  struct step synced[KEYS];
  memcpy(synced, m->now, sizeof(synced));
  simdisk_fault_name(d, "wal");
  simdisk_fault(d, f->call, n, UINT64_MAX, f->errnum);
  bool good = true;
  for (uint32_t i = 0; i < 80 && good; i++) {
    gather_some(m, (uint32_t)below(&m->rng, 200), 3000, 10);
    good = remixdb_write(m->ref, m->batch);
    if (good) memcpy(m->now, m->next, sizeof(m->now));
    if (good && each) memcpy(synced, m->now, sizeof(synced));
  }
  CHECK(good || remixdb_errcode() == (f->errnum == EIO ? REMIXDB_IO : REMIXDB_NOSPACE));
  // all of a batch is there when the memtable has it and its sync failed
  const bool whole = !good && sees(m, m->ref, m->next);
  if (whole) CHECK(each);
  else CHECK(sees(m, m->ref, m->now));
  simdisk_fault(d, f->call, 0, 0, EIO);
  if (f->errnum == ENOSPC) {  // it is not fatal
    write_good(m);
    CHECK(sees(m, m->ref, m->now));
    CHECK(remixdb_sync(m->ref));
  } else if (!good) {
    // a failed wait for room does not tell whether the batch was written
    const bool passes = f->call == SIMDISK_ALLOCATE;
    CHECK(remixdb_write(m->ref, m->batch) == passes && (passes || remixdb_errcode() == REMIXDB_IO));
    if (passes) memcpy(m->now, m->next, sizeof(m->now));
  }
  remixdb_unref(m->ref);
  remixdb_close(m->x);
  disk_open(m, d, &o);
  // unsynced batches may be lost from one on; test_power has the other states
  if (f->errnum == ENOSPC) CHECK(sees(m, m->ref, m->now));
  else if (good || each) CHECK(sees(m, m->ref, m->now) || sees(m, m->ref, m->next) || sees(m, m->ref, synced));
  gather_begin(m);
  for (uint32_t i = 0; i < KEYS; i++) gather(m, i, 10, false);
  write_good(m);
  CHECK(sees(m, m->ref, m->now));
  model_close(m);
  model_free(m);
  simdisk_destroy(d);
  return !good;
}

// A call of the log's file fails, or the disk is full, at every place.
static void test_failing_log(void **state) {
  (void)state;
  check_seed = check_seed_or(7);
  static const struct log_fault faults[] = {{SIMDISK_WRITE, EIO},
                                            {SIMDISK_WRITE, ENOSPC},
                                            {SIMDISK_SYNC, EIO},
                                            {SIMDISK_ALLOCATE, ENOSPC},
                                            {SIMDISK_ALLOCATE, EIO}};
  uint32_t failed = 0;
  for (uint32_t f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
    for (uint64_t n = 0; n < 6; n++)
      for (int each = 0; each < 2; each++) failed += fail_log(&faults[f], n, each);
  }
  print_message("%u batches were refused\n", failed);
  CHECK(failed >= 20);
}

// ---- power cuts

#define STEPS_MAX 200u

struct life {  // every state that was, by the number of batches written
  struct step (*states)[KEYS];
  uint32_t nr, synced;  // states[nr] is the newest; states[0] is empty
};

static bool life_write(struct model *m, struct life *l, bool each) {
  memcpy(l->states[l->nr + 1], m->next, sizeof(m->next));
  if (!remixdb_write(m->ref, m->batch)) return false;
  memcpy(m->now, m->next, sizeof(m->now));
  l->nr++;
  if (each) l->synced = l->nr;
  return true;
}

// The same calls for the same seed, until one fails.
static void life_run(struct model *m, struct life *l, struct simdisk *d, const struct remixdb_opts *o,
                     size_t memtable) {
  const bool each = o->sync == REMIXDB_SYNC_EACH;
  if (xdb_open("/store", o, simdisk_env(d), &m->x) != REMIXDB_OK) {
    m->x = NULL;
    return;
  }
  shrink(m->x, memtable, 16);
  m->ref = remixdb_ref(m->x);
  CHECK(m->ref);
  for (uint32_t i = 0; i < 24; i++) {
    const uint64_t dice = below(&m->rng, 100);
    const uint32_t many = (uint32_t)(memtable >> 8);  // keys of 150 bytes; a large memtable takes batches that are a
                                                      // good part of a buffer of the log
    gather_some(m, 1 + (uint32_t)below(&m->rng, dice < 10 ? many : 30), dice < 10 ? 150 : (uint32_t)(memtable >> 6),
                15);
    if (!life_write(m, l, each)) return;
    if (dice >= 80) {
      const uint32_t nr = l->nr;
      if (!(dice < 90 ? remixdb_sync(m->ref) : xdb_flush(m->x) == REMIXDB_OK)) return;
      l->synced = nr;
    }
  }
}

static void life_check(const struct life *l, struct simdisk *d, const struct remixdb_opts *o, uint64_t cut) {
  struct model *const after = model_create();
  model_open(after, o, simdisk_env(d));
  uint32_t n = l->nr + 1;  // the last one may be there without having been acknowledged
  while (n > l->synced && !sees(after, after->ref, l->states[n])) n--;
  if (!sees(after, after->ref, l->states[n])) {
    uint32_t any = l->nr + 2;
    while (any > 0 && !sees(after, after->ref, l->states[any - 1])) any--;
    fail_msg("TEST_SEED=%llu, cut %llu: %u batches were written and %u synced, and the store holds %s%d",
             (unsigned long long)check_seed, (unsigned long long)cut, l->nr, l->synced,
             any ? "the first " : "part of one ", (int)any - 1);
  }
  // it goes on
  gather_begin(after);
  for (uint32_t i = 0; i < KEYS; i += 3) gather(after, i, 20, i % 2);
  memcpy(after->now, l->states[n], sizeof(after->now));
  for (uint32_t i = 1; i < KEYS; i++)
    if (i % 3) after->next[i] = after->now[i];
  write_good(after);
  CHECK(sees(after, after->ref, after->now));
  model_close(after);
  model_free(after);
}

static void test_power(void **state) {
  (void)state;
  (void)snprintf(dir, sizeof(dir), "/store");
  uint64_t nr_cuts = 0;
  struct life l = {.states = calloc(STEPS_MAX, sizeof(*l.states))};
  CHECK(l.states);
  for (uint32_t run = 0; run < 3; run++) {
    check_seed = check_seed_or(8) + run;
    struct remixdb_opts o = small_opts(0);
    o.cache_mb = 0;
    o.sync = run == 1 ? REMIXDB_SYNC_EACH : REMIXDB_SYNC_NONE;
    uint64_t calls = 0;
    for (uint64_t cut = UINT64_MAX;;) {
      struct simdisk *d = simdisk_create();
      simdisk_no_allocate(d, run != 2);
      simdisk_power_off(d, cut);
      struct model *const m = model_create();
      l.nr = l.synced = 0;
      life_run(m, &l, d, &o, run == 2 ? 1u << 20 : 100u << 10);
      CHECK((l.nr == 24) == !simdisk_is_off(d) || cut != UINT64_MAX);
      if (cut == UINT64_MAX) calls = simdisk_changes(d);
      if (m->x) {
        remixdb_unref(m->ref);
        remixdb_close(m->x);
      }
      for (uint64_t outcome = 0; outcome < 2 && cut != UINT64_MAX; outcome++) {
        struct simdisk *const left = simdisk_crash(d, check_seed * 1000003 + cut * 7 + outcome);
        life_check(&l, left, &o, cut);
        simdisk_destroy(left);
        nr_cuts++;
      }
      model_free(m);
      simdisk_destroy(d);
      cut = cut == UINT64_MAX ? run % SLOW : cut + (run == 2 ? 2 * SLOW : SLOW);
      if (cut >= calls) break;
    }
  }
  free(l.states);
  print_message("%llu power cuts\n", (unsigned long long)nr_cuts);
  CHECK(nr_cuts > 300 / SLOW);
}

// ---- readers while batches are written

#define TEAMS 2u        // writers of batches, each with keys of its own
#define TEAM_KEYS 500u  // all written by each batch, over many leaves and, now and then, more than a buffer of the log

struct team {
  struct xdb *x;
  uint32_t id, rounds;
  _Atomic uint32_t begun, done;
  _Atomic bool *stop;
  struct team *all;
  _Atomic uint64_t *looks;
  uint64_t rng;
};

static uint32_t team_key(uint32_t id, uint32_t i, char buf[64]) {
  return (uint32_t)snprintf(buf, 64, "%05u/%u", i, id);
}

// Every third batch deletes every fifth key.
static bool team_has(uint32_t gen, uint32_t i) { return gen != 0 && !(gen % 3 == 0 && i % 5 == 0); }

static void *team_write(void *arg) {
  struct team *const t = arg;
  struct xdb_ref *const r = remixdb_ref(t->x);
  struct xdb_batch *const b = remixdb_batch_create();
  THREAD_CHECK(r && b);
  static uint8_t value[2000];
  char kbuf[64];
  for (uint32_t gen = 1; gen <= t->rounds; gen++) {
    remixdb_batch_clear(b);
    const uint32_t vlen = gen % 8 == 0 ? 1200 : 30;
    uint8_t mine[2000];
    memcpy(mine, value, vlen);
    store32le(mine, gen);
    for (uint32_t n = 0; n < TEAM_KEYS; n++) {
      const uint32_t i = (uint32_t)((n * 7919ull + gen) % TEAM_KEYS);  // in any order
      if (team_has(gen, i)) THREAD_CHECK(remixdb_batch_put(b, kbuf, team_key(t->id, i, kbuf), mine, vlen));
      else THREAD_CHECK(remixdb_batch_del(b, kbuf, team_key(t->id, i, kbuf)));
    }
    atomic_store(&t->begun, gen);
    THREAD_CHECK(remixdb_write(r, b));
    atomic_store(&t->done, gen);
  }
  remixdb_batch_destroy(b);
  remixdb_unref(r);
  return NULL;
}

// All that is seen of a team at a moment is of one batch, which is not older than one that was done before, nor newer
// than what had begun after.
static void team_scan(struct team *t, struct xdb_iter *it, bool back) {
  uint32_t low[TEAMS], high[TEAMS], gen[TEAMS], nr[TEAMS] = {0};
  for (uint32_t i = 0; i < TEAMS; i++) low[i] = atomic_load(&t->all[i].done);
  if (back) remixdb_iter_seek_last(it);
  else remixdb_iter_seek(it, NULL, 0);
  for (uint32_t i = 0; i < TEAMS; i++) high[i] = atomic_load(&t->all[i].begun);
  for (; remixdb_iter_valid(it); back ? remixdb_iter_prev(it) : remixdb_iter_skip1(it)) {
    uint32_t klen, vlen;
    const char *const key = remixdb_iter_key(it, &klen);
    const void *const val = remixdb_iter_value(it, &vlen);
    THREAD_CHECK(key && val && klen >= 7);
    const uint32_t id = (uint32_t)(key[6] - '0');
    if (id >= TEAMS) continue;  // the single writer's
    if (nr[id]++ == 0) gen[id] = load32le(val);
    THREAD_CHECK(gen[id] == load32le(val));
    THREAD_CHECK(vlen == (gen[id] % 8 == 0 ? 1200 : 30));
  }
  THREAD_CHECK(remixdb_iter_status(it) == REMIXDB_OK);
  for (uint32_t i = 0; i < TEAMS; i++) {
    if (nr[i] == 0) gen[i] = 0;
    uint32_t want = 0;
    for (uint32_t k = 0; k < TEAM_KEYS; k++) want += team_has(gen[i], k);
    THREAD_CHECK(nr[i] == want && gen[i] >= low[i] && gen[i] <= high[i]);
  }
}

static void *team_read(void *arg) {
  struct team *const t = arg;
  struct xdb_ref *const r = remixdb_ref(t->x);
  struct xdb_iter *const it = remixdb_iter_create(r);
  THREAD_CHECK(r && it);
  char kbuf[64];
  uint8_t val[2000];
  uint32_t seen[TEAMS] = {0}, vlen;
  while (!atomic_load(t->stop)) {
    team_scan(t, it, chance(&t->rng, 50));
    // gets: no older batch after a newer one, for any key
    for (uint32_t n = 0; n < 200; n++) {
      const uint32_t id = (uint32_t)below(&t->rng, TEAMS), i = (uint32_t)below(&t->rng, TEAM_KEYS);
      const uint32_t low = atomic_load(&t->all[id].done);
      if (!remixdb_getn(r, kbuf, team_key(id, i, kbuf), val, sizeof(val), &vlen)) {
        THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND && (i % 5 == 0 || seen[id] == 0));
        continue;
      }
      const uint32_t gen = load32le(val);
      THREAD_CHECK(gen >= low && gen >= seen[id] && team_has(gen, i));
      seen[id] = gen;
    }
    struct xdb_snapshot *const s = remixdb_snapshot(r);
    struct xdb_ref *const old = remixdb_snapshot_ref(s);
    THREAD_CHECK(s && old);
    uint32_t gen = 0;
    bool first = false, third = false;  // the missing one tells: no batch of it yet; or one that deletes
    const uint32_t id = (uint32_t)below(&t->rng, TEAMS);
    for (uint32_t n = 0; n < 300; n++) {
      const uint32_t i = (uint32_t)below(&t->rng, TEAM_KEYS);
      if (remixdb_getn(old, kbuf, team_key(id, i, kbuf), val, sizeof(val), &vlen)) {
        if (gen == 0) gen = load32le(val);
        THREAD_CHECK(gen == load32le(val) && team_has(gen, i));
      } else {
        THREAD_CHECK(remixdb_errcode() == REMIXDB_NOTFOUND);
        first |= i % 5 != 0;
        third |= i % 5 == 0;
      }
      THREAD_CHECK(gen == 0 || (!first && (!third || gen % 3 == 0)));
    }
    remixdb_unref(old);
    remixdb_snapshot_release(s);
    atomic_fetch_add(t->looks, 1);
  }
  remixdb_iter_destroy(it);
  remixdb_unref(r);
  return NULL;
}

// Keys between those of the batches, one at a time: the leaves change under the batches.
static void *team_single(void *arg) {
  struct team *const t = arg;
  struct xdb_ref *const r = remixdb_ref(t->x);
  THREAD_CHECK(r);
  char kbuf[64];
  while (!atomic_load(t->stop)) {
    const uint32_t klen = (uint32_t)snprintf(kbuf, sizeof(kbuf), "%05u/9%05u", (uint32_t)below(&t->rng, TEAM_KEYS),
                                             (uint32_t)below(&t->rng, 20));
    if (chance(&t->rng, 30)) THREAD_CHECK(remixdb_del(r, kbuf, klen));
    else THREAD_CHECK(remixdb_put(r, kbuf, klen, kbuf, klen));
    if (chance(&t->rng, 10)) time_sleep_ns(10000);
  }
  remixdb_unref(r);
  return NULL;
}

static void test_readers(void **state) {
  (void)state;
  for (int workers = 0; workers < 3; workers++) {
    check_seed = check_seed_or(20) + (uint64_t)workers;
    struct remixdb_opts o = small_opts(workers);
    struct xdb *const x = remixdb_open_opts(dir, &o);
    CHECK(x);
    _Atomic bool stop = false;
    _Atomic uint64_t looks = 0;
    struct team teams[TEAMS + 3];
    pthread_t threads[TEAMS + 3];
    memset(teams, 0, sizeof(teams));
    for (uint32_t i = 0; i < TEAMS + 3; i++) {
      struct team *const t = &teams[i];
      t->x = x;
      t->id = i;
      t->rounds = 120 / SLOW;
      t->stop = &stop;
      t->all = teams;
      t->looks = &looks;
      t->rng = check_seed + i;
      OK(thread_start(&threads[i], i < TEAMS ? team_write : i == TEAMS ? team_single : team_read, t, "batch"));
    }
    for (uint32_t i = 0; i < TEAMS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    while (atomic_load(&looks) < 10) time_sleep_ns(1000000);
    atomic_store(&stop, true);
    for (uint32_t i = TEAMS; i < TEAMS + 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    char why[256];
    if (!wh_check(atomic_load(&x->super)->active->wh, why, sizeof(why)))
      fail_msg("TEST_SEED=%llu: %s", (unsigned long long)check_seed, why);
    if (SLOW == 1) CHECK(stat_of(x, "rounds") > 3);
    struct xdb_ref *const r = remixdb_ref(x);
    struct xdb_iter *const it = remixdb_iter_create(r);
    team_scan(&teams[0], it, false);
    remixdb_iter_destroy(it);
    remixdb_unref(r);
    remixdb_close(x);
    setup_again();
  }
}

// ---- a memtable is switched between the look at it and the write
//
// A merge's function holds the leaf of a key while another thread writes that key, alone or in a batch, and gets as far
// as that leaf. Then the memtable is frozen and its round ends. The write must end in the memtable that came after.

struct delay {
  struct xdb *x;
  uint32_t how;  // put, delete, batch
  _Atomic bool held, go, coming;
};

static enum remixdb_merge_op delay_fn(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct delay *const d = priv;
  (void)v0, (void)v0len, (void)v1, (void)v1len;
  struct xdb *const x = d->x;
  const struct super *const old = atomic_load(&x->super);
  atomic_store(&d->held, true);
  while (!atomic_load(&d->coming)) time_sleep_ns(100000);
  time_sleep_ns(3000000);  // it waits for the leaf now, most likely
  atomic_store(&d->go, true);
  // this thread's epoch keeps the old view, and with it every later one, where it can be looked at
  while (atomic_load(&x->super) == old || atomic_load(&x->super)->frozen) time_sleep_ns(100000);
  return REMIXDB_MERGE_KEEP;
}

static void *delay_flush(void *arg) {
  struct delay *const d = arg;
  struct xdb_ref *const r = remixdb_ref(d->x);
  THREAD_CHECK(r);
  while (!atomic_load(&d->go)) time_sleep_ns(100000);
  THREAD_CHECK(remixdb_flush(r));
  remixdb_unref(r);
  return NULL;
}

static void *delay_write(void *arg) {
  struct delay *const d = arg;
  struct xdb_ref *const r = remixdb_ref(d->x);
  struct xdb_batch *const b = remixdb_batch_create();
  THREAD_CHECK(r && b);
  THREAD_CHECK(remixdb_batch_put(b, "a", 1, "new", 3) && remixdb_batch_put(b, "k", 1, "new", 3) &&
               remixdb_batch_put(b, "z", 1, "new", 3));
  while (!atomic_load(&d->held)) time_sleep_ns(100000);
  atomic_store(&d->coming, true);
  THREAD_CHECK(d->how == 0   ? remixdb_put(r, "k", 1, "new", 3)
               : d->how == 1 ? remixdb_del(r, "k", 1)
                             : remixdb_write(r, b));
  remixdb_batch_destroy(b);
  remixdb_unref(r);
  return NULL;
}

static bool text_is(struct xdb_ref *r, const char *key, const char *text) {
  char got[16];
  uint32_t len = 0;
  if (!remixdb_getn(r, key, 1, got, sizeof(got), &len)) return text == NULL;
  return text && len == strlen(text) && memcmp(got, text, len) == 0;
}

static void test_switched(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 12; i++) {
    const struct remixdb_opts o = small_opts((int)(i / 3 % 2));
    struct xdb *x = quick_open(&o);
    struct xdb_ref *r = remixdb_ref(x);
    CHECK(r && remixdb_put(r, "k", 1, "old", 3) && remixdb_put(r, "z", 1, "old", 3));
    struct delay d = {.x = x, .how = i % 3};
    pthread_t t[2];
    OK(thread_start(&t[0], delay_flush, &d, "flush"));
    OK(thread_start(&t[1], delay_write, &d, "write"));
    CHECK(remixdb_merge(r, "k", 1, delay_fn, &d));
    CHECK(pthread_join(t[0], NULL) == 0 && pthread_join(t[1], NULL) == 0);
    for (int again = 0; again < 3; again++) {
      const bool batch = i % 3 == 2;
      CHECK(text_is(r, "k", i % 3 == 1 ? NULL : "new") && text_is(r, "a", batch ? "new" : NULL) &&
            text_is(r, "z", batch ? "new" : "old"));
      if (again == 0) CHECK(remixdb_flush(r));
      if (again != 1) continue;
      remixdb_unref(r);
      remixdb_close(x);
      x = quick_open(&o);
      r = remixdb_ref(x);
      CHECK(r);
    }
    remixdb_unref(r);
    remixdb_close(x);
    setup_again();
  }
}

// An argument names the tests to run, as in "test_p*".
int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sorted),
      cmocka_unit_test(test_sorted_no_memory),
      cmocka_unit_test_setup_teardown(test_content, setup, teardown),
      cmocka_unit_test_setup_teardown(test_empty, setup, teardown),
      cmocka_unit_test_setup_teardown(test_sizes, setup, teardown),
      cmocka_unit_test_setup_teardown(test_one_frame, setup, teardown),
      cmocka_unit_test(test_no_memory),
      cmocka_unit_test(test_failing_log),
      cmocka_unit_test(test_power),
      cmocka_unit_test_setup_teardown(test_switched, setup, teardown),
      cmocka_unit_test_setup_teardown(test_readers, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

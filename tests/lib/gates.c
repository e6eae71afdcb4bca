// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/gates.h"

struct xdb *x;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t allowed;            // rounds; guarded by lock
static uint64_t held;               // the round that is held up; guarded by lock
static enum gate hold_at, held_at;  // guarded by lock

_Atomic enum gate fail_at;
_Atomic int fail_with;
_Atomic uint64_t hold_end;
_Atomic bool at_end;
_Atomic uint32_t removed;
_Atomic bool hold_remover;
static pthread_t remover;  // the thread that removed the last table; guarded by lock

uint32_t newest[KEYS];
uint32_t value_len;
static uint32_t next_number;

// ---- gates

uint64_t frozen(void) {
  pthread_mutex_lock(&x->lock);
  const uint64_t nr = x->rounds.nr_frozen;
  pthread_mutex_unlock(&x->lock);
  return nr;
}

static bool scan_merging(void) {
  if (!x) return false;
  pthread_mutex_lock(&x->lock);
  const bool now = x->rounds.at == XDB_AT_SCANS;
  pthread_mutex_unlock(&x->lock);
  return now;
}

bool scan_merge_begun(void) {
  pthread_mutex_lock(&x->lock);
  const bool any = atomic_load(&x->scan_merges.due) || x->rounds.at == XDB_AT_SCANS;
  pthread_mutex_unlock(&x->lock);
  return any || stat_of(x, "scan_merges") != 0;
}

// A scan merge comes to the gate. Returns 0, or the negative error that it fails with.
static int gate_pass(enum gate at) {
  pthread_mutex_lock(&lock);
  while (hold_at == at) {
    held_at = at;
    pthread_cond_broadcast(&changed);
    pthread_cond_wait(&changed, &lock);
  }
  pthread_mutex_unlock(&lock);
  return atomic_load(&fail_at) == at ? -atomic_load(&fail_with) : 0;
}

static int gate_rename(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  (void)e;
  const int bad = ends_with(to, FILES_CURRENT) && scan_merging() ? gate_pass(GATE_CURRENT) : 0;
  return bad ? bad : env_posix()->ops->rename(env_posix(), from_at, from, to_at, to);
}

static int gate_open(struct env *e, int at, const char *path, unsigned flags) {
  (void)e;
  const bool table = ends_with(path, ".sst") || ends_with(path, ".pack");
  // the store's lock is held while a file of the log is made, so scan_merging must not ask then
  if (flags & ENV_CREATE && (table || ends_with(path, ".remix")) && scan_merging()) {
    const int bad = gate_pass(table ? GATE_TABLE : GATE_REMIX);
    if (bad) return bad;
  } else if (flags & ENV_CREATE && table) {
    const uint64_t nr = frozen();
    pthread_mutex_lock(&lock);
    while (nr > allowed) {
      held = nr;
      pthread_cond_broadcast(&changed);
      pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
  }
  return env_posix()->ops->open(env_posix(), at, path, flags);
}

static int gate_unlink(struct env *e, int at, const char *path) {
  (void)e;
  if (ends_with(path, ".sst") || ends_with(path, ".pack")) {
    pthread_mutex_lock(&lock);
    remover = pthread_self();
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&removed, 1);
    while (atomic_load(&hold_remover)) time_sleep_ns(100000);
  }
  return env_posix()->ops->unlink(env_posix(), at, path);
}

bool i_removed(void) {
  pthread_mutex_lock(&lock);
  const bool mine = pthread_equal(remover, pthread_self());
  pthread_mutex_unlock(&lock);
  return mine;
}

void allow(uint64_t rounds) {
  pthread_mutex_lock(&lock);
  allowed = rounds;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

void wait_held(uint64_t round) {
  pthread_mutex_lock(&lock);
  while (held < round) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

void hold(enum gate at) {
  pthread_mutex_lock(&lock);
  hold_at = at;
  held_at = GATE_NONE;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

void wait_held_at(enum gate at) {
  pthread_mutex_lock(&lock);
  while (held_at != at) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void see_line(void *arg, const char *line) {
  (void)arg;
  const uint64_t nr = atomic_load(&hold_end);
  if (nr == 0 || strstr(line, "compaction: ") == NULL) return;
  pthread_mutex_lock(&x->lock);
  const bool mine = x->rounds.nr_installed == nr;
  pthread_mutex_unlock(&x->lock);
  if (!mine) return;
  for (atomic_store(&at_end, true); atomic_load(&hold_end);) time_sleep_ns(100000);
}

// ---- the store

void begin_with(int workers, size_t memtable, uint32_t table_pages) {
  static struct env_ops ops;
  static struct env env;
  ops = *quick_env()->ops;
  ops.open = gate_open;
  ops.rename = gate_rename;
  ops.unlink = gate_unlink;
  env = (struct env){.ops = &ops};
  struct remixdb_opts o = small_opts(workers);
  o.logger = see_line;
  held = 0;
  hold(GATE_NONE);
  atomic_store(&fail_at, GATE_NONE);
  x = NULL;
  OK(xdb_open(dir, &o, &env, &x));
  shrink(x, memtable, table_pages);
  x->compact.young_from = 0;  // all that is written comes into the one view that gets the debt of scans
}

void end(void) {
  allow(UINT64_MAX);
  OK(xdb_close(x));
}

void idle(void) {
  for (bool busy = true; busy;) {
    OK(xdb_wait_idle(x));
    pthread_mutex_lock(&x->lock);
    busy = x->rounds.at != XDB_AT_REST || atomic_load(&x->scan_merges.due) ||
           x->rounds.nr_installed != x->rounds.nr_frozen;  // and the log is as it stays
    pthread_mutex_unlock(&x->lock);
    if (busy) time_sleep_ns(100000);
  }
}

void limit(size_t memtable) {
  pthread_mutex_lock(&x->lock);
  x->memtable_limit = memtable;
  pthread_mutex_unlock(&x->lock);
}

// ---- a store for scan merges

struct kref key_of(uint32_t key, uint8_t buf[8]) {
  for (uint32_t i = 0; i < 8; i++) buf[i] = (uint8_t)('0' + (key >> (3 * (7 - i)) & 7));
  return kref(buf, 8);
}

void value_of(uint32_t key, uint32_t number, uint8_t *val) {
  memset(val, (int)(number % 251), value_len);
  store32le(val, key);
  store32le(val + 4, number);
}

void write_key(struct xdb_ref *r, uint32_t key, bool del) {
  uint8_t kbuf[8], val[LARGE];
  newest[key] = del ? 0 : ++next_number;
  if (!del) value_of(key, newest[key], val);
  OK(xdb_put(r, KV_REC(key_of(key, kbuf), val, del ? 0 : value_len, del)));
}

static void check_value(uint32_t key, uint32_t number, const void *val, uint32_t len) {
  uint8_t want[LARGE];
  CHECK(number != 0 && len == value_len);
  value_of(key, number, want);
  CHECK(memcmp(want, val, len) == 0);
}

void check_rest(struct xdb_iter *it, uint32_t from, const uint32_t *want) {
  uint8_t kbuf[8];
  for (uint32_t k = from; k < KEYS; k++) {
    struct kv_rec rec;
    if (want[k] == 0) continue;
    OK(xdb_iter_record(it, &rec));
    CHECK(kv_eq(key_of(k, kbuf), kref(rec.key, rec.klen)));
    check_value(k, want[k], rec.val, rec.vlen);
    OK(xdb_iter_skip(it, 1));
  }
  CHECK(!xdb_iter_valid(it));
}

void check_all(struct xdb_ref *r, const uint32_t *want) {
  uint8_t kbuf[8], val[LARGE];
  struct xdb_iter *it;
  OK(xdb_iter_create(r, &it));
  OK(xdb_iter_seek(it, kref("", 0)));
  check_rest(it, 0, want);
  xdb_iter_destroy(it);
  for (uint32_t k = 0; k < KEYS; k++) {
    uint32_t len;
    const enum remixdb_status s = xdb_get(r, key_of(k, kbuf), val, sizeof(val), &len);
    CHECK(s == (want[k] ? REMIXDB_OK : REMIXDB_NOTFOUND));
    if (want[k]) check_value(k, want[k], val, len);
  }
}

uint32_t runs_of(const struct version *v) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) nr += v->parts[i]->remix ? v->parts[i]->remix->nr_runs : 0;
  return nr;
}

uint32_t runs(struct xdb_ref *r) {
  epoch_enter(&x->epoch, &r->slot);
  const uint32_t nr = runs_of(xdb_super(x)->version);
  epoch_exit(&r->slot);
  return nr;
}

// Counts the tables of a pack. 0: no table and no REMIX is in it.
static uint32_t tables_in(const struct version *v, uint64_t pack, bool *any) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    struct part_files f;
    part_files(v->parts[i], &f);
    for (uint32_t t = 0; t < f.nr; t++) nr += f.tables[t].part && f.tables[t].part->pack->number == pack;
    *any = *any || (f.remix.part && f.remix.part->pack->number == pack);
  }
  *any = *any || nr;
  return nr;
}

static bool names(const struct version *v, const char *name) {
  char buf[32];
  for (uint32_t i = 0; i < v->nr_parts; i++) {
    const struct remix *p = v->parts[i]->remix;
    if (!p) continue;
    remix_name(buf, p->number);
    if (strcmp(buf, name) == 0) return true;
    for (uint32_t t = 0; t < p->nr_runs; t++) {
      sst_name(buf, p->runs[t]->number);
      if (strcmp(buf, name) == 0) return true;
    }
  }
  return false;
}

void check_files(const struct files_entry *list, size_t nr) {
  const struct version *v = xdb_super(x)->version;
  uint32_t tables = 0;
  for (size_t i = 0; i < nr; i++) {
    const bool table = ends_with(list[i].name, ".sst");
    bool any = false;
    if (list[i].kind == FILES_IS_PACK) {
      tables += tables_in(v, list[i].number, &any);
      if (!any) fail_msg("%s is left", list[i].name);
    }
    tables += table;
    if ((table || ends_with(list[i].name, ".remix")) && !names(v, list[i].name)) fail_msg("%s is left", list[i].name);
  }
  CHECK(tables == runs_of(v));
}

struct xdb_ref *load(int workers, uint32_t len) {
  struct xdb_ref *r;
  allow(UINT64_MAX);
  value_len = len;
  next_number = 0;
  memset(newest, 0, sizeof(newest));
  begin_with(workers, 4 * ROOM, PAGES);
  OK(xdb_ref(x, &r));
  for (uint32_t l = 0; l < LEVELS; l++) {
    for (uint32_t k = l; k < KEYS; k += LEVELS) write_key(r, k, false);
    for (uint32_t k = l; l && k < KEYS; k += 97) write_key(r, k, k % 2);
    OK(xdb_flush(x));
  }
  idle();
  CHECK(runs(r) >= LEVELS);
  CHECK(stat_of(x, "scan_merges") == 0);
  limit(ROOM);
  x->compact.memtable_size = ROOM;
  return r;
}

void reopen(struct xdb_ref *r) {
  struct files_entry *list;
  size_t nr;
  xdb_unref(r);
  end();
  OK(paths_files(env_posix(), dir, &list, &nr));
  begin_with(0, ROOM, PAGES);
  check_files(list, nr);
  mem_free(list);
  OK(xdb_ref(x, &r));
  check_all(r, newest);
  xdb_unref(r);
  OK(xdb_close(x));
}

void wear(struct xdb_ref *r) {
  epoch_enter(&x->epoch, &r->slot);
  const struct version *v = xdb_super(x)->version;
  for (uint32_t i = 0; i < v->nr_parts; i++)
    if (v->parts[i]->remix) remix_add_debt(v->parts[i]->remix, UINT32_MAX);
  epoch_exit(&r->slot);
}

void freeze(struct xdb_ref *r) {
  const uint64_t nr = frozen();
  for (uint32_t i = 0; frozen() == nr; i++) write_key(r, i * 3 % KEYS, i % 5 == 0);
}

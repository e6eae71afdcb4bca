// SPDX-License-Identifier: Apache-2.0
#include "store/reserve.h"

#define RESERVE_PART 16u  // at least 1/16 of the tables
#define RESERVE_MIN ((uint64_t)32 << 10)
#define RESERVE_MAX ((uint64_t)64 << 20)
#define ALLOC_UNIT ((uint64_t)4096)          // a file system gives room in
#define RESERVE_AGAIN ((uint64_t)512 << 10)  // bytes of value files; less growth is not worth another size
#define SCARCE_PART 4u                       // the store is scarce if the file lacks more than 1/4
#define RESERVE_STEPS 32u                    // sizes between a power of two and the next,
#define RESERVE_FINE ((uint64_t)1 << 20)     // from here on

void reserve_init(struct xdb *x) { pthread_mutex_init(&x->reserve.lock, NULL); }
void reserve_fini(struct xdb *x) { pthread_mutex_destroy(&x->reserve.lock); }

// The size for so many bytes of files.
static uint64_t size_for(const struct xdb *x, uint64_t bytes) {
  const uint64_t memtable = xdb_memtable_limit(x), most = memtable > RESERVE_MAX ? memtable : RESERVE_MAX;
  const uint64_t part = bytes / RESERVE_PART;
  uint64_t want = RESERVE_MIN;
  while (want < most && want < part) want *= 2;
  // A small store is a single partition, and its merge may need all of this.
  if (want > RESERVE_FINE) want = align_up(part, want / 2 / RESERVE_STEPS);
  return bytes == 0 ? 0 : want < most ? want : most;
}

// reserve.lock is held.
static void measure(struct xdb *x) {
  struct xdb_reserve *const r = &x->reserve;
  const uint64_t room = atomic_load_explicit(&x->value_ctx.room, memory_order_relaxed);
  r->want = size_for(x, r->tables + (room > r->named ? room : r->named));
  r->for_tables = size_for(x, r->tables);
  atomic_store_explicit(&r->again, room + (room / 2 > RESERVE_AGAIN ? room / 2 : RESERVE_AGAIN), memory_order_relaxed);
}

void reserve_measure(struct xdb *x, const struct version *v, uint64_t logged) {
  struct xdb_reserve *const r = &x->reserve;
  uint64_t named = 0;
  for (uint32_t i = 0; i < v->values.nr; i++) named += value_file_size(v->values.files[i]);
  pthread_mutex_lock(&r->lock);
  r->tables = logged * RESERVE_PART + version_table_bytes(v);
  r->named = named;
  measure(x);
  pthread_mutex_unlock(&r->lock);
}

void reserve_grow(struct xdb *x) {
  pthread_mutex_lock(&x->reserve.lock);
  measure(x);
  pthread_mutex_unlock(&x->reserve.lock);
  (void)reserve_keep(x);
}

// Returns whether the state has changed, for `tell`. reserve.lock is held.
static bool set_scarce(struct xdb *x, bool scarce) {
  if (scarce == x->reserve.scarce) return false;
  x->reserve.scarce = scarce;
  if (x->wal) wal_scarce(x->wal, scarce);
  return true;
}

// Outside of any lock, because the logger is the user's function.
static void tell(struct xdb *x, bool scarce) {
  xdb_say(x,
          scarce ? "%s: the disk is full: until room is freed only deletes are taken"
                 : "%s: there is room on disk again",
          x->dir);
}

// Makes the file `want` bytes large. On a full disk the file takes the room that there is, and the call fails with
// REMIXDB_NOSPACE. *size_out: the file's size afterwards. A failed allocation may have taken room; the call gives that
// room back.
static enum remixdb_status grow(struct xdb *x, int fd, uint64_t want, uint64_t *size_out) {
  enum remixdb_status s = env_size(x->env, fd, FILES_RESERVE, size_out);
  if (s == REMIXDB_OK && *size_out > want && (s = env_truncate(x->env, fd, FILES_RESERVE, want)) == REMIXDB_OK)
    *size_out = want;
  const uint64_t was = *size_out;
  bool full = false;
  for (uint64_t to = want; s == REMIXDB_OK && to >= RESERVE_MIN && to > was; to /= 2) {
    s = env_allocate(x->env, fd, FILES_RESERVE, was, to - was);
    if (s == REMIXDB_OK) break;
    full = s == REMIXDB_NOSPACE;
    if (full) s = env_truncate(x->env, fd, FILES_RESERVE, was);
  }
  if (s == REMIXDB_OK) s = env_size(x->env, fd, FILES_RESERVE, size_out);
  if (s != REMIXDB_OK) return s;
  x->reserve.off = !full &&
                   *size_out < want;  // if the system cannot reserve room, allocation succeeds and has no effect
  return full ? REMIXDB_NOSPACE : s;
}

// *free_out: the store may cut or remove the file with the name RESERVE. It must not if that is not a regular file, or
// is a file with content, because it then belongs to another program. A file with a second name only loses the name
// RESERVE.
static enum remixdb_status make_free(struct xdb *x, bool *free_out) {
  struct env_stat st;
  uint8_t first[512];
  size_t nr = 0;
  int fd;
  enum remixdb_status s = env_stat(&x->home, FILES_RESERVE, &st);
  *free_out = s == REMIXDB_NOTFOUND;
  if (s != REMIXDB_OK || !st.is_file) return *free_out ? REMIXDB_OK : s;
  if ((s = env_open(&x->home, FILES_RESERVE, ENV_READ, &fd)) != REMIXDB_OK)
    return s == REMIXDB_NOTFOUND ? REMIXDB_OK : s;
  s = env_read_upto(x->env, fd, FILES_RESERVE, first, sizeof(first), 0, &nr);
  env_close_quiet(x->env, fd);
  *free_out = s == REMIXDB_OK;
  for (size_t i = 0; i < nr; i++) *free_out = *free_out && first[i] == 0;
  return s == REMIXDB_OK && *free_out && st.links > 1 ? env_unlink(&x->home, FILES_RESERVE) : s;
}

// Like grow, but removes a file that would be empty. Another program's file stays, and then nothing is reserved.
static enum remixdb_status resize(struct xdb *x, uint64_t want, uint64_t *size_out) {
  bool may;
  int fd;
  *size_out = 0;
  enum remixdb_status s = make_free(x, &may);
  if (s == REMIXDB_OK && !may) x->reserve.off = true;
  if (s != REMIXDB_OK || !may) return s;
  if (want == 0) return env_unlink(&x->home, FILES_RESERVE);
  s = env_open(&x->home, FILES_RESERVE, ENV_READ | ENV_WRITE | ENV_CREATE, &fd);
  if (s != REMIXDB_OK) return s;
  s = grow(x, fd, want, size_out);
  env_close_quiet(x->env, fd);
  if (*size_out) return s;
  if (s == REMIXDB_OK) return env_unlink(&x->home, FILES_RESERVE);
  IGNORED(env_unlink(&x->home, FILES_RESERVE), "an empty file takes no room");
  return s;
}

bool reserve_keep(struct xdb *x) {
  struct xdb_reserve *const r = &x->reserve;
  if (x->opts.read_only) return true;
  enum remixdb_status s = REMIXDB_OK;
  pthread_mutex_lock(&r->lock);
  if (r->size != r->want && !r->off) {
    s = resize(x, r->want, &r->size);
  }
  const bool scarce = s == REMIXDB_NOSPACE && r->size < r->want - r->want / SCARCE_PART, news = set_scarce(x, scarce);
  pthread_mutex_unlock(&r->lock);
  if (s != REMIXDB_OK && s != REMIXDB_NOSPACE) xdb_say(x, "%s: no room is reserved: %s", x->dir, err_msg());
  if (news) tell(x, scarce);
  return !scarce;
}

uint64_t reserve_bytes(struct xdb *x) {
  pthread_mutex_lock(&x->reserve.lock);
  const uint64_t bytes = x->reserve.size;
  pthread_mutex_unlock(&x->reserve.lock);
  return bytes;
}

bool reserve_scarce(struct xdb *x) {
  pthread_mutex_lock(&x->reserve.lock);
  const bool scarce = x->reserve.scarce;
  pthread_mutex_unlock(&x->reserve.lock);
  return scarce;
}

bool reserve_back(struct xdb *x) { return reserve_scarce(x) && reserve_keep(x); }

uint64_t reserve_for_tables(struct xdb *x) {
  pthread_mutex_lock(&x->reserve.lock);
  const struct xdb_reserve *const r = &x->reserve;
  const uint64_t bytes = r->size < r->for_tables ? r->size : r->for_tables;
  pthread_mutex_unlock(&x->reserve.lock);
  return bytes;
}

// The room that the next CURRENT takes: it may be larger than the one that there is.
static uint64_t current_room(struct xdb *x) {
  struct env_stat st;
  const uint64_t size = env_stat(&x->home, FILES_CURRENT, &st) == REMIXDB_OK ? st.size : RESERVE_MIN / 4;
  return align_up(2 * size, ALLOC_UNIT) + 2 * ALLOC_UNIT;
}

// current: leaves room for CURRENT.
static bool spend(struct xdb *x, bool current) {
  struct xdb_reserve *const r = &x->reserve;
  enum remixdb_status s = REMIXDB_NOTFOUND;
  pthread_mutex_lock(&r->lock);
  const uint64_t rest = current ? current_room(x) : 0;
  if (r->size > rest) s = rest ? resize(x, rest, &r->size) : env_unlink(&x->home, FILES_RESERVE);
  const bool any = s == REMIXDB_OK;
  if (any) r->size = rest;
  const bool news = any && set_scarce(x, true);
  pthread_mutex_unlock(&r->lock);
  if (news) tell(x, true);
  return any;
}

bool reserve_spend(struct xdb *x) { return spend(x, false); }
bool reserve_spend_work(struct xdb *x) { return spend(x, true); }

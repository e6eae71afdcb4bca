// SPDX-License-Identifier: Apache-2.0
//
// The public face: argument checks and statuses, nothing else.
#include "remixdb.h"

#include "admin/checkpoint.h"
#include "admin/destroy.h"
#include "admin/repair.h"
#include "admin/verify.h"
#include "store/whole.h"
#include "xdb.h"
#include "store/async.h"
#include "store/flush.h"
#include "store/page.h"
#include "store/ranges.h"
#include "store/pin.h"
#include "store/refpool.h"
#include "store/count.h"
#include "store/ingest.h"
#include "store/snapshot.h"
#include "store/space_ref.h"
#include "admin/stats.h"
#include "store/settings.h"
#include "store/syncer.h"
#include "store/txn.h"

#define PUBLIC __attribute__((visibility("default")))

// Sets the thread's status. Returns whether it is REMIXDB_OK.
static inline bool done(enum remixdb_status s) {
  if (likely(s == REMIXDB_OK)) {
    err_finish_ok();
    return true;
  }
  err_finish(s);
  return false;
}

// Ends a call on a ref that has failed. ref may be NULL.
static __attribute__((noinline)) bool failed_on(struct xdb_ref *ref, enum remixdb_status s) {
  err_finish(s);
  if (ref) err_keep(&ref->told, ref->told_msg);
  return false;
}

// Like `done`, for a call on a ref: the ref keeps the status, too. ref may be NULL if the call has failed.
static inline bool done_on(struct xdb_ref *ref, enum remixdb_status s) {
  if (likely(s == REMIXDB_OK)) {
    err_finish_ok();
    ref->told = ERR_STATE_OK;
    return true;
  }
  if (unlikely(s != REMIXDB_NOTFOUND || !ref)) return failed_on(ref, s);
  err_finish_none();
  ref->told = ERR_STATE_NOTFOUND;
  return false;
}
// The same for a call on an iterator. it may be NULL if the call has failed.
static inline bool done_at(const struct xdb_iter *it, enum remixdb_status s) { return done_on(it ? it->ref : NULL, s); }
static inline bool done_get(const struct xdb_gets *gets, enum remixdb_status s) {
  return done_on(gets ? xdb_gets_ref(gets) : NULL, s);
}
// A step or a peek has succeeded.
static inline void stepped(const struct xdb_iter *it) {
  err_finish_ok();
  it->ref->told = ERR_STATE_OK;
}

static enum remixdb_status null_argument(const char *what) { return err_set(REMIXDB_INVALID, "%s is NULL", what); }

// A store belongs to the process that opened it. A child made by fork does nothing with it and frees nothing of it: the
// threads that hold its locks are not there, and the parent writes what is in memory.
static __attribute__((noinline)) enum remixdb_status check_process(const struct xdb *x) {
  return xdb_is_anothers(x)
             ? err_set(REMIXDB_INVALID,
                       "the store belongs to the process that opened it, and this is a child made by fork")
             : REMIXDB_OK;
}

static inline enum remixdb_status check_store(const struct xdb *xdb) {
  if (unlikely(!xdb)) return null_argument("xdb");
  return unlikely(fork_now() != 0) ? check_process(xdb) : REMIXDB_OK;
}
static inline enum remixdb_status check_ref(const struct xdb_ref *ref) {
  if (unlikely(!ref)) return null_argument("ref");
  return unlikely(fork_now() != 0) ? check_process(ref->xdb) : REMIXDB_OK;
}
static inline enum remixdb_status check_iter(const struct xdb_iter *it) {
  if (unlikely(!it)) return null_argument("it");
  return unlikely(fork_now() != 0) ? check_process(it->ref->xdb) : REMIXDB_OK;
}
static enum remixdb_status check_gets(const struct xdb_gets *gets) {
  return gets ? check_store(xdb_gets_ref(gets)->xdb) : null_argument("gets");
}
static inline enum remixdb_status check_snapshot(const struct xdb_snapshot *snap) {
  if (unlikely(!snap)) return null_argument("s");
  return unlikely(fork_now() != 0) ? check_process(snap->xdb) : REMIXDB_OK;
}
static enum remixdb_status check_txn(const struct xdb_txn *txn) {
  return txn ? check_store(txn->xdb) : null_argument("txn");
}
// For calls that a transaction's ref does not have.
static enum remixdb_status check_plain_ref(const struct xdb_ref *ref) {
  const enum remixdb_status s = check_ref(ref);
  return s == REMIXDB_OK && ref->txn ? err_set(REMIXDB_INVALID, "a ref of a transaction does not have this call") : s;
}
static inline enum remixdb_status check_space(const struct xdb_space *space) {
  if (unlikely(!space)) return null_argument("space");
  return unlikely(fork_now() != 0) ? check_process(space->xdb) : REMIXDB_OK;
}
// Whether a call that sets no status when it succeeds may go on.
static inline bool may_go_on(enum remixdb_status s) { return likely(s == REMIXDB_OK) || done(s); }

static enum remixdb_status check_dir(const char *dir) {
  if (!dir) return null_argument("dir");
  return dir[0] ? REMIXDB_OK : err_set(REMIXDB_INVALID, "dir is empty: the name of a directory is needed");
}

static enum remixdb_status check_lengths(const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen) {
  if (unlikely(!kbuf && klen)) return null_argument("the key");
  if (unlikely(klen > REMIXDB_KV_MAX))
    return err_set(REMIXDB_TOOBIG, "a key of %u bytes is too long: it may have %u", klen, REMIXDB_KV_MAX);
  return unlikely(!vbuf && vlen) ? null_argument("the value") : REMIXDB_OK;
}

// Finds the failure. There is none in a child that uses a store which the child has opened.
static __attribute__((noinline)) enum remixdb_status check_kv_slow(const struct xdb_ref *ref, const void *kbuf,
                                                                   uint32_t klen, const void *vbuf, uint32_t vlen) {
  const enum remixdb_status s = check_ref(ref);
  return s == REMIXDB_OK ? check_lengths(kbuf, klen, vbuf, vlen) : s;
}

// Inline, because every get and put passes it.
static inline enum remixdb_status check_kv(const struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf,
                                           uint32_t vlen) {
  const bool usual = ref && fork_now() == 0 && (kbuf || !klen) && (vbuf || !vlen) && klen <= REMIXDB_KV_MAX;
  return likely(usual) ? REMIXDB_OK : check_kv_slow(ref, kbuf, klen, vbuf, vlen);
}

static inline enum remixdb_status check_key(const struct xdb_ref *ref, const void *kbuf, uint32_t klen) {
  return check_kv(ref, kbuf, klen, NULL, 0);
}

// ---- errors and versions

PUBLIC enum remixdb_status remixdb_errcode(void) { return err_code(); }
PUBLIC const char *remixdb_errmsg(void) { return err_msg(); }
PUBLIC enum remixdb_status remixdb_ref_errcode(const struct xdb_ref *ref) {
  return ref ? (enum remixdb_status)ref->told.code : REMIXDB_INVALID;
}
PUBLIC const char *remixdb_ref_errmsg(const struct xdb_ref *ref) {
  if (!ref) return "ref is NULL";
  return ref->told.has_msg ? ref->told_msg : "";
}
PUBLIC const char *remixdb_version(void) { return REMIXDB_VERSION_STRING; }

PUBLIC const char *remixdb_strerror(enum remixdb_status s) {
  static const char *const names[] = {
      [REMIXDB_OK] = "ok",
      [REMIXDB_NOTFOUND] = "not found",
      [REMIXDB_INVALID] = "invalid argument",
      [REMIXDB_TOOBIG] = "too big",
      [REMIXDB_NOMEM] = "out of memory or file descriptors",
      [REMIXDB_IO] = "a system call failed",
      [REMIXDB_NOSPACE] = "no space on the disk",
      [REMIXDB_CORRUPT] = "corrupt file",
      [REMIXDB_LOCKED] = "the store is in use",
      [REMIXDB_READONLY] = "read only",
      [REMIXDB_VERSION] = "unknown format version",
      [REMIXDB_EXISTS] = "the store exists",
      [REMIXDB_ABORTED] = "aborted",
      [REMIXDB_GONE] = "the space is dropped",
  };
  return (unsigned)s < sizeof(names) / sizeof(names[0]) ? names[s] : "unknown status";
}

// ---- opening

static const struct remixdb_opts default_opts = {
    .size = sizeof(struct remixdb_opts),
    .cache_mb = REMIXDB_AUTO,
    .ckeys = true,
    .tags = true,
    .workers = -1,
    .worker_cores = "auto",
    .io = "auto",
    .sync = REMIXDB_SYNC_NONE,
    .create = true,
    .max_open_files = 1000,
};

// A struct of this size has the field memory_mb. Programs that were built before it existed keep their meaning of
// cache_mb and memtable_mb.
static inline bool has_memory(size_t size) {
  return size >= offsetof(struct remixdb_opts, memory_mb) + sizeof(((struct remixdb_opts *)NULL)->memory_mb);
}
#define CACHE_MB_BEFORE 256u
#define MEMTABLE_MB_BEFORE 256u

PUBLIC void remixdb_opts_init(struct remixdb_opts *o, size_t size) {
  if (!o || size < sizeof(o->size)) return;
  struct remixdb_opts mine = default_opts;
  if (!has_memory(size)) {
    mine.cache_mb = CACHE_MB_BEFORE;
    mine.memtable_mb = MEMTABLE_MB_BEFORE;
  }
  memset(o, 0, size);
  memcpy(o, &mine, size < sizeof(mine) ? size : sizeof(mine));
  o->size = size;
}

// The opening has failed. Where CURRENT is another program's, and no file proves that there is a store, the message
// says so at its end, which a long message keeps, and where no path can say the same. Keeps the status.
static enum remixdb_status foreign_or(enum remixdb_status s, const char *dir) {
  struct err_saved why;
  err_save(&why, s);
  if (!destroy_finds_none(env_posix(), dir)) return err_raise(&why);
  return err_set(s, "%s; there is no store of RemixDB, but another program's files", why.msg);
}

static struct xdb *open_store(const char *dir, const struct remixdb_opts *o) {
  struct xdb *x = NULL;
  enum remixdb_status s = check_dir(dir);
  if (s == REMIXDB_OK) s = xdb_open(dir, o, env_posix(), &x);
  if (s == REMIXDB_CORRUPT) s = foreign_or(s, dir);
  done(s);
  // For a key this status is an answer and has no message. For a store it is a failure like others.
  if (s == REMIXDB_NOTFOUND) (void)err_set(s, "%s: there is no store", dir);
  return x;
}

PUBLIC struct xdb *remixdb_open_opts(const char *dir, const struct remixdb_opts *o) {
  struct remixdb_opts mine = default_opts;
  if (o) {
    if (o->size < sizeof(o->size)) {
      done(err_set(REMIXDB_INVALID, "the options have size %zu: call remixdb_opts_init first", o->size));
      return NULL;
    }
    if (!has_memory(o->size)) mine.cache_mb = CACHE_MB_BEFORE;
    memcpy(&mine, o, o->size < sizeof(mine) ? o->size : sizeof(mine));
    if (!has_memory(o->size) && mine.memtable_mb == 0) mine.memtable_mb = MEMTABLE_MB_BEFORE;
    mine.size = sizeof(mine);
  }
  return open_store(dir, &mine);
}

PUBLIC struct xdb *remixdb_open(const char *dir, size_t cache_size_mb, size_t mt_size_mb, bool tags) {
  struct remixdb_opts o = default_opts;
  o.cache_mb = cache_size_mb;
  o.memtable_mb = mt_size_mb ? mt_size_mb : MEMTABLE_MB_BEFORE;
  o.tags = tags;
  return open_store(dir, &o);
}

PUBLIC struct xdb *remixdb_open_compact(const char *dir, size_t cache_size_mb, size_t mt_size_mb) {
  struct remixdb_opts o = default_opts;
  o.cache_mb = cache_size_mb;
  o.memtable_mb = mt_size_mb ? mt_size_mb : MEMTABLE_MB_BEFORE;
  o.tags = false;
  o.ckeys = false;
  return open_store(dir, &o);
}

PUBLIC void remixdb_close(struct xdb *xdb) {
  if (!xdb) return;
  enum remixdb_status s = check_store(xdb);
  if (s == REMIXDB_OK) s = xdb_may_wait(xdb);
  done(s == REMIXDB_OK ? xdb_close(xdb) : s);
}

PUBLIC struct xdb_ref *remixdb_ref(struct xdb *xdb) {
  struct xdb_ref *r = NULL;
  const enum remixdb_status s = check_store(xdb);
  done(s == REMIXDB_OK ? xdb_ref(xdb, &r) : s);
  return r;
}

PUBLIC void remixdb_unref(struct xdb_ref *ref) {
  if (ref && may_go_on(check_plain_ref(ref))) xdb_unref(ref);
}

PUBLIC struct xdb_ref *remixdb_ref_borrow(struct xdb *xdb) {
  struct xdb_ref *r = NULL;
  const enum remixdb_status s = check_store(xdb);
  done(s == REMIXDB_OK ? refpool_borrow(xdb, &r) : s);
  return r;
}

PUBLIC void remixdb_ref_return(struct xdb_ref *ref) {
  if (ref && may_go_on(check_plain_ref(ref))) refpool_return(ref);
}

PUBLIC bool remixdb_set_option(struct xdb *xdb, const char *name, const char *value) {
  enum remixdb_status s = check_store(xdb);
  if (s == REMIXDB_OK && !name) s = null_argument("name");
  if (s == REMIXDB_OK && !value) s = null_argument("value");
  return done(s == REMIXDB_OK ? settings_set(xdb, name, value) : s);
}

// ---- writing and reading

PUBLIC bool remixdb_put(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen) {
  const enum remixdb_status s = check_kv(ref, kbuf, klen, vbuf, vlen);
  struct kv_rec rec;
  return done_on(ref, likely(s == REMIXDB_OK) ? xdb_put(ref, kv_rec_set(&rec, kref(kbuf, klen), vbuf, vlen, 0)) : s);
}

PUBLIC bool remixdb_set(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen) {
  return remixdb_put(ref, kbuf, klen, vbuf, vlen);
}

PUBLIC bool remixdb_del(struct xdb_ref *ref, const void *kbuf, uint32_t klen) {
  const enum remixdb_status s = check_key(ref, kbuf, klen);
  struct kv_rec rec;
  return done_on(ref, likely(s == REMIXDB_OK) ? xdb_put(ref, kv_rec_set(&rec, kref(kbuf, klen), NULL, 0, KV_TOMB)) : s);
}

// A bound is no longer than a key. NULL is an open end.
static enum remixdb_status check_bound(const struct remixdb_slice *bound) {
  return bound->ptr ? check_lengths(bound->ptr, bound->len, NULL, 0) : REMIXDB_OK;
}
static enum remixdb_status check_range(const struct remixdb_range *range) {
  const enum remixdb_status s = check_bound(&range->from);
  return s == REMIXDB_OK ? check_bound(&range->to) : s;
}

static struct kref slice_key(const struct remixdb_slice *s) { return kref(s->ptr, s->ptr ? s->len : 0); }

PUBLIC bool remixdb_del_range(struct xdb_ref *ref, const struct remixdb_range *range) {
  enum remixdb_status s = check_ref(ref);
  if (s == REMIXDB_OK) s = range ? check_range(range) : null_argument("range");
  if (s == REMIXDB_OK) s = xdb_del_range(ref, slice_key(&range->from), slice_key(&range->to));
  return done_on(ref, s);
}

PUBLIC bool remixdb_probe(struct xdb_ref *ref, const void *kbuf, uint32_t klen) {
  const enum remixdb_status s = check_key(ref, kbuf, klen);
  return done_on(ref, likely(s == REMIXDB_OK) ? xdb_get(ref, kref(kbuf, klen), NULL, 0, NULL) : s);
}

PUBLIC bool remixdb_get(struct xdb_ref *ref, const void *kbuf, uint32_t klen, void *vbuf_out, uint32_t *vlen_out) {
  const enum remixdb_status s = check_key(ref, kbuf, klen);
  return done_on(ref, likely(s == REMIXDB_OK) ? xdb_get(ref, kref(kbuf, klen), vbuf_out, UINT32_MAX, vlen_out) : s);
}

PUBLIC bool remixdb_getn(struct xdb_ref *ref, const void *kbuf, uint32_t klen, void *vbuf, uint32_t vcap,
                         uint32_t *vlen_out) {
  enum remixdb_status s = check_key(ref, kbuf, klen);
  if (s == REMIXDB_OK && !vbuf && vcap) s = null_argument("vbuf");
  // Without a buffer the caller wants the length only. A value that is not empty is still TOOBIG.
  uint8_t none;
  return done_on(ref,
                 likely(s == REMIXDB_OK) ? xdb_get(ref, kref(kbuf, klen), vbuf ? vbuf : &none, vcap, vlen_out) : s);
}

// ---- expiry and versions

// Makes rec a record that expires then; 0: never. One that has expired by now is a delete.
static void expire_at(struct kv_rec *rec, uint64_t expires_ms, uint64_t now_ms) {
  if (expires_ms == 0) return;
  if (expires_ms <= now_ms) {
    rec->kind = KV_TOMB;
    rec->vlen = 0;
  } else {
    rec->kind = KV_EXPIRES;
    rec->expiry = expires_ms;
  }
}

PUBLIC bool remixdb_put_expire(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen,
                               uint64_t expires_ms) {
  const enum remixdb_status s = check_kv(ref, kbuf, klen, vbuf, vlen);
  if (s != REMIXDB_OK) return done_on(ref, s);
  struct kv_rec *const rec = KV_REC(kref(kbuf, klen), vbuf, vlen, 0);
  expire_at(rec, expires_ms, xdb_ref_now(ref));
  return done_on(ref, xdb_put(ref, rec));
}

PUBLIC bool remixdb_expiry(struct xdb_ref *ref, const void *kbuf, uint32_t klen, uint64_t *expires_ms_out) {
  struct kv_rec rec;
  enum remixdb_status s = check_key(ref, kbuf, klen);
  if (s == REMIXDB_OK) s = xdb_getv(ref, kref(kbuf, klen), NULL, 0, NULL, &rec);
  if (s == REMIXDB_OK && expires_ms_out) *expires_ms_out = rec.kind & KV_EXPIRES ? rec.expiry : 0;
  return done_on(ref, s);
}

PUBLIC bool remixdb_getv(struct xdb_ref *ref, const void *kbuf, uint32_t klen, void *vbuf, uint32_t vcap,
                         uint32_t *vlen_out, uint64_t *version_out) {
  struct kv_rec rec;
  uint8_t none;  // as in remixdb_getn
  enum remixdb_status s = check_key(ref, kbuf, klen);
  if (s == REMIXDB_OK && !vbuf && vcap) s = null_argument("vbuf");
  if (s != REMIXDB_OK) return done_on(ref, s);
  s = xdb_getv(ref, kref(kbuf, klen), vbuf ? vbuf : &none, vcap, vlen_out, &rec);
  if (s == REMIXDB_OK || s == REMIXDB_TOOBIG) {
    if (rec.seq == 0)
      s = err_set(REMIXDB_INVALID, "the transaction has written the key: it gets a version at the commit");
    else if (version_out) *version_out = rec.seq;
  }
  return done_on(ref, s);
}

PUBLIC bool remixdb_put_if(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen,
                           uint64_t version) {
  const enum remixdb_status s = check_kv(ref, kbuf, klen, vbuf, vlen);
  return done_on(ref, s == REMIXDB_OK ? xdb_put_if(ref, KV_REC(kref(kbuf, klen), vbuf, vlen, 0), version) : s);
}

PUBLIC bool remixdb_del_if(struct xdb_ref *ref, const void *kbuf, uint32_t klen, uint64_t version) {
  enum remixdb_status s = check_key(ref, kbuf, klen);
  if (s == REMIXDB_OK && version == 0) s = err_set(REMIXDB_INVALID, "no key has the version 0");
  return done_on(ref, s == REMIXDB_OK ? xdb_put_if(ref, KV_REC(kref(kbuf, klen), NULL, 0, KV_TOMB), version) : s);
}

PUBLIC void *remixdb_get_alloc(struct xdb_ref *ref, const void *kbuf, uint32_t klen, uint32_t *vlen_out) {
  void *val = NULL;
  const enum remixdb_status s = check_key(ref, kbuf, klen);
  done_on(ref, likely(s == REMIXDB_OK) ? pin_get_alloc(ref, kref(kbuf, klen), &val, vlen_out) : s);
  return val;
}

PUBLIC struct xdb_pin *remixdb_get_pinned(struct xdb_ref *ref, const void *kbuf, uint32_t klen, const void **v_out,
                                          uint32_t *vlen_out) {
  struct xdb_pin *pin = NULL;
  enum remixdb_status s = check_key(ref, kbuf, klen);
  if (s == REMIXDB_OK && !v_out) s = null_argument("v_out");
  done_on(ref, likely(s == REMIXDB_OK) ? pin_get(ref, kref(kbuf, klen), &pin, v_out, vlen_out) : s);
  return pin;
}

PUBLIC void remixdb_pin_release(struct xdb_pin *pin) {
  if (pin && may_go_on(check_store(pin_store(pin)))) pin_release(pin);
}

PUBLIC bool remixdb_get_part(struct xdb_ref *ref, const void *kbuf, uint32_t klen, uint32_t off, void *buf,
                             uint32_t cap, uint32_t *n_out, uint32_t *vlen_out) {
  uint32_t n = 0, vlen = 0;
  enum remixdb_status s = check_key(ref, kbuf, klen);
  if (s == REMIXDB_OK && !buf && cap) s = null_argument("buf");
  if (s == REMIXDB_OK) s = xdb_get_part(ref, kref(kbuf, klen), off, buf, cap, &n, &vlen);
  if (n_out) *n_out = s == REMIXDB_OK ? n : 0;
  if (vlen_out) *vlen_out = vlen;
  return done_on(ref, s);
}

PUBLIC bool remixdb_merge(struct xdb_ref *ref, const void *kbuf, uint32_t klen, remixdb_merge_fn fn, void *priv) {
  enum remixdb_status s = check_key(ref, kbuf, klen);
  if (s == REMIXDB_OK && !fn) s = null_argument("fn");
  return done_on(ref, s == REMIXDB_OK ? xdb_merge(ref, kref(kbuf, klen), fn, priv) : s);
}

// A remixdb_merge_fn; priv is a struct remixdb_decision.
static enum remixdb_merge_op decided(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  struct remixdb_decision *const d = priv;
  d->v0 = v0;
  d->v0len = v0len;
  d->v1 = NULL;
  d->v1len = 0;
  d->op = REMIXDB_MERGE_KEEP;
  d->decide(d);
  *v1 = d->v1;
  *v1len = d->v1len;
  return d->op;
}

PUBLIC bool remixdb_merge_decide(struct xdb_ref *ref, const void *kbuf, uint32_t klen, struct remixdb_decision *d) {
  enum remixdb_status s = check_key(ref, kbuf, klen);
  if (s == REMIXDB_OK && !d) s = null_argument("d");
  if (s == REMIXDB_OK && !d->decide) s = null_argument("d->decide");
  return done_on(ref, s == REMIXDB_OK ? xdb_merge(ref, kref(kbuf, klen), decided, d) : s);
}

static enum remixdb_status check_many(size_t nr, const struct remixdb_slice *keys, const struct remixdb_buf *values,
                                      const bool *found) {
  if (!keys) return null_argument("keys");
  if (!found) return null_argument("found");
  for (size_t i = 0; i < nr; i++) {
    if (unlikely(!keys[i].ptr && keys[i].len)) return err_set(REMIXDB_INVALID, "key %zu is NULL", i);
    if (unlikely(keys[i].len > REMIXDB_KV_MAX))
      return err_set(REMIXDB_INVALID, "key %zu has %u bytes, and no key is that long", i, keys[i].len);
    if (unlikely(values && !values[i].ptr && values[i].cap))
      return err_set(REMIXDB_INVALID, "the buffer of value %zu is NULL", i);
  }
  return REMIXDB_OK;
}

PUBLIC size_t remixdb_multi_get(struct xdb_ref *ref, size_t nr, const struct remixdb_slice *keys,
                                struct remixdb_buf *values, bool *found) {
  size_t nr_found = 0;
  enum remixdb_status s = check_ref(ref);
  if (s == REMIXDB_OK && nr) s = check_many(nr, keys, values, found);
  if (likely(s == REMIXDB_OK && nr)) s = xdb_multi_get(ref, nr, keys, values, found, NULL, &nr_found);
  done_on(ref, s);
  return nr_found;
}

static enum remixdb_status check_packed(size_t nr, const uint32_t *klens, const void *keys, size_t keys_len,
                                        const struct remixdb_packed *out) {
  if (!out) return null_argument("out");
  if (!keys && keys_len) return null_argument("keys");
  if (!out->ptr && out->cap) return null_argument("out->ptr");
  if (nr && (!klens || !out->offs || !out->lens || !out->found))
    return null_argument("klens, out->offs, out->lens or out->found");
  size_t left = keys_len;
  for (size_t i = 0; i < nr; i++) {
    if (unlikely(klens[i] > REMIXDB_KV_MAX))
      return err_set(REMIXDB_INVALID, "key %zu has %u bytes, and no key is that long", i, klens[i]);
    if (unlikely(klens[i] > left))
      return err_set(REMIXDB_INVALID, "key %zu ends after the %zu bytes of the keys", i, keys_len);
    left -= klens[i];
  }
  return left == 0 ? REMIXDB_OK
                   : err_set(REMIXDB_INVALID, "the keys have %zu bytes, and their lengths add up to %zu", keys_len,
                             keys_len - left);
}

static enum remixdb_status get_packed(struct xdb_ref *ref, size_t nr, const uint32_t *klens, const uint8_t *keys,
                                      struct remixdb_packed *out, size_t *nr_found) {
  struct remixdb_slice *const slices = mem_array(nr, sizeof(*slices), 0);
  struct remixdb_buf *const bufs = slices ? mem_array(nr, sizeof(*bufs), 0) : NULL;
  enum remixdb_status s = bufs ? REMIXDB_OK : REMIXDB_NOMEM;
  struct multiget_room room = {out->ptr, out->cap < UINT32_MAX ? out->cap : UINT32_MAX, 0, 0};
  if (s == REMIXDB_OK) {
    for (size_t i = 0, at = 0; i < nr; at += klens[i++]) {
      slices[i] = (struct remixdb_slice){keys ? keys + at : NULL, klens[i]};
      bufs[i] = (struct remixdb_buf){NULL, 0, 0};
    }
    s = xdb_multi_get(ref, nr, slices, bufs, out->found, &room, nr_found);
  } else {
    memset(out->found, 0, nr * sizeof(*out->found));
  }
  for (size_t i = 0; i < nr; i++) {
    out->offs[i] = bufs && bufs[i].ptr ? (uint32_t)((uint8_t *)bufs[i].ptr - room.ptr) : 0;
    out->lens[i] = bufs ? bufs[i].len : 0;
  }
  out->len = room.wanted;
  mem_free(slices);
  mem_free(bufs);
  return s;
}

PUBLIC size_t remixdb_multi_get_packed(struct xdb_ref *ref, size_t nr, const uint32_t *klens, const void *keys,
                                       size_t keys_len, struct remixdb_packed *out) {
  size_t nr_found = 0;
  enum remixdb_status s = check_ref(ref);
  if (s == REMIXDB_OK) s = check_packed(nr, klens, keys, keys_len, out);
  if (s == REMIXDB_OK && nr == 0) out->len = 0;
  if (s == REMIXDB_OK && nr) s = get_packed(ref, nr, klens, keys, out, &nr_found);
  done_on(ref, s);
  return nr_found;
}

PUBLIC bool remixdb_sync(struct xdb_ref *ref) {
  const enum remixdb_status s = check_ref(ref);
  return done_on(ref, s == REMIXDB_OK ? xdb_sync(ref) : s);
}

// ---- asynchronous gets

PUBLIC struct xdb_gets *remixdb_gets_create(struct xdb_ref *ref, uint32_t depth) {
  struct xdb_gets *g = NULL;
  const enum remixdb_status s = check_plain_ref(ref);
  done_on(ref, s == REMIXDB_OK ? xdb_gets_create(ref, depth, &g) : s);
  return g;
}

PUBLIC bool remixdb_get_begin(struct xdb_gets *gets, const void *kbuf, uint32_t klen, void *vbuf, uint32_t vcap,
                              void *priv) {
  enum remixdb_status s = check_gets(gets);
  if (likely(s == REMIXDB_OK)) s = check_lengths(kbuf, klen, NULL, 0);
  if (s == REMIXDB_OK && !vbuf && vcap) s = null_argument("vbuf");
  return done_get(gets, likely(s == REMIXDB_OK) ? xdb_get_begin(gets, kref(kbuf, klen), vbuf, vcap, priv) : s);
}

PUBLIC size_t remixdb_get_poll(struct xdb_gets *gets, struct remixdb_got *out, size_t max, size_t min) {
  size_t nr = 0;
  enum remixdb_status s = check_gets(gets);
  if (s == REMIXDB_OK && !out && max) s = null_argument("out");
  done_get(gets, likely(s == REMIXDB_OK) ? xdb_get_poll(gets, out, max, min, &nr) : s);
  return nr;
}

PUBLIC int remixdb_gets_fd(struct xdb_gets *gets) {
  int fd = -1;
  const enum remixdb_status s = check_gets(gets);
  done_get(gets, s == REMIXDB_OK ? xdb_gets_fd(gets, &fd) : s);
  return fd;
}

PUBLIC void remixdb_gets_destroy(struct xdb_gets *gets) {
  if (gets && may_go_on(check_gets(gets))) xdb_gets_destroy(gets);
}

// ---- batches

PUBLIC struct xdb_batch *remixdb_batch_create(void) {
  struct xdb_batch *b = NULL;
  done(batch_create(&b));
  return b;
}

static bool batch_op(struct xdb_batch *b, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen, bool tomb) {
  enum remixdb_status s = b ? check_lengths(kbuf, klen, vbuf, vlen) : null_argument("b");
  if (s == REMIXDB_OK) s = batch_add(b, KV_REC(kref(kbuf, klen), vbuf, vlen, tomb ? KV_TOMB : 0));
  return done(s);
}

PUBLIC bool remixdb_batch_put(struct xdb_batch *b, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen) {
  return batch_op(b, kbuf, klen, vbuf, vlen, false);
}

PUBLIC bool remixdb_batch_del(struct xdb_batch *b, const void *kbuf, uint32_t klen) {
  return batch_op(b, kbuf, klen, NULL, 0, true);
}

PUBLIC bool remixdb_batch_put_expire(struct xdb_batch *b, const void *kbuf, uint32_t klen, const void *vbuf,
                                     uint32_t vlen, uint64_t expires_ms) {
  enum remixdb_status s = b ? check_lengths(kbuf, klen, vbuf, vlen) : null_argument("b");
  struct kv_rec *const rec = KV_REC(kref(kbuf, klen), vbuf, vlen, 0);
  expire_at(rec, expires_ms, 0);
  return done(s == REMIXDB_OK ? batch_add(b, rec) : s);
}

PUBLIC bool remixdb_batch_del_range(struct xdb_batch *b, const struct remixdb_range *range) {
  enum remixdb_status s = b ? REMIXDB_OK : null_argument("b");
  if (s == REMIXDB_OK) s = range ? check_range(range) : null_argument("range");
  if (s == REMIXDB_OK) s = batch_add_range(b, slice_key(&range->from), slice_key(&range->to));
  return done(s);
}

static enum remixdb_status check_load(const struct xdb_batch *b, size_t nr, const uint8_t *ops, const uint32_t *klens,
                                      const uint32_t *vlens, const void *bytes, size_t nbytes) {
  if (!b) return null_argument("b");
  if (!bytes && nbytes) return null_argument("bytes");
  if (nr && (!klens || !vlens)) return null_argument("klens or vlens");
  size_t left = nbytes;
  for (size_t i = 0; i < nr; i++) {
    if (unlikely(ops && ops[i] > REMIXDB_BATCH_DEL))
      return err_set(REMIXDB_INVALID, "operation %zu is %u, which is none", i, ops[i]);
    if (unlikely(ops && ops[i] == REMIXDB_BATCH_DEL && vlens[i]))
      return err_set(REMIXDB_INVALID, "operation %zu deletes, and has a value of %u bytes", i, vlens[i]);
    const uint64_t need = (uint64_t)klens[i] + vlens[i];
    if (unlikely(klens[i] > REMIXDB_KV_MAX)) return check_lengths("", klens[i], "", vlens[i]);
    if (unlikely(need > left))
      return err_set(REMIXDB_INVALID, "operation %zu ends after the %zu bytes of all", i, nbytes);
    left -= need;
  }
  return left == 0 ? REMIXDB_OK
                   : err_set(REMIXDB_INVALID, "the operations have %zu bytes, and their lengths add up to %zu", nbytes,
                             nbytes - left);
}

PUBLIC bool remixdb_batch_load(struct xdb_batch *b, size_t nr, const uint8_t *ops, const uint32_t *klens,
                               const uint32_t *vlens, const void *bytes, size_t nbytes) {
  enum remixdb_status s = check_load(b, nr, ops, klens, vlens, bytes, nbytes);
  if (s == REMIXDB_OK && nr) s = batch_load(b, nr, ops, klens, vlens, bytes ? bytes : (const void *)"");
  return done(s);
}

PUBLIC size_t remixdb_batch_count(const struct xdb_batch *b) { return b ? b->nr : 0; }

PUBLIC size_t remixdb_batch_bytes(const struct xdb_batch *b) { return b ? b->len : 0; }

PUBLIC bool remixdb_batch_each(const struct xdb_batch *b, remixdb_batch_fn fn, void *priv) {
  const enum remixdb_status s = !b ? null_argument("b") : !fn ? null_argument("fn") : REMIXDB_OK;
  if (s == REMIXDB_OK) batch_each(b, fn, priv);
  return done(s);
}

PUBLIC bool remixdb_batch_append(struct xdb_batch *to, const struct xdb_batch *from) {
  const enum remixdb_status s = !to ? null_argument("to") : !from ? null_argument("from") : REMIXDB_OK;
  return done(s == REMIXDB_OK ? batch_append(to, from) : s);
}

PUBLIC void remixdb_batch_space(struct xdb_batch *b, struct xdb_space *space) {
  enum remixdb_status s = b ? REMIXDB_OK : null_argument("b");
  if (s == REMIXDB_OK && space) s = check_space(space);
  if (may_go_on(s)) batch_space(b, space);
}

PUBLIC void remixdb_batch_clear(struct xdb_batch *b) {
  if (b) batch_clear(b);
}

PUBLIC void remixdb_batch_destroy(struct xdb_batch *b) { batch_destroy(b); }

PUBLIC bool remixdb_write(struct xdb_ref *ref, struct xdb_batch *b) {
  enum remixdb_status s = check_ref(ref);
  if (s == REMIXDB_OK && !b) s = null_argument("b");
  return done_on(ref, s == REMIXDB_OK ? xdb_write(ref, b) : s);
}

// ---- iterators

PUBLIC struct xdb_iter *remixdb_iter_create(struct xdb_ref *ref) {
  struct xdb_iter *it = NULL;
  const enum remixdb_status s = check_ref(ref);
  done_on(ref, s == REMIXDB_OK ? xdb_iter_create(ref, &it) : s);
  return it;
}

PUBLIC void remixdb_iter_opts_init(struct remixdb_iter_opts *o, size_t size) {
  if (!o || size < sizeof(o->size)) return;
  memset(o, 0, size);
  o->size = size;
}

static enum remixdb_status check_iter_opts(const struct xdb *xdb, const struct remixdb_iter_opts *o,
                                           struct remixdb_iter_opts *mine) {
  remixdb_iter_opts_init(mine, sizeof(*mine));
  if (!o) return REMIXDB_OK;
  if (o->size < sizeof(o->size))
    return err_set(REMIXDB_INVALID, "the iterator's options have size %zu: call remixdb_iter_opts_init first", o->size);
  memcpy(mine, o, o->size < sizeof(*mine) ? o->size : sizeof(*mine));
  enum remixdb_status s = check_range(&mine->bounds);
  if (s == REMIXDB_OK) s = check_bound(&mine->prefix);
  if (s == REMIXDB_OK && mine->snapshot) {
    s = check_snapshot(mine->snapshot);
    if (s == REMIXDB_OK && mine->snapshot->xdb != xdb)
      s = err_set(REMIXDB_INVALID, "the snapshot is of another store than the ref");
  }
  return s;
}

PUBLIC struct xdb_iter *remixdb_iter_create_opts(struct xdb_ref *ref, const struct remixdb_iter_opts *o) {
  struct xdb_iter *it = NULL;
  struct remixdb_iter_opts mine;
  enum remixdb_status s = check_ref(ref);
  if (s == REMIXDB_OK) s = check_iter_opts(ref->xdb, o, &mine);
  if (s == REMIXDB_OK) {
    const struct xdb_iter_opts opts = {.bounds = mine.bounds,
                                       .prefix = mine.prefix,
                                       .snapshot = mine.snapshot,
                                       .expect = mine.expect,
                                       .keys_only = mine.keys_only,
                                       .hold = mine.hold};
    s = xdb_iter_create_opts(ref, &opts, &it);
  }
  done_on(ref, s);
  return it;
}

// Checks the arguments of a seek. After an invalid key the iterator has no position.
static inline bool check_place(struct xdb_iter *it, const void *kbuf, uint32_t klen) {
  enum remixdb_status s = check_iter(it);
  if (likely(s == REMIXDB_OK)) {
    s = check_lengths(kbuf, klen, NULL, 0);
    if (likely(s == REMIXDB_OK)) return true;
    xdb_iter_fail(it, s);
  }
  return done_at(it, s);
}

PUBLIC void remixdb_iter_seek(struct xdb_iter *it, const void *kbuf, uint32_t klen) {
  if (check_place(it, kbuf, klen)) done_at(it, xdb_iter_seek(it, kref(kbuf, klen)));
}

PUBLIC void remixdb_iter_seek_for_prev(struct xdb_iter *it, const void *kbuf, uint32_t klen) {
  if (check_place(it, kbuf, klen)) done_at(it, xdb_iter_seek_for_prev(it, kref(kbuf, klen)));
}

PUBLIC void remixdb_iter_seek_last(struct xdb_iter *it) {
  const enum remixdb_status s = check_iter(it);
  done_at(it, s == REMIXDB_OK ? xdb_iter_seek_last(it) : s);
}

PUBLIC bool remixdb_iter_valid(struct xdb_iter *it) {
  const enum remixdb_status s = check_iter(it);
  return likely(s == REMIXDB_OK) ? xdb_iter_valid(it) : done(s);
}

// A record that is not at hand, or long. This is a separate function, so that the fast way makes no call and keeps all
// in registers.
static __attribute__((noinline)) bool peek_slow(struct xdb_iter *it, void *kbuf_out, uint32_t *klen_out, void *vbuf_out,
                                                uint32_t *vlen_out) {
  struct kv_rec r;
  enum remixdb_status s = check_iter(it);
  if (s == REMIXDB_OK) s = xdb_iter_refer(it, &r);
  const bool apart = s == REMIXDB_OK && r.kind & KV_APART;
  if (apart && vbuf_out) s = xdb_iter_load(it, &r, vbuf_out);
  if (s == REMIXDB_OK) {
    if (kbuf_out && r.klen) memcpy(kbuf_out, r.key, r.klen);
    if (klen_out) *klen_out = r.klen;
    if (!apart && vbuf_out && r.vlen) memcpy(vbuf_out, r.val, r.vlen);
    if (vlen_out) *vlen_out = super_vlen(&r);
  }
  return done_at(it, s);
}

PUBLIC bool remixdb_iter_peek(struct xdb_iter *it, void *kbuf_out, uint32_t *klen_out, void *vbuf_out,
                              uint32_t *vlen_out) {
  struct kv_rec r;
  if (unlikely(!it || fork_now() != 0 || !xdb_iter_record_held(it, &r) || r.klen > COPY_SMALL || r.vlen > COPY_SMALL ||
               r.kind & KV_APART))
    return peek_slow(it, kbuf_out, klen_out, vbuf_out, vlen_out);
  stepped(it);
  if (klen_out) *klen_out = r.klen;
  if (vlen_out) *vlen_out = r.vlen;
  if (kbuf_out) copy_small(kbuf_out, r.key, r.klen);
  if (vbuf_out) copy_small(vbuf_out, r.val, r.vlen);
  return true;
}

// The key, or the value.
static const void *iter_part(struct xdb_iter *it, bool value, uint32_t *len_out) {
  struct kv_rec r;
  if (likely(it && fork_now() == 0 && xdb_iter_record_held(it, &r))) {
    stepped(it);
  } else {
    const enum remixdb_status s = check_iter(it);
    if (!done_at(it, s == REMIXDB_OK ? xdb_iter_refer(it, &r) : s)) return NULL;
  }
  if (unlikely(value && r.kind & KV_APART) && !done_at(it, xdb_iter_load(it, &r, NULL))) return NULL;
  if (len_out) *len_out = value ? r.vlen : r.klen;
  if (unlikely(value && it->keys_only)) return NULL;
  const void *const p = value ? r.val : r.key;
  return p ? p : "";
}

PUBLIC const void *remixdb_iter_key(struct xdb_iter *it, uint32_t *klen_out) { return iter_part(it, false, klen_out); }
PUBLIC const void *remixdb_iter_value(struct xdb_iter *it, uint32_t *vlen_out) { return iter_part(it, true, vlen_out); }

static __attribute__((noinline)) void skip_slow(struct xdb_iter *it, uint32_t nr) {
  const enum remixdb_status s = check_iter(it);
  done_at(it, s == REMIXDB_OK ? xdb_iter_skip(it, nr) : s);
}

static inline void skip_one(struct xdb_iter *it) {
  if (unlikely(!it || fork_now() != 0 || !xdb_iter_next_fast(it))) {
    skip_slow(it, 1);
    return;
  }
  stepped(it);
}

PUBLIC void remixdb_iter_skip1(struct xdb_iter *it) { skip_one(it); }
PUBLIC void remixdb_iter_skip(struct xdb_iter *it, uint32_t nr) {
  if (likely(nr == 1)) skip_one(it);
  else skip_slow(it, nr);
}

static __attribute__((noinline)) void prev_slow(struct xdb_iter *it) {
  const enum remixdb_status s = check_iter(it);
  done_at(it, s == REMIXDB_OK ? xdb_iter_prev(it) : s);
}

PUBLIC void remixdb_iter_prev(struct xdb_iter *it) {
  if (unlikely(!it || fork_now() != 0 || !xdb_iter_prev_fast(it))) {
    prev_slow(it);
    return;
  }
  stepped(it);
}

static enum remixdb_status check_page(const struct remixdb_page *p) {
  if (!p) return null_argument("p");
  if (!p->klens) return null_argument("p->klens");
  if (!p->ptr && p->cap) return null_argument("p->ptr");
  return p->max ? REMIXDB_OK : err_set(REMIXDB_INVALID, "p->max is 0");
}

PUBLIC bool remixdb_iter_page(struct xdb_iter *it, struct remixdb_page *p) {
  enum remixdb_status s = check_iter(it);
  if (s == REMIXDB_OK) s = check_page(p);
  return done_at(it, s == REMIXDB_OK ? xdb_iter_page(it, p) : s);
}

PUBLIC bool remixdb_iter_unread(struct xdb_iter *it, struct remixdb_page *p, uint32_t nr) {
  enum remixdb_status s = check_iter(it);
  if (s == REMIXDB_OK && !p) s = null_argument("p");
  return done_at(it, s == REMIXDB_OK ? xdb_iter_unread(it, p, nr) : s);
}

PUBLIC void remixdb_iter_park(struct xdb_iter *it) {
  const enum remixdb_status s = check_iter(it);
  if (s == REMIXDB_OK) xdb_iter_park(it);
  else done(s);
}

PUBLIC void remixdb_iter_destroy(struct xdb_iter *it) {
  if (it && may_go_on(check_iter(it))) xdb_iter_destroy(it);
}

PUBLIC enum remixdb_status remixdb_iter_status(struct xdb_iter *it) {
  const enum remixdb_status s = check_iter(it);
  if (s == REMIXDB_OK) return it->status;
  done(s);
  return s;
}

// ---- snapshots

PUBLIC struct xdb_snapshot *remixdb_snapshot(struct xdb_ref *ref) {
  struct xdb_snapshot *snap = NULL;
  const enum remixdb_status s = check_plain_ref(ref);
  done_on(ref, s == REMIXDB_OK ? xdb_snapshot(ref, &snap) : s);
  return snap;
}

PUBLIC struct xdb_ref *remixdb_snapshot_ref(struct xdb_snapshot *snap) {
  struct xdb_ref *r = NULL;
  const enum remixdb_status s = check_snapshot(snap);
  done(s == REMIXDB_OK ? xdb_snapshot_ref(snap, &r) : s);
  return r;
}

PUBLIC void remixdb_snapshot_release(struct xdb_snapshot *snap) {
  if (snap && may_go_on(check_snapshot(snap))) xdb_snapshot_release(snap);
}

// ---- transactions

PUBLIC struct xdb_txn *remixdb_txn_begin(struct xdb *xdb) {
  struct xdb_txn *txn = NULL;
  const enum remixdb_status s = check_store(xdb);
  done(s == REMIXDB_OK ? xdb_txn_begin(xdb, &txn) : s);
  return txn;
}

static struct xdb_ref *txn_ref(struct xdb_txn *txn, struct xdb_space *space, bool untracked) {
  struct xdb_ref *r = NULL;
  enum remixdb_status s = check_txn(txn);
  if (s == REMIXDB_OK && space) s = check_space(space);
  if (s == REMIXDB_OK && space && space->xdb != txn->xdb)
    s = err_set(REMIXDB_INVALID, "the space and the transaction are of different stores");
  if (s == REMIXDB_OK) s = xdb_txn_ref(txn, space, untracked, &r);
  return done(s) ? r : NULL;
}

PUBLIC struct xdb_ref *remixdb_txn_ref(struct xdb_txn *txn, struct xdb_space *space) {
  return txn_ref(txn, space, false);
}

PUBLIC struct xdb_ref *remixdb_txn_untracked(struct xdb_txn *txn, struct xdb_space *space) {
  return txn_ref(txn, space, true);
}

PUBLIC bool remixdb_txn_commit(struct xdb_txn *txn) {
  const enum remixdb_status s = check_txn(txn);
  return done(s == REMIXDB_OK ? xdb_txn_commit(txn) : s);
}

PUBLIC void remixdb_txn_abort(struct xdb_txn *txn) {
  if (txn && may_go_on(check_txn(txn))) xdb_txn_abort(txn);
}

PUBLIC bool remixdb_txn_savepoint(struct xdb_txn *txn) {
  const enum remixdb_status s = check_txn(txn);
  return done(s == REMIXDB_OK ? xdb_txn_savepoint(txn) : s);
}

PUBLIC bool remixdb_txn_rollback(struct xdb_txn *txn) {
  const enum remixdb_status s = check_txn(txn);
  return done(s == REMIXDB_OK ? xdb_txn_rollback(txn) : s);
}

// ---- key spaces

static enum remixdb_status check_name(const struct xdb *xdb, const char *name) {
  const enum remixdb_status s = check_store(xdb);
  if (s != REMIXDB_OK) return s;
  if (!name) return null_argument("name");
  const size_t len = strnlen(name, NAMES_LEN_MAX + 1);
  if (len == 0 || len > NAMES_LEN_MAX || memchr(name, '\n', len))
    return err_set(REMIXDB_INVALID, "the name of a space has 1 to %u bytes, and no newline", NAMES_LEN_MAX);
  return REMIXDB_OK;
}

// Ends a call that names a space. A missing space is a failure, with a message, as a missing store is.
static bool done_space(const struct xdb *xdb, const char *name, enum remixdb_status s) {
  done(s);
  if (s == REMIXDB_NOTFOUND) (void)err_set(s, "%s: there is no space \"%s\"", xdb->dir, name);
  return s == REMIXDB_OK;
}

PUBLIC struct xdb_space *remixdb_space_open(struct xdb *xdb, const char *name, bool create) {
  struct xdb_space *sp = NULL;
  const enum remixdb_status s = check_name(xdb, name);
  done_space(xdb, name, s == REMIXDB_OK ? xdb_space_open(xdb, name, strlen(name), create, &sp) : s);
  return sp;
}

PUBLIC void remixdb_space_close(struct xdb_space *space) {
  if (space && may_go_on(check_space(space))) xdb_space_close(space);
}

PUBLIC bool remixdb_space_drop(struct xdb *xdb, const char *name) {
  const enum remixdb_status s = check_name(xdb, name);
  return done_space(xdb, name, s == REMIXDB_OK ? xdb_space_drop(xdb, name, strlen(name)) : s);
}

PUBLIC char *remixdb_space_list(struct xdb *xdb) {
  char *text = NULL;
  const enum remixdb_status s = check_store(xdb);
  done(s == REMIXDB_OK ? xdb_space_list(xdb, &text) : s);
  return text;
}

PUBLIC struct xdb_ref *remixdb_space_ref(struct xdb_space *space) {
  struct xdb_ref *r = NULL;
  const enum remixdb_status s = check_space(space);
  done(s == REMIXDB_OK ? xdb_space_ref(space, &r) : s);
  return r;
}

PUBLIC struct xdb_ref *remixdb_snapshot_space_ref(struct xdb_snapshot *snap, struct xdb_space *space) {
  struct xdb_ref *r = NULL;
  enum remixdb_status s = check_snapshot(snap);
  if (s == REMIXDB_OK && space && space->xdb != snap->xdb)
    s = err_set(REMIXDB_INVALID, "the space and the snapshot are of different stores");
  done(s == REMIXDB_OK ? xdb_snapshot_space_ref(snap, space, &r) : s);
  return r;
}

// ---- administration

static enum remixdb_status check_writable(struct xdb_ref *ref) {
  const enum remixdb_status s = check_plain_ref(ref);
  if (s != REMIXDB_OK) return s;
  return ref->snapshot ? err_set(REMIXDB_READONLY, "%s: a snapshot is not written to", ref->xdb->dir) : REMIXDB_OK;
}

PUBLIC bool remixdb_flush(struct xdb_ref *ref) {
  const enum remixdb_status s = check_writable(ref);
  return done_on(ref, s == REMIXDB_OK ? xdb_flush_told(ref->xdb, &ref->progress) : s);
}

PUBLIC bool remixdb_compact(struct xdb_ref *ref) {
  const enum remixdb_status s = check_writable(ref);
  return done_on(ref, s == REMIXDB_OK ? xdb_compact_told(ref->xdb, &ref->progress) : s);
}

static enum remixdb_status count(struct xdb_ref *ref, const struct remixdb_range *range, uint64_t *keys_out,
                                 uint64_t *bytes_out) {
  struct xdb_iter_bounds b;
  enum remixdb_status s = space_bounds(ref, range, &b);
  if (s != REMIXDB_OK) return s;
  s = xdb_count(ref, b.low, b.high, keys_out, bytes_out);
  mem_free(b.bytes);
  return s;
}

PUBLIC bool remixdb_count(struct xdb_ref *ref, const struct remixdb_range *range, uint64_t *keys_out,
                          uint64_t *bytes_out) {
  if (keys_out) *keys_out = 0;
  if (bytes_out) *bytes_out = 0;
  enum remixdb_status s = check_ref(ref);
  if (s == REMIXDB_OK) s = range ? check_range(range) : null_argument("range");
  return done_on(ref, s == REMIXDB_OK ? count(ref, range, keys_out, bytes_out) : s);
}

static enum remixdb_status compact_range(struct xdb_ref *ref, const struct remixdb_range *range) {
  struct xdb_iter_bounds b;
  enum remixdb_status s = space_bounds(ref, range, &b);
  if (s != REMIXDB_OK) return s;
  if (!b.high.ptr || kv_cmp(b.low, b.high) < 0)
    s = xdb_compact_range(ref->xdb, ref->tree, b.low, b.high, &ref->progress);
  mem_free(b.bytes);
  return s;
}

PUBLIC bool remixdb_compact_range(struct xdb_ref *ref, const struct remixdb_range *range) {
  enum remixdb_status s = check_writable(ref);
  if (s == REMIXDB_OK) s = range ? check_range(range) : null_argument("range");
  return done_on(ref, s == REMIXDB_OK ? compact_range(ref, range) : s);
}

static enum remixdb_status check_ingest(const struct xdb_ingest *g) {
  return g ? check_ref(ingest_ref(g)) : null_argument("ingest");
}

PUBLIC struct xdb_ingest *remixdb_ingest_begin(struct xdb_ref *ref) {
  struct xdb_ingest *g = NULL;
  const enum remixdb_status s = check_writable(ref);
  done_on(ref, s == REMIXDB_OK ? ingest_begin(ref, &g) : s);
  return g;
}

PUBLIC bool remixdb_ingest_put(struct xdb_ingest *g, const void *kbuf, uint32_t klen, const void *vbuf, uint32_t vlen) {
  enum remixdb_status s = check_ingest(g);
  if (s == REMIXDB_OK) s = check_lengths(kbuf, klen, vbuf, vlen);
  return done_on(g ? ingest_ref(g) : NULL, s == REMIXDB_OK ? ingest_put(g, kref(kbuf, klen), vbuf, vlen) : s);
}

PUBLIC bool remixdb_ingest_commit(struct xdb_ingest *g) {
  struct xdb_ref *const ref = g ? ingest_ref(g) : NULL;
  const enum remixdb_status s = check_ingest(g);
  return done_on(ref, s == REMIXDB_OK ? ingest_commit(g) : s);
}

PUBLIC void remixdb_ingest_abort(struct xdb_ingest *g) {
  if (g && may_go_on(check_ingest(g))) ingest_abort(g);
}

PUBLIC bool remixdb_checkpoint(struct xdb_ref *ref, const char *dir) {
  enum remixdb_status s = check_plain_ref(ref);
  if (s == REMIXDB_OK) s = check_dir(dir);
  return done_on(ref, s == REMIXDB_OK ? checkpoint_make(ref, dir) : s);
}

PUBLIC void remixdb_progress(struct xdb_ref *ref, remixdb_progress_fn fn, void *priv) {
  if (ref && may_go_on(check_ref(ref))) ref->progress = (struct progress){fn, priv};
}

PUBLIC bool remixdb_verify(struct xdb_ref *ref) {
  const enum remixdb_status s = check_plain_ref(ref);
  return done_on(ref, s == REMIXDB_OK ? verify_store(ref, NULL) : s);
}

PUBLIC bool remixdb_repair(const char *dir) {
  enum remixdb_status s = check_dir(dir);
  struct repair_report report = {.told = ""};
  if (s == REMIXDB_OK) s = repair_store(env_posix(), dir, &report);
  done(s);
  if (s == REMIXDB_OK && report.losses) (void)err_set(s, "%s: repaired; %s", dir, report.told);
  if (s == REMIXDB_NOTFOUND) (void)err_set(s, "%s: there is no store", dir);
  return s == REMIXDB_OK;
}

PUBLIC bool remixdb_destroy(const char *dir) {
  enum remixdb_status s = check_dir(dir);
  if (s == REMIXDB_OK) s = destroy_store(env_posix(), dir);
  done(s);
  if (s == REMIXDB_NOTFOUND) (void)err_set(s, "%s: there is no store", dir);
  return s == REMIXDB_OK;
}

// ---- figures and memory

PUBLIC char *remixdb_stats(struct xdb *xdb) {
  char *json = NULL;
  const enum remixdb_status s = check_store(xdb);
  done(s == REMIXDB_OK ? xdb_stats(xdb, &json) : s);
  return json;
}

PUBLIC bool remixdb_figure(struct xdb *xdb, const char *name, uint64_t *value_out) {
  enum remixdb_status s = check_store(xdb);
  if (s == REMIXDB_OK && !name) s = null_argument("name");
  if (s == REMIXDB_OK && !value_out) s = null_argument("value_out");
  return done(s == REMIXDB_OK ? xdb_figure(xdb, name, value_out) : s);
}

PUBLIC void remixdb_free(void *p) { mem_free(p); }

// SPDX-License-Identifier: Apache-2.0
#include "store/merge_call.h"

#include <inttypes.h>

#include "store/below.h"
#include "store/commit.h"
#include "store/pin.h"
#include "store/round.h"
#include "store/space_ref.h"
#include "store/value_pace.h"
#include "store/write_steps.h"
#include "xdb.h"

// Decides by the record's version.
static void compare(struct merge_call *c, const struct kv_rec *rec) {
  c->is = rec ? rec->seq : 0;
  const bool same = c->version == c->is && (rec == NULL) == (c->version == 0);
  c->op = !same ? REMIXDB_MERGE_KEEP : c->to.kind & KV_TOMB ? REMIXDB_MERGE_DEL : REMIXDB_MERGE_PUT;
}

// Runs with the key's leaf locked, if the key is not a transaction's.
enum remixdb_status merge_decide(const struct xdb *x, struct merge_call *c, const struct kv_rec *rec) {
  CANCEL_LATER;
  const void *val = NULL;
  uint32_t vlen = 0;
  if (c->compares) {
    compare(c, rec);
    return REMIXDB_OK;
  }
  c->op = c->fn(rec ? rec->val : NULL, rec ? rec->vlen : 0, &val, &vlen, c->priv);
  if (xdb_is_anothers(x))
    return err_set(REMIXDB_INVALID, "the merge function has returned in a child that it made by fork");
  switch (c->op) {
    case REMIXDB_MERGE_KEEP: return REMIXDB_OK;
    case REMIXDB_MERGE_DEL:
      if (!rec) c->op = REMIXDB_MERGE_KEEP;
      (void)kv_rec_set(&c->to, c->key, NULL, 0, KV_TOMB);
      return REMIXDB_OK;
    case REMIXDB_MERGE_PUT:
      if (!val && vlen)
        return err_set(REMIXDB_INVALID, "the merge function returned no value, but a length of %u", vlen);
      (void)kv_rec_set(&c->to, c->key, val, vlen, 0);
      if (rec && rec->kind & KV_EXPIRES) {
        c->to.kind = KV_EXPIRES;
        c->to.expiry = rec->expiry;
      }
      return REMIXDB_OK;
  }
  return err_set(REMIXDB_INVALID, "the merge function returned %d", (int)c->op);
}

// The key's record before a merge.
struct before {
  struct kv_rec rec;         // with its value, also where that is apart
  const struct wh_ver *ver;  // its version in the active memtable; NULL: it is below that memtable
  bool there;
};

// A long value is written before the leaf is locked, so that no writer waits for the disk: a first try decides, the
// value is written, and a later try commits if the key has the same record. Another writer may come between again and
// again; after so many values that were written in vain the next one is written with the leaf locked.
#define MERGE_VALUES 4u

// The value that a merge has written apart.
struct merge_apart {
  struct value_apart value;
  struct kv_rec to;  // the decision; once the value is written, with the reference to it
  bool due;          // out of a try: the value is to be written
  bool vain;         // out of a try: the key has another record
  uint32_t nr;       // values written
  uint64_t seq;      // the number of the record that the decision is for; 0: there was none
};

// Tells whether the new value is a part of the old one.
static bool is_part(const struct kv_rec *to, const struct kv_rec *rec) {
  const uintptr_t at = (uintptr_t)to->val, from = (uintptr_t)rec->val;
  return to->vlen && at >= from && at < from + rec->vlen;
}

// Commits the decision. The key's leaf is locked.
static enum remixdb_status merge_commit(struct xdb_ref *r, const struct super *v, struct wh_slot *slot,
                                        struct merge_call *c, struct merge_apart *a) {
  struct xdb *x = r->xdb;
  enum remixdb_status s = REMIXDB_OK;
  if (!a->value.file) {
    a->to = c->to;
    a->due = values_direct(a->to.klen, a->to.vlen) && a->nr < MERGE_VALUES;
    if (unlikely(a->due)) return REMIXDB_ABORTED;
    if (values_direct(a->to.klen, a->to.vlen)) s = values_put(x, &a->to, &a->value);
  }
  struct kv_rec to = a->to;
  if (r->space) to.kind |= KV_SPACES;
  return s == REMIXDB_OK ? commit_record(x, &r->slot, v->active, slot, &to, to.kind, false, v) : s;
}

// Decides and commits under the leaf's lock. Leaves the epoch in any case.
static enum remixdb_status merge_locked(struct xdb_ref *r, const struct super *v, struct merge_call *c,
                                        const struct before *before, struct merge_apart *a) {
  struct xdb *x = r->xdb;
  struct memtable *const m = v->active;
  struct wh_slot slot;
  wh_lock(memtable_tree(m, r->tree), c->key, c->hash, &slot);
  const struct wh_ver *const newest = wh_slot_newest(&slot);
  struct kv_rec rec = before->rec;
  if (newest && newest != before->ver) {
    wh_ver_value(newest, &rec);
    rec.seq = wh_ver_seq(newest);
  }
  const bool there = (newest || before->there) && !xdb_ref_absent(r, &rec);
  // Another thread has put a long value meanwhile: it is read before the next try.
  const bool again = there && rec.kind & KV_APART && !c->compares;
  const uint64_t seq = there ? rec.seq : 0;
  a->vain = a->value.file && a->seq != seq;
  enum remixdb_status s = REMIXDB_OK;
  if (again || a->vain) s = REMIXDB_ABORTED;
  else if (!a->value.file) s = merge_decide(x, c, there ? &rec : NULL);
  a->seq = seq;
  if (there && is_part(&c->to, &rec)) a->nr = MERGE_VALUES;  // these bytes stay as long as the leaf is locked
  if (s == REMIXDB_OK && c->op != REMIXDB_MERGE_KEEP) {
    s = merge_commit(r, v, &slot, c, a);
    if (likely(s == REMIXDB_OK)) return s;
  }
  wh_unlock(&slot);
  epoch_exit(&r->slot);
  return s;
}

// Reads the value of the record before a merge, which is apart, for the next try. Leaves the epoch first.
static __attribute__((noinline)) enum remixdb_status merge_load(struct xdb_ref *r, const struct super *v,
                                                                struct merge_call *c, const struct kv_rec *rec) {
  void *was = NULL;
  mem_free(c->was);
  c->was = NULL;
  if (rec->vlen == VALUE_REF) memcpy(c->was_ref, rec->val, VALUE_REF);
  const enum remixdb_status s = pin_alloc_apart(r, v, c->key, rec, &was, NULL);
  c->was = was;
  return s == REMIXDB_OK ? REMIXDB_ABORTED : s;
}

// Gives the record its value, if the try before has read it.
static bool merge_has_loaded(const struct merge_call *c, struct kv_rec *rec) {
  if (!c->was || rec->vlen != VALUE_REF || memcmp(rec->val, c->was_ref, VALUE_REF) != 0) return false;
  rec->vlen = value_ref_len(rec->val);
  rec->val = c->was;
  rec->kind &= ~(uint32_t)KV_APART;
  return true;
}

// One try. REMIXDB_ABORTED: nothing was done. *full_out: the memtable is full; else it was frozen meanwhile, or a value
// apart has to be read or written first.
static enum remixdb_status merge_once(struct xdb_ref *r, struct merge_call *c, struct merge_apart *a, bool *full_out) {
  struct xdb *x = r->xdb;
  struct before before;
  epoch_enter(&x->epoch, &r->slot);
  const struct super *v = xdb_super(x);
  struct memtable *m = v->active;
  *full_out = xdb_round_due(x, m, 0) || values_full(x, m);
  if (unlikely(*full_out)) {
    epoch_exit(&r->slot);
    return REMIXDB_ABORTED;
  }
  enum remixdb_status s = r->space ? space_check_write(v, c->key) : REMIXDB_OK;
  if (unlikely(s != REMIXDB_OK)) {
    epoch_exit(&r->slot);
    return s;
  }
  // The data below the active memtable does not change while that super is the store's. So the read comes before the
  // lock of the leaf, and no writer waits for the disk. A value that is apart is read outside of the epoch, too, and
  // the merge tries again. The commit checks that the super is still there: a range deletion replaces it.
  before.ver = wh_get(memtable_tree(m, r->tree), c->key, c->hash, WH_PENDING - 1);
  if (before.ver) {
    wh_ver_value(before.ver, &before.rec);
    before.rec.seq = wh_ver_seq(before.ver);
  } else {
    struct xdb_below place;
    xdb_below_begin(v, r->tree, c->key, c->hash, &place);
    s = xdb_below_numbered(&place, c->key, c->hash, WH_PENDING - 1, &r->hold, &before.rec);
  }
  before.there = s == REMIXDB_OK;
  const bool apart = before.there && before.rec.kind & KV_APART && !c->compares;
  if (unlikely(apart) && !merge_has_loaded(c, &before.rec)) return merge_load(r, v, c, &before.rec);
  if (likely(s == REMIXDB_OK || s == REMIXDB_NOTFOUND)) return merge_locked(r, v, c, &before, a);
  epoch_exit(&r->slot);
  return s;
}

// After a try that was given up: drops the value that was written in vain, or writes the one that is due. Outside of
// any epoch and lock. REMIXDB_ABORTED: try again.
static enum remixdb_status merge_apart(struct xdb *x, struct merge_apart *a) {
  enum remixdb_status s = REMIXDB_OK;
  if (a->vain) s = values_end(x, &a->value, REMIXDB_ABORTED);
  if (a->due) {
    a->nr++;
    s = write_apart(x, &a->to, &a->value);
  }
  a->vain = a->due = false;
  return s == REMIXDB_OK ? REMIXDB_ABORTED : s;
}

// Tries until the memtable takes the record, and none is frozen meanwhile.
static enum remixdb_status merge_all(struct xdb_ref *r, struct merge_call *c) {
  struct xdb *x = r->xdb;
  enum remixdb_status s = write_check(r);
  if (s == REMIXDB_OK) s = space_key(r, &c->key);
  if (s != REMIXDB_OK) return s;
  c->hash = hash64(c->key.ptr, c->key.len);
  c->nr_id = r->space ? NAMES_ID : 0;
  if (c->compares) {
    c->to.key = c->key.ptr;
    c->to.klen = c->key.len;
  }
  struct merge_apart apart = {0};
  bool full, tried = false;
  do {
    if ((s = xdb_failure(x)) != REMIXDB_OK) break;
    s = merge_once(r, c, &apart, &full);
    if (unlikely(apart.due || apart.vain)) s = merge_apart(x, &apart);
    if (unlikely(full) && (s = write_wait_room(x, 0, false)) == REMIXDB_OK) s = REMIXDB_ABORTED;
    if (unlikely(s == REMIXDB_NOSPACE) && !tried) {
      tried = true;
      s = write_no_room(x, c->op == REMIXDB_MERGE_DEL);
    }
  } while (unlikely(s == REMIXDB_ABORTED));
  mem_free(c->was);
  s = values_end(x, &apart.value, s);
  if (s == REMIXDB_OK && values_apart(c->to.klen, c->to.vlen)) value_pace(x);
  if (s != REMIXDB_OK || c->op == REMIXDB_MERGE_KEEP) return s;
  return write_done(r, c->to.klen + c->to.vlen + sizeof(struct wh_ver));
}

enum remixdb_status xdb_merge(struct xdb_ref *r, struct kref key, remixdb_merge_fn fn, void *priv) {
  if (unlikely(r->calls != NULL)) return r->calls->merge(r, key, fn, priv);
  struct merge_call c = {.key = key, .fn = fn, .priv = priv};
  return merge_all(r, &c);
}

// In a transaction the comparison is with what the transaction reads, and the record goes among its own.
static enum remixdb_status compare_in_txn(struct xdb_ref *r, struct merge_call *c) {
  struct kv_rec rec;
  enum remixdb_status s = xdb_getv(r, c->key, NULL, 0, NULL, &rec);
  if (s != REMIXDB_OK && s != REMIXDB_NOTFOUND) return s;
  if (s == REMIXDB_OK && rec.seq == 0)
    return err_set(REMIXDB_ABORTED, "the transaction has written the key, which has no version before the commit");
  s = merge_decide(r->xdb, c, s == REMIXDB_OK ? &rec : NULL);
  return s == REMIXDB_OK && c->op != REMIXDB_MERGE_KEEP ? r->calls->put(r, &c->to) : s;
}

enum remixdb_status xdb_put_if(struct xdb_ref *r, const struct kv_rec *rec, uint64_t version) {
  const struct kref key = kref(rec->key, rec->klen);
  struct merge_call c = {.key = key, .compares = true, .version = version, .to = *rec};
  const enum remixdb_status s = unlikely(r->calls != NULL) ? compare_in_txn(r, &c) : merge_all(r, &c);
  if (s != REMIXDB_OK || c.op != REMIXDB_MERGE_KEEP) return s;
  if (c.is) return err_set(REMIXDB_ABORTED, "the key has version %" PRIu64 " now", c.is);
  return err_set(REMIXDB_ABORTED, "the key does not exist any more");
}

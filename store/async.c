// SPDX-License-Identifier: Apache-2.0
#include "store/async.h"

#include <assert.h>

#include "store/idle.h"
#include "store/space_ref.h"
#include "table/fetch.h"
#include "value/read.h"
#include "view/candidate.h"

#define KEY_SMALL 64u  // bytes of a key that a get has room for itself
#define START_MIN 32u  // so many blocks are handed over together by a begin

// A version that gets wait in.
struct held {
  struct version *version;
  uint32_t nr;  // gets
  struct held *next;
};

// Why a get failed.
struct failure {
  struct failure *next;
  struct err_saved error;
};

struct get {
  struct get *next;  // in one list: free, ready, or the readers of a fetch
  void *priv;        // the caller's, as are the next two
  uint8_t *val;
  uint32_t cap;
  uint64_t now_ms;  // the wall clock at its beginning, by which it judges what has expired; not set if nothing expires
  uint32_t len;     // the result, as are the next two
  enum remixdb_status status;
  struct failure *failure;        // NULL: it has not failed, or there was no memory for the message
  struct held *held;              // while it waits
  const struct version *version;  // of its moment: held, or of the begin's epoch
  uint8_t *long_key;              // own memory; NULL: the key is in small_key
  struct remix_probe probe;       // its key is one of the two
  struct remix *page;             // the page of a REMIX that the probe is in while it waits, with a reference; or NULL
  uint8_t small_key[KEY_SMALL];
};

struct xdb_gets {
  struct xdb_ref *ref;
  struct sst_fetcher *fetcher;
  uint32_t depth;
  uint32_t nr;        // under way
  uint32_t nr_ready;  // of these, with a result
  struct get *free, *ready, **ready_tail;
  struct held *held;       // the newest first
  struct held *left;       // no get waits in them any more; given up outside of the epoch
  struct held *free_held;  // as many as gets, because each held version has one
  struct held *helds;
  struct failure *told;  // of the results that were taken last: their messages are the caller's until the next call
  struct sst_hold hold;  // of searches
  const struct super *super;  // during a begin: where its memtables' values are; else NULL
  bool rung;                  // the bell was rung since it was cleared
  struct get gets[];
};

static const uint8_t first[] = {0};  // for the calls that take many probes

// ---- making

enum remixdb_status xdb_gets_create(struct xdb_ref *r, uint32_t depth, struct xdb_gets **out) {
  *out = NULL;
  if (depth == 0 || depth > REMIXDB_GETS_MAX)
    return err_set(REMIXDB_INVALID, "depth %u: 1 to %u gets may be under way", depth, REMIXDB_GETS_MAX);
  struct xdb_gets *const g = mem_calloc(1, sizeof(*g) + depth * sizeof(g->gets[0]));
  if (!g) return REMIXDB_NOMEM;
  g->ref = r;
  g->depth = depth;
  g->ready_tail = &g->ready;
  enum remixdb_status s = REMIXDB_NOMEM;
  if ((g->helds = mem_calloc(depth, sizeof(*g->helds))) != NULL)
    s = sst_fetcher_create(&r->xdb->io, depth, &g->fetcher);
  if (s != REMIXDB_OK) {
    xdb_gets_destroy(g);
    return s;
  }
  for (uint32_t i = depth; i-- > 0;) {
    g->gets[i].next = g->free;
    g->free = &g->gets[i];
    g->helds[i].next = g->free_held;
    g->free_held = &g->helds[i];
  }
  *out = g;
  return s;
}

struct xdb_ref *xdb_gets_ref(const struct xdb_gets *g) {
  return g->ref;
}

static void failures_free(struct xdb_gets *g) {
  struct failure *f;
  while ((f = g->told) != NULL) {
    g->told = f->next;
    mem_free(f);
  }
}

void xdb_gets_destroy(struct xdb_gets *g) {
  if (!g) return;
  sst_fetcher_destroy(g->fetcher);  // before the versions: fetches use their tables
  for (struct held *h = g->held; h; h = h->next) xdb_version_drop(g->ref->xdb, h->version);
  for (uint32_t i = 0; i < g->depth; i++) {
    remix_unref(g->gets[i].page);
    mem_free(g->gets[i].long_key);
    mem_free(g->gets[i].failure);
  }
  failures_free(g);
  sst_hold_fini(&g->hold);
  mem_free(g->helds);
  mem_free(g);
}

// ---- versions that gets wait in

// Inside the epoch in which the version was found.
static void get_hold(struct xdb_gets *g, struct get *w, struct version *version) {
  struct held *h = g->held;
  while (h && h->version != version) h = h->next;
  if (!h) {
    h = g->free_held;
    assert(h);
    g->free_held = h->next;
    *h = (struct held){.version = version, .next = g->held};
    g->held = h;
    version_ref(version);
  }
  h->nr++;
  w->held = h;
}

static void get_unhold(struct xdb_gets *g, struct get *w) {
  struct held *const h = w->held;
  w->held = NULL;
  if (!h || --h->nr > 0) return;
  struct held **p = &g->held;
  while (*p != h) p = &(*p)->next;
  *p = h->next;
  h->next = g->left;
  g->left = h;
}

// Outside of any epoch, because a version's last reference may free much.
static void held_give_up(struct xdb_gets *g) {
  struct held *h;
  while ((h = g->left) != NULL) {
    g->left = h->next;
    xdb_version_drop(g->ref->xdb, h->version);
    h->next = g->free_held;
    g->free_held = h;
  }
}

// ---- results

// The probe stays in its page, or goes on to it; NULL: it is in none.
static __attribute__((noinline)) void get_page(struct get *w, struct remix *page) {
  if (page) remix_ref(page);
  remix_unref(w->page);
  w->page = page;
}

static void get_ready(struct xdb_gets *g, struct get *w, enum remixdb_status s) {
  if (unlikely(w->page != NULL)) get_page(w, NULL);
  w->status = s;
  mem_free(w->long_key);
  w->long_key = NULL;
  get_unhold(g, w);
  w->next = NULL;
  *g->ready_tail = w;
  g->ready_tail = &w->next;
  g->nr_ready++;
}

// The thread's message is of s.
static void get_failed(struct xdb_gets *g, struct get *w, enum remixdb_status s) {
  struct err_saved error;
  err_save(&error, s);
  w->failure = mem_alloc(sizeof(*w->failure));
  if (w->failure) w->failure->error = error;
  get_ready(g, w, s);
}

// The same for a record whose value is apart. Reads the value.
static __attribute__((noinline)) void get_found_apart(struct xdb_gets *g, struct get *w, const struct kv_rec *rec) {
  struct value_ref to;
  uint32_t n = 0;
  enum remixdb_status s;
  if (g->super) {
    s = super_read(g->super, w->probe.key, rec, 0, w->val, w->cap, &n);
  } else {
    struct value_file *const f = value_ref_get(rec->val, rec->vlen, &to) ? version_value(w->version, &to) : NULL;
    s = f ? value_read(f, &to, w->probe.key, 0, w->val, w->cap, &n)
          : err_set(REMIXDB_CORRUPT, "a record refers to a value file that the store does not have");
  }
  if (s != REMIXDB_OK) {
    get_failed(g, w, s);
    return;
  }
  w->len = super_vlen(rec);
  get_ready(g, w, n < w->len && w->val ? REMIXDB_TOOBIG : REMIXDB_OK);
}

static void get_found(struct xdb_gets *g, struct get *w, const struct kv_rec *rec) {
  const uint32_t len = rec->vlen;
  if (unlikely(rec->kind & (KV_TOMB | KV_EXPIRES)) && (rec->kind & KV_TOMB || rec->expiry <= w->now_ms)) {
    get_ready(g, w, REMIXDB_NOTFOUND);
    return;
  }
  if (unlikely(rec->kind & KV_APART)) {
    get_found_apart(g, w, rec);
    return;
  }
  const uint32_t n = len < w->cap ? len : w->cap;
  if (n) memcpy(w->val, rec->val, n);
  w->len = len;
  get_ready(g, w, n < len && w->val ? REMIXDB_TOOBIG : REMIXDB_OK);
}

// ---- the way of a get through the tables

// Compares the candidate. False: it is another key.
static bool get_compare(struct xdb_gets *g, struct get *w, const uint8_t *data) {
  struct kv_rec rec;
  if (!candidate_record(&w->probe, data, &rec)) return false;
  get_found(g, w, &rec);
  return true;
}

static void get_search(struct xdb_gets *g, struct get *w) {
  struct kv_rec rec;
  const enum remixdb_status s = candidate_search(&w->probe, &g->hold, &rec);
  if (s == REMIXDB_OK) get_found(g, w, &rec);
  else if (s == REMIXDB_NOTFOUND) get_ready(g, w, s);
  else get_failed(g, w, s);
}

static void get_wait(struct xdb_gets *g, struct get *w) {
  if (unlikely(w->probe.x->of != NULL)) get_page(w, (struct remix *)(uintptr_t)w->probe.x);
  struct sst_fetch *const f = sst_fetcher_ask(g->fetcher, w->probe.sst, sst_pos_block(w->probe.pos));
  w->next = f->readers;
  f->readers = w;
}

// Goes on until the get is ready (returns true) or joins a fetch (false). Inside an epoch. landed: a fetch that was
// taken, or NULL; its block need not be in the cache.
static bool get_advance(struct xdb_gets *g, struct get *w, const struct sst_fetch *landed) {
  struct remix_probe *const p = &w->probe;
  for (;;) {
    if (unlikely(p->search)) {
      get_search(g, w);
      return true;
    }
    if (p->set) {
      remix_probe_next(p, first, 1);
      const bool there = landed && landed->sst == p->sst && landed->block == sst_pos_block(p->pos);
      const uint8_t *const data = there ? landed->data : candidate_cached(p);
      struct kv_rec rec;
      if (data && get_compare(g, w, data)) return true;
      if (!data && candidate_alone(p, &rec)) {
        if (!kv_eq(kref(rec.key, rec.klen), p->key)) continue;
        get_found(g, w, &rec);
        return true;
      }
      if (data || !remix_probe_fits(p)) continue;
      get_wait(g, w);
      return false;
    }
    if (!p->older) break;
    candidate_older(p);
    remix_probe_find(p, first, 1, true);
  }
  get_ready(g, w, REMIXDB_NOTFOUND);
  return true;
}

// ---- beginning

// Fills a free get in. REMIXDB_NOMEM.
static enum remixdb_status get_init(struct get *w, struct kref *key, void *val, uint32_t cap, void *priv) {
  uint8_t *copy = w->small_key;
  if (unlikely(key->len > KEY_SMALL) && !(copy = w->long_key = mem_alloc(key->len))) return REMIXDB_NOMEM;
  if (key->len) memcpy(copy, key->ptr, key->len);
  key->ptr = copy;
  w->priv = priv;
  w->val = val;
  w->cap = cap;
  w->len = 0;
  w->failure = NULL;
  w->held = NULL;
  return REMIXDB_OK;
}

// The bell says that a poll has something to do.
static void gets_ring(struct xdb_gets *g) {
  if (!g->rung) blkio_flow_ring_bell(sst_fetcher_flow(g->fetcher));
  g->rung = true;
}

// Sets the probe of a key's partition. Fails with REMIXDB_NOTFOUND if it is empty, or as part_ready does.
static enum remixdb_status begin_probe(struct remix_probe *p, const struct part *part, struct kref key, uint64_t hash) {
  if (likely(candidate_begin(p, part, key, hash))) return REMIXDB_OK;
  const enum remixdb_status s = part_ready(part);
  if (s != REMIXDB_OK) return s;
  return candidate_begin(p, part, key, hash) ? REMIXDB_OK : REMIXDB_NOTFOUND;
}

enum remixdb_status xdb_get_begin(struct xdb_gets *g, struct kref key, void *val, uint32_t cap, void *priv) {
  struct xdb *const x = g->ref->xdb;
  struct get *const w = g->free;
  failures_free(g);
  if (unlikely(!w)) return err_set(REMIXDB_ABORTED, "%u gets are under way: take results first", g->depth);
  enum remixdb_status s = space_key(g->ref, &key);
  if (unlikely(s != REMIXDB_OK)) return s;
  const uint64_t hash = hash64(key.ptr, key.len);
  s = get_init(w, &key, val, cap, priv);
  if (unlikely(s != REMIXDB_OK)) return s;
  g->free = w->next;
  g->nr++;
  epoch_enter(&x->epoch, &g->ref->slot);
  uint64_t moment;
  const struct super *const v = xdb_ref_super(g->ref, &moment);
  g->super = v;
  w->version = v->version;
  w->probe.key = key;
  const uint32_t tree = g->ref->tree;
  if (super_expires(v, tree)) w->now_ms = xdb_ref_now(g->ref);
  const struct wh *const frozen = super_frozen(v, tree);
  const struct version *const parts = version_tree(v->version, tree);
  const struct wh_ver *ver = wh_get(memtable_tree(v->active, tree), key, hash, moment);
  if (!ver && frozen) ver = wh_get(frozen, key, hash, moment);
  if (ver) {
    struct kv_rec rec;
    wh_ver_value(ver, &rec);
    get_found(g, w, &rec);
  } else if ((s = begin_probe(&w->probe, parts->parts[version_find(parts, key)], key, hash)) == REMIXDB_NOTFOUND) {
    get_ready(g, w, s);
  } else if (unlikely(s != REMIXDB_OK)) {
    get_failed(g, w, s);
  } else {
    remix_probe_find(&w->probe, first, 1, true);
    if (!get_advance(g, w, NULL)) get_hold(g, w, v->version);
  }
  g->super = NULL;
  epoch_exit(&g->ref->slot);
  if (sst_fetcher_waiting(g->fetcher) >= START_MIN && sst_fetcher_lasts(g->fetcher)) sst_fetcher_submit(g->fetcher);
  gets_ring(g);
  return REMIXDB_OK;
}

// ---- taking

// A fetch was taken: its readers compare their keys.
static void land(struct xdb_gets *g, struct sst_fetch *f) {
  struct err_saved error;
  if (unlikely(f->status != REMIXDB_OK)) err_save(&error, f->status);
  epoch_enter(&g->ref->xdb->epoch, &g->ref->slot);
  for (struct get *w = f->readers, *next; w; w = next) {
    next = w->next;
    if (unlikely(f->status != REMIXDB_OK)) get_failed(g, w, err_raise(&error));
    else if (!get_compare(g, w, f->data)) (void)get_advance(g, w, f);
  }
  epoch_exit(&g->ref->slot);
}

// Starts the fetches that wait, and takes those that have ended, until neither is left. wait: sleeps for the first one.
static void drive(struct xdb_gets *g, bool wait) {
  bool any;
  do {
    struct sst_fetch *f;
    any = false;
    sst_fetcher_submit(g->fetcher);
    while ((f = sst_fetcher_take(g->fetcher, wait)) != NULL) {
      land(g, f);
      sst_fetcher_give(g->fetcher, f);
      wait = false;
      any = true;
    }
  } while (any);
  held_give_up(g);
}

// Whether the poll waits for another fetch.
static bool wants_more(const struct xdb_gets *g, size_t min) {
  return sst_fetcher_count(g->fetcher) > 0 && (g->nr_ready < min || !sst_fetcher_lasts(g->fetcher));
}

static void take_result(struct xdb_gets *g, struct remixdb_got *out) {
  struct get *const w = g->ready;
  g->ready = w->next;
  if (!g->ready) g->ready_tail = &g->ready;
  g->nr_ready--;
  g->nr--;
  const char *msg = "";
  if (w->status == REMIXDB_TOOBIG) msg = "the value is longer than its buffer";
  else if (w->failure) msg = w->failure->error.msg;
  else if (w->status != REMIXDB_OK && w->status != REMIXDB_NOTFOUND) msg = "no memory for the message";
  *out = (struct remixdb_got){w->priv, w->status, w->len, msg};
  if (w->failure) {
    w->failure->next = g->told;
    g->told = w->failure;
    w->failure = NULL;
  }
  w->next = g->free;
  g->free = w;
}

enum remixdb_status xdb_get_poll(struct xdb_gets *g, struct remixdb_got *out, size_t max, size_t min, size_t *nr_out) {
  *nr_out = 0;
  failures_free(g);
  if (min > max) min = max;
  drive(g, false);
  while (wants_more(g, min)) drive(g, true);
  blkio_flow_clear_bell(sst_fetcher_flow(g->fetcher));
  g->rung = false;
  if (g->nr == 0) return REMIXDB_NOTFOUND;
  // A read that ended before the bell was cleared is taken now; one that ends later rings it again.
  drive(g, false);
  for (; *nr_out < max && g->ready; ++*nr_out) take_result(g, &out[*nr_out]);
  if (g->ready) gets_ring(g);
  return REMIXDB_OK;
}

enum remixdb_status xdb_gets_fd(struct xdb_gets *g, int *fd_out) {
  const enum remixdb_status s = blkio_flow_bell(sst_fetcher_flow(g->fetcher), fd_out);
  g->rung = false;
  if (s == REMIXDB_OK && g->nr > 0) gets_ring(g);
  return s;
}

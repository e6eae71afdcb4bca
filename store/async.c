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

// A version that gets wait in, or a super: a value that a record of a memtable refers to is in a file of the super's.
struct held {
  struct version *version;
  struct super *super;  // NULL: the version is held; else the super is, which has it
  uint32_t nr;          // gets
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
  struct version *version;        // its moment's: held, or of the begin's epoch
  uint8_t *long_key;              // own memory; NULL: the key is in small_key
  struct remix_probe probe;       // its key is one of the two
  struct remix *page;             // the page of a REMIX that the probe is in while it waits, with a reference; or NULL
  struct value_reading *reading;  // it waits for bytes of its value, which is apart; NULL: for a block
  uint8_t small_key[KEY_SMALL];
};

struct xdb_gets {
  struct xdb_ref *ref;
  struct fetcher *fetcher;
  uint32_t depth;
  uint32_t nr;        // under way
  uint32_t nr_ready;  // gets that have a result
  struct get *free, *ready, **ready_tail;
  struct held *held;       // the newest first
  struct held *left;       // no get waits in them any more; given up outside of the epoch
  struct held *free_held;  // as many as gets, because each held version has one
  struct held *helds;
  struct failure *told;  // for the results that were taken last: their messages are the caller's until the next call
  struct sst_hold hold;  // for searches
  struct super *super;   // during a begin: where its memtables' values are; else NULL
  bool rung;             // the bell was rung since it was cleared
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
  if ((g->helds = mem_calloc(depth, sizeof(*g->helds))) != NULL) s = fetcher_create(&r->xdb->io, depth, &g->fetcher);
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

static void held_drop(struct xdb_gets *g, const struct held *h) {
  if (h->super) xdb_super_drop(g->ref->xdb, h->super);
  else xdb_version_drop(g->ref->xdb, h->version);
}

static void reading_free(struct get *w) {
  value_reading_end(w->reading);
  mem_free(w->reading);
  w->reading = NULL;
}

void xdb_gets_destroy(struct xdb_gets *g) {
  if (!g) return;
  fetcher_destroy(g->fetcher);  // before the versions: fetches use their files
  for (uint32_t i = 0; i < g->depth; i++)
    if (g->gets[i].reading) reading_free(&g->gets[i]);
  for (struct held *h = g->held; h; h = h->next) held_drop(g, h);
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

// Inside the epoch in which the version was found. super: it is held in place of its version; NULL: the version is.
static void get_hold(struct xdb_gets *g, struct get *w, struct version *version, struct super *super) {
  struct held *h = g->held;
  while (h && (h->version != version || h->super != super)) h = h->next;
  if (!h) {
    h = g->free_held;
    assert(h);
    g->free_held = h->next;
    *h = (struct held){.version = version, .super = super, .next = g->held};
    g->held = h;
    if (super) super_ref(super);
    else version_ref(version);
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

// Outside of any epoch, because a last reference may free much.
static void held_give_up(struct xdb_gets *g) {
  struct held *h;
  while ((h = g->left) != NULL) {
    g->left = h->next;
    held_drop(g, h);
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
  if (unlikely(w->reading != NULL)) reading_free(w);
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

// The value is in its buffer, as far as it fits.
static void get_has(struct xdb_gets *g, struct get *w, uint32_t len) {
  w->len = len;
  get_ready(g, w, w->cap < len && w->val ? REMIXDB_TOOBIG : REMIXDB_OK);
}

// ---- values that are apart

static void get_join(struct get *w, struct fetch *f) {
  w->next = f->readers;
  f->readers = w;
}

// Waits for the bytes that the reading needs next. The file may end before them.
static void reading_wait(struct xdb_gets *g, struct get *w) {
  struct value_reading *const v = w->reading;
  const uint64_t size = value_file_size(v->f);
  const uint32_t len = v->off < size && size - v->off < v->len ? (uint32_t)(size - v->off) : v->len;
  get_join(w, fetcher_ask_bytes(g->fetcher, &v->f->file, v->f->path, v->off, len, v->into));
}

// Finds the file of the record's value, and tells whether the get's version has it. It is the super's otherwise.
static enum remixdb_status find_file(const struct xdb_gets *g, const struct get *w, const struct kv_rec *rec,
                                     struct value_ref *to, struct value_file **out, bool *of_version_out) {
  *out = value_ref_get(rec->val, rec->vlen, to) ? version_value(w->version, to) : NULL;
  *of_version_out = *out != NULL;
  if (*out) return REMIXDB_OK;
  if (g->super) return super_value(g->super, rec, to, out);
  return err_set(REMIXDB_CORRUPT, "a record refers to a value file that the store does not have");
}

// The get has found a record whose value is apart. Returns whether it is ready; else it waits for the value.
static __attribute__((noinline)) bool get_found_apart(struct xdb_gets *g, struct get *w, const struct kv_rec *rec) {
  struct value_ref to;
  struct value_file *f;
  bool of_version;
  enum remixdb_status s = find_file(g, w, rec, &to, &f, &of_version);
  const uint32_t n = s != REMIXDB_OK || w->cap < to.len ? w->cap : to.len;
  if (s == REMIXDB_OK && n == 0) {
    get_has(g, w, to.len);
    return true;
  }
  struct value_reading *const v = s == REMIXDB_OK ? mem_alloc(sizeof(*v)) : NULL;
  if (!v) {
    get_failed(g, w, s == REMIXDB_OK ? REMIXDB_NOMEM : s);
    return true;
  }
  value_reading_begin(v, f, &to, w->probe.key, 0, w->val, n);
  w->reading = v;
  if (unlikely(w->page != NULL)) get_page(w, NULL);
  if (!w->held) get_hold(g, w, w->version, of_version ? NULL : g->super);
  reading_wait(g, w);
  return false;
}

// The get has found the newest record of its key. Returns whether it is ready.
static bool get_found(struct xdb_gets *g, struct get *w, const struct kv_rec *rec) {
  const uint32_t len = rec->vlen;
  if (unlikely(rec->kind & (KV_TOMB | KV_EXPIRES)) && (rec->kind & KV_TOMB || rec->expiry <= w->now_ms)) {
    get_ready(g, w, REMIXDB_NOTFOUND);
    return true;
  }
  if (unlikely(rec->kind & KV_APART)) return get_found_apart(g, w, rec);
  const uint32_t n = len < w->cap ? len : w->cap;
  if (n) memcpy(w->val, rec->val, n);
  get_has(g, w, len);
  return true;
}

// ---- the way of a get through the tables

// Compares the candidate. False: it is another key. *ready_out is set otherwise.
static bool get_compare(struct xdb_gets *g, struct get *w, const uint8_t *data, bool *ready_out) {
  struct kv_rec rec;
  if (!candidate_record(&w->probe, data, &rec)) return false;
  *ready_out = get_found(g, w, &rec);
  return true;
}

static bool get_search(struct xdb_gets *g, struct get *w) {
  struct kv_rec rec;
  const enum remixdb_status s = candidate_search(&w->probe, &g->hold, &rec);
  if (s == REMIXDB_OK) return get_found(g, w, &rec);
  if (s == REMIXDB_NOTFOUND) get_ready(g, w, s);
  else get_failed(g, w, s);
  return true;
}

static void get_wait(struct xdb_gets *g, struct get *w) {
  if (unlikely(w->probe.x->of != NULL)) get_page(w, (struct remix *)(uintptr_t)w->probe.x);
  get_join(w, fetcher_ask(g->fetcher, w->probe.sst, sst_pos_block(w->probe.pos)));
}

// Goes on until the get is ready (returns true) or joins a fetch (false). Inside an epoch. landed: a fetch that was
// taken, or NULL; its block need not be in the cache.
static bool get_advance(struct xdb_gets *g, struct get *w, const struct fetch *landed) {
  struct remix_probe *const p = &w->probe;
  bool ready;
  for (;;) {
    if (unlikely(p->search)) return get_search(g, w);
    if (p->set) {
      remix_probe_next(p, first, 1);
      const bool there = landed && landed->sst == p->sst && landed->block == sst_pos_block(p->pos);
      const uint8_t *const data = there ? landed->data : candidate_cached(p);
      struct kv_rec rec;
      if (data && get_compare(g, w, data, &ready)) return ready;
      if (!data && candidate_alone(p, &rec)) {
        if (!kv_eq(kref(rec.key, rec.klen), p->key)) continue;
        return get_found(g, w, &rec);
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
  w->reading = NULL;
  return REMIXDB_OK;
}

// The bell says that a poll has something to do.
static void gets_ring(struct xdb_gets *g) {
  if (!g->rung) blkio_flow_ring_bell(fetcher_flow(g->fetcher));
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
  struct super *const v = xdb_ref_super(g->ref, &moment);
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
    (void)get_found(g, w, &rec);
  } else if ((s = begin_probe(&w->probe, parts->parts[version_find(parts, key)], key, hash)) == REMIXDB_NOTFOUND) {
    get_ready(g, w, s);
  } else if (unlikely(s != REMIXDB_OK)) {
    get_failed(g, w, s);
  } else {
    remix_probe_find(&w->probe, first, 1, true);
    if (!get_advance(g, w, NULL) && !w->held) get_hold(g, w, v->version, NULL);
  }
  g->super = NULL;
  epoch_exit(&g->ref->slot);
  if (fetcher_waiting(g->fetcher) >= START_MIN && fetcher_lasts(g->fetcher)) fetcher_submit(g->fetcher);
  gets_ring(g);
  return REMIXDB_OK;
}

// ---- taking

// A fetch of bytes was taken: they are of its reader's value.
static void land_bytes(struct xdb_gets *g, struct fetch *f) {
  struct get *const w = f->readers;
  enum remixdb_status s = f->status;
  if (s == REMIXDB_OK) s = value_reading_take(w->reading, f->data, f->len);
  if (s != REMIXDB_OK) get_failed(g, w, s);
  else if (w->reading->len > 0) reading_wait(g, w);
  else get_has(g, w, w->reading->ref.len);
}

// A fetch of a block was taken: its readers compare their keys.
static void land(struct xdb_gets *g, struct fetch *f) {
  struct err_saved error;
  bool ready;
  if (unlikely(f->status != REMIXDB_OK)) err_save(&error, f->status);
  epoch_enter(&g->ref->xdb->epoch, &g->ref->slot);
  for (struct get *w = f->readers, *next; w; w = next) {
    next = w->next;
    if (unlikely(f->status != REMIXDB_OK)) get_failed(g, w, err_raise(&error));
    else if (!get_compare(g, w, f->data, &ready)) (void)get_advance(g, w, f);
  }
  epoch_exit(&g->ref->slot);
}

// Starts the fetches that wait, and takes those that have ended, until neither is left. wait: sleeps for the first one.
static void drive(struct xdb_gets *g, bool wait) {
  bool any;
  do {
    struct fetch *f;
    any = false;
    fetcher_submit(g->fetcher);
    while ((f = fetcher_take(g->fetcher, wait)) != NULL) {
      if (f->sst) land(g, f);
      else land_bytes(g, f);
      fetcher_give(g->fetcher, f);
      wait = false;
      any = true;
    }
  } while (any);
  held_give_up(g);
}

// Whether the poll waits for another fetch.
static bool wants_more(const struct xdb_gets *g, size_t min) {
  return fetcher_count(g->fetcher) > 0 && (g->nr_ready < min || !fetcher_lasts(g->fetcher));
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
  blkio_flow_clear_bell(fetcher_flow(g->fetcher));
  g->rung = false;
  if (g->nr == 0) return REMIXDB_NOTFOUND;
  // A read that ended before the bell was cleared is taken now; one that ends later rings it again.
  drive(g, false);
  for (; *nr_out < max && g->ready; ++*nr_out) take_result(g, &out[*nr_out]);
  if (g->ready) gets_ring(g);
  return REMIXDB_OK;
}

enum remixdb_status xdb_gets_fd(struct xdb_gets *g, int *fd_out) {
  const enum remixdb_status s = blkio_flow_bell(fetcher_flow(g->fetcher), fd_out);
  g->rung = false;
  if (s == REMIXDB_OK && g->nr > 0) gets_ring(g);
  return s;
}

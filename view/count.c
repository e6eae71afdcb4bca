// SPDX-License-Identifier: Apache-2.0
#include "view/count.h"

#include "value/format.h"

#define EXACT 64u         // entries of a stream that are looked up without a doubt: tags are wrong once in 256 times
#define YOUNG_WHOLE 512u  // entries of all young views together that are all looked up
#define CLUSTERS_MIN 128u
#define CLUSTERS_MAX 512u
#define SEGMENTS 2048u    // segments that are looked at in all partitions, about
#define SEGMENTS_MIN 16u  // segments in each partition

enum { ACTIVE, FROZEN, YOUNG };  // the newer streams

// The sum over a newer stream's sample. One is of entries whose newest version is a tombstone, one of all others.
struct stratum {
  double nr, keys, bytes;
};

struct work {
  struct count *c;
  double keys, bytes;
  bool exact;            // the stream has few entries: each guess of the tags is looked up
  double record;         // bytes of a record of the older views, on average
  struct sst_hold hold;  // for reads in the older views
  struct sst_hold young_hold;
  struct stratum strata[2];
};

// A part of the young views' live entries, over all partitions of the range.
struct stretch {
  struct remix *x;
  uint64_t from, to;  // ranks
};

static enum remixdb_status go_on(const struct count *c) {
  const bool stop = c->stop && atomic_load_explicit(c->stop, memory_order_relaxed);
  return unlikely(stop) ? err_set(REMIXDB_ABORTED, "the count was stopped") : REMIXDB_OK;
}

// ---- the views

// The live entries of a partition's view whose keys are in the range. Only the first and the last partition of the
// range have a bound inside.
static enum remixdb_status view_stretch(struct work *w, struct remix *x, bool low, bool high, struct stretch *out) {
  const struct count *const c = w->c;
  enum remixdb_status s = REMIXDB_OK;
  *out = (struct stretch){.x = x, .to = remix_live(x)};
  epoch_enter(c->epoch, c->slot);
  if (low && c->low.ptr) s = remix_rank(x, c->low, &w->hold, &out->from);
  if (high && c->high.ptr && s == REMIXDB_OK) s = remix_rank(x, c->high, &w->hold, &out->to);
  epoch_exit(c->slot);
  if (out->to < out->from) out->to = out->from;
  return s;
}

// Looks at about so many segments of a stretch that is not empty, but at SEGMENTS_MIN at least.
static enum remixdb_status stretch_share(struct work *w, const struct stretch *t, uint32_t segs,
                                         struct remix_share *out) {
  epoch_enter(w->c->epoch, w->c->slot);
  const enum remixdb_status s = remix_share(t->x, t->from, t->to, segs > SEGMENTS_MIN ? segs : SEGMENTS_MIN, out);
  epoch_exit(w->c->slot);
  if (s == REMIXDB_OK) w->c->segments += out->segs;
  return s;
}

static double table_bytes(const struct sst *t) {
  uint64_t n = t->key_bytes + t->value_bytes;
  for (uint32_t i = 0; i < t->nr_apart; i++) n += t->apart[i].bytes;
  return (double)n;
}

// The bytes of the run's live records in a stretch. Where the stretch has a page of the run or more, the records' size
// is that of its pages; else it is that of the whole table.
static double run_bytes(const struct sst *t, const struct remix_run_share *r, double scale, double step) {
  const double key = (double)t->key_bytes / (double)t->nr_records, all = table_bytes(t);
  const double puts = (double)(t->nr_records - t->nr_tombs),
               mean = puts > 0 ? (all - (double)t->nr_tombs * key) / puts : 0;
  if (r->pages < 1 || r->all - r->tombs < 1) return r->live * scale * mean;
  const double here = all * r->pages / (double)t->nr_pages - r->tombs * step * key;
  return here > 0 ? here / step * r->live / (r->all - r->tombs) * scale : r->live * scale * mean;
}

// Counts the older views of the partitions [first, last].
static enum remixdb_status count_older(struct work *w, uint32_t first, uint32_t last) {
  const uint32_t share = SEGMENTS / (last - first + 1);
  for (uint32_t i = first; i <= last; i++) {
    const struct part *const p = w->c->version->parts[i];
    struct stretch t;
    struct remix_share shares;
    enum remixdb_status s = part_is_away(p) ? go_on(w->c) : REMIXDB_OK;
    if (s == REMIXDB_OK) s = part_ready(p);
    if (s != REMIXDB_OK) return s;
    struct remix *const x = part_remix(p);
    if (!x) continue;
    s = view_stretch(w, x, i == first, i == last, &t);
    if (s != REMIXDB_OK) return s;
    if (t.from == t.to) continue;
    w->keys += (double)(t.to - t.from);
    if (w->c->keys_only) continue;
    s = stretch_share(w, &t, share, &shares);
    if (s != REMIXDB_OK) return s;
    for (uint32_t r = 0; r < x->nr_runs; r++)
      w->bytes += run_bytes(x->runs[r], &shares.runs[r], shares.scale, shares.step);
  }
  w->record = w->keys > 0 ? w->bytes / w->keys : 0;
  return REMIXDB_OK;
}

// ---- whether the older streams have a key

// Whether the view has the key: a tombstone counts as `tomb`. exact: reads the record if the tags do not exclude it.
static enum remixdb_status view_has(struct work *w, struct remix *x, struct kref key, uint64_t hash, bool exact,
                                    bool *found_out, bool *tomb_out) {
  struct kv_rec rec;
  *found_out = false;
  enum remix_guess guess = x ? remix_guess(x, key, hash) : REMIX_ABSENT;
  if (guess == REMIX_ABSENT) return REMIXDB_OK;
  if (guess == REMIX_UNKNOWN || exact) {
    const enum remixdb_status s = remix_get(x, key, hash, &w->hold, &rec);
    if (s == REMIXDB_NOTFOUND) return REMIXDB_OK;
    if (s != REMIXDB_OK) return s;
    guess = rec.kind & KV_TOMB ? REMIX_DELETED : REMIX_THERE;
  }
  *found_out = true;
  *tomb_out = guess == REMIX_DELETED;
  return REMIXDB_OK;
}

// Whether a key exists below the stream: 0 or 1. A guess by tags finds an absent key there once in 256 times, so it
// counts for a little less or more. Inside an epoch.
static enum remixdb_status below_has(struct work *w, uint32_t stream, struct kref key, double *live_out) {
  const struct count *const c = w->c;
  const uint64_t hash = hash64(key.ptr, key.len);
  w->c->lookups++;
  if (stream == ACTIVE && c->mem[FROZEN]) {
    const struct wh_begun begun = wh_get_begin(c->mem[FROZEN], key, hash);
    const struct wh_ver *const ver = wh_get_end(c->mem[FROZEN], begun, key, hash, c->moment);
    *live_out = ver && !(ver->kind & KV_TOMB);
    if (ver) return REMIXDB_OK;
  }
  const struct part *const p = c->version->parts[version_find(c->version, key)];
  bool found = false, tomb = false, young = false;
  enum remixdb_status s = part_ready(p);
  if (s == REMIXDB_OK && stream < YOUNG && part_young(p)) {
    young = true;
    s = view_has(w, part_young(p), key, hash, w->exact, &found, &tomb);
  }
  if (s == REMIXDB_OK && !found) s = view_has(w, part_remix(p), key, hash, w->exact, &found, &tomb);
  *live_out = found && !tomb;
  if (w->exact || s != REMIXDB_OK || !part_remix(p) || !part_remix(p)->tags) return s;
  const double wrong = (1 + young) / 256.0;
  *live_out = (*live_out - wrong) / (1 - wrong);
  return s;
}

static double record_bytes(const struct kv_rec *rec) {
  if (rec->kind & KV_TOMB) return 0;
  return rec->klen + (double)(rec->kind & KV_APART ? value_ref_len(rec->val) : rec->vlen);
}

// Adds what a record of a newer stream changes, `share` times. Inside an epoch.
static enum remixdb_status add(struct work *w, uint32_t stream, const struct kv_rec *rec, struct stratum *to,
                               double share) {
  double live;
  enum remixdb_status s = go_on(w->c);
  if (s == REMIXDB_OK) s = below_has(w, stream, kref(rec->key, rec->klen), &live);
  if (s != REMIXDB_OK) return s;
  to->keys += share * (!(rec->kind & KV_TOMB) - live);
  to->bytes += share * (record_bytes(rec) - live * w->record);
  return s;
}

// ---- the newer streams

static void strata_begin(struct work *w) { memset(w->strata, 0, sizeof(w->strata)); }

// The sample's strata stand for so many entries each.
static void strata_end(struct work *w, double puts, double tombs) {
  const double of[2] = {puts, tombs};
  for (uint32_t i = 0; i < 2; i++) {
    const struct stratum *const t = &w->strata[i];
    if (t->nr <= 0) continue;
    w->keys += of[i] / t->nr * t->keys;
    w->bytes += of[i] / t->nr * t->bytes;
  }
}

static enum remixdb_status young_record(void *arg, const struct kv_rec *rec, uint32_t nr) {
  struct work *const w = arg;
  struct stratum *const t = &w->strata[(rec->kind & KV_TOMB) != 0];
  t->nr += 1.0 / nr;
  return add(w, YOUNG, rec, t, 1.0 / nr);
}

static enum remixdb_status count_young_at(struct work *w, const struct stretch *t, uint64_t rank, bool whole) {
  const uint64_t from = whole ? rank : t->from, to = whole ? rank + 1 : t->to;
  w->c->clusters++;
  epoch_enter(w->c->epoch, w->c->slot);
  const enum remixdb_status s = remix_live_near(t->x, rank, from, to, &w->young_hold, young_record, w);
  epoch_exit(w->c->slot);
  return s;
}

// How many places of the young views to read: an entry's neighbours come with it, the fewer the more runs there are.
static uint64_t young_clusters(const struct stretch *stretches, uint32_t nr) {
  uint64_t runs = 0;
  for (uint32_t i = 0; i < nr; i++) runs += stretches[i].x->nr_runs;
  const uint64_t n = CLUSTERS_MIN * (runs / (nr ? nr : 1) + 1) / 2;
  return n < CLUSTERS_MIN ? CLUSTERS_MIN : n > CLUSTERS_MAX ? CLUSTERS_MAX : n;
}

// Every step-th entry of all stretches, with its neighbours.
static enum remixdb_status count_young(struct work *w, const struct stretch *stretches, uint32_t nr) {
  uint64_t all = 0, before = 0;
  double tombs = 0;
  struct remix_share shares;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < nr; i++) all += stretches[i].to - stretches[i].from;
  const bool whole = all <= YOUNG_WHOLE;
  const uint64_t step = whole ? 1 : all / young_clusters(stretches, nr) + 1;
  uint64_t next = step / 2;
  w->exact = all <= EXACT;
  strata_begin(w);
  for (uint32_t i = 0; i < nr; i++) {
    const struct stretch *const t = &stretches[i];
    for (; next < before + (t->to - t->from) && s == REMIXDB_OK; next += step)
      s = count_young_at(w, t, t->from + (next - before), whole);
    before += t->to - t->from;
    if (whole || t->to == t->from || s != REMIXDB_OK) continue;
    s = stretch_share(w, t, SEGMENTS / nr, &shares);
    if (s != REMIXDB_OK) break;
    tombs += shares.tombs * shares.scale;
  }
  if (whole) strata_end(w, w->strata[0].nr, w->strata[1].nr);
  else strata_end(w, (double)all - tombs, tombs);
  return s;
}

// How many entries of a stream to look up: the more it has beside all others, the more. Then the error of a key that is
// there or not is about 1/400 of all keys.
static uint32_t lookups(const struct work *w, const struct wh_sample *sample) {
  const double part = 200 * (double)sample->nr / (w->keys + (double)(sample->nr - sample->tombs) + 1), n = part * part;
  const uint32_t most = sample->nr_taken;
  return n < COUNT_SAMPLE ? (most < COUNT_SAMPLE ? most : COUNT_SAMPLE) : n < most ? (uint32_t)n : most;
}

static enum remixdb_status count_mem(struct work *w, uint32_t stream, struct wh_sample *sample) {
  const struct count *const c = w->c;
  enum remixdb_status s = REMIXDB_OK;
  epoch_enter(c->epoch, c->slot);
  wh_sample(c->mem[stream], c->low, c->high, sample);
  epoch_exit(c->slot);
  w->c->leaves += sample->leaves;
  w->exact = sample->nr <= EXACT;
  strata_begin(w);
  const uint32_t nr = lookups(w, sample);
  for (uint32_t i = 0; i < nr && s == REMIXDB_OK; i++) {
    // entries live as long as the memtable
    const struct wh_entry *const e = sample->taken[(uint64_t)i * sample->nr_taken / nr];
    struct kv_rec rec;
    struct stratum *const t = &w->strata[wh_entry_tomb(e)];
    t->nr++;
    epoch_enter(c->epoch, c->slot);
    if (wh_entry_record(e, c->moment, &rec)) s = add(w, stream, &rec, t, 1);
    epoch_exit(c->slot);
  }
  if (sample->whole && nr == sample->nr) strata_end(w, w->strata[0].nr, w->strata[1].nr);
  else strata_end(w, (double)(sample->nr - sample->tombs), (double)sample->tombs);
  return s;
}

static enum remixdb_status count_newer(struct work *w, uint32_t first, uint32_t last) {
  const struct version *const v = w->c->version;
  struct stretch *const stretches = mem_array(v->nr_young + 1, sizeof(*stretches), 0);
  struct wh_sample *const sample = mem_alloc(sizeof(*sample));
  enum remixdb_status s = stretches && sample ? REMIXDB_OK : REMIXDB_NOMEM;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < v->nr_young && s == REMIXDB_OK; i++) {
    const uint32_t part = v->young[i];
    if (part >= first && part <= last)
      s = view_stretch(w, part_young(v->parts[part]), part == first, part == last, &stretches[nr++]);
  }
  if (s == REMIXDB_OK && nr) s = count_young(w, stretches, nr);
  for (uint32_t i = FROZEN + 1; i-- > ACTIVE && s == REMIXDB_OK;)
    if (w->c->mem[i]) s = count_mem(w, i, sample);
  mem_free(stretches);
  mem_free(sample);
  return s;
}

enum remixdb_status count_range(struct count *c) {
  struct work w = {.c = c};
  c->keys = c->bytes = 0;
  c->leaves = c->lookups = c->clusters = c->segments = 0;
  if (c->low.ptr && c->high.ptr && kv_cmp(c->low, c->high) >= 0) return REMIXDB_OK;
  const uint32_t first = c->low.ptr ? version_find(c->version, c->low) : 0,
                 last = c->high.ptr ? version_find(c->version, c->high) : c->version->nr_parts - 1;
  enum remixdb_status s = count_older(&w, first, last);
  if (s == REMIXDB_OK) s = count_newer(&w, first, last);
  sst_hold_fini(&w.hold);
  sst_hold_fini(&w.young_hold);
  if (w.keys > 0) c->keys = (uint64_t)(w.keys + 0.5);
  if (c->keys && w.bytes > 0 && !c->keys_only) c->bytes = (uint64_t)(w.bytes + 0.5);
  return s;
}

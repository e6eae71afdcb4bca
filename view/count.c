// SPDX-License-Identifier: Apache-2.0
#include "view/count.h"

#define EXACT 64u  // entries of a sample that are looked up without a doubt: tags are wrong once in 256 times

enum { ACTIVE, FROZEN, YOUNG };  // the newer streams

struct work {
  const struct count *c;
  double keys, bytes;
  bool exact;            // the stream has few entries: what the tags guess is looked up
  double record;         // bytes of a record of the older views, on average
  struct sst_hold hold;  // of reads in the older views
  struct sst_hold young_hold;
};

// A part of the young views' live entries, over all partitions of the range.
struct stretch {
  struct remix *x;
  uint64_t from, to;  // ranks
};

// ---- the views

// The live entries of the view whose keys are in the range.
static enum remixdb_status view_stretch(struct work *w, struct remix *x, struct stretch *out) {
  const struct count *const c = w->c;
  enum remixdb_status s = REMIXDB_OK;
  *out = (struct stretch){.x = x, .to = remix_live(x)};
  epoch_enter(c->epoch, c->slot);
  if (c->low.ptr) s = remix_rank(x, c->low, &w->hold, &out->from);
  if (c->high.ptr && s == REMIXDB_OK) s = remix_rank(x, c->high, &w->hold, &out->to);
  epoch_exit(c->slot);
  if (out->to < out->from) out->to = out->from;
  return s;
}

// Counts the older views of the partitions [first, last].
static enum remixdb_status count_older(struct work *w, uint32_t first, uint32_t last) {
  for (uint32_t i = first; i <= last; i++) {
    const struct part *const p = w->c->version->parts[i];
    struct stretch t;
    enum remixdb_status s = part_ready(p);
    if (s != REMIXDB_OK) return s;
    struct remix *const x = part_remix(p);
    if (!x) continue;
    s = view_stretch(w, x, &t);
    if (s != REMIXDB_OK) return s;
    double records = 0, bytes = 0;
    for (uint32_t r = 0; r < x->nr_runs; r++) {
      records += (double)x->runs[r]->nr_records;
      bytes += (double)(x->runs[r]->key_bytes + x->runs[r]->value_bytes);
    }
    w->keys += (double)(t.to - t.from);
    if (records > 0) w->bytes += (double)(t.to - t.from) * bytes / records;
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

// Whether a key exists below the stream. Inside an epoch.
static enum remixdb_status below_has(struct work *w, uint32_t stream, struct kref key, bool exact, bool *live_out) {
  const struct count *const c = w->c;
  const uint64_t hash = hash64(key.ptr, key.len);
  if (stream == ACTIVE && c->mem[FROZEN]) {
    const struct wh_begun begun = wh_get_begin(c->mem[FROZEN], key, hash);
    const struct wh_ver *const ver = wh_get_end(c->mem[FROZEN], begun, key, hash, c->moment);
    *live_out = ver && !(ver->kind & KV_TOMB);
    if (ver) return REMIXDB_OK;
  }
  const struct part *const p = c->version->parts[version_find(c->version, key)];
  bool found = false, tomb = false;
  enum remixdb_status s = part_ready(p);
  if (s == REMIXDB_OK && stream < YOUNG) s = view_has(w, part_young(p), key, hash, exact, &found, &tomb);
  if (s == REMIXDB_OK && !found) s = view_has(w, part_remix(p), key, hash, exact, &found, &tomb);
  *live_out = found && !tomb;
  return s;
}

// Adds what a record of a newer stream changes, `share` times. bytes: its key's and value's. Inside an epoch.
static enum remixdb_status add(struct work *w, uint32_t stream, struct kref key, bool tomb, uint64_t bytes,
                               double share) {
  bool live;
  const enum remixdb_status s = below_has(w, stream, key, w->exact, &live);
  if (s != REMIXDB_OK) return s;
  w->keys += share * (!tomb - live);
  w->bytes += share * ((tomb ? 0 : (double)bytes) - (live ? w->record : 0));
  return s;
}

// ---- the newer streams

static enum remixdb_status count_young_at(struct work *w, const struct stretch *t, uint64_t rank, double share) {
  struct kv_rec rec;
  epoch_enter(w->c->epoch, w->c->slot);
  enum remixdb_status s = remix_live_at(t->x, rank, &w->young_hold, &rec);
  if (s == REMIXDB_OK)
    s = add(w, YOUNG, kref(rec.key, rec.klen), rec.kind & KV_TOMB, (uint64_t)rec.klen + rec.vlen, share);
  epoch_exit(w->c->slot);
  return s;
}

// Every step-th entry of all stretches.
static enum remixdb_status count_young(struct work *w, const struct stretch *stretches, uint32_t nr) {
  uint64_t all = 0, before = 0;
  enum remixdb_status s = REMIXDB_OK;
  for (uint32_t i = 0; i < nr; i++) all += stretches[i].to - stretches[i].from;
  const uint64_t step = all / COUNT_SAMPLE + 1;
  uint64_t next = step / 2;
  const uint64_t taken = all > next ? (all - next - 1) / step + 1 : 0;
  const double share = taken ? (double)all / (double)taken : 0;
  w->exact = all <= EXACT;
  for (uint32_t i = 0; i < nr; i++) {
    const struct stretch *const t = &stretches[i];
    for (; next < before + (t->to - t->from) && s == REMIXDB_OK; next += step)
      s = count_young_at(w, t, t->from + (next - before), share);
    before += t->to - t->from;
  }
  return s;
}

static enum remixdb_status count_mem(struct work *w, uint32_t stream, struct wh_sample *sample) {
  const struct count *const c = w->c;
  enum remixdb_status s = REMIXDB_OK;
  epoch_enter(c->epoch, c->slot);
  wh_sample(c->mem[stream], c->low, c->high, sample);
  epoch_exit(c->slot);
  w->exact = sample->nr <= EXACT;
  const double share = sample->nr_taken ? (double)sample->nr / (double)sample->nr_taken : 0;
  for (uint32_t i = 0; i < sample->nr_taken && s == REMIXDB_OK; i++) {
    const struct wh_entry *const e = sample->taken[i];  // entries live as long as the memtable
    struct kv_rec rec;
    epoch_enter(c->epoch, c->slot);
    if (wh_entry_record(e, c->moment, &rec))
      s = add(w, stream, kref(rec.key, rec.klen), rec.kind & KV_TOMB, (uint64_t)rec.klen + rec.vlen, share);
    epoch_exit(c->slot);
  }
  return s;
}

static enum remixdb_status count_newer(struct work *w, uint32_t first, uint32_t last) {
  const struct version *const v = w->c->version;
  struct stretch *const stretches = mem_alloc((v->nr_young + 1) * sizeof(*stretches));
  struct wh_sample *const sample = mem_alloc(sizeof(*sample));
  enum remixdb_status s = stretches && sample ? REMIXDB_OK : REMIXDB_NOMEM;
  uint32_t nr = 0;
  for (uint32_t i = 0; i < v->nr_young && s == REMIXDB_OK; i++)
    if (v->young[i] >= first && v->young[i] <= last)
      s = view_stretch(w, part_young(v->parts[v->young[i]]), &stretches[nr++]);
  if (s == REMIXDB_OK) s = count_young(w, stretches, nr);
  for (uint32_t i = FROZEN + 1; i-- > ACTIVE && s == REMIXDB_OK;)
    if (w->c->mem[i]) s = count_mem(w, i, sample);
  mem_free(stretches);
  mem_free(sample);
  return s;
}

enum remixdb_status count_range(struct count *c) {
  struct work w = {.c = c};
  c->keys = c->bytes = 0;
  if (c->low.ptr && c->high.ptr && kv_cmp(c->low, c->high) >= 0) return REMIXDB_OK;
  const uint32_t first = c->low.ptr ? version_find(c->version, c->low) : 0,
                 last = c->high.ptr ? version_find(c->version, c->high) : c->version->nr_parts - 1;
  enum remixdb_status s = count_older(&w, first, last);
  if (s == REMIXDB_OK) s = count_newer(&w, first, last);
  sst_hold_fini(&w.hold);
  sst_hold_fini(&w.young_hold);
  if (w.keys > 0) c->keys = (uint64_t)(w.keys + 0.5);
  if (c->keys && w.bytes > 0) c->bytes = (uint64_t)(w.bytes + 0.5);
  return s;
}

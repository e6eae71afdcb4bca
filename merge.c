// SPDX-License-Identifier: Apache-2.0
#include "merge.h"

void merge_init(struct merge *m, struct blkio_queue *queue) {
  memset(m, 0, sizeof(*m));
  m->at = MERGE_NONE;
  remix_cursor_init(&m->remix, queue);
}

void merge_fini(struct merge *m) {
  remix_cursor_fini(&m->remix);
  mem_free(m->key);
}

void merge_set(struct merge *m, const struct wh *active, const struct wh *frozen, const struct version *version, uint64_t moment) {
  const struct wh *const mem[2] = {active, frozen};
  for (uint32_t i = 0; i < 2; i++) {
    m->has[i] = mem[i] != NULL && wh_count(mem[i]) != 0;
    if (m->has[i]) wh_cursor_init(&m->mem[i], mem[i], moment);
  }
  m->version = version;
  m->at = MERGE_NONE;
}

void merge_park(struct merge *m) {
  // moving a cursor to no REMIX allocates nothing, so it cannot fail
  const enum remixdb_status s = remix_cursor_set(&m->remix, NULL);
  (void)s;
  m->has[0] = m->has[1] = false;
  m->version = NULL;
  m->at = MERGE_NONE;
}

// ---- the stream of partitions

static bool parts_valid(const struct merge *m) { return remix_valid(&m->remix); }

static enum remixdb_status parts_enter(struct merge *m, uint32_t part) {
  struct remix *x = m->version->parts[part]->remix;
  m->part = part;
  if (m->remix.x == x) return REMIXDB_OK;
  return remix_cursor_set(&m->remix, x);
}

// When the REMIX has ended, on to the next partition (or the one before) that holds anything.
static enum remixdb_status parts_settle(struct merge *m, bool backward) {
  m->remix_key.ptr = NULL;
  while (!parts_valid(m)) {
    if (backward ? m->part == 0 : m->part + 1 == m->version->nr_parts) return REMIXDB_OK;
    const enum remixdb_status s = parts_enter(m, backward ? m->part - 1 : m->part + 1);
    if (s != REMIXDB_OK) return s;
    if (!m->remix.x) continue;
    if (backward) remix_seek_last(&m->remix);
    else remix_seek_first(&m->remix);
  }
  return REMIXDB_OK;
}

// key.ptr NULL: to the very end in the direction.
static enum remixdb_status parts_seek(struct merge *m, struct kref key, bool backward) {
  const struct version *v = m->version;
  const bool last = backward && !key.ptr;
  enum remixdb_status s = parts_enter(m, last ? v->nr_parts - 1 : version_find(v, key));
  if (s != REMIXDB_OK) return s;
  if (m->remix.x) {
    if (last) remix_seek_last(&m->remix);
    else s = backward ? remix_seek_for_prev(&m->remix, key) : remix_seek(&m->remix, key);
  }
  return s == REMIXDB_OK ? parts_settle(m, backward) : s;
}

static enum remixdb_status parts_step(struct merge *m, bool backward) {
  if (backward) remix_prev(&m->remix);
  else remix_next(&m->remix);
  m->remix_key.ptr = NULL;
  return likely(parts_valid(m)) ? REMIXDB_OK : parts_settle(m, backward);
}

static enum remixdb_status parts_key(struct merge *m, struct kref *out) {
  if (!m->remix_key.ptr) {
    struct kv_rec r;
    const enum remixdb_status s = remix_record(&m->remix, &r);
    if (s != REMIXDB_OK) return s;
    m->remix_key = kref(r.key, r.klen);
  }
  *out = m->remix_key;
  return REMIXDB_OK;
}

// ---- the three together

static bool stream_valid(const struct merge *m, uint32_t i) { return i == MERGE_PARTS ? parts_valid(m) : m->has[i] && wh_valid(&m->mem[i]); }

static enum remixdb_status stream_step(struct merge *m, uint32_t i, bool backward) {
  if (i == MERGE_PARTS) return parts_step(m, backward);
  if (backward) wh_prev(&m->mem[i]);
  else wh_next(&m->mem[i]);
  return REMIXDB_OK;
}

static enum remixdb_status stream_seek(struct merge *m, uint32_t i, struct kref key, bool backward) {
  if (i == MERGE_PARTS) return parts_seek(m, key, backward);
  if (!m->has[i]) return REMIXDB_OK;
  if (backward && !key.ptr) wh_seek_last(&m->mem[i]);
  else if (backward) wh_seek_for_prev(&m->mem[i], key);
  else wh_seek(&m->mem[i], key);
  return REMIXDB_OK;
}

static bool stream_tomb(const struct merge *m, uint32_t i) { return i == MERGE_PARTS ? remix_tomb(&m->remix) : m->mem[i].ver->tomb; }

static enum remixdb_status stream_key(struct merge *m, uint32_t i, struct kref *out) {
  if (i == MERGE_PARTS) return parts_key(m, out);
  *out = wh_key(&m->mem[i]);
  return REMIXDB_OK;
}

// Picks the smallest (backward: the largest) key among the streams; of equal ones the newest stream, which comes first.
static enum remixdb_status pick(struct merge *m) {
  m->at = MERGE_NONE;
  m->same = 0;
  if (!stream_valid(m, MERGE_ACTIVE) && !stream_valid(m, MERGE_FROZEN)) {
    if (parts_valid(m)) {
      m->at = MERGE_PARTS;
      m->same = 1u << MERGE_PARTS;
    }
    return REMIXDB_OK;
  }
  uint32_t at = MERGE_NONE, same = 0;
  struct kref best = {NULL, 0};
  for (uint32_t i = 0; i < MERGE_NONE; i++) {
    if (!stream_valid(m, i)) continue;
    struct kref k;
    const enum remixdb_status s = stream_key(m, i, &k);
    if (s != REMIXDB_OK) return s;
    const int c = at == MERGE_NONE ? -1 : m->backward ? kv_cmp(best, k) : kv_cmp(k, best);
    if (c < 0) {
      at = i;
      best = k;
      same = 1u << i;
    } else if (c == 0) {
      same |= 1u << i;
    }
  }
  m->at = at;
  m->same = same;
  return REMIXDB_OK;
}

static enum remixdb_status step_same(struct merge *m) {
  for (uint32_t i = 0; i < MERGE_NONE; i++)
    if (m->same & 1u << i) {
      const enum remixdb_status s = stream_step(m, i, m->backward);
      if (s != REMIXDB_OK) return s;
    }
  return REMIXDB_OK;
}

static enum remixdb_status fail(struct merge *m, enum remixdb_status s) {
  m->at = MERGE_NONE;
  return s;
}

// To the first live key from where the streams stand.
static enum remixdb_status settle(struct merge *m) {
  enum remixdb_status s = pick(m);
  while (s == REMIXDB_OK && m->at != MERGE_NONE && stream_tomb(m, m->at)) {
    s = step_same(m);
    if (s == REMIXDB_OK) s = pick(m);
  }
  return s == REMIXDB_OK ? s : fail(m, s);
}

static enum remixdb_status seek(struct merge *m, struct kref key, bool backward) {
  m->backward = backward;
  for (uint32_t i = 0; i < MERGE_NONE; i++) {
    const enum remixdb_status s = stream_seek(m, i, key, backward);
    if (s != REMIXDB_OK) return fail(m, s);
  }
  return settle(m);
}

// An empty key has to have an address too: NULL stands for "the very end".
static struct kref present(struct kref key) { return key.ptr ? key : kref("", 0); }

enum remixdb_status merge_seek(struct merge *m, struct kref key) { return seek(m, present(key), false); }
enum remixdb_status merge_seek_for_prev(struct merge *m, struct kref key) { return seek(m, present(key), true); }
enum remixdb_status merge_seek_last(struct merge *m) { return seek(m, kref(NULL, 0), true); }

// Turns round: the other streams are brought to the other side of the current key.
static enum remixdb_status turn(struct merge *m, bool backward) {
  struct kref k;
  enum remixdb_status s = stream_key(m, m->at, &k);
  if (s != REMIXDB_OK) return fail(m, s);
  if (k.len > m->key_cap) {
    uint8_t *grown = mem_realloc(m->key, k.len);
    if (!grown) return fail(m, REMIXDB_NOMEM);
    m->key = grown;
    m->key_cap = k.len;
  }
  if (k.len) memcpy(m->key, k.ptr, k.len);
  k = present(kref(m->key, k.len));
  m->backward = backward;
  for (uint32_t i = 0; i < MERGE_NONE; i++)
    if ((s = stream_seek(m, i, k, backward)) != REMIXDB_OK) return fail(m, s);
  return pick(m);  // all that hold the key stand on it again
}

static enum remixdb_status step(struct merge *m, bool backward) {
  enum remixdb_status s = REMIXDB_OK;
  if (unlikely(m->backward != backward) && (s = turn(m, backward)) != REMIXDB_OK) return fail(m, s);
  if ((s = step_same(m)) != REMIXDB_OK) return fail(m, s);
  return settle(m);
}

enum remixdb_status merge_next(struct merge *m) { return step(m, false); }
enum remixdb_status merge_prev(struct merge *m) { return step(m, true); }

enum remixdb_status merge_record(struct merge *m, struct kv_rec *rec_out) {
  if (m->at == MERGE_PARTS) return remix_record(&m->remix, rec_out);
  const struct wh_cursor *c = &m->mem[m->at];
  *rec_out = (struct kv_rec){c->entry->key, c->ver->val, c->entry->klen, c->ver->vlen, c->ver->tomb};
  return REMIXDB_OK;
}

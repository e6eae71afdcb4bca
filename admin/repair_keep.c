// SPDX-License-Identifier: Apache-2.0
//
// The records that a repair keeps in the new store, and the report of those that are lost.
#include "admin/repair_state.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "store/install.h"
#include "store/ranges.h"
#include "store/space.h"

// ---- the report

void repair_note(struct repair *p, const char *fmt, ...) {
  char line[ERR_MSG_MAX + 256];
  va_list ap;
  va_start(ap, fmt);
  const int n = vsnprintf(line, sizeof(line) - 1, fmt, ap);
  va_end(ap);
  if (n < 0) return;
  size_t len = (size_t)n < sizeof(line) - 2 ? (size_t)n : sizeof(line) - 2;
  line[len++] = '\n';
  if (p->text_len + len > p->text_cap) {
    const size_t cap = p->text_cap ? p->text_cap * 2 : 4096;
    char *grown = mem_realloc(p->text, cap);
    if (!grown) return;
    p->text = grown;
    p->text_cap = cap;
  }
  memcpy(p->text + p->text_len, line, len);
  p->text_len += len;
}

void repair_lose(struct repair *p, uint64_t records, bool more, const char *fmt, ...) {
  char line[ERR_MSG_MAX + WAL_LOSS_TEXT];
  va_list ap;
  va_start(ap, fmt);
  if (vsnprintf(line, sizeof(line), fmt, ap) < 0) line[0] = '\0';
  va_end(ap);
  repair_note(p, "LOST: %s", line);
  p->report.losses++;
  p->report.records_lost += records;
  p->report.more_lost = p->report.more_lost || more;
}

// ---- keeping records

// Finds out whether a space is there, and takes it in if nobody can know its name.
static enum remixdb_status take_space(struct repair *p, uint32_t id, bool *there_out) {
  struct names *const now = space_names(p->x), *next = NULL;
  const struct names_entry *const e = names_find_id(now, id);
  enum remixdb_status s = REMIXDB_OK;
  *there_out = e && e->len;
  if (!e && p->report.version_lost && id > 0 && id < NAMES_ID_MAX && (!now || now->nr < NAMES_MAX)) {
    char name[32];
    const int len = snprintf(name, sizeof(name), "recovered-%" PRIu32, id);
    s = names_insert(now, id, name, (size_t)len, &next);
    if (s == REMIXDB_OK) s = install_names(p->x, next);
    if (s == REMIXDB_OK) repair_note(p, "  the name of key space %" PRIu32 " is lost: it is called %s", id, name);
    *there_out = s == REMIXDB_OK;
    names_unref(next);
  }
  names_unref(now);
  return s;
}

// Keeps a record that has its value.
static enum remixdb_status keep_whole(struct repair *p, const struct kv_rec *rec) {
  if (rec->kind & KV_SPACES) {
    bool there = false;
    const enum remixdb_status s = rec->klen < NAMES_ID ? REMIXDB_OK : take_space(p, names_id_get(rec->key), &there);
    p->put_failed = s != REMIXDB_OK;
    if (s != REMIXDB_OK || !there) return s;
  }
  p->report.records++;
  const struct kref key = kref(rec->key, rec->klen);
  const enum remixdb_status s = rec->kind & KV_RANGE
                                    ? ranges_delete(p->r, rec->kind & KV_SPACES ? TREE_SPACES : TREE_UNNAMED, key,
                                                    kref(rec->vlen ? rec->val : NULL, rec->vlen), false)
                                    : xdb_put(p->r, rec);
  p->put_failed = s != REMIXDB_OK;
  return s;
}

// Keeps a record whose value is apart.
static enum remixdb_status keep_apart(struct repair *p, const struct kv_rec *rec) {
  struct kv_rec whole = *rec;
  uint8_t *val;
  bool hidden;
  enum remixdb_status s = repair_value(p, rec, &val, &whole.vlen, &hidden);
  if (s == REMIXDB_NOMEM || s == REMIXDB_VERSION) return s;
  if (s != REMIXDB_OK) {
    if (!hidden) repair_lose(p, 1, false, "1 record: %s", err_msg());
    return REMIXDB_OK;
  }
  whole.val = val;
  whole.kind &= ~(uint32_t)KV_APART;
  s = keep_whole(p, &whole);
  mem_free(val);
  return s;
}

enum remixdb_status repair_keep(struct repair *p, const struct kv_rec *rec) {
  return unlikely(rec->kind & KV_APART) ? keep_apart(p, rec) : keep_whole(p, rec);
}

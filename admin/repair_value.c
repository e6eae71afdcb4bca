// SPDX-License-Identifier: Apache-2.0
//
// Reading values that are apart, for a repair. A file that was collected is gone (store/collect.h). CURRENT names the
// index that leads to its values. If CURRENT is lost, or the index cannot be read, the repair searches all value files
// for indexes. Earlier and later collections may have left several indexes for one file. They all lead to copies of the
// same value, which has the record's key and length.
#include "admin/repair_state.h"

#include <inttypes.h>

#include "value/move.h"
#include "value/read.h"

// Finds an old value file. *out is valid until the repair ends.
static enum remixdb_status old_file(struct repair *p, uint64_t number, struct value_file **out) {
  if ((*out = value_set_find(&p->values, number)) != NULL) return REMIXDB_OK;
  enum remixdb_status s = value_file_open(&p->value_ctx, number, out);
  if (s != REMIXDB_OK) return s;
  s = value_set_add(&p->values, *out);
  value_file_unref(*out);
  return s;
}

// ---- indexes

static bool is_fatal(enum remixdb_status s) { return s == REMIXDB_NOMEM || s == REMIXDB_VERSION; }

// Takes an index in. One that cannot be read is left out.
static enum remixdb_status take_index(struct repair *p, const struct current_move *m) {
  struct value_index *x, **grown;
  struct value_file *f;
  enum remixdb_status s = old_file(p, m->ref.file, &f);
  if (s == REMIXDB_OK) s = value_index_open(f, m->number, m->bytes, &m->ref, &x);
  if (s != REMIXDB_OK) return is_fatal(s) ? s : REMIXDB_OK;
  grown = mem_realloc(p->indexes, (p->nr_indexes + 1) * sizeof(struct value_index *));
  if (!grown) {
    value_index_unref(x);
    return REMIXDB_NOMEM;
  }
  p->indexes = grown;
  p->indexes[p->nr_indexes++] = x;
  return REMIXDB_OK;
}

static enum remixdb_status search_file(struct repair *p, uint64_t number) {
  struct value_pass pass = {0};
  struct value_file *f;
  enum remixdb_status s = old_file(p, number, &f);
  if (s == REMIXDB_OK) s = value_pass_init(&pass, f);
  for (bool any = true; s == REMIXDB_OK && any;) {
    struct value_rec rec;
    uint64_t at;
    s = value_pass_next(&pass, UINT64_MAX, &any, &at, &rec);
    if (s != REMIXDB_OK || !any || !rec.index || rec.klen != VALUE_INDEX_KEY) continue;
    const struct current_move m = {.number = load64le(pass.key.ptr), .ref = {number, at, rec.vlen, (uint32_t)rec.sum}};
    s = take_index(p, &m);
  }
  value_pass_fini(&pass);
  return is_fatal(s) ? s : REMIXDB_OK;
}

// Takes the indexes in that CURRENT names, or all that are in value files.
static enum remixdb_status find_indexes(struct repair *p) {
  struct files_entry *list;
  size_t nr;
  enum remixdb_status s = REMIXDB_OK;
  p->searched = true;
  for (uint32_t i = 0; p->current && i < p->current->nr_moves && s == REMIXDB_OK; i++)
    s = take_index(p, &p->current->moves[i]);
  if (s != REMIXDB_OK || (p->current && p->nr_indexes == p->current->nr_moves)) return s;
  if ((s = files_list(&p->dir, &list, &nr)) != REMIXDB_OK) return s;
  for (size_t i = 0; i < nr && s == REMIXDB_OK; i++)
    if (list[i].kind == FILES_IS_VALUE) s = search_file(p, list[i].number);
  mem_free(list);
  return s;
}

void repair_values_fini(struct repair *p) {
  for (uint32_t i = 0; i < p->nr_indexes; i++) value_index_unref(p->indexes[i]);
  mem_free(p->indexes);
  value_set_fini(&p->values);
}

// ---- values

// A damaged reference may state any length: the value is read before there is memory for it.
static enum remixdb_status read_at(struct value_file *f, const struct value_ref *to, struct kref key,
                                   uint8_t **val_out) {
  uint32_t n;
  enum remixdb_status s = value_check(f, to, key);
  if (s == REMIXDB_OK && !(*val_out = mem_alloc(to->len))) s = REMIXDB_NOMEM;
  if (s == REMIXDB_OK) s = value_read(f, to, key, 0, *val_out, to->len, &n);
  if (s == REMIXDB_OK) return s;
  mem_free(*val_out);
  *val_out = NULL;
  return s;
}

// Tells whether CURRENT says that no reader finds a table's record with this reference, to which no index leads: its
// file was collected, and the value was not moved.
static bool is_hidden(const struct repair *p, const struct value_ref *to) {
  const struct version_names *const c = p->current;
  bool moved = false;
  if (!c || !p->of_table) return false;
  for (uint32_t i = 0; i < c->nr_values; i++)
    if (c->values[i] == to->file) return false;
  for (uint32_t i = 0; i < c->nr_moves; i++) moved = moved || c->moves[i].number == to->file;
  for (uint32_t i = 0; i < p->nr_indexes; i++)
    if (p->indexes[i]->number == to->file) return true;
  return !moved;
}

enum remixdb_status repair_value(struct repair *p, const struct kv_rec *rec, uint8_t **val_out, uint32_t *vlen_out,
                                 bool *hidden_out) {
  struct value_ref to;
  struct value_file *f;
  const struct kref key = kref(rec->key, rec->klen);
  *val_out = NULL;
  *hidden_out = false;
  if (!value_ref_get(rec->val, rec->vlen, &to))
    return err_set(REMIXDB_CORRUPT, "a record has a reference to a value that cannot be one");
  *vlen_out = to.len;
  enum remixdb_status s = old_file(p, to.file, &f);
  if (s == REMIXDB_OK) s = read_at(f, &to, key, val_out);
  if (s == REMIXDB_OK || is_fatal(s)) return s;
  struct err_saved first;
  err_save(&first, s);
  bool moved_any = false;
  s = p->searched ? REMIXDB_OK : find_indexes(p);
  if (s != REMIXDB_OK) return s;
  for (uint32_t i = 0; i < p->nr_indexes; i++) {
    struct value_ref moved = to;
    if (p->indexes[i]->number != to.file || !value_index_find(p->indexes[i], &moved)) continue;
    moved_any = true;
    if ((s = read_at(p->indexes[i]->file, &moved, key, val_out)) == REMIXDB_OK || is_fatal(s)) return s;
    err_save(&first, s);  // the copy is damaged; another one may not be
  }
  *hidden_out = !moved_any && is_hidden(p, &to);
  return err_raise(&first);
}

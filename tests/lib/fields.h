// SPDX-License-Identifier: Apache-2.0
//
// The fields of the file formats, as docs/FORMAT.md lists them. The test reads the document when it runs, so it knows a
// new field without any change of code. Included by one file per program.
#ifndef FIELDS_H
#define FIELDS_H

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/check.h"

#define FIELDS_DOC "docs/FORMAT.md"
#define FIELDS_TABLES 64u
#define FIELDS_ROWS 64u
#define FIELDS_VARS 12u

// A row of a table. Cells are as in the document, without blanks at their ends; a missing column's cell is empty.
struct field {
  char offset[64], size[40], type[24], meaning[400];
  bool sum;       // a checksum
  uint32_t hits;  // places in files that were found for it
};

// A table, named by the heading above it and its number below that heading, from 0.
struct field_table {
  char heading[120];
  uint32_t nth;
  bool known;    // somebody asked for it
  bool offsets;  // its first column is "offset"
  uint32_t nr;
  struct field rows[FIELDS_ROWS];
};

// The values of the letters in offsets and sizes.
struct field_vars {
  uint32_t nr;
  struct {
    const char *name;
    uint64_t value;
  } v[FIELDS_VARS];
};

static struct field_table field_tables[FIELDS_TABLES];
static uint32_t field_tables_nr;

// ---- the document

static inline uint32_t fields_cells(char *line, char **cells, uint32_t max) {
  uint32_t nr = 0;
  for (char *p = line + 1; *p && nr < max;) {
    while (*p == ' ') p++;
    char *end = p;
    while (*end && !(*end == '|' && end[-1] != '\\')) end++;
    if (!*end) break;
    char *last = end;
    while (last > p && last[-1] == ' ') last--;
    *last = 0;
    cells[nr++] = p;
    p = end + 1;
  }
  return nr;
}

static inline void field_copy(char *to, size_t cap, const char *from) {
  (void)snprintf(to, cap, "%.*s", (int)cap - 1, from);
}

// Columns are told by their heads. The last cell under another head is the meaning.
static inline void fields_row(struct field_table *t, char *const *heads, char *const *cells, uint32_t nr) {
  CHECK(t->nr < FIELDS_ROWS);
  struct field *const f = &t->rows[t->nr++];
  for (uint32_t i = 0; i < nr; i++) {
    if (strcmp(heads[i], "offset") == 0) field_copy(f->offset, sizeof(f->offset), cells[i]);
    else if (strcmp(heads[i], "size") == 0 || strcmp(heads[i], "length") == 0)
      field_copy(f->size, sizeof(f->size), cells[i]);
    else if (strcmp(heads[i], "type") == 0) field_copy(f->type, sizeof(f->type), cells[i]);
    else if (*cells[i]) field_copy(f->meaning, sizeof(f->meaning), cells[i]);
  }
  f->sum = strstr(f->meaning, "hecksum") || strstr(f->meaning, "XXH3");
}

static inline void fields_read(void) {
  FILE *const f = fopen(FIELDS_DOC, "r");
  char line[2048], head_line[2048], heading[120] = "";
  char *heads[8], *cells[8];
  struct field_table *t = NULL;
  uint32_t nth = 0, nr_heads = 0;
  assert_non_null(f);
  while (fgets(line, sizeof(line), f)) {
    line[strcspn(line, "\n")] = 0;
    if (line[0] == '#') {
      const char *p = line + strspn(line, "# ");
      field_copy(heading, sizeof(heading), p);
      nth = 0;
    }
    if (line[0] != '|') {
      t = NULL;
      continue;
    }
    if (!t) {
      CHECK(field_tables_nr < FIELDS_TABLES);
      t = &field_tables[field_tables_nr++];
      field_copy(t->heading, sizeof(t->heading), heading);
      t->nth = nth++;
      memcpy(head_line, line, sizeof(line));
      nr_heads = fields_cells(head_line, heads, 8);
      t->offsets = nr_heads && strcmp(heads[0], "offset") == 0;
    } else if (strncmp(line, "|---", 4) != 0) {
      const uint32_t nr = fields_cells(line, cells, 8);
      CHECK(nr == nr_heads);
      fields_row(t, heads, cells, nr);
    }
  }
  (void)fclose(f);
}

static inline struct field_table *fields_find(const char *heading, uint32_t nth) {
  for (uint32_t i = 0; i < field_tables_nr; i++) {
    struct field_table *const t = &field_tables[i];
    if (t->nth == nth && strncmp(t->heading, heading, strlen(heading)) == 0) {
      t->known = true;
      return t;
    }
  }
  fail_msg(FIELDS_DOC " has no table %u below \"%s\"", nth, heading);
  return NULL;
}

// ---- offsets and sizes

static inline void field_set(struct field_vars *v, const char *name, uint64_t value) {
  uint32_t i = 0;
  while (i < v->nr && strcmp(v->v[i].name, name) != 0) i++;
  if (i == v->nr) v->nr++;
  CHECK(v->nr <= FIELDS_VARS);
  v->v[i].name = name;
  v->v[i].value = value;
}

static inline bool field_var(const struct field_vars *v, const char *p, size_t len, uint64_t *out) {
  for (uint32_t i = 0; i < v->nr; i++)
    if (strlen(v->v[i].name) == len && strncmp(v->v[i].name, p, len) == 0) {
      *out = v->v[i].value;
      return true;
    }
  return false;
}

static inline bool field_sum(const struct field_vars *v, const char **p, uint64_t *out);

// A number, a letter or a sum in parentheses.
static inline bool field_factor(const struct field_vars *v, const char **p, uint64_t *out) {
  if (**p == '(') {
    (*p)++;
    if (!field_sum(v, p, out) || **p != ')') return false;
    (*p)++;
    return true;
  }
  if (isdigit((unsigned char)**p)) {
    char *end;
    *out = strtoull(*p, &end, 10);
    *p = end;
    return true;
  }
  size_t len = 0;
  const size_t quote = **p == '`';
  while (isalpha((unsigned char)(*p)[quote + len]) || (*p)[quote + len] == '_') len++;
  if (!len || !field_var(v, *p + quote, len, out)) return false;
  *p += len + 2 * quote;
  return true;
}

// Factors one after the other, also with "x" between them.
static inline bool field_product(const struct field_vars *v, const char **p, uint64_t *out) {
  if (!field_factor(v, p, out)) return false;
  for (;;) {
    while (**p == ' ') (*p)++;
    if (strncmp(*p, "x ", 2) == 0) *p += 2;
    if (strncmp(*p, "\xc3\x97 ", 3) == 0) *p += 3;
    if (!isalnum((unsigned char)**p) && **p != '(' && **p != '`') return true;
    uint64_t more;
    if (!field_factor(v, p, &more)) return false;
    *out *= more;
  }
}

static inline bool field_sum(const struct field_vars *v, const char **p, uint64_t *out) {
  if (!field_product(v, p, out)) return false;
  for (;;) {
    while (**p == ' ') (*p)++;
    const char op = **p;
    if (op != '+' && op != '-') return true;
    (*p)++;
    while (**p == ' ') (*p)++;
    uint64_t more;
    if (!field_product(v, p, &more)) return false;
    *out = op == '+' ? *out + more : *out - more;
  }
}

// The value of a cell. "A, or B in format N" is B where `format` is N; "F = ..." is F. False: it has none.
static inline bool field_eval(const struct field_vars *v, const char *cell, uint64_t *out) {
  const char *p = cell;
  const char *const other = strstr(cell, ", or ");
  if (other) {
    const char *const in = strstr(other, " in format ");
    uint64_t format;
    if (in && field_var(v, "format", 6, &format) && format == strtoull(in + 11, NULL, 10)) {
      p = other + 5;
      return field_factor(v, &p, out);
    }
  }
  return field_sum(v, &p, out) && (*p == 0 || *p == ',' || *p == '=');
}

// Bytes of an element of the field.
static inline uint32_t field_width(const struct field *f) {
  return strncmp(f->type, "u16", 3) == 0   ? 2
         : strncmp(f->type, "u32", 3) == 0 ? 4
         : strncmp(f->type, "u64", 3) == 0 ? 8
                                           : 1;
}
#endif

// SPDX-License-Identifier: Apache-2.0
//
// The table of figures: remixdb_figure and the JSON have all of them and no others, and docs/FIGURES.md shows the
// table. `test_figures write` writes the table into the document.
#include "tests/lib/check.h"
#include "tests/lib/store.h"
#include "admin/stats.h"

#define DOCUMENT "docs/FIGURES.md"

// ---- names and values

static void test_table(void **state) {
  (void)state;
  for (uint32_t i = 0; i < figure_nr; i++) {
    const struct figure_def *const d = &figure_defs[i];
    const size_t len = strlen(d->help);
    const bool number = d->type == FIGURE_COUNTER || d->type == FIGURE_GAUGE;
    CHECK_SAYS(d->name[0] && d->name[strspn(d->name, "abcdefghijklmnopqrstuvwxyz_.")] == '\0', "%s", d->name);
    CHECK_SAYS(len > 4 && d->help[len - 1] != '.' && !strpbrk(d->help, "|\"\\\n"), "%s", d->name);
    CHECK_SAYS(number == (d->unit[0] != '\0'), "%s", d->name);
    for (uint32_t k = 0; k < i; k++) CHECK_SAYS(strcmp(d->name, figure_defs[k].name) != 0, "%s", d->name);
  }
}

// The place of a figure's value in the JSON.
static const char *in_json(const char *json, const char *name) {
  char text[80];
  const char *const dot = strchr(name, '.');
  if (dot) {
    (void)snprintf(text, sizeof(text), "\"%.*s\":{", (int)(dot - name), name);
    if (!(json = strstr(json, text))) return NULL;
    json += strlen(text) - 1;
  }
  (void)snprintf(text, sizeof(text), "%s\"%s\":", "", dot ? dot + 1 : name);
  const char *const at = strstr(json, text);
  if (!at || (dot && strcspn(json, "}") < (size_t)(at - json))) return NULL;
  return at + strlen(text);
}

static uint32_t members_of(const char *json) {
  uint32_t nr = 0;
  for (const char *p = json; (p = strstr(p, "\":")) != NULL; p += 2) nr += p[2] != '{';
  return nr;
}

static bool changes(const char *name) { return strncmp(name, "process_memory.", 15) == 0; }

static void test_json_and_figure(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  CHECK(remixdb_put(r, "a", 1, "1", 1) && remixdb_put(r, "b", 1, "2", 1) && remixdb_flush(r));
  CHECK(remixdb_put(r, "c", 1, "3", 1) && remixdb_get(r, "a", 1, NULL, NULL));
  char *const json = remixdb_stats(x);
  CHECK(json && members_of(json) == figure_nr);
  for (uint32_t i = 0; i < figure_nr; i++) {
    const struct figure_def *const d = &figure_defs[i];
    const char *const at = in_json(json, d->name);
    uint64_t value = 77;
    CHECK_SAYS(at, "%s", d->name);
    if (d->type == FIGURE_STRING) {
      CHECK(at[0] == '"' && !remixdb_figure(x, d->name, &value) && remixdb_errcode() == REMIXDB_INVALID && value == 77);
      continue;
    }
    CHECK(remixdb_figure(x, d->name, &value) && remixdb_errcode() == REMIXDB_OK);
    if (d->type == FIGURE_FLAG) CHECK(value <= 1 && strncmp(at, value ? "true" : "false", 4) == 0);
    else if (!changes(d->name)) CHECK_SAYS(strtoull(at, NULL, 10) == value, "%s", d->name);
  }
  remixdb_free(json);
  remixdb_unref(r);
  remixdb_close(x);
}

// Values that follow from the calls.
static uint64_t figure(struct xdb *x, const char *name) {
  uint64_t value = 0;
  CHECK_SAYS(remixdb_figure(x, name, &value), "%s", name);
  return value;
}

static void test_values(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x), *const b = remixdb_ref_borrow(x);
  const void *v;
  for (uint32_t i = 0; i < 100; i++) CHECK(remixdb_put(r, &i, sizeof(i), "value", 5));
  CHECK(figure(x, "memtable.active_keys") == 100 && figure(x, "log.records") == 100 && figure(x, "sequence") == 100);
  CHECK(figure(x, "refs") == 2 && figure(x, "refs_in_pool") == 0 && figure(x, "read_only") == 0);
  remixdb_ref_return(b);
  CHECK(figure(x, "refs") == 2 && figure(x, "refs_in_pool") == 1);
  struct xdb_pin *const pin = remixdb_get_pinned(r, "\0\0\0\0", 4, &v, NULL);
  CHECK(pin && figure(x, "pinned.values") == 1);
  remixdb_pin_release(pin);
  CHECK(figure(x, "pinned.values") == 0);
  CHECK(remixdb_flush(r) && figure(x, "table_entries") == 100 && figure(x, "memtable.active_keys") == 0);
  CHECK(figure(x, "compaction.rounds") == 1);
  CHECK(figure(x, "expires") == 0 && remixdb_put_expire(r, "e", 1, "", 0, UINT64_MAX) && figure(x, "expires") == 1);
  CHECK(remixdb_flush(r) && figure(x, "expires") == 1);
  remixdb_unref(r);
  remixdb_close(x);
}

static void test_wrong_names(void **state) {
  (void)state;
  static const char *const names[] = {"",       "refs ", "Refs",           "misses", "cache",
                                      "cache.", ".refs", "cache.misses.x", "disk"};
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  uint64_t value = 77;
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
    CHECK(!remixdb_figure(x, names[i], &value) && remixdb_errcode() == REMIXDB_NOTFOUND && value == 77);
  CHECK(!remixdb_figure(NULL, "refs", &value) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_figure(x, NULL, &value) && remixdb_errcode() == REMIXDB_INVALID);
  CHECK(!remixdb_figure(x, "refs", NULL) && remixdb_errcode() == REMIXDB_INVALID);
  remixdb_close(x);
}

// ---- the document

static char *read_document(void) {
  FILE *const in = fopen(DOCUMENT, "r");
  CHECK(in);
  char *const text = calloc(1, 1 << 20);
  CHECK(text && fread(text, 1, (1 << 20) - 1, in) > 0);
  (void)fclose(in);
  return text;
}

#define TABLE_HEAD "| figure | type | unit | meaning |\n|---|---|---|---|\n"

// The table as the document has it. The caller frees it.
static char *make_table(void) {
  static const char *const types[] = {"counter", "gauge", "flag", "text"};
  char *text = NULL;
  size_t len;
  FILE *const out = open_memstream(&text, &len);
  CHECK(out);
  (void)fputs(TABLE_HEAD, out);
  for (uint32_t i = 0; i < figure_nr; i++) {
    const struct figure_def *const d = &figure_defs[i];
    (void)fprintf(out, "| `%s` | %s | %s | %s |\n", d->name, types[d->type], d->unit, d->help);
  }
  (void)fclose(out);
  return text;
}

// Where the table of a document begins and ends.
static char *find_table(char *text, char **end_out) {
  char *const at = strstr(text, TABLE_HEAD);
  CHECK_SAYS(at, "%s", DOCUMENT " has no table of figures");
  char *const end = strstr(at, "|\n\n");
  CHECK(end);
  *end_out = end + 2;
  return at;
}

static void test_document(void **state) {
  (void)state;
  char *const text = read_document(), *const table = make_table(), *end;
  char *const at = find_table(text, &end);
  *end = '\0';
  const bool same = strcmp(at, table) == 0;
  free(text);
  free(table);
  CHECK_SAYS(same, "%s", DOCUMENT " has another table: `test_figures write` brings it up to date");
}

static int write_document(void) {
  char *const text = read_document(), *const table = make_table(), *end;
  char *const at = find_table(text, &end);
  FILE *const out = fopen(DOCUMENT, "w");
  const bool good = out && fprintf(out, "%.*s%s%s", (int)(at - text), text, table, end) > 0 && fclose(out) == 0;
  free(text);
  free(table);
  return good ? 0 : 1;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "write") == 0) return write_document();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table),
      cmocka_unit_test_setup_teardown(test_json_and_figure, setup, teardown),
      cmocka_unit_test_setup_teardown(test_values, setup, teardown),
      cmocka_unit_test_setup_teardown(test_wrong_names, setup, teardown),
      cmocka_unit_test(test_document),
  };
  return cmocka_run_group_tests_name("figures", tests, NULL, NULL);
}

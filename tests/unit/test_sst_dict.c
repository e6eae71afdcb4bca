// SPDX-License-Identifier: Apache-2.0
//
// Dictionaries of compressed tables stay within a bound. One that had to go is read and made again, and one that is in
// use stays.
#include "table/dict.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/check.h"
#include "tests/lib/slow.h"
#include "tests/lib/tables.h"

#define RECORDS 6000u
#define TABLES 3u

static struct world *w;
static struct model m;
static struct sst_dicts dicts;
static struct budget budget;

static void set_most(uint64_t bytes) {
  atomic_store(&budget.dicts_most, bytes);
  sst_dicts_trim(&dicts, &budget);
}

static void begin(bool direct) {
  m = (struct model){.r = calloc(RECORDS, sizeof(struct kv_rec)), .mem = malloc(RECORDS * 200)};
  for (uint32_t i = 0; i < RECORDS; i++) {
    uint8_t *const p = m.mem + m.used;
    model_record(&m, 16, 60 + i % 120, false);
    (void)snprintf((char *)p, 17, "user%012u", i * 3);
    for (uint32_t b = 0; b < m.r[i].vlen; b++)
      p[16 + b] = (uint8_t)("{\"name\": \"somebody\", \"city\": "[b % 29] ^ (b % 17 == 3 ? i & 15 : 0));
  }
  w = world_open(env_posix(), 0, direct);
  sst_dicts_init(&dicts);
  budget_init(&budget);
  w->ctx.dicts = &dicts;
  w->ctx.budget = &budget;
  uint64_t size;
  for (uint32_t i = 1; i <= TABLES; i++) OK(build(w, i, &m, opts(i & 1, true), &size));
}

static void end(void) {
  CHECK(budget_used(&budget, BUDGET_TABLES) == 0);
  sst_dicts_fini(&dicts);
  budget_fini(&budget);
  world_close(w);
  model_free(&m);
}

static bool is_made(const struct sst *t) { return atomic_load(&t->dict->made) != NULL; }

// Each way of reading finds all records, with any bound.
static void test_whole(void **state) {
  (void)state;
  for (uint32_t direct = 0; direct < 2; direct++) {
    begin(direct);
    for (uint64_t most = 0; most <= 1u << 20; most = most ? most * 4 : 1u << 14) {
      set_most(most);
      for (uint32_t i = 1; i <= TABLES; i++) {
        OK(read_whole(w, i, &m));
        CHECK(dicts.nr == 0 && dicts.bytes == 0);
      }
    }
    end();
  }
}

static enum remixdb_status unpack(struct sst *t) {
  struct kv_rec rec;
  struct sst_hold h = {0};
  epoch_enter(&w->epoch, &w->slot);
  const enum remixdb_status s = sst_read(t, sst_pos_make(0, 0), false, &h, &rec);
  epoch_exit(&w->slot);
  sst_hold_fini(&h);
  return s;
}

// The one that was not used for a while goes.
static void test_bound(void **state) {
  (void)state;
  struct sst *t[TABLES];
  begin(false);
  for (uint32_t i = 0; i < TABLES; i++) {
    OK(sst_open(&w->ctx, i + 1, &t[i]));
    CHECK(is_made(t[i]));
  }
  const uint64_t one = dicts.bytes / TABLES, all = dicts.bytes;
  CHECK(dicts.nr == TABLES && one > 20000);
  const uint64_t with = budget_used(&budget, BUDGET_TABLES);
  set_most(one + one / 2);
  CHECK(dicts.nr == 1 && dicts.bytes <= one + one / 2);
  CHECK(with - budget_used(&budget, BUDGET_TABLES) == all - dicts.bytes);
  size_t memory = 0;
  for (uint32_t i = 0; i < TABLES; i++) memory += sst_memory(t[i]);
  CHECK(memory == budget_used(&budget, BUDGET_TABLES));
  for (uint32_t i = 0; i < 2 * TABLES; i++) {
    OK(unpack(t[i % TABLES]));
    CHECK(is_made(t[i % TABLES]) && dicts.nr == 1);
  }
  // one that is in use stays, and the others are made for one block each
  const void *dict;
  void *own;
  OK(sst_dict_begin(t[TABLES - 1], &dict, &own));
  CHECK(dict && !own);
  set_most(0);
  CHECK(dicts.nr == 1 && is_made(t[TABLES - 1]));
  OK(unpack(t[0]));
  CHECK(dicts.nr == 1 && !is_made(t[0]));
  sst_dict_end(t[TABLES - 1], own);
  set_most(0);
  CHECK(dicts.nr == 0 && dicts.bytes == 0);
  for (uint32_t i = 0; i < TABLES; i++) sst_unref(t[i]);
  end();
}

// Bytes that have changed since the table was opened unpack nothing.
static void test_changed(void **state) {
  (void)state;
  struct sst *t;
  char path[ENV_PATH_MAX];
  begin(false);
  set_most(0);
  OK(sst_open(&w->ctx, 1, &t));
  CHECK(!is_made(t));
  table_path(w, 1, path);
  FILE *const f = fopen(path, "r+b");
  CHECK(f && fseek(f, (long)t->dict->off + 5, SEEK_SET) == 0);
  const int c = fgetc(f);
  CHECK(c != EOF && fseek(f, (long)t->dict->off + 5, SEEK_SET) == 0 && fputc(c ^ 1, f) != EOF && fclose(f) == 0);
  CHECK(unpack(t) == REMIXDB_CORRUPT);
  sst_unref(t);
  end();
}

// A thread that has all descriptors of the pool makes a dictionary again without waiting for one.
static void test_descriptors(void **state) {
  (void)state;
  struct sst *t[TABLES];
  const void *dict;
  void *own;
  int fd;
  begin(false);
  set_most(0);
  for (uint32_t i = 0; i < TABLES; i++) OK(sst_open(&w->ctx, i + 1, &t[i]));
  fdpool_set_max(w->fds, 2);
  atomic_store(&fdpool_patience_ns, UINT64_MAX / 2);  // a thread that waits does so until the alarm
  for (uint32_t i = 0; i < 2; i++) OK(fdpool_acquire(t[i]->file, &fd));
  assert_int_equal(fdpool_open_count(w->fds), 2);
  OK(sst_dict_begin(t[2], &dict, &own));
  CHECK(dict && own);
  sst_dict_end(t[2], own);
  assert_int_equal(fdpool_open_count(w->fds), 2);
  for (uint32_t i = 0; i < 2; i++) fdpool_release(t[i]->file);
  atomic_store(&fdpool_patience_ns, FDPOOL_PATIENCE_NS);
  for (uint32_t i = 0; i < TABLES; i++) sst_unref(t[i]);
  end();
}

// ---- threads that unpack while dictionaries go

static struct sst *tables[TABLES];
static _Atomic bool stop;

static void *reader(void *arg) {
  const uint32_t from = (uint32_t)(uintptr_t)arg;
  for (uint32_t i = 0; i < 3000 / SLOW; i++) {
    struct sst *const t = tables[(from + i) % TABLES];
    const void *dict;
    void *own;
    CHECK(sst_dict_begin(t, &dict, &own) == REMIXDB_OK && dict);
    const volatile uint8_t *const first = dict;
    (void)*first;  // a sanitizer notices one that was freed
    sst_dict_end(t, own);
  }
  return NULL;
}

static void *trimmer(void *unused) {
  (void)unused;
  for (uint64_t i = 0; !atomic_load(&stop); i++) set_most(i % 3 * 50000);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  pthread_t readers[4], other;
  begin(false);
  for (uint32_t i = 0; i < TABLES; i++) OK(sst_open(&w->ctx, i + 1, &tables[i]));
  atomic_store(&stop, false);
  CHECK(pthread_create(&other, NULL, trimmer, NULL) == 0);
  for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&readers[i], NULL, reader, (void *)i) == 0);
  for (uint32_t i = 0; i < 4; i++) CHECK(pthread_join(readers[i], NULL) == 0);
  atomic_store(&stop, true);
  CHECK(pthread_join(other, NULL) == 0);
  for (uint32_t i = 0; i < TABLES; i++) {
    CHECK(atomic_load(&tables[i]->dict->users) == 0);
    sst_unref(tables[i]);
  }
  end();
}

int main(void) {
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_whole),       cmocka_unit_test(test_bound),   cmocka_unit_test(test_changed),
      cmocka_unit_test(test_descriptors), cmocka_unit_test(test_threads),
  };
  return cmocka_run_group_tests_name("dictionaries of tables", tests, root_setup, root_teardown);
}

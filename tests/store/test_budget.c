// SPDX-License-Identifier: Apache-2.0
//
// The budget of memory: a process with a store has at most 1.2 x memory_mb at every moment and 1.1 x when it
// rests, whatever it does, and next to nothing after close. Each size runs in a process of its own: the system knows
// the most memory that a process has had.
//
// TEST_BUDGET_MB in the environment runs one size in place of those of every test run; tests/soak.sh does so.
#include "tests/lib/check.h"
#include "tests/lib/sample.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blkio.h"

#define MIB ((size_t)1 << 20)
#define VALUE 384u  // bytes, at most
#define ITERATORS 200u
#define AFTER_CLOSE (8 * MIB)

// ---- what the system knows of this process

// A field of /proc/self/status, in bytes; 0 where there is none.
static size_t status_of(const char *field) {
  char line[256];
  size_t kib = 0;
  FILE *const f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof(line), f))
    if (strncmp(line, field, strlen(field)) == 0) kib = strtoull(line + strlen(field), NULL, 10);
  if (f) (void)fclose(f);
  return kib << 10;
}

static size_t has_now(void) { return status_of("VmRSS:"); }

// The most that the process has had.
static size_t had_most(void) { return status_of("VmHWM:"); }

// ---- the child

struct result {
  size_t before, most, rest, after;  // bytes
  char most_at[32];                  // the step in which the most was reached
  uint64_t cache_busy, cache_rest;   // sizes of the cache
};

static void need(bool good, const char *what) {
  if (good) return;
  (void)fprintf(stderr, "test_budget: %s: %s\n", what, remixdb_errmsg());
  _exit(1);
}

struct child {
  const char *dir;
  size_t budget;
  uint32_t nr, vlen;  // records, and bytes of a value
  struct xdb *x;
  struct xdb_ref *ref;
  struct result r;
};

static uint32_t key_of(uint32_t i, char *key) { return (uint32_t)sprintf(key, "%016x", i * 2654435761u); }

static void value_of(uint32_t i, uint8_t *value) {
  uint64_t r = i;
  for (uint32_t at = 0; at < VALUE; at += 8) {
    r = r * 6364136223846793005u + 1442695040888963407u;
    memcpy(value + at, &r, 8);
  }
}

static void put_all(struct child *c) {
  char key[32];
  uint8_t value[VALUE];
  for (uint32_t i = 0; i < c->nr; i++) {
    value_of(i, value);
    need(remixdb_put(c->ref, key, key_of(i, key), value, c->vlen), "put");
  }
}

static void overwrite(struct child *c) {
  char key[32];
  uint8_t value[VALUE];
  for (uint32_t i = 0; i < c->nr; i += 3) {
    value_of(i, value);
    need(remixdb_put(c->ref, key, key_of(i, key), value, c->vlen), "put");
  }
}

static void get_some(struct child *c) {
  char key[32];
  uint8_t value[VALUE], right[VALUE];
  uint32_t len;
  for (uint32_t i = 0; i < c->nr; i += 5) {
    const uint32_t k = i * 7919u % c->nr;
    need(remixdb_get(c->ref, key, key_of(k, key), value, &len) && len == c->vlen, "get");
    value_of(k, right);
    need(memcmp(value, right, c->vlen) == 0, "the value");
  }
}

static void scan_all(struct child *c) {
  uint32_t nr = 0;
  struct xdb_iter *const it = remixdb_iter_create(c->ref);
  need(it, "iter_create");
  for (remixdb_iter_seek(it, "", 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) nr++;
  need(nr == c->nr, "all records");
  remixdb_iter_destroy(it);
}

// Scans that have gone different ways, all over the store, and stand still while there are writes. Their readahead
// belongs to the budget.
static void hold_many(struct child *c) {
  struct xdb_iter *its[ITERATORS];
  char key[32];
  for (uint32_t i = 0; i < ITERATORS; i++) {
    its[i] = remixdb_iter_create(c->ref);
    need(its[i], "iter_create");
    remixdb_iter_seek(its[i], key, key_of(i * 31, key));
    const uint32_t steps = i % 3 == 0 ? 3 : i % 3 == 1 ? 300 : 5000;
    for (uint32_t k = 0; k < steps && remixdb_iter_valid(its[i]); k++) remixdb_iter_skip1(its[i]);
  }
  overwrite(c);
  for (uint32_t i = 0; i < ITERATORS; i++) remixdb_iter_destroy(its[i]);
}

static void flush(struct child *c) { need(remixdb_flush(c->ref), "flush"); }

static void compact(struct child *c) { need(remixdb_compact(c->ref), "compact"); }

static void checkpoint(struct child *c) {
  char to[PATH_SIZE];
  (void)snprintf(to, sizeof(to), "%s-checkpoint", c->dir);
  need(remixdb_checkpoint(c->ref, to), "checkpoint");
  need(remixdb_destroy(to), "destroy");
}

static void open_again(struct child *c) {
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));
  o.memory_mb = c->budget / MIB;
  if (c->x) {
    remixdb_unref(c->ref);
    remixdb_close(c->x);
  }
  c->x = remixdb_open_opts(c->dir, &o);
  need(c->x, "open");
  c->ref = remixdb_ref(c->x);
  need(c->ref, "ref");
}

static const struct step {
  const char *name;
  void (*run)(struct child *c);
} steps[] = {
    {"open", open_again},     {"put", put_all},           {"flush", flush},           {"get", get_some},
    {"scan", scan_all},       {"hold", hold_many},        {"compact", compact},       {"get", get_some},
    {"overwrite", overwrite}, {"checkpoint", checkpoint}, {"open again", open_again}, {"scan", scan_all},
    {"get", get_some},
};

static void run_child(struct child *c) {
  c->r.before = has_now();
  for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
    steps[i].run(c);
    const size_t most = had_most();
    if (getenv("TEST_BUDGET_SAYS")) {
      char *const json = remixdb_stats(c->x);
      const char *const at = json ? strstr(json, "\"memory\"") : NULL;
      (void)fprintf(stderr, "%-10s has %zu most %zu MiB  %.900s\n", steps[i].name, has_now() >> 20, most >> 20,
                    at ? at : "");
      remixdb_free(json);
    }
    if (most <= c->r.most) continue;
    c->r.most = most;
    (void)snprintf(c->r.most_at, sizeof(c->r.most_at), "%s", steps[i].name);
  }
  c->r.rest = has_now();
  remixdb_unref(c->ref);
  remixdb_close(c->x);
  c->r.after = has_now();
}

// Runs a child with this budget, which writes 1.5 times as much data, with values of so many bytes.
static struct result run(size_t budget, uint32_t vlen) {
  char dir[PATH_SIZE];
  int ends[2], code = 0;
  struct child c = {.dir = dir_of(dir, "budget"), .budget = budget, .vlen = vlen};
  c.nr = (uint32_t)((budget + budget / 2) / (vlen + 16));
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    run_child(&c);
    need(write(ends[1], &c.r, sizeof(c.r)) == (ssize_t)sizeof(c.r), "write");
    _exit(0);
  }
  (void)close(ends[1]);
  const ssize_t got = read(ends[0], &c.r, sizeof(c.r));
  (void)close(ends[0]);
  CHECK(waitpid(child, &code, 0) == child);
  CHECK_SAYS(WIFEXITED(code) && WEXITSTATUS(code) == 0 && got == (ssize_t)sizeof(c.r), "status %d", code);
  CHECK(remixdb_destroy(dir));
  return c.r;
}

// cold: reads are taken to come from the disk, so that scans read ahead of their steps.
static void check_size(size_t mb, uint32_t vlen, bool cold) {
  const size_t budget = mb * MIB;
  atomic_store(&blkio_test_cold, cold ? 2 : 1);
  const struct result r = run(budget, vlen);
  atomic_store(&blkio_test_cold, 0);
  print_message("%zu MiB, %u-byte values: before %.1f, most %.1f (%s), at rest %.1f, after close %.1f MiB\n", mb, vlen,
                (double)r.before / MIB, (double)r.most / MIB, r.most_at, (double)r.rest / MIB, (double)r.after / MIB);
  CHECK_SAYS(r.most <= budget + budget / 5, "%zu bytes", r.most);
  CHECK_SAYS(r.rest <= budget + budget / 10, "%zu bytes", r.rest);
  CHECK_SAYS(r.after < r.before + AFTER_CLOSE, "%zu bytes", r.after);
}

static void test_sizes(void **state) {
  (void)state;
  if (LIB_SANITIZED || had_most() == 0) skip();
  const char *const one = getenv("TEST_BUDGET_MB");
  if (one) {
    check_size(strtoul(one, NULL, 10), VALUE, false);
    check_size(strtoul(one, NULL, 10), VALUE / 4, true);
    return;
  }
  check_size(64, VALUE, false);
  check_size(64, VALUE / 4, true);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sizes),
  };
  return cmocka_run_group_tests(tests, base_setup, base_teardown);
}

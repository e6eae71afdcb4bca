// SPDX-License-Identifier: Apache-2.0
//
// The whole store in a script of all that it does, with the n-th call of each kind failing.
//
// CRASH_NTH in the environment repeats the life with the failing call that was printed; CRASH_NTH=all runs them all.
#include "tests/lib/check.h"
#include "tests/lib/expect.h"
#include "tests/lib/life_faults.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "admin/checkpoint.h"
#include "admin/destroy.h"
#include "admin/verify.h"
#include "store/flush.h"
#include "store/page.h"
#include "store/whole.h"
#include "tests/lib/slow.h"

// Reads backward. All records are right; an error may come if may_fail is set.
static void read_back(struct run *r, bool may_fail) {
  struct xdb_iter *it;
  enum remixdb_status s = expect_iter_below(r->ref, rng_next(&r->iter_rng), &it);
  uint32_t key = r->plan.nr_keys;
  bool ended = false;
  if (s == REMIXDB_OK) {
    for (s = xdb_iter_seek_last(it); s == REMIXDB_OK && xdb_iter_valid(it); s = xdb_iter_prev(it)) {
      struct kv_rec rec;
      uint8_t kbuf[32];
      if ((s = xdb_iter_record(it, &rec)) != REMIXDB_OK) break;
      while (key-- > 0 && r->model.now[key] == 0) {}
      CHECK(key != UINT32_MAX && kv_eq(life_key(key, kbuf), kref(rec.key, rec.klen)));
      CHECK(check_value(r, key, rec.val, rec.vlen) == r->model.now[key]);
    }
    ended = s == REMIXDB_OK;
    if (!ended) check_failure(r, s);
    xdb_iter_destroy(it);
  } else {
    check_failure(r, s);
  }
  CHECK(ended || may_fail);
  while (ended && key-- > 0) CHECK(r->model.now[key] == 0);
}

// The same forward, by pages, with some records of each given back.
static void read_pages(struct run *r, bool may_fail) {
  static uint8_t room[VALUE_MAX + 1000];
  uint32_t klens[9], vlens[9], key = 0;
  struct remixdb_page p = {.ptr = room, .cap = sizeof(room), .klens = klens, .vlens = vlens, .max = 9};
  struct xdb_iter *it;
  enum remixdb_status s = expect_iter_below(r->ref, rng_next(&r->iter_rng), &it);
  if (s == REMIXDB_OK) {
    for (s = xdb_iter_seek(it, kref("", 0)); s == REMIXDB_OK && (s = xdb_iter_page(it, &p)) == REMIXDB_OK;) {
      const uint8_t *at = room;
      const uint32_t nr = p.nr, keep = nr > 4 ? nr - nr % 3 : nr;
      for (uint32_t i = 0; i < keep; at += klens[i] + vlens[i], i++, key++) {
        uint8_t kbuf[32];
        while (key < r->plan.nr_keys && r->model.now[key] == 0) key++;
        CHECK(key < r->plan.nr_keys && kv_eq(life_key(key, kbuf), kref(at, klens[i])));
        CHECK(check_value(r, key, at + klens[i], vlens[i]) == r->model.now[key]);
      }
      if (keep < nr) s = xdb_iter_unread(it, &p, nr - keep);
    }
    xdb_iter_destroy(it);
  }
  if (s != REMIXDB_NOTFOUND) check_failure(r, s);
  CHECK(s == REMIXDB_NOTFOUND || may_fail);
  while (s == REMIXDB_NOTFOUND && key < r->plan.nr_keys) CHECK(r->model.now[key++] == 0);
}

#define MANY 24u

static void read_many(struct run *r, bool may_fail) {
  struct remixdb_slice keys[MANY];
  struct remixdb_buf values[MANY];
  static uint8_t kbufs[MANY][32], vbufs[MANY][2500];
  bool found[MANY];
  size_t nr;
  for (uint32_t i = 0; i < MANY; i++) {
    const struct kref k = life_key(i * 7 % r->plan.nr_keys, kbufs[i]);
    keys[i] = (struct remixdb_slice){.ptr = k.ptr, .len = k.len};
    values[i] = (struct remixdb_buf){.ptr = vbufs[i], .cap = sizeof(vbufs[i])};
  }
  const enum remixdb_status s = xdb_multi_get(r->ref, MANY, keys, values, found, NULL, &nr);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    CHECK(may_fail);
  }
  for (uint32_t i = 0; i < MANY; i++) {
    const uint32_t key = i * 7 % r->plan.nr_keys;
    if (found[i]) CHECK(check_value(r, key, vbufs[i], values[i].len) == r->model.now[key]);
    else if (s == REMIXDB_OK) CHECK(r->model.now[key] == 0);
  }
}

struct script {
  struct run *r;
  bool may_fail;  // reads may fail
  bool once;      // one call fails, and no more
  uint32_t failures;
  bool died;  // opening it failed again
};

static void told(struct script *c, bool ok) { c->failures += !ok; }

// Opens the store and checks it, or counts a failure. False: it is not open.
static bool script_open(struct script *c) {
  struct run *r = c->r;
  for (uint32_t tries = 0; !r->x && !c->died; tries++) {
    const enum remixdb_status s = run_open(r);
    if (s != REMIXDB_OK) check_failure(r, s);
    else if (check_prefix(r)) return true;
    else (void)run_close(r);
    c->failures++;
    c->died = tries == 1;
    CHECK(!c->once || !c->died);
  }
  return r->x != NULL;
}

static void script_close(struct script *c) {
  struct run *r = c->r;
  if (!r->x) return;
  const size_t nr = life_accepted(&r->model);
  const enum remixdb_status s = run_close(r);
  if (s == REMIXDB_OK) r->model.synced = nr;
  else check_failure(r, s);
  told(c, s == REMIXDB_OK);
}

static void script_puts(struct script *c, uint32_t first, uint32_t step, uint32_t nr) {
  for (uint32_t i = 0; i < nr && c->r->x; i++)
    told(c, life_put(c->r, (first + i * step) % c->r->plan.nr_keys, i % 9 == 8));
}

static void script_look(struct script *c) {
  struct run *r = c->r;
  if (!r->x) return;
  check_content(r, c->may_fail);
  read_back(r, c->may_fail);
  read_pages(r, c->may_fail);
  read_many(r, c->may_fail);
}

static bool see_any(void *arg, const char *name) {
  (void)name;
  *(bool *)arg = true;
  return false;
}

// Makes a checkpoint and destroys it. One that fails leaves nothing.
static void script_copy(struct script *c) {
  struct run *r = c->r;
  struct env *env = simdisk_env(r->disk);
  enum remixdb_status s = checkpoint_make(r->ref, "/copy");
  told(c, s == REMIXDB_OK);
  if (s != REMIXDB_OK) {
    check_failure(r, s);
    struct env_stat st;
    if (c->once) CHECK(env_stat(ENV_PATHS(env), "/copy", &st) == REMIXDB_NOTFOUND);
  } else {
    for (uint32_t tries = 0; tries < 2 && (s = destroy_store(env, "/copy")) != REMIXDB_OK; tries++) {
      if (s != REMIXDB_NOTFOUND) check_failure(r, s);
      told(c, false);
    }
    CHECK(!c->once || s == REMIXDB_OK || s == REMIXDB_NOTFOUND);
  }
}

// Ranges, a value that lies apart, an ingest, expiry. The store may have been closed by a failure.
static void script_calls(struct script *c) {
  struct run *r = c->r;
  told(c, life_put_large(r, 3));
  told(c, life_ingest(r, 4, 12));
  told(c, life_count(r, 2, 60));
  told(c, life_compact_range(r, 10, 40));
  for (uint32_t i = 0; i < 3; i++) told(c, life_read_bounded(r));
  life_clock(r);
}

// All that a store does, with little data.
static void script(struct script *c) {
  struct run *r = c->r;
  const struct plan *p = &r->plan;
  if (!script_open(c)) return;
  script_puts(c, 0, 1, 30);
  told(c, write_batch(r));
  told(c, do_sync(r));
  script_puts(c, 3, 5, 20);
  for (uint32_t i = 0; i < 4; i++) told(c, merge_key(r, i * 11 % p->nr_keys));
  told(c, do_flush(r));
  script_look(c);
  // rounds start by themselves, with much for one partition and little for others
  script_puts(c, 0, 1, 60);
  script_puts(c, p->nr_keys / 2, 17, 6);
  script_puts(c, 7, 1, 60);
  told(c, write_batch(r));
  told(c, life_del_range(r, 20, 31));  // by an edit
  script_calls(c);
  script_copy(c);
  script_look(c);
  script_close(c);
  if (!script_open(c)) return;
  script_puts(c, 1, 7, 20);
  const size_t nr = life_accepted(&r->model);
  const enum remixdb_status s = xdb_compact_told(r->x, &r->ref->progress);
  if (s == REMIXDB_OK) r->model.synced = nr;
  else check_failure(r, s);
  told(c, s == REMIXDB_OK);
  script_look(c);
  // so little for some partitions that it is handed back
  told(c, life_put(r, 2, true));
  for (uint32_t i = 0; i < 8; i++) script_puts(c, 85, 1, 15);
  struct verify_report report;
  const enum remixdb_status v = verify_store(r->ref, &report);
  if (v != REMIXDB_OK) check_failure(r, v);  // the store is not damaged
  told(c, v == REMIXDB_OK);
  do_wear(r, 1);
  r->x->compact.garbage_from = 1;
  r->x->compact.cut_from = 0;
  do_garbage(r);
  script_puts(c, 5, 3, 20);
  told(c, do_sync(r));
  script_puts(c, 6, 2, 5);
  script_close(c);
  if (script_open(c)) script_look(c);
}

struct error_of {
  const char *name;
  int errnum;
  bool hidden;  // the caller does not notice
};

static const struct error_of errors_of[] = {
    {"EIO", EIO, false},
    {"ENOSPC", ENOSPC, false},
    {"EDQUOT", EDQUOT, false},
    {"EMFILE", EMFILE, false},
    {"ENFILE", ENFILE, false},
    {"EACCES", EACCES, false},
    {"EMLINK", EMLINK, false},
    {"ENOLCK", ENOLCK, false},
    {"EINTR", EINTR, true},
    {"short", SIMDISK_SHORT, true},
    {"nothing", SIMDISK_NOTHING, false},
    {"done all the same", SIMDISK_DONE, false},
};

// A call of the kind can fail with the error.
static bool can_be(enum simdisk_call c, int errnum) {
  const bool changes = c == SIMDISK_OPEN || c == SIMDISK_WRITE || c == SIMDISK_SYNC || c == SIMDISK_TRUNCATE ||
                       c == SIMDISK_ALLOCATE || c == SIMDISK_PUNCH || c == SIMDISK_RENAME || c == SIMDISK_UNLINK ||
                       c == SIMDISK_LINK || c == SIMDISK_MKDIR || c == SIMDISK_RMDIR;
  switch (errnum) {
    case EIO: return true;
    case ENOSPC:
    case EDQUOT:
      return (changes && c != SIMDISK_UNLINK && c != SIMDISK_RMDIR && c != SIMDISK_TRUNCATE) || c == SIMDISK_CLOSE;
    case EMFILE:
    case ENFILE: return c == SIMDISK_OPEN || c == SIMDISK_LIST;
    case EACCES:
      return c == SIMDISK_OPEN || c == SIMDISK_STAT || c == SIMDISK_RENAME || c == SIMDISK_UNLINK || c == SIMDISK_MKDIR;
    case EMLINK: return c == SIMDISK_LINK;
    case ENOLCK: return c == SIMDISK_LOCK;
    case EINTR:
      return changes || c == SIMDISK_READ || c == SIMDISK_STAT || c == SIMDISK_LIST || c == SIMDISK_LOCK ||
             c == SIMDISK_CLOSE;
    case SIMDISK_SHORT: return c == SIMDISK_READ || c == SIMDISK_WRITE;
    case SIMDISK_NOTHING: return c == SIMDISK_WRITE;
    default: return changes;
  }
}

// The name of a life, for CRASH_NTH.
static void nth_name(char *buf, size_t cap, uint32_t plan, const struct fault *f, const struct error_of *e) {
  (void)snprintf(buf, cap, "%u,%s,%s,%s,%llu", plan, f->memory ? "allocation" : call_names[f->call], e->name,
                 f->once ? "once" : "on", (unsigned long long)f->nth);
}

// One life with the fault. Then the fault ends, and the store is opened again and goes on.
static void nth_life(uint32_t plan, int workers, const struct fault *f, const struct error_of *e) {
  struct run *r = run_small(plan);
  r->plan.opts.workers = workers;
  inject(r, f);
  (void)snprintf(check_what, sizeof(check_what), "CRASH_NTH=");
  nth_name(check_what + strlen(check_what), sizeof(check_what) - strlen(check_what), plan, f, e);
  if (e->hidden) r->faulty = false;
  r->may_nospace = is_full(e->errnum);
  r->may_nomem = e->errnum == EMFILE || e->errnum == ENFILE;
  struct script c = {.r = r, .may_fail = f->memory || reads_use(f->call), .once = f->once};
  script(&c);
  counts.faults++;
  counts.hit += c.failures != 0;
  if (e->hidden) CHECK(c.failures == 0);
  bool crashed = false;
  if (f->nth % 3 == 1) {  // the power goes during the fault
    (void)run_close(r);
    run_disk(r, simdisk_crash(r->disk, f->nth * 77 + f->errnum));
    crashed = true;
  }
  heal(r, crashed || !(r->x && passes(f)));
  CHECK(steps(r, 10));
  if (r->x && !crashed) read_many(r, false);
  CHECK(do_flush(r) && do_reopen(r) && check_prefix(r));
  check_names(r, true);
  CHECK(run_close(r) == REMIXDB_OK);
  bool any = false;
  struct env_stat st;
  const enum remixdb_status s = env_stat(ENV_PATHS(simdisk_env(r->disk)), "/copy", &st);
  if (s == REMIXDB_OK) OK(paths_list(simdisk_env(r->disk), "/copy", see_any, &any));
  if (f->once && !crashed) CHECK(!any);
  run_destroy(r);
}

// Counts the calls of each kind, and the allocations, of a life without a failure.
static void nth_count(uint32_t plan, uint64_t *calls, uint64_t *mem_out) {
  struct run *r = run_small(plan);
  const struct fault none = {.memory = true, .nth = UINT64_MAX};
  inject(r, &none);
  (void)snprintf(check_what, sizeof(check_what), "plan %u without a failure", plan);
  r->faulty = r->no_memory = false;
  struct script c = {.r = r};
  script(&c);
  CHECK(c.failures == 0);
  for (uint32_t i = 0; i < SIMDISK_CALLS; i++) calls[i] = simdisk_calls(r->disk, (enum simdisk_call)i);
  *mem_out = allocations_seen();
  atomic_store(&mem_fault, NULL);
  OK(run_close(r));
  run_destroy(r);
}

static const struct error_of no_memory = {"refused", ENOMEM, false};

static struct fault nth_fault(uint32_t call, uint64_t nth, const struct error_of *e, bool once) {
  const bool memory = call == SIMDISK_CALLS;
  return (struct fault){.memory = memory,
                        .call = memory ? SIMDISK_OPEN : (enum simdisk_call)call,
                        .name = "",
                        .nth = nth,
                        .errnum = e->errnum,
                        .once = once};
}

// Runs the lives in which one of the nr calls of this kind (SIMDISK_CALLS: an allocation) fails with the error.
static uint64_t nth_of(uint32_t plan, uint32_t call, uint64_t nr, const struct error_of *e, uint64_t stride,
                       uint64_t *rng) {
  const char *const given = getenv("CRASH_NTH");
  counts.faults = counts.hit = 0;
  for (int once = 1; once >= 0; once--) {
    if (!once && e->errnum == EINTR) break;  // a call that is interrupted for ever never ends
    for (uint64_t n = stride > 1 ? below(rng, SLOW == 1 && nr < stride ? nr : stride) : 0; n < nr; n += stride) {
      const struct fault f = nth_fault(call, n, e, once);
      char name[128];
      nth_name(name, sizeof(name), plan, &f, e);
      if (!given || !*given || strcmp(given, "all") == 0 || strcmp(given, name) == 0) nth_life(plan, 0, &f, e);
    }
  }
  print_message(" %s %llu (%llu)", e->name, (unsigned long long)counts.faults, (unsigned long long)counts.hit);
  return counts.faults;
}

// Fails one call in so many, with another first one each time.
static void test_nth(void **state) {
  (void)state;
  const char *const given = getenv("CRASH_NTH");
  const uint64_t stride = given && *given ? 1 : usual_or_long(SLOW > 1 ? 50 : 125, 50) * SLOW;
  uint64_t all = 0, rng = time_ns();
  for (uint32_t plan = 0; plan < COLD_PLANS; plan++) {
    uint64_t calls[SIMDISK_CALLS + 1];
    memset(counts.kinds, 0, sizeof(counts.kinds));
    counts.scan_merges = counts.young = counts.apart = counts.again = 0;
    nth_count(plan, calls, &calls[SIMDISK_CALLS]);
    // every kind of compaction happens (under a sanitizer memtables fill up at other moments)
    for (uint32_t k = 0; k < COMPACT_KINDS && plan == 0 && !LIB_SANITIZED; k++) {
      if (counts.kinds[k] == 0) fail_msg("no partition was of kind %u", k);
    }
    if (counts.scan_merges == 0 && !LIB_SANITIZED) fail_msg("no partition was merged for scans");
    if (counts.again == 0 && plan % 2 == 1 && !LIB_SANITIZED)
      fail_msg("no value was written again in the order of keys");
    if (counts.apart < 20) fail_msg("rounds wrote %llu values apart", (unsigned long long)counts.apart);
    if (counts.young == 0 && plan == 1 && !LIB_SANITIZED) fail_msg("no young view was made");
    for (uint32_t c = 0; c <= SIMDISK_CALLS; c++) {
      const bool memory = c == SIMDISK_CALLS;
      if (calls[c] == 0 || (plan >= SMALL_PLANS && !memory && !reads_use((enum simdisk_call)c))) continue;
      print_message("plan %u, %llu calls of %s; lives with one that fails (in so many it showed):", plan,
                    (unsigned long long)calls[c], memory ? "memory" : call_names[c]);
      for (uint32_t i = 0; i < (memory ? 1 : sizeof(errors_of) / sizeof(errors_of[0])); i++) {
        const struct error_of *e = memory ? &no_memory : &errors_of[i];
        if (memory || can_be((enum simdisk_call)c, e->errnum)) all += nth_of(plan, c, calls[c], e, stride, &rng);
      }
      print_message("\n");
    }
  }
  print_message("%llu lives in all, for one call in %llu\n", (unsigned long long)all, (unsigned long long)stride);
}

// The same with a worker. The n-th call is a different one each time, so that n is chosen at random.
static void test_nth_with_a_worker(void **state) {
  (void)state;
  const uint64_t first = first_seed(), nr = nr_seeds(usual_or_long(30, 60));
  uint64_t calls[COLD_PLANS][SIMDISK_CALLS + 1], rng = first;
  for (uint32_t plan = 0; plan < COLD_PLANS; plan++) nth_count(plan, calls[plan], &calls[plan][SIMDISK_CALLS]);
  counts.faults = counts.hit = 0;
  for (uint64_t s = first; s < first + nr;) {
    const uint32_t plan = (uint32_t)below(&rng, COLD_PLANS), c = (uint32_t)below(&rng, SIMDISK_CALLS + 1);
    const struct error_of *e = c == SIMDISK_CALLS ? &no_memory
                                                  : &errors_of[below(&rng, sizeof(errors_of) / sizeof(errors_of[0]))];
    if (calls[plan][c] == 0 || (c < SIMDISK_CALLS && !can_be((enum simdisk_call)c, e->errnum))) continue;
    const struct fault f = nth_fault(c, below(&rng, calls[plan][c]), e, e->errnum == EINTR || chance(&rng, 50));
    nth_life(plan, 1, &f, e);
    s++;
  }
  print_message("%llu lives, in %llu it showed\n", (unsigned long long)counts.faults, (unsigned long long)counts.hit);
}

int main(int argc, char **argv) {
  life_start(argc, argv);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nth),
      cmocka_unit_test(test_nth_with_a_worker),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

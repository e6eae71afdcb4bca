// SPDX-License-Identifier: Apache-2.0
//
// Whole histories of transactions are serializable, over the deaths of the process: threads use a store in many ways
// and record what they saw (tests/lib/serial_stage.h), the process is killed, and the parent checks what the next
// opening has; life after life. For each life, tests/lib/serial.h finds out whether there is an order of all operations
// that explains all reads. The survivors of a death are a prefix of that order, with all that was synced.
//
// The checker is checked first: against trying all orders, on small histories; then by transactions that read through
// refs that cause no conflicts, which lose updates, skew writes and miss phantoms.
//
// TEST_SEED in the environment gives the random choices (not the threads' interleaving); SOAK_SECONDS goes on with new
// seeds that long.
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/lib/serial_stage.h"

// ---- the checker against trying all orders

#define TINY 5u  // operations, at most
#define TINY_KEYS 3u
#define TINY_ITEMS 8u

struct tiny {
  struct serial_op ops[TINY];
  struct serial_item items[TINY][TINY_ITEMS];
  uint32_t nr, initial[TINY_KEYS];
  // for trying: the writes that each operation leaves, 0: it did not write the key
  uint32_t writes[TINY][TINY_KEYS];
  bool counts[TINY];
};

// Goes through the items in order, with a copy of the writes for each savepoint.
static void tiny_writes(struct tiny *t, uint32_t i) {
  uint32_t saved[TINY_ITEMS][TINY_KEYS], nr = 0, *const now = t->writes[i];
  memset(now, 0, sizeof(t->writes[i]));
  for (uint32_t k = 0; k < t->ops[i].nr_items; k++) {
    const struct serial_item *const it = &t->items[i][k];
    if (it->what == SERIAL_WRITE) now[it->key] = it->value;
    if (it->what == SERIAL_SAVE) memcpy(saved[nr++], now, sizeof(saved[0]));
    if (it->what == SERIAL_BACK && nr) memcpy(now, saved[--nr], sizeof(saved[0]));
  }
}

// Tells whether operation i may come next: none that is left must come before it, and it reads what is there.
static bool tiny_next(const struct tiny *t, uint32_t placed, uint32_t i, const uint32_t *now, const uint64_t *orders) {
  for (uint32_t j = 0; j < t->nr; j++)
    if (!(placed >> j & 1) && j != i && t->ops[j].ret < t->ops[i].call) return false;
  for (uint32_t k = 0; k < t->ops[i].nr_items; k++)
    if (t->items[i][k].what <= SERIAL_SCAN && t->items[i][k].value != now[t->items[i][k].key]) return false;
  for (uint32_t k = 0; k < TINY_KEYS; k++)
    if (t->counts[i] && t->writes[i][k] && t->ops[i].order && t->ops[i].order <= orders[k]) return false;
  return true;
}

static bool tiny_orders(const struct tiny *t, uint32_t placed, const uint32_t *now, const uint64_t *orders) {
  if (placed == (1u << t->nr) - 1) return true;
  for (uint32_t i = 0; i < t->nr; i++) {
    uint32_t next[TINY_KEYS];
    uint64_t next_orders[TINY_KEYS];
    if ((placed >> i & 1) || !tiny_next(t, placed, i, now, orders)) continue;
    memcpy(next, now, sizeof(next));
    memcpy(next_orders, orders, sizeof(next_orders));
    for (uint32_t k = 0; k < TINY_KEYS && t->counts[i]; k++) {
      if (!t->writes[i][k]) continue;
      next[k] = t->writes[i][k];
      if (t->ops[i].order) next_orders[k] = t->ops[i].order;
    }
    if (tiny_orders(t, placed | 1u << i, next, next_orders)) return true;
  }
  return false;
}

// With each choice of the operations that may have been committed. One whose end is unknown, and that wrote nothing
// that is seen, reads nothing that counts.
static bool tiny_good(struct tiny *t) {
  const uint64_t none[TINY_KEYS] = {0};
  uint32_t maybe = 0;
  for (uint32_t i = 0; i < t->nr; i++) {
    t->counts[i] = t->ops[i].end == SERIAL_COMMITTED;
    if (t->ops[i].end == SERIAL_MAYBE) maybe |= 1u << i;
  }
  for (uint32_t chosen = maybe;; chosen = (chosen - 1) & maybe) {
    for (uint32_t i = 0; i < t->nr; i++)
      if (maybe >> i & 1) t->counts[i] = chosen >> i & 1;
    if (tiny_orders(t, maybe & ~chosen, t->initial, none)) return true;
    if (chosen == 0) return false;
  }
}

// The items of one operation. A read sees what is there (`now`), an older value of the key, or any value.
static void tiny_items(struct tiny *t, uint32_t i, uint64_t *rng, uint32_t *values, const uint32_t *now,
                       uint32_t older[TINY_KEYS]) {
  struct serial_op *const o = &t->ops[i];
  uint32_t saved = 0;
  bool mine[TINY_KEYS] = {false};
  for (uint64_t n = below(rng, TINY_ITEMS); n; n--) {
    struct serial_item *const it = &t->items[i][o->nr_items++];
    const uint64_t dice = below(rng, 100);
    *it = (struct serial_item){.key = (uint16_t)below(rng, TINY_KEYS), .what = SERIAL_WRITE};
    if (dice < 5) {
      it->what = SERIAL_SAVE;
      saved++;
    } else if (dice < 10 && saved) {
      it->what = SERIAL_BACK;
      saved--;
    } else if (dice < 60 && !mine[it->key]) {
      it->what = chance(rng, 50) ? SERIAL_READ : SERIAL_SCAN;
      it->value = chance(rng, 75) ? now[it->key] : chance(rng, 90) ? older[it->key] : (uint32_t)below(rng, *values + 2);
    } else {
      it->value = ++*values;
      if (chance(rng, 30)) older[it->key] = it->value;
      mine[it->key] = true;
    }
  }
}

// All are made in an order, which the times, places and reads follow more or less.
static void tiny_make(struct tiny *t, uint64_t *rng) {
  uint32_t values = 0, now[TINY_KEYS], older[TINY_KEYS];
  uint64_t free_at[3] = {0, 0, 0}, at = 0;
  const bool places = chance(rng, 70);
  memset(t, 0, sizeof(*t));
  t->nr = 2 + (uint32_t)below(rng, TINY - 1);
  for (uint32_t k = 0; k < TINY_KEYS; k++) older[k] = now[k] = t->initial[k] = chance(rng, 40) ? ++values : 0;
  for (uint32_t i = 0; i < t->nr; i++) {
    struct serial_op *const o = &t->ops[i];
    o->what = "";
    o->thread = (uint32_t)below(rng, 3);
    o->items = t->items[i];
    o->call = free_at[o->thread] + 1 + below(rng, 4) + at;
    o->ret = o->call + 1 + below(rng, 8);
    free_at[o->thread] = o->ret;
    at += below(rng, 3);
    o->end = chance(rng, 80) ? SERIAL_COMMITTED : chance(rng, 60) ? SERIAL_ABORTED : SERIAL_MAYBE;
    if (o->end == SERIAL_MAYBE && chance(rng, 50)) o->ret = UINT64_MAX;
    o->order = !places && chance(rng, 40) ? 0 : 1000u * (i + 1 + (chance(rng, 15) ? TINY : 0));
    tiny_items(t, i, rng, &values, now, older);
    tiny_writes(t, i);
    for (uint32_t k = 0; k < TINY_KEYS; k++)
      if (o->end != SERIAL_ABORTED && t->writes[i][k]) now[k] = t->writes[i][k];
  }
}

static void tiny_say(const struct tiny *t) {
  static const char *const words[] = {"read", "scan", "write", "save", "back"};
  for (uint32_t i = 0; i < t->nr; i++) {
    const struct serial_op *const o = &t->ops[i];
    print_message("%u: thread %u, %llu..%llu, order %llu, end %d:", i, o->thread, (unsigned long long)o->call,
                  (unsigned long long)o->ret, (unsigned long long)o->order, (int)o->end);
    for (uint32_t k = 0; k < o->nr_items; k++)
      print_message(" %s %u=%u", words[o->items[k].what], o->items[k].key, o->items[k].value);
    print_message("\n");
  }
}

static void test_checker_all_orders(void **state) {
  (void)state;
  uint64_t rng = check_seed_or(1);
  check_seed = rng;
  uint32_t good = 0, verdicts[SERIAL_ORDER + 1] = {0};
  for (uint32_t i = 0; i < 80000 / SLOW; i++) {
    static struct serial_result r;
    struct tiny t;
    tiny_make(&t, &rng);
    const bool can = tiny_good(&t);
    bool all = true;  // have places
    for (uint32_t k = 0; k < t.nr; k++) all &= t.ops[k].order != 0;
    struct serial *const s = serial_make(t.ops, t.nr, t.initial, TINY_KEYS);
    const enum serial_verdict v = serial_check(s, &r);
    serial_free(s);
    if ((v == SERIAL_GOOD) == can || (!all && v == SERIAL_GOOD)) {
      good += can;
      verdicts[v]++;
      continue;
    }
    tiny_say(&t);
    fail_msg("TEST_SEED=%llu, history %u: %s order explains it, the checker says %d: %s",
             (unsigned long long)check_seed, i, can ? "an" : "no", (int)v, r.text);
  }
  print_message("%u histories with an order; %u cycles, %u dirty, %u intermediate, %u foreign reads\n", good,
                verdicts[SERIAL_CYCLE], verdicts[SERIAL_DIRTY], verdicts[SERIAL_INTERMEDIATE],
                verdicts[SERIAL_FOREIGN]);
  CHECK(good > 10000 / SLOW && verdicts[SERIAL_CYCLE] > 5000 / SLOW);
  CHECK(verdicts[SERIAL_DIRTY] > 100 / SLOW && verdicts[SERIAL_INTERMEDIATE] > 100 / SLOW);
  CHECK(verdicts[SERIAL_FOREIGN] > 100 / SLOW);
}

// ---- histories of the store

struct story {
  struct stage w;
  uint32_t initial[STAGE_KEYS];
  struct serial_op *ops;
  uint32_t nr;
  struct serial *s;
  struct serial_result result;
};

static struct story *story_create(uint64_t seed) {
  struct story *const y = calloc(1, sizeof(*y));
  CHECK(y);
  y->w.shared = stage_share();
  y->w.seed = check_seed = seed;
  return y;
}

// Forgets the life that was checked.
static void story_next(struct story *y) {
  serial_free(y->s);
  free(y->ops);
  y->s = NULL;
  y->ops = NULL;
  y->nr = 0;
  stage_forget(y->w.shared);
}

static void story_destroy(struct story *y) {
  stage_unshare(y->w.shared);
  free(y);
}

// Takes all logs of the life together.
static void story_take(struct story *y) {
  for (uint32_t i = 0; i < STAGE_THREADS; i++) y->nr += atomic_load(&y->w.shared->logs[i].nr);
  CHECK((y->ops = malloc((y->nr + 1) * sizeof(*y->ops))) != NULL);
  y->nr = 0;
  for (uint32_t i = 0; i < STAGE_THREADS; i++) {
    const uint32_t nr = atomic_load(&y->w.shared->logs[i].nr);
    memcpy(y->ops + y->nr, y->w.shared->logs[i].ops, nr * sizeof(*y->ops));
    y->nr += nr;
  }
  y->s = serial_make(y->ops, y->nr, y->initial, STAGE_KEYS);
}

static void story_check(struct story *y) {
  if (serial_check(y->s, &y->result) != SERIAL_GOOD)
    fail_msg("TEST_SEED=%llu, life %u: %d: %s", (unsigned long long)check_seed, y->w.life, (int)y->result.verdict,
             y->result.text);
}

// ---- planted anomalies: two transactions that interleave, and the same with reads that count

struct plot {
  const char *what;
  void (*first)(struct actor *a), (*second)(struct actor *a);
  uint32_t ww, rw, gaps;  // edges of the cycle
};

static void read_and_put_1(struct actor *a) {
  actor_read(a, 1);
  actor_put(a, 1);
}
static void read_1_put_2(struct actor *a) {
  actor_read(a, 1);
  actor_put(a, 2);
}
static void read_2_put_1(struct actor *a) {
  actor_read(a, 2);
  actor_put(a, 1);
}
static void scan_and_put_11(struct actor *a) {
  actor_scan(a, 5, 20, false);
  actor_put(a, 11);
}
static void scan_back_and_put_12(struct actor *a) {
  actor_scan(a, 5, 20, true);
  actor_put(a, 12);
}
static void scan_and_put_70(struct actor *a) {
  actor_scan(a, 5, 20, false);
  actor_put(a, 70);  // a key of another space
}
static void read_70_and_put_13(struct actor *a) {
  actor_read(a, 70);
  actor_put(a, 13);
}
static void scan_and_del_4(struct actor *a) {
  actor_scan(a, 1, 5, false);
  actor_del(a, 4);
}
static void scan_and_del_range(struct actor *a) {
  actor_scan(a, 3, 5, true);
  actor_del_range(a, 1, 3);
}

static const struct plot plots[] = {
    {"a lost update", read_and_put_1, read_and_put_1, 1, 1, 0},
    {"write skew", read_1_put_2, read_2_put_1, 0, 2, 0},
    {"phantoms", scan_and_put_11, scan_back_and_put_12, 0, 2, 2},
    {"a phantom and a key of another space", scan_and_put_70, read_70_and_put_13, 0, 2, 1},
    {"deletes that skew", scan_and_del_4, scan_and_del_range, 0, 2, 0},
};

static struct story *story_open(uint64_t seed) {
  struct story *const y = story_create(seed);
  stage_open(&y->w, 0, REMIXDB_SYNC_NONE);
  stage_fill(&y->w);
  return y;
}

// Keys 1 to 4 are there, and 70.
static void story_begin(struct story *y, struct actor *a) {
  static const uint32_t keys[] = {1, 2, 3, 4, 70};
  uint64_t versions[STAGE_KEYS];
  actor_begin(a);
  for (uint32_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) actor_put(a, keys[i]);
  actor_del_range(a, 5, 20);
  CHECK(actor_commit(a));
  stage_forget(y->w.shared);
  stage_read(&y->w, y->initial, versions);
}

static void play(struct story *y, struct actor *a, struct actor *b, const struct plot *p) {
  story_begin(y, a);
  actor_begin(a);
  actor_begin(b);
  p->first(a);
  p->second(b);
  CHECK(actor_commit(a));
  CHECK(actor_commit(b) == y->w.untracked);
  story_take(y);
  const enum serial_verdict v = serial_check(y->s, &y->result);
  const struct serial_result *const r = &y->result;
  if (!y->w.untracked) CHECK_SAYS(v == SERIAL_GOOD, "%s: %s", p->what, r->text);
  else
    CHECK_SAYS(v == SERIAL_CYCLE && r->ops == 2 && r->ww == p->ww && r->wr == 0 && r->rw == p->rw && r->time == 0 &&
                   r->gaps == p->gaps,
               "%s: %d, %s", p->what, (int)v, r->text);
  story_next(y);
}

static void test_planted(void **state) {
  (void)state;
  struct story *const y = story_open(check_seed_or(1));
  struct actor *const a = actor_create(&y->w, 0), *const b = actor_create(&y->w, 1);
  for (uint32_t i = 0; i < sizeof(plots) / sizeof(plots[0]); i++) {
    for (uint32_t untracked = 0; untracked < 2; untracked++) {
      y->w.untracked = untracked != 0;
      play(y, a, b, &plots[i]);
    }
  }
  actor_destroy(a);
  actor_destroy(b);
  stage_close(&y->w);
  story_destroy(y);
}

// Threads whose transactions read without conflicts: the checker finds a cycle among all that they did.
static void test_planted_by_threads(void **state) {
  (void)state;
  struct story *const y = story_open(check_seed_or(1));
  y->w.untracked = true;
  y->w.nr_ops = 20000 / SLOW;
  stage_run(&y->w);
  story_take(y);
  CHECK(serial_check(y->s, &y->result) == SERIAL_CYCLE);
  CHECK(y->result.rw > 0 && y->result.ops > 1);
  print_message("%u operations, %s\n", y->nr, y->result.text);
  story_next(y);
  stage_close(&y->w);
  story_destroy(y);
}

// ---- lives and deaths

static uint64_t nr_all, nr_committed, nr_conflicts, nr_lost, nr_unplaced, nr_edges, nr_deaths;

// The child: uses the store until it is killed, or has done all.
static void live(struct stage *w, int workers, int sync) {
  (void)alarm(SLOW_HANG_S);
  stage_open(w, workers, sync);
  stage_run(w);
  stage_close(w);
  (void)fflush(NULL);
  _exit(0);
}

// Runs a life; kill_at: after so many operations the process is killed.
static void run_life(struct stage *w, int workers, int sync, uint64_t kill_at) {
  (void)fflush(NULL);
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) live(w, workers, sync);
  int st = 0;
  pid_t ended = 0;
  while (atomic_load(&w->shared->done) < kill_at && (ended = waitpid(pid, &st, WNOHANG)) == 0) time_sleep_ns(100000);
  if (!ended) (void)kill(pid, SIGKILL);
  while (!ended && waitpid(pid, &st, 0) < 0) CHECK(errno == EINTR);
  if (kill_at == UINT64_MAX)
    CHECK_SAYS(WIFEXITED(st) && WEXITSTATUS(st) == 0, "the child ended with %#x", (unsigned)st);
  else CHECK_SAYS(WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL, "the child ended by itself, with %#x", (unsigned)st);
}

// The store after a life: values and versions of all keys, and the number of the last write that is there.
struct remains {
  uint32_t values[STAGE_KEYS];
  uint64_t versions[STAGE_KEYS], last;
};

// Reads the markers into the logs: an operation that was about to learn its order, or its end, has it now.
static void read_remains(struct story *y, struct remains *r) {
  stage_open(&y->w, 0, REMIXDB_SYNC_NONE);
  stage_read(&y->w, r->values, r->versions);
  r->last = 0;
  for (uint32_t key = 0; key < STAGE_KEYS; key++)
    if (r->versions[key] > r->last) r->last = r->versions[key];
  for (uint32_t i = 0; i < STAGE_THREADS; i++) {
    struct stage_log *const log = &y->w.shared->logs[i];
    uint64_t version;
    const uint32_t nr = stage_marker(&y->w, i, &version);
    if (version > r->last) r->last = version;
    if (nr == UINT32_MAX) continue;
    CHECK(nr < atomic_load(&log->nr) && log->marked[nr] && log->ops[nr].end != SERIAL_ABORTED);
    CHECK(log->ops[nr].order == version || log->ops[nr].order == 0);
    log->ops[nr].order = version;
    log->ops[nr].end = SERIAL_COMMITTED;
  }
  struct xdb_ref *const ref = remixdb_ref(y->w.x);
  CHECK(ref && remixdb_verify(ref));
  remixdb_unref(ref);
  stage_close(&y->w);
}

// All that was synced is there: what had returned before a sync was called that returned, too.
static void check_synced(struct story *y, const struct remains *r, bool all) {
  uint64_t synced = all ? UINT64_MAX : 0;
  for (uint32_t i = 0; i < STAGE_THREADS; i++)
    if (y->w.shared->logs[i].synced > synced) synced = y->w.shared->logs[i].synced;
  for (uint32_t i = 0; i < y->nr; i++) {
    const struct serial_op *const o = &y->ops[i];
    const uint64_t order = serial_order(y->s, i);
    nr_committed += o->end == SERIAL_COMMITTED && o->order;
    nr_conflicts += o->conflict;
    nr_lost += order > r->last;
    if (o->end != SERIAL_COMMITTED || order <= r->last || o->ret >= synced) continue;
    fail_msg(
        "TEST_SEED=%llu, life %u: operation %u of thread %u, number %llu, is lost; it returned at %llu, before the "
        "sync of %llu; the last one that is there has number %llu",
        (unsigned long long)check_seed, y->w.life, i, o->thread, (unsigned long long)order, (unsigned long long)o->ret,
        (unsigned long long)synced, (unsigned long long)r->last);
  }
}

// All keys have the values that the operations up to the last surviving write have made.
static void check_remains(struct story *y, const struct remains *r) {
  uint32_t values[STAGE_KEYS];
  serial_state(y->s, r->last, values);
  for (uint32_t key = 0; key < STAGE_KEYS; key++)
    if (values[key] != r->values[key])
      fail_msg("TEST_SEED=%llu, life %u: key %u has value %u (version %llu), not %u; the last number is %llu",
               (unsigned long long)check_seed, y->w.life, key, r->values[key], (unsigned long long)r->versions[key],
               values[key], (unsigned long long)r->last);
}

static void check_life(struct story *y, bool all) {
  static struct remains r;
  read_remains(y, &r);
  story_take(y);
  for (uint32_t key = 0; key < STAGE_KEYS; key++)
    CHECK_SAYS(serial_found(y->s, key, r.values[key], r.versions[key]), "key %u has the foreign value %u", key,
               r.values[key]);
  story_check(y);
  check_remains(y, &r);
  check_synced(y, &r, all);
  nr_all += y->nr;
  nr_unplaced += y->result.unplaced;
  nr_edges += y->result.edges;
  memcpy(y->initial, r.values, sizeof(y->initial));
}

// Several lives of a store, of so many operations each. The last one closes the store.
static void run_story(uint64_t seed, uint32_t lives, uint64_t nr_ops) {
  struct story *const y = story_create(seed);
  uint64_t rng = seed;
  stage_open(&y->w, 0, REMIXDB_SYNC_NONE);
  stage_fill(&y->w);
  stage_close(&y->w);
  for (; y->w.life < lives; y->w.life++) {
    const bool dies = y->w.life + 1 < lives, each = chance(&rng, 20);
    const uint64_t kill_at = dies ? nr_ops / 2 + below(&rng, nr_ops) : UINT64_MAX;
    y->w.nr_ops = dies ? UINT64_MAX : nr_ops;
    (void)alarm(SLOW_HANG_S);
    run_life(&y->w, (int)below(&rng, 3), each ? REMIXDB_SYNC_EACH : REMIXDB_SYNC_NONE, kill_at);
    check_life(y, each || !dies);
    nr_deaths += dies;
    story_next(y);
  }
  story_destroy(y);
  setup_again();
}

static void test_lives(void **state) {
  (void)state;
  const char *const soak = getenv("SOAK_SECONDS");
  const uint64_t until = time_ns() + (soak && *soak ? strtoull(soak, NULL, 10) * 1000000000ull : 0);
  uint64_t s = check_seed_or(soak && *soak ? time_ns() / 1000 : 1);
  do run_story(s++, 4, 25000 / SLOW);
  while (time_ns() < until);
  print_message("%llu operations, %llu transactions and batches committed, %llu aborted; %llu deaths, which lost %llu "
                "operations; %llu edges, %llu values without a place\n",
                (unsigned long long)nr_all, (unsigned long long)nr_committed, (unsigned long long)nr_conflicts,
                (unsigned long long)nr_deaths, (unsigned long long)nr_lost, (unsigned long long)nr_edges,
                (unsigned long long)nr_unplaced);
  CHECK(nr_committed > nr_all / 4 && nr_conflicts > 0 && nr_unplaced < nr_all / 50);
}

// An argument names the tests to run, as in "test_l*".
int main(int argc, char **argv) {
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  hang_alarm();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_checker_all_orders),
      cmocka_unit_test_setup_teardown(test_lives, setup, teardown),
      cmocka_unit_test_setup_teardown(test_planted, setup, teardown),
      cmocka_unit_test_setup_teardown(test_planted_by_threads, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

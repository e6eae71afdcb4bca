// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/work.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROOM_LOOK_NS 20000000
#define SIDE_TRACE (4u << 20)  // operations of the writer beside readers; it begins again after them
#define SAMPLE 16u             // one operation of so many is timed
#define MULTI_DEFAULT 32u
#define REPORTS_MAX 20u
#define RECORD_CAP \
  (1u << 16)  // bytes: a key or a value of any engine's that this program wrote, or that is told to be too long

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

enum op_kind { OP_GET, OP_PUT, OP_DEL, OP_RMW, OP_SCAN, OP_MULTI };

struct op {
  uint32_t index;  // record
  uint8_t kind;
  uint8_t band;
  bool back;     // OP_SCAN: towards smaller keys
  uint16_t len;  // OP_SCAN: steps after the seek; OP_MULTI: how many of the following are read at once
};

enum order { FILL_NONE = 0, FILL_SEQ, FILL_RANDOM };
enum latest { BY_PARAMS = 0, ZIPFIAN, LATEST };
enum beside { ALONE = 0, BESIDE_WRITER, BESIDE_READER };

struct workload {
  const char *name, *what;
  enum order fill;                            // makes the records; starts with an empty store
  uint32_t get, put, insert, scan, rmw, del;  // percent
  enum latest draw;
  enum beside beside;
  bool missing;  // reads records that are not there
  bool whole;    // a scan of everything, in each thread
  bool reverse;
  bool multi;
  bool by_ratio;   // get and put from the parameters
  bool ycsb_scan;  // 1 to scan_max records
  bool sync;
};

static const struct workload workloads[] = {
    {.name = "fillseq", .what = "puts all records in ascending order", .fill = FILL_SEQ},
    {.name = "fillrandom",
     .what = "puts all records in random order, each once (--unique=0: records at random)",
     .fill = FILL_RANDOM},
    {.name = "fillsync", .what = "num/1000 puts, each on disk before the next", .fill = FILL_RANDOM, .sync = true},
    {.name = "overwrite", .what = "puts of records that are there", .put = 100},
    {.name = "readrandom", .what = "gets", .get = 100},
    {.name = "readmissing",
     .what = "gets of keys that are not there, among those that are",
     .get = 100,
     .missing = true},
    {.name = "readseq", .what = "the whole store in order, by each thread", .whole = true},
    {.name = "readreverse", .what = "the same in reverse order", .whole = true, .reverse = true},
    {.name = "seekrandom", .what = "a seek and --seek_nexts steps", .scan = 100},
    {.name = "multireadrandom", .what = "gets, --batch_size at once", .get = 100, .multi = true},
    {.name = "deleterandom", .what = "deletes", .del = 100},
    {.name = "readwhilewriting", .what = "gets beside a thread that overwrites", .get = 100, .beside = BESIDE_WRITER},
    {.name = "seekrandomwhilewriting",
     .what = "seeks beside a thread that overwrites",
     .scan = 100,
     .beside = BESIDE_WRITER},
    {.name = "readrandomwriterandom", .what = "--readwritepercent gets, the rest puts", .by_ratio = true},
    {.name = "fillwhilereading",
     .what = "fillrandom beside a thread that gets records put so far (--read_rate)",
     .fill = FILL_RANDOM,
     .beside = BESIDE_READER},
    {.name = "ycsbload", .what = "YCSB: puts all records in random order", .fill = FILL_RANDOM},
    {.name = "ycsba", .what = "YCSB A: 50% reads, 50% updates, zipfian", .get = 50, .put = 50, .draw = ZIPFIAN},
    {.name = "ycsbb", .what = "YCSB B: 95% reads, 5% updates, zipfian", .get = 95, .put = 5, .draw = ZIPFIAN},
    {.name = "ycsbc", .what = "YCSB C: reads, zipfian", .get = 100, .draw = ZIPFIAN},
    {.name = "ycsbd", .what = "YCSB D: 95% reads, 5% inserts, the latest most", .get = 95, .insert = 5, .draw = LATEST},
    {.name = "ycsbe",
     .what = "YCSB E: 95% scans of 1 to --scan_max records, 5% inserts, zipfian",
     .scan = 95,
     .insert = 5,
     .draw = ZIPFIAN,
     .ycsb_scan = true},
    {.name = "ycsbf",
     .what = "YCSB F: 50% reads, 50% read-modify-writes, zipfian",
     .get = 50,
     .rmw = 50,
     .draw = ZIPFIAN},
};
#define NR_WORKLOADS (sizeof(workloads) / sizeof(workloads[0]))

static const struct workload *find(const char *name) {
  for (size_t i = 0; i < NR_WORKLOADS; i++)
    if (!strcmp(workloads[i].name, name)) return &workloads[i];
  return NULL;
}

bool bench_work_known(const char *name) { return find(name) != NULL; }

bool bench_work_fresh(const char *name) {
  const struct workload *w = find(name);
  return w && w->fill;
}

uint32_t bench_work_batch_max(const char *name) {
  const struct workload *w = find(name);
  return w && w->multi ? BENCH_MULTI_MAX : UINT32_MAX;
}

const char *bench_work_name(uint32_t i, const char **what_out) {
  if (i >= NR_WORKLOADS) return NULL;
  *what_out = workloads[i].what;
  return workloads[i].name;
}

// ---- content of the store

static size_t present_words(const struct bench_run *run) { return run->keys.num / 64 + 1; }

bool bench_run_init(struct bench_run *run, bool whole) {
  run->present = calloc(present_words(run), 8);
  if (run->full) run->versions = calloc(run->keys.num, 8);
  bench_run_reset(run, whole);
  return run->present && (run->versions || !run->full);
}

void bench_run_reset(struct bench_run *run, bool whole) {
  run->empty = run->sparse = !whole;
  run->inserted = 0;
  if (run->present) memset((void *)run->present, whole ? 0xff : 0, present_words(run) * 8);
  if (run->versions) memset(run->versions, 0, run->keys.num * 8);
}

void bench_run_fini(struct bench_run *run) {
  free((void *)run->present);
  free(run->versions);
}

// Relaxed: a bit is set or tested by one thread at a time, or the race is the benchmark's own (a delete beside a get is
// never asked for).
static bool is_present(const struct bench_run *run, uint64_t i) {
  return atomic_load_explicit(&run->present[i / 64], memory_order_relaxed) >> (i % 64) & 1;
}
static void set_present(struct bench_run *run, uint64_t i, bool there) {
  if (there) atomic_fetch_or_explicit(&run->present[i / 64], 1ull << (i % 64), memory_order_relaxed);
  else atomic_fetch_and_explicit(&run->present[i / 64], ~(1ull << (i % 64)), memory_order_relaxed);
}

uint64_t bench_run_records(const struct bench_run *run) {
  uint64_t n = 0;
  if (!run->sparse) return run->keys.num + run->inserted;
  for (uint64_t i = 0; i < run->keys.num; i++) n += is_present(run, i);
  return n + run->inserted;
}

// ---- one thread of a benchmark

struct start_line {  // all threads of a benchmark start together
  pthread_mutex_t lock;
  pthread_cond_t moved;
  uint32_t ready;
  bool go;
};

struct worker {
  struct bench_run *run;
  const struct workload *work;
  const struct bench_params *p;
  struct start_line *line;
  const struct bench_perm *order;    // the order of filling, and of the records' age
  const struct bench_perm *scatter;  // frequency to record
  const struct bench_perm *inserts;  // where inserted records lie
  struct bench_zipf zipf;
  pthread_t thread;
  uint32_t id, threads;
  bool is_writer;      // beside the readers
  bool is_reader;      // beside a filling
  bool writes_only;    // all of its writes are timed
  bool fills;          // all records: those there need not be kept track of
  bool lenient;        // the content is not known: it was not at the start, or others change it meanwhile
  bool one_writer;     // a read version can be compared with the last one written
  _Atomic bool *stop;  // the threads that it runs beside are done
  // Records that the first thread of a filling has put so far; NULL: nobody asks. Release and acquire: the reader
  // beside it finds them.
  _Atomic uint64_t *filled;

  uint64_t random, drawn, total;  // operations drawn, to draw
  uint64_t own_inserts, insert_at;
  struct op *trace;
  uint32_t trace_cap, multi;

  void *session;
  uint64_t version;
  uint8_t key[BENCH_KEY_MAX], *value;
  uint32_t klen;  // bytes of key
  struct bench_record rec, *many;
  uint8_t (*many_keys)[BENCH_KEY_MAX];
  uint8_t *last_key;  // the last key of a scan
  uint32_t last_klen;

  bool good;  // the engine has not failed
  uint64_t began_ns, ended_ns, paused_ns;
  struct bench_result r;
};

static void mismatch(struct worker *w, const struct op *op, const char *what) {
  if (atomic_fetch_add_explicit(&w->run->failures, 1, memory_order_relaxed) >= REPORTS_MAX) return;
  fprintf(stderr, "xdbbench: %s: %s: record %" PRIu32 ", band %u: %s\n", w->run->engine->name, w->work->name, op->index,
          op->band, what);
}

// ---- drawing

static uint32_t draw_record(struct worker *w, uint8_t *band_out) {
  const uint64_t num = w->run->keys.num;
  *band_out = BENCH_LOADED;
  if (w->work->draw == LATEST) {
    uint64_t age = bench_zipf_draw(&w->zipf, &w->random);
    if (age < w->own_inserts) {
      *band_out = BENCH_INSERTED;
      return (uint32_t)bench_perm_at(w->inserts, w->run->inserted + (w->own_inserts - 1 - age) * w->threads + w->id);
    }
    age -= w->own_inserts;
    if (age < w->run->inserted) {
      *band_out = BENCH_INSERTED;
      return (uint32_t)bench_perm_at(w->inserts, w->run->inserted - 1 - age);
    }
    return (uint32_t)bench_perm_at(w->order, num - 1 - (age - w->run->inserted));
  }
  if (w->work->draw == ZIPFIAN || (w->work->draw == BY_PARAMS && w->p->distribution == BENCH_ZIPFIAN))
    return (uint32_t)bench_perm_at(w->scatter, bench_zipf_draw(&w->zipf, &w->random));
  return (uint32_t)bench_random_below(&w->random, num);
}

// Every thread inserts once in each run of 100 / percent operations, at a random place, so that all threads insert
// equally many and the records inserted so far have no gaps.
static bool insert_now(struct worker *w) {
  if (!w->work->insert) return false;
  const uint64_t run = 100 / w->work->insert, at = w->drawn % run;
  if (at == 0) w->insert_at = bench_random_below(&w->random, run);
  return at == w->insert_at && w->drawn - at + run <= w->total;
}

static uint64_t inserts_of(const struct worker *w) { return w->work->insert ? w->total / (100 / w->work->insert) : 0; }

static void draw_one(struct worker *w, struct op *op) {
  const struct workload *k = w->work;
  *op = (struct op){0};
  if (w->is_writer) {
    op->kind = OP_PUT;
    op->index = (uint32_t)bench_random_below(&w->random, w->run->keys.num);
    return;
  }
  if (k->fill) {
    const uint64_t i = w->drawn * w->threads + w->id;  // the threads take turns
    op->kind = OP_PUT;
    op->index = (uint32_t)(k->fill == FILL_SEQ ? i
                           : w->p->unique      ? bench_perm_at(w->order, i)
                                               : bench_random_below(&w->random, w->run->keys.num));
    return;
  }
  if (insert_now(w)) {
    op->kind = OP_PUT;
    op->band = BENCH_INSERTED;
    op->index = (uint32_t)bench_perm_at(w->inserts, w->run->inserted + w->own_inserts * w->threads + w->id);
    w->own_inserts++;
    if (k->draw == LATEST) bench_zipf_grow(&w->zipf);
    return;
  }
  const uint32_t get = k->by_ratio ? w->p->readwritepercent : k->get, put = k->by_ratio ? 100 - get : k->put;
  const uint32_t all = get + put + k->scan + k->rmw + k->del;  // inserts are drawn
  uint64_t pick = all ? bench_random_below(&w->random, all) : 0;
  op->index = draw_record(w, &op->band);
  if (pick < get) {
    op->kind = OP_GET;
    if (k->missing) op->band = BENCH_MISSING;
  } else if ((pick -= get) < put) {
    op->kind = OP_PUT;
  } else if ((pick -= put) < k->scan) {
    op->kind = OP_SCAN;
    op->len = (uint16_t)(k->ycsb_scan ? bench_random_below(&w->random, w->p->scan_max) : w->p->seek_nexts);
    if (w->p->seek_missing && !k->ycsb_scan) op->band = BENCH_MISSING;
    op->back = w->p->backwards && !k->ycsb_scan;
  } else if ((pick -= k->scan) < k->rmw) {
    op->kind = OP_RMW;
  } else {
    op->kind = OP_DEL;
  }
}

// Fills the trace; returns how many were drawn.
static uint32_t draw(struct worker *w) {
  uint32_t n = 0;
  while (n < w->trace_cap && w->drawn < w->total) {
    draw_one(w, &w->trace[n]);
    if (w->multi) {
      const uint64_t at = n % w->multi, left = w->total - (w->drawn - at);
      w->trace[n].kind = OP_MULTI;
      w->trace[n].len = (uint16_t)(at ? 0 : left < w->multi ? left : w->multi);
    }
    w->drawn++;
    n++;
  }
  return n;
}

// ---- checking

// The value is one of the key's, and not older than the last one whose put had returned before the read began
// (`oldest`).
static bool value_good(struct worker *w, const struct op *op, struct bench_slice key, const struct bench_record *r,
                       uint64_t oldest) {
  uint64_t version = 0;
  if (unlikely(!bench_value_good(&w->run->keys, key.ptr, key.len, r->value, r->vlen, w->run->full, &version)))
    return mismatch(w, op, "a wrong value"), false;
  if (unlikely(version < oldest)) return mismatch(w, op, "an old value"), false;
  return true;
}

static uint64_t oldest_version(const struct worker *w, const struct op *op) {
  return w->run->versions && w->one_writer && op->band == BENCH_LOADED
             ? __atomic_load_n(&w->run->versions[op->index], __ATOMIC_ACQUIRE)
             : 0;
}

static bool expected(const struct worker *w, const struct op *op) {
  return op->band == BENCH_INSERTED || (op->band == BENCH_LOADED && (!w->run->sparse || is_present(w->run, op->index)));
}

static void check_get(struct worker *w, const struct op *op, struct bench_slice key, const struct bench_record *r,
                      bool found, uint64_t oldest) {
  w->r.reads++;
  if (found) {
    w->r.records++;
    w->r.bytes_read += key.len + w->run->keys.value_size;
    if (unlikely(!expected(w, op)) && !w->lenient) mismatch(w, op, "found, and it is not there");
    else value_good(w, op, key, r, oldest);
  } else {
    w->r.missed++;
    if (unlikely(expected(w, op)) && !w->lenient) mismatch(w, op, "not found");
  }
}

static void wrote(struct worker *w, const struct op *op, bool there) {
  struct bench_run *run = w->run;
  w->r.writes++;
  w->r.bytes_written += w->klen + (there ? run->keys.value_size : 0);
  if (op->band != BENCH_LOADED) return;
  if (unlikely(run->sparse && !w->fills)) set_present(run, op->index, there);
  if (unlikely(run->versions != NULL)) __atomic_store_n(&run->versions[op->index], w->version, __ATOMIC_RELEASE);
}

// ---- running

struct modify_arg {
  struct worker *w;
  const struct op *op;
  uint64_t oldest;
};

static struct bench_slice own_key(const struct worker *w) { return (struct bench_slice){w->key, w->klen}; }

static bool modify(void *arg, const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len) {
  const struct modify_arg *m = arg;
  struct worker *w = m->w;
  struct bench_record r = {.value = (uint8_t *)(uintptr_t)v0, .vlen = v0len};
  check_get(w, m->op, own_key(w), &r, v0 != NULL, m->oldest);
  bench_value(&w->run->keys, w->key, w->klen, ++w->version, w->value);
  *v1 = w->value;
  *v1len = w->run->keys.value_size;
  return true;
}

static enum bench_status do_rmw(struct worker *w, const struct op *op) {
  const struct bench_engine *e = w->run->engine;
  const uint32_t klen = w->klen;
  struct modify_arg m = {w, op, oldest_version(w, op)};
  if (e->rmw) return e->rmw(w->session, w->key, klen, modify, &m);
  const enum bench_status s = e->get(w->session, w->key, klen, &w->rec);
  if (s == BENCH_ERROR) return s;
  const void *v1;
  uint32_t v1len;
  if (!modify(&m, s == BENCH_OK ? w->rec.value : NULL, w->rec.vlen, &v1, &v1len)) return BENCH_OK;
  return e->put(w->session, w->key, klen, v1, v1len);
}

// Remembers the key that a scan stands on.
static void keep_key(struct worker *w) {
  bench_key_copy(w->last_key, w->rec.key, w->rec.klen);
  w->last_klen = w->rec.klen;
}

// Checks the records of a scan one by one: keys ascend, values are good, the first key is the sought one.
static bool check_scanned(struct worker *w, const struct op *op, uint32_t step) {
  const struct bench_keys *k = &w->run->keys;
  const struct bench_record *r = &w->rec;
  const bool back = op->back, missing = op->band == BENCH_MISSING;
  w->r.records++;
  w->r.bytes_read += r->klen + k->value_size;
  if (unlikely(r->klen > k->key_size || r->klen < BENCH_KEY_MIN))
    return mismatch(w, op, "a scan came to a key of another length"), false;
  if (step == 0) {
    const int order = bench_key_cmp(r->key, r->klen, w->key, w->klen);
    if (missing ? (back ? order >= 0 : order <= 0) : expected(w, op) && !w->lenient && order)
      return mismatch(w, op, "a seek came to another key"), false;
  } else {
    const int order = bench_key_cmp(r->key, r->klen, w->last_key, w->last_klen);
    if (unlikely(back ? order >= 0 : order <= 0)) return mismatch(w, op, "a scan came to a key out of order"), false;
  }
  if (w->run->full && !w->lenient && !w->run->sparse && !w->run->inserted && !w->work->insert) {
    uint8_t key[BENCH_KEY_MAX];
    const uint32_t klen = bench_key(k, back ? op->index - step : op->index + step + missing, BENCH_LOADED, key);
    if (klen != r->klen || memcmp(key, r->key, klen)) return mismatch(w, op, "a scan left out a record"), false;
  }
  keep_key(w);
  return value_good(w, op, (struct bench_slice){r->key, r->klen}, r, 0);
}

// To the last key <= w->key, also with engines that seek forwards only.
static enum bench_status seek_back(struct worker *w) {
  const struct bench_engine *e = w->run->engine;
  const uint32_t klen = w->klen;
  if (e->seek_for_prev) return e->seek_for_prev(w->session, w->key, klen, &w->rec);
  const enum bench_status s = e->seek(w->session, w->key, klen, &w->rec);
  if (s == BENCH_NONE) return e->seek_last(w->session, &w->rec);
  return s == BENCH_OK && bench_key_cmp(w->rec.key, w->rec.klen, w->key, klen) > 0 ? e->prev(w->session, &w->rec) : s;
}

static enum bench_status do_scan(struct worker *w, const struct op *op) {
  const struct bench_engine *e = w->run->engine;
  // so many records lie in the scan's way
  const uint64_t way = op->back ? (uint64_t)op->index + 1
                                : w->run->keys.num - op->index - (op->band == BENCH_MISSING ? 1 : 0);
  uint32_t step = 0;
  enum bench_status s = op->back ? seek_back(w) : e->seek(w->session, w->key, w->klen, &w->rec);
  for (;; step++) {
    if (s != BENCH_OK || !check_scanned(w, op, step) || step == op->len) break;
    s = op->back ? e->prev(w->session, &w->rec) : e->next(w->session, &w->rec);
  }
  e->done(w->session);
  if (s == BENCH_NONE && !w->run->sparse && !w->lenient && step < way) mismatch(w, op, "a scan ended early");
  w->r.reads++;
  return s == BENCH_ERROR ? s : BENCH_OK;
}

static enum bench_status do_multi(struct worker *w, const struct op *ops, uint32_t nr) {
  const struct bench_engine *e = w->run->engine;
  const struct bench_keys *k = &w->run->keys;
  struct bench_slice keys[BENCH_MULTI_MAX];
  for (uint32_t i = 0; i < nr; i++) {
    const uint32_t klen = bench_key(k, ops[i].index, ops[i].band, w->many_keys[i]);
    keys[i] = (struct bench_slice){w->many_keys[i], klen};
  }
  const uint64_t t0 = bench_tick();
  enum bench_status s = BENCH_OK;
  if (e->multi_get) {
    s = e->multi_get(w->session, nr, keys, w->many);
  } else {
    for (uint32_t i = 0; i < nr && s != BENCH_ERROR; i++) {
      s = e->get(w->session, keys[i].ptr, keys[i].len, &w->many[i]);
      if (s == BENCH_NONE) w->many[i].vlen = BENCH_ABSENT;
    }
  }
  bench_hist_add(&w->r.read, bench_tick() - t0);
  if (s == BENCH_ERROR) return s;
  for (uint32_t i = 0; i < nr; i++)
    check_get(w, &ops[i], keys[i], &w->many[i], w->many[i].vlen != BENCH_ABSENT, oldest_version(w, &ops[i]));
  return BENCH_OK;
}

static bool is_write(const struct op *op) { return op->kind == OP_PUT || op->kind == OP_DEL || op->kind == OP_RMW; }

// A thread that only writes times all its operations, because the report has the longest. Others are sampled: reading
// the clock would cost some of them a tenth.
static bool do_op(struct worker *w, const struct op *op, bool sampled) {
  struct bench_run *run = w->run;
  const struct bench_engine *e = run->engine;
  const struct bench_keys *k = &run->keys;
  const bool write = is_write(op), timed = w->writes_only || sampled;
  enum bench_status s;
  w->klen = bench_key(k, op->index, op->band, w->key);
  if (op->kind == OP_PUT) bench_value(k, w->key, w->klen, ++w->version, w->value);
  const uint64_t oldest = op->kind == OP_GET ? oldest_version(w, op) : 0;
  const uint64_t t0 = timed ? bench_tick() : 0;
  switch (op->kind) {
    case OP_GET: s = e->get(w->session, w->key, w->klen, &w->rec); break;
    case OP_PUT: s = e->put(w->session, w->key, w->klen, w->value, k->value_size); break;
    case OP_DEL: s = e->del(w->session, w->key, w->klen); break;
    case OP_RMW: s = do_rmw(w, op); break;
    default: s = do_scan(w, op); break;
  }
  if (timed) bench_hist_add(write ? &w->r.write : &w->r.read, bench_tick() - t0);
  if (unlikely(s == BENCH_ERROR)) return false;
  if (op->kind == OP_GET) check_get(w, op, own_key(w), &w->rec, s == BENCH_OK, oldest);
  else if (write) wrote(w, op, op->kind != OP_DEL);
  return true;
}

static void wait_for_rate(const struct worker *w, uint64_t rate) {
  const uint64_t due = w->began_ns + (w->r.ops * 1000000000u) / rate, now = bench_time_ns();
  if (now < due)
    nanosleep(&(struct timespec){.tv_sec = (time_t)((due - now) / 1000000000u),
                                 .tv_nsec = (long)((due - now) % 1000000000u)},
              NULL);
}

static bool run_trace(struct worker *w, uint32_t n) {
  for (uint32_t i = 0; i < n;) {
    const struct op *op = &w->trace[i];
    if (op->kind == OP_MULTI) {
      if (do_multi(w, op, op->len) != BENCH_OK) return false;
      i += op->len;
      w->r.ops += op->len;
      continue;
    }
    if (unlikely(!do_op(w, op, w->p->histogram || i % SAMPLE == 0))) return false;
    i++;
    w->r.ops++;
    if (w->filled && w->id == 0) atomic_store_explicit(w->filled, w->r.ops, memory_order_release);
    if (w->is_writer) {
      if (atomic_load_explicit(w->stop, memory_order_relaxed)) return true;
      if (w->p->write_rate && w->r.ops % 16 == 0) wait_for_rate(w, w->p->write_rate);
    }
  }
  return true;
}

static void run_drawn(struct worker *w, uint32_t n) {
  while (n) {
    if (!run_trace(w, n)) return;
    if (w->is_writer) {
      if (atomic_load_explicit(w->stop, memory_order_relaxed)) break;
      continue;  // the same again, with other versions
    }
    if (w->drawn == w->total) break;
    const uint64_t t0 = bench_time_ns();
    const struct bench_thread_usage used = bench_thread_usage_get();
    n = draw(w);
    w->paused_ns += bench_time_ns() - t0;
    bench_thread_usage_add(&w->r.used, &used, -1);
  }
  w->good = w->run->engine->finish(w->session);
}

// Gets records that the filling beside it has put so far, each as likely as any other. The choice depends on the
// progress of the filling, so nothing is drawn ahead.
static void run_beside_filling(struct worker *w) {
  const struct bench_engine *e = w->run->engine;
  const struct bench_keys *k = &w->run->keys;
  struct op op = {.kind = OP_GET};
  for (;;) {
    if (w->p->read_rate) wait_for_rate(w, w->p->read_rate);
    const bool over = atomic_load_explicit(w->stop, memory_order_acquire);  // then `filled` is the last value
    const uint64_t filled = atomic_load_explicit(w->filled, memory_order_acquire);
    if (over && (w->r.ops || !filled)) break;  // it reads once, also where it has begun after the filling's end
    if (!filled) continue;
    op.index = (uint32_t)bench_perm_at(w->order, bench_random_below(&w->random, filled) * w->threads);
    w->klen = bench_key(k, op.index, BENCH_LOADED, w->key);
    const uint64_t t0 = bench_tick();
    const enum bench_status s = e->get(w->session, w->key, w->klen, &w->rec);
    bench_hist_add(&w->r.read, bench_tick() - t0);
    w->r.ops++;
    w->r.reads++;
    if (s == BENCH_ERROR) return;
    if (s == BENCH_OK) value_good(w, &op, own_key(w), &w->rec, 0);
    else if (w->p->unique) mismatch(w, &op, "not found");
  }
  w->good = true;
}

// The whole store in one scan. Record numbers are not known on the way, so `op` only serves the messages.
static void run_whole(struct worker *w) {
  const struct bench_engine *e = w->run->engine;
  const struct bench_keys *k = &w->run->keys;
  const bool reverse = w->work->reverse;
  struct op op = {0};
  enum bench_status s = reverse ? e->seek_last(w->session, &w->rec) : e->seek(w->session, NULL, 0, &w->rec);
  for (uint64_t n = 0; s == BENCH_OK; n++) {
    op.index = (uint32_t)n;
    const bool fits = w->rec.klen <= k->key_size && w->rec.klen >= BENCH_KEY_MIN;
    const int order = fits && n ? bench_key_cmp(w->rec.key, w->rec.klen, w->last_key, w->last_klen) : 0;
    if (unlikely(!fits || (n && (reverse ? order >= 0 : order <= 0)))) {
      mismatch(w, &op, "a scan came to a key out of order");
      break;
    }
    if (!value_good(w, &op, (struct bench_slice){w->rec.key, w->rec.klen}, &w->rec, 0)) break;
    keep_key(w);
    w->r.bytes_read += w->rec.klen + k->value_size;
    w->r.records++;
    s = reverse ? e->prev(w->session, &w->rec) : e->next(w->session, &w->rec);
  }
  e->done(w->session);
  w->good = s != BENCH_ERROR;
  w->r.reads = w->r.ops = w->r.records;
  if (s == BENCH_NONE && w->r.records != bench_run_records(w->run) && !w->run->may_miss) {
    fprintf(stderr, "xdbbench: %s: %s: %" PRIu64 " records, expected %" PRIu64 "\n", e->name, w->work->name,
            w->r.records, bench_run_records(w->run));
    atomic_fetch_add_explicit(&w->run->failures, 1, memory_order_relaxed);
  }
}

static unsigned session_flags(const struct worker *w) {
  const struct workload *k = w->work;
  const bool writes = k->fill || k->put || k->insert || k->rmw || k->del || k->by_ratio || k->beside;
  const bool reads = k->beside || (!k->fill && (k->get || k->scan || k->rmw || k->by_ratio || k->whole));
  const bool ascending = k->fill == FILL_SEQ && w->threads == 1 && w->run->empty, sync = k->sync || w->p->sync;
  return (writes ? 0 : BENCH_READS_ONLY) | (reads ? 0 : BENCH_WRITES_ONLY) | (ascending ? BENCH_ASCENDING : 0) |
         (sync ? BENCH_SYNC : 0);
}

static void *worker_main(void *arg) {
  struct worker *w = arg;
  const unsigned flags = session_flags(w);
  const uint32_t batch = !(flags & BENCH_WRITES_ONLY) || flags & BENCH_SYNC ? 1
                         : w->p->batch_size                                 ? w->p->batch_size
                                                                            : w->run->engine->fill_batch;
  const uint32_t drawn = w->trace ? draw(w) : 0;
  w->session = w->run->engine->begin(w->run->store, flags, batch);
  pthread_mutex_lock(&w->line->lock);
  w->line->ready++;
  pthread_cond_broadcast(&w->line->moved);
  while (!w->line->go) pthread_cond_wait(&w->line->moved, &w->line->lock);
  pthread_mutex_unlock(&w->line->lock);
  w->began_ns = bench_time_ns();
  const struct bench_thread_usage used = bench_thread_usage_get();
  if (w->session) {
    if (w->work->whole) run_whole(w);
    else if (w->is_reader) run_beside_filling(w);
    else run_drawn(w, drawn);
  }
  bench_thread_usage_add(&w->r.used, &used, 1);
  w->ended_ns = bench_time_ns();
  if (w->session) w->run->engine->end(w->session);
  return NULL;
}

static bool worker_init(struct worker *w) {
  const struct bench_keys *k = &w->run->keys;
  w->random = bench_mix(
      w->run->seed ^ bench_mix(((uint64_t)w->run->phase << 32) + w->id + (w->is_writer || w->is_reader ? 1000000 : 0)));
  w->version = ((uint64_t)w->run->phase << 40) + ((uint64_t)w->id << 32);  // larger than all of earlier benchmarks
  const uint32_t ahead = w->is_writer ? SIDE_TRACE : w->p->drawn_ahead;
  w->trace_cap = (uint32_t)(w->total < ahead ? w->total : ahead);
  if (w->work->multi) {
    w->multi = w->p->batch_size > 1 ? w->p->batch_size : MULTI_DEFAULT;
    if (w->trace_cap < w->multi) w->trace_cap = w->multi;  // a call's keys are drawn together
    w->trace_cap -= w->trace_cap % w->multi;
  }
  if (w->work->whole || w->is_reader) w->trace_cap = 0;
  else if (!(w->trace = calloc(w->trace_cap ? w->trace_cap : 1, sizeof(*w->trace)))) return false;
  w->r.trace_bytes = w->trace_cap * sizeof(*w->trace);
  w->value = malloc(k->value_size);
  w->last_key = malloc(BENCH_KEY_MAX);
  const uint32_t vcap = k->value_size > RECORD_CAP ? k->value_size : RECORD_CAP;
  w->rec = (struct bench_record){.key = malloc(RECORD_CAP), .value = malloc(vcap), .kcap = RECORD_CAP, .vcap = vcap};
  if (!w->value || !w->last_key || !w->rec.key || !w->rec.value) return false;
  if (w->multi) {
    w->many_keys = calloc(w->multi, sizeof(*w->many_keys));
    w->many = calloc(w->multi, sizeof(*w->many));
    if (!w->many_keys || !w->many) return false;
    for (uint32_t i = 0; i < w->multi; i++) {
      w->many[i].vcap = k->value_size;
      if (!(w->many[i].value = malloc(k->value_size))) return false;
    }
  }
  return true;
}

static void worker_fini(struct worker *w) {
  free(w->trace);
  free(w->value);
  free(w->last_key);
  free(w->rec.key);
  free(w->rec.value);
  for (uint32_t i = 0; w->many && i < w->multi; i++) free(w->many[i].value);
  free(w->many);
  free(w->many_keys);
}

// ---- a benchmark

static void add_result(struct bench_result *to, const struct bench_result *from) {
  to->reads += from->reads;
  to->writes += from->writes;
  to->missed += from->missed;
  to->records += from->records;
  to->bytes_written += from->bytes_written;
  to->bytes_read += from->bytes_read;
  to->trace_bytes += from->trace_bytes;
  bench_hist_merge(&to->read, &from->read);
  bench_hist_merge(&to->write, &from->write);
}

static void add_used(struct bench_thread_usage *to, const struct bench_thread_usage *from) {
  to->cpu_ns += from->cpu_ns;
  to->user_ns += from->user_ns;
  to->system_ns += from->system_ns;
  to->waits += from->waits;
}

static void collect(struct worker *ws, uint32_t readers, uint32_t all, struct bench_result *result) {
  for (uint32_t i = 0; i < all; i++) {
    struct worker *w = &ws[i];
    const double seconds = (double)(w->ended_ns - w->began_ns - w->paused_ns) / 1e9;
    add_result(result, &w->r);
    if (i < readers) {
      result->ops += w->r.ops;
      add_used(&result->used, &w->r.used);
      if (seconds > result->seconds) result->seconds = seconds;
    } else {
      result->side_ops += w->r.ops;
      result->side_seconds = seconds;
    }
  }
  bench_hist_merge(&result->all, &result->read);
  bench_hist_merge(&result->all, &result->write);
}

// The room that a filling takes, looked at every so often. The threads of a filling put about as many records each.
struct room_watch {
  const struct bench_run *run;
  _Atomic uint64_t *filled;
  uint32_t threads;
  uint64_t from;  // bytes
  double most;    // the files' bytes by those put so far, at most
  _Atomic bool end;
  pthread_t thread;
};

static void *room_look(void *arg) {
  struct room_watch *const x = arg;
  const uint64_t size = x->run->keys.mean_size + x->run->keys.value_size;
  while (!atomic_load_explicit(&x->end, memory_order_relaxed)) {
    nanosleep(&(struct timespec){.tv_nsec = ROOM_LOOK_NS}, NULL);
    const uint64_t put = atomic_load_explicit(x->filled, memory_order_relaxed) * x->threads * size;
    if (put < x->from) continue;
    const double share = (double)bench_dir_bytes(x->run->dir) / (double)put;
    if (share > x->most) x->most = share;
  }
  return NULL;
}

static bool run_workers(struct worker *ws, uint32_t readers, uint32_t all, struct start_line *line,
                        _Atomic bool *stop) {
  uint32_t started = 0;
  while (started < all && !pthread_create(&ws[started].thread, NULL, worker_main, &ws[started])) started++;
  pthread_mutex_lock(&line->lock);
  while (line->ready < started) pthread_cond_wait(&line->moved, &line->lock);
  if (started < all) atomic_store(stop, true);
  line->go = true;
  pthread_cond_broadcast(&line->moved);
  pthread_mutex_unlock(&line->lock);
  bool good = started == all;
  for (uint32_t i = 0; i < started; i++) {
    if (i == readers) atomic_store(stop, true);
    pthread_join(ws[i].thread, NULL);
    good &= ws[i].good;
  }
  if (started < all) fprintf(stderr, "xdbbench: a thread could not be started\n");
  return good;
}

// Sets the fields that differ between the `all` workers of a benchmark; the others are set.
static void worker_role(struct worker *w, uint32_t id, uint32_t all, _Atomic uint64_t *filled) {
  const struct workload *k = w->work;
  const struct bench_run *run = w->run;
  const uint64_t num = run->keys.num, fill = k->sync ? (num / 1000 ? num / 1000 : 1) : num;
  const bool beside = id >= w->threads;
  w->id = id;
  w->is_writer = beside && k->beside == BESIDE_WRITER;
  w->is_reader = beside && k->beside == BESIDE_READER;
  w->filled = k->beside == BESIDE_READER || (k->fill && w->p->room_from) ? filled : NULL;
  w->writes_only = w->is_writer || (k->fill && !w->is_reader) || k->put == 100 || k->del == 100;
  w->lenient = run->may_miss || (run->sparse && all > 1 && !(session_flags(w) & BENCH_READS_ONLY));
  w->one_writer = w->threads == 1 || session_flags(w) & BENCH_READS_ONLY || k->beside;
  // the threads of a filling share its records; in other benchmarks every thread has the number of operations
  w->total = w->is_writer   ? (num < SIDE_TRACE ? num : SIDE_TRACE)
             : w->is_reader ? 0
             : k->fill      ? fill / w->threads + (id < fill % w->threads)
             : w->p->ops    ? w->p->ops
                            : num;
}

bool bench_work(struct bench_run *run, const char *name, const struct bench_params *p, struct bench_result *result) {
  const struct workload *k = find(name);
  const uint64_t num = run->keys.num;
  const uint32_t readers = p->threads, all = readers + (k->beside ? 1 : 0);
  struct start_line line = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};
  _Atomic bool stop = false;
  _Atomic uint64_t filled = 0;
  struct bench_perm order, scatter, inserts;
  struct bench_zipf zipf;
  *result = (struct bench_result){0};
  if (k->reverse && !(run->engine->prev && run->engine->seek_last)) return true;
  bench_perm_init(&order, num, run->seed + 1);
  bench_perm_init(&scatter, num, run->seed + 2);
  bench_perm_init(&inserts, num, run->seed + 3);
  bench_zipf_init(&zipf, num + (k->draw == LATEST ? run->inserted : 0), p->zipf_theta);
  run->phase++;
  if (k->del) run->sparse = true;  // `present` says all so far
  const struct worker common = {.run = run,
                                .work = k,
                                .p = p,
                                .line = &line,
                                .stop = &stop,
                                .order = &order,
                                .scatter = &scatter,
                                .inserts = &inserts,
                                .zipf = zipf,
                                .threads = readers,
                                .fills = k->fill && !k->sync && (p->unique || k->fill == FILL_SEQ)};
  struct worker *ws = calloc(all, sizeof(*ws));
  bool good = ws != NULL;
  uint64_t inserted = 0;
  for (uint32_t i = 0; good && i < all; i++) {
    ws[i] = common;
    worker_role(&ws[i], i, all, &filled);
    inserted += i < readers ? inserts_of(&ws[i]) : 0;
    good = worker_init(&ws[i]);
  }
  if (!good) {
    fprintf(stderr, "xdbbench: %s: out of memory\n", name);
  } else if (run->inserted + inserted > num) {
    fprintf(stderr,
            "xdbbench: %s: inserts %" PRIu64 " records more, which is more than --num=%" PRIu64 " leaves room for\n",
            name, inserted, num);
    good = false;
  } else {
    struct room_watch room = {.run = run, .filled = &filled, .threads = readers, .from = (uint64_t)p->room_from << 20};
    const bool watched = k->fill && p->room_from && !pthread_create(&room.thread, NULL, room_look, &room);
    good = run_workers(ws, readers, all, &line, &stop);
    collect(ws, readers, all, result);
    if (watched) {
      atomic_store_explicit(&room.end, true, memory_order_relaxed);
      pthread_join(room.thread, NULL);
      result->room_most = room.most;
    }
    run->inserted += inserted;
    run->empty &= result->writes == 0;
    if (good && common.fills) {
      run->sparse = false;
      memset((void *)run->present, 0xff, present_words(run) * 8);
    }
  }
  for (uint32_t i = 0; ws && i < all; i++) worker_fini(&ws[i]);
  free(ws);
  return good;
}

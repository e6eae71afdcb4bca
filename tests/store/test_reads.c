// SPDX-License-Identifier: Apache-2.0
//
// The reads of the store in its files, counted at the table of file operations: the bytes and calls of an opening, of a
// full scan and of a compaction, over few runs and over many.
#include "tests/lib/store.h"

#include "remix/format.h"

#define FDS 1024
#define NUMBERS 256u    // files' numbers
#define PAGES 8192u     // pages of a file
#define RECORDS 50000u  // in all runs together; the metadata of one run has more than a page
#define VALUE 400u
#define BATCH 1500u  // records: windows of the log end within their frames

// ---- files that count

enum kind { TABLE, REMIX, LOG, OTHER, KINDS };
static const char *const ends[] = {[TABLE] = ".sst", [REMIX] = ".remix"};

static struct {
  struct env_ops ops;
  struct env env;
  enum kind kind[FDS];
  uint32_t number[FDS];
  uint64_t bytes[KINDS], calls[KINDS];
  uint32_t opened[KINDS], random[KINDS], sequential[KINDS];  // descriptors, and how they were advised
  uint8_t pages[KINDS][NUMBERS][PAGES];                      // how often each was read
} seen;

static void seen_anew(void) { memset(seen.bytes, 0, sizeof(seen) - offsetof(typeof(seen), bytes)); }

static int seen_open(struct env *e, int at, const char *name, unsigned flags) {
  (void)e;
  const int fd = env_posix()->ops->open(env_posix(), at, name, flags);
  if (fd < 0) return fd;
  CHECK(fd < FDS);
  enum kind k = strncmp(name, "wal-", 4) == 0 ? LOG : OTHER;
  for (uint32_t i = TABLE; i <= REMIX; i++)
    if (ends_with(name, ends[i])) k = (enum kind)i;
  seen.kind[fd] = k;
  seen.number[fd] = k == LOG     ? (uint32_t)strtoul(name + 4, NULL, 10)
                    : k == OTHER ? 0
                                 : (uint32_t)strtoul(name, NULL, 10);
  if (!(flags & ENV_WRITE)) seen.opened[k]++;
  return fd;
}

static ssize_t seen_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  (void)e;
  const ssize_t n = env_posix()->ops->pread(env_posix(), fd, buf, len, off);
  const enum kind k = seen.kind[fd];
  if (n <= 0) return n;
  CHECK(seen.number[fd] < NUMBERS && off + (uint64_t)n <= (uint64_t)PAGES * 4096);
  seen.calls[k]++;
  seen.bytes[k] += (uint64_t)n;
  // a page that two reads share is counted by the one that has its end
  for (uint64_t page = off / 4096; (page + 1) * 4096 <= off + (uint64_t)n; page++)
    seen.pages[k][seen.number[fd]][page]++;
  return n;
}

static int seen_advise(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  (void)e, (void)off, (void)len;
  CHECK(fd >= 0 && fd < FDS);
  if (advice == ENV_RANDOM) seen.random[seen.kind[fd]]++;
  if (advice == ENV_SEQUENTIAL) seen.sequential[seen.kind[fd]]++;
  return 0;
}

static int seen_sync(struct env *e, int fd) {
  (void)e, (void)fd;
  return 0;
}

// How many pages of a kind of file were read more than once.
static uint32_t seen_again(enum kind k) {
  uint32_t nr = 0;
  for (uint32_t i = 0; i < NUMBERS; i++)
    for (uint32_t p = 0; p < PAGES; p++) nr += seen.pages[k][i][p] > 1;
  return nr;
}

// ---- the store's files

static uint64_t sizes[KINDS];
static bool add_size(void *arg, const char *name) {
  struct env_stat st;
  const struct env_dir *const d = arg;
  OK(env_stat(d, name, &st));
  for (uint32_t k = TABLE; k <= REMIX; k++)
    if (ends_with(name, ends[k])) sizes[k] += st.size;
  if (strncmp(name, "wal-", 4) == 0) sizes[LOG] += st.size;
  return true;
}

static void measure(void) {
  struct env_dir d;
  memset(sizes, 0, sizeof(sizes));
  OK(env_dir_open(ENV_PATHS(env_posix()), dir, &d));
  OK(env_list(&d, add_size, &d));
  env_dir_close(&d);
}

static struct xdb *reads_open(const struct remixdb_opts *o) {
  struct xdb *x = NULL;
  OK(xdb_open(dir, o, &seen.env, &x));
  return x;
}

// Puts every step-th record, from `from` on, in batches: each is one frame of the log.
static void put_some(struct xdb *x, uint32_t from, uint32_t step) {
  struct xdb_ref *r = NULL;
  struct xdb_batch *b = NULL;
  static uint8_t value[VALUE];
  OK(xdb_ref(x, &r));
  OK(batch_create(&b));
  for (uint32_t i = from; i < RECORDS; i += step) {
    char key[17];
    (void)snprintf(key, sizeof(key), "%016u", i);
    memset(value, (int)i, sizeof(value));
    OK(batch_add(b, KV_REC(kref((const uint8_t *)key, 16), value, VALUE, false)));
    if (b->nr < BATCH && i + step < RECORDS) continue;
    OK(xdb_write(r, b));
    batch_clear(b);
  }
  batch_destroy(b);
  xdb_unref(r);
}

// Reads every record, and compares its key.
static void scan_all(struct xdb *x, uint32_t nr) {
  struct xdb_ref *r = NULL;
  struct xdb_iter *it = NULL;
  struct kv_rec rec;
  OK(xdb_ref(x, &r));
  OK(xdb_iter_create(r, &it));
  OK(xdb_iter_seek(it, kref(NULL, 0)));
  for (uint32_t i = 0; i < nr; i++) {
    char key[17];
    (void)snprintf(key, sizeof(key), "%016u", i);
    OK(xdb_iter_record(it, &rec));
    CHECK(rec.klen == 16 && memcmp(rec.key, key, 16) == 0 && rec.vlen == VALUE);
    OK(xdb_iter_skip(it, 1));
  }
  CHECK(!xdb_iter_valid(it));
  xdb_iter_destroy(it);
  xdb_unref(r);
}

// Whether `bytes` is the size of the files, or at most a fiftieth more.
static bool about(uint64_t bytes, uint64_t all) { return bytes >= all / 2 && bytes <= all + all / 50; }

// Advice comes once for each descriptor of a table that is read.
static void check_advice(void) {
  CHECK(seen.opened[TABLE] > 0);
  CHECK(seen.random[TABLE] + seen.sequential[TABLE] == seen.opened[TABLE]);
}

#define LOOKS (REMIX_HEAD_STRIDE + REMIX_SUM)  // bytes of both ends of a REMIX file

static void check_reads(uint32_t runs, bool ckeys) {
  struct remixdb_opts o = small_opts(0);
  o.memtable_mb = 64;
  o.cache_mb = 0;
  o.ckeys = ckeys;
  struct xdb *x = reads_open(&o);
  for (uint32_t i = 0; i < runs; i++) {
    put_some(x, i, runs);
    OK(xdb_flush(x));
  }
  CHECK(stat_of(x, "tables") == runs);
  put_some(x, 0, 2);  // for the log
  x->leave_log = true;
  OK(xdb_close(x));

  // an opening: indexes and log whole, of tables their metadata; the ends of both once more, to look at them first
  measure();
  seen_anew();
  x = reads_open(&o);
  CHECK(seen.bytes[REMIX] == sizes[REMIX] + LOOKS && seen_again(REMIX) <= 2);
  CHECK(seen_again(TABLE) <= runs && seen.bytes[TABLE] <= sizes[TABLE] / 20);
  CHECK(seen.calls[TABLE] <= 3 * runs);
  // the bytes after the last frame are read again
  CHECK(seen.bytes[LOG] <= sizes[LOG] + sizes[LOG] / 50 + (64u << 10) &&
        seen.calls[LOG] <= 8 + sizes[LOG] / (256u << 10));
  CHECK(seen.sequential[LOG] > 0);
  check_advice();

  OK(xdb_flush(x));  // the records of the log
  measure();
  seen_anew();
  scan_all(x, RECORDS);
  CHECK(about(seen.bytes[TABLE], sizes[TABLE]));
  CHECK(seen.calls[TABLE] <= 40 * (runs + 1) + sizes[TABLE] / (24u << 10));

  // a compaction reads what goes once, and of the new tables their keys and metadata
  seen_anew();
  const uint64_t before = sizes[TABLE];
  OK(xdb_compact(x));
  measure();
  const uint64_t most = before + before / 50 + sizes[TABLE] / (ckeys ? 8 : 1);
  CHECK(seen.bytes[TABLE] >= before / 2 && seen.bytes[TABLE] <= most);
  // keys and metadata of a new table share a page
  if (ckeys) CHECK(seen_again(TABLE) <= stat_of(x, "tables"));
  CHECK(seen.calls[TABLE] <= 12 * (runs + 3) + most / (256u << 10));
  CHECK(seen.sequential[TABLE] > 0);
  check_advice();
  OK(xdb_close(x));
  setup_again();
}

static void test_reads(void **state) {
  (void)state;
  for (uint32_t v = 0; v < 4; v++) check_reads(v & 1 ? 10 : 1, v & 2);
}

int main(void) {
  seen.ops = *env_posix()->ops;
  seen.ops.open = seen_open;
  seen.ops.pread = seen_pread;
  seen.ops.advise = seen_advise;
  seen.ops.sync_data = seen.ops.sync_all = seen_sync;
  seen.env = (struct env){.ops = &seen.ops, .priv = env_posix()->priv};
  const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_reads, setup, teardown)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

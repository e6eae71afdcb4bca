// SPDX-License-Identifier: Apache-2.0
//
// RemixDB in five minutes. Read it from the top: every step of the tour is one short function, does one thing with the
// library, checks what came back and prints what it shows.
//
//   xdbdemo.out                     the tour, in a temporary directory; an interrupted tour removes it, too
//   xdbdemo.out import DIR FILE     puts every line of FILE ("-" is standard input) into the store in DIR
//   xdbdemo.out dump DIR            prints every record of the store in DIR, in order of the keys
//
// The other commands of remixdb (tools/) work here as well.
//
// A program that uses RemixDB includes remixdb.h and links with -lremixdb. This program takes its messages and commands
// from tools/.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // for mkdtemp, nftw and getline under -std=c11
#endif
#include "tools/commands.h"

#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- small helpers

#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

static char scratch[4096];  // the tour's temporary directory; "" when there is none

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)st;
  (void)type;
  (void)ftw;
  remove(path);
  return 0;
}

// A tour that ends early leaves its store open. The store's threads may make a file meanwhile, so removing the
// directory may take more than one try.
static void scratch_remove(void) {
  for (int i = 0; i < 10 && scratch[0] != '\0'; i++) {
    nftw(scratch, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    if (access(scratch, F_OK) != 0) scratch[0] = '\0';
  }
  if (scratch[0] != '\0') fprintf(stderr, "xdbdemo: %s could not be removed\n", scratch);
  scratch[0] = '\0';
}

// The library installs no handlers and blocks all signals in its threads: signals are the program's own affair. This
// program's handler only notes the signal. Between two lines of the tour the program removes the directory and lets the
// signal end it.
static atomic_int caught;  // 0: none

// A signal interrupts a write that waits for the reader of the tour. An alarm interrupts a write that was just about to
// begin.
static void catch_signal(int sig) {
  if (sig != SIGALRM) caught = sig;
  alarm(1);
}

// A signal that was ignored from the start, as by nohup, stays ignored. No SA_RESTART: see above.
static void tour_signals(void (*handler)(int)) {
  static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
  const struct sigaction to = {.sa_handler = handler}, again = {.sa_handler = catch_signal};
  sigaction(SIGALRM, &again, NULL);
  for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
    struct sigaction was;
    if (sigaction(signals[i], NULL, &was) == 0 && was.sa_handler != SIG_IGN) sigaction(signals[i], &to, NULL);
  }
}

static void end_if_caught(void) {
  if (caught == 0) return;
  scratch_remove();
  tour_signals(SIG_DFL);
  raise(caught);
}

// A call of the library failed unexpectedly. The status gives the kind of failure; the message tells what happened, and
// to which file. Both belong to the calling thread and describe its last call.
static _Noreturn void fail_call(const char *what) {
  tool_end(TOOL_FAILED, "%s: %s: %s", what, remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
}

// The tour checks each of its claims.
static void expect(bool is_so, const char *claim) {
  if (is_so) return;
  tool_end(TOOL_FAILED, "this should hold and does not: %s (the last status is: %s; %s)", claim,
           remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
}

static PRINTF_LIKE(1, 2) void say(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fputs("   ", stdout);
  vprintf(fmt, ap);
  putchar('\n');
  va_end(ap);
  end_if_caught();
}

static void title(const char *text) {
  static int nr = 0;
  end_if_caught();
  printf("\n%2d. %s\n", ++nr, text);
}

// Keys and values are byte strings with a length. These two are shorthand for the C strings of the tour.
static void put_text(struct xdb_ref *ref, const char *key, const char *value) {
  if (!remixdb_put(ref, key, (uint32_t)strlen(key), value, (uint32_t)strlen(value))) fail_call("put");
}

static bool get_is(struct xdb_ref *ref, const char *key, const char *value) {
  char buf[256];
  uint32_t len = 0;
  if (!remixdb_getn(ref, key, (uint32_t)strlen(key), buf, sizeof(buf), &len)) return false;
  return len == strlen(value) && memcmp(buf, value, len) == 0;
}

static bool key_is(struct xdb_iter *it, const char *key) {
  static char buf[REMIXDB_KV_MAX];
  uint32_t len = 0;
  if (!remixdb_iter_peek(it, buf, &len, NULL, NULL)) return false;
  return len == strlen(key) && memcmp(buf, key, len) == 0;
}

// ---- the tour

static void tour_put_get(struct xdb_ref *ref) {
  title("Put and get");
  if (!remixdb_put(ref, "apple", 5, "green", 5)) fail_call("put");
  say("put apple = green");

  // remixdb_get trusts that the buffer is large enough; a later step shows the call that checks.
  char value[8];
  uint32_t len = 0;
  if (!remixdb_get(ref, "apple", 5, value, &len)) fail_call("get");
  expect(len == 5 && memcmp(value, "green", 5) == 0, "get returns what was put");
  say("get apple -> %.*s", (int)len, value);

  put_text(ref, "apple", "red");
  expect(get_is(ref, "apple", "red"), "a put replaces the value");
  say("put apple = red; a put replaces what was there");

  if (!remixdb_set(ref, "apple", 5, "yellow", 6)) fail_call("set");
  expect(get_is(ref, "apple", "yellow"), "set does what put does");
  say("set is another name of put");
}

static void tour_probe_delete(struct xdb_ref *ref) {
  title("Probe and delete");
  expect(remixdb_probe(ref, "apple", 5), "probe finds a key that exists");
  say("probe tells whether a key exists without copying its value");

  expect(remixdb_del(ref, "apple", 5), "a delete is accepted");
  expect(!remixdb_probe(ref, "apple", 5), "a deleted key is gone");
  expect(remixdb_errcode() == REMIXDB_NOTFOUND, "a miss says NOTFOUND");
  say("delete apple; probe now says: %s", remixdb_strerror(remixdb_errcode()));

  expect(remixdb_del(ref, "apple", 5), "a delete is accepted, whether or not the key exists");
  say("deleting it once more is not an error");
}

static void tour_bytes(struct xdb_ref *ref) {
  title("Any bytes");
  static const char key[] = {'a', '\0', '\n', (char)0xff};
  if (!remixdb_put(ref, key, sizeof(key), "zero, newline, 255", 18)) fail_call("put");
  expect(remixdb_probe(ref, key, sizeof(key)), "a key may hold any bytes");
  expect(!remixdb_probe(ref, key, 1), "the length counts, not a zero byte");
  say("keys and values are bytes with a length; nothing ends at a zero");

  if (!remixdb_put(ref, "", 0, "the empty key", 13)) fail_call("put");
  expect(get_is(ref, "", "the empty key"), "the empty key is a key");
  if (!remixdb_put(ref, "nothing", 7, "", 0)) fail_call("put");
  expect(remixdb_probe(ref, "nothing", 7) && get_is(ref, "nothing", ""), "an empty value is a value");
  say("the empty key and the empty value are legal");

  // Leave only the records that the next steps need.
  if (!remixdb_del(ref, key, sizeof(key)) || !remixdb_del(ref, "", 0) || !remixdb_del(ref, "nothing", 7))
    fail_call("delete");
}

static void tour_getn(struct xdb_ref *ref) {
  title("Get with a length check");
  put_text(ref, "motto", "small is beautiful");
  char buf[8];
  uint32_t len = 0;
  expect(!remixdb_getn(ref, "motto", 5, buf, sizeof(buf), &len), "a value that does not fit is reported");
  expect(remixdb_errcode() == REMIXDB_TOOBIG && len == 18, "the status says TOOBIG, the length is the full one");
  expect(memcmp(buf, "small is", 8) == 0, "what fits is there");
  say("a buffer of 8 bytes gets \"%.8s\", and is told that the value has %u", buf, len);
  if (!remixdb_del(ref, "motto", 5)) fail_call("delete");
}

static void tour_long_value(struct xdb_ref *ref) {
  title("Long values");
  static char film[1 << 20];
  memset(film, '.', sizeof(film));
  memcpy(film + sizeof(film) - 7, "The End", 7);
  if (!remixdb_put(ref, "film", 4, film, sizeof(film))) fail_call("put of a long value");
  char piece[16];
  uint32_t nr = 0, len = 0;
  if (!remixdb_get_part(ref, "film", 4, sizeof(film) - 7, piece, sizeof(piece), &nr, &len)) fail_call("get_part");
  expect(nr == 7 && memcmp(piece, "The End", 7) == 0, "a piece is what was put there");
  expect(len == sizeof(film), "the length is that of the whole value");
  say("a value may have 2^32 - 1 bytes; of %u, remixdb_get_part reads the last %u: %.*s", len, nr, (int)nr, piece);
  if (!remixdb_del(ref, "film", 4)) fail_call("delete");
}

static void tour_errors(struct xdb_ref *ref) {
  title("Errors and statuses");
  static const char key[REMIXDB_KV_MAX + 1];
  expect(!remixdb_put(ref, key, sizeof(key), "v", 1), "too long a key is refused");
  expect(remixdb_errcode() == REMIXDB_TOOBIG, "the status says TOOBIG");
  expect(remixdb_errmsg()[0] != '\0', "there is a message");
  say("a key that is too long: %s (%s)", remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
  if (!remixdb_put(ref, key, REMIXDB_KV_MAX, "v", 1)) fail_call("put with the longest key");
  if (!remixdb_del(ref, key, REMIXDB_KV_MAX)) fail_call("delete");
  say("a key may have %u bytes", REMIXDB_KV_MAX);

  expect(!remixdb_put(NULL, "k", 1, "v", 1) && remixdb_errcode() == REMIXDB_INVALID, "NULL is refused, not followed");
  say("a NULL pointer: %s (%s)", remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
}

static void tour_iterate(struct xdb_ref *ref) {
  title("Iterators");
  static const char *const fruit[] = {"banana", "cherry", "date", "elder", "fig", "grape"};
  for (size_t i = 0; i < sizeof(fruit) / sizeof(fruit[0]); i++) put_text(ref, fruit[i], "fruit");

  struct xdb_iter *const it = remixdb_iter_create(ref);
  if (it == NULL) fail_call("iter_create");
  expect(!remixdb_iter_valid(it), "a new iterator stands nowhere");

  // (NULL, 0) is the smallest possible key, so this seeks the first key of the store.
  say("every record, in order:");
  char key[64], value[64];
  uint32_t klen = 0, vlen = 0;
  unsigned nr = 0;
  for (remixdb_iter_seek(it, NULL, 0); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
    if (!remixdb_iter_peek(it, key, &klen, value, &vlen)) fail_call("peek");
    expect(nr < 6 && klen == strlen(fruit[nr]) && memcmp(key, fruit[nr], klen) == 0,
           "records come in order of the keys");
    say("  %.*s = %.*s", (int)klen, key, (int)vlen, value);
    nr++;
  }
  // An iterator that is not valid is at the end, or has met an error: only the status tells which.
  expect(remixdb_iter_status(it) == REMIXDB_OK, "the loop ended at the end");
  expect(nr == 6, "every record was met");

  remixdb_iter_seek(it, "c", 1);
  expect(key_is(it, "cherry"), "seek finds the first key that is not smaller");
  say("seek c -> cherry");
  remixdb_iter_skip(it, 3);
  expect(key_is(it, "fig"), "skip steps several keys");
  say("skip 3 -> fig");
  remixdb_iter_skip1(it);
  expect(key_is(it, "grape"), "skip1 steps one");
  say("skip1  -> grape");
  remixdb_iter_skip1(it);
  expect(!remixdb_iter_valid(it) && remixdb_iter_status(it) == REMIXDB_OK, "after the last key comes the end");
  expect(!remixdb_iter_peek(it, NULL, NULL, NULL, NULL), "there is nothing to peek at the end");
  say("skip1  -> the end");

  // A NULL buffer leaves out the key or the value.
  remixdb_iter_seek(it, "date", 4);
  expect(remixdb_iter_peek(it, NULL, NULL, value, &vlen) && vlen == 5, "peek of the value alone");
  say("peek copies the key, the value or both");

  // An iterator sees the store at its last seek, whatever is written meanwhile.
  remixdb_iter_seek(it, "elder", 5);
  put_text(ref, "elderberry", "fruit");
  remixdb_iter_skip1(it);
  expect(key_is(it, "fig"), "a later put is not seen");
  remixdb_iter_seek(it, "elderb", 6);
  expect(key_is(it, "elderberry"), "after a new seek it is");
  say("elderberry, put after the seek, is seen by the next seek only");

  // A standing iterator keeps the memory of its moment alive. Park an iterator to keep it for later.
  remixdb_iter_park(it);
  remixdb_iter_seek(it, "grape", 5);
  expect(key_is(it, "grape"), "a parked iterator goes on with a seek");
  say("park lets go of what it holds; a seek brings it back");
  remixdb_iter_destroy(it);
}

static void tour_backward(struct xdb_ref *ref) {
  title("Backward, and without copying");
  struct xdb_iter *const it = remixdb_iter_create(ref);
  if (it == NULL) fail_call("iter_create");
  // remixdb_iter_key and remixdb_iter_value give the store's own bytes, valid until the iterator moves.
  uint32_t klen = 0, vlen = 0;
  unsigned nr = 0;
  for (remixdb_iter_seek_last(it); remixdb_iter_valid(it); remixdb_iter_prev(it)) {
    const char *const key = remixdb_iter_key(it, &klen), *const value = remixdb_iter_value(it, &vlen);
    if (key == NULL || value == NULL) fail_call("iter_key");
    if (nr++ < 2) say("  %.*s = %.*s", (int)klen, key, (int)vlen, value);
  }
  expect(remixdb_iter_status(it) == REMIXDB_OK && nr == 7, "every record was met");
  say("and %u more: from the last one to the first", nr - 2);

  remixdb_iter_seek_for_prev(it, "d", 1);
  expect(key_is(it, "cherry"), "seek_for_prev finds the last key that is not greater");
  say("seek_for_prev d -> cherry");
  remixdb_iter_prev(it);
  remixdb_iter_skip1(it);
  expect(key_is(it, "cherry"), "steps in both directions may be mixed");
  remixdb_iter_destroy(it);
}

static void tour_batch(struct xdb_ref *ref) {
  title("Batches");
  put_text(ref, "account a", "100");
  put_text(ref, "account b", "0");
  struct xdb_batch *const batch = remixdb_batch_create();
  if (batch == NULL) fail_call("batch_create");
  bool ok = remixdb_batch_put(batch, "account a", 9, "60", 2) && remixdb_batch_put(batch, "account b", 9, "40", 2) &&
            remixdb_batch_del(batch, "account c", 9);
  if (!ok) fail_call("batch_put");
  expect(remixdb_batch_count(batch) == 3 && get_is(ref, "account a", "100"), "a batch is only gathered");
  if (!remixdb_write(ref, batch)) fail_call("write");
  expect(get_is(ref, "account a", "60") && get_is(ref, "account b", "40"), "then it is written");
  remixdb_batch_destroy(batch);
  say("40 went from one account to the other: no reader, and no crash, ever sees one half of it");
}

// Adds to a number in text. The result must stay in place until remixdb_merge returns.
static enum remixdb_merge_op add_40(const void *v0, uint32_t v0len, const void **v1, uint32_t *v1len, void *priv) {
  static const unsigned long most = 1000;
  char old[16] = "0";
  char *const text = priv;
  if (v0 != NULL && v0len < sizeof(old)) memcpy(old, v0, v0len);  // NULL: there is no such key
  const unsigned long sum = strtoul(old, NULL, 10) + 40;
  if (sum > most) return REMIXDB_MERGE_KEEP;  // and REMIXDB_MERGE_DEL would delete it
  *v1len = (uint32_t)snprintf(text, 16, "%lu", sum);
  *v1 = text;
  return REMIXDB_MERGE_PUT;
}

static void tour_merge(struct xdb_ref *ref) {
  title("Read, change and write as one");
  char text[16];
  for (int i = 0; i < 3; i++) {
    if (!remixdb_merge(ref, "account b", 9, add_40, text)) fail_call("merge");
  }
  expect(get_is(ref, "account b", "160"), "40 were added three times");
  if (!remixdb_merge(ref, "account d", 9, add_40, text)) fail_call("merge");
  expect(get_is(ref, "account d", "40"), "a key that is not there is none");
  say("remixdb_merge calls a function with the value, and writes what it decides: threads that add lose nothing");
}

static void tour_snapshot(struct xdb_ref *ref) {
  title("Snapshots");
  struct xdb_snapshot *const then = remixdb_snapshot(ref);
  if (then == NULL) fail_call("snapshot");
  struct xdb_ref *const old = remixdb_snapshot_ref(then);
  if (old == NULL) fail_call("snapshot_ref");
  put_text(ref, "account a", "nothing");
  if (!remixdb_del(ref, "account b", 9)) fail_call("del");
  expect(get_is(ref, "account a", "nothing") && !remixdb_probe(ref, "account b", 9), "the store goes on");
  expect(get_is(old, "account a", "60") && get_is(old, "account b", "160"), "the snapshot does not");
  say("a snapshot shows one moment as long as it lives, to gets and iterators; it costs no copy");
  expect(!remixdb_put(old, "k", 1, "v", 1) && remixdb_errcode() == REMIXDB_READONLY, "it is not written to");
  say("writing to it: %s (%s)", remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
  remixdb_unref(old);
  remixdb_snapshot_release(then);  // frees the old versions that only the snapshot held

  static const char *const accounts[] = {"account a", "account d"};
  for (int i = 0; i < 2; i++) {
    if (!remixdb_del(ref, accounts[i], 9)) fail_call("del");
  }
}

struct writer {
  struct xdb *xdb;
  unsigned id;
  bool ok;
};

// A thread that uses the store makes a separate ref, and gives it back before it ends.
static void *writer_main(void *arg) {
  struct writer *const w = arg;
  struct xdb_ref *const ref = remixdb_ref(w->xdb);
  w->ok = ref != NULL;
  for (unsigned i = 0; i < 1000 && w->ok; i++) {
    char key[32];
    const int klen = snprintf(key, sizeof(key), "thread %u, key %03u", w->id, i);
    w->ok = remixdb_put(ref, key, (uint32_t)klen, &i, sizeof(i));
  }
  remixdb_unref(ref);
  return NULL;
}

static void tour_threads(struct xdb *xdb, struct xdb_ref *ref) {
  title("Threads");
  struct writer w[2] = {{xdb, 1, false}, {xdb, 2, false}};
  pthread_t thread[2];
  for (int i = 0; i < 2; i++) {
    if (pthread_create(&thread[i], NULL, writer_main, &w[i]) != 0) tool_end(TOOL_FAILED, "a thread could not be made");
  }
  for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
  expect(w[0].ok && w[1].ok, "both threads wrote");

  struct xdb_iter *const it = remixdb_iter_create(ref);
  if (it == NULL) fail_call("iter_create");
  unsigned nr = 0;
  char key[64];
  uint32_t klen = 0;
  for (remixdb_iter_seek(it, "thread", 6); remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
    if (!remixdb_iter_peek(it, key, &klen, NULL, NULL)) fail_call("peek");
    if (klen < 6 || memcmp(key, "thread", 6) != 0) break;
    nr++;
  }
  remixdb_iter_destroy(it);
  expect(nr == 2000, "all of their keys are there");
  say("two threads, each with a ref of its own, wrote %u keys", nr);
}

static void tour_sync(struct xdb_ref *ref) {
  title("Sync");
  if (!remixdb_sync(ref)) fail_call("sync");
  expect(remixdb_errcode() == REMIXDB_OK, "a call that succeeds sets the status to OK");
  say("everything put before, by any thread, is now on disk and survives a crash");
}

static void tour_stats(struct xdb *xdb) {
  title("Figures");
  char *const json = remixdb_stats(xdb);
  if (json == NULL) fail_call("stats");
  expect(json[0] == '{', "the figures are a JSON object");
  say("remixdb_stats gives the store's figures, %zu bytes of JSON", strlen(json));
  remixdb_free(json);
}

static void tour_lock(const char *dir) {
  title("One program at a time");
  expect(remixdb_open(dir, 16, 16, true) == NULL, "an open store cannot be opened again");
  expect(remixdb_errcode() == REMIXDB_LOCKED, "the status says LOCKED");
  say("opening it a second time: %s (%s)", remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
}

static void tour_reopen(const char *dir) {
  title("Options, and opening again");
  struct remixdb_opts o;
  remixdb_opts_init(&o, sizeof(o));  // all defaults; then change some
  o.cache_mb = 16;
  o.memtable_mb = 16;
  o.tags = false;
  o.sync = REMIXDB_SYNC_EACH;
  struct xdb *xdb = remixdb_open_opts(dir, &o);
  if (xdb == NULL) fail_call("open_opts");
  struct xdb_ref *ref = remixdb_ref(xdb);
  if (ref == NULL) fail_call("ref");
  expect(get_is(ref, "cherry", "fruit") && remixdb_probe(ref, "thread 2, key 999", 17), "what was put is still there");
  expect(!remixdb_probe(ref, "apple", 5), "what was deleted is still gone");
  say("closed and opened: everything is there");
  put_text(ref, "honeydew", "fruit");
  say("with sync = REMIXDB_SYNC_EACH each put is on disk when it returns");
  remixdb_unref(ref);
  remixdb_close(xdb);

  remixdb_opts_init(&o, sizeof(o));
  o.error_if_exists = true;
  expect(remixdb_open_opts(dir, &o) == NULL && remixdb_errcode() == REMIXDB_EXISTS,
         "error_if_exists refuses an old store");
  say("error_if_exists: %s (%s)", remixdb_strerror(remixdb_errcode()), remixdb_errmsg());

  char other[sizeof(scratch) + 16];
  snprintf(other, sizeof(other), "%s/none", scratch);
  remixdb_opts_init(&o, sizeof(o));
  o.create = false;
  expect(remixdb_open_opts(other, &o) == NULL && remixdb_errcode() == REMIXDB_NOTFOUND, "create = false makes nothing");
  say("create = false, and none there: %s (%s)", remixdb_strerror(remixdb_errcode()), remixdb_errmsg());

  remixdb_opts_init(&o, sizeof(o));
  o.read_only = true;
  xdb = remixdb_open_opts(dir, &o);
  if (xdb == NULL) fail_call("open_opts, read only");
  ref = remixdb_ref(xdb);
  if (ref == NULL) fail_call("ref");
  expect(get_is(ref, "honeydew", "fruit"), "reading works");
  expect(!remixdb_put(ref, "k", 1, "v", 1) && remixdb_errcode() == REMIXDB_READONLY, "writing does not");
  say("read_only, and a put: %s (%s)", remixdb_strerror(remixdb_errcode()), remixdb_errmsg());
  remixdb_unref(ref);
  remixdb_close(xdb);
}

static void tour(void) {
  const char *const tmp = getenv("TMPDIR");
  setvbuf(stdout, NULL, _IOLBF, 0);  // shows each line when its step is done, through a pipe as well
  tour_signals(catch_signal);
  atexit(scratch_remove);
  snprintf(scratch, sizeof(scratch) - 64, "%s/xdbdemo.XXXXXX", tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp");
  if (mkdtemp(scratch) == NULL) {
    const int err = errno;
    char dir[sizeof(scratch)];
    memcpy(dir, scratch, sizeof(dir));
    scratch[0] = '\0';  // nothing was made that could be removed
    tool_end(TOOL_FAILED, "no directory could be made as %s: %s; the environment's TMPDIR tells where", dir,
             strerror(err));
  }
  char dir[sizeof(scratch) + 16];
  snprintf(dir, sizeof(dir), "%s/store", scratch);
  printf("RemixDB %s, the tour. The store is in %s\n", remixdb_version(), dir);

  title("Open");
  // A block cache of 64 MB, memtables of 16 MB, and hash tags, which make get faster. The directory need not exist.
  struct xdb *const xdb = remixdb_open(dir, 64, 16, true);
  if (xdb == NULL) fail_call("open");
  // A ref is one thread's view of the store; all reading and writing goes through one.
  struct xdb_ref *const ref = remixdb_ref(xdb);
  if (ref == NULL) fail_call("ref");
  say("made a store, and a ref for this thread");

  tour_put_get(ref);
  tour_probe_delete(ref);
  tour_bytes(ref);
  tour_getn(ref);
  tour_long_value(ref);
  tour_errors(ref);
  tour_iterate(ref);
  tour_backward(ref);
  tour_batch(ref);
  tour_merge(ref);
  tour_snapshot(ref);
  tour_threads(xdb, ref);
  tour_sync(ref);
  tour_stats(xdb);
  tour_lock(dir);

  title("Close");
  // Close in this order: iterators, refs, store.
  remixdb_unref(ref);
  remixdb_close(xdb);
  expect(remixdb_errcode() == REMIXDB_OK, "the last sync succeeded");
  say("close syncs what is left and ends the store's threads");

  tour_reopen(dir);
  scratch_remove();
  tour_signals(SIG_DFL);
  end_if_caught();
  printf("\nEvery step did what it should.\n");
}

// ---- the command line

static void usage(FILE *out) {
  static const char *const shown[] = {"import", "dump", NULL};
  fprintf(out, "usage: %s                            a tour of the library, in a temporary directory ($TMPDIR)\n",
          tool_called());
  commands_list(out, shown);
  fprintf(out, "The other commands of remixdb are here as well: remixdb --help lists them.\n");
}

int main(int argc, char **argv) {
  tool_begin("xdbdemo", argv[0]);
  if (argc > 1 && !tool_is_help(argv[1])) return commands_run(argc, argv);
  if (argc == 1) tour();
  else usage(stdout);
  tool_flush();
  return TOOL_DONE;
}

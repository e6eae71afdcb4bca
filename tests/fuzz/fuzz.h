// SPDX-License-Identifier: Apache-2.0
//
// Common part of the fuzz targets: bytes taken from the input, damage done to a good file as the input says, a place in
// memory for tables, and the table that several targets read. A target is a function of the input alone: state that it
// keeps between calls (tables that were built once) never changes.
//
// Each tests/fuzz_<name>.c defines one target by FUZZ(name). Under FUZZ_ONE it is libFuzzer's LLVMFuzzerTestOneInput;
// else it is fuzz_<name>, which tests/fuzz/test_corpus.c replays the corpus through.
#ifndef FUZZ_H
#define FUZZ_H

#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/simdisk.h"
#include "table/build.h"

#if defined(FUZZ_ONE)
#define FUZZ(name)                                              \
  int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size); \
  int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
#else
#define FUZZ(name)                                   \
  int fuzz_##name(const uint8_t *data, size_t size); \
  int fuzz_##name(const uint8_t *data, size_t size)
#endif

#define FUZZ_CHECK(cond)                                                                       \
  do {                                                                                         \
    if (!(cond)) {                                                                             \
      fprintf(stderr, "%s:%d: %s (last message: %s)\n", __FILE__, __LINE__, #cond, err_msg()); \
      abort();                                                                                 \
    }                                                                                          \
  } while (0)
#define FUZZ_OK(call) FUZZ_CHECK((call) == REMIXDB_OK)

// Code of the targets that would only hide the library from the fuzzer.
#if defined(__clang__)
#define FUZZ_UNTRACED __attribute__((no_sanitize("coverage")))
#else
#define FUZZ_UNTRACED
#endif

// The statuses that damaged bytes may lead to.
static inline bool fuzz_refused(enum remixdb_status s) { return s == REMIXDB_CORRUPT || s == REMIXDB_VERSION; }

static inline void *fuzz_alloc(size_t size) {
  void *const p = calloc(1, size ? size : 1);
  FUZZ_CHECK(p != NULL);
  return p;
}

// ---- the input; it gives zeros after its end

struct fuzz_in {
  const uint8_t *p, *end;
};

static inline size_t fuzz_left(const struct fuzz_in *in) { return (size_t)(in->end - in->p); }
static inline uint32_t fuzz_u8(struct fuzz_in *in) { return in->p < in->end ? *in->p++ : 0; }
static inline uint32_t fuzz_u16(struct fuzz_in *in) {
  const uint32_t lo = fuzz_u8(in);
  return lo | fuzz_u8(in) << 8;
}
static inline uint64_t fuzz_u64(struct fuzz_in *in) {
  uint64_t v = 0;
  for (uint32_t i = 0; i < 64; i += 8) v |= (uint64_t)fuzz_u8(in) << i;
  return v;
}
// At most n bytes of the input itself; *len_out: how many.
static inline const uint8_t *fuzz_bytes(struct fuzz_in *in, size_t n, uint32_t *len_out) {
  const uint8_t *const p = in->p;
  const size_t left = fuzz_left(in);
  *len_out = (uint32_t)(n < left ? n : left);
  in->p += *len_out;
  return p;
}
// A key of the input in memory of its own, so that a read beyond it is seen. The caller frees key.ptr.
static inline struct kref fuzz_key(struct fuzz_in *in, size_t max) {
  uint32_t len;
  const uint8_t *const p = fuzz_bytes(in, max, &len);
  uint8_t *const own = malloc(len ? len : 1);
  FUZZ_CHECK(own != NULL);
  if (len) memcpy(own, p, len);
  return kref(own, len);
}
static inline void fuzz_key_free(struct kref k) { free((void *)(uintptr_t)k.ptr); }

// ---- changes to a good image. Each takes an operation (its low 4 bits; bit 7: the offset counts from the end), an
// offset and the arguments of the operation. Returns the new length, which is never more than the old one.

enum {
  FUZZ_PUT8,
  FUZZ_PUT16,
  FUZZ_PUT32,
  FUZZ_PUT64,
  FUZZ_ADD8,
  FUZZ_ADD16,
  FUZZ_ADD32,
  FUZZ_ADD64,
  FUZZ_BYTES,
  FUZZ_MOVE,
  FUZZ_FILL,
  FUZZ_CUT,
  FUZZ_OWN
};  // FUZZ_OWN and up: the target's own

static inline size_t fuzz_change(struct fuzz_in *in, uint8_t *buf, size_t len) {
  const uint32_t op = fuzz_u8(in);
  size_t at = fuzz_u16(in);
  if (op & 0x40) at |= (size_t)fuzz_u8(in) << 16;
  if (len == 0) return 0;
  at = op & 0x80 ? len - 1 - at % len : at % len;
  const size_t room = len - at;
  uint32_t n;
  uint64_t v = 0;
  const uint32_t kind = op & 15, width = 1u << (kind & 3);
  switch (kind) {
    case FUZZ_PUT8:
    case FUZZ_PUT16:
    case FUZZ_PUT32:
    case FUZZ_PUT64:
      for (uint32_t i = 0; i < width && i < room; i++) buf[at + i] = (uint8_t)fuzz_u8(in);
      break;
    case FUZZ_ADD8:
    case FUZZ_ADD16:
    case FUZZ_ADD32:
    case FUZZ_ADD64:
      if (room < width) break;
      memcpy(&v, buf + at, width);
      v += (uint64_t)(int64_t)(int8_t)fuzz_u8(in);
      memcpy(buf + at, &v, width);
      break;
    case FUZZ_BYTES: {
      const uint32_t want = fuzz_u8(in);
      const uint8_t *const p = fuzz_bytes(in, want < room ? want : room, &n);
      if (n) memcpy(buf + at, p, n);
      break;
    }
    case FUZZ_MOVE: {
      const size_t from = fuzz_u16(in) % len;
      n = fuzz_u16(in);
      if (n > room) n = (uint32_t)room;
      if (n > len - from) n = (uint32_t)(len - from);
      memmove(buf + at, buf + from, n);
      break;
    }
    case FUZZ_FILL:
      n = fuzz_u16(in);
      memset(buf + at, (int)fuzz_u8(in), n < room ? n : room);
      break;
    case FUZZ_CUT: return at;
    default: break;
  }
  return len;
}

// ---- a place for tables: a directory on a disk in memory, and the parts that all tables of a store share

#define FUZZ_DIR "/f"
#define FUZZ_STORE_ID 0x1122334455667788ull

struct fuzz_place {
  struct simdisk *disk;
  struct env *env;
  struct epoch epoch;
  struct epoch_slot slot;
  struct blkio io;
  struct blkio_queue *queue;
  struct cache *cache;
  struct fdpool *fds;
  struct sst_ctx ctx;  // without a cache: each block in memory of its own
  struct sst_ctx cached;
};

static inline struct fuzz_place *fuzz_place_create(void) {
  struct fuzz_place *p = NULL;
  FUZZ_CHECK(posix_memalign((void **)&p, CACHE_LINE, align_up(sizeof(*p), CACHE_LINE)) == 0);
  memset(p, 0, sizeof(*p));
  p->disk = simdisk_create();
  p->env = simdisk_env(p->disk);
  FUZZ_OK(env_mkdir(ENV_PATHS(p->env), FUZZ_DIR));
  epoch_init(&p->epoch);
  epoch_join(&p->epoch, &p->slot);
  blkio_init(&p->io, p->env, BLKIO_SYNC);
  FUZZ_OK(blkio_queue_create(&p->io, &p->queue));
  FUZZ_OK(cache_create(64 << 10, 0, &p->epoch, &p->cache));
  FUZZ_OK(fdpool_create(p->env, 16, &p->fds));
  p->ctx = (struct sst_ctx){
      .env = p->env, .dir = simdisk_dir(p->env, FUZZ_DIR), .io = &p->io, .fds = p->fds, .store_id = FUZZ_STORE_ID};
  p->cached = p->ctx;
  p->cached.cache = p->cache;
  return p;
}

static inline void fuzz_file_put(struct env *env, const char *name, const void *buf, size_t len) {
  char path[ENV_PATH_MAX];
  int fd;
  FUZZ_OK(env_path(path, FUZZ_DIR, name));
  FUZZ_OK(env_open(ENV_PATHS(env), path, ENV_WRITE | ENV_CREATE | ENV_TRUNC, &fd));
  FUZZ_OK(env_write(env, fd, path, buf, len, 0));
  FUZZ_OK(env_sync_all(env, fd, path));
  FUZZ_OK(env_close(env, fd, path));
}

// Leaves nothing of the file, not even for a crash: the files of one input are gone before the next.
static inline void fuzz_file_remove(struct env *env, const char *name) {
  char path[ENV_PATH_MAX];
  FUZZ_OK(env_path(path, FUZZ_DIR, name));
  FUZZ_OK(env_unlink(ENV_PATHS(env), path));
  FUZZ_OK(paths_sync_dir(env, FUZZ_DIR));
}

struct fuzz_image {
  uint8_t *p;
  size_t len;
};

// The caller frees p.
static inline struct fuzz_image fuzz_file_get(struct env *env, const char *name) {
  char path[ENV_PATH_MAX];
  struct fuzz_image im = {0};
  uint8_t *buf;
  FUZZ_OK(env_path(path, FUZZ_DIR, name));
  FUZZ_OK(paths_read_file(ENV_PATHS(env), path, 64 << 20, &buf, &im.len));
  im.p = fuzz_alloc(im.len);
  memcpy(im.p, buf, im.len);
  mem_free(buf);
  return im;
}

// In memory of exactly its size, so that a read beyond it is seen. The caller frees p.
static inline struct fuzz_image fuzz_image_copy(const struct fuzz_image *im) {
  const struct fuzz_image c = {fuzz_alloc(im->len), im->len};
  if (im->len) memcpy(c.p, im->p, im->len);
  return c;
}

// ---- records of the good tables: key i of a set, and a value that follows from key and table

enum fuzz_keys { FUZZ_KEYS_NUMBERS, FUZZ_KEYS_PATHS, FUZZ_KEYS_SHORT, FUZZ_KEYS_FAR, FUZZ_KEYS_KINDS };
#define FUZZ_KEY_MAX 9000u

// Keys of a kind ascend with i. Some keys of NUMBERS and SHORT are prefixes of others; the empty key is among them.
static inline struct kref fuzz_key_of(enum fuzz_keys kind, uint32_t i, uint8_t *buf) {
  uint32_t len = 0;
  switch (kind) {
    case FUZZ_KEYS_NUMBERS:
      if (i > 0) len = (uint32_t)snprintf((char *)buf, 32, i % 2 ? "%05u" : "%05u\x01", (i - 1) / 2);
      break;
    case FUZZ_KEYS_PATHS:
      len = (uint32_t)snprintf((char *)buf, 64, "/a/path/that/is/shared/%03u/%06u", i / 20, i);
      break;
    case FUZZ_KEYS_FAR:  // each differs from the next after more bytes than a discriminating bit can say, or at once
      buf[len++] = (uint8_t)(i / 3);
      if (i % 3 == 0) break;
      memset(buf + len, 'x', 5000);
      len += 5000;
      buf[len++] = (uint8_t)(i % 3);
      break;
    default:  // the numbers in base 4, without zeros at the end: "", 0, 00, 01, ... in order
      for (uint32_t n = i, d = 1024; n > 0 && d > 0; d /= 4) {
        n--;
        buf[len++] = (uint8_t)(n / d * 85);
        n %= d;
      }
      break;
  }
  return kref(buf, len);
}

FUZZ_UNTRACED static inline uint32_t fuzz_value_of(uint64_t table, uint32_t i, uint32_t max, uint8_t *buf) {
  const uint64_t r = hash64_seed(&i, sizeof(i), table);
  const uint32_t len = max ? (uint32_t)(r % (max + 1)) : 0;
  for (uint32_t at = 0; at < len; at++) buf[at] = (uint8_t)(at % 3 ? 'v' : r >> at % 56);
  return len;
}

#define FUZZ_VALUE_MAX 65500u

// A good table, built once.
struct fuzz_table {
  uint64_t number;
  enum fuzz_keys keys;
  uint32_t first, step, nr;  // keys first, first + step, ...
  uint32_t tomb_every;       // every so many of them is deleted; 0: none
  uint32_t value_max;
  struct sst_build_opts opts;
};

static inline void fuzz_record(const struct fuzz_table *t, uint32_t at, uint8_t *kbuf, uint8_t *vbuf,
                               struct kv_rec *r) {
  const uint32_t i = t->first + at * t->step;
  const struct kref k = fuzz_key_of(t->keys, i, kbuf);
  *r = (struct kv_rec){.key = k.ptr, .klen = k.len, .val = vbuf, .kind = t->tomb_every && at % t->tomb_every == 0};
  if (!r->kind) r->vlen = fuzz_value_of(t->number, i, t->value_max, vbuf);
}

static inline void fuzz_table_build(const struct fuzz_place *p, const struct fuzz_table *t) {
  uint8_t *const kbuf = fuzz_alloc(FUZZ_KEY_MAX), *const vbuf = fuzz_alloc(FUZZ_VALUE_MAX);
  struct sst_build *b;
  uint64_t size;
  FUZZ_OK(sst_build_create(&p->ctx, &t->opts, p->queue, &b));
  sst_build_start(b, t->number);
  for (uint32_t i = 0; i < t->nr; i++) {
    struct kv_rec r;
    fuzz_record(t, i, kbuf, vbuf, &r);
    sst_build_add(b, &r);
  }
  FUZZ_OK(sst_build_finish(b, &size));
  sst_build_destroy(b);
  free(kbuf);
  free(vbuf);
}

// The limits of a record in a table, stated once more: an expiry changes no length, a reference has limits of its own.
static inline bool fuzz_fits_table(const struct kv_rec *r) {
  if (r->kind & ~(uint32_t)(KV_TOMB | KV_EXPIRES | KV_APART)) return false;
  if (r->kind & KV_TOMB) return r->kind == KV_TOMB && r->vlen == 0 && r->klen <= KV_KEY_MAX;
  return r->kind & KV_APART ? r->klen <= KV_KEY_MAX && r->vlen <= KV_REF_MAX : r->klen + r->vlen <= KV_KEY_MAX;
}

static inline bool fuzz_same_record(const struct kv_rec *a, const struct kv_rec *b) {
  return a->klen == b->klen && a->vlen == b->vlen && a->kind == b->kind &&
         (a->klen == 0 || memcmp(a->key, b->key, a->klen) == 0) &&
         (a->vlen == 0 || memcmp(a->val, b->val, a->vlen) == 0);
}

// Reads every byte, so that a pointer out of place is met, and decides something by them, so that one never written is.
FUZZ_UNTRACED static inline void fuzz_touch(const void *p, size_t len) {
  static volatile uint8_t some = 0x5A;
  uint8_t x = 0;
  for (size_t i = 0; i < len; i++) x ^= ((const uint8_t *)p)[i];
  if (x == some) some = 0xA5;
}
#endif

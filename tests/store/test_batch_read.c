// SPDX-License-Identifier: Apache-2.0
//
// Batches that are read: remixdb_batch_each shows the operations in the order of adding, remixdb_batch_append joins
// batches, remixdb_batch_bytes tells about what a batch takes in the log.
//
// TEST_SEED in the environment repeats a run.
#include "tests/lib/check.h"
#include "tests/lib/store.h"

#define OPS_MAX 400u

// An operation that was added.
struct op {
  uint32_t klen, vlen;
  bool tomb;
  uint8_t key[32], value[64];
};
struct list {
  struct op ops[OPS_MAX];
  size_t nr;
};

// The function's notes.
struct seen {
  const struct list *expected;
  size_t nr, end_at;  // it ends the call after so many; 0: never
  bool wrong;
};

static bool slice_is(const struct remixdb_slice *s, const uint8_t *bytes, uint32_t len) {
  return s->ptr && s->len == len && memcmp(s->ptr, bytes, len) == 0;
}

static bool see(void *priv, const struct remixdb_batch_item *item) {
  struct seen *const s = priv;
  const struct op *const op = &s->expected->ops[s->nr++];
  const bool right = s->nr <= s->expected->nr && item->size == sizeof(*item) &&
                     item->op == (op->tomb ? REMIXDB_BATCH_DEL : REMIXDB_BATCH_PUT) &&
                     slice_is(&item->key, op->key, op->klen) && !item->space.ptr && item->expires_ms == 0 &&
                     (op->tomb ? !item->value.ptr : slice_is(&item->value, op->value, op->vlen));
  s->wrong = s->wrong || !right;
  return s->nr != s->end_at;
}

static void check_each(const struct xdb_batch *b, const struct list *l, size_t end_at) {
  struct seen s = {.expected = l, .end_at = end_at};
  CHECK(remixdb_batch_each(b, see, &s) && remixdb_errcode() == REMIXDB_OK);
  CHECK(!s.wrong && s.nr == (end_at ? end_at : l->nr));
  CHECK(remixdb_batch_count(b) == l->nr);
}

static void add_some(struct xdb_batch *b, struct list *l, uint64_t *rng, size_t nr) {
  for (size_t i = 0; i < nr; i++) {
    struct op *const op = &l->ops[l->nr++];
    *op = (struct op){.klen = (uint32_t)below(rng, sizeof(op->key) + 1), .tomb = chance(rng, 30)};
    if (!op->tomb) op->vlen = (uint32_t)below(rng, sizeof(op->value) + 1);
    for (uint32_t k = 0; k < op->klen; k++) op->key[k] = (uint8_t)below(rng, 3);
    for (uint32_t k = 0; k < op->vlen; k++) op->value[k] = (uint8_t)below(rng, 256);
    CHECK(op->tomb ? remixdb_batch_del(b, op->key, op->klen)
                   : remixdb_batch_put(b, op->key, op->klen, op->value, op->vlen));
  }
}

static void list_append(struct list *to, const struct list *from) {
  const size_t nr = from->nr;
  memmove(&to->ops[to->nr], from->ops, nr * sizeof(from->ops[0]));
  to->nr += nr;
}

static void test_each_and_append(void **state) {
  (void)state;
  uint64_t rng = check_seed;
  static struct list la, lb;
  for (uint32_t round = 0; round < 200; round++) {
    la.nr = lb.nr = 0;
    struct xdb_batch *const a = remixdb_batch_create(), *const b = remixdb_batch_create();
    add_some(a, &la, &rng, below(&rng, 60));
    add_some(b, &lb, &rng, below(&rng, 60));
    const size_t bytes = remixdb_batch_bytes(a) + remixdb_batch_bytes(b);
    CHECK(remixdb_batch_append(a, b));
    list_append(&la, &lb);
    CHECK(remixdb_batch_bytes(a) == bytes);
    check_each(a, &la, 0);
    check_each(b, &lb, 0);
    if (la.nr) check_each(a, &la, 1 + below(&rng, la.nr));
    CHECK(remixdb_batch_append(a, a));
    list_append(&la, &la);
    add_some(a, &la, &rng, 3);
    check_each(a, &la, 0);
    remixdb_batch_clear(a);
    la.nr = 0;
    CHECK(remixdb_batch_bytes(a) == 0);
    check_each(a, &la, 0);
    remixdb_batch_destroy(a);
    remixdb_batch_destroy(b);
  }
}

// An appended batch writes what both would have written one after the other, and takes about batch_bytes in the log.
static void test_written(void **state) {
  (void)state;
  const struct remixdb_opts o = small_opts(0);
  struct xdb *const x = quick_open(&o);
  struct xdb_ref *const r = remixdb_ref(x);
  struct xdb_batch *const a = remixdb_batch_create(), *const b = remixdb_batch_create();
  char value[3000];
  uint32_t len;
  memset(value, 'v', sizeof(value));
  CHECK(remixdb_batch_put(a, "one", 3, "a", 1) && remixdb_batch_put(a, "two", 3, "a", 1));
  CHECK(remixdb_batch_del(b, "two", 3) && remixdb_batch_put(b, "one", 3, value, sizeof(value)));
  CHECK(remixdb_batch_append(a, b));
  const size_t bytes = remixdb_batch_bytes(a);
  CHECK(bytes >= 3000 && bytes < 3100);
  CHECK(remixdb_write(r, a));
  CHECK(!remixdb_probe(r, "two", 3) && remixdb_get(r, "one", 3, value, &len) && len == sizeof(value));
  remixdb_batch_destroy(a);
  remixdb_batch_destroy(b);
  remixdb_unref(r);
  remixdb_close(x);
}

static bool never(void *priv, const struct remixdb_batch_item *item) {
  (void)priv, (void)item;
  abort();
}

#define INVALID(call) CHECK(!(call) && remixdb_errcode() == REMIXDB_INVALID)

static void test_wrong_use(void **state) {
  (void)state;
  struct xdb_batch *const b = remixdb_batch_create();
  INVALID(remixdb_batch_each(NULL, never, NULL));
  INVALID(remixdb_batch_each(b, NULL, NULL));
  INVALID(remixdb_batch_append(NULL, b));
  INVALID(remixdb_batch_append(b, NULL));
  CHECK(remixdb_batch_bytes(NULL) == 0 && remixdb_batch_each(b, never, NULL));
  remixdb_batch_destroy(b);
}

int main(void) {
  check_seed_start();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_and_append),
      cmocka_unit_test_setup_teardown(test_written, setup, teardown),
      cmocka_unit_test(test_wrong_use),
  };
  return check_seed_end(cmocka_run_group_tests_name("batch_read", tests, NULL, NULL));
}

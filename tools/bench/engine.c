// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/engine.h"

#include <stdio.h>
#include <string.h>

const struct bench_engine *const bench_engines[] = {
    &bench_remixdb,
#ifdef BENCH_ROCKSDB
    &bench_rocksdb,
#endif
#ifdef BENCH_LEVELDB
    &bench_leveldb,
#endif
#ifdef BENCH_LMDB
    &bench_lmdb,
#endif
#ifdef BENCH_WIREDTIGER
    &bench_wiredtiger,
#endif
    NULL,
};

const struct bench_engine *bench_engine_find(const char *name) {
  for (size_t i = 0; bench_engines[i]; i++)
    if (!strcmp(bench_engines[i]->name, name)) return bench_engines[i];
  return NULL;
}

enum bench_status bench_error(const struct bench_engine *e, const char *what, const char *message) {
  fprintf(stderr, "xdbbench: %s: %s: %s\n", e->name, what, message);
  return BENCH_ERROR;
}

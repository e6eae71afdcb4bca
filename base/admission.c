// SPDX-License-Identifier: Apache-2.0
#include "base/admission.h"

void admission_init(struct admission *a) {
  *a = (struct admission){.on = false};
  (void)pthread_mutex_init(&a->lock, NULL);
}

void admission_fini(struct admission *a) {
  mem_free((void *)atomic_load_explicit(&a->missed, memory_order_relaxed));
  (void)pthread_mutex_destroy(&a->lock);
}

size_t admission_memory(const struct admission *a) {
  // acquire: pairs with table_make
  return atomic_load_explicit(&a->missed, memory_order_acquire) ? (size_t)a->mask + 1 : 0;
}

// Makes the table, under the lock. False: it may not be large enough, or there is no memory.
static bool table_make(struct admission *a, uint64_t pages, size_t most) {
  uint32_t size = ADMISSION_LEAST;
  while (size < (1u << 30) && size < 2 * pages && 2 * (size_t)size <= most) size *= 2;
  if (size > most || size < pages) return false;
  err_cleanup_begin();
  _Atomic uint8_t *const table = mem_calloc(size, 1);
  err_cleanup_end();
  if (!table) return false;
  a->mask = size - 1;
  // release: a reader that sees the table sees the mask and the zeros
  atomic_store_explicit(&a->missed, table, memory_order_release);
  return true;
}

void admission_set(struct admission *a, uint64_t data, uint64_t memory, size_t most) {
  (void)pthread_mutex_lock(&a->lock);
  const bool choice = memory && memory < UINT64_MAX / 2 && data > ADMISSION_DATA(memory),
             on = choice && (admission_memory(a) || table_make(a, memory / BLKIO_ALIGN, most));
  atomic_store_explicit(&a->on, on, memory_order_relaxed);
  (void)pthread_mutex_unlock(&a->lock);
}

bool admission_knows(struct admission *a, uint64_t block) {
  _Atomic uint8_t *const table = atomic_load_explicit(&a->missed, memory_order_acquire);  // pairs with table_make
  const uint64_t hash = hash64_seed(&block, sizeof(block), 0);
  if (unlikely(!table)) return true;  // this thread has seen `on` first
  _Atomic uint8_t *const at = &table[(hash >> 32) & a->mask];
  const uint8_t mark = (uint8_t)hash | 1;  // never 0, which is no block's
  const uint8_t was = atomic_load_explicit(at, memory_order_relaxed);
  if (was == mark) return true;
  atomic_store_explicit(at, mark, memory_order_relaxed);
  return was == 0;
}

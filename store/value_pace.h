// SPDX-License-Identifier: Apache-2.0
//
// The pace of those who write values apart, and the size of value files.
//
// Values that are overwritten leave garbage. Its collection takes time, and a fast writer is faster. At the end of a
// round the store finds out how many bytes of the value files live. Then it states how many bytes they may have
// together: 21/16 of the live ones, and twice the values of a full memtable (values_most), because nobody knows yet how
// many values of the active memtable and the frozen one live. While the files have more, and garbage is being collected
// or a round is under way, every put of a value that goes apart waits for that. The more they have, the longer it
// waits: 50 ms when they have another 1/8 of the live bytes. A round collects by itself if they have that much at its
// end. So they stay below 1.6 times the live bytes, and those two memtables.
//
// A collection takes room until it ends: its new file and the old ones are there together. So value files are small in
// a small store: a file has a sixteenth of the live bytes, at least an eighth of the values of a full memtable, and at
// most VALUE_FILE bytes.
#ifndef STORE_VALUE_PACE_H
#define STORE_VALUE_PACE_H

#include "store/state.h"

#define VALUE_PACE_MOST_NS 50000000u         // the longest wait of a put
extern _Atomic uint64_t value_pace_most_ns;  // this, unless a test changes it; relaxed

void value_pace_init(struct xdb *x);
// Sets what the files may have, and their size. live: bytes of value files that tables refer to.
void value_pace_set(struct xdb *x, uint64_t live);
// Bytes of all value files that are not obsolete, less what they may have. 0: not more. Those of ingests that are under
// way do not count: they are no garbage.
static inline uint64_t value_pace_over(const struct xdb *x) {
  const uint64_t room = atomic_load_explicit(&x->value_ctx.room, memory_order_relaxed);
  const uint64_t allowed = atomic_load_explicit(&x->collect.allowed, memory_order_relaxed) +
                           atomic_load_explicit(&x->collect.ingesting, memory_order_relaxed);
  return likely(room <= allowed) ? 0 : room - allowed;
}
// Tells whether they have so many more that a put waits for the longest time.
bool value_pace_far(const struct xdb *x);
void value_pace_wait(struct xdb *x);  // by value_pace alone
// A writer of a value that goes apart calls this, once for each call of the user. May wait up to VALUE_PACE_MOST_NS.
// Outside of any lock and epoch. Without workers it does not wait.
static inline void value_pace(struct xdb *x) {
  if (unlikely(value_pace_over(x) != 0)) value_pace_wait(x);
}
#endif

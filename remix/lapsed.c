// SPDX-License-Identifier: Apache-2.0
#include "remix/lapsed.h"

#include "remix/cursor.h"
#include "remix/seg.h"

struct remix_lapsed {
  _Atomic uint64_t until;
  _Atomic uint64_t bits[];  // one for each segment
};

// Returns the view's bits; NULL: there is no memory.
static struct remix_lapsed *bits_of(struct remix *x) {
  // acquire: pairs with the publication below
  struct remix_lapsed *there = atomic_load_explicit(&x->lapsed, memory_order_acquire);
  if (there) return there;
  struct remix_lapsed *const fresh = mem_calloc(1, sizeof(*fresh) + (x->nr_segs / 64u + 1) * sizeof(fresh->bits[0]));
  if (!fresh) return NULL;
  if (atomic_compare_exchange_strong_explicit(&x->lapsed, &there, fresh, memory_order_acq_rel, memory_order_acquire))
    return fresh;
  mem_free(fresh);
  return there;
}

// The segment has lapsed since `until`.
static void lapsed_set(struct remix *x, uint32_t seg, uint64_t until) {
  struct remix_lapsed *const d = bits_of(x);
  if (!d) return;
  uint64_t was = atomic_load_explicit(&d->until, memory_order_relaxed);
  while (was < until &&
         !atomic_compare_exchange_weak_explicit(&d->until, &was, until, memory_order_relaxed, memory_order_relaxed)) {}
  // release: pairs with the reader of the bit (E2)
  atomic_fetch_or_explicit(&d->bits[seg / 64], UINT64_C(1) << seg % 64, memory_order_release);
}

void remix_lapse_note(struct remix_lapse *l, const struct remix_cursor *c, uint64_t expiry) {
  struct remix *const x = c->x;
  if (x->of || x->index->young) return;
  if (l->x != x || l->seg != c->seg) *l = (struct remix_lapse){.x = x, .seg = c->seg};
  l->seen |= 1u << c->at;
  if (expiry > l->until) l->until = expiry;
  if (l->seen == seg_live(x->index, seg_at(x->index, c->seg))) lapsed_set(x, c->seg, l->until);
}

// How many segments from `seg` on have lapsed, at most nr.
static uint32_t lapsed_on(const struct remix_lapsed *d, uint32_t seg, uint32_t nr) {
  uint32_t n = 0;
  while (n < nr) {
    const uint32_t at = (seg + n) % 64;
    const uint64_t others = ~(atomic_load_explicit(&d->bits[(seg + n) / 64], memory_order_acquire) >> at);
    const uint32_t run = others ? (uint32_t)__builtin_ctzll(others) : 64;
    n += run;
    if (run < 64 - at) break;
  }
  return n < nr ? n : nr;
}

// The same from `seg` back.
static uint32_t lapsed_back(const struct remix_lapsed *d, uint32_t seg, uint32_t nr) {
  uint32_t n = 0;
  while (n < nr) {
    const uint32_t at = (seg - n) % 64;
    const uint64_t others = ~(atomic_load_explicit(&d->bits[(seg - n) / 64], memory_order_acquire) << (63 - at));
    const uint32_t run = others ? (uint32_t)__builtin_clzll(others) : 64;
    n += run;
    if (run < at + 1) break;
  }
  return n < nr ? n : nr;
}

void remix_lapse_leap(struct remix_cursor *c, bool back, uint64_t now_ms) {
  const struct remix *const x = c->x;
  const struct remix_lapsed *const d = atomic_load_explicit(&x->lapsed, memory_order_acquire);
  if (likely(!d)) return;
  // a segment in which a bound lies is left to steps
  const uint32_t low = c->bounded && c->low.key.ptr ? c->low.seg + 1 : 0,
                 high = c->bounded && c->high.key.ptr ? c->high.seg : x->nr_segs;
  if (c->seg < low || c->seg >= high) return;
  const uint32_t nr = back ? lapsed_back(d, c->seg, c->seg - low + 1) : lapsed_on(d, c->seg, high - c->seg);
  if (nr == 0 || atomic_load_explicit(&d->until, memory_order_relaxed) > now_ms) return;
  remix_leap(c, back ? c->seg - (nr - 1) : c->seg + (nr - 1), back);
}

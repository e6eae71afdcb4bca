// SPDX-License-Identifier: Apache-2.0
//
// A checker of histories: could the results that the threads saw have come from calls one after the other?
//
// A history is a set of operations on a few keys. Each operation has the times of its call and of its return, and the
// values that it read and wrote, of any number of keys. The checker explains each operation as one step at one moment
// between the two times. A batch is one operation that writes several keys. A snapshot or a scan is one operation that
// reads several keys; its interval is the call that fixed the moment, however much later the keys were read. A merge is
// one operation that reads and writes; so is a put by version, which has read the value with that version. If it was
// refused, it has read that the key has another value. The deletion of a range writes all its keys. The question is
// whether the operations have an order with two properties. First, the order agrees with time: an operation that
// returned before another was called comes before it. Second, each operation reads the values that the operations
// before it have written. This is strict serializability, which for operations on one key is linearizability.
//
// Expiry. An operation judges all that it reads by one time, which lies between the wall clock at its call and at its
// return. So a value that has expired may be read as absent, and only then.
//
// Versions. The values of a key that are written one after the other have ascending versions, as far as they are known.
//
// The algorithm is Lowe's just-in-time linearization ("Testing for linearizability", 2017) of the search of Wing and
// Gong ("Testing and verifying concurrent objects", 1993), breadth first. Events are gone through in order of time with
// the set of all configurations that are possible so far: the value of each key, and which of the operations under way
// have taken place. An operation need take place only when it returns, or when another that returns needs it to have. A
// set that becomes empty proves that no order exists; one that does not is a proof of the contrary, since every
// configuration in it was reached by an order. So the answer is sound and complete. Its cost grows with the number of
// operations under way at a time, not with the length of the history, because values are unique: reads exclude the
// configurations that were not reached.
//
// One shortcut, which loses nothing: an operation that writes nothing takes place as soon as its values are there,
// since that excludes no continuation.
#ifndef HISTORY_H
#define HISTORY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib.h"

#define HIST_KEYS 8u
#define HIST_PENDING 32u           // operations under way at a time, at most
#define HIST_CONFIGS_MAX 4000000u  // more are not looked at

enum {
  HIST_ANY,   // not read; not written
  HIST_NONE,  // read: not there; written: deleted
  HIST_SOME,  // read: there, with any value
  HIST_FIRST  // from here on: values, each written once
};
#define HIST_NOT 0x80000000u  // with a value, read: another value, or not there

struct hist_op {
  uint64_t call, ret;
  uint64_t clock[2];  // the wall clock before the call and after the return
  const char *what;
  uint32_t thread;
  bool ingest;  // for tests that spoil one
  uint32_t reads[HIST_KEYS], writes[HIST_KEYS];
};

// Facts about the values, by their numbers. NULL: nothing is known of any.
struct hist_values {
  const uint64_t *versions;  // 0: not known
  const uint64_t *expires;   // in the wall clock's unit; 0: never
};
#define HIST_LATE (1ull << 63)  // in an expiry: the clock passed it during the write, which may have been a delete

enum hist_verdict { HIST_GOOD, HIST_BAD, HIST_UNDECIDED };

struct hist_config {
  uint32_t done;  // the operations under way, by slot
  uint32_t now[HIST_KEYS];
  uint32_t last[HIST_KEYS];  // the newest value whose version is known; 0: none
};

// A set of configurations. A place of the table is taken when it bears the set's stamp, so that clearing it costs
// nothing.
struct hist_set {
  struct hist_config *at;
  uint32_t nr, cap;  // cap: a power of two
  uint64_t *slots;   // 2 * cap: stamp, position
  uint32_t stamp;
};

struct hist_event {
  uint64_t when;
  uint32_t op;
  bool is_return;
};

static inline void *hist_alloc(size_t nr, size_t size) {
  void *const p = calloc(nr ? nr : 1, size);
  if (!p) {
    fprintf(stderr, "history: no memory\n");
    abort();
  }
  return p;
}

static inline void hist_set_fini(struct hist_set *s) {
  free(s->at);
  free(s->slots);
}

static inline void hist_set_clear(struct hist_set *s) {
  s->nr = 0;
  s->stamp++;
}

static inline bool hist_set_add(struct hist_set *s, const struct hist_config *c);

static inline void hist_set_grow(struct hist_set *s) {
  struct hist_set more = {.cap = s->cap ? 2 * s->cap : 64, .stamp = 1};
  more.at = hist_alloc(more.cap, sizeof(*more.at));
  more.slots = hist_alloc(2 * (size_t)more.cap, sizeof(*more.slots));
  for (uint32_t i = 0; i < s->nr; i++) (void)hist_set_add(&more, &s->at[i]);
  hist_set_fini(s);
  *s = more;
}

// Whether it is new.
static inline bool hist_set_add(struct hist_set *s, const struct hist_config *c) {
  if (s->nr == s->cap) hist_set_grow(s);
  const uint32_t mask = 2 * s->cap - 1;
  uint32_t h = (uint32_t)hash64(c, sizeof(*c)) & mask;
  for (; s->slots[h] >> 32 == s->stamp; h = (h + 1) & mask)
    if (memcmp(&s->at[(uint32_t)s->slots[h]], c, sizeof(*c)) == 0) return false;
  s->slots[h] = (uint64_t)s->stamp << 32 | s->nr;
  s->at[s->nr++] = *c;
  return true;
}

static inline uint64_t hist_fact(const uint64_t *facts, uint32_t value) {
  return facts && value >= HIST_FIRST ? facts[value] : 0;
}

static inline bool hist_reads_hold(const struct hist_op *o, const struct hist_config *c, const struct hist_values *v) {
  uint64_t low = o->clock[0], high = o->clock[1];  // bounds of the time by which it judges
  for (uint32_t k = 0; k < HIST_KEYS; k++) {
    const uint32_t r = o->reads[k], now = c->now[k];
    const uint64_t expiry = hist_fact(v->expires, now), expires = expiry & ~HIST_LATE;
    if (r == HIST_ANY || (r & HIST_NOT && now != (r & ~HIST_NOT)) || (r == HIST_NONE && now == HIST_NONE)) continue;
    if (r & HIST_NOT || r == HIST_NONE) {  // it must have expired
      if (!expiry) return false;
      if (!(expiry & HIST_LATE) && expires > low) low = expires;
    } else {
      if (r == HIST_SOME ? now == HIST_NONE : now != r) return false;
      if (expiry && expires - 1 < high) high = expires - 1;
    }
  }
  return low <= high;
}

static inline bool hist_writes(const struct hist_op *o) {
  for (uint32_t k = 0; k < HIST_KEYS; k++)
    if (o->writes[k] != HIST_ANY) return true;
  return false;
}

// Writes the keys of o. False: the versions exclude it.
static inline bool hist_write(const struct hist_op *o, const struct hist_values *v, struct hist_config *c) {
  for (uint32_t k = 0; k < HIST_KEYS; k++) {
    const uint32_t w = o->writes[k];
    if (w == HIST_ANY) continue;
    c->now[k] = w;
    const uint64_t version = hist_fact(v->versions, w);
    if (!version) continue;
    if (hist_fact(v->versions, c->last[k]) >= version) return false;
    c->last[k] = w;
  }
  return true;
}

// The operations under way, by slot.
struct hist_pending {
  const struct hist_op *of[HIST_PENDING];
  bool writes[HIST_PENDING];
  uint32_t used;
  const struct hist_values *values;
};

// The operation in slot i, which writes, takes place. False: it cannot.
static inline bool hist_take(const struct hist_pending *p, uint32_t i, struct hist_config *c) {
  const struct hist_op *const o = p->of[i];
  if (!hist_reads_hold(o, c, p->values) || !hist_write(o, p->values, c)) return false;
  c->done |= 1u << i;
  return true;
}

// Those that only read take place when they can.
static inline void hist_settle(const struct hist_pending *p, struct hist_config *c) {
  for (uint32_t left = p->used & ~c->done; left; left &= left - 1) {
    const uint32_t i = (uint32_t)__builtin_ctz(left);
    if (!p->writes[i] && hist_reads_hold(p->of[i], c, p->values)) c->done |= 1u << i;
  }
}

// The operation in the slot returns: of the configurations in `from` to those in which it has taken place, in `to`. All
// there were are in `seen`.
static inline bool hist_return(const struct hist_pending *p, uint32_t slot, const struct hist_set *from,
                               struct hist_set *seen, struct hist_set *to) {
  const uint32_t bit = 1u << slot;
  hist_set_clear(seen);
  hist_set_clear(to);
  for (uint32_t i = 0; i < from->nr; i++) (void)hist_set_add(seen, &from->at[i]);
  for (uint32_t i = 0; i < seen->nr; i++) {  // it grows after i
    struct hist_config c = seen->at[i];
    if (c.done & bit) {
      c.done &= ~bit;
      (void)hist_set_add(to, &c);
      continue;
    }
    for (uint32_t left = p->used & ~c.done; left; left &= left - 1) {
      const uint32_t w = (uint32_t)__builtin_ctz(left);
      struct hist_config next = c;
      if (!p->writes[w] || !hist_take(p, w, &next)) continue;
      hist_settle(p, &next);
      (void)hist_set_add(seen, &next);
    }
    if (seen->nr > HIST_CONFIGS_MAX) return false;
  }
  return true;
}

// At one moment calls come before returns: the two operations overlap.
static inline int hist_event_cmp(const void *a, const void *b) {
  const struct hist_event *const x = a, *const y = b;
  if (x->when != y->when) return x->when < y->when ? -1 : 1;
  return (int)x->is_return - (int)y->is_return;
}

static inline void hist_print_part(char *why, size_t cap, const char *word, const uint32_t part[HIST_KEYS]) {
  size_t at = strlen(why);
  for (uint32_t k = 0; k < HIST_KEYS; k++) {
    if (part[k] == HIST_ANY || at + 40 > cap) continue;
    at += (size_t)snprintf(why + at, cap - at, " %s[%u]%s%s", word, k, part[k] & HIST_NOT ? "!=" : "=",
                           part[k] == HIST_NONE   ? "none"
                           : part[k] == HIST_SOME ? "some"
                                                  : "");
    if (part[k] >= HIST_FIRST) at += (size_t)snprintf(why + at, cap - at, "%u", part[k] & ~HIST_NOT);
  }
}

static inline void hist_print_op(char *why, size_t cap, const struct hist_op *o) {
  const size_t at = strlen(why);
  if (at + 120 > cap) return;
  (void)snprintf(why + at, cap - at, "\n  thread %u, %llu..%llu (clock %llu..%llu), %s:", o->thread,
                 (unsigned long long)o->call, (unsigned long long)o->ret, (unsigned long long)o->clock[0],
                 (unsigned long long)o->clock[1], o->what);
  hist_print_part(why, cap, "read", o->reads);
  hist_print_part(why, cap, "wrote", o->writes);
}

// All keys are HIST_NONE at the start. why (of cap bytes, may be NULL): receives the operation that could not be
// explained. peak_out (may be NULL): configurations at a time.
static inline enum hist_verdict hist_check(const struct hist_op *ops, uint32_t nr, const struct hist_values *values,
                                           char *why, size_t cap, uint32_t *peak_out) {
  struct hist_event *const events = hist_alloc(2 * (size_t)nr, sizeof(*events));
  for (uint32_t i = 0; i < nr; i++) {
    events[2 * i] = (struct hist_event){ops[i].call, i, false};
    events[2 * i + 1] = (struct hist_event){ops[i].ret, i, true};
  }
  qsort(events, 2 * (size_t)nr, sizeof(*events), hist_event_cmp);
  uint8_t *const slot_of = hist_alloc(nr, 1);
  struct hist_set now = {.stamp = 1}, next = {.stamp = 1}, seen = {.stamp = 1};
  struct hist_pending p = {.values = values};
  struct hist_config start = {.done = 0};
  for (uint32_t k = 0; k < HIST_KEYS; k++) start.now[k] = HIST_NONE;
  (void)hist_set_add(&now, &start);
  enum hist_verdict verdict = HIST_GOOD;
  uint32_t peak = 0;
  for (uint32_t e = 0; e < 2 * nr && verdict == HIST_GOOD; e++) {
    const struct hist_op *const o = &ops[events[e].op];
    if (!events[e].is_return) {
      if (p.used == UINT32_MAX) verdict = HIST_UNDECIDED;
      if (verdict != HIST_GOOD) break;
      const uint32_t i = (uint32_t)__builtin_ctz(~p.used);
      slot_of[events[e].op] = (uint8_t)i;
      p.used |= 1u << i;
      p.of[i] = o;
      p.writes[i] = hist_writes(o);
      for (uint32_t c = 0; !p.writes[i] && c < now.nr; c++)  // the same number keeps them different from each other
        if (hist_reads_hold(o, &now.at[c], values)) now.at[c].done |= 1u << i;
      continue;
    }
    const uint32_t i = slot_of[events[e].op];
    if (!hist_return(&p, i, &now, &seen, &next)) verdict = HIST_UNDECIDED;
    else if (next.nr == 0) verdict = HIST_BAD;
    if (seen.nr > peak) peak = seen.nr;
    if (verdict != HIST_GOOD && why) {
      (void)snprintf(why, cap, "%s, of %u configurations, and these under way:",
                     verdict == HIST_BAD ? "cannot be explained" : "too many to look at", now.nr);
      hist_print_op(why, cap, o);
      for (uint32_t left = p.used & ~(1u << i); left; left &= left - 1)
        hist_print_op(why, cap, p.of[__builtin_ctz(left)]);
      for (uint32_t c = 0; c < now.nr && c < 4; c++) hist_print_part(why, cap, "\n  held", now.at[c].now);
    }
    p.used &= ~(1u << i);
    const struct hist_set swap = now;
    now = next;
    next = swap;
  }
  free(events);
  free(slot_of);
  hist_set_fini(&now);
  hist_set_fini(&next);
  hist_set_fini(&seen);
  if (peak_out) *peak_out = peak;
  return verdict;
}
#endif

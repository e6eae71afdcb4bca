// SPDX-License-Identifier: Apache-2.0
#include "base/cores.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>
#if defined(__FreeBSD__)
#include <pthread_np.h>
#include <sys/cpuset.h>
#include <sys/param.h>
#endif

uint32_t cores_list(uint32_t *cores_out, uint32_t cap) {
  uint32_t nr = 0;
#if defined(__linux__)
  union {
    cpu_set_t set;
    uint64_t words[CORES_MAX / 64];
  } mask;  // a kernel with more processors than a cpu_set_t holds refuses a smaller mask
  memset(&mask, 0, sizeof(mask));
  if (sched_getaffinity(0, sizeof(mask), &mask.set) == 0) {
    for (uint32_t i = 0; i < CORES_MAX; i++) {
      if (i % 64 == 0 && mask.words[i / 64] == 0) {  // skips most of the mask
        i += 63;
        continue;
      }
      if (!CPU_ISSET_S(i, sizeof(mask), &mask.set)) continue;
      if (nr < cap) cores_out[nr] = i;
      nr++;
    }
  }
#elif defined(__FreeBSD__)
  cpuset_t set;
  CPU_ZERO(&set);
  if (cpuset_getaffinity(CPU_LEVEL_WHICH, CPU_WHICH_PID, -1, sizeof(set), &set) == 0) {
    for (uint32_t i = 0; i < CPU_SETSIZE; i++) {
      if (!CPU_ISSET(i, &set)) continue;
      if (nr < cap) cores_out[nr] = i;
      nr++;
    }
  }
#endif
  if (nr > 0) return nr;
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  nr = online > 0 ? (uint32_t)online : 1;
  for (uint32_t i = 0; i < nr && i < cap; i++) cores_out[i] = i;
  return nr;
}

bool cores_pin(uint32_t core) {
#if defined(__linux__)
  union {
    cpu_set_t set;
    uint8_t bytes[CORES_MAX / 8];
  } mask;
  if (core >= CORES_MAX) return false;
  memset(&mask, 0, sizeof(mask));
  CPU_SET_S(core, sizeof(mask), &mask.set);
  return pthread_setaffinity_np(pthread_self(), sizeof(mask), &mask.set) == 0;
#elif defined(__FreeBSD__)
  cpuset_t set;
  if (core >= CPU_SETSIZE) return false;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
#else
  (void)core;
  return false;
#endif
}

void cores_get(struct cores *out) {
  out->known = false;
#if defined(__linux__)
  cpu_set_t *const set = (cpu_set_t *)out->words;
  memset(out->words, 0, sizeof(out->words));
  out->known = sched_getaffinity(0, sizeof(out->words), set) == 0;
#elif defined(__FreeBSD__)
  cpuset_t set;
  _Static_assert(sizeof(set) <= sizeof(out->words), "a set fits");
  CPU_ZERO(&set);
  out->known = cpuset_getaffinity(CPU_LEVEL_WHICH, CPU_WHICH_TID, -1, sizeof(set), &set) == 0;
  memcpy(out->words, &set, sizeof(set));
#endif
}

bool cores_set(const struct cores *c) {
  if (!c->known) return false;
#if defined(__linux__)
  return pthread_setaffinity_np(pthread_self(), sizeof(c->words), (const cpu_set_t *)c->words) == 0;
#elif defined(__FreeBSD__)
  cpuset_t set;
  memcpy(&set, c->words, sizeof(set));
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
#else
  return false;
#endif
}

// Parses the number at *p and moves past it. Returns false when there are no digits or the number is too large.
static bool parse_core(const char **p, uint32_t *core_out) {
  uint32_t n = 0;
  const char *s = *p;
  if (*s < '0' || *s > '9') return false;
  for (; *s >= '0' && *s <= '9'; s++) {
    n = n * 10 + (uint32_t)(*s - '0');
    if (n >= CORES_MAX) return false;
  }
  *p = s;
  *core_out = n;
  return true;
}

enum remixdb_status cores_parse(const char *list, uint32_t *cores_out, uint32_t cap, uint32_t *nr_out) {
  uint32_t nr = 0;
  for (const char *p = list;; p++) {
    uint32_t first, last;
    if (!parse_core(&p, &first)) goto bad;
    last = first;
    if (*p == '-') {
      p++;
      if (!parse_core(&p, &last) || last < first) goto bad;
    }
    for (uint32_t core = first; core <= last; core++) {
      if (nr == cap) return err_set(REMIXDB_INVALID, "list of cores \"%s\": more than %u", list, cap);
      cores_out[nr++] = core;
    }
    if (*p == '\0') break;
    if (*p != ',') goto bad;
  }
  *nr_out = nr;
  return REMIXDB_OK;
bad:
  return err_set(REMIXDB_INVALID, "list of cores \"%s\": not of the form 0,2,4-7", list);
}

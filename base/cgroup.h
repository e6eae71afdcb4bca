// SPDX-License-Identifier: Apache-2.0
//
// How much memory this process may use: the machine's, or less if a cgroup of Linux (version 1 or 2) allows less.
#ifndef CGROUP_H
#define CGROUP_H

#include "base/env.h"

// Returns the least limit of the process's cgroup and of all cgroups above it, in bytes. UINT64_MAX: there is no limit,
// or the system does not tell. root: the directory that has proc/self/cgroup and sys/fs/cgroup; "" except in tests.
//
// A limit of a cgroup holds for all below it. In a container the file proc/self/cgroup may name a path that only the
// host has; the cgroup of the container is then the top of what is mounted. So the call looks at the path, at each path
// above it, and at the top, and passes over those that do not exist. Any thread.
uint64_t cgroup_limit(struct env *env, const char *root);
// Returns the bytes of memory that this process may use. 0: the system does not tell.
uint64_t cgroup_memory(void);
extern _Atomic uint64_t cgroup_test_memory;  // for tests: if not 0, cgroup_memory returns it. Relaxed
#endif

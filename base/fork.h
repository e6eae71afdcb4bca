// SPDX-License-Identifier: Apache-2.0
//
// Children made by fork: such a child must not use a store that its parent has opened.
//
// A child has the store's memory and none of its threads. Locks that other threads held stay locked for ever. Copies of
// the descriptors keep the parent's locks of directories alive. So the child must not use the store, and must close
// those descriptors at once.
//
// Handlers of pthread_atfork do both. A call of the library finds out by one load of `fork_count`, which is 0 in every
// process but such a child. Other ways are worse: getpid is a system call for every call of the library; a page that is
// zeroed in children (MADV_WIPEONFORK) exists on Linux only; and neither closes descriptors in a child that never
// calls. Locks that children do not inherit (fcntl) are lost as soon as the process closes any other descriptor of the
// file. The handlers are all that the library adds to a process. glibc and FreeBSD drop them when the library is
// unloaded; musl unloads nothing.
//
// Invariants
//   K1  `fork_count` counts the forks between the first process that called fork_watch and this one. It changes only in
//       a child, before fork returns there. An object that was opened at another count belongs to another process.
//   K2  Directory locks are taken and released under fork_hold, together with their place in the list. So no child is
//       made with such a descriptor open but not in the list, and a child closes all of them and nothing else. It does
//       not unlock them, because the parent would lose the lock.
//
// A child made without the C library's fork (a raw clone, vfork, posix_spawn) runs no handlers. It must call exec,
// which closes all descriptors of the library.
#ifndef FORK_H
#define FORK_H

#include "lib.h"

// Descriptors that a child closes; -1: none. Embedded in their owner.
struct fork_closes {
  int fd[2];
  struct fork_closes *next, *prev;
};

// Installs the handlers. Calling it again does nothing. Fails with REMIXDB_NOMEM. Any thread.
MUST_CHECK enum remixdb_status fork_watch(void);
// Delays every fork of this process (but those without handlers) until fork_release. Hold it briefly; do not nest. Any
// thread.
void fork_hold(void);
void fork_release(void);
// Call both under fork_hold. f must not move while it is in the list, and its descriptors are open.
void fork_add(struct fork_closes *f);
void fork_remove(struct fork_closes *f);

// K1. It needs no atomic: it changes only in a child that has one thread, in the handler, before fork returns there.
extern uint32_t fork_count;
static inline uint32_t fork_now(void) { return fork_count; }
#endif

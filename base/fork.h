// SPDX-License-Identifier: Apache-2.0
//
// Children made by fork: such a child must not use a store that its parent has opened.
//
// A child has the memory of the store, but not its threads. Locks that other threads held stay locked for ever. The
// child's copies of the descriptors keep the parent's locks of directories alive. So the child must not use the store,
// and must close the descriptors of locked directories at once.
//
// Handlers of pthread_atfork count the forks and close these descriptors. A call of the library loads `fork_count`. It
// is 0 in every process except such a child. Other ways are worse. getpid would cost each call of the library a system
// call. A page that the system zeroes in children (MADV_WIPEONFORK) exists on Linux only. Neither way closes
// descriptors in a child that never calls the library. Children do not inherit fcntl locks, but the process loses such
// a lock as soon as it closes any other descriptor of the file. The library adds nothing but these handlers to a
// process. glibc and FreeBSD drop the handlers when the library is unloaded; musl unloads nothing.
//
// Invariants
//   K1  `fork_count` counts the forks between the earliest process that called fork_watch and this process. It changes
//       only in a child, before fork returns there. An object that was opened at another count belongs to another
//       process.
//   K2  Directory locks are taken and released under fork_hold, together with their place in the list. So no child is
//       made with such a descriptor open but not in the list, and a child closes all of them and nothing else. It does
//       not unlock them, because the parent would lose the lock.
//
// A child made without the C library's fork (a raw clone, vfork, posix_spawn) runs no handlers. It must call exec: that
// closes all descriptors of the library.
#ifndef FORK_H
#define FORK_H

#include "lib.h"

// Descriptors that a child closes; -1: no descriptor. The struct is embedded in the owner of the descriptors.
struct fork_closes {
  int fd[2];
  struct fork_closes *next, *prev;
};

// Installs the handlers. Further calls do nothing. Fails with REMIXDB_NOMEM. Any thread.
MUST_CHECK enum remixdb_status fork_watch(void);
// Delays every fork of this process (except forks without handlers) until fork_release. The caller must call
// fork_release soon, and must not nest the calls. Any thread.
void fork_hold(void);
void fork_release(void);
// The caller is between fork_hold and fork_release. f must not move while it is in the list, and its descriptors are
// open.
void fork_add(struct fork_closes *f);
void fork_remove(struct fork_closes *f);

// K1. The counter need not be atomic: only the handler in a child changes it, before fork returns there, and the child
// then has one thread.
extern uint32_t fork_count;
static inline uint32_t fork_now(void) { return fork_count; }
#endif

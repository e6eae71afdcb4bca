// SPDX-License-Identifier: Apache-2.0
//
// Children made by fork. A child has the memory of a store that its parent opened, and none of the store's threads;
// locks that other threads held are never given back in it; and its copies of the descriptors keep the parent's locks
// of directories alive. So a child is to use nothing of such a store, and is to close those descriptors at once.
//
// Handlers of pthread_atfork do both, so that a call finds out by one load of a word that is 0 in every process but
// such a child. The alternatives are worse: asking for the process's number is a system call for each call of the
// library, a page that is zeroed in children (MADV_WIPEONFORK) is Linux's alone, and neither closes a descriptor of a
// child that never calls. Locks that children do not inherit (fcntl) are lost when the process closes any other
// descriptor of the file. The handlers are the only thing that the library adds to a process. glibc and FreeBSD forget
// them when the library is unloaded; musl unloads nothing.
//
// Invariants
//   K1  `fork_count` is how many forks of a process that watched lie between the first one and this. It changes in a
//   child only, before fork returns there. What was
//       opened with another count belongs to another process.
//   K2  A lock is taken, and given back, with `fork_hold`: no child is made between the opening of a descriptor that
//   carries a lock and its being on the list, nor
//       between its leaving the list and its being closed. So a child closes all of them, and nothing else. It does not
//       unlock them: that would be the parent's loss.
//
// A child made without the C library's fork (a raw clone, vfork, posix_spawn) runs no handlers: it has to call exec,
// which closes all that is the library's.
#ifndef FORK_H
#define FORK_H

#include "lib.h"

// Descriptors of the kernel's that a child closes; -1: none. In what owns them.
struct fork_closes {
  int fd[2];
  struct fork_closes *next, *prev;
};

// Has the handlers called from now on; once is enough, again does nothing. REMIXDB_NOMEM. Any thread.
MUST_CHECK enum remixdb_status fork_watch(void);
// No fork of this process, but those without handlers, begins before fork_release. Short; not nested. Any thread.
void fork_hold(void);
void fork_release(void);
// With fork_hold. f stays where it is until it is removed; its descriptors are open.
void fork_add(struct fork_closes *f);
void fork_remove(struct fork_closes *f);

// 0 in every process that is not a child of one that watched. Relaxed: it changes before there is a second thread.
extern _Atomic uint32_t fork_count;
static inline uint32_t fork_now(void) { return atomic_load_explicit(&fork_count, memory_order_relaxed); }
#endif

// SPDX-License-Identifier: Apache-2.0
//
// A disk in memory, used through the table of file operations, that knows the synced data. simdisk_crash makes the disk
// that a power cut could leave: every write and every directory change that was not synced is kept, dropped or torn, by
// a seed. It also fails calls on demand, runs full, gives short counts and EINTR.
//
// It promises as much as POSIX and no more: fsync of a file makes its bytes and its size durable, not its name; a
// directory's fsync makes the names in it durable; a rename is there whole or not at all; a sector of 512 bytes is
// written whole or not at all; nothing else has an order.
//
// All calls are thread-safe, but for simdisk_crash and simdisk_destroy, which must be alone with the disk.
#ifndef SIMDISK_H
#define SIMDISK_H

#include "tests/lib/paths.h"

struct simdisk;

// An empty disk with the directory "/". Paths are taken from it, with or without the first slash. NULL when there is no
// memory.
struct simdisk *simdisk_create(void);
void simdisk_destroy(struct simdisk *d);     // NULL is allowed
struct env *simdisk_env(struct simdisk *d);  // belongs to d; not native
// A directory that is there, held as long as the disk lives; past all faults, and not counted among the open files. e:
// simdisk_env, or a copy of it. Belongs to the disk. NULL: there is none.
const struct env_dir *simdisk_dir(struct env *e, const char *path);

// A new disk that a power cut at this moment could leave of d, which stays as it is. The same seed makes the same disk.
// Faults, power and space are as on a new disk.
struct simdisk *simdisk_crash(const struct simdisk *d, uint64_t seed);

// The power goes after nr more changing calls (open that creates, pwrite, sync, truncate, allocate, punch, rename,
// unlink, link, mkdir, rmdir): all calls but close then return -EIO and have no effect. The call it goes in may have
// happened or not.
void simdisk_power_off(struct simdisk *d, uint64_t nr);
bool simdisk_is_off(struct simdisk *d);
// Calls work again and nothing is lost: after simdisk_power_off this is what the death of the process, and not of the
// machine, leaves.
void simdisk_power_on(struct simdisk *d);
uint64_t simdisk_changes(struct simdisk *d);  // changing calls so far

// fn is called before each changing call that is not made to fail, in the thread that makes it. It may call
// simdisk_crash of this disk, and nothing else of it: so every state that a power cut can leave is at hand without
// running anything again. NULL ends it.
void simdisk_on_change(struct simdisk *d, void (*fn)(void *arg), void *arg);

// Makes a name that is neither a file nor a directory, durable at once: opening it fails with errnum, as with ELOOP
// that of a symbolic link does.
void simdisk_special(struct simdisk *d, const char *path, int errnum);

// Reads take time from now on, on a clock that nothing else moves: what is not in the page cache is there one unit
// after a read or an advice (ENV_WILL_NEED) asks for it, and a read waits until all that it reads is there. The page
// cache begins empty. false: reads take no time.
void simdisk_slow(struct simdisk *d, bool on);
// The clock: how many times readers have waited, one wait after the other.
uint64_t simdisk_waits(struct simdisk *d);

enum simdisk_call {
  SIMDISK_OPEN,
  SIMDISK_READ,
  SIMDISK_WRITE,
  SIMDISK_SYNC,
  SIMDISK_TRUNCATE,
  SIMDISK_ALLOCATE,
  SIMDISK_PUNCH,
  SIMDISK_STAT,
  SIMDISK_RENAME,
  SIMDISK_UNLINK,
  SIMDISK_LINK,
  SIMDISK_MKDIR,
  SIMDISK_RMDIR,
  SIMDISK_LIST,
  SIMDISK_LOCK,
  SIMDISK_CLOSE,
  SIMDISK_CALLS
};
// After `skip` more calls of this kind the next nr of them return -errnum without effect. nr 0 ends it. One per kind.
// Instead of an errno:
enum {
  SIMDISK_SHORT = -1,    // a read or write moves half of its bytes
  SIMDISK_NOTHING = -2,  // a write takes nothing, and says so
  SIMDISK_DONE = -3,     // a call that changes the disk does so, and then returns -EIO
};
void simdisk_fault(struct simdisk *d, enum simdisk_call call, uint64_t skip, uint64_t nr, int errnum);
uint64_t simdisk_calls(struct simdisk *d, enum simdisk_call call);  // calls of this kind so far that a fault could hit
// Faults hit only calls on files whose name (last component; of a rename, the new one) begins so; "" or NULL: all.
void simdisk_fault_name(struct simdisk *d, const char *prefix);
// Files may take this many bytes, rounded up to 4 KB each, less the pages that were punched; more is -ENOSPC. A write
// moves the part that there is room for. UINT64_MAX, the default: no limit.
void simdisk_space(struct simdisk *d, uint64_t bytes);
uint64_t simdisk_used(struct simdisk *d);
uint32_t simdisk_open_files(struct simdisk *d);        // descriptors that were not closed
void simdisk_no_allocate(struct simdisk *d, bool on);  // allocate returns -EOPNOTSUPP
void simdisk_no_punch(struct simdisk *d, bool on);     // punch returns -EOPNOTSUPP
// Descriptors opened with ENV_DIRECT take only transfers whose offset, length and address are multiples of 4096, and
// refuse others with -EINVAL, until the flag's effect is ended. simdisk_refused: how many they have refused so far. on:
// they refuse all, as some file systems do that take the flag.
uint64_t simdisk_refused(struct simdisk *d);
void simdisk_no_direct(struct simdisk *d, bool on);
uint64_t simdisk_direct_read(struct simdisk *d);          // bytes read past the page cache so far
uint64_t simdisk_direct(struct simdisk *d);               // bytes written past the page cache so far
void simdisk_short_io(struct simdisk *d, uint64_t seed);  // short counts and EINTR now and then; 0 ends it

// Looking and damaging from outside, past all faults. False (-1): there is no such file, or it is shorter.
int64_t simdisk_size(struct simdisk *d, const char *path);
int64_t simdisk_room(struct simdisk *d, const char *path);  // bytes that the file takes on the disk
bool simdisk_peek(struct simdisk *d, const char *path, uint64_t off, void *buf, size_t len);
bool simdisk_poke(struct simdisk *d, const char *path, uint64_t off, const void *buf, size_t len);  // durable at once
bool simdisk_flip(struct simdisk *d, const char *path, uint64_t off, uint8_t mask);                 // durable at once
#endif

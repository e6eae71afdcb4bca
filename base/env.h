// SPDX-License-Identifier: Apache-2.0
//
// Every call that touches the file system, behind one table that tests replace. The table holds raw calls in the manner
// of the system (a count or 0, or -errno); the functions below it add the loops for short counts and EINTR, the checks
// and the messages, and are what the rest of the library uses. Rings (io_uring, AIO) may be used only on an env that is
// `native`, whose descriptors are the kernel's.
//
// A file is named by a directory and a name in it. The store opens its directory once and holds it: a directory that is
// renamed meanwhile stays the same one, and another that gets its name is never looked at. A name in an open directory
// is never a symbolic link: opening one fails.
#ifndef ENV_H
#define ENV_H

#include <fcntl.h>
#include <sys/types.h>

#include "lib.h"

#define ENV_PATH_MAX 4096
#define ENV_HERE \
  AT_FDCWD  // in place of a directory's descriptor: the name is a path, from the working directory, and links in it are
            // followed

struct env;

// ENV_DIRECT asks to bypass the page cache; a file system that cannot opens the file without it.
enum { ENV_READ = 1, ENV_WRITE = 2, ENV_CREATE = 4, ENV_EXCL = 8, ENV_TRUNC = 16, ENV_DIRECT = 32, ENV_DIR = 64 };

struct env_stat {
  uint64_t size;
  uint64_t dev, ino;     // together they tell a file from all others that are there
  uint32_t links;        // names that the file has
  bool is_dir, is_file;  // neither: a symbolic link, a pipe, a socket, a device
};

struct env_ops {  // each returns >= 0, or -errno
  // at: a directory's descriptor, or ENV_HERE; so in all below. Never waits. Opens a directory with ENV_DIR, else a
  // regular file: of others -ELOOP, -EMLINK, -ENXIO or -EISDIR.
  int (*open)(struct env *e, int at, const char *name, unsigned flags);
  int (*close)(struct env *e, int fd);
  ssize_t (*pread)(struct env *e, int fd, void *buf, size_t len, uint64_t off);
  ssize_t (*pwrite)(struct env *e, int fd, const void *buf, size_t len, uint64_t off);
  int (*sync_data)(struct env *e, int fd);  // fdatasync (F_FULLFSYNC on macOS)
  int (*sync_all)(struct env *e, int fd);   // fsync
  int (*truncate)(struct env *e, int fd, uint64_t size);
  int (*allocate)(struct env *e, int fd, uint64_t off,
                  uint64_t len);  // room on disk, size grown; -EOPNOTSUPP when the system cannot
  int (*fstat)(struct env *e, int fd, struct env_stat *out);
  int (*stat)(struct env *e, int at, const char *name, struct env_stat *out);
  int (*rename)(struct env *e, int from_at, const char *from, int to_at, const char *to);
  int (*unlink)(struct env *e, int at, const char *name);
  int (*link)(struct env *e, int from_at, const char *from, int to_at, const char *to);
  int (*mkdir)(struct env *e, int at, const char *name);
  int (*rmdir)(struct env *e, int at, const char *name);
  // calls fn for each name in the directory `name`, "." for `at` itself, but . and ..; stops when fn returns false
  int (*list)(struct env *e, int at, const char *name, bool (*fn)(void *arg, const char *name), void *arg);
  int (*lock)(struct env *e, int fd, bool exclusive);  // flock, not waiting; -EWOULDBLOCK when held. Dies with the
                                                       // process and its children made by fork.
  int (*unlock)(struct env *e, int fd);
  int64_t (*seek)(
      struct env *e, int fd, uint64_t off,
      bool hole);  // the next offset >= off of a hole (or the end), or of data (-ENXIO: none); NULL: all is data
  int (*write_out)(
      struct env *e, int fd, uint64_t off,
      uint64_t len);  // advice: begins to bring these pages to the disk, and does not wait for it; may do nothing
};

struct env {
  const struct env_ops *ops;
  void *priv;
  bool native;
};

struct env *env_posix(void);  // the real one; static

// An open directory. Any thread.
struct env_dir {
  struct env *env;
  int fd;      // or ENV_HERE
  char *path;  // for messages only, own memory: the name that it was opened by
};
#define ENV_PATHS(e) \
  (&(const struct env_dir){.env = (e), .fd = ENV_HERE})  // names are paths; lives as long as the block it is in

// Opens the directory `name` in `at`. REMIXDB_NOTFOUND (no message) when there is none. *out is closed by
// env_dir_close, which may be called after a failure too.
MUST_CHECK enum remixdb_status env_dir_open(const struct env_dir *at, const char *name, struct env_dir *out);
// The same, and makes it where there is none and it may (*made_out: it has tried to). REMIXDB_NOTFOUND (no message): it
// may not.
MUST_CHECK enum remixdb_status env_dir_make(const struct env_dir *at, const char *name, bool may_make, bool *made_out,
                                            struct env_dir *out);
// Whether the directory `name` in `at` is `d`; not when it is absent.
MUST_CHECK enum remixdb_status env_dir_is(const struct env_dir *at, const char *name, const struct env_dir *d,
                                          bool *out);
// Removes the directory `name` in `at` if it is still `d`, as env_rmdir does; success, too: it is another one.
MUST_CHECK enum remixdb_status env_dir_remove(const struct env_dir *at, const char *name, const struct env_dir *d);
void env_dir_close(struct env_dir *d);  // one that is all zero is ignored

// In all below a `path` only names the file in messages. fd_out is -1 after a failure.
MUST_CHECK enum remixdb_status env_open(const struct env_dir *at, const char *name, unsigned flags,
                                        int *fd_out);  // REMIXDB_NOTFOUND (no message) on ENOENT without ENV_CREATE
// Makes a file, empty. One that is there loses its name, and is not written to: it may have another name.
MUST_CHECK enum remixdb_status env_create(const struct env_dir *at, const char *name, unsigned flags, int *fd_out);
MUST_CHECK enum remixdb_status env_close(struct env *e, int fd, const char *path);
void env_close_quiet(struct env *e, int fd);  // for files only read, and on the way out of an error; fd -1 is ignored
// Exactly len bytes; the file ending first is REMIXDB_CORRUPT ("truncated").
MUST_CHECK enum remixdb_status env_read(struct env *e, int fd, const char *path, void *buf, size_t len, uint64_t off);
// As many of len as the file has.
MUST_CHECK enum remixdb_status env_read_upto(struct env *e, int fd, const char *path, void *buf, size_t len,
                                             uint64_t off, size_t *nr_out);
MUST_CHECK enum remixdb_status env_write(struct env *e, int fd, const char *path, const void *buf, size_t len,
                                         uint64_t off);  // all of it
MUST_CHECK enum remixdb_status env_sync_data(struct env *e, int fd, const char *path);
MUST_CHECK enum remixdb_status env_sync_all(struct env *e, int fd, const char *path);
MUST_CHECK enum remixdb_status env_sync_dir(const struct env_dir *d);  // names and renames in it are durable afterwards
MUST_CHECK enum remixdb_status env_truncate(struct env *e, int fd, const char *path, uint64_t size);
// Room for [off, off+len). Succeeds without effect where the system cannot preallocate.
MUST_CHECK enum remixdb_status env_allocate(struct env *e, int fd, const char *path, uint64_t off, uint64_t len);
MUST_CHECK enum remixdb_status env_size(struct env *e, int fd, const char *path, uint64_t *size_out);
// Where the file goes on with data at or after off; a file system that knows no holes has data everywhere. At most
// `end`. An error counts as data: it is met by reading.
uint64_t env_next_data(struct env *e, int fd, uint64_t off, uint64_t end);
// Whether a hole of `most` bytes or more lies in [off, end): what is read there was never written. A file may be so
// large as it likes without having anything.
bool env_is_hollow(struct env *e, int fd, uint64_t off, uint64_t end, uint64_t most);
MUST_CHECK enum remixdb_status env_stat(const struct env_dir *at, const char *name,
                                        struct env_stat *out);  // REMIXDB_NOTFOUND (no message) when absent
MUST_CHECK enum remixdb_status env_rename(const struct env_dir *from_at, const char *from, const struct env_dir *to_at,
                                          const char *to);
MUST_CHECK enum remixdb_status env_unlink(const struct env_dir *at, const char *name);  // absent is success
MUST_CHECK enum remixdb_status env_link(const struct env_dir *from_at, const char *from, const struct env_dir *to_at,
                                        const char *to);
MUST_CHECK enum remixdb_status env_mkdir(const struct env_dir *at, const char *name);  // present is success
MUST_CHECK enum remixdb_status env_rmdir(
    const struct env_dir *at,
    const char *name);  // success, too: it is absent; not empty, in use, a symbolic link: it stays
MUST_CHECK enum remixdb_status env_list(const struct env_dir *d, bool (*fn)(void *arg, const char *name), void *arg);
// Opens (ENV_CREATE when exclusive) and locks the file that still has this name when it is locked: who holds it may
// remove it. REMIXDB_LOCKED; REMIXDB_NOTFOUND (no message) when it is to be shared and is not there.
MUST_CHECK enum remixdb_status env_lock(const struct env_dir *at, const char *name, bool exclusive, int *fd_out);
void env_unlock(struct env *e, int fd);  // and closes it: closing alone would leave it locked while a child made by
                                         // fork has the descriptor, too. -1 is ignored
void env_write_out(struct env *e, int fd, uint64_t off,
                   uint64_t len);  // so that there is less left to wait for when it is synced
// dir + "/" + name into buf of ENV_PATH_MAX bytes. REMIXDB_INVALID when it does not fit.
MUST_CHECK enum remixdb_status env_path(char *buf, const char *dir, const char *name);
// The path of a name in a directory, for messages: own memory, for mem_free. NULL: REMIXDB_NOMEM.
char *env_path_new(const struct env_dir *at, const char *name);
// What follows the last slash of a path: the name of a file in its directory. Points into it.
const char *env_name(const char *path);
// Copies the first `size` bytes of one open file to another.
MUST_CHECK enum remixdb_status env_copy(struct env *e, int in, const char *from, int out, const char *to,
                                        uint64_t size);
// A whole small file: read into a buffer of its own (the caller frees with mem_free; one zero byte follows the data),
// at most `max` bytes (more is REMIXDB_CORRUPT); REMIXDB_NOTFOUND. Written whole, synced, under a temporary name, then
// renamed; the directory is synced. REMIXDB_NOSPACE, REMIXDB_NOMEM: the file is what it was; after another failure it
// may be either.
MUST_CHECK enum remixdb_status env_read_file(const struct env_dir *at, const char *name, size_t max, uint8_t **buf_out,
                                             size_t *len_out);
MUST_CHECK enum remixdb_status env_replace_file(const struct env_dir *at, const char *name, const void *buf,
                                                size_t len);
#endif

// SPDX-License-Identifier: Apache-2.0
//
// The file system. All calls go through one table of raw calls, env_ops, which tests replace. The rest of the library
// uses the functions below the table: they repeat short and interrupted calls, check arguments and set messages. Rings
// (io_uring, AIO) work only on a `native` env: its descriptors are the kernel's.
//
// A file is named by an open directory and a name in it. The store opens its directory once. If somebody renames that
// directory, the store keeps using it, and never looks at another directory that gets the old name. Opening a name in
// an open directory never follows a symbolic link: it fails.
//
// Every function that returns a status sets REMIXDB_IO, REMIXDB_NOSPACE or REMIXDB_NOMEM for a failed system call
// (err_errno). REMIXDB_NOTFOUND comes without a message. Any thread may call; one env_dir serves many threads.
#ifndef ENV_H
#define ENV_H

#include <fcntl.h>
#include <sys/types.h>

#include "lib.h"

#define ENV_PATH_MAX 4096
// This value in place of a directory's descriptor means that names are paths from the working directory. Symbolic links
// are then followed.
#define ENV_HERE AT_FDCWD

struct env;

// ENV_DIRECT asks to bypass the page cache. A file system without direct I/O opens the file without it. Another may
// open it and refuse the transfers (EINVAL). Then env_read and env_write end the effect of the flag on this descriptor,
// and go on through the page cache.
enum { ENV_READ = 1, ENV_WRITE = 2, ENV_CREATE = 4, ENV_EXCL = 8, ENV_TRUNC = 16, ENV_DIRECT = 32, ENV_DIR = 64 };

// How a part of a file will be used. RANDOM, SEQUENTIAL and NORMAL set how far the system reads ahead by itself:
// nothing, much, or as it likes. On Linux they hold for the whole open descriptor. WILL_NEED brings the part into the
// page cache. DONT_NEED drops the part's pages from the page cache, except pages that are not written to disk yet.
enum env_advice { ENV_RANDOM, ENV_SEQUENTIAL, ENV_NORMAL, ENV_WILL_NEED, ENV_DONT_NEED };

struct env_stat {
  uint64_t size;
  uint64_t dev, ino;     // together they identify a file among the existing files
  uint32_t links;        // names of the file
  bool is_dir, is_file;  // neither: a symbolic link, a pipe, a socket, a device
};

// The raw calls. Each returns >= 0, or -errno. `at` is a directory's descriptor, or ENV_HERE.
struct env_ops {
  // Never waits. With ENV_DIR opens a directory, else a regular file. For any other kind of file it returns -ELOOP,
  // -EMLINK, -ENXIO or -EISDIR.
  int (*open)(struct env *e, int at, const char *name, unsigned flags);
  int (*close)(struct env *e, int fd);
  ssize_t (*pread)(struct env *e, int fd, void *buf, size_t len, uint64_t off);
  ssize_t (*pwrite)(struct env *e, int fd, const void *buf, size_t len, uint64_t off);
  int (*sync_data)(struct env *e, int fd);  // fdatasync (F_FULLFSYNC on macOS)
  int (*sync_all)(struct env *e, int fd);   // fsync
  // Like sync_data, for the first len bytes of a file that is open for reading. May write more.
  int (*sync_head)(struct env *e, int fd, uint64_t len);
  int (*truncate)(struct env *e, int fd, uint64_t size);
  // Allocates room on disk and grows the file's size. Returns -EOPNOTSUPP if the system cannot do that.
  int (*allocate)(struct env *e, int fd, uint64_t off, uint64_t len);
  // Gives the room of these bytes back to the disk: they read as zeros, and the file's size stays. Returns -EOPNOTSUPP
  // if the system cannot do that.
  int (*punch)(struct env *e, int fd, uint64_t off, uint64_t len);
  int (*fstat)(struct env *e, int fd, struct env_stat *out);
  int (*stat)(struct env *e, int at, const char *name, struct env_stat *out);
  int (*rename)(struct env *e, int from_at, const char *from, int to_at, const char *to);
  int (*unlink)(struct env *e, int at, const char *name);
  int (*link)(struct env *e, int from_at, const char *from, int to_at, const char *to);
  int (*mkdir)(struct env *e, int at, const char *name);
  int (*rmdir)(struct env *e, int at, const char *name);
  // Calls fn for each name in the directory `name` ("." is `at` itself) but . and .., until fn returns false.
  int (*list)(struct env *e, int at, const char *name, bool (*fn)(void *arg, const char *name), void *arg);
  // flock without waiting; returns -EWOULDBLOCK if another open file holds the lock. The lock ends when the process and
  // its forked children have ended.
  int (*lock)(struct env *e, int fd, bool exclusive);
  int (*unlock)(struct env *e, int fd);
  // Returns the lowest offset >= off of a hole (or the file's end), or of data (-ENXIO: there is no more data). A NULL
  // function means that files have no holes.
  int64_t (*seek)(struct env *e, int fd, uint64_t off, bool hole);
  // Advice: the system should start to write these pages to the disk. Does not wait. May do nothing.
  int (*write_out)(struct env *e, int fd, uint64_t off, uint64_t len);
  // Advice on [off, off + len); len 0: to the file's end. Does not wait for the disk. May do nothing.
  int (*advise)(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice);
  // Ends the effect of ENV_DIRECT on this descriptor. Returns 1, or 0 if the descriptor does not bypass the page cache.
  // A NULL function means that no descriptor does, or that none refuses a transfer for that reason.
  int (*no_direct)(struct env *e, int fd);
};

// Clocks that a test sets. Any thread calls them.
struct env_clock {
  uint64_t (*wall_ms)(void *arg);    // ms since 1970-01-01 UTC; it may step in both directions
  uint64_t (*steady_ms)(void *arg);  // ms since some time; it never steps
  void *arg;
};

struct env {
  const struct env_ops *ops;
  void *priv;
  bool native;
  const struct env_clock *clock;  // NULL: the system's clocks
};

struct env *env_posix(void);  // the real file system; static

uint64_t env_wall_ms(const struct env *e);    // the time of day in ms since 1970-01-01 UTC; never 0
uint64_t env_steady_ms(const struct env *e);  // ms on a clock that never steps

// ---- directories

// An open directory.
struct env_dir {
  struct env *env;
  int fd;      // or ENV_HERE
  char *path;  // for messages only: the name by which the directory was opened; own memory
};
// A directory struct in which names are paths. It lives until the enclosing block ends.
#define ENV_PATHS(e) (&(const struct env_dir){.env = (e), .fd = ENV_HERE})

// Opens the directory `name` in `at`. Fails with REMIXDB_NOTFOUND if it is absent. env_dir_close closes *out, also
// after a failure.
MUST_CHECK enum remixdb_status env_dir_open(const struct env_dir *at, const char *name, struct env_dir *out);
// Opens the directory `name` in `at`. If it is absent and `may_make` is set, the call makes it. *made_out: the call
// tried to make the directory. Fails with REMIXDB_NOTFOUND if the directory is absent and `may_make` is not set.
MUST_CHECK enum remixdb_status env_dir_make(const struct env_dir *at, const char *name, bool may_make, bool *made_out,
                                            struct env_dir *out);
// Tells whether `name` in `at` still is the open directory `d`. False if the name is absent.
MUST_CHECK enum remixdb_status env_dir_is(const struct env_dir *at, const char *name, const struct env_dir *d,
                                          bool *out);
// Removes the directory `name` in `at`, as env_rmdir does, if the name still is `d`. If the name is another directory,
// that directory stays, and the call succeeds.
MUST_CHECK enum remixdb_status env_dir_remove(const struct env_dir *at, const char *name, const struct env_dir *d);
void env_dir_close(struct env_dir *d);  // ignores a struct that is all zero
// Makes the names in the directory durable.
MUST_CHECK enum remixdb_status env_sync_dir(const struct env_dir *d);
MUST_CHECK enum remixdb_status env_list(const struct env_dir *d, bool (*fn)(void *arg, const char *name), void *arg);

// ---- open files. A `path` only names the file in messages.

// Opens a file. Fails with REMIXDB_NOTFOUND if the file is absent and flags do not have ENV_CREATE. *fd_out is -1 after
// a failure.
MUST_CHECK enum remixdb_status env_open(const struct env_dir *at, const char *name, unsigned flags, int *fd_out);
// Makes an empty file. If an old file has the name, the old file loses the name. The call does not write to the old
// file, because the old file may have a second name.
MUST_CHECK enum remixdb_status env_create(const struct env_dir *at, const char *name, unsigned flags, int *fd_out);
MUST_CHECK enum remixdb_status env_close(struct env *e, int fd, const char *path);
// Closes a file and ignores a failure: for files that were only read, and for clean-up after an error. Ignores fd -1.
void env_close_quiet(struct env *e, int fd);
// Reads exactly len bytes. Fails with REMIXDB_CORRUPT ("truncated") if the file ends earlier.
MUST_CHECK enum remixdb_status env_read(struct env *e, int fd, const char *path, void *buf, size_t len, uint64_t off);
// Reads as many of len bytes as the file has.
MUST_CHECK enum remixdb_status env_read_upto(struct env *e, int fd, const char *path, void *buf, size_t len,
                                             uint64_t off, size_t *nr_out);
// Writes exactly len bytes.
MUST_CHECK enum remixdb_status env_write(struct env *e, int fd, const char *path, const void *buf, size_t len,
                                         uint64_t off);
MUST_CHECK enum remixdb_status env_sync_data(struct env *e, int fd, const char *path);
MUST_CHECK enum remixdb_status env_sync_all(struct env *e, int fd, const char *path);
// Makes the first len bytes durable, and the file's length as far as env_allocate or env_truncate has set it. The
// system need not write what lies behind them. fd: open for reading, too.
MUST_CHECK enum remixdb_status env_sync_head(struct env *e, int fd, const char *path, uint64_t len);
MUST_CHECK enum remixdb_status env_truncate(struct env *e, int fd, const char *path, uint64_t size);
// Allocates room for [off, off + len). On a system that cannot do so, the call succeeds without effect.
MUST_CHECK enum remixdb_status env_allocate(struct env *e, int fd, const char *path, uint64_t off, uint64_t len);
// Gives the room of [off, off + len) back: these bytes read as zeros from now on, and the file keeps its size. The
// caller has opened the file with ENV_WRITE. *can_out: false if the system cannot do that, and nothing has changed. The
// hole is durable after the next sync of the file; a power cut before leaves any of its sectors as they were.
MUST_CHECK enum remixdb_status env_punch(struct env *e, int fd, const char *path, uint64_t off, uint64_t len,
                                         bool *can_out);
MUST_CHECK enum remixdb_status env_fstat(struct env *e, int fd, const char *path, struct env_stat *out);
MUST_CHECK enum remixdb_status env_size(struct env *e, int fd, const char *path, uint64_t *size_out);
// Starts writing the pages to the disk, so that a later sync waits less.
void env_write_out(struct env *e, int fd, uint64_t off, uint64_t len);
// Advises the system on [off, off + len); len 0: to the file's end, except that WILL_NEED takes no 0. A refusal has no
// effect. Systems bound what one call brings in, so WILL_NEED makes a call for every ENV_WILL_NEED_MAX bytes.
void env_advise(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice);
#define ENV_WILL_NEED_MAX ((uint64_t)256 << 10)
// Returns the lowest offset at or after off where the file has data, at most `end`. A file without holes has data
// everywhere. If the system's call fails, the function returns off: a later read of these bytes will report the error.
uint64_t env_next_data(struct env *e, int fd, uint64_t off, uint64_t end);
// Tells whether [off, end) has a hole of `most` bytes or more, that is, bytes that were never written. A sparse file
// may be all hole, however large it is.
bool env_is_hollow(struct env *e, int fd, uint64_t off, uint64_t end, uint64_t most);
// Copies the first `size` bytes of one open file to another.
MUST_CHECK enum remixdb_status env_copy(struct env *e, int in, const char *from, int out, const char *to,
                                        uint64_t size);

// ---- names

MUST_CHECK enum remixdb_status env_stat(const struct env_dir *at, const char *name,
                                        struct env_stat *out);  // REMIXDB_NOTFOUND
MUST_CHECK enum remixdb_status env_rename(const struct env_dir *from_at, const char *from, const struct env_dir *to_at,
                                          const char *to);
MUST_CHECK enum remixdb_status env_unlink(const struct env_dir *at, const char *name);  // absent is success
MUST_CHECK enum remixdb_status env_link(const struct env_dir *from_at, const char *from, const struct env_dir *to_at,
                                        const char *to);
MUST_CHECK enum remixdb_status env_mkdir(const struct env_dir *at, const char *name);  // present is success
// Removes a directory. Succeeds also if the name is absent. A directory that is not empty or is in use stays, and so
// does a symbolic link; the call succeeds then, too.
MUST_CHECK enum remixdb_status env_rmdir(const struct env_dir *at, const char *name);
// Opens and locks the file. `exclusive`: the call makes the file if it is absent. A holder of the lock may remove the
// file. So the call checks, after it has the lock, that the file still has its name. Fails with REMIXDB_LOCKED, or with
// REMIXDB_NOTFOUND if a shared lock is wanted and the file is absent.
MUST_CHECK enum remixdb_status env_lock(const struct env_dir *at, const char *name, bool exclusive, int *fd_out);
// Unlocks and closes. Closing alone would keep the lock while a forked child has the descriptor. Ignores fd -1.
void env_unlock(struct env *e, int fd);

// ---- paths

// Writes dir + "/" + name into buf of ENV_PATH_MAX bytes. Fails with REMIXDB_INVALID if the path does not fit.
MUST_CHECK enum remixdb_status env_path(char *buf, const char *dir, const char *name);
// Returns the path of a name in a directory, for messages. The caller frees the path with mem_free. Returns NULL on
// failure (REMIXDB_NOMEM).
char *env_path_new(const struct env_dir *at, const char *name);
// Returns the part of the path after its last slash, as a pointer into the path.
const char *env_name(const char *path);

// ---- whole small files

// Reads all bytes of an open file. Fails with REMIXDB_CORRUPT if the file has more than `max` bytes. The caller frees
// *buf_out with mem_free. One zero byte follows the data.
MUST_CHECK enum remixdb_status env_read_all(struct env *e, int fd, const char *path, size_t max, uint8_t **buf_out,
                                            size_t *len_out);
// Replaces a file as a whole: writes and syncs a temporary file, renames it, and syncs the directory. After
// REMIXDB_NOSPACE or REMIXDB_NOMEM the old file is unchanged. After any other failure the name may belong to the old or
// to the new file.
MUST_CHECK enum remixdb_status env_replace_file(const struct env_dir *at, const char *name, const void *buf,
                                                size_t len);
#endif

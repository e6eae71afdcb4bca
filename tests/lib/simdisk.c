// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/simdisk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/often.h"

#define SIM_DIRECT 4096u  // transfers past the page cache are multiples of this
#define SIM_PAGE 4096u
#define SIM_SECTOR 512u
#define SIM_FD 1000000  // descriptors start here, so that one handed to the system fails

static void *sim_given(void *p) {
  if (!p) {
    (void)fprintf(stderr, "simdisk: no memory\n");
    abort();
  }
  return p;
}

static void *sim_alloc(size_t size) { return sim_given(calloc(1, size ? size : 1)); }

// The same, not zeroed.
static void *sim_take(size_t size) { return sim_given(malloc(size ? size : 1)); }

static void *sim_grow(void *p, size_t nr, size_t *cap, size_t size) {
  if (nr < *cap) return p;
  const size_t more = *cap ? *cap * 2 : 8;
  void *const q = sim_alloc(more * size);
  if (nr) memcpy(q, p, nr * size);
  free(p);
  *cap = more;
  return q;
}

static char *sim_strdup(const char *s, size_t len) {
  char *const p = sim_take(len + 1);
  memcpy(p, s, len);
  p[len] = '\0';
  return p;
}

// Bytes in pages, which copies share until one of them writes; a page that was never written is NULL and reads as
// zeroes. So does a page that a hole has taken, which is sim_hole.
struct sim_page {
  _Atomic uint32_t refs;  // files, of any disk, that have it
  uint8_t data[SIM_PAGE];
};
static struct sim_page sim_hole;

struct sim_bytes {
  struct sim_page **pages;
  size_t nr_pages;
  uint64_t size;
};

// A change of a file that was not synced.
struct sim_change {
  bool is_size;  // a new size (off), else a write or a hole
  bool is_hole;  // len bytes; no data
  bool grow_only;
  uint64_t off;
  size_t len;
  uint8_t *data;
};

struct sim_entry {
  char *name;
  size_t len;
  struct sim_node *node;
};

struct sim_dir {
  struct sim_entry *entries;
  size_t nr, cap;
  bool links;  // its entries are the links of nodes: the names, and not those that are durable
};

struct sim_node {
  struct sim_node *next;  // the next one of all
  bool is_dir, marked;
  int special;  // opening it fails with this errno; 0: a file or a directory
  bool gone;    // a directory that was removed: nothing is made in it
  uint32_t id;
  uint32_t open;               // descriptors
  uint32_t links;              // names
  struct sim_bytes cur, kept;  // kept: the durable bytes
  struct sim_change *changes;
  size_t nr_changes, cap_changes;
  struct sim_dir names, kept_names;  // a directory's
  int lock_exclusive;                // fd, or -1
  uint32_t lock_shared;
  struct sim_node *copy;  // in simdisk_crash
};

// A change of directories: `from` loses a name, `to` gets one; either may be absent.
struct sim_rename {
  struct sim_node *from, *to, *node;
  char *from_name, *to_name;
};

struct sim_fd {
  struct sim_node *node;
  unsigned flags;
  int locked;  // 1 shared, 2 exclusive
  char *name;
  bool held;  // by the disk
};

// A directory that the disk holds.
struct sim_held {
  struct sim_held *next;
  struct env_dir dir;
};

struct simdisk {
  pthread_mutex_t mu;
  struct env env;
  struct sim_node *nodes, *root;
  uint32_t next_id;
  struct sim_rename *renames;
  size_t nr_renames, cap_renames;
  struct sim_fd *fds;
  size_t nr_fds, cap_fds;
  struct sim_held *held;
  bool power_set, off;
  uint64_t power, changes;
  struct {
    uint64_t skip, nr, calls;
    int errnum;
  } faults[SIMDISK_CALLS];
  char fault_name[64];
  uint64_t space, short_io;
  bool no_allocate, no_punch, no_direct;
  uint64_t refused;              // transfers of direct descriptors
  uint64_t direct, direct_read;  // bytes written and read past the page cache
  void (*on_change)(void *arg);
  void *on_change_arg;
  // A slow disk: when each page that was asked for is there. Open addressing; key 0 is empty.
  bool slow;
  uint64_t clock;
  struct {
    uint64_t key, ready;
  } * cached;
  size_t nr_cached, cap_cached;
};

// ---- bytes

static void page_drop(struct sim_page *p) {
  if (p && p != &sim_hole && atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) == 1) free(p);
}

// The page's bytes, to be written. whole: all of them.
static uint8_t *page_own(struct sim_page **at, bool whole) {
  struct sim_page *const old = *at == &sim_hole ? NULL : *at;
  if (old && atomic_load_explicit(&old->refs, memory_order_acquire) == 1) return old->data;
  struct sim_page *const p = old || whole ? sim_take(sizeof(*p)) : sim_alloc(sizeof(*p));
  atomic_init(&p->refs, 1);
  if (old && !whole) memcpy(p->data, old->data, SIM_PAGE);
  page_drop(old);
  *at = p;
  return p->data;
}

static void bytes_free(struct sim_bytes *b) {
  for (size_t i = 0; i < b->nr_pages; i++) page_drop(b->pages[i]);
  free(b->pages);
  *b = (struct sim_bytes){NULL, 0, 0};
}

static void bytes_copy(struct sim_bytes *to, const struct sim_bytes *from) {
  const size_t nr = (size_t)((from->size + SIM_PAGE - 1) / SIM_PAGE);
  *to = (struct sim_bytes){sim_take(nr * sizeof(to->pages[0])), nr, from->size};
  for (size_t i = 0; i < nr; i++) {
    to->pages[i] = from->pages[i];
    if (to->pages[i] && to->pages[i] != &sim_hole)
      (void)atomic_fetch_add_explicit(&to->pages[i]->refs, 1, memory_order_relaxed);
  }
}

static void bytes_resize(struct sim_bytes *b, uint64_t size) {
  const size_t need = (size_t)((size + SIM_PAGE - 1) / SIM_PAGE);
  if (need > b->nr_pages) {
    const size_t cap = need > b->nr_pages * 2 ? need : b->nr_pages * 2;
    struct sim_page **const pages = sim_alloc(cap * sizeof(*pages));
    if (b->nr_pages) memcpy(pages, b->pages, b->nr_pages * sizeof(*pages));
    free(b->pages);
    b->pages = pages;
    b->nr_pages = cap;
  }
  if (size < b->size) {  // bytes that were cut off read as zeroes when the file grows again
    for (size_t i = need; i < b->nr_pages; i++) {
      page_drop(b->pages[i]);
      b->pages[i] = NULL;
    }
    const size_t at = (size_t)(size % SIM_PAGE);
    if (at && b->pages[need - 1] && b->pages[need - 1] != &sim_hole)
      memset(page_own(&b->pages[need - 1], false) + at, 0, SIM_PAGE - at);
  }
  b->size = size;
}

static void bytes_write(struct sim_bytes *b, uint64_t off, const uint8_t *p, size_t len) {
  if (off + len > b->size) bytes_resize(b, off + len);
  while (len > 0) {
    const size_t page = (size_t)(off / SIM_PAGE), at = (size_t)(off % SIM_PAGE),
                 n = len < SIM_PAGE - at ? len : SIM_PAGE - at;
    memcpy(page_own(&b->pages[page], n == SIM_PAGE) + at, p, n);
    off += n;
    p += n;
    len -= n;
  }
}

static size_t bytes_read(const struct sim_bytes *b, uint64_t off, uint8_t *p, size_t len) {
  if (off >= b->size) return 0;
  if (len > b->size - off) len = (size_t)(b->size - off);
  for (size_t done = 0; done < len;) {
    const size_t page = (size_t)((off + done) / SIM_PAGE), at = (size_t)((off + done) % SIM_PAGE);
    const size_t n = len - done < SIM_PAGE - at ? len - done : SIM_PAGE - at;
    if (b->pages[page] && b->pages[page] != &sim_hole) memcpy(p + done, b->pages[page]->data + at, n);
    else memset(p + done, 0, n);
    done += n;
  }
  return len;
}

// Makes a hole within the file. Only whole pages are given back.
static void bytes_punch(struct sim_bytes *b, uint64_t off, uint64_t len) {
  static const uint8_t zeros[SIM_PAGE];
  const uint64_t end = off + len < b->size ? off + len : b->size;
  for (uint64_t n; off < end; off += n) {
    const size_t page = (size_t)(off / SIM_PAGE), at = (size_t)(off % SIM_PAGE);
    n = end - off < SIM_PAGE - at ? end - off : SIM_PAGE - at;
    if (n < SIM_PAGE) {
      bytes_write(b, off, zeros, (size_t)n);
      continue;
    }
    page_drop(b->pages[page]);
    b->pages[page] = &sim_hole;
  }
}

static uint64_t bytes_room(const struct sim_bytes *b) {
  uint64_t room = align_up(b->size, SIM_PAGE);
  for (size_t i = 0; i < b->nr_pages && i * SIM_PAGE < b->size; i++)
    if (b->pages[i] == &sim_hole) room -= SIM_PAGE;
  return room;
}

static void bytes_apply(struct sim_bytes *b, const struct sim_change *c) {
  if (c->is_hole) bytes_punch(b, c->off, c->len);
  else if (!c->is_size) bytes_write(b, c->off, c->data, c->len);
  else if (!c->grow_only || c->off > b->size) bytes_resize(b, c->off);
}

// Each sector of the write, or of the hole, is there or not.
static void bytes_tear(struct sim_bytes *b, const struct sim_change *c, uint64_t *rng) {
  if (c->is_size) {
    if (rng_next(rng) & 1) bytes_apply(b, c);
    return;
  }
  for (size_t done = 0; done < c->len;) {
    const size_t left = SIM_SECTOR - (size_t)((c->off + done) % SIM_SECTOR),
                 n = c->len - done < left ? c->len - done : left;
    if (rng_next(rng) & 1) {
      if (c->is_hole) bytes_punch(b, c->off + done, n);
      else bytes_write(b, c->off + done, c->data + done, n);
    }
    done += n;
  }
}

// ---- directories

// Where the name is; d->nr: nowhere.
static size_t dir_at(const struct sim_dir *d, const char *name, size_t len) {
  size_t i = 0;
  while (i < d->nr && (d->entries[i].len != len || memcmp(d->entries[i].name, name, len) != 0)) i++;
  return i;
}

static struct sim_node *dir_find(const struct sim_dir *d, const char *name, size_t len) {
  const size_t i = dir_at(d, name, len);
  return i < d->nr ? d->entries[i].node : NULL;
}

static void dir_remove(struct sim_dir *d, const char *name) {
  const size_t i = dir_at(d, name, strlen(name));
  if (i == d->nr) return;
  if (d->links) d->entries[i].node->links--;
  free(d->entries[i].name);
  d->entries[i] = d->entries[--d->nr];
}

// Adds a name that is not there.
static void dir_add(struct sim_dir *d, const char *name, size_t len, struct sim_node *node) {
  d->entries = sim_grow(d->entries, d->nr, &d->cap, sizeof(d->entries[0]));
  d->entries[d->nr++] = (struct sim_entry){sim_strdup(name, len), len, node};
  if (d->links) node->links++;
}

static void dir_set(struct sim_dir *d, const char *name, struct sim_node *node) {
  dir_remove(d, name);
  dir_add(d, name, strlen(name), node);
}

static void dir_free(struct sim_dir *d) {
  for (size_t i = 0; i < d->nr; i++) free(d->entries[i].name);
  free(d->entries);
  *d = (struct sim_dir){NULL, 0, 0, false};
}

static void rename_apply(const struct sim_rename *r, bool kept) {
  if (r->from) dir_remove(kept ? &r->from->kept_names : &r->from->names, r->from_name);
  if (r->to) dir_set(kept ? &r->to->kept_names : &r->to->names, r->to_name, r->node);
}

static void rename_free(struct sim_rename *r) {
  free(r->from_name);
  free(r->to_name);
}

static void sim_rename(struct simdisk *d, struct sim_node *from, const char *from_name, struct sim_node *to,
                       const char *to_name, struct sim_node *node) {
  const struct sim_rename r = {.from = from,
                               .to = to,
                               .node = node,
                               .from_name = from ? sim_strdup(from_name, strlen(from_name)) : NULL,
                               .to_name = to ? sim_strdup(to_name, strlen(to_name)) : NULL};
  rename_apply(&r, false);
  d->renames = sim_grow(d->renames, d->nr_renames, &d->cap_renames, sizeof(d->renames[0]));
  d->renames[d->nr_renames++] = r;
}

// ---- nodes

static struct sim_node *node_create(struct simdisk *d, bool is_dir) {
  struct sim_node *const n = sim_alloc(sizeof(*n));
  n->is_dir = is_dir;
  n->id = d->next_id++;
  n->lock_exclusive = -1;
  n->names.links = true;
  n->next = d->nodes;
  d->nodes = n;
  return n;
}

static void node_forget_changes(struct sim_node *n) {
  for (size_t i = 0; i < n->nr_changes; i++) free(n->changes[i].data);
  n->nr_changes = 0;
}

static void node_destroy(struct sim_node *n) {
  node_forget_changes(n);
  free(n->changes);
  bytes_free(&n->cur);
  bytes_free(&n->kept);
  dir_free(&n->names);
  dir_free(&n->kept_names);
  free(n);
}

static void node_mark(struct sim_node *n) {
  if (n->marked) return;
  n->marked = true;
  for (size_t i = 0; i < n->names.nr; i++) node_mark(n->names.entries[i].node);
  for (size_t i = 0; i < n->kept_names.nr; i++) node_mark(n->kept_names.entries[i].node);
}

// Frees files that cannot be reached, now or after a crash.
static void sim_sweep(struct simdisk *d) {
  for (struct sim_node *n = d->nodes; n; n = n->next) n->marked = false;
  node_mark(d->root);
  for (size_t i = 0; i < d->nr_fds; i++) {
    if (d->fds[i].node) node_mark(d->fds[i].node);
  }
  for (size_t i = 0; i < d->nr_renames; i++) {
    const struct sim_rename *const r = &d->renames[i];
    if (r->from) node_mark(r->from);
    if (r->to) node_mark(r->to);
    if (r->node) node_mark(r->node);
  }
  for (struct sim_node *n = d->nodes; n; n = n->next)
    for (size_t i = 0; !n->marked && i < n->names.nr; i++) n->names.entries[i].node->links--;
  for (struct sim_node **at = &d->nodes; *at;) {
    struct sim_node *const n = *at;
    if (n->marked) {
      at = &n->next;
      continue;
    }
    *at = n->next;
    node_destroy(n);
  }
}

static void sim_count(struct sim_node *n, uint64_t *used) {
  if (n->marked) return;
  n->marked = true;
  *used += bytes_room(&n->cur);
  for (size_t i = 0; i < n->names.nr; i++) sim_count(n->names.entries[i].node, used);
}

static uint64_t sim_used(struct simdisk *d) {
  uint64_t used = 0;
  for (struct sim_node *n = d->nodes; n; n = n->next) n->marked = false;
  sim_count(d->root, &used);
  for (size_t i = 0; i < d->nr_fds; i++) {
    if (d->fds[i].node) sim_count(d->fds[i].node, &used);
  }
  return used;
}

// How large a file that has to grow to `size` can become.
static uint64_t sim_size_most(struct simdisk *d, const struct sim_node *n, uint64_t size) {
  const uint64_t has = align_up(n->cur.size, SIM_PAGE);
  if (d->space == UINT64_MAX || align_up(size, SIM_PAGE) <= has) return size;
  const uint64_t used = sim_used(d), most = has + (used < d->space ? (d->space - used) / SIM_PAGE * SIM_PAGE : 0);
  return size < most ? size : most;
}

static bool sim_has_room(struct simdisk *d, const struct sim_node *n, uint64_t size) {
  return sim_size_most(d, n, size) == size;
}

// Finds the directory and the last name of a path (pointing into it), which begins in `dir`. NULL: -ENOENT. An empty
// name, of "/" or ".", is that of the directory itself.
static struct sim_node *sim_parent(struct sim_node *dir, const char *path, const char **name_out, size_t *len_out) {
  while (dir) {
    while (*path == '/' || (path[0] == '.' && (path[1] == '/' || path[1] == '\0'))) path++;
    const size_t len = strcspn(path, "/");
    const char *rest = path + len;
    while (*rest == '/') rest++;
    if (*rest == '\0') {
      *name_out = path;
      *len_out = len;
      return dir;
    }
    dir = dir_find(&dir->names, path, len);
    if (!dir || !dir->is_dir) return NULL;
    path = rest;
  }
  return NULL;
}

static struct sim_node *sim_find(struct sim_node *at, const char *path) {
  const char *name;
  size_t len;
  struct sim_node *const dir = sim_parent(at, path, &name, &len);
  if (!dir) return NULL;
  return len == 0 ? dir : dir_find(&dir->names, name, len);
}

static const char *sim_base(const char *path) {
  const char *const slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

// ---- faults. With the mutex held: 0, -errno, or what is to be done otherwise than asked (of SIMDISK_SHORT and those
// after it the negative).

static int sim_fault(struct simdisk *d, enum simdisk_call call, const char *name) {
  if (d->off && call != SIMDISK_CLOSE) return -EIO;
  if (strncmp(name, d->fault_name, strlen(d->fault_name)) != 0) return 0;
  d->faults[call].calls++;
  if (d->faults[call].nr == 0) return 0;
  if (d->faults[call].skip > 0) {
    d->faults[call].skip--;
    return 0;
  }
  d->faults[call].nr--;
  return -d->faults[call].errnum;
}

// The disk is going to change. *after: the power goes in this call, which is to have its effect and then to fail. 0, or
// -errno.
static int sim_change_now(struct simdisk *d, enum simdisk_call call, bool *after) {
  d->changes++;
  if (d->on_change) d->on_change(d->on_change_arg);
  if (d->power_set && d->power-- == 0) {
    d->off = true;
    if (call == SIMDISK_SYNC || (d->changes & 1)) return -EIO;
    *after = true;
  }
  return 0;
}

// The two for a call that changes the disk in any case; *after as well when it is made to.
static int sim_change(struct simdisk *d, enum simdisk_call call, const char *name, bool *after) {
  *after = false;
  const int how = sim_fault(d, call, name);
  if (how < 0) return how;
  const int rc = sim_change_now(d, call, after);
  if (how == -SIMDISK_DONE) *after = true;
  return rc < 0 || how == -SIMDISK_DONE ? rc : how;
}

static bool sim_now_and_then(struct simdisk *d, uint32_t one_in) {
  return d->short_io && rng_next(&d->short_io) % one_in == 0;
}

static struct simdisk *sim_enter(struct env *e) {
  struct simdisk *const d = e->priv;
  (void)pthread_mutex_lock(&d->mu);
  return d;
}

static int sim_leave(struct simdisk *d, int rc) {
  (void)pthread_mutex_unlock(&d->mu);
  return rc;
}

static struct sim_fd *sim_fd(struct simdisk *d, int fd) {
  if (fd < SIM_FD || (size_t)(fd - SIM_FD) >= d->nr_fds || !d->fds[fd - SIM_FD].node) return NULL;
  return &d->fds[fd - SIM_FD];
}

// Where a name is looked for: from the root, or in the directory of a descriptor, unless that was removed. NULL:
// nowhere.
static struct sim_node *sim_at(struct simdisk *d, int at) {
  if (at == ENV_HERE) return d->root;
  const struct sim_fd *const f = sim_fd(d, at);
  return f && f->node->is_dir && !f->node->gone ? f->node : NULL;
}

// The name by which faults are given: the last name of a path, or that of the descriptor where it is the directory.
static const char *sim_said(struct simdisk *d, int at, const char *path) {
  const struct sim_fd *const f = at == ENV_HERE ? NULL : sim_fd(d, at);
  return f && strcmp(path, ".") == 0 ? f->name : sim_base(path);
}

// ---- calls

// A descriptor of a node, which goes by this name.
static int sim_fd_new(struct simdisk *d, struct sim_node *n, unsigned flags, const char *name) {
  size_t i = 0;
  while (i < d->nr_fds && d->fds[i].node) i++;
  if (i == d->nr_fds) {
    d->fds = sim_grow(d->fds, d->nr_fds, &d->cap_fds, sizeof(d->fds[0]));
    d->nr_fds++;
  }
  d->fds[i] = (struct sim_fd){.node = n, .flags = flags, .name = sim_strdup(name, strlen(name))};
  n->open++;
  return SIM_FD + (int)i;
}

static int sim_open_locked(struct simdisk *d, int at, const char *path, unsigned flags) {
  const char *name;
  size_t len;
  bool after = false;
  const int how = sim_fault(d, SIMDISK_OPEN, sim_said(d, at, path));
  if (how < 0) return how;
  if (sim_now_and_then(d, 16)) return -EINTR;
  struct sim_node *const dir = sim_parent(sim_at(d, at), path, &name, &len);
  if (!dir) return -ENOENT;
  struct sim_node *n = len == 0 ? dir : dir_find(&dir->names, name, len);
  if (n && n->special && !(flags & ENV_EXCL)) return -n->special;
  if (n && n->is_dir && (flags & ENV_WRITE)) return -EISDIR;
  if (n && !n->is_dir && (flags & ENV_DIR)) return -ENOTDIR;
  if (n && (flags & ENV_CREATE) && (flags & ENV_EXCL)) return -EEXIST;
  if (!n && !(flags & ENV_CREATE)) return -ENOENT;
  if (!n || (flags & ENV_TRUNC)) {
    const int rc = sim_change_now(d, SIMDISK_OPEN, &after);
    if (rc < 0) return rc;
  }
  if (!n) {
    char *const s = sim_strdup(name, len);
    n = node_create(d, false);
    sim_rename(d, NULL, NULL, dir, s, n);
    free(s);
  } else if ((flags & ENV_TRUNC) && n->cur.size > 0) {
    const struct sim_change c = {.is_size = true};
    n->changes = sim_grow(n->changes, n->nr_changes, &n->cap_changes, sizeof(n->changes[0]));
    n->changes[n->nr_changes++] = c;
    bytes_apply(&n->cur, &c);
  }
  if (after || how == -SIMDISK_DONE) return -EIO;
  return sim_fd_new(d, n, flags, sim_said(d, at, path));
}

static int sim_open(struct env *e, int at, const char *path, unsigned flags) {
  struct simdisk *const d = sim_enter(e);
  return sim_leave(d, sim_open_locked(d, at, path, flags));
}

static void sim_let_go(struct sim_fd *f) {
  if (f->locked == 1) f->node->lock_shared--;
  if (f->locked == 2) f->node->lock_exclusive = -1;
  f->locked = 0;
}

static int sim_close(struct env *e, int fd) {
  struct simdisk *const d = sim_enter(e);
  struct sim_fd *const f = sim_fd(d, fd);
  if (!f) return sim_leave(d, -EBADF);
  const int rc = sim_fault(d, SIMDISK_CLOSE, f->name);
  sim_let_go(f);
  f->node->open--;
  free(f->name);
  *f = (struct sim_fd){.node = NULL};
  return sim_leave(d, rc);
}

// When the page is there; asks for it if nobody has.
static uint64_t slow_page(struct simdisk *d, const struct sim_node *n, uint64_t page) {
  const uint64_t key = ((uint64_t)n->id << 32 | page) + 1;
  if (2 * (d->nr_cached + 1) > d->cap_cached) {
    const size_t cap = d->cap_cached, more = cap ? 2 * cap : 1024;
    void *const old = d->cached;
    d->cached = sim_alloc(more * sizeof(d->cached[0]));
    memset(d->cached, 0, more * sizeof(d->cached[0]));
    d->cap_cached = more;
    d->nr_cached = 0;
    for (size_t i = 0; i < cap; i++) {
      const uint64_t *const it = (const uint64_t *)old + 2 * i;
      if (it[0] == 0) continue;
      size_t at = hash64(&it[0], sizeof(it[0])) & (more - 1);
      while (d->cached[at].key) at = (at + 1) & (more - 1);
      d->cached[at].key = it[0];
      d->cached[at].ready = it[1];
      d->nr_cached++;
    }
    free(old);
  }
  size_t at = hash64(&key, sizeof(key)) & (d->cap_cached - 1);
  while (d->cached[at].key && d->cached[at].key != key) at = (at + 1) & (d->cap_cached - 1);
  if (!d->cached[at].key) {
    d->cached[at].key = key;
    d->cached[at].ready = d->clock + 1;
    d->nr_cached++;
  }
  return d->cached[at].ready;
}

// Asks for the pages of [off, off + len), and returns when all of them are there.
static uint64_t slow_pages(struct simdisk *d, const struct sim_node *n, uint64_t off, uint64_t len) {
  uint64_t ready = d->clock;
  for (uint64_t page = off / 4096; len && page <= (off + len - 1) / 4096; page++) {
    const uint64_t at = slow_page(d, n, page);
    if (at > ready) ready = at;
  }
  return ready;
}

// Whether the descriptor refuses a transfer, because it bypasses the page cache.
static bool sim_refuses(struct simdisk *d, const struct sim_fd *f, const void *buf, size_t len, uint64_t off) {
  const bool refuses = f->flags & ENV_DIRECT && (d->no_direct || ((uintptr_t)buf | len | off) % SIM_DIRECT != 0);
  d->refused += refuses;
  return refuses;
}

// Returns how much of a transfer of len bytes is moved, if a cut leaves n.
static size_t sim_short(const struct sim_fd *f, size_t len, size_t n) {
  if (!(f->flags & ENV_DIRECT)) return n;
  return n < SIM_DIRECT ? (len < SIM_DIRECT ? len : SIM_DIRECT) : n / SIM_DIRECT * SIM_DIRECT;
}

static ssize_t sim_pread(struct env *e, int fd, void *buf, size_t len, uint64_t off) {
  struct simdisk *const d = sim_enter(e);
  const struct sim_fd *const f = sim_fd(d, fd);
  if (!f || !(f->flags & ENV_READ)) return sim_leave(d, -EBADF);
  if (f->node->is_dir) return sim_leave(d, -EISDIR);
  const int rc = sim_fault(d, SIMDISK_READ, f->name);
  if (rc < 0) return sim_leave(d, rc);
  if (sim_now_and_then(d, 8)) return sim_leave(d, -EINTR);
  if (sim_refuses(d, f, buf, len, off)) return sim_leave(d, -EINVAL);
  const size_t all = len;
  if (rc == -SIMDISK_SHORT) len = sim_short(f, all, len - len / 2);
  if (len > 1 && sim_now_and_then(d, 4)) len = sim_short(f, all, 1 + (size_t)(rng_next(&d->short_io) % (len - 1)));
  const size_t n = bytes_read(&f->node->cur, off, buf, len);
  if (d->slow) d->clock = slow_pages(d, f->node, off, n);
  if (f->flags & ENV_DIRECT) d->direct_read += n;
  (void)sim_leave(d, 0);
  return (ssize_t)n;
}

static void sim_write(struct sim_node *n, uint64_t off, const void *buf, size_t len) {
  const struct sim_change c = {.off = off, .len = len, .data = sim_take(len)};
  memcpy(c.data, buf, len);
  n->changes = sim_grow(n->changes, n->nr_changes, &n->cap_changes, sizeof(n->changes[0]));
  n->changes[n->nr_changes++] = c;
  bytes_write(&n->cur, off, buf, len);
}

static ssize_t sim_pwrite(struct env *e, int fd, const void *buf, size_t len, uint64_t off) {
  struct simdisk *const d = sim_enter(e);
  const struct sim_fd *const f = sim_fd(d, fd);
  bool after;
  if (!f || !(f->flags & ENV_WRITE)) return sim_leave(d, -EBADF);
  if (sim_now_and_then(d, 8)) return sim_leave(d, -EINTR);
  if (sim_refuses(d, f, buf, len, off)) return sim_leave(d, -EINVAL);
  const size_t all = len;
  const int rc = sim_change(d, SIMDISK_WRITE, f->name, &after);
  if (rc < 0) return sim_leave(d, rc);
  if (rc == -SIMDISK_NOTHING) return sim_leave(d, 0);
  if (rc == -SIMDISK_SHORT) len = sim_short(f, all, len - len / 2);
  if (len > 1 && sim_now_and_then(d, 4)) len = sim_short(f, all, 1 + (size_t)(rng_next(&d->short_io) % (len - 1)));
  const uint64_t most = sim_size_most(d, f->node, off + len);
  if (most < off + len && most <= off) return sim_leave(d, -ENOSPC);
  len = (size_t)(most - off);  // a full disk takes the part that it has room for
  sim_write(f->node, off, buf, len);
  if (f->flags & ENV_DIRECT) d->direct += len;
  (void)sim_leave(d, 0);
  return after ? -EIO : (ssize_t)len;
}

static void sim_sync_dir(struct simdisk *d, const struct sim_node *dir) {
  size_t left = 0;
  for (size_t i = 0; i < d->nr_renames; i++) {
    struct sim_rename *const r = &d->renames[i];
    if (r->from == dir || r->to == dir) {
      rename_apply(r, true);
      rename_free(r);
    } else {
      d->renames[left++] = *r;
    }
  }
  d->nr_renames = left;
  sim_sweep(d);
}

// Drops what the first nr changes, which are no sizes, wrote from `end` on. Returns how many are left.
static size_t changes_cut(struct sim_node *n, size_t nr, uint64_t end) {
  size_t left = 0;
  for (size_t i = 0; i < nr; i++) {
    struct sim_change c = n->changes[i];
    if (c.off >= end) {
      free(c.data);
      continue;
    }
    if (c.off + c.len > end) c.len = (size_t)(end - c.off);
    n->changes[left++] = c;
  }
  return left;
}

// The first len bytes are durable, and the length. The rest of a change that goes on behind them may still be lost.
static void node_keep_head(struct sim_node *n, uint64_t len) {
  size_t left = 0;
  for (size_t i = 0; i < n->nr_changes; i++) {
    struct sim_change c = n->changes[i];
    const uint64_t in = c.off < len ? len - c.off : 0;
    struct sim_change head = c;
    if (c.is_size) {
      bytes_apply(&n->kept, &c);
      if (!c.grow_only) left = changes_cut(n, left, c.off);
      continue;
    }
    if (in >= c.len) {
      bytes_apply(&n->kept, &c);
      free(c.data);
      continue;
    }
    head.len = (size_t)in;
    if (in) bytes_apply(&n->kept, &head);
    c.off += in;
    c.len -= (size_t)in;
    if (in && c.data) memmove(c.data, c.data + in, c.len);
    n->changes[left++] = c;
  }
  n->nr_changes = left;
}

static int sim_sync_head(struct env *e, int fd, uint64_t len) {
  struct simdisk *const d = sim_enter(e);
  const struct sim_fd *const f = sim_fd(d, fd);
  bool after;
  if (!f || f->node->is_dir || !(f->flags & ENV_READ)) return sim_leave(d, -EBADF);
  if (sim_now_and_then(d, 8)) return sim_leave(d, -EINTR);
  const int rc = sim_change(d, SIMDISK_SYNC, f->name, &after);
  if (rc < 0) return sim_leave(d, rc);
  node_keep_head(f->node, len);
  return sim_leave(d, after ? -EIO : 0);
}

static int sim_sync(struct env *e, int fd) {
  struct simdisk *const d = sim_enter(e);
  const struct sim_fd *const f = sim_fd(d, fd);
  bool after;
  if (!f) return sim_leave(d, -EBADF);
  if (sim_now_and_then(d, 8)) return sim_leave(d, -EINTR);
  const int rc = sim_change(d, SIMDISK_SYNC, f->name, &after);
  if (rc < 0) return sim_leave(d, rc);
  struct sim_node *const n = f->node;
  if (n->is_dir) {
    sim_sync_dir(d, n);
  } else {
    for (size_t i = 0; i < n->nr_changes; i++) bytes_apply(&n->kept, &n->changes[i]);
    node_forget_changes(n);
  }
  return sim_leave(d, after ? -EIO : 0);
}

static int sim_resize(struct env *e, int fd, uint64_t size, bool grow_only, enum simdisk_call call) {
  struct simdisk *const d = sim_enter(e);
  const struct sim_fd *const f = sim_fd(d, fd);
  bool after;
  if (!f || !(f->flags & ENV_WRITE)) return sim_leave(d, -EBADF);
  if (call == SIMDISK_ALLOCATE && d->no_allocate) return sim_leave(d, -EOPNOTSUPP);
  if (sim_now_and_then(d, 8)) return sim_leave(d, -EINTR);
  const int rc = sim_change(d, call, f->name, &after);
  if (rc < 0) return sim_leave(d, rc);
  struct sim_node *const n = f->node;
  // a truncate that grows makes a hole; here it counts as space all the same, which errs on the side of a full disk
  if (size > n->cur.size && !sim_has_room(d, n, size)) return sim_leave(d, -ENOSPC);
  const struct sim_change c = {.is_size = true, .grow_only = grow_only, .off = size};
  n->changes = sim_grow(n->changes, n->nr_changes, &n->cap_changes, sizeof(n->changes[0]));
  n->changes[n->nr_changes++] = c;
  bytes_apply(&n->cur, &c);
  return sim_leave(d, after ? -EIO : 0);
}

static int sim_truncate(struct env *e, int fd, uint64_t size) {
  return sim_resize(e, fd, size, false, SIMDISK_TRUNCATE);
}

static int sim_allocate(struct env *e, int fd, uint64_t off, uint64_t len) {
  return sim_resize(e, fd, off + len, true, SIMDISK_ALLOCATE);
}

static int sim_punch(struct env *e, int fd, uint64_t off, uint64_t len) {
  struct simdisk *const d = sim_enter(e);
  const struct sim_fd *const f = sim_fd(d, fd);
  bool after;
  if (!f || !(f->flags & ENV_WRITE)) return sim_leave(d, -EBADF);
  if (d->no_punch) return sim_leave(d, -EOPNOTSUPP);
  if (len == 0) return sim_leave(d, -EINVAL);
  if (sim_now_and_then(d, 8)) return sim_leave(d, -EINTR);
  const int rc = sim_change(d, SIMDISK_PUNCH, f->name, &after);
  if (rc < 0) return sim_leave(d, rc);
  struct sim_node *const n = f->node;
  const struct sim_change c = {.is_hole = true, .off = off, .len = (size_t)len};
  n->changes = sim_grow(n->changes, n->nr_changes, &n->cap_changes, sizeof(n->changes[0]));
  n->changes[n->nr_changes++] = c;
  bytes_apply(&n->cur, &c);
  return sim_leave(d, after ? -EIO : 0);
}

static void sim_stat_of(const struct sim_node *n, struct env_stat *out) {
  *out = (struct env_stat){
      .size = n->cur.size, .ino = n->id, .links = n->links, .is_dir = n->is_dir, .is_file = !n->is_dir && !n->special};
}

static int sim_fstat(struct env *e, int fd, struct env_stat *out) {
  struct simdisk *const d = sim_enter(e);
  const struct sim_fd *const f = sim_fd(d, fd);
  if (!f) return sim_leave(d, -EBADF);
  const int rc = sim_fault(d, SIMDISK_STAT, f->name);
  if (rc == 0) sim_stat_of(f->node, out);
  return sim_leave(d, rc);
}

static int sim_stat(struct env *e, int at, const char *path, struct env_stat *out) {
  struct simdisk *const d = sim_enter(e);
  const int rc = sim_fault(d, SIMDISK_STAT, sim_said(d, at, path));
  if (rc < 0) return sim_leave(d, rc);
  const struct sim_node *const n = sim_find(sim_at(d, at), path);
  if (n) sim_stat_of(n, out);
  return sim_leave(d, n ? 0 : -ENOENT);
}

static bool sim_under(const struct sim_node *top, const struct sim_node *n) {
  if (top == n) return true;
  for (size_t i = 0; i < top->names.nr; i++) {
    if (sim_under(top->names.entries[i].node, n)) return true;
  }
  return false;
}

// rename, link and unlink; `from` or `to` NULL where there is none.
static int sim_move_locked(struct simdisk *d, int from_at, const char *from, int to_at, const char *to, bool keep,
                           enum simdisk_call call) {
  const char *from_name, *to_name = "";
  size_t from_len, to_len = 0;
  bool after;
  struct sim_node *const from_dir = sim_parent(sim_at(d, from_at), from, &from_name, &from_len);
  struct sim_node *const to_dir = to ? sim_parent(sim_at(d, to_at), to, &to_name, &to_len) : NULL;
  struct sim_node *const n = from_dir && from_len ? dir_find(&from_dir->names, from_name, from_len) : NULL;
  const int rc = sim_change(d, call, sim_base(to ? to : from), &after);
  if (rc < 0) return rc;
  if (!n || (to && (!to_dir || to_len == 0))) return -ENOENT;
  struct sim_node *const old = to ? dir_find(&to_dir->names, to_name, to_len) : NULL;
  if (call == SIMDISK_RMDIR && (!n->is_dir || n->names.nr)) return n->is_dir ? -ENOTEMPTY : -ENOTDIR;
  if (n->is_dir && (!to || keep) && call != SIMDISK_RMDIR) return -EPERM;
  if (keep && old) return -EEXIST;
  if (old && old != n) {
    if (old->is_dir && !n->is_dir) return -EISDIR;
    if (!old->is_dir && n->is_dir) return -ENOTDIR;
    if (old->is_dir && old->names.nr) return -ENOTEMPTY;
  }
  if (to && n->is_dir && sim_under(n, to_dir)) return -EINVAL;
  if (old != n) {
    char *const a = sim_strdup(from_name, from_len), *const b = sim_strdup(to_name, to_len);
    sim_rename(d, keep ? NULL : from_dir, a, to_dir, b, n);
    free(a);
    free(b);
    if (call == SIMDISK_RMDIR) n->gone = true;
  }
  return after ? -EIO : 0;
}

static int sim_rename_call(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  struct simdisk *const d = sim_enter(e);
  return sim_leave(d, sim_move_locked(d, from_at, from, to_at, to, false, SIMDISK_RENAME));
}

static int sim_link(struct env *e, int from_at, const char *from, int to_at, const char *to) {
  struct simdisk *const d = sim_enter(e);
  return sim_leave(d, sim_move_locked(d, from_at, from, to_at, to, true, SIMDISK_LINK));
}

static int sim_unlink(struct env *e, int at, const char *path) {
  struct simdisk *const d = sim_enter(e);
  return sim_leave(d, sim_move_locked(d, at, path, ENV_HERE, NULL, false, SIMDISK_UNLINK));
}

static int sim_rmdir(struct env *e, int at, const char *path) {
  struct simdisk *const d = sim_enter(e);
  return sim_leave(d, sim_move_locked(d, at, path, ENV_HERE, NULL, false, SIMDISK_RMDIR));
}

static int sim_mkdir(struct env *e, int at, const char *path) {
  struct simdisk *const d = sim_enter(e);
  const char *name;
  size_t len;
  bool after;
  const int rc = sim_change(d, SIMDISK_MKDIR, sim_base(path), &after);
  if (rc < 0) return sim_leave(d, rc);
  struct sim_node *const dir = sim_parent(sim_at(d, at), path, &name, &len);
  if (!dir) return sim_leave(d, -ENOENT);
  if (len == 0 || dir_find(&dir->names, name, len)) return sim_leave(d, -EEXIST);
  char *const s = sim_strdup(name, len);
  sim_rename(d, NULL, NULL, dir, s, node_create(d, true));
  free(s);
  return sim_leave(d, after ? -EIO : 0);
}

static int sim_name_cmp(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int sim_list(struct env *e, int at, const char *path, bool (*fn)(void *arg, const char *name), void *arg) {
  struct simdisk *const d = sim_enter(e);
  const int rc = sim_fault(d, SIMDISK_LIST, sim_said(d, at, path));
  if (rc < 0) return sim_leave(d, rc);
  const struct sim_node *const n = sim_find(sim_at(d, at), path);
  if (!n || !n->is_dir) return sim_leave(d, n ? -ENOTDIR : -ENOENT);
  // a copy, so that fn may use the disk; sorted, so that a test depends on its seed only
  const size_t nr = n->names.nr;
  char **const names = sim_alloc(nr * sizeof(*names));
  for (size_t i = 0; i < nr; i++) names[i] = sim_strdup(n->names.entries[i].name, strlen(n->names.entries[i].name));
  (void)sim_leave(d, 0);
  qsort(names, nr, sizeof(names[0]), sim_name_cmp);
  bool more = true;
  for (size_t i = 0; i < nr; i++) {
    if (more) more = fn(arg, names[i]);
    free(names[i]);
  }
  free(names);
  return 0;
}

static int sim_lock(struct env *e, int fd, bool exclusive) {
  struct simdisk *const d = sim_enter(e);
  struct sim_fd *const f = sim_fd(d, fd);
  if (!f) return sim_leave(d, -EBADF);
  const int rc = sim_fault(d, SIMDISK_LOCK, f->name);
  if (rc < 0) return sim_leave(d, rc);
  struct sim_node *const n = f->node;
  const bool others = (n->lock_exclusive >= 0 && n->lock_exclusive != fd) ||
                      (exclusive && n->lock_shared > (f->locked == 1 ? 1u : 0u));
  if (others) return sim_leave(d, -EWOULDBLOCK);
  sim_let_go(f);
  f->locked = exclusive ? 2 : 1;
  if (exclusive) n->lock_exclusive = fd;
  else n->lock_shared++;
  return sim_leave(d, 0);
}

static int sim_unlock(struct env *e, int fd) {
  struct simdisk *const d = sim_enter(e);
  struct sim_fd *const f = sim_fd(d, fd);
  if (!f) return sim_leave(d, -EBADF);
  sim_let_go(f);
  return sim_leave(d, 0);
}

static int sim_write_out(struct env *e, int fd, uint64_t off, uint64_t len) {
  (void)e, (void)fd, (void)off, (void)len;
  return 0;
}

static int sim_advise(struct env *e, int fd, uint64_t off, uint64_t len, enum env_advice advice) {
  struct simdisk *const d = sim_enter(e);
  const struct sim_fd *const f = sim_fd(d, fd);
  if (!f) return sim_leave(d, -EBADF);
  if (d->slow && advice == ENV_WILL_NEED) (void)slow_pages(d, f->node, off, len);
  return sim_leave(d, 0);
}

static int sim_no_direct(struct env *e, int fd) {
  struct simdisk *const d = sim_enter(e);
  struct sim_fd *const f = sim_fd(d, fd);
  if (!f) return sim_leave(d, -EBADF);
  const bool was = f->flags & ENV_DIRECT;
  f->flags &= ~(unsigned)ENV_DIRECT;
  return sim_leave(d, was);
}

static const struct env_ops sim_ops = {
    .open = sim_open,
    .close = sim_close,
    .pread = sim_pread,
    .pwrite = sim_pwrite,
    .sync_data = sim_sync,
    .sync_head = sim_sync_head,
    .sync_all = sim_sync,
    .truncate = sim_truncate,
    .allocate = sim_allocate,
    .punch = sim_punch,
    .fstat = sim_fstat,
    .stat = sim_stat,
    .rename = sim_rename_call,
    .unlink = sim_unlink,
    .link = sim_link,
    .mkdir = sim_mkdir,
    .rmdir = sim_rmdir,
    .list = sim_list,
    .lock = sim_lock,
    .unlock = sim_unlock,
    .write_out = sim_write_out,
    .advise = sim_advise,
    .no_direct = sim_no_direct,
};

// ---- the disk

struct simdisk *simdisk_create(void) {
  struct simdisk *const d = sim_alloc(sizeof(*d));
  often_keep();
  (void)pthread_mutex_init(&d->mu, NULL);
  d->env = (struct env){.ops = &sim_ops, .priv = d, .native = false};
  d->root = node_create(d, true);
  d->space = UINT64_MAX;
  return d;
}

void simdisk_destroy(struct simdisk *d) {
  if (!d) return;
  while (d->nodes) {
    struct sim_node *const next = d->nodes->next;
    node_destroy(d->nodes);
    d->nodes = next;
  }
  for (size_t i = 0; i < d->nr_renames; i++) rename_free(&d->renames[i]);
  for (size_t i = 0; i < d->nr_fds; i++) free(d->fds[i].name);
  for (struct sim_held *h = d->held, *next; h; h = next) {
    next = h->next;
    free(h->dir.path);
    free(h);
  }
  free(d->cached);
  free(d->renames);
  free(d->fds);
  (void)pthread_mutex_destroy(&d->mu);
  free(d);
}

struct env *simdisk_env(struct simdisk *d) {
  return &d->env;
}

const struct env_dir *simdisk_dir(struct env *e, const char *path) {
  struct simdisk *const d = sim_enter(e);
  struct sim_node *const n = sim_find(d->root, path);
  struct sim_held *h = d->held;
  while (h && (h->dir.env != e || strcmp(h->dir.path, path) != 0 || d->fds[h->dir.fd - SIM_FD].node != n)) h = h->next;
  if (!h && n && n->is_dir) {
    h = sim_alloc(sizeof(*h));
    h->dir = (struct env_dir){.env = e,
                              .fd = sim_fd_new(d, n, ENV_READ | ENV_DIR, sim_base(path)),
                              .path = sim_strdup(path, strlen(path))};
    d->fds[h->dir.fd - SIM_FD].held = true;
    h->next = d->held;
    d->held = h;
  }
  (void)pthread_mutex_unlock(&d->mu);
  return h ? &h->dir : NULL;
}

// How unsynced changes fare: each as it comes, all kept, all dropped, or those up to some moment.
enum { SIM_EACH, SIM_ALL, SIM_NONE, SIM_PREFIX, SIM_FATES };

// The node as a crash leaves it, without its names.
static struct sim_node *node_crash(struct simdisk *to, const struct sim_node *n, uint64_t seed) {
  struct sim_node *const c = node_create(to, n->is_dir);
  c->special = n->special;
  uint64_t rng = seed + n->id * 0x9E3779B97F4A7C15ull;
  (void)rng_next(&rng);
  const uint64_t fate = rng_next(&rng) % (SIM_FATES + 2);  // most often SIM_EACH
  size_t up_to = fate == SIM_NONE ? 0 : n->nr_changes;
  if (fate == SIM_PREFIX && n->nr_changes) up_to = (size_t)(rng_next(&rng) % n->nr_changes);
  c->id = n->id;
  bytes_copy(&c->kept, &n->kept);
  for (size_t i = 0; i < up_to; i++) {
    const uint64_t dice = fate == SIM_ALL || fate == SIM_PREFIX ? 0 : rng_next(&rng) % 3;
    if (dice == 0) bytes_apply(&c->kept, &n->changes[i]);
    if (dice == 1) bytes_tear(&c->kept, &n->changes[i], &rng);
  }
  if (fate == SIM_PREFIX && up_to < n->nr_changes) bytes_tear(&c->kept, &n->changes[up_to], &rng);
  bytes_copy(&c->cur, &c->kept);
  return c;
}

void simdisk_slow(struct simdisk *d, bool on) {
  (void)pthread_mutex_lock(&d->mu);
  d->slow = on;
  d->clock = d->nr_cached = d->cap_cached = 0;
  free(d->cached);
  d->cached = NULL;
  (void)pthread_mutex_unlock(&d->mu);
}

uint64_t simdisk_waits(struct simdisk *d) {
  (void)pthread_mutex_lock(&d->mu);
  const uint64_t waits = d->clock;
  (void)pthread_mutex_unlock(&d->mu);
  return waits;
}

void simdisk_on_change(struct simdisk *d, void (*fn)(void *arg), void *arg) {
  (void)pthread_mutex_lock(&d->mu);
  d->on_change = fn;
  d->on_change_arg = arg;
  (void)pthread_mutex_unlock(&d->mu);
}

struct simdisk *simdisk_crash(const struct simdisk *d, uint64_t seed) {
  struct simdisk *const c = simdisk_create();
  node_destroy(c->root);
  c->nodes = c->root = NULL;
  for (struct sim_node *n = d->nodes; n; n = n->next) n->copy = node_crash(c, n, seed);
  c->root = d->root->copy;
  c->next_id = d->next_id;
  for (const struct sim_node *n = d->nodes; n; n = n->next) {
    for (size_t i = 0; i < n->kept_names.nr; i++) {
      const struct sim_entry *const it = &n->kept_names.entries[i];
      dir_add(&n->copy->kept_names, it->name, it->len, it->node->copy);
    }
  }
  uint64_t rng = seed ^ 0xD1B54A32D192ED03ull;
  const uint64_t fate = rng_next(&rng) % SIM_FATES;
  const size_t up_to = fate == SIM_NONE     ? 0
                       : fate == SIM_PREFIX ? (size_t)(rng_next(&rng) % (d->nr_renames + 1))
                                            : d->nr_renames;
  for (size_t i = 0; i < up_to; i++) {
    if (fate == SIM_EACH && (rng_next(&rng) & 1)) continue;
    struct sim_rename r = d->renames[i];
    if (r.from) r.from = r.from->copy;
    if (r.to) r.to = r.to->copy;
    if (r.node) r.node = r.node->copy;
    rename_apply(&r, true);
  }
  for (struct sim_node *n = c->nodes; n; n = n->next) {
    const struct sim_dir *const kept = &n->kept_names;
    for (size_t i = 0; i < kept->nr; i++)
      dir_add(&n->names, kept->entries[i].name, kept->entries[i].len, kept->entries[i].node);
  }
  sim_sweep(c);
  return c;
}

void simdisk_special(struct simdisk *d, const char *path, int errnum) {
  const char *name;
  size_t len;
  (void)pthread_mutex_lock(&d->mu);
  struct sim_node *const dir = sim_parent(d->root, path, &name, &len);
  struct sim_node *const n = node_create(d, false);
  n->special = errnum;
  dir_set(&dir->names, name, n);
  dir_set(&dir->kept_names, name, n);
  (void)pthread_mutex_unlock(&d->mu);
}

void simdisk_power_off(struct simdisk *d, uint64_t nr) {
  (void)pthread_mutex_lock(&d->mu);
  d->power_set = true;
  d->power = nr;
  (void)pthread_mutex_unlock(&d->mu);
}

void simdisk_power_on(struct simdisk *d) {
  (void)pthread_mutex_lock(&d->mu);
  d->power_set = d->off = false;
  (void)pthread_mutex_unlock(&d->mu);
}

bool simdisk_is_off(struct simdisk *d) {
  (void)pthread_mutex_lock(&d->mu);
  const bool off = d->off;
  (void)pthread_mutex_unlock(&d->mu);
  return off;
}

static uint64_t sim_number(struct simdisk *d, const uint64_t *field) {
  (void)pthread_mutex_lock(&d->mu);
  const uint64_t n = *field;
  (void)pthread_mutex_unlock(&d->mu);
  return n;
}

uint64_t simdisk_changes(struct simdisk *d) { return sim_number(d, &d->changes); }

void simdisk_fault(struct simdisk *d, enum simdisk_call call, uint64_t skip, uint64_t nr, int errnum) {
  (void)pthread_mutex_lock(&d->mu);
  d->faults[call].skip = skip;
  d->faults[call].nr = nr;
  d->faults[call].errnum = errnum;
  (void)pthread_mutex_unlock(&d->mu);
}

uint64_t simdisk_calls(struct simdisk *d, enum simdisk_call call) {
  (void)pthread_mutex_lock(&d->mu);
  const uint64_t nr = d->faults[call].calls;
  (void)pthread_mutex_unlock(&d->mu);
  return nr;
}

void simdisk_fault_name(struct simdisk *d, const char *prefix) {
  (void)pthread_mutex_lock(&d->mu);
  (void)snprintf(d->fault_name, sizeof(d->fault_name), "%s", prefix ? prefix : "");
  (void)pthread_mutex_unlock(&d->mu);
}

void simdisk_space(struct simdisk *d, uint64_t bytes) {
  (void)pthread_mutex_lock(&d->mu);
  d->space = bytes;
  (void)pthread_mutex_unlock(&d->mu);
}

uint64_t simdisk_used(struct simdisk *d) {
  (void)pthread_mutex_lock(&d->mu);
  const uint64_t used = sim_used(d);
  (void)pthread_mutex_unlock(&d->mu);
  return used;
}

uint32_t simdisk_open_files(struct simdisk *d) {
  uint32_t nr = 0;
  (void)pthread_mutex_lock(&d->mu);
  for (size_t i = 0; i < d->nr_fds; i++) nr += d->fds[i].node != NULL && !d->fds[i].held;
  (void)pthread_mutex_unlock(&d->mu);
  return nr;
}

void simdisk_no_allocate(struct simdisk *d, bool on) {
  (void)pthread_mutex_lock(&d->mu);
  d->no_allocate = on;
  (void)pthread_mutex_unlock(&d->mu);
}

void simdisk_no_punch(struct simdisk *d, bool on) {
  (void)pthread_mutex_lock(&d->mu);
  d->no_punch = on;
  (void)pthread_mutex_unlock(&d->mu);
}

void simdisk_no_direct(struct simdisk *d, bool on) {
  (void)pthread_mutex_lock(&d->mu);
  d->no_direct = on;
  (void)pthread_mutex_unlock(&d->mu);
}

uint64_t simdisk_refused(struct simdisk *d) { return sim_number(d, &d->refused); }

uint64_t simdisk_direct_read(struct simdisk *d) { return sim_number(d, &d->direct_read); }

uint64_t simdisk_direct(struct simdisk *d) { return sim_number(d, &d->direct); }

void simdisk_short_io(struct simdisk *d, uint64_t seed) {
  (void)pthread_mutex_lock(&d->mu);
  d->short_io = seed;
  (void)pthread_mutex_unlock(&d->mu);
}

int64_t simdisk_size(struct simdisk *d, const char *path) {
  (void)pthread_mutex_lock(&d->mu);
  const struct sim_node *const n = sim_find(d->root, path);
  const int64_t size = n && !n->is_dir ? (int64_t)n->cur.size : -1;
  (void)pthread_mutex_unlock(&d->mu);
  return size;
}

int64_t simdisk_room(struct simdisk *d, const char *path) {
  (void)pthread_mutex_lock(&d->mu);
  const struct sim_node *const n = sim_find(d->root, path);
  const int64_t room = n && !n->is_dir ? (int64_t)bytes_room(&n->cur) : -1;
  (void)pthread_mutex_unlock(&d->mu);
  return room;
}

bool simdisk_peek(struct simdisk *d, const char *path, uint64_t off, void *buf, size_t len) {
  (void)pthread_mutex_lock(&d->mu);
  const struct sim_node *const n = sim_find(d->root, path);
  const bool ok = n && !n->is_dir && off + len <= n->cur.size;
  if (ok) (void)bytes_read(&n->cur, off, buf, len);
  (void)pthread_mutex_unlock(&d->mu);
  return ok;
}

bool simdisk_poke(struct simdisk *d, const char *path, uint64_t off, const void *buf, size_t len) {
  (void)pthread_mutex_lock(&d->mu);
  struct sim_node *const n = sim_find(d->root, path);
  const bool ok = n && !n->is_dir && off + len <= n->cur.size;
  if (ok) {
    bytes_write(&n->cur, off, buf, len);
    bytes_write(&n->kept, off, buf, len);
  }
  (void)pthread_mutex_unlock(&d->mu);
  return ok;
}

bool simdisk_flip(struct simdisk *d, const char *path, uint64_t off, uint8_t mask) {
  uint8_t b;
  if (!simdisk_peek(d, path, off, &b, 1)) return false;
  b ^= mask;
  return simdisk_poke(d, path, off, &b, 1);
}

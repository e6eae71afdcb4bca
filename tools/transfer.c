// SPDX-License-Identifier: Apache-2.0
//
// Many records as text: import, dump and scan. text.h defines the form.
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/commands.h"
#include "tools/progress.h"

#define REPORT_RECORDS 1024u  // records between two reports of progress
#define SPACES_TOLD 8u        // names in the message of a dump

// ---- import

struct input {
  const char *path;
  FILE *file;
  uint64_t line;  // number of the last line read
};

static _Noreturn void fail_input(const struct input *in) { tool_end(TOOL_FAILED, "%s: %s", in->path, strerror(errno)); }

// The file's beginning, read ahead of its lines.
struct head {
  char bytes[TEXT_HEAD];
  size_t len, at;
};

// Skips a byte order mark. Refuses a file that holds no records as text, before a store is made for it.
static void check_kind(const struct input *in, struct head *h, const struct options *o) {
  const bool whole = h->len < sizeof(h->bytes);
  enum text_kind k = text_kind(h->bytes, h->len, whole, &o->format);
  if (k == TEXT_MARKED) {
    h->at = TEXT_MARK_LEN;
    k = text_kind(h->bytes + h->at, h->len - h->at, whole, &o->format);
  }
  if (k == TEXT_PLAIN) return;
  tool_end(TOOL_FAILED,
           "%s: is %s, and not a record a line; %s; or take every line as it stands: remixdb import --raw DIR FILE",
           in->path, text_kind_name(k), text_kind_advice(k));
}

// Opens the input and reads its beginning: an unreadable input, such as a directory, must not make a store.
static void input_open(struct input *in, struct head *h, const struct options *o) {
  in->file = strcmp(in->path, "-") == 0 ? stdin : fopen(in->path, "rb");
  if (in->file == NULL) fail_input(in);
  h->len = fread(h->bytes, 1, sizeof(h->bytes), in->file);
  if (ferror(in->file)) fail_input(in);
  check_kind(in, h, o);
}

// Reads the next line, without its newline: from the rest of the head, then from the file. False at the end.
static bool input_line(struct input *in, struct head *h, char **line, size_t *cap, size_t *len_out) {
  const size_t left = h->len - h->at;
  const char *const begin = h->bytes + h->at, *const newline = left ? memchr(begin, '\n', left) : NULL;
  const size_t taken = newline ? (size_t)(newline - begin) : left;
  ssize_t got = 0;
  char *more = NULL;
  size_t more_cap = 0;
  h->at += taken + (newline != NULL);
  if (!newline) {
    errno = 0;
    got = getline(left ? &more : line, left ? &more_cap : cap, in->file);
    if (got < 0 && (ferror(in->file) || !feof(in->file))) fail_input(in);
    if (got < 0 && left == 0) return false;
    if (got < 0) got = 0;
  }
  if (left) {  // only lines of the head are pieced together
    if (taken + (size_t)got + 1 > *cap) {
      *cap = taken + (size_t)got + 1;
      char *const grown = realloc(*line, *cap);
      if (grown == NULL) fail_input(in);
      *line = grown;
    }
    memcpy(*line, begin, taken);
    if (got > 0) memcpy(*line + taken, more, (size_t)got);
  }
  free(more);
  size_t len = (left ? taken : 0) + (size_t)got;
  if (!newline && len > 0 && (*line)[len - 1] == '\n') len--;  // the last line may come without one
  in->line++;
  *len_out = len;
  return true;
}

// Ends the program; the earlier lines stay in the store, because closing it syncs them.
static _Noreturn void end_at_line(const struct store *s, enum tool_exit status) {
  store_close(s);
  exit(status);
}

static void put_line(const struct store *s, const struct input *in, char *line, size_t len, const struct options *o) {
  struct text_record r;
  const char *const wrong = text_parse(line, len, &o->format, &r);
  if (wrong != NULL) {
    progress_end();
    fprintf(stderr, "%s: %s: line %" PRIu64 ": %s, or give remixdb import --raw; the lines before it are imported\n",
            tool_name(), in->path, in->line, wrong);
    end_at_line(s, TOOL_FAILED);
  }
  if (r.klen <= UINT32_MAX && r.vlen <= UINT32_MAX &&
      remixdb_put(s->ref, r.key, (uint32_t)r.klen, r.value, (uint32_t)r.vlen))
    return;
  progress_end();
  fprintf(stderr, "%s: %s: line %" PRIu64 " has %zu bytes; the lines before it are imported\n", tool_name(), in->path,
          in->line, len);
  end_at_line(s, r.klen <= UINT32_MAX && r.vlen <= UINT32_MAX ? tool_complain(s->dir, "put") : TOOL_FAILED);
}

int command_import(char **arg, const struct options *o) {
  struct input in = {.path = arg[1]};
  static struct head h;
  input_open(&in, &h, o);
  const struct store s = store_open(arg[0], STORE_MAKE, o, NULL);
  char *line = NULL;
  size_t cap = 0, len;
  while (input_line(&in, &h, &line, &cap, &len)) {
    put_line(&s, &in, line, len, o);
    if (in.line % REPORT_RECORDS == 0) progress_show(NULL, "lines imported", in.line, 0);
  }
  free(line);
  if (in.file != stdin) fclose(in.file);
  if (!remixdb_sync(s.ref)) tool_fail_call(s.dir, "sync");
  uint64_t keys;
  const bool counted = remixdb_count(s.ref, &(struct remixdb_range){0}, &keys, NULL);  // estimates
  store_close(&s);
  progress_end();
  printf("%s: %" PRIu64 " line%s imported", in.path, in.line, tool_s(in.line));
  if (counted) printf("; %s holds about %" PRIu64 " key%s", s.dir, keys, tool_s(keys));
  putchar('\n');
  return TOOL_DONE;
}

// ---- dump and scan

// Records on their way to standard output. The first ones wait until it is known how they look to an import.
struct output {
  const struct options *o;
  FILE *to;
  FILE *held;  // the first records; NULL: they are written
  char *text;
  size_t text_len;
  uint64_t records;
};

static _Noreturn void fail_output(void) { tool_end(TOOL_FAILED, "standard output: %s", strerror(errno)); }

static void output_begin(struct output *out, const struct options *o) {
  *out = (struct output){.o = o, .to = stdout};
  out->held = open_memstream(&out->text, &out->text_len);
  if (out->held == NULL) fail_output();
}

// Writes the held records. An import would refuse output that looks like another kind of file; an escape for its first
// byte prevents that.
static void output_release(struct output *out) {
  if (out->held == NULL) return;
  if (fclose(out->held) != 0) fail_output();
  out->held = NULL;
  const bool whole = out->text_len < TEXT_HEAD;
  const size_t head = whole ? out->text_len : TEXT_HEAD;
  const bool alike = text_kind(out->text, head, whole, &out->o->format) != TEXT_PLAIN;
  if (alike && fprintf(stdout, "\\x%02x", (unsigned char)out->text[0]) < 0) fail_output();
  const size_t from = alike ? 1 : 0;
  if (fwrite(out->text + from, 1, out->text_len - from, stdout) != out->text_len - from) fail_output();
  free(out->text);
}

static void output_record(struct output *out, const void *key, size_t klen, const void *value, size_t vlen) {
  if (!text_write(out->held ? out->held : stdout, key, klen, value, vlen, &out->o->format)) fail_output();
  if (out->held && (fflush(out->held) != 0)) fail_output();
  if (out->held && out->text_len >= TEXT_HEAD) output_release(out);
  if (++out->records % REPORT_RECORDS == 0) progress_show(NULL, "records written", out->records, 0);
}

// ---- a range: from <= key < to, with the prefix

static int compare(const void *a, size_t alen, const void *b, size_t blen) {
  const int c = memcmp(a, b, alen < blen ? alen : blen);
  return c ? c : alen < blen ? -1 : alen > blen;
}

static bool has_prefix(const struct options *o, const void *key, size_t klen) {
  return o->prefix == NULL || (klen >= o->prefix_len && memcmp(key, o->prefix, o->prefix_len) == 0);
}

// The order of a key against the range: below it, in it, above it.
static int range_order(const struct options *o, const void *key, size_t klen) {
  if (o->from && compare(key, klen, o->from, o->from_len) < 0) return -1;
  if (o->to && compare(key, klen, o->to, o->to_len) >= 0) return 1;
  return has_prefix(o, key, klen) ? 0 : compare(key, klen, o->prefix, o->prefix_len);
}

// Moves to the first record that may be in the range.
static void seek_first(struct xdb_iter *it, const struct options *o) {
  const bool by_prefix = o->prefix && (o->from == NULL || compare(o->prefix, o->prefix_len, o->from, o->from_len) > 0);
  if (by_prefix) remixdb_iter_seek(it, o->prefix, (uint32_t)o->prefix_len);
  else if (o->from) remixdb_iter_seek(it, o->from, (uint32_t)o->from_len);
  else remixdb_iter_seek(it, NULL, 0);
}

// Makes the smallest string that is greater than all strings with the prefix and returns its length; 0: there is none.
// `next` has room for the prefix.
static size_t after_prefix(char *next, const char *prefix, size_t len) {
  while (len > 0 && (unsigned char)prefix[len - 1] == 0xff) len--;
  if (len == 0) return 0;
  memcpy(next, prefix, len);
  next[len - 1] = (char)((unsigned char)next[len - 1] + 1);
  return len;
}

// Moves to the last record that may be in the range: the last one below its end.
static void seek_last(struct xdb_iter *it, const struct options *o) {
  char *const next = o->prefix ? malloc(o->prefix_len + 1) : NULL;
  if (o->prefix && next == NULL) tool_end(TOOL_FAILED, "out of memory");
  const char *end = o->to;
  size_t end_len = o->to_len;
  const size_t next_len = o->prefix ? after_prefix(next, o->prefix, o->prefix_len) : 0;
  if (next_len > 0 && (end == NULL || compare(next, next_len, end, end_len) < 0)) {
    end = next;
    end_len = next_len;
  }
  if (end == NULL) remixdb_iter_seek_last(it);
  else remixdb_iter_seek_for_prev(it, end, (uint32_t)end_len);
  uint32_t klen;
  const void *key = remixdb_iter_valid(it) ? remixdb_iter_key(it, &klen) : NULL;
  if (key && end && compare(key, klen, end, end_len) == 0) remixdb_iter_prev(it);
  free(next);
}

// Ends the program with the failure of a call; the records before it are written.
static _Noreturn void fail_records(struct output *out, const struct store *s, const char *call) {
  const enum tool_exit status = tool_complain(s->dir, call);
  output_release(out);
  tool_flush();
  exit(status);
}

static void write_records(const struct store *s, const struct options *o) {
  struct output out;
  struct remixdb_iter_opts opts;
  remixdb_iter_opts_init(&opts, sizeof(opts));
  opts.keys_only = o->keys_only;
  struct xdb_iter *const it = remixdb_iter_create_opts(s->ref, &opts);
  if (it == NULL) tool_fail_call(s->dir, "iter_create");
  output_begin(&out, o);
  if (o->reverse) seek_last(it, o);
  else seek_first(it, o);
  while (remixdb_iter_valid(it) && (o->limit == 0 || out.records < o->limit)) {
    uint32_t klen, vlen = 0;
    const void *const key = remixdb_iter_key(it, &klen);
    if (key == NULL) fail_records(&out, s, "read a key");
    if (range_order(o, key, klen) != 0) break;
    const void *const value = o->keys_only ? "" : remixdb_iter_value(it, &vlen);
    if (value == NULL) fail_records(&out, s, "read a value");
    output_record(&out, key, klen, value, vlen);
    if (o->reverse) remixdb_iter_prev(it);
    else remixdb_iter_skip1(it);
  }
  if (remixdb_iter_status(it) != REMIXDB_OK) fail_records(&out, s, "iterate");
  remixdb_iter_destroy(it);
  output_release(&out);
}

int command_scan(char **arg, const struct options *o) {
  const struct store s = store_open(arg[0], STORE_READ, o, NULL);
  write_records(&s, o);
  store_close(&s);
  progress_end();
  return TOOL_DONE;
}

// Tells that the records of named key spaces are not in the dump.
static void tell_spaces(const struct store *s, const struct options *o) {
  char *const names = remixdb_space_list(s->xdb);
  if (names == NULL) tool_fail_call(s->dir, "space_list");
  unsigned nr = 0;
  for (const char *p = names; *p; p++) nr += *p == '\n';
  if (nr > 0)
    fprintf(stderr, "%s: %s: %u key space%s not in the dump:", tool_name(), s->dir, nr, nr == 1 ? " is" : "s are");
  unsigned told = 0;
  for (const char *p = names, *end; told < nr && told < SPACES_TOLD; told++, p = end + 1) {
    end = strchr(p, '\n');
    fputs(told ? ", \"" : " \"", stderr);
    (void)text_write_bytes(stderr, p, (size_t)(end - p), &o->format);
    putc('"', stderr);
  }
  if (nr > 0)
    fprintf(stderr, "%s; --space=NAME dumps one, and \"%s checkpoint %s TO\" copies all\n", nr > told ? ", ..." : "",
            tool_called(), s->dir);
  remixdb_free(names);
}

// Tells whether some record of the ref expires. Reads all keys, if a record of the store does.
static bool any_expires(const struct store *s) {
  uint64_t may, ms = 0;
  struct remixdb_iter_opts opts;
  if (!remixdb_figure(s->xdb, "expires", &may)) tool_fail_call(s->dir, "figure");
  if (!may) return false;
  remixdb_iter_opts_init(&opts, sizeof(opts));
  opts.keys_only = true;
  struct xdb_iter *const it = remixdb_iter_create_opts(s->ref, &opts);
  if (it == NULL) tool_fail_call(s->dir, "iter_create");
  for (remixdb_iter_seek(it, NULL, 0); ms == 0 && remixdb_iter_valid(it); remixdb_iter_skip1(it)) {
    uint32_t klen;
    const void *const key = remixdb_iter_key(it, &klen);
    if (key == NULL) tool_fail_call(s->dir, "read a key");
    if (!remixdb_expiry(s->ref, key, klen, &ms) && remixdb_errcode() != REMIXDB_NOTFOUND)
      tool_fail_call(s->dir, "expiry");  // not found: it has expired meanwhile
  }
  if (remixdb_iter_status(it) != REMIXDB_OK) tool_fail_call(s->dir, "iterate");
  remixdb_iter_destroy(it);
  return ms != 0;
}

int command_dump(char **arg, const struct options *o) {
  const struct store s = store_open(arg[0], STORE_READ, o, NULL);
  write_records(&s, o);
  progress_end();
  tool_flush();
  if (o->space == NULL) tell_spaces(&s, o);
  if (any_expires(&s))
    fprintf(stderr,
            "%s: %s: some records expire, and the dump does not have their times; \"%s checkpoint %s TO\" copies "
            "all\n",
            tool_name(), s.dir, tool_called(), s.dir);
  store_close(&s);
  return TOOL_DONE;
}

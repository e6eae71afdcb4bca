// SPDX-License-Identifier: Apache-2.0
#include "tools/commands.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/metrics.h"
#include "tools/progress.h"

// ---- a store in use

static bool all_messages;            // -v
static const char *wanted_messages;  // messages with this prefix

// The store's logger. The library calls it from any of its threads.
static void message(void *priv, const char *line) {
  (void)priv;
  if (all_messages || (wanted_messages && strncmp(line, wanted_messages, strlen(wanted_messages)) == 0))
    progress_say(line);
}

// STORE_READ shares the lock with other readers. The store reads and checks its log into memory, neither cuts nor
// continues it, and starts no worker. Every command that does not write uses it.
struct store store_open(const char *dir, enum store_how how, const struct options *o, const char *messages) {
  struct store s = {.dir = dir};
  struct remixdb_opts opts;
  remixdb_opts_init(&opts, sizeof(opts));
  opts.read_only = how == STORE_READ;
  opts.create = how == STORE_MAKE;
  opts.logger = message;
  all_messages = o->verbose;
  wanted_messages = messages;
  s.xdb = remixdb_open_opts(dir, &opts);
  if (s.xdb == NULL) tool_fail_call(dir, "open");
  if (o->space && (s.space = remixdb_space_open(s.xdb, o->space, how == STORE_MAKE)) == NULL)
    tool_fail_call(dir, "space_open");
  s.ref = s.space ? remixdb_space_ref(s.space) : remixdb_ref(s.xdb);
  if (s.ref == NULL) tool_fail_call(dir, "ref");
  return s;
}

void store_close(const struct store *s) {
  remixdb_unref(s->ref);
  remixdb_space_close(s->space);
  remixdb_close(s->xdb);
  if (remixdb_errcode() != REMIXDB_OK) tool_fail_call(s->dir, "close");
}

static unsigned long long figure(const struct store *s, const char *name) {
  uint64_t n;
  if (!remixdb_figure(s->xdb, name, &n)) tool_fail_call(s->dir, name);
  return n;
}

// ---- one record

// Replaces the escapes of an argument in place and returns its length, at most UINT32_MAX.
static uint32_t argument(char *arg, const char *what, const struct options *o) {
  size_t len = strlen(arg);
  const char *const wrong = o->escapes ? text_unescape(arg, len, &len) : NULL;
  if (wrong != NULL) tool_end(TOOL_USAGE, "%s: %s", what, wrong);
  if (len > UINT32_MAX) tool_end(TOOL_USAGE, "%s is too long", what);
  return (uint32_t)len;
}

static const struct text_format text = TEXT_FORMAT_DEFAULT;

// Prints a key of a message, quoted.
static void print_key(FILE *out, const char *key, uint32_t klen) {
  putc('"', out);
  text_write_bytes(out, key, klen, &text);
  putc('"', out);
}

// The key's value, of any size; the caller frees it. NULL: no such key. Other failures end the program.
static char *get_value(const struct store *s, const char *key, uint32_t klen, uint32_t *vlen_out) {
  for (uint32_t cap = REMIXDB_KV_MAX;; cap = *vlen_out) {
    char *const value = malloc(cap);
    if (value == NULL) tool_end(TOOL_FAILED, "out of memory");
    if (remixdb_getn(s->ref, key, klen, value, cap, vlen_out)) return value;
    free(value);
    if (remixdb_errcode() == REMIXDB_NOTFOUND) return NULL;
    if (remixdb_errcode() != REMIXDB_TOOBIG || *vlen_out <= cap) tool_fail_call(s->dir, "get");
  }
}

static int command_get(char **arg, const struct options *o) {
  const struct store s = store_open(arg[0], STORE_READ, o, NULL);
  const uint32_t klen = argument(arg[1], "KEY", o);
  uint32_t vlen = 0;
  char *const value = get_value(&s, arg[1], klen, &vlen);
  const bool found = value != NULL;
  if (!found) {
    fprintf(stderr, "%s: %s: there is no key ", tool_name(), s.dir);
    print_key(stderr, arg[1], klen);
    putc('\n', stderr);
  } else {
    if (o->escapes) text_write_bytes(stdout, value, vlen, &text);
    else fwrite(value, 1, vlen, stdout);
    if (isatty(STDOUT_FILENO) == 1) putchar('\n');  // else the output is the value, byte for byte
  }
  store_close(&s);
  free(value);
  return found ? TOOL_DONE : TOOL_NO_KEY;
}

// Reads all of standard input. The caller frees the value.
static char *read_value(uint32_t *len_out) {
  size_t len = 0, cap = 1 << 16;
  char *value = malloc(cap);
  while (value != NULL) {
    len += fread(value + len, 1, cap - len, stdin);
    if (len < cap || cap > UINT32_MAX / 2) break;
    char *const grown = realloc(value, cap *= 2);
    if (grown == NULL) free(value);
    value = grown;
  }
  if (value == NULL) tool_end(TOOL_FAILED, "out of memory");
  if (ferror(stdin)) tool_end(TOOL_FAILED, "standard input: %s", strerror(errno));
  if (!feof(stdin)) tool_end(TOOL_FAILED, "standard input: the value is too long");
  *len_out = (uint32_t)len;
  return value;
}

static int command_put(char **arg, const struct options *o) {
  const uint32_t klen = argument(arg[1], "KEY", o);
  uint32_t vlen = arg[2] ? argument(arg[2], "VALUE", o) : 0;
  char *const read = arg[2] ? NULL : read_value(&vlen);
  const struct store s = store_open(arg[0], STORE_MAKE, o, NULL);
  if (!remixdb_put(s.ref, arg[1], klen, read ? read : arg[2], vlen)) tool_fail_call(s.dir, "put");
  if (!remixdb_sync(s.ref)) tool_fail_call(s.dir, "sync");
  store_close(&s);
  free(read);
  printf("%s: ", s.dir);
  print_key(stdout, arg[1], klen);
  printf(" is put, and on disk\n");
  return TOOL_DONE;
}

static int command_del(char **arg, const struct options *o) {
  const struct store s = store_open(arg[0], STORE_WRITE, o, NULL);
  const uint32_t klen = argument(arg[1], "KEY", o);
  const bool there = remixdb_probe(s.ref, arg[1], klen);
  if (!there && remixdb_errcode() != REMIXDB_NOTFOUND) tool_fail_call(s.dir, "probe");
  if (there && !remixdb_del(s.ref, arg[1], klen)) tool_fail_call(s.dir, "del");
  if (there && !remixdb_sync(s.ref)) tool_fail_call(s.dir, "sync");
  store_close(&s);
  printf(there ? "%s: " : "%s: there is no key ", s.dir);
  print_key(stdout, arg[1], klen);
  printf(there ? " is deleted, and that is on disk\n" : ", so nothing was deleted\n");
  return TOOL_DONE;
}

// ---- looking after a store

static int command_metrics(char **arg, const struct options *o) {
  const struct store s = store_open(arg[0], STORE_READ, o, NULL);
  metrics_print(stdout, s.xdb, s.dir);
  store_close(&s);
  return TOOL_DONE;
}

static int command_stats(char **arg, const struct options *o) {
  const struct store s = store_open(arg[0], STORE_READ, o, NULL);
  char *const json = remixdb_stats(s.xdb);
  if (json == NULL) tool_fail_call(s.dir, "stats");
  fputs(json, stdout);
  remixdb_free(json);
  store_close(&s);
  return TOOL_DONE;
}

static int command_verify(char **arg, const struct options *o) {
  const struct store s = store_open(arg[0], STORE_READ, o, "verify: ");  // opening it has checked the log
  remixdb_progress(s.ref, progress_show, NULL);
  const bool whole = remixdb_verify(s.ref);
  progress_end();
  if (!whole) tool_fail_call(s.dir, "verify");
  store_close(&s);
  printf("%s: everything was read, and nothing is damaged\n", s.dir);
  return TOOL_DONE;
}

static int command_checkpoint(char **arg, const struct options *o) {
  struct stat of, to;
  if (stat(arg[0], &of) == 0 && stat(arg[1], &to) == 0 && of.st_dev == to.st_dev && of.st_ino == to.st_ino) {
    tool_end(TOOL_FAILED, "%s is the store itself; another directory is needed", arg[1]);
  }
  const struct store s = store_open(arg[0], STORE_READ, o, NULL);
  remixdb_progress(s.ref, progress_show, NULL);
  if (!remixdb_checkpoint(s.ref, arg[1])) tool_fail_call(s.dir, "checkpoint");
  progress_end();
  store_close(&s);
  printf("%s: %s is a store that holds the same\n", s.dir, arg[1]);
  return TOOL_DONE;
}

static int command_compact(char **arg, const struct options *o) {
  const struct store s = store_open(arg[0], STORE_WRITE, o, NULL);
  const unsigned long long tables = figure(&s, "tables"), bytes = figure(&s, "disk.table_bytes"),
                           keys = figure(&s, "memtable.active_keys");
  remixdb_progress(s.ref, progress_show, NULL);
  if (!remixdb_compact(s.ref)) tool_fail_call(s.dir, "compact");
  progress_end();
  printf("%s: compacted: tables %llu -> %llu, their bytes %llu -> %llu, keys in memory %llu -> %llu\n", s.dir, tables,
         figure(&s, "tables"), bytes, figure(&s, "disk.table_bytes"), keys, figure(&s, "memtable.active_keys"));
  store_close(&s);
  return TOOL_DONE;
}

static int command_destroy(char **arg, const struct options *o) {
  (void)o;
  if (!remixdb_destroy(arg[0])) {
    if (remixdb_errcode() == REMIXDB_NOTFOUND) tool_end(TOOL_FAILED, "%s: there is no store", arg[0]);
    tool_fail_call(arg[0], "destroy");
  }
  printf("%s: the store is destroyed\n", arg[0]);
  return TOOL_DONE;
}

// ---- repair

// The bytes on disk of a directory's files. 0: no such directory.
static uint64_t directory_bytes(const char *dir) {
  DIR *const d = opendir(dir);
  uint64_t bytes = 0;
  for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
    struct stat st;
    if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
      bytes += (uint64_t)st.st_blocks * 512;
  }
  if (d != NULL) closedir(d);
  return bytes;
}

// Watches a repair, which is one call without a ref: compares the size of the new files with that of the old ones.
struct watch {
  const char *dir;
  pthread_mutex_t lock;
  pthread_cond_t ended_changed;
  bool ended;
};

static void *watch_main(void *arg) {
  struct watch *const w = arg;
  char written[PATH_MAX];
  snprintf(written, sizeof(written), "%s/repair.new", w->dir);
  pthread_mutex_lock(&w->lock);
  while (!w->ended) {
    progress_show(NULL, "repair", directory_bytes(written), directory_bytes(w->dir));
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&w->ended_changed, &w->lock, &until);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

static bool repair_watched(const char *dir) {
  struct watch w = {.dir = dir, .lock = PTHREAD_MUTEX_INITIALIZER, .ended_changed = PTHREAD_COND_INITIALIZER};
  pthread_t thread;
  const bool watched = pthread_create(&thread, NULL, watch_main, &w) == 0;  // else the repair shows no progress
  const bool repaired = remixdb_repair(dir);
  pthread_mutex_lock(&w.lock);
  w.ended = true;
  pthread_cond_signal(&w.ended_changed);
  pthread_mutex_unlock(&w.lock);
  if (watched) pthread_join(thread, NULL);
  progress_end();
  return repaired;
}

// The last line of a repair's report, its sum. The caller frees it; NULL: there is no such file, or it has no line.
// print: all lines go to standard error.
static char *report_sum(const char *path, bool print) {
  FILE *const in = fopen(path, "r");
  char *line = NULL, *last = NULL;
  size_t cap = 0, last_cap = 0;
  while (in != NULL && getline(&line, &cap, in) >= 0) {
    line[strcspn(line, "\n")] = '\0';
    if (print) progress_say(line);
    // The call that finds the end may write to its buffer, too.
    char *const buf = last;
    const size_t buf_cap = last_cap;
    last = line;
    last_cap = cap;
    line = buf;
    cap = buf_cap;
  }
  if (in != NULL) fclose(in);
  free(line);
  return last;
}

// The directory beside the store's files where the next repair puts the old files aside.
static void lost_name(char *path, size_t cap, const char *dir) {
  unsigned nr = 0;
  do snprintf(path, cap, "%s/lost.%u", dir, ++nr);
  while (access(path, F_OK) == 0);
}

static int command_repair(char **arg, const struct options *o) {
  static char lost[PATH_MAX], report[sizeof(lost) + 16], told[1024];
  const char *const dir = arg[0];
  lost_name(lost, sizeof(lost), dir);
  if (!repair_watched(dir)) {
    if (remixdb_errcode() == REMIXDB_NOTFOUND) tool_end(TOOL_FAILED, "%s: there is no store", dir);
    tool_fail_call(dir, "repair");
  }
  snprintf(told, sizeof(told), "%s", remixdb_errmsg());  // the losses
  snprintf(report, sizeof(report), "%s/REPORT", lost);
  char *const line = report_sum(report, o->verbose);
  if (line != NULL) printf("%s: repaired; %s. %s has what was there, and a REPORT of what was lost\n", dir, line, lost);
  else
    printf("%s: a repair is ended%s; the newest lost.* has what was there, and a REPORT of what was lost\n", dir,
           told[0] == '\0' ? "; nothing is lost" : "");  // an interrupted one that had come further
  free(line);
  if (told[0] == '\0') return TOOL_DONE;
  tool_flush();
  fprintf(stderr, "%s: %s\n", tool_name(), told);
  return TOOL_DAMAGED;
}

// ---- options

enum option {
  VERBOSE = 1,
  ESCAPES = 2,
  SEPARATOR = 4,
  RAW = 8,
  ASCII = 16,
  KEYS = 32,
  REVERSE = 64,
  FROM = 128,
  TO = 256,
  PREFIX = 512,
  LIMIT = 1024,
  SPACE = 2048
};

static const struct option_name {
  enum option id;
  char letter;
  const char *name, *value, *help;
} option_names[] = {
    {SEPARATOR, 's', "separator", "BYTE",
     "the byte between key and value, a tab if not given; an escape such as \\x1f is fine"},
    {RAW, 'r', "raw", NULL, "no escapes: every line as it stands"},
    {ASCII, 'a', "ascii", NULL, "write an escape for every byte that is no printable ASCII character"},
    {FROM, 'f', "from", "KEY", "begin with this key, or with the next larger key"},
    {TO, 't', "to", "KEY", "end before this key"},
    {PREFIX, 'p', "prefix", "KEY", "only keys that begin with KEY"},
    {LIMIT, 'n', "limit", "N", "at most N records"},
    {KEYS, 'k', "keys", NULL, "keys alone"},
    {REVERSE, 'R', "reverse", NULL, "from the last key to the first"},
    {ESCAPES, 'e', "escapes", NULL,
     "KEY and VALUE are given with the escapes \\t \\n \\r \\\\ \\xHH, and a value is printed with them"},
    {SPACE, 'S', "space", "NAME", "in the key space NAME; put and import make it when there is none"},
    {VERBOSE, 'v', "verbose", NULL,
     "print the library's messages, and progress also when standard error is no terminal"},
};
#define NR_OPTIONS (sizeof(option_names) / sizeof(option_names[0]))

static int command_help(char **arg, const struct options *o);

#define RECORDS (SEPARATOR | RAW | ASCII)
static const struct command {
  const char *name, *args;
  int min_args, max_args;
  int literal_from;  // arguments from this one on are never options, also when they begin with "-"
  unsigned options;
  const char *help;  // one line
  const char *more;  // further lines
  int (*run)(char **arg, const struct options *o);
} commands[] = {
    {"get", "DIR KEY", 2, 2, 1, ESCAPES | SPACE | VERBOSE, "print the value of KEY",
     "A newline follows on a terminal only. Without such a key the exit status is 3.\n", command_get},
    {"put", "DIR KEY [VALUE]", 2, 3, 1, ESCAPES | SPACE | VERBOSE, "set it; makes the store when there is none",
     "Without VALUE it is read from standard input, to its end.\n", command_put},
    {"del", "DIR KEY", 2, 2, 1, ESCAPES | SPACE | VERBOSE, "delete it", "A key that is not there is no error.\n",
     command_del},
    {"scan", "DIR", 1, 1, 9, RECORDS | FROM | TO | PREFIX | LIMIT | KEYS | REVERSE | SPACE | VERBOSE,
     "print the records of a range, in order",
     "The keys of options are given with escapes (but not with --raw). The form of the records is that of dump.\n",
     command_scan},
    {"dump", "DIR", 1, 1, 9, RECORDS | SPACE | VERBOSE, "print every record, in order",
     "A record is a line: the key, a tab, the value; a key with an empty value is a line without a tab. Escapes: \\n "
     "\\r \\\\ everywhere, \\t in a key.\n"
     "import makes the same records of it, whatever bytes they hold. Key spaces and times of expiry are not in it, "
     "and a message says so; checkpoint copies all.\n",
     command_dump},
    {"import", "DIR FILE", 2, 2, 9, SEPARATOR | RAW | SPACE | VERBOSE,
     "put every line of FILE (- is standard input) into the store; makes it when there is none",
     "A line is a record: the key up to the first tab, then the value. A line without a tab is a key with an empty "
     "value. Escapes: \\t \\n \\r \\\\ \\xHH.\n"
     "The last of several lines with the same key counts. Compressed files, JSON and CSV are refused.\n",
     command_import},
    {"stats", "DIR", 1, 1, 9, VERBOSE, "print the store's figures, as JSON", "", command_stats},
    {"metrics", "DIR", 1, 1, 9, VERBOSE, "print the store's figures, as OpenMetrics text", "", command_metrics},
    {"verify", "DIR", 1, 1, 9, VERBOSE, "read everything, and check it",
     "Names every file that is damaged. The exit status is then 4.\n", command_verify},
    {"checkpoint", "DIR TO", 2, 2, 9, VERBOSE,
     "make TO a store that holds the same; shares files with DIR where it can", "", command_checkpoint},
    {"compact", "DIR", 1, 1, 9, VERBOSE,
     "bring everything into the fewest tables, without deleted and overwritten records", "", command_compact},
    {"repair", "DIR", 1, 1, 9, VERBOSE, "make a store of the readable part of a damaged one",
     "The old files are put aside in DIR/lost.N, with a REPORT of the losses, which -v prints. The exit status is "
     "4 when something is lost.\n",
     command_repair},
    {"destroy", "DIR", 1, 1, 9, 0, "remove the store: its own files, and DIR when nothing else is in it",
     "It asks no question.\n", command_destroy},
    {"help", "[COMMAND]", 0, 1, 9, 0, "tell about a command", "", command_help},
};
#define NR_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct command *command_find(const char *name) {
  for (size_t i = 0; i < NR_COMMANDS; i++)
    if (strcmp(commands[i].name, name) == 0) return &commands[i];
  return NULL;
}

void commands_list(FILE *out, const char *const *only) {
  for (size_t i = 0; i < NR_COMMANDS; i++) {
    bool listed = only == NULL;
    for (size_t k = 0; !listed && only[k] != NULL; k++) listed = strcmp(only[k], commands[i].name) == 0;
    if (listed)
      fprintf(out, "       %s %-10s %-15s  %s\n", tool_called(), commands[i].name, commands[i].args, commands[i].help);
  }
}

static void usage(FILE *out) {
  fprintf(out, "usage: %s COMMAND [OPTIONS] ARGUMENTS; the commands are\n\n", tool_called());
  commands_list(out, NULL);
  fprintf(out, "\n%s COMMAND --help tells more, and the options. %s --version prints the version.\n", tool_called(),
          tool_called());
  fprintf(out, "Exit status: 0 done, 1 failed, 2 wrong arguments, 3 no such key, 4 a file of the store is damaged, or "
               "records are lost.\n");
}

static void usage_of(FILE *out, const struct command *c) {
  fprintf(out, "usage: %s %s %s%s\n%s\n%s", tool_called(), c->name, c->options ? "[OPTIONS] " : "", c->args, c->help,
          c->more);
  for (size_t i = 0; i < NR_OPTIONS; i++) {
    const struct option_name *const n = &option_names[i];
    if (!(c->options & n->id)) continue;
    char form[40];
    snprintf(form, sizeof(form), "-%c, --%s%s%s", n->letter, n->name, n->value ? "=" : "", n->value ? n->value : "");
    fprintf(out, "  %-22s %s\n", form, n->help);
  }
}

static int command_help(char **arg, const struct options *o) {
  (void)o;
  const struct command *const c = arg[0] ? command_find(arg[0]) : NULL;
  if (arg[0] && c == NULL) tool_end(TOOL_USAGE, "there is no command \"%s\"", arg[0]);
  if (c) usage_of(stdout, c);
  else usage(stdout);
  return TOOL_DONE;
}

static const struct option_name *option_find(char *arg, char **value_out) {
  *value_out = NULL;
  for (size_t i = 0; i < NR_OPTIONS; i++) {
    const struct option_name *const n = &option_names[i];
    const size_t len = strlen(n->name);
    if (arg[1] == n->letter && (arg[2] == '\0' || n->value)) {
      if (arg[2] != '\0') *value_out = arg + 2;
      return n;
    }
    if (arg[1] != '-' || strncmp(arg + 2, n->name, len) != 0) continue;
    if (arg[2 + len] == '\0') return n;
    if (arg[2 + len] != '=' || !n->value) continue;
    *value_out = arg + 2 + len + 1;
    return n;
  }
  return NULL;
}

static unsigned long long number(const char *text_of_it) {
  char *end;
  errno = 0;
  const unsigned long long n = strtoull(text_of_it, &end, 10);
  if (text_of_it[0] < '0' || text_of_it[0] > '9' || *end != '\0' || errno != 0 || n == 0)
    tool_end(TOOL_USAGE, "--limit is \"%s\"; a number from 1 on is needed", text_of_it);
  return n;
}

static unsigned char separator(char *value) {
  size_t len;
  const char *const wrong = text_unescape(value, strlen(value), &len);
  if (wrong != NULL || len != 1 || value[0] == '\n' || value[0] == '\r' || value[0] == '\\')
    tool_end(TOOL_USAGE, "--separator needs one byte, which must not end a line or begin an escape");
  return (unsigned char)value[0];
}

static void option_set(struct options *o, enum option id, char *value) {
  switch (id) {
    case VERBOSE: o->verbose = true; break;
    case ESCAPES: o->escapes = true; break;
    case SEPARATOR: o->format.separator = separator(value); break;
    case RAW: o->format.raw = true; break;
    case ASCII: o->format.ascii = true; break;
    case KEYS: o->keys_only = true; break;
    case REVERSE: o->reverse = true; break;
    case FROM: o->from = value; break;
    case TO: o->to = value; break;
    case PREFIX: o->prefix = value; break;
    case LIMIT: o->limit = number(value); break;
    case SPACE: o->space = value; break;
  }
}

// Replaces the escapes of an option's key, once all options are known, and returns its length.
static size_t key_len(char *key, const char *name, const struct options *o) {
  if (key == NULL) return 0;
  size_t len = strlen(key);
  const char *const wrong = o->format.raw ? NULL : text_unescape(key, len, &len);
  if (wrong != NULL) tool_end(TOOL_USAGE, "--%s: %s", name, wrong);
  if (len > REMIXDB_KV_MAX) tool_end(TOOL_USAGE, "--%s is longer than a key can be", name);
  return len;
}

// Reads the options among the arguments of command c, from argv[2] on, and moves the others to `args`. Returns their
// number.
static int options_read(const struct command *c, int argc, char **argv, struct options *o, char **args) {
  int nr = 0;
  bool ended = false;
  for (int i = 2; i < argc; i++) {
    char *const arg = argv[i];
    if (ended || nr >= c->literal_from || arg[0] != '-' || arg[1] == '\0') {
      args[nr++] = arg;
      continue;
    }
    if (strcmp(arg, "--") == 0) {
      ended = true;
      continue;
    }
    char *value;
    const struct option_name *const n = option_find(arg, &value);
    if (n == NULL || !(c->options & n->id))
      tool_end(TOOL_USAGE, "%s: there is no flag \"%s\"; a directory of that name is given as ./%s", c->name, arg, arg);
    if (n->value && value == NULL) {
      if (++i == argc) tool_end(TOOL_USAGE, "%s: --%s needs %s", c->name, n->name, n->value);
      value = argv[i];
    }
    option_set(o, n->id, value);
  }
  o->from_len = key_len(o->from, "from", o);
  o->to_len = key_len(o->to, "to", o);
  o->prefix_len = key_len(o->prefix, "prefix", o);
  args[nr] = NULL;
  return nr;
}

static int command_run(const struct command *c, int argc, char **argv) {
  for (int i = 2; i < argc && i < 2 + c->literal_from; i++) {
    if (!tool_is_help(argv[i])) continue;
    usage_of(stdout, c);
    return TOOL_DONE;
  }
  struct options o = {.format = TEXT_FORMAT_DEFAULT};
  char **const args = calloc((size_t)argc + 1, sizeof(*args));
  if (args == NULL) tool_end(TOOL_FAILED, "out of memory");
  const int nr = options_read(c, argc, argv, &o, args);
  if (nr < c->min_args || nr > c->max_args) {
    usage_of(stderr, c);
    fprintf(stderr, "%s: %s needs %s, and nothing else\n", tool_name(), c->name, c->args);
    free(args);
    return TOOL_USAGE;
  }
  progress_begin(tool_name(), o.verbose);
  const int status = c->run(args, &o);
  free(args);
  return status;
}

int commands_run(int argc, char **argv) {
  if (argc == 2 && tool_is_version(argv[1])) tool_version();
  const struct command *const c = argc > 1 ? command_find(argv[1]) : NULL;
  int status = TOOL_USAGE;
  if (c != NULL) {
    status = command_run(c, argc, argv);
  } else if ((argc == 2 || argc == 3) && tool_is_help(argv[1])) {
    status = command_help(argv + 2, NULL);
  } else {
    usage(stderr);
    if (argc > 1) fprintf(stderr, "%s: there is no command \"%s\"\n", tool_name(), argv[1]);
  }
  tool_flush();
  return status;
}

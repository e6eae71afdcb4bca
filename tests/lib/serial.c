// SPDX-License-Identifier: Apache-2.0
#include "tests/lib/serial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX
#define INITIAL (UINT32_MAX - 1)  // the writer of the values before the history
#define CYCLES 300u               // so many nodes of a component look for the shortest cycle
#define BESIDE 16u                // records of a commit for each of its items, at most; their numbers follow each other

enum fate { NEVER, FINAL, REPLACED, TAKEN_BACK };

struct value {
  uint32_t op;  // its writer
  uint32_t at;  // its place in `versions`; NONE: it has none
  uint16_t key;
  uint8_t fate;  // enum fate
};

struct version {
  uint64_t order;
  uint32_t value, op;
  uint16_t key;
};

enum kind { WW, WR, RW, TIME, KINDS };
static const char *const kind_names[KINDS] = {"ww", "wr", "rw", "time"};

struct edge {
  uint32_t from, to;
  uint16_t key;
  uint8_t kind;  // enum kind
  bool gap;
};

struct serial {
  const struct serial_op *ops;
  const uint32_t *initial;
  uint32_t nr, nr_keys;
  uint64_t *order;  // by operation
  bool *counts;     // by operation: its writes took place
  struct value *values;
  uint32_t nr_values;
  struct version *versions;  // that have a place; by key and order
  uint32_t nr_versions;
  uint32_t *first;     // by key: its first one in `versions`; one more at the end
  struct edge *edges;  // by `from`, from serial_check on
  size_t nr_edges, cap_edges;
  size_t *out;  // by node: its first edge; one more at the end
  uint32_t nr_nodes;
};

static void *grown(void *p, size_t nr, size_t size) {
  void *const q = realloc(p, nr && size ? nr * size : 1);
  if (q) return q;
  (void)fprintf(stderr, "serial: no memory\n");
  abort();
}

static void *zeros(size_t nr, size_t size) { return memset(grown(NULL, nr, size), 0, nr * size); }

// ---- values

static void value_set(struct serial *s, uint32_t op, const struct serial_item *w, enum fate fate) {
  s->values[w->value] = (struct value){.op = op, .at = NONE, .key = w->key, .fate = (uint8_t)fate};
}

// Finds the fate of each write of an operation. writes: room for them.
static void op_values(struct serial *s, uint32_t i, const struct serial_item **writes, uint32_t *saved) {
  const struct serial_op *const o = &s->ops[i];
  uint32_t nr = 0, nr_saved = 0;
  for (uint32_t k = 0; k < o->nr_items; k++) {
    const struct serial_item *const it = &o->items[k];
    if (it->what == SERIAL_WRITE) writes[nr++] = it;
    if (it->what == SERIAL_SAVE) saved[nr_saved++] = nr;
    if (it->what != SERIAL_BACK || nr_saved == 0) continue;
    for (nr_saved--; nr > saved[nr_saved];) value_set(s, i, writes[--nr], TAKEN_BACK);
  }
  for (uint32_t k = 0; k < nr; k++) {
    bool last = true;
    for (uint32_t j = k + 1; j < nr && last; j++) last = writes[j]->key != writes[k]->key;
    value_set(s, i, writes[k], o->end == SERIAL_ABORTED ? TAKEN_BACK : last ? FINAL : REPLACED);
  }
}

struct serial *serial_make(const struct serial_op *ops, uint32_t nr, const uint32_t *initial, uint32_t nr_keys) {
  struct serial *const s = zeros(1, sizeof(*s));
  uint32_t most = 0, items = 0;
  *s = (struct serial){.ops = ops, .nr = nr, .initial = initial, .nr_keys = nr_keys};
  s->order = zeros(nr, sizeof(*s->order));
  s->counts = zeros(nr, sizeof(*s->counts));
  for (uint32_t k = 0; k < nr_keys; k++) most = initial[k] > most ? initial[k] : most;
  for (uint32_t i = 0; i < nr; i++) {
    if (ops[i].nr_items > items) items = ops[i].nr_items;
    for (uint32_t k = 0; k < ops[i].nr_items; k++)
      if (ops[i].items[k].value > most) most = ops[i].items[k].value;
  }
  s->nr_values = most + 1;
  s->values = zeros(s->nr_values, sizeof(*s->values));
  for (uint32_t k = 0; k < nr_keys; k++)
    if (initial[k])
      s->values[initial[k]] = (struct value){.op = INITIAL, .at = NONE, .key = (uint16_t)k, .fate = FINAL};
  const struct serial_item **const writes = zeros(items, sizeof(*writes));
  uint32_t *const saved = zeros(items, sizeof(*saved));
  for (uint32_t i = 0; i < nr; i++) {
    s->order[i] = ops[i].order;
    s->counts[i] = ops[i].end == SERIAL_COMMITTED;
    op_values(s, i, writes, saved);
  }
  free(writes);
  free(saved);
  return s;
}

void serial_free(struct serial *s) {
  free(s->order);
  free(s->counts);
  free(s->values);
  free(s->versions);
  free(s->first);
  free(s->edges);
  free(s->out);
  free(s);
}

uint64_t serial_order(const struct serial *s, uint32_t op) { return s->order[op]; }

// ---- texts

static void say(struct serial_result *out, const char *text) {
  const size_t at = strlen(out->text);
  if (at + strlen(text) < sizeof(out->text)) memcpy(out->text + at, text, strlen(text) + 1);
}

// Tells an operation with a few of its items of the keys in `only`.
static void say_op(struct serial_result *out, const struct serial *s, uint32_t i, const uint16_t *only, uint32_t nr) {
  static const char *const words[] = {"read", "scan", "write", "savepoint", "rollback"};
  const struct serial_op *const o = &s->ops[i];
  char line[200];
  (void)snprintf(line, sizeof(line), "\n  operation %u, thread %u, %llu..%llu, order %llu, %s:", i, o->thread,
                 (unsigned long long)o->call, (unsigned long long)o->ret, (unsigned long long)s->order[i], o->what);
  say(out, line);
  for (uint32_t k = 0, said = 0; k < o->nr_items && said < 12; k++) {
    const struct serial_item *const it = &o->items[k];
    bool is_one = it->what >= SERIAL_SAVE;
    for (uint32_t n = 0; n < nr && !is_one; n++) is_one = it->key == only[n];
    if (!is_one) continue;
    if (it->what >= SERIAL_SAVE) (void)snprintf(line, sizeof(line), " %s", words[it->what]);
    else
      (void)snprintf(line, sizeof(line), " %s %u=%u%s", words[it->what], it->key, it->value, it->gap ? "(gone)" : "");
    say(out, line);
    said++;
  }
}

// ---- reads without the graph

// Takes the version of a value's reader as the place of its writer, or compares both.
static bool place(struct serial *s, uint32_t value, uint64_t version) {
  const struct value *const v = &s->values[value];
  if (v->op == INITIAL || version == 0) return true;
  uint64_t *const order = &s->order[v->op];
  if (*order == 0) *order = version;
  const uint64_t off = *order > version ? *order - version : version - *order;
  return off <= BESIDE * s->ops[v->op].nr_items;
}

bool serial_found(struct serial *s, uint32_t key, uint32_t value, uint64_t version) {
  if (value == 0) return true;
  if (value >= s->nr_values || s->values[value].fate != FINAL || s->values[value].key != key) return false;
  if (s->values[value].op != INITIAL) s->counts[s->values[value].op] = true;
  return place(s, value, version);
}

static enum serial_verdict check_read(struct serial *s, uint32_t reader, const struct serial_item *r) {
  if (r->value == 0) return s->initial[r->key] == 0 ? SERIAL_GOOD : SERIAL_FOREIGN;
  const struct value *const v = &s->values[r->value];
  if (v->fate == NEVER || v->key != r->key || v->op == reader) return SERIAL_FOREIGN;
  if (v->fate != FINAL) return v->fate == REPLACED ? SERIAL_INTERMEDIATE : SERIAL_DIRTY;
  if (v->op != INITIAL) s->counts[v->op] = true;  // one that may have been committed was
  return place(s, r->value, r->version) ? SERIAL_GOOD : SERIAL_ORDER;
}

static inline bool is_read(const struct serial_item *it) { return it->what <= SERIAL_SCAN; }

static enum serial_verdict check_op(struct serial *s, uint32_t i, struct serial_result *out) {
  for (uint32_t k = 0; k < s->ops[i].nr_items; k++) {
    const struct serial_item *const it = &s->ops[i].items[k];
    const enum serial_verdict v = is_read(it) ? check_read(s, i, it) : SERIAL_GOOD;
    if (v == SERIAL_GOOD) continue;
    char line[100];
    (void)snprintf(line, sizeof(line), "value %u of key %u, version %llu, was read", it->value, it->key,
                   (unsigned long long)it->version);
    say(out, line);
    say_op(out, s, i, &it->key, 1);
    const uint32_t by = s->values[it->value].op;
    if (it->value && s->values[it->value].fate != NEVER && by != INITIAL) say_op(out, s, by, &it->key, 1);
    return v;
  }
  return SERIAL_GOOD;
}

// The reads of an operation that may have been committed count when it counts, which other reads tell.
static enum serial_verdict check_reads(struct serial *s, struct serial_result *out) {
  bool *const done = zeros(s->nr, sizeof(*done));
  enum serial_verdict v = SERIAL_GOOD;
  for (bool more = true; more && v == SERIAL_GOOD;) {
    more = false;
    for (uint32_t i = 0; i < s->nr && v == SERIAL_GOOD; i++) {
      if (done[i] || (s->ops[i].end == SERIAL_MAYBE && !s->counts[i])) continue;
      more = done[i] = true;
      v = check_op(s, i, out);
    }
  }
  free(done);
  return v;
}

// ---- versions

static int version_cmp(const void *a, const void *b) {
  const struct version *const x = a, *const y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->order < y->order ? -1 : x->order > y->order;
}

static enum serial_verdict list_versions(struct serial *s, struct serial_result *out) {
  s->versions = zeros(s->nr_values, sizeof(*s->versions));
  for (uint32_t v = 1; v < s->nr_values; v++) {
    const struct value *const is = &s->values[v];
    if (is->fate != FINAL || is->op == INITIAL || !s->counts[is->op]) continue;
    if (s->order[is->op] == 0) out->unplaced++;
    else s->versions[s->nr_versions++] = (struct version){s->order[is->op], v, is->op, is->key};
  }
  qsort(s->versions, s->nr_versions, sizeof(*s->versions), version_cmp);
  s->first = zeros(s->nr_keys + 1, sizeof(*s->first));
  for (uint32_t i = 0, key = 0; key <= s->nr_keys; key++) {
    while (i < s->nr_versions && s->versions[i].key < key) i++;
    s->first[key] = i;
  }
  for (uint32_t i = 0; i < s->nr_versions; i++) {
    const struct version *const v = &s->versions[i];
    s->values[v->value].at = i;
    if (i == 0 || v[-1].key != v->key || v[-1].order != v->order) continue;
    say(out, "two writes of a key have the same order");
    say_op(out, s, v->op, &v->key, 1);
    say_op(out, s, v[-1].op, &v->key, 1);
    return SERIAL_ORDER;
  }
  return SERIAL_GOOD;
}

void serial_state(const struct serial *s, uint64_t last, uint32_t *values_out) {
  for (uint32_t key = 0; key < s->nr_keys; key++) {
    values_out[key] = s->initial[key];
    for (uint32_t i = s->first[key]; i < s->first[key + 1] && s->versions[i].order <= last; i++)
      values_out[key] = s->versions[i].value;
  }
}

// ---- the graph

static void edge_add(struct serial *s, uint32_t from, uint32_t to, enum kind kind, const struct serial_item *it) {
  if (from == to) return;
  if (s->nr_edges == s->cap_edges) {
    s->cap_edges = s->cap_edges ? 2 * s->cap_edges : 4096;
    s->edges = grown(s->edges, s->cap_edges, sizeof(*s->edges));
  }
  s->edges[s->nr_edges++] = (struct edge){from, to, it ? it->key : 0, (uint8_t)kind,
                                          it && it->gap && it->what == SERIAL_SCAN};
}

static void read_edges(struct serial *s, uint32_t reader, const struct serial_item *r) {
  const struct value *const v = &s->values[r->value];
  const bool first = r->value == s->initial[r->key];
  if (!first) edge_add(s, v->op, reader, WR, r);
  if (!first && v->at == NONE) return;
  const uint32_t next = first ? s->first[r->key] : v->at + 1;
  if (next < s->first[r->key + 1]) edge_add(s, reader, s->versions[next].op, RW, r);
}

struct event {
  uint64_t when;
  uint32_t op;
  bool is_return;
};

// At one moment calls come before returns: the two operations overlap.
static int event_cmp(const void *a, const void *b) {
  const struct event *const x = a, *const y = b;
  if (x->when != y->when) return x->when < y->when ? -1 : 1;
  return (int)x->is_return - (int)y->is_return;
}

// A node of the chain stands for the returns before it.
static void time_edges(struct serial *s) {
  struct event *const events = zeros(2 * (size_t)s->nr, sizeof(*events));
  size_t nr = 0, open = 0;
  for (uint32_t i = 0; i < s->nr; i++) {
    events[nr++] = (struct event){s->ops[i].call, i, false};
    if (s->ops[i].ret != UINT64_MAX) events[nr++] = (struct event){s->ops[i].ret, i, true};
  }
  qsort(events, nr, sizeof(*events), event_cmp);
  for (size_t i = 0; i < nr; i++) {  // from `open` on, the returns are not in the chain
    if (events[i].is_return) continue;
    bool any = false;
    for (; open < i; open++) {
      if (!events[open].is_return) continue;
      edge_add(s, events[open].op, s->nr_nodes, TIME, NULL);
      any = true;
    }
    if (any) {
      if (s->nr_nodes > s->nr) edge_add(s, s->nr_nodes - 1, s->nr_nodes, TIME, NULL);
      s->nr_nodes++;
    }
    if (s->nr_nodes > s->nr) edge_add(s, s->nr_nodes - 1, events[i].op, TIME, NULL);
  }
  free(events);
}

// Puts the edges in order of `from`.
static void sort_edges(struct serial *s) {
  s->out = zeros(s->nr_nodes + 2, sizeof(*s->out));
  struct edge *const sorted = zeros(s->nr_edges, sizeof(*sorted));
  for (size_t i = 0; i < s->nr_edges; i++) s->out[s->edges[i].from + 2]++;
  for (uint32_t n = 1; n < s->nr_nodes + 2; n++) s->out[n] += s->out[n - 1];
  for (size_t i = 0; i < s->nr_edges; i++) sorted[s->out[s->edges[i].from + 1]++] = s->edges[i];
  free(s->edges);
  s->edges = sorted;
}

static void make_graph(struct serial *s) {
  s->nr_nodes = s->nr;
  for (uint32_t i = 1; i < s->nr_versions; i++)
    if (s->versions[i].key == s->versions[i - 1].key)
      edge_add(s, s->versions[i - 1].op, s->versions[i].op, WW,
               &(struct serial_item){.what = SERIAL_WRITE, .key = s->versions[i].key});
  for (uint32_t i = 0; i < s->nr; i++) {
    if (s->ops[i].end == SERIAL_MAYBE && !s->counts[i]) continue;  // nobody knows of which moment its reads are
    for (uint32_t k = 0; k < s->ops[i].nr_items; k++)
      if (is_read(&s->ops[i].items[k])) read_edges(s, i, &s->ops[i].items[k]);
  }
  time_edges(s);
  sort_edges(s);
}

// ---- cycles

struct frame {
  uint32_t node;
  size_t next;  // the next of its edges
};

struct tarjan {
  uint32_t *number, *low;  // by node; 0: not visited
  uint32_t *stack, *component;
  struct frame *frames;
  uint32_t nr_stack, nr_frames, visited, components;
};

static void enter(const struct serial *s, struct tarjan *t, uint32_t node) {
  t->number[node] = t->low[node] = ++t->visited;
  t->stack[t->nr_stack++] = node;
  t->frames[t->nr_frames++] = (struct frame){node, s->out[node]};
}

// A node has no more edges. Returns the size of the component that ends with it, or 0.
static uint32_t leave(struct tarjan *t, uint32_t node) {
  uint32_t size = 0;
  if (t->low[node] == t->number[node]) {
    t->components++;
    uint32_t n;
    do {
      n = t->stack[--t->nr_stack];
      t->component[n] = t->components;
      size++;
    } while (n != node);
  }
  if (--t->nr_frames) {
    uint32_t *const above = &t->low[t->frames[t->nr_frames - 1].node];
    if (t->low[node] < *above) *above = t->low[node];
  }
  return size;
}

// Tarjan ("Depth-first search and linear graph algorithms", 1972), without recursion. Returns a component with a cycle,
// or 0.
static uint32_t find_component(const struct serial *s, struct tarjan *t) {
  for (uint32_t root = 0; root < s->nr_nodes; root++) {
    if (t->number[root]) continue;
    enter(s, t, root);
    while (t->nr_frames) {
      struct frame *const f = &t->frames[t->nr_frames - 1];
      if (f->next == s->out[f->node + 1]) {
        if (leave(t, f->node) > 1) return t->components;
        continue;
      }
      const uint32_t to = s->edges[f->next++].to;
      if (!t->number[to]) enter(s, t, to);
      else if (!t->component[to] && t->number[to] < t->low[f->node]) t->low[f->node] = t->number[to];
    }
  }
  return 0;
}

// Goes breadth first from a node, within its component, until it is met again. by: for each node the edge by which it
// was met. queue: room for all nodes. Returns the number of edges; 0: more than `most`.
static uint32_t cycle_from(const struct serial *s, const uint32_t *component, uint32_t start, size_t *by,
                           uint32_t *queue, uint32_t *distance, uint32_t most) {
  uint32_t head = 0, nr = 0;
  memset(distance, 0, s->nr_nodes * sizeof(*distance));
  for (queue[nr++] = start; head < nr; head++) {
    const uint32_t node = queue[head];
    if (distance[node] >= most) return 0;
    for (size_t e = s->out[node]; e < s->out[node + 1]; e++) {
      const uint32_t to = s->edges[e].to;
      if (component[to] != component[start] || distance[to]) continue;
      by[to] = e;
      distance[to] = distance[node] + 1;
      if (to == start) return distance[to];
      queue[nr++] = to;
    }
  }
  return 0;
}

static void say_cycle(const struct serial *s, uint32_t start, const size_t *by, uint32_t length,
                      struct serial_result *out) {
  size_t *const edges = zeros(length, sizeof(*edges));
  uint16_t *const keys = zeros(length, sizeof(*keys));
  uint32_t nr = 0;
  uint32_t node = start;
  for (uint32_t i = length; i-- > 0; node = s->edges[by[node]].from) edges[i] = by[node];
  for (uint32_t i = 0; i < length; i++)
    if (s->edges[edges[i]].kind != TIME) keys[nr++] = s->edges[edges[i]].key;
  say(out, "a cycle:");
  bool timed = false;
  for (uint32_t i = 0; i < length; i++) {
    const struct edge *const e = &s->edges[edges[i]];
    uint32_t *const count[KINDS] = {&out->ww, &out->wr, &out->rw, &out->time};
    char line[60];
    if (e->from < s->nr) {
      out->ops++;
      say_op(out, s, e->from, keys, nr);
      timed = false;
    }
    if (e->kind == TIME && timed) continue;  // within the chain
    timed = e->kind == TIME;
    ++*count[e->kind];
    out->gaps += e->gap;
    if (timed) (void)snprintf(line, sizeof(line), "\n   returned before");
    else (void)snprintf(line, sizeof(line), "\n   %s key %u%s", kind_names[e->kind], e->key, e->gap ? " (gap)" : "");
    say(out, line);
  }
  free(edges);
  free(keys);
}

// The shortest cycle of the component that a few of its nodes find.
static void tell_cycle(const struct serial *s, const uint32_t *component, uint32_t which, struct serial_result *out) {
  size_t *const by = zeros(s->nr_nodes, sizeof(*by));
  uint32_t *const queue = zeros(s->nr_nodes, sizeof(*queue)), *const distance = zeros(s->nr_nodes, sizeof(*distance));
  uint32_t best = NONE, length = NONE - 1, tries = 0;
  for (uint32_t n = 0; n < s->nr && tries < CYCLES; n++) {
    if (component[n] != which) continue;
    const uint32_t found = cycle_from(s, component, n, by, queue, distance, length);
    tries++;
    if (found && found < length) {
      best = n;
      length = found;
    }
  }
  (void)cycle_from(s, component, best, by, queue, distance, length + 1);
  say_cycle(s, best, by, length, out);
  free(by);
  free(queue);
  free(distance);
}

static enum serial_verdict find_cycle(const struct serial *s, struct serial_result *out) {
  struct tarjan t = {.number = zeros(s->nr_nodes, sizeof(uint32_t)),
                     .low = zeros(s->nr_nodes, sizeof(uint32_t)),
                     .stack = zeros(s->nr_nodes, sizeof(uint32_t)),
                     .component = zeros(s->nr_nodes, sizeof(uint32_t)),
                     .frames = zeros(s->nr_nodes, sizeof(struct frame))};
  const uint32_t which = find_component(s, &t);
  if (which) tell_cycle(s, t.component, which, out);
  free(t.number);
  free(t.low);
  free(t.stack);
  free(t.component);
  free(t.frames);
  return which ? SERIAL_CYCLE : SERIAL_GOOD;
}

enum serial_verdict serial_check(struct serial *s, struct serial_result *out) {
  *out = (struct serial_result){0};
  out->verdict = check_reads(s, out);
  if (out->verdict == SERIAL_GOOD) out->verdict = list_versions(s, out);
  if (out->verdict != SERIAL_GOOD) return out->verdict;
  make_graph(s);
  out->nodes = s->nr_nodes;
  out->edges = s->nr_edges;
  return out->verdict = find_cycle(s, out);
}

// SPDX-License-Identifier: Apache-2.0
//
// The figures of a store as OpenMetrics text, which Prometheus and others read.
#include "tools/metrics.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tool.h"

enum type { COUNTER, GAUGE, FLAG, STRING };

static const struct metric {
  const char *name, *unit, *help;
  enum type type;
} metrics[] = {
#define FIGURE(type, name, unit, value, help) {name, unit, help, type},
#define FIGURE_TEXT(name, value, help) {name, "", help, STRING},
#include "admin/figures.inc"
};
#define NR_METRICS (sizeof(metrics) / sizeof(metrics[0]))

// The name of a figure's metric: "cache.misses" is remixdb_cache_misses.
static void metric_name(char *buf, size_t cap, const struct metric *m) {
  snprintf(buf, cap, "remixdb_%s", m->name);
  for (char *p = buf; *p; p++)
    if (*p == '.') *p = '_';
}

// Prints the value of a string figure, as it stands in the JSON: quoted, and with the escapes that OpenMetrics has,
// too.
static void print_string(FILE *out, const char *json, const char *name) {
  char member[64];
  snprintf(member, sizeof(member), "\"%s\":\"", name);
  const char *const at = strstr(json, member);
  if (at == NULL) tool_end(TOOL_FAILED, "the figures have no \"%s\"", name);
  const char *const value = at + strlen(member);
  fprintf(out, "%s=\"%.*s\"", name, (int)strcspn(value, "\""), value);
}

static void print_info(FILE *out, struct xdb *xdb, const char *dir) {
  char *const json = remixdb_stats(xdb);
  if (json == NULL) tool_fail_call(dir, "stats");
  const char *before = "";
  fprintf(out, "# TYPE remixdb info\n# HELP remixdb The library that has opened the store.\nremixdb_info{");
  for (size_t i = 0; i < NR_METRICS; i++) {
    if (metrics[i].type != STRING) continue;
    fputs(before, out);
    print_string(out, json, metrics[i].name);
    before = ",";
  }
  fprintf(out, "} 1\n");
  remixdb_free(json);
}

void metrics_print(FILE *out, struct xdb *xdb, const char *dir) {
  print_info(out, xdb, dir);
  for (size_t i = 0; i < NR_METRICS; i++) {
    const struct metric *const m = &metrics[i];
    char name[80];
    uint64_t value;
    if (m->type == STRING) continue;
    if (!remixdb_figure(xdb, m->name, &value)) tool_fail_call(dir, m->name);
    metric_name(name, sizeof(name), m);
    const size_t len = strlen(name), ulen = strlen(m->unit);
    const bool counter = m->type == COUNTER;
    fprintf(out, "# TYPE %s %s\n", name, counter ? "counter" : "gauge");
    // OpenMetrics allows a unit only where the name ends with it.
    if (ulen && len > ulen && name[len - ulen - 1] == '_' && strcmp(name + len - ulen, m->unit) == 0)
      fprintf(out, "# UNIT %s %s\n", name, m->unit);
    fprintf(out, "# HELP %s %s%s%s%s.\n%s%s %" PRIu64 "\n", name, m->help, ulen ? " (" : "", m->unit, ulen ? ")" : "",
            name, counter ? "_total" : "", value);
  }
  fprintf(out, "# EOF\n");
}

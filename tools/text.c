// SPDX-License-Identifier: Apache-2.0
#include "tools/text.h"

#include <string.h>

// ---- reading

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Reads the escape at p; `left` bytes begin with its backslash. Returns the number of its bytes; 0: not an escape.
static size_t escape_read(const char *p, size_t left, char *out) {
  if (left < 2) return 0;
  switch (p[1]) {
    case 't': *out = '\t'; return 2;
    case 'n': *out = '\n'; return 2;
    case 'r': *out = '\r'; return 2;
    case '\\': *out = '\\'; return 2;
    default: break;
  }
  if (p[1] != 'x' || left < 4 || hex_digit(p[2]) < 0 || hex_digit(p[3]) < 0) return 0;
  *out = (char)(hex_digit(p[2]) * 16 + hex_digit(p[3]));
  return 4;
}

static const char bad_escape[] =
    "a backslash begins none of the escapes \\t \\n \\r \\\\ \\xHH; write \\\\ for a backslash";

// Moves bytes from *from to *to, escapes replaced, up to the first `stop` that is not escaped (-1: none) or `end`.
static const char *unescape(char **from, char *end, char **to, int stop) {
  char *p = *from, *w = *to;
  while (p < end && (unsigned char)*p != stop) {
    size_t n = 1;
    char c = *p;
    if (c == '\\' && (n = escape_read(p, (size_t)(end - p), &c)) == 0) return bad_escape;
    *w++ = c;
    p += n;
  }
  *from = p;
  *to = w;
  return NULL;
}

const char *text_unescape(char *text, size_t len, size_t *len_out) {
  char *from = text, *to = text;
  const char *const wrong = unescape(&from, text + len, &to, -1);
  *len_out = (size_t)(to - text);
  return wrong;
}

static void parse_raw(const char *line, size_t len, unsigned char separator, struct text_record *out) {
  const char *const at = memchr(line, separator, len);
  out->key = line;
  out->klen = at ? (size_t)(at - line) : len;
  out->value = at ? at + 1 : line + len;
  out->vlen = at ? len - out->klen - 1 : 0;
}

const char *text_parse(char *line, size_t len, const struct text_format *f, struct text_record *out) {
  if (f->raw) {
    parse_raw(line, len, f->separator, out);
    return NULL;
  }
  if (len > 0 && line[len - 1] == '\r') len--;
  if (!memchr(line, '\\', len)) {
    parse_raw(line, len, f->separator, out);
    return NULL;
  }
  char *from = line, *const end = line + len, *to = line;
  const char *wrong = unescape(&from, end, &to, f->separator);
  if (wrong) return wrong;
  out->key = line;
  out->klen = (size_t)(to - line);
  if (from < end) from++;  // the separator
  char *const value = to;
  if ((wrong = unescape(&from, end, &to, -1)) != NULL) return wrong;
  out->value = value;
  out->vlen = (size_t)(to - value);
  return NULL;
}

// ---- writing

static bool needs_escape(unsigned char c, int separator, const struct text_format *f) {
  if (c == '\\' || c == '\n' || c == '\r' || c == separator) return true;
  return f->ascii && (c < 0x20 || c > 0x7e);
}

static bool escape_write(FILE *out, unsigned char c) {
  switch (c) {
    case '\t': return fputs("\\t", out) >= 0;
    case '\n': return fputs("\\n", out) >= 0;
    case '\r': return fputs("\\r", out) >= 0;
    case '\\': return fputs("\\\\", out) >= 0;
    default: return fprintf(out, "\\x%02x", c) > 0;
  }
}

static bool write_piece(FILE *out, const void *bytes, size_t len, int separator, const struct text_format *f) {
  const unsigned char *const p = bytes;
  size_t done = 0;
  for (size_t at = 0; !f->raw && at < len; at++) {
    if (!needs_escape(p[at], separator, f)) continue;
    if (fwrite(p + done, 1, at - done, out) != at - done || !escape_write(out, p[at])) return false;
    done = at + 1;
  }
  return fwrite(p + done, 1, len - done, out) == len - done;
}

bool text_write_bytes(FILE *out, const void *bytes, size_t len, const struct text_format *f) {
  return write_piece(out, bytes, len, -1, f);
}

bool text_write(FILE *out, const void *key, size_t klen, const void *value, size_t vlen, const struct text_format *f) {
  if (!write_piece(out, key, klen, f->separator, f)) return false;
  if (vlen > 0 && (putc(f->separator, out) == EOF || !text_write_bytes(out, value, vlen, f))) return false;
  return putc('\n', out) != EOF;
}

// ---- files that are no text of this form

static const struct kind {
  const char *name, *advice;
  const char *magic;  // the first bytes of such a file; NULL: see below
  size_t len;
} kinds[] = {
    [TEXT_PLAIN] = {"text", "", NULL, 0},
    [TEXT_MARKED] = {"text after a byte order mark", "", "\xef\xbb\xbf", TEXT_MARK_LEN},
    [TEXT_UTF16] = {"UTF-16", "convert it first: iconv -f UTF-16 -t UTF-8 FILE | remixdb import DIR -", "\xff\xfe", 2},
    [TEXT_GZIP] = {"compressed by gzip", "unpack it first: gzip -dc FILE | remixdb import DIR -", "\x1f\x8b", 2},
    [TEXT_BZIP2] = {"compressed by bzip2", "unpack it first: bzip2 -dc FILE | remixdb import DIR -", "BZh", 3},
    [TEXT_XZ] = {"compressed by xz", "unpack it first: xz -dc FILE | remixdb import DIR -",
                 "\xfd"
                 "7zXZ",
                 5},
    [TEXT_ZSTD] = {"compressed by zstd", "unpack it first: zstd -dc FILE | remixdb import DIR -", "\x28\xb5\x2f\xfd",
                   4},
    [TEXT_LZ4] = {"compressed by lz4", "unpack it first: lz4 -dc FILE | remixdb import DIR -", "\x04\x22\x4d\x18", 4},
    [TEXT_ZIP] = {"a zip archive", "unpack it first: unzip -p FILE | remixdb import DIR -", "PK\x03\x04", 4},
    [TEXT_JSON] = {"JSON",
                   "make a line KEY<tab>VALUE of each record first, for an object of strings: "
                   "jq -r 'to_entries[] | [.key, .value] | @tsv' FILE | remixdb import DIR -",
                   NULL, 0},
    [TEXT_CSV] = {"CSV",
                  "with two columns and no quotes: remixdb import --separator=, DIR FILE; else make a line "
                  "KEY<tab>VALUE of each record first",
                  NULL, 0},
};

const char *text_kind_name(enum text_kind k) { return kinds[k].name; }
const char *text_kind_advice(enum text_kind k) { return kinds[k].advice; }

// Whether an object or an array begins, and no separator is in the line.
static bool is_json(const char *line, size_t len, unsigned char separator) {
  if (line[0] != '{' && line[0] != '[') return false;
  if (memchr(line, separator, len)) return false;
  size_t at = 1;
  while (at < len && (line[at] == ' ' || line[at] == '\r')) at++;
  return at == len || memchr("\"{}[]", line[at], 5) != NULL;
}

// The number of a line's commas outside of quotes; 0 when the line has a separator.
static unsigned csv_commas(const char *line, size_t len, unsigned char separator) {
  unsigned commas = 0;
  bool quoted = false;
  for (size_t i = 0; i < len; i++) {
    if ((unsigned char)line[i] == separator) return 0;
    if (line[i] == '"') quoted = !quoted;
    commas += line[i] == ',' && !quoted;
  }
  return commas;
}

// Whether there are two lines or more, and the first ones have the same number of commas and no separator.
static bool is_csv(const char *head, size_t len, bool whole, unsigned char separator) {
  const unsigned lines_max = 5;
  unsigned lines = 0, first = 0;
  for (const char *line = head, *const end = head + len; line < end && lines < lines_max; lines++) {
    const char *const newline = memchr(line, '\n', (size_t)(end - line));
    if (!newline && !whole) break;
    const size_t n = (size_t)((newline ? newline : end) - line);
    const unsigned commas = csv_commas(line, n, separator);
    if (commas == 0 || (lines > 0 && commas != first)) return false;
    first = commas;
    line += n + 1;
  }
  return lines >= 2;
}

enum text_kind text_kind(const void *head, size_t len, bool whole, const struct text_format *f) {
  const char *const p = head;
  // only this form has escapes
  if (f->raw || len == 0 || p[0] == '\\' || p[0] == '\n') return TEXT_PLAIN;
  if ((unsigned char)p[0] == f->separator) return TEXT_PLAIN;  // a record with an empty key
  for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
    if (kinds[k].magic && len >= kinds[k].len && memcmp(p, kinds[k].magic, kinds[k].len) == 0) return (enum text_kind)k;
  if (len >= 2 && memcmp(p, "\xfe\xff", 2) == 0) return TEXT_UTF16;
  const char *const newline = memchr(p, '\n', len);
  if (is_json(p, newline ? (size_t)(newline - p) : len, f->separator)) return TEXT_JSON;
  if (f->separator == ',') return p[0] == '"' ? TEXT_CSV : TEXT_PLAIN;
  return is_csv(p, len, whole, f->separator) ? TEXT_CSV : TEXT_PLAIN;
}

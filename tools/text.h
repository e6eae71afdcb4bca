// SPDX-License-Identifier: Apache-2.0
//
// Records as text, one record a line:
//
//   KEY <separator> VALUE <newline>
//
// The first separator (a tab unless another byte is chosen) ends the key. The value is the rest of the line, further
// separators included. A line without a separator is a key with an empty value, and a key with an empty value is
// written without a separator, so a list of words stays a list of words.
//
// A backslash begins an escape: \t \n \r \\ and \xHH (any byte, two hexadecimal digits). Writing escapes the backslash,
// the newline and the carriage return everywhere, and the separator in a key. Every other byte is written as it is, so
// reading what was written gives the same records, whatever bytes they hold, and a file whose lines have no backslash
// and no carriage return comes back byte for byte. Reading refuses a backslash that begins no escape, and takes a
// carriage return before the newline for a part of the line's end.
//
// With `raw` there are no escapes: every line is taken and written as it stands.
#ifndef TOOLS_TEXT_H
#define TOOLS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define TEXT_HEAD 4096u  // bytes of a file's beginning that tell whether it is text of this form

struct text_format {
  unsigned char separator;
  bool raw;    // no escapes
  bool ascii;  // writing escapes every byte that is no printable ASCII character
};
#define TEXT_FORMAT_DEFAULT ((struct text_format){.separator = '\t'})

struct text_record {
  const char *key, *value;  // in the line that was read
  size_t klen, vlen;
};

// Reads the record of a line, which comes without its newline and is overwritten. NULL: *out is filled in. Otherwise
// returns the fault of the line.
const char *text_parse(char *line, size_t len, const struct text_format *f, struct text_record *out);
// Replaces the escapes in `text` (len bytes) by the bytes they mean; *len_out is never more. NULL, or the fault.
const char *text_unescape(char *text, size_t len, size_t *len_out);
// Writes a record with its newline. False: errno.
bool text_write(FILE *out, const void *key, size_t klen, const void *value, size_t vlen, const struct text_format *f);
// Writes bytes that are no key, with escapes and without a newline. False: errno.
bool text_write_bytes(FILE *out, const void *bytes, size_t len, const struct text_format *f);

// Kinds of files, by their beginning. All but the first two hold no records of this form, although their lines could
// pass for records.
enum text_kind {
  TEXT_PLAIN,   // nothing speaks against it
  TEXT_MARKED,  // text after a byte order mark of TEXT_MARK_LEN bytes
  TEXT_UTF16,
  TEXT_GZIP,
  TEXT_BZIP2,
  TEXT_XZ,
  TEXT_ZSTD,
  TEXT_LZ4,
  TEXT_ZIP,
  TEXT_JSON,
  TEXT_CSV
};
#define TEXT_MARK_LEN 3u

// head: the first TEXT_HEAD bytes of the file, or all of it (`whole`). Output of text_write can look like another kind
// than TEXT_PLAIN by chance; an escape for its first byte, which is no separator then, prevents that. A file that
// begins with a separator, and with f->raw every file, is TEXT_PLAIN.
enum text_kind text_kind(const void *head, size_t len, bool whole, const struct text_format *f);
// The name of the kind ("compressed by gzip"), and advice in the form of a command or of words. Neither holds a file
// name.
const char *text_kind_name(enum text_kind k);
const char *text_kind_advice(enum text_kind k);
#endif

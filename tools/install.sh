#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install.sh install|uninstall: puts the library, its header, its pkg-config file and the Python module where they
# belong, or removes them. `make install` and `make uninstall` run it with the environment that it needs:
#   DESTDIR                 stands before every path; no path that is written down has it
#   PREFIX, LIBDIR, INCLUDEDIR, DATADIR, BINDIR, MANDIR   where things go
#   SO, SO_LINK, SO_FULL    the library's name, that by which programs know it, that of its file
#   LEVELDB_SO, LEVELDB_LINK, LEVELDB_FULL   the same of the library with LevelDB's C interface
#   VERSION, LIBS_PRIVATE   for the pkg-config file, which is made in build/
set -u

lib=$DESTDIR$LIBDIR
include=$DESTDIR$INCLUDEDIR
leveldb=$include/remixdb-leveldb
data=$DESTDIR$DATADIR/remixdb
bin=$DESTDIR$BINDIR
man=$DESTDIR$MANDIR/man1
package='__init__.py aio.py plyvel.py py.typed'  # of Python, in python/remixdb
name="make ${1:-install}"

fail() {
  printf '%s\n' "$name: $1"
  exit 1
}

# Runs a command, and prints it as make does.
do_() {
  printf '%s\n' "$*"
  "$@" || exit 1
}

# pkg-config reads what is quoted in its file as a shell does, so blanks are fine. Some characters pass through no
# quoting.
check_names() {
  for d in "PREFIX=$PREFIX" "LIBDIR=$LIBDIR" "INCLUDEDIR=$INCLUDEDIR" "DATADIR=$DATADIR" \
    "BINDIR=$BINDIR" "MANDIR=$MANDIR"; do
    case $d in
      *[\'\"\\\`\$\#]*) fail "$d has one of ' \" \\ \` \$ #, which a pkg-config file cannot hold" ;;
      PREFIX= | *=/*) ;;
      *) fail "$d has to begin with /" ;;
    esac
  done
}

# Nothing is written before all directories are known to be writable, or to be in one that is.
check_rights() {
  for d in "$lib" "$include" "$data" "$bin" "$man"; do
    while [ ! -e "$d" ]; do
      up=$(dirname "$d")
      [ "$up" != "$d" ] || break
      d=$up
    done
    [ -d "$d" ] || fail "$d is in the way: it is no directory"
    [ -w "$d" ] ||
      fail "no right to write to $d. Run \"sudo $name\", or give a directory of your own: $name PREFIX=\$HOME/remixdb"
  done
}

# The dynamic loader finds a new library through its cache, which only root can write.
tell_loader() {
  [ -z "$DESTDIR" ] && [ "$(uname)" != Darwin ] || return 0
  if [ "$(id -u)" -eq 0 ] && command -v ldconfig >/dev/null 2>&1; then
    case $(uname) in
      Linux) do_ ldconfig ;;
      *) do_ ldconfig -m "$LIBDIR" ;;
    esac
  fi
}

# Says what a program needs to find the library in a directory that the system does not search.
tell_paths() {
  [ "$1" = install ] && [ -z "$DESTDIR" ] && [ "$(uname)" = Linux ] || return 0
  case $(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null) in *"=> $LIBDIR/$SO_LINK"*) return 0 ;; esac
  echo "The system does not look for libraries in $LIBDIR. Programs need:"
  echo "  export PKG_CONFIG_PATH=\"$LIBDIR/pkgconfig\" LD_LIBRARY_PATH=\"$LIBDIR\""
}

install_leveldb() {
  do_ install -m 644 compat/leveldb/leveldb/c.h "$leveldb/leveldb/c.h"
  do_ install -m 755 "$LEVELDB_SO" "$lib/$LEVELDB_FULL"
  if [ "$(uname)" = Darwin ]; then
    do_ install_name_tool -id "$LIBDIR/$LEVELDB_LINK" "$lib/$LEVELDB_FULL"
  fi
  do_ ln -sf "$LEVELDB_FULL" "$lib/$LEVELDB_LINK"
  do_ ln -sf "$LEVELDB_LINK" "$lib/$LEVELDB_SO"
  do_ install -m 644 build/remixdb-leveldb.pc "$lib/pkgconfig/remixdb-leveldb.pc"
}

install_all() {
  check_names
  check_rights
  mkdir -p build || exit 1
  # shellcheck disable=SC2016
  printf '%s\n' "prefix=$PREFIX" "libdir=$LIBDIR" "includedir=$INCLUDEDIR" '' 'Name: remixdb' \
    'Description: An embedded, ordered key-value store' "Version: $VERSION" 'Libs: -L"${libdir}" -lremixdb' \
    "Libs.private: $LIBS_PRIVATE -pthread" 'Cflags: -I"${includedir}"' >build/remixdb.pc || exit 1
  # shellcheck disable=SC2016
  printf '%s\n' "prefix=$PREFIX" "libdir=$LIBDIR" "includedir=$INCLUDEDIR/remixdb-leveldb" '' 'Name: remixdb-leveldb' \
    "Description: LevelDB's C interface on RemixDB" "Version: $VERSION" 'Requires.private: remixdb' \
    'Libs: -L"${libdir}" -lremixdb-leveldb' 'Cflags: -I"${includedir}"' >build/remixdb-leveldb.pc || exit 1
  do_ install -d "$lib/pkgconfig" "$include" "$leveldb/leveldb" "$data/remixdb" "$bin" "$man"
  do_ install -m 755 remixdb.out "$bin/remixdb"
  do_ install -m 644 docs/remixdb.1 "$man/remixdb.1"
  do_ install -m 644 remixdb.h "$include/remixdb.h"
  do_ install -m 755 "$SO" "$lib/$SO_FULL"
  [ "$(uname)" != Darwin ] || do_ install_name_tool -id "$LIBDIR/$SO_LINK" "$lib/$SO_FULL"
  do_ ln -sf "$SO_FULL" "$lib/$SO_LINK"
  do_ ln -sf "$SO_LINK" "$lib/$SO"
  do_ install -m 644 build/remixdb.pc "$lib/pkgconfig/remixdb.pc"
  install_leveldb
  do_ install -m 644 xdb.py "$data/xdb.py"
  for f in $package; do do_ install -m 644 "python/remixdb/$f" "$data/remixdb/$f"; done
}

# Directories that hold something else stay.
uninstall_all() {
  check_rights
  do_ rm -f "$include/remixdb.h" "$lib/$SO_FULL" "$lib/$SO_LINK" "$lib/$SO" "$lib/pkgconfig/remixdb.pc" "$data/xdb.py" \
    "$bin/remixdb" "$man/remixdb.1" "$leveldb/leveldb/c.h" "$lib/$LEVELDB_FULL" "$lib/$LEVELDB_LINK" \
    "$lib/$LEVELDB_SO" "$lib/pkgconfig/remixdb-leveldb.pc"
  for f in $package; do do_ rm -f "$data/remixdb/$f"; done
  do_ rm -rf "$data/__pycache__" "$data/remixdb/__pycache__"
  for d in "$lib/pkgconfig" "$data/remixdb" "$data" "$leveldb/leveldb" "$leveldb"; do
    [ ! -d "$d" ] || rmdir "$d" 2>/dev/null || true
  done
}

case ${1:-} in
  install) install_all ;;
  uninstall) uninstall_all ;;
  *)
    echo "usage: $0 install|uninstall, by way of make" >&2
    exit 2
    ;;
esac
tell_loader
tell_paths "$1"

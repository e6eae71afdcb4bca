# SPDX-License-Identifier: Apache-2.0
#
# make                 the library and the programs
# make deps            installs what is missing; `make deps demo` only what the library and its programs need
# make demo            the tour, then a list of words in and out again (FILE=path for another)
# make test            every test: programs, Python, checks; goes on after a failing one
# make python          the extension module that makes xdb.py fast, where Python's headers are; make has it in it
# make install         the library, its header, the command remixdb, the Python module: PREFIX=/usr/local, DESTDIR=
# make uninstall       removes what make install put there
# make lint            the form of the sources (tests/lint.sh)
# make bench           the stores that are here side by side, into bench/results (docs/BENCHMARK.md)
# make bench-cold      the same with data larger than memory, beside what the disk itself gives
# make bench-growth    costs that grow with the number of keys, from a million to a hundred millions
# make bench-deps      installs the other stores
# make clean           removes what was built
# make help            this text
#
# More tests (docs/TESTING.md):
# make test-unit       the test programs alone; build/MODE-COMPILER/tests/unit/test_wal_append is one of them
# make check-asan, check-tsan, check-msan, check-valgrind
# make check-headers, check-exports, check-seam, check-prefetch, check-leaks, check-layers, check-words, check-compile
# make fuzz            every fuzz target for FUZZ_SECONDS (60), FUZZ_JOBS at a time, and MUTANTS (20000) crafted stores;
#                      FUZZ=name for one; needs clang
# make fuzz-merge      takes what make fuzz found into tests/corpus
# make soak            random campaigns with new seeds for SOAK_SECONDS (600)
# make soak-long       SOAK_OPS (10^7) operations against a model, with values from 0 bytes to 8 MiB
# make golden          writes the golden files (tests/golden) anew: for a change of formats only
#
# Options (docs/BUILDING.md): CCC=compiler; O=r release, d debug, a address and undefined, t thread, m memory sanitizer,
# c coverage, f libFuzzer, v for valgrind; M=j jemalloc, M=t tcmalloc for the programs, with ML=1 for the library too;
# N=1 for this machine's processor; EXTRA_CFLAGS=, EXTRA_LDFLAGS=; UNDER=emulator to run tests by; V=1 shows commands;
# -jN jobs at a time (one per core without it).

ifneq ($(filter 3.%,$(MAKE_VERSION)),)
$(error GNU make 4 is needed, and this is $(MAKE_VERSION). macOS: sh .ci/deps, then gmake)
endif
.DEFAULT_GOAL := all
comma := ,
quote = '$(subst ','\'',$(1))'
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/sh

# One job per core, unless the command or the environment says how many.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += $(shell case " $$MAKEFLAGS" in (*' -j'*) ;; (*) echo "-j$$(getconf _NPROCESSORS_ONLN || echo 1)";; esac)
endif

.PHONY: all deps demo golden install uninstall clean help lint bench bench-cold soak test test-unit units FORCE
.PHONY: python wheel-library bench-growth soak-long
.PHONY: $(addprefix check-,asan tsan msan valgrind built headers exports seam prefetch leaks layers words compile)
.PHONY: fuzz run-fuzz fuzz-merge run-fuzz-merge run-mutants bench-deps
help:
	@sed -n '/^# make /,/^$$/s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

ifneq ($(filter deps bench-deps,$(MAKECMDGOALS)),)
# Missing packages are installed first. Then a make of its own looks at the system anew and makes the other goals.
GOALS := $(filter-out deps bench-deps,$(MAKECMDGOALS))
DEPS := $(if $(filter-out all demo install,$(or $(GOALS),tests)),,--library)
DEPS += $(if $(filter bench-deps,$(MAKECMDGOALS)),--bench)
$(MAKECMDGOALS): installed ; @:
.PHONY: installed
installed:
	@CCC='$(CCC)' sh .ci/deps $(DEPS)
	$(if $(GOALS),@$(MAKE) --no-print-directory $(GOALS))
else

VERSION_MAJOR := 0
VERSION := $(shell sed -n 's/^.define REMIXDB_VERSION_STRING "\(.*\)"/\1/p' remixdb.h)

# ---- the compiler and the mode

FOUND_CC = $(shell for c in clang gcc; do command -v $$c >/dev/null 2>&1 && { echo $$c; exit; }; done; echo cc)
CCC ?= $(if $(filter default undefined,$(origin CC)),$(FOUND_CC),$(CC))
CCC := $(CCC)
UNAME := $(shell uname)
# The processor that is built for; it need not be this machine's.
TARGET := $(or $(firstword $(subst -, ,$(shell $(CCC) -dumpmachine 2>/dev/null))),$(shell uname -m))
SYSROOT := $(patsubst --sysroot=%,%,$(filter --sysroot=%,$(CCC)))

O ?= r
mode_r := release
mode_d := debug
mode_a := asan
mode_t := tsan
mode_c := cov
mode_f := fuzz
mode_m := msan
mode_v := valgrind
modes := release debug asan tsan cov fuzz msan valgrind
MODE := $(or $(mode_$(O)),$(filter $(modes),$(O)))
ifeq ($(MODE),)
$(error O=$(O): one of r d a t c f m v, or $(modes))
endif

flags_release := -O3 -g -DNDEBUG
flags_debug := -O0 -g -fno-omit-frame-pointer
flags_asan := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
flags_tsan := -O1 -g -fno-omit-frame-pointer -fsanitize=thread
flags_cov := -O0 -g --coverage
# Buffers are small there: the little data of an input fills several of each, and the sanitizer is slow with large ones.
flags_fuzz := -O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined \
  -fno-sanitize-recover=undefined -DFUZZ_ONE -DBLKIO_WRITER_BUF=32768u -DBLKIO_DIRECT_BUF=16384u -DWAL_BUF=32768u \
  -DWAL_WINDOW=65536u -DSST_BUILD_GATHER=65536u
flags_msan := -O1 -g -fno-omit-frame-pointer -fsanitize=memory -fsanitize-memory-track-origins \
  -mllvm -msan-eager-checks=1
flags_valgrind := -O1 -g -gdwarf-4 -fno-omit-frame-pointer -DTEST_SLOW=40u \
  -DMEM_LARGE=SIZE_MAX
link_asan := -fsanitize=address,undefined
link_tsan := -fsanitize=thread
link_cov := --coverage
link_fuzz := -fsanitize=fuzzer,address,undefined
# The files of tests/lib/wrap.h, and what they stand before.
wrap_msan := msan uring
wrap_valgrind := uring
wrapped = $(shell sed -n 's/^WRAP.[^,]*, \([A-Za-z0-9_]*\),.*/-Wl,--wrap=\1/p' $(wrap_$(MODE):%=tests/lib/%.c))
link_msan = -fsanitize=memory -Wno-unused-command-line-argument $(wrapped)
link_valgrind = $(wrapped)

CC_IS_CLANG := $(shell $(CCC) --version 2>/dev/null | grep -c clang)
ifeq ($(CC_IS_CLANG),0)
flags_tsan += -Wno-tsan  # gcc's sanitizer does not model fences; the one in epoch.c is for the processor only
endif

CFLAGS_ALL := -std=gnu11 $(flags_$(MODE)) -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef \
  -Wvla -fno-strict-aliasing -fPIC -fvisibility=hidden -pthread -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -I.
LDFLAGS_ALL := -pthread $(link_$(MODE))

ifneq ($(N),)
CFLAGS_ALL += -march=native
endif

pkg = $(shell pkg-config $(1) $(2) 2>/dev/null)
LIBS := $(or $(call pkg,--libs,libzstd),-lzstd)
CFLAGS_ALL += $(call pkg,--cflags,libxxhash libzstd)
# liburing is of Linux; the library does without it where it is not installed
ifeq ($(UNAME),Linux)
ifneq ($(or $(call pkg,--libs,liburing),$(wildcard $(SYSROOT)/usr/include/liburing.h)),)
CFLAGS_ALL += $(call pkg,--cflags,liburing)
LIBS += $(or $(call pkg,--libs,liburing),-luring)
else
CFLAGS_ALL += -DREMIXDB_NO_URING
endif
# where glibc before 2.34 has POSIX AIO
LIBS += -lrt
else
CFLAGS_ALL += -DREMIXDB_NO_URING
endif
TEST_LIBS := -lm $(or $(call pkg,--libs,cmocka),-lcmocka)
TEST_CFLAGS := $(call pkg,--cflags,cmocka)

ifeq ($(M),j)
MALLOC_LIBS := $(or $(call pkg,--libs,jemalloc),-ljemalloc)
else ifeq ($(M),t)
MALLOC_LIBS := $(or $(call pkg,--libs,libtcmalloc_minimal),$(call pkg,--libs,libtcmalloc),-ltcmalloc)
else ifneq ($(M),)
$(error M=$(M): j (jemalloc) or t (tcmalloc))
endif

# The library; the name that programs know it by; its name when it is installed.
ifeq ($(UNAME),Darwin)
SO := libremixdb.dylib
SO_LINK := libremixdb.$(VERSION_MAJOR).dylib
SO_FULL := libremixdb.$(VERSION).dylib
SO_LDFLAGS := -dynamiclib -install_name @rpath/$(SO_LINK) -Wl,-exported_symbol,'_remixdb_*'
RPATH := -Wl,-rpath,@loader_path
LEVELDB_SO := libremixdb-leveldb.dylib
LEVELDB_LINK := libremixdb-leveldb.$(VERSION_MAJOR).dylib
LEVELDB_FULL := libremixdb-leveldb.$(VERSION).dylib
LEVELDB_LDFLAGS := -dynamiclib -install_name @rpath/$(LEVELDB_LINK) -Wl,-exported_symbol,'_leveldb_*'
else
SO := libremixdb.so
SO_LINK := libremixdb.so.$(VERSION_MAJOR)
SO_FULL := libremixdb.so.$(VERSION)
SO_LDFLAGS := -shared -Wl,-soname,$(SO_LINK) -Wl,--version-script=remixdb.map -Wl,--as-needed
RPATH := -Wl,-rpath,'$$ORIGIN'
LEVELDB_SO := libremixdb-leveldb.so
LEVELDB_LINK := libremixdb-leveldb.so.$(VERSION_MAJOR)
LEVELDB_FULL := libremixdb-leveldb.so.$(VERSION)
LEVELDB_LDFLAGS := -shared -Wl,-soname,$(LEVELDB_LINK) -Wl,--version-script=compat/leveldb/leveldb.map
ifneq ($(MALLOC_LIBS),)
MALLOC_LIBS := -Wl,--no-as-needed $(MALLOC_LIBS) -Wl,--as-needed
endif
ifneq ($(filter release debug,$(MODE)),)
SO_LDFLAGS += -Wl,-z,defs
endif
endif

CFLAGS_ALL += $(EXTRA_CFLAGS)
LDFLAGS_ALL += $(EXTRA_LDFLAGS)

# ---- files

FOLDERS := base wh log table value remix view compact store admin
SIMPLE := xdbdemo.out xdbtest.out xdbexit.out
PROGRAMS := remixdb.out $(SIMPLE) xdbbench.out
SRCS := $(sort $(filter-out $(SIMPLE:%.out=%.c),$(wildcard *.c)) $(wildcard $(FOLDERS:%=%/*.c)))
# LevelDB's C interface: a library of its own on top of the public one.
LEVELDB_SRCS := $(sort $(wildcard compat/leveldb/*.c))
# remixdb.out and xdbdemo.out share these.
TOOLS := $(addprefix tools/,tool text progress commands transfer metrics)
HDRS := $(sort $(wildcard *.h $(FOLDERS:%=%/*.h)))

B := build/$(MODE)-$(notdir $(firstword $(CCC)))$(if $(filter --target=%,$(CCC)),-$(TARGET))$(if $(N),-native)
OBJS := $(SRCS:%.c=$B/%.o)
STATIC := $B/libremixdb.a
LEVELDB_OBJS := $(LEVELDB_SRCS:%.c=$B/%.o)
WRAP_O := $(wrap_$(MODE):%=$B/tests/lib/%.o)

include tools/bench/bench.mk

# ---- building: a line per file

Q := $(if $(V),,@)
say = $(if $(V),@:,@echo "$(1) $(patsubst $B/%,%,$@)")
link = $(Q)$(CCC) $(LDFLAGS_ALL) $(filter %.o,$^) $(filter %.a,$^)

all: $(SO) $(SO_LINK) $(LEVELDB_SO) $(LEVELDB_LINK) $(PROGRAMS) $(if $(filter release debug,$(MODE)),python)

# CFLAGS_ALL has all that a sanitizer needs to be linked; a fuzzer brings a main of its own.
deps_check = CCC='$(CCC)' CFLAGS=$(call quote,$(CFLAGS_ALL)) \
  LDFLAGS=$(call quote,$(filter-out -fsanitize=%,$(LDFLAGS_ALL))) sh .ci/deps --check
# A file changes when the flags do, so that what was built with others is built again. Missing libraries are found here.
FLAGS := $(call quote,$(CCC) $(CFLAGS_ALL) $(BENCH_CFLAGS))
$B/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(FLAGS) | cmp -s - $@ || { $(deps_check) --library && printf '%s\n' $(FLAGS) >$@; }
# The products in the root belong to one mode at a time.
PRODUCTS := $(call quote,$B $(LDFLAGS_ALL) $(LIBS) $(MALLOC_LIBS) $(ML))
build/products: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' $(PRODUCTS) | cmp -s - $@ || printf '%s\n' $(PRODUCTS) >$@

# The public functions are defined here and nothing else is visible: the version script cuts the rest.
$B/remixdb.o: private OWN_FLAGS := -fvisibility=default
ifneq ($(filter x86_64 amd64,$(TARGET)),)
$B/base/hash_avx2.o: private OWN_FLAGS := -mavx2
endif
$B/%.o: %.c $B/flags
	@mkdir -p $(@D)
	$(call say,CC  )
	$(Q)$(CCC) $(CFLAGS_ALL) $(OWN_FLAGS) -MMD -MP -c $< -o $@

$(STATIC): $(OBJS)
	@rm -f $@
	$(call say,AR  )
	$(Q)$(AR) rcs $@ $^

$(SO): $(OBJS) $(WRAP_O) remixdb.map build/products
	$(call say,LINK)
	$(Q)$(CCC) $(CFLAGS_ALL) $(LDFLAGS_ALL) $(SO_LDFLAGS) $(filter %.o,$^) $(if $(ML),$(MALLOC_LIBS)) $(LIBS) -o $@
$(SO_LINK): $(SO)
	$(Q)ln -sf $(SO) $@

# Makes the parts of Python's packages: the extension module beside xdb.py, and the library in a directory of its own
# (OUT).
python: remixdb.h
	$(Q)sh python/build.sh '$(CCC)'
wheel-library: $(OBJS) remixdb.map
	$(call say,LINK)
	$(Q)mkdir -p '$(OUT)'
	$(Q)$(CCC) $(CFLAGS_ALL) $(LDFLAGS_ALL) $(SO_LDFLAGS) $(filter %.o,$^) $(LIBS) -o '$(OUT)/$(SO)'

$B/compat/leveldb/%.o: private OWN_FLAGS := -Icompat/leveldb
$(LEVELDB_SO): $(LEVELDB_OBJS) compat/leveldb/leveldb.map $(SO) $(SO_LINK) build/products
	$(call say,LINK)
	$(Q)$(CCC) $(CFLAGS_ALL) $(LDFLAGS_ALL) $(LEVELDB_LDFLAGS) $(filter %.o,$^) $(SO) $(RPATH) -o $@
$(LEVELDB_LINK): $(LEVELDB_SO)
	$(Q)ln -sf $(LEVELDB_SO) $@

$(SIMPLE:%=$B/%): %.out: %.o
$(SIMPLE): %.out: $B/%.o
remixdb.out $B/remixdb.out: $B/tools/remixdb.o
remixdb.out $B/remixdb.out xdbdemo.out $B/xdbdemo.out: $(TOOLS:%=$B/%.o)
ifneq ($(filter release debug,$(MODE)),)
# It is installed in a directory beside the library's.
remixdb.out: private PROGRAM_LIBS := $(RPATH)/../lib
$(PROGRAMS): $(SO) $(SO_LINK) build/products
	$(call say,LINK)
	$(link) $(MALLOC_LIBS) $(SO) $(PROGRAM_LIBS) $(RPATH) -o $@
else
# Under a sanitizer the programs hold the library, so that one runtime sees all.
UNIT_PROGRAMS := $(PROGRAMS:%=$B/%)
$(UNIT_PROGRAMS): $(WRAP_O) $(STATIC)
	$(call say,LINK)
	$(link) $(MALLOC_LIBS) $(LIBS) $(PROGRAM_LIBS) -o $@
$(PROGRAMS): %: $B/% build/products
	$(Q)cp $B/$@ $@
endif

include tests/tests.mk
.SECONDARY:
-include $(wildcard $B/*.d $B/*/*.d $B/*/*/*.d)

# ---- the demonstration, installing

lint:
	@sh tests/lint.sh

demo: all
	@sh tools/demo.sh $(if $(FILE),$(call quote,$(FILE)))

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
BINDIR ?= $(PREFIX)/bin
MANDIR ?= $(DATADIR)/man
PLACES := DESTDIR PREFIX LIBDIR INCLUDEDIR DATADIR BINDIR MANDIR SO SO_LINK SO_FULL LEVELDB_SO LEVELDB_LINK \
  LEVELDB_FULL VERSION
installer = @$(foreach v,$(PLACES),$v=$(call quote,$($v))) LIBS_PRIVATE=$(call quote,$(LIBS)) sh tools/install.sh $@
install: $(SO) $(LEVELDB_SO) remixdb.out
	$(installer)
uninstall:
	$(installer)

clean:
	rm -rf build $(SO) $(SO_LINK) $(LEVELDB_SO) $(LEVELDB_LINK) remixdb.pc $(PROGRAMS) _xdb.*.so

endif  # deps

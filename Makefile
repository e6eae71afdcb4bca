# SPDX-License-Identifier: Apache-2.0
#
# make                 the library and the programs
# make deps            installs what is missing
# make test            every unit test, then the python tests; goes on after a failing one
# make bench           the stores that are here side by side, into bench/results (docs/BENCHMARK.md)
# make bench-deps      installs the other stores
# make golden          writes the golden files (tests/golden) anew: for a change of formats only
# make demo            the tour, then a word list in and out again (FILE=path for another)
# make check-asan, check-tsan, check-msan, check-valgrind, check-headers, check-exports, check-seam, check-prefetch, check-leaks, check-layers
# make check-compile   whether all compiles for another system, with a compiler for it:
#                      make check-compile CCC='zig cc -target aarch64-macos' EXTRA_CFLAGS=-Idirectory
# make fuzz            every fuzz target for FUZZ_SECONDS (60), FUZZ_JOBS at a time (all processors), FUZZ=name for one; needs clang
# make soak            random campaigns with new seeds for SOAK_SECONDS (600): the model, histories of threads, power cuts and failures
# make install         DESTDIR=, PREFIX=/usr/local
#
# CCC=compiler   clang when there, else gcc
# O=mode         r release (default), d debug, a address+undefined, t thread, c coverage, f libFuzzer with address+undefined, m memory sanitizer (clang),
#                v for valgrind
# M=j, M=t       jemalloc, tcmalloc for the programs; with ML=1 the library is linked to it too
# N=1            for this machine's processor (-march=native)
# EXTRA_CFLAGS=, EXTRA_LDFLAGS=
# For another processor: CCC='aarch64-linux-gnu-gcc --sysroot=DIR' (clang: --target= too), UNDER='qemu-aarch64-static -L DIR' to run the unit tests by (README.md)

ifneq ($(filter 3.%,$(MAKE_VERSION)),)
$(error GNU make 4 is needed, and this is $(MAKE_VERSION). macOS: sh .ci/deps, then gmake)
endif
.DEFAULT_GOAL := all
comma := ,
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
SHELL := /bin/sh

VERSION_MAJOR := 0
VERSION := $(shell sed -n 's/^.define REMIXDB_VERSION_STRING "\(.*\)"/\1/p' remixdb.h)

# ---- the compiler and the mode

CCC ?= $(shell for c in clang gcc; do command -v $$c >/dev/null 2>&1 && { echo $$c; exit; }; done; echo cc)
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
flags_fuzz := -O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -DFUZZ_ONE \
  -DBLKIO_WRITER_BUF=32768u -DWAL_BUF=32768u -DWAL_WINDOW=65536u -DSST_BUILD_GATHER=65536u
flags_msan := -O1 -g -fno-omit-frame-pointer -fsanitize=memory -fsanitize-memory-track-origins -mllvm -msan-eager-checks=1
flags_valgrind := -O1 -g -gdwarf-4 -fno-omit-frame-pointer -DTEST_SLOW=40u
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

CFLAGS_ALL := -std=gnu11 $(flags_$(MODE)) -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla \
  -fno-strict-aliasing -fPIC -fvisibility=hidden -pthread -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -I.
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
else
SO := libremixdb.so
SO_LINK := libremixdb.so.$(VERSION_MAJOR)
SO_FULL := libremixdb.so.$(VERSION)
SO_LDFLAGS := -shared -Wl,-soname,$(SO_LINK) -Wl,--version-script=remixdb.map -Wl,--as-needed
RPATH := -Wl,-rpath,'$$ORIGIN'
ifneq ($(MALLOC_LIBS),)
MALLOC_LIBS := -Wl,--no-as-needed $(MALLOC_LIBS) -Wl,--as-needed
endif
ifneq ($(filter release debug,$(MODE)),)
SO_LDFLAGS += -Wl,-z,defs
endif
endif

# The benchmark takes in the other stores whose headers are here; not under a sanitizer, which does not know what they do.
has = $(firstword $(wildcard $(addprefix $(SYSROOT),$(addsuffix /$(1),/usr/include /usr/local/include /opt/homebrew/include))))
ifneq ($(UNAME),Linux)
# Compiler and linker do not look where packages are.
BENCH_PREFIXES := $(patsubst %/include,%,$(wildcard /usr/local/include /opt/homebrew/include))
BENCH_CFLAGS += $(BENCH_PREFIXES:%=-I%/include)
endif
ifneq ($(filter release debug,$(MODE)),)
ifneq ($(call has,rocksdb/c.h),)
BENCH_ENGINES += rocksdb
# its version is told to C++ only
BENCH_CFLAGS += -DBENCH_ROCKSDB='"$(shell sed -nE 's/^.define ROCKSDB_(MAJOR|MINOR|PATCH) *//p' $(call has,rocksdb/version.h) | paste -sd. -)"'
endif
ifneq ($(call has,leveldb/c.h),)
BENCH_ENGINES += leveldb
BENCH_CFLAGS += -DBENCH_LEVELDB
endif
ifneq ($(call has,lmdb.h),)
BENCH_ENGINES += lmdb
BENCH_CFLAGS += -DBENCH_LMDB
endif
ifneq ($(call has,wiredtiger.h),)
BENCH_ENGINES += wiredtiger
BENCH_CFLAGS += -DBENCH_WIREDTIGER
endif
endif

CFLAGS_ALL += $(EXTRA_CFLAGS)
LDFLAGS_ALL += $(EXTRA_LDFLAGS)

# ---- files

# the library (docs/ARCHITECTURE.md has the order in which they use each other)
MODULES := \
  lib kv $(addprefix base/, anchors dirlock env epoch err files fork hash_avx2 workers) \
  blkio \
  wh $(addprefix wh/, cursor guide leaf pass trie) \
  $(addprefix log/, append format reader recover salvage) \
  $(addprefix table/, batch block build cache ckb fdpool format hold pieces readahead scan stored) sst \
  $(addprefix remix/, build cursor fresh pack remix splice write) \
  $(addprefix view/, current memtable merge multiget super version) \
  $(addprefix compact/, fresh plan round tables) \
  $(addprefix store/, batch dir idle pace ref replay round snapshot state syncer) xdb \
  $(addprefix admin/, checkpoint repair repair_log repair_table stats verify witness) \
  remixdb

SRCS := $(wildcard $(MODULES:%=%.c))
HDRS := $(sort $(wildcard *.h $(patsubst %,%/*.h,base wh log table remix view compact store admin)))
PROGRAMS := remixdb.out xdbdemo.out xdbtest.out xdbexit.out xdbbench.out
# what remixdb and xdbdemo share
TOOLS := $(addprefix tools/, tool text progress commands transfer)
BENCH := $(addprefix tools/bench/, xdbbench report work key hist sys engine remixdb)
BENCH_OBJS = $(addprefix $B/,$(addsuffix .o,$(BENCH) $(BENCH_ENGINES:%=tools/bench/%)))
UNIT_SRCS := $(sort $(wildcard tests/unit/test_*.c tests/store/test_*.c tests/fuzz/test_*.c))
FUZZ_SRCS := $(sort $(wildcard tests/fuzz/fuzz_*.c))
PY_TESTS := $(sort $(wildcard tests/py/test_*.py))

B := build/$(MODE)-$(notdir $(firstword $(CCC)))$(if $(filter --target=%,$(CCC)),-$(TARGET))$(if $(N),-native)
OBJS := $(SRCS:%.c=$B/%.o)
ifneq ($(filter x86_64 amd64,$(TARGET)),)
$B/base/hash_avx2.o: private WIDER := -mavx2
endif
STATIC := $B/libremixdb.a
WRAP_O := $(wrap_$(MODE):%=$B/tests/lib/%.o)
UNITS := $(UNIT_SRCS:%.c=$B/%)

# ---- building: a line per file; V=1 shows the commands
Q := $(if $(V),,@)
say = $(if $(V),@:,@echo "$(1) $(patsubst $B/%,%,$@)")

.PHONY: all deps demo golden install clean FORCE
.PHONY: bench bench-deps soak
.PHONY: test test-unit units
.PHONY: check-asan check-tsan check-msan check-valgrind check-headers check-exports check-seam check-prefetch check-leaks check-layers check-compile
.PHONY: fuzz run-fuzz fuzz-merge run-fuzz-merge
all: $(SO) $(SO_LINK) $(PROGRAMS)

# A file that changes when the flags do, so that what was built with others is built again.
$B/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(CCC) $(CFLAGS_ALL) $(BENCH_CFLAGS))' | cmp -s - $@ || printf '%s\n' '$(subst ','\'',$(CCC) $(CFLAGS_ALL) $(BENCH_CFLAGS))' >$@
# The products in the root belong to one mode at a time.
build/products: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$B $(LDFLAGS_ALL) $(LIBS) $(MALLOC_LIBS) $(ML))' | cmp -s - $@ || \
	  printf '%s\n' '$(subst ','\'',$B $(LDFLAGS_ALL) $(LIBS) $(MALLOC_LIBS) $(ML))' >$@

# The public functions are defined here and nothing else is visible: the version script cuts the rest.
$B/remixdb.o: private VISIBILITY := -fvisibility=default
# What a fuzzer is to find lies elsewhere than in hashing and in the disk of the tests: they tell it nothing and take its time.
ifeq ($(MODE),fuzz)
$B/lib.o $B/tests/lib/simdisk.o: private UNTRACED := -fno-sanitize=fuzzer-no-link
endif

$B/%.o: %.c $B/flags
	@mkdir -p $(@D)
	$(call say,CC  )
	$(Q)$(CCC) $(CFLAGS_ALL) $(WIDER) $(VISIBILITY) $(UNTRACED) $(if $(filter tests/%,$<),$(TEST_CFLAGS)) $(if $(filter tools/bench/%,$<),$(BENCH_CFLAGS)) -MMD -MP -c $< -o $@

$(STATIC): $(OBJS)
	@rm -f $@
	$(call say,AR  )
	$(Q)$(AR) rcs $@ $^

$(SO): $(OBJS) $(WRAP_O) remixdb.map build/products
	$(call say,LINK)
	$(Q)$(CCC) $(CFLAGS_ALL) $(LDFLAGS_ALL) $(SO_LDFLAGS) $(OBJS) $(WRAP_O) $(if $(ML),$(MALLOC_LIBS)) $(LIBS) -o $@
$(SO_LINK): $(SO)
	$(Q)ln -sf $(SO) $@

# Under a sanitizer the programs hold the library, so that one runtime sees all.
xdbbench.out $B/xdbbench.out: private PROGRAM_LIBS := $(BENCH_PREFIXES:%=-L%/lib) $(BENCH_ENGINES:%=-l%) -lm
ifneq ($(filter release debug,$(MODE)),)
xdbbench.out: $(BENCH_OBJS)
$(filter-out remixdb.out xdbbench.out,$(PROGRAMS)): %.out: $B/%.o
remixdb.out: $B/tools/remixdb.o
remixdb.out xdbdemo.out: $(TOOLS:%=$B/%.o)
# It is installed in a directory beside the library's.
remixdb.out: private PROGRAM_LIBS := $(RPATH)/../lib
$(PROGRAMS): %.out: $(SO) $(SO_LINK) build/products
	$(call say,LINK)
	$(Q)$(CCC) $(LDFLAGS_ALL) $(filter %.o,$^) $(MALLOC_LIBS) $(SO) $(PROGRAM_LIBS) $(RPATH) -o $@
else
$B/xdbbench.out: $(BENCH_OBJS)
$(filter-out $B/remixdb.out $B/xdbbench.out,$(PROGRAMS:%=$B/%)): $B/%.out: $B/%.o
$B/remixdb.out: $B/tools/remixdb.o
$B/remixdb.out $B/xdbdemo.out: $(TOOLS:%=$B/%.o)
$(PROGRAMS:%=$B/%): $B/%.out: $(WRAP_O) $(STATIC)
	$(call say,LINK)
	$(Q)$(CCC) $(LDFLAGS_ALL) $(filter %.o,$^) $(STATIC) $(MALLOC_LIBS) $(LIBS) $(PROGRAM_LIBS) -o $@
$(PROGRAMS): %: $B/% build/products
	$(Q)cp $< $@
# The check of a mode (test-unit) sees that they can be linked.
UNIT_PROGRAMS := $(PROGRAMS:%=$B/%)
endif

# The replay of the corpus holds every fuzz target.
$B/tests/fuzz/test_corpus: $(FUZZ_SRCS:%.c=$B/%.o)
# Parts of the benchmark, which are no parts of the library.
$B/tests/unit/test_bench_%: $B/tests/unit/test_bench_%.o $B/tools/bench/%.o
	$(call say,LINK)
	$(Q)$(CCC) $(LDFLAGS_ALL) $(filter %.o,$^) $(if $(WRAP_O),$(LIBS)) $(TEST_LIBS) -lm -o $@

$(filter-out $B/tests/unit/test_bench_%,$(UNITS)): %: %.o $B/tests/lib/simdisk.o $B/tests/lib/descriptors.o $(WRAP_O) $(STATIC)
	$(call say,LINK)
	$(Q)$(CCC) $(LDFLAGS_ALL) $(filter %.o,$^) $(STATIC) $(LIBS) $(TEST_LIBS) -o $@

$B/tests/fuzz/fuzz_%: $B/tests/fuzz/fuzz_%.o $B/tests/lib/simdisk.o $(STATIC)
	$(call say,LINK)
	$(Q)$(CCC) $(LDFLAGS_ALL) $(filter %.o,$^) $(STATIC) $(LIBS) -o $@

# Measuring programs: built on demand, run by hand. Some use what the tests share, which needs cmocka.
$B/tests/bench/bench_runs: private BENCH_LIBS := $(TEST_LIBS)
$B/tests/bench/bench_%: $B/tests/bench/bench_%.o $(WRAP_O) $(STATIC)
	$(call say,LINK)
	$(Q)$(CCC) $(LDFLAGS_ALL) $(filter %.o,$^) $(STATIC) $(MALLOC_LIBS) $(LIBS) $(BENCH_LIBS) -o $@

$B/tests/lib/leak: $B/tests/lib/leak.o $B/tests/lib/descriptors.o
	$(call say,LINK)
	$(Q)$(CCC) $(LDFLAGS_ALL) $^ -o $@

units: $(UNITS) $(UNIT_PROGRAMS)

.SECONDARY:
-include $(wildcard $B/*.d $B/*/*.d $B/*/*/*.d)

# ---- testing

TEST_ENV := ASAN_OPTIONS=detect_stack_use_after_return=1:allocator_may_return_null=1:$$ASAN_OPTIONS \
  UBSAN_OPTIONS=print_stacktrace=1:$$UBSAN_OPTIONS TSAN_OPTIONS=second_deadlock_stack=1:allocator_may_return_null=1:$$TSAN_OPTIONS
TIMEOUT := $(shell command -v timeout >/dev/null 2>&1 && echo timeout $(if $(filter valgrind,$(MODE)),1800,300))
# What a test program is run by.
UNDER := $(if $(filter valgrind,$(MODE)),valgrind -q --error-exitcode=97 --leak-check=full --errors-for-leak-kinds=definite$(comma)indirect$(comma)possible \
  --fair-sched=try --suppressions=tests/lib/valgrind.supp)
PYTHON = $(shell for p in python3 /usr/bin/python3; do $$p -c 'import pytest, xxhash, zstandard' >/dev/null 2>&1 && \
  { echo $$p; break; }; done)

# LeakSanitizer comes with the address sanitizer, but not everywhere.
LEAK_MEMORY := $(if $(filter asan,$(MODE)),$(filter Linux,$(UNAME)),$(filter valgrind,$(MODE)))

# A test that does not compile is a failing one; those that do still run.
define run_units
bad=; nr=0; passed=0; failed=0; \
$(MAKE) --no-print-directory -k units || bad=" (building)"; \
for t in $(UNITS); do \
  nr=$$((nr + 1)); log=$$t.log; \
  if [ ! -x $$t ]; then echo "$${t##*/}: not built"; failed=$$((failed + 1)); bad="$$bad $${t##*/}"; continue; fi; \
  $(TEST_ENV) $(TIMEOUT) $(UNDER) $$t >$$log 2>&1; rc=$$?; \
  p=$$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' $$log | tail -1); passed=$$((passed + $${p:-0})); \
  f=$$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test.*/\1/p' $$log | tail -1); \
  case $$rc in 0|77) ;; *) failed=$$((failed + $${f:-1}));; esac; \
  if [ $$rc -eq 0 ]; then echo "$${t##*/}: $$(grep -aE '^\[  PASSED  \]' $$log | tail -1)"; \
  elif [ $$rc -eq 77 ]; then echo "$${t##*/}: skipped: $$(tail -1 $$log)"; \
  else cat $$log; echo "$${t##*/}: FAILED (exit status $$rc)"; bad="$$bad $${t##*/}"; fi; \
done
endef

test-unit: check-leaks
	+@$(run_units); \
	echo "unit tests: $$nr programs, failed:$${bad:- none}"; [ -z "$$bad" ]

test:
	+@$(run_units); units_bad=$$bad; \
	py=0; \
	if [ -z "$(PY_TESTS)" ]; then :; \
	elif [ -z "$(filter release debug,$(MODE))" ]; then echo "python tests: not run with a sanitizer or coverage"; \
	elif [ -z "$(PYTHON)" ]; then echo "python tests: no python that has pytest, xxhash and zstandard; run make deps"; py=1; \
	else \
	  $(MAKE) --no-print-directory all || py=1; \
	  REMIXDB_LIBRARY='$(CURDIR)/$(SO)' PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m pytest -q -p no:cacheprovider tests || py=1; \
	fi; \
	exp=0; $(MAKE) --no-print-directory -k check-headers check-exports check-seam check-prefetch check-leaks check-layers || exp=1; \
	echo "unit tests: $$nr programs, failed:$${units_bad:- none}"; \
	[ $$py -eq 0 ] || echo "python tests: FAILED"; \
	[ $$exp -eq 0 ] || echo "headers, exports, seam, prefetches, leaks or layers: FAILED"; \
	echo "cmocka: $$passed passed, $$failed failed"; \
	[ -z "$$units_bad" ] && [ $$py -eq 0 ] && [ $$exp -eq 0 ]

# Each campaign has a quarter of the time; that of failing calls is made once in full, which takes about three minutes. The logs have the seeds of what failed; the
# command that repeats it is at the top of the test's source.
SOAK_SECONDS ?= 600
SOAK := model history crash
soak: $(SOAK:%=$B/tests/store/test_%)
	@share=$$(($(SOAK_SECONDS) / 4)); bad=; \
	for t in model history; do \
	  $(TEST_ENV) SOAK_SECONDS=$$share $B/tests/store/test_$$t >$B/soak_$$t.log 2>&1 || bad="$$bad $$t"; \
	  echo "$$t: $$(grep -a operations $B/soak_$$t.log | tail -1)"; \
	done; \
	$(TEST_ENV) CRASH_NTH=all $B/tests/store/test_crash test_nth >$B/soak_nth.log 2>&1 || bad="$$bad nth"; \
	echo "failing calls: $$(grep -a 'lives in all' $B/soak_nth.log)"; \
	first=$$(date +%s); seed=$$first; end=$$((seed + share)); : >$B/soak_crash.log; \
	while [ $$(date +%s) -lt $$end ]; do \
	  $(TEST_ENV) CRASH_SEED=$$seed CRASH_SEEDS=10 $B/tests/store/test_crash >>$B/soak_crash.log 2>&1 || { bad="$$bad crash"; break; }; \
	  $(TEST_ENV) CRASH_SEED=$$seed CRASH_SEEDS=100 $B/tests/store/test_crash test_each_call >>$B/soak_crash.log 2>&1 || { bad="$$bad crash"; break; }; \
	  seed=$$((seed + 100)); \
	done; \
	echo "crash: $$(grep -ao '[0-9]* power cuts' $B/soak_crash.log | awk '{ n += $$1 } END { print n + 0 }') power cuts"; \
	for t in $$bad; do tail -20 $B/soak_$$t.log; done; \
	echo "soak: failed:$${bad:- none}"; [ -z "$$bad" ]

check-asan:
	@$(MAKE) --no-print-directory O=a test-unit
check-tsan:
	@$(MAKE) --no-print-directory O=t test-unit
check-valgrind:
	@command -v valgrind >/dev/null 2>&1 || { echo "make $@: there is no valgrind here"; exit 1; }
	@$(MAKE) --no-print-directory O=v test-unit
check-msan:
	@[ -n "$(SOME_CLANG)" ] || { echo "make $@: there is no clang here"; exit 1; }
	@$(MAKE) --no-print-directory CCC='$(SOME_CLANG)' O=m test-unit

# What is found stays in build/fuzz: the corpus grows there, and an input that fails is build/fuzz/<target>-crash-*, or -timeout-* or -oom-*, of which libFuzzer
# would otherwise take no notice with -fork.
FUZZ_SECONDS ?= 60
FUZZ_JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
FUZZ ?= $(FUZZ_SRCS:tests/fuzz/fuzz_%.c=%)
# How inputs are chosen by rarity costs a time for each place that one reaches: a target that reaches thousands is done two to three times as often without.
FUZZ_PACE = $$([ $$t = api ] && echo -entropic=0)
SOME_CLANG = $(shell for c in $(CCC) clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do \
  command -v $$c >/dev/null 2>&1 && $$c --version 2>/dev/null | grep -q clang && { echo $$c; break; }; done)
fuzz fuzz-merge:
	@[ -n "$(SOME_CLANG)" ] || { echo "make $@: there is no clang here"; exit 1; }
	@$(MAKE) --no-print-directory CCC='$(SOME_CLANG)' O=f run-$@
run-fuzz: $(FUZZ:%=$B/tests/fuzz/fuzz_%)
	@bad=; for t in $(FUZZ); do \
	  mkdir -p build/fuzz/$$t; echo "== $$t: $(FUZZ_SECONDS) s, $(FUZZ_JOBS) at a time"; \
	  $(TEST_ENV) $B/tests/fuzz/fuzz_$$t $(FUZZ_PACE) -fork=$(FUZZ_JOBS) -max_total_time=$(FUZZ_SECONDS) -timeout=60 -rss_limit_mb=4096 -ignore_timeouts=0 -ignore_ooms=0 \
	    -artifact_prefix=build/fuzz/$$t- build/fuzz/$$t tests/corpus/$$t >build/fuzz/$$t.log 2>&1 || bad="$$bad $$t"; \
	  grep -aE '^#[0-9]+: cov:' build/fuzz/$$t.log | tail -1; \
	  case " $$bad " in *" $$t "*) tail -40 build/fuzz/$$t.log;; esac; \
	done; echo "fuzzing: failed:$${bad:- none}"; [ -z "$$bad" ]
# Makes tests/corpus a few inputs that reach as much as build/fuzz and itself do together (how often each place is reached does not count).
run-fuzz-merge: $(FUZZ:%=$B/tests/fuzz/fuzz_%)
	@for t in $(FUZZ); do \
	  rm -rf build/fuzz/merged && mkdir -p build/fuzz/merged build/fuzz/$$t && \
	  $B/tests/fuzz/fuzz_$$t -merge=1 -use_counters=0 build/fuzz/merged tests/corpus/$$t build/fuzz/$$t >build/fuzz/$$t.merge.log 2>&1 && \
	  rm -rf tests/corpus/$$t && mv build/fuzz/merged tests/corpus/$$t && \
	  echo "$$t: $$(ls tests/corpus/$$t | wc -l) inputs, $$(cat tests/corpus/$$t/* | wc -c) bytes" || exit 1; \
	done

# A program that leaks a descriptor fails, and under the address sanitizer and valgrind one that leaks memory.
check-leaks: $B/tests/lib/leak
	@run() { $(TEST_ENV) $(UNDER) $B/tests/lib/leak "$$@" >$B/tests/lib/leak.log 2>&1; }; \
	run || { cat $B/tests/lib/leak.log; echo "leaks: a program without one fails"; exit 1; }; \
	run descriptor && { echo "leaks: that of a descriptor is not noticed"; exit 1; }; \
	if [ -n "$(LEAK_MEMORY)" ]; then run memory && { echo "leaks: that of memory is not noticed"; exit 1; }; fi; \
	echo "leaks: of descriptors$(if $(LEAK_MEMORY), and memory) are noticed"

# Includes go down the layers (tests/layers.txt).
check-layers:
	@sh tests/layers_check.sh

check-headers:
	@bad=0; for h in $(HDRS); do \
	  printf '#include "%s"\n' $$h | $(CCC) $(CFLAGS_ALL) -Werror -fsyntax-only -x c - || \
	    { echo "$$h: does not compile alone"; bad=1; }; \
	done; \
	cxx=$$(for c in $(CXX) clang++ g++ c++; do command -v $$c >/dev/null 2>&1 && { echo $$c; break; }; done); \
	if [ -n "$$cxx" ]; then \
	  printf '#include "remixdb.h"\n' | $$cxx -std=c++17 -Wall -Wextra -Werror -I. -fsyntax-only -x c++ - || bad=1; \
	fi; \
	echo "headers: $(words $(HDRS)) compiled alone, $$([ $$bad -eq 0 ] && echo good || echo BAD)"; exit $$bad

# Nothing is linked or run, and io_uring is left out. EXTRA_CFLAGS names a directory that has the headers of xxHash, zstd and cmocka and no others.
COMPILED := $(SRCS) $(filter-out remixdb.c xdbbench.c,$(PROGRAMS:%.out=%.c)) $(TOOLS:%=%.c) tools/remixdb.c $(BENCH:%=%.c) $(UNIT_SRCS)
check-compile:
	@bad=; for f in $(COMPILED); do \
	  $(CCC) $(CFLAGS_ALL) -DREMIXDB_NO_URING -Werror -c $$f -o /dev/null || bad="$$bad $$f"; \
	done; \
	echo "compiled: $(words $(COMPILED)) files, failed:$${bad:- none}"; [ -z "$$bad" ]

# The library exports what remixdb.h declares, no more and no less. Elsewhere than on ELF nm speaks differently.
check-exports: $(if $(wildcard remixdb.c),$(SO))
ifneq ($(UNAME),Darwin)
	@[ -f remixdb.c ] || exit 0; \
	mkdir -p $B; \
	grep -v '^ *//' remixdb.h | grep -oE '\bremixdb_[a-z0-9_]+\(' | tr -d '(' | LC_ALL=C sort -u >$B/declared; \
	nm -D --defined-only $(SO) | awk '$$2 ~ /[TBDRWV]/ { sub(/@.*/, "", $$3); print $$3 }' | LC_ALL=C sort -u >$B/exported; \
	diff $B/declared $B/exported >$B/exports.diff && echo "exports: $$(wc -l <$B/exported) functions, as declared" || \
	  { echo "exports differ from remixdb.h (< declared, > exported):"; cat $B/exports.diff; exit 1; }
endif

# What the library asks of the system, and that the check notices what it must not ask.
check-seam: $(OBJS)
ifneq ($(UNAME),Darwin)
	@sh tests/seam.sh $(MODE) $(OBJS) || { echo "seam: BAD"; exit 1; }; \
	mkdir -p $B/seam/log; \
	for f in open fopen read pwrite close unlink mmap malloc free pthread_create pthread_cond_wait pthread_join puts abort exit signal setlocale dlsym; do \
	  echo "int $$f(); int seam_bad(void); int seam_bad(void) { return $$f(); }" >$B/seam/log/wal.c; \
	  $(CCC) -w -fno-builtin -c $B/seam/log/wal.c -o $B/seam/log/wal.o && ! sh tests/seam.sh $(MODE) $B/seam/log/wal.o >/dev/null || \
	    { echo "seam: a call of $$f is not noticed"; exit 1; }; \
	done; \
	echo "seam: $(words $(OBJS)) objects ask nothing of the system that they must not"
endif

# Compilers may leave prefetches out (lib.h), and nothing but time tells: the way of a get has them in the end. Where the object cannot be read nothing is said.
check-prefetch: $B/table/hold.o
	@! grep -n '__builtin_prefetch' $(filter-out lib.h,$(SRCS) $(HDRS)) || { echo "prefetch: lib.h has the functions for that"; exit 1; }
ifneq ($(and $(filter release,$(MODE)),$(filter x86_64 amd64 aarch64 arm64,$(TARGET))),)
	@command -v objdump >/dev/null 2>&1 || { echo "prefetch: no objdump here, not checked"; exit 0; }; \
	objdump -d $< >$B/sst.dis || exit 1; \
	n=$$(awk '/<sst_read_few>:/ { on = 1; next } /^$$/ { on = 0 } on' $B/sst.dis | grep -cE 'prefetch|prfm'); \
	[ $$n -ge 3 ] && echo "prefetch: $$n in a read of the cache" || { echo "prefetch: $$n in sst_read_few: the compiler has dropped them"; exit 1; }
endif

# The same program checks, when it is run without arguments, that what it wrote once is still read.
golden: $B/tests/store/test_golden
	$< write tests/golden

# ---- the demonstration

FILE ?= $(firstword $(wildcard /usr/share/dict/american-english /usr/share/dict/words))

demo: all
	@[ -n "$(FILE)" ] || { echo "demo: no word list here; run make deps, or give one: make demo FILE=path"; exit 1; }
	@work=$$(mktemp -d) || exit 1; trap 'rm -rf "$$work"' EXIT; trap 'exit 1' INT TERM; \
	echo "== the tour"; TMPDIR=$$work ./xdbdemo.out || exit 1; \
	echo "== importing $(FILE), $$(wc -l <'$(FILE)') lines"; ./xdbdemo.out import "$$work/words" '$(FILE)' || exit 1; \
	echo "== reading it back in another process"; ./xdbdemo.out dump "$$work/words" >"$$work/out" || exit 1; \
	LC_ALL=C sort -u '$(FILE)' | cmp - "$$work/out" || { echo "demo: what came back differs from LC_ALL=C sort -u"; exit 1; }; \
	echo "== $$(wc -l <"$$work/out") records came back in order, byte for byte what LC_ALL=C sort -u prints"

# ---- the benchmark

SCENARIO ?= fits
ROUNDS ?= 3
# ENGINES=remixdb,lmdb, BENCH_DB=directory, BENCH_FLAGS='--ops=1000'
bench: all
	@python3 tools/bench/bench.py --scenario $(SCENARIO) --rounds $(ROUNDS) $(if $(ENGINES),--engines $(ENGINES)) $(if $(BENCH_DB),--db '$(BENCH_DB)') -- $(BENCH_FLAGS)

# ---- the rest

deps:
	@CCC='$(CCC)' sh .ci/deps
bench-deps:
	@CCC='$(CCC)' sh .ci/deps --bench

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share
BINDIR ?= $(PREFIX)/bin
MANDIR ?= $(DATADIR)/man

quote = '$(subst ','\'',$(1))'
TO_LIB = $(call quote,$(DESTDIR)$(LIBDIR))
TO_INCLUDE = $(call quote,$(DESTDIR)$(INCLUDEDIR))
TO_BIN = $(call quote,$(DESTDIR)$(BINDIR))
TO_MAN = $(call quote,$(DESTDIR)$(MANDIR))
TO_DATA = $(call quote,$(DESTDIR)$(DATADIR))

# Blanks are fine: what is quoted in the file comes out of pkg-config for a shell to read. What no quoting brings through is refused before anything is written.
remixdb.pc: Makefile remixdb.h FORCE
	@for d in $(foreach v,PREFIX LIBDIR INCLUDEDIR DATADIR,$(call quote,$v=$($v))); do \
	  case $$d in \
	    *[\'\"\\\`$$\#]*) printf '%s\n' "make install: $$d has one of ' \" \\ \` \$$ #, which a pkg-config file cannot hold"; exit 1;; \
	    PREFIX=|*=/*) ;; \
	    *) printf '%s\n' "make install: $$d has to begin with /"; exit 1;; \
	  esac; \
	done
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' 'Name: remixdb' \
	  'Description: An embedded, ordered key-value store' 'Version: $(VERSION)' 'Libs: -L"$${libdir}" -lremixdb' \
	  'Libs.private: $(LIBS) -pthread' 'Cflags: -I"$${includedir}"' >$@

install: $(SO) remixdb.out remixdb.pc
	install -d $(TO_LIB)/pkgconfig $(TO_INCLUDE) $(TO_DATA)/remixdb $(TO_BIN) $(TO_MAN)/man1
	install -m 755 remixdb.out $(TO_BIN)/remixdb
	install -m 644 docs/remixdb.1 $(TO_MAN)/man1/remixdb.1
	install -m 644 remixdb.h $(TO_INCLUDE)/remixdb.h
	install -m 755 $(SO) $(TO_LIB)/$(SO_FULL)
ifeq ($(UNAME),Darwin)
	install_name_tool -id '$(LIBDIR)/$(SO_LINK)' $(TO_LIB)/$(SO_FULL)
endif
	ln -sf $(SO_FULL) $(TO_LIB)/$(SO_LINK)
	ln -sf $(SO_LINK) $(TO_LIB)/$(SO)
	install -m 644 remixdb.pc $(TO_LIB)/pkgconfig/remixdb.pc
	install -m 644 xdb.py $(TO_DATA)/remixdb/xdb.py

clean:
	rm -rf build $(SO) $(SO_LINK) remixdb.pc remixdb.out xdbdemo.out xdbtest.out xdbexit.out xdbbench.out

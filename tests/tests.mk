# SPDX-License-Identifier: Apache-2.0
# The tests, as a part of the Makefile: what they are made of, and how they are run. The shell is in tests/*.sh.

UNIT_SRCS := $(sort $(wildcard $(addsuffix /test_*.c,$(addprefix tests/,unit store fuzz compat))))
FUZZ_SRCS := $(sort $(wildcard tests/fuzz/fuzz_*.c))
PY_TESTS := $(sort $(wildcard tests/py/test_*.py))
UNITS := $(UNIT_SRCS:%.c=$B/%)

# ---- building

$B/tests/%.o: private OWN_FLAGS = $(TEST_CFLAGS)
$B/tests/compat/%.o: private OWN_FLAGS = $(TEST_CFLAGS) -Icompat/leveldb
$B/tests/compat/test_leveldb: $(LEVELDB_OBJS)
# Faults are sought elsewhere than in hashing and in the disk of the tests: these tell a fuzzer nothing and take time.
ifeq ($(MODE),fuzz)
$B/lib.o: private OWN_FLAGS := -fno-sanitize=fuzzer-no-link
$B/tests/lib/simdisk.o: private OWN_FLAGS = $(TEST_CFLAGS) -fno-sanitize=fuzzer-no-link
endif

# The replay of the corpus holds every fuzz target. Parts of the benchmark are no parts of the library.
$B/tests/fuzz/test_corpus: $(FUZZ_SRCS:%.c=$B/%.o)
$B/tests/unit/test_bench_%: $B/tests/unit/test_bench_%.o $B/tools/bench/%.o $(WRAP_O)
	$(call say,LINK)
	$(link) $(if $(WRAP_O),$(LIBS)) $(TEST_LIBS) -lm -o $@

# Code that tests share is compiled once, and a program is linked with the parts that it uses. The check of descriptors
# is in all of them: no program calls it. A name must be that of one file, or a program might get another one's.
FIXTURE_SRCS := $(filter-out $(patsubst %,tests/lib/%.c,descriptors leak msan uring),$(wildcard tests/lib/*.c))
FIXTURES := $B/tests/lib/fixtures.a
$(FIXTURES): $(FIXTURE_SRCS:%.c=$B/%.o)
	@rm -f $@
	$(call say,AR  )
	@nm -g $^ | awk '$$2 ~ /^[BDRT]$$/ && seen[$$3]++ { print "tests/lib: two files define " $$3; bad = 1 } \
	  END { exit bad }'
	$(Q)$(AR) rcs $@ $^
SHARED := $B/tests/lib/descriptors.o $(WRAP_O) $(FIXTURES)
$(filter-out $B/tests/unit/test_bench_%,$(UNITS)): %: %.o $(SHARED) $(STATIC)
	$(call say,LINK)
	$(link) $(LIBS) $(TEST_LIBS) -o $@

$B/tests/fuzz/fuzz_%: $B/tests/fuzz/fuzz_%.o $B/tests/lib/simdisk.o $(STATIC)
	$(call say,LINK)
	$(link) $(LIBS) -o $@

# Measuring programs: built on demand, run by hand. They may use what the tests share, which needs cmocka.
$B/tests/bench/bench_runs: private BENCH_LIBS := $(TEST_LIBS)
$B/tests/bench/bench_txn: private BENCH_LIBS := $(filter -lrocksdb,$(ENGINE_LIBS))
$B/tests/bench/bench_txn.o: private OWN_FLAGS = $(BENCH_CFLAGS)
$B/tests/bench/bench_%: $B/tests/bench/bench_%.o $(WRAP_O) $(FIXTURES) $(STATIC)
	$(call say,LINK)
	$(link) $(MALLOC_LIBS) $(LIBS) $(BENCH_LIBS) -o $@

$B/tests/lib/leak: $B/tests/lib/leak.o $B/tests/lib/descriptors.o
	$(call say,LINK)
	$(link) -o $@

units: $(UNITS) $(UNIT_PROGRAMS)

# ---- running

export ASAN_OPTIONS := detect_stack_use_after_return=1:allocator_may_return_null=1:$(ASAN_OPTIONS)
export UBSAN_OPTIONS := print_stacktrace=1:$(UBSAN_OPTIONS)
export TSAN_OPTIONS := second_deadlock_stack=1:allocator_may_return_null=1:$(TSAN_OPTIONS)
# The command that runs a test program.
UNDER := $(if $(filter valgrind,$(MODE)),valgrind -q --error-exitcode=97 --leak-check=full \
  --errors-for-leak-kinds=definite$(comma)indirect$(comma)possible --fair-sched=try \
  --suppressions=tests/lib/valgrind.supp)
# LeakSanitizer comes with the address sanitizer, but not everywhere.
LEAK_MEMORY := $(if $(filter asan,$(MODE)),$(filter Linux,$(UNAME)),$(filter valgrind,$(MODE)))
TEST_TIMEOUT ?= $(if $(filter valgrind,$(MODE)),1800,1200)
# The Python tests use the library that is in the root; they are not run with a sanitizer or coverage.
PYTHON_TESTS := $(if $(filter release debug,$(MODE)),$(PY_TESTS))
CHECKS := lint $(addprefix check-,built headers exports seam prefetch leaks layers words)

# Tests that ask nothing of the file system: most of them make no sync. They make many small files, which may take long
# on a disk: ext4 without a journal looks at all that were removed within five minutes, for each new one.
IN_MEMORY := $(addprefix test_,away batch batch_read collect compact compact_apart compact_faults compact_rounds \
  compact_scans compact_young cut dropped expiry expiry_gaps full_memtable garbage hiding history join logger merge \
  moments paged partitions pin policy ranges refs remix remix_build remix_build_cost remix_build_faults remix_cost \
  remix_cursor remix_faults remix_reads repair scan_merge settings shut spaces sst_damage sst_dict sst_pass turns \
  txn txn_pop unread value_merge value_pace values version versions xdb_map xdb_py_ctypes xdb_py_signals_ctypes)

# A dozen tests sleep most of the time, so that one more runs than make has jobs.
jobs = $(filter -j%,$(MAKEFLAGS))
one_more = $(if $(filter-out -j -j1,$(jobs)),-j$(shell echo $$(($(jobs:-j%=%) + 1))),$(jobs))
run_tests = LOGS=$B/logs UNDER='$(UNDER)' IN_MEMORY='$(IN_MEMORY)' TEST_TIMEOUT=$(TEST_TIMEOUT) \
  REMIXDB_LIBRARY='$(CURDIR)/$(SO)' MAKE='$(firstword $(MAKE))' sh tests/run.sh $(one_more)
# Tests that do not compile have failed (check-built); those that do still run. The recipe line begins with `+`: make
# does not see that it runs make, and would give it one job.
build = @mkdir -p $B; rm -f $B/unbuilt; $(MAKE) --no-print-directory -k $(1) || touch $B/unbuilt

test:
	@$(deps_check) $(if $(PYTHON_TESTS),,--units)
	+$(call build,units all)
	@$(run_tests) $(PYTHON_TESTS) $(CHECKS) $(UNITS)
test-unit:
	@$(deps_check) --units
	+$(call build,units)
	@$(run_tests) $(UNITS) check-built check-leaks
check-built:
	@[ ! -e $B/unbuilt ] || { echo "not everything was built; the errors are further up"; exit 1; }

check-asan:
	@$(MAKE) --no-print-directory O=a test-unit
check-tsan:
	@$(MAKE) --no-print-directory O=t test-unit
check-valgrind:
	@command -v valgrind >/dev/null 2>&1 || { echo "make $@: there is no valgrind here"; exit 1; }
	@$(MAKE) --no-print-directory O=v test-unit
SOME_CLANG = $(shell for c in $(CCC) clang clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do \
  command -v $$c >/dev/null 2>&1 && $$c --version 2>/dev/null | grep -q clang && { echo $$c; break; }; done)
FUZZ ?= $(FUZZ_SRCS:tests/fuzz/fuzz_%.c=%) mutant
have_clang = @[ -n "$(SOME_CLANG)" ] || { echo "make $@: there is no clang here"; exit 1; }
with_clang = $(MAKE) --no-print-directory CCC='$(SOME_CLANG)'
check-msan:
	$(have_clang)
	@$(with_clang) O=m test-unit
# The mutants need no fuzzer: `mutant` among the targets is a test program.
fuzz:
	$(have_clang)
	@bad=0; \
	$(if $(filter-out mutant,$(FUZZ)),$(with_clang) O=f FUZZ='$(filter-out mutant,$(FUZZ))' run-fuzz || bad=1;) \
	$(if $(filter mutant,$(FUZZ)),$(with_clang) O=a run-mutants || bad=1;) \
	exit $$bad
fuzz-merge:
	$(have_clang)
	@$(with_clang) O=f FUZZ='$(filter-out mutant,$(FUZZ))' run-fuzz-merge

check = @B=$B MODE=$(MODE) CCC='$(CCC)' CFLAGS=$(call quote,$(CFLAGS_ALL)) CXX='$(CXX)' UNDER='$(UNDER)' \
  LEAK_MEMORY=$(LEAK_MEMORY) sh tests/checks.sh $(@:check-%=%)
# Words that had a second meaning do not come back (tests/words.txt). The search finds a word that is there, and an
# entry that cannot find its own example.
check-words:
	@mkdir -p $B; sh tests/words.sh; bad=$$?; \
	  for entry in 'struct super\tplanted\tstruct super' 'struct nowhere\tplanted\tstruct elsewhere'; do \
	    printf "$$entry\n" >$B/words.txt; \
	    ! sh tests/words.sh $B/words.txt >/dev/null || { echo "words: a planted one is not found"; bad=1; }; \
	  done; exit $$bad

# Includes go down the layers (tests/layers.txt).
check-layers:
	@sh tests/layers_check.sh
check-headers:
	$(check) $(HDRS) compat/leveldb/leveldb/c.h
# EXTRA_CFLAGS names a directory that has the headers of xxHash, zstd and cmocka. If it has leveldb/c.h, too, ours comes
# before.
check-compile: private CFLAGS_ALL := -Icompat/leveldb $(CFLAGS_ALL)
check-compile:
	$(check) $(SRCS) $(LEVELDB_SRCS) $(SIMPLE:%.out=%.c) $(TOOLS:%=%.c) tools/remixdb.c $(BENCH:%=%.c) $(FIXTURE_SRCS) \
	  $(UNIT_SRCS)
check-leaks: $B/tests/lib/leak
	$(check) $<
check-prefetch: $B/table/hold.o
	$(if $(and $(filter release,$(MODE)),$(filter x86_64 amd64 aarch64 arm64,$(TARGET))),$(check) $<)
# nm speaks differently elsewhere than on ELF.
check-exports: $(SO) $(LEVELDB_SO)
	$(if $(filter-out Darwin,$(UNAME)),$(check) $^)
check-seam: $(OBJS)
	$(if $(filter-out Darwin,$(UNAME)),$(check) $^)

export FUZZ_SECONDS FUZZ_JOBS
run-fuzz run-fuzz-merge: $(FUZZ:%=$B/tests/fuzz/fuzz_%)
	@sh tests/fuzz.sh $(if $(filter run-fuzz,$@),run,merge) $B/tests/fuzz $(FUZZ)
run-mutants: $B/tests/store/test_mutant
	@sh tests/fuzz.sh mutants $<

SOAK_SECONDS ?= 600
soak: $(addprefix $B/tests/store/test_,model model_spaces history serial crash crash_faults crash_nth rot budget \
  partitions queue) $(addprefix $B/tests/unit/test_remix_,build cost)
	@sh tests/soak.sh $B/tests/store $(SOAK_SECONDS)

SOAK_OPS ?= 10000000
soak-long: $(addprefix $B/tests/store/test_,model value_sizes)
	@VALUE_LONG=1 $B/tests/store/test_value_sizes
	@MODEL_OPS=$(SOAK_OPS) $B/tests/store/test_model

# The same program checks, when it is run without arguments, that what it wrote once is still read.
golden: $B/tests/store/test_golden
	$< write tests/golden

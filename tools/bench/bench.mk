# SPDX-License-Identifier: Apache-2.0
# The benchmark, as a part of the Makefile: how it is built and run.

# The benchmark takes in the other stores whose headers are here. Under a sanitizer it does not: they are built without.
INCLUDES := /usr/include /usr/local/include /opt/homebrew/include
has = $(firstword $(wildcard $(addprefix $(SYSROOT),$(addsuffix /$(1),$(INCLUDES)))))
ifneq ($(UNAME),Linux)
# Compiler and linker do not look there by themselves.
BENCH_PREFIXES := $(patsubst %/include,%,$(wildcard /usr/local/include /opt/homebrew/include))
BENCH_CFLAGS += $(BENCH_PREFIXES:%=-I%/include)
endif
ifneq ($(filter release debug,$(MODE)),)
ifneq ($(call has,rocksdb/c.h),)
BENCH_ENGINES += rocksdb
# Its header tells its version to C++ only.
ROCKSDB := $(shell sed -nE 's/^.define ROCKSDB_(MAJOR|MINOR|PATCH) *//p' $(call has,rocksdb/version.h) | paste -sd. -)
BENCH_CFLAGS += -DBENCH_ROCKSDB='"$(ROCKSDB)"'
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

# The benchmarks of the disk itself use liburing where the library does.
ENGINE_LIBS = $(BENCH_ENGINES:%=-l%) $(filter -luring,$(LIBS))
BENCH := $(addprefix tools/bench/,xdbbench report work disk key hist sys engine remixdb)
$B/tools/bench/%.o: private OWN_FLAGS = $(BENCH_CFLAGS)
xdbbench.out $B/xdbbench.out: $(BENCH:%=$B/%.o) $(BENCH_ENGINES:%=$B/tools/bench/%.o)
xdbbench.out $B/xdbbench.out: private PROGRAM_LIBS := $(BENCH_PREFIXES:%=-L%/lib) $(ENGINE_LIBS) -lm

SCENARIO ?= fits
ROUNDS ?= 3
# ENGINES=remixdb,lmdb, BENCH_DB=directory, BENCH_FLAGS='--ops=1000'
bench: all
	@python3 tools/bench/bench.py --scenario $(SCENARIO) --rounds $(ROUNDS) $(if $(ENGINES),--engines $(ENGINES)) \
	  $(if $(BENCH_DB),--db '$(BENCH_DB)') -- $(BENCH_FLAGS)

# COLD='--records=1000000 --ratio=4 --rounds=1': data larger than memory, in a memory cgroup
bench-cold: all
	@python3 tools/bench/bench_cold.py $(if $(ENGINES),--engines $(ENGINES)) $(if $(BENCH_DB),--db '$(BENCH_DB)') $(COLD)

# Counts the files and the syncs of any engine's process.
$B/tools/bench/syncs.so: tools/bench/syncs.c $B/flags
	$(call say,LINK)
	$(Q)$(CCC) -O2 -Wall -Wextra -shared -fPIC $< -ldl -o $@

# GROWTH='--steps=1e6,1e7': costs that grow with the number of keys, from 10^6 to 10^8 of them
bench-growth: all $B/tools/bench/syncs.so
	@python3 tools/bench/bench_growth.py --syncs '$(CURDIR)/$B/tools/bench/syncs.so' \
	  $(if $(ENGINES),--engines $(ENGINES)) $(if $(BENCH_DB),--db '$(BENCH_DB)') $(GROWTH)

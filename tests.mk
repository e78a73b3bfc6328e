# Tests, sanitizers, lint and benchmarks.
ASAN_BUILD := $(BUILD)/asan
ASAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
# Programs that run in the guest, or that load a server; not cmocka tests.
TOOL_BIN := $(patsubst %.c,$(BUILD)/%,$(filter-out $(TEST_SRC),$(wildcard tests/vm/*.c bench/*.c)))
$(TOOL_BIN): $(BUILD)/%: $(BUILD)/%.o $(LINK_LIBS)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< $(LINK_LIBS) $(LDLIBS)
tools: $(TOOL_BIN)

asan-build:
	+$(MAKE) --no-print-directory BUILD=$(ASAN_BUILD) OPT=-O1 SANITIZE="$(ASAN_FLAGS)" all tests-build
asan: deps
	+$(MAKE) --no-print-directory asan-build
	tests/run --build $(BUILD) --asan-build $(ASAN_BUILD) asan

# ThreadSanitizer: some tests take ten times as long, so it is no part of check. TESTS="test_tcp test_data" runs some.
# It sees fibers (core/fiber.c tells it of each switch) and what reactors send each other; not what the kernel or an
# adapter writes, nor the processes in guests. Nothing is suppressed.
tsan-build:
	+$(MAKE) --no-print-directory BUILD=$(BUILD)/tsan OPT=-O1 SANITIZE=-fsanitize=thread all tests-build
tsan: deps
	+$(MAKE) --no-print-directory tsan-build
	TSAN_OPTIONS=halt_on_error=1 FURROW_LIMIT=3600 tests/run --build $(BUILD)/tsan $(or $(TESTS),native)

# libFuzzer: tests/fuzz/fuzz_NAME.c are its targets. `make fuzz SECONDS=3600 TARGETS="nfs3 rdma"` lets them look for new
# inputs, all if none is named; what they find interesting stays in FUZZ_BUILD/found, what fails in FUZZ_BUILD/failed.
FUZZ_BUILD := $(BUILD)/fuzz
FUZZ_FLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
FUZZ_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
$(FUZZ_BIN): $(BUILD)/%: $(BUILD)/%.o $(BUILD)/libserver.a $(LINK_LIBS)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $< $(BUILD)/libserver.a $(LINK_LIBS) $(LDLIBS) -lcmocka
fuzz-bin: $(FUZZ_BIN)
fuzz-build:
	+$(MAKE) --no-print-directory BUILD=$(FUZZ_BUILD) CC="$(FUZZ_CC)" OPT=-O1 SANITIZE="$(FUZZ_FLAGS)" fuzz-bin
FUZZ_CC ?= clang
SECONDS ?= 60
fuzz: deps
	+$(MAKE) --no-print-directory fuzz-build
	FURROW_BUILD=$(BUILD) FURROW_FUZZ_SECONDS=$(SECONDS) FURROW_FUZZ_KEEP=1 tests/fuzz/fuzz_smoke.sh $(TARGETS)

# The whole: what this machine can run is run, and what it cannot is named.
check: deps
	+$(MAKE) --no-print-directory all tests-build tools asan-build fuzz-build
	tests/run --build $(BUILD) --asan-build $(ASAN_BUILD) native asan scripts vm
check-fast: all tests-build tools
	tests/run --build $(BUILD) native scripts
check-vm: all tools
	tests/run --build $(BUILD) vm

# What cppcheck takes for faults here is none: results that a call fills in on another reactor, a pointer to a variable
# that is taken back before its function returns, arrays of pointers.
CPPCHECK_FALSE := ctuuninitvar autoVariables pointerSize
lint:
	clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h')
	cppcheck --quiet --enable=warning,portability --inline-suppr --error-exitcode=1 --suppress=missingIncludeSystem $(CPPCHECK_FALSE:%=--suppress=%) -I. -D__GNUC__ core raid xdr fs rpcrdma server
	clang-tidy --quiet $$(git ls-files '*.c' | grep -v '^tests/') -- $(CPPFLAGS) -std=gnu11

.PHONY: fuzz-bin fuzz-build fuzz tools asan-build asan tsan-build tsan check check-fast check-vm lint bench bench-vm

# Rates in a guest whose clock counts instructions, beside the kernel's own stack. Takes half an hour.
BENCH_RUNS ?= 1
bench-vm: all
	$(MAKE) --no-print-directory deps EXTRA_DEPS="$(DEPS_BENCH)"
	eval "$$(tests/vm/newer-qemu $(BUILD)/qemu)" && FURROW_BUILD=$(BUILD) bench/bench_vm --runs $(BENCH_RUNS)
# What NFS over loopback TCP costs the server: instructions, system calls, copies; NFS-Ganesha beside it.
bench: all tools
	$(MAKE) --no-print-directory deps EXTRA_DEPS="$(DEPS_BENCH)"
	FURROW_BUILD=$(BUILD) bench/bench_native

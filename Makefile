# Furrow. `make run` serves a demonstration, `make check` runs every test; `make help` lists the rest.
BUILD ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
PYTHON ?= /usr/bin/python3

# What is built, from the ground up. Each folder is one library; an include never points upward.
LAYERS := core xdr raid fs rpcrdma
SANITIZE ?=
# The whole program in one, with more of it inlined than by default: a twentieth fewer instructions for a READ.
OPT ?= -O2 -flto=auto -flto-partition=one --param max-inline-insns-auto=30 -ffat-lto-objects
WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror=implicit-function-declaration -Werror=incompatible-pointer-types
CPPFLAGS += -D_GNU_SOURCE -D_FORTIFY_SOURCE=2 -I. -I$(BUILD)/gen -isystem /usr/include/tirpc
CFLAGS += -std=gnu11 -g $(OPT) $(WARN) -fno-strict-aliasing -fstack-protector-strong -pthread -MMD -MP $(SANITIZE)
LDFLAGS += -g $(OPT) -pthread $(SANITIZE)
# Dozens of test programs are linked from the same objects without optimising each anew: that is why these are fat.
TEST_LDFLAGS = $(LDFLAGS) -fno-lto
LDLIBS_core := -luring
LDLIBS_raid := -lisal -lnvme
LDLIBS_rpcrdma := -lrdmacm -libverbs
LDLIBS_server := -lyaml -ljansson -ltirpc -lmicrohttpd
LDLIBS := $(LDLIBS_server) $(LDLIBS_rpcrdma) $(LDLIBS_raid) $(LDLIBS_core)
AR := gcc-ar
# Short lines; V=1 shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-4s %s\n' $(1) $(patsubst $(BUILD)/%,%,$@))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:

XDR_NAMES := $(basename $(notdir $(wildcard xdr/*.x)))
XDR_GEN := $(XDR_NAMES:%=$(BUILD)/gen/xdr/%.c)
src = $(wildcard $(1)/*.c $(1)/*.S)
obj = $(patsubst %,$(BUILD)/%.o,$(basename $(call src,$(1))))
LIBS := $(LAYERS:%=$(BUILD)/lib%.a)
# linked from the top down, so that each finds what it needs in the next
LINK_LIBS := $(BUILD)/librpcrdma.a $(BUILD)/libfs.a $(BUILD)/libraid.a $(BUILD)/libxdr.a $(BUILD)/libcore.a

# server/ holds both programs: the tool's files are named cli*.c, each program's main is in its own file
CLI_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard server/cli*.c))
SERVER_LIB_OBJ := $(filter-out $(CLI_OBJ) $(BUILD)/server/main.o,$(call obj,server))

include deps.mk

all: $(BUILD)/furrowd $(BUILD)/furrow
	@:

$(BUILD)/furrowd: $(BUILD)/server/main.o $(BUILD)/libserver.a $(LINK_LIBS)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/furrow: $(CLI_OBJ) $(BUILD)/libserver.a $(LINK_LIBS)
	$(call say,LINK)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

define layer_rule
$(BUILD)/lib$(1).a: $(call obj,$(1)) $(if $(filter xdr,$(1)),$(XDR_GEN:%.c=%.o))
	@rm -f $$@
	$(Q)$(AR) rcs $$@ $$^
endef
$(foreach l,$(LAYERS),$(eval $(call layer_rule,$(l))))
$(BUILD)/libserver.a: $(SERVER_LIB_OBJ)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

# Objects wait for the generated headers, which the first build cannot know of from .d files.
$(BUILD)/%.o: %.c Makefile | $(XDR_GEN)
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(CFLAGS_$(notdir $*)) -c -o $@ $<
$(BUILD)/%.o: %.S Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<
$(BUILD)/gen/xdr/%.o: $(BUILD)/gen/xdr/%.c Makefile
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -Wno-unused-function -c -o $@ $<
$(BUILD)/gen/xdr/%.c: xdr/%.x xdr/xdrgen.py
	@mkdir -p $(@D)
	$(call say,XDR)
	$(Q)$(PYTHON) xdr/xdrgen.py $< $(@D)

# The instruction sets that core/checksum.c chooses from at run time. Unrolled, and without asking for what the processor
# fetches by itself, a block takes a sixth fewer instructions.
CFLAGS_checksum_avx2 := -mavx2 -funroll-loops -DXXH_NO_PREFETCH
CFLAGS_checksum_avx512 := -mavx512f -funroll-loops -DXXH_NO_PREFETCH

# tests/FOLDER/test_NAME.c is one cmocka program; tests/regress/NAME.c too, one per fault ever found.
TEST_SRC := $(wildcard tests/*/test_*.c tests/regress/*.c)
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/%)
TEST_LIB_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/lib/*.c))
$(TEST_BIN): $(BUILD)/%: $(BUILD)/%.o $(TEST_LIB_OBJ) $(LINK_LIBS)
	$(call say,LINK)
	$(Q)$(CC) $(TEST_LDFLAGS) $(LDFLAGS_$(@F)) -o $@ $< $(TEST_LIB_OBJ) $(filter $(BUILD)/libserver.a,$^) $(LINK_LIBS) $(LDLIBS) -lcmocka
# These refuse memory.
LDFLAGS_test_posix_nth := -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=buf_try_alloc
LDFLAGS_test_repair_crash := $(LDFLAGS_test_posix_nth)
# This one has a mark of its own in place of a file system's.
LDFLAGS_test_nfs4_marks := -Wl,--wrap=fs_replies_foreach
$(filter $(BUILD)/tests/server/% $(BUILD)/tests/regress/%,$(TEST_BIN)): $(BUILD)/libserver.a
tests-build: $(TEST_BIN)

include tests.mk
include run.mk

clean:
	rm -rf $(BUILD)

.PHONY: all clean tests-build
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# What people do with Furrow besides building it: run, install, help.
PREFIX ?= /usr/local
SBINDIR ?= $(PREFIX)/sbin
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/furrow
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
DESTDIR ?=
INSTALL ?= install

# `make deps` for everything (and EXTRA_DEPS), `make deps-run` for what building and serving needs.
deps:
	@etc/deps.sh $(DEPS) $(EXTRA_DEPS)
deps-run:
	@etc/deps.sh $(DEPS_BUILD) $(DEPS_RUN)

# The packages first, as a make of its own: what the build finds installed decides what it does.
run: deps-run
	@$(MAKE) --no-print-directory all
	@BUILD=$(BUILD) VAR=$(or $(VAR),var) etc/demo.sh
export LISTEN PORT METRICS RDMA CLIENTS MEMORY

install: all
	$(INSTALL) -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(MANDIR)/man5 $(DESTDIR)$(MANDIR)/man8 $(DESTDIR)$(UNITDIR) \
		$(DESTDIR)$(DOCDIR) $(DESTDIR)$(SYSCONFDIR)/furrow
	$(INSTALL) -m 755 $(BUILD)/furrowd $(BUILD)/furrow $(DESTDIR)$(SBINDIR)
	$(INSTALL) -m 644 docs/man/furrow.yaml.5 $(DESTDIR)$(MANDIR)/man5
	$(INSTALL) -m 644 docs/man/furrow.8 docs/man/furrowd.8 $(DESTDIR)$(MANDIR)/man8
	$(INSTALL) -m 644 README.md LICENSE $(wildcard docs/*.md) $(DESTDIR)$(DOCDIR)
	sed -e 's|@SBINDIR@|$(SBINDIR)|g' -e 's|@SYSCONFDIR@|$(SYSCONFDIR)|g' etc/furrowd.service \
		>$(DESTDIR)$(UNITDIR)/furrowd.service
	chmod 644 $(DESTDIR)$(UNITDIR)/furrowd.service
	@# a configuration that is there is the administrator's
	[ -e $(DESTDIR)$(SYSCONFDIR)/furrow/furrow.yaml ] || \
		$(INSTALL) -m 644 etc/furrow.yaml $(DESTDIR)$(SYSCONFDIR)/furrow/furrow.yaml

uninstall:
	rm -f $(DESTDIR)$(SBINDIR)/furrowd $(DESTDIR)$(SBINDIR)/furrow $(DESTDIR)$(MANDIR)/man5/furrow.yaml.5 \
		$(DESTDIR)$(MANDIR)/man8/furrow.8 $(DESTDIR)$(MANDIR)/man8/furrowd.8 $(DESTDIR)$(UNITDIR)/furrowd.service
	rm -rf $(DESTDIR)$(DOCDIR)

help:
	@echo 'make run        a demonstration: builds, makes six file-backed drives under var/ once, serves /demo'
	@echo '                LISTEN=ADDR PORT=N RDMA=N|off METRICS=ADDR:PORT|off VAR=DIR MEMORY=SIZE'
	@echo 'make check      every test that this machine can run; says which it skipped and why'
	@echo 'make tsan       the native tests with ThreadSanitizer; TESTS="test_tcp ..." for some'
	@echo 'make fuzz       looks for inputs that break it: SECONDS=60 for each target, TARGETS="nfs3 ..." for some'
	@echo 'make            builds $(BUILD)/furrowd and $(BUILD)/furrow'
	@echo 'make deps       installs missing packages (Debian, as root)'
	@echo 'make install    programs, man pages, unit and an example configuration; PREFIX=$(PREFIX) DESTDIR='
	@echo 'make bench      figures of this machine in $(BUILD)/bench.json; make bench-vm for whole guests'
	@echo 'make lint       formatting and static analysis'
	@echo 'make clean      removes $(BUILD)'
	@echo 'BUILD=DIR, OPT="-O1" and SANITIZE="-fsanitize=address,undefined" choose another kind of build.'

# The tests of the tool run it.
$(BUILD)/tests/server/test_cli $(BUILD)/tests/server/test_control: | $(BUILD)/furrow

.PHONY: deps deps-run run install uninstall help

# Everything a person types. Each target is a thin line over cargo or a script.

.PHONY: demo install test test-long test-callers test-sources bench lint fuzz mutants packages

# Ends a command with its caller, also when the caller is killed.
tied = setpriv --pdeathsig KILL --

demo:
	cargo run --release --package pagewire-cli --no-default-features --target-dir target/demo -- demo $(DIR)

test:
	scripts/install-test-packages
	scripts/install-tool cargo-nextest
	$(tied) scripts/test

# What is slow and rarely breaks: the whole command as it is released, other people's crates on the
# simulation, and a raft over many seeds.
test-long:
	scripts/install-test-packages
	cargo build --release --package pagewire-cli
	cargo test --release --package pagewire-interop --no-run
	$(tied) scripts/isolate cargo test --offline --release --package pagewire-interop --no-fail-fast
	RUSTFLAGS="--cfg tokio_unstable" cargo test --package pagewire-simulation --lib --tests --target-dir target/unstable --no-run
	RUSTFLAGS="--cfg tokio_unstable" $(tied) scripts/isolate cargo test --offline --package pagewire-simulation --lib --tests --target-dir target/unstable --no-fail-fast

# Every program that starts slirp4netns, pasta or passt, with theirs and with ours. What it downloads is kept
# in target/callers.
test-callers:
	scripts/install-test-packages
	cargo build --release --package pagewire-cli
	$(tied) scripts/callers/all target/release/pagewire target/callers

# Existing C programs, compiled with the C library's include, and their plain builds. What it makes is kept in
# target/c-library and target/c-sources.
test-sources:
	scripts/install-test-packages
	scripts/c-library target/c-library
	scripts/c-sources/fetch target/c-sources
	$(tied) scripts/c-sources/run target/c-library target/c-sources

# The C library: lib/libpagewire.so and .a, include/, lib/pkgconfig/pagewire.pc.
PREFIX ?= /usr/local
install:
	scripts/c-library $(DESTDIR)$(PREFIX) library $(PREFIX)

bench:
	cargo build --release --package pagewire-cli
	$(tied) scripts/isolate scripts/bench

lint:
	scripts/lint

fuzz:
	scripts/install-test-packages
	$(tied) scripts/fuzz $(SECONDS_EACH)

mutants:
	scripts/mutants

# A release names PACKAGE_MAINTAINER; without it, the packages are for a trial.
packages:
	rm -rf target/packages
	PACKAGE_TRIAL=$(if $(PACKAGE_MAINTAINER),0,1) scripts/packages target/packages

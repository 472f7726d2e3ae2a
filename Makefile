# Everything a person types. Each target is a thin line over cargo or a script.

.PHONY: demo test test-long bench lint fuzz mutants

demo:
	cargo run --release --package pagewire-cli -- demo $(DIR)

test:
	scripts/install-test-packages
	scripts/test

# What is slow and rarely breaks: the build with link-time optimization, other people's crates on the
# simulation, and a raft over many seeds.
test-long:
	scripts/install-test-packages
	cargo build --release --package pagewire-cli
	cargo test --profile quick --package pagewire-simulation-crates --no-fail-fast

bench:
	cargo build --release --package pagewire-cli
	scripts/bench

lint:
	scripts/lint

fuzz:
	scripts/install-test-packages
	scripts/fuzz $(SECONDS_EACH)

mutants:
	scripts/mutants

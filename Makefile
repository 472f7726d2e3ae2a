# Everything a person types. Each target is a thin line over cargo or a script.

.PHONY: demo test bench lint fuzz mutants

demo:
	cargo run --release --quiet --package pagewire-cli -- demo $(DIR)

test:
	scripts/install-test-packages
	scripts/test

bench:
	cargo build --release --quiet --package pagewire-cli
	scripts/bench

lint:
	scripts/lint

fuzz:
	scripts/install-test-packages
	scripts/fuzz $(SECONDS_EACH)

mutants:
	scripts/mutants

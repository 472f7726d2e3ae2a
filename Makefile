# Everything a person types. Each target is a thin line over cargo or a script.

.PHONY: demo test bench lint fuzz

demo:
	cargo run --release --quiet --package pagewire-cli -- demo $(DIR)

test:
	scripts/install-test-packages
	cargo build --release --package pagewire-cli
	cargo test --workspace --all-features

bench:
	cargo run --release --quiet --package pagewire-cli -- bench all

lint:
	scripts/lint

fuzz:
	scripts/fuzz $(SECONDS_EACH)

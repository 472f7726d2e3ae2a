# Everything a person types. Each target is a thin line over cargo or a script.

.PHONY: demo test bench lint fuzz

demo:
	cargo run --release --quiet --package pagewire-cli -- demo $(DIR)

test:
	scripts/install-test-packages
	cargo build --release --package pagewire-cli
	cargo test --workspace --all-features
	cargo run --release --quiet --package pagewire-stack --example million
	RUSTFLAGS="--cfg loom" cargo test --release --package pagewire-mem --test loom --target-dir target/loom

bench:
	cargo build --release --quiet --package pagewire-cli
	scripts/bench

lint:
	scripts/lint

fuzz:
	scripts/install-test-packages
	scripts/fuzz $(SECONDS_EACH)

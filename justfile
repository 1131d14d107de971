# Shortcuts for people. CI runs .ci/run, which is `just check` from a clean start.

# Everything that CI runs
check:
    .ci/run

# Unit tests: no Go, no root, no network
unit:
    cargo test --workspace --lib --bins

# All tests
test:
    cargo test --workspace

# Write the generated files anew: the definitions of the custom resources, the gRPC code
codegen:
    cargo run -- install --crds-only --dry-run -o yaml > deploy/crds.yaml
    cargo run --manifest-path crates/plugin-wire/codegen/Cargo.toml

# Write the golden files anew, with Velero's own types (needs Go)
golden:
    cd crates/api/golden && go run . ../tests/golden
    cd crates/store/golden && go run . ../tests/golden
    cd crates/store/golden && go run ./rewrite ../../../fuzz/corpus/bucket-files ../../../fuzz/tests/velero/bucket-files.json

# Fuzz all targets with coverage guidance, so many seconds each (needs a C++ compiler)
fuzz seconds="60":
    fuzz/run {{seconds}}

//! Features of dependencies, for tests.
//!
//! Cargo builds a dependency with the features that the selected crates ask for. Without this crate, `cargo test -p
//! bowline-engine` would build most dependencies again that `cargo test --workspace` has built already, and the other
//! way round. Every crate has this one among its `dev-dependencies`, so all of them are tested with the same features.
//! What ships is built without `dev-dependencies`.
//!
//! A test (`crates/testbed/tests/it/workspace.rs`) fails when features differ. Then add the dependency that turns them
//! on to the manifest of this crate.

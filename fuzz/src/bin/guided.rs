//! One target with coverage guidance: libFuzzer with the target that `BOWLINE_FUZZ_TARGET` names.
#![no_main]
#![allow(missing_docs, reason = "the macro defines functions for libFuzzer")]

use std::sync::OnceLock;

use bowline_fuzz::Target;

/// Name of the target.
const TARGET_ENV: &str = "BOWLINE_FUZZ_TARGET";

static TARGET: OnceLock<Option<&'static Target>> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let find = || std::env::var(TARGET_ENV).ok().and_then(|name| Target::find(&name));
    match TARGET.get_or_init(find) {
        Some(target) => target.execute(input),
        // libFuzzer has no better way to end.
        None => std::process::exit(2),
    }
});

//! What the commands print for users: no control characters but line feeds and tabs reach a terminal.
//!
//! Three parts: an object, the files of its backup or restore, and a log.

use bowline::testing;
use jiff::Timestamp;

use super::{assert_harmless, object, parts};

pub(super) fn run(input: &[u8]) {
    let [json, files, log] = parts(input);
    assert_harmless(&testing::message(&String::from_utf8_lossy(log)));
    let shown = testing::log(log, 1 << 16);
    assert_harmless(std::str::from_utf8(&shown).expect("a terminal gets text"));
    for piece in [1, 3, 7] {
        assert_eq!(testing::log(log, piece), shown, "the pieces make no difference");
    }
    let Some(object) = object(json) else { return };
    let files = serde_json::from_slice(files).unwrap_or_default();
    let now = Timestamp::from_second(1_800_000_000).expect("a time in range");
    for text in testing::print(&object, files, now) {
        assert_harmless(&text);
    }
}

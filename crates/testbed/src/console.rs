//! Lines for whoever waits.

use std::io::{self, Write as _};

/// Says one line on standard error, past the test harness, which would hold it back to the end.
pub(crate) fn print_line(line: &str) {
    let _ = writeln!(io::stderr(), "testbed: {line}");
}

//! Messages for a person who waits.

use std::io::{self, Write as _};

/// Prints one line to standard error, bypassing the test harness, which would hold it back until the end.
pub(crate) fn print_line(line: &str) {
    let _ = writeln!(io::stderr(), "testbed: {line}");
}

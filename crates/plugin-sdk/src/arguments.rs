//! Command line of a plugin: the arguments of the server, verbatim. They may contain anything.

use std::ffi::OsString;

use tracing_subscriber::filter::LevelFilter;

const LOG_LEVEL: &str = "--log-level";

/// The server's log level, which the plugin uses as well. The last occurrence counts; without one,
/// or with an invalid value, the level is `info`, as in Velero.
pub(crate) fn log_level(arguments: impl IntoIterator<Item = OsString>) -> LevelFilter {
    let mut level = LevelFilter::INFO;
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let argument = argument.to_string_lossy();
        let Some(rest) = argument.strip_prefix(LOG_LEVEL) else { continue };
        let level_name = match rest.strip_prefix('=') {
            Some(level_name) => level_name.to_owned(),
            None if rest.is_empty() => {
                arguments.next().unwrap_or_default().to_string_lossy().into_owned()
            }
            None => continue,
        };
        level = parse_level(&level_name);
    }
    level
}

/// The names of levels are Velero's.
fn parse_level(level_name: &str) -> LevelFilter {
    match level_name.to_lowercase().as_str() {
        "trace" => LevelFilter::TRACE,
        "debug" => LevelFilter::DEBUG,
        "warn" | "warning" => LevelFilter::WARN,
        "error" | "fatal" | "panic" => LevelFilter::ERROR,
        _ => LevelFilter::INFO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_level_is_found_among_other_server_arguments() {
        for (line, expected) in [
            ("", LevelFilter::INFO),
            ("--log-level debug", LevelFilter::DEBUG),
            ("--log-level=trace", LevelFilter::TRACE),
            ("--features=X --log-level=warning --uploader-type kopia", LevelFilter::WARN),
            ("--log-level=debug --log-level error", LevelFilter::ERROR),
            ("--log-level=fatal", LevelFilter::ERROR),
            ("--log-level=loud", LevelFilter::INFO),
            ("--log-level", LevelFilter::INFO),
            ("--log-level-x=debug --log-format=json debug", LevelFilter::INFO),
        ] {
            let arguments = line.split_whitespace().map(OsString::from);
            assert_eq!(log_level(arguments), expected, "{line}");
        }
    }
}

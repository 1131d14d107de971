//! The hook that a pod's annotations define.

use bowline_api::annotation::hook as key;

use super::{Annotations, DEFAULT_ON_ERROR, EXEC_TIMEOUT, Error, Hook, HookSource};
use crate::hook::InvalidAnnotation;

/// The hook that annotations define; `None` if there is no command. An annotation that cannot be parsed gets the
/// default, as in Velero, with a warning. A command that looks like a list but is invalid is an error.
pub(super) fn hook(
    annotations: &Annotations<'_>,
    warnings: &mut Vec<String>,
) -> Result<Option<Hook>, Error> {
    let Some(command) = annotations.command(key::RESTORE_COMMAND)? else { return Ok(None) };
    let on_error = or_warn(annotations.on_error(key::RESTORE_ON_ERROR), warnings);
    let exec_timeout = or_warn(annotations.timeout(key::RESTORE_EXEC_TIMEOUT), warnings);
    let wait_timeout = or_warn(annotations.timeout(key::RESTORE_WAIT_TIMEOUT), warnings);
    let wait_for_ready =
        or_warn(annotations.read(key::RESTORE_WAIT_FOR_READY, parse_bool), warnings);
    Ok(Some(Hook {
        source: HookSource::Annotations,
        container: annotations.text(key::RESTORE_CONTAINER).unwrap_or_default().to_owned(),
        command,
        on_error: on_error.unwrap_or(DEFAULT_ON_ERROR),
        exec_timeout: exec_timeout.unwrap_or(EXEC_TIMEOUT),
        wait_timeout,
        wait_for_ready: wait_for_ready.unwrap_or(false),
    }))
}

/// The parsed annotation, or a warning.
fn or_warn<T>(read: Result<Option<T>, Error>, warnings: &mut Vec<String>) -> Option<T> {
    read.unwrap_or_else(|error| {
        warnings.push(format!("{error}; the hook runs with the default"));
        None
    })
}

/// Parses the words that Go accepts as booleans.
fn parse_bool(text: &str) -> Result<bool, InvalidAnnotation> {
    match text {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
        other => Err(InvalidAnnotation::Boolean(other.to_owned())),
    }
}

//! The hook that a pod asks for itself.

use bowline_api::annotation::hook as key;

use super::{Annotations, DEFAULT_ON_ERROR, EXEC_TIMEOUT, Error, Hook, Source};

/// The hook that annotations ask for; none if there is no command.
pub(super) fn hook(annotations: &Annotations<'_>) -> Result<Option<Hook>, Error> {
    let Some(command) = annotations.command(key::RESTORE_COMMAND)? else { return Ok(None) };
    let on_error = annotations.on_error(key::RESTORE_ON_ERROR)?;
    let exec_timeout = annotations.timeout(key::RESTORE_EXEC_TIMEOUT)?;
    let wait_for_ready = annotations.read(key::RESTORE_WAIT_FOR_READY, truth)?;
    Ok(Some(Hook {
        source: Source::Annotations,
        container: annotations.text(key::RESTORE_CONTAINER).unwrap_or_default().to_owned(),
        command,
        on_error: on_error.unwrap_or(DEFAULT_ON_ERROR),
        exec_timeout: exec_timeout.unwrap_or(EXEC_TIMEOUT),
        wait_timeout: annotations.timeout(key::RESTORE_WAIT_TIMEOUT)?,
        wait_for_ready: wait_for_ready.unwrap_or(false),
    }))
}

/// The words that Go takes for true and false.
fn truth(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
        other => Err(format!("is {other:?}: expected true or false")),
    }
}

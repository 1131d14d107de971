//! Hooks from the annotations of a pod.

use bowline_api::annotation::hook as key;

use super::{Annotations, EXEC_TIMEOUT, Error, Hook, OnError, Source};

/// The annotations that make up a hook.
pub(super) struct Keys {
    command: &'static str,
    container: &'static str,
    on_error: &'static str,
    timeout: &'static str,
}

pub(super) const PRE: Keys = Keys {
    command: key::PRE_COMMAND,
    container: key::PRE_CONTAINER,
    on_error: key::PRE_ON_ERROR,
    timeout: key::PRE_TIMEOUT,
};

pub(super) const POST: Keys = Keys {
    command: key::POST_COMMAND,
    container: key::POST_CONTAINER,
    on_error: key::POST_ON_ERROR,
    timeout: key::POST_TIMEOUT,
};

/// A pre-hook, as the first versions of Velero spelled it.
pub(super) const LEGACY_PRE: Keys = Keys {
    command: key::OLD_COMMAND,
    container: key::OLD_CONTAINER,
    on_error: key::OLD_ON_ERROR,
    timeout: key::OLD_TIMEOUT,
};

/// The hook of annotations; none if there is no command. Except for the command, a value that cannot be parsed means
/// the default, as in Velero (internal/hook/item_hook_handler.go), and is a warning.
pub(super) fn hook(
    annotations: &Annotations<'_>,
    keys: &Keys,
    warnings: &mut Vec<String>,
) -> Result<Option<Hook>, Error> {
    let Some(command) = annotations.command(keys.command)? else { return Ok(None) };
    let on_error = annotations.on_error(keys.on_error);
    let on_error = or_default(on_error, "Fail", warnings)?;
    let timeout = annotations.timeout(keys.timeout);
    let timeout = or_default(timeout, &format!("{}s", EXEC_TIMEOUT.as_secs()), warnings)?;
    Ok(Some(Hook {
        source: Source::Annotations,
        container: annotations.text(keys.container).unwrap_or_default().to_owned(),
        command,
        on_error: on_error.unwrap_or(OnError::Fail),
        timeout: timeout.unwrap_or(EXEC_TIMEOUT),
    }))
}

/// The value of an annotation; none, with a warning, if it cannot be parsed.
fn or_default<T>(
    read: Result<Option<T>, Error>,
    default: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<T>, Error> {
    match read {
        Err(Error::Annotation { key, reason }) => {
            warnings.push(format!("the annotation {key} {reason}; the default {default} is used"));
            Ok(None)
        }
        read => read,
    }
}

//! Outcome of a command in a container, from the status that the API server sends.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

use super::super::{Error, Result};

/// Messages of an API server that could not call the kubelet. Since 1.30 the API server opens the
/// stream to the client before it calls, so this message arrives in place of the command's exit
/// status, like any other internal error. Refusals by the kubelet itself have other texts.
const KUBELET_NOT_REACHED: [&str; 2] = ["error sending request: ", "error dialing backend: "];

/// Start of the command in the URL of a kubelet.
const COMMAND_PARAMETER: &str = "?command=";

/// Reason of a command's failure; `None` for success. An error means that the command was not
/// started.
pub(super) fn failure(status: Option<Status>) -> Result<Option<String>> {
    let Some(status) = status else {
        return Ok(Some("the connection to the container ended before the command".to_owned()));
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(None);
    }
    let message = strip_command(&status.message.unwrap_or_else(|| "the command failed".to_owned()));
    match status.code.and_then(|code| u16::try_from(code).ok()) {
        Some(code @ 500..=599)
            if KUBELET_NOT_REACHED.iter().any(|prefix| message.contains(prefix)) =>
        {
            Err(Error::Refused { code, reason: status.reason.unwrap_or_default(), message })
        }
        _ => Ok(Some(message)),
    }
}

/// Error without the command.
pub(super) fn redact_command(error: Error) -> Error {
    match error {
        Error::Refused { code, reason, message } => {
            Error::Refused { code, reason, message: strip_command(&message) }
        }
        Error::Unreachable(reason) => Error::Unreachable(strip_command(&reason)),
        error => error,
    }
}

/// Message without the command: API servers quote the URL that they called, with all its
/// parameters, and a command may contain a password.
fn strip_command(message: &str) -> String {
    let mut parts = message.split(COMMAND_PARAMETER);
    let mut redacted = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Parameters of a URL are escaped, so the command ends here at the latest.
        let end = part.find(|c: char| c == '"' || c.is_whitespace()).unwrap_or(part.len());
        redacted.push_str(&part[end..]);
    }
    redacted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_status(code: i32, reason: &str, message: &str) -> Status {
        Status {
            status: Some("Failure".into()),
            code: Some(code),
            reason: Some(reason.into()),
            message: Some(message.into()),
            ..Status::default()
        }
    }

    #[test]
    fn unreached_kubelet_means_command_was_not_started() {
        let called = "Internal error occurred: error sending request: Post \
                      \"https://10.0.0.7:10250/exec/shop/db/main?command=-psecret&error=1\": dial tcp \
                      10.0.0.7:10250: connect: connection refused";
        let error = failure(Some(failed_status(500, "InternalError", called))).unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        let text = error.to_string();
        assert!(text.contains("/exec/shop/db/main\": dial tcp"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn error_from_the_node_means_command_has_ended() {
        for (code, reason, message) in [
            (500, "NonZeroExitCode", "command terminated with non-zero exit code"),
            (500, "InternalError", "error executing command in container: no such file"),
            (500, "InternalError", "unable to upgrade connection: container not found (\"main\")"),
        ] {
            let failed = failure(Some(failed_status(code, reason, message))).unwrap();
            assert_eq!(failed.as_deref(), Some(message));
        }
        let broken_off = failure(None).unwrap().unwrap();
        assert!(broken_off.contains("ended before the command"), "{broken_off}");
        let good = Status { status: Some("Success".into()), ..Status::default() };
        assert_eq!(failure(Some(good)).unwrap(), None);
    }

    #[test]
    fn error_text_omits_the_command() {
        let message =
            "error dialing backend: x?command=a&command=secret y?command=secret".to_owned();
        for error in [
            Error::Refused { code: 502, reason: String::new(), message: message.clone() },
            Error::Unreachable(message),
        ] {
            let text = redact_command(error).to_string();
            assert!(text.ends_with("error dialing backend: x y"), "{text}");
        }
    }
}

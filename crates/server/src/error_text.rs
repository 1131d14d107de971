//! Errors in one line, fit for a status field.

use std::error::Error;

/// Maximum length of a text in a status or annotation.
const MAX_STATUS_TEXT: usize = 2048;

/// Error and its causes in one line, truncated.
pub(crate) fn status_message(error: &(dyn Error + 'static)) -> String {
    truncate_text(error_chain(error))
}

/// Error and its causes in one line. For an answer of the API server this is its message, where the
/// library would show every field.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut chain = bowline_plugin::error_chain(error);
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(answer @ kube::Error::Api(status)) = cause.downcast_ref() {
            chain = chain.replace(
                &collapse_whitespace(&answer.to_string()),
                &collapse_whitespace(&status.message),
            );
        }
        next = cause.source();
    }
    chain
}

fn collapse_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Truncates a text to the maximum length.
pub(crate) fn truncate_text(mut text: String) -> String {
    if text.len() > MAX_STATUS_TEXT {
        text.truncate(text.floor_char_boundary(MAX_STATUS_TEXT - '…'.len_utf8()));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn api_server_error_is_reduced_to_its_message() {
        let status = Status::failure("you may not list that", "Forbidden").with_code(403);
        let error = kube::Error::Api(Box::new(status));
        assert_eq!(status_message(&error), "you may not list that");
        assert_eq!(status_message(&WrappedError(error)), "cannot list: you may not list that");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot list")]
    struct WrappedError(#[source] kube::Error);

    #[test]
    fn long_error_text_is_cut_between_characters() {
        let text = truncate_text("ä".repeat(MAX_STATUS_TEXT));
        assert!(text.len() <= MAX_STATUS_TEXT && text.ends_with("ä…"), "{}", text.len());
    }
}

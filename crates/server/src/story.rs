//! Errors in one line, fit for a status field.

use std::error::Error;

/// The longest text that is put into a status or annotation.
const MAX: usize = 2048;

/// An error and its causes in one line, not too long.
pub(crate) fn one_line(error: &(dyn Error + 'static)) -> String {
    shorten(in_words(error))
}

/// An error and its causes in one line. Of an answer of the API server that is its message, where the library would
/// show every field.
pub fn in_words(error: &(dyn Error + 'static)) -> String {
    let mut words = bowline_plugin::one_line(error);
    let mut next = Some(error);
    while let Some(cause) = next {
        if let Some(answer @ kube::Error::Api(status)) = cause.downcast_ref() {
            words = words.replace(&in_one(&answer.to_string()), &in_one(&status.message));
        }
        next = cause.source();
    }
    words
}

fn in_one(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Cuts a text to what fits.
pub(crate) fn shorten(mut text: String) -> String {
    if text.len() > MAX {
        text.truncate(text.floor_char_boundary(MAX - '…'.len_utf8()));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn an_answer_of_the_api_server_is_its_message() {
        let status = Status::failure("you may not list that", "Forbidden").with_code(403);
        let error = kube::Error::Api(Box::new(status));
        assert_eq!(one_line(&error), "you may not list that");
        assert_eq!(one_line(&Cannot(error)), "cannot look: you may not list that");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot look")]
    struct Cannot(#[source] kube::Error);

    #[test]
    fn a_long_story_is_cut_between_characters() {
        let text = shorten("ä".repeat(MAX));
        assert!(text.len() <= MAX && text.ends_with("ä…"), "{}", text.len());
    }
}

//! Errors in one line, fit for a status field.

use std::error::Error;

/// The longest text that is put into a status or annotation.
const MAX: usize = 2048;

/// An error and its causes in one line, not too long.
pub(crate) fn one_line(error: &(dyn Error + 'static)) -> String {
    shorten(bowline_plugin::one_line(error))
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
    use super::*;

    #[test]
    fn a_long_story_is_cut_between_characters() {
        let text = shorten("ä".repeat(MAX));
        assert!(text.len() <= MAX && text.ends_with("ä…"), "{}", text.len());
    }
}

//! Output for the user: data on standard output, everything else on standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;
#[cfg(feature = "demo")]
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

/// A JSON document as it is printed, with its final line feed. Characters that control a terminal or are invisible in
/// it are escaped. JSON escapes only some of them, and a reader finds the same text.
pub(crate) fn document(document: &serde_json::Value) -> String {
    use std::fmt::Write as _;
    let raw = format!("{document:#}\n");
    let mut text = String::with_capacity(raw.len());
    for c in raw.chars() {
        if is_control_or_invisible(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        } else {
            text.push(c);
        }
    }
    text
}

/// Writes data. A reader that has gone away (`bowline … | head`) is not an error; a full disk is.
pub(crate) fn print_data(text: impl Display) -> anyhow::Result<()> {
    let mut stdout = io::stdout();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output"))
        }
        _ => Ok(()),
    }
}

/// Removes the characters that control a terminal or are invisible in it; lines and tabs stay.
pub(crate) fn strip_control_chars(text: &str) -> String {
    let shown = |c| if is_control_or_invisible(c) { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

/// True if a character controls a terminal, changes the direction of the text after it, or is invisible, so that a name
/// looks like another: controls, those of Unicode's category Cf, and its separators of lines and paragraphs.
fn is_control_or_invisible(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{ad}'
        | '\u{600}'..='\u{605}'
        | '\u{61c}'
        | '\u{6dd}'
        | '\u{70f}'
        | '\u{890}'..='\u{891}'
        | '\u{8e2}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{110bd}'
        | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e007f}' => true,
        c => c.is_control(),
    }
}

/// Writer that removes the characters that [`strip_control_chars`] removes, also across writes.
pub(crate) struct ControlCharFilter<W> {
    inner: W,
    /// First bytes of a character whose other bytes are still to come.
    incomplete_char: Vec<u8>,
}

impl<W: io::Write> ControlCharFilter<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, incomplete_char: Vec::new() }
    }

    /// What was written to so far. A character that is incomplete is not in it.
    #[cfg(feature = "testing")]
    pub(crate) fn into_inner(self) -> W {
        self.inner
    }
}

impl<W: io::Write> io::Write for ControlCharFilter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = std::mem::take(&mut self.incomplete_char);
        text.extend_from_slice(bytes);
        let mut shown = Vec::with_capacity(text.len());
        let mut rest = &text[..];
        loop {
            let (valid, invalid) = match std::str::from_utf8(rest) {
                Ok(valid) => (valid, None),
                Err(error) => {
                    let valid = rest.split_at(error.valid_up_to()).0;
                    (std::str::from_utf8(valid).unwrap_or_default(), Some(error))
                }
            };
            for c in valid.chars() {
                let c = if is_control_or_invisible(c) { '?' } else { c };
                shown.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
            rest = &rest[valid.len()..];
            let Some(error) = invalid else { break };
            let Some(length) = error.error_len() else {
                // The rest of the character comes with the next write.
                self.incomplete_char = rest.to_vec();
                break;
            };
            shown.push(b'?');
            rest = &rest[length..];
        }
        self.inner.write_all(&shown)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Prints a message for the user, filtered by [`strip_control_chars`].
pub(crate) fn print_message(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", strip_control_chars(&line.to_string()));
}

/// Prints an error in one line.
pub(crate) fn print_error(line: &str) {
    print_message(format_args!("error: {}", strip_control_chars(line)));
}

/// Error and its causes in one line.
pub(crate) fn error_chain(error: &anyhow::Error) -> String {
    bowline_server::error_chain(error.as_ref())
}

/// Rows under headings, aligned as kubectl does.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    render_rows(&header, rows)
}

/// The same, where the number of columns depends on the user.
pub(crate) fn render_rows<R: Into<comfy_table::Row>>(
    header: &[impl AsRef<str>],
    rows: Vec<R>,
) -> String {
    let header: Vec<&str> = header.iter().map(AsRef::as_ref).collect();
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    // The library pads the last column, too.
    table.lines().flat_map(|line| [line.trim_end().to_owned(), "\n".to_owned()]).collect()
}

/// Moving line on a terminal during some work; elsewhere nothing.
pub(crate) struct Spinner(Option<ProgressBar>);

impl Spinner {
    pub(crate) fn start(message: &'static str) -> Self {
        Self(io::stderr().is_terminal().then(|| spinner(message)))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn spinner(message: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Step that may take longer than two seconds: a moving line on a terminal meanwhile, and one line with its duration at
/// the end.
#[cfg(feature = "demo")]
pub(crate) struct Step {
    message: &'static str,
    started: Instant,
    spinner: Option<ProgressBar>,
}

#[cfg(feature = "demo")]
impl Step {
    pub(crate) fn start(message: &'static str) -> Self {
        let spinner = io::stderr().is_terminal().then(|| spinner(message));
        if spinner.is_none() {
            print_message(format_args!("{message} …"));
        }
        Self { message, started: Instant::now(), spinner }
    }

    pub(crate) fn done(self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
        print_message(format_args!(
            "{}: done in {:.1} s",
            self.message,
            self.started.elapsed().as_secs_f64()
        ));
    }
}

#[cfg(feature = "demo")]
impl Drop for Step {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_at_every_chunk_boundary() {
        let text = "a\tb\u{1b}[2J\rc\u{9b}31mé\u{a0}\u{7f}\n";
        for size in 1..text.len() {
            let mut writer = ControlCharFilter::new(Vec::new());
            for part in text.as_bytes().chunks(size) {
                writer.write_all(part).unwrap();
            }
            let shown = String::from_utf8(writer.inner).unwrap();
            assert_eq!(shown, "a\tb?[2J?c?31mé\u{a0}?\n");
        }
        assert_eq!(strip_control_chars("a\n\u{1b}\u{9b}é"), "a\n\u{fffd}\u{fffd}é");
    }

    #[test]
    fn json_documents_escape_control_and_invisible_characters_and_keep_their_text() {
        let document =
            serde_json::json!({"a": ["b\u{9b}31m\u{7f}\n\u{202e}c", {"\u{e0041}": "é☃𝄞"}]});
        let printed = super::document(&document);
        assert_eq!(strip_control_chars(&printed), printed);
        assert!(printed.contains(r#""b\u009b31m\u007f\n\u202ec""#), "{printed}");
        assert!(printed.contains(r#""\udb40\udc41": "é☃𝄞""#), "{printed}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).unwrap(), document);
    }

    #[test]
    fn bidi_and_invisible_characters_are_replaced_at_every_chunk_boundary() {
        // From the name of a real plugin operation: without the filter a terminal shows `op-cba`.
        let text = "op-\u{202e}abc\u{2069} a\u{200b}b \u{feff}\u{e0041}é☃𝄞";
        for size in 1..text.len() {
            let mut writer = ControlCharFilter::new(Vec::new());
            for part in text.as_bytes().chunks(size) {
                writer.write_all(part).unwrap();
            }
            assert_eq!(String::from_utf8(writer.inner).unwrap(), "op-?abc? a?b ??é☃𝄞");
        }
        let marked = "op-\u{fffd}abc\u{fffd} a\u{fffd}b \u{fffd}\u{fffd}é☃𝄞";
        assert_eq!(strip_control_chars(text), marked);
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        let mut writer = ControlCharFilter::new(Vec::new());
        writer.write_all(b"a\xffb\xe2\x80").unwrap();
        writer.write_all(b"\xae\xf0c").unwrap();
        assert_eq!(writer.inner, b"a?b??c");
    }

    #[test]
    fn cause_already_quoted_in_its_error_is_not_repeated() {
        let error =
            anyhow::anyhow!("no route").context("cannot dial: no route").context("it failed");
        assert_eq!(error_chain(&error), "it failed: cannot dial: no route");
    }
}

//! What the user sees: data on standard output, everything else on standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Writes data. A reader that has gone away (`bowline … | head`) is no error; a full disk is.
pub(crate) fn data(text: impl Display) -> anyhow::Result<()> {
    let mut stdout = io::stdout();
    match write!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output"))
        }
        _ => Ok(()),
    }
}

/// Says a line to the user.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Says what went wrong, in one line.
pub(crate) fn error(line: &str) {
    say(format_args!("error: {line}"));
}

/// An error and its causes in one line. Causes that the text before already quotes are left out:
/// some libraries put theirs into their own message.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if line.contains(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    line
}

/// Rows under headings, aligned as kubectl does it.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    // The library pads the last column, too.
    table.lines().flat_map(|line| [line.trim_end().to_owned(), "\n".to_owned()]).collect()
}

/// A step that may take longer than two seconds: a moving line on a terminal while it lasts, and
/// one line at its end with the time it took.
pub(crate) struct Step {
    what: &'static str,
    started: Instant,
    spinner: Option<ProgressBar>,
}

impl Step {
    pub(crate) fn start(what: &'static str) -> Self {
        let spinner = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner().with_message(what);
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if spinner.is_none() {
            say(format_args!("{what} …"));
        }
        Self { what, started: Instant::now(), spinner }
    }

    pub(crate) fn done(self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
        say(format_args!("{}: done in {:.1} s", self.what, self.started.elapsed().as_secs_f64()));
    }
}

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
    fn a_cause_that_is_quoted_already_is_not_said_twice() {
        let error =
            anyhow::anyhow!("no route").context("cannot dial: no route").context("it failed");
        assert_eq!(one_line(&error), "it failed: cannot dial: no route");
    }
}

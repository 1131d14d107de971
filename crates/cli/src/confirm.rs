//! Asks for confirmation before a deletion.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::output;

/// Longer than any real answer.
const MAX_ANSWER_BYTES: u64 = 1024;
/// Longest wait for a program that answers through a pipe, as in `echo y | bowline backup delete b`. A pipe that is
/// merely left open never answers.
const PIPE_TIMEOUT: Duration = Duration::from_secs(10);

/// True if the user confirms: by `--confirm`, or by an answer to the question, typed or piped.
pub(crate) fn confirm(is_confirmed: bool, question: &str) -> anyhow::Result<bool> {
    if is_confirmed {
        return Ok(true);
    }
    let (cannot, question) = ("cannot prompt", format!("{question} Continue? [y/N] "));
    if !io::stdin().is_terminal() {
        let answer = piped_answer().context(cannot)?;
        let answer = answer.trim();
        if answer.is_empty() {
            bail!(
                "standard input is not a terminal and contains no answer; add --confirm to \
                   proceed"
            );
        }
        output::print_message(format_args!("{question}{answer}"));
        return Ok(is_yes(answer));
    }
    if !io::stderr().is_terminal() {
        bail!("standard error is not a terminal, so there is no prompt; add --confirm to proceed");
    }
    write!(io::stderr(), "{question}").context(cannot)?;
    Ok(is_yes(&read_answer().context(cannot)?))
}

/// Answer of another program; empty if none comes in time.
fn piped_answer() -> io::Result<String> {
    let (sender, receiver) = mpsc::channel();
    // The thread ends with the process at the latest.
    std::thread::spawn(move || sender.send(read_answer()));
    receiver.recv_timeout(PIPE_TIMEOUT).unwrap_or_else(|_| Ok(String::new()))
}

/// First line of standard input.
fn read_answer() -> io::Result<String> {
    let mut answer = String::new();
    io::stdin().lock().take(MAX_ANSWER_BYTES).read_line(&mut answer)?;
    Ok(answer)
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_y_and_yes_confirm() {
        for (answer, expected) in [
            ("y\n", true),
            ("Yes\n", true),
            ("\n", false),
            ("", false),
            ("n\n", false),
            ("ja", false),
        ] {
            assert_eq!(is_yes(answer), expected, "{answer:?}");
        }
    }
}

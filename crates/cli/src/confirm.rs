//! Asks before something is deleted.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};

use anyhow::{Context as _, bail};

/// More than anybody types.
const LONGEST_ANSWER: u64 = 1024;

/// Whether the user wants it. Where nobody can be asked, `--confirm` must have been said.
pub(crate) fn confirm(is_confirmed: bool, question: &str) -> anyhow::Result<bool> {
    if is_confirmed {
        return Ok(true);
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        bail!("nobody can be asked whether this is meant; say so with --confirm");
    }
    let cannot = "cannot ask";
    write!(io::stderr(), "{question} Continue? [y/N] ").context(cannot)?;
    let mut answer = String::new();
    io::stdin().lock().take(LONGEST_ANSWER).read_line(&mut answer).context(cannot)?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
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

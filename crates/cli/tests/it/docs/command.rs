//! Finds our commands in shell text, to check whether they exist.

/// Words that may precede a command of ours in a line.
const COMMAND_PREFIXES: [&str; 6] = ["", "<(", "|", ";", "&&", "kubectl"];
/// Ends flags.
const END_OF_FLAGS: &str = "--";
/// Mark for an omitted part.
const ELLIPSIS: char = '…';

/// The words after `bowline`, for each time that it is called in `text`. Alternatives are taken apart:
/// `backup get|describe` are two commands.
pub(super) fn bowline_commands(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ").replace("\\|", "|");
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find("bowline ") {
        let (before, rest) = (&text[..from + at], &text[from + at + "bowline ".len()..]);
        from += at + 1;
        let last = before.trim_end().rsplit([' ', '\n']).next().unwrap_or_default();
        let is_apart = before.is_empty() || before.ends_with([' ', '(', '\n']);
        if !is_apart || !(COMMAND_PREFIXES.contains(&last) || before.ends_with('\n')) {
            continue;
        }
        let words = words(rest);
        // `bowline NOUN VERB` is a pattern, no command.
        let is_pattern = words.first().is_none_or(|word| word.starts_with(char::is_uppercase));
        if !is_pattern {
            found.extend(alternatives(&words));
        }
    }
    found
}

/// The words of a command up to its end, without quotes.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut word, mut quote) = (None::<String>, None::<char>);
    for (at, letter) in text.char_indices() {
        match (quote, letter) {
            (Some(open), letter) if open == letter => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '\n' | ')' | ';' | '&' | '>' | '<') => break,
            // A pipe, and not `get|describe`.
            (None, '|') if text[at..].starts_with("| ") => break,
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words.retain(|word| !word.starts_with(ELLIPSIS));
    words.into_iter().map(|word| word.trim_end_matches(ELLIPSIS).to_owned()).collect()
}

/// A word with alternatives stands for several commands. One of a flag, such as `table|json`, does not.
fn alternatives(words: &[String]) -> Vec<Vec<String>> {
    let Some(index) = words.iter().position(|word| word.contains('|')) else {
        return vec![words.to_vec()];
    };
    let choose = |word: &str| {
        let mut words = words[..=index].to_vec();
        word.clone_into(&mut words[index]);
        words
    };
    words[index].split('|').map(choose).collect()
}

/// The same with `--help` at its end, so that flags and values are read and nothing is done.
pub(super) fn with_help_flag(words: &[String]) -> Vec<String> {
    let flags = words.iter().take_while(|word| *word != END_OF_FLAGS).cloned();
    // `--wait[=false]` says that a value may be given.
    let flags = flags.map(|word| word.split('[').next().unwrap_or_default().to_owned());
    flags.chain(["--help".to_owned()]).collect()
}

#[test]
fn bowline_commands_are_found_in_text() {
    for (text, expected) in [
        ("bowline backup get", &["backup get"][..]),
        ("bowline backup create x \\\n  --ttl '3 h' --wait", &["backup create x --ttl 3 h --wait"]),
        ("source <(bowline completion bash)", &["completion bash"]),
        ("bowline completion fish | source", &["completion fish"]),
        ("bowline server --x y &", &["server --x y"]),
        ("kubectl bowline get backups", &["get backups"]),
        ("bowline backup create\\|get", &["backup create", "backup get"]),
        ("bowline install --crds-only > a", &["install --crds-only"]),
        ("bowline restore delete NAME…", &["restore delete NAME"]),
        ("bowline NOUN VERB", &[]),
        ("kubectl scale deployment bowline --replicas=0", &[]),
        ("ln -s \"$(command -v bowline)\" x", &[]),
    ] {
        let found: Vec<String> =
            bowline_commands(text).iter().map(|words| words.join(" ")).collect();
        assert_eq!(found, expected, "{text}");
    }
    let line = ["install", "--wait[=false]", "--", "--x"].map(str::to_owned);
    assert_eq!(with_help_flag(&line), ["install", "--wait", "--help"]);
}

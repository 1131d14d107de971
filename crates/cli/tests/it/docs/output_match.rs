//! Compares the output of a command with the output on a page: the same words and columns. Numbers, generated names,
//! times and paths may differ.

/// Says that lines, or the rest of one, are left out.
const ELLIPSIS: &str = "…";
/// Words that may be missing on either side, depending on the time of the command.
const TRANSIENT_PHASES: [&str; 6] =
    ["New", "Queued", "ReadyToStart", "InProgress", "WaitingForPluginOperations", "Finalizing"];

/// Why it has not, if so.
pub(super) fn compare(shown: &[String], actual: &str) -> Result<(), String> {
    let is_relevant = |line: &&str| !line.trim().is_empty() && !is_transient(line);
    let mut actual = actual.lines().filter(is_relevant);
    let mut may_skip = false;
    for expected in shown.iter().map(String::as_str).filter(is_relevant) {
        if expected.trim() == ELLIPSIS {
            may_skip = true;
            continue;
        }
        let found = if may_skip {
            actual.find(|line| is_match(expected, line)).ok_or("there is no such line")
        } else {
            match actual.next() {
                Some(line) if is_match(expected, line) => Ok(line),
                Some(line) => return Err(format!("shown is {expected:?}, said is {line:?}")),
                None => Err("nothing more is said"),
            }
        };
        found.map_err(|reason| format!("shown is {expected:?}, but {reason}"))?;
        may_skip = false;
    }
    match actual.next() {
        Some(line) if !may_skip => Err(format!("not shown is {line:?}")),
        _ => Ok(()),
    }
}

/// `name: InProgress`, as `--wait` says it.
fn is_transient(line: &str) -> bool {
    line.split_once(": ")
        .is_some_and(|(name, phase)| !name.contains(' ') && TRANSIENT_PHASES.contains(&phase))
}

fn is_match(shown: &str, actual: &str) -> bool {
    let mut actual = actual.split_whitespace();
    for expected in shown.split_whitespace() {
        if expected == ELLIPSIS {
            return true;
        }
        let Some(word) = actual.next() else { return false };
        if let Some(start) = expected.strip_suffix(ELLIPSIS) {
            return word.starts_with(start);
        }
        if !is_value(expected) && expected != word && !(is_unit(expected) && is_unit(word)) {
            return false;
        }
    }
    actual.next().is_none()
}

/// True if a word differs from run to run.
fn is_value(word: &str) -> bool {
    word.contains(|letter: char| letter.is_ascii_digit()) || word.starts_with('/')
}

fn is_unit(word: &str) -> bool {
    let word = word.trim_end_matches([',', ')', '/']);
    ["B", "KiB", "MiB", "GiB", "B/s", "KiB/s", "MiB/s", "GiB/s"].contains(&word)
}

#[test]
fn words_must_match_and_values_may_differ() {
    let holds = |shown: &str, actual: &str| {
        let shown: Vec<String> = shown.lines().map(str::to_owned).collect();
        compare(&shown, actual).is_ok()
    };
    for (shown, actual) in [
        ("NAME   AGE\na-1   3d", "NAME  AGE\na-77  12s"),
        ("x: New\nx: Completed", "x: InProgress\nx: Completed"),
        ("first\n…\nlast", "first\n\nmore\nand more\nlast"),
        ("first\n…", "first\nmore"),
        ("first", "first"),
        ("4.00 GiB of 8.00 GiB (50 %)", "7 B of 12.00 KiB (58 %)"),
        ("error: no …", "error: no such thing"),
        ("/home/me/plugin", "/tmp/x/plugin"),
    ] {
        assert!(holds(shown, actual), "{shown:?} {actual:?}");
    }
    for (shown, actual) in [
        ("NAME   AGE", "NAME   PHASE   AGE"),
        ("NAME   PHASE   AGE", "NAME   AGE"),
        ("x: Completed", "x: PartiallyFailed"),
        ("first", "first\nsecond"),
        ("first\nsecond", "first"),
        ("first\n…\nlast", "first\nmore"),
        ("0 broken", "0 broken, 1 skipped"),
        ("4.00 GiB", "4.00 stones"),
    ] {
        assert!(!holds(shown, actual), "{shown:?} {actual:?}");
    }
}

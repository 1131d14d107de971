//! Patterns for kinds, with the dot as separator: `*.apps`, `*`, `**`.

use regex::Regex;

use super::InvalidModifiers;
use crate::glob::Glob;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub(super) struct KindPattern(Regex);

impl KindPattern {
    /// True if a kind such as `deployments.apps` matches as a whole.
    pub(super) fn matches(&self, kind: &str) -> bool {
        self.0.is_match(kind)
    }
}

/// Compiles a pattern. The syntax is that of [`Glob`], but `*` and `?` do not match dots, only `**` does: `*` matches
/// all of the core group, `*.*.*` everything with two dots.
pub(super) fn kind(pattern: &str) -> Result<KindPattern, InvalidModifiers> {
    // A pattern that passes here is well-formed.
    Glob::new(pattern)?;
    let regex = Regex::new(&regex(pattern));
    regex
        .map(KindPattern)
        .map_err(|source| InvalidModifiers::Regex { pattern: pattern.to_owned(), source })
}

fn regex(pattern: &str) -> String {
    let mut regex = String::from("^(?s:");
    let mut depth = 0_usize;
    let mut characters = pattern.chars().peekable();
    let literal = |regex: &mut String, character: char| {
        regex.push_str(&regex::escape(character.encode_utf8(&mut [0; 4])));
    };
    while let Some(character) = characters.next() {
        match character {
            '*' => {
                let crosses = characters.next_if_eq(&'*').is_some();
                while characters.next_if_eq(&'*').is_some() {}
                regex.push_str(if crosses { ".*" } else { "[^.]*" });
            }
            '?' => regex.push_str("[^.]"),
            '[' => class(&mut regex, &mut characters),
            '{' => {
                depth += 1;
                regex.push_str("(?:");
            }
            ',' if depth > 0 => regex.push('|'),
            '}' if depth > 0 => {
                depth -= 1;
                regex.push(')');
            }
            '\\' => literal(&mut regex, characters.next().unwrap_or('\\')),
            other => literal(&mut regex, other),
        }
    }
    regex.push_str(")$");
    regex
}

/// Translates the part after a `[`: one range, or a list in which `-` is an ordinary character.
fn class(regex: &mut String, characters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    let mut inside = Vec::new();
    let negated = characters.next_if_eq(&'!').is_some();
    while let Some(character) = characters.next() {
        match character {
            ']' => break,
            '\\' => inside.extend(characters.next()),
            other => inside.push(other),
        }
    }
    let escaped = |character: &char| format!("\\x{{{:x}}}", u32::from(*character));
    regex.push_str(if negated { "[^" } else { "[" });
    if let [low, '-', high] = inside.as_slice() {
        regex.extend([escaped(low), "-".to_owned(), escaped(high)]);
    } else {
        regex.extend(inside.iter().map(escaped));
    }
    regex.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stop_at_dots() {
        for (pattern, text, expected) in [
            ("pods", "pods", true),
            ("pods", "podsx", false),
            ("pods", "pods.example.io", false),
            ("*", "pods", true),
            ("*", "deployments.apps", false),
            ("*.apps", "deployments.apps", true),
            ("*.apps", "apps", false),
            ("*.*", "deployments.apps", true),
            ("*.*", "roles.rbac.authorization.k8s.io", false),
            ("**", "roles.rbac.authorization.k8s.io", true),
            ("*.**", "roles.rbac.authorization.k8s.io", true),
            ("pod?", "pods", true),
            ("pods?apps", "pods.apps", false),
            ("{pods,secrets}", "secrets", true),
            ("{pods,*.apps}", "deployments.apps", true),
            ("{pods,secrets}", "pods,secrets", false),
            ("[a-d]*.apps", "deployments.apps", true),
            ("[!a-d]*.apps", "deployments.apps", false),
            ("[pq]ods", "pods", true),
            ("a.b", "axb", false),
            ("a+", "aa", false),
            ("[^]ods", "^ods", true),
            ("\\*", "*", true),
            ("a,b", "a,b", true),
        ] {
            assert_eq!(kind(pattern).unwrap().matches(text), expected, "{pattern} {text}");
        }
        for broken in ["[a", "{a", "[]", "a\\"] {
            assert!(kind(broken).is_err(), "{broken}");
        }
    }
}

//! Patterns for namespaces, which permit less than others.

/// Reason why a text is no pattern for namespaces, with Velero's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNamespacePattern {
    /// Special character of other patterns.
    #[error("wildcard pattern contains unsupported characters: |, (, ), !, {{, }}, ,")]
    Characters,
    /// `**`
    #[error("wildcard pattern contains consecutive asterisks (only single * allowed)")]
    Asterisks,
    /// `[]`
    #[error("wildcard pattern contains empty bracket pattern '[]'")]
    EmptyBrackets,
    /// `[` without `]`.
    #[error("wildcard pattern contains unclosed bracket '['")]
    Unclosed,
    /// `]` without `[`.
    #[error("wildcard pattern contains unmatched closing bracket ']'")]
    Unopened,
}

/// Checks that a pattern contains nothing that Velero refuses for namespaces.
///
/// The pattern may still be invalid, such as `[c-a]`; [`Glob::new`](super::Glob::new) checks that.
pub fn check_namespace(pattern: &str) -> Result<(), InvalidNamespacePattern> {
    if pattern.contains(['|', '(', ')', '!', '{', '}', ',']) {
        return Err(InvalidNamespacePattern::Characters);
    }
    if pattern.contains("**") {
        return Err(InvalidNamespacePattern::Asterisks);
    }
    let mut rest = pattern;
    while let Some(at) = rest.find(['[', ']']) {
        if rest[at..].starts_with(']') {
            return Err(InvalidNamespacePattern::Unopened);
        }
        let inside = &rest[at + 1..];
        rest = match inside.find(']') {
            None => return Err(InvalidNamespacePattern::Unclosed),
            Some(0) => return Err(InvalidNamespacePattern::EmptyBrackets),
            Some(end) => &inside[end + 1..],
        };
    }
    Ok(())
}

//! Patterns for names, as users write them: `app-*`, `ns?`, `team-[a-c]`, `{pods,secrets}`.
//!
//! The syntax is that of the Go library with which Velero matches namespaces and resources
//! (`gobwas/glob`), without separators: `*` also matches dots. Where that library accepts a broken
//! pattern, and then matches nothing, this module returns an error.
//!
//! A pattern is compiled once, to a regular expression. Matching takes time proportional to the
//! length of the pattern times that of the text, for any pattern.

mod namespace;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;

use regex::Regex;

pub use namespace::{InvalidNamespacePattern, check_namespace};
pub use parse::InvalidGlob;

/// Compiled pattern.
#[derive(Clone, Debug)]
pub struct Glob {
    text: String,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    /// Matches only its own text.
    Literal,
    /// `*`
    Everything,
    Pattern(Regex),
}

impl Glob {
    /// Compiles a pattern.
    pub fn new(pattern: &str) -> Result<Self, InvalidGlob> {
        let matcher = match pattern {
            "*" => Matcher::Everything,
            _ if !has_special_characters(pattern) => Matcher::Literal,
            _ => Matcher::Pattern(parse::compile(pattern)?),
        };
        Ok(Self { text: pattern.to_owned(), matcher })
    }

    /// Pattern that matches only this text, with any characters.
    pub fn literal(text: impl Into<String>) -> Self {
        Self { text: text.into(), matcher: Matcher::Literal }
    }

    /// True if the whole text matches the pattern.
    pub fn matches(&self, text: &str) -> bool {
        match &self.matcher {
            Matcher::Literal => self.text == text,
            Matcher::Everything => true,
            Matcher::Pattern(regex) => regex.is_match(text),
        }
    }

    /// Pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// True for `*`, which matches everything.
    pub fn is_everything(&self) -> bool {
        matches!(self.matcher, Matcher::Everything)
    }

    /// True if the pattern can match only one text.
    pub fn is_literal(&self) -> bool {
        matches!(self.matcher, Matcher::Literal)
    }
}

/// Patterns are equal if their texts and meanings are equal.
impl PartialEq for Glob {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.is_literal() == other.is_literal()
    }
}

impl Eq for Glob {}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

fn has_special_characters(pattern: &str) -> bool {
    pattern.contains(['*', '?', '[', '{', '\\'])
}

/// Set of patterns, of which one must match.
#[derive(Clone, Debug, Default)]
pub struct Globs {
    literals: HashSet<String>,
    patterns: Vec<Glob>,
}

impl Globs {
    /// Compiles several patterns.
    pub fn new<S: AsRef<str>>(patterns: impl IntoIterator<Item = S>) -> Result<Self, InvalidGlob> {
        patterns.into_iter().map(|pattern| Glob::new(pattern.as_ref())).collect()
    }

    /// True if one of the patterns matches; false if there is none.
    pub fn matches(&self, text: &str) -> bool {
        self.literals.contains(text) || self.patterns.iter().any(|glob| glob.matches(text))
    }

    /// True if there is no pattern.
    pub fn is_empty(&self) -> bool {
        self.literals.is_empty() && self.patterns.is_empty()
    }

    /// True if `*` is among the patterns.
    pub fn is_everything(&self) -> bool {
        self.patterns.iter().any(Glob::is_everything)
    }

    /// Adds a pattern.
    pub fn insert(&mut self, glob: Glob) {
        if glob.is_literal() {
            self.literals.insert(glob.text);
        } else {
            self.patterns.push(glob);
        }
    }
}

impl FromIterator<Glob> for Globs {
    fn from_iter<I: IntoIterator<Item = Glob>>(globs: I) -> Self {
        let mut all = Self::default();
        for glob in globs {
            all.insert(glob);
        }
        all
    }
}

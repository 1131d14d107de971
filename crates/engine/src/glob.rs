//! Patterns for names, as users write them: `app-*`, `ns?`, `team-[a-c]`, `{pods,secrets}`.
//!
//! The syntax is that of the Go library with which Velero matches namespaces and resources
//! (`gobwas/glob`), without separators: `*` also matches dots. Where that library accepts a broken
//! pattern, and then matches nothing, this module returns an error.
//!
//! A pattern is compiled once. Matching takes time proportional to the length of the pattern times
//! that of the text, for any pattern.

mod namespace;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;

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
    Program(Vec<Op>),
}

/// One instruction of a program. The pattern matches when a walk that consumes the whole text ends
/// behind the last instruction.
#[derive(Clone, Debug)]
enum Op {
    /// Consumes this character.
    Char(char),
    /// Consumes any character.
    Any,
    /// Consumes a character of a class.
    Class { negated: bool, class: Class },
    /// Continues at both places.
    Split(usize, usize),
    /// Continues elsewhere.
    Jump(usize),
}

#[derive(Clone, Debug)]
enum Class {
    /// `[abc]`
    List(Vec<char>),
    /// `[a-c]`
    Range(char, char),
}

impl Glob {
    /// Compiles a pattern.
    pub fn new(pattern: &str) -> Result<Self, InvalidGlob> {
        let matcher = match pattern {
            "*" => Matcher::Everything,
            _ if !has_special_characters(pattern) => Matcher::Literal,
            _ => Matcher::Program(parse::program(pattern)?),
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
            Matcher::Program(program) => Walk::new(program).matches(text),
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

/// All walks through a program at once, one character of the text at a time. Each place is entered
/// at most once per character, so no pattern is slow.
struct Walk<'a> {
    program: &'a [Op],
    places: Vec<usize>,
    /// Step of the walk at which each place was last entered.
    entered: Vec<usize>,
    step: usize,
}

impl<'a> Walk<'a> {
    fn new(program: &'a [Op]) -> Self {
        Self { program, places: Vec::new(), entered: vec![0; program.len() + 1], step: 0 }
    }

    fn matches(mut self, text: &str) -> bool {
        self.advance([0]);
        for character in text.chars() {
            let places = std::mem::take(&mut self.places);
            let program = self.program;
            let consumes =
                |place: &usize| program.get(*place).is_some_and(|op| op.consumes(character));
            self.advance(places.into_iter().filter(consumes).map(|place| place + 1));
            if self.places.is_empty() {
                return false;
            }
        }
        self.places.contains(&self.program.len())
    }

    /// Enters places, and those that can be reached from them without consuming a character.
    fn advance(&mut self, from: impl IntoIterator<Item = usize>) {
        self.step += 1;
        let mut open: Vec<usize> = from.into_iter().collect();
        while let Some(place) = open.pop() {
            if std::mem::replace(&mut self.entered[place], self.step) == self.step {
                continue;
            }
            match self.program.get(place) {
                Some(Op::Split(one, other)) => open.extend([*one, *other]),
                Some(Op::Jump(to)) => open.push(*to),
                _ => self.places.push(place),
            }
        }
    }
}

impl Op {
    fn consumes(&self, character: char) -> bool {
        match self {
            Self::Char(own) => *own == character,
            Self::Any => true,
            Self::Class { negated, class: Class::List(list) } => {
                list.contains(&character) != *negated
            }
            Self::Class { negated, class: Class::Range(low, high) } => {
                (*low..=*high).contains(&character) != *negated
            }
            Self::Split(..) | Self::Jump(_) => false,
        }
    }
}

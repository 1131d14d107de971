//! Patterns for names, as users write them: `app-*`, `ns?`, `team-[a-c]`, `{pods,secrets}`.
//!
//! The syntax is that of the Go library which Velero matches namespaces and resources with
//! (`gobwas/glob`), without separators: `*` also crosses dots. Where that library shrugs at a
//! broken pattern, and then matches nothing, a pattern here is an error.
//!
//! A pattern is compiled once. Matching takes time in proportion to the pattern times the text,
//! whatever stands in them.

mod namespace;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt;

pub use namespace::{InvalidNamespacePattern, check_namespace};
pub use parse::InvalidGlob;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Glob {
    text: String,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    /// Matches its text and nothing else.
    Literal,
    /// `*`
    Everything,
    Program(Vec<Op>),
}

/// One step of a program. It matches when a walk that consumes the whole text ends behind the last
/// step.
#[derive(Clone, Debug)]
enum Op {
    /// Consumes this character.
    Char(char),
    /// Consumes any character.
    Any,
    /// Consumes a character of a class.
    Class { negated: bool, class: Class },
    /// Goes on at both places.
    Split(usize, usize),
    /// Goes on elsewhere.
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

    /// A pattern that matches this text and nothing else, whatever characters are in it.
    pub fn literal(text: impl Into<String>) -> Self {
        Self { text: text.into(), matcher: Matcher::Literal }
    }

    /// Whether a text as a whole fits the pattern.
    pub fn matches(&self, text: &str) -> bool {
        match &self.matcher {
            Matcher::Literal => self.text == text,
            Matcher::Everything => true,
            Matcher::Program(program) => Walk::new(program).matches(text),
        }
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it is `*`, which matches everything.
    pub fn is_everything(&self) -> bool {
        matches!(self.matcher, Matcher::Everything)
    }

    /// Whether it can match one text only.
    pub fn is_literal(&self) -> bool {
        matches!(self.matcher, Matcher::Literal)
    }
}

/// Patterns are equal if they were written the same and mean the same.
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

/// Several patterns, of which one must match.
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

    /// Whether one of them matches; never if there is none.
    pub fn matches(&self, text: &str) -> bool {
        self.literals.contains(text) || self.patterns.iter().any(|glob| glob.matches(text))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.literals.is_empty() && self.patterns.is_empty()
    }

    /// Whether `*` is among them.
    pub fn is_everything(&self) -> bool {
        self.patterns.iter().any(Glob::is_everything)
    }

    /// Adds one.
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
/// at most once for each character, so that no pattern makes it slow.
struct Walk<'a> {
    program: &'a [Op],
    places: Vec<usize>,
    /// The step of the walk at which a place was last entered.
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

    /// Enters places, and those that can be reached from them without a character.
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

//! From the text of a pattern to a regular expression.

use regex::{Regex, RegexBuilder};

/// Maximum length of a pattern. Names in Kubernetes have at most 253 characters.
const MAX_PATTERN_LENGTH: usize = 1024;
/// Maximum depth of a regular expression. No pattern of that length gets deeper.
const MAX_DEPTH: u32 = 4 * 1024;
/// Stack for compiling a pattern: the deepest one needs more than a thread has, and would end the process.
const STACK_SIZE: usize = 16 << 20;

/// Reason why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGlob {
    /// Longer than any name could need.
    #[error("a pattern of {0} characters is too long: at most {MAX_PATTERN_LENGTH} are allowed")]
    TooLong(usize),
    /// `[` without `]`.
    #[error("pattern {0:?} has a `[` without its `]`")]
    OpenClass(String),
    /// `[]` or `[!]`.
    #[error("pattern {0:?} has an empty `[]`")]
    EmptyClass(String),
    /// `[c-a]`
    #[error("pattern {0:?} has a range that ends before it begins")]
    BackwardRange(String),
    /// `[a-c0]`
    #[error("pattern {0:?} mixes ranges and characters: use one range, [a-z], or a list, [abc]")]
    MixedClass(String),
    /// `{` without `}`.
    #[error("pattern {0:?} has a `{{` without its `}}`")]
    OpenAlternatives(String),
    /// `\` at the end.
    #[error("pattern {0:?} ends with a `\\`, which must precede a character")]
    OpenEscape(String),
    /// Its regular expression is too large. No pattern of the maximum length is known to be.
    #[error("pattern {0:?} is too complex")]
    TooComplex(String),
}

/// Compiles a pattern.
pub(super) fn compile(pattern: &str) -> Result<Regex, InvalidGlob> {
    let length = pattern.chars().count();
    if length > MAX_PATTERN_LENGTH {
        return Err(InvalidGlob::TooLong(length));
    }
    stacker::maybe_grow(STACK_SIZE, STACK_SIZE, || {
        let (rest, regex) = (pattern.chars().collect(), String::new());
        let mut parser = Parser { pattern, rest, at: 0, depth: 0, regex };
        parser.sequence()?;
        RegexBuilder::new(&format!(r"\A{}\z", parser.regex))
            .dot_matches_new_line(true)
            .nest_limit(MAX_DEPTH)
            .build()
            .map_err(|_| parser.fail(InvalidGlob::TooComplex))
    })
}

struct Parser<'a> {
    pattern: &'a str,
    rest: Vec<char>,
    at: usize,
    /// Number of open `{`.
    depth: usize,
    /// The regular expression of the text before.
    regex: String,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    fn fail(&self, error: fn(String) -> InvalidGlob) -> InvalidGlob {
        error(self.pattern.to_owned())
    }

    /// Parses up to the end of the pattern or of an alternative.
    fn sequence(&mut self) -> Result<(), InvalidGlob> {
        while let Some(character) = self.peek() {
            if self.depth > 0 && matches!(character, ',' | '}') {
                return Ok(());
            }
            self.at += 1;
            match character {
                '*' => self.regex.push_str(".*"),
                '?' => self.regex.push('.'),
                '[' => self.class()?,
                '{' => self.alternatives()?,
                '\\' => {
                    let escaped = self.next();
                    let escaped = escaped.ok_or_else(|| self.fail(InvalidGlob::OpenEscape))?;
                    self.push(escaped);
                }
                other => self.push(other),
            }
        }
        Ok(())
    }

    /// Parses the text after a `{`. Nesting is bounded by the length of a pattern.
    fn alternatives(&mut self) -> Result<(), InvalidGlob> {
        self.depth += 1;
        self.regex.push_str("(?:");
        loop {
            self.sequence()?;
            match self.next() {
                Some(',') => self.regex.push('|'),
                Some(_) => break,
                None => return Err(self.fail(InvalidGlob::OpenAlternatives)),
            }
        }
        self.regex.push(')');
        self.depth -= 1;
        Ok(())
    }

    /// Parses the text after a `[`: one range, or a list in which `-` is an ordinary character.
    fn class(&mut self) -> Result<(), InvalidGlob> {
        self.regex.push('[');
        if self.peek() == Some('!') {
            self.at += 1;
            self.regex.push('^');
        }
        if self.rest.get(self.at + 1) == Some(&'-') {
            self.range()?;
        } else {
            self.list()?;
        }
        self.regex.push(']');
        Ok(())
    }

    fn range(&mut self) -> Result<(), InvalidGlob> {
        let low = self.next();
        self.at += 1;
        let (Some(low), Some(high)) = (low, self.next()) else {
            return Err(self.fail(InvalidGlob::OpenClass));
        };
        match self.next() {
            Some(']') if low <= high => {}
            Some(']') => return Err(self.fail(InvalidGlob::BackwardRange)),
            Some(_) => return Err(self.fail(InvalidGlob::MixedClass)),
            None => return Err(self.fail(InvalidGlob::OpenClass)),
        }
        self.push(low);
        self.regex.push('-');
        self.push(high);
        Ok(())
    }

    fn list(&mut self) -> Result<(), InvalidGlob> {
        let mut is_empty = true;
        loop {
            match self.next() {
                None => return Err(self.fail(InvalidGlob::OpenClass)),
                Some(']') if is_empty => return Err(self.fail(InvalidGlob::EmptyClass)),
                Some(']') => return Ok(()),
                Some('\\') => {
                    let escaped = self.next();
                    let escaped = escaped.ok_or_else(|| self.fail(InvalidGlob::OpenEscape))?;
                    self.push(escaped);
                }
                Some(character) => self.push(character),
            }
            is_empty = false;
        }
    }

    /// Adds a character that means itself.
    fn push(&mut self, character: char) {
        self.regex.push_str(&regex::escape(character.encode_utf8(&mut [0; 4])));
    }
}

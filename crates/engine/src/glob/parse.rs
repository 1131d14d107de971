//! From the text of a pattern to its program.

use super::{Class, Op};

/// Maximum length of a pattern. Names in Kubernetes have at most 253 characters.
const MAX_PATTERN_LENGTH: usize = 1024;

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
    #[error("pattern {0:?} ends with a `\\`, which must stand before a character")]
    OpenEscape(String),
}

/// Compiles a pattern.
pub(super) fn program(pattern: &str) -> Result<Vec<Op>, InvalidGlob> {
    let length = pattern.chars().count();
    if length > MAX_PATTERN_LENGTH {
        return Err(InvalidGlob::TooLong(length));
    }
    let mut parser =
        Parser { pattern, rest: pattern.chars().collect(), at: 0, depth: 0, program: Vec::new() };
    parser.sequence()?;
    Ok(parser.program)
}

struct Parser<'a> {
    pattern: &'a str,
    rest: Vec<char>,
    at: usize,
    /// Number of open `{`.
    depth: usize,
    program: Vec<Op>,
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
                '*' => {
                    let start = self.program.len();
                    self.program.push(Op::Split(start + 1, start + 3));
                    self.program.push(Op::Any);
                    self.program.push(Op::Jump(start));
                }
                '?' => self.program.push(Op::Any),
                '[' => {
                    let class = self.class()?;
                    self.program.push(class);
                }
                '{' => self.alternatives()?,
                '\\' => {
                    let escaped = self.next();
                    let escaped = escaped.ok_or_else(|| self.fail(InvalidGlob::OpenEscape))?;
                    self.program.push(Op::Char(escaped));
                }
                other => self.program.push(Op::Char(other)),
            }
        }
        Ok(())
    }

    /// Parses the text after a `{`. Nesting is bounded by the length of a pattern.
    fn alternatives(&mut self) -> Result<(), InvalidGlob> {
        self.depth += 1;
        let mut ends = Vec::new();
        loop {
            let split = self.program.len();
            self.program.push(Op::Split(split + 1, split + 1));
            self.sequence()?;
            match self.next() {
                Some(',') => {
                    ends.push(self.program.len());
                    self.program.push(Op::Jump(0));
                    self.program[split] = Op::Split(split + 1, self.program.len());
                }
                Some(_) => break,
                None => return Err(self.fail(InvalidGlob::OpenAlternatives)),
            }
        }
        for end in ends {
            self.program[end] = Op::Jump(self.program.len());
        }
        self.depth -= 1;
        Ok(())
    }

    /// Parses the text after a `[`: one range, or a list in which `-` is an ordinary character.
    fn class(&mut self) -> Result<Op, InvalidGlob> {
        let negated = self.peek() == Some('!');
        self.at += usize::from(negated);
        let class =
            if self.rest.get(self.at + 1) == Some(&'-') { self.range()? } else { self.list()? };
        Ok(Op::Class { negated, class })
    }

    fn range(&mut self) -> Result<Class, InvalidGlob> {
        let low = self.next();
        self.at += 1;
        let (Some(low), Some(high)) = (low, self.next()) else {
            return Err(self.fail(InvalidGlob::OpenClass));
        };
        match self.next() {
            Some(']') if low <= high => Ok(Class::Range(low, high)),
            Some(']') => Err(self.fail(InvalidGlob::BackwardRange)),
            Some(_) => Err(self.fail(InvalidGlob::MixedClass)),
            None => Err(self.fail(InvalidGlob::OpenClass)),
        }
    }

    fn list(&mut self) -> Result<Class, InvalidGlob> {
        let mut list = Vec::new();
        loop {
            match self.next() {
                None => return Err(self.fail(InvalidGlob::OpenClass)),
                Some(']') if list.is_empty() => return Err(self.fail(InvalidGlob::EmptyClass)),
                Some(']') => return Ok(Class::List(list)),
                Some('\\') => {
                    let escaped = self.next();
                    list.push(escaped.ok_or_else(|| self.fail(InvalidGlob::OpenEscape))?);
                }
                Some(character) => list.push(character),
            }
        }
    }
}

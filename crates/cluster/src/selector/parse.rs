//! Parser of label selectors.
//!
//! The grammar is Kubernetes' own, oddities included: `in` and `notin` are also valid keys and
//! values, and a list of values may have empty ones, `x in (a,,b)`.

use super::{InvalidSelector, Requirement, check};

/// Parses a whole selector.
pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, InvalidSelector> {
    let mut parser = Parser { text, rest: text };
    let mut all = Vec::new();
    if parser.peek().is_none() {
        return Ok(all);
    }
    loop {
        all.push(parser.requirement()?);
        match parser.next_token() {
            None => return Ok(all),
            Some(Token::Symbol(",")) => {}
            found => return Err(parser.unexpected(found, "a `,` or the end")),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Token<'a> {
    /// One of [`SYMBOLS`].
    Symbol(&'static str),
    Word(&'a str),
}

/// Tokens that are not part of a word. The longer ones come first.
const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.split().map(|(token, _)| token)
    }

    fn next_token(&mut self) -> Option<Token<'a>> {
        let (token, rest) = self.split()?;
        self.rest = rest;
        Some(token)
    }

    /// Next token, and the rest of the text.
    fn split(&self) -> Option<(Token<'a>, &'a str)> {
        let rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if rest.is_empty() {
            return None;
        }
        for symbol in SYMBOLS {
            if let Some(behind) = rest.strip_prefix(symbol) {
                return Some((Token::Symbol(symbol), behind));
            }
        }
        let ends = [' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<'];
        let (word, behind) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        Some((Token::Word(word), behind))
    }

    fn unexpected(&self, found: Option<Token<'_>>, expected: &'static str) -> InvalidSelector {
        let found = match found {
            None => "its end".to_owned(),
            Some(Token::Symbol(text) | Token::Word(text)) => format!("`{text}`"),
        };
        InvalidSelector::Syntax { text: self.text.to_owned(), found, expected }
    }

    fn word(&mut self, expected: &'static str) -> Result<&'a str, InvalidSelector> {
        match self.next_token() {
            Some(Token::Word(word)) => Ok(word),
            found => Err(self.unexpected(found, expected)),
        }
    }

    fn requirement(&mut self) -> Result<Requirement, InvalidSelector> {
        if let Some(Token::Symbol("!")) = self.peek() {
            self.next_token();
            return check::does_not_exist(self.word("a key")?);
        }
        let key = self.word("a key or `!`")?;
        if matches!(self.peek(), None | Some(Token::Symbol(","))) {
            return check::exists(key);
        }
        match self.next_token() {
            Some(Token::Symbol("=" | "==")) => check::one_of(key, [self.value()?]),
            Some(Token::Symbol("!=")) => check::none_of(key, [self.value()?]),
            Some(Token::Symbol(">")) => check::greater_than(key, self.value()?),
            Some(Token::Symbol("<")) => check::less_than(key, self.value()?),
            Some(Token::Word("in")) => check::one_of(key, self.values()?),
            Some(Token::Word("notin")) => check::none_of(key, self.values()?),
            found => Err(self.unexpected(found, "an operator")),
        }
    }

    fn value(&mut self) -> Result<&'a str, InvalidSelector> {
        match self.peek() {
            None | Some(Token::Symbol(",")) => Ok(""),
            _ => self.word("a value"),
        }
    }

    /// Parses `(a,b)`. Each comma has a value on both sides, which may be empty.
    fn values(&mut self) -> Result<Vec<&'a str>, InvalidSelector> {
        match self.next_token() {
            Some(Token::Symbol("(")) => {}
            found => return Err(self.unexpected(found, "a `(`")),
        }
        let mut values = Vec::new();
        loop {
            let value = match self.peek() {
                Some(Token::Symbol("," | ")")) => "",
                _ => self.word("a value, `,` or `)`")?,
            };
            values.push(value);
            match self.next_token() {
                Some(Token::Symbol(",")) => {}
                Some(Token::Symbol(")")) => return Ok(values),
                found => return Err(self.unexpected(found, "a `,` or `)`")),
            }
        }
    }
}

//! A page of `Key:  value` lines for people, as `describe` prints it.
//!
//! Values of consecutive fields are aligned. Control characters are removed here from all foreign text, so that no
//! message of a plugin can manipulate a terminal.

use std::fmt::Display;

use crate::output::strip_control_chars;

/// Placeholder for an empty value.
pub(crate) const NONE: &str = "<none>";

/// Spaces per level.
const INDENT: usize = 2;

#[derive(Debug, Default)]
pub(crate) struct KeyValuePage {
    text: String,
    /// Fields that are not aligned yet.
    block: Vec<Field>,
    /// Levels added to each line.
    base: usize,
}

#[derive(Debug)]
struct Field {
    level: usize,
    key: String,
    lines: Vec<String>,
}

impl KeyValuePage {
    /// Indents the output of `write` by so many levels.
    pub(crate) fn indented(&mut self, levels: usize, write: impl FnOnce(&mut Self)) {
        self.align();
        self.base += levels;
        write(self);
        self.align();
        self.base -= levels;
    }

    /// `Key:  value`; further lines of a value are aligned below the first.
    pub(crate) fn field(&mut self, level: usize, key: &str, value: impl Display) {
        self.list(level, key, [value]);
    }

    /// `Key:  value`, with more values below the first.
    pub(crate) fn list<T: Display>(
        &mut self,
        level: usize,
        key: &str,
        values: impl IntoIterator<Item = T>,
    ) {
        let values = values.into_iter().map(|value| value.to_string());
        let mut lines: Vec<String> = values
            .flat_map(|value| value.lines().map(strip_control_chars).collect::<Vec<_>>())
            .collect();
        if lines.is_empty() {
            lines.push(NONE.to_owned());
        }
        self.block.push(Field { level: self.base + level, key: strip_control_chars(key), lines });
    }

    /// `Key:`, with further lines on a deeper level.
    pub(crate) fn heading(&mut self, level: usize, key: &str) {
        self.line(level, format_args!("{key}:"));
    }

    /// Single line without a key.
    pub(crate) fn line(&mut self, level: usize, line: impl Display) {
        self.align();
        let line = strip_control_chars(&line.to_string());
        self.text.extend([" ".repeat((self.base + level) * INDENT).as_str(), &line, "\n"]);
    }

    pub(crate) fn blank_line(&mut self) {
        self.align();
        self.text.push('\n');
    }

    pub(crate) fn finish(mut self) -> String {
        self.align();
        self.text
    }

    fn align(&mut self) {
        let block = std::mem::take(&mut self.block);
        let start = |field: &Field| field.level * INDENT + field.key.chars().count() + 1;
        let column = block.iter().map(start).max().unwrap_or_default() + 2;
        for field in &block {
            let key = format!("{}{}:", " ".repeat(field.level * INDENT), field.key);
            for (number, line) in field.lines.iter().enumerate() {
                let prefix = if number == 0 { key.as_str() } else { "" };
                let padded = format!("{prefix:column$}{line}");
                self.text.extend([padded.trim_end(), "\n"]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_fields_are_aligned() {
        let mut page = KeyValuePage::default();
        page.field(0, "Name", "b");
        page.list(0, "Annotations", ["a=b", "c=d"]);
        page.list(0, "Labels", [] as [&str; 0]);
        page.blank_line();
        page.heading(0, "Hooks");
        page.field(1, "A", "1\n2");
        assert_eq!(
            page.finish(),
            "Name:         b\n\
             Annotations:  a=b\n              c=d\n\
             Labels:       <none>\n\
             \n\
             Hooks:\n  A:  1\n      2\n"
        );
    }

    #[test]
    fn control_characters_are_replaced() {
        let mut page = KeyValuePage::default();
        page.field(0, "Error", "\u{1b}[2Jgone\r");
        assert_eq!(page.finish(), "Error:  \u{fffd}[2Jgone\u{fffd}\n");
    }
}

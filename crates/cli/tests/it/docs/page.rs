//! Parses the pages into blocks of commands and output.

use std::path::{Path, PathBuf};

/// The language of blocks with commands.
pub(super) const CONSOLE_LANGUAGE: &str = "console";
/// Before a command.
const PROMPT: &str = "$ ";
/// Before a block that no test can run, invisible to readers.
const NOT_RUN: &str = "<!-- not run: ";
/// Before a block whose last command does not end with 0.
const ENDS_WITH: &str = "<!-- ends with ";
const END_OF_COMMENT: &str = " -->";
const FENCE: &str = "```";

/// A file that people read.
pub(super) struct Page {
    /// Its path in the project.
    pub(super) name: String,
    pub(super) blocks: Vec<Block>,
    pub(super) spans: Vec<Span>,
}

/// A fenced block.
pub(super) struct Block {
    /// Line of its first fence.
    pub(super) line: usize,
    pub(super) language: String,
    pub(super) lines: Vec<String>,
    pub(super) not_run: Option<String>,
    /// Exit code of its last command.
    pub(super) code: i32,
}

/// Text in backticks.
pub(super) struct Span {
    pub(super) line: usize,
    pub(super) text: String,
}

/// A command, and the output below it.
pub(super) struct Step {
    pub(super) line: usize,
    pub(super) command: String,
    pub(super) shown: Vec<String>,
}

/// The folder of the project.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// README.md and everything in docs, by name.
pub(super) fn all() -> Vec<Page> {
    let mut names = vec!["README.md".to_owned()];
    for file in std::fs::read_dir(root().join("docs")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            names.push(format!("docs/{name}"));
        }
    }
    names.sort();
    let read = |name: String| {
        let text = std::fs::read_to_string(root().join(&name)).unwrap();
        Page::read(&name, &text)
    };
    names.into_iter().map(read).collect()
}

impl Page {
    pub(super) fn read(name: &str, text: &str) -> Self {
        let mut blocks: Vec<Block> = Vec::new();
        // Blocks are blanked, so that lines keep their numbers.
        let mut prose = String::new();
        let (mut open, mut before) = (None::<Block>, "");
        for (number, line) in (1..).zip(text.lines()) {
            let bare = line.trim_start();
            match (&mut open, bare.strip_prefix(FENCE)) {
                (Some(_), Some("")) => blocks.extend(open.take()),
                (Some(block), _) => block.lines.push(line.to_owned()),
                (None, Some(language)) => open = Some(Block::open(number, language, before)),
                (None, None) => prose.push_str(line),
            }
            prose.push('\n');
            before = bare;
        }
        assert!(open.is_none(), "{name}: a block is not closed");
        for block in &mut blocks {
            let indent = |line: &String| line.len() - line.trim_start().len();
            let lines = block.lines.iter().filter(|line| !line.trim().is_empty());
            let common = lines.map(indent).min().unwrap_or(0);
            for line in &mut block.lines {
                *line = line.get(common..).unwrap_or_default().to_owned();
            }
        }
        Self { name: name.to_owned(), blocks, spans: spans(&prose) }
    }
}

impl Block {
    fn open(line: usize, language: &str, before: &str) -> Self {
        let comment = |start: &str| before.strip_prefix(start)?.strip_suffix(END_OF_COMMENT);
        Self {
            line,
            language: language.to_owned(),
            lines: Vec::new(),
            not_run: comment(NOT_RUN).map(str::to_owned),
            code: comment(ENDS_WITH).map_or(0, |code| code.parse().unwrap()),
        }
    }

    /// Commands of the block, if its commands are run.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        if self.language != CONSOLE_LANGUAGE {
            return steps;
        }
        let mut continues = false;
        for (line, text) in (self.line + 1..).zip(&self.lines) {
            match (text.strip_prefix(PROMPT), steps.last_mut()) {
                (_, Some(step)) if continues => {
                    step.command.push('\n');
                    step.command.push_str(text);
                }
                (Some(command), _) => {
                    steps.push(Step { line, command: command.to_owned(), shown: Vec::new() });
                }
                (None, Some(step)) => step.shown.push(text.clone()),
                (None, None) => continue,
            }
            continues = steps.last().is_some_and(|step| is_open(&step.command, &step.shown));
        }
        steps
    }
}

/// True if the next line belongs to the command.
fn is_open(command: &str, shown: &[String]) -> bool {
    let waits_for = command.split_once("<<").map(|(_, rest)| {
        let word = rest.split_whitespace().next().unwrap_or_default();
        word.trim_matches('\'').to_owned()
    });
    let waits = waits_for.is_some_and(|word| !command.lines().any(|line| line == word));
    shown.is_empty() && (waits || command.ends_with('\\'))
}

/// Text in backticks, on one line or over two.
fn spans(prose: &str) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut line = 1;
    for paragraph in prose.split("\n\n") {
        let mut at = line;
        for (index, text) in paragraph.split('`').enumerate() {
            if index % 2 == 1 {
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                spans.push(Span { line: at, text });
            }
            at += text.matches('\n').count();
        }
        line += paragraph.matches('\n').count() + 2;
    }
    spans
}

#[test]
fn page_is_parsed_into_blocks() {
    let text = "Say `bowline\nversion`.\n\n<!-- ends with 1 -->\n```console\n$ one \\\n  two\nshown\n\
                $ cat <<EOF\n$ no command\nEOF\n```\n  <!-- not run: why -->\n  ```console\n  $ three\n  ```\n";
    let page = Page::read("page", text);
    assert_eq!((page.spans[0].line, page.spans[0].text.as_str()), (1, "bowline version"));
    let steps = |block: &Block| -> Vec<(usize, String, Vec<String>)> {
        block.steps().into_iter().map(|step| (step.line, step.command, step.shown)).collect()
    };
    let [first, second] = page.blocks.as_slice() else { panic!("not two blocks") };
    assert_eq!((first.code, second.code), (1, 0));
    assert_eq!((&first.not_run, second.not_run.as_deref()), (&None, Some("why")));
    assert_eq!(
        steps(first),
        [
            (6, "one \\\n  two".to_owned(), vec!["shown".to_owned()]),
            (9, "cat <<EOF\n$ no command\nEOF".to_owned(), vec![]),
        ]
    );
    assert_eq!(steps(second), [(15, "three".to_owned(), vec![])]);
}

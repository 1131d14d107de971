//! The targets, and what they share.

mod archive;
mod archive_index;
mod backup_actions;
pub mod bucket_files;
mod credentials;
mod difference;
mod download_tokens;
mod expressions;
mod handshake;
mod imported_backups;
mod journal;
mod list_splitter;
mod modifiers;
mod plugin_answers;
mod policies;
mod recovery_files;
mod redaction;
mod repositories;
mod restore_actions;
mod terminal;

use std::future::Future;

use tokio::runtime::Runtime;

use crate::Target;

const MIB: usize = 1 << 20;

/// All targets.
pub const ALL: [Target; 20] = [
    // An entry may have 8 MiB, for which there is one buffer.
    Target { name: "archive", base_memory: 24 * MIB, run: archive::run },
    Target { name: "archive-index", base_memory: MIB, run: archive_index::run },
    Target { name: "backup-actions", base_memory: 8 * MIB, run: backup_actions::run },
    Target { name: "bucket-files", base_memory: 8 * MIB, run: bucket_files::run },
    Target { name: "credentials", base_memory: MIB, run: credentials::run },
    Target { name: "difference", base_memory: 8 * MIB, run: difference::run },
    Target { name: "download-tokens", base_memory: MIB, run: download_tokens::run },
    Target { name: "expressions", base_memory: 24 * MIB, run: expressions::run },
    Target { name: "handshake", base_memory: MIB, run: handshake::run },
    Target { name: "imported-backups", base_memory: 8 * MIB, run: imported_backups::run },
    Target { name: "journal", base_memory: 8 * MIB, run: journal::run },
    Target { name: "list-splitter", base_memory: 8 * MIB, run: list_splitter::run },
    Target { name: "modifiers", base_memory: 24 * MIB, run: modifiers::run },
    Target { name: "plugin-answers", base_memory: 24 * MIB, run: plugin_answers::run },
    Target { name: "policies", base_memory: 24 * MIB, run: policies::run },
    Target { name: "recovery-files", base_memory: 8 * MIB, run: recovery_files::run },
    Target { name: "redaction", base_memory: MIB, run: redaction::run },
    // A frame of zstd may ask for a window of 32 MiB.
    Target { name: "repositories", base_memory: 48 * MIB, run: repositories::run },
    Target { name: "restore-actions", base_memory: 8 * MIB, run: restore_actions::run },
    Target { name: "terminal", base_memory: 8 * MIB, run: terminal::run },
];

/// Line between two parts of an input, with its line feeds.
pub(crate) const SEPARATOR: &[u8] = b"\n%%\n";

/// Parts of an input. Those that are missing are empty, and the last one is the rest.
fn parts<const N: usize>(input: &[u8]) -> [&[u8]; N] {
    let mut rest = input;
    std::array::from_fn(|number| {
        let end = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
        match end {
            Some(end) if number + 1 < N => {
                let part = &rest[..end];
                rest = &rest[end + SEPARATOR.len()..];
                part
            }
            _ => std::mem::take(&mut rest),
        }
    })
}

/// The texts of an input, if it is text.
fn texts<const N: usize>(input: &[u8]) -> Option<[&str; N]> {
    std::str::from_utf8(input).ok()?;
    Some(parts(input).map(|part| std::str::from_utf8(part).unwrap_or_default()))
}

/// A JSON object, with its arrays and objects at most as deep as `serde_json` reads them.
fn object(json: &[u8]) -> Option<serde_json::Value> {
    serde_json::from_slice(json).ok().filter(serde_json::Value::is_object)
}

thread_local! {
    static RUNTIME: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
}

/// Runs a future to its end on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// Asserts that a text for a terminal cannot control it.
fn assert_harmless(text: &str) {
    let is_harmful = |c: &char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            // Characters that change the order of those around them, so that a text looks like another one.
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if let Some(found) = text.chars().find(is_harmful) {
        panic!("the text for a terminal has {found:?}: {text:?}");
    }
}

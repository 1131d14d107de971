//! Checks that an entry is the item that its path names.

use std::borrow::Cow;

use bowline_plugin::nesting;
use serde::Deserialize;

/// Why an entry cannot be the item that its path names.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// Not JSON; with the beginning of the parser's text, which quotes values of any length.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// An object without a kind.
    #[error("the object has no kind")]
    NoKind,
    /// An object with this namespace and name.
    #[error("contains object {0:?} instead")]
    Other(String),
    /// An object with this nesting depth.
    #[error("nested {0} levels deep, which no API server accepts")]
    TooDeep(usize),
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
}

/// Checks an item. Returns its nesting depth. Reads it to the end, without recursion.
pub(super) fn item(json: &[u8], namespace: &str, name: &str) -> Result<usize, Unreadable> {
    let Envelope { kind, metadata } =
        serde_json::from_slice(json).map_err(|error| json_defect(&error))?;
    if kind.is_empty() {
        return Err(Unreadable::NoKind);
    }
    if metadata.name != name || metadata.namespace != namespace {
        let actual = [&*metadata.namespace, &*metadata.name];
        let actual = actual.map(|text| text.chars().take(MAX_NAME_SHOWN).collect::<String>());
        return Err(Unreadable::Other(actual.join("/")));
    }
    match nesting::count_levels(json) {
        levels if levels > nesting::MAX_LEVELS => Err(Unreadable::TooDeep(levels)),
        levels => Ok(levels),
    }
}

/// Defects are kept until the restore ends, and there may be many.
fn json_defect(error: &serde_json::Error) -> Unreadable {
    let mut text = error.to_string();
    if text.len() > MAX_JSON_TEXT {
        text.truncate(text.floor_char_boundary(MAX_JSON_TEXT));
        text.push('…');
        text.shrink_to_fit();
    }
    Unreadable::Json(text)
}

/// Length of the parser's text in a message.
const MAX_JSON_TEXT: usize = 300;
/// Number of characters of a name shown in messages.
const MAX_NAME_SHOWN: usize = 100;

//! Splits a list into its objects as its bytes arrive, so that a page of large objects is never in
//! memory as a whole.
//!
//! Objects of a list have no `apiVersion` and `kind`, unless they are custom resources; missing
//! ones are spliced in. Everything else stays as the API server wrote it.

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memchr2;
use serde::Deserialize;

/// Maximum size of a list without its objects.
const FRAME_MAX: usize = 1 << 20;
/// Maximum size of an object. The API server itself refuses objects of more than a few megabytes.
pub(super) const OBJECT_MAX: usize = 64 << 20;

/// Reason why the bytes are no list of objects.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAList {
    #[error("the list is incomplete")]
    Cut,
    #[error("the answer is not a list: {0}")]
    Json(String),
    #[error("an entry of `items` is not an object")]
    NoObject,
    #[error("the list has an object of more than {OBJECT_MAX} bytes")]
    LongObject,
    #[error("the list has more than {FRAME_MAX} bytes besides its objects")]
    LongFrame,
}

/// Metadata of a list.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Frame {
    pub(super) metadata: ListMetadata,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ListMetadata {
    /// Continue token of the next page; empty on the last one.
    #[serde(rename = "continue")]
    pub(super) continue_token: String,
    /// Number of objects after this page, if the API server reports it.
    #[serde(rename = "remainingItemCount")]
    remaining_item_count: Option<i64>,
}

/// Splits the bytes of one list into objects.
#[expect(clippy::struct_excessive_bools, reason = "it is a scanner, and these are what it knows")]
pub(super) struct Splitter {
    api_version: String,
    kind: String,
    buffer: BytesMut,
    /// End of the scanned part of the buffer.
    scanned: usize,
    state: SplitterState,
    /// Everything but the objects.
    frame: Vec<u8>,
    depth: usize,
    is_in_string: bool,
    string_start: usize,
    /// True if the next string at this depth is a field name.
    is_key: bool,
    /// True if the last field of the list was `items`.
    is_items: bool,
    object_start: usize,
    has_api_version: bool,
    has_kind: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SplitterState {
    /// Among the fields of the list.
    Frame,
    /// In `items`, between objects.
    Items,
    /// In an object.
    Object,
}

/// Depth of the fields of the list, and of the fields of an object.
const FIELD_OF_LIST: usize = 1;
const IN_ITEMS: usize = 2;
const FIELD_OF_OBJECT: usize = 3;

impl Splitter {
    /// Splitter for a list of objects of a kind.
    pub(super) fn new(api_version: &str, kind: &str) -> Self {
        Self {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            buffer: BytesMut::new(),
            scanned: 0,
            state: SplitterState::Frame,
            frame: Vec::new(),
            depth: 0,
            is_in_string: false,
            string_start: 0,
            is_key: false,
            is_items: false,
            object_start: 0,
            has_api_version: false,
            has_kind: false,
        }
    }

    /// Adds the next bytes. All objects must be taken out before more bytes are added.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Next object, if it is complete.
    pub(super) fn next_object(&mut self) -> Result<Option<Bytes>, NotAList> {
        while let Some(&byte) = self.buffer.get(self.scanned) {
            if self.is_in_string {
                if self.skip_string() {
                    continue;
                }
                break;
            }
            let at = self.scanned;
            self.scanned += 1;
            match byte {
                b'"' => {
                    if self.state == SplitterState::Items {
                        return Err(NotAList::NoObject);
                    }
                    self.is_in_string = true;
                    self.string_start = self.scanned;
                }
                b'{' | b'[' => self.open(byte, at)?,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.state == SplitterState::Object && self.depth == IN_ITEMS {
                        return Ok(Some(self.take_object()));
                    }
                    if self.state == SplitterState::Items && self.depth == FIELD_OF_LIST {
                        self.state = SplitterState::Frame;
                        self.drop_scanned();
                        self.frame.extend_from_slice(b"]");
                    }
                }
                b',' => self.is_key = true,
                b':' => self.is_key = false,
                b' ' | b'\n' | b'\r' | b'\t' => {}
                _ if self.state == SplitterState::Items => return Err(NotAList::NoObject),
                _ => {}
            }
        }
        match self.state {
            SplitterState::Object if self.buffer.len() - self.object_start > OBJECT_MAX => {
                Err(NotAList::LongObject)
            }
            SplitterState::Frame if !self.is_in_string => self.keep_frame().map(|()| None),
            SplitterState::Frame if self.buffer.len() > FRAME_MAX => Err(NotAList::LongFrame),
            _ => Ok(None),
        }
    }

    /// Number of objects after this page, if it stands before the first object of the list.
    pub(super) fn remaining(&self) -> Option<u64> {
        if self.state == SplitterState::Frame {
            return None;
        }
        let frame = [self.frame.as_slice(), b"]}"].concat();
        let metadata = serde_json::from_slice::<Frame>(&frame).ok()?.metadata;
        metadata.remaining_item_count.and_then(|count| u64::try_from(count).ok())
    }

    /// Metadata of the list, once all bytes have been added.
    pub(super) fn finish(mut self) -> Result<Frame, NotAList> {
        if self.state != SplitterState::Frame || self.is_in_string || self.depth > 0 {
            return Err(NotAList::Cut);
        }
        self.keep_frame()?;
        serde_json::from_slice(&self.frame).map_err(|error| NotAList::Json(error.to_string()))
    }

    /// Scans to the end of a string. Returns false if the end has not arrived yet.
    fn skip_string(&mut self) -> bool {
        while let Some(found) = memchr2(b'"', b'\\', &self.buffer[self.scanned..]) {
            let at = self.scanned + found;
            if self.buffer[at] == b'\\' {
                if at + 1 == self.buffer.len() {
                    // The escaped character has not arrived yet.
                    self.scanned = at;
                    return false;
                }
                self.scanned = at + 2;
                continue;
            }
            self.scanned = at + 1;
            self.is_in_string = false;
            self.record_key(at);
            return true;
        }
        self.scanned = self.buffer.len();
        false
    }

    /// Records the names of fields that matter.
    fn record_key(&mut self, end: usize) {
        if !self.is_key {
            return;
        }
        let key = &self.buffer[self.string_start..end];
        match self.state {
            SplitterState::Frame if self.depth == FIELD_OF_LIST => self.is_items = key == b"items",
            SplitterState::Object if self.depth == FIELD_OF_OBJECT => match key {
                b"apiVersion" => self.has_api_version = true,
                b"kind" => self.has_kind = true,
                _ => {}
            },
            _ => {}
        }
    }

    fn open(&mut self, byte: u8, at: usize) -> Result<(), NotAList> {
        self.depth += 1;
        self.is_key = byte == b'{';
        match self.state {
            SplitterState::Frame if byte == b'[' && self.is_items && self.depth == IN_ITEMS => {
                self.keep_frame()?;
                self.state = SplitterState::Items;
            }
            SplitterState::Items if byte == b'{' => {
                self.state = SplitterState::Object;
                self.object_start = at;
                (self.has_api_version, self.has_kind) = (false, false);
            }
            SplitterState::Items => return Err(NotAList::NoObject),
            SplitterState::Frame | SplitterState::Object => {}
        }
        Ok(())
    }

    /// Cuts out the object that ends here, and adds its missing fields. A copy, so that it does not
    /// keep its neighbours in memory.
    fn take_object(&mut self) -> Bytes {
        let object = &self.buffer[self.object_start..self.scanned];
        let mut whole =
            Vec::with_capacity(object.len() + self.api_version.len() + self.kind.len() + 30);
        whole.push(b'{');
        for (is_there, field, value) in [
            (self.has_api_version, "apiVersion", &self.api_version),
            (self.has_kind, "kind", &self.kind),
        ] {
            if !is_there {
                whole.extend_from_slice(format!("\"{field}\":\"{value}\",").as_bytes());
            }
        }
        let is_empty = object[1..].trim_ascii() == b"}";
        if is_empty && whole.len() > 1 {
            whole.pop();
        }
        whole.extend_from_slice(&object[1..]);
        self.state = SplitterState::Items;
        self.drop_scanned();
        whole.into()
    }

    fn keep_frame(&mut self) -> Result<(), NotAList> {
        self.frame.extend_from_slice(&self.buffer[..self.scanned]);
        self.drop_scanned();
        if self.frame.len() > FRAME_MAX {
            return Err(NotAList::LongFrame);
        }
        Ok(())
    }

    fn drop_scanned(&mut self) {
        self.buffer.advance(self.scanned);
        self.scanned = 0;
    }
}

/// Objects and continue token of a list whose bytes arrive in these pieces, for fuzz targets. None if the list is
/// refused.
#[cfg(feature = "testing")]
pub fn split_pieces<'a>(
    api_version: &str,
    kind: &str,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Option<(Vec<Bytes>, String)> {
    let mut splitter = Splitter::new(api_version, kind);
    let mut objects = Vec::new();
    for piece in pieces {
        splitter.push(piece);
        while let Some(object) = splitter.next_object().ok()? {
            objects.push(object);
        }
    }
    Some((objects, splitter.finish().ok()?.metadata.continue_token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn split(text: &str, chunk: usize) -> Result<(Vec<Value>, Frame), NotAList> {
        let mut splitter = Splitter::new("v1", "Pod");
        let mut objects = Vec::new();
        for chunk in text.as_bytes().chunks(chunk) {
            splitter.push(chunk);
            while let Some(object) = splitter.next_object()? {
                objects.push(serde_json::from_slice(&object).unwrap());
            }
        }
        Ok((objects, splitter.finish()?))
    }

    #[test]
    fn remaining_item_count_is_known_at_the_first_object() {
        let list = |metadata: &str| format!(r#"{{"metadata":{metadata},"items":[{{}},{{}}]}}"#);
        for (metadata, remaining) in [
            (r#"{"continue":"x","remainingItemCount":2500}"#, Some(2500)),
            (r#"{"continue":"x"}"#, None),
            (r#"{"remainingItemCount":-1}"#, None),
            ("{}", None),
        ] {
            let mut splitter = Splitter::new("v1", "Pod");
            splitter.push(list(metadata).as_bytes());
            assert!(splitter.next_object().unwrap().is_some());
            assert_eq!(splitter.remaining(), remaining, "{metadata}");
        }
    }

    #[test]
    fn objects_come_out_with_their_kind_however_the_bytes_are_cut() {
        let text = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"a\"b","items":[1]},
            "items":[{"metadata":{"name":"a","items":["]}"]}}, {"kind":"Other","spec":{"kind":1}},
            {}, {"apiVersion":"x/v1","kind":"X","s":"\\"}],"more":{"items":[2]}}"#;
        for chunk in 1..text.len() {
            let (objects, frame) = split(text, chunk).unwrap();
            assert_eq!(
                objects,
                [
                    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "items": ["]}"]}}),
                    json!({"apiVersion": "v1", "kind": "Other", "spec": {"kind": 1}}),
                    json!({"apiVersion": "v1", "kind": "Pod"}),
                    json!({"apiVersion": "x/v1", "kind": "X", "s": "\\"}),
                ]
            );
            assert_eq!(frame.metadata.continue_token, "a\"b");
        }
    }

    #[test]
    fn a_list_may_have_no_items_at_all() {
        for text in [
            r#"{"kind":"PodList","metadata":{},"items":[]}"#,
            r#"{"kind":"PodList","metadata":{},"items":null}"#,
            r#"{"kind":"PodList"}"#,
        ] {
            assert_eq!(split(text, 3), Ok((vec![], Frame::default())), "{text}");
        }
    }

    #[test]
    fn non_list_json_is_refused() {
        for (text, error) in [
            (r#"{"items":[{"a":1}"#, NotAList::Cut),
            (r#"{"items":[{"a":"1"#, NotAList::Cut),
            (r#"{"items":["a"]}"#, NotAList::NoObject),
            (r#"{"items":[1]}"#, NotAList::NoObject),
            (r#"{"items":[[{}]]}"#, NotAList::NoObject),
        ] {
            assert_eq!(split(text, 4), Err(error), "{text}");
        }
        assert!(matches!(split("not json", 4), Err(NotAList::Json(_))));
        assert!(matches!(split("", 4), Err(NotAList::Json(_))));
    }

    #[test]
    fn list_frame_size_is_limited() {
        let text = format!(r#"{{"note":"{}"}}"#, "x".repeat(FRAME_MAX));
        assert_eq!(split(&text, 1 << 16), Err(NotAList::LongFrame));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[\\PC\"\\\\{}\\[\\],:]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-z\"\\\\]{0,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_objects_survive(specs in proptest::collection::vec(any_json(), 0..6), chunk in 1_usize..40) {
            let items: Vec<Value> = specs
                .into_iter()
                .map(|spec| json!({"apiVersion": "v1", "kind": "Pod", "spec": spec}))
                .collect();
            let bare: Vec<Value> = items.iter().map(|item| json!({"spec": item["spec"]})).collect();
            let text = json!({"items": bare, "metadata": {"continue": "x"}}).to_string();
            let (objects, frame) = split(&text, chunk).unwrap();
            prop_assert_eq!(objects, items);
            prop_assert_eq!(frame.metadata.continue_token, "x");
        }
    }
}

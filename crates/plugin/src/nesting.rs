//! Deeply nested objects.
//!
//! `serde_json` parses about 127 levels and refuses more, since it recurses. The API server accepts
//! objects of up to [`MAX_LEVELS`] levels. Such an object is parsed without recursion here, but
//! walking through it, writing it and dropping it all recurse: so it is parsed only if the stack
//! has room for that.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};

use crate::InvalidItem;

/// Number of levels that `serde_json` parses.
pub const SERDE_MAX_LEVELS: usize = 127;

/// Maximum number of levels of an object. The API server's own parser stops there
/// (`maxNestingDepth` in Go's `encoding/json`).
pub const MAX_LEVELS: usize = 10_000;

/// Stack per level for code that walks through an object: more than any measured use.
const STACK_PER_LEVEL: usize = if cfg!(debug_assertions) { 24 << 10 } else { 6 << 10 };

/// Stack needed for working with an object of this many levels.
pub const fn stack_for(levels: usize) -> usize {
    levels.saturating_mul(STACK_PER_LEVEL)
}

/// Number of levels of JSON, which need not be valid.
pub fn count_levels(json: &[u8]) -> usize {
    let (mut now, mut most) = (0_usize, 0_usize);
    let mut rest = json;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'{' | b'[' => {
                now += 1;
                most = most.max(now);
            }
            b'}' | b']' => now = now.saturating_sub(1),
            b'"' => rest = &after[string_length(after)..],
            _ => {}
        }
    }
    most
}

/// Length of a string after its opening quote, including the closing one.
fn string_length(json: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = json.get(at) {
        at += match byte {
            b'"' => return at + 1,
            b'\\' => 2,
            _ => 1,
        };
    }
    json.len()
}

/// Parses deeply nested JSON, if the stack has room for working with it.
pub(crate) fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, InvalidItem> {
    let levels = count_levels(json);
    let room = stacker::remaining_stack().unwrap_or(0);
    if levels > MAX_LEVELS || room < stack_for(levels) {
        return Err(InvalidItem::TooDeep(levels));
    }
    Ok(serde_json::from_value(parse_without_recursion(json)?)?)
}

/// An object or list that has not been closed yet.
enum OpenContainer {
    List(Vec<Value>),
    Object { fields: Map<String, Value>, key: Option<String> },
}

/// Reads JSON into a value, without recursion.
fn parse_without_recursion(json: &[u8]) -> Result<Value, serde_json::Error> {
    // Reports invalid JSON, without recursion. The following code relies on valid JSON.
    serde_json::from_slice::<IgnoredAny>(json)?;
    let mut open: Vec<OpenContainer> = Vec::new();
    let mut rest = json;
    while let Some((&byte, after)) = rest.split_first() {
        let done = match byte {
            b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' => {
                rest = after;
                continue;
            }
            b'{' => {
                open.push(OpenContainer::Object { fields: Map::new(), key: None });
                rest = after;
                continue;
            }
            b'[' => {
                open.push(OpenContainer::List(Vec::new()));
                rest = after;
                continue;
            }
            b'}' | b']' => {
                rest = after;
                match open.pop() {
                    Some(OpenContainer::List(list)) => Value::Array(list),
                    Some(OpenContainer::Object { fields, .. }) => Value::Object(fields),
                    None => break,
                }
            }
            b'"' => {
                let (text, after) = rest.split_at(1 + string_length(after));
                rest = after;
                let text: String = serde_json::from_slice(text)?;
                match open.last_mut() {
                    Some(OpenContainer::Object { key: key @ None, .. }) => {
                        *key = Some(text);
                        continue;
                    }
                    _ => Value::String(text),
                }
            }
            _ => {
                let is_end = |byte: &u8| b" \t\r\n,]}".contains(byte);
                let length = rest.iter().position(is_end).unwrap_or(rest.len());
                let (word, after) = rest.split_at(length);
                rest = after;
                serde_json::from_slice(word)?
            }
        };
        match open.last_mut() {
            Some(OpenContainer::List(list)) => list.push(done),
            Some(OpenContainer::Object { fields, key }) => {
                if let Some(key) = key.take() {
                    fields.insert(key, done);
                }
            }
            None => return Ok(done),
        }
    }
    Ok(Value::Null)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Item;

    fn nested(levels: usize) -> String {
        let (open, close) = ("{\"a\":".repeat(levels - 1), "}".repeat(levels - 1));
        format!("{{\"kind\":\"Deep\",\"spec\":{open}1{close}}}")
    }

    #[test]
    fn levels_are_counted_outside_of_strings() {
        for (json, expected) in [
            ("1", 0),
            ("{}", 1),
            (r#"{"a":[{"b":1}],"c":{}}"#, 3),
            (r#"{"a":"[[[{{{\"[[["}"#, 1),
            (r#"{"a":"\\","b":[[]]}"#, 3),
            ("[[[", 3),
            ("]]]]", 0),
            (r#"{"a":"["#, 1),
        ] {
            assert_eq!(count_levels(json.as_bytes()), expected, "{json}");
        }
        assert_eq!(count_levels(nested(400).as_bytes()), 400);
    }

    #[test]
    fn non_recursive_parser_agrees_with_serde() {
        for json in [
            r#"{"a":[1,-2.5e3,true,false,null,"x\n\u00e9\"}",{}],"b":{"c":[],"d":[[],[0]]}}"#,
            " [ 1 , { \"k\" : \"v\" } ] ",
            r#"{"twice":1,"twice":[2]}"#,
            r#"{"big":12345678901234567890,"e":1e400000}"#,
            "\"text\"",
            "7",
            "{\"a\":}",
            "[1,]",
            "{\"a\" 1}",
            "[1 2]",
            "{",
            "",
        ] {
            let expected = serde_json::from_str::<Value>(json).ok();
            assert_eq!(parse_without_recursion(json.as_bytes()).ok(), expected, "{json}");
        }
    }

    #[test]
    fn deeply_nested_object_is_read_when_the_stack_allows() {
        let item = Item::from_json(nested(400)).unwrap();
        let read = || item.parse::<Value>();
        stacker::grow(stack_for(401), || {
            let read = read().unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), nested(400));
        });
        // The stack of a small thread is not enough.
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let error = small.spawn({
            let item = item.clone();
            move || item.parse::<Value>().unwrap_err().to_string()
        });
        let error = error.unwrap().join().unwrap();
        assert!(error.contains("400 levels"), "{error}");
    }

    #[test]
    fn nesting_beyond_the_api_servers_limit_is_refused() {
        let item = Item::from_json(nested(100_000)).unwrap();
        let error = stacker::grow(64 << 20, || item.parse::<Value>().unwrap_err());
        assert!(matches!(error, InvalidItem::TooDeep(100_000)), "{error}");
        assert_eq!(
            json!({"kind": "X"}),
            Item::from_json(r#"{"kind":"X"}"#).unwrap().parse::<Value>().unwrap()
        );
    }
}

//! Objects: data of any length, as one content or as a list of objects.

use serde::{Deserialize, Serialize};

use crate::id::ObjectId;
use crate::json::{is_default, list_or_null};

/// The field `stream` of a list.
const STREAM: &str = "kopia:indirect";

/// Damage of a list.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The list is not the JSON that it should be.
    #[error("the list of an object is invalid")]
    Parse(#[source] serde_json::Error),
    /// The list is another document.
    #[error("the list of an object is a stream {0:?}")]
    OtherStream(String),
    /// There is a gap or an overlap, or the order is wrong.
    #[error("part {0} of an object does not begin where the one before ends")]
    Gap(usize),
    /// A length is negative, or all together are too long.
    #[error("part {0} of an object has an impossible length")]
    Length(usize),
}

#[derive(Serialize, Deserialize)]
struct List {
    stream: String,
    #[serde(deserialize_with = "list_or_null")]
    entries: Vec<ListEntry>,
}

#[derive(Serialize, Deserialize)]
struct ListEntry {
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    start: i64,
    #[serde(rename = "l", default, skip_serializing_if = "is_default")]
    length: i64,
    #[serde(rename = "o")]
    object: ObjectId,
}

/// A part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectPart {
    /// Where it begins in the object.
    pub start: u64,
    /// Number of bytes.
    pub length: u64,
    /// Object with these bytes.
    pub object: ObjectId,
}

/// Reads the parts of an object: one after the other, without gaps.
pub fn parse_list(json: &[u8]) -> Result<Vec<ObjectPart>, Error> {
    let list: List = serde_json::from_slice(json).map_err(Error::Parse)?;
    if list.stream != STREAM {
        return Err(Error::OtherStream(list.stream));
    }
    let mut end = 0_u64;
    let mut parts = Vec::with_capacity(list.entries.len());
    for (position, entry) in list.entries.into_iter().enumerate() {
        let length = u64::try_from(entry.length).map_err(|_| Error::Length(position))?;
        if u64::try_from(entry.start) != Ok(end) {
            return Err(Error::Gap(position));
        }
        parts.push(ObjectPart { start: end, length, object: entry.object });
        end = end.checked_add(length).ok_or(Error::Length(position))?;
    }
    Ok(parts)
}

/// The list of the parts of an object, as kopia writes it.
pub fn encode_list(parts: &[ObjectPart]) -> Result<Vec<u8>, Error> {
    let entry = |(position, part): (usize, &ObjectPart)| {
        let number = |number: u64| i64::try_from(number).map_err(|_| Error::Length(position));
        let (start, length) = (number(part.start)?, number(part.length)?);
        Ok(ListEntry { start, length, object: part.object })
    };
    let entries = parts.iter().enumerate().map(entry).collect::<Result<_, Error>>()?;
    let list = List { stream: STREAM.to_owned(), entries };
    let mut json = serde_json::to_vec(&list).map_err(Error::Parse)?;
    json.push(b'\n');
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<ObjectPart> {
        let part = |start, length, object: &str| ObjectPart {
            start,
            length,
            object: object.parse().unwrap(),
        };
        vec![part(0, 10, "00ff"), part(10, 0, "00fe"), part(10, 5, "Ix00fd")]
    }

    #[test]
    fn list_is_written_as_kopia_does() {
        let json = concat!(
            r#"{"stream":"kopia:indirect","entries":[{"l":10,"o":"00ff"},{"s":10,"o":"00fe"},"#,
            r#"{"s":10,"l":5,"o":"Ix00fd"}]}"#,
            "\n"
        );
        assert_eq!(String::from_utf8(encode_list(&parts()).unwrap()).unwrap(), json);
        assert_eq!(parse_list(json.as_bytes()).unwrap(), parts());
    }

    #[test]
    fn list_with_gaps_is_refused() {
        let parse = |entries: &str| {
            let json = format!(r#"{{"stream":"kopia:indirect","entries":{entries}}}"#);
            parse_list(json.as_bytes())
        };
        assert!(matches!(parse(r#"[{"s":1,"l":1,"o":"00"}]"#), Err(Error::Gap(0))));
        let overlap = parse(r#"[{"l":5,"o":"00"},{"s":4,"l":1,"o":"00"}]"#);
        assert!(matches!(overlap, Err(Error::Gap(1))));
        assert!(matches!(parse(r#"[{"l":-1,"o":"00"}]"#), Err(Error::Length(0))));
        let huge = format!(r#"[{{"l":{0},"o":"00"}},{{"s":{0},"l":1,"o":"00"}}]"#, i64::MAX);
        assert!(parse(&huge).is_ok());
        assert!(matches!(parse(r#"[{"l":1,"o":"zz"}]"#), Err(Error::Parse(_))));
        assert!(parse("null").unwrap().is_empty());
        let other = parse_list(br#"{"stream":"kopia:directory","entries":[]}"#);
        assert!(matches!(other, Err(Error::OtherStream(_))));
    }
}

//! Calls that the driver received.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::Deserialize;

use crate::Error;

/// Call that the driver received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// CSI method, such as `CreateSnapshot`.
    pub method: String,
    /// Handle of the object, or the name requested for it, which becomes the handle.
    pub id: String,
    /// Names of the claim, the snapshot or the group for which the call is made, as `namespace/name`; only calls that
    /// create something have them.
    pub names: Vec<String>,
    /// Time at which the call began.
    pub began: SystemTime,
    /// Time at which the call ended, if it has.
    pub ended: Option<SystemTime>,
    /// Error of the call, if it failed.
    pub error: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CallLogLine {
    Begin { call: u64, at_ms: u64, method: String, id: String, names: Vec<String> },
    End { call: u64, at_ms: u64, error: String },
}

pub(super) fn read(root: &Path) -> Result<Vec<Call>, Error> {
    let path = root.join("calls.jsonl");
    let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    parse(&text).map_err(|error| Error::io("read", &path)(error.into()))
}

fn parse(text: &str) -> Result<Vec<Call>, serde_json::Error> {
    // A line without a line end is still being written.
    let complete_lines = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let time = |at_ms| SystemTime::UNIX_EPOCH + Duration::from_millis(at_ms);
    let mut calls = BTreeMap::new();
    for line in complete_lines.lines() {
        match serde_json::from_str(line)? {
            CallLogLine::Begin { call, at_ms, method, id, names } => {
                let began = time(at_ms);
                calls.insert(call, Call { method, id, names, began, ended: None, error: None });
            }
            CallLogLine::End { call, at_ms, error } => {
                if let Some(started_call) = calls.get_mut(&call) {
                    started_call.ended = Some(time(at_ms));
                    started_call.error = Some(error).filter(|error| !error.is_empty());
                }
            }
        }
    }
    Ok(calls.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_is_known_when_it_starts_and_complete_when_it_ends() {
        let text = concat!(
            r#"{"call":1,"at_ms":1000,"method":"CreateSnapshot","id":"s","names":["shop/s"]}"#,
            "\n",
            r#"{"call":2,"at_ms":1001,"method":"CreateVolume","id":"v","names":[]}"#,
            "\n",
            r#"{"call":2,"at_ms":1002,"error":"full"}"#,
            "\n",
            r#"{"call":1,"at_ms":"#,
        );
        let [first, second] = parse(text).unwrap().try_into().unwrap();
        assert_eq!((&*first.method, &*first.id, first.ended), ("CreateSnapshot", "s", None));
        assert_eq!(first.names, ["shop/s"]);
        assert_eq!(second.error.as_deref(), Some("full"));
        let took = second.ended.unwrap().duration_since(second.began).unwrap();
        assert_eq!(took, Duration::from_millis(1));
    }
}

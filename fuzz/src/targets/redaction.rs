//! Redaction of logs and objects. A secret that is marked must not be in the output, whatever is around it.
//!
//! Two parts: what comes before the secret, and what comes after it; or the first is an object.

use bowline::testing;
use serde_json::{Value, json};

use super::texts;

/// The secret. No other text of these inputs has it.
const SECRET: &str = "S3cr3tS3cr3t";

pub(super) fn run(input: &[u8]) {
    let Some([before, after]) = texts(input) else { return };
    if before.contains(SECRET) || after.contains(SECRET) {
        return;
    }
    let redacted = testing::redact_text(before);
    assert!(redacted.len() <= 12 * before.len() + 64, "{} bytes", redacted.len());
    assert!(redacted.lines().count() <= before.lines().count());
    let after = after.lines().next().unwrap_or_default();
    for start in [
        "password=",
        "secretAccessKey: ",
        "\"token\":\"",
        "Authorization: Bearer ",
        "https://user:",
        "x --password ",
        "-----BEGIN RSA PRIVATE KEY-----\n",
    ] {
        let end = match start {
            "https://user:" => "@host",
            start if start.ends_with('\n') => "\n",
            _ => " ",
        };
        // On a line of its own, and after text on the same line that is no assignment itself.
        let last_line = before.lines().last().unwrap_or_default();
        let is_plain = !last_line.contains(['=', ':', '>', '"', '\'', '`', '\\', '-']);
        let gaps: &[&str] = if is_plain { &["\n", " "] } else { &["\n"] };
        for gap in gaps {
            let line = format!("{before}{gap}{start}{SECRET}{end}{after}");
            let redacted = testing::redact_text(&line);
            assert!(!redacted.contains(SECRET), "{line:?} became {redacted:?}");
        }
    }
    if let Ok(object) = serde_json::from_str::<Value>(before) {
        check_object(&object);
    }
}

fn check_object(object: &Value) {
    let mut object = json!({
        "spec": object,
        "password": SECRET,
        "env": [{"name": "X", "value": SECRET}],
        "command": ["sh", "-c", SECRET],
        "url": format!("https://me:{SECRET}@host/path?sig={SECRET}"),
        "status": {"message": format!("denied: token={SECRET}")},
    });
    let nested = json!({"secretKey": SECRET, "args": ["--api-token", SECRET]});
    match object.get_mut("spec") {
        Some(Value::Object(fields)) => drop(fields.insert("inner".to_owned(), nested)),
        Some(Value::Array(values)) => values.push(nested),
        _ => {}
    }
    testing::redact_object(&mut object);
    let text = object.to_string();
    assert!(!text.contains(SECRET), "{text}");
}

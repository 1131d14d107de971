use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use super::*;

/// The log lines of `work`.
fn capture_logs(work: impl FnOnce()) -> Vec<Value> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let writer_lines = Arc::clone(&lines);
    let keep = move |line: &str| {
        assert!(line.ends_with('\n') && line.len() <= LINE_MAX, "{} bytes", line.len());
        writer_lines.lock().push(serde_json::from_str(line).unwrap());
    };
    let subscriber =
        tracing_subscriber::registry().with(targets(LevelFilter::DEBUG)).with(JsonLinesLayer(keep));
    tracing::subscriber::with_default(subscriber, work);
    std::mem::take(&mut *lines.lock())
}

#[test]
fn event_is_a_line_with_level_source_and_fields() {
    let log = || tracing::warn!(item = "p", tries = 3, last = true, "no {}", "space");
    let source = format!("{}:{}", file!(), line!() - 1);
    let lines = capture_logs(log);
    let expected = json!({
        "@message": "no space", "@level": "warn", "item": "p", "tries": 3, "last": true,
        "logSource": source, "@logSourceSetBy": "plugin",
    });
    assert_eq!(lines, [expected]);
}

#[test]
fn event_fields_win_over_span_fields() {
    let lines = capture_logs(|| {
        let outer = tracing::info_span!("outer", backup = "b", item = tracing::field::Empty);
        let _outer = outer.enter();
        outer.record("item", "i");
        let _inner = tracing::info_span!("inner", backup = "c").entered();
        tracing::info!(more = ?Some(1), "hello");
        tracing::info!(backup = "d");
    });
    let pick = |line: &Value| ["@message", "backup", "item", "more"].map(|key| line[key].clone());
    assert_eq!(pick(&lines[0]), ["hello", "c", "i", "Some(1)"].map(Value::from));
    assert_eq!(pick(&lines[1]), [json!(""), json!("d"), json!("i"), Value::Null]);
}

#[test]
fn reserved_keys_cannot_be_set_by_plugins() {
    let lines = capture_logs(|| tracing::error!("@message" = 1, "@timestamp" = 2, message = 3));
    assert_eq!((&lines[0]["@message"], lines[0].get("@timestamp")), (&json!("3"), None));
}

#[test]
fn low_levels_are_dropped_and_library_logs_have_a_higher_threshold() {
    let lines = capture_logs(|| {
        tracing::trace!("no");
        tracing::debug!("yes");
        tracing::debug!(target: "h2::codec", "no");
        tracing::warn!(target: "h2::codec", "yes");
    });
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line["@message"] == "yes"), "{lines:?}");
}

#[test]
fn long_line_truncates_its_longest_texts() {
    let plain = "x".repeat(70_000);
    let escaped = "\n".repeat(1 << 20);
    let wide = "ö…".repeat(50_000);
    let lines = capture_logs(|| {
        tracing::info!(item = "p", "{plain}");
        tracing::info!(escaped, "short");
        tracing::info!(escaped, plain, "{wide}");
    });
    let message = lines[0]["@message"].as_str().unwrap();
    assert!(message.len() > 65_000 && message.ends_with("x…"), "{}", message.len());
    assert_eq!(lines[0]["item"], "p");
    assert_eq!(lines[1]["@message"], "short");
    assert!(lines[2]["@message"].as_str().unwrap().starts_with("ö…ö"));
}

#[test]
fn line_with_too_many_fields_keeps_its_message() {
    let many = (0..5000).map(|n| (format!("field-{n}"), json!("some text"))).collect();
    let line = json_line(Level::INFO, "hello".to_owned(), None, Fields(many));
    let expected: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(expected, json!({"@level": "info", "@message": "hello"}));
}

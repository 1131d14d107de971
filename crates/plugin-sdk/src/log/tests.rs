use std::sync::{Arc, Mutex};

use serde_json::json;

use super::*;

/// What `work` logs.
fn logged(work: impl FnOnce()) -> Vec<Value> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&lines);
    let keep = move |line: &str| {
        assert!(line.ends_with('\n') && line.len() <= LINE_MAX, "{} bytes", line.len());
        kept.lock().unwrap().push(serde_json::from_str(line).unwrap());
    };
    let subscriber =
        tracing_subscriber::registry().with(targets(LevelFilter::DEBUG)).with(Lines(keep));
    tracing::subscriber::with_default(subscriber, work);
    std::mem::take(&mut *lines.lock().unwrap())
}

#[test]
fn an_event_is_a_line_with_its_level_its_source_and_its_fields() {
    let before = line!();
    let lines = logged(|| tracing::warn!(item = "p", tries = 3, last = true, "no {}", "space"));
    let source = format!("{}:{}", file!(), before + 1);
    let expected = json!({
        "@message": "no space", "@level": "warn", "item": "p", "tries": 3, "last": true,
        "logSource": source, "@logSourceSetBy": "plugin",
    });
    assert_eq!(lines, [expected]);
}

#[test]
fn an_event_has_the_fields_of_its_spans_and_its_own_win() {
    let lines = logged(|| {
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
fn keys_that_the_host_reads_itself_are_never_the_authors() {
    let lines = logged(|| tracing::error!("@message" = 1, "@timestamp" = 2, message = 3));
    assert_eq!((&lines[0]["@message"], lines[0].get("@timestamp")), (&json!("3"), None));
}

#[test]
fn low_levels_are_left_out_and_those_of_our_own_libraries_earlier() {
    let lines = logged(|| {
        tracing::trace!("no");
        tracing::debug!("yes");
        tracing::debug!(target: "h2::codec", "no");
        tracing::warn!(target: "h2::codec", "yes");
    });
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line["@message"] == "yes"), "{lines:?}");
}

#[test]
fn a_line_that_is_too_long_loses_the_end_of_its_longest_texts() {
    let plain = "x".repeat(70_000);
    let escaped = "\n".repeat(1 << 20);
    let wide = "ö…".repeat(50_000);
    let lines = logged(|| {
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
fn a_line_with_too_many_short_fields_keeps_its_message() {
    let many = (0..5000).map(|n| (format!("field-{n}"), json!("some text"))).collect();
    let line = line(Level::INFO, "hello".to_owned(), None, Fields(many));
    let expected: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(expected, json!({"@level": "info", "@message": "hello"}));
}

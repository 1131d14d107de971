use std::io::Read as _;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use parking_lot::Mutex;

use super::*;

/// Shared output to write to and to inspect.
#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SharedBuffer {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).unwrap()
    }
}

fn gunzip(gzip: &[u8]) -> String {
    let mut text = String::new();
    MultiGzDecoder::new(gzip).read_to_string(&mut text).unwrap();
    text
}

/// Output of a closure, at a level and in a format.
fn log_output(level: &str, format: &str, happens: impl FnOnce()) -> String {
    let paper = SharedBuffer::default();
    let options = Options { level: level.parse().unwrap(), format: format.parse().unwrap() };
    tracing::subscriber::with_default(subscriber(options, paper.clone()), happens);
    paper.text()
}

/// Lines without their times.
fn without_times(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let (time, rest) = line.strip_prefix("time=\"").unwrap().split_once('"').unwrap();
        assert_eq!((time.len(), time.chars().last()), ("2026-01-02T03:04:05Z".len(), Some('Z')));
        rest.trim_start().to_owned()
    };
    text.lines().map(line).collect()
}

#[test]
fn text_lines_match_logrus() {
    let text = log_output("debug", "text", || {
        let span = tracing::info_span!("backup", backup = "velero/nightly", stage = "collect");
        span.in_scope(|| {
            tracing::info!(items = 3, stage = "upload", "all done");
            tracing::warn!(time = "noon", "a \"quoted\"\n\u{1b}[2J\u{9b}line");
            tracing::debug!(plugin = "x", fields = r#"{"logSource":"a.go:1","a b":[1]}"#, "Hi");
        });
        tracing::error!(fields = "", ok = true, "");
    });
    assert_eq!(
        without_times(&text),
        [
            r#"level=info msg="all done" backup=velero/nightly items=3 stage=upload"#,
            r#"level=warning msg="a \"quoted\"\n\x1b[2J\u009bline" backup=velero/nightly fields.time=noon stage=collect"#,
            r#"level=debug msg=Hi a_b="[1]" backup=velero/nightly logSource="a.go:1" plugin=x stage=collect"#,
            r"level=error msg= ok=true",
        ]
    );
}

#[test]
fn json_lines_have_the_same_fields() {
    let text = log_output("info", "json", || tracing::warn!(items = 3, "all done"));
    let mut line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(line["time"].take().is_string());
    let expected = serde_json::json!(
        {"level": "warning", "msg": "all done", "items": 3, "time": null}
    );
    assert_eq!(line, expected);
}

#[test]
fn own_crates_log_from_the_level_on_and_others_from_warnings_on() {
    let events = || {
        tracing::debug!("a");
        tracing::info!("b");
        tracing::info!(target: "hyper", "c");
        tracing::warn!(target: "hyper", "d");
        tracing::error!("e");
    };
    for (level, expected) in [
        ("trace", vec!["a", "b", "d", "e"]),
        ("info", vec!["b", "d", "e"]),
        ("warning", vec!["d", "e"]),
        ("fatal", vec!["e"]),
    ] {
        let text = log_output(level, "text", events);
        let messages: Vec<_> = without_times(&text)
            .iter()
            .map(|line| line.split("msg=").nth(1).unwrap().to_owned())
            .collect();
        assert_eq!(messages, expected, "{level}");
    }
    assert!("loud".parse::<Level>().is_err() && "xml".parse::<Format>().is_err());
}

#[test]
fn run_log_contains_only_events_of_its_span() {
    let (one, other) = (RunLog::new(), RunLog::new());
    let all = log_output("info", "text", || {
        tracing::info_span!("object", kind = "Backup").in_scope(|| {
            tracing::info!("before");
            let span = one.attach(tracing::info_span!("backup", backup = "one"));
            let _inside = span.enter();
            tracing::info!("first");
            tracing::debug!("not told");
            tracing::info_span!("item", item = "pods/a").in_scope(|| tracing::info!("second"));
            let span = other.attach(tracing::info_span!("backup", backup = "two"));
            span.in_scope(|| tracing::info!("of the other"));
        });
        tracing::info!("after");
    });
    assert_eq!(
        without_times(&gunzip(&one.finish())),
        ["level=info msg=first backup=one", "level=info msg=second backup=one item=pods/a"]
    );
    let expected = ["level=info msg=\"of the other\" backup=two"];
    assert_eq!(without_times(&gunzip(&other.finish())), expected);
    assert_eq!(all.lines().count(), 5);
}

#[test]
fn run_log_is_written_at_a_higher_server_log_level() {
    let log = RunLog::new();
    log_output("error", "text", || {
        let span = log.attach(tracing::info_span!("backup"));
        span.in_scope(|| tracing::error!("bad"));
    });
    assert_eq!(without_times(&gunzip(&log.finish())), ["level=error msg=bad"]);
}

#[test]
fn events_of_other_threads_in_the_span_are_in_the_run_log() {
    let log = RunLog::new();
    let quiet = Options::default();
    let dispatch = tracing::Dispatch::new(subscriber(quiet, io::sink()));
    tracing::dispatcher::with_default(&dispatch, || {
        let span = log.attach(tracing::info_span!("backup"));
        let dispatch = dispatch.clone();
        let thread = std::thread::spawn(move || {
            tracing::dispatcher::with_default(&dispatch, || {
                span.in_scope(|| tracing::info!("from afar"));
            });
        });
        thread.join().unwrap();
    });
    assert_eq!(without_times(&gunzip(&log.finish())), ["level=info msg=\"from afar\""]);
}

#[test]
fn run_log_snapshot_is_always_valid_gzip() {
    let log = RunLog::new();
    assert_eq!(gunzip(&log.snapshot()), "");
    log.add(b"a\n");
    assert_eq!(gunzip(&log.snapshot()), "a\n");
    assert_eq!(gunzip(&log.snapshot()), "a\n");
    log.add(b"b\n");
    assert_eq!(gunzip(&log.finish()), "a\nb\n");
    log.add(b"c\n");
    assert_eq!(log.finish().len(), RunLog::new().finish().len(), "nothing but an empty member");
}

#[test]
fn oversized_run_log_is_truncated_with_one_notice() {
    const LIMIT: usize = 100 << 10;
    let log = RunLog::with_limit(LIMIT);
    let mut number = 1_u64;
    let mut noise = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("{number:x}\n")
    };
    for _ in 0..100_000 {
        log.add(noise().as_bytes());
    }
    let packed = log.snapshot();
    assert!((LIMIT..2 * LIMIT).contains(&packed.len()), "{}", packed.len());
    let text = gunzip(&packed);
    assert_eq!(text.matches("the log is truncated here").count(), 1);
    assert!(text.ends_with("the size limit is reached\"\n"));
}

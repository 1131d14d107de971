//! A plugin that speaks the protocol and violates it: its answers have bytes that no framework sends.
//!
//! It is this test binary, started by a script with the name of an ignored test. The handshake goes
//! to descriptor 3, because the test harness writes to standard output.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use bowline_plugin::{Class, Code, OperationId, State};
use bowline_plugin_host::{Host, Options};
use bytes::Bytes;
use tokio::net::UnixListener;

use crate::fixture::{backup, pod, short_limits};

async fn host() -> (Host, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "#!/bin/sh\nexport TMPDIR='{}'\nexec '{}' --ignored --nocapture --exact hostile::serve 3>&1 >/dev/null\n",
        folder.path().display(),
        std::env::current_exe().unwrap().display()
    );
    let path = folder.path().join("hostile");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let plugin_dir = folder.path().to_owned();
    let options = Options { plugin_dir, limits: short_limits(), ..Options::default() };
    (Host::discover(options).await, folder)
}

#[tokio::test]
async fn valid_entries_of_an_invalid_listing_are_used() {
    let (host, _folder) = host().await;
    let problems: Vec<&str> =
        host.registry().problems().iter().map(|problem| problem.reason.as_str()).collect();
    assert_eq!(
        problems,
        [
            "plugin x.io/odd: unknown plugin kind `SnapshotItemAction`",
            "BackupItemActionV2: `noslash` is not a plugin name: expected <DNS name>/<name>",
            "the binary lists BackupItemActionV2 x.io/empty-item twice",
        ]
    );
    assert_eq!(host.registry().plugins().len(), 6);
}

#[tokio::test]
async fn invalid_answers_are_refused_naming_the_rule() {
    let (host, _folder) = host().await;
    let run = host.run();
    let operation = OperationId::new("op").unwrap();
    let execute = async |name: &str| {
        let name = format!("x.io/{name}").parse().unwrap();
        let action = run.backup_item_actions().into_iter().find(|a| a.name == name).unwrap();
        action.plugin.execute(&pod(&[]), &backup()).await
    };
    let progress = async |name: &str| {
        let name = format!("x.io/{name}").parse().unwrap();
        let action = run.backup_item_actions().into_iter().find(|a| a.name == name).unwrap();
        action.plugin.progress(&operation, &backup()).await
    };
    for (name, words) in [
        ("empty-item", "plugin x.io/empty-item returned an invalid answer: the item is empty"),
        ("not-json", "plugin x.io/not-json returned an invalid answer: the item is no valid JSON"),
        ("not-utf8", "UTF-8"),
    ] {
        let error = execute(name).await.unwrap_err();
        assert!(error.message().contains(words), "{error}");
        assert_eq!(error.code(), Code::Internal, "{error}");
    }
    // Many calls at a time may have an answer in memory, so that none may be large.
    let error = execute("large").await.unwrap_err();
    assert!(error.message().contains("the limit is: 8388608 bytes"), "{error}");
    let error = progress("no-progress").await.unwrap_err();
    assert!(error.message().contains("the progress is missing"), "{error}");
    let started_in_year_1 = progress("year-1").await.unwrap();
    assert_eq!((started_in_year_1.started, started_in_year_1.state), (None, State::Running));
    let error = progress("empty-item").await.unwrap_err();
    assert_eq!(error.class(), Class::Unimplemented, "{error}");
    drop(run);
}

#[tokio::test]
async fn plugin_hanging_in_shutdown_is_killed_in_time() {
    let (host, _folder) = host().await;
    let run = host.run();
    let action = run.backup_item_actions().remove(0).plugin;
    action.applies_to().await.unwrap();
    let started = Instant::now();
    run.shut_down().await;
    let took = started.elapsed();
    // Asked for two seconds, waited for two, killed.
    assert!(took > Duration::from_secs(3) && took < Duration::from_secs(10), "{took:?}");
}

#[tokio::test]
#[ignore = "started by another test, as a plugin"]
async fn serve() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut handshake = std::fs::File::create("/proc/self/fd/3").unwrap();
    writeln!(handshake, "1|2|unix|{}|grpc|", socket.display()).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::spawn(answer(request, respond));
            }
        });
    }
}

async fn answer(
    request: http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
) {
    let path = request.uri().path().to_owned();
    let mut body = request.into_body();
    let mut request_body = Vec::new();
    while let Some(Ok(piece)) = body.data().await {
        let _ = body.flow_control().release_capacity(piece.len());
        request_body.extend_from_slice(&piece);
    }
    let name = String::from_utf8_lossy(&request_body).into_owned();
    let is_for = |short_name: &str| name.contains(&format!("x.io/{short_name}"));
    let message = match path.as_str() {
        "/generated.PluginLister/ListPlugins" => listing(),
        "/plugin.GRPCController/Shutdown" => return std::future::pending().await,
        "/v2.BackupItemAction/AppliesTo" => Vec::new(),
        "/v2.BackupItemAction/Execute" if is_for("empty-item") => Vec::new(),
        "/v2.BackupItemAction/Execute" if is_for("not-json") => field(1, b"{not json"),
        "/v2.BackupItemAction/Execute" if is_for("not-utf8") => {
            [field(1, br#"{"kind":"Pod"}"#), field(3, b"\xff\xfe")].concat()
        }
        "/v2.BackupItemAction/Execute" if is_for("large") => {
            let name = "x".repeat(9 << 20);
            field(1, format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}").as_bytes())
        }
        "/v2.BackupItemAction/Progress" if is_for("no-progress") => Vec::new(),
        "/v2.BackupItemAction/Progress" if is_for("year-1") => {
            // A Timestamp (7) of an OperationProgress (1) with its seconds (1).
            let seconds = [&[8][..], &varint((-62_135_596_800_i64).cast_unsigned())].concat();
            field(1, &field(7, &seconds))
        }
        _ => return end(respond, 12),
    };
    let headers = http::Response::builder().header("content-type", "application/grpc");
    let mut stream = respond.send_response(headers.body(()).unwrap(), false).unwrap();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    stream.send_data([&[0][..], &length, &message].concat().into(), false).unwrap();
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from(0));
    stream.send_trailers(trailers).unwrap();
}

/// Ends a call with a status and nothing else.
fn end(mut respond: h2::server::SendResponse<Bytes>, status: u16) {
    let headers = http::Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", status);
    respond.send_response(headers.body(()).unwrap(), true).unwrap();
}

fn listing() -> Vec<u8> {
    let plugin = |kind: &str, name: &str| {
        field(
            1,
            &[field(1, b"hostile"), field(2, kind.as_bytes()), field(3, name.as_bytes())].concat(),
        )
    };
    [
        plugin("SnapshotItemAction", "x.io/odd"),
        plugin("BackupItemActionV2", "noslash"),
        plugin("BackupItemActionV2", "x.io/empty-item"),
        plugin("BackupItemActionV2", "x.io/empty-item"),
        plugin("BackupItemActionV2", "x.io/not-json"),
        plugin("BackupItemActionV2", "x.io/not-utf8"),
        plugin("BackupItemActionV2", "x.io/no-progress"),
        plugin("BackupItemActionV2", "x.io/year-1"),
        plugin("BackupItemActionV2", "x.io/large"),
    ]
    .concat()
}

/// A field of protobuf that has bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = varint(bytes.len() as u64);
    [&[number << 3 | 2][..], &length, bytes].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).unwrap();
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

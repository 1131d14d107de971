//! The server as a process.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc;

use bowline_testbed::{Bed, ControlPlane, Options};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::bowline::World;
use crate::cluster::full_account;

#[test]
fn server_reports_missing_prerequisites_and_stops_cleanly() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let bed = Bed::new().unwrap();
    let plane = runtime.block_on(ControlPlane::start(&bed, Options::default())).unwrap();
    let world = World::new();
    let server = |arguments: &[&str]| {
        let mut command = world.bowline(&["server", "--plugin-dir=/nowhere"]);
        command.args(arguments).env("KUBECONFIG", plane.kubeconfig());
        command
    };
    let cannot_start = |mut command: Command, reason: &str| {
        let ended = World::run_command(&mut command);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.starts_with("error: "), "{}", ended.stderr);
        assert!(ended.stderr.contains(reason), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    };
    cannot_start(server(&[]), "namespace `velero` does not exist");
    let mut other = server(&[]);
    other.env("VELERO_NAMESPACE", "elsewhere");
    cannot_start(other, "namespace `elsewhere` does not exist");
    cannot_start(server(&["--namespace=default"]), "backups.velero.io, restores.velero.io");
    cannot_start(server(&["--kubeconfig=/nowhere/at/all"]), "/nowhere/at/all");

    let installed = World::run_command(
        world.bowline(&["install", "--crds-only"]).env("KUBECONFIG", plane.kubeconfig()),
    );
    assert_eq!(installed.code, Some(0), "{}", installed.stderr);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut process = server(&["-n", "default", "--log-format=json"]).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap());
        let mut log = String::new();
        while !log.contains("server started") {
            assert_ne!(lines.read_line(&mut log).unwrap(), 0, "it ended: {log}");
        }
        kill(Pid::from_raw(process.id().cast_signed()), signal).unwrap();
        lines.read_to_string(&mut log).unwrap();
        assert_eq!(process.wait().unwrap().code(), Some(0), "{log}");
        assert!(!log.contains("did not end within"), "something did not end by itself: {log}");
        assert!(log.lines().all(|line| line.starts_with("{\"") && line.ends_with('}')), "{log}");
    }
    assert_eq!(world.leftovers(), [] as [&str; 0]);
}

/// Answers one request of an exporter, and returns its path and body.
fn answer_export(mut stream: TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let path = first.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").ok()?;
    Some((path, body))
}

#[test]
fn traces_are_sent_to_the_collector_of_the_standard_variable() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let bed = Bed::new().unwrap();
    let plane = runtime.block_on(ControlPlane::start(&bed, Options::default())).unwrap();
    let world = World::new();
    let installed = World::run_command(
        world.bowline(&["install", "--crds-only"]).env("KUBECONFIG", plane.kubeconfig()),
    );
    assert_eq!(installed.code, Some(0), "{}", installed.stderr);
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let (sender, received) = mpsc::channel();
    // It ends with this process.
    std::thread::spawn(move || {
        for stream in collector.incoming().flatten() {
            if let Some(request) = answer_export(stream) {
                let _ = sender.send(request);
            }
        }
    });

    let account = runtime.block_on(full_account("default").open(&plane)).unwrap();
    let mut process = world
        .bowline(&["server", "--plugin-dir=/nowhere", "-n", "default", "--metrics-address=0"])
        .env("KUBECONFIG", account)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap());
    let mut log = String::new();
    while !log.contains("server started") {
        assert_ne!(lines.read_line(&mut log).unwrap(), 0, "it ended: {log}");
    }
    let backup = ["backup", "create", "traced", "-n", "default", "--wait"];
    let created = World::run_command(world.bowline(&backup).env("KUBECONFIG", plane.kubeconfig()));
    assert_eq!(
        created.code,
        Some(1),
        "there is no location, so that it is refused: {}",
        created.stderr
    );
    kill(Pid::from_raw(process.id().cast_signed()), Signal::SIGTERM).unwrap();
    lines.read_to_string(&mut log).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(0), "{log}");

    let has =
        |body: &[u8], text: &str| body.windows(text.len()).any(|window| window == text.as_bytes());
    let requests: Vec<_> = received.try_iter().collect();
    assert!(requests.iter().all(|(path, _)| path == "/v1/traces"), "{requests:?}");
    for text in ["service.name", "bowline", "traced"] {
        assert!(requests.iter().any(|(_, body)| has(body, text)), "{text}: {requests:?}");
    }
}

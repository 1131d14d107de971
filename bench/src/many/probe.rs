//! What users and Prometheus do again and again, each timed once.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bowline_api::{Backup, BackupPhase};
use futures::{StreamExt as _, pin_mut};
use kube::Api;
use kube::api::{PostParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::bench_env::BenchEnv;
use crate::contender::{BOWLINE_NAMESPACE, LOCATION, Server};

/// Namespace that new backups include, with nothing but what every namespace has.
pub(super) const NAMESPACE: &str = "probe";

/// Longest time for one probe.
const PROBE_TIMEOUT: Duration = Duration::from_mins(2);
/// Longest answer that is read.
const MAX_ANSWER_BYTES: u64 = 256 << 20;

/// Answer of the metrics server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scrape {
    pub(super) wall_s: f64,
    pub(super) bytes: u64,
}

/// Reads the metrics once, over a connection of its own as the server requires.
pub(super) async fn scrape(address: SocketAddr) -> anyhow::Result<Scrape> {
    let started = Instant::now();
    let answer = tokio::time::timeout(PROBE_TIMEOUT, get(address, "/metrics")).await;
    let answer = answer.context("no answer in time")??;
    let wall_s = started.elapsed().as_secs_f64();
    let status = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    ensure!(
        status == b"HTTP/1.1 200 OK",
        "the answer is {}",
        String::from_utf8_lossy(&status[..status.len().min(100)])
    );
    Ok(Scrape { wall_s, bytes: answer.len() as u64 })
}

/// One request, so no library. The server closes the connection after its answer.
async fn get(address: SocketAddr, path: &str) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// Runs `bowline backup get`, which lists at least so many backups. Returns the seconds that it took.
pub(super) async fn list_backups(env: &BenchEnv, backups: usize) -> anyhow::Result<f64> {
    let mut command = Command::new(&env.binaries.bowline);
    command
        .arg(format!("--kubeconfig={}", env.plane.kubeconfig().display()))
        .arg(format!("--namespace={BOWLINE_NAMESPACE}"))
        .args(["backup", "get"])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let started = Instant::now();
    let output = tokio::time::timeout(PROBE_TIMEOUT, command.output()).await;
    let output = output.context("`backup get` did not end in time")?;
    let output = output.context("cannot run `backup get`")?;
    let wall_s = started.elapsed().as_secs_f64();
    ensure!(
        output.status.success(),
        "`backup get` failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    // The table has a heading.
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    ensure!(lines > backups, "`backup get` shows {lines} lines for {backups} backups");
    Ok(wall_s)
}

/// Creates a Backup. Returns the seconds until its phase was `InProgress`, after it has completed.
pub(super) async fn start_backup(
    env: &BenchEnv,
    server: &Server,
    name: &str,
) -> anyhow::Result<f64> {
    let backups: Api<Backup> = Api::namespaced(env.client.clone(), server.namespace);
    let backup = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"storageLocation": LOCATION, "includedNamespaces": [NAMESPACE]},
    }))?;
    let started = Instant::now();
    let created = backups.create(&PostParams::default(), &backup).await;
    let created = created.context("cannot create a Backup")?;
    let version = created.metadata.resource_version.unwrap_or_default();
    let followed = follow(&backups, name, &version, started);
    tokio::time::timeout(PROBE_TIMEOUT, followed).await.context("the backup did not end in time")?
}

/// Follows a Backup from this version to its end. Returns the seconds until it was in progress: each phase is an event
/// of its own, however short it is.
async fn follow(
    backups: &Api<Backup>,
    name: &str,
    version: &str,
    started: Instant,
) -> anyhow::Result<f64> {
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let events = backups.watch(&params, version).await.context("cannot watch the Backup")?;
    pin_mut!(events);
    let mut begin = None;
    while let Some(event) = events.next().await {
        let backup = match event.context("the watch of the Backup failed")? {
            WatchEvent::Modified(backup) | WatchEvent::Added(backup) => backup,
            WatchEvent::Deleted(_) => bail!("it was deleted"),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(error) => bail!("the watch of the Backup failed: {error:?}"),
        };
        let phase = backup.status.and_then(|status| status.phase);
        if phase == Some(BackupPhase::InProgress) {
            begin.get_or_insert_with(|| started.elapsed().as_secs_f64());
        }
        match phase {
            Some(BackupPhase::Completed) => return begin.context("it was never InProgress"),
            Some(phase) if phase.is_terminal() => bail!("it is {phase}"),
            _ => {}
        }
    }
    bail!("the watch of the Backup ended")
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Serves one connection with this answer.
    async fn answer_once(answer: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 64];
            let _ = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        address
    }

    #[tokio::test]
    async fn only_a_successful_answer_is_a_scrape() {
        let page = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na\n";
        let scrape_of = async |answer| scrape(answer_once(answer).await).await;
        assert_eq!(scrape_of(page).await.unwrap().bytes, page.len() as u64);
        let error = scrape_of("HTTP/1.1 503 Busy\r\n\r\n").await.unwrap_err();
        assert_eq!(error.to_string(), "the answer is HTTP/1.1 503 Busy");
        assert!(scrape_of("").await.is_err());
    }
}

//! Commands that ask the server for its version and its plugins.

use std::time::Duration;

use bowline_api::ServerStatusRequest;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::bowline::World;
use crate::cluster::{TestEnv, cluster};

/// Answers each request in a namespace as a server of this version would. Ends when it is dropped.
pub(crate) struct StatusServer(JoinHandle<()>);

impl StatusServer {
    pub(crate) fn start(env: &TestEnv, version: &'static str) -> Self {
        let api = env.api::<ServerStatusRequest>();
        let status = json!({"status": {
            "phase": "Processed", "serverVersion": version,
            "processedTimestamp": "2026-01-02T03:04:05Z",
            "plugins": [
                {"name": "velero.io/aws", "kind": "ObjectStore"},
                {"name": "velero.io/pod", "kind": "BackupItemAction"},
            ],
        }});
        Self(cluster().runtime.spawn(async move {
            loop {
                for request in api.list(&ListParams::default()).await.unwrap().items {
                    let (name, params) = (request.metadata.name.unwrap(), PatchParams::default());
                    // It may have been deleted meanwhile.
                    let _ = api.patch(&name, &params, &Patch::Merge(&status)).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }))
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[test]
fn version_prints_both_versions_and_leaves_no_request() {
    let env = cluster().test_env("status-version");
    let client = concat!("Client:\n\tVersion: v", env!("CARGO_PKG_VERSION"), "\n");
    let server = StatusServer::start(&env, "v99.1.0");
    let ended = env.run(&["version"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout, format!("{client}Server:\n\tVersion: v99.1.0\n"));
    assert!(ended.stderr.contains("upgrade the client"), "{}", ended.stderr);
    drop(server);
    assert_eq!(env.names::<ServerStatusRequest>(), [""; 0]);

    // No server answers.
    let ended = env.run(&["version", "--timeout", "300ms"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), client));
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let [line] = lines.as_slice() else { panic!("not one line: {}", ended.stderr) };
    for word in ["no response from a server within 300ms", "`status-version`", "--client-only"] {
        assert!(line.contains(word), "{line}");
    }
    assert_eq!(env.names::<ServerStatusRequest>(), [""; 0]);
    // There is no cluster either.
    let ended = World::new().run(&["version", "--client-only"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), client));
}

#[test]
fn plugins_of_the_server_are_listed() {
    let env = cluster().test_env("status-plugins");
    let _server = StatusServer::start(&env, "v0.1.0");
    let expected =
        "NAME            KIND\nvelero.io/pod   BackupItemAction\nvelero.io/aws   ObjectStore\n";
    assert_eq!(env.run_ok(&["plugin", "get"]), expected);
    assert_eq!(env.run_ok(&["get", "plugins"]), expected);
    let answer: Value =
        serde_json::from_str(&env.run_ok(&["plugin", "get", "-o", "json"])).unwrap();
    assert_eq!(answer["status"]["plugins"][1]["name"], "velero.io/aws");
    assert_eq!(answer["kind"], "ServerStatusRequest");
}

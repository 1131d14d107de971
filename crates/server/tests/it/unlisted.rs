//! A plugin binary that cannot be listed: each run reports it.

use std::path::Path;

use bowline_api::{Backup, Restore};
use kube::ResourceExt as _;
use serde_json::json;

use crate::bed::SETS;
use crate::support::operations::OperationWorld;
use crate::support::runs::{Run, counts, is_over, is_waiting, phase};

/// Replacement of a binary: a program without an answer that the host understands.
const BROKEN: &str = "#!/bin/sh\necho no handshake\n";

async fn assert_names_binary<K: Run>(trial: &OperationWorld, created: &K, binary: &Path) {
    let last = trial.world.until::<K>(&created.name_any(), is_over).await;
    let results = trial.results(&last).await;
    assert_eq!(phase(&last), "PartiallyFailed", "{results:?}");
    let errors = &results.errors.velero;
    let expected = format!("plugin {}: invalid handshake", binary.display());
    assert!(
        errors.len() == 1
            && errors[0].contains(&expected)
            && errors[0].contains("none of the plugin's actions took part"),
        "{results:?}"
    );
}

#[tokio::test]
async fn runs_report_unlisted_binaries_and_keep_their_operations() {
    let mut trial = OperationWorld::start("unlisted").await;
    for set in SETS {
        trial.add_claim(set, set, "operation=1000").await;
    }
    let binary = trial.world.path("plugins").join(SETS[0]);
    let script = std::fs::read_to_string(&binary).unwrap();
    // No plugin, and nothing that anybody misses.
    let readme = trial.world.path("plugins").join("README");
    std::fs::copy(&binary, &readme).unwrap();
    std::fs::write(&readme, "These are plugins.\n").unwrap();

    let before = trial.back_up("b", json!({})).await;
    trial.world.until::<Backup>("b", is_waiting).await;
    trial.restart(async |_| std::fs::write(&binary, BROKEN).unwrap()).await;
    let backup = trial.back_up("missing", json!({})).await;
    assert_names_binary(&trial, &backup, &binary).await;
    let spec = json!({"backupName": "missing", "namespaceMapping": {&trial.app: "unlisted-r"}});
    let restore: Restore =
        trial.world.create(json!({"metadata": {"name": "r"}, "spec": spec})).await;
    assert_names_binary(&trial, &restore, &binary).await;
    let waits = trial.world.api::<Backup>().get("b").await.unwrap();
    assert!(is_waiting(&waits), "its operation may be known again: {waits:?}");

    trial.restart(async |_| std::fs::write(&binary, script).unwrap()).await;
    let last = trial.world.until::<Backup>(&before.name_any(), is_over).await;
    assert_eq!((phase(&last).as_str(), counts(&last)), ("Completed", [2, 2, 0]), "{last:?}");
}

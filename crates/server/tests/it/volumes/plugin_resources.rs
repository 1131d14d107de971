//! Plugins that write their own VolumePluginBackups and VolumePluginRestores, in Go and on the SDK. They set neither
//! labels nor owner references, and report their progress only there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_api::{Backup, Restore, VolumePluginBackup, VolumePluginRestore};
use bowline_testbed::api_proxy;
use http::Method;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{SnapshotWorld, status_phase};
use crate::bed::eventually;
use crate::fault_injection;
use crate::support::runs::{is_over, is_waiting, phase};

/// Every second GET of a VolumePluginBackup fails.
const GET: &str = "/volumepluginbackups/";

impl SnapshotWorld {
    /// A server whose GETs of VolumePluginBackups fail half of the time, and how many there were.
    async fn start_lossy(name: &str, set: &'static str) -> (Self, Arc<AtomicUsize>) {
        let mut trial = Self::start(name, set).await;
        trial.world.end().await.unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let options = Self::options(&trial.world);
        trial.world.run_through(options, move |client| {
            fault_injection::faulty_client(client, move |method, uri| {
                *method == Method::GET
                    && uri.path().contains(GET)
                    && count.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
            })
        });
        (trial, asked)
    }

    async fn reporting_location(&self, settings: serde_json::Value) {
        let mut settings = settings;
        settings["report"] = api_proxy::start(self.world.client.clone()).await.unwrap().into();
        settings["report-namespace"] = self.world.namespace.clone().into();
        self.location("snaps", "vs-v1", settings).await;
    }

    /// Ends the reported progress with a phase.
    fn end_reports(&self, phase: &str) {
        let (root, partial) = (self.root(), self.root().join("report-end.partial"));
        std::fs::write(&partial, phase).unwrap();
        std::fs::rename(partial, root.join("report-end")).unwrap();
    }

    async fn until_polled(&self, asked: &AtomicUsize, more: usize) {
        let enough = asked.load(Ordering::Relaxed) + more;
        eventually("the server has polled", async || asked.load(Ordering::Relaxed) >= enough).await;
    }

    /// The VolumePluginBackups that `kubectl -l` finds.
    async fn labelled(&self, backup: &str) -> Vec<VolumePluginBackup> {
        let selector = format!("velero.io/backup-name={backup}");
        let params = ListParams::default().labels(&selector);
        self.world.api::<VolumePluginBackup>().list(&params).await.unwrap().items
    }
}

/// True if a VolumePluginBackup has labels and owner of its backup.
fn is_labelled_and_owned(resource: &VolumePluginBackup, uid: &str) -> bool {
    let label = |key: &str| resource.labels().get(key).map(String::as_str);
    label("velero.io/backup-name") == Some("b")
        && label("velero.io/backup-uid") == Some(uid)
        && resource.owner_references().iter().any(|owner| owner.uid == uid)
}

async fn assert_snapshot_follows_plugin_report(name: &str, set: &'static str) {
    let (trial, asked) = SnapshotWorld::start_lossy(name, set).await;
    trial.reporting_location(json!({})).await;
    let volume = trial.volume("one").await;
    trial.back_up("b", json!({})).await;
    let waiting = trial.world.until("b", is_waiting::<Backup>).await;
    let uid = waiting.uid().unwrap();

    // The resource has labels and an owner while the run continues, and stays the plugin's.
    let is_adopted = |one: &VolumePluginBackup| is_labelled_and_owned(one, &uid);
    let shown = trial.world.until("snap-one-1", is_adopted).await;
    assert_eq!(status_phase(&shown), "InProgress");
    assert_eq!(shown.spec.volume, volume);
    assert!(!shown.labels().contains_key("bowline.io/managed"), "{shown:?}");
    assert_eq!(shown.spec.plugin_specific["written-by"], format!("{set}.bowline.io/vs-v1"));
    let labelled = trial.labelled("b").await;
    assert_eq!(labelled.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["snap-one-1"]);

    // Lost answers, and a moment without the resource, decide nothing.
    trial.until_polled(&asked, 2).await;
    trial.world.delete::<VolumePluginBackup>("snap-one-1").await;
    trial.until_polled(&asked, 4).await;
    assert!(is_waiting(&trial.world.api::<Backup>().get("b").await.unwrap()));
    let again = json!({
        "metadata": {"name": "snap-one-1"}, "spec": shown.spec, "status": shown.status,
    });
    trial.world.create::<VolumePluginBackup>(again).await;
    let has_moved = |one: &VolumePluginBackup| {
        let done = |one: &VolumePluginBackup| one.status.as_ref().unwrap().progress.bytes_done;
        is_labelled_and_owned(one, &uid) && done(one) > done(&shown)
    };
    let shown = trial.world.until("snap-one-1", has_moved).await;
    assert_eq!(status_phase(&shown), "InProgress");

    trial.end_reports("COMPLETED");
    let backup = trial.ended("b").await;
    let results: bowline_store::file::Results = trial.get("b").await;
    assert_eq!(phase(&backup), "Completed", "{results:?}");
    let stored: Vec<VolumePluginBackup> = trial.get("b").await;
    let [resource] = &stored[..] else { panic!("{stored:?}") };
    assert_eq!(
        (resource.name_any().as_str(), status_phase(resource).as_str()),
        ("snap-one-1", "COMPLETED")
    );
    assert_eq!(resource.labels()["velero.io/backup-name"], "b");

    assert_volume_follows_plugin_report(&trial, &volume).await;

    // The resource is removed together with the Backup. The sync may recreate both, as other objects.
    let shown = trial.world.api::<VolumePluginBackup>().get("snap-one-1").await.unwrap();
    trial.world.delete::<Backup>("b").await;
    eventually("the VolumePluginBackup is deleted", async || {
        trial.resources("b").await.iter().all(|one| one.uid() != shown.uid())
    })
    .await;
}

async fn assert_volume_follows_plugin_report(trial: &SnapshotWorld, volume: &str) {
    std::fs::remove_file(trial.root().join("report-end")).unwrap();
    let volumes: Api<PersistentVolume> = Api::all(trial.world.client.clone());
    volumes.delete(volume, &DeleteParams::default()).await.unwrap();
    eventually("the volume is deleted", async || volumes.get_opt(volume).await.unwrap().is_none())
        .await;
    let restore = json!({"metadata": {"name": "r"}, "spec": {"backupName": "b"}});
    let uid = trial.world.create::<Restore>(restore).await.uid().unwrap();

    // While the volume is created, it has one resource: the plugin's, with labels and an owner.
    let api = trial.world.api::<VolumePluginRestore>();
    let shown = eventually("the plugin's own VolumePluginRestore is there", async || {
        let labelled = ListParams::default().labels("velero.io/restore-name=r");
        let found = api.list(&labelled).await.unwrap().items;
        match &found[..] {
            [one] if !one.labels().contains_key("bowline.io/managed") => Ok(one.clone()),
            _ => Err(found),
        }
    })
    .await;
    assert!(shown.name_any().starts_with("restore-snap-one-1-"), "{}", shown.name_any());
    assert_eq!(shown.labels()["velero.io/restore-uid"], uid);
    assert_eq!(shown.owner_references()[0].uid, uid);
    assert_eq!(shown.status.as_ref().unwrap().phase.as_ref().unwrap().as_str(), "InProgress");
    assert!(!is_over(&trial.world.api::<Restore>().get("r").await.unwrap()));

    trial.end_reports("Completed");
    let restore = trial.world.until::<Restore>("r", is_over).await;
    assert_eq!(phase(&restore), "Completed");
    let shown = api.get(&shown.name_any()).await.unwrap();
    assert_eq!(shown.status.unwrap().volume_id, "vol-snap-one-1-1");
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_follows_the_report_of_a_go_plugin() {
    assert_snapshot_follows_plugin_report("reported-go", "go").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_follows_the_report_of_an_sdk_plugin() {
    assert_snapshot_follows_plugin_report("reported-sdk", "sdk").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_published_while_items_are_collected() {
    let trial = SnapshotWorld::start("reported-early", "sdk").await;
    trial.reporting_location(json!({"report-within": "true"})).await;
    // The plugin works on the first snapshot until it is told to end, and reports nothing about the second.
    trial.volume("one").await;
    trial.volume("plain").await;
    trial.back_up("b", json!({})).await;
    let is_of_b = |one: &VolumePluginBackup| one.labels().contains_key("velero.io/backup-name");
    let of_plugin = trial.world.until("snap-one-1", is_of_b).await;
    let own_resource = trial.world.until("snap-plain-1", is_of_b).await;
    let backup = trial.world.api::<Backup>().get("b").await.unwrap();
    assert_eq!(phase(&backup), "InProgress");
    let uid = backup.uid().unwrap();
    assert!(
        is_labelled_and_owned(&of_plugin, &uid) && is_labelled_and_owned(&own_resource, &uid),
        "{of_plugin:?} {own_resource:?}"
    );
    assert_eq!(status_phase(&of_plugin), "InProgress");
    assert_eq!(own_resource.labels()["bowline.io/managed"], "true");
    let started = own_resource.status.as_ref().unwrap().start_timestamp.clone().unwrap();
    assert!(started.0 >= backup.creation_timestamp().unwrap().0, "{started:?}");
    assert!(
        !trial.calls().iter().any(|call| *call == ("snapshot-created".into(), "snap-one-1".into()))
    );
    trial.end_reports("completed");
    let backup = trial.ended("b").await;
    assert_eq!(phase(&backup), "Completed");
    let mut phases: Vec<_> = trial.labelled("b").await.iter().map(status_phase).collect();
    phases.sort();
    assert_eq!(phases, ["Completed", "completed"]);
}

//! Objects of an application.

use std::path::Path;

use bowline_testbed::{csi, node};
use serde_json::{Value, json};

use super::APPS;

/// Shortest duration of an operation, in milliseconds.
const OPERATION_MS: usize = 700;
/// Class of claims whose volumes exist before them.
const CLASS: &str = "disks";
/// File in a volume, with the name of the volume that it was written to.
pub(super) const DATA: &str = "data";

/// PersistentVolume, and the plugin's volume of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) name: String,
    /// Claim of the volume. The one of a pod that is frozen has none: no node could mount it.
    pub(crate) claim: Option<String>,
}

/// Verb for the plugin's operations on items of an application. The ids of operations consist of their start and
/// duration, so durations differ where ids could collide.
fn operation_verb(app: &str) -> String {
    let number = APPS.iter().position(|one| *one == app).unwrap_or(APPS.len());
    format!("operation={}", OPERATION_MS + number)
}

/// Volumes of an application: of its first claims, and of the first pod that can be frozen.
pub(crate) fn volumes_of(app: &str, with_hooked: bool) -> Vec<Volume> {
    let name = |number: usize| format!("{app}-volume-{number}");
    let claims = claims_of(app).into_iter().take(2).enumerate();
    let of_claim = |(at, claim)| Volume { name: name(at + 1), claim: Some(claim) };
    let mut volumes: Vec<Volume> = claims.map(of_claim).collect();
    if with_hooked {
        volumes.push(Volume { name: name(volumes.len() + 1), claim: None });
    }
    volumes
}

/// Pods of an application that can be frozen. Their names are unique, as are those of their records.
pub(super) fn hooked_pods(app: &str) -> Vec<String> {
    (1..=2).map(|number| format!("{app}-db-{number}")).collect()
}

/// Claims of an application with volumes of the CSI driver: one of a pod that can be frozen, and one without a pod.
pub(crate) fn csi_claims_of(app: &str) -> Vec<String> {
    claims_of(app).into_iter().skip(2).collect()
}

pub(super) fn claims_of(app: &str) -> Vec<String> {
    (1..=4).map(|number| format!("{app}-claim-{number}")).collect()
}

pub(super) fn maps_of(app: &str) -> Vec<String> {
    (1..=3).map(|number| format!("{app}-map-{number}")).collect()
}

/// Objects in the namespace of an application, as `<resource>/<name>`.
pub(crate) fn contents(app: &str, with_hooked: bool) -> Vec<String> {
    let of = |resource: &str, names: Vec<String>| {
        names.into_iter().map(|name| format!("{resource}/{name}")).collect::<Vec<_>>()
    };
    let mut all = of("persistentvolumeclaims", claims_of(app));
    all.extend(of("configmaps", maps_of(app)));
    all.push(format!("pods/{app}-idle"));
    if with_hooked {
        all.extend(of("pods", hooked_pods(app)));
    }
    all
}

pub(super) fn persistent_volume(app: &str, volume: &Volume) -> Value {
    let mut object = json!({
        "metadata": {"name": volume.name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Mi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "csi": {"driver": "fixture.bowline.io", "volumeHandle": volume.name},
        },
    });
    if let Some(claim) = &volume.claim {
        object["spec"]["claimRef"] = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": app, "name": claim,
        });
    }
    object
}

/// Claim that a plugin processes in the background, with its volume if it has one.
pub(super) fn claim(app: &str, name: &str) -> Value {
    let changed = format!("configmaps/{app}/{}", maps_of(app)[0]);
    let mut claim = json!({
        "metadata": {"name": name, "annotations": {
            "fixture.bowline.io/do": operation_verb(app),
            "fixture.bowline.io/post-operation": changed,
        }},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
        },
    });
    let mut volumes = volumes_of(app, false).into_iter();
    if let Some(volume) = volumes.find(|volume| volume.claim.as_deref() == Some(name)) {
        claim["spec"]["storageClassName"] = json!(CLASS);
        claim["spec"]["volumeName"] = json!(volume.name);
    } else if csi_claims_of(app).iter().any(|one| one == name) {
        claim["spec"]["storageClassName"] = json!(csi::CLASS);
    }
    claim
}

/// Pod that never runs, with a volume, so that it is backed up in one block with its claim.
pub(super) fn idle_pod(app: &str) -> Value {
    json!({
        "metadata": {
            "name": format!("{app}-idle"),
            "annotations": {"fixture.bowline.io/do": operation_verb(app)},
        },
        "spec": {
            "schedulerName": "nobody",
            "containers": [{
                "name": "main", "image": node::IMAGE,
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{
                "name": "data",
                "persistentVolumeClaim": {"claimName": claims_of(app)[0]},
            }],
        },
    })
}

/// Pod whose hooks record its freezes and thaws. The first one has a volume of the plugin in its block, and the second
/// one of the CSI driver.
pub(super) fn hooked_pod(app: &str, name: &str, hook_log_dir: &Path) -> Value {
    let hook = |event: &str| json!(["/bin/sh", "-c", format!("echo {event} >> /notes/{name}")]);
    let mut annotations = json!({
        "fixture.bowline.io/do": format!("sleep=50,{}", operation_verb(app)),
        "pre.hook.backup.velero.io/command": hook("freeze").to_string(),
        "post.hook.backup.velero.io/command": hook("thaw").to_string(),
    });
    if hooked_pods(app).first().is_some_and(|first| first == name) {
        let unclaimed = volumes_of(app, true).into_iter().filter(|volume| volume.claim.is_none());
        let related: Vec<String> =
            unclaimed.map(|volume| format!("persistentvolumes//{}", volume.name)).collect();
        annotations["fixture.bowline.io/additional"] = json!(related.join(","));
    }
    let mut volumes = vec![json!({"name": "notes", "hostPath": {"path": hook_log_dir}})];
    let mut mounts = vec![json!({"name": "notes", "mountPath": "/notes"})];
    if hooked_pods(app).last().is_some_and(|last| last == name) {
        let claim = json!({"claimName": csi_claims_of(app)[0]});
        volumes.push(json!({"name": "disk", "persistentVolumeClaim": claim}));
        mounts.push(json!({"name": "disk", "mountPath": "/disk"}));
    }
    json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": node::IMAGE, "imagePullPolicy": "Never",
                "command": ["sleep", "100000"],
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    })
}

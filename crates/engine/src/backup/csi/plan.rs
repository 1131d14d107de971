//! Plan for each claim, as far as it can be made before a pod is frozen.

use std::collections::{BTreeMap, HashMap, HashSet};

use bowline_api::snapshot_type::SnapshotType;
use bowline_plugin::{Item, ResourceIdentifier};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use serde::Deserialize;

use super::failure::{ApiMissing, CsiSnapshotError, UnsupportedError};
use super::group::{self, PlannedGroup};
use super::{MAX_CONCURRENT_REQUESTS, SnapshotResources, class, object};
use crate::backup::block_journal::IntentsInJournal;
use crate::backup::volume::Volumes;
use crate::backup::{Context, outside_pods, snapshot};
use crate::csi::record::{BACKUPPER, CsiSnapshotRecord, SnapshotKey};
use crate::item::Object;
use crate::journal::{CsiIntent, Intent};

/// A claim whose volume its CSI driver is to snapshot.
pub(in crate::backup) struct PlannedCsiSnapshot {
    /// Only the names are set.
    pub(super) record: CsiSnapshotRecord,
    pub(super) plan: CsiPlan,
    /// Further warnings to report.
    pub(super) warnings: Vec<String>,
    /// The annotations of the claim.
    pub(super) annotations: BTreeMap<String, String>,
    /// The volume group that the claim is in.
    pub(super) group: Option<String>,
}

impl PlannedCsiSnapshot {
    /// True if a driver is asked, so that the claim is stored when its snapshot is taken.
    fn is_requested(&self) -> bool {
        matches!(self.plan, CsiPlan::Ready(_) | CsiPlan::Grouped(_))
    }

    /// Intent to write to the journal; none if no driver is asked.
    fn intent(&self) -> Option<Intent> {
        let record = &self.record;
        let (name, is_group) = match &self.plan {
            CsiPlan::Ready(_) => (&record.name, false),
            CsiPlan::Grouped(group) => (&group.name, true),
            CsiPlan::Failed(_) | CsiPlan::Unsupported(_) => return None,
        };
        let (namespace, name) = (record.namespace.clone(), name.clone());
        Some(Intent {
            plugin: BACKUPPER.to_owned(),
            item: record.claim_id().into(),
            csi: Some(CsiIntent { namespace, name, is_group }),
            ..Intent::default()
        })
    }

    /// The snapshot, which fails unless its intent is in the journal.
    pub(in crate::backup) fn with_proof(self, proof: &IntentsInJournal) -> JournaledCsiSnapshot {
        let is_missing = self.intent().is_some_and(|intent| !proof.include(&intent));
        JournaledCsiSnapshot(if is_missing {
            Self { plan: CsiPlan::Failed(CsiSnapshotError::NotJournaled), ..self }
        } else {
            self
        })
    }
}

/// A claim whose snapshot may be requested: its intent is in the journal. Made by [`PlannedCsiSnapshot::with_proof`]
/// alone.
pub(in crate::backup) struct JournaledCsiSnapshot(PlannedCsiSnapshot);

impl JournaledCsiSnapshot {
    pub(in crate::backup) fn planned(&self) -> &PlannedCsiSnapshot {
        &self.0
    }

    pub(super) fn into_planned(self) -> PlannedCsiSnapshot {
        self.0
    }
}

pub(super) enum CsiPlan {
    /// Snapshot by this VolumeSnapshot.
    Ready(Item),
    /// Snapshot together with others, by this VolumeGroupSnapshot.
    Grouped(PlannedGroup),
    /// No snapshot is possible, for this reason.
    Failed(CsiSnapshotError),
    /// The cluster or the driver does not support snapshots.
    Unsupported(UnsupportedError),
}

/// Fields read of a claim.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Claim {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    volume_name: Option<String>,
}

/// Prepares the claims of a block. No pod is frozen yet.
pub(in crate::backup) async fn plan_snapshots<'a>(
    context: &Context,
    objects: impl IntoIterator<Item = &'a Object>,
) -> Vec<PlannedCsiSnapshot> {
    let (facts, mut claims, mut volumes) = (Volumes::default(), HashMap::new(), HashSet::new());
    for object in objects {
        facts.record(object);
        if object.resource.is_core("persistentvolumes") {
            volumes.insert(object.name.clone());
        }
        // Decided once, here: later visitors of the claim know less about its pods.
        if object.resource.is_core("persistentvolumeclaims")
            && context.csi.begin_snapshot(&object.namespace, &object.name)
            && let Ok(claim) = object.item.parse::<Claim>()
        {
            claims.insert((object.namespace.clone(), object.name.clone()), claim);
        }
    }
    let all: Vec<SnapshotKey> = claims.keys().cloned().collect();
    let planned = plan_all(context, &facts, claims, &volumes).await;
    // The others are stored as they are, by any visitor.
    let is_waiting = |(namespace, name): &&SnapshotKey| {
        let mut requested = planned.iter().filter(|one| one.is_requested());
        requested.any(|one| one.record.namespace == *namespace && one.record.claim == *name)
    };
    for (namespace, name) in all.iter().filter(|key| !is_waiting(key)) {
        context.csi.finish_snapshot(namespace, name);
    }
    planned
}

/// [`plan_snapshots`] for a claim that an action added, and that the caller visits. Does nothing for other items.
pub(in crate::backup) async fn plan_snapshot(
    context: &Context,
    object: &Object,
) -> Vec<PlannedCsiSnapshot> {
    let facts = Volumes::default();
    facts.record(object);
    let is_claim = object.resource.is_core("persistentvolumeclaims");
    let Some(claim) = object.item.parse::<Claim>().ok().filter(|_| is_claim) else {
        return Vec::new();
    };
    let key = (object.namespace.clone(), object.name.clone());
    plan_all(context, &facts, HashMap::from([(key, claim)]), &HashSet::new()).await
}

/// Plans for claims.
async fn plan_all(
    context: &Context,
    facts: &Volumes,
    mut claims: HashMap<SnapshotKey, Claim>,
    volumes: &HashSet<String>,
) -> Vec<PlannedCsiSnapshot> {
    if claims.is_empty() {
        return Vec::new();
    }
    read_volumes(context, facts, &claims, volumes).await;
    let (mut planned, options) = (Vec::new(), context.volume_options());
    if !facts.csi_candidates(&options).is_empty() {
        outside_pods::record_outside_pods(context, facts).await;
    }
    for wanted in facts.csi_candidates(&options) {
        let key = (wanted.namespace.clone(), wanted.claim.clone());
        let Some(claim) = claims.remove(&key) else { continue };
        let record = CsiSnapshotRecord {
            volume: wanted.volume,
            namespace: wanted.namespace,
            claim: wanted.claim,
            driver: wanted.driver,
            ..CsiSnapshotRecord::default()
        };
        planned.extend(plan(context, record, claim).await);
    }
    group::plan(context, &mut planned).await;
    planned
}

/// Reads volumes of claims that are not among the items: a snapshot is of a claim, and the claim is an item.
async fn read_volumes(
    context: &Context,
    facts: &Volumes,
    claims: &HashMap<SnapshotKey, Claim>,
    known: &HashSet<String>,
) {
    let options = context.volume_options();
    let Some(resource) = context.resources.core("persistentvolumes") else { return };
    if !options.snapshot_volumes && options.policies.is_none() {
        return;
    }
    let names = claims.values().filter_map(|claim| claim.spec.volume_name.as_deref());
    let mut reads: Vec<BoxFuture<'_, ()>> = Vec::new();
    for name in names.filter(|name| !name.is_empty() && !known.contains(*name)) {
        let read = async move {
            match context.cluster.get(resource, "", name).await {
                Ok(Some(volume)) => facts.record_volume(&volume),
                Ok(None) => {}
                Err(error) => tracing::warn!(volume = name, "the claim cannot be read: {error}"),
            }
        };
        reads.push(read.boxed());
    }
    futures::stream::iter(reads).buffer_unordered(MAX_CONCURRENT_REQUESTS).collect::<()>().await;
}

/// Plan for a claim; none if its volume is already handled.
async fn plan(
    context: &Context,
    record: CsiSnapshotRecord,
    claim: Claim,
) -> Option<PlannedCsiSnapshot> {
    let Metadata { labels, annotations } = claim.metadata;
    let (labels, annotations) = (labels.unwrap_or_default(), annotations.unwrap_or_default());
    let group = labels.get(&context.request.volume_group_label_key).cloned();
    let group = group.filter(|group| !group.is_empty());
    let (plan, warnings) = (CsiPlan::Unsupported(ApiMissing.into()), Vec::new());
    let planned = PlannedCsiSnapshot { record, plan, warnings, annotations, group };
    plan_one(context, planned, &labels).await
}

async fn plan_one(
    context: &Context,
    mut planned: PlannedCsiSnapshot,
    labels: &BTreeMap<String, String>,
) -> Option<PlannedCsiSnapshot> {
    let record = &mut planned.record;
    let unsupported = |planned, error: UnsupportedError| {
        Some(PlannedCsiSnapshot { plan: CsiPlan::Unsupported(error), ..planned })
    };
    let Some(api) = SnapshotResources::of(context) else {
        return unsupported(planned, ApiMissing.into());
    };
    let classes = match context.csi.classes(context, &api).await {
        Ok(classes) => classes.iter().map(|(class, _)| class.clone()).collect::<Vec<_>>(),
        Err(error) => return unsupported(planned, error.into()),
    };
    let of_backup = context.request.backup.metadata.annotations.clone().unwrap_or_default();
    let choice = match class::choose(&record.driver, &planned.annotations, &of_backup, &classes) {
        Ok(choice) => choice,
        Err(error) => return unsupported(planned, error.into()),
    };
    // From here on the volume is ours, and no plugin is asked.
    if !context.snapshots.reserve_volume(&record.volume) {
        return None;
    }
    record.class.clone_from(&choice.class.name);
    record.name =
        object::snapshot_name(&record.claim, &snapshot::request_id(context, &record.volume));
    planned.warnings =
        choice.ignored.iter().map(|reason| format!("{reason}; {} is used", record.class)).collect();
    if context.request.snapshot_type(None) == SnapshotType::Cloud {
        let text = "the snapshot type `cloud` has no effect on CSI snapshots, which stay with \
                    their driver";
        planned.warnings.push(text.to_owned());
    }
    let (backup, uid) = (context.request.name.as_str(), context.request.uid.as_str());
    planned.plan = match object::snapshot(record, labels, backup, uid) {
        Ok(item) => match context.csi.watch(context, &api).await.failure() {
            Some(error) => CsiPlan::Failed(error.into()),
            None => CsiPlan::Ready(item),
        },
        Err(error) => CsiPlan::Failed(CsiSnapshotError::Encode(error)),
    };
    Some(planned)
}

/// Leaves volumes that their drivers cannot snapshot to plugins that support them; for those that no plugin supports,
/// the reason of the driver is reported.
pub(in crate::backup) fn prefer_plugins(
    planned: Vec<PlannedCsiSnapshot>,
    by_plugins: &mut Vec<snapshot::PlannedPluginSnapshot>,
) -> Vec<PlannedCsiSnapshot> {
    let mut remaining = Vec::new();
    for one in planned {
        let volume = &one.record.volume;
        let plugin_index = by_plugins.iter().position(|plugin| plugin.is_of(volume));
        match (&one.plan, plugin_index) {
            (CsiPlan::Unsupported(_), Some(place)) if by_plugins[place].is_matched() => {}
            (_, place) => {
                if let Some(place) = place {
                    by_plugins.swap_remove(place);
                }
                remaining.push(one);
            }
        }
    }
    remaining
}

/// Intents to write to the journal before snapshots are taken.
pub(in crate::backup) fn intents(planned: &[PlannedCsiSnapshot]) -> Vec<Intent> {
    planned.iter().filter_map(PlannedCsiSnapshot::intent).collect()
}

/// The claims that are visited when their snapshots are taken.
pub(in crate::backup) fn waiting_claims<'a>(
    planned: impl IntoIterator<Item = &'a PlannedCsiSnapshot>,
) -> HashSet<ResourceIdentifier> {
    let ready = planned.into_iter().filter(|one| one.is_requested());
    ready.map(|one| one.record.claim_id()).collect()
}

//! What is to be done for which claim, as far as that can be said before anybody is frozen.

use std::collections::{BTreeMap, HashMap, HashSet};

use bowline_api::snapshot_type::SnapshotType;
use bowline_plugin::{Item, ResourceIdentifier};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use serde::Deserialize;

use super::action::BACKUPPER;
use super::group::{self, Group};
use super::record::Record;
use super::sight::Key;
use super::{AT_ONCE, Api, NO_API, class, object};
use crate::backup::volume::Volumes;
use crate::backup::{Context, outside, snapshot};
use crate::item::Object;
use crate::journal::{CsiIntent, Intent};

/// A claim whose volume its CSI driver is to snapshot.
pub(in crate::backup) struct Planned {
    /// With the names only.
    pub(super) record: Record,
    pub(super) plan: Plan,
    /// What is to be told of it besides.
    pub(super) warnings: Vec<String>,
    /// The annotations of the claim.
    pub(super) annotations: BTreeMap<String, String>,
    /// The volume group that the claim is in.
    pub(super) group: Option<String>,
}

impl Planned {
    /// Whether a driver is asked, so that the claim is stored when its snapshot is taken.
    fn is_to_be_taken(&self) -> bool {
        matches!(self.plan, Plan::Ready(_) | Plan::Grouped(_))
    }
}

pub(super) enum Plan {
    /// By this VolumeSnapshot.
    Ready(Item),
    /// Together with others, by this VolumeGroupSnapshot.
    Grouped(Group),
    /// It cannot be, for a reason.
    Failed(String),
    /// The cluster, or the driver, has no way to do it.
    Lacking(String),
}

/// What is read of a claim.
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

/// Makes the claims of a block ready. Nobody is frozen yet.
pub(in crate::backup) async fn prepare<'a>(
    context: &Context,
    objects: impl IntoIterator<Item = &'a Object>,
) -> Vec<Planned> {
    let (seen, mut claims, mut volumes) = (Volumes::default(), HashMap::new(), HashSet::new());
    for object in objects {
        seen.note(object);
        if object.resource.is_core("persistentvolumes") {
            volumes.insert(object.name.clone());
        }
        // Judged once, here: whoever meets the claim later knows less of its pods.
        if object.resource.is_core("persistentvolumeclaims")
            && context.csi.take_off(&object.namespace, &object.name)
            && let Ok(claim) = object.item.parse::<Claim>()
        {
            claims.insert((object.namespace.clone(), object.name.clone()), claim);
        }
    }
    let all: Vec<Key> = claims.keys().cloned().collect();
    let planned = plan_all(context, &seen, claims, &volumes).await;
    // The others are stored as they are, whoever comes to them.
    let waits = |(namespace, name): &&Key| {
        let mut taken = planned.iter().filter(|one| one.is_to_be_taken());
        taken.any(|one| one.record.namespace == *namespace && one.record.claim == *name)
    };
    for (namespace, name) in all.iter().filter(|key| !waits(key)) {
        context.csi.land(namespace, name);
    }
    planned
}

/// The same for a claim that an action has brought in, and that is visited by who asks. Nothing is done for
/// other items.
pub(in crate::backup) async fn prepare_one(context: &Context, object: &Object) -> Vec<Planned> {
    let seen = Volumes::default();
    seen.note(object);
    let is_claim = object.resource.is_core("persistentvolumeclaims");
    let Some(claim) = object.item.parse::<Claim>().ok().filter(|_| is_claim) else {
        return Vec::new();
    };
    let key = (object.namespace.clone(), object.name.clone());
    plan_all(context, &seen, HashMap::from([(key, claim)]), &HashSet::new()).await
}

/// What is to be done for claims.
async fn plan_all(
    context: &Context,
    seen: &Volumes,
    mut claims: HashMap<Key, Claim>,
    volumes: &HashSet<String>,
) -> Vec<Planned> {
    if claims.is_empty() {
        return Vec::new();
    }
    read_volumes(context, seen, &claims, volumes).await;
    let (mut planned, wishes) = (Vec::new(), context.wishes());
    if !seen.to_snapshot_by_csi(&wishes).is_empty() {
        outside::note(context, seen).await;
    }
    for wanted in seen.to_snapshot_by_csi(&wishes) {
        let key = (wanted.namespace.clone(), wanted.claim.clone());
        let Some(claim) = claims.remove(&key) else { continue };
        let record = Record {
            volume: wanted.volume,
            namespace: wanted.namespace,
            claim: wanted.claim,
            driver: wanted.driver,
            ..Record::default()
        };
        planned.extend(plan(context, record, claim).await);
    }
    group::plan(context, &mut planned).await;
    planned
}

/// Reads volumes of claims that are not among the items: a snapshot is of a claim, and that is.
async fn read_volumes(
    context: &Context,
    seen: &Volumes,
    claims: &HashMap<Key, Claim>,
    here: &HashSet<String>,
) {
    let wishes = context.wishes();
    let Some(resource) = context.resources.core("persistentvolumes") else { return };
    if !wishes.snapshot_volumes && wishes.policies.is_none() {
        return;
    }
    let names = claims.values().filter_map(|claim| claim.spec.volume_name.as_deref());
    let mut reads: Vec<BoxFuture<'_, ()>> = Vec::new();
    for name in names.filter(|name| !name.is_empty() && !here.contains(*name)) {
        let read = async move {
            match context.cluster.get(resource, "", name).await {
                Ok(Some(volume)) => seen.note_volume(&volume),
                Ok(None) => {}
                Err(error) => tracing::warn!(volume = name, "it cannot be read: {error}"),
            }
        };
        reads.push(read.boxed());
    }
    futures::stream::iter(reads).buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// What is to be done for a claim; none if somebody else has seen to its volume.
async fn plan(context: &Context, record: Record, claim: Claim) -> Option<Planned> {
    let Metadata { labels, annotations } = claim.metadata;
    let (labels, annotations) = (labels.unwrap_or_default(), annotations.unwrap_or_default());
    let group = labels.get(&context.request.volume_group_label_key).cloned();
    let group = group.filter(|group| !group.is_empty());
    let (plan, warnings) = (Plan::Lacking(String::new()), Vec::new());
    let planned = Planned { record, plan, warnings, annotations, group };
    plan_one(context, planned, &labels).await
}

async fn plan_one(
    context: &Context,
    mut planned: Planned,
    labels: &BTreeMap<String, String>,
) -> Option<Planned> {
    let record = &mut planned.record;
    let lacking = |planned, reason| Some(Planned { plan: Plan::Lacking(reason), ..planned });
    let Some(api) = Api::of(context) else { return lacking(planned, NO_API.to_owned()) };
    let classes = match context.csi.classes(context, &api).await {
        Ok(classes) => classes.iter().map(|(class, _)| class.clone()).collect::<Vec<_>>(),
        Err(reason) => return lacking(planned, reason),
    };
    let of_backup = context.request.backup.metadata.annotations.clone().unwrap_or_default();
    let choice = match class::choose(&record.driver, &planned.annotations, &of_backup, &classes) {
        Ok(choice) => choice,
        Err(lack) => return lacking(planned, lack.to_string()),
    };
    // From here on it is ours, and no plugin is asked.
    if !context.snapshots.claim(&record.volume) {
        return None;
    }
    record.class.clone_from(&choice.class.name);
    record.name = object::name(&record.claim, &snapshot::request_id(context, &record.volume));
    planned.warnings =
        choice.ignored.iter().map(|why| format!("{why}; {} is used", record.class)).collect();
    if context.request.snapshot_type(None) == SnapshotType::Cloud {
        let text = "the snapshot stays with its CSI driver: CSI snapshots are not uploaded, although \
                    the snapshot type is `cloud`";
        planned.warnings.push(text.to_owned());
    }
    let (backup, uid) = (context.request.name.as_str(), context.request.uid.as_str());
    planned.plan = match object::snapshot(record, labels, backup, uid) {
        Ok(item) => match context.csi.sight(context, &api).await.broken() {
            Some(reason) => Plan::Failed(reason),
            None => Plan::Ready(item),
        },
        Err(error) => Plan::Failed(format!("its VolumeSnapshot cannot be written: {error}")),
    };
    Some(planned)
}

/// Leaves volumes to plugins that know them and that their drivers cannot snapshot; of others that no
/// plugin knows, the reason of the driver is told.
pub(in crate::backup) fn or_plugins(
    planned: Vec<Planned>,
    by_plugins: &mut Vec<snapshot::Planned>,
) -> Vec<Planned> {
    let mut own = Vec::new();
    for one in planned {
        let volume = &one.record.volume;
        let of_plugin = by_plugins.iter().position(|plugin| plugin.is_of(volume));
        match (&one.plan, of_plugin) {
            (Plan::Lacking(_), Some(place)) if by_plugins[place].is_matched() => {}
            (_, place) => {
                if let Some(place) = place {
                    by_plugins.swap_remove(place);
                }
                own.push(one);
            }
        }
    }
    own
}

/// What is noted before snapshots are taken.
pub(in crate::backup) fn intents(planned: &[Planned]) -> Vec<Intent> {
    let intent = |one: &Planned| {
        let record = &one.record;
        let (name, is_group) = match &one.plan {
            Plan::Ready(_) => (&record.name, false),
            Plan::Grouped(group) => (&group.name, true),
            Plan::Failed(_) | Plan::Lacking(_) => return None,
        };
        let (namespace, name) = (record.namespace.clone(), name.clone());
        Some(Intent {
            plugin: BACKUPPER.to_owned(),
            item: record.claim_id().into(),
            csi: Some(CsiIntent { namespace, name, is_group }),
            ..Intent::default()
        })
    };
    planned.iter().filter_map(intent).collect()
}

/// The claims that are visited when their snapshots are taken.
pub(in crate::backup) fn claims(planned: &[Planned]) -> HashSet<ResourceIdentifier> {
    let ready = planned.iter().filter(|one| one.is_to_be_taken());
    ready.map(|one| one.record.claim_id()).collect()
}

/// What may be taken: nothing whose intent could not be noted.
pub(in crate::backup) fn if_noted(planned: Vec<Planned>, is_noted: bool) -> Vec<Planned> {
    let refused = |one: Planned| match one.plan {
        Plan::Ready(_) | Plan::Grouped(_) if !is_noted => {
            let reason = "the journal of the backup cannot be written".to_owned();
            Planned { plan: Plan::Failed(reason), ..one }
        }
        Plan::Ready(_) | Plan::Grouped(_) | Plan::Failed(_) | Plan::Lacking(_) => one,
    };
    planned.into_iter().map(refused).collect()
}

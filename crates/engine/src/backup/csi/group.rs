//! Claims that share a label are snapshotted together, by one VolumeGroupSnapshot.
//!
//! The driver takes all snapshots of the group at once, and the snapshot controller creates a VolumeSnapshot with its
//! content for each. The group stays until the end of the backup: only through it can its snapshots be deleted at the
//! driver, all or none.

mod lasting_error;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::{annotation, label};
use bowline_plugin::Item;
use futures::TryStreamExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::SnapshotResources;
use super::class::Class;
use super::create::{self, CsiCreateFailure};
use super::failure::{CsiSnapshotError, GroupClassError, GroupMembersError, GroupPlanError};
use super::plan::{CsiPlan, PlannedCsiSnapshot};
use crate::backoff::Backoff;
use crate::backup::{Context, snapshot};
use crate::cluster::watch::{self, WaitOutcome};
use crate::cluster::{self, Query};
use crate::csi::object::{Content, Snapshot};
use crate::csi::{GROUP_CLASSES, GROUP_CONTENTS, GROUPS, group_resource};
use crate::failpoint::{self, Failpoint};
use crate::item::Object;
use crate::resource::{Resource, Resources};
use crate::snapshotter::hashed_object_name;
use lasting_error::LastingError;

/// Time the controller may take to create the VolumeSnapshots of a group that its driver has taken.
const MEMBERS_TIMEOUT: Duration = Duration::from_mins(1);
/// The pause between two reads of them; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The resources of the group snapshot API, in the version that the cluster prefers.
pub(super) struct GroupResources {
    pub(super) groups: Arc<Resource>,
    pub(super) contents: Arc<Resource>,
    classes: Arc<Resource>,
}

impl GroupResources {
    /// None if the cluster does not serve them.
    pub(super) fn of(resources: &Resources) -> Option<Self> {
        let find = |plural| resources.find(&group_resource(plural)).cloned();
        Some(Self {
            groups: find(GROUPS)?,
            contents: find(GROUP_CONTENTS)?,
            classes: find(GROUP_CLASSES)?,
        })
    }
}

/// A VolumeGroupSnapshot to create.
#[derive(Clone)]
pub(super) struct PlannedGroup {
    pub(super) namespace: String,
    pub(super) name: String,
    item: Item,
}

/// A VolumeGroupSnapshot that was created, and that its driver has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CreatedGroup {
    pub(super) namespace: String,
    pub(super) name: String,
    uid: String,
}

/// Key of a group: namespace, value of the label, driver.
type GroupKey = (String, String, String);

/// Puts claims that belong together into groups. Where that is impossible, they stay as they are, and that is
/// reported.
pub(super) async fn plan(context: &Context, planned: &mut [PlannedCsiSnapshot]) {
    let mut keys: BTreeMap<GroupKey, Vec<usize>> = BTreeMap::new();
    for (place, one) in planned.iter().enumerate() {
        if let (CsiPlan::Ready(_), Some(value)) = (&one.plan, &one.group) {
            let record = &one.record;
            let key = (record.namespace.clone(), value.clone(), record.driver.clone());
            keys.entry(key).or_default().push(place);
        }
    }
    if keys.is_empty() {
        return;
    }
    let kinds = GroupResources::of(&context.resources);
    for (key, places) in keys {
        let group = match &kinds {
            Some(kinds) => {
                let of_group: Vec<&PlannedCsiSnapshot> =
                    places.iter().map(|place| &planned[*place]).collect();
                plan_group(context, kinds, &key, &of_group).await
            }
            None => Err(GroupPlanError::Api),
        };
        for place in places {
            match &group {
                Ok(group) => planned[place].plan = CsiPlan::Grouped(group.clone()),
                Err(error) => planned[place].warnings.push(format!(
                    "the claim is snapshotted together with its volume group, but not by one \
                     VolumeGroupSnapshot: {error}"
                )),
            }
        }
    }
}

async fn plan_group(
    context: &Context,
    kinds: &GroupResources,
    (namespace, value, driver): &GroupKey,
    planned: &[&PlannedCsiSnapshot],
) -> Result<PlannedGroup, GroupPlanError> {
    let label_key = context.request.volume_group_label_key.as_str();
    let claims = planned.iter().map(|one| one.record.claim.clone()).collect();
    check_members(&claims, &claims_with_label(context, namespace, label_key, value).await?)?;
    let listed = context.cluster.list(&kinds.classes, Query::default());
    let listed: Result<Vec<Object>, cluster::Error> = listed.try_collect().await;
    let listed = listed.map_err(GroupPlanError::ListClasses)?;
    let classes: Vec<Class> =
        listed.iter().filter_map(|object| Class::read(object.item.json()).ok()).collect();
    let of_backup = context.request.backup.metadata.annotations.clone().unwrap_or_default();
    let of_claim = planned.first().map(|first| &first.annotations);
    let class = choose(driver, of_claim.unwrap_or(&BTreeMap::new()), &of_backup, &classes)?;
    let request = snapshot::request_id(context, &format!("{namespace}/{value}/{driver}"));
    let name = hashed_object_name(&format!("velero-{value}"), &request);
    let backup = label::value(context.request.name.as_str());
    let item = Item::from_object(&json!({
        "apiVersion": kinds.groups.api_version(),
        "kind": kinds.groups.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                label::BACKUP_NAME: backup,
                label::BACKUP_UID: context.request.uid.as_str(),
                label_key: value,
            },
        },
        "spec": {
            "volumeGroupSnapshotClassName": class,
            "source": { "selector": { "matchLabels": { label_key: value } } },
        },
    }));
    Ok(PlannedGroup { namespace: namespace.clone(), name, item: item? })
}

/// The claims that a group would include: all with its label, whether or not the backup includes them.
async fn claims_with_label(
    context: &Context,
    namespace: &str,
    key: &str,
    value: &str,
) -> Result<BTreeSet<String>, GroupPlanError> {
    let resource = context.resources.core("persistentvolumeclaims");
    let resource = resource.ok_or(GroupPlanError::NoClaims)?;
    let query = Query {
        namespace: Some(namespace.to_owned()),
        label_selector: format!("{key}={value}"),
        ..Query::default()
    };
    let listed = context.cluster.list(resource, query);
    let names: Result<BTreeSet<String>, cluster::Error> =
        listed.map_ok(|claim| claim.name).try_collect().await;
    names.map_err(GroupPlanError::ListClaims)
}

/// Checks that a group would include exactly the planned claims.
fn check_members(
    planned: &BTreeSet<String>,
    labelled: &BTreeSet<String>,
) -> Result<(), GroupMembersError> {
    let others: Vec<String> = labelled.difference(planned).cloned().collect();
    if !others.is_empty() {
        return Err(GroupMembersError::Others(others));
    }
    match planned.difference(labelled).next() {
        Some(claim) => Err(GroupMembersError::Lost(claim.clone())),
        None => Ok(()),
    }
}

/// Chooses the class of a group, by Velero's rules: the one that the claim names, the one that the Backup names for
/// the driver, or the labelled one. The only class of the driver needs no label.
fn choose(
    driver: &str,
    claim: &BTreeMap<String, String>,
    backup: &BTreeMap<String, String>,
    classes: &[Class],
) -> Result<String, GroupClassError> {
    let of_backup = format!("{}{driver}", annotation::VOLUME_GROUP_SNAPSHOT_CLASS_PREFIX);
    let named =
        claim.get(annotation::VOLUME_GROUP_SNAPSHOT_CLASS).or_else(|| backup.get(&of_backup));
    let mut of_driver = classes.iter().filter(|class| class.driver == driver);
    if let Some(name) = named.filter(|name| !name.is_empty()) {
        let found = of_driver.find(|class| class.name == *name);
        return found.map(|class| class.name.clone()).ok_or_else(|| GroupClassError::NotFound {
            name: name.clone(),
            driver: driver.to_owned(),
        });
    }
    let of_driver: Vec<&Class> = of_driver.collect();
    let is_labelled = |class: &&&Class| {
        class.labels.get(label::VOLUME_GROUP_SNAPSHOT_CLASS).is_some_and(|value| value == "true")
    };
    let labelled: Vec<&&Class> = of_driver.iter().filter(is_labelled).collect();
    match (labelled.as_slice(), of_driver.as_slice()) {
        ([class], _) => Ok(class.name.clone()),
        ([], [class]) => Ok(class.name.clone()),
        ([], []) => Err(GroupClassError::NoClass(driver.to_owned())),
        _ => Err(GroupClassError::Ambiguous(driver.to_owned())),
    }
}

/// Creates a VolumeGroupSnapshot, and waits until its driver has taken all its snapshots.
pub(super) async fn create(
    context: &Context,
    group: &PlannedGroup,
) -> Result<CreatedGroup, CsiCreateFailure> {
    let failed = |may_exist| move |error| CsiCreateFailure { error, may_exist };
    let kinds = GroupResources::of(&context.resources);
    let kinds = kinds.ok_or_else(|| failed(false)(CsiSnapshotError::GroupApi))?;
    failpoint::hit(Failpoint::CsiSnapshotCreate);
    let name = (group.namespace.as_str(), group.name.as_str());
    let created = create::create(context, &kinds.groups, name, &group.item).await;
    failpoint::hit(Failpoint::CsiSnapshotCreated);
    let uid = created.map_err(|error| failed(true)(CsiSnapshotError::CreateGroup(error)))?;
    let created =
        CreatedGroup { namespace: group.namespace.clone(), name: group.name.clone(), uid };
    let limit = context.request.csi_snapshot_timeout();
    let taken = tokio::select! {
        taken = wait_for_handle(context, &kinds, &created, limit) => taken,
        () = context.cancel.cancelled() => Err(CsiSnapshotError::Canceled),
    };
    failpoint::hit(Failpoint::CsiSnapshotTaken);
    taken.map_err(failed(true))?;
    Ok(created)
}

/// Waits for the handle of a group.
async fn wait_for_handle(
    context: &Context,
    kinds: &GroupResources,
    group: &CreatedGroup,
    limit: Duration,
) -> Result<(), CsiSnapshotError> {
    let deadline = Instant::now() + limit;
    let own = Query {
        namespace: Some(group.namespace.clone()),
        field_selector: format!("metadata.name={}", group.name),
        ..Query::default()
    };
    let (of_content, of_group) = (LastingError::default(), LastingError::default());
    let contents = watch::wait_until(
        &*context.cluster,
        &kinds.contents,
        Query::default(),
        deadline,
        |objects| {
            let mut own = objects.iter().filter(|content| is_content_of(content, group));
            own.any(|one| of_content.record(one)).then_some(())
        },
    );
    let groups = watch::wait_until(&*context.cluster, &kinds.groups, own, deadline, |objects| {
        for one in objects.iter() {
            // The content shows whether the group is taken.
            of_group.record(one);
        }
        None
    });
    let waited = tokio::select! {
        waited = contents => waited,
        waited = groups => waited,
        error = of_content.wait_until_lasting() => return Err(CsiSnapshotError::Driver(error)),
        error = of_group.wait_until_lasting() => return Err(CsiSnapshotError::Driver(error)),
    };
    match waited {
        Ok(WaitOutcome::Found(())) => Ok(()),
        Ok(WaitOutcome::TimedOut) => Err(CsiSnapshotError::GroupTimedOut(limit)),
        Err(error) => Err(CsiSnapshotError::WatchGroups(error)),
    }
}

fn is_content_of(content: &Value, group: &CreatedGroup) -> bool {
    content["spec"]["volumeGroupSnapshotRef"]["uid"] == group.uid
}

/// The snapshots of a group.
#[derive(Default)]
pub(super) struct GroupMembers {
    /// The VolumeSnapshot and the content of each claim.
    pub(super) of_claims: BTreeMap<String, (Snapshot, Content)>,
    /// Reason why some are missing, if the cluster reported one.
    pub(super) error: Option<String>,
}

/// Finds the snapshots of a group. The controller creates their objects one by one, when the driver has taken all of
/// them.
pub(super) async fn find_members(
    context: &Context,
    api: &SnapshotResources,
    group: &CreatedGroup,
    claims: &BTreeSet<String>,
) -> GroupMembers {
    let deadline = Instant::now() + MEMBERS_TIMEOUT;
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut members = GroupMembers::default();
    loop {
        match read_members(context, api, group, &mut members).await {
            Ok(()) => members.error = None,
            Err(error) => members.error = Some(error.to_string()),
        }
        let has_all = claims.iter().all(|claim| members.of_claims.contains_key(claim));
        if has_all || Instant::now() >= deadline || context.cancel.is_cancelled() {
            return members;
        }
        backoff.wait().await;
    }
}

async fn read_members(
    context: &Context,
    api: &SnapshotResources,
    group: &CreatedGroup,
    members: &mut GroupMembers,
) -> Result<(), cluster::Error> {
    let query = Query { namespace: Some(group.namespace.clone()), ..Query::default() };
    let mut listed = context.cluster.list(&api.snapshots, query);
    while let Some(object) = listed.try_next().await? {
        let Ok(snapshot) = Snapshot::read(&object.item) else { continue };
        let Some(claim) = snapshot.claim().filter(|_| snapshot.is_owned_by(&group.uid)) else {
            continue;
        };
        if members.of_claims.contains_key(claim) {
            continue;
        }
        let found = context.cluster.get(&api.contents, "", &snapshot.content()).await?;
        let read = found.and_then(|object| Content::read(&object.item).ok());
        if let Some(content) = read.filter(|content| content.handle().is_some()) {
            members.of_claims.insert(claim.to_owned(), (snapshot.clone(), content));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

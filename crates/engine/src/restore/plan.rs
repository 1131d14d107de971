//! What a restore would do, found out without doing it.
//!
//! Items go through the same stages as in a restore, up to the object that would be written. Then the
//! API server is asked with a dry-run request: what it says is what it would say, with its defaults,
//! its validation and its admission. Out comes an [`Entry`] for each item, with a [`Verdict`] and the
//! reason.
//!
//! # What is not validated
//! An object that the API server cannot judge before others are there: in a namespace that does not
//! exist yet, of a kind whose definition is restored with it, a pod whose service account is. The
//! same goes for what the user may not do, or a webhook that does not take part in dry runs.
//!
//! # What a plan cannot know
//! - What plugins make of snapshots: that a volume would be made from one is told, and nobody is asked.
//! - What actions of plugins do, and the built-in ones that look something up ([`Plan::not_run`]).
//! - What many objects come to together, such as a quota that the last one of them exceeds.
//! - What happens in the cluster meanwhile.

mod place;
mod refusal;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_plugin::{Item, ResourceIdentifier, RestoreItemAction};
use bowline_store::file::Results;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::action::csi::{self, Csi};
use super::apply::{self, Decision};
use super::download::Volumes;
use super::item::prepare::{Found, Ready, Shaped, Stored};
use super::item::{Visitor, Why, Working, room};
use super::once::Turn;
use super::order::{self, Priorities};
use super::request::{Existing, Request};
use super::unpack::Contents;
use super::{
    Context, Fatal, Options, Parts, Progress, World, action, assemble, discover, origin, visit_all,
    volume,
};
use crate::cluster::{Cluster, Door, Error};
use crate::item::Object;
use crate::report::Report;
use crate::resource::{GroupResource, Resource, Resources};
use crate::selection::{self, Action};
use place::{Place, Places};
use refusal::Coming;

/// What a plan is made from.
pub struct Run {
    /// What is to be restored.
    pub request: Request,
    /// Into what. It must keep nothing of what is written:
    /// [`ApiServer::dry_run`](crate::cluster::ApiServer::dry_run).
    pub cluster: Arc<dyn Cluster>,
    /// The archive of the backup.
    pub contents: Contents,
    /// What the backup says of volumes.
    pub volumes: Volumes,
    /// How much at a time.
    pub options: Options,
}

/// What a restore would do.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What would become of each item, in the order of the restore.
    pub entries: Vec<Entry>,
    /// What the restore would tell beyond that.
    pub results: Results,
    /// The built-in actions that select some of the items and were not run.
    pub not_run: Vec<String>,
}

impl Plan {
    /// How many items have a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.entries.iter().filter(|entry| entry.verdict == verdict).count()
    }

    /// Whether something would go wrong.
    pub fn would_fail(&self) -> bool {
        self.count(Verdict::Refuse) > 0 || self.results.errors.count() > 0
    }
}

/// What would become of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is in the backup.
    pub id: ResourceIdentifier,
    /// What it becomes, as far as that is known.
    pub target: Option<Target>,
    /// What would happen to it.
    pub verdict: Verdict,
    /// Why. Empty where there is nothing to say.
    pub reason: String,
}

/// What an item becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The version of its API.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for what lives in none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What would happen to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It would be created.
    Create,
    /// It is there and would be changed.
    Update,
    /// It would be left as it is, or left out.
    Skip,
    /// It cannot be restored.
    Refuse,
    /// Nobody can say yet.
    NotValidated,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Create, Self::Update, Self::Skip, Self::Refuse, Self::NotValidated];
}

/// Finds out what a restore would do.
pub async fn run(run: Run, now: Timestamp) -> Result<Plan, Fatal> {
    // Boxed, since everything that a restore needs goes through it.
    Box::pin(find_out(run, now)).await
}

async fn find_out(run: Run, now: Timestamp) -> Result<Plan, Fatal> {
    let Run { request, cluster, contents, volumes, options } = run;
    let report = Arc::new(Report::default());
    let world = discover(&*cluster, &request, &report).await?;
    let (resources, namespace) = (&world.resources, &options.namespace);
    let mut others = action::restore_item_actions(&cluster, resources, namespace, &request.restore);
    others.retain(|action| !action::is_pure(&action.name));
    let others = selection::ask(others, |plugin| plugin.applies_to(), resources, &report).await;
    let (contents, volumes) = (Arc::new(contents), Arc::new(volumes));
    let csi = Csi::new(&cluster, resources, &contents, &volumes, &request, &report);
    let csi = Arc::new(csi.dry_run());
    let mut actions = action::pure_restore_item_actions(&request.restore);
    actions.extend(csi::actions(&csi));
    let planner = Arc::new(Planner { others, places: Places::default(), notes: Mutex::default() });
    let parts = Parts {
        visitor: Arc::clone(&planner) as _,
        actions,
        request,
        cluster,
        contents,
        volumes,
        csi,
        world,
        options,
        progress: Arc::new(Progress::default()),
        notes: None,
        maker: None,
        stop: CancellationToken::new(),
        cancel: CancellationToken::new(),
    };
    let context = Arc::new(assemble(parts, Arc::clone(&report), now).await?);
    visit_all(&context).await?;
    let Notes { mut entries, not_run, .. } = mem::take(&mut *planner.notes());
    sort(&mut entries, &context.options.priorities, &context.world().resources);
    Ok(Plan { entries, results: report.results(), not_run: not_run.into_iter().collect() })
}

/// Puts entries in the order of the restore; within a step by their names.
fn sort(entries: &mut [Entry], priorities: &Priorities, resources: &Resources) {
    let kind = |entry: &Entry| GroupResource::new(&entry.id.group, &entry.id.resource);
    let kinds: BTreeSet<GroupResource> = entries.iter().map(kind).collect();
    let steps = order::steps(&kinds, priorities, resources);
    let ordered = steps.into_iter().flat_map(|step| step.kinds);
    let ranks: HashMap<GroupResource, usize> =
        ordered.enumerate().map(|(rank, kind)| (kind, rank)).collect();
    entries.sort_by_cached_key(|entry| {
        (ranks.get(&kind(entry)).copied(), entry.id.namespace.clone(), entry.id.name.clone())
    });
}

/// What was found out about an item.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    verdict: Verdict,
    reason: String,
}

impl Finding {
    fn new(verdict: Verdict, reason: impl Into<String>) -> Self {
        Self { verdict, reason: reason.into() }
    }
}

/// Looks at items instead of restoring them.
struct Planner {
    /// Actions that are not run.
    others: Vec<Action<dyn RestoreItemAction>>,
    places: Places,
    notes: Mutex<Notes>,
}

/// What was found out so far.
#[derive(Default)]
struct Notes {
    entries: Vec<Entry>,
    not_run: BTreeSet<String>,
    coming: Coming,
    /// The places of items that others may come to as well.
    taken: HashMap<(GroupResource, String, String), ResourceIdentifier>,
}

/// What would become of an item whose place another item of the same restore takes.
fn beside(item: &Working<'_>, rival: &ResourceIdentifier) -> Finding {
    let Working { context, id, .. } = item;
    let is_claim = id.group.is_empty() && id.resource == "persistentvolumeclaims";
    if is_claim && volume::has_data(context, id) {
        return Finding::new(Verdict::Refuse, apply::without_data(&rival.to_string()));
    }
    match context.request.existing {
        Existing::Update => Finding::new(
            Verdict::Update,
            format!("it would replace {rival}, which is restored to the same place"),
        ),
        Existing::Unset | Existing::Keep => Finding::new(
            Verdict::Skip,
            format!("{rival} is restored to the same place, and would stay as it is"),
        ),
    }
}

impl Visitor for Planner {
    fn visit<'a>(
        &'a self,
        context: &'a Arc<Context>,
        world: &'a Arc<World>,
        id: ResourceIdentifier,
        why: Why<'a>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let _room = room(context, &id, why).await;
            let Turn::Mine(working) = context.once.take(&id, why.parent()).await else { return };
            let mut item = Working::new(context, world, &id);
            let finding = match item.find(why) {
                Ok(Found::LeftOut(_)) => return working.leave(),
                Ok(Found::Ended(reason)) => Finding::new(Verdict::Skip, reason.to_string()),
                Ok(Found::Object(stored)) => match self.not_served(&item) {
                    Some(finding) => finding,
                    None => self.look_at(&mut item, *stored).await,
                },
                Ok(Found::Namespace) => match self.look_at_namespace(&item).await {
                    Some(finding) => finding,
                    None => return,
                },
                Err(error) => self.not_found(&item, error),
            };
            let target = item.target.as_ref();
            let target = target.map(|(resource, namespace, name)| (resource, namespace, name));
            self.note(&id, target, finding);
        })
    }
}

impl Planner {
    /// Why an item cannot be read. One of a kind that comes with the restore can be, later.
    fn not_found(&self, item: &Working<'_>, error: String) -> Finding {
        let Working { context, world, id, .. } = item;
        let kind = GroupResource::new(&id.group, &id.resource);
        let stored = context.contents.kind(&kind);
        let is_served = stored.is_none_or(|stored| world.versions.choose(&kind, stored).is_ok());
        if !is_served && self.notes().coming.defines(&kind) {
            let reason = "its kind is not there before its definition is restored";
            return Finding::new(Verdict::NotValidated, reason);
        }
        Finding::new(Verdict::Refuse, error)
    }

    /// What is to be said of an item of a kind that the cluster does not serve yet, if it will.
    fn not_served(&self, item: &Working<'_>) -> Option<Finding> {
        let error = item.not_served.as_ref()?;
        let finding = self.not_found(item, error.to_string());
        (finding.verdict == Verdict::NotValidated).then_some(finding)
    }

    async fn look_at(&self, item: &mut Working<'_>, stored: Stored) -> Finding {
        self.note_actions(&stored.object);
        let (original, target) = (&item.id.namespace, stored.namespace.clone());
        let place = match target.as_str() {
            "" => Place::There,
            target => self.place(item.context, original, target).await,
        };
        if let Place::Refused(reason) = place {
            return Finding::new(Verdict::Refuse, reason);
        }
        let ready = match item.shape(stored).await {
            Ok(Shaped::Ready(ready)) => *ready,
            Ok(Shaped::Skipped(reason)) => return Finding::new(Verdict::Skip, reason),
            Ok(Shaped::Waiting(reason)) => return Finding::new(Verdict::NotValidated, reason),
            Err(error) => return Finding::new(Verdict::Refuse, error),
        };
        let rival = self.take(item.id, &ready);
        let finding = match (rival, place.reason(&target)) {
            (Some(rival), _) => beside(item, &rival),
            (None, Some(reason)) => Finding::new(Verdict::NotValidated, reason),
            (None, None) => self.ask(item.context, &ready).await,
        };
        match (&finding, &item.brought) {
            (Finding { verdict: Verdict::Create, .. }, Some(brought)) => {
                Finding::new(Verdict::Create, brought.told.clone())
            }
            _ => finding,
        }
    }

    /// Takes the place of an item. Returns the item that has it, if another does.
    fn take(&self, id: &ResourceIdentifier, ready: &Ready) -> Option<ResourceIdentifier> {
        // What notes nothing is the only one that comes to its place.
        origin::of(&ready.value)?;
        let name = ready.value.pointer("/metadata/name").and_then(Value::as_str);
        let place = (
            ready.resource.id.clone(),
            ready.namespace.clone(),
            name.unwrap_or_default().to_owned(),
        );
        let mut notes = self.notes();
        let holder = notes.taken.entry(place).or_insert_with(|| id.clone());
        (holder != id).then(|| holder.clone())
    }

    /// None if what is to be said of it is said already.
    async fn look_at_namespace(&self, item: &Working<'_>) -> Option<Finding> {
        let (_, _, target) = item.target.as_ref()?;
        match self.place(item.context, &item.id.name, target).await {
            Place::There => Some(Finding::new(Verdict::Skip, "it exists")),
            Place::Leaving => {
                let reason = "it is being deleted; the restore would wait for that";
                Some(Finding::new(Verdict::NotValidated, reason))
            }
            Place::Coming | Place::Refused(_) => None,
        }
    }

    /// Asks the API server what it would do with an object.
    async fn ask(&self, context: &Context, ready: &Ready) -> Finding {
        let Ready { resource, namespace, value, .. } = ready;
        let item = match Item::from_object(value) {
            Ok(item) => item,
            Err(error) => return Finding::new(Verdict::Refuse, error.to_string()),
        };
        let create = || context.cluster.create(resource, namespace, &item);
        match context.pace.ask(create).await {
            Ok(_) => Finding::new(Verdict::Create, ""),
            Err(error) if apply::may_be_there(&error) => self.compare(context, ready, error).await,
            Err(error) => self.judge(&error),
        }
    }

    /// Compares an object with the one that seems to be there.
    async fn compare(&self, context: &Context, ready: &Ready, refused: Error) -> Finding {
        let Ready { resource, namespace, value, .. } = ready;
        let name = value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let get = || context.cluster.get(resource, namespace, name);
        let found: Value = match context.pace.ask(get).await {
            Ok(Some(found)) => match found.item.parse() {
                Ok(found) => found,
                Err(error) => return Finding::new(Verdict::Refuse, error.to_string()),
            },
            Ok(None) => return self.judge(&refused),
            Err(error) => return self.judge(&error),
        };
        let decision = apply::decide(&context.request, context.began, resource, value, &found);
        let (patch, reason) = match decision {
            Decision::Ours | Decision::Same { labels: None } => {
                return Finding::new(Verdict::Skip, "it exists and is the same");
            }
            Decision::Same { labels: Some(_) } => {
                let reason = "it exists and is the same; only the labels of the restore would be \
                              put on it";
                return Finding::new(Verdict::Skip, reason);
            }
            Decision::Keep(fields) => {
                let fields = fields.join(", ");
                let reason = format!("it exists and would stay as it is, but differs in {fields}");
                return Finding::new(Verdict::Skip, reason);
            }
            Decision::Add(patch) => {
                let fields: Vec<&str> =
                    patch.as_object().into_iter().flatten().map(|(name, _)| &**name).collect();
                let reason = format!("it exists and lacks something in {}", fields.join(", "));
                (patch, reason)
            }
            Decision::Change { fields, patch, .. } => {
                (patch, format!("it exists and differs in {}", fields.join(", ")))
            }
        };
        let send = || context.cluster.patch(resource, namespace, name, Door::Whole, &patch);
        match context.pace.ask(send).await {
            Ok(_) => Finding::new(Verdict::Update, reason),
            Err(error) => {
                let Finding { verdict, reason: why } = self.judge(&error);
                Finding::new(verdict, format!("{reason}, and cannot be changed: {why}"))
            }
        }
    }

    fn judge(&self, error: &Error) -> Finding {
        refusal::judge(error, &self.notes().coming)
    }

    fn note(
        &self,
        id: &ResourceIdentifier,
        target: Option<(&Arc<Resource>, &String, &String)>,
        Finding { verdict, reason }: Finding,
    ) {
        let mut notes = self.notes();
        let target = target.map(|(resource, namespace, name)| {
            if matches!(verdict, Verdict::Create | Verdict::Update | Verdict::NotValidated) {
                notes.coming.add(&resource.id, namespace, name);
            }
            Target {
                api_version: resource.api_version(),
                kind: resource.kind.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
            }
        });
        notes.entries.push(Entry { id: id.clone(), target, verdict, reason });
    }

    /// Notes the actions that a restore would show an object to.
    fn note_actions(&self, object: &Object) {
        for action in self.others.iter().filter(|action| action.selects(object)) {
            self.notes().not_run.insert(action.name.to_string());
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

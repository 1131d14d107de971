use std::time::Duration;

use async_trait::async_trait;
use bowline_api::Restore;
use bowline_plugin::{
    Code, Encoded, Error, Item, OperationId, ResourceSelector, RestoreItemAction, RestoreOutput,
    Result as Answer, Wait,
};
use bowline_store::file::Results;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::action::csi::CsiRestoreContext;
use super::super::context::{ContextInputs, assemble, discover};
use super::super::order::Priorities;
use super::super::{Options, Progress, visit_all};
use super::*;
use crate::action::NamedAction;
use crate::cluster::{Cluster, Fake};
use crate::download::BackupVolumes;
use crate::report::Report;
use crate::testing::{self, ValidRestore};
use crate::unpack::{self, Contents, UnpackLimits};

const SECOND: Duration = Duration::from_secs(1);
/// Time that the server waits if the action does not specify one.
const SERVER_TIMEOUT: Duration = Duration::from_secs(4);

/// An action that adds secrets to the ConfigMap `parent` and makes it wait for them.
struct SlowReadinessAction {
    secrets: &'static [&'static str],
    timeout: Option<Duration>,
    answers: Box<Answers>,
    readiness_calls: Mutex<Vec<(Duration, Vec<String>)>>,
    start: Instant,
}

/// The answer to a readiness check, by the number of earlier checks and the time.
type Answers = dyn Fn(usize, Duration) -> BoxFuture<'static, Answer<bool>> + Send + Sync;

impl SlowReadinessAction {
    fn new(
        timeout: Option<Duration>,
        answers: impl Fn(usize, Duration) -> BoxFuture<'static, Answer<bool>> + Send + Sync + 'static,
    ) -> Self {
        let (answers, start) = (Box::new(answers), Instant::now());
        Self { secrets: &["needed"], timeout, answers, readiness_calls: Mutex::default(), start }
    }

    /// An action whose items become ready after a time.
    fn ready_after(timeout: Option<Duration>, after: Duration) -> Self {
        Self::new(timeout, move |_, now| Box::pin(async move { Ok(now >= after) }))
    }

    /// An action that fails this often before its items are ready.
    fn failing(errors: usize, error: Error) -> Self {
        let answer = move |before, _| {
            let answer = if before < errors { Err(error.clone()) } else { Ok(true) };
            Box::pin(std::future::ready(answer)) as _
        };
        Self::new(None, answer)
    }

    /// Times of the checks.
    fn times(&self) -> Vec<Duration> {
        self.readiness_calls.lock().iter().map(|(time, _)| *time).collect()
    }
}

#[async_trait]
impl RestoreItemAction for SlowReadinessAction {
    async fn applies_to(&self) -> Answer<ResourceSelector> {
        Ok(ResourceSelector::resources(["configmaps"]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Answer<RestoreOutput> {
        let object: Value = item.parse().unwrap();
        let mut output = RestoreOutput::unchanged(item);
        if object["metadata"]["name"] == "parent" {
            output.additional_items = self.secrets.iter().map(|name| id("secrets", name)).collect();
            output.wait = Some(Wait { timeout: self.timeout });
        }
        Ok(output)
    }

    async fn are_additional_items_ready(
        &self,
        items: &[ResourceIdentifier],
        _: &Encoded<Restore>,
    ) -> Answer<bool> {
        let now = self.start.elapsed();
        let before = {
            let mut calls = self.readiness_calls.lock();
            calls.push((now, items.iter().map(ToString::to_string).collect()));
            calls.len() - 1
        };
        (self.answers)(before, now).await
    }
}

/// An action whose plugin takes three seconds per item, and is killed by the ConfigMap `parent`: in the middle of that
/// time, or at each readiness check.
struct CrashingAction {
    crashes_on_readiness: bool,
    crashes: watch::Sender<usize>,
}

impl CrashingAction {
    fn shared(crashes_on_readiness: bool) -> Arc<dyn RestoreItemAction> {
        Arc::new(Self { crashes_on_readiness, crashes: watch::Sender::default() })
    }

    fn crash(&self) -> Error {
        self.crashes.send_modify(|deaths| *deaths += 1);
        Error::new(Code::Unavailable, "it has died")
    }
}

#[async_trait]
impl RestoreItemAction for CrashingAction {
    async fn applies_to(&self) -> Answer<ResourceSelector> {
        Ok(ResourceSelector::resources(["configmaps"]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Answer<RestoreOutput> {
        let object: Value = item.parse().unwrap();
        let mut output = RestoreOutput::unchanged(item);
        let mut deaths = self.crashes.subscribe();
        if object["metadata"]["name"] == "parent" {
            tokio::time::sleep(SECOND).await;
            if !self.crashes_on_readiness {
                return Err(self.crash());
            }
            output.wait = Some(Wait { timeout: Some(60 * SECOND) });
            return Ok(output);
        }
        tokio::select! {
            biased;
            _ = deaths.changed() => Err(Error::new(Code::Unavailable, "it has died")),
            () = tokio::time::sleep(3 * SECOND) => Ok(output),
        }
    }

    async fn are_additional_items_ready(
        &self,
        _: &[ResourceIdentifier],
        _: &Encoded<Restore>,
    ) -> Answer<bool> {
        Err(self.crash())
    }
}

fn id(resource: &str, name: &str) -> ResourceIdentifier {
    ResourceIdentifier {
        group: String::new(),
        resource: resource.into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

/// An archive with two ConfigMaps, a Secret that one of them needs, and a Service for a later step.
fn archive() -> Contents {
    let objects = [
        ("configmaps", "ConfigMap", "parent"),
        ("configmaps", "ConfigMap", "sibling"),
        ("secrets", "Secret", "needed"),
        ("services", "Service", "late"),
    ];
    let object = |(resource, kind, name): (&'static str, &str, &str)| {
        let metadata = json!({"name": name, "namespace": "shop"});
        (resource, json!({"apiVersion": "v1", "kind": kind, "metadata": metadata}))
    };
    let packed = testing::archive(&objects.map(object));
    unpack::unpack(&*packed, &std::env::temp_dir(), UnpackLimits::default()).unwrap()
}

/// Outcome of a restore.
struct Outcome {
    cluster: Arc<Fake>,
    results: Results,
    elapsed: Duration,
    action: Arc<SlowReadinessAction>,
}

impl Outcome {
    fn has(&self, resource: &str, name: &str) -> bool {
        self.cluster.object(resource, "shop", name).is_some()
    }

    /// The only error, which concerns the parent.
    fn error(&self) -> &str {
        let errors = &self.results.errors;
        assert_eq!(errors.count(), 1, "{errors:?}");
        errors.namespaces["shop"][0].strip_prefix("configmaps/parent: ").unwrap()
    }
}

async fn restore(action: SlowReadinessAction) -> Outcome {
    restore_with(action, json!({}), CancellationToken::new()).await
}

async fn restore_with(
    action: SlowReadinessAction,
    spec: Value,
    stop: CancellationToken,
) -> Outcome {
    let action = Arc::new(action);
    let named = NamedAction::new("example.io/needy".parse().unwrap(), Arc::clone(&action) as _);
    let started_at = Instant::now();
    let (cluster, results) = Box::pin(run(named, spec, stop)).await;
    Outcome { cluster, results, elapsed: started_at.elapsed(), action }
}

async fn run(
    action: NamedAction<dyn RestoreItemAction>,
    spec: Value,
    stop: CancellationToken,
) -> (Arc<Fake>, Results) {
    let (fake, results, _) = Box::pin(run_with_operations(action, spec, stop)).await;
    (fake, results)
}

async fn run_with_operations(
    action: NamedAction<dyn RestoreItemAction>,
    spec: Value,
    stop: CancellationToken,
) -> (Arc<Fake>, Results, Vec<Operation>) {
    let fake = Arc::new(Fake::usual());
    let cluster: Arc<dyn Cluster> = Arc::clone(&fake) as _;
    let report = Arc::new(Report::default());
    let started_at = Timestamp::UNIX_EPOCH;
    let request = ValidRestore { started_at, ..ValidRestore::new(spec) }.request();
    let served_api = discover(&*cluster, &request, &report).await.unwrap();
    let options = Options {
        requests: 4,
        items: 8,
        scratch: std::env::temp_dir(),
        unpack_limits: UnpackLimits::default(),
        namespace: "velero".into(),
        priorities: Priorities::default(),
        resource_timeout: SERVER_TIMEOUT,
        terminating_timeout: SECOND,
    };
    let (contents, volumes) = (Arc::new(archive()), Arc::new(BackupVolumes::default()));
    let csi = CsiRestoreContext::new(
        &cluster,
        &served_api.resources,
        &contents,
        &volumes,
        &request,
        &report,
    );
    let inputs = ContextInputs {
        visitor: Arc::new(Restorer),
        request,
        cluster,
        contents,
        volumes,
        csi: Arc::new(csi),
        options,
        progress: Arc::new(Progress::default()),
        item_journal: None,
        volume_creator: None,
        stop,
        cancel: CancellationToken::new(),
    };
    let (actions, now) = (vec![action], Timestamp::UNIX_EPOCH);
    let context = assemble(inputs, served_api, actions, Arc::clone(&report), now).await.unwrap();
    let context = Arc::new(context);
    let _stopped = visit_all(&context).await;
    let operations = context.operations.lock().clone();
    (fake, report.results(), operations)
}

/// An action that starts an operation for the ConfigMap `parent`, and skips the item.
struct SkippingAction;

#[async_trait]
impl RestoreItemAction for SkippingAction {
    async fn applies_to(&self) -> Answer<ResourceSelector> {
        Ok(ResourceSelector::resources(["configmaps"]))
    }

    async fn execute(&self, item: &Item, _: &Item, _: &Encoded<Restore>) -> Answer<RestoreOutput> {
        let object: Value = item.parse().unwrap();
        let mut output = RestoreOutput::unchanged(item);
        if object["metadata"]["name"] == "parent" {
            output.skip_restore = true;
            output.operation = OperationId::new("op-1");
        }
        Ok(output)
    }
}

#[tokio::test(start_paused = true)]
async fn operation_of_a_skipped_item_is_waited_for() {
    let action =
        NamedAction::new("example.io/replacing".parse().unwrap(), Arc::new(SkippingAction) as _);
    let stop = CancellationToken::new();
    let (cluster, results, operations) =
        Box::pin(run_with_operations(action, json!({}), stop)).await;
    assert_eq!(results.errors.count(), 0, "{results:?}");
    assert!(cluster.object("configmaps", "shop", "parent").is_none(), "it is skipped");
    let [operation] = &operations[..] else { panic!("{operations:?}") };
    assert_eq!((operation.id.as_str(), operation.item.name.as_str()), ("op-1", "parent"));
}

#[tokio::test(start_paused = true)]
async fn only_the_parent_waits_for_additional_items() {
    let outcome = restore(SlowReadinessAction::ready_after(None, 2 * SECOND)).await;
    assert_eq!(outcome.results, Results::default());
    assert_eq!(outcome.elapsed, 2 * SECOND);
    assert_eq!(outcome.action.times(), [0, 1, 2].map(Duration::from_secs));
    let created: Vec<String> =
        outcome.cluster.creations().iter().map(|id| id.name.clone()).collect();
    let position = |name: &str| created.iter().position(|created| created == name).unwrap();
    assert!(
        position("needed") < position("parent") && position("sibling") < position("parent"),
        "{created:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn readiness_wait_ends_at_the_timeout() {
    for (own, limit, words) in [
        (Some(SECOND / 2), SECOND / 2, "0.5 s"),
        (Some(SECOND * 5 / 2), SECOND * 5 / 2, "2.5 s"),
        (Some(2 * SERVER_TIMEOUT), 2 * SERVER_TIMEOUT, "8 s"),
        (None, SERVER_TIMEOUT, "4 s"),
    ] {
        let outcome = restore(SlowReadinessAction::ready_after(own, Duration::MAX)).await;
        let expected = format!(
            "additional items of action example.io/needy were not ready within {words}; the item \
             is still restored"
        );
        assert_eq!(outcome.error(), expected);
        assert_eq!(outcome.elapsed, limit);
        assert_eq!(outcome.action.times().last(), Some(&limit), "asked for the last time");
        assert!(outcome.has("configmaps", "parent") && outcome.has("services", "late"));

        // Items that become ready shortly before the timeout are in time.
        let outcome = restore(SlowReadinessAction::ready_after(own, limit * 9 / 10)).await;
        assert_eq!(outcome.results, Results::default(), "{words}");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_action_is_given_up_at_the_timeout() {
    let hangs =
        |timeout| SlowReadinessAction::new(timeout, |_, _| Box::pin(std::future::pending()));
    let outcome = restore(hangs(Some(3 * SECOND))).await;
    assert!(outcome.error().contains("were not ready within 3 s"), "{}", outcome.error());
    assert_eq!(outcome.elapsed, 3 * SECOND);
    assert!(outcome.has("configmaps", "parent") && outcome.has("services", "late"));
    // An answer gets a minimum time even if the timeout is short.
    let slow = |_, _| -> BoxFuture<'static, Answer<bool>> {
        Box::pin(async {
            tokio::time::sleep(SECOND / 2).await;
            Ok(true)
        })
    };
    let outcome = restore(SlowReadinessAction::new(Some(SECOND / 10), slow)).await;
    assert_eq!(outcome.results, Results::default());
}

#[tokio::test(start_paused = true)]
async fn failed_readiness_check_is_retried() {
    let gone = || Error::new(Code::Unavailable, "it has died");
    let outcome = restore(SlowReadinessAction::failing(2, gone())).await;
    assert_eq!(outcome.results, Results::default(), "it was another's fault");
    for (error, questions) in [
        (gone(), 3),
        (Error::new(Code::Unknown, "no idea"), 3),
        (Error::new(Code::NotFound, "no such thing"), 1),
    ] {
        let outcome = restore(SlowReadinessAction::failing(usize::MAX, error.clone())).await;
        let expected = format!(
            "the action example.io/needy cannot check whether its additional items are ready: \
             {error}; the item is still restored"
        );
        assert_eq!(outcome.error(), expected);
        assert_eq!(outcome.action.times().len(), questions, "{error}");
        assert!(outcome.has("configmaps", "parent"));
    }
    // The timeout still applies, and the reason is reported.
    let failing = SlowReadinessAction::failing(usize::MAX, gone());
    let outcome = restore(SlowReadinessAction { timeout: Some(SECOND / 2), ..failing }).await;
    assert!(outcome.error().contains("it has died"), "{}", outcome.error());
    assert_eq!(outcome.elapsed, SECOND / 2);
}

#[tokio::test(start_paused = true)]
async fn readiness_check_names_existing_items_by_backup_name() {
    let mut action = SlowReadinessAction::ready_after(None, Duration::ZERO);
    action.secrets = &["needed", "nowhere"];
    let spec = json!({"namespaceMapping": {"shop": "copy"}});
    let outcome = restore_with(action, spec, CancellationToken::new()).await;
    assert_eq!(outcome.results.warnings.count(), 1, "{:?}", outcome.results);
    let items = outcome.action.readiness_calls.lock()[0].1.clone();
    assert_eq!(items, [id("secrets", "needed").to_string()]);
    assert!(outcome.cluster.object("configmaps", "copy", "parent").is_some());

    // Items that the filters exclude do not exist.
    let mut action = SlowReadinessAction::ready_after(None, Duration::ZERO);
    action.secrets = &["needed"];
    let spec = json!({"excludedResources": ["secrets"]});
    let outcome = restore_with(action, spec, CancellationToken::new()).await;
    assert_eq!(outcome.action.readiness_calls.lock()[0].1, [""; 0]);
    assert!(outcome.has("configmaps", "parent") && !outcome.has("secrets", "needed"));
}

#[tokio::test(start_paused = true)]
async fn waiting_item_is_not_restored_after_a_stop() {
    let stop = CancellationToken::new();
    let action = SlowReadinessAction::ready_after(None, Duration::MAX);
    let stopping = async {
        tokio::time::sleep(SECOND / 2).await;
        stop.cancel();
    };
    let restoring = restore_with(action, json!({}), stop.clone());
    let (outcome, ()) = tokio::join!(restoring, stopping);
    assert_eq!(outcome.elapsed, SECOND / 2);
    assert!(outcome.has("configmaps", "sibling"));
    assert!(!outcome.has("configmaps", "parent"), "the next attempt would take it for done");
}

#[tokio::test(start_paused = true)]
async fn item_that_crashes_its_plugin_does_not_fail_others() {
    let name = || "example.io/mortal".parse().unwrap();
    let failed = "the action example.io/mortal failed: it has died";
    let unsure = "the action example.io/mortal cannot check whether its additional items are \
                  ready: it has died; the item is still restored";
    // The action may have started an operation, which may be left over.
    for (action, error, warned) in [
        (NamedAction::new(name(), CrashingAction::shared(false)), failed, &[][..]),
        (
            NamedAction::asynchronous(name(), CrashingAction::shared(false)),
            failed,
            &["parent", "sibling"],
        ),
        (NamedAction::asynchronous(name(), CrashingAction::shared(true)), unsure, &["sibling"]),
    ] {
        let run = Box::pin(run(action, json!({}), CancellationToken::new()));
        let (cluster, results) = run.await;
        assert_eq!(results.errors.count(), 1, "{results:?}");
        assert_eq!(results.errors.namespaces["shop"], [format!("configmaps/parent: {error}")]);
        assert!(cluster.object("configmaps", "shop", "sibling").is_some());
        assert!(cluster.object("services", "shop", "late").is_some());
        let is_there = cluster.object("configmaps", "shop", "parent").is_some();
        assert_eq!(is_there, error == unsure);
        let mut warnings = results.warnings.namespaces.get("shop").cloned().unwrap_or_default();
        warnings.sort();
        let leftover_warning = |name: &&str| {
            format!(
                "configmaps/{name}: the action example.io/mortal processes this item again; \
                 results of the first call may be left over: it has died"
            )
        };
        assert_eq!(warnings, warned.iter().map(leftover_warning).collect::<Vec<_>>());
    }
}

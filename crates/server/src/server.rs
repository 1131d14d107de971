//! Checks the cluster, starts everything side by side, and ends it in order.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bowline_engine::operation::{PollRateLimiter, UploadSlots};
use bowline_plugin_host::{Host, Limits};
use bowline_store::backend::{BuiltIn, filesystem, s3};
use bowline_store::download::SigningKey;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use tokio_util::sync::CancellationToken;

use crate::controllers::{
    PluginCalls, backup, backup_deletion, backup_queue, backup_storage_location, backup_sync,
    download_request, gc, orphans, restore, schedule, server_status_request,
};
use crate::events::Events;
use crate::fence::Fence;
use crate::lease::{self, LeaseGuard};
use crate::locations::Locations;
use crate::metrics::{self, Metrics, Readiness};
use crate::runs::ActiveRuns;
use crate::snapshotters::SnapshotterOpener;
use crate::supervisor::TaskSet;
use crate::{Options, download, preflight, watch};

/// How long controllers may take to end once they are asked to. A backup that is stopped still lets
/// its hooks end, 30 seconds each unless they say otherwise, and runs those that thaw: an application
/// must not be left frozen. A pod has 30 seconds in all unless its `terminationGracePeriodSeconds`
/// says more; with the limits below, 60 are enough.
const CONTROLLERS_STOP_TIMEOUT: Duration = Duration::from_secs(45);
/// How long downloads under way may take after that.
const SERVING_STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long plugin processes may take after that.
const PLUGINS_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// What every controller works with.
pub struct Context {
    /// The cluster. Nothing can be changed in it once the lease is over.
    pub client: Client,
    /// What the server was told.
    pub options: Options,
    /// The stores of storage locations.
    pub locations: Arc<Locations>,
    /// The snapshotters of snapshot locations.
    pub snapshotters: Arc<SnapshotterOpener>,
    /// The plugins.
    pub host: Arc<Host>,
    /// Cancelled when the server is to end: begin nothing new, end what is under way soon.
    pub stop: CancellationToken,
    /// What is counted and measured.
    pub metrics: Arc<Metrics>,
    /// What all calls of plugins have in common.
    pub(crate) calls: Arc<PluginCalls>,
    /// Where milestones of runs are told.
    pub(crate) events: Events,
    /// How often one plugin is asked about its operations.
    pub(crate) poll_rate: PollRateLimiter,
    /// Places for snapshots that are being uploaded.
    pub(crate) uploads: UploadSlots,
    /// The turns of restores.
    pub(crate) restore_queue: Arc<restore::permit::RestoreQueue>,
    /// What this process runs.
    pub(crate) runs: Arc<ActiveRuns>,
}

impl Context {
    /// The objects of a kind in the server's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.options.namespace)
    }
}

/// Why a server cannot start, or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace is missing.
    #[error("the namespace `{0}` does not exist: create it, or name another with `--namespace`")]
    NoNamespace(String),
    /// Kinds are missing.
    #[error("{0} are not installed in the cluster: run `bowline install --crds-only`")]
    NoDefinitions(String),
    /// Another program works on the same resources.
    #[error(
        "`velero server` runs in the namespace `{namespace}`, in the pod `{pod}`, and would work on the \
         same backups: stop it first, as with \
         `kubectl -n {namespace} scale deployment/velero --replicas=0`"
    )]
    VeleroRuns {
        /// Where.
        namespace: String,
        /// In which pod.
        pod: String,
    },
    /// The cluster does not answer, or refuses.
    #[error("cannot {action}; is the cluster reachable, and are the credentials right?")]
    Cluster {
        /// What was to be done.
        action: &'static str,
        /// Why it could not be.
        source: kube::Error,
    },
    /// A folder cannot be used.
    #[error("cannot use the folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no randomness.
    #[error("cannot get random bytes from the system")]
    Random(#[source] io::Error),
    /// Downloads cannot be served.
    #[error(transparent)]
    Download(#[from] download::Error),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] metrics::Error),
    /// The lease cannot be had.
    #[error(transparent)]
    Lease(#[from] lease::Error),
    /// Another server may work now.
    #[error(
        "the lease `{}` was lost, because it could not be renewed in time or another server has it; \
         everything was stopped at once, and goes on with the next server",
        lease::NAME
    )]
    LeaseLost,
    /// A watch ended.
    #[error(transparent)]
    Watch(#[from] watch::WatchEnded),
    /// A part of the server failed.
    #[error("`{name}` failed")]
    Task {
        /// Which part.
        name: &'static str,
        /// Why.
        source: Box<Error>,
    },
    /// A part of the server panicked.
    #[error("`{0}` panicked: this is a bug; the log has the details")]
    Panicked(&'static str),
    /// A part of the server ended.
    #[error("`{0}` ended by itself: this is a bug")]
    Ended(&'static str),
}

impl Error {
    pub(crate) fn cluster_error(action: &'static str, source: kube::Error) -> Self {
        Self::Cluster { action, source }
    }
}

/// Runs a server until it is asked to end, or cannot go on.
///
/// The client should have timeouts; the server adds none to its calls.
pub async fn run(
    client: Client,
    options: Options,
    until: impl Future<Output = ()>,
) -> Result<(), Error> {
    let mut until = std::pin::pin!(until);
    let server = tokio::select! {
        server = Server::start(client, options) => server?,
        () = &mut until => return Ok(()),
    };
    // Boxed, since it is large and there is one of it.
    Box::pin(server.run(until)).await
}

/// A server with everything under way.
struct Server {
    context: Arc<Context>,
    guard: LeaseGuard,
    readiness: Readiness,
    controllers: TaskSet,
    /// What serves downloads and metrics.
    serving: TaskSet,
    stop_serving: CancellationToken,
}

impl Server {
    async fn start(client: Client, options: Options) -> Result<Self, Error> {
        preflight::check_namespace(&client, &options.namespace).await?;
        preflight::check_crds(&client).await?;
        preflight::check_no_velero_server(&client, &options.namespace).await?;
        let stop_serving = CancellationToken::new();
        let mut serving = TaskSet::default();
        let filesystem = match &options.filesystem_root {
            None => None,
            Some(root) => {
                let key = SigningKey::new(&random_bytes::<32>()?).map_err(download::Error::Key)?;
                let server =
                    download::Server::bind(&options.download_address, root.clone(), key).await?;
                let files = server.options(options.download_url.as_deref())?;
                serving.start("downloads", {
                    let stop = stop_serving.clone();
                    async move {
                        server.run(stop).await;
                        Ok(())
                    }
                });
                Some(files)
            }
        };
        let (metrics, readiness) = (Arc::<Metrics>::default(), Readiness::default());
        let server =
            metrics::Server::bind(options.metrics_address, Arc::clone(&metrics), readiness.clone());
        // Before plugins are looked for, which may take minutes: a server that is alive must answer so.
        if let Some(server) = server.await? {
            let stop = stop_serving.clone();
            serving.start("metrics", async move {
                server.run(stop).await;
                Ok(())
            });
        }
        let fence = Fence::default();
        let fenced = fence.client(client.clone());
        let calls = Arc::new(PluginCalls { metrics, fence: fence.clone() });
        let context = Arc::new(Self::context(fenced, options, filesystem, calls).await?);
        // One that waits for its turn is as ready as it can be.
        readiness.set(true);
        let guard = tokio::select! {
            guard = Self::acquire(client.clone(), &context, &fence) => guard?,
            error = serving.wait_for_first_exit() => return Err(error),
        };
        // It may have been started while we waited.
        if let Err(error) =
            preflight::check_no_velero_server(&client, &context.options.namespace).await
        {
            guard.release().await;
            return Err(error);
        }
        let mut controllers = TaskSet::default();
        let work = |context: &Arc<Context>| Arc::clone(context);
        controllers.start("backup-queue", backup_queue::run(work(&context)));
        controllers.start("backup", backup::run(work(&context)));
        controllers.start("restore", restore::run(work(&context)));
        controllers.start("backup-deletion", backup_deletion::run(work(&context)));
        controllers.start("backup-storage-location", backup_storage_location::run(work(&context)));
        controllers.start("orphans", orphans::run(work(&context)));
        controllers.start("backup-sync", backup_sync::run(work(&context)));
        controllers.start("download-request", download_request::run(work(&context)));
        controllers.start("schedule", schedule::run(work(&context)));
        controllers.start("gc", gc::run(work(&context)));
        controllers.start("server-status-request", server_status_request::run(work(&context)));
        Ok(Self { context, guard, readiness, controllers, serving, stop_serving })
    }

    /// Waits until no other server works in the namespace.
    async fn acquire(
        client: Client,
        context: &Context,
        fence: &Fence,
    ) -> Result<LeaseGuard, Error> {
        let Options { namespace, identity, lease, .. } = &context.options;
        let guard =
            LeaseGuard::acquire(client, namespace, identity, *lease, fence, &context.stop).await?;
        guard.ok_or(Error::LeaseLost)
    }

    async fn context(
        client: Client,
        options: Options,
        filesystem: Option<filesystem::Options>,
        calls: Arc<PluginCalls>,
    ) -> Result<Context, Error> {
        let fence = calls.fence.clone();
        let host = bowline_plugin_host::Options {
            plugin_dir: options.plugin_dir.clone(),
            arguments: options.plugin_arguments.clone(),
            environment: options.plugin_environment.clone(),
            serial: options.serial_plugins.clone(),
            inherited_environment: options.plugin_inherited_environment.clone(),
            message_limit: options.plugin_message_limit,
            limits: plugin_limits(options.plugin_call_timeout),
            ..bowline_plugin_host::Options::default()
        };
        let host = Arc::new(Host::discover(host).await);
        for plugin in host.registry().plugins() {
            tracing::info!(kind = %plugin.kind, name = %plugin.name, "found a plugin");
        }
        let s3 = s3::Options {
            allow_link_local: options.allow_link_local_s3,
            environment: s3::Environment::from_process(),
            ..s3::Options::default()
        };
        let built_in = BuiltIn { filesystem, s3, permit: fence.permit() };
        let unusable = |source| Error::Folder { path: options.scratch_dir.clone(), source };
        let locations = Locations::new(
            client.clone(),
            &options.namespace,
            Arc::clone(&host),
            built_in,
            &options.scratch_dir,
            fence,
        )
        .map_err(unusable)?;
        let locations = Arc::new(locations);
        let (stop, poll_rate, runs) = Default::default();
        let metrics = Arc::clone(&calls.metrics);
        let snapshotters = Arc::new(SnapshotterOpener::new(
            client.clone(),
            &options.namespace,
            Arc::clone(&locations),
            Arc::clone(&host),
            Arc::clone(&calls),
        ));
        let uploads = UploadSlots::new(options.snapshot_upload_concurrency);
        let restores = Arc::new(restore::permit::RestoreQueue::new(options.concurrent_restores));
        let events = Events::new(client.clone());
        Ok(Context {
            client,
            options,
            locations,
            snapshotters,
            host,
            stop,
            metrics,
            calls,
            events,
            poll_rate,
            uploads,
            restore_queue: restores,
            runs,
        })
    }

    async fn run(mut self, until: impl Future<Output = ()>) -> Result<(), Error> {
        tracing::info!(namespace = self.context.options.namespace, "the server is up");
        self.readiness.set(true);
        let lost = self.guard.lost().clone();
        let outcome = tokio::select! {
            () = until => Ok(()),
            error = self.controllers.wait_for_first_exit() => Err(error),
            error = self.serving.wait_for_first_exit() => Err(error),
            () = lost.cancelled() => Err(Error::LeaseLost),
        };
        self.readiness.set(false);
        tracing::info!("the server ends");
        tokio::select! {
            guard = self.shut_down() => {
                guard.release().await;
                outcome
            }
            // Nothing may be done any more. What is dropped here ends all tasks and kills all plugins.
            () = lost.cancelled() => Err(Error::LeaseLost),
        }
    }

    /// Controllers first, since they use the rest; plugin processes last.
    async fn shut_down(self) -> LeaseGuard {
        self.context.stop.cancel();
        let runs = Arc::clone(&self.context.runs);
        self.controllers.shut_down(CONTROLLERS_STOP_TIMEOUT, move || runs.names()).await;
        self.stop_serving.cancel();
        self.serving.shut_down(SERVING_STOP_TIMEOUT, Vec::new).await;
        let host = Arc::clone(&self.context.host);
        // It holds the host, and handles to its processes.
        drop(self.context);
        let Some(host) = Arc::into_inner(host) else {
            tracing::warn!("plugins are still in use, so their processes are killed");
            return self.guard;
        };
        if tokio::time::timeout(PLUGINS_STOP_TIMEOUT, host.shut_down()).await.is_err() {
            tracing::warn!("plugins did not end in time, so their processes are killed");
        }
        self.guard
    }
}

/// How long plugins may take. Who names a time for their actions means all calls of these.
fn plugin_limits(call: Option<Duration>) -> Limits {
    let limits = Limits::default();
    match call {
        Some(call) => Limits { execute: call, applies_to: call, ..limits },
        None => limits,
    }
}

/// Bytes that nobody can guess.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(Error::Random)
}

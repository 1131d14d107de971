//! Preflight, concurrent start of all tasks, and ordered shutdown.

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
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::controllers::{
    PluginCalls, backup, backup_deletion, backup_queue, backup_storage_location, backup_sync,
    download_request, gc, orphans, restore, schedule, server_status_request, thawer,
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

/// Time for controllers to end after a stop request. A backup that is stopped still lets its
/// running hooks end (30 seconds each by default) and runs its post-hooks: an application must not
/// stay frozen. A pod has 30 seconds in total unless its `terminationGracePeriodSeconds` is longer;
/// with the limits below, 60 are enough.
const CONTROLLERS_STOP_TIMEOUT: Duration = Duration::from_secs(45);
/// Time for running downloads to end after that.
const SERVING_STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for plugin processes to end after that.
const PLUGINS_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Shared state of all controllers.
pub struct Context {
    /// Client of the cluster. Its writes are refused once the lease has ended.
    pub client: Client,
    /// Configuration of the server.
    pub options: Options,
    /// Stores of BackupStorageLocations.
    pub locations: Arc<Locations>,
    /// Snapshotters of VolumeSnapshotLocations.
    pub snapshotters: Arc<SnapshotterOpener>,
    /// Plugin host.
    pub host: Arc<Host>,
    /// Cancelled when the server is to stop: start nothing new, end running work soon.
    pub stop: CancellationToken,
    /// Metrics of the server.
    pub metrics: Arc<Metrics>,
    /// State that all plugin calls share.
    pub(crate) calls: Arc<PluginCalls>,
    /// Publisher of milestones of runs.
    pub(crate) events: Events,
    /// Limit on how often one plugin is polled about its operations.
    pub(crate) poll_rate: PollRateLimiter,
    /// Slots for snapshot uploads.
    pub(crate) uploads: UploadSlots,
    /// Order in which restores run.
    pub(crate) restore_queue: Arc<restore::permit::RestoreQueue>,
    /// Runs of this process.
    pub(crate) runs: Arc<ActiveRuns>,
}

impl Context {
    /// API for objects of a kind in the server's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.options.namespace)
    }
}

/// Reason why a server cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Missing namespace.
    #[error("namespace `{0}` does not exist; create it, or name another with `--namespace`")]
    NoNamespace(String),
    /// Missing CustomResourceDefinitions.
    #[error("{0} are not installed in the cluster: run `bowline install --crds-only`")]
    NoDefinitions(String),
    /// Another program works on the same resources.
    #[error(
        "`velero server` runs in namespace `{namespace}`, in pod `{pod}`, and would process the \
         same backups; stop it first, for example with `kubectl -n {namespace} scale \
         deployment/velero --replicas=0`"
    )]
    VeleroRuns {
        /// Namespace of both.
        namespace: String,
        /// Pod of the other program.
        pod: String,
    },
    /// The API server does not answer, or refuses.
    #[error(
        "cannot {action}; check that the cluster is reachable and that the credentials are valid"
    )]
    Cluster {
        /// Attempted action.
        action: &'static str,
        /// Cause.
        source: kube::Error,
    },
    /// Unusable directory.
    #[error("cannot use the directory {}", path.display())]
    Folder {
        /// Path of the directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// No source of randomness.
    #[error("cannot get random bytes from the system")]
    Random(#[source] io::Error),
    /// Downloads cannot be served.
    #[error(transparent)]
    Download(#[from] download::Error),
    /// Metrics cannot be served.
    #[error(transparent)]
    Metrics(#[from] metrics::Error),
    /// The lease cannot be acquired.
    #[error(transparent)]
    Lease(#[from] lease::Error),
    /// Another server may be active now.
    #[error(
        "the Lease `{}` was lost: it could not be renewed in time, or another server holds it; \
         all work was stopped, and the next active server resumes it",
        lease::NAME
    )]
    LeaseLost,
    /// A watch ended.
    #[error(transparent)]
    Watch(#[from] watch::WatchEnded),
    /// A task of the server failed.
    #[error("`{name}` failed")]
    Task {
        /// Name of the task.
        name: &'static str,
        /// Cause.
        source: Box<Error>,
    },
    /// A task of the server panicked.
    #[error("`{0}` panicked: this is a bug; the log has the details")]
    Panicked(&'static str),
    /// A task of the server ended unexpectedly.
    #[error("`{0}` ended unexpectedly: this is a bug")]
    Ended(&'static str),
}

impl Error {
    pub(crate) fn cluster_error(action: &'static str, source: kube::Error) -> Self {
        Self::Cluster { action, source }
    }
}

/// Runs a server until it is asked to stop or cannot continue.
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
    // Boxed, since the future is large and there is only one.
    Box::pin(server.run(until)).await
}

/// A running server.
struct Server {
    context: Arc<Context>,
    guard: LeaseGuard,
    readiness: Readiness,
    controllers: TaskSet,
    /// Tasks that serve downloads and metrics.
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
        // Before plugin discovery, which may take minutes: a live server must answer its liveness
        // probe.
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
        // A standby server is as ready as it can be.
        readiness.set(true);
        let guard = tokio::select! {
            guard = Self::acquire(client.clone(), &context, &fence) => guard?,
            error = serving.wait_for_first_exit() => return Err(error),
        };
        // Velero may have been started while this server was on standby.
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
        let (first_pass, first_thaw_pass) = oneshot::channel();
        controllers.start("thawer", thawer::run(work(&context), first_pass));
        controllers.start("orphans", orphans::run(work(&context), first_thaw_pass));
        controllers.start("backup-sync", backup_sync::run(work(&context)));
        controllers.start("download-request", download_request::run(work(&context)));
        controllers.start("schedule", schedule::run(work(&context)));
        controllers.start("gc", gc::run(work(&context)));
        controllers.start("server-status-request", server_status_request::run(work(&context)));
        Ok(Self { context, guard, readiness, controllers, serving, stop_serving })
    }

    /// Waits until this server holds the lease of the namespace.
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
        let host = Arc::new(discover_plugins(&options).await);
        for plugin in host.registry().plugins() {
            tracing::info!(kind = %plugin.kind, name = %plugin.name, "plugin found");
        }
        let s3 = s3::Options {
            allow_link_local: options.allow_link_local_s3,
            environment: s3::Environment::from_process(),
            ..s3::Options::default()
        };
        let built_in = BuiltIn {
            filesystem,
            s3,
            permit: fence.permit(),
            #[cfg(feature = "testing")]
            simulated: options.surroundings.simulation.as_ref().map(|parts| parts.bucket.clone()),
        };
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
        tracing::info!(namespace = self.context.options.namespace, "server started");
        self.readiness.set(true);
        let lost = self.guard.lost().clone();
        let outcome = tokio::select! {
            () = until => Ok(()),
            error = self.controllers.wait_for_first_exit() => Err(error),
            error = self.serving.wait_for_first_exit() => Err(error),
            () = lost.cancelled() => Err(Error::LeaseLost),
        };
        self.readiness.set(false);
        tracing::info!("server stopping");
        tokio::select! {
            guard = self.shut_down() => {
                guard.release().await;
                outcome
            }
            // No further change is allowed. Dropping the server ends all tasks and kills all
            // plugins.
            () = lost.cancelled() => Err(Error::LeaseLost),
        }
    }

    /// Stops controllers first, since they use everything else, and plugin processes last.
    async fn shut_down(self) -> LeaseGuard {
        self.context.stop.cancel();
        let runs = Arc::clone(&self.context.runs);
        self.controllers.shut_down(CONTROLLERS_STOP_TIMEOUT, move || runs.names()).await;
        self.stop_serving.cancel();
        self.serving.shut_down(SERVING_STOP_TIMEOUT, Vec::new).await;
        let host = Arc::clone(&self.context.host);
        // The context holds the host, and handles to its processes.
        drop(self.context);
        let Some(host) = Arc::into_inner(host) else {
            tracing::warn!("plugins are still in use; killing their processes");
            return self.guard;
        };
        if tokio::time::timeout(PLUGINS_STOP_TIMEOUT, host.shut_down()).await.is_err() {
            tracing::warn!("plugins did not exit in time; killing their processes");
        }
        self.guard
    }
}

async fn discover_plugins(options: &Options) -> Host {
    #[cfg(feature = "testing")]
    if let Some(parts) = &options.surroundings.simulation {
        return Host::in_process(Arc::clone(&parts.plugins));
    }
    let options = bowline_plugin_host::Options {
        plugin_dir: options.plugin_dir.clone(),
        arguments: options.plugin_arguments.clone(),
        environment: options.plugin_environment.clone(),
        serial: options.serial_plugins.clone(),
        inherited_environment: options.plugin_inherited_environment.clone(),
        message_limit: options.plugin_message_limit,
        limits: plugin_limits(options.plugin_call_timeout),
        ..bowline_plugin_host::Options::default()
    };
    Host::discover(options).await
}

/// Timeouts of plugin calls. A configured timeout applies to all calls of item actions.
fn plugin_limits(call: Option<Duration>) -> Limits {
    let limits = Limits::default();
    match call {
        Some(call) => Limits { execute: call, applies_to: call, ..limits },
        None => limits,
    }
}

/// Unpredictable bytes, for secrets.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(Error::Random)
}

//! One control plane and one S3 server for all tests of this binary. Each test has its own
//! namespace, with a running server.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use bowline_api::access::{self, Profile};
use bowline_api::location::LocationPhase;
use bowline_api::{BackupStorageLocation, crds};
use bowline_server::{Error, Options, log};
use bowline_store::backend::{self, BuiltIn, filesystem};
use bowline_store::{BackupStore, Prefix};
use bowline_testbed::apply::apply;
use bowline_testbed::program::{self, Program};
use bowline_testbed::{
    Account, Bed, ControlPlane, Poll, S3, fixture, kubeconfig, s3, test_deadline,
};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Time limit of a step. The machine may be busy with a compiler.
pub(crate) const LIMIT: Duration = Duration::from_mins(2);
/// The sets of fixture plugins: built with Velero's framework, and with our SDK.
pub(crate) const SETS: [&str; 2] = ["go", "sdk"];
/// Set to anything, the logs of all servers are shown.
const SHOW_LOG: &str = "BOWLINE_TEST_LOG";

/// Whom servers are to the cluster. They have the rights that `bowline install --profile=full` grants,
/// and no others.
pub(crate) const SERVER: &str = "bowline";

/// Shared parts of the tests. They are never dropped: everything ends with this process.
pub(crate) struct Shared {
    pub(crate) s3: S3,
    plane: ControlPlane,
    /// The kubeconfig of servers.
    pub(crate) server: PathBuf,
}

/// The shared control plane and S3 server, started by the first test that needs them.
pub(crate) fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    test_deadline();
    SHARED.get_or_init(|| {
        // The runtime that starts them must outlive the runtime of the test.
        let start = || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let shared = runtime.block_on(Shared::start());
            std::mem::forget(runtime);
            shared
        };
        std::thread::spawn(start).join().unwrap()
    })
}

/// Waits for something that servers or controllers do.
pub(crate) async fn eventually<P: Poll>(what: &str, poll: impl AsyncFnMut() -> P) -> P::Answer {
    bowline_testbed::eventually(what, LIMIT, poll).await
}

/// Lets servers of this process log, and so the runs of theirs.
pub(crate) fn install_log_subscriber() {
    static LISTENING: OnceLock<()> = OnceLock::new();
    LISTENING.get_or_init(|| {
        let options = log::Options { level: "debug".parse().unwrap(), ..Default::default() };
        let out: Box<dyn Write + Send> = match std::env::var_os(SHOW_LOG) {
            Some(_) => Box::new(std::io::stderr()),
            None => Box::new(std::io::sink()),
        };
        tracing::subscriber::set_global_default(log::subscriber(options, out)).unwrap();
    });
}

impl Shared {
    async fn start() -> Self {
        install_log_subscriber();
        let bed = Bed::new().unwrap();
        let (plane, s3) = tokio::join!(
            ControlPlane::start(&bed, bowline_testbed::Options::default()),
            S3::start(&bed)
        );
        let (s3, plane) = (s3.unwrap(), plane.unwrap());
        let server = plane.kubeconfig_here(SERVER).unwrap();
        let shared = Self { s3, plane, server };
        let client = shared.client().await;
        for crd in crds::all() {
            let mut crd = serde_json::to_value(crd).unwrap();
            crd["apiVersion"] = json!("apiextensions.k8s.io/v1");
            crd["kind"] = json!("CustomResourceDefinition");
            apply(&client, crd).await.unwrap();
        }
        shared
    }

    /// The control plane itself.
    pub(crate) fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// A client for the runtime that asks; connections belong to a runtime.
    pub(crate) async fn client(&self) -> Client {
        kubeconfig::client(self.plane.kubeconfig()).await.unwrap()
    }
}

/// A server as installed in a namespace with a profile.
pub(crate) fn account(user: &str, namespace: &str, profile: Profile) -> Account {
    Account {
        user: user.to_owned(),
        cluster_rules: access::cluster_rules(profile),
        namespace: namespace.to_owned(),
        own_rules: access::own_rules(),
    }
}

/// Client configuration of a server in its own cluster, with the permissions of the full profile.
pub(crate) async fn server_of(plane: &ControlPlane, namespace: &str) -> Client {
    let kubeconfig = account(SERVER, namespace, Profile::Full).open(plane).await.unwrap();
    kubeconfig::client(&kubeconfig).await.unwrap()
}

/// A namespace with a server at work in it, and folders for both. The server ends with it.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    folder: tempfile::TempDir,
    stop: CancellationToken,
    server: Option<oneshot::Receiver<Result<(), Error>>>,
}

impl World {
    /// A namespace, and a server that does things each second.
    pub(crate) async fn start(name: &str) -> Self {
        Self::start_with(name, |_| {}).await
    }

    /// The same, with other options.
    pub(crate) async fn start_with(name: &str, change: impl FnOnce(&mut Options)) -> Self {
        let mut world = Self::without_server(name).await;
        let mut options = world.options();
        change(&mut options);
        world.run(options);
        world
    }

    /// A namespace without a server.
    pub(crate) async fn without_server(name: &str) -> Self {
        let client = shared().client().await;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = json!({"metadata": {"name": name}});
        let namespace = serde_json::from_value(namespace).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        account(SERVER, name, Profile::Full).grant(&client).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        for name in ["plugins", "root", "scratch"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let stop = CancellationToken::new();
        Self { client, namespace: name.to_owned(), folder, stop, server: None }
    }

    /// The same namespace, for one more server in it.
    pub(crate) fn second_server_world(&self) -> Self {
        Self {
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            folder: tempfile::tempdir().unwrap(),
            stop: CancellationToken::new(),
            server: None,
        }
    }

    /// Options of a server for this namespace.
    pub(crate) fn options(&self) -> Options {
        Options {
            namespace: self.namespace.clone(),
            plugin_dir: self.path("plugins"),
            filesystem_root: Some(self.path("root")),
            scratch_dir: self.path("scratch"),
            store_validation_frequency: Duration::from_secs(1),
            backup_sync_period: Duration::from_secs(1),
            // More can go wrong where several run side by side.
            concurrent_backups: 4,
            concurrent_restores: 4,
            item_block_worker_count: 4,
            ..Options::default()
        }
    }

    /// Starts a server here, on a thread of its own as in a process of its own.
    pub(crate) fn run(&mut self, options: Options) {
        self.run_through(options, |client| client);
    }

    /// The same, with something between the server and the cluster.
    pub(crate) fn run_through(
        &mut self,
        options: Options,
        between: impl FnOnce(Client) -> Client + Send + 'static,
    ) {
        self.run_as(shared().server.clone(), options, between);
    }

    /// The same, as another user.
    pub(crate) fn run_as(
        &mut self,
        kubeconfig: PathBuf,
        options: Options,
        between: impl FnOnce(Client) -> Client + Send + 'static,
    ) {
        let (ended, server) = oneshot::channel();
        let stop = self.stop.clone().cancelled_owned();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let server = async {
                let client = between(kubeconfig::client(&kubeconfig).await.unwrap());
                bowline_server::run(client, options, stop).await
            };
            let outcome = runtime.block_on(server);
            drop(runtime);
            let _ = ended.send(outcome);
        });
        self.server = Some(server);
    }

    /// Lets servers of this world have the plugins of the fixture.
    pub(crate) async fn install_fixture(&self) {
        let plugin = fixture::rust_plugins().await.unwrap();
        std::os::unix::fs::symlink(plugin, self.path("plugins").join("fixture")).unwrap();
    }

    /// Lets servers of this world have both [sets](SETS) of fixture plugins, each with a domain
    /// `<set>.bowline.io` and a state folder of its own.
    pub(crate) async fn install_sets(&self) {
        let [go_plugins] = program::locate([Program::FixturePlugins]).await.unwrap();
        let sdk = fixture::rust_plugins().await.unwrap();
        for (set, binary) in SETS.into_iter().zip([go_plugins, sdk]) {
            let (state, plugin) = (self.path(set), self.path("plugins").join(set));
            std::fs::create_dir(&state).unwrap();
            let script = format!(
                "#!/bin/sh\nFIXTURE_DOMAIN='{set}.bowline.io' FIXTURE_STATE_DIR='{}' exec '{}' \"$@\"\n",
                state.display(),
                binary.display()
            );
            std::fs::write(&plugin, script).unwrap();
            std::fs::set_permissions(&plugin, Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// A folder of this world: `plugins`, `root`, `scratch`, or the state of a set.
    pub(crate) fn path(&self, folder: &str) -> PathBuf {
        self.folder.path().join(folder)
    }

    /// The objects of a kind in this namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates an object. Kind and namespace may be missing.
    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        let mut object = object;
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let object: K = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap()
    }

    /// Changes an object.
    pub(crate) async fn patch<K>(&self, name: &str, change: Value) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned,
    {
        self.api().patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap()
    }

    /// Waits until an object is as it should be, and returns it.
    pub(crate) async fn until<K>(&self, name: &str, condition: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned,
    {
        let api = self.api::<K>();
        eventually(&format!("{name} is as expected"), async || {
            match api.get_opt(name).await.unwrap() {
                Some(object) if condition(&object) => Ok(object),
                other => Err(other),
            }
        })
        .await
    }

    /// Waits until an object is gone.
    pub(crate) async fn until_gone<K>(&self, name: &str)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned,
    {
        eventually(&format!("{name} is deleted"), async || {
            self.api::<K>().get_opt(name).await.unwrap().is_none()
        })
        .await;
    }

    /// Deletes an object.
    pub(crate) async fn delete<K>(&self, name: &str)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned,
    {
        self.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// A Secret with the right credentials for the S3 server.
    pub(crate) async fn credentials(&self, secret: &str) {
        let text = std::fs::read_to_string(shared().s3.credentials_file()).unwrap();
        self.secret(secret, &text).await;
    }

    /// A Secret with any text under the key `cloud`, new or changed.
    pub(crate) async fn secret(&self, name: &str, text: &str) {
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "stringData": {"cloud": text},
        });
        let api = self.api::<Secret>();
        let params = PatchParams::apply("test").force();
        api.patch(name, &params, &Patch::Apply(secret)).await.unwrap();
    }

    /// The bucket of an S3 location; no two tests share one.
    pub(crate) fn bucket(&self, location: &str) -> String {
        format!("{}-{location}", self.namespace)
    }

    /// The spec of a location on the S3 server, with its credentials in the Secret `s3`. The bucket
    /// is not made.
    pub(crate) fn s3_spec(&self, location: &str) -> Value {
        json!({
            "provider": "aws",
            "objectStorage": {"bucket": self.bucket(location), "prefix": "p"},
            "credential": {"name": "s3", "key": "cloud"},
            "config": {
                "region": s3::REGION, "s3ForcePathStyle": "true", "s3Url": shared().s3.url(),
            },
        })
    }

    /// A location with any spec.
    pub(crate) async fn location(&self, name: &str, spec: Value) -> BackupStorageLocation {
        self.create(json!({"metadata": {"name": name}, "spec": spec})).await
    }

    /// An S3 location that is available, and its store.
    pub(crate) async fn s3_location(&self, name: &str) -> BackupStore {
        self.credentials("s3").await;
        shared().s3.create_bucket(&self.bucket(name)).unwrap();
        self.location(name, self.s3_spec(name)).await;
        self.until(name, is_available).await;
        self.s3_store(name).await
    }

    /// A location in a folder that is available, and its store.
    pub(crate) async fn filesystem_location(&self, name: &str) -> BackupStore {
        let store = self.filesystem_store(name).await;
        self.location(name, filesystem_spec(name)).await;
        self.until(name, is_available).await;
        store
    }

    /// A folder as a bucket, made now and opened beside the server.
    pub(crate) async fn filesystem_store(&self, bucket: &str) -> BackupStore {
        std::fs::create_dir(self.path("root").join(bucket)).unwrap();
        let options = filesystem::Options { root: self.path("root"), downloads: None };
        let built_in = BuiltIn { filesystem: Some(options), ..BuiltIn::default() };
        let opened = backend::open("filesystem", &BTreeMap::default(), None, &built_in).await;
        BackupStore::new(opened.unwrap(), bucket, &Prefix::default())
    }

    /// The store of an S3 location, opened beside the server.
    pub(crate) async fn s3_store(&self, name: &str) -> BackupStore {
        let location = json!({"metadata": {"name": name}, "spec": self.s3_spec(name)});
        let location: BackupStorageLocation = serde_json::from_value(location).unwrap();
        let credentials = shared().s3.credentials_file();
        let config = backend::location_config(&location.spec, None, Some(credentials)).unwrap();
        let opened = backend::open("aws", &config, None, &BuiltIn::default()).await.unwrap();
        BackupStore::new(opened, self.bucket(name), &Prefix::new("p").unwrap())
    }

    /// True if a server was started here, and not waited for.
    pub(crate) fn is_running(&self) -> bool {
        self.server.is_some()
    }

    /// Waits for the end of a server that ends by itself. Another may be run then.
    pub(crate) async fn outcome(&mut self) -> Result<(), Error> {
        let server = self.server.take().expect("a server runs");
        tokio::time::timeout(LIMIT, server).await.expect("the server ends in time").unwrap()
    }

    /// Asks the server to end, and waits for it. Another may be run then.
    pub(crate) async fn end(&mut self) -> Result<(), Error> {
        std::mem::take(&mut self.stop).cancel();
        self.outcome().await
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
        // The server uses the folders, which are removed next. A server that hangs fails in another test.
        if let Some(mut server) = self.server.take() {
            let deadline = std::time::Instant::now() + LIMIT;
            while let Err(oneshot::error::TryRecvError::Empty) = server.try_recv() {
                if std::time::Instant::now() > deadline {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// The spec of a location in the folder `root`. The bucket is not made.
pub(crate) fn filesystem_spec(bucket: &str) -> Value {
    json!({"provider": "filesystem", "objectStorage": {"bucket": bucket}})
}

/// True if a location is `Available`.
pub(crate) fn is_available(location: &BackupStorageLocation) -> bool {
    phase(location) == Some(&LocationPhase::Available)
}

/// True if a location is `Unavailable`.
pub(crate) fn is_unavailable(location: &BackupStorageLocation) -> bool {
    phase(location) == Some(&LocationPhase::Unavailable)
}

fn phase(location: &BackupStorageLocation) -> Option<&LocationPhase> {
    location.status.as_ref()?.phase.as_ref()
}

//! One control plane for all tests of this binary that need no cluster of their own. Each test has its own namespace.

use std::fmt::Debug;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use bowline_api::access::{self, Profile};
use bowline_api::crds;
use bowline_testbed::apply::apply;
use bowline_testbed::{Account, Bed, ControlPlane, Options, test_deadline};
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::bowline::{CommandResult, World};

/// Never dropped: everything ends with this process.
pub(crate) struct Cluster {
    pub(crate) runtime: Runtime,
    pub(crate) plane: ControlPlane,
    pub(crate) client: Client,
    home_dir: tempfile::TempDir,
}

/// A server that is installed in a namespace with the full profile.
pub(crate) fn full_account(namespace: &str) -> Account {
    Account {
        user: service_account(namespace),
        cluster_rules: access::cluster_rules(Profile::Full),
        namespace: namespace.to_owned(),
        own_rules: access::own_rules(),
    }
}

/// User name of a server that is installed in a namespace.
pub(crate) fn service_account(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:bowline")
}

/// A namespace with a world to run the binary in.
pub(crate) struct TestEnv {
    pub(crate) world: World,
    pub(crate) namespace: String,
}

/// The shared control plane with our definitions, started by the first test that needs it.
pub(crate) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    test_deadline();
    CLUSTER.get_or_init(|| {
        let runtime = Runtime::new().unwrap();
        let (plane, client) = runtime.block_on(async {
            let bed = Bed::new().unwrap();
            let plane = ControlPlane::start(&bed, Options::default()).await.unwrap();
            let client = plane.client().await.unwrap();
            for definition in crds::all() {
                apply(&client, serde_json::to_value(definition).unwrap()).await.unwrap();
            }
            (plane, client)
        });
        Cluster { runtime, plane, client, home_dir: tempfile::tempdir().unwrap() }
    })
}

impl Cluster {
    pub(crate) fn apply(&self, object: Value) {
        self.runtime.block_on(apply(&self.client, object)).unwrap();
    }

    /// A namespace for this test alone.
    pub(crate) fn test_env(&self, namespace: &str) -> TestEnv {
        self.apply(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace},
        }));
        TestEnv { world: World::new(), namespace: namespace.to_owned() }
    }

    /// A home without settings.
    pub(crate) fn home(&self) -> &Path {
        self.home_dir.path()
    }
}

impl TestEnv {
    /// The binary, ready to run for this namespace.
    pub(crate) fn bowline(&self, arguments: &[&str]) -> Command {
        let mut command = self.world.bowline(arguments);
        command
            .env("KUBECONFIG", cluster().plane.kubeconfig())
            .env("VELERO_NAMESPACE", &self.namespace)
            .env("HOME", cluster().home())
            .current_dir(cluster().home());
        for proxy in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
            command.env_remove(proxy);
        }
        command
    }

    /// The server, ready to run in this namespace with the rights that it has when it is installed to restore, too.
    pub(crate) fn server(&self, arguments: &[&str]) -> Command {
        let account = full_account(&self.namespace);
        let kubeconfig = cluster().runtime.block_on(account.open(&cluster().plane)).unwrap();
        let mut command = self.bowline(&[&["server"], arguments].concat());
        command.env("KUBECONFIG", kubeconfig);
        command
    }

    /// Runs the binary to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandResult {
        World::run_command(&mut self.bowline(arguments))
    }

    /// Runs the binary, which must succeed, and returns its standard output.
    pub(crate) fn run_ok(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
        ended.stdout
    }

    /// Runs the binary, which must refuse with one line that has these words in it.
    pub(crate) fn run_refused(&self, arguments: &[&str], words: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {} {}", ended.stdout, ended.stderr);
        let lines: Vec<&str> = ended.stderr.lines().collect();
        let [line] = lines.as_slice() else { panic!("not one line: {:?}", ended.stderr) };
        for word in words {
            assert!(line.contains(word), "no {word:?} in {line:?}");
        }
        ended.stderr
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(cluster().client.clone(), &self.namespace)
    }

    pub(crate) fn get<K>(&self, name: &str) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        cluster().runtime.block_on(self.api::<K>().get(name)).unwrap()
    }

    pub(crate) fn names<K>(&self) -> Vec<String>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let api = self.api::<K>();
        let list = cluster().runtime.block_on(api.list(&ListParams::default())).unwrap();
        list.items.iter().filter_map(|object| object.meta().name.clone()).collect()
    }

    /// An object of Velero's in this namespace.
    pub(crate) fn apply_velero_object(&self, kind: &str, name: &str, mut rest: Value) {
        rest["apiVersion"] = "velero.io/v1".into();
        rest["kind"] = kind.into();
        rest["metadata"]["name"] = name.into();
        rest["metadata"]["namespace"] = self.namespace.as_str().into();
        cluster().apply(rest);
    }

    /// Sets the status of a backup or restore, as a server would.
    pub(crate) fn set_status<K>(&self, name: &str, status: &Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let api = self.api::<K>();
        let (params, patch) = (PatchParams::default(), Patch::Merge(json!({"status": status})));
        cluster().runtime.block_on(api.patch(name, &params, &patch)).unwrap();
    }
}

//! A simulated node: pods on it run at once, by the thousand. Nothing is executed, except the commands of a pod that is
//! named for it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kube::Client;
use serde_json::json;
use tokio::net::TcpStream;

use crate::apply::apply;
use crate::node::is_ready;
use crate::process::Process;
use crate::program::{self, Program};
use crate::s3::{RANDOM_DEVICE, random_key};
use crate::{ControlPlane, Error, port};

const START_TIMEOUT: Duration = Duration::from_mins(1);
/// Without a renewed lease the node counts as dead after a minute. The value is that of a kubelet.
const LEASE_SECONDS: u32 = 40;

/// Name of the node.
pub const NODE: &str = "kwok-0";

/// A running kwok with one node. Dropping it ends it; the Node object stays.
#[derive(Debug)]
pub struct Kwok {
    _process: Process,
}

/// Pod in which commands are really executed: on this machine, as its user.
#[derive(Clone, Debug)]
pub struct ExecutingPod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Working folder of its commands.
    pub folder: PathBuf,
    container: String,
}

impl ExecutingPod {
    /// Names a pod whose commands run in a folder of this machine.
    pub fn new(namespace: &str, pod: &str, folder: &Path) -> Result<Self, Error> {
        let secret = random_key().map_err(Error::io("read", RANDOM_DEVICE.as_ref()))?;
        Ok(Self {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            folder: folder.to_owned(),
            container: format!("main-{secret}"),
        })
    }

    /// Name that the container of the pod must have. This name is a secret: the port of kwok is open to every user of
    /// this machine without authentication, but a request must contain this name.
    pub fn container(&self) -> &str {
        &self.container
    }
}

impl Kwok {
    /// Starts kwok in the bed of `plane` and waits until its node is ready for pods.
    pub async fn start(plane: &ControlPlane) -> Result<Self, Error> {
        let command = command(plane).await?;
        // No server: this node receives no requests.
        Self::wait_until_ready(plane, command, None).await
    }

    /// The same, with a pod in which commands are executed. Not possible in a bed with its own namespaces.
    pub async fn start_executing(plane: &ControlPlane, pod: &ExecutingPod) -> Result<Self, Error> {
        let bed = plane.bed();
        if bed.isolation().is_some() {
            return Err(Error::Isolated("kwok that executes commands"));
        }
        let config = bed.dir().join("kwok.json");
        std::fs::write(&config, exec_config(pod).to_string())
            .map_err(Error::io("write", &config))?;
        let identity = plane.authority().server("kwok-server", &[])?;
        port::with_free_ports(async |[port]: [u16; 1]| {
            let mut command = command(plane).await?;
            command
                .arg(format!("--config={}", config.display()))
                .args([format!("--server-address=127.0.0.1:{port}"), format!("--node-port={port}")])
                .arg(format!("--tls-cert-file={}", identity.certificate.display()))
                .arg(format!("--tls-private-key-file={}", identity.key.display()));
            Self::wait_until_ready(plane, command, Some(port)).await
        })
        .await
    }

    async fn wait_until_ready(
        plane: &ControlPlane,
        command: Command,
        port: Option<u16>,
    ) -> Result<Self, Error> {
        let mut process = Process::start(plane.bed(), "kwok", command)?;
        let client = plane.client().await?;
        apply(&client, node_object()).await?;
        process.wait_until(START_TIMEOUT, || is_serving(&client, port)).await?;
        Ok(Self { _process: process })
    }
}

/// Command for kwok, ready for more arguments.
async fn command(plane: &ControlPlane) -> Result<Command, Error> {
    let [binary] = program::locate([Program::Kwok]).await?;
    let kubeconfig = plane.kubeconfig_for("kwok", "kwok", Some("system:masters"))?;
    let mut command = Command::new(binary);
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg("--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake")
        .args(["--node-ip=127.0.0.1", "--cidr=10.244.0.1/16"])
        .arg(format!("--node-lease-duration-seconds={LEASE_SECONDS}"))
        // Keeps the user's configuration out.
        .env("HOME", plane.bed().dir());
    Ok(command)
}

/// `Some` once the node is ready and the port, if there is one, answers.
async fn is_serving(client: &Client, port: Option<u16>) -> Option<()> {
    is_ready(client, NODE).await?;
    match port {
        Some(port) => TcpStream::connect(("127.0.0.1", port)).await.ok().map(drop),
        None => Some(()),
    }
}

fn exec_config(pod: &ExecutingPod) -> serde_json::Value {
    let target = json!({"containers": [pod.container], "local": {"workDir": pod.folder}});
    json!({
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Exec",
        "metadata": {"name": pod.pod, "namespace": pod.namespace},
        "spec": {"execs": [target]},
    })
}

fn node_object() -> serde_json::Value {
    let room = json!({"cpu": "1000", "memory": "4Ti", "ephemeral-storage": "4Ti", "pods": "10000"});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": NODE,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": NODE,
                "kubernetes.io/os": "linux",
                "type": "kwok",
            },
        },
        "status": {"allocatable": room, "capacity": room},
    })
}

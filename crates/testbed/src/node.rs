//! A real node: kubelet, containerd and runc, running containers on this machine.
//!
//! It requires root and a bed with its own namespaces ([`Bed::isolated`]), in which the control plane runs too. Images
//! come from no registry: there is one, [`IMAGE`], made of a static busybox. Pods use it with `imagePullPolicy: Never`.
//!
//! # Guarantees
//! As for every bed: however it ends, no process, mount, network device, control group or kernel setting of the node is
//! left on the machine.

mod cgroup;
mod image;
mod runtime;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::{Api, Client};
use serde_json::json;

use crate::isolation::{Isolation, NODE_ADDRESS};
use crate::pki::Identity;
use crate::process::Process;
use crate::program::{self, Program};
use crate::{Bed, ControlPlane, Error, env};

pub use image::IMAGE;
pub use runtime::Error as RuntimeError;

/// Name of the node.
pub const NAME: &str = "node1";

const START_TIMEOUT: Duration = Duration::from_mins(2);

/// Running node. It ends with its bed.
#[derive(Debug)]
pub struct Node {
    _kubelet: Process,
    _containerd: Process,
    volumes: PathBuf,
    plugins: PathBuf,
}

/// Reason why a real node cannot run here, if so.
///
/// Tests that need one skip with this line. In CI they must run, so there it is a failure: see [`require_for_test`].
pub fn unavailable_reason() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("a real node needs root");
    }
    if !["/sbin/ip", "/usr/sbin/ip", "/bin/ip", "/usr/bin/ip"]
        .iter()
        .any(|ip| Path::new(ip).exists())
    {
        return Some("a real node needs the program `ip` of the package iproute2");
    }
    (!Isolation::is_allowed()).then_some("a real node needs the right to make namespaces")
}

/// For the start of a test that needs a real node: true if the test can continue. If not, the reason has been printed
/// in one line; in CI this panics instead, because there a skipped test is a failed one.
///
/// # Panics
/// In CI, where no node can run.
pub fn require_for_test(test: &str) -> bool {
    let Some(reason) = unavailable_reason() else { return true };
    assert!(env::get(env::CI).is_none(), "{test}: {reason}");
    crate::console::print_line(&format!("skipped {test}: {reason}"));
    false
}

impl Node {
    /// Starts the node in the isolated bed of `plane` and waits until it is ready for pods.
    pub async fn start(plane: &ControlPlane) -> Result<Self, Error> {
        let bed = plane.bed();
        let dir = bed.subdir("node").map_err(Error::io("create", bed.dir()))?;
        let [kubelet] = program::locate([Program::Kubelet]).await?;
        let runtime = runtime::locate().await?;
        cgroup::create(bed.id()).map_err(Error::io("create", Path::new(cgroup::ROOT)))?;
        let volumes = bed.subdir("volumes").map_err(Error::io("create", bed.dir()))?;

        let archive = dir.join("image.tar");
        image::pack(&runtime.busybox, &archive).map_err(Error::io("write", &archive))?;
        let socket = dir.join("containerd.sock");
        let mut containerd = start_containerd(bed, &dir, &runtime, &socket)?;
        let import = || {
            let (bed, ctr) = (bed.clone(), runtime.ctr.clone());
            let (socket, archive) = (socket.clone(), archive.clone());
            let import = move || image::import(&bed, &ctr, &socket, &archive);
            async { tokio::task::spawn_blocking(import).await.ok().flatten() }
        };
        containerd.wait_until(START_TIMEOUT, import).await?;

        let kubeconfig =
            plane.kubeconfig_for(NAME, &format!("system:node:{NAME}"), Some("system:nodes"))?;
        let serving = plane.authority().server("node1-server", &[NAME])?;
        let config = dir.join("kubelet.json");
        let text = kubelet_config(bed, &dir, &socket, &plane.authority().certificate(), &serving);
        std::fs::write(&config, text.to_string()).map_err(Error::io("write", &config))?;
        let mut command = Command::new(kubelet);
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--config={}", config.display()))
            .arg(format!("--root-dir={}", dir.join("kubelet").display()))
            .arg(format!("--cert-dir={}", dir.join("kubelet-pki").display()))
            .arg(format!("--hostname-override={NAME}"))
            .arg(format!("--node-ip={NODE_ADDRESS}"));
        let plugins = dir.join("kubelet").join("plugins_registry");
        let mut kubelet = Process::start(bed, "kubelet", command)?;
        let client = plane.client().await?;
        kubelet.wait_until(START_TIMEOUT, || is_ready(&client, NAME)).await?;
        Ok(Self { _kubelet: kubelet, _containerd: containerd, volumes, plugins })
    }

    /// Creates a folder of the node, for a `local` or `hostPath` volume.
    pub fn volume(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.volumes.join(name);
        std::fs::create_dir_all(&path).map_err(Error::io("create", &path))?;
        Ok(path)
    }

    /// Folder with the sockets of kubelet's plugins.
    pub(crate) fn plugins(&self) -> &Path {
        &self.plugins
    }
}

fn start_containerd(
    bed: &Bed,
    dir: &Path,
    runtime: &runtime::Runtime,
    socket: &Path,
) -> Result<Process, Error> {
    let cni = dir.join("cni");
    std::fs::create_dir_all(&cni).map_err(Error::io("create", &cni))?;
    let network = cni.join("10-bowline.conflist");
    std::fs::write(&network, cni_config(dir).to_string()).map_err(Error::io("write", &network))?;
    let config = dir.join("containerd.toml");
    std::fs::write(&config, containerd_config(dir, runtime, socket, &cni))
        .map_err(Error::io("write", &config))?;
    let mut command = Command::new(&runtime.containerd);
    // containerd finds its shim beside itself in PATH.
    let folder = runtime.containerd.parent().unwrap_or(Path::new("/usr/bin"));
    let path = format!("{}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", folder.display());
    command.arg("--config").arg(&config).env("PATH", path);
    Ok(Process::start(bed, "containerd", command)?)
}

fn containerd_config(dir: &Path, runtime: &runtime::Runtime, socket: &Path, cni: &Path) -> String {
    // The OOM score that kubelet sets for its sandboxes needs a capability that a container on this machine may lack;
    // without the restriction every sandbox then dies.
    format!(
        r#"version = 2
root = "{dir}/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_plugins}"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false
"#,
        dir = dir.display(),
        socket = socket.display(),
        cni_plugins = runtime.cni_plugins.display(),
        cni = cni.display(),
        runc = runtime.runc.display(),
    )
}

/// Pods reach each other and nothing else.
fn cni_config(dir: &Path) -> serde_json::Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "bowline",
        "plugins": [{
            "type": "bridge",
            "bridge": "bowline0",
            "isGateway": false,
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.244.1.0/24"}]],
                "dataDir": dir.join("cni-addresses"),
            },
        }],
    })
}

fn kubelet_config(
    bed: &Bed,
    dir: &Path,
    socket: &Path,
    authority: &Path,
    serving: &Identity,
) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": authority},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": serving.certificate,
        "tlsPrivateKeyFile": serving.key,
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", bed.id()),
        // Machines with version 1 of control groups still exist.
        "failCgroupV1": false,
        "failSwapOn": false,
        // The settings already have the values that kubelet requires: see `isolation`.
        "protectKernelDefaults": true,
        "resolvConf": "",
        "podLogsDir": dir.join("pod-logs"),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        // Not in percent: a hundredth of a large disk is more than all pods of a test ever write, and a node that is
        // short of it runs none.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "200Mi",
            "imagefs.available": "200Mi",
            "nodefs.inodesFree": "1000",
        },
        "enforceNodeAllocatable": ["pods"],
        "maxPods": 200,
    })
}

/// `Some` once the node of this name reports that it is ready for pods.
pub(crate) async fn is_ready(client: &Client, name: &str) -> Option<()> {
    let nodes: Api<NodeObject> = Api::all(client.clone());
    let conditions = nodes.get(name).await.ok()?.status?.conditions?;
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True").then_some(())
}

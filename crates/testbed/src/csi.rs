//! CSI as in production: the real snapshot controller, snapshotter and provisioner, with a driver of this project whose
//! volumes are folders.
//!
//! With a [real node](crate::Node) the driver is registered with its kubelet, and pods see their volumes. Without a
//! node everything else works as well: claims of the class [`CLASS`] are bound at once, without a pod, and their
//! snapshots are taken and restored. In that case a test writes data into volumes directly, through [`Csi::volume`].
//!
//! ```no_run
//! use bowline_testbed::{Bed, ControlPlane, Csi, Error, Options, csi};
//!
//! # async fn example() -> Result<(), Error> {
//! let bed = Bed::new()?;
//! let plane = ControlPlane::start(&bed, Options::default()).await?;
//! let csi = Csi::start(&plane, None, csi::Options::default()).await?;
//! // From now on snapshots take two seconds to become ready, and those of one claim never do.
//! csi.set_switches(&csi::Switches {
//!     ready_after_ms: 2000,
//!     never_ready: vec!["shop/orders".to_owned()],
//!     ..Default::default()
//! })?;
//! # Ok(())
//! # }
//! ```

mod calls;
mod definitions;
mod objects;
mod switches;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::storage::v1::CSINode;
use kube::{Api, Client};

use crate::apply::apply;
use crate::process::Process;
use crate::program::{self, Program};
use crate::{ControlPlane, Error, Node, node};

pub use calls::Call;
pub use switches::Switches;

/// Name of the driver.
pub const DRIVER: &str = "folders.csi.bowline.io";

/// StorageClass whose claims are bound as soon as they are created.
pub const CLASS: &str = "folders";

/// StorageClass whose claims are bound once a pod uses them.
pub const WAIT_FOR_CONSUMER_CLASS: &str = "folders-late";

/// VolumeSnapshotClass, and VolumeGroupSnapshotClass if group snapshots are enabled. Both have the label by which
/// Velero chooses a class, and delete a snapshot with its object.
pub const SNAPSHOT_CLASS: &str = "folders";

const START_TIMEOUT: Duration = Duration::from_mins(2);

/// Flags that make the controllers fast enough for tests. Their defaults are five requests per second, and growing
/// intervals of up to minutes between checks of a snapshot that is not ready.
const FAST_CONTROLLER_FLAGS: [&str; 5] = [
    "--kube-api-qps=500",
    "--kube-api-burst=1000",
    "--retry-interval-start=100ms",
    "--retry-interval-max=1s",
    "--worker-threads=20",
];

/// Options of the CSI setup.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// True to enable group snapshots.
    ///
    /// Their controllers speak `v1beta1` of the API. `v1beta2` is served too, with one difference:
    /// `volumeSnapshotInfoList` in the status of a group's content stays empty.
    pub groups: bool,
    /// Faults that the driver has from the start.
    pub switches: Switches,
}

/// Running controllers and their driver. Dropping it ends them; the objects that they created stay.
#[derive(Debug)]
pub struct Csi {
    // Fields are in the order in which the programs end: without the driver the others exit.
    provisioner: Process,
    snapshotter: Process,
    controller: Process,
    driver: Process,
    root: PathBuf,
}

impl Csi {
    /// Starts everything in the bed of `plane` and waits until volumes can be created, and mounted if there is a node.
    pub async fn start(
        plane: &ControlPlane,
        node: Option<&Node>,
        options: Options,
    ) -> Result<Self, Error> {
        let [driver, controller, snapshotter, provisioner] = program::locate([
            Program::CsiDriver,
            Program::SnapshotController,
            Program::CsiSnapshotter,
            Program::CsiProvisioner,
        ])
        .await?;
        let client = plane.client().await?;
        definitions::install(&client, options.groups).await?;
        for object in objects::all(options.groups) {
            apply(&client, object).await?;
        }

        let bed = plane.bed();
        let root = bed.subdir("csi").map_err(Error::io("create", bed.dir()))?;
        let socket = root.join("csi.sock");
        switches::write(&root, &options.switches)?;
        let mut driver =
            Process::start(bed, "csi-driver", driver_command(&driver, &root, &socket, node))?;
        driver.wait_until(START_TIMEOUT, async || socket.exists().then_some(())).await?;
        if node.is_some() {
            driver.wait_until(START_TIMEOUT, || is_registered(&client)).await?;
        }

        let kubeconfig = plane.kubeconfig_for("csi", "csi", Some("system:masters"))?;
        let start = |name, binary: &Path, arguments: &[&str]| {
            let mut command = Command::new(binary);
            command
                .arg(format!("--kubeconfig={}", kubeconfig.display()))
                .args(FAST_CONTROLLER_FLAGS);
            command.args(arguments);
            Process::start(bed, name, command)
        };
        let groups = format!("--feature-gates=CSIVolumeGroupSnapshot={}", options.groups);
        let address = format!("--csi-address={}", socket.display());
        // The driver receives the names of claims and snapshots, to know which ones to fail.
        let sidecar = [&*address, "--extra-create-metadata", "--timeout=1m"];
        let mut controller = start("snapshot-controller", &controller, &[&groups])?;
        let mut snapshotter =
            start("csi-snapshotter", &snapshotter, &[&sidecar[..], &[&groups]].concat())?;
        // Each sidecar asks for the driver's name when it starts.
        snapshotter.wait_until(START_TIMEOUT, async || has_answered_plugin_info(&root, 1)).await?;
        let mut provisioner = start("csi-provisioner", &provisioner, &sidecar)?;
        provisioner.wait_until(START_TIMEOUT, async || has_answered_plugin_info(&root, 2)).await?;
        controller.check()?;
        Ok(Self { provisioner, snapshotter, controller, driver, root })
    }

    /// Replaces the switches of the driver, from its next call on.
    pub fn set_switches(&self, switches: &Switches) -> Result<(), Error> {
        switches::write(&self.root, switches)
    }

    /// Calls that the driver has received so far, in the order in which they began.
    pub fn calls(&self) -> Result<Vec<Call>, Error> {
        calls::read(&self.root)
    }

    /// Folder with the data of a volume, by the `volumeHandle` of its PersistentVolume.
    pub fn volume(&self, handle: &str) -> PathBuf {
        self.root.join("volumes").join(handle).join("data")
    }

    /// Handles of all volumes that the driver has.
    pub fn volumes(&self) -> Result<Vec<String>, Error> {
        self.handles("volumes")
    }

    /// Folder with the data of a snapshot, by the `snapshotHandle` of its content.
    pub fn snapshot(&self, handle: &str) -> PathBuf {
        self.root.join("snapshots").join(handle).join("data")
    }

    /// Handles of all snapshots that the driver has.
    pub fn snapshots(&self) -> Result<Vec<String>, Error> {
        self.handles("snapshots")
    }

    /// Handles of all snapshot groups that the driver has.
    pub fn groups(&self) -> Result<Vec<String>, Error> {
        self.handles("groups")
    }

    /// Returns an error if one of the programs has ended, with its last log line.
    pub fn check(&mut self) -> Result<(), Error> {
        let Self { provisioner, snapshotter, controller, driver, root: _ } = self;
        // The driver first: without it the others exit.
        for process in [driver, controller, snapshotter, provisioner] {
            process.check()?;
        }
        Ok(())
    }

    fn handles(&self, kind: &str) -> Result<Vec<String>, Error> {
        let folder = self.root.join(kind);
        let mut handles = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(Error::io("list", &folder))? {
            let entry = entry.map_err(Error::io("list", &folder))?;
            handles.push(entry.file_name().to_string_lossy().into_owned());
        }
        handles.sort();
        Ok(handles)
    }
}

fn driver_command(binary: &Path, root: &Path, socket: &Path, node: Option<&Node>) -> Command {
    let mut command = Command::new(binary);
    command.arg(format!("--name={DRIVER}"));
    command.arg(format!("--root={}", root.display()));
    command.arg(format!("--socket={}", socket.display()));
    if let Some(node) = node {
        command.arg(format!("--node={}", node::NAME));
        command.arg(format!("--registry={}", node.plugins().display()));
    }
    command
}

/// `Some` once `count` programs have asked the driver for its name.
fn has_answered_plugin_info(root: &Path, count: usize) -> Option<()> {
    let calls = calls::read(root).ok()?;
    let info_calls =
        calls.iter().filter(|call| call.method == "GetPluginInfo" && call.ended.is_some());
    (info_calls.count() >= count).then_some(())
}

/// `Some` once kubelet has registered the driver and published it.
async fn is_registered(client: &Client) -> Option<()> {
    let nodes: Api<CSINode> = Api::all(client.clone());
    let drivers = nodes.get(node::NAME).await.ok()?.spec.drivers;
    drivers.iter().any(|driver| driver.name == DRIVER).then_some(())
}

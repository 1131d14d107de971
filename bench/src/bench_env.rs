//! Environment of the measurements: a control plane that runs nothing else, and the bucket of the whole run.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use bowline_testbed::{Bed, ControlPlane, Options, S3, apply};
use kube::Client;
use serde::Serialize;

use crate::measure::{self, Usage};

/// Cluster, and everything that contenders need to work on it.
pub(crate) struct BenchEnv {
    pub(crate) s3: Arc<S3>,
    pub(crate) plane: ControlPlane,
    pub(crate) client: Client,
    /// Bed of the servers, outside the namespaces of a node.
    pub(crate) servers: Bed,
    /// True if servers take snapshots with CSI drivers.
    pub(crate) has_csi: bool,
    /// Measured binaries.
    pub(crate) binaries: Binaries,
    /// Processes of the API server, etcd and the controllers.
    pub(crate) cluster: [u32; 3],
}

/// Measured binaries of Bowline.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    pub(crate) bowline: PathBuf,
    /// Another build, for comparison.
    pub(crate) baseline: Option<PathBuf>,
}

/// Other use of the machine during a measurement, in seconds of its cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct MachineUsage {
    #[serde(rename = "apiserver_cpu_s")]
    pub(crate) api_server: f64,
    #[serde(rename = "etcd_cpu_s")]
    pub(crate) etcd: f64,
    #[serde(rename = "controllers_cpu_s")]
    pub(crate) controllers: f64,
    /// Idle time.
    #[serde(rename = "idle_s")]
    pub(crate) idle: f64,
}

impl MachineUsage {
    /// From the usage of the processes in [`BenchEnv::cluster`], in their order, and the idle time.
    pub(crate) fn new([api_server, etcd, controllers]: [Usage; 3], idle: f64) -> Self {
        Self {
            api_server: api_server.cpu_s,
            etcd: etcd.cpu_s,
            controllers: controllers.cpu_s,
            idle,
        }
    }
}

impl BenchEnv {
    /// Starts a new control plane, which serves the kinds of backups and restores and is otherwise empty. The previous
    /// one must have ended.
    pub(crate) async fn set_up(s3: &Arc<S3>, binaries: &Binaries) -> anyhow::Result<Self> {
        let bed = Bed::new()?;
        Self::start_in_bed(&bed, bed.clone(), s3, binaries).await
    }

    /// The same, in its own namespaces, so that it can have a real node.
    pub(crate) async fn set_up_for_node(s3: &Arc<S3>, binaries: &Binaries) -> anyhow::Result<Self> {
        Self::start_in_bed(&Bed::isolated()?, Bed::new()?, s3, binaries).await
    }

    async fn start_in_bed(
        bed: &Bed,
        servers: Bed,
        s3: &Arc<S3>,
        binaries: &Binaries,
    ) -> anyhow::Result<Self> {
        let plane = ControlPlane::start(bed, Options::default()).await?;
        let client = plane.client().await?;
        for definition in bowline_api::crds::all() {
            apply::apply(&client, serde_json::to_value(definition)?).await?;
        }
        let process =
            |name| measure::find_process(name).with_context(|| format!("there is no {name}"));
        // Names of processes have fifteen characters at most.
        let cluster = [process("kube-apiserver")?, process("etcd")?, process("kube-controller")?];
        let (s3, binaries) = (Arc::clone(s3), binaries.clone());
        Ok(Self { s3, plane, client, servers, has_csi: false, binaries, cluster })
    }
}

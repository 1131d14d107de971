//! The programs of the test bed, and the source of each.
//!
//! Searched in this order: the folder named by [`env::ASSETS`], the one named by [`env::KUBEBUILDER_ASSETS`], the
//! user's cache; else built from pinned Go modules into that cache ([`crate::gobuild`]). The module files lie in `go/`
//! of this crate and are part of the binary, so that `bowline demo` can build what it needs wherever it is installed.

use std::path::{Path, PathBuf};

use crate::env;
use crate::gobuild::{self, Cache};

/// A program that the test bed runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Store of the control plane.
    Etcd,
    /// Kubernetes API server.
    ApiServer,
    /// Controllers: service accounts, deployments, garbage collection and so on.
    ControllerManager,
    /// Scheduler, which assigns pods to nodes.
    Scheduler,
    /// For people, and for tests of the output that people see.
    Kubectl,
    /// Agent of the real node.
    Kubelet,
    /// Simulates nodes and pods by the thousand.
    Kwok,
    /// S3 server.
    Versitygw,
    /// Velero itself, the reference for compatibility.
    Velero,
    /// Velero's plugin for S3.
    VeleroPluginForAws,
    /// Plugins of every kind in Velero's framework, whose behaviour tests control.
    FixturePlugins,
    /// VolumeSnapshotter of version 2, written in Go without any framework.
    SnapshotterV2,
    /// Binds snapshots to their contents, for any driver.
    SnapshotController,
    /// Sidecar that has a CSI driver create and delete snapshots.
    CsiSnapshotter,
    /// Sidecar that has a CSI driver create and delete volumes.
    CsiProvisioner,
    /// CSI driver whose volumes are folders, and whose behaviour tests control.
    CsiDriver,
    /// Kopia's command, from the fork that Velero pins: the reference for the format of repositories.
    Kopia,
}

/// Go module of this project: pins programs of one upstream project, or contains the source of its own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) files: &'static [(&'static str, &'static str)],
    pub(crate) ldflags: &'static str,
}

macro_rules! module {
    ($folder:literal, $version:literal, $ldflags:expr, [$($file:literal),+]) => {
        Module {
            name: $folder,
            version: $version,
            files: &[$(($file, include_str!(concat!("../go/", $folder, "/", $file)))),+],
            ldflags: $ldflags,
        }
    };
}

/// Without these flags Kubernetes calls itself `v0.0.0-master+$Format…`, which clients cannot parse.
static KUBERNETES: Module = module!(
    "kubernetes",
    "v1.36.3",
    "-X k8s.io/component-base/version.gitVersion=v1.36.3 \
     -X k8s.io/component-base/version.gitMajor=1 \
     -X k8s.io/component-base/version.gitMinor=36 \
     -X k8s.io/client-go/pkg/version.gitVersion=v1.36.3",
    ["go.mod", "go.sum", "tools.go"]
);
static ETCD: Module = module!("etcd", "v3.6.5", "", ["go.mod", "go.sum", "tools.go"]);
static KWOK: Module = module!("kwok", "v0.7.0", "", ["go.mod", "go.sum", "tools.go"]);
static VERSITYGW: Module = module!("versitygw", "v1.8.0", "", ["go.mod", "go.sum", "tools.go"]);
static VELERO: Module = module!(
    "velero",
    "v1.18.3",
    "-X github.com/vmware-tanzu/velero/pkg/buildinfo.Version=v1.18.3",
    ["go.mod", "go.sum", "tools.go"]
);
static VELERO_PLUGIN_FOR_AWS: Module =
    module!("velero-plugin-for-aws", "v1.14.3", "", ["go.mod", "go.sum", "tools.go"]);
/// Named after the version of Velero's framework that they are built with.
static FIXTURE_PLUGINS: Module = module!(
    "fixture-plugins",
    "v1.18.3",
    "",
    [
        "go.mod",
        "go.sum",
        "main.go",
        "item.go",
        "backup.go",
        "restore.go",
        "delete.go",
        "block.go",
        "snapshotter.go",
        "report.go",
        "store.go",
        "volumes.go"
    ]
);
static SNAPSHOTTER_V2: Module = module!(
    "snapshotter-v2",
    "v1.18.3",
    "",
    ["go.mod", "go.sum", "main.go", "service.go", "snapshotter.go", "upload.go", "volumes.go"]
);
static EXTERNAL_SNAPSHOTTER: Module =
    module!("external-snapshotter", "v8.3.0", "", ["go.mod", "go.sum", "tools.go"]);
static EXTERNAL_PROVISIONER: Module =
    module!("external-provisioner", "v5.1.0", "", ["go.mod", "go.sum", "tools.go"]);
static KOPIA: Module =
    module!("kopia", "v0.0.0-20251230033609-d946b1e75197", "", ["go.mod", "go.sum", "tools.go"]);
/// Named after the version of CSI that it speaks.
static CSI_DRIVER: Module = module!(
    "csi-driver",
    "v1.11.0",
    "",
    [
        "go.mod",
        "go.sum",
        "main.go",
        "identity.go",
        "controller.go",
        "snapshots.go",
        "groups.go",
        "node.go",
        "folders.go",
        "switches.go",
        "calls.go"
    ]
);

impl Program {
    /// Name of the program's file.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kubelet => "kubelet",
            Self::Kwok => "kwok",
            Self::Versitygw => "versitygw",
            Self::Velero => "velero",
            Self::VeleroPluginForAws => "velero-plugin-for-aws",
            Self::FixturePlugins => "fixture-plugins",
            Self::SnapshotterV2 => "snapshotter-v2",
            Self::SnapshotController => "snapshot-controller",
            Self::CsiSnapshotter => "csi-snapshotter",
            Self::CsiProvisioner => "csi-provisioner",
            Self::CsiDriver => "csi-driver",
            Self::Kopia => "kopia",
        }
    }

    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::ApiServer => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::ControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
            Self::Scheduler => "k8s.io/kubernetes/cmd/kube-scheduler",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::Kubelet => "k8s.io/kubernetes/cmd/kubelet",
            Self::Kwok => "sigs.k8s.io/kwok/cmd/kwok",
            Self::Versitygw => "github.com/versity/versitygw/cmd/versitygw",
            Self::Velero => "github.com/vmware-tanzu/velero/cmd/velero",
            Self::VeleroPluginForAws => {
                "github.com/vmware-tanzu/velero-plugin-for-aws/velero-plugin-for-aws"
            }
            Self::FixturePlugins => "bowline.io/testbed/fixture-plugins",
            Self::SnapshotterV2 => "bowline.io/testbed/snapshotter-v2",
            Self::SnapshotController => {
                "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"
            }
            Self::CsiSnapshotter => {
                "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"
            }
            Self::CsiProvisioner => {
                "github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner"
            }
            Self::CsiDriver => "bowline.io/testbed/csi-driver",
            Self::Kopia => "github.com/kopia/kopia",
        }
    }

    pub(crate) fn module(self) -> &'static Module {
        match self {
            Self::Etcd => &ETCD,
            Self::ApiServer
            | Self::ControllerManager
            | Self::Scheduler
            | Self::Kubectl
            | Self::Kubelet => &KUBERNETES,
            Self::Kwok => &KWOK,
            Self::Versitygw => &VERSITYGW,
            Self::Velero => &VELERO,
            Self::VeleroPluginForAws => &VELERO_PLUGIN_FOR_AWS,
            Self::FixturePlugins => &FIXTURE_PLUGINS,
            Self::SnapshotterV2 => &SNAPSHOTTER_V2,
            Self::SnapshotController | Self::CsiSnapshotter => &EXTERNAL_SNAPSHOTTER,
            Self::CsiProvisioner => &EXTERNAL_PROVISIONER,
            Self::CsiDriver => &CSI_DRIVER,
            Self::Kopia => &KOPIA,
        }
    }
}

/// Finds programs, and builds those that are missing. Returns their paths in the same order.
///
/// The first time this may take minutes, with progress on standard error.
pub async fn locate<const N: usize>(
    programs: [Program; N],
) -> Result<[PathBuf; N], gobuild::Error> {
    let folders = asset_folders();
    let cache = Cache::of_user()?;
    let missing: Vec<Program> =
        programs.into_iter().filter(|&program| find(program, &folders, &cache).is_none()).collect();
    cache.build(&missing).await?;
    Ok(programs
        .map(|program| find(program, &folders, &cache).unwrap_or_else(|| cache.path(program))))
}

/// Folder of the CustomResourceDefinitions of snapshots, downloaded into the cache if it is neither there nor, as
/// `snapshot-definitions`, in a named folder.
pub(crate) async fn snapshot_definitions() -> Result<PathBuf, gobuild::Error> {
    let named = asset_folders().into_iter().map(|folder| folder.join("snapshot-definitions"));
    if let Some(folder) = named.into_iter().find(|folder| folder.is_dir()) {
        return Ok(folder);
    }
    let upstream = "github.com/kubernetes-csi/external-snapshotter/client/v8";
    Cache::of_user()?.fetch(&EXTERNAL_SNAPSHOTTER, upstream, "config/crd").await
}

fn asset_folders() -> Vec<PathBuf> {
    let names = [env::ASSETS, env::KUBEBUILDER_ASSETS];
    names.into_iter().filter_map(env::get).map(PathBuf::from).collect()
}

fn find(program: Program, folders: &[PathBuf], cache: &Cache) -> Option<PathBuf> {
    folders
        .iter()
        .map(|folder| folder.join(program.file_name()))
        .chain([cache.path(program)])
        .find(|path| Path::is_file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asset_folder_wins_over_the_cache_per_file() {
        let named = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::at_folder(root.path());
        let folders = [named.path().to_owned()];
        assert_eq!(find(Program::Etcd, &folders, &cache), None);

        let cached = cache.path(Program::Etcd);
        std::fs::create_dir_all(cached.parent().unwrap()).unwrap();
        std::fs::write(&cached, "").unwrap();
        assert_eq!(find(Program::Etcd, &folders, &cache), Some(cached));

        let given = named.path().join("etcd");
        std::fs::write(&given, "").unwrap();
        assert_eq!(find(Program::Etcd, &folders, &cache), Some(given));
    }

    #[test]
    fn every_module_requires_its_own_version() {
        for module in [
            &KUBERNETES,
            &ETCD,
            &KWOK,
            &VERSITYGW,
            &VELERO,
            &VELERO_PLUGIN_FOR_AWS,
            &FIXTURE_PLUGINS,
            &SNAPSHOTTER_V2,
            &EXTERNAL_SNAPSHOTTER,
            &EXTERNAL_PROVISIONER,
            &CSI_DRIVER,
            &KOPIA,
        ] {
            let go_mod = module.files[0].1;
            assert!(go_mod.contains(&format!(" {}\n", module.version)), "{}", module.name);
        }
    }
}

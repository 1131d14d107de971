//! Environment of the server: a control plane, a node with pods that can be frozen, a CSI driver, a bucket behind a
//! gate, and applications whose items plugins process in the background.

mod app;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use bowline_api::access::{self, Profile};
use bowline_api::location::LocationPhase;
use bowline_api::{
    Backup, BackupStorageLocation, DeleteBackupRequest, Restore, VolumeSnapshotLocation, label,
};
use bowline_engine::failpoint::Failpoint;
use bowline_testbed::csi::Switches;
use bowline_testbed::{
    Account, Bed, ControlPlane, Csi, Node, S3, api_proxy, apply, csi, fixture, node, s3,
};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota, Secret,
};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::gate::ConnectionGate;
use crate::plan::{KillTarget, SnapshotterMode};
use crate::print_line;
pub(crate) use app::{Volume, contents, csi_claims_of, volumes_of};

/// Namespace of the server.
const NAMESPACE: &str = "velero";
const BUCKET: &str = "kills";
/// Applications that are backed up in each round.
pub(crate) const APPS: [&str; 2] = ["app-left", "app-right"];
/// Application that is restored in each round, from a backup of the same name.
pub(crate) const BASE: &str = "app-base";
/// Snapshot location.
const DISKS: &str = "disks";
/// Quota that keeps journals from growing.
const QUOTA: &str = "no-journal-pages";
/// Duration of a snapshot and of its upload, in milliseconds.
const SNAPSHOT_MS: u32 = 50;
const UPLOAD_MS: u32 = 300;
/// Time for which a resource written by the plugin is open: shorter than the server's poll interval, and longer.
const SHORT_REPORT_MS: u32 = 400;
const LONG_REPORT_MS: u32 = 1500;
/// Longest wait for anything before the first kill.
const SET_UP_TIMEOUT: Duration = Duration::from_mins(3);
/// Interval of checks while waiting.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Everything that exists while servers come and go.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) gate: ConnectionGate,
    /// Bucket, as a folder.
    pub(crate) bucket: PathBuf,
    /// Volumes and snapshots of the plugin, as a folder: see the README of the fixture plugins.
    pub(crate) disks: PathBuf,
    /// Address of the API server for plugins without TLS.
    api_url: String,
    /// File in which plugins record their calls.
    pub(crate) calls: PathBuf,
    /// Folder in which pods record freezes and thaws, if such pods can run.
    hook_log_dir: Option<PathBuf>,
    sabotage: Option<Failpoint>,
    folder: PathBuf,
    _plane: ControlPlane,
    /// Kubeconfig of servers, with the rights of servers installed with the full profile.
    server_kubeconfig: PathBuf,
    pub(crate) csi: Csi,
    _node: Option<Node>,
    s3: S3,
    bed: Bed,
}

impl World {
    /// Starts everything, and takes the backup that is restored later.
    pub(crate) async fn set_up(sabotage: Option<Failpoint>) -> anyhow::Result<Self> {
        let unavailable = node::unavailable_reason();
        if let Some(reason) = unavailable {
            print_line(format_args!("no pod is frozen: {reason}"));
        }
        print_line("starting a control plane, a bucket and what else is needed");
        let isolated = if unavailable.is_none() { Bed::isolated()? } else { Bed::new()? };
        let bed = Bed::new()?;
        let plane = ControlPlane::start(&isolated, bowline_testbed::Options::default()).await?;
        let node = match unavailable {
            None => Some(Node::start(&plane).await?),
            Some(_) => None,
        };
        // Its snapshots become ready a little later, so that a kill can fall between the two.
        let switches = Switches { ready_after_ms: 300, ..Switches::default() };
        let options = csi::Options { switches, ..csi::Options::default() };
        let csi = Csi::start(&plane, node.as_ref(), options).await?;
        let s3 = S3::start(&bed).await?;
        let bucket = s3.create_bucket(BUCKET).context("cannot make a bucket")?;
        let address = s3.url().trim_start_matches("http://").parse();
        let gate = ConnectionGate::open_to(address.context("the bucket has no address")?).await?;
        let folder = bed.subdir("kill").context("cannot make a directory")?;
        for name in ["plugins", "scratch", "state"] {
            std::fs::create_dir_all(folder.join(name)).context("cannot make a directory")?;
        }
        let plugin = fixture::rust_plugins().await?;
        std::os::unix::fs::symlink(plugin, folder.join("plugins/fixture"))
            .context("cannot install the plugins")?;
        let hook_log_dir = node.as_ref().map(|node| node.volume("notes")).transpose()?;
        let account = Account {
            user: "bowline".to_owned(),
            cluster_rules: access::cluster_rules(Profile::Full),
            namespace: NAMESPACE.to_owned(),
            own_rules: access::own_rules(),
        };
        let client = plane.client().await?;
        let world = Self {
            api_url: api_proxy::start(client.clone()).await.context("cannot open a port")?,
            client,
            server_kubeconfig: account.open(&plane).await?,
            gate,
            bucket,
            disks: folder.join(DISKS),
            calls: folder.join("state/calls"),
            hook_log_dir,
            sabotage,
            folder,
            _plane: plane,
            csi,
            _node: node,
            s3,
            bed,
        };
        world.fill().await?;
        world.create_base_backup().await?;
        Ok(world)
    }

    pub(crate) fn can_freeze(&self) -> bool {
        self.hook_log_dir.is_some()
    }

    /// Objects of a kind in the server's namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Installs the definitions, the locations and the applications.
    async fn fill(&self) -> anyhow::Result<()> {
        for definition in bowline_api::crds::all() {
            apply::apply(&self.client, serde_json::to_value(definition)?).await?;
        }
        for name in [BASE].iter().chain(&APPS) {
            let namespace = json!({"metadata": {"name": name}});
            let api: Api<Namespace> = Api::all(self.client.clone());
            api.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
        }
        let credentials = std::fs::read_to_string(self.s3.credentials_file())?;
        let secret = json!({"metadata": {"name": "s3"}, "stringData": {"cloud": credentials}});
        self.create(&self.api::<Secret>(), secret).await?;
        let location = json!({"metadata": {"name": "default"}, "spec": {
            "provider": "aws",
            "default": true,
            "objectStorage": {"bucket": BUCKET},
            "credential": {"name": "s3", "key": "cloud"},
            "config": {
                "region": s3::REGION, "s3ForcePathStyle": "true", "s3Url": self.gate.url(),
            },
        }});
        self.create(&self.api::<BackupStorageLocation>(), location).await?;
        let location = json!({"metadata": {"name": DISKS}, "spec": {"provider": "none"}});
        self.create(&self.api::<VolumeSnapshotLocation>(), location).await?;
        self.set_snapshotter(SnapshotterMode::ServerWrites).await?;
        for app in APPS {
            self.deploy(app, self.hook_log_dir.as_deref()).await?;
        }
        self.deploy(BASE, None).await?;
        for app in APPS {
            for pod in app::hooked_pods(app) {
                self.wait_until_ready(app, &pod).await?;
            }
        }
        for app in APPS.into_iter().chain([BASE]) {
            for claim in volumes_of(app, false).into_iter().filter_map(|volume| volume.claim) {
                self.wait_until_bound(app, &claim).await?;
            }
            for claim in csi_claims_of(app) {
                let handle =
                    self.csi_volume(app, &self.wait_until_bound(app, &claim).await?).await?;
                let file = self.csi.volume(&handle).join(app::DATA);
                std::fs::write(file, &claim).context("cannot fill a volume")?;
            }
        }
        Ok(())
    }

    /// Snapshot location with a snapshotter. All of them have the same snapshots.
    fn disks_spec(&self, snapshotter: SnapshotterMode) -> Value {
        let mut spec = json!({
            "provider": "fixture.bowline.io/vs-v2",
            "config": {
                "root": self.disks,
                "snapshot-ms": SNAPSHOT_MS.to_string(), "upload-ms": UPLOAD_MS.to_string(),
                // Null: a patch removes them.
                "report": null, "report-namespace": null, "report-ms": null,
            },
        });
        let report = match snapshotter {
            SnapshotterMode::ServerWrites => return spec,
            SnapshotterMode::PluginWrites => LONG_REPORT_MS,
            SnapshotterMode::OnlyPluginReports => {
                spec["provider"] = json!("fixture.bowline.io/vs-v1");
                SHORT_REPORT_MS
            }
        };
        spec["config"]["report"] = json!(self.api_url);
        spec["config"]["report-namespace"] = json!(NAMESPACE);
        spec["config"]["report-ms"] = json!(report.to_string());
        spec
    }

    /// Changes the snapshotter. No server may run meanwhile.
    pub(crate) async fn set_snapshotter(&self, snapshotter: SnapshotterMode) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({"spec": self.disks_spec(snapshotter)}));
        let api = self.api::<VolumeSnapshotLocation>();
        api.patch(DISKS, &PatchParams::default(), &change).await.map(drop)?;
        Ok(())
    }

    /// Handle of a PersistentVolume.
    async fn csi_volume(&self, app: &str, volume: &str) -> anyhow::Result<String> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let spec = volumes.get(volume).await?.spec.unwrap_or_default();
        let handle = spec.csi.map(|csi| csi.volume_handle);
        handle.with_context(|| format!("the volume {volume} of {app} has no handle"))
    }

    /// True if a folder of the CSI driver has the data of a claim's volume.
    pub(crate) fn has_data_of_claim(folder: &Path, claim: &str) -> bool {
        std::fs::read_to_string(folder.join(app::DATA)).is_ok_and(|data| data == claim)
    }

    /// Deploys an application; with pods that can be frozen if a folder for their records is given.
    async fn deploy(&self, app: &str, hook_log_dir: Option<&Path>) -> anyhow::Result<()> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), app);
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), app);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), app);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        for name in app::maps_of(app) {
            self.create(&maps, json!({"metadata": {"name": name}, "data": {"k": "v"}})).await?;
        }
        for volume in volumes_of(app, hook_log_dir.is_some()) {
            let folder = self.disks.join("volumes").join(&volume.name);
            std::fs::create_dir_all(&folder).context("cannot make a volume")?;
            std::fs::write(folder.join(app::DATA), &volume.name).context("cannot fill a volume")?;
            self.create(&volumes, app::persistent_volume(app, &volume)).await?;
        }
        for name in app::claims_of(app) {
            self.create(&claims, app::claim(app, &name)).await?;
        }
        self.create(&pods, app::idle_pod(app)).await?;
        if let Some(hook_log_dir) = hook_log_dir {
            for name in app::hooked_pods(app) {
                self.create(&pods, app::hooked_pod(app, &name, hook_log_dir)).await?;
            }
        }
        Ok(())
    }

    /// True if a volume of the plugin has the data of another.
    pub(crate) fn has_data_of(&self, id: &str, volume: &Volume) -> bool {
        let data = std::fs::read_to_string(self.disks.join("volumes").join(id).join(app::DATA));
        data.is_ok_and(|data| data == volume.name)
    }

    /// Creates an object. A new namespace needs a moment before it accepts pods.
    async fn create<K>(&self, api: &Api<K>, object: Value) -> anyhow::Result<K>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        let mut object = object;
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        let object: K = serde_json::from_value(object)?;
        let deadline = Instant::now() + SET_UP_TIMEOUT;
        loop {
            match api.create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(status))
                    if status.code == 403 && Instant::now() < deadline =>
                {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                created => return Ok(created?),
            }
        }
    }

    async fn wait_until_ready(&self, app: &str, pod: &str) -> anyhow::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), app);
        let deadline = Instant::now() + SET_UP_TIMEOUT;
        while self.can_freeze() {
            let status = pods.get(pod).await?.status.unwrap_or_default();
            let containers = status.container_statuses.as_deref().unwrap_or_default();
            if !containers.is_empty() && containers.iter().all(|container| container.ready) {
                return Ok(());
            }
            let status = json!(status);
            ensure!(Instant::now() < deadline, "the pod {app}/{pod} does not run: {status}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until a claim is bound. Returns its volume.
    async fn wait_until_bound(&self, app: &str, claim: &str) -> anyhow::Result<String> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), app);
        let deadline = Instant::now() + SET_UP_TIMEOUT;
        while Instant::now() < deadline {
            let found = claims.get(claim).await?;
            let phase = found.status.and_then(|status| status.phase);
            if phase.as_deref() == Some("Bound") {
                return Ok(found.spec.and_then(|spec| spec.volume_name).unwrap_or_default());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        bail!("the claim {app}/{claim} is not bound");
    }

    /// Waits until a server reports the bucket as available. Until then backups are rejected.
    pub(crate) async fn wait_until_available(&self) -> anyhow::Result<()> {
        let api = self.api::<BackupStorageLocation>();
        let deadline = Instant::now() + SET_UP_TIMEOUT;
        while Instant::now() < deadline {
            let status = api.get("default").await?.status.unwrap_or_default();
            if status.phase == Some(LocationPhase::Available) {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        bail!("the bucket cannot be used; see {}", self.log().display());
    }

    /// Takes the backup that every round restores.
    async fn create_base_backup(&self) -> anyhow::Result<()> {
        let mut server = self.start(None)?;
        self.wait_until_available().await?;
        self.back_up(BASE, BASE).await?;
        let deadline = Instant::now() + SET_UP_TIMEOUT;
        while Instant::now() < deadline {
            let status = self.api::<Backup>().get(BASE).await?.status.unwrap_or_default();
            match status.phase {
                Some(phase) if phase.is_terminal() => {
                    ensure!(
                        phase == bowline_api::BackupPhase::Completed,
                        "the first backup is {phase:?}: {} {:?}",
                        status.failure_reason,
                        status.validation_errors,
                    );
                    self.wait_until_no_journals().await?;
                    return server.kill();
                }
                _ => tokio::time::sleep(POLL_INTERVAL).await,
            }
            if let Some(exit) = server.exit_status()? {
                bail!("the server ended by itself, {exit}; see {}", self.log().display());
            }
        }
        bail!("the first backup does not end; see {}", self.log().display());
    }

    /// Creates a Backup of a namespace. Returns its uid.
    pub(crate) async fn back_up(&self, name: &str, namespace: &str) -> anyhow::Result<String> {
        let spec = json!({
            "includedNamespaces": [namespace],
            "snapshotVolumes": true,
            "volumeSnapshotLocations": [DISKS],
        });
        let backup = json!({"metadata": {"name": name}, "spec": spec});
        let created = self.create(&self.api::<Backup>(), backup).await?;
        created.metadata.uid.context("a Backup without a uid")
    }

    /// Creates a Restore of the first backup into a namespace. Returns its uid.
    pub(crate) async fn restore(&self, name: &str, namespace: &str) -> anyhow::Result<String> {
        let spec = json!({"backupName": BASE, "namespaceMapping": {BASE: namespace}});
        let restore = json!({"metadata": {"name": name}, "spec": spec});
        let created = self.create(&self.api::<Restore>(), restore).await?;
        created.metadata.uid.context("a Restore without a uid")
    }

    /// Requests the deletion of a Backup, by a request of the same name.
    pub(crate) async fn delete(&self, backup: &str) -> anyhow::Result<()> {
        let request = json!({"metadata": {"name": backup}, "spec": {"backupName": backup}});
        self.create(&self.api::<DeleteBackupRequest>(), request).await.map(drop)
    }

    /// Uids of runs that have a journal.
    pub(crate) async fn journals(&self) -> anyhow::Result<Vec<String>> {
        let params = ListParams::default().labels(label::JOURNAL);
        let found = self.api::<ConfigMap>().list(&params).await?;
        let uid = |map: ConfigMap| map.metadata.labels?.remove(label::JOURNAL);
        Ok(found.items.into_iter().filter_map(uid).collect())
    }

    /// Has the API server reject every new page of a journal, by a quota that is used up.
    pub(crate) async fn refuse_journal_pages(&self) -> anyhow::Result<()> {
        let quotas = self.api::<ResourceQuota>();
        let spec = json!({"hard": {"count/configmaps": "0"}});
        self.create(&quotas, json!({"metadata": {"name": QUOTA}, "spec": spec})).await?;
        // Until the controller has counted the existing pages, the quota may reject nothing.
        let deadline = Instant::now() + SET_UP_TIMEOUT;
        while quotas.get(QUOTA).await?.status.is_none_or(|status| status.hard.is_none()) {
            ensure!(Instant::now() < deadline, "the quota on ConfigMaps is not counted");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Undoes [`Self::refuse_journal_pages`].
    pub(crate) async fn accept_journal_pages(&self) -> anyhow::Result<()> {
        self.api::<ResourceQuota>().delete(QUOTA, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until no run has a journal.
    async fn wait_until_no_journals(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + SET_UP_TIMEOUT;
        while !self.journals().await?.is_empty() {
            ensure!(Instant::now() < deadline, "a journal is left");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Records of the pods: their names and lines.
    pub(crate) fn read_hook_log(&self) -> Vec<(String, Vec<String>)> {
        let Some(hook_log_dir) = &self.hook_log_dir else { return Vec::new() };
        let pods = APPS.into_iter().flat_map(app::hooked_pods);
        pods.map(|pod| {
            let text = std::fs::read_to_string(hook_log_dir.join(&pod)).unwrap_or_default();
            let lines = text.lines().map(str::to_owned).collect();
            (pod, lines)
        })
        .collect()
    }

    /// Log of the servers.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Starts a server. It kills itself at a target that is a failpoint.
    pub(crate) fn start(&self, target: Option<KillTarget>) -> anyhow::Result<ServerProcess> {
        let mut command = Command::new(std::env::current_exe().context("cannot find myself")?);
        command.arg("serve").arg("--kubeconfig").arg(&self.server_kubeconfig);
        command.args(["--namespace", NAMESPACE]);
        command.arg("--plugins").arg(self.folder.join("plugins"));
        command.arg("--scratch").arg(self.folder.join("scratch"));
        command.env("FIXTURE_STATE_DIR", self.folder.join("state"));
        if let Some(KillTarget::At(point, passing)) = target {
            command.args(["--die-at", point.as_str(), "--passing", &passing.to_string()]);
        }
        if let Some(sabotage) = self.sabotage {
            command.args(["--leave-out", sabotage.as_str()]);
        }
        let log = OpenOptions::new().append(true).create(true).open(self.log());
        let log = log.context("cannot open the log of the server")?;
        command.stdout(log.try_clone().context("cannot open the log of the server")?).stderr(log);
        let child = self.bed.spawn(command).context("cannot start the server")?;
        Ok(ServerProcess(child))
    }
}

/// Running server, killed on drop.
pub(crate) struct ServerProcess(Child);

impl ServerProcess {
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.0.kill().context("cannot kill the server")?;
        self.0.wait().map(drop).context("cannot wait for the server")
    }

    /// Exit status, if it has ended.
    pub(crate) fn exit_status(&mut self) -> anyhow::Result<Option<std::process::ExitStatus>> {
        self.0.try_wait().context("cannot look at the server")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

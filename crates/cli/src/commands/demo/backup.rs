//! The act in which the application is backed up: a server, a place for backups, a backup.

use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bowline_api::location::LocationPhase;
use bowline_api::{Backup, BackupPhase, BackupStorageLocation, DEFAULT_NAMESPACE};
use bowline_testbed::{ControlPlane, apply::apply, kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::sample;
use crate::output;

/// The name of the location, of its folder, of the backup and of the restore.
pub(super) const NAME: &str = "demo";
/// How long the server, the location, the backup and the restore may take.
const LIMIT: Duration = Duration::from_mins(2);

/// A server for the demo. Dropping it ends it.
pub(super) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), bowline_server::Error>>>,
}

impl Server {
    /// Starts a server with a folder to keep backups in, and waits until it has a location there.
    pub(super) async fn start(plane: &ControlPlane, client: &Client) -> anyhow::Result<Self> {
        let bed = plane.bed();
        let folder = |name: &str| {
            bed.subdir(name).with_context(|| format!("cannot create a folder for {name}"))
        };
        let (root, scratch, plugins) = (folder("buckets")?, folder("scratch")?, folder("plugins")?);
        std::fs::create_dir_all(root.join(NAME)).context("cannot create a folder for backups")?;
        let options = bowline_server::Options {
            filesystem_root: Some(root),
            scratch_dir: scratch,
            plugin_dir: plugins,
            ..bowline_server::Options::default()
        };
        for object in [
            json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DEFAULT_NAMESPACE},
            }),
            json!({
                "apiVersion": "velero.io/v1",
                "kind": "BackupStorageLocation",
                "metadata": {"name": NAME, "namespace": DEFAULT_NAMESPACE},
                "spec": {
                    "provider": "filesystem",
                    "default": true,
                    "objectStorage": {"bucket": NAME},
                },
            }),
        ] {
            apply(client, object).await?;
        }
        let log = std::fs::File::create(bed.dir().join("server.log"))
            .context("cannot create the log of the server")?;
        // Without it the logs of backups would be empty, too.
        bowline_server::log::init_to(bowline_server::log::Options::default(), log)
            .context("cannot log")?;
        let (stop, stopped) = oneshot::channel();
        let kubeconfig = plane.kubeconfig().to_owned();
        // As `bowline server` in a process of its own would.
        let thread = std::thread::spawn(move || serve(&kubeconfig, options, stopped));
        let server = Self { stop: Some(stop), thread: Some(thread) };
        server
            .until(
                client,
                "the storage location is available",
                |location: &BackupStorageLocation| {
                    let status = location.status.as_ref();
                    status.and_then(|s| s.phase.as_ref()) == Some(&LocationPhase::Available)
                },
            )
            .await?;
        Ok(server)
    }

    /// Takes a backup of the sample application.
    pub(super) async fn back_up(&self, client: &Client) -> anyhow::Result<Backup> {
        let backup = json!({
            "apiVersion": "velero.io/v1",
            "kind": "Backup",
            "metadata": {"name": NAME, "namespace": DEFAULT_NAMESPACE},
            "spec": {"includedNamespaces": sample::NAMESPACES},
        });
        apply(client, backup).await?;
        let is_over = |backup: &Backup| {
            let phase = backup.status.as_ref().and_then(|status| status.phase.as_ref());
            phase.is_some_and(BackupPhase::is_terminal)
        };
        let backup = self.until(client, "the backup is over", is_over).await?;
        let status = backup.status.clone().unwrap_or_default();
        if status.phase != Some(BackupPhase::Completed) {
            bail!("the backup is not complete: {}", serde_json::to_string(&status)?);
        }
        Ok(backup)
    }

    /// Waits until the object called like everything here is as it should be.
    pub(super) async fn until<K>(
        &self,
        client: &Client,
        what: &str,
        is_so: impl Fn(&K) -> bool,
    ) -> anyhow::Result<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(client.clone(), DEFAULT_NAMESPACE);
        let deadline = Instant::now() + LIMIT;
        loop {
            let found =
                api.get(NAME).await.with_context(|| format!("cannot see whether {what}"))?;
            if is_so(&found) {
                return Ok(found);
            }
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                bail!("the server has ended before {what}");
            }
            if Instant::now() >= deadline {
                bail!("waited in vain until {what}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && let Ok(Err(error)) = thread.join()
        {
            output::error(&format!("the server: {}", bowline_plugin::one_line(&error)));
        }
    }
}

fn serve(
    kubeconfig: &Path,
    options: bowline_server::Options,
    stopped: oneshot::Receiver<()>,
) -> Result<(), bowline_server::Error> {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::error(&format!("cannot start the server: {error}"));
            return Ok(());
        }
    };
    runtime.block_on(async {
        match kubeconfig::client(kubeconfig).await {
            Ok(client) => {
                let until = async {
                    // The sender is dropped, which is the sign.
                    let _ = stopped.await;
                };
                bowline_server::run(client, options, until).await
            }
            Err(error) => {
                output::error(&format!("cannot start the server: {error}"));
                Ok(())
            }
        }
    })
}

/// What is there now: the phase, and the files.
pub(super) fn show(plane: &ControlPlane, backup: &Backup) -> anyhow::Result<String> {
    let folder = plane.bed().dir().join("buckets").join(NAME).join("backups").join(NAME);
    let mut rows = Vec::new();
    for file in std::fs::read_dir(&folder).context("cannot look at the backup")? {
        let file = file.context("cannot look at the backup")?;
        let size = file.metadata().context("cannot look at the backup")?.len();
        rows.push([file.file_name().to_string_lossy().into_owned(), size.to_string()]);
    }
    rows.sort();
    let status = backup.status.clone().unwrap_or_default();
    let items = status.progress.map_or(0, |progress| progress.items_backed_up);
    Ok(format!(
        "\nThe backup is complete, with {items} items. Its files are those of Velero, in\n{}:\n\n{}",
        folder.display(),
        output::table(["FILE", "BYTES"], rows),
    ))
}

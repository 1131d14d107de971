//! `bowline recovery import`

use std::fmt::Debug;

use anyhow::{anyhow, bail};
use bowline_api::backup_storage_location::AccessMode;
use bowline_api::{BackupStorageLocation, VolumeSnapshotLocation, label};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::PostParams;
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::contents::Contents;
use super::key::OpenArgs;
use crate::args::InstallationArgs;
use crate::commands::install::CREDENTIALS_SECRET;
use crate::confirm::confirm;
use crate::exit::Exit;
use crate::installation::{Installation, is_not_found};
use crate::server_deployment::ServerDeployment;
use crate::{active_runs, listing, output};

/// Import the credentials and locations of a recovery file into a cluster
///
/// The objects are created in the server's namespace, whatever namespace they came from. Existing
/// objects that are equal are not changed. If an existing object differs, nothing at all is changed
/// without --force or --keep-existing. The server then syncs the backups of the locations into the
/// cluster.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Args {
    #[command(flatten)]
    open: OpenArgs,

    /// Replace existing Secrets and locations that differ
    #[arg(long, conflicts_with = "keep_existing")]
    force: bool,

    /// Keep existing Secrets and locations that differ, and import the others
    #[arg(long)]
    keep_existing: bool,

    /// Make the backup locations read-only, so that no backup in them expires or is deleted
    #[arg(long)]
    read_only: bool,

    /// Print the plan and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Skip the confirmation prompt
    #[arg(long)]
    confirm: bool,
}

/// Action for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImportAction {
    Create,
    Replace,
    Keep,
    /// The object differs, and no flag decides.
    Refuse,
    UpToDate,
}

impl ImportAction {
    /// Chooses the action for an object that exists or not, and differs or not.
    fn decide(exists: bool, differs: bool, args: &Args) -> Self {
        match (exists, differs) {
            (false, _) => Self::Create,
            (true, false) => Self::UpToDate,
            (true, true) if args.force => Self::Replace,
            (true, true) if args.keep_existing => Self::Keep,
            (true, true) => Self::Refuse,
        }
    }

    fn planned_text(self) -> &'static str {
        match self {
            Self::Create => "would be created",
            Self::Replace => "exists and differs; would be replaced",
            Self::Keep => "exists and differs; would be kept",
            Self::Refuse => "exists and differs",
            Self::UpToDate => "up to date",
        }
    }

    fn done_text(self) -> &'static str {
        match self {
            Self::Create => "created",
            Self::Replace => "replaced",
            Self::Keep | Self::Refuse => "kept, although it differs",
            Self::UpToDate => "up to date",
        }
    }

    fn changes(self) -> bool {
        matches!(self, Self::Create | Self::Replace)
    }
}

/// Object to import.
struct PlannedImport<K> {
    step: ImportAction,
    object: K,
}

/// Kind of object in recovery files.
trait RecoverableKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
{
    /// True if two objects have the same content, whatever their metadata.
    fn is_same(&self, other: &Self) -> bool;
}

impl RecoverableKind for Secret {
    fn is_same(&self, other: &Self) -> bool {
        let kind = |secret: &Self| secret.type_.clone().unwrap_or_else(|| "Opaque".to_owned());
        let empty = |secret: &Self| secret.data.clone().unwrap_or_default();
        kind(self) == kind(other) && empty(self) == empty(other)
    }
}

impl RecoverableKind for BackupStorageLocation {
    fn is_same(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl RecoverableKind for VolumeSnapshotLocation {
    fn is_same(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let mut contents = args.open.open().await?;
    prepare_contents(&mut contents, &args);
    let installation = Installation::connect(installation).await?;
    check_namespace(&installation).await?;
    // Also shows whether the cluster serves the kinds at all.
    let existing: Vec<BackupStorageLocation> = listing::find(&installation, &[], None).await?;
    let secrets = plan(&installation, contents.secrets, &args).await?;
    let backups = plan(&installation, contents.backup_locations, &args).await?;
    let snapshots = plan(&installation, contents.snapshot_locations, &args).await?;
    let steps: Vec<(String, ImportAction)> =
        [titled_actions(&secrets), titled_actions(&backups), titled_actions(&snapshots)].concat();
    for (title, step) in &steps {
        output::print_message(format_args!("{title}: {}", step.planned_text()));
    }
    let refused: Vec<String> = steps
        .iter()
        .filter(|(_, step)| *step == ImportAction::Refuse)
        .map(|(title, _)| title.clone())
        .collect();
    if !refused.is_empty() {
        bail!(
            "{} in namespace `{}` differ from the recovery file; nothing was changed; replace them \
             with --force, or keep them with --keep-existing",
            active_runs::first_names(&refused),
            installation.namespace()
        );
    }
    if let Some(words) = duplicate_default_warning(&existing, &backups) {
        output::print_message(words);
    }
    let changes = steps.iter().filter(|(_, step)| step.changes()).count();
    if args.dry_run || changes == 0 {
        return Ok(Exit::Success);
    }
    let question =
        format!("{changes} objects in namespace `{}` will be changed.", installation.namespace());
    if !confirm(args.confirm, &question)? {
        output::print_message("nothing was changed");
        return Ok(Exit::Success);
    }
    let mut done = Vec::new();
    // Locations come after the Secrets that they name.
    apply_planned(&installation, &secrets, &mut done).await?;
    apply_planned(&installation, &backups, &mut done).await?;
    apply_planned(&installation, &snapshots, &mut done).await?;
    for hint in next_steps(&installation, &secrets).await {
        output::print_message(hint);
    }
    Ok(Exit::Success)
}

/// Adapts the contents of the file to this cluster.
fn prepare_contents(contents: &mut Contents, args: &Args) {
    for secret in &mut contents.secrets {
        secret.metadata.namespace = None;
        secret.labels_mut().insert(label::EXCLUDE_FROM_BACKUP.to_owned(), "true".to_owned());
    }
    for location in &mut contents.backup_locations {
        location.metadata.namespace = None;
        if args.read_only {
            location.spec.access_mode = Some(AccessMode::ReadOnly);
        }
    }
    for location in &mut contents.snapshot_locations {
        location.metadata.namespace = None;
    }
}

async fn check_namespace(installation: &Installation) -> anyhow::Result<()> {
    let api = installation.cluster_api::<Namespace>();
    let name = installation.namespace();
    let request = async {
        match api.get(name).await {
            Ok(_) => Ok(true),
            Err(error) if is_not_found(&error) => Ok(false),
            // A user without the right to read namespaces may still write into this one.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(true),
            Err(error) => Err(error),
        }
    };
    if !installation.call_api("read the namespace", request).await? {
        bail!(
            "namespace `{name}` does not exist: run `bowline install` first, or name the server's \
             namespace with --namespace"
        );
    }
    Ok(())
}

async fn plan<K: RecoverableKind>(
    installation: &Installation,
    objects: Vec<K>,
    args: &Args,
) -> anyhow::Result<Vec<PlannedImport<K>>> {
    let api = installation.api::<K>();
    let mut planned = Vec::with_capacity(objects.len());
    for mut object in objects {
        let name = object.name_any();
        let request = async {
            match api.get(&name).await {
                Ok(existing) => Ok(Some(existing)),
                Err(error) if is_not_found(&error) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let existing = installation.call_api(&format!("read {}", title(&object)), request).await?;
        let differs = existing.as_ref().is_some_and(|existing| !existing.is_same(&object));
        let action = ImportAction::decide(existing.is_some(), differs, args);
        if let Some(there) = existing {
            // A concurrent change by someone else is not overwritten.
            object.meta_mut().resource_version = there.resource_version();
        }
        planned.push(PlannedImport { step: action, object });
    }
    Ok(planned)
}

async fn apply_planned<K: RecoverableKind>(
    installation: &Installation,
    planned: &[PlannedImport<K>],
    done: &mut Vec<String>,
) -> anyhow::Result<()> {
    let (api, params) = (installation.api::<K>(), PostParams::default());
    for PlannedImport { step, object } in planned {
        let (title, name) = (title(object), object.name_any());
        let request = async {
            match step {
                ImportAction::Create => api.create(&params, object).await.map(|_| ()),
                ImportAction::Replace => api.replace(&name, &params, object).await.map(|_| ()),
                ImportAction::Keep | ImportAction::Refuse | ImportAction::UpToDate => Ok(()),
            }
        };
        let written = installation.call_api(&format!("write {title}"), request).await;
        written.map_err(|error| {
            let error = output::error_chain(&error);
            if done.is_empty() {
                return anyhow!("{error}; nothing was changed");
            }
            let done = active_runs::first_names(done);
            anyhow!("{error}; already imported: {done}; run the same command again to continue")
        })?;
        output::print_message(format_args!("{title}: {}", step.done_text()));
        if step.changes() {
            done.push(title);
        }
    }
    Ok(())
}

fn title<K: RecoverableKind>(object: &K) -> String {
    format!("{} {}", K::kind(&()), output::strip_control_chars(&object.name_any()))
}

fn titled_actions<K: RecoverableKind>(planned: &[PlannedImport<K>]) -> Vec<(String, ImportAction)> {
    planned.iter().map(|one| (title(&one.object), one.step)).collect()
}

/// Warning about two locations that are both the default.
fn duplicate_default_warning(
    existing: &[BackupStorageLocation],
    planned: &[PlannedImport<BackupStorageLocation>],
) -> Option<String> {
    let imported = planned.iter().find(|one| one.step.changes() && one.object.spec.default)?;
    let existing_default = existing.iter().find(|one| {
        let is_replaced = planned.iter().any(|new| {
            new.step == ImportAction::Replace && new.object.name_any() == one.name_any()
        });
        one.spec.default && !is_replaced
    })?;
    Some(format!(
        "warning: BackupStorageLocation {} and {} are both the default; change one with \
         `bowline backup-location set NAME --default=false`",
        existing_default.name_any(),
        imported.object.name_any()
    ))
}

/// Remaining steps for the user.
async fn next_steps(installation: &Installation, secrets: &[PlannedImport<Secret>]) -> Vec<String> {
    let mut warning = vec![format!(
        "the server syncs the backups of the locations into the cluster within about a minute: {} \
         lists them",
        installation.hint("backup get")
    )];
    let imports_credentials = secrets.iter().any(|one| one.object.name_any() == CREDENTIALS_SECRET);
    let Ok(deployment) = ServerDeployment::find(installation).await else { return warning };
    let volumes = deployment.pod.volumes.iter().flatten();
    let mut mounted = volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.as_deref());
    if imports_credentials && !mounted.any(|name| name == CREDENTIALS_SECRET) {
        warning.push(format!(
            "hint: the server does not use Secret {CREDENTIALS_SECRET} yet: run `bowline install` \
             again with the same flags"
        ));
    }
    warning
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct TestCommand {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        TestCommand::try_parse_from(["import", "file"].iter().chain(words)).unwrap().args
    }

    #[test]
    fn differing_object_is_replaced_only_with_force() {
        for (words, expected) in [
            (&[][..], ImportAction::Refuse),
            (&["--force"], ImportAction::Replace),
            (&["--keep-existing"], ImportAction::Keep),
        ] {
            let args = args(words);
            assert_eq!(ImportAction::decide(true, true, &args), expected, "{words:?}");
            assert_eq!(
                ImportAction::decide(true, false, &args),
                ImportAction::UpToDate,
                "{words:?}"
            );
            assert_eq!(
                ImportAction::decide(false, false, &args),
                ImportAction::Create,
                "{words:?}"
            );
        }
        TestCommand::try_parse_from(["import", "file", "--force", "--keep-existing"]).unwrap_err();
    }

    #[test]
    fn objects_are_compared_by_content_not_metadata() {
        let secret = |metadata: serde_json::Value, value: &str| -> Secret {
            serde_json::from_value(json!({"metadata": metadata, "data": {"k": value}})).unwrap()
        };
        let one = secret(json!({"name": "s"}), "YQ==");
        let mut same = secret(json!({"name": "s", "uid": "u", "labels": {"a": "b"}}), "YQ==");
        same.type_ = Some("Opaque".to_owned());
        assert!(one.is_same(&same));
        assert!(!one.is_same(&secret(json!({"name": "s"}), "Yg==")));
    }

    #[test]
    fn imported_objects_are_excluded_from_backups_and_may_be_read_only() {
        let about = json!({"version": 1, "exported": "", "namespace": "old"});
        let items = json!([
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "old"}},
            {
                "apiVersion": "velero.io/v1", "kind": "BackupStorageLocation",
                "metadata": {"name": "l", "namespace": "old"}, "spec": {"provider": "aws"},
            },
        ]);
        let list =
            json!({"apiVersion": "v1", "kind": "List", "bowlineRecovery": about, "items": items});
        let mut contents = Contents::decode(list.to_string().as_bytes()).unwrap();
        prepare_contents(&mut contents, &args(&["--read-only"]));
        assert_eq!(contents.secrets[0].labels()[label::EXCLUDE_FROM_BACKUP], "true");
        assert_eq!(contents.secrets[0].namespace(), None);
        assert_eq!(contents.backup_locations[0].spec.access_mode, Some(AccessMode::ReadOnly));
        assert_eq!(contents.backup_locations[0].namespace(), None);
    }
}

//! Finds, creates, changes and deletes the objects of a command.

use std::fmt::Debug;

use anyhow::{Context as _, bail};
use bowline_api::{
    Backup, BackupRepository, BackupStorageLocation, Restore, Schedule, VolumeSnapshotLocation,
};
use bowline_store::BackupName;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::{Installation, is_already_exists, is_not_found};
use crate::{client_config, output, pages};

/// Kind that users list by name.
pub(crate) trait ResourceKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
{
    /// Singular and plural for users.
    const NOUN: &'static str;
    const PLURAL: &'static str;
    /// Word that users type before the verb.
    const COMMAND: &'static str;
}

impl ResourceKind for Backup {
    const NOUN: &'static str = "backup";
    const PLURAL: &'static str = "backups";
    const COMMAND: &'static str = "backup";
}

impl ResourceKind for Restore {
    const NOUN: &'static str = "restore";
    const PLURAL: &'static str = "restores";
    const COMMAND: &'static str = "restore";
}

impl ResourceKind for Schedule {
    const NOUN: &'static str = "schedule";
    const PLURAL: &'static str = "schedules";
    const COMMAND: &'static str = "schedule";
}

impl ResourceKind for BackupStorageLocation {
    const NOUN: &'static str = "backup location";
    const PLURAL: &'static str = "backup locations";
    const COMMAND: &'static str = "backup-location";
}

impl ResourceKind for VolumeSnapshotLocation {
    const NOUN: &'static str = "snapshot location";
    const PLURAL: &'static str = "snapshot locations";
    const COMMAND: &'static str = "snapshot-location";
}

impl ResourceKind for BackupRepository {
    const NOUN: &'static str = "repository";
    const PLURAL: &'static str = "repositories";
    const COMMAND: &'static str = "repo";
}

/// Object of that name.
pub(crate) async fn get<K: ResourceKind>(
    installation: &Installation,
    name: &str,
) -> anyhow::Result<K> {
    match get_opt(installation, name).await? {
        Some(object) => Ok(object),
        None => bail!(
            "{} `{name}` not found in namespace `{}`; run {} for a list",
            K::NOUN,
            installation.namespace(),
            installation.hint(&format!("{} get", K::COMMAND)),
        ),
    }
}

/// Object of that name, if it exists.
pub(crate) async fn get_opt<K: ResourceKind>(
    installation: &Installation,
    name: &str,
) -> anyhow::Result<Option<K>> {
    // The same naming rule applies to all of these kinds.
    BackupName::new(name)?;
    let doing = format!("read {} `{name}`", K::NOUN);
    let api = installation.api::<K>();
    let request = async {
        match api.get(name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    };
    installation.call_api(&doing, request).await
}

/// Creates an object. Returns nothing if the name is in use.
pub(crate) async fn create<K: ResourceKind>(
    installation: &Installation,
    object: &K,
) -> anyhow::Result<Option<K>> {
    let api = installation.api::<K>();
    let params = PostParams::default();
    let request = async {
        match api.create(&params, object).await {
            Err(error) if is_already_exists(&error) => Ok(None),
            created => created.map(Some),
        }
    };
    let doing = format!("create {} `{}`", K::NOUN, object.name_any());
    installation.call_api(&doing, request).await
}

/// Creates an object that must be new, and prints a message.
pub(crate) async fn create_new<K: ResourceKind>(
    installation: &Installation,
    object: &K,
) -> anyhow::Result<Exit> {
    let (noun, name) = (K::NOUN, object.name_any());
    let hint = installation.hint(&format!("{} get {name}", K::COMMAND));
    if create(installation, object).await?.is_none() {
        bail!("{noun} `{name}` already exists; see {hint}");
    }
    output::print_message(format_args!("{noun} `{name}` created; see {hint}"));
    Ok(Exit::Success)
}

/// Changes these fields of an object and no others.
pub(crate) async fn patch<K: ResourceKind>(
    installation: &Installation,
    name: &str,
    fields: &Value,
) -> anyhow::Result<K> {
    let api = installation.api::<K>();
    let (params, patch) = (PatchParams::default(), Patch::Merge(fields));
    let doing = format!("change {} `{name}`", K::NOUN);
    installation.call_api(&doing, api.patch(name, &params, &patch)).await
}

/// Deletes an object; one that is already gone is a success.
pub(crate) async fn delete<K>(installation: &Installation, name: &str) -> anyhow::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let api = installation.api::<K>();
    let params = DeleteParams::default();
    let request = async {
        match api.delete(name, &params).await {
            Err(error) if is_not_found(&error) => Ok(()),
            deleted => deleted.map(drop),
        }
    };
    let doing = format!("delete {} `{name}`", K::kind(&()));
    installation.call_api(&doing, request).await
}

/// Objects of those names, in that order; without names all that match the selector.
pub(crate) async fn find<K: ResourceKind>(
    installation: &Installation,
    names: &[String],
    selector: Option<&str>,
) -> anyhow::Result<Vec<K>> {
    if names.is_empty() {
        return list(installation, selector).await;
    }
    let mut found = Vec::new();
    for name in names {
        found.push(get(installation, name).await?);
    }
    Ok(found)
}

async fn list<K: ResourceKind>(
    installation: &Installation,
    selector: Option<&str>,
) -> anyhow::Result<Vec<K>> {
    let api = installation.api::<K>();
    let params =
        ListParams { label_selector: selector.map(str::to_owned), ..ListParams::default() };
    let doing = format!("list the {}", K::PLURAL);
    let request = async |params: &ListParams| api.list(params).await;
    let found = pages::list(installation, &doing, params, request, Some).await?;
    if found.is_empty() {
        check_namespace_exists(installation).await?;
    }
    Ok(found)
}

/// A list in a namespace that does not exist is empty, too. Without the right to read namespaces there is no error.
async fn check_namespace_exists(installation: &Installation) -> anyhow::Result<()> {
    let name = installation.namespace();
    let api = installation.cluster_api::<Namespace>();
    let is_missing = async {
        let got = api.get(name).await;
        Ok(matches!(got, Err(kube::Error::Api(status)) if status.code == 404))
    };
    if installation.call_api("read the namespace", is_missing).await? {
        bail!("namespace `{name}` does not exist; name the server's namespace with --namespace");
    }
    Ok(())
}

/// Output format of objects for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ObjectFormat {
    Json,
    Yaml,
}

/// Prints an object instead of creating it.
pub(crate) fn print_without_creating<K: ResourceKind>(
    mut object: K,
    installation: &InstallationArgs,
    format: ObjectFormat,
) -> anyhow::Result<Exit> {
    let namespace = client_config::namespace(installation.namespace.as_deref())?;
    object.meta_mut().namespace = Some(namespace);
    output::print_data(format_one(object, format)?)?;
    Ok(Exit::Success)
}

pub(crate) fn format_one<K: ResourceKind>(
    object: K,
    format: ObjectFormat,
) -> anyhow::Result<String> {
    format_value(&without_managed_fields(object), format)
}

pub(crate) fn format_list<K: ResourceKind>(
    objects: Vec<K>,
    format: ObjectFormat,
) -> anyhow::Result<String> {
    let list = serde_json::json!({
        "apiVersion": K::api_version(&()),
        "kind": format!("{}List", K::kind(&())),
        "metadata": {},
        "items": objects.into_iter().map(without_managed_fields).collect::<Vec<_>>(),
    });
    format_value(&list, format)
}

/// Managed fields are noise for readers; kubectl omits them, too.
fn without_managed_fields<K: ResourceKind>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

/// Value in a format for programs.
pub(crate) fn format_value(value: &impl Serialize, format: ObjectFormat) -> anyhow::Result<String> {
    // Converted to a `Value` first, which YAML can always represent.
    let value = serde_json::to_value(value).context("cannot print the object")?;
    match format {
        ObjectFormat::Json => Ok(output::document(&value)),
        ObjectFormat::Yaml => {
            let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
            let mut text = serde_saphyr::to_string_with_options(&value, options)
                .context("cannot print the object")?;
            if !text.ends_with('\n') {
                text.push('\n');
            }
            // The library escapes what YAML requires, and a terminal obeys more. JSON is YAML, too.
            let is_harmless = output::strip_control_chars(&text) == text;
            Ok(if is_harmless { text } else { output::document(&value) })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn objects_are_printed_without_control_characters_and_keep_their_text() {
        let plain = json!({"metadata": {"name": "a"}, "text": "é\nb"});
        let yaml = format_value(&plain, ObjectFormat::Yaml).unwrap();
        assert!(yaml.starts_with("metadata:\n  name: a\n"), "{yaml}");
        let harmful = json!({"text": "a\u{9b}2J\u{202e}b"});
        for format in [ObjectFormat::Json, ObjectFormat::Yaml] {
            let printed = format_value(&harmful, format).unwrap();
            assert_eq!(output::strip_control_chars(&printed), printed);
            assert_eq!(serde_saphyr::from_str::<Value>(&printed).unwrap(), harmful, "{printed}");
        }
    }
}

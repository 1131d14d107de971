//! The CustomResourceDefinitions that `install` applies and `--dry-run` prints.
//!
//! They accept exactly the objects that those of Velero 1.18 accept. In addition, they keep unknown fields, and have our
//! two kinds, our status fields, and more short names and columns.

mod upgrade;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::{
    Backup, BackupRepository, BackupStorageLocation, DataDownload, DataUpload, DeleteBackupRequest,
    DownloadRequest, PodVolumeBackup, PodVolumeRestore, Restore, Schedule, ServerStatusRequest,
    VolumePluginBackup, VolumePluginRestore, VolumeSnapshotLocation, annotation, label,
};

pub use upgrade::{Plan, plan};

/// Failure to print CRDs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The YAML writer failed.
    #[error("could not write custom resource definitions as YAML")]
    WriteYaml(#[source] serde_saphyr::ser::Error),
}

/// All definitions, in a fixed order.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        definition::<Backup>(),
        definition::<Restore>(),
        definition::<Schedule>(),
        definition::<BackupStorageLocation>(),
        definition::<VolumeSnapshotLocation>(),
        definition::<BackupRepository>(),
        definition::<PodVolumeBackup>(),
        definition::<PodVolumeRestore>(),
        definition::<DeleteBackupRequest>(),
        definition::<DownloadRequest>(),
        definition::<ServerStatusRequest>(),
        definition::<DataUpload>(),
        definition::<DataDownload>(),
        definition::<VolumePluginBackup>(),
        definition::<VolumePluginRestore>(),
    ]
}

/// All definitions as a stream of YAML documents, for `kubectl apply -f -`.
pub fn to_yaml(definitions: &[CustomResourceDefinition]) -> Result<String, Error> {
    // Folded scalars are correct but hard to grep and to diff.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_multiple_with_options(definitions, options).map_err(Error::WriteYaml)
}

/// The definition that kube derives, adapted to Velero's.
fn definition<K: CustomResourceExt>() -> CustomResourceDefinition {
    let mut crd = K::crd();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    crd.metadata.labels = Some([(label::COMPONENT.to_owned(), "velero".to_owned())].into());
    crd.metadata.annotations = Some([(annotation::CRD_VERSION.to_owned(), version)].into());
    crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    for version in &mut crd.spec.versions {
        // kube adds the status subresource to every kind with a status. Velero has none: with it, each update by
        // Velero would silently leave the status unchanged.
        version.subresources = None;
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        if let Some(schema) = schema {
            tidy_root(schema);
            remove_defaults(schema);
        }
    }
    crd
}

/// The outermost object: nothing is required, and its standard fields are explained.
fn tidy_root(schema: &mut JSONSchemaProps) {
    let standard = |type_: &str, description: &str| JSONSchemaProps {
        type_: Some(type_.to_owned()),
        description: Some(description.to_owned()),
        ..JSONSchemaProps::default()
    };
    schema.title = None;
    schema.required = None;
    let properties = schema.properties.get_or_insert_default();
    if let Some(status) = properties.get_mut("status") {
        status.nullable = None;
    }
    properties.insert("apiVersion".into(), standard("string", "Group and version of the schema."));
    properties.insert("kind".into(), standard("string", "Kind of the object."));
    properties.insert(
        "metadata".into(),
        JSONSchemaProps { type_: Some("object".to_owned()), ..JSONSchemaProps::default() },
    );
}

/// Removes defaults that exist for lenient reading: in a CRD they would make the API server write them into every
/// object. Our objects are those that keep unknown fields.
fn remove_defaults(schema: &mut JSONSchemaProps) {
    let is_ours = schema.x_kubernetes_preserve_unknown_fields == Some(true);
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        if is_ours {
            property.default = None;
        }
        remove_defaults(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        remove_defaults(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        remove_defaults(values);
    }
}

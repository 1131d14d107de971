//! Flags for the content and the options of a backup, and the spec made from them.

use std::collections::BTreeMap;

use anyhow::bail;
use bowline_api::backup::BackupUploaderConfig;
use bowline_api::snapshot_type::SnapshotType;
use bowline_api::{BackupSpec, Duration, annotation};
use k8s_openapi::api::core::v1::TypedLocalObjectReference;

use crate::flags::{self, Pairs};
use crate::selector;

/// What to back up.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Resource selection")]
pub(crate) struct BackupFilterArgs {
    /// Namespaces to include; * for all [default: *]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    include_namespaces: Vec<String>,

    /// Namespaces to exclude
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    exclude_namespaces: Vec<String>,

    /// Resources to include, such as deployments.apps; * for all [default: *]
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    include_resources: Vec<String>,

    /// Resources to exclude
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    exclude_resources: Vec<String>,

    /// Include cluster-scoped resources [default: all of them if all namespaces are included,
    /// otherwise only those that the selected objects need]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    include_cluster_resources: Option<bool>,

    /// Cluster-scoped resources to include; cannot be combined with --include-resources,
    /// --exclude-resources or --include-cluster-resources
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    include_cluster_scoped_resources: Vec<String>,

    /// Cluster-scoped resources to exclude; cannot be combined with --include-resources,
    /// --exclude-resources or --include-cluster-resources
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    exclude_cluster_scoped_resources: Vec<String>,

    /// Namespaced resources to include; cannot be combined with --include-resources,
    /// --exclude-resources or --include-cluster-resources
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    include_namespace_scoped_resources: Vec<String>,

    /// Namespaced resources to exclude; cannot be combined with --include-resources,
    /// --exclude-resources or --include-cluster-resources
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    exclude_namespace_scoped_resources: Vec<String>,

    /// Include only objects that match this label selector
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,

    /// Include only objects that match one of these label selectors, such as `app=web or app=db`
    #[arg(long, value_name = "SELECTORS", conflicts_with = "selector")]
    or_selector: Option<String>,

    /// Order of objects of one resource, such as `pods=ns1/a,ns1/b;persistentvolumes=pv1`; the others
    /// of that resource follow. Pods always come before claims, and claims before volumes
    #[arg(long, value_name = "RESOURCE=NAMES;…")]
    ordered_resources: Option<String>,

    /// ConfigMap with the policies for volumes and resources
    #[arg(long, value_name = "NAME")]
    resource_policies_configmap: Option<String>,
}

/// Where to, and how.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Storage and volumes")]
pub(crate) struct BackupOptionArgs {
    /// Time to keep the backup, such as 72h; no unit for days [default: the server's, 720h]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration)]
    ttl: Option<Duration>,

    /// Storage location to write to [default: the default location]
    #[arg(long, value_name = "NAME")]
    storage_location: Option<String>,

    /// Volume snapshot locations, at most one per provider
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    volume_snapshot_locations: Vec<String>,

    /// Take volume snapshots [default: of CSI volumes, and of others if a snapshot location exists
    /// for them]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    snapshot_volumes: Option<bool>,

    /// Upload policy for snapshots taken by snapshot location plugins [default: the location's,
    /// then the server's, auto]
    #[arg(long, value_name = "TYPE", value_parser = flags::snapshot_type())]
    snapshot_type: Option<SnapshotType>,

    /// Move snapshot data to the storage location; not supported: this version has no data mover
    /// and refuses the backup. Use snapshot locations whose plugin uploads snapshots instead
    /// [default: the server's, false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    snapshot_move_data: Option<bool>,

    /// Data mover to use; ignored, because this version has no data mover
    #[arg(long, value_name = "NAME")]
    data_mover: Option<String>,

    /// Back up pod volumes with file-system backup unless they opt out; not supported: each such
    /// volume is reported as an error [default: the server's, false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    default_volumes_to_fs_backup: Option<bool>,

    /// Number of files to upload in parallel; ignored, because this version has no file-system
    /// backup
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(0..))]
    parallel_files_upload: Option<i64>,

    /// Label key that groups volumes to be snapshotted together [default: the server's,
    /// velero.io/volume-group]
    #[arg(long, value_name = "LABEL")]
    volume_group_snapshot_label_key: Option<String>,

    /// Time limit for the driver to create a CSI snapshot; does not include the time until it is
    /// ready to use [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration)]
    csi_snapshot_timeout: Option<Duration>,

    /// Time limit for a plugin operation [default: the server's, 4h]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration)]
    item_operation_timeout: Option<Duration>,
}

impl BackupOptionArgs {
    /// Annotations of the command line, with those that stand for flags.
    pub(crate) fn annotations(&self, said: &[Pairs]) -> BTreeMap<String, String> {
        let mut annotations = flags::merged(said);
        if let Some(snapshot_type) = self.snapshot_type {
            annotations.insert(annotation::SNAPSHOT_TYPE.to_owned(), snapshot_type.to_string());
        }
        annotations
    }
}

/// Spec that the command line requests.
pub(crate) fn spec(
    filter: &BackupFilterArgs,
    options: &BackupOptionArgs,
) -> anyhow::Result<BackupSpec> {
    check_filters(filter)?;
    let included_namespaces =
        flags::namespaces(&filter.include_namespaces, &filter.exclude_namespaces)?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let duration = |duration: Option<Duration>| duration.unwrap_or(Duration::ZERO);
    Ok(BackupSpec {
        included_namespaces,
        excluded_namespaces: filter.exclude_namespaces.clone(),
        included_resources: filter.include_resources.clone(),
        excluded_resources: filter.exclude_resources.clone(),
        include_cluster_resources: filter.include_cluster_resources,
        included_cluster_scoped_resources: filter.include_cluster_scoped_resources.clone(),
        excluded_cluster_scoped_resources: filter.exclude_cluster_scoped_resources.clone(),
        included_namespace_scoped_resources: filter.include_namespace_scoped_resources.clone(),
        excluded_namespace_scoped_resources: filter.exclude_namespace_scoped_resources.clone(),
        label_selector: filter.selector.as_deref().map(selector::parse).transpose()?,
        or_label_selectors: match &filter.or_selector {
            Some(selectors) => selector::parse_any(selectors)?,
            None => Vec::new(),
        },
        ordered_resources: match &filter.ordered_resources {
            Some(text) => ordered_resources(text)?,
            None => BTreeMap::new(),
        },
        resource_policy: filter.resource_policies_configmap.as_ref().map(|name| {
            TypedLocalObjectReference {
                api_group: None,
                // Lower case, as Velero writes and compares it.
                kind: "configmap".to_owned(),
                name: name.clone(),
            }
        }),
        ttl: duration(options.ttl),
        storage_location: text(&options.storage_location),
        volume_snapshot_locations: options.volume_snapshot_locations.clone(),
        snapshot_volumes: options.snapshot_volumes,
        snapshot_move_data: options.snapshot_move_data,
        data_mover: text(&options.data_mover),
        default_volumes_to_fs_backup: options.default_volumes_to_fs_backup,
        uploader_config: options.parallel_files_upload.filter(|number| *number > 0).map(|number| {
            BackupUploaderConfig { parallel_files_upload: number, ..Default::default() }
        }),
        volume_group_snapshot_label_key: text(&options.volume_group_snapshot_label_key),
        csi_snapshot_timeout: duration(options.csi_snapshot_timeout),
        item_operation_timeout: duration(options.item_operation_timeout),
        ..BackupSpec::default()
    })
}

/// Resources can be filtered in two ways, which cannot be combined.
fn check_filters(filter: &BackupFilterArgs) -> anyhow::Result<()> {
    let has_old = !filter.include_resources.is_empty()
        || !filter.exclude_resources.is_empty()
        || filter.include_cluster_resources.is_some();
    let has_new = !filter.include_cluster_scoped_resources.is_empty()
        || !filter.exclude_cluster_scoped_resources.is_empty()
        || !filter.include_namespace_scoped_resources.is_empty()
        || !filter.exclude_namespace_scoped_resources.is_empty();
    if has_old && has_new {
        bail!(
            "--include-resources, --exclude-resources and --include-cluster-resources cannot be \
             combined with the flags for cluster-scoped and namespace-scoped resources"
        );
    }
    Ok(())
}

/// `pods=ns1/a,ns1/b;persistentvolumes=pv1`, by resource.
fn ordered_resources(text: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut ordered = BTreeMap::new();
    for entry in text.split(';') {
        let parts = entry.split_once('=').map(|(resource, names)| (resource.trim(), names.trim()));
        match parts {
            Some((resource, names))
                if !resource.is_empty() && !names.is_empty() && !names.contains('=') =>
            {
                ordered.insert(resource.to_owned(), names.to_owned());
            }
            _ => bail!(
                "--ordered-resources expects RESOURCE=NAMES, separated by semicolons, not `{entry}`"
            ),
        }
    }
    Ok(ordered)
}

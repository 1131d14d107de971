//! Flags for the content and the options of a restore, and the spec made from them.

use bowline_api::restore::{self, RestoreStatusSpec, RestoreUploaderConfig};
use bowline_api::{Duration, RestoreSpec};
use k8s_openapi::api::core::v1::TypedLocalObjectReference;

use crate::flags::{self, Pairs};
use crate::selector;

/// What to restore.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Resource selection")]
pub(super) struct RestoreFilterArgs {
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

    /// Include only objects that match this label selector
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,

    /// Include only objects that match one of these label selectors, such as `app=web or app=db`
    #[arg(long, value_name = "SELECTORS", conflicts_with = "selector")]
    or_selector: Option<String>,

    /// Resources whose status is also restored [default: none]
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',', value_parser = flags::non_empty_string())]
    status_include_resources: Vec<String>,

    /// Resources to exclude from --status-include-resources
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',', value_parser = flags::non_empty_string(),
          requires = "status_include_resources")]
    status_exclude_resources: Vec<String>,
}

/// Where to, and how.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Restore behavior")]
pub(super) struct RestoreOptionArgs {
    /// Namespace mappings, from the namespace in the backup to the namespace to restore into
    #[arg(long, value_name = "FROM:TO,…", value_parser = flags::mappings)]
    namespace_mappings: Vec<Pairs>,

    /// Policy for objects that already exist and differ [default: none]
    #[arg(long, value_name = "POLICY")]
    existing_resource_policy: Option<ExistingResourcePolicy>,

    /// ConfigMap with the resource modifiers to apply to objects
    #[arg(long, value_name = "NAME")]
    resource_modifier_configmap: Option<String>,

    /// Preserve the node ports of services [default: only those set explicitly]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    preserve_nodeports: Option<bool>,

    /// Restore volumes from snapshots [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    restore_volumes: Option<bool>,

    /// Create volumes whose data cannot be restored as empty volumes, instead of skipping them with
    /// an error
    #[arg(long)]
    pub(super) allow_empty_volumes: bool,

    /// Restore the readable part of a damaged archive, instead of nothing
    #[arg(long)]
    pub(super) allow_damaged_archive: bool,

    /// Write sparse files; ignored, because this version has no file-system restore
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    write_sparse_files: Option<bool>,

    /// Number of files to download in parallel; ignored, because this version has no file-system
    /// restore
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(0..))]
    parallel_files_download: Option<i64>,

    /// Time limit for a plugin operation [default: the server's, 4h]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration)]
    item_operation_timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ExistingResourcePolicy {
    /// Keep existing objects, with a warning
    None,
    /// Update existing objects to match the backup
    Update,
}

/// Spec that the command line requests, except for the backup.
pub(super) fn spec(
    filter: &RestoreFilterArgs,
    options: &RestoreOptionArgs,
) -> anyhow::Result<RestoreSpec> {
    let is_set = |number: &i64| *number > 0;
    let parallel = options.parallel_files_download.filter(is_set);
    Ok(RestoreSpec {
        included_namespaces: flags::namespaces(
            &filter.include_namespaces,
            &filter.exclude_namespaces,
        )?,
        excluded_namespaces: filter.exclude_namespaces.clone(),
        included_resources: filter.include_resources.clone(),
        excluded_resources: filter.exclude_resources.clone(),
        include_cluster_resources: filter.include_cluster_resources,
        label_selector: filter.selector.as_deref().map(selector::parse).transpose()?,
        or_label_selectors: match &filter.or_selector {
            Some(selectors) => selector::parse_any(selectors)?,
            None => Vec::new(),
        },
        restore_status: (!filter.status_include_resources.is_empty()).then(|| RestoreStatusSpec {
            included_resources: filter.status_include_resources.clone(),
            excluded_resources: filter.status_exclude_resources.clone(),
            ..RestoreStatusSpec::default()
        }),
        namespace_mapping: flags::distinct("--namespace-mappings", &options.namespace_mappings)?,
        existing_resource_policy: options.existing_resource_policy.map(|policy| match policy {
            ExistingResourcePolicy::None => restore::ExistingResourcePolicy::None,
            ExistingResourcePolicy::Update => restore::ExistingResourcePolicy::Update,
        }),
        resource_modifier: options.resource_modifier_configmap.as_ref().map(|name| {
            TypedLocalObjectReference {
                api_group: None,
                // Lower case, as Velero writes it.
                kind: "configmap".to_owned(),
                name: name.clone(),
            }
        }),
        preserve_node_ports: options.preserve_nodeports,
        restore_pvs: options.restore_volumes,
        uploader_config: (options.write_sparse_files.is_some() || parallel.is_some()).then(|| {
            RestoreUploaderConfig {
                write_sparse_files: options.write_sparse_files,
                parallel_files_download: parallel.unwrap_or_default(),
                ..RestoreUploaderConfig::default()
            }
        }),
        item_operation_timeout: options.item_operation_timeout.unwrap_or(Duration::ZERO),
        ..RestoreSpec::default()
    })
}

//! Inspection of one binary.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use bowline_plugin::{Error, Kind, ResourceSelector};

use crate::list::list_plugins_of;
use crate::registry::{Plugin, Problem, Registry};
use crate::slot::{Call, Purpose, Slot};
use crate::{Options, warm_up};

/// The plugins of a binary, and its problems.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The usable plugins, in the order in which they are listed.
    pub plugins: Vec<InspectedPlugin>,
    /// The problems of the others.
    pub problems: Vec<Problem>,
}

/// A plugin and the items that it applies to.
#[derive(Clone, Debug)]
pub struct InspectedPlugin {
    /// The plugin.
    pub plugin: Plugin,
    /// The items that the plugin applies to.
    pub applies_to: AppliesTo,
}

/// The items that a plugin applies to.
#[derive(Clone, Debug)]
pub enum AppliesTo {
    /// None: a store or a snapshotter, which is called by name.
    Nothing,
    /// The items selected by an action.
    Items(ResourceSelector),
    /// Unknown, because the action returned an error.
    Unknown(Error),
}

/// Starts a binary, and asks for its plugins and the items that they apply to. The result is a
/// [`Problem`] if the binary cannot be started, or does not list its plugins.
pub async fn inspect(command: &Path, options: &Options) -> Result<Inspection, Problem> {
    let registry = registry(command, options).await?;
    // The plugins are called one by one, so there is nothing to warm up.
    let purpose = Purpose::ItemActions(Vec::new());
    let slot = Arc::new(Slot::new(command, Arc::new(options.clone()), purpose));
    let mut plugins = Vec::new();
    for plugin in registry.plugins() {
        let applies_to = if plugin.kind.needs_init() {
            AppliesTo::Nothing
        } else {
            match applies_to(&slot, plugin).await {
                Ok(selector) => AppliesTo::Items(selector),
                Err(error) => AppliesTo::Unknown(error),
            }
        };
        plugins.push(InspectedPlugin { plugin: plugin.clone(), applies_to });
    }
    slot.close().await;
    Ok(Inspection { plugins, problems: registry.problems().to_owned() })
}

/// The trait of a kind, and its version: `VolumeSnapshotter`, `v2`.
pub fn trait_and_version(kind: Kind) -> (&'static str, &'static str) {
    match kind.as_str().strip_suffix("V2") {
        Some(of_trait) => (of_trait, "v2"),
        None => (kind.as_str(), "v1"),
    }
}

/// The plugins that a binary lists.
pub async fn registry(command: &Path, options: &Options) -> Result<Registry, Problem> {
    let problem = |reason| Problem { command: command.to_owned(), reason };
    if let Some(reason) = not_a_program_reason(command) {
        return Err(problem(reason.to_owned()));
    }
    let listing =
        list_plugins_of(command, options).await.map_err(|failure| problem(failure.reason))?;
    let mut registry = Registry::default();
    registry.add(command, &listing);
    Ok(registry)
}

/// Reason why a file is not a program. Starting it would report "Permission denied", whatever the
/// reason.
fn not_a_program_reason(command: &Path) -> Option<&'static str> {
    let metadata = command.metadata().ok()?;
    if metadata.is_dir() {
        return Some("the file is a directory");
    }
    (metadata.permissions().mode() & 0o111 == 0).then_some("the file is not executable")
}

/// The items that an action of any kind applies to.
pub(crate) async fn applies_to(
    slot: &Arc<Slot>,
    plugin: &Plugin,
) -> Result<ResourceSelector, Error> {
    let ask = |connection| warm_up::applies_to(connection, plugin);
    let limit = slot.options().limits.applies_to;
    slot.call(Call { method: "AppliesTo", limit, is_work: false }, ask).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_a_trait_and_a_version() {
        let shown = Kind::ALL.map(|kind| {
            let (of_trait, version) = trait_and_version(kind);
            format!("{of_trait} {version}")
        });
        assert_eq!(
            shown,
            [
                "BackupItemAction v1",
                "BackupItemAction v2",
                "VolumeSnapshotter v1",
                "VolumeSnapshotter v2",
                "ObjectStore v1",
                "RestoreItemAction v1",
                "RestoreItemAction v2",
                "DeleteItemAction v1",
                "ItemBlockAction v1",
            ]
        );
    }
}

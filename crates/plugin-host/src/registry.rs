//! The usable plugins: decided from the listings of the binaries, without starting anything.
//!
//! # Rules
//! - A bad plugin is a [`Problem`] with its binary and reason; the others are not affected.
//! - The first binary that lists a (kind, name) provides it; a second one is a problem.
//! - A family's plugins run in the order of their binaries, and within a binary in the order of its
//!   listing. A name that is listed in two versions runs once, as the newest.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use bowline_plugin::{Kind, Name};
use bowline_plugin_wire::client::InvalidListing;

/// One entry of a listing: a kind and a name, or the reason why they are invalid.
pub type ListedEntry = Result<(Kind, Name), InvalidListing>;

/// A plugin that was listed before.
#[derive(Debug, thiserror::Error)]
enum DuplicatePlugin {
    #[error("the binary lists {kind} {name} twice")]
    SameBinary { kind: Kind, name: Name },
    #[error("the binary lists {kind} {name}, which {} already provides", first.display())]
    OtherBinary { kind: Kind, name: Name, first: PathBuf },
}

/// A usable plugin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plugin {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
    /// The binary of the plugin.
    pub command: PathBuf,
}

/// A problem with a binary, or with a plugin in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugin {}: {reason}", command.display())]
pub struct Problem {
    /// The binary.
    pub command: PathBuf,
    /// The reason.
    pub reason: String,
}

/// Kinds that serve the same trait, the newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the trait of the same name")]
pub enum Family {
    BackupItemAction,
    RestoreItemAction,
    DeleteItemAction,
    ItemBlockAction,
    VolumeSnapshotter,
    ObjectStore,
}

impl Family {
    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::BackupItemAction => &[Kind::BackupItemActionV2, Kind::BackupItemAction],
            Self::RestoreItemAction => &[Kind::RestoreItemActionV2, Kind::RestoreItemAction],
            Self::DeleteItemAction => &[Kind::DeleteItemAction],
            Self::ItemBlockAction => &[Kind::ItemBlockAction],
            Self::VolumeSnapshotter => &[Kind::VolumeSnapshotterV2, Kind::VolumeSnapshotter],
            Self::ObjectStore => &[Kind::ObjectStore],
        }
    }
}

/// All usable plugins, and the problems of the others.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    plugins: Vec<Plugin>,
    problems: Vec<Problem>,
    unlisted: Vec<Problem>,
}

impl Registry {
    /// Adds the listing of a binary.
    pub fn add(&mut self, command: &Path, listing: &[ListedEntry]) {
        if listing.is_empty() {
            self.report(command, "the binary lists no plugins".to_owned());
        }
        for listed in listing {
            match listed {
                Ok((kind, name)) => {
                    if let Err(error) = self.add_plugin(command, *kind, name.clone()) {
                        self.report(command, error.to_string());
                    }
                }
                Err(error) => self.report(command, error.to_string()),
            }
        }
    }

    /// Records a problem with a binary.
    pub fn report(&mut self, command: &Path, reason: String) {
        self.problems.push(Problem { command: command.to_owned(), reason });
    }

    /// Records that a binary did not list its plugins, or that a folder cannot be read.
    pub fn report_unlisted(&mut self, command: &Path, reason: String) {
        self.unlisted.push(Problem { command: command.to_owned(), reason: reason.clone() });
        self.report(command, reason);
    }

    fn add_plugin(
        &mut self,
        command: &Path,
        kind: Kind,
        name: Name,
    ) -> Result<(), DuplicatePlugin> {
        if let Some(other) = self.plugins.iter().find(|p| p.kind == kind && p.name == name) {
            return Err(if other.command == command {
                DuplicatePlugin::SameBinary { kind, name }
            } else {
                DuplicatePlugin::OtherBinary { kind, name, first: other.command.clone() }
            });
        }
        self.plugins.push(Plugin { kind, name, command: command.to_owned() });
        Ok(())
    }

    /// All plugins, in the order in which they were listed.
    pub fn plugins(&self) -> &[Plugin] {
        &self.plugins
    }

    /// All problems.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The problems that hide plugins: it is unknown which plugins these binaries have. Files that
    /// are not programs are not among them.
    pub fn unlisted(&self) -> &[Problem] {
        &self.unlisted
    }

    /// The plugin of a family with this name, in its newest version.
    pub fn find(&self, family: Family, name: &Name) -> Option<&Plugin> {
        let of_kind = |&kind: &Kind| {
            self.plugins.iter().find(move |plugin| plugin.kind == kind && plugin.name == *name)
        };
        family.kinds().iter().find_map(of_kind)
    }

    /// The plugins of a family in the order in which they run, each name once.
    pub fn family(&self, family: Family) -> Vec<&Plugin> {
        let mut seen_names = HashSet::new();
        self.plugins
            .iter()
            .filter(|plugin| {
                family.kinds().contains(&plugin.kind) && seen_names.insert(&plugin.name)
            })
            .filter_map(|plugin| self.find(family, &plugin.name))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(listings: &[(&str, &[(&str, &str)])]) -> Registry {
        let mut registry = Registry::default();
        for (command, listing) in listings {
            let listed = |(kind, name): &(&str, &str)| -> ListedEntry {
                let name_text = (*name).to_owned();
                let unknown_kind = |source| InvalidListing::Kind { name: name_text, source };
                let kind = kind.parse().map_err(unknown_kind)?;
                Ok((kind, name.parse().map_err(|source| InvalidListing::Name { kind, source })?))
            };
            registry.add(Path::new(command), &listing.iter().map(listed).collect::<Vec<_>>());
        }
        registry
    }

    fn describe(plugins: &[&Plugin]) -> Vec<String> {
        plugins.iter().map(|p| format!("{} {} {}", p.kind, p.name, p.command.display())).collect()
    }

    #[test]
    fn plugins_run_in_binary_order_and_only_in_their_newest_version() {
        let registry = registry(&[
            (
                "/b",
                &[
                    ("BackupItemAction", "x.io/one"),
                    ("BackupItemAction", "x.io/two"),
                    ("BackupItemActionV2", "x.io/two"),
                    ("ObjectStore", "x.io/one"),
                ],
            ),
            ("/a", &[("BackupItemActionV2", "x.io/three")]),
        ]);
        assert_eq!(
            describe(&registry.family(Family::BackupItemAction)),
            [
                "BackupItemAction x.io/one /b",
                "BackupItemActionV2 x.io/two /b",
                "BackupItemActionV2 x.io/three /a"
            ]
        );
        assert_eq!(registry.problems(), []);
    }

    #[test]
    fn problems_name_binary_and_reason_and_do_not_affect_others() {
        let registry = registry(&[
            ("/good", &[("ObjectStore", "x.io/store")]),
            (
                "/bad",
                &[
                    ("SnapshotItemAction", "x.io/odd"),
                    ("ObjectStore", "noslash"),
                    ("ObjectStore", "x.io/store"),
                    ("DeleteItemAction", "x.io/del"),
                    ("DeleteItemAction", "x.io/del"),
                ],
            ),
            ("/empty", &[]),
        ]);
        let problems: Vec<String> = registry.problems().iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "plugin /bad: plugin x.io/odd: unknown plugin kind `SnapshotItemAction`",
                "plugin /bad: ObjectStore: `noslash` is not a plugin name: expected <DNS \
                 name>/<name>",
                "plugin /bad: the binary lists ObjectStore x.io/store, which /good already \
                 provides",
                "plugin /bad: the binary lists DeleteItemAction x.io/del twice",
                "plugin /empty: the binary lists no plugins",
            ]
        );
        let all: Vec<&Plugin> = registry.plugins().iter().collect();
        assert_eq!(
            describe(&all),
            ["ObjectStore x.io/store /good", "DeleteItemAction x.io/del /bad"]
        );
    }

    #[test]
    fn newest_version_of_a_name_is_found() {
        let registry = registry(&[(
            "/a",
            &[("VolumeSnapshotter", "x.io/vs"), ("VolumeSnapshotterV2", "x.io/vs")],
        )]);
        let name = "x.io/vs".parse().unwrap();
        let found = registry.find(Family::VolumeSnapshotter, &name).map(|plugin| plugin.kind);
        assert_eq!(found, Some(Kind::VolumeSnapshotterV2));
        assert_eq!(registry.find(Family::ObjectStore, &name), None);
    }
}

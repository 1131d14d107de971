//! The key of every file, as Velero's `object_store_layout.go` says, and of ours.
//!
//! ```text
//! <prefix>/backups/<backup>/velero-backup.json      the commit record
//! <prefix>/backups/<backup>/<backup>.tar.gz         …and the rest, see BackupFile
//! <prefix>/restores/<restore>/restore-<restore>-…   see RestoreFile
//! <prefix>/plugins/bowline/<uid>/<name>             ours, while a run lasts
//! ```

use bowline_api::download_request::{DownloadTarget, DownloadTargetKind};

use crate::name::{BackupName, InvalidName, RestoreName, RunUid};

/// The folders that may lie at the top of a location. With any other in it Velero calls the
/// location invalid, and so do we.
pub const TOP_FOLDERS: [&str; 6] =
    ["backups", "kopia", "metadata", "plugins", "restic", "restores"];

/// A file of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackupFile {
    /// `velero-backup.json`: the Backup itself. With it the backup exists.
    Record,
    /// The archive of objects.
    Contents,
    /// The log.
    Log,
    /// Its PodVolumeBackups.
    PodVolumeBackups,
    /// The snapshots that plugins took.
    VolumeSnapshots,
    /// The operations of its item actions.
    ItemOperations,
    /// The names of its objects.
    ResourceList,
    /// Its errors and warnings.
    Results,
    /// How each volume was saved.
    VolumeInfos,
    /// Its VolumePluginBackups; ours.
    VolumePluginBackups,
    /// What Velero has no file for; ours.
    BowlineInfo,
    /// Its VolumeSnapshots; old backups only, read and never written.
    CsiVolumeSnapshots,
    /// Its VolumeSnapshotContents; old backups only.
    CsiVolumeSnapshotContents,
    /// Its VolumeSnapshotClasses; old backups only.
    CsiVolumeSnapshotClasses,
}

impl BackupFile {
    /// All files.
    pub const ALL: [Self; 14] = [
        Self::Record,
        Self::Contents,
        Self::Log,
        Self::PodVolumeBackups,
        Self::VolumeSnapshots,
        Self::ItemOperations,
        Self::ResourceList,
        Self::Results,
        Self::VolumeInfos,
        Self::VolumePluginBackups,
        Self::BowlineInfo,
        Self::CsiVolumeSnapshots,
        Self::CsiVolumeSnapshotContents,
        Self::CsiVolumeSnapshotClasses,
    ];

    fn name(self, backup: &BackupName) -> String {
        let suffix = match self {
            Self::Record => return "velero-backup.json".to_owned(),
            Self::Contents => ".tar.gz",
            Self::Log => "-logs.gz",
            Self::PodVolumeBackups => "-podvolumebackups.json.gz",
            Self::VolumeSnapshots => "-volumesnapshots.json.gz",
            Self::ItemOperations => "-itemoperations.json.gz",
            Self::ResourceList => "-resource-list.json.gz",
            Self::Results => "-results.gz",
            Self::VolumeInfos => "-volumeinfo.json.gz",
            Self::VolumePluginBackups => "-volumepluginbackups.json.gz",
            Self::BowlineInfo => "-bowline.json.gz",
            Self::CsiVolumeSnapshots => "-csi-volumesnapshots.json.gz",
            Self::CsiVolumeSnapshotContents => "-csi-volumesnapshotcontents.json.gz",
            Self::CsiVolumeSnapshotClasses => "-csi-volumesnapshotclasses.json.gz",
        };
        format!("{backup}{suffix}")
    }
}

/// A file of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestoreFile {
    /// The log.
    Log,
    /// Its errors and warnings.
    Results,
    /// The names of its objects.
    ResourceList,
    /// The operations of its item actions.
    ItemOperations,
    /// How each volume was restored.
    VolumeInfos,
}

impl RestoreFile {
    /// All files.
    pub const ALL: [Self; 5] =
        [Self::Log, Self::Results, Self::ResourceList, Self::ItemOperations, Self::VolumeInfos];

    fn name(self, restore: &RestoreName) -> String {
        let suffix = match self {
            Self::Log => "logs.gz",
            Self::Results => "results.gz",
            Self::ResourceList => "resource-list.json.gz",
            Self::ItemOperations => "itemoperations.json.gz",
            // Velero leaves out the `restore-` here, and only here.
            Self::VolumeInfos => return format!("{restore}-volumeinfo.json.gz"),
        };
        format!("restore-{restore}-{suffix}")
    }
}

/// A file, wherever the location keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A file of a backup.
    Backup(BackupName, BackupFile),
    /// A file of a restore.
    Restore(RestoreName, RestoreFile),
    /// What a run keeps in the bucket until it has ended, under a number.
    Scratch(RunUid, u64),
}

/// A download that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDownload {
    /// There is no such kind of file.
    #[error("unsupported download target kind {0:?}")]
    Kind(String),
    /// It names no backup or restore.
    #[error(transparent)]
    Name(#[from] InvalidName),
}

impl TryFrom<&DownloadTarget> for Key {
    type Error = InvalidDownload;

    fn try_from(target: &DownloadTarget) -> Result<Self, InvalidDownload> {
        use DownloadTargetKind as Kind;
        let backup = |file| Ok(Self::Backup(BackupName::new(&target.name)?, file));
        let restore = |file| Ok(Self::Restore(RestoreName::new(&target.name)?, file));
        match &target.kind {
            Kind::BackupLog => backup(BackupFile::Log),
            Kind::BackupContents => backup(BackupFile::Contents),
            Kind::BackupVolumeSnapshots => backup(BackupFile::VolumeSnapshots),
            Kind::BackupItemOperations => backup(BackupFile::ItemOperations),
            Kind::BackupResourceList => backup(BackupFile::ResourceList),
            Kind::BackupResults => backup(BackupFile::Results),
            Kind::BackupVolumeInfos => backup(BackupFile::VolumeInfos),
            Kind::CsiBackupVolumeSnapshots => backup(BackupFile::CsiVolumeSnapshots),
            Kind::CsiBackupVolumeSnapshotContents => backup(BackupFile::CsiVolumeSnapshotContents),
            Kind::RestoreLog => restore(RestoreFile::Log),
            Kind::RestoreResults => restore(RestoreFile::Results),
            Kind::RestoreResourceList => restore(RestoreFile::ResourceList),
            Kind::RestoreItemOperations => restore(RestoreFile::ItemOperations),
            Kind::RestoreVolumeInfo => restore(RestoreFile::VolumeInfos),
            Kind::Other(kind) => Err(InvalidDownload::Kind(kind.clone())),
        }
    }
}

/// The part of a bucket that belongs to a location: empty, or `a/b`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Prefix(String);

/// A prefix that would leave its bucket, or be another key than it seems.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the prefix {0:?} has an empty part, or a part `.` or `..`")]
pub struct InvalidPrefix(String);

impl Prefix {
    /// Takes a prefix, without the slashes around it.
    pub fn new(prefix: &str) -> Result<Self, InvalidPrefix> {
        let trimmed = prefix.trim_matches('/');
        let is_fine = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        if trimmed.is_empty() || trimmed.split('/').all(is_fine) {
            Ok(Self(trimmed.to_owned()))
        } else {
            Err(InvalidPrefix(prefix.to_owned()))
        }
    }

    /// The prefix without slashes around it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where everything lies in one location.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Empty, or ending in a slash.
    root: String,
}

impl Layout {
    /// The layout below a prefix.
    pub fn new(prefix: &Prefix) -> Self {
        let root = prefix.as_str();
        Self { root: if root.is_empty() { String::new() } else { format!("{root}/") } }
    }

    /// What all keys of the location begin with: empty, or ending in a slash.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The key of a file.
    pub fn key(&self, key: &Key) -> String {
        match key {
            Key::Backup(backup, file) => {
                format!("{}{}", self.backup_folder(backup), file.name(backup))
            }
            Key::Restore(restore, file) => {
                format!("{}{}", self.restore_folder(restore), file.name(restore))
            }
            Key::Scratch(run, number) => format!("{}{number:06}", self.scratch_folder(run)),
        }
    }

    /// What the folders of all backups lie in.
    pub fn backups(&self) -> String {
        format!("{}backups/", self.root)
    }

    /// What the keys of a backup begin with.
    pub fn backup_folder(&self, backup: &BackupName) -> String {
        format!("{}backups/{backup}/", self.root)
    }

    /// What the keys of a restore begin with.
    pub fn restore_folder(&self, restore: &RestoreName) -> String {
        format!("{}restores/{restore}/", self.root)
    }

    /// What the keys of a run's scratch files begin with.
    pub fn scratch_folder(&self, run: &RunUid) -> String {
        format!("{}plugins/bowline/{run}/", self.root)
    }

    /// Those of the folders at the top that must not be there.
    pub fn unexpected_folders<'a>(
        &self,
        folders: impl IntoIterator<Item = &'a str>,
    ) -> Vec<String> {
        let folders = folders.into_iter();
        let names = folders.map(|folder| {
            let name = folder.strip_prefix(self.root.as_str()).unwrap_or(folder);
            name.strip_suffix('/').unwrap_or(name)
        });
        names.filter(|name| !TOP_FOLDERS.contains(name)).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests;

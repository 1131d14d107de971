//! Keys of all files: Velero's, as in its `object_store_layout.go`, and Bowline's own.
//!
//! ```text
//! <prefix>/backups/<backup>/velero-backup.json      the commit record
//! <prefix>/backups/<backup>/<backup>.tar.gz         …and the rest, see BackupFile
//! <prefix>/restores/<restore>/restore-<restore>-…   see RestoreFile
//! <prefix>/plugins/bowline/<uid>/<name>             Bowline's own, for the duration of a run
//! ```

use bowline_api::download_request::{DownloadTarget, DownloadTargetKind};

use crate::name::{BackupName, InvalidName, RestoreName, RunUid};

/// The folders allowed at the top of a location. Any other folder makes the location invalid, as in
/// Velero.
pub const TOP_FOLDERS: [&str; 6] =
    ["backups", "kopia", "metadata", "plugins", "restic", "restores"];

/// A file of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackupFile {
    /// `velero-backup.json`: the Backup itself. The backup exists if this file does.
    Record,
    /// The archive of Kubernetes objects.
    Contents,
    /// The index of the archive; Bowline's own file.
    ArchiveIndex,
    /// The log.
    Log,
    /// The PodVolumeBackups.
    PodVolumeBackups,
    /// The snapshots taken by plugins.
    VolumeSnapshots,
    /// The operations of item actions.
    ItemOperations,
    /// The names of the objects in the backup.
    ResourceList,
    /// The errors and warnings.
    Results,
    /// The backup method and result of each volume.
    VolumeInfos,
    /// The VolumePluginBackups; Bowline's own file.
    VolumePluginBackups,
    /// Information for which Velero has no file; Bowline's own file.
    BowlineInfo,
    /// The VolumeSnapshots; in old backups only, read and never written.
    CsiVolumeSnapshots,
    /// The VolumeSnapshotContents; in old backups only.
    CsiVolumeSnapshotContents,
    /// The VolumeSnapshotClasses; in old backups only.
    CsiVolumeSnapshotClasses,
}

impl BackupFile {
    /// All files.
    pub const ALL: [Self; 15] = [
        Self::Record,
        Self::Contents,
        Self::ArchiveIndex,
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
            Self::ArchiveIndex => "-bowline-index",
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
    /// The errors and warnings.
    Results,
    /// The names of the restored objects.
    ResourceList,
    /// The operations of item actions.
    ItemOperations,
    /// The restore method and result of each volume.
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
            // Velero omits the `restore-` here, and only here.
            Self::VolumeInfos => return format!("{restore}-volumeinfo.json.gz"),
        };
        format!("restore-{restore}-{suffix}")
    }
}

/// Any file of a location.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A file of a backup.
    Backup(BackupName, BackupFile),
    /// A file of a restore.
    Restore(RestoreName, RestoreFile),
    /// A numbered scratch file that a run keeps in the bucket until it has ended.
    Scratch(RunUid, u64),
}

/// An invalid download request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDownload {
    /// Unknown kind of file.
    #[error("unsupported download target kind {0:?}")]
    Kind(String),
    /// Invalid name of a backup or restore.
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

/// A prefix that would leave its bucket, or be a different key than it seems.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the prefix {0:?} has an empty part, or a part `.` or `..`")]
pub struct InvalidPrefix(String);

impl Prefix {
    /// Validates a prefix, and removes the slashes around it.
    pub fn new(prefix: &str) -> Result<Self, InvalidPrefix> {
        let trimmed = prefix.trim_matches('/');
        let is_fine = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        if trimmed.is_empty() || trimmed.split('/').all(is_fine) {
            Ok(Self(trimmed.to_owned()))
        } else {
            Err(InvalidPrefix(prefix.to_owned()))
        }
    }

    /// The prefix without the slashes around it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The keys of all files of one location.
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

    /// The common prefix of all keys of the location: empty, or ending in a slash.
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

    /// The folder that contains the folders of all backups.
    pub fn backups(&self) -> String {
        format!("{}backups/", self.root)
    }

    /// The common prefix of the keys of a backup.
    pub fn backup_folder(&self, backup: &BackupName) -> String {
        format!("{}backups/{backup}/", self.root)
    }

    /// The common prefix of the keys of a restore.
    pub fn restore_folder(&self, restore: &RestoreName) -> String {
        format!("{}restores/{restore}/", self.root)
    }

    /// The common prefix of the keys of a run's scratch files.
    pub fn scratch_folder(&self, run: &RunUid) -> String {
        format!("{}plugins/bowline/{run}/", self.root)
    }

    /// The folders among those at the top that are not allowed there.
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

//! The other word order: `bowline get backups` for `bowline backup get`.
//!
//! Each verb is converted to the command of its noun, so that each command exists once. Nouns may be typed in the
//! singular and the plural.

use super::backup::{self, Command as OfBackup};
use super::backup_location::{self, Command as OfBackupLocation};
use super::plugin::{self, Command as OfPlugin};
use super::repo::{self, Command as OfRepo};
use super::restore::{self, Command as OfRestore};
use super::schedule::{self, Command as OfSchedule};
use super::snapshot_location::{self, Command as OfSnapshotLocation};
use super::{Command, backup_location as bsl, snapshot_location as vsl};
use crate::args::InstallationArgs;
use crate::{describe, logs, table};

/// List objects
#[derive(Debug, clap::Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    installation: InstallationArgs,

    #[command(subcommand)]
    resource: Get,
}

#[derive(Debug, clap::Subcommand)]
enum Get {
    /// List backups
    #[command(visible_alias = "backup")]
    Backups(table::RunArgs),
    /// List restores
    #[command(visible_alias = "restore")]
    Restores(table::RunArgs),
    /// List schedules
    #[command(visible_alias = "schedule")]
    Schedules(table::Args),
    #[command(visible_alias = "backup-location")]
    BackupLocations(bsl::get::Args),
    /// List volume snapshot locations
    #[command(visible_alias = "snapshot-location")]
    SnapshotLocations(table::Args),
    #[command(visible_alias = "plugin")]
    Plugins(plugin::get::Args),
    /// List repositories
    #[command(visible_aliases = ["repo", "repositories"])]
    Repos(table::Args),
}

impl From<GetArgs> for Command {
    fn from(GetArgs { installation, resource }: GetArgs) -> Self {
        match resource {
            Get::Backups(args) => backup_command(installation, OfBackup::Get(args)),
            Get::Restores(args) => restore_command(installation, OfRestore::Get(args)),
            Get::Schedules(args) => schedule_command(installation, OfSchedule::Get(args)),
            Get::BackupLocations(args) => {
                backup_location_command(installation, OfBackupLocation::Get(args))
            }
            Get::SnapshotLocations(args) => {
                snapshot_location_command(installation, OfSnapshotLocation::Get(args))
            }
            Get::Plugins(args) => {
                Self::Plugin(plugin::Args { installation, command: OfPlugin::Get(args) })
            }
            Get::Repos(args) => Self::Repo(repo::Args { installation, command: OfRepo::Get(args) }),
        }
    }
}

/// Describe objects
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    #[command(flatten)]
    installation: InstallationArgs,

    #[command(subcommand)]
    resource: Describe,
}

#[derive(Debug, clap::Subcommand)]
enum Describe {
    /// Describe backups
    #[command(visible_alias = "backup")]
    Backups(describe::RunArgs),
    /// Describe restores
    #[command(visible_alias = "restore")]
    Restores(describe::RunArgs),
    /// Describe schedules
    #[command(visible_alias = "schedule")]
    Schedules(describe::Args),
    /// Describe backup storage locations
    #[command(visible_alias = "backup-location")]
    BackupLocations(describe::Args),
    /// Describe volume snapshot locations
    #[command(visible_alias = "snapshot-location")]
    SnapshotLocations(describe::Args),
    /// Describe repositories
    #[command(visible_aliases = ["repo", "repositories"])]
    Repos(describe::Args),
}

impl From<DescribeArgs> for Command {
    fn from(DescribeArgs { installation, resource }: DescribeArgs) -> Self {
        match resource {
            Describe::Backups(args) => backup_command(installation, OfBackup::Describe(args)),
            Describe::Restores(args) => restore_command(installation, OfRestore::Describe(args)),
            Describe::Schedules(args) => schedule_command(installation, OfSchedule::Describe(args)),
            Describe::BackupLocations(args) => {
                backup_location_command(installation, OfBackupLocation::Describe(args))
            }
            Describe::SnapshotLocations(args) => {
                snapshot_location_command(installation, OfSnapshotLocation::Describe(args))
            }
            Describe::Repos(args) => {
                Self::Repo(repo::Args { installation, command: OfRepo::Describe(args) })
            }
        }
    }
}

/// Create an object
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    installation: InstallationArgs,

    #[command(subcommand)]
    resource: Create,
}

#[derive(Debug, clap::Subcommand)]
enum Create {
    #[command(visible_alias = "backups")]
    Backup(Box<backup::create::Args>),
    #[command(visible_alias = "restores")]
    Restore(Box<restore::create::Args>),
    #[command(visible_alias = "schedules")]
    Schedule(Box<schedule::create::Args>),
    #[command(visible_alias = "backup-locations")]
    BackupLocation(bsl::create::Args),
    #[command(visible_alias = "snapshot-locations")]
    SnapshotLocation(vsl::create::Args),
}

impl From<CreateArgs> for Command {
    fn from(CreateArgs { installation, resource }: CreateArgs) -> Self {
        match resource {
            Create::Backup(args) => backup_command(installation, OfBackup::Create(args)),
            Create::Restore(args) => restore_command(installation, OfRestore::Create(args)),
            Create::Schedule(args) => schedule_command(installation, OfSchedule::Create(args)),
            Create::BackupLocation(args) => {
                backup_location_command(installation, OfBackupLocation::Create(args))
            }
            Create::SnapshotLocation(args) => {
                snapshot_location_command(installation, OfSnapshotLocation::Create(args))
            }
        }
    }
}

/// Delete objects
#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    installation: InstallationArgs,

    #[command(subcommand)]
    resource: Delete,
}

#[derive(Debug, clap::Subcommand)]
enum Delete {
    #[command(visible_alias = "backups")]
    Backup(backup::delete::Args),
    #[command(visible_alias = "restores")]
    Restore(restore::delete::Args),
    #[command(visible_alias = "schedules")]
    Schedule(schedule::delete::Args),
    #[command(visible_alias = "backup-locations")]
    BackupLocation(bsl::delete::Args),
    #[command(visible_alias = "snapshot-locations")]
    SnapshotLocation(vsl::delete::Args),
}

impl From<DeleteArgs> for Command {
    fn from(DeleteArgs { installation, resource }: DeleteArgs) -> Self {
        match resource {
            Delete::Backup(args) => backup_command(installation, OfBackup::Delete(args)),
            Delete::Restore(args) => restore_command(installation, OfRestore::Delete(args)),
            Delete::Schedule(args) => schedule_command(installation, OfSchedule::Delete(args)),
            Delete::BackupLocation(args) => {
                backup_location_command(installation, OfBackupLocation::Delete(args))
            }
            Delete::SnapshotLocation(args) => {
                snapshot_location_command(installation, OfSnapshotLocation::Delete(args))
            }
        }
    }
}

/// Print the log of a backup or restore
#[derive(Debug, clap::Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    installation: InstallationArgs,

    #[command(subcommand)]
    resource: Logs,
}

#[derive(Debug, clap::Subcommand)]
enum Logs {
    /// Print the log of a backup
    #[command(visible_alias = "backups", mut_arg("name", |name| name.help("Name of the backup")))]
    Backup(logs::Args),
    /// Print the log of a restore
    #[command(visible_alias = "restores", mut_arg("name", |name| name.help("Name of the restore")))]
    Restore(logs::Args),
}

impl From<LogsArgs> for Command {
    fn from(LogsArgs { installation, resource }: LogsArgs) -> Self {
        match resource {
            Logs::Backup(args) => backup_command(installation, OfBackup::Logs(args)),
            Logs::Restore(args) => restore_command(installation, OfRestore::Logs(args)),
        }
    }
}

fn backup_command(installation: InstallationArgs, command: OfBackup) -> Command {
    Command::Backup(backup::Args { installation, command })
}

fn restore_command(installation: InstallationArgs, command: OfRestore) -> Command {
    Command::Restore(restore::Args { installation, command })
}

fn schedule_command(installation: InstallationArgs, command: OfSchedule) -> Command {
    Command::Schedule(schedule::Args { installation, command })
}

fn backup_location_command(installation: InstallationArgs, command: OfBackupLocation) -> Command {
    Command::BackupLocation(backup_location::Args { installation, command })
}

fn snapshot_location_command(
    installation: InstallationArgs,
    command: OfSnapshotLocation,
) -> Command {
    Command::SnapshotLocation(snapshot_location::Args { installation, command })
}

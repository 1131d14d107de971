//! `bowline backup create`

pub(crate) mod spec;
#[cfg(test)]
mod tests;

use anyhow::{Context as _, bail};
use bowline_api::{Backup, BackupSpec, BackupStorageLocation, Schedule, VolumeSnapshotLocation};
use bowline_engine::schedule;
use bowline_store::BackupName;
use jiff::Timestamp;

use self::spec::{BackupFilterArgs, BackupOptionArgs, spec};
use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::flags::{self, Pairs};
use crate::installation::Installation;
use crate::listing::{self, ObjectFormat};
use crate::output;
use crate::run::{self, NameOrigin};

/// Create a backup
///
/// List flags take comma-separated values and can be repeated.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the backup; optional with --from-schedule
    name: Option<String>,

    /// Use the template of this schedule; the other flags are ignored, except --labels,
    /// --annotations and --snapshot-type. Unless NAME is given, the backup is named after the
    /// schedule and the current time
    #[arg(long, value_name = "NAME")]
    from_schedule: Option<String>,

    /// Labels to add to the backup
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    labels: Vec<Pairs>,

    /// Annotations to add to the backup; put a pair that contains a comma in double quotes
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    annotations: Vec<Pairs>,

    /// Wait until the backup has ended; exit with 1 unless it is Completed
    #[arg(short, long)]
    wait: bool,

    /// Print the backup instead of creating it
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "wait")]
    output: Option<ObjectFormat>,

    // Last, since their headings hold for all that follows.
    #[command(flatten)]
    filter: BackupFilterArgs,

    #[command(flatten)]
    options: BackupOptionArgs,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    let now = Timestamp::now();
    // Mistakes in the command line first: finding them needs no cluster.
    let requested = spec(&args.filter, &args.options)?;
    let Some(schedule) = &args.from_schedule else {
        let Some(name) = &args.name else {
            bail!("a backup name is required unless --from-schedule is given");
        };
        let mut backup = Backup::new(BackupName::new(name)?.as_str(), requested);
        add_flag_metadata(&mut backup, &args);
        if let Some(format) = args.output {
            return listing::print_without_creating(backup, installation, format);
        }
        let installation = Installation::connect(installation).await?;
        check_locations(&installation, &backup.spec).await?;
        let has_location = !backup.spec.storage_location.is_empty();
        let exit = run::submit(&installation, backup, args.wait, NameOrigin::User).await?;
        // With --wait, the wait reports this.
        if !args.wait && !has_location {
            hint_if_no_location(&installation).await;
        }
        return Ok(exit);
    };
    // As Velero does, silently.
    if requested != spec(&BackupFilterArgs::default(), &BackupOptionArgs::default())? {
        output::print_message(
            "warning: --from-schedule uses the schedule's template; the other flags are ignored, \
             except --labels, --annotations and --snapshot-type",
        );
    }
    let name = args.name.as_ref().map(BackupName::new).transpose()?;
    let connected = Installation::connect(installation).await?;
    let schedule: Schedule = listing::get(&connected, schedule).await?;
    let mut backup = from_schedule(&schedule, name.as_ref(), now)?;
    add_flag_metadata(&mut backup, &args);
    match args.output {
        Some(format) => listing::print_without_creating(backup, installation, format),
        None => run::submit(&connected, backup, args.wait, name.is_some().into()).await,
    }
}

/// Reports a missing location now rather than with a backup that fails.
pub(crate) async fn check_locations(
    installation: &Installation,
    spec: &BackupSpec,
) -> anyhow::Result<()> {
    if !spec.storage_location.is_empty() {
        listing::get::<BackupStorageLocation>(installation, &spec.storage_location).await?;
    }
    for location in &spec.volume_snapshot_locations {
        listing::get::<VolumeSnapshotLocation>(installation, location).await?;
    }
    Ok(())
}

/// Without a storage location in the namespace no server can do anything, and probably there is none. A user without
/// the right to list locations gets no hint.
async fn hint_if_no_location(installation: &Installation) {
    let locations = listing::find::<BackupStorageLocation>(installation, &[], None).await;
    if locations.is_ok_and(|locations| locations.is_empty()) {
        output::print_message(format_args!(
            "hint: namespace `{}` has no backup location, so probably no server runs in it; name \
             the server's namespace with -n",
            installation.namespace()
        ));
    }
}

/// Adds the labels and annotations of the command line.
fn add_flag_metadata(backup: &mut Backup, args: &Args) {
    let annotations = args.options.annotations(&args.annotations);
    run::add_metadata(&mut backup.metadata, flags::merged(&args.labels), annotations);
}

/// Backup that a schedule would create now.
fn from_schedule(
    schedule: &Schedule,
    name: Option<&BackupName>,
    now: Timestamp,
) -> anyhow::Result<Backup> {
    let name = match name {
        Some(name) => name.clone(),
        None => BackupName::new(schedule::backup_name(schedule, now)).context(
            "the schedule's name is too long to append a timestamp; set a name for the backup",
        )?,
    };
    let mut backup = schedule::backup(schedule, now);
    backup.metadata.name = Some(name.to_string());
    Ok(backup)
}

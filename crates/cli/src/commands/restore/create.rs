//! `bowline restore create`

mod dry_run;
mod source;
mod spec;
#[cfg(test)]
mod tests;

use anyhow::Context as _;
use bowline_api::Restore;
use bowline_engine::restore::request::{ALLOW_DAMAGED_ARCHIVE, ALLOW_EMPTY_VOLUMES};
use bowline_store::RestoreName;
use jiff::Timestamp;

use self::source::SourceBackups;
use self::spec::{RestoreFilterArgs, RestoreOptionArgs, spec};
use crate::args::{InstallationArgs, TrustArgs};
use crate::exit::Exit;
use crate::flags::{self, Pairs};
use crate::installation::Installation;
use crate::listing::{self, ObjectFormat};
use crate::{relative_time, run};

/// Create a restore from a backup
///
/// List flags take comma-separated values and can be repeated.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the restore [default: the name of the backup or schedule, and the current time]
    name: Option<String>,

    #[command(flatten)]
    source: SourceArgs,

    /// With --from-schedule, also accept a PartiallyFailed backup if it is the newest
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    allow_partially_failed: Option<bool>,

    /// Labels to add to the restore
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    labels: Vec<Pairs>,

    /// Annotations to add to the restore; put a pair that contains a comma in double quotes
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    annotations: Vec<Pairs>,

    /// Wait until the restore has ended; exit with 1 unless it is Completed
    #[arg(short, long)]
    wait: bool,

    /// Restore nothing: show what would be created, updated, skipped or refused, and why. Exits
    /// with 1 if something would fail
    ///
    /// The archive is downloaded, and the API server validates the objects with your own
    /// permissions; no Restore is created. Plugin actions and hooks are not run.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,

    /// Print the restore instead of creating it; with --dry-run, output format of the plan
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "wait")]
    output: Option<ObjectFormat>,

    // Last, since their headings hold for all that follows.
    #[command(flatten)]
    filter: RestoreFilterArgs,

    #[command(flatten)]
    options: RestoreOptionArgs,

    #[command(flatten)]
    trust: DryRunTrustArgs,
}

/// What to restore from.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct SourceArgs {
    /// Backup to restore from
    #[arg(long, value_name = "NAME")]
    from_backup: Option<String>,

    /// Schedule whose newest completed backup is restored
    #[arg(long, value_name = "NAME")]
    from_schedule: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Download for --dry-run")]
struct DryRunTrustArgs {
    #[command(flatten)]
    args: TrustArgs,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    // Mistakes in the command line first: finding them needs no cluster.
    let mut restore = restore(&args, Timestamp::now())?;
    let picks_backup =
        args.source.from_schedule.is_some() && args.allow_partially_failed == Some(true);
    if let Some(format) = args.output
        && !args.dry_run
        && !picks_backup
    {
        return listing::print_without_creating(restore, installation, format);
    }
    let connected = Installation::connect(installation).await?;
    let source = SourceBackups::find(&connected, &restore.spec).await?;
    if picks_backup {
        source.choose_newest(&mut restore.spec);
    }
    source.check(&restore.spec)?;
    match args.output {
        output if args.dry_run => {
            let trust = &args.trust.args;
            // Boxed, since the future is large.
            Box::pin(dry_run::run(&connected, restore, source, trust, output)).await
        }
        Some(format) => listing::print_without_creating(restore, installation, format),
        None => run::submit(&connected, restore, args.wait, args.name.is_some().into()).await,
    }
}

/// Restore that the command line requests.
fn restore(args: &Args, now: Timestamp) -> anyhow::Result<Restore> {
    let mut spec = spec(&args.filter, &args.options)?;
    spec.backup_name = args.source.from_backup.clone().unwrap_or_default();
    spec.schedule_name = args.source.from_schedule.clone().unwrap_or_default();
    let name = match &args.name {
        Some(name) => RestoreName::new(name)?,
        None => default_name(&format!("{}{}", spec.backup_name, spec.schedule_name), now)?,
    };
    let mut restore = Restore::new(name.as_str(), spec);
    let (labels, mut annotations) = (flags::merged(&args.labels), flags::merged(&args.annotations));
    if args.options.allow_empty_volumes {
        annotations.insert(ALLOW_EMPTY_VOLUMES.to_owned(), "true".to_owned());
    }
    if args.options.allow_damaged_archive {
        annotations.insert(ALLOW_DAMAGED_ARCHIVE.to_owned(), "true".to_owned());
    }
    run::add_metadata(&mut restore.metadata, labels, annotations);
    Ok(restore)
}

/// Name of the backup or schedule, and the time.
fn default_name(source: &str, now: Timestamp) -> anyhow::Result<RestoreName> {
    RestoreName::new(source)?;
    RestoreName::new(format!("{source}-{}", relative_time::compact_digits(now))).with_context(
        || {
            format!(
                "the name `{source}` is too long to append a timestamp; set a name for the restore"
            )
        },
    )
}

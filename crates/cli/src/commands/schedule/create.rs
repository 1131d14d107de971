//! `bowline schedule create`

use std::error::Error;

use bowline_api::{Schedule, ScheduleSpec};
use bowline_engine::report::error_text;
use bowline_engine::schedule;
use bowline_store::BackupName;

use crate::args::InstallationArgs;
use crate::commands::backup::create::check_locations;
use crate::commands::backup::create::spec::{BackupFilterArgs, BackupOptionArgs, spec};
use crate::exit::Exit;
use crate::flags::{self, Pairs};
use crate::installation::Installation;
use crate::listing::{self, ObjectFormat};
use crate::run;

/// Create a backup schedule
///
/// The schedule is a cron expression with five fields: minute, hour, day of month, month, day of
/// week. `0 3 * * *` is every night at three, in the server's time zone, which is UTC in a pod;
/// `CRON_TZ=Europe/Berlin 0 3 * * *` selects another. `@daily`, `@hourly` and similar are
/// supported, and so is `@every 6h`.
///
/// Backups are named after the schedule and their time. List flags take comma-separated values and
/// can be repeated.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the schedule
    name: String,

    /// Cron expression, such as `0 3 * * *` or `@every 6h`
    #[arg(long, value_name = "CRON", value_parser = cron_expression)]
    schedule: String,

    /// Make the schedule the owner of its backups, so that they are deleted from the cluster with
    /// it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value = "false", value_parser = flags::boolean)]
    use_owner_references_in_backup: bool,

    /// Create the schedule paused: no backups until `schedule unpause`
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", default_value = "false", value_parser = flags::boolean)]
    paused: bool,

    /// Skip the backup that is due when the server first processes the schedule [default: the
    /// server's]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_parser = flags::boolean)]
    skip_immediately: Option<bool>,

    /// Labels to add to the schedule and its backups
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    labels: Vec<Pairs>,

    /// Annotations to add to the schedule and its backups; put a pair that contains a comma in
    /// double quotes
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = flags::pairs)]
    annotations: Vec<Pairs>,

    /// Print the schedule instead of creating it
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<ObjectFormat>,

    // Last, since their headings hold for all that follows.
    #[command(flatten)]
    filter: BackupFilterArgs,

    #[command(flatten)]
    options: BackupOptionArgs,
}

pub(crate) async fn run(args: Args, installation: &InstallationArgs) -> anyhow::Result<Exit> {
    // Mistakes in the command line first: finding them needs no cluster.
    let schedule = schedule(&args)?;
    if let Some(format) = args.output {
        return listing::print_without_creating(schedule, installation, format);
    }
    let installation = Installation::connect(installation).await?;
    check_locations(&installation, &schedule.spec.template).await?;
    listing::create_new(&installation, &schedule).await
}

/// Schedule that the command line requests.
fn schedule(args: &Args) -> anyhow::Result<Schedule> {
    let spec = ScheduleSpec {
        template: spec(&args.filter, &args.options)?,
        schedule: args.schedule.clone(),
        // Velero's command line always writes it.
        use_owner_references_in_backup: Some(args.use_owner_references_in_backup),
        paused: args.paused,
        skip_immediately: args.skip_immediately,
        ..ScheduleSpec::default()
    };
    let mut schedule = Schedule::new(BackupName::new(&args.name)?.as_str(), spec);
    // The server copies those of the schedule to its backups.
    let annotations = args.options.annotations(&args.annotations);
    run::add_metadata(&mut schedule.metadata, flags::merged(&args.labels), annotations);
    Ok(schedule)
}

/// Cron expression that the server will understand, too.
fn cron_expression(text: &str) -> Result<String, Box<dyn Error + Send + Sync>> {
    schedule::parse(text).map(|_| text.to_owned()).map_err(|error| error_text(&error).into())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct TestCommand {
        #[command(flatten)]
        args: Args,
    }

    fn parse_schedule(line: &[&str]) -> anyhow::Result<Value> {
        let words = ["create", "s"].iter().chain(line);
        Ok(serde_json::to_value(schedule(&TestCommand::try_parse_from(words)?.args)?)?)
    }

    #[test]
    fn each_flag_sets_its_field() {
        let schedule = parse_schedule(&[
            "--schedule=CRON_TZ=Europe/Berlin 0 3 * * *",
            "--use-owner-references-in-backup",
            "--paused",
            "--skip-immediately=false",
            "--labels=a=b",
            "--annotations=c=d",
            "--snapshot-type=local",
            "--include-namespaces=web",
            "--ttl=48h",
        ])
        .unwrap();
        let annotations = json!({"bowline.io/snapshot-type": "local", "c": "d"});
        assert_eq!(
            schedule["metadata"],
            json!({"name": "s", "labels": {"a": "b"}, "annotations": annotations})
        );
        let spec = &schedule["spec"];
        assert_eq!(spec["schedule"], "CRON_TZ=Europe/Berlin 0 3 * * *");
        assert_eq!(spec["useOwnerReferencesInBackup"], true);
        assert_eq!((&spec["paused"], &spec["skipImmediately"]), (&json!(true), &json!(false)));
        assert_eq!(spec["template"]["includedNamespaces"], json!(["web"]));
        assert_eq!(spec["template"]["ttl"], "48h0m0s");
    }

    #[test]
    fn unset_flags_are_left_to_the_server() {
        let schedule = parse_schedule(&["--schedule=@daily"]).unwrap();
        let spec = &schedule["spec"];
        assert_eq!(spec.get("skipImmediately"), None);
        assert_eq!(spec.get("paused"), None);
        assert_eq!(spec["useOwnerReferencesInBackup"], false);
        assert_eq!(schedule["metadata"], json!({"name": "s"}));
    }

    #[test]
    fn invalid_flags_are_refused() {
        for line in [
            &[][..],
            &["--schedule="],
            &["--schedule=* * * *"],
            &["--schedule=0 25 * * *"],
            &["--schedule=@daily", "--paused=perhaps"],
            &["--schedule=@daily", "--ttl=1d"],
        ] {
            assert!(parse_schedule(line).is_err(), "{line:?}");
        }
    }
}

//! `bowline plugin check`

use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, bail};
use bowline_plugin::{Item, Kind, VolumeId};
use bowline_plugin_check::{self as check, Finding, Input, RuleVerdict};
use bowline_plugin_host::inspect::trait_and_version;
use bowline_plugin_host::{InheritedEnvironment, Options, Plugin};
use serde_json::{Value, json};

use super::{Format, identity, single_line};
use crate::exit::{Exit, shutdown_signal};
use crate::flags::InvalidValue;
use crate::output;

/// Check that the plugins of a binary follow the rules of their kinds
///
/// The check makes real calls: item actions with an item, object stores and snapshotters with the
/// given configuration. Do not use it on valuable data. Objects and snapshots created by the check
/// are deleted, and operations are canceled. Volumes stay, because no plugin can delete them.
/// Objects that an action creates itself stay, too; backup and restore actions are called 17 times.
/// Delete actions are called with the item only with `--kind DeleteItemAction`.
///
/// Needs no cluster, unless the plugins do. Exits with 1 if a rule is broken.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Plugin binary to check
    path: PathBuf,

    /// Check only plugins of this kind; can be repeated. Delete actions are called only with
    /// `--kind DeleteItemAction`, because they delete the data of the item
    #[arg(long, value_name = "KIND", value_parser = KINDS)]
    kind: Vec<String>,

    /// Object to call item actions with, as JSON or YAML [default: a pod that does not exist]
    #[arg(long, value_name = "FILE")]
    item: Option<PathBuf>,

    /// Configuration for object stores and volume snapshotters; can be repeated. If the two need
    /// different settings, check them separately with --kind
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    config: Vec<(String, String)>,

    /// Scratch bucket for object stores; without it, no objects are written. Only keys below
    /// `plugins/bowline-check-…/`, under the `prefix` of --config, are touched
    #[arg(long, value_name = "NAME", value_parser = bucket)]
    bucket: Option<String>,

    /// Volume to snapshot; without it, no snapshots are taken
    #[arg(long, value_name = "ID", value_parser = volume)]
    volume: Option<VolumeId>,

    /// Availability zone of the volume
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,

    /// PersistentVolume of the snapshotter's own type, as JSON or YAML
    #[arg(long, value_name = "FILE")]
    persistent_volume: Option<PathBuf>,

    /// Time limit for each rule
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    timeout: std::time::Duration,

    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Values for `--kind`: each in all its versions.
const KINDS: [&str; 6] = [
    "BackupItemAction",
    "RestoreItemAction",
    "DeleteItemAction",
    "ItemBlockAction",
    "VolumeSnapshotter",
    "ObjectStore",
];

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let command = super::absolute_path(&args.path)?;
    let input = check_input(&args)?;
    let asked_to_end = OnceLock::new();
    let signal = shutdown_signal()?;
    let interrupt = async { asked_to_end.set(signal.await).unwrap_or_default() };
    let mut printer = Printer {
        command: &command,
        format: args.output,
        heading: String::new(),
        output_error: None,
    };
    // A user who tests a plugin on their own machine may configure it with any variable.
    let inherited_environment = InheritedEnvironment::All;
    let options = Options { inherited_environment, ..Options::default() };
    let findings = check::run(&command, options, input, interrupt, |finding| {
        printer.print(finding);
    })
    .await?;
    printer.finish(&findings)?;
    if let Some(exit) = asked_to_end.into_inner() {
        return Ok(exit);
    }
    let is_broken = |finding: &Finding| matches!(finding.verdict, RuleVerdict::Broken(_));
    Ok(if findings.iter().any(is_broken) { Exit::Failed } else { Exit::Success })
}

fn check_input(args: &Args) -> anyhow::Result<Input> {
    // Random enough to distinguish checks.
    let id = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
    let mut input = Input::new(id)?;
    let is_meant = |kind: &Kind| args.kind.iter().any(|word| word == trait_and_version(*kind).0);
    input.kinds = Kind::ALL.into_iter().filter(is_meant).collect();
    if let Some(path) = &args.item {
        input.item = object(path)?;
    }
    input.config = args.config.iter().cloned().collect();
    input.bucket.clone_from(&args.bucket);
    input.volume.clone_from(&args.volume);
    input.zone = args.zone.clone().unwrap_or_default();
    input.persistent_volume =
        args.persistent_volume.as_deref().map(persistent_volume).transpose()?;
    input.timeout = args.timeout;
    Ok(input)
}

/// Reads a Kubernetes object from a file.
fn object(path: &Path) -> anyhow::Result<Item> {
    let context = || format!("cannot use {}", path.display());
    let text = std::fs::read_to_string(path).with_context(context)?;
    if text.trim_start().starts_with('{') {
        return Item::from_json(text).with_context(context);
    }
    let value: Value = serde_saphyr::from_str(&text).with_context(context)?;
    Item::from_object(&value).with_context(context)
}

fn persistent_volume(path: &Path) -> anyhow::Result<Item> {
    let item = object(path)?;
    let value: Value = item.parse().with_context(|| format!("cannot use {}", path.display()))?;
    let kind = value["kind"].as_str().unwrap_or_default();
    if kind != "PersistentVolume" {
        bail!(
            "cannot use {}: expected a PersistentVolume, not a {}",
            path.display(),
            single_line(kind)
        );
    }
    Ok(item)
}

fn key_and_value(text: &str) -> Result<(String, String), InvalidValue> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(InvalidValue::SinglePair),
    }
}

fn bucket(text: &str) -> Result<String, InvalidValue> {
    if text.is_empty() { Err(InvalidValue::Empty) } else { Ok(text.to_owned()) }
}

fn volume(text: &str) -> Result<VolumeId, InvalidValue> {
    VolumeId::new(text).ok_or(InvalidValue::Empty)
}

fn timeout(text: &str) -> Result<std::time::Duration, InvalidValue> {
    let duration: bowline_api::Duration = text.parse()?;
    let positive = duration.to_std().filter(|duration| !duration.is_zero());
    positive.ok_or(InvalidValue::ZeroTimeout)
}

/// Prints findings as they come, under the name of their plugin.
struct Printer<'a> {
    command: &'a Path,
    format: Format,
    /// Heading of the last findings; empty at first.
    heading: String,
    /// Reason why standard output failed.
    output_error: Option<anyhow::Error>,
}

impl Printer<'_> {
    fn print(&mut self, finding: &Finding) {
        if matches!(self.format, Format::Json) || self.output_error.is_some() {
            return;
        }
        let mut text = String::new();
        let heading = heading(self.command, finding.plugin.as_ref());
        if heading != self.heading {
            let gap = if self.heading.is_empty() { "" } else { "\n" };
            text = format!("{gap}{heading}\n");
            self.heading = heading;
        }
        text += &lines(finding);
        self.output_error = output::print_data(text).err();
    }

    fn finish(self, findings: &[Finding]) -> anyhow::Result<()> {
        if let Some(error) = self.output_error {
            return Err(error);
        }
        match self.format {
            Format::Table => output::print_data(format_args!(
                "\n{}\n",
                VerdictCounts::from_findings(findings).summary()
            )),
            Format::Json => output::print_data(output::document(&document(self.command, findings))),
        }
    }
}

fn heading(command: &Path, plugin: Option<&Plugin>) -> String {
    plugin.map_or_else(
        || command.display().to_string(),
        |plugin| {
            let (kind, version) = trait_and_version(plugin.kind);
            format!("{kind} {version} {}", single_line(plugin.name.as_str()))
        },
    )
}

/// Line for the rule, and one for each leftover.
fn lines(finding: &Finding) -> String {
    let (label, detail) = match &finding.verdict {
        RuleVerdict::Holds(detail) => ("ok", detail.as_ref()),
        RuleVerdict::Broken(reason) => ("FAILED", Some(reason)),
        RuleVerdict::Skipped(reason) => ("skipped", Some(reason)),
    };
    let more = detail.map(|more| format!(": {}", single_line(more))).unwrap_or_default();
    let mut lines = vec![format!("  {label:7}  {}{more}\n", finding.rule)];
    lines.extend(
        finding
            .leftovers
            .iter()
            .map(|leftover| format!("           left: {}\n", single_line(leftover))),
    );
    lines.concat()
}

/// Number of rules per verdict.
#[derive(Default)]
struct VerdictCounts {
    hold: usize,
    broken: usize,
    skipped: usize,
}

impl VerdictCounts {
    fn from_findings(findings: &[Finding]) -> Self {
        let mut count = Self::default();
        for finding in findings {
            match finding.verdict {
                RuleVerdict::Holds(_) => count.hold += 1,
                RuleVerdict::Broken(_) => count.broken += 1,
                RuleVerdict::Skipped(_) => count.skipped += 1,
            }
        }
        count
    }

    fn summary(&self) -> String {
        let hold = if self.hold == 1 { "rule holds" } else { "rules hold" };
        format!("{} {hold}, {} broken, {} skipped", self.hold, self.broken, self.skipped)
    }
}

fn document(command: &Path, findings: &[Finding]) -> Value {
    let count = VerdictCounts::from_findings(findings);
    let finding = |finding: &Finding| {
        let plugin =
            finding.plugin.as_ref().map(|plugin| identity(plugin.kind, plugin.name.as_str()));
        let (verdict, reason) = match &finding.verdict {
            RuleVerdict::Holds(detail) => ("holds", detail.as_ref()),
            RuleVerdict::Broken(reason) => ("broken", Some(reason)),
            RuleVerdict::Skipped(reason) => ("skipped", Some(reason)),
        };
        json!({
            "plugin": plugin,
            "rule": finding.rule,
            "verdict": verdict,
            "reason": reason,
            "left": finding.leftovers,
        })
    };
    json!({
        "command": command.display().to_string(),
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
        "summary": {"hold": count.hold, "broken": count.broken, "skipped": count.skipped},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_is_one_line_with_its_reason() {
        let finding =
            |verdict| Finding { plugin: None, rule: "answers", verdict, leftovers: Vec::new() };
        for (verdict, expected) in [
            (RuleVerdict::Holds(None), "  ok       answers\n"),
            (RuleVerdict::Holds(Some("slowly".into())), "  ok       answers: slowly\n"),
            (RuleVerdict::Broken("it\npanicked".into()), "  FAILED   answers: it panicked\n"),
            (RuleVerdict::Skipped("no item".into()), "  skipped  answers: no item\n"),
        ] {
            assert_eq!(lines(&finding(verdict)), expected);
        }
    }

    #[test]
    fn each_leftover_has_a_line_and_is_in_the_json() {
        let leftovers: Vec<String> = (0..40).map(|n| format!("operation {n:032}")).collect();
        let verdict = RuleVerdict::Broken("it hangs".into());
        let finding =
            Finding { plugin: None, rule: "cancels", verdict, leftovers: leftovers.clone() };
        let text = lines(&finding);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  FAILED   cancels: it hangs");
        assert_eq!(lines.len(), 1 + leftovers.len());
        assert_eq!(lines[40], format!("           left: operation {:032}", 39));
        let document = document(Path::new("/p"), &[finding]);
        assert_eq!(document["findings"][0]["left"], json!(leftovers));
    }

    #[test]
    fn the_summary_counts_each_verdict() {
        let finding =
            |verdict| Finding { plugin: None, rule: "answers", verdict, leftovers: Vec::new() };
        let all = [
            finding(RuleVerdict::Holds(None)),
            finding(RuleVerdict::Skipped("x".into())),
            finding(RuleVerdict::Skipped("x".into())),
        ];
        assert_eq!(
            VerdictCounts::from_findings(&all).summary(),
            "1 rule holds, 0 broken, 2 skipped"
        );
        assert_eq!(
            VerdictCounts::from_findings(&all[1..]).summary(),
            "0 rules hold, 0 broken, 2 skipped"
        );
    }

    #[test]
    fn timeout_must_be_positive() {
        assert_eq!(timeout("1m30s"), Ok(std::time::Duration::from_secs(90)));
        for wrong in ["", "30", "-1s", "0s", "soon"] {
            assert!(timeout(wrong).is_err(), "{wrong}");
        }
    }
}

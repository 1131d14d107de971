//! `bowline migrate`: from Velero, and back.

mod compatibility;
mod facts;
mod providers;
mod steps;

use std::fmt::Write as _;

use anyhow::bail;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::{active_runs, output};
use compatibility::{Finding, MigrationVerdict};

/// Switch a cluster from Velero to Bowline, and back
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    installation: InstallationArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Check(CheckArgs),
}

/// Check an installation of Velero, and show what carries over, what does not, and how to switch
///
/// Changes nothing. Exits with 1 if something does not carry over, or a run is in progress.
#[derive(Debug, clap::Args)]
struct CheckArgs {
    /// Check an installation of Bowline instead, for a switch back to Velero
    #[arg(long)]
    back: bool,

    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Format,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// Human-readable text
    Text,
    /// JSON for programs
    Json,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<Exit> {
    let Command::Check(check) = args.command;
    let installation = Installation::connect(&args.installation).await?;
    let active = active_runs::find(&installation).await?;
    let facts = facts::gather(&installation).await?;
    let (from, is_there) = if check.back {
        ("Bowline", facts.bowline.is_some())
    } else {
        ("Velero", facts.velero.is_some())
    };
    if !is_there && facts.is_empty() {
        bail!(nothing_to_switch(from, installation.namespace()));
    }
    let findings = if check.back {
        compatibility::check_switch_to_velero(&facts, &active)
    } else {
        compatibility::check_switch_to_bowline(&facts, &active)
    };
    let has_blockers = findings.iter().any(|finding| finding.verdict == MigrationVerdict::Stays);
    match check.output {
        Format::Json => {
            let document = serde_json::json!({"ready": !has_blockers, "findings": findings});
            output::print_data(output::document(&document))?;
        }
        Format::Text => {
            let namespace = installation.namespace();
            let steps = match (check.back, is_there) {
                (true, _) => steps::steps_to_velero(&facts, namespace),
                (false, true) => steps::steps_to_bowline(&facts, namespace),
                (false, false) => Vec::new(),
            };
            output::print_data(text(&findings, has_blockers, &steps))?;
        }
    }
    if !check.back && !is_there {
        output::print_message(nothing_to_switch(from, installation.namespace()));
    }
    Ok(if has_blockers { Exit::Failed } else { Exit::Success })
}

fn nothing_to_switch(from: &str, namespace: &str) -> String {
    format!(
        "no {from} found in namespace `{namespace}`: nothing to switch; hint: name the namespace of \
         {from} with -n"
    )
}

/// Report for people; without steps, the findings alone.
fn text(findings: &[Finding], has_blockers: bool, steps: &[String]) -> String {
    let mut text = String::new();
    for (verdict, title) in [
        (MigrationVerdict::Carries, "Carries over:"),
        (MigrationVerdict::Differs, "Carries over with differences:"),
        (MigrationVerdict::Stays, "Does not carry over:"),
    ] {
        let mut of_verdict = findings.iter().filter(|one| one.verdict == verdict).peekable();
        if of_verdict.peek().is_none() {
            continue;
        }
        let _ = writeln!(text, "{title}");
        for Finding { what, reason, .. } in of_verdict {
            let dash = if reason.is_empty() { "" } else { ": " };
            let _ = writeln!(text, "  {what}{dash}{reason}");
        }
        text.push('\n');
    }
    if steps.is_empty() {
        return text;
    }
    text.push_str(if has_blockers { "To switch anyway:\n" } else { "To switch:\n" });
    for (index, step) in steps.iter().enumerate() {
        let _ = writeln!(text, "  {}. {step}", index + 1);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_without_steps_has_only_the_findings() {
        let (verdict, what) = (MigrationVerdict::Carries, "1 backup".to_owned());
        let findings = [Finding { verdict, what, reason: String::new() }];
        assert_eq!(text(&findings, false, &[]), "Carries over:\n  1 backup\n\n");
        let steps = ["stop Velero".to_owned()];
        assert!(text(&findings, false, &steps).ends_with("To switch:\n  1. stop Velero\n"));
        let message = nothing_to_switch("Velero", "n");
        assert!(message.starts_with("no Velero found in namespace `n`: nothing to switch; hint: "));
    }
}

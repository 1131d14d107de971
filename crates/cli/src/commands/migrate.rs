//! `bowline migrate`: from Velero, and back.

mod facts;
mod judge;
mod providers;
mod steps;

use std::fmt::Write as _;

use anyhow::bail;

use crate::args::InstallationArgs;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::{open_runs, output};
use judge::{Finding, Verdict};

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
/// Changes nothing. Exits with 1 if something does not carry over.
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
    let open = open_runs::find(&installation).await?;
    let facts = facts::gather(&installation).await?;
    let (from, is_there) = if check.back {
        ("Bowline", facts.bowline.is_some())
    } else {
        ("Velero", facts.velero.is_some())
    };
    if !is_there && facts.has_nothing() {
        bail!(
            "no installation of {from} found in namespace `{}`; name the server's namespace with \
             -n, or install Bowline with `bowline install`",
            installation.namespace()
        );
    }
    let findings =
        if check.back { judge::back(&facts, &open) } else { judge::forth(&facts, &open) };
    let hinders = findings.iter().any(|finding| finding.verdict == Verdict::Stays);
    match check.output {
        Format::Json => {
            let document = serde_json::json!({"ready": !hinders, "findings": findings});
            output::data(format!("{document:#}\n"))?;
        }
        Format::Text => {
            let namespace = installation.namespace();
            let steps = if check.back {
                steps::back(&facts, namespace)
            } else {
                steps::forth(&facts, namespace)
            };
            output::data(text(&findings, hinders, &steps))?;
        }
    }
    Ok(if hinders { Exit::Failed } else { Exit::Success })
}

fn text(findings: &[Finding], hinders: bool, steps: &[String]) -> String {
    let mut text = String::new();
    for (verdict, title) in [
        (Verdict::Carries, "Carries over:"),
        (Verdict::Differs, "Carries over with differences:"),
        (Verdict::Stays, "Does not carry over:"),
    ] {
        let mut of_verdict = findings.iter().filter(|one| one.verdict == verdict).peekable();
        if of_verdict.peek().is_none() {
            continue;
        }
        let _ = writeln!(text, "{title}");
        for Finding { what, why, .. } in of_verdict {
            let dash = if why.is_empty() { "" } else { ": " };
            let _ = writeln!(text, "  {what}{dash}{why}");
        }
        text.push('\n');
    }
    text.push_str(if hinders { "To switch anyway:\n" } else { "To switch:\n" });
    for (place, step) in steps.iter().enumerate() {
        let _ = writeln!(text, "  {}. {step}", place + 1);
    }
    text
}

//! Errors of a run that has ended, in a few lines: a count alone would make every user search for them.

use std::time::Duration;

use bowline_store::file::{Messages, Results};
use kube::ResourceExt as _;

use crate::args::TrustArgs;
use crate::describe::file;
use crate::download::Downloads;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::output::strip_control_chars;
use crate::run::Run;

/// Number of errors and warnings printed. `describe` has the rest.
const MAX_MESSAGES: usize = 5;
/// Longest wait for the server to provide them. The run has ended, and its summary is on the screen.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// First errors and warnings of a run, unless the user interrupts. None if they cannot be downloaded: `describe` gives
/// the reason.
pub(super) async fn first_errors_and_warnings<R: Run>(
    installation: &Installation,
    run: &R,
    asked_to_end: impl Future<Output = Exit>,
) -> Result<Vec<String>, Exit> {
    let summary = run.summary();
    if summary.errors + summary.warnings == 0 || run.has_files().is_err() {
        return Ok(Vec::new());
    }
    let Ok(location) = run.location(installation).await else { return Ok(Vec::new()) };
    let trust = TrustArgs::default();
    let downloads = Downloads::new(installation, &location, &trust, DOWNLOAD_TIMEOUT).await;
    let Ok(downloads) = downloads else { return Ok(Vec::new()) };
    let name = run.name_any();
    tokio::select! {
        // Boxed, since downloads are large.
        fetched = Box::pin(file::<Results>(&downloads, &name, R::RESULTS, true)) => {
            Ok(fetched.and_then(Result::ok).as_ref().map(first_lines).unwrap_or_default())
        }
        exit = asked_to_end => {
            downloads.delete_open_requests().await;
            Err(exit)
        }
    }
}

/// First lines, errors before warnings, with the number of further ones.
fn first_lines(results: &Results) -> Vec<String> {
    let kinds = [("error", &results.errors), ("warning", &results.warnings)];
    let all = kinds.into_iter().flat_map(|(kind, messages)| {
        lines(messages).map(move |line| strip_control_chars(&format!("{kind}: {line}")))
    });
    let mut shown: Vec<String> = all.collect();
    let more = shown.len().saturating_sub(MAX_MESSAGES);
    shown.truncate(MAX_MESSAGES);
    if more > 0 {
        shown.push(format!("and {more} more"));
    }
    shown
}

fn lines(messages: &Messages) -> impl Iterator<Item = String> {
    let plain = messages.velero.iter().chain(&messages.cluster).cloned();
    let namespaced = messages.namespaces.iter().flat_map(|(namespace, messages)| {
        messages.iter().map(move |message| format!("namespace {namespace}: {message}"))
    });
    plain.chain(namespaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_first_and_omitted_messages_are_counted() {
        let mut results = Results::default();
        assert_eq!(first_lines(&results), [""; 0]);
        results.warnings.add("shop", "the data of the volume is not in the backup");
        results.errors.velero.push("the plugin\u{7} is gone".to_owned());
        let both = [
            "error: the plugin\u{fffd} is gone",
            "warning: namespace shop: the data of the volume is not in the backup",
        ];
        assert_eq!(first_lines(&results), both);
        for number in 0..9 {
            results.errors.add("", format!("error {number}"));
        }
        let shown = first_lines(&results);
        assert_eq!(shown.len(), MAX_MESSAGES + 1);
        assert_eq!(shown[1..3], ["error: error 0", "error: error 1"]);
        assert_eq!(shown[MAX_MESSAGES], "and 6 more");
    }
}

//! Backups and restores that have not ended: they must end before a server is removed for good.

use bowline_api::{Backup, Restore};
use kube::ResourceExt as _;

use crate::installation::Installation;
use crate::listing;
use crate::run::Run;

/// Number of runs that a message names.
const MAX_NAMED: usize = 5;

/// Open runs, such as `backup nightly (InProgress)`.
pub(crate) async fn find(installation: &Installation) -> anyhow::Result<Vec<String>> {
    let mut active = active_runs_of_kind::<Backup>(installation).await?;
    active.extend(active_runs_of_kind::<Restore>(installation).await?);
    Ok(active)
}

async fn active_runs_of_kind<K: Run>(installation: &Installation) -> anyhow::Result<Vec<String>> {
    let runs = listing::find::<K>(installation, &[], None).await?;
    let active = runs.iter().filter(|run| !run.summary().stage.is_terminal());
    let title = |run: &K| match run.state().as_str() {
        "" => format!("{} {} (New)", K::NOUN, run.name_any()),
        state => format!("{} {} ({state})", K::NOUN, run.name_any()),
    };
    Ok(active.map(title).collect())
}

/// The first few names, and the number of further ones.
pub(crate) fn first_names(names: &[String]) -> String {
    let first = names.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

//! Backups and restores that are not over: what must be before a server goes away for good.

use bowline_api::{Backup, Restore};
use kube::ResourceExt as _;

use crate::installation::Installation;
use crate::listing;
use crate::run::Run;

/// How many are named.
const NAMED: usize = 5;

/// What is open, such as `backup nightly (InProgress)`.
pub(crate) async fn find(installation: &Installation) -> anyhow::Result<Vec<String>> {
    let mut open = open_of::<Backup>(installation).await?;
    open.extend(open_of::<Restore>(installation).await?);
    Ok(open)
}

async fn open_of<K: Run>(installation: &Installation) -> anyhow::Result<Vec<String>> {
    let runs = listing::find::<K>(installation, &[], None).await?;
    let open = runs.iter().filter(|run| !run.summary().stage.is_over());
    let named = |run: &K| match run.state().as_str() {
        "" => format!("{} {} (New)", K::NOUN, run.name_any()),
        state => format!("{} {} ({state})", K::NOUN, run.name_any()),
    };
    Ok(open.map(named).collect())
}

/// The first few of them, and how many more there are.
pub(crate) fn named(open: &[String]) -> String {
    let first = open.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match open.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

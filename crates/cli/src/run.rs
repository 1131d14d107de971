//! What backups and restores have in common: a user asks for one, a server runs it, and it ends.

use std::collections::BTreeMap;

use anyhow::bail;
use bowline_api::condition;
use bowline_api::download_request::DownloadTargetKind;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::ResourceExt as _;

use crate::exit::Exit;
use crate::installation::Installation;
use crate::listing::{self, ResourceKind};
use crate::volume_progress::VolumeReport;
use crate::{output, wait};

/// The phase of a run that was cancelled, for which Velero has no word.
const FAILED: &str = "Failed";

/// A backup or a restore.
pub(crate) trait Run: ResourceKind {
    /// What is done with its items.
    const PARTICIPLE: &'static str;
    /// What its log is asked for by.
    const LOG: DownloadTargetKind;
    /// What its errors and warnings are asked for by.
    const RESULTS: DownloadTargetKind;

    /// Where it is told what plugins do with its volumes.
    type VolumeReport: VolumeReport;

    /// How it is.
    fn summary(&self) -> Summary;

    /// The storage location that holds its files. Nothing if that is not known.
    async fn location(&self, installation: &Installation) -> anyhow::Result<String>;

    /// The word for where it is. It knows some that are no phase, since Velero has none for them.
    fn state(&self) -> String {
        let Summary { phase, stage, conditions, .. } = self.summary();
        let has = |type_| condition::is_true(&conditions, type_);
        if self.meta().deletion_timestamp.is_some() {
            "Deleting".to_owned()
        } else if phase == FAILED && has(condition::CANCELED) {
            condition::CANCELED.to_owned()
        } else if !stage.is_terminal() && has(condition::CANCELING) {
            condition::CANCELING.to_owned()
        } else {
            phase
        }
    }

    /// Whether its files are in the storage location, and if not, why.
    fn has_files(&self) -> Result<(), String> {
        let Summary { phase, stage, validation_errors, .. } = self.summary();
        match stage {
            Stage::New | Stage::InProgress => Err(format!(
                "the phase is {phase}; files are available once all items are {}",
                Self::PARTICIPLE
            )),
            Stage::FailedValidation => Err(format!(
                "validation failed, so nothing was run: {}",
                validation_errors.join("; ")
            )),
            Stage::Finalizing | Stage::Completed | Stage::Ended => Ok(()),
        }
    }
}

/// How a run is.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) phase: String,
    pub(crate) stage: Stage,
    /// Items done, and known of.
    pub(crate) items: (i64, i64),
    pub(crate) operations: Operations,
    pub(crate) errors: i64,
    pub(crate) warnings: i64,
    pub(crate) started: Option<Time>,
    pub(crate) ended: Option<Time>,
    pub(crate) failure_reason: String,
    pub(crate) validation_errors: Vec<String>,
    pub(crate) conditions: Vec<Condition>,
}

/// How many operations of plugins there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operations {
    pub(crate) attempted: i64,
    pub(crate) completed: i64,
    pub(crate) failed: i64,
}

impl Operations {
    /// How many have ended, and how many there are.
    pub(crate) fn ended(self) -> (i64, i64) {
        (self.completed + self.failed, self.attempted)
    }
}

/// What the phase of a run means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nobody has looked at it.
    New,
    /// Its items wait, or are being worked on.
    InProgress,
    /// Its items are through; something goes on behind them.
    Finalizing,
    /// It was refused and never ran.
    FailedValidation,
    /// It has ended well.
    Completed,
    /// It has ended in another way.
    Ended,
}

impl Stage {
    /// Whether it has ended.
    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, Self::FailedValidation | Self::Completed | Self::Ended)
    }
}

/// Puts the labels and annotations of a command line on an object.
pub(crate) fn add_metadata(
    metadata: &mut ObjectMeta,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
) {
    for (map, more) in [(&mut metadata.labels, labels), (&mut metadata.annotations, annotations)] {
        // An empty map would be printed.
        if !more.is_empty() {
            map.get_or_insert_default().extend(more);
        }
    }
}

/// Where the name of a run comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameOrigin {
    /// From the command line: it means that one, and no other.
    User,
    /// From the time, in whole seconds: if there is one of that second, it gets a number.
    Generated,
}

impl From<bool> for NameOrigin {
    fn from(is_by_user: bool) -> Self {
        if is_by_user { Self::User } else { Self::Generated }
    }
}

/// The names under which it is tried to create a run, in order.
fn candidate_names(name: &str, named: NameOrigin) -> impl Iterator<Item = String> {
    /// More than anybody starts within a second.
    const MAX_CANDIDATES: u32 = 20;
    let last = if named == NameOrigin::Generated { MAX_CANDIDATES } else { 1 };
    let base = name.to_owned();
    (1..=last).map(move |number| match number {
        1 => base.clone(),
        _ => format!("{base}-{number}"),
    })
}

/// Asks the server for a run, and waits for its end if that is wanted.
pub(crate) async fn submit<R: Run>(
    installation: &Installation,
    mut run: R,
    wants_to_wait: bool,
    origin: NameOrigin,
) -> anyhow::Result<Exit> {
    let noun = R::NOUN;
    let mut created = None;
    for name in candidate_names(&run.name_any(), origin) {
        run.meta_mut().name = Some(name);
        created = listing::create(installation, &run).await?;
        if created.is_some() {
            break;
        }
    }
    let name = run.name_any();
    let describe = installation.hint(&format!("{noun} describe {name}"));
    let Some(created) = created else {
        bail!("{noun} `{name}` already exists; choose another name, or see {describe}");
    };
    if wants_to_wait {
        return wait::for_end(installation, &created, wait::WaitReason::Result).await;
    }
    let logs = installation.hint(&format!("{noun} logs {name}"));
    output::print_message(format_args!("{noun} `{name}` created; see {describe} and {logs}"));
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_name_that_is_taken_gets_a_number_and_user_name_does_not() {
        assert_eq!(candidate_names("b", NameOrigin::User).collect::<Vec<_>>(), ["b"]);
        let names: Vec<String> =
            candidate_names("b-20260102030405", NameOrigin::Generated).take(3).collect();
        let expected = ["b-20260102030405", "b-20260102030405-2", "b-20260102030405-3"];
        assert_eq!(names, expected);
    }
}

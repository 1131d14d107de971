//! Common traits of backups and restores: a user requests one, a server runs it, and it ends.

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

/// Phase of a cancelled run, for which Velero has no word.
const FAILED: &str = "Failed";

/// A backup or a restore.
pub(crate) trait Run: ResourceKind {
    /// Participle for processed items.
    const PARTICIPLE: &'static str;
    /// Download target of its log.
    const LOG: DownloadTargetKind;
    /// Download target of its errors and warnings.
    const RESULTS: DownloadTargetKind;

    /// Kind of object in which the work of plugins on its volumes is reported.
    type VolumeReport: VolumeReport;

    fn summary(&self) -> Summary;

    /// Storage location of its files. Empty if that is not known.
    async fn location(&self, installation: &Installation) -> anyhow::Result<String>;

    /// Word for its state. Some are not phases, since Velero has none for them.
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

    /// Succeeds if its files are in the storage location; the error is the reason why not.
    fn has_files(&self) -> Result<(), MissingFiles> {
        let Summary { phase, stage, validation_errors, .. } = self.summary();
        match stage {
            Stage::New | Stage::InProgress => {
                Err(MissingFiles::TooEarly { phase, participle: Self::PARTICIPLE })
            }
            Stage::FailedValidation => Err(MissingFiles::FailedValidation(validation_errors)),
            Stage::Finalizing | Stage::Completed | Stage::Ended => Ok(()),
        }
    }
}

/// Reason why a run has no files in the storage location.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MissingFiles {
    #[error("the phase is {phase}; files are available once all items are {participle}")]
    TooEarly { phase: String, participle: &'static str },
    #[error("FailedValidation: the run did not start: {}", .0.join("; "))]
    FailedValidation(Vec<String>),
}

/// State and counts of a run.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) phase: String,
    pub(crate) stage: Stage,
    /// Items done, and total known so far.
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

/// Numbers of plugin operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operations {
    pub(crate) attempted: i64,
    pub(crate) completed: i64,
    pub(crate) failed: i64,
}

impl Operations {
    /// Number of ended operations, and of all.
    pub(crate) fn ended(self) -> (i64, i64) {
        (self.completed + self.failed, self.attempted)
    }
}

/// Meaning of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No server has seen the run.
    New,
    /// Its items are waiting, or are being processed.
    InProgress,
    /// Its items are processed; background work continues.
    Finalizing,
    /// Rejected, never ran.
    FailedValidation,
    /// Ended successfully.
    Completed,
    /// Ended in another way.
    Ended,
}

impl Stage {
    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, Self::FailedValidation | Self::Completed | Self::Ended)
    }
}

/// Adds the labels and annotations of a command line to an object.
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

/// Origin of a run's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameOrigin {
    /// From the command line: it means that name and no other.
    User,
    /// From the time, in whole seconds: if the name of that second is in use, a number is appended.
    Generated,
}

impl From<bool> for NameOrigin {
    fn from(is_by_user: bool) -> Self {
        if is_by_user { Self::User } else { Self::Generated }
    }
}

/// Names under which the creation is attempted, in order.
fn candidate_names(name: &str, named: NameOrigin) -> impl Iterator<Item = String> {
    /// More than a user starts within a second.
    const MAX_CANDIDATES: u32 = 20;
    let last = if named == NameOrigin::Generated { MAX_CANDIDATES } else { 1 };
    let base = name.to_owned();
    (1..=last).map(move |number| match number {
        1 => base.clone(),
        _ => format!("{base}-{number}"),
    })
}

/// Creates a run, and waits for its end if requested.
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

//! The commit record: a backup exists if its record does.
//!
//! # The rule
//! The record is created only if there is none. An existing record is read first:
//!
//! | found | decision |
//! |---|---|
//! | the same uid, a terminal phase | already committed: by an earlier attempt whose response was lost, or by the previous active server |
//! | the same uid, another phase | replaced: Velero writes the record early, and this backup was taken over from Velero |
//! | another uid | refused: another backup of the same name is there, perhaps of another cluster |
//! | something unreadable | refused: it may belong to something else |
//!
//! # Guarantees
//! If the backend can create without replacing, exactly one of two servers that commit two backups
//! of one name succeeds. If the backend cannot, the record is read again afterwards, so that the
//! loser notices unless both write at the very same moment.

use bowline_api::{Backup, BackupPhase};

use super::{BackupStore, Error, Result};
use crate::backend::{Creation, Guarantee, single_piece_stream};
use crate::encode;
use crate::layout::{BackupFile, Key};
use crate::name::{BackupName, InvalidName};
use crate::sabotage::{self, Sabotage};

/// Number of times that a record may vanish between two reads.
const MAX_ATTEMPTS: usize = 3;

/// The action to take for a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitDecision {
    /// No record exists: create it.
    Create,
    /// The record exists, with this phase.
    AlreadyCommitted(BackupPhase),
    /// The record holds an earlier state of this backup: replace it.
    Replace,
    /// The existing record must not be touched.
    Refuse(CommitRefusal),
}

/// Reasons why a record cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitRefusal {
    /// Another backup has the name.
    #[error(
        "another backup of the same name, with uid {found:?}, is in the location: delete it, or \
         choose another name"
    )]
    OtherUid {
        /// The uid in the record that was found.
        found: String,
    },
    /// The backup to commit has not ended.
    #[error("phase {phase:?} is not final")]
    NotTerminal {
        /// Its phase.
        phase: String,
    },
    /// The backup to commit has no uid, and could not be distinguished from others.
    #[error("the backup has no uid")]
    NoUid,
    /// The backup to commit has no valid name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The record keeps appearing and disappearing.
    #[error("another server is writing or deleting velero-backup.json")]
    Contended,
}

/// Outcome of a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum CommitOutcome {
    /// The record was created.
    Created(Guarantee),
    /// An earlier state of this backup was replaced.
    Replaced,
    /// The backup had been committed before; the existing record counts.
    AlreadyCommitted(Box<Backup>),
}

/// Decides what to do with the record of `ours`, given the existing one.
pub fn decide_commit(ours: &Backup, found: Option<&Backup>) -> CommitDecision {
    let phase = |backup: &Backup| backup.status.as_ref().and_then(|status| status.phase.clone());
    let uid = |backup: &Backup| backup.metadata.uid.clone().filter(|uid| !uid.is_empty());
    let Some(our_uid) = uid(ours) else { return CommitDecision::Refuse(CommitRefusal::NoUid) };
    match phase(ours) {
        Some(phase) if phase.is_terminal() => {}
        other => {
            let phase = other.map(|phase| phase.to_string()).unwrap_or_default();
            return CommitDecision::Refuse(CommitRefusal::NotTerminal { phase });
        }
    }
    let Some(found) = found else { return CommitDecision::Create };
    let found_uid = uid(found).unwrap_or_default();
    if found_uid != our_uid {
        return CommitDecision::Refuse(CommitRefusal::OtherUid { found: found_uid });
    }
    match phase(found) {
        Some(phase) if phase.is_terminal() => CommitDecision::AlreadyCommitted(phase),
        _ => CommitDecision::Replace,
    }
}

impl BackupStore {
    /// Commits a backup that has ended. All its other files must have been written.
    pub async fn commit(&self, backup: &Backup) -> Result<CommitOutcome> {
        if let CommitDecision::Refuse(refusal) = decide_commit(backup, None) {
            return Err(refusal.into());
        }
        let name = backup.metadata.name.clone().unwrap_or_default();
        let name = BackupName::new(name).map_err(CommitRefusal::from)?;
        let content = encode::json_indented(backup)?;
        let key = self.layout.key(&Key::Backup(name.clone(), BackupFile::Record));
        for _ in 0..MAX_ATTEMPTS {
            let created = self.backend.create_object(&self.bucket, &key, content.clone());
            match self.metadata_call("create", &key, created).await? {
                Creation::Created(Guarantee::Atomic) => {
                    return Ok(CommitOutcome::Created(Guarantee::Atomic));
                }
                Creation::Created(Guarantee::CheckedFirst) => {
                    let found = self.backup(&name).await?;
                    return match decide_commit(backup, found.as_ref()) {
                        CommitDecision::Refuse(refusal) => Err(refusal.into()),
                        _ => Ok(CommitOutcome::Created(Guarantee::CheckedFirst)),
                    };
                }
                Creation::AlreadyExists => {}
            }
            // Deleted in the meantime: retry.
            let Some(found) = self.backup(&name).await? else { continue };
            match decide_commit(backup, Some(&found)) {
                CommitDecision::AlreadyCommitted(_)
                    if !sabotage::is_active(Sabotage::CommitRepeated) =>
                {
                    return Ok(CommitOutcome::AlreadyCommitted(Box::new(found)));
                }
                CommitDecision::Refuse(refusal) => return Err(refusal.into()),
                CommitDecision::Create
                | CommitDecision::Replace
                | CommitDecision::AlreadyCommitted(_) => {
                    let put =
                        self.backend.put_object(&self.bucket, &key, single_piece_stream(content));
                    self.metadata_call("write", &key, put).await?;
                    return Ok(CommitOutcome::Replaced);
                }
            }
        }
        Err(Error::Commit(CommitRefusal::Contended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_api::BackupStatus;

    fn backup(uid: &str, phase: &str) -> Backup {
        let mut backup = Backup::default();
        backup.metadata.uid = Some(uid.to_owned());
        let phase = Some(phase.into()).filter(|_| !phase.is_empty());
        backup.status = Some(BackupStatus { phase, ..BackupStatus::default() });
        backup
    }

    #[test]
    fn commit_decision_follows_from_uid_and_phase() {
        let ours = backup("a", "Completed");
        let other = |found: &str| {
            CommitDecision::Refuse(CommitRefusal::OtherUid { found: found.to_owned() })
        };
        for (found, verdict) in [
            (None, CommitDecision::Create),
            (
                Some(backup("a", "Completed")),
                CommitDecision::AlreadyCommitted(BackupPhase::Completed),
            ),
            (Some(backup("a", "Failed")), CommitDecision::AlreadyCommitted(BackupPhase::Failed)),
            (Some(backup("a", "InProgress")), CommitDecision::Replace),
            (Some(backup("a", "FinalizingPartiallyFailed")), CommitDecision::Replace),
            (Some(backup("a", "")), CommitDecision::Replace),
            (Some(backup("b", "Completed")), other("b")),
            (Some(backup("b", "InProgress")), other("b")),
            (Some(Backup::default()), other("")),
        ] {
            assert_eq!(decide_commit(&ours, found.as_ref()), verdict, "{found:?}");
        }
    }

    #[test]
    fn only_a_terminal_backup_with_a_uid_is_committed() {
        let refusal = decide_commit(&backup("a", "Finalizing"), None);
        let phase = "Finalizing".to_owned();
        assert_eq!(refusal, CommitDecision::Refuse(CommitRefusal::NotTerminal { phase }));
        assert_eq!(
            decide_commit(&backup("", "Completed"), None),
            CommitDecision::Refuse(CommitRefusal::NoUid)
        );
        assert_eq!(decide_commit(&backup("a", "Failed"), None), CommitDecision::Create);
    }
}

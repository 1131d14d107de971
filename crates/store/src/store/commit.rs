//! The commit record: with it a backup exists.
//!
//! # The rule
//! The record is created only if there is none. If there is one, it is read:
//!
//! | found | verdict |
//! |---|---|
//! | the same uid, a terminal phase | committed already: by an earlier try whose answer was lost, or by the server before us |
//! | the same uid, another phase | replaced: Velero writes the record early, and this backup was taken over from it |
//! | another uid | refused: another backup of the same name lies there, perhaps of another cluster |
//! | something unreadable | refused: it is not ours to throw away |
//!
//! # Guarantees
//! With a backend that can create without replacing, of two servers that commit two backups of one
//! name exactly one succeeds. With one that cannot, the record is read again afterwards, so that the
//! loser learns of it unless both write at the very same moment.

use bowline_api::{Backup, BackupPhase};

use super::{BackupStore, Error, Result};
use crate::backend::{Creation, Guarantee, single_piece_stream};
use crate::encode;
use crate::layout::{BackupFile, Key};
use crate::name::{BackupName, InvalidName};

/// How often a record may vanish while it is looked at.
const MAX_ATTEMPTS: usize = 3;

/// What is to be done about a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitDecision {
    /// There is none: create it.
    Create,
    /// It is there, with this phase.
    AlreadyCommitted(BackupPhase),
    /// An earlier state of this backup is there: replace it.
    Replace,
    /// It must not be touched.
    Refuse(CommitRefusal),
}

/// Why a record cannot be written.
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
    /// Ours has not ended.
    #[error("its phase is {phase:?}, which is not the end")]
    NotTerminal {
        /// Its phase.
        phase: String,
    },
    /// Ours has no uid, and could not be told from others.
    #[error("it has no uid")]
    NoUid,
    /// Ours has no usable name.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The record comes and goes.
    #[error("its record is written and deleted by somebody else at this moment")]
    Contended,
}

/// How a backup came to be committed.
#[derive(Clone, Debug, PartialEq)]
pub enum CommitOutcome {
    /// The record was created.
    Created(Guarantee),
    /// An earlier state of this backup was replaced.
    Replaced,
    /// It had been committed before; what it says counts.
    AlreadyCommitted(Box<Backup>),
}

/// What to do with the record of `ours`, given what is there.
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
    /// Commits a backup that has ended and all of whose other files are written.
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
            // Deleted since: try again.
            let Some(found) = self.backup(&name).await? else { continue };
            match decide_commit(backup, Some(&found)) {
                CommitDecision::AlreadyCommitted(_) => {
                    return Ok(CommitOutcome::AlreadyCommitted(Box::new(found)));
                }
                CommitDecision::Refuse(refusal) => return Err(refusal.into()),
                CommitDecision::Create | CommitDecision::Replace => {
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

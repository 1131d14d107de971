//! Faults that were mended, to be brought back on purpose: a simulation that does not find them proves nothing.
//!
//! Each place that a mend has added asks [`is_active`], which is always false in the binary that ships.

/// Declares the sabotages and the list of all of them.
macro_rules! sabotages {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)+) => {
        /// A mend that is undone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sabotage {
            $($(#[$doc])* $name,)+
        }

        impl Sabotage {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Name for test harnesses.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

sabotages! {
    /// Pods that a dead server has left frozen are not thawed.
    ThawForgotten = "thaw-forgotten",
    /// A journal is removed although it names snapshots and pods that nobody else knows of.
    JournalDropped = "journal-dropped",
    /// A backup is deleted when it has expired by a clock that is wrong.
    ClockTrusted = "clock-trusted",
    /// A commit record is written again after its answer was lost.
    CommitRepeated = "commit-repeated",
    /// Snapshots in flight when a server died are not searched for.
    ReclaimSkipped = "reclaim-skipped",
    /// The hooks of a backup are gone with its Backup.
    HooksNotSaved = "hooks-not-saved",
    /// Journals whose runs are over are not looked at.
    OrphansIgnored = "orphans-ignored",
}

#[cfg(feature = "testing")]
static ACTIVE: std::sync::OnceLock<Sabotage> = std::sync::OnceLock::new();

/// Undoes a mend in this process, from now on. Only the first one counts.
#[cfg(feature = "testing")]
pub fn activate(sabotage: Sabotage) {
    // A second one is a mistake of the harness, which then does not find it.
    let _ = ACTIVE.set(sabotage);
}

/// True if this mend is undone. Never so in the binary that ships.
pub fn is_active(sabotage: Sabotage) -> bool {
    #[cfg(feature = "testing")]
    return ACTIVE.get() == Some(&sabotage);
    #[cfg(not(feature = "testing"))]
    {
        let _ = sabotage;
        false
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn sabotage_names_are_unique() {
        let names: BTreeSet<&str> = Sabotage::ALL.iter().map(|one| one.as_str()).collect();
        assert_eq!(names.len(), Sabotage::ALL.len());
    }
}

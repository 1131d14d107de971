//! Mends that can be undone, so that a simulation can prove that it finds what they mended.

use bowline_engine::failpoint::Failpoint;
use bowline_store::sabotage;

/// Mend that is undone: one of the code, or a write to the journal that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    Mend(sabotage::Sabotage),
    LeftOut(Failpoint),
}

/// Failpoints before writes that may be left out.
const WRITES: [Failpoint; 2] = [Failpoint::JournalBlockStart, Failpoint::JournalBlockEnd];

/// Name of no sabotage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownSabotage;

impl std::fmt::Display for UnknownSabotage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = Sabotage::all().map(Sabotage::as_str).collect();
        write!(f, "there are {}", names.join(", "))
    }
}

impl std::error::Error for UnknownSabotage {}

impl Sabotage {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let mends = sabotage::Sabotage::ALL.iter().copied().map(Self::Mend);
        mends.chain(WRITES.map(Self::LeftOut))
    }

    pub(crate) fn parse(name: &str) -> Result<Self, UnknownSabotage> {
        Self::all().find(|one| one.as_str() == name).ok_or(UnknownSabotage)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Mend(mend) => mend.as_str(),
            Self::LeftOut(point) => point.as_str(),
        }
    }

    /// Undoes the mend in this process.
    pub(crate) fn begin(self) {
        if let Self::Mend(mend) = self {
            sabotage::activate(mend);
        }
    }

    /// True if the write after a failpoint is left out.
    pub(crate) fn leaves_out(self, point: Failpoint) -> bool {
        self == Self::LeftOut(point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sabotages_are_found_by_name() {
        for sabotage in Sabotage::all() {
            assert_eq!(Sabotage::parse(sabotage.as_str()), Ok(sabotage));
        }
        assert_eq!(Sabotage::parse("lunch"), Err(UnknownSabotage));
    }
}

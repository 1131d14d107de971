//! Permissions of files: kopia stores the bits of Go's `os.FileMode` as octal text.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Go's bits for set-user-ID, set-group-ID and sticky, each with the bit of POSIX.
const SPECIAL: [(u32, u32); 3] = [(1 << 23, 0o4000), (1 << 22, 0o2000), (1 << 20, 0o1000)];

/// Permissions with the bits of POSIX.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permissions(u32);

impl Permissions {
    /// Permissions from the bits of POSIX. The type of the file is left out.
    pub fn from_unix(mode: u32) -> Self {
        Self(mode & 0o7777)
    }

    /// The bits of POSIX, up to `0o7777`.
    pub fn unix(self) -> u32 {
        self.0
    }

    fn from_go(mode: u32) -> Self {
        let special = SPECIAL.iter().filter(|(go_bit, _)| mode & go_bit != 0);
        Self(special.fold(mode & 0o777, |unix, (_, bit)| unix | bit))
    }

    fn go_bits(self) -> u32 {
        let special = SPECIAL.iter().filter(|(_, unix)| self.0 & unix != 0);
        special.fold(self.0 & 0o777, |bits, (bit, _)| bits | bit)
    }
}

impl std::fmt::Debug for Permissions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#o}", self.0)
    }
}

impl Serialize for Permissions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("0{:o}", self.go_bits()))
    }
}

impl<'de> Deserialize<'de> for Permissions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.trim_start_matches('0');
        if digits.is_empty() && !text.is_empty() {
            return Ok(Self(0));
        }
        let mode = u32::from_str_radix(digits, 8).map_err(serde::de::Error::custom)?;
        Ok(Self::from_go(mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_bits_are_those_of_go() {
        for (text, mode) in [
            ("\"0644\"", 0o644),
            ("\"020000700\"", 0o2700),
            ("\"040000755\"", 0o4755),
            ("\"04000777\"", 0o1777),
            ("\"064000777\"", 0o7777),
        ] {
            let permissions: Permissions = serde_json::from_str(text).unwrap();
            assert_eq!(permissions.unix(), mode, "{text}");
            assert_eq!(serde_json::to_string(&Permissions::from_unix(mode)).unwrap(), text);
        }
        assert_eq!(serde_json::from_str::<Permissions>("\"0\"").unwrap().unix(), 0);
        for invalid in ["\"\"", "\"rwx\"", "\"0999\"", "644", "\"0777777777777\""] {
            assert!(serde_json::from_str::<Permissions>(invalid).is_err(), "{invalid}");
        }
    }
}

//! Names that can be part of a key.

use std::fmt;
use std::str::FromStr;

/// The longest name that Kubernetes accepts.
const MAX_NAME_LENGTH: usize = 253;

/// A text that is not a valid name of a Kubernetes object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid name {name:?}: expected at most {MAX_NAME_LENGTH} lower-case letters, digits, `-` and \
     `.`, starting and ending with a letter or digit"
)]
pub struct InvalidName {
    name: String,
}

/// Declares a name that is valid by construction, and so cannot leave its folder in the bucket.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Validates a name by the rules of Kubernetes.
            pub fn new(name: impl Into<String>) -> Result<Self, InvalidName> {
                let name = name.into();
                if is_object_name(&name) { Ok(Self(name)) } else { Err(InvalidName { name }) }
            }

            /// The text of the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(name: &str) -> Result<Self, InvalidName> {
                Self::new(name)
            }
        }
    };
}

name! {
    /// The name of a backup.
    BackupName
}

name! {
    /// The name of a restore.
    RestoreName
}

name! {
    /// The uid of a backup or restore, which identifies its run.
    RunUid
}

/// True if Kubernetes accepts the name for an object: a DNS subdomain.
fn is_object_name(name: &str) -> bool {
    let is_label = |label: &str| {
        label.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
            && !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= MAX_NAME_LENGTH && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exactly_what_kubernetes_accepts() {
        for good in ["a", "nightly-20260102030405", "a.b-c.d", "0", &"x".repeat(253)] {
            assert_eq!(BackupName::new(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "../a",
            "a..b",
            "A",
            "-a",
            "a-",
            "a.",
            ".a",
            "a_b",
            "ä",
            "a\n",
            "a b",
            "a%2fb",
            "a\0",
            &"x".repeat(254),
        ] {
            assert!(BackupName::new(bad).is_err(), "{bad:?}");
        }
    }
}

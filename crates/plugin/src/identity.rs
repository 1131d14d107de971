//! Identity of a plugin: its kind and its name.

use std::fmt;
use std::str::FromStr;

/// The kinds of plugins, in the order in which their plugins are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the version of the trait of the same name")]
pub enum Kind {
    BackupItemAction,
    BackupItemActionV2,
    VolumeSnapshotter,
    /// Unknown to Velero, which refuses to start if a plugin lists it: see the SDK.
    VolumeSnapshotterV2,
    ObjectStore,
    RestoreItemAction,
    RestoreItemActionV2,
    DeleteItemAction,
    ItemBlockAction,
}

/// An unknown kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown plugin kind `{0}`")]
pub struct UnknownKind(pub String);

impl Kind {
    /// All kinds, in order.
    pub const ALL: [Self; 9] = [
        Self::BackupItemAction,
        Self::BackupItemActionV2,
        Self::VolumeSnapshotter,
        Self::VolumeSnapshotterV2,
        Self::ObjectStore,
        Self::RestoreItemAction,
        Self::RestoreItemActionV2,
        Self::DeleteItemAction,
        Self::ItemBlockAction,
    ];

    /// The spelling used in listings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BackupItemAction => "BackupItemAction",
            Self::BackupItemActionV2 => "BackupItemActionV2",
            Self::VolumeSnapshotter => "VolumeSnapshotter",
            Self::VolumeSnapshotterV2 => "VolumeSnapshotterV2",
            Self::ObjectStore => "ObjectStore",
            Self::RestoreItemAction => "RestoreItemAction",
            Self::RestoreItemActionV2 => "RestoreItemActionV2",
            Self::DeleteItemAction => "DeleteItemAction",
            Self::ItemBlockAction => "ItemBlockAction",
        }
    }

    /// True if `init` must be called before any other method, and again after a restart.
    pub fn needs_init(self) -> bool {
        matches!(self, Self::VolumeSnapshotter | Self::VolumeSnapshotterV2 | Self::ObjectStore)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownKind(text.to_owned()))
    }
}

/// The name of a plugin: `example.io/my-plugin`. The part before the slash is a DNS name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// A text that is not a valid plugin name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a plugin name: {reason}")]
pub struct InvalidName {
    /// The text.
    pub name: String,
    /// The reason.
    pub reason: &'static str,
}

/// The namespace of names without a slash: provider `aws` is `velero.io/aws`.
const DEFAULT_NAMESPACE: &str = "velero.io";

/// The longest DNS name.
const DNS_NAME_MAX: usize = 253;

impl Name {
    /// The plugin name for a provider: one without a slash is Velero's.
    pub fn of_provider(text: &str) -> Result<Self, InvalidName> {
        if text.contains('/') {
            text.parse()
        } else {
            format!("{DEFAULT_NAMESPACE}/{text}").parse()
        }
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        let invalid = |reason| Err(InvalidName { name: name.to_owned(), reason });
        match name.split_once('/') {
            None => invalid("expected <DNS name>/<name>"),
            Some((_, own)) if own.contains('/') => invalid("expected exactly one slash"),
            Some((_, "")) => invalid("nothing follows the slash"),
            Some((domain, _)) if !is_dns_name(domain) => {
                invalid("the part before the slash must be a DNS name in lower case")
            }
            Some(_) => Ok(Self(name.to_owned())),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A DNS-1123 subdomain.
fn is_dns_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty()
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= DNS_NAME_MAX && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_name_is_a_dns_name_a_slash_and_a_word() {
        for good in ["velero.io/aws", "a/b", "example.io/My Plugin!", "x-1.y/z"] {
            assert_eq!(good.parse::<Name>().map(|name| name.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "aws", "/aws", "velero.io/", "a/b/c", "Velero.io/aws", "-a/b", "a..b/c"] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }

    #[test]
    fn provider_without_a_slash_belongs_to_velero() {
        assert_eq!(
            Name::of_provider("aws").map(|name| name.to_string()),
            Ok("velero.io/aws".into())
        );
        assert_eq!(Name::of_provider("a.b/c").map(|name| name.to_string()), Ok("a.b/c".into()));
    }

    #[test]
    fn every_kind_round_trips() {
        for kind in Kind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert_eq!("PluginLister".parse::<Kind>(), Err(UnknownKind("PluginLister".into())));
    }
}

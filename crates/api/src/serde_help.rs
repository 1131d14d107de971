//! How fields are read and when they are left out, shared by all kinds.

use serde::{Deserialize, Deserializer};

/// Reads `null` as the empty value. Go writes `null` for a nil list or map, and Velero's CRDs
/// allow it for most of them.
pub(crate) fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Whether a number is left out, as Go's `omitempty` does.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
pub(crate) fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Whether a flag is left out, as Go's `omitempty` does.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
pub(crate) fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Lets an object without `spec` be read as one with an empty spec.
///
/// Velero's CRDs do not require `spec`, and one such object must not make a whole list
/// unreadable. kube's derive always wants the field, but serde asks a type that can be read
/// from nothing to do so; these can. The types derive with `#[serde(remote = "Self")]`, whose
/// functions are called here.
macro_rules! spec_may_be_absent {
    ($($spec:ty),+ $(,)?) => { $(
        impl serde::Serialize for $spec {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                <$spec>::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $spec {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Present($spec);
                impl<'de> serde::Deserialize<'de> for Present {
                    fn deserialize<D: serde::Deserializer<'de>>(
                        deserializer: D,
                    ) -> Result<Self, D::Error> {
                        <$spec>::deserialize(deserializer).map(Self)
                    }
                }
                let present = Option::<Present>::deserialize(deserializer)?;
                Ok(present.map_or_else(Default::default, |present| present.0))
            }
        }
    )+ };
}

pub(crate) use spec_may_be_absent;

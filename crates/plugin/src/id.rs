//! Opaque ids, understood only by the plugin that issued them.

/// Declares an id: a text that is not empty.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// An id; `None` for an empty text.
            pub fn new(id: impl Into<String>) -> Option<Self> {
                Some(id.into()).filter(|id| !id.is_empty()).map(Self)
            }

            /// The text of the id.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}
pub(crate) use id;

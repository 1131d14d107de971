//! A macro for the closed sets of strings in the API: phases, modes, kinds.
//!
//! Each is an enum of the strings of Velero 1.18, plus `Other` for a string of a newer version, which
//! survives being read and written. Each set declares whether the CRD lists its strings under
//! `enum:`, as Velero's CRD does.

/// Declares an enum over strings.
///
/// `checked` sets are listed in the CRD, so that the API server refuses other values;
/// `open` ones are plain strings there.
macro_rules! string_set {
    (
        $(#[$meta:meta])*
        $check:ident $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)+
            /// A value that this version does not know, unchanged.
            Other(String),
        }

        impl $name {
            /// The values that this version knows.
            pub const KNOWN: &[&str] = &[$($text),+];

            /// The string on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $text,)+
                    Self::Other(text) => text,
                }
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $($text => Self::$variant,)+
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::convert::Infallible;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Ok(text.into())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                Ok(Self::from(text.as_ref()))
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                string_set!(@schema $check)
            }
        }
    };
    (@schema checked) => { schemars::json_schema!({ "type": "string", "enum": Self::KNOWN }) };
    (@schema open) => { schemars::json_schema!({ "type": "string" }) };
}

pub(crate) use string_set;

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro declares public types")]
mod tests {
    string_set! {
        /// A set for the tests.
        checked Fruit {
            /// Green or red.
            Apple = "apple",
            /// Unset.
            Nothing = "",
        }
    }

    #[test]
    fn known_values_have_a_variant_and_unknown_ones_keep_their_text() {
        for (text, expected) in [
            ("apple", Fruit::Apple),
            ("", Fruit::Nothing),
            ("Apple", Fruit::Other("Apple".into())),
            ("pear", Fruit::Other("pear".into())),
        ] {
            let read: Fruit = serde_json::from_value(text.into()).unwrap();
            assert_eq!(read, expected);
            assert_eq!(text.parse::<Fruit>().unwrap(), expected);
            assert_eq!(read.to_string(), text);
            assert_eq!(serde_json::to_value(&read).unwrap(), text);
        }
    }

    #[test]
    fn display_honours_a_width() {
        assert_eq!(format!("[{:<7}]", Fruit::Apple), "[apple  ]");
    }

    #[test]
    fn a_checked_set_is_an_enum_in_the_schema() {
        let schema = schemars::schema_for!(Fruit);
        assert_eq!(schema.get("enum"), Some(&serde_json::json!(["apple", ""])));
    }
}

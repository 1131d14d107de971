//! Forms of values in JSON as Go writes them.

use std::fmt::Write as _;

/// Bytes as text in base64.
pub(crate) mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: From<Vec<u8>>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        // Go writes a missing value as `null`.
        let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
        STANDARD.decode(text).map(T::from).map_err(serde::de::Error::custom)
    }
}

/// Durations in nanoseconds. Negative ones, which have no meaning here, are zero.
pub(crate) mod nanoseconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let nanoseconds = i64::deserialize(deserializer)?;
        Ok(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or_default()))
    }
}

/// A list that Go writes as `null` when it is empty.
pub(crate) fn list_or_null<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: serde::Deserialize<'de>,
{
    serde::Deserialize::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Writes an empty list as `null`, as Go does.
pub(crate) fn null_if_empty<S, T>(list: &[T], serializer: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
    T: serde::Serialize,
{
    let list = if list.is_empty() { None } else { Some(list) };
    serde::Serialize::serialize(&list, serializer)
}

/// True if a value is the one that Go leaves out.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// JSON with the escapes that Go writes, so that equal documents have equal hashes whoever wrote them.
pub(crate) fn to_go_json<T: serde::Serialize>(value: &T) -> Result<String, serde_json::Error> {
    let json = serde_json::to_string(value)?;
    // Outside of strings JSON has none of these.
    let needs_escape = |letter| matches!(letter, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
    if !json.contains(needs_escape) {
        return Ok(json);
    }
    let mut escaped = String::with_capacity(json.len() + 64);
    for letter in json.chars() {
        if needs_escape(letter) {
            // Writing to text cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(letter));
        } else {
            escaped.push(letter);
        }
    }
    Ok(escaped)
}

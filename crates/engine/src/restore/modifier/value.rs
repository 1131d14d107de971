//! Interpretation of values.
//!
//! Values are strings in the document. A text that parses as `null`, a boolean, a number, an object or a list is
//! that; any other text is a string, as is a quoted one. A string is put between quotes and parsed as JSON, so that
//! `\n` in it is a newline and a stray quote is an error.

use serde_json::Value;

/// Why a text is no value.
#[derive(Debug, thiserror::Error)]
pub enum InvalidValue {
    /// It begins like an object or a list, and is none.
    #[error(transparent)]
    Json(serde_json::Error),
    /// It is not the content of a JSON string.
    #[error("{0}; in a string, a quote is written \\\" and a new line \\n")]
    String(serde_json::Error),
}

/// Parses a value.
pub(super) fn read(text: &str) -> Result<Value, InvalidValue> {
    let quoted = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    if let Some(inside) = quoted.or_else(|| (text == "\"").then_some("")) {
        return string(inside);
    }
    match text {
        "null" => return Ok(Value::Null),
        _ if text.eq_ignore_ascii_case("true") => return Ok(Value::Bool(true)),
        _ if text.eq_ignore_ascii_case("false") => return Ok(Value::Bool(false)),
        _ => {}
    }
    if text.starts_with(['{', '[']) {
        return serde_json::from_str(text).map_err(InvalidValue::Json);
    }
    match serde_json::from_str(text) {
        Ok(Value::Number(number)) if text.trim() == text => Ok(Value::Number(as_integer(number))),
        _ => string(text),
    }
}

fn string(text: &str) -> Result<Value, InvalidValue> {
    let string = serde_json::from_str(&format!("\"{text}\"")).map_err(InvalidValue::String)?;
    Ok(Value::String(string))
}

/// Normalizes whole numbers to integers; the API server does not accept `2.0` as a number of replicas.
fn as_integer(number: serde_json::Number) -> serde_json::Number {
    const LARGEST: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < LARGEST => {
            #[expect(clippy::cast_possible_truncation, reason = "it is whole and small enough")]
            let integer = float as i64;
            integer.into()
        }
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_parsed_as_velero_parses_them() {
        for (text, expected) in [
            ("", json!("")),
            ("premium", json!("premium")),
            ("null", json!(null)),
            ("Null", json!("Null")),
            ("true", json!(true)),
            ("False", json!(false)),
            ("2", json!(2)),
            ("-2.5", json!(-2.5)),
            ("2.0", json!(2)),
            ("1e3", json!(1000)),
            ("007", json!("007")),
            ("1.2.3", json!("1.2.3")),
            ("10.0.0.1/8", json!("10.0.0.1/8")),
            ("inf", json!("inf")),
            ("25%", json!("25%")),
            ("\"2\"", json!("2")),
            ("\"true\"", json!("true")),
            ("\"null\"", json!("null")),
            ("\"\"", json!("")),
            ("\"", json!("")),
            ("{\"a\": [1]}", json!({"a": [1]})),
            ("[{\"containerPort\": 80}]", json!([{"containerPort": 80}])),
            ("a\\nb", json!("a\nb")),
            ("say \\\"hi\\\"", json!("say \"hi\"")),
            (" 2", json!(" 2")),
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text}");
        }
        for broken in ["{a}", "[1", "say \"hi\"", "a\nb", "C:\\dir"] {
            assert!(read(broken).is_err(), "{broken}");
        }
    }
}

//! Takes out of objects and logs what nobody else may see, before they are handed on.
//!
//! Rather too much than too little: whatever is called like a credential, and all that follows the `?`
//! of an address, where signatures are.

use serde_json::Value;

/// What stands where something was taken out.
pub(crate) const REDACTED: &str = "<redacted>";

/// Names of settings whose values are secret, as parts of them.
const SECRET_WORDS: [&str; 14] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "accesskey",
    "apikey",
    "privatekey",
    "signature",
    "authorization",
    "sas",
    "accountkey",
    "encryptionkey",
];
/// Names that are like those, and tell only where something secret is.
const HARMLESS_WORDS: [&str; 4] = ["name", "ref", "file", "envvar"];
/// Links in the answers of the server, which are good for who has them.
const LINKS: [&str; 1] = ["downloadurl"];
/// Holds the whole object again, as somebody applied it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Where an address goes on to what may be secret.
const QUERY_WORDS: [&str; 3] = ["http://", "https://", "s3://"];

/// Takes what is secret out of an object.
pub(crate) fn object(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // An environment variable has its name beside its value.
            let is_secret_variable =
                fields.get("name").and_then(Value::as_str).is_some_and(is_secret);
            for (key, value) in fields.iter_mut() {
                let is_link = LINKS.contains(&key.to_lowercase().as_str());
                let is_value = key == "value" && is_secret_variable;
                if key == LAST_APPLIED || is_link || is_value || is_secret(key) {
                    redact(value);
                } else {
                    object(value);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(object),
        Value::String(text) => *text = line(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Takes out a text. What is no text is looked through: a reference to a Secret, say.
fn redact(value: &mut Value) {
    match value {
        Value::String(text) if text.is_empty() => {}
        Value::String(text) => REDACTED.clone_into(text),
        other => object(other),
    }
}

/// Takes what is secret out of a text of several lines.
pub(crate) fn text(text: &str) -> String {
    text.split_inclusive('\n').map(line).collect()
}

/// The same of one line: what belongs to an address, and what follows a word for something secret.
fn line(line: &str) -> String {
    assignments(&addresses(line))
}

/// Takes users, passwords and all that follows a `?` out of addresses.
fn addresses(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) =
        QUERY_WORDS.iter().filter_map(|word| rest.find(word).map(|at| at + word.len())).min()
    {
        clean.push_str(&rest[..at]);
        rest = &rest[at..];
        let is_end =
            |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`' | '\\');
        let end = rest.find(is_end).unwrap_or(rest.len());
        let (address, after) = rest.split_at(end);
        let (host, path) = address.split_at(address.find(['/', '?']).unwrap_or(address.len()));
        match host.rsplit_once('@') {
            Some((_, host)) => clean.extend([REDACTED, "@", host]),
            None => clean.push_str(host),
        }
        match path.split_once('?') {
            Some((path, _)) => clean.extend([path, "?", REDACTED]),
            None => clean.push_str(path),
        }
        rest = after;
    }
    clean.push_str(rest);
    clean
}

/// Takes out what follows `password=`, `token: ` and the like, and `Bearer`.
fn assignments(line: &str) -> String {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_of_word) {
        clean.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        clean.push_str(word);
        rest = after;
        let is_bearer = word.eq_ignore_ascii_case("bearer");
        if !is_secret(word) && !is_bearer {
            continue;
        }
        // `key="value"`, `"key":"value"`, `key: value`; a word by itself is no assignment.
        let gap = rest.find(|c: char| !matches!(c, '"' | '\'' | '\\' | ' ' | '=' | ':'));
        let gap = gap.unwrap_or(rest.len());
        let (between, value) = rest.split_at(gap);
        if !between.contains(['=', ':']) && !is_bearer {
            continue;
        }
        let is_end =
            |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\' | ',' | ';' | '&' | '}');
        let length = value.find(is_end).unwrap_or(value.len());
        clean.push_str(between);
        // What follows `Authorization:` is said by the word after it.
        if length > 0
            && !["bearer", "basic"].iter().any(|w| value[..length].eq_ignore_ascii_case(w))
        {
            clean.push_str(REDACTED);
            rest = &value[length..];
        } else {
            rest = value;
        }
    }
    clean.push_str(rest);
    clean
}

/// Whether something of that name is secret.
fn is_secret(name: &str) -> bool {
    let letters: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    let is_meant = |word: &&str| match *word {
        // Part of too many others.
        "sas" => letters == "sas" || letters.ends_with("sastoken"),
        word => letters.contains(word),
    };
    SECRET_WORDS.iter().any(is_meant) && !HARMLESS_WORDS.iter().any(|word| letters.ends_with(word))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_an_object_what_is_called_like_a_credential_is_taken_out() {
        let mut location = json!({
            "metadata": {"annotations": {LAST_APPLIED: "{\"secretKey\":\"s3cr3t\"}", "a": "b"}},
            "spec": {
                "config": {
                    "region": "x", "s3Url": "https://user:s3cr3t@host/p?sig=s3cr3t",
                    "secretAccessKey": "s3cr3t", "storageAccountKeyEnvVar": "KEY",
                    "resticRepoPassword": "s3cr3t", "SAS_TOKEN": "s3cr3t",
                },
                "credential": {"name": "cloud", "key": "file"},
            },
            "status": {"downloadURL": "http://h/s3cr3t", "message": "denied: token=s3cr3t"},
        });
        object(&mut location);
        assert!(!location.to_string().contains("s3cr3t"), "{location:#}");
        let config = &location["spec"]["config"];
        assert_eq!(config["region"], "x");
        assert_eq!(config["s3Url"], "https://<redacted>@host/p?<redacted>");
        assert_eq!(config["storageAccountKeyEnvVar"], "KEY");
        assert_eq!(location["spec"]["credential"], json!({"name": "cloud", "key": "file"}));
        assert_eq!(location["metadata"]["annotations"]["a"], "b");
        assert_eq!(location["status"]["message"], "denied: token=<redacted>");
    }

    #[test]
    fn a_variable_is_secret_by_its_name() {
        let mut pod = json!({"env": [
            {"name": "AWS_SECRET_ACCESS_KEY", "value": "s3cr3t"},
            {"name": "AWS_SHARED_CREDENTIALS_FILE", "value": "/credentials/cloud"},
            {"name": "HTTPS_PROXY", "value": "http://me:s3cr3t@proxy:3128"},
        ]});
        object(&mut pod);
        assert!(!pod.to_string().contains("s3cr3t"), "{pod:#}");
        assert_eq!(pod["env"][1]["value"], "/credentials/cloud");
        assert_eq!(pod["env"][2]["value"], "http://<redacted>@proxy:3128");
    }

    #[test]
    fn of_a_log_only_the_secret_is_taken_out() {
        for (said, expected) in [
            ("all is well\n", "all is well\n"),
            ("no token was found", "no token was found"),
            ("secret: cloud-credentials", "secret: <redacted>"),
            ("password=\"s3cr3t\" user=me", "password=\"<redacted>\" user=me"),
            ("{\"apiKey\":\"s3cr3t\",\"a\":1}", "{\"apiKey\":\"<redacted>\",\"a\":1}"),
            ("Authorization: Bearer s3cr3t", "Authorization: Bearer <redacted>"),
            ("GET https://h/b/k?X-Amz-Signature=s3cr3t 200", "GET https://h/b/k?<redacted> 200"),
            ("at http://h:1/p, next", "at http://h:1/p, next"),
            ("x?y=z", "x?y=z"),
        ] {
            assert_eq!(text(said), expected);
        }
        assert_eq!(text("token=a\ntoken=b\n"), "token=<redacted>\ntoken=<redacted>\n");
    }
}

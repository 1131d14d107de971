//! Removes confidential data from objects and logs before they are passed on.
//!
//! Rather too much than too little: values of anything named like a credential, commands, variables of pods that are
//! not known to be harmless, keys, and everything after the `?` of an address, where signatures are.

mod lines;

use std::collections::BTreeMap;

use serde_json::Value;

/// Placeholder for removed text.
pub(crate) const REDACTED: &str = "<redacted>";

/// Parts of the names of settings whose values are secret.
const SECRET_WORDS: [&str; 15] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
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
/// Parts of similar names, whose values only say where a secret is.
const PUBLIC_WORDS: [&str; 4] = ["name", "ref", "file", "envvar"];
/// Links in the answers of the server, which anyone who has them can use.
const LINKS: [&str; 1] = ["downloadurl"];
/// Contains the whole object again, as it was applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Variables of a pod whose values are known not to be secret. All others may be.
const PUBLIC_VARIABLES: [&str; 20] = [
    "ALIBABA_CLOUD_CREDENTIALS_FILE",
    "AWS_DEFAULT_REGION",
    "AWS_REGION",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AZURE_CREDENTIALS_FILE",
    "GOMAXPROCS",
    "GOMEMLIMIT",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LD_LIBRARY_PATH",
    "NAMESPACE",
    "NODE_NAME",
    "NO_PROXY",
    "PATH",
    "POD_NAME",
    "RUST_LOG",
    "TZ",
    "VELERO_NAMESPACE",
    "VELERO_SCRATCH_DIR",
];

/// Removes secrets from an object.
pub(crate) fn object(value: &mut Value) {
    walk(value, false);
}

/// Settings without values that are secret by their names, and without secrets in the others.
pub(crate) fn settings(settings: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let clean = |(key, value): (&String, &String)| {
        let is_hidden = !value.is_empty() && (is_secret(key) || key == LAST_APPLIED);
        let value = if is_hidden { REDACTED.to_owned() } else { text(value) };
        (key.clone(), value)
    };
    settings.iter().map(clean).collect()
}

fn walk(value: &mut Value, is_in_hooks: bool) {
    match value {
        Value::Object(fields) => {
            // An environment variable has its name beside its value.
            let is_secret_variable =
                fields.get("name").and_then(Value::as_str).is_some_and(is_secret);
            for (key, value) in fields.iter_mut() {
                let is_link = LINKS.contains(&key.to_lowercase().as_str());
                let is_value = key == "value" && is_secret_variable;
                // Commands, above all those of hooks, contain passwords in forms that only they know.
                let is_command = key == "command" || is_hook(key) || (is_in_hooks && key == "args");
                if key == LAST_APPLIED || is_link || is_value || is_command || is_secret(key) {
                    redact(value, is_in_hooks);
                } else if key == "env" {
                    variables(value);
                } else {
                    walk(value, is_in_hooks || key == "hooks");
                }
            }
        }
        Value::Array(values) => {
            // The value of a flag may be the word after it.
            let mut is_after_secret_flag = false;
            for value in values {
                let word = value.as_str().unwrap_or_default();
                let is_flag = word.starts_with('-') && !word.contains('=') && is_secret(word);
                if is_after_secret_flag {
                    redact(value, is_in_hooks);
                } else {
                    walk(value, is_in_hooks);
                }
                is_after_secret_flag = is_flag;
            }
        }
        Value::String(words) => *words = text(words),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Removes texts and numbers. Objects are searched: a reference to a Secret, for example.
fn redact(value: &mut Value, is_in_hooks: bool) {
    match value {
        Value::String(text) if text.is_empty() => {}
        Value::String(_) | Value::Number(_) => *value = REDACTED.into(),
        Value::Array(values) => values.iter_mut().for_each(|one| redact(one, is_in_hooks)),
        other => walk(other, is_in_hooks),
    }
}

/// Removes the values of the variables of a container, except for those known to be harmless.
fn variables(value: &mut Value) {
    for variable in value.as_array_mut().into_iter().flatten() {
        let name = variable["name"].as_str().unwrap_or_default().to_uppercase();
        if !PUBLIC_VARIABLES.contains(&name.as_str())
            && let Some(value) = variable.get_mut("value")
        {
            redact(value, false);
        }
    }
    walk(value, false);
}

/// True if an annotation of that name contains the command of a hook.
fn is_hook(key: &str) -> bool {
    key.contains("hook.") && key.ends_with("/command")
}

/// Removes secrets from a text of several lines.
pub(crate) fn text(text: &str) -> String {
    lines::without_pem(text).split_inclusive('\n').map(lines::redact_line).collect()
}

/// True if a value of that name is secret.
fn is_secret(name: &str) -> bool {
    let letters = normalized(name);
    let is_meant = |word: &&str| match *word {
        // Part of too many other words.
        "sas" => letters == "sas" || letters.ends_with("sastoken"),
        word => letters.contains(word),
    };
    let is_short = || {
        let name = name.trim_start_matches('-').to_ascii_lowercase();
        name == "pass" || ["_pass", "-pass", ".pass"].iter().any(|end| name.ends_with(end))
    };
    (SECRET_WORDS.iter().any(is_meant) || is_short())
        && !PUBLIC_WORDS.iter().any(|word| letters.ends_with(word))
}

/// Name in the form that all of its spellings share.
fn normalized(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn object_fields_named_like_credentials_are_redacted() {
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
    fn setting_names_are_kept_and_secret_values_redacted() {
        let before = [
            ("region", "x"),
            ("secretAccessKey", "s3cr3t"),
            ("s3Url", "https://me:s3cr3t@host/p"),
            ("password", ""),
            (LAST_APPLIED, "{\"config\":{\"key\":\"s3cr3t\"}}"),
        ];
        let before = before.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let after = settings(&before);
        assert!(!after.values().any(|value| value.contains("s3cr3t")), "{after:?}");
        assert!(after.keys().eq(before.keys()));
        assert_eq!((after["region"].as_str(), after["password"].as_str()), ("x", ""));
    }

    #[test]
    fn variable_with_a_secret_name_is_redacted() {
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
    fn container_variable_is_redacted_unless_known_public() {
        let mut pod = json!({"containers": [{"name": "bowline", "env": [
            {"name": "DSN", "value": "s3cr3t"},
            {"name": "VELERO_NAMESPACE", "value": "velero"},
            {"name": "https_proxy", "value": "http://me:s3cr3t@proxy:3128"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
        ]}]});
        object(&mut pod);
        let variables = &pod["containers"][0]["env"];
        assert!(!pod.to_string().contains("s3cr3t"), "{pod:#}");
        assert_eq!(variables[0]["value"], REDACTED);
        assert_eq!(variables[1]["value"], "velero");
        assert_eq!(variables[2]["value"], "http://<redacted>@proxy:3128");
        assert_eq!(variables[3]["valueFrom"]["secretKeyRef"], json!({"name": "a", "key": "b"}));
    }

    #[test]
    fn commands_are_redacted_everywhere() {
        let exec = json!({"container": "db", "command": ["sh", "-c", "mysql -ps3cr3t"]});
        let added = json!({"name": "init", "command": ["s3cr3t"], "args": ["s3cr3t"]});
        let mut value = json!({
            "metadata": {"annotations": {
                "pre.hook.backup.velero.io/command": "[\"mysql\",\"-ps3cr3t\"]",
                "post.hook.restore.velero.io/command": "mysql -ps3cr3t",
                "pre.hook.backup.velero.io/container": "db",
            }},
            "spec": {
                "hooks": {"resources": [
                    {"name": "a", "pre": [{"exec": exec}]},
                    {"postHooks": [{"init": {"initContainers": [added]}}]},
                ]},
                "livenessProbe": {"exec": {"command": ["ping", "s3cr3t"]}},
                "args": ["server", "--log-level=debug", "--x-token", "s3cr3t", "--y-token=s3cr3t"],
            },
        });
        object(&mut value);
        assert!(!value.to_string().contains("s3cr3t"), "{value:#}");
        let annotations = &value["metadata"]["annotations"];
        assert_eq!(annotations["pre.hook.backup.velero.io/container"], "db");
        assert_eq!(value["spec"]["hooks"]["resources"][0]["pre"][0]["exec"]["container"], "db");
        assert_eq!(value["spec"]["args"][1], "--log-level=debug");
    }

    #[test]
    fn lists_numbers_and_multi_line_keys_are_redacted() {
        let key = "-----BEGIN PRIVATE KEY-----\ns3cr3t\n-----END PRIVATE KEY-----\n";
        let mut value = json!({
            "passwords": ["s3cr3t"], "db_pwd": 12345, "data": {"a": format!("x\n{key}y")},
            "imagePullSecrets": [{"name": "registry"}], "automountServiceAccountToken": false,
        });
        object(&mut value);
        assert!(!value.to_string().contains("s3cr3t"), "{value:#}");
        assert_eq!(value["db_pwd"], REDACTED);
        assert_eq!(value["data"]["a"], "x\n<redacted>\ny");
        assert_eq!(value["imagePullSecrets"], json!([{"name": "registry"}]));
        assert_eq!(value["automountServiceAccountToken"], false);
    }
}

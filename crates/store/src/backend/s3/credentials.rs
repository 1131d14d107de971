//! Credentials for S3.
//!
//! In this order: the location's own file; a profile that the location names, in the default file;
//! keys in the environment; the file that the environment names; the role that the environment
//! names; the identity of the container or machine.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use bowline_plugin::{Code, Error, Result};

use super::Environment;
use super::config::{Settings, invalid};

const SHARED_FILE: &str = "AWS_SHARED_CREDENTIALS_FILE";
/// Size limit of a credentials file.
const MAX_FILE: u64 = 1 << 20;

/// An identity for S3.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Identity {
    /// Access keys.
    Keys { id: String, secret: String, token: Option<String> },
    /// A role, assumed with a token from a file.
    Role { arn: String, token_file: String, session: Option<String> },
    /// The identity of the container or machine.
    InstanceMetadata,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys { id, .. } => f.debug_struct("Keys").field("id", id).finish_non_exhaustive(),
            Self::Role { arn, .. } => {
                f.debug_struct("Role").field("arn", arn).finish_non_exhaustive()
            }
            Self::InstanceMetadata => f.write_str("Machine"),
        }
    }
}

/// An identity, and the region configured beside it.
#[derive(Debug)]
pub(super) struct DiscoveredIdentity {
    pub identity: Identity,
    pub region: Option<String>,
}

/// Finds the identity for a location.
pub(super) fn discover(
    settings: &Settings,
    environment: &Environment,
) -> Result<DiscoveredIdentity> {
    let profile = settings.profile.as_deref().or(environment.get("AWS_PROFILE"));
    let profile = profile.unwrap_or("default");
    if let Some(file) = &settings.credentials_file {
        return from_file(file, profile);
    }
    let shared = environment.get(SHARED_FILE).map(PathBuf::from);
    if settings.profile.is_some() {
        let home = || environment.get("HOME").map(|home| Path::new(home).join(".aws/credentials"));
        if let Some(file) = shared.clone().or_else(home) {
            return from_file(&file, profile);
        }
    }
    let get = |name: &str| environment.get(name).map(str::to_owned);
    if let (Some(id), Some(secret)) = (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")) {
        let identity = Identity::Keys { id, secret, token: get("AWS_SESSION_TOKEN") };
        return Ok(DiscoveredIdentity { identity, region: None });
    }
    if let Some(file) = shared {
        return from_file(&file, profile);
    }
    let role = (get("AWS_ROLE_ARN"), get("AWS_WEB_IDENTITY_TOKEN_FILE"));
    let identity = match role {
        (Some(arn), Some(token_file)) => {
            Identity::Role { arn, token_file, session: get("AWS_ROLE_SESSION_NAME") }
        }
        _ => Identity::InstanceMetadata,
    };
    Ok(DiscoveredIdentity { identity, region: None })
}

fn from_file(file: &Path, profile: &str) -> Result<DiscoveredIdentity> {
    let text = read(file).map_err(|error| {
        let message = format!("cannot read the credentials in {}: {error}", file.display());
        Error::new(Code::FailedPrecondition, message)
    })?;
    from_text(&text, profile).map_err(|error| error.context(file.display()))
}

fn read(file: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(file)?.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(text)
}

/// Reads a profile from a file in the format of the AWS tools.
fn from_text(text: &str, profile: &str) -> Result<DiscoveredIdentity> {
    let Some(section) = section(text, profile) else {
        return invalid(format!("profile `{profile}` does not exist"));
    };
    let get = |key: &str| section.get(key).filter(|value| !value.is_empty()).cloned();
    let region = get("region");
    let (id, secret) = (get("aws_access_key_id"), get("aws_secret_access_key"));
    let identity = match (id, secret, get("role_arn"), get("web_identity_token_file")) {
        (_, _, Some(arn), Some(token_file)) => {
            Identity::Role { arn, token_file, session: get("role_session_name") }
        }
        (Some(id), Some(secret), None, _) => {
            Identity::Keys { id, secret, token: get("aws_session_token") }
        }
        _ => {
            let other = ["role_arn", "source_profile", "credential_process", "sso_session"];
            let reason = match other.iter().find(|key| section.contains_key(**key)) {
                Some(key) => format!("uses `{key}`, which needs `velero-plugin-for-aws`"),
                None => "has no `aws_access_key_id` and `aws_secret_access_key`".to_owned(),
            };
            return invalid(format!("profile `{profile}` {reason}"));
        }
    };
    Ok(DiscoveredIdentity { identity, region })
}

/// Identity that a credentials file gives a profile, as logs show it, for fuzz targets.
#[cfg(feature = "testing")]
pub fn describe_identity(file: &str, profile: &str) -> Result<String> {
    from_text(file, profile).map(|discovered| format!("{discovered:?}"))
}

/// The settings of a profile: `[name]` in a credentials file, `[profile name]` in a config file.
fn section(text: &str, profile: &str) -> Option<BTreeMap<String, String>> {
    let mut section: Option<BTreeMap<String, String>> = None;
    let mut is_ours = false;
    for line in text.lines().map(str::trim_end) {
        let is_comment = line.trim_start().starts_with(['#', ';']);
        if line.is_empty() || is_comment {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            let name = header.split(']').next().unwrap_or_default().trim();
            let name = name.strip_prefix("profile ").map_or(name, str::trim);
            is_ours = name == profile;
            if is_ours {
                section.get_or_insert_default();
            }
        } else if let (true, Some(settings), Some((key, value))) =
            (is_ours && !line.starts_with([' ', '\t']), section.as_mut(), line.split_once('='))
        {
            settings.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_plugin::Config;

    const FILE: &str = "\
        # comment\n[default]\naws_access_key_id = id-1\r\naws_secret_access_key=se=cret\n\n\
        [ops]\nAWS_ACCESS_KEY_ID=id-2\naws_secret_access_key=s2\naws_session_token=t2\nregion=eu-west-1\n\
        s3 =\n  aws_access_key_id = nested\n\
        [profile role]\nrole_arn=arn:r\nweb_identity_token_file=/token\n\
        [chain]\nrole_arn=arn:r\nsource_profile=default\n[empty]\n";

    fn keys(id: &str, secret: &str, token: Option<&str>) -> Identity {
        let token = token.map(str::to_owned);
        Identity::Keys { id: id.to_owned(), secret: secret.to_owned(), token }
    }

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let mut config: Config =
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        config.insert("bucket".to_owned(), "b".to_owned());
        Settings::read(&config, false).unwrap()
    }

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn profile_is_read_as_the_aws_tools_read_it() {
        let identity_of = |profile| from_text(FILE, profile).unwrap();
        assert_eq!(identity_of("default").identity, keys("id-1", "se=cret", None));
        assert_eq!(identity_of("ops").identity, keys("id-2", "s2", Some("t2")));
        assert_eq!(identity_of("ops").region.as_deref(), Some("eu-west-1"));
        let role = Identity::Role {
            arn: "arn:r".to_owned(),
            token_file: "/token".to_owned(),
            session: None,
        };
        assert_eq!(identity_of("role").identity, role);
    }

    #[test]
    fn unusable_profile_is_an_error_with_its_reason() {
        for (profile, reason) in [
            ("nobody", "profile `nobody` does not exist"),
            ("chain", "velero-plugin-for-aws"),
            ("empty", "has no `aws_access_key_id`"),
        ] {
            let error = from_text(FILE, profile).unwrap_err();
            assert!(error.message().contains(reason), "{error}");
        }
    }

    #[test]
    fn most_specific_credentials_win() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        std::fs::write(&file, FILE).unwrap();
        let file = file.to_str().unwrap();
        let env_keys = [("AWS_ACCESS_KEY_ID", "e"), ("AWS_SECRET_ACCESS_KEY", "s")];
        let role = [("AWS_ROLE_ARN", "arn"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/t")];
        let shared = [(SHARED_FILE, file)];
        let all = [&env_keys[..], &role, &shared].concat();
        let find = |config: &[(&str, &str)], env: &[(&str, &str)]| {
            super::discover(&settings(config), &environment(env)).unwrap().identity
        };
        assert_eq!(find(&[("credentialsFile", file)], &all), keys("id-1", "se=cret", None));
        let named = [("credentialsFile", file), ("profile", "ops")];
        assert_eq!(find(&named, &all), keys("id-2", "s2", Some("t2")));
        assert_eq!(find(&[("profile", "ops")], &all), keys("id-2", "s2", Some("t2")));
        assert_eq!(find(&[], &all), keys("e", "s", None));
        assert_eq!(find(&[], &[&role[..], &shared].concat()), keys("id-1", "se=cret", None));
        assert!(matches!(find(&[], &role), Identity::Role { .. }));
        assert_eq!(find(&[], &[]), Identity::InstanceMetadata);
        let missing = settings(&[("credentialsFile", "/nowhere/at/all")]);
        let error = super::discover(&missing, &environment(&all)).unwrap_err();
        assert!(error.message().contains("/nowhere/at/all"), "{error}");
    }

    #[test]
    fn secrets_are_never_printed() {
        let text = format!(
            "{:?} {:?}",
            keys("id", "hunter2", Some("hunter3")),
            environment(&[("AWS_SECRET_ACCESS_KEY", "hunter2")])
        );
        assert!(!text.contains("hunter"), "{text}");
    }
}

//! Settings of Velero's command line: `~/.config/velero/config.json`.

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use bowline_api::DEFAULT_NAMESPACE;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tempfile::NamedTempFile;

/// Path below the home folder.
const CONFIG_PATH: &str = ".config/velero/config.json";
/// Larger than any real settings file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Variable with the namespace, unless a flag or the file sets another.
const NAMESPACE_VARIABLE: &str = "VELERO_NAMESPACE";

/// Settings that Bowline uses.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ClientConfig {
    /// Namespace of the server.
    namespace: Option<String>,
    /// Certificates to trust for downloads.
    pub(crate) cacert: Option<PathBuf>,
}

/// All settings in the file, including those that only Velero understands.
pub(crate) type Settings = Map<String, Value>;

/// Reads the settings that Bowline uses; empty without a file.
pub(crate) fn load() -> anyhow::Result<ClientConfig> {
    path().map_or_else(|| Ok(ClientConfig::default()), |path| read(&path))
}

/// Reads all settings of the user.
pub(crate) fn settings() -> anyhow::Result<Settings> {
    path().map_or_else(|| Ok(Settings::default()), |path| read(&path))
}

/// Writes all settings of the user. The file is replaced atomically.
pub(crate) fn save(settings: &Settings) -> anyhow::Result<()> {
    let path = path().context("cannot find a home directory for the settings; set HOME")?;
    let cannot = || format!("cannot write the settings to {}", path.display());
    let folder = path.parent().with_context(cannot)?;
    DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(cannot)?;
    // Readable by the user only, as temporary files are created.
    let mut file = NamedTempFile::new_in(folder).with_context(cannot)?;
    serde_json::to_writer(&mut file, settings).with_context(cannot)?;
    file.write_all(b"\n").with_context(cannot)?;
    file.persist(&path).map_err(|error| error.error).with_context(cannot)?;
    Ok(())
}

/// Path of the settings, for users with a home folder.
fn path() -> Option<PathBuf> {
    std::env::var_os("HOME").map(|home| Path::new(&home).join(CONFIG_PATH))
}

/// Namespace of the server.
pub(crate) fn namespace(flag: Option<&str>) -> anyhow::Result<String> {
    // An unreadable file does not matter when a flag names the namespace.
    let config = if flag.is_some() { ClientConfig::default() } else { load()? };
    let variable = std::env::var(NAMESPACE_VARIABLE).ok();
    let namespace = choose_namespace(flag, config.namespace.as_deref(), variable.as_deref());
    check_namespace(namespace)?;
    Ok(namespace.to_owned())
}

/// Fails if `name` is not valid as the name of a namespace.
pub(crate) fn check_namespace(name: &str) -> anyhow::Result<()> {
    if !is_namespace(name) {
        bail!(
            "{name:?} is not a valid namespace name; name the server's namespace with \
               --namespace"
        );
    }
    Ok(())
}

/// First source that names one.
fn choose_namespace<'a>(
    flag: Option<&'a str>,
    config: Option<&'a str>,
    variable: Option<&'a str>,
) -> &'a str {
    let candidates =
        [flag, config.filter(|name| !name.is_empty()), variable.filter(|n| !n.is_empty())];
    candidates.into_iter().flatten().next().unwrap_or(DEFAULT_NAMESPACE)
}

fn is_namespace(name: &str) -> bool {
    name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && (1..=63).contains(&name.len())
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn read<T: DeserializeOwned + Default>(path: &Path) -> anyhow::Result<T> {
    let cannot = || format!("cannot read the settings in {}", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
        opened => opened.with_context(cannot)?,
    };
    let mut text = String::new();
    file.take(MAX_FILE_BYTES).read_to_string(&mut text).with_context(cannot)?;
    serde_json::from_str(&text).with_context(|| format!("{}; fix or remove the file", cannot()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_wins_over_file_and_file_over_environment() {
        for (flag, config, variable, expected) in [
            (Some("f"), Some("c"), Some("v"), "f"),
            (None, Some("c"), Some("v"), "c"),
            (None, Some(""), Some("v"), "v"),
            (None, None, Some("v"), "v"),
            (None, None, Some(""), "velero"),
            (None, None, None, "velero"),
            // An explicitly empty namespace is an error, not a reason to use another one.
            (Some(""), Some("c"), Some("v"), ""),
        ] {
            assert_eq!(choose_namespace(flag, config, variable), expected);
        }
    }

    #[test]
    fn a_namespace_is_a_dns_label() {
        for good in ["velero", "a", "0-1"] {
            assert!(is_namespace(good), "{good}");
        }
        for bad in ["", "a/b", "..", "A", "-a", "a-", "a.b", &"x".repeat(64)] {
            assert!(!is_namespace(bad), "{bad}");
        }
    }

    #[test]
    fn unknown_settings_are_ignored_and_invalid_ones_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let parse = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            read::<ClientConfig>(file.path())
        };
        let config = parse(r#"{"namespace":"n","cacert":"/ca","colorized":"false"}"#).unwrap();
        let expected = ClientConfig { namespace: Some("n".to_owned()), cacert: Some("/ca".into()) };
        assert_eq!(config, expected);
        assert_eq!(parse("{}").unwrap(), ClientConfig::default());
        assert!(parse("{").unwrap_err().to_string().contains("fix or remove"));
        assert_eq!(read::<ClientConfig>(Path::new("/proc/none")).unwrap(), ClientConfig::default());
    }
}

//! The settings that a user of Velero's command line keeps: `~/.config/velero/config.json`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use bowline_api::DEFAULT_NAMESPACE;
use serde::Deserialize;

/// Below the home folder.
const PATH: &str = ".config/velero/config.json";
/// Larger than any honest settings.
const LIMIT: u64 = 1 << 20;
/// The namespace, unless a flag or the file says another.
const NAMESPACE_VARIABLE: &str = "VELERO_NAMESPACE";

/// What we use of it.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ClientConfig {
    /// Where the server is.
    namespace: Option<String>,
    /// Certificates to trust when files are downloaded.
    pub(crate) cacert: Option<PathBuf>,
}

/// Reads the user's settings; without a file there are none.
pub(crate) fn load() -> anyhow::Result<ClientConfig> {
    match std::env::var_os("HOME") {
        Some(home) => read(&Path::new(&home).join(PATH)),
        None => Ok(ClientConfig::default()),
    }
}

/// The namespace of the server that is meant.
pub(crate) fn namespace(flag: Option<&str>) -> anyhow::Result<String> {
    // A file that cannot be read is no matter to those who name the namespace.
    let config = if flag.is_some() { ClientConfig::default() } else { load()? };
    let variable = std::env::var(NAMESPACE_VARIABLE).ok();
    let namespace = decide(flag, config.namespace.as_deref(), variable.as_deref());
    if !is_namespace(namespace) {
        bail!("{namespace:?} is not the name of a namespace; name the server's with --namespace");
    }
    Ok(namespace.to_owned())
}

/// The first that says something.
fn decide<'a>(
    flag: Option<&'a str>,
    config: Option<&'a str>,
    variable: Option<&'a str>,
) -> &'a str {
    let said = [flag, config.filter(|name| !name.is_empty()), variable.filter(|n| !n.is_empty())];
    said.into_iter().flatten().next().unwrap_or(DEFAULT_NAMESPACE)
}

fn is_namespace(name: &str) -> bool {
    name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && (1..=63).contains(&name.len())
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn read(path: &Path) -> anyhow::Result<ClientConfig> {
    let cannot = || format!("cannot read the settings in {}", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ClientConfig::default()),
        opened => opened.with_context(cannot)?,
    };
    let mut text = String::new();
    file.take(LIMIT).read_to_string(&mut text).with_context(cannot)?;
    serde_json::from_str(&text).with_context(|| format!("{}; mend or remove the file", cannot()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_over_the_file_and_the_file_over_the_environment() {
        for (flag, config, variable, expected) in [
            (Some("f"), Some("c"), Some("v"), "f"),
            (None, Some("c"), Some("v"), "c"),
            (None, Some(""), Some("v"), "v"),
            (None, None, Some("v"), "v"),
            (None, None, Some(""), "velero"),
            (None, None, None, "velero"),
            // Somebody who says nothing on purpose is told so, not sent elsewhere.
            (Some(""), Some("c"), Some("v"), ""),
        ] {
            assert_eq!(decide(flag, config, variable), expected);
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
    fn settings_are_read_generously_but_not_wrongly() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let said = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            read(file.path())
        };
        let config = said(r#"{"namespace":"n","cacert":"/ca","colorized":"false"}"#).unwrap();
        let expected = ClientConfig { namespace: Some("n".to_owned()), cacert: Some("/ca".into()) };
        assert_eq!(config, expected);
        assert_eq!(said("{}").unwrap(), ClientConfig::default());
        assert!(said("{").unwrap_err().to_string().contains("mend or remove"));
        assert_eq!(read(Path::new("/proc/none")).unwrap(), ClientConfig::default());
    }
}

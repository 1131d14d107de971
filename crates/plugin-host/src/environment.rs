//! Which variables of our own environment a plugin process gets.
//!
//! The server's environment may hold what is none of a plugin's business: the headers of a trace collector, passwords
//! that somebody put there for something else. Plugins get what they are known to read, and what the operator adds.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

/// What plugins get by default: what Velero, its plugins and the libraries of their providers read. A `*` stands for
/// anything.
const DEFAULT_PATTERNS: &[&str] = &[
    // The system, and the runtimes of languages.
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "HOSTNAME",
    "TMPDIR",
    "TZ",
    "TZDIR",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LD_LIBRARY_PATH",
    "GODEBUG",
    "GOMAXPROCS",
    "GOMEMLIMIT",
    "GOGC",
    "GOTRACEBACK",
    "RUST_LOG",
    "RUST_BACKTRACE",
    // Certificates and proxies.
    "SSL_CERT_*",
    "*_PROXY",
    "*_proxy",
    // The cluster and the pod.
    "KUBERNETES_*",
    "KUBECONFIG",
    "POD_NAME",
    "POD_NAMESPACE",
    "POD_UID",
    "POD_IP",
    "NODE_NAME",
    "NAMESPACE",
    // Velero and we, and the framework of plugins.
    "VELERO_*",
    "BOWLINE_*",
    "PLUGIN_UNIX_SOCKET_DIR",
    // Providers whose plugins take their settings and credentials from here.
    "AWS_*",
    "AZURE_*",
    "ARM_*",
    "MSI_*",
    "IDENTITY_*",
    "GOOGLE_*",
    "GCP_*",
    "GCE_*",
    "CLOUDSDK_*",
    "ALIBABA_*",
    "ALIBABACLOUD_*",
    "ALICLOUD_*",
    "OS_*",
    "DIGITALOCEAN_*",
    "LINODE_*",
    "HCLOUD_*",
    "IBMCLOUD_*",
    "OCI_*",
    "VSPHERE_*",
    "PX_*",
    "OPENEBS_*",
    "MINIO_*",
    "CSI_*",
];

/// Says which variables of our own environment plugin processes get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InheritedEnvironment {
    /// All of them, as in Velero.
    All,
    /// Those that plugins are known to read, and these: names, with a `*` at one end or none.
    Patterns(Vec<String>),
}

impl Default for InheritedEnvironment {
    fn default() -> Self {
        Self::Patterns(Vec::new())
    }
}

impl InheritedEnvironment {
    /// What these words ask for: `all`, or names beyond those that are known.
    pub fn from_patterns(patterns: &[String]) -> Self {
        if patterns.iter().any(|pattern| pattern == "all") {
            return Self::All;
        }
        Self::Patterns(patterns.to_vec())
    }

    /// Whether a variable of this name is handed on.
    pub fn allows(&self, name: &OsStr) -> bool {
        match self {
            Self::All => true,
            Self::Patterns(added) => {
                let mut patterns =
                    DEFAULT_PATTERNS.iter().copied().chain(added.iter().map(String::as_str));
                patterns.any(|pattern| matches(pattern, name.as_bytes()))
            }
        }
    }

    /// Of these variables those that are handed on.
    pub(crate) fn filter(
        &self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> impl Iterator<Item = (OsString, OsString)> {
        variables.into_iter().filter(|(name, _)| self.allows(name))
    }
}

fn matches(pattern: &str, name: &[u8]) -> bool {
    let pattern = pattern.as_bytes();
    match (pattern.strip_suffix(b"*"), pattern.strip_prefix(b"*")) {
        (Some(start), _) => name.starts_with(start),
        (None, Some(end)) => name.ends_with(end),
        (None, None) => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(inherited: &InheritedEnvironment, name: &str) -> bool {
        inherited.allows(OsStr::new(name))
    }

    #[test]
    fn plugins_inherit_known_variables_and_others_only_when_named() {
        let inherited = InheritedEnvironment::default();
        for name in [
            "PATH",
            "HOME",
            "TMPDIR",
            "LC_ALL",
            "KUBERNETES_SERVICE_HOST",
            "VELERO_NAMESPACE",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AZURE_CREDENTIALS_FILE",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "ALIBABA_CLOUD_CREDENTIALS_FILE",
            "HTTPS_PROXY",
            "no_proxy",
            "SSL_CERT_DIR",
            "LD_LIBRARY_PATH",
            "BOWLINE_BED",
        ] {
            assert!(allows(&inherited, name), "{name}");
        }
        for name in [
            "OTEL_EXPORTER_OTLP_HEADERS",
            "DATABASE_PASSWORD",
            "LD_PRELOAD",
            "CARGO_MANIFEST_DIR",
            "SECRET",
            "XPATH",
            "PATHX",
            "GITHUB_TOKEN",
            "",
        ] {
            assert!(!allows(&inherited, name), "{name}");
        }
    }

    #[test]
    fn inherited_environment_can_be_everything_or_named_variables() {
        let of = |names: &[&str]| {
            let patterns: Vec<String> = names.iter().map(|&word| word.to_owned()).collect();
            InheritedEnvironment::from_patterns(&patterns)
        };
        assert_eq!(of(&[]), InheritedEnvironment::default());
        assert!(allows(&of(&["all"]), "OTEL_EXPORTER_OTLP_HEADERS"));
        let named = of(&["ACME_*", "TOKEN"]);
        assert!(allows(&named, "ACME_URL") && allows(&named, "TOKEN") && allows(&named, "PATH"));
        assert!(!allows(&named, "TOKENS"));
    }
}

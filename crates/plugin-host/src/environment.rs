//! Environment variables that a plugin process inherits from the server.
//!
//! The server's environment may contain variables that do not concern plugins: the headers of a
//! trace collector, passwords for other purposes. Plugins get the variables that they are known to
//! read, and those that the operator adds.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

/// Variables that plugins get by default: those that Velero, its plugins and the libraries of their
/// providers read. A `*` matches anything.
const DEFAULT_PATTERNS: &[&str] = &[
    // The system, and language runtimes.
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
    // Velero, Bowline, and the plugin framework.
    "VELERO_*",
    "BOWLINE_*",
    "PLUGIN_UNIX_SOCKET_DIR",
    // Providers whose plugins read their settings and credentials from the environment.
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

/// Selects the environment variables that plugin processes inherit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InheritedEnvironment {
    /// All of them, as in Velero.
    All,
    /// Variables that plugins are known to read, and these: names, with at most one `*`, at one
    /// end.
    Patterns(Vec<String>),
}

impl Default for InheritedEnvironment {
    fn default() -> Self {
        Self::Patterns(Vec::new())
    }
}

impl InheritedEnvironment {
    /// Parses a list of patterns: `all`, or names beyond the default ones.
    pub fn from_patterns(patterns: &[String]) -> Self {
        if patterns.iter().any(|pattern| pattern == "all") {
            return Self::All;
        }
        Self::Patterns(patterns.to_vec())
    }

    /// True if a variable of this name is inherited.
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

    /// The inherited variables among these.
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

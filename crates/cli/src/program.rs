//! Name of this program as the user types it.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::OnceLock;

/// Name of the binary.
pub(crate) const NAME: &str = "bowline";
/// Prefix by which kubectl finds its plugins.
const PLUGIN_PREFIX: &str = "kubectl-";

/// `bowline`, or `kubectl bowline` if started as a plugin of kubectl.
pub(crate) fn name() -> &'static str {
    static INVOCATION_NAME: OnceLock<String> = OnceLock::new();
    INVOCATION_NAME.get_or_init(|| {
        let first = std::env::args_os().next().unwrap_or_default();
        invocation_name(&first)
    })
}

/// Words that start the program with this path.
fn invocation_name(program: &OsStr) -> String {
    let stem = Path::new(program).file_stem().and_then(OsStr::to_str).unwrap_or_default();
    match stem.strip_prefix(PLUGIN_PREFIX) {
        // kubectl looks for a file with an underscore where a dash is typed.
        Some(plugin) if !plugin.is_empty() => format!("kubectl {}", plugin.replace('_', "-")),
        _ => NAME.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_plugin_is_named_as_it_is_invoked() {
        for (program, expected) in [
            ("bowline", "bowline"),
            ("/usr/bin/bowline", "bowline"),
            ("/opt/kubectl-bowline", "kubectl bowline"),
            ("kubectl-bowline.exe", "kubectl bowline"),
            ("kubectl-my_bowline", "kubectl my-bowline"),
            ("kubectl-", "bowline"),
            ("velero", "bowline"),
            ("", "bowline"),
        ] {
            assert_eq!(invocation_name(OsStr::new(program)), expected, "{program}");
        }
    }
}

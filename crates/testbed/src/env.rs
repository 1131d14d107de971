//! Every environment variable that the test bed reads or sets, in one place.

/// Folder with ready-made binaries; searched first.
pub const ASSETS: &str = "BOWLINE_TESTBED_ASSETS";

/// The same, under the name that controller-runtime's `setup-envtest` uses; searched second.
pub const KUBEBUILDER_ASSETS: &str = "KUBEBUILDER_ASSETS";

/// Folder for built binaries instead of `$XDG_CACHE_HOME/bowline`.
pub const CACHE: &str = "BOWLINE_CACHE";

/// Set to any value, it keeps the private folder of every bed, logs included, for inspection.
pub const KEEP_BEDS: &str = "BOWLINE_TESTBED_KEEP";

/// Id of the bed, set by the test bed on every process that it starts and inherited by their children. Processes that
/// have it are killed with the bed.
pub const BED_ID: &str = "BOWLINE_BED";

/// Limit for each test in minutes; `0` is none.
pub const TEST_MINUTES: &str = "BOWLINE_TEST_MINUTES";

/// Set by CI systems, where a real node is required.
pub const CI: &str = "CI";

/// Value of a variable; an empty one counts as unset.
pub(crate) fn get(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

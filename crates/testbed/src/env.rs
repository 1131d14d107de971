//! Every environment variable that the test bed reads or sets, in one place.

/// A folder with ready-made binaries; it is looked at first.
pub const ASSETS: &str = "BOWLINE_TESTBED_ASSETS";

/// The same, as controller-runtime's `setup-envtest` names it; it is looked at second.
pub const KUBEBUILDER_ASSETS: &str = "KUBEBUILDER_ASSETS";

/// Where built binaries are kept instead of `$XDG_CACHE_HOME/bowline`.
pub const CACHE: &str = "BOWLINE_CACHE";

/// Set to anything, it keeps the private folder of every bed, logs included, for a look afterwards.
pub const KEEP_BEDS: &str = "BOWLINE_TESTBED_KEEP";

/// Set by the test bed on every process it starts, and inherited by theirs: the id of the bed that
/// they belong to. What carries it is ended with the bed.
pub const BED_ID: &str = "BOWLINE_BED";

/// Set by CI systems. There a real node is not optional.
pub const CI: &str = "CI";

/// The value of a variable, where an empty one counts as unset.
pub(crate) fn get(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
